/*
 * cpu_gemm_tile_avx2.inc.h -- the kernel of packed products with AVX2; included behind cpu_gemm_pack_avx2.inc.h.
 *
 * A tile is made of quarters: TILE_ROWS x 3 vectors of sums, with 3 vectors of columns and a broadcast all sixteen
 * registers. A step of k is 3 loads, 4 broadcasts and 12 multiply-adds. Quarters and vectors beyond c are left out; an
 * element's sum is the same bits either way.
 */
enum { TILE_ROWS = 4, TILE_VECTORS = HALF_COLUMNS / 8 };

static inline __attribute__((always_inline)) void quarter(uint64_t units, const float *a, const float *b, float *c,
                                                          uint64_t c_stride, uint64_t rows, uint64_t columns,
                                                          bool accumulate, const int vectors)
{
    vf sums[TILE_ROWS][TILE_VECTORS];
    _Pragma("GCC unroll 4") for (int i = 0; i < TILE_ROWS; i++)
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) sums[i][j] = v_set(0.0f);
    _Pragma("GCC unroll 4") for (uint64_t k = 0; k < units; k++, a += PANEL_ROWS, b += HALF_COLUMNS)
    {
        vf y[TILE_VECTORS];
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) y[j] = _mm256_loadu_ps(b + 8 * j);
        _Pragma("GCC unroll 4") for (int i = 0; i < TILE_ROWS; i++)
        {
            const vf x = _mm256_broadcast_ss(a + i);
            _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++) sums[i][j] = v_fma(x, y[j], sums[i][j]);
        }
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < TILE_ROWS; i++)
    {
        if ((uint64_t)i >= rows) return;
        float *row = c + (uint64_t)i * c_stride;
        _Pragma("GCC unroll 3") for (int j = 0; j < vectors; j++)
        {
            const uint64_t left = columns - 8 * (uint64_t)j;
            if (accumulate) sums[i][j] = v_add(v_load(row + 8 * j, left), sums[i][j]);
            v_store(row + 8 * j, sums[i][j], left);
        }
    }
}

static void tile(uint64_t units, const uint32_t *a_panel, const uint32_t *b_panel, float *c, uint64_t c_stride,
                 uint64_t rows, uint64_t columns, bool accumulate)
{
    const float *a = (const float *)(const void *)a_panel, *b = (const float *)(const void *)b_panel;
    for (uint64_t n = 0; n < columns; n += HALF_COLUMNS, b += units * HALF_COLUMNS) {
        const uint64_t wide = panel_least(columns - n, HALF_COLUMNS);
        for (uint64_t m = 0; m < rows; m += TILE_ROWS) {
            const uint64_t high = panel_least(rows - m, TILE_ROWS);
            float *to = c + m * c_stride + n;
            if (wide > 16)
                quarter(units, a + m, b, to, c_stride, high, wide, accumulate, 3);
            else if (wide > 8)
                quarter(units, a + m, b, to, c_stride, high, wide, accumulate, 2);
            else
                quarter(units, a + m, b, to, c_stride, high, wide, accumulate, 1);
        }
    }
}
