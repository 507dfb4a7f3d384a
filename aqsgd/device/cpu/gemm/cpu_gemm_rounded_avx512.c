/*
 * cpu_gemm_rounded_avx512.c -- products of bf16 values for AVX-512 without AVX512_BF16: rounded when packed, fp32
 * kernel.
 */
#if defined(__x86_64__)
#define PACK_MODE PACK_ROUNDED
#include "cpu_gemm_pack.inc.h"

#define MULTIPLY_ADD(sum, x, y) _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), sum)
#include "cpu_gemm_tile.inc.h"

const struct cpu_panels cpu_panels_avx512_rounded = {.rows = PANEL_ROWS,
                                                     .unit = 1,
                                                     .units_max = 512,
                                                     .pack_rows = pack_rows,
                                                     .pack_columns = pack_columns,
                                                     .tile = tile};
#endif
