/*
 * manifest_data.c -- data.kind where the manifest names none: recognised from data.train's first file, and printed.
 *
 * A job that a launcher has resolved names it, so that a stage without the data, and a resume, have the same.
 */
#include <string.h>

#include "manifest.h"
#include "stages/dataset.h"
#include "stages/task.h"

#define KEY "data.fields: "

enum { WHY_BYTES = 512 };

void aq_manifest_data(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *task = job->model.task ? job->model.task : aq_model_task(job->model.config.kind);
    const struct aq_dataset_config config = {.paths = job->data.train,
                                             .path_count = job->data.train_count,
                                             .field = task ? aq_task_field(aq_task_find(task)) : NULL,
                                             .columns = {.text = job->data.columns.text,
                                                         .label = job->data.columns.label},
                                             .names = job->data.fields,
                                             .quotes = job->data.quotes};
    struct aq_error_hold hold;
    char why[WHY_BYTES];
    if (job->data.fields) {
        aq_error_hold(&hold);
        const enum aq_status status = aq_dataset_fields_check(job->data.fields);
        aq_error_release(&hold);
        if (status != AQ_OK) {
            const size_t named = strncmp(hold.text, KEY, sizeof KEY - 1) == 0 ? sizeof KEY - 1 : 0;
            aq_manifest_error(manifest, "data.fields", "%s", hold.text + named);
            return;
        }
    }
    if (aq_yaml_find(manifest->root, "data.kind") || job->data.train_count == 0) return;
    manifest->job.data.kind = aq_dataset_recognise(&config, why, sizeof why);
    if (why[0]) aq_log("manifest", 1, "data.kind: %s, because %s", job->data.kind, why);
}
