/*
 * layer_bench.h -- some layers of a plan's model, open on this machine with values at random, to be timed.
 *
 *     struct aq_plan_bench bench;
 *     AQ_TRY_GOTO(aq_plan_bench_open(&bench, plan, s, &config, threads), out);
 *     ... aq_plan_bench_forward(&bench, slot), then aq_plan_bench_backward(&bench, slot) ...
 * out:
 *     aq_plan_bench_close(&bench);
 *
 * Locking: one thread at a time.
 */
#ifndef RUNTIME_LAYER_BENCH_H
#define RUNTIME_LAYER_BENCH_H

#include "advice_private.h"

enum { AQ_PLAN_ROUNDS_MAX = 31 };

struct aq_plan_bench {
    const struct aq_plan *plan;
    uint32_t rank, slots, rounds;
    bool first, last, split; /* has the model's first layer; its last; its backward has halves */
    struct aq_stage *stage;
    double forward_s[AQ_PLAN_ROUNDS_MAX], backward_s[AQ_PLAN_ROUNDS_MAX], weights_s[AQ_PLAN_ROUNDS_MAX];
    struct aq_device *device;
    struct aq_stream *stream;
    float *x, *y; /* at the cut before and behind */
    uint64_t x_bytes, y_bytes;
    struct aq_batch batch; /* of the first and the last stage: values at random */
    uint64_t *ids;
};

/* Layers of `stage`, on the device of the plan's stage s. On failure, too, close it. */
enum aq_status aq_plan_bench_open(struct aq_plan_bench *bench, const struct aq_plan *plan, uint32_t s,
                                  const struct aq_stage_config *stage, uint32_t threads);
void aq_plan_bench_close(struct aq_plan_bench *bench);

/* Initial weights, and a forward in every slot. */
enum aq_status aq_plan_bench_begin(struct aq_plan_bench *bench);

/* One micro-batch; each returns when the device is done. weights does nothing where backward is not split. */
enum aq_status aq_plan_bench_forward(struct aq_plan_bench *bench, uint32_t slot);
enum aq_status aq_plan_bench_backward(struct aq_plan_bench *bench, uint32_t slot);
enum aq_status aq_plan_bench_weights(struct aq_plan_bench *bench, uint32_t slot);

/* Each once, timed into the round's entries: the oldest backward of the slots, and a forward in its place. */
enum aq_status aq_plan_bench_round(struct aq_plan_bench *bench, uint32_t round);

/* Times the end of a step: the norm, the optimizer's step, gradients zeroed; the least of several repeats. */
enum aq_status aq_plan_bench_update(struct aq_plan_bench *bench, double *seconds_least);

double aq_plan_bench_since(uint64_t begin_ns); /* seconds */
double aq_plan_bench_least(const double *values, uint32_t count);
double aq_plan_bench_median(double *values, uint32_t count); /* sorts them */

#endif
