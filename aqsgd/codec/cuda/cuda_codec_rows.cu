/*
 * cuda_codec_rows.cu -- the general way through a sample: a warp per row, in the order of the CPU's truth. Every
 * configuration but top-k (cuda_codec_topk.cu); usual and aligned samples take cuda_codec_units.cu's way.
 *
 * Tensor and channel groups have been looked at before (cuda_codec_whole.cu): their quantizers are in scratch.quants.
 * Rows that do not end on a byte leave their codes unpacked; pack_codes comes last.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

/* ---- encode ---- */

/* The quantizers of a row, and its scales into the body. False where one does not fit its format. */
static __device__ bool row_steps(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                 const struct row &row, const struct span &span, const struct step **steps)
{
    uint8_t *body = (uint8_t *)row.job->body;
    *steps = row.steps;
    if (plan.group == AQ_PER_TENSOR || plan.group == AQ_PER_CHANNEL) {
        *steps = (const struct step *)mem.quants + (uint64_t)row.sample * plan.groups_row;
        return true;
    }
    if (plan.group == AQ_PER_ROW) {
        struct step step = {0.0f, 0.0f};
        uint8_t *out = body + (uint64_t)row.number * plan.scale_bytes;
        const bool good = row_scale(plan, row, span, row.d, plan.columns, out, &step);
        if (row.lane == 0) row.steps[0] = step;
        __syncwarp();
        return good;
    }
    bool good = true;
    for (uint32_t g = 0; g < plan.groups_row; g++) {
        const uint32_t from = g * plan.tile;
        const uint32_t n = plan.columns - from < plan.tile ? plan.columns - from : plan.tile;
        const struct span tile = row_span(row, row.d + from, n);
        uint8_t *out = body + ((uint64_t)row.number * plan.groups_row + g) * plan.scale_bytes;
        struct step step = {0.0f, 0.0f};
        good = row_scale(plan, row, tile, row.d + from, n, out, &step) && good;
        if (row.lane == 0) row.steps[g] = step;
    }
    __syncwarp();
    return good;
}

static __device__ __forceinline__ uint32_t group_of(const struct aq_cuda_codec_plan &plan, uint32_t c)
{
    return plan.group == AQ_PER_CHANNEL ? c : plan.group == AQ_PER_TILE ? c / plan.tile : 0;
}

/* Codes of row.d, their levels to row.x; returns this lane's squared error. */
static __device__ float row_quantize(const struct aq_cuda_codec_plan &plan, const struct row &row,
                                     const struct step *steps)
{
    const struct grid_of grid = grid_of_plan(plan);
    const uint64_t first = (uint64_t)row.number * plan.columns;
    float error = 0.0f;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const struct step step = steps[group_of(plan, c)];
        const float d = row.d[c];
        const int i = plan.stochastic ? quantize_stochastic(d, step.inverse, grid, uniform(row.job->key, first + c))
                                      : quantize_nearest(d, step.inverse, grid);
        const float level = dequantize(i, step.unit, plan.rise), e = __fsub_rn(d, level);
        row.codes[c] = (uint8_t)(i + grid.half);
        row.x[c] = level;
        error = __fadd_rn(error, __fmul_rn(e, e));
    }
    return error;
}

static __device__ bool encode_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                  const struct row &row)
{
    float sums[3] = {0.0f, 0.0f, 0.0f};
    const struct step *steps;
    struct span span;
    if (!row_delta(plan, row, &span, sums)) return false;
    if (!row_steps(plan, mem, row, span, &steps)) return false;
    const float error = row_quantize(plan, row, steps);
    row_sums(plan, mem, row, sums[0], sums[1], sums[2], error);
    row_pack(plan, row, row.codes, (uint8_t *)row.job->body + plan.codes_at, plan.bits);
    if (plan.hadamard) row_rotate(row, row.x, plan.columns, plan.tile);
    if (plan.warm) {
        for (uint32_t c = row.lane; c < plan.columns; c += WARP)
            row.x[c] = __fadd_rn(row.reference[c], row.x[c]);
    }
    return row_emit(plan, row);
}

/* A row as it is: a keyframe or a raw body. */
static __device__ bool encode_plain_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct row &row)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    uint8_t *body = (uint8_t *)row.job->body;
    float sum_a = 0.0f, sum_a2 = 0.0f, error = 0.0f;
    uint32_t peak = 0;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float a = row.job->a[first + c];
        peak = magnitude_of(a) > peak ? magnitude_of(a) : peak;
        sum_a = __fadd_rn(sum_a, a);
        sum_a2 = __fadd_rn(sum_a2, __fmul_rn(a, a));
        row.x[c] = a;
        if (plan.plain > AQ_PRECISION_BF16) continue;
        value_write(plan.plain, body, first + c, a);
        row.x[c] = value_read(plan.plain, body, plan.rows, first + c, 0.0f);
    }
    if (warp_max(peak) >= precision_limit(plan.plain)) return false;
    if (plan.plain > AQ_PRECISION_BF16 && !row_store_q(plan, row, precision_bits(plan.plain), body)) return false;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float e = __fsub_rn(row.job->a[first + c], row.x[c]);
        error = __fadd_rn(error, __fmul_rn(e, e));
    }
    row_sums(plan, mem, row, sum_a, sum_a2, sum_a2, error);
    return row_emit(plan, row);
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_encode_rows(CODEC_JOBS, bool plain)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        struct row row;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        const bool good = plain ? encode_plain_row(plan, mem, row) : encode_row(plan, mem, row);
        (void)row_failed(mem, row, !good);
    }
}

/* ---- decode ---- */

static __device__ bool decode_row(const struct aq_cuda_codec_plan &plan, const struct row &row)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint8_t *body = (const uint8_t *)row.job->body, *m = (const uint8_t *)row.job->m;
    const bool rowwise = plan.group == AQ_PER_ROW || plan.group == AQ_PER_TILE;
    const uint64_t group = rowwise ? (uint64_t)row.number * plan.groups_row : 0;
    bool good = true;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        struct step step;
        const uint64_t at = (group + group_of(plan, c)) * plan.scale_bytes;
        good = scale_decode(plan, bytes_read(body + at, plan.scale_bytes), &step) && good;
        const int i = (int)code_read(body + plan.codes_at, first + c, plan.bits) - (int)plan.half;
        row.x[c] = dequantize(i, step.unit, plan.rise);
    }
    if (plan.hadamard) row_rotate(row, row.x, plan.columns, plan.tile);
    if (plan.warm) {
        for (uint32_t c = row.lane; c < plan.columns; c += WARP)
            row.x[c] = __fadd_rn(value_read(plan.store, m, plan.rows, first + c, 0.0f), row.x[c]);
    }
    if (__any_sync(WHOLE_WARP, !good)) return false;
    return row_emit(plan, row);
}

static __device__ bool decode_plain_row(const struct aq_cuda_codec_plan &plan, const struct row &row)
{
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint8_t *body = (const uint8_t *)row.job->body;
    float unit;
    if (!row_unit(plan.plain, body, row.number, &unit)) return false;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP)
        row.x[c] = value_read(plan.plain, body, plan.rows, first + c, unit);
    return row_emit(plan, row);
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_decode_rows(CODEC_JOBS, bool plain)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        struct row row;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        const bool good = plain ? decode_plain_row(plan, row) : decode_row(plan, row);
        (void)row_failed(mem, row, !good);
    }
}

/* ---- codes that waited ---- */

/* Eight codes a thread, from `codes` (`values` a sample) to a stream in the body. */
__global__ void __launch_bounds__(PACK_BLOCK)
    codec_pack(const __grid_constant__ struct aq_cuda_codec_plan plan, const __grid_constant__ struct job_list list,
               const uint8_t *codes, uint64_t offset, uint64_t total, uint32_t bits)
{
    const uint64_t unit = aq_thread_index();
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.y];
    uint8_t *stream = (uint8_t *)job.body + offset;
    const uint8_t *from = codes + blockIdx.y * plan.values + 8 * unit;
    if (8 * unit >= total) return;
    const uint32_t n = total - 8 * unit < 8 ? (uint32_t)(total - 8 * unit) : 8;
    uint64_t word = 0;
    for (uint32_t i = 0; i < n; i++)
        word |= (uint64_t)from[i] << i * bits;
    for (uint32_t k = 0; k < (n * bits + 7) / 8; k++)
        stream[unit * bits + k] = (uint8_t)(word >> 8 * k);
}

/* ---- launchers ---- */

dim3 codec_row_grid(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem, uint32_t count)
{
    const uint64_t items = (uint64_t)count * plan.rows, warps = items < mem.warps ? items : mem.warps;
    return aq_blocks(warps, ROW_BLOCK / WARP);
}

enum aq_status codec_launch_pack(const struct aq_cuda_codec_plan &plan, const struct job_list &list,
                                 const uint8_t *codes, uint64_t offset, uint64_t total, uint32_t bits,
                                 struct CUstream_st *stream)
{
    dim3 grid = aq_blocks((total + 7) / 8, PACK_BLOCK);
    grid.y = list.count;
    return AQ_LAUNCH(codec_pack, grid, PACK_BLOCK, 0, stream, plan, list, codes, offset, total, bits);
}

enum aq_status codec_launch_waiting(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct job_list &list, struct CUstream_st *stream)
{
    if (plan.columns % 8 == 0) return AQ_OK;
    return codec_launch_pack(plan, list, mem.codes, plan.codes_at, plan.values, plan.bits, stream);
}

enum aq_status codec_launch_encode_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    const dim3 grid = codec_row_grid(plan, mem, list.count);
    AQ_TRY(AQ_LAUNCH(codec_encode_rows, grid, ROW_BLOCK, 0, stream, plan, mem, list, plain));
    if (!plain) return codec_launch_waiting(plan, mem, list, stream);
    if (plan.columns % 8 == 0 || plan.plain <= AQ_PRECISION_BF16) return AQ_OK;
    return codec_launch_pack(plan, list, mem.codes, 4 * (uint64_t)plan.rows, plan.values,
                             codec_precision_bits(plan.plain), stream);
}

enum aq_status codec_launch_decode_rows(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    const dim3 grid = codec_row_grid(plan, mem, list.count);
    return AQ_LAUNCH(codec_decode_rows, grid, ROW_BLOCK, 0, stream, plan, mem, list, plain);
}
