/*
 * tokenizer_gpt2_words.c -- GPT-2's pre-tokenizer: text is cut into words that are merged apart, by the published
 * pattern.
 *
 * The pattern is for characters, so bytes that are no UTF-8 (after RFC 3629: no overlong forms, no surrogates, nothing
 * beyond U+10FFFF) need a rule of ours: each unbroken run of them is a word of its own, and the valid text before and
 * after it is cut as if it stood alone. The published tokenizer does not take such texts at all.
 *
 * "\s" is written out as Unicode's White_Space: PCRE2's own \s also takes U+180E, which Unicode no longer counts.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "tokenizer_gpt2.h"

#define SPACES "\\t-\\r\\x{85}\\p{Z}"
static const char published_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d"
                                        "| ?\\p{L}+"
                                        "| ?\\p{N}+"
                                        "| ?[^" SPACES "\\p{L}\\p{N}]+"
                                        "|[" SPACES "]+(?![^" SPACES "])"
                                        "|[" SPACES "]+";

struct aq_gpt2_pattern {
    pcre2_code *code;
    bool compiled_to_machine_code;
};

struct aq_gpt2_words {
    const struct aq_gpt2_pattern *pattern;
    pcre2_match_data *match;
    const uint8_t *text;
    size_t bytes;
    size_t at;                   /* the next word starts here                            */
    size_t run_start, run_end;   /* the run that `at` is in, all valid or all invalid     */
    bool run_valid;
};

enum aq_status aq_gpt2_pattern_open(struct aq_gpt2_pattern **out)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_gpt2_pattern), &memory));
    struct aq_gpt2_pattern *pattern = memory;
    int error;
    PCRE2_SIZE place;
    pattern->code = pcre2_compile((PCRE2_SPTR)published_pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                                  &place, NULL);
    if (!pattern->code) {
        aq_free(pattern);
        return aq_fail(AQ_NOMEM, "tokenizer", "PCRE2 does not compile the pattern: error %d at %zu", error,
                       (size_t)place);
    }
    /* Where the system forbids writing machine code, PCRE2 interprets: slower, and the same words. */
    pattern->compiled_to_machine_code = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    *out = pattern;
    return AQ_OK;
}

void aq_gpt2_pattern_close(struct aq_gpt2_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    aq_free(pattern);
}

enum aq_status aq_gpt2_words_open(const struct aq_gpt2_pattern *pattern, const uint8_t *text, size_t bytes,
                                  struct aq_gpt2_words **out)
{
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_gpt2_words), &memory));
    struct aq_gpt2_words *words = memory;
    *words = (struct aq_gpt2_words){.pattern = pattern, .text = text, .bytes = bytes};
    words->match = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    if (!words->match) {
        aq_free(words);
        return aq_fail(AQ_NOMEM, "tokenizer", "no memory for PCRE2's match data");
    }
    *out = words;
    return AQ_OK;
}

void aq_gpt2_words_close(struct aq_gpt2_words *words)
{
    if (!words) return;
    pcre2_match_data_free(words->match);
    aq_free(words);
}

/* Bytes of the UTF-8 character at text, or 0 where there is none. */
static size_t character_bytes(const uint8_t *text, size_t bytes)
{
    unsigned lead = text[0];
    if (lead < 0x80) return 1;
    size_t length = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || length > bytes) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    if (lead == 0xE0 && text[1] < 0xA0) return 0; /* overlong */
    if (lead == 0xED && text[1] > 0x9F) return 0; /* a surrogate */
    if (lead == 0xF0 && text[1] < 0x90) return 0; /* overlong */
    if (lead == 0xF4 && text[1] > 0x8F) return 0; /* beyond U+10FFFF */
    return length;
}

/* The end of the run of valid characters (or of bytes that are none) that starts at `at`. */
static size_t run_end(const uint8_t *text, size_t bytes, size_t at, bool valid)
{
    while (at < bytes) {
        uint64_t eight;
        if (valid && bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t length = character_bytes(text + at, bytes - at);
        if ((length > 0) != valid) break;
        at += valid ? length : 1;
    }
    return at;
}

enum aq_status aq_gpt2_words_next(struct aq_gpt2_words *words, size_t *start, size_t *end)
{
    if (words->at == words->bytes) return AQ_NOTFOUND;
    if (words->at == words->run_end) {
        words->run_start = words->at;
        words->run_valid = character_bytes(words->text + words->at, words->bytes - words->at) > 0;
        words->run_end = run_end(words->text, words->bytes, words->at, words->run_valid);
    }
    *start = words->at;
    if (!words->run_valid) {
        *end = words->at = words->run_end;
        return AQ_OK;
    }
    PCRE2_SPTR run = words->text + words->run_start;
    PCRE2_SIZE run_bytes = words->run_end - words->run_start, from = words->at - words->run_start;
    int found = words->pattern->compiled_to_machine_code
                    ? pcre2_jit_match(words->pattern->code, run, run_bytes, from, 0, words->match, NULL)
                    : pcre2_match(words->pattern->code, run, run_bytes, from, PCRE2_NO_UTF_CHECK, words->match, NULL);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(words->match);
    if (found < 0) return aq_fail(AQ_NOMEM, "tokenizer", "PCRE2 gives up at byte %zu with error %d", words->at, found);
    /* Every character is a letter, a number, a space or none of them: a word begins where the last one ended. */
    AQ_ASSERT(place[0] == from && place[1] > from);
    *end = words->at = words->run_start + place[1];
    return AQ_OK;
}
