/*
 * cpu_gemm_pack_avx2.inc.h -- packing into panels with AVX2; included by the files of its panel kernels.
 *
 * Row panels are as in cpu_gemm_panels.h; a column panel is in two halves, each [unit][HALF_COLUMNS], because the
 * kernel (cpu_gemm_tile_avx2.inc.h) goes through one half at a time and keeps it in the first-level cache. Eight lanes
 * at a time: if lanes are contiguous in memory a unit of them is a load, else 8 units of 8 lanes are loaded and
 * transposed. The includer defines PACK_ROUND(value, type): the product's rounding of a value of that type.
 */
#include "cpu_gemm_panels.h"
#include "cpu_vector.h"

enum { HALF_COLUMNS = PANEL_COLUMNS / 2 };

struct pack_source {
    const void *data; /* of lane 0, k 0 */
    enum aq_element type;
    uint64_t step; /* elements between lanes where k is contiguous, else between values of k */
    uint64_t lanes, depth;
};

static inline __attribute__((always_inline)) vf load8(const struct pack_source *s, enum aq_element type, uint64_t i,
                                                      uint64_t left)
{
    return PACK_ROUND(v_load_as(s->data, type, i, left), type);
}

/* The destination of 8 lanes from `lane` of unit 0, and the distance to the next unit. */
static inline float *place_of(uint32_t *out, uint64_t units, uint64_t lane, bool rows)
{
    const uint64_t wide = rows ? PANEL_ROWS : HALF_COLUMNS;
    return (float *)(void *)out + lane / wide * wide * units + lane % wide;
}

/*
 * Lanes side by side: unit by unit, so that memory is read in order. Rows are too far apart for the processor to guess
 * the next one.
 */
static inline __attribute__((always_inline)) void pack_together(const struct pack_source *s, enum aq_element type,
                                                                bool rows, uint64_t padded, float *out)
{
    enum { AHEAD = 8 }; /* values of k */
    const uint64_t step = rows ? PANEL_ROWS : HALF_COLUMNS;
    for (uint64_t unit = 0; unit < s->depth; unit++) {
        const uint64_t next = unit + AHEAD < s->depth ? unit + AHEAD : s->depth - 1;
        for (uint64_t lane = 0; lane < padded; lane += LANES) {
            float *place = place_of((uint32_t *)(void *)out, s->depth, lane, rows) + unit * step;
            if (lane >= s->lanes) {
                _mm256_storeu_ps(place, v_set(0.0f));
                continue;
            }
            __builtin_prefetch(cpu_at(s->data, type, next * s->step + lane));
            _mm256_storeu_ps(place, load8(s, type, unit * s->step + lane, s->lanes - lane));
        }
    }
}

/* k side by side. */
static inline __attribute__((always_inline)) void pack_apart(const struct pack_source *s, enum aq_element type,
                                                             bool rows, uint64_t padded, float *out)
{
    const uint64_t step = rows ? PANEL_ROWS : HALF_COLUMNS;
    for (uint64_t lane = 0; lane < padded; lane += LANES) {
        float *place = place_of((uint32_t *)(void *)out, s->depth, lane, rows);
        for (uint64_t unit = 0; unit < s->depth; unit += LANES) {
            const uint64_t left = s->depth - unit;
            vf r[LANES];
            _Pragma("GCC unroll 8") for (uint64_t i = 0; i < LANES; i++) r[i] =
                lane + i < s->lanes ? load8(s, type, (lane + i) * s->step + unit, left) : v_set(0.0f);
            v_transpose(r);
            if (left >= LANES)
                _Pragma("GCC unroll 8") for (uint64_t i = 0; i < LANES; i++)
                    _mm256_storeu_ps(place + (unit + i) * step, r[i]);
            else
                for (uint64_t i = 0; i < left; i++)
                    _mm256_storeu_ps(place + (unit + i) * step, r[i]);
        }
    }
}

static inline __attribute__((always_inline)) void pack_typed(const struct pack_source *s, enum aq_element type,
                                                             bool rows, bool lanes_together, uint32_t *to)
{
    float *out = (float *)(void *)to;
    const uint64_t padded = panel_up(s->lanes, rows ? PANEL_ROWS : PANEL_COLUMNS);
    if (rows && lanes_together) pack_together(s, type, true, padded, out);
    if (rows && !lanes_together) pack_apart(s, type, true, padded, out);
    if (!rows && lanes_together) pack_together(s, type, false, padded, out);
    if (!rows && !lanes_together) pack_apart(s, type, false, padded, out);
}

#include "cpu_gemm_pack_ends.inc.h"
