/* cpu_winograd_avx512.c -- convolutions of 3 x 3 with AVX-512: 24 or 16 of the 32 registers hold sums. */
#if defined(__x86_64__)
enum { PATCH_ROWS = 12, INPUT_ROWS = 8 };
#include "cpu_winograd.inc.h"

const struct cpu_winograd cpu_winograd_avx512 = CPU_WINOGRAD_TABLE;
#endif
