/*
 * nccl_channel.c -- see nccl_channel.h.
 */
#include "nccl_channel.h"

#if AQ_WITH_NCCL

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const SAYS = "nccl";

enum { NAP_NS = 20000 };
#define FAREWELL_NS UINT64_C(5000000000) /* for other ranks that do not close their ends */

enum aq_status aq_nccl_cuda(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return AQ_OK;
    return aq_fail(AQ_CUDAERR, SAYS, "%s: %s", what, cudaGetErrorString(error));
}

/* ---- life ---- */

static enum aq_status open_stream(struct aq_nccl_channel *channel)
{
    AQ_TRY(
        aq_nccl_cuda(cudaStreamCreateWithFlags(&channel->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    for (uint32_t i = 0; i < AQ_NCCL_BATCHES; i++)
        AQ_TRY(aq_nccl_cuda(cudaEventCreateWithFlags(&channel->done[i], cudaEventDisableTiming),
                            "cudaEventCreateWithFlags"));
    return AQ_OK;
}

static enum aq_status fails(struct aq_nccl_channel *channel, ncclResult_t result)
{
    if (channel->failed == ncclSuccess) channel->failed = result;
    return AQ_NCCLERR;
}

enum aq_status aq_nccl_channel_open(struct aq_nccl_channel *channel, const struct aq_nccl_channel_config *asked)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    AQ_ASSERT(!channel->comm && !channel->stream);
    snprintf(channel->who, sizeof channel->who, "%s", asked->who);
    channel->silence_ns = asked->silence_ns;
    channel->opened_ns = aq_clock_ns();
    AQ_TRY(aq_nccl_library_open());
    AQ_TRY(open_stream(channel));
    config.blocking = 0;
    if (asked->blocks_max) config.maxCTAs = asked->blocks_max;
    memcpy(&id, asked->id->bytes, sizeof id);
    const ncclResult_t begun = ncclCommInitRankConfig(&channel->comm, (int)asked->size, id, (int)asked->rank, &config);
    if (begun == ncclSuccess || begun == ncclInProgress) return AQ_OK;
    (void)fails(channel, begun);
    return aq_nccl_channel_failed(channel, "opening a communicator");
}

/* Has it done the last command? ncclInProgress: not yet; any other: why it never will. */
static ncclResult_t state_of(const struct aq_nccl_channel *channel)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(channel->comm, &state);
    return asked == ncclSuccess || asked == ncclInProgress ? state : asked;
}

/* In good order: what all ranks have sent has come. */
static void finalize(struct aq_nccl_channel *channel)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    const uint64_t until_ns = aq_clock_after(FAREWELL_NS);
    ncclResult_t state = ncclCommFinalize(channel->comm);
    while (state == ncclInProgress && aq_clock_ns() < until_ns) {
        (void)nanosleep(&nap, NULL);
        state = state_of(channel);
    }
    if (state != ncclSuccess) return;
    (void)ncclCommDestroy(channel->comm);
    channel->comm = NULL;
}

void aq_nccl_channel_close(struct aq_nccl_channel *channel)
{
    const bool good = channel->comm && channel->stands && channel->failed == ncclSuccess;
    if (good && channel->passed == channel->told) finalize(channel);
    aq_nccl_channels_abandon(&channel, 1);
    for (uint32_t i = 0; i < AQ_NCCL_BATCHES; i++)
        if (channel->done[i]) (void)cudaEventDestroy(channel->done[i]);
    if (channel->stream) {
        (void)cudaStreamSynchronize(channel->stream);
        (void)cudaStreamDestroy(channel->stream);
    }
    *channel = (struct aq_nccl_channel){0};
}

static void abort_one(void *comm)
{
    (void)ncclCommAbort(comm);
}

void aq_nccl_channels_abandon(struct aq_nccl_channel *const *channels, uint32_t count)
{
    struct aq_thread *threads[AQ_NCCL_TOGETHER] = {NULL};
    ncclComm_t own = NULL;
    AQ_ASSERT(count <= AQ_NCCL_TOGETHER);
    for (uint32_t i = 0; i < count; i++) {
        if (!channels[i] || !channels[i]->comm) continue;
        /* The last one found is this thread's; so is one for which there is no thread. */
        if (own && aq_thread_open("aq-nccl-abort", abort_one, own, &threads[i]) != AQ_OK) abort_one(own);
        own = channels[i]->comm;
        channels[i]->comm = NULL;
    }
    if (own) abort_one(own);
    for (uint32_t i = 0; i < count; i++)
        aq_thread_close(threads[i]);
}

/* ---- batches ---- */

enum aq_status aq_nccl_channel_tell(struct aq_nccl_channel *channel, const struct aq_nccl_move *sends,
                                    uint32_t send_count, const struct aq_nccl_move *receives, uint32_t receive_count)
{
    AQ_ASSERT(channel->stands && channel->marked == channel->told && !aq_nccl_channel_full(channel));
    ncclResult_t first = ncclGroupStart(), end;
    for (uint32_t i = 0; i < send_count && (first == ncclSuccess || first == ncclInProgress); i++)
        first = ncclSend(sends[i].from, sends[i].bytes, ncclUint8, (int)sends[i].peer, channel->comm, channel->stream);
    for (uint32_t i = 0; i < receive_count && (first == ncclSuccess || first == ncclInProgress); i++)
        first = ncclRecv(receives[i].to, receives[i].bytes, ncclUint8, (int)receives[i].peer, channel->comm,
                         channel->stream);
    end = ncclGroupEnd();
    if (first == ncclSuccess || first == ncclInProgress) first = end;
    channel->since_ns[++channel->told % AQ_NCCL_BATCHES] = aq_clock_ns();
    return first == ncclSuccess || first == ncclInProgress ? AQ_OK : fails(channel, first);
}

static enum aq_status look(struct aq_nccl_channel *channel)
{
    while (channel->passed < channel->marked) {
        const cudaError_t error = cudaEventQuery(channel->done[(channel->passed + 1) % AQ_NCCL_BATCHES]);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* an answer, no error */
            return AQ_OK;
        }
        AQ_TRY(aq_nccl_cuda(error, "cudaEventQuery after NCCL"));
        channel->passed++;
    }
    return AQ_OK;
}

static enum aq_status late(const struct aq_nccl_channel *channel, const char *what)
{
    const uint64_t since_ns =
        channel->stands ? channel->since_ns[(channel->passed + 1) % AQ_NCCL_BATCHES] : channel->opened_ns;
    const uint64_t now_ns = aq_clock_ns();
    if ((channel->stands && channel->passed == channel->told) || now_ns - since_ns <= channel->silence_ns) return AQ_OK;
    return aq_fail(AQ_TIMEOUT, SAYS, "%s: waited %.1f s for NCCL, %s: another rank is stuck, or does not take part",
                   channel->who, (double)(now_ns - since_ns) * 1e-9, what);
}

enum aq_status aq_nccl_channel_poll(struct aq_nccl_channel *channel, const char *what)
{
    if (channel->failed != ncclSuccess) return AQ_NCCLERR;
    if (!channel->comm) return aq_fail(AQ_ABORTED, SAYS, "%s has given its communicator up", channel->who);
    const ncclResult_t state = state_of(channel);
    if (state != ncclSuccess && state != ncclInProgress) return fails(channel, state);
    const bool free = state == ncclSuccess;
    channel->stands = channel->stands || free;
    if (free && channel->marked < channel->told) {
        channel->marked++;
        AQ_TRY(aq_nccl_cuda(cudaEventRecord(channel->done[channel->marked % AQ_NCCL_BATCHES], channel->stream),
                            "cudaEventRecord behind NCCL"));
    }
    AQ_TRY(look(channel));
    AQ_TRY(late(channel, what));
    return free ? AQ_OK : AQ_AGAIN;
}

enum aq_status aq_nccl_channel_failed(const struct aq_nccl_channel *channel, const char *what)
{
    const char *last = ncclGetLastError(channel->comm);
    return aq_fail(AQ_NCCLERR, SAYS, "%s, %s: NCCL: %s%s%.200s", channel->who, what,
                   ncclGetErrorString(channel->failed), last && last[0] ? "; " : "", last ? last : "");
}

#endif
