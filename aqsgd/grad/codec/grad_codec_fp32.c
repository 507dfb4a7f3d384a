/*
 * grad_codec_fp32.c -- the value itself: the gradient codec that loses nothing, and the reference of all others.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

const struct aq_grad_kind aq_grad_codec_kind_fp32 = {
    .name = "fp32",
    .gpu = AQ_CUDA_GRAD_FP32,
    .config_check = aq_grad_check_nothing,
    .code_bits = 32,
    .values = AQ_ROW_FP32,
    .scales = aq_grad_scales_none,
    .encode = aq_grad_plain_encode,
    .decode = aq_grad_plain_decode,
};
