/*
 * cut.h -- the stages' layers, if the plan cuts by measured layers (pipeline.cut: measured), or a run resumes.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_CUT_H
#define RUNTIME_CUT_H

#include "advice.h"

/*
 * If the job sets it (stages without layers, pipeline.cut: measured), measures the kinds of layers, or takes their kept
 * times, and *plan becomes the plan of the best cut. The text gets a line for people, empty if there was nothing to do.
 * AQ_NODEV: a stage is on a GPU, and this machine has no GPU. AQ_INVAL, AQ_NOMEM: *plan is as it was.
 */
enum aq_status aq_cut_measured(struct aq_plan **plan, uint32_t cores, struct aq_text *told);

/*
 * The run in this folder keeps its cut: if the job's stages set no layers, *plan gets the cut of the run's manifest.
 * false: there is no such run, or it has another count of stages or layers.
 */
bool aq_cut_of_run(struct aq_plan **plan, const char *run);

/* For a run that resumes with its cut, if pipeline.cut is `measured`: a line if it would now be cut differently. */
enum aq_status aq_cut_compare(const struct aq_plan *plan, uint32_t cores, struct aq_text *told);

#endif
