/*
 * codec_rows.c -- rows of stored messages, for callers that know that a row of one visit is another row of the next:
 * crops of images, whose rows are pixels (docs/FORMAT.md, Stored messages).
 */
#include "codec_member.h"

/* Of the values or codes of a row. */
static size_t row_bytes(const struct aq_codec_config *config, uint32_t columns)
{
    return (size_t)((uint64_t)columns * aq_precision_bits(config->store) / 8);
}

static bool scaled(const struct aq_codec_config *config)
{
    return aq_precision_bits(config->store) < 16;
}

enum aq_status aq_codec_rows_check(const struct aq_codec_config *config, uint32_t columns)
{
    if (!scaled(config)) return AQ_OK;
    if (config->store_group == AQ_PER_CHANNEL)
        return aq_codec_refuse("store_group channel", "row, where messages are cropped");
    if ((uint64_t)columns * aq_precision_bits(config->store) % 8 != 0)
        return aq_codec_refuse("store with these columns", "rows of whole bytes, where messages are cropped");
    return AQ_OK;
}

void aq_codec_message_row(const struct aq_codec *codec, const void *source, uint32_t from, void *out, uint32_t to)
{
    const size_t bytes = row_bytes(&codec->config, codec->columns);
    const size_t scales = scaled(&codec->config) ? sizeof(float) : 0, codes = scales * codec->rows;
    const uint8_t *const in = source;
    uint8_t *const at = out;
    AQ_ASSERT(to < codec->rows && from < codec->rows);
    if (in) {
        memcpy(at + scales * to, in + scales * from, scales);
        memcpy(at + codes + bytes * to, in + codes + bytes * from, bytes);
    } else {
        memset(at + scales * to, 0, scales);
        memset(at + codes + bytes * to, 0, bytes);
    }
}
