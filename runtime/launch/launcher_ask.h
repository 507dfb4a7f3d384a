/*
 * launcher_ask.h -- a run's stages as processes that compute a text, token by token (docs/CONTROL.md section 10).
 *
 * The caller has made the plan; daemons are taken as for a launch, and given back whatever happens. Nothing is written
 * anywhere. A stage that fails ends it, with the first cause in one line, as a launch.
 *
 *     AQ_TRY(aq_asking_open(&launch, &asking));          launch.probe, ask, vocabulary, names, hosts, manifest, keys
 *     AQ_TRY(aq_asking_next(asking, &step, &token));     for each token
 *     aq_asking_close(asking);
 *
 * Locking: one thread. Between calls the launcher reads no lines, and stages tolerate that.
 */
#ifndef RUNTIME_LAUNCHER_ASK_H
#define RUNTIME_LAUNCHER_ASK_H

#include "launcher.h"

struct aq_asking; /* opaque */

/* The launch is copied, what it points to borrowed until close. Returns when all stages have read their weights and
 * are joined. Any status: the cause, in one line (reported). */
enum aq_status aq_asking_open(const struct aq_launch *launch, struct aq_asking **out);

struct aq_asking_step {
    uint32_t before, used; /* compute the tokens before .. used - 1                                             */
    const int32_t *fresh;  /* of them, those that no step had yet: the last `count` ones                        */
    uint32_t count;
};
/* AQ_NOSPC: more fresh tokens than a line takes. Others: the cause (reported); only close is left then. */
enum aq_status aq_asking_next(struct aq_asking *asking, const struct aq_asking_step *step, int32_t *token);

/* The stages end, in good order where nothing has failed. NULL is fine. */
void aq_asking_close(struct aq_asking *asking);

#endif
