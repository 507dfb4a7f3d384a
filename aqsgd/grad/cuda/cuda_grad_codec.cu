/*
 * cuda_grad_codec.cu -- gradient codecs on a GPU: see cuda_grad.h. The truth is grad_codec_*.c and grad_scalar.h.
 *
 * Encode is two launches where there are scales: a block per bucket makes y = x + error and its scale, adding up as the
 * CPU does (sign's magnitudes are added one after another, by a warp; lp's rows by as many warps); then a thread codes
 * eight floats, which are whole bytes of the wire whatever the bits, and leaves their error. Decode is one, eight
 * floats per thread. Which bucket a float belongs to is looked up in its piece's part of the tables.
 */
#include "cuda_codec_math.cuh"

#define AQ_ELEMENT static __device__ inline
#include "cuda_grad.h"
#include "grad_power.h"

enum {
    GRAD_BLOCK = 256,
    GRAD_ROW = 512, /* floats whose magnitudes the CPU adds up at a time (lp) */
    GRAD_WARPS = GRAD_BLOCK / 32,
    GRAD_ROWS = AQ_GRAD_PIECE / GRAD_ROW,
    UNIT = 8
};

/* ---- scales ---- */

/* Sum of |y| or y^2 over n values by the warp, in the CPU's order. */
static __device__ inline float sum_of(const float *y, uint64_t n, bool squares, uint32_t lane)
{
    float sum = 0.0f;
    for (uint64_t i = lane; i < n; i += WARP)
        sum = __fadd_rn(sum, squares ? __fmul_rn(y[i], y[i]) : __uint_as_float(magnitude_of(y[i])));
    return warp_fold(sum);
}

static __device__ inline float sign_scale(const struct aq_cuda_grad_tables &tables,
                                          const struct aq_cuda_grad_bucket &bucket, const float *y, uint32_t lane)
{
    const bool squares = tables.squares != 0;
    double sum = bucket.head > 0 ? (double)sum_of(y, bucket.head, squares, lane) : 0.0;
    if (bucket.count > bucket.head)
        sum = __dadd_rn(sum, (double)sum_of(y + bucket.head, bucket.count - bucket.head, squares, lane));
    const double mean = __ddiv_rn(sum, (double)bucket.count);
    return __double2float_rn(squares ? __dsqrt_rn(mean) : mean);
}

static __device__ inline bool finite64(double x)
{
    return ((unsigned long long)__double_as_longlong(x) >> 52 & 0x7ffu) != 0x7ffu;
}

/* Is the scale a mean over all rows? The same answer in the whole block. */
static __device__ inline bool wants_rows(const struct aq_cuda_grad_tables &tables, uint32_t peak)
{
    return tables.kind == AQ_CUDA_GRAD_LP && is_finite(tables.norm) && peak > 0 && peak < INFINITE_BITS;
}

/* What is added up: magnitudes in binary32, terms of a norm, values that are not zero. */
enum row_sum { ROW_MAGNITUDES, ROW_TERMS, ROW_NOT_ZERO };

static __device__ inline double sum_of_row(const float *y, uint64_t n, enum row_sum what, float norm, float largest,
                                           uint32_t lane)
{
    double sum = 0.0;
    if (what == ROW_MAGNITUDES) return (double)sum_of(y, n, false, lane);
    for (uint64_t i = lane; i < n; i += WARP)
        sum = __dadd_rn(sum, what == ROW_TERMS ? element_norm_term(y[i], norm, largest) : (double)(y[i] != 0.0f));
    for (int width = WARP / 2; width > 0; width /= 2)
        sum = __dadd_rn(sum, __shfl_down_sync(WHOLE_WARP, sum, (unsigned)width));
    return sum; /* lane 0's */
}

/* The sum of all rows' sums, in the order of rows, in the whole block. Each warp adds up its own rows. */
static __device__ inline double sum_of_rows(const float *y, uint64_t n, enum row_sum what, float norm, float largest,
                                            double *rows)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double sum = 0.0;
    for (uint64_t from = 0; from < n; from += (uint64_t)GRAD_ROWS * GRAD_ROW) {
        const uint64_t left = (n - from + GRAD_ROW - 1) / GRAD_ROW;
        const uint32_t count = left < GRAD_ROWS ? (uint32_t)left : (uint32_t)GRAD_ROWS;
        for (uint32_t row = warp; row < count; row += GRAD_WARPS) {
            const uint64_t at = from + (uint64_t)row * GRAD_ROW;
            const uint64_t floats = n - at < GRAD_ROW ? n - at : (uint64_t)GRAD_ROW;
            const double one = sum_of_row(y + at, floats, what, norm, largest, lane);
            if (lane == 0) rows[row] = one;
        }
        __syncthreads();
        for (uint32_t row = 0; row < count; row++)
            sum = __dadd_rn(sum, rows[row]);
        __syncthreads();
    }
    return sum;
}

/* lp: the mean of its norm, in the whole block. */
static __device__ inline double mean_of_rows(float norm, const float *y, uint64_t n, uint32_t peak, double *rows)
{
    const float largest = __uint_as_float(peak);
    double sum = norm == 1.0f ? sum_of_rows(y, n, ROW_MAGNITUDES, norm, largest, rows) : 0.0;
    if (norm == 1.0f && finite64(sum)) return __ddiv_rn(sum, (double)n);
    sum = sum_of_rows(y, n, ROW_TERMS, norm, largest, rows); /* of a row of enormous values, too */
    const double count = norm == AQ_GRAD_NORM_L0 ? sum_of_rows(y, n, ROW_NOT_ZERO, norm, largest, rows) : (double)n;
    return element_norm_mean(sum, count, norm, largest);
}

/* The scale of uniform and lp; infinity where y is not finite. */
static __device__ inline float level_scale(const struct aq_cuda_grad_tables &tables, uint32_t peak, double mean)
{
    if (peak >= INFINITE_BITS) return __uint_as_float(INFINITE_BITS);
    if (!wants_rows(tables, peak)) return __uint_as_float(peak);
    const float scale = __double2float_rn(__dmul_rn(2.0, mean));
    return is_finite(scale) ? scale : __uint_as_float(INFINITE_BITS);
}

/*
 * y = x + error in place of error, where there is one; the largest magnitude, in the whole block, which has y by then.
 */
static __device__ inline uint32_t owed_and_peak(const float *x, float *error, uint64_t n, uint32_t *peaks)
{
    uint32_t peak = 0;
    for (uint64_t i = threadIdx.x; i < n; i += GRAD_BLOCK) {
        float y = x[i];
        if (error != NULL) error[i] = y = __fadd_rn(y, error[i]);
        peak = magnitude_of(y) > peak ? magnitude_of(y) : peak;
    }
    peak = warp_max(peak);
    if (threadIdx.x % WARP == 0) peaks[threadIdx.x / WARP] = peak;
    __syncthreads();
    for (uint32_t warp = 0; warp < GRAD_WARPS; warp++)
        peak = peaks[warp] > peak ? peaks[warp] : peak;
    return peak;
}

/* A block a bucket: y = x + error in place of error, the scale into the wire, the quantizer into the tables. */
__global__ void __launch_bounds__(GRAD_BLOCK)
    grad_scales(const __grid_constant__ struct aq_cuda_grad_tables tables, const float *x, float *error, uint8_t *wire)
{
    AQ_SHARED(uint32_t, peaks, [GRAD_WARPS]);
    AQ_SHARED(double, rows, [GRAD_ROWS]);
    const uint64_t at = blockIdx.x;
    const struct aq_cuda_grad_bucket bucket = tables.buckets[at];
    if (bucket.padding) return;
    if (error != NULL) error += bucket.offset;
    const uint32_t peak = owed_and_peak(x + bucket.offset, error, bucket.count, peaks);
    const float *y = error != NULL ? error : x + bucket.offset;
    const double mean = wants_rows(tables, peak) ? mean_of_rows(tables.norm, y, bucket.count, peak, rows) : 0.0;
    if (threadIdx.x >= WARP) return;
    struct step step = {0.0f, 0.0f};
    float scale;
    if (tables.kind == AQ_CUDA_GRAD_SIGN) {
        scale = sign_scale(tables, bucket, y, threadIdx.x);
        step.unit = scale;
    } else {
        if (threadIdx.x > 0) return;
        scale = level_scale(tables, peak, mean);
        if (!is_finite(scale) || !step_of_scale(tables.grid, tables.bits, 0, scale, &step)) {
            scale = __uint_as_float(INFINITE_BITS); /* decode refuses it; error holds what was not finite */
            step.unit = __uint_as_float(0x7fc00000u);
        }
    }
    if (threadIdx.x > 0) return;
    bytes_write(wire + bucket.scale_at, __float_as_uint(scale), 4);
    ((struct step *)tables.steps)[at] = step;
}

/* ---- eight floats ---- */

/* Eight floats of a piece, and the bucket of the first of them. */
struct unit {
    const struct aq_cuda_grad_piece *piece;
    uint64_t offset; /* of the range */
    uint64_t index;  /* of the piece's codes */
    uint32_t count;  /* 8, or fewer at the piece's end */
    uint32_t bucket;
};

static __device__ inline bool unit_of(const struct aq_cuda_grad_tables &tables, bool buckets, struct unit *out)
{
    const uint64_t offset = aq_thread_index() * UNIT; /* a piece is whole units, but the last */
    if (offset >= tables.count) return false;
    out->piece = &tables.pieces[offset / AQ_GRAD_PIECE];
    out->offset = offset;
    out->index = offset % AQ_GRAD_PIECE;
    out->count = out->piece->count - out->index < UNIT ? (uint32_t)(out->piece->count - out->index) : (uint32_t)UNIT;
    out->bucket = out->piece->first;
    for (uint32_t end = out->piece->last;
         buckets && end - out->bucket > 1;) { /* the last that starts at offset or before */
        const uint32_t middle = out->bucket + (end - out->bucket) / 2;
        if (tables.buckets[middle].offset <= offset)
            out->bucket = middle;
        else
            end = middle;
    }
    return true;
}

static __device__ __forceinline__ void bucket_step(const struct aq_cuda_grad_tables &tables, struct unit *unit,
                                                   uint64_t offset)
{
    const struct aq_cuda_grad_bucket &bucket = tables.buckets[unit->bucket];
    if (offset >= bucket.offset + bucket.count) unit->bucket++;
}

/* ---- encode ---- */

/* Codes of kinds with scales; error becomes what they lost. */
__global__ void __launch_bounds__(GRAD_BLOCK)
    grad_codes(const __grid_constant__ struct aq_cuda_grad_tables tables, const float *x, float *error, uint8_t *wire)
{
    const struct grid_of grid = {tables.low, tables.high, (int)tables.half, tables.grid == AQ_GRID_MIDRISE};
    struct unit unit;
    uint64_t word = 0;
    if (!unit_of(tables, true, &unit)) return;
    for (uint32_t k = 0; k < unit.count; k++) {
        const uint64_t at = unit.offset + k;
        bucket_step(tables, &unit, at);
        if (tables.buckets[unit.bucket].padding) continue;
        const struct step step = ((const struct step *)tables.steps)[unit.bucket];
        const float y = error != NULL ? error[at] : x[at];
        float level;
        uint32_t code;
        if (tables.kind == AQ_CUDA_GRAD_SIGN) {
            code = y >= 0.0f;
            level = code ? step.unit : -step.unit;
        } else {
            if (!is_finite(step.unit)) continue;
            const int i = quantize_nearest(y, step.inverse, grid);
            code = (uint32_t)(i + grid.half);
            level = dequantize(i, step.unit, grid.rise);
        }
        word |= (uint64_t)code << k * tables.bits;
        if (error != NULL) error[at] = __fsub_rn(y, level);
    }
    uint8_t *out = wire + unit.piece->codes_at + unit.index / UNIT * tables.bits;
    for (uint32_t b = 0; b < (unit.count * tables.bits + 7) / 8; b++)
        out[b] = (uint8_t)(word >> 8 * b);
}

/* binary16 with the CPU's NaNs, and clamped as grad_codec_fp16.c clamps. */
static __device__ __forceinline__ uint16_t clamped_half(float y)
{
    const uint32_t bits = __float_as_uint(y), magnitude = magnitude_of(y);
    if (magnitude > INFINITE_BITS) return (uint16_t)((bits >> 16 & 0x8000u) | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (__uint_as_float(magnitude) > 65504.0f) return half_from_float(y > 0.0f ? 65504.0f : -65504.0f);
    return half_from_float(y);
}

/* Kinds without scales. */
__global__ void __launch_bounds__(GRAD_BLOCK) grad_values(const __grid_constant__ struct aq_cuda_grad_tables tables,
                                                          const float *x, float *error, bool ties_up, uint8_t *wire)
{
    struct unit unit;
    uint32_t votes = 0;
    if (!unit_of(tables, false, &unit)) return;
    for (uint32_t k = 0; k < unit.count; k++) {
        const uint64_t at = unit.offset + k;
        uint8_t *out = wire + unit.piece->codes_at + (unit.index + k) * (tables.bits / 8);
        const float y = error != NULL ? __fadd_rn(x[at], error[at]) : x[at];
        float value = y;
        if (tables.kind == AQ_CUDA_GRAD_FP32) {
            bytes_write(out, __float_as_uint(y), 4);
        } else if (tables.kind == AQ_CUDA_GRAD_VOTE) {
            const uint32_t vote = y > 0.0f || (ties_up && y == 0.0f);
            votes |= vote << k;
            value = vote ? 1.0f : -1.0f;
        } else {
            const bool fp16 = tables.kind == AQ_CUDA_GRAD_FP16;
            const uint16_t half = fp16 ? clamped_half(y) : bfloat_from_float(y);
            bytes_write(out, half, 2);
            value = fp16 ? half_to_float(half) : bfloat_to_float(half);
        }
        if (error != NULL) error[at] = __fsub_rn(y, value);
    }
    if (tables.kind == AQ_CUDA_GRAD_VOTE) wire[unit.piece->codes_at + unit.index / UNIT] = (uint8_t)votes;
}

/* ---- decode ---- */

/* The decoded value of one float, weighted, for kinds with scales; false for a scale that no encoder writes. */
static __device__ inline bool scaled_value(const struct aq_cuda_grad_tables &tables, const struct unit &unit,
                                           uint32_t k, const uint8_t *wire, float weight, float *value)
{
    const uint32_t scale = bytes_read(wire + tables.buckets[unit.bucket].scale_at, 4);
    const uint32_t code = code_read(wire + unit.piece->codes_at, unit.index + k, tables.bits);
    struct step step;
    if (scale >= INFINITE_BITS) return false;
    if (tables.kind == AQ_CUDA_GRAD_SIGN) {
        const float s = __fmul_rn(weight, __uint_as_float(scale));
        *value = code ? s : -s;
        return true;
    }
    if (!step_of_scale(tables.grid, tables.bits, 0, __uint_as_float(scale), &step)) return false;
    const float level = dequantize((int)code - (int)tables.half, step.unit, tables.grid == AQ_GRID_MIDRISE);
    *value = __fmul_rn(weight, level);
    return true;
}

__global__ void __launch_bounds__(GRAD_BLOCK)
    grad_decode_scaled(const __grid_constant__ struct aq_cuda_grad_tables tables, const uint8_t *wire, float weight,
                       bool add, float *sum, uint32_t *corrupt)
{
    struct unit unit;
    if (!unit_of(tables, true, &unit)) return;
    for (uint32_t k = 0; k < unit.count; k++) {
        const uint64_t at = unit.offset + k;
        float value = 0.0f;
        bucket_step(tables, &unit, at);
        if (tables.buckets[unit.bucket].padding) {
            if (!add) sum[at] = 0.0f;
            continue;
        }
        if (!scaled_value(tables, unit, k, wire, weight, &value)) {
            *corrupt = 1; /* all threads that write it write the same */
            return;
        }
        sum[at] = add ? __fadd_rn(sum[at], value) : value;
    }
}

__global__ void __launch_bounds__(GRAD_BLOCK)
    grad_decode_values(const __grid_constant__ struct aq_cuda_grad_tables tables, const uint8_t *wire, float weight,
                       bool add, float *sum)
{
    struct unit unit;
    if (!unit_of(tables, false, &unit)) return;
    for (uint32_t k = 0; k < unit.count; k++) {
        const uint64_t at = unit.offset + k;
        const uint8_t *from = wire + unit.piece->codes_at + (unit.index + k) * (tables.bits / 8);
        float value;
        if (tables.kind == AQ_CUDA_GRAD_VOTE)
            value = code_read(wire + unit.piece->codes_at, unit.index + k, 1) ? weight : -weight;
        else if (tables.kind == AQ_CUDA_GRAD_FP32)
            value = __fmul_rn(weight, __uint_as_float(bytes_read(from, 4)));
        else if (tables.kind == AQ_CUDA_GRAD_FP16)
            value = __fmul_rn(weight, half_to_float((uint16_t)bytes_read(from, 2)));
        else
            value = __fmul_rn(weight, bfloat_to_float((uint16_t)bytes_read(from, 2)));
        sum[at] = add ? __fadd_rn(sum[at], value) : value;
    }
}

/* ---- launchers ---- */

static bool has_scales(const struct aq_cuda_grad_tables *tables)
{
    return tables->kind == AQ_CUDA_GRAD_SIGN || tables->kind == AQ_CUDA_GRAD_UNIFORM || tables->kind == AQ_CUDA_GRAD_LP;
}

extern "C" enum aq_status aq_cuda_grad_encode(const struct aq_cuda_grad_tables *tables, const float *x, float *error,
                                              uint64_t step, void *wire, void *stream)
{
    struct CUstream_st *at = (struct CUstream_st *)stream;
    const dim3 units = aq_blocks((tables->count + UNIT - 1) / UNIT, GRAD_BLOCK);
    if (tables->count == 0) return AQ_OK;
    if (!has_scales(tables))
        return AQ_LAUNCH(grad_values, units, GRAD_BLOCK, 0, at, *tables, x, error, step % 2 == 1, (uint8_t *)wire);
    const dim3 buckets = dim3(tables->bucket_count);
    AQ_TRY(AQ_LAUNCH(grad_scales, buckets, GRAD_BLOCK, 0, at, *tables, x, error, (uint8_t *)wire));
    return AQ_LAUNCH(grad_codes, units, GRAD_BLOCK, 0, at, *tables, x, error, (uint8_t *)wire);
}

extern "C" enum aq_status aq_cuda_grad_decode(const struct aq_cuda_grad_tables *tables, const void *wire, float weight,
                                              bool add, float *sum, uint32_t *corrupt, void *stream)
{
    struct CUstream_st *at = (struct CUstream_st *)stream;
    const dim3 units = aq_blocks((tables->count + UNIT - 1) / UNIT, GRAD_BLOCK);
    if (tables->count == 0) return AQ_OK;
    if (!has_scales(tables))
        return AQ_LAUNCH(grad_decode_values, units, GRAD_BLOCK, 0, at, *tables, (const uint8_t *)wire, weight, add,
                         sum);
    return AQ_LAUNCH(grad_decode_scaled, units, GRAD_BLOCK, 0, at, *tables, (const uint8_t *)wire, weight, add, sum,
                     corrupt);
}
