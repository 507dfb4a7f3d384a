/*
 * optimizer_momentum.c -- what the optimizers share that freeze their variance and send their momentum.
 */
#include "optimizer.h"

enum aq_status aq_optimizer_noise_place(struct aq_optimizer *optimizer)
{
    const size_t tensors = optimizer->tensor_count;
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, tensors * (sizeof(double) + sizeof(float)), &memory));
    if (!memory) return AQ_OK;
    optimizer->noise.sums = memory;
    optimizer->noise.below = (float *)(optimizer->noise.sums + tensors);
    return AQ_OK;
}

enum aq_status aq_optimizer_noise_drop(struct aq_optimizer *optimizer, float *v)
{
    double *sums = optimizer->noise.sums, dropped = 0.0;
    if (optimizer->noise.dropped) return AQ_OK;
    struct aq_fused kernel = aq_optimizer_fused_moments(optimizer, AQ_FUSED_NORM1, NULL, v);
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    aq_optimizer_fold(optimizer, 0, sums);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        optimizer->noise.below[t] =
            (float)(AQ_NOISE_SHARE * AQ_NOISE_SHARE * sums[t] / (double)optimizer->tensors[t].count);
    AQ_TRY(aq_optimizer_values(optimizer, AQ_FUSED_NOISE_BELOW, optimizer->noise.below));
    kernel.kind = AQ_FUSED_NOISE;
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    aq_optimizer_fold(optimizer, 0, sums);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        dropped += sums[t];
    optimizer->noise.dropped = true;
    if (dropped > 0.0)
        aq_log("optimizer", 2,
               "%s does not change %.0f parameters: their gradients are rounding noise (sqrt(v) below %g "
               "of the rms of their tensor)",
               optimizer->config.kind, dropped, AQ_NOISE_SHARE);
    return AQ_OK;
}

void aq_optimizer_noise_again(struct aq_optimizer *optimizer)
{
    optimizer->noise.dropped = false;
}

uint64_t aq_optimizer_step_read(const float frozen[2])
{
    return (uint64_t)frozen[0] + ((uint64_t)frozen[1] << 24);
}

void aq_optimizer_step_write(float frozen[2], uint64_t step)
{
    frozen[0] = (float)(step & 0xffffff);
    frozen[1] = (float)(step >> 24);
}

struct aq_fused aq_optimizer_fused_moments(const struct aq_optimizer *optimizer, enum aq_fused_kind kind, float *m,
                                           float *v)
{
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, kind);
    kernel.m = m;
    kernel.v = v;
    kernel.frozen = v;
    return kernel;
}

enum aq_status aq_optimizer_norm1(struct aq_optimizer *optimizer, float *v, double *sum)
{
    const struct aq_fused kernel = aq_optimizer_fused_moments(optimizer, AQ_FUSED_NORM1, NULL, v);
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    for (uint32_t end = optimizer->piece_count, begin; end > 0; end = begin) {
        double tensor = 0.0;
        for (begin = end; begin > 0 && optimizer->pieces[begin - 1].tensor == optimizer->pieces[end - 1].tensor;)
            begin--;
        for (uint32_t i = begin; i < end; i++)
            tensor += aq_optimizer_sums(optimizer, i)[0];
        *sum += tensor;
    }
    return AQ_OK;
}

enum aq_status aq_optimizer_gauge_taken(struct aq_optimizer *optimizer, double *out)
{
    double sum = 0.0;
    if (optimizer->gauged)
        sum = optimizer->gauge;
    else
        AQ_TRY(optimizer->kind->gauge(optimizer, &sum));
    optimizer->gauged = false;
    *out = sum;
    return AQ_OK;
}
