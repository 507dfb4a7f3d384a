/*
 * cpu_rows.h -- the CPU's operations on one row or one flat range, as a table with a variant for each instruction set.
 *
 * cpu_rows_plain.c is the readable truth; cpu_rows_vector.inc.h is the same in vectors, compiled for AVX2 and for
 * AVX-512. Variants agree within a few units in the last place of each operation's largest operand
 * (tests/conform/conform_device.c has the limits), not bit for bit; on one machine one variant runs, so results are the
 * same bits every time.
 *
 * n counts elements; memory needs no alignment. `type` is the type behind a void pointer: float, bf16 or fp16.
 */
#ifndef AQ_CPU_ROWS_H
#define AQ_CPU_ROWS_H

#include "aqsgd/device_math.h"

/* The dropout mask of a row: elements offset, offset+1 ... of key's stream; factor = 1/(1-p) where kept, else 0. */
struct cpu_mask {
    const struct aq_rng_key *key; /* NULL: nothing is dropped */
    uint64_t offset;
    uint32_t threshold; /* kept where word >> 8 is at least this: p * 2^24 */
    float factor;
};

/* The parameters of batch normalization for its n columns, the same for every row; backward: the last two. */
struct cpu_columns {
    uint64_t n;
    bool relu;
    const float *mean, *rstd, *gamma, *beta;
    const float *mean_dy, *mean_dyh; /* of a group norm: of dy gamma, and of that times h */
};

/*
 * The taps of a causal convolution at one token: `count` rows of n inputs and of their weights, the oldest first.
 * z = bias + sum of w u, act(z) is z or SiLU. Gates and what is stored have the type.
 */
struct cpu_taps {
    uint64_t n, count;
    const float *u, *w;
    int64_t u_stride, w_stride;
    const float *bias; /* or NULL */
    bool silu;
    enum aq_element type;
};

struct cpu_rows {
    const char *name;
    void (*layernorm)(const void *x, enum aq_element x_type, const float *gamma, const float *beta, uint64_t n,
                      float epsilon, void *y, enum aq_element type, float *mean, float *rstd);
    void (*layernorm_backward)(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float mean,
                               float rstd, uint64_t n, float *dx, float *dgamma, float *dbeta);
    void (*rmsnorm)(const void *x, enum aq_element x_type, const float *gamma, uint64_t n, float plus, float epsilon,
                    void *y, enum aq_element y_type, float *rstd);
    void (*rmsnorm_backward)(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float plus,
                             float rstd, uint64_t n, float *dx, float *dgamma);
    /* 2 half columns turned by angles with these cosines and sign times these sines: see struct aq_rope. y may be x. */
    void (*rotate)(const void *x, enum aq_element x_type, const float *cosines, const float *sines, float sign,
                   uint64_t half, void *y, enum aq_element y_type);
    /* y = gate(g) u, and its backward; dg may be g, du u. */
    void (*gated)(enum aq_gate gate, uint64_t n, const void *g, const void *u, void *y, enum aq_element type);
    void (*gated_backward)(enum aq_gate gate, uint64_t n, const void *g, const void *u, const void *dy, void *dg,
                           void *du, enum aq_element type);
    /* The end of a matrix product, on one row of sums; see enum aq_matmul_after. bias may be NULL; c may be sums. */
    void (*finish)(enum aq_matmul_after after, uint64_t n, const float *sums, const float *bias, void *c,
                   enum aq_element type, void *other, const struct cpu_mask *mask);
    float (*max)(const float *x, uint64_t n);
    /* x = exp(x * scale - shift); returns the sum. */
    float (*exp_sum)(float *x, uint64_t n, float scale, float shift);
    /* y = n values of AQ_NF4_VALUES, two codes a byte, times scale: the same bits in every variant. */
    void (*nf4)(const uint8_t *codes, uint64_t n, float scale, void *y, enum aq_element type);
    /* y = x * factor */
    void (*scale)(const float *x, uint64_t n, float factor, void *y, enum aq_element type);
    /* x = cap tanh(x factor); its slope, from what it gave: dy *= factor (1 - (capped / cap)^2). */
    void (*cap)(float *x, uint64_t n, float factor, float cap);
    void (*cap_slope)(const float *capped, uint64_t n, float factor, float cap, float *dy);
    /*
     * p: scores in, weights exp(p * scale - lse) times mask out; dp: gradient of the masked weights in, of the scores
     * out.
     */
    void (*softmax_backward)(float *p, float *dp, uint64_t n, float scale, float lse, float delta,
                             const struct cpu_mask *mask);
    float (*dot)(const void *x, const void *y, enum aq_element type, uint64_t n);
    void (*add)(float *y, const void *x, enum aq_element type, uint64_t n); /* y += x */
    /* `count` rows of n, `stride` elements apart, and a vector: y[i] = x rows[i]; y += sum over i of x[i] rows[i]. */
    void (*dots)(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                 float *y);
    void (*combine)(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                    float *y);
    /* y = x times mask */
    void (*mask)(const float *x, uint64_t n, const struct cpu_mask *mask, void *y, enum aq_element type);
    double (*sum2)(const float *x, uint64_t n);
    /* y = x Phi(x), of `type`, or other + that, in fp32; dx = dy (Phi(x) + x phi(x)). */
    void (*gelu)(const void *x, uint64_t n, enum aq_element type, const float *other, void *y);
    void (*gelu_backward)(const void *x, const void *dy, uint64_t n, enum aq_element type, void *dx);
    /* y = a b, or a where b is NULL */
    void (*product)(const void *a, const void *b, enum aq_element type, uint64_t n, float *y);
    /* y = act(z) times gate; gate NULL: 1 */
    void (*taps)(const struct cpu_taps *of, const void *gate, void *y);
    /* dz, and dgate where neither it nor gate is NULL, from the gradient of y. */
    void (*taps_backward)(const struct cpu_taps *of, const void *gate, const void *dy, float *dz, void *dgate);
    /* sums of tap k, `stride` apart, += dz u[k] */
    void (*taps_sums)(const struct cpu_taps *of, const float *dz, float *sums, uint64_t stride);
    /*
     * One row of a batch norm (aq_batch_norm, aq_batch_norm_backward): sums of columns are added to; add, dz may be
     * NULL. These have the same bits in every variant: cpu_columns.inc.h.
     */
    void (*columns_sum)(const float *x, uint64_t n, double *sum);
    void (*columns_spread)(const float *x, const float *mean, uint64_t n, double *sum);
    void (*columns_norm)(const struct cpu_columns *of, const float *x, const float *add, float *y);
    void (*columns_back_sums)(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                              double *first, double *second);
    void (*columns_back)(const struct cpu_columns *of, const float *x, const float *add, const float *dy, float *dx,
                         float *dz);
    void (*columns_back_grouped)(const struct cpu_columns *of, const float *x, const float *add, const float *dy,
                                 float *dx, float *dz);
};

extern const struct cpu_rows cpu_rows_plain;
extern const struct cpu_rows cpu_rows_avx2;
extern const struct cpu_rows cpu_rows_avx512;
extern const struct cpu_rows cpu_rows_avx512bf16;

static inline float cpu_from_bf16(uint16_t x)
{
    union {
        uint32_t bits;
        float value;
    } u = {.bits = (uint32_t)x << 16};
    return u.value;
}

/* Nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline uint16_t cpu_to_bf16(float x)
{
    union {
        float value;
        uint32_t bits;
    } u = {.value = x};
    if (x != x) return (uint16_t)(u.bits >> 16 | 0x40);
    return (uint16_t)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
}

static inline float cpu_load(const void *x, enum aq_element type, uint64_t i)
{
    if (type == AQ_BF16) return cpu_from_bf16(((const uint16_t *)x)[i]);
    if (type == AQ_F16) return aq_half_to_float(((const uint16_t *)x)[i]);
    return ((const float *)x)[i];
}

static inline void cpu_store(void *x, enum aq_element type, uint64_t i, float value)
{
    if (type == AQ_BF16)
        ((uint16_t *)x)[i] = cpu_to_bf16(value);
    else if (type == AQ_F16)
        ((uint16_t *)x)[i] = aq_half_from_float(value);
    else
        ((float *)x)[i] = value;
}

/* An operand of a product as `compute` reads it. */
static inline float cpu_rounded(float value, enum aq_element compute)
{
    if (compute == AQ_BF16) return cpu_from_bf16(cpu_to_bf16(value));
    if (compute == AQ_F16) return aq_half_to_float(aq_half_from_float(value));
    return value;
}

static inline const void *cpu_at(const void *x, enum aq_element type, uint64_t i)
{
    return (const uint8_t *)x + i * aq_element_bytes(type);
}

static inline void *cpu_at_w(void *x, enum aq_element type, uint64_t i)
{
    return (uint8_t *)x + i * aq_element_bytes(type);
}

#endif
