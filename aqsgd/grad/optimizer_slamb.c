/*
 * optimizer_slamb.c -- SLAMB: Xu et al., "SLAMB", ICML 2023, Algorithm 1 and appendix E.
 *
 *     line 6       mask: each parameter with probability density (k), from Philox of (seed, step): the same on all
 * ranks line 7, 8    m = b1 m + (1 - b1) own g;  where the mask is: m = mean over ranks line 9       the same of g,
 * with sync_gradient (the paper skips it in all experiments, section 4.1) line 10-12   v = b2 v + (1 - b2) g g;  u = m
 * / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay x line 13      c = 1 where the mask is, b3 c elsewhere
 * (staleness; 1 at the beginning) line 21      every sync_every steps (H), and at total_steps: x = mean over ranks
 *
 * The step, by form, with phi = clip to [coefficient_min, coefficient_max], xM the masked part of x, xN the rest:
 *
 *     appendix     phi_max = phi(|xM| / |uM|), phi_min = phi(|xN| / |uN|); x -= (lr c + lr / sqrt(W) (1 - c)) (phi_max
 * c + phi_min (1 - c)) u      (appendix E: what was run) algorithm    phi_max = phi(|xM| |u| / |uM|), phi_min alike;
 * the same over |u|      (lines 15 to 19) code         x -= lr phi_max c u + lr / sqrt(W) phi_min (1 - c) u      (the
 * published code)
 *
 * Between two averages every rank has parameters of its own, and m, v, c are its own always. Tensors of fewer floats
 * than dense_below are sent whole. Gradients that a machine's ranks have averaged among themselves first (appendix E)
 * come in as they are: the group is then one of machines (reduce.machine_first). With W = 1 the mask is everything, and
 * this is LAMB.
 *
 * Differs from the published code: the mask has a generator of its own and touches no other random number. Defaults:
 * the paper's (k 0.1, H 100, b3 0.95; phi in [0.01, 0.4] as for BERT).
 */
#include <math.h>
#include <string.h>

#include "codec/codec_internal.h"
#include "optimizer_lamb.h"

enum { MASK_BYTES = AQ_FLAT_PIECE / 8, MASK_ROW = 512 };

struct slamb {
    float *m, *v, *c;
    uint8_t *mask;     /* MASK_BYTES a piece, from its first float */
    uint64_t *sent_at; /* of a piece's masked floats in sent; one more than there are pieces */
    float *sent;       /* masked m, then masked g with sync_gradient */
    uint64_t room;     /* floats of m that sent can hold */
    double *norms[4];  /* by tensor: |xM|^2, |uM|^2, |xN|^2, |uN|^2 */
    float *phi_max, *phi_min;
    float *over; /* by tensor: 1, or 1 / |u| */
    const struct aq_codec_kernels *kernels;
    float k1, k2;
    bool algorithm, code;
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

static enum aq_status slamb_config_check(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_lamb_config_check(config));
    AQ_TRY(aq_optimizer_check_range("beta3", config->beta3, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("density", config->density, 1e-6f, 1.0000001f));
    if (config->sync_every == 0)
        return aq_fail(AQ_INVAL, "optimizer", "sync_every is 0: the replicas' parameters would never meet");
    if (config->reduce.kind && strcmp(config->reduce.kind, "fp32") != 0)
        return aq_fail(AQ_INVAL, "optimizer", "slamb sends fp32 values of a few parameters; reduce %s does not fit it",
                       config->reduce.kind);
    if (config->form && (strcmp(config->form, "appendix") == 0 || strcmp(config->form, "algorithm") == 0 ||
                         strcmp(config->form, "code") == 0))
        return AQ_OK;
    return aq_fail(AQ_INVAL, "optimizer", "form is \"%s\", must be appendix, algorithm or code",
                   config->form ? config->form : "(none)");
}

static bool is_dense(const struct aq_optimizer *optimizer, uint32_t tensor)
{
    return optimizer->group.size == 1 || optimizer->tensors[tensor].count < optimizer->config.dense_below;
}

/* What a mask can ask to be sent: its mean and ten standard deviations, and the dense tensors. */
static uint64_t room_of(const struct aq_optimizer *optimizer)
{
    uint64_t sparse = 0, dense = 0;
    for (uint32_t t = 0; t < optimizer->tensor_count; t++)
        *(is_dense(optimizer, t) ? &dense : &sparse) += optimizer->tensors[t].count;
    const double mean = (double)sparse * (double)optimizer->config.density;
    const uint64_t room = (uint64_t)(mean + 10.0 * sqrt(mean)) + 64;
    return dense + (room < sparse ? room : sparse);
}

static enum aq_status place_exchange(struct aq_optimizer *optimizer, struct slamb *own)
{
    void *memory;
    const uint64_t vectors = optimizer->config.sync_gradient ? 2 : 1;
    own->room = room_of(optimizer);
    AQ_TRY(aq_optimizer_scratch(optimizer, (optimizer->piece_count + (size_t)1) * sizeof(uint64_t), &memory));
    own->sent_at = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)(own->room * vectors) * sizeof(float), &memory));
    own->sent = memory;
    return AQ_OK;
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
    AQ_TRY(aq_optimizer_scratch(optimizer, (size_t)optimizer->piece_count * MASK_BYTES, &memory));
    own->mask = memory;
    AQ_TRY(aq_optimizer_scratch(optimizer, tensors * (4 * sizeof(double) + 3 * sizeof(float)), &memory));
    if (optimizer->group.size > 1) AQ_TRY(place_exchange(optimizer, own));
    if (!memory) return AQ_OK;
    for (int i = 0; i < 4; i++)
        own->norms[i] = (double *)memory + (size_t)i * tensors;
    own->phi_max = (float *)(own->norms[3] + tensors);
    own->phi_min = own->phi_max + tensors;
    own->over = own->phi_min + tensors;
    own->kernels = aq_codec_kernels_best();
    own->algorithm = strcmp(optimizer->config.form, "algorithm") == 0;
    own->code = strcmp(optimizer->config.form, "code") == 0;
    for (uint64_t i = 0; i < optimizer->parameters; i++)
        own->c[i] = 1.0f;
    return AQ_OK;
}

/* Line 6 and line 7; how many are sent of this piece. */
static void mask_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct slamb *own = optimizer->own;
    const struct aq_rng_key key = aq_rng_key(optimizer->config.seed, AQ_RNG_REDUCE, optimizer->call.step, 0);
    const float b1 = optimizer->config.beta1, c1 = 1.0f - b1, k = optimizer->config.density;
    const float *g = optimizer->call.update_gradients + piece->first;
    uint8_t *mask = own->mask + (size_t)index * MASK_BYTES;
    float *m = own->m + piece->first, uniform[MASK_ROW + AQ_CODEC_PAD / 2];
    uint32_t count = 0;
    for (uint32_t i = 0; i < piece->count; i++)
        m[i] = b1 * m[i] + c1 * (g[i] * optimizer->call.grad_scale);
    memset(mask, 0, MASK_BYTES);
    for (uint32_t at = 0; at < piece->count; at += MASK_ROW) {
        const uint32_t n = piece->count - at < MASK_ROW ? piece->count - at : MASK_ROW;
        const bool dense = is_dense(optimizer, piece->tensor);
        if (!dense) own->kernels->noise(&key, piece->first + at, n, uniform);
        for (uint32_t i = 0; i < n; i++) {
            if (!dense && !(uniform[i] < k)) continue;
            mask[(at + i) / 8] = (uint8_t)(mask[(at + i) / 8] | 1u << (at + i) % 8);
            count++;
        }
    }
    aq_optimizer_sums(optimizer, index)[0] = (double)count;
}

static bool masked(const struct slamb *own, uint32_t index, uint32_t i)
{
    return own->mask[(size_t)index * MASK_BYTES + i / 8] >> i % 8 & 1;
}

static void gather_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct slamb *own = optimizer->own;
    const uint64_t all = own->sent_at[optimizer->piece_count];
    uint64_t at = own->sent_at[index];
    for (uint32_t i = 0; i < piece->count; i++) {
        if (!masked(own, index, i)) continue;
        own->sent[at] = own->m[piece->first + i];
        if (optimizer->config.sync_gradient)
            own->sent[all + at] = optimizer->call.update_gradients[piece->first + i] * optimizer->call.grad_scale;
        at++;
    }
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
    aq_optimizer_each(optimizer, gather_piece);
    *out = (struct aq_reduce){.kind = AQ_REDUCE_MEAN,
                              .x = own->sent,
                              .count = optimizer->config.sync_gradient ? 2 * all : all,
                              .step = optimizer->call.step};
    return AQ_OK;
}

static float direction(const struct slamb *own, const struct aq_optimizer *optimizer, uint64_t i, float decay)
{
    return own->m[i] * own->k1 / (sqrtf(own->v[i] * own->k2) + optimizer->config.epsilon) +
           decay * optimizer->call.parameters[i];
}

/* Lines 8 to 13, and the squares of lines 15 and 16. */
static void moment_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct slamb *own = optimizer->own;
    const float b2 = optimizer->config.beta2, c2 = 1.0f - b2, b3 = optimizer->config.beta3;
    const float decay = aq_optimizer_decay(optimizer, piece);
    const bool together = optimizer->group.size > 1, gradients = together && optimizer->config.sync_gradient;
    const uint64_t all = together ? own->sent_at[optimizer->piece_count] : 0;
    uint64_t at = together ? own->sent_at[index] : 0;
    double sums[4] = {0};
    for (uint32_t j = 0; j < piece->count; j++) {
        const uint64_t i = piece->first + j;
        const bool in = masked(own, index, j);
        float g = optimizer->call.update_gradients[i] * optimizer->call.grad_scale;
        if (in && together) own->m[i] = own->sent[at];
        if (in && gradients) g = own->sent[all + at];
        if (in) at++;
        own->v[i] = b2 * own->v[i] + c2 * g * g;
        own->c[i] = in ? 1.0f : b3 * own->c[i];
        const double x = (double)optimizer->call.parameters[i], u = (double)direction(own, optimizer, i, decay);
        sums[in ? 0 : 2] += x * x;
        sums[in ? 1 : 3] += u * u;
    }
    memcpy(aq_optimizer_sums(optimizer, index), sums, sizeof sums);
}

static void scale_tensors(struct aq_optimizer *optimizer)
{
    struct slamb *own = optimizer->own;
    const float least = optimizer->config.coefficient_min, most = optimizer->config.coefficient_max;
    for (uint32_t i = 0; i < 4; i++)
        aq_optimizer_fold(optimizer, i, own->norms[i]);
    for (uint32_t t = 0; t < optimizer->tensor_count; t++) {
        const double u2 = own->norms[1][t] + own->norms[3][t], factor = own->algorithm ? u2 : 1.0;
        own->phi_max[t] = aq_lamb_clip(own->norms[0][t] * factor, own->norms[1][t], least, most);
        own->phi_min[t] = aq_lamb_clip(own->norms[2][t] * factor, own->norms[3][t], least, most);
        own->over[t] = own->algorithm && u2 > 0.0 ? (float)(1.0 / sqrt(u2)) : 1.0f;
    }
}

/* Lines 17 to 19. */
static void step_piece(struct aq_optimizer *optimizer, const struct aq_flat_piece *piece, uint32_t index)
{
    const struct slamb *own = optimizer->own;
    const float lr = optimizer->call.lr, low = lr / sqrtf((float)optimizer->group.size);
    const float most = own->phi_max[piece->tensor], least = own->phi_min[piece->tensor];
    const float over = own->over[piece->tensor], decay = aq_optimizer_decay(optimizer, piece);
    float *p = optimizer->call.parameters;
    (void)index;
    for (uint64_t i = piece->first; i < piece->first + piece->count; i++) {
        const float c = own->c[i], u = direction(own, optimizer, i, decay);
        if (own->code)
            p[i] -= lr * most * c * u + low * least * (1.0f - c) * u;
        else
            p[i] -= (lr * c + low * (1.0f - c)) * (most * c + least * (1.0f - c)) * over * u;
    }
}

static enum aq_status slamb_update(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct slamb *own = optimizer->own;
    const struct aq_optimizer_config *config = &optimizer->config;
    const uint64_t step = optimizer->call.step;
    if (round == 0) {
        aq_optimizer_each(optimizer, mask_piece);
        if (optimizer->group.size > 1) return exchange(optimizer, out);
    }
    if (round > 1) return AQ_OK;
    own->k1 = aq_optimizer_correct(optimizer, config->beta1, step);
    own->k2 = aq_optimizer_correct(optimizer, config->beta2, step);
    aq_optimizer_each(optimizer, moment_piece);
    scale_tensors(optimizer);
    aq_optimizer_each(optimizer, step_piece);
    if (optimizer->group.size == 1 || (step % config->sync_every != 0 && step != config->total_steps)) return AQ_OK;
    *out = (struct aq_reduce){
        .kind = AQ_REDUCE_MEAN, .x = optimizer->call.parameters, .count = optimizer->parameters, .step = step};
    return AQ_OK;
}

const struct aq_optimizer_kind aq_optimizer_slamb = {
    .name = "slamb",
    .walks = true,
    .host = true,
    .config_default = slamb_config_default,
    .config_check = slamb_config_check,
    .place = slamb_place,
    .update = slamb_update,
};
