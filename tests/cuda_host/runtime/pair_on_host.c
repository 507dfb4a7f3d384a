/* pair_on_host.c -- as group_nccl_on_host.c: the library's has no kinds of pairs. */
#include "pair.c"
