/*
 * cuda_grad_sum.cu -- sums over ranks on a GPU, added in the order of ranks as net/group/collective_reduce.c adds: a
 * thread per value, each operation rounded once.
 */
#include "cuda_launch.cuh"

#include "cuda_grad.h"

#ifdef AQ_CUDA_HOST
#define __grid_constant__
#endif

enum { SUM_BLOCK = 256 };

__global__ void __launch_bounds__(SUM_BLOCK) sum_ranks(const __grid_constant__ struct aq_sum_ranks args)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.count) return;
    float sum = args.rank == 0 ? args.own[i] : args.parts[0][i];
    for (uint32_t rank = 1; rank < args.size; rank++)
        sum = __fadd_rn(sum, rank == args.rank ? args.own[i] : args.parts[rank][i]);
    args.own[i] = args.scale == 1.0f ? sum : __fmul_rn(sum, args.scale);
}

extern "C" enum aq_status aq_cuda_sum_ranks(const struct aq_sum_ranks *args, void *stream)
{
    if (args->count == 0) return AQ_OK;
    return AQ_LAUNCH(sum_ranks, aq_blocks(args->count, SUM_BLOCK), SUM_BLOCK, 0, (struct CUstream_st *)stream, *args);
}
