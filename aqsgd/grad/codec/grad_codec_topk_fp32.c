/*
 * grad_codec_topk_fp32.c -- the largest values of each chunk as they are, and their places: naive top-k compression
 * with error feedback (Xu et al. 2023, "SLAMB", Algorithm 2 with C = top-k), a baseline.
 *
 * Chunks and k are those of grad_sparse.h. A code is the place (bits of n - 1, strictly ascending), then the 32 bits of
 * the value; codes of a chunk in order of their places, lowest bits first, chunks without gaps. No scales. The error is
 * the values that do not travel.
 *
 * As Algorithm 2 has it, only workers keep errors: the mean, with up to W k values, comes back in fp32 (one_sided).
 *
 * Differs from Algorithm 2: top-k of each chunk, not of the whole gradient, which would need a look at all of it first.
 */
#include "grad_sparse.h"

static uint64_t topk_fp32_code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    return aq_sparse_code_bytes(codec, first, count, 32, true);
}

static void topk_fp32_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                             float *error)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    uint64_t at;
    uint32_t n, ties;
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n)) {
        float *e = error ? error + at : NULL;
        if (e) codec->kernels->take_error(x + at, n, e);
        const float *y = e ? e : x + at;
        const uint32_t bits = aq_sparse_place_bits(n);
        const uint32_t least = aq_sparse_least_sent(y, n, aq_sparse_sent_of(&codec->config, n), &ties);
        for (uint32_t i = 0; i < n; i++) {
            const float value = y[i];
            if (!aq_sparse_travels(value, least, &ties)) continue;
            aq_sparse_bits_put(&codes, i, bits);
            aq_sparse_value_put(&codes, value);
            if (e) e[i] = isfinite(value) ? 0.0f : value; /* what decode refuses stays here */
        }
    }
    if (codes.count) *codes.at = (uint8_t)codes.held;
}

static enum aq_status topk_fp32_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range,
                                       float weight, bool add, float *sum)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    uint64_t at;
    uint32_t n;
    if (!add) memset(sum, 0, (size_t)range->count * sizeof *sum);
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n)) {
        const uint32_t k = aq_sparse_sent_of(&codec->config, n), bits = aq_sparse_place_bits(n);
        for (uint32_t i = 0, next = 0; i < k; i++) {
            float value;
            const uint32_t place = aq_sparse_bits_get(&codes, bits);
            AQ_TRY(aq_sparse_value_get(&codes, &value));
            AQ_TRY(aq_sparse_place_check(place, next, n));
            sum[at + place] += weight * value;
            next = place + 1;
        }
    }
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_topk_fp32 = {
    .name = "topk_fp32",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_DENSITY,
    .needs_errors = true,
    .lossy = true,
    .one_sided = true,
    .config_default = aq_sparse_config_default,
    .config_check = aq_sparse_values_check,
    .scales = aq_grad_scales_none,
    .code_bytes = topk_fp32_code_bytes,
    .encode = topk_fp32_encode,
    .decode = topk_fp32_decode,
};
