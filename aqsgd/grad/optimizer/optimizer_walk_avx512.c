/* optimizer_walk_avx512.c -- walks on AVX-512. */
#if defined(__x86_64__)
#define AQ_WALK_TABLE aq_walk_runs_avx512
#include "optimizer_walk.inc.h"
#endif
