/*
 * bpe_characters.c -- normalizers that make something of each character by itself, and SentencePiece's table.
 *
 * ASCII goes through a table of what each character becomes; a run of characters that stay is copied at once.
 */
#include "bpe.h"

#include <string.h>

#include "unicode_forms.h"

enum { ASCII = 128, GONE = 0x80 /* in a table: the character is left out */, MADE_BYTES_MAX = 8 };

/* Builds what becomes of ASCII; what becomes of another character, as UTF-8: its bytes. */
struct character_rule {
    uint8_t (*ascii)(uint8_t c);
    size_t (*other)(uint32_t c, uint8_t out[MADE_BYTES_MAX]);
};

/* The character as it is. */
static size_t same(uint32_t c, uint8_t *out)
{
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    const size_t length = c < 0x10000 ? 3 : 4;
    uint8_t *at = out;
    *at++ = (uint8_t)(length == 3 ? 0xE0 | c >> 12 : 0xF0 | c >> 18);
    if (length == 4) *at++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    *at++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    *at = (uint8_t)(0x80 | (c & 0x3F));
    return length;
}

static size_t space(uint8_t *out)
{
    out[0] = ' ';
    return 1;
}

static uint8_t ascii_same(uint8_t c)
{
    return c;
}

static uint8_t ascii_lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

/* ---- BertNormalizer ---- */

static uint8_t ascii_clean(uint8_t c)
{
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    return c < 32 || c == 127 ? GONE : c;
}

static size_t clean(uint32_t c, uint8_t *out)
{
    if (c == 0xFFFD || aq_unicode_is_control(c)) return 0;
    return aq_unicode_is_space(c) ? space(out) : same(c, out);
}

/* The blocks as BERT has them; U+2B820 to U+2B91F is missing there, too. */
static size_t ideograph(uint32_t c, uint8_t *out)
{
    static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                         {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                         {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (c < blocks[i][0] || c > blocks[i][1]) continue;
        const size_t length = same(c, out + 1);
        out[0] = out[length + 1] = ' ';
        return length + 2;
    }
    return same(c, out);
}

static size_t unmark(uint32_t c, uint8_t *out)
{
    return aq_unicode_is_nonspacing_mark(c) ? 0 : same(c, out);
}

/* ---- Nmt ---- */

static uint8_t ascii_nmt(uint8_t c)
{
    if (c == '\t' || c == '\n' || c == '\f' || c == '\r') return ' ';
    return (c > 0 && c < 32) || c == 127 ? GONE : c;
}

static size_t nmt(uint32_t c, uint8_t *out)
{
    if (c == 0x8F || c == 0x9F) return 0;
    const bool odd = c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
    return odd ? space(out) : same(c, out);
}

/* ---- all of them ---- */

static enum aq_status by_rule(const struct character_rule *rule, const uint8_t *text, size_t bytes,
                              struct aq_bpe_text *out, bool *changed)
{
    uint8_t ascii[ASCII], made[MADE_BYTES_MAX];
    size_t done = 0;
    for (unsigned i = 0; i < ASCII; i++)
        ascii[i] = rule->ascii((uint8_t)i);
    for (size_t at = 0, length; at < bytes; at += length) {
        size_t count = 1;
        length = 1;
        if (text[at] < ASCII) {
            if (ascii[text[at]] == text[at]) continue;
            made[0] = ascii[text[at]];
            count = made[0] != GONE;
        } else {
            uint32_t character;
            length = aq_unicode_read(text + at, &character);
            count = rule->other(character, made);
            if (count == length && memcmp(made, text + at, count) == 0) continue;
        }
        AQ_TRY(aq_bpe_text_add(out, text + done, at - done));
        AQ_TRY(aq_bpe_text_add(out, made, count));
        done = at + length;
        *changed = true;
    }
    return *changed ? aq_bpe_text_add(out, text + done, bytes - done) : AQ_OK;
}

enum aq_status aq_bpe_characters(enum aq_bpe_normal_kind kind, const uint8_t *text, size_t bytes,
                                 struct aq_bpe_text *out, bool *changed)
{
    static const struct character_rule rules[] = {[AQ_BPE_LOWERCASE] = {ascii_lower, aq_unicode_lower},
                                                  [AQ_BPE_CLEAN] = {ascii_clean, clean},
                                                  [AQ_BPE_IDEOGRAPH] = {ascii_same, ideograph},
                                                  [AQ_BPE_UNMARK] = {ascii_same, unmark},
                                                  [AQ_BPE_NMT] = {ascii_nmt, nmt}};
    AQ_ASSERT((size_t)kind < sizeof rules / sizeof rules[0] && rules[kind].ascii);
    return by_rule(&rules[kind], text, bytes, out, changed);
}

/* ---- Precompiled ---- */

enum { CLUSTER_BYTES_MAX = 5 }; /* a longer cluster is never looked up as a whole */

static enum aq_status charsmap_part(const struct aq_charsmap *map, const uint8_t *text, size_t bytes,
                                    struct aq_bpe_text *out, bool *found)
{
    size_t length;
    const uint8_t *made = aq_charsmap_find(map, text, bytes, &length);
    *found = made != NULL;
    return made ? aq_bpe_text_add(out, made, length) : AQ_OK;
}

static enum aq_status charsmap_cluster(const struct aq_charsmap *map, const uint8_t *text, size_t bytes,
                                       struct aq_bpe_text *out, bool *changed)
{
    bool found = false;
    if (bytes <= CLUSTER_BYTES_MAX) AQ_TRY(charsmap_part(map, text, bytes, out, &found));
    *changed = *changed || found;
    for (size_t at = 0, length; !found && at < bytes; at += length) {
        uint32_t character;
        bool one = false;
        length = aq_unicode_read(text + at, &character);
        AQ_TRY(charsmap_part(map, text + at, length, out, &one));
        if (!one) AQ_TRY(aq_bpe_text_add(out, text + at, length));
        *changed = *changed || one;
    }
    return AQ_OK;
}

/*
 * Each cluster of up to five bytes becomes what the table has for its beginning, all of it; otherwise each of its
 * characters does. That is what the package does, and its models were checked with it.
 */
enum aq_status aq_bpe_charsmap(const struct aq_charsmap *map, const uint8_t *text, size_t bytes,
                               struct aq_bpe_text *out, bool *changed)
{
    size_t done = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = at + 1;
        const bool line_end = text[at] == '\r' && end < bytes && text[end] == '\n';
        const bool single = text[at] < ASCII && (end == bytes || text[end] < ASCII) && !line_end;
        if (single && aq_charsmap_stays(map, text[at])) continue;
        if (!single) end = aq_unicode_cluster(text, bytes, at);
        AQ_TRY(aq_bpe_text_add(out, text + done, at - done));
        AQ_TRY(charsmap_cluster(map, text + at, end - at, out, changed));
        done = end;
    }
    return *changed ? aq_bpe_text_add(out, text + done, bytes - done) : AQ_OK;
}
