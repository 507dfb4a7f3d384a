/* split_labels.c -- see the header. */
#include "split_labels.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"
#include "stages/dataset.h"
#include "stages/labels.h"

static const char *const AREA = "split";
static const char head[] = "aqpipe labels 1\n";

enum { HEAD_BYTES = sizeof head - 1, LABEL_BYTES = 4, NAME_BYTES = 32 };

const char *aq_split_labels_name(uint32_t which)
{
    return which == 0 ? "train" : "heldout";
}

uint64_t aq_split_labels_bytes(uint64_t samples)
{
    return HEAD_BYTES + samples * LABEL_BYTES;
}

static uint64_t samples_of(const struct aq_plan *plan, uint32_t which)
{
    return which == 0 ? plan->facts.train_samples : plan->facts.heldout_samples;
}

/* ---- at the client ---- */

/* The label of each sample behind the head. values: room for a sample's fields, of which `at` is the label. */
static enum aq_status labels_fill(const struct aq_dataset *data, uint64_t samples, void *const *values, uint32_t at,
                                  uint8_t *out)
{
    for (uint64_t i = 0; i < samples; i++, out += LABEL_BYTES) {
        AQ_TRY(aq_dataset_get(data, i, values));
        const uint32_t label = (uint32_t) * (const int32_t *)values[at];
        for (int byte = 0; byte < LABEL_BYTES; byte++)
            out[byte] = (uint8_t)(label >> 8 * byte);
    }
    return AQ_OK;
}

/* The fields' places in a buffer, how long it is, and which is the label. */
static uint64_t places(const struct aq_dataset_config *config, uint8_t *base, void *values[AQ_BATCH_FIELDS_MAX],
                       uint32_t *at)
{
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    uint64_t used = 0;
    const uint32_t count = aq_dataset_fields(config->kind, config->T, &config->image, fields);
    for (uint32_t i = 0; i < count; i++) {
        values[i] = base ? base + used : NULL;
        used += (uint64_t)fields[i].count * AQ_FIELD_BYTES;
        if (strcmp(fields[i].name, "labels") == 0) *at = i;
    }
    return used;
}

enum aq_status aq_split_labels_write(const struct aq_plan *plan, uint32_t which, const char *folder)
{
    char path[AQ_RUN_PATH_BYTES], name[NAME_BYTES];
    const struct aq_dataset_config config = aq_plan_dataset(plan->job, which == 1);
    const uint64_t samples = samples_of(plan, which), bytes = aq_split_labels_bytes(samples);
    struct aq_dataset *data = NULL;
    void *values[AQ_BATCH_FIELDS_MAX], *memory = NULL;
    uint32_t at = 0;
    enum aq_status status;
    snprintf(name, sizeof name, "labels-%s", aq_split_labels_name(which));
    AQ_TRY(aq_run_path(folder, name, path));
    AQ_TRY(aq_alloc(bytes + sizeof(float) + places(&config, NULL, values, &at), &memory));
    uint8_t *file = memory;
    memcpy(file, head, HEAD_BYTES);
    places(&config, file + (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float), values, &at);
    if (samples > 0) AQ_TRY_GOTO(aq_dataset_open(&config, &data), out);
    if (samples > 0) AQ_TRY_GOTO(labels_fill(data, samples, values, at, file + HEAD_BYTES), out);
    status = aq_file_replace(NULL, path, 0600, memory, bytes);
out:
    aq_dataset_close(data);
    aq_free(memory);
    return status;
}

/* ---- at the server ---- */

static enum aq_status open_file(const char *path, struct aq_dataset **out)
{
    const char *const paths[] = {path};
    const struct aq_dataset_config config = {.kind = aq_labels_kind(), .paths = paths, .path_count = 1, .T = 1};
    return aq_dataset_open(&config, out);
}

/* Its digest, if it holds labels of the plan's samples and only its classes. */
static enum aq_status look_at(const struct aq_plan *plan, const char *path, uint32_t which, uint64_t *digest)
{
    struct aq_dataset *labels;
    const uint32_t classes = plan->model.vocabulary;
    AQ_TRY(open_file(path, &labels));
    const uint64_t count = aq_dataset_count(labels);
    const uint32_t outputs = aq_dataset_outputs(labels);
    *digest = aq_dataset_digest(labels);
    aq_dataset_close(labels);
    if (outputs > classes)
        return aq_fail(AQ_MISMATCH, AREA, "a label of a %s sample is %u: the job has classes 0 to %u",
                       which ? "held-out" : "training", outputs - 1, classes - 1);
    if (count != samples_of(plan, which))
        return aq_fail(AQ_MISMATCH, AREA, "it has %" PRIu64 " labels for %" PRIu64 " samples", count,
                       samples_of(plan, which));
    return AQ_OK;
}

/* The file that was sent, and the one that is kept. */
static enum aq_status names(const char *folder, uint32_t which, char sent[AQ_RUN_PATH_BYTES],
                            char kept[AQ_RUN_PATH_BYTES])
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.sent", aq_split_labels_name(which));
    AQ_TRY(aq_run_path(folder, name, sent));
    return aq_run_path(folder, aq_split_labels_name(which), kept);
}

/* Is it good? *first: there was none before. */
static enum aq_status check_one(const struct aq_plan *plan, const char *folder, uint32_t which, bool *first)
{
    char sent[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES];
    uint64_t is = 0, was = 0;
    struct aq_dataset *before;
    *first = false;
    AQ_TRY(names(folder, which, sent, path));
    if (samples_of(plan, which) == 0) return AQ_OK; /* a file of nothing: its length was looked at */
    AQ_TRY(look_at(plan, sent, which, &is));
    *first = access(path, F_OK) != 0;
    if (*first) return AQ_OK;
    if (open_file(path, &before) != AQ_OK) return AQ_IO; /* our own file: it was good when it was kept */
    was = aq_dataset_digest(before);
    aq_dataset_close(before);
    return was == is ? AQ_OK : aq_fail(AQ_MISMATCH, AREA, "it comes with other labels than it began with");
}

static enum aq_status keep_one(const char *folder, uint32_t which)
{
    char sent[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES];
    AQ_TRY(names(folder, which, sent, path));
    return aq_file_rename(NULL, sent, path);
}

enum aq_status aq_split_labels_take(const struct aq_plan *plan, const char *folder, char why[AQ_SPLIT_TEXT_BYTES])
{
    struct aq_error_hold hold;
    enum aq_status status = AQ_OK;
    bool first[AQ_SPLIT_FILES];
    aq_error_hold(&hold);
    for (uint32_t which = 0; which < AQ_SPLIT_FILES && status == AQ_OK; which++)
        status = check_one(plan, folder, which, &first[which]);
    for (uint32_t which = 0; which < AQ_SPLIT_FILES && status == AQ_OK; which++) /* both, or it has not begun */
        if (first[which]) status = keep_one(folder, which);
    aq_error_release(&hold);
    const char *file = strstr(hold.text, ".sent: "); /* our paths are not told */
    if (status != AQ_OK)
        snprintf(why, AQ_SPLIT_TEXT_BYTES, "its labels are refused: %.300s", file ? file + 7 : hold.text);
    return status;
}
