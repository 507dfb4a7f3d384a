/*
 * cuda_codec_whole.cu -- the first look at samples whose scales cover many rows: tensor and channel groups.
 *
 * The CPU adds row by row within a piece of the sample, and then piece by piece; so do these kernels, that the scales
 * of rms, auto and search come out with the CPU's bits. scratch.quants has the quantizers for the second look; the
 * scales are in the body. Spans are stored as [piece or row][group], and behind them the merged ones, [group].
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

static __device__ __forceinline__ uint64_t span_slots(const struct aq_cuda_codec_plan &plan)
{
    return plan.group == AQ_PER_TENSOR ? plan.rows : (uint64_t)plan.pieces * plan.columns;
}

static __device__ __forceinline__ struct span *spans_of(const struct aq_cuda_codec_plan &plan,
                                                        const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    return (struct span *)mem.spans + sample * (span_slots(plan) + plan.groups_row);
}

static __device__ __forceinline__ void span_add(struct span &into, const struct span &from)
{
    into.peak = into.peak > from.peak ? into.peak : from.peak;
    into.sum_abs = __fadd_rn(into.sum_abs, from.sum_abs);
    into.sum_square = __fadd_rn(into.sum_square, from.sum_square);
}

static __device__ __forceinline__ void piece_rows(const struct aq_cuda_codec_plan &plan, uint32_t piece,
                                                  uint32_t *first, uint32_t *end)
{
    *first = piece * plan.piece_rows;
    *end = *first + plan.piece_rows < plan.rows ? *first + plan.piece_rows : plan.rows;
}

/* The scale of a merged group into the body and into quants. */
static __device__ void scale_put(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                 const struct job_list &list, uint32_t sample, uint32_t group, uint32_t word,
                                 const struct step &step)
{
    bytes_write((uint8_t *)list.jobs[sample].body + (uint64_t)group * plan.scale_bytes, word, plan.scale_bytes);
    ((struct step *)mem.quants)[(uint64_t)sample * plan.groups_row + group] = step;
}

/* A group whose span is whole: its scale, or with SEARCH only the span, for the next look. */
static __device__ void group_end(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                 const struct job_list &list, uint32_t sample, uint32_t group, const struct span &span)
{
    struct step step;
    if (plan.scale == AQ_SCALE_SEARCH) {
        spans_of(plan, mem, sample)[span_slots(plan) + group] = span;
        return;
    }
    const uint64_t n = plan.group == AQ_PER_TENSOR ? plan.values : plan.rows;
    const uint32_t word = scale_word(plan, scale_choose(plan, span, n));
    if (!scale_decode(plan, word, &step)) {
        atomicOr(&mem.status[sample], 1u);
        return;
    }
    scale_put(plan, mem, list, sample, group, word, step);
}

/* ---- one scale per sample ---- */

__global__ void __launch_bounds__(ROW_BLOCK) codec_tensor_spans(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        float unused[3] = {0.0f, 0.0f, 0.0f};
        struct span span = {0, 0.0f, 0.0f};
        struct row row;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        if (row_failed(mem, row, !row_delta(plan, row, &span, unused))) continue;
        if (row.lane == 0) spans_of(plan, mem, row.sample)[row.number] = span;
    }
}

/* A warp per sample; lane p has piece p. */
__global__ void __launch_bounds__(WARP) codec_tensor_merge(CODEC_JOBS)
{
    const uint32_t sample = blockIdx.x, lane = threadIdx.x;
    const struct span *spans = spans_of(plan, mem, sample);
    struct span mine = {0, 0.0f, 0.0f}, whole = {0, 0.0f, 0.0f};
    uint32_t first = 0, end = 0;
    if (lane < plan.pieces) piece_rows(plan, lane, &first, &end);
    for (uint32_t r = first; r < end; r++)
        span_add(mine, spans[r]);
    for (uint32_t piece = 0; piece < plan.pieces; piece++) {
        struct span other;
        other.peak = __shfl_sync(WHOLE_WARP, mine.peak, (int)piece);
        other.sum_abs = __shfl_sync(WHOLE_WARP, mine.sum_abs, (int)piece);
        other.sum_square = __shfl_sync(WHOLE_WARP, mine.sum_square, (int)piece);
        span_add(whole, other);
    }
    if (lane == 0) group_end(plan, mem, list, sample, 0, whole);
}

/* A warp per piece: the errors of all candidates, lane by lane, over its rows. */
__global__ void __launch_bounds__(ROW_BLOCK) codec_tensor_errors(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.pieces;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        const uint32_t sample = (uint32_t)(item / plan.pieces), piece = (uint32_t)(item % plan.pieces);
        const uint32_t peak = spans_of(plan, mem, sample)[span_slots(plan)].peak;
        float errors[SHRINKS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        uint32_t first, end;
        struct row row;
        piece_rows(plan, piece, &first, &end);
        for (uint32_t r = first; r < end; r++) {
            float unused[3] = {0.0f, 0.0f, 0.0f};
            struct span span;
            row_place(plan, mem, list, warp, (uint64_t)sample * plan.rows + r, &row);
            __syncwarp();
            if (!row_delta(plan, row, &span, unused)) continue; /* the first look has reported it */
            __syncwarp();
            for (uint32_t i = 0; i < SHRINKS; i++) {
                struct step candidate;
                if (!scale_decode(plan, scale_word(plan, scale_shrink(plan, peak, i)), &candidate)) continue;
                for (uint32_t c = row.lane; c < plan.columns; c += WARP)
                    errors[i] = error_add(plan, row.d[c], candidate, errors[i]);
            }
        }
        float *out = mem.errors + item * SHRINKS * WARP;
        for (uint32_t i = 0; i < SHRINKS; i++)
            out[i * WARP + threadIdx.x % WARP] = errors[i];
    }
}

__global__ void __launch_bounds__(WARP) codec_tensor_pick(CODEC_JOBS)
{
    const uint32_t sample = blockIdx.x, lane = threadIdx.x;
    const float *lanes = mem.errors + (uint64_t)sample * plan.pieces * SHRINKS * WARP;
    const uint32_t peak = spans_of(plan, mem, sample)[span_slots(plan)].peak;
    float errors[SHRINKS];
    struct step step;
    uint32_t word = 0;
    for (uint32_t i = 0; i < SHRINKS; i++) {
        float error = lanes[i * WARP + lane];
        for (uint32_t piece = 1; piece < plan.pieces; piece++)
            error = __fadd_rn(error, lanes[(piece * SHRINKS + i) * WARP + lane]);
        errors[i] = warp_sum_in_order(error);
    }
    if (lane != 0) return;
    if (pick_shrink(plan, peak, errors, 1, &word, &step))
        scale_put(plan, mem, list, sample, 0, word, step);
    else
        atomicOr(&mem.status[sample], 1u);
}

/* ---- one scale per channel ---- */

/* The rotated d of a sample, where channels need it: a rotation needs the row, a channel's sums need the column. */
__global__ void __launch_bounds__(ROW_BLOCK) codec_channel_rotate(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        float unused[3] = {0.0f, 0.0f, 0.0f};
        struct span span;
        struct row row;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        if (row_failed(mem, row, !row_delta(plan, row, &span, unused))) continue;
        float *out = mem.deltas + item * plan.columns;
        for (uint32_t c = row.lane; c < plan.columns; c += WARP)
            out[c] = row.d[c];
    }
}

/* d of (row, c); false where it is not finite. */
static __device__ bool channel_delta(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                     const struct job_list &list, uint32_t sample, uint32_t row, uint32_t c, float *d)
{
    const uint64_t e = (uint64_t)row * plan.columns + c;
    if (plan.hadamard) {
        *d = mem.deltas[sample * plan.values + e];
        return true;
    }
    const struct aq_cuda_codec_job &job = list.jobs[sample];
    *d = job.a[e];
    if (!plan.warm) return is_finite(*d);
    *d = __fsub_rn(*d, value_read(plan.store, (const uint8_t *)job.m, plan.rows, e, 0.0f));
    return is_finite(*d);
}

/* A thread per channel of a piece: grid (C, pieces, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_channel_spans(CODEC_JOBS)
{
    const uint32_t c = (uint32_t)aq_thread_index(), piece = blockIdx.y, sample = blockIdx.z;
    struct span span = {0, 0.0f, 0.0f};
    uint32_t first, end;
    bool good = true;
    if (c >= plan.columns) return;
    piece_rows(plan, piece, &first, &end);
    for (uint32_t r = first; r < end; r++) {
        float d;
        good = channel_delta(plan, mem, list, sample, r, c, &d) && good;
        span_add(span, {magnitude_of(d), __uint_as_float(magnitude_of(d)), __fmul_rn(d, d)});
    }
    spans_of(plan, mem, sample)[(uint64_t)piece * plan.columns + c] = span;
    if (!good) atomicOr(&mem.status[sample], 1u);
}

/* A thread per channel: grid (C, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_channel_merge(CODEC_JOBS)
{
    const uint32_t c = (uint32_t)aq_thread_index(), sample = blockIdx.y;
    struct span whole = {0, 0.0f, 0.0f};
    if (c >= plan.columns) return;
    const struct span *spans = spans_of(plan, mem, sample);
    for (uint32_t piece = 0; piece < plan.pieces; piece++)
        span_add(whole, spans[(uint64_t)piece * plan.columns + c]);
    group_end(plan, mem, list, sample, c, whole);
}

__global__ void __launch_bounds__(PACK_BLOCK) codec_channel_errors(CODEC_JOBS)
{
    const uint32_t c = (uint32_t)aq_thread_index(), piece = blockIdx.y, sample = blockIdx.z;
    uint32_t first, end;
    if (c >= plan.columns) return;
    const uint32_t peak = spans_of(plan, mem, sample)[span_slots(plan) + c].peak;
    float *out = mem.errors + ((uint64_t)sample * plan.pieces + piece) * SHRINKS * plan.columns + c;
    piece_rows(plan, piece, &first, &end);
    for (uint32_t i = 0; i < SHRINKS; i++) {
        struct step candidate;
        float error = 0.0f;
        const bool fits = scale_decode(plan, scale_word(plan, scale_shrink(plan, peak, i)), &candidate);
        for (uint32_t r = first; fits && r < end; r++) {
            float d;
            (void)channel_delta(plan, mem, list, sample, r, c, &d);
            error = error_add(plan, d, candidate, error);
        }
        out[(uint64_t)i * plan.columns] = error;
    }
}

__global__ void __launch_bounds__(PACK_BLOCK) codec_channel_pick(CODEC_JOBS)
{
    const uint32_t c = (uint32_t)aq_thread_index(), sample = blockIdx.y;
    float errors[SHRINKS];
    struct step step;
    uint32_t word = 0;
    if (c >= plan.columns) return;
    const float *of = mem.errors + (uint64_t)sample * plan.pieces * SHRINKS * plan.columns + c;
    for (uint32_t i = 0; i < SHRINKS; i++) {
        errors[i] = of[(uint64_t)i * plan.columns];
        for (uint32_t piece = 1; piece < plan.pieces; piece++)
            errors[i] = __fadd_rn(errors[i], of[((uint64_t)piece * SHRINKS + i) * plan.columns]);
    }
    const uint32_t peak = spans_of(plan, mem, sample)[span_slots(plan) + c].peak;
    if (pick_shrink(plan, peak, errors, 1, &word, &step))
        scale_put(plan, mem, list, sample, c, word, step);
    else
        atomicOr(&mem.status[sample], 1u);
}

/* ---- launchers ---- */

static dim3 row_grid(const struct aq_cuda_codec_scratch &mem, uint64_t items)
{
    return aq_blocks(items < mem.warps ? items : mem.warps, ROW_BLOCK / WARP);
}

static enum aq_status tensor_scales(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 rows = row_grid(mem, (uint64_t)list.count * plan.rows);
    const dim3 pieces = row_grid(mem, (uint64_t)list.count * plan.pieces);
    AQ_TRY(AQ_LAUNCH(codec_tensor_spans, rows, ROW_BLOCK, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_tensor_merge, list.count, WARP, 0, stream, plan, mem, list));
    if (plan.scale != AQ_SCALE_SEARCH) return AQ_OK;
    AQ_TRY(AQ_LAUNCH(codec_tensor_errors, pieces, ROW_BLOCK, 0, stream, plan, mem, list));
    return AQ_LAUNCH(codec_tensor_pick, list.count, WARP, 0, stream, plan, mem, list);
}

static enum aq_status channel_scales(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                     const struct job_list &list, struct CUstream_st *stream)
{
    const unsigned blocks = (plan.columns + PACK_BLOCK - 1) / PACK_BLOCK;
    const dim3 pieces(blocks, plan.pieces, list.count), channels(blocks, list.count);
    if (plan.hadamard) {
        const dim3 rows = row_grid(mem, (uint64_t)list.count * plan.rows);
        AQ_TRY(AQ_LAUNCH(codec_channel_rotate, rows, ROW_BLOCK, 0, stream, plan, mem, list));
    }
    AQ_TRY(AQ_LAUNCH(codec_channel_spans, pieces, PACK_BLOCK, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_channel_merge, channels, PACK_BLOCK, 0, stream, plan, mem, list));
    if (plan.scale != AQ_SCALE_SEARCH) return AQ_OK;
    AQ_TRY(AQ_LAUNCH(codec_channel_errors, pieces, PACK_BLOCK, 0, stream, plan, mem, list));
    return AQ_LAUNCH(codec_channel_pick, channels, PACK_BLOCK, 0, stream, plan, mem, list);
}

enum aq_status codec_launch_whole_scales(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, struct CUstream_st *stream)
{
    return plan.group == AQ_PER_TENSOR ? tensor_scales(plan, mem, list, stream)
                                       : channel_scales(plan, mem, list, stream);
}
