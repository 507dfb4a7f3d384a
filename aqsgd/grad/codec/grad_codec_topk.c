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
#include <math.h>

#include "grad_internal.h"

enum { CHUNK = 4096, LEVELS = 2, PLACE_BITS_MAX = 16, DIGITS = 1 << 11 };

static void topk_config_default(struct aq_grad_codec_config *out)
{
    out->bucket = CHUNK;
    out->density = 0.015625f; /* 64 of 4096 */
}

static enum aq_status topk_config_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_grad_check_bucket(config));
    if (config->bucket < 64 || config->bucket > 1u << PLACE_BITS_MAX)
        return aq_fail(AQ_INVAL, "grad", "bucket is %u, but must be 64 to %u values", (unsigned)config->bucket,
                       1u << PLACE_BITS_MAX);
    if (config->density > 0.0f && config->density <= 1.0f) return AQ_OK;
    return aq_fail(AQ_INVAL, "grad", "density is %g, must be more than 0 and at most 1", (double)config->density);
}

/* Of a chunk of n floats: how many travel (the rounding of a fraction in fp32 adds no value), and bits of a place. */
static uint32_t sent_of(const struct aq_grad_codec_config *config, uint32_t n)
{
    const uint32_t k = (uint32_t)ceil((double)config->density * n * (1 - 1e-6));
    return k < n ? k : n;
}

static uint32_t place_bits(uint32_t n)
{
    uint32_t bits = 0;
    while ((n - 1) >> bits)
        bits++;
    return bits;
}

static uint64_t topk_scales(const struct aq_grad_codec_config *config, uint64_t count)
{
    return LEVELS * aq_grad_scales_bucket(config, count);
}

static uint64_t chunk_bits(const struct aq_grad_codec_config *config, uint32_t n)
{
    return (uint64_t)sent_of(config, n) * (place_bits(n) + 2);
}

static uint64_t topk_code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    const uint32_t bucket = codec->config.bucket;
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint64_t bits = 0;
    aq_grad_runs_init(&runs, codec, first, count);
    while (aq_grad_runs_next(&runs, &run)) {
        if (run.padding) continue;
        bits += run.count / bucket * chunk_bits(&codec->config, bucket);
        if (run.count % bucket) bits += chunk_bits(&codec->config, (uint32_t)(run.count % bucket));
    }
    return (bits + 7) / 8;
}

/* A stream of bits, lowest first. */
struct bits {
    uint8_t *at;
    uint64_t held;
    uint32_t count;
};

static void bits_put(struct bits *bits, uint32_t value, uint32_t count)
{
    bits->held |= (uint64_t)value << bits->count;
    for (bits->count += count; bits->count >= 8; bits->count -= 8, bits->held >>= 8)
        *bits->at++ = (uint8_t)bits->held;
}

static uint32_t bits_get(struct bits *bits, uint32_t count)
{
    for (; bits->count < count; bits->count += 8)
        bits->held |= (uint64_t)*bits->at++ << bits->count;
    const uint32_t value = (uint32_t)(bits->held & ((1u << count) - 1));
    bits->held >>= count;
    bits->count -= count;
    return value;
}

static uint32_t magnitude(float y)
{
    return aq_bits_of(y) & 0x7fffffffu;
}

/*
 * The k-th largest magnitude of n, and how many of exactly that one are among the k: by counting their bits from the
 * highest, 11, 10 and 10 of them. As bits, magnitudes are in the order of their values.
 */
static uint32_t least_sent(const float *y, uint32_t n, uint32_t k, uint32_t *ties)
{
    static const uint32_t shifts[] = {20, 10, 0}, masks[] = {0x7ff, 0x3ff, 0x3ff};
    uint32_t found = 0, known = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t counts[DIGITS] = {0}, digit = masks[pass];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t m = magnitude(y[i]);
            if ((m & known) == found) counts[m >> shifts[pass] & masks[pass]]++;
        }
        while (counts[digit] < k)
            k -= counts[digit--];
        found |= digit << shifts[pass];
        known |= masks[pass] << shifts[pass];
    }
    *ties = k;
    return found;
}

/* The largest magnitude of n; false: one is not finite. */
static bool finite_peak(const float *y, uint32_t n, uint32_t *peak)
{
    *peak = 0;
    for (uint32_t i = 0; i < n; i++)
        *peak = magnitude(y[i]) > *peak ? magnitude(y[i]) : *peak;
    return *peak < 0x7f800000u;
}

/* Does it travel? Of those of exactly the least magnitude the first `ties`. */
static bool travels(float y, uint32_t least, uint32_t *ties)
{
    const uint32_t m = magnitude(y);
    if (m == least && *ties > 0) {
        --*ties;
        return true;
    }
    return m > least;
}

/* The two levels of what travels; in double, in order of places. */
static void levels_of(const float *y, uint32_t n, uint32_t least, uint32_t ties, float middle, float levels[LEVELS])
{
    double sums[LEVELS] = {0};
    uint32_t counts[LEVELS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        const float a = fabsf(y[i]);
        if (!travels(y[i], least, &ties)) continue;
        sums[a > middle] += (double)a;
        counts[a > middle]++;
    }
    for (int l = 0; l < LEVELS; l++)
        levels[l] = counts[l] ? (float)(sums[l] / counts[l]) : 0.0f;
}

static void encode_chunk(const struct aq_grad_codec *codec, const float *y, float *error, uint32_t n,
                         uint8_t **scale_at, struct bits *codes)
{
    const uint32_t k = sent_of(&codec->config, n), bits = place_bits(n);
    float levels[LEVELS] = {INFINITY, INFINITY}; /* what decode refuses; error holds what was not finite */
    uint32_t peak, ties = 0, least = 0;
    const bool finite = finite_peak(y, n, &peak);
    if (finite) least = least_sent(y, n, k, &ties);
    const float middle = 0.5f * aq_float_of(least) + 0.5f * aq_float_of(peak);
    if (finite) levels_of(y, n, least, ties, middle, levels);
    for (int l = 0; l < LEVELS; l++)
        aq_grad_put_scale(scale_at, levels[l]);
    for (uint32_t i = 0; i < k && !finite; i++)
        bits_put(codes, 0, bits + 2);
    for (uint32_t i = 0; i < n && finite; i++) {
        const float value = y[i];
        if (!travels(value, least, &ties)) continue;
        const uint32_t second = fabsf(value) > middle, negative = aq_bits_of(value) >> 31;
        bits_put(codes, i | second << bits | negative << (bits + 1), bits + 2);
        if (error) error[i] = value - (negative ? -levels[second] : levels[second]);
    }
}

static void topk_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                        float *error)
{
    struct bits codes = {.at = range->codes};
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint8_t *scale_at = range->scales;
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        for (uint64_t at = 0; at < run.count && !run.padding; at += codec->config.bucket) {
            const uint64_t left = run.count - at;
            const uint32_t n = left < codec->config.bucket ? (uint32_t)left : codec->config.bucket;
            float *e = error ? error + run.offset + at : NULL;
            if (e) codec->kernels->take_error(x + run.offset + at, n, e);
            encode_chunk(codec, e ? e : x + run.offset + at, e, n, &scale_at, &codes);
        }
    }
    if (codes.count) *codes.at = (uint8_t)codes.held;
}

static enum aq_status decode_chunk(const struct aq_grad_codec *codec, uint32_t n, const uint8_t **scale_at,
                                   struct bits *codes, float weight, float *sum)
{
    const uint32_t k = sent_of(&codec->config, n), bits = place_bits(n);
    float levels[LEVELS];
    for (int l = 0; l < LEVELS; l++) {
        levels[l] = aq_grad_get_scale(scale_at);
        if (!aq_grad_scale_valid(levels[l]))
            return aq_fail(AQ_CORRUPT, "grad", "a scale of the largest values is %g, which is not valid",
                           (double)levels[l]);
    }
    for (uint32_t i = 0, next = 0; i < k; i++) {
        const uint32_t code = bits_get(codes, bits + 2), place = code & ((1u << bits) - 1);
        const float level = levels[code >> bits & 1];
        if (place < next || place >= n)
            return aq_fail(AQ_CORRUPT, "grad", "position %u of a chunk of %u arrived where %u or more was expected",
                           place, n, next);
        sum[place] += weight * (code >> (bits + 1) ? -level : level);
        next = place + 1;
    }
    return AQ_OK;
}

static enum aq_status topk_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                  bool add, float *sum)
{
    struct bits codes = {.at = range->codes};
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    const uint8_t *scale_at = range->scales;
    if (!add) memset(sum, 0, (size_t)range->count * sizeof *sum);
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        for (uint64_t at = 0; at < run.count && !run.padding; at += codec->config.bucket) {
            const uint64_t left = run.count - at;
            const uint32_t n = left < codec->config.bucket ? (uint32_t)left : codec->config.bucket;
            AQ_TRY(decode_chunk(codec, n, &scale_at, &codes, weight, sum + run.offset + at));
        }
    }
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_topk = {
    .name = "topk",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_DENSITY,
    .needs_errors = true,
    .lossy = true,
    .config_default = topk_config_default,
    .config_check = topk_config_check,
    .scales = topk_scales,
    .code_bytes = topk_code_bytes,
    .encode = topk_encode,
    .decode = topk_decode,
};
