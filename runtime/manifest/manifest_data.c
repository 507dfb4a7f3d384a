/*
 * manifest_data.c -- data.kind where the manifest names none: recognised from data.train's first file, and printed; and
 * the checks of the data.
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
    const struct aq_dataset_config config = {
        .paths = job->data.train,
        .path_count = job->data.train_count,
        .field = task ? aq_task_field(aq_task_find(task)) : NULL,
        .columns = {.text = job->data.columns.text, .label = job->data.columns.label},
        .names = job->data.fields,
        .quotes = job->data.quotes,
        .image = {.side = aq_model_side(&job->model.config)}};
    struct aq_error_hold hold;
    char why[WHY_BYTES];
    manifest->job.data.image.side = config.image.side;
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

void aq_manifest_check_data(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_yaml_node file = {.source = job->source};
    if (job->data.train_count == 0)
        aq_yaml_error(&manifest->errors, &file, "data.train: is missing; name a file to train on");
    const struct aq_tokenizer_about *tokenizer = aq_tokenizer_about(job->data.tokenizer);
    if (tokenizer->files && !job->data.tokenizer_path)
        aq_manifest_error(manifest, "data.tokenizer", "%s needs data.tokenizer_path: a folder with %s", tokenizer->name,
                          tokenizer->files);
}

/* Mean and std of colours: how many numbers. */
void aq_manifest_check_image(struct aq_manifest *manifest)
{
    const struct aq_dataset_image *image = &manifest->job.data.image;
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_dataset_image_check(image);
    aq_error_release(&why);
    const char *colon = strchr(why.text, ':');
    if (status == AQ_OK || !colon) return;
    aq_manifest_error(manifest, strstr(why.text, ".mean") ? "data.image.mean" : "data.image.std", "%s", colon + 2);
}

/* Crops, flips and holes are of images, and a crop leaves something of them. */
void aq_manifest_check_augment(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_augment *augment = &job->data.augment;
    const char *const key = augment->crop     ? "data.augment.crop"
                            : augment->cutout ? "data.augment.cutout"
                                              : "data.augment.flip";
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    if (!aq_augment_any(&job->data.augment)) return;
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, &job->data.image, fields);
    const uint32_t side = aq_augment_side(fields, count);
    if (side == 0)
        aq_manifest_error(manifest, key, "needs images, but data.kind is %s", job->data.kind);
    else if (job->data.augment.crop >= side)
        aq_manifest_error(manifest, key, "%u leaves nothing of images of %u x %u", job->data.augment.crop, side, side);
}
