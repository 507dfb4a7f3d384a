/*
 * codec_scalar.h -- the truth of every kernel, one value at a time. The vector tables must give these very bits.
 *
 * Included by each codec_kernels_*.c, so that what a vector table does not do by hand is compiled with its instruction
 * set. All arithmetic is binary32, one rounding an operation (contraction is off), so that the instruction set changes
 * nothing.
 */
#ifndef AQSGD_CODEC_SCALAR_H
#define AQSGD_CODEC_SCALAR_H

#include <math.h>

#include "codec_internal.h"

/* Fold the partial sums: the order is part of FORMAT.md (stored messages). */
static inline float scalar_fold(const float lanes[AQ_LANES])
{
    float p[AQ_LANES];
    memcpy(p, lanes, sizeof p);
    for (int width = AQ_LANES / 2; width > 0; width /= 2) {
        for (int j = 0; j < width; j++)
            p[j] += p[j + width];
    }
    return p[0];
}

static inline float scalar_load(const void *row, enum aq_row_kind kind, size_t i)
{
    const uint8_t *bytes = row;
    uint16_t half;
    float value;
    switch (kind) {
    case AQ_ROW_FP32:
        memcpy(&value, bytes + 4 * i, sizeof value);
        return value;
    case AQ_ROW_FP16:
        memcpy(&half, bytes + 2 * i, sizeof half);
        return aq_half_to_float(half);
    case AQ_ROW_BF16:
        memcpy(&half, bytes + 2 * i, sizeof half);
        return aq_bfloat_to_float(half);
    case AQ_ROW_NONE:
        break;
    }
    return 0.0f;
}

static inline void scalar_store(void *row, enum aq_row_kind kind, size_t i, float value)
{
    uint8_t *bytes = row;
    if (kind == AQ_ROW_FP32) {
        memcpy(bytes + 4 * i, &value, sizeof value);
    } else if (kind != AQ_ROW_NONE) {
        const uint16_t half = kind == AQ_ROW_FP16 ? aq_half_from_float(value) : aq_bfloat_from_float(value);
        memcpy(bytes + 2 * i, &half, sizeof half);
    }
}

static inline float scalar_clamp(float t, const struct aq_quant *quant)
{
    t = t > quant->low ? t : quant->low;
    return t < quant->high ? t : quant->high;
}

static inline float scalar_nearest(float x, const struct aq_quant *quant)
{
    const float scaled = x * quant->inverse; /* + 0: the decoder reads an integer and knows no negative zero */
    return scalar_clamp(quant->rise ? floorf(scaled) : rintf(scaled) + 0.0f, quant);
}

static inline float scalar_stochastic(float x, const struct aq_quant *quant, float u)
{
    const float scaled = x * quant->inverse;
    return scalar_clamp(floorf((quant->rise ? scaled - 0.5f : scaled) + u), quant);
}

static inline float scalar_deq(float t, const struct aq_quant *quant)
{
    return (quant->rise ? 2.0f * t + 1.0f : t) * quant->unit;
}

static inline void scalar_add_lanes(double *sums, const float lanes[AQ_LANES])
{
    for (int l = 0; l < AQ_LANES; l++)
        sums[l] += (double)lanes[l];
}

/* The sums of a row on its way; a vector kernel hands them over for the last few values. */
struct scalar_sums {
    float a[AQ_LANES], a2[AQ_LANES], abs[AQ_LANES], d2[AQ_LANES];
    uint32_t peak;
};

static inline void scalar_delta_from(size_t from, const float *a, const void *m, enum aq_row_kind m_kind, float *d,
                                     size_t n, struct scalar_sums *s)
{
    for (size_t i = from; i < n; i++) {
        const float delta = m_kind == AQ_ROW_NONE ? a[i] : a[i] - scalar_load(m, m_kind, i);
        const uint32_t magnitude = aq_bits_of(delta) & 0x7fffffffu;
        const size_t l = i % AQ_LANES;
        d[i] = delta;
        s->peak = magnitude > s->peak ? magnitude : s->peak;
        s->a[l] += a[i];
        s->a2[l] += a[i] * a[i];
        s->abs[l] += aq_float_of(magnitude);
        s->d2[l] += delta * delta;
    }
}

static inline void scalar_delta_end(const struct scalar_sums *s, struct aq_span *span, struct aq_codec_sums *sums)
{
    *span = (struct aq_span){.peak = s->peak, .sum_abs = scalar_fold(s->abs), .sum_square = scalar_fold(s->d2)};
    if (sums == NULL) return;
    scalar_add_lanes(sums->a, s->a);
    scalar_add_lanes(sums->a2, s->a2);
    scalar_add_lanes(sums->delta2, s->d2);
}

static inline void scalar_delta(const float *a, const void *m, enum aq_row_kind m_kind, float *d, size_t n,
                                struct aq_span *span, struct aq_codec_sums *sums, bool peak_only, const float *ahead)
{
    struct scalar_sums s = {.peak = 0};
    (void)peak_only;
    (void)ahead;
    scalar_delta_from(0, a, m, m_kind, d, n, &s);
    scalar_delta_end(&s, span, sums);
}

static inline void scalar_span_from(size_t from, const float *d, size_t n, struct scalar_sums *s)
{
    for (size_t i = from; i < n; i++) {
        const uint32_t magnitude = aq_bits_of(d[i]) & 0x7fffffffu;
        s->peak = magnitude > s->peak ? magnitude : s->peak;
        s->abs[i % AQ_LANES] += aq_float_of(magnitude);
        s->d2[i % AQ_LANES] += d[i] * d[i];
    }
}

static inline void scalar_span(const float *d, size_t n, struct aq_span *span)
{
    struct scalar_sums s = {.peak = 0};
    scalar_span_from(0, d, n, &s);
    *span = (struct aq_span){.peak = s.peak, .sum_abs = scalar_fold(s.abs), .sum_square = scalar_fold(s.d2)};
}

static inline void scalar_error_from(size_t from, const float *d, size_t n, const struct aq_quant *quant,
                                     float error[AQ_LANES])
{
    for (size_t i = from; i < n; i++) {
        const float e = d[i] - scalar_deq(scalar_nearest(d[i], quant), quant);
        error[i % AQ_LANES] += e * e;
    }
}

static inline void scalar_error(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES])
{
    scalar_error_from(0, d, n, quant, error);
}

static inline void scalar_quantize(const float *d, size_t n, const struct aq_quant *quant, const float *noise,
                                   uint8_t *codes, float *levels, double *error2)
{
    float error[AQ_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const float t = noise == NULL ? scalar_nearest(d[i], quant) : scalar_stochastic(d[i], quant, noise[i]);
        const float level = scalar_deq(t, quant), e = d[i] - level;
        codes[i] = (uint8_t)((int32_t)t + (int32_t)quant->half);
        levels[i] = level;
        error[i % AQ_LANES] += e * e;
    }
    if (error2 != NULL) scalar_add_lanes(error2, error);
}

static inline void scalar_levels(const uint8_t *codes, size_t n, const struct aq_quant *quant, float *levels)
{
    for (size_t i = 0; i < n; i++)
        levels[i] = scalar_deq((float)((int32_t)codes[i] - (int32_t)quant->half), quant);
}

static inline void scalar_update_from(size_t from, const void *m, enum aq_row_kind m_kind, const float *levels,
                                      size_t n, float *hat, void *m_out, enum aq_row_kind out_kind, uint32_t *peak)
{
    for (size_t i = from; i < n; i++) {
        const float x = m_kind == AQ_ROW_NONE ? levels[i] : scalar_load(m, m_kind, i) + levels[i];
        const uint32_t magnitude = aq_bits_of(x) & 0x7fffffffu;
        *peak = magnitude > *peak ? magnitude : *peak;
        if (hat != NULL) hat[i] = x;
        scalar_store(m_out, out_kind, i, x);
    }
}

static inline uint32_t scalar_update(const void *m, enum aq_row_kind m_kind, const float *levels, size_t n, float *hat,
                                     void *m_out, enum aq_row_kind out_kind)
{
    uint32_t peak = 0;
    scalar_update_from(0, m, m_kind, levels, n, hat, m_out, out_kind, &peak);
    return peak;
}

static inline void scalar_expand(const void *m, enum aq_row_kind m_kind, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = scalar_load(m, m_kind, i);
}

/* From value `from` on; error and *peak are continued. */
static inline void scalar_step_from(size_t from, const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes,
                                    const void *m, float *hat, void *m_out, enum aq_row_kind m_kind,
                                    enum aq_row_kind out_kind, float error[AQ_LANES], uint32_t *peak)
{
    for (size_t i = from; i < n; i++) {
        const float t = scalar_nearest(d[i], quant), level = scalar_deq(t, quant), e = d[i] - level;
        const float x = m_kind == AQ_ROW_NONE ? level : scalar_load(m, m_kind, i) + level;
        const uint32_t magnitude = aq_bits_of(x) & 0x7fffffffu;
        codes[i] = (uint8_t)((int32_t)t + (int32_t)quant->half);
        error[i % AQ_LANES] += e * e;
        *peak = magnitude > *peak ? magnitude : *peak;
        if (hat != NULL) hat[i] = x;
        scalar_store(m_out, out_kind, i, x);
    }
}

static inline uint32_t scalar_step(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes,
                                   const void *m, float *hat, void *m_out, enum aq_row_kind m_kind,
                                   enum aq_row_kind out_kind, double *error2)
{
    float error[AQ_LANES] = {0};
    uint32_t peak = 0;
    scalar_step_from(0, d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error, &peak);
    if (error2 != NULL) scalar_add_lanes(error2, error);
    return peak;
}

static inline void scalar_apply_from(size_t from, const uint8_t *codes, size_t n, const struct aq_quant *quant,
                                     const void *m, float *hat, void *m_out, enum aq_row_kind m_kind,
                                     enum aq_row_kind out_kind, uint32_t *peak)
{
    for (size_t i = from; i < n; i++) {
        const float level = scalar_deq((float)((int32_t)codes[i] - (int32_t)quant->half), quant);
        const float x = m_kind == AQ_ROW_NONE ? level : scalar_load(m, m_kind, i) + level;
        const uint32_t magnitude = aq_bits_of(x) & 0x7fffffffu;
        *peak = magnitude > *peak ? magnitude : *peak;
        if (hat != NULL) hat[i] = x;
        scalar_store(m_out, out_kind, i, x);
    }
}

static inline uint32_t scalar_apply(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m,
                                    float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind)
{
    uint32_t peak = 0;
    scalar_apply_from(0, codes, n, quant, m, hat, m_out, m_kind, out_kind, &peak);
    return peak;
}

static inline void scalar_pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out)
{
    for (size_t u = 0; u < units; u++) {
        uint64_t word = 0;
        for (uint32_t i = 0; i < 8; i++)
            word |= (uint64_t)codes[8 * u + i] << (i * bits);
        for (uint32_t k = 0; k < bits; k++)
            out[u * bits + k] = (uint8_t)(word >> (8 * k));
    }
}

static inline void scalar_unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes)
{
    const uint64_t mask = (1u << bits) - 1;
    for (size_t u = 0; u < units; u++) {
        uint64_t word = 0;
        for (uint32_t k = 0; k < bits; k++)
            word |= (uint64_t)in[u * bits + k] << (8 * k);
        for (uint32_t i = 0; i < 8; i++)
            codes[8 * u + i] = (uint8_t)(word >> (i * bits) & mask);
    }
}

static inline void scalar_noise(const struct aq_rng_key *key, uint64_t first, size_t n, float *out)
{
    uint32_t block[4] = {0};
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || (first + i) % 4 == 0) aq_rng_block(key, (first + i) / 4, block);
        out[i] = (float)(block[(first + i) % 4] >> 8) * 0x1p-24f;
    }
}

static inline void scalar_rotate_block(float *v, size_t n)
{
    for (size_t h = 1; h < n; h *= 2) {
        for (size_t i = 0; i < n; i += 2 * h) {
            for (size_t j = i; j < i + h; j++) {
                const float x = v[j], y = v[j + h];
                v[j] = x + y;
                v[j + h] = x - y;
            }
        }
    }
    const float scale = (float)(1.0 / sqrt((double)n));
    for (size_t i = 0; i < n; i++)
        v[i] *= scale;
}

static inline void scalar_rotate(float *row, size_t n, uint32_t tile)
{
    for (size_t at = 0; at < n;) {
        size_t block = tile;
        while (block > n - at)
            block /= 2;
        scalar_rotate_block(row + at, block);
        at += block;
    }
}

/* ---- entropy coded (codec_ec.c) ---- */

static inline float scalar_ec_level(const struct aq_ec_grid *grid, int32_t q)
{
    return q < 0 ? -grid->levels[-q] : grid->levels[q];
}

static inline bool scalar_ec_quantize(const float *d, size_t n, const struct aq_ec_grid *grid, uint8_t *codes,
                                      float *levels, double *error2)
{
    float error[AQ_LANES] = {0};
    bool beyond = false;
    for (size_t i = 0; i < n; i++) {
        const float t = fabsf(d[i]) * grid->inverse + 0.5f;
        const bool inside = t < (float)AQ_RANS_LEVELS;
        const int32_t size = inside ? (int32_t)t : 0, q = d[i] < 0.0f ? -size : size;
        beyond = beyond || !inside;
        codes[i] = inside ? (uint8_t)(q + AQ_RANS_CODE_ZERO) : 0;
        levels[i] = scalar_ec_level(grid, q);
        const float e = d[i] - levels[i];
        error[i % AQ_LANES] += e * e;
    }
    for (int l = 0; l < AQ_LANES; l++)
        error2[l] += (double)error[l];
    return beyond;
}

/* Thirty-two sums at a time stay in registers, or eight. */
static inline void scalar_products(const float *factors, size_t count, const float *matrix, size_t stride, size_t n,
                                   float *out)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        float sum[32] = {0};
        for (size_t k = 0; k < count; k++)
            for (size_t l = 0; l < 32; l++)
                sum[l] += factors[k] * matrix[k * stride + i + l];
        memcpy(out + i, sum, sizeof sum);
    }
    for (; i + 8 <= n; i += 8) {
        float sum[8] = {0};
        for (size_t k = 0; k < count; k++)
            for (size_t l = 0; l < 8; l++)
                sum[l] += factors[k] * matrix[k * stride + i + l];
        memcpy(out + i, sum, sizeof sum);
    }
    for (; i < n; i++) {
        float sum = 0.0f;
        for (size_t k = 0; k < count; k++)
            sum += factors[k] * matrix[k * stride + i];
        out[i] = sum;
    }
}

/* Sixteen words at a time, side by side for the compiler's vectors: they are of 64 values. */
static inline void scalar_ec_dither(struct aq_ec_dither_row row, size_t n, float unit, float *values)
{
    size_t i = 0;
    for (; n - i >= 64; i += 64) {
        uint32_t words[16];
        for (uint32_t l = 0; l < 16; l++)
            words[l] = aq_ec_dither_word(row, (uint32_t)(i / 4) + l);
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t l = 0; l < 16; l++)
                values[i + 16 * k + l] += (float)(2 * (int32_t)(words[l] >> 8 * k & 255) - 255) * unit;
    }
    for (; i < n; i++)
        values[i] += (float)(2 * (int32_t)aq_ec_dither_byte(row, (uint32_t)i) - 255) * unit;
}

static inline bool scalar_ec_levels(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, float *levels)
{
    bool beyond = false;
    for (size_t i = 0; i < n; i++) {
        beyond = beyond || codes[i] == 0;
        levels[i] = codes[i] == 0 ? 0.0f : scalar_ec_level(grid, codes[i] - AQ_RANS_CODE_ZERO);
    }
    return beyond;
}

#endif
