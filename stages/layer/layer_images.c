/*
 * layer_images.c -- pixels of square images as rows of colours: the first layer of a network of images.
 *
 * The rows are in Morton order (the bits of column and row of a pixel, interleaved): four rows that follow each other
 * are a square of pixels, four of those a larger one. A layer that joins rows joins neighbours, and needs no gather.
 */
#include "layer.h"

struct images_slot {
    float *pixels, *host_pixels; /* device; pinned: not written again before the stream has copied it */
};

static uint64_t values_of(const struct layer *layer)
{
    return (uint64_t)layer->out.rows * layer->out.columns;
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    struct images_slot *slot = to;
    const uint64_t bytes = config->B * values_of(layer) * sizeof(float);
    if (what == LAYER_SLOT) slot->pixels = aq_arena_take(arena, bytes);
    if (what == LAYER_HOST) slot->host_pixels = aq_arena_take(arena, bytes);
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

/* Every other bit, from the lowest on. */
static uint32_t gather_bits(uint32_t value)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 16; i++)
        bits |= (value >> 2 * i & 1) << i;
    return bits;
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct images_slot *slot = run->slot;
    const uint32_t rows = run->layer->out.rows, colours = run->layer->out.columns;
    const uint64_t values = values_of(run->layer);
    const float *images = aq_batch_find(batch, "images", AQ_FIELD_F32, (uint32_t)values);
    uint32_t side = 1;
    (void)used;
    while (side * side < rows)
        side *= 2;
    for (uint32_t row = 0; row < rows; row++) {
        const uint64_t pixel = (uint64_t)gather_bits(row >> 1) * side + gather_bits(row);
        for (uint32_t sample = 0; sample < run->samples; sample++)
            for (uint32_t c = 0; c < colours; c++)
                slot->host_pixels[sample * values + (uint64_t)row * colours + c] =
                    images[sample * values + pixel * colours + c];
    }
    return aq_device_copy(run->device, slot->pixels, slot->host_pixels, run->samples * values * sizeof(float),
                          run->stream);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct images_slot *slot = run->slot;
    (void)x;
    return aq_device_copy(run->device, y, slot->pixels, run->samples * values_of(run->layer) * sizeof(float),
                          run->stream);
}

const struct layer_kind layer_images = {.name = "images",
                                        .slot_bytes = sizeof(struct images_slot),
                                        .place = place,
                                        .check = check,
                                        .take = take,
                                        .forward = forward};
