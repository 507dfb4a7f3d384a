/*
 * image_square.c -- bilinear resizing with antialiasing. See image_read.h.
 *
 * Along each axis output place i is a weighted mean of the input's around c = (i + first + 1/2) s, s the input's
 * extent over the output's: weight max(0, 1 - |j + 1/2 - c| / r) of input place j, r = max(s, 1), divided by their sum.
 * Rows first, then columns.
 */
#include <math.h>
#include <string.h>

#include "image_read.h"

enum { COLOURS = 3 };

/* One axis: which input places an output place reads, and with what weights. */
struct axis {
    uint32_t taps;   /* of each output place, at most */
    uint32_t *from;  /* side                          */
    uint32_t *count; /* side                          */
    float *weights;  /* (side, taps)                  */
};

/* out: what the input's extent becomes; first: the first of its places that is wanted. */
static enum aq_status axis_open(uint32_t in, uint32_t out, uint32_t first, uint32_t side, struct axis *axis)
{
    const double s = (double)in / out, reach = s > 1.0 ? s : 1.0;
    axis->taps = 2 * (uint32_t)ceil(reach) + 1;
    const size_t each = 2 * sizeof(uint32_t) + axis->taps * sizeof(float);
    AQ_TRY(aq_alloc_at(side * each, &axis->from));
    axis->count = axis->from + side;
    axis->weights = (float *)(void *)(axis->count + side);
    for (uint32_t i = 0; i < side; i++) {
        const double centre = (i + first + 0.5) * s;
        const double low = floor(centre - reach + 0.5), high = floor(centre + reach + 0.5);
        const uint32_t from = low > 0.0 ? (uint32_t)low : 0, end = high < in ? (uint32_t)high : in;
        float *weights = axis->weights + (size_t)i * axis->taps;
        double sum = 0.0;
        AQ_ASSERT(from < end && end - from <= axis->taps);
        axis->from[i] = from;
        axis->count[i] = end - from;
        for (uint32_t j = from; j < end; j++)
            sum += fmax(0.0, 1.0 - fabs(j + 0.5 - centre) / reach);
        for (uint32_t j = from; j < end; j++)
            weights[j - from] = (float)(fmax(0.0, 1.0 - fabs(j + 0.5 - centre) / reach) / sum);
    }
    return AQ_OK;
}

/* Of what `extent` becomes where the shorter side becomes `side`: its length, and the first of the places in the middle
 * (a half is rounded to even, as Python's round does). */
static uint32_t cropped(uint32_t extent, uint32_t shorter, uint32_t side, uint32_t *first)
{
    const uint32_t length = (uint32_t)((uint64_t)side * extent / shorter), over = length - side;
    *first = (over + (over / 2 & 1)) / 2;
    return length;
}

/* A row of the input, resized; grey becomes three colours later. */
static void resize_row(const struct axis *axis, const uint16_t *row, uint32_t colours, uint32_t side, float *out)
{
    for (uint32_t i = 0; i < side; i++) {
        const float *weights = axis->weights + (size_t)i * axis->taps;
        const uint16_t *from = row + (size_t)axis->from[i] * colours;
        for (uint32_t colour = 0; colour < colours; colour++) {
            float sum = 0.0f;
            for (uint32_t j = 0; j < axis->count[i]; j++)
                sum += weights[j] * from[(size_t)j * colours + colour];
            out[(size_t)i * colours + colour] = sum;
        }
    }
}

static void resize_columns(const struct axis *axis, const float *rows, uint32_t colours, uint32_t side, float factor,
                           float most, uint16_t *values)
{
    const size_t row = (size_t)side * colours;
    for (uint32_t y = 0; y < side; y++)
        for (size_t x = 0; x < row; x++) {
            const float *weights = axis->weights + (size_t)y * axis->taps;
            float sum = 0.0f;
            for (uint32_t j = 0; j < axis->count[y]; j++)
                sum += weights[j] * rows[(axis->from[y] + j) * row + x];
            const float rounded = sum * factor + 0.5f;
            const uint16_t value = rounded < most ? (uint16_t)rounded : (uint16_t)most; /* weights may add up to more */
            if (colours == COLOURS)
                values[y * row + x] = value;
            else
                values[(y * row + x) * COLOURS] = values[(y * row + x) * COLOURS + 1] =
                    values[(y * row + x) * COLOURS + 2] = value;
        }
}

enum aq_status image_square(const struct image *image, uint32_t side, enum aq_dataset_fit fit, uint32_t most,
                            uint16_t *values)
{
    const uint32_t shorter = image->height < image->width ? image->height : image->width;
    const float factor = (float)most / (float)image->most;
    struct axis across = {.from = NULL}, down = {.from = NULL};
    uint32_t height = side, width = side, top = 0, left = 0;
    void *memory = NULL;
    enum aq_status status;
    if (fit == AQ_DATASET_CROP) {
        height = cropped(image->height, shorter, side, &top);
        width = cropped(image->width, shorter, side, &left);
    }
    AQ_TRY_GOTO(axis_open(image->width, width, left, side, &across), out);
    AQ_TRY_GOTO(axis_open(image->height, height, top, side, &down), out);
    AQ_TRY_GOTO(aq_alloc((size_t)image->height * side * image->colours * sizeof(float), &memory), out);
    float *rows = memory;
    const uint32_t first = down.from[0], end = down.from[side - 1] + down.count[side - 1];
    for (uint32_t y = first; y < end; y++)
        resize_row(&across, image->values + (size_t)y * image->width * image->colours, image->colours, side,
                   rows + (size_t)y * side * image->colours);
    resize_columns(&down, rows, image->colours, side, factor, (float)most, values);
out:
    aq_free(memory);
    aq_free(across.from);
    aq_free(down.from);
    return status;
}
