/*
 * cuda_codec_math.cuh -- the arithmetic of codec_scale.c, codec_store.c and codec_scalar.h on a GPU, operation by
 * operation.
 *
 * Decode must give the CPU's bits. So every operation of binary32 is an intrinsic with its rounding in its name, which
 * no flag contracts, and denormals are kept (nvcc's default). tests/test_cuda_ptx looks for what should not be there.
 *
 * A warp's lane is the CPU's lane c%32 wherever values are added up, and warp_fold adds in the CPU's order.
 */
#ifndef AQSGD_CUDA_CODEC_MATH_CUH
#define AQSGD_CUDA_CODEC_MATH_CUH

#include "cuda_launch.cuh"

/* In C a function and a structure may have one name. */
#ifdef AQ_CUDA_HOST
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#include "cuda_codec.h"
#ifdef AQ_CUDA_HOST
#pragma GCC diagnostic pop
#endif

/* The kernels' parameters are read where the launch left them, without a copy for each thread. */
#ifdef AQ_CUDA_HOST
#define __grid_constant__
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

#define WHOLE_WARP     0xffffffffu
#define INFINITE_BITS  0x7f800000u
#define MAGNITUDE_BITS 0x7fffffffu

enum { WARP = AQ_CUDA_CODEC_WARP, SHRINKS = AQ_CUDA_CODEC_SHRINKS };

/* The samples of one launch, by value. */
struct job_list {
    uint32_t count;
    struct aq_cuda_codec_job jobs[AQ_CUDA_CODEC_JOBS];
};

/* Parameters of kernels, by value: the plan and its memory; and the samples. */
#define CODEC_PLAN                                                                                                     \
    const __grid_constant__ struct aq_cuda_codec_plan plan, const __grid_constant__ struct aq_cuda_codec_scratch mem
#define CODEC_JOBS CODEC_PLAN, const __grid_constant__ struct job_list list

/* The part of a quantizer that depends on the scale. */
struct step {
    float unit, inverse;
};
static_assert(sizeof(struct step) == AQ_CUDA_CODEC_STEP_BYTES, "what codec_place.c reckons with");

/* The part that does not. */
struct grid_of {
    float low, high;
    int half;
    bool rise;
};

static __device__ __forceinline__ uint32_t magnitude_of(float x)
{
    return __float_as_uint(x) & MAGNITUDE_BITS;
}

static __device__ __forceinline__ bool is_finite(float x)
{
    return magnitude_of(x) < INFINITE_BITS;
}

/* 2^exponent, exponent in -126..127. */
static __device__ __forceinline__ float power_of_two(int exponent)
{
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

static __device__ __forceinline__ float smaller(float x, float y)
{
    return x < y ? x : y;
}

/* ---- the two 16-bit floats ---- */

static __device__ __forceinline__ float half_to_float(uint16_t half)
{
    return __half2float(__ushort_as_half(half));
}

static __device__ __forceinline__ uint16_t half_from_float(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static __device__ __forceinline__ float bfloat_to_float(uint16_t bfloat)
{
    return __uint_as_float((uint32_t)bfloat << 16);
}

static __device__ __forceinline__ uint16_t bfloat_from_float(float x)
{
    const uint32_t bits = __float_as_uint(x);
    if ((bits & MAGNITUDE_BITS) > INFINITE_BITS) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* ---- quantizers ---- */

/* unit and inverse of a scale (docs/FORMAT.md, Codes); false where 256 * unit is not finite. */
static __device__ inline bool step_of_scale(uint32_t grid, uint32_t bits, int prescale_log2, float s, struct step *out)
{
    float unit, width;
    if (grid == AQ_GRID_MIDRISE) {
        unit = __fmul_rn(s, power_of_two(-(int)bits - prescale_log2));
        width = __fmul_rn(2.0f, unit);
    } else if (grid == AQ_GRID_MIDTREAD) {
        unit = __fmul_rn(__fdiv_rn(s, (float)((1u << (bits - 1)) - 1u)), power_of_two(-prescale_log2));
        width = unit;
    } else {
        unit = __fmul_rn(s, power_of_two(1 - (int)bits - prescale_log2));
        width = unit;
    }
    const float inverse = __fdiv_rn(1.0f, width);
    out->unit = unit;
    out->inverse = is_finite(inverse) ? inverse : 0.0f;
    return is_finite(__fmul_rn(256.0f, unit));
}

static __device__ __forceinline__ struct grid_of grid_of_plan(const struct aq_cuda_codec_plan &plan)
{
    return {plan.low, plan.high, (int)plan.half, plan.rise != 0};
}

/* The grid of a stored message: mid-rise. */
static __device__ __forceinline__ struct grid_of grid_of_store(uint32_t bits)
{
    const int half = 1 << (bits - 1);
    return {(float)-half, (float)(half - 1), half, true};
}

static __device__ __forceinline__ int clamp_level(float t, const struct grid_of &grid)
{
    t = t > grid.low ? t : grid.low;
    return (int)(t < grid.high ? t : grid.high);
}

static __device__ __forceinline__ int quantize_nearest(float x, float inverse, const struct grid_of &grid)
{
    const float scaled = __fmul_rn(x, inverse);
    return clamp_level(grid.rise ? floorf(scaled) : rintf(scaled), grid);
}

static __device__ __forceinline__ int quantize_stochastic(float x, float inverse, const struct grid_of &grid, float u)
{
    const float scaled = __fmul_rn(x, inverse);
    return clamp_level(floorf(__fadd_rn(grid.rise ? __fsub_rn(scaled, 0.5f) : scaled, u)), grid);
}

static __device__ __forceinline__ float dequantize(int i, float unit, bool rise)
{
    return __fmul_rn((float)(rise ? 2 * i + 1 : i), unit);
}

/* ---- scales ---- */

/* The input of the choice of a scale, per group. */
struct span {
    uint32_t peak;
    float sum_abs, sum_square;
};
static_assert(sizeof(struct span) == AQ_CUDA_CODEC_SPAN_BYTES, "what codec_place.c reckons with");

static __device__ inline float scale_whole(const struct aq_cuda_codec_plan &plan, uint32_t peak_bits)
{
    const float peak = __uint_as_float(peak_bits), levels = (float)(1u << plan.bits);
    if (!plan.stochastic || plan.grid != AQ_GRID_MIDRISE) return peak;
    return __fmul_rn(peak, __fdiv_rn(levels, __fsub_rn(levels, 1.0f)));
}

/* The scale before it is written (codec_scale.c, aq_scale_choose; the constants are explained there). */
static __device__ inline float scale_choose(const struct aq_cuda_codec_plan &plan, const struct span &span, uint64_t n)
{
    const float shape_gauss = 0.7979f, shape_laplace = 0.7071f, shape_low = 0.6f, shape_high = 0.87f;
    const float whole = scale_whole(plan, span.peak);
    if (plan.scale == AQ_SCALE_ABSMAX || n == 0 || !(span.sum_square >= 1e-30f)) return whole;
    const float rms = __fsqrt_rn(__fdiv_rn(span.sum_square, (float)n));
    if (!is_finite(rms)) return whole;
    if (plan.scale == AQ_SCALE_RMS) return smaller(whole, __fmul_rn(plan.gauss, rms));
    if (plan.stochastic || plan.sparse) return whole;
    float shape = __fdiv_rn(span.sum_abs, __fmul_rn((float)n, rms));
    shape = shape < shape_low ? shape_low : smaller(shape, shape_high);
    const float slope =
        __fmul_rn(__fsub_rn(plan.laplace, plan.gauss), __fdiv_rn(1.0f, __fsub_rn(shape_gauss, shape_laplace)));
    const float along = __fmul_rn(__fsub_rn(shape_gauss, shape), slope);
    const float bell = smaller(whole, __fmul_rn(rms, __fadd_rn(plan.gauss, along)));
    if (plan.bits >= 6) return whole;
    return plan.bits == 5 ? __fmul_rn(__fsqrt_rn(bell), __fsqrt_rn(whole)) : bell;
}

/* The candidate of AQ_SCALE_SEARCH with that index. */
static __device__ inline float scale_shrink(const struct aq_cuda_codec_plan &plan, uint32_t peak, uint32_t index)
{
    float s = __uint_as_float(peak);
    for (uint32_t i = 0; i < index; i++)
        s = __fmul_rn(s, plan.shrink);
    return s;
}

/* codec_internal.h, aq_scale_half_from and aq_scale_half_to: a scale in two bytes. */
static __device__ __forceinline__ uint32_t scale_half_from(float s)
{
    const uint32_t half = half_from_float(s);
    return half != 0x7c00u ? half : half_from_float(__fmul_rn(s, power_of_two(-16))) | 0x8000u;
}

static __device__ __forceinline__ bool scale_half_to(uint32_t word, float *s)
{
    const uint32_t half = word & 0x7fffu;
    const bool far = (word & 0x8000u) != 0;
    *s = __fmul_rn(half_to_float((uint16_t)half), far ? power_of_two(16) : 1.0f);
    return half < 0x7c00u && (!far || half >= 0x3c00u);
}

/* The word that is written for s (before the check of scale_decode). */
static __device__ inline uint32_t scale_word(const struct aq_cuda_codec_plan &plan, float s)
{
    const float scaled = __fmul_rn(s, power_of_two(plan.prescale_log2));
    const uint32_t bits = __float_as_uint(scaled);
    if (plan.scale_format == AQ_SCALE_FP16) return scale_half_from(scaled);
    if (plan.scale_format == AQ_SCALE_BF16) return bfloat_from_float(scaled);
    if (plan.scale_format == AQ_SCALE_FP32) return bits;
    const uint32_t near = 0x800000u >> (plan.bits < 2 ? 1u : plan.bits - 1u);
    const uint32_t up = plan.scale == AQ_SCALE_ABSMAX ? 0x7fffffu : 0x800000u - near;
    return bits == 0 ? 0 : (bits + up) >> 23 & 0xffu;
}

/* The quantizer of a written scale; false for one that no sender writes. */
static __device__ inline bool scale_decode(const struct aq_cuda_codec_plan &plan, uint32_t word, struct step *out)
{
    float s;
    bool good;
    if (plan.scale_format == AQ_SCALE_FP16) {
        good = scale_half_to(word, &s);
    } else if (plan.scale_format == AQ_SCALE_BF16) {
        good = word < 0x7f80u;
        s = bfloat_to_float((uint16_t)word);
    } else if (plan.scale_format == AQ_SCALE_FP32) {
        good = word < INFINITE_BITS;
        s = __uint_as_float(word);
    } else {
        good = word != 255;
        s = __uint_as_float(word << 23);
    }
    return step_of_scale(plan.grid, plan.bits, plan.prescale_log2, s, out) && good;
}

/*
 * Writes the low `bytes` bytes of `word`, little endian, at any address.
 *
 * ptxas of CUDA 12.0 to 13.0 miscompiles a byte store of a 16-bit register that a half-precision conversion defines: it
 * stores the converted value (F2I.U8.F16) and not the low byte. The empty move makes the word an integer of 32 bits
 * first.
 */
static __device__ __forceinline__ void bytes_write(uint8_t *out, uint32_t word, uint32_t bytes)
{
#ifdef __CUDA_ARCH__
    asm("mov.b32 %0, %0;" : "+r"(word));
#endif
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(word >> 8 * i);
}

static __device__ __forceinline__ uint32_t bytes_read(const uint8_t *in, uint32_t bytes)
{
    uint32_t word = 0;
    for (uint32_t i = 0; i < bytes; i++)
        word |= (uint32_t)in[i] << 8 * i;
    return word;
}

/* Code `index` of a stream of codes of `bits` bits. Reads no byte that the code has no bit in. */
static __device__ __forceinline__ uint32_t code_read(const uint8_t *stream, uint64_t index, uint32_t bits)
{
    const uint64_t bit = index * bits;
    const uint8_t *at = stream + bit / 8;
    const uint32_t shift = (uint32_t)(bit % 8);
    uint32_t word = at[0];
    if (shift + bits > 8) word |= (uint32_t)at[1] << 8;
    return word >> shift & ((1u << bits) - 1u);
}

/* ---- stored messages ---- */

static __device__ __forceinline__ uint32_t precision_bits(uint32_t precision)
{
    return precision == AQ_PRECISION_FP32   ? 32
           : precision <= AQ_PRECISION_BF16 ? 16
           : precision == AQ_PRECISION_Q8   ? 8
           : precision == AQ_PRECISION_Q4   ? 4
                                            : 2;
}

/* One value of a message or plain body; unit: of its row, for Q. Nothing need be aligned. */
static __device__ __forceinline__ float value_read(uint32_t precision, const uint8_t *from, uint32_t rows, uint64_t e,
                                                   float unit)
{
    if (precision == AQ_PRECISION_FP32) return __uint_as_float(bytes_read(from + 4 * e, 4));
    if (precision == AQ_PRECISION_FP16) return half_to_float((uint16_t)bytes_read(from + 2 * e, 2));
    if (precision == AQ_PRECISION_BF16) return bfloat_to_float((uint16_t)bytes_read(from + 2 * e, 2));
    const uint32_t bits = precision_bits(precision);
    const int i = (int)code_read(from + 4 * (uint64_t)rows, e, bits) - (1 << (bits - 1));
    return dequantize(i, unit, true);
}

/* fp32, fp16 or bf16. */
static __device__ __forceinline__ void value_write(uint32_t precision, uint8_t *to, uint64_t e, float x)
{
    if (precision == AQ_PRECISION_FP32)
        bytes_write(to + 4 * e, __float_as_uint(x), 4);
    else
        bytes_write(to + 2 * e, precision == AQ_PRECISION_FP16 ? half_from_float(x) : bfloat_from_float(x), 2);
}

/* The unit of scale number `group` of Q values; false for a scale that no sender writes. Others have none. */
static __device__ inline bool row_unit(uint32_t precision, const uint8_t *from, uint32_t group, float *unit)
{
    struct step step;
    *unit = 0.0f;
    if (precision < AQ_PRECISION_Q8) return true;
    const uint32_t s = bytes_read(from + 4 * (uint64_t)group, 4);
    const bool good = step_of_scale(AQ_GRID_MIDRISE, precision_bits(precision), 0, __uint_as_float(s), &step);
    *unit = step.unit;
    return good && s < INFINITE_BITS;
}

/* The scale of a group to be kept as Q: codec_store.c, scale_write. False where |x| is too large. */
static __device__ inline bool store_scale(uint32_t peak, uint32_t bits, float *s, struct step *step)
{
    *s = __uint_as_float(peak);
    if (!step_of_scale(AQ_GRID_MIDRISE, bits, 0, *s, step)) return false;
    if (step->inverse == 0.0f) {
        *s = 0.0f;
        step->unit = 0.0f;
    }
    return true;
}

/* |x^| from these bits on would be stored as infinity. */
static __device__ __forceinline__ uint32_t precision_limit(uint32_t precision)
{
    return precision == AQ_PRECISION_FP16 ? 0x477ff000u : precision == AQ_PRECISION_BF16 ? 0x7f7f8000u : INFINITE_BITS;
}

/* 1 / sqrt(n) of the rotation, rounded once; n is a power of two: an odd power is half a power of two times sqrt(1/2).
 */
static __device__ __forceinline__ float rotation_scale(uint32_t n)
{
    const int log = 31 - __clz((int)n);
    const float root = power_of_two(-((log + 1) / 2));
    return log % 2 == 0 ? root : __fmul_rn(root, 0x1.6a09e6p0f);
}

/* ---- random numbers ---- */

/* Four words of Philox4x32-10 (base/rng.c). */
static __device__ inline void philox(const struct aq_rng_key &key, uint64_t index, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = key.counter[0], c3 = key.counter[1];
    uint32_t k0 = key.key[0], k1 = key.key[1];
    for (int round = 0; round < 10; round++) {
        const uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;
        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static __device__ __forceinline__ float uniform_of(uint32_t word)
{
    return __fmul_rn((float)(word >> 8), 0x1p-24f);
}

static __device__ inline float uniform(const struct aq_rng_key &key, uint64_t element)
{
    uint32_t block[4];
    philox(key, element / 4, block);
    const uint32_t which = (uint32_t)(element % 4);
    return uniform_of(which < 2 ? (which == 0 ? block[0] : block[1]) : (which == 2 ? block[2] : block[3]));
}

/* ---- a warp ---- */

static __device__ __forceinline__ uint32_t warp_max(uint32_t x)
{
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        const uint32_t other = __shfl_xor_sync(WHOLE_WARP, x, lanes);
        x = x > other ? x : other;
    }
    return x;
}

/* The 32 partial sums, folded in the order of docs/FORMAT.md (stored messages); every lane gets the sum. */
static __device__ __forceinline__ float warp_fold(float x)
{
    for (int width = WARP / 2; width > 0; width /= 2)
        x = __fadd_rn(x, __shfl_down_sync(WHOLE_WARP, x, (unsigned)width));
    return __shfl_sync(WHOLE_WARP, x, 0);
}

static __device__ __forceinline__ double warp_fold(double x)
{
    for (int width = WARP / 2; width > 0; width /= 2)
        x = __dadd_rn(x, __shfl_down_sync(WHOLE_WARP, x, (unsigned)width));
    return __shfl_sync(WHOLE_WARP, x, 0);
}

/* The same sums one after another, as codec_encode.c's fold_errors adds them. */
static __device__ inline float warp_sum_in_order(float x)
{
    float sum = 0.0f;
    for (int lane = 0; lane < WARP; lane++)
        sum = __fadd_rn(sum, __shfl_sync(WHOLE_WARP, x, lane));
    return sum;
}

#endif
