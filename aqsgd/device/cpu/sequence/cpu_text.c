/*
 * cpu_text.c -- the mathematics of text encoders: the exact GELU, tanh, and rows next to their neighbours for a
 * convolution over tokens.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { FLAT = 16 << 10, ROWS = 16 };

static void gelu_piece(struct cpu_device *cpu, const struct aq_gelu *args, uint64_t piece)
{
    const uint64_t at = piece * FLAT, n = end_of(piece, args->count, FLAT) - at;
    const enum aq_element y_type = args->other ? AQ_F32 : args->type;
    cpu->rows->gelu(cpu_at(args->x, args->type, at), n, args->type, args->other ? args->other + at : NULL,
                    cpu_at_w(args->y, y_type, at));
}

CPU_PIECES(gelu, aq_gelu, pieces_of(args->count, FLAT))

static void gelu_backward_piece(struct cpu_device *cpu, const struct aq_gelu_backward *args, uint64_t piece)
{
    const uint64_t at = piece * FLAT, n = end_of(piece, args->count, FLAT) - at;
    cpu->rows->gelu_backward(cpu_at(args->x, args->type, at), cpu_at(args->dy, args->type, at), n, args->type,
                             cpu_at_w(args->dx, args->type, at));
}

CPU_PIECES(gelu_backward, aq_gelu_backward, pieces_of(args->count, FLAT))

static void tanh_piece(struct cpu_device *cpu, const struct aq_tanh *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->y[i] = tanhf(args->x[i]);
}

CPU_PIECES(tanh, aq_tanh, pieces_of(args->count, FLAT))

static void tanh_backward_piece(struct cpu_device *cpu, const struct aq_tanh_backward *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->dx[i] = args->dy[i] * (1.0f - args->y[i] * args->y[i]);
}

CPU_PIECES(tanh_backward, aq_tanh_backward, pieces_of(args->count, FLAT))

static int64_t length_of(const uint32_t *lengths, uint64_t sample, uint64_t T)
{
    return (int64_t)(lengths && lengths[sample] < T ? lengths[sample] : T);
}

static void unfold_piece(struct cpu_device *cpu, const struct aq_unfold *args, uint64_t piece)
{
    (void)cpu;
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

CPU_PIECES(unfold, aq_unfold, pieces_of(args->samples * args->T, ROWS))

static void unfold_backward_piece(struct cpu_device *cpu, const struct aq_unfold_backward *args, uint64_t piece)
{
    (void)cpu;
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

CPU_PIECES(unfold_backward, aq_unfold_backward, pieces_of(args->samples * args->T, ROWS))
