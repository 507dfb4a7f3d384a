/*
 * cpu_gemm_avx2.c -- matrix products of fp32 with AVX2 and FMA.
 */
#if defined(__x86_64__)
#define PACK_ROUND(value, type) (value)
#include "cpu_gemm_pack_avx2.inc.h"

#include "cpu_gemm_tile_avx2.inc.h"

const struct cpu_panels cpu_panels_avx2 = {.rows = PANEL_ROWS,
                                           .unit = 1,
                                           .units_max = 256,
                                           .pack_rows = pack_rows,
                                           .pack_columns = pack_columns,
                                           .tile = tile};
#endif
