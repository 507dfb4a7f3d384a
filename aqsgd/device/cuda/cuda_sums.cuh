/*
 * cuda_sums.cuh -- sums over rows, as kernels share them (cuda_rows.cu): each group of rows leaves a partial row in the
 * scratch, group i's at i * width, and the partial rows are added in the order of the groups.
 */
#ifndef AQ_CUDA_SUMS_CUH
#define AQ_CUDA_SUMS_CUH

#include "cuda_common.cuh"

constexpr unsigned AQ_CUDA_SUMS = 3;

/* The destinations of the sums of up to three adjacent partial rows, `columns` each; NULL: none. */
struct aq_cuda_sums {
    float *sums[AQ_CUDA_SUMS];
};

/* Rows of a group: enough groups to fill a GPU, whose partial rows of `width` floats fit the scratch. */
uint64_t aq_cuda_group_rows(uint64_t rows, uint64_t width);

/* to += the groups' partial rows, `count` of `columns` side by side. */
enum aq_status aq_cuda_reduce(const float *partial, uint64_t groups, uint64_t columns, unsigned count,
                              struct aq_cuda_sums to, cudaStream_t stream);

#endif
