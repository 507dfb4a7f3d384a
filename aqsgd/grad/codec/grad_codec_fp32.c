/*
 * grad_codec_fp32.c -- the value itself: the gradient codec that loses nothing, and the reference of all others.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

static uint32_t fp32_bits(const struct aq_grad_codec_config *config)
{
    (void)config;
    return 32;
}

static void fp32_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    aq_grad_plain_encode(codec, range, AQ_ROW_FP32, x, error);
}

static enum aq_status fp32_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    aq_grad_plain_decode(codec, range, AQ_ROW_FP32, weight, add, sum);
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_fp32 = {
    .name = "fp32",
    .gpu = AQ_CUDA_GRAD_FP32,
    .config_check = aq_grad_check_nothing,
    .bits = fp32_bits,
    .scales = aq_grad_scales_none,
    .encode = fp32_encode,
    .decode = fp32_decode,
};
