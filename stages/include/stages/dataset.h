/*
 * dataset.h -- texts, tokenizers, samples with stable ids, and the order in which training meets them.
 *
 * Kinds are rows of datasets.def. A sample is a set of named fields; its id is its place in the files, whatever the
 * seed, the batch or the number of stages.
 *
 * A text data set is one or more UTF-8 files, tokenized and joined, cut into blocks of T+1 tokens that overlap by one:
 * block i has tokens [i*T, i*T+T) and targets one further. Of a file of records (.jsonl, .json, .csv, ...) the string
 * `text` of each is taken, an end-of-text token behind it (docs/DATA.md). Any file may be packed by gzip or zstd.
 * Sample id = block number; the last part that does not fill a block is dropped, and the dropped tokens are counted
 * (aq_dataset_dropped).
 *
 * If a text starts with a special token (config.begin), each block does: it has T + 1 places, or T if places_max allows
 * no more, and the targets of the places in front are -1.
 *
 * The sampler's order is a pure function of (seed, epoch): every rank knows all of it ahead, after a restart too.
 *
 * Locking: read-only after open; any thread.
 */
#ifndef STAGES_DATASET_H
#define STAGES_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "stages/batch.h"
#include "stages/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_tokenizer; /* opaque */

/* Properties of a kind of tokenizers (a row of tokenizers.def), known before one is opened; NULL: no such kind. */
struct aq_tokenizer_about {
    const char *name;
    const char *files;       /* "vocab.json and merges.txt": what the folder at its path has; NULL: it needs no path */
    uint32_t tokens;         /* its vocabulary; 0: set by its files                                                   */
    bool normalizes;         /* decoding gives a text as the tokenizer has changed it, not the bytes that were given  */
    const char *marks;       /* "merges.txt|vocab.bpe": with one of them, a model's folder is read by it             */
    const char *marks_alone; /* the same, where the folder has none of any kind's marks                         */
};
const struct aq_tokenizer_about *aq_tokenizer_about(const char *kind);

/*
 * The kind that reads the tokenizer of a model's folder, by the files that are there (later rows of tokenizers.def go
 * first: spm.model, then tokenizer.json, then merges.txt; tokenizer.model only without these, since it lacks the tokens
 * that were added later). NULL: none. Only aq_tokenizer_open reads the files.
 */
const char *aq_tokenizer_of_folder(const char *folder);

/* path: the folder with its files. AQ_INVAL: kind. AQ_NOTFOUND, AQ_CORRUPT: file and line. */
enum aq_status aq_tokenizer_open(const char *kind, const char *path, struct aq_tokenizer **out);
void aq_tokenizer_close(struct aq_tokenizer *tokenizer); /* NULL is fine */
uint32_t aq_tokenizer_vocabulary(const struct aq_tokenizer *tokenizer);

/* The token that separates texts ("<|endoftext|>" of gpt2), or -1 if the vocabulary has none. */
int32_t aq_tokenizer_end_of_text(const struct aq_tokenizer *tokenizer);

/* Is it a token that its files mark as special, as "<|im_end|>", and no text? */
bool aq_tokenizer_special(const struct aq_tokenizer *tokenizer, int32_t token);

/*
 * The tokens that the tokenizer's own template puts around one text ("[CLS]" before, "[SEP]" after it) and between two:
 * for tasks that need them. aq_tokenizer_encode does not add them: a language model's text continues others. All counts
 * are 0 where there is no template.
 */
enum { AQ_TOKENIZER_FRAME_MAX = 8 };
struct aq_tokenizer_frame {
    int32_t before[AQ_TOKENIZER_FRAME_MAX], between[AQ_TOKENIZER_FRAME_MAX], after[AQ_TOKENIZER_FRAME_MAX];
    uint32_t before_count, between_count, after_count;
    int32_t second_type, last_type; /* token types of a pair: of its second text, and of what is behind; else 0 */
};
const struct aq_tokenizer_frame *aq_tokenizer_frame(const struct aq_tokenizer *tokenizer);

/* Does a text get the token that marks its start (data.bos)? AUTO: what the frame puts before a text. */
enum aq_begin { AQ_BEGIN_NONE = 0, AQ_BEGIN_AUTO, AQ_BEGIN_ALWAYS };

/*
 * The tokens at the start of a text, into out; *count of them, maybe 0. ALWAYS: those of the frame, or else the
 * folder's bos_token. AQ_INVAL: ALWAYS, and the tokenizer has neither.
 */
enum aq_status aq_tokenizer_begins(const struct aq_tokenizer *tokenizer, enum aq_begin begin,
                                   int32_t out[AQ_TOKENIZER_FRAME_MAX], uint32_t *count);
/*
 * Are all of these tokens below `rows`, the rows of a model's table (0: not known)? A tokenizer may have more, as the
 * one of Gemma 3's texts has a token of images. AQ_MISMATCH: names the token.
 */
enum aq_status aq_tokenizer_within(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   uint32_t rows);
/*
 * Do the tokens of a text already start with `before`, as those of a rendered chat template do? false where count is 0.
 */
bool aq_tokenizer_begun(const int32_t *before, uint32_t count, const int32_t *tokens, size_t token_count);

/*
 * Tokens of `bytes` of text, into memory of aq_alloc (caller frees with aq_free). Any bytes are accepted, and decoding
 * gives them back: where text is not UTF-8, gpt2 takes each run of invalid bytes as one word. "<|endoftext|>" in a text
 * is gpt2's one token of that name. A word beyond 1 MiB is merged in pieces of that length.
 */
enum aq_status aq_tokenizer_encode(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes,
                                   int32_t **tokens, size_t *count);
/*
 * The bytes of tokens that continue a text, terminated, into memory of aq_alloc: those of each token by itself, in a
 * row. AQ_INVAL: a token out of range.
 */
enum aq_status aq_tokenizer_decode(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   char **text, size_t *bytes);
/* The same of tokens that are a whole text: without a space that the tokenizer puts before the first word. */
enum aq_status aq_tokenizer_text(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                 char **text, size_t *bytes);

struct aq_dataset; /* opaque */

/* How an image that is not square becomes one. */
enum aq_dataset_fit {
    AQ_DATASET_CROP,   /* its shorter side becomes `side`, and the square in the middle is taken */
    AQ_DATASET_STRETCH /* both sides become `side`                                               */
};

/*
 * How a file's images become samples: squares of side x side pixels in three colours, each colour's value v, a part of
 * the largest one, as (v - mean) / std. Without mean and std both are 0.5: -1 to 1.
 */
struct aq_dataset_image {
    uint32_t side; /* image_files: pixels, the model's (aq_model_side); cifar10, cifar100 have 32                  */
    uint32_t bits; /* image_files: of a colour's value in memory, 8 or 16; 0: 8                                    */
    enum aq_dataset_fit fit;
    struct aq_factors mean, std; /* of each colour; one number: the same of all; none: 0.5                    */
};
/* AQ_INVAL (logged): not 0, 1 or 3 numbers, or a std that is 0. */
enum aq_status aq_dataset_image_check(const struct aq_dataset_image *image);
/* The value of a black pixel in each colour. */
void aq_dataset_image_black(const struct aq_dataset_image *image, float black[3]);

struct aq_dataset_config {
    const char *kind;         /* of datasets.def; NULL: "text"                                          */
    const char *const *paths; /* files, in order                                                        */
    uint32_t path_count;
    const struct aq_tokenizer *tokenizer; /* text: borrowed while open only; NULL: these are opened     */
    const char *tokenizer_kind, *tokenizer_path;
    uint32_t T;           /* text: tokens of a sample, without those of begin                           */
    enum aq_begin begin;  /* text, instruct: the start of each sample, or prompt                        */
    uint32_t tokens_max;  /* rows of the model's table, which a text's tokens must be below; 0: not known */
    uint32_t places_max;  /* text: a sample has no more places than these; 0: no bound                  */
    uint64_t samples_max; /* take only the first that many samples; 0: all                              */
    uint64_t skip;        /* leave out the first that many samples (their ids are not reused)           */
    bool end_of_text;     /* text: put the tokenizer's end-of-text token behind every file              */
    const char *cache;    /* text: a folder where tokens are kept for later runs; NULL: none */
    uint32_t threads;     /* text: that tokenize; 0: as many as there are cores. The tokens are the same */
    const char *field;    /* of the task: what targets are read for; NULL: all that there are           */
    struct aq_dataset_columns {
        const char *text, *pair, *label; /* tsv: names of the first line, or numbers from 1 on          */
        const char *names;               /* of labels, in order, with commas; NULL: numbers from 0 on   */
    } columns;
    const char *chat;           /* instruct: folder with a chat template; NULL: that of the tokenizer              */
    const char *chat_variables; /* instruct: further variables of the template, a JSON object; or NULL */
    bool whole;       /* instruct: each conversation is one sample                                       */
    bool together;    /* instruct: conversations of one sample see those before them: samples have no parts */
    const char *names;     /* text, instruct: names of fields, a JSON object ({"prompt": "question"}); or NULL  */
    uint64_t skip_invalid; /* bad lines that are skipped and counted; more end it                              */
    bool quotes;           /* tsv: fields of a file that is no .csv may be quoted, too                         */
    struct aq_dataset_image image; /* image_files, cifar10, cifar100                                           */
};

/*
 * The kind of the first file, by its name and first record, if the job sets none; into `why` the reason ("its first
 * line has messages"). Named columns, or a task that needs labels (config.field), make it a table: of images where
 * the model reads images (config.image.side) and its first record names a file. "text" by default, or if the file
 * cannot be read.
 */
const char *aq_dataset_recognise(const struct aq_dataset_config *config, char *why, size_t bytes);

/*
 * Can this file be read as text, JSONL or a table, by its first bytes? AQ_NOTFOUND, AQ_IO: it cannot be opened.
 * AQ_CORRUPT: a format that is not read here, or a Git LFS pointer. AQ_NODEV: a packing that this build lacks. All are
 * logged and name the file, the last two also the remedy.
 */
enum aq_status aq_dataset_text_check(const char *path);

/* Does data.fields name fields that exist? fields: a JSON object. AQ_INVAL names the problem. */
enum aq_status aq_dataset_fields_check(const char *fields);

/*
 * The fields of a sample of such a data set, values NULL; returns their number. T: tokens of a text's sample; image: of
 * images (may be NULL for other kinds). 0: no such kind.
 */
uint32_t aq_dataset_fields(const char *kind, uint32_t T, const struct aq_dataset_image *image,
                           struct aq_field fields[AQ_BATCH_FIELDS_MAX]);
/* Memory of that many samples while the data set is open. */
uint64_t aq_dataset_bytes(const char *kind, uint32_t T, const struct aq_dataset_image *image, uint64_t samples);

/* The kind whose lines are prompts with answers, or conversations. */
const char *aq_dataset_of_answers(void);

/*
 * AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: names the file and what is wrong. AQ_INVAL: no such kind, or no whole sample (with
 * the number of tokens).
 */
enum aq_status aq_dataset_open(const struct aq_dataset_config *config, struct aq_dataset **out);
void aq_dataset_close(struct aq_dataset *dataset); /* NULL is fine */
uint64_t aq_dataset_count(const struct aq_dataset *dataset);
uint32_t aq_dataset_tokens(const struct aq_dataset *dataset);     /* places: T, or more with what it begins with */
uint32_t aq_dataset_outputs(const struct aq_dataset *dataset);    /* values of a target: tokens, classes */
uint32_t aq_dataset_vocabulary(const struct aq_dataset *dataset); /* values of a token; 0: samples have none */
uint64_t aq_dataset_dropped(const struct aq_dataset *dataset);    /* tokens at the end that fill no block */
uint64_t aq_dataset_digest(const struct aq_dataset *dataset);     /* of all tokens: part of the job's identity */

/*
 * How many tokens of each sample are real, at its beginning, for aq_dataset_count samples; NULL: all, always. Part of
 * the digest.
 */
const uint32_t *aq_dataset_lengths(const struct aq_dataset *dataset);

/*
 * Parts of samples (stages/batch.h): how many tokens each has, those of a sample one behind the other, sample by sample
 * for aq_dataset_count samples, and together as many as the samples are long; *count of them. NULL: samples have none.
 */
const uint32_t *aq_dataset_parts(const struct aq_dataset *dataset, uint64_t *count);
/* `starts` of the T tokens of a sample with these parts (stages/batch.h); each padding token is its own part. */
void aq_dataset_starts(const uint32_t *parts, uint64_t count, uint32_t T, uint32_t *starts);

/* Special tokens that end answers, the most frequent first: at most AQ_DATASET_ENDS_MAX; *count may be 0. */
enum { AQ_DATASET_ENDS_MAX = 2 };
const int32_t *aq_dataset_ends(const struct aq_dataset *dataset, uint32_t *count);

/* How many targets of a sample are counted, of the `count` of its field; index < aq_dataset_count. */
uint32_t aq_dataset_targets(const struct aq_dataset *dataset, uint64_t index, uint32_t count);
/* May that differ from sample to sample? And of a kind. */
bool aq_dataset_masks(const struct aq_dataset *dataset);
bool aq_dataset_kind_masks(const char *kind);
/* May samples of the kind have lengths (aq_dataset_lengths)? */
bool aq_dataset_kind_lengths(const char *kind);
/* Are files of the kind tables that name other files, which are read, too? */
bool aq_dataset_kind_names_files(const char *kind);

/* Writes the sample's fields, in the order of aq_dataset_fields. index < count, else AQ_INVAL. */
enum aq_status aq_dataset_get(const struct aq_dataset *dataset, uint64_t index,
                              void *const values[AQ_BATCH_FIELDS_MAX]);
/* The same into a batch that has these fields, as its sample `position`. */
enum aq_status aq_dataset_put(const struct aq_dataset *dataset, uint64_t index, struct aq_batch *batch,
                              uint32_t position);

/* The order of the samples. */
struct aq_sampler; /* opaque */

/*
 * count samples, in batches of `batch`; the last batch of an epoch is partial where batch does not divide count.
 * AQ_INVAL: either is 0, or count is beyond 2^32 - 1.
 */
enum aq_status aq_sampler_open(uint64_t count, uint32_t batch, uint64_t seed, bool shuffle, struct aq_sampler **out);
void aq_sampler_close(struct aq_sampler *sampler); /* NULL is fine */
uint64_t aq_sampler_steps_per_epoch(const struct aq_sampler *sampler);

/*
 * The part of one of `replicas` data-parallel copies: sample i always belongs to replica i mod replicas, in every
 * epoch, so that its caches stay on one replica. The order is shuffled within the part. Without a shuffle, step k of
 * all replicas together has the samples of step k of a single one with their batches joined. batch: of one replica.
 * AQ_INVAL also: replicas do not divide count, or there is no such replica.
 */
enum aq_status aq_sampler_open_shard(uint64_t count, uint32_t batch, uint64_t seed, bool shuffle, uint32_t replica,
                                     uint32_t replicas, struct aq_sampler **out);

/*
 * The samples first .. first + count of the batches of aq_sampler_open(all, batch, seed, shuffle), in their order:
 * adjacent parts share each batch among them, whether a rank holds only its own data or all of it. Indices count from
 * `first`; a step may have none, and they are not alike. Step s is the order's step s + shift (modulo 2^64). AQ_INVAL
 * also: there is no such part.
 */
struct aq_sampler_part {
    uint64_t all, first, count;
    uint64_t shift;
};
enum aq_status aq_sampler_open_part(const struct aq_sampler_part *part, uint32_t batch, uint64_t seed, bool shuffle,
                                    struct aq_sampler **out);
/* Of memory, beside the struct. */
uint64_t aq_sampler_part_bytes(const struct aq_sampler_part *part, uint32_t batch);

/* How many samples step `step` (0-based over all epochs) has: batch, or fewer in an epoch's last; of a part 0 to batch.
 * Keeps what aq_sampler_at does. */
uint32_t aq_sampler_size(struct aq_sampler *sampler, uint64_t step);

/* Index of sample `position` (0..size-1) of that step. Keeps the orders of the epoch of `step` and of a neighbour. */
uint64_t aq_sampler_at(struct aq_sampler *sampler, uint64_t step, uint32_t position);

#ifdef __cplusplus
}
#endif
#endif
