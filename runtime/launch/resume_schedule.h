/*
 * resume_schedule.h -- a run goes on beyond its end: what its learning rate does there (lr_ends.h).
 *
 * Locking: none.
 */
#ifndef RUNTIME_RESUME_SCHEDULE_H
#define RUNTIME_RESUME_SCHEDULE_H

#include "lr_ends.h"
#include "plan.h"

/*
 * A setting "train.schedule='...'" for the run of that manifest when it goes to another end. choice: what --schedule
 * says. AQ_INVAL: the manifest cannot be read or planned, or it has too many ends.
 */
enum { AQ_RESUME_SCHEDULE_BYTES = AQ_LR_ENDS_BYTES + 32 };
enum aq_status aq_resume_schedule(const char *manifest, enum aq_lr_choice choice, char out[AQ_RESUME_SCHEDULE_BYTES]);

/*
 * What becomes of the learning rate of a run of plan `there` that goes on with plan `here` after `at` steps, with the
 * rates before and after, for a person: "; ..." behind another sentence, or "" where nothing changes.
 */
void aq_resume_rates(const struct aq_plan *there, const struct aq_plan *here, uint64_t at, char *out, size_t bytes);

#endif
