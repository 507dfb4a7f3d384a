/*
 * codec_encode.c -- the sender: from an activation to a body, x^ and m'.
 *
 * Invariants. Nothing is written past the body's exact length. encode computes hat and m_out from the codes by the
 * arithmetic of decode. A value that forces the sample to be raw may be in the last row: then m_out is rubbish already,
 * which does no harm, because such a sample is cold on both ends.
 */
#include <math.h>

#include "codec_member.h"

static bool any_failed(const struct aq_codec_encoder *job)
{
    bool failed = false;
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++)
        failed = failed || job->failed[piece];
    return failed;
}

/* The start of the codes of row `row` (a multiple of eight) in a stream of `bits`. */
static uint8_t *codes_from(uint8_t *stream, const struct aq_codec *codec, uint32_t row, uint32_t bits)
{
    return stream + (uint64_t)row * codec->columns * bits / 8;
}

/* ---- raw and keyframes ---- */

static void add_error(const float *a, const float *x, size_t n, struct aq_codec_sums *sums)
{
    float error[AQ_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const float e = a[i] - x[i];
        error[i % AQ_LANES] += e * e;
    }
    for (int l = 0; l < AQ_LANES; l++)
        sums->error2[l] += (double)error[l];
}

/* One row as values of `precision`; *x: its x^. */
static bool plain_row(struct aq_codec_encoder *job, enum aq_codec_precision precision, uint32_t piece, uint32_t row,
                      struct aq_code_writer *writer, const float **x)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const enum aq_row_kind kind = aq_precision_row(precision);
    const size_t n = codec->columns;
    const float *a = job->a + (size_t)row * n;
    struct aq_span span;
    codec->kernels->delta(a, NULL, AQ_ROW_NONE, scratch->d, n, &span, &job->sums[piece], false,
                          NULL);
    if (span.peak >= aq_store_limit(precision)) return false;
    *x = scratch->levels;
    if (kind == AQ_ROW_NONE) return aq_store_write_row(codec, precision, job->body, row, a, scratch->levels, writer);
    uint8_t *out = job->body + (size_t)row * n * (aq_precision_bits(precision) / 8);
    codec->kernels->update(NULL, AQ_ROW_NONE, a, n, NULL, out, kind);
    codec->kernels->expand(out, kind, n, scratch->levels);
    return true;
}

static void plain_piece(uint32_t piece, void *context)
{
    struct aq_codec_encoder *job = context;
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const bool cold = aq_codec_keeps(codec);
    const enum aq_codec_precision precision = cold ? codec->config.keyframe : codec->config.raw;
    const enum aq_row_kind out_kind = cold && job->m_out != NULL ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    const uint32_t limit = aq_store_limit(cold ? codec->store : AQ_PRECISION_FP32);
    const uint32_t bits = aq_precision_bits(precision);
    const size_t n = codec->columns;
    uint32_t first, end;
    struct aq_code_writer writer = {0};
    aq_codec_piece(codec, piece, &first, &end);
    if (bits < 16)
        aq_code_writer_init(&writer, codec->kernels, scratch->codes,
                            codes_from(job->body + 4 * (size_t)codec->rows, codec, first, bits), bits);
    for (uint32_t row = first; row < end; row++) {
        const float *x;
        job->failed[piece] = !plain_row(job, precision, piece, row, &writer, &x);
        if (job->failed[piece]) return;
        add_error(job->a + row * n, x, n, &job->sums[piece]);
        uint8_t *out = out_kind == AQ_ROW_NONE ? NULL : job->m_out + row * aq_codec_row_bytes(codec);
        float *hat = job->hat == NULL ? NULL : job->hat + row * n;
        const uint32_t peak = codec->kernels->update(NULL, AQ_ROW_NONE, x, n, hat, out, out_kind);
        job->failed[piece] = peak >= limit;
        if (job->failed[piece]) return;
    }
    if (bits < 16) aq_code_writer_flush(&writer);
}

/* ---- scales ---- */

/* The candidate with the least error among those that fit the format; earlier ones win a tie. */
static bool pick_shrink(const struct aq_codec_config *config, const struct aq_span *span, const float *errors,
                        size_t stride, uint8_t *out, struct aq_quant *quant)
{
    float best = INFINITY;
    bool found = false;
    for (uint32_t i = 0; i < AQ_CODEC_SHRINKS; i++) {
        struct aq_quant candidate;
        uint8_t bytes[4];
        if (!aq_scale_write(config, aq_scale_shrink(config, span, i), bytes, &candidate)) continue;
        if (found && !(errors[i * stride] < best)) continue;
        best = errors[i * stride];
        found = true;
        *quant = candidate;
        memcpy(out, bytes, config->scale_format == AQ_SCALE_FP32 ? 4 : config->scale_format == AQ_SCALE_POW2 ? 1 : 2);
    }
    return found;
}

/* Add the errors of all candidates over d to errors[shrink][lane]. */
static void try_shrinks(const struct aq_codec *codec, const struct aq_span *span, const float *d, size_t n,
                        float *errors)
{
    for (uint32_t i = 0; i < AQ_CODEC_SHRINKS; i++) {
        struct aq_quant candidate;
        uint8_t bytes[4];
        if (!aq_scale_write(&codec->config, aq_scale_shrink(&codec->config, span, i), bytes, &candidate)) continue;
        codec->kernels->error(d, n, &candidate, errors + i * AQ_LANES);
    }
}

static void fold_errors(const float *lanes, float errors[AQ_CODEC_SHRINKS])
{
    for (uint32_t i = 0; i < AQ_CODEC_SHRINKS; i++) {
        errors[i] = 0.0f;
        for (uint32_t l = 0; l < AQ_LANES; l++)
            errors[i] += lanes[i * AQ_LANES + l];
    }
}

/* The scale of a group whose values are all at d. */
static bool make_scale(const struct aq_codec *codec, const struct aq_span *span, const float *d, size_t n, uint8_t *out,
                       struct aq_quant *quant)
{
    if (!aq_scale_searches(&codec->config))
        return aq_scale_write(&codec->config, aq_scale_choose(&codec->config, span, n), out, quant);
    float lanes[AQ_CODEC_SHRINKS * AQ_LANES] = {0}, errors[AQ_CODEC_SHRINKS];
    try_shrinks(codec, span, d, n, lanes);
    fold_errors(lanes, errors);
    return pick_shrink(&codec->config, span, errors, 1, out, quant);
}

static uint8_t *scale_at(const struct aq_codec_encoder *job, uint64_t group)
{
    return job->body + group * job->codec->layout.scale_bytes;
}

static void merge_span(struct aq_span *into, const struct aq_span *from)
{
    into->peak = into->peak > from->peak ? into->peak : from->peak;
    into->sum_abs += from->sum_abs;
    into->sum_square += from->sum_square;
}

static void channel_spans(const float *d, size_t n, struct aq_span *spans)
{
    for (size_t c = 0; c < n; c++) {
        const uint32_t peak = aq_bits_of(d[c]) & 0x7fffffffu;
        spans[c].peak = peak > spans[c].peak ? peak : spans[c].peak;
        spans[c].sum_abs += aq_float_of(peak);
        spans[c].sum_square += d[c] * d[c];
    }
}

/* ---- dense deltas ---- */

/* m of a row; of a codec that keeps none, something that is not NULL. */
static const void *reference_row(const struct aq_codec_encoder *job, uint32_t row, enum aq_row_kind *kind)
{
    const struct aq_codec *codec = job->codec;
    static const uint8_t none = 0;
    const bool keeps = aq_codec_keeps(codec);
    *kind = keeps ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    return keeps ? job->m + row * aq_codec_row_bytes(codec) : &none;
}

/* A later row of a to fetch, or the last one. */
static const float *row_ahead(const struct aq_codec_encoder *job, uint32_t row, uint32_t ahead)
{
    return job->a + (row + ahead < job->codec->rows ? row + ahead : job->codec->rows - 1) * (size_t)job->codec->columns;
}

/* d of a row, rotated if the config asks for it, and its span. False where d is not finite. */
static bool delta_row(const struct aq_codec_encoder *job, uint32_t row, const void *m, enum aq_row_kind kind, float *d,
                      struct aq_span *span, struct aq_codec_sums *sums)
{
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    codec->kernels->delta(job->a + row * n, m, kind, d, n, span, sums, false,
                          row_ahead(job, row, 1));
    if (span->peak >= 0x7f800000u) return false;
    if (!codec->config.hadamard) return true;
    codec->kernels->rotate(d, n, codec->config.tile);
    codec->kernels->span(d, n, span);
    return span->peak < 0x7f800000u;
}

/* First look at a sample whose groups run over rows: spans (tensor: one, channel: C) of this piece. */
static void stats_piece(uint32_t piece, void *context)
{
    struct aq_codec_encoder *job = context;
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    struct aq_codec_sums unused;
    uint32_t first, end;
    memset(&unused, 0, sizeof unused);
    aq_codec_piece(codec, piece, &first, &end);
    memset(scratch->spans, 0, codec->layout.groups_row * sizeof *scratch->spans);
    for (uint32_t row = first; row < end; row++) {
        enum aq_row_kind kind;
        struct aq_span span;
        const void *m = reference_row(job, row, &kind);
        job->failed[piece] = !delta_row(job, row, m, kind, scratch->d, &span, &unused);
        if (job->failed[piece]) return;
        if (codec->config.group == AQ_PER_TENSOR)
            merge_span(&scratch->spans[0], &span);
        else
            channel_spans(scratch->d, codec->columns, scratch->spans);
    }
}

/* Second look, only to search: the errors of all candidates over this piece. */
static void search_piece(uint32_t piece, void *context)
{
    struct aq_codec_encoder *job = context;
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const size_t n = codec->columns;
    struct aq_codec_sums unused;
    uint32_t first, end;
    memset(&unused, 0, sizeof unused);
    aq_codec_piece(codec, piece, &first, &end);
    const bool tensor = codec->config.group == AQ_PER_TENSOR;
    memset(scratch->error, 0, AQ_CODEC_SHRINKS * (tensor ? (size_t)AQ_LANES : n) * sizeof(float));
    for (uint32_t row = first; row < end; row++) {
        enum aq_row_kind kind;
        struct aq_span span;
        const void *m = reference_row(job, row, &kind);
        job->failed[piece] = !delta_row(job, row, m, kind, scratch->d, &span, &unused);
        if (job->failed[piece]) return;
        if (tensor) {
            try_shrinks(codec, &codec->spans[0], scratch->d, n, scratch->error);
            continue;
        }
        for (size_t c = 0; c < n; c++) {
            float lanes[AQ_CODEC_SHRINKS * AQ_LANES] = {0}; /* one value: lane 0 of each candidate */
            try_shrinks(codec, &codec->spans[c], scratch->d + c, 1, lanes);
            for (uint32_t i = 0; i < AQ_CODEC_SHRINKS; i++)
                scratch->error[i * n + c] += lanes[i * AQ_LANES];
        }
    }
}

/* The scales of tensor and channel groups, from all pieces, into the body and codec->quants. */
static bool make_whole_scales(struct aq_codec_encoder *job)
{
    struct aq_codec *codec = job->codec;
    const struct aq_codec_config *config = &codec->config;
    const uint32_t groups = codec->layout.groups_row;
    const uint64_t n = config->group == AQ_PER_TENSOR ? codec->layout.values : codec->rows;
    const bool search = aq_scale_searches(config), tensor = config->group == AQ_PER_TENSOR;
    aq_codec_run(codec, stats_piece, job);
    if (any_failed(job)) return false;
    memset(codec->spans, 0, groups * sizeof *codec->spans);
    for (uint32_t piece = 0; piece < codec->pieces; piece++) {
        for (uint32_t g = 0; g < groups; g++)
            merge_span(&codec->spans[g], &codec->scratch[piece].spans[g]);
    }
    if (search) {
        aq_codec_run(codec, search_piece, job);
        if (any_failed(job)) return false;
        const size_t count = AQ_CODEC_SHRINKS * (tensor ? (size_t)AQ_LANES : codec->columns);
        for (uint32_t piece = 1; piece < codec->pieces; piece++) {
            for (size_t i = 0; i < count; i++)
                codec->scratch[0].error[i] += codec->scratch[piece].error[i];
        }
    }
    for (uint32_t g = 0; g < groups; g++) {
        const struct aq_span *span = &codec->spans[g];
        float errors[AQ_CODEC_SHRINKS];
        bool fits;
        if (!search) {
            fits = aq_scale_write(config, aq_scale_choose(config, span, n), scale_at(job, g), &codec->quants[g]);
        } else if (tensor) {
            fold_errors(codec->scratch[0].error, errors);
            fits = pick_shrink(config, span, errors, 1, scale_at(job, g), &codec->quants[g]);
        } else {
            fits = pick_shrink(config, span, codec->scratch[0].error + g, codec->columns, scale_at(job, g),
                               &codec->quants[g]);
        }
        if (!fits) return false;
    }
    return true;
}

/* The quantizers of a row; span is of the whole row. */
static bool row_quants(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, const struct aq_span *span,
                       const struct aq_quant **quants)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    *quants = codec->quants;
    if (codec->config.group == AQ_PER_TENSOR || codec->config.group == AQ_PER_CHANNEL) return true;
    const float *d = scratch->d;
    *quants = scratch->quants;
    if (codec->config.group == AQ_PER_ROW)
        return make_scale(codec, span, d, codec->columns, scale_at(job, row), scratch->quants);
    for (uint32_t g = 0; g < codec->layout.groups_row; g++) {
        struct aq_span tile;
        uint32_t from, to;
        aq_codec_span_of(codec, g, &from, &to);
        codec->kernels->span(d + from, to - from, &tile);
        const uint64_t group = (uint64_t)row * codec->layout.groups_row + g;
        if (!make_scale(codec, &tile, d + from, to - from, scale_at(job, group), &scratch->quants[g])) return false;
    }
    return true;
}

/* Codes and deq of a row whose quantizers are made: for every config that the fused step does not know. */
static void quantize_row(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, const struct aq_quant *quants,
                         uint8_t *codes)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    double *error2 = job->sums[piece].error2;
    const bool stochastic = codec->config.rounding == AQ_ROUND_STOCHASTIC;
    const float *noise = stochastic ? scratch->noise : NULL;
    const size_t n = codec->columns;
    if (stochastic) codec->kernels->noise(job->key, (uint64_t)row * n, n, scratch->noise);
    const bool channel = codec->config.group == AQ_PER_CHANNEL;
    for (uint32_t g = 0; g < codec->layout.groups_row; g++) {
        uint32_t from = g, to = g + 1;
        if (!channel) aq_codec_span_of(codec, g, &from, &to);
        codec->kernels->quantize(scratch->d + from, to - from, &quants[g], noise == NULL ? NULL : noise + from,
                                 codes + from, scratch->levels + from, error2);
    }
    if (codec->config.hadamard) codec->kernels->rotate(scratch->levels, n, codec->config.tile);
}

/* Codes, x^ and m' of a row with one quantizer: as much as possible straight into the stream, the rest by way of
 * scratch. */
static uint32_t step_row(const struct aq_codec *codec, const float *d, const struct aq_quant *quant,
                         struct aq_code_writer *writer, const void *m, float *hat, uint8_t *out, enum aq_row_kind kind,
                         enum aq_row_kind out_kind, double *error2, const void *ahead_m)
{
    const struct aq_codec_kernels *kernels = codec->kernels;
    const size_t n = codec->columns;
    size_t done = 0;
    uint32_t peak = 0;
    if (kernels->step_stream != NULL && writer->carried == 0) {
        done = kernels->step_stream(d, n, quant, writer->out, m, hat, out, kind, out_kind, error2, &peak, ahead_m);
        writer->out += done / 8 * quant->bits;
    }
    if (done == n) return peak;
    const size_t in_bytes = kind == AQ_ROW_NONE ? 0 : kind == AQ_ROW_FP32 ? 4 : 2;
    const size_t out_bytes = out_kind == AQ_ROW_NONE ? 0 : out_kind == AQ_ROW_FP32 ? 4 : 2;
    const uint32_t rest = kernels->step(d + done, n - done, quant, aq_code_writer_row(writer),
                                        (const uint8_t *)m + done * in_bytes, hat == NULL ? NULL : hat + done,
                                        out == NULL ? NULL : out + done * out_bytes, kind, out_kind, error2);
    aq_code_writer_push(writer, n - done);
    return peak > rest ? peak : rest;
}

static bool dense_row(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, struct aq_code_writer *writer)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const size_t n = codec->columns;
    const bool warm = aq_codec_keeps(codec);
    const uint32_t limit = aq_store_limit(warm ? codec->store : AQ_PRECISION_FP32);
    float *hat = job->hat == NULL ? NULL : job->hat + row * n;
    enum aq_row_kind kind, out_kind = AQ_ROW_NONE;
    const struct aq_quant *quants;
    struct aq_span span;
    uint8_t *out = NULL;
    uint32_t peak;
    const void *m = reference_row(job, row, &kind);
    if (!delta_row(job, row, m, kind, scratch->d, &span, &job->sums[piece])) return false;
    if (!job->scale(job, piece, row, &span, &quants)) return false;
    if (warm && job->m_out != NULL) {
        out_kind = aq_precision_row(codec->store);
        out = job->m_out + row * aq_codec_row_bytes(codec);
    }
    if (codec->layout.groups_row == 1 && codec->config.rounding == AQ_ROUND_NEAREST && !codec->config.hadamard) {
        double *error2 = job->sums[piece].error2;
        peak = step_row(codec, scratch->d, quants, writer, m, hat, out, kind, out_kind, error2, m);
    } else {
        quantize_row(job, piece, row, quants, aq_code_writer_row(writer));
        peak = codec->kernels->update(m, kind, scratch->levels, n, hat, out, out_kind);
        aq_code_writer_push(writer, n);
    }
    return peak < limit;
}

static void dense_piece(uint32_t piece, void *context)
{
    struct aq_codec_encoder *job = context;
    const struct aq_codec *codec = job->codec;
    uint32_t first, end;
    struct aq_code_writer writer;
    aq_codec_piece(codec, piece, &first, &end);
    aq_code_writer_init(&writer, codec->kernels, codec->scratch[piece].codes,
                        codes_from(job->body + codec->layout.codes_at, codec, first, codec->config.bits),
                        codec->config.bits);
    for (uint32_t row = first; row < end; row++) {
        job->failed[piece] = !dense_row(job, piece, row, &writer);
        if (job->failed[piece]) return;
    }
    aq_code_writer_flush(&writer);
}

/* ---- deltas with one scale per row ---- */

/* The usual config: it goes row by row without any look at another row. */
static bool is_rowwise(const struct aq_codec *codec)
{
    const struct aq_codec_config *config = &codec->config;
    return aq_codec_keeps(codec) && config->group == AQ_PER_ROW && config->rounding == AQ_ROUND_NEAREST &&
           config->scale != AQ_SCALE_SEARCH && !config->hadamard;
}

/* The sums to which the live measures of a row are added; NULL: none (aq_codec_is_measured). */
static struct aq_codec_sums *row_sums(struct aq_codec_encoder *job, uint32_t piece, uint32_t row)
{
    if (!aq_codec_is_measured(job->codec->rows, row)) return NULL;
    return job->codec->rows >= AQ_MEASURE_ROWS_MIN && row < AQ_MEASURE_EACH ? &job->head : &job->sums[piece];
}

static bool measures_part(const struct aq_codec *codec)
{
    return is_rowwise(codec) && codec->rows >= AQ_MEASURE_ROWS_MIN;
}

/* How many rows each of the later measured rows counts for. */
static double measure_factor(const struct aq_codec *codec)
{
    return measures_part(codec) ? aq_codec_measured_weight(codec->rows) : 1.0;
}

/* The result of the first look at a row, for the second. */
struct look {
    float *d;
    struct aq_quant quant;
};

static bool look_at(struct aq_codec_encoder *job, uint32_t piece, uint32_t row, struct look *look)
{
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    struct aq_span span;
    codec->kernels->delta(job->a + row * n, job->m + row * aq_codec_row_bytes(codec), aq_precision_row(codec->store),
                          look->d, n, &span, row_sums(job, piece, row), aq_scale_is_peak(&codec->config),
                          row_ahead(job, row, 1));
    return span.peak < 0x7f800000u && aq_scale_write(&codec->config, aq_scale_choose(&codec->config, &span, n),
                                                     scale_at(job, row), &look->quant);
}

/* The first look at the next row comes before the second look at this one, so that its arithmetic fills the time in
 * which the few operations that make a scale wait for each other. */
static bool rowwise_rows(struct aq_codec_encoder *job, uint32_t piece, uint32_t first, uint32_t end)
{
    const struct aq_codec *codec = job->codec;
    const enum aq_row_kind kind = aq_precision_row(codec->store);
    const enum aq_row_kind out_kind = job->m_out == NULL ? AQ_ROW_NONE : kind;
    const uint32_t limit = aq_store_limit(codec->store);
    const size_t n = codec->columns, bytes = aq_codec_row_bytes(codec);
    struct look looks[2] = {{.d = codec->scratch[piece].d}, {.d = codec->scratch[piece].levels}};
    struct aq_code_writer writer;
    aq_code_writer_init(&writer, codec->kernels, codec->scratch[piece].codes,
                        codes_from(job->body + codec->layout.codes_at, codec, first, codec->config.bits),
                        codec->config.bits);
    if (!look_at(job, piece, first, &looks[first % 2])) return false;
    for (uint32_t row = first; row < end; row++) {
        if (row + 1 < end && !look_at(job, piece, row + 1, &looks[(row + 1) % 2])) return false;
        struct aq_codec_sums *sums = row_sums(job, piece, row);
        const struct look *look = &looks[row % 2];
        const uint8_t *m = job->m + row * bytes;
        const uint32_t peak = step_row(codec, look->d, &look->quant, &writer, m,
                                       job->hat == NULL ? NULL : job->hat + row * n,
                                       job->m_out == NULL ? NULL : job->m_out + row * bytes, kind, out_kind,
                                       sums == NULL ? NULL : sums->error2, m + (row + 2 < end ? 2 * bytes : 0));
        if (peak >= limit) return false;
    }
    aq_code_writer_flush(&writer);
    return true;
}

static void rowwise_piece(uint32_t piece, void *context)
{
    struct aq_codec_encoder *job = context;
    uint32_t first, end;
    aq_codec_piece(job->codec, piece, &first, &end);
    job->failed[piece] = !rowwise_rows(job, piece, first, end);
}

/* ---- top-k ---- */

struct sparse {
    uint32_t threshold;
    uint64_t ties; /* values of exactly the threshold that are still to be kept */
};

/* The kept values of a row into scratch d and their columns; returns how many. */
static uint32_t gather_row(const struct aq_codec_encoder *job, uint32_t row, struct sparse *sparse, double *dropped)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[0];
    const float *a = job->a + (size_t)row * codec->columns;
    uint32_t count = 0;
    for (uint32_t c = 0; c < codec->columns; c++) {
        const uint32_t magnitude = aq_bits_of(a[c]) & 0x7fffffffu;
        bool keep = magnitude > sparse->threshold;
        if (magnitude == sparse->threshold && sparse->ties > 0) {
            keep = true;
            sparse->ties--;
        }
        if (!keep) {
            *dropped += (double)a[c] * (double)a[c];
            continue;
        }
        scratch->d[count] = a[c];
        scratch->columns[count++] = c;
    }
    return count;
}

/* One scale for all kept values: the looks before the last. */
static bool sparse_tensor_scale(struct aq_codec_encoder *job, struct sparse start)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[0];
    struct aq_span whole = {0}, span;
    double unused = 0;
    float lanes[AQ_CODEC_SHRINKS * AQ_LANES] = {0}, errors[AQ_CODEC_SHRINKS];
    struct sparse sparse = start;
    for (uint32_t row = 0; row < codec->rows; row++) {
        const uint32_t count = gather_row(job, row, &sparse, &unused);
        codec->kernels->span(scratch->d, count, &span);
        merge_span(&whole, &span);
    }
    if (!aq_scale_searches(&codec->config))
        return aq_scale_write(&codec->config, aq_scale_choose(&codec->config, &whole, codec->layout.kept),
                              scale_at(job, 0), &codec->quants[0]);
    sparse = start;
    for (uint32_t row = 0; row < codec->rows; row++) {
        const uint32_t count = gather_row(job, row, &sparse, &unused);
        try_shrinks(codec, &whole, scratch->d, count, lanes);
    }
    fold_errors(lanes, errors);
    return pick_shrink(&codec->config, &whole, errors, 1, scale_at(job, 0), &codec->quants[0]);
}

/* Quantize the kept values of a row, group by group. */
static bool sparse_row(struct aq_codec_encoder *job, uint32_t row, uint32_t count, uint8_t *codes)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[0];
    const float *noise = NULL;
    if (codec->config.rounding == AQ_ROUND_STOCHASTIC) {
        noise = scratch->noise;
        for (uint32_t i = 0; i < count; i++)
            scratch->noise[i] = aq_rng_uniform(job->key, (uint64_t)row * codec->columns + scratch->columns[i]);
    }
    for (uint32_t g = 0, at = 0; g < codec->layout.groups_row; g++) {
        uint32_t from, to, next = at;
        const struct aq_quant *quant = &codec->quants[0];
        aq_codec_span_of(codec, g, &from, &to);
        while (next < count && scratch->columns[next] < to)
            next++;
        if (codec->config.group != AQ_PER_TENSOR) {
            struct aq_span span;
            codec->kernels->span(scratch->d + at, next - at, &span);
            quant = &scratch->quants[g];
            const uint64_t group = (uint64_t)row * codec->layout.groups_row + g;
            if (!make_scale(codec, &span, scratch->d + at, next - at, scale_at(job, group), &scratch->quants[g]))
                return false;
        }
        codec->kernels->quantize(scratch->d + at, next - at, quant, noise == NULL ? NULL : noise + at, codes + at,
                                 scratch->levels + at, job->sums[0].error2);
        at = next;
    }
    return true;
}

/* Positions depend on what went before them, so that this is one piece whatever the pool. */
static bool encode_sparse(struct aq_codec_encoder *job)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[0];
    const size_t n = codec->columns;
    struct sparse sparse;
    struct aq_code_writer writer;
    struct aq_position_writer positions;
    for (uint32_t row = 0; row < codec->rows; row++) {
        struct aq_span span;
        codec->kernels->delta(job->a + row * n, NULL, AQ_ROW_NONE, scratch->d, n, &span, &job->sums[0], false,
                              NULL);
        if (span.peak >= 0x7f800000u) return false;
    }
    aq_topk_threshold(job->a, codec->layout.values, codec->layout.kept, &sparse.threshold, &sparse.ties);
    if (codec->config.group == AQ_PER_TENSOR && !sparse_tensor_scale(job, sparse)) return false;
    aq_position_writer_init(&positions, &codec->layout, job->body + codec->layout.positions_at);
    aq_code_writer_init(&writer, codec->kernels, scratch->codes, job->body + codec->layout.codes_at,
                        codec->config.bits);
    for (uint32_t row = 0; row < codec->rows; row++) {
        const uint32_t count = gather_row(job, row, &sparse, &job->sums[0].error2[0]);
        if (!sparse_row(job, row, count, aq_code_writer_row(&writer))) return false;
        aq_code_writer_push(&writer, count);
        float *hat = job->hat == NULL ? NULL : job->hat + row * n;
        if (hat != NULL) memset(hat, 0, n * sizeof *hat);
        for (uint32_t i = 0; i < count; i++) {
            aq_position_write(&positions, (uint64_t)row * n + scratch->columns[i]);
            if ((aq_bits_of(scratch->levels[i]) & 0x7fffffffu) >= 0x7f800000u) return false;
            if (hat != NULL) hat[scratch->columns[i]] = scratch->levels[i];
        }
    }
    aq_code_writer_flush(&writer);
    return true;
}

/* ---- the call ---- */

static double fold_sums(const struct aq_codec_sums *sums, size_t offset)
{
    const double *lanes = (const double *)(const void *)((const uint8_t *)sums + offset);
    double total = 0;
    for (int l = 0; l < AQ_LANES; l++)
        total += lanes[l];
    return total;
}

/* One of the live measures of a delta or, where the factor is 1, of any sample. */
static double fold(const struct aq_codec_encoder *job, size_t offset, double factor)
{
    double total = 0;
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++)
        total += fold_sums(&job->sums[piece], offset);
    return fold_sums(&job->head, offset) + factor * total;
}

uint32_t aq_codec_raw_limit(const struct aq_codec *codec, bool plain)
{
    const bool keeps = aq_codec_keeps(codec);
    const enum aq_codec_precision sent = keeps ? codec->config.keyframe : codec->config.raw;
    const uint32_t store = aq_store_limit(keeps ? codec->store : AQ_PRECISION_FP32);
    const uint32_t other = aq_store_limit(plain ? sent : AQ_PRECISION_FP32);
    return store < other ? store : other;
}

static void encode_raw(struct aq_codec_encoder *job, struct aq_codec_result *result)
{
    const struct aq_codec *codec = job->codec;
    const bool plain = codec->member->encode == NULL || (aq_codec_keeps(codec) && job->m == NULL);
    uint32_t peak = 0;
    const size_t values = (size_t)codec->layout.values;
    memcpy(job->body, job->a, 4 * values);
    if (job->hat != NULL) memcpy(job->hat, job->a, 4 * values);
    *result = (struct aq_codec_result){.body_bytes = (uint32_t)(4 * values), .flags = AQ_CODED_RAW};
    for (size_t e = 0; e < values; e++) {
        result->sum_a += (double)job->a[e];
        result->sum_a2 += (double)job->a[e] * (double)job->a[e];
        const uint32_t size = aq_bits_of(job->a[e]) & 0x7fffffffu;
        peak = size > peak ? size : peak;
    }
    result->sum_delta2 = result->sum_a2;
    result->raw_reason = aq_codec_raw_reason(peak, aq_codec_raw_limit(codec, plain));
    result->raw_peak = peak < 0x7f800000u ? aq_float_of(peak) : INFINITY;
}

bool aq_codec_encode_rows(struct aq_codec_encoder *job, aq_codec_scale_choose *scale)
{
    job->scale = scale;
    aq_codec_run(job->codec, dense_piece, job);
    return !any_failed(job);
}

bool aq_quantizer_encode(struct aq_codec_encoder *job)
{
    struct aq_codec *codec = job->codec;
    const struct aq_codec_config *config = &codec->config;
    if (codec->layout.positions_bytes > 0) return encode_sparse(job);
    const bool whole = config->group == AQ_PER_TENSOR || config->group == AQ_PER_CHANNEL;
    if (whole && !make_whole_scales(job)) return false;
    if (!is_rowwise(codec)) return aq_codec_encode_rows(job, row_quants);
    job->factor = measure_factor(codec);
    aq_codec_run(codec, rowwise_piece, job);
    return !any_failed(job);
}

void aq_quantizer_plan(const struct aq_codec *codec, struct aq_cuda_codec_plan *out)
{
    const struct aq_codec_config *config = &codec->config;
    struct aq_quant quant;
    aq_quant_grid(config->grid, config->bits, &quant);
    out->grid = (uint32_t)config->grid;
    out->group = (uint32_t)config->group;
    out->tile = config->tile;
    out->scale = (uint32_t)config->scale;
    out->scale_format = (uint32_t)config->scale_format;
    out->bits = config->bits;
    out->half = quant.half;
    out->low = quant.low;
    out->high = quant.high;
    out->rise = quant.rise;
    out->prescale_log2 = config->prescale_log2;
    out->gauss = aq_scale_gauss(config->grid, config->bits);
    out->laplace = aq_scale_laplace(config->grid, config->bits);
    out->shrink = aq_scale_shrink_ratio(config->bits);
    out->stochastic = config->rounding == AQ_ROUND_STOCHASTIC;
    out->hadamard = config->hadamard;
    out->measure_part = measures_part(codec);
}

static bool encode_plain(struct aq_codec_encoder *job)
{
    aq_codec_run(job->codec, plain_piece, job);
    return !any_failed(job);
}

/* Samples that need no member: values as they are, and keyframes. */
static bool encode_cold(struct aq_codec_encoder *job)
{
    return aq_codec_varies(job->codec, true) && aq_codec_keeps(job->codec) ? aq_ec_encode(job) : encode_plain(job);
}

enum aq_status aq_codec_encode(struct aq_codec *codec, const float *a, const void *m, const struct aq_rng_key *key,
                               void *body, size_t capacity, float *hat, void *m_out, struct aq_codec_result *result,
                               struct aq_stream *stream)
{
    if (codec->staging)
        return aq_codec_encode_staged(codec, a, m, key, body, capacity, hat, m_out, result, stream);
    return aq_codec_encode_here(codec, a, m, key, body, capacity, hat, m_out, result);
}

/* The rows that are measured of a message in bf16 (aq_codec_measured_row), whatever the other measures take. */
static void stored_piece(uint32_t piece, void *context)
{
    const struct aq_codec_encoder *job = context;
    struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    float *m = codec->scratch[piece].levels;
    uint32_t first, end;
    aq_codec_piece(codec, piece, &first, &end);
    for (uint32_t row = first; row < end; row++) {
        if (!aq_codec_is_measured(codec->rows, row)) continue;
        codec->kernels->expand(job->m_out + row * aq_codec_row_bytes(codec), aq_precision_row(codec->store), n, m);
        aq_store_measure_row(codec, row, job->a + row * n, m);
    }
}

/*
 * The error of a message in bf16, whose rounding is up to 2^-9 of a value, not of its change: late in a run, when
 * changes are small, it is the larger error. That of fp16 is 2^-12, and is left out.
 */
static double stored_error2(struct aq_codec_encoder *job)
{
    aq_codec_run(job->codec, stored_piece, job);
    return aq_store_error2(job->codec);
}

/* With m and m' in codec->store. */
static enum aq_status encode_values(struct aq_codec *codec, const float *a, const void *m, const struct aq_rng_key *key,
                                    void *body, float *hat, void *m_out, struct aq_codec_result *result)
{
    const bool warm = aq_codec_keeps(codec);
    const bool plain = codec->member->encode == NULL || (warm && m == NULL);
    const bool one = hat != NULL && hat == m_out && warm && codec->store == AQ_PRECISION_FP32;
    const bool last = hat == a; /* rows of a would be gone when a later row forces the sample to be raw */
    if (!plain && codec->config.rounding != AQ_ROUND_NEAREST && key == NULL)
        return aq_fail(AQ_INVAL, "codec", "stochastic rounding needs a random key");
    struct aq_codec_encoder job = {.codec = codec,
                                   .a = a,
                                   .m = warm ? m : NULL,
                                   .key = key,
                                   .body = body,
                                   .hat = last || one ? NULL : hat,
                                   .m_out = warm ? m_out : NULL,
                                   .factor = 1.0};
    if (last && m != NULL && m == m_out) memcpy(codec->old, m, (size_t)codec->layout.message_bytes);
    if (!(plain ? encode_cold(&job) : codec->member->encode(&job))) {
        if (one) job.hat = hat;
        encode_raw(&job, result);
        return AQ_OK;
    }
    *result = (struct aq_codec_result){
        .body_bytes = (uint32_t)(job.body_bytes > 0 ? job.body_bytes : aq_codec_body_bytes(codec, plain)),
        .flags = plain && warm ? AQ_CODED_KEYFRAME : 0,
        .sum_a = fold(&job, offsetof(struct aq_codec_sums, a), job.factor),
        .sum_a2 = fold(&job, offsetof(struct aq_codec_sums, a2), job.factor),
        .sum_delta2 = fold(&job, offsetof(struct aq_codec_sums, delta2), job.factor),
        .sum_error2 = fold(&job, offsetof(struct aq_codec_sums, error2), job.factor),
    };
    if (result->sum_error2 < 0.0) result->sum_error2 = 0.0; /* escapes: a difference of what is rounded */
    result->sum_stored2 = result->sum_error2;
    if (job.m_out != NULL && codec->store == AQ_PRECISION_BF16)
        result->sum_stored2 = stored_error2(&job);
    if (!last) return AQ_OK;
    const void *old = m != NULL && m == m_out ? codec->old : m;
    return aq_codec_decode_here(codec, body, result->body_bytes, result->flags, old, hat, NULL);
}

enum aq_status aq_codec_encode_here(struct aq_codec *codec, const float *a, const void *m,
                                    const struct aq_rng_key *key, void *body, size_t capacity, float *hat, void *m_out,
                                    struct aq_codec_result *result)
{
    if (capacity < codec->layout.bound)
        return aq_fail(AQ_NOSPC, "codec", "a body needs room for %llu bytes, there are %zu",
                       (unsigned long long)codec->layout.bound, capacity);
    if (!aq_store_is_q(codec)) return encode_values(codec, a, m, key, body, hat, m_out, result);
    float *old = (float *)(void *)codec->old, *x = hat == NULL || hat == a ? old : hat;
    bool good = m == NULL || aq_store_unpack(codec, m);
    if (good) AQ_TRY(encode_values(codec, a, m == NULL ? NULL : old, key, body, x, x, result));
    if (good && result->flags == AQ_CODED_RAW) return AQ_OK;
    good = good && (m_out == NULL || aq_store_pack(codec, x, m_out, a, &result->sum_stored2));
    struct aq_codec_encoder raw = {.codec = codec, .a = a, .m = m, .body = body, .hat = x};
    if (!good) encode_raw(&raw, result);
    if (hat == a && good) memcpy(hat, x, (size_t)codec->layout.values * sizeof *x);
    return AQ_OK;
}
