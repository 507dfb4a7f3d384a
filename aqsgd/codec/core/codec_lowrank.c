/*
 * codec_lowrank.c -- a sample's change as a product of two thin matrices, quantized and entropy coded.
 *
 *     d = a - m  ~  sum over i < r of s_i u_i v_i'  =  sum of g_i (s_i u_i) (s_i v_i)',   x^ = m + that
 *
 * If only adapters of rank R train, the change of an activation has few directions (docs/RESULTS.md, "Rank of deltas"),
 * and r (T + C) numbers represent it in place of T C. The sender finds them by a randomised range finder with one power
 * iteration (N. Halko, P. G. Martinsson, J. A. Tropp, Finding Structure with Randomness, SIAM Review 53, 2011,
 * algorithms 4.4 and 5.1) and the eigenvectors of a small Gram matrix (Jacobi). Both factors are written times the
 * singular value, u_i s_i and v_i s_i, and g_i = 1 / s_i: then one step for all of both is reverse water-filling,
 * because an error of a step costs the product the same in every direction, and a direction below the step vanishes by
 * itself.
 *
 * The factors' numbers, one row behind the other, are a body of `ec` (64 columns): codec_ec.c has its table, escapes,
 * bound and checks. The receiver multiplies in one fixed order, one rounding an operation, so that x^ is the same bits
 * everywhere. The rest of d, beyond r and below the step, is in the next delta; a gradient loses it.
 *
 * r is the least that leaves a thousandth of |d|^2 (of an error goal: half of what may be left), at most config.rank.
 * config.rate is bits per number of the factors; with config.error both r and step follow from it.
 *
 * Memory: d of a whole sample and factors, in codec->own, and the codec of the factors (codec->inner).
 */
#include <math.h>
#include <stdio.h>

#include "codec_member.h"

enum {
    RANK_MAX = 64,
    RANK_MORE = 8, /* directions looked for beyond the rank: Halko et al., 1.5 */
    FOUND_MAX = RANK_MAX + RANK_MORE,
    HEAD_BYTES = 4,
    FACTOR_COLUMNS = 64,
    BLOCK = 64,  /* columns that are summed at once */
    SWEEPS = 30, /* of Jacobi: ten would do */
};
static const double TAIL = 1e-3; /* of |d|^2 */

static void defaults(struct aq_codec_config *config)
{
    config->rate = config->bits >= 8 ? 5.0f : 4.0f;
    config->bits = 1;
}

static enum aq_status check(const struct aq_codec_config *config)
{
    if (config->bits != 1)
        return aq_codec_refuse("bits with lowrank", "write rate in place of bits; it need not be whole");
    if (config->rank < 1 || config->rank > RANK_MAX) return aq_codec_refuse("rank with lowrank", "1 to 64");
    if (!(config->rate >= AQ_EC_RATE_MIN && config->rate <= AQ_EC_RATE_MAX))
        return aq_codec_refuse("rate with lowrank", "1 to 8 bits per number of its factors");
    if (!(config->error >= 0.0f && config->error < 1.0f))
        return aq_codec_refuse("error with lowrank", "0 to less than 1, of the values' own magnitude; 0: rate decides");
    if (config->rounding != AQ_ROUND_NEAREST) return aq_codec_refuse("rounding", "lowrank rounds to nearest");
    if (config->hadamard) return aq_codec_refuse("hadamard", "lowrank does not rotate");
    if (config->top_k != 0.0f && config->top_k != 1.0f) return aq_codec_refuse("top_k", "lowrank sends its factors");
    return AQ_OK;
}

/* Directions that are looked for, and that may be sent. */
static uint32_t found_of(uint32_t rank, uint32_t rows, uint32_t columns)
{
    uint32_t found = rank + RANK_MORE;
    if (found > rows) found = rows;
    return found > columns ? columns : found;
}

static uint32_t most_of(uint32_t rank, uint32_t rows, uint32_t columns)
{
    const uint32_t found = found_of(rank, rows, columns);
    return found < rank ? found : rank;
}

static uint32_t factor_rows(uint32_t rank, uint32_t rows, uint32_t columns)
{
    return (uint32_t)(((uint64_t)rank * ((uint64_t)rows + columns) + FACTOR_COLUMNS - 1) / FACTOR_COLUMNS);
}

static struct aq_codec_config factors_config(const struct aq_codec_config *config)
{
    struct aq_codec_config inner;
    aq_codec_config_default(&inner, AQ_CODEC_EC, 4);
    inner.store = AQ_PRECISION_NONE;
    inner.rounding = AQ_ROUND_NEAREST;
    inner.rate = config->rate;
    inner.error = config->error > 0.0f ? 0.05f : 0.0f; /* each sample's own follows */
    return inner;
}

/* The parts of codec->own; floats, except the last two. */
struct places {
    float *d;      /* (T, C)                                             */
    float *omega;  /* (C, K) random; K directions are looked for         */
    float *y;      /* a row (K)                                          */
    float *q;      /* (K, T) orthonormal rows                            */
    float *b;      /* (K, C): q d                                        */
    float *bt;     /* (C, K)                                             */
    float *w;      /* factors: r rows of T + C                           */
    float *w_hat;  /* and as the receiver has them                       */
    float *scaled; /* (pieces, K): u_i of a row, times g_i               */
    double *gram;  /* (K, K)                                             */
    double *basis; /* (K, K): its eigenvectors, in rows                  */
};

static uint64_t room(uint64_t floats)
{
    return (floats + AQ_CODEC_PAD + 15) / 16 * 16;
}

/* Of a codec for at most `rows` rows. own NULL measures. An entropy-coded keyframe uses the start of this memory:
 * omega, which is made once, must not be there. */
static uint64_t places_cut(uint32_t rank, uint32_t rows, uint32_t columns, float *own, struct places *out)
{
    const uint64_t found = rank + RANK_MORE;
    const uint64_t factors = (uint64_t)factor_rows(rank, rows, columns) * FACTOR_COLUMNS;
    const uint64_t sizes[] = {(uint64_t)rows * columns,
                              columns * found,
                              found,
                              found * rows,
                              found * columns,
                              columns * found,
                              factors,
                              factors,
                              AQ_CODEC_PIECES_MAX * found,
                              2 * found * found,
                              2 * found * found};
    struct aq_codec_layout keyframe = {0};
    const struct aq_codec_config any = {.keyframe_rate = AQ_EC_RATE_MIN};
    aq_ec_keyframe_layout(&any, rows, columns, &keyframe);
    uint64_t at[11], used = room(keyframe.whole_bytes / sizeof(float));
    for (int i = 0; i < 11; i++) {
        at[i] = used;
        used += room(sizes[i]);
    }
    if (own != NULL)
        *out = (struct places){own + at[0],
                               own + at[1],
                               own + at[2],
                               own + at[3],
                               own + at[4],
                               own + at[5],
                               own + at[6],
                               own + at[7],
                               own + at[8],
                               (double *)(void *)(own + at[9]),
                               (double *)(void *)(own + at[10])};
    return used * sizeof(float);
}

static struct places places_of(const struct aq_codec *codec)
{
    struct places places;
    (void)places_cut(codec->config.rank, codec->rows_max, codec->columns, codec->own, &places);
    return places;
}

static void layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns, struct aq_codec_layout *out)
{
    const struct aq_codec_config inner = factors_config(config);
    const uint32_t most = most_of(config->rank, rows, columns);
    struct aq_codec_layout factors;
    aq_codec_layout_of(&inner, factor_rows(most, rows, columns), FACTOR_COLUMNS, &factors);
    out->groups = 1;
    out->positions_at = out->codes_at = HEAD_BYTES + sizeof(float) * (uint64_t)most;
    out->body_bytes = out->codes_at + factors.body_bytes;
    out->body_most = out->codes_at + factors.bound;
    out->whole_bytes = places_cut(config->rank, rows, columns, NULL, NULL);
}

static enum aq_status open_factors(struct aq_codec *codec)
{
    const struct aq_codec_config inner = factors_config(&codec->config);
    const struct places places = places_of(codec);
    const struct aq_rng_key key = {.key = {0x6c6f7772u, 0x616e6b00u}}; /* any; the receiver need not know it */
    const size_t found = codec->config.rank + RANK_MORE;
    for (size_t i = 0; i < codec->columns * found; i++)
        places.omega[i] = aq_rng_normal(&key, i);
    const uint32_t rows = factor_rows(codec->config.rank, codec->rows_max, codec->columns);
    AQ_TRY(aq_codec_open(NULL, &inner, rows, FACTOR_COLUMNS, &codec->inner));
    codec->inner->head_on_top = true; /* a direction's error is worth more than 200 bytes */
    return AQ_OK;
}

static void digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    words[2] = 1;
    words[3] = config->rank; /* what a receiver has room for */
}

static void text(const struct aq_codec_config *config, char *out, size_t bytes)
{
    char messages[64];
    aq_codec_messages_text(config, messages, sizeof messages);
    if (config->error > 0.0f)
        snprintf(out, bytes, "lowrank %u error %.3g%s", config->rank, (double)config->error, messages);
    else
        snprintf(out, bytes, "lowrank %u of %.3g bits%s", config->rank, (double)config->rate, messages);
}

/* ---- the way out: directions ---- */

/* d of all rows; false where a value is not finite. */
static bool take_delta(struct aq_codec_encoder *job, const struct places *at)
{
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    const enum aq_row_kind kind = job->m == NULL ? AQ_ROW_NONE : aq_precision_row(codec->store);
    const size_t bytes = job->m == NULL ? 0 : n * (aq_precision_bits(codec->store) / 8);
    for (size_t row = 0; row < codec->rows; row++) {
        struct aq_span span;
        const uint8_t *m = job->m == NULL ? NULL : job->m + row * bytes;
        codec->kernels->delta(job->a + row * n, m, kind, at->d + row * n, n, &span, &job->sums[0], true, NULL);
        if (span.peak >= 0x7f800000u) return false;
    }
    return true;
}

/* In partial sums, so that a compiler's vectors may have them. */
static double dot(const float *x, const float *y, size_t n)
{
    enum { LANES = 8 };
    double sums[LANES] = {0}, sum = 0.0;
    const size_t whole = n - n % LANES;
    for (size_t e = 0; e < whole; e += LANES)
        for (size_t l = 0; l < LANES; l++)
            sums[l] += (double)x[e + l] * (double)y[e + l];
    for (size_t e = whole; e < n; e++)
        sum += (double)x[e] * (double)y[e];
    for (size_t l = 0; l < LANES; l++)
        sum += sums[l];
    return sum;
}

/* Rows 0..count-1 of `lines`, n values each, become orthonormal (Gram-Schmidt, twice: Kahan and Parlett's "twice is
 * enough"); one that depends linearly on the others becomes zero. */
static void orthonormal(float *lines, size_t count, size_t n)
{
    for (size_t i = 0; i < count; i++) {
        float *const x = lines + i * n;
        const double before = dot(x, x, n);
        for (int pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < i; j++) {
                const float *const y = lines + j * n;
                const float along = (float)dot(x, y, n);
                for (size_t e = 0; e < n; e++)
                    x[e] -= along * y[e];
            }
        const double after = dot(x, x, n);
        const float scale = after > 1e-12 * before && isfinite(before) ? (float)(1.0 / sqrt(after)) : 0.0f;
        for (size_t e = 0; e < n; e++)
            x[e] *= scale;
    }
}

/* q (found, T) becomes the transpose of d times matrix (C, found). */
static void range_of(const struct aq_codec *codec, const struct places *at, const float *matrix, size_t found)
{
    for (size_t row = 0; row < codec->rows; row++) {
        codec->kernels->products(at->d + row * codec->columns, codec->columns, matrix, found, found, at->y);
        for (size_t k = 0; k < found; k++)
            at->q[k * codec->rows + row] = at->y[k];
    }
    orthonormal(at->q, found, codec->rows);
}

/* b (found, C) = q d, by blocks of columns that stay in a cache. */
static void project(const struct aq_codec *codec, const struct places *at, size_t found)
{
    const size_t n = codec->columns;
    for (size_t c = 0; c < n; c += BLOCK) {
        const size_t some = n - c < BLOCK ? n - c : BLOCK;
        for (size_t k = 0; k < found; k++)
            codec->kernels->products(at->q + k * codec->rows, codec->rows, at->d + c, n, some, at->b + k * n + c);
    }
}

/* One plane of Jacobi's rotations of a symmetric matrix, and of the basis. */
static void rotate(double *gram, double *basis, size_t n, size_t p, size_t q)
{
    const double off = gram[p * n + q];
    if (off == 0.0) return;
    const double theta = (gram[q * n + q] - gram[p * n + p]) / (2.0 * off);
    const double t = (theta < 0.0 ? -1.0 : 1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
    const double c = 1.0 / sqrt(t * t + 1.0), s = t * c;
    for (size_t k = 0; k < n; k++) {
        const double x = gram[k * n + p], y = gram[k * n + q];
        gram[k * n + p] = c * x - s * y;
        gram[k * n + q] = s * x + c * y;
    }
    for (size_t k = 0; k < n; k++) {
        const double x = gram[p * n + k], y = gram[q * n + k];
        gram[p * n + k] = c * x - s * y;
        gram[q * n + k] = s * x + c * y;
    }
    for (size_t k = 0; k < n; k++) {
        const double x = basis[p * n + k], y = basis[q * n + k];
        basis[p * n + k] = c * x - s * y;
        basis[q * n + k] = s * x + c * y;
    }
}

/* Eigenvalues of b b' from the largest to the smallest, eigenvectors in rows of at->basis; their order in `order`. */
static void eigen(const struct places *at, size_t found, size_t columns, double *values, uint32_t *order)
{
    double *const gram = at->gram;
    for (size_t i = 0; i < found; i++)
        for (size_t j = 0; j <= i; j++) {
            gram[i * found + j] = gram[j * found + i] = dot(at->b + i * columns, at->b + j * columns, columns);
            at->basis[i * found + j] = at->basis[j * found + i] = i == j ? 1.0 : 0.0;
        }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0.0, on = 0.0;
        for (size_t p = 0; p < found; p++)
            for (size_t q = 0; q < found; q++)
                *(p == q ? &on : &off) += gram[p * found + q] * gram[p * found + q];
        if (off <= 1e-24 * on) break;
        for (size_t p = 0; p + 1 < found; p++)
            for (size_t q = p + 1; q < found; q++)
                rotate(gram, at->basis, found, p, q);
    }
    for (uint32_t i = 0; i < found; i++) {
        uint32_t at_i = i;
        for (; at_i > 0 && values[at_i - 1] < gram[i * found + i]; at_i--) {
            values[at_i] = values[at_i - 1];
            order[at_i] = order[at_i - 1];
        }
        values[at_i] = gram[i * found + i] > 0.0 ? gram[i * found + i] : 0.0;
        order[at_i] = i;
    }
}

/* How many directions; tail: the part of |d|^2 beyond them, by the whole and by values. */
static uint32_t rank_of(const struct aq_codec *codec, const double *values, double whole, double leave, double *tail)
{
    const uint32_t most = most_of(codec->config.rank, codec->rows, codec->columns);
    uint32_t rank = 0;
    *tail = whole;
    for (; rank < most && values[rank] > 0.0; rank++) {
        if (*tail <= leave) break;
        *tail -= values[rank];
    }
    if (*tail < 0.0) *tail = 0.0;
    return rank;
}

/* Both factors times s, into w; g into the body. False where they are beyond fp32. */
static bool factors_make(struct aq_codec_encoder *job, const struct places *at, size_t found, const double *values,
                         const uint32_t *order, uint32_t rank)
{
    const struct aq_codec *codec = job->codec;
    const size_t rows = codec->rows, columns = codec->columns, line = rows + columns;
    float turn[FOUND_MAX];
    for (size_t i = 0; i < rank; i++) {
        const double s = sqrt(values[i]);
        const float gain = (float)(1.0 / s);
        float *const w = at->w + i * line;
        if (!(gain > 0.0f && gain < INFINITY)) return false;
        memcpy(job->body + HEAD_BYTES + sizeof gain * i, &gain, sizeof gain);
        for (size_t k = 0; k < found; k++)
            turn[k] = (float)at->basis[order[i] * found + k];
        codec->kernels->products(turn, found, at->q, rows, rows, w);
        for (size_t t = 0; t < rows; t++)
            w[t] *= (float)s;
        codec->kernels->products(turn, found, at->b, columns, columns, w + rows);
    }
    memset(at->w + rank * line, 0,
           (factor_rows(rank, codec->rows, codec->columns) * (size_t)FACTOR_COLUMNS - rank * line) * sizeof *at->w);
    return true;
}

/* ---- both ways: the product ---- */

struct product {
    const struct aq_codec *codec;
    const struct places *at;
    const float *gains;
    uint32_t rank;
    const uint8_t *m;
    float *hat;
    uint8_t *m_out;
    struct aq_codec_sums *sums; /* encode: adds up (d - level)^2; else NULL */
    bool *failed;
};

/* Levels of a row into `levels`. */
static void product_row(const struct product *job, uint32_t piece, size_t row, float *levels)
{
    const size_t rows = job->codec->rows, line = rows + job->codec->columns;
    float *const scaled = job->at->scaled + (size_t)piece * (job->codec->config.rank + RANK_MORE);
    for (size_t i = 0; i < job->rank; i++)
        scaled[i] = job->at->w_hat[i * line + row] * job->gains[i];
    job->codec->kernels->products(scaled, job->rank, job->at->w_hat + rows, line, job->codec->columns, levels);
}

static void product_piece(uint32_t piece, void *context)
{
    const struct product *job = context;
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns, end = (size_t)(piece + 1) * codec->piece_rows;
    const bool keeps = aq_codec_keeps(codec);
    const enum aq_row_kind store = keeps ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    const size_t bytes = keeps ? n * (aq_precision_bits(codec->store) / 8) : 0;
    const uint32_t limit = aq_store_limit(keeps ? codec->store : AQ_PRECISION_FP32);
    float *const levels = codec->scratch[piece].levels;
    for (size_t row = (size_t)piece * codec->piece_rows; row < end && row < codec->rows; row++) {
        const uint8_t *m = job->m == NULL ? NULL : job->m + row * bytes;
        uint8_t *out = job->m_out == NULL ? NULL : job->m_out + row * bytes;
        float *hat = job->hat == NULL ? NULL : job->hat + row * n, error[AQ_LANES] = {0};
        product_row(job, piece, row, levels);
        for (size_t c = 0; job->sums != NULL && c < n; c++) {
            const float left = job->at->d[row * n + c] - levels[c];
            error[c % AQ_LANES] += left * left;
        }
        for (int l = 0; job->sums != NULL && l < AQ_LANES; l++)
            job->sums[piece].error2[l] += (double)error[l];
        if (codec->kernels->update(m, m == NULL ? AQ_ROW_NONE : store, levels, n, hat, out,
                                   out == NULL ? AQ_ROW_NONE : store) >= limit)
            job->failed[piece] = true;
    }
}

static bool product_run(const struct product *job)
{
    bool good = true;
    aq_codec_run(job->codec, product_piece, (void *)(uintptr_t)job);
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++)
        good = good && !job->failed[piece];
    return good;
}

static void factors_use(const struct aq_codec *codec, uint32_t rank)
{
    codec->inner->kernels = codec->kernels;
    aq_codec_rows_use(codec->inner, factor_rows(rank, codec->rows, codec->columns));
}

/* W into the body and as the receiver has it; false where it cannot be coded. */
static bool factors_encode(struct aq_codec_encoder *job, const struct places *at, uint32_t rank, float error)
{
    struct aq_codec *const inner = job->codec->inner;
    uint8_t *const out = job->body + HEAD_BYTES + sizeof(float) * rank;
    struct aq_codec_result result;
    factors_use(job->codec, rank);
    inner->config.error = error;
    if (aq_codec_encode_here(inner, at->w, NULL, NULL, out, aq_codec_bound(inner), at->w_hat, NULL, &result) != AQ_OK ||
        result.flags != 0)
        return false;
    job->body_bytes = (uint64_t)(out - job->body) + result.body_bytes;
    return true;
}

/* Finds directions; values of all, in their order. */
static size_t directions(const struct aq_codec *codec, const struct places *at, double *values, uint32_t *order)
{
    const size_t found = found_of(codec->config.rank, codec->rows, codec->columns), n = codec->columns;
    float *const sketch = at->bt; /* the first columns of omega: it was made for all that may be looked for */
    for (size_t c = 0; c < n; c++)
        memcpy(sketch + c * found, at->omega + c * (codec->config.rank + RANK_MORE), found * sizeof *sketch);
    range_of(codec, at, sketch, found);
    project(codec, at, found);
    for (size_t k = 0; k < found; k++)
        for (size_t c = 0; c < n; c++)
            at->bt[c * found + k] = at->b[k * n + c];
    range_of(codec, at, at->bt, found);
    project(codec, at, found);
    eigen(at, found, n, values, order);
    return found;
}

static bool encode(struct aq_codec_encoder *job)
{
    const struct aq_codec *codec = job->codec;
    const struct places at = places_of(codec);
    const double goal = (double)codec->config.error;
    double values[FOUND_MAX] = {0}, whole = 0.0, energy = 0.0, tail = 0.0;
    uint32_t order[FOUND_MAX] = {0}, rank = 0;
    size_t found = 0;
    if (!take_delta(job, &at)) return false;
    for (int l = 0; l < AQ_LANES; l++) {
        whole += job->sums[0].delta2[l];
        energy += job->sums[0].a2[l];
    }
    const double may = goal > 0.0 ? goal * goal * energy : 0.0;
    if (!isfinite(whole)) return false;
    if (whole > may) {
        found = directions(codec, &at, values, order);
        rank = rank_of(codec, values, whole, goal > 0.0 ? may / 2 : TAIL * whole, &tail);
    }
    if (!factors_make(job, &at, found, values, order, rank)) return false;
    const double factors2 = 2.0 * (whole - tail), left = may - tail > may / 8 ? may - tail : may / 8;
    const double error = goal > 0.0 && factors2 > 0.0 ? sqrt(left / factors2) : 0.0;
    const uint32_t head = rank;
    float gains[RANK_MAX] = {0};
    memcpy(job->body, &head, HEAD_BYTES);
    memcpy(gains, job->body + HEAD_BYTES, sizeof *gains * rank);
    job->body_bytes = HEAD_BYTES;
    if (rank > 0 && !factors_encode(job, &at, rank,
                                    error > 0.9                    ? 0.9f
                                    : error > 0.0 && error < 0.001 ? 0.001f
                                                                   : (float)error))
        return false;
    const struct product product = {codec, &at, gains, rank, job->m, job->hat, job->m_out, job->sums, job->failed};
    return product_run(&product);
}

/* ---- the way in ---- */

static enum aq_status decode(struct aq_codec_decoder *job)
{
    const struct aq_codec *codec = job->codec;
    const struct places at = places_of(codec);
    float gains[RANK_MAX] = {0};
    uint32_t rank;
    if (job->body_bytes < HEAD_BYTES) return aq_codec_corrupt("it is shorter than its header");
    memcpy(&rank, job->body, HEAD_BYTES);
    if (rank > most_of(codec->config.rank, codec->rows, codec->columns))
        return aq_codec_corrupt("it has more directions than its edge");
    const size_t from = HEAD_BYTES + sizeof *gains * rank;
    if (job->body_bytes < from || (rank == 0 && job->body_bytes != from))
        return aq_codec_corrupt("its length does not fit its rank");
    memcpy(gains, job->body + HEAD_BYTES, sizeof *gains * rank);
    for (uint32_t i = 0; i < rank; i++)
        if (!(gains[i] > 0.0f && gains[i] < INFINITY))
            return aq_codec_corrupt("a gain is negative, infinite or not a number");
    if (rank > 0) {
        factors_use(codec, rank);
        AQ_TRY(aq_codec_decode_here(codec->inner, job->body + from, job->body_bytes - from, 0, NULL, at.w_hat, NULL));
    }
    const struct product product = {codec, &at, gains, rank, job->m, job->hat, job->m_out, NULL, job->failed};
    return product_run(&product) ? AQ_OK : aq_codec_corrupt("a value is outside the range that can be stored");
}

const struct aq_codec_member aq_codec_lowrank = {.about = {.name = "lowrank", .label = "low rank", .varies = true},
                                                 .on_host = true,
                                                 .defaults = defaults,
                                                 .check = check,
                                                 .layout = layout,
                                                 .open = open_factors,
                                                 .digest = digest,
                                                 .text = text,
                                                 .encode = encode,
                                                 .decode = decode};
