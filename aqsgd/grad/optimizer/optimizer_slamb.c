/*
 * optimizer_slamb.c -- SLAMB: Xu et al., "SLAMB", ICML 2023, Algorithm 1 and appendix E.
 *
 *     line 6       mask: each parameter with probability density (k), from Philox of (seed, step): alike on all ranks
 *     line 7, 8    m = b1 m + (1 - b1) own g;  where the mask is: m = mean over ranks
 *     line 9       the same of g, with sync_gradient (the paper skips it in all experiments, section 4.1)
 *     line 10-12   v = b2 v + (1 - b2) g g;  u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay x
 *     line 13      c = 1 where the mask is, b3 c elsewhere (staleness; 1 at the beginning)
 *     line 21      every sync_every steps (H), and at total_steps: x = mean over ranks
 *
 * The step, by form, with phi = clip to [coefficient_min, coefficient_max], xM the masked part of x, xN the rest:
 *
 *     appendix     phi_max = phi(|xM| / |uM|), phi_min = phi(|xN| / |uN|);      (appendix E: what was run)
 *                  x -= (lr c + lr / sqrt(W) (1 - c)) (phi_max c + phi_min (1 - c)) u
 *     paper        the same; a part of x that is all zeros has phi(0) = coefficient_min
 *     algorithm    phi_max = phi(|xM| |u| / |uM|), phi_min alike; the same over |u|      (lines 15 to 19)
 *     code         x -= lr phi_max c u + lr / sqrt(W) phi_min (1 - c) u      (the published code)
 *
 * If the norm of a part is zero (the mask took nothing of a tensor, or x is all zeros), the ratio is 1, as in LAMB and
 * in the published code, but clipped like any other: the theorem's assumption 5 requires phi bounded for every
 * argument, and with a sparse mask an unclipped 1 is up to coefficient_min^-1 times the step of its neighbours. In form
 * "code" phi_min is 0 there, and is clipped only from above.
 *
 * Values of the masks travel in fp32, or in fp16 or bf16 (`reduce`; section 5.1: the paper's runs are in fp16); the
 * average of line 21 always in fp32, because in 16 bits it would round the weights of all ranks every H steps.
 * density_steps: in its first steps k falls from 1 to density, by the same factor per step (appendix D lowers it by
 * epochs and does not say how).
 *
 * Between two averages every rank has its own parameters, and m, v, c are always its own. Tensors of fewer floats than
 * dense_below are sent whole. Gradients that a machine's ranks have averaged among themselves first (appendix E) come
 * in as they are: the group is then one of machines (reduce.machine_first). With W = 1 the mask is everything, and this
 * is LAMB.
 *
 * Parameters without a gradient need no rule here, as those of 1-bit Adam do (aq_optimizer_noise_drop): momenta are
 * sent in fp32, so nothing of a parameter's neighbours gets into its momentum, and v is not frozen.
 *
 * Differs from the published code: the mask has its own generator and touches no other random number. Defaults: the
 * paper's (k 0.1, H 100, b3 0.95; phi in [0.01, 0.4] as for BERT).
 */
#include <math.h>
#include <string.h>

#include "optimizer_lamb.h"

/* Meaning of a tensor's values. */
enum { PHI_MAX = 1, PHI_MIN = 2, OVER = 3, SHARE = 4 };

struct slamb {
    float *m, *v, *c;
    uint8_t *mask;
    uint64_t *sent_at, *sent_at_there; /* of a piece's masked floats in sent; one more than there are pieces */
    float *sent;                       /* masked m, then masked g with sync_gradient */
    uint64_t room;                     /* floats of m that sent can hold */
    double *norms[4];                  /* by tensor: |xM|^2, |uM|^2, |xN|^2, |uN|^2 */
    float *phi_max, *phi_min;
    float *over;                       /* by tensor: 1, or 1 / |u| */
    float *shares;                     /* by tensor: of its parameters that are masked; beyond 1: dense */
    const struct aq_grad_codec *codec; /* the optimizer's, of `reduce`; NULL: fp32 */
    float density;                     /* of this step                             */
    bool algorithm, code, paper;
};

static void slamb_config_default(struct aq_optimizer_config *out)
{
    aq_lamb_config_default(out);
    out->beta3 = 0.95f;
    out->coefficient_min = 0.01f;
    out->coefficient_max = 0.4f;
    out->bias_correction = true;
    out->density = 0.1f;
    out->sync_every = 100;
    out->form = "appendix";
}

/* Values as they are, in 32 or 16 bits: they need no scale, so that a mask of any size can be sent. */
static bool sends_values(const struct aq_optimizer_config *config)
{
    const struct aq_grad_codec_config *reduce = &config->reduce;
    return aq_grad_codec_config_plain(reduce) || strcmp(reduce->kind, "fp16") == 0 || strcmp(reduce->kind, "bf16") == 0;
}

static enum aq_status slamb_config_check(const struct aq_optimizer_config *config)
{
    static const char *const forms[] = {"appendix", "paper", "algorithm", "code"};
    AQ_TRY(aq_lamb_config_check(config));
    AQ_TRY(aq_optimizer_check_range("beta3", config->beta3, 0.0f, 1.0000001f));
    AQ_TRY(aq_optimizer_check_range("density", config->density, 1e-6f, 1.0000001f));
    if (config->sync_every == 0)
        return aq_fail(AQ_INVAL, "optimizer", "sync_every is 0, so the replicas' parameters would never be averaged");
    if (!sends_values(config))
        return aq_fail(AQ_INVAL, "optimizer",
                       "slamb sends values of a few parameters in fp32, fp16 or bf16, so reduce %s is not possible",
                       config->reduce.kind);
    for (size_t i = 0; config->form && i < sizeof forms / sizeof *forms; i++)
        if (strcmp(config->form, forms[i]) == 0) return AQ_OK;
    return aq_fail(AQ_INVAL, "optimizer", "form is \"%s\", must be appendix, paper, algorithm or code",
                   config->form ? config->form : "(none)");
}

static const char *slamb_takes(const struct aq_optimizer_config *config)
{
    return sends_values(config) && config->low_rank == 0 ? NULL : "fp32, fp16 or bf16, of few values";
}

static bool slamb_codes(const struct aq_optimizer_config *config)
{
    (void)config;
    return false;
}

/* k at a step: density^(step / density_steps), then density. */
static float density_at(const struct aq_optimizer_config *config, uint64_t step)
{
    if (step >= config->density_steps) return config->density;
    return (float)pow((double)config->density, (double)step / (double)config->density_steps);
}

/* The mean of what masks take. */
static void slamb_traffic(const struct aq_optimizer_sent *sent, struct aq_optimizer_traffic *out)
{
    const struct aq_optimizer_config *config = sent->config;
    uint64_t sparse = 0, dense = 0;
    for (uint32_t t = 0; t < sent->tensor_count; t++)
        *(sent->tensors[t].count < config->dense_below ? &dense : &sparse) += sent->tensors[t].count;
    const uint64_t value = (aq_grad_codec_config_plain(&config->reduce) ? 4 : 2) * (config->sync_gradient ? 2 : 1);
    out->step_bytes = (dense + (uint64_t)((double)config->density * (double)sparse)) * value;
    out->warmup_steps = config->density_steps;
    out->warmup_bytes = dense * value;
    out->falling_bytes = sparse * value;
    out->falling = config->density_steps ? pow((double)config->density, 1.0 / (double)config->density_steps) : 0.0;
    out->every = config->sync_every;
    out->every_bytes = sent->parameters * sizeof(float);
    out->last = true;
}

static bool slamb_drifts(const struct aq_optimizer_config *config, uint64_t step)
{
    return step % config->sync_every != 0;
}

static bool is_dense(const struct aq_optimizer *optimizer, uint32_t tensor)
{
    return optimizer->group.size == 1 || optimizer->tensors[tensor].count < optimizer->config.dense_below;
}

/* The most that a mask can send: its mean and ten standard deviations, and the dense tensors. */
static uint64_t room_of(const struct aq_optimizer *optimizer)
{
    uint64_t sparse = 0, dense = 0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        *(is_dense(optimizer, t) ? &dense : &sparse) += optimizer->tensors[t].count;
    const double mean = (double)sparse * (optimizer->config.density_steps ? 1.0 : (double)optimizer->config.density);
    const uint64_t room = (uint64_t)(mean + 10.0 * sqrt(mean)) + 64;
    return dense + (room < sparse ? room : sparse);
}

static enum aq_status place_exchange(struct aq_optimizer *optimizer, struct slamb *own)
{
    void *memory;
    const uint64_t vectors = optimizer->config.sync_gradient ? 2 : 1;
    const size_t places = (optimizer->piece_count + (size_t)1) * sizeof(uint64_t);
    own->room = room_of(optimizer);
    AQ_TRY(aq_optimizer_scratch_pinned(optimizer, places, &memory));
    own->sent_at = own->sent_at_there = memory;
    if (optimizer->isolated) AQ_TRY(aq_optimizer_scratch_device(optimizer, places, &memory));
    if (optimizer->isolated) own->sent_at_there = memory;
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)(own->room * vectors) * sizeof(float), &memory));
    own->sent = memory;
    return AQ_OK;
}

static enum aq_status fill(struct aq_optimizer *optimizer, struct slamb *own)
{
    const struct aq_rng_key none = {.key = {0}};
    own->algorithm = strcmp(optimizer->config.form, "algorithm") == 0;
    own->code = strcmp(optimizer->config.form, "code") == 0;
    own->paper = strcmp(optimizer->config.form, "paper") == 0;
    own->codec = optimizer->codec;
    const struct aq_fill_normal ones = {.x = own->c, .count = optimizer->parameters, .key = none, .value = 1.0f};
    AQ_TRY(aq_device_fill_normal(optimizer->device, &ones, NULL));
    return aq_device_stream_sync(optimizer->device, NULL);
}

static enum aq_status slamb_place(struct aq_optimizer *optimizer)
{
    struct slamb unplaced = {.m = NULL}, *own;
    const size_t tensors = optimizer->tensor_count;
    void *memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, sizeof *own, &memory));
    optimizer->own = memory;
    own = memory ? memory : &unplaced;
    AQ_TRY(aq_optimizer_take(optimizer, "m", optimizer->parameters, AQ_STATE_LOCAL, &own->m));
    AQ_TRY(aq_optimizer_take(optimizer, "v", optimizer->parameters, AQ_STATE_LOCAL, &own->v));
    AQ_TRY(aq_optimizer_take(optimizer, "staleness", optimizer->parameters, AQ_STATE_LOCAL, &own->c));
    AQ_TRY(aq_optimizer_scratch_device(optimizer, (size_t)optimizer->piece_count * AQ_FUSED_MASK_BYTES, &memory));
    own->mask = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, tensors * (4 * sizeof(double) + 4 * sizeof(float)), &memory));
    if (optimizer->group.size > 1) AQ_TRY(place_exchange(optimizer, own));
    if (!memory) return AQ_OK;
    for (int i = 0; i < 4; i++)
        own->norms[i] = (double *)memory + (size_t)i * tensors;
    own->phi_max = (float *)(own->norms[3] + tensors);
    own->phi_min = own->phi_max + tensors;
    own->over = own->phi_min + tensors;
    own->shares = own->over + tensors;
    return fill(optimizer, own);
}

static struct aq_fused kernel_of(const struct aq_optimizer *optimizer, enum aq_fused_kind kind)
{
    const struct slamb *own = optimizer->own;
    const struct aq_optimizer_config *config = &optimizer->config;
    const struct aq_optimizer_call *call = &optimizer->call;
    struct aq_fused kernel = aq_optimizer_fused_moments(optimizer, kind, own->m, own->v);
    kernel.k1 = aq_optimizer_correct(optimizer, config->beta1, call->step);
    kernel.k2 = aq_optimizer_correct(optimizer, config->beta2, call->step);
    kernel.b3 = config->beta3;
    kernel.low = call->lr / sqrtf((float)optimizer->group.size);
    kernel.c = own->c;
    kernel.mask = own->mask;
    kernel.key = aq_rng_key(config->seed, AQ_RNG_REDUCE, call->step, 0);
    kernel.sent_at = own->sent_at_there;
    kernel.sent = own->sent;
    if (own->sent && config->sync_gradient) kernel.sent_g = own->sent + own->sent_at[optimizer->piece_count];
    return kernel;
}

/* Line 6, with the share of this step. */
static enum aq_status draw_mask(struct aq_optimizer *optimizer)
{
    struct slamb *own = optimizer->own;
    const float density = density_at(&optimizer->config, optimizer->call.step);
    if (own->density != density) {
        own->density = density;
        for (uint32_t t = 0; t < optimizer->tensor_count; t++)
            own->shares[t] = is_dense(optimizer, t) ? 2.0f : density;
        AQ_TRY(aq_optimizer_values(optimizer, SHARE, own->shares));
    }
    const struct aq_fused mask = kernel_of(optimizer, AQ_FUSED_SLAMB_MASK);
    return aq_optimizer_fused(optimizer, &mask);
}

/* The mean of `count` masked values: of m, or of g. */
static void ask(const struct aq_optimizer *optimizer, float *x, uint64_t count, struct aq_reduce *out)
{
    const struct slamb *own = optimizer->own;
    *out = (struct aq_reduce){.kind = own->codec ? AQ_REDUCE_COMPRESSED : AQ_REDUCE_MEAN,
                              .x = x,
                              .count = count,
                              .worker = own->codec,
                              .server = own->codec,
                              .step = optimizer->call.step};
}

static enum aq_status exchange(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    struct slamb *own = optimizer->own;
    uint64_t all = 0;
    for (uint32_t i = 0; i < optimizer->piece_count; i++) {
        own->sent_at[i] = all;
        all += (uint64_t)aq_optimizer_sums(optimizer, i)[0];
    }
    own->sent_at[optimizer->piece_count] = all;
    if (all > own->room)
        return aq_fail(AQ_NOSPC, "optimizer", "step %llu: the mask has %llu parameters, room is for %llu",
                       (unsigned long long)optimizer->call.step, (unsigned long long)all,
                       (unsigned long long)own->room);
    if (optimizer->isolated)
        AQ_TRY(aq_device_copy(optimizer->device, own->sent_at_there, own->sent_at,
                              (optimizer->piece_count + (size_t)1) * sizeof(uint64_t), optimizer->call.stream));
    const struct aq_fused gather = kernel_of(optimizer, AQ_FUSED_SLAMB_GATHER);
    AQ_TRY(aq_optimizer_fused(optimizer, &gather));
    ask(optimizer, own->sent, optimizer->config.sync_gradient && !own->codec ? 2 * all : all, out);
    return AQ_OK;
}

static float clip(float value, float least, float most)
{
    return value < least ? least : value > most ? most : value;
}

/* phi(sqrt(x2 / u2)); `otherwise` is the ratio if a norm is zero; but not that of x, in form paper. */
static float phi(const struct slamb *own, double x2, double u2, float otherwise, float least, float most)
{
    if (own->paper && x2 == 0.0 && u2 > 0.0) return least;
    return clip(x2 > 0.0 && u2 > 0.0 ? (float)(sqrt(x2) / sqrt(u2)) : otherwise, least, most);
}

static enum aq_status scale_tensors(struct aq_optimizer *optimizer)
{
    struct slamb *own = optimizer->own;
    const float least = optimizer->config.coefficient_min, most = optimizer->config.coefficient_max;
    for (uint32_t i = 0; i < 4; i++)
        aq_optimizer_fold(optimizer, i, own->norms[i]);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const double u2 = own->norms[1][t] + own->norms[3][t], factor = own->algorithm ? u2 : 1.0;
        own->phi_max[t] = phi(own, own->norms[0][t] * factor, own->norms[1][t], 1.0f, least, most);
        own->phi_min[t] = phi(own, own->norms[2][t] * factor, own->norms[3][t], own->code ? 0.0f : 1.0f,
                              own->code ? 0.0f : least, most);
        own->over[t] = own->algorithm && u2 > 0.0 ? (float)(1.0 / sqrt(u2)) : 1.0f;
    }
    AQ_TRY(aq_optimizer_values(optimizer, PHI_MAX, own->phi_max));
    AQ_TRY(aq_optimizer_values(optimizer, PHI_MIN, own->phi_min));
    return aq_optimizer_values(optimizer, OVER, own->over);
}

/* Line 21: also of a void step, because an average that is left out here is made up only by the next one, or never. */
static enum aq_status slamb_due(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    const uint64_t step = optimizer->call.step;
    if (round > 0 || optimizer->group.size == 1) return AQ_OK;
    if (step % config->sync_every != 0 && step != config->total_steps) return AQ_OK;
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = optimizer->call.parameters, .count = optimizer->parameters, .step = step};
    return AQ_OK;
}

static enum aq_status slamb_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    const struct slamb *own = optimizer->own;
    /* A codec has room for all parameters, so that gradients take a round of their own. */
    const uint32_t last = optimizer->group.size == 1 ? 0 : own->codec && optimizer->config.sync_gradient ? 2 : 1;
    if (round == 0) AQ_TRY(draw_mask(optimizer));
    if (round == 0 && last > 0) return exchange(optimizer, out);
    if (round < last) {
        const uint64_t all = own->sent_at[optimizer->piece_count];
        ask(optimizer, own->sent + all, all, out);
        return AQ_OK;
    }
    if (round > last) return AQ_OK;
    const struct aq_fused moments = kernel_of(optimizer, AQ_FUSED_SLAMB_MOMENTS);
    AQ_TRY(aq_optimizer_fused(optimizer, &moments));
    AQ_TRY(scale_tensors(optimizer));
    const struct aq_fused step = kernel_of(optimizer, own->code ? AQ_FUSED_SLAMB_STEP_CODE : AQ_FUSED_SLAMB_STEP);
    AQ_TRY(aq_optimizer_fused(optimizer, &step));
    return slamb_due(optimizer, 0, out);
}

const struct aq_optimizer_kind aq_optimizer_slamb = {
    .name = "slamb",
    .machines = true,
    .config_default = slamb_config_default,
    .config_check = slamb_config_check,
    .takes = slamb_takes,
    .codes = slamb_codes,
    .traffic = slamb_traffic,
    .drifts = slamb_drifts,
    .place = slamb_place,
    .update = slamb_update,
    .due = slamb_due,
};
