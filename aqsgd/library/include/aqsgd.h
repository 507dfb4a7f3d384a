/*
 * aqsgd.h -- libaqsgd: activation codecs and gradient compressors for programs that train across slow links.
 *
 * Caveats first.
 * - Decode is exact arithmetic: the same body and the same reference give the same bits on any machine and in any
 *   version with the same soname. Wherever both ends must agree, the sender must continue with `hat` and
 *   `m_out`, which encode wrote, and never with its original values.
 * - The library keeps no messages: a cache, and which m belongs to which sample, is the caller's. Both ends must hold
 *   the same bits of m; aqsgd_digest is for comparing them.
 * - A codec object is used from one thread at a time; different objects are independent.
 * - Pointers are host memory, matrices are row-major fp32, numbers little-endian. NULL where it is not allowed, and
 *   sizes that cannot be, are answered AQSGD_INVAL. Bytes from a peer give AQSGD_OK or AQSGD_CORRUPT, never more.
 *
 * A sample's first visit has no m: encode makes a keyframe. Later ones code the change (AQ-SGD, Wang et al. 2022,
 * Algorithm 1): d = a - m, w = Q(d), hat = m' = m + deq(w).
 *
 *     struct aqsgd_codec *codec;
 *     if (aqsgd_codec_open("codec=aqsgd bits=4", T, C, 1, &codec) != AQSGD_OK) puts(aqsgd_error());
 *     void *m = calloc(1, aqsgd_message_bytes(codec)), *body = malloc(aqsgd_bound(codec));
 *     aqsgd_encode(codec, a, visited ? m : NULL, key, body, aqsgd_bound(codec), &bytes, &flags, hat, m);
 *     ... bytes, flags and body travel; the other end, with its own m ...
 *     aqsgd_decode(codec, body, bytes, flags, visited ? m : NULL, hat, m);
 *
 * Gradient compressors code ranges of a flat buffer, with error feedback in the caller's hands:
 *
 *     aqsgd_grad_open("q4", counts, tensors, &grad);
 *     aqsgd_grad_encode(grad, 0, n, gradient, error, step, wire);         // error += what was lost
 *     aqsgd_grad_decode(grad, 0, n, wire, bytes, 1.0f / ranks, 1, mean);  // mean += decoded / ranks
 *
 * Compatibility: functions are added, never changed, under one soname; settings are texts, so that no struct grows. The
 * bytes of bodies are docs/FORMAT.md's.
 */
#ifndef AQSGD_H
#define AQSGD_H

#include <stddef.h>
#include <stdint.h>

#define AQSGD_VERSION_MAJOR 0
#define AQSGD_VERSION_MINOR 1
#define AQSGD_VERSION_PATCH 0

#if defined(__GNUC__)
#define AQSGD_API __attribute__((visibility("default")))
#else
#define AQSGD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum aqsgd_status {
    AQSGD_OK = 0,
    AQSGD_INVAL = 1,  /* a setting, a size or a pointer that cannot be         */
    AQSGD_NOMEM = 2,  /* no memory                                             */
    AQSGD_NOSPC = 3,  /* the body has not aqsgd_bound bytes                    */
    AQSGD_CORRUPT = 9 /* bytes that no encoder writes                          */
};

/* Flags of a body; they travel along with it. */
enum aqsgd_flag {
    AQSGD_KEYFRAME = 1, /* coded without a reference                                                    */
    AQSGD_RAW = 2       /* fp32 as it is: some value is not finite or too large for a message, so that no m was
                           made, and the sample is new again on both ends                               */
};

/* Of the library that runs: 10000 * major + 100 * minor + patch. */
AQSGD_API uint32_t aqsgd_version(void);

/* The error of the last failed call of this thread, in one line; "" if none failed. Until the next call. */
AQSGD_API const char *aqsgd_error(void);

/* A 64-bit digest of any bytes, the same everywhere: of messages, to compare both ends. */
AQSGD_API uint64_t aqsgd_digest(const void *bytes, size_t count);

/* ---- activations ---- */

struct aqsgd_codec;

/*
 * settings  "key=value" parted by blanks; the keys and values of a manifest's edges (docs/MANIFEST.md): codec (aqsgd,
 *           directq, raw, sign, ec, lowrank), bits, rate, precision, grid, group, tile, scale, scale_format, rounding,
 *           hadamard, top_k, prescale_log2, store, store_group, keyframe, error, rank, keyframe_rate. The others
 *           have the codec's defaults.
 * rows, columns  of a sample: T tokens by C channels.
 * threads   that code a sample, the caller's among them; 0: every core.
 *
 * AQSGD_INVAL: a setting, named in aqsgd_error. AQSGD_NOMEM.
 */
AQSGD_API int aqsgd_codec_open(const char *settings, uint32_t rows, uint32_t columns, uint32_t threads,
                               struct aqsgd_codec **out);
AQSGD_API void aqsgd_codec_close(struct aqsgd_codec *codec); /* NULL is fine */

/* Of all settings that decode depends on: both ends must have the same. */
AQSGD_API uint64_t aqsgd_codec_digest(const struct aqsgd_codec *codec);
/* "aqsgd 4 bits mid-rise row fp16 absmax nearest store fp16", for people; at most `bytes`, always terminated. */
AQSGD_API void aqsgd_codec_text(const struct aqsgd_codec *codec, char *text, size_t bytes);
/* Bytes that any body fits into. */
AQSGD_API size_t aqsgd_bound(const struct aqsgd_codec *codec);
/* Bytes of an ordinary body, exact where the codec's do not vary. */
AQSGD_API size_t aqsgd_body_bytes(const struct aqsgd_codec *codec, int keyframe);
/* Bytes of a message m; 0: the codec keeps none. */
AQSGD_API size_t aqsgd_message_bytes(const struct aqsgd_codec *codec);

/*
 * a         rows x columns.
 * m         the sample's message, or NULL: it has none.
 * key       for rounding=stochastic, a number of (step, sample) that both ends need not share; else of no matter.
 * body      out, `capacity` >= aqsgd_bound; *body_bytes and *flags get its length and flags.
 * hat       out, what the receiver will have, rows x columns; may be a; NULL: not wanted.
 * m_out     out, the new message; may be m; NULL: not wanted. With AQSGD_RAW it holds rubbish.
 */
AQSGD_API int aqsgd_encode(struct aqsgd_codec *codec, const float *a, const void *m, uint64_t key, void *body,
                           size_t capacity, size_t *body_bytes, uint32_t *flags, float *hat, void *m_out);

/* The other end. AQSGD_INVAL: a change without its m. AQSGD_CORRUPT: hat and m_out may hold rubbish. */
AQSGD_API int aqsgd_decode(struct aqsgd_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                           const void *m, float *hat, void *m_out);

/* ---- gradients ---- */

struct aqsgd_grad;

/*
 * name     "fp32", "fp16", "bf16", "q8" to "q2" (uniform, a scale for 512 values), "sign", "vote", "lp8" to "lp2",
 *          "topk", "topk_fp32", "randomk".
 * counts floats of each of `tensors` tensors, which follow each other in the flat buffer.
 */
AQSGD_API int aqsgd_grad_open(const char *name, const uint64_t *counts, uint32_t tensors, struct aqsgd_grad **out);
AQSGD_API void aqsgd_grad_close(struct aqsgd_grad *grad); /* NULL is fine */
/* Exact bytes of the range [first, first + count); 0: it is not in the buffer. */
AQSGD_API size_t aqsgd_grad_bytes(const struct aqsgd_grad *grad, uint64_t first, uint64_t count);
/* wire = C(x + error), error = x + error - decoded. error NULL: none. x, error: of the range. step: parity of
 * ties (vote). */
AQSGD_API int aqsgd_grad_encode(const struct aqsgd_grad *grad, uint64_t first, uint64_t count, const float *x,
                                float *error, uint64_t step, void *wire);
/* sum = weight * decoded, or with add sum += weight * decoded. AQSGD_CORRUPT: sum is partly written. */
AQSGD_API int aqsgd_grad_decode(const struct aqsgd_grad *grad, uint64_t first, uint64_t count, const void *wire,
                                size_t bytes, float weight, int add, float *sum);

#ifdef __cplusplus
}
#endif
#endif
