/*
 * optimizer_outer.c -- local steps: every rank does H steps on its own with the optimizer (the inner one), then the
 * ranks average their movements, and an outer optimizer moves the weights that all started with.
 *
 * DiLoCo: Douillard et al. 2023 (arXiv:2311.08105), Algorithm 1; in its terms, for the weights x of all ranks:
 *
 *     line 3 to 9   x_w = H steps of the inner optimizer from x, on rank w's own samples
 *     line 12       d = mean over ranks of (x - x_w): the pseudo-gradient
 *     line 14       x = OuterOpt(x, d); SGD with Nesterov momentum as PyTorch has it, lr 0.7, momentum 0.9:
 *                   m = mu m + d,   x = x - lr (d + mu m)
 *
 * SparseLoCo (arXiv:2508.15706) sends d as the largest values of each chunk, at 2 bits, and keeps the rest in an error
 * on the rank: that is config.reduce "topk" with outer_momentum 0. grad_codec_topk.c has the differences.
 *
 * Two versions of the weights: the rank's own are the parameters, the outer ones the state array "local_steps"; the
 * kernel SWAP changes them over. d is in the parameters while it travels. Inner state (moments) stays with its rank:
 * AQ_STATE_LOCAL. The outer step is elementwise, in fp32, of values that are equal on all ranks: so are the weights.
 *
 * outer_delay, D: movements travel while each rank makes the first D steps of the next round. X_r: the outer weights of
 * round r; x_w: rank w's own.
 *
 *     e_w = x_w,   d_w = X_r - x_w     after the H steps of the round; the mean d travels
 *     X_{r+1} = OuterOpt(X_r, d)       when d is here: no step reads X, so that the time changes no bit
 *     x_w = X_{r+1} + (x_w - e_w)      at the end of the D-th step after that, on all ranks
 *
 * That is the overlap of communication of Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512): a result is used
 * a fixed number of steps after its movements left. Differs from it: all weights at once, not in fragments; and what a
 * rank has moved since is added to the outer weights, where Streaming DiLoCo mixes the two versions by a factor. So
 * each step counts once in a movement, and with D = 0 the formula is DiLoCo's.
 *
 * Differs from DiLoCo: a round ends at steps that are multiples of H, and at the last step of a run, however short that
 * round is, so that all training is in the model. A rank whose steps were void counts in the mean as one that has not
 * moved, and so does each weight that is not finite any more.
 */
#include "optimizer.h"

#include <string.h>

bool aq_optimizer_config_local(const struct aq_optimizer_config *config)
{
    return config->outer_every > 0;
}

bool aq_optimizer_config_meets(const struct aq_optimizer_config *config, uint64_t step)
{
    return step > 0 && (step % config->outer_every == 0 || step == config->total_steps);
}

enum aq_status aq_optimizer_outer_check(const struct aq_optimizer_config *config, bool averages_gradients)
{
    if (!aq_optimizer_config_local(config)) return AQ_OK;
    if (!averages_gradients)
        return aq_fail(AQ_INVAL, "optimizer",
                       "outer_every: %s averages momenta or votes, which needs equal weights on all ranks; local steps "
                       "make them differ",
                       config->kind);
    if (config->low_rank > 0)
        return aq_fail(AQ_INVAL, "optimizer",
                       "outer_every: low_rank reuses the factors of the step before, and with local steps that step "
                       "has no mean gradient");
    if (config->outer_delay >= config->outer_every)
        return aq_fail(AQ_INVAL, "optimizer", "outer_delay is %u, must be below outer_every, %u", config->outer_delay,
                       config->outer_every);
    AQ_TRY(aq_optimizer_check_range("outer_lr", config->outer_lr, 1e-6f, 1e6f));
    return aq_optimizer_check_range("outer_momentum", config->outer_momentum, 0.0f, 1.0f);
}

bool aq_optimizer_is_local(const struct aq_optimizer *optimizer)
{
    return aq_optimizer_config_local(&optimizer->config) && optimizer->group.size > 1;
}

static enum aq_status delay_place(struct aq_optimizer *optimizer)
{
    void *moving;
    AQ_TRY(aq_optimizer_take(optimizer, AQ_DELAY_STATE, optimizer->parameters, AQ_STATE_LOCAL, &optimizer->outer.end));
    AQ_TRY(aq_optimizer_take_few(optimizer, "local_pending", 1, AQ_STATE_REPLICATED, &optimizer->outer.pending));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, optimizer->parameters * sizeof(float), &moving));
    optimizer->outer.moving = moving;
    if (!optimizer->isolated) return AQ_OK;
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, optimizer->parameters * sizeof(float), &moving));
    optimizer->outer.travel = moving;
    return AQ_OK;
}

enum aq_status aq_optimizer_outer_place(struct aq_optimizer *optimizer)
{
    /* For every size of the group: another one may continue from this state. */
    for (uint32_t i = 0; aq_optimizer_config_local(&optimizer->config) && i < optimizer->state_count; i++)
        optimizer->states[i].info.belongs = AQ_STATE_LOCAL;
    if (!aq_optimizer_is_local(optimizer)) return AQ_OK;
    AQ_TRY(
        aq_optimizer_take(optimizer, AQ_OUTER_STATE, optimizer->parameters, AQ_STATE_LOCAL, &optimizer->outer.weights));
    if (optimizer->config.outer_momentum > 0.0f)
        AQ_TRY(aq_optimizer_take(optimizer, "outer_momentum", optimizer->parameters, AQ_STATE_REPLICATED,
                                 &optimizer->outer.momentum));
    return optimizer->config.outer_delay > 0 ? delay_place(optimizer) : AQ_OK;
}

/* With outer_delay all that a reduction changes is in the host's memory, at any time until the mean is taken. */
static bool is_delayed(const struct aq_optimizer *optimizer)
{
    return aq_optimizer_is_local(optimizer) && optimizer->config.outer_delay > 0;
}

static bool is_error(const struct aq_optimizer_state_info *info)
{
    return info->belongs == AQ_STATE_WORKER_ERROR || info->belongs == AQ_STATE_SERVER_ERROR;
}

enum aq_status aq_optimizer_kept_place(struct aq_optimizer *optimizer)
{
    uint64_t floats = optimizer->parameters;
    void *kept;
    if (optimizer->group.size == 1 || !optimizer->config.retries || floats == 0) return AQ_OK;
    for (uint32_t i = 0; i < optimizer->state_count; i++)
        if (is_error(&optimizer->states[i].info)) floats += optimizer->states[i].info.count;
    AQ_TRY(is_delayed(optimizer) ? aq_optimizer_scratch_pinned(optimizer, floats * sizeof(float), &kept)
                                 : aq_optimizer_scratch_device(optimizer, floats * sizeof(float), &kept));
    optimizer->kept = kept;
    return AQ_OK;
}

static enum aq_status kept_copy(struct aq_optimizer *optimizer, float *values, uint64_t count, float *kept, bool back)
{
    float *to = back ? values : kept;
    const float *from = back ? kept : values;
    if (!is_delayed(optimizer))
        return aq_device_copy(optimizer->device, to, from, count * sizeof *values, optimizer->call.stream);
    memcpy(to, from, count * sizeof *values); /* between two updates there is no stream of theirs */
    return AQ_OK;
}

/*
 * What the mean is of: gradients, or a movement, which is in the parameters while it travels, or with outer_delay in an
 * array of its own.
 */
static float *reduced(const struct aq_optimizer *optimizer)
{
    if (is_delayed(optimizer)) return optimizer->outer.travel ? optimizer->outer.travel : optimizer->outer.moving;
    float *x = optimizer->call.averaging ? optimizer->call.gradients : optimizer->call.parameters;
    AQ_ASSERT(x);
    return x;
}

static enum aq_status kept_copies(struct aq_optimizer *optimizer, bool back)
{
    float *kept = optimizer->kept;
    AQ_ASSERT(kept);
    AQ_TRY(kept_copy(optimizer, reduced(optimizer), optimizer->parameters, kept, back));
    kept += optimizer->parameters;
    for (uint32_t i = 0; i < optimizer->state_count; i++) {
        const struct aq_optimizer_array *array = &optimizer->states[i];
        if (!is_error(&array->info) || array->info.count == 0) continue;
        AQ_TRY(kept_copy(optimizer, array->values, array->info.count, kept, back));
        kept += array->info.count;
    }
    return AQ_OK;
}

enum aq_status aq_optimizer_keep(struct aq_optimizer *optimizer)
{
    return kept_copies(optimizer, false);
}

enum aq_status aq_optimizer_put_back(struct aq_optimizer *optimizer)
{
    return kept_copies(optimizer, true);
}

void aq_optimizer_ask_again(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    AQ_ASSERT(optimizer->kept);
    aq_optimizer_ask(optimizer, reduced(optimizer), out);
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, kind);
    kernel.last = optimizer->outer.weights;
    kernel.m = optimizer->outer.momentum;
    kernel.b1 = optimizer->config.outer_momentum;
    kernel.size = optimizer->config.outer_lr;
    return kernel;
}

static enum aq_status round_in_step(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    if (!aq_optimizer_config_meets(&optimizer->config, optimizer->call.step)) return AQ_OK;
    if (round == 1) return aq_optimizer_asked(optimizer);
    if (round > 1) return AQ_OK;
    const struct aq_fused before = kernel_of(optimizer, AQ_FUSED_OUTER_MOVED),
                          after = kernel_of(optimizer, optimizer->outer.momentum ? AQ_FUSED_OUTER_STEP_MOMENTUM
                                                                                 : AQ_FUSED_OUTER_STEP);
    return aq_optimizer_ask_along(optimizer, optimizer->call.parameters, &before, &after, out);
}

/* ---- outer_delay ---- */

/* Between a device's movement and the host's copy of it, if there is one. */
static enum aq_status travel_copy(const struct aq_optimizer *optimizer, float *to, const float *from)
{
    if (!optimizer->outer.travel) return AQ_OK;
    return aq_device_copy(optimizer->device, to, from, (size_t)optimizer->parameters * sizeof *to,
                          optimizer->call.stream);
}

static enum aq_status movement_leaves(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    struct aq_fused kernel = kernel_of(optimizer, AQ_FUSED_OUTER_LEFT);
    kernel.v = optimizer->outer.end;
    kernel.m = optimizer->outer.moving;
    AQ_TRY(aq_optimizer_fused(optimizer, &kernel));
    AQ_TRY(travel_copy(optimizer, optimizer->outer.travel, optimizer->outer.moving));
    if (optimizer->outer.travel) AQ_TRY(aq_device_stream_sync(optimizer->device, optimizer->call.stream));
    aq_optimizer_ask(optimizer, reduced(optimizer), out);
    out->later = true;
    optimizer->outer.travels = true;
    *optimizer->outer.pending = 1;
    return AQ_OK;
}

static enum aq_status mean_came(struct aq_optimizer *optimizer)
{
    if (!optimizer->outer.travels) return AQ_OK;
    struct aq_fused kernel =
        kernel_of(optimizer, optimizer->outer.momentum ? AQ_FUSED_OUTER_CAME_MOMENTUM : AQ_FUSED_OUTER_CAME);
    kernel.v = optimizer->outer.moving;
    optimizer->outer.travels = false;
    AQ_TRY(travel_copy(optimizer, optimizer->outer.moving, optimizer->outer.travel));
    return aq_optimizer_fused(optimizer, &kernel);
}

static enum aq_status own_added(struct aq_optimizer *optimizer)
{
    struct aq_fused kernel = kernel_of(optimizer, AQ_FUSED_OUTER_ADDED);
    AQ_TRY(mean_came(optimizer));
    kernel.v = optimizer->outer.end;
    *optimizer->outer.pending = 0;
    optimizer->call.moved_on = true;
    return aq_optimizer_fused(optimizer, &kernel);
}

/*
 * Rounds 0 and 1: the outer step of the round before, where it is due. 2 and 3: what follows on the end of this one.
 * The last round of a run waits for its mean.
 */
static enum aq_status round_beside_steps(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    const uint64_t step = optimizer->call.step;
    const bool last = step == config->total_steps;
    const bool due = *optimizer->outer.pending > 0 && (last || step % config->outer_every == config->outer_delay);
    const bool ends = aq_optimizer_config_meets(config, step);
    if (round == 0 && due && optimizer->outer.travels) {
        out->kind = AQ_REDUCE_WAIT;
        return AQ_OK;
    }
    if (round < 2) {
        optimizer->call.outer_round = 2;
        if (due) AQ_TRY(own_added(optimizer));
        return ends ? movement_leaves(optimizer, out) : AQ_OK;
    }
    if (round == 2 && last) out->kind = AQ_REDUCE_WAIT;
    return round > 2 ? own_added(optimizer) : AQ_OK;
}

bool aq_optimizer_travels(const struct aq_optimizer *optimizer)
{
    return optimizer->outer.travels;
}

enum aq_status aq_optimizer_settle(struct aq_optimizer *optimizer, struct aq_stream *stream)
{
    AQ_ASSERT(!optimizer->call.updating && !optimizer->call.void_step);
    optimizer->call = (struct aq_optimizer_call){.stream = stream};
    const enum aq_status status = mean_came(optimizer);
    optimizer->call = (struct aq_optimizer_call){0};
    return status;
}

enum aq_status aq_optimizer_outer_begin(struct aq_optimizer *optimizer, const float *parameters,
                                        struct aq_stream *stream)
{
    const size_t bytes = (size_t)optimizer->parameters * sizeof *parameters;
    if (!aq_optimizer_is_local(optimizer)) return AQ_OK;
    if (optimizer->outer.pending) *optimizer->outer.pending = 0;
    return bytes ? aq_device_copy(optimizer->device, optimizer->outer.weights, parameters, bytes, stream) : AQ_OK;
}

enum aq_status aq_optimizer_outer_round(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    return optimizer->outer.end ? round_beside_steps(optimizer, round, out) : round_in_step(optimizer, round, out);
}

float aq_optimizer_config_pending(const struct aq_optimizer_config *config)
{
    return aq_optimizer_config_local(config) ? config->outer_lr * (1.0f + config->outer_momentum) : 0.0f;
}
