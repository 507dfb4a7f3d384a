/*
 * cuda_codec_sign.cu -- the kernels of codec_sign.c: a warp per row, in the order of the CPU's truth.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

enum { SCALE_BYTES = 2 };

/* codec_sign.c, scale_read. */
static __device__ bool sign_step(const struct aq_cuda_codec_plan &plan, uint32_t word, struct step *out)
{
    float s;
    const bool good = scale_half_to(word, &s);
    return step_of_scale(AQ_GRID_MIDRISE, 1, plan.prescale_log2, __fmul_rn(2.0f, s), out) && good;
}

static __device__ bool encode_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                  const struct row &row)
{
    const struct grid_of grid = grid_of_store(1);
    uint8_t *body = (uint8_t *)row.job->body;
    float sums[3] = {0.0f, 0.0f, 0.0f}, error = 0.0f;
    struct span span;
    struct step step;
    if (!row_delta(plan, row, &span, sums)) return false;
    const float mean = __fdiv_rn(span.sum_abs, (float)plan.columns);
    const uint32_t word = scale_half_from(__fmul_rn(mean, power_of_two(plan.prescale_log2)));
    if (!sign_step(plan, word, &step)) return false;
    if (row.lane == 0) bytes_write(body + (uint64_t)row.number * SCALE_BYTES, word, SCALE_BYTES);
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const int i = quantize_nearest(row.d[c], step.inverse, grid);
        const float level = dequantize(i, step.unit, true), e = __fsub_rn(row.d[c], level);
        row.codes[c] = (uint8_t)(i + grid.half);
        row.x[c] = plan.warm ? __fadd_rn(row.reference[c], level) : level;
        error = __fadd_rn(error, __fmul_rn(e, e));
    }
    row_sums(plan, mem, row, sums[0], sums[1], sums[2], error);
    row_pack(plan, row, row.codes, body + plan.codes_at, 1);
    return row_emit(plan, row);
}

static __device__ bool decode_row(const struct aq_cuda_codec_plan &plan, const struct row &row)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint8_t *body = (const uint8_t *)row.job->body, *m = (const uint8_t *)row.job->m;
    struct step step;
    const bool good = sign_step(plan, bytes_read(body + (uint64_t)row.number * SCALE_BYTES, SCALE_BYTES), &step);
    if (!good) return false; /* all lanes alike */
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float level = dequantize((int)code_read(body + plan.codes_at, first + c, 1) - 1, step.unit, true);
        row.x[c] = plan.warm ? __fadd_rn(value_read(plan.store, m, plan.rows, first + c, 0.0f), level) : level;
    }
    return row_emit(plan, row);
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_sign_rows(CODEC_JOBS, bool encode)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        struct row row;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        (void)row_failed(mem, row, encode ? !encode_row(plan, mem, row) : !decode_row(plan, row));
    }
}

enum aq_status codec_launch_encode_sign(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 grid = codec_row_grid(plan, mem, list.count);
    AQ_TRY(AQ_LAUNCH(codec_sign_rows, grid, ROW_BLOCK, 0, stream, plan, mem, list, true));
    return codec_launch_waiting(plan, mem, list, stream);
}

enum aq_status codec_launch_decode_sign(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 grid = codec_row_grid(plan, mem, list.count);
    return AQ_LAUNCH(codec_sign_rows, grid, ROW_BLOCK, 0, stream, plan, mem, list, false);
}
