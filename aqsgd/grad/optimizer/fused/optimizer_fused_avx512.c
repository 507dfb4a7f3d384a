/* optimizer_fused_avx512.c -- fused kernels on AVX-512. */
#if defined(__x86_64__)
#define AQ_FUSED_TABLE aq_fused_runs_avx512
#include "optimizer_fused.inc.h"
#endif
