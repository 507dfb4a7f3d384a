/*
 * optimizer_momentum.c -- what the optimizers share that freeze their variance and send their momentum.
 */
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

struct aq_walk aq_optimizer_walk_moments(const struct aq_optimizer *optimizer, enum aq_walk_kind kind, float *m,
                                         float *v)
{
    struct aq_walk walk = aq_optimizer_walk_of(optimizer, kind);
    walk.m = m;
    walk.v = v;
    walk.frozen = v;
    return walk;
}

enum aq_status aq_optimizer_norm1(struct aq_optimizer *optimizer, float *v, double *out)
{
    const struct aq_walk walk = aq_optimizer_walk_moments(optimizer, AQ_WALK_NORM1, NULL, v);
    double sum = 0.0;
    AQ_TRY(aq_optimizer_walk(optimizer, &walk));
    for (uint32_t i = 0; i < optimizer->piece_count; i++)
        sum += aq_optimizer_sums(optimizer, i)[0];
    *out = sum;
    return AQ_OK;
}
