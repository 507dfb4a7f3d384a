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
 * lane_bits p, reduce "lp": the p-bit allreduce. Q(c) = clamp(round(K c / (2 M)), +-K) with M the
 * (mean |c|^norm)^(1/norm) of the tensor travels as Q + K, and W ranks' sum must fit: 2 K W < 2^p, and
 * K <= 2^(bits-1) - 1. 8 ranks in 8 bits: K = 15; 8 ranks in 4 bits leave no K, and votes of 0 and 1 are summed (F.1),
 * where a tie is seen and moves nothing. With reduce "vote" there is no K for any W. W ranks whose votes do not fit are
 * refused.
 *
 * A bit has no zero, and rows of an embedding that no batch ever asks for (positions beyond the longest text) are
 * pushed to and fro by their votes. With mask_names the ranks first exchange which rows of those tensors have an update
 * vector anywhere; the others only decay, as sign(0) has it (B.1: "identified in advance and the updates masked").
 * Levels need no mask: they have a zero.
 *
 * Section 5: every momentum_every steps the momenta of the tensors whose names have one of momentum_names are averaged
 * in fp32 (the paper: embedding and head every 10 steps with b2 = 0.95; none needed at 0.99).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optimizer.h"

struct lioncub {
    float *m;
    float *c;                           /* the update vector, or what came of the votes on it */
    uint8_t *codes;                     /* Q + K of every parameter, lane_bits > 0 */
    uint64_t *lanes, *lanes_there;      /* where the host sends them from, and where they are made */
    double *mean, *counts;              /* M by tensor; L0: of how many values that are not zero */
    float *factor;                      /* what makes levels of c, by tensor */
    uint32_t levels;                    /* K; 0: votes */
    struct aq_optimizer_tensor *synced; /* merged tensors of momentum_names */
    uint32_t synced_count;
    const struct aq_flat_piece *rows; /* of mask_names, as they can be masked */
    float *used;                      /* by row: above 0 where a rank has an update vector */
    uint32_t row_count;
    struct {
        float *here, *there; /* of the host, and of the device: 2 * count floats                  */
        float *own;          /* the update vectors' values before the votes                       */
        uint64_t count;      /* of all tensors: at most AQ_OPTIMIZER_SAMPLE values each; 0: none   */
    } sample;                /* measure_every */
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
    const char *kind = config->reduce.kind ? config->reduce.kind : "fp32";
    const bool levels = config->lane_bits > 0 && strcmp(kind, "lp") == 0;
    AQ_TRY(aq_optimizer_check_range("beta1", config->beta1, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("beta2", config->beta2, 0.0f, 1.0f));
    if (config->lane_bits != 0 && config->lane_bits != 2 && config->lane_bits != 4 && config->lane_bits != 8 &&
        config->lane_bits != 16)
        return aq_fail(AQ_INVAL, "optimizer", "lane_bits is %u, must be 0, 2, 4, 8 or 16", (unsigned)config->lane_bits);
    if (!levels && strcmp(kind, "vote") != 0)
        return aq_fail(AQ_INVAL, "optimizer", "lioncub with lane_bits %u reduces by %s, not by %s",
                       (unsigned)config->lane_bits, config->lane_bits ? "lp or vote" : "vote", kind);
    return AQ_OK;
}

static const char *lioncub_takes(const struct aq_optimizer_config *config)
{
    const bool lanes = config->lane_bits > 0, lp = strcmp(config->reduce.kind, "lp") == 0;
    if (strcmp(config->reduce.kind, "vote") == 0 || (lanes && lp)) return NULL;
    return lanes ? "vote or lp2..lp8, because its lanes are numbers" : "vote (or lp2..lp8 with optimizer.lane_bits)";
}

static bool lioncub_codes(const struct aq_optimizer_config *config)
{
    return config->lane_bits == 0;
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

/* The rows of a tensor that can be masked; one that is no matrix is one row. */
static uint64_t rows_of(const struct aq_optimizer_config *config, const struct aq_optimizer_tensor *tensor)
{
    if (!name_matches(tensor->name, config->mask_names)) return 0;
    return tensor->rows > 1 ? tensor->rows : 1;
}

static uint32_t list_rows(const struct aq_optimizer *optimizer, struct aq_flat_piece *out)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        const uint64_t rows = rows_of(&optimizer->config, tensor), columns = rows ? tensor->count / rows : 0;
        for (uint64_t r = 0; r < rows; r++, count++)
            if (out)
                out[count] = (struct aq_flat_piece){
                    .first = tensor->offset + r * columns, .count = (uint32_t)columns, .tensor = t};
    }
    return count;
}

static enum aq_status place_rows(struct aq_optimizer *optimizer, struct lioncub *own)
{
    const uint32_t count = own->levels > 0 ? 0 : list_rows(optimizer, NULL);
    const size_t bytes = count * sizeof *own->rows;
    void *rows, *used, *there;
    if (count == 0) return AQ_OK;
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, bytes, &rows));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, count * sizeof *own->used, &used));
    own->used = used;
    own->row_count = count;
    own->rows = rows;
    if (rows) (void)list_rows(optimizer, rows);
    if (!optimizer->isolated) return AQ_OK;
    AQ_TRY(aq_optimizer_scratch_device(optimizer, bytes, &there));
    own->rows = there;
    AQ_TRY(aq_device_copy(optimizer->device, there, rows, bytes, NULL));
    return aq_device_stream_sync(optimizer->device, NULL);
}

/* Values of a tensor that measures look at. */
static uint64_t sample_of(const struct aq_optimizer_tensor *tensor)
{
    return tensor->count < AQ_OPTIMIZER_SAMPLE ? tensor->count : AQ_OPTIMIZER_SAMPLE;
}

/* K: what the lanes hold of W ranks, and the quantizer's bits allow. 0: votes. */
static uint32_t levels_of(const struct aq_optimizer_config *config, uint32_t W)
{
    if (strcmp(config->reduce.kind, "vote") == 0) return 0;
    const uint32_t most = (1u << config->lane_bits) - 1, wanted = (1u << (config->reduce.bits - 1)) - 1;
    const uint32_t fit = most / (2 * W);
    return fit < wanted ? fit : wanted;
}

static enum aq_status fit_levels(const struct aq_optimizer *optimizer, uint32_t *levels)
{
    const uint32_t bits = optimizer->config.lane_bits, W = optimizer->group.size, most = (1u << bits) - 1;
    if (W > most)
        return aq_fail(AQ_INVAL, "optimizer", "lane_bits %u hold sums up to %u: the votes of %u replicas do not fit",
                       (unsigned)bits, (unsigned)most, (unsigned)W);
    *levels = levels_of(&optimizer->config, W);
    return AQ_OK;
}

/* Rows that are masked add a float each; momenta that are averaged are in fp32. */
static void lioncub_traffic(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out)
{
    const struct aq_optimizer_config *config = sent->config;
    const bool lanes = config->lane_bits > 0, levels = lanes && levels_of(config, sent->W) > 0;
    uint64_t rows = 0, synced = 0, sample = 0;
    for (uint32_t t = 0; t < sent->tensor_count; t++) {
        sample += sample_of(&sent->tensors[t]);
        rows += levels ? 0 : rows_of(config, &sent->tensors[t]);
        synced += name_matches(sent->tensors[t].name, config->momentum_names) ? sent->tensors[t].count : 0;
    }
    if (lanes) out->step_bytes = aq_lanes_bytes(sent->parameters, config->lane_bits);
    out->step_bytes += rows * sizeof(float);
    out->every = synced > 0 ? config->momentum_every : 0;
    out->every_bytes = synced * sizeof(float);
    out->measure_every = config->measure_every;
    out->measure_bytes = 2 * sample * sizeof(float);
}

static enum aq_status place_lanes(struct aq_optimizer *optimizer, struct lioncub *own)
{
    const size_t bytes = aq_lanes_bytes(optimizer->parameters, optimizer->config.lane_bits);
    void *memory;
    AQ_TRY(fit_levels(optimizer, &own->levels));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)optimizer->parameters, &memory));
    own->codes = memory;
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, bytes, &memory));
    own->lanes = own->lanes_there = memory;
    if (optimizer->isolated) AQ_TRY(aq_optimizer_scratch_device(optimizer, bytes, &memory));
    if (optimizer->isolated) own->lanes_there = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, optimizer->tensor_count * (2 * sizeof(double) + sizeof(float)), &memory));
    own->mean = memory;
    if (memory) own->counts = own->mean + optimizer->tensor_count;
    if (memory) own->factor = (float *)(own->counts + optimizer->tensor_count);
    return AQ_OK;
}

static enum aq_status place_sample(struct aq_optimizer *optimizer, struct lioncub *own)
{
    void *memory;
    if (optimizer->config.measure_every == 0) return AQ_OK;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        own->sample.count += sample_of(&optimizer->tensors[t]);
    const size_t bytes = (size_t)own->sample.count * sizeof(float);
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, 3 * bytes, &memory));
    own->sample.here = own->sample.there = memory;
    own->sample.own = memory ? own->sample.here + 2 * own->sample.count : NULL;
    if (optimizer->isolated) AQ_TRY(aq_optimizer_scratch_device(optimizer, 2 * bytes, &memory));
    if (optimizer->isolated) own->sample.there = memory;
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
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)optimizer->parameters * sizeof(float), &memory));
    own->c = memory;
    if (optimizer->config.lane_bits > 0) AQ_TRY(place_lanes(optimizer, own));
    AQ_TRY(place_rows(optimizer, own));
    AQ_TRY(place_sample(optimizer, own));
    return place_synced(optimizer, own);
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct lioncub *own = optimizer->own;
    struct aq_fused kernel = aq_optimizer_fused_of(optimizer, kind);
    kernel.m = own->m;
    kernel.c = own->c;
    kernel.codes = own->codes;
    kernel.lanes = own->lanes_there;
    kernel.rows = own->rows;
    kernel.used = own->used;
    kernel.count = optimizer->parameters;
    kernel.lane_bits = optimizer->config.lane_bits;
    kernel.size = (float)own->levels;
    kernel.norm = optimizer->config.reduce.norm;
    kernel.tie = optimizer->call.step % 2 == 1;
    /* Twice the sum of votes, or the sum of Q + K: a tie is equal to this. */
    kernel.times = own->levels ? 1 : 2;
    kernel.middle = own->levels ? own->levels * optimizer->group.size : optimizer->group.size;
    return kernel;
}

/* ---- what the paper chooses by: do updates have the sign of the votes, and are momenta alike? ---- */

static bool measures_now(const struct aq_optimizer *optimizer)
{
    const uint64_t every = optimizer->config.measure_every;
    return optimizer->group.size > 1 && every > 0 && optimizer->call.step % every == 0;
}

/* Some values of x of each tensor that follow each other, another run of them in each step, alike on all ranks. */
static enum aq_status sample_take(struct aq_optimizer *optimizer, const float *x, float *out)
{
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const struct aq_optimizer_tensor *tensor = &optimizer->tensors[t];
        const uint64_t n = sample_of(tensor), free = tensor->count - n + 1;
        const struct aq_rng_key key = aq_rng_key(optimizer->config.seed, AQ_RNG_REDUCE, optimizer->call.step, t);
        const uint64_t first = (uint64_t)((double)aq_rng_uniform(&key, 0) * (double)free) % free;
        AQ_TRY(aq_device_copy(optimizer->device, out, x + tensor->offset + first, n * sizeof *out,
                              optimizer->call.stream));
        out += n;
    }
    return aq_device_stream_sync(optimizer->device, optimizer->call.stream);
}

static int sign(float x)
{
    return (x > 0.0f) - (x < 0.0f);
}

/* c is what came of the votes. */
static enum aq_status state_match(struct aq_optimizer *optimizer)
{
    const struct lioncub *own = optimizer->own;
    uint64_t same = 0;
    AQ_TRY(sample_take(optimizer, own->c, own->sample.here));
    for (uint64_t i = 0; i < own->sample.count; i++)
        same += sign(own->sample.here[i]) == sign(own->sample.own[i]);
    aq_optimizer_figure_set(optimizer, "sign_match", (double)same / (double)own->sample.count);
    return AQ_OK;
}

/* The means over the ranks of m and of its square. */
static enum aq_status ask_spread(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    const struct lioncub *own = optimizer->own;
    float *const m = own->sample.here, *const squares = m + own->sample.count;
    const uint64_t count = 2 * own->sample.count;
    AQ_TRY(sample_take(optimizer, own->m, m));
    for (uint64_t i = 0; i < own->sample.count; i++)
        squares[i] = m[i] * m[i];
    if (optimizer->isolated)
        AQ_TRY(aq_device_copy(optimizer->device, own->sample.there, m, count * sizeof *m, optimizer->call.stream));
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = own->sample.there, .count = count, .step = optimizer->call.step};
    return AQ_OK;
}

/* By tensors, in order: of which one momenta differ most is logged, because that one is to be named. */
static enum aq_status state_spread(struct aq_optimizer *optimizer)
{
    const struct lioncub *own = optimizer->own;
    const float *mean = own->sample.here, *square = mean + own->sample.count;
    double variance = 0.0, size = 0.0, most = -1.0;
    uint32_t worst = 0;
    if (optimizer->isolated) {
        AQ_TRY(aq_device_copy(optimizer->device, own->sample.here, own->sample.there,
                              2 * own->sample.count * sizeof *mean, optimizer->call.stream));
        AQ_TRY(aq_device_stream_sync(optimizer->device, optimizer->call.stream));
    }
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        double tensor = 0.0, of = 0.0;
        for (uint64_t n = sample_of(&optimizer->tensors[t]); n > 0; n--, mean++, square++) {
            tensor += fmax((double)*square - (double)*mean * (double)*mean, 0.0);
            of += (double)*square;
        }
        if (of > 0.0 && tensor / of > most) {
            most = tensor / of;
            worst = t;
        }
        variance += tensor;
        size += of;
    }
    if (!(size > 0.0)) return AQ_OK;
    aq_optimizer_figure_set(optimizer, "momentum_spread", sqrt(variance / size));
    if (optimizer->tensors[worst].name)
        aq_log("optimizer", 3, "lioncub, step %llu: momenta of the ranks differ most in %s, by %.3f of their size",
               (unsigned long long)optimizer->call.step, optimizer->tensors[worst].name, sqrt(most));
    return AQ_OK;
}

/* Over `count` things that are of no tensor. */
static enum aq_status fused_things(struct aq_optimizer *optimizer, enum aq_fused_kind kind, uint64_t count)
{
    struct aq_fused kernel = kernel_of(optimizer, kind);
    kernel.end = count;
    kernel.piece_count = (uint32_t)((count + AQ_FLAT_PIECE - 1) / AQ_FLAT_PIECE);
    return aq_optimizer_fused(optimizer, &kernel);
}

static enum aq_status fused_words(struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const size_t bytes = aq_lanes_bytes(optimizer->parameters, optimizer->config.lane_bits);
    return fused_things(optimizer, kind, bytes / sizeof(uint64_t));
}

/* M by tensor, or rather 2 M; of L0 from logarithms, of others from sums of powers. */
static void fold_means(struct aq_optimizer *optimizer)
{
    struct lioncub *own = optimizer->own;
    const float norm = optimizer->config.reduce.norm;
    const bool geometric = norm == AQ_GRAD_NORM_L0;
    aq_optimizer_fold(optimizer, 0, own->mean);
    if (geometric) aq_optimizer_fold(optimizer, 1, own->counts);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const double count = geometric ? own->counts[t] : (double)optimizer->tensors[t].count;
        const double mean = count > 0.0 ? own->mean[t] / count : 0.0;
        if (geometric)
            own->mean[t] = count > 0.0 ? 2.0 * exp(mean) : 0.0;
        else
            own->mean[t] = 2.0 * pow(mean, 1.0 / (double)norm);
    }
}

/* M by tensor, or rather 2 M, or the peak; and what makes levels of c by it. */
static enum aq_status measure(struct aq_optimizer *optimizer)
{
    struct lioncub *own = optimizer->own;
    if (isinf(optimizer->config.reduce.norm))
        aq_optimizer_fold_max(optimizer, 1, own->mean);
    else
        fold_means(optimizer);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const float M = (float)own->mean[t];
        const float factor = M > 0.0f ? (float)own->levels / M : 0.0f;
        own->factor[t] = isfinite(factor) ? factor : 0.0f; /* too large: 0 times it would not be a number */
    }
    return aq_optimizer_values(optimizer, 1, own->factor);
}

static enum aq_status send_lanes(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    struct lioncub *own = optimizer->own;
    const size_t bytes = aq_lanes_bytes(optimizer->parameters, optimizer->config.lane_bits);
    const struct aq_fused code = kernel_of(optimizer, own->levels ? AQ_FUSED_LIONCUB_QUANTIZE : AQ_FUSED_LIONCUB_VOTE);
    if (own->levels > 0) AQ_TRY(measure(optimizer));
    AQ_TRY(aq_optimizer_fused(optimizer, &code));
    AQ_TRY(fused_words(optimizer, AQ_FUSED_LIONCUB_PACK));
    if (optimizer->isolated) {
        AQ_TRY(aq_device_copy(optimizer->device, own->lanes, own->lanes_there, bytes, optimizer->call.stream));
        AQ_TRY(aq_device_stream_sync(optimizer->device, optimizer->call.stream));
    }
    *out = (struct aq_reduce){.kind = AQ_REDUCE_LANES,
                              .count = optimizer->parameters,
                              .lanes = own->lanes,
                              .lane_bits = optimizer->config.lane_bits,
                              .step = optimizer->call.step};
    return AQ_OK;
}

/* c = sign(S). */
static enum aq_status take_lanes(struct aq_optimizer *optimizer)
{
    const struct lioncub *own = optimizer->own;
    const size_t bytes = aq_lanes_bytes(optimizer->parameters, optimizer->config.lane_bits);
    if (optimizer->isolated)
        AQ_TRY(aq_device_copy(optimizer->device, own->lanes_there, own->lanes, bytes, optimizer->call.stream));
    return fused_words(optimizer, AQ_FUSED_LIONCUB_UNPACK);
}

static enum aq_status make_vector(struct aq_optimizer *optimizer)
{
    const struct lioncub *own = optimizer->own;
    const float norm = optimizer->config.reduce.norm;
    const enum aq_fused_kind sizes = norm == AQ_GRAD_NORM_L0         ? AQ_FUSED_LIONCUB_VECTOR_LOGS
                                     : norm == 1.0f || isinf(norm) ? AQ_FUSED_LIONCUB_VECTOR_SIZES
                                                                   : AQ_FUSED_LIONCUB_VECTOR_POWERS;
    const struct aq_fused vector = kernel_of(optimizer, own->levels ? sizes : AQ_FUSED_LIONCUB_VECTOR);
    return aq_optimizer_fused(optimizer, &vector);
}

/* Which rows have an update vector anywhere: a mean of zeros and ones, of which it matters that it is above zero. */
static enum aq_status ask_used(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    const struct lioncub *own = optimizer->own;
    AQ_TRY(fused_things(optimizer, AQ_FUSED_LIONCUB_USED, own->row_count));
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = own->used, .count = own->row_count, .step = optimizer->call.step};
    return AQ_OK;
}

static enum aq_status ask_votes(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    const struct lioncub *own = optimizer->own;
    if (own->lanes) return send_lanes(optimizer, out);
    aq_optimizer_ask(optimizer, own->c, out);
    return AQ_OK;
}

/* Lines 5 and 6, with what the ranks have agreed on. */
static enum aq_status take_step(struct aq_optimizer *optimizer)
{
    const struct lioncub *own = optimizer->own;
    const struct aq_fused step = kernel_of(optimizer, AQ_FUSED_LIONCUB_STEP);
    if (own->lanes) AQ_TRY(take_lanes(optimizer));
    if (own->row_count > 0) AQ_TRY(fused_things(optimizer, AQ_FUSED_LIONCUB_MASK, own->row_count));
    if (measures_now(optimizer)) AQ_TRY(state_match(optimizer));
    return aq_optimizer_fused(optimizer, &step);
}

/* The momenta that are averaged, one a round; also of a step that is void. */
static enum aq_status lioncub_due(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct lioncub *own = optimizer->own;
    const uint64_t every = optimizer->config.momentum_every, step = optimizer->call.step;
    if (every == 0 || step % every != 0 || optimizer->group.size == 1 || round >= own->synced_count) return AQ_OK;
    const struct aq_optimizer_tensor *synced = &own->synced[round];
    *out =
        (struct aq_reduce){.kind = AQ_REDUCE_MEAN, .x = own->m + synced->offset, .count = synced->count, .step = step};
    return AQ_OK;
}

static enum aq_status lioncub_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct lioncub *own = optimizer->own;
    const uint32_t votes = own->row_count > 0 ? 1 : 0; /* the round that asks for them */
    if (optimizer->group.size == 1) {
        const struct aq_fused step = kernel_of(optimizer, AQ_FUSED_LION);
        return aq_optimizer_fused(optimizer, &step);
    }
    const bool measures = measures_now(optimizer);
    if (round == 0) AQ_TRY(make_vector(optimizer));
    if (round == 0 && measures) AQ_TRY(sample_take(optimizer, own->c, own->sample.own));
    if (round < votes) return ask_used(optimizer, out);
    if (round == votes) return ask_votes(optimizer, out);
    if (round == votes + 1) AQ_TRY(take_step(optimizer));
    if (round == votes + 1 && measures) return ask_spread(optimizer, out);
    if (round == votes + 2 && measures) AQ_TRY(state_spread(optimizer));
    return lioncub_due(optimizer, round - votes - 1 - measures, out);
}

const struct aq_optimizer_kind aq_optimizer_lioncub = {
    .name = "lioncub",
    .config_default = lioncub_config_default,
    .config_check = lioncub_config_check,
    .takes = lioncub_takes,
    .codes = lioncub_codes,
    .traffic = lioncub_traffic,
    .place = lioncub_place,
    .update = lioncub_update,
    .due = lioncub_due,
};
