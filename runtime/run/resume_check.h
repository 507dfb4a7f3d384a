/*
 * resume_check.h -- do the checkpoint and the caches that a run resumes from belong to one point in time?
 *
 * A cache that is missing, broken or behind is filled from the stage's neighbours (edge_heal.c). But if no cache of
 * this machine has the checkpoint's mark, and all have others, the messages do not exist: an older checkpoint (or other
 * caches) was put there. To resume would change the results, and drop the caches.
 *
 * Locking: one thread; no stage of the run may have its cache open.
 */
#ifndef RUNTIME_RESUME_CHECK_H
#define RUNTIME_RESUME_CHECK_H

#include <stdint.h>

#include "aqsgd/base.h"
#include "plan.h"

/*
 * The caches of this machine's stages against the checkpoint of `step`; `run` is the run's folder. AQ_MISMATCH: all
 * that can be read hold other marks; names them. AQ_OK also if no cache exists or can be read.
 */
enum aq_status aq_resume_check(const struct aq_plan *plan, const char *run, uint64_t step);

#endif
