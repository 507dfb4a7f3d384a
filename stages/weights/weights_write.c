/*
 * weights_write.c -- writes a safetensors file so that at any moment there is the old one or the new one, whole.
 *
 * The bytes go to PATH.partial, which takes PATH's name when the disk has them; then the folder is synced, so that
 * the name survives a power cut too. A failure leaves PATH as it was and removes the neighbour. One writer a path.
 *
 * The caller writes piece by piece, so that a background thread can be stopped between two of them.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "stages/stage.h"
#include "weights_file.h"

#define AREA "weights"

enum { PATH_BYTES_MAX = 4096, PIECE_FLOATS = AQ_WEIGHTS_PIECE_BYTES / sizeof(float) };

/* A tensor's type, shape and size in the file. */
struct written {
    const struct aq_weights_type *type;
    uint32_t dimensions;
    uint64_t shape[AQ_WEIGHTS_DIMENSIONS_MAX];
    uint64_t count, bytes;
};

/* False: its shape, type or source cannot be. */
static bool written_as(const struct aq_weights_tensor *tensor, struct written *out)
{
    *out = (struct written){.type = aq_weights_type_find(tensor->type ? tensor->type : "F32"), .count = 1};
    if (tensor->dimensions > AQ_WEIGHTS_DIMENSIONS_MAX || (tensor->transposed && tensor->dimensions != 2)) return false;
    const struct aq_weights_low_rank *plus = tensor->plus;
    if (plus && (tensor->dimensions != 2 || tensor->shape[0] != (plus->out_in ? plus->out : plus->in) ||
                 tensor->shape[1] != (plus->out_in ? plus->in : plus->out)))
        return false;
    for (uint32_t i = 0; i < tensor->dimensions; i++) {
        out->shape[i] = tensor->shape[tensor->transposed ? 1 - i : i];
        if (out->shape[i] > INT64_MAX || __builtin_mul_overflow(out->count, out->shape[i], &out->count)) return false;
    }
    out->dimensions = tensor->dimensions;
    if (tensor->kernel && tensor->transposed) { /* (N, C, K, K) */
        out->dimensions = 4;
        out->shape[2] = out->shape[3] = tensor->kernel;
        out->shape[1] /= out->shape[2] * out->shape[3];
    }
    if (!out->type || (tensor->fill && tensor->transposed)) return false;
    if (tensor->fill_bytes) {
        const bool other = tensor->values || tensor->from || tensor->fill || tensor->transposed || tensor->plus;
        out->bytes = out->count;
        return !other && strcmp(out->type->name, "U8") == 0;
    }
    if (!out->type->from_float) return false;
    if (!tensor->values && tensor->from && !aq_weights_readable(tensor->from, tensor->index, out->count)) return false;
    return !__builtin_mul_overflow(out->count, out->type->bytes, &out->bytes);
}

static enum aq_status describe(const char *path, const struct aq_weights_tensor *tensor, json_t *header,
                               uint64_t *offset)
{
    struct written written;
    uint64_t end = 0;
    if (!written_as(tensor, &written) || __builtin_add_overflow(*offset, written.bytes, &end) || end > INT64_MAX)
        return aq_fail(AQ_INVAL, AREA,
                       "%s: tensor \"%.128s\": %u dimensions, their product, its adapter or type %s cannot be written",
                       path, tensor->name, (unsigned)tensor->dimensions, tensor->type ? tensor->type : "F32");
    if (strcmp(tensor->name, "__metadata__") == 0 || json_object_get(header, tensor->name))
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\": the name is taken", path, tensor->name);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < written.dimensions; i++)
        json_array_append_new(shape, json_integer((json_int_t)written.shape[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", written.type->name, "shape", shape, "data_offsets",
                              (json_int_t)*offset, (json_int_t)end);
    if (!entry || json_object_set_new(header, tensor->name, entry) != 0)
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\": the name is not UTF-8, or there is not enough memory",
                       path, tensor->name);
    *offset = end;
    return AQ_OK;
}

/* The whole header: length, JSON, spaces up to a multiple of 8, so that the tensors' bytes are aligned in the file. */
static enum aq_status make_header(const char *path, const struct aq_weights_tensor *tensors, uint32_t count,
                                  const char *const *metadata, uint8_t **out, size_t *bytes)
{
    json_t *header = json_object(), *pairs = NULL;
    enum aq_status status = AQ_OK;
    uint64_t offset = 0, length;
    if (metadata && metadata[0]) {
        pairs = json_object();
        for (; metadata[0]; metadata += 2) {
            if (json_object_set_new(pairs, metadata[0], json_string(metadata[1])) != 0)
                status = aq_fail(AQ_INVAL, AREA, "%s: metadata \"%.128s\" is not UTF-8", path, metadata[0]);
        }
        json_object_set_new(header, "__metadata__", pairs);
    }
    for (uint32_t i = 0; i < count && status == AQ_OK; i++)
        status = describe(path, &tensors[i], header, &offset);
    if (status != AQ_OK) goto out;
    length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    uint8_t *text;
    uint64_t padded = (length + 7) / 8 * 8;
    if (length == 0 || padded > AQ_WEIGHTS_HEADER_BYTES_MAX) {
        status =
            aq_fail(AQ_INVAL, AREA, "%s: a header of %llu bytes cannot be written", path, (unsigned long long)length);
        goto out;
    }
    AQ_TRY_GOTO(aq_alloc_at(sizeof padded + (size_t)padded, &text), out);
    memcpy(text, &padded, sizeof padded);
    memset(text + sizeof padded, ' ', (size_t)padded);
    json_dumpb(header, (char *)text + sizeof padded, (size_t)length, JSON_COMPACT);
    *out = text;
    *bytes = sizeof padded + (size_t)padded;
out:
    json_decref(header);
    return status;
}

static enum aq_status write_all(const char *path, int file, const void *bytes, size_t count)
{
    if (!aq_write_all(file, bytes, count)) return aq_fail_errno(AREA, "%s: cannot be written", path);
    return AQ_OK;
}

struct aq_weights_writer {
    char memory[PATH_BYTES_MAX], *folder; /* NULL: name is a whole path */
    char path[PATH_BYTES_MAX];            /* of what is written, for error lines */
    char name[PATH_BYTES_MAX], partial[PATH_BYTES_MAX];
    const struct aq_weights_tensor *tensors; /* borrowed */
    uint32_t count, next;                    /* tensors; the one that is being written */
    uint64_t done;                           /* values of it                           */
    float *floats;                           /* a piece that is made first, or NULL    */
    uint64_t floats_most;
    uint8_t *header; /* NULL: written                          */
    size_t header_bytes;
    int file;           /* -1: closed                                     */
    bool partial_there; /* to be removed, unless it takes its name */
};

/* Memory for pieces that do not lie in memory as they are written. */
static enum aq_status floats_take(struct aq_weights_writer *writer)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < writer->count; i++) {
        const struct aq_weights_tensor *tensor = &writer->tensors[i];
        const bool same = tensor->values && (!tensor->type || strcmp(tensor->type, "F32") == 0);
        const bool plain = same && !tensor->transposed && !tensor->plus;
        if (plain) continue;
        if (most < PIECE_FLOATS) most = PIECE_FLOATS;
        if (tensor->transposed && most < tensor->shape[0]) most = tensor->shape[0]; /* at least one row */
    }
    writer->floats_most = most;
    if (most > 0) AQ_TRY(AQ_NEW(most, &writer->floats));
    return AQ_OK;
}

enum aq_status aq_weights_writer_open(const char *folder, const char *name, const struct aq_weights_tensor *tensors,
                                      uint32_t count, const char *const *metadata, struct aq_weights_writer **out)
{
    struct aq_weights_writer *writer;
    AQ_TRY(AQ_NEW(1, &writer));
    writer->tensors = tensors;
    writer->count = count;
    writer->file = -1;
    writer->folder = folder ? writer->memory : NULL;
    const int first = snprintf(writer->memory, sizeof writer->memory, "%s", folder ? folder : "");
    const int length = snprintf(writer->name, sizeof writer->name, "%s", name);
    const int longer = snprintf(writer->partial, sizeof writer->partial, "%s.partial", name);
    const int longest =
        snprintf(writer->path, sizeof writer->path, "%s%s%s", writer->memory, folder ? "/" : "", writer->partial);
    enum aq_status status = AQ_OK;
    if (first < 0 || length < 0 || longer < 0 || longest < 0 || first >= PATH_BYTES_MAX || longest >= PATH_BYTES_MAX)
        status = aq_fail(AQ_INVAL, AREA, "%.64s...: the file's name is too long", name);
    if (status == AQ_OK) status = make_header(name, tensors, count, metadata, &writer->header, &writer->header_bytes);
    if (status == AQ_OK) status = floats_take(writer);
    if (status == AQ_OK) status = aq_file_open(writer->folder, writer->partial, AQ_FILE_ANEW, &writer->file);
    if (status != AQ_OK) {
        aq_weights_writer_close(writer);
        return status;
    }
    writer->partial_there = true;
    *out = writer;
    return AQ_OK;
}

/* The next rows of a transposed matrix into the writer's memory; how many values. */
static enum aq_status next_rows(struct aq_weights_writer *writer, const struct aq_weights_tensor *tensor,
                                const struct written *written, uint64_t *count)
{
    const uint64_t height = written->shape[0], width = written->count / height, row = writer->done / width;
    uint64_t rows = writer->floats_most / width;
    if (rows > height - row) rows = height - row;
    *count = rows * width;
    return aq_weights_source_rows(tensor, row, rows, writer->floats);
}

/* The next `count` values; of a transposed matrix they are in the writer's memory. */
static enum aq_status piece_write(struct aq_weights_writer *writer, const struct aq_weights_tensor *tensor,
                                  const struct written *written, uint64_t count)
{
    if (!writer->floats)
        return write_all(writer->path, writer->file, tensor->values + writer->done, count * sizeof(float));
    if (tensor->fill_bytes) {
        uint8_t *bytes = (uint8_t *)writer->floats;
        AQ_TRY(tensor->fill_bytes(tensor->context, tensor, writer->done, count, bytes));
        return write_all(writer->path, writer->file, bytes, count);
    }
    if (!tensor->transposed) AQ_TRY(aq_weights_source_floats(tensor, writer->done, count, writer->floats));
    if (!written->type->from_float(writer->floats, count))
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\" has a value that is too large for %s", writer->path,
                       tensor->name, written->type->name);
    return write_all(writer->path, writer->file, writer->floats, count * written->type->bytes);
}

/* Everything is written: on the disk, and under its name. */
static enum aq_status writer_finish(struct aq_weights_writer *writer)
{
    if (fsync(writer->file) != 0) return aq_fail_errno(AREA, "%s: cannot be synced", writer->path);
    const int closed = close(writer->file);
    writer->file = -1;
    if (closed != 0) return aq_fail_errno(AREA, "%s: cannot be closed", writer->path);
    AQ_TRY(aq_file_rename(writer->folder, writer->partial, writer->name));
    writer->partial_there = false;
    return aq_file_sync_folder(writer->folder, writer->name);
}

enum aq_status aq_weights_writer_piece(struct aq_weights_writer *writer)
{
    if (writer->header) {
        AQ_TRY(write_all(writer->path, writer->file, writer->header, writer->header_bytes));
        aq_free(writer->header);
        writer->header = NULL;
        return AQ_AGAIN;
    }
    if (writer->next == writer->count) return writer_finish(writer);
    const struct aq_weights_tensor *tensor = &writer->tensors[writer->next];
    struct written written;
    (void)written_as(tensor, &written); /* it was, when the header was made */
    if (writer->done == 0) AQ_TRY(aq_weights_source_begin(tensor, writer->floats, writer->floats_most));
    uint64_t count = written.count - writer->done;
    if (tensor->transposed && count > 0)
        AQ_TRY(next_rows(writer, tensor, &written, &count));
    else if (count > PIECE_FLOATS)
        count = PIECE_FLOATS;
    if (count > 0) AQ_TRY(piece_write(writer, tensor, &written, count));
    writer->done += count;
    if (writer->done == written.count) {
        if (!tensor->values && tensor->from) aq_weights_forget(tensor->from, tensor->index);
        writer->next++;
        writer->done = 0;
    }
    return AQ_AGAIN;
}

void aq_weights_writer_close(struct aq_weights_writer *writer)
{
    if (!writer) return;
    if (writer->file >= 0) close(writer->file);
    if (writer->partial_there) (void)aq_file_remove(writer->folder, writer->partial);
    aq_free(writer->header);
    aq_free(writer->floats);
    aq_free(writer);
}

enum aq_status aq_weights_write(const char *path, const struct aq_weights_tensor *tensors, uint32_t count,
                                const char *const *metadata)
{
    struct aq_weights_writer *writer;
    AQ_TRY(aq_weights_writer_open(NULL, path, tensors, count, metadata, &writer));
    enum aq_status status;
    do {
        status = aq_weights_writer_piece(writer);
    } while (status == AQ_AGAIN);
    aq_weights_writer_close(writer);
    return status;
}
