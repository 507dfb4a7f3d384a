/*
 * codec_ec.c -- the entropy-coded codec: one step per sample, mid-tread, and as many bits as the values are worth.
 *
 * q = round(d / step), level = sign(q) * levels[|q|], packed by codec_rans.h. Step, frequencies and levels (the mean
 * magnitude of each |q|: uniform reconstruction would be too large) are chosen from counts of the sample's own
 * magnitudes for config.rate or config.error (codec_ec_choose.h); the head of the body holds them, and the receiver
 * needs nothing else.
 *
 * Values beyond 7 steps, and pairs that are too rare for a slot, are escaped: whole numbers behind the chunk's words.
 * With a table that does not fit (rows that are unlike those that were looked at) a body is longer, never wrong. A
 * sample without a reference is coded again, once, if it misses its rate by more than 2 %; so is any sample whose step
 * cannot carry it, if its reference is still there (docs/DECISIONS.md 0540, 0541). Beyond 3.5 bits per value each value
 * is refined: its cell of the step follows in plain bits.
 *
 * A keyframe (config.keyframe of any codec that keeps messages) is coded in the same way, at config.keyframe_rate. A
 * sample without a reference is coded against the mean of each channel over the sample, where that saves more than it
 * costs.
 *
 * With rounding stochastic a known noise goes in before rounding, and the receiver takes it off again
 * (codec_ec_choose.h): the error's mean is 0 for every value, and it is no larger than nearest rounding's from 2 bits
 * on. A keyframe is rounded to nearest (with a dither where a few zeros ask for it). With half_dither the noise of a
 * delta is half as wide, and the change that all rows have in common is sent separately; a sample without a reference
 * is coded as with stochastic.
 *
 * If many values are zero, zeros stay zero: the sender adds the noise and the receiver does not subtract it. If a
 * dither would leave more error than the sample is worth (below 1.4 bits), rounding is to nearest (docs/DECISIONS.md
 * 0542).
 *
 * At equal bits the error of a gradient is half of the error with a scale per row (shared/NUMERICS.md 1.5).
 *
 * A *chunk* is as many whole rows as have about 65536 values: coded on its own, by one thread or one warp.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "codec_member.h"


static const float ROW_FAR = 64.0f; /* steps: a row's error is added up again from there on */

/* Of a whole sample: codec->own. */
struct whole {
    struct aq_rans_table table;
    struct aq_ec_grid grid;
    struct aq_ec_dither dither;
    uint32_t stride; /* of the rows that were looked at */
    bool noise;      /* w is added before rounding; the receiver subtracts it if the body has a key */
    uint32_t below[AQ_EC_BUCKETS + 1]; /* counts of magnitudes in the bucket; then of all below it */
    uint32_t energy[AQ_EC_BUCKETS + 1];
    double moments[2 * (AQ_EC_BUCKETS + 1)];
    float centre[]; /* a row: a keyframe's reference; of a delta what all rows have in common */
};

/* Of a piece: scratch->own. */
struct piece {
    uint8_t *codes; /* a chunk's, and AQ_RANS_GROUP more */
    uint8_t *cells; /* of the step, as many, and AQ_CODEC_PAD more */
    struct aq_rans_escape *escapes; /* pairs_of(values) */
    int32_t *beyond;                /* q of the values whose code is 0, in order: as many as there are values */
    uint32_t pairs;
};

/* `bits` is the default of a manifest without bits: 4 for activations, 8 for gradients. */
static void defaults(struct aq_codec_config *config)
{
    config->rate = config->bits >= 8 ? 3.0f : config->bits >= 4 ? 2.5f : (float)config->bits;
    config->bits = 1;
    config->rounding = AQ_ROUND_STOCHASTIC; /* docs/DECISIONS.md 0340; jobs without codecs: 0505 */
}

static enum aq_status check(const struct aq_codec_config *config)
{
    if (config->bits != 1) return aq_codec_refuse("bits with ec", "write rate in place of bits; it need not be whole");
    if (!(config->rate >= AQ_EC_RATE_MIN && config->rate <= AQ_EC_RATE_MAX))
        return aq_codec_refuse("rate with ec", "1 to 8 bits a value");
    if (!(config->error >= 0.0f && config->error < 1.0f))
        return aq_codec_refuse("error with ec", "0 to less than 1, of the values' own magnitude; 0: rate decides");
    if (config->rounding < AQ_ROUND_NEAREST || config->rounding > AQ_ROUND_HALF_DITHER)
        return aq_codec_refuse("rounding", "nearest, stochastic or half_dither");
    if (config->hadamard) return aq_codec_refuse("hadamard", "ec does not rotate");
    if (config->top_k != 0.0f && config->top_k != 1.0f) return aq_codec_refuse("top_k", "ec sends every value");
    return AQ_OK;
}

static uint64_t codes_bytes(uint64_t values)
{
    return (values + 2 * AQ_RANS_GROUP + 15) / 16 * 16;
}

static uint64_t cells_bytes(uint64_t values)
{
    return (values + 8 + AQ_CODEC_PAD + 15) / 16 * 16;
}

/* The rate of an error is not known beforehand: an estimate, about that of a constant Gauss. */
static double rate_of(const struct aq_codec_config *config)
{
    if (config->error <= 0.0f) return (double)config->rate;
    const double rate = 0.25 - log2((double)config->error);
    return rate > (double)AQ_EC_RATE_MAX ? (double)AQ_EC_RATE_MAX : rate < 0.25 ? 0.25 : rate;
}

/* An estimate. The means of channels of a keyframe are not counted: the goal of its values pays for them
 * (aq_ec_goal_of_rest). */
static uint64_t bytes_of(uint32_t rows, uint32_t columns, double goal, uint32_t marks)
{
    const double rate = (double)aq_ec_rate_of_values((float)goal, rows, columns);
    return aq_ec_chunks_from(rows, columns, marks) + aq_ec_chunk_count(rows, columns) * (uint64_t)AQ_EC_STATE_BYTES +
           (uint64_t)ceil((double)rows * (double)columns * rate / 8);
}

static uint64_t bytes_most(uint32_t rows, uint32_t columns)
{
    const uint32_t marks = AQ_EC_CENTRED | AQ_EC_COMMON | AQ_EC_DITHERED;
    return aq_ec_chunks_from(rows, columns, marks) + 4 * (uint64_t)rows * columns +
           (uint64_t)AQ_EC_CHUNK_SLACK * aq_ec_chunk_count(rows, columns);
}

static uint64_t pairs_of(uint64_t values)
{
    return (values + 1) / 2;
}

static void scratch(uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    const uint64_t values = (uint64_t)(rows < aq_ec_chunk_rows(columns) ? rows : aq_ec_chunk_rows(columns)) * columns;
    out->whole_bytes = sizeof(struct whole) + ((uint64_t)columns + AQ_CODEC_PAD) * sizeof(float);
    out->piece_bytes = codes_bytes(values) + cells_bytes(values) +
                       pairs_of(values) * sizeof(struct aq_rans_escape) + values * sizeof(int32_t) + 16;
}

static void layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    const uint32_t marks = config->rounding != AQ_ROUND_NEAREST ? AQ_EC_DITHERED : 0;
    out->groups = 1;
    out->positions_at = out->codes_at = aq_ec_chunks_from(rows, columns, marks);
    out->body_bytes = bytes_of(rows, columns, rate_of(config), marks);
    out->body_most = bytes_most(rows, columns);
    scratch(rows, columns, out);
}

void aq_ec_keyframe_layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                           struct aq_codec_layout *out)
{
    out->keyframe_bytes = bytes_of(rows, columns, (double)config->keyframe_rate, 0);
    out->keyframe_most = bytes_most(rows, columns);
    scratch(rows, columns, out);
}

enum aq_status aq_ec_keyframe_check(const struct aq_codec_config *config)
{
    if (!(config->keyframe_rate >= AQ_EC_RATE_MIN && config->keyframe_rate <= AQ_EC_RATE_MAX))
        return aq_codec_refuse("keyframe_rate", "1 to 8 bits a value");
    return AQ_OK;
}

static void digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    /* The receiver reads all of it in the body's head. 1 knew no cells of a step, 2 no dither, 3 another
     * dither, 4 no half of one. */
    const bool half = config->rounding == AQ_ROUND_HALF_DITHER && config->store != AQ_PRECISION_NONE;
    words[2] = config->rounding == AQ_ROUND_NEAREST ? 2 : half ? 5 : 4;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    const bool half = config->rounding == AQ_ROUND_HALF_DITHER && config->store != AQ_PRECISION_NONE;
    const char *const rounding = config->rounding == AQ_ROUND_NEAREST ? "" : half ? " half dither" : " stochastic";
    char messages[64];
    aq_codec_messages_text(config, messages, sizeof messages);
    if (config->error > 0.0f)
        snprintf(out, bytes, "ec error %.3g%s%s", (double)config->error, rounding, messages);
    else
        snprintf(out, bytes, "ec %.3g bits%s%s", (double)config->rate, rounding, messages);
}

static struct whole *whole_of(const struct aq_codec *codec)
{
    return (struct whole *)codec->own;
}

static struct piece piece_of(const struct aq_codec *codec, uint32_t number)
{
    const uint32_t in_chunk = aq_ec_chunk_rows(codec->columns);
    const uint64_t values = (uint64_t)(codec->rows < in_chunk ? codec->rows : in_chunk) * codec->columns;
    struct piece piece = {.codes = codec->scratch[number].own, .pairs = (uint32_t)pairs_of(values)};
    piece.cells = piece.codes + codes_bytes(values);
    piece.escapes = (struct aq_rans_escape *)(void *)(piece.cells + cells_bytes(values));
    piece.beyond = (int32_t *)(void *)(piece.escapes + piece.pairs);
    return piece;
}

static uint32_t pieces_of(const struct aq_codec *codec)
{
    const uint32_t chunks = aq_ec_chunk_count(codec->rows, codec->columns);
    return chunks < codec->pieces ? chunks : codec->pieces;
}

static void run_pieces(const struct aq_codec *codec, void (*run)(uint32_t piece, void *context), void *context)
{
    const uint32_t pieces = pieces_of(codec);
    if (codec->device != NULL && pieces > 1) {
        aq_device_parallel(codec->device, pieces, run, context);
        return;
    }
    for (uint32_t piece = 0; piece < pieces; piece++)
        run(piece, context);
}

static size_t groups_of(size_t values)
{
    return (values + AQ_RANS_GROUP - 1) / AQ_RANS_GROUP;
}

/* The reference of a row, and its kind: m, or of a keyframe the centre; AQ_ROW_NONE where there is neither. */
static const uint8_t *reference_row(const struct aq_codec *codec, const uint8_t *m, uint32_t row, bool centred,
                                    enum aq_row_kind *kind)
{
    const bool warm = m != NULL;
    *kind = warm ? aq_precision_row(codec->store) : centred ? AQ_ROW_FP32 : AQ_ROW_NONE;
    if (!warm) return (const uint8_t *)whole_of(codec)->centre;
    return m + (size_t)row * codec->columns * (aq_precision_bits(codec->store) / 8);
}

/* The place of x^ of a row as m'. */
static uint8_t *message_row(const struct aq_codec *codec, uint8_t *m_out, uint32_t row, enum aq_row_kind *kind)
{
    *kind = m_out == NULL ? AQ_ROW_NONE : aq_precision_row(codec->store);
    return m_out == NULL ? NULL : m_out + (size_t)row * codec->columns * (aq_precision_bits(codec->store) / 8);
}

/* The chunks of a body whose head is written. */
static uint8_t *chunks_of(const struct aq_codec *codec, uint8_t *body)
{
    return body + aq_ec_chunks_from(codec->rows, codec->columns, body[AQ_EC_MARKS]);
}

static bool is_marked(const uint8_t *body, uint32_t mark)
{
    return (body[AQ_EC_MARKS] & mark) != 0;
}

/* Of a body whose head and key are written. */
static void dither_begin(const struct aq_codec *codec, const uint8_t *body)
{
    struct aq_rng_key key;
    if (!is_marked(body, AQ_EC_DITHERED)) return;
    memcpy(&key, body + aq_ec_key_from(codec->rows, codec->columns), sizeof key);
    aq_rng_block(&key, 0, whole_of(codec)->dither.words);
}

/* The sender's, who may add noise that no key in the body takes off. */
static void noise_begin(const struct aq_codec_encoder *job, bool noise)
{
    struct whole *whole = whole_of(job->codec);
    whole->noise = noise;
    if (noise) aq_rng_block(job->key, 0, whole->dither.words);
}
static_assert(sizeof(struct aq_rng_key) == AQ_EC_KEY_BYTES, "docs/FORMAT.md, Entropy-coded");

/* Adds w to a row's values; sign -1: takes it off. */
static void row_dither(const struct aq_codec *codec, uint32_t row, float sign, float *values)
{
    const struct whole *whole = whole_of(codec);
    codec->kernels->ec_dither(aq_ec_dither_of(&whole->dither, row), codec->columns, sign * whole->grid.dither, values);
}

/* Adds to a row what all rows have in common; sign -1: takes it off. */
static void row_common(const struct aq_codec *codec, float sign, float *values)
{
    const float *common = whole_of(codec)->centre;
    for (uint32_t c = 0; c < codec->columns; c++)
        values[c] += sign * common[c];
}

/* ---- what is looked at ---- */

static void counts_sum(uint32_t *counts)
{
    for (uint32_t b = 0, sum = 0; b <= AQ_EC_BUCKETS; b++) {
        const uint32_t count = counts[b];
        counts[b] = sum;
        sum += count;
    }
}

/* Counts of magnitudes in every `stride`th row; false where a value is not finite. */
static bool look(const struct aq_codec_encoder *job, uint32_t stride, bool centred, bool energy)
{
    const struct aq_codec *codec = job->codec;
    struct whole *whole = whole_of(codec);
    float *d = codec->scratch[0].d;
    memset(whole->below, 0, sizeof whole->below);
    if (energy) memset(whole->energy, 0, sizeof whole->energy);
    for (uint32_t row = 0; row < codec->rows; row += stride) {
        enum aq_row_kind kind;
        struct aq_span span;
        const uint8_t *m = reference_row(codec, job->m, row, centred, &kind);
        const float *a = job->a + (size_t)row * codec->columns;
        codec->kernels->delta(a, m, kind, d, codec->columns, &span, NULL, true, NULL);
        if (span.peak >= 0x7f800000u) return false;
        if (centred && job->m != NULL) row_common(codec, -1.0f, d);
        for (uint32_t c = 0; c < codec->columns; c++) {
            if (!(fabsf(d[c]) < INFINITY)) return false; /* without what is in common */
            whole->below[aq_ec_bucket(fabsf(d[c]))]++;
        }
        for (uint32_t c = 0; energy && c < codec->columns; c++) {
            const float size = fabsf(a[c]);
            if (!(size < INFINITY)) return false;
            whole->energy[aq_ec_bucket(size)]++;
        }
    }
    return true;
}

/* The mean of each channel, or of its change, over every `stride`th row; the largest. */
static float means_make(const struct aq_codec_encoder *job, uint32_t stride)
{
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    float *centre = whole_of(codec)->centre, *d = codec->scratch[0].d, peak = 0.0f;
    memset(centre, 0, n * sizeof *centre);
    for (uint32_t row = 0; row < codec->rows; row += stride) {
        enum aq_row_kind kind;
        struct aq_span span;
        const uint8_t *m = reference_row(codec, job->m, row, false, &kind);
        codec->kernels->delta(job->a + row * n, m, kind, d, n, &span, NULL, true, NULL);
        for (size_t c = 0; c < n; c++)
            centre[c] += d[c];
    }
    for (size_t c = 0; c < n; c++) {
        centre[c] = centre[c] / (float)((codec->rows + stride - 1) / stride);
        if (!(fabsf(centre[c]) <= peak)) peak = fabsf(centre[c]);
    }
    return peak;
}

/* Writes the change that all rows have in common to `out`, and reads it as a receiver does; false: it cannot be
 * coded. */
static bool common_make(const struct aq_codec_encoder *job, uint32_t stride, uint8_t *out)
{
    const struct aq_codec *codec = job->codec;
    const uint32_t n = codec->columns;
    float *centre = whole_of(codec)->centre;
    const float peak = means_make(job, stride);
    uint32_t sum = 0;
    if (!(peak < INFINITY)) return false;
    for (uint32_t c = 0; c < n; c++)
        sum += aq_ec_upper_half(centre[c]);
    const float unit = aq_ec_common_unit(peak, sum, n), inverse = 0.5f / unit;
    if (!(inverse < INFINITY) || !aq_ec_common_fits(unit)) return false;
    memcpy(out, &unit, sizeof unit);
    memset(out + sizeof unit, 0, (n + 1) / 2);
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t code = aq_ec_common_code(centre[c], inverse);
        out[sizeof unit + c / 2] |= (uint8_t)(code << 4 * (c % 2));
        centre[c] = aq_ec_common_mean(code, unit);
    }
    return true;
}

/* The mean of each channel over every `stride`th row, as an f16 at `out` and so read again; false: one does not fit. */
static bool centre_make(const struct aq_codec_encoder *job, uint32_t stride, uint8_t *out)
{
    const struct aq_codec *codec = job->codec;
    float *centre = whole_of(codec)->centre;
    if (job->m != NULL) return common_make(job, stride, out);
    (void)means_make(job, stride);
    const uint32_t peak = codec->kernels->update(NULL, AQ_ROW_NONE, centre, codec->columns, NULL, out, AQ_ROW_FP16);
    if (peak >= aq_store_limit(AQ_PRECISION_FP16)) return false;
    codec->kernels->expand(out, AQ_ROW_FP16, codec->columns, centre);
    return true;
}

/* Is a centre worth its bits? The head has the step that was chosen without one. Also false if it cannot be made. */
static bool centre_pays(const struct aq_codec_encoder *job, uint32_t stride, uint32_t marks)
{
    const struct aq_codec *codec = job->codec;
    const struct whole *whole = whole_of(codec);
    const struct aq_ec_noise none = {NULL, 0.0f};
    const uint32_t half = aq_ec_bucket(0.5f * aq_ec_float_at(job->body + AQ_EC_STEP));
    const uint64_t before = aq_ec_cost(whole->below, &none, half), looked = whole->below[AQ_EC_BUCKETS];
    const uint64_t price = aq_ec_centre_price(codec->columns, looked, codec->layout.values,
                                              job->m != NULL ? AQ_EC_COMMON_BITS : AQ_EC_MEAN_BITS);
    uint8_t *const out = job->body + aq_ec_centre_from(codec->rows, codec->columns, marks);
    if (!centre_make(job, stride, out) || !look(job, stride, true, false)) return false;
    counts_sum(whole_of(codec)->below);
    return aq_ec_cost(whole->below, &none, half) + price < before && centre_make(job, 1, out);
}

/* The head of a sample whose counts are made, with what its channels have in common where that pays. */
static bool head_choose(const struct aq_codec_encoder *job, const struct aq_ec_goal *goal, struct aq_ec_look of,
                        uint32_t stride)
{
    const struct aq_codec *codec = job->codec;
    struct whole *whole = whole_of(codec);
    const enum aq_ec_way way = aq_ec_head_choose(&of, goal, true, job->body);
    const bool dithered = (goal->dither > 0.0f && way == AQ_EC_AS_ASKED) || way == AQ_EC_DITHER;
    const uint32_t marks = dithered ? AQ_EC_DITHERED : 0;
    const bool may_centre = way % 3 == 0 && (!goal->warm || goal->dither == 0.5f);
    bool centred = false;
    if (may_centre && whole->below[1] < whole->below[AQ_EC_BUCKETS]) {
        centred = centre_pays(job, stride, marks);
        const struct aq_ec_goal rest = aq_ec_goal_of_rest(*goal, codec->columns, codec->layout.values);
        if (!look(job, stride, centred, false)) return false;
        counts_sum(whole->below);
        (void)aq_ec_head_choose(&of, centred ? &rest : goal, false, job->body);
    }
    job->body[AQ_EC_MARKS] |= (uint8_t)(marks | (!centred ? 0 : goal->warm ? AQ_EC_COMMON : AQ_EC_CENTRED));
    if (dithered) memcpy(job->body + aq_ec_key_from(codec->rows, codec->columns), job->key, AQ_EC_KEY_BYTES);
    noise_begin(job, dithered || way == AQ_EC_ZEROS);
    return true;
}

/* Looks at one row in `stride`; makes the head, and whole_of(codec) to match. fit: so that it fits its bound. */
static bool head_make(const struct aq_codec_encoder *job, const struct aq_ec_goal *goal, uint32_t stride, bool fit)
{
    const struct aq_codec *codec = job->codec;
    struct whole *whole = whole_of(codec);
    const bool energy = goal->error > 0.0f;
    uint16_t weights[AQ_RANS_LEVELS], escapes;
    if (!look(job, stride, false, energy)) return false;
    if (stride > 1 && whole->below[0] == (codec->rows + stride - 1) / stride * codec->columns) {
        stride = 1; /* all these rows are zero */
        if (!look(job, stride, false, energy)) return false;
    }
    counts_sum(whole->below);
    if (energy) counts_sum(whole->energy);
    const struct aq_ec_look of = aq_ec_look_of(whole->below, whole->energy, whole->moments, stride, fit);
    whole->stride = stride;
    return head_choose(job, goal, of, stride) && aq_ec_head_read(job->body, &whole->grid, weights, &escapes) &&
           aq_rans_table(weights, escapes, &whole->table);
}

/* ---- escapes: whole numbers of seven bits a byte, the sign lowest ---- */

static bool number_put(int32_t q, uint8_t **at, const uint8_t *end)
{
    uint32_t word = ((uint32_t)q << 1) ^ (uint32_t)(q < 0 ? -1 : 0);
    for (;; word >>= 7) {
        if (*at == end) return false;
        *(*at)++ = (uint8_t)((word & 127) | (word > 127 ? 128 : 0));
        if (word <= 127) return true;
    }
}

static bool number_take(const uint8_t **at, const uint8_t *end, int32_t *q)
{
    uint32_t word = 0;
    for (uint32_t shift = 0; shift < 28; shift += 7) {
        if (*at == end) return false;
        const uint8_t byte = *(*at)++;
        word |= (uint32_t)(byte & 127) << shift;
        if (byte > 127) continue;
        *q = (int32_t)(word >> 1) ^ -(int32_t)(word & 1);
        return true;
    }
    return false;
}

static float level_of(const struct aq_ec_grid *grid, int32_t q)
{
    const int32_t size = q < 0 ? -q : q;
    const float level = size < AQ_RANS_LEVELS ? grid->levels[size] : (float)size * grid->step;
    return q < 0 ? -level : level;
}

/* ---- encode ---- */

struct chunk {
    uint32_t first, end; /* rows */
    size_t values;
    uint8_t *at, *limit; /* where its bytes may be */
};

static struct chunk chunk_of(const struct aq_codec *codec, uint32_t number)
{
    const uint32_t rows = aq_ec_chunk_rows(codec->columns);
    struct chunk chunk = {.first = number * rows};
    chunk.end = codec->rows - chunk.first > rows ? chunk.first + rows : codec->rows;
    chunk.values = (size_t)(chunk.end - chunk.first) * codec->columns;
    return chunk;
}

static struct chunk chunk_at(const struct aq_codec *codec, uint8_t *from, uint32_t number)
{
    struct chunk chunk = chunk_of(codec, number);
    chunk.at = from + (uint64_t)number * AQ_EC_CHUNK_SLACK + 4 * (uint64_t)chunk.first * codec->columns;
    chunk.limit = chunk.at + 4 * chunk.values + AQ_EC_CHUNK_SLACK;
    return chunk;
}

/* The cell of each value of a row, and levels in the middle of it. */
static void row_refine(const struct aq_ec_grid *grid, const float *d, size_t n, uint8_t *cells, float *levels,
                       double *error2)
{
    const float cells_in = (float)(1u << grid->refine), half = 0.5f * cells_in, inverse = grid->inverse * cells_in;
    float error[AQ_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const float t = (d[i] - levels[i]) * inverse + half;
        const float most = t < cells_in - 1.0f ? t : cells_in - 1.0f;
        const int32_t cell = (int32_t)(most > 0.0f ? most : 0.0f);
        cells[i] = (uint8_t)cell;
        levels[i] += ((float)(2 * cell + 1) - cells_in) * grid->unit;
        const float e = d[i] - levels[i];
        error[i % AQ_LANES] += e * e;
    }
    for (int l = 0; l < AQ_LANES; l++)
        error2[l] += (double)error[l];
}

/* The values of a row that are beyond the table: their numbers and levels. */
static bool row_beyond(const struct aq_codec_scratch *scratch, const struct aq_ec_grid *grid, const uint8_t *codes,
                       size_t n, const struct piece *piece, uint32_t *beyond, double *error2)
{
    for (const uint8_t *at = codes; (at = memchr(at, 0, (size_t)(codes + n - at))) != NULL; at++) {
        const float d = scratch->d[at - codes], t = fabsf(d) * grid->inverse + 0.5f;
        if (!(t < AQ_EC_ESCAPE_LIMIT)) return false;
        const int32_t q = d < 0.0f ? -(int32_t)t : (int32_t)t;
        const float level = level_of(grid, q), e = d - level;
        piece->beyond[(*beyond)++] = q;
        scratch->levels[at - codes] = level;
        *error2 += (double)(e * e) - (double)(d * d); /* the kernel took it for zero */
    }
    return true;
}

/* A row's error by its levels: the kernel takes an escape for zero, and of a large one nothing would be left of the
 * rest. */
static void row_error(const struct aq_codec *codec, const struct aq_codec_scratch *scratch, double *error2)
{
    for (size_t i = 0; i < codec->columns; i++) {
        const float e = scratch->d[i] - scratch->levels[i];
        error2[i % AQ_LANES] += (double)(e * e);
    }
}

/* Codes of a chunk, x^ and m'. False: a value cannot be coded; job->again: by this step. */
static bool chunk_quantize(struct aq_codec_encoder *job, uint32_t number, const struct chunk *chunk,
                           const struct piece *piece, uint32_t *beyond)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[number];
    const struct aq_ec_grid *grid = &whole_of(codec)->grid;
    struct aq_codec_sums *sums = &job->sums[number];
    const bool centred = is_marked(job->body, AQ_EC_CENTRED), dithered = is_marked(job->body, AQ_EC_DITHERED);
    const bool common = is_marked(job->body, AQ_EC_COMMON), noise = whole_of(codec)->noise;
    double coarse[AQ_LANES] = {0};
    const size_t n = codec->columns;
    const uint32_t limit = aq_store_limit(aq_codec_keeps(codec) ? codec->store : AQ_PRECISION_FP32);
    for (uint32_t row = chunk->first; row < chunk->end; row++) {
        enum aq_row_kind kind, out_kind;
        struct aq_span span;
        const uint8_t *m = reference_row(codec, job->m, row, centred, &kind);
        uint8_t *out = message_row(codec, job->m_out, row, &out_kind);
        const uint32_t next = row + 1 < codec->rows ? row + 1 : row;
        const size_t at = (size_t)(row - chunk->first) * n;
        uint8_t *codes = piece->codes + at;
        codec->kernels->delta(job->a + row * n, m, kind, scratch->d, n, &span, sums, true, job->a + next * n);
        if (span.peak >= 0x7f800000u) return false;
        const bool far = aq_float_of(span.peak) * grid->inverse > ROW_FAR;
        const bool apart = grid->refine == 0 && (noise != dithered || far);
        double *const error2 = grid->refine > 0 || apart ? coarse : sums->error2;
        if (common) row_common(codec, -1.0f, scratch->d);
        if (noise) row_dither(codec, row, 1.0f, scratch->d);
        if (codec->kernels->ec_quantize(scratch->d, n, grid, codes, scratch->levels, error2) &&
            !row_beyond(scratch, grid, codes, n, piece, beyond, &error2[0])) {
            job->again[number] = true;
            return false;
        }
        if (grid->refine > 0)
            row_refine(grid, scratch->d, n, piece->cells + at, scratch->levels, sums->error2);
        if (noise != dithered) row_dither(codec, row, -1.0f, scratch->d); /* it stays in the error */
        if (apart) row_error(codec, scratch, sums->error2);
        if (dithered) row_dither(codec, row, -1.0f, scratch->levels);
        if (common) row_common(codec, 1.0f, scratch->levels);
        float *hat = job->hat == NULL ? NULL : job->hat + row * n;
        if (codec->kernels->update(m, kind, scratch->levels, n, hat, out, out_kind) >= limit) return false;
    }
    return true;
}

/* The escapes of a chunk in order, from `at` on: those of rANS come from the last to the first. */
static bool escapes_put(const struct piece *piece, uint32_t count, uint32_t beyond, uint8_t **at, const uint8_t *end)
{
    uint32_t used = 0;
    for (uint32_t i = count; i-- > 0;) {
        for (int half = 0; half < 2; half++) {
            const uint8_t code = piece->escapes[i].symbol >> (4 * half) & 15;
            const int32_t q = code == 0 ? piece->beyond[used++] : code - AQ_RANS_CODE_ZERO;
            if (!number_put(q, at, end)) return false;
        }
    }
    AQ_ASSERT(used == beyond);
    return true;
}

/* The bytes of a chunk whose codes are made; false: they do not fit. */
static bool chunk_pack(struct aq_codec_encoder *job, uint32_t index, const struct piece *piece,
                       const struct chunk *chunk, uint32_t beyond)
{
    const struct aq_codec *codec = job->codec;
    const struct whole *whole = whole_of(codec);
    const size_t groups = groups_of(chunk->values), cells = aq_ec_cells_bytes(chunk->values, whole->grid.refine);
    struct aq_rans_coded coded;
    memset(piece->codes + chunk->values, AQ_RANS_CODE_ZERO, groups * AQ_RANS_GROUP - chunk->values);
    if (!codec->kernels->rans_encode(&whole->table, piece->codes, groups, chunk->at + AQ_EC_STATE_BYTES, chunk->limit,
                                     piece->escapes, piece->pairs, &coded))
        return false;
    const size_t words = (size_t)(chunk->limit - coded.words);
    memcpy(chunk->at, coded.states, AQ_EC_STATE_BYTES);
    memmove(chunk->at + AQ_EC_STATE_BYTES, coded.words, words);
    uint8_t *at = chunk->at + AQ_EC_STATE_BYTES + words;
    const uint8_t *escapes = at;
    if (!escapes_put(piece, coded.escapes, beyond, &at, chunk->limit)) return false;
    const uint32_t entry[2] = {(uint32_t)words, (uint32_t)(at - escapes)};
    memcpy(job->body + AQ_EC_HEAD_BYTES + (size_t)index * AQ_EC_CHUNK_ENTRY, entry, sizeof entry);
    if (cells > (size_t)(chunk->limit - at)) return false;
    memset(piece->cells + chunk->values, 0, 8);
    if (cells > 0) codec->kernels->pack(piece->cells, (chunk->values + 7) / 8, whole->grid.refine, at);
    return true;
}

static bool chunk_encode(struct aq_codec_encoder *job, uint32_t number, uint32_t index)
{
    const struct aq_codec *codec = job->codec;
    const struct piece piece = piece_of(codec, number);
    const struct chunk chunk = chunk_at(codec, chunks_of(codec, job->body), index);
    uint32_t beyond = 0;
    if (!chunk_quantize(job, number, &chunk, &piece, &beyond)) return false;
    job->again[number] = !chunk_pack(job, index, &piece, &chunk, beyond);
    return !job->again[number];
}

static void encode_piece(uint32_t number, void *context)
{
    struct aq_codec_encoder *job = context;
    const uint32_t chunks = aq_ec_chunk_count(job->codec->rows, job->codec->columns), pieces = pieces_of(job->codec);
    for (uint32_t index = number; index < chunks && !job->failed[number]; index += pieces)
        job->failed[number] = !chunk_encode(job, number, index);
}

/* Of chunk `index` as it came; entry: bytes of words and of escapes. */
static uint64_t chunk_bytes(const struct aq_codec *codec, const uint8_t *body, uint32_t index, uint32_t entry[2])
{
    const struct chunk chunk = chunk_of(codec, index);
    memcpy(entry, body + AQ_EC_HEAD_BYTES + (size_t)index * AQ_EC_CHUNK_ENTRY, AQ_EC_CHUNK_ENTRY);
    return (uint64_t)AQ_EC_STATE_BYTES + entry[0] + entry[1] + aq_ec_cells_bytes(chunk.values, body[AQ_EC_REFINE] & 7u);
}

/* The chunks one behind the other; the body's length. */
static uint64_t join(const struct aq_codec *codec, uint8_t *body)
{
    const uint32_t chunks = aq_ec_chunk_count(codec->rows, codec->columns);
    uint8_t *const from = chunks_of(codec, body);
    uint64_t end = (uint64_t)(from - body);
    for (uint32_t index = 0; index < chunks; index++) {
        uint32_t entry[2];
        const uint64_t bytes = chunk_bytes(codec, body, index, entry);
        memmove(body + end, chunk_at(codec, from, index).at, bytes);
        end += bytes;
    }
    return end;
}

/* Codes the sample once; false: it cannot be, or not by this step (job->again). */
static bool encode_once(struct aq_codec_encoder *job, const struct aq_ec_goal *goal, uint32_t stride, bool fit)
{
    const struct aq_codec *codec = job->codec;
    bool good = true;
    memset(job->sums, 0, sizeof job->sums);
    memset(job->failed, 0, sizeof job->failed);
    memset(job->again, 0, sizeof job->again);
    if (!head_make(job, goal, stride, fit)) return false;
    run_pieces(codec, encode_piece, job);
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        good = good && !job->failed[piece];
    if (good) job->body_bytes = join(codec, job->body);
    return good;
}

/* Did it fail only because of its step? */
static bool is_for_its_step(const struct aq_codec_encoder *job)
{
    bool step = false;
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++) {
        if (job->failed[piece] && !job->again[piece]) return false;
        step = step || job->again[piece];
    }
    return step;
}

bool aq_ec_encode(struct aq_codec_encoder *job)
{
    const struct aq_codec *codec = job->codec;
    const bool cold = aq_codec_keeps(codec) && job->m == NULL;
    const enum aq_codec_rounding rounding = codec->config.rounding;
    struct aq_ec_goal goal = {.rate = cold ? codec->config.keyframe_rate : codec->config.rate,
                              .error = cold ? 0.0f : codec->config.error,
                              .dither = cold || rounding == AQ_ROUND_NEAREST                ? 0.0f
                                        : job->m == NULL || rounding == AQ_ROUND_STOCHASTIC ? 1.0f
                                                                                            : 0.5f,
                              .warm = job->m != NULL,
                              .keyed = cold && rounding != AQ_ROUND_NEAREST};
    if (!codec->head_on_top) goal.rate = aq_ec_rate_of_values(goal.rate, codec->rows, codec->columns);
    const bool good = encode_once(job, &goal, aq_ec_stride(codec->rows, codec->layout.values), false);
    const bool once = job->m != NULL && (job->m == job->m_out || job->m == (const uint8_t *)job->hat);
    if (!good) return !once && is_for_its_step(job) && encode_once(job, &goal, 1, true);
    if (goal.warm) return true; /* where m' takes the place of m there is no second time: a body is the same there */
    const double bits = aq_ec_bits_of(codec->rows, codec->columns, job->body_bytes);
    if (!aq_ec_is_long(&goal, bits)) return true;
    goal = aq_ec_goal_again(goal, bits);
    return encode_once(job, &goal, aq_ec_stride_again(whole_of(codec)->stride), false);
}

/* ---- decode ---- */

/* The next number of an escaped pair into a row's levels. */
static bool row_escapes(const struct aq_ec_grid *grid, const uint8_t *codes, size_t n, float *levels,
                        const uint8_t **at, const uint8_t *end)
{
    for (const uint8_t *zero = codes; (zero = memchr(zero, 0, (size_t)(codes + n - zero))) != NULL; zero++) {
        int32_t q;
        if (!number_take(at, end, &q)) return false;
        levels[zero - codes] = level_of(grid, q);
    }
    return true;
}

/* Levels into the middle of their cells. */
static void row_cells(const struct aq_ec_grid *grid, const uint8_t *cells, size_t n, float *levels)
{
    const float cells_in = (float)(1u << grid->refine);
    for (size_t i = 0; i < n; i++)
        levels[i] += ((float)(2 * (int32_t)cells[i] + 1) - cells_in) * grid->unit;
}

static bool chunk_decode(struct aq_codec_decoder *job, uint32_t number, const struct chunk *chunk, const uint8_t *at,
                         const uint32_t entry[2])
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[number];
    const struct whole *whole = whole_of(codec);
    const struct piece piece = piece_of(codec, number);
    const uint8_t *words = at + AQ_EC_STATE_BYTES, *escapes = words + entry[0], *end = escapes + entry[1];
    const bool centred = is_marked(job->body, AQ_EC_CENTRED), dithered = is_marked(job->body, AQ_EC_DITHERED);
    const uint32_t refine = whole->grid.refine;
    const float *common = is_marked(job->body, AQ_EC_COMMON) ? whole->centre : NULL;
    const bool fused = dithered && refine == 0 && codec->kernels->ec_apply != NULL;
    const size_t n = codec->columns, groups = groups_of(chunk->values);
    const uint32_t limit = aq_store_limit(aq_codec_keeps(codec) ? codec->store : AQ_PRECISION_FP32);
    uint32_t states[AQ_RANS_LANES];
    memcpy(states, at, sizeof states);
    if (!codec->kernels->rans_decode(&whole->table, states, words, entry[0],
                                     (size_t)(job->body + job->body_bytes - words), groups, piece.codes))
        return false;
    const bool half = chunk->values % 2 == 1 && piece.codes[chunk->values] == 0; /* the last pair is escaped */
    for (size_t i = chunk->values + half; i < groups * AQ_RANS_GROUP; i++)
        if (piece.codes[i] != AQ_RANS_CODE_ZERO) return false;
    if (refine > 0) codec->kernels->unpack(end, (chunk->values + 7) / 8, refine, piece.cells);
    for (uint32_t row = chunk->first; row < chunk->end; row++) {
        enum aq_row_kind kind, out_kind;
        const uint8_t *m = reference_row(codec, job->m, row, centred, &kind);
        uint8_t *out = message_row(codec, job->m_out, row, &out_kind);
        const size_t from = (size_t)(row - chunk->first) * n;
        const uint8_t *codes = piece.codes + from;
        float *hat = job->hat == NULL ? NULL : job->hat + row * n;
        uint32_t peak;
        if (fused && codec->kernels->ec_apply(codes, n, &whole->grid, aq_ec_dither_of(&whole->dither, row), common, m,
                                              kind, hat, out, out_kind, &peak)) {
            if (peak >= limit) return false;
            continue;
        }
        if (codec->kernels->ec_levels(codes, n, &whole->grid, scratch->levels) &&
            !row_escapes(&whole->grid, codes, n, scratch->levels, &escapes, end))
            return false;
        if (refine > 0) row_cells(&whole->grid, piece.cells + from, n, scratch->levels);
        if (dithered) row_dither(codec, row, -1.0f, scratch->levels);
        if (common != NULL) row_common(codec, 1.0f, scratch->levels);
        if (codec->kernels->update(m, kind, scratch->levels, n, hat, out, out_kind) >= limit) return false;
    }
    int32_t q = 0;
    if (half && !number_take(&escapes, end, &q)) return false;
    return q == 0 && escapes == end;
}

static void decode_piece(uint32_t number, void *context)
{
    struct aq_codec_decoder *job = context;
    const struct aq_codec *codec = job->codec;
    const uint32_t chunks = aq_ec_chunk_count(codec->rows, codec->columns), pieces = pieces_of(codec);
    const uint8_t *at = job->body + aq_ec_chunks_from(codec->rows, codec->columns, job->body[AQ_EC_MARKS]);
    for (uint32_t index = 0; index < chunks && !job->failed[number]; index++) {
        uint32_t entry[2];
        const uint64_t bytes = chunk_bytes(codec, job->body, index, entry);
        if (index % pieces == number) {
            const struct chunk chunk = chunk_of(codec, index);
            job->failed[number] = !chunk_decode(job, number, &chunk, at, entry);
        }
        at += bytes;
    }
}

/* A keyframe's reference, or what all rows have in common; false for one that no sender writes. */
static bool centre_read(const struct aq_codec_decoder *job)
{
    const struct aq_codec *codec = job->codec;
    const uint32_t n = codec->columns;
    float *centre = whole_of(codec)->centre;
    const uint8_t *from = job->body + aq_ec_centre_from(codec->rows, n, job->body[AQ_EC_MARKS]);
    if (!is_marked(job->body, AQ_EC_COMMON)) {
        codec->kernels->expand(from, AQ_ROW_FP16, n, centre);
        for (uint32_t c = 0; c < n; c++)
            if (!isfinite(centre[c])) return false;
        return true;
    }
    const float unit = aq_ec_float_at(from);
    const uint8_t *codes = from + sizeof unit;
    if (!aq_ec_common_fits(unit)) return false;
    for (uint32_t c = 0; c < n; c++)
        centre[c] = aq_ec_common_mean(codes[c / 2] >> 4 * (c % 2) & 15u, unit);
    return n % 2 == 0 || codes[n / 2] < AQ_EC_COMMON_LEVELS;
}

enum aq_status aq_ec_decode(struct aq_codec_decoder *job)
{
    const struct aq_codec *codec = job->codec;
    struct whole *whole = whole_of(codec);
    const bool cold = job->m == NULL;
    const uint32_t chunks = aq_ec_chunk_count(codec->rows, codec->columns);
    uint16_t weights[AQ_RANS_LEVELS], escapes;
    uint32_t entry[2];
    uint64_t bytes = aq_ec_key_from(codec->rows, codec->columns);
    if (job->body_bytes < bytes) return aq_codec_corrupt("it is shorter than its header");
    if (!aq_ec_head_read(job->body, &whole->grid, weights, &escapes) ||
        !aq_rans_table(weights, escapes, &whole->table) ||
        is_marked(job->body, cold ? AQ_EC_COMMON : AQ_EC_CENTRED))
        return aq_codec_corrupt("its step, levels or frequencies are not valid");
    bytes = aq_ec_chunks_from(codec->rows, codec->columns, job->body[AQ_EC_MARKS]);
    for (uint32_t index = 0; index < chunks; index++)
        bytes += chunk_bytes(codec, job->body, index, entry);
    if (bytes != job->body_bytes) return aq_codec_corrupt("its chunks do not add up to its length");
    if (is_marked(job->body, AQ_EC_CENTRED | AQ_EC_COMMON) && !centre_read(job))
        return aq_codec_corrupt("a channel's mean is infinite or not a number");
    dither_begin(codec, job->body);
    run_pieces(codec, decode_piece, job);
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        if (job->failed[piece])
            return aq_codec_corrupt("a chunk is damaged, or a value is outside the range that can be stored");
    return AQ_OK;
}

static void plan(const struct aq_codec *codec, struct aq_cuda_codec_plan *out)
{
    out->stochastic = codec->config.rounding != AQ_ROUND_NEAREST;
    out->half_dither = codec->config.rounding == AQ_ROUND_HALF_DITHER;
}

const struct aq_codec_member aq_codec_ec = {.about = {.name = "ec",
                                                      .label = "entropy coded",
                                                      .varies = true,
                                                      .unsaid = {2.5f, 4.0f},
                                                      .unsaid_rounding = AQ_ROUND_HALF_DITHER},
                                            .defaults = defaults,
                                            .check = check,
                                            .layout = layout,
                                            .digest = digest,
                                            .text = text,
                                            .encode = aq_ec_encode,
                                            .decode = aq_ec_decode,
                                            .plan = plan};
