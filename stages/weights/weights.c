/*
 * weights.c -- named tensors of a safetensors file, or of the files of a folder: opened, found by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_wrapper.h"
#include "stage_model.h"
#include "aqsgd/base/given_file.h"
#include "stages/model_folder.h"
#include "weights_file.h"

#define AREA "weights"

enum { HEAD_BYTES = 64 * 1024 };

static int by_name(const void *left, const void *right)
{
    const struct aq_weights_entry *const *a = left, *const *b = right;
    const int bare = strcmp(aq_weights_bare_name((*a)->name), aq_weights_bare_name((*b)->name));
    return bare ? bare : strcmp((*a)->name, (*b)->name);
}

/* The tables over all files' entries. */
static enum aq_status index_entries(struct aq_weights *weights)
{
    uint64_t count = 0;
    for (uint32_t f = 0; f < weights->file_count; f++)
        count += weights->files[f].count;
    if (count > UINT32_MAX) return aq_fail(AQ_CORRUPT, AREA, "%s: more tensors than can be counted", weights->path);
    AQ_TRY(AQ_NEW(count + 1, &weights->entries));
    AQ_TRY(AQ_NEW(count + 1, &weights->sorted));
    for (uint32_t f = 0; f < weights->file_count; f++)
        for (uint32_t i = 0; i < weights->files[f].count; i++)
            weights->entries[weights->count++] = &weights->files[f].entries[i];
    memcpy(weights->sorted, weights->entries, (size_t)count * sizeof *weights->sorted);
    if (count) qsort(weights->sorted, (size_t)count, sizeof *weights->sorted, by_name);
    return AQ_OK;
}

/* One file, or (file -1) the folder at path. Takes the descriptor. */
static enum aq_status weights_open(int file, const char *path, aq_weights_wants *wants, void *context,
                                   struct aq_weights **out)
{
    struct aq_weights *weights = NULL;
    void *memory;
    enum aq_status status = aq_alloc(sizeof(struct aq_weights), &memory);
    if (status == AQ_OK) {
        weights = memory;
        status = aq_alloc_text(path, &weights->path);
    }
    if (status == AQ_OK && file >= 0) status = aq_alloc(sizeof *weights->files, &memory);
    if (status == AQ_OK && file >= 0) {
        weights->files = memory;
        weights->file_count = 1;
        status = aq_weights_file_open(file, path, weights->files);
        file = -1;
    } else if (status == AQ_OK)
        status = aq_weights_set_open(path, wants, context, weights);
    if (file >= 0) close(file);
    if (status == AQ_OK) status = index_entries(weights);
    if (status != AQ_OK)
        aq_weights_close(weights);
    else
        *out = weights;
    return status;
}

enum aq_status aq_weights_open_wanted(const char *path, aq_weights_wants *wants, void *context, struct aq_weights **out)
{
    if (aq_model_folder_is(path)) return weights_open(-1, path, wants, context, out);
    int file;
    AQ_TRY(aq_given_open(AREA, path, &file));
    return weights_open(file, path, NULL, NULL, out);
}

enum aq_status aq_weights_open(const char *path, struct aq_weights **out)
{
    return aq_weights_open_wanted(path, NULL, NULL, out);
}

enum aq_status aq_weights_open_in(const char *folder, const char *name, struct aq_weights **out)
{
    char path[4096];
    int file;
    const int bytes = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (bytes < 0 || (size_t)bytes >= sizeof path)
        return aq_fail(AQ_INVAL, AREA, "the path %.80s.../%.80s is too long", folder, name);
    const enum aq_status status = aq_file_open(folder, name, AQ_FILE_READ, &file);
    if (status == AQ_NOTFOUND) return aq_fail(AQ_NOTFOUND, AREA, "%s: there is no such file", path);
    AQ_TRY(status);
    return weights_open(file, path, NULL, NULL, out);
}

void aq_weights_close(struct aq_weights *weights)
{
    if (!weights) return;
    for (uint32_t f = 0; f < weights->file_count; f++)
        aq_weights_file_close(&weights->files[f]);
    aq_free(weights->files);
    aq_free(weights->entries);
    aq_free(weights->sorted);
    aq_free(weights->path);
    aq_free(weights);
}

uint32_t aq_weights_count(const struct aq_weights *weights)
{
    return weights->count;
}

void aq_weights_info(const struct aq_weights *weights, uint32_t index, struct aq_weights_info *out)
{
    AQ_ASSERT(index < weights->count);
    const struct aq_weights_entry *entry = weights->entries[index];
    static_assert(sizeof out->shape == sizeof entry->shape, "both hold AQ_WEIGHTS_DIMENSIONS_MAX extents");
    *out = (struct aq_weights_info){.name = entry->name,
                                    .file = entry->file->path,
                                    .type = entry->type->name,
                                    .dimensions = entry->dimensions,
                                    .count = entry->count};
    memcpy(out->shape, entry->shape, sizeof out->shape);
}

/* Of a model with a head the names of all below it have something in front, and so have those of a wrapped one. */
const char *aq_weights_bare_name(const char *name)
{
    const struct stage_model *model;
    const size_t front = strlen(model_wrapper_front(name));
    if (front) return name + front;
    for (uint32_t m = 0; (model = stage_model_at(m)) != NULL; m++) {
        const size_t bytes = model->base ? strlen(model->base) : 0;
        if (bytes > 0 && strncmp(name, model->base, bytes) == 0) return name + bytes;
    }
    return name;
}

enum aq_status aq_weights_find(const struct aq_weights *weights, const char *name, uint32_t *index)
{
    const char *bare = aq_weights_bare_name(name);
    uint32_t low = 0, high = weights->count;
    while (low < high) { /* the first whose bare name is not before this one */
        const uint32_t middle = low + (high - low) / 2;
        if (strcmp(aq_weights_bare_name(weights->sorted[middle]->name), bare) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const struct aq_weights_entry *found = NULL;
    for (; low < weights->count && strcmp(aq_weights_bare_name(weights->sorted[low]->name), bare) == 0; low++) {
        const bool same = strcmp(weights->sorted[low]->name, name) == 0;
        if (!found || same) found = weights->sorted[low];
        if (same) break;
    }
    if (!found) return AQ_NOTFOUND;
    *index = (uint32_t)(found - found->file->entries);
    for (const struct aq_weights_file *file = weights->files; file < found->file; file++)
        *index += file->count;
    return AQ_OK;
}

uint64_t aq_weights_digest(const struct aq_weights *weights)
{
    uint64_t digest = 0;
    for (uint32_t f = 0; f < weights->file_count; f++) {
        const struct aq_weights_file *file = &weights->files[f];
        const size_t head = file->file_bytes < HEAD_BYTES ? file->file_bytes : HEAD_BYTES;
        digest = aq_digest_seeded(file->file, head, file->file_bytes + digest);
    }
    return digest;
}

const char *aq_weights_metadata(const struct aq_weights *weights, const char *key)
{
    const json_t *header = weights->file_count ? weights->files[0].header : NULL;
    return json_string_value(json_object_get(json_object_get(header, "__metadata__"), key));
}
