/* optimizer_fused_avx2.c -- fused kernels on AVX2 and FMA. */
#if defined(__x86_64__)
#define AQ_FUSED_TABLE aq_fused_runs_avx2
#include "optimizer_fused.inc.h"
#endif
