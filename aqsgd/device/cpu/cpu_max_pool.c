/*
 * cpu_max_pool.c -- the largest value of each window of an image. Plain C for every processor.
 *
 * Forward cuts the work by lines of the output; backward by images, because windows overlap. Each of an image's windows
 * adds to one pixel, window after window.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

/* The part of a window of K from (at stride - K / 2) on that is within an image. */
static void span_of(const struct aq_pool_shape *shape, uint64_t at, uint64_t extent, uint64_t *first, uint64_t *end)
{
    const uint64_t half = shape->K / 2, begin = at * shape->stride;
    *first = begin > half ? begin - half : 0;
    *end = begin + shape->K - half < extent ? begin + shape->K - half : extent;
}

static bool larger(float value, float best)
{
    return value > best || isnan(value);
}

/* One line of an output image. */
static void max_pool_piece(struct cpu_device *cpu, const struct aq_max_pool *args, uint64_t piece)
{
    (void)cpu;
    const struct aq_pool_shape *shape = &args->shape;
    const uint64_t rows = aq_conv_out(shape->height, shape->stride), columns = aq_conv_out(shape->width, shape->stride);
    const uint64_t sample = piece / rows, C = shape->C;
    const float *image = args->x + sample * shape->height * shape->width * C;
    float *y = args->y + piece * columns * C;
    uint64_t top, bottom, left, right;
    span_of(shape, piece % rows, shape->height, &top, &bottom);
    for (uint64_t column = 0; column < columns; column++, y += C) {
        span_of(shape, column, shape->width, &left, &right);
        memcpy(y, image + (top * shape->width + left) * C, C * sizeof *y);
        for (uint64_t row = top; row < bottom; row++)
            for (uint64_t at = left; at < right; at++) {
                const float *x = image + (row * shape->width + at) * C;
                for (uint64_t c = 0; c < C; c++)
                    y[c] = larger(x[c], y[c]) ? x[c] : y[c];
            }
    }
}

CPU_PIECES(max_pool, aq_max_pool, aq_conv_out(args->shape.height, args->shape.stride) * args->shape.samples)

static void max_pool_backward_piece(struct cpu_device *cpu, const struct aq_max_pool_backward *args, uint64_t sample)
{
    (void)cpu;
    const struct aq_pool_shape *shape = &args->shape;
    const uint64_t rows = aq_conv_out(shape->height, shape->stride), columns = aq_conv_out(shape->width, shape->stride);
    const uint64_t C = shape->C, values = shape->height * shape->width * C;
    const float *image = args->x + sample * values, *dy = args->dy + sample * rows * columns * C;
    float *dx = args->dx + sample * values;
    memset(dx, 0, values * sizeof *dx);
    for (uint64_t window = 0; window < rows * columns; window++) {
        uint64_t top, bottom, left, right;
        span_of(shape, window / columns, shape->height, &top, &bottom);
        span_of(shape, window % columns, shape->width, &left, &right);
        for (uint64_t c = 0; c < C; c++) {
            uint64_t best = (top * shape->width + left) * C + c;
            for (uint64_t row = top; row < bottom; row++)
                for (uint64_t at = left; at < right; at++) {
                    const uint64_t here = (row * shape->width + at) * C + c;
                    if (larger(image[here], image[best])) best = here;
                }
            dx[best] += dy[window * C + c];
        }
    }
}

CPU_PIECES(max_pool_backward, aq_max_pool_backward, args->shape.samples)
