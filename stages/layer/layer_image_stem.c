/*
 * layer_image_stem.c -- the first layer of a residual network: pixels of square images, line by line, as rows of
 * colours, then a convolution with its normalization and ReLU: of 3 x 3 (He et al. 2016, section 4.2), or, where it
 * gives fewer rows than the images have, of 7 x 7 and stride 2, with a max pooling of 3 x 3 and stride 2 (table 1).
 */
#include "image_conv.h"

#include <string.h>

enum { COLOURS = 3 };

struct stem_slot {
    float *pixels, *host_pixels; /* device; pinned: not written again before the stream has copied it */
    float *h;                    /* what is pooled; or none */
    struct image_conv_kept kept;
};

struct stem_state {
    float *dc, *dh; /* work; dh: of what is pooled */
};

static bool pools(const struct layer *layer)
{
    return layer->out.rows < layer->side * layer->side;
}

static struct image_conv conv_of(const struct layer *layer)
{
    const struct aq_cut_shape images = {.rows = layer->side * layer->side, .columns = COLOURS};
    return image_conv_of(layer, &images, &layer->out, pools(layer) ? 7 : 3, 0, true);
}

static struct aq_pool_shape pool_of(const struct layer *layer, uint64_t samples)
{
    const uint64_t side = aq_conv_out(layer->side, 2);
    return (struct aq_pool_shape){
        .samples = samples, .height = side, .width = side, .C = layer->out.columns, .K = 3, .stride = 2};
}

static uint64_t values_of(const struct layer *layer)
{
    return (uint64_t)layer->side * layer->side * COLOURS;
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const struct image_conv conv = conv_of(layer);
    (void)config;
    image_conv_tensors(&conv, "conv1", "bn1", list);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct stem_slot *slot = to;
    struct stem_state *state = to;
    const struct image_conv conv = conv_of(layer);
    const uint64_t pixels = config->B * values_of(layer) * sizeof(float);
    if (what == LAYER_SLOT) slot->pixels = aq_arena_take(arena, pixels);
    if (what == LAYER_HOST) slot->host_pixels = aq_arena_take(arena, pixels);
    const uint64_t values = config->B * image_conv_values(&conv) * sizeof(float);
    if (what == LAYER_KEPT || what == LAYER_SLOT) image_conv_place(&conv, config, what, arena, &slot->kept);
    if (what == LAYER_KEPT && pools(layer)) slot->h = aq_arena_take(arena, values);
    if (what != LAYER_WORK || config->inference) return;
    state->dc = aq_arena_take(arena, values);
    if (pools(layer)) state->dh = aq_arena_take(arena, values);
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct image_conv conv = conv_of(layer);
    const double each = config->B * image_conv_flops(&conv);
    *out = (struct layer_flops){.forward = each, .backward = layer->trained & 1 ? each : 0};
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used)
{
    const uint32_t count = (uint32_t)values_of(layer);
    (void)config;
    (void)tokens_used;
    if (aq_batch_find(batch, "images", AQ_FIELD_F32, count)) return AQ_OK;
    return aq_fail(AQ_INVAL, "stage", "the batch has no images of %u values per sample", count);
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct stem_slot *slot = run->slot;
    const uint64_t values = values_of(run->layer), bytes = run->samples * values * sizeof(float);
    (void)used;
    memcpy(slot->host_pixels, aq_batch_find(batch, "images", AQ_FIELD_F32, (uint32_t)values), bytes);
    return aq_device_copy(run->device, slot->pixels, slot->host_pixels, bytes, run->stream);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct stem_slot *slot = run->slot;
    const struct image_conv conv = conv_of(run->layer);
    (void)x;
    if (!pools(run->layer)) return image_conv_forward(&conv, run, &slot->kept, slot->pixels, NULL, y);
    AQ_TRY(image_conv_forward(&conv, run, &slot->kept, slot->pixels, NULL, slot->h));
    const struct aq_max_pool pool = {.shape = pool_of(run->layer, run->samples), .x = slot->h, .y = y};
    return y ? aq_device_max_pool(run->device, &pool, run->stream) : AQ_OK;
}

static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    const struct stem_slot *slot = run->slot;
    const struct stem_state *state = run->state;
    const struct image_conv conv = conv_of(run->layer);
    (void)x;
    (void)dx;
    (void)below;
    if (pools(run->layer)) {
        const struct aq_max_pool_backward pool = {
            .shape = pool_of(run->layer, run->samples), .x = slot->h, .dy = dy, .dx = state->dh};
        AQ_TRY(aq_device_max_pool_backward(run->device, &pool, run->stream));
        dy = state->dh;
    }
    const struct image_conv_backward what = {.x = slot->pixels, .dy = dy, .dc = state->dc};
    return image_conv_backward(&conv, run, &slot->kept, &what);
}

const struct layer_kind layer_image_stem = {.name = "image_stem",
                                            .state_bytes = sizeof(struct stem_state),
                                            .slot_bytes = sizeof(struct stem_slot),
                                            .tensors = tensors,
                                            .place = place,
                                            .flops = flops,
                                            .check = check,
                                            .take = take,
                                            .forward = forward,
                                            .backward = backward};
