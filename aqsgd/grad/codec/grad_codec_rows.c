/*
 * grad_codec_rows.c -- what the quantizers and the plain formats share: a range as rows of at most AQ_GRAD_ROW floats.
 *
 * A bucket longer than a row is looked at twice: once for its scale, once for its codes. The codes of a range are one
 * bit stream; the writer carries up to seven codes from row to row.
 */
#include <math.h>

#include "grad_internal.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* y = x + error in place of error; without an error y is x. */
static const float *add_error(const struct aq_grad_codec *codec, const float *x, float *error, uint64_t n)
{
    if (!error) return x;
    codec->kernels->take_error(x, (size_t)n, error);
    return error;
}

static void push_zeros(struct aq_code_writer *writer, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += AQ_GRAD_ROW) {
        const size_t row = (size_t)least(n - at, AQ_GRAD_ROW);
        memset(aq_code_writer_row(writer), 0, row);
        aq_code_writer_push(writer, row);
    }
}

static void encode_bucket(const struct aq_grad_codec *codec, const float *y, float *error, uint64_t n,
                          uint8_t **scale_at, struct aq_code_writer *writer)
{
    struct aq_quant quant;
    float levels[AQ_GRAD_ROW + AQ_CODEC_PAD / 4], scale;
    if (!codec->kind->choose(codec, y, n, &scale) || !codec->kind->quantizer(codec, scale, &quant)) {
        aq_grad_put_scale(scale_at, INFINITY); /* decode refuses it; error holds what was not finite */
        push_zeros(writer, n);
        return;
    }
    aq_grad_put_scale(scale_at, scale);
    for (uint64_t at = 0; at < n; at += AQ_GRAD_ROW) {
        const size_t row = (size_t)least(n - at, AQ_GRAD_ROW);
        codec->rows->quantize(y + at, row, &quant, NULL, aq_code_writer_row(writer), levels, NULL);
        if (error) codec->kernels->leave_error(y + at, levels, row, error + at);
        aq_code_writer_push(writer, row);
    }
}

void aq_grad_rows_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                         float *error)
{
    uint8_t scratch[8 + AQ_GRAD_ROW + AQ_CODEC_PAD];
    struct aq_code_writer writer;
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    uint8_t *scale_at = range->scales;
    aq_code_writer_init(&writer, codec->rows, scratch, range->codes, codec->config.bits);
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        if (run.padding) {
            push_zeros(&writer, run.count);
            continue;
        }
        const uint64_t bucket = codec->config.bucket ? codec->config.bucket : run.count;
        for (uint64_t at = 0; at < run.count; at += bucket) {
            const uint64_t n = least(run.count - at, bucket);
            float *e = error ? error + run.offset + at : NULL;
            encode_bucket(codec, add_error(codec, x + run.offset + at, e, n), e, n, &scale_at, &writer);
        }
    }
    aq_code_writer_flush(&writer);
}

enum aq_status aq_grad_rows_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                   bool add, float *sum)
{
    uint8_t scratch[16 + AQ_GRAD_ROW + AQ_CODEC_PAD];
    float levels[AQ_GRAD_ROW + AQ_CODEC_PAD / 4];
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    const uint8_t *scale_at = range->scales;
    aq_grad_runs_init(&runs, codec, range->first, range->count);
    while (aq_grad_runs_next(&runs, &run)) {
        float *to = sum + run.offset;
        if (run.padding) {
            if (!add) memset(to, 0, (size_t)run.count * sizeof *to);
            continue;
        }
        const uint64_t bucket = codec->config.bucket ? codec->config.bucket : run.count;
        struct aq_quant quant;
        for (uint64_t at = 0, row; at < run.count; at += row) {
            if (at % bucket == 0) {
                const float scale = aq_grad_get_scale(&scale_at);
                if (!aq_grad_scale_valid(scale) || !codec->kind->quantizer(codec, scale, &quant))
                    return aq_fail(AQ_CORRUPT, "grad", "the scale of float %llu is %g, which is not valid",
                                   (unsigned long long)(range->first + run.offset + at), (double)scale);
            }
            row = least(least(run.count - at, bucket - at % bucket), AQ_GRAD_ROW);
            const uint8_t *codes = aq_code_read(codec->rows, range->codes, codec->config.bits, range->count,
                                                run.offset + at, (size_t)row, scratch);
            codec->rows->levels(codes, (size_t)row, &quant, levels);
            codec->kernels->accumulate(levels, (size_t)row, weight, add, to + at);
        }
    }
    return AQ_OK;
}

/* fp16 has no value beyond. */
static void clamp_half(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = values[i] > 65504.0f ? 65504.0f : values[i] < -65504.0f ? -65504.0f : values[i];
}

void aq_grad_plain_encode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, const float *x,
                          float *error)
{
    const enum aq_row_kind kind = codec->kind->values;
    const size_t bytes = kind == AQ_ROW_FP32 ? 4 : 2;
    float values[AQ_GRAD_ROW + AQ_CODEC_PAD / 4];
    for (uint64_t at = 0; at < range->count; at += AQ_GRAD_ROW) {
        const size_t n = (size_t)least(range->count - at, AQ_GRAD_ROW);
        uint8_t *out = range->codes + at * bytes;
        const float *y = add_error(codec, x + at, error ? error + at : NULL, n);
        if (kind == AQ_ROW_FP16) {
            memcpy(values, y, n * sizeof *values);
            clamp_half(values, n);
        }
        (void)codec->rows->update(NULL, AQ_ROW_NONE, kind == AQ_ROW_FP16 ? values : y, n, NULL, out, kind);
        if (!error) continue;
        codec->rows->expand(out, kind, n, values);
        codec->kernels->leave_error(y, values, n, error + at);
    }
}

enum aq_status aq_grad_plain_decode(const struct aq_grad_codec *codec, const struct aq_grad_range *range, float weight,
                                    bool add, float *sum)
{
    const enum aq_row_kind kind = codec->kind->values;
    const size_t bytes = kind == AQ_ROW_FP32 ? 4 : 2;
    float values[AQ_GRAD_ROW + AQ_CODEC_PAD / 4];
    for (uint64_t at = 0; at < range->count; at += AQ_GRAD_ROW) {
        const size_t n = (size_t)least(range->count - at, AQ_GRAD_ROW);
        codec->rows->expand(range->codes + at * bytes, kind, n, values);
        codec->kernels->accumulate(values, n, weight, add, sum + at);
    }
    return AQ_OK;
}
