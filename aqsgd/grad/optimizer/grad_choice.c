/*
 * grad_choice.c -- which codec a reduction travels in, where the manifest leaves that to what is measured; and how an
 * optimizer takes it over and keeps it.
 */
#include "aqsgd/grad_choice.h"

#include <string.h>

#include "optimizer.h"

/* From the most exact to the coarsest. */
static const char *const names[AQ_GRAD_CANDIDATES_MAX] = {"fp32", "bf16", "q8", "q4", "sign"};

uint32_t aq_grad_candidates(const struct aq_optimizer_config *config,
                            struct aq_grad_candidate out[AQ_GRAD_CANDIDATES_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < AQ_GRAD_CANDIDATES_MAX; i++) {
        struct aq_grad_codec_config *reduce = &out[count].config;
        const bool known = aq_grad_codec_config_named(reduce, names[i]);
        AQ_ASSERT(known);
        if (aq_grad_codec_config_needs_errors(reduce) && !config->error_feedback) continue;
        aq_grad_codec_config_take(reduce, &config->reduce);
        out[count++].name = names[i];
    }
    return count;
}

double aq_grad_cost_seconds(const struct aq_grad_cost *cost, const struct aq_grad_scene *scene)
{
    const double wire_s = scene->rate > 0 ? (double)cost->bytes / scene->rate : 0;
    return 2 * scene->latency_s + (wire_s > cost->pack_s ? wire_s : cost->pack_s);
}

uint32_t aq_grad_choose(const struct aq_grad_cost *costs, uint32_t count, const struct aq_grad_scene *scene)
{
    AQ_ASSERT(count >= 1);
    double fastest = aq_grad_cost_seconds(&costs[0], scene);
    for (uint32_t i = 1; i < count; i++) {
        const double seconds = aq_grad_cost_seconds(&costs[i], scene);
        if (seconds < fastest) fastest = seconds;
    }
    const double unnoticed = AQ_CHOICE_SHARE * scene->compute_s, slack = AQ_CHOICE_SLACK * fastest;
    const double allowed = unnoticed > slack ? unnoticed : slack;
    uint32_t index = 0;
    while (index + 1 < count && aq_grad_cost_seconds(&costs[index], scene) > allowed)
        index++;
    return index;
}

/* ---- what an optimizer has of it ---- */

enum aq_status aq_optimizer_choice_place(struct aq_optimizer *optimizer)
{
    if (!optimizer->config.reduce_automatic || optimizer->group.size == 1) return AQ_OK;
    return aq_optimizer_take(optimizer, "reduce_choice", 1, AQ_STATE_REPLICATED, &optimizer->choice);
}

enum aq_status aq_optimizer_choose(struct aq_optimizer *optimizer, uint32_t index)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_grad_candidates(&optimizer->config, candidates);
    const float number = (float)(index + 1);
    if (!optimizer->choice) return aq_fail(AQ_INVAL, "optimizer", "its codec is not one to be chosen");
    if (index >= count)
        return aq_fail(AQ_INVAL, "optimizer", "codec %u was chosen, but there are only %u", (unsigned)index,
                       (unsigned)count);
    struct aq_grad_codec *codec = NULL;
    if (!aq_grad_codec_config_plain(&candidates[index].config))
        AQ_TRY(aq_grad_codec_open(&candidates[index].config, optimizer->tensors, optimizer->tensor_count,
                                  optimizer->parameters, &codec));
    aq_grad_codec_close(optimizer->codec);
    optimizer->codec = codec;
    AQ_TRY(aq_device_copy(optimizer->device, optimizer->choice, &number, sizeof number, NULL));
    return aq_device_stream_sync(optimizer->device, NULL);
}

enum aq_status aq_optimizer_chosen(struct aq_optimizer *optimizer, uint32_t *index)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_grad_candidates(&optimizer->config, candidates);
    float number = 0;
    *index = AQ_CHOICE_NONE;
    if (!optimizer->choice) return AQ_OK;
    AQ_TRY(aq_device_copy(optimizer->device, &number, optimizer->choice, sizeof number, NULL));
    AQ_TRY(aq_device_stream_sync(optimizer->device, NULL));
    if (number == 0) return AQ_OK;
    if (!(number >= 1 && number <= (float)count && number == (float)(uint32_t)number))
        return aq_fail(AQ_CORRUPT, "optimizer", "the checkpoint's choice of a codec is %g, must be 1 to %u",
                       (double)number, (unsigned)count);
    *index = (uint32_t)number - 1;
    return AQ_OK;
}
