"""Images that are cropped, flipped and holed anew in each visit (data.augment): what of an image the server's activation is of.

split.capture writes how each activation's image was seen, which the server knows (it follows from the seed). So the truth is the view that was really sent: what a
decoder makes of it is put back in the image's own place, and only pixels that were sent count. Pixels beyond the image's edge and in a hole are known without an attack, as padding of a text is.
"""
import math

import numpy as np

COLOURS, VALUES, BITS = 3, 8, 1 << 16


class View:
    """Pixel (y, x) of what was sent is pixel (y + down, x + right) of the image, which was flipped before or not."""

    def __init__(self, audit, values, where):
        numbers = [int(value) for value in values if math.isfinite(value)]
        if len(numbers) != VALUES:
            audit.fail(f"{where}: no view of an image")
        self.down, self.right, self.flipped, self.hole = numbers[:4]
        self.middle = [high * BITS + low for high, low in (numbers[4:6], numbers[6:8])]
        if any(number != value for number, value in zip(numbers, values)) or self.flipped not in (0, 1) or self.hole < 0:
            audit.fail(f"{where}: no view of an image")

    def places(self, side, pixels):
        """Of each place of what was sent, row by row, its place in the image; -1: beyond an edge, or in the hole. side: of a map of features where the image has `pixels`."""
        y, x = np.mgrid[:side, :side]
        down, right = (int(math.copysign((2 * abs(by) * side + pixels - 1) // (2 * pixels), by)) for by in (self.down, self.right))
        rows, columns = y + down, x + right
        inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
        if self.hole:
            (top, below), (left, behind) = ((begin * side // pixels, -(-(begin + self.hole) * side // pixels)) for begin in (at * pixels // (1 << 32) - self.hole // 2 for at in self.middle))
            inside &= (y < top) | (y >= below) | (x < left) | (x >= behind)
        return np.where(inside, rows * side + (side - 1 - columns if self.flipped else columns), -1).ravel()


def side_of(values, each):
    """The side of a square of so many values; 0: it is none."""
    side = math.isqrt(values // each)
    return side if side * side * each == values else 0


def places_of(audit, views, values):
    """(sample, pixel) for images of so many values; None: no sample has a view."""
    if views is None:
        return None
    side = side_of(values, COLOURS)
    if not side:
        audit.fail(f"images of {values} values: with data.augment they are squares of 3 colours")
    return np.stack([view.places(side, side) for view in views])


def sent_of(images, places, mean):
    """What was sent of the images; where it is none of theirs, the mean image's."""
    out = np.tile(mean.reshape(1, -1, COLOURS), (len(images), 1, 1))
    sample, pixel = np.nonzero(places >= 0)
    out[sample, pixel] = images.reshape(len(images), -1, COLOURS)[sample, places[sample, pixel]]
    return out.reshape(images.shape)


def put_back(sent, places):
    """(images, which of their values were sent); the others are 0."""
    out, known = np.zeros_like(sent), np.zeros(sent.shape, bool)
    sample, pixel = np.nonzero(places >= 0)
    for of, values in ((out, sent.reshape(len(sent), -1, COLOURS)), (known, np.ones((*places.shape, COLOURS), bool))):
        of.reshape(len(sent), -1, COLOURS)[sample, places[sample, pixel]] = values[sample, pixel]
    return out, known


def aligned(rows, view, columns, pixels):
    """(the matrix of an activation with its rows where the image has them, which rows those are). One that is no square map of features is left as it is."""
    count = len(rows) // columns
    side = side_of(count, 1)
    if side < 2 or side > pixels:
        return rows, np.ones(count, bool)
    out, known, places = np.zeros((count, columns), rows.dtype), np.zeros(count, bool), view.places(side, pixels)
    inside = places >= 0
    out[places[inside]], known[places[inside]] = rows.reshape(count, columns)[inside], True
    return out.ravel(), known
