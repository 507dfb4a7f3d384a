/*
 * edge_view.c -- messages of images that are cropped: one message per sample, of which a visit sees a window.
 *
 * A message covers the whole image, flipped or not (a variant each): row y * side + x of it is pixel (y, x) at the
 * cut's resolution. A visit whose crop is moved by (down, right) is coded against the window of it that is moved alike;
 * pixels beyond the image have a reference of zeroes. Afterwards the window's rows are put back, and those that this
 * crop did not see stay as they were (papers/004, appendix H.6). So a first visit leaves zeroes outside its crop.
 *
 * Shifts are in whole pixels of the cut, the nearest: behind strided layers a crop by one pixel of the image is less
 * than one pixel of the cut, and the reference is the nearest one. Both ends compute the shift only from (seed, epoch,
 * sample), move the same bytes by it, and compare digests as ever.
 *
 *     slot  m, or zeroes; after the visit m'                  crop  the window of m; after the visit that of m'
 *
 * Differs from paper: crops behind strided layers; docs/DECISIONS.md 0461.
 */
#include <string.h>

#include "edge_private.h"

uint32_t aq_edge_side(const struct aq_edge_shape *shape)
{
    uint32_t side = 1;
    while (side < shape->pixels && side * side < shape->rows)
        side++;
    return side * side == shape->rows ? side : 0;
}

struct aq_view aq_edge_view_of(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i, bool moves)
{
    if (!moves || !edge->shape.pixels || !batch->views) return (struct aq_view){.flipped = aq_edge_variant(batch, i)};
    return aq_view_at(&batch->views[i], aq_edge_side(&edge->shape), edge->shape.pixels);
}

void aq_edge_view_begin(const struct aq_edge *edge, const struct aq_view *view,
                        const struct aq_edge_reference *reference, uint8_t *crop)
{
    const uint32_t rows = edge->shape.rows, side = aq_edge_side(&edge->shape);
    const size_t bytes = aq_codec_message_bytes(edge->forward);
    if (!reference->warm) {
        memset(reference->slot, 0, bytes);
        return;
    }
    memcpy(reference->slot, reference->entry.bytes, bytes);
    for (uint32_t row = 0, whole = 0; row < rows; row++) {
        const bool inside = aq_view_row(view, side, row, &whole);
        aq_codec_message_row(edge->forward, inside ? reference->entry.bytes : NULL, inside ? whole : 0, crop, row);
    }
}

void aq_edge_view_end(const struct aq_edge *edge, const struct aq_view *view, const uint8_t *crop, void *slot)
{
    const uint32_t rows = edge->shape.rows, side = aq_edge_side(&edge->shape);
    for (uint32_t row = 0, whole = 0; row < rows; row++)
        if (aq_view_row(view, side, row, &whole)) aq_codec_message_row(edge->forward, crop, row, slot, whole);
}
