/* optimizer_walk_plain.c -- walks on any processor. */
#define AQ_WALK_TABLE aq_walk_runs_plain
#include "optimizer_walk.inc.h"
