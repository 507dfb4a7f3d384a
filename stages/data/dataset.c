/* dataset.c -- the table of kinds, and the part of the samples that a configuration takes. See stages/dataset.h. */
#include <string.h>

#include "dataset_kind.h"
#include "stages/labels.h"

#define AQ_DATASET(name) extern const struct aq_dataset_kind aq_dataset_##name;
#include "stages/datasets.def"
#undef AQ_DATASET

#define AQ_DATASET(name) &aq_dataset_##name,
static const struct aq_dataset_kind *const kinds[] = {
#include "stages/datasets.def"
};
#undef AQ_DATASET

const char *aq_labels_kind(void)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct aq_field fields[AQ_BATCH_FIELDS_MAX];
        if (kinds[i]->fields(1, NULL, fields) == 1 && strcmp(fields[0].name, "labels") == 0) return kinds[i]->name;
    }
    return NULL;
}

struct aq_dataset {
    const struct aq_dataset_kind *kind;
    void *state;
    uint64_t skip, count;
    struct dataset_facts facts;
    uint32_t T;
};

/* NULL: text. */
static const struct aq_dataset_kind *kind_find(const char *name)
{
    if (!name) return kinds[0];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i]->name, name) == 0) return kinds[i];
    return NULL;
}

uint32_t aq_dataset_fields(const char *kind, uint32_t T, const struct aq_dataset_image *image,
                           struct aq_field fields[AQ_BATCH_FIELDS_MAX])
{
    const struct aq_dataset_kind *of = kind_find(kind);
    return of ? of->fields(T, image, fields) : 0;
}

uint64_t aq_dataset_bytes(const char *kind, uint32_t T, const struct aq_dataset_image *image, uint64_t samples)
{
    const struct aq_dataset_kind *of = kind_find(kind);
    return of ? of->bytes(T, image, samples) : 0;
}

enum aq_status aq_dataset_open(const struct aq_dataset_config *config, struct aq_dataset **out)
{
    const struct aq_dataset_kind *kind = kind_find(config->kind);
    enum aq_status status;
    if (!kind) return aq_fail(AQ_INVAL, DATASET_AREA, "the kind of data %s is unknown", config->kind);
    if (config->path_count == 0) return aq_fail(AQ_INVAL, DATASET_AREA, "no file is given");
    struct aq_dataset *dataset;
    AQ_TRY(AQ_NEW(1, &dataset));
    *dataset = (struct aq_dataset){.kind = kind, .skip = config->skip, .T = config->T};
    AQ_TRY_GOTO(kind->open(config, &dataset->state, &dataset->facts), out);
    const uint64_t samples = dataset->facts.samples;
    if (samples <= config->skip) {
        status = aq_fail(AQ_INVAL, DATASET_AREA, "%s%s: none of its %llu %ss remains after %llu are left out",
                         config->paths[0], config->path_count > 1 ? " and others" : "", (unsigned long long)samples,
                         kind->what, (unsigned long long)config->skip);
        goto out;
    }
    dataset->count = samples - config->skip;
    if (dataset->facts.places) dataset->T = dataset->facts.places;
    if (config->samples_max && dataset->count > config->samples_max) dataset->count = config->samples_max;
    aq_log(DATASET_AREA, 2, "kind=%s samples=%llu", kind->name, (unsigned long long)dataset->count);
    *out = dataset;
    return AQ_OK;
out:
    aq_dataset_close(dataset);
    return status;
}

void aq_dataset_close(struct aq_dataset *dataset)
{
    if (!dataset) return;
    if (dataset->state) dataset->kind->close(dataset->state);
    aq_free(dataset);
}

uint64_t aq_dataset_count(const struct aq_dataset *dataset)
{
    return dataset->count;
}

uint32_t aq_dataset_tokens(const struct aq_dataset *dataset)
{
    return dataset->T;
}

uint32_t aq_dataset_outputs(const struct aq_dataset *dataset)
{
    return dataset->facts.outputs;
}

uint32_t aq_dataset_vocabulary(const struct aq_dataset *dataset)
{
    return dataset->facts.vocabulary;
}

const uint32_t *aq_dataset_lengths(const struct aq_dataset *dataset)
{
    return dataset->facts.lengths ? dataset->facts.lengths + dataset->skip : NULL;
}

const uint32_t *aq_dataset_parts(const struct aq_dataset *dataset, uint64_t *count)
{
    const struct dataset_facts *facts = &dataset->facts;
    *count = 0;
    if (!facts->parts) return NULL;
    *count = facts->part_first[dataset->skip + dataset->count] - facts->part_first[dataset->skip];
    return facts->parts + facts->part_first[dataset->skip];
}

void aq_dataset_starts(const uint32_t *parts, uint64_t count, uint32_t T, uint32_t *starts)
{
    uint32_t at = 0;
    for (uint64_t p = 0; p < count; p++) {
        AQ_ASSERT(parts[p] <= T - at);
        for (uint32_t i = 0; i < parts[p]; i++)
            starts[at + i] = at;
        at += parts[p];
    }
    for (; at < T; at++)
        starts[at] = at;
}

bool aq_dataset_masks(const struct aq_dataset *dataset)
{
    return dataset->kind->targets != NULL;
}

bool aq_dataset_kind_masks(const char *kind)
{
    const struct aq_dataset_kind *of = kind_find(kind);
    return of && of->targets != NULL;
}

bool aq_dataset_kind_lengths(const char *kind)
{
    const struct aq_dataset_kind *of = kind_find(kind);
    return of && of->lengths;
}

bool aq_dataset_kind_names_files(const char *kind)
{
    const struct aq_dataset_kind *of = kind_find(kind);
    return of && of->names_files;
}

uint32_t aq_dataset_targets(const struct aq_dataset *dataset, uint64_t index, uint32_t count)
{
    AQ_ASSERT(index < dataset->count);
    if (dataset->kind->targets) return dataset->kind->targets(dataset->state, dataset->skip + index);
    return dataset->facts.targets ? dataset->facts.targets : count;
}

const int32_t *aq_dataset_ends(const struct aq_dataset *dataset, uint32_t *count)
{
    *count = dataset->facts.end_count;
    return dataset->facts.ends;
}

uint64_t aq_dataset_dropped(const struct aq_dataset *dataset)
{
    return dataset->facts.dropped;
}

uint64_t aq_dataset_digest(const struct aq_dataset *dataset)
{
    return dataset->facts.digest;
}

enum aq_status aq_dataset_get(const struct aq_dataset *dataset, uint64_t index, void *const values[AQ_BATCH_FIELDS_MAX])
{
    if (index >= dataset->count)
        return aq_fail(AQ_INVAL, DATASET_AREA, "sample %llu of %llu", (unsigned long long)index,
                       (unsigned long long)dataset->count);
    dataset->kind->get(dataset->state, dataset->skip + index, values);
    return AQ_OK;
}

enum aq_status aq_dataset_put(const struct aq_dataset *dataset, uint64_t index, struct aq_batch *batch,
                              uint32_t position)
{
    void *values[AQ_BATCH_FIELDS_MAX] = {NULL};
    for (uint32_t i = 0; i < batch->field_count; i++)
        values[i] = (uint8_t *)batch->fields[i].values + (size_t)position * batch->fields[i].count * AQ_FIELD_BYTES;
    return aq_dataset_get(dataset, index, values);
}
