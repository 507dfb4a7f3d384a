/*
 * device_math.h -- the mathematics that stages and optimizers are made of: a part of the device's table (device.h).
 *
 * Caveats first. Every function only enqueues on its stream (NULL: the device's own); operands are borrowed until the
 * stream has passed. Pointers are device memory unless a comment says host. Nothing here allocates: scratch memory of
 * fixed size is taken when the device is opened (aq_device_scratch_bytes).
 *
 * Results do not depend on the number of threads: an element is computed by one piece of work, in one order, and the
 * pieces are cut by the operands' extents alone. On one machine a result is therefore the same bits every time.
 *
 * Every kernel has a plain C truth (device/cpu: cpu_rows_plain.c, cpu_gemm_plain.c). The best variant of the processor
 * is taken, or what AQ_CPU asks for (aqsgd/base/processor.h).
 *
 * An operation is a struct of arguments here and a row of math.def; to add one, see docs/ARCHITECTURE.md.
 *
 * Letters: rows = samples * T; C channels; H heads; D = C / H; V vocabulary.
 * bf16 values are uint16_t, the upper half of a float, rounded to nearest even; fp16 values are uint16_t too, IEEE
 * binary16, rounded so, and infinite beyond 65504: an overflow is never hidden.
 *
 * Locking: as device.h says, one thread at a time.
 */
#ifndef AQSGD_DEVICE_MATH_H
#define AQSGD_DEVICE_MATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum aq_element {
    AQ_F32 = 0,
    AQ_BF16 = 1,
    AQ_TF32 = 2, /* of a product's compute alone: fp32 operands, of which a GPU may use the first 10 bits of mantissa */
    AQ_F16 = 3
};

static inline size_t aq_element_bytes(enum aq_element type)
{
    return type == AQ_BF16 || type == AQ_F16 ? 2 : 4;
}

/*
 * Dropout: an element is kept with probability 1 - p and divided by that. Word `offset + element` of the stream of the
 * sample's key decides, so that a mask depends on the sample alone, not on the micro-batch or cut it came in.
 */
struct aq_dropout {
    float probability;             /* 0: none; below 1                                                */
    const struct aq_rng_key *keys; /* one for each sample, device memory; NULL where probability is 0 */
};

/* What a matrix product does with its sums before they leave the registers' neighbourhood. */
enum aq_matmul_after {
    AQ_AFTER_NONE = 0,
    AQ_AFTER_GELU = 1,          /* other = sum + bias (kept for backward), c = gelu(other)             */
    AQ_AFTER_GELU_BACKWARD = 2, /* c = sum * gelu'(other)                                              */
    AQ_AFTER_RESIDUAL = 3       /* c = other + dropout(sum + bias)                                     */
};

/*
 * c = after(op(a) op(b) + bias), or c += op(a) op(b). Row-major; strides in elements. op(a) is M x K: stored so, or as
 * K x M where a_transposed; op(b) is K x N likewise. compute AQ_BF16 or AQ_F16 rounds both operands to it; sums are in
 * fp32. `other` has c's shape and stride, and c's type (fp32 for AFTER_RESIDUAL). accumulate wants c in fp32, no bias
 * and AQ_AFTER_NONE. c overlaps nothing but, element for element, `other`.
 *
 * bias_rounded: the bias once more, in c's 16 bits, or NULL. A GPU's library adds a bias to 16 bits in the product
 * itself only where it has their type; without it there is a second pass. The CPU adds the fp32 one.
 */
struct aq_matmul {
    uint64_t M, N, K;
    const void *a, *b;
    uint64_t a_stride, b_stride, c_stride;
    enum aq_element a_type, b_type, c_type;
    enum aq_element compute;
    bool a_transposed, b_transposed;
    bool accumulate;
    enum aq_matmul_after after;
    void *c;
    const float *bias; /* N, or NULL */
    const uint16_t *bias_rounded;
    void *other;
    struct aq_dropout dropout;    /* AFTER_RESIDUAL                                                     */
    uint64_t dropout_sample_rows; /* rows of c that belong to one sample                                */
};

/* y = (x - mean) rstd gamma + beta, row by row; variance of the population, epsilon added before the root. */
struct aq_layernorm {
    uint64_t rows, C;
    float epsilon;
    const float *x, *gamma, *beta;
    void *y;
    enum aq_element y_type;
    float *mean, *rstd; /* rows; out in forward, in in backward */
};

/*
 * dx += gradient (dx holds the residual's), dgamma += , dbeta += , each of the two where it is not NULL. What the
 * products of the next layer back want comes along, where it is asked for: rounded, dx in 16 bits, and sums[c] += the
 * sum over rows of `rounded` (of dx, where it is NULL), as aq_device_column_sum.
 */
struct aq_layernorm_backward {
    uint64_t rows, C;
    const float *dy, *x, *gamma, *mean, *rstd;
    float *dx, *dgamma, *dbeta;
    uint16_t *rounded;            /* or NULL */
    enum aq_element rounded_type; /* AQ_BF16 or AQ_F16 */
    float *sums;                  /* or NULL */
};

/*
 * Causal attention of `samples` sequences of T tokens. A row of qkv is q, k and v of all heads, H*D each; out has H*D.
 * lse is the log of the sum of exponentials of (sample, head, token), kept for backward; no T x T matrix outlives a
 * block of rows. Dropout on the weights: element (h * T_mask + query) * T_mask + key. T_mask >= T keeps a mask when T
 * is cut short. Where the type has 16 bits, backward gives dqkv in them, in dqkv_rounded, if that is not NULL; then
 * dqkv is memory to work in and may hold anything afterwards.
 */
struct aq_attention {
    uint64_t samples, T, H, D, T_mask;
    enum aq_element type; /* of qkv, out and dout, and of the products; dqkv is fp32 always */
    const void *qkv;
    void *out;
    float *lse;
    struct aq_dropout dropout;
    const void *dout; /* backward only, as dqkv */
    float *dqkv;
    uint16_t *dqkv_rounded;
};

/*
 * x[row] = token_table[tokens[row]] + position_table[row % T], then dropout. tokens are in range (checked by the
 * caller).
 */
struct aq_embedding {
    uint64_t samples, T, C;
    uint64_t V;
    const int32_t *tokens; /* device */
    const float *token_table, *position_table;
    float *x;
    struct aq_dropout dropout;
};

/*
 * token_gradient[tokens[row]] += dropout'(dx[row]), position_gradient[row % T] += the same, rows in ascending order;
 * each where it is not NULL.
 */
struct aq_embedding_backward {
    uint64_t samples, T, C;
    uint64_t V;
    const int32_t *tokens;
    const float *dx;
    float *token_gradient, *position_gradient;
    struct aq_dropout dropout;
};

/*
 * Softmax and cross-entropy of rows of V logits (words of a vocabulary, classes of an image), which are used up.
 * losses[row] = log(sum exp) - logit[target] in nats, 0 where the target is -1. With gradient != NULL also
 * gradient[row][v] = scale * (softmax - one at the target), 0 where the target is -1; it may be logits itself, or an
 * array of 16 bits that starts at the same byte with twice the stride; columns V..stride-1 become 0.
 */
struct aq_cross_entropy {
    uint64_t rows, V;
    float *logits;
    uint64_t logits_stride;
    const int32_t *targets; /* device */
    float *losses;
    void *gradient;
    uint64_t gradient_stride;
    enum aq_element gradient_type;
    float scale;
};

/* sums[c] += sum over rows of x[row][c], rows in ascending order. */
struct aq_column_sum {
    uint64_t rows, C, stride;
    const void *x;
    enum aq_element type;
    float *sums;
};

/* y = dropout(x) of (samples, sample_elements), as type; with probability 0 a copy or conversion. */
struct aq_dropout_apply {
    uint64_t samples, sample_elements;
    const float *x;
    void *y;
    enum aq_element y_type;
    struct aq_dropout dropout;
};

/* x = std * normal(key, element) for `count` elements; std 0 with a value: x = value. */
struct aq_fill_normal {
    float *x;
    uint64_t count;
    struct aq_rng_key key;
    float std, value;
};

/* y = max(x, 0); what is not a number stays so. y may be x. */
struct aq_relu {
    uint64_t count;
    const float *x;
    float *y;
};

/* dx = dy where y (forward's) is above 0, else 0. dx may be dy. */
struct aq_relu_backward {
    uint64_t count;
    const float *y, *dy;
    float *dx;
};

/*
 * Batch normalization of a rows x C matrix, column by column (Ioffe and Szegedy 2015, Algorithms 1 and 2; an image's
 * rows are its samples' pixels):
 *
 *     y = (x - mean) rstd gamma + beta,   rstd = 1 / sqrt(variance + epsilon)
 *
 * training: mean and variance (of the population) are those of this call, are kept in mean and rstd for backward, and
 * move the running ones, where they are not NULL, as PyTorch's do: running += momentum (this call's - running), with
 * the variance of the sample, rows / (rows - 1) times the population's (rows 1: the population's, 0). Not training:
 * the running ones are taken, and nothing is written but y. y may be x only where no backward follows.
 */
struct aq_batch_norm {
    uint64_t rows, C;
    bool training;
    float epsilon, momentum;
    const float *x, *gamma, *beta;
    float *y;
    float *mean, *rstd;                     /* C; training */
    float *running_mean, *running_variance; /* C; or NULL in training */
};

/* dx is written, dgamma and dbeta, where not NULL, are added to; of a forward in training. dx may be dy. */
struct aq_batch_norm_backward {
    uint64_t rows, C;
    const float *x, *dy, *gamma, *mean, *rstd;
    float *dx, *dgamma, *dbeta;
};

/* index[row] = the column of the row's largest value, the first of equal ones: the class that logits predict. */
struct aq_argmax {
    uint64_t rows, C, stride;
    const float *x;
    int32_t *index;
};

/* x *= factor. What is not finite stays so. */
struct aq_scale {
    float *x;
    uint64_t count;
    float factor;
};

/*
 * The functions themselves, aq_device_NAME(device, args, stream): math.def has a row for each, and says what must hold
 * of its arguments. NAME is the struct's, with these exceptions: aq_device_dropout takes struct aq_dropout_apply,
 * aq_device_attention_backward struct aq_attention.
 */
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status aq_device_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream);
#include "aqsgd/math.def"

/* Bytes of scratch that a device of so many threads takes when it is opened. */
uint64_t aq_device_scratch_bytes(const struct aq_device *device);

/* Elements `first` to first + count - 1 of an array. */
struct aq_range {
    uint64_t first, count;
};

/*
 * sums[i] (host, valid at return: waits for the stream, once) = sum of the squares of spans[i] of x, in double, in an
 * order that its count alone gives.
 */
enum aq_status aq_device_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                                 double *sums, struct aq_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
