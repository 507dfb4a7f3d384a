/*
 * optimizer_versions.c -- versions of the weights that the parameters are not: the outer ones of local steps
 * (optimizer_outer.c), and with config.predict the weights themselves.
 *
 * Prediction is for gradients that are an update old (train.staleness 1): with the weights W_k after k updates, and g_k
 * the gradient of step k + 1,
 *
 *     W_{k+1} = W_k - U(g_k),    g_k taken at the parameters P_{k-1}
 *
 * PipeDream-2BW has P_{k-1} = W_{k-1} (Narayanan et al. 2021). SpecTrain (Chen et al. 2018) and XPipe (Guan et al.
 * 2019) predict the W_k to which the update will apply, along the optimizer's own direction, with its present moments.
 * For Adam that is the step that it has just made, up to its learning rate and decay; so here it is that step, for
 * every kind of optimizer:
 *
 *     P_k = W_k + (W_k - W_{k-1}),    P_0 = W_0
 *
 * The parameters of the caller are P, the state array "predicted" is W while steps are made. An update starts with W in
 * the parameters' place and ends with the next P there. A void step moves no weights: then P_k = W_k. If ranks that
 * were apart meet (local steps, slamb), the step is no direction: P_k = W_k, which all ranks share. In between the
 * prediction is each rank's own, and a run with another number of ranks starts without one: a mean of predictions
 * predicts nothing.
 */
#include "optimizer.h"

/* Are there steps after which ranks' weights differ, were there several ranks? */
static bool ranks_drift(const struct aq_optimizer *optimizer)
{
    return aq_optimizer_config_local(&optimizer->config) || optimizer->kind->drifts;
}

enum aq_status aq_optimizer_predict_place(struct aq_optimizer *optimizer)
{
    const enum aq_state_class belongs = ranks_drift(optimizer) ? AQ_STATE_LOCAL : AQ_STATE_REPLICATED;
    if (!optimizer->config.predict) return AQ_OK;
    return aq_optimizer_take(optimizer, AQ_PREDICT_STATE, optimizer->parameters, belongs, &optimizer->weights);
}

static enum aq_status copy(const struct aq_optimizer *optimizer, float *to, const float *from, struct aq_stream *stream)
{
    if (optimizer->parameters == 0) return AQ_OK;
    return aq_device_copy(optimizer->device, to, from, (size_t)optimizer->parameters * sizeof *to, stream);
}

enum aq_status aq_optimizer_predict_leave(struct aq_optimizer *optimizer)
{
    const struct aq_optimizer_call *call = &optimizer->call;
    return optimizer->weights ? copy(optimizer, call->parameters, optimizer->weights, call->stream) : AQ_OK;
}

static enum aq_status run(struct aq_optimizer *optimizer, enum aq_fused_kind kind, float *version)
{
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, kind);
    kernel.last = version;
    return aq_optimizer_fused(optimizer, &kernel);
}

/* Were the ranks apart until this step? With outer_delay: has it taken up what the others have moved? */
static bool meets(const struct aq_optimizer *optimizer)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    if (optimizer->outer.end) return optimizer->call.moved_on;
    const uint64_t step = optimizer->call.step;
    const bool end = step == config->total_steps;
    return optimizer->group.size > 1 && aq_optimizer_config_drifts(config, step - 1) &&
           (end || !aq_optimizer_config_drifts(config, step));
}

enum aq_status aq_optimizer_predict(struct aq_optimizer *optimizer)
{
    const struct aq_optimizer_call *call = &optimizer->call;
    if (!optimizer->weights) return AQ_OK;
    if (meets(optimizer)) return copy(optimizer, optimizer->weights, call->parameters, call->stream);
    return run(optimizer, AQ_FUSED_PREDICT, optimizer->weights);
}

enum aq_status aq_optimizer_versions_begin(struct aq_optimizer *optimizer, const float *parameters,
                                           struct aq_stream *stream)
{
    AQ_TRY(aq_optimizer_outer_begin(optimizer, parameters, stream));
    return optimizer->weights ? copy(optimizer, optimizer->weights, parameters, stream) : AQ_OK;
}

/* first and second: one after the other takes the parameters' place; NULL: skipped. */
static enum aq_status swap(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream, float *first,
                           float *second)
{
    AQ_ASSERT(!optimizer->call.updating && !optimizer->call.void_step);
    AQ_ASSERT(!optimizer->outer.travels); /* aq_optimizer_settle */
    if (optimizer->parameters == 0) return AQ_OK;
    optimizer->call = (struct aq_optimizer_call){.parameters = parameters, .stream = stream};
    enum aq_status status = first ? run(optimizer, AQ_FUSED_SWAP, first) : AQ_OK;
    if (status == AQ_OK && second) status = run(optimizer, AQ_FUSED_SWAP, second);
    optimizer->call = (struct aq_optimizer_call){0};
    return status;
}

enum aq_status aq_optimizer_show(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream)
{
    return swap(optimizer, parameters, stream, optimizer->weights, optimizer->outer.weights);
}

enum aq_status aq_optimizer_hide(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream)
{
    return swap(optimizer, parameters, stream, optimizer->outer.weights, optimizer->weights);
}

enum aq_status aq_optimizer_versions_reshard(struct aq_optimizer *optimizer, float *parameters,
                                             struct aq_stream *stream)
{
    return ranks_drift(optimizer) ? aq_optimizer_versions_begin(optimizer, parameters, stream)
                                 : aq_optimizer_hide(optimizer, parameters, stream);
}
