/*
 * bpe_normal.c -- normalizers: a text through one after another. An unchanged text is not copied.
 */
#include "bpe.h"

#include <string.h>

#include "unicode_forms.h"

static enum aq_status to_form(const struct aq_bpe *bpe, enum aq_unicode_form form, const uint8_t *text, size_t bytes,
                              struct aq_bpe_text *out, bool *changed)
{
    size_t done = 0, start, end;
    while (aq_unicode_segment(bpe->forms, form, text, bytes, done, &start, &end)) {
        uint8_t *composed;
        size_t count;
        AQ_TRY(aq_bpe_text_add(out, text + done, start - done));
        AQ_TRY(aq_unicode_form(form, text + start, end - start, &composed, &count));
        *changed = *changed || count != end - start || memcmp(composed, text + start, count) != 0;
        const enum aq_status status = aq_bpe_text_add(out, composed, count);
        aq_free(composed);
        AQ_TRY(status);
        done = end;
    }
    return *changed ? aq_bpe_text_add(out, text + done, bytes - done) : AQ_OK;
}

static enum aq_status prepend(const struct aq_bpe_normal *normal, const uint8_t *text, size_t bytes,
                              struct aq_bpe_text *out, bool *changed)
{
    if (bytes == 0) return AQ_OK;
    *changed = true;
    AQ_TRY(aq_bpe_text_add(out, normal->content, normal->bytes));
    return aq_bpe_text_add(out, text, bytes);
}

static enum aq_status replace(const struct aq_bpe_normal *normal, struct aq_bpe_matcher *matcher, const uint8_t *text,
                              size_t bytes, struct aq_bpe_text *out, bool *changed)
{
    size_t from = 0, last = 0, start, end;
    enum aq_status status = AQ_OK;
    while (from < bytes) {
        status = aq_bpe_match(normal->pattern, matcher, text, bytes, from, &start, &end);
        if (status != AQ_OK) break;
        if (start == end) { /* nothing is no match */
            if (start == bytes) break;
            from = start + aq_bpe_character(text + start, bytes - start);
            continue;
        }
        AQ_TRY(aq_bpe_text_add(out, text + last, start - last));
        AQ_TRY(aq_bpe_text_add(out, normal->content, normal->bytes));
        from = last = end;
        *changed = true;
    }
    if (status != AQ_OK && status != AQ_NOTFOUND) return status;
    return *changed ? aq_bpe_text_add(out, text + last, bytes - last) : AQ_OK;
}

static enum aq_status strip(const struct aq_bpe_normal *normal, const uint8_t *text, size_t bytes,
                            struct aq_bpe_text *out, bool *changed)
{
    size_t start = 0, end = bytes, last = 0;
    uint32_t character;
    bool text_seen = false;
    for (size_t at = 0; at < bytes;) {
        const size_t length = aq_unicode_read(text + at, &character);
        const bool space = aq_unicode_is_space(character);
        if (!space && !text_seen) start = at;
        text_seen = text_seen || !space;
        at += length;
        if (!space) last = at;
    }
    if (!text_seen) start = bytes;
    if (!normal->left) start = 0;
    if (normal->right) end = last > start ? last : start;
    *changed = start > 0 || end < bytes;
    return *changed ? aq_bpe_text_add(out, text + start, end - start) : AQ_OK;
}

static enum aq_status normalize_by(const struct aq_bpe *bpe, const struct aq_bpe_normal *normal,
                                   struct aq_bpe_matcher *matcher, const uint8_t *text, size_t bytes,
                                   struct aq_bpe_text *out, bool *changed)
{
    switch (normal->kind) {
    case AQ_BPE_NFC:
        return to_form(bpe, AQ_UNICODE_NFC, text, bytes, out, changed);
    case AQ_BPE_NFD:
        return to_form(bpe, AQ_UNICODE_NFD, text, bytes, out, changed);
    case AQ_BPE_NFKC:
        return to_form(bpe, AQ_UNICODE_NFKC, text, bytes, out, changed);
    case AQ_BPE_NFKD:
        return to_form(bpe, AQ_UNICODE_NFKD, text, bytes, out, changed);
    case AQ_BPE_LOWERCASE:
    case AQ_BPE_CLEAN:
    case AQ_BPE_IDEOGRAPH:
    case AQ_BPE_UNMARK:
    case AQ_BPE_NMT:
        return aq_bpe_characters(normal->kind, text, bytes, out, changed);
    case AQ_BPE_PREPEND:
        return prepend(normal, text, bytes, out, changed);
    case AQ_BPE_STRIP:
        return strip(normal, text, bytes, out, changed);
    case AQ_BPE_REPLACE:
        return replace(normal, matcher, text, bytes, out, changed);
    case AQ_BPE_CHARSMAP:
        return aq_bpe_charsmap(normal->charsmap, text, bytes, out, changed);
    }
    return aq_fail(AQ_INVAL, AQ_BPE_AREA, "there is no such normalizer");
}

enum aq_status aq_bpe_normalize(const struct aq_bpe *bpe, struct aq_bpe_matcher *matcher, const uint8_t *text,
                                size_t bytes, struct aq_bpe_text *out, bool *changed)
{
    *changed = false;
    for (uint32_t i = 0; i < bpe->normal_count; i++) {
        struct aq_bpe_text next = aq_bpe_text_within(aq_bpe_matcher_budget(matcher), bpe->normals[i].place);
        bool now = false;
        const enum aq_status status = normalize_by(bpe, &bpe->normals[i], matcher, *changed ? out->at : text,
                                                   *changed ? out->count : bytes, &next, &now);
        if (status != AQ_OK || !now) {
            aq_bpe_text_free(&next);
            AQ_TRY(status);
            continue;
        }
        aq_bpe_text_free(out);
        *out = next;
        *changed = true;
    }
    return AQ_OK;
}
