/*
 * grad_sparse.h -- what the codecs of a few values of each chunk share (topk, topk_fp32, randomk): a chunk is `bucket`
 * floats of one tensor's part of a range, or what is left of it, and of its n floats k = ceil(density n) travel. How
 * many those are, a stream of bits, and which values are the largest.
 */
#ifndef AQSGD_GRAD_GRAD_SPARSE_H
#define AQSGD_GRAD_GRAD_SPARSE_H

#include <math.h>

#include "grad_internal.h"

enum { AQ_SPARSE_CHUNK = 4096, AQ_SPARSE_PLACE_BITS_MAX = 16, AQ_SPARSE_DIGITS = 1 << 11 };

static inline void aq_sparse_config_default(struct aq_grad_codec_config *out)
{
    out->bucket = AQ_SPARSE_CHUNK;
    out->density = 0.015625f; /* 64 of 4096 */
}

static inline enum aq_status aq_sparse_config_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_grad_check_bucket(config));
    if (config->bucket < 64 || config->bucket > 1u << AQ_SPARSE_PLACE_BITS_MAX)
        return aq_fail(AQ_INVAL, "grad", "bucket is %u, but must be 64 to %u values", (unsigned)config->bucket,
                       1u << AQ_SPARSE_PLACE_BITS_MAX);
    if (config->density > 0.0f && config->density <= 1.0f) return AQ_OK;
    return aq_fail(AQ_INVAL, "grad", "density is %g, must be more than 0 and at most 1", (double)config->density);
}

/*
 * Of values as they are: with more than half of them, their places or scales would not fit what fp32 takes. A chunk of
 * one value does not fit with randomk at any density: it travels with its scale, in 8 bytes.
 */
static inline enum aq_status aq_sparse_values_check(const struct aq_grad_codec_config *config)
{
    AQ_TRY(aq_sparse_config_check(config));
    if (config->density <= 0.5f) return AQ_OK;
    return aq_fail(AQ_INVAL, "grad",
                   "density is %g, but %s sends at most half of the values: fp32 takes less above that",
                   (double)config->density, config->kind);
}

/* Of a chunk of n floats: how many travel (the rounding of a fraction in fp32 adds no value), and bits of a place. */
static inline uint32_t aq_sparse_sent_of(const struct aq_grad_codec_config *config, uint32_t n)
{
    const uint32_t k = (uint32_t)ceil((double)config->density * n * (1 - 1e-6));
    return k < n ? k : n;
}

static inline uint32_t aq_sparse_place_bits(uint32_t n)
{
    uint32_t bits = 0;
    while ((n - 1) >> bits)
        bits++;
    return bits;
}

/* Bytes of the codes of a range, chunks without gaps: of each value `bits`, and its place. */
static inline uint64_t aq_sparse_code_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count,
                                            uint32_t bits, bool places)
{
    const uint32_t bucket = codec->config.bucket;
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint64_t all = 0;
    aq_grad_runs_init(&runs, codec, first, count);
    while (aq_grad_runs_next(&runs, &run)) {
        if (run.padding) continue;
        const uint32_t rest = (uint32_t)(run.count % bucket);
        all += run.count / bucket * aq_sparse_sent_of(&codec->config, bucket) *
               (bits + (places ? aq_sparse_place_bits(bucket) : 0));
        if (rest)
            all +=
                (uint64_t)aq_sparse_sent_of(&codec->config, rest) * (bits + (places ? aq_sparse_place_bits(rest) : 0));
    }
    return (all + 7) / 8;
}

/* A stream of bits, lowest first. */
struct aq_sparse_bits {
    uint8_t *at;
    uint64_t held;
    uint32_t count;
};

static inline void aq_sparse_bits_put(struct aq_sparse_bits *bits, uint32_t value, uint32_t count)
{
    bits->held |= (uint64_t)value << bits->count;
    for (bits->count += count; bits->count >= 8; bits->count -= 8, bits->held >>= 8)
        *bits->at++ = (uint8_t)bits->held;
}

static inline uint32_t aq_sparse_bits_get(struct aq_sparse_bits *bits, uint32_t count)
{
    for (; bits->count < count; bits->count += 8)
        bits->held |= (uint64_t)*bits->at++ << bits->count;
    const uint32_t value = (uint32_t)(bits->held & ((1u << count) - 1));
    bits->held >>= count;
    bits->count -= count;
    return value;
}

static inline uint32_t aq_sparse_magnitude(float y)
{
    return aq_bits_of(y) & 0x7fffffffu;
}

/*
 * The k-th largest magnitude of n, and how many of exactly that one are among the k: by counting their bits from the
 * highest, 11, 10 and 10 of them. As bits, magnitudes are in the order of their values.
 */
static inline uint32_t aq_sparse_least_sent(const float *y, uint32_t n, uint32_t k, uint32_t *ties)
{
    static const uint32_t shifts[] = {20, 10, 0}, masks[] = {0x7ff, 0x3ff, 0x3ff};
    uint32_t found = 0, known = 0;
    for (int pass = 0; pass < 3; pass++) {
        uint32_t counts[AQ_SPARSE_DIGITS] = {0}, digit = masks[pass];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t m = aq_sparse_magnitude(y[i]);
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

/* Does it travel? Of those of exactly the least magnitude the first `ties`. */
static inline bool aq_sparse_travels(float y, uint32_t least, uint32_t *ties)
{
    const uint32_t m = aq_sparse_magnitude(y);
    if (m == least && *ties > 0) {
        --*ties;
        return true;
    }
    return m > least;
}

/* The largest magnitude of n; false: one is not finite. */
static inline bool aq_sparse_finite_peak(const float *y, uint32_t n, uint32_t *peak)
{
    *peak = 0;
    for (uint32_t i = 0; i < n; i++)
        *peak = aq_sparse_magnitude(y[i]) > *peak ? aq_sparse_magnitude(y[i]) : *peak;
    return *peak < 0x7f800000u;
}

/* AQ_CORRUPT: a place that is not behind those before it, or not in the chunk. */
static inline enum aq_status aq_sparse_place_check(uint32_t place, uint32_t next, uint32_t n)
{
    if (place >= next && place < n) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "grad", "position %u of a chunk of %u arrived where %u or more was expected", place, n,
                   next);
}

/* A value as it is, in 32 bits. */
static inline void aq_sparse_value_put(struct aq_sparse_bits *bits, float value)
{
    aq_sparse_bits_put(bits, aq_bits_of(value) & 0xffff, 16);
    aq_sparse_bits_put(bits, aq_bits_of(value) >> 16, 16);
}

/* AQ_CORRUPT: a value that no sender may send. */
static inline enum aq_status aq_sparse_value_get(struct aq_sparse_bits *bits, float *out)
{
    const uint32_t low = aq_sparse_bits_get(bits, 16);
    *out = aq_float_of(low | aq_sparse_bits_get(bits, 16) << 16);
    return isfinite(*out) ? AQ_OK : aq_fail(AQ_CORRUPT, "grad", "a value is %g, which is not finite", (double)*out);
}

/* The loop over the chunks of a range. A chunk has n floats from x + offset on; places in the buffer count from 0. */
struct aq_sparse_chunks {
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint64_t at; /* within the run */
};

static inline void aq_sparse_chunks_init(struct aq_sparse_chunks *chunks, const struct aq_grad_codec *codec,
                                         const struct aq_grad_range *range)
{
    *chunks = (struct aq_sparse_chunks){.at = 0};
    aq_grad_runs_init(&chunks->runs, codec, range->first, range->count);
}

static inline bool aq_sparse_chunks_next(struct aq_sparse_chunks *chunks, uint64_t *offset, uint32_t *n)
{
    const uint32_t bucket = chunks->runs.codec->config.bucket;
    while (chunks->at == chunks->run.count || chunks->run.padding) {
        if (!aq_grad_runs_next(&chunks->runs, &chunks->run)) return false;
        chunks->at = 0;
    }
    const uint64_t left = chunks->run.count - chunks->at;
    *offset = chunks->run.offset + chunks->at;
    *n = left < bucket ? (uint32_t)left : bucket;
    chunks->at += *n;
    return true;
}

#endif
