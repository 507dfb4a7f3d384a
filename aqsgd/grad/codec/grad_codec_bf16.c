/*
 * grad_codec_bf16.c -- the upper half of the float, rounded to nearest even: fp32's range, eight bits of precision.
 *
 * Padding travels as it is: it has no scale to spoil.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

static uint32_t bf16_bits(const struct aq_grad_codec_config *config)
{
    (void)config;
    return 16;
}

static void bf16_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    aq_grad_plain_encode(codec, range, AQ_ROW_BF16, x, error);
}

static enum aq_status bf16_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    aq_grad_plain_decode(codec, range, AQ_ROW_BF16, weight, add, sum);
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_bf16 = {
    .name = "bf16",
    .gpu = AQ_CUDA_GRAD_BF16,
    .config_check = aq_grad_check_nothing,
    .bits = bf16_bits,
    .scales = aq_grad_scales_none,
    .encode = bf16_encode,
    .decode = bf16_decode,
};
