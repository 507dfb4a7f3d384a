/*
 * bpe_added.c -- tokens that are found in the text itself: leftmost, then longest.
 *
 * A place is a candidate only if its first two bytes start a token; then the lengths of the tokens with this first byte
 * are tried, the longest first, by a hash table of their contents. So thousands of tokens with the same prefix
 * ("<unused7>") cost no more than their distinct lengths.
 */
#include "bpe.h"

#include <string.h>

#include "unicode_forms.h"

/* The sum of the different lengths behind one first byte: a digest of that many bytes takes about 3 us. */
enum { LENGTHS_SUM_MAX = 1 << 15 };

struct entry {
    uint32_t start, bytes, token;
    bool single_word, strip_left, strip_right;
};

struct aq_bpe_finder {
    uint8_t pairs[65536 / 8]; /* first byte + 256 * second of tokens of two bytes or more              */
    bool single[256];         /* a token of only this byte                                             */
    uint32_t lengths_at[257]; /* of tokens by first byte: lengths[lengths_at[b] .. [b + 1])            */
    uint32_t *lengths;        /* longest first                                                         */
    struct entry *entries;
    uint32_t count;
    uint32_t *slots;     /* entry + 1; 0 is free */
    uint64_t slot_count; /* a power of two       */
    struct aq_bpe_text contents;
};

static const struct entry *find(const struct aq_bpe_finder *f, const uint8_t *bytes, size_t count)
{
    for (uint64_t slot = aq_digest(bytes, count);; slot++) {
        const uint32_t found = f->slots[slot & (f->slot_count - 1)];
        if (found == 0) return NULL;
        const struct entry *entry = &f->entries[found - 1];
        if (entry->bytes == count && memcmp(f->contents.at + entry->start, bytes, count) == 0) return entry;
    }
}

/* The first of two with one content counts. */
static void add_entry(struct aq_bpe_finder *f, const struct entry *entry)
{
    const uint8_t *bytes = f->contents.at + entry->start;
    if (entry->bytes == 0 || find(f, bytes, entry->bytes)) return;
    f->entries[f->count++] = *entry;
    uint64_t slot = aq_digest(bytes, entry->bytes);
    while (f->slots[slot & (f->slot_count - 1)])
        slot++;
    f->slots[slot & (f->slot_count - 1)] = f->count;
    const unsigned pair = entry->bytes > 1 ? bytes[0] + 256u * bytes[1] : 0;
    if (entry->bytes > 1)
        f->pairs[pair / 8] |= (uint8_t)(1u << (pair % 8));
    else
        f->single[bytes[0]] = true;
}

/*
 * The lengths of each first byte, longest first, each once: counted, then sorted by insertion as they are few. Their
 * sum bounds what a place in a text costs.
 */
static enum aq_status sort_lengths(struct aq_bpe_finder *f)
{
    uint32_t used = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t sum = 0;
        f->lengths_at[byte] = used;
        for (uint32_t i = 0; i < f->count; i++) {
            const uint32_t bytes = f->entries[i].bytes;
            uint32_t at = f->lengths_at[byte];
            if (f->contents.at[f->entries[i].start] != byte) continue;
            while (at < used && f->lengths[at] > bytes)
                at++;
            if (at < used && f->lengths[at] == bytes) continue;
            memmove(&f->lengths[at + 1], &f->lengths[at], (used - at) * sizeof f->lengths[0]);
            f->lengths[at] = bytes;
            used++;
            sum += bytes;
            if (sum > LENGTHS_SUM_MAX)
                return aq_fail(AQ_INVAL, AQ_BPE_AREA,
                               "added_tokens: the tokens that start with the byte 0x%02x have too many different "
                               "lengths, more than %d bytes in all, and each place of a text would be compared with "
                               "every one of them; remove the longest ones",
                               byte, (int)LENGTHS_SUM_MAX);
        }
    }
    f->lengths_at[256] = used;
    return AQ_OK;
}

static enum aq_status add_content(const struct aq_bpe *bpe, struct aq_bpe_matcher *matcher,
                                  const struct aq_bpe_added *added, struct aq_bpe_finder *f)
{
    struct entry entry = {.start = (uint32_t)f->contents.count,
                          .token = added->token,
                          .single_word = added->single_word,
                          .strip_left = added->strip_left,
                          .strip_right = added->strip_right};
    struct aq_bpe_text normal = {0};
    bool changed = false;
    enum aq_status status = AQ_OK;
    if (added->normalized)
        status = aq_bpe_normalize(bpe, matcher, (const uint8_t *)added->content, added->bytes, &normal, &changed);
    if (status == AQ_OK)
        status = aq_bpe_text_add(&f->contents, changed ? (const void *)normal.at : added->content,
                                 changed ? normal.count : added->bytes);
    aq_bpe_text_free(&normal);
    AQ_TRY(status);
    if (f->contents.count > UINT32_MAX) return aq_fail(AQ_CORRUPT, AQ_BPE_AREA, "added tokens are too long");
    entry.bytes = (uint32_t)f->contents.count - entry.start;
    add_entry(f, &entry);
    return AQ_OK;
}

enum aq_status aq_bpe_finder_open(const struct aq_bpe *bpe, const struct aq_bpe_added *added, uint32_t count,
                                  bool normalized, struct aq_bpe_finder **out)
{
    struct aq_bpe_matcher *matcher = NULL;
    uint32_t wanted = 0;
    size_t content_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        wanted += added[i].normalized == normalized;
        content_bytes += added[i].bytes;
    }
    if (wanted == 0) return AQ_OK;
    struct aq_bpe_finder *f;
    AQ_TRY(AQ_NEW(1, &f));
    enum aq_status status;
    for (f->slot_count = 16; f->slot_count < 2 * (uint64_t)wanted;)
        f->slot_count *= 2;
    AQ_TRY_GOTO(AQ_NEW(f->slot_count, &f->slots), out);
    AQ_TRY_GOTO(AQ_NEW(wanted, &f->entries), out);
    AQ_TRY_GOTO(AQ_NEW(wanted, &f->lengths), out);
    AQ_TRY_GOTO(aq_bpe_matcher_open(&matcher), out);
    aq_bpe_budget_begin(aq_bpe_matcher_budget(matcher), content_bytes); /* of all of them together */
    f->contents = aq_bpe_text_within(aq_bpe_matcher_budget(matcher), "added_tokens");
    for (uint32_t i = 0; i < count; i++)
        if (added[i].normalized == normalized) AQ_TRY_GOTO(add_content(bpe, matcher, &added[i], f), out);
    AQ_TRY_GOTO(sort_lengths(f), out);
    *out = f;
out:
    aq_bpe_matcher_close(matcher);
    if (status != AQ_OK) aq_bpe_finder_close(f);
    return status;
}

void aq_bpe_finder_close(struct aq_bpe_finder *finder)
{
    if (!finder) return;
    aq_bpe_text_free(&finder->contents);
    aq_free(finder->lengths);
    aq_free(finder->entries);
    aq_free(finder->slots);
    aq_free(finder);
}

/* The longest token at text[at], or NULL. */
static const struct entry *longest(const struct aq_bpe_finder *f, const uint8_t *text, size_t bytes, size_t at)
{
    const unsigned byte = text[at];
    for (uint32_t i = f->lengths_at[byte]; i < f->lengths_at[byte + 1]; i++) {
        if (f->lengths[i] > bytes - at) continue;
        const struct entry *entry = find(f, text + at, f->lengths[i]);
        if (entry) return entry;
    }
    return NULL;
}

static const struct entry *next_entry(const struct aq_bpe_finder *f, const uint8_t *text, size_t bytes, size_t from,
                                      size_t *at)
{
    for (size_t i = from; i < bytes; i++) {
        const unsigned pair = text[i] + 256u * (i + 1 < bytes ? text[i + 1] : 0);
        const bool begins = i + 1 < bytes && (f->pairs[pair / 8] >> (pair % 8) & 1);
        if (!begins && !f->single[text[i]]) continue;
        const struct entry *entry = longest(f, text, bytes, i);
        if (!entry) continue;
        *at = i;
        return entry;
    }
    return NULL;
}

/* The start of the character before `at`; invalid bytes count one by one. */
static size_t before(const uint8_t *text, size_t at)
{
    for (size_t back = 1; back <= 4 && back <= at; back++)
        if (aq_bpe_character(text + at - back, back) == back) return at - back;
    return at - 1;
}

static bool is_word(const uint8_t *text, size_t bytes, size_t at)
{
    uint32_t character;
    if (aq_bpe_character(text + at, bytes - at) == 0) return false;
    (void)aq_unicode_read(text + at, &character);
    return aq_unicode_is_word(character);
}

static bool is_space(const uint8_t *text, size_t bytes, size_t at)
{
    uint32_t character;
    if (aq_bpe_character(text + at, bytes - at) == 0) return false;
    (void)aq_unicode_read(text + at, &character);
    return aq_unicode_is_space(character);
}

bool aq_bpe_finder_next(const struct aq_bpe_finder *finder, const uint8_t *text, size_t bytes, size_t *next,
                        struct aq_bpe_place *out)
{
    const size_t taken = out->end; /* of the place before this one */
    for (size_t at = *next; at < bytes;) {
        size_t start;
        const struct entry *entry = next_entry(finder, text, bytes, at, &start);
        if (!entry) return false;
        size_t end = start + entry->bytes;
        *next = at = end;
        if (entry->single_word &&
            ((start > 0 && is_word(text, bytes, before(text, start))) || (end < bytes && is_word(text, bytes, end))))
            continue;
        if (entry->strip_left)
            while (start > taken && is_space(text, bytes, before(text, start)))
                start = before(text, start);
        if (entry->strip_left && start < taken) start = taken; /* the spaces that the one before it took */
        if (entry->strip_right && end < out->spaces) end = out->spaces; /* known to be spaces: read once */
        if (entry->strip_right)
            while (end < bytes && is_space(text, bytes, end))
                end += aq_bpe_character(text + end, bytes - end);
        if (start >= end) continue; /* spaces alone, all of them taken: the package drops this empty place */
        const size_t spaces = entry->strip_right ? end : out->spaces;
        *out = (struct aq_bpe_place){.start = start, .end = end, .spaces = spaces, .token = entry->token};
        return true;
    }
    return false;
}
