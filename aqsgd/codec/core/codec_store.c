/*
 * codec_store.c -- streams of codes, and stored messages in Q8, Q4 and Q2.
 *
 * Their quantizer is a part of decode: both ends must get the same m' from the same x^. So a scale is the largest
 * magnitude of its row or channel, which is exact in any order (docs/FORMAT.md, stored messages). A sample is coded as
 * if its message were fp32: m is unpacked before, m' is packed after.
 */
#include "codec_scalar.h"

void aq_code_writer_init(struct aq_code_writer *writer, const struct aq_codec_kernels *kernels, uint8_t *scratch,
                         uint8_t *out, uint32_t bits)
{
    *writer = (struct aq_code_writer){.kernels = kernels, .codes = scratch, .out = out, .bits = bits};
}

void aq_code_writer_push(struct aq_code_writer *writer, size_t n)
{
    const size_t have = writer->carried + n, units = have / 8;
    writer->kernels->pack(writer->codes, units, writer->bits, writer->out);
    writer->out += units * writer->bits;
    writer->carried = (uint32_t)(have % 8);
    memmove(writer->codes, writer->codes + 8 * units, writer->carried);
}

void aq_code_writer_flush(struct aq_code_writer *writer)
{
    uint8_t last[8] = {0}, unit[8];
    if (writer->carried == 0) return;
    memcpy(last, writer->codes, writer->carried);
    writer->kernels->pack(last, 1, writer->bits, unit);
    const size_t bytes = (writer->carried * writer->bits + 7) / 8;
    memcpy(writer->out, unit, bytes);
    writer->out += bytes;
    writer->carried = 0;
}

const uint8_t *aq_code_read(const struct aq_codec_kernels *kernels, const uint8_t *stream, uint32_t bits,
                            uint64_t total, uint64_t first, size_t n, uint8_t *scratch)
{
    const uint64_t unit = first / 8, end = (first + n + 7) / 8, whole = total / 8;
    const uint64_t full = end < whole ? end : whole;
    if (full > unit) kernels->unpack(stream + unit * bits, (size_t)(full - unit), bits, scratch);
    if (end > full) { /* the last, partial unit of the stream: fewer than `bits` bytes */
        uint8_t padded[8] = {0};
        memcpy(padded, stream + full * bits, (size_t)((total % 8 * bits + 7) / 8));
        kernels->unpack(padded, 1, bits, scratch + 8 * (full - unit));
    }
    return scratch + first % 8;
}

uint32_t aq_precision_bits(enum aq_codec_precision precision)
{
    switch (precision) {
    case AQ_PRECISION_FP32:
        return 32;
    case AQ_PRECISION_FP16:
    case AQ_PRECISION_BF16:
        return 16;
    case AQ_PRECISION_Q8:
        return 8;
    case AQ_PRECISION_Q4:
        return 4;
    case AQ_PRECISION_Q2:
        return 2;
    default:
        return 0;
    }
}

enum aq_row_kind aq_precision_row(enum aq_codec_precision precision)
{
    switch (precision) {
    case AQ_PRECISION_FP32:
        return AQ_ROW_FP32;
    case AQ_PRECISION_FP16:
        return AQ_ROW_FP16;
    case AQ_PRECISION_BF16:
        return AQ_ROW_BF16;
    default:
        return AQ_ROW_NONE;
    }
}

uint64_t aq_precision_bytes(enum aq_codec_precision precision, uint64_t values, uint32_t scales)
{
    const uint64_t bits = aq_precision_bits(precision);
    return (bits < 16 ? 4 * (uint64_t)scales : 0) + (values * bits + 7) / 8;
}

uint32_t aq_store_limit(enum aq_codec_precision precision)
{
    if (precision == AQ_PRECISION_FP16) return 0x477ff000u; /* 65520 */
    return precision == AQ_PRECISION_BF16 ? 0x7f7f8000u : 0x7f800000u;
}

/* The quantizer of scale number `group` of a Q body or message; false for one that no sender writes. */
static bool scale_read(enum aq_codec_precision precision, const uint8_t *body, uint32_t group, struct aq_quant *quant)
{
    float s;
    memcpy(&s, body + 4 * (size_t)group, sizeof s);
    return aq_bits_of(s) < 0x7f800000u && aq_quant_scale(AQ_GRID_MIDRISE, aq_precision_bits(precision), 0, s, quant);
}

/* The scale of a group whose largest magnitude has these bits: what m loses is a part of the next delta, so that
 * nothing is clipped. */
static bool scale_write(enum aq_codec_precision precision, uint32_t peak, uint8_t *body, uint32_t group,
                        struct aq_quant *quant)
{
    const uint32_t bits = aq_precision_bits(precision);
    float s = aq_float_of(peak);
    if (!aq_quant_scale(AQ_GRID_MIDRISE, bits, 0, s, quant)) return false;
    if (quant->inverse == 0.0f) { /* too small for a step: all zero */
        s = 0.0f;
        (void)aq_quant_scale(AQ_GRID_MIDRISE, bits, 0, s, quant);
    }
    memcpy(body + 4 * (size_t)group, &s, sizeof s);
    return true;
}

bool aq_store_read_row(const struct aq_codec *codec, enum aq_codec_precision precision, const uint8_t *body,
                       uint32_t row, uint8_t *scratch, float *out)
{
    const uint64_t first = (uint64_t)row * codec->columns;
    struct aq_quant quant;
    if (!scale_read(precision, body, row, &quant)) return false;
    const uint8_t *codes = aq_code_read(codec->kernels, body + 4 * (size_t)codec->rows, aq_precision_bits(precision),
                                        codec->layout.values, first, codec->columns, scratch);
    codec->kernels->levels(codes, codec->columns, &quant, out);
    return true;
}

bool aq_store_write_row(const struct aq_codec *codec, enum aq_codec_precision precision, uint8_t *body, uint32_t row,
                        const float *x, float *levels, struct aq_code_writer *writer)
{
    struct aq_span span;
    struct aq_quant quant;
    codec->kernels->span(x, codec->columns, &span);
    if (!scale_write(precision, span.peak, body, row, &quant)) return false;
    codec->kernels->quantize(x, codec->columns, &quant, NULL, aq_code_writer_row(writer), levels, NULL);
    aq_code_writer_push(writer, codec->columns);
    return true;
}

/* ---- messages in Q ---- */

struct message_job {
    struct aq_codec *codec;
    uint8_t *message;
    float *x;
    const float *a; /* pack: what the sample is, for the error of what is kept; NULL: nobody asks for it */
    bool failed[AQ_CODEC_PIECES_MAX];
};

static bool by_channel(const struct aq_codec *codec)
{
    return codec->config.store_group == AQ_PER_CHANNEL;
}

static uint8_t *message_codes(const struct message_job *job)
{
    return job->message + 4 * (size_t)(by_channel(job->codec) ? job->codec->columns : job->codec->rows);
}

/* Every piece; false where one failed. */
static bool run_pieces(struct message_job *job, void (*run)(uint32_t piece, void *context))
{
    bool failed = false;
    aq_codec_run(job->codec, run, job);
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++)
        failed = failed || job->failed[piece];
    return !failed;
}

static void unpack_piece(uint32_t piece, void *context)
{
    struct message_job *job = context;
    const struct aq_codec *codec = job->codec;
    const size_t n = codec->columns;
    uint8_t *scratch = codec->scratch[piece].codes;
    uint32_t first, end;
    aq_codec_piece(codec, piece, &first, &end);
    for (uint32_t row = first; row < end; row++) {
        float *out = job->x + row * n;
        if (!by_channel(codec)) {
            job->failed[piece] = !aq_store_read_row(codec, codec->config.store, job->message, row, scratch, out);
            if (job->failed[piece]) return;
            continue;
        }
        const uint8_t *codes = aq_code_read(codec->kernels, message_codes(job), aq_precision_bits(codec->config.store),
                                            codec->layout.values, row * n, n, scratch);
        for (size_t c = 0; c < n; c++)
            scalar_levels(codes + c, 1, &codec->quants[c], out + c);
    }
}

bool aq_store_unpack(struct aq_codec *codec, const void *message)
{
    struct message_job job = {
        .codec = codec, .message = (uint8_t *)(uintptr_t)message, .x = (float *)(void *)codec->old};
    for (uint32_t c = 0; by_channel(codec) && c < codec->columns; c++)
        if (!scale_read(codec->config.store, message, c, &codec->quants[c])) return false;
    return run_pieces(&job, unpack_piece);
}

/* The largest magnitude of each channel of a piece. */
static void peaks_piece(uint32_t piece, void *context)
{
    const struct message_job *job = context;
    const struct aq_codec *codec = job->codec;
    struct aq_span *spans = codec->scratch[piece].spans;
    uint32_t first, end;
    aq_codec_piece(codec, piece, &first, &end);
    memset(spans, 0, codec->columns * sizeof *spans);
    for (const float *x = job->x + (size_t)first * codec->columns; first < end; first++, x += codec->columns) {
        for (uint32_t c = 0; c < codec->columns; c++) {
            const uint32_t magnitude = aq_bits_of(x[c]) & 0x7fffffffu;
            spans[c].peak = magnitude > spans[c].peak ? magnitude : spans[c].peak;
        }
    }
}

/* Added up by halves, as warp_fold adds. */
static double lanes_fold(double lanes[AQ_LANES])
{
    for (int width = AQ_LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

void aq_store_measure_row(struct aq_codec *codec, uint32_t row, const float *a, const float *m)
{
    const size_t n = codec->columns, whole = n / AQ_LANES * AQ_LANES;
    double lanes[AQ_LANES] = {0};
    for (size_t i = 0; i < whole; i += AQ_LANES)
        for (size_t l = 0; l < AQ_LANES; l++)
            lanes[l] += ((double)a[i + l] - (double)m[i + l]) * ((double)a[i + l] - (double)m[i + l]);
    for (size_t i = whole; i < n; i++)
        lanes[i - whole] += ((double)a[i] - (double)m[i]) * ((double)a[i] - (double)m[i]);
    codec->stored[row] = lanes_fold(lanes);
}

double aq_store_error2(const struct aq_codec *codec)
{
    const uint32_t count = aq_codec_measured_rows(codec->rows);
    const double later = aq_codec_measured_weight(codec->rows);
    double lanes[AQ_LANES] = {0};
    for (uint32_t i = 0; i < count; i++)
        lanes[i % AQ_LANES] +=
            (i < AQ_MEASURE_EACH ? 1.0 : later) * codec->stored[aq_codec_measured_row(codec->rows, i)];
    return lanes_fold(lanes);
}

static void pack_piece(uint32_t piece, void *context)
{
    struct message_job *job = context;
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const uint32_t bits = aq_precision_bits(codec->config.store);
    const size_t n = codec->columns;
    struct aq_code_writer writer;
    uint32_t first, end;
    aq_codec_piece(codec, piece, &first, &end);
    aq_code_writer_init(&writer, codec->kernels, scratch->codes, message_codes(job) + first * n * bits / 8, bits);
    for (uint32_t row = first; row < end; row++) {
        const float *x = job->x + row * n;
        if (!by_channel(codec)) {
            job->failed[piece] = !aq_store_write_row(codec, codec->config.store, job->message, row, x, scratch->levels,
                                                     &writer);
            if (job->failed[piece]) return;
        } else {
            for (size_t c = 0; c < n; c++)
                scalar_quantize(x + c, 1, &codec->quants[c], NULL, aq_code_writer_row(&writer) + c, scratch->levels + c,
                                NULL);
            aq_code_writer_push(&writer, n);
        }
        if (job->a != NULL && aq_codec_is_measured(codec->rows, row))
            aq_store_measure_row(job->codec, row, job->a + row * n, scratch->levels);
    }
    aq_code_writer_flush(&writer);
}

bool aq_store_pack(struct aq_codec *codec, const float *x, void *message, const float *a, double *error2)
{
    struct message_job job = {.codec = codec, .message = message, .x = (float *)(uintptr_t)x, .a = a};
    if (by_channel(codec)) aq_codec_run(codec, peaks_piece, &job);
    for (uint32_t c = 0; by_channel(codec) && c < codec->columns; c++) {
        uint32_t peak = 0;
        for (uint32_t piece = 0; piece < codec->pieces; piece++)
            peak = codec->scratch[piece].spans[c].peak > peak ? codec->scratch[piece].spans[c].peak : peak;
        if (!scale_write(codec->config.store, peak, message, c, &codec->quants[c])) return false;
    }
    if (!run_pieces(&job, pack_piece)) return false;
    if (a != NULL) *error2 = aq_store_error2(codec);
    return true;
}
