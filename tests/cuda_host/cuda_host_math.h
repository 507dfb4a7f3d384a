/*
 * cuda_host_math.h -- CUDA's arithmetic and integer intrinsics for the launch emulation (cuda_host.h).
 *
 * What has a rounding in its name rounds once, to nearest even (this file is compiled with contraction off), as the
 * device does. Conversions to half and bfloat16 are the project's own, which its codecs prove. Functions without a
 * rounding in their name (__expf, rsqrtf ...) are the C library's: closer to the truth than a device's, never further.
 */
#ifndef AQ_CUDA_HOST_MATH_H
#define AQ_CUDA_HOST_MATH_H

#include "aqsgd/base/digest.h"

template <class X, class Y> inline auto min(X x, Y y) -> decltype(x + y)
{
    using T = decltype(x + y);
    if constexpr (std::is_floating_point_v<T>)
        return std::fmin((T)x, (T)y);
    else
        return (T)y < (T)x ? (T)y : (T)x;
}

template <class X, class Y> inline auto max(X x, Y y) -> decltype(x + y)
{
    using T = decltype(x + y);
    if constexpr (std::is_floating_point_v<T>)
        return std::fmax((T)x, (T)y);
    else
        return (T)x < (T)y ? (T)y : (T)x;
}

/* Binary operations whose rounding is in their name. */
#define CUDA_HOST_ROUNDED(name, type, expression)                                                                      \
    inline type name(type x, type y)                                                                                   \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
CUDA_HOST_ROUNDED(__fadd_rn, float, x + y)
CUDA_HOST_ROUNDED(__fsub_rn, float, x - y)
CUDA_HOST_ROUNDED(__fmul_rn, float, x *y)
CUDA_HOST_ROUNDED(__fdiv_rn, float, x / y)
CUDA_HOST_ROUNDED(__dadd_rn, double, x + y)
CUDA_HOST_ROUNDED(__dsub_rn, double, x - y)
CUDA_HOST_ROUNDED(__dmul_rn, double, x *y)
CUDA_HOST_ROUNDED(__ddiv_rn, double, x / y)
CUDA_HOST_ROUNDED(__fdividef, float, x / y)
#undef CUDA_HOST_ROUNDED

/* Functions of one value. */
#define CUDA_HOST_UNARY(name, result, type, expression)                                                                \
    inline result name(type x)                                                                                         \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
CUDA_HOST_UNARY(__fsqrt_rn, float, float, std::sqrt(x))
CUDA_HOST_UNARY(__frcp_rn, float, float, 1.0f / x)
CUDA_HOST_UNARY(__frsqrt_rn, float, float, (float)(1.0 / std::sqrt((double)x)))
CUDA_HOST_UNARY(__dsqrt_rn, double, double, std::sqrt(x))
CUDA_HOST_UNARY(rsqrtf, float, float, (float)(1.0 / std::sqrt((double)x)))
CUDA_HOST_UNARY(__expf, float, float, std::exp(x))
CUDA_HOST_UNARY(__logf, float, float, std::log(x))
CUDA_HOST_UNARY(__log2f, float, float, std::log2(x))
CUDA_HOST_UNARY(__saturatef, float, float, std::fmin(std::fmax(x, 0.0f), 1.0f))
CUDA_HOST_UNARY(__float2int_rn, int, float, (int)std::rint(x))
CUDA_HOST_UNARY(__float2int_rz, int, float, (int)x)
CUDA_HOST_UNARY(__float2int_rd, int, float, (int)std::floor(x))
CUDA_HOST_UNARY(__float2int_ru, int, float, (int)std::ceil(x))
CUDA_HOST_UNARY(__float2uint_rn, unsigned, float, (unsigned)std::rint(x))
CUDA_HOST_UNARY(__float2uint_rz, unsigned, float, (unsigned)x)
CUDA_HOST_UNARY(__int2float_rn, float, int, (float)x)
CUDA_HOST_UNARY(__uint2float_rn, float, unsigned, (float)x)
CUDA_HOST_UNARY(__double2float_rn, float, double, (float)x)
CUDA_HOST_UNARY(__float_as_uint, unsigned, float, cuda_host::value_of<unsigned>(cuda_host::word_of(x)))
CUDA_HOST_UNARY(__uint_as_float, float, unsigned, cuda_host::value_of<float>(x))
CUDA_HOST_UNARY(__float_as_int, int, float, cuda_host::value_of<int>(cuda_host::word_of(x)))
CUDA_HOST_UNARY(__int_as_float, float, int, cuda_host::value_of<float>(cuda_host::word_of(x)))
CUDA_HOST_UNARY(__double_as_longlong, long long, double, cuda_host::value_of<long long>(cuda_host::word_of(x)))
CUDA_HOST_UNARY(__longlong_as_double, double, long long, cuda_host::value_of<double>(cuda_host::word_of(x)))
CUDA_HOST_UNARY(__popc, int, unsigned, __builtin_popcount(x))
CUDA_HOST_UNARY(__popcll, int, unsigned long long, __builtin_popcountll(x))
CUDA_HOST_UNARY(__ffs, int, unsigned, __builtin_ffs((int)x))
CUDA_HOST_UNARY(__ffsll, int, unsigned long long, __builtin_ffsll((long long)x))
CUDA_HOST_UNARY(__clz, int, unsigned, x ? __builtin_clz(x) : 32)
CUDA_HOST_UNARY(__clzll, int, unsigned long long, x ? __builtin_clzll(x) : 64)
CUDA_HOST_UNARY(__half2float, float, __half, aq_half_to_float(x.bits))
CUDA_HOST_UNARY(__bfloat162float, float, __nv_bfloat16, aq_bfloat_to_float(x.bits))
CUDA_HOST_UNARY(__float2half_rn, __half, float, {aq_half_from_float(x)})
CUDA_HOST_UNARY(__float2bfloat16_rn, __nv_bfloat16, float, {aq_bfloat_from_float(x)})
CUDA_HOST_UNARY(__half_as_ushort, unsigned short, __half, x.bits)
CUDA_HOST_UNARY(__ushort_as_half, __half, unsigned short, {x})
CUDA_HOST_UNARY(__bfloat16_as_ushort, unsigned short, __nv_bfloat16, x.bits)
CUDA_HOST_UNARY(__ushort_as_bfloat16, __nv_bfloat16, unsigned short, {x})
#undef CUDA_HOST_UNARY

inline float __fmaf_rn(float x, float y, float z)
{
    return std::fma(x, y, z);
}

inline double __fma_rn(double x, double y, double z)
{
    return std::fma(x, y, z);
}

inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}

inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    __extension__ using wide = unsigned __int128;
    return (unsigned long long)((wide)x * y >> 64);
}

inline unsigned __brev(unsigned x)
{
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++)
        reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}

/* Byte i of the result is byte (selector >> 4 i) & 7 of y:x; bit 3 of a selector spreads that byte's sign. */
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i;
        unsigned byte = (unsigned)(bytes >> 8 * (pick & 7)) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

/* Loads and stores with a cache hint. */
#define CUDA_HOST_LOAD(name)                                                                                           \
    template <class T> inline T name(const T *x)                                                                       \
    {                                                                                                                  \
        return *x;                                                                                                     \
    }
#define CUDA_HOST_STORE(name)                                                                                          \
    template <class T> inline void name(T *x, T value)                                                                 \
    {                                                                                                                  \
        *x = value;                                                                                                    \
    }
CUDA_HOST_LOAD(__ldg)
CUDA_HOST_LOAD(__ldca)
CUDA_HOST_LOAD(__ldcg)
CUDA_HOST_LOAD(__ldcs)
CUDA_HOST_LOAD(__ldlu)
CUDA_HOST_STORE(__stwb)
CUDA_HOST_STORE(__stcg)
CUDA_HOST_STORE(__stcs)
#undef CUDA_HOST_LOAD
#undef CUDA_HOST_STORE

/* Atomics: a thread runs alone between two meeting points, so that a load and a store are one. All give the old value.
 * The compiler's own atomics tell the watcher what they are (cuda_host_watch.h). */
#define CUDA_HOST_ATOMIC(name, expression)                                                                             \
    template <class T, class V> inline T name(T *x, V value)                                                           \
    {                                                                                                                  \
        T old, y = (T)value, next;                                                                                     \
        __atomic_load(x, &old, __ATOMIC_RELAXED);                                                                      \
        next = (T)(expression);                                                                                        \
        __atomic_store(x, &next, __ATOMIC_RELAXED);                                                                    \
        return old;                                                                                                    \
    }
CUDA_HOST_ATOMIC(atomicAdd, old + y)
CUDA_HOST_ATOMIC(atomicSub, old - y)
CUDA_HOST_ATOMIC(atomicMin, y < old ? y : old)
CUDA_HOST_ATOMIC(atomicMax, old < y ? y : old)
CUDA_HOST_ATOMIC(atomicAnd, old &y)
CUDA_HOST_ATOMIC(atomicOr, old | y)
CUDA_HOST_ATOMIC(atomicXor, old ^ y)
CUDA_HOST_ATOMIC(atomicExch, y)
CUDA_HOST_ATOMIC(atomicInc, old >= y ? 0 : old + 1)
#undef CUDA_HOST_ATOMIC

template <class T> inline T atomicCAS(T *x, T expected, T value)
{
    T old;
    __atomic_load(x, &old, __ATOMIC_RELAXED);
    if (old == expected) __atomic_store(x, &value, __ATOMIC_RELAXED);
    return old;
}

#endif
