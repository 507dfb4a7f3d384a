/*
 * worker_pipeline.h -- between this stage and those before and behind it: edges, links, values at the cuts, what the
 * device was given, and a table that the first and the last stage share.
 *
 * Locking: everything here belongs to the exec thread.
 */
#ifndef RUNTIME_WORKER_PIPELINE_H
#define RUNTIME_WORKER_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/device.h"
#include "edge.h"
#include "plan.h"
#include "program.h"
#include "values.h"
#include "worker_parts.h"

struct aq_worker;     /* worker.h */
struct aq_worker_run; /* worker_steps.h */
struct aq_worker_times;

/* A forward, a backward or the weight half of one that the device has been given. */
enum { AQ_WORKER_ISSUES = 4 };
struct aq_worker_issue {
    struct aq_instruction instruction;
    uint64_t step;
    struct aq_event *begun, *ended; /* with a time */
    uint64_t issued_ns;
};

/* A head that is the embedding's table, behind a cut (worker_tied.c). */
struct aq_worker_tied {
    bool ready;     /* the edge has the words to send: worker_tied.c                  */
    bool decoded;   /* compressed: the head's gradient has been decoded in this step */
    bool previous;  /* values are those before the last update                       */
    uint64_t words; /* that lie in the edge                                          */
    bool local;     /* both ends are the client's: through fd, and `host`            */
    int fd;
    struct aq_plan_tied traffic;
    struct aq_grad_codec *codec; /* NULL: nothing is compressed here */
    float *host;                 /* NULL: the stage's memory is the host's */
};

/* Edges, links and values between this stage and the stages before and behind it. */
struct aq_worker_pipeline {
    struct aq_stream *send_stream, *receive_stream;
    /* At the cuts, of micro-batch i in [i % copies]. */
    struct aq_values x[AQ_PLAN_COPIES_MAX], y[AQ_PLAN_COPIES_MAX], dx[AQ_PLAN_COPIES_MAX], dy[AQ_PLAN_COPIES_MAX];
    uint32_t copies;
    /* Forwards and backwards that the device has not done, oldest first (worker_device.c). */
    struct aq_worker_issue issues[AQ_WORKER_ISSUES];
    uint32_t issue_first, issue_count;
    struct aq_event *anchor; /* start of the step, at anchor_ns */
    uint64_t anchor_ns;
    struct aq_link *link_in, *link_out;
    struct aq_edge *in, *out;
    struct aq_cache *cache;
    struct aq_worker_tied tied;
    struct aq_plan_stage asked; /* this stage, where a text is computed (worker_answer.c); else nothing */
    struct aq_worker_refill {
        uint64_t step, end; /* from the first to behind the last, an epoch later: each sample once */
        uint32_t micro_batch;
    } refills[2]; /* how far lost messages of the edges in and out were asked for ahead */
};

/* worker_device.c: streams, values at the cuts, events; the stage is open. Closing takes half-open ones. */
enum aq_status aq_worker_device_open(struct aq_worker *worker);
void aq_worker_device_close(struct aq_worker *worker);

/* worker_device.c: forwards, backwards and gradients belong to this step, `now` or `next`, from here on. */
void aq_worker_use(struct aq_worker *worker, uint64_t step);

/* worker_device.c: wait for all streams and ignore their errors, before their memory is freed. */
void aq_worker_device_synchronize(struct aq_worker *worker);

/* worker_device.c: the step starts now. If no work is issued, the times of this step count from here. */
enum aq_status aq_worker_anchor(struct aq_worker *worker);

/*
 * worker_device.c: FORWARD, BACKWARD and WEIGHTS are issued; what they come to, losses and times, is taken up by a
 * later aq_worker_issues_advance (part of aq_worker_pump). AQ_AGAIN: as many are out as may be; nothing has happened.
 */
enum aq_status aq_worker_forward(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_backward(struct aq_worker *worker, const struct aq_worker_run *run,
                                  const struct aq_instruction *instruction);
enum aq_status aq_worker_weights(struct aq_worker *worker, const struct aq_worker_run *run,
                                 const struct aq_instruction *instruction);
enum aq_status aq_worker_issues_advance(struct aq_worker *worker);

/*
 * worker_device.c, for parts (self: the worker): a sample as a batch, which borrows id; its activation, without a slot,
 * if no gradients come here: from pipeline.dx[0] into pipeline.dy[0].
 */
void aq_worker_sample(const void *self, const uint64_t *id, struct aq_edge_batch *batch);
enum aq_status aq_worker_compute(void *self, const struct aq_edge_batch *batch);

/*
 * worker_device.c: shows the parts values at a cut, at one of AQ_PART_CUT_*. slot: the stage's. kind: why the batch
 * crosses the cut. Does nothing where there is no such cut. Errors: the parts'; then the values must not be sent.
 */
enum aq_status aq_worker_cut(struct aq_worker *worker, enum aq_part_moment moment, const struct aq_edge_batch *batch,
                             uint32_t slot, enum aq_part_samples kind, const struct aq_values *values);

/*
 * worker_tied.c: a head that is the embedding's table, behind a cut. up: behind the chains of a step, the head's
 * gradient to the first stage; down: behind STEP, the table to the last. AQ_AGAIN: call again, as halves of NORM.
 * follow: the table to the last stage, at any time that is the same on all stages. open: behind open_edges.
 */
bool aq_worker_is_tied(const struct aq_worker *worker);
enum aq_status aq_worker_tied_up(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times);
enum aq_status aq_worker_tied_down(struct aq_worker *worker, struct aq_worker_run *run, struct aq_worker_times *times);
enum aq_status aq_worker_tied_follow(struct aq_worker *worker);
enum aq_status aq_worker_tied_open(struct aq_worker *worker);
void aq_worker_tied_close(struct aq_worker *worker);

/* worker_ends.c: between a client's two ends; `words` counts those in tied.host. AQ_CLOSED, AQ_PROTO, AQ_TIMEOUT. */
enum aq_status aq_worker_ends_open(struct aq_worker *worker);
void aq_worker_ends_close(struct aq_worker *worker);
enum aq_status aq_worker_ends_send(struct aq_worker *worker, uint64_t words);
enum aq_status aq_worker_ends_receive(struct aq_worker *worker, uint64_t *words);

#endif
