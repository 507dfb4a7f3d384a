/*
 * stage_task.h -- the interface of a task to the last layer of a model; private to stages/.
 *
 * The loss is asked for rows of the output, some at a time where they are many, so that logits need not exist at once.
 */
#ifndef STAGE_TASK_H
#define STAGE_TASK_H

#include "aqsgd/device_math.h"
#include "stages/task.h"

/* Rows of one micro-batch as the host has them, for counting. */
struct stage_counted {
    uint64_t rows;
    const float *losses;
    const int32_t *targets;
    const int32_t *guesses; /* the column of each row's largest output; NULL: the task needs none */
    const float *numbers;   /* of a task of numbers, instead of targets: NaN is not counted             */
    const float *said;      /* and the output of each row, instead of guesses                           */
};

struct aq_metric {
    const char *name; /* NULL: no more */
    bool higher;      /* is better     */
    double (*value)(const struct aq_stage_loss *loss);
};

struct aq_task {
    const char *name;
    const char *field;  /* of a batch: int32, one a row of the output, -1: not counted */
    bool numbers;       /* the field is float32 instead, NaN: not counted; a row has one output, which is the guess */
    bool whole;         /* one target a sample: of a sequence of tokens as a whole */
    bool wants_guesses; /* for counting */
    /*
     * losses and gradient of rows, on the device; the output is used up. Arguments as aq_device_cross_entropy's; of a
     * task of numbers the targets are floats that lie there.
     */
    enum aq_status (*loss)(struct aq_device *device, const struct aq_cross_entropy *rows, struct aq_stream *stream);
    /* Adds the rows to *loss, in order. */
    void (*count)(const struct stage_counted *rows, struct aq_stage_loss *loss);
    struct aq_metric metrics[AQ_TASK_METRICS_MAX];
};

/* loss->sum and loss->targets, which all tasks have. */
void stage_task_count_losses(const struct stage_counted *rows, struct aq_stage_loss *loss);

#define AQ_TASK(name) extern const struct aq_task aq_task_##name;
#include "stages/tasks.def"
#undef AQ_TASK

#endif
