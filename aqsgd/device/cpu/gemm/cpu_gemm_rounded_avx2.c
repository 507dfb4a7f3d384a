/*
 * cpu_gemm_rounded_avx2.c -- products of bf16 values with AVX2: rounded when packed, fp32 kernel.
 */
#if defined(__x86_64__)
#define PACK_ROUND(value, type) ((type) == AQ_BF16 ? (value) : v_rounded_bf16(value))
#include "cpu_gemm_pack_avx2.inc.h"

#include "cpu_gemm_tile_avx2.inc.h"

const struct cpu_panels cpu_panels_avx2_rounded = {.rows = PANEL_ROWS,
                                                   .unit = 1,
                                                   .units_max = 256,
                                                   .pack_rows = pack_rows,
                                                   .pack_columns = pack_columns,
                                                   .tile = tile};
#endif
