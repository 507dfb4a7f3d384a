/* cpu_winograd_avx2.c -- convolutions of 3 x 3 with AVX2: 12 or 8 of the 16 registers hold sums. */
#if defined(__x86_64__)
enum { PATCH_ROWS = 6, INPUT_ROWS = 4 };
#include "cpu_winograd.inc.h"

const struct cpu_winograd cpu_winograd_avx2 = CPU_WINOGRAD_TABLE;
#endif
