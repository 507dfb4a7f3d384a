/*
 * grad_codec_randomk.c -- values of each chunk at random places, as they are: naive random-k compression with error
 * feedback (Xu et al. 2023, "SLAMB", Algorithm 2 with C = random-k), a baseline.
 *
 * Chunks and k are those of grad_sparse.h. The places are the same on all ranks and for the mean: k of n, each set
 * equally likely, from Philox of the step and of the chunk's place in the buffer (selection sampling: Knuth, The Art of
 * Computer Programming 2, 3.4.2, Algorithm S). The scale of a chunk is the lower 32 bits of the step, so that decode
 * finds the places; then come the k values, 32 bits each, in the order of their places.
 *
 * The error is the values that do not travel. The mean of the ranks has the same places, so it comes back without a
 * loss, and its owner keeps no error: Algorithm 2, whose errors are the workers' only.
 */
#include "grad_sparse.h"

static uint64_t randomk_code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    return aq_sparse_code_bytes(codec, first, count, 32, false);
}

/* The places of a chunk: is its next float one of those that travel? */
struct places {
    struct aq_rng_key key;
    uint32_t at, n, wanted;
};

static struct places places_of(uint32_t step, uint64_t place, uint32_t n, uint32_t k)
{
    const struct aq_rng_key key = aq_rng_key(step, AQ_RNG_REDUCE, place, UINT64_C(1) << 63);
    return (struct places){.key = key, .n = n, .wanted = k};
}

static bool place_travels(struct places *places)
{
    const uint32_t i = places->at++;
    if (aq_rng_below(&places->key, i, places->n - i) >= places->wanted) return false;
    places->wanted--;
    return true;
}

static void randomk_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                           float *error)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    uint8_t *scale_at = range->scales;
    uint64_t at;
    uint32_t n, peak;
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n)) {
        float *e = error ? error + at : NULL;
        if (e) codec->kernels->take_error(x + at, n, e);
        const float *y = e ? e : x + at;
        const bool finite = aq_sparse_finite_peak(y, n, &peak);
        struct places places =
            places_of((uint32_t)range->step, range->first + at, n, aq_sparse_sent_of(&codec->config, n));
        aq_grad_put_scale(&scale_at, aq_float_of((uint32_t)range->step));
        for (uint32_t i = 0; i < n; i++) {
            if (!place_travels(&places)) continue;
            aq_sparse_value_put(&codes, finite ? y[i] : INFINITY); /* which decode refuses; error holds the rest */
            if (e && finite) e[i] = 0.0f;
        }
    }
    if (codes.count) *codes.at = (uint8_t)codes.held;
}

static enum aq_status randomk_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                     bool add, float *sum)
{
    struct aq_sparse_bits codes = {.at = range->codes};
    struct aq_sparse_chunks chunks;
    const uint8_t *scale_at = range->scales;
    uint64_t at;
    uint32_t n;
    if (!add) memset(sum, 0, (size_t)range->count * sizeof *sum);
    aq_sparse_chunks_init(&chunks, codec, range);
    while (aq_sparse_chunks_next(&chunks, &at, &n)) {
        const uint32_t step = aq_bits_of(aq_grad_get_scale(&scale_at));
        struct places places = places_of(step, range->first + at, n, aq_sparse_sent_of(&codec->config, n));
        for (uint32_t i = 0; i < n; i++) {
            float value;
            if (!place_travels(&places)) continue;
            AQ_TRY(aq_sparse_value_get(&codes, &value));
            sum[at + i] += weight * value;
        }
    }
    return AQ_OK;
}

const struct aq_grad_kind aq_grad_codec_kind_randomk = {
    .name = "randomk",
    .has = AQ_GRAD_HAS_BUCKET | AQ_GRAD_HAS_DENSITY,
    .needs_errors = true,
    .lossy = true,
    .mean_exact = true,
    .config_default = aq_sparse_config_default,
    .config_check = aq_sparse_values_check,
    .scales = aq_grad_scales_bucket,
    .code_bytes = randomk_code_bytes,
    .encode = randomk_encode,
    .decode = randomk_decode,
};
