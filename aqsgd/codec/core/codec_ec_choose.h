/*
 * codec_ec_choose.h -- the head of an entropy-coded body, chosen from counts and read again: one source for C and CUDA.
 *
 * The idea: only counts of magnitudes, 32 per octave, over some of a sample's rows, decide how it is coded. They are
 * integers, so that any order of rows and any machine chooses alike; the floating point after them is a few operations
 * in one fixed order, without contraction. The receiver reads all it needs in the head: docs/FORMAT.md,
 * "Entropy-coded".
 *
 * A goal is a mean number of bits per value, or an error. To the rate: the smallest step whose entropy, by the counts,
 * keeps to it. To the error: the largest step whose squared error, by the counts, does. Beyond 3.5 bits seven
 * magnitudes are too few: then the step is a coarse one, and each value is refined by bits that are as good as random
 * (of a Gauss that costs 0.01 to 0.03 bits more than a table for all of it).
 *
 * Dithered (rounding stochastic): a known w, uniform within a (refined) step, is added before rounding and subtracted
 * again by the receiver, who draws it from the key in the body. The remaining error is uniform within half a step and
 * has mean 0 whatever the value, so that no error is the same twice (R. M. Gray, T. G. Stockham, Dithered Quantizers,
 * IEEE Trans. Inf. Theory 39, 1993). Its levels are whole steps, and what |q| to expect follows from moments: a
 * magnitude v is floor(v / step) or one more, in proportion.
 *
 * Half dithered (rounding half_dither, where there is a reference): w is within half a step. Values within a quarter of
 * a step of a level are rounded to it, those between in proportion: fewer bits for the same step, and some bias. That
 * bias must not affect a change common to all rows, visit after visit: so the mean change of each channel is sent
 * separately, in 4 bits, where that saves more than it costs (docs/DECISIONS.md 0505).
 *
 * Locking: none, no state beyond the arguments.
 */
#ifndef AQSGD_CODEC_EC_CHOOSE_H
#define AQSGD_CODEC_EC_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "codec_rans_slots.h"

#define AQ_EC_FUNCTION AQ_RANS_FUNCTION /* on a GPU too */

enum {
    AQ_EC_STEP = 0,     /* f32 */
    AQ_EC_LEVELS = 4,   /* f32 of |q| = 1..7 */
    AQ_EC_WEIGHTS = 32, /* u16 of |q| = 0..7 */
    AQ_EC_ESCAPES = 48, /* u16 */
    AQ_EC_REFINE = 50,  /* u8: bits that follow each value */
    AQ_EC_MARKS = 51,   /* u8: the two below */
    AQ_EC_CENTRED = 1,  /* an f16 of each channel precedes the chunks */
    AQ_EC_DITHERED = 4, /* a key of random numbers follows the lengths of chunks; 2: of an older generator */
    AQ_EC_COMMON = 8,   /* the change that all rows have in common precedes the chunks */
    AQ_EC_HALF = 16,    /* of a key: its noise is within half a step */
    AQ_EC_KEY_BYTES = 16,
    AQ_EC_HEAD_BYTES = 52,
    AQ_EC_REFINE_MAX = 5,
    AQ_EC_BUCKET_SHIFT = 18, /* of a magnitude's bits */
    AQ_EC_OCTAVE = 1 << (23 - AQ_EC_BUCKET_SHIFT),
    AQ_EC_BUCKETS = 1 << (31 - AQ_EC_BUCKET_SHIFT),
    AQ_EC_DITHER_MORE = 4 * AQ_EC_OCTAVE, /* of a step: values below half of one still cost bits */
    AQ_EC_HALF_MAX = (0x7f800000 >> AQ_EC_BUCKET_SHIFT) - 2 * AQ_EC_OCTAVE,
    AQ_EC_ESCAPE_BITS = 18, /* what a value beyond the table costs, about: symbol, two numbers of a byte */
    AQ_EC_ESCAPE_MORE = 8,  /* bits of each further byte of its number: see aq_ec_cost */
    AQ_EC_FINE_OCTAVES = 5, /* no step is below 2^-5 of the median magnitude: squared error about 1e-4 of all */
    AQ_EC_REACH = 20,       /* |q| stays below 2^20, three bytes, except for AQ_EC_FAR values */
    AQ_EC_REACH_SAFE = 16,  /* where |q| stays below 2^17 for all, a body fits its bound, whatever its rows are */
    AQ_EC_REACH_MOST = 23,  /* nothing is beyond, for AQ_EC_ESCAPE_LIMIT is near */
    AQ_EC_FAR = 4096,
    AQ_EC_ZEROS_SHARE = 16, /* where one value in 16 is zero, a table without cells is tried as well */
    AQ_EC_CENTRE_MIN = 16   /* fewer values of a magnitude do not determine its level */
};

/* Mean bits per value: the least and the most, and the limit up to which the seven magnitudes of a table suffice. */
#define AQ_EC_RATE_MIN   1.0f
#define AQ_EC_RATE_TABLE 3.5f
#define AQ_EC_RATE_MAX   8.0f
#define AQ_EC_RATE_PAYS  1.5 /* a goal does not pay for its head below it */

/* |q| stays below it: whole numbers are exact. */
#define AQ_EC_ESCAPE_LIMIT 16777216.0f

/* --- the parts of a body --- */

enum {
    AQ_EC_CHUNK_ENTRY = 8, /* u32 bytes of words, u32 bytes of escapes */
    AQ_EC_CHUNK_VALUES = 65536,
    AQ_EC_STATE_BYTES = 4 * AQ_RANS_LANES,
    AQ_EC_CHUNK_SLACK = AQ_EC_STATE_BYTES + 2 * AQ_RANS_LANES + AQ_RANS_PAD + 4, /* plus 4 bytes per value */
    AQ_EC_LOOK_VALUES = 32768, /* at least this many values are looked at, in whole rows */
    AQ_EC_LOOK_ROWS = 8,
    AQ_EC_MEAN_BITS = 16,      /* of a channel: its mean, or the mean of its change */
    AQ_EC_COMMON_BITS = 4,
    AQ_EC_COMMON_LEVELS = 1 << AQ_EC_COMMON_BITS
};

AQ_EC_FUNCTION uint32_t aq_ec_chunk_rows(uint32_t columns)
{
    return columns >= AQ_EC_CHUNK_VALUES ? 1 : AQ_EC_CHUNK_VALUES / columns;
}

AQ_EC_FUNCTION uint32_t aq_ec_chunk_count(uint32_t rows, uint32_t columns)
{
    return (rows + aq_ec_chunk_rows(columns) - 1) / aq_ec_chunk_rows(columns);
}

/* Offset of the key, if there is one: the end of the lengths of chunks. */
AQ_EC_FUNCTION uint64_t aq_ec_key_from(uint32_t rows, uint32_t columns)
{
    return AQ_EC_HEAD_BYTES + AQ_EC_CHUNK_ENTRY * (uint64_t)aq_ec_chunk_count(rows, columns);
}

/* Offset of the centre, if there is one. */
AQ_EC_FUNCTION uint64_t aq_ec_centre_from(uint32_t rows, uint32_t columns, uint32_t marks)
{
    return aq_ec_key_from(rows, columns) + ((marks & AQ_EC_DITHERED) != 0 ? AQ_EC_KEY_BYTES : 0);
}

/* Bytes of means; of both marks the more. */
AQ_EC_FUNCTION uint64_t aq_ec_centre_bytes(uint32_t columns, uint32_t marks)
{
    const uint64_t centre = (marks & AQ_EC_CENTRED) != 0 ? 2 * (uint64_t)columns : 0;
    const uint64_t common = (marks & AQ_EC_COMMON) != 0 ? sizeof(float) + ((uint64_t)columns + 1) / 2 : 0;
    return centre > common ? centre : common;
}

/* Offset of the chunks. */
AQ_EC_FUNCTION uint64_t aq_ec_chunks_from(uint32_t rows, uint32_t columns, uint32_t marks)
{
    return aq_ec_centre_from(rows, columns, marks) + aq_ec_centre_bytes(columns, marks);
}

/* ---- the dither's numbers ----
 *
 * Philox makes four words of a body's key, those and the row two words of the row; a byte of a hash of the column is a
 * value's number. Rows are as unlike as Philox' words; within a row a full avalanche is enough, because its numbers
 * only have to be uniform and unlike. Byte k of the 16 words of 64 columns is of columns 16 k on: no lane crosses
 * another.
 */
struct aq_ec_dither {
    uint32_t words[4]; /* of a body: Philox of its key, block 0 */
};

struct aq_ec_dither_row {
    uint32_t begin, mask;
};

/* Bijective; each bit in changes each bit out in half of all cases, to 0.11 % (C. Wellons, hash-prospector). */
AQ_EC_FUNCTION uint32_t aq_ec_mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0xd35a2d97u;
    return x ^ (x >> 15);
}

AQ_EC_FUNCTION struct aq_ec_dither_row aq_ec_dither_of(const struct aq_ec_dither *dither, uint32_t row)
{
    struct aq_ec_dither_row out;
    out.begin = aq_ec_mix(dither->words[0] ^ aq_ec_mix(dither->words[1] + row));
    out.mask = aq_ec_mix(dither->words[2] ^ aq_ec_mix(dither->words[3] + row));
    return out;
}

/* Of four columns, 16 apart: word j is of 64 (j / 16) + j % 16 and those behind. */
AQ_EC_FUNCTION uint32_t aq_ec_dither_word(struct aq_ec_dither_row row, uint32_t j)
{
    return aq_ec_mix(row.begin + j) ^ row.mask;
}

AQ_EC_FUNCTION uint32_t aq_ec_dither_byte(struct aq_ec_dither_row row, uint32_t column)
{
    return aq_ec_dither_word(row, 16 * (column / 64) + column % 16) >> 8 * (column / 16 % 4) & 255u;
}

AQ_EC_FUNCTION uint64_t aq_ec_cells_bytes(uint64_t values, uint32_t refine)
{
    return (values + 7) / 8 * refine;
}

/* One row in this many is looked at: at least eight rows, if there are eight. */
AQ_EC_FUNCTION uint32_t aq_ec_stride(uint32_t rows, uint64_t values)
{
    const uint32_t stride = (uint32_t)(values / AQ_EC_LOOK_VALUES), most = rows / AQ_EC_LOOK_ROWS;
    const uint32_t least = stride < most ? stride : most;
    return least > 1 ? least : 1;
}

/* The cost of means, in 1/256 bits of the values looked at: they have to save as much. On the rows that are looked
 * at their mean saves about 0.7 bits per channel more than on others. */
AQ_EC_FUNCTION uint64_t aq_ec_centre_price(uint32_t columns, uint64_t looked, uint64_t values, uint32_t bits)
{
    return 256 * (uint64_t)columns * (1 + bits * looked / values);
}

/* The grid: q = round(|d| * inverse) with d's sign, levels by |q|; then, where refine is not 0, one of 2^refine cells
 * of a step, (2r + 1 - 2^refine) * unit from its middle. */
struct aq_ec_grid {
    float step, inverse;
    float levels[AQ_RANS_LEVELS];
    uint32_t refine;
    float unit;
    float dither; /* w = (2 byte - 255) * dither: 1/512 of a (refined) step, or 1/1024 */
};

/* The goal of a sample: mean bits per value; or, where error is not 0, |a - x^| of |a|. */
struct aq_ec_goal {
    float rate, error;
    float dither; /* w's range in steps: 1, 1/2 or 0 */
    bool warm;    /* what is coded is a change */
    bool keyed;   /* there is a key: without a dither one may be added where zeros ask for it */
};

/* A goal of bits pays for the means of channels. */
AQ_EC_FUNCTION struct aq_ec_goal aq_ec_goal_of_rest(struct aq_ec_goal goal, uint32_t columns, uint64_t values)
{
    const uint32_t mark = goal.warm ? AQ_EC_COMMON : AQ_EC_CENTRED;
    goal.rate = goal.rate - 8.0f * (float)aq_ec_centre_bytes(columns, mark) / (float)values;
    if (goal.rate < AQ_EC_RATE_MIN) goal.rate = AQ_EC_RATE_MIN;
    return goal;
}

/* Bits per value of the rest of a body: head, key, lengths, states. */
AQ_EC_FUNCTION double aq_ec_head_bits(uint32_t rows, uint32_t columns)
{
    const uint64_t head = aq_ec_chunks_from(rows, columns, AQ_EC_DITHERED) +
                          AQ_EC_STATE_BYTES * (uint64_t)aq_ec_chunk_count(rows, columns);
    return 8.0 * (double)head / ((double)rows * (double)columns);
}

/* A goal of bits pays for the head where that is 2 to 20 % of it. A smaller sample would keep too little: there the
 * head comes on top (aq_codec_body_bytes counts it). */
AQ_EC_FUNCTION float aq_ec_rate_of_values(float rate, uint32_t rows, uint32_t columns)
{
    const double head = aq_ec_head_bits(rows, columns), whole = (double)rate, least = AQ_EC_RATE_PAYS;
    if (50.0 * head <= whole || 5.0 * head > whole || whole < least) return rate;
    return (float)(whole - head > least ? whole - head : least);
}

/* Bits a value that a body has without its head. */
AQ_EC_FUNCTION double aq_ec_bits_of(uint32_t rows, uint32_t columns, uint64_t body_bytes)
{
    return 8.0 * (double)body_bytes / ((double)rows * (double)columns) - aq_ec_head_bits(rows, columns);
}

/* The input of the choice: counts of all *below* each bucket, of |d|, and where an error is the goal of |a| (may be
 * the same); moments: room for 2 (BUCKETS + 1). reach, far: |q| is below 2^reach except for `far` of the counted
 * values. */
struct aq_ec_look {
    const uint32_t *below, *energy;
    double *moments;
    uint32_t reach, far;
    bool summed; /* moments hold what aq_ec_moments makes of `below` */
};

AQ_EC_FUNCTION struct aq_ec_look aq_ec_look_of(const uint32_t *below, const uint32_t *energy, double *moments,
                                               uint32_t stride, bool again)
{
    const uint32_t reach = again ? AQ_EC_REACH_SAFE : AQ_EC_REACH;
    const struct aq_ec_look look = {below, energy, moments, reach, again ? 0 : AQ_EC_FAR / stride, false};
    return look;
}

/* How a sample is rounded. */
enum aq_ec_way {
    AQ_EC_AS_ASKED = 0, /* with the goal's dither, which the receiver takes off again */
    AQ_EC_ZEROS = 1, /* stochastic: the sender adds a whole dither, the receiver takes none off: zero stays zero */
    AQ_EC_NEAREST = 2,
    AQ_EC_DITHER = 3 /* a whole one, though the goal has none: in cells a zero has less error with it than without */
};

AQ_EC_FUNCTION float aq_ec_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

AQ_EC_FUNCTION float aq_ec_float_at(const uint8_t *at)
{
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

AQ_EC_FUNCTION uint32_t aq_ec_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The bucket of a magnitude whose sign bit is clear. */
AQ_EC_FUNCTION uint32_t aq_ec_bucket(float magnitude)
{
    return aq_ec_bits(magnitude) >> AQ_EC_BUCKET_SHIFT;
}

AQ_EC_FUNCTION float aq_ec_edge(uint32_t bucket)
{
    return aq_ec_float(bucket << AQ_EC_BUCKET_SHIFT);
}

AQ_EC_FUNCTION float aq_ec_middle(uint32_t bucket)
{
    return aq_ec_float((bucket << AQ_EC_BUCKET_SHIFT) + (1u << (AQ_EC_BUCKET_SHIFT - 1)));
}

/* log2(x) in 1/256, from below within 1/90 of a bit; x >= 1. */
AQ_EC_FUNCTION uint32_t aq_ec_log2(uint32_t x)
{
    const uint8_t fraction[32] = {0,   11,  22,  33,  43,  53,  63,  73,  82,  91,  100, 109, 117, 125, 134, 142,
                                  149, 157, 165, 172, 179, 186, 193, 200, 207, 213, 220, 226, 232, 238, 244, 250};
#ifdef __CUDA_ARCH__
    const uint32_t high = 31u - (uint32_t)__clz((int)x);
#else
    uint32_t high = 0;
    while (x >> high > 1)
        high++;
#endif
    const uint32_t next = high >= 5 ? x >> (high - 5) & 31 : x << (5 - high) & 31;
    return high << 8 | fraction[next];
}

/* The ends of the magnitudes of |q| = 0..7, for a step whose half is the lower edge of `half`. */
AQ_EC_FUNCTION void aq_ec_ends(uint32_t half, uint32_t ends[AQ_RANS_LEVELS])
{
    const float edge = aq_ec_edge(half);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        const float end = (float)(2 * k + 1) * edge;
        ends[k] = aq_ec_bits(end) >= 0x7f800000u ? (uint32_t)AQ_EC_BUCKETS : aq_ec_bucket(end);
    }
}

/* ---- the change that all rows have in common ----
 *
 * A channel's mean c is (2k - 15) * unit, k a code of 4 bits. The largest mean has an outermost code, unless it is far
 * above the others (then it is cut, and what is missing stays in the values): the mean of floats' upper halves is about
 * the logarithm's mean, and a sum of integers has no order. */
AQ_EC_FUNCTION float aq_ec_common_unit(float peak, uint32_t sum_of_upper_halves, uint32_t columns)
{
    const float whole = peak / (float)(AQ_EC_COMMON_LEVELS - 1);
    const float usual = 0.5f * aq_ec_float(sum_of_upper_halves / columns << 16);
    return usual < whole ? usual : whole;
}

AQ_EC_FUNCTION uint32_t aq_ec_upper_half(float value)
{
    return aq_ec_bits(value) >> 16 & 0x7fffu;
}

/* Of 1 / (2 unit). */
AQ_EC_FUNCTION uint32_t aq_ec_common_code(float mean, float inverse)
{
    const float t = mean * inverse + 0.5f * (float)AQ_EC_COMMON_LEVELS;
    if (t >= (float)AQ_EC_COMMON_LEVELS) return AQ_EC_COMMON_LEVELS - 1;
    return t > 0.0f ? (uint32_t)t : 0;
}

/* A unit that a sender writes: every mean is finite. */
AQ_EC_FUNCTION bool aq_ec_common_fits(float unit)
{
    return aq_ec_bits(unit) < 0x7f800000u && aq_ec_bits(unit * (float)AQ_EC_COMMON_LEVELS) < 0x7f800000u;
}

AQ_EC_FUNCTION float aq_ec_common_mean(uint32_t code, float unit)
{
    return (float)(2 * (int32_t)code - (AQ_EC_COMMON_LEVELS - 1)) * unit;
}

/* How many |q| there will be of 0..7. */
struct aq_ec_counts {
    uint32_t of[AQ_RANS_LEVELS], beyond;
};

/* Of nearest rounding. */
AQ_EC_FUNCTION void aq_ec_count_nearest(const uint32_t *below, uint32_t half, struct aq_ec_counts *out)
{
    uint32_t ends[AQ_RANS_LEVELS], from = 0;
    aq_ec_ends(half, ends);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        out->of[k] = below[ends[k]] - from;
        from = below[ends[k]];
    }
    out->beyond = below[AQ_EC_BUCKETS] - from;
}

/* The width of w, and sums of the magnitudes below each bucket (aq_ec_moments), NULL without w. */
struct aq_ec_noise {
    const double *sums;
    float range;
};

AQ_EC_FUNCTION uint32_t aq_ec_bucket_or_all(float edge)
{
    return aq_ec_bits(edge) >= 0x7f800000u ? (uint32_t)AQ_EC_BUCKETS : aq_ec_bucket(edge);
}

/* Dithered, to be expected: within range / 2 of the middle between k and k + 1 it is one or the other, in proportion;
 * else the nearest. */
AQ_EC_FUNCTION void aq_ec_count_dithered(const uint32_t *below, const struct aq_ec_noise *noise, uint32_t half,
                                         struct aq_ec_counts *out)
{
    const float step = 2.0f * aq_ec_edge(half), still = 0.5f * (1.0f - noise->range);
    double share = 0.0; /* of those between k - 1 and k: they are rounded up to k */
    out->beyond = below[AQ_EC_BUCKETS];
    for (uint32_t k = 0, last = 0; k < AQ_RANS_LEVELS; k++) {
        const float begin = (float)k + still;
        const uint32_t from = aq_ec_bucket_or_all(begin * step);
        const uint32_t to = aq_ec_bucket_or_all((begin + noise->range) * step);
        const double here = (double)(below[to] - below[from]);
        const double steps = (noise->sums[to] - noise->sums[from]) / (double)step;
        const double up = (steps - (double)begin * here) / (double)noise->range;
        const double count = share + (double)(below[from] - below[last]) + here - up + 0.5;
        out->of[k] = count < 0.0 ? 0 : count < (double)out->beyond ? (uint32_t)count : out->beyond;
        out->beyond -= out->of[k];
        share = up;
        last = to;
    }
}

/* Bits of all, in 1/256. */
AQ_EC_FUNCTION uint64_t aq_ec_cost_of(const struct aq_ec_counts *counts, uint32_t all)
{
    uint64_t cost = 0;
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        const uint32_t count = counts->of[k];
        if (count > 0) cost += (uint64_t)count * (aq_ec_log2(all) - aq_ec_log2(count) + (k > 0 ? 256u : 0u));
    }
    return cost + (uint64_t)counts->beyond * (AQ_EC_ESCAPE_BITS << 8);
}

/* Bytes of escapes behind the first one, in 1/256 bits: a number has 6, 13 or 20 bits of magnitude in 1, 2 or 3. */
AQ_EC_FUNCTION uint64_t aq_ec_cost_far(const uint32_t *below, uint32_t half)
{
    const float step = 2.0f * aq_ec_edge(half);
    uint64_t values = 0;
    for (uint32_t bits = 6; bits <= 20; bits += 7)
        values += below[AQ_EC_BUCKETS] - below[aq_ec_bucket_or_all((float)(1u << bits) * step)];
    return values * (AQ_EC_ESCAPE_MORE << 8);
}

/* Bits of all with that step, in 1/256. */
AQ_EC_FUNCTION uint64_t aq_ec_cost(const uint32_t *below, const struct aq_ec_noise *noise, uint32_t half)
{
    struct aq_ec_counts counts;
    if (noise->sums != NULL)
        aq_ec_count_dithered(below, noise, half, &counts);
    else
        aq_ec_count_nearest(below, half, &counts);
    return aq_ec_cost_of(&counts, below[AQ_EC_BUCKETS]) + (counts.beyond > 0 ? aq_ec_cost_far(below, half) : 0);
}

/* The first bucket that has at most `above` values in it and beyond. */
AQ_EC_FUNCTION uint32_t aq_ec_bucket_above(const uint32_t *below, uint32_t above)
{
    uint32_t low = 0, high = AQ_EC_BUCKETS;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (below[AQ_EC_BUCKETS] - below[middle] <= above)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The bucket above the last one that is not empty; 0: everything is zero. */
AQ_EC_FUNCTION uint32_t aq_ec_top(const uint32_t *below)
{
    const uint32_t top = aq_ec_bucket_above(below, 0);
    return top <= 2 ? 0 : top;
}

/* The larger of `half` and the bucket `octaves` octaves below `bucket`. */
AQ_EC_FUNCTION uint32_t aq_ec_half_above(uint32_t half, uint32_t bucket, uint32_t octaves)
{
    const uint32_t least = bucket > octaves * AQ_EC_OCTAVE ? bucket - octaves * AQ_EC_OCTAVE : 0;
    return least > half ? least : half;
}

/* The least half of a step that a body can carry: its inverse is finite, and escapes are not too long. */
AQ_EC_FUNCTION uint32_t aq_ec_half_carried(const struct aq_ec_look *look)
{
    uint32_t half = AQ_EC_OCTAVE;
    half = aq_ec_half_above(half, aq_ec_bucket_above(look->below, 0), AQ_EC_REACH_MOST + 1);
    return aq_ec_half_above(half, aq_ec_bucket_above(look->below, look->far), look->reach + 1);
}

/* And the least that is worth its bits: where few values are not zero, any step would keep to the rate. */
AQ_EC_FUNCTION uint32_t aq_ec_half_least(const struct aq_ec_look *look)
{
    const uint32_t other = look->below[AQ_EC_BUCKETS] - look->below[1];
    const uint32_t median = aq_ec_bucket_above(look->below, other / 2);
    return aq_ec_half_above(aq_ec_half_carried(look), median, AQ_EC_FINE_OCTAVES + 1);
}

/* The bucket whose lower edge is half of the smallest step that keeps to the rate; 0: everything is zero. */
AQ_EC_FUNCTION uint32_t aq_ec_half_of_rate(const struct aq_ec_look *look, const struct aq_ec_noise *noise, float rate)
{
    const uint64_t most = (uint64_t)((double)look->below[AQ_EC_BUCKETS] * (double)rate * 256.0);
    uint32_t low = aq_ec_half_least(look), high = aq_ec_top(look->below);
    if (high == 0) return 0;
    if (noise->sums != NULL) high += AQ_EC_DITHER_MORE;
    if (noise->sums != NULL && high > AQ_EC_HALF_MAX) high = AQ_EC_HALF_MAX;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (aq_ec_cost(look->below, noise, middle) <= most)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- to an error ---- */

/* Sums of v and of v^2 over all buckets below each. */
AQ_EC_FUNCTION void aq_ec_moments(const uint32_t *below, double *sums)
{
    double *squares = sums + AQ_EC_BUCKETS + 1;
    sums[0] = squares[0] = 0.0;
    for (uint32_t b = 0; b < AQ_EC_BUCKETS; b++) {
        const double count = (double)(below[b + 1] - below[b]), v = count > 0.0 ? (double)aq_ec_middle(b) : 0.0;
        sums[b + 1] = sums[b] + count * v;
        squares[b + 1] = squares[b] + count * v * v;
    }
}

/* The squared error of all with that step, levels in the mean of their values. */
AQ_EC_FUNCTION double aq_ec_error(const struct aq_ec_look *look, uint32_t half, bool dithered)
{
    const double *sums = look->moments, *squares = sums + AQ_EC_BUCKETS + 1, step = 2.0 * (double)aq_ec_edge(half);
    uint32_t ends[AQ_RANS_LEVELS], from = 0;
    double error = 0.0;
    if (dithered) return (double)look->below[AQ_EC_BUCKETS] * step * step / 12.0;
    aq_ec_ends(half, ends);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; from = ends[k++]) {
        const uint32_t count = look->below[ends[k]] - look->below[from];
        const double sum = sums[ends[k]] - sums[from], square = squares[ends[k]] - squares[from];
        const double level = k == 0 ? 0.0 : count >= AQ_EC_CENTRE_MIN ? sum / (double)count : (double)k * step;
        error += square - 2.0 * level * sum + (double)count * level * level;
    }
    return error + (double)(look->below[AQ_EC_BUCKETS] - look->below[from]) * step * step / 12.0;
}

/* The bucket whose lower edge is half of the largest step, of table and refinement together, that keeps to the error;
 * 0: everything is zero. */
AQ_EC_FUNCTION uint32_t aq_ec_half_of_error(const struct aq_ec_look *look, float error, bool dithered)
{
    double most = 0.0;
    uint32_t low = aq_ec_half_carried(look), high = aq_ec_top(look->below);
    if (high == 0) return 0;
    for (uint32_t b = 0; b < AQ_EC_BUCKETS; b++) {
        const uint32_t count = look->energy[b + 1] - look->energy[b];
        if (count > 0) most += (double)count * (double)aq_ec_middle(b) * (double)aq_ec_middle(b);
    }
    most *= (double)error * (double)error;
    while (low < high) { /* the error grows with the step, except a little where magnitudes cross an end */
        const uint32_t middle = low + (high - low + 1) / 2;
        if (aq_ec_error(look, middle, dithered) <= most)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- coded again ----
 *
 * Counts know nothing of neighbours: if rows are unlike each other, pairs differ from what the table expects, and
 * the rows that were looked at may be unlike the rest. So a body can be longer than its rate. */

/* Has it more than 2 % above its rate? */
AQ_EC_FUNCTION bool aq_ec_is_long(const struct aq_ec_goal *goal, double bits)
{
    return goal->error <= 0.0f && bits > 1.02 * (double)goal->rate;
}

/* The goal of a second time. */
AQ_EC_FUNCTION struct aq_ec_goal aq_ec_goal_again(struct aq_ec_goal goal, double bits)
{
    const double rate = (double)goal.rate, more = bits - rate, most = 0.25 * rate;
    goal.rate = (float)(rate - (more < most ? more : most));
    return goal;
}

/* One row in this many is looked at then. */
AQ_EC_FUNCTION uint32_t aq_ec_stride_again(uint32_t stride)
{
    return stride > 4 ? stride / 4 : 1;
}

/* ---- the head ---- */

/* The mean magnitude of the buckets [from, to). */
AQ_EC_FUNCTION float aq_ec_centre(const uint32_t *below, uint32_t from, uint32_t to, float otherwise)
{
    const uint32_t count = below[to] - below[from];
    float sum = 0.0f;
    if (count < AQ_EC_CENTRE_MIN) return otherwise;
    for (uint32_t b = from; b < to; b++)
        if (below[b + 1] > below[b]) sum += (float)(below[b + 1] - below[b]) / (float)count * aq_ec_middle(b);
    return sum;
}

/* Levels of the table, and frequencies, into the head. */
AQ_EC_FUNCTION void aq_ec_head_write(const uint32_t *below, const struct aq_ec_noise *noise, uint32_t half,
                                     uint32_t refine, bool whole_steps, uint8_t *head)
{
    const uint32_t all = below[AQ_EC_BUCKETS];
    const float step = half == 0 ? 0.0f : 2.0f * aq_ec_edge(half);
    struct aq_ec_counts counts = {{all}, 0};
    uint32_t ends[AQ_RANS_LEVELS], from = 0;
    uint16_t weights[AQ_RANS_LEVELS], escapes = 1;
    float levels[AQ_RANS_LEVELS];
    aq_ec_ends(half, ends);
    if (half > 0 && noise->sums != NULL)
        aq_ec_count_dithered(below, noise, half, &counts);
    else if (half > 0)
        aq_ec_count_nearest(below, half, &counts);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        const uint64_t share = (uint64_t)counts.of[k] * 32768 / all >> (k > 0); /* either sign has half */
        weights[k] = (uint16_t)(share > 0 ? share : 1);
        levels[k] = k == 0 || whole_steps || half == 0 ? (float)k * step /* level 0 is not written */
                                                       : aq_ec_centre(below, from, ends[k], (float)k * step);
        from = ends[k];
    }
    const uint64_t beyond = ((uint64_t)counts.beyond * 2 * AQ_RANS_SLOTS + all - 1) / all;
    const uint64_t wanted = 1 + beyond + aq_rans_pruned(weights, escapes);
    escapes = (uint16_t)(wanted < AQ_RANS_ESCAPES_MAX ? wanted : (uint64_t)AQ_RANS_ESCAPES_MAX);
    memcpy(head + AQ_EC_STEP, &step, sizeof step);
    memcpy(head + AQ_EC_LEVELS, levels + 1, (AQ_RANS_LEVELS - 1) * sizeof *levels);
    memcpy(head + AQ_EC_WEIGHTS, weights, sizeof weights);
    memcpy(head + AQ_EC_ESCAPES, &escapes, sizeof escapes);
    head[AQ_EC_REFINE] = (uint8_t)refine;
    head[AQ_EC_MARKS] = noise->range == 0.5f ? AQ_EC_HALF : 0;
}

/* A choice of a step, and what follows from it. */
struct aq_ec_choice {
    uint32_t half, refine;
    struct aq_ec_noise noise; /* by which its table is counted */
    bool whole_steps;
    double error; /* squared, of all counted values, about */
};

/* Of that goal of bits. */
AQ_EC_FUNCTION struct aq_ec_choice aq_ec_choose_rate(const struct aq_ec_look *look, const struct aq_ec_goal *goal)
{
    const double all = (double)look->below[AQ_EC_BUCKETS], zeros = (double)look->below[1];
    const bool dithered = goal->dither > 0.0f;
    struct aq_ec_choice out = {0, 0, {dithered ? look->moments : NULL, goal->dither}, false, 0.0};
    while (goal->rate - (float)out.refine > AQ_EC_RATE_TABLE && out.refine < AQ_EC_REFINE_MAX)
        out.refine++;
    if (out.refine > 0) out.noise.sums = NULL; /* w is within a part of the step */
    out.half = aq_ec_half_of_rate(look, &out.noise, goal->rate - (float)out.refine);
    if (out.half == 0) out.refine = 0;
    if (out.refine > 0) out.noise.sums = NULL, out.noise.range = 0.0f; /* there a whole dither costs nothing */
    out.whole_steps = out.refine > 0 || dithered;
    const double step = 2.0 * (double)aq_ec_edge(out.half) / (double)(1u << out.refine);
    /* A zero is half a cell away from its level; a dither's noise is all that is left of it. */
    const double of_zero = out.noise.range == 0.5f ? 1.0 / 48 : dithered ? 1.0 / 12 : out.refine > 0 ? 0.25 : 0.0;
    out.error = ((all - zeros) / 12 + zeros * of_zero) * step * step;
    return out;
}

/* Its error with a whole dither. */
AQ_EC_FUNCTION double aq_ec_error_dithered(const struct aq_ec_look *look, const struct aq_ec_choice *choice)
{
    const double step = 2.0 * (double)aq_ec_edge(choice->half) / (double)(1u << choice->refine);
    return (double)look->below[AQ_EC_BUCKETS] / 12 * step * step;
}

/* The same where zeros stay zero: one in a sample that has many of them costs little and loses nothing. */
AQ_EC_FUNCTION struct aq_ec_choice aq_ec_choose_zeros(const struct aq_ec_look *look, const struct aq_ec_goal *goal)
{
    const bool dithered = goal->dither > 0.0f;
    struct aq_ec_choice out = {0, 0, {dithered ? look->moments : NULL, dithered ? 1.0f : 0.0f}, dithered, 0.0};
    out.half = aq_ec_half_of_rate(look, &out.noise, goal->rate);
    const double step = 2.0 * (double)aq_ec_edge(out.half);
    out.error = (double)(look->below[AQ_EC_BUCKETS] - look->below[1]) * step * step / (dithered ? 6 : 12);
    return out;
}

/* Of that goal of an error. */
AQ_EC_FUNCTION struct aq_ec_choice aq_ec_choose_error(const struct aq_ec_look *look, const struct aq_ec_goal *goal)
{
    const bool dithered = goal->dither > 0.0f;
    const uint64_t most = (uint64_t)((double)look->below[AQ_EC_BUCKETS] * (double)AQ_EC_RATE_TABLE * 256.0);
    struct aq_ec_choice out = {0, 0, {dithered ? look->moments : NULL, goal->dither}, false, 0.0};
    out.half = aq_ec_half_of_error(look, goal->error, dithered);
    for (; out.half > 0 && out.refine < AQ_EC_REFINE_MAX && aq_ec_cost(look->below, &out.noise, out.half) > most;
         out.refine++)
        out.half += AQ_EC_OCTAVE;
    if (out.refine > 0) out.noise.sums = NULL, out.noise.range = 0.0f;
    out.whole_steps = out.refine > 0 || dithered;
    return out;
}

/* Is there more error than a dither may leave: 0.9 of the values, or 0.707 of a change, which must shrink? */
AQ_EC_FUNCTION bool aq_ec_is_lost(const struct aq_ec_look *look, const struct aq_ec_goal *goal,
                                  const struct aq_ec_choice *choice)
{
    return choice->error > (goal->warm ? 0.5 : 0.81) * look->moments[2 * AQ_EC_BUCKETS + 1];
}

/* Writes step, levels and frequencies for that goal into the head of a body; of the marks only AQ_EC_HALF.
 * may_differ: another way than the one asked for is possible. */
AQ_EC_FUNCTION enum aq_ec_way aq_ec_head_choose(const struct aq_ec_look *look, const struct aq_ec_goal *goal,
                                                bool may_differ, uint8_t *head)
{
    const bool dithered = goal->dither > 0.0f;
    const uint32_t all = look->below[AQ_EC_BUCKETS], zeros = look->below[1];
    enum aq_ec_way way = AQ_EC_AS_ASKED;
    if (!look->summed && (dithered || goal->error > 0.0f)) aq_ec_moments(look->below, look->moments);
    struct aq_ec_choice choice = goal->error > 0.0f ? aq_ec_choose_error(look, goal) : aq_ec_choose_rate(look, goal);
    may_differ = may_differ && goal->error <= 0.0f && zeros < all;
    if (may_differ && zeros >= all / AQ_EC_ZEROS_SHARE && (dithered || choice.refine > 0)) {
        const struct aq_ec_choice other = aq_ec_choose_zeros(look, goal);
        if (!dithered && goal->keyed) {
            way = AQ_EC_DITHER;
            choice.error = aq_ec_error_dithered(look, &choice);
        }
        if (other.error < choice.error) choice = other, way = dithered ? AQ_EC_ZEROS : AQ_EC_NEAREST;
    }
    if (may_differ && dithered && aq_ec_is_lost(look, goal, &choice)) {
        struct aq_ec_goal nearest = *goal;
        nearest.dither = 0.0f;
        choice = aq_ec_choose_rate(look, &nearest);
        way = AQ_EC_NEAREST;
    }
    aq_ec_head_write(look->below, &choice.noise, choice.half, choice.refine, choice.whole_steps, head);
    return way;
}

/* And out of it: the grid, and of the table what aq_rans_slots takes. False for a head that no sender writes. */
AQ_EC_FUNCTION bool aq_ec_head_read(const uint8_t *head, struct aq_ec_grid *grid, uint16_t weights[AQ_RANS_LEVELS],
                                    uint16_t *escapes)
{
    const uint32_t marks = head[AQ_EC_MARKS], either = AQ_EC_CENTRED | AQ_EC_COMMON;
    bool good = head[AQ_EC_REFINE] <= AQ_EC_REFINE_MAX && (marks & ~(either | AQ_EC_DITHERED | AQ_EC_HALF)) == 0;
    good = good && (marks & either) != either && (marks & (AQ_EC_DITHERED | AQ_EC_HALF)) != AQ_EC_HALF;
    memcpy(&grid->step, head + AQ_EC_STEP, sizeof grid->step);
    grid->levels[0] = 0.0f;
    memcpy(grid->levels + 1, head + AQ_EC_LEVELS, (AQ_RANS_LEVELS - 1) * sizeof *grid->levels);
    memcpy(weights, head + AQ_EC_WEIGHTS, AQ_RANS_LEVELS * sizeof *weights);
    memcpy(escapes, head + AQ_EC_ESCAPES, sizeof *escapes);
    good = good && aq_ec_bits(grid->step) < 0x7f800000u;
    for (uint32_t k = 1; k < AQ_RANS_LEVELS; k++)
        good = good && aq_ec_bits(grid->levels[k]) < 0x7f800000u;
    grid->inverse = grid->step > 0.0f ? 1.0f / grid->step : 0.0f;
    if (aq_ec_bits(grid->inverse) >= 0x7f800000u) grid->inverse = 0.0f; /* a step of a denormal: all is zero */
    grid->refine = head[AQ_EC_REFINE] & 7u;
    grid->unit = grid->step * aq_ec_float((126u - grid->refine) << 23); /* step * 2^-(refine + 1) */
    grid->dither = grid->unit * aq_ec_float((127u - ((marks & AQ_EC_HALF) != 0 ? 9u : 8u)) << 23);
    return good;
}

#endif
