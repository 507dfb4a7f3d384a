/*
 * cuda_host_types.h -- CUDA's vectors, dim3, __half and __nv_bfloat16 for the launch emulation (cuda_host.h).
 *
 * Layout and alignment are CUDA's, so that a kernel that loads 16 bytes at once is found to be misaligned by
 * UndefinedBehaviorSanitizer here, before it faults there.
 */
#ifndef AQ_CUDA_HOST_TYPES_H
#define AQ_CUDA_HOST_TYPES_H

#include <cstdint>

#define __align__(bytes) __attribute__((aligned(bytes)))

#define CUDA_HOST_VECTORS(base, type, align2, align4)                                                                  \
    struct base##1                                                                                                     \
    {                                                                                                                  \
        type x;                                                                                                        \
    };                                                                                                                 \
    struct __align__(align2) base##2                                                                                   \
    {                                                                                                                  \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct base##3                                                                                                     \
    {                                                                                                                  \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct __align__(align4) base##4                                                                                   \
    {                                                                                                                  \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline base##2 make_##base##2(type x, type y)                                                                      \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    inline base##3 make_##base##3(type x, type y, type z)                                                              \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    inline base##4 make_##base##4(type x, type y, type z, type w)                                                      \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }

CUDA_HOST_VECTORS(char, signed char, 2, 4)
CUDA_HOST_VECTORS(uchar, unsigned char, 2, 4)
CUDA_HOST_VECTORS(short, short, 4, 8)
CUDA_HOST_VECTORS(ushort, unsigned short, 4, 8)
CUDA_HOST_VECTORS(int, int, 8, 16)
CUDA_HOST_VECTORS(uint, unsigned, 8, 16)
CUDA_HOST_VECTORS(longlong, long long, 16, 16)
CUDA_HOST_VECTORS(ulonglong, unsigned long long, 16, 16)
CUDA_HOST_VECTORS(float, float, 8, 16)
CUDA_HOST_VECTORS(double, double, 16, 16)
#undef CUDA_HOST_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct __align__(2) __half
{
    uint16_t bits;
};

struct __align__(2) __nv_bfloat16
{
    uint16_t bits;
};

struct __align__(4) __half2
{
    __half x, y;
};

struct __align__(4) __nv_bfloat162
{
    __nv_bfloat16 x, y;
};

#endif
