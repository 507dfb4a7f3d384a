/*
 * cuda_max_pool.cu -- the largest value of each window of an image: a thread per value of the result.
 *
 * Backward: a thread has a pixel, looks through the windows that it is in, and adds the gradients of those of which it
 * is what was taken, in the order of the windows: the same bits as on a CPU. Truth: cpu_max_pool.c.
 */
#include "cuda_common.cuh"

constexpr unsigned THREADS = 128;

struct window {
    uint64_t top, bottom, left, right;
};

static __forceinline__ __device__ struct window window_of(const struct aq_pool_shape &s, uint64_t row, uint64_t column)
{
    const uint64_t half = s.K / 2, i = row * s.stride, j = column * s.stride;
    return {i > half ? i - half : 0, i + s.K - half < s.height ? i + s.K - half : s.height, j > half ? j - half : 0,
            j + s.K - half < s.width ? j + s.K - half : s.width};
}

/* The pixel of the window that is taken; image: of the channel. */
static __forceinline__ __device__ uint64_t largest(const struct aq_pool_shape &s, const float *image,
                                                   const struct window &w)
{
    uint64_t best = w.top * s.width + w.left;
    float most = image[best * s.C];
    for (uint64_t row = w.top; row < w.bottom; row++)
        for (uint64_t column = w.left; column < w.right; column++) {
            const float value = image[(row * s.width + column) * s.C];
            if (!(value > most || isnan(value))) continue;
            most = value;
            best = row * s.width + column;
        }
    return best;
}

static __global__ void __launch_bounds__(THREADS) max_pool(struct aq_max_pool args, uint64_t rows, uint64_t columns)
{
    const struct aq_pool_shape &s = args.shape;
    const uint64_t at = aq_thread_index();
    if (at >= s.samples * rows * columns * s.C) return;
    const uint64_t c = at % s.C, column = at / s.C % columns, row = at / s.C / columns % rows;
    const float *image = args.x + at / s.C / columns / rows * s.height * s.width * s.C + c;
    args.y[at] = image[largest(s, image, window_of(s, row, column)) * s.C];
}

enum aq_status aq_cuda_max_pool(const struct aq_max_pool *args, void *, struct CUstream_st *stream)
{
    const struct aq_pool_shape *s = &args->shape;
    const uint64_t rows = aq_conv_out(s->height, s->stride), columns = aq_conv_out(s->width, s->stride);
    return AQ_LAUNCH(max_pool, aq_blocks(s->samples * rows * columns * s->C, THREADS), THREADS, 0, stream, *args, rows,
                     columns);
}

/* The windows that a pixel is in begin at `first`, and end before `end`. */
static __forceinline__ __device__ void windows_of(const struct aq_pool_shape &s, uint64_t pixel, uint64_t windows,
                                                  uint64_t *first, uint64_t *end)
{
    const uint64_t half = s.K / 2, beyond = pixel + half + 1; /* i stride - half <= pixel < i stride - half + K */
    *first = beyond > s.K ? (beyond - s.K + s.stride - 1) / s.stride : 0;
    *end = (pixel + half) / s.stride + 1;
    if (*end > windows) *end = windows;
}

static __global__ void __launch_bounds__(THREADS)
    max_pool_backward(struct aq_max_pool_backward args, uint64_t rows, uint64_t columns)
{
    const struct aq_pool_shape &s = args.shape;
    const uint64_t at = aq_thread_index();
    if (at >= s.samples * s.height * s.width * s.C) return;
    const uint64_t c = at % s.C, pixel = at / s.C % (s.height * s.width), sample = at / s.C / (s.height * s.width);
    const float *image = args.x + sample * s.height * s.width * s.C + c;
    const float *dy = args.dy + sample * rows * columns * s.C + c;
    uint64_t top, bottom, left, right;
    float sum = 0.0f;
    windows_of(s, pixel / s.width, rows, &top, &bottom);
    windows_of(s, pixel % s.width, columns, &left, &right);
    for (uint64_t row = top; row < bottom; row++)
        for (uint64_t column = left; column < right; column++)
            if (largest(s, image, window_of(s, row, column)) == pixel)
                sum = __fadd_rn(sum, dy[(row * columns + column) * s.C]);
    args.dx[at] = sum;
}

enum aq_status aq_cuda_max_pool_backward(const struct aq_max_pool_backward *args, void *, struct CUstream_st *stream)
{
    const struct aq_pool_shape *s = &args->shape;
    return AQ_LAUNCH(max_pool_backward, aq_blocks(s->samples * s->height * s->width * s->C, THREADS), THREADS, 0,
                     stream, *args, aq_conv_out(s->height, s->stride), aq_conv_out(s->width, s->stride));
}
