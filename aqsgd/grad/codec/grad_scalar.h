/*
 * grad_scalar.h -- the truth of every gradient kernel, one value at a time; the vector tables give these very bits.
 *
 * Included by each grad_kernels_*.c: a table takes from here what it does not do by hand, and its last few values.
 */
#ifndef AQSGD_GRAD_GRAD_SCALAR_H
#define AQSGD_GRAD_GRAD_SCALAR_H

#include "codec_scalar.h" /* scalar_fold */
#include "grad_internal.h"

/* From value `from` on, a multiple of 32; lanes are the sums so far. */
static inline void grad_sign_pack_from(size_t from, const float *x, float *error, size_t n, bool ties_up,
                                       enum aq_sign_sum ask, uint8_t *bits, float lanes[AQ_LANES])
{
    for (size_t i = from; i < n; i += 8) {
        uint8_t byte = 0;
        for (size_t j = i; j < i + 8 && j < n; j++) {
            const float y = error ? x[j] + error[j] : x[j];
            if (error) error[j] = y;
            if (y > 0.0f || (ties_up && y == 0.0f)) byte = (uint8_t)(byte | 1u << (j - i));
            if (ask == AQ_SIGN_ABS) lanes[j % AQ_LANES] += fabsf(y);
            if (ask == AQ_SIGN_SQUARE) lanes[j % AQ_LANES] += y * y;
        }
        bits[i / 8] = byte;
    }
}

static inline void grad_sign_error_from(size_t from, float *y, size_t n, const uint8_t *bits, float s)
{
    for (size_t i = from; i < n; i++)
        y[i] -= bits[i / 8] >> i % 8 & 1 ? s : -s;
}

static inline void grad_sign_apply_from(size_t from, const uint8_t *bits, size_t n, float s, bool add, float *sum)
{
    for (size_t i = from; i < n; i++) {
        const float value = bits[i / 8] >> i % 8 & 1 ? s : -s;
        sum[i] = add ? sum[i] + value : value;
    }
}

static inline void grad_take_error(const float *x, size_t n, float *error)
{
    for (size_t i = 0; i < n; i++)
        error[i] = x[i] + error[i];
}

static inline void grad_leave_error(const float *y, const float *levels, size_t n, float *error)
{
    for (size_t i = 0; i < n; i++)
        error[i] = y[i] - levels[i];
}

static inline void grad_accumulate(const float *x, size_t n, float weight, bool add, float *sum)
{
    if (add) {
        for (size_t i = 0; i < n; i++)
            sum[i] += weight * x[i];
    } else {
        for (size_t i = 0; i < n; i++)
            sum[i] = weight * x[i];
    }
}

#endif
