/*
 * gguf_write.c -- the file: header, list of tensors, values. docs/GGUF.md has the bytes.
 *
 * Values come from weights_source.c by rows, change their order where an architecture has another one, and are
 * written as F32 (vectors, tables of positions), F16, or Q8_0 blocks of 32 values. A matrix whose rows are no multiple
 * of 32 values is F16 in a Q8_0 file, as llama.cpp's conversion has it.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gguf_private.h"
#include "weights_file.h"

enum { PATH_BYTES_MAX = 4096, PIECE_FLOATS = 1 << 20, FACTORS_MAX = 1024, Q8_VALUES = 32 };

enum gguf_type { GGUF_TYPE_F32 = 0, GGUF_TYPE_F16 = 1, GGUF_TYPE_Q8_0 = 8 };

/* 32 values are d times q. ggml-common.h has the same. */
struct q8_block {
    uint16_t d; /* f16 */
    int8_t q[Q8_VALUES];
};
static_assert(sizeof(struct q8_block) == 34, "a block of the file");

struct entry {
    struct gguf_place place;
    struct aq_weights_tensor source; /* as the file has it: turned or not */
    enum gguf_type type;
    uint64_t rows, columns, bytes, offset; /* offset: from the first tensor's bytes */
};

struct file {
    const struct aq_gguf *gguf;
    const char *folder, *name;
    char partial[PATH_BYTES_MAX];
    int fd;
    bool partial_there;
    struct entry *entries;
    uint32_t count;
    float *floats, *row; /* a piece; a row whose columns change their order */
    uint64_t floats_max, columns_max;
    float factors[GGUF_FACTOR_LISTS][FACTORS_MAX];
    uint64_t done, total; /* bytes of values */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

/* ---- Types. */

/* As ggml's quantize_row_q8_0_ref: d = the largest magnitude / 127, q = x / d, halves away from zero. */
static bool to_q8(float *values, uint64_t count)
{
    bool fits = true;
    for (uint64_t at = 0; at < count; at += Q8_VALUES) {
        const float *x = values + at;
        struct q8_block block;
        float most = 0;
        for (int i = 0; i < Q8_VALUES; i++)
            most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
        const float d = most / 127.0f;
        block.d = aq_half_from_float(d);
        const float inverse = isfinite(1.0f / d) ? 1.0f / d : 0.0f; /* else d is 0 as fp16, and so is each value */
        fits = fits && (block.d & 0x7c00) != 0x7c00;
        for (int i = 0; fits && i < Q8_VALUES; i++)
            block.q[i] = (int8_t)roundf(x[i] * inverse);
        memcpy((uint8_t *)values + at / Q8_VALUES * sizeof block, &block, sizeof block);
    }
    return fits;
}

static bool to_f16(float *values, uint64_t count)
{
    bool fits = true;
    for (uint64_t i = 0; i < count; i++) {
        const uint16_t half = aq_half_from_float(values[i]);
        fits = fits && ((half & 0x7c00) != 0x7c00);
        memcpy((uint8_t *)values + i * sizeof half, &half, sizeof half);
    }
    return fits;
}

static uint64_t bytes_of(enum gguf_type type, uint64_t values)
{
    if (type == GGUF_TYPE_Q8_0) return values / Q8_VALUES * sizeof(struct q8_block);
    return values * (type == GGUF_TYPE_F16 ? sizeof(uint16_t) : sizeof(float));
}

static const char *type_name(enum gguf_type type)
{
    return type == GGUF_TYPE_Q8_0 ? "Q8_0" : type == GGUF_TYPE_F16 ? "F16" : "F32";
}

/* ---- The list of tensors. */

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

/* The shape and the type; behind all those before it. */
static void entry_place(struct file *file, struct entry *entry)
{
    const struct aq_weights_tensor *source = &entry->source;
    const bool matrix = source->dimensions == 2;
    entry->rows = matrix ? source->shape[source->transposed ? 1 : 0] : 1;
    entry->columns = source->shape[matrix && !source->transposed ? 1 : 0];
    entry->type = !matrix || entry->place.plain                       ? GGUF_TYPE_F32
                  : file->gguf->q8 && entry->columns % Q8_VALUES == 0 ? GGUF_TYPE_Q8_0
                                                                      : GGUF_TYPE_F16;
    entry->bytes = bytes_of(entry->type, entry->rows * entry->columns);
    entry->offset = file->count ? aligned(entry[-1].offset + entry[-1].bytes) : 0;
    if (file->floats_max < entry->columns) file->floats_max = entry->columns;
    if (file->columns_max < entry->columns) file->columns_max = entry->columns;
    file->total += entry->bytes;
    file->count++;
}

/* The tensors that no run has. */
static void factors_place(struct file *file)
{
    const struct aq_gguf *gguf = file->gguf;
    for (uint32_t i = 0; i < GGUF_FACTOR_LISTS; i++) {
        struct entry *entry = &file->entries[file->count];
        const char *name = NULL;
        const uint32_t count =
            gguf_rope_factors(gguf->family, &gguf->model, i, &name, file->factors[i], FACTORS_MAX);
        if (count == 0) continue;
        *entry = (struct entry){.source = {.dimensions = 1, .shape = {count}, .values = file->factors[i]}};
        snprintf(entry->place.name, sizeof entry->place.name, "%s", name);
        entry_place(file, entry);
    }
}

/* The taps of a convolution of single channels, (C, 1, taps), are a matrix there. */
static void squeeze(struct aq_weights_tensor *source)
{
    if (source->dimensions != 3 || source->shape[1] != 1) return;
    source->shape[1] = source->shape[2];
    source->dimensions = 2;
}

static enum aq_status entries_make(struct file *file, const struct aq_weights_tensor *tensors, uint32_t count)
{
    const struct aq_gguf *gguf = file->gguf;
    AQ_TRY(AQ_NEW(count + GGUF_FACTOR_LISTS, &file->entries));
    file->floats_max = PIECE_FLOATS;
    factors_place(file);
    for (uint32_t i = 0; i < count; i++) {
        struct entry *entry = &file->entries[file->count];
        entry->source = tensors[i];
        squeeze(&entry->source);
        AQ_TRY(gguf_place(gguf->family, &gguf->model, tensors[i].name, &entry->place));
        if (entry->source.dimensions == 0 || entry->source.dimensions > 2)
            return aq_fail(AQ_INVAL, GGUF_AREA, "tensor %s has %u dimensions", tensors[i].name, tensors[i].dimensions);
        if (entry->place.turn && entry->source.dimensions == 2) entry->source.transposed = !entry->source.transposed;
        entry_place(file, entry);
    }
    AQ_TRY(AQ_NEW(file->floats_max, &file->floats));
    AQ_TRY(AQ_NEW(file->columns_max, &file->row));
    return AQ_OK;
}

/* ---- Values. */

static enum aq_status write_all(struct file *file, const void *bytes, size_t count)
{
    if (aq_write_all(file->fd, bytes, count)) return AQ_OK;
    return aq_fail_errno(GGUF_AREA, "%s/%s: cannot be written", file->folder, file->partial);
}

/* The row (or column) of the tensor that is at `at` in the file. */
static uint64_t source_of(const struct gguf_order *order, uint64_t at)
{
    if (order->groups == 0 || at < order->first) return at;
    const uint64_t set = (uint64_t)order->groups * order->items * order->rows, place = (at - order->first) % set;
    const uint64_t item = place / order->rows / order->groups, group = place / order->rows % order->groups;
    return at - place + (group * order->items + item) * order->rows + place % order->rows;
}

static void columns_reorder(const struct gguf_order *order, float *row, uint64_t columns, float *room)
{
    memcpy(room, row, columns * sizeof *row);
    for (uint64_t c = 0; c < columns; c++)
        row[c] = room[source_of(order, c)];
}

/* Rows first, first + 1, ... of the file; a vector whose values are reordered has a row per value. */
static enum aq_status rows_read(const struct file *file, const struct entry *entry, uint64_t first, uint64_t rows,
                                float *out)
{
    const struct aq_weights_tensor *source = &entry->source;
    const struct gguf_place *place = &entry->place;
    const bool matrix = source->dimensions == 2, reorders = place->order.groups != 0;
    const uint64_t columns = matrix ? entry->columns : 1, all = rows * entry->columns;
    if (!matrix && !reorders) AQ_TRY(aq_weights_source_floats(source, 0, entry->columns, out));
    if (matrix && !reorders) AQ_TRY(aq_weights_source_rows(source, first, rows, out));
    for (uint64_t r = 0; reorders && r < (matrix ? rows : entry->columns); r++) {
        const uint64_t from = source_of(&place->order, first + r);
        AQ_TRY(matrix ? aq_weights_source_rows(source, from, 1, out + r * columns)
                      : aq_weights_source_floats(source, from, 1, out + r));
    }
    for (uint64_t r = 0; place->columns.groups && r < rows; r++)
        columns_reorder(&place->columns, out + r * columns, columns, file->row);
    for (uint64_t i = 0; place->decay && i < all; i++)
        out[i] = (float)-exp((double)out[i]);
    for (uint64_t i = 0; place->plus != 0.0f && i < all; i++)
        out[i] += place->plus;
    return AQ_OK;
}

static enum aq_status entry_write(struct file *file, const struct entry *entry)
{
    static const uint8_t zeroes[GGUF_ALIGNMENT];
    const uint64_t most = file->floats_max / entry->columns;
    AQ_TRY(aq_weights_source_begin(&entry->source, file->floats, file->floats_max));
    for (uint64_t row = 0, rows; row < entry->rows; row += rows) {
        rows = entry->rows - row < most ? entry->rows - row : most;
        const uint64_t values = rows * entry->columns;
        AQ_TRY(rows_read(file, entry, row, rows, file->floats));
        const bool fits = entry->type == GGUF_TYPE_Q8_0  ? to_q8(file->floats, values)
                          : entry->type == GGUF_TYPE_F16 ? to_f16(file->floats, values)
                                                         : true;
        if (!fits)
            return aq_fail(AQ_INVAL, GGUF_AREA, "%s/%s: tensor %s has a value that is too large for %s, or NaN",
                           file->folder, file->name, entry->source.name, type_name(entry->type));
        AQ_TRY(write_all(file, file->floats, bytes_of(entry->type, values)));
        file->done += bytes_of(entry->type, values);
        if (file->progress) file->progress(file->context, file->done, file->total);
    }
    if (!entry->source.values && entry->source.from) aq_weights_forget(entry->source.from, entry->source.index);
    return write_all(file, zeroes, aligned(entry->bytes) - entry->bytes);
}

/* ---- All of it. */

static enum aq_status header_write(struct file *file)
{
    const uint32_t version = GGUF_VERSION;
    const uint64_t counts[] = {file->count, file->gguf->keys.pairs};
    struct gguf_keys header = {.status = AQ_OK};
    gguf_bytes(&header, "GGUF", 4);
    gguf_bytes(&header, &version, sizeof version);
    gguf_bytes(&header, counts, sizeof counts);
    gguf_bytes(&header, file->gguf->keys.at, file->gguf->keys.count);
    for (uint32_t i = 0; i < file->count; i++) {
        const struct entry *entry = &file->entries[i];
        const uint32_t dimensions = entry->source.dimensions, type = (uint32_t)entry->type;
        const uint64_t shape[] = {entry->columns, entry->rows}; /* the nearest values first */
        gguf_text(&header, entry->place.name, strlen(entry->place.name));
        gguf_bytes(&header, &dimensions, sizeof dimensions);
        gguf_bytes(&header, shape, dimensions * sizeof shape[0]);
        gguf_bytes(&header, &type, sizeof type);
        gguf_bytes(&header, &entry->offset, sizeof entry->offset);
    }
    while (header.status == AQ_OK && header.count % GGUF_ALIGNMENT)
        gguf_bytes(&header, "", 1);
    const enum aq_status status = header.status == AQ_OK ? write_all(file, header.at, header.count) : header.status;
    gguf_keys_free(&header);
    return status;
}

static enum aq_status file_open(struct file *file)
{
    const int bytes = snprintf(file->partial, sizeof file->partial, "%s.partial", file->name);
    if (bytes < 0 || bytes >= PATH_BYTES_MAX)
        return aq_fail(AQ_INVAL, GGUF_AREA, "%.64s...: the file's name is too long", file->name);
    AQ_TRY(aq_file_open(file->folder, file->partial, AQ_FILE_ANEW, &file->fd));
    file->partial_there = true;
    return AQ_OK;
}

/* Everything is written: on the disk, and under its name. */
static enum aq_status file_finish(struct file *file)
{
    if (fsync(file->fd) != 0) return aq_fail_errno(GGUF_AREA, "%s/%s: cannot be synced", file->folder, file->partial);
    const int closed = close(file->fd);
    file->fd = -1;
    if (closed != 0) return aq_fail_errno(GGUF_AREA, "%s/%s: cannot be closed", file->folder, file->partial);
    AQ_TRY(aq_file_rename(file->folder, file->partial, file->name));
    file->partial_there = false;
    return aq_file_sync_folder(file->folder, file->name);
}

enum aq_status aq_gguf_write(const struct aq_gguf *gguf, const char *folder, const char *name,
                             const struct aq_weights_tensor *tensors, uint32_t count,
                             void (*progress)(void *context, uint64_t done, uint64_t total), void *context)
{
    struct file *file;
    AQ_TRY(AQ_NEW(1, &file));
    *file =
        (struct file){.gguf = gguf, .folder = folder, .name = name, .fd = -1, .progress = progress, .context = context};
    enum aq_status status = entries_make(file, tensors, count);
    if (status == AQ_OK) status = file_open(file);
    if (status == AQ_OK) status = header_write(file);
    for (uint32_t i = 0; i < file->count && status == AQ_OK; i++)
        status = entry_write(file, &file->entries[i]);
    if (status == AQ_OK) status = file_finish(file);
    if (file->fd >= 0) close(file->fd);
    if (file->partial_there) (void)aq_file_remove(folder, file->partial);
    aq_free(file->entries);
    aq_free(file->floats);
    aq_free(file->row);
    aq_free(file);
    return status;
}
