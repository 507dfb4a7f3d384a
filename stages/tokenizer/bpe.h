/*
 * bpe.h -- one engine under every tokenizer that makes words of a text and tokens of words, whatever files describe it:
 * byte-pair encodings first, and Unigram, WordPiece and whole words.
 *
 *     text --added tokens--> parts --normalizer--> text --steps--> words --model--> tokens
 *
 * A row of tokenizers.def opens its files into struct aq_bpe and leaves the rest to aq_bpe_encode:
 *
 *     bpe_vocabulary.c  tokens and merges from JSON and from merges.txt, checked, as tables
 *     bpe_added.c       tokens that are found in the text itself ("<|endoftext|>"), before and behind the normalizer
 *     bpe_normal.c      normalizers; the Unicode forms are unicode_forms.c's (utf8proc)
 *     bpe_pattern.c     the regular expressions of the files (PCRE2)
 *     bpe_budget.c      what one text may cost at most: bytes of its normalized form, steps of patterns, CPU time
 *     bpe_split.c       the steps of the pre-tokenizer: a text into words
 *     bpe_characters.c  normalizers of single characters, and of SentencePiece's table (charsmap.h)
 *     bpe_merge.c       the merges of one word
 *     bpe_unigram.c     the likeliest pieces of one word
 *     bpe_wordpiece.c   the longest pieces of one word
 *     bpe_encode.c      all of it, and the cache of words
 *     bpe_say.c         the other way: the text of each token, through the decoders
 *
 * For valid UTF-8 the ids equal those of the published `tokenizers` package, which takes no other text. Here each
 * unbroken run of bytes that are not UTF-8 (RFC 3629) is one word, and the valid texts before and behind it are cut
 * independently.
 *
 * Locking: as tokenizer.h.
 */
#ifndef STAGES_BPE_H
#define STAGES_BPE_H

#include <assert.h>
#include <jansson.h>

#include "charsmap.h"
#include "piece_trie.h"
#include "tokenizer.h"

#define AQ_BPE_AREA "tokenizer"

/* A file's bytes at most (Gemma 3's tokenizer.json has 33 MB), a token's in its file's writing, all tokens. */
enum { AQ_BPE_FILE_BYTES_MAX = 256 << 20, AQ_BPE_TOKEN_BYTES_MAX = 1 << 16, AQ_BPE_TOKENS_MAX = 1 << 24 };

/* A text that grows; what is written on is one call's own. */
struct aq_bpe_text {
    uint8_t *at;
    size_t count, capacity;
    size_t bytes_max;  /* 0: no bound; else aq_bpe_text_within set it  */
    const char *place; /* which part of the file makes it, or NULL     */
};
/* AQ_INVAL: more than bytes_max; the message names `place`. */
enum aq_status aq_bpe_text_add(struct aq_bpe_text *text, const void *bytes, size_t count);
void aq_bpe_text_free(struct aq_bpe_text *text); /* leaves zeroes: no bound */

/* ---- budget ---- */

/*
 * What one text may cost. A tokenizer's files are a stranger's: its normalizers may grow a text, and its patterns may
 * take steps without end. Every text that is made of the given one has the bound of aq_bpe_text_within; patterns take
 * their steps from `steps`, and stop when the thread's CPU time is used up (docs/DECISIONS.md 0640).
 *
 *     AQ_BPE_GROWTH times the given bytes and AQ_BPE_GROWN_MIN, at most AQ_BPE_GROWN_MAX  (U+FDFA is 11 times as long
 *     in NFKD, a space 3 times as U+2581; a longer text may stay as long as it is)
 *     AQ_BPE_STEPS_PER_BYTE a byte and AQ_BPE_STEPS_MIN: a match that needs fewer than AQ_BPE_STEPS_FREE is free
 *     AQ_BPE_CPU_NS_PER_BYTE a byte and AQ_BPE_CPU_NS_MIN: 100 times what published tokenizers need
 */
#define AQ_BPE_GROWN_MAX       ((size_t)1 << 30)
#define AQ_BPE_STEPS_MIN       UINT64_C(10000000)
#define AQ_BPE_CPU_NS_MIN      UINT64_C(1000000000)
#define AQ_BPE_CPU_NS_PER_BYTE UINT64_C(3000)
enum { AQ_BPE_GROWTH = 32, AQ_BPE_GROWN_MIN = 4096, AQ_BPE_STEPS_PER_BYTE = 1000, AQ_BPE_STEPS_FREE = 1000 };

struct aq_bpe_budget {
    size_t grown_max;    /* of what becomes of it               */
    uint64_t steps;      /* that are left                       */
    uint64_t cpu_end_ns; /* of this thread's CPU time           */
    uint64_t look_ns;    /* when the CPU time is looked at next */
    uint32_t looked;     /* calls of aq_bpe_budget_take         */
    bool first;          /* the part in hand is the text's first one */
};
/* Begins a budget for a text of `bytes`; by the thread that uses it. */
void aq_bpe_budget_begin(struct aq_bpe_budget *budget, size_t bytes);
/* An empty text with the budget's bound. place: borrowed as long as the text lives. */
struct aq_bpe_text aq_bpe_text_within(const struct aq_bpe_budget *budget, const char *place);
/* Takes `steps`; false: too few are left, or the CPU time is used up (looked at every 10 ms). */
bool aq_bpe_budget_take(struct aq_bpe_budget *budget, uint64_t steps);

/* ---- vocabulary ---- */

/* One merge: the pair (left << 32 | right) becomes `token`. rank 0 is merged first. A slot of a hash table. */
struct aq_bpe_merge {
    uint64_t pair;
    uint32_t rank;
    uint32_t token;
};

#define AQ_BPE_EMPTY UINT64_MAX /* the pair of a free slot: no token has that number */
#define AQ_BPE_NONE  UINT32_MAX /* no token                                          */

/* A text per token; start NULL: no table. */
struct aq_bpe_said {
    uint32_t *start; /* count + 1 */
    uint8_t *bytes;
};
void aq_bpe_said_close(struct aq_bpe_said *said);

/* At most this many of the character are cut off at the start and at the end of a text. */
struct aq_bpe_cut {
    char character[5]; /* UTF-8 */
    uint32_t start, end;
};

/* The part of a text that stays: bytes *start..*end - 1. */
void aq_bpe_cut_text(const struct aq_bpe_cut *cut, const char *text, size_t bytes, size_t *start, size_t *end);

struct aq_bpe_vocabulary {
    uint32_t count;  /* tokens, the added ones as well                                            */
    uint32_t *start; /* count + 1: token i is bytes[start[i]] .. bytes[start[i+1]]                */
    uint8_t *bytes;
    struct aq_bpe_said said;       /* what tokens are as text, where that is not their bytes           */
    struct aq_bpe_said said_first; /* the same of a text's first token, where that differs             */
    struct aq_bpe_cut cut;         /* what is cut off a text of many tokens                            */
    uint32_t *names;               /* tokens by their bytes: token + 1, 0 is free; without those that are only added */
    uint64_t name_slots;           /* a power of two                                                            */
    struct aq_bpe_merge *merges;   /* open addressing, at most half full                                */
    uint64_t merge_slots;          /* a power of two                                                    */
    uint32_t merge_count;
    bool characters;          /* words are split into characters, not bytes; then:                    */
    bool fallback;            /* a character that is no token becomes its bytes' tokens               */
    bool fuse_unknown;        /* unknown characters in a row are one unknown token                    */
    uint32_t unknown;         /* the token of a character without one; AQ_BPE_NONE: it is left out    */
    uint32_t byte_token[256]; /* the token of every single byte; characters: "<0x0A>", or AQ_BPE_NONE */
};

/* A token that is found in the text itself. */
struct aq_bpe_added {
    const char *content; /* borrowed from the JSON */
    uint32_t bytes, token;
    bool single_word, strip_left, strip_right, normalized;
};

/*
 * Tokens from the JSON object `vocab` (name: id) and from the added ones that it lacks; ids are 0..count-1, each once.
 * characters: names are text, else bytes written as printable characters. place: where the object is, for messages
 * ("vocab.json", "tokenizer.json: model.vocab"). AQ_CORRUPT: names the token.
 */
enum aq_status aq_bpe_vocabulary_open(const char *place, json_t *vocab, bool characters,
                                      const struct aq_bpe_added *added, uint32_t added_count,
                                      struct aq_bpe_vocabulary *out);
void aq_bpe_vocabulary_close(struct aq_bpe_vocabulary *vocabulary);
/* Every single byte must be a token: true of byte-level vocabularies. AQ_CORRUPT. */
enum aq_status aq_bpe_vocabulary_bytes(const char *place, struct aq_bpe_vocabulary *vocabulary);
/* One decoder: appends to `out` what it makes of a token's text. first: the token is the first one of a text. */
typedef enum aq_status aq_bpe_say(void *context, const uint8_t *text, uint32_t bytes, bool first,
                                  struct aq_bpe_text *out);
/*
 * All tokens' texts through a decoder, behind those before it. differs: it makes something else of a text's first
 * token. AQ_INVAL: the texts become longer than the budget of a text of their length allows.
 */
enum aq_status aq_bpe_vocabulary_say(struct aq_bpe_vocabulary *vocabulary, const char *place, bool differs,
                                     aq_bpe_say *say, void *context);
/* The text of a token (first: of a text's first one): the bytes and their count. */
const uint8_t *aq_bpe_vocabulary_text(const struct aq_bpe_vocabulary *vocabulary, uint32_t token, bool first,
                                      uint32_t *bytes);
/* The token of these bytes, or AQ_BPE_NONE. */
uint32_t aq_bpe_vocabulary_find(const struct aq_bpe_vocabulary *vocabulary, const void *bytes, size_t count);

/* Merges in order of their rank: room for `count`, then each. AQ_CORRUPT names place and number: 1 is the first. */
enum aq_status aq_bpe_merges_open(struct aq_bpe_vocabulary *vocabulary, uint64_t count);
enum aq_status aq_bpe_merges_add(const char *place, const char *left, size_t left_bytes, const char *right,
                                 size_t right_bytes, uint64_t number, struct aq_bpe_vocabulary *vocabulary);

/* Spreads a pair over the table's slots; the multiplier is 2^64 divided by the golden ratio. */
static inline uint64_t aq_bpe_slot(uint64_t pair, uint64_t slots)
{
    uint64_t mixed = (pair ^ (pair >> 29)) * UINT64_C(0x9E3779B97F4A7C15);
    return (mixed >> 32) & (slots - 1);
}

/* The merge of a pair, or NULL. */
static inline const struct aq_bpe_merge *aq_bpe_merge_find(const struct aq_bpe_vocabulary *vocabulary, uint32_t left,
                                                           uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right, mask = vocabulary->merge_slots - 1;
    for (uint64_t slot = aq_bpe_slot(pair, vocabulary->merge_slots);; slot = (slot + 1) & mask) {
        const struct aq_bpe_merge *merge = &vocabulary->merges[slot];
        if (merge->pair == pair) return merge;
        if (merge->pair == AQ_BPE_EMPTY) return NULL; /* comes at last: the table is at most half full */
    }
}

/* ---- merging ---- */

/* A longer word is merged in pieces of this length: with 32 bytes of scratch per byte, 32 MiB. */
enum { AQ_BPE_WORD_BYTES_MAX = 1 << 20 };

struct aq_bpe_node;
struct aq_bpe_path;
/* Scratch memory of the word model; it grows to the longest word and belongs to one call. */
struct aq_bpe_scratch {
    struct aq_bpe_node *nodes; /* of merges */
    uint64_t *heap;
    size_t symbols_max;       /* the longest word that fits */
    struct aq_bpe_path *path; /* of Unigram */
    size_t path_max;          /* its longest word */
};
void aq_bpe_scratch_free(struct aq_bpe_scratch *scratch);

/* Appends the tokens of one word of 1..AQ_BPE_WORD_BYTES_MAX bytes. */
enum aq_status aq_bpe_merge_word(const struct aq_bpe_vocabulary *vocabulary, struct aq_bpe_scratch *scratch,
                                 const uint8_t *word, size_t bytes, struct aq_token_list *list);

/* The same for other models of words. AQ_INVAL: the word is beyond the budget, or the model has no unknown token. */
struct aq_bpe;
struct aq_bpe_pieces;
enum aq_status aq_bpe_unigram_word(const struct aq_bpe *bpe, struct aq_bpe_scratch *scratch,
                                   struct aq_bpe_budget *budget, const uint8_t *word, size_t bytes,
                                   struct aq_token_list *list);
enum aq_status aq_bpe_wordpiece_word(const struct aq_bpe *bpe, struct aq_bpe_budget *budget, const uint8_t *word,
                                     size_t bytes, struct aq_token_list *list);
/* The tokens of `vocab` as a trie: models without merges need it. AQ_INVAL, AQ_NOMEM: as aq_piece_trie_open. */
enum aq_status aq_bpe_pieces_open(struct aq_bpe *bpe);
void aq_bpe_pieces_close(struct aq_bpe_pieces *pieces); /* zeroes are fine */

/* ---- patterns ---- */

enum { AQ_BPE_STEPS_MAX = 16 }; /* of a pre-tokenizer, and of a normalizer */

/* PCRE2's version: what matches follows from it. */
enum { AQ_BPE_LIBRARY_BYTES = 64 };
void aq_bpe_library(char version[AQ_BPE_LIBRARY_BYTES]);

struct aq_bpe_pattern; /* compiled: does not change                    */
struct aq_bpe_matcher; /* what matching writes on: one call's own      */

extern const char aq_bpe_pattern_gpt2[]; /* what "ByteLevel" cuts by, in the published writing */

/*
 * regex is Oniguruma's (Ruby) writing, as tokenizer.json has it; literal: it is the text itself. AQ_CORRUPT: it is no
 * regular expression (place, offset, PCRE2's words). AQ_INVAL: it has what PCRE2 does not read alike.
 */
enum aq_status aq_bpe_pattern_open(const char *place, const char *regex, size_t bytes, bool literal,
                                   struct aq_bpe_pattern **out);
void aq_bpe_pattern_close(struct aq_bpe_pattern *pattern); /* NULL is fine */
/* With the budget of an empty text: aq_bpe_budget_begin sets another. */
enum aq_status aq_bpe_matcher_open(struct aq_bpe_matcher **out);
void aq_bpe_matcher_close(struct aq_bpe_matcher *matcher); /* NULL is fine */
void aq_bpe_matcher_rest(struct aq_bpe_matcher *matcher);  /* as after open, for another text; PCRE2's memory stays */
struct aq_bpe_budget *aq_bpe_matcher_budget(struct aq_bpe_matcher *matcher);
/* An empty text with the budget's bound: the output of step `step` for a piece; the matcher has one per step. */
struct aq_bpe_text *aq_bpe_matcher_text(struct aq_bpe_matcher *matcher, uint32_t step, const char *place);
/*
 * The first match in valid UTF-8 at or behind `from`; it may be empty. AQ_NOTFOUND (not logged): none. AQ_INVAL: the
 * matcher's budget is used up, or the pattern needs too much memory; names the pattern and its place.
 */
enum aq_status aq_bpe_match(const struct aq_bpe_pattern *pattern, struct aq_bpe_matcher *matcher, const uint8_t *text,
                            size_t bytes, size_t from, size_t *start, size_t *end);

/* Bytes as byte-level files write them, and back; both append to `out`. AQ_CORRUPT: a foreign character. */
enum aq_status aq_bpe_write(const uint8_t *bytes, size_t count, struct aq_bpe_text *out);
enum aq_status aq_bpe_unwrite(const uint8_t *writing, size_t count, struct aq_bpe_text *out);

/* ---- steps ---- */

enum aq_bpe_behaviour { AQ_BPE_ISOLATED, AQ_BPE_REMOVED, AQ_BPE_WITH_PREVIOUS, AQ_BPE_WITH_NEXT, AQ_BPE_CONTIGUOUS };

/* The change that a step without a pattern makes to a piece. */
enum aq_bpe_making {
    AQ_BPE_SPACE_BEFORE, /* a space before what has none (add_prefix_space)                                   */
    AQ_BPE_METASPACE,    /* spaces become the replacement, which is also put before a text                    */
    AQ_BPE_WRITE         /* bytes become the characters that byte-level files write them as: of what is behind it */
};
enum aq_bpe_scheme { AQ_BPE_ALWAYS, AQ_BPE_FIRST, AQ_BPE_NEVER };

/* One step of a pre-tokenizer: a cut by a pattern or, without one, something that is made of the piece. */
struct aq_bpe_step {
    struct aq_bpe_pattern *pattern;
    enum aq_bpe_behaviour behaviour;
    bool invert; /* matches and the text between them swap roles */
    enum aq_bpe_making makes;
    enum aq_bpe_scheme scheme; /* METASPACE: before every piece, before the first of the text, before none */
    char space[5];             /* METASPACE: the replacement, UTF-8                                       */
};

enum aq_bpe_normal_kind {
    AQ_BPE_NFC,
    AQ_BPE_NFD,
    AQ_BPE_NFKC,
    AQ_BPE_NFKD,
    AQ_BPE_LOWERCASE,
    AQ_BPE_PREPEND,  /* content, before a text that is not empty       */
    AQ_BPE_STRIP,    /* white space at the beginning and at the end     */
    AQ_BPE_REPLACE,  /* every match of the pattern becomes the content */
    AQ_BPE_CHARSMAP, /* SentencePiece's table of characters            */
    /* of single characters: bpe_characters.c */
    AQ_BPE_CLEAN,     /* BERT: no controls, every white space is a space  */
    AQ_BPE_IDEOGRAPH, /* BERT: a space before and behind each ideograph   */
    AQ_BPE_UNMARK,    /* without non-spacing marks                        */
    AQ_BPE_NMT        /* SentencePiece: no controls, odd spaces are spaces */
};

struct aq_bpe_normal {
    enum aq_bpe_normal_kind kind;
    char *place; /* in its file, for messages; of aq_alloc */
    struct aq_bpe_pattern *pattern;
    char *content; /* of aq_alloc */
    size_t bytes;
    bool left, right;             /* STRIP: at which side */
    struct aq_charsmap *charsmap; /* CHARSMAP             */
};

struct aq_bpe_finder; /* added tokens, as they are looked for: bpe_added.c */

/* The model that turns a word into tokens. */
enum aq_bpe_model {
    AQ_BPE_MERGES,    /* byte-pair encoding: bpe_merge.c                                      */
    AQ_BPE_UNIGRAM,   /* the pieces with the largest sum of scores: bpe_unigram.c             */
    AQ_BPE_WORDPIECE, /* from the left the longest piece that fits, or unknown: bpe_wordpiece.c */
    AQ_BPE_WORDS      /* the word is a token, or unknown                                       */
};

/* Data of Unigram and WordPiece about their pieces. */
struct aq_bpe_pieces {
    struct aq_piece_trie *trie;
    double *scores;          /* UNIGRAM: of each token                                             */
    double unknown_score;    /* UNIGRAM: of a character that is no piece                            */
    uint32_t continuing;     /* WORDPIECE: trie node where a piece within a word starts; or NONE    */
    uint32_t characters_max; /* WORDPIECE: a longer word is unknown                                */
};

struct aq_bpe {
    enum aq_bpe_model model;
    struct aq_bpe_pieces pieces;
    struct aq_bpe_vocabulary vocabulary;
    struct aq_bpe_finder *raw, *normalized; /* added tokens that are found before and behind the normalizer; or NULL */
    struct aq_bpe_normal normals[AQ_BPE_STEPS_MAX];
    uint32_t normal_count;
    struct aq_bpe_step steps[AQ_BPE_STEPS_MAX];
    uint32_t step_count;
    struct aq_unicode_forms *forms;     /* where a normalizer is a form */
    bool writes;                        /* a step is AQ_BPE_WRITE: words are as files write them */
    bool whole_words;                   /* a word that is a token is that token, without merges */
    _Atomic(struct aq_bpe_kept *) kept; /* of the last call, for the next one; NULL: there is none, or a call has it */
};
void aq_bpe_close(struct aq_bpe *bpe); /* what there is; zeroes are fine */

/* struct aq_tokenizer_kind's encode and token; the state is a struct aq_bpe. */
enum aq_status aq_bpe_encode(const struct aq_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                             struct aq_token_list *list);
const uint8_t *aq_bpe_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes);
/* The same of a text's first token; and what stays of a whole text. */
const uint8_t *aq_bpe_first_token(const struct aq_tokenizer *tokenizer, uint32_t token, uint32_t *bytes);
void aq_bpe_cut_whole(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes, size_t *start, size_t *end);

/* Whatever a call writes on. */
struct aq_bpe_call;
typedef enum aq_status aq_bpe_word(struct aq_bpe_call *call, const uint8_t *word, size_t bytes);

/* text through step `step` and those behind it: every word goes to `word`. */
enum aq_status aq_bpe_split(const struct aq_bpe *bpe, uint32_t step, struct aq_bpe_matcher *matcher,
                            const uint8_t *text, size_t bytes, aq_bpe_word *word, struct aq_bpe_call *call);

/*
 * text through all normalizers, into `out`. *changed false: it stays as it is, and out is empty. AQ_INVAL: a normalizer
 * makes more of it than the matcher's budget allows.
 */
enum aq_status aq_bpe_normalize(const struct aq_bpe *bpe, struct aq_bpe_matcher *matcher, const uint8_t *text,
                                size_t bytes, struct aq_bpe_text *out, bool *changed);

/* One of the normalizers of single characters, as the others; and Precompiled, by grapheme clusters. */
enum aq_status aq_bpe_characters(enum aq_bpe_normal_kind kind, const uint8_t *text, size_t bytes,
                                 struct aq_bpe_text *out, bool *changed);
enum aq_status aq_bpe_charsmap(const struct aq_charsmap *charsmap, const uint8_t *text, size_t bytes,
                               struct aq_bpe_text *out, bool *changed);

/* ---- added tokens ---- */

/* Of those whose `normalized` is this; their contents are copied, through the normalizer where it is true. */
enum aq_status aq_bpe_finder_open(const struct aq_bpe *bpe, const struct aq_bpe_added *added, uint32_t count,
                                  bool normalized, struct aq_bpe_finder **out);
void aq_bpe_finder_close(struct aq_bpe_finder *finder); /* NULL is fine */

/* The place of an added token, with the spaces that it takes. */
struct aq_bpe_place {
    size_t start, end; /* as published tokenizers have it, end may be before the spaces that an earlier one took */
    size_t spaces;     /* the end of spaces that were looked at */
    uint32_t token;
};
/*
 * The first one at or behind *next (at first 0): leftmost, then longest. *next: where to look for the one behind it.
 * out: the one before it (at first zeroes), then this one. False: there is none.
 */
bool aq_bpe_finder_next(const struct aq_bpe_finder *finder, const uint8_t *text, size_t bytes, size_t *next,
                        struct aq_bpe_place *out);

/* ---- characters ---- */

/* Bytes of the UTF-8 character at text; 0: not UTF-8. bytes > 0. */
size_t aq_bpe_character(const uint8_t *text, size_t bytes);
/* The end of the run of valid characters (or of invalid bytes) that starts at `at`. */
size_t aq_bpe_run_end(const uint8_t *text, size_t bytes, size_t at, bool valid);

#endif
