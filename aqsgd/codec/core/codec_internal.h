/*
 * codec_internal.h -- shared by the files of this folder: the arithmetic of one quantizer, the kernel table, the codec
 * object.
 *
 * The idea: a body is made row by row, so that the second look at a row finds it in the first-level cache. A *kernel*
 * does one pass over one row; there is a table of kernels for plain C (the readable truth), AVX2, AVX-512 and AVX-512
 * with VBMI, and all of them give the same bits, sums included: a sum is always 32 partial sums, lane c%32, folded in
 * one fixed order.
 *
 * Map:
 *     codec.c                  config, layout, open and close
 *     codec_member.h, codec_raw.c, codec_directq.c, codec_aqsgd.c, ...   the seam, and the codecs of codecs.def
 *     codec_quantizer.c        what codecs with a grid share
 *     codec_encode.c, codec_decode.c   the drivers: which kernel, row by row
 *     codec_batch.c            many samples at once; a GPU's by its launchers (cuda_codec.h)
 *     codec_scale.c            how a scale is chosen, written and read
 *     codec_store.c            streams of codes, messages in Q
 *     codec_ec.c, codec_ec_choose.h, codec_rans.c   entropy-coded bodies; their heads; their lanes
 *     codec_lowrank.c          products of thin matrices
 *     codec_topk.c             which values are kept, and their positions
 *     codec_scalar.h           the truth of every kernel
 *     codec_kernels.c          which table this machine runs
 *     codec_kernels_*.c, codec_streams_avx512.c, codec_avx512.h    the tables
 */
#ifndef AQSGD_CODEC_INTERNAL_H
#define AQSGD_CODEC_INTERNAL_H

#include <string.h>

#include "aqsgd/codec.h"
#include "codec_ec_choose.h"
#include "codec_rans.h"
#include "cuda_codec.h"

enum {
    AQ_LANES = 32,            /* partial sums of every sum: two registers of 16, so that additions overlap */
    AQ_CODEC_SHRINKS = 8,     /* candidates of AQ_SCALE_SEARCH */
    AQ_CODEC_PIECES_MAX = 16, /* pieces that one sample is cut into for the pool: more gain nothing for one sample */
    AQ_CODEC_CHUNK_ROWS = 8,  /* pieces are multiples of it: eight rows end on a byte in every bit stream */
    AQ_CODEC_PAD = 128,       /* bytes that a kernel may read or write past a row's scratch */
    AQ_CODEC_PRESCALE_MAX = 64,
    AQ_CODEC_ROWS_MAX = 1 << 20,
    AQ_CODEC_COLUMNS_MAX = 1 << 20
};

static const uint64_t AQ_CODEC_VALUES_MAX = UINT64_C(1) << 29; /* raw fp32 of it stays below 2^31 bytes */

static inline uint32_t aq_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float aq_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 2^exponent, exponent in -126..127. */
static inline float aq_power_of_two(int exponent)
{
    return aq_float_of((uint32_t)(exponent + 127) << 23);
}

/*
 * A scale in two bytes. An f16 ends at 65504: from there on the sign bit, which no scale has, means 2^16 times its
 * magnitude, at least 1 (docs/FORMAT.md, Scales). Earlier versions sent such a sample raw, so that the digest of
 * settings and older caches stay valid. Beyond 2^32 the word is not a scale.
 */
enum { AQ_SCALE_HALF_SIGN = 0x8000, AQ_SCALE_HALF_ONE = 0x3c00, AQ_HALF_INFINITE = 0x7c00 };

static inline uint16_t aq_scale_half_from(float s)
{
    const uint16_t half = aq_half_from_float(s);
    return half != AQ_HALF_INFINITE ? half : aq_half_from_float(s * 0x1p-16f) | AQ_SCALE_HALF_SIGN;
}

/* False for a word that no sender writes. */
static inline bool aq_scale_half_to(uint16_t word, float *s)
{
    const bool far = (word & AQ_SCALE_HALF_SIGN) != 0;
    const uint16_t half = word & (AQ_SCALE_HALF_SIGN - 1);
    *s = aq_half_to_float(half) * (far ? 0x1p16f : 1.0f);
    return half < AQ_HALF_INFINITE && (!far || half >= AQ_SCALE_HALF_ONE);
}

/* One quantizer ready for use: i = clamp(round(x * inverse), low, high), code = i + half, deq = rise ? (2i+1)*unit :
 * i*unit. */
struct aq_quant {
    float unit;
    float inverse;
    float low, high;
    uint32_t half;
    uint32_t bits;
    bool rise;
};

/* The input of the choice of a scale, per group. */
struct aq_span {
    uint32_t peak; /* bits of max |d|: as integers they are ordered like magnitudes, infinity and NaN above all */
    float sum_abs;
    float sum_square;
};

/* The live measures, 32 partial sums each, in double. */
struct aq_codec_sums {
    double a[AQ_LANES], a2[AQ_LANES], delta2[AQ_LANES], error2[AQ_LANES];
};

/* The type of a row's values in memory; of enum aq_codec_precision only those a kernel reads or writes itself. */
enum aq_row_kind { AQ_ROW_NONE = 0, AQ_ROW_FP32 = 1, AQ_ROW_FP16 = 2, AQ_ROW_BF16 = 3 };

/*
 * One pass over one row each. n values; nothing is aligned; no operand overlaps another unless named. `hat` and `m_out`
 * are not NULL unless stated. m_out may be m (each value is read before it is written). The returned or `peak` value is
 * the largest |x^| by its bits.
 */
struct aq_codec_kernels {
    const char *name;
    /*
     * d = a - m (d = a for AQ_ROW_NONE); the span of d; adds to sums->a, a2, delta2, unless sums is NULL. peak_only:
     * the sums of the span are not wanted, and may be made or not. ahead: a later row of a, to be fetched while this
     * one is worked on (a hint, never read), or NULL.
     */
    void (*delta)(const float *a, const void *m, enum aq_row_kind m_kind, float *d, size_t n, struct aq_span *span,
                  struct aq_codec_sums *sums, bool peak_only, const float *ahead);
    void (*span)(const float *d, size_t n, struct aq_span *span);
    /* error[l] += (x - deq)^2 over lane l. */
    void (*error)(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES]);
    /* Codes and their deq. noise NULL: nearest, else u of stochastic rounding. error2 (not NULL): as `error`, in
     * double. */
    void (*quantize)(const float *d, size_t n, const struct aq_quant *quant, const float *noise, uint8_t *codes,
                     float *levels, double *error2);
    void (*levels)(const uint8_t *codes, size_t n, const struct aq_quant *quant, float *levels);
    /* x^ = m + levels (only levels for AQ_ROW_NONE), to hat (may be NULL, may be levels) and, rounded, to m_out. */
    uint32_t (*update)(const void *m, enum aq_row_kind m_kind, const float *levels, size_t n, float *hat, void *m_out,
                       enum aq_row_kind out_kind);
    /* The values of a row as they are, in fp32. */
    void (*expand)(const void *m, enum aq_row_kind m_kind, size_t n, float *out);
    /* quantize (nearest) and update at once. m and m_out have the same kind, or out_kind is AQ_ROW_NONE. error2 may be
     * NULL. */
    uint32_t (*step)(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m, float *hat,
                     void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2);
    /* levels and update at once, as the receiver does it. */
    uint32_t (*apply)(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m, float *hat,
                      void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind);
    /*
     * The same two on the bit stream itself, for codes that start at a byte of it: they do as many of the n values as
     * they can, always a multiple of AQ_LANES, and return how many. May be NULL. step_stream writes only whole bytes of
     * those values (and may write anything into the bytes of values that are still to come, below out + n*bits/8);
     * apply_stream reads only in .. in + bytes. *peak is raised, not set, and may stay as it is if finite values cannot
     * give a sum beyond the store. Preconditions otherwise as for step and apply.
     */
    size_t (*step_stream)(const float *d, size_t n, const struct aq_quant *quant, uint8_t *out, const void *m,
                          float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2,
                          uint32_t *peak, const void *ahead_m);
    size_t (*apply_stream)(const uint8_t *in, size_t bytes, size_t n, const struct aq_quant *quant, const void *m,
                           float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, uint32_t *peak);
    /* units of eight codes to `bits` bytes each, and back. unpack may write 64 codes past the last unit's, and never
     * reads beyond in + units*bits; pack never writes beyond out + units*bits. */
    void (*pack)(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out);
    void (*unpack)(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes);
    /* u of elements first .. first+n-1; may write 64 floats past the end. */
    void (*noise)(const struct aq_rng_key *key, uint64_t first, size_t n, float *out);
    /*
     * codec_ec.c: codes (1..15; 0 where |q| > 7) and their levels (0 there); error2 as in quantize. And from codes to
     * levels. True where there is a code of 0.
     */
    bool (*ec_quantize)(const float *d, size_t n, const struct aq_ec_grid *grid, uint8_t *codes, float *levels,
                        double *error2);
    bool (*ec_levels)(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, float *levels);
    /* values[c] += (2 byte - 255) * unit, of the row's bytes (aq_ec_dither_byte): a negative unit takes w off again. */
    void (*ec_dither)(struct aq_ec_dither_row row, size_t n, float unit, float *values);
    /* Levels, dither, common (added; may be NULL) and update in one, bit for bit: of a row with a code of 0 nothing is
     * written, and it is false. May be NULL. *peak as update has it. */
    bool (*ec_apply)(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, struct aq_ec_dither_row row,
                     const float *common, const void *m, enum aq_row_kind m_kind, float *hat, void *m_out,
                     enum aq_row_kind out_kind, uint32_t *peak);
    /* codec_lowrank.c: out[i] = sum over k < count of factors[k] * matrix[k * stride + i], i < n, from 0 on, k upwards:
     * a product and an addition each. out may have AQ_CODEC_PAD more. */
    void (*products)(const float *factors, size_t count, const float *matrix, size_t stride, size_t n, float *out);
    aq_rans_encoder *rans_encode;
    aq_rans_decoder *rans_decode;
    /* The rotation of docs/FORMAT.md, in place, over a row cut into tiles. */
    void (*rotate)(float *row, size_t n, uint32_t tile);
};

extern const struct aq_codec_kernels aq_codec_kernels_plain;
#if defined(__x86_64__)
extern const struct aq_codec_kernels aq_codec_kernels_avx2;
extern const struct aq_codec_kernels aq_codec_kernels_avx512;
extern const struct aq_codec_kernels aq_codec_kernels_vbmi;
bool aq_avx512_ec_quantize(const float *d, size_t n, const struct aq_ec_grid *grid, uint8_t *codes, float *levels,
                           double *error2);
bool aq_avx512_ec_levels(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, float *levels);
void aq_avx512_ec_dither(struct aq_ec_dither_row row, size_t n, float unit, float *values);
bool aq_avx512_ec_apply(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, struct aq_ec_dither_row row,
                        const float *common, const void *m, enum aq_row_kind m_kind, float *hat, void *m_out,
                        enum aq_row_kind out_kind, uint32_t *peak);
#endif

/* The table of that name if this machine can run it, else NULL: "plain", "avx2", "avx512", "vbmi". */
const struct aq_codec_kernels *aq_codec_kernels_named(const char *name);

/* The best of what is used of this machine (aq_processor_used). */
const struct aq_codec_kernels *aq_codec_kernels_best(void);

/* The offsets of the parts of a body and of a message; a pure function of config and shape. */
struct aq_codec_layout {
    uint64_t values;       /* N */
    uint64_t kept;         /* K; N without top-k */
    uint32_t groups;       /* scales in all */
    uint32_t groups_row;   /* scales that one row uses: 1 (row, tensor), C (channel), ceil(C/tile) */
    uint32_t scale_bytes;  /* of one */
    uint64_t positions_at; /* offsets in the body */
    uint64_t positions_bytes;
    uint64_t codes_at;
    uint64_t body_bytes;     /* not a keyframe; an estimate where they vary */
    uint64_t body_most;      /* of one whose bytes vary; else 0 */
    uint64_t keyframe_bytes; /* 0 for stateless kinds; an estimate where they vary */
    uint64_t keyframe_most;  /* of one whose bytes vary; else 0 */
    uint64_t message_bytes;  /* 0 for stateless kinds */
    uint64_t bound;
    uint64_t whole_bytes, piece_bytes; /* scratch of the member's own: of a sample, of a piece */
    uint32_t low_bits; /* Elias-Fano: l */
    bool bitmap;       /* positions as a bitmap */
};

/* Row-sized scratch of one piece; pieces run side by side. */
struct aq_codec_scratch {
    float *d; /* the values to quantize */
    float *levels;
    float *noise;
    float *error;            /* of the candidates: [shrink][lane], or [shrink][C] for channel groups */
    struct aq_span *spans;   /* per scale of one row, of this piece for tensor and channel groups */
    struct aq_quant *quants; /* per scale of one row */
    uint32_t *columns;       /* top-k: the columns kept */
    uint8_t *codes;          /* of the row, after up to seven carried over */
    uint8_t *own;            /* layout.piece_bytes */
};

struct aq_codec_member; /* codec_member.h */

struct aq_codec {
    const struct aq_codec_member *member;
    struct aq_codec_config config;
    struct aq_codec_layout layout;
    enum aq_codec_precision store; /* of m while a sample is coded: config.store, or FP32 where that is Q */
    uint32_t rows, columns; /* rows, layout and pieces: of the sample in hand (aq_codec_rows_use) */
    uint32_t rows_max;
    uint32_t pieces, piece_rows;
    struct aq_device *device;
    const struct aq_codec_kernels *kernels;
    struct aq_codec_scratch scratch[AQ_CODEC_PIECES_MAX];
    double *stored; /* |a - m'|^2 of each measured row, where m' is rounded (aq_codec_measured_row); else nothing */
    uint8_t *old; /* the reference, where m_out is m and x^, which goes to a, is made last; m in FP32 where it is Q */
    void *own;               /* layout.whole_bytes */
    struct aq_span *spans;   /* of all groups, merged: tensor and channel */
    struct aq_quant *quants; /* likewise */
    void *memory;
    size_t memory_bytes;
    float *staging; /* pinned, T*C: where a and x^ pass on a device whose memory the host cannot reach; else NULL */
    struct aq_codec *inner;         /* of a member that codes something by another codec; else NULL */
    bool head_on_top;               /* codec_ec.c: the rate does not pay for the head */
    struct aq_codec_remote *remote; /* codec_batch.c: the state of a GPU's launchers; else NULL */
};

/* One sample on its way out. */
struct aq_codec_encoder {
    struct aq_codec *codec;
    const float *a;
    const uint8_t *m;
    const struct aq_rng_key *key;
    uint8_t *body;
    float *hat;
    uint8_t *m_out;
    bool (*scale)(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, const struct aq_span *span,
                  const struct aq_quant **quants);
    bool failed[AQ_CODEC_PIECES_MAX];
    bool again[AQ_CODEC_PIECES_MAX]; /* codec_ec.c: it failed for its step, and another one may do */
    struct aq_codec_sums sums[AQ_CODEC_PIECES_MAX];
    struct aq_codec_sums head; /* of the first rows, where only a part of the later ones is measured */
    double factor;             /* how many rows each row in `sums` counts for */
    uint64_t body_bytes;       /* out, where they vary */
};

/* And in. */
struct aq_codec_decoder {
    struct aq_codec *codec;
    const uint8_t *body;
    size_t body_bytes;
    const uint8_t *m;
    float *hat;
    uint8_t *m_out;
    bool (*scale)(const struct aq_codec_decoder *job, uint32_t piece, uint32_t row, const struct aq_quant **quants);
    bool failed[AQ_CODEC_PIECES_MAX];
};

/* Does it keep a message of each sample? */
static inline bool aq_codec_keeps(const struct aq_codec *codec)
{
    return codec->layout.message_bytes > 0;
}

/* codec_staged.c: the two calls of codec.h where codec->staging is there. */
enum aq_status aq_codec_encode_staged(struct aq_codec *codec, const float *a, const void *m,
                                      const struct aq_rng_key *key, void *body, size_t capacity, float *hat,
                                      void *m_out, struct aq_codec_result *result, struct aq_stream *stream);
enum aq_status aq_codec_decode_staged(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                                      const void *m, float *hat, void *m_out, struct aq_stream *stream);

/* The CPU's coder, all operands in host memory. */
enum aq_status aq_codec_encode_here(struct aq_codec *codec, const float *a, const void *m,
                                    const struct aq_rng_key *key, void *body, size_t capacity, float *hat, void *m_out,
                                    struct aq_codec_result *result);
enum aq_status aq_codec_decode_here(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                                    const void *m, float *hat, void *m_out);

uint32_t aq_precision_bits(enum aq_codec_precision precision);        /* of one value; 0 for no precision */
enum aq_row_kind aq_precision_row(enum aq_codec_precision precision); /* AQ_ROW_NONE for Q */
/* Of `values` values with `scales` scales where it is Q. */
uint64_t aq_precision_bytes(enum aq_codec_precision precision, uint64_t values, uint32_t scales);
void aq_codec_layout_of(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                        struct aq_codec_layout *out);
/* codec.c: the samples coded from now on have this many rows; 0: all that the codec was opened for. */
void aq_codec_rows_use(struct aq_codec *codec, uint32_t rows);

/* ---- codec_scale.c ---- */

/* The part of a quantizer that does not depend on the scale. */
void aq_quant_grid(enum aq_codec_grid grid, uint32_t bits, struct aq_quant *out);
/* unit and inverse of a scale s >= 0 as FORMAT.md defines them; false where 256 * unit is not finite. */
bool aq_quant_scale(enum aq_codec_grid grid, uint32_t bits, int32_t prescale_log2, float s, struct aq_quant *out);

/* s before it is written: by the rule of config, for a group of n values. Not for SEARCH: its shrinks start at
 * absmax. */
float aq_scale_choose(const struct aq_codec_config *config, const struct aq_span *span, uint64_t n);
/* The candidate of SEARCH with that index. */
float aq_scale_shrink(const struct aq_codec_config *config, const struct aq_span *span, uint32_t index);
bool aq_scale_searches(const struct aq_codec_config *config); /* does this config look at candidates? */
bool aq_scale_is_peak(const struct aq_codec_config *config);  /* does it look only at the largest magnitude? */

/* Write s * 2^prescale in the config's format and make the quantizer of what was written: false where it does not fit.
 */
bool aq_scale_write(const struct aq_codec_config *config, float s, uint8_t *out, struct aq_quant *quant);
/* Read one: false for a scale that no sender writes. */
bool aq_scale_read(const struct aq_codec_config *config, const uint8_t *in, struct aq_quant *quant);

/* k(b): the best scale over rms for a Gaussian, and for a Laplacian. */
float aq_scale_gauss(enum aq_codec_grid grid, uint32_t bits);
float aq_scale_laplace(enum aq_codec_grid grid, uint32_t bits);
/* The ratio of each candidate of SEARCH to the previous one. */
float aq_scale_shrink_ratio(uint32_t bits);

/* ---- codec_store.c ---- */

/* A stream of codes that is written row by row: up to seven codes wait for the next row. */
struct aq_code_writer {
    const struct aq_codec_kernels *kernels;
    uint8_t *codes; /* scratch: the carried codes, then the row's */
    uint8_t *out;
    uint32_t bits;
    uint32_t carried;
};
void aq_code_writer_init(struct aq_code_writer *writer, const struct aq_codec_kernels *kernels, uint8_t *scratch,
                         uint8_t *out, uint32_t bits);
static inline uint8_t *aq_code_writer_row(const struct aq_code_writer *writer)
{
    return writer->codes + writer->carried; /* where the next row's codes go */
}
void aq_code_writer_push(struct aq_code_writer *writer, size_t n);
void aq_code_writer_flush(struct aq_code_writer *writer); /* the last, partial unit */

/* Codes first .. first+n-1 of a stream of `total`; returns their place in scratch. */
const uint8_t *aq_code_read(const struct aq_codec_kernels *kernels, const uint8_t *stream, uint32_t bits,
                            uint64_t total, uint64_t first, size_t n, uint8_t *scratch);

/* |x^| from these bits on would be stored as infinity. */
uint32_t aq_store_limit(enum aq_codec_precision precision);

/* From these bits of |a| on a sample, or one without a reference, is raw for its store, keyframe or plain body. */
uint32_t aq_codec_raw_limit(const struct aq_codec *codec, bool plain);

/* One row of Q values with a scale per row: the keyframe's, a message's. False for bytes that no sender writes. */
bool aq_store_read_row(const struct aq_codec *codec, enum aq_codec_precision precision, const uint8_t *body,
                       uint32_t row, uint8_t *scratch, float *out);
/* And into a body; writer is at this row's codes; levels: their decoded values. False where |x| is too large. */
bool aq_store_write_row(const struct aq_codec *codec, enum aq_codec_precision precision, uint8_t *body, uint32_t row,
                        const float *x, float *levels, struct aq_code_writer *writer);

/* Is a stored message Q? Then a sample is coded with m and m' in fp32 (codec->store), between these two: */
static inline bool aq_store_is_q(const struct aq_codec *codec)
{
    return codec->store != codec->config.store;
}
/* m, in fp32 to codec->old. False for bytes that no message has. */
bool aq_store_unpack(struct aq_codec *codec, const void *message);
/* m' = store(x). False where |x| is too large; then it holds rubbish. error2: |a - m'|^2, if a is given. */
bool aq_store_pack(struct aq_codec *codec, const float *x, void *message, const float *a, double *error2);
/* |a - m'|^2 of one measured row, a and m being that row's, into codec->stored; and of the sample, when all of them are
 * there. In double, 32 partial sums in an order that pieces and threads do not change: the bits of a GPU's warps. */
void aq_store_measure_row(struct aq_codec *codec, uint32_t row, const float *a, const float *m);
double aq_store_error2(const struct aq_codec *codec);

/* ---- codec_topk.c ---- */

/* The K-th largest magnitude's bits, and how many values of exactly that magnitude are kept. */
void aq_topk_threshold(const float *a, uint64_t values, uint64_t kept, uint32_t *threshold, uint64_t *ties);

struct aq_position_writer {
    const struct aq_codec_layout *layout;
    uint8_t *out;
    uint64_t count;
};
void aq_position_writer_init(struct aq_position_writer *writer, const struct aq_codec_layout *layout, uint8_t *out);
void aq_position_write(struct aq_position_writer *writer, uint64_t element); /* in increasing order */

struct aq_position_reader {
    const struct aq_codec_layout *layout;
    const uint8_t *in;
    uint64_t bit;   /* where in the bitmap the next look starts */
    uint64_t count; /* elements given */
};
bool aq_position_check(const struct aq_codec_layout *layout, const uint8_t *in); /* is this well-formed? */
void aq_position_reader_init(struct aq_position_reader *reader, const struct aq_codec_layout *layout,
                             const uint8_t *in);
uint64_t aq_position_read(struct aq_position_reader *reader); /* the next element; layout->values after the last */

/* ---- codec_batch.c ---- */

/* A GPU's kernels, as cuda_codec.h declares them. */
struct aq_codec_launchers {
    enum aq_status (*encode)(const struct aq_cuda_codec_plan *plan, const struct aq_cuda_codec_scratch *scratch,
                             const struct aq_cuda_codec_job *jobs, uint32_t count, struct aq_codec_result *results,
                             void *stream);
    enum aq_status (*decode)(const struct aq_cuda_codec_plan *plan, const struct aq_cuda_codec_scratch *scratch,
                             const struct aq_cuda_codec_job *jobs, uint32_t count, uint32_t *corrupt, void *stream);
    void *(*stream_of)(struct aq_device *device, struct aq_stream *stream); /* theirs; NULL is the device's own */
};

/* The description of a codec for the kernels. */
void aq_codec_plan_of(const struct aq_codec *codec, struct aq_cuda_codec_plan *out);

/* From now on these launchers code the codec's batches, with scratch of the codec's device. AQ_NOMEM. */
enum aq_status aq_codec_remote_open(struct aq_codec *codec, const struct aq_codec_launchers *launchers);
void aq_codec_remote_close(struct aq_codec *codec); /* does nothing without one */

/* ---- codec_encode.c, codec_decode.c ---- */

/* Rows [*first, *end) of a piece. */
static inline void aq_codec_piece(const struct aq_codec *codec, uint32_t piece, uint32_t *first, uint32_t *end)
{
    *first = piece * codec->piece_rows;
    *end = *first + codec->piece_rows < codec->rows ? *first + codec->piece_rows : codec->rows;
}

/* Run the pieces on the device's pool, or here without a pool. */
void aq_codec_run(const struct aq_codec *codec, void (*run)(uint32_t piece, void *context), void *context);

/* Elements that the scale `group` of a row covers: columns [*first, *end) (tile, row, tensor). */
static inline void aq_codec_span_of(const struct aq_codec *codec, uint32_t group, uint32_t *first, uint32_t *end)
{
    const uint32_t width = codec->config.group == AQ_PER_TILE ? codec->config.tile : codec->columns;
    *first = group * width;
    *end = codec->columns - *first > width ? *first + width : codec->columns;
}

/* Bytes of one sample's values, as floats, and of a row of m as it is stored. */
static inline size_t aq_codec_values_bytes(const struct aq_codec *codec)
{
    return (size_t)codec->layout.values * sizeof(float);
}

static inline size_t aq_codec_row_bytes(const struct aq_codec *codec)
{
    return (size_t)codec->columns * (aq_precision_bits(codec->store) / 8);
}

static inline enum aq_status aq_codec_corrupt(const char *what)
{
    return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: %s", what);
}

#endif
