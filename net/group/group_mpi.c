/*
 * group_mpi.c -- a group over MPI: a cluster's own engine carries the same messages (AQ_MPI, off by default).
 *
 * A message is one MPI message: a head of 64 bytes and the body, gathered by a datatype of two places, so that the
 * caller's memory is sent as it lies. Each pair has AQ_GROUP_FRAMES receives posted ahead, which MPI fills in the order
 * in which they were posted; a slot is posted again when its message has been given back.
 *
 * MPI has no wait with a deadline, and its waits spin: this one tests, and sleeps between tests.
 */
#include "group.h"

#if AQ_MPI
#include <assert.h>
#include <mpi.h>
#include <time.h>

static const char *const AREA = "group";

enum { HEAD_BYTES = 64, TAG = 23, NAP_NS = 20000 };

struct head { /* never leaves machines of one kind: in their own byte order */
    struct aq_chunk chunk;
    uint8_t reserved[HEAD_BYTES - sizeof(struct aq_chunk)];
};
static_assert(sizeof(struct head) == HEAD_BYTES, "a body begins on a cache line");

struct peer {
    struct head heads[AQ_GROUP_FRAMES];
    MPI_Request sends[AQ_GROUP_FRAMES], receives[AQ_GROUP_FRAMES];
    uint64_t posted, sent, taken, given;
    uint8_t *slots;
};

struct over_mpi {
    struct aq_group group;
    MPI_Comm comm;
    bool owner; /* of MPI: initialized here */
    size_t slot_bytes, memory_bytes;
    struct peer *peers;
    void *memory;
};

static enum aq_status said(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS) return AQ_OK;
    (void)MPI_Error_string(code, text, &length);
    return aq_fail(AQ_IO, AREA, "%s: %.*s", what, length, text);
}

static enum aq_status post_receive(struct over_mpi *over, uint32_t from, uint64_t n)
{
    struct peer *peer = &over->peers[from];
    return said(MPI_Irecv(peer->slots + n % AQ_GROUP_FRAMES * over->slot_bytes, (int)over->slot_bytes, MPI_BYTE,
                          (int)from, TAG, over->comm, &peer->receives[n % AQ_GROUP_FRAMES]),
                "MPI_Irecv");
}

/* Sends that have left, in order. */
static enum aq_status look_at_sends(struct peer *peer)
{
    int done = 1;
    while (peer->sent < peer->posted) {
        AQ_TRY(
            said(MPI_Test(&peer->sends[peer->sent % AQ_GROUP_FRAMES], &done, MPI_STATUS_IGNORE), "MPI_Test of a send"));
        if (!done) break;
        peer->sent++;
    }
    return AQ_OK;
}

/* A short sleep; AQ_TIMEOUT at the deadline. All sends make progress meanwhile. */
static enum aq_status nap(struct over_mpi *over, uint32_t peer, uint64_t deadline_ns)
{
    const struct timespec time = {.tv_nsec = NAP_NS};
    const uint64_t begin_ns = aq_clock_ns();
    if (begin_ns >= deadline_ns) return aq_group_silent(&over->group, peer);
    for (uint32_t rank = 0; rank < over->group.size; rank++)
        if (rank != over->group.rank) AQ_TRY(look_at_sends(&over->peers[rank]));
    (void)nanosleep(&time, NULL); /* a signal makes it shorter, and the next look comes sooner */
    aq_group_count_wait(&over->group, begin_ns);
    return AQ_OK;
}

static enum aq_status mpi_settle(struct aq_group *group, uint32_t to, uint64_t count)
{
    struct over_mpi *over = (struct over_mpi *)group;
    const uint64_t deadline_ns = aq_clock_after(group->silence_ns);
    for (;;) {
        AQ_TRY(look_at_sends(&over->peers[to]));
        if (over->peers[to].sent >= count) return AQ_OK;
        AQ_TRY(nap(over, to, deadline_ns));
    }
}

static enum aq_status mpi_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    struct over_mpi *over = (struct over_mpi *)group;
    struct peer *peer = &over->peers[to];
    if (peer->posted >= AQ_GROUP_FRAMES) AQ_TRY(mpi_settle(group, to, peer->posted - AQ_GROUP_FRAMES + 1));
    const uint64_t n = peer->posted++ % AQ_GROUP_FRAMES;
    peer->heads[n] = (struct head){.chunk = *chunk};
    int lengths[2] = {HEAD_BYTES, (int)chunk->bytes};
    MPI_Aint places[2];
    MPI_Datatype type;
    AQ_TRY(said(MPI_Get_address(&peer->heads[n], &places[0]), "MPI_Get_address"));
    AQ_TRY(said(MPI_Get_address(body, &places[1]), "MPI_Get_address"));
    AQ_TRY(said(MPI_Type_create_hindexed(2, lengths, places, MPI_BYTE, &type), "MPI_Type_create_hindexed"));
    int code = MPI_Type_commit(&type);
    if (code == MPI_SUCCESS) code = MPI_Isend(MPI_BOTTOM, 1, type, (int)to, TAG, over->comm, &peer->sends[n]);
    (void)MPI_Type_free(&type); /* MPI keeps it until the send is done */
    return said(code, "MPI_Isend");
}

static enum aq_status mpi_take(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body)
{
    struct over_mpi *over = (struct over_mpi *)group;
    struct peer *peer = &over->peers[from];
    const uint64_t deadline_ns = aq_clock_after(group->silence_ns), n = peer->taken % AQ_GROUP_FRAMES;
    MPI_Status status;
    int done = 0, bytes = 0;
    AQ_ASSERT(peer->taken - peer->given < AQ_GROUP_FRAMES);
    for (;;) {
        AQ_TRY(said(MPI_Test(&peer->receives[n], &done, &status), "MPI_Test of a receive"));
        if (done) break;
        AQ_TRY(nap(over, from, deadline_ns));
    }
    AQ_TRY(said(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count"));
    const struct head *head = (const void *)(peer->slots + n * over->slot_bytes);
    if (bytes < HEAD_BYTES || (uint32_t)bytes - HEAD_BYTES != head->chunk.bytes)
        return aq_fail(AQ_PROTO, AREA, "rank %u sent a message of %d bytes that no group sends", from, bytes);
    peer->taken++;
    *chunk = head->chunk;
    *body = head + 1;
    return AQ_OK;
}

static void mpi_give(struct aq_group *group, uint32_t from, const void *body)
{
    struct over_mpi *over = (struct over_mpi *)group;
    struct peer *peer = &over->peers[from];
    AQ_ASSERT(body == peer->slots + peer->given % AQ_GROUP_FRAMES * over->slot_bytes + HEAD_BYTES);
    /* A receive that cannot be posted is seen by the next take of its slot: MPI_Test of no request. */
    (void)post_receive(over, from, peer->given++);
}

static void mpi_close(struct aq_group *group)
{
    struct over_mpi *over = (struct over_mpi *)group;
    const bool broken = group->broken != AQ_OK;
    for (uint32_t rank = 0; over->memory && rank < group->size; rank++)
        for (uint32_t i = 0; i < AQ_GROUP_FRAMES; i++) {
            MPI_Request *receive = &over->peers[rank].receives[i];
            if (rank == group->rank || *receive == MPI_REQUEST_NULL) continue;
            (void)MPI_Cancel(receive);
            (void)MPI_Wait(receive, MPI_STATUS_IGNORE);
        }
    if (broken && over->owner) (void)MPI_Abort(over->comm, (int)group->broken);
    if (over->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&over->comm);
    if (over->owner) (void)MPI_Finalize();
    aq_group_deinit(group);
    aq_unmap(over->memory, over->memory_bytes);
    aq_free(over->peers);
    aq_free(over);
}

static const struct aq_group_ops MPI_OPS = {
    .name = "mpi", .post = mpi_post, .settle = mpi_settle, .take = mpi_take, .give = mpi_give, .close = mpi_close};

static enum aq_status join(struct over_mpi *over, struct aq_group_config *config)
{
    int initialized = 0, rank, size;
    AQ_TRY(said(MPI_Initialized(&initialized), "MPI_Initialized"));
    if (!initialized) AQ_TRY(said(MPI_Init(NULL, NULL), "MPI_Init"));
    over->owner = !initialized;
    AQ_TRY(said(MPI_Comm_dup(MPI_COMM_WORLD, &over->comm), "MPI_Comm_dup"));
    AQ_TRY(said(MPI_Comm_set_errhandler(over->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    AQ_TRY(said(MPI_Comm_rank(over->comm, &rank), "MPI_Comm_rank"));
    AQ_TRY(said(MPI_Comm_size(over->comm, &size), "MPI_Comm_size"));
    config->rank = (uint32_t)rank;
    config->size = (uint32_t)size;
    return AQ_OK;
}

static enum aq_status open_peers(struct over_mpi *over)
{
    const uint32_t size = over->group.size;
    void *memory;
    AQ_TRY(aq_alloc(size * sizeof *over->peers, &memory));
    over->peers = memory;
    over->slot_bytes = HEAD_BYTES + over->group.piece_bytes;
    over->memory_bytes = size * AQ_GROUP_FRAMES * over->slot_bytes;
    AQ_TRY(aq_map(over->memory_bytes, &memory));
    for (uint32_t rank = 0; rank < size; rank++)
        for (uint32_t i = 0; i < AQ_GROUP_FRAMES; i++) {
            over->peers[rank].slots = (uint8_t *)memory + rank * AQ_GROUP_FRAMES * over->slot_bytes;
            over->peers[rank].receives[i] = over->peers[rank].sends[i] = MPI_REQUEST_NULL;
        }
    over->memory = memory;
    for (uint32_t rank = 0; rank < size; rank++)
        for (uint32_t i = 0; rank != over->group.rank && i < AQ_GROUP_FRAMES; i++)
            AQ_TRY(post_receive(over, rank, i));
    return AQ_OK;
}

enum aq_status aq_group_open_mpi(const struct aq_group_config *config, struct aq_group **out)
{
    struct aq_group_config joined = *config;
    enum aq_status status;
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct over_mpi), &memory));
    struct over_mpi *over = memory;
    over->comm = MPI_COMM_NULL;
    over->group.ops = &MPI_OPS;
    AQ_TRY_GOTO(join(over, &joined), out);
    AQ_TRY_GOTO(aq_group_init(&over->group, &MPI_OPS, false, &joined), out);
    AQ_TRY_GOTO(open_peers(over), out);
out:
    if (status != AQ_OK)
        mpi_close(&over->group);
    else
        *out = &over->group;
    return status;
}

#else

enum aq_status aq_group_open_mpi(const struct aq_group_config *config, struct aq_group **out)
{
    (void)config;
    (void)out;
    return aq_fail(AQ_NODEV, "group", "built without MPI: configure with -DAQ_MPI=ON (libopenmpi-dev)");
}

#endif
