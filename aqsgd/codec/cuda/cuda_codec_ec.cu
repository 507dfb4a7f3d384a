/*
 * cuda_codec_ec.cu -- the kernels of codec_ec.c: entropy-coded bodies and keyframes.
 *
 * Out: one block per sample looks at it and chooses its head (codec_ec_choose.h, the CPU's source); one warp per row
 * quantizes it; chunks are coded and joined (cuda_codec_ec_chunks.cu). In: one block per sample reads the head, chunks
 * are decoded, one warp per row makes x^. Values beyond the table are kept in scratch.beyond, at their element.
 */
#include "cuda_codec_ec.cuh"

enum { HEAD_BLOCK = 256, LOADS = 8, AHEAD = 4, SEGMENT = (AQ_EC_BUCKETS + 1 + HEAD_BLOCK - 1) / HEAD_BLOCK };

/* value_read, in one piece if the message is at a multiple of four bytes. */
static __device__ __forceinline__ float message_load(const struct aq_cuda_codec_plan &plan, const void *m, uint64_t e)
{
    if ((uintptr_t)m % 4 != 0) return value_read(plan.store, (const uint8_t *)m, plan.rows, e, 0.0f);
    if (plan.store == AQ_PRECISION_FP32) return ((const float *)m)[e];
    const uint16_t word = ((const uint16_t *)m)[e];
    return plan.store == AQ_PRECISION_FP16 ? half_to_float(word) : bfloat_to_float(word);
}

/* Is there one? x - 0 and 0 + x are not x where x is -0. */
static __device__ __forceinline__ bool has_reference(const struct aq_cuda_codec_plan &plan,
                                                     const struct aq_cuda_codec_job &job, bool centred)
{
    return centred || (plan.warm && !job.plain);
}

/* The noise of a value, w (codec_scalar.h, scalar_ec_dither). */
static __device__ __forceinline__ float dither_of(float unit, struct aq_ec_dither_row row, uint32_t c)
{
    return __fmul_rn((float)((int)(2 * aq_ec_dither_byte(row, c)) - 255), unit);
}

/* APART: compiled once, not at each call. All of it in line has the head's kernel spill registers. */
#ifdef AQ_CUDA_HOST
#define UNROLL_EIGHT
#define APART
#else
#define UNROLL_EIGHT _Pragma("unroll 8")
#define APART        __noinline__
#endif

/* How a block makes the table of rANS. */
struct ec_table {
    uint32_t slots[256], first[256 + WARP], best;
    uint16_t weights[AQ_RANS_LEVELS], escapes;
};

/* ---- the head, a block per sample ---- */

/* The values at (row, c) whose magnitudes are counted: a, and the value to be coded. */
struct looked {
    float a, d;
};

static __device__ __forceinline__ struct looked look_at(const struct aq_cuda_codec_plan &plan,
                                                        const struct aq_cuda_codec_job &job, const float *centre,
                                                        bool centred, uint64_t row, uint32_t c)
{
    const bool referred = plan.warm && !job.plain;
    const uint64_t e = row * plan.columns + c;
    const float a = job.a[e];
    float d = a;
    if (referred) d = __fsub_rn(d, message_load(plan, job.m, e));
    if (centred) d = __fsub_rn(d, centre[c]);
    return {a, d};
}

/* One more in a counter of shared memory. A function that is not in line does not see which memory it is. */
static __device__ __forceinline__ void count_one(uint32_t *counter)
{
#ifdef __CUDA_ARCH__
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(counter)) : "memory");
#else
    atomicAdd(counter, 1u);
#endif
}

/* Counts of magnitudes in every `stride`th row; false to all where a value is not finite. They are made in shared
 * memory, in `counts`; LOADS values are on their way at a time. */
static __device__ APART bool block_look(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                        struct ec_whole *whole, uint32_t *counts, uint32_t stride, bool centred,
                                        bool energy)
{
    bool bad = false;
    __syncthreads();
    for (uint32_t b = threadIdx.x; b <= AQ_EC_BUCKETS; b += HEAD_BLOCK) {
        counts[b] = 0;
        if (energy) whole->energy[b] = 0;
    }
    __syncthreads();
    const uint32_t rows = (plan.rows + stride - 1) / stride;
    for (uint32_t c = threadIdx.x; c < plan.columns; c += HEAD_BLOCK) {
        for (uint32_t first = 0; first < rows; first += LOADS) {
            struct looked at[LOADS];
            UNROLL
            for (uint32_t i = 0; i < LOADS; i++)
                if (first + i < rows)
                    at[i] = look_at(plan, job, centre_of(whole), centred, (uint64_t)(first + i) * stride, c);
            UNROLL
            for (uint32_t i = 0; i < LOADS; i++) {
                if (first + i >= rows) continue;
                if (!is_finite(at[i].d) || (energy && !is_finite(at[i].a))) {
                    bad = true;
                    continue;
                }
                count_one(&counts[magnitude_of(at[i].d) >> AQ_EC_BUCKET_SHIFT]);
                if (energy) atomicAdd(&whole->energy[magnitude_of(at[i].a) >> AQ_EC_BUCKET_SHIFT], 1u);
            }
        }
    }
    return __syncthreads_or(bad) == 0;
}

/* Counts become counts of all below, in `below`, which may be the same. */
static __device__ APART void block_counts_sum(const uint32_t *counts, uint32_t *below, uint32_t *shared)
{
    const uint32_t from = threadIdx.x * SEGMENT, lane = threadIdx.x % WARP;
    uint32_t sum = 0, before = 0;
    __syncthreads();
    for (uint32_t b = from; b < from + SEGMENT && b <= AQ_EC_BUCKETS; b++)
        sum += counts[b];
    uint32_t through = sum;
    for (uint32_t by = 1; by < WARP; by *= 2) {
        const uint32_t other = __shfl_up_sync(WHOLE_WARP, through, by);
        if (lane >= by) through += other;
    }
    if (lane == WARP - 1) shared[threadIdx.x / WARP] = through;
    __syncthreads();
    for (uint32_t warp = 0; warp < threadIdx.x / WARP; warp++)
        before += shared[warp];
    before += through - sum;
    for (uint32_t b = from; b < from + SEGMENT && b <= AQ_EC_BUCKETS; b++) {
        const uint32_t count = counts[b];
        below[b] = before;
        before += count;
    }
    __syncthreads();
}

/* aq_ec_moments by a block. Empty buckets add nothing: only those between the first one behind that of zero and the
 * last one are added up one after another, by a thread for each of the two sums. */
static __device__ APART void block_moments(struct ec_whole *whole)
{
    const uint32_t *const below = whole->below;
    double *const sums = whole->moments, *const squares = sums + AQ_EC_BUCKETS + 1;
    const uint32_t all = below[AQ_EC_BUCKETS], zeros = below[1];
    const uint32_t low = all - zeros > 0 ? aq_ec_bucket_above(below, all - zeros - 1) - 1 : 1;
    const uint32_t high = aq_ec_bucket_above(below, 0);
    for (uint32_t b = threadIdx.x; b < AQ_EC_BUCKETS; b += HEAD_BLOCK) {
        const double count = (double)(below[b + 1] - below[b]), v = count > 0.0 ? (double)aq_ec_middle(b) : 0.0;
        sums[b + 1] = count * v;
        squares[b + 1] = count * v * v;
    }
    __syncthreads();
    if (threadIdx.x == 0 || threadIdx.x == WARP) {
        double *const of = threadIdx.x == 0 ? sums : squares, sum = of[1];
        of[0] = 0.0;
        UNROLL_EIGHT
        for (uint32_t b = low + 1; b <= high; b++) {
            sum += of[b];
            of[b] = sum;
        }
    }
    __syncthreads();
    for (uint32_t b = 1 + threadIdx.x; b <= AQ_EC_BUCKETS; b += HEAD_BLOCK) {
        if (b > 1 && b <= low) sums[b] = sums[1], squares[b] = squares[1];
        if (b > high && high >= 1) sums[b] = sums[high], squares[b] = squares[high];
    }
    __syncthreads();
}

/* Of a channel over every `stride`th row, as the CPU adds it up: the mean, or that of its change. */
static __device__ APART float mean_of(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                      uint32_t stride, uint32_t c)
{
    const uint32_t rows = (plan.rows + stride - 1) / stride;
    float sum = 0.0f;
    for (uint32_t first = 0; first < rows; first += 2 * LOADS) {
        float d[2 * LOADS];
        UNROLL
        for (uint32_t i = 0; i < 2 * LOADS; i++)
            if (first + i < rows) d[i] = look_at(plan, job, NULL, false, (uint64_t)(first + i) * stride, c).d;
        UNROLL
        for (uint32_t i = 0; i < 2 * LOADS; i++)
            if (first + i < rows) sum = __fadd_rn(sum, d[i]);
    }
    return __fdiv_rn(sum, (float)rows);
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
    if (goal.dither > 0.0f || goal.error > 0.0f) block_moments(whole);
    if (threadIdx.x == 0) {
        struct aq_ec_look look = aq_ec_look_of(whole->below, whole->energy, whole->moments, stride, again);
        look.summed = true;
        const uint32_t way = (uint32_t)aq_ec_head_choose(&look, &goal, may_differ, head);
        if (may_differ) whole->way = way;
    }
    __syncthreads();
}

/* codec_ec.c, centre_pays. */
static __device__ bool block_centre_pays(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                         struct ec_whole *whole, uint32_t stride, const uint8_t *head, uint8_t *out,
                                         uint32_t *counts, uint32_t *shared)
{
    const uint32_t half = aq_ec_bucket(__fmul_rn(0.5f, aq_ec_float_at(head + AQ_EC_STEP)));
    const struct aq_ec_noise none = {NULL, 0.0f};
    const uint64_t before = aq_ec_cost(whole->below, &none, half), looked = whole->below[AQ_EC_BUCKETS];
    const uint32_t bits = has_reference(plan, job, false) ? AQ_EC_COMMON_BITS : AQ_EC_MEAN_BITS;
    __syncthreads();
    if (!block_centre(plan, job, whole, stride, out, shared)) return false;
    if (!block_look(plan, job, whole, counts, stride, true, false)) return false;
    block_counts_sum(counts, whole->below, shared);
    const uint64_t price = aq_ec_centre_price(plan.columns, looked, plan.values, bits);
    const bool pays = aq_ec_cost(whole->below, &none, half) + price < before;
    __syncthreads();
    return pays && block_centre(plan, job, whole, 1, out, shared);
}

/* aq_rans_slots with one thread per symbol: slots, and in first[symbol] those before it; false to all for a head
 * that no sender writes. best: of the most frequent pair, the first of them. */
static __device__ APART bool block_slots(const uint16_t *weights, uint32_t escapes, uint32_t *slots, uint32_t *first,
                                         uint32_t *best)
{
    const uint64_t sum = aq_rans_weight_sum(weights), total = sum * sum;
    const uint32_t zero = AQ_RANS_CODE_ZERO | AQ_RANS_CODE_ZERO << 4, symbol = threadIdx.x;
    const uint32_t a = symbol & 15, b = symbol >> 4;
    if (weights[0] == 0 || escapes < 1 || escapes > AQ_RANS_ESCAPES_MAX) return false;
    if (symbol == 0) *best = 0;
    __syncthreads();
    if (symbol < 256) {
        uint32_t mine = symbol == 0 ? escapes : 0;
        if (a != 0 && b != 0) {
            mine = aq_rans_pair_slots(weights, a, b, total, AQ_RANS_SLOTS - escapes) & 0xffffu;
            if (symbol == zero && mine == 0) mine = 1;
            atomicMax(best, mine << 8 | (255 - symbol));
        }
        slots[symbol] = mine;
    }
    __syncthreads();
    if (symbol < WARP) { /* eight symbols a lane */
        uint32_t used = 0;
        for (uint32_t i = 0; i < 8; i++)
            used += slots[8 * symbol + i];
        first[256 + symbol] = used;
    }
    __syncthreads();
    uint32_t used = 0, before = 0;
    for (uint32_t lane = 0; lane < WARP; lane++) {
        before += lane < symbol / 8 ? first[256 + lane] : 0;
        used += first[256 + lane];
    }
    const uint32_t most = 255 - (*best & 255), has = *best >> 8;
    if (used >= AQ_RANS_SLOTS + has) return false;
    for (uint32_t s = symbol / 8 * 8; symbol < 256 && s < symbol; s++)
        before += slots[s];
    if (symbol < 256) first[symbol] = before + (most < symbol ? AQ_RANS_SLOTS - used : 0);
    __syncthreads();
    if (symbol == most) slots[most] = has + AQ_RANS_SLOTS - used;
    __syncthreads();
    return true;
}

/* For rans_put, of a symbol with slots. */
static __device__ __forceinline__ uint32_t slots_inverse(uint32_t slots)
{
    if (slots < 2) return UINT32_MAX;
    const uint32_t shift = 31u - (uint32_t)__clz((int)(slots - 1));
    return (uint32_t)(((UINT64_C(1) << (32 + shift)) + slots - 1) / slots);
}

/* The head in shared memory becomes grid and table; false to all for one that no sender writes. */
static __device__ bool block_table(struct ec_whole *whole, const uint8_t *head, struct ec_table *table, bool decode)
{
    bool good = true;
    __syncthreads();
    if (threadIdx.x == 0) {
        good = aq_ec_head_read(head, &whole->grid, table->weights, &table->escapes);
        whole->centred = (head[AQ_EC_MARKS] & AQ_EC_CENTRED) != 0;
        whole->common = (head[AQ_EC_MARKS] & AQ_EC_COMMON) != 0;
        whole->dithered = (head[AQ_EC_MARKS] & AQ_EC_DITHERED) != 0;
    }
    if (__syncthreads_and(good) == 0) return false;
    if (!block_slots(table->weights, table->escapes, table->slots, table->first, &table->best)) return false;
    if (threadIdx.x < 256) {
        const bool escaped = threadIdx.x == 0 || table->slots[threadIdx.x] == 0;
        const uint32_t symbol = escaped ? 0 : threadIdx.x, slots = table->slots[symbol];
        whole->encode[threadIdx.x] = slots | (escaped ? (uint32_t)ESCAPED : 0) | table->first[symbol] << 16;
        whole->inverse[threadIdx.x] = slots_inverse(slots);
    }
    for (uint32_t slot = threadIdx.x; decode && slot < AQ_RANS_SLOTS; slot += HEAD_BLOCK) {
        uint32_t symbol = 0; /* the last one that starts at or before the slot and has any */
        for (uint32_t step = 128; step > 0; step /= 2)
            if (table->first[symbol + step] <= slot) symbol += step;
        ((uint32_t *)whole->decode)[slot] =
            aq_rans_decode_entry(symbol, table->slots[symbol], slot - table->first[symbol]);
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
            !dithered ? 0.0f
            : half    ? 0.5f
                      : 1.0f,
            warm, keyframe && plan.stochastic != 0};
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

/* codec_ec.c, head_choose: the head of a sample whose counts are made. */
static __device__ bool block_head(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_job &job,
                                  struct ec_whole *whole, const struct aq_ec_goal &goal, uint32_t stride, bool fit,
                                  uint8_t *head, uint32_t *counts, uint32_t *shared)
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
                                    body + aq_ec_centre_from(plan.rows, plan.columns, marks), counts, shared);
        const struct aq_ec_goal rest = aq_ec_goal_of_rest(goal, plan.columns, plan.values);
        good = block_look(plan, job, whole, counts, stride, centred, false);
        block_counts_sum(counts, whole->below, shared);
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

__global__ void __launch_bounds__(HEAD_BLOCK) codec_ec_head(CODEC_JOBS, uint32_t round)
{
    AQ_SHARED(uint32_t, counts, [AQ_EC_BUCKETS + 1]);
    AQ_SHARED(uint32_t, shared, [HEAD_BLOCK / WARP]);
    AQ_SHARED(struct ec_table, table, [1]);
    AQ_SHARED(uint8_t, head, [AQ_EC_HEAD_BYTES + 4]);
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.x];
    struct ec_whole *whole = whole_of(plan, mem, blockIdx.x);
    struct aq_ec_goal goal = goal_of(plan, job);
    const bool energy = goal.error > 0.0f;
    uint32_t stride = aq_ec_stride(plan.rows, plan.values);
    bool fit = false;
    if (round > 0 && !block_again(plan, mem, whole, &goal, &stride, &fit)) return;
    bool good = block_look(plan, job, whole, counts, stride, false, energy);
    if (good && stride > 1 && counts[0] == (plan.rows + stride - 1) / stride * plan.columns) {
        stride = 1;
        good = block_look(plan, job, whole, counts, stride, false, energy);
    }
    if (threadIdx.x == 0) {
        whole->done = 0;
        whole->stride = stride;
    }
    if (good) {
        block_counts_sum(counts, whole->below, shared);
        if (energy) block_counts_sum(whole->energy, whole->energy, shared);
        good = block_head(plan, job, whole, goal, stride, fit, head, counts, shared);
        good = block_table(whole, head, table, false) && good;
        for (uint32_t i = threadIdx.x; i < AQ_EC_HEAD_BYTES; i += HEAD_BLOCK)
            ((uint8_t *)job.body)[i] = head[i];
    }
    if (!good && threadIdx.x == 0) mem.status[blockIdx.x] = SAMPLE_FAILED;
}

/* ---- rows ---- */

/* levels: of |q| = 0..7, in shared memory. */
static __device__ __forceinline__ float level_of(const float *levels, float step, uint32_t size)
{
    return size < AQ_RANS_LEVELS ? levels[size] : __fmul_rn((float)(int)size, step);
}

static __device__ __forceinline__ float cell_of(uint32_t refine, float unit, uint32_t cell)
{
    return __fmul_rn((float)((int)(2 * cell + 1) - (1 << refine)), unit);
}

/* How the values of a row lie in memory. ROW_BYTES: as value_read and value_write take them. */
enum row_kind { ROW_NONE, ROW_FLOATS, ROW_HALVES, ROW_BFLOATS, ROW_BYTES };

static __device__ __forceinline__ enum row_kind row_kind_of(const struct aq_cuda_codec_plan &plan, const void *m)
{
    if (m == NULL) return ROW_NONE;
    if ((uintptr_t)m % 4 != 0) return ROW_BYTES;
    return plan.store == AQ_PRECISION_FP32 ? ROW_FLOATS : plan.store == AQ_PRECISION_FP16 ? ROW_HALVES : ROW_BFLOATS;
}

/* The row that begins with that element; of ROW_BYTES the message. */
static __device__ __forceinline__ uint8_t *row_at(enum row_kind kind, const void *m, uint64_t first)
{
    return (uint8_t *)m + (kind == ROW_FLOATS ? 4 * first : kind == ROW_HALVES || kind == ROW_BFLOATS ? 2 * first : 0);
}

/* The data that all values of a row share, loaded once; pointers are to the row's first value. */
struct ec_row {
    const float *centre, *levels;
    float step, inverse, unit, dither;
    uint32_t refine;
    bool against, common, noise, dithered; /* against: there is a reference */
    enum row_kind reads, writes;           /* the reference, m' */
    struct aq_ec_dither_row numbers;
    uint64_t first; /* its element of the sample */
    const float *a;
    const uint8_t *reference;
    float *hat;
    uint8_t *m_out, *codes, *cells;
    int *beyond;
};

static __device__ __forceinline__ struct ec_row ec_row_of(const struct aq_cuda_codec_plan &plan,
                                                          const struct aq_cuda_codec_scratch &mem,
                                                          const struct row &row, float *levels)
{
    struct ec_whole *const whole = whole_of(plan, mem, row.sample);
    const struct aq_ec_grid &grid = whole->grid;
    const struct aq_cuda_codec_job &job = *row.job;
    const bool referred = plan.warm && !job.plain, centred = !referred && whole->centred != 0;
    struct ec_row out;
    if (row.lane < AQ_RANS_LEVELS) levels[row.lane] = grid.levels[row.lane];
    out.first = (uint64_t)row.number * plan.columns;
    const uint64_t place = row.sample * plan.values + out.first;
    out.centre = centre_of(whole);
    out.levels = levels;
    out.step = grid.step;
    out.inverse = grid.inverse;
    out.unit = grid.unit;
    out.dither = grid.dither;
    out.refine = grid.refine;
    out.against = referred || centred;
    out.common = whole->common != 0;
    out.noise = whole->noise != 0;
    out.dithered = whole->dithered != 0;
    out.numbers = aq_ec_dither_of(&whole->dither, row.number);
    out.reads = referred ? row_kind_of(plan, job.m) : centred ? ROW_FLOATS : ROW_NONE;
    out.reference = referred ? row_at(out.reads, job.m, out.first) : (const uint8_t *)out.centre;
    out.writes = plan.warm ? row_kind_of(plan, job.m_out) : ROW_NONE;
    out.m_out = row_at(out.writes, job.m_out, out.first);
    out.a = job.a == NULL ? NULL : job.a + out.first; /* encode */
    out.hat = job.hat == NULL ? NULL : job.hat + out.first;
    out.codes = mem.codes + place;
    out.cells = mem.cells + place;
    out.beyond = beyond_of(plan, mem, row.sample, row.number / aq_ec_chunk_rows(plan.columns)) + out.first;
    __syncwarp();
    return out;
}

/*
 * AHEAD values of the reference, 32 columns apart, as they lie in memory: what turns them into floats comes later, so
 * that no load waits for the one before.
 */
static __device__ __forceinline__ void references_load(const struct aq_cuda_codec_plan &plan, const struct ec_row &of,
                                                       uint32_t begin, uint32_t *bits)
{
    if (of.reads == ROW_HALVES || of.reads == ROW_BFLOATS) {
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++)
            bits[i] = begin + i * WARP < plan.columns ? ((const uint16_t *)of.reference)[begin + i * WARP] : 0;
    } else if (of.reads == ROW_FLOATS) {
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++)
            bits[i] =
                begin + i * WARP < plan.columns ? __float_as_uint(((const float *)of.reference)[begin + i * WARP]) : 0;
    } else {
        for (uint32_t i = 0; i < AHEAD; i++)
            bits[i] = of.reads == ROW_BYTES && begin + i * WARP < plan.columns
                          ? __float_as_uint(
                                value_read(plan.store, of.reference, plan.rows, of.first + begin + i * WARP, 0.0f))
                          : 0;
    }
}

static __device__ __forceinline__ float reference_of(const struct ec_row &of, uint32_t bits)
{
    return of.reads == ROW_HALVES    ? half_to_float((uint16_t)bits)
           : of.reads == ROW_BFLOATS ? bfloat_to_float((uint16_t)bits)
                                     : __uint_as_float(bits);
}

/* x^ of a value to hat and m_out; false where the store cannot hold it. */
static __device__ __forceinline__ bool emit(const struct aq_cuda_codec_plan &plan, const struct ec_row &of, uint32_t c,
                                            float x)
{
    if (of.hat != NULL) of.hat[c] = x;
    if (of.writes == ROW_HALVES)
        ((uint16_t *)of.m_out)[c] = half_from_float(x);
    else if (of.writes == ROW_BFLOATS)
        ((uint16_t *)of.m_out)[c] = bfloat_from_float(x);
    else if (of.writes == ROW_FLOATS)
        ((float *)of.m_out)[c] = x;
    else if (of.writes == ROW_BYTES)
        value_write(plan.store, of.m_out, of.first + c, x);
    return magnitude_of(x) < plan.limit;
}

/* Messages of fp16 at both ends, no cells: the default of jobs, and code with half the instructions per value. */
static __device__ __forceinline__ bool row_is_usual(const struct ec_row &of)
{
    return of.reads == ROW_HALVES && of.writes == ROW_HALVES && of.refine == 0 && !of.common;
}

/* Tells the compiler so. */
template <bool USUAL> static __device__ __forceinline__ struct ec_row row_known(struct ec_row of)
{
    if (!USUAL) return of;
    of.reads = of.writes = ROW_HALVES;
    of.refine = 0;
    of.common = false;
    of.against = true;
    return of;
}

/* A row's sums, and what went wrong. */
struct ec_sums {
    float a, a2, d2, error;
    bool good, far;
};

/* One value's code, cell and x^. */
static __device__ __forceinline__ void quantize_value(const struct aq_cuda_codec_plan &plan, const struct ec_row &of,
                                                      uint32_t c, float a, float reference, struct ec_sums *sums)
{
    const float delta = of.against ? __fsub_rn(a, reference) : a;
    const float w = of.noise ? dither_of(of.dither, of.numbers, c) : 0.0f;
    const float own = of.common ? __fsub_rn(delta, of.centre[c]) : delta;
    const float d = of.noise ? __fadd_rn(own, w) : own;
    const float t = __fadd_rn(__fmul_rn(fabsf(d), of.inverse), 0.5f);
    sums->good = sums->good && is_finite(delta);
    sums->far = sums->far || !(t < AQ_EC_ESCAPE_LIMIT);
    if (!sums->good || sums->far) return;
    const uint32_t size = (uint32_t)(int)t;
    const int q = d < 0.0f ? -(int)size : (int)size;
    float level = level_of(of.levels, of.step, size);
    if (q < 0) level = -level;
    of.codes[c] = size < AQ_RANS_LEVELS ? (uint8_t)(q + AQ_RANS_CODE_ZERO) : 0;
    if (size >= AQ_RANS_LEVELS) of.beyond[c] = q;
    if (of.refine > 0) {
        const float cells_in = (float)(1u << of.refine), half = 0.5f * cells_in,
                    inner = __fmul_rn(of.inverse, cells_in);
        const float at = __fadd_rn(__fmul_rn(__fsub_rn(d, level), inner), half);
        const float most = smaller(at, cells_in - 1.0f);
        const uint32_t cell = (uint32_t)(most > 0.0f ? most : 0.0f);
        of.cells[c] = (uint8_t)cell;
        level = __fadd_rn(level, cell_of(of.refine, of.unit, cell));
    }
    const float left = __fsub_rn(of.dithered ? d : own, level);
    sums->a = __fadd_rn(sums->a, a);
    sums->a2 = __fadd_rn(sums->a2, __fmul_rn(a, a));
    sums->d2 = __fadd_rn(sums->d2, __fmul_rn(delta, delta));
    sums->error = __fadd_rn(sums->error, __fmul_rn(left, left));
    if (of.dithered) level = __fsub_rn(level, w);
    if (of.common) level = __fadd_rn(level, of.centre[c]);
    sums->good = emit(plan, of, c, of.against ? __fadd_rn(reference, level) : level);
}

/* A row's codes, cells, x^ and sums; AHEAD values of a lane are on their way at a time. False where it cannot be coded.
 */
template <bool USUAL>
static __device__ bool quantize_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct row &row, const struct ec_row &any)
{
    const struct ec_row of = row_known<USUAL>(any);
    struct ec_sums sums = {0.0f, 0.0f, 0.0f, 0.0f, true, false};
    for (uint32_t begin = row.lane; begin < plan.columns; begin += AHEAD * WARP) {
        float a[AHEAD];
        uint32_t bits[AHEAD];
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++)
            a[i] = begin + i * WARP < plan.columns ? of.a[begin + i * WARP] : 0.0f;
        references_load(plan, of, begin, bits);
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++)
            if (begin + i * WARP < plan.columns)
                quantize_value(plan, of, begin + i * WARP, a[i], reference_of(of, bits[i]), &sums);
    }
    row_sums(plan, mem, row, sums.a, sums.a2, sums.d2, sums.error);
    if (__any_sync(WHOLE_WARP, sums.far) && row.lane == 0) atomicOr(&mem.status[row.sample], STEP_FAILED);
    return sums.good;
}

/* x^ of a row from its codes, and from the cells in the body. */
template <bool USUAL>
static __device__ bool apply_row(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                 const struct row &row, const struct ec_row &any)
{
    const struct ec_row of = row_known<USUAL>(any);
    const uint32_t rows = aq_ec_chunk_rows(plan.columns), number = row.number / rows;
    const uint64_t index = (uint64_t)row.sample * aq_ec_chunk_count(plan.rows, plan.columns) + number;
    const uint64_t before = (uint64_t)(row.number % rows) * plan.columns; /* in its chunk */
    const uint8_t *const cells = (const uint8_t *)row.job->body + (of.refine > 0 ? mem.chunk_sizes[2 * index] : 0);
    bool good = true;
    for (uint32_t begin = row.lane; begin < plan.columns; begin += AHEAD * WARP) {
        uint32_t codes[AHEAD], bits[AHEAD];
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++)
            codes[i] = begin + i * WARP < plan.columns ? of.codes[begin + i * WARP] : (uint32_t)AQ_RANS_CODE_ZERO;
        references_load(plan, of, begin, bits);
        UNROLL
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint32_t c = begin + i * WARP;
            if (c >= plan.columns) continue;
            const int q = codes[i] == 0 ? of.beyond[c] : (int)codes[i] - AQ_RANS_CODE_ZERO;
            float level = level_of(of.levels, of.step, q < 0 ? 0u - (uint32_t)q : (uint32_t)q);
            if (q < 0) level = -level;
            if (of.refine > 0)
                level = __fadd_rn(level, cell_of(of.refine, of.unit, code_read(cells, before + c, of.refine)));
            if (of.dithered) level = __fsub_rn(level, dither_of(of.dither, of.numbers, c));
            if (of.common) level = __fadd_rn(level, of.centre[c]);
            good = emit(plan, of, c, of.against ? __fadd_rn(reference_of(of, bits[i]), level) : level) && good;
        }
    }
    return good;
}

/* A row per warp. */
__global__ void __launch_bounds__(ROW_BLOCK) codec_ec_rows(CODEC_JOBS, bool encode)
{
    AQ_SHARED(float, levels, [ROW_BLOCK / WARP][AQ_RANS_LEVELS]);
    const uint64_t item = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    if (item >= (uint64_t)list.count * plan.rows) return;
    float *const mine = levels[threadIdx.x / WARP];
    struct row row;
    row.sample = (uint32_t)(item / plan.rows);
    row.number = (uint32_t)(item % plan.rows);
    row.job = &list.jobs[row.sample];
    row.lane = threadIdx.x % WARP;
    if (encode ? is_over(plan, mem, row.sample) : sample_failed(mem, row.sample)) return;
    const struct ec_row of = ec_row_of(plan, mem, row, mine);
    const bool usual = row_is_usual(of);
    const bool good = encode  ? usual ? quantize_row<true>(plan, mem, row, of) : quantize_row<false>(plan, mem, row, of)
                       : usual ? apply_row<true>(plan, mem, row, of)
                              : apply_row<false>(plan, mem, row, of);
    (void)row_failed(mem, row, !good);
}

/* ---- decode ---- */

__global__ void __launch_bounds__(HEAD_BLOCK) codec_ec_head_in(CODEC_JOBS)
{
    AQ_SHARED(struct ec_table, table, [1]);
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
        good = block_table(whole, head, table, true);
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

/* ---- the launchers ---- */

/* A sample without a reference may be coded again: m' may have taken the place of one. */
enum aq_status codec_launch_encode_ec(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                      const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 rows = aq_blocks((uint64_t)list.count * plan.rows, ROW_BLOCK / WARP);
    const uint32_t rounds = plan.warm && !list.jobs[0].plain ? 1 : 2;
    for (uint32_t round = 0; round < rounds; round++) {
        AQ_TRY(AQ_LAUNCH(codec_ec_head, list.count, HEAD_BLOCK, 0, stream, plan, mem, list, round));
        AQ_TRY(AQ_LAUNCH(codec_ec_rows, rows, ROW_BLOCK, 0, stream, plan, mem, list, true));
        AQ_TRY(codec_launch_ec_chunks_out(plan, mem, list, stream));
    }
    return AQ_OK;
}

enum aq_status codec_launch_decode_ec(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                      const struct job_list &list, struct CUstream_st *stream)
{
    const dim3 rows = aq_blocks((uint64_t)list.count * plan.rows, ROW_BLOCK / WARP);
    AQ_TRY(AQ_LAUNCH(codec_ec_head_in, list.count, HEAD_BLOCK, 0, stream, plan, mem, list));
    AQ_TRY(codec_launch_ec_chunks_in(plan, mem, list, stream));
    return AQ_LAUNCH(codec_ec_rows, rows, ROW_BLOCK, 0, stream, plan, mem, list, false);
}
