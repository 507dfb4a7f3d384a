/*
 * cuda_codec_topk.cu -- directq with top-k: which values are kept, their positions, scales and codes.
 *
 * The K-th largest magnitude is found as the CPU finds it (codec_topk.c): three histograms of its bits, each inside the
 * bucket that the one before has chosen. Counting has no order, so that the result has none either. Values of exactly
 * that magnitude are kept from the first on: rows count theirs, a scan sums the counts before each row, and a second
 * look writes the kept elements, in order, into scratch.elements; everything else goes by that list.
 *
 * A body that is decoded comes from outside: every element of its list is checked before it is an address.
 */
#include "cuda_codec_launch.cuh"
#include "cuda_codec_row.cuh"

enum {
    CHUNK_BYTES = 512, /* of a bitmap that is read, one warp each: 16 bytes per lane */
    LANE_BYTES = CHUNK_BYTES / WARP
};

/* ---- the threshold ---- */

static __device__ __forceinline__ uint32_t level_shift(uint32_t level)
{
    return level == 0 ? 20 : level == 1 ? 10 : 0;
}

__global__ void codec_topk_start(CODEC_PLAN)
{
    mem.select[2 * threadIdx.x] = 0;
    mem.select[2 * threadIdx.x + 1] = plan.kept;
}

/* How many magnitudes are in each bucket of this level. Grid (some, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_topk_count(CODEC_JOBS, uint32_t level)
{
    AQ_SHARED(uint32_t, count, [AQ_CUDA_CODEC_HISTOGRAM]);
    const uint32_t sample = blockIdx.y, shift = level_shift(level);
    const uint32_t mask = level == 0 ? 0x7ffu : 0x3ffu, above = shift + (level == 0 ? 11 : 10);
    const uint32_t prefix = (uint32_t)mem.select[2 * sample];
    const float *a = list.jobs[sample].a;
    bool good = true;
    for (uint32_t b = threadIdx.x; b < AQ_CUDA_CODEC_HISTOGRAM; b += blockDim.x)
        count[b] = 0;
    __syncthreads();
    for (uint64_t e = aq_thread_index(); e < plan.values; e += (uint64_t)gridDim.x * blockDim.x) {
        const uint32_t magnitude = magnitude_of(a[e]);
        good = good && magnitude < INFINITE_BITS;
        if (above >= 31 || magnitude >> above == prefix >> above) atomicAdd(&count[magnitude >> shift & mask], 1u);
    }
    if (!good) atomicOr(&mem.status[sample], 1u);
    __syncthreads();
    for (uint32_t b = threadIdx.x; b <= mask; b += blockDim.x) {
        if (count[b] > 0) atomicAdd(&mem.histogram[sample * AQ_CUDA_CODEC_HISTOGRAM + b], count[b]);
    }
}

/* The bucket of the K-th largest, and how many of it are kept. A warp per sample; lane 0 has the top one. */
__global__ void __launch_bounds__(WARP)
    codec_topk_choose(const __grid_constant__ struct aq_cuda_codec_scratch mem, uint32_t level)
{
    const uint32_t sample = blockIdx.x, lane = threadIdx.x, buckets = level == 0 ? 2048 : 1024;
    uint32_t *histogram = mem.histogram + sample * AQ_CUDA_CODEC_HISTOGRAM;
    uint64_t *select = mem.select + 2 * sample;
    uint32_t wanted = (uint32_t)select[1], chosen = 0;
    bool found = false;
    for (uint32_t from = 0; from < buckets; from += WARP) {
        const uint32_t bucket = buckets - 1 - from - lane, mine = histogram[bucket];
        uint32_t through = mine; /* in this bucket and those above it in this round */
        histogram[bucket] = 0;
        for (unsigned by = 1; by < WARP; by *= 2) {
            const uint32_t other = __shfl_up_sync(WHOLE_WARP, through, by);
            if (lane >= by) through += other;
        }
        const uint32_t reach = __ballot_sync(WHOLE_WARP, through >= wanted);
        const int lane_of = reach == 0 ? WARP - 1 : __ffs((int)reach) - 1;
        const uint32_t before = __shfl_sync(WHOLE_WARP, through - mine, lane_of);
        const uint32_t total = __shfl_sync(WHOLE_WARP, through, WARP - 1);
        if (found) continue;
        found = reach != 0;
        chosen = buckets - 1 - from - (uint32_t)lane_of;
        wanted -= found ? before : total;
    }
    if (lane != 0) return;
    select[0] |= (uint64_t)chosen << level_shift(level);
    select[1] = wanted;
}

/* ---- the list ---- */

static __device__ __forceinline__ uint32_t *starts_of(const struct aq_cuda_codec_plan &plan, uint32_t *base,
                                                      uint32_t sample)
{
    return base + sample * ((uint64_t)plan.rows + 1);
}

/* How many of each row are above the threshold and how many at it; its sums; x^ = 0 where nothing will be kept. */
__global__ void __launch_bounds__(ROW_BLOCK) codec_topk_rows(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t item = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    struct row row;
    if (item >= items) return;
    row_place(plan, mem, list, 0, item, &row); /* of the scratch nothing is used */
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint32_t threshold = (uint32_t)mem.select[2 * row.sample];
    float a_sum = 0.0f, a2_sum = 0.0f;
    uint32_t greater = 0, equal = 0;
    for (uint32_t c = row.lane; c < plan.columns; c += WARP) {
        const float a = row.job->a[first + c];
        greater += magnitude_of(a) > threshold;
        equal += magnitude_of(a) == threshold;
        a_sum = __fadd_rn(a_sum, a);
        a2_sum = __fadd_rn(a2_sum, __fmul_rn(a, a));
        if (row.job->hat != NULL) row.job->hat[first + c] = 0.0f;
    }
    greater = __reduce_add_sync(WHOLE_WARP, greater);
    equal = __reduce_add_sync(WHOLE_WARP, equal);
    row_sums(plan, mem, row, a_sum, a2_sum, a2_sum, 0.0f);
    if (row.lane != 0) return;
    starts_of(plan, mem.row_start, row.sample)[row.number] = greater;
    starts_of(plan, mem.ties, row.sample)[row.number] = equal;
}

/* Sums of all before it in place of each of `n` numbers, and the sum of all behind the last. One warp. */
static __device__ uint32_t warp_scan(uint32_t *numbers, uint32_t n)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t before = 0;
    for (uint32_t from = 0; from < n; from += WARP) {
        const uint32_t mine = from + lane < n ? numbers[from + lane] : 0;
        uint32_t through = mine;
        for (unsigned by = 1; by < WARP; by *= 2) {
            const uint32_t other = __shfl_up_sync(WHOLE_WARP, through, by);
            if (lane >= by) through += other;
        }
        if (from + lane < n) numbers[from + lane] = before + through - mine;
        before += __shfl_sync(WHOLE_WARP, through, WARP - 1);
    }
    if (lane == 0) numbers[n] = before;
    return before;
}

__global__ void __launch_bounds__(WARP) codec_topk_scan(CODEC_PLAN)
{
    uint32_t *start = starts_of(plan, mem.row_start, blockIdx.x), *ties = starts_of(plan, mem.ties, blockIdx.x);
    const uint32_t wanted = (uint32_t)mem.select[2 * blockIdx.x + 1];
    (void)warp_scan(start, plan.rows);
    (void)warp_scan(ties, plan.rows);
    __syncwarp();
    for (uint32_t r = threadIdx.x; r <= plan.rows; r += WARP)
        start[r] += ties[r] < wanted ? ties[r] : wanted;
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_topk_list(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t item = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    struct row row;
    if (item >= items) return;
    row_place(plan, mem, list, 0, item, &row);
    const uint32_t before = (1u << row.lane) - 1u;
    const uint64_t first = (uint64_t)row.number * plan.columns;
    const uint32_t threshold = (uint32_t)mem.select[2 * row.sample], wanted = (uint32_t)mem.select[2 * row.sample + 1];
    uint32_t at = starts_of(plan, mem.row_start, row.sample)[row.number];
    uint32_t tie = starts_of(plan, mem.ties, row.sample)[row.number];
    uint32_t *out = mem.elements + row.sample * plan.kept;
    float dropped = 0.0f;
    for (uint32_t from = 0; from < plan.columns; from += WARP) {
        const uint32_t c = from + row.lane;
        const float a = c < plan.columns ? row.job->a[first + c] : 0.0f;
        const uint32_t magnitude = magnitude_of(a);
        const uint32_t equal = __ballot_sync(WHOLE_WARP, c < plan.columns && magnitude == threshold);
        bool keep = c < plan.columns && magnitude > threshold;
        if (equal >> row.lane & 1u) keep = tie + (uint32_t)__popc(equal & before) < wanted;
        const uint32_t kept = __ballot_sync(WHOLE_WARP, keep);
        const uint32_t j = at + (uint32_t)__popc(kept & before);
        if (keep && j < plan.kept)
            out[j] = (uint32_t)(first + c);
        else if (!keep)
            dropped = __fadd_rn(dropped, __fmul_rn(a, a));
        at += (uint32_t)__popc(kept);
        tie += (uint32_t)__popc(equal);
    }
    dropped = warp_fold(dropped);
    if (row.lane == 0) mem.sums[4 * item + 3] = dropped;
}

/* ---- positions ---- */

/* Bits of the bitmap (of the high parts, with Elias-Fano), and bytes before it. */
static __host__ __device__ inline uint64_t bitmap_bits(const struct aq_cuda_codec_plan &plan)
{
    return plan.bitmap ? plan.values : plan.kept + (plan.values >> plan.low_bits) + 1;
}

static __host__ __device__ inline uint64_t low_bytes(const struct aq_cuda_codec_plan &plan)
{
    return plan.bitmap ? 0 : (plan.kept * plan.low_bits + 7) / 8;
}

static __host__ __device__ inline uint64_t bitmap_words(const struct aq_cuda_codec_plan &plan)
{
    return (bitmap_bits(plan) + 31) / 32;
}

/* A thread a kept element. Grid (K, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_topk_bits(CODEC_PLAN)
{
    const uint64_t j = aq_thread_index();
    if (j >= plan.kept) return;
    const uint32_t e = mem.elements[blockIdx.y * plan.kept + j];
    const uint64_t bit = plan.bitmap ? e : (e >> plan.low_bits) + j;
    atomicOr(&mem.positions[blockIdx.y * bitmap_words(plan) + bit / 32], 1u << bit % 32);
}

/* A thread a byte of the positions. Grid (bytes, samples). */
__global__ void __launch_bounds__(PACK_BLOCK) codec_topk_positions(CODEC_JOBS)
{
    const uint64_t at = aq_thread_index(), low = low_bytes(plan);
    if (at >= plan.positions_bytes) return;
    uint8_t *out = (uint8_t *)list.jobs[blockIdx.y].body + plan.positions_at + at;
    if (at >= low) {
        const uint32_t word = mem.positions[blockIdx.y * bitmap_words(plan) + (at - low) / 4];
        *out = (uint8_t)(word >> 8 * ((at - low) % 4));
        return;
    }
    const uint32_t *elements = mem.elements + blockIdx.y * plan.kept;
    uint32_t byte = 0;
    for (uint32_t k = 0; k < 8; k++) {
        const uint64_t bit = 8 * at + k, j = bit / plan.low_bits;
        if (j < plan.kept) byte |= (elements[j] >> bit % plan.low_bits & 1u) << k;
    }
    *out = (uint8_t)byte;
}

/* ---- scales and codes ---- */

/* The kept values of a row into row.d; returns how many. `start`: the first one's place in the list. */
static __device__ uint32_t row_kept(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                    const struct row &row, uint32_t *start)
{
    const uint32_t *starts = starts_of(plan, mem.row_start, row.sample) + row.number;
    const uint32_t *elements = mem.elements + row.sample * plan.kept;
    *start = starts[0];
    const uint32_t count = starts[1] - starts[0];
    for (uint32_t i = row.lane; i < count; i += WARP)
        row.d[i] = row.job->a[elements[*start + i]];
    __syncwarp();
    return count;
}

/* One scale for all: the sums go row by row, on one warp per sample (codec_encode.c, sparse_tensor_scale). */
__global__ void __launch_bounds__(WARP) codec_topk_tensor(CODEC_JOBS)
{
    struct span whole = {0, 0.0f, 0.0f};
    float errors[SHRINKS] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    struct step step = {0.0f, 0.0f};
    uint32_t word = 0, start;
    struct row row = {};
    for (uint32_t r = 0; r < plan.rows; r++) {
        row_place(plan, mem, list, blockIdx.x, (uint64_t)blockIdx.x * plan.rows + r, &row);
        __syncwarp();
        const struct span span = row_span(row, row.d, row_kept(plan, mem, row, &start));
        whole.peak = whole.peak > span.peak ? whole.peak : span.peak;
        whole.sum_abs = __fadd_rn(whole.sum_abs, span.sum_abs);
        whole.sum_square = __fadd_rn(whole.sum_square, span.sum_square);
    }
    for (uint32_t r = 0; plan.scale == AQ_SCALE_SEARCH && r < plan.rows; r++) {
        row_place(plan, mem, list, blockIdx.x, (uint64_t)blockIdx.x * plan.rows + r, &row);
        __syncwarp();
        const uint32_t count = row_kept(plan, mem, row, &start);
        for (uint32_t i = 0; i < SHRINKS; i++) {
            struct step candidate;
            if (!scale_decode(plan, scale_word(plan, scale_shrink(plan, whole.peak, i)), &candidate)) continue;
            for (uint32_t k = row.lane; k < count; k += WARP)
                errors[i] = error_add(plan, row.d[k], candidate, errors[i]);
        }
    }
    bool good;
    if (plan.scale == AQ_SCALE_SEARCH) {
        for (uint32_t i = 0; i < SHRINKS; i++)
            errors[i] = warp_sum_in_order(errors[i]);
        good = pick_shrink(plan, whole.peak, errors, 1, &word, &step);
    } else {
        word = scale_word(plan, scale_choose(plan, whole, plan.kept));
        good = scale_decode(plan, word, &step);
    }
    if (row_failed(mem, row, !good) || row.lane != 0) return;
    bytes_write((uint8_t *)row.job->body, word, plan.scale_bytes);
    ((struct step *)mem.quants)[row.sample * plan.groups_row] = step;
}

/* Kept values [from, to) of a row under one quantizer: codes, x^; returns this lane's squared error. */
static __device__ float kept_quantize(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                      const struct row &row, uint32_t start, uint32_t from, uint32_t to,
                                      const struct step &step, bool *good)
{
    const struct grid_of grid = grid_of_plan(plan);
    const uint32_t *elements = mem.elements + row.sample * plan.kept + start;
    uint8_t *codes = mem.codes + row.sample * plan.values + start;
    float error = 0.0f;
    for (uint32_t i = from + row.lane; i < to; i += WARP) {
        const uint32_t e = elements[i];
        const int level = plan.stochastic ? quantize_stochastic(row.d[i], step.inverse, grid, uniform(row.job->key, e))
                                          : quantize_nearest(row.d[i], step.inverse, grid);
        const float x = dequantize(level, step.unit, plan.rise), off = __fsub_rn(row.d[i], x);
        codes[i] = (uint8_t)(level + grid.half);
        if (row.job->hat != NULL) row.job->hat[e] = x;
        *good = *good && is_finite(x);
        error = __fadd_rn(error, __fmul_rn(off, off));
    }
    return error;
}

__global__ void __launch_bounds__(ROW_BLOCK) codec_topk_codes(CODEC_JOBS)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const uint64_t warps = (uint64_t)gridDim.x * (ROW_BLOCK / WARP);
    const uint64_t warp = (uint64_t)blockIdx.x * (ROW_BLOCK / WARP) + threadIdx.x / WARP;
    for (uint64_t item = warp; item < items; item += warps) {
        struct row row;
        uint32_t start, at = 0;
        float error = 0.0f;
        bool good = true;
        row_place(plan, mem, list, warp, item, &row);
        __syncwarp();
        const uint32_t count = row_kept(plan, mem, row, &start);
        const uint32_t *elements = mem.elements + row.sample * plan.kept + start;
        for (uint32_t g = 0; g < plan.groups_row; g++) {
            const uint64_t end = (uint64_t)row.number * plan.columns + (uint64_t)(g + 1) * plan.tile;
            struct step step = ((const struct step *)mem.quants)[(uint64_t)row.sample * plan.groups_row];
            uint32_t to = count;
            if (g + 1 < plan.groups_row) {
                uint32_t here = 0; /* elements of this tile that this lane sees */
                for (uint32_t i = at + row.lane; i < count && elements[i] < end; i += WARP)
                    here++;
                to = at + __reduce_add_sync(WHOLE_WARP, here);
            }
            if (plan.group != AQ_PER_TENSOR) {
                const struct span span = row_span(row, row.d + at, to - at);
                uint8_t *out = (uint8_t *)row.job->body + (item % plan.rows * plan.groups_row + g) * plan.scale_bytes;
                good = row_scale(plan, row, span, row.d + at, to - at, out, &step) && good;
            }
            error = __fadd_rn(error, kept_quantize(plan, mem, row, start, at, to, step, &good));
            at = to;
        }
        error = warp_fold(error);
        if (row.lane == 0) mem.sums[4 * item + 3] = __fadd_rn(mem.sums[4 * item + 3], error);
        (void)row_failed(mem, row, !good);
    }
}

/* ---- reading positions ---- */

static __host__ __device__ inline uint32_t chunk_count(const struct aq_cuda_codec_plan &plan)
{
    return (uint32_t)((bitmap_bits(plan) + 8 * CHUNK_BYTES - 1) / (8 * CHUNK_BYTES));
}

/* Byte `at` of the bitmap, without the bits behind its end. */
static __device__ __forceinline__ uint32_t bitmap_byte(const struct aq_cuda_codec_plan &plan, const uint8_t *bitmap,
                                                       uint64_t at)
{
    const uint64_t bits = bitmap_bits(plan);
    if (8 * at >= bits) return 0;
    return bits - 8 * at >= 8 ? bitmap[at] : bitmap[at] & ((1u << (bits - 8 * at)) - 1u);
}

/* The ones of this lane's part of a chunk. */
static __device__ uint32_t lane_ones(const struct aq_cuda_codec_plan &plan, const uint8_t *bitmap, uint64_t from)
{
    uint32_t ones = 0;
    for (uint32_t k = 0; k < LANE_BYTES; k++)
        ones += (uint32_t)__popc(bitmap_byte(plan, bitmap, from + k));
    return ones;
}

/* A warp per chunk. Grid (chunks, samples). */
__global__ void __launch_bounds__(WARP) codec_topk_ones(CODEC_JOBS)
{
    const uint8_t *bitmap = (const uint8_t *)list.jobs[blockIdx.y].body + plan.positions_at + low_bytes(plan);
    const uint64_t from = (uint64_t)blockIdx.x * CHUNK_BYTES + threadIdx.x * LANE_BYTES;
    const uint32_t ones = __reduce_add_sync(WHOLE_WARP, lane_ones(plan, bitmap, from));
    if (threadIdx.x == 0) mem.chunks[blockIdx.y * ((uint64_t)chunk_count(plan) + 1) + blockIdx.x] = ones;
}

__global__ void __launch_bounds__(WARP) codec_topk_total(CODEC_PLAN)
{
    const uint32_t n = chunk_count(plan);
    const uint32_t ones = warp_scan(mem.chunks + blockIdx.x * ((uint64_t)n + 1), n);
    if (threadIdx.x == 0 && ones != plan.kept) atomicOr(&mem.status[blockIdx.x], 1u);
}

/* The list of elements that the positions name. */
__global__ void __launch_bounds__(WARP) codec_topk_expand(CODEC_JOBS)
{
    const uint8_t *low = (const uint8_t *)list.jobs[blockIdx.y].body + plan.positions_at;
    const uint8_t *bitmap = low + low_bytes(plan);
    const uint64_t from = (uint64_t)blockIdx.x * CHUNK_BYTES + threadIdx.x * LANE_BYTES;
    uint32_t *out = mem.elements + blockIdx.y * plan.kept;
    const uint32_t mine = lane_ones(plan, bitmap, from);
    uint32_t through = mine;
    for (unsigned by = 1; by < WARP; by *= 2) {
        const uint32_t other = __shfl_up_sync(WHOLE_WARP, through, by);
        if (threadIdx.x >= by) through += other;
    }
    uint64_t j = mem.chunks[blockIdx.y * ((uint64_t)chunk_count(plan) + 1) + blockIdx.x] + through - mine;
    for (uint32_t k = 0; k < LANE_BYTES; k++) {
        for (uint32_t byte = bitmap_byte(plan, bitmap, from + k); byte != 0 && j < plan.kept; byte &= byte - 1, j++) {
            uint64_t e = 8 * (from + k) + (uint64_t)(__ffs((int)byte) - 1);
            if (!plan.bitmap) {
                e = (e - j) << plan.low_bits;
                for (uint32_t b = 0; b < plan.low_bits; b++) {
                    const uint64_t bit = j * plan.low_bits + b;
                    e |= (uint64_t)(low[bit / 8] >> bit % 8 & 1u) << b;
                }
            }
            out[j] = e < plan.values ? (uint32_t)e : UINT32_MAX;
        }
    }
}

/* A thread an element of the list, or a scale: are they such as a sender writes? x^ of the element. */
__global__ void __launch_bounds__(PACK_BLOCK) codec_topk_values(CODEC_JOBS)
{
    const uint64_t j = aq_thread_index();
    const struct aq_cuda_codec_job &job = list.jobs[blockIdx.y];
    const uint8_t *body = (const uint8_t *)job.body;
    const uint32_t *elements = mem.elements + blockIdx.y * plan.kept;
    struct step step;
    if (j < plan.groups && !scale_decode(plan, bytes_read(body + j * plan.scale_bytes, plan.scale_bytes), &step))
        atomicOr(&mem.status[blockIdx.y], 1u);
    if (j >= plan.kept) return;
    const uint64_t e = elements[j];
    if (e >= plan.values || (j > 0 && e <= elements[j - 1])) {
        atomicOr(&mem.status[blockIdx.y], 1u);
        return;
    }
    if (job.hat == NULL) return;
    const uint32_t row = (uint32_t)(e / plan.columns), c = (uint32_t)(e % plan.columns);
    uint64_t group = 0;
    if (plan.group == AQ_PER_ROW) group = row;
    if (plan.group == AQ_PER_TILE) group = (uint64_t)row * plan.groups_row + c / plan.tile;
    (void)scale_decode(plan, bytes_read(body + group * plan.scale_bytes, plan.scale_bytes), &step);
    const int i = (int)code_read(body + plan.codes_at, j, plan.bits) - (int)plan.half;
    job.hat[e] = dequantize(i, step.unit, plan.rise);
}

/* ---- launchers ---- */

static dim3 grid_of_jobs(uint64_t count, uint64_t block, uint32_t jobs)
{
    dim3 grid = aq_blocks(count, block);
    grid.y = jobs;
    return grid;
}

static enum aq_status memory_zero(void *memory, size_t bytes, struct CUstream_st *stream)
{
    const cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
    return error == cudaSuccess ? AQ_OK : aq_cuda_launched("memset", dim3(1), dim3(1), bytes, error, stream);
}

static enum aq_status list_make(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                const struct job_list &list, struct CUstream_st *stream)
{
    enum { LOOKS = 16 * PACK_BLOCK }; /* values of one block of the histogram */
    const dim3 rows = aq_blocks((uint64_t)list.count * plan.rows, ROW_BLOCK / WARP);
    const dim3 looks = grid_of_jobs(plan.values, LOOKS, list.count);
    AQ_TRY(AQ_LAUNCH(codec_topk_start, 1, list.count, 0, stream, plan, mem));
    for (uint32_t level = 0; level < 3; level++) {
        AQ_TRY(AQ_LAUNCH(codec_topk_count, looks, PACK_BLOCK, 0, stream, plan, mem, list, level));
        AQ_TRY(AQ_LAUNCH(codec_topk_choose, list.count, WARP, 0, stream, mem, level));
    }
    AQ_TRY(AQ_LAUNCH(codec_topk_rows, rows, ROW_BLOCK, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_topk_scan, list.count, WARP, 0, stream, plan, mem));
    return AQ_LAUNCH(codec_topk_list, rows, ROW_BLOCK, 0, stream, plan, mem, list);
}

enum aq_status codec_launch_encode_topk(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    const uint64_t items = (uint64_t)list.count * plan.rows;
    const dim3 rows = aq_blocks(items < mem.warps ? items : mem.warps, ROW_BLOCK / WARP);
    const dim3 bytes = grid_of_jobs(plan.positions_bytes, PACK_BLOCK, list.count);
    AQ_TRY(memory_zero(mem.positions, 4 * bitmap_words(plan) * list.count, stream));
    AQ_TRY(list_make(plan, mem, list, stream));
    AQ_TRY(
        AQ_LAUNCH(codec_topk_bits, grid_of_jobs(plan.kept, PACK_BLOCK, list.count), PACK_BLOCK, 0, stream, plan, mem));
    AQ_TRY(AQ_LAUNCH(codec_topk_positions, bytes, PACK_BLOCK, 0, stream, plan, mem, list));
    if (plan.group == AQ_PER_TENSOR) AQ_TRY(AQ_LAUNCH(codec_topk_tensor, list.count, WARP, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_topk_codes, rows, ROW_BLOCK, 0, stream, plan, mem, list));
    return codec_launch_pack(plan, list, mem.codes, plan.codes_at, plan.kept, plan.bits, stream);
}

enum aq_status codec_launch_decode_topk(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                        const struct job_list &list, struct CUstream_st *stream)
{
    const uint64_t checks = plan.kept > plan.groups ? plan.kept : plan.groups;
    const dim3 chunks(chunk_count(plan), list.count);
    for (uint32_t i = 0; i < list.count; i++) {
        if (list.jobs[i].hat != NULL) AQ_TRY(memory_zero(list.jobs[i].hat, 4 * plan.values, stream));
    }
    AQ_TRY(AQ_LAUNCH(codec_topk_ones, chunks, WARP, 0, stream, plan, mem, list));
    AQ_TRY(AQ_LAUNCH(codec_topk_total, list.count, WARP, 0, stream, plan, mem));
    AQ_TRY(AQ_LAUNCH(codec_topk_expand, chunks, WARP, 0, stream, plan, mem, list));
    return AQ_LAUNCH(codec_topk_values, grid_of_jobs(checks, PACK_BLOCK, list.count), PACK_BLOCK, 0, stream, plan, mem,
                     list);
}
