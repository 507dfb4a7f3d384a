/*
 * task_classification.c -- cross-entropy over classes; accuracy is the part of the samples whose class has the largest
 * output, of equal ones the first. Two classes, with 1 as the positive one, also have Matthews' correlation and F1 (as
 * in scikit-learn: 0 if their denominator is 0).
 */
#include <math.h>

#include "stage_task.h"

/* Of the counts: right ones; guesses of 1; targets of 1; both at once; targets and guesses beyond 1. */
enum { RIGHT, GUESSED, WANTED, BOTH, BEYOND };

static void count(const struct stage_counted *rows, struct aq_stage_loss *loss)
{
    stage_task_count_losses(rows, loss);
    for (uint64_t i = 0; i < rows->rows; i++) {
        const int32_t target = rows->targets[i], guess = rows->guesses[i];
        if (target < 0) continue;
        loss->counts[RIGHT] += target == guess;
        loss->counts[GUESSED] += guess == 1;
        loss->counts[WANTED] += target == 1;
        loss->counts[BOTH] += target == 1 && guess == 1;
        loss->counts[BEYOND] += (target > 1) + (guess > 1);
    }
}

static double accuracy(const struct aq_stage_loss *loss)
{
    return loss->counts[RIGHT] / (double)loss->targets;
}

/* (TP TN - FP FN) / sqrt((TP + FP)(TP + FN)(TN + FP)(TN + FN)) */
static double matthews(const struct aq_stage_loss *loss)
{
    const double n = (double)loss->targets, guessed = loss->counts[GUESSED], wanted = loss->counts[WANTED];
    const double below = guessed * wanted * (n - guessed) * (n - wanted);
    if (loss->counts[BEYOND] > 0) return (double)NAN;
    return below > 0 ? (n * loss->counts[BOTH] - guessed * wanted) / sqrt(below) : 0;
}

/* 2 TP / (2 TP + FP + FN) */
static double f1(const struct aq_stage_loss *loss)
{
    const double below = loss->counts[GUESSED] + loss->counts[WANTED];
    if (loss->counts[BEYOND] > 0) return (double)NAN;
    return below > 0 ? 2 * loss->counts[BOTH] / below : 0;
}

const struct aq_task aq_task_classification = {
    .name = "classification",
    .field = "labels",
    .whole = true,
    .wants_guesses = true,
    .loss = aq_device_cross_entropy,
    .count = count,
    .metrics = {{"accuracy", true, accuracy}, {"matthews", true, matthews}, {"f1", true, f1}}};
