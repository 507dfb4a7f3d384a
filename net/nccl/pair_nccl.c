/*
 * pair_nccl.c -- see net/pair.h.
 *
 * Moves have numbers, 1 on, and pass through four counts in order: noted (by the caller), told (to NCCL), marked (an
 * event stands behind it), passed (the event has). A communicator that is still busy with the move before (in
 * progress) is told the next at a later look.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nccl_comm.h"

#if AQ_WITH_NCCL

enum {
    BLOCKS_MAX = 2, /* multiprocessors that a move takes, also while it waits: there are two pairs an edge */
    LOOK_NS = 20000
};
#define FAREWELL_NS UINT64_C(5000000000) /* for a peer that does not close its end */

struct aq_pair {
    struct aq_nccl_comm nccl;
    uint32_t peer;
    bool sends, stands;
    uint64_t silence_ns;
    cudaStream_t stream;
    cudaEvent_t done[AQ_PAIR_MOVES];          /* of move n: [n % AQ_PAIR_MOVES] */
    struct aq_nccl_move moves[AQ_PAIR_MOVES]; /* likewise */
    uint64_t since_ns[AQ_PAIR_MOVES], opened_ns;
    uint64_t noted, told, marked, passed;
    ncclResult_t failed;
};

static enum aq_status open_stream(struct aq_pair *pair)
{
    AQ_TRY(aq_nccl_cuda(cudaStreamCreateWithFlags(&pair->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    for (uint32_t i = 0; i < AQ_PAIR_MOVES; i++)
        AQ_TRY(
            aq_nccl_cuda(cudaEventCreateWithFlags(&pair->done[i], cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    return AQ_OK;
}

enum aq_status aq_pair_open(const struct aq_pair_config *config, struct aq_pair **out)
{
    void *memory;
    enum aq_status status;
    AQ_TRY(aq_alloc(sizeof(struct aq_pair), &memory));
    struct aq_pair *pair = memory;
    pair->peer = config->first ? 1 : 0;
    pair->sends = config->sends;
    pair->silence_ns = config->silence_ns;
    pair->opened_ns = aq_clock_ns();
    snprintf(pair->nccl.who, sizeof pair->nccl.who, "%s", config->name);
    AQ_TRY_GOTO(open_stream(pair), out);
    AQ_TRY_GOTO(aq_nccl_said(&pair->nccl, aq_nccl_begin(&pair->nccl, config->id, 1 - pair->peer, 2, BLOCKS_MAX),
                             "opening a communicator"),
                out);
out:
    if (status == AQ_OK)
        *out = pair;
    else
        aq_pair_close(pair);
    return status;
}

/* In good order: what both ends have sent has come. */
static void finalize(struct aq_pair *pair)
{
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    const uint64_t until_ns = aq_clock_after(FAREWELL_NS);
    ncclResult_t state = ncclCommFinalize(pair->nccl.comm);
    while (state == ncclInProgress && aq_clock_ns() < until_ns) {
        (void)nanosleep(&nap, NULL);
        state = aq_nccl_state(&pair->nccl);
    }
    if (state != ncclSuccess) return;
    (void)ncclCommDestroy(pair->nccl.comm);
    pair->nccl.comm = NULL;
}

void aq_pair_close(struct aq_pair *pair)
{
    if (!pair) return;
    if (pair->nccl.comm && pair->stands && pair->passed == pair->noted && pair->failed == ncclSuccess) finalize(pair);
    aq_pairs_abandon(&pair, 1);
    for (uint32_t i = 0; i < AQ_PAIR_MOVES; i++)
        if (pair->done[i]) (void)cudaEventDestroy(pair->done[i]);
    if (pair->stream) {
        (void)cudaStreamSynchronize(pair->stream);
        (void)cudaStreamDestroy(pair->stream);
    }
    aq_free(pair);
}

void aq_pairs_abandon(struct aq_pair *const *pairs, uint32_t count)
{
    struct aq_nccl_comm *comms[AQ_NCCL_TOGETHER];
    AQ_ASSERT(count <= AQ_NCCL_TOGETHER);
    for (uint32_t i = 0; i < count; i++)
        comms[i] = pairs[i] ? &pairs[i]->nccl : NULL;
    aq_nccl_abandon(comms, count);
}

void aq_pair_move(struct aq_pair *pair, void *at, size_t bytes)
{
    AQ_ASSERT(pair->noted - pair->passed < AQ_PAIR_MOVES && bytes > 0);
    const uint64_t place = ++pair->noted % AQ_PAIR_MOVES;
    pair->since_ns[place] = aq_clock_ns();
    pair->moves[place] = (struct aq_nccl_move){
        .from = pair->sends ? at : NULL, .to = pair->sends ? NULL : at, .bytes = bytes, .peer = pair->peer};
}

static enum aq_status fails(struct aq_pair *pair, ncclResult_t result)
{
    pair->failed = result;
    return AQ_NCCLERR;
}

/* The communicator has done what it was told: what came of it, and the next. */
static enum aq_status tell(struct aq_pair *pair)
{
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) {
        if (pair->marked < pair->told) {
            pair->marked++;
            AQ_TRY(aq_nccl_cuda(cudaEventRecord(pair->done[pair->marked % AQ_PAIR_MOVES], pair->stream),
                                "cudaEventRecord behind NCCL"));
        }
        if (pair->told == pair->noted) return AQ_OK;
        const struct aq_nccl_move *move = &pair->moves[++pair->told % AQ_PAIR_MOVES];
        state = aq_nccl_enqueue(&pair->nccl, move, pair->sends, move, !pair->sends, pair->stream);
        if (state == ncclInProgress) state = aq_nccl_state(&pair->nccl);
    }
    return state == ncclInProgress ? AQ_OK : fails(pair, state);
}

static enum aq_status look(struct aq_pair *pair)
{
    while (pair->passed < pair->marked) {
        const cudaError_t error = cudaEventQuery(pair->done[(pair->passed + 1) % AQ_PAIR_MOVES]);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* an answer, no error */
            return AQ_OK;
        }
        AQ_TRY(aq_nccl_cuda(error, "cudaEventQuery after NCCL"));
        pair->passed++;
    }
    return AQ_OK;
}

static enum aq_status late(const struct aq_pair *pair)
{
    const bool moves = pair->stands;
    const uint64_t since_ns = moves ? pair->since_ns[(pair->passed + 1) % AQ_PAIR_MOVES] : pair->opened_ns;
    const uint64_t now_ns = aq_clock_ns();
    if (now_ns - since_ns <= pair->silence_ns) return AQ_OK;
    return aq_fail(AQ_TIMEOUT, "nccl", "%s: waited %.1f s for NCCL, %s: the other end is stuck", pair->nccl.who,
                   (double)(now_ns - since_ns) * 1e-9, moves ? "moving a body" : "opening a communicator");
}

enum aq_status aq_pair_poll(struct aq_pair *pair)
{
    if (pair->stands && pair->passed == pair->noted) return AQ_OK;
    if (!pair->nccl.comm) return aq_fail(AQ_ABORTED, "nccl", "%s has given its communicator up", pair->nccl.who);
    const ncclResult_t state = aq_nccl_state(&pair->nccl);
    if (state != ncclSuccess && state != ncclInProgress) return fails(pair, state);
    pair->stands = pair->stands || state == ncclSuccess;
    if (state == ncclSuccess) AQ_TRY(tell(pair));
    AQ_TRY(look(pair));
    if (pair->stands && pair->passed == pair->noted) return AQ_OK;
    AQ_TRY(late(pair));
    return pair->stands ? AQ_OK : AQ_AGAIN;
}

enum aq_status aq_pair_failed(const struct aq_pair *pair)
{
    return aq_nccl_said(&pair->nccl, pair->failed, pair->stands ? "moving a body" : "opening a communicator");
}

uint64_t aq_pair_noted(const struct aq_pair *pair)
{
    return pair->noted;
}

uint64_t aq_pair_passed(const struct aq_pair *pair)
{
    return pair->passed;
}

#else

/* Nobody opens one: aq_nccl_refuse has said why on both ends. */
enum aq_status aq_pair_open(const struct aq_pair_config *config, struct aq_pair **out)
{
    (void)out;
    return aq_fail(AQ_NODEV, "nccl", "%s: built without NCCL", config->name);
}

void aq_pair_close(struct aq_pair *pair)
{
    (void)pair;
}

void aq_pairs_abandon(struct aq_pair *const *pairs, uint32_t count)
{
    (void)pairs;
    (void)count;
}

void aq_pair_move(struct aq_pair *pair, void *at, size_t bytes)
{
    (void)pair;
    (void)at;
    (void)bytes;
}

enum aq_status aq_pair_poll(struct aq_pair *pair)
{
    (void)pair;
    return AQ_NODEV;
}

enum aq_status aq_pair_failed(const struct aq_pair *pair)
{
    (void)pair;
    return AQ_NODEV;
}

uint64_t aq_pair_noted(const struct aq_pair *pair)
{
    (void)pair;
    return 0;
}

uint64_t aq_pair_passed(const struct aq_pair *pair)
{
    (void)pair;
    return 0;
}

#endif
