/*
 * cpu_rows_vector.inc.h -- the row kernels in vectors; included by cpu_rows_avx2.c, cpu_rows_avx512.c and
 * cpu_rows_avx512bf16.c, each of which is compiled for its instruction set and names the table. The readable truth is
 * cpu_rows_plain.c.
 */
#include <math.h>

#include "cpu_vector.h"

#define EACH(i, n) for (uint64_t i = 0; i < (n); i += LANES)

/*
 * Mask factors of LANES*4 elements from a multiple of 4: lane l makes Philox block first/4 + l, whose four words belong
 * to elements 4l .. 4l+3. As aq_rng_block, with the rounds in vectors.
 */
static void mask_block(const struct cpu_mask *mask, uint64_t first, float factors[4 * LANES])
{
    const uint64_t block = first / 4;
    vi c0 = vi_add(vi_set((uint32_t)block), vi_lanes()), c1 = vi_set((uint32_t)(block >> 32));
    vi c2 = vi_set(mask->key->counter[0]), c3 = vi_set(mask->key->counter[1]);
    uint32_t k0 = mask->key->key[0], k1 = mask->key->key[1];
    for (int round = 0; round < 10; round++) {
        vi low0, high0, low1, high1;
        vi_mul(c0, vi_set(0xD2511F53u), &low0, &high0);
        vi_mul(c2, vi_set(0xCD9E8D57u), &low1, &high1);
        c0 = vi_xor(vi_xor(high1, c1), vi_set(k0));
        c2 = vi_xor(vi_xor(high0, c3), vi_set(k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint32_t words[4][LANES];
    vi_store(words[0], c0);
    vi_store(words[1], c1);
    vi_store(words[2], c2);
    vi_store(words[3], c3);
    for (int lane = 0; lane < LANES; lane++)
        for (int word = 0; word < 4; word++)
            factors[4 * lane + word] = words[word][lane] >> 8 >= mask->threshold ? mask->factor : 0.0f;
}

/*
 * Factors of elements [offset, offset + n), n at most MASK_CHUNK. The low word of a block number may wrap inside a
 * chunk.
 */
enum { MASK_CHUNK = 256 };
static void mask_factors(const struct cpu_mask *mask, uint64_t offset, uint64_t n, float *factors)
{
    float part[4 * LANES];
    for (uint64_t at = offset; at < offset + n;) {
        const uint64_t start = at / 4 * 4, end = start + 4 * LANES < offset + n ? start + 4 * LANES : offset + n;
        if ((uint32_t)(start / 4) > UINT32_MAX - LANES) {
            for (uint64_t i = at; i < end; i++)
                factors[i - offset] = aq_rng_u32(mask->key, i) >> 8 >= mask->threshold ? mask->factor : 0.0f;
        } else {
            mask_block(mask, start, part);
            memcpy(factors + (at - offset), part + (at - start), (end - at) * sizeof *factors);
        }
        at = end;
    }
}

static void layernorm(const void *x, enum aq_element x_type, const float *gamma, const float *beta, uint64_t n,
                      float epsilon, void *y, enum aq_element type, float *mean_out, float *rstd_out)
{
    vf sum = v_set(0.0f), sum2 = v_set(0.0f);
    EACH(i, n) sum = v_add(sum, v_load_as(x, x_type, i, n - i));
    const float mean = (float)(v_sum_double(sum) / (double)n);
    const vf middle = v_set(mean);
    const uint64_t whole = n / LANES * LANES;
    EACH(i, whole)
    {
        const vf d = v_sub(v_load_as(x, x_type, i, LANES), middle);
        sum2 = v_fma(d, d, sum2);
    }
    double spread = v_sum_double(sum2);
    for (uint64_t i = whole; i < n; i++) {
        const float d = cpu_load(x, x_type, i) - mean;
        spread += (double)d * d;
    }
    const float rstd = (float)(1.0 / sqrt(spread / (double)n + epsilon));
    const vf factor = v_set(rstd);
    EACH(i, n)
    {
        const vf h = v_mul(v_sub(v_load_as(x, x_type, i, n - i), middle), factor);
        const vf moved = beta ? v_load(beta + i, n - i) : v_set(0.0f);
        v_store_as(y, type, i, v_fma(h, v_load(gamma + i, n - i), moved), n - i);
    }
    *mean_out = mean;
    *rstd_out = rstd;
}

static void layernorm_backward(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float mean,
                               float rstd, uint64_t n, float *dx, float *dgamma, float *dbeta)
{
    vf sum_g = v_set(0.0f), sum_gh = v_set(0.0f);
    const vf middle = v_set(mean), factor = v_set(rstd);
    EACH(i, n)
    {
        /* beyond n, g is 0 and adds nothing */
        const vf g = v_mul(v_load(dy + i, n - i), v_load(gamma + i, n - i));
        const vf h = v_mul(v_sub(v_load_as(x, x_type, i, n - i), middle), factor);
        sum_g = v_add(sum_g, g);
        sum_gh = v_fma(g, h, sum_gh);
    }
    const vf mean_g = v_set((float)(v_sum_double(sum_g) / (double)n));
    const vf mean_gh = v_set((float)(v_sum_double(sum_gh) / (double)n));
    EACH(i, n)
    {
        const uint64_t left = n - i;
        const vf d = v_load(dy + i, left), h = v_mul(v_sub(v_load_as(x, x_type, i, left), middle), factor);
        v_store(dgamma + i, v_fma(d, h, v_load(dgamma + i, left)), left);
        v_store(dbeta + i, v_add(d, v_load(dbeta + i, left)), left);
        const vf g = v_sub(v_fma(d, v_load(gamma + i, left), v_sub(v_set(0.0f), mean_g)), v_mul(h, mean_gh));
        v_store(dx + i, v_fma(factor, g, v_load(dx + i, left)), left);
    }
}

static void rmsnorm(const void *x, enum aq_element x_type, const float *gamma, uint64_t n, float plus, float epsilon,
                    void *y, enum aq_element y_type, float *rstd_out)
{
    vf sum2 = v_set(0.0f);
    EACH(i, n)
    {
        const vf value = v_load_as(x, x_type, i, n - i);
        sum2 = v_fma(value, value, sum2);
    }
    const float rstd = (float)(1.0 / sqrt(v_sum_double(sum2) / (double)n + epsilon));
    const vf factor = v_set(rstd), more = v_set(plus);
    EACH(i, n)
    {
        const vf h = v_mul(v_load_as(x, x_type, i, n - i), factor);
        v_store_as(y, y_type, i, v_mul(h, v_add(more, v_load(gamma + i, n - i))), n - i);
    }
    *rstd_out = rstd;
}

static void rmsnorm_backward(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float plus,
                             float rstd, uint64_t n, float *dx, float *dgamma)
{
    const vf factor = v_set(rstd), more = v_set(plus);
    vf sum_gh = v_set(0.0f);
    EACH(i, n)
    {
        const vf g = v_mul(v_load(dy + i, n - i), v_add(more, v_load(gamma + i, n - i)));
        sum_gh = v_fma(g, v_mul(v_load_as(x, x_type, i, n - i), factor), sum_gh);
    }
    const vf mean_gh = v_set((float)(v_sum_double(sum_gh) / (double)n));
    EACH(i, n)
    {
        const uint64_t left = n - i;
        const vf d = v_load(dy + i, left), h = v_mul(v_load_as(x, x_type, i, left), factor);
        const vf g = v_mul(d, v_add(more, v_load(gamma + i, left)));
        v_store(dgamma + i, v_fma(d, h, v_load(dgamma + i, left)), left);
        v_store(dx + i, v_fma(factor, v_fnma(h, mean_gh, g), v_load(dx + i, left)), left);
    }
}

static void rotate(const void *x, enum aq_element x_type, const float *cosines, const float *sines, float sign,
                   uint64_t half, void *y, enum aq_element y_type)
{
    const vf turn = v_set(sign);
    EACH(i, half)
    {
        const uint64_t left = half - i;
        const vf a = v_load_as(x, x_type, i, left), b = v_load_as(x, x_type, half + i, left);
        const vf cosine = v_load(cosines + i, left), sine = v_mul(turn, v_load(sines + i, left));
        v_store_as(y, y_type, i, v_fnma(b, sine, v_mul(a, cosine)), left);
        v_store_as(y, y_type, half + i, v_fma(a, sine, v_mul(b, cosine)), left);
    }
}

/* x/2 (1 + tanh(z)) = x s with s = 1 / (1 + e^(-2z)), z = sqrt(2/pi) (x + 0.044715 x^3) */
static inline vf gelu_gate(vf x, vf x2)
{
    const vf z2 = v_mul(x, v_fma(v_mul(x2, v_set(0.044715f)), v_set(1.5957691216057308f), v_set(1.5957691216057308f)));
    return v_inverse(v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), z2))));
}

static inline vf gelu(vf x)
{
    return v_mul(x, gelu_gate(x, v_mul(x, x)));
}

/* s + x s (1 - s) 2 z', 2 z' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2) */
static inline vf gelu_slope(vf x)
{
    const vf x2 = v_mul(x, x), s = gelu_gate(x, x2);
    const vf slope = v_fma(v_mul(x2, v_set(0.134145f)), v_set(1.5957691216057308f), v_set(1.5957691216057308f));
    return v_fma(v_mul(v_mul(x, s), v_sub(v_set(1.0f), s)), slope, s);
}

/*
 * Of the normal distribution at x: *beyond = 2 Phi(-|x|), by Abramowitz and Stegun 1964, 7.1.26 (1.5e-7 apart at most),
 * and e^(-x^2/2), which it has for nothing.
 */
static inline vf normal_beyond(vf x, vf size, vf *beyond)
{
    const vf e = v_exp(v_mul(v_mul(x, x), v_set(-0.5f)));
    const vf t = v_div(v_set(1.0f), v_fma(size, v_set(0.3275911f * 0.7071067811865476f), v_set(1.0f)));
    vf p = v_set(1.061405429f);
    p = v_fma(p, t, v_set(-1.453152027f));
    p = v_fma(p, t, v_set(1.421413741f));
    p = v_fma(p, t, v_set(-0.284496736f));
    p = v_fma(p, t, v_set(0.254829592f));
    *beyond = v_mul(v_mul(p, t), e);
    return e;
}

static inline vf size_of(vf x)
{
    return v_max(v_sub(v_set(0.0f), x), x); /* in this order a NaN stays */
}

/* x Phi(x) = max(x, 0) - |x| Phi(-|x|) */
static inline vf gelu_normal(vf x)
{
    const vf size = size_of(x);
    vf beyond;
    (void)normal_beyond(x, size, &beyond);
    return v_fnma(v_mul(size, v_set(0.5f)), beyond, v_max(v_set(0.0f), x));
}

/* Phi(x) + x phi(x), Phi(x) = (1 + s (1 - 2 Phi(-|x|))) / 2, s the sign of x */
static inline vf gelu_normal_slope(vf x)
{
    const vf size = size_of(x), half = v_set(0.5f);
    vf beyond;
    const vf density = v_mul(normal_beyond(x, size, &beyond), v_set(0.3989422804014327f));
    const vf sign = v_div(x, v_max(v_set(1e-30f), size));
    return v_fma(x, density, v_fma(v_mul(sign, half), v_sub(v_set(1.0f), beyond), half));
}

static void gelu_exact(const void *x, uint64_t n, enum aq_element type, const float *other, void *y)
{
    EACH(i, n)
    {
        const uint64_t left = n - i;
        const vf gated = gelu_normal(v_load_as(x, type, i, left));
        if (other)
            v_store((float *)y + i, v_add(v_load(other + i, left), gated), left);
        else
            v_store_as(y, type, i, gated, left);
    }
}

static void gelu_exact_backward(const void *x, const void *dy, uint64_t n, enum aq_element type, void *dx)
{
    EACH(i, n)
    {
        const uint64_t left = n - i;
        const vf slope = gelu_normal_slope(v_load_as(x, type, i, left));
        v_store_as(dx, type, i, v_mul(v_load_as(dy, type, i, left), slope), left);
    }
}

/* 1 / (1 + e^-x) */
static inline vf silu_gate(vf x)
{
    return v_inverse(v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x))));
}

static inline vf gate_open(enum aq_gate gate, vf x)
{
    if (gate == AQ_GATE_GELU_EXACT) return gelu_normal(x);
    return gate == AQ_GATE_GELU ? gelu(x) : v_mul(x, silu_gate(x));
}

static inline vf gate_slope(enum aq_gate gate, vf x, vf s)
{
    const vf one = v_set(1.0f);
    if (gate == AQ_GATE_GELU_EXACT) return gelu_normal_slope(x);
    return gate == AQ_GATE_GELU ? gelu_slope(x) : v_mul(s, v_fma(x, v_sub(one, s), one));
}

static void gated(enum aq_gate gate, uint64_t n, const void *g, const void *u, void *y, enum aq_element type)
{
    EACH(i, n)
    {
        const vf x = v_load_as(g, type, i, n - i);
        v_store_as(y, type, i, v_mul(gate_open(gate, x), v_load_as(u, type, i, n - i)), n - i);
    }
}

static void gated_backward(enum aq_gate gate, uint64_t n, const void *g, const void *u, const void *dy, void *dg,
                           void *du, enum aq_element type)
{
    EACH(i, n)
    {
        const uint64_t left = n - i;
        const vf x = v_load_as(g, type, i, left), d = v_load_as(dy, type, i, left), s = silu_gate(x);
        const vf open = gate == AQ_GATE_SILU ? v_mul(x, s) : gate_open(gate, x), slope = gate_slope(gate, x, s);
        const vf up = v_load_as(u, type, i, left);
        v_store_as(dg, type, i, v_mul(v_mul(d, up), slope), left);
        v_store_as(du, type, i, v_mul(d, open), left);
    }
}

static void finish_residual(uint64_t n, const float *sums, const float *bias, void *c, enum aq_element type,
                            const void *other, const struct cpu_mask *mask)
{
    float factors[MASK_CHUNK];
    for (uint64_t first = 0; first < n; first += MASK_CHUNK) {
        const uint64_t count = n - first < MASK_CHUNK ? n - first : MASK_CHUNK;
        if (mask->key) mask_factors(mask, mask->offset + first, count, factors);
        EACH(k, count)
        {
            const uint64_t i = first + k, left = count - k;
            vf sum = v_load(sums + i, left);
            if (bias) sum = v_add(sum, v_load(bias + i, left));
            if (mask->key) sum = v_mul(sum, v_load(factors + k, left));
            v_store_as(c, type, i, v_add(v_load_as(other, type, i, left), sum), left);
        }
    }
}

static void finish(enum aq_matmul_after after, uint64_t n, const float *sums, const float *bias, void *c,
                   enum aq_element type, void *other, const struct cpu_mask *mask)
{
    if (after == AQ_AFTER_RESIDUAL) {
        finish_residual(n, sums, bias, c, type, other, mask);
        return;
    }
    EACH(i, n)
    {
        const uint64_t left = n - i;
        vf sum = v_load(sums + i, left);
        if (bias) sum = v_add(sum, v_load(bias + i, left));
        if (after == AQ_AFTER_GELU) {
            v_store_as(other, type, i, sum, left);
            sum = gelu(sum);
        } else if (after == AQ_AFTER_GELU_BACKWARD) {
            sum = v_mul(sum, gelu_slope(v_load_as(other, type, i, left)));
        }
        v_store_as(c, type, i, sum, left);
    }
}

static float max(const float *x, uint64_t n)
{
    const uint64_t whole = n / LANES * LANES;
    vf top = v_set(-INFINITY);
    EACH(i, whole) top = v_max(v_load(x + i, LANES), top);
    float result = v_top(top);
    for (uint64_t i = whole; i < n; i++) result = x[i] > result ? x[i] : result;
    return result;
}

static float exp_sum(float *x, uint64_t n, float factor, float shift)
{
    const uint64_t whole = n / LANES * LANES, left = n - whole;
    const vf f = v_set(factor), s = v_set(-shift);
    vf sum = v_set(0.0f);
    EACH(i, whole)
    {
        const vf e = v_exp(v_fma(v_load(x + i, LANES), f, s));
        v_store(x + i, e, LANES);
        sum = v_add(sum, e);
    }
    double total = v_sum_double(sum);
    if (left) {
        float part[LANES];
        v_store(part, v_exp(v_fma(v_load(x + whole, left), f, s)), LANES);
        for (uint64_t i = 0; i < left; i++) total += part[i];
        memcpy(x + whole, part, left * sizeof *x);
    }
    return (float)total;
}

static void nf4(const uint8_t *codes, uint64_t n, float scale, void *y, enum aq_element type)
{
    const struct v_table16 table = v_table16();
    const vf s = v_set(scale);
    EACH(i, n) v_store_as(y, type, i, v_mul(v_look_up(&table, codes + i / 2, n - i), s), n - i);
}

static void scale(const float *x, uint64_t n, float factor, void *y, enum aq_element type)
{
    const vf f = v_set(factor);
    EACH(i, n) v_store_as(y, type, i, v_mul(v_load(x + i, n - i), f), n - i);
}

static void cap_apply(float *x, uint64_t n, float factor, float cap)
{
    EACH(i, n) v_store(x + i, v_mul(v_set(cap), v_tanh(v_mul(v_load(x + i, n - i), v_set(factor)))), n - i);
}

static void cap_slope(const float *capped, uint64_t n, float factor, float cap, float *dy)
{
    EACH(i, n)
    {
        const vf t = v_mul(v_load(capped + i, n - i), v_set(1.0f / cap));
        const vf slope = v_mul(v_set(factor), v_fnma(t, t, v_set(1.0f)));
        v_store(dy + i, v_mul(v_load(dy + i, n - i), slope), n - i);
    }
}

static void softmax_backward(float *p, float *dp, uint64_t n, float factor, float lse, float delta,
                             const struct cpu_mask *mask)
{
    float factors[MASK_CHUNK];
    const bool masked = mask && mask->key;
    for (uint64_t first = 0; first < n; first += MASK_CHUNK) {
        const uint64_t count = n - first < MASK_CHUNK ? n - first : MASK_CHUNK;
        if (masked) mask_factors(mask, mask->offset + first, count, factors);
        EACH(k, count)
        {
            const uint64_t i = first + k, left = count - k;
            const vf weight = v_exp(v_fma(v_load(p + i, left), v_set(factor), v_set(-lse)));
            const vf kept = masked ? v_load(factors + k, left) : v_set(1.0f);
            const vf d = v_sub(v_mul(v_load(dp + i, left), kept), v_set(delta));
            v_store(p + i, v_mul(weight, kept), left);
            v_store(dp + i, v_mul(v_mul(weight, d), v_set(factor)), left);
        }
    }
}

static float dot(const void *x, const void *y, enum aq_element type, uint64_t n)
{
    vf sum = v_set(0.0f);
    EACH(i, n) sum = v_fma(v_load_as(x, type, i, n - i), v_load_as(y, type, i, n - i), sum);
    return (float)v_sum_double(sum);
}

static void add(float *y, const void *x, enum aq_element type, uint64_t n)
{
    EACH(i, n) v_store(y + i, v_add(v_load(y + i, n - i), v_load_as(x, type, i, n - i)), n - i);
}

/* Four rows at once: sums that do not wait for each other, and one load of x. */
static inline void dots_of(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n,
                           uint64_t count, float *y)
{
    const uint64_t whole = n / LANES * LANES, left = n - whole;
    uint64_t r = 0;
    for (; r + 4 <= count; r += 4) {
        const uint64_t a = r * stride, b = a + stride, c = b + stride, d = c + stride;
        vf sum0 = v_set(0.0f), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        for (uint64_t i = 0; i < n; i += LANES) {
            const uint64_t some = i < whole ? LANES : left;
            const vf v = v_load(x + i, some);
            sum0 = v_fma(v, v_load_as(rows, type, a + i, some), sum0);
            sum1 = v_fma(v, v_load_as(rows, type, b + i, some), sum1);
            sum2 = v_fma(v, v_load_as(rows, type, c + i, some), sum2);
            sum3 = v_fma(v, v_load_as(rows, type, d + i, some), sum3);
        }
        y[r] = (float)v_sum_double(sum0);
        y[r + 1] = (float)v_sum_double(sum1);
        y[r + 2] = (float)v_sum_double(sum2);
        y[r + 3] = (float)v_sum_double(sum3);
    }
    for (; r < count; r++) {
        vf sum = v_set(0.0f);
        EACH(i, n) sum = v_fma(v_load(x + i, n - i), v_load_as(rows, type, r * stride + i, n - i), sum);
        y[r] = (float)v_sum_double(sum);
    }
}

static void dots(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                 float *y)
{
    if (type == AQ_BF16) dots_of(x, rows, stride, AQ_BF16, n, count, y);
    else if (type == AQ_F16) dots_of(x, rows, stride, AQ_F16, n, count, y);
    else dots_of(x, rows, stride, AQ_F32, n, count, y);
}

/* An element's sum goes row after row, however many there are; four rows at once spare loads and stores of y. */
static inline void combine_of(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n,
                              uint64_t count, float *y)
{
    const uint64_t whole = n / LANES * LANES, left = n - whole;
    uint64_t r = 0;
    for (; r + 4 <= count; r += 4) {
        const uint64_t a = r * stride, b = a + stride, c = b + stride, d = c + stride;
        const vf x0 = v_set(x[r]), x1 = v_set(x[r + 1]), x2 = v_set(x[r + 2]), x3 = v_set(x[r + 3]);
        for (uint64_t i = 0; i < n; i += LANES) {
            const uint64_t some = i < whole ? LANES : left;
            vf sum = v_fma(x0, v_load_as(rows, type, a + i, some), v_load(y + i, some));
            sum = v_fma(x1, v_load_as(rows, type, b + i, some), sum);
            sum = v_fma(x2, v_load_as(rows, type, c + i, some), sum);
            v_store(y + i, v_fma(x3, v_load_as(rows, type, d + i, some), sum), some);
        }
    }
    for (; r < count; r++) {
        const vf value = v_set(x[r]);
        EACH(i, n)
        v_store(y + i, v_fma(value, v_load_as(rows, type, r * stride + i, n - i), v_load(y + i, n - i)), n - i);
    }
}

static void combine(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                    float *y)
{
    if (type == AQ_BF16) combine_of(x, rows, stride, AQ_BF16, n, count, y);
    else if (type == AQ_F16) combine_of(x, rows, stride, AQ_F16, n, count, y);
    else combine_of(x, rows, stride, AQ_F32, n, count, y);
}

static void mask_apply(const float *x, uint64_t n, const struct cpu_mask *mask, void *y, enum aq_element type)
{
    float factors[MASK_CHUNK];
    for (uint64_t first = 0; first < n; first += MASK_CHUNK) {
        const uint64_t count = n - first < MASK_CHUNK ? n - first : MASK_CHUNK;
        mask_factors(mask, mask->offset + first, count, factors);
        EACH(k, count)
        {
            const vf value = v_mul(v_load(x + first + k, count - k), v_load(factors + k, count - k));
            v_store_as(y, type, first + k, value, count - k);
        }
    }
}

/* Squares in float, sums of up to 64 squares a lane in float, then in double. */
static double sum2(const float *x, uint64_t n)
{
    double total = 0.0;
    for (uint64_t first = 0; first < n; first += 64 * LANES) {
        const uint64_t count = n - first < 64 * LANES ? n - first : 64 * LANES;
        vf sum = v_set(0.0f);
        EACH(i, count)
        {
            const vf value = v_load(x + first + i, count - i);
            sum = v_fma(value, value, sum);
        }
        total += v_sum_double(sum);
    }
    return total;
}

static void product(const void *a, const void *b, enum aq_element type, uint64_t n, float *y)
{
    EACH(i, n)
    {
        const vf value = v_load_as(a, type, i, n - i);
        v_store(y + i, b ? v_mul(value, v_load_as(b, type, i, n - i)) : value, n - i);
    }
}

static inline vf taps_sum(const struct cpu_taps *of, uint64_t i, uint64_t left)
{
    vf z = of->bias ? v_load(of->bias + i, left) : v_set(0.0f);
    const float *u = of->u + i, *w = of->w + i;
    for (uint64_t k = 0; k < of->count; k++, u += of->u_stride, w += of->w_stride)
        z = v_fma(v_load(w, left), v_load(u, left), z);
    return z;
}

static void taps(const struct cpu_taps *of, const void *gate, void *y)
{
    EACH(i, of->n)
    {
        const uint64_t left = of->n - i;
        const vf z = taps_sum(of, i, left), open = of->silu ? v_mul(z, silu_gate(z)) : z;
        v_store_as(y, of->type, i, gate ? v_mul(open, v_load_as(gate, of->type, i, left)) : open, left);
    }
}

static void taps_backward(const struct cpu_taps *of, const void *gate, const void *dy, float *dz, void *dgate)
{
    EACH(i, of->n)
    {
        const uint64_t left = of->n - i;
        const vf z = taps_sum(of, i, left), s = of->silu ? silu_gate(z) : v_set(1.0f);
        vf d = v_load_as(dy, of->type, i, left);
        if (gate && dgate) v_store_as(dgate, of->type, i, v_mul(d, v_mul(z, s)), left);
        if (gate) d = v_mul(d, v_load_as(gate, of->type, i, left));
        v_store(dz + i, of->silu ? v_mul(d, gate_slope(AQ_GATE_SILU, z, s)) : d, left);
    }
}

static void taps_sums(const struct cpu_taps *of, const float *dz, float *sums, uint64_t stride)
{
    const float *u = of->u;
    for (uint64_t k = 0; k < of->count; k++, u += of->u_stride, sums += stride)
        EACH(i, of->n)
    {
        const uint64_t left = of->n - i;
        v_store(sums + i, v_fma(v_load(dz + i, left), v_load(u + i, left), v_load(sums + i, left)), left);
    }
}

#include "cpu_columns.inc.h"

#define CPU_ROWS_TABLE(variable, text)                                                                                 \
    const struct cpu_rows variable = {.name = text,                                                                    \
                                      .layernorm = layernorm,                                                          \
                                      .layernorm_backward = layernorm_backward,                                        \
                                      .rmsnorm = rmsnorm,                                                              \
                                      .rmsnorm_backward = rmsnorm_backward,                                            \
                                      .rotate = rotate,                                                                \
                                      .gated = gated,                                                                  \
                                      .gated_backward = gated_backward,                                                \
                                      .finish = finish,                                                                \
                                      .max = max,                                                                      \
                                      .exp_sum = exp_sum,                                                              \
                                      .nf4 = nf4,                                                                      \
                                      .scale = scale,                                                                  \
                                      .cap = cap_apply,                                                                \
                                      .cap_slope = cap_slope,                                                          \
                                      .softmax_backward = softmax_backward,                                            \
                                      .dot = dot,                                                                      \
                                      .add = add,                                                                      \
                                      .dots = dots,                                                                    \
                                      .combine = combine,                                                              \
                                      .mask = mask_apply,                                                              \
                                      .sum2 = sum2,                                                                    \
                                      .gelu = gelu_exact,                                                              \
                                      .gelu_backward = gelu_exact_backward,                                            \
                                      .product = product,                                                              \
                                      .taps = taps,                                                                    \
                                      .taps_backward = taps_backward,                                                  \
                                      .taps_sums = taps_sums,                                                          \
                                      .columns_sum = columns_sum,                                                      \
                                      .columns_spread = columns_spread,                                                \
                                      .columns_norm = columns_norm,                                                    \
                                      .columns_back_sums = columns_back_sums,                                          \
                                      .columns_back = columns_back,                                                    \
                                      .columns_back_grouped = columns_back_grouped}
