/*
 * codec_store.c -- streams of codes, and the rows of stored messages.
 *
 * The quantizer of Q8, Q4 and Q2 messages is a part of decode: both ends must get the same m' from the same x^. So its
 * scale is the row's largest magnitude, which is exact in any order (docs/FORMAT.md, stored messages).
 */
#include "codec_internal.h"

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

uint64_t aq_precision_bytes(enum aq_codec_precision precision, uint32_t rows, uint32_t columns)
{
    const uint64_t bits = aq_precision_bits(precision), values = (uint64_t)rows * columns;
    return (bits < 16 ? 4 * (uint64_t)rows : 0) + (values * bits + 7) / 8;
}

uint32_t aq_store_limit(enum aq_codec_precision precision)
{
    if (precision == AQ_PRECISION_FP16) return 0x477ff000u; /* 65520 */
    return precision == AQ_PRECISION_BF16 ? 0x7f7f8000u : 0x7f800000u;
}

bool aq_store_read_row(const struct aq_codec *codec, enum aq_codec_precision precision, const uint8_t *message,
                       uint32_t row, uint8_t *scratch, float *out)
{
    const uint32_t bits = aq_precision_bits(precision);
    const uint64_t values = codec->layout.values, first = (uint64_t)row * codec->columns;
    struct aq_quant quant;
    float s;
    memcpy(&s, message + 4 * (size_t)row, sizeof s);
    if (aq_bits_of(s) >= 0x7f800000u || !aq_quant_scale(AQ_GRID_MIDRISE, bits, 0, s, &quant)) return false;
    const uint8_t *codes =
        aq_code_read(codec->kernels, message + 4 * (size_t)codec->rows, bits, values, first, codec->columns, scratch);
    codec->kernels->levels(codes, codec->columns, &quant, out);
    return true;
}

bool aq_store_write_q(const struct aq_codec *codec, enum aq_codec_precision precision, uint8_t *message, uint32_t row,
                      const float *x, float *scratch, struct aq_code_writer *writer)
{
    const uint32_t bits = aq_precision_bits(precision);
    struct aq_span span;
    struct aq_quant quant;
    codec->kernels->span(x, codec->columns, &span);
    float s = aq_float_of(span.peak); /* what m loses is a part of the next delta: nothing is clipped */
    if (!aq_quant_scale(AQ_GRID_MIDRISE, bits, 0, s, &quant)) return false;
    if (quant.inverse == 0.0f) { /* too small for a step: all zero */
        s = 0.0f;
        (void)aq_quant_scale(AQ_GRID_MIDRISE, bits, 0, s, &quant);
    }
    memcpy(message + 4 * (size_t)row, &s, sizeof s);
    codec->kernels->quantize(x, codec->columns, &quant, NULL, aq_code_writer_row(writer), scratch, NULL);
    aq_code_writer_push(writer, codec->columns);
    return true;
}
