/*
 * nccl_channel.h -- what the group over NCCL and the pairs use: a communicator, the stream that its kernels run on,
 * events that show what has passed, a deadline, and the first thing that went wrong.
 *
 * A *batch* is the messages to and from other ranks that one ncclGroup holds. Batches have numbers, 1 on, and pass
 * through three counts in order: told (given to NCCL), marked (an event follows it), passed (the event has).
 *
 * Caveats first.
 * - Nothing in here waits, but close. The communicator does not block: each call may answer ncclInProgress, and nothing
 *   else is told until it has done that; aq_nccl_channel_poll asks. How often, and what is looked at meanwhile, is the
 *   caller's.
 * - Nothing but events is ever put on the stream behind a batch. So a peer that never comes holds up this stream alone,
 *   and abandoning the channel sets it free; what waits for the whole GPU (memory that is freed) is called after that.
 * - Where NCCL fails it knows only that a rank is gone. Poll says AQ_NCCLERR and no line, so that who knows the other
 *   ranks can look first why; else aq_nccl_channel_failed says what NCCL says.
 *
 *     aq_nccl_channel_open(&channel, &config);
 *     while (aq_nccl_channel_poll(&channel, "opening") == AQ_AGAIN) ...
 *     aq_nccl_channel_tell(&channel, sends, 1, receives, 1);             where poll said AQ_OK
 *     while (aq_nccl_channel_poll(&channel, "moving") <= AQ_AGAIN && channel.passed < channel.told) ...
 *     aq_nccl_channel_close(&channel);
 *
 * Locking: the thread that opened it.
 */
#ifndef NET_NCCL_CHANNEL_H
#define NET_NCCL_CHANNEL_H

#include "net/pair.h"

#if AQ_WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

enum {
    AQ_NCCL_BATCHES = 64, /* told and not passed: a group has two a step, of which no more than its lag are under way */
    AQ_NCCL_TOGETHER = 4  /* channels that are given up at once: two edges, both ways */
};

struct aq_nccl_channel_config {
    const struct aq_nccl_id *id; /* borrowed until open returns                                                */
    uint32_t rank, size;
    int blocks_max;      /* multiprocessors that kernels take at most, also while they wait; 0: as NCCL likes */
    uint64_t silence_ns; /* longest that opening, or a batch, may take; UINT64_MAX: no matter          */
    const char *who;     /* for lines: "rank 1 of 2"                                                   */
};

struct aq_nccl_channel {
    ncclComm_t comm; /* NULL: not begun, or given up */
    cudaStream_t stream;
    cudaEvent_t done[AQ_NCCL_BATCHES]; /* of batch n: [n % AQ_NCCL_BATCHES] */
    uint64_t since_ns[AQ_NCCL_BATCHES], opened_ns, silence_ns;
    uint64_t told, marked, passed;
    bool stands;
    ncclResult_t failed; /* the first */
    char who[96];
};

struct aq_nccl_move {
    const void *from; /* of a send    */
    void *to;         /* of a receive */
    size_t bytes;
    uint32_t peer;
};

/* Before the first call of NCCL; any thread, any number of times. AQ_NODEV (said): it is not on this machine. */
enum aq_status aq_nccl_library_open(void);

/* AQ_OK, or AQ_CUDAERR with the line. */
enum aq_status aq_nccl_cuda(cudaError_t error, const char *what);

/*
 * Starts it; it is open when poll returns AQ_OK. channel must be zero, and must be closed also where this fails.
 * AQ_CUDAERR, AQ_NCCLERR (said). AQ_NODEV (said): no NCCL on this machine.
 */
enum aq_status aq_nccl_channel_open(struct aq_nccl_channel *channel, const struct aq_nccl_channel_config *config);

/* Closed in order where all batches have passed (5 s at most for the other ranks), else abandoned. Zero is fine. */
void aq_nccl_channel_close(struct aq_nccl_channel *channel);

/*
 * They are of no use any more: what runs on the GPU ends, and so do the other ranks' waits for this one. All at once,
 * each abort on a separate thread: an abort may wait for the whole GPU, and so for a kernel of the next channel. Those
 * that are NULL, or given up, are fine; at most AQ_NCCL_TOGETHER.
 */
void aq_nccl_channels_abandon(struct aq_nccl_channel *const *channels, uint32_t count);

/*
 * Look at NCCL, at events and at the clock. AQ_OK: the next batch may be given. AQ_AGAIN: not yet. AQ_NCCLERR: unsaid.
 * AQ_TIMEOUT: longer than silence_ns in `what` (for the line). AQ_ABORTED: it was given up. AQ_CUDAERR.
 */
enum aq_status aq_nccl_channel_poll(struct aq_nccl_channel *channel, const char *what);

/* Gives the next batch, whose number is `told`: all moves at once, so that none waits for another. AQ_NCCLERR:
 * unsaid. */
enum aq_status aq_nccl_channel_tell(struct aq_nccl_channel *channel, const struct aq_nccl_move *sends,
                                    uint32_t send_count, const struct aq_nccl_move *receives, uint32_t receive_count);

/* Is there room for another batch? */
static inline bool aq_nccl_channel_full(const struct aq_nccl_channel *channel)
{
    return channel->told - channel->passed >= AQ_NCCL_BATCHES - 1;
}

/* After AQ_NCCLERR: the line, in NCCL's words, which name the peer or the socket where they can. AQ_NCCLERR. */
enum aq_status aq_nccl_channel_failed(const struct aq_nccl_channel *channel, const char *what);

#endif
#endif
