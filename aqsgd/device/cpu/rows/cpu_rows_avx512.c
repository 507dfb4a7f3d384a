/* cpu_rows_avx512.c -- the row kernels for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#include "cpu_rows_vector.inc.h"

CPU_ROWS_TABLE(cpu_rows_avx512, "AVX-512");
#endif
