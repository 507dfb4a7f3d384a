/*
 * cpu_vector.h -- vectors of floats under one set of names, for AVX-512 (16 lanes) and AVX2 (8 lanes).
 *
 * Included by files that are compiled for one of the two. Loads and stores take how many elements are left; beyond that
 * nothing is touched and loads give 0. Sums over lanes add in one fixed order.
 */
#ifndef AQ_CPU_VECTOR_H
#define AQ_CPU_VECTOR_H

#include <immintrin.h>
#include <string.h>

#include "cpu_rows.h"

#if defined(__AVX512F__)

enum { LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;

static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
static inline float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float v_top(vf a) { return _mm512_reduce_max_ps(a); }
/* 1 / a within 2^-23: the estimate of 14 bits and one step of Newton's. 0 where a is beyond 2^126. */
static inline vf v_inverse(vf a)
{
    const vf r = _mm512_rcp14_ps(a);
    return _mm512_mul_ps(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0f)));
}
static inline vf v_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a 2^n */

static inline __mmask16 v_tail(uint64_t left) { return (__mmask16)((1u << left) - 1); }

static inline vf v_load(const float *x, uint64_t left)
{
    return left >= LANES ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(v_tail(left), x);
}
static inline void v_store(float *x, vf a, uint64_t left)
{
    if (left >= LANES)
        _mm512_storeu_ps(x, a);
    else
        _mm512_mask_storeu_ps(x, v_tail(left), a);
}
static inline vf v_load_bf16(const uint16_t *x, uint64_t left)
{
    const __m256i half =
        left >= LANES ? _mm256_loadu_si256((const void *)x) : _mm256_maskz_loadu_epi16(v_tail(left), x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline void v_store_bf16(uint16_t *x, vf a, uint64_t left)
{
#if defined(__AVX512BF16__)
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(a);
#else
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
#endif
    if (left >= LANES)
        _mm256_storeu_si256((void *)x, half);
    else
        _mm256_mask_storeu_epi16(x, v_tail(left), half);
}
static inline vf v_load_f16(const uint16_t *x, uint64_t left)
{
    return _mm512_cvtph_ps(left >= LANES ? _mm256_loadu_si256((const void *)x)
                                         : _mm256_maskz_loadu_epi16(v_tail(left), x));
}
static inline vf v_rounded_f16(vf a)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void v_store_f16(uint16_t *x, vf a, uint64_t left)
{
    const __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    if (left >= LANES)
        _mm256_storeu_si256((void *)x, half);
    else
        _mm256_mask_storeu_epi16(x, v_tail(left), half);
}
static inline double v_sum_double(vf a)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

/* AQ_NF4_VALUES of the next 16 codes, two a byte, the first in the high half. */
struct v_table16 {
    vf values;
};
static inline struct v_table16 v_table16(void)
{
    static const float values[] = {AQ_NF4_VALUES};
    return (struct v_table16){_mm512_loadu_ps(values)};
}
static inline vf v_look_up(const struct v_table16 *table, const uint8_t *codes, uint64_t left)
{
    uint64_t bytes = 0;
    if (left >= LANES)
        memcpy(&bytes, codes, sizeof bytes);
    else
        memcpy(&bytes, codes, (left + 1) / 2);
    const __m128i both = _mm_cvtsi64_si128((long long)bytes), four = _mm_set1_epi8(0xf);
    const __m128i first = _mm_and_si128(_mm_srli_epi16(both, 4), four), second = _mm_and_si128(both, four);
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(first, second)), table->values);
}

static inline vi vi_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_lanes(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
static inline void vi_store(uint32_t *x, vi a) { _mm512_storeu_si512(x, a); }
/* Rows for columns. */
static inline __attribute__((always_inline)) void v_transpose(vf rows[LANES])
{
    __m512i r[16], t[16];
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] = _mm512_castps_si512(rows[i]);
    _Pragma("GCC unroll 8") for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)
    {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        rows[i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        rows[i + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        rows[i + 4] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        rows[i + 12] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}
/* low and high words of 32-bit products */
static inline void vi_mul(vi a, vi b, vi *low, vi *high)
{
    const __m512i even = _mm512_mul_epu32(a, b);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *low = _mm512_mullo_epi32(a, b);
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

#else /* AVX2 */

enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;

static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf v_inverse(vf a) { return _mm256_div_ps(_mm256_set1_ps(1.0f), a); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
static inline vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf v_scale2(vf a, vf n)
{
    /* n below -126 would need a subnormal factor: flush to 0 instead. */
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    return _mm256_and_ps(_mm256_mul_ps(a, factor), _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ));
}
static inline float v_sum(vf a)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float v_top(vf a)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline vf v_load(const float *x, uint64_t left)
{
    if (left >= LANES) return _mm256_loadu_ps(x);
    float part[LANES] = {0};
    memcpy(part, x, left * sizeof *x);
    return _mm256_loadu_ps(part);
}
static inline void v_store(float *x, vf a, uint64_t left)
{
    if (left >= LANES) {
        _mm256_storeu_ps(x, a);
        return;
    }
    float part[LANES];
    _mm256_storeu_ps(part, a);
    memcpy(x, part, left * sizeof *x);
}
/* Eight values of 16 bits. */
static inline __m128i v_load_halves(const uint16_t *x, uint64_t left)
{
    if (left >= LANES) return _mm_loadu_si128((const void *)x);
    uint16_t part[LANES] = {0};
    memcpy(part, x, left * sizeof *x);
    return _mm_loadu_si128((const void *)part);
}
static inline void v_store_halves(uint16_t *x, __m128i a, uint64_t left)
{
    if (left >= LANES) {
        _mm_storeu_si128((void *)x, a);
        return;
    }
    uint16_t part[LANES];
    _mm_storeu_si128((void *)part, a);
    memcpy(x, part, left * sizeof *x);
}
/* Rounded to bf16 as cpu_to_bf16 does, kept as fp32. */
static inline vf v_rounded_bf16(vf a)
{
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_blendv_epi8(sum, quiet, nan), _mm256_set1_epi32((int)0xffff0000)));
}
static inline vf v_rounded_f16(vf a)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vf v_load_bf16(const uint16_t *x, uint64_t left)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_load_halves(x, left)), 16));
}
static inline void v_store_bf16(uint16_t *x, vf a, uint64_t left)
{
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(v_rounded_bf16(a)), 16);
    v_store_halves(x, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)), left);
}
static inline vf v_load_f16(const uint16_t *x, uint64_t left)
{
    return _mm256_cvtph_ps(v_load_halves(x, left));
}
static inline void v_store_f16(uint16_t *x, vf a, uint64_t left)
{
    v_store_halves(x, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), left);
}
static inline double v_sum_double(vf a)
{
    const __m256d four = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(a)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* AQ_NF4_VALUES of the next 8 codes, two a byte, the first in the high half. */
struct v_table16 {
    vf low, high;
};
static inline struct v_table16 v_table16(void)
{
    static const float values[] = {AQ_NF4_VALUES};
    return (struct v_table16){_mm256_loadu_ps(values), _mm256_loadu_ps(values + LANES)};
}
static inline vf v_look_up(const struct v_table16 *table, const uint8_t *codes, uint64_t left)
{
    uint32_t bytes = 0;
    if (left >= LANES)
        memcpy(&bytes, codes, sizeof bytes);
    else
        memcpy(&bytes, codes, (left + 1) / 2);
    const __m128i both = _mm_cvtsi32_si128((int)bytes), four = _mm_set1_epi8(0xf);
    const __m128i first = _mm_and_si128(_mm_srli_epi16(both, 4), four), second = _mm_and_si128(both, four);
    const __m256i code = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(first, second));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table->low, code), _mm256_permutevar8x32_ps(table->high, code),
                            _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
}

static inline vi vi_set(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_lanes(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline void vi_store(uint32_t *x, vi a) { _mm256_storeu_si256((void *)x, a); }
/* Rows for columns. */
static inline __attribute__((always_inline)) void v_transpose(vf r[LANES])
{
    vf t[8], u[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
static inline void vi_mul(vi a, vi b, vi *low, vi *high)
{
    const __m256i even = _mm256_mul_epu32(a, b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *low = _mm256_mullo_epi32(a, b);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

#endif

static inline vf v_load_as(const void *x, enum aq_element type, uint64_t i, uint64_t left)
{
    if (type == AQ_BF16) return v_load_bf16((const uint16_t *)x + i, left);
    if (type == AQ_F16) return v_load_f16((const uint16_t *)x + i, left);
    return v_load((const float *)x + i, left);
}

static inline void v_store_as(void *x, enum aq_element type, uint64_t i, vf a, uint64_t left)
{
    if (type == AQ_BF16)
        v_store_bf16((uint16_t *)x + i, a, left);
    else if (type == AQ_F16)
        v_store_f16((uint16_t *)x + i, a, left);
    else
        v_store((float *)x + i, a, left);
}

/* x = n ln 2 + r. Returns (e^r - 1) / r. */
static inline vf v_exp_reduced(vf x, vf *n, vf *r)
{
    *n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    vf rest = v_fnma(*n, v_set(0.693359375f), x);
    rest = v_fnma(*n, v_set(-2.12194440e-4f), rest);
    vf p = v_set(1.0f / 5040.0f);
    p = v_fma(p, rest, v_set(1.0f / 720.0f));
    p = v_fma(p, rest, v_set(1.0f / 120.0f));
    p = v_fma(p, rest, v_set(1.0f / 24.0f));
    p = v_fma(p, rest, v_set(1.0f / 6.0f));
    p = v_fma(p, rest, v_set(0.5f));
    *r = rest;
    return v_fma(p, rest, v_set(1.0f));
}

/*
 * e^x: x = n ln2 + r, |r| <= ln2/2, e^r by its Taylor polynomial to r^7 (error below 1e-8), times 2^n. About one unit
 * in the last place; below -87.3 the result is 0, above 88.7 it stays there.
 */
static inline vf v_exp(vf x)
{
    x = v_min(v_set(88.7f), x); /* in this order a NaN stays */
    x = v_max(v_set(-104.0f), x);
    vf n, r;
    const vf p = v_exp_reduced(x, &n, &r);
    return v_scale2(v_fma(p, r, v_set(1.0f)), n);
}

/*
 * tanh(x) = e / (e + 2) with e = e^2x - 1 = 2^n (e^r - 1) + 2^n - 1, r as in v_exp: the first term of e^r - 1 is r, so
 * that a small x keeps its bits. About two units in the last place.
 */
static inline vf v_tanh(vf x)
{
    const vf one = v_set(1.0f);
    x = v_min(v_set(20.0f), x); /* in this order a NaN stays */
    x = v_max(v_set(-20.0f), x);
    x = v_add(x, x);
    vf n, r;
    const vf p = v_exp_reduced(x, &n, &r);
    const vf two = v_scale2(one, n), e = v_fma(v_mul(p, r), two, v_sub(two, one));
    return v_div(e, v_add(e, v_set(2.0f)));
}

#endif
