/*
 * cuda_gating.cu -- heads that are multiplied by a gate of their own (struct aq_gating), a thread a value. Truth:
 * cpu_gating.c.
 */
#include "cuda_common.cuh"

constexpr unsigned THREADS = 256;

static __forceinline__ __device__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Where value i of x has its gate. */
template <typename Args> static __forceinline__ __device__ uint64_t gate_at(const Args &args, uint64_t i)
{
    const uint64_t head = i / args.D;
    return head / args.H * args.g_row + head % args.H * args.g_head + i % args.D;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) gating(struct aq_gating args)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.rows * args.H * args.D) return;
    const float gate = aq_load(static_cast<const T *>(args.g) + gate_at(args, i)), open = sigmoid(gate);
    const float factor = args.kind == AQ_GATING_SILU ? open * gate : open;
    aq_store(static_cast<T *>(args.y) + i, aq_load(static_cast<const T *>(args.x) + i) * factor);
}

template <typename T, typename X>
static __global__ void __launch_bounds__(THREADS) gating_backward(struct aq_gating_backward args)
{
    const uint64_t i = aq_thread_index();
    if (i >= args.rows * args.H * args.D) return;
    const uint64_t at = gate_at(args, i);
    const float gate = aq_load(static_cast<const T *>(args.g) + at), open = sigmoid(gate), shut = 1.0f - open;
    const float dy = aq_load(static_cast<const T *>(args.dy) + i);
    const float along = dy * aq_load(static_cast<const T *>(args.x) + i);
    const bool silu = args.kind == AQ_GATING_SILU;
    aq_store(static_cast<X *>(args.dx) + i, dy * (silu ? open * gate : open));
    aq_store(static_cast<T *>(args.dg) + at, along * open * (silu ? 1.0f + gate * shut : shut));
}

enum aq_status aq_cuda_gating(const struct aq_gating *args, void *, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->rows * args->H * args->D, THREADS);
    if (args->type == AQ_BF16) return AQ_LAUNCH(gating<uint16_t>, grid, THREADS, 0, stream, *args);
    if (args->type == AQ_F16) return AQ_LAUNCH(gating<aq_half>, grid, THREADS, 0, stream, *args);
    return AQ_LAUNCH(gating<float>, grid, THREADS, 0, stream, *args);
}

template <typename T>
static enum aq_status backward_typed(const struct aq_gating_backward *args, struct CUstream_st *stream)
{
    const dim3 grid = aq_blocks(args->rows * args->H * args->D, THREADS);
    if (args->dx_type == AQ_F32) return AQ_LAUNCH((gating_backward<T, float>), grid, THREADS, 0, stream, *args);
    return AQ_LAUNCH((gating_backward<T, T>), grid, THREADS, 0, stream, *args);
}

enum aq_status aq_cuda_gating_backward(const struct aq_gating_backward *args, void *, struct CUstream_st *stream)
{
    return aq_by_type(args->type, [&](auto t) { return backward_typed<decltype(t)>(args, stream); });
}
