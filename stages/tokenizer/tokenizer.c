/*
 * tokenizer.c -- what all tokenizers have in common: the table of kinds, the growing list of tokens, decoding.
 */
#include "tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bpe.h"
#include "dataset_file.h"
#include "spm.h"
#include "unicode_forms.h"

static const struct aq_tokenizer_kind *const kinds[] = {
#define AQ_TOKENIZER(name) &aq_tokenizer_##name,
#include "stages/tokenizers.def"
#undef AQ_TOKENIZER
};

enum { PATH_BYTES = 4096 };
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

/* CODE_VERSION: one more whenever a tokenizer gives other tokens than before, so that kept ones are made again. */
enum { CODE_VERSION = 3, FILE_BYTES_MAX = 256 << 20 };

enum aq_status aq_token_list_reserve(struct aq_token_list *list, size_t more)
{
    if (more <= list->capacity - list->count) return AQ_OK;
    size_t most = SIZE_MAX / sizeof(int32_t) / 2;
    if (list->count > most || more > most - list->count)
        return aq_fail(AQ_NOMEM, "tokenizer", "%zu and %zu tokens do not fit the address space", list->count, more);
    size_t capacity = list->count + more;
    if (capacity < list->capacity + list->capacity / 2) capacity = list->capacity + list->capacity / 2;
    void *memory;
    AQ_TRY(aq_alloc(capacity * sizeof(int32_t), &memory));
    if (list->count) memcpy(memory, list->at, list->count * sizeof(int32_t));
    aq_free(list->at);
    list->at = memory;
    list->capacity = capacity;
    return AQ_OK;
}

const struct aq_tokenizer_kind *aq_tokenizer_kind_find(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (name && strcmp(kinds[i]->about.name, name) == 0) return kinds[i];
    }
    return NULL;
}

const struct aq_tokenizer_about *aq_tokenizer_about(const char *kind)
{
    const struct aq_tokenizer_kind *found = aq_tokenizer_kind_find(kind);
    return found ? &found->about : NULL;
}

/* Is one of the files there? marks: names with "|" between. */
static bool marked(const char *folder, const char *marks)
{
    for (const char *at = marks; at && *at; at += strspn(at, "|")) {
        char path[PATH_BYTES];
        const size_t name = strcspn(at, "|");
        const int bytes = snprintf(path, sizeof path, "%s/%.*s", folder, (int)name, at);
        if (bytes > 0 && bytes < PATH_BYTES && access(path, F_OK) == 0) return true;
        at += name;
    }
    return false;
}

const char *aq_tokenizer_of_folder(const char *folder)
{
    for (size_t i = KIND_COUNT; i-- > 0;)
        if (marked(folder, kinds[i]->about.marks)) return kinds[i]->about.name;
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (marked(folder, kinds[i]->about.marks_alone)) return kinds[i]->about.name;
    return NULL;
}

enum aq_status aq_tokenizer_open(const char *kind, const char *path, struct aq_tokenizer **out)
{
    const struct aq_tokenizer_kind *found = aq_tokenizer_kind_find(kind);
    if (!found) return aq_fail(AQ_INVAL, "tokenizer", "there is no tokenizer \"%s\"", kind ? kind : "(none)");
    struct aq_tokenizer *tokenizer;
    AQ_TRY(AQ_NEW(1, &tokenizer));
    *tokenizer = (struct aq_tokenizer){.kind = found, .end_of_text = -1, .begin = -1};
    enum aq_status status = path ? aq_alloc_text(path, &tokenizer->path) : AQ_OK;
    if (status == AQ_OK) status = found->open(tokenizer, path);
    if (status != AQ_OK) {
        aq_free(tokenizer->specials);
        aq_free(tokenizer->path);
        aq_free(tokenizer);
        return status;
    }
    AQ_ASSERT(tokenizer->vocabulary > 0 && tokenizer->vocabulary <= INT32_MAX);
    *out = tokenizer;
    return AQ_OK;
}

void aq_tokenizer_close(struct aq_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    tokenizer->kind->close(tokenizer);
    aq_free(tokenizer->specials);
    aq_free(tokenizer->path);
    aq_free(tokenizer);
}

uint32_t aq_tokenizer_vocabulary(const struct aq_tokenizer *tokenizer)
{
    return tokenizer->vocabulary;
}

int32_t aq_tokenizer_end_of_text(const struct aq_tokenizer *tokenizer)
{
    return tokenizer->end_of_text;
}

enum aq_status aq_tokenizer_note_special(struct aq_tokenizer *tokenizer, int32_t token)
{
    const uint32_t count = tokenizer->special_count;
    void *memory;
    if ((count & (count - 1)) == 0) { /* full at powers of two */
        AQ_TRY(aq_alloc((count ? 2 * (size_t)count : 1) * sizeof *tokenizer->specials, &memory));
        if (count) memcpy(memory, tokenizer->specials, count * sizeof *tokenizer->specials);
        aq_free(tokenizer->specials);
        tokenizer->specials = memory;
    }
    tokenizer->specials[tokenizer->special_count++] = token;
    return AQ_OK;
}

bool aq_tokenizer_special(const struct aq_tokenizer *tokenizer, int32_t token)
{
    for (uint32_t i = 0; i < tokenizer->special_count; i++)
        if (tokenizer->specials[i] == token) return true;
    return token >= 0 && token == tokenizer->end_of_text;
}

enum aq_status aq_tokenizer_digest(const struct aq_tokenizer *tokenizer, uint64_t *out)
{
    const struct aq_tokenizer_kind *kind = tokenizer->kind;
    uint64_t digest = aq_digest_seeded(kind->about.name, strlen(kind->about.name), CODE_VERSION);
    char bpe[AQ_BPE_LIBRARY_BYTES];
    aq_bpe_library(bpe);
    const char *const libraries[] = {bpe, aq_unicode_library(), aq_spm_library()};
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        digest = aq_digest_seeded(libraries[i], strlen(libraries[i]) + 1, digest);
    const char *name;
    char from[4096];
    for (uint32_t i = 0; kind->published; i++) {
        uint8_t *bytes;
        size_t count;
        AQ_TRY(kind->published(tokenizer->path, i, from, sizeof from, &name));
        if (!name) break;
        AQ_TRY(aq_file_read("tokenizer", from, FILE_BYTES_MAX, &bytes, &count));
        digest = aq_digest_seeded(bytes, count, digest);
        aq_free(bytes);
    }
    *out = digest;
    return AQ_OK;
}

const struct aq_tokenizer_frame *aq_tokenizer_frame(const struct aq_tokenizer *tokenizer)
{
    return &tokenizer->frame;
}

enum aq_status aq_tokenizer_begins(const struct aq_tokenizer *tokenizer, enum aq_begin begin,
                                   int32_t out[AQ_TOKENIZER_FRAME_MAX], uint32_t *count)
{
    const struct aq_tokenizer_frame *frame = &tokenizer->frame;
    *count = begin == AQ_BEGIN_NONE ? 0 : frame->before_count;
    memcpy(out, frame->before, sizeof frame->before);
    if (begin != AQ_BEGIN_ALWAYS || *count) return AQ_OK;
    if (tokenizer->begin < 0)
        return aq_fail(AQ_INVAL, "tokenizer",
                       "%s: the tokenizer puts nothing in front of a text and names no bos_token: leave data.bos out",
                       tokenizer->path ? tokenizer->path : tokenizer->kind->about.name);
    out[(*count)++] = tokenizer->begin;
    return AQ_OK;
}

enum aq_status aq_tokenizer_within(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   uint32_t rows)
{
    char shown[64];
    size_t i = 0;
    if (rows == 0 || tokenizer->vocabulary <= rows) return AQ_OK;
    while (i < count && (uint32_t)tokens[i] < rows)
        i++;
    if (i == count) return AQ_OK;
    uint32_t bytes;
    const uint8_t *text = tokenizer->kind->token(tokenizer, (uint32_t)tokens[i], &bytes);
    aq_printable((const char *)text, bytes < 32 ? bytes : 32, false, shown, sizeof shown);
    return aq_fail(AQ_MISMATCH, "tokenizer",
                   "a text has the token %d (\"%s\"), and the model's table has %u rows (vocab_size of config.json): "
                   "take it out of the text",
                   (int)tokens[i], shown, rows);
}

bool aq_tokenizer_begun(const int32_t *before, uint32_t count, const int32_t *tokens, size_t token_count)
{
    return count && token_count >= count && memcmp(before, tokens, count * sizeof *before) == 0;
}

enum aq_status aq_tokenizer_encode(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes,
                                   int32_t **tokens, size_t *count)
{
    struct aq_token_list list = {0};
    /* English takes four to five bytes a BPE token; whatever the guess, the list grows where it was too small. */
    enum aq_status status = aq_token_list_reserve(&list, bytes / 4 + 64);
    if (status == AQ_OK) status = tokenizer->kind->encode(tokenizer, (const uint8_t *)text, bytes, &list);
    if (status != AQ_OK) {
        aq_free(list.at);
        return status;
    }
    *tokens = list.at;
    *count = list.count;
    return AQ_OK;
}

/* The text of the token at `i`; whole: the tokens are a text from its beginning on. */
static const uint8_t *text_of(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t i, bool whole,
                              uint32_t *bytes)
{
    const struct aq_tokenizer_kind *kind = tokenizer->kind;
    return (whole && i == 0 && kind->first ? kind->first : kind->token)(tokenizer, (uint32_t)tokens[i], bytes);
}

static enum aq_status decode(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count, bool whole,
                             char **text, size_t *bytes)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= tokenizer->vocabulary)
            return aq_fail(AQ_INVAL, "tokenizer", "token %d at position %zu is out of range: the vocabulary has %u",
                           (int)tokens[i], i, (unsigned)tokenizer->vocabulary);
        uint32_t part;
        text_of(tokenizer, tokens, i, whole, &part);
        if (part > SIZE_MAX - 1 - total)
            return aq_fail(AQ_NOMEM, "tokenizer", "the text does not fit the address space");
        total += part;
    }
    AQ_TRY(AQ_NEW(total + 1, text));
    char *at = *text;
    for (size_t i = 0; i < count; i++) {
        uint32_t part;
        const uint8_t *from = text_of(tokenizer, tokens, i, whole, &part);
        if (part) memcpy(at, from, part);
        at += part;
    }
    *at = 0;
    *bytes = total;
    return AQ_OK;
}

enum aq_status aq_tokenizer_decode(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   char **text, size_t *bytes)
{
    return decode(tokenizer, tokens, count, false, text, bytes);
}

enum aq_status aq_tokenizer_text(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count, char **text,
                                 size_t *bytes)
{
    size_t start, end;
    AQ_TRY(decode(tokenizer, tokens, count, true, text, bytes));
    if (!tokenizer->kind->cut) return AQ_OK;
    tokenizer->kind->cut(tokenizer, *text, *bytes, &start, &end);
    memmove(*text, *text + start, end - start);
    (*text)[end - start] = 0;
    *bytes = end - start;
    return AQ_OK;
}
