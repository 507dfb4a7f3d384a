/*
 * optimizer_momentum.c -- what the optimizers share that freeze their variance and send their momentum.
 */
#include <math.h>

#include "optimizer.h"

uint64_t aq_optimizer_frozen_at(const float frozen[2])
{
    return (uint64_t)frozen[0] + ((uint64_t)frozen[1] << 24);
}

void aq_optimizer_freeze(float frozen[2], uint64_t step)
{
    frozen[0] = (float)(step & 0xffffff);
    frozen[1] = (float)(step >> 24);
}

/* Pieces have no argument but the optimizer: what a walk is about stands in it for the time of the walk. */
struct aim {
    float *m;
    const float *v;
};

static void momentum_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct aim *aim = optimizer->call.aim;
    const float b1 = optimizer->config.beta1, c1 = 1.0f - b1, scale = optimizer->call.grad_scale;
    const float *g = optimizer->call.update_gradients + piece->first;
    float *m = aim->m + piece->first;
    (void)index;
    for (uint32_t i = 0; i < piece->count; i++)
        m[i] = b1 * m[i] + c1 * (g[i] * scale);
}

void aq_optimizer_momentum(struct aq_optimizer *optimizer, float *m)
{
    struct aim aim = {.m = m};
    optimizer->call.aim = &aim;
    aq_optimizer_each(optimizer, momentum_piece);
}

static void mask_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct aim *aim = optimizer->call.aim;
    float *error = optimizer->worker_error;
    (void)index;
    for (uint64_t i = piece->first; i < piece->first + piece->count; i++) {
        if (aim->v[i] != 0.0f) continue;
        aim->m[i] = 0.0f;
        if (error) error[i] = 0.0f;
    }
}

void aq_optimizer_mask(struct aq_optimizer *optimizer, float *m, const float *v)
{
    struct aim aim = {.m = m, .v = v};
    uint64_t first, chunk;
    optimizer->call.aim = &aim;
    aq_optimizer_each(optimizer, mask_piece);
    if (!optimizer->server_error) return;
    aq_grad_chunk(optimizer->parameters, optimizer->group.size, optimizer->group.rank, &first, &chunk);
    for (uint64_t i = 0; i < chunk; i++) {
        if (v[first + i] == 0.0f) optimizer->server_error[i] = 0.0f;
    }
}

static void norm_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct aim *aim = optimizer->call.aim;
    const float *v = aim->v + piece->first;
    double sum = 0.0;
    for (uint32_t i = 0; i < piece->count; i++)
        sum += fabs((double)v[i]);
    aq_optimizer_sums(optimizer, index)[0] = sum;
}

double aq_optimizer_norm1(struct aq_optimizer *optimizer, const float *v)
{
    struct aim aim = {.v = v};
    double sum = 0.0;
    optimizer->call.aim = &aim;
    aq_optimizer_each(optimizer, norm_piece);
    for (uint32_t i = 0; i < optimizer->piece_count; i++)
        sum += aq_optimizer_sums(optimizer, i)[0];
    return sum;
}
