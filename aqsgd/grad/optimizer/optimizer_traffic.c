/*
 * optimizer_traffic.c -- the bytes that an optimizer sends in a run, known before it: those of a warm-up, of later
 * steps, and of what is sent now and then.
 *
 * Each kind states what differs from the common case (struct aq_optimizer_kind, traffic): all parameters in the codec
 * of `reduce`, in each step. tests/aqsgd/test_optimizer_rules.c compares these numbers with the reductions that are
 * asked for.
 */
#include <math.h>

#include "optimizer.h"
#include "optimizer_low_rank.h"

static enum aq_status coded_bytes(const struct aq_optimizer_sent *sent, uint64_t *out)
{
    struct aq_grad_codec_config config = sent->config->reduce;
    struct aq_grad_codec *codec;
    if (!config.kind) aq_grad_codec_config_default(&config, "fp32");
    AQ_TRY(aq_grad_codec_open(&config, sent->tensors, sent->tensor_count, sent->parameters, &codec));
    *out = aq_grad_codec_bytes_pieces(codec, 0, sent->parameters);
    aq_grad_codec_close(codec);
    if (aq_grad_codec_config_one_sided(&config)) *out = (*out + sent->parameters * sizeof(float)) / 2;
    return AQ_OK;
}

void aq_optimizer_traffic_warmup(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out)
{
    out->warmup_steps = sent->config->warmup_steps;
}

enum aq_status aq_optimizer_config_traffic(const struct aq_optimizer_config *config,
                                           const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                           uint64_t parameters, uint32_t W, struct aq_optimizer_traffic *out)
{
    const struct aq_optimizer_kind *kind = aq_optimizer_kind_of(config);
    const struct aq_optimizer_sent sent = {
        .config = config, .tensors = tensors, .tensor_count = tensor_count, .W = W, .parameters = parameters};
    struct aq_optimizer_traffic traffic = {.coded = aq_optimizer_config_codes(config),
                                           .warmup_bytes = parameters * sizeof(float)};
    if (traffic.coded && parameters > 0) AQ_TRY(coded_bytes(&sent, &traffic.step_bytes));
    if (kind->averages_gradients && config->low_rank > 0) aq_low_rank_traffic(&sent, &traffic);
    if (kind->traffic) kind->traffic(&sent, &traffic);
    *out = traffic;
    return AQ_OK;
}

uint64_t aq_optimizer_traffic_warm(const struct aq_optimizer_traffic *traffic, uint64_t steps)
{
    const uint64_t warm = steps < traffic->warmup_steps ? steps : traffic->warmup_steps;
    const double n = (double)warm, f = traffic->falling, sum = f < 1.0 ? f * (1.0 - pow(f, n)) / (1.0 - f) : n;
    return warm * traffic->warmup_bytes + (uint64_t)(sum * (double)traffic->falling_bytes);
}

uint64_t aq_optimizer_traffic_bytes(const struct aq_optimizer_traffic *traffic, uint64_t steps)
{
    const uint64_t warm = steps < traffic->warmup_steps ? steps : traffic->warmup_steps;
    uint64_t times = traffic->every ? steps / traffic->every : 0;
    if (traffic->every && traffic->last && steps % traffic->every != 0) times++;
    const uint64_t measures = traffic->measure_every ? steps / traffic->measure_every : 0;
    return aq_optimizer_traffic_warm(traffic, steps) + (steps - warm) * traffic->step_bytes +
           times * traffic->every_bytes + measures * traffic->measure_bytes;
}
