/*
 * codec.h -- activation codecs: how the (T, C) matrix of one sample becomes bytes on the wire, and again a matrix.
 *
 * Caveats first.
 * - Decode is exact arithmetic (DESIGN: no fused multiply-add, no fast-math): the same body and the same reference give
 *   the same bits on every device, compiler and optimization level. Encode may be as fast as it likes: it *defines* the
 *   codes, and then computes m' by the very arithmetic of decode.
 * - The sender must use `hat` and `m_out` that encode wrote, never its own activation, wherever both ends must agree.
 * - A codec is a pure function of (activation, reference message, random key). It knows no cache and no link.
 * - Samples are coded one by one: the code of one never depends on its neighbours in the micro-batch.
 *
 * Kinds:
 *   raw      fp32, fp16 or bf16 as they are; stateless.
 *   directq  Q(x): quantizes the values themselves; stateless. Optional top-k first (papers/004 H.6, "bw8[0.2]").
 *   aqsgd    Q(a - m): quantizes the change since this sample's previous message m (papers/004 Algorithm 1, line 7);
 *            without a reference (a cold sample) a *keyframe* is coded instead.
 *   sign     the sign of each value and one scale per row.
 *   ec       entropy coded: one step per sample, at a rate; of the change, or of the values where nothing is kept.
 *   lowrank  the change (or the values) as a product of two thin matrices, entropy coded.
 *
 * On a device whose memory the host cannot reach (aq_device_info: host_memory), a and hat are device memory; bodies,
 * messages and results are the host's, pinned where copies are to be asynchronous.
 *
 * A message m is stored in the precision of config.store, aq_codec_message_bytes() long, in host or device memory, and
 * is opaque to all other code: a cache keeps the bytes, a digest covers the bytes. x^ ("hat") is the fp32 matrix that
 * the receiver computes with: m + deq(q), not rounded to the stored precision; both ends store the same rounding of it.
 *
 * Non-finite values in the activation, or a value that the store cannot hold (beyond 65504 with fp16): the sample is
 * sent raw fp32, result.flags has AQ_CODED_RAW, and no m' is made: the sample becomes cold on both ends.
 *
 * The byte layout is docs/FORMAT.md.
 *
 *     struct aq_codec_config config;
 *     aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
 *     AQ_TRY(aq_codec_open(device, &config, T, C, &codec));
 *     AQ_TRY(aq_codec_encode(codec, a, m, &key, body, bound, hat, m, &result, stream));
 *     ... other end ...
 *     AQ_TRY(aq_codec_decode(codec, body, result.body_bytes, result.flags, m, hat, m, stream));
 *
 * A micro-batch goes by aq_codec_encode_batch and aq_codec_decode_batch: on a GPU that is a few launches.
 *
 * Locking: a codec object is used from one thread at a time; different objects are independent.
 */
#ifndef AQSGD_CODEC_H
#define AQSGD_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* AQ_CODEC_RAW and so on: a row of codecs.def each. */
enum aq_codec_kind {
#define AQ_CODEC(NAME, name, id) AQ_CODEC_##NAME = (id),
#include "aqsgd/codecs.def"
};

/* How a value is kept: raw bodies, keyframes, stored messages. Q8, Q4, Q2: symmetric codes with one scale per row (of
 * messages also a channel: store_group). */
enum aq_codec_precision {
    AQ_PRECISION_NONE = 0, /* of config.store: no messages are kept */
    AQ_PRECISION_FP32 = 1,
    AQ_PRECISION_FP16 = 2,
    AQ_PRECISION_BF16 = 3,
    AQ_PRECISION_Q8 = 4,
    AQ_PRECISION_Q4 = 5,
    AQ_PRECISION_Q2 = 6,
    AQ_PRECISION_EC = 7 /* of config.keyframe: entropy coded, keyframe_rate bits per value */
};

/* Which values share one scale. Rows are tokens (T of them), channels are columns (C of them). */
enum aq_codec_group { AQ_PER_TENSOR = 1, AQ_PER_ROW = 2, AQ_PER_CHANNEL = 3, AQ_PER_TILE = 4 };

/*
 * The grid of b bits over [-s, s]. L = 2^b.
 *   mid-rise   levels (2k + 1 - L)/L * s, k = 0..L-1: symmetric, no zero; unbiased on symmetric data
 *   mid-tread  levels k/(L/2 - 1) * s, k = -(L/2-1)..L/2-1: symmetric, with zero, one code unused (b >= 2)
 *   signed     levels k/(L/2) * s, k = -L/2..L/2-1: as published (AC-SGD); biased. For comparison; refused as a default
 */
enum aq_codec_grid { AQ_GRID_MIDRISE = 1, AQ_GRID_MIDTREAD = 2, AQ_GRID_SIGNED = 3 };

/* How the sender chooses s. The decoder does not know and need not. */
enum aq_codec_scale {
    AQ_SCALE_ABSMAX = 1, /* the largest magnitude                                              */
    AQ_SCALE_RMS = 2,    /* k(b) * rms, k optimal for a Gaussian                               */
    AQ_SCALE_SEARCH = 3, /* the best of 8 shrink factors of absmax by squared error            */
    AQ_SCALE_AUTO = 4    /* k(b, tail) * rms up to 4 bits, absmax from 6: near SEARCH, at its own cost of one pass */
};

/* How s is written. POW2: one byte, an exponent. */
enum aq_codec_scale_format { AQ_SCALE_FP16 = 1, AQ_SCALE_BF16 = 2, AQ_SCALE_FP32 = 3, AQ_SCALE_POW2 = 4 };

/* HALF_DITHER, only of ec: STOCHASTIC where there is no message, else half of it (codec_ec.c). */
enum aq_codec_rounding { AQ_ROUND_NEAREST = 1, AQ_ROUND_STOCHASTIC = 2, AQ_ROUND_HALF_DITHER = 3 };

struct aq_codec_config {
    enum aq_codec_kind kind;
    enum aq_codec_precision raw; /* kind RAW: FP32, FP16 or BF16                                                     */
    uint32_t bits;               /* 1..8, DIRECTQ and AQSGD                                                          */
    enum aq_codec_grid grid;
    enum aq_codec_group group;
    uint32_t
        tile; /* 32, 64 or 128 contiguous channels: group TILE and Hadamard; the last tile of a row may be shorter */
    enum aq_codec_scale scale;
    enum aq_codec_scale_format scale_format;
    enum aq_codec_rounding rounding;
    bool hadamard;                 /* rotate each tile by the orthonormal Sylvester-Hadamard matrix before quantizing */
    float top_k;                   /* DIRECTQ: keep this fraction of the values (largest magnitude); 0 or 1: all      */
    float rate;                    /* EC: mean bits per value, 1 to 8; LOWRANK: per number of its factors            */
    uint32_t rank;                 /* LOWRANK: directions at most, 1 to 64                                           */
    float error; /* EC, LOWRANK: |a - x^| of |a|, about; bits are what it takes. 0: rate decides                      */
    int32_t prescale_log2;         /* values are multiplied by 2^this before scale and grid, divided after decode     */
    enum aq_codec_precision store; /* AQSGD: how m is kept                                                            */
    enum aq_codec_group store_group;  /* store Q8, Q4 or Q2: which values share a scale: ROW or CHANNEL               */
    enum aq_codec_precision keyframe; /* AQSGD: how a cold sample is sent: FP32, FP16, BF16, Q8 or EC */
    float keyframe_rate;              /* keyframe EC: mean bits per value, 1 to 8 */
};

/* The properties of a kind, to choose one by. */
struct aq_codec_about {
    const char *name;  /* in manifests: "aqsgd"                                                       */
    const char *label; /* for people: "AQ-SGD"                                                        */
    bool activations;  /* only for them: a gradient has no message                                    */
    bool plain;        /* bodies are the values as they are, in config.raw                            */
    bool stateless;    /* keeps no messages, whatever config.store is                                 */
    bool grid;         /* bits, grid, group, tile, scale, rounding and hadamard are the user's        */
    bool sparse;       /* top_k is the user's                                                         */
    bool varies;       /* bodies have a bound, not a size: aq_codec_body_bytes is what to expect      */
    bool usual[2];     /* what is meant by keys that name none: of activations, of gradients          */
    float unsaid[2];   /* the default of jobs without codecs, at this rate; 0: not this one           */
    enum aq_codec_rounding unsaid_rounding; /* and so                                                     */
};

/* Every kind, in the order of codecs.def; false beyond the last. And one of them; NULL: no such kind. */
bool aq_codec_kind_at(uint32_t number, enum aq_codec_kind *out);
const struct aq_codec_about *aq_codec_about(enum aq_codec_kind kind);
enum aq_codec_kind aq_codec_kind_usual(bool gradients);

/* The config of a job without codecs: first visits are coded, too (docs/DECISIONS.md 0432). */
void aq_codec_config_unsaid(struct aq_codec_config *out, bool gradients);

/* The recommended settings for a kind and bits: mid-rise, one fp16 scale per row (absmax, at 1 bit auto), nearest,
 * store and keyframe fp16; directq, which gradients go through, with a prescale of 2^16. */
void aq_codec_config_default(struct aq_codec_config *out, enum aq_codec_kind kind, uint32_t bits);

/* fp32 as it is, by a codec that sends plain values. */
void aq_codec_config_plain(struct aq_codec_config *out);

/*
 * The config by which a sample that never changes is coded: its keyframe is the output of this config, or the keyframe
 * of a codec that keeps messages (fp16 if that is EC, because nothing would refine it), and there is a message of it.
 * Uncoded values keep their bits. False: no such config, because this one keeps no messages and its output depends on
 * more than the sample.
 */
bool aq_codec_config_kept(const struct aq_codec_config *config, struct aq_codec_config *out);

/* Can this be built for (T, C)? AQ_INVAL, with a text that names the field and what it may be. */
enum aq_status aq_codec_config_check(const struct aq_codec_config *config, uint32_t rows, uint32_t columns);

/* A 64-bit digest of everything in config that decode depends on: both ends of an edge must agree on it. */
uint64_t aq_codec_config_digest(const struct aq_codec_config *config);

/* "aqsgd 4 bits mid-rise row fp16 auto nearest store fp16", for people. Writes at most `bytes`, always terminated. */
void aq_codec_config_text(const struct aq_codec_config *config, char *text, size_t bytes);

enum aq_coded_flag {
    AQ_CODED_KEYFRAME = 1, /* coded without a reference, in config.keyframe                                */
    AQ_CODED_RAW = 2       /* raw fp32 because the values demanded it; nothing may be stored for the sample */
};

/* Why a sample is raw. */
enum aq_raw_reason {
    AQ_RAW_NOT = 0,        /* it is not                                                                     */
    AQ_RAW_NOT_FINITE = 1, /* a value is infinite or not a number                                           */
    AQ_RAW_STORE = 2,      /* a value is too large for the store, the keyframe or config.raw: a wider one may do */
    AQ_RAW_SCALE = 3       /* a scale does not fit config.scale_format, or a body its bound                 */
};

/* The report of encode, besides the body. Valid when the stream has passed the call. */
struct aq_codec_result {
    uint32_t body_bytes; /* <= aq_codec_bound()                                                            */
    uint32_t flags;      /* enum aq_coded_flag                                                             */
    uint32_t raw_reason; /* enum aq_raw_reason                                                             */
    float raw_peak;      /* the largest |a| of a raw sample (infinite for a value that is no number); else 0 */
    /*
     * Live measures of the sample: sums over its T*C values, in double. For a delta with one scale per row, not
     * searched, not rotated, rounded to nearest (the default), in samples of 64 rows or more, they are estimated from
     * the first eight rows and every eighth row after them, which counts as eight; the sums may then be off by a few
     * per cent.
     */
    double sum_a2;     /* |a|^2                                                                            */
    double sum_delta2; /* |a - m|^2; equals sum_a2 where there was no reference                            */
    double sum_error2; /* |a - hat|^2, which is |d - Q(d)|^2; of every codec, gradients included. The error
                          of the sample is sqrt(sum_error2 / sum_delta2). ec keeps it below 0.9, and a change
                          below 0.71 of itself; other codecs do what they are asked for                    */
    double sum_stored2; /* |a - m'|^2, of the message that is kept: the error that AQ-SGD's loop continues with. It is
                           sum_error2 but for bf16 and stores below 16 bits, whose rounding is a second error. Then
                           it is of the rows named above, whatever the codec, and has the same bits on any device  */
    double sum_a;      /* of a: the common mode is |mean(a)| / rms(a)                                      */
};

struct aq_codec; /* opaque: config, shape, scratch memory */

/* rows T, columns C of one sample. Takes its scratch memory once. AQ_INVAL as aq_codec_config_check, AQ_NOMEM. */
enum aq_status aq_codec_open(struct aq_device *device, const struct aq_codec_config *config, uint32_t rows,
                             uint32_t columns, struct aq_codec **out);
void aq_codec_close(struct aq_codec *codec); /* NULL is fine */

const struct aq_codec_config *aq_codec_config_of(const struct aq_codec *codec); /* borrowed */

/* Bytes that any body of this codec fits into (the raw fallback included). */
size_t aq_codec_bound(const struct aq_codec *codec);

/* Bytes of a body in the ordinary case: keyframe or not. Exact, but where they vary an estimate; what `aqpipe plan`
 * prints. */
size_t aq_codec_body_bytes(const struct aq_codec *codec, bool keyframe);

/* Have such bodies a bound, not a size? Those of a kind that varies (about.varies), and keyframes that are EC. */
bool aq_codec_varies(const struct aq_codec *codec, bool keyframe);

/* Are its bodies the values as they are? */
bool aq_codec_is_plain(const struct aq_codec *codec);

/* Bytes of a stored message; 0 for stateless kinds. */
size_t aq_codec_message_bytes(const struct aq_codec *codec);

/* The same two of a sample that has fewer rows (aq_codec_sample.rows; 0: all). */
size_t aq_codec_body_bytes_of(const struct aq_codec *codec, uint32_t rows, bool keyframe);
size_t aq_codec_message_bytes_of(const struct aq_codec *codec, uint32_t rows);

/*
 * Messages whose rows move, those of images that are cropped: row `from` of the message `source` becomes row `to` of
 * `out`; source NULL: zeroes. Host memory, messages of all rows. AQ_INVAL of check, with the reason: the messages of
 * such a config cannot be split into rows.
 */
enum aq_status aq_codec_rows_check(const struct aq_codec_config *config, uint32_t columns);
void aq_codec_message_row(const struct aq_codec *codec, const void *source, uint32_t from, void *out, uint32_t to);

/*
 * aq_codec_encode -- code one sample.
 *
 *     d = a - m,   w = Q_b(d),   x^ = m + deq_b(w),   m' = store(x^)       [papers/004, Algorithm 1, lines 4-7]
 *
 * a       (T, C) fp32 device, borrowed until the stream gets here.
 * m       the reference, aq_codec_message_bytes long, or NULL: a keyframe. Ignored by stateless kinds.
 * key     for stochastic rounding; may be NULL where rounding is nearest.
 * body    out, `capacity` >= aq_codec_bound(codec), else AQ_NOSPC.
 * hat     out, (T, C) fp32, what the receiver will compute with; NULL: not wanted. May alias a.
 *         With store fp32 x^ is m', and hat may be m_out: it is written once.
 * m_out   out, m'; may be m, but not overlap it otherwise; NULL: not wanted, or a stateless kind. When result.flags has
 *         AQ_CODED_RAW it holds rubbish, also where it is m: such a sample is cold on both ends, and a caller
 *         that needs the old m gives another place.
 * result  out.
 */
enum aq_status aq_codec_encode(struct aq_codec *codec, const float *a, const void *m, const struct aq_rng_key *key,
                               void *body, size_t capacity, float *hat, void *m_out, struct aq_codec_result *result,
                               struct aq_stream *stream);

/*
 * aq_codec_decode -- the other end. body comes from outside: any bytes give AQ_OK or AQ_CORRUPT, never more.
 *
 * flags   of the frame (enum aq_coded_flag); m as in encode: AQ_INVAL if a delta comes without a reference.
 * hat     out, (T, C) fp32; NULL: not wanted. With store fp32 x^ is m', and hat may be m_out (and both may be m, as
 *         papers/004 keeps it): it is written once.
 * m_out   as in encode; not written for AQ_CODED_RAW, unless it is hat. On AQ_CORRUPT hat and m_out may hold rubbish:
 *         the sample is to be fetched again, or is cold.
 */
enum aq_status aq_codec_decode(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                               const void *m, float *hat, void *m_out, struct aq_stream *stream);

/*
 * The samples of a micro-batch at once: on a device with codec kernels a micro-batch is a few launches. Elsewhere these
 * are the functions above, sample by sample.
 */
struct aq_codec_sample {
    const float *a;               /* encode                                                              */
    const void *m;                /* the reference, or NULL: a keyframe                                  */
    const struct aq_rng_key *key; /* encode, stochastic rounding; host memory, read before the call ends */
    void *body;                   /* out of encode, aq_codec_bound long; into decode                     */
    uint32_t body_bytes, flags;   /* decode: of the frame                                                */
    uint32_t rows;                /* of this sample, 1 to those of the codec: its body and message are as
                                     of a matrix of that many rows, and nothing behind it is read or
                                     written; 0: all                                                     */
    float *hat;                   /* as above, but with codec kernels it must not overlap a              */
    void *m_out;                  /* as above                                                            */
};

/*
 * From now on batches are coded by the device's own kernels, if it has some; once, before the first batch. Takes
 * aq_codec_device_bytes of device memory. AQ_OK where there are no kernels too; see aq_codec_on_device. AQ_NOMEM.
 */
enum aq_status aq_codec_take_device(struct aq_codec *codec);

/* Device memory that aq_codec_take_device takes. 0 where the device has no kernels for codecs. */
uint64_t aq_codec_device_bytes(const struct aq_codec *codec);

/* The same on a GPU, whatever device the codec is on: for a line of the plan. */
uint64_t aq_codec_kernel_bytes(const struct aq_codec *codec);

/* Are batches coded by the device? Then bodies and messages may be device memory as well as pinned memory. */
bool aq_codec_on_device(const struct aq_codec *codec);

/*
 * aq_codec_encode_batch -- code `count` samples.
 *
 * Only enqueues where there are codec kernels (aq_codec_on_device); memory is as for aq_codec_encode, the array of
 * samples is read before the call ends. results: one per sample, pinned memory; valid when the stream has passed.
 * Samples are independent: the result of one that had to be sent raw has AQ_CODED_RAW. AQ_INVAL: as aq_codec_encode, or
 * x^ overlaps a. AQ_CUDAERR: a launch failed.
 */
enum aq_status aq_codec_encode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                     struct aq_codec_result *results, struct aq_stream *stream);

/*
 * aq_codec_decode_batch -- the other end. corrupt: one a sample, pinned memory: 0, or 1 for a body that aq_codec_decode
 * answers AQ_CORRUPT to; valid when the stream has passed. AQ_INVAL: a delta without a reference. AQ_CUDAERR: a launch
 * failed.
 */
enum aq_status aq_codec_decode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples, uint32_t count,
                                     uint32_t *corrupt, struct aq_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
