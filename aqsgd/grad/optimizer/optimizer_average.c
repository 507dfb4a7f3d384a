/*
 * optimizer_average.c -- the mean of the gradients over a group: what adamw, sgd, lamb and lion reduce, and what the
 * warm-up of the others does.
 *
 * Through a lossy codec with errors kept on both sides it is DoubleSqueeze (Tang et al. 2019), which 1-bit Adam's
 * compressed allreduce carries; with a codec that is one-sided it is SLAMB's Algorithm 2. Through PowerSGD it takes two
 * rounds (optimizer_low_rank.c).
 */
#include "optimizer.h"
#include "optimizer_low_rank.h"

enum aq_status aq_optimizer_average_place(struct aq_optimizer *optimizer)
{
    if (!optimizer->kind->averages_gradients || optimizer->group.size == 1) return AQ_OK;
    if (optimizer->config.low_rank > 0) return aq_low_rank_place(optimizer);
    return aq_optimizer_take_errors(optimizer);
}

void aq_optimizer_ask(struct aq_optimizer *optimizer, float *x, struct aq_reduce *out)
{
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = x, .count = optimizer->parameters, .step = optimizer->call.step};
    if (!optimizer->codec) return;
    out->kind = AQ_REDUCE_COMPRESSED;
    out->worker = optimizer->codec;
    out->server = optimizer->fp32 ? optimizer->fp32 : optimizer->codec;
    if (!aq_grad_codec_config_lossy(aq_grad_codec_config_of(optimizer->codec))) return;
    out->worker_error = optimizer->worker_error;
    out->server_error = optimizer->server_error;
}

enum aq_status aq_optimizer_average_round(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct aq_optimizer_call *call = &optimizer->call;
    if (!aq_optimizer_averages(optimizer, call->step)) return AQ_OK;
    const bool low_rank = optimizer->low_rank && call->step > optimizer->config.low_rank_start;
    if (low_rank) return aq_low_rank_round(optimizer, call->gradients, round, out);
    if (round > 0) return AQ_OK;
    if (optimizer->kind->averages_gradients) {
        aq_optimizer_ask(optimizer, call->gradients, out);
        return AQ_OK;
    }
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = call->gradients, .count = optimizer->parameters, .step = call->step};
    return AQ_OK;
}
