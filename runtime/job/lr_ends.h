/*
 * lr_ends.h -- the learning rate of a run that was resumed beyond its end (aqpipe resume --schedule).
 *
 * The key train.schedule is a list of ends: "restart 24, continue 48" is for a run that was to end at step 24, and then
 * at step 48. An end is one of
 *
 *     extend     the schedule is stretched to the new end: nothing is changed but what a later resume does by default
 *     continue   the schedule runs to that end; beyond it the rate stays at that of the end's step (linear, cosine,
 *                polynomial). Constant, step and exponential have no end: for them it equals extend
 *     restart    the schedule runs to that end; warm-up and decay start again after it
 *
 * Steps rise. Everything here is pure.
 *
 * Locking: none.
 */
#ifndef RUNTIME_LR_ENDS_H
#define RUNTIME_LR_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/grad.h"

/* The ends of a run: one for each resume with --schedule. 32 times 29 bytes of text. */
enum { AQ_LR_ENDS_MAX = 32, AQ_LR_ENDS_BYTES = 1024 };

enum aq_lr_choice {
    AQ_LR_UNSAID = 0, /* of a resume: the choice of the last end, else extend */
    AQ_LR_EXTEND = 1,
    AQ_LR_CONTINUE = 2,
    AQ_LR_RESTART = 3
};

struct aq_lr_ends {
    uint32_t count;
    struct aq_lr_end {
        enum aq_lr_choice choice;
        uint64_t step; /* the last one of the schedule before, at least 1 */
    } of[AQ_LR_ENDS_MAX];
};

/* "extend", "continue", "restart". */
const char *aq_lr_choice_name(enum aq_lr_choice choice);
/* False: there is no choice of that name. */
bool aq_lr_choice_named(const char *name, enum aq_lr_choice *out);

/* The key's text (NULL or "": no end). False: it is malformed, or has too many ends. */
bool aq_lr_ends_read(const char *text, struct aq_lr_ends *out);
/* The text that read reads. */
void aq_lr_ends_write(const struct aq_lr_ends *ends, char out[AQ_LR_ENDS_BYTES]);

/*
 * A run that was to end at `step` goes further. Ends that lie at or behind that step were never reached: they go.
 * Extend takes back a continue of the same stretch. False: there are AQ_LR_ENDS_MAX already; nothing has changed.
 */
bool aq_lr_ends_add(struct aq_lr_ends *ends, enum aq_lr_choice choice, uint64_t step);

/* The learning rate of a step of a run whose schedule, with its last end as `total`, is `whole`. */
float aq_lr_ends_rate(const struct aq_lr_ends *ends, const struct aq_lr_schedule *whole, uint64_t step);

#endif
