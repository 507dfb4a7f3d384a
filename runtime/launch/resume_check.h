/*
 * resume_check.h -- do the checkpoint and the caches that a run is to go on from belong to one point in time?
 *
 * A stage whose cache is gone, broken or behind is filled from its neighbours (edge_heal.c). But where no cache of this
 * machine holds the mark of the checkpoint, and all hold others, nobody has what the run needs: somebody has put an
 * older checkpoint (or other caches) there. To go on would be another run, and would throw the caches away.
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
 * that can be read hold other marks; names them. AQ_OK also where there is none, or none can be read.
 */
enum aq_status aq_resume_check(const struct aq_plan *plan, const char *run, uint64_t step);

#endif
