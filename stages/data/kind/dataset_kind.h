/*
 * dataset_kind.h -- the interface of a kind of data set to dataset.c; private to stages/data.
 *
 * A kind reads its files once, counts its samples and gives the values of one: dataset.c takes the part of them that
 * the configuration names, and owns their ids. A new kind is one file dataset_<name>.c and one line in datasets.def.
 */
#ifndef DATASET_KIND_H
#define DATASET_KIND_H

#include "dataset_file.h"
#include "stages/dataset.h"

#define DATASET_AREA "dataset"

/* A line of a .jsonl or table: as JSON it takes up to ten times its bytes of memory. */
#define DATASET_LINE_BYTES_MAX ((size_t)64 << 20)
#define DATASET_LINE_LONG      "%s:%llu: the line has %zu bytes, at most %zu are read: cut the text into several lines"

/* Of all files together. */
struct dataset_facts {
    uint64_t samples, digest, dropped;
    uint32_t outputs;    /* how many values a target can have: tokens of the vocabulary, classes */
    uint32_t vocabulary; /* and a token; 0: no tokens                                            */
    uint32_t places;         /* of a sample; 0: T of the configuration                         */
    uint32_t targets;        /* of each sample that are counted; 0: all, or by the kind's targets */
    int32_t ends[AQ_DATASET_ENDS_MAX]; /* special tokens that end answers, end_count of them */
    uint32_t end_count;
    const uint32_t *lengths; /* tokens of each sample that are real, as long as the state; NULL: all */
    const uint32_t *parts;   /* and of each of its parts, in order of samples; NULL: no parts         */
    const uint64_t *part_first; /* then, of each sample and the end: which part is its first         */
};

/* How many values a token can have: those of the tokenizer, and of the model's table where that is known. */
static inline uint32_t dataset_vocabulary(const struct aq_dataset_config *config, const struct aq_tokenizer *tokenizer)
{
    const uint32_t tokens = aq_tokenizer_vocabulary(tokenizer);
    return config->tokens_max && config->tokens_max < tokens ? config->tokens_max : tokens;
}

struct aq_dataset_kind {
    const char *name;
    const char *what; /* a sample is, in messages: "block", "image" */
    bool lengths;     /* samples may have fewer tokens than T       */
    bool names_files; /* its files are tables of other files        */
    /* The fields of a sample, values NULL; how many. image may be NULL: then an image's count is not known. */
    uint32_t (*fields)(uint32_t T, const struct aq_dataset_image *image, struct aq_field fields[AQ_BATCH_FIELDS_MAX]);
    /* state: NULL until there is something to close, also where it fails. */
    enum aq_status (*open)(const struct aq_dataset_config *config, void **state, struct dataset_facts *facts);
    void (*close)(void *state);
    /* One sample of all, each field to its place. */
    void (*get)(const void *state, uint64_t sample, void *const values[AQ_BATCH_FIELDS_MAX]);
    /* How many targets of a sample are counted; NULL: all. */
    uint32_t (*targets)(const void *state, uint64_t sample);
    /* Most memory of that many samples. */
    uint64_t (*bytes)(uint32_t T, const struct aq_dataset_image *image, uint64_t samples);
};

#endif
