/*
 * group_nccl_on_host.c -- the group over NCCL itself, compiled against the NCCL of this folder: what stands here is
 * found before the library's, which was built without.
 */
#undef AQ_WITH_NCCL
#define AQ_WITH_NCCL 1

#include "group_nccl.c"
