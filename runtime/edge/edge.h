/*
 * edge.h -- one edge of the pipeline as one of its two stages sees it: the only module where codec, cache and link
 * meet.
 *
 * Edge e joins stage e (the *sender* of activations) and stage e+1 (their *receiver*). Activations of a micro-batch
 * travel forward through the forward codec against the message cache; gradients travel back through the stateless
 * backward codec.
 *
 * The invariant (DESIGN 3): for every sample the reference m on both ends is bit-identical. Each row of a FORWARD frame
 * has version and digest of the m it was coded against and of the m after. The receiver compares before it decodes and
 * after; it fetches an m that it does not hold (lost, stale, corrupted) from the sender, which keeps the m of every
 * micro-batch until its gradient has come back; a sender that lost its m asks the receiver. Only if both have lost it,
 * the sample is coded as a keyframe. A bad cache costs bytes, never a wrong activation.
 *
 * Caveats first.
 * - Sending and receiving are *issued*: where the device codes (a GPU), values are read or written when the stream gets
 *   there (values.h), and the frame leaves, or a bad one is reported, when it has: mostly in a later pump. While
 *   aq_edge_busy_since, pump again soon: a device notifies no event count. On a CPU everything has happened when a call
 *   returns.
 * - aq_edge_send_* and aq_edge_receive_* answer AQ_AGAIN while all send buffers, or the micro-batch before in that
 *   direction, are on their way: pump and try again. Nothing has happened then.
 * - Frames are handed out in the order of the program: a frame of another step or micro-batch than asked for is
 *   AQ_PROTO.
 * - Bodies may go from GPU to GPU (aq_edge_join). Their arrival notifies no event count either: while aq_edge_carrying,
 *   pump again soon. After a failure call aq_edges_abandon, of all edges, before memory of the device is freed: freeing
 *   would wait for an end that may never come.
 *
 * What else an edge carries has a header each: edge_eval.h (held-out samples), edge_cached.h (samples that cross once),
 * edge_heal.h (lost messages), edge_norm.h (numbers), edge_shared.h (gradients that cross whole), edge_mirror.h (copies
 * of checkpoints), edge_key.h (the key of a sealed cache). channel.h has what all kinds of frames share.
 *
 * docs/FORMAT.md, "Body of a micro-batch", has the layout of a body; docs/FRAME.md, "Bodies from GPU to GPU", has the
 * protocol between GPUs.
 *
 * Locking: the exec thread of the worker.
 */
#ifndef RUNTIME_EDGE_H
#define RUNTIME_EDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"
#include "aqsgd/codec.h"
#include "aqsgd/device.h"
#include "edge_batch.h"
#include "edge_guard.h"
#include "edge_shape.h"
#include "job.h"
#include "net/link.h"
#include "storage/cache.h"
#include "values.h"

struct aq_edge; /* opaque */

/*
 * Frames without a body that a link has room for (send_frames) in addition to those of training and control: requests
 * for lost messages, and negative answers, until the other side has them.
 */
enum { AQ_EDGE_REQUESTS = 128 }; /* as many as half of the send buffers can be */

struct aq_edge_config {
    struct aq_device *device;
    const struct aq_edge_shape *shape; /* copied */
    bool sender;                       /* this is stage `edge`; false: stage edge + 1      */
    struct aq_link *link;              /* borrowed; closed by whoever opened it            */
    struct aq_cache *cache;            /* borrowed; NULL: the forward codec is stateless   */
    struct aq_eventcount *eventcount;  /* notified by link and cache                       */
    struct aq_trace *trace;            /* may be NULL                                      */
    uint64_t silence_ns;               /* longest wait for the other side                  */
    bool mirror;                       /* frames of kind MIRROR are let in                 */
    struct aq_edge_guard *guard; /* of what this end sends, where shape.guard or, of the receiver's gradients,
                                    shape.guard_back; borrowed: checkpoints keep its state */
};

enum aq_status aq_edge_open(const struct aq_edge_config *config, struct aq_edge **out);
/* Its link must have been finished or halted (aq_link_halt): it reads bodies that are freed here. NULL is fine. */
void aq_edge_close(struct aq_edge *edge);

/*
 * After open, once, at both ends, each in the order of its edges: what carries bodies. asked: aq_job_edge_transport,
 * the same at both. Waits for the other end. AQ_NODEV, AQ_MISMATCH: what is asked for cannot be, the same line at both
 * ends; AQ_NCCLERR, AQ_CUDAERR, AQ_TIMEOUT, and why the link ended.
 */
enum aq_status aq_edge_join(struct aq_edge *edge, enum aq_transport_kind asked);

/*
 * Between open and join: each codec codes and decodes one sample, so that its kernels are loaded. Loading one while
 * kernels of NCCL wait for the neighbour may wait for them, and the neighbour for this stage. values: a sample's at the
 * cut, which become zeroes. It does nothing if the host codes.
 */
enum aq_status aq_edge_warm(struct aq_edge *edge, float *values, struct aq_stream *stream);

/* Abort the work of NCCL for these edges, all at once, at the end of a failed run; NULL is fine. */
void aq_edges_abandon(struct aq_edge *first, struct aq_edge *second);

/* Bodies handed over, for each way: one is coded or decoded while another is on its way. */
enum { AQ_EDGE_CARRY_SLOTS = 2 };

/*
 * With shape.level_lists: use these bit levels from the next frame on. Each end sets the level of the direction that it
 * sends; the other value is not used, because frames carry theirs. AQ_PROTO: a level is out of range.
 */
enum aq_status aq_edge_levels(struct aq_edge *edge, uint32_t forward, uint32_t backward);

/*
 * Take in everything the link has; serve what the other side asks for; end what the device has done meanwhile. AQ_OK,
 * or why the link ended, or what was wrong with a frame; each time, if it is pumped again.
 */
enum aq_status aq_edge_pump(struct aq_edge *edge);

/* When the oldest was issued (aq_clock_ns) that the device has not done, or that has not been pumped since; 0: none. */
uint64_t aq_edge_busy_since(const struct aq_edge *edge);

/* Ways with bodies that are still going from GPU to GPU, or are not taken yet: a bit for each. */
enum { AQ_EDGE_CARRY_IN = 1, AQ_EDGE_CARRY_OUT = 2 };
uint32_t aq_edge_carrying(const struct aq_edge *edge);

/* Bytes of bodies that have gone from GPU to GPU, ever: of measures.sent_bytes, those that are not the link's. */
uint64_t aq_edge_carried_bytes(const struct aq_edge *edge);

/* Read ahead the messages of these samples. Best effort: a full cache is no error. */
enum aq_status aq_edge_prefetch(struct aq_edge *edge, const struct aq_edge_batch *batch);

/* a (samples, T, C). The sender's. AQ_AGAIN: no send buffer, or the last one is still being coded. */
enum aq_status aq_edge_send_forward(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                    struct aq_stream *stream);

/* The receiver's: is the next FORWARD frame here? flags (may be NULL) gets those of the frame. */
bool aq_edge_forward_here(const struct aq_edge *edge, uint16_t *flags);

/*
 * Decode the next FORWARD frame, which must be that of the batch, into x (samples, T, C). AQ_AGAIN: the one before is
 * still being decoded.
 */
enum aq_status aq_edge_receive_forward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                       const struct aq_values *x, struct aq_stream *stream);

/* Gradients: the receiver sends, the sender receives. */
enum aq_status aq_edge_send_backward(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *g,
                                     struct aq_stream *stream);
bool aq_edge_backward_here(const struct aq_edge *edge);
enum aq_status aq_edge_receive_backward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                        const struct aq_values *g, struct aq_stream *stream);

/*
 * Everything handed over has left; nothing the other side sent is unread, and neither has the other's memory mapped.
 * For the end of a run, at both ends.
 */
enum aq_status aq_edge_drain(struct aq_edge *edge, uint64_t deadline_ns);

/* How long to sleep at most while a device is busy: no event count is notified for it. */
#define AQ_EDGE_POLL_NS (50ull * 1000)

/* Sums since the last call of aq_edge_measures, which zeroes them. */
struct aq_edge_measures {
    uint64_t samples;    /* coded or decoded forward                                         */
    uint64_t keyframes;  /* of them without a reference                                      */
    uint64_t raws;       /* of them raw fp32 because of their values                         */
    uint64_t held;       /* of them without a body: both ends have them                      */
    uint64_t fetched;    /* messages this side had to fetch from the other                   */
    uint64_t served;     /* messages this side gave                                          */
    uint64_t sent_bytes; /* bodies of training frames sent: forward (sender), backward (receiver) */
    uint64_t codec_ns;   /* encode and decode: this thread's time and the device's           */
    uint64_t cache_ns;   /* waited for the cache                                             */
    /* The sender's, over its samples (codec.h, struct aq_codec_result): */
    double sum_a2, sum_delta2, sum_error2, sum_a, values;
    double warm_delta2, warm_error2; /* only of its warm samples, of what is stored: c_Q of the theorem */
    uint64_t afresh;                 /* whose message it forgot (edge_guard.h)        */
    double bits, bits_back;          /* of the codecs each way now                    */
    uint64_t wide;   /* of the samples: by the codec of what fp16 cannot hold                               */
    double raw_peak; /* the largest finite magnitude in those that were raw; 0: there was none, or it is not known */
    /* The receiver's, over the gradients that it sends. */
    double gradient2, gradient_error2;
    uint64_t wide_back;   /* by the codec of what fp16 cannot hold                         */
    uint64_t raws_back;   /* samples whose gradients were raw fp32 because of their values */
    double raw_peak_back; /* as raw_peak                                                   */
};
void aq_edge_measures(struct aq_edge *edge, struct aq_edge_measures *out);

#endif
