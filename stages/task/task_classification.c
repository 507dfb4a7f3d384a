/*
 * task_classification.c -- cross-entropy over classes; accuracy is the part of the samples whose class has the largest
 * output, of equal ones the first.
 */
#include "stage_task.h"

enum { RIGHT = 0 }; /* of the counts */

static void count(const struct stage_counted *rows, struct aq_stage_loss *loss)
{
    stage_task_count_losses(rows, loss);
    for (uint64_t i = 0; i < rows->rows; i++)
        loss->counts[RIGHT] += rows->targets[i] >= 0 && rows->targets[i] == rows->guesses[i];
}

static double accuracy(const struct aq_stage_loss *loss)
{
    return loss->counts[RIGHT] / (double)loss->targets;
}

extern const struct aq_task aq_task_classification;
const struct aq_task aq_task_classification = {.name = "classification",
                                               .field = "labels",
                                               .wants_guesses = true,
                                               .loss = aq_device_cross_entropy,
                                               .count = count,
                                               .metrics = {{"accuracy", true, accuracy}}};
