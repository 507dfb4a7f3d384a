/*
 * grad_internal.h -- the seam behind aq_grad_encode and aq_grad_decode: a kind of codec is a row of grad_codecs.def and
 * one file; they share the runs of a range and a small table of kernels.
 *
 * A range falls into *runs*: the parts of its tensors, and between them padding. A kind is asked for the scales of a
 * run and codes or decodes all runs in order.
 *
 * The kernels are the truth in plain C (grad_kernels_plain.c) and two vector tables; all give the same bits, sums
 * included: a sum is 32 partial sums, lane i % 32, folded in one order. Parts that codecs of activations need too
 * (spans, quantizers, bit streams) are in codec/codec_internal.h.
 *
 * Locking: as grad_codec.h.
 */
#ifndef AQSGD_GRAD_GRAD_INTERNAL_H
#define AQSGD_GRAD_GRAD_INTERNAL_H

#include "aqsgd/grad_codec.h"
#include "codec_internal.h"

enum {
    AQ_GRAD_ROW = 512, /* floats that are worked on at a time by the quantizers: the first-level cache holds them */
};

/* The sum over the vector x + error that is computed while its signs become bits. */
enum aq_sign_sum { AQ_SIGN_NOTHING = 0, AQ_SIGN_ABS = 1, AQ_SIGN_SQUARE = 2 };

struct aq_grad_kernels {
    const char *name;
    /*
     * y = x + error, kept in error (error NULL: y = x, kept nowhere); bit i of bits = y >= 0, or y > 0 without ties_up.
     * bits: (n + 7) / 8 bytes, the rest of the last one 0. Returns the sum that is asked for.
     */
    float (*sign_pack)(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits);
    /* error = y - (+s or -s by the bit), in place. */
    void (*sign_error)(float *y, size_t n, const uint8_t *bits, float s);
    /* sum = (add ? sum : 0) + (+s or -s by the bit). */
    void (*sign_apply)(const uint8_t *bits, size_t n, float s, bool add, float *sum);
    /* error += x; and error = y - levels, where error may be y. */
    void (*take_error)(const float *x, size_t n, float *error);
    void (*leave_error)(const float *y, const float *levels, size_t n, float *error);
    /* sum = (add ? sum : 0) + weight * x. */
    void (*accumulate)(const float *x, size_t n, float weight, bool add, float *sum);
};

extern const struct aq_grad_kernels aq_grad_kernels_plain;
#if defined(__x86_64__)
extern const struct aq_grad_kernels aq_grad_kernels_avx2;
extern const struct aq_grad_kernels aq_grad_kernels_avx512;
#endif

/* The table of that name if this machine can run it, else NULL: "plain", "avx2", "avx512". */
const struct aq_grad_kernels *aq_grad_kernels_named(const char *name);
/* The best of what is used of this machine (aq_processor_used). */
const struct aq_grad_kernels *aq_grad_kernels_best(void);

struct aq_grad_run {
    uint64_t offset, count; /* from the range's first float */
    bool padding;           /* belongs to no tensor         */
};

struct aq_grad_codec {
    const struct aq_grad_kind *kind;
    struct aq_grad_codec_config config;
    struct aq_optimizer_tensor *tensors; /* those that are not empty */
    uint32_t tensor_count;
    uint64_t parameters;
    const struct aq_grad_kernels *kernels;
    const struct aq_codec_kernels *rows;
};

/* The cursor of a loop over the runs of [first, first + count). */
struct aq_grad_runs {
    const struct aq_grad_codec *codec;
    uint64_t first, end, at;
    uint32_t tensor;
};
void aq_grad_runs_init(struct aq_grad_runs *runs, const struct aq_grad_codec *codec, uint64_t first, uint64_t count);
bool aq_grad_runs_next(struct aq_grad_runs *runs, struct aq_grad_run *out); /* false: the range is at its end */

/* One call of encode or decode. */
struct aq_grad_range {
    uint64_t first, count;
    uint64_t step;
    uint8_t *scales; /* in the wire */
    uint8_t *codes;
};

/* Settings that a kind has in addition to its bits. */
enum {
    AQ_GRAD_HAS_BUCKET = 1,
    AQ_GRAD_HAS_GRID = 2,
    AQ_GRAD_HAS_SCALE = 4,
    AQ_GRAD_HAS_NORM = 8,
    AQ_GRAD_HAS_DENSITY = 16
};

struct aq_grad_kind {
    const char *name;
    uint32_t has; /* AQ_GRAD_HAS_* */
    uint32_t gpu; /* enum aq_cuda_grad_kind: its kernels; 0: none */
    bool lossy;
    bool needs_errors; /* is no choice without error feedback: it forgets every size */
    bool one_sided;    /* only workers code: the mean comes back in fp32, and no error is kept of it */
    bool mean_exact;   /* the mean comes back as it was, in the kind's bytes, and no error is kept of it */
    bool signs_alone;  /* sizes are nothing to it: a mean is added up with weight 1, so that ties are exact zeros */
    void (*config_default)(struct aq_grad_codec_config *out);
    enum aq_status (*config_check)(const struct aq_grad_codec_config *config);
    enum aq_codec_grid (*grid)(const struct aq_grad_codec_config *config); /* of kinds with levels, for kernels */
    uint32_t code_bits;      /* of one code; 0: the setting `bits` */
    enum aq_row_kind values; /* of the plain formats               */
    /* Of kinds with levels. The scale of n values of y; it defines the quantizer `quant`. False: y is not finite. */
    bool (*choose)(const struct aq_grad_codec *codec, const float *y, uint64_t n, float *scale);
    bool (*quantizer)(const struct aq_grad_codec *codec, float scale, struct aq_quant *quant);
    uint64_t (*scales)(const struct aq_grad_codec_config *config, uint64_t count); /* of a run of `count` values */
    /* Of kinds that do not code each value: bytes of the codes of a range. NULL: by the bits. */
    uint64_t (*code_bytes)(const struct aq_grad_codec *codec, uint64_t first, uint64_t count);
    void (*encode)(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x, float *error);
    enum aq_status (*decode)(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                             bool add, float *sum);
};

/*
 * `encode` and `decode` of kinds with levels, whose codes are made row by row, and of the plain formats, fp32, fp16 and
 * bf16: values as they are. See grad_codec_rows.c.
 */
void aq_grad_rows_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                         float *error);
enum aq_status aq_grad_rows_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                   bool add, float *sum);
void aq_grad_plain_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                          float *error);
enum aq_status aq_grad_plain_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                    bool add, float *sum);

static inline uint32_t aq_grad_code_bits(const struct aq_grad_codec *codec)
{
    return codec->kind->code_bits ? codec->kind->code_bits : codec->config.bits;
}

/* Settings that a kind has not; bits, bucket, 2..8. */
enum aq_status aq_grad_check_nothing(const struct aq_grad_codec_config *config);
enum aq_status aq_grad_check_bits(const struct aq_grad_codec_config *config);
enum aq_status aq_grad_check_bucket(const struct aq_grad_codec_config *config);
uint64_t aq_grad_scales_none(const struct aq_grad_codec_config *config, uint64_t count);
uint64_t aq_grad_scales_bucket(const struct aq_grad_codec_config *config, uint64_t count);

static inline void aq_grad_put_scale(uint8_t **at, float s)
{
    memcpy(*at, &s, sizeof s);
    *at += sizeof s;
}

static inline float aq_grad_get_scale(const uint8_t **at)
{
    float s;
    memcpy(&s, *at, sizeof s);
    *at += sizeof s;
    return s;
}

/* Scales that an encoder writes: not negative, finite. */
static inline bool aq_grad_scale_valid(float s)
{
    return aq_bits_of(s) < 0x7f800000u;
}

#define AQ_GRAD_CODEC(name) extern const struct aq_grad_kind aq_grad_codec_kind_##name;
#include "aqsgd/grad_codecs.def"

/* The first tensor that ends behind float `at`; tensor_count: none. */
uint32_t aq_grad_tensor_at(const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t at);

#endif
