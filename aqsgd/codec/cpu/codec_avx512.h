/*
 * codec_avx512.h -- what the two AVX-512 files share: rows in registers, sums of 32 lanes, one quantizer for 16 values.
 *
 * Only for files compiled with AVX-512 F/BW/DQ/VL.
 */
#ifndef AQSGD_CODEC_AVX512_H
#define AQSGD_CODEC_AVX512_H

#include <immintrin.h>

#include "codec_scalar.h"

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS __mmask16 tail_mask(size_t left)
{
    return left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1u);
}

ALWAYS __m512 magnitude(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

ALWAYS __m512 load_row(const void *row, enum aq_row_kind kind, size_t i, __mmask16 mask)
{
    const uint8_t *bytes = row;
    if (kind == AQ_ROW_FP32) return _mm512_maskz_loadu_ps(mask, bytes + 4 * i);
    const __m256i half = mask == 0xffff ? _mm256_loadu_si256((const __m256i *)(const void *)(bytes + 2 * i))
                                        : _mm256_maskz_loadu_epi16(mask, bytes + 2 * i);
    if (kind == AQ_ROW_FP16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Round to nearest even by integers, as aq_bfloat_from_float; only finite values and infinities come here. */
ALWAYS __m256i bfloat_of(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

ALWAYS void store_row(void *row, enum aq_row_kind kind, size_t i, __mmask16 mask, __m512 x)
{
    uint8_t *bytes = row;
    if (kind == AQ_ROW_FP32) {
        if (mask == 0xffff)
            _mm512_storeu_ps(bytes + 4 * i, x);
        else
            _mm512_mask_storeu_ps(bytes + 4 * i, mask, x);
    } else if (kind != AQ_ROW_NONE) {
        const __m256i half =
            kind == AQ_ROW_FP16 ? _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) : bfloat_of(x);
        if (mask == 0xffff)
            _mm256_storeu_si256((__m256i *)(void *)(bytes + 2 * i), half);
        else
            _mm256_mask_storeu_epi16(bytes + 2 * i, mask, half);
    }
}

/* The two registers of a sum: lanes 0-15 and 16-31. */
struct pair {
    __m512 low, high;
};

ALWAYS void add_lanes(double *sums, struct pair lanes)
{
    const __m256 quarters[4] = {_mm512_castps512_ps256(lanes.low), _mm512_extractf32x8_ps(lanes.low, 1),
                                _mm512_castps512_ps256(lanes.high), _mm512_extractf32x8_ps(lanes.high, 1)};
    for (int q = 0; q < 4; q++)
        _mm512_storeu_pd(sums + 8 * q, _mm512_add_pd(_mm512_loadu_pd(sums + 8 * q), _mm512_cvtps_pd(quarters[q])));
}

/* scalar_fold: lanes j and j + 16, then 8, 4, 2, 1. */
ALWAYS float fold_lanes(struct pair lanes)
{
    const __m512 sixteen = _mm512_add_ps(lanes.low, lanes.high);
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sixteen), _mm512_extractf32x8_ps(sixteen, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

ALWAYS struct pair no_sum(void)
{
    return (struct pair){_mm512_setzero_ps(), _mm512_setzero_ps()};
}

/* ---- quantizers ---- */

/* The deq of every code, where they fit one or two registers. */
struct table {
    __m512 low, high;
    __m512 center, unit; /* else: (code - center) * unit */
};

ALWAYS struct table table_of(const struct aq_quant *quant)
{
    /* (code - (L/2 - 0.5)) * (2 * unit) is (2i + 1) * unit before rounding; the differences are exact. The table
     * repeats, so that index bits above a code's own do not matter. */
    const __m512 center = _mm512_set1_ps((float)quant->half - (quant->rise ? 0.5f : 0.0f));
    const __m512 unit = _mm512_set1_ps(quant->rise ? 2.0f * quant->unit : quant->unit);
    const __m512i mask = _mm512_set1_epi32((int32_t)(2 * quant->half - 1));
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(16));
    return (struct table){
        .low = _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(low, mask)), center), unit),
        .high = _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(high, mask)), center), unit),
        .center = center,
        .unit = unit,
    };
}

/* A quantizer in registers, for rounding to nearest. */
struct grid {
    __m512 inverse, limit, low, high, magic, unit, step;
    __m512 table; /* deq of the code in the low four bits of a sum, for 4 bits and fewer */
};

enum mode { RISE, TREAD, SIGNED };

ALWAYS enum mode mode_of(const struct aq_quant *quant)
{
    return quant->rise ? RISE : quant->low == -quant->high ? TREAD : SIGNED;
}

/*
 * 1.5 * 2^23 + L/2: added to |x| <= L/2, the sum has a last place of one, so that the addition rounds to an integer and
 * the low byte of its bits is the code itself.
 */
ALWAYS struct grid grid_of(const struct aq_quant *quant)
{
    const float half = (float)quant->half;
    return (struct grid){
        .inverse = _mm512_set1_ps(quant->inverse),
        .limit = _mm512_set1_ps(quant->rise ? aq_float_of(aq_bits_of(half) - 1u) : quant->high),
        .low = _mm512_set1_ps(quant->low),
        .high = _mm512_set1_ps(quant->high),
        .magic = _mm512_set1_ps(0x1.8p23f + half),
        .unit = _mm512_set1_ps(quant->unit),
        .step = _mm512_set1_ps(2.0f * quant->unit),
        .table = table_of(quant).low,
    };
}

/* magic + i. Clamping before rounding gives the same integers as after: the limits of mid-tread and signed are
 * integers, that of mid-rise is the float below L/2, whose floor is the highest code and whose negative's floor the
 * lowest. */
ALWAYS __m512 rounded(__m512 x, const struct grid *grid, enum mode mode)
{
    const __m512 scaled = _mm512_mul_ps(x, grid->inverse);
    if (mode == RISE)
        return _mm512_add_round_ps(_mm512_range_ps(scaled, grid->limit, 2), grid->magic,
                                   _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    if (mode == TREAD) return _mm512_add_ps(_mm512_range_ps(scaled, grid->limit, 2), grid->magic);
    return _mm512_add_ps(_mm512_min_ps(_mm512_max_ps(scaled, grid->low), grid->high), grid->magic);
}

/* (2i + 1) * unit = i * step + unit exactly, and both round it once. */
ALWAYS __m512 level_of(__m512 sum, const struct grid *grid, enum mode mode)
{
    const __m512 i = _mm512_sub_ps(sum, grid->magic);
    return mode == RISE ? _mm512_fmadd_ps(i, grid->step, grid->unit) : _mm512_mul_ps(i, grid->unit);
}

struct step_state {
    struct pair error;
    __m512 peak;
};

ALWAYS uint32_t peak_of(const struct step_state *state)
{
    return _mm512_reduce_max_epu32(_mm512_castps_si512(state->peak));
}

/* Sixteen values: x^ to hat and m_out, and magic + i for the codes. */
ALWAYS __m512 step_16(const float *d, const void *m, float *hat, void *m_out, enum aq_row_kind m_kind,
                      enum aq_row_kind out_kind, const struct grid *grid, enum mode mode, bool few, size_t i,
                      __mmask16 mask, struct step_state *state, bool upper, bool measured, bool watched)
{
    const __m512 x = mask == 0xffff ? _mm512_loadu_ps(d + i) : _mm512_maskz_loadu_ps(mask, d + i);
    const __m512 sum = rounded(x, grid, mode);
    const __m512 level = few ? _mm512_permutexvar_ps(_mm512_castps_si512(sum), grid->table) : level_of(sum, grid, mode);
    const __m512 e = mask == 0xffff ? _mm512_sub_ps(x, level) : _mm512_maskz_sub_ps(mask, x, level);
    const __m512 y = m_kind == AQ_ROW_NONE ? level : _mm512_add_ps(level, load_row(m, m_kind, i, mask));
    if (measured && upper)
        state->error.high = _mm512_fmadd_ps(e, e, state->error.high);
    else if (measured)
        state->error.low = _mm512_fmadd_ps(e, e, state->error.low);
    /* The larger magnitude. It would pass over a NaN, but a and d are finite here, and so m and y are numbers. */
    if (watched)
        state->peak = mask == 0xffff ? _mm512_range_ps(state->peak, y, 0xb)
                                     : _mm512_mask_range_ps(state->peak, mask, state->peak, y, 0xb);
    if (hat != NULL) store_row(hat, AQ_ROW_FP32, i, mask, y);
    store_row(m_out, out_kind, i, mask, y);
    return sum;
}

enum size_class { FOUR_BITS, FIVE_BITS, MORE_BITS, EIGHT_BITS };

/* ---- codec_streams_avx512.c ---- */

void aq_avx512_pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out);
void aq_avx512_unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes);
void aq_vbmi_pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out);
void aq_vbmi_unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes);
size_t aq_vbmi_step_stream(const float *d, size_t n, const struct aq_quant *quant, uint8_t *out, const void *m,
                           float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind, double *error2,
                           uint32_t *peak, const void *ahead_m);
size_t aq_avx512_apply_stream(const uint8_t *in, size_t bytes, size_t n, const struct aq_quant *quant, const void *m,
                              float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind,
                              uint32_t *peak);
void aq_avx512_noise(const struct aq_rng_key *key, uint64_t first, size_t n, float *out);

#endif
