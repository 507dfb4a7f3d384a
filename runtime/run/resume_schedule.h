/*
 * resume_schedule.h -- the learning rate of a run that is resumed beyond its end (lr_ends.h).
 *
 * Locking: none.
 */
#ifndef RUNTIME_RESUME_SCHEDULE_H
#define RUNTIME_RESUME_SCHEDULE_H

#include "lr_ends.h"
#include "plan.h"

/*
 * A setting "train.schedule='...'" for the manifest's run with another end. choice: the value of --schedule. AQ_INVAL:
 * the manifest cannot be read or planned, or it has too many ends.
 */
enum { AQ_RESUME_SCHEDULE_BYTES = AQ_LR_ENDS_BYTES + 32 };
enum aq_status aq_resume_schedule(const char *manifest, enum aq_lr_choice choice, char out[AQ_RESUME_SCHEDULE_BYTES]);

/*
 * The change of the learning rate when a run of plan `there` resumes with plan `here` after `at` steps, with the rates
 * before and after, as text: "; ..." to append to a sentence, or "" if nothing changes.
 */
void aq_resume_rates(const struct aq_plan *there, const struct aq_plan *here, uint64_t at, char *out, size_t bytes);

#endif
