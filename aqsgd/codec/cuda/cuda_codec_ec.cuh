/*
 * cuda_codec_ec.cuh -- what the two files of entropy-coded bodies on a GPU share: cuda_codec_ec.cu has heads and rows,
 * cuda_codec_ec_chunks.cu has chunks.
 */
#ifndef AQSGD_CUDA_CODEC_EC_CUH
#define AQSGD_CUDA_CODEC_EC_CUH

#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

#include "codec_ec_choose.h"

enum { ESCAPED = 1 << 15 };

/* scratch.status: it cannot be coded; or not by the step that it has. */
enum { SAMPLE_FAILED = 1, STEP_FAILED = 2 };

/* Of a sample: scratch.wholes. */
struct ec_whole {
    double moments[2 * (AQ_EC_BUCKETS + 1)];
    uint32_t below[AQ_EC_BUCKETS + 1], energy[AQ_EC_BUCKETS + 1];
    uint4 decode[AQ_RANS_SLOTS / 4]; /* aq_rans_table, four entries each */
    uint32_t encode[256];  /* slots | ESCAPED | first slot << 16; a pair without slots has those of symbol 0 */
    uint32_t inverse[256]; /* of the slots: see rans_put */
    struct aq_ec_grid grid;
    uint32_t centred, common, dithered;
    uint32_t noise;     /* w is added before rounding; the receiver subtracts it if `dithered` */
    uint32_t way, done; /* enum aq_ec_way; of a second round: the first one's body is final */
    uint32_t stride;    /* of the rows that were looked at */
    struct aq_ec_dither dither;
};
static_assert(sizeof(struct ec_whole) <= AQ_CUDA_CODEC_EC_BYTES, "what codec_place.c reckons with");

static __device__ __forceinline__ uint64_t whole_bytes(const struct aq_cuda_codec_plan &plan)
{
    return AQ_CUDA_CODEC_EC_BYTES + ((uint64_t)plan.columns * 4 + 255) / 256 * 256;
}

static __device__ __forceinline__ struct ec_whole *whole_of(const struct aq_cuda_codec_plan &plan,
                                                            const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    return (struct ec_whole *)(mem.wholes + sample * whole_bytes(plan));
}

static __device__ __forceinline__ float *centre_of(struct ec_whole *whole)
{
    return (float *)((uint8_t *)whole + AQ_CUDA_CODEC_EC_BYTES);
}

static __device__ __forceinline__ uint32_t marks_of(const struct ec_whole *whole)
{
    return whole->centred * (uint32_t)AQ_EC_CENTRED | whole->common * (uint32_t)AQ_EC_COMMON |
           whole->dithered * (uint32_t)AQ_EC_DITHERED;
}

struct ec_chunk {
    uint32_t first, rows;
    uint64_t values, begin; /* its first element */
};

static __device__ __forceinline__ struct ec_chunk chunk_of(const struct aq_cuda_codec_plan &plan, uint32_t number)
{
    const uint32_t rows = aq_ec_chunk_rows(plan.columns), first = number * rows;
    const uint32_t here = plan.rows - first > rows ? rows : plan.rows - first;
    return {first, here, (uint64_t)here * plan.columns, (uint64_t)first * plan.columns};
}

/* Is there nothing to do for a sample: it has failed, or its body is final? One answer for the whole warp. */
static __device__ __forceinline__ bool is_over(const struct aq_cuda_codec_plan &plan,
                                               const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    return sample_failed(mem, sample) || whole_of(plan, mem, sample)->done != 0;
}

/* q beyond the table, by element: a chunk has one number more than values (cuda_codec_ec_chunks.cu, escapes_put). */
static __device__ __forceinline__ int *beyond_of(const struct aq_cuda_codec_plan &plan,
                                                 const struct aq_cuda_codec_scratch &mem, uint32_t sample,
                                                 uint32_t number)
{
    return mem.beyond + sample * (plan.values + aq_ec_chunk_count(plan.rows, plan.columns)) + number;
}

/* Codes to words, and these to bodies; and back to codes. Grids of (chunks, samples). */
enum aq_status codec_launch_ec_chunks_out(const struct aq_cuda_codec_plan &plan,
                                          const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                          struct CUstream_st *stream);
enum aq_status codec_launch_ec_chunks_in(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream);

#endif
