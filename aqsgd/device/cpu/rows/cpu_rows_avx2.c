/* cpu_rows_avx2.c -- the row kernels for AVX2 and FMA. */
#if defined(__x86_64__)
#include "cpu_rows_vector.inc.h"

CPU_ROWS_TABLE(cpu_rows_avx2, "AVX2");
#endif
