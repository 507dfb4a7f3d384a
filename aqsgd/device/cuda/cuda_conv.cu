/*
 * cuda_conv.cu -- convolutions, one thread per value of the result: for shapes that cuda_conv_product.c does not take.
 * Right on every GPU, and far from its rate. Neighbouring threads have neighbouring channels, so that weights are read
 * in lines and pixels at once.
 *
 * Each value is summed by one thread, in one order. Truth: cpu_conv.c.
 */
#include "cuda_common.cuh"

constexpr unsigned THREADS = 128;

static __forceinline__ __device__ float rounded(float x, enum aq_element type)
{
    if (type == AQ_BF16) return __bfloat162float(__float2bfloat16_rn(x));
    if (type == AQ_F16) return __half2float(__float2half_rn(x));
    return x;
}

struct extents {
    uint64_t height, width; /* of an output image */
};

static struct extents extents_of(const struct aq_conv_shape *shape)
{
    return {aq_conv_out(shape->height, shape->stride), aq_conv_out(shape->width, shape->stride)};
}

static __global__ void __launch_bounds__(THREADS) conv(struct aq_conv args, struct extents out)
{
    const struct aq_conv_shape &s = args.shape;
    const uint64_t at = aq_thread_index(), half = s.K / 2;
    if (at >= s.samples * out.height * out.width * s.N) return;
    const uint64_t n = at % s.N, column = at / s.N % out.width, row = at / s.N / out.width % out.height;
    const float *image = args.x + at / s.N / out.width / out.height * s.height * s.width * s.C;
    float sum = 0.0f;
    for (uint64_t place = 0; place < s.K * s.K; place++) {
        const uint64_t i = row * s.stride + place / s.K, j = column * s.stride + place % s.K;
        if (i < half || i - half >= s.height || j < half || j - half >= s.width) continue;
        const float *x = image + ((i - half) * s.width + j - half) * s.C, *w = args.w + place * s.C * s.N + n;
        for (uint64_t c = 0; c < s.C; c++)
            sum = fmaf(rounded(x[c], s.compute), rounded(w[c * s.N], s.compute), sum);
    }
    args.y[at] = sum;
}

enum aq_status aq_cuda_conv(const struct aq_conv *args, void *, struct CUstream_st *stream)
{
    const struct extents out = extents_of(&args->shape);
    const uint64_t count = args->shape.samples * out.height * out.width * args->shape.N;
    return AQ_LAUNCH(conv, aq_blocks(count, THREADS), THREADS, 0, stream, *args, out);
}

static __global__ void __launch_bounds__(THREADS) conv_backward(struct aq_conv_backward args, struct extents out)
{
    const struct aq_conv_shape &s = args.shape;
    const uint64_t at = aq_thread_index(), half = s.K / 2;
    if (at >= s.samples * s.height * s.width * s.C) return;
    const uint64_t c = at % s.C, column = at / s.C % s.width, row = at / s.C / s.width % s.height;
    const float *image = args.dy + at / s.C / s.width / s.height * out.height * out.width * s.N;
    float sum = 0.0f;
    for (uint64_t place = 0; place < s.K * s.K; place++) {
        const uint64_t u = place / s.K, v = place % s.K;
        if (row + half < u || column + half < v) continue;
        const uint64_t i = row + half - u, j = column + half - v;
        if (i % s.stride || j % s.stride || i / s.stride >= out.height || j / s.stride >= out.width) continue;
        const float *dy = image + (i / s.stride * out.width + j / s.stride) * s.N;
        const float *w = args.w + (place * s.C + c) * s.N;
        for (uint64_t n = 0; n < s.N; n++)
            sum = fmaf(rounded(dy[n], s.compute), rounded(w[n], s.compute), sum);
    }
    args.dx[at] = sum;
}

enum aq_status aq_cuda_conv_backward(const struct aq_conv_backward *args, void *, struct CUstream_st *stream)
{
    const struct aq_conv_shape *s = &args->shape;
    return AQ_LAUNCH(conv_backward, aq_blocks(s->samples * s->height * s->width * s->C, THREADS), THREADS, 0, stream,
                     *args, extents_of(s));
}

static __global__ void __launch_bounds__(THREADS) conv_weights(struct aq_conv_weights args, struct extents out)
{
    const struct aq_conv_shape &s = args.shape;
    const uint64_t at = aq_thread_index(), half = s.K / 2;
    if (at >= s.K * s.K * s.C * s.N) return;
    const uint64_t n = at % s.N, c = at / s.N % s.C, place = at / s.N / s.C, u = place / s.K, v = place % s.K;
    double sum = 0.0;
    for (uint64_t sample = 0; sample < s.samples; sample++) {
        const float *x = args.x + sample * s.height * s.width * s.C + c;
        const float *dy = args.dy + sample * out.height * out.width * s.N + n;
        float part = 0.0f;
        for (uint64_t row = 0; row < out.height; row++)
            for (uint64_t column = 0; column < out.width; column++) {
                const uint64_t i = row * s.stride + u, j = column * s.stride + v;
                if (i < half || i - half >= s.height || j < half || j - half >= s.width) continue;
                part = fmaf(rounded(x[((i - half) * s.width + j - half) * s.C], s.compute),
                            rounded(dy[(row * out.width + column) * s.N], s.compute), part);
            }
        sum += static_cast<double>(part);
    }
    args.dw[at] += static_cast<float>(sum);
}

enum aq_status aq_cuda_conv_weights(const struct aq_conv_weights *args, void *, struct CUstream_st *stream)
{
    const struct aq_conv_shape *s = &args->shape;
    return AQ_LAUNCH(conv_weights, aq_blocks(s->K * s->K * s->C * s->N, THREADS), THREADS, 0, stream, *args,
                     extents_of(s));
}
