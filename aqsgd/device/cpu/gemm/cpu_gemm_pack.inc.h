/*
 * cpu_gemm_pack.inc.h -- packing into panels with AVX-512; included by the files of the panel kernels.
 *
 * Sixteen lanes at a time. If lanes are contiguous in memory, a unit of 16 lanes is one or two loads; if k is, 16 units
 * of 16 lanes are loaded and transposed. The includer defines PACK_MODE, and PACK_OWN_ROWS where it has row panels of
 * its own (pack_row_panels).
 */
#include "cpu_gemm_panels.h"
#include "cpu_vector.h"

enum pack_mode {
    PACK_FLOATS = 0,  /* fp32                               */
    PACK_ROUNDED = 1, /* rounded to bf16, kept as fp32      */
    PACK_PAIRS = 2,   /* two bf16 values in a unit          */
    PACK_HALVES = 3   /* rounded to fp16, kept as fp32      */
};

struct pack_source {
    const void *data; /* of lane 0, k 0 */
    enum aq_element type;
    uint64_t step; /* elements between lanes where k is contiguous, else between values of k */
    uint64_t lanes, depth;
};

static inline __m512i rounded(vf x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_and_si512(_mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000)),
                            _mm512_set1_epi32((int)0xffff0000));
}

#if defined(__AVX512BF16__)
/* 16 or 32 values rounded to bf16 by the instruction for it. */
static inline __m256i half_of(__m512i x)
{
    return (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(x));
}
static inline __m512i halves_of(__m512i low, __m512i high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_castsi512_ps(high), _mm512_castsi512_ps(low));
}
#else
static inline __m256i half_of(__m512i x)
{
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(_mm512_castsi512_ps(x)), 16));
}
static inline __m512i halves_of(__m512i low, __m512i high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(half_of(low)), half_of(high), 1);
}
#endif

/* 16 values from element i as fp32, rounded where the mode is so; zero from `left` on. */
static inline __attribute__((always_inline)) __m512i load16(const void *x, enum aq_element type, uint64_t i,
                                                            uint64_t left, enum pack_mode mode)
{
    if (left == 0) return _mm512_setzero_si512();
    const vf value = v_load_as(x, type, i, left);
    if (mode == PACK_ROUNDED && type != AQ_BF16) return rounded(value);
    return _mm512_castps_si512(mode == PACK_HALVES && type != AQ_F16 ? v_rounded_f16(value) : value);
}

/* 16 lanes of one unit, lanes side by side. */
static inline __attribute__((always_inline)) __m512i unit_of_lanes(const struct pack_source *s, enum aq_element type,
                                                                   uint64_t lane, uint64_t unit, enum pack_mode mode)
{
    const uint64_t left = s->lanes - lane;
    if (mode != PACK_PAIRS) return load16(s->data, type, unit * s->step + lane, left, mode);
    const bool one = 2 * unit + 1 >= s->depth;
    const __m512i low = load16(s->data, type, 2 * unit * s->step + lane, left, mode);
    const __m512i high = load16(s->data, type, (2 * unit + 1) * s->step + lane, one ? 0 : left, mode);
    if (type == AQ_BF16) return _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
    const __m512i wide = _mm512_cvtepu16_epi32(half_of(low));
    return _mm512_or_si512(wide, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half_of(high)), 16));
}

/* 16 units of one lane, k side by side; zero beyond depth. */
static inline __attribute__((always_inline)) __m512i units_of_lane(const struct pack_source *s, enum aq_element type,
                                                                   uint64_t lane, uint64_t unit, enum pack_mode mode)
{
    if (lane >= s->lanes) return _mm512_setzero_si512();
    if (mode != PACK_PAIRS) return load16(s->data, type, lane * s->step + unit, s->depth - unit, mode);
    const uint64_t at = lane * s->step + 2 * unit, left = s->depth - 2 * unit;
    if (type == AQ_BF16) {
        const uint16_t *x = (const uint16_t *)s->data + at;
        if (left >= 32) return _mm512_loadu_si512(x);
        return _mm512_maskz_loadu_epi16((__mmask32)((1u << left) - 1), x);
    }
    const __m512i low = load16(s->data, type, at, left, mode);
    const __m512i high = load16(s->data, type, at + 16, left > 16 ? left - 16 : 0, mode);
    return halves_of(low, high);
}

/* The destination of 16 lanes from `lane` of a unit: one place in a column panel, or the rows of two row panels. */
struct pack_place {
    uint32_t *first, *second; /* second: only for row panels, or NULL */
    uint64_t step;            /* from unit to unit */
};

static inline struct pack_place place_of(uint32_t *out, uint64_t units, uint64_t lane, uint64_t lanes, bool rows)
{
    if (!rows)
        return (struct pack_place){.first = out + lane / PANEL_COLUMNS * PANEL_COLUMNS * units + lane % PANEL_COLUMNS,
                                   .step = PANEL_COLUMNS};
    uint32_t *first = out + lane * units;
    return (struct pack_place){
        .first = first, .second = lane + PANEL_ROWS < lanes ? first + PANEL_ROWS * units : NULL, .step = PANEL_ROWS};
}

static inline __attribute__((always_inline)) void put(const struct pack_place *place, uint64_t unit, __m512i value,
                                                      bool rows)
{
    if (!rows) {
        _mm512_storeu_si512(place->first + unit * PANEL_COLUMNS, value);
        return;
    }
    _mm256_storeu_si256((void *)(place->first + unit * PANEL_ROWS), _mm512_castsi512_si256(value));
    if (place->second)
        _mm256_storeu_si256((void *)(place->second + unit * PANEL_ROWS), _mm512_extracti64x4_epi64(value, 1));
}

/*
 * Lanes side by side: unit by unit, so that memory is read in order: a few lines in a row, then the same of the next
 * row. Weights come from memory, and a column of single lines comes at a third of the speed. Rows are too far apart for
 * the processor to guess the next one.
 */
static inline __attribute__((always_inline)) void pack_together(const struct pack_source *s, enum aq_element type,
                                                                bool rows, enum pack_mode mode, uint32_t *out)
{
    enum { AHEAD = 12 }; /* values of k */
    const uint64_t units = mode == PACK_PAIRS ? (s->depth + 1) / 2 : s->depth, each = mode == PACK_PAIRS ? 2 : 1;
    const uint64_t padded = rows ? s->lanes : panel_up(s->lanes, PANEL_COLUMNS);
    for (uint64_t unit = 0; unit < units; unit++) {
        const uint64_t next = unit * each + AHEAD < s->depth ? unit * each + AHEAD : s->depth - 1;
        for (uint64_t lane = 0; lane < padded; lane += 16) {
            const struct pack_place place = place_of(out, units, lane, s->lanes, rows);
            if (lane >= s->lanes) {
                put(&place, unit, _mm512_setzero_si512(), rows);
                continue;
            }
            __builtin_prefetch(cpu_at(s->data, type, next * s->step + lane));
            put(&place, unit, unit_of_lanes(s, type, lane, unit, mode), rows);
        }
    }
}

static inline __attribute__((always_inline)) void pack_as(const struct pack_source *s, enum aq_element type, bool rows,
                                                          bool lanes_together, enum pack_mode mode, uint32_t *out)
{
    const uint64_t units = mode == PACK_PAIRS ? (s->depth + 1) / 2 : s->depth;
    const uint64_t padded = rows ? s->lanes : panel_up(s->lanes, PANEL_COLUMNS);
    if (lanes_together) {
        pack_together(s, type, rows, mode, out);
        return;
    }
    for (uint64_t lane = 0; lane < padded; lane += 16) {
        const struct pack_place place = place_of(out, units, lane, s->lanes, rows);
        if (lane >= s->lanes) {
            for (uint64_t unit = 0; unit < units; unit++)
                put(&place, unit, _mm512_setzero_si512(), rows);
        } else {
            for (uint64_t unit = 0; unit < units; unit += 16) {
                vf r[16];
                _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] =
                    _mm512_castsi512_ps(units_of_lane(s, type, lane + (uint64_t)i, unit, mode));
                v_transpose(r);
                const uint64_t count = panel_least(units - unit, 16);
                if (count == 16)
                    _Pragma("GCC unroll 16") for (uint64_t i = 0; i < 16; i++)
                        put(&place, unit + i, _mm512_castps_si512(r[i]), rows);
                else
                    for (uint64_t i = 0; i < count; i++)
                        put(&place, unit + i, _mm512_castps_si512(r[i]), rows);
            }
        }
    }
}

static inline __attribute__((always_inline)) void pack_row_panels(const struct pack_source *s, enum aq_element type,
                                                                  bool lanes_together, uint32_t *out);

#if !defined(PACK_OWN_ROWS)
static inline __attribute__((always_inline)) void pack_row_panels(const struct pack_source *s, enum aq_element type,
                                                                  bool lanes_together, uint32_t *out)
{
    if (lanes_together)
        pack_as(s, type, true, true, PACK_MODE, out);
    else
        pack_as(s, type, true, false, PACK_MODE, out);
}
#endif

static inline __attribute__((always_inline)) void pack_typed(const struct pack_source *s, enum aq_element type,
                                                             bool rows, bool lanes_together, uint32_t *out)
{
    if (rows && lanes_together) pack_row_panels(s, type, true, out);
    if (rows && !lanes_together) pack_row_panels(s, type, false, out);
    if (!rows && lanes_together) pack_as(s, type, false, true, PACK_MODE, out);
    if (!rows && !lanes_together) pack_as(s, type, false, false, PACK_MODE, out);
}

#include "cpu_gemm_pack_ends.inc.h"
