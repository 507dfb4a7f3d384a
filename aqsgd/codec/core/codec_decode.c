/*
 * codec_decode.c -- the receiver: from a body to x^ and m', by exact arithmetic (docs/FORMAT.md).
 *
 * Bytes come from outside. The lengths, all scales and all positions are checked before anything is written; what can
 * only be seen underway (x^ beyond what the store holds) leaves m_out in ruins and answers AQ_CORRUPT: the caller drops
 * that sample.
 */
#include "codec_member.h"

static const char *const BEYOND =
    "a value, or the reference that it is added to, is outside the range that can be stored";

/* x^ of a plain or keyframe row, then hat and m_out. */
static bool plain_row(const struct aq_codec_decoder *job, enum aq_codec_precision precision, uint32_t piece,
                      uint32_t row)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const enum aq_row_kind kind = aq_precision_row(precision);
    const bool cold = aq_codec_keeps(codec);
    const size_t n = codec->columns;
    if (kind == AQ_ROW_NONE) {
        if (!aq_store_read_row(codec, precision, job->body, row, scratch->codes, scratch->levels)) return false;
    } else {
        const size_t bytes = n * (aq_precision_bits(precision) / 8);
        codec->kernels->expand(job->body + row * bytes, kind, n, scratch->levels);
    }
    const bool direct = cold && job->m_out != NULL;
    const enum aq_row_kind out_kind = direct ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    uint8_t *out = direct ? job->m_out + row * aq_codec_row_bytes(codec) : NULL;
    float *hat = job->hat == NULL ? NULL : job->hat + row * n;
    const uint32_t peak = codec->kernels->update(NULL, AQ_ROW_NONE, scratch->levels, n, hat, out, out_kind);
    return peak < aq_store_limit(cold ? codec->store : AQ_PRECISION_FP32);
}

static void plain_piece(uint32_t piece, void *context)
{
    struct aq_codec_decoder *job = context;
    const struct aq_codec *codec = job->codec;
    const bool cold = aq_codec_keeps(codec);
    uint32_t first, end;
    aq_codec_piece(codec, piece, &first, &end);
    for (uint32_t row = first; row < end; row++) {
        job->failed[piece] = !plain_row(job, cold ? codec->config.keyframe : codec->config.raw, piece, row);
        if (job->failed[piece]) return;
    }
}

/* The quantizers of a row's groups; the scales have been checked. */
static bool row_quants(const struct aq_codec_decoder *job, uint32_t piece, uint32_t row, const struct aq_quant **quants)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_layout *layout = &codec->layout;
    struct aq_quant *out = codec->scratch[piece].quants;
    const bool rowwise = codec->config.group == AQ_PER_ROW || codec->config.group == AQ_PER_TILE;
    *quants = rowwise ? out : codec->quants;
    if (!rowwise) return true;
    bool good = true;
    for (uint32_t g = 0; g < layout->groups_row; g++) {
        const uint64_t group = (uint64_t)row * layout->groups_row + g;
        good = aq_scale_read(&codec->config, job->body + group * layout->scale_bytes, &out[g]) && good;
    }
    return good;
}

/* A row with one quantizer: as much as possible straight from the stream, the rest by way of scratch. */
static uint32_t apply_row(const struct aq_codec_decoder *job, const struct aq_codec_scratch *scratch, uint32_t row,
                          const struct aq_quant *quant, const uint8_t *m, float *hat, uint8_t *out,
                          enum aq_row_kind kind, enum aq_row_kind out_kind)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_kernels *kernels = codec->kernels;
    const size_t n = codec->columns;
    const uint64_t first = (uint64_t)row * n;
    const uint8_t *stream = job->body + codec->layout.codes_at;
    size_t done = 0;
    uint32_t peak = 0;
    if (kernels->apply_stream != NULL && first % 8 == 0) {
        const uint64_t at = first / 8 * quant->bits;
        const size_t bytes = (size_t)(codec->layout.body_bytes - codec->layout.codes_at - at);
        done = kernels->apply_stream(stream + at, bytes, n, quant, m, hat, out, kind, out_kind, &peak);
    }
    if (done == n) return peak;
    const size_t in_bytes = kind == AQ_ROW_NONE ? 0 : kind == AQ_ROW_FP32 ? 4 : 2;
    const size_t out_bytes = out_kind == AQ_ROW_NONE ? 0 : out_kind == AQ_ROW_FP32 ? 4 : 2;
    const uint8_t *codes =
        aq_code_read(kernels, stream, quant->bits, codec->layout.values, first + done, n - done, scratch->codes);
    const uint32_t rest =
        kernels->apply(codes, n - done, quant, m == NULL ? NULL : m + done * in_bytes, hat == NULL ? NULL : hat + done,
                       out == NULL ? NULL : out + done * out_bytes, kind, out_kind);
    return peak > rest ? peak : rest;
}

static bool dense_row(const struct aq_codec_decoder *job, uint32_t piece, uint32_t row)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_scratch *scratch = &codec->scratch[piece];
    const bool warm = aq_codec_keeps(codec);
    const size_t n = codec->columns;
    const struct aq_quant *quants;
    const enum aq_row_kind kind = warm ? aq_precision_row(codec->store) : AQ_ROW_NONE;
    const enum aq_row_kind out_kind = job->m_out == NULL ? AQ_ROW_NONE : kind;
    const void *m = warm ? job->m + row * aq_codec_row_bytes(codec) : NULL;
    uint8_t *out = out_kind == AQ_ROW_NONE ? NULL : job->m_out + row * aq_codec_row_bytes(codec);
    float *hat = job->hat == NULL ? NULL : job->hat + row * n;
    uint32_t peak;
    if (!job->scale(job, piece, row, &quants)) return false;
    if (codec->layout.groups_row == 1 && !codec->config.hadamard) {
        peak = apply_row(job, scratch, row, quants, m, hat, out, kind, out_kind);
    } else {
        const uint8_t *codes = aq_code_read(codec->kernels, job->body + codec->layout.codes_at, codec->config.bits,
                                            codec->layout.values, (uint64_t)row * n, n, scratch->codes);
        for (uint32_t g = 0; g < codec->layout.groups_row; g++) {
            uint32_t from = g, to = g + 1;
            if (codec->config.group != AQ_PER_CHANNEL) aq_codec_span_of(codec, g, &from, &to);
            codec->kernels->levels(codes + from, to - from, &quants[g], scratch->levels + from);
        }
        if (codec->config.hadamard) codec->kernels->rotate(scratch->levels, n, codec->config.tile);
        peak = codec->kernels->update(m, kind, scratch->levels, n, hat, out, out_kind);
    }
    return peak < aq_store_limit(warm ? codec->store : AQ_PRECISION_FP32);
}

static void dense_piece(uint32_t piece, void *context)
{
    struct aq_codec_decoder *job = context;
    uint32_t first, end;
    aq_codec_piece(job->codec, piece, &first, &end);
    for (uint32_t row = first; row < end; row++) {
        job->failed[piece] = !dense_row(job, piece, row);
        if (job->failed[piece]) return;
    }
}

static void decode_sparse(const struct aq_codec_decoder *job)
{
    const struct aq_codec *codec = job->codec;
    const struct aq_codec_layout *layout = &codec->layout;
    const struct aq_codec_scratch *scratch = &codec->scratch[0];
    const size_t n = codec->columns;
    struct aq_position_reader positions;
    uint64_t done = 0;
    aq_position_reader_init(&positions, layout, job->body + layout->positions_at);
    uint64_t element = aq_position_read(&positions);
    for (uint32_t row = 0; row < codec->rows; row++) {
        const struct aq_quant *quants;
        const uint64_t begin = (uint64_t)row * n;
        uint32_t count = 0;
        float *hat = job->hat + begin;
        (void)row_quants(job, 0, row, &quants); /* checked before */
        memset(hat, 0, n * sizeof *hat);
        while (element < begin + n) {
            scratch->columns[count++] = (uint32_t)(element - begin);
            element = aq_position_read(&positions);
        }
        const uint8_t *codes = aq_code_read(codec->kernels, job->body + layout->codes_at, codec->config.bits,
                                            layout->kept, done, count, scratch->codes);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t c = scratch->columns[i];
            const uint32_t g = codec->config.group == AQ_PER_TILE ? c / codec->config.tile : 0;
            codec->kernels->levels(codes + i, 1, &quants[g], hat + c);
        }
        done += count;
    }
}

/* Every scale of a body. Whole-sample groups leave their quantizers in codec->quants. */
static bool check_scales(struct aq_codec *codec, const uint8_t *body)
{
    const struct aq_codec_layout *layout = &codec->layout;
    const bool rowwise = codec->config.group == AQ_PER_ROW || codec->config.group == AQ_PER_TILE;
    if (rowwise && codec->config.scale_format == AQ_SCALE_FP16) { /* 256 * unit is finite for any of them */
        bool wrong = false;
        for (uint32_t g = 0; g < layout->groups; g++) { /* the upper bytes, as aq_scale_half_to takes them */
            const uint32_t upper = (uint32_t)body[2 * (size_t)g + 1];
            wrong |= (upper & 0x7fu) >= 0x7cu || upper - 0x80u < 0x3cu;
        }
        return !wrong;
    }
    bool good = true;
    for (uint32_t g = 0; g < layout->groups; g++) {
        struct aq_quant unused;
        struct aq_quant *quant = rowwise ? &unused : &codec->quants[g];
        good = aq_scale_read(&codec->config, body + (uint64_t)g * layout->scale_bytes, quant) && good;
    }
    return good;
}

static enum aq_status run_pieces(struct aq_codec_decoder *job, void (*run)(uint32_t piece, void *context))
{
    bool failed = false;
    aq_codec_run(job->codec, run, job);
    for (uint32_t piece = 0; piece < job->codec->pieces; piece++)
        failed = failed || job->failed[piece];
    return failed ? aq_codec_corrupt(BEYOND) : AQ_OK;
}

enum aq_status aq_codec_decode_rows(struct aq_codec_decoder *job, aq_codec_scale_take *scale)
{
    job->scale = scale;
    return run_pieces(job, dense_piece);
}

enum aq_status aq_quantizer_decode(struct aq_codec_decoder *job)
{
    const struct aq_codec_layout *layout = &job->codec->layout;
    if (!check_scales(job->codec, job->body)) return aq_codec_corrupt("a scale is negative, infinite or not a number");
    if (layout->positions_bytes == 0) return aq_codec_decode_rows(job, row_quants);
    if (!aq_position_check(layout, job->body + layout->positions_at))
        return aq_codec_corrupt("the positions are not valid");
    if (job->hat != NULL) decode_sparse(job);
    return AQ_OK;
}

enum aq_status aq_codec_decode(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                               const void *m, float *hat, void *m_out, struct aq_stream *stream)
{
    if (codec->staging) return aq_codec_decode_staged(codec, body, body_bytes, flags, m, hat, m_out, stream);
    return aq_codec_decode_here(codec, body, body_bytes, flags, m, hat, m_out);
}

/* With m and m' in codec->store. */
static enum aq_status decode_values(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                                    const void *m, float *hat, void *m_out)
{
    const struct aq_codec_layout *layout = &codec->layout;
    const bool keeps = aq_codec_keeps(codec);
    struct aq_codec_decoder job = {
        .codec = codec, .body = body, .body_bytes = body_bytes, .hat = hat};
    if (keeps) job.m = m, job.m_out = m_out;
    if (flags != 0 && flags != AQ_CODED_RAW && !(keeps && flags == AQ_CODED_KEYFRAME))
        return aq_codec_corrupt("it has flags that this codec never sets");
    if (flags == AQ_CODED_RAW) {
        if (body_bytes != 4 * layout->values) return aq_codec_corrupt("a raw body has the wrong length");
        if (hat != NULL) memcpy(hat, body, body_bytes);
        return AQ_OK;
    }
    if (keeps && hat != NULL && hat == m_out && codec->store == AQ_PRECISION_FP32) job.hat = NULL; /* m' is x^ */
    const bool keyframe = flags == AQ_CODED_KEYFRAME;
    const bool varies = aq_codec_varies(codec, keyframe);
    if (!varies && body_bytes != aq_codec_body_bytes(codec, keyframe))
        return aq_codec_corrupt("its length is wrong for its kind");
    if (keyframe) job.m = NULL;
    if (keyframe && varies) return aq_ec_decode(&job);
    if (keyframe || codec->member->decode == NULL) return run_pieces(&job, plain_piece);
    if (keeps && m == NULL) return aq_fail(AQ_INVAL, "codec", "a delta came for a sample without a reference");
    return codec->member->decode(&job);
}

enum aq_status aq_codec_decode_here(struct aq_codec *codec, const void *body, size_t body_bytes, uint32_t flags,
                                    const void *m, float *hat, void *m_out)
{
    if (!aq_store_is_q(codec)) return decode_values(codec, body, body_bytes, flags, m, hat, m_out);
    float *old = (float *)(void *)codec->old, *x = hat == NULL ? old : hat;
    const bool warm = flags == 0 && m != NULL;
    if (warm && !aq_store_unpack(codec, m)) return aq_codec_corrupt(BEYOND);
    AQ_TRY(decode_values(codec, body, body_bytes, flags, warm ? old : NULL, x, x));
    if (flags == AQ_CODED_RAW || m_out == NULL || aq_store_pack(codec, x, m_out, NULL, NULL)) return AQ_OK;
    return aq_codec_corrupt(BEYOND);
}
