/*
 * cuda_codec_store.cu -- stored messages in Q8, Q4 and Q2 (codec_store.c): unpacked to fp32 before a sample is coded,
 * packed after. A scale is the largest magnitude of its row or channel, which has no order. And the error of rounded
 * messages, bf16 included.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

/* x^ of this block's sample: in hat, if that is wanted, else in the place of m. */
static __device__ __forceinline__ const float *message_values(const struct aq_cuda_codec_plan &plan,
                                                              const struct aq_cuda_codec_scratch &mem,
                                                              const struct job_list &list)
{
    const float *hat = list.jobs[blockIdx.y].hat;
    return hat != NULL ? hat : mem.messages + blockIdx.y * plan.values;
}

/* A value of a message in Q; false for a scale that no sender writes. */
static __device__ __forceinline__ bool message_value(const struct aq_cuda_codec_plan &plan, const uint8_t *message,
                                                     uint64_t e, float *value)
{
    const uint32_t bits = precision_bits(plan.packed);
    float unit;
    const bool good = row_unit(plan.packed, message, (uint32_t)message_group(plan, e), &unit);
    const int i = (int)code_read(message + message_codes_at(plan), e, bits) - (1 << (bits - 1));
    *value = dequantize(i, unit, true);
    return good;
}

/* A thread per value: grid (N, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_message_unpack(CODEC_JOBS)
{
    const uint64_t e = aq_thread_index();
    const uint8_t *message = (const uint8_t *)list.jobs[blockIdx.y].m;
    float value;
    if (e >= plan.values) return;
    if (!message_value(plan, message, e, &value)) atomicOr(&mem.status[blockIdx.y], 1u);
    mem.messages[blockIdx.y * plan.values + e] = value;
}

/* A row's scale by a warp, a channel's by a thread: grid (groups, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_message_scales(CODEC_JOBS)
{
    const bool channel = plan.packed_channel != 0;
    const uint64_t thread = aq_thread_index(), group = channel ? thread : thread / WARP;
    const uint64_t n = channel ? plan.rows : plan.columns, stride = channel ? plan.columns : 1;
    uint8_t *message = (uint8_t *)list.jobs[blockIdx.y].m_out;
    const float *x = message_values(plan, mem, list);
    const bool there = message != NULL && group < (channel ? plan.columns : plan.rows);
    uint32_t peak = 0;
    struct step step;
    float s;
    for (uint64_t i = channel ? 0 : thread % WARP; there && i < n; i += channel ? 1 : WARP) {
        const uint32_t magnitude = magnitude_of(x[group * (channel ? 1 : n) + i * stride]);
        peak = magnitude > peak ? magnitude : peak;
    }
    if (!channel) peak = warp_max(peak);
    if (!there || (!channel && thread % WARP != 0)) return;
    if (!store_scale(peak, precision_bits(plan.packed), &s, &step)) atomicOr(&mem.status[blockIdx.y], 1u);
    bytes_write(message + 4 * group, __float_as_uint(s), 4);
}

/* Eight codes a thread: grid (N / 8, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_message_pack(CODEC_JOBS)
{
    const uint32_t bits = precision_bits(plan.packed);
    const struct grid_of grid = grid_of_store(bits);
    const uint64_t first = 8 * aq_thread_index(), end = first + 8 < plan.values ? first + 8 : plan.values;
    uint8_t *message = (uint8_t *)list.jobs[blockIdx.y].m_out;
    const float *x = message_values(plan, mem, list);
    uint64_t word = 0;
    if (message == NULL || first >= plan.values) return;
    for (uint64_t e = first; e < end; e++) {
        const float s = __uint_as_float(bytes_read(message + 4 * message_group(plan, e), 4));
        struct step step;
        (void)step_of_scale(AQ_GRID_MIDRISE, bits, 0, s, &step);
        const int i = quantize_nearest(x[e], step.inverse, grid);
        word |= (uint64_t)(uint32_t)(i + grid.half) << (e - first) * bits;
    }
    for (uint32_t k = 0; k < ((end - first) * bits + 7) / 8; k++)
        message[message_codes_at(plan) + first / 8 * bits + k] = (uint8_t)(word >> 8 * k);
}

/* A warp per measured row: grid (measured rows, samples). The order of sums is that of aq_store_measure_row. */
__global__ void __launch_bounds__(PACK_BLOCK) codec_stored_rows(CODEC_JOBS)
{
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.y];
    const uint32_t index = (uint32_t)(aq_thread_index() / WARP), lane = threadIdx.x % WARP;
    const uint8_t *message = (const uint8_t *)job.m_out;
    if (message == NULL || index >= aq_codec_measured_rows(plan.rows) || sample_failed(mem, blockIdx.y)) return;
    const uint32_t row = aq_codec_measured_row(plan.rows, index);
    const uint64_t first = (uint64_t)row * plan.columns;
    double sum = 0.0;
    for (uint32_t c = lane; c < plan.columns; c += WARP) {
        float m;
        if (plan.packed == 0)
            m = value_read(plan.store, message, plan.rows, first + c, 0.0f);
        else
            (void)message_value(plan, message, first + c, &m);
        const double left = __dsub_rn((double)job.a[first + c], (double)m);
        sum = __dadd_rn(sum, __dmul_rn(left, left));
    }
    sum = warp_fold(sum);
    if (lane == 0) mem.stored[(uint64_t)blockIdx.y * plan.rows + row] = sum;
}

enum aq_status codec_launch_message_unpack(const struct aq_cuda_codec_plan &plan,
                                           const struct aq_cuda_codec_scratch &mem, const struct job_list &list,
                                           struct CUstream_st *stream)
{
    dim3 grid = aq_blocks(plan.values, PACK_BLOCK);
    grid.y = list.count;
    return AQ_LAUNCH(codec_message_unpack, grid, PACK_BLOCK, 0, stream, plan, mem, list);
}

enum aq_status codec_launch_message_pack(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream)
{
    dim3 groups = aq_blocks(plan.packed_channel ? plan.columns : (uint64_t)plan.rows * WARP, PACK_BLOCK);
    dim3 units = aq_blocks((plan.values + 7) / 8, PACK_BLOCK);
    groups.y = units.y = list.count;
    AQ_TRY(AQ_LAUNCH(codec_message_scales, groups, PACK_BLOCK, 0, stream, plan, mem, list));
    return AQ_LAUNCH(codec_message_pack, units, PACK_BLOCK, 0, stream, plan, mem, list);
}

enum aq_status codec_launch_stored_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    dim3 grid = aq_blocks((uint64_t)aq_codec_measured_rows(plan.rows) * WARP, PACK_BLOCK);
    grid.y = list.count;
    return AQ_LAUNCH(codec_stored_rows, grid, PACK_BLOCK, 0, stream, plan, mem, list);
}
