/*
 * cuda_common.cuh -- what the kernels of the mathematics share: element types, sums of a warp and of a block, Philox
 * and the dropout mask.
 *
 * Everything adds in a fixed order: a warp's sum is a butterfly (every lane gets the same bits), a block's is the
 * warps' sums in their order.
 */
#ifndef AQ_CUDA_COMMON_CUH
#define AQ_CUDA_COMMON_CUH

#include <type_traits>

#include "cuda_kernels.h"
#include "cuda_launch.cuh"

constexpr unsigned AQ_ALL_LANES = 0xffffffffu;

/* bf16 is uint16_t, as in device_math.h, and fp16 its own type; both to nearest, ties to even. */
struct aq_half {
    uint16_t bits;
};

/* `call` with a value of the C++ type whose pointers an element type has: bf16 as its bits. */
template <class F> static inline enum aq_status aq_by_type(enum aq_element type, F call)
{
    if (type == AQ_BF16) return call(uint16_t());
    return type == AQ_F16 ? call(aq_half()) : call(0.0f);
}

static __forceinline__ __device__ float aq_load(const float *x)
{
    return *x;
}

static __forceinline__ __device__ float aq_load(const uint16_t *x)
{
    return __uint_as_float(static_cast<unsigned>(*x) << 16);
}

static __forceinline__ __device__ float aq_load(const aq_half *x)
{
    return __half2float(__ushort_as_half(x->bits));
}

static __forceinline__ __device__ void aq_store(float *x, float value)
{
    *x = value;
}

static __forceinline__ __device__ void aq_store(uint16_t *x, float value)
{
    *x = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

static __forceinline__ __device__ void aq_store(aq_half *x, float value)
{
    x->bits = __half_as_ushort(__float2half_rn(value));
}

/* Two values of 16 bits in a word, the first in the lower half. */
template <typename T> static __forceinline__ __device__ unsigned aq_pack(float low, float high)
{
    if constexpr (std::is_same_v<T, aq_half>)
        return static_cast<unsigned>(__half_as_ushort(__float2half_rn(high))) << 16 |
               __half_as_ushort(__float2half_rn(low));
    else
        return static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16 |
               __bfloat16_as_ushort(__float2bfloat16_rn(low));
}

static __forceinline__ __device__ float aq_half_of(unsigned word)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
}

/* Four at once, for pointers that are aligned to four elements. */
static __forceinline__ __device__ float4 aq_load4(const float *x)
{
    return *reinterpret_cast<const float4 *>(x);
}

static __forceinline__ __device__ float4 aq_load4(const uint16_t *x)
{
    const uint2 words = *reinterpret_cast<const uint2 *>(x);
    return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                       __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u));
}

static __forceinline__ __device__ float4 aq_load4(const aq_half *x)
{
    const uint2 words = *reinterpret_cast<const uint2 *>(x);
    return make_float4(aq_half_of(words.x), aq_half_of(words.x >> 16), aq_half_of(words.y), aq_half_of(words.y >> 16));
}

static __forceinline__ __device__ void aq_store4(float *x, float4 value)
{
    *reinterpret_cast<float4 *>(x) = value;
}

static __forceinline__ __device__ void aq_store4(uint16_t *x, float4 value)
{
    *reinterpret_cast<uint2 *>(x) =
        make_uint2(aq_pack<uint16_t>(value.x, value.y), aq_pack<uint16_t>(value.z, value.w));
}

static __forceinline__ __device__ void aq_store4(aq_half *x, float4 value)
{
    *reinterpret_cast<uint2 *>(x) = make_uint2(aq_pack<aq_half>(value.x, value.y), aq_pack<aq_half>(value.z, value.w));
}

/* 2^x within two units in the last place; results below 2^-126 are 0. */
static __forceinline__ __device__ float aq_exp2(float x)
{
#ifdef AQ_CUDA_HOST
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* As aq_place_of. */
static __forceinline__ __device__ uint64_t aq_place(const uint32_t *starts, uint64_t row, uint64_t T)
{
    return row % T - (starts ? starts[row] : 0);
}

/*
 * W values as stored, 8 or 16 bytes. A kernel loads several of these and converts them later: a conversion next to its
 * load, in a branch, waits for the load before the next one is issued.
 */
template <typename T, int W>
using aq_words = std::conditional_t<std::is_same_v<T, float>, float4, std::conditional_t<W == 8, uint4, uint2>>;

template <typename T, int W> static __forceinline__ __device__ void aq_words_load(const T *x, aq_words<T, W> *words)
{
    *words = *reinterpret_cast<const aq_words<T, W> *>(x);
}

template <typename T> static __forceinline__ __device__ void aq_unpack_word(unsigned word, float *values)
{
    if constexpr (std::is_same_v<T, aq_half>) {
        values[0] = aq_half_of(word);
        values[1] = aq_half_of(word >> 16);
    } else {
        values[0] = __uint_as_float(word << 16);
        values[1] = __uint_as_float(word & 0xffff0000u);
    }
}

template <typename T, int W>
static __forceinline__ __device__ void aq_unpack(const aq_words<T, W> &words, float (&values)[W])
{
    if constexpr (std::is_same_v<T, float>) {
        values[0] = words.x;
        values[1] = words.y;
        values[2] = words.z;
        values[3] = words.w;
    } else {
        aq_unpack_word<T>(words.x, values);
        aq_unpack_word<T>(words.y, values + 2);
        if constexpr (W == 8) {
            aq_unpack_word<T>(words.z, values + 4);
            aq_unpack_word<T>(words.w, values + 6);
        }
    }
}

/* W elements as floats: 1, 4 or 8. The pointer is aligned to W elements, or to 16 bytes where that is less. */
template <int W, typename T> static __forceinline__ __device__ void aq_load_wide(const T *x, float (&values)[W])
{
    if constexpr (W == 8 && sizeof(T) == 2) {
        aq_unpack<T, W>(*reinterpret_cast<const uint4 *>(x), values);
    } else if constexpr (W == 1) {
        values[0] = aq_load(x);
    } else {
        AQ_UNROLL
        for (int i = 0; i < W; i += 4) {
            const float4 four = aq_load4(x + i);
            values[i] = four.x;
            values[i + 1] = four.y;
            values[i + 2] = four.z;
            values[i + 3] = four.w;
        }
    }
}

template <int W, typename T> static __forceinline__ __device__ void aq_store_wide(T *x, const float (&values)[W])
{
    if constexpr (W == 8 && sizeof(T) == 2) {
        *reinterpret_cast<uint4 *>(x) = make_uint4(aq_pack<T>(values[0], values[1]), aq_pack<T>(values[2], values[3]),
                                                   aq_pack<T>(values[4], values[5]), aq_pack<T>(values[6], values[7]));
    } else if constexpr (W == 1) {
        aq_store(x, values[0]);
    } else {
        AQ_UNROLL
        for (int i = 0; i < W; i += 4)
            aq_store4(x + i, make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]));
    }
}

static __forceinline__ __device__ float aq_warp_sum(float value)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value += __shfl_xor_sync(AQ_ALL_LANES, value, lanes);
    return value;
}

static __forceinline__ __device__ float aq_warp_max(float value)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        value = fmaxf(value, __shfl_xor_sync(AQ_ALL_LANES, value, lanes));
    return value;
}

/* ---- Philox4x32-10 (aqsgd/base/rng.c has the source and the same bits). */

static __forceinline__ __device__ uint4 aq_philox(const struct aq_rng_key &key, uint64_t index)
{
    uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
    uint32_t c2 = key.counter[0], c3 = key.counter[1], k0 = key.key[0], k1 = key.key[1];
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

static __forceinline__ __device__ uint32_t aq_philox_word(const struct aq_rng_key &key, uint64_t element)
{
    const uint4 block = aq_philox(key, element / 4);
    const unsigned word = static_cast<unsigned>(element % 4);
    return word < 2 ? (word == 0 ? block.x : block.y) : (word == 2 ? block.z : block.w);
}

/* A dropout as kernels take it. keys NULL: nothing is dropped. */
struct aq_cuda_mask {
    const struct aq_rng_key *keys;
    uint32_t threshold; /* kept where word >> 8 is at least this: p * 2^24 */
    float factor;       /* of what is kept */
};

static inline struct aq_cuda_mask aq_cuda_mask_of(const struct aq_dropout *dropout)
{
    struct aq_cuda_mask mask = {nullptr, 0, 1.0f};
    if (dropout->probability <= 0.0f) return mask;
    mask.keys = dropout->keys;
    mask.threshold = static_cast<uint32_t>(dropout->probability * 16777216.0f);
    mask.factor = 1.0f / (1.0f - dropout->probability);
    return mask;
}

/* The factor of one element of a sample's stream: 0 where it is dropped. */
static __forceinline__ __device__ float aq_mask_factor(const struct aq_cuda_mask &mask, uint64_t sample,
                                                       uint64_t element)
{
    if (!mask.keys) return 1.0f;
    return aq_philox_word(mask.keys[sample], element) >> 8 >= mask.threshold ? mask.factor : 0.0f;
}

static __forceinline__ __device__ float aq_mask_word(const struct aq_cuda_mask &mask, uint32_t word)
{
    return word >> 8 >= mask.threshold ? mask.factor : 0.0f;
}

/* The factors of W elements from `element` on, which is a multiple of W. */
template <int W>
static __forceinline__ __device__ void aq_mask_wide(const struct aq_cuda_mask &mask, uint64_t sample, uint64_t element,
                                                    float (&factors)[W])
{
    if constexpr (W == 4) {
        const uint4 words = mask.keys ? aq_philox(mask.keys[sample], element / 4) : make_uint4(0, 0, 0, 0);
        factors[0] = mask.keys ? aq_mask_word(mask, words.x) : 1.0f;
        factors[1] = mask.keys ? aq_mask_word(mask, words.y) : 1.0f;
        factors[2] = mask.keys ? aq_mask_word(mask, words.z) : 1.0f;
        factors[3] = mask.keys ? aq_mask_word(mask, words.w) : 1.0f;
    } else {
        factors[0] = aq_mask_factor(mask, sample, element);
    }
}

/* ---- Launchers' arithmetic. */

static inline bool aq_aligned(const void *pointer, uint64_t bytes)
{
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/* May `pointer` be read four elements of `type` at a time? */
static inline bool aq_fours(const void *pointer, enum aq_element type)
{
    return aq_aligned(pointer, 4 * aq_element_bytes(type));
}

/* A grid of a row each in x and pieces of its columns in y, `wide` columns a thread; the kernel strides over y. */
struct aq_row_grid {
    dim3 grid;
    unsigned threads;
};

static inline struct aq_row_grid aq_row_grid_of(uint64_t rows, uint64_t columns, unsigned wide)
{
    const uint64_t needed = (columns + wide - 1) / wide;
    const unsigned threads = needed >= 256 ? 256 : static_cast<unsigned>((needed + 31) / 32 * 32);
    const uint64_t pieces = (needed + threads - 1) / threads;
    struct aq_row_grid grid;
    grid.grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pieces < 65535 ? pieces : 65535));
    grid.threads = threads;
    return grid;
}

/* Lanes that share a head, one for each of `pieces` of it: a power of two. */
static inline unsigned aq_head_lanes(uint64_t pieces)
{
    unsigned lanes = 1;
    while (lanes < pieces)
        lanes *= 2;
    return lanes;
}

/* Threads of a block for `heads` of `lanes` lanes each, at most 256; *blocks: how many blocks have all heads. */
static inline unsigned aq_head_threads(unsigned heads, unsigned lanes, unsigned *blocks)
{
    const unsigned warps = (heads * lanes + 31) / 32;
    *blocks = (warps + 7) / 8;
    return (warps + *blocks - 1) / *blocks * 32;
}

#endif
