/*
 * rng.h -- random numbers that are a pure function of their key: Philox4x32-10.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The same bits on any
 * device, in any order, after a restart. A stream is named by (seed, purpose, a, b): for a codec's stochastic rounding
 * a is the edge and step, b the sample; the element index is the counter.
 *
 * Locking: pure functions.
 */
#ifndef AQSGD_BASE_RNG_H
#define AQSGD_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The purpose of a stream: two purposes never share numbers. A number is never reused. */
enum aq_rng_purpose {
    AQ_RNG_INIT = 1,    /* initial weights: a = tensor's digest of its name          */
    AQ_RNG_SHUFFLE = 2, /* the sampler's order: a = epoch                             */
    AQ_RNG_DROPOUT = 3, /* masks: a = step and layer, b = sample                      */
    AQ_RNG_ROUND = 4,   /* stochastic rounding: a = edge and step, b = sample         */
    AQ_RNG_TEST = 5,    /* tests and benchmarks                                       */
    AQ_RNG_GENERATE = 6, /* sampling from a language model                            */
    AQ_RNG_REDUCE = 7,  /* what replicas agree on unasked: masks (a = step), first factors (b = 1 + tensor),
                           randomk's places (seed: the step; a = the chunk, b = 2^63) */
    AQ_RNG_ADAPTER = 8, /* masks before adapters: a = step, layer and adapter, b = sample */
    AQ_RNG_VIEW = 9     /* crops and flips of images: a = epoch, b = sample               */
};

struct aq_rng_key {
    uint32_t key[2];     /* Philox key: from seed and purpose                         */
    uint32_t counter[2]; /* the upper half of the Philox counter: from a and b        */
};

/* The key of one stream. a and b are hashed into the upper counter and the key, all 192 bits count. */
struct aq_rng_key aq_rng_key(uint64_t seed, enum aq_rng_purpose purpose, uint64_t a, uint64_t b);

/* Four words: Philox4x32-10 of counter (index, key.counter). */
void aq_rng_block(const struct aq_rng_key *key, uint64_t index, uint32_t out[4]);

/* Word `element` of the stream, that is word element%4 of block element/4. */
uint32_t aq_rng_u32(const struct aq_rng_key *key, uint64_t element);

/* In [0,1), 24 bits: word >> 8 times 2^-24. */
float aq_rng_uniform(const struct aq_rng_key *key, uint64_t element);

/* Standard normal by Box-Muller of words 2*element and 2*element+1, in double and rounded once. */
float aq_rng_normal(const struct aq_rng_key *key, uint64_t element);

/* Uniform in [0, bound), without bias worth the name (64-bit multiply); bound >= 1. */
uint64_t aq_rng_below(const struct aq_rng_key *key, uint64_t element, uint64_t bound);

#ifdef __cplusplus
}
#endif
#endif
