/* next_step.c -- see the header. */
#include "next_step.h"

#include <string.h>
#include <unistd.h>

#include "run_folder.h"
#include "stages/chat.h"
#include "stages/task.h"

static bool is_there(const char *run, const char *name)
{
    char path[AQ_RUN_PATH_BYTES];
    return aq_run_path(run, name, path) == AQ_OK && access(path, R_OK) == 0;
}

static bool has_template(const char *run)
{
    struct aq_error_hold hold;
    char *text = NULL;
    size_t bytes;
    aq_error_hold(&hold);
    const bool has = aq_chat_source(run, &text, &bytes) == AQ_OK;
    aq_error_release(&hold);
    if (has) aq_free(text);
    return has;
}

void aq_next_step(const struct aq_job *job, struct aq_text *out)
{
    const char *run = job->output.path;
    const char *task = job->model.task ? job->model.task : aq_model_task(job->model.config.kind);
    const bool text = task && strcmp(aq_task_field(aq_task_find(task)), "targets") == 0;
    const bool whole = is_there(run, "model.safetensors") || is_there(run, "model.safetensors.index.json");
    if (!whole) return;
    aq_text_add(out, "wrote %s/model.safetensors", run);
    if (is_there(run, "adapter")) aq_text_add(out, " and %s/adapter", run);
    aq_text_add(out, "; try: aqpipe %s ", text ? "generate" : "eval");
    aq_text_shell(out, run);
    if (text)
        aq_text_add(out, has_template(run) ? " --chat \"...\"" : " --prompt \"...\"");
    else if (job->data.heldout_count == 0)
        aq_text_add(out, " --data FILE");
}

void aq_next_step_say(struct aq_progress *progress, const struct aq_job *job)
{
    struct aq_text next = {0};
    aq_progress_say(progress, "done: %s", job->output.path);
    aq_next_step(job, &next);
    if (next.used) aq_progress_say(progress, "%s", aq_text_of(&next));
    aq_text_deinit(&next);
}
