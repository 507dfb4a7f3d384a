/*
 * edge_guard.h -- the guard of a cut (edges.guard): more bits where its loop does not contract.
 *
 * AQ-SGD's theorem (Wang et al. 2022, Theorem 3.1) requires c_Q = |d - Q(d)| / |d| < sqrt(1/2), d = a - m. The sender
 * watches it over its warm samples, and raises the cut's bits, a level at a time, where
 * - the running mean of c_Q over about eight steps is above sqrt(1/2), or
 * - the drift |d| / |a|, a mean over an epoch, grew though the learning rate fell, and c_Q is above 0.4: errors pile
 *   up. With smaller ones the delta is only the drift of the weights (at most 1 / sqrt(1 - c_Q^2) of it if errors are
 *   independent).
 * It never lowers them: what did not contract once would not again. The level travels in the flags of each frame
 * (docs/FRAME.md), so the receiver keeps nothing. Messages do not depend on it: both ends keep theirs.
 *
 * A guard of gradients (struct's `gradients`) is the receiver's of activations: the running mean of |g - Q(g)| / |g|
 * above 1/2 raises the backward codec's level. There is no message, no drift and nothing to send again.
 *
 * A single sample can diverge, too: if its message after coding is farther from the activation than sqrt(1/2) of its
 * norm, a keyframe is better. So the sender forgets the message, and the next visit is a keyframe.
 *
 * All that decides is in `state`, which checkpoints keep. Measurements of the step under way join it when the next one
 * starts or aq_edge_guard_settle is called, as in a run that was killed in between.
 *
 * Locking: the exec thread.
 */
#ifndef RUNTIME_EDGE_GUARD_H
#define RUNTIME_EDGE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/codec.h"

enum { AQ_EDGE_LEVELS = 4, AQ_EDGE_GUARD_STATE = 9 };

/* Words of state, in this order; whole numbers below 2^24, ratios, and sums of ratios. */
enum aq_edge_guard_word {
    AQ_GUARD_LEVEL,        /* 0 is the manifest's codec        */
    AQ_GUARD_RATIO,        /* running mean of c_Q                             */
    AQ_GUARD_STEPS,        /* in that mean                                    */
    AQ_GUARD_EPOCH,        /* of the sums that follow                         */
    AQ_GUARD_DRIFT,        /* sum of |d| / |a| over its steps                 */
    AQ_GUARD_RATE,         /* sum of their learning rates                     */
    AQ_GUARD_DRIFT_STEPS,  /* how many                                        */
    AQ_GUARD_DRIFT_BEFORE, /* means of the epoch before; 0: not measured      */
    AQ_GUARD_RATE_BEFORE
};

struct aq_edge_guard {
    float state[AQ_EDGE_GUARD_STATE];
    uint32_t edge, levels, epoch_steps;
    bool gradients; /* of the other direction: only their error is judged, against half of their size */
    /* Of the step under way: sums over its warm samples. */
    uint64_t step;
    float rate;
    double a2, delta2, error2;
};

/*
 * The bit levels of a cut's codec, either way: the config itself, and up to three with more bits (1, 2 and 4 of a
 * grid; * 1/2, 1 and 2 of an entropy coder's rate; at most the key's maximum). Returns their count; 1: there is no
 * higher one. A guard goes up the forward one where messages are kept, edges.bits: auto (bits_auto.h) both.
 */
uint32_t aq_edge_level_list(const struct aq_codec_config *config, struct aq_codec_config levels[AQ_EDGE_LEVELS]);

/* Bits per value of a level, as a manifest has them. */
double aq_edge_level_bits(const struct aq_codec_config *config);

/* For a cut with `levels` bit levels, in epochs of `epoch_steps` steps. */
void aq_edge_guard_init(struct aq_edge_guard *guard, uint32_t edge, uint32_t levels, uint32_t epoch_steps);

/* Returns the level of a frame of this step, at this learning rate, that is about to be coded. */
uint32_t aq_edge_guard_level(struct aq_edge_guard *guard, uint64_t step, float rate);

/* A warm sample of that step is coded. True: its message is to be forgotten. */
bool aq_edge_guard_add(struct aq_edge_guard *guard, const struct aq_codec_result *result);

/* The step is over: its sums join the state. Before a checkpoint; twice is once. */
void aq_edge_guard_settle(struct aq_edge_guard *guard);

/* State that a file brought. AQ_CORRUPT: none that this can ever have been. */
enum aq_status aq_edge_guard_check(const float state[AQ_EDGE_GUARD_STATE]);

#endif
