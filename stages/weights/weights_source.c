/*
 * weights_source.c -- the values of a tensor that is to be written: those of memory, of another file or of whoever
 * makes them, with what an adapter adds, piece by piece and the other way round where they are turned.
 */
#include <string.h>

#include "stages/stage.h"
#include "weights_file.h"

enum { STRIP_FLOATS = 256 };

/* Adds values first, first + 1, ... of scale B A, in the matrix's orientation. */
static void plus_floats(const struct aq_weights_low_rank *plus, uint64_t first, uint64_t count, float *out)
{
    const uint64_t width = plus->out_in ? plus->in : plus->out;
    for (uint64_t k = 0; k < count; k++) {
        const uint64_t row = (first + k) / width, column = (first + k) % width;
        const uint64_t i = plus->out_in ? column : row, o = plus->out_in ? row : column;
        float sum = 0;
        for (uint32_t r = 0; r < plus->rank; r++)
            sum += plus->b[o * plus->rank + r] * plus->a[r * plus->in + i];
        out[k] += plus->scale * sum;
    }
}

/* The output that a value of the matrix is of. */
static uint64_t output_of(const struct aq_weights_low_rank *plus, uint64_t at)
{
    return plus->out_in ? at / plus->in : at % plus->out;
}

/* Values first, first + 1, ... of the source tensor, as fp32; of a matrix with lengths (m) before scaling. */
static enum aq_status sum_floats(const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count, float *out)
{
    if (tensor->values)
        memcpy(out, tensor->values + first, count * sizeof(float));
    else if (tensor->fill)
        AQ_TRY(tensor->fill(tensor->context, tensor, first, count, out));
    else
        aq_weights_floats(tensor->from, tensor->index, first, count, out);
    if (tensor->plus) plus_floats(tensor->plus, first, count, out);
    return AQ_OK;
}

enum aq_status aq_weights_source_floats(const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                                        float *out)
{
    const struct aq_weights_low_rank *plus = tensor->plus;
    AQ_TRY(sum_floats(tensor, first, count, out));
    for (uint64_t k = 0; plus && plus->m && k < count; k++)
        out[k] *= plus->factors[output_of(plus, first + k)];
    return AQ_OK;
}

/* Once through a matrix before it is written: the lengths that its rows have. */
enum aq_status aq_weights_source_begin(const struct aq_weights_tensor *tensor, float *room, uint64_t floats)
{
    const struct aq_weights_low_rank *plus = tensor->plus;
    if (!plus || !plus->m) return AQ_OK;
    double *squares;
    AQ_TRY(AQ_NEW(plus->out, &squares));
    memset(squares, 0, plus->out * sizeof *squares);
    enum aq_status status = AQ_OK;
    for (uint64_t at = 0, all = plus->in * plus->out, n; status == AQ_OK && at < all; at += n) {
        n = all - at < floats ? all - at : floats;
        status = sum_floats(tensor, at, n, room);
        if (status == AQ_OK) aq_lora_squares(room, at, n, plus->in, plus->out, plus->out_in, squares);
    }
    for (uint64_t o = 0; o < plus->out; o++)
        plus->factors[o] = aq_lora_factor(squares[o], plus->m[o]);
    aq_free(squares);
    return status;
}

enum aq_status aq_weights_source_rows(const struct aq_weights_tensor *tensor, uint64_t row, uint64_t rows, float *out)
{
    const uint64_t width = tensor->shape[tensor->transposed ? 0 : 1]; /* of what is written */
    if (!tensor->transposed) return aq_weights_source_floats(tensor, row * width, rows * width, out);
    const uint64_t height = tensor->shape[1], taps = tensor->kernel ? (uint64_t)tensor->kernel * tensor->kernel : 1;
    float strip[STRIP_FLOATS];
    for (uint64_t r = 0; r < rows; r += STRIP_FLOATS) {
        const uint64_t strip_rows = rows - r < STRIP_FLOATS ? rows - r : STRIP_FLOATS;
        for (uint64_t column = 0; column < width; column++) {
            AQ_TRY(aq_weights_source_floats(tensor, column * height + row + r, strip_rows, strip));
            const uint64_t to =
                column % (width / taps) * taps + column / (width / taps); /* tap after tap of a channel */
            for (uint64_t i = 0; i < strip_rows; i++)
                out[(r + i) * width + to] = strip[i];
        }
    }
    return AQ_OK;
}
