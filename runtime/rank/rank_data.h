/*
 * rank_data.h -- the data of one rank: data sets, order of its samples, lengths, and the batch that its stage reads.
 *
 * First and last stage read the data; the others know its samples by their ids and lengths. All of it follows from the
 * plan, the rank and the launcher's start line: nothing here knows the worker.
 *
 * Locking: none; the exec thread's.
 */
#ifndef RUNTIME_RANK_DATA_H
#define RUNTIME_RANK_DATA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "plan.h"
#include "stages/augment.h"
#include "stages/dataset.h"
#include "stages/stage.h"
#include "stages/task.h"

struct aq_rank_data {
    const struct aq_plan *plan; /* borrowed */
    uint32_t rank, position;
    uint64_t shift;                     /* the plan's step minus the run's own, modulo 2^64 (split.mode: global) */
    uint64_t idle;                      /* steps of rounds before that this replica did not train (reduce.steps): its
                                           samples follow each other without a gap */
    struct aq_dataset *train, *heldout; /* first and last stage only */
    struct aq_sampler *sampler;
    struct aq_batch batch; /* room for B samples with all fields of the data set; a middle stage has only ids */
    uint64_t *sample_ids;  /* B */
    uint32_t *lengths;     /* B: tokens of these samples that are real */
    struct aq_view *views; /* B: how each image is seen: data.augment */
    const uint32_t *train_lengths, *heldout_lengths; /* of all; NULL: all are T, or split.pad and others know */
    const uint32_t *parts;                           /* of all training samples, then of held-out ones; or NULL */
    uint32_t *part_first;                            /* then, of each of these and the end: its first one       */
    uint32_t *starts;                                /* (B + 1, T): of a batch, and of a sample that is made again */
    struct aq_rank_targets {
        struct aq_sampler **samplers; /* of each replica: where samples have fewer targets than places; else NULL */
        uint64_t step;                /* of which `all` is known, plus one                                         */
        double all;                   /* counted targets of the step, over all replicas                            */
    } targets;
    void *host_memory, *lengths_memory;
};

/*
 * start: of it the lengths. AQ_PROTO: they are not the plan's; AQ_MISMATCH: the data are not; and what data sets
 * return. Closing takes a half-open one.
 */
enum aq_status aq_rank_data_open(struct aq_rank_data *data, const struct aq_plan *plan, uint32_t rank, uint64_t shift,
                                 const json_t *start);
void aq_rank_data_close(struct aq_rank_data *data);

/* Samples of this rank in a step, and the micro-batches that they are. */
uint32_t aq_rank_data_samples(const struct aq_rank_data *data, uint64_t step);
uint32_t aq_rank_data_micro_batches(const struct aq_rank_data *data, uint64_t step);

/* The samples of a micro-batch of a step; *samples is 1..B. Fills data->sample_ids. */
void aq_rank_data_batch(struct aq_rank_data *data, uint64_t step, uint32_t micro_batch, struct aq_edge_batch *batch);

/* The lengths of a batch that its edges are given: none with split.pad, so that whole samples are sent. */
const uint32_t *aq_rank_data_cut_lengths(const struct aq_rank_data *data, const uint32_t *lengths);

/*
 * Fills data->batch with the fields of these samples, by their ids: those of the last aq_rank_data_batch, as they are
 * seen in this epoch, or held-out ones, which follow each other. put_alone: of the one trained sample, which leaves
 * what others put to be restored by the caller.
 */
enum aq_status aq_rank_data_put(struct aq_rank_data *data, const struct aq_edge_batch *batch, bool heldout);
enum aq_status aq_rank_data_put_alone(struct aq_rank_data *data, const struct aq_edge_batch *batch);

/*
 * Divisor of a step's losses, on the last stage: the targets of the whole step, over all replicas, divided by the
 * number of replicas, because replicas average means. So the mean is over the step's targets, however the batch is cut.
 * If all samples have equally many targets, each replica has an equal part. task: the stage's.
 */
double aq_rank_data_targets(struct aq_rank_data *data, const struct aq_task *task, uint64_t step);

#endif
