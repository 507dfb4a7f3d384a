/*
 * cpu_gemm_avx512bf16.c -- products of bf16 pairs with AVX512_BF16. The instruction takes operands and sums below
 * 1.2e-38 as zero; the truth does not. Such an operand is lost, also beside a large one.
 */
#if defined(__x86_64__)
#define PACK_MODE PACK_PAIRS
#include "cpu_gemm_pack.inc.h"

#define MULTIPLY_ADD(sum, x, y) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(y))
#include "cpu_gemm_tile.inc.h"

const struct cpu_panels cpu_panels_avx512bf16 = {.rows = PANEL_ROWS,
                                                 .unit = 2,
                                                 .units_max = 512,
                                                 .pack_rows = pack_rows,
                                                 .pack_columns = pack_columns,
                                                 .tile = tile};
#endif
