/*
 * pixel_values.h -- from the value of a colour in a file to what a model reads; private to stages/data.
 *
 *     (v / most - mean) / std   as   v / (most std) - mean / std
 *
 * most: the largest value, 255 or 65535. With mean and std 0.5 that is v / 127.5 - 1 to the bit.
 */
#ifndef PIXEL_VALUES_H
#define PIXEL_VALUES_H

#include "stages/dataset.h"

enum { PIXEL_COLOURS = 3 };

struct pixel_values {
    float scale[PIXEL_COLOURS], shift[PIXEL_COLOURS];
};

/* The settings are checked (aq_dataset_image_check). */
struct pixel_values pixel_values_of(const struct aq_dataset_image *image, float most);

static inline float pixel_value(const struct pixel_values *values, int colour, uint32_t value)
{
    return (float)value / values->scale[colour] - values->shift[colour];
}

#endif
