/*
 * edge_shape.h -- parameters of an edge: the matrix that crosses its cut, how it is coded, and how much can be in
 * flight.
 *
 * Every cut has its own shape: the model gives its rows and columns per sample, the manifest its codecs, the schedule
 * its slots. Both ends have the same; the plan makes it, and edge, mirror and codec know no more of the job.
 *
 * Locking: plain data.
 */
#ifndef RUNTIME_EDGE_SHAPE_H
#define RUNTIME_EDGE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/codec.h"

/* Which bodies carry a digest of what their receiver must decode (edge_check.h). */
enum aq_edge_check_mode {
    AQ_CHECK_NONE = 0,
    AQ_CHECK_FIRST = 1, /* the first one of each step and direction */
    AQ_CHECK_ALL = 2
};

struct aq_edge_shape {
    uint32_t edge;                       /* its number: edge e joins stage e and e + 1                             */
    uint32_t rows, columns;              /* of one sample at this cut, fp32; rows: at most                         */
    uint32_t rows_mean;                  /* of the samples if they have lengths, for a plan's bytes; 0: rows       */
    uint32_t micro_batch;                /* B: samples of a micro-batch, at most                                   */
    uint32_t batch;                      /* samples of a step, at most                                             */
    uint64_t messages;                   /* that there can be; 0: the codec keeps none                              */
    uint32_t slots;                      /* micro-batches of the sender whose gradient is not back, at most        */
    uint32_t send_frames, receive_slots; /* of the link, each way */
    uint64_t warmup_steps;               /* the first ones go uncompressed */
    uint64_t seed;                       /* of stochastic rounding */
    uint64_t shared;                     /* floats of gradients that are summed along the pipeline, across this cut */
    uint64_t summed;                     /* and of those of a client's end that the server sums over clients; 0: not */
    uint64_t tied;                       /* words that the sides of a tied table exchange at once; 0: no such         */
    struct aq_codec_config forward, backward;
    bool guard;   /* more bits where the loop does not contract: edge_guard.h; still and stateless cuts have none */
    bool guard_back; /* the same of gradients whose error stays large; still cuts have none */
    bool wide, wide_back; /* a sample that fp16 cannot hold goes by aq_edge_wide of its codec, either way */
    bool level_lists;     /* edges.bits: auto: each way has bit levels (aq_edge_levels); still cuts have none */
    bool still;           /* a sample's activation never changes: edge_cached.c */
    enum aq_edge_check_mode check; /* still cuts have none */
    uint32_t pixels; /* the side of images that are cropped: messages move with the crops (edge_view.c); 0: none are */
};

/*
 * Sizes that follow from it. Bytes of one sample's body unless noted otherwise; of a sample of rows_mean rows, except
 * bounds, message_bytes and memory.
 */
struct aq_edge_size {
    uint64_t values_bytes; /* of one sample, as it is */
    uint64_t forward_warm_bytes, forward_cold_bytes, backward_bytes;
    uint64_t forward_bound, backward_bound; /* any body fits into it                                             */
    uint64_t raw_bound;                     /* the same of evaluation                                            */
    uint64_t kernel_bytes;                  /* that the kernels of its codecs need on a GPU, at either end       */
    uint64_t message_bytes;                 /* of a stored m, at most; 0: stateless                              */
    uint64_t body_bytes_max;                /* of a frame of one micro-batch, room for its sample table included */
    uint64_t cached_bytes;                  /* of host_bytes: a body of zeroes, where a sample never changes     */
    uint64_t buffer_bytes;                  /* of host_bytes: one contiguous piece, send buffers first           */
    uint64_t host_bytes;                    /* RAM of an end, without link and cache                             */
    uint64_t device_bytes;                  /* device memory of an end on a GPU                                  */
    uint64_t carry_bytes;                   /* and for bodies that go from GPU to GPU                            */
    uint64_t shared_bytes;                  /* of them: what the other end's process may map                     */
};

/*
 * The codec of samples with values that fp16 cannot hold (beyond 65504): bf16 wherever `config` has fp16, in bodies and
 * messages of as many bytes. False: it has none.
 */
bool aq_edge_wide(const struct aq_codec_config *config, struct aq_codec_config *out);

/* AQ_INVAL: a codec cannot be built for this shape, or a micro-batch is longer than a frame can be. AQ_NOMEM. */
enum aq_status aq_edge_size_of(const struct aq_edge_shape *shape, struct aq_edge_size *out);

/* The side of a sample's features at the cut, rows = side x side; 0: they are no square, and cannot be cropped. */
uint32_t aq_edge_side(const struct aq_edge_shape *shape);

/* Bodies of a frame that carry a digest of what is decoded, at most: none, one, or micro_batch (edge_check.c). */
uint32_t aq_edge_checks_most(const struct aq_edge_shape *shape);

/* Bytes of the body of a micro-batch of `samples` samples, `checks` of which have a digest of what is decoded, and that
 * are coded in `coded` bytes each (docs/FORMAT.md). */
uint64_t aq_edge_body_bytes(uint32_t samples, uint32_t checks, uint64_t coded);

#endif
