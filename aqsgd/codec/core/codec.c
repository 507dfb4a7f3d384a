/*
 * codec.c -- configuration, layout and life of a codec.
 *
 * Invariant: everything that decode reads of a config is in aq_codec_config_digest, and nothing else is.
 */
#include "codec_internal.h"

#include <math.h>
#include <stdio.h>

void aq_codec_config_default(struct aq_codec_config *out, enum aq_codec_kind kind, uint32_t bits)
{
    *out = (struct aq_codec_config){
        .kind = kind,
        .raw = AQ_PRECISION_FP32,
        .bits = bits,
        .grid = AQ_GRID_MIDRISE,
        .group = AQ_PER_ROW,
        .tile = 64,
        /* In a closed loop what is clipped stays behind, visit after visit: docs/DECISIONS.md 0030. */
        .scale = bits >= 2 ? AQ_SCALE_ABSMAX : AQ_SCALE_AUTO,
        .scale_format = AQ_SCALE_FP16,
        .rounding = AQ_ROUND_NEAREST,
        /* Direct quantization is what gradients go through, and fp16 ends where their scales begin. */
        .prescale_log2 = kind == AQ_CODEC_DIRECTQ ? 16 : 0,
        .store = AQ_PRECISION_FP16,
        .keyframe = AQ_PRECISION_FP16,
    };
}

static bool sparse(const struct aq_codec_config *config)
{
    return config->kind == AQ_CODEC_DIRECTQ && config->top_k > 0.0f && config->top_k < 1.0f;
}

static bool tiled(const struct aq_codec_config *config)
{
    return config->group == AQ_PER_TILE || config->hadamard;
}

static enum aq_status refuse(const char *field, const char *may)
{
    return aq_fail(AQ_INVAL, "codec", "%s is not possible: %s", field, may);
}

static enum aq_status check_quantizer(const struct aq_codec_config *config)
{
    if (config->bits < 1 || config->bits > 8) return refuse("bits", "1 to 8");
    if (config->grid < AQ_GRID_MIDRISE || config->grid > AQ_GRID_SIGNED)
        return refuse("grid", "mid-rise, mid-tread or signed");
    if (config->grid == AQ_GRID_MIDTREAD && config->bits < 2)
        return refuse("grid mid-tread", "it needs 2 bits or more");
    if (config->group < AQ_PER_TENSOR || config->group > AQ_PER_TILE)
        return refuse("group", "tensor, row, channel or tile");
    if (tiled(config) && config->tile != 32 && config->tile != 64 && config->tile != 128)
        return refuse("tile", "32, 64 or 128");
    if (config->scale < AQ_SCALE_ABSMAX || config->scale > AQ_SCALE_AUTO)
        return refuse("scale", "absmax, rms, search or auto");
    if (config->scale_format < AQ_SCALE_FP16 || config->scale_format > AQ_SCALE_POW2)
        return refuse("scale_format", "fp16, bf16, fp32 or pow2");
    if (config->rounding != AQ_ROUND_NEAREST && config->rounding != AQ_ROUND_STOCHASTIC)
        return refuse("rounding", "nearest or stochastic");
    if (config->prescale_log2 < -AQ_CODEC_PRESCALE_MAX || config->prescale_log2 > AQ_CODEC_PRESCALE_MAX)
        return refuse("prescale_log2", "-64 to 64");
    return AQ_OK;
}

static enum aq_status check_kind(const struct aq_codec_config *config)
{
    switch (config->kind) {
    case AQ_CODEC_RAW:
        if (aq_precision_row(config->raw) == AQ_ROW_NONE) return refuse("raw", "fp32, fp16 or bf16");
        return AQ_OK;
    case AQ_CODEC_DIRECTQ:
        AQ_TRY(check_quantizer(config));
        if (!(config->top_k >= 0.0f && config->top_k <= 1.0f)) return refuse("top_k", "a fraction from 0 to 1");
        if (sparse(config) && config->hadamard)
            return refuse("top_k with hadamard", "a rotation leaves nothing sparse");
        if (sparse(config) && config->group == AQ_PER_CHANNEL)
            return refuse("top_k with group channel", "tensor, row or tile");
        return AQ_OK;
    case AQ_CODEC_AQSGD:
        AQ_TRY(check_quantizer(config));
        if (config->top_k != 0.0f && config->top_k != 1.0f) return refuse("top_k with aqsgd", "only with directq");
        if (config->store < AQ_PRECISION_FP32 || config->store > AQ_PRECISION_Q2)
            return refuse("store", "fp32, fp16, bf16, q8, q4 or q2");
        if (config->keyframe < AQ_PRECISION_FP32 || config->keyframe > AQ_PRECISION_Q8)
            return refuse("keyframe", "fp32, fp16, bf16 or q8");
        return AQ_OK;
    }
    return refuse("kind", "raw, directq or aqsgd");
}

enum aq_status aq_codec_config_check(const struct aq_codec_config *config, uint32_t rows, uint32_t columns)
{
    AQ_TRY(check_kind(config));
    if (rows < 1 || rows > AQ_CODEC_ROWS_MAX) return refuse("rows", "1 to 2^20");
    if (columns < 1 || columns > AQ_CODEC_COLUMNS_MAX) return refuse("columns", "1 to 2^20");
    if ((uint64_t)rows * columns > AQ_CODEC_VALUES_MAX) return refuse("rows times columns", "at most 2^29");
    return AQ_OK;
}

static uint32_t scale_bytes(enum aq_codec_scale_format format)
{
    return format == AQ_SCALE_FP32 ? 4 : format == AQ_SCALE_POW2 ? 1 : 2;
}

static void layout_positions(const struct aq_codec_config *config, struct aq_codec_layout *out)
{
    out->kept = (uint64_t)ceil((double)config->top_k * (double)out->values);
    out->kept = out->kept < 1 ? 1 : out->kept > out->values ? out->values : out->kept;
    for (uint64_t gap = out->values / out->kept; gap > 1; gap /= 2)
        out->low_bits++;
    const uint64_t bitmap = (out->values + 7) / 8;
    const uint64_t fano =
        (out->kept * out->low_bits + 7) / 8 + (out->kept + (out->values >> out->low_bits) + 1 + 7) / 8;
    out->bitmap = bitmap <= fano;
    out->positions_bytes = out->bitmap ? bitmap : fano;
}

void aq_codec_layout_of(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                        struct aq_codec_layout *out)
{
    *out = (struct aq_codec_layout){.values = (uint64_t)rows * columns};
    out->kept = out->values;
    out->groups_row = 1;
    if (config->kind == AQ_CODEC_RAW) {
        out->body_bytes = aq_precision_bytes(config->raw, rows, columns);
    } else {
        if (config->group == AQ_PER_CHANNEL) out->groups_row = columns;
        if (config->group == AQ_PER_TILE) out->groups_row = (columns + config->tile - 1) / config->tile;
        const bool rowwise = config->group == AQ_PER_ROW || config->group == AQ_PER_TILE;
        out->groups = rowwise ? rows * out->groups_row : out->groups_row;
        out->scale_bytes = scale_bytes(config->scale_format);
        out->positions_at = (uint64_t)out->groups * out->scale_bytes;
        if (sparse(config)) layout_positions(config, out);
        out->codes_at = out->positions_at + out->positions_bytes;
        out->body_bytes = out->codes_at + (out->kept * config->bits + 7) / 8;
    }
    if (config->kind == AQ_CODEC_AQSGD) {
        out->keyframe_bytes = aq_precision_bytes(config->keyframe, rows, columns);
        out->message_bytes = aq_precision_bytes(config->store, rows, columns);
    }
    out->bound = 4 * out->values;
    if (out->body_bytes > out->bound) out->bound = out->body_bytes;
    if (out->keyframe_bytes > out->bound) out->bound = out->keyframe_bytes;
}

uint64_t aq_codec_config_digest(const struct aq_codec_config *config)
{
    uint32_t words[12] = {1 /* of this layout of bodies */, (uint32_t)config->kind};
    if (config->kind == AQ_CODEC_RAW) {
        words[2] = (uint32_t)config->raw;
    } else {
        words[3] = config->bits;
        words[4] = (uint32_t)config->grid;
        words[5] = (uint32_t)config->group;
        words[6] = tiled(config) ? config->tile : 0;
        words[7] = (uint32_t)config->scale_format;
        words[8] = config->hadamard;
        words[9] = (uint32_t)config->prescale_log2;
        words[10] = sparse(config) ? aq_bits_of(config->top_k) : 0;
        if (config->kind == AQ_CODEC_AQSGD) words[11] = (uint32_t)config->store << 8 | (uint32_t)config->keyframe;
        if (config->kind == AQ_CODEC_AQSGD && config->store > AQ_PRECISION_Q8)
            words[11] |= 1u << 16; /* s of Q4 and Q2 is the row's maximum; it was smaller once */
    }
    uint8_t bytes[sizeof words]; /* little endian, so that both ends agree on any machine */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (size_t k = 0; k < 4; k++)
            bytes[4 * i + k] = (uint8_t)(words[i] >> (8 * k));
    }
    return aq_digest_seeded(bytes, sizeof bytes, UINT64_C(0x6171636f64656300)); /* "aqcodec" */
}

static const char *word_of(const char *const *words, int count, int index)
{
    return index >= 0 && index < count && words[index] != NULL ? words[index] : "?";
}

void aq_codec_config_text(const struct aq_codec_config *config, char *text, size_t bytes)
{
    static const char *const precisions[] = {NULL, "fp32", "fp16", "bf16", "q8", "q4", "q2"};
    static const char *const grids[] = {NULL, "mid-rise", "mid-tread", "signed"};
    static const char *const groups[] = {NULL, "tensor", "row", "channel", "tile"};
    static const char *const scales[] = {NULL, "absmax", "rms", "search", "auto"};
    static const char *const formats[] = {NULL, "fp16", "bf16", "fp32", "pow2"};
    static const char *const roundings[] = {NULL, "nearest", "stochastic"};
    char tile[32] = "", hadamard[32] = "", prescale[32] = "", tail[64] = "";
    if (bytes == 0) return;
    if (config->kind == AQ_CODEC_RAW) {
        snprintf(text, bytes, "raw %s", word_of(precisions, 7, (int)config->raw));
        return;
    }
    if (config->group == AQ_PER_TILE) snprintf(tile, sizeof tile, " %u", config->tile);
    if (config->hadamard) snprintf(hadamard, sizeof hadamard, " hadamard %u", config->tile);
    if (config->prescale_log2 != 0) snprintf(prescale, sizeof prescale, " prescale 2^%d", config->prescale_log2);
    if (config->kind == AQ_CODEC_AQSGD) {
        snprintf(tail, sizeof tail, " store %s keyframe %s", word_of(precisions, 7, (int)config->store),
                 word_of(precisions, 7, (int)config->keyframe));
    } else if (sparse(config)) {
        snprintf(tail, sizeof tail, " top %.4g", (double)config->top_k);
    }
    snprintf(text, bytes, "%s %u bits %s %s%s %s %s %s%s%s%s", config->kind == AQ_CODEC_AQSGD ? "aqsgd" : "directq",
             config->bits, word_of(grids, 4, (int)config->grid), word_of(groups, 5, (int)config->group), tile,
             word_of(formats, 5, (int)config->scale_format), word_of(scales, 5, (int)config->scale),
             word_of(roundings, 3, (int)config->rounding), hadamard, prescale, tail);
}

/* Called twice: to measure, and to cut the memory. */
static void place(struct aq_codec *codec, struct aq_arena *arena)
{
    const size_t row = (size_t)codec->columns * sizeof(float) + AQ_CODEC_PAD * sizeof(float);
    const size_t codes = (size_t)codec->columns + 2 * AQ_CODEC_PAD;
    const size_t groups_row = codec->layout.groups_row;
    const bool channel = codec->config.kind != AQ_CODEC_RAW && codec->config.group == AQ_PER_CHANNEL;
    const size_t errors = channel ? (size_t)AQ_CODEC_SHRINKS * codec->columns : AQ_CODEC_SHRINKS * AQ_LANES;
    for (uint32_t p = 0; p < codec->pieces; p++) {
        struct aq_codec_scratch *scratch = &codec->scratch[p];
        scratch->d = aq_arena_take(arena, row);         /* d, or kept values */
        scratch->levels = aq_arena_take(arena, row);    /* deq of a row */
        scratch->reference = aq_arena_take(arena, row); /* m of a row where the kernels cannot read it */
        scratch->noise = aq_arena_take(arena, row);     /* u of a row */
        scratch->error = aq_arena_take(arena, errors * sizeof(float));
        scratch->spans = aq_arena_take(arena, groups_row * sizeof *scratch->spans);
        scratch->quants = aq_arena_take(arena, groups_row * sizeof *scratch->quants);
        scratch->columns = aq_arena_take(arena, row);
        scratch->codes = aq_arena_take(arena, codes);
        scratch->codes_store = aq_arena_take(arena, codes);
    }
    codec->spans = aq_arena_take(arena, groups_row * sizeof *codec->spans);
    codec->quants = aq_arena_take(arena, groups_row * sizeof *codec->quants);
    codec->old = aq_arena_take(arena, (size_t)codec->layout.message_bytes);
}

static size_t staging_bytes(const struct aq_codec *codec)
{
    return (size_t)codec->layout.values * sizeof(float);
}

enum aq_status aq_codec_open(struct aq_device *device, const struct aq_codec_config *config, uint32_t rows,
                             uint32_t columns, struct aq_codec **out)
{
    enum { PIECE_VALUES = 32768 }; /* a piece lasts some microseconds: much longer than handing it out */
    enum aq_status status;
    void *memory = NULL;
    AQ_TRY(aq_codec_config_check(config, rows, columns));
    AQ_TRY(aq_alloc(sizeof(struct aq_codec), &memory));
    struct aq_codec *codec = memory;
    codec->config = *config;
    codec->rows = rows;
    codec->columns = columns;
    codec->device = device;
    codec->kernels = aq_codec_kernels_best();
    aq_codec_layout_of(config, rows, columns, &codec->layout);
    uint32_t piece = (rows + AQ_CODEC_PIECES_MAX - 1) / AQ_CODEC_PIECES_MAX;
    if ((uint64_t)piece * columns < PIECE_VALUES) piece = (PIECE_VALUES + columns - 1) / columns;
    codec->piece_rows = (piece + AQ_CODEC_CHUNK_ROWS - 1) / AQ_CODEC_CHUNK_ROWS * AQ_CODEC_CHUNK_ROWS;
    codec->pieces = (rows + codec->piece_rows - 1) / codec->piece_rows;
    struct aq_arena arena = {0};
    place(codec, &arena);
    codec->memory_bytes = arena.used;
    AQ_TRY_GOTO(aq_map(arena.used, &codec->memory), out);
    arena = (struct aq_arena){.base = codec->memory, .bytes = arena.used};
    place(codec, &arena);
    struct aq_device_info info = {.host_memory = true};
    if (device) aq_device_info(device, &info);
    if (!info.host_memory) {
        AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_PINNED, staging_bytes(codec), &memory), out);
        codec->staging = memory;
    }
    *out = codec;
    return AQ_OK;
out:
    aq_codec_close(codec);
    return status;
}

void aq_codec_close(struct aq_codec *codec)
{
    if (codec == NULL) return;
    aq_codec_remote_close(codec);
    if (codec->staging) aq_device_free(codec->device, AQ_MEMORY_PINNED, codec->staging, staging_bytes(codec));
    aq_unmap(codec->memory, codec->memory_bytes);
    aq_free(codec);
}

const struct aq_codec_config *aq_codec_config_of(const struct aq_codec *codec)
{
    return &codec->config;
}

size_t aq_codec_bound(const struct aq_codec *codec)
{
    return (size_t)codec->layout.bound;
}

size_t aq_codec_body_bytes(const struct aq_codec *codec, bool keyframe)
{
    const bool cold = keyframe && codec->config.kind == AQ_CODEC_AQSGD;
    return (size_t)(cold ? codec->layout.keyframe_bytes : codec->layout.body_bytes);
}

bool aq_codec_is_plain(const struct aq_codec *codec)
{
    return codec->config.kind == AQ_CODEC_RAW;
}

size_t aq_codec_message_bytes(const struct aq_codec *codec)
{
    return (size_t)codec->layout.message_bytes;
}

void aq_codec_run(const struct aq_codec *codec, void (*run)(uint32_t piece, void *context), void *context)
{
    if (codec->device != NULL && codec->pieces > 1) {
        aq_device_parallel(codec->device, codec->pieces, run, context);
        return;
    }
    for (uint32_t piece = 0; piece < codec->pieces; piece++)
        run(piece, context);
}
