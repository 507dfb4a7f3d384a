/* nccl_ranks_on_host.c -- as group_nccl_on_host.c. */
#undef AQ_WITH_NCCL
#define AQ_WITH_NCCL 1

#include "nccl_ranks.c"
