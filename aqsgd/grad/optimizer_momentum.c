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

void aq_optimizer_momentum(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, float *m)
{
    const float b1 = optimizer->config.beta1, c1 = 1.0f - b1, scale = optimizer->call.grad_scale;
    const float *g = optimizer->call.update_gradients + piece->first;
    m += piece->first;
    for (uint32_t i = 0; i < piece->count; i++)
        m[i] = b1 * m[i] + c1 * (g[i] * scale);
}

/* Values of a piece that are exactly zero. */
static uint32_t zeros(const float *v, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += v[i] == 0.0f;
    return sum;
}

void aq_optimizer_mask(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, float *m, const float *v)
{
    uint64_t first, chunk;
    if (zeros(v + piece->first, piece->count) == 0) return; /* as a rule: m and the errors need not be written */
    aq_grad_chunk(optimizer->parameters, optimizer->group.size, optimizer->group.rank, &first, &chunk);
    for (uint64_t i = piece->first; i < piece->first + piece->count; i++) {
        if (v[i] != 0.0f) continue;
        m[i] = 0.0f;
        if (optimizer->worker_error) optimizer->worker_error[i] = 0.0f;
        if (optimizer->server_error && i - first < chunk) optimizer->server_error[i - first] = 0.0f; /* wraps below */
    }
}

/* Pieces have no argument but the optimizer: what a walk is about stands in it for the time of the walk. */
struct aim {
    const float *v;
};

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
    const struct aim aim = {.v = v};
    double sum = 0.0;
    optimizer->call.aim = &aim;
    aq_optimizer_each(optimizer, norm_piece);
    for (uint32_t i = 0; i < optimizer->piece_count; i++)
        sum += aq_optimizer_sums(optimizer, i)[0];
    return sum;
}
