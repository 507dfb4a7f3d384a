/*
 * layer_residual.c -- a basic block of a residual network (He et al. 2016, figure 2 and section 3.3): two convolutions
 * of 3 x 3, and a shortcut: the input itself or, if the block halves the image, a convolution of 1 x 1.
 *
 *     h = ReLU(norm1(conv1(x)))     y = ReLU(norm2(conv2(h)) + shortcut)     shortcut = x, or norm(conv(x))
 *
 * Names are torchvision's: conv1, bn1, conv2, bn2, downsample.0, downsample.1.
 */
#include "image_conv.h"

enum { FIRST, SECOND, SHORTCUT, CONVS };

struct residual_slot {
    struct image_conv_kept kept[CONVS];
    float *h, *shortcut; /* (rows out, columns) each */
};

struct residual_state {
    float *dc, *dz, *dh; /* work: (rows out, columns) each             */
    float *dx;           /* with a shortcut's convolution: (rows, columns) in */
};

static bool turns(const struct layer *layer)
{
    return layer->in.columns != layer->out.columns || layer->in.rows != layer->out.rows;
}

static struct image_conv conv_of(const struct layer *layer, int which)
{
    const struct aq_cut_shape *in = which == SECOND ? &layer->out : &layer->in;
    return image_conv_of(layer, in, which == SHORTCUT ? 1 : 3, (uint32_t)which, which != SHORTCUT);
}

static int convs(const struct layer *layer)
{
    return turns(layer) ? CONVS : SHORTCUT;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    static const char *const names[CONVS][2] = {{"conv1", "bn1"}, {"conv2", "bn2"}, {"downsample.0", "downsample.1"}};
    (void)config;
    for (int i = 0; i < convs(layer); i++) {
        const struct image_conv conv = conv_of(layer, i);
        image_conv_tensors(&conv, names[i][0], names[i][1], list);
    }
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct residual_slot *slot = to;
    struct residual_state *state = to;
    const uint64_t in = (uint64_t)config->B * layer->in.rows * layer->in.columns * sizeof(float);
    const uint64_t out = (uint64_t)config->B * layer->out.rows * layer->out.columns * sizeof(float);
    for (int i = 0; i < convs(layer) && (what == LAYER_KEPT || what == LAYER_SLOT); i++) {
        const struct image_conv conv = conv_of(layer, i);
        image_conv_place(&conv, config, what, arena, &slot->kept[i]);
    }
    if (what == LAYER_KEPT) slot->h = aq_arena_take(arena, out);
    if (what == LAYER_KEPT && turns(layer)) slot->shortcut = aq_arena_take(arena, out);
    if (what != LAYER_WORK || config->inference) return;
    state->dc = aq_arena_take(arena, out);
    state->dz = aq_arena_take(arena, out);
    state->dh = aq_arena_take(arena, out);
    if (turns(layer)) state->dx = aq_arena_take(arena, in);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    *out = (struct layer_flops){0};
    for (int i = 0; i < convs(layer); i++) {
        const struct image_conv conv = conv_of(layer, i);
        const double each = config->B * image_conv_flops(&conv);
        out->forward += each;
        if (layer->trained >> conv.first & 1) out->backward += each;
        if (i == SECOND || layer->passes) out->backward += each;
    }
}

static enum aq_status forward(const struct layer_run *run, const float *x, float *y)
{
    const struct residual_slot *slot = run->slot;
    const struct image_conv first = conv_of(run->layer, FIRST), second = conv_of(run->layer, SECOND);
    const float *shortcut = x;
    AQ_TRY(image_conv_forward(&first, run, &slot->kept[FIRST], x, NULL, slot->h));
    if (turns(run->layer)) {
        const struct image_conv own = conv_of(run->layer, SHORTCUT);
        AQ_TRY(image_conv_forward(&own, run, &slot->kept[SHORTCUT], x, NULL, slot->shortcut));
        shortcut = slot->shortcut;
    }
    return image_conv_forward(&second, run, &slot->kept[SECOND], slot->h, shortcut, y);
}

static enum aq_status backward(const struct layer_run *run, const float *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct residual_slot *slot = run->slot;
    const struct residual_state *state = run->state;
    const struct image_conv first = conv_of(run->layer, FIRST), second = conv_of(run->layer, SECOND);
    const uint64_t in = run->rows_in * run->layer->in.columns;
    const bool own = turns(run->layer);
    (void)below;
    struct image_conv_backward what = {
        .x = slot->h, .add = own ? slot->shortcut : x, .dy = dy, .dc = state->dc, .dz = state->dz, .dx = state->dh};
    AQ_TRY(image_conv_backward(&second, run, &slot->kept[SECOND], &what));
    what = (struct image_conv_backward){.x = x, .dy = state->dh, .dc = state->dc, .dx = dx};
    AQ_TRY(image_conv_backward(&first, run, &slot->kept[FIRST], &what));
    if (!own) return dx ? image_add(run, state->dz, dx, in) : AQ_OK;
    const struct image_conv shortcut = conv_of(run->layer, SHORTCUT);
    what = (struct image_conv_backward){.x = x, .dy = state->dz, .dc = state->dc, .dx = dx ? state->dx : NULL};
    AQ_TRY(image_conv_backward(&shortcut, run, &slot->kept[SHORTCUT], &what));
    return dx ? image_add(run, state->dx, dx, in) : AQ_OK;
}

const struct layer_kind layer_residual = {.name = "residual",
                                          .state_bytes = sizeof(struct residual_state),
                                          .slot_bytes = sizeof(struct residual_slot),
                                          .tensors = tensors,
                                          .place = place,
                                          .flops = flops,
                                          .forward = forward,
                                          .backward = backward};
