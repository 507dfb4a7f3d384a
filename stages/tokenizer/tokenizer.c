/*
 * tokenizer.c -- what all tokenizers have in common: the table of kinds, the growing list of tokens, decoding.
 */
#include "tokenizer.h"

#include <string.h>

static const struct aq_tokenizer_kind *const kinds[] = {
#define AQ_TOKENIZER(name) &aq_tokenizer_##name,
#include "stages/tokenizers.def"
#undef AQ_TOKENIZER
};

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

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

enum aq_status aq_tokenizer_open(const char *kind, const char *path, struct aq_tokenizer **out)
{
    const struct aq_tokenizer_kind *found = aq_tokenizer_kind_find(kind);
    if (!found)
        return aq_fail(AQ_INVAL, "tokenizer", "there is no tokenizer \"%s\"", kind ? kind : "(none)");
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_tokenizer), &memory));
    struct aq_tokenizer *tokenizer = memory;
    *tokenizer = (struct aq_tokenizer){.kind = found, .end_of_text = -1};
    enum aq_status status = found->open(tokenizer, path);
    if (status != AQ_OK) {
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

enum aq_status aq_tokenizer_decode(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   char **text, size_t *bytes)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= tokenizer->vocabulary)
            return aq_fail(AQ_INVAL, "tokenizer", "token %zu is %d, the vocabulary has %u", i, (int)tokens[i],
                           (unsigned)tokenizer->vocabulary);
        uint32_t part;
        tokenizer->kind->token(tokenizer, (uint32_t)tokens[i], &part);
        if (part > SIZE_MAX - 1 - total)
            return aq_fail(AQ_NOMEM, "tokenizer", "the text does not fit the address space");
        total += part;
    }
    void *memory;
    AQ_TRY(aq_alloc(total + 1, &memory));
    uint8_t *at = memory;
    for (size_t i = 0; i < count; i++) {
        uint32_t part;
        const uint8_t *from = tokenizer->kind->token(tokenizer, (uint32_t)tokens[i], &part);
        memcpy(at, from, part);
        at += part;
    }
    *at = 0;
    *text = memory;
    *bytes = total;
    return AQ_OK;
}
