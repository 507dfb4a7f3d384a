/* lengths.c -- lengths of samples to a text and back. See the header. */
#include "lengths.h"

#include <string.h>

enum { CHARACTER_BITS = 6 };

static const char characters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";

static unsigned width_of(uint32_t most)
{
    unsigned width = 1;
    while (width < 32 && (most - 1) >> width)
        width++;
    return width;
}

uint64_t aq_lengths_characters(uint64_t count, uint32_t most)
{
    return (count * width_of(most) + CHARACTER_BITS - 1) / CHARACTER_BITS;
}

uint64_t aq_lengths_count_max(uint32_t most)
{
    return (uint64_t)AQ_LENGTHS_TEXT_MAX * CHARACTER_BITS / width_of(most);
}

enum aq_status aq_lengths_write(const uint32_t *lengths, uint64_t count, uint32_t most, char **text)
{
    const unsigned width = width_of(most);
    char *at;
    AQ_TRY(AQ_NEW(aq_lengths_characters(count, most) + 1, text));
    at = *text;
    uint64_t bits = 0;
    unsigned held = 0;
    for (uint64_t i = 0; i < count; i++) {
        AQ_ASSERT(lengths[i] >= 1 && lengths[i] <= most);
        bits |= (uint64_t)(lengths[i] - 1) << held;
        for (held += width; held >= CHARACTER_BITS; held -= CHARACTER_BITS, bits >>= CHARACTER_BITS)
            *at++ = characters[bits & 63];
    }
    if (held) *at++ = characters[bits & 63];
    *at = 0;
    return AQ_OK;
}

static enum aq_status refuse(const char *what)
{
    return aq_fail(AQ_PROTO, "lengths", "the lengths of the samples: %s", what);
}

enum aq_status aq_lengths_read(const char *text, uint64_t count, uint32_t most, uint32_t *lengths)
{
    const unsigned width = width_of(most);
    uint64_t bits = 0;
    unsigned held = 0;
    if (strlen(text) != aq_lengths_characters(count, most)) return refuse("there are not as many as samples");
    for (uint64_t i = 0; i < count; i++) {
        for (; held < width; held += CHARACTER_BITS) {
            const char *at = strchr(characters, *text++);
            if (!at || !*at) return refuse("a character that lengths never have");
            bits |= (uint64_t)(at - characters) << held;
        }
        const uint64_t length = (bits & ((UINT64_C(1) << width) - 1)) + 1;
        if (length > most) return refuse("one is beyond train.T");
        lengths[i] = (uint32_t)length;
        bits >>= width;
        held -= width;
    }
    return bits ? refuse("characters follow the last one") : AQ_OK;
}
