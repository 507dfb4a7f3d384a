/*
 * grad_codec_fp16.c -- binary16, rounded to nearest even and clamped to +-65504, so that no finite gradient becomes
 * infinite.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

const struct aq_grad_kind aq_grad_codec_kind_fp16 = {
    .name = "fp16",
    .gpu = AQ_CUDA_GRAD_FP16,
    .config_check = aq_grad_check_nothing,
    .code_bits = 16,
    .values = AQ_ROW_FP16,
    .scales = aq_grad_scales_none,
    .encode = aq_grad_plain_encode,
    .decode = aq_grad_plain_decode,
};
