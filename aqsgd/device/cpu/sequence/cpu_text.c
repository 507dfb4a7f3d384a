/*
 * cpu_text.c -- the mathematics of text encoders: the exact GELU, tanh, and rows next to their neighbours for a
 * convolution over tokens.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { FLAT = 16 << 10, ROWS = 16 };

struct gelu {
    const struct cpu_rows *rows;
    const struct aq_gelu *forward;
    const struct aq_gelu_backward *backward;
};

static void gelu_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct gelu *self = context;
    const struct aq_gelu *args = self->forward;
    const uint64_t at = piece * FLAT, n = end_of(piece, args->count, FLAT) - at;
    const enum aq_element y_type = args->other ? AQ_F32 : args->type;
    self->rows->gelu(cpu_at(args->x, args->type, at), n, args->type, args->other ? args->other + at : NULL,
                     cpu_at_w(args->y, y_type, at));
}

enum aq_status cpu_gelu(struct aq_device *device, const struct aq_gelu *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct gelu self = {.rows = cpu->rows, .forward = args};
    cpu_pool_run(cpu->pool, pieces_of(args->count, FLAT), gelu_piece, &self);
    return AQ_OK;
}

static void gelu_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct gelu *self = context;
    const struct aq_gelu_backward *args = self->backward;
    const uint64_t at = piece * FLAT, n = end_of(piece, args->count, FLAT) - at;
    self->rows->gelu_backward(cpu_at(args->x, args->type, at), cpu_at(args->dy, args->type, at), n, args->type,
                              cpu_at_w(args->dx, args->type, at));
}

enum aq_status cpu_gelu_backward(struct aq_device *device, const struct aq_gelu_backward *args,
                                 struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct gelu self = {.rows = cpu->rows, .backward = args};
    cpu_pool_run(cpu->pool, pieces_of(args->count, FLAT), gelu_backward_piece, &self);
    return AQ_OK;
}

static void tanh_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_tanh *args = context;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->y[i] = tanhf(args->x[i]);
}

enum aq_status cpu_tanh(struct aq_device *device, const struct aq_tanh *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_tanh own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->count, FLAT), tanh_piece, &own);
    return AQ_OK;
}

static void tanh_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_tanh_backward *args = context;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->dx[i] = args->dy[i] * (1.0f - args->y[i] * args->y[i]);
}

enum aq_status cpu_tanh_backward(struct aq_device *device, const struct aq_tanh_backward *args,
                                 struct aq_stream *stream)
{
    (void)stream;
    struct aq_tanh_backward own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->count, FLAT), tanh_backward_piece, &own);
    return AQ_OK;
}

static int64_t length_of(const uint32_t *lengths, uint64_t sample, uint64_t T)
{
    return (int64_t)(lengths && lengths[sample] < T ? lengths[sample] : T);
}

static void unfold_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_unfold *args = context;
    const uint64_t C = args->C, K = args->K;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->samples * args->T, ROWS); r++) {
        const int64_t t = (int64_t)(r % args->T), length = length_of(args->lengths, r / args->T, args->T);
        const float *sample = args->x + (r - (uint64_t)t) * C;
        for (uint64_t k = 0; k < K; k++) {
            const int64_t from = t + (int64_t)k - (int64_t)K / 2;
            const bool real = from >= 0 && from < length;
            for (uint64_t c = 0; c < C; c++)
                cpu_store(args->y, args->y_type, (r * C + c) * K + k, real ? sample[(uint64_t)from * C + c] : 0.0f);
        }
    }
}

enum aq_status cpu_unfold(struct aq_device *device, const struct aq_unfold *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_unfold own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->samples * args->T, ROWS), unfold_piece, &own);
    return AQ_OK;
}

static void unfold_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_unfold_backward *args = context;
    const uint64_t C = args->C, K = args->K;
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->samples * args->T, ROWS); r++) {
        const int64_t t = (int64_t)(r % args->T), length = length_of(args->lengths, r / args->T, args->T);
        const float *sample = args->dy + (r - (uint64_t)t) * C * K;
        for (uint64_t k = 0; t < length && k < K; k++) {
            const int64_t row = t - (int64_t)k + (int64_t)K / 2;
            if (row < 0 || row >= (int64_t)args->T) continue;
            for (uint64_t c = 0; c < C; c++)
                args->dx[r * C + c] += sample[((uint64_t)row * C + c) * K + k];
        }
    }
}

enum aq_status cpu_unfold_backward(struct aq_device *device, const struct aq_unfold_backward *args,
                                   struct aq_stream *stream)
{
    (void)stream;
    struct aq_unfold_backward own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->samples * args->T, ROWS), unfold_backward_piece, &own);
    return AQ_OK;
}
