/* optimizer_fused_plain.c -- fused kernels on any processor. */
#define AQ_FUSED_TABLE aq_fused_runs_plain
#include "optimizer_fused.inc.h"
