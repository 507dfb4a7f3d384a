/*
 * grad_codec_vote.c -- one bit per value and no scale: the signs of Lion's update vectors, and of their sum.
 *
 * A zero has no bit. It is +1 at odd steps and -1 at even ones (Lion Cub, appendix B.1): with four workers a
 * third of all votes are ties, and a tie that always falls to one side drives the weights away. Votes are counted with
 * weight 1: sums of 1 / W are not exact where W is no power of two, and then a tie of 6, 10 or 12 voters is lost.
 */
#include "cuda_grad.h"
#include "grad_internal.h"

static void vote_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    (void)codec->kernels->sign_pack(x, error, (size_t)range->count, range->step % 2 == 1, AQ_SIGN_NOTHING,
                                    range->codes);
    if (error) codec->kernels->sign_error(error, (size_t)range->count, range->codes, 1.0f);
}

static enum aq_status vote_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    codec->kernels->sign_apply(range->codes, (size_t)range->count, weight, add, sum);
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_vote = {
    .name = "vote",
    .gpu = AQ_CUDA_GRAD_VOTE,
    .signs_alone = true,
    .config_check = aq_grad_check_nothing,
    .code_bits = 1,
    .scales = aq_grad_scales_none,
    .encode = vote_encode,
    .decode = vote_decode,
};
