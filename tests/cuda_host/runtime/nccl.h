/*
 * nccl.h -- what net uses of NCCL, on the host, for tests without a GPU: ranks are threads or processes of one
 * machine. nccl_host.c does it, by NVIDIA's manual: calls of a communicator that does not block answer ncclInProgress
 * and are asked after; what a group has is enqueued only by then; groups of a stream run one after another, and all of
 * a group at once; memory is read and written when a group runs, not when it is enqueued; both ends of a message must
 * say the same count. A receive's memory is NaNs until it has come, and a send is over when its receiver has all of it:
 * two ranks that both send first, in groups of their own on one communicator, wait for ever.
 *
 * Errors are what NCCL makes of them: another count, another number of ranks, one GPU for two ranks or a bad argument
 * are ncclInvalidUsage or ncclInvalidArgument; a rank that is gone is ncclRemoteError. One that never comes is waited
 * for, for ever.
 */
#ifndef NCCL_ON_HOST_H
#define NCCL_ON_HOST_H

#include "cuda_runtime_api.h"

#define NCCL_UNIQUE_ID_BYTES 128

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclInt8 = 0, ncclUint8 = 1, ncclFloat = 7 } ncclDataType_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef struct {
    int blocking, maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        .blocking = 1                                                                                                  \
    }
typedef struct ncclComm *ncclComm_t;

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);

/* For tests: the version that this thread's calls see (0: none here); NCCL fails in this thread's n-th group from now
 * (0: never). Communicators that are open. */
void nccl_host_version(int version);
void nccl_host_fail(unsigned group);
int nccl_host_open(void);
/* Messages that were told to be sent since the last call of this, and the bytes of the longest. */
void nccl_host_sent(uint64_t *messages, uint64_t *bytes_max);
/*
 * Each abort waits until so many have begun, as one that waits for the whole GPU may: else, 10 s later, the test dies.
 */
void nccl_host_abort_together(int count);

#endif
