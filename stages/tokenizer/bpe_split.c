/*
 * bpe_split.c -- the pre-tokenizer: a text through one step after another, each of which cuts the pieces of the one
 * before it; what is left of the last step are the words.
 *
 * A step sees only its piece: a pattern looks neither before its start nor beyond its end.
 */
#include "bpe.h"

#include <string.h>

/* ---- characters ---- */

size_t aq_bpe_character(const uint8_t *text, size_t bytes)
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

size_t aq_bpe_run_end(const uint8_t *text, size_t bytes, size_t at, bool valid)
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
        size_t length = aq_bpe_character(text + at, bytes - at);
        if ((length > 0) != valid) break;
        at += valid ? length : 1;
    }
    return at;
}

/* ---- steps ---- */

struct cut {
    const struct aq_bpe *bpe;
    const struct aq_bpe_step *step;
    uint32_t next; /* the step behind this one */
    struct aq_bpe_matcher *matcher;
    const uint8_t *text;
    aq_bpe_word *word;
    struct aq_bpe_call *call;
    bool first;         /* the text is the first part of all */
    bool held, matched; /* a piece waits for what comes behind it; the last span was a match */
    size_t start, end;  /* of the piece that waits */
};

static enum aq_status give(const struct cut *cut, size_t start, size_t end)
{
    if (start == end) return AQ_OK;
    if (cut->next == cut->bpe->step_count && !cut->bpe->writes)
        return cut->word(cut->call, cut->text + start, end - start);
    aq_bpe_matcher_budget(cut->matcher)->first = cut->first && start == 0;
    return aq_bpe_split(cut->bpe, cut->next, cut->matcher, cut->text + start, end - start, cut->word, cut->call);
}

/* Adds a span of the text, a match or the text between two; the behaviour sets the piece that it joins. */
static enum aq_status take(struct cut *cut, size_t start, size_t end, bool match)
{
    const enum aq_bpe_behaviour behaviour = cut->step->behaviour;
    match = match != cut->step->invert;
    if (behaviour == AQ_BPE_ISOLATED) return give(cut, start, end);
    if (behaviour == AQ_BPE_REMOVED) return match ? AQ_OK : give(cut, start, end);
    bool joins = cut->held;
    if (behaviour == AQ_BPE_WITH_PREVIOUS) joins = joins && match && !cut->matched;
    if (behaviour == AQ_BPE_WITH_NEXT) joins = joins && !match && cut->matched;
    if (behaviour == AQ_BPE_CONTIGUOUS) joins = joins && match == cut->matched;
    if (!joins) {
        if (cut->held) AQ_TRY(give(cut, cut->start, cut->end));
        cut->start = start;
    }
    cut->end = end;
    cut->held = true;
    cut->matched = match;
    return AQ_OK;
}

/* Cuts at all matches. An empty match splits the text, except right behind another match. */
static enum aq_status cut_by_pattern(struct cut *cut, size_t bytes)
{
    size_t from = 0, last = 0, start, end;
    bool any = false;
    enum aq_status status = AQ_OK;
    while (from <= bytes) {
        status = aq_bpe_match(cut->step->pattern, cut->matcher, cut->text, bytes, from, &start, &end);
        if (status != AQ_OK) break;
        if (start == end && any && end == last) {
            if (from == bytes) break;
            from += aq_bpe_character(cut->text + from, bytes - from);
            continue;
        }
        if (start > last) AQ_TRY(take(cut, last, start, false));
        AQ_TRY(take(cut, start, end, true));
        from = last = end;
        any = true;
        if (end == bytes) break;
    }
    if (status != AQ_OK && status != AQ_NOTFOUND) return status;
    if (last < bytes) AQ_TRY(take(cut, last, bytes, false));
    return cut->held ? give(cut, cut->start, cut->end) : AQ_OK;
}

static enum aq_status with_space(const struct aq_bpe *bpe, uint32_t step, struct aq_bpe_matcher *matcher,
                                 const uint8_t *text, size_t bytes, aq_bpe_word *word, struct aq_bpe_call *call)
{
    struct aq_bpe_text *spaced = aq_bpe_matcher_text(matcher, step, "add_prefix_space");
    AQ_TRY(aq_bpe_text_add(spaced, " ", 1));
    AQ_TRY(aq_bpe_text_add(spaced, text, bytes));
    return aq_bpe_split(bpe, step + 1, matcher, spaced->at, spaced->count, word, call);
}

/* Replaces spaces, and puts the replacement in front if the scheme asks for it and the text has none. */
static enum aq_status metaspace(const struct aq_bpe_step *step, bool first, const uint8_t *text, size_t bytes,
                                struct aq_bpe_text *out)
{
    const size_t length = strlen(step->space);
    const bool before = step->scheme == AQ_BPE_ALWAYS || (step->scheme == AQ_BPE_FIRST && first);
    const bool there = text[0] == ' ' || (bytes >= length && memcmp(text, step->space, length) == 0);
    if (before && !there) AQ_TRY(aq_bpe_text_add(out, step->space, length));
    for (size_t at = 0; at < bytes;) {
        const uint8_t *space = memchr(text + at, ' ', bytes - at);
        const size_t end = space ? (size_t)(space - text) : bytes;
        AQ_TRY(aq_bpe_text_add(out, text + at, end - at));
        if (space) AQ_TRY(aq_bpe_text_add(out, step->space, length));
        at = end + 1;
    }
    return AQ_OK;
}

/* A step that makes something of the piece, and those behind it. */
static enum aq_status with_made(const struct aq_bpe *bpe, uint32_t step, struct aq_bpe_matcher *matcher,
                                const uint8_t *text, size_t bytes, aq_bpe_word *word, struct aq_bpe_call *call)
{
    const struct aq_bpe_step *of = &bpe->steps[step];
    if (of->makes == AQ_BPE_SPACE_BEFORE)
        return text[0] == ' ' ? aq_bpe_split(bpe, step + 1, matcher, text, bytes, word, call)
                              : with_space(bpe, step, matcher, text, bytes, word, call);
    const bool writes = of->makes == AQ_BPE_WRITE, first = aq_bpe_matcher_budget(matcher)->first;
    struct aq_bpe_text *made = aq_bpe_matcher_text(matcher, step, writes ? "ByteLevel" : "Metaspace");
    AQ_TRY(writes ? aq_bpe_write(text, bytes, made) : metaspace(of, first, text, bytes, made));
    return aq_bpe_split(bpe, step + 1, matcher, made->at, made->count, word, call);
}

/* A word behind a ByteLevel with steps behind it, as the bytes that it writes. */
static enum aq_status unwritten(struct aq_bpe_matcher *matcher, const uint8_t *text, size_t bytes, aq_bpe_word *word,
                                struct aq_bpe_call *call)
{
    struct aq_bpe_text plain = aq_bpe_text_within(aq_bpe_matcher_budget(matcher), "ByteLevel");
    enum aq_status status = aq_bpe_unwrite(text, bytes, &plain);
    if (status == AQ_OK) status = word(call, plain.at, plain.count);
    aq_bpe_text_free(&plain);
    return status;
}

enum aq_status aq_bpe_split(const struct aq_bpe *bpe, uint32_t step, struct aq_bpe_matcher *matcher,
                            const uint8_t *text, size_t bytes, aq_bpe_word *word, struct aq_bpe_call *call)
{
    if (bytes == 0) return AQ_OK;
    if (step == bpe->step_count)
        return bpe->writes ? unwritten(matcher, text, bytes, word, call) : word(call, text, bytes);
    if (!bpe->steps[step].pattern) return with_made(bpe, step, matcher, text, bytes, word, call);
    struct cut cut = {.bpe = bpe,
                      .step = &bpe->steps[step],
                      .next = step + 1,
                      .matcher = matcher,
                      .text = text,
                      .first = aq_bpe_matcher_budget(matcher)->first,
                      .word = word,
                      .call = call};
    return cut_by_pattern(&cut, bytes);
}
