/*
 * layer_tanh_pooler.c -- what the first token's row gives for the whole sample, before a classifier, with D as dropout:
 *
 *     y = D(tanh(x_0 W + b))               BERT (Devlin et al. 2019)
 *     y = D(tanh(D(x_0) W + b))            RoBERTa (form: drops_first)
 *
 * The product gives fp32, so that tanh and its derivative are in fp32 at every precision.
 */
#include "decoder.h"

enum { WEIGHT, BIAS };
enum { SITE_OUTPUT, SITE_INPUT, SITES };

struct pooler_slot {
    float *first;  /* x_0 of each sample, dropped where the form drops it */
    void *rounded; /* the same as products read it; NULL: fp32            */
    float *y;      /* tanh(..), before dropout                            */
};

struct pooler_state {
    float *dy, *dfirst; /* the gradient of tanh's output, then of its input; of x_0 */
    void *drounded;     /* of tanh's input, as products read it; NULL: fp32         */
};

static struct linear dense_of(const struct layer *layer)
{
    return linear_of(layer->in.columns, layer->in.columns, true, WEIGHT, BIAS);
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const uint64_t C = layer->in.columns;
    layer_list_add(list, layer->form->dense, C, C, config->model.init_std, 0);
    layer_list_add(list, layer->form->dense_bias, 0, C, 0, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const enum aq_element type = stage_type(config->precision);
    const uint64_t count = (uint64_t)config->B * layer->in.columns, typed = count * aq_element_bytes(type);
    struct pooler_slot *kept = to;
    struct pooler_state *work = to;
    if (what == LAYER_KEPT) {
        kept->first = aq_arena_take(arena, count * sizeof(float));
        if (type != AQ_F32) kept->rounded = aq_arena_take(arena, typed);
        kept->y = aq_arena_take(arena, count * sizeof(float));
    }
    if (what != LAYER_WORK || config->inference || !layer_learns(layer)) return;
    work->dy = aq_arena_take(arena, count * sizeof(float));
    work->dfirst = aq_arena_take(arena, count * sizeof(float));
    if (type != AQ_F32) work->drounded = aq_arena_take(arena, typed);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear dense = dense_of(layer);
    *out = (struct layer_flops){0};
    linear_flops(layer, &dense, config->B, out);
    out->weights = 0; /* backward does all */
}

/* y = x with the mask of a site, as `type`; dropped false: a copy. */
static enum aq_status drop(const struct layer_run *run, uint32_t site, bool dropped, const float *x, void *y,
                           enum aq_element type)
{
    const struct aq_dropout_apply args = {.samples = run->samples,
                                          .sample_elements = run->layer->in.columns,
                                          .x = x,
                                          .y = y,
                                          .y_type = type,
                                          .dropout = dropped ? layer_dropout(run, site) : (struct aq_dropout){0}};
    return aq_device_dropout(run->device, &args, run->stream);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct pooler_slot *kept = run->slot;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t count = run->samples * run->layer->in.columns;
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->first, 0};
    const struct linear_to to = {.c = kept->y, .type = AQ_F32};
    const struct aq_tanh bend = {.count = count, .x = kept->y, .y = kept->y};
    AQ_TRY(layer_first_rows(run, (float *)(uintptr_t)x, kept->first, false)); /* read only */
    if (run->dropped && run->layer->form->drops_first)
        AQ_TRY(drop(run, SITE_INPUT, true, kept->first, kept->first, AQ_F32));
    if (kept->rounded) AQ_TRY(drop(run, SITE_INPUT, false, kept->first, kept->rounded, type));
    AQ_TRY(linear_forward(run, &dense, run->samples, operand, &to));
    AQ_TRY(aq_device_tanh(run->device, &bend, run->stream));
    return y ? drop(run, SITE_OUTPUT, run->dropped, kept->y, y, AQ_F32) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct pooler_slot *kept = run->slot;
    const struct pooler_state *work = run->state;
    const struct linear dense = dense_of(run->layer);
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t C = run->layer->in.columns, count = run->samples * C;
    const struct aq_tanh_backward bend = {.count = count, .y = kept->y, .dy = work->dy, .dx = work->dy};
    const struct linear_rows operand = {kept->rounded ? kept->rounded : kept->first, 0};
    const struct linear_rows of = {work->drounded ? work->drounded : work->dy, 0};
    const struct linear_to to = {.c = work->dfirst, .type = AQ_F32};
    (void)x;
    (void)below;
    AQ_TRY(drop(run, SITE_OUTPUT, run->dropped, dy, work->dy, AQ_F32));
    AQ_TRY(aq_device_tanh_backward(run->device, &bend, run->stream));
    if (work->drounded) AQ_TRY(drop(run, SITE_OUTPUT, false, work->dy, work->drounded, type));
    AQ_TRY(linear_gradients(run, &dense, run->samples, operand, of));
    if (!dx) return AQ_OK;
    AQ_TRY(linear_input_gradient(run, &dense, run->samples, of, &to));
    if (run->dropped && run->layer->form->drops_first)
        AQ_TRY(drop(run, SITE_INPUT, true, work->dfirst, work->dfirst, AQ_F32));
    AQ_TRY(aq_device_zero(run->device, dx, run->rows_in * C * sizeof *dx, run->stream));
    return layer_first_rows(run, dx, work->dfirst, true);
}

const struct layer_kind layer_tanh_pooler = {.name = "tanh_pooler",
                                             .fresh = 1u << WEIGHT | 1u << BIAS,
                                             .sites = SITES,
                                             .state_bytes = sizeof(struct pooler_state),
                                             .slot_bytes = sizeof(struct pooler_slot),
                                             .tensors = tensors,
                                             .place = place,
                                             .flops = flops,
                                             .forward = forward,
                                             .backward = backward};
