/* augment.c -- crops and flips of images, and what they are at a cut. See stages/augment.h. */
#include "stages/augment.h"

#include <string.h>

#include "aqsgd/base.h"

enum {
    MIDDLE = 0,     /* the mean of the values, as a row has it */
    HOLE_WORDS = 64 /* words that no number of the window uses */
};

static uint32_t root_of(uint32_t pixels)
{
    uint32_t side = 0;
    while ((side + 1) * (side + 1) <= pixels)
        side++;
    return side * side == pixels ? side : 0;
}

uint32_t aq_augment_side(const struct aq_field *fields, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, "images") == 0 && fields[i].count % AQ_AUGMENT_COLOURS == 0)
            return root_of(fields[i].count / AQ_AUGMENT_COLOURS);
    return 0;
}

struct aq_view aq_view_of(const struct aq_augment *augment, uint64_t seed, uint64_t epoch, uint64_t sample)
{
    const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_VIEW, epoch, sample);
    const int32_t crop = (int32_t)augment->crop;
    const uint64_t places = 2 * (uint64_t)augment->crop + 1;
    return (struct aq_view){.down = (int16_t)((int32_t)aq_rng_below(&key, 0, places) - crop),
                            .right = (int16_t)((int32_t)aq_rng_below(&key, 1, places) - crop),
                            .flipped = augment->flip && aq_rng_below(&key, 2, 2) == 1,
                            .hole = augment->cutout,
                            .hole_down = aq_rng_u32(&key, HOLE_WORDS),
                            .hole_right = aq_rng_u32(&key, HOLE_WORDS + 1)};
}

static void flip(float *row, uint32_t side)
{
    for (uint32_t x = 0; x < side / 2; x++) {
        float *const left = row + (size_t)x * AQ_AUGMENT_COLOURS;
        float *const right = row + (size_t)(side - 1 - x) * AQ_AUGMENT_COLOURS;
        for (int colour = 0; colour < AQ_AUGMENT_COLOURS; colour++) {
            const float was = left[colour];
            left[colour] = right[colour];
            right[colour] = was;
        }
    }
}

static void blacken(float *values, const float *black, uint32_t pixels)
{
    for (uint32_t i = 0; i < pixels * AQ_AUGMENT_COLOURS; i++)
        values[i] = black[i % AQ_AUGMENT_COLOURS];
}

/* As the published code: from half a side before the middle on; of an odd side half means rounded down. */
static void cut_out(const struct aq_view *view, float *image, uint32_t side)
{
    const uint32_t y0 = (uint32_t)((uint64_t)view->hole_down * side >> 32), before = view->hole / 2;
    const uint32_t x0 = (uint32_t)((uint64_t)view->hole_right * side >> 32), after = view->hole - before;
    const uint32_t top = y0 > before ? y0 - before : 0, left = x0 > before ? x0 - before : 0;
    const uint32_t below = y0 + after, behind = x0 + after;
    for (uint32_t y = top; y < below && y < side; y++)
        for (uint32_t x = left; x < behind && x < side; x++)
            for (uint32_t c = 0; c < AQ_AUGMENT_COLOURS; c++)
                image[((size_t)y * side + x) * AQ_AUGMENT_COLOURS + c] = MIDDLE;
}

/* A row of the view from one of the image, which may be the same memory. */
static void shift(const struct aq_view *view, const float *black, const float *from, uint32_t side, float *to)
{
    const uint32_t far = (uint32_t)(view->right < 0 ? -view->right : view->right), out = far < side ? far : side;
    const size_t away = (size_t)out * AQ_AUGMENT_COLOURS, kept = (size_t)(side - out) * AQ_AUGMENT_COLOURS;
    if (view->right >= 0) {
        memmove(to, from + away, kept * sizeof *to);
        blacken(to + kept, black, out);
    } else {
        memmove(to + away, from, kept * sizeof *to);
        blacken(to, black, out);
    }
}

void aq_view_apply(const struct aq_view *view, const float black[AQ_AUGMENT_COLOURS], struct aq_batch *batch,
                   uint32_t position)
{
    const uint32_t side = aq_augment_side(batch->fields, batch->field_count);
    for (uint32_t f = 0; side > 0 && f < batch->field_count; f++) {
        const struct aq_field *field = &batch->fields[f];
        if (strcmp(field->name, "images") != 0) continue;
        float *const image = (float *)field->values + (size_t)position * field->count;
        const size_t each = (size_t)side * AQ_AUGMENT_COLOURS;
        for (uint32_t y = 0; view->flipped && y < side; y++)
            flip(image + y * each, side);
        for (uint32_t k = 0; k < side; k++) { /* in an order in which no row is written before it is read */
            const uint32_t y = view->down >= 0 ? k : side - 1 - k;
            const int32_t from = (int32_t)y + view->down;
            if (from < 0 || from >= (int32_t)side)
                blacken(image + y * each, black, side);
            else
                shift(view, black, image + (size_t)from * each, side, image + y * each);
        }
        cut_out(view, image, side);
    }
}

static int16_t scaled(int16_t shift, uint32_t side, uint32_t pixels)
{
    const uint32_t size = (uint32_t)(shift < 0 ? -shift : shift);
    const int32_t whole = (int32_t)((2 * size * side + pixels - 1) / (2 * pixels));
    return (int16_t)(shift < 0 ? -whole : whole);
}

struct aq_view aq_view_at(const struct aq_view *view, uint32_t side, uint32_t pixels)
{
    return (struct aq_view){
        .down = scaled(view->down, side, pixels), .right = scaled(view->right, side, pixels), .flipped = view->flipped};
}

bool aq_view_row(const struct aq_view *view, uint32_t side, uint32_t row, uint32_t *whole)
{
    const int32_t y = (int32_t)(row / side) + view->down, x = (int32_t)(row % side) + view->right;
    if (y < 0 || x < 0 || y >= (int32_t)side || x >= (int32_t)side) return false;
    *whole = (uint32_t)y * side + (uint32_t)x;
    return true;
}
