/*
 * worker_parts.h -- what a feature of the worker is asked, and when: one table of functions per part.
 *
 * The worker asks all parts that the job wants, in the order of worker_parts.def. A part keeps its values in memory of
 * its own, which the worker takes once, and which no other file sees. What a part decides goes back in the arguments of
 * a moment.
 *
 * Locking: none; the exec thread's.
 */
#ifndef RUNTIME_WORKER_PARTS_H
#define RUNTIME_WORKER_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "checkpoint.h"
#include "plan.h"

enum aq_part_moment {
    AQ_PART_STEP_BEGIN, /* before the first forward of a step that has not begun: sets the factors          */
    AQ_PART_STEP_GOOD,  /* the step's gradient was finite, and the optimizer has taken it                  */
    AQ_PART_STEP_VOID   /* it was not finite on some rank, and all skip the step: sets `mended` or the texts */
};

enum { AQ_PART_TEXT = 96 };

/* Of one moment. Each part changes what concerns it; the values before the first part are the defaults. */
struct aq_part_args {
    bool stale;                /* in: the next step begins before this one's update                      */
    float factor;              /* of this step's gradient of the loss: times it; default 1               */
    float factor_next;         /* of the step after it, if it begins before this one ends; default 1     */
    bool mended;               /* the part has changed what may have made the gradient infinite           */
    char note[AQ_PART_TEXT];   /* behind the warning of a void step: "; the loss scale is 32768 now"     */
    char remedy[AQ_PART_TEXT]; /* what a user could change besides train.lr: "train.loss_scale (64) or " */
};

struct aq_part_ops {
    const char *name;
    size_t bytes; /* of its own memory, zeroed before open                                              */
    /* From the plan only, so that all ranks agree. */
    bool (*wanted)(const struct aq_plan *plan, uint32_t rank);
    void (*open)(void *self, const struct aq_plan *plan, uint32_t rank);
    void (*on)(void *self, enum aq_part_moment moment, struct aq_part_args *args);
    /* The floats that a checkpoint keeps of it: adds none or more to states[*count]. */
    void (*state)(void *self, struct aq_checkpoint_state *states, uint32_t *count);
    /* Its figures in the line of a step. */
    void (*report)(const void *self, json_t *line);
};

enum {
#define AQ_PART(name) AQ_PART_INDEX_##name,
#include "worker_parts.def"
    AQ_PARTS
};

struct aq_worker_parts {
    void *self[AQ_PARTS]; /* memory of each part; NULL: the job does not want it */
};

/* Opens the wanted ones. AQ_NOMEM. close takes parts that were not opened. */
enum aq_status aq_worker_parts_open(struct aq_worker_parts *parts, const struct aq_plan *plan, uint32_t rank);
void aq_worker_parts_close(struct aq_worker_parts *parts);

/* Sets the defaults of args, but for what goes in, and asks all parts. */
void aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment, struct aq_part_args *args);
void aq_worker_parts_state(struct aq_worker_parts *parts, struct aq_checkpoint_state *states, uint32_t *count);
void aq_worker_parts_report(const struct aq_worker_parts *parts, json_t *line);

#endif
