/*
 * cuda_codec_units.cu -- the usual way through a sample: eight columns per thread, a row in registers, one pass over
 * memory.
 *
 * A *unit* is eight columns: 32 bytes of a and of x^, 16 of an fp16 m, and exactly b bytes of codes, so that no two
 * threads share a byte. A row has W warps (1, or a block of up to 8) of R = 32 W threads; thread t has the units t,
 * t+R, .., K of them, all loaded before the first is used, so that about 10 KiB of a warp's loads are in flight at
 * once. The usual configuration (WAY_USUAL) is compiled separately, so that unused features cost it no register. Codes
 * of 1, 2, 4 and 8 bits leave as words of b bytes, neighbours next to each other; the others are put together in shared
 * memory first and leave four bytes per thread.
 *
 * The bits equal those of cuda_codec_rows.cu: values that are summed (rms and auto scales) go through shared memory, so
 * that lane l of a warp has columns l, l+32, ..; the largest magnitude has no order.
 */
#include "cuda_codec_launch.cuh"

enum {
    UNIT = 8,          /* columns of a unit */
    UNIT_BLOCK = 128,  /* threads where a row is a warp */
    ROW_WARPS_MAX = 8, /* warps of a row: 256 threads may have all registers */
    ROW_UNITS_MAX = 7  /* units of a thread: 56 columns' d and m in registers */
};

/* One scale a row (by the largest magnitude) or a sample, nearest, not rotated; or anything that units can. */
enum { WAY_USUAL = 0, WAY_ANY = 1 };

/* The type of a reference in memory. */
enum { M_NONE = 0, M_FP32 = (int)AQ_PRECISION_FP32, M_FP16 = (int)AQ_PRECISION_FP16, M_BF16 = (int)AQ_PRECISION_BF16 };

/* The place of a thread. */
struct place {
    uint64_t item; /* row of the launch */
    uint32_t sample, row;
    uint32_t thread;     /* of the row */
    uint32_t threads;    /* R */
    uint32_t lane, warp; /* warp of the row */
    bool there;          /* is there such a row? Only a block of several rows has threads without one. */
};

static __device__ __forceinline__ struct place place_of(const struct aq_cuda_codec_plan &plan,
                                                        const struct job_list &list, uint32_t warps)
{
    struct place at;
    at.threads = warps * WARP;
    at.item = warps == 1 ? (uint64_t)blockIdx.x * (UNIT_BLOCK / WARP) + threadIdx.x / WARP : blockIdx.x;
    at.thread = warps == 1 ? threadIdx.x % WARP : threadIdx.x;
    at.lane = threadIdx.x % WARP;
    at.warp = at.thread / WARP;
    at.there = at.item < (uint64_t)list.count * plan.rows;
    at.sample = at.there ? (uint32_t)(at.item / plan.rows) : 0;
    at.row = at.there ? (uint32_t)(at.item % plan.rows) : 0;
    return at;
}

/* All threads of a row. */
static __device__ __forceinline__ void row_sync(uint32_t warps)
{
    if (warps == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* ---- eight values ---- */

struct eight {
    float v[UNIT];
};

/* Eight values of a reference as stored: 32 bytes, or 16. */
template <int M> struct packed {
    uint4 half = {0, 0, 0, 0};
};
template <> struct packed<M_FP32> {
    float4 low = {0.0f, 0.0f, 0.0f, 0.0f}, high = {0.0f, 0.0f, 0.0f, 0.0f};
};
template <> struct packed<M_NONE> {
};

static __device__ __forceinline__ struct eight eight_read(const float *from)
{
    const float4 low = __ldcs((const float4 *)from), high = __ldcs((const float4 *)from + 1);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

static __device__ __forceinline__ void eight_write(float *to, const struct eight &x)
{
    __stcs((float4 *)to, make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
    __stcs((float4 *)to + 1, make_float4(x.v[4], x.v[5], x.v[6], x.v[7]));
}

template <int M> static __device__ __forceinline__ struct packed<M> packed_read(const void *m, uint64_t e) {
    struct packed<M> out;
    if constexpr (M == M_FP32) {
        out.low = __ldcs((const float4 *)m + e / 4);
        out.high = __ldcs((const float4 *)m + e / 4 + 1);
    } else if constexpr (M != M_NONE) {
        out.half = __ldcs((const uint4 *)m + e / 8);
    }
    return out;
}

template <int M>
static __device__ __forceinline__ struct eight packed_open(const struct packed<M> &m)
{
    struct eight x = {{0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
    if constexpr (M == M_FP32) {
        x = {{m.low.x, m.low.y, m.low.z, m.low.w, m.high.x, m.high.y, m.high.z, m.high.w}};
    } else if constexpr (M != M_NONE) {
        const uint32_t words[4] = {m.half.x, m.half.y, m.half.z, m.half.w};
        UNROLL for (int i = 0; i < UNIT; i++)
        {
            const uint16_t half = (uint16_t)(words[i / 2] >> 16 * (i % 2));
            x.v[i] = M == M_FP16 ? half_to_float(half) : bfloat_to_float(half);
        }
    }
    return x;
}

/* Eight values, rounded to `M`, to element e on of a message or body. */
template <int M> static __device__ __forceinline__ void packed_write(void *to, uint64_t e, const struct eight &x)
{
    if constexpr (M == M_FP32) {
        eight_write((float *)to + e, x);
    } else if constexpr (M != M_NONE) {
        uint32_t words[4];
        UNROLL for (int i = 0; i < 4; i++)
        {
            const uint32_t low = M == M_FP16 ? half_from_float(x.v[2 * i]) : bfloat_from_float(x.v[2 * i]);
            const uint32_t high = M == M_FP16 ? half_from_float(x.v[2 * i + 1]) : bfloat_from_float(x.v[2 * i + 1]);
            words[i] = low | high << 16;
        }
        __stcs((uint4 *)to + e / 8, make_uint4(words[0], words[1], words[2], words[3]));
    }
}

static __device__ __forceinline__ uint32_t eight_peak(const struct eight &x)
{
    uint32_t peak = 0;
    UNROLL for (int i = 0; i < UNIT; i++) peak = magnitude_of(x.v[i]) > peak ? magnitude_of(x.v[i]) : peak;
    return peak;
}

/*
 * The length of the rotation's block of column c: docs/FORMAT.md, Codes. Blocks are whole units here; a thread beyond
 * the row has its own block.
 */
static __device__ inline uint32_t rotation_block(const struct aq_cuda_codec_plan &plan, uint32_t c)
{
    const uint32_t tile = plan.tile, start = c / tile * tile;
    if (c >= plan.columns) return UNIT;
    const uint32_t rest = plan.columns - start < tile ? plan.columns - start : tile;
    uint32_t at = 0, block = tile;
    while (block > rest - at)
        block /= 2;
    while (c - start >= at + block) {
        at += block;
        block = tile;
        while (block > rest - at)
            block /= 2;
    }
    return block;
}

/* The rotation of a warp's 256 columns; a block of n columns is n / 8 lanes, the first at a multiple of that. */
static __device__ inline void eight_rotate(struct eight &x, uint32_t n, uint32_t tile, uint32_t lane)
{
    UNROLL for (int h = 1; h < UNIT; h *= 2)
    {
        UNROLL for (int i = 0; i < UNIT; i++)
        {
            if (i & h) continue;
            const float a = x.v[i], b = x.v[i + h];
            x.v[i] = __fadd_rn(a, b);
            x.v[i + h] = __fsub_rn(a, b);
        }
    }
    for (uint32_t h = UNIT; h < tile; h *= 2) {
        UNROLL for (int i = 0; i < UNIT; i++)
        {
            const float mine = x.v[i], other = __shfl_xor_sync(WHOLE_WARP, mine, (int)(h / UNIT));
            if (h < n) x.v[i] = lane & h / UNIT ? __fsub_rn(other, mine) : __fadd_rn(mine, other);
        }
    }
    const float scale = rotation_scale(n);
    UNROLL for (int i = 0; i < UNIT; i++) x.v[i] = __fmul_rn(x.v[i], scale);
}

/* ---- scales of a row ---- */

/* Shared memory of one row. */
struct row_memory {
    uint32_t peaks[ROW_WARPS_MAX];
    float sum_abs, sum_square;
    uint32_t padding[2];
};

/* The largest of a row's magnitudes, in every thread. */
static __device__ __forceinline__ uint32_t row_peak(uint32_t peak, uint32_t warps, const struct place &at,
                                                    struct row_memory *memory)
{
    peak = warp_max(peak);
    if (warps == 1) return peak;
    if (at.lane == 0) memory->peaks[at.warp] = peak;
    __syncthreads();
    for (uint32_t w = 0; w < warps; w++)
        peak = memory->peaks[w] > peak ? memory->peaks[w] : peak;
    return peak;
}

/* |d| and d^2 of n values in shared memory, added up by one warp in the CPU's order. */
static __device__ inline void span_sums(const float *d, uint32_t n, uint32_t lane, struct span *out)
{
    float sum_abs = 0.0f, sum_square = 0.0f;
    for (uint32_t c = lane; c < n; c += WARP) {
        sum_abs = __fadd_rn(sum_abs, __uint_as_float(magnitude_of(d[c])));
        sum_square = __fadd_rn(sum_square, __fmul_rn(d[c], d[c]));
    }
    out->sum_abs = warp_fold(sum_abs);
    out->sum_square = warp_fold(sum_square);
}

/* Does the choice of a scale look only at the largest magnitude? */
static __host__ __device__ __forceinline__ bool scale_is_peak(const struct aq_cuda_codec_plan &plan)
{
    return plan.scale == AQ_SCALE_ABSMAX || (plan.scale == AQ_SCALE_AUTO && (plan.bits >= 6 || plan.stochastic));
}

/* One scale for the row: its quantizer; false where it does not fit. */
static __device__ inline bool scale_of_row(const struct aq_cuda_codec_plan &plan, const struct place &at,
                                           struct span span, uint8_t *out, struct step *step)
{
    const uint32_t word = scale_word(plan, scale_choose(plan, span, plan.columns));
    if (at.thread == 0) bytes_write(out, word, plan.scale_bytes);
    return scale_decode(plan, word, step);
}

/* ---- codes ---- */

/* Do codes of this many bits leave as words of b bytes? */
static __host__ __device__ __forceinline__ bool bits_are_word(uint32_t bits)
{
    return (bits & (bits - 1)) == 0;
}

static __device__ __forceinline__ void word_write(uint8_t *to, uint64_t word, uint32_t bits)
{
    switch (bits) {
    case 1:
        *to = (uint8_t)word;
        break;
    case 2:
        *(uint16_t *)to = (uint16_t)word;
        break;
    case 4:
        *(uint32_t *)to = (uint32_t)word;
        break;
    case 8:
        *(uint2 *)to = make_uint2((uint32_t)word, (uint32_t)(word >> 32));
        break;
    default:
        for (uint32_t k = 0; k < bits; k++)
            to[k] = (uint8_t)(word >> 8 * k);
        break;
    }
}

static __device__ __forceinline__ uint64_t word_read(const uint8_t *from, uint32_t bits, bool aligned)
{
    if (aligned && bits == 4) return *(const uint32_t *)from;
    if (aligned && bits == 2) return *(const uint16_t *)from;
    if (aligned && bits == 8) {
        const uint2 two = *(const uint2 *)from;
        return (uint64_t)two.y << 32 | two.x;
    }
    uint64_t word = 0;
    for (uint32_t k = 0; k < bits; k++)
        word |= (uint64_t)from[k] << 8 * k;
    return word;
}

/* The codes of a row, put together in shared memory at `staged` + the stream's place within four bytes, to the stream.
 */
static __device__ inline void codes_flush(const uint8_t *staged, uint8_t *stream, uint32_t bytes,
                                          const struct place &at)
{
    const uint32_t skip = (uint32_t)((uintptr_t)stream & 3u), end = skip + bytes;
    uint8_t *base = stream - skip;
    for (uint32_t from = 4 * at.thread; from < end; from += 4 * at.threads) {
        if (from >= skip && from + 4 <= end) {
            *(uint32_t *)(base + from) = *(const uint32_t *)(staged + from);
            continue;
        }
        for (uint32_t k = from < skip ? skip : from; k < from + 4 && k < end; k++)
            base[k] = staged[k];
    }
}

/* ---- encode ---- */

/* One unit's quantizers: one for all eight, or one each (channel). */
struct steps {
    struct step each[UNIT];
};

static __device__ __forceinline__ struct steps steps_of_channels(const struct aq_cuda_codec_scratch &mem,
                                                                 const struct aq_cuda_codec_plan &plan,
                                                                 const struct place &at, uint32_t c)
{
    struct steps out;
    const float4 *from = (const float4 *)(mem.quants + 2 * ((uint64_t)at.sample * plan.groups_row + c));
    UNROLL for (int i = 0; i < UNIT / 2; i++)
    {
        const float4 two = from[i];
        out.each[2 * i] = {two.x, two.y};
        out.each[2 * i + 1] = {two.z, two.w};
    }
    return out;
}

/*
 * As quantize_nearest and dequantize, eight times, without leaving floats: an index of a grid is a small integer, so
 * that twice it and one more is exact, and added to 2^23 + half it leaves its code in the last bits. The bits of 2^23
 * are subtracted from four codes together. error: of rows that are measured.
 */
template <bool RISE>
static __device__ __forceinline__ uint64_t eight_nearest(const struct aq_cuda_codec_plan &plan, struct eight &x,
                                                         const struct steps &steps, bool measured, float &error)
{
    const float to_code = __fadd_rn(8388608.0f, (float)plan.half);
    uint32_t words[2] = {0, 0}, ones = 0;
    UNROLL for (int k = 0; k < UNIT; k++)
    {
        const struct step &step = steps.each[k];
        const float scaled = __fmul_rn(x.v[k], step.inverse), whole = RISE ? floorf(scaled) : rintf(scaled);
        const float i = fminf(fmaxf(whole, plan.low), plan.high); /* NaN: the lowest */
        const float level = __fmul_rn(RISE ? __fadd_rn(__fadd_rn(i, i), 1.0f) : __fadd_rn(i, 0.0f), step.unit);
        words[k / 4] += __float_as_uint(__fadd_rn(i, to_code)) << (uint32_t)(k % 4) * plan.bits;
        if (k < 4) ones += 1u << (uint32_t)k * plan.bits;
        if (measured) {
            const float off = __fsub_rn(x.v[k], level);
            error = __fadd_rn(error, __fmul_rn(off, off));
        }
        x.v[k] = level;
    }
    const uint32_t low = words[0] - 0x4b000000u * ones, high = words[1] - 0x4b000000u * ones;
    return low | (uint64_t)high << 4 * plan.bits;
}

/* Codes of eight values; their levels replace them; returns the codes as bits, adds the squared error if measured. */
static __device__ __forceinline__ uint64_t eight_quantize(const struct aq_cuda_codec_plan &plan, struct eight &x,
                                                          const struct steps &steps, bool stochastic,
                                                          const struct aq_rng_key &key, uint64_t e, bool measured,
                                                          float &error)
{
    if (!stochastic && plan.rise) return eight_nearest<true>(plan, x, steps, measured, error);
    if (!stochastic) return eight_nearest<false>(plan, x, steps, measured, error);
    const struct grid_of grid = grid_of_plan(plan);
    uint32_t noise[UNIT] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t low = 0, high = 0; /* four codes each: at most 32 bits */
    philox(key, e / 4, noise);
    philox(key, e / 4 + 1, noise + 4);
    UNROLL for (int k = 0; k < UNIT; k++)
    {
        const struct step &step = steps.each[k];
        const int i = quantize_stochastic(x.v[k], step.inverse, grid, uniform_of(noise[k]));
        const float level = dequantize(i, step.unit, plan.rise), off = __fsub_rn(x.v[k], level);
        const uint32_t code = (uint32_t)(i + grid.half);
        if (k < 4)
            low |= code << (uint32_t)k * plan.bits;
        else
            high |= code << (uint32_t)(k - 4) * plan.bits;
        x.v[k] = level;
        if (measured) error = __fadd_rn(error, __fmul_rn(off, off));
    }
    return low | (uint64_t)high << 4 * plan.bits;
}

/* The largest magnitude of the tile of this thread's unit; a tile is a few neighbouring lanes. */
static __device__ __forceinline__ uint32_t tile_peak(uint32_t peak, uint32_t tile)
{
    for (uint32_t lanes = 1; lanes < tile / UNIT; lanes *= 2) {
        const uint32_t other = __shfl_xor_sync(WHOLE_WARP, peak, (int)lanes);
        peak = peak > other ? peak : other;
    }
    return peak;
}

/* Is this row one of those that the live measures look at? */
static __device__ __forceinline__ bool is_measured(const struct aq_cuda_codec_plan &plan, uint32_t row)
{
    return !plan.measure_part || row < 8 || row % 8 == 4;
}

/* The row's part of the live measures: partial sums of threads, not in the CPU's order. */
static __device__ inline void measures_write(const struct aq_cuda_codec_scratch &mem, const struct place &at,
                                             uint32_t warps, float *shared, float a, float a2, float d2, float error2)
{
    float sums[4] = {a, a2, d2, error2};
    for (int i = 0; i < 4; i++)
        sums[i] = warp_fold(sums[i]);
    if (warps > 1) {
        __syncthreads();
        if (at.lane == 0) {
            for (int i = 0; i < 4; i++)
                shared[4 * at.warp + (uint32_t)i] = sums[i];
        }
        __syncthreads();
        for (uint32_t w = 1; w < warps; w++) {
            for (uint32_t i = 0; i < 4; i++)
                sums[i] = __fadd_rn(sums[i], shared[4 * w + i]);
        }
    }
    if (at.there && at.thread == 0)
        *(float4 *)(mem.sums + 4 * at.item) = make_float4(sums[0], sums[1], sums[2], sums[3]);
}

/* Spans of a row's tiles in shared memory. */
static __host__ __device__ __forceinline__ uint32_t tile_spans_bytes(const struct aq_cuda_codec_plan &plan)
{
    return plan.group == AQ_PER_TILE ? (plan.groups_row * (uint32_t)sizeof(struct span) + 15) / 16 * 16 : 0;
}

/* Shared memory of a row: its head, the live measures of its warps, d (where sums are wanted), the staged codes. */
static __host__ __device__ inline uint32_t row_shared_bytes(const struct aq_cuda_codec_plan &plan, bool sums)
{
    const uint32_t head = (uint32_t)sizeof(struct row_memory) + ROW_WARPS_MAX * 16;
    const uint32_t tiles = tile_spans_bytes(plan);
    const uint32_t codes = bits_are_word(plan.bits) ? 0 : plan.columns / UNIT * plan.bits + 4;
    return head + ((sums ? 4 * plan.columns + tiles : 0) + codes + 15) / 16 * 16;
}

/* The sums that scales are chosen by, in shared memory: row_d is filled here. */
template <int K>
static __device__ inline void sums_make(const struct aq_cuda_codec_plan &plan, const struct place &at, uint32_t warps,
                                        const struct eight *d, struct row_memory *memory, float *row_d,
                                        struct span *tiles)
{
    const uint32_t units = at.there ? plan.columns / UNIT : 0;
    UNROLL for (int k = 0; k < K; k++)
    {
        const uint32_t u = at.thread + (uint32_t)k * at.threads;
        if (u >= units) continue;
        *(float4 *)(row_d + u * UNIT) = make_float4(d[k].v[0], d[k].v[1], d[k].v[2], d[k].v[3]);
        *(float4 *)(row_d + u * UNIT + 4) = make_float4(d[k].v[4], d[k].v[5], d[k].v[6], d[k].v[7]);
    }
    row_sync(warps);
    struct span span = {0, 0.0f, 0.0f};
    if (plan.group == AQ_PER_TILE && at.there) {
        for (uint32_t g = at.warp; g < plan.groups_row; g += warps) {
            const uint32_t from = g * plan.tile, rest = plan.columns - from;
            span_sums(row_d + from, rest < plan.tile ? rest : plan.tile, at.lane, &span);
            if (at.lane == 0) tiles[g] = span;
        }
    } else if (at.there && at.warp == 0) {
        span_sums(row_d, plan.columns, at.lane, &span);
        if (at.lane == 0) memory->sum_abs = span.sum_abs;
        if (at.lane == 0) memory->sum_square = span.sum_square;
    }
    row_sync(warps);
}

/* The quantizer of the tile of unit u; its first thread writes the scale. False where it does not fit. */
static __device__ inline bool scale_of_tile(const struct aq_cuda_codec_plan &plan, const struct place &at, uint32_t u,
                                            uint32_t peak, const struct span *tiles, uint8_t *body, struct step *step)
{
    const uint32_t c = u * UNIT, g = c / plan.tile, rest = plan.columns - g * plan.tile;
    struct span span = {peak, 0.0f, 0.0f};
    if (tiles != NULL) span.sum_abs = tiles[g].sum_abs;
    if (tiles != NULL) span.sum_square = tiles[g].sum_square;
    const uint32_t word = scale_word(plan, scale_choose(plan, span, rest < plan.tile ? rest : plan.tile));
    if (c % plan.tile == 0)
        bytes_write(body + ((uint64_t)at.row * plan.groups_row + g) * plan.scale_bytes, word, plan.scale_bytes);
    return scale_decode(plan, word, step);
}

template <int M, int K, int WAY>
__global__ void __launch_bounds__(ROW_WARPS_MAX *WARP) codec_encode_units(CODEC_JOBS, uint32_t warps, bool wants_sums)
{
    AQ_SHARED_DYNAMIC(uint8_t, shared);
    const struct place at = place_of(plan, list, warps);
    const struct aq_cuda_codec_job &job = list.jobs[at.sample];
    const uint32_t units = at.there ? plan.columns / UNIT : 0;
    const uint64_t first = (uint64_t)at.row * plan.columns;
    const bool hadamard = WAY == WAY_ANY && plan.hadamard, sums = WAY == WAY_ANY && wants_sums;
    const bool measured = is_measured(plan, at.row);
    uint8_t *mine = shared + (warps == 1 ? threadIdx.x / WARP * row_shared_bytes(plan, sums) : 0);
    struct row_memory *memory = (struct row_memory *)mine;
    float *measures = (float *)(memory + 1), *row_d = measures + 4 * ROW_WARPS_MAX;
    struct span *tiles = sums ? (struct span *)(row_d + plan.columns) : NULL;
    uint8_t *staged = sums ? (uint8_t *)(row_d + plan.columns) + tile_spans_bytes(plan) : (uint8_t *)row_d;
    uint8_t *stream = (uint8_t *)job.body + plan.codes_at + (uint64_t)at.row * units * plan.bits;
    struct eight d[K];
    struct packed<M> m[K];
    float sum_a = 0.0f, sum_a2 = 0.0f, sum_d2 = 0.0f, error = 0.0f;
    uint32_t peak = 0, hat_peak = 0;

    UNROLL for (int k = 0; k < K; k++)
    {
        const uint32_t u = at.thread + (uint32_t)k * at.threads;
        d[k] = {{0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
        if (u < units) {
            d[k] = eight_read(job.a + first + u * UNIT);
            m[k] = packed_read<M>(job.m, first + u * UNIT);
        }
    }
    UNROLL for (int k = 0; k < K; k++)
    {
        const uint32_t c = (at.thread + (uint32_t)k * at.threads) * UNIT;
        const struct eight reference = packed_open<M>(m[k]);
        UNROLL for (int i = 0; i < UNIT; i++)
        {
            const float a = d[k].v[i], delta = M == M_NONE ? a : __fsub_rn(a, reference.v[i]);
            if (measured) {
                sum_a = __fadd_rn(sum_a, a);
                sum_a2 = __fadd_rn(sum_a2, __fmul_rn(a, a));
                sum_d2 = __fadd_rn(sum_d2, __fmul_rn(delta, delta));
            }
            d[k].v[i] = delta;
        }
        if (hadamard) eight_rotate(d[k], rotation_block(plan, c), plan.tile, at.lane);
        const uint32_t unit_peak = eight_peak(d[k]);
        peak = unit_peak > peak ? unit_peak : peak;
    }

    bool good = peak < INFINITE_BITS;
    struct step step = {0.0f, 0.0f};
    if (sums) sums_make<K>(plan, at, warps, d, memory, row_d, tiles);
    if (plan.group == AQ_PER_ROW) {
        struct span span = {row_peak(peak, warps, at, memory), 0.0f, 0.0f};
        if (sums && at.there) span.sum_abs = memory->sum_abs;
        if (sums && at.there) span.sum_square = memory->sum_square;
        uint8_t *out = (uint8_t *)job.body + (uint64_t)at.row * plan.scale_bytes;
        if (at.there) good = scale_of_row(plan, at, span, out, &step) && good;
    } else if (plan.group == AQ_PER_TENSOR) {
        step = ((const struct step *)mem.quants)[(uint64_t)at.sample * plan.groups_row];
    }
    staged += (uintptr_t)stream & 3u;
    UNROLL for (int k = 0; k < K; k++)
    {
        const uint32_t u = at.thread + (uint32_t)k * at.threads, c = u * UNIT;
        struct steps steps;
        if (WAY == WAY_ANY && plan.group == AQ_PER_TILE) {
            const uint32_t tile = tile_peak(eight_peak(d[k]), plan.tile);
            if (u < units) good = scale_of_tile(plan, at, u, tile, tiles, (uint8_t *)job.body, &step) && good;
        }
        UNROLL for (int i = 0; i < UNIT; i++) steps.each[i] = step;
        if (WAY == WAY_ANY && plan.group == AQ_PER_CHANNEL && u < units) steps = steps_of_channels(mem, plan, at, c);
        float off = 0.0f;
        const bool stochastic = WAY == WAY_ANY && plan.stochastic;
        const uint64_t word = eight_quantize(plan, d[k], steps, stochastic, job.key, first + c, measured, off);
        if (hadamard) eight_rotate(d[k], rotation_block(plan, c), plan.tile, at.lane);
        if (u >= units) continue;
        error = __fadd_rn(error, off);
        word_write((bits_are_word(plan.bits) ? stream : staged) + u * plan.bits, word, plan.bits);
        if constexpr (M != M_NONE) {
            const struct eight reference = packed_open<M>(m[k]);
            UNROLL for (int i = 0; i < UNIT; i++) d[k].v[i] = __fadd_rn(reference.v[i], d[k].v[i]);
            if (job.m_out != NULL) packed_write<M>(job.m_out, first + c, d[k]);
        }
        if (job.hat != NULL) eight_write(job.hat + first + c, d[k]);
        const uint32_t unit_peak = eight_peak(d[k]);
        hat_peak = unit_peak > hat_peak ? unit_peak : hat_peak;
    }
    if (!bits_are_word(plan.bits)) {
        row_sync(warps);
        if (at.there) codes_flush(staged - ((uintptr_t)stream & 3u), stream, units * plan.bits, at);
    }
    if (measured) measures_write(mem, at, warps, measures, sum_a, sum_a2, sum_d2, error);
    if (at.there && (!good || hat_peak >= plan.limit)) atomicOr(&mem.status[at.sample], 1u);
}

/* ---- decode ---- */

/* The quantizers of a unit from the body's scales; false where one is not a scale. */
static __device__ inline bool steps_read(const struct aq_cuda_codec_plan &plan, const struct place &at,
                                         const uint8_t *body, uint32_t c, struct steps *out)
{
    uint64_t group = 0;
    bool good = true;
    if (plan.group == AQ_PER_CHANNEL) {
        UNROLL for (int i = 0; i < UNIT; i++)
        {
            const uint8_t *from = body + (uint64_t)(c + (uint32_t)i) * plan.scale_bytes;
            good = scale_decode(plan, bytes_read(from, plan.scale_bytes), &out->each[i]) && good;
        }
        return good;
    }
    if (plan.group == AQ_PER_ROW) group = at.row;
    if (plan.group == AQ_PER_TILE) group = (uint64_t)at.row * plan.groups_row + c / plan.tile;
    struct step step;
    good = scale_decode(plan, bytes_read(body + group * plan.scale_bytes, plan.scale_bytes), &step);
    UNROLL for (int i = 0; i < UNIT; i++) out->each[i] = step;
    return good;
}

/* A warp per row; each unit by itself. `aligned`: streams are at multiples of b bytes. */
template <int M> __global__ void __launch_bounds__(UNIT_BLOCK) codec_decode_units(CODEC_JOBS, bool aligned)
{
    const struct place at = place_of(plan, list, 1);
    const struct aq_cuda_codec_job &job = list.jobs[at.sample];
    const uint32_t units = at.there ? plan.columns / UNIT : 0;
    const uint64_t first = (uint64_t)at.row * plan.columns;
    const uint8_t *body = (const uint8_t *)job.body;
    const uint8_t *stream = body + plan.codes_at + (uint64_t)at.row * units * plan.bits;
    const uint32_t mask = (1u << plan.bits) - 1u;
    uint32_t peak = 0;
    bool good = true;
    struct steps steps;
    const bool once = plan.group == AQ_PER_ROW || plan.group == AQ_PER_TENSOR; /* a row has one quantizer */
    if (once && at.there) good = steps_read(plan, at, body, 0, &steps);
    for (uint32_t from = 0; from < units; from += WARP) {
        const uint32_t u = from + at.lane, c = u * UNIT;
        struct eight x = {{0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
        struct packed<M> m = {
        };
        if (u < units) {
            m = packed_read<M>(job.m, first + c);
            const uint64_t word = word_read(stream + (uint64_t)u * plan.bits, plan.bits, aligned);
            const uint32_t low = (uint32_t)word, high = (uint32_t)(word >> 4 * plan.bits);
            if (!once) good = steps_read(plan, at, body, c, &steps) && good;
            UNROLL for (int i = 0; i < UNIT; i++)
            {
                const uint32_t code = (i < 4 ? low >> (uint32_t)i * plan.bits : high >> (uint32_t)(i - 4) * plan.bits);
                x.v[i] = dequantize((int)(code & mask) - (int)plan.half, steps.each[i].unit, plan.rise);
            }
        }
        if (plan.hadamard) eight_rotate(x, rotation_block(plan, c), plan.tile, at.lane);
        if (u >= units) continue;
        if constexpr (M != M_NONE) {
            const struct eight reference = packed_open<M>(m);
            UNROLL for (int i = 0; i < UNIT; i++) x.v[i] = __fadd_rn(reference.v[i], x.v[i]);
            if (job.m_out != NULL) packed_write<M>(job.m_out, first + c, x);
        }
        if (job.hat != NULL) eight_write(job.hat + first + c, x);
        const uint32_t unit_peak = eight_peak(x);
        peak = unit_peak > peak ? unit_peak : peak;
    }
    if (!good || peak >= plan.limit) atomicOr(&mem.status[at.sample], 1u);
}

/* ---- keyframes and raw bodies ---- */

static __device__ __forceinline__ struct eight values_read(uint32_t precision, const void *from, uint64_t e)
{
    if (precision == AQ_PRECISION_FP32) return packed_open<M_FP32>(packed_read<M_FP32>(from, e));
    if (precision == AQ_PRECISION_FP16) return packed_open<M_FP16>(packed_read<M_FP16>(from, e));
    return packed_open<M_BF16>(packed_read<M_BF16>(from, e));
}

static __device__ __forceinline__ void values_write(uint32_t precision, void *to, uint64_t e, const struct eight &x)
{
    if (precision == AQ_PRECISION_FP32)
        packed_write<M_FP32>(to, e, x);
    else if (precision == AQ_PRECISION_FP16)
        packed_write<M_FP16>(to, e, x);
    else
        packed_write<M_BF16>(to, e, x);
}

/* Eight values rounded as a body of that precision rounds them. */
static __device__ __forceinline__ struct eight values_round(uint32_t precision, struct eight x)
{
    UNROLL for (int i = 0; i < UNIT; i++)
    {
        if (precision == AQ_PRECISION_FP16) x.v[i] = half_to_float(half_from_float(x.v[i]));
        if (precision == AQ_PRECISION_BF16) x.v[i] = bfloat_to_float(bfloat_from_float(x.v[i]));
    }
    return x;
}

/* A warp per row. encode: a to the body; both: the body's values to hat and m_out. */
__global__ void __launch_bounds__(UNIT_BLOCK) codec_plain_units(CODEC_JOBS, bool encode)
{
    const struct place at = place_of(plan, list, 1);
    const struct aq_cuda_codec_job &job = list.jobs[at.sample];
    const uint64_t first = (uint64_t)at.row * plan.columns;
    float sum_a = 0.0f, sum_a2 = 0.0f, error = 0.0f;
    uint32_t peak = 0, hat_peak = 0;
    for (uint32_t u = at.lane; at.there && u < plan.columns / UNIT; u += WARP) {
        const uint64_t e = first + u * UNIT;
        struct eight x;
        if (encode) {
            const struct eight a = eight_read(job.a + e);
            const uint32_t unit_peak = eight_peak(a);
            peak = unit_peak > peak ? unit_peak : peak;
            values_write(plan.plain, job.body, e, a);
            x = values_round(plan.plain, a);
            UNROLL for (int i = 0; i < UNIT; i++)
            {
                const float off = __fsub_rn(a.v[i], x.v[i]);
                sum_a = __fadd_rn(sum_a, a.v[i]);
                sum_a2 = __fadd_rn(sum_a2, __fmul_rn(a.v[i], a.v[i]));
                error = __fadd_rn(error, __fmul_rn(off, off));
            }
        } else {
            x = values_read(plan.plain, job.body, e);
        }
        const uint32_t unit_peak = eight_peak(x);
        hat_peak = unit_peak > hat_peak ? unit_peak : hat_peak;
        if (plan.warm && job.m_out != NULL) values_write(plan.store, job.m_out, e, x);
        if (job.hat != NULL) eight_write(job.hat + e, x);
    }
    if (encode) measures_write(mem, at, 1, NULL, sum_a, sum_a2, sum_a2, error);
    if (peak >= precision_limit(plan.plain) || hat_peak >= plan.limit) atomicOr(&mem.status[at.sample], 1u);
}

/* ---- launchers ---- */

static bool at_multiple(const void *pointer, uintptr_t of)
{
    return (uintptr_t)pointer % of == 0;
}

/* Does every stream of codes start at a multiple of b bytes (at most 8)? */
static bool streams_aligned(const struct aq_cuda_codec_plan &plan, const struct job_list &list)
{
    bool aligned = bits_are_word(plan.bits);
    for (uint32_t i = 0; i < list.count; i++)
        aligned = aligned && at_multiple((const uint8_t *)list.jobs[i].body + plan.codes_at, plan.bits);
    return aligned;
}

bool codec_units_can(const struct aq_cuda_codec_plan &plan, const struct job_list &list, bool plain, bool decode)
{
    const uint32_t columns_max = ROW_WARPS_MAX * WARP * ROW_UNITS_MAX * UNIT;
    bool can = plan.columns % UNIT == 0 && !plan.sparse;
    if (plain) can = can && plan.plain <= AQ_PRECISION_BF16;
    if (!plain && !decode) {
        can = can && plan.columns <= columns_max && plan.scale != AQ_SCALE_SEARCH;
        can = can && (!bits_are_word(plan.bits) || streams_aligned(plan, list));
    }
    for (uint32_t i = 0; i < list.count; i++) {
        const struct aq_cuda_codec_job *job = &list.jobs[i];
        can = can && at_multiple(job->a, 16) && at_multiple(job->m, 16) && at_multiple(job->hat, 16) &&
              at_multiple(job->m_out, 16) && (!plain || at_multiple(job->body, 16));
    }
    return can;
}

static dim3 warp_a_row(const struct aq_cuda_codec_plan &plan, const struct job_list &list)
{
    return aq_blocks((uint64_t)list.count * plan.rows, UNIT_BLOCK / WARP);
}

/* The kernel of this many units per thread. */
template <int M, int WAY>
static enum aq_status encode_units(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                   const struct job_list &list, bool sums, struct CUstream_st *stream)
{
    const uint32_t units = plan.columns / UNIT;
    uint32_t warps = 1;
    while (warps * WARP * ROW_UNITS_MAX < units)
        warps *= 2;
    const uint32_t each = (units + warps * WARP - 1) / (warps * WARP), row = row_shared_bytes(plan, sums);
    const uint64_t rows = (uint64_t)list.count * plan.rows;
    const dim3 grid = warps == 1 ? warp_a_row(plan, list) : aq_blocks(rows, 1);
    const dim3 block = warps == 1 ? (unsigned)UNIT_BLOCK : warps * WARP;
    const uint32_t bytes = warps == 1 ? UNIT_BLOCK / WARP * row : row;
    if (each == 1)
        return AQ_LAUNCH((codec_encode_units<M, 1, WAY>), grid, block, bytes, stream, plan, mem, list, warps, sums);
    if (each == 2)
        return AQ_LAUNCH((codec_encode_units<M, 2, WAY>), grid, block, bytes, stream, plan, mem, list, warps, sums);
    if (each <= 4)
        return AQ_LAUNCH((codec_encode_units<M, 4, WAY>), grid, block, bytes, stream, plan, mem, list, warps, sums);
    return AQ_LAUNCH((codec_encode_units<M, ROW_UNITS_MAX, WAY>), grid, block, bytes, stream, plan, mem, list, warps,
                     sums);
}

enum aq_status codec_launch_encode_units(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    if (plain)
        return AQ_LAUNCH(codec_plain_units, warp_a_row(plan, list), UNIT_BLOCK, 0, stream, plan, mem, list, true);
    const bool rowwise = plan.group == AQ_PER_ROW || plan.group == AQ_PER_TILE;
    const bool sums = rowwise && !scale_is_peak(plan);
    const bool usual =
        !sums && !plan.stochastic && !plan.hadamard && (plan.group == AQ_PER_ROW || plan.group == AQ_PER_TENSOR);
    switch (plan.warm ? plan.store : 0) {
    case M_FP32:
        return usual ? encode_units<M_FP32, WAY_USUAL>(plan, mem, list, sums, stream)
                     : encode_units<M_FP32, WAY_ANY>(plan, mem, list, sums, stream);
    case M_FP16:
        return usual ? encode_units<M_FP16, WAY_USUAL>(plan, mem, list, sums, stream)
                     : encode_units<M_FP16, WAY_ANY>(plan, mem, list, sums, stream);
    case M_BF16:
        return usual ? encode_units<M_BF16, WAY_USUAL>(plan, mem, list, sums, stream)
                     : encode_units<M_BF16, WAY_ANY>(plan, mem, list, sums, stream);
    default:
        return usual ? encode_units<M_NONE, WAY_USUAL>(plan, mem, list, sums, stream)
                     : encode_units<M_NONE, WAY_ANY>(plan, mem, list, sums, stream);
    }
}

enum aq_status codec_launch_decode_units(const struct aq_cuda_codec_plan &plan, const struct aq_cuda_codec_scratch &mem,
                                         const struct job_list &list, bool plain, struct CUstream_st *stream)
{
    const dim3 grid = warp_a_row(plan, list);
    if (plain) return AQ_LAUNCH(codec_plain_units, grid, UNIT_BLOCK, 0, stream, plan, mem, list, false);
    const bool aligned = streams_aligned(plan, list);
    switch (plan.warm ? plan.store : 0) {
    case M_FP32:
        return AQ_LAUNCH(codec_decode_units<M_FP32>, grid, UNIT_BLOCK, 0, stream, plan, mem, list, aligned);
    case M_FP16:
        return AQ_LAUNCH(codec_decode_units<M_FP16>, grid, UNIT_BLOCK, 0, stream, plan, mem, list, aligned);
    case M_BF16:
        return AQ_LAUNCH(codec_decode_units<M_BF16>, grid, UNIT_BLOCK, 0, stream, plan, mem, list, aligned);
    default:
        return AQ_LAUNCH(codec_decode_units<M_NONE>, grid, UNIT_BLOCK, 0, stream, plan, mem, list, aligned);
    }
}
