/*
 * dataset_label_file.c -- only labels, one per sample: the part of its clients' data that a server of split learning
 * may have (docs/SPLIT.md, docs/FORMAT.md).
 *
 *     offset 0     16 bytes     "aqpipe labels 1\n"
 *     offset 16    4 bytes each a label, little-endian, 0 to 2^20 - 1; sample id = place
 *
 * A sample has `labels`, one number. A file may have no sample: there are clients without held-out ones.
 */
#include <string.h>

#include "dataset_kind.h"

enum { HEAD_BYTES = 16, LABEL_BYTES = 4, CLASSES_MAX = 1 << 20 };

#define FILE_BYTES_MAX (UINT64_C(1) << 32)

static const char head[HEAD_BYTES + 1] = "aqpipe labels 1\n";

struct labels {
    uint8_t *file;
    uint64_t count;
};

static uint32_t label_of(const struct labels *labels, uint64_t sample)
{
    const uint8_t *at = labels->file + HEAD_BYTES + sample * LABEL_BYTES;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t fields(uint32_t T, const struct aq_dataset_image *image, struct aq_field out[AQ_BATCH_FIELDS_MAX])
{
    (void)image;
    (void)T;
    out[0] = (struct aq_field){.name = "labels", .type = AQ_FIELD_I32, .count = 1};
    return 1;
}

static enum aq_status labels_open(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts)
{
    void *memory;
    size_t bytes;
    uint32_t most = 0;
    if (config->path_count != 1) return aq_fail(AQ_INVAL, DATASET_AREA, "labels are one file, not several");
    AQ_TRY(aq_alloc(sizeof(struct labels), &memory));
    struct labels *labels = *state = memory;
    AQ_TRY(aq_file_read(DATASET_AREA, config->paths[0], FILE_BYTES_MAX, &labels->file, &bytes));
    if (bytes < HEAD_BYTES || memcmp(labels->file, head, HEAD_BYTES) != 0 || (bytes - HEAD_BYTES) % LABEL_BYTES)
        return aq_fail(AQ_CORRUPT, DATASET_AREA, "%s: is not a file of labels, or is cut short", config->paths[0]);
    labels->count = (bytes - HEAD_BYTES) / LABEL_BYTES;
    for (uint64_t i = 0; i < labels->count; i++) {
        const uint32_t label = label_of(labels, i);
        if (label >= CLASSES_MAX)
            return aq_fail(AQ_CORRUPT, DATASET_AREA, "%s: sample %llu has label %u, not 0 to %d; the file is damaged",
                           config->paths[0], (unsigned long long)i, label, CLASSES_MAX - 1);
        if (label > most) most = label;
    }
    *facts =
        (struct dataset_facts){.samples = labels->count, .digest = aq_digest(labels->file, bytes), .outputs = most + 1};
    return AQ_OK;
}

static void labels_close(void *state)
{
    struct labels *labels = state;
    aq_free(labels->file);
    aq_free(labels);
}

static void get(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX])
{
    *(int32_t *)values[0] = (int32_t)label_of(state, sample);
}

static uint64_t bytes(uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    (void)image;
    (void)T;
    return HEAD_BYTES + samples * LABEL_BYTES;
}

extern const struct aq_dataset_kind aq_dataset_label_file;
const struct aq_dataset_kind aq_dataset_label_file = {.name = "label_file",
                                                      .what = "label",
                                                      .fields = fields,
                                                      .open = labels_open,
                                                      .close = labels_close,
                                                      .get = get,
                                                      .bytes = bytes};
