/*
 * tokenizer.h -- the seam behind aq_tokenizer_*: a kind of tokenizer is a row of tokenizers.def and one file.
 *
 * Locking: a tokenizer does not change after open; whatever a call needs to write on is taken by that call.
 */
#ifndef STAGES_TOKENIZER_PRIVATE_H
#define STAGES_TOKENIZER_PRIVATE_H

#include "stages/dataset.h"

/* Tokens that grow at the end. Capacity is reserved before tokens are written, so that a run needs one check. */
struct aq_token_list {
    int32_t *at;
    size_t count, capacity;
};

/* Room for `more` tokens behind those there are. at may move. AQ_NOMEM; the list stays as it was. */
enum aq_status aq_token_list_reserve(struct aq_token_list *list, size_t more);

struct aq_tokenizer_kind {
    struct aq_tokenizer_about about;
    /* Fills vocabulary, end_of_text, frame and state. On failure nothing is held. */
    enum aq_status (*open)(struct aq_tokenizer *tokenizer, const char *path);
    void (*close)(struct aq_tokenizer *tokenizer);
    /* Appends the tokens of text to the list. */
    enum aq_status (*encode)(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                             struct aq_token_list *list);
    /*
     * File `index` of those that are published: its path (from, `bytes` of room) and published name, NULL behind the
     * last. published_class: who reads them elsewhere. NULL: nothing is published.
     */
    enum aq_status (*published)(const char *path, uint32_t index, char *from, size_t bytes, const char **name);
    const char *published_class; /* NULL: only its own tokenizer_config.json may name it */
    /* The bytes of one token in range: *bytes and their count. */
    const uint8_t *(*token)(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes);
    /* The same of the first token of a text, where that may differ ("he" and not " he"); NULL: it does not. */
    const uint8_t *(*first)(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes);
    /* The part that stays of a text from its first token on: bytes *start..*end - 1. NULL: all of it. */
    void (*cut)(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes, size_t *start, size_t *end);
};

/* The kind of that name, or NULL. */
const struct aq_tokenizer_kind *aq_tokenizer_kind_find(const char *name);

struct aq_tokenizer {
    const struct aq_tokenizer_kind *kind;
    uint32_t vocabulary;
    int32_t end_of_text; /* -1: there is none */
    int32_t *specials;   /* tokens that are no text ("<|im_end|>"), special_count of them; or NULL */
    uint32_t special_count;
    int32_t begin; /* the folder's bos_token; -1: none is named */
    struct aq_tokenizer_frame frame;
    char *path;  /* as it was opened, or NULL */
    void *state; /* the kind's own */
};

/*
 * Of all that its tokens follow from: its kind, its files, the versions of the code and of the libraries it calls.
 * AQ_NOTFOUND, AQ_IO: a file has gone since it was opened.
 */
enum aq_status aq_tokenizer_digest(const struct aq_tokenizer *tokenizer, uint64_t *out);

/* Notes a token as one that is no text. AQ_NOMEM. */
enum aq_status aq_tokenizer_note_special(struct aq_tokenizer *tokenizer, int32_t token);

#define AQ_TOKENIZER(name) extern const struct aq_tokenizer_kind aq_tokenizer_##name;
#include "stages/tokenizers.def"
#undef AQ_TOKENIZER

#endif
