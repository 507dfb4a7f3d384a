/*
 * weights_header.c -- one safetensors file: maps it and checks the whole header before any of it is used.
 *
 * Invariants after open, as the format demands: the tensors' bytes follow each other without overlap or hole and fill
 * the file to its end; a tensor's length is its shape times its type; no name comes twice. The file is mapped
 * privately; if another process cuts it short meanwhile, reading it kills this one, as with any mapping.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dataset_file.h"
#include "weights_file.h"

#define AREA "weights"

enum { PICKLE_BYTES = 4, JSON_AT = 8 };

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
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": \"shape\" is not a list of at most %d numbers", path,
                       entry->name, (int)AQ_WEIGHTS_DIMENSIONS_MAX);
    entry->dimensions = (uint32_t)dimensions;
    entry->count = 1;
    for (size_t i = 0; i < dimensions; i++) {
        if (!take_number(json_array_get(shape, i), &entry->shape[i]))
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": extent %zu of its shape is not a number", path,
                           entry->name, i);
        if (__builtin_mul_overflow(entry->count, entry->shape[i], &entry->count))
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": the size of its shape exceeds 64 bits", path,
                           entry->name);
    }
    return AQ_OK;
}

static enum aq_status take_entry(const struct aq_weights_file *w, const char *name, const json_t *value,
                                 struct aq_weights_entry *entry)
{
    entry->name = name;
    entry->file = w;
    const char *type = json_string_value(json_object_get(value, "dtype"));
    if (!type) return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" has no \"dtype\"", w->path, name);
    entry->type = aq_weights_type_find(type);
    if (!entry->type)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" is of unknown type \"%.32s\"", w->path, name, type);
    AQ_TRY(take_shape(w->path, json_object_get(value, "shape"), entry));
    const json_t *offsets = json_object_get(value, "data_offsets");
    if (json_array_size(offsets) != 2 || !take_number(json_array_get(offsets, 0), &entry->begin) ||
        !take_number(json_array_get(offsets, 1), &entry->end))
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\": \"data_offsets\" is not a pair [start, end]", w->path,
                       name);
    if (entry->begin > entry->end || entry->end > w->data_bytes)
        return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" has bytes %llu to %llu of %llu; is the file cut short?",
                       w->path, name, (unsigned long long)entry->begin, (unsigned long long)entry->end,
                       (unsigned long long)w->data_bytes);
    uint64_t bytes;
    const uint32_t bits = entry->type->bits ? entry->type->bits : 8 * entry->type->bytes;
    if (__builtin_mul_overflow(entry->count, bits, &bytes) || bytes % 8 || bytes / 8 != entry->end - entry->begin)
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
static enum aq_status check_places(const struct aq_weights_file *w)
{
    if (w->count) qsort(w->entries, w->count, sizeof *w->entries, by_place);
    uint64_t end = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct aq_weights_entry *entry = &w->entries[i];
        if (entry->begin != end)
            return aq_fail(AQ_CORRUPT, AREA, "%s: tensor \"%.128s\" starts at byte %llu, the one before ends at %llu",
                           w->path, entry->name, (unsigned long long)entry->begin, (unsigned long long)end);
        end = entry->end;
    }
    if (end != w->data_bytes)
        return aq_fail(AQ_CORRUPT, AREA, "%s: the tensors end at byte %llu, the file has %llu", w->path,
                       (unsigned long long)end, (unsigned long long)w->data_bytes);
    return AQ_OK;
}

static enum aq_status check_metadata(const struct aq_weights_file *w, json_t *metadata)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return aq_fail(AQ_CORRUPT, AREA, "%s: \"__metadata__\" is not an object", w->path);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return aq_fail(AQ_CORRUPT, AREA, "%s: \"__metadata__\": the value of \"%.128s\" is not a text", w->path,
                           key);
    }
    return AQ_OK;
}

enum aq_status aq_weights_names_renew(const char *path, json_t *names)
{
    static const char *const pairs[][2] = {{"LayerNorm.gamma", "weight"}, {"LayerNorm.beta", "bias"}};
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(names, next, name, value)
    {
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            const size_t length = strlen(name), end = strlen(pairs[i][0]);
            if (length < end || strcmp(name + length - end, pairs[i][0]) != 0) continue;
            json_t *renewed = json_sprintf("%.*s%s", (int)(strrchr(name, '.') + 1 - name), name, pairs[i][1]);
            const char *text = json_string_value(renewed);
            const bool there = text && json_object_get(names, text);
            const bool set = text && (there || json_object_set(names, text, value) == 0);
            json_decref(renewed);
            if (!set) return aq_fail(AQ_NOMEM, AREA, "%s: no memory for the names of its tensors", path);
            if (!there) json_object_del(names, name);
            break;
        }
    }
    return AQ_OK;
}

static enum aq_status take_entries(struct aq_weights_file *w)
{
    const char *name;
    json_t *value;
    size_t most = json_object_size(w->header);
    AQ_TRY(AQ_NEW(most, &w->entries));
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

/* torch.save writes a ZIP or a pickle: a program, which is not run. */
static enum aq_status check_pickle(const struct aq_weights_file *w)
{
    static const uint8_t zip[PICKLE_BYTES] = {'P', 'K', 3, 4};
    const bool pickle = w->file_bytes > 2 && w->file[0] == 0x80 && w->file[1] >= 2 && w->file[1] <= 5;
    if (w->file_bytes < PICKLE_BYTES || (memcmp(w->file, zip, sizeof zip) != 0 && !pickle)) return AQ_OK;
    if (w->file_bytes > JSON_AT && w->file[JSON_AT] == '{')
        return AQ_OK; /* the length of a header has such bytes, too */
    return aq_weights_pickle(w->path);
}

/* Bounds the number of items before a header is parsed: its memory would be 20 times its bytes. */
static enum aq_status check_counts(const struct aq_weights_file *w, const char *text, uint64_t length)
{
    uint64_t objects = 0, items = 0;
    for (uint64_t i = 0; i < length; i++) {
        objects += text[i] == '{';
        items += text[i] == ',' || text[i] == '[' || text[i] == ':';
    }
    if (objects <= AQ_WEIGHTS_TENSORS_MAX && items <= AQ_WEIGHTS_ITEMS_MAX) return AQ_OK;
    return aq_fail(
        AQ_INVAL, AREA,
        "%s: the header has about %llu tensors and %llu numbers and names; at most %llu tensors and %llu are "
        "read: put them into several files (model.safetensors.index.json)",
        w->path, (unsigned long long)objects, (unsigned long long)items, (unsigned long long)AQ_WEIGHTS_TENSORS_MAX,
        (unsigned long long)AQ_WEIGHTS_ITEMS_MAX);
}

static enum aq_status take_header(struct aq_weights_file *w)
{
    uint64_t length = 0;
    AQ_TRY(check_pickle(w));
    AQ_TRY(aq_file_check(AREA, w->path, w->file, w->file_bytes));
    if (w->file_bytes < 10) /* the length, and "{}" */
        return aq_fail(AQ_CORRUPT, AREA, "%s: is not a safetensors file, it has %zu bytes", w->path, w->file_bytes);
    memcpy(&length, w->file, sizeof length);
    if (length > AQ_WEIGHTS_HEADER_BYTES_MAX || length > w->file_bytes - sizeof length || length < 2)
        return aq_fail(
            AQ_CORRUPT, AREA,
            "%s: is not a safetensors file, or is cut short: its header would have %llu bytes, the file has %zu; name "
            "a model folder or a .safetensors file, or download it again",
            w->path, (unsigned long long)length, w->file_bytes);
    const char *text = (const char *)w->file + sizeof length;
    json_error_t error;
    if (text[0] != '{') return aq_fail(AQ_CORRUPT, AREA, "%s: the header does not start with {", w->path);
    AQ_TRY(check_counts(w, text, length));
    w->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!w->header)
        return aq_fail(AQ_CORRUPT, AREA, "%s: header, line %d column %d: %s", w->path, error.line, error.column,
                       error.text);
    if (!json_is_object(w->header)) return aq_fail(AQ_CORRUPT, AREA, "%s: the header is not an object", w->path);
    if (json_object_size(w->header) > UINT32_MAX)
        return aq_fail(AQ_CORRUPT, AREA, "%s: more tensors than can be counted", w->path);
    AQ_TRY(aq_weights_names_renew(w->path, w->header));
    w->data = w->file + sizeof length + length;
    w->data_bytes = w->file_bytes - sizeof length - length;
    return take_entries(w);
}

static enum aq_status map_file(struct aq_weights_file *w, int file)
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

enum aq_status aq_weights_file_open(int file, const char *path, struct aq_weights_file *out)
{
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc_text(path, &out->path), out);
    AQ_TRY_GOTO(map_file(out, file), out);
    status = take_header(out);
out:
    close(file);
    return status;
}

void aq_weights_file_close(struct aq_weights_file *file)
{
    json_decref(file->header);
    if (file->file) munmap(file->file, file->file_bytes);
    aq_free(file->entries);
    aq_free(file->path);
}

void aq_weights_release(const struct aq_weights_file *file, const uint8_t *bytes, uint64_t count)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)bytes + page - 1) / page * page,
                    to = ((uintptr_t)bytes + count) / page * page;
    AQ_ASSERT(bytes >= file->file && count <= file->file_bytes - (size_t)(bytes - file->file));
    if (to > from) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}
