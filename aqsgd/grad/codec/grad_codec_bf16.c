/*
 * grad_codec_bf16.c -- the upper half of the float, rounded to nearest even: fp32's range, eight bits of precision.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

const struct aq_grad_kind aq_grad_codec_kind_bf16 = {
    .name = "bf16",
    .gpu = AQ_CUDA_GRAD_BF16,
    .config_check = aq_grad_check_nothing,
    .code_bits = 16,
    .values = AQ_ROW_BF16,
    .scales = aq_grad_scales_none,
    .encode = aq_grad_plain_encode,
    .decode = aq_grad_plain_decode,
};
