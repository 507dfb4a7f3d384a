/* cpu_rows_avx512bf16.c -- the row kernels for AVX-512 with AVX512_BF16, which rounds to bf16 in one instruction. */
#if defined(__x86_64__)
#include "cpu_rows_vector.inc.h"

CPU_ROWS_TABLE(cpu_rows_avx512bf16, "AVX-512 BF16");
#endif
