/*
 * cuda_codec_ec.cu -- the kernels of codec_ec.c: entropy-coded bodies and keyframes.
 *
 * Out: a block a sample looks at it and chooses its head (codec_ec_choose.h, the CPU's own source); a warp a row
 * quantizes it; a warp a chunk runs the 32 lanes of rANS, a lane each; then chunks are put one behind the other, for
 * only now their lengths are known. In: a block a sample reads the head, a warp a chunk decodes codes and escapes, a
 * warp a row makes x^. What is beyond the table waits in scratch.beyond, at its element.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

#include "codec_ec_choose.h"

/* scratch.status: it cannot be coded; or not by the step that it has. */
enum { SAMPLE_FAILED = 1, STEP_FAILED = 2 };
enum { HEAD_BLOCK = 256, JOIN_BLOCK = 128, SEGMENT = (AQ_EC_BUCKETS + 1 + HEAD_BLOCK - 1) / HEAD_BLOCK };

/* Of a sample: scratch.wholes. */
struct ec_whole {
    double moments[2 * (AQ_EC_BUCKETS + 1)];
    uint32_t below[AQ_EC_BUCKETS + 1], energy[AQ_EC_BUCKETS + 1];
    uint32_t encode[256], escape; /* aq_rans_table */
    uint32_t decode[AQ_RANS_SLOTS];
    struct aq_ec_grid grid;
    uint32_t centred, common, dithered;
    uint32_t noise; /* w is added before rounding; where `dithered` is 0 nobody takes it off */
    uint32_t way, done; /* enum aq_ec_way; of a second round: the first one's body stands */
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

/* What element e, of channel c, is coded against. */
static __device__ __forceinline__ float reference_of(const struct aq_cuda_codec_plan &plan,
                                                     const struct aq_cuda_codec_job &job, const float *centre,
                                                     bool centred, uint64_t e, uint32_t c)
{
    if (plan.warm && !job.plain) return value_read(plan.store, (const uint8_t *)job.m, plan.rows, e, 0.0f);
    return centred ? centre[c] : 0.0f;
}

/* Is there one? x - 0 and 0 + x are not x where x is -0. */
static __device__ __forceinline__ bool has_reference(const struct aq_cuda_codec_plan &plan,
                                                     const struct aq_cuda_codec_job &job, bool centred)
{
    return centred || (plan.warm && !job.plain);
}

static __device__ __forceinline__ uint32_t marks_of(const struct ec_whole *whole)
{
    return whole->centred * (uint32_t)AQ_EC_CENTRED | whole->common * (uint32_t)AQ_EC_COMMON |
           whole->dithered * (uint32_t)AQ_EC_DITHERED;
}

/* The noise of a value, w (codec_scalar.h, scalar_ec_dither). */
static __device__ __forceinline__ float dither_of(const struct aq_ec_grid &grid, struct aq_ec_dither_row row,
                                                  uint32_t c)
{
    return __fmul_rn((float)((int)(2 * aq_ec_dither_byte(row, c)) - 255), grid.dither);
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

/* ---- the head, a block a sample ---- */

/* Counts of magnitudes in every `stride`th row; false to all where a value is not finite. */
static __device__ bool block_look(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                  struct ec_whole *whole, uint32_t stride, bool centred, bool energy)
{
    const uint64_t looked = (uint64_t)((plan.rows + stride - 1) / stride) * plan.columns;
    const bool against = has_reference(plan, job, centred);
    bool bad = false;
    __syncthreads();
    for (uint32_t b = threadIdx.x; b <= AQ_EC_BUCKETS; b += HEAD_BLOCK) {
        whole->below[b] = 0;
        if (energy) whole->energy[b] = 0;
    }
    __syncthreads();
    for (uint64_t i = threadIdx.x; i < looked; i += HEAD_BLOCK) {
        const uint32_t c = (uint32_t)(i % plan.columns);
        const uint64_t e = i / plan.columns * stride * plan.columns + c;
        const float a = job.a[e];
        float d = against ? __fsub_rn(a, reference_of(plan, job, centre_of(whole), centred, e, c)) : a;
        if (centred && plan.warm && !job.plain) d = __fsub_rn(d, centre_of(whole)[c]);
        if (!is_finite(d) || (energy && !is_finite(a))) {
            bad = true;
            continue;
        }
        atomicAdd(&whole->below[magnitude_of(d) >> AQ_EC_BUCKET_SHIFT], 1u);
        if (energy) atomicAdd(&whole->energy[magnitude_of(a) >> AQ_EC_BUCKET_SHIFT], 1u);
    }
    return __syncthreads_or(bad) == 0;
}

/* Counts become counts of all below. */
static __device__ void block_counts_sum(uint32_t *counts, uint32_t *shared)
{
    const uint32_t from = threadIdx.x * SEGMENT;
    uint32_t sum = 0;
    __syncthreads();
    for (uint32_t b = from; b < from + SEGMENT && b <= AQ_EC_BUCKETS; b++)
        sum += counts[b];
    shared[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t t = 0; t < threadIdx.x; t++)
        sum += shared[t];
    for (uint32_t b = from; b < from + SEGMENT && b <= AQ_EC_BUCKETS; b++) {
        const uint32_t count = counts[b];
        counts[b] = sum;
        sum += count;
    }
    __syncthreads();
}

/* Of a channel over every `stride`th row, as the CPU adds it up: the mean, or that of its change. */
static __device__ float mean_of(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                uint32_t stride, uint32_t c)
{
    float sum = 0.0f;
    for (uint32_t row = 0; row < plan.rows; row += stride) {
        const uint64_t e = (uint64_t)row * plan.columns + c;
        const bool against = has_reference(plan, job, false);
        const float a = job.a[e];
        sum = __fadd_rn(sum, against ? __fsub_rn(a, reference_of(plan, job, NULL, false, e, c)) : a);
    }
    return __fdiv_rn(sum, (float)((plan.rows + stride - 1) / stride));
}

/* codec_ec.c, common_make; found: the largest mean's bits, and the sum of upper halves. */
static __device__ bool block_common(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                    struct ec_whole *whole, uint32_t stride, uint8_t *out, uint32_t *found)
{
    float *const centre = centre_of(whole);
    __syncthreads();
    if (threadIdx.x == 0) found[0] = found[1] = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < plan.columns; c += HEAD_BLOCK) {
        centre[c] = mean_of(plan, job, stride, c);
        atomicMax(&found[0], magnitude_of(centre[c]));
        atomicAdd(&found[1], aq_ec_upper_half(centre[c]));
    }
    __syncthreads();
    if (found[0] >= 0x7f800000u) return false;
    const float unit = aq_ec_common_unit(aq_ec_float(found[0]), found[1], plan.columns);
    const float inverse = __fdiv_rn(0.5f, unit);
    if (!is_finite(inverse) || !aq_ec_common_fits(unit)) return false;
    if (threadIdx.x == 0) memcpy(out, &unit, sizeof unit);
    for (uint32_t pair = threadIdx.x; pair < (plan.columns + 1) / 2; pair += HEAD_BLOCK) {
        uint32_t byte = 0;
        for (uint32_t c = 2 * pair; c < 2 * pair + 2 && c < plan.columns; c++) {
            const uint32_t code = aq_ec_common_code(centre[c], inverse);
            byte |= code << 4 * (c % 2);
            centre[c] = aq_ec_common_mean(code, unit);
        }
        out[sizeof unit + pair] = (uint8_t)byte;
    }
    __syncthreads();
    return true;
}

/* The mean of each channel, written at `out` and so read again; false to all: one does not fit. */
static __device__ bool block_centre(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                    struct ec_whole *whole, uint32_t stride, uint8_t *out, uint32_t *found)
{
    bool bad = false;
    if (has_reference(plan, job, false)) return block_common(plan, job, whole, stride, out, found);
    for (uint32_t c = threadIdx.x; c < plan.columns; c += HEAD_BLOCK) {
        const uint16_t mean = half_from_float(mean_of(plan, job, stride, c));
        bad = bad || (mean & 0x7fffu) >= 0x7c00u;
        bytes_write(out + 2 * (uint64_t)c, mean, 2);
        centre_of(whole)[c] = half_to_float(mean);
    }
    return __syncthreads_or(bad) == 0;
}

static __device__ void block_choose(struct ec_whole *whole, const struct aq_ec_goal &goal, uint32_t stride, bool again,
                                    bool may_differ, uint8_t *head)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const struct aq_ec_look look = aq_ec_look_of(whole->below, whole->energy, whole->moments, stride, again);
        const uint32_t way = (uint32_t)aq_ec_head_choose(&look, &goal, may_differ, head);
        if (may_differ) whole->way = way;
    }
    __syncthreads();
}

/* codec_ec.c, centre_pays. */
static __device__ bool block_centre_pays(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                         struct ec_whole *whole, uint32_t stride, const uint8_t *head, uint8_t *out,
                                         uint32_t *shared)
{
    const uint32_t half = aq_ec_bucket(__fmul_rn(0.5f, aq_ec_float_at(head + AQ_EC_STEP)));
    const struct aq_ec_noise none = {NULL, 0.0f};
    const uint64_t before = aq_ec_cost(whole->below, &none, half), looked = whole->below[AQ_EC_BUCKETS];
    const uint32_t bits = has_reference(plan, job, false) ? AQ_EC_COMMON_BITS : AQ_EC_MEAN_BITS;
    __syncthreads();
    if (!block_centre(plan, job, whole, stride, out, shared)) return false;
    if (!block_look(plan, job, whole, stride, true, false)) return false;
    block_counts_sum(whole->below, shared);
    const uint64_t price = aq_ec_centre_price(plan.columns, looked, plan.values, bits);
    const bool pays = aq_ec_cost(whole->below, &none, half) + price < before;
    __syncthreads();
    return pays && block_centre(plan, job, whole, 1, out, shared);
}

/* The head in shared memory becomes grid and table; false to all for one that no sender writes. */
static __device__ bool block_table(struct ec_whole *whole, const uint8_t *head, uint16_t *slots, bool decode)
{
    bool good = true;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint16_t weights[AQ_RANS_LEVELS], escapes;
        good = aq_ec_head_read(head, &whole->grid, weights, &escapes) && aq_rans_slots(weights, escapes, slots);
        whole->centred = (head[AQ_EC_MARKS] & AQ_EC_CENTRED) != 0;
        whole->common = (head[AQ_EC_MARKS] & AQ_EC_COMMON) != 0;
        whole->dithered = (head[AQ_EC_MARKS] & AQ_EC_DITHERED) != 0;
    }
    if (__syncthreads_and(good) == 0) return false;
    for (uint32_t symbol = threadIdx.x; symbol < 256; symbol += HEAD_BLOCK) {
        const uint32_t mine = slots[symbol];
        uint32_t first = 0;
        for (uint32_t s = 0; s < symbol; s++)
            first += slots[s];
        whole->encode[symbol] = symbol == 0 ? 0 : mine | first << 16;
        if (symbol == 0) whole->escape = mine;
        for (uint32_t i = 0; decode && i < mine; i++)
            whole->decode[first + i] = aq_rans_decode_entry(symbol, mine, i);
    }
    return true;
}

/* codec_ec.c, aq_ec_encode. */
static __device__ struct aq_ec_goal goal_of(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job)
{
    const bool keyframe = job.plain != 0, warm = plan.warm != 0 && !keyframe;
    const bool dithered = plan.stochastic != 0 && !keyframe, half = plan.half_dither != 0 && warm;
    const float rate = keyframe ? plan.keyframe_rate : plan.rate;
    return {aq_ec_rate_of_values(rate, plan.rows, plan.columns), keyframe ? 0.0f : plan.error,
            !dithered ? 0.0f : half ? 0.5f : 1.0f, warm, keyframe && plan.stochastic != 0};
}

/* In a second round, to all: is the sample coded again (codec_ec.c, aq_ec_encode)? Then to which goal, after a look at
 * how many rows, and is it to fit whatever they are? */
static __device__ bool block_again(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                   struct ec_whole *whole, struct aq_ec_goal *goal, uint32_t *stride, bool *fit)
{
    const uint32_t status = mem.status[blockIdx.x];
    const double bits = aq_ec_bits_of(plan.rows, plan.columns, mem.lengths[blockIdx.x]);
    const bool longer = status == 0 && aq_ec_is_long(goal, bits);
    *fit = status == STEP_FAILED;
    *stride = *fit ? 1 : aq_ec_stride_again(whole->stride);
    if (longer) *goal = aq_ec_goal_again(*goal, bits);
    __syncthreads();
    if (threadIdx.x == 0 && *fit) mem.status[blockIdx.x] = 0;
    if (threadIdx.x == 0) whole->done = !(longer || *fit);
    __syncthreads();
    return longer || *fit;
}

/* codec_ec.c, head_choose: the head of a sample whose counts stand. */
static __device__ bool block_head(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                  struct ec_whole *whole, const struct aq_ec_goal &goal, uint32_t stride, bool fit,
                                  uint8_t *head, uint32_t *shared)
{
    block_choose(whole, goal, stride, fit, true, head);
    const uint32_t way = whole->way;
    const bool dithered = (goal.dither > 0.0f && way == AQ_EC_AS_ASKED) || way == AQ_EC_DITHER;
    const uint32_t marks = dithered ? AQ_EC_DITHERED : 0;
    const bool may_centre = way % 3 == 0 && (!goal.warm || goal.dither == 0.5f);
    uint8_t *const body = (uint8_t *)job.body;
    bool centred = false, good = true;
    if (may_centre && whole->below[1] < whole->below[AQ_EC_BUCKETS]) {
        centred = block_centre_pays(plan, job, whole, stride, head,
                                    body + aq_ec_centre_from(plan.rows, plan.columns, marks), shared);
        const struct aq_ec_goal rest = aq_ec_goal_of_rest(goal, plan.columns, plan.values);
        good = block_look(plan, job, whole, stride, centred, false);
        block_counts_sum(whole->below, shared);
        block_choose(whole, centred ? rest : goal, stride, fit, false, head);
    }
    if (threadIdx.x == 0) {
        head[AQ_EC_MARKS] |= (uint8_t)(marks | (!centred ? 0 : goal.warm ? AQ_EC_COMMON : AQ_EC_CENTRED));
        whole->noise = dithered || way == AQ_EC_ZEROS;
        philox(job.key, 0, whole->dither.words);
        if (dithered) memcpy(body + aq_ec_key_from(plan.rows, plan.columns), &job.key, sizeof job.key);
    }
    return good;
}

__global__ void __launch_bounds__(HEAD_BLOCK)
    codec_ec_head(const __grid_constant__ struct aq_cuda_codec_plan plan,
                  const __grid_constant__ struct aq_cuda_codec_scratch mem,
                  const __grid_constant__ struct job_list list, uint32_t round)
{
    AQ_SHARED(uint32_t, shared, [HEAD_BLOCK]);
    AQ_SHARED(uint16_t, slots, [256]);
    AQ_SHARED(uint8_t, head, [AQ_EC_HEAD_BYTES + 4]);
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.x];
    struct ec_whole *whole = whole_of(plan, mem, blockIdx.x);
    struct aq_ec_goal goal = goal_of(plan, job);
    const bool energy = goal.error > 0.0f;
    uint32_t stride = aq_ec_stride(plan.rows, plan.values);
    bool fit = false;
    if (round > 0 && !block_again(plan, mem, whole, &goal, &stride, &fit)) return;
    bool good = block_look(plan, job, whole, stride, false, energy);
    if (good && stride > 1 && whole->below[0] == (plan.rows + stride - 1) / stride * plan.columns) {
        stride = 1;
        good = block_look(plan, job, whole, stride, false, energy);
    }
    if (threadIdx.x == 0) {
        whole->done = 0;
        whole->stride = stride;
    }
    if (good) {
        block_counts_sum(whole->below, shared);
        if (energy) block_counts_sum(whole->energy, shared);
        good = block_head(plan, job, whole, goal, stride, fit, head, shared);
        good = block_table(whole, head, slots, false) && good;
        for (uint32_t i = threadIdx.x; i < AQ_EC_HEAD_BYTES; i += HEAD_BLOCK)
            ((uint8_t *)job.body)[i] = head[i];
    }
    if (!good && threadIdx.x == 0) mem.status[blockIdx.x] = SAMPLE_FAILED;
}

/* ---- rows ---- */

static __device__ __forceinline__ float level_of(const struct aq_ec_grid &grid, int q)
{
    const int size = q < 0 ? -q : q;
    const float level = size < AQ_RANS_LEVELS ? grid.levels[size] : __fmul_rn((float)size, grid.step);
    return q < 0 ? -level : level;
}

static __device__ __forceinline__ float cell_of(const struct aq_ec_grid &grid, uint32_t cell)
{
    return __fmul_rn((float)((int)(2 * cell + 1) - (1 << grid.refine)), grid.unit);
}

/* x^ of a value to hat and m_out; false where the store cannot hold it. */
static __device__ __forceinline__ bool emit(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                            uint64_t e, float x)
{
    if (job.hat != NULL) job.hat[e] = x;
    if (plan.warm && job.m_out != NULL) value_write(plan.store, (uint8_t *)job.m_out, e, x);
    return magnitude_of(x) < plan.limit;
}

/* A row's codes, cells, x^ and sums. False where it cannot be coded. */
static __device__ bool quantize_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct row &row)
{
    struct ec_whole *const whole = whole_of(plan, mem, row.sample);
    const struct aq_ec_grid &grid = whole->grid;
    const bool centred = whole->centred != 0, against = has_reference(plan, *row.job, centred);
    const struct aq_ec_dither_row noise = aq_ec_dither_of(&whole->dither, row.number);
    const uint64_t first = (uint64_t)row.number * plan.columns, base = row.sample * plan.values;
    const float cells_in = (float)(1u << grid.refine), half = 0.5f * cells_in;
    const float inner = __fmul_rn(grid.inverse, cells_in);
    float sum_a = 0.0f, sum_a2 = 0.0f, sum_d2 = 0.0f, error = 0.0f;
    bool good = true, far = false;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const uint64_t e = first + c;
        const float a = row.job->a[e];
        const float reference = reference_of(plan, *row.job, centre_of(whole), centred, e, c);
        const float delta = against ? __fsub_rn(a, reference) : a;
        const float w = whole->noise != 0 ? dither_of(grid, noise, c) : 0.0f;
        const float own = whole->common != 0 ? __fsub_rn(delta, centre_of(whole)[c]) : delta;
        const float d = whole->noise != 0 ? __fadd_rn(own, w) : own;
        const float t = __fadd_rn(__fmul_rn(fabsf(d), grid.inverse), 0.5f);
        good = good && is_finite(delta);
        far = far || !(t < AQ_EC_ESCAPE_LIMIT);
        if (!good || far) continue;
        const int size = (int)t, q = d < 0.0f ? -size : size;
        float level = level_of(grid, q);
        mem.codes[base + e] = size < AQ_RANS_LEVELS ? (uint8_t)(q + AQ_RANS_CODE_ZERO) : 0;
        if (size >= AQ_RANS_LEVELS) mem.beyond[base + e] = q;
        if (grid.refine > 0) {
            const float at = __fadd_rn(__fmul_rn(__fsub_rn(d, level), inner), half);
            const float most = smaller(at, cells_in - 1.0f);
            const uint32_t cell = (uint32_t)(most > 0.0f ? most : 0.0f);
            mem.cells[base + e] = (uint8_t)cell;
            level = __fadd_rn(level, cell_of(grid, cell));
        }
        const float left = __fsub_rn(whole->dithered != 0 ? d : own, level);
        sum_a = __fadd_rn(sum_a, a);
        sum_a2 = __fadd_rn(sum_a2, __fmul_rn(a, a));
        sum_d2 = __fadd_rn(sum_d2, __fmul_rn(delta, delta));
        error = __fadd_rn(error, __fmul_rn(left, left));
        if (whole->dithered != 0) level = __fsub_rn(level, w);
        if (whole->common != 0) level = __fadd_rn(level, centre_of(whole)[c]);
        good = emit(plan, *row.job, e, against ? __fadd_rn(reference, level) : level);
    }
    row_sums(plan, mem, row, sum_a, sum_a2, sum_d2, error);
    if (__any_sync(WHOLE_WARP, far) && row.lane == 0) atomicOr(&mem.status[row.sample], STEP_FAILED);
    return good;
}

/* Is there nothing to do for a sample: it has failed, or its body stands? One answer for the whole warp. */
static __device__ __forceinline__ bool is_over(const struct aq_cuda_codec_plan &plan,
                                               const struct aq_cuda_codec_scratch &mem, uint32_t sample)
{
    return sample_failed(mem, sample) || whole_of(plan, mem, sample)->done != 0;
}

/* x^ of a row from its codes and cells. */
static __device__ bool apply_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                 const struct row &row)
{
    struct ec_whole *const whole = whole_of(plan, mem, row.sample);
    const struct aq_ec_grid &grid = whole->grid;
    const bool centred = whole->centred != 0, against = has_reference(plan, *row.job, centred);
    const struct aq_ec_dither_row noise = aq_ec_dither_of(&whole->dither, row.number);
    const uint64_t first = (uint64_t)row.number * plan.columns, base = row.sample * plan.values;
    bool good = true;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const uint64_t e = first + c;
        const int code = mem.codes[base + e];
        float level = level_of(grid, code == 0 ? mem.beyond[base + e] : code - AQ_RANS_CODE_ZERO);
        if (grid.refine > 0) level = __fadd_rn(level, cell_of(grid, mem.cells[base + e]));
        if (whole->dithered != 0) level = __fsub_rn(level, dither_of(grid, noise, c));
        if (whole->common != 0) level = __fadd_rn(level, centre_of(whole)[c]);
        const float reference = reference_of(plan, *row.job, centre_of(whole), centred, e, c);
        good = emit(plan, *row.job, e, against ? __fadd_rn(reference, level) : level) && good;
    }
    return good;
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_ec_rows(const __grid_constant__ struct aq_cuda_codec_plan plan,
                                                           const __grid_constant__ struct aq_cuda_codec_scratch mem,
                                                           const __grid_constant__ struct job_list list, bool encode)
{
    const uint64_t items = (uint64_t)list.count * plan.rows, warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    for (uint64_t item = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP; item < items; item += warps) {
        struct row row;
        row.sample = (uint32_t)(item / plan.rows);
        row.number = (uint32_t)(item % plan.rows);
        row.job = &list.jobs[row.sample];
        row.lane = threadIdx.x % WARP;
        if (encode ? is_over(plan, mem, row.sample) : sample_failed(mem, row.sample)) continue;
        (void)row_failed(mem, row, encode ? !quantize_row(plan, mem, row) : !apply_row(plan, mem, row));
    }
}

/* ---- chunks, a warp each ---- */

/* What a chunk leaves for codec_ec_join: scratch.chunk_states, .chunk_sizes, and in .staged words, then escapes. */
struct ec_stage {
    uint32_t *states, *sizes;
    uint8_t *words, *escapes;
};

static __device__ __forceinline__ struct ec_stage stage_of(const struct aq_cuda_codec_plan &plan,
                                                           const struct aq_cuda_codec_scratch &mem, uint32_t sample,
                                                           uint32_t number, const struct ec_chunk &chunk)
{
    const uint64_t chunks = aq_ec_chunk_count(plan.rows, plan.columns), index = sample * chunks + number;
    uint8_t *base = mem.staged + sample * (5 * plan.values + AQ_CUDA_CODEC_EC_STAGE * chunks) + 5 * chunk.begin +
                    (uint64_t)AQ_CUDA_CODEC_EC_STAGE * number;
    return {mem.chunk_states + WARP * index, mem.chunk_sizes + 2 * index, base, base + chunk.values + 64};
}

/* A number of an escape: seven bits a byte, the sign lowest. */
static __device__ __forceinline__ uint32_t number_word(int q)
{
    return ((uint32_t)q << 1) ^ (uint32_t)(q < 0 ? -1 : 0);
}

static __device__ __forceinline__ uint32_t number_bytes(uint32_t word)
{
    return 1u + (word > 127u) + (word >= 1u << 14) + (word >= 1u << 21);
}

static __device__ __forceinline__ uint8_t *number_put(uint32_t word, uint8_t *out)
{
    for (; word > 127; word >>= 7)
        *out++ = (uint8_t)((word & 127) | 128);
    *out++ = (uint8_t)word;
    return out;
}

/* Numbers of the escaped pairs of a chunk, in order, a lane a pair; returns their bytes, to all. */
static __device__ uint32_t escapes_put(const uint32_t *encode, const uint8_t *codes, const int *beyond, uint64_t values,
                                       uint8_t *out)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t bytes = 0;
    for (uint64_t first = 0; first < values; first += AQ_RANS_GROUP) {
        const uint64_t at = first + 2 * lane;
        const uint32_t low = at < values ? codes[at] : (uint32_t)AQ_RANS_CODE_ZERO;
        const uint32_t high = at + 1 < values ? codes[at + 1] : (uint32_t)AQ_RANS_CODE_ZERO;
        const bool escaped = (encode[low | high << 4] & 0xffffu) == 0;
        if (__ballot_sync(WHOLE_WARP, escaped) == 0) continue;
        const uint32_t one = number_word(escaped && low == 0 ? beyond[at] : (int)low - AQ_RANS_CODE_ZERO);
        const uint32_t other = number_word(escaped && high == 0 ? beyond[at + 1] : (int)high - AQ_RANS_CODE_ZERO);
        const uint32_t mine = escaped ? number_bytes(one) + number_bytes(other) : 0;
        uint32_t through = mine;
        for (uint32_t by = 1; by < WARP; by *= 2) {
            const uint32_t before = __shfl_up_sync(WHOLE_WARP, through, by);
            if (lane >= by) through += before;
        }
        if (escaped) (void)number_put(other, number_put(one, out + bytes + through - mine));
        bytes += __shfl_sync(WHOLE_WARP, through, WARP - 1);
    }
    return bytes;
}

__global__ void __launch_bounds__(WARP) codec_ec_chunks_out(const __grid_constant__ struct aq_cuda_codec_plan plan,
                                                            const __grid_constant__ struct aq_cuda_codec_scratch mem)
{
    AQ_SHARED(uint32_t, encode, [256]);
    const uint32_t sample = blockIdx.y, lane = threadIdx.x, below = (1u << lane) - 1u;
    if (is_over(plan, mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, blockIdx.x);
    const struct ec_stage stage = stage_of(plan, mem, sample, blockIdx.x, chunk);
    const uint8_t *codes = mem.codes + sample * plan.values + chunk.begin;
    const uint32_t groups = (uint32_t)((chunk.values + AQ_RANS_GROUP - 1) / AQ_RANS_GROUP);
    uint8_t *words = stage.escapes; /* downwards from here */
    uint32_t x = 1u << AQ_RANS_STATE_BITS;
    for (uint32_t i = lane; i < 256; i += WARP)
        encode[i] = whole->encode[i];
    __syncwarp();
    for (uint32_t group = groups; group-- > 0;) {
        const uint64_t at = (uint64_t)group * AQ_RANS_GROUP + 2 * lane;
        const uint32_t low = at < chunk.values ? codes[at] : (uint32_t)AQ_RANS_CODE_ZERO;
        const uint32_t high = at + 1 < chunk.values ? codes[at + 1] : (uint32_t)AQ_RANS_CODE_ZERO;
        uint32_t entry = encode[low | high << 4];
        if ((entry & 0xffffu) == 0) entry = whole->escape;
        const uint32_t slots = entry & 0xffffu;
        const bool full = x >= slots << (AQ_RANS_STATE_BITS + 16 - AQ_RANS_SLOT_BITS);
        const uint32_t mask = __ballot_sync(WHOLE_WARP, full);
        words -= 2 * __popc((int)mask);
        if (full) {
            bytes_write(words + 2 * __popc((int)(mask & below)), x, 2);
            x >>= 16;
        }
        x = (x / slots << AQ_RANS_SLOT_BITS) + x % slots + (entry >> 16);
    }
    const uint32_t bytes = (uint32_t)(stage.escapes - words);
    const uint32_t escapes = escapes_put(encode, codes, mem.beyond + sample * plan.values + chunk.begin, chunk.values,
                                         stage.escapes);
    const uint64_t room = 4 * chunk.values + AQ_EC_CHUNK_SLACK - AQ_EC_STATE_BYTES;
    const bool good = bytes + (uint64_t)escapes + aq_ec_cells_bytes(chunk.values, whole->grid.refine) <= room;
    stage.states[lane] = x;
    if (lane != 0) return;
    stage.sizes[0] = bytes;
    stage.sizes[1] = escapes;
    if (!good) atomicOr(&mem.status[sample], STEP_FAILED);
}

/* Grid (chunks, samples). */
__global__ void __launch_bounds__(JOIN_BLOCK) codec_ec_join(const __grid_constant__ struct aq_cuda_codec_plan plan,
                                                            const __grid_constant__ struct aq_cuda_codec_scratch mem,
                                                            const __grid_constant__ struct job_list list)
{
    const uint32_t sample = blockIdx.y, chunks = gridDim.x, number = blockIdx.x;
    if (is_over(plan, mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, number);
    const struct ec_stage stage = stage_of(plan, mem, sample, number, chunk);
    const uint32_t refine = whole->grid.refine, words = stage.sizes[0], escapes = stage.sizes[1];
    uint8_t *const body = (uint8_t *)list.jobs[sample].body;
    uint64_t at = aq_ec_chunks_from(plan.rows, plan.columns, marks_of(whole));
    for (uint32_t k = 0; k < number; k++) {
        const struct ec_chunk before = chunk_of(plan, k);
        const uint32_t *sizes = mem.chunk_sizes + 2 * ((uint64_t)sample * chunks + k);
        at += AQ_EC_STATE_BYTES + sizes[0] + (uint64_t)sizes[1] + aq_ec_cells_bytes(before.values, refine);
    }
    uint8_t *out = body + at;
    for (uint32_t i = threadIdx.x; i < WARP; i += JOIN_BLOCK)
        bytes_write(out + 4 * i, stage.states[i], 4);
    out += AQ_EC_STATE_BYTES;
    for (uint32_t i = threadIdx.x; i < words; i += JOIN_BLOCK)
        out[i] = (stage.escapes - words)[i];
    out += words;
    for (uint32_t i = threadIdx.x; i < escapes; i += JOIN_BLOCK)
        out[i] = stage.escapes[i];
    out += escapes;
    const uint8_t *cells = mem.cells + sample * plan.values + chunk.begin;
    for (uint64_t u = threadIdx.x; refine > 0 && 8 * u < chunk.values; u += JOIN_BLOCK) {
        uint64_t word = 0;
        for (uint32_t i = 0; i < 8 && 8 * u + i < chunk.values; i++)
            word |= (uint64_t)cells[8 * u + i] << i * refine;
        for (uint32_t k = 0; k < refine; k++)
            out[u * refine + k] = (uint8_t)(word >> 8 * k);
    }
    if (threadIdx.x != 0) return;
    bytes_write(body + AQ_EC_HEAD_BYTES + (uint64_t)number * AQ_EC_CHUNK_ENTRY, words, 4);
    bytes_write(body + AQ_EC_HEAD_BYTES + (uint64_t)number * AQ_EC_CHUNK_ENTRY + 4, escapes, 4);
    out += aq_ec_cells_bytes(chunk.values, refine);
    if (number + 1 == chunks) mem.lengths[sample] = (uint32_t)(out - body);
}

/* ---- decode ---- */

__global__ void __launch_bounds__(HEAD_BLOCK) codec_ec_head_in(const __grid_constant__ struct aq_cuda_codec_plan plan,
                                                               const __grid_constant__ struct aq_cuda_codec_scratch mem,
                                                               const __grid_constant__ struct job_list list)
{
    AQ_SHARED(uint16_t, slots, [256]);
    AQ_SHARED(uint8_t, head, [AQ_EC_HEAD_BYTES + 4]);
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.x];
    struct ec_whole *whole = whole_of(plan, mem, blockIdx.x);
    const uint8_t *body = (const uint8_t *)job.body;
    const uint32_t chunks = aq_ec_chunk_count(plan.rows, plan.columns);
    const uint64_t lengths = aq_ec_key_from(plan.rows, plan.columns);
    bool good = job.body_bytes >= lengths; /* all threads alike */
    if (good) {
        for (uint32_t i = threadIdx.x; i < AQ_EC_HEAD_BYTES; i += HEAD_BLOCK)
            head[i] = body[i];
        good = block_table(whole, head, slots, true);
    }
    if (good) {
        const bool centred = (head[AQ_EC_MARKS] & AQ_EC_CENTRED) != 0;
        const uint8_t *const centre = body + aq_ec_centre_from(plan.rows, plan.columns, head[AQ_EC_MARKS]);
        uint64_t bytes = aq_ec_chunks_from(plan.rows, plan.columns, head[AQ_EC_MARKS]);
        for (uint32_t k = 0; k < chunks; k++) {
            const uint8_t *entry = body + AQ_EC_HEAD_BYTES + (uint64_t)k * AQ_EC_CHUNK_ENTRY;
            bytes += AQ_EC_STATE_BYTES + bytes_read(entry, 4) + (uint64_t)bytes_read(entry + 4, 4) +
                     aq_ec_cells_bytes(chunk_of(plan, k).values, head[AQ_EC_REFINE]);
        }
        const bool common = (head[AQ_EC_MARKS] & AQ_EC_COMMON) != 0;
        good = bytes == job.body_bytes && !(has_reference(plan, job, false) ? centred : common);
        const float unit = good && common ? aq_ec_float(bytes_read(centre, 4)) : 0.0f;
        good = good && aq_ec_common_fits(unit) &&
               !(common && plan.columns % 2 != 0 && centre[sizeof unit + plan.columns / 2] >= AQ_EC_COMMON_LEVELS);
        for (uint32_t c = threadIdx.x; good && common && c < plan.columns; c += HEAD_BLOCK)
            centre_of(whole)[c] = aq_ec_common_mean(centre[sizeof unit + c / 2] >> 4 * (c % 2) & 15u, unit);
        for (uint32_t c = threadIdx.x; good && centred && c < plan.columns; c += HEAD_BLOCK)
            centre_of(whole)[c] = half_to_float((uint16_t)bytes_read(centre + 2 * (uint64_t)c, 2));
        if (good && threadIdx.x == 0 && (head[AQ_EC_MARKS] & AQ_EC_DITHERED) != 0) {
            struct aq_rng_key key;
            memcpy(&key, body + lengths, sizeof key);
            philox(key, 0, whole->dither.words);
        }
        for (uint32_t c = threadIdx.x; good && centred && c < plan.columns; c += HEAD_BLOCK)
            if (!is_finite(centre_of(whole)[c])) atomicOr(&mem.status[blockIdx.x], 1u);
    }
    if (!good && threadIdx.x == 0) atomicOr(&mem.status[blockIdx.x], 1u);
}

/* q of a chunk's escaped values, in order, by the first lane. False: they are not its bytes. odd: one more, of
 * nothing. */
static __device__ bool escapes_take(const uint8_t *codes, int *beyond, uint64_t values, bool odd, const uint8_t *at,
                                    const uint8_t *end)
{
    const uint32_t lane = threadIdx.x % WARP;
    bool good = true;
    for (uint64_t first = 0; first < values + 1; first += WARP) {
        const uint64_t mine = first + lane;
        uint32_t zeros = __ballot_sync(WHOLE_WARP, mine < values ? codes[mine] == 0 : mine == values && odd);
        for (; lane == 0 && good && zeros != 0; zeros &= zeros - 1) {
            const uint64_t e = first + (uint64_t)(__ffs((int)zeros) - 1);
            uint32_t word = 0, shift = 0;
            bool more = true;
            for (; more && shift < 28 && at < end; shift += 7) {
                word |= (uint32_t)(*at & 127) << shift;
                more = *at++ > 127;
            }
            const int q = (int)(word >> 1) ^ -(int)(word & 1);
            good = !more && (e < values || q == 0);
            if (e < values) beyond[e] = q;
        }
        __syncwarp();
    }
    return lane != 0 || (good && at == end);
}

/* Grid (chunks, samples). */
__global__ void __launch_bounds__(WARP) codec_ec_chunks_in(const __grid_constant__ struct aq_cuda_codec_plan plan,
                                                           const __grid_constant__ struct aq_cuda_codec_scratch mem,
                                                           const __grid_constant__ struct job_list list)
{
    AQ_SHARED(uint32_t, table, [AQ_RANS_SLOTS]);
    const uint32_t sample = blockIdx.y, lane = threadIdx.x, below = (1u << lane) - 1u;
    if (sample_failed(mem, sample)) return;
    const struct ec_whole *whole = whole_of(plan, mem, sample);
    const struct ec_chunk chunk = chunk_of(plan, blockIdx.x);
    const uint8_t *body = (const uint8_t *)list.jobs[sample].body, *entry = body + AQ_EC_HEAD_BYTES;
    const uint8_t *at = body + aq_ec_chunks_from(plan.rows, plan.columns, marks_of(whole));
    const uint32_t refine = whole->grid.refine;
    const uint32_t groups = (uint32_t)((chunk.values + AQ_RANS_GROUP - 1) / AQ_RANS_GROUP);
    uint8_t *const codes = mem.codes + sample * plan.values + chunk.begin;
    for (uint32_t k = 0; k < blockIdx.x; k++, entry += AQ_EC_CHUNK_ENTRY)
        at += AQ_EC_STATE_BYTES + bytes_read(entry, 4) + (uint64_t)bytes_read(entry + 4, 4) +
              aq_ec_cells_bytes(chunk_of(plan, k).values, refine);
    for (uint32_t i = lane; i < AQ_RANS_SLOTS; i += WARP)
        table[i] = whole->decode[i];
    __syncwarp();
    uint32_t x = bytes_read(at + 4 * lane, 4);
    const uint8_t *words = at + AQ_EC_STATE_BYTES, *const end = words + bytes_read(entry, 4);
    const uint8_t *const cells = end + bytes_read(entry + 4, 4);
    bool good = __all_sync(WHOLE_WARP, x >= 1u << AQ_RANS_STATE_BITS && x < 1u << 31), odd = false;
    for (uint32_t group = 0; group < groups && good; group++) {
        const uint64_t e = (uint64_t)group * AQ_RANS_GROUP + 2 * lane;
        const uint32_t found = table[x & (AQ_RANS_SLOTS - 1)], low = found & 15, high = found >> 4 & 15;
        x = (x >> AQ_RANS_SLOT_BITS) * (found >> 8 & (AQ_RANS_SLOTS - 1)) + (found >> 20);
        const bool empty = x < 1u << AQ_RANS_STATE_BITS;
        const uint32_t mask = __ballot_sync(WHOLE_WARP, empty);
        good = (uint64_t)(end - words) >= 2 * (uint64_t)__popc((int)mask);
        if (good && empty) x = x << 16 | bytes_read(words + 2 * __popc((int)(mask & below)), 2);
        words += good ? 2 * __popc((int)mask) : 0;
        if (e < chunk.values) codes[e] = (uint8_t)low;
        if (e + 1 < chunk.values) codes[e + 1] = (uint8_t)high;
        const bool half = e + 1 == chunk.values && high == 0; /* the last pair is escaped, and half of it is nothing */
        const bool stray = (e >= chunk.values && low != AQ_RANS_CODE_ZERO) ||
                           (e + 1 >= chunk.values && high != AQ_RANS_CODE_ZERO && !half);
        odd = __any_sync(WHOLE_WARP, half);
        good = !__any_sync(WHOLE_WARP, stray) && good;
    }
    good = __all_sync(WHOLE_WARP, good && x == 1u << AQ_RANS_STATE_BITS) && words == end;
    __syncwarp();
    int *const beyond = mem.beyond + sample * plan.values + chunk.begin;
    if (good) good = __all_sync(WHOLE_WARP, escapes_take(codes, beyond, chunk.values, odd, end, cells));
    uint8_t *const out = mem.cells + sample * plan.values + chunk.begin;
    for (uint64_t e = lane; good && refine > 0 && e < chunk.values; e += WARP)
        out[e] = (uint8_t)code_read(cells, e, refine);
    if (!good && lane == 0) atomicOr(&mem.status[sample], 1u);
}

/* ---- the launchers ---- */

/* What has no reference may be coded again: m' may have taken the place of one. */
enum aq_status codec_launch_encode_ec(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                      const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 chunks(aq_ec_chunk_count(plan.rows, plan.columns), list.count);
    const dim3 rows = codec_row_grid(plan, mem, list.count);
    const uint32_t rounds = plan.warm && !list.jobs[0].plain ? 1 : 2;
    for (uint32_t round = 0; round < rounds; round++) {
        AQ_TRY(AQ_LAUNCH(codec_ec_head, list.count, HEAD_BLOCK, 0, stream, plan, mem, list, round));
        AQ_TRY(AQ_LAUNCH(codec_ec_rows, rows, ROW_BLOCK, 0, stream, plan, mem, list, true));
        AQ_TRY(AQ_LAUNCH(codec_ec_chunks_out, chunks, WARP, 0, stream, plan, mem));
        AQ_TRY(AQ_LAUNCH(codec_ec_join, chunks, JOIN_BLOCK, 0, stream, plan, mem, list));
    }
    return AQ_OK;
}

enum aq_status codec_launch_decode_ec(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                      const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 chunks(aq_ec_chunk_count(plan.rows, plan.columns), list.count);
    const dim3 rows = codec_row_grid(plan, mem, list.count);
    AQ_TRY(AQ_LAUNCH(codec_ec_head_in, list.count, HEAD_BLOCK, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_ec_chunks_in, chunks, WARP, 0, stream, plan, mem, list));
    return AQ_LAUNCH(codec_ec_rows, rows, ROW_BLOCK, 0, stream, plan, mem, list, false);
}
