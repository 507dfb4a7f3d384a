/*
 * pair_ipc.c -- a pair by CUDA IPC: the receiver maps the sender's memory and copies from there to its own.
 *
 * The sender only remembers what it has given: its kernels have passed when a move is noted, and a copy that the
 * receiver enqueues after it has heard of the move reads what they wrote. The receiver's copies run on a separate
 * stream, by the copy engine; each has an event, and the host looks when it has passed. Nothing on either GPU waits for
 * the other GPU, so that there is nothing to abort: a copy whose other end has died ends, with an error or without.
 *
 * An offer, as it travels:
 *
 *     offset  bytes
 *          0      8   bytes of the memory, never 0
 *          8     64   cudaIpcMemHandle_t, opaque
 *         72     56   zeroes
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "pair_private.h"

#if AQ_WITH_CUDA

#include <cuda_runtime_api.h>

static const char *const SAYS = "pair";

enum { HANDLE_AT = 8 };
static_assert(HANDLE_AT + sizeof(cudaIpcMemHandle_t) <= AQ_PAIR_OFFER_BYTES, "an offer has room for it");

struct pair_ipc {
    struct aq_pair pair;
    char who[96];
    uint64_t silence_ns, since_ns[AQ_PAIR_MOVES]; /* of move n: [n % AQ_PAIR_MOVES], likewise the others */
    /* Of the end that receives. */
    uint8_t *memory;       /* its own                     */
    const uint8_t *theirs; /* mapped; NULL: sends         */
    size_t bytes;
    cudaStream_t stream;
    cudaEvent_t done[AQ_PAIR_MOVES];
    struct {
        uint8_t *at;
        size_t bytes;
    } moves[AQ_PAIR_MOVES];
    uint64_t told; /* copies enqueued */
};

static enum aq_status cuda_said(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return AQ_OK;
    return aq_fail(AQ_CUDAERR, SAYS, "%s: %s", what, cudaGetErrorString(error));
}

enum aq_status aq_pair_offer(const void *memory, size_t memory_bytes, struct aq_pair_offer *out)
{
    const uint64_t bytes = memory_bytes;
    cudaIpcMemHandle_t handle;
    memset(out, 0, sizeof *out);
    const cudaError_t error = cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)memory);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* dealt with */
        return aq_fail(AQ_NODEV, SAYS, "cudaIpcGetMemHandle: %s", cudaGetErrorString(error));
    }
    memcpy(out->bytes, &bytes, sizeof bytes);
    memcpy(out->bytes + HANDLE_AT, &handle, sizeof handle);
    return AQ_OK;
}

/* ---- moves ---- */

static void ipc_note(struct aq_pair *pair, void *at, size_t bytes)
{
    struct pair_ipc *ipc = (struct pair_ipc *)pair;
    const uint64_t place = pair->noted % AQ_PAIR_MOVES;
    const size_t offset = (size_t)((uint8_t *)at - ipc->memory);
    AQ_ASSERT(offset < ipc->bytes && bytes <= ipc->bytes - offset);
    ipc->since_ns[place] = aq_clock_ns();
    ipc->moves[place].at = at;
    ipc->moves[place].bytes = bytes;
}

static enum aq_status tell(struct pair_ipc *ipc)
{
    while (ipc->told < ipc->pair.noted) {
        const uint64_t place = ++ipc->told % AQ_PAIR_MOVES;
        uint8_t *at = ipc->moves[place].at;
        AQ_TRY(cuda_said(cudaMemcpyAsync(at, ipc->theirs + (at - ipc->memory), ipc->moves[place].bytes,
                                         cudaMemcpyDefault, ipc->stream),
                         "a copy from another GPU"));
        AQ_TRY(cuda_said(cudaEventRecord(ipc->done[place], ipc->stream), "cudaEventRecord"));
    }
    return AQ_OK;
}

static enum aq_status look(struct pair_ipc *ipc)
{
    while (ipc->pair.passed < ipc->told) {
        const cudaError_t error = cudaEventQuery(ipc->done[(ipc->pair.passed + 1) % AQ_PAIR_MOVES]);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* an answer, no error */
            return AQ_OK;
        }
        AQ_TRY(cuda_said(error, "a copy from another GPU"));
        ipc->pair.passed++;
    }
    return AQ_OK;
}

static enum aq_status ipc_poll(struct aq_pair *pair)
{
    struct pair_ipc *ipc = (struct pair_ipc *)pair;
    if (pair->passed == pair->noted) return AQ_OK;
    if (!pair->sends) {
        AQ_TRY(tell(ipc));
        AQ_TRY(look(ipc));
        if (pair->passed == pair->noted) return AQ_OK;
    }
    const uint64_t waited_ns = aq_clock_ns() - ipc->since_ns[(pair->passed + 1) % AQ_PAIR_MOVES];
    if (waited_ns <= ipc->silence_ns) return AQ_OK;
    return aq_fail(AQ_TIMEOUT, SAYS, "%s: waited %.1f s for a body that is %s: %s", ipc->who, (double)waited_ns * 1e-9,
                   pair->sends ? "to be taken" : "copied", pair->sends ? "the other end is stuck" : "the GPU is stuck");
}

/* ---- life ---- */

static void ipc_close(struct aq_pair *pair)
{
    struct pair_ipc *ipc = (struct pair_ipc *)pair;
    if (ipc->stream) {
        (void)cudaStreamSynchronize(ipc->stream); /* copies end */
        for (uint32_t i = 0; i < AQ_PAIR_MOVES; i++)
            if (ipc->done[i]) (void)cudaEventDestroy(ipc->done[i]);
        (void)cudaStreamDestroy(ipc->stream);
    }
    if (ipc->theirs) (void)cudaIpcCloseMemHandle((void *)(uintptr_t)ipc->theirs);
    aq_free(ipc);
}

static const struct aq_pair_ops OPS = {.poll = ipc_poll, .note = ipc_note, .close = ipc_close};

/* It came from the other end; each of its fields is checked here or by CUDA. */
static enum aq_status map_offer(struct pair_ipc *ipc, const struct aq_pair_offer *offer)
{
    cudaIpcMemHandle_t handle;
    void *theirs = NULL;
    uint64_t bytes;
    memcpy(&bytes, offer->bytes, sizeof bytes);
    memcpy(&handle, offer->bytes + HANDLE_AT, sizeof handle);
    if (bytes == 0) return aq_fail(AQ_NODEV, SAYS, "%s: the other end offers no memory", ipc->who);
    if (bytes < ipc->bytes)
        return aq_fail(AQ_NODEV, SAYS, "%s: the other end offers %llu bytes, but %zu are needed", ipc->who,
                       (unsigned long long)bytes, ipc->bytes);
    const cudaError_t error = cudaIpcOpenMemHandle(&theirs, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* dealt with */
        return aq_fail(AQ_NODEV, SAYS, "%s: cudaIpcOpenMemHandle: %s", ipc->who, cudaGetErrorString(error));
    }
    ipc->theirs = theirs;
    return AQ_OK;
}

static enum aq_status open_receiver(struct pair_ipc *ipc, const struct aq_pair_offer *offer)
{
    AQ_TRY(map_offer(ipc, offer));
    AQ_TRY(cuda_said(cudaStreamCreateWithFlags(&ipc->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    for (uint32_t i = 0; i < AQ_PAIR_MOVES; i++)
        AQ_TRY(cuda_said(cudaEventCreateWithFlags(&ipc->done[i], cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    return AQ_OK;
}

enum aq_status aq_pair_open_ipc(const struct aq_pair_config *config, struct aq_pair **out)
{
    struct pair_ipc *ipc;
    AQ_TRY(AQ_NEW(1, &ipc));
    ipc->pair = (struct aq_pair){.ops = &OPS, .sends = config->sends};
    ipc->silence_ns = config->silence_ns;
    ipc->memory = config->memory;
    ipc->bytes = config->memory_bytes;
    snprintf(ipc->who, sizeof ipc->who, "%s", config->name);
    const enum aq_status status = config->sends ? AQ_OK : open_receiver(ipc, config->offer);
    if (status == AQ_OK)
        *out = &ipc->pair;
    else
        ipc_close(&ipc->pair);
    return status;
}

#else

enum aq_status aq_pair_offer(const void *memory, size_t memory_bytes, struct aq_pair_offer *out)
{
    (void)memory;
    (void)memory_bytes;
    memset(out, 0, sizeof *out);
    return aq_fail(AQ_NODEV, "pair", "built without CUDA");
}

enum aq_status aq_pair_open_ipc(const struct aq_pair_config *config, struct aq_pair **out)
{
    (void)out;
    return aq_fail(AQ_NODEV, "pair", "%s: built without CUDA", config->name);
}

#endif
