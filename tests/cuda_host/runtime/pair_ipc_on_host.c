/* pair_ipc_on_host.c -- as group_nccl_on_host.c. */
#undef AQ_WITH_CUDA
#define AQ_WITH_CUDA 1

#include "pair_ipc.c"
