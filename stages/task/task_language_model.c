/* task_language_model.c -- cross-entropy of the next token; perplexity is its exponential. */
#include <math.h>

#include "stage_task.h"

static double perplexity(const struct aq_stage_loss *loss)
{
    return exp(loss->sum / (double)loss->targets);
}

const struct aq_task aq_task_language_model = {.name = "language_model",
                                               .field = "targets",
                                               .loss = aq_device_cross_entropy,
                                               .count = stage_task_count_losses,
                                               .metrics = {{"perplexity", false, perplexity}}};
