/*
 * tokenizer_gpt2.h -- the parts of GPT-2's byte-level BPE: the vocabulary, the pre-tokenizer, the merging of one word.
 *
 *     text --tokenizer_gpt2_words.c--> words --tokenizer_gpt2_merge.c--> tokens
 *     vocab.json, merges.txt --tokenizer_gpt2_files.c--> struct aq_gpt2_vocabulary
 *
 * Locking: as tokenizer.h.
 */
#ifndef STAGES_TOKENIZER_GPT2_H
#define STAGES_TOKENIZER_GPT2_H

#include "tokenizer.h"

/* One merge: the pair (left << 32 | right) becomes `token`. rank 0 is merged first. A slot of a hash table. */
struct aq_gpt2_merge {
    uint64_t pair;
    uint32_t rank;
    uint32_t token;
};

#define AQ_GPT2_EMPTY UINT64_MAX /* the pair of a free slot: no token has that number */

struct aq_gpt2_vocabulary {
    uint32_t count;
    uint32_t *start;         /* count + 1: token i is bytes[start[i]] .. bytes[start[i+1]]  */
    uint8_t *bytes;
    uint32_t byte_token[256]; /* the token of every single byte                             */
    int32_t end_of_text;     /* -1: none                                                     */
    struct aq_gpt2_merge *merges; /* open addressing, at most half full                      */
    uint64_t merge_slots;    /* a power of two                                               */
};

/* folder has vocab.json or encoder.json, and merges.txt or vocab.bpe. AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: file and line. */
enum aq_status aq_gpt2_vocabulary_open(const char *folder, struct aq_gpt2_vocabulary *out);
/* As struct aq_tokenizer_kind has it. */
enum aq_status aq_gpt2_published(const char *folder, uint32_t index, char *from, size_t bytes, const char **name);
void aq_gpt2_vocabulary_close(struct aq_gpt2_vocabulary *vocabulary);

/* Spreads a pair over the table's slots; the multiplier is 2^64 divided by the golden ratio. */
static inline uint64_t aq_gpt2_slot(uint64_t pair, uint64_t slots)
{
    uint64_t mixed = (pair ^ (pair >> 29)) * UINT64_C(0x9E3779B97F4A7C15);
    return (mixed >> 32) & (slots - 1);
}

/* The merge of a pair, or NULL. */
static inline const struct aq_gpt2_merge *aq_gpt2_merge_find(const struct aq_gpt2_vocabulary *vocabulary, uint32_t left,
                                                             uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right, mask = vocabulary->merge_slots - 1;
    for (uint64_t slot = aq_gpt2_slot(pair, vocabulary->merge_slots);; slot = (slot + 1) & mask) {
        const struct aq_gpt2_merge *merge = &vocabulary->merges[slot];
        if (merge->pair == pair) return merge;
        if (merge->pair == AQ_GPT2_EMPTY) return NULL; /* comes at last: the table is at most half full */
    }
}

/* A longer word is merged in pieces of so many bytes: 32 bytes of scratch a byte make that 32 MiB. */
enum { AQ_GPT2_WORD_BYTES_MAX = 1 << 20 };

struct aq_gpt2_node;
/* What merging writes on; it grows to the longest word and is one call's own. */
struct aq_gpt2_scratch {
    struct aq_gpt2_node *nodes;
    uint64_t *heap;
    size_t bytes_max; /* the longest word that fits */
};
void aq_gpt2_scratch_free(struct aq_gpt2_scratch *scratch);

/* Appends the tokens of one word of 1..AQ_GPT2_WORD_BYTES_MAX bytes. */
enum aq_status aq_gpt2_merge_word(const struct aq_gpt2_vocabulary *vocabulary, struct aq_gpt2_scratch *scratch,
                                  const uint8_t *word, size_t bytes, struct aq_token_list *list);

struct aq_gpt2_pattern; /* the compiled pre-tokenizer: does not change */
struct aq_gpt2_words;   /* its walk over one text: one call's own       */

enum aq_status aq_gpt2_pattern_open(struct aq_gpt2_pattern **out);
void aq_gpt2_pattern_close(struct aq_gpt2_pattern *pattern); /* NULL is fine */

/* text is borrowed until close. */
enum aq_status aq_gpt2_words_open(const struct aq_gpt2_pattern *pattern, const uint8_t *text, size_t bytes,
                                  struct aq_gpt2_words **out);
void aq_gpt2_words_close(struct aq_gpt2_words *words); /* NULL is fine */
/* The next word text[*start .. *end); the words follow each other without a gap. AQ_NOTFOUND (not logged): the end. */
enum aq_status aq_gpt2_words_next(struct aq_gpt2_words *words, size_t *start, size_t *end);

#endif
