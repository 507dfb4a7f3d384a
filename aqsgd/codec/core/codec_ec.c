/*
 * codec_ec.c -- the entropy-coded codec: one step a sample, mid-tread, and as many bits as the values are worth.
 *
 * q = round(d / step), level = sign(q) * levels[|q|], packed by codec_rans.h. The step follows from config.rate (bits a
 * value in the mean) and from how |d| is spread over some of the sample's rows: counts of magnitudes in 32 steps an
 * octave, an integer for each, so that every machine chooses alike. The same counts give the table of frequencies and
 * the levels (the mean magnitude of each |q|: uniform reconstruction would lie too far out), which the head of the body
 * says. The receiver needs nothing else.
 *
 * Values beyond 7 steps, and pairs that are too rare for a slot, are escaped: whole numbers behind the chunk's words.
 * With a table that does not fit (rows that are unlike those that were looked at) a body is longer, never wrong; beyond
 * the bound it goes raw.
 *
 * At equal bits the error of a gradient is half of that of a scale a row (shared/NUMERICS.md 1.5); where rates go below
 * 1.5 bits the closed loop does not settle (section 3 there), so that the least rate is 1.
 *
 * A *chunk* is so many whole rows that they have about 65536 values: coded alone, by one thread or one warp.
 */
#include <math.h>
#include <stdio.h>

#include "codec_member.h"

enum {
    HEAD_STEP = 0,
    HEAD_LEVELS = 4,   /* f32 of |q| = 1..7 */
    HEAD_WEIGHTS = 32, /* u16 of |q| = 0..7 */
    HEAD_ESCAPES = 48, /* u16, and two bytes of zero */
    HEAD_BYTES = 52,
    CHUNK_ENTRY = 8, /* u32 bytes of words, u32 bytes of escapes */
    CHUNK_VALUES = 65536,
    STATE_BYTES = 4 * AQ_RANS_LANES,
    CHUNK_SLACK = STATE_BYTES + 2 * AQ_RANS_LANES + AQ_RANS_PAD + 4,
    BUCKET_SHIFT = 18, /* of a magnitude's bits: 32 buckets an octave */
    BUCKETS = 1 << (31 - BUCKET_SHIFT),
    LOOK_VALUES = 32768, /* so many values or more are looked at, in whole rows */
    ESCAPE_BITS = 18,    /* what a value beyond the table costs, about: symbol, two numbers */
    CENTRE_MIN = 16      /* fewer values of a magnitude do not say where its level is */
};
static const float ESCAPE_LIMIT = 16777216.0f;       /* whole numbers are exact below it */
static const float RATE_MIN = 1.0f, RATE_MAX = 3.5f; /* beyond, seven magnitudes are too few */

/* Of a whole sample: codec->own. */
struct whole {
    struct aq_rans_table table;
    struct aq_ec_grid grid;
    uint32_t counts[BUCKETS + 1]; /* of magnitudes in the bucket; then of all below it */
};

/* Of a piece: scratch->own. */
struct piece {
    uint8_t *codes; /* a chunk's, and AQ_RANS_GROUP more */
    struct aq_rans_escape *escapes;
    int32_t *beyond; /* q of the values whose code is 0, in order */
    uint32_t most;   /* of either */
};

/* Bits are those that a manifest which says none means: 4 of activations, 8 of gradients. */
static void defaults(struct aq_codec_config *config)
{
    config->rate = config->bits >= 8 ? 3.0f : config->bits >= 4 ? 2.5f : (float)config->bits;
    config->bits = 1;
}

static enum aq_status check(const struct aq_codec_config *config)
{
    if (config->bits != 1) return aq_codec_refuse("bits with ec", "its bits need not be whole: write rate");
    if (!(config->rate >= RATE_MIN && config->rate <= RATE_MAX))
        return aq_codec_refuse("rate with ec", "1 to 3.5 bits a value");
    if (config->rounding != AQ_ROUND_NEAREST) return aq_codec_refuse("rounding", "ec rounds to nearest");
    if (config->hadamard) return aq_codec_refuse("hadamard", "ec does not rotate");
    if (config->top_k != 0.0f && config->top_k != 1.0f) return aq_codec_refuse("top_k", "ec sends every value");
    return AQ_OK;
}

static uint32_t chunk_rows(uint32_t columns)
{
    return columns >= CHUNK_VALUES ? 1 : CHUNK_VALUES / columns;
}

static uint32_t chunk_count(uint32_t rows, uint32_t columns)
{
    return (rows + chunk_rows(columns) - 1) / chunk_rows(columns);
}

static uint64_t piece_most(uint64_t values)
{
    return values / 8 + 16;
}

static void layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    const uint64_t chunks = chunk_count(rows, columns);
    const uint64_t values = (uint64_t)(rows < chunk_rows(columns) ? rows : chunk_rows(columns)) * columns;
    out->groups = 1;
    out->positions_at = out->codes_at = HEAD_BYTES + CHUNK_ENTRY * chunks;
    out->body_bytes =
        out->codes_at + chunks * STATE_BYTES + (uint64_t)ceil((double)out->values * (double)config->rate / 8);
    out->body_most = out->codes_at + 4 * out->values + CHUNK_SLACK * chunks;
    out->whole_bytes = sizeof(struct whole);
    out->piece_bytes = (values + 2 * AQ_RANS_GROUP + 15) / 16 * 16 +
                       piece_most(values) * (sizeof(struct aq_rans_escape) + sizeof(int32_t)) + 16;
}

static void digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    (void)config; /* the receiver reads all of it in the body's head */
    words[2] = 1;
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    char messages[64];
    aq_codec_messages_text(config, messages, sizeof messages);
    snprintf(out, bytes, "ec %.3g bits%s", (double)config->rate, messages);
}

static struct whole *whole_of(const struct aq_codec *codec)
{
    return (struct whole *)codec->own;
}

static struct piece piece_of(const struct aq_codec *codec, uint32_t number)
{
    const uint32_t in_chunk = chunk_rows(codec->columns);
    const uint64_t values = (uint64_t)(codec->rows < in_chunk ? codec->rows : in_chunk) * codec->columns;
    struct piece piece = {.codes = codec->scratch[number].own, .most = (uint32_t)piece_most(values)};
    piece.escapes = (struct aq_rans_escape *)(void *)(piece.codes + (values + 2 * AQ_RANS_GROUP + 15) / 16 * 16);
    piece.beyond = (int32_t *)(void *)(piece.escapes + piece.most);
    return piece;
}

static uint32_t pieces_of(const struct aq_codec *codec)
{
    const uint32_t chunks = chunk_count(codec->rows, codec->columns);
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

/* m of a row and how it lies; AQ_ROW_NONE where no messages are kept. */
static const uint8_t *message_row(const struct aq_codec *codec, const uint8_t *m, uint32_t row, enum aq_row_kind *kind)
{
    *kind = aq_codec_keeps(codec) ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    return m == NULL ? NULL : m + (size_t)row * codec->columns * (aq_precision_bits(codec->store) / 8);
}

/* ---- the step, the table, the levels ---- */

/* log2(x) in 1/256, from below within 1/90 of a bit; x >= 1. */
static uint32_t log2_of(uint32_t x)
{
    static const uint8_t fraction[32] = {0,   11,  22,  33,  43,  53,  63,  73,  82,  91,  100,
                                         109, 117, 125, 134, 142, 149, 157, 165, 172, 179, 186,
                                         193, 200, 207, 213, 220, 226, 232, 238, 244, 250};
    const uint32_t high = 31 - (uint32_t)__builtin_clz(x);
    const uint32_t next = high >= 5 ? x >> (high - 5) & 31 : x << (5 - high) & 31;
    return high << 8 | fraction[next];
}

static uint32_t bucket_of(float magnitude)
{
    return aq_bits_of(magnitude) >> BUCKET_SHIFT;
}

static float edge_of(uint32_t bucket)
{
    return aq_float_of(bucket << BUCKET_SHIFT);
}

/* Where the magnitudes of |q| = 0..7 end, for a step whose half is the lower edge of `half`. */
static void ends_of(uint32_t half, uint32_t ends[AQ_RANS_LEVELS])
{
    const float edge = edge_of(half);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        const float end = (float)(2 * k + 1) * edge;
        ends[k] = aq_bits_of(end) >= 0x7f800000u ? BUCKETS : bucket_of(end);
    }
}

/* below: counts of magnitudes in lower buckets. Bits of all, in 1/256, with that step. */
static uint64_t cost_of(const uint32_t *below, uint32_t half)
{
    const uint32_t all = below[BUCKETS];
    uint32_t ends[AQ_RANS_LEVELS], from = 0;
    uint64_t cost = 0;
    ends_of(half, ends);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        const uint32_t count = below[ends[k]] - from;
        from = below[ends[k]];
        if (count > 0) cost += (uint64_t)count * (log2_of(all) - log2_of(count) + (k > 0 ? 256u : 0u));
    }
    return cost + (uint64_t)(all - from) * (ESCAPE_BITS << 8);
}

/* Counts of magnitudes in every `stride`th row; false where a value is not finite. */
static bool look(const struct aq_codec_encoder *job, uint32_t stride, uint32_t *counts)
{
    const struct aq_codec *codec = job->codec;
    float *d = codec->scratch[0].d;
    memset(counts, 0, (BUCKETS + 1) * sizeof *counts);
    for (uint32_t row = 0; row < codec->rows; row += stride) {
        enum aq_row_kind kind;
        struct aq_span span;
        const uint8_t *m = message_row(codec, job->m, row, &kind);
        const float *a = job->a + (size_t)row * codec->columns;
        codec->kernels->delta(a, m, kind, d, codec->columns, &span, NULL, true, NULL);
        if (span.peak >= 0x7f800000u) return false;
        for (uint32_t c = 0; c < codec->columns; c++)
            counts[bucket_of(fabsf(d[c]))]++;
    }
    return true;
}

/* The bucket whose lower edge is half of the smallest step that keeps to the rate; 0: everything is zero. */
static uint32_t half_of(const uint32_t *below, float rate)
{
    const uint64_t most = (uint64_t)((double)below[BUCKETS] * (double)rate * 256.0);
    uint32_t low = 1, high = BUCKETS - 1;
    while (high > 1 && below[high] == below[BUCKETS])
        high--; /* the last one that is not empty */
    if (high == 1) return 0;
    high++;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (cost_of(below, middle) <= most)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The mean magnitude of the buckets [from, to). */
static float centre_of(const uint32_t *below, uint32_t from, uint32_t to, float otherwise)
{
    const uint32_t count = below[to] - below[from];
    float sum = 0.0f;
    if (count < CENTRE_MIN) return otherwise;
    for (uint32_t b = from; b < to; b++) {
        const float middle = aq_float_of((b << BUCKET_SHIFT) + (1u << (BUCKET_SHIFT - 1)));
        sum += (float)(below[b + 1] - below[b]) / (float)count * middle;
    }
    return sum;
}

/* Step, levels and frequencies into the head. */
static void head_write(const uint32_t *below, uint32_t half, uint8_t *head)
{
    const uint32_t all = below[BUCKETS];
    const float step = half == 0 ? 0.0f : 2.0f * edge_of(half);
    uint32_t ends[AQ_RANS_LEVELS], from = 0, inside = 0;
    uint16_t weights[AQ_RANS_LEVELS], escapes = 1;
    float levels[AQ_RANS_LEVELS];
    ends_of(half, ends);
    for (uint32_t k = 0; k < AQ_RANS_LEVELS; k++) {
        if (half == 0) ends[k] = BUCKETS;
        const uint32_t count = below[ends[k]] - below[from];
        const uint64_t share = (uint64_t)count * 32768 / all >> (k > 0); /* either sign has half */
        weights[k] = (uint16_t)(share > 0 ? share : 1);
        levels[k] = centre_of(below, from, ends[k], (float)k * step);
        inside += count;
        from = ends[k];
    }
    const uint64_t beyond = ((uint64_t)(all - inside) * 2 * AQ_RANS_SLOTS + all - 1) / all;
    const uint64_t wanted = 1 + beyond + aq_rans_pruned(weights, escapes);
    escapes = (uint16_t)(wanted < AQ_RANS_ESCAPES_MAX ? wanted : AQ_RANS_ESCAPES_MAX);
    memcpy(head + HEAD_STEP, &step, sizeof step);
    memcpy(head + HEAD_LEVELS, levels + 1, (AQ_RANS_LEVELS - 1) * sizeof *levels);
    memcpy(head + HEAD_WEIGHTS, weights, sizeof weights);
    memcpy(head + HEAD_ESCAPES, &escapes, sizeof escapes);
    memset(head + HEAD_ESCAPES + 2, 0, 2);
}

/* And out of it: the grid and the table. False for a head that no sender writes. */
static bool head_read(const uint8_t *head, struct whole *out)
{
    uint16_t weights[AQ_RANS_LEVELS], escapes, zero;
    struct aq_ec_grid *grid = &out->grid;
    bool good = true;
    memcpy(&grid->step, head + HEAD_STEP, sizeof grid->step);
    grid->levels[0] = 0.0f;
    memcpy(grid->levels + 1, head + HEAD_LEVELS, (AQ_RANS_LEVELS - 1) * sizeof *grid->levels);
    memcpy(weights, head + HEAD_WEIGHTS, sizeof weights);
    memcpy(&escapes, head + HEAD_ESCAPES, sizeof escapes);
    memcpy(&zero, head + HEAD_ESCAPES + 2, sizeof zero);
    good = aq_bits_of(grid->step) < 0x7f800000u && zero == 0;
    for (uint32_t k = 1; k < AQ_RANS_LEVELS; k++)
        good = good && aq_bits_of(grid->levels[k]) < 0x7f800000u;
    grid->inverse = grid->step > 0.0f ? 1.0f / grid->step : 0.0f;
    if (aq_bits_of(grid->inverse) >= 0x7f800000u) grid->inverse = 0.0f; /* a step of a denormal: all is zero */
    return good && aq_rans_table(weights, escapes, &out->table);
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

static struct chunk chunk_at(const struct aq_codec *codec, uint8_t *body, uint32_t number)
{
    const uint32_t rows = chunk_rows(codec->columns);
    struct chunk chunk = {.first = number * rows};
    chunk.end = codec->rows - chunk.first > rows ? chunk.first + rows : codec->rows;
    chunk.values = (size_t)(chunk.end - chunk.first) * codec->columns;
    chunk.at =
        body + codec->layout.codes_at + (uint64_t)number * CHUNK_SLACK + 4 * (uint64_t)chunk.first * codec->columns;
    chunk.limit = chunk.at + 4 * chunk.values + CHUNK_SLACK;
    return chunk;
}

/* The values of a row that are beyond the table: their numbers and levels. */
static bool row_beyond(const struct aq_codec_scratch *scratch, const struct aq_ec_grid *grid, const uint8_t *codes,
                       size_t n, const struct piece *piece, uint32_t *beyond, double *error2)
{
    for (const uint8_t *at = codes; (at = memchr(at, 0, (size_t)(codes + n - at))) != NULL; at++) {
        const float d = scratch->d[at - codes], t = fabsf(d) * grid->inverse + 0.5f;
        if (!(t < ESCAPE_LIMIT) || *beyond == piece->most) return false;
        const int32_t q = d < 0.0f ? -(int32_t)t : (int32_t)t;
        const float level = level_of(grid, q), e = d - level;
        piece->beyond[(*beyond)++] = q;
        scratch->levels[at - codes] = level;
        *error2 += (double)(e * e) - (double)(d * d); /* the kernel took it for zero */
    }
    return true;
}

/* Codes of a chunk, x^ and m'. */
static bool chunk_quantize(struct aq_codec_encoder *job, uint32_t number, const struct chunk *chunk,
                           const struct piece *piece, uint32_t *beyond)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[number];
    const struct aq_ec_grid *grid = &whole_of(codec)->grid;
    struct aq_codec_sums *sums = &job->sums[number];
    const size_t n = codec->columns;
    const uint32_t limit = aq_store_limit(aq_codec_keeps(codec) ? codec->store : AQ_PRECISION_FP32);
    for (uint32_t row = chunk->first; row < chunk->end; row++) {
        enum aq_row_kind kind;
        struct aq_span span;
        const uint8_t *m = message_row(codec, job->m, row, &kind);
        const uint32_t next = row + 1 < codec->rows ? row + 1 : row;
        uint8_t *codes = piece->codes + (size_t)(row - chunk->first) * n;
        codec->kernels->delta(job->a + row * n, m, kind, scratch->d, n, &span, sums, true, job->a + next * n);
        if (span.peak >= 0x7f800000u) return false;
        if (codec->kernels->ec_quantize(scratch->d, n, grid, codes, scratch->levels, sums->error2) &&
            !row_beyond(scratch, grid, codes, n, piece, beyond, &sums->error2[0]))
            return false;
        const enum aq_row_kind out_kind = job->m_out == NULL ? AQ_ROW_NONE : kind;
        uint8_t *out =
            out_kind == AQ_ROW_NONE ? NULL : (uint8_t *)(uintptr_t)message_row(codec, job->m_out, row, &kind);
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

static bool chunk_encode(struct aq_codec_encoder *job, uint32_t number, uint32_t index)
{
    const struct aq_codec *codec = job->codec;
    const struct whole *whole = whole_of(codec);
    const struct piece piece = piece_of(codec, number);
    const struct chunk chunk = chunk_at(codec, job->body, index);
    const size_t groups = groups_of(chunk.values);
    struct aq_rans_coded coded;
    uint32_t beyond = 0;
    if (!chunk_quantize(job, number, &chunk, &piece, &beyond)) return false;
    memset(piece.codes + chunk.values, AQ_RANS_CODE_ZERO, groups * AQ_RANS_GROUP - chunk.values);
    if (!codec->kernels->rans_encode(&whole->table, piece.codes, groups, chunk.at + STATE_BYTES, chunk.limit,
                                     piece.escapes, piece.most, &coded))
        return false;
    const size_t words = (size_t)(chunk.limit - coded.words);
    memcpy(chunk.at, coded.states, STATE_BYTES);
    memmove(chunk.at + STATE_BYTES, coded.words, words);
    uint8_t *at = chunk.at + STATE_BYTES + words;
    const uint8_t *escapes = at;
    if (!escapes_put(&piece, coded.escapes, beyond, &at, chunk.limit)) return false;
    const uint32_t entry[2] = {(uint32_t)words, (uint32_t)(at - escapes)};
    memcpy(job->body + HEAD_BYTES + (size_t)index * CHUNK_ENTRY, entry, sizeof entry);
    return true;
}

static void encode_piece(uint32_t number, void *context)
{
    struct aq_codec_encoder *job = context;
    const uint32_t chunks = chunk_count(job->codec->rows, job->codec->columns), pieces = pieces_of(job->codec);
    for (uint32_t index = number; index < chunks && !job->failed[number]; index += pieces)
        job->failed[number] = !chunk_encode(job, number, index);
}

static uint64_t chunk_bytes(const uint8_t *body, uint32_t index, uint32_t entry[2])
{
    memcpy(entry, body + HEAD_BYTES + (size_t)index * CHUNK_ENTRY, CHUNK_ENTRY);
    return (uint64_t)STATE_BYTES + entry[0] + entry[1];
}

/* The chunks one behind the other; the body's length. */
static uint64_t join(const struct aq_codec *codec, uint8_t *body)
{
    const uint32_t chunks = chunk_count(codec->rows, codec->columns);
    uint64_t end = codec->layout.codes_at;
    for (uint32_t index = 0; index < chunks; index++) {
        uint32_t entry[2];
        const uint64_t bytes = chunk_bytes(body, index, entry);
        memmove(body + end, chunk_at(codec, body, index).at, bytes);
        end += bytes;
    }
    return end;
}

static bool encode(struct aq_codec_encoder *job)
{
    const struct aq_codec *codec = job->codec;
    struct whole *whole = whole_of(codec);
    uint32_t stride = (uint32_t)(codec->layout.values / LOOK_VALUES);
    stride = stride < 1 ? 1 : stride;
    if (!look(job, stride, whole->counts)) return false;
    if (stride > 1 && whole->counts[0] == (codec->rows + stride - 1) / stride * codec->columns &&
        !look(job, 1, whole->counts)) /* rows that say nothing */
        return false;
    for (uint32_t b = 0, sum = 0; b <= BUCKETS; b++) {
        const uint32_t count = whole->counts[b];
        whole->counts[b] = sum;
        sum += count;
    }
    head_write(whole->counts, half_of(whole->counts, codec->config.rate), job->body);
    if (!head_read(job->body, whole)) return false;
    run_pieces(codec, encode_piece, job);
    bool good = true;
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        good = good && !job->failed[piece];
    if (good) job->body_bytes = join(codec, job->body);
    return good;
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

static bool chunk_decode(struct aq_codec_decoder *job, uint32_t number, const struct chunk *chunk, const uint8_t *at,
                         const uint32_t entry[2])
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[number];
    const struct whole *whole = whole_of(codec);
    const struct piece piece = piece_of(codec, number);
    const uint8_t *words = at + STATE_BYTES, *escapes = words + entry[0], *end = escapes + entry[1];
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
    for (uint32_t row = chunk->first; row < chunk->end; row++) {
        enum aq_row_kind kind;
        const uint8_t *m = message_row(codec, job->m, row, &kind);
        const uint8_t *codes = piece.codes + (size_t)(row - chunk->first) * n;
        const enum aq_row_kind out_kind = job->m_out == NULL ? AQ_ROW_NONE : kind;
        uint8_t *out =
            out_kind == AQ_ROW_NONE ? NULL : (uint8_t *)(uintptr_t)message_row(codec, job->m_out, row, &kind);
        float *hat = job->hat == NULL ? NULL : job->hat + row * n;
        if (codec->kernels->ec_levels(codes, n, &whole->grid, scratch->levels) &&
            !row_escapes(&whole->grid, codes, n, scratch->levels, &escapes, end))
            return false;
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
    const uint32_t chunks = chunk_count(codec->rows, codec->columns), pieces = pieces_of(codec);
    const uint8_t *at = job->body + codec->layout.codes_at;
    for (uint32_t index = 0; index < chunks && !job->failed[number]; index++) {
        uint32_t entry[2];
        const uint64_t bytes = chunk_bytes(job->body, index, entry);
        if (index % pieces == number) {
            const struct chunk chunk = chunk_at(codec, NULL, index);
            job->failed[number] = !chunk_decode(job, number, &chunk, at, entry);
        }
        at += bytes;
    }
}

static enum aq_status decode(struct aq_codec_decoder *job)
{
    const struct aq_codec *codec = job->codec;
    const uint32_t chunks = chunk_count(codec->rows, codec->columns);
    uint64_t bytes = codec->layout.codes_at;
    uint32_t entry[2];
    if (job->body_bytes < bytes) return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: shorter than its head");
    for (uint32_t index = 0; index < chunks; index++)
        bytes += chunk_bytes(job->body, index, entry);
    if (bytes != job->body_bytes)
        return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: its chunks are not its length");
    if (!head_read(job->body, whole_of(codec)))
        return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: no step, levels and frequencies that a sender writes");
    run_pieces(codec, decode_piece, job);
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        if (job->failed[piece])
            return aq_fail(AQ_CORRUPT, "codec", "a body is corrupt: a chunk, or a value beyond what can be stored");
    return AQ_OK;
}

const struct aq_codec_member aq_codec_ec = {.about = {.name = "ec", .label = "entropy coded", .varies = true},
                                            .on_host = true,
                                            .defaults = defaults,
                                            .check = check,
                                            .layout = layout,
                                            .digest = digest,
                                            .text = text,
                                            .encode = encode,
                                            .decode = decode};
