/*
 * cpu_rows_plain.c -- the readable truth of every row kernel; the vector variants are tested against it.
 */
#include "cpu_rows.h"

#include <math.h>

static float mask_factor(const struct cpu_mask *mask, uint64_t i)
{
    if (!mask || !mask->key) return 1.0f;
    return aq_rng_u32(mask->key, mask->offset + i) >> 8 >= mask->threshold ? mask->factor : 0.0f;
}

static void layernorm(const void *x, enum aq_element x_type, const float *gamma, const float *beta, uint64_t n,
                      float epsilon, void *y, enum aq_element type, float *mean_out, float *rstd_out)
{
    double sum = 0.0, sum2 = 0.0;
    for (uint64_t i = 0; i < n; i++) sum += cpu_load(x, x_type, i);
    const float mean = (float)(sum / (double)n);
    for (uint64_t i = 0; i < n; i++) {
        const float d = cpu_load(x, x_type, i) - mean;
        sum2 += (double)d * d;
    }
    const float rstd = (float)(1.0 / sqrt(sum2 / (double)n + epsilon));
    for (uint64_t i = 0; i < n; i++)
        cpu_store(y, type, i, (cpu_load(x, x_type, i) - mean) * rstd * gamma[i] + (beta ? beta[i] : 0.0f));
    *mean_out = mean;
    *rstd_out = rstd;
}

/*
 * With h = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - h mean(g h)).
 */
static void layernorm_backward(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float mean,
                               float rstd, uint64_t n, float *dx, float *dgamma, float *dbeta)
{
    double sum_g = 0.0, sum_gh = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        const float g = dy[i] * gamma[i];
        sum_g += g;
        sum_gh += (double)g * ((cpu_load(x, x_type, i) - mean) * rstd);
    }
    const float mean_g = (float)(sum_g / (double)n), mean_gh = (float)(sum_gh / (double)n);
    for (uint64_t i = 0; i < n; i++) {
        const float h = (cpu_load(x, x_type, i) - mean) * rstd;
        dgamma[i] += dy[i] * h;
        dbeta[i] += dy[i];
        dx[i] += rstd * (dy[i] * gamma[i] - mean_g - h * mean_gh);
    }
}

static void rmsnorm(const void *x, enum aq_element x_type, const float *gamma, uint64_t n, float plus, float epsilon,
                    void *y, enum aq_element y_type, float *rstd_out)
{
    double sum2 = 0.0;
    for (uint64_t i = 0; i < n; i++) sum2 += (double)cpu_load(x, x_type, i) * cpu_load(x, x_type, i);
    const float rstd = (float)(1.0 / sqrt(sum2 / (double)n + epsilon));
    for (uint64_t i = 0; i < n; i++) cpu_store(y, y_type, i, cpu_load(x, x_type, i) * rstd * (plus + gamma[i]));
    *rstd_out = rstd;
}

/* With h = x rstd and g = dy (plus + gamma):  dx = rstd (g - h mean(g h)). */
static void rmsnorm_backward(const float *dy, const void *x, enum aq_element x_type, const float *gamma, float plus,
                             float rstd, uint64_t n, float *dx, float *dgamma)
{
    double sum_gh = 0.0;
    for (uint64_t i = 0; i < n; i++)
        sum_gh += (double)(dy[i] * (plus + gamma[i])) * (cpu_load(x, x_type, i) * rstd);
    const float mean_gh = (float)(sum_gh / (double)n);
    for (uint64_t i = 0; i < n; i++) {
        const float h = cpu_load(x, x_type, i) * rstd;
        dgamma[i] += dy[i] * h;
        dx[i] += rstd * (dy[i] * (plus + gamma[i]) - h * mean_gh);
    }
}

static void rotate(const void *x, enum aq_element x_type, const float *cosines, const float *sines, float sign,
                   uint64_t half, void *y, enum aq_element y_type)
{
    for (uint64_t i = 0; i < half; i++) {
        const float a = cpu_load(x, x_type, i), b = cpu_load(x, x_type, half + i), sine = sign * sines[i];
        cpu_store(y, y_type, i, a * cosines[i] - b * sine);
        cpu_store(y, y_type, half + i, b * cosines[i] + a * sine);
    }
}

/* The published model's GELU: x/2 (1 + tanh(z)), z = sqrt(2/pi) (x + 0.044715 x^3). Hendrycks and Gimpel 2016. */
static const float GELU_A = 0.7978845608028654f, GELU_B = 0.044715f;

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(GELU_A * (x + GELU_B * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(GELU_A * (x + GELU_B * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_A * (1.0f + 3.0f * GELU_B * x * x);
}

/* The distribution itself, not the approximation. */
static float normal_below(float x)
{
    return 0.5f * erfcf(-0.7071067811865476f * x);
}

static void gelu_exact(const void *x, uint64_t n, enum aq_element type, const float *other, void *y)
{
    for (uint64_t i = 0; i < n; i++) {
        const float value = cpu_load(x, type, i), gated = value * normal_below(value);
        cpu_store(y, other ? AQ_F32 : type, i, other ? other[i] + gated : gated);
    }
}

static void gelu_exact_backward(const void *x, const void *dy, uint64_t n, enum aq_element type, void *dx)
{
    for (uint64_t i = 0; i < n; i++) {
        const float value = cpu_load(x, type, i), density = 0.3989422804014327f * expf(-0.5f * value * value);
        cpu_store(dx, type, i, cpu_load(dy, type, i) * (normal_below(value) + value * density));
    }
}

static float gate_of(enum aq_gate gate, float x)
{
    if (gate == AQ_GATE_GELU_EXACT) return x * normal_below(x);
    return gate == AQ_GATE_GELU ? gelu(x) : x / (1.0f + expf(-x));
}

static float gate_slope(enum aq_gate gate, float x)
{
    if (gate == AQ_GATE_GELU) return gelu_slope(x);
    if (gate == AQ_GATE_GELU_EXACT) return normal_below(x) + x * 0.3989422804014327f * expf(-0.5f * x * x);
    const float s = 1.0f / (1.0f + expf(-x));
    return s * (1.0f + x * (1.0f - s));
}

static void gated(enum aq_gate gate, uint64_t n, const void *g, const void *u, void *y, enum aq_element type)
{
    for (uint64_t i = 0; i < n; i++) cpu_store(y, type, i, gate_of(gate, cpu_load(g, type, i)) * cpu_load(u, type, i));
}

static void gated_backward(enum aq_gate gate, uint64_t n, const void *g, const void *u, const void *dy, void *dg,
                           void *du, enum aq_element type)
{
    for (uint64_t i = 0; i < n; i++) {
        const float x = cpu_load(g, type, i), up = cpu_load(u, type, i), d = cpu_load(dy, type, i);
        cpu_store(dg, type, i, d * up * gate_slope(gate, x));
        cpu_store(du, type, i, d * gate_of(gate, x));
    }
}

static void finish(enum aq_matmul_after after, uint64_t n, const float *sums, const float *bias, void *c,
                   enum aq_element type, void *other, const struct cpu_mask *mask)
{
    for (uint64_t i = 0; i < n; i++) {
        const float sum = sums[i] + (bias ? bias[i] : 0.0f);
        switch (after) {
        case AQ_AFTER_NONE:
            cpu_store(c, type, i, sum);
            break;
        case AQ_AFTER_GELU:
            cpu_store(other, type, i, sum);
            cpu_store(c, type, i, gelu(sum));
            break;
        case AQ_AFTER_GELU_BACKWARD:
            cpu_store(c, type, i, sum * gelu_slope(cpu_load(other, type, i)));
            break;
        case AQ_AFTER_RESIDUAL:
            cpu_store(c, type, i, cpu_load(other, type, i) + sum * mask_factor(mask, i));
            break;
        }
    }
}

static float max(const float *x, uint64_t n)
{
    float top = -INFINITY;
    for (uint64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

static float exp_sum(float *x, uint64_t n, float scale, float shift)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        x[i] = expf(x[i] * scale - shift);
        sum += x[i];
    }
    return (float)sum;
}

static void scale(const float *x, uint64_t n, float factor, void *y, enum aq_element type)
{
    for (uint64_t i = 0; i < n; i++) cpu_store(y, type, i, x[i] * factor);
}

static void cap_apply(float *x, uint64_t n, float factor, float cap)
{
    for (uint64_t i = 0; i < n; i++) x[i] = cap * tanhf(x[i] * factor);
}

static void cap_slope(const float *capped, uint64_t n, float factor, float cap, float *dy)
{
    for (uint64_t i = 0; i < n; i++) {
        const float t = capped[i] / cap;
        dy[i] *= factor * (1.0f - t * t);
    }
}

static void nf4(const uint8_t *codes, uint64_t n, float factor, void *y, enum aq_element type)
{
    static const float table[] = {AQ_NF4_VALUES};
    float values[AQ_UNPACK_GROUP + 1]; /* both of the last byte */
    for (uint64_t first = 0; first < n; first += AQ_UNPACK_GROUP) {
        const uint64_t count = n - first < AQ_UNPACK_GROUP ? n - first : AQ_UNPACK_GROUP;
        for (uint64_t i = 0; i < count; i += 2) {
            const uint8_t both = codes[(first + i) / 2];
            values[i] = table[both >> 4];
            values[i + 1] = table[both & 0xf];
        }
        scale(values, count, factor, (uint8_t *)y + first * aq_element_bytes(type), type);
    }
}

static void softmax_backward(float *p, float *dp, uint64_t n, float factor, float lse, float delta,
                             const struct cpu_mask *mask)
{
    for (uint64_t i = 0; i < n; i++) {
        const float weight = expf(p[i] * factor - lse), kept = mask_factor(mask, i);
        p[i] = weight * kept;
        dp[i] = weight * (dp[i] * kept - delta) * factor;
    }
}

static float dot(const void *x, const void *y, enum aq_element type, uint64_t n)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++) sum += (double)cpu_load(x, type, i) * cpu_load(y, type, i);
    return (float)sum;
}

static void add(float *y, const void *x, enum aq_element type, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) y[i] += cpu_load(x, type, i);
}

static void dots(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                 float *y)
{
    for (uint64_t r = 0; r < count; r++) {
        double sum = 0.0;
        for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * cpu_load(rows, type, r * stride + i);
        y[r] = (float)sum;
    }
}

static void combine(const float *x, const void *rows, uint64_t stride, enum aq_element type, uint64_t n, uint64_t count,
                    float *y)
{
    for (uint64_t i = 0; i < n; i++) {
        double sum = y[i];
        for (uint64_t r = 0; r < count; r++) sum += (double)x[r] * cpu_load(rows, type, r * stride + i);
        y[i] = (float)sum;
    }
}

static void mask_apply(const float *x, uint64_t n, const struct cpu_mask *mask, void *y, enum aq_element type)
{
    for (uint64_t i = 0; i < n; i++) cpu_store(y, type, i, x[i] * mask_factor(mask, i));
}

static double sum2(const float *x, uint64_t n)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

static void product(const void *a, const void *b, enum aq_element type, uint64_t n, float *y)
{
    for (uint64_t i = 0; i < n; i++) y[i] = cpu_load(a, type, i) * (b ? cpu_load(b, type, i) : 1.0f);
}

static float taps_sum(const struct cpu_taps *of, uint64_t i)
{
    float z = of->bias ? of->bias[i] : 0.0f;
    for (int64_t k = 0; k < (int64_t)of->count; k++)
        z += of->w[k * of->w_stride + (int64_t)i] * of->u[k * of->u_stride + (int64_t)i];
    return z;
}

static void taps(const struct cpu_taps *of, const void *gate, void *y)
{
    for (uint64_t i = 0; i < of->n; i++) {
        const float z = taps_sum(of, i), open = gate ? cpu_load(gate, of->type, i) : 1.0f;
        cpu_store(y, of->type, i, (of->silu ? gate_of(AQ_GATE_SILU, z) : z) * open);
    }
}

static void taps_backward(const struct cpu_taps *of, const void *gate, const void *dy, float *dz, void *dgate)
{
    for (uint64_t i = 0; i < of->n; i++) {
        const float z = taps_sum(of, i), d = cpu_load(dy, of->type, i);
        const float open = gate ? cpu_load(gate, of->type, i) : 1.0f;
        if (gate && dgate) cpu_store(dgate, of->type, i, d * (of->silu ? gate_of(AQ_GATE_SILU, z) : z));
        dz[i] = d * open * (of->silu ? gate_slope(AQ_GATE_SILU, z) : 1.0f);
    }
}

static void taps_sums(const struct cpu_taps *of, const float *dz, float *sums, uint64_t stride)
{
    const float *u = of->u;
    for (uint64_t k = 0; k < of->count; k++, u += of->u_stride, sums += stride)
        for (uint64_t i = 0; i < of->n; i++) sums[i] += dz[i] * u[i];
}

#include "cpu_columns.inc.h"

const struct cpu_rows cpu_rows_plain = {.name = "plain",
                                        .layernorm = layernorm,
                                        .layernorm_backward = layernorm_backward,
                                        .rmsnorm = rmsnorm,
                                        .rmsnorm_backward = rmsnorm_backward,
                                        .rotate = rotate,
                                        .gated = gated,
                                        .gated_backward = gated_backward,
                                        .finish = finish,
                                        .max = max,
                                        .exp_sum = exp_sum,
                                        .nf4 = nf4,
                                        .scale = scale,
                                        .cap = cap_apply,
                                        .cap_slope = cap_slope,
                                        .softmax_backward = softmax_backward,
                                        .dot = dot,
                                        .add = add,
                                        .dots = dots,
                                        .combine = combine,
                                        .mask = mask_apply,
                                        .sum2 = sum2,
                                        .gelu = gelu_exact,
                                        .gelu_backward = gelu_exact_backward,
                                        .product = product,
                                        .taps = taps,
                                        .taps_backward = taps_backward,
                                        .taps_sums = taps_sums,
                                        .columns_sum = columns_sum,
                                        .columns_spread = columns_spread,
                                        .columns_norm = columns_norm,
                                        .columns_back_sums = columns_back_sums,
                                        .columns_back = columns_back,
                                        .columns_back_grouped = columns_back_grouped};
