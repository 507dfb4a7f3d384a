/*
 * sampling.c -- greedy, temperature, top k, top p, repetition penalty; one draw a token.
 *
 * Tokens are looked at in one order: by falling logit, of equal ones the lowest id first. They come out of a binary
 * heap, so that a draw costs one pass over the vocabulary and a logarithm for each token that is looked at, mostly a
 * few. Probabilities are added up in double in that order, the whole in order of ids.
 *
 * The draw: u in [0, 1) of 53 bits, from Philox block `position` of the stream (seed, sequence); the first token at
 * which the sum exceeds u times the whole.
 */
#include "stages/sampling.h"

#include <math.h>
#include <string.h>

#define AREA "sampling"

struct aq_sampling {
    struct aq_sampling_config config;
    uint32_t vocabulary;
    struct aq_rng_key key;
    uint64_t position;
    float *scores;  /* of each id, after penalty and temperature                              */
    uint32_t *heap; /* ids, the first of the order first; those taken out lie behind, the last of them first */
    uint32_t all, heap_count; /* all: that can be drawn at all                                */
    uint32_t left;            /* of the order: what top k and top p leave                     */
    uint8_t *seen;
    float top;    /* the largest score                                                        */
    double whole; /* of the masses that are left: exp(score - top)                            */
};

struct aq_sampling_config aq_sampling_config_default(void)
{
    return (struct aq_sampling_config){.repetition_penalty = 1, .temperature = 0, .top_k = 0, .top_p = 1, .seed = 0};
}

enum aq_status aq_sampling_check(const struct aq_sampling_config *c)
{
    if (!(c->repetition_penalty > 0) || !isfinite(c->repetition_penalty))
        return aq_fail(AQ_INVAL, AREA, "a repetition penalty is above 0 (1: none), not %g",
                       (double)c->repetition_penalty);
    if (!(c->temperature >= 0) || !isfinite(c->temperature))
        return aq_fail(AQ_INVAL, AREA, "a temperature is at least 0 (0: the largest logit), not %g",
                       (double)c->temperature);
    if (!(c->top_p > 0) || c->top_p > 1)
        return aq_fail(AQ_INVAL, AREA, "top p is above 0 and at most 1, not %g", (double)c->top_p);
    return AQ_OK;
}

enum aq_status aq_sampling_open(const struct aq_sampling_config *config, uint32_t vocabulary, struct aq_sampling **out)
{
    enum aq_status status;
    AQ_TRY(aq_sampling_check(config));
    if (vocabulary == 0 || vocabulary > INT32_MAX)
        return aq_fail(AQ_INVAL, AREA, "a vocabulary of %u tokens", (unsigned)vocabulary);
    struct aq_sampling *s;
    AQ_TRY(AQ_NEW(1, &s));
    *s = (struct aq_sampling){.config = *config, .vocabulary = vocabulary};
    AQ_TRY_GOTO(AQ_NEW(vocabulary, &s->scores), out);
    AQ_TRY_GOTO(AQ_NEW(vocabulary, &s->heap), out);
    AQ_TRY_GOTO(AQ_NEW(vocabulary, &s->seen), out);
    aq_sampling_begin(s, 0);
    *out = s;
    return AQ_OK;
out:
    aq_sampling_close(s);
    return status;
}

void aq_sampling_close(struct aq_sampling *s)
{
    if (!s) return;
    aq_free(s->scores);
    aq_free(s->heap);
    aq_free(s->seen);
    aq_free(s);
}

void aq_sampling_begin(struct aq_sampling *s, uint64_t sequence)
{
    memset(s->seen, 0, s->vocabulary);
    s->position = 0;
    s->key = aq_rng_key(s->config.seed, AQ_RNG_GENERATE, sequence, 0);
}

enum aq_status aq_sampling_note(struct aq_sampling *s, const int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= s->vocabulary)
            return aq_fail(AQ_INVAL, AREA, "token %d is not one of %u", (int)tokens[i], (unsigned)s->vocabulary);
    for (size_t i = 0; i < count; i++)
        s->seen[tokens[i]] = 1;
    return AQ_OK;
}

/* ---- the order ---- */

/* Does id a come before b? */
static bool before(const struct aq_sampling *s, uint32_t a, uint32_t b)
{
    return s->scores[a] > s->scores[b] || (s->scores[a] == s->scores[b] && a < b);
}

static void sift(struct aq_sampling *s, uint32_t at)
{
    uint32_t *heap = s->heap, id = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < s->heap_count; at = child) {
        if (child + 1 < s->heap_count && before(s, heap[child + 1], heap[child])) child++;
        if (!before(s, heap[child], id)) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

static uint32_t take(struct aq_sampling *s)
{
    const uint32_t first = s->heap[0];
    s->heap[0] = s->heap[--s->heap_count];
    if (s->heap_count) sift(s, 0);
    s->heap[s->heap_count] = first;
    return first;
}

/* ---- scores ---- */

/* Scores of all ids, and the largest, which has the lowest id of its equals. */
static enum aq_status score(struct aq_sampling *s, const float *logits, uint32_t *largest)
{
    const float penalty = s->config.repetition_penalty, temperature = s->config.temperature;
    bool found = false;
    for (uint32_t id = 0; id < s->vocabulary; id++) {
        float value = logits[id];
        if (isnan(value) || value == INFINITY)
            return aq_fail(AQ_CORRUPT, AREA, "the logit of token %u is %g: the model's output is broken", (unsigned)id,
                           (double)value);
        if (penalty != 1 && s->seen[id]) value = value < 0 ? value * penalty : value / penalty;
        if (temperature > 0) value /= temperature;
        s->scores[id] = value == INFINITY ? 3.4028234e38F : value; /* over the edge by division: still the largest */
        if (value > -INFINITY && (!found || before(s, id, *largest))) {
            *largest = id;
            found = true;
        }
    }
    return found ? AQ_OK : aq_fail(AQ_CORRUPT, AREA, "no token has a logit above -infinity");
}

static double mass(const struct aq_sampling *s, uint32_t id)
{
    return exp((double)s->scores[id] - (double)s->top);
}

/* The id that comes `index`th in the order; index < s->all. Those before it are taken out, too. */
static uint32_t nth(struct aq_sampling *s, uint32_t index)
{
    while (s->all - s->heap_count <= index)
        take(s);
    return s->heap[s->all - 1 - index];
}

/* Puts all ids that can be drawn into the heap; sets how many of the order top k and top p leave, and their masses. */
static void choose(struct aq_sampling *s, uint32_t largest)
{
    const struct aq_sampling_config *c = &s->config;
    double sum = 0;
    s->top = s->scores[largest];
    s->heap_count = 0;
    s->whole = 0;
    for (uint32_t id = 0; id < s->vocabulary; id++) {
        if (s->scores[id] == -INFINITY) continue;
        s->heap[s->heap_count++] = id;
        if (c->top_k == 0) s->whole += mass(s, id);
    }
    s->all = s->heap_count;
    s->left = c->top_k && c->top_k < s->all ? c->top_k : s->all;
    for (uint32_t i = s->all / 2; i-- > 0;)
        sift(s, i);
    for (uint32_t i = 0; c->top_k && i < s->left; i++)
        s->whole += mass(s, nth(s, i));
    if (c->top_p >= 1) return;
    uint32_t count = 0;
    while (count < s->left && sum < (double)c->top_p * s->whole)
        sum += mass(s, nth(s, count++));
    s->left = count;
    s->whole = sum;
}

/* ---- draws ---- */

/* 53 bits of block `position`. */
static double uniform(const struct aq_sampling *s)
{
    uint32_t words[4];
    aq_rng_block(&s->key, s->position, words);
    return (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53;
}

enum aq_status aq_sampling_next(struct aq_sampling *s, const float *logits, int32_t *token)
{
    uint32_t id;
    AQ_TRY(score(s, logits, &id));
    if (s->config.temperature > 0) {
        choose(s, id);
        const double wanted = uniform(s) * s->whole;
        double sum = 0;
        for (uint32_t i = 0; i < s->left && sum <= wanted; i++) {
            id = nth(s, i);
            sum += mass(s, id);
        }
    }
    s->position++;
    s->seen[id] = 1;
    *token = (int32_t)id;
    return AQ_OK;
}

enum aq_status aq_sampling_candidates(struct aq_sampling *s, const float *logits, int32_t *ids, double *probabilities,
                                      uint32_t *count)
{
    uint32_t largest;
    AQ_TRY(score(s, logits, &largest));
    ids[0] = (int32_t)largest;
    probabilities[0] = *count = 1;
    if (s->config.temperature == 0) return AQ_OK;
    choose(s, largest);
    for (uint32_t i = 0; i < s->left; i++) {
        ids[i] = (int32_t)nth(s, i);
        probabilities[i] = mass(s, nth(s, i)) / s->whole;
    }
    *count = s->left;
    return AQ_OK;
}
