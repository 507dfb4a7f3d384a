/*
 * grad_codec.h -- gradient codecs: how a range of a flat buffer of floats becomes bytes and floats again.
 *
 * Caveats first. A codec is opened for one flat buffer and its tensors. A call always codes a range [first, first +
 * count) of that buffer: the scales of the range are made only of its values, one for each (tensor, range) or, with
 * `bucket`, for each `bucket` values of that. A caller cuts a large buffer into pieces of AQ_GRAD_PIECE floats. Encoder
 * and decoder must cut alike: bytes of one cut mean nothing in another. Floats that belong to no tensor (padding) enter
 * no scale, keep their error, and decode as 0; with kinds that have no scale they travel.
 *
 * Decode is exact arithmetic: the same bits on any machine. Encode gives the same bytes in every variant too (AQ_CPU).
 * Values that are not finite give a scale that is not finite, which decode refuses (AQ_CORRUPT); vote, fp32, fp16 and
 * bf16 have no scale and pass them on (vote as a -1). The caller of a reduction checks its gradients first.
 *
 * Layout of a coded range: the scales in order, 4 bytes each (fp32, little endian); then the codes of all its values,
 * padding included (as zeros), without gaps, lowest bits first, the last byte filled with zeros.
 *
 * Kinds (grad_codecs.def), each in grad_codec_<kind>.c:
 *
 *     fp32, fp16, bf16   the value rounded to nearest even; fp16 clamps to +-65504
 *     sign               1 bit: +s for x >= 0, -s below; s = mean |x| ("l1") or root mean square ("l2": C[x] = ||x|| /
 *                        ||Sign(x)|| Sign(x) of 1-bit Adam and 1-bit LAMB)
 *     uniform            b = 2..8 bits, nearest, one scale per bucket: absmax. Grids: "tread" -K..K times s / K with
 *                        K = 2^(b-1) - 1; "rise" (2i + 1) s / 2^b, no zero; "signed" -2^(b-1)..2^(b-1)-1 times
 *                        s / 2^(b-1), as the code of QuantizedAdam has it: biased, its top value is cut off
 *     lp                 b = 2..8 bits, Lion Cub's quantizer, equation 1: clamp(round(K x / (2 M)), +-K) with M = (mean
 *                        |x|^p)^(1/p); decodes as code times 2 M / K. norm: p; infinity is the absmax grid
 *     topk               of each chunk the largest values, at 2 bits and with their places: codes only of those,
 *                        and two scales per chunk (SparseLoCo; grad_codec_topk.c)
 *     topk_fp32, randomk baselines (SLAMB, Algorithm 2): the largest values of each chunk, or those at random places
 *                        that all ranks know, as they are
 *     vote               1 bit without scale: +1 or -1; a zero is +1 at odd steps and -1 at even ones (Lion Cub, B.1)
 *
 * Usage:
 *
 *     struct aq_grad_codec_config config;
 *     aq_grad_codec_config_default(&config, "sign");
 *     aq_grad_codec_open(&config, tensors, tensor_count, parameters, &codec);
 *     bytes = aq_grad_codec_bytes(codec, first, count);
 *     aq_grad_encode(codec, first, count, x + first, error + first, step, wire);
 *     aq_grad_decode(codec, first, count, wire, bytes, 1.0f / W, true, sum + first);
 *
 * Locking: a codec is constant after open; encode and decode of any ranges may run on any threads at once.
 */
#ifndef AQSGD_GRAD_CODEC_H
#define AQSGD_GRAD_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Floats of a piece: 256 KiB, so that the second look at it finds it in the second-level cache. */
enum { AQ_GRAD_PIECE = 65536 };

/* One tensor of a flat buffer; tensors are in order and do not overlap. */
struct aq_optimizer_tensor {
    uint64_t offset, count;
    bool decay;
    uint64_t rows; /* of a matrix of count / rows columns, for PowerSGD; 0 or 1: no matrix                      */
    const char *name; /* for patterns (Lion Cub's momentum); NULL: none. Borrowed until open has returned       */
    float rate; /* an optimizer's learning rate for this tensor is its lr times this; 0 is 1                    */
};

struct aq_grad_codec_config {
    const char *kind;  /* a row of grad_codecs.def                                                              */
    uint32_t bits;     /* uniform, lp: 2..8                                                                     */
    const char *grid;  /* uniform: "tread", "rise", "signed"; NULL: rise at 2 bits, tread above                 */
    const char *scale; /* sign: "l1" or "l2"                                                                    */
    float norm;        /* lp: p > 0, infinity, or AQ_GRAD_NORM_L0                                               */
    uint32_t bucket;   /* floats that share a scale, a multiple of 64; 0: the tensor's part of the range; topk,
                          topk_fp32, randomk: of a chunk, 64 to 65536                                         */
    float density;     /* of these three: the share of a chunk that travels, more than 0 and at most 1 (0.5)  */
};

/* The norm of p to 0: M is the geometric mean of the magnitudes that are not zero (Lion Cub's L0). */
#define AQ_GRAD_NORM_L0 (-1.0f)

/* uniform: 4 bits, buckets of 512. sign: l1. lp: 8 bits, p = 1. topk: 64 of 4096. An unknown kind is kept: config_check
 * names it. */
void aq_grad_codec_config_default(struct aq_grad_codec_config *out, const char *kind);
enum aq_status aq_grad_codec_config_check(const struct aq_grad_codec_config *config); /* AQ_INVAL names the field */
/*
 * The defaults of what a manifest calls it: a kind's name, or "q4" for uniform with 4 bits, "lp8" for lp with 8. False:
 * there is no such name.
 */
bool aq_grad_codec_config_named(struct aq_grad_codec_config *out, const char *name);
/* Takes over bucket, grid, scale, norm and density, where they are not 0 or NULL and the kind of `out` has them. */
void aq_grad_codec_config_take(struct aq_grad_codec_config *out, const struct aq_grad_codec_config *wished);
/* AQ_NODEV, logged: a GPU has no kernels for the kind. */
enum aq_status aq_grad_codec_config_check_device(const struct aq_grad_codec_config *config);
/* The same, and not logged. */
bool aq_grad_codec_config_on_gpu(const struct aq_grad_codec_config *config);
/* Is it fp32, floats as they are, which need no codec? So is a config without a kind. */
bool aq_grad_codec_config_plain(const struct aq_grad_codec_config *config);
/* Are sizes nothing to it (vote)? */
bool aq_grad_codec_config_signs(const struct aq_grad_codec_config *config);
/* Is it no choice without error feedback (sign, topk, topk_fp32, randomk)? */
bool aq_grad_codec_config_needs_errors(const struct aq_grad_codec_config *config);
/* Do only workers code (topk_fp32)? The mean of what they send then comes back in fp32. */
bool aq_grad_codec_config_one_sided(const struct aq_grad_codec_config *config);
/* Does the owner of a chunk keep an error of the mean? Not where it comes back without loss (topk_fp32, randomk). */
bool aq_grad_codec_config_keeps_server(const struct aq_grad_codec_config *config);
/* Does a value come back with a loss that error feedback should keep? False for fp32, fp16, bf16, vote. */
bool aq_grad_codec_config_lossy(const struct aq_grad_codec_config *config);

/* The kinds, in the order of the table; NULL behind the last. */
const char *aq_grad_codec_kind(uint32_t index);
/* "a, b and c" of such a table, for messages: written to `text`, and returned. */
enum { AQ_GRAD_LIST_BYTES = 256 };
const char *aq_grad_list(char *text, size_t bytes, const char *(*name)(uint32_t index));

struct aq_grad_codec; /* opaque, constant */

/* parameters: floats of the flat buffer. AQ_INVAL: config, or tensors that overlap or leave the buffer. */
enum aq_status aq_grad_codec_open(const struct aq_grad_codec_config *config, const struct aq_optimizer_tensor *tensors,
                                  uint32_t tensor_count, uint64_t parameters, struct aq_grad_codec **out);
void aq_grad_codec_close(struct aq_grad_codec *codec); /* NULL is fine */
const struct aq_grad_codec_config *aq_grad_codec_config_of(const struct aq_grad_codec *codec);

/*
 * The weight with which each of `ranks` bodies is decoded into the sum that is coded next: 1 / ranks, so that it is
 * their mean; 1 for votes, of whose sum only the sign counts, so that a tie is an exact zero for every number of ranks.
 */
float aq_grad_codec_weight(const struct aq_grad_codec *codec, uint32_t ranks);
/* Exact bytes of the range [first, first + count), which must be in the buffer. */
size_t aq_grad_codec_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count);
/* Exact bytes of the range cut in pieces of AQ_GRAD_PIECE from its start. */
uint64_t aq_grad_codec_bytes_pieces(const struct aq_grad_codec *codec, uint64_t first, uint64_t count);

/*
 * wire = C(x + error), error = x + error - decoded. x, error: of the range: x[0] is float `first` of the buffer.
 * error NULL: none. step: the parity of ties. x and error do not overlap. AQ_INVAL: a range outside the buffer.
 */
enum aq_status aq_grad_encode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, const float *x,
                              float *error, uint64_t step, void *wire);

/*
 * sum += weight * decode(wire), or sum = weight * decode(wire) (add false), each operation rounded once. Any bytes are
 * safe: AQ_CORRUPT for a wrong length or a scale no encoder writes, with sum partly written.
 */
enum aq_status aq_grad_decode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, const void *wire,
                              size_t bytes, float weight, bool add, float *sum);

/*
 * Ownership in a compressed allreduce of `count` floats over `size` ranks: rank `index` owns [*first, *first + *chunk).
 * All chunks but the last are equal and multiples of 64; the last ones may be short or empty.
 */
void aq_grad_chunk(uint64_t count, uint32_t size, uint32_t index, uint64_t *first, uint64_t *chunk);

/*
 * Lanes: `count` unsigned integers of `bits` = 2, 4, 8 or 16 bits, lowest bits first, that are added without looking at
 * their borders (Lion Cub's p-bit allreduce, section 3): lane i is bits [i bits, (i + 1) bits) of a little-endian
 * stream. No sum may leave its lane; the asker has checked that. Bytes are a multiple of 8, unused lanes 0.
 */
size_t aq_lanes_bytes(uint64_t count, uint32_t bits);
/* to += from, word by word. */
void aq_lanes_add(void *to, const void *from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
