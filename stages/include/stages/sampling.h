/*
 * sampling.h -- from a row of logits to the next token, and from tokens' bytes to a text that may be shown.
 *
 * Both parts are independent of models: aq_sampling chooses a token, aq_stopper lets a text out as it grows.
 *
 *     struct aq_sampling_config config = aq_sampling_config_default();       greedy
 *     config.temperature = 0.7, config.top_p = 0.9, config.seed = 1;
 *     AQ_TRY(aq_sampling_open(&config, vocabulary, &sampling));
 *     aq_sampling_begin(sampling, 0);                                        sequence 0 of this seed
 *     AQ_TRY(aq_sampling_note(sampling, prompt, count));                     what was there before: for the penalty
 *     do {
 *         ... one forward pass: logits, fp32, `vocabulary` of them on the host
 *         AQ_TRY(aq_sampling_next(sampling, logits, &token));
 *         AQ_TRY(aq_stopper_put(stopper, bytes of token, count, &shown));    write shown.text, shown.bytes
 *     } while (!shown.stopped && token is no end token);
 *     AQ_TRY(aq_stopper_end(stopper, &shown));
 *
 * A draw is a pure function of (seed, sequence, position, logits): the same after a restart, on any machine whose exp()
 * rounds alike, whatever else runs.
 *
 * Locking: an object belongs to one thread.
 */
#ifndef STAGES_SAMPLING_H
#define STAGES_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * In this order, as transformers' logits processors: repetition penalty, temperature, top k, top p. The default
 * changes nothing and is greedy.
 */
struct aq_sampling_config {
    /* Logits of every token that was there: above 0 divided by it, others multiplied. 1: none. */
    float repetition_penalty;
    float temperature; /* logits are divided by it; 0: the largest logit, no draw                              */
    uint32_t top_k;    /* the k largest remain, of equal ones at the border the lowest ids; 0: all             */
    float top_p;       /* the fewest of them whose probabilities add up to p remain; 1: all                    */
    uint64_t seed;
};
struct aq_sampling_config aq_sampling_config_default(void);

/* AQ_INVAL: a value is out of its range; the text names it. */
enum aq_status aq_sampling_check(const struct aq_sampling_config *config);

struct aq_sampling; /* opaque */

/* Memory: 9 bytes per token of the vocabulary (1.4 MB of Qwen's 151,936). AQ_INVAL as above; or vocabulary 0. */
enum aq_status aq_sampling_open(const struct aq_sampling_config *config, uint32_t vocabulary, struct aq_sampling **out);
void aq_sampling_close(struct aq_sampling *sampling); /* NULL is fine */

/* Starts a sequence: no tokens, position 0. Sequences of one seed draw independently. */
void aq_sampling_begin(struct aq_sampling *sampling, uint64_t sequence);
/* These tokens were there (a prompt). AQ_INVAL: one is out of the vocabulary. */
enum aq_status aq_sampling_note(struct aq_sampling *sampling, const int32_t *tokens, size_t count);

/*
 * The next token, which is noted; the position is one further. Of equal logits the lowest id is the larger. AQ_CORRUPT:
 * a logit is NaN or +infinity, or none is above -infinity; nothing changes.
 */
enum aq_status aq_sampling_next(struct aq_sampling *sampling, const float *logits, int32_t *token);

/*
 * The candidates of the next draw: ids by falling probability, room for `vocabulary` of each. Greedy: one, of
 * probability 1. Statuses as above.
 */
enum aq_status aq_sampling_candidates(struct aq_sampling *sampling, const float *logits, int32_t *ids,
                                      double *probabilities, uint32_t *count);

/* ---- what may be shown ---- */

struct aq_stopper; /* opaque */

struct aq_stopper_text {
    const char *text; /* valid UTF-8, not terminated; good until the next call */
    size_t bytes;
    bool stopped; /* a stop word was written: the text before it is all that there is */
};

/*
 * words: none of them empty (AQ_INVAL). A text is held back as long as it may be the beginning of a word, or of a
 * character: at most the longest word and three bytes.
 */
enum aq_status aq_stopper_open(const char *const *words, uint32_t count, struct aq_stopper **out);
void aq_stopper_close(struct aq_stopper *stopper); /* NULL is fine */

/*
 * Bytes of the next token come in, in pieces of any length. Bytes that are no UTF-8 come out as U+FFFD, one for the
 * longest beginning of a character, as in Python. After a stop nothing comes out any more.
 */
enum aq_status aq_stopper_put(struct aq_stopper *stopper, const void *bytes, size_t count, struct aq_stopper_text *out);
/* Nothing more comes: what was held back. */
enum aq_status aq_stopper_end(struct aq_stopper *stopper, struct aq_stopper_text *out);

#ifdef __cplusplus
}
#endif
#endif
