/*
 * cuda_wgmma.cuh -- matrix products of a warpgroup (4 warps, 64 rows) on Hopper, whose operands are in shared memory.
 *
 * One product is 64 x N x 16: sums (64 x N, fp32) += a (64 x 16) b (16 x N), both bf16 or both fp16. Warp w of the
 * warpgroup has rows 16 w to 16 w + 15 of a and of the sums. Its lanes hold them as in cuda_mma.cuh: sums[j] is the
 * tile of columns 8 j to 8 j + 7. So two tiles of sums, converted (aq_fragment_of_sums), are an operand here too.
 *
 * A tile in shared memory is cut into panels of 64 columns. A row of a panel is 128 bytes, and its 16-byte pieces are
 * swapped by row, as the hardware expects it (128-byte swizzle; PTX ISA, "Asynchronous Warpgroup Level Matrix Shared
 * Memory Layout"): piece p of row r is at p ^ (r % 8). Panels start at a multiple of 1,024 bytes.
 *
 * Products run asynchronously, in the order in which they were issued:
 *
 *     aq_wgmma_fence();                        before the first product that reads registers written since
 *     aq_wgmma_...(sums, a, tile, ...);        any number of products
 *     aq_wgmma_commit();                       closes a group
 *     aq_wgmma_wait<N>();                      all groups but the last N are done
 *     aq_wgmma_settle(sums);                   only from here on may sums be read
 *
 * Memory that threads wrote (aq_copy included) is read by products only after aq_wgmma_shared() of the writers and a
 * barrier behind it. All four warps call each of these together. Under the launch emulation a product is done at once,
 * warp by warp.
 *
 * Needs sm_90a. Elsewhere the functions have no body that runs: the host asks aq_wgmma_here().
 */
#ifndef AQ_CUDA_WGMMA_CUH
#define AQ_CUDA_WGMMA_CUH

#include "cuda_mma.cuh"

constexpr unsigned AQ_PANEL = 64; /* columns of a panel: 128 bytes */

#if defined AQ_CUDA_HOST || defined __CUDA_ARCH_FEAT_SM90_ALL
#define AQ_WGMMA_CODE 1
#else
#define AQ_WGMMA_CODE 0
#endif

/* Does the current device have these products? */
static inline bool aq_wgmma_here()
{
#ifdef AQ_CUDA_HOST
    return cuda_host::hopper();
#else
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
           minor == 0;
#endif
}

/* The element of a tile of `rows` rows at this row and column. */
static __forceinline__ __device__ unsigned aq_panel_at(unsigned rows, unsigned row, unsigned column)
{
    const unsigned piece = (column % AQ_PANEL / 8) ^ (row % 8);
    return column / AQ_PANEL * rows * AQ_PANEL + row * AQ_PANEL + piece * 8 + column % 8;
}

/* Dynamic shared memory from a multiple of 1,024 bytes on; the launch asks for AQ_PANEL_SLACK bytes more. */
constexpr unsigned AQ_PANEL_SLACK = 1024;

static __forceinline__ __device__ uint16_t *aq_panels_begin(uint16_t *shared)
{
#ifdef AQ_CUDA_HOST
    const uintptr_t at = reinterpret_cast<uintptr_t>(shared);
#else
    const uintptr_t at = __cvta_generic_to_shared(shared);
#endif
    return shared + (AQ_PANEL_SLACK - at % AQ_PANEL_SLACK) % AQ_PANEL_SLACK / sizeof(uint16_t);
}

static __forceinline__ __device__ void aq_wgmma_fence()
{
#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

static __forceinline__ __device__ void aq_wgmma_commit()
{
#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

template <unsigned LEFT> static __forceinline__ __device__ void aq_wgmma_wait()
{
#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

/* Makes this thread's writes to shared memory visible to the products of the threads that pass a barrier with it. */
static __forceinline__ __device__ void aq_wgmma_shared()
{
#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Keeps the compiler from reading sums before the wait in front of this, or writing them after it. */
template <unsigned TILES> static __forceinline__ __device__ void aq_wgmma_settle(float (&sums)[TILES][4])
{
#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE
    AQ_UNROLL
    for (unsigned n = 0; n < TILES; n++)
        for (unsigned i = 0; i < 4; i++)
            asm volatile("" : "+f"(sums[n][i])::"memory");
#else
    (void)sums;
#endif
}

#if !defined AQ_CUDA_HOST && AQ_WGMMA_CODE

/* Matrix descriptor: address, leading and stride byte offsets in units of 16 bytes, 128-byte swizzle. */
static __forceinline__ __device__ uint64_t aq_wgmma_tile(const uint16_t *at, unsigned leading, unsigned stride)
{
    const uint64_t address = static_cast<uint64_t>(__cvta_generic_to_shared(at)) & 0x3ffff;
    return address >> 4 | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
           UINT64_C(1) << 62;
}

/* Rows of a tile that are rows of a, or columns of b: 8 rows are 1,024 bytes; `k` moves within a row's 128 bytes. */
static __forceinline__ __device__ uint64_t aq_wgmma_rows_at(const uint16_t *tile, unsigned rows, unsigned k)
{
    return aq_wgmma_tile(tile + k / AQ_PANEL * rows * AQ_PANEL + k % AQ_PANEL, 16, 1024);
}

/* Rows of a tile that are b's k: `k` moves by whole rows; panels are `rows` * 128 bytes apart. */
static __forceinline__ __device__ uint64_t aq_wgmma_columns_at(const uint16_t *tile, unsigned rows, unsigned k)
{
    return aq_wgmma_tile(tile + k * AQ_PANEL, rows * AQ_PANEL * 2, 1024);
}

#define AQ_SUMS4(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
#define AQ_SUMS32 AQ_SUMS4(0), AQ_SUMS4(1), AQ_SUMS4(2), AQ_SUMS4(3), AQ_SUMS4(4), AQ_SUMS4(5), AQ_SUMS4(6), AQ_SUMS4(7)
#define AQ_SUMS64                                                                                                      \
    AQ_SUMS32, AQ_SUMS4(8), AQ_SUMS4(9), AQ_SUMS4(10), AQ_SUMS4(11), AQ_SUMS4(12), AQ_SUMS4(13), AQ_SUMS4(14),         \
        AQ_SUMS4(15)
#define AQ_NAMES32                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"                  \
    "%26,%27,%28,%29,%30,%31"
#define AQ_NAMES64                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"                  \
    "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"                \
    "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* a in registers: operands after the sums are its four words, b's descriptor, and whether sums are kept. */
#define AQ_WGMMA_REGISTERS(N, COUNT, A0, A1, A2, A3, B, KEEP, TYPE, TRANSPOSED)                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" AQ_NAMES##COUNT "}, "           \
                 "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, " TRANSPOSED ";\n}\n"                       \
                 : AQ_SUMS##COUNT                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)                                       \
                 : "memory")

/* a in shared memory: operands after the sums are both descriptors, and whether sums are kept. */
#define AQ_WGMMA_SHARED(N, COUNT, A, B, KEEP, TYPE)                                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" AQ_NAMES##COUNT "}, "           \
                 "%" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                                                               \
                 : AQ_SUMS##COUNT                                                                                      \
                 : "l"(a), "l"(b), "r"(keep)                                                                           \
                 : "memory")

#endif

/*
 * sums = (keep_sums ? sums : 0) + a b, of columns k to k + 15 of two tiles with a_rows and b_rows rows. a is 64 rows:
 * a_tile points at the first of them, in the first panel. b's columns are the 64 rows of b_tile.
 */
template <typename T>
static __forceinline__ __device__ void aq_wgmma_rows(float (&sums)[8][4], const uint16_t *a_tile, unsigned a_rows,
                                                     const uint16_t *b_tile, unsigned b_rows, unsigned k,
                                                     bool keep_sums)
{
#ifdef AQ_CUDA_HOST
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = threadIdx.x / 32 % 4 * 16 + g;
    const auto word = [&](const uint16_t *tile, unsigned rows, unsigned of, unsigned column) {
        const uint16_t *at = tile + aq_panel_at(rows, of, column);
        return static_cast<unsigned>(at[0]) | static_cast<unsigned>(at[1]) << 16;
    };
    const unsigned a[4] = {word(a_tile, a_rows, row, k + 2 * t), word(a_tile, a_rows, row + 8, k + 2 * t),
                           word(a_tile, a_rows, row, k + 2 * t + 8), word(a_tile, a_rows, row + 8, k + 2 * t + 8)};
    for (unsigned n = 0; n < 8; n++) {
        for (unsigned i = 0; i < 4 && !keep_sums; i++)
            sums[n][i] = 0.0f;
        aq_mma<T>(sums[n], a, word(b_tile, b_rows, 8 * n + g, k + 2 * t),
                  word(b_tile, b_rows, 8 * n + g, k + 2 * t + 8));
    }
#elif AQ_WGMMA_CODE
    const uint64_t a = aq_wgmma_rows_at(a_tile, a_rows, k), b = aq_wgmma_rows_at(b_tile, b_rows, k);
    const int keep = keep_sums;
    if constexpr (std::is_same_v<T, aq_half>)
        AQ_WGMMA_SHARED(64, 32, 32, 33, 34, "f16");
    else
        AQ_WGMMA_SHARED(64, 32, 32, 33, 34, "bf16");
#endif
}

/* sums += a b: a is in registers (cuda_mma.cuh), b is rows k to k + 15 of a tile of `rows` rows and N columns. */
template <typename T, unsigned N>
static __forceinline__ __device__ void aq_wgmma_columns(float (&sums)[N / 8][4], const unsigned (&a)[4],
                                                        const uint16_t *tile, unsigned rows, unsigned k)
{
    static_assert(N == 64 || N == 128, "the products that are written out");
#ifdef AQ_CUDA_HOST
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto pair = [&](unsigned row, unsigned column) {
        return static_cast<unsigned>(tile[aq_panel_at(rows, row, column)]) |
               static_cast<unsigned>(tile[aq_panel_at(rows, row + 1, column)]) << 16;
    };
    for (unsigned n = 0; n < N / 8; n++)
        aq_mma<T>(sums[n], a, pair(k + 2 * t, 8 * n + g), pair(k + 2 * t + 8, 8 * n + g));
#elif AQ_WGMMA_CODE
    const uint64_t b = aq_wgmma_columns_at(tile, rows, k);
    const int keep = 1;
    if constexpr (std::is_same_v<T, aq_half> && N == 64)
        AQ_WGMMA_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37, "f16", "1");
    else if constexpr (N == 64)
        AQ_WGMMA_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37, "bf16", "1");
    else if constexpr (std::is_same_v<T, aq_half>)
        AQ_WGMMA_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69, "f16", "1");
    else
        AQ_WGMMA_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69, "bf16", "1");
#endif
}

#endif
