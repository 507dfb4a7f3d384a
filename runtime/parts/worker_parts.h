/*
 * worker_parts.h -- what a feature of the worker is asked, and when: one table of functions per part.
 *
 * The worker asks all parts that the job needs, in the order of worker_parts.def. A part keeps its values in memory of
 * its own, which the worker takes once, and which no other file sees. What a part decides goes back in the arguments of
 * a moment. A part that reads or changes values at a cut does so at the four moments AQ_PART_CUT_*: between the stage's
 * work and the end of its writing. So edges, caches and codecs only see what the parts leave. A send that returned
 * AQ_AGAIN sends the same values again.
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
#include "cut_host.h"
#include "plan.h"
#include "program.h"

struct aq_batch; /* stages/stage.h */
struct aq_sampler;
struct aq_edge; /* edge.h */
struct aq_edge_batch;
struct aq_edge_guard;
struct aq_edge_measures;
struct aq_link; /* net/link.h */

enum aq_part_moment {
    AQ_PART_START,             /* args->message: the launcher's start line; nothing is open */
    AQ_PART_CACHE_OPEN,        /* sets `key`; AQ_AGAIN: not before the links are open */
    AQ_PART_EDGE_OPEN,         /* an edge is about to open: sets `guard` */
    AQ_PART_EDGE_OPENED,       /* that edge is open; no peer has joined it */
    AQ_PART_JOINED,            /* the neighbours are there, too: `worker` is valid from here on   */
    AQ_PART_RESTORE,           /* this stage's checkpoint of args->step is lost: brings the file back, or AQ_AGAIN */
    AQ_PART_RUN_BEGIN,         /* all is open; steps done: args->step */
    AQ_PART_GO,                /* all ranks are open, training begins */
    AQ_PART_MESSAGE,           /* the launcher has sent args->message, at any time */
    AQ_PART_STEP_AWAIT,        /* step args->step may begin; AQ_AGAIN: not before the launcher sends `awaits` */
    AQ_PART_STEP_BEGIN,        /* before the first forward of a step that has not begun: sets the factors */
    AQ_PART_CUT_INPUT,         /* args->cut: activations from the stage before, before the forward reads them */
    AQ_PART_CUT_OUTPUT,        /* activations that this stage's forward made, before they are sent */
    AQ_PART_CUT_GRADIENT,      /* gradients from the stage behind, before the backward reads them */
    AQ_PART_CUT_GRADIENT_BACK, /* gradients that this stage's backward made, before they are sent */
    AQ_PART_INSTRUCTION,       /* args->turn is next; sets `done` if the stage has nothing to do with it */
    AQ_PART_PUMP,              /* each time that a step looks at its edges and its device */
    AQ_PART_SERVE,             /* the same, and each time that this stage waits: sets nothing */
    AQ_PART_REDUCE,            /* averages the gradients of step args->step over the clients: sets `reduced` */
    AQ_PART_STEP_GOOD,         /* the step's gradient was finite, and the optimizer has taken it */
    AQ_PART_STEP_VOID,         /* it was not finite on some rank, and all skip the step: sets `mended` or the texts */
    AQ_PART_EVALUATED_AWAIT,   /* after an evaluation, args->step steps done: sets `ends`; AQ_AGAIN as before */
    AQ_PART_SNAPSHOT,          /* before a checkpoint copies the states */
    AQ_PART_WRITTEN,           /* this stage's checkpoint of args->step is on disk; AQ_AGAIN: it needs `awaits` */
    AQ_PART_EDGES_CLOSE,       /* the edges close, and `worker` is not valid any more */
    AQ_PART_RUN_END            /* training is over, well or not: what a part logs of a run */
};

/* Why samples cross a cut: a step learns from them; they are held-out; they are of a lost message, made again. */
enum aq_part_samples { AQ_PART_TRAINED, AQ_PART_HELDOUT, AQ_PART_REMADE };

/* A micro-batch at a cut. */
struct aq_part_cut {
    const struct aq_plan_edge *edge;   /* the cut                                                          */
    const struct aq_edge_batch *batch; /* samples, numbers, step                                           */
    const struct aq_batch *inputs;     /* at AQ_PART_CUT_OUTPUT: what the stage computed from, as the data */
                                       /* set gives it; of no meaning at other moments                     */
    const struct aq_values *values;    /* read and changed by `host` only                                  */
    struct aq_cut_host *host;
    uint32_t slot;             /* of the stage, from this forward to its backward                              */
    enum aq_part_samples kind; /* held-out samples have numbers of their own                               */
    bool trains;               /* it is AQ_PART_TRAINED                                                        */
    uint32_t step_samples;     /* of the whole step, if it trains                                              */
    float loss_factor;         /* of the step's gradients, divided out after its last backward; if it trains   */
};

/* What a part may use of its worker, borrowed from AQ_PART_JOINED to AQ_PART_EDGES_CLOSE. */
struct aq_part_worker {
    struct aq_device *device;
    struct aq_stage *stage;
    struct aq_sampler *sampler;
    struct aq_stream *compute, *send, *receive;
    struct aq_edge *in, *out; /* NULL: there is no such stage */
    struct aq_eventcount *events;
    struct aq_trace *trace;
    uint64_t silence_ns;                       /* longest wait for a neighbour */
    const struct aq_values *spare_x, *spare_y; /* of a micro-batch at the cuts in and out, if no gradient goes back */
    const char *checkpoints;                   /* the folder of all */
    const char *hash;                          /* SHA-256 of this stage's file that the run resumes from; or "" */
    void *self;                                /* of the functions */
    enum aq_status (*pump)(void *self);        /* while a part waits in AQ_PART_REDUCE */
    bool (*is_busy)(const void *self);         /* has the device work that has not come back? */
    /* A sample as a batch, which borrows id; its activation, from spare_x (first stage: its data) into spare_y. */
    void (*sample)(const void *self, const uint64_t *id, struct aq_edge_batch *batch);
    enum aq_status (*compute_alone)(void *self, const struct aq_edge_batch *batch);
};

/* An instruction of a chain (program.h). */
struct aq_part_instruction {
    enum aq_op op;
    uint16_t slot;
    const struct aq_edge_batch *batch;
    const struct aq_values *x;           /* of its micro-batch, at the cut in    */
    enum aq_status (*forward)(void *of); /* the stage's forward of it, at AQ_OP_FORWARD and AQ_OP_SEND_FWD */
    void *of;
};

/* What came of a reduction. */
struct aq_part_reduced {
    uint64_t bytes; /* sent               */
    bool is_void;   /* no one had a part of it */
};

enum { AQ_PART_TEXT = 96 };

/* Of one moment. Each part changes what concerns it; the values before the first part are the defaults. */
struct aq_part_args {
    const char *run_folder;                 /* in, RUN_BEGIN */
    uint64_t step;                          /* in: steps done; at REDUCE and WRITTEN that of the moment */
    const struct aq_part_worker *worker;    /* in, JOINED */
    const struct aq_part_instruction *turn; /* in, INSTRUCTION */
    bool done;                              /* the instruction is done; default false */
    bool waits;                             /* in, SERVE, WRITTEN: this stage has nothing else to do */
    uint64_t mark_now;                      /* in, SERVE: the step of the checkpoint that this stage started last */
    uint64_t mark_next;                     /* in, SERVE: of the next, which a neighbour may start first; 0: none */
    int64_t shift;                          /* START: the job's step minus the run's; default 0 */
    int64_t updates;                        /* START: updates of the moments minus the run's steps; default 0 */
    bool input_unused;                      /* JOINED: messages of the cut in are hardly ever read; default false */
    bool unreadable;                        /* RESTORE: no true copy of the file is to be had; default false */
    const char *hash;                       /* WRITTEN: SHA-256 of the file, if the part has it; default NULL */
    struct aq_part_reduced reduced;
    bool first;              /* in, STEP_AWAIT: no step came before it in this process */
    struct aq_edge *edge_in; /* in, STEP_AWAIT, EDGE_OPENED; NULL: no */
    struct aq_edge *edge_out;
    bool sends;                    /* in, EDGE_OPEN: this stage sends activations over it */
    struct aq_link *link_in;       /* in, CACHE_OPEN; NULL: no links are open */
    struct aq_eventcount *events;  /* in, CACHE_OPEN: to wait for frames of links */
    const json_t *message;         /* in, START, MESSAGE */
    bool stale;                    /* in, STEP_BEGIN: the next step begins before this one's update */
    const struct aq_part_cut *cut; /* in, CUT_* */
    const uint8_t *key;            /* of AQ_CACHE_KEY_BYTES, of a sealed cache; the part's; default NULL */
    struct aq_edge_guard *guard;   /* of what this end sends over the edge; the part's; default NULL */
    const char *awaits;            /* *_AWAIT: what the launcher is to send: "the bits of this epoch"; WRITTEN:
                                            why it is late */
    bool ends;                     /* the run ends after this evaluation; default false */
    float factor;                  /* of this step's gradient of the loss: times it; default 1 */
    float factor_next;             /* of the step after it, if it begins before this one ends; default 1 */
    bool mended;                   /* the part has changed what may have made the gradient infinite */
    char note[AQ_PART_TEXT];       /* behind the warning of a void step: "; the loss scale is 32768 now" */
    char remedy[AQ_PART_TEXT];     /* what a user could change besides train.lr: "train.loss_scale (64) or " */
};

/* What the line of a step is made from. */
struct aq_part_step {
    const struct aq_edge_measures *in, *out; /* zeros where there is no such edge */
    struct aq_link *links[2];                /* in, out; NULL: there is none      */
};

/* All but name, bytes, wanted, open and on may be NULL. */
struct aq_part_ops {
    const char *name;
    size_t bytes;     /* of its own memory, zeroed before open                                   */
    bool uses_cuts;   /* it is asked at AQ_PART_CUT_*; if no part is, they cost nothing */
    bool uses_chains; /* it is asked at AQ_PART_INSTRUCTION and AQ_PART_PUMP            */
    bool serves;      /* it is asked at AQ_PART_SERVE, serves neighbours at any time, and may restore a checkpoint */
    uint32_t frames;  /* without a body, that it may have queued at once on a link      */
    /* From the plan only, so that all ranks agree. */
    bool (*wanted)(const struct aq_plan *plan, uint32_t rank);
    /* Of stage s, which wants it: its line in the plan, and the pinned bytes that it asks aq_cut_host for. */
    void (*memory)(const struct aq_plan *plan, uint32_t s, struct aq_plan_part *out);
    /* A failed open is closed as a good one is. */
    enum aq_status (*open)(void *self, const struct aq_plan *plan, uint32_t rank);
    enum aq_status (*on)(void *self, enum aq_part_moment moment, struct aq_part_args *args);
    /* The floats that a checkpoint keeps of it: adds as many as it has to states[*count]. */
    void (*state)(void *self, struct aq_checkpoint_state *states, uint32_t *count);
    /* Its figures in the line of a step. */
    void (*report)(void *self, const struct aq_part_step *step, json_t *line);
    void (*close)(void *self);
};

enum {
#define AQ_PART(name) AQ_PART_INDEX_##name,
#include "worker_parts.def"
    AQ_PARTS
};

struct aq_worker_parts {
    void *self[AQ_PARTS];             /* memory of each part; NULL: the job does not need it */
    bool use_cuts, use_chains, serve; /* some part does */
    uint32_t frames;                  /* of all        */
    struct aq_part_worker worker;     /* what the worker lends them, from AQ_PART_JOINED on */
    struct aq_cut_host host;
};

/* Opens the wanted ones, but not `host`. AQ_NOMEM, and what a part's open returns. close takes unopened ones. */
enum aq_status aq_worker_parts_open(struct aq_worker_parts *parts, const struct aq_plan *plan, uint32_t rank);
void aq_worker_parts_close(struct aq_worker_parts *parts);

/* Sets the defaults of args, but for what goes in, and asks all parts. The first failure ends it. */
enum aq_status aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment, struct aq_part_args *args);
void aq_worker_parts_state(struct aq_worker_parts *parts, struct aq_checkpoint_state *states, uint32_t *count);
void aq_worker_parts_report(struct aq_worker_parts *parts, const struct aq_part_step *step, json_t *line);

#define AQ_PART(name) extern const struct aq_part_ops aq_part_##name;
#include "worker_parts.def"

#endif
