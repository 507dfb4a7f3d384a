/*
 * grad_tables.c -- the places of the pieces and buckets of a range, for the kernels of cuda_grad_codec.cu.
 */
#include <math.h>

#include "cuda_grad.h"
#include "grad_internal.h"

/* Called twice: to count, with tables NULL, and to write. */
struct tables {
    struct aq_cuda_grad_piece *pieces;
    struct aq_cuda_grad_bucket *buckets;
    uint32_t piece_count, bucket_count;
};

static bool has_scales(const struct aq_grad_codec *codec)
{
    return codec->kind->scales != aq_grad_scales_none;
}

/* The buckets of the piece at `at` of the range, whose bytes start at wire_at. */
static void lay_piece(const struct aq_grad_codec *codec, uint64_t first, uint64_t at, uint64_t count, uint64_t wire_at,
                      struct tables *out)
{
    struct aq_grad_runs runs;
    struct aq_grad_run run;
    if (!has_scales(codec)) return;
    aq_grad_runs_init(&runs, codec, first + at, count);
    while (aq_grad_runs_next(&runs, &run)) {
        const uint64_t bucket = codec->config.bucket == 0 || run.padding ? run.count : codec->config.bucket;
        for (uint64_t from = 0; from < run.count; from += bucket) {
            const uint64_t n = run.count - from < bucket ? run.count - from : bucket;
            const uint64_t to_byte = (8 - (run.offset + from) % 8) % 8;
            if (out->buckets != NULL)
                out->buckets[out->bucket_count] =
                    (struct aq_cuda_grad_bucket){.offset = at + run.offset + from,
                                                 .count = n,
                                                 .scale_at = wire_at,
                                                 .head = (uint32_t)(n < to_byte ? n : to_byte),
                                                 .padding = run.padding};
            if (!run.padding) wire_at += sizeof(float);
            out->bucket_count++;
        }
    }
}

static void lay_out(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, struct tables *out)
{
    uint64_t wire_at = 0;
    for (uint64_t at = 0; at < count; at += AQ_GRAD_PIECE) {
        const uint64_t n = count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE;
        const uint64_t bytes = aq_grad_codec_bytes(codec, first + at, n);
        const uint64_t bits = aq_grad_code_bits(codec), codes = n / 8 * bits + (n % 8 * bits + 7) / 8;
        const uint32_t buckets = out->bucket_count;
        lay_piece(codec, first, at, n, wire_at, out);
        if (out->pieces != NULL)
            out->pieces[out->piece_count] = (struct aq_cuda_grad_piece){
                .codes_at = wire_at + bytes - codes, .count = (uint32_t)n, .first = buckets, .last = out->bucket_count};
        out->piece_count++;
        wire_at += bytes;
    }
}

static enum aq_status check(const struct aq_grad_codec *codec, uint64_t first, uint64_t count)
{
    if (first > codec->parameters || count > codec->parameters - first)
        return aq_fail(AQ_INVAL, "grad", "floats %llu + %llu exceed a buffer of %llu", (unsigned long long)first,
                       (unsigned long long)count, (unsigned long long)codec->parameters);
    return aq_grad_codec_config_check_device(&codec->config);
}

enum aq_status aq_cuda_grad_tables_bytes(const struct aq_grad_codec *codec, uint64_t first, uint64_t count,
                                         size_t *bytes)
{
    struct tables tables = {0};
    AQ_TRY(check(codec, first, count));
    lay_out(codec, first, count, &tables);
    *bytes =
        tables.piece_count * sizeof *tables.pieces + tables.bucket_count * (sizeof *tables.buckets + 2 * sizeof(float));
    return AQ_OK;
}

/* The kernels' name of the kind, and the grid that quantizes it. */
static void kind_of(const struct aq_grad_codec *codec, struct aq_cuda_grad_tables *out)
{
    const struct aq_grad_codec_config *config = &codec->config;
    struct aq_quant quant;
    out->kind = codec->kind->gpu;
    out->bits = aq_grad_code_bits(codec);
    out->squares = config->scale != NULL && strcmp(config->scale, "l2") == 0;
    out->norm = config->norm;
    if (!codec->kind->grid) return;
    const enum aq_codec_grid grid = codec->kind->grid(config);
    aq_quant_grid(grid, config->bits, &quant);
    out->grid = (uint32_t)grid;
    out->half = quant.half;
    out->low = quant.low;
    out->high = quant.high;
}

enum aq_status aq_cuda_grad_tables_fill(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, void *memory,
                                        struct aq_cuda_grad_tables *out)
{
    struct tables counted = {0};
    AQ_TRY(check(codec, first, count));
    lay_out(codec, first, count, &counted);
    *out = (struct aq_cuda_grad_tables){
        .count = count, .piece_count = counted.piece_count, .bucket_count = counted.bucket_count};
    kind_of(codec, out);
    struct tables tables = {.pieces = memory};
    tables.buckets = (struct aq_cuda_grad_bucket *)(tables.pieces + counted.piece_count);
    lay_out(codec, first, count, &tables);
    AQ_ASSERT(tables.piece_count == counted.piece_count && tables.bucket_count == counted.bucket_count);
    aq_cuda_grad_tables_at(out, memory);
    return AQ_OK;
}

void aq_cuda_grad_tables_at(struct aq_cuda_grad_tables *tables, void *memory)
{
    struct aq_cuda_grad_piece *pieces = memory;
    struct aq_cuda_grad_bucket *buckets = (struct aq_cuda_grad_bucket *)(pieces + tables->piece_count);
    tables->pieces = pieces;
    tables->buckets = buckets;
    tables->steps = (float *)(buckets + tables->bucket_count);
}
