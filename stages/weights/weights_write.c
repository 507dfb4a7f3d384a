/*
 * weights_write.c -- writes a safetensors file so that at any moment there is the old one or the new one, whole.
 *
 * The bytes go to PATH.partial, which takes PATH's name when the disk has them; then the folder is synced, so that
 * the name survives a power cut too. A failure leaves PATH as it was and removes the neighbour. One writer a path.
 *
 * The writer goes piece by piece, at the pace of whoever calls it: a thread beside the training can be told to give up
 * between two of them.
 */
#include <string.h>
#include <unistd.h>

#include "weights_file.h"

#define AREA "weights"

enum { PATH_BYTES_MAX = 4096 };

static enum aq_status describe(const char *path, const struct aq_weights_tensor *tensor, json_t *header,
                               uint64_t *offset)
{
    uint64_t count = 1, bytes = 0, end = 0;
    bool fits = tensor->dimensions <= AQ_WEIGHTS_DIMENSIONS_MAX;
    for (uint32_t i = 0; i < tensor->dimensions && fits; i++)
        fits = tensor->shape[i] <= INT64_MAX && !__builtin_mul_overflow(count, tensor->shape[i], &count);
    fits = fits && !__builtin_mul_overflow(count, sizeof(float), &bytes);
    if (!fits || __builtin_add_overflow(*offset, bytes, &end) || end > INT64_MAX)
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\": %u dimensions or their product are too many", path,
                       tensor->name, (unsigned)tensor->dimensions);
    if (strcmp(tensor->name, "__metadata__") == 0 || json_object_get(header, tensor->name))
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\": the name is taken", path, tensor->name);
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dimensions; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                              (json_int_t)*offset, (json_int_t)end);
    if (!entry || json_object_set_new(header, tensor->name, entry) != 0)
        return aq_fail(AQ_INVAL, AREA, "%s: tensor \"%.128s\": the name is no UTF-8, or memory is out", path,
                       tensor->name);
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
                status = aq_fail(AQ_INVAL, AREA, "%s: metadata \"%.128s\" is no UTF-8", path, metadata[0]);
        }
        json_object_set_new(header, "__metadata__", pairs);
    }
    for (uint32_t i = 0; i < count && status == AQ_OK; i++) status = describe(path, &tensors[i], header, &offset);
    if (status != AQ_OK) goto out;
    length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    void *memory;
    uint64_t padded = (length + 7) / 8 * 8;
    if (length == 0 || padded > AQ_WEIGHTS_HEADER_BYTES_MAX) {
        status = aq_fail(AQ_INVAL, AREA, "%s: a header of %llu bytes cannot be written", path,
                         (unsigned long long)length);
        goto out;
    }
    AQ_TRY_GOTO(aq_alloc(sizeof padded + (size_t)padded, &memory), out);
    uint8_t *text = memory;
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
    size_t done;                             /* bytes of it                            */
    uint8_t *header;                         /* NULL: written                          */
    size_t header_bytes;
    int file;     /* -1: closed                                     */
    bool partial_there; /* to be removed, unless it takes its name */
};

enum aq_status aq_weights_writer_open(const char *folder, const char *name, const struct aq_weights_tensor *tensors,
                                      uint32_t count, const char *const *metadata, struct aq_weights_writer **out)
{
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct aq_weights_writer), &memory));
    struct aq_weights_writer *writer = memory;
    writer->tensors = tensors;
    writer->count = count;
    writer->file = -1;
    writer->folder = folder ? writer->memory : NULL;
    const int first = snprintf(writer->memory, sizeof writer->memory, "%s", folder ? folder : "");
    const int length = snprintf(writer->name, sizeof writer->name, "%s", name);
    const int longer = snprintf(writer->partial, sizeof writer->partial, "%s.partial", name);
    const int longest = snprintf(writer->path, sizeof writer->path, "%s%s%s", writer->memory, folder ? "/" : "",
                                 writer->partial);
    enum aq_status status = AQ_OK;
    if (first < 0 || length < 0 || longer < 0 || longest < 0 || first >= PATH_BYTES_MAX ||
        longest >= PATH_BYTES_MAX)
        status = aq_fail(AQ_INVAL, AREA, "%.64s...: the file's name is too long", name);
    if (status == AQ_OK)
        status = make_header(name, tensors, count, metadata, &writer->header, &writer->header_bytes);
    if (status == AQ_OK) status = aq_file_open(writer->folder, writer->partial, AQ_FILE_ANEW, &writer->file);
    if (status != AQ_OK) {
        aq_weights_writer_close(writer);
        return status;
    }
    writer->partial_there = true;
    *out = writer;
    return AQ_OK;
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
    size_t bytes = sizeof(float);
    for (uint32_t d = 0; d < tensor->dimensions; d++) bytes *= tensor->shape[d];
    const size_t left = bytes - writer->done, piece = left < AQ_WEIGHTS_PIECE_BYTES ? left : AQ_WEIGHTS_PIECE_BYTES;
    AQ_TRY(write_all(writer->path, writer->file, (const uint8_t *)tensor->values + writer->done, piece));
    writer->done += piece;
    if (writer->done == bytes) {
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
