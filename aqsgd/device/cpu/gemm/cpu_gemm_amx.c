/*
 * cpu_gemm_amx.c -- products of bf16 pairs on AMX's tiles (Intel SDM volume 1, chapter 18; TDPBF16PS in volume 2).
 *
 * A tile register holds 16 rows of 64 bytes. One instruction adds the product of 16 rows of a and 16 columns of b, over
 * 16 units (32 values of k), to 16 x 16 sums. Six of the eight registers hold the sums of 32 rows and 48 columns; one
 * is for a and one for b, so 7 loads serve 6 products:
 *
 *     row panel     [step][2][16 rows][16 units]   a step is 16 units; the last one may have fewer, and shorter rows
 *     column panel  [unit][PANEL_COLUMNS]          as AVX512_BF16 has it: 16 units of 16 columns are a tile of b
 *
 * Sums begin with what c holds, or zero, so an element's bits depend on K alone. The instruction takes operands and
 * sums below 1.2e-38 as zero; the truth does not. Such an operand is lost, also beside a large one.
 *
 * Registers keep one shape for all calls between begin and end, because a change of shape costs 200 cycles and clears
 * them: a block at the edge of c, or a last step with fewer units, goes through a copy of the full size.
 */
#if defined(__x86_64__)
#define PACK_MODE PACK_PAIRS
#define PACK_OWN_ROWS
#include <string.h>

#include "cpu_gemm_pack.inc.h"

enum { SIDE = 16 /* rows, columns or units of a register */, STEP = 2 * SIDE * SIDE /* words of a row panel's step */ };

struct block {
    float sums[2 * SIDE][PANEL_COLUMNS];
};

/* The compiler does not know that a tile instruction reads and writes memory. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

static void tiles_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1,
               .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
    _tile_loadconfig(&shape);
}

/* Frees the registers, so that Linux has nothing to keep for this thread. */
static void tiles_end(void)
{
    _tile_release();
}

/* Rows of a in a panel: a row of a register is 16 units of one lane. */
static inline __attribute__((always_inline)) void pack_row_panels(const struct pack_source *s, enum aq_element type,
                                                                  bool lanes_together, uint32_t *out)
{
    const uint64_t units = (s->depth + 1) / 2;
    for (uint64_t lane = 0; lane < s->lanes; lane += SIDE) {
        uint32_t *panel = out + lane / (2 * SIDE) * (2 * SIDE) * units;
        for (uint64_t unit = 0; unit < units; unit += SIDE) {
            const uint64_t wide = panel_least(units - unit, SIDE);
            uint32_t *to = panel + unit * 2 * SIDE + lane / SIDE % 2 * SIDE * wide;
            const __mmask16 mask = (__mmask16)(0xffffu >> (SIDE - wide));
            vf r[SIDE];
            _Pragma("GCC unroll 16") for (uint64_t i = 0; i < SIDE; i++)
            {
                const bool none = lanes_together && i >= wide;
                const __m512i value = none             ? _mm512_setzero_si512()
                                      : lanes_together ? unit_of_lanes(s, type, lane, unit + i, PACK_PAIRS)
                                                       : units_of_lane(s, type, lane + i, unit, PACK_PAIRS);
                r[i] = _mm512_castsi512_ps(value);
            }
            if (lanes_together) v_transpose(r);
            _Pragma("GCC unroll 16") for (uint64_t i = 0; i < SIDE; i++)
                _mm512_mask_storeu_ps((float *)(void *)to + i * wide, mask, r[i]);
        }
    }
}

/* One step of k: 16 units of both. The second 16 rows of a, if used, begin 16 x 16 words after the first. */
static inline __attribute__((always_inline)) void multiply_step(const uint32_t *a, const uint32_t *b,
                                                                const bool second_rows, const int columns)
{
    enum { A_ROW = SIDE * 4, B_ROW = PANEL_COLUMNS * 4 };
    _tile_loadd(7, b, B_ROW);
    _tile_loadd(6, a, A_ROW);
    _tile_dpbf16ps(0, 6, 7);
    if (columns > 1) {
        if (second_rows) {
            _tile_loadd(6, a + SIDE * SIDE, A_ROW);
            _tile_dpbf16ps(3, 6, 7);
            _tile_loadd(7, b + SIDE, B_ROW);
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(6, a, A_ROW);
            _tile_dpbf16ps(1, 6, 7);
        } else {
            _tile_loadd(7, b + SIDE, B_ROW);
            _tile_dpbf16ps(1, 6, 7);
        }
    } else if (second_rows) {
        _tile_loadd(6, a + SIDE * SIDE, A_ROW);
        _tile_dpbf16ps(3, 6, 7);
    }
    if (columns > 2) {
        _tile_loadd(7, b + 2 * SIDE, B_ROW);
        _tile_dpbf16ps(2, 6, 7);
        if (second_rows) {
            _tile_loadd(6, a + SIDE * SIDE, A_ROW);
            _tile_dpbf16ps(5, 6, 7);
        }
    }
}

/* The last units of k, fewer than 16: copied to where the others are zero. */
static __attribute__((noinline)) void copy_rest(uint64_t units, const uint32_t *a, const uint32_t *b,
                                                uint32_t a_full[STEP], uint32_t b_full[SIDE * PANEL_COLUMNS])
{
    for (uint64_t row = 0; row < 2 * SIDE; row++)
        for (uint64_t unit = 0; unit < SIDE; unit++)
            a_full[row * SIDE + unit] = unit < units ? a[row * units + unit] : 0;
    for (uint64_t i = 0; i < SIDE * PANEL_COLUMNS; i++)
        b_full[i] = i < units * PANEL_COLUMNS ? b[i] : 0;
}

static inline __attribute__((always_inline)) void tile_of(uint64_t units, const uint32_t *a, const uint32_t *b,
                                                          float *c, uint64_t stride, bool accumulate,
                                                          const bool second_rows, const int columns)
{
    const uint64_t bytes = stride * sizeof(float);
    float *low = c + SIDE * stride;
    MEMORY_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    if (accumulate) {
        _tile_loadd(0, c, bytes);
        if (columns > 1) _tile_loadd(1, c + SIDE, bytes);
        if (columns > 2) _tile_loadd(2, c + 2 * SIDE, bytes);
        if (second_rows) _tile_loadd(3, low, bytes);
        if (second_rows && columns > 1) _tile_loadd(4, low + SIDE, bytes);
        if (second_rows && columns > 2) _tile_loadd(5, low + 2 * SIDE, bytes);
    }
    for (; units >= SIDE; units -= SIDE, a += STEP, b += SIDE * PANEL_COLUMNS)
        multiply_step(a, b, second_rows, columns);
    if (units) {
        uint32_t a_full[STEP] __attribute__((aligned(64))), b_full[SIDE * PANEL_COLUMNS] __attribute__((aligned(64)));
        copy_rest(units, a, b, a_full, b_full);
        MEMORY_BARRIER();
        multiply_step(a_full, b_full, second_rows, columns);
    }
    _tile_stored(0, c, bytes);
    if (columns > 1) _tile_stored(1, c + SIDE, bytes);
    if (columns > 2) _tile_stored(2, c + 2 * SIDE, bytes);
    if (second_rows) _tile_stored(3, low, bytes);
    if (second_rows && columns > 1) _tile_stored(4, low + SIDE, bytes);
    if (second_rows && columns > 2) _tile_stored(5, low + 2 * SIDE, bytes);
    MEMORY_BARRIER();
}

/* The values of a block at the edge of c, to or from a copy of the full size. */
static void copy_edge(struct block *block, float *c, uint64_t c_stride, uint64_t rows, uint64_t columns, bool back)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t j = 0; j < columns; j += SIDE) {
            const __mmask16 mask = (__mmask16)(0xffffu >> (SIDE - panel_least(columns - j, SIDE)));
            float *at = c + r * c_stride + j;
            if (back)
                _mm512_mask_storeu_ps(at, mask, _mm512_loadu_ps(block->sums[r] + j));
            else
                _mm512_storeu_ps(block->sums[r] + j, _mm512_maskz_loadu_ps(mask, at));
        }
}

static void tile_edge(uint64_t units, const uint32_t *a, const uint32_t *b, float *c, uint64_t c_stride, uint64_t rows,
                      uint64_t columns, bool accumulate)
{
    struct block block __attribute__((aligned(64)));
    if (accumulate) {
        memset(&block, 0, sizeof block);
        copy_edge(&block, c, c_stride, rows, columns, false);
    }
    float *sums = block.sums[0];
    const bool second_rows = rows > SIDE;
    if (columns > 2 * SIDE) {
        if (second_rows)
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, true, 3);
        else
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, false, 3);
    } else if (columns > SIDE) {
        if (second_rows)
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, true, 2);
        else
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, false, 2);
    } else {
        if (second_rows)
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, true, 1);
        else
            tile_of(units, a, b, sums, PANEL_COLUMNS, accumulate, false, 1);
    }
    copy_edge(&block, c, c_stride, rows, columns, true);
}

static void tile(uint64_t units, const uint32_t *a, const uint32_t *b, float *c, uint64_t c_stride, uint64_t rows,
                 uint64_t columns, bool accumulate)
{
    if (rows == 2 * SIDE && columns == PANEL_COLUMNS)
        tile_of(units, a, b, c, c_stride, accumulate, true, 3);
    else
        tile_edge(units, a, b, c, c_stride, rows, columns, accumulate);
}

const struct cpu_panels cpu_panels_amx = {.rows = 2 * SIDE,
                                          .unit = 2,
                                          .units_max = 512,
                                          .pack_rows = pack_rows,
                                          .pack_columns = pack_columns,
                                          .tile = tile,
                                          .begin = tiles_begin,
                                          .end = tiles_end};
#endif
