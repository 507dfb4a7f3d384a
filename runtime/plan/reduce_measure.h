/*
 * reduce_measure.h -- what `reduce.codec: auto` is chosen by: what the links of a group carry, and what packing costs.
 *
 * Takes memory for as long as it lasts (aq_reduce_measure_bytes, a line of the plan).
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_REDUCE_MEASURE_H
#define RUNTIME_REDUCE_MEASURE_H

#include <stdint.h>

#include "aqsgd/device.h"
#include "aqsgd/grad_choice.h"

struct aq_group; /* net/collective.h */

/* The larger of what the two take; W replicas, `parameters` of a stage. */
uint64_t aq_reduce_measure_bytes(uint64_t parameters, uint32_t W);

/*
 * Seconds that one rank of W spends on a value of a reduction in each candidate: a worker's encoding of everything, the
 * owner's adding up, its encoding of the mean, and decoding that from all; on the device's pool, or by its kernels, as
 * a group does it. device NULL: by one thread of the host, as with reduce.delay. AQ_NOMEM.
 */
enum aq_status aq_reduce_measure_packing(struct aq_device *device, const struct aq_grad_candidate *candidates,
                                         uint32_t count, uint64_t parameters, uint32_t W, double *value_s);

/* The rate of a group's links while all its ranks send each other as much as they can; the same on every rank. */
struct aq_reduce_links {
    double rate;      /* bytes of bodies a second that leave a rank; of the slowest       */
    double latency_s; /* of a message of one byte to everybody                            */
};

/*
 * Every rank of the group calls it. Blocks double until one takes LONG_NS, so that a token bucket's burst is spent
 * before it counts; the best of three rounds of that size is taken. A second at most on a link of 1 Mbit/s or more.
 * A group over NCCL sums memory of the device instead, which sends as much. Answers as a collective.
 */
enum aq_status aq_reduce_measure_links(struct aq_group *group, struct aq_device *device, struct aq_stream *stream,
                                       struct aq_reduce_links *out);

#endif
