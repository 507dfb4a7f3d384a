/*
 * nccl_comm.h -- what the group over NCCL and pairs share: a communicator that does not block, and messages of bytes.
 *
 * Each call of a communicator may answer ncclInProgress; it is asked again (aq_nccl_state) until it has done what it
 * was told, and told nothing else before. How that is waited for, and what is looked at meanwhile, is the caller's.
 *
 * Locking: the thread that owns the communicator.
 */
#ifndef NET_NCCL_COMM_H
#define NET_NCCL_COMM_H

#include "net/pair.h"

#if AQ_WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

struct aq_nccl_comm {
    ncclComm_t comm; /* NULL: not begun, or given up */
    char who[96];    /* for lines: "rank 1 of 2"     */
};

struct aq_nccl_move {
    const void *from; /* of a send    */
    void *to;         /* of a receive */
    size_t bytes;
    uint32_t peer;
};

/* AQ_OK, or AQ_CUDAERR with the line. */
enum aq_status aq_nccl_cuda(cudaError_t error, const char *what);

/* The same of NCCL, in its own words, which name the peer or the socket where they can. */
enum aq_status aq_nccl_said(const struct aq_nccl_comm *comm, ncclResult_t result, const char *what);

/* Multiprocessors that its kernels take at most while they wait; 0: as NCCL likes. */
ncclResult_t aq_nccl_begin(struct aq_nccl_comm *comm, const struct aq_nccl_id *id, uint32_t rank, uint32_t size,
                           int blocks_max);

/* Has it done what it was told last? ncclInProgress: not yet; any other: why it never will. */
ncclResult_t aq_nccl_state(const struct aq_nccl_comm *comm);

/* All moves in one group, so that none waits for another. */
ncclResult_t aq_nccl_enqueue(const struct aq_nccl_comm *comm, const struct aq_nccl_move *sends, uint32_t send_count,
                             const struct aq_nccl_move *receives, uint32_t receive_count, cudaStream_t stream);

/*
 * They are of no use any more: what runs on the GPU ends, and so do the other ranks' waits for this one. All at once,
 * each abort on a thread of its own: an abort may wait for the whole GPU, and so for a kernel of the next communicator.
 * Those that are NULL, or given up, are fine; at most AQ_NCCL_TOGETHER.
 */
enum { AQ_NCCL_TOGETHER = 4 };
void aq_nccl_abandon(struct aq_nccl_comm *const *comms, uint32_t count);

#endif
#endif
