/*
 * codec_rans.c -- the truth of codec_rans.h: one lane after the other.
 */
#include <string.h>

#include "codec_rans_slots.h"

enum { STATE_MIN = 1 << AQ_RANS_STATE_BITS };

bool aq_rans_table(const uint16_t weights[AQ_RANS_LEVELS], uint16_t escapes, struct aq_rans_table *out)
{
    uint16_t slots[256];
    if (!aq_rans_slots(weights, escapes, slots)) return false;
    for (uint32_t symbol = 0, first = 0; symbol < 256; first += slots[symbol], symbol++) {
        out->encode[symbol] = slots[symbol] | first << 16;
        for (uint32_t i = 0; i < slots[symbol]; i++)
            out->decode[first + i] = aq_rans_decode_entry(symbol, slots[symbol], i);
    }
    out->escape = out->encode[0];
    out->encode[0] = 0;
    return true;
}

bool aq_rans_encode_group(const struct aq_rans_table *table, const uint8_t *codes, size_t group, const uint8_t *floor,
                          struct aq_rans_escape *escapes, uint32_t escapes_max, struct aq_rans_coded *io)
{
    if ((size_t)(io->words - floor) < 2 * AQ_RANS_LANES + AQ_RANS_PAD) return false;
    for (uint32_t lane = AQ_RANS_LANES; lane-- > 0;) {
        const uint8_t *pair = codes + AQ_RANS_GROUP * group + 2 * (size_t)lane;
        const uint32_t symbol = pair[0] | (uint32_t)pair[1] << 4;
        uint32_t entry = table->encode[symbol], x = io->states[lane];
        if ((entry & 0xffffu) == 0) { /* with a code of 0 too: no such symbol has slots */
            if (io->escapes == escapes_max) return false;
            escapes[io->escapes++] =
                (struct aq_rans_escape){.pair = (uint32_t)(AQ_RANS_LANES * group + lane), .symbol = (uint8_t)symbol};
            entry = table->escape;
        }
        const uint32_t slots = entry & 0xffffu, first = entry >> 16;
        if (x >= slots << (AQ_RANS_STATE_BITS + 16 - AQ_RANS_SLOT_BITS)) {
            const uint8_t word[2] = {(uint8_t)x, (uint8_t)(x >> 8)};
            io->words -= sizeof word;
            memcpy(io->words, word, sizeof word);
            x >>= 16;
        }
        io->states[lane] = (x / slots << AQ_RANS_SLOT_BITS) + x % slots + first;
    }
    return true;
}

bool aq_rans_encode_plain(const struct aq_rans_table *table, const uint8_t *codes, size_t groups, uint8_t *floor,
                          uint8_t *end, struct aq_rans_escape *escapes, uint32_t escapes_max, struct aq_rans_coded *out)
{
    out->words = end;
    out->escapes = 0;
    for (uint32_t lane = 0; lane < AQ_RANS_LANES; lane++)
        out->states[lane] = STATE_MIN;
    for (size_t group = groups; group-- > 0;)
        if (!aq_rans_encode_group(table, codes, group, floor, escapes, escapes_max, out)) return false;
    return true;
}

bool aq_rans_decode_group(const struct aq_rans_table *table, uint32_t states[AQ_RANS_LANES], const uint8_t **words,
                          const uint8_t *end, uint8_t *codes)
{
    for (uint32_t lane = 0; lane < AQ_RANS_LANES; lane++) {
        const uint32_t entry = table->decode[states[lane] & (AQ_RANS_SLOTS - 1)];
        uint32_t x = (states[lane] >> AQ_RANS_SLOT_BITS) * (entry >> 8 & (AQ_RANS_SLOTS - 1)) + (entry >> 20);
        codes[2 * lane] = entry & 15;
        codes[2 * lane + 1] = entry >> 4 & 15;
        if (x < STATE_MIN) {
            if (end - *words < 2) return false;
            x = x << 16 | (uint32_t)(*words)[0] | (uint32_t)(*words)[1] << 8;
            *words += 2;
        }
        states[lane] = x;
    }
    return true;
}

bool aq_rans_states(const uint32_t states[AQ_RANS_LANES])
{
    bool good = true;
    for (uint32_t lane = 0; lane < AQ_RANS_LANES; lane++)
        good = good && states[lane] >= STATE_MIN && states[lane] < UINT32_C(1) << 31;
    return good;
}

bool aq_rans_decode_plain(const struct aq_rans_table *table, const uint32_t states[AQ_RANS_LANES], const uint8_t *words,
                          size_t word_bytes, size_t readable, size_t groups, uint8_t *codes)
{
    const uint8_t *at = words, *end = words + word_bytes;
    uint32_t x[AQ_RANS_LANES], wrong = 0;
    (void)readable;
    memcpy(x, states, sizeof x);
    if (!aq_rans_states(x)) return false;
    for (size_t group = 0; group < groups; group++)
        if (!aq_rans_decode_group(table, x, &at, end, codes + AQ_RANS_GROUP * group)) return false;
    for (uint32_t lane = 0; lane < AQ_RANS_LANES; lane++)
        wrong |= x[lane] ^ (uint32_t)STATE_MIN;
    return wrong == 0 && at == end;
}
