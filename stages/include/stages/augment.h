/*
 * augment.h -- crops, flips and holes of training images: how a sample is looked at in an epoch, known to every rank.
 *
 * A view is a pure function of (seed, epoch, sample): stages that never see an image know it, too, and so do both ends
 * of a cut, before and after a restart. The rule is the usual one of small images (He et al. 2016): the image, flipped
 * or not, in a frame of `crop` black pixels, of which a window of the image's own size is taken at random; and then
 * Cutout (DeVries and Taylor 2017): a square of `cutout` pixels around a random one is grey, as far as it is inside.
 *
 *     const struct aq_augment augment = {.crop = 4, .flip = true};
 *     const struct aq_view view = aq_view_of(&augment, seed, epoch, sample);
 *     aq_view_apply(&view, black, &batch, position);
 *
 * Held-out samples are looked at as they are.
 *
 * Locking: pure functions.
 */
#ifndef STAGES_AUGMENT_H
#define STAGES_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "stages/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As data.augment has it. Neither: samples are what they are. */
struct aq_augment {
    uint32_t crop;   /* black pixels around an image, of which a window is taken; 0: all of the image */
    bool flip;       /* left becomes right, half of the time                                          */
    uint32_t cutout; /* side of the square that becomes grey; 0: none                               */
};

enum { AQ_AUGMENT_CROP_MAX = 32, AQ_AUGMENT_CUTOUT_MAX = 64, AQ_AUGMENT_COLOURS = 3 };

/* Pixel (y, x) of the view is pixel (y + down, x + right) of the image, flipped or not; black beyond its edges. */
struct aq_view {
    int16_t down, right; /* -crop to crop */
    bool flipped;
    uint32_t hole, hole_down, hole_right; /* its side in pixels (0: none); where in the window its middle is, from 0 to
                                             2^32 of the window's side                                          */
};

/* Is anything of it on? */
static inline bool aq_augment_any(const struct aq_augment *augment)
{
    return augment->crop > 0 || augment->flip || augment->cutout > 0;
}

/* The side of the square images that a sample of these fields has; 0: it has none. */
uint32_t aq_augment_side(const struct aq_field *fields, uint32_t count);

/* How that sample is seen in that epoch; what augment does not have is left as it is. */
struct aq_view aq_view_of(const struct aq_augment *augment, uint64_t seed, uint64_t epoch, uint64_t sample);

/* The image of sample `position` becomes what is seen; nothing where the batch has no images. black: of each colour. */
void aq_view_apply(const struct aq_view *view, const float black[AQ_AUGMENT_COLOURS], struct aq_batch *batch,
                   uint32_t position);

/*
 * The shift of a view at a cut whose features have a side of `side` where the image has `pixels`: to the nearest whole
 * one, a half towards 0. Holes are of images only. aq_view_row: which row of a whole image's (side x side, columns) is
 * row `row` of the window's; false: it is beyond the edge.
 */
struct aq_view aq_view_at(const struct aq_view *view, uint32_t side, uint32_t pixels);
bool aq_view_row(const struct aq_view *view, uint32_t side, uint32_t row, uint32_t *whole);

#ifdef __cplusplus
}
#endif
#endif
