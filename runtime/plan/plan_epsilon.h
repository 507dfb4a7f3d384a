/*
 * plan_epsilon.h -- what split.privacy gives a client's samples: what each visit adds (epsilon.h), and what a whole job
 * comes to.
 *
 * A visit is one time that a sample's values cross a cut. There is an epsilon only if all of a sample's values that
 * leave at the cuts have noise: at both cuts, if both are the client's. A batch norm in the client's stage makes all
 * vectors of a micro-batch depend on each of its samples; a held-out sample is computed with kept statistics, so only
 * its own vector depends on it.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_PLAN_EPSILON_H
#define RUNTIME_PLAN_EPSILON_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"

/* Is there an epsilon? Not for the server's stages, so of any job of split learning. */
bool aq_plan_epsilon_counts(const struct aq_plan *plan);

/* What one visit adds to mu^2 of each sample of a micro-batch of so many samples, at the first cut or (gradients) at
 * the second. 0: nothing leaves there. */
double aq_plan_epsilon_visit(const struct aq_plan *plan, bool gradients, bool trains, uint32_t samples);

/* Does a sample's activation leave in this step of the client? Across a cut before which nothing trains only in its
 * first epoch: both ends keep it. */
bool aq_plan_epsilon_sends(const struct aq_plan *plan, uint64_t step);

/* Names the ledger of visits of these samples: the digest of the data; of plain text also of the places in a block, as
 * other places make other samples of the same tokens. */
uint64_t aq_plan_epsilon_data(const struct aq_plan *plan, bool heldout);

/* How many training samples, the first ones, are held-out ones too, because both are of one file: they cross the cut in
 * evaluations as well. */
uint64_t aq_plan_epsilon_shared(const struct aq_plan *plan);

/* The largest mu^2 within split.privacy.epsilon_max; INFINITY: no limit. */
double aq_plan_epsilon_most(const struct aq_plan *plan);

/* Is the last evaluation done twice, without and with the forward codec? */
bool aq_plan_evaluates_coded(const struct aq_plan *plan);

/* How often held-out samples cross the first cut in the steps after `from` up to `to`, which ends a turn, or (last)
 * all rounds. */
uint64_t aq_plan_epsilon_passes(const struct aq_plan *plan, uint64_t from, uint64_t to, bool last);

/* What all rounds come to for a client that takes part in each, without crashes. */
struct aq_plan_epsilon_job {
    uint64_t visits, passes;  /* epochs of a training sample; evaluations of a held-out one           */
    double training, heldout; /* epsilon of each; where a sample is both, of all its visits and passes */
    uint32_t stops;           /* the round that epsilon_max does not allow; 0: it allows all */
    double first;             /* the larger epsilon after the first round                   */
    bool ends_leave;          /* weights or statistics of the client's stages leave it: they have no noise */
};
void aq_plan_epsilon_job(const struct aq_plan *plan, struct aq_plan_epsilon_job *out);

#endif
