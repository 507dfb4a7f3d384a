/*
 * weights.c -- opens a safetensors file: maps it and checks everything that is said in its header before it is
 * believed.
 *
 * Invariants after open, as the format demands: the tensors' bytes follow each other without overlap or hole and fill
 * the file to its end; a tensor's length is its shape times its type; no name comes twice. The file is mapped
 * privately; if another process cuts it short meanwhile, reading it kills this one, as with any mapping.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights_file.h"

#define AREA "weights"

/* A non-negative integer of the header. */
static bool take_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static enum aq_status take_shape(const char *path, const json_t *shape, struct aq_weights_entry *entry)
{
    size_t dimensions = json_array_size(shape); /* 0 also where it is no array */
    if (!json_is_array(shape) || dimensions > AQ_WEIGHTS_DIMENSIONS_MAX)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": \"shape\" is no list of at most %d numbers", path,
                       entry->name, (int)AQ_WEIGHTS_DIMENSIONS_MAX);
    entry->dimensions = (uint32_t)dimensions;
    entry->count = 1;
    for (size_t i = 0; i < dimensions; i++) {
        if (!take_number(json_array_get(shape, i), &entry->shape[i]))
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": extent %zu of its shape is no number", path,
                           entry->name, i);
        if (__builtin_mul_overflow(entry->count, entry->shape[i], &entry->count))
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": its shape runs over 64 bits", path, entry->name);
    }
    return AQ_OK;
}

static enum aq_status take_entry(const struct aq_weights *w, const char *name, const json_t *value,
                                 struct aq_weights_entry *entry)
{
    entry->name = name;
    const char *type = json_string_value(json_object_get(value, "dtype"));
    if (!type) return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" has no \"dtype\"", w->path, name);
    entry->type = aq_weights_type_find(type);
    if (!entry->type)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" is of unknown type \"%.32s\"", w->path, name, type);
    AQ_TRY(take_shape(w->path, json_object_get(value, "shape"), entry));
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (json_array_size(offsets) != 2 || !take_number(json_array_get(offsets, 0), &entry->begin) ||
        !take_number(json_array_get(offsets, 1), &entry->end))
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": \"data_offsets\" is no [begin, end]", w->path, name);
    if (entry->begin > entry->end || entry->end > w->data_bytes)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" has bytes %llu to %llu of %llu; is the file cut short?",
                       w->path, name, (unsigned long long)entry->begin, (unsigned long long)entry->end,
                       (unsigned long long)w->data_bytes);
    uint64_t bytes;
    if (__builtin_mul_overflow(entry->count, entry->type->bytes, &bytes) || bytes != entry->end - entry->begin)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": %llu values of %s do not take %llu bytes", w->path,
                       name, (unsigned long long)entry->count, type, (unsigned long long)(entry->end - entry->begin));
    return AQ_OK;
}

static int by_place(const void *left, const void *right)
{
    const struct aq_weights_entry *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The entries in order of their bytes, without overlap, without hole, to the end of the file. */
static enum aq_status check_places(const struct aq_weights *w)
{
    if (w->count) qsort(w->entries, w->count, sizeof *w->entries, by_place);
    uint64_t end = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct aq_weights_entry *entry = &w->entries[i];
        if (entry->begin != end)
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" begins at byte %llu, the one before ends at %llu",
                           w->path, entry->name, (unsigned long long)entry->begin, (unsigned long long)end);
        end = entry->end;
    }
    if (end != w->data_bytes)
        return aq_fail(AQ_CORRUPT, AREA, "%s: the tensors end at byte %llu, the file has %llu", w->path,
                       (unsigned long long)end, (unsigned long long)w->data_bytes);
    return AQ_OK;
}

static enum aq_status check_metadata(const struct aq_weights *w, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return aq_fail(AQ_CORRUPT, AREA, "%s: \"__metadata__\" is no object", w->path);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return aq_fail(AQ_CORRUPT, AREA, "%s: \"__metadata__\": the value of \"%.128s\" is no text", w->path, key);
    }
    return AQ_OK;
}

static enum aq_status take_entries(struct aq_weights *w)
{
    const char *name;
    json_t *value;
    void *memory;
    size_t most = json_object_size(w->header);
    AQ_TRY(aq_alloc(most * sizeof(struct aq_weights_entry), &memory));
    w->entries = memory;
    json_object_foreach(w->header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            AQ_TRY(check_metadata(w, value));
            continue;
        }
        AQ_ASSERT(w->count < most);
        AQ_TRY(take_entry(w, name, value, &w->entries[w->count]));
        w->count++;
    }
    return check_places(w);
}

static enum aq_status take_header(struct aq_weights *w)
{
    uint64_t length = 0;
    if (w->file_bytes < 10) /* the length, and "{}" */
        return aq_fail(AQ_CORRUPT, AREA, "%s: is no safetensors file, it has %zu bytes", w->path, w->file_bytes);
    memcpy(&length, w->file, sizeof length);
    if (length > AQ_WEIGHTS_HEADER_BYTES_MAX || length > w->file_bytes - sizeof length || length < 2)
        return aq_fail(AQ_CORRUPT, AREA, "%s: is no safetensors file or cut short: header of %llu bytes, file of %zu",
                       w->path, (unsigned long long)length, w->file_bytes);
    const char *text = (const char *)w->file + sizeof length;
    json_error_t error;
    if (text[0] != '{') return aq_fail(AQ_CORRUPT, AREA, "%s: the header does not begin with {", w->path);
    w->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!w->header)
        return aq_fail(AQ_CORRUPT, AREA, "%s: header, line %d column %d: %s", w->path, error.line, error.column,
                       error.text);
    if (!json_is_object(w->header)) return aq_fail(AQ_CORRUPT, AREA, "%s: the header is no object", w->path);
    if (json_object_size(w->header) > UINT32_MAX)
        return aq_fail(AQ_CORRUPT, AREA, "%s: more tensors than can be counted", w->path);
    w->data = w->file + sizeof length + length;
    w->data_bytes = w->file_bytes - sizeof length - length;
    return take_entries(w);
}

static enum aq_status map_file(struct aq_weights *w, int file)
{
    struct stat about;
    if (fstat(file, &about) != 0) return aq_fail_errno(AREA, "%s: fstat", w->path);
    if (!S_ISREG(about.st_mode)) return aq_fail(AQ_IO, AREA, "%s: is not a regular file", w->path);
    if (about.st_size == 0) return aq_fail(AQ_CORRUPT, AREA, "%s: is empty", w->path);
    void *memory = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED) return aq_fail_errno(AREA, "%s: cannot be mapped", w->path);
    w->file = memory;
    w->file_bytes = (size_t)about.st_size;
    return AQ_OK;
}

/* Takes the descriptor. */
static enum aq_status weights_open(int file, const char *path, struct aq_weights **out)
{
    struct aq_weights *weights = NULL;
    void *memory;
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc(sizeof(struct aq_weights), &memory), out);
    weights = memory;
    AQ_TRY_GOTO(aq_alloc_text(path, &weights->path), out);
    AQ_TRY_GOTO(map_file(weights, file), out);
    AQ_TRY_GOTO(take_header(weights), out);
out:
    close(file);
    if (status != AQ_OK)
        aq_weights_close(weights);
    else
        *out = weights;
    return status;
}

enum aq_status aq_weights_open(const char *path, struct aq_weights **out)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO does not hang it */
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return aq_fail(AQ_NOTFOUND, AREA, "%s: there is no such file", path);
    if (file < 0) {
        aq_fail_errno(AREA, "%s: cannot be opened", path);
        return AQ_IO;
    }
    return weights_open(file, path, out);
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
    return weights_open(file, path, out);
}

void aq_weights_close(struct aq_weights *weights)
{
    if (!weights) return;
    json_decref(weights->header);
    if (weights->file) munmap(weights->file, weights->file_bytes);
    aq_free(weights->entries);
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
    const struct aq_weights_entry *entry = &weights->entries[index];
    static_assert(sizeof out->shape == sizeof entry->shape, "both hold AQ_WEIGHTS_DIMENSIONS_MAX extents");
    *out = (struct aq_weights_info){
        .name = entry->name, .type = entry->type->name, .dimensions = entry->dimensions, .count = entry->count};
    memcpy(out->shape, entry->shape, sizeof out->shape);
}

/* The name without the prefix that the models of Hugging Face with a head have and those without have not. */
const char *aq_weights_bare_name(const char *name)
{
    static const char prefix[] = "transformer.";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

enum aq_status aq_weights_find(const struct aq_weights *weights, const char *name, uint32_t *index)
{
    for (uint32_t i = 0; i < weights->count; i++) {
        if (strcmp(weights->entries[i].name, name) != 0) continue;
        *index = i;
        return AQ_OK;
    }
    for (uint32_t i = 0; i < weights->count; i++) {
        if (strcmp(aq_weights_bare_name(weights->entries[i].name), aq_weights_bare_name(name)) != 0) continue;
        *index = i;
        return AQ_OK;
    }
    return AQ_NOTFOUND;
}

const char *aq_weights_metadata(const struct aq_weights *weights, const char *key)
{
    return json_string_value(json_object_get(json_object_get(weights->header, "__metadata__"), key));
}
