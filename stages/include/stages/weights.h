/*
 * weights.h -- named tensors in files: safetensors, read and written.
 *
 * The format is the safetensors project's (8-byte little-endian header length, JSON header, tensor bytes); its other
 * readers open files written here. Weights are one file, or a published folder (model_folder.h): its model.safetensors,
 * or the shards of its model.safetensors.index.json, which are one set of tensors here.
 *
 * Caveats first.
 * - Reading maps the files; lengths, offsets and overlaps are checked before use, so that any bytes give a status.
 *   Opening reads only the headers, whatever the weights' size; pages that were read leave the memory of the process.
 * - Names are as published. A search ignores the prefix that a model with a head puts before the names below it
 *   ("transformer.", "model."), on both sides.
 * - Orientation is the file's: GPT-2's matrices are Conv1D's [in, out], most others nn.Linear's [out, in]
 *   (aq_tensor_info.turned).
 * - Pickles are refused, with the line that makes safetensors of them.
 *
 * Locking: one thread.
 */
#ifndef STAGES_WEIGHTS_H
#define STAGES_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_weights; /* opaque: an open file, or those of a folder */
struct aq_model_config;
struct aq_tensor_info;

/* path: a file, or a folder. AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: names the file, the tensor and the cause. */
enum aq_status aq_weights_open(const char *path, struct aq_weights **out);
/*
 * The same if only some tensors are needed (by their names without the prefix): of several shards, only those that have
 * one of them are opened. No predicate: all.
 */
typedef bool aq_weights_wants(void *context, const char *name);
enum aq_status aq_weights_open_wanted(const char *path, aq_weights_wants *wants, void *context,
                                      struct aq_weights **out);
/* The same of a name in a folder where others may write (aqsgd/base/file.h). AQ_REFUSED: a link, or no regular file. */
enum aq_status aq_weights_open_in(const char *folder, const char *name, struct aq_weights **out);
void aq_weights_close(struct aq_weights *weights); /* NULL is fine */

/* Tensors in the file, or in all. */
uint32_t aq_weights_count(const struct aq_weights *weights);
struct aq_weights_info {
    const char *name; /* borrowed until close */
    const char *file; /* its path; the same   */
    const char *type; /* "F32", "F16", "BF16", ... */
    uint32_t dimensions;
    uint64_t shape[8];
    uint64_t count;
};
/* One tensor, file after file, in the order of their bytes there. An index beyond the count is the caller's bug. */
void aq_weights_info(const struct aq_weights *weights, uint32_t index, struct aq_weights_info *out);

/* *index of the tensor of that name, or of that name with another prefix or none; AQ_NOTFOUND (not logged). */
enum aq_status aq_weights_find(const struct aq_weights *weights, const char *name, uint32_t *index);

/*
 * The tensor as fp32 (from F32, F16, BF16, F64), `count` of them; transposed: the last two dimensions swapped.
 * AQ_MISMATCH: another count, another type, or nothing to transpose. AQ_INVAL: index.
 */
enum aq_status aq_weights_read(const struct aq_weights *weights, uint32_t index, bool transposed, float *out,
                               uint64_t count);
/* The same as the model has the tensor: as it is, transposed, or a convolution's (N, C, K, K) as (K K C, N). */
struct aq_tensor_info;
enum aq_status aq_weights_read_as(const struct aq_weights *weights, uint32_t index, const struct aq_tensor_info *tensor,
                                  float *out);

/*
 * The `count` bytes of a tensor of type U8. AQ_MISMATCH: another count, or another type. AQ_INVAL: index.
 */
enum aq_status aq_weights_bytes(const struct aq_weights *weights, uint32_t index, uint8_t *out, uint64_t count);

/* The use of a tensor, of the file or of the model. */
enum aq_weights_use {
    AQ_WEIGHTS_USED,      /* both have it                                           */
    AQ_WEIGHTS_SHARED,    /* the file has again what the model shares: a tied head  */
    AQ_WEIGHTS_IGNORED,   /* no parameter: a mask                                   */
    AQ_WEIGHTS_UNTRAINED, /* aq_weights_starts_new: a classifier                    */
    AQ_WEIGHTS_UNUSED,    /* the model has no use for it                            */
    AQ_WEIGHTS_MISSING,   /* the model's, and not in the file                       */
    AQ_WEIGHTS_WRONG      /* another shape or type, of a larger model, or a tied head apart */
};
struct aq_weights_found {
    enum aq_weights_use use;
    const char *name, *file, *type; /* type NULL: it is missing     */
    uint64_t count;                 /* values                       */
    char problem[320];              /* "" : none                    */
};
typedef void aq_weights_tell(void *context, const struct aq_weights_found *found);

/* All of the model's tensors (its vocabulary known), then what else there is. AQ_NOMEM. */
enum aq_status aq_weights_survey(const struct aq_weights *weights, const struct aq_model_config *model,
                                 aq_weights_tell *tell, void *context);

/*
 * As aq_weights_find. A tied model's file may have its one table only under the head's name: that is found, too.
 */
enum aq_status aq_weights_find_shared(const struct aq_weights *weights, const struct aq_model_config *model,
                                      const char *name, uint32_t *index);

/* Does a tensor start new (train.seed)? One of a task's own that they lack, and with new_head the classifier's. */
bool aq_weights_starts_new(const struct aq_weights *weights, const struct aq_model_config *model,
                           const struct aq_tensor_info *info);

/*
 * Has a folder or file both the embedding of such a tied model and a head with other values? Then the model is not
 * tied, even if config.json sets it; transformers takes the head that is there. false also if it cannot be read.
 */
bool aq_weights_head_differs(const char *path, const struct aq_model_config *model);

/*
 * Do they hold this model? Every tensor must be there in its shape, except a head that starts as the embedding and
 * tensors that start untrained, which are logged by name. Tensors of a larger model of the kind, or a separate head of
 * a tied model, are refused. Other tensors are logged as unused; masks are passed over. AQ_MISMATCH: the first problem,
 * with its file. AQ_NOMEM.
 */
enum aq_status aq_weights_match(const struct aq_weights *weights, const struct aq_model_config *model);

/*
 * Are all values of a tensor that can be read finite? *finite, and if not, the first such value and its place. Read
 * piece by piece, and nothing of it kept in memory. Always AQ_OK.
 */
enum aq_status aq_weights_finite(const struct aq_weights *weights, uint32_t index, bool *finite, uint64_t *place,
                                 float *value);

/*
 * Are all values finite that this model reads of them? AQ_MISMATCH: the first that is not finite, with its file, tensor
 * and place. AQ_NOMEM.
 */
enum aq_status aq_weights_check_values(const struct aq_weights *weights, const struct aq_model_config *model);

/*
 * Tells one set of weights from another: a digest of the heads and lengths of its files (a head names and places every
 * tensor). It reads 64 KiB a file.
 */
uint64_t aq_weights_digest(const struct aq_weights *weights);

/* The value of a key of the (first) file's "__metadata__", or NULL. Borrowed until close. */
const char *aq_weights_metadata(const struct aq_weights *weights, const char *key);

/*
 * An adapter's product, added to a matrix as it is written: scale B A, A (rank, in) and B (out, rank) on the host. One
 * that does not fit the matrix is AQ_INVAL.
 */
struct aq_weights_low_rank {
    const float *a, *b;
    uint64_t in, out;
    uint32_t rank;
    float scale;
    bool out_in; /* the matrix is stored as (out, in), else (in, out) */
    /* Not NULL: row o of the sum, the weights of output o, gets the length m[o]; factors: room for `out` of them. */
    const float *m;
    float *factors;
};

struct aq_weights_tensor {
    const char *name;
    uint32_t dimensions;
    uint64_t shape[8];             /* as the values lie here                                           */
    const float *values;           /* host; NULL: read from another file as they are written           */
    const struct aq_weights *from; /* then: that one, open until the writer is closed                  */
    uint32_t index;                /*       and the tensor in it                                       */
    /* then, where this is not NULL: `count` values from `first` (a multiple of 65536) on, from whoever has them */
    enum aq_status (*fill)(void *context, const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                           float *values);
    void *context;
    bool transposed;                        /* a matrix that is written the other way round                     */
    uint32_t kernel;                        /* then, not 0: K; (K K C, N) is written as (N, C, K, K)            */
    const struct aq_weights_low_rank *plus; /* added to it, lent until the writer is closed; or NULL   */
    const char *type;                       /* "F32", "BF16" or "F16"; NULL: "F32"                              */
    /* type "U8", with no other source: `count` bytes from `first` on, from whoever has them. */
    enum aq_status (*fill_bytes)(void *context, const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                                 uint8_t *bytes);
};
/*
 * Writes path, atomically: `path`.partial, fsync, rename, fsync of the folder. metadata: pairs key, value, NULL at the
 * end; or NULL. AQ_INVAL: a shape, a name or a type, or a value that is too large for F16. Any other status: a disk
 * error, with the file's name; the old file is unchanged and `path`.partial deleted.
 */
enum aq_status aq_weights_write(const char *path, const struct aq_weights_tensor *tensors, uint32_t count,
                                const char *const *metadata);

/*
 * The same in pieces, for a thread that writes between other work. folder, name (a place of aqsgd/base/file.h: folder
 * NULL: name is the path) and metadata are copied; the tensors and their values are lent until close.
 * aq_weights_writer_piece writes the next piece, of at most AQ_WEIGHTS_PIECE_BYTES and of one tensor: AQ_AGAIN while
 * there is more, AQ_OK when the file has its name, any other status as aq_weights_write. Close before that gives up:
 * the old file is unchanged and the partial one deleted. Locking: one thread at a time.
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
