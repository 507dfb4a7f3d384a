/*
 * launch_models.h -- the models that a finished run leaves in its folder, for other programs: the newest, and the best.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCH_MODELS_H
#define RUNTIME_LAUNCH_MODELS_H

#include <stdbool.h>

#include "job.h"
#include "launcher.h"
#include "plan.h"
#include "progress.h"

struct aq_launch_models { /* all borrowed */
    const struct aq_job *job;
    const struct aq_plan *plan;
    const char *checkpoint; /* the folder of this run's checkpoints                            */
    bool brought;           /* by ssh (aq_bring): files that are elsewhere must come back      */
    bool resumed;           /* `aqpipe resume`: files that are elsewhere may come back         */
    struct aq_progress *progress;
};

/* Writes the model of result->mark into the run folder, and that of the best evaluation into its folder `best`
 * (*best_left: it was written). A stage whose file is elsewhere is told on `progress`, and is no error. Errors: those
 * of aq_export_weights and aq_bring_back. */
enum aq_status aq_launch_models_write(const struct aq_launch_models *models, const struct aq_launch_result *result,
                                      bool *best_left);

#endif
