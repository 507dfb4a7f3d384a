/* resume_schedule.c -- see the header. */
#include "resume_schedule.h"

#include <stdio.h>

enum aq_status aq_resume_schedule(const char *manifest, enum aq_lr_choice choice, char out[AQ_RESUME_SCHEDULE_BYTES])
{
    struct aq_job *job;
    struct aq_plan *plan;
    char text[AQ_LR_ENDS_BYTES];
    AQ_TRY(aq_job_load(manifest, NULL, 0, &job));
    enum aq_status status = aq_plan_open(job, &plan);
    if (status != AQ_OK) {
        aq_job_close(job);
        return status;
    }
    struct aq_lr_ends ends = job->train.lr_ends;
    if (!aq_lr_ends_add(&ends, choice, plan->steps))
        status = aq_fail(AQ_INVAL, "launch", "train.schedule has %d ends already: start a new run from the weights",
                         AQ_LR_ENDS_MAX);
    aq_plan_close(plan);
    aq_job_close(job);
    AQ_TRY(status);
    aq_lr_ends_write(&ends, text);
    (void)snprintf(out, AQ_RESUME_SCHEDULE_BYTES, "train.schedule='%s'", text);
    return AQ_OK;
}

void aq_resume_rates(const struct aq_plan *there, const struct aq_plan *here, uint64_t at, char *out, size_t bytes)
{
    const struct aq_lr_ends *ends = &here->job->train.lr_ends;
    const uint64_t end = there->steps;
    const enum aq_lr_choice last = ends->count > 0 ? ends->of[ends->count - 1].choice : AQ_LR_UNSAID;
    out[0] = 0;
    if (last == AQ_LR_CONTINUE || last == AQ_LR_RESTART) {
        if (here->steps <= end) return;
        (void)snprintf(out, bytes,
                       "; train.schedule: %s: the learning rate is %g at step %llu, the old end, and %g at the next%s",
                       aq_lr_choice_name(last), (double)aq_plan_learning_rate(here, end), (unsigned long long)end,
                       (double)aq_plan_learning_rate(here, end + 1),
                       last == AQ_LR_RESTART                       ? ": warm-up and decay start again"
                       : aq_lr_decay_paces(here->job->train.decay) ? ": it decays as before"
                                                                   : ", where it stays");
        return;
    }
    if (at == 0 || at >= here->steps) return;
    const float before = aq_plan_learning_rate(there, at), after = aq_plan_learning_rate(here, at + 1);
    if (last == AQ_LR_UNSAID && before == aq_plan_learning_rate(here, at)) return;
    (void)snprintf(
        out, bytes,
        "; train.schedule: extend: train.decay goes by the end, so that the learning rate was %g at step %llu "
        "and is %g at the next, which is not the run that %llu steps from the start would be%s",
        (double)before, (unsigned long long)at, (double)after, (unsigned long long)here->steps,
        last == AQ_LR_UNSAID ? " (aqpipe resume --schedule continue or restart does otherwise)" : "");
}
