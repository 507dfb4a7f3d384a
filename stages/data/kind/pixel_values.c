/* pixel_values.c -- mean and std of colours. See pixel_values.h. */
#include "pixel_values.h"

#include "dataset_kind.h"

static float factor(const struct aq_factors *factors, int colour)
{
    return factors->count == 0 ? 0.5f : factors->of[factors->count == 1 ? 0 : colour];
}

struct pixel_values pixel_values_of(const struct aq_dataset_image *image, float most)
{
    struct pixel_values out;
    for (int colour = 0; colour < PIXEL_COLOURS; colour++) {
        out.scale[colour] = most * factor(&image->std, colour);
        out.shift[colour] = factor(&image->mean, colour) / factor(&image->std, colour);
    }
    return out;
}

enum aq_status aq_dataset_image_check(const struct aq_dataset_image *image)
{
    const struct {
        const char *key;
        const struct aq_factors *factors;
    } keys[] = {{"mean", &image->mean}, {"std", &image->std}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].factors->count != 0 && keys[i].factors->count != 1 && keys[i].factors->count != PIXEL_COLOURS)
            return aq_fail(AQ_INVAL, DATASET_AREA,
                           "data.image.%s: has %u numbers: one for all colours, or red, green and blue", keys[i].key,
                           keys[i].factors->count);
    for (int colour = 0; colour < PIXEL_COLOURS; colour++)
        if (!(factor(&image->std, colour) > 0.0f))
            return aq_fail(AQ_INVAL, DATASET_AREA, "data.image.std: is 0 for a colour: values are divided by it");
    return AQ_OK;
}

void aq_dataset_image_black(const struct aq_dataset_image *image, float black[3])
{
    const struct pixel_values values = pixel_values_of(image, 1.0f);
    for (int colour = 0; colour < PIXEL_COLOURS; colour++)
        black[colour] = pixel_value(&values, colour, 0);
}
