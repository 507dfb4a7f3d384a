/*
 * grad_codec_topk.c -- the largest values of each chunk, at two bits and their place: SparseLoCo (Sarfi et al. 2025,
 * arXiv:2508.15706): TOP-k a chunk of 4096, 1 to 3 % of the values, 2 bits, error feedback.
 *
 * A chunk is `bucket` floats of one tensor's part of a range, or what is left of it: n floats, of which
 * k = ceil(density n) travel, those of the largest magnitude; of equal ones the first. Two scales per chunk: the mean
 * magnitude of those up to the middle between the least and the largest that travel, and of those beyond. Codes of a
 * chunk, k of them in order of their places, lowest bits first, chunks without gaps:
 *
 *     bits        what
 *     0 .. b-1    the place in the chunk, 0 .. n-1, strictly ascending; b = bits of n - 1
 *     b           1: the second scale
 *     b + 1       1: negative
 *
 * The error is the values that do not travel, and the rounding of the rest to two levels: no choice without error
 * feedback, as it is most of the input.
 *
 * Differs from SparseLoCo: its levels are the means of four bins of width 1.5 standard deviations over a tensor, ours
 * two by sign over a chunk, since the largest values are not near 0. Its values go to all ranks, whose mean is the
 * step; here the mean goes through the same codec once more, with its own error at its owner, as with every codec
 * (net/collective.h): bytes that do not grow with the ranks, for a mean whose smaller values come a round later. Its
 * error decays (0.95), ours does not: the pending part is exact.
 */
#include "grad_sparse.h"

enum { LEVELS = 2 };

static uint64_t topk_scales(const struct aq_grad_codec_config *config, uint64_t count)
{
    return LEVELS * aq_grad_scales_bucket(config, count);
}

static uint64_t topk_code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    return aq_sparse_code_bytes(codec, first, count, 2, true);
}

/* The two levels of what travels; in double, in order of places. */
static void levels_of(const float *y, uint32_t n, uint32_t least, uint32_t ties, float middle, float levels[LEVELS])
{
    double sums[LEVELS] = {0};
    uint32_t counts[LEVELS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const float a = fabsf(y[i]);
        if (!aq_sparse_travels(y[i], least, &ties)) continue;
        sums[a > middle] += (double)a;
        counts[a > middle]++;
    }
    for (int l = 0; l < LEVELS; l++)
        levels[l] = counts[l] ? (float)(sums[l] / counts[l]) : 0.0f;
}

static void encode_chunk(const struct aq_grad_codec *codec, const float *y, float *error, uint32_t n,
                         uint8_t **scale_at, struct aq_sparse_bits *codes)
{
    const uint32_t k = aq_sparse_sent_of(&codec->config, n), bits = aq_sparse_place_bits(n);
    float levels[LEVELS] = {INFINITY, INFINITY}; /* what decode refuses; error holds what was not finite */
    uint32_t peak, ties = 0, least = 0;
    const bool finite = aq_sparse_finite_peak(y, n, &peak);
    if (finite) least = aq_sparse_least_sent(y, n, k, &ties);
    const float middle = 0.5f * aq_float_of(least) + 0.5f * aq_float_of(peak);
    if (finite) levels_of(y, n, least, ties, middle, levels);
    for (int l = 0; l < LEVELS; l++)
        aq_grad_put_scale(scale_at, levels[l]);
    for (uint32_t i = 0; i < k && !finite; i++)
        aq_sparse_bits_put(codes, 0, bits + 2);
    for (uint32_t i = 0; i < n && finite; i++) {
        const float value = y[i];
        if (!aq_sparse_travels(value, least, &ties)) continue;
        const uint32_t second = fabsf(value) > middle, negative = aq_bits_of(value) >> 31;
        aq_sparse_bits_put(codes, i | second << bits | negative << (bits + 1), bits + 2);
        if (error) error[i] = value - (negative ? -levels[second] : levels[second]);
    }
}

static void topk_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    uint8_t *scale_at = range->scales;
    uint64_t at;
    uint32_t n;
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n)) {
        float *e = error ? error + at : NULL;
        if (e) codec->kernels->take_error(x + at, n, e);
        encode_chunk(codec, e ? e : x + at, e, n, &scale_at, &codes);
    }
    if (codes.count) *codes.at = (uint8_t)codes.held;
}

static enum aq_status decode_chunk(const struct aq_grad_codec *codec, uint32_t n, const uint8_t **scale_at,
                                   struct aq_sparse_bits *codes, float weight, float *sum)
{
    const uint32_t k = aq_sparse_sent_of(&codec->config, n), bits = aq_sparse_place_bits(n);
    float levels[LEVELS];
    for (int l = 0; l < LEVELS; l++) {
        levels[l] = aq_grad_get_scale(scale_at);
        if (!aq_grad_scale_valid(levels[l]))
            return aq_fail(AQ_CORRUPT, "grad", "a scale of the largest values is %g, which is not valid",
                           (double)levels[l]);
    }
    for (uint32_t i = 0, next = 0; i < k; i++) {
        const uint32_t code = aq_sparse_bits_get(codes, bits + 2), place = code & ((1u << bits) - 1);
        const float level = levels[code >> bits & 1];
        AQ_TRY(aq_sparse_place_check(place, next, n));
        sum[place] += weight * (code >> (bits + 1) ? -level : level);
        next = place + 1;
    }
    return AQ_OK;
}

static enum aq_status topk_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    const uint8_t *scale_at = range->scales;
    uint64_t at;
    uint32_t n;
    if (!add) memset(sum, 0, (size_t)range->count * sizeof *sum);
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n))
        AQ_TRY(decode_chunk(codec, n, &scale_at, &codes, weight, sum + at));
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_topk = {
    .name = "topk",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_DENSITY,
    .needs_errors = true,
    .lossy = true,
    .config_default = aq_sparse_config_default,
    .config_check = aq_sparse_config_check,
    .scales = topk_scales,
    .code_bytes = topk_code_bytes,
    .encode = topk_encode,
    .decode = topk_decode,
};
