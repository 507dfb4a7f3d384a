/*
 * codec_topk.c -- which values of a sample are kept, and how their positions are written (docs/FORMAT.md, Positions).
 *
 * The K largest are found by counting: three histograms of the magnitude's bits, 11 + 10 + 10, each inside the bucket
 * that the one before has chosen. Exact, without a sort and without memory other than the histogram.
 */
#include "codec_internal.h"

void aq_topk_threshold(const float *a, uint64_t values, uint64_t kept, uint32_t *threshold, uint64_t *ties)
{
    static const uint32_t shifts[3] = {20, 10, 0}, widths[3] = {11, 10, 10};
    uint32_t prefix = 0;
    uint64_t wanted = kept; /* still to be found below the buckets above */
    for (int level = 0; level < 3; level++) {
        uint64_t count[1 << 11] = {0};
        const uint32_t mask = (1u << widths[level]) - 1u, above = shifts[level] + widths[level];
        for (uint64_t e = 0; e < values; e++) {
            const uint32_t magnitude = aq_bits_of(a[e]) & 0x7fffffffu;
            if (above >= 31 || magnitude >> above == prefix >> above) count[magnitude >> shifts[level] & mask]++;
        }
        uint32_t bucket = mask;
        while (bucket > 0 && count[bucket] < wanted)
            wanted -= count[bucket--];
        prefix |= bucket << shifts[level];
    }
    *threshold = prefix;
    *ties = wanted;
}

static void set_bit(uint8_t *bytes, uint64_t bit)
{
    bytes[bit / 8] = (uint8_t)(bytes[bit / 8] | 1u << bit % 8);
}

static bool get_bit(const uint8_t *bytes, uint64_t bit)
{
    return (bytes[bit / 8] >> bit % 8 & 1u) != 0;
}

static uint64_t low_bytes(const struct aq_codec_layout *layout)
{
    return (layout->kept * layout->low_bits + 7) / 8;
}

static uint64_t high_bits(const struct aq_codec_layout *layout)
{
    return layout->bitmap ? layout->values : layout->kept + (layout->values >> layout->low_bits) + 1;
}

void aq_position_writer_init(struct aq_position_writer *writer, const struct aq_codec_layout *layout, uint8_t *out)
{
    memset(out, 0, (size_t)layout->positions_bytes);
    *writer = (struct aq_position_writer){.layout = layout, .out = out};
}

void aq_position_write(struct aq_position_writer *writer, uint64_t element)
{
    const struct aq_codec_layout *layout = writer->layout;
    const uint64_t j = writer->count++;
    AQ_ASSERT(j < layout->kept && element < layout->values);
    if (layout->bitmap) {
        set_bit(writer->out, element);
        return;
    }
    for (uint32_t k = 0; k < layout->low_bits; k++) {
        if (element >> k & 1u) set_bit(writer->out, j * layout->low_bits + k);
    }
    set_bit(writer->out + low_bytes(layout), (element >> layout->low_bits) + j);
}

void aq_position_reader_init(struct aq_position_reader *reader, const struct aq_codec_layout *layout, const uint8_t *in)
{
    *reader = (struct aq_position_reader){.layout = layout, .in = in};
}

uint64_t aq_position_read(struct aq_position_reader *reader)
{
    const struct aq_codec_layout *layout = reader->layout;
    const uint8_t *bitmap = layout->bitmap ? reader->in : reader->in + low_bytes(layout);
    const uint64_t bits = high_bits(layout), j = reader->count;
    if (j == layout->kept) return layout->values;
    while (reader->bit < bits) {
        if (reader->bit % 8 == 0 && bitmap[reader->bit / 8] == 0) {
            reader->bit += 8;
            continue;
        }
        if (get_bit(bitmap, reader->bit)) break;
        reader->bit++;
    }
    if (reader->bit >= bits) return layout->values;
    const uint64_t found = reader->bit++;
    reader->count++;
    if (layout->bitmap) return found;
    uint64_t element = (found - j) << layout->low_bits; /* found >= j: j ones are before it */
    for (uint32_t k = 0; k < layout->low_bits; k++)
        element |= (uint64_t)get_bit(reader->in, j * layout->low_bits + k) << k;
    return element;
}

bool aq_position_check(const struct aq_codec_layout *layout, const uint8_t *in)
{
    const uint8_t *bitmap = layout->bitmap ? in : in + low_bytes(layout);
    const uint64_t bits = high_bits(layout);
    uint64_t ones = 0, last = 0;
    for (uint64_t bit = 0; bit < bits; bit++)
        ones += get_bit(bitmap, bit);
    if (ones != layout->kept) return false;
    struct aq_position_reader reader;
    aq_position_reader_init(&reader, layout, in);
    for (uint64_t j = 0; j < layout->kept; j++) {
        const uint64_t element = aq_position_read(&reader);
        if (element >= layout->values || (j > 0 && element <= last)) return false;
        last = element;
    }
    return true;
}
