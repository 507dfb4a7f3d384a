/*
 * cuda_mma.cuh -- a warp's matrix products and the loads that feed them, by our names.
 *
 * One product is 16 x 8 x 16: sums (16 x 8, fp32) += a (16 x 16) b (16 x 8), both bf16 or both fp16 (T: uint16_t or
 * aq_half). With g = lane / 4 and t = lane % 4, PTX (mma.m16n8k16, ldmatrix) lays them out so:
 *
 *     sums[0], [1]    row g,     columns 2 t, 2 t + 1        a[0]   row g,     k 2 t, 2 t + 1
 *     sums[2], [3]    row g + 8, the same columns            a[1]   row g + 8, the same k
 *     b[0]            column g, k 2 t, 2 t + 1               a[2]   row g,     k 2 t + 8, 2 t + 9
 *     b[1]            column g, k 2 t + 8, 2 t + 9           a[3]   row g + 8, the same k
 *
 * Two tiles of sums side by side, rounded to T, are therefore the a of a further product without leaving their
 * lanes (aq_fragment_of_sums). Under the launch emulation the same names compute the same things, and a copy that is
 * not waited for has not happened.
 *
 * Every lane of the warp calls each of these but the copies together.
 */
#ifndef AQ_CUDA_MMA_CUH
#define AQ_CUDA_MMA_CUH

#include "cuda_common.cuh"

/* sums += a b. */
template <typename T>
static __forceinline__ __device__ void aq_mma(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
#ifdef AQ_CUDA_HOST
    cuda_host::mma(CUDA_HOST_AT("aq_mma"), std::is_same_v<T, aq_half>, sums, a, b0, b1);
#else
    if constexpr (std::is_same_v<T, aq_half>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/*
 * Four 8 x 8 matrices from shared memory. Lane i names the row i % 8 of matrix i / 8 (16 bytes, aligned to 16);
 * words[m] is row g, columns 2 t and 2 t + 1 of matrix m.
 */
static __forceinline__ __device__ void aq_matrices(unsigned (&words)[4], const uint16_t *row)
{
#ifdef AQ_CUDA_HOST
    cuda_host::matrices(CUDA_HOST_AT("aq_matrices"), words, row, false);
#else
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
#endif
}

/* As aq_matrices, transposed: words[m] is column g, rows 2 t and 2 t + 1 of matrix m. */
static __forceinline__ __device__ void aq_matrices_transposed(unsigned (&words)[4], const uint16_t *row)
{
#ifdef AQ_CUDA_HOST
    cuda_host::matrices(CUDA_HOST_AT("aq_matrices_transposed"), words, row, true);
#else
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
#endif
}

/* 16 bytes from global to shared memory, both aligned to 16, some time before the wait; zeroes where not `there`. */
static __forceinline__ __device__ void aq_copy(uint16_t *shared, const uint16_t *global, bool there)
{
#ifdef AQ_CUDA_HOST
    cuda_host::copy_later(shared, there ? global : nullptr, 16);
#else
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared)), bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes) : "memory");
#endif
}

/* Waits for all copies of this thread; for those of other threads a barrier is needed. */
static __forceinline__ __device__ void aq_copies_wait()
{
#ifdef AQ_CUDA_HOST
    cuda_host::copies_wait();
#else
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* The a of a product whose k are the columns of two tiles of sums. */
template <typename T>
static __forceinline__ __device__ void aq_fragment_of_sums(unsigned (&a)[4], const float (&left)[4],
                                                           const float (&right)[4])
{
    a[0] = aq_pack<T>(left[0], left[1]);
    a[1] = aq_pack<T>(left[2], left[3]);
    a[2] = aq_pack<T>(right[0], right[1]);
    a[3] = aq_pack<T>(right[2], right[3]);
}

/*
 * The offset of this lane's row for the loads of a tile whose rows are `stride` elements: of an a (rows, k), of two b
 * side by side whose columns are the tile's rows (b of the first 8 rows: words 0, 1; of the next 8: words 2, 3), and,
 * for aq_matrices_transposed, of two b whose k are the tile's rows (b of the first 8 columns: words 0, 1).
 */
static __forceinline__ __device__ unsigned aq_lane_a(unsigned stride)
{
    const unsigned lane = threadIdx.x % 32;
    return lane % 16 * stride + lane / 16 * 8;
}

static __forceinline__ __device__ unsigned aq_lane_b_rows(unsigned stride)
{
    const unsigned lane = threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}

static __forceinline__ __device__ unsigned aq_lane_b_columns(unsigned stride)
{
    return aq_lane_a(stride);
}

#endif
