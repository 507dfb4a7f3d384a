/*
 * grad_kernels_plain.c -- the truth, for any machine.
 */
#include "grad_scalar.h"

static float sign_pack(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits)
{
    float lanes[AQ_LANES] = {0};
    grad_sign_pack_from(0, x, error, n, ties_up, ask, bits, lanes);
    return scalar_fold(lanes);
}

static void sign_error(float *y, size_t n, const uint8_t *bits, float s)
{
    grad_sign_error_from(0, y, n, bits, s);
}

static void sign_apply(const uint8_t *bits, size_t n, float s, bool add, float *sum)
{
    grad_sign_apply_from(0, bits, n, s, add, sum);
}

const struct aq_grad_kernels aq_grad_kernels_plain = {
    .name = "plain",
    .sign_pack = sign_pack,
    .sign_error = sign_error,
    .sign_apply = sign_apply,
    .take_error = grad_take_error,
    .leave_error = grad_leave_error,
    .accumulate = grad_accumulate,
};
