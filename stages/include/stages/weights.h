/*
 * weights.h -- named tensors in files: safetensors, read and written.
 *
 * The format is that of the safetensors project (8-byte little-endian header length, JSON header, tensor bytes);
 * readers of other projects open what is written here. Reading maps the file; lengths, offsets and overlaps are
 * checked before use, so that any bytes give a status. Names and orientation of GPT-2's tensors are those of Hugging
 * Face's gpt2 (Conv1D: [in, out]); a leading "transformer." is dropped.
 *
 * Locking: one thread.
 */
#ifndef STAGES_WEIGHTS_H
#define STAGES_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_weights; /* opaque: an open file */
struct aq_model_config;

/* AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: names the file, the tensor and the cause. */
enum aq_status aq_weights_open(const char *path, struct aq_weights **out);
/* The same of a name in a folder where others may write (aqsgd/base/file.h). AQ_REFUSED: a link, or no regular file. */
enum aq_status aq_weights_open_in(const char *folder, const char *name, struct aq_weights **out);
void aq_weights_close(struct aq_weights *weights); /* NULL is fine */

/* Tensors in the file. */
uint32_t aq_weights_count(const struct aq_weights *weights);
struct aq_weights_info {
    const char *name; /* borrowed until close */
    const char *type; /* "F32", "F16", "BF16", ... */
    uint32_t dimensions;
    uint64_t shape[8];
    uint64_t count;
};
/* One tensor, in the order of their bytes in the file. An index beyond the count is the caller's bug. */
void aq_weights_info(const struct aq_weights *weights, uint32_t index, struct aq_weights_info *out);

/* *index of the tensor of that name ("transformer." ignored), AQ_NOTFOUND (not logged). */
enum aq_status aq_weights_find(const struct aq_weights *weights, const char *name, uint32_t *index);

/*
 * The tensor as fp32 (from F32, F16, BF16, F64), `count` of them; transposed: the last two dimensions swapped.
 * AQ_MISMATCH: another count, another type, or nothing to transpose. AQ_INVAL: index.
 */
enum aq_status aq_weights_read(const struct aq_weights *weights, uint32_t index, bool transposed, float *out,
                               uint64_t count);

/*
 * Does the file hold this model (its vocabulary known)? Every tensor is there in its shape, but for a head that begins
 * as the embedding; what belongs to a larger model of the kind, or an own head of a tied model, is refused. Other
 * tensors are said to be of no use, masks are passed over. AQ_MISMATCH: names file, tensor and remedy. AQ_NOMEM.
 */
enum aq_status aq_weights_match(const struct aq_weights *weights, const struct aq_model_config *model);

/* The value of a key of "__metadata__", or NULL. Borrowed until close. */
const char *aq_weights_metadata(const struct aq_weights *weights, const char *key);

struct aq_weights_tensor {
    const char *name;
    uint32_t dimensions;
    uint64_t shape[8];
    const float *values; /* host */
};
/*
 * Writes path as F32, atomically: `path`.partial, fsync, rename, fsync of the folder. metadata: pairs key, value,
 * NULL at the end; or NULL. AQ_INVAL: a shape or a name. Any other status: the disk's trouble, naming the file; the
 * old file is as it was and the neighbour is gone.
 */
enum aq_status aq_weights_write(const char *path, const struct aq_weights_tensor *tensors, uint32_t count,
                                const char *const *metadata);

/*
 * The same in pieces, for a thread that writes beside other work. folder, name (a place of aqsgd/base/file.h: folder
 * NULL: name is the path) and metadata are copied; the tensors and their values are lent until close.
 * aq_weights_writer_piece writes the next piece, of at most AQ_WEIGHTS_PIECE_BYTES and of one tensor: AQ_AGAIN while
 * there is more, AQ_OK when the file stands under its name, any other status as aq_weights_write. Close before that
 * gives up: the old file is as it was and the neighbour is gone. Locking: one thread at a time.
 */
struct aq_weights_writer; /* opaque */
enum { AQ_WEIGHTS_PIECE_BYTES = 4 << 20 };
enum aq_status aq_weights_writer_open(const char *folder, const char *name, const struct aq_weights_tensor *tensors,
                                      uint32_t count, const char *const *metadata, struct aq_weights_writer **out);
enum aq_status aq_weights_writer_piece(struct aq_weights_writer *writer);
void aq_weights_writer_close(struct aq_weights_writer *writer); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
