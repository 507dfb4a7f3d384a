/*
 * optimizer_lioncub.c -- Lion Cub: Ishikawa et al., "Lion Cub", Algorithm 1 (appendix F.1), sections 3 to 5.
 *
 *     line 3   c = b1 m + (1 - b1) own g
 *     line 4   S = sum over ranks of Q(c)
 *     line 5   x -= lr (sign(S) + weight_decay x)          (the paper prints the decay's sign the other way round)
 *     line 6   m = b2 m + (1 - b2) own g                   each rank's own
 *
 * lane_bits 0: the 1-bit allreduce, votes both ways; a tie, and a c of exactly zero, is +1 at odd steps and -1 at even
 * ones (B.1). With it this is Distributed Lion's majority vote (Liu et al. 2024) without its server.
 *
 * lane_bits p: the p-bit allreduce. Q(c) = clamp(round(K c / (2 M)), +-K) with M the (mean |c|^norm)^(1/norm) of the
 * tensor travels as Q + K, and W ranks' sum must fit: 2 K W < 2^p, and K <= 2^(bits-1) - 1. 8 ranks in 8 bits: K = 15;
 * 8 ranks in 4 bits leave no K, and votes of 0 and 1 are summed (F.1), where a tie is seen and moves nothing. W ranks
 * whose votes do not fit are refused.
 *
 * Section 5: every momentum_every steps the momenta of the tensors whose names have one of momentum_names are averaged
 * in fp32 (the paper: embedding and head every 10 steps with b2 = 0.95; none needed at 0.99).
 */
#include <math.h>
#include <string.h>

#include "optimizer.h"

enum { PACK_FLOATS = 65536 };

struct lioncub {
    float *m;
    float *c;       /* the update vector, or what came of the votes on it */
    uint8_t *codes; /* Q + K of every parameter, lane_bits > 0 */
    uint8_t *lanes;
    double *mean;                       /* M by tensor */
    uint32_t levels;                    /* K; 0: votes */
    struct aq_optimizer_tensor *synced; /* merged tensors of momentum_names */
    uint32_t synced_count;
};

static void lioncub_config_default(struct aq_optimizer_config *out)
{
    out->beta1 = 0.9f;
    out->beta2 = 0.99f;
    out->weight_decay = 1.0f;
    aq_grad_codec_config_default(&out->reduce, "vote");
}

static enum aq_status lioncub_config_check(const struct aq_optimizer_config *config)
{
    const char *wanted = config->lane_bits == 0 ? "vote" : "lp";
    AQ_TRY(aq_optimizer_check_range("beta1", config->beta1, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("beta2", config->beta2, 0.0f, 1.0f));
    if (config->lane_bits != 0 && config->lane_bits != 2 && config->lane_bits != 4 && config->lane_bits != 8 &&
        config->lane_bits != 16)
        return aq_fail(AQ_INVAL, "optimizer", "lane_bits is %u, must be 0, 2, 4, 8 or 16", (unsigned)config->lane_bits);
    if (!config->reduce.kind || strcmp(config->reduce.kind, wanted) != 0)
        return aq_fail(AQ_INVAL, "optimizer", "lioncub with lane_bits %u reduces by %s, not by %s",
                       (unsigned)config->lane_bits, wanted, config->reduce.kind ? config->reduce.kind : "fp32");
    return AQ_OK;
}

static bool name_matches(const char *name, const char *patterns)
{
    if (!name || !patterns) return false;
    while (*patterns) {
        const size_t length = strcspn(patterns, ",");
        if (length == 1 && patterns[0] == '*') return true;
        for (const char *at = name; length > 0 && *at; at++) {
            if (strncmp(at, patterns, length) == 0) return true;
        }
        patterns += length + (patterns[length] == ',');
    }
    return false;
}

static enum aq_status place_synced(struct aq_optimizer *optimizer, struct lioncub *own)
{
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, optimizer->tensor_count * sizeof(struct aq_optimizer_tensor), &memory));
    own->synced = memory;
    for (uint32_t t = 0; memory && t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        if (!name_matches(tensor->name, optimizer->config.momentum_names)) continue;
        struct aq_optimizer_tensor *last = own->synced_count ? &own->synced[own->synced_count - 1] : NULL;
        if (last && last->offset + last->count == tensor->offset)
            last->count += tensor->count;
        else
            own->synced[own->synced_count++] = *tensor;
    }
    return AQ_OK;
}

/* K: what the lanes hold of W ranks, and the quantizer's bits allow. */
static enum aq_status fit_levels(const struct aq_optimizer *optimizer, uint32_t *levels)
{
    const uint32_t bits = optimizer->config.lane_bits, W = optimizer->group.size;
    const uint32_t most = (1u << bits) - 1, wanted = (1u << (optimizer->config.reduce.bits - 1)) - 1;
    if (W > most)
        return aq_fail(AQ_INVAL, "optimizer", "lane_bits %u hold sums up to %u: the votes of %u replicas do not fit",
                       (unsigned)bits, (unsigned)most, (unsigned)W);
    const uint32_t fit = most / (2 * W);
    *levels = fit < wanted ? fit : wanted;
    return AQ_OK;
}

static enum aq_status place_lanes(struct aq_optimizer *optimizer, struct lioncub *own)
{
    void *memory;
    AQ_TRY(fit_levels(optimizer, &own->levels));
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)optimizer->parameters, &memory));
    own->codes = memory;
    AQ_TRY(
        aq_optimizer_scratch(optimizer, aq_lanes_bytes(optimizer->parameters, optimizer->config.lane_bits), &memory));
    own->lanes = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, optimizer->tensor_count * sizeof(double), &memory));
    own->mean = memory;
    return AQ_OK;
}

static enum aq_status lioncub_place(struct aq_optimizer *optimizer)
{
    struct lioncub unplaced = {.m = NULL}, *own;
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof *own, &memory));
    optimizer->own = memory;
    own = memory ? memory : &unplaced;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_LOCAL, &own->m));
    if (optimizer->group.size == 1) return AQ_OK;
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)optimizer->parameters * sizeof(float), &memory));
    own->c = memory;
    if (optimizer->config.lane_bits > 0) AQ_TRY(place_lanes(optimizer, own));
    return place_synced(optimizer, own);
}

/* Line 3, and what M wants to know of c. */
static void vector_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct lioncub *own = optimizer->own;
    const float b1 = optimizer->config.beta1, c1 = 1.0f - b1, norm = optimizer->config.reduce.norm;
    const float *g = optimizer->call.update_gradients + piece->first, *m = own->m + piece->first;
    float *c = own->c + piece->first;
    double sum = 0.0, peak = 0.0;
    for (uint32_t i = 0; i < piece->count; i++)
        c[i] = b1 * m[i] + c1 * (g[i] * optimizer->call.grad_scale);
    if (own->levels == 0) return;
    for (uint32_t i = 0; i < piece->count; i++) {
        const double size = fabs((double)c[i]);
        sum += norm == 1.0f ? size : isinf(norm) ? 0.0 : pow(size, (double)norm);
        if (size > peak) peak = size;
    }
    aq_optimizer_sums(optimizer, index)[0] = sum;
    aq_optimizer_sums(optimizer, index)[1] = peak;
}

static void quantize_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct lioncub *own = optimizer->own;
    const float *c = own->c + piece->first;
    uint8_t *codes = own->codes + piece->first;
    (void)index;
    if (own->levels == 0) {
        const bool tie = optimizer->call.step % 2 == 1;
        for (uint32_t i = 0; i < piece->count; i++)
            codes[i] = (uint8_t)(tie ? c[i] >= 0.0f : c[i] > 0.0f);
        return;
    }
    const float K = (float)own->levels, M = (float)own->mean[piece->tensor];
    const float factor = M > 0.0f ? K / M : 0.0f; /* M is 2 M of the formula, or the peak */
    for (uint32_t i = 0; i < piece->count; i++) {
        float q = rintf(factor * c[i]);
        q = q > K ? K : q < -K ? -K : q;
        codes[i] = (uint8_t)(q + K);
    }
}

/* Lanes of PACK_FLOATS parameters, which end on a whole word. */
static void pack_block(uint32_t block, void *context)
{
    const struct aq_optimizer *optimizer = context;
    const struct lioncub *own = optimizer->own;
    const uint32_t bits = optimizer->config.lane_bits;
    const uint64_t first = (uint64_t)block * PACK_FLOATS, left = optimizer->parameters - first;
    const uint64_t end = left < PACK_FLOATS ? first + left : first + PACK_FLOATS, each = 64 / bits;
    for (uint64_t i = first; i < end; i += each) {
        uint64_t word = 0;
        for (uint64_t j = i; j < i + each && j < end; j++)
            word |= (uint64_t)own->codes[j] << (j - i) * bits;
        memcpy(own->lanes + i / each * 8, &word, sizeof word);
    }
}

/* c = sign(S). */
static void unpack_block(uint32_t block, void *context)
{
    const struct aq_optimizer *optimizer = context;
    const struct lioncub *own = optimizer->own;
    const uint32_t bits = optimizer->config.lane_bits;
    const uint64_t first = (uint64_t)block * PACK_FLOATS, left = optimizer->parameters - first;
    const uint64_t end = left < PACK_FLOATS ? first + left : first + PACK_FLOATS, each = 64 / bits;
    const uint32_t mask = (1u << bits) - 1, W = optimizer->group.size;
    /* Twice the sum of votes, or the sum of Q + K: what is no tie lies on one side of this. */
    const uint32_t times = own->levels ? 1 : 2, middle = own->levels ? own->levels * W : W;
    for (uint64_t i = first; i < end; i += each) {
        uint64_t word;
        memcpy(&word, own->lanes + i / each * 8, sizeof word);
        for (uint64_t j = i; j < i + each && j < end; j++) {
            const uint32_t sum = (uint32_t)(word >> (j - i) * bits) & mask;
            own->c[j] = (float)((times * sum > middle) - (times * sum < middle));
        }
    }
}

static void each_block(struct aq_optimizer *optimizer, void (*run)(uint32_t block, void *context))
{
    const uint64_t blocks = (optimizer->parameters + PACK_FLOATS - 1) / PACK_FLOATS;
    if (blocks > 0) aq_device_parallel(optimizer->device, (uint32_t)blocks, run, optimizer);
}

static void send_lanes(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    struct lioncub *own = optimizer->own;
    const float norm = optimizer->config.reduce.norm;
    if (own->levels > 0) {
        aq_optimizer_fold(optimizer, 0, own->mean);
        if (isinf(norm)) aq_optimizer_fold_max(optimizer, 1, own->mean);
        for (uint32_t t = 0; t < optimizer->tensor_count && !isinf(norm); t++)
            own->mean[t] = 2.0 * pow(own->mean[t] / (double)optimizer->tensors[t].count, 1.0 / (double)norm);
    }
    aq_optimizer_each(optimizer, quantize_piece);
    each_block(optimizer, pack_block);
    *out = (struct aq_reduce){.kind = AQ_REDUCE_LANES,
                              .count = optimizer->parameters,
                              .lanes = own->lanes,
                              .lane_bits = optimizer->config.lane_bits,
                              .step = optimizer->call.step};
}

/* Lines 5 and 6; c holds sign(S). */
static void step_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct lioncub *own = optimizer->own;
    const struct aq_optimizer_call *call = &optimizer->call;
    const float b1 = optimizer->config.beta1, c1 = 1.0f - b1, b2 = optimizer->config.beta2, c2 = 1.0f - b2;
    const float decay = aq_optimizer_decay(optimizer, piece);
    const bool alone = optimizer->group.size == 1;
    const float *gradients = call->update_gradients + piece->first;
    float *p = call->parameters + piece->first, *m = own->m + piece->first;
    (void)index;
    for (uint32_t i = 0; i < piece->count; i++) {
        const float g = gradients[i] * call->grad_scale;
        const float c = alone ? b1 * m[i] + c1 * g : own->c[piece->first + i];
        p[i] -= call->lr * ((float)((c > 0.0f) - (c < 0.0f)) + decay * p[i]);
        m[i] = b2 * m[i] + c2 * g;
    }
}

static enum aq_status lioncub_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct lioncub *own = optimizer->own;
    const struct aq_optimizer_config *config = &optimizer->config;
    if (round == 0 && optimizer->group.size > 1) {
        aq_optimizer_each(optimizer, vector_piece);
        if (config->lane_bits > 0)
            send_lanes(optimizer, out);
        else
            aq_optimizer_ask(optimizer, own->c, out);
        return AQ_OK;
    }
    if (round <= 1) {
        if (own->lanes) each_block(optimizer, unpack_block);
        aq_optimizer_each(optimizer, step_piece);
    }
    if (config->momentum_every == 0 || optimizer->call.step % config->momentum_every != 0) return AQ_OK;
    if (round == 0 || round - 1 >= own->synced_count) return AQ_OK;
    const struct aq_optimizer_tensor *synced = &own->synced[round - 1];
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = own->m + synced->offset, .count = synced->count, .step = optimizer->call.step};
    return AQ_OK;
}

const struct aq_optimizer_kind aq_optimizer_lioncub = {
    .name = "lioncub",
    .walks = true,
    .host = true,
    .config_default = lioncub_config_default,
    .config_check = lioncub_config_check,
    .place = lioncub_place,
    .update = lioncub_update,
};
