/*
 * grad_codec_fp16.c -- binary16, rounded to nearest even and clamped to +-65504, so that no finite gradient becomes
 * infinite.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

static uint32_t fp16_bits(const struct aq_grad_codec_config *config)
{
    (void)config;
    return 16;
}

static void fp16_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    aq_grad_plain_encode(codec, range, AQ_ROW_FP16, x, error);
}

static enum aq_status fp16_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    aq_grad_plain_decode(codec, range, AQ_ROW_FP16, weight, add, sum);
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_fp16 = {
    .name = "fp16",
    .gpu = AQ_CUDA_GRAD_FP16,
    .config_check = aq_grad_check_nothing,
    .bits = fp16_bits,
    .scales = aq_grad_scales_none,
    .encode = fp16_encode,
    .decode = fp16_decode,
};
