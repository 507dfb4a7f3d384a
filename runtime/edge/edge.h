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
 *   there (values.h), and the frame leaves, or a bad one is reported, in a later pump. While aq_edge_busy_since, pump
 *   again soon: a device notifies no event count. On a CPU everything has happened when a call returns.
 * - aq_edge_send_* and aq_edge_receive_* answer AQ_AGAIN while all send buffers, or the micro-batch before in that
 *   direction, are on their way: pump and try again. Nothing has happened then.
 * - Frames are handed out in the order of the program: a frame of another step or micro-batch than asked for is
 *   AQ_PROTO.
 * - Bodies may go from GPU to GPU (aq_edge_join). Their arrival notifies no event count either: while aq_edge_carrying,
 *   pump again soon. After a failure call aq_edges_abandon, of all edges, before memory of the device is freed: freeing
 *   would wait for an end that may never come.
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
#include "edge_guard.h"
#include "edge_shape.h"
#include "job.h"
#include "net/link.h"
#include "stages/augment.h"
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
    bool mirror;     /* frames of kind MIRROR are let in                 */
    struct aq_edge_guard *guard; /* of what this end sends, where shape.guard or, of the receiver's gradients,
                                    shape.guard_back; borrowed: checkpoints keep its state */
};

enum aq_status aq_edge_open(const struct aq_edge_config *config, struct aq_edge **out);
void aq_edge_close(struct aq_edge *edge); /* NULL is fine */

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

/* The samples of a frame. */
struct aq_edge_batch {
    uint64_t step;
    uint32_t micro_batch;
    uint64_t base;              /* micro-batches before this step's, as slots are counted (program.h) */
    uint32_t samples;           /* 1..B                                   */
    const uint64_t *sample_ids; /* samples of them                        */
    const uint32_t *lengths;    /* rows of each that are real, 1 to the shape's: only they are coded, sent and
                                   cached; the receiver sets the others to zero. The count of a sample never
                                   changes. NULL: all */
    const uint16_t *variants;   /* which augmentation each is: it has its own m; NULL: 0, all of them */
    const struct aq_view *views; /* how each image is cropped, in pixels of it; NULL: none is             */
    uint16_t flags;             /* of the frame: enum aq_edge_flag        */
    float rate;                 /* the step's learning rate; a guard uses it */
};
enum aq_edge_flag {
    AQ_EDGE_REMADE = 1,    /* of a MESSAGE: made again, so that its digest may be another one */
    AQ_EDGE_LAST_STEP = 1, /* stop after this step: travels with the totals of NORM, from the first stage on */
    AQ_EDGE_MARK_STEP = 2, /* a checkpoint after this step: as LAST_STEP, where checkpoint.every is a time    */
    AQ_EDGE_CARRIED = 2,   /* the edge's own: the frame has only rows, their bodies go from GPU to GPU */
    AQ_EDGE_CHECKED = 8,   /* the edge's own: digests of the decoded values follow the rows (edge_check.h) */
    AQ_EDGE_CODED = 4      /* of evaluation: the forward codec, and not raw; both ends set it */
};
enum { AQ_EDGE_LEVEL_SHIFT = 8, AQ_EDGE_LEVEL_MASK = 15 }; /* and bits 8 to 11, the edge's own: the bit level */

/*
 * Take in everything the link has; serve what the other side asks for; end what the device has done meanwhile. AQ_OK,
 * or why the link ended, or what was wrong with a frame.
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

/*
 * Ask the other side for those messages of these samples that this side may have lost, without waiting: they come to
 * the cache, before their samples if all goes well (else these wait for them, one by one). AQ_AGAIN: as many are asked
 * for as may be: try the same batch later. Of a cache that has lost nothing there is nothing to ask: aq_edge_refills.
 */
enum aq_status aq_edge_refill(struct aq_edge *edge, const struct aq_edge_batch *batch);
bool aq_edge_refills(const struct aq_edge *edge);

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

/*
 * A *still* edge (shape.still; edge_cached.c): nothing upstream of the cut trains and nothing is random there, so that
 * a sample's activation is the same at each visit. Its first visit is coded as any; from then on its row has the flag
 * AQ_EDGE_HELD (both ends hold the message), and there is no body. Frames of gradients have no body at all:
 * aq_edge_send_backward does not read its values, and aq_edge_receive_backward writes nothing.
 *
 * The sender's: does it hold all of these samples? Then no stage need compute them, and aq_edge_send_cached sends their
 * rows. AQ_NOTFOUND: one was lost meanwhile, nothing has happened. AQ_AGAIN as aq_edge_send_forward.
 */
bool aq_edge_is_cached(const struct aq_edge *edge, const struct aq_edge_batch *batch);
enum aq_status aq_edge_send_cached(struct aq_edge *edge, const struct aq_edge_batch *batch);

/*
 * The receiver's, if its own stage does not need the values: takes the next FORWARD frame if both ends hold all of its
 * samples. AQ_NOTFOUND: they do not, and the frame stays. If the values are needed after all, aq_edge_reload brings
 * those of a batch from the cache, or from the sender.
 */
enum aq_status aq_edge_receive_cached(struct aq_edge *edge, const struct aq_edge_batch *batch);
enum aq_status aq_edge_reload(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                              struct aq_stream *stream);

/*
 * The sender's: does the receiver wait for the message of a sample (*id) that this side has lost, too? Then compute the
 * activation of only this sample again, and hand it over. aq_edge_recompute_done: AQ_AGAIN as aq_edge_send_forward.
 */
bool aq_edge_recompute_pending(const struct aq_edge *edge, uint64_t *id);
enum aq_status aq_edge_recompute_done(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                      const struct aq_values *a, struct aq_stream *stream);

/* Gradients: the receiver sends, the sender receives. */
enum aq_status aq_edge_send_backward(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *g,
                                     struct aq_stream *stream);
bool aq_edge_backward_here(const struct aq_edge *edge);
enum aq_status aq_edge_receive_backward(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                        const struct aq_values *g, struct aq_stream *stream);

/*
 * Held-out samples, sender to receiver, without a cache: raw fp32; with AQ_EDGE_CODED in batch->flags by the forward
 * codec, each as a sample that was never seen (a keyframe, where the codec has messages). AQ_PROTO: the other side does
 * not do the same.
 */
enum aq_status aq_edge_send_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                 struct aq_stream *stream);
bool aq_edge_eval_here(const struct aq_edge *edge);
enum aq_status aq_edge_receive_eval(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *x,
                                    struct aq_stream *stream);

/*
 * One double to the other side (sums of the gradient norm and of what the optimizer decides by) with flags (enum
 * aq_edge_flag), and the next one.
 */
enum aq_status aq_edge_send_norm(struct aq_edge *edge, uint64_t step, double value, uint16_t flags);
/* AQ_AGAIN: none is here. */
enum aq_status aq_edge_receive_norm(struct aq_edge *edge, uint64_t step, double *value, uint16_t *flags);

/* Flags (enum aq_edge_flag) of the numbers of this step that have come and were not received yet. */
uint16_t aq_edge_norm_told(const struct aq_edge *edge, uint64_t step);

/*
 * Sums of gradients of tensors that both sides hold, shape.shared floats in host memory: one a step each way. AQ_AGAIN:
 * not all has been handed over, or has come; call again with the same. AQ_PROTO: those of another step came.
 */
enum aq_status aq_edge_send_shared(struct aq_edge *edge, uint64_t step, const float *values);
enum aq_status aq_edge_receive_shared(struct aq_edge *edge, uint64_t step, float *values);

/*
 * All gradients of a client's end, shape.summed floats (not 0) in memory of the edge, to the server and the sum over
 * clients back. The memory is the edge's, where what the other side sends comes to lie, or the caller's: from hold or
 * receive on until release or the end of a send; what comes meanwhile is refused.
 *
 *     client: hold; fill aq_edge_summed; send (nothing where it had no samples); receive; use it; release
 *     server: receive (nothing where the client had no samples: hold); fill aq_edge_summed; send
 *
 * none: there is no sum, and the values mean nothing. AQ_AGAIN of send and receive: call again with the same. AQ_PROTO:
 * those of another step came (receive), or some before they were due (hold).
 */
float *aq_edge_summed(const struct aq_edge *edge);
enum aq_status aq_edge_hold_summed(struct aq_edge *edge);
void aq_edge_release_summed(struct aq_edge *edge);
enum aq_status aq_edge_send_summed(struct aq_edge *edge, uint64_t step, bool none);
enum aq_status aq_edge_receive_summed(struct aq_edge *edge, uint64_t step, bool *none);

/*
 * Data that the two sides of a tied table exchange (stages/stage.h), up to shape.tied words of 4 bytes in memory of the
 * edge: the gradient of the copy behind the cut, towards the first stage, and values or rows back. Holding, sending and
 * receiving are as above: the memory is the caller's from hold or receive on, until a send has ended or release.
 */
float *aq_edge_tied(const struct aq_edge *edge);
enum aq_status aq_edge_hold_tied(struct aq_edge *edge);
void aq_edge_release_tied(struct aq_edge *edge);
enum aq_status aq_edge_send_tied(struct aq_edge *edge, uint64_t step, uint64_t words);
enum aq_status aq_edge_receive_tied(struct aq_edge *edge, uint64_t step, uint64_t *words);

/*
 * Frames of mirrored checkpoints (mirror.h), whose bodies are the caller's. piece: a number below 32 by which
 * aq_edge_mirror_sent returns the body to the caller, or AQ_EDGE_MIRROR_NO_PIECE for a frame without one.
 */
#define AQ_EDGE_MIRROR_NO_PIECE UINT32_MAX
enum aq_status aq_edge_send_mirror(struct aq_edge *edge, const struct aq_frame *frame, uint32_t piece);
uint32_t aq_edge_mirror_sent(struct aq_edge *edge); /* bits of the pieces that have come back since the last call */

/* The next one received; its body goes back by aq_edge_mirror_release. False: none. */
bool aq_edge_mirror_next(struct aq_edge *edge, struct aq_frame *out);
void aq_edge_mirror_release(struct aq_edge *edge, const void *body);

/* May a piece go now? When no training frame is on its way, or enough of them have gone since the last piece. */
bool aq_edge_mirror_turn(const struct aq_edge *edge);

/* Wait until something happens, at most until the deadline; then pump. AQ_TIMEOUT is no error of the edge. */
enum aq_status aq_edge_wait(struct aq_edge *edge, uint32_t seen, uint64_t deadline_ns);

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
