/*
 * through.h -- a run's stages as processes, which compute a text for a command (docs/CONTROL.md section 10).
 *
 *     AQ_TRY(aq_through_open(&asked, &through));          local: open, with asked.pipeline, and not loaded
 *     AQ_TRY(aq_through_next(through, &step, &token));
 *     aq_through_close(through);
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_THROUGH_H
#define RUNTIME_THROUGH_H

#include "launcher_ask.h"
#include "local_model.h"
#include "stages/sampling.h"

struct aq_through_asked {
    const struct aq_local *local;
    const char *token_file; /* of daemons that listen; NULL: none */
    uint32_t T;
    bool keeps; /* layers cache keys and values of earlier tokens */
    const struct aq_sampling_config *draws;
};

struct aq_through; /* opaque */

/* All stages have read their weights when it returns. AQ_INVAL: a run with clients has no such pipeline. Others as
 * aq_asking_open. *asked is borrowed until close. */
enum aq_status aq_through_open(const struct aq_through_asked *asked, struct aq_through **out);
void aq_through_close(struct aq_through *through); /* NULL is fine */

/* As aq_asking_next. */
enum aq_status aq_through_next(struct aq_through *through, const struct aq_asking_step *step, int32_t *token);

#endif
