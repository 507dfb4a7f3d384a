/*
 * cpu_gemm_tile.inc.h -- the kernel of packed products; included by the files that define MULTIPLY_ADD(sum, x, y).
 *
 * PANEL_ROWS x 3 vectors of sums stay in registers; a step of k is 3 loads, 8 broadcasts and 24 multiply-adds. A tile
 * that reaches beyond c computes only the vectors it needs and stores under masks. An element's sum is the same bits
 * either way.
 */
#include <immintrin.h>

#include "cpu_gemm_panels.h"

#define TILE_VECTORS (PANEL_COLUMNS / 16)

static inline __attribute__((always_inline)) void tile_of_vectors(uint64_t units, const uint32_t *a, const uint32_t *b,
                                                                  float *c, uint64_t c_stride, uint64_t rows,
                                                                  __mmask16 last, bool accumulate, const int vectors,
                                                                  const bool whole)
{
    __m512 sums[PANEL_ROWS][TILE_VECTORS];
    _Pragma("GCC unroll 8") for (int i = 0; i < PANEL_ROWS; i++)
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) sums[i][j] = _mm512_setzero_ps();
    for (uint64_t k = 0; k < units; k++, a += PANEL_ROWS, b += PANEL_COLUMNS) {
        __m512i y[TILE_VECTORS];
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) y[j] = _mm512_loadu_si512(b + 16 * j);
        _Pragma("GCC unroll 8") for (int i = 0; i < PANEL_ROWS; i++)
        {
            const __m512i x = _mm512_set1_epi32((int)a[i]);
            _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) sums[i][j] = MULTIPLY_ADD(sums[i][j], x, y[j]);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < PANEL_ROWS; i++)
    {
        if (!whole && (uint64_t)i >= rows) return;
        float *row = c + (uint64_t)i * c_stride;
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++)
        {
            const __mmask16 mask = !whole && j == vectors - 1 ? last : (__mmask16)0xffff;
            if (accumulate) sums[i][j] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, row + 16 * j), sums[i][j]);
            _mm512_mask_storeu_ps(row + 16 * j, mask, sums[i][j]);
        }
    }
}

static void tile(uint64_t units, const uint32_t *a, const uint32_t *b, float *c, uint64_t c_stride, uint64_t rows,
                 uint64_t columns, bool accumulate)
{
    const __mmask16 last = (__mmask16)(0xffffu >> (panel_up(columns, 16) - columns));
    if (columns == PANEL_COLUMNS && rows == PANEL_ROWS)
        tile_of_vectors(units, a, b, c, c_stride, rows, last, accumulate, 3, true);
    else if (columns > 32)
        tile_of_vectors(units, a, b, c, c_stride, rows, last, accumulate, 3, false);
    else if (columns > 16)
        tile_of_vectors(units, a, b, c, c_stride, rows, last, accumulate, 2, false);
    else
        tile_of_vectors(units, a, b, c, c_stride, rows, last, accumulate, 1, false);
}
