/*
 * cpu_conv.c -- convolutions for every processor and every type: the inputs of output pixels are gathered into rows, K
 * K C values each, and multiplied by cpu_gemm. oneDNN is tried first, where it is faster (cpu_conv_dnnl.c).
 *
 * The cut of the work depends only on the extents:
 *
 *     forward     pieces of ROWS output pixels of one image
 *     backward    an image each: rows of gradients are made, and scattered in order
 *     weights     one of the K K places each: C x N sums, image after image
 */
#include <string.h>

#include "cpu_conv.h"

enum { ROWS = 32, GATHER_FLOATS = CPU_WORKER_BYTES / 4 - CPU_GEMM_FLOATS, SLICE = 512 };

/* Pixels of an output image, and in a line of it. */
static uint64_t out_width(const struct aq_conv_shape *shape)
{
    return aq_conv_out(shape->width, shape->stride);
}

static uint64_t out_pixels(const struct aq_conv_shape *shape)
{
    return aq_conv_out(shape->height, shape->stride) * out_width(shape);
}

/* The input pixel that output pixel `pixel` reads at place (u, v), or UINT64_MAX in the zeroes around. */
static uint64_t source_of(const struct aq_conv_shape *shape, uint64_t pixel, uint64_t place)
{
    const uint64_t width = out_width(shape), half = shape->K / 2;
    const uint64_t row = pixel / width * shape->stride + place / shape->K;
    const uint64_t column = pixel % width * shape->stride + place % shape->K;
    if (row < half || row - half >= shape->height || column < half || column - half >= shape->width) return UINT64_MAX;
    return (row - half) * shape->width + column - half;
}

/* Rows of (places first .. end - 1) x C values for `rows` output pixels of an image. */
static void gather(const struct aq_conv_shape *shape, const float *image, uint64_t pixel, uint64_t rows, uint64_t first,
                   uint64_t end, float *to)
{
    const uint64_t C = shape->C;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t place = first; place < end; place++, to += C) {
            const uint64_t from = source_of(shape, pixel + r, place);
            if (from == UINT64_MAX)
                memset(to, 0, C * sizeof *to);
            else
                memcpy(to, image + from * C, C * sizeof *to);
        }
}

/* Places whose rows fit the scratch at a time. */
static uint64_t places_at_once(const struct aq_conv_shape *shape)
{
    const uint64_t all = shape->K * shape->K, fit = GATHER_FLOATS / (ROWS * shape->C);
    AQ_ASSERT(fit > 0);
    return fit < all ? fit : all;
}

static bool fp32(const struct cpu_device *cpu, const struct aq_conv_shape *shape)
{
    return cpu->gemm != &cpu_gemm_plain && (shape->compute == AQ_F32 || shape->compute == AQ_TF32);
}

struct conv {
    struct cpu_device *cpu;
    const struct aq_conv *args;
};

static void conv_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct conv *self = context;
    const struct aq_conv_shape *shape = &self->args->shape;
    const uint64_t pixels = out_pixels(shape), across = pieces_of(pixels, ROWS), sample = piece / across;
    const uint64_t first = piece % across * ROWS, rows = end_of(piece % across, pixels, ROWS) - first;
    const uint64_t step = places_at_once(shape), places = shape->K * shape->K, N = shape->N;
    float *scratch = cpu_scratch(self->cpu, worker), *gathered = scratch + CPU_GEMM_FLOATS;
    for (uint64_t place = 0; place < places; place += step) {
        const uint64_t end = place + step < places ? place + step : places, K = (end - place) * shape->C;
        gather(shape, self->args->x + sample * shape->height * shape->width * shape->C, first, rows, place, end,
               gathered);
        const struct cpu_operand a = {.data = gathered, .stride = K, .type = AQ_F32};
        const struct cpu_operand b = {.data = self->args->w + place * shape->C * N, .stride = N, .type = AQ_F32};
        self->cpu->gemm->run(rows, N, K, &a, &b, shape->compute, self->args->y + (sample * pixels + first) * N, N,
                             place > 0, scratch);
    }
}

enum aq_status cpu_conv(struct aq_device *device, const struct aq_conv *args, struct aq_stream *stream)
{
    (void)stream;
    struct conv self = {cpu_device_of(device), args};
    if (fp32(self.cpu, &args->shape) && (cpu_conv_winograd(self.cpu, args) || cpu_conv_dnnl(self.cpu, args)))
        return AQ_OK;
    cpu_pool_run(self.cpu->pool, args->shape.samples * pieces_of(out_pixels(&args->shape), ROWS), conv_piece, &self);
    return AQ_OK;
}

struct conv_backward {
    struct cpu_device *cpu;
    const struct aq_conv_backward *args;
};

static void scatter(const struct aq_conv_shape *shape, const float *from, uint64_t pixel, uint64_t rows, uint64_t first,
                    uint64_t end, float *image)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t place = first; place < end; place++, from += shape->C) {
            const uint64_t to = source_of(shape, pixel + r, place);
            for (uint64_t c = 0; c < shape->C && to != UINT64_MAX; c++)
                image[to * shape->C + c] += from[c];
        }
}

static void backward_piece(uint64_t sample, uint32_t worker, void *context)
{
    const struct conv_backward *self = context;
    const struct aq_conv_shape *shape = &self->args->shape;
    const uint64_t pixels = out_pixels(shape), step = places_at_once(shape), places = shape->K * shape->K;
    const uint64_t N = shape->N, values = shape->height * shape->width * shape->C;
    float *scratch = cpu_scratch(self->cpu, worker), *gathered = scratch + CPU_GEMM_FLOATS;
    float *dx = self->args->dx + sample * values;
    memset(dx, 0, values * sizeof *dx);
    for (uint64_t first = 0; first < pixels; first += ROWS)
        for (uint64_t place = 0; place < places; place += step) {
            const uint64_t rows = pixels - first < ROWS ? pixels - first : ROWS;
            const uint64_t end = place + step < places ? place + step : places, K = (end - place) * shape->C;
            const struct cpu_operand a = {
                .data = self->args->dy + (sample * pixels + first) * N, .stride = N, .type = AQ_F32};
            const struct cpu_operand b = {
                .data = self->args->w + place * shape->C * N, .stride = N, .type = AQ_F32, .transposed = true};
            self->cpu->gemm->run(rows, K, N, &a, &b, shape->compute, gathered, K, false, scratch);
            scatter(shape, gathered, first, rows, place, end, dx);
        }
}

enum aq_status cpu_conv_backward(struct aq_device *device, const struct aq_conv_backward *args,
                                 struct aq_stream *stream)
{
    (void)stream;
    struct conv_backward self = {cpu_device_of(device), args};
    if (fp32(self.cpu, &args->shape) &&
        (cpu_conv_backward_winograd(self.cpu, args) || cpu_conv_backward_dnnl(self.cpu, args)))
        return AQ_OK;
    cpu_pool_run(self.cpu->pool, args->shape.samples, backward_piece, &self);
    return AQ_OK;
}

struct conv_weights {
    struct cpu_device *cpu;
    const struct aq_conv_weights *args;
};

static void weights_piece(uint64_t place, uint32_t worker, void *context)
{
    const struct conv_weights *self = context;
    const struct aq_conv_shape *shape = &self->args->shape;
    const uint64_t pixels = out_pixels(shape), N = shape->N;
    const uint64_t most = GATHER_FLOATS / shape->C < SLICE ? GATHER_FLOATS / shape->C : SLICE;
    float *scratch = cpu_scratch(self->cpu, worker), *gathered = scratch + CPU_GEMM_FLOATS;
    AQ_ASSERT(most > 0);
    for (uint64_t sample = 0; sample < shape->samples; sample++)
        for (uint64_t first = 0; first < pixels; first += most) {
            const uint64_t rows = pixels - first < most ? pixels - first : most;
            gather(shape, self->args->x + sample * shape->height * shape->width * shape->C, first, rows, place,
                   place + 1, gathered);
            const struct cpu_operand a = {.data = gathered, .stride = shape->C, .type = AQ_F32, .transposed = true};
            const struct cpu_operand b = {
                .data = self->args->dy + (sample * pixels + first) * N, .stride = N, .type = AQ_F32};
            self->cpu->gemm->run(shape->C, N, rows, &a, &b, shape->compute, self->args->dw + place * shape->C * N, N,
                                 true, scratch);
        }
}

enum aq_status cpu_conv_weights(struct aq_device *device, const struct aq_conv_weights *args, struct aq_stream *stream)
{
    (void)stream;
    struct conv_weights self = {cpu_device_of(device), args};
    if (fp32(self.cpu, &args->shape) &&
        (cpu_conv_weights_winograd(self.cpu, args) || cpu_conv_weights_dnnl(self.cpu, args)))
        return AQ_OK;
    cpu_pool_run(self.cpu->pool, args->shape.K * args->shape.K, weights_piece, &self);
    return AQ_OK;
}
