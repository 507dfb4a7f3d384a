/* launch_models.c -- see the header. */
#include "launch_models.h"

#include "export.h"
#include "launch_bring.h"
#include "run_folder.h"

/* The model as other programs load it, where the files of all stages are on this machine. */
static enum aq_status write_model(const struct aq_launch_models *models, uint64_t mark, const char *folder)
{
    struct aq_progress *progress = models->progress;
    uint32_t stage;
    const struct aq_export export = {.plan = models->plan,
                                     .checkpoint = models->checkpoint,
                                     .step = mark,
                                     .folder = folder,
                                     .run = models->job->output.path,
                                     .type = "F32",
                                     .file_bytes_max = AQ_EXPORT_FILE_BYTES};
    if (!aq_export_here(&export, &stage)) {
        const char *host = models->job->pipeline.stages[stage].host;
        aq_progress_say(progress, "stage %u's weights are at %s: no model.safetensors here", stage,
                        host ? host : models->checkpoint);
        return AQ_OK;
    }
    if (aq_export_description(&export) != AQ_OK) { /* the weights are what was trained for: they come all the same */
        aq_progress_say(progress, "config.json and the tokenizer's files are not all there: %s", aq_error_text());
        aq_error_clear();
    }
    if (progress->terminal && !progress->off) aq_progress_say(progress, "writes model.safetensors");
    return aq_export_weights(&export);
}

/* Next to the newest model. The checkpoint may be on another machine, or deleted. */
static enum aq_status write_best(const struct aq_launch_models *models, const struct aq_best *best, bool *best_left)
{
    char folder[AQ_RUN_PATH_BYTES];
    uint32_t stage;
    const struct aq_export there = {.plan = models->plan, .checkpoint = models->checkpoint, .step = best->step};
    if (!best->figure || best->step == 0) return AQ_OK;
    if (!aq_export_here(&there, &stage)) {
        aq_progress_say(
            models->progress,
            "the best %s was after step %llu, of which stage %u's checkpoint is not in %s: no folder 'best'",
            best->figure, (unsigned long long)best->step, stage, models->checkpoint);
        return AQ_OK;
    }
    AQ_TRY(aq_run_path(models->job->output.path, "best", folder));
    AQ_TRY(aq_run_make_folder(folder));
    AQ_TRY(write_model(models, best->step, folder));
    *best_left = true;
    return AQ_OK;
}

/* Files of that step that are at hosts of ssh and not here. */
static enum aq_status fetch(const struct aq_launch_models *models, uint64_t step)
{
    uint32_t stage;
    const struct aq_export here = {.plan = models->plan, .checkpoint = models->checkpoint, .step = step};
    if ((!models->brought && !models->resumed) || step == 0 || aq_export_here(&here, &stage)) return AQ_OK;
    const enum aq_status status = aq_bring_back(models->job, here.checkpoint, step, models->progress);
    if (models->brought) return status;
    aq_error_clear();
    return AQ_OK;
}

enum aq_status aq_launch_models_write(const struct aq_launch_models *models, const struct aq_launch_result *result,
                                      bool *best_left)
{
    AQ_TRY(fetch(models, result->mark));
    if (result->best.figure) AQ_TRY(fetch(models, result->best.step));
    AQ_TRY(write_model(models, result->mark, models->job->output.path));
    return write_best(models, &result->best, best_left);
}
