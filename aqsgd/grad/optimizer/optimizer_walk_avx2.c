/* optimizer_walk_avx2.c -- walks on AVX2 and FMA. */
#if defined(__x86_64__)
#define AQ_WALK_TABLE aq_walk_runs_avx2
#include "optimizer_walk.inc.h"
#endif
