/*
 * nccl_host.c -- NCCL on the host: see nccl.h.
 *
 * An id names abstract sockets of this machine: rank r listens at "<id>.<r>" and connects to all lower ranks, so that
 * ranks may be threads of one process or processes. Nothing runs by itself: whoever asks (for a communicator's state,
 * or whether an event has passed) moves what can be moved.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "aqsgd/base/status.h"
#include "nccl.h"

enum { RANKS_MAX = 64, GROUPS_MAX = 256, MOVES_MAX = 2 * RANKS_MAX, VERSION = 22809 };

struct hello {
    int rank, ranks, gpu, version;
};

static const uint64_t TAKEN = UINT64_MAX; /* what a receiver answers; below it a head: the count of what follows */

struct move {
    bool send, over;
    bool through; /* all bytes have gone or come; not over before the receiver has said so */
    uint8_t *at;
    uint64_t bytes, head, number;
    size_t done, head_done, answered;
    int peer;
};

struct wire { /* to one peer: messages and answers, both ways */
    uint64_t head, sent, taken;
    size_t head_done;
    bool coming;  /* a head is here, and its message has not been taken */
    bool sending; /* in the middle of a message: no answer may go       */
};

struct group {
    ncclComm_t comm; /* NULL: it is gone, and the stream may pass */
    struct move moves[MOVES_MAX];
    int move_count;
    cudaStream_t stream;
    bool enqueued, reached, ended; /* reached: by its stream */
};

struct ncclComm {
    char id[64];
    int rank, ranks, gpu, version;
    int listener, fds[RANKS_MAX];
    struct hello hellos[RANKS_MAX];
    size_t hello_done[RANKS_MAX];
    struct {
        int fd;
        struct hello hello;
        size_t done;
    } guests[RANKS_MAX]; /* accepted, who they are not yet known */
    struct wire wires[RANKS_MAX];
    bool joined, finalized;
    ncclResult_t state;
    char error[160];
    struct group *groups[GROUPS_MAX]; /* the stream's, once enqueued */
    uint64_t begun, ended;
};

static _Thread_local int version_here = VERSION;
static _Thread_local unsigned fails_in;
static _Thread_local int depth;
static _Thread_local struct group pending;
static _Thread_local ncclComm_t pending_comm;
static _Thread_local ncclResult_t pending_error;
static atomic_int open_count;
static atomic_uint ids;

void nccl_host_version(int version)
{
    version_here = version;
}

void nccl_host_fail(unsigned group)
{
    fails_in = group;
}

static atomic_uint_fast64_t sent_count, sent_max;

void nccl_host_sent(uint64_t *messages, uint64_t *bytes_max)
{
    *messages = atomic_exchange(&sent_count, 0);
    *bytes_max = atomic_exchange(&sent_max, 0);
}

static void sent(uint64_t bytes)
{
    uint_fast64_t most = atomic_load(&sent_max);
    atomic_fetch_add(&sent_count, 1);
    while (bytes > most && !atomic_compare_exchange_weak(&sent_max, &most, bytes)) {
    }
}

int nccl_host_open(void)
{
    return atomic_load(&open_count);
}

static ncclResult_t failed(ncclComm_t comm, ncclResult_t result, const char *why, int peer)
{
    if (comm->state != ncclSuccess && comm->state != ncclInProgress) return comm->state; /* the first */
    comm->state = result;
    snprintf(comm->error, sizeof comm->error, "%s (rank %d)", why, peer);
    return result;
}

static bool is_bad(const struct ncclComm *comm)
{
    return comm->state != ncclSuccess && comm->state != ncclInProgress;
}

/* ---- joining ---- */

static socklen_t address_of(const char *id, int rank, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int bytes = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%.60s.%d", id, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

/* true: all of it. */
static bool push(ncclComm_t comm, int fd, const void *from, size_t bytes, size_t *done, int peer)
{
    while (*done < bytes) {
        const ssize_t n = send(fd, (const uint8_t *)from + *done, bytes - *done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n < 0) {
            (void)failed(comm, ncclRemoteError, "a rank is gone", peer);
            return false;
        }
        *done += (size_t)n;
    }
    return true;
}

static bool pull(ncclComm_t comm, int fd, void *to, size_t bytes, size_t *done, int peer)
{
    while (*done < bytes) {
        const ssize_t n = recv(fd, (uint8_t *)to + *done, bytes - *done, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (n <= 0) {
            (void)failed(comm, ncclRemoteError, "a rank is gone", peer);
            return false;
        }
        *done += (size_t)n;
    }
    return true;
}

static void check_hello(ncclComm_t comm, const struct hello *hello, int peer)
{
    if (hello->rank != peer || hello->ranks != comm->ranks)
        (void)failed(comm, ncclInvalidUsage, "another number of ranks", peer);
    else if (hello->gpu == comm->gpu)
        (void)failed(comm, ncclInvalidUsage, "Duplicate GPU detected", peer);
    else if (hello->version != comm->version)
        (void)failed(comm, ncclInvalidUsage, "another version of NCCL", peer);
}

static void dial(ncclComm_t comm, int peer)
{
    const struct hello mine = {comm->rank, comm->ranks, comm->gpu, comm->version};
    struct sockaddr_un address;
    const socklen_t bytes = address_of(comm->id, peer, &address);
    if (comm->fds[peer] < 0) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, bytes) != 0) {
            close(fd);
            return; /* not there yet */
        }
        size_t done = 0;
        comm->fds[peer] = fd;
        (void)push(comm, fd, &mine, sizeof mine, &done, peer);
    }
    if (comm->hello_done[peer] == sizeof mine) return;
    if (pull(comm, comm->fds[peer], &comm->hellos[peer], sizeof mine, &comm->hello_done[peer], peer))
        check_hello(comm, &comm->hellos[peer], peer);
}

static void greet(ncclComm_t comm)
{
    const struct hello mine = {comm->rank, comm->ranks, comm->gpu, comm->version};
    const int fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    for (int i = 0; i < RANKS_MAX && fd >= 0; i++)
        if (comm->guests[i].fd < 0) {
            comm->guests[i].fd = fd;
            comm->guests[i].done = 0;
            break;
        }
    for (int i = 0; i < RANKS_MAX; i++) {
        struct hello *hello = &comm->guests[i].hello;
        const int guest = comm->guests[i].fd;
        if (guest < 0 || !pull(comm, guest, hello, sizeof *hello, &comm->guests[i].done, -1)) continue;
        size_t done = 0;
        comm->guests[i].fd = -1;
        (void)push(comm, guest, &mine, sizeof mine, &done, hello->rank);
        if (hello->rank <= comm->rank || hello->rank >= comm->ranks || comm->fds[hello->rank] >= 0) {
            (void)failed(comm, ncclInvalidUsage, "a rank comes twice, or is none of these", hello->rank);
            close(guest);
            continue;
        }
        comm->fds[hello->rank] = guest;
        comm->hello_done[hello->rank] = sizeof *hello;
        check_hello(comm, hello, hello->rank);
    }
}

static void join_ranks(ncclComm_t comm)
{
    bool all = true;
    for (int peer = 0; peer < comm->rank; peer++)
        dial(comm, peer);
    greet(comm);
    for (int peer = 0; peer < comm->ranks; peer++)
        all = all && (peer == comm->rank || comm->hello_done[peer] == sizeof(struct hello));
    comm->joined = all && !is_bad(comm);
    if (comm->joined) comm->state = ncclSuccess;
}

/* ---- moving ---- */

/* The next answer or head, if it is here; none where a message is to be taken first. */
static bool read_head(ncclComm_t comm, int peer)
{
    struct wire *wire = &comm->wires[peer];
    if (wire->coming || !pull(comm, comm->fds[peer], &wire->head, sizeof wire->head, &wire->head_done, peer))
        return false;
    wire->head_done = 0;
    wire->coming = wire->head != TAKEN;
    if (!wire->coming) wire->taken++;
    return true;
}

/* Over when the receiver has taken it: NCCL promises no room in between. */
static bool send_on(ncclComm_t comm, struct move *move)
{
    struct wire *wire = &comm->wires[move->peer];
    const int fd = comm->fds[move->peer];
    if (!move->through) {
        move->head = move->bytes;
        wire->sending = true;
        if (!push(comm, fd, &move->head, sizeof move->head, &move->head_done, move->peer) ||
            !push(comm, fd, move->at, move->bytes, &move->done, move->peer))
            return false;
        wire->sending = false;
        move->through = true;
        move->number = ++wire->sent;
    }
    while (wire->taken < move->number && read_head(comm, move->peer)) {
    }
    return wire->taken >= move->number;
}

static bool receive_on(ncclComm_t comm, struct move *move)
{
    struct wire *wire = &comm->wires[move->peer];
    const int fd = comm->fds[move->peer];
    if (!move->through) {
        while (!wire->coming && read_head(comm, move->peer)) {
        }
        if (!wire->coming) return false;
        if (wire->head != move->bytes) {
            (void)failed(comm, ncclInvalidUsage, "the two ends of a message have different counts", move->peer);
            return false;
        }
        if (!pull(comm, fd, move->at, move->bytes, &move->done, move->peer)) return false;
        wire->coming = false;
        move->through = true;
    }
    return !wire->sending && push(comm, fd, &TAKEN, sizeof TAKEN, &move->answered, move->peer);
}

/* Of one peer and one way, one after the other. */
static bool is_next(const struct group *group, int i)
{
    for (int j = 0; j < i; j++)
        if (!group->moves[j].over && group->moves[j].peer == group->moves[i].peer &&
            group->moves[j].send == group->moves[i].send)
            return false;
    return true;
}

static bool group_on(ncclComm_t comm, struct group *group)
{
    bool all = true;
    for (int i = 0; i < group->move_count; i++) {
        struct move *move = &group->moves[i];
        if (!move->over && is_next(group, i)) move->over = move->send ? send_on(comm, move) : receive_on(comm, move);
        all = all && move->over;
    }
    return all;
}

static void progress(ncclComm_t comm)
{
    if (is_bad(comm)) return;
    if (!comm->joined) {
        join_ranks(comm);
        return;
    }
    while (comm->ended < comm->begun) {
        struct group *group = comm->groups[comm->ended % GROUPS_MAX];
        if (!group->reached || !group_on(comm, group) || is_bad(comm)) return;
        comm->ended++;
        group->ended = true;
    }
}

/* The stream is here. */
static int group_run(void *context)
{
    struct group *group = context;
    for (int i = 0; i < group->move_count && !group->reached; i++)
        if (!group->moves[i].send) cuda_runtime_host_set(group->moves[i].at, 0xff, group->moves[i].bytes);
    group->reached = true;
    if (group->comm && !group->ended) progress(group->comm);
    if (group->comm && !group->ended) return cudaErrorNotReady;
    free(group);
    return cudaSuccess;
}

/* What was told last is enqueued when somebody asks. */
static void enqueue_last(ncclComm_t comm)
{
    if (comm->begun == comm->ended) return;
    struct group *group = comm->groups[(comm->begun - 1) % GROUPS_MAX];
    if (group->enqueued) return;
    group->enqueued = true;
    if (comm->state == ncclInProgress) comm->state = ncclSuccess;
    (void)cuda_runtime_host_pending(group->stream, group_run, group);
}

/* ---- the calls ---- */

enum aq_status aq_nccl_library_open(void); /* nccl_channel.h; this one is linked */
enum aq_status aq_nccl_library_open(void)
{
    return version_here ? AQ_OK : AQ_NODEV;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = version_here;
    return version_here ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "nccl-%ld-%u", (long)getpid(), atomic_fetch_add(&ids, 1));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    struct sockaddr_un address;
    if (config->blocking != 0 || ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm) return ncclSystemError;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->gpu = cuda_runtime_host_current();
    comm->version = version_here;
    comm->state = ncclInProgress;
    memcpy(comm->id, id.internal, sizeof comm->id - 1);
    for (int i = 0; i < RANKS_MAX; i++)
        comm->fds[i] = comm->guests[i].fd = -1;
    const socklen_t bytes = address_of(comm->id, rank, &address);
    comm->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *out = comm;
    atomic_fetch_add(&open_count, 1);
    if (bind(comm->listener, (struct sockaddr *)&address, bytes) != 0 || listen(comm->listener, RANKS_MAX) != 0)
        return failed(comm, ncclInvalidUsage, "a rank comes twice", rank);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    if (!comm) return ncclInvalidArgument;
    progress(comm);
    enqueue_last(comm);
    if (comm->finalized && comm->state == ncclInProgress && comm->ended == comm->begun) comm->state = ncclSuccess;
    *state = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm || comm->finalized || depth) return ncclInvalidUsage;
    comm->finalized = true;
    if (comm->state == ncclSuccess) comm->state = ncclInProgress;
    return comm->state;
}

static void drop(ncclComm_t comm)
{
    for (; comm->ended < comm->begun; comm->ended++) {
        struct group *group = comm->groups[comm->ended % GROUPS_MAX];
        group->comm = NULL;
        if (!group->enqueued) free(group);
    }
    for (int i = 0; i < RANKS_MAX; i++) {
        if (comm->fds[i] >= 0) close(comm->fds[i]);
        if (comm->guests[i].fd >= 0) close(comm->guests[i].fd);
    }
    close(comm->listener);
    free(comm);
    atomic_fetch_sub(&open_count, 1);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm || !comm->finalized || comm->state != ncclSuccess) return ncclInvalidUsage;
    drop(comm);
    return ncclSuccess;
}

static atomic_int together, begun;

void nccl_host_abort_together(int count)
{
    atomic_store(&begun, 0);
    atomic_store(&together, count);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    enum { LOOKS = 10000 }; /* of a millisecond */
    if (!comm) return ncclInvalidArgument;
    atomic_fetch_add(&begun, 1);
    for (int look = 0; atomic_load(&begun) < atomic_load(&together); look++) {
        if (look == LOOKS) {
            fprintf(stderr, "communicators are aborted one after another\n");
            abort();
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    drop(comm);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (depth++ > 0) return ncclSuccess;
    pending = (struct group){0};
    pending_comm = NULL;
    pending_error = ncclSuccess;
    return ncclSuccess;
}

static ncclResult_t note(bool sends, void *at, size_t bytes, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;
    if (depth == 0) result = ncclInvalidUsage; /* alone it would wait for its peer before the next: nobody wants that */
    if (!comm || !stream || !at || bytes == 0 || peer < 0 || peer >= comm->ranks || peer == comm->rank ||
        (type != ncclUint8 && type != ncclInt8))
        result = ncclInvalidArgument;
    if (result == ncclSuccess && ((pending_comm && (pending_comm != comm || pending.stream != stream)) ||
                                  pending.move_count == MOVES_MAX || !comm->joined || comm->finalized))
        result = ncclInvalidUsage;
    if (result != ncclSuccess) return pending_error = result;
    if (sends) sent(bytes);
    pending_comm = comm;
    pending.stream = stream;
    pending.moves[pending.move_count++] = (struct move){.send = sends, .at = at, .bytes = bytes, .peer = peer};
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return note(true, (void *)(uintptr_t)from, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return note(false, to, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0) return ncclInvalidUsage;
    if (--depth > 0) return ncclSuccess;
    if (pending_error != ncclSuccess) return pending_error;
    if (!pending_comm) return ncclSuccess;
    ncclComm_t comm = pending_comm;
    enqueue_last(comm); /* who did not ask after the one before has it enqueued now */
    if (comm->state != ncclSuccess) return comm->state;
    if (fails_in && --fails_in == 0)
        return failed(comm, ncclSystemError, "a test wants this group to fail", comm->rank);
    if (comm->begun - comm->ended == GROUPS_MAX) return failed(comm, ncclInternalError, "too many groups", comm->rank);
    struct group *group = malloc(sizeof *group);
    if (!group) return ncclSystemError;
    *group = pending;
    group->comm = comm;
    comm->groups[comm->begun++ % GROUPS_MAX] = group;
    comm->state = ncclInProgress;
    return ncclInProgress;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const TEXTS[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof TEXTS / sizeof *TEXTS ? TEXTS[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->error : "";
}
