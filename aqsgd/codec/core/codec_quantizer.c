/*
 * codec_quantizer.c -- codecs with a grid (directq, aqsgd): what their settings may be, and what follows from them.
 * They code in codec_encode.c and codec_decode.c.
 */
#include <math.h>
#include <stdio.h>

#include "codec_member.h"

static bool sparse(const struct aq_codec_config *config)
{
    return config->top_k > 0.0f && config->top_k < 1.0f;
}

static bool tiled(const struct aq_codec_config *config)
{
    return config->group == AQ_PER_TILE || config->hadamard;
}

enum aq_status aq_quantizer_check(const struct aq_codec_config *config)
{
    if (config->bits < 1 || config->bits > 8) return aq_codec_refuse("bits", "1 to 8");
    if (config->grid < AQ_GRID_MIDRISE || config->grid > AQ_GRID_SIGNED)
        return aq_codec_refuse("grid", "mid-rise, mid-tread or signed");
    if (config->grid == AQ_GRID_MIDTREAD && config->bits < 2)
        return aq_codec_refuse("grid mid-tread", "it needs 2 bits or more");
    if (config->group < AQ_PER_TENSOR || config->group > AQ_PER_TILE)
        return aq_codec_refuse("group", "tensor, row, channel or tile");
    if (tiled(config) && config->tile != 32 && config->tile != 64 && config->tile != 128)
        return aq_codec_refuse("tile", "32, 64 or 128");
    if (config->scale < AQ_SCALE_ABSMAX || config->scale > AQ_SCALE_AUTO)
        return aq_codec_refuse("scale", "absmax, rms, search or auto");
    if (config->scale_format < AQ_SCALE_FP16 || config->scale_format > AQ_SCALE_POW2)
        return aq_codec_refuse("scale_format", "fp16, bf16, fp32 or pow2");
    if (config->rounding != AQ_ROUND_NEAREST && config->rounding != AQ_ROUND_STOCHASTIC)
        return aq_codec_refuse("rounding", "nearest or stochastic");
    if (config->prescale_log2 < -AQ_CODEC_PRESCALE_MAX || config->prescale_log2 > AQ_CODEC_PRESCALE_MAX)
        return aq_codec_refuse("prescale_log2", "-64 to 64");
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

void aq_quantizer_layout(const struct aq_codec_config *config, uint32_t rows, uint32_t columns,
                         struct aq_codec_layout *out)
{
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

void aq_quantizer_digest(const struct aq_codec_config *config, uint32_t words[AQ_CODEC_WORDS])
{
    words[3] = config->bits;
    words[4] = (uint32_t)config->grid;
    words[5] = (uint32_t)config->group;
    words[6] = tiled(config) ? config->tile : 0;
    words[7] = (uint32_t)config->scale_format;
    words[8] = config->hadamard;
    words[9] = (uint32_t)config->prescale_log2;
    words[10] = sparse(config) ? aq_bits_of(config->top_k) : 0;
}

static const char *word_of(const char *const *words, int count, int index)
{
    return index >= 0 && index < count && words[index] != NULL ? words[index] : "?";
}

void aq_quantizer_text(const struct aq_codec_config *config, const char *name, char *text, size_t bytes)
{
    static const char *const grids[] = {NULL, "mid-rise", "mid-tread", "signed"};
    static const char *const groups[] = {NULL, "tensor", "row", "channel", "tile"};
    static const char *const scales[] = {NULL, "absmax", "rms", "search", "auto"};
    static const char *const formats[] = {NULL, "fp16", "bf16", "fp32", "pow2"};
    static const char *const roundings[] = {NULL, "nearest", "stochastic"};
    char tile[32] = "", hadamard[32] = "", prescale[32] = "", tail[64] = "";
    if (config->group == AQ_PER_TILE) snprintf(tile, sizeof tile, " %u", config->tile);
    if (config->hadamard) snprintf(hadamard, sizeof hadamard, " hadamard %u", config->tile);
    if (config->prescale_log2 != 0) snprintf(prescale, sizeof prescale, " prescale 2^%d", config->prescale_log2);
    aq_codec_messages_text(config, tail, sizeof tail);
    if (sparse(config)) snprintf(tail, sizeof tail, " top %.4g", (double)config->top_k);
    snprintf(text, bytes, "%s %u bits %s %s%s %s %s %s%s%s%s", name, config->bits, word_of(grids, 4, (int)config->grid),
             word_of(groups, 5, (int)config->group), tile, word_of(formats, 5, (int)config->scale_format),
             word_of(scales, 5, (int)config->scale), word_of(roundings, 3, (int)config->rounding), hadamard, prescale,
             tail);
}
