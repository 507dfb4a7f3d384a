/*
 * codec_kernels_avx2.c -- the kernels by 32 values in four registers; the last n%32 values go through codec_scalar.h.
 *
 * Same bits as the truth, sums included: lanes 0-7 in one register, 8-15 in the next, and so on.
 */
#include "codec_scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS __m256 magnitude(__m256 x)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

ALWAYS __m256 load_row(const void *row, enum aq_row_kind kind, size_t i)
{
    const uint8_t *bytes = row;
    if (kind == AQ_ROW_FP32) return _mm256_loadu_ps((const float *)(const void *)(bytes + 4 * i));
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 2 * i));
    if (kind == AQ_ROW_FP16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The low 16 bits of each, which are below 2^16. */
ALWAYS __m128i narrow(__m256i words)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

ALWAYS void store_row(void *row, enum aq_row_kind kind, size_t i, __m256 x)
{
    uint8_t *bytes = row;
    if (kind == AQ_ROW_FP32) {
        _mm256_storeu_ps((float *)(void *)(bytes + 4 * i), x);
    } else if (kind == AQ_ROW_FP16) {
        _mm_storeu_si128((__m128i *)(void *)(bytes + 2 * i),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else if (kind == AQ_ROW_BF16) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        _mm_storeu_si128((__m128i *)(void *)(bytes + 2 * i), narrow(_mm256_srli_epi32(rounded, 16)));
    }
}

ALWAYS uint32_t peak_of(__m256i peak)
{
    uint32_t lanes[8], largest = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, peak);
    for (int l = 0; l < 8; l++)
        largest = lanes[l] > largest ? lanes[l] : largest;
    return largest;
}

/* ---- spans ---- */

struct sums {
    __m256 a[4], a2[4], abs[4], d2[4];
    __m256i peak;
};

ALWAYS void add_delta(__m256 delta, int h, struct sums *s)
{
    const __m256 size = magnitude(delta);
    s->peak = _mm256_max_epu32(s->peak, _mm256_castps_si256(size));
    s->abs[h] = _mm256_add_ps(s->abs[h], size);
    s->d2[h] = _mm256_add_ps(s->d2[h], _mm256_mul_ps(delta, delta));
}

ALWAYS void hand_over(const struct sums *s, struct scalar_sums *out)
{
    for (int h = 0; h < 4; h++) {
        _mm256_storeu_ps(out->a + 8 * h, s->a[h]);
        _mm256_storeu_ps(out->a2 + 8 * h, s->a2[h]);
        _mm256_storeu_ps(out->abs + 8 * h, s->abs[h]);
        _mm256_storeu_ps(out->d2 + 8 * h, s->d2[h]);
    }
    out->peak = peak_of(s->peak);
}

ALWAYS struct sums no_sums(void)
{
    const __m256 zero = _mm256_setzero_ps();
    return (struct sums){{zero, zero, zero, zero},
                         {zero, zero, zero, zero},
                         {zero, zero, zero, zero},
                         {zero, zero, zero, zero},
                         _mm256_setzero_si256()};
}

ALWAYS void delta_kind(const float *a, const void *m, enum aq_row_kind kind, float *d, size_t n, struct aq_span *span,
                       struct aq_codec_sums *sums)
{
    struct sums s = no_sums();
    struct scalar_sums rest;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int h = 0; h < 4; h++) {
            const size_t at = i + 8 * (size_t)h;
            const __m256 x = _mm256_loadu_ps(a + at);
            const __m256 delta = kind == AQ_ROW_NONE ? x : _mm256_sub_ps(x, load_row(m, kind, at));
            _mm256_storeu_ps(d + at, delta);
            s.a[h] = _mm256_add_ps(s.a[h], x);
            s.a2[h] = _mm256_add_ps(s.a2[h], _mm256_mul_ps(x, x));
            add_delta(delta, h, &s);
        }
    }
    hand_over(&s, &rest);
    scalar_delta_from(i, a, m, kind, d, n, &rest);
    scalar_delta_end(&rest, span, sums);
}

static void delta(const float *a, const void *m, enum aq_row_kind m_kind, float *d, size_t n, struct aq_span *span,
                  struct aq_codec_sums *sums, bool peak_only, const float *ahead)
{
    (void)peak_only;
    (void)ahead;
    switch (m_kind) {
    case AQ_ROW_NONE:
        delta_kind(a, m, AQ_ROW_NONE, d, n, span, sums);
        break;
    case AQ_ROW_FP32:
        delta_kind(a, m, AQ_ROW_FP32, d, n, span, sums);
        break;
    case AQ_ROW_FP16:
        delta_kind(a, m, AQ_ROW_FP16, d, n, span, sums);
        break;
    case AQ_ROW_BF16:
        delta_kind(a, m, AQ_ROW_BF16, d, n, span, sums);
        break;
    }
}

static void span_of(const float *d, size_t n, struct aq_span *span)
{
    struct sums s = no_sums();
    struct scalar_sums rest;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int h = 0; h < 4; h++)
            add_delta(_mm256_loadu_ps(d + i + 8 * (size_t)h), h, &s);
    }
    hand_over(&s, &rest);
    scalar_span_from(i, d, n, &rest);
    *span = (struct aq_span){.peak = rest.peak, .sum_abs = scalar_fold(rest.abs), .sum_square = scalar_fold(rest.d2)};
}

/* ---- quantizers ---- */

ALWAYS __m256 nearest(__m256 x, const struct aq_quant *quant, bool rise)
{
    __m256 t = _mm256_mul_ps(x, _mm256_set1_ps(quant->inverse));
    t = rise ? _mm256_floor_ps(t)
             : _mm256_add_ps(_mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_setzero_ps());
    return _mm256_min_ps(_mm256_max_ps(t, _mm256_set1_ps(quant->low)), _mm256_set1_ps(quant->high));
}

ALWAYS __m256 deq(__m256 t, const struct aq_quant *quant, bool rise)
{
    const __m256 factor = rise ? _mm256_add_ps(_mm256_add_ps(t, t), _mm256_set1_ps(1.0f)) : t;
    return _mm256_mul_ps(factor, _mm256_set1_ps(quant->unit));
}

ALWAYS void store_codes(uint8_t *codes, __m256 t, const struct aq_quant *quant)
{
    const __m256i code = _mm256_add_epi32(_mm256_cvtps_epi32(t), _mm256_set1_epi32((int32_t)quant->half));
    const __m128i words = narrow(code);
    _mm_storel_epi64((__m128i *)(void *)codes, _mm_packus_epi16(words, words));
}

ALWAYS void error_rise(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES], bool rise)
{
    __m256 sums[4];
    for (int h = 0; h < 4; h++)
        sums[h] = _mm256_loadu_ps(error + 8 * h);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int h = 0; h < 4; h++) {
            const __m256 x = _mm256_loadu_ps(d + i + 8 * (size_t)h);
            const __m256 e = _mm256_sub_ps(x, deq(nearest(x, quant, rise), quant, rise));
            sums[h] = _mm256_add_ps(sums[h], _mm256_mul_ps(e, e));
        }
    }
    for (int h = 0; h < 4; h++)
        _mm256_storeu_ps(error + 8 * h, sums[h]);
    scalar_error_from(i, d, n, quant, error);
}

static void error_of(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES])
{
    if (quant->rise)
        error_rise(d, n, quant, error, true);
    else
        error_rise(d, n, quant, error, false);
}

ALWAYS uint32_t step_kind(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m,
                          float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2,
                          bool rise)
{
    const __m256 zero = _mm256_setzero_ps();
    __m256 sums[4] = {zero, zero, zero, zero};
    __m256i peaks = _mm256_setzero_si256();
    float error[AQ_LANES];
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int h = 0; h < 4; h++) {
            const size_t at = i + 8 * (size_t)h;
            const __m256 x = _mm256_loadu_ps(d + at), t = nearest(x, quant, rise), level = deq(t, quant, rise);
            const __m256 e = _mm256_sub_ps(x, level);
            const __m256 y = m_kind == AQ_ROW_NONE ? level : _mm256_add_ps(load_row(m, m_kind, at), level);
            store_codes(codes + at, t, quant);
            sums[h] = _mm256_add_ps(sums[h], _mm256_mul_ps(e, e));
            peaks = _mm256_max_epu32(peaks, _mm256_castps_si256(magnitude(y)));
            if (hat != NULL) _mm256_storeu_ps(hat + at, y);
            store_row(m_out, out_kind, at, y);
        }
    }
    uint32_t peak = peak_of(peaks);
    for (int h = 0; h < 4; h++)
        _mm256_storeu_ps(error + 8 * h, sums[h]);
    scalar_step_from(i, d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error, &peak);
    if (error2 != NULL) scalar_add_lanes(error2, error);
    return peak;
}

static uint32_t step(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m, float *hat,
                     void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2)
{
    const bool rise = quant->rise;
    if (m_kind == AQ_ROW_FP16 && out_kind == AQ_ROW_FP16 && rise)
        return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_FP16, AQ_ROW_FP16, error2, true);
    if (m_kind == AQ_ROW_FP32 && out_kind == AQ_ROW_FP32)
        return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_FP32, AQ_ROW_FP32, error2, rise);
    if (m_kind == AQ_ROW_BF16 && out_kind == AQ_ROW_BF16)
        return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_BF16, AQ_ROW_BF16, error2, rise);
    if (m_kind == AQ_ROW_FP16 && out_kind == AQ_ROW_FP16)
        return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_FP16, AQ_ROW_FP16, error2, false);
    if (m_kind == AQ_ROW_NONE && out_kind == AQ_ROW_NONE)
        return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_NONE, AQ_ROW_NONE, error2, rise);
    return scalar_step(d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error2);
}

static void quantize(const float *d, size_t n, const struct aq_quant *quant, const float *noise, uint8_t *codes,
                     float *levels, double *error2)
{
    if (noise != NULL)
        scalar_quantize(d, n, quant, noise, codes, levels, error2);
    else
        (void)step_kind(d, n, quant, codes, NULL, levels, NULL, AQ_ROW_NONE, AQ_ROW_NONE, error2, quant->rise);
}

/* ---- the receiver's side: no fused multiply-add from here on ---- */

ALWAYS uint32_t apply_kind(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m, float *hat,
                           void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind)
{
    /* (code - (L/2 - 0.5)) * (2 * unit) is (2i + 1) * unit before rounding; the differences are exact. */
    const __m256 center = _mm256_set1_ps((float)quant->half - (quant->rise ? 0.5f : 0.0f));
    const __m256 unit = _mm256_set1_ps(quant->rise ? 2.0f * quant->unit : quant->unit);
    __m256i peaks = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        const __m256 level = _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(code), center), unit);
        const __m256 y = m_kind == AQ_ROW_NONE ? level : _mm256_add_ps(load_row(m, m_kind, i), level);
        peaks = _mm256_max_epu32(peaks, _mm256_castps_si256(magnitude(y)));
        if (hat != NULL) _mm256_storeu_ps(hat + i, y);
        store_row(m_out, out_kind, i, y);
    }
    uint32_t peak = peak_of(peaks);
    scalar_apply_from(i, codes, n, quant, m, hat, m_out, m_kind, out_kind, &peak);
    return peak;
}

static uint32_t apply(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m, float *hat,
                      void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind)
{
    if (m_kind == AQ_ROW_FP16 && out_kind == AQ_ROW_FP16)
        return apply_kind(codes, n, quant, m, hat, m_out, AQ_ROW_FP16, AQ_ROW_FP16);
    if (m_kind == AQ_ROW_FP32 && out_kind == AQ_ROW_FP32)
        return apply_kind(codes, n, quant, m, hat, m_out, AQ_ROW_FP32, AQ_ROW_FP32);
    if (m_kind == AQ_ROW_BF16 && out_kind == AQ_ROW_BF16)
        return apply_kind(codes, n, quant, m, hat, m_out, AQ_ROW_BF16, AQ_ROW_BF16);
    if (m_kind == AQ_ROW_NONE && out_kind == AQ_ROW_NONE)
        return apply_kind(codes, n, quant, m, hat, m_out, AQ_ROW_NONE, AQ_ROW_NONE);
    return scalar_apply(codes, n, quant, m, hat, m_out, m_kind, out_kind);
}

static void levels(const uint8_t *codes, size_t n, const struct aq_quant *quant, float *out)
{
    (void)apply_kind(codes, n, quant, NULL, out, NULL, AQ_ROW_NONE, AQ_ROW_NONE);
}

ALWAYS uint32_t update_kind(const void *m, enum aq_row_kind m_kind, const float *level, size_t n, float *hat,
                            void *m_out, enum aq_row_kind out_kind)
{
    __m256i peaks = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps(level + i);
        const __m256 y = m_kind == AQ_ROW_NONE ? x : _mm256_add_ps(load_row(m, m_kind, i), x);
        peaks = _mm256_max_epu32(peaks, _mm256_castps_si256(magnitude(y)));
        if (hat != NULL) _mm256_storeu_ps(hat + i, y);
        store_row(m_out, out_kind, i, y);
    }
    uint32_t peak = peak_of(peaks);
    scalar_update_from(i, m, m_kind, level, n, hat, m_out, out_kind, &peak);
    return peak;
}

static uint32_t update(const void *m, enum aq_row_kind m_kind, const float *level, size_t n, float *hat, void *m_out,
                       enum aq_row_kind out_kind)
{
    if (m_kind == AQ_ROW_NONE && out_kind == AQ_ROW_FP16)
        return update_kind(m, AQ_ROW_NONE, level, n, hat, m_out, AQ_ROW_FP16);
    if (m_kind == AQ_ROW_NONE) return update_kind(m, AQ_ROW_NONE, level, n, hat, m_out, out_kind);
    if (m_kind == AQ_ROW_FP16) return update_kind(m, AQ_ROW_FP16, level, n, hat, m_out, out_kind);
    return update_kind(m, m_kind, level, n, hat, m_out, out_kind);
}

static void expand(const void *m, enum aq_row_kind m_kind, size_t n, float *out)
{
    size_t i = 0;
    if (m_kind == AQ_ROW_NONE) return;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, load_row(m, m_kind, i));
    for (; i < n; i++)
        out[i] = scalar_load(m, m_kind, i);
}

/* ---- bit streams ---- */

/* Eight bytes of b bits to the low 8b bits of their 64: pairs, then fours, then eights. */
ALWAYS __m256i squeeze(__m256i codes, uint32_t bits)
{
    const __m256i by_one = _mm256_set1_epi16((int16_t)(1u | 1u << (bits + 8)));
    const __m256i by_two = _mm256_set1_epi32((int32_t)(1u | 1u << (2 * bits + 16)));
    const __m256i pairs = _mm256_maddubs_epi16(by_one, codes); /* by_one unsigned: 2^7 would be negative as signed */
    const __m256i fours = _mm256_madd_epi16(pairs, by_two);
    const __m256i high = _mm256_srl_epi64(fours, _mm_cvtsi32_si128((int)(32 - 4 * bits)));
    return _mm256_or_si256(_mm256_and_si256(fours, _mm256_set1_epi64x(0xffffffff)),
                           _mm256_and_si256(high, _mm256_set1_epi64x((int64_t)(~UINT64_C(0) << (4 * bits)))));
}

/* Four units at once, each a 64-bit word that is stored over the unused bytes of the one before. */
static void pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out)
{
    size_t u = 0;
    if (bits == 8) {
        memcpy(out, codes, 8 * units);
        return;
    }
    for (; u + 4 < units && (units - u - 4) * bits >= 8; u += 4) {
        uint64_t words[4];
        const __m256i in = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 8 * u));
        _mm256_storeu_si256((__m256i *)(void *)words, squeeze(in, bits));
        for (uint32_t k = 0; k < 4; k++)
            memcpy(out + (u + k) * bits, &words[k], sizeof words[k]);
    }
    scalar_pack(codes + 8 * u, units - u, bits, out + u * bits);
}

/* squeeze backwards: each step moves the upper half of a field to the start of the upper half of its place. */
ALWAYS __m256i stretch(__m256i words, uint32_t bits)
{
    const uint64_t fours = (UINT64_C(1) << (4 * bits)) - 1, twos = (UINT64_C(1) << (2 * bits)) - 1;
    const uint64_t ones = (UINT64_C(1) << bits) - 1;
    const __m128i by_four = _mm_cvtsi32_si128((int)(32 - 4 * bits));
    const __m128i by_two = _mm_cvtsi32_si128((int)(16 - 2 * bits)), by_one = _mm_cvtsi32_si128((int)(8 - bits));
    __m256i low = _mm256_set1_epi64x((int64_t)fours);
    words = _mm256_or_si256(_mm256_and_si256(words, low), _mm256_sll_epi64(_mm256_andnot_si256(low, words), by_four));
    low = _mm256_set1_epi64x((int64_t)(twos | twos << 32));
    words = _mm256_or_si256(_mm256_and_si256(words, low), _mm256_sll_epi64(_mm256_andnot_si256(low, words), by_two));
    low = _mm256_set1_epi64x((int64_t)(ones * UINT64_C(0x0001000100010001)));
    return _mm256_or_si256(_mm256_and_si256(words, low), _mm256_sll_epi64(_mm256_andnot_si256(low, words), by_one));
}

static void unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes)
{
    const __m256i used = _mm256_set1_epi64x((int64_t)((UINT64_C(1) << (8 * bits % 64)) - 1));
    size_t u = 0;
    if (bits == 8) {
        memcpy(codes, in, 8 * units);
        return;
    }
    for (; u + 4 < units && (units - u - 4) * bits >= 8; u += 4) {
        int64_t words[4];
        for (uint32_t k = 0; k < 4; k++)
            memcpy(&words[k], in + (u + k) * bits, sizeof words[k]);
        const __m256i four = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)words), used);
        _mm256_storeu_si256((__m256i *)(void *)(codes + 8 * u), stretch(four, bits));
    }
    scalar_unpack(in + u * bits, units - u, bits, codes + 8 * u);
}

/* ---- entropy coded ---- */

/* Levels of eight q in -7..7. */
ALWAYS __m256 ec_level(__m256 table, __m256i q)
{
    const __m256i sign = _mm256_and_si256(q, _mm256_set1_epi32((int32_t)0x80000000));
    const __m256 level = _mm256_permutevar8x32_ps(table, _mm256_abs_epi32(q));
    return _mm256_xor_ps(level, _mm256_castsi256_ps(sign));
}

static bool ec_quantize(const float *d, size_t n, const struct aq_ec_grid *grid, uint8_t *codes, float *levels,
                        double *error2)
{
    const __m256 table = _mm256_loadu_ps(grid->levels), inverse = _mm256_set1_ps(grid->inverse);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256 errors[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 outside = _mm256_setzero_ps();
    float lanes[AQ_LANES];
    size_t i = 0;
    for (; i + AQ_LANES <= n; i += AQ_LANES) {
        __m256i code[4];
        for (int r = 0; r < 4; r++) {
            const __m256 x = _mm256_loadu_ps(d + i + 8 * r);
            const __m256 t = _mm256_add_ps(_mm256_mul_ps(magnitude(x), inverse), _mm256_set1_ps(0.5f));
            const __m256 inside = _mm256_cmp_ps(t, _mm256_set1_ps((float)AQ_RANS_LEVELS), _CMP_LT_OQ);
            const __m256i size = _mm256_and_si256(_mm256_cvttps_epi32(t), _mm256_castps_si256(inside));
            const __m256i q = _mm256_sign_epi32(size, _mm256_castps_si256(x));
            const __m256 level = ec_level(table, q), e = _mm256_sub_ps(x, level);
            _mm256_storeu_ps(levels + i + 8 * r, level);
            errors[r] = _mm256_add_ps(errors[r], _mm256_mul_ps(e, e));
            outside = _mm256_or_ps(outside, _mm256_andnot_ps(inside, _mm256_castsi256_ps(_mm256_set1_epi32(-1))));
            code[r] = _mm256_and_si256(_mm256_add_epi32(q, _mm256_set1_epi32(AQ_RANS_CODE_ZERO)),
                                       _mm256_castps_si256(inside));
        }
        const __m256i low = _mm256_packs_epi32(code[0], code[1]), high = _mm256_packs_epi32(code[2], code[3]);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    for (int r = 0; r < 4; r++)
        _mm256_storeu_ps(lanes + 8 * r, errors[r]);
    for (int l = 0; l < AQ_LANES; l++)
        error2[l] += (double)lanes[l];
    const bool rest = scalar_ec_quantize(d + i, n - i, grid, codes + i, levels + i, error2);
    return rest || _mm256_movemask_ps(outside) != 0;
}

static bool ec_levels(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, float *levels)
{
    const __m256 table = _mm256_loadu_ps(grid->levels);
    __m256i zeros = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        const __m256i zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
        const __m256i q = _mm256_andnot_si256(zero, _mm256_sub_epi32(code, _mm256_set1_epi32(AQ_RANS_CODE_ZERO)));
        _mm256_storeu_ps(levels + i, ec_level(table, q));
        zeros = _mm256_or_si256(zeros, zero);
    }
    const bool rest = scalar_ec_levels(codes + i, n - i, grid, levels + i);
    return rest || _mm256_movemask_epi8(zeros) != 0;
}

const struct aq_codec_kernels aq_codec_kernels_avx2 = {
    .name = "avx2",
    .delta = delta,
    .span = span_of,
    .error = error_of,
    .quantize = quantize,
    .levels = levels,
    .update = update,
    .expand = expand,
    .step = step,
    .apply = apply,
    .pack = pack,
    .unpack = unpack,
    .ec_dither = scalar_ec_dither,
    .products = scalar_products,
    .noise = scalar_noise,
    .rotate = scalar_rotate,
    .ec_quantize = ec_quantize,
    .ec_levels = ec_levels,
    .rans_encode = aq_rans_encode_avx2,
    .rans_decode = aq_rans_decode_avx2,
};

#else
typedef int aq_codec_no_avx2; /* ISO C requires something in a file */
#endif
