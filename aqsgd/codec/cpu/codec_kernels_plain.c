/*
 * codec_kernels_plain.c -- the truth, for any machine.
 */
#include "codec_scalar.h"

const struct aq_codec_kernels aq_codec_kernels_plain = {
    .name = "plain",
    .delta = scalar_delta,
    .span = scalar_span,
    .error = scalar_error,
    .quantize = scalar_quantize,
    .levels = scalar_levels,
    .update = scalar_update,
    .expand = scalar_expand,
    .step = scalar_step,
    .apply = scalar_apply,
    .pack = scalar_pack,
    .unpack = scalar_unpack,
    .noise = scalar_noise,
    .rotate = scalar_rotate,
    .ec_quantize = scalar_ec_quantize,
    .ec_levels = scalar_ec_levels,
    .ec_dither = scalar_ec_dither,
    .products = scalar_products,
    .rans_encode = aq_rans_encode_plain,
    .rans_decode = aq_rans_decode_plain,
};
