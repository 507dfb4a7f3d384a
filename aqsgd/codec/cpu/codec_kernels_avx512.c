/*
 * codec_kernels_avx512.c -- the kernels by 16 values, two at a time. Two tables: with AVX-512 F/BW/DQ/VL, and with VBMI
 * for the bit streams.
 *
 * Every result that the wire or the store sees has the bits of codec_scalar.h. A comment explains each instruction that
 * differs from the truth's but gives its bits. Only the live measures (sums->a2, error2) may differ in their last
 * places: they use a fused multiply-add, and nothing depends on them.
 */
#include "codec_scalar.h"

#if defined(__x86_64__)
#include "codec_avx512.h"

/* ---- spans ---- */

struct delta_state {
    struct pair a, a2, abs, d2;
    __m512i peak, peak_high;
};

/* The measures of a row that the caller needs; each includes those before it. */
enum depth { PEAK, SPAN, MEASURES };

ALWAYS void delta_16(const float *a, const void *m, enum aq_row_kind kind, float *d, size_t i, __mmask16 mask,
                     struct delta_state *s, bool high, enum depth depth)
{
    const __m512 x = mask == 0xffff ? _mm512_loadu_ps(a + i) : _mm512_maskz_loadu_ps(mask, a + i);
    const __m512 delta = kind == AQ_ROW_NONE ? x : _mm512_sub_ps(x, load_row(m, kind, i, mask));
    const __m512 size = magnitude(delta);
    if (mask == 0xffff)
        _mm512_storeu_ps(d + i, delta);
    else
        _mm512_mask_storeu_ps(d + i, mask, delta);
    if (high)
        s->peak_high = _mm512_max_epu32(s->peak_high, _mm512_castps_si512(size));
    else
        s->peak = _mm512_max_epu32(s->peak, _mm512_castps_si512(size));
    if (depth == PEAK) return;
    __m512 *const abs = high ? &s->abs.high : &s->abs.low, *const d2 = high ? &s->d2.high : &s->d2.low;
    *abs = _mm512_add_ps(*abs, size);
    *d2 = _mm512_add_ps(*d2, _mm512_mul_ps(delta, delta));
    if (depth == SPAN) return;
    __m512 *const sum = high ? &s->a.high : &s->a.low, *const a2 = high ? &s->a2.high : &s->a2.low;
    *sum = _mm512_add_ps(x, *sum);
    *a2 = _mm512_fmadd_ps(x, x, *a2);
}

ALWAYS void delta_depth(const float *a, const void *m, enum aq_row_kind kind, float *d, size_t n, struct aq_span *span,
                        struct aq_codec_sums *sums, const float *ahead, enum depth depth)
{
    struct delta_state state = {no_sum(), no_sum(), no_sum(), no_sum(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        _mm_prefetch((const char *)(ahead + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(ahead + i + 16), _MM_HINT_T0);
        delta_16(a, m, kind, d, i, 0xffff, &state, false, depth);
        delta_16(a, m, kind, d, i + 16, 0xffff, &state, true, depth);
    }
    if (i < n) delta_16(a, m, kind, d, i, tail_mask(n - i), &state, false, depth);
    if (i + 16 < n) delta_16(a, m, kind, d, i + 16, tail_mask(n - i - 16), &state, true, depth);
    *span = (struct aq_span){.peak = _mm512_reduce_max_epu32(_mm512_max_epu32(state.peak, state.peak_high))};
    if (depth == PEAK) return;
    span->sum_abs = fold_lanes(state.abs);
    span->sum_square = fold_lanes(state.d2);
    if (depth == SPAN) return;
    add_lanes(sums->a, state.a);
    add_lanes(sums->a2, state.a2);
    add_lanes(sums->delta2, state.d2);
}

ALWAYS void delta_kind(const float *a, const void *m, enum aq_row_kind kind, float *d, size_t n, struct aq_span *span,
                       struct aq_codec_sums *sums, bool peak_only, const float *ahead)
{
    if (ahead == NULL) ahead = a;
    if (sums != NULL)
        delta_depth(a, m, kind, d, n, span, sums, ahead, MEASURES);
    else if (peak_only)
        delta_depth(a, m, kind, d, n, span, NULL, ahead, PEAK);
    else
        delta_depth(a, m, kind, d, n, span, NULL, ahead, SPAN);
}

static void delta(const float *a, const void *m, enum aq_row_kind m_kind, float *d, size_t n, struct aq_span *span,
                  struct aq_codec_sums *sums, bool peak_only, const float *ahead)
{
    switch (m_kind) {
    case AQ_ROW_NONE:
        delta_kind(a, m, AQ_ROW_NONE, d, n, span, sums, peak_only, ahead);
        break;
    case AQ_ROW_FP32:
        delta_kind(a, m, AQ_ROW_FP32, d, n, span, sums, peak_only, ahead);
        break;
    case AQ_ROW_FP16:
        delta_kind(a, m, AQ_ROW_FP16, d, n, span, sums, peak_only, ahead);
        break;
    case AQ_ROW_BF16:
        delta_kind(a, m, AQ_ROW_BF16, d, n, span, sums, peak_only, ahead);
        break;
    }
}

static void span_of(const float *d, size_t n, struct aq_span *span)
{
    struct pair sum_abs = no_sum(), sum_d2 = no_sum();
    __m512i peak = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 32) {
        const __mmask16 high = n - i > 16 ? tail_mask(n - i - 16) : 0;
        const __m512 x = _mm512_maskz_loadu_ps(tail_mask(n - i), d + i), x_size = magnitude(x);
        const __m512 y = _mm512_maskz_loadu_ps(high, d + i + 16), y_size = magnitude(y);
        peak = _mm512_max_epu32(peak, _mm512_castps_si512(x_size));
        peak = _mm512_max_epu32(peak, _mm512_castps_si512(y_size));
        sum_abs.low = _mm512_add_ps(sum_abs.low, x_size);
        sum_abs.high = _mm512_add_ps(sum_abs.high, y_size);
        sum_d2.low = _mm512_add_ps(sum_d2.low, _mm512_mul_ps(x, x));
        sum_d2.high = _mm512_add_ps(sum_d2.high, _mm512_mul_ps(y, y));
    }
    span->peak = _mm512_reduce_max_epu32(peak);
    span->sum_abs = fold_lanes(sum_abs);
    span->sum_square = fold_lanes(sum_d2);
}

/* ---- quantizers ---- */

ALWAYS void store_codes(uint8_t *codes, __m512 sum)
{
    _mm_storeu_si128((__m128i *)(void *)codes, _mm512_cvtepi32_epi8(_mm512_castps_si512(sum)));
}

ALWAYS void error_mode(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES], enum mode mode)
{
    const struct grid grid = grid_of(quant);
    __m512 sums[2] = {_mm512_loadu_ps(error), _mm512_loadu_ps(error + 16)};
    for (size_t i = 0; i < n; i += 32) {
        for (size_t h = 0; h < 2; h++) {
            const size_t at = i + 16 * h;
            const __mmask16 mask = at < n ? tail_mask(n - at) : 0;
            const __m512 x = _mm512_maskz_loadu_ps(mask, d + at);
            const __m512 e = _mm512_maskz_sub_ps(mask, x, level_of(rounded(x, &grid, mode), &grid, mode));
            sums[h] = _mm512_add_ps(sums[h], _mm512_mul_ps(e, e));
        }
    }
    _mm512_storeu_ps(error, sums[0]);
    _mm512_storeu_ps(error + 16, sums[1]);
}

/* Signed with one bit: L/2 is odd and would turn ties round. */
ALWAYS bool by_hand(const struct aq_quant *quant)
{
    return quant->bits > 1 || quant->rise;
}

static void error_of(const float *d, size_t n, const struct aq_quant *quant, float error[AQ_LANES])
{
    if (!by_hand(quant)) {
        scalar_error(d, n, quant, error);
        return;
    }
    switch (mode_of(quant)) {
    case RISE:
        error_mode(d, n, quant, error, RISE);
        break;
    case TREAD:
        error_mode(d, n, quant, error, TREAD);
        break;
    case SIGNED:
        error_mode(d, n, quant, error, SIGNED);
        break;
    }
}

ALWAYS uint32_t step_mode(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m,
                          float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2,
                          enum mode mode)
{
    const struct grid grid = grid_of(quant);
    struct step_state state = {no_sum(), _mm512_setzero_ps()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (size_t h = 0; h < 2; h++) {
            const size_t at = i + 16 * h;
            store_codes(codes + at, step_16(d, m, hat, m_out, m_kind, out_kind, &grid, mode, false, at, 0xffff, &state,
                                            h, true, true));
        }
    }
    for (size_t h = 0; i < n; i += 16, h++) {
        const __m512 sum =
            step_16(d, m, hat, m_out, m_kind, out_kind, &grid, mode, false, i, tail_mask(n - i), &state, h, true, true);
        store_codes(codes + i, sum);
    }
    if (error2 != NULL) add_lanes(error2, state.error);
    return peak_of(&state);
}

ALWAYS uint32_t step_kind(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m,
                          float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2)
{
    switch (mode_of(quant)) {
    case RISE:
        if (hat == NULL) return step_mode(d, n, quant, codes, m, NULL, m_out, m_kind, out_kind, error2, RISE);
        return step_mode(d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error2, RISE);
    case TREAD:
        return step_mode(d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error2, TREAD);
    default:
        return step_mode(d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error2, SIGNED);
    }
}

static uint32_t step(const float *d, size_t n, const struct aq_quant *quant, uint8_t *codes, const void *m, float *hat,
                     void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2)
{
    if (by_hand(quant)) {
        if (m_kind == AQ_ROW_FP16 && out_kind == AQ_ROW_FP16)
            return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_FP16, AQ_ROW_FP16, error2);
        if (m_kind == AQ_ROW_FP32 && out_kind == AQ_ROW_FP32)
            return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_FP32, AQ_ROW_FP32, error2);
        if (m_kind == AQ_ROW_BF16 && out_kind == AQ_ROW_BF16)
            return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_BF16, AQ_ROW_BF16, error2);
        if (m_kind == AQ_ROW_NONE && out_kind == AQ_ROW_NONE)
            return step_kind(d, n, quant, codes, m, hat, m_out, AQ_ROW_NONE, AQ_ROW_NONE, error2);
    }
    return scalar_step(d, n, quant, codes, m, hat, m_out, m_kind, out_kind, error2);
}

/* Nearest or stochastic, to scratch: the way of tiles and rotations. */
static void quantize(const float *d, size_t n, const struct aq_quant *quant, const float *noise, uint8_t *codes,
                     float *levels, double *error2)
{
    const struct grid grid = grid_of(quant);
    const __m512 shift = _mm512_set1_ps(0.5f), two = _mm512_set1_ps(2.0f), one = _mm512_set1_ps(1.0f);
    const __m512i half = _mm512_set1_epi32((int32_t)quant->half);
    struct pair error = no_sum();
    if (n < 8) { /* channel groups come one by one */
        scalar_quantize(d, n, quant, noise, codes, levels, error2);
        return;
    }
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = tail_mask(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, d + i);
        __m512 t = _mm512_mul_ps(x, grid.inverse);
        if (noise != NULL) {
            if (quant->rise) t = _mm512_sub_ps(t, shift);
            t = _mm512_roundscale_ps(_mm512_add_ps(t, _mm512_maskz_loadu_ps(mask, noise + i)),
                                     _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        } else if (quant->rise) {
            t = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        } else {
            t = _mm512_add_ps(_mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                              _mm512_setzero_ps());
        }
        t = _mm512_min_ps(_mm512_max_ps(t, grid.low), grid.high);
        const __m512 factor = quant->rise ? _mm512_add_ps(_mm512_mul_ps(t, two), one) : t;
        const __m512 level = _mm512_mul_ps(factor, grid.unit);
        const __m512 e = _mm512_maskz_sub_ps(mask, x, level);
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(t), half));
        _mm_mask_storeu_epi8(codes + i, mask, bytes);
        _mm512_mask_storeu_ps(levels + i, mask, level);
        const __m512 swap = error.low; /* the registers take turns */
        error.low = error.high;
        error.high = _mm512_fmadd_ps(e, e, swap);
    }
    if (error2 != NULL) add_lanes(error2, error);
}

/* ---- the receiver's side: no fused multiply-add from here to the bit streams ---- */

ALWAYS __m512 levels_16(const uint8_t *codes, const struct table *table, enum size_class size)
{
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
    if (size == FOUR_BITS) return _mm512_permutexvar_ps(code, table->low);
    if (size == FIVE_BITS) return _mm512_permutex2var_ps(table->low, code, table->high);
    return _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(code), table->center), table->unit);
}

ALWAYS void apply_16(const uint8_t *codes, const struct table *table, const void *m, float *hat, void *m_out,
                     enum aq_row_kind m_kind, enum aq_row_kind out_kind, enum size_class size, size_t i, __mmask16 mask,
                     __m512i *peak)
{
    const __m512 level = levels_16(codes + i, table, size);
    const __m512 y = m_kind == AQ_ROW_NONE ? level : _mm512_add_ps(load_row(m, m_kind, i, mask), level);
    const __m512i bits = _mm512_castps_si512(magnitude(y));
    *peak = mask == 0xffff ? _mm512_max_epu32(*peak, bits) : _mm512_mask_max_epu32(*peak, mask, *peak, bits);
    if (hat != NULL) store_row(hat, AQ_ROW_FP32, i, mask, y);
    store_row(m_out, out_kind, i, mask, y);
}

ALWAYS uint32_t apply_size(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m, float *hat,
                           void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, enum size_class size)
{
    const struct table table = table_of(quant);
    __m512i peak = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        apply_16(codes, &table, m, hat, m_out, m_kind, out_kind, size, i, 0xffff, &peak);
    if (i < n) apply_16(codes, &table, m, hat, m_out, m_kind, out_kind, size, i, tail_mask(n - i), &peak);
    return _mm512_reduce_max_epu32(peak);
}

ALWAYS uint32_t apply_kind(const uint8_t *codes, size_t n, const struct aq_quant *quant, const void *m, float *hat,
                           void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind)
{
    if (quant->bits <= 4) return apply_size(codes, n, quant, m, hat, m_out, m_kind, out_kind, FOUR_BITS);
    if (quant->bits == 5) return apply_size(codes, n, quant, m, hat, m_out, m_kind, out_kind, FIVE_BITS);
    return apply_size(codes, n, quant, m, hat, m_out, m_kind, out_kind, MORE_BITS);
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
    if (n < 8)
        scalar_levels(codes, n, quant, out);
    else
        (void)apply_kind(codes, n, quant, NULL, out, NULL, AQ_ROW_NONE, AQ_ROW_NONE);
}

ALWAYS uint32_t update_kind(const void *m, enum aq_row_kind m_kind, const float *level, size_t n, float *hat,
                            void *m_out, enum aq_row_kind out_kind)
{
    __m512i peak = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = tail_mask(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, level + i);
        const __m512 y = m_kind == AQ_ROW_NONE ? x : _mm512_add_ps(load_row(m, m_kind, i, mask), x);
        peak = _mm512_mask_max_epu32(peak, mask, peak, _mm512_castps_si512(magnitude(y)));
        if (hat != NULL) store_row(hat, AQ_ROW_FP32, i, mask, y);
        store_row(m_out, out_kind, i, mask, y);
    }
    return _mm512_reduce_max_epu32(peak);
}

ALWAYS uint32_t update_from(const void *m, enum aq_row_kind m_kind, const float *level, size_t n, float *hat,
                            void *m_out, enum aq_row_kind out_kind)
{
    switch (out_kind) {
    case AQ_ROW_FP32:
        return update_kind(m, m_kind, level, n, hat, m_out, AQ_ROW_FP32);
    case AQ_ROW_FP16:
        return update_kind(m, m_kind, level, n, hat, m_out, AQ_ROW_FP16);
    case AQ_ROW_BF16: /* NaNs must not come to bfloat_of: only m could hold one, and the peak would show it */
        return update_kind(m, m_kind, level, n, hat, m_out, AQ_ROW_BF16);
    default:
        return update_kind(m, m_kind, level, n, hat, m_out, AQ_ROW_NONE);
    }
}

static uint32_t update(const void *m, enum aq_row_kind m_kind, const float *level, size_t n, float *hat, void *m_out,
                       enum aq_row_kind out_kind)
{
    switch (m_kind) {
    case AQ_ROW_FP32:
        return update_from(m, AQ_ROW_FP32, level, n, hat, m_out, out_kind);
    case AQ_ROW_FP16:
        return update_from(m, AQ_ROW_FP16, level, n, hat, m_out, out_kind);
    case AQ_ROW_BF16:
        return update_from(m, AQ_ROW_BF16, level, n, hat, m_out, out_kind);
    default:
        return update_from(m, AQ_ROW_NONE, level, n, hat, m_out, out_kind);
    }
}

static void expand(const void *m, enum aq_row_kind m_kind, size_t n, float *out)
{
    if (m_kind == AQ_ROW_NONE) return;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 mask = tail_mask(n - i);
        __m512 x;
        if (m_kind == AQ_ROW_FP32)
            x = load_row(m, AQ_ROW_FP32, i, mask);
        else if (m_kind == AQ_ROW_FP16)
            x = load_row(m, AQ_ROW_FP16, i, mask);
        else
            x = load_row(m, AQ_ROW_BF16, i, mask);
        _mm512_mask_storeu_ps(out + i, mask, x);
    }
}

/* Of both tables. */
#define AVX512_KERNELS                                                                                                 \
    .delta = delta, .span = span_of, .error = error_of, .quantize = quantize, .levels = levels, .update = update,      \
    .expand = expand, .step = step, .apply = apply, .apply_stream = aq_avx512_apply_stream, .noise = aq_avx512_noise,  \
    .rotate = scalar_rotate, .ec_quantize = aq_avx512_ec_quantize, .ec_levels = aq_avx512_ec_levels,                   \
    .ec_dither = aq_avx512_ec_dither, .ec_apply = aq_avx512_ec_apply, .products = scalar_products,                     \
    .rans_encode = aq_rans_encode_avx2, .rans_decode = aq_rans_decode_avx2

const struct aq_codec_kernels aq_codec_kernels_avx512 = {
    .name = "avx512", .pack = aq_avx512_pack, .unpack = aq_avx512_unpack, AVX512_KERNELS};

const struct aq_codec_kernels aq_codec_kernels_vbmi = {
    .name = "vbmi", .step_stream = aq_vbmi_step_stream, .pack = aq_vbmi_pack, .unpack = aq_vbmi_unpack, AVX512_KERNELS};

#else
typedef int aq_codec_no_avx512; /* ISO C requires something in a file */
#endif
