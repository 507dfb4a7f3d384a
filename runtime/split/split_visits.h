/*
 * split_visits.h -- the epsilon of a client: its ledgers, whether the next turn fits, and what its user is told.
 *
 * The ledgers (visit_ledger.h) are in a folder outside of the client's output.path, one per data set, so that a new run
 * over the same data goes on counting. privacy.json in output.path has the newest figures, and which ledgers they are
 * from: a ledger that is missing, or older than that, is refused. The workers write the ledgers and stop at the limit
 * themselves; this file stops the client before a turn that could not end within it.
 *
 * Locking: one thread, the client's.
 */
#ifndef RUNTIME_SPLIT_VISITS_H
#define RUNTIME_SPLIT_VISITS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "plan.h"

struct aq_split_visits; /* opaque */

struct aq_split_epsilon {
    double epsilon, delta;
    uint32_t visits; /* of the sample that has most of it */
    bool heldout;    /* it is a held-out one              */
};

/*
 * Makes the folder and the ledgers where they are missing. *out is NULL where the job has no epsilon (plan_epsilon.h).
 * The plan is borrowed. AQ_INVAL: no folder, or one in output.path, with the remedy. AQ_CORRUPT: a ledger is damaged,
 * missing or older than privacy.json. AQ_IO and its like, AQ_NOMEM.
 */
enum aq_status aq_split_visits_open(const struct aq_plan *plan, struct aq_split_visits **out);
void aq_split_visits_close(struct aq_split_visits *visits); /* NULL is fine */

/* For the workers, absolute. */
const char *aq_split_visits_folder(const struct aq_split_visits *visits);

/* The figures now, which it also writes to privacy.json. As open. */
enum aq_status aq_split_visits_now(struct aq_split_visits *visits, struct aq_split_epsilon *out);

/* Do the steps after `mark` up to `until` keep every sample within split.privacy.epsilon_max? after: what epsilon would
 * be then. As open. */
enum aq_status aq_split_visits_fit(struct aq_split_visits *visits, uint64_t mark, uint64_t until, bool *fits,
                                   double *after);

#endif
