/*
 * dataset.h -- texts, tokenizers, samples with stable ids, and the order in which training meets them.
 *
 * Kinds are rows of datasets.def. A sample is a set of named fields; its id is its place in the files, whatever the
 * seed, the batch or the number of stages.
 *
 * A text data set is one or more UTF-8 files, tokenized and joined, cut into blocks of T+1 tokens that overlap by one:
 * block i has tokens [i*T, i*T+T) and targets one further. Of a file of records (.jsonl, .json, .csv, ...) the string
 * `text` of each is taken, an end-of-text token behind it (docs/DATA.md). Any file may be packed by gzip or zstd.
 * Sample id = block number; the last part that does not fill a block is dropped, and the count of dropped tokens is
 * told.
 *
 * Where a text begins with a token of its own (config.begin), each block does: it has T + 1 places, or T of them where
 * places_max allows no more, and the targets of the places in front are -1.
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

#ifdef __cplusplus
extern "C" {
#endif

struct aq_tokenizer; /* opaque */

/* What is to be known of a kind of tokenizers (a row of tokenizers.def) before one is opened; NULL: there is none. */
struct aq_tokenizer_about {
    const char *name;
    const char *files;       /* "vocab.json and merges.txt": what the folder at its path has; NULL: it wants no path */
    uint32_t tokens;         /* its vocabulary; 0: its files say                                                      */
    bool normalizes;         /* decoding gives a text as the tokenizer has changed it, not the bytes that were given  */
    const char *marks;       /* "merges.txt|vocab.bpe": one of them in a model's folder says that it reads that      */
    const char *marks_alone; /* the same, where the folder has none of any kind's marks                         */
};
const struct aq_tokenizer_about *aq_tokenizer_about(const char *kind);

/*
 * The kind that reads the tokenizer of a model's folder, by the files that are there (those of the later rows of
 * tokenizers.def say more: spm.model, then tokenizer.json, then merges.txt; tokenizer.model where nothing else is,
 * since it lacks the tokens that were added later). NULL: none. Whether it can be read, open says.
 */
const char *aq_tokenizer_of_folder(const char *folder);

/* path: the folder with its files. AQ_INVAL: kind. AQ_NOTFOUND, AQ_CORRUPT: file and line. */
enum aq_status aq_tokenizer_open(const char *kind, const char *path, struct aq_tokenizer **out);
void aq_tokenizer_close(struct aq_tokenizer *tokenizer); /* NULL is fine */
uint32_t aq_tokenizer_vocabulary(const struct aq_tokenizer *tokenizer);

/* The token that stands between texts ("<|endoftext|>" of gpt2), or -1 where the vocabulary has none. */
int32_t aq_tokenizer_end_of_text(const struct aq_tokenizer *tokenizer);

/* Is it a token that its files mark as special, as "<|im_end|>", and no text? */
bool aq_tokenizer_special(const struct aq_tokenizer *tokenizer, int32_t token);

/*
 * What the tokenizer's own template puts around one text ("[CLS]" before, "[SEP]" after it) and between two: for tasks
 * that ask for it. aq_tokenizer_encode does not: a text of a language model stands in the middle of others. All counts
 * are 0 where there is no template.
 */
enum { AQ_TOKENIZER_FRAME_MAX = 8 };
struct aq_tokenizer_frame {
    int32_t before[AQ_TOKENIZER_FRAME_MAX], between[AQ_TOKENIZER_FRAME_MAX], after[AQ_TOKENIZER_FRAME_MAX];
    uint32_t before_count, between_count, after_count;
    int32_t second_type, last_type; /* token types of a pair: of its second text, and of what is behind; else 0 */
};
const struct aq_tokenizer_frame *aq_tokenizer_frame(const struct aq_tokenizer *tokenizer);

/* Does a text begin with the token that marks a beginning (data.bos)? AUTO: what the frame puts before a text. */
enum aq_begin { AQ_BEGIN_NONE = 0, AQ_BEGIN_AUTO, AQ_BEGIN_ALWAYS };

/*
 * The tokens that a text begins with, into out; *count of them, 0 where there are none. ALWAYS: those of the frame, or
 * else the folder's bos_token. AQ_INVAL: ALWAYS, and the tokenizer has neither.
 */
enum aq_status aq_tokenizer_begins(const struct aq_tokenizer *tokenizer, enum aq_begin begin,
                                   int32_t out[AQ_TOKENIZER_FRAME_MAX], uint32_t *count);
/*
 * Has a model with so many rows in its table (0: not known) all of these tokens? A tokenizer may have more, as the one
 * of Gemma 3's texts has a token of images. AQ_MISMATCH: says the token.
 */
enum aq_status aq_tokenizer_within(const struct aq_tokenizer *tokenizer, const int32_t *tokens, size_t count,
                                   uint32_t rows);
/* Do the tokens of a text begin so already, as those of a rendered chat template do? false where count is 0. */
bool aq_tokenizer_begun(const int32_t *before, uint32_t count, const int32_t *tokens, size_t token_count);

/*
 * Tokens of `bytes` of text, into memory of aq_alloc (caller frees with aq_free). Any bytes are accepted, and
 * decoding gives them back: where text is no UTF-8, gpt2 takes each run of invalid bytes as a word of its own.
 * "<|endoftext|>" in a text is gpt2's one token of that name. A word beyond 1 MiB is merged in pieces of that length.
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

struct aq_dataset_config {
    const char *kind;         /* of datasets.def; NULL: "text"                                          */
    const char *const *paths; /* files, in order                                                        */
    uint32_t path_count;
    const struct aq_tokenizer *tokenizer; /* text: borrowed while open only; NULL: these are opened     */
    const char *tokenizer_kind, *tokenizer_path;
    uint32_t T;           /* text: tokens of a sample, without those that it begins with                */
    enum aq_begin begin;  /* text, instruct: what each sample, or prompt, begins with                   */
    uint32_t tokens_max;  /* rows of the model's table, which a text's tokens must be below; 0: not known */
    uint32_t places_max;  /* text: a sample has no more places than these; 0: no bound                  */
    uint64_t samples_max; /* take only the first so many samples; 0: all                                */
    uint64_t skip;        /* leave out the first so many samples (their ids are not reused)             */
    bool end_of_text;     /* text: put the tokenizer's end-of-text token behind every file              */
    const char *cache;    /* text: a folder where tokens are kept, so that nobody makes them again; NULL: none */
    uint32_t threads;     /* text: that tokenize; 0: as many as there are cores. The tokens are the same */
    const char *field;    /* of the task: what targets are read for; NULL: all that there are           */
    struct aq_dataset_columns {
        const char *text, *pair, *label; /* tsv: names of the first line, or numbers from 1 on          */
        const char *names;               /* of labels, in order, with commas; NULL: numbers from 0 on   */
    } columns;
    const char *chat;           /* instruct: folder with a chat template; NULL: that of the tokenizer              */
    const char *chat_variables; /* instruct: further variables of the template, a JSON object; or NULL */
    bool whole;       /* instruct: each conversation is a sample of its own                              */
    bool together;    /* instruct: conversations of one sample see those before them: samples have no parts */
    const char *names;     /* text, instruct: names of fields, a JSON object ({"prompt": "question"}); or NULL  */
    uint64_t skip_invalid; /* bad lines that are skipped and counted; more end it                              */
    bool quotes;           /* tsv: fields of a file that is no .csv may stand in quotes, too                   */
};

/*
 * The kind of the first file, by its name and first record, where nobody says it; into `why` what was found ("its first
 * line has messages"). Columns that are named, or a task that needs labels (config.field), make it a table. "text"
 * where nothing says otherwise, or the file cannot be read.
 */
const char *aq_dataset_recognise(const struct aq_dataset_config *config, char *why, size_t bytes);

/* Does data.fields name what there is? fields: a JSON object. AQ_INVAL says what is wrong. */
enum aq_status aq_dataset_fields_check(const char *fields);

/*
 * What a sample of such a data set has, values NULL; how many fields. T: tokens of a text's sample. 0: no such kind.
 */
uint32_t aq_dataset_fields(const char *kind, uint32_t T, struct aq_field fields[AQ_BATCH_FIELDS_MAX]);
/* Memory that so many samples take while the data set is open. */
uint64_t aq_dataset_bytes(const char *kind, uint32_t T, uint64_t samples);

/* The kind whose lines are prompts with answers, or conversations. */
const char *aq_dataset_of_answers(void);

/*
 * AQ_NOTFOUND, AQ_IO, AQ_CORRUPT: names the file and what is wrong. AQ_INVAL: no such kind, or no whole sample (says
 * how much there is).
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
/* Of a sample with these parts, `starts` of its T tokens (stages/batch.h); what is padding stands alone. */
void aq_dataset_starts(const uint32_t *parts, uint64_t count, uint32_t T, uint32_t *starts);

/* Special tokens that end answers, the most frequent first: at most AQ_DATASET_ENDS_MAX; *count may be 0. */
enum { AQ_DATASET_ENDS_MAX = 2 };
const int32_t *aq_dataset_ends(const struct aq_dataset *dataset, uint32_t *count);

/* How many targets of a sample are counted, of the `count` of its field; index < aq_dataset_count. */
uint32_t aq_dataset_targets(const struct aq_dataset *dataset, uint64_t index, uint32_t count);
/* May that differ from sample to sample? And of a kind. */
bool aq_dataset_masks(const struct aq_dataset *dataset);
bool aq_dataset_kind_masks(const char *kind);

/* The stable id of sample `index` (0..count-1). */
uint64_t aq_dataset_id(const struct aq_dataset *dataset, uint64_t index);

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
 * The part of one of `replicas` copies that train side by side: sample i is always replica i mod replicas's, every
 * epoch, so that a sample meets the same caches for ever; the order is shuffled within the part, and without a shuffle
 * step k of all replicas together has the samples of step k of a single one with their batches joined. batch: of this
 * replica alone. AQ_INVAL also: replicas do not divide count, or there is no such replica.
 */
enum aq_status aq_sampler_open_shard(uint64_t count, uint32_t batch, uint64_t seed, bool shuffle, uint32_t replica,
                                     uint32_t replicas, struct aq_sampler **out);

/*
 * What lies in samples first .. first + count of the batches of aq_sampler_open(all, batch, seed, shuffle), in their
 * order: so that parts that lie side by side share each batch among them, be it one's own data or all of it. Indices
 * count from `first`; a step may have none, and they are not alike. Step s is the order's step s + shift (modulo
 * 2^64). AQ_INVAL also: there is no such part.
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
