/*
 * group_nccl.c -- a group of GPUs over NCCL: messages are device memory, and go by grouped ncclSend and ncclRecv.
 *
 * NCCL moves the messages of one step of a program at once: what has been posted and expected since the last flush is
 * one ncclGroup (a *batch*), on a separate stream that waits for the kernels that packed. Nothing else is ever put
 * behind a batch but an event: the host looks whether it has passed, and only then enqueues what reads its messages. So
 * a peer that never comes holds up only that stream, and aborting the communicator frees it.
 *
 * Below it is a group of links. That group sends NCCL's id (rank 0's, to all), moves host memory, agrees before each
 * collective that all ranks are in it (NCCL's messages name nothing), and is looked at whenever this rank waits, so
 * that a rank that dies ends the wait of all others.
 *
 * Communicator, stream, events and the deadline are a channel's (nccl_channel.h). Sums are not NCCL's: they are made in
 * the order of ranks (docs/DECISIONS.md 0038).
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "group.h"
#include "nccl_channel.h"

static const char *const AREA = "group";

static enum aq_status facts_of(struct aq_group *group, const struct aq_device *device,
                               struct aq_nccl_rank all[AQ_GROUP_SIZE_MAX])
{
    struct aq_nccl_rank mine;
    aq_nccl_rank_here(device, &mine);
    return aq_all_gather(group, &mine, sizeof mine, all);
}

enum aq_status aq_nccl_facts(struct aq_group *group, const struct aq_device *device, struct aq_nccl_facts *out)
{
    struct aq_nccl_rank all[AQ_GROUP_SIZE_MAX];
    AQ_TRY(facts_of(group, device, all));
    aq_nccl_judge(all, group->size, out);
    return AQ_OK;
}

#if AQ_WITH_NCCL

enum {
    LOOKS = 200, /* at an event, before the first nap: what is near is there within some 100 us */
    NAP_NS = 20000,
    CAUSE_NS = 500000000
};
static_assert((int)AQ_NCCL_BATCHES >= 4 * AQ_GROUP_FRAMES, "a batch is asked after while it is remembered");

struct coming {
    struct aq_chunk chunk;
    void *body;
    uint64_t batch;
};

struct peer {
    uint8_t *memory; /* AQ_GROUP_COMING messages, device */
    struct coming coming[AQ_GROUP_COMING];
    uint64_t expected, taken, given;
    uint64_t posted, batch_of[AQ_NCCL_BATCHES]; /* of post n: [n % AQ_NCCL_BATCHES] */
};

struct over_nccl {
    struct aq_group group;
    struct aq_nccl_channel channel;
    cudaEvent_t packed;
    uint32_t looked; /* at the links, in turns with cheaper looks */
    struct aq_nccl_move sends[AQ_GROUP_SIZE_MAX], receives[AQ_GROUP_SIZE_MAX];
    uint32_t send_count, receive_count;
    uint8_t *memory;
    size_t memory_bytes;
    struct peer peers[AQ_GROUP_SIZE_MAX];
};

/* ---- waits ---- */

static void nccl_abandon(struct aq_group *group)
{
    struct aq_nccl_channel *const channel = &((struct over_nccl *)group)->channel;
    aq_nccl_channels_abandon(&channel, 1);
}

/*
 * NCCL has failed. Where a rank has died or given up, the links know why, and say so soon; NCCL knows only that it is
 * gone.
 */
static enum aq_status first_cause(struct over_nccl *over, const char *what)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    const uint64_t until_ns = aq_clock_after(CAUSE_NS);
    while (aq_clock_ns() < until_ns) {
        AQ_TRY(aq_group_links_watch(over->group.host));
        (void)nanosleep(&nap, NULL);
    }
    return aq_nccl_channel_failed(&over->channel, what);
}

/*
 * One turn of a wait that began at begin_ns: AQ_OK and AQ_AGAIN are those of aq_nccl_channel_poll; else what ends the
 * wait, an error of NCCL's, a rank that has died, the deadline.
 */
static enum aq_status turn(struct over_nccl *over, const char *what, uint64_t begin_ns)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    const enum aq_status status = aq_nccl_channel_poll(&over->channel, what);
    if (status == AQ_NCCLERR) return first_cause(over, what);
    if ((status != AQ_OK && status != AQ_AGAIN) || ++over->looked % LOOKS != 0) return status;
    AQ_TRY(aq_group_links_watch(over->group.host));
    if (aq_clock_ns() - begin_ns > LOOKS * UINT64_C(1000)) {
        over->looked = LOOKS - 1; /* from now on a nap, and a look at everything, each time */
        (void)nanosleep(&nap, NULL);
    }
    return status;
}

/* Waits until the communicator has done the last command. */
static enum aq_status await_call(struct over_nccl *over, const char *what)
{
    const uint64_t begin_ns = aq_clock_ns();
    enum aq_status status = AQ_AGAIN;
    while (status == AQ_AGAIN)
        status = turn(over, what, begin_ns);
    over->group.stats.wait_ns += aq_clock_ns() - begin_ns;
    return status;
}

/* Until that batch has passed: they pass in order. */
static enum aq_status await_batch(struct over_nccl *over, uint64_t number, uint32_t peer)
{
    const uint64_t begin_ns = aq_clock_ns();
    char what[64];
    snprintf(what, sizeof what, "in collective %" PRIu64 " with rank %u", over->group.number, peer);
    while (over->channel.passed < number) {
        const enum aq_status status = turn(over, what, begin_ns);
        if (status != AQ_AGAIN) AQ_TRY(status);
    }
    over->group.stats.wait_ns += aq_clock_ns() - begin_ns;
    return AQ_OK;
}

/* ---- the table ---- */

static enum aq_status nccl_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    struct over_nccl *over = (struct over_nccl *)group;
    struct peer *peer = &over->peers[to];
    AQ_ASSERT(over->send_count < group->size);
    over->sends[over->send_count++] = (struct aq_nccl_move){.from = body, .bytes = chunk->bytes, .peer = to};
    peer->batch_of[++peer->posted % AQ_NCCL_BATCHES] = over->channel.told + 1;
    return AQ_OK;
}

static enum aq_status nccl_expect(struct aq_group *group, uint32_t from, const struct aq_chunk *chunk, void *into)
{
    struct over_nccl *over = (struct over_nccl *)group;
    struct peer *peer = &over->peers[from];
    const uint64_t n = peer->expected++;
    AQ_ASSERT(n - peer->given < AQ_GROUP_COMING && chunk->bytes <= group->piece_bytes);
    if (!into) into = peer->memory + n % AQ_GROUP_COMING * group->piece_bytes;
    peer->coming[n % AQ_GROUP_COMING] = (struct coming){.chunk = *chunk, .body = into, .batch = over->channel.told + 1};
    AQ_ASSERT(over->receive_count < group->size);
    over->receives[over->receive_count++] = (struct aq_nccl_move){.to = into, .bytes = chunk->bytes, .peer = from};
    return AQ_OK;
}

static enum aq_status flush_batch(struct over_nccl *over)
{
    static const char *const WHAT = "enqueueing a step's messages";
    struct aq_group *group = &over->group;
    struct aq_nccl_channel *channel = &over->channel;
    cudaStream_t packing = aq_device_stream_native(group->device, group->stream);
    AQ_TRY(await_call(over, WHAT)); /* it is free already */
    if (aq_nccl_channel_full(channel)) AQ_TRY(await_batch(over, channel->passed + 1, group->rank));
    AQ_TRY(aq_nccl_cuda(cudaEventRecord(over->packed, packing), "cudaEventRecord"));
    AQ_TRY(aq_nccl_cuda(cudaStreamWaitEvent(channel->stream, over->packed, 0), "cudaStreamWaitEvent"));
    const enum aq_status status =
        aq_nccl_channel_tell(channel, over->sends, over->send_count, over->receives, over->receive_count);
    return status == AQ_NCCLERR ? first_cause(over, WHAT) : await_call(over, WHAT);
}

static enum aq_status nccl_flush(struct aq_group *group)
{
    struct over_nccl *over = (struct over_nccl *)group;
    if (over->send_count + over->receive_count == 0) return AQ_OK;
    const enum aq_status status = flush_batch(over);
    over->send_count = over->receive_count = 0;
    return status;
}

static enum aq_status nccl_settle(struct aq_group *group, uint32_t to, uint64_t count)
{
    struct over_nccl *over = (struct over_nccl *)group;
    struct peer *peer = &over->peers[to];
    if (count == 0) return AQ_OK;
    AQ_ASSERT(count <= peer->posted && peer->posted - count < AQ_NCCL_BATCHES);
    return await_batch(over, peer->batch_of[count % AQ_NCCL_BATCHES], to);
}

static enum aq_status nccl_take(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body)
{
    struct over_nccl *over = (struct over_nccl *)group;
    struct peer *peer = &over->peers[from];
    AQ_ASSERT(peer->taken < peer->expected);
    const struct coming *next = &peer->coming[peer->taken++ % AQ_GROUP_COMING];
    AQ_TRY(await_batch(over, next->batch, from));
    *chunk = next->chunk;
    *body = next->body;
    return AQ_OK;
}

static void nccl_give(struct aq_group *group, uint32_t from, const void *body)
{
    struct peer *peer = &((struct over_nccl *)group)->peers[from];
    AQ_ASSERT(body == peer->coming[peer->given % AQ_GROUP_COMING].body);
    peer->given++;
}

/* NCCL's messages name nothing, so the ranks ask each other before the first. */
static enum aq_status nccl_meet(struct aq_group *group, const struct aq_chunk *head)
{
    struct aq_chunk all[AQ_GROUP_SIZE_MAX];
    enum aq_status status = aq_all_gather(group->host, head, sizeof *head, all);
    for (uint32_t rank = 0; rank < group->size && status == AQ_OK; rank++)
        if (all[rank].number != head->number || all[rank].collective != head->collective ||
            all[rank].argument != head->argument)
            status = aq_group_elsewhere(group, rank, &all[rank], head);
    return status;
}

/* ---- life ---- */

static void nccl_close(struct aq_group *group)
{
    struct over_nccl *over = (struct over_nccl *)group;
    if (group->broken != AQ_OK) nccl_abandon(group);
    aq_nccl_channel_close(&over->channel);
    if (over->packed) (void)cudaEventDestroy(over->packed);
    if (over->memory) aq_device_free(group->device, AQ_MEMORY_DEVICE, over->memory, over->memory_bytes);
    aq_group_deinit(group);
    aq_group_close(group->host);
    aq_free(over);
}

static const struct aq_group_ops NCCL_OPS = {.name = "nccl",
                                             .post = nccl_post,
                                             .settle = nccl_settle,
                                             .take = nccl_take,
                                             .give = nccl_give,
                                             .close = nccl_close,
                                             .meet = nccl_meet,
                                             .expect = nccl_expect,
                                             .flush = nccl_flush,
                                             .abandon = nccl_abandon};

/* Rank 0's id, or why it has none: the same answer on all. */
static enum aq_status share_id(const struct over_nccl *over, struct aq_nccl_id *id)
{
    struct {
        uint32_t status, reserved;
        struct aq_nccl_id id;
    } told;
    memset(&told, 0, sizeof told);
    if (over->group.rank == 0) {
        told.status = (uint32_t)aq_nccl_id(&told.id);
        if (over->group.size == 1) AQ_TRY((enum aq_status)told.status);
    }
    AQ_TRY(aq_broadcast(over->group.host, 0, &told, sizeof told));
    *id = told.id;
    if (told.status == AQ_OK) return AQ_OK;
    if (over->group.rank == 0) return (enum aq_status)told.status; /* has said so */
    return aq_fail(AQ_NCCLERR, AREA, "rank 0 of the group could not start NCCL (%s)",
                   aq_status_text((enum aq_status)told.status));
}

static enum aq_status open_channel(struct over_nccl *over)
{
    const struct aq_group *group = &over->group;
    struct aq_nccl_id id;
    char who[64];
    snprintf(who, sizeof who, "rank %u of %u", group->rank, group->size);
    const struct aq_nccl_channel_config config = {
        .id = &id, .rank = group->rank, .size = group->size, .silence_ns = group->silence_ns, .who = who};
    AQ_TRY(aq_nccl_cuda(cudaEventCreateWithFlags(&over->packed, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
    AQ_TRY(share_id(over, &id));
    AQ_TRY(aq_nccl_channel_open(&over->channel, &config));
    return await_call(over, "opening a communicator");
}

static enum aq_status open_peers(struct over_nccl *over)
{
    struct aq_group *group = &over->group;
    void *memory;
    if (group->size == 1) return AQ_OK;
    const size_t bytes = (size_t)AQ_GROUP_COMING * group->piece_bytes;
    over->memory_bytes = (group->size - 1) * bytes;
    AQ_TRY(aq_device_alloc(group->device, AQ_MEMORY_DEVICE, over->memory_bytes, &memory));
    over->memory = memory;
    for (uint32_t rank = 0; rank < group->size; rank++)
        over->peers[rank].memory = over->memory + (rank - (rank > group->rank)) * bytes; /* none of its own */
    return AQ_OK;
}

enum aq_status aq_group_open_nccl(struct aq_group *links, struct aq_group **out)
{
    const struct aq_group_config config = {.rank = links->rank,
                                           .size = links->size,
                                           .device = links->device,
                                           .stream = links->stream,
                                           .silence_ns = links->silence_ns,
                                           .piece_bytes = aq_group_nccl_piece(links->size, links->values)};
    struct aq_nccl_rank all[AQ_GROUP_SIZE_MAX];
    uint32_t ranks[AQ_GROUP_SIZE_MAX];
    enum aq_status status;
    AQ_TRY(facts_of(links, links->device, all));
    status = aq_nccl_refuse(all, links->size, "rank", 0, "reduce over links");
    /* Nobody goes before all have heard why: else the slowest hear of a rank that left instead. */
    if (status != AQ_OK) (void)aq_all_gather(links, &links->rank, sizeof links->rank, ranks);
    AQ_TRY(status);
    struct over_nccl *over;
    AQ_TRY(AQ_NEW(1, &over));
    AQ_TRY_GOTO(aq_group_init(&over->group, &NCCL_OPS, true, &config), out);
    over->group.host = links;
    AQ_TRY_GOTO(open_peers(over), out);
    AQ_TRY_GOTO(open_channel(over), out);
    aq_log(AREA, 2, "rank %u of %u over NCCL %u", over->group.rank, over->group.size, all[0].built);
out:
    if (status != AQ_OK) {
        over->group.broken = status;
        over->group.host = NULL; /* the caller's still */
        nccl_close(&over->group);
    } else {
        *out = &over->group;
    }
    return status;
}

#else

enum aq_status aq_group_open_nccl(struct aq_group *links, struct aq_group **out)
{
    (void)links;
    (void)out;
    return aq_fail(AQ_NODEV, AREA, "built without NCCL: configure with -DAQ_CUDA=ON -DAQ_NCCL=ON (libnccl-dev)");
}

#endif
