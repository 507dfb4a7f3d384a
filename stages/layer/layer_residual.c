/*
 * layer_residual.c -- a block of a residual network (He et al. 2016, figures 2 and 5): a branch of convolutions, and a
 * shortcut: the input itself or, if the block changes the shape, a convolution of 1 x 1.
 *
 *     basic        h = ReLU(norm1(conv1(x)))                                  two of 3 x 3
 *     bottleneck   h = ReLU(norm2(conv2(ReLU(norm1(conv1(x))))))              1 x 1, 3 x 3, 1 x 1
 *     both         y = ReLU(last norm(last conv(h)) + shortcut)     shortcut = x, or norm(conv(x))
 *
 * The stride is of the first convolution of 3 x 3. Names are torchvision's: conv1, bn1, downsample.0, downsample.1.
 */
#include "image_conv.h"

enum { BRANCH_MAX = 3, CONVS = BRANCH_MAX + 1 };

struct residual_slot {
    struct image_conv_kept kept[CONVS]; /* the branch's, then the shortcut's                      */
    float *h[BRANCH_MAX - 1];           /* between them: of the branch's convolutions but the last */
    float *shortcut;                    /* (rows out, columns)                                    */
};

struct residual_state {
    float *dc, *dz, *dh; /* work: of the largest result of a convolution; (rows out, columns); as dc */
    float *dx;           /* with a shortcut's convolution: (rows, columns) in */
};

static bool turns(const struct layer *layer)
{
    return layer->in.columns != layer->out.columns || layer->in.rows != layer->out.rows;
}

/* Convolutions of the branch; the shortcut's is behind them. */
static int branch(const struct layer *layer)
{
    return layer->inner ? 3 : 2;
}

static int convs(const struct layer *layer)
{
    return branch(layer) + turns(layer);
}

static struct image_conv conv_of(const struct layer *layer, int which)
{
    const struct aq_cut_shape wide = {.rows = layer->in.rows, .columns = layer->inner};
    const struct aq_cut_shape narrow = {.rows = layer->out.rows, .columns = layer->inner};
    const uint32_t number = (uint32_t)which;
    if (which == branch(layer)) return image_conv_of(layer, &layer->in, &layer->out, 1, number, false);
    if (!layer->inner) return image_conv_of(layer, which ? &layer->out : &layer->in, &layer->out, 3, number, true);
    if (which == 0) return image_conv_of(layer, &layer->in, &wide, 1, number, true);
    if (which == 1) return image_conv_of(layer, &wide, &narrow, 3, number, true);
    return image_conv_of(layer, &narrow, &layer->out, 1, number, true);
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    static const char *const names[BRANCH_MAX][2] = {{"conv1", "bn1"}, {"conv2", "bn2"}, {"conv3", "bn3"}};
    (void)config;
    for (int i = 0; i < convs(layer); i++) {
        const struct image_conv conv = conv_of(layer, i);
        const bool shortcut = i == branch(layer);
        image_conv_tensors(&conv, shortcut ? "downsample.0" : names[i][0], shortcut ? "downsample.1" : names[i][1],
                           list);
    }
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct residual_slot *slot = to;
    struct residual_state *state = to;
    const uint64_t in = (uint64_t)config->B * layer->in.rows * layer->in.columns * sizeof(float);
    const uint64_t out = (uint64_t)config->B * layer->out.rows * layer->out.columns * sizeof(float);
    uint64_t values[CONVS], most = 0;
    for (int i = 0; i < convs(layer); i++) {
        const struct image_conv conv = conv_of(layer, i);
        values[i] = config->B * image_conv_values(&conv) * sizeof(float);
        if (values[i] > most) most = values[i];
        if (what == LAYER_KEPT || what == LAYER_SLOT) image_conv_place(&conv, config, what, arena, &slot->kept[i]);
    }
    for (int i = 0; i + 1 < branch(layer) && what == LAYER_KEPT; i++)
        slot->h[i] = aq_arena_take(arena, values[i]);
    if (what == LAYER_KEPT && turns(layer)) slot->shortcut = aq_arena_take(arena, out);
    if (what != LAYER_WORK || config->inference) return;
    state->dc = aq_arena_take(arena, most);
    state->dz = aq_arena_take(arena, out);
    state->dh = aq_arena_take(arena, most);
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
        if ((i > 0 && i < branch(layer)) || layer->passes) out->backward += each;
    }
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct residual_slot *slot = run->slot;
    const int last = branch(run->layer) - 1;
    const float *shortcut = x, *h = x;
    for (int i = 0; i < last; i++) {
        const struct image_conv conv = conv_of(run->layer, i);
        AQ_TRY(image_conv_forward(&conv, run, &slot->kept[i], h, NULL, slot->h[i]));
        h = slot->h[i];
    }
    if (turns(run->layer)) {
        const struct image_conv own = conv_of(run->layer, last + 1);
        AQ_TRY(image_conv_forward(&own, run, &slot->kept[last + 1], x, NULL, slot->shortcut));
        shortcut = slot->shortcut;
    }
    const struct image_conv conv = conv_of(run->layer, last);
    return image_conv_forward(&conv, run, &slot->kept[last], h, shortcut, y);
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct residual_slot *slot = run->slot;
    const struct residual_state *state = run->state;
    const uint64_t in = run->rows_in * run->layer->in.columns;
    const bool own = turns(run->layer);
    const int last = branch(run->layer) - 1;
    (void)below;
    for (int i = last; i >= 0; i--) { /* dh is read before it is written: dc lies between */
        const struct image_conv conv = conv_of(run->layer, i);
        struct image_conv_backward what = {
            .x = i ? slot->h[i - 1] : x, .dy = state->dh, .dc = state->dc, .dx = i ? state->dh : dx};
        if (i == last) {
            what.dy = dy;
            what.dz = state->dz;
            what.add = own ? slot->shortcut : x;
        }
        AQ_TRY(image_conv_backward(&conv, run, &slot->kept[i], &what));
    }
    if (!own) return dx ? image_add(run, state->dz, dx, in) : AQ_OK;
    const struct image_conv shortcut = conv_of(run->layer, last + 1);
    const struct image_conv_backward what = {.x = x, .dy = state->dz, .dc = state->dc, .dx = dx ? state->dx : NULL};
    AQ_TRY(image_conv_backward(&shortcut, run, &slot->kept[last + 1], &what));
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
