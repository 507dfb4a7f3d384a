/*
 * cut.h -- who has which layers, where the plan cuts by measured layers (pipeline.cut: measured), or a run goes on.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_CUT_H
#define RUNTIME_CUT_H

#include "plan.h"

/*
 * Where the job wants it (its stages say no layers, pipeline.cut: measured), measures the kinds of layers, or takes
 * what is known of them, and *plan becomes that of the best cut. told: a line for people, empty where nothing was to be
 * done. AQ_NODEV: a stage is on a GPU, and here is none. AQ_INVAL, AQ_NOMEM: *plan is as it was.
 */
enum aq_status aq_cut_measured(struct aq_plan **plan, uint32_t cores, struct aq_text *told);

/*
 * The run in this folder keeps its cut: where the job's stages say no layers, *plan becomes that of the run's manifest.
 * false: there is no such run, or it has another count of stages or layers.
 */
bool aq_cut_of_run(struct aq_plan **plan, const char *run);

/* Of a run that goes on with its cut, where pipeline.cut is `measured`: a line where it would be cut otherwise now. */
enum aq_status aq_cut_compare(const struct aq_plan *plan, uint32_t cores, struct aq_text *told);

#endif
