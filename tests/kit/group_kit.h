/*
 * group_kit.h -- W ranks in one process, each a thread with its own net, joined by a full mesh of links: what the tests
 * of collectives begin with.
 *
 * The ranks run kit.run(rank) and leave its status in the kit: cmocka's assertions belong to the main thread alone. A
 * rank that fails aborts its links, as a worker does; one that succeeds finishes them.
 */
#ifndef TESTS_GROUP_KIT_H
#define TESTS_GROUP_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "collective_cases.h"
#include "relay_kit.h"

enum { KIT_RANKS_MAX = CASE_RANKS_MAX, KIT_PIECE_BYTES = CASE_PIECE_BYTES, KIT_ADDRESS_BYTES = 256 };
#define KIT_SECONDS(s) aq_clock_after((uint64_t)((s)*1e9))

struct kit;

struct kit_rank {
    struct kit *kit;
    uint32_t rank;
    struct aq_eventcount *eventcount;
    struct aq_net *net;
    struct aq_listener *listener;
    struct aq_link *links[KIT_RANKS_MAX];
    struct aq_group *group;
    struct aq_device *device;
    struct aq_tls *tls;
    char address[KIT_ADDRESS_BYTES]; /* where others connect to */
    enum aq_status opened, status;   /* of the links and group; of run */
    struct aq_thread *thread;
};

struct kit {
    uint32_t size;
    const char *scheme, *query;         /* as in conform_transport.c; the query is the connectors' */
    struct aq_tls *const *tls;          /* by rank; NULL: none */
    double silence_s;                   /* of the group; 0: 60 */
    uint64_t outage_ns_max;             /* of the links        */
    uint32_t piece_bytes;               /* 0: KIT_PIECE_BYTES  */
    uint64_t values;                    /* aq_group_config     */
    uint32_t threads;                   /* of each rank's pool; 0: no device */
    const char *devices[KIT_RANKS_MAX]; /* by rank: another kind than "cpu", of index `rank`; NULL: see threads */
    bool one_gpu;                       /* index 0 for all */
    bool nccl;                          /* above the links */
    enum aq_status (*run)(struct kit_rank *rank);
    void *context;
    uint16_t relay_port; /* the run's, of the scheme "relay" */
    struct kit_rank ranks[KIT_RANKS_MAX];
};

static inline void kit_link_config(const struct kit_rank *rank, uint32_t peer, struct aq_link_config *config)
{
    const struct kit *kit = rank->kit;
    aq_link_config_default(config);
    config->job_digest = 0x1122334455667788;
    config->rank = rank->rank;
    config->peer_rank = peer;
    config->edge = 7;
    config->outage_ns_max = kit->outage_ns_max;
    aq_group_link_config(kit->piece_bytes ? kit->piece_bytes : KIT_PIECE_BYTES, config);
}

/* Connect to every lower rank, accept every higher one. */
static inline enum aq_status kit_meet(struct kit_rank *rank)
{
    struct kit *kit = rank->kit;
    struct aq_link_config config;
    struct aq_link *link;
    for (uint32_t peer = 0; peer < rank->rank; peer++) {
        kit_link_config(rank, peer, &config);
        AQ_TRY(aq_link_connect(rank->net, kit->ranks[peer].address, &config, KIT_SECONDS(60), &rank->links[peer]));
    }
    for (uint32_t peer = rank->rank + 1; peer < kit->size; peer++) {
        kit_link_config(rank, UINT32_MAX, &config);
        AQ_TRY(aq_link_accept(rank->listener, &config, KIT_SECONDS(60), &link));
        rank->links[aq_link_peer_rank(link)] = link;
    }
    aq_listener_close(rank->listener);
    rank->listener = NULL;
    return AQ_OK;
}

static inline enum aq_status kit_open(struct kit_rank *rank)
{
    struct kit *kit = rank->kit;
    const char *kind = kit->devices[rank->rank];
    const struct aq_device_config device = {.kind = kind ? kind : "cpu",
                                            .index = kind && !kit->one_gpu ? rank->rank : 0,
                                            .threads = kit->threads + (kind != NULL)};
    AQ_TRY(kit_meet(rank));
    if (device.threads > 0) AQ_TRY(aq_device_open(&device, &rank->device));
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = kit->size,
                                           .links = rank->links,
                                           .eventcount = rank->eventcount,
                                           .device = rank->device,
                                           .silence_ns = (uint64_t)((kit->silence_s > 0 ? kit->silence_s : 60) * 1e9),
                                           .piece_bytes = kit->piece_bytes ? kit->piece_bytes : KIT_PIECE_BYTES,
                                           .values = kit->values};
    AQ_TRY(aq_group_open_links(&config, &rank->group));
    return kit->nccl ? aq_group_open_nccl(rank->group, &rank->group) : AQ_OK;
}

static inline void kit_thread(void *context)
{
    struct kit_rank *rank = context;
    rank->opened = kit_open(rank);
    rank->status = rank->opened == AQ_OK ? rank->kit->run(rank) : rank->opened;
    for (uint32_t peer = 0; peer < rank->kit->size && rank->status != AQ_OK; peer++) {
        if (!rank->links[peer]) continue;
        (void)aq_link_abort(rank->links[peer], rank->status, "this rank failed", KIT_SECONDS(2));
        aq_link_halt(rank->links[peer]);
    }
    aq_group_close(rank->group);
    for (uint32_t peer = 0; peer < rank->kit->size && rank->status == AQ_OK; peer++)
        if (rank->links[peer]) rank->status = aq_link_finish(rank->links[peer], KIT_SECONDS(60));
    aq_net_close(rank->net);
    aq_device_close(rank->device);
}

/* "tcp" of "tls+fault+tcp". */
static inline const char *kit_transport(const struct kit *kit)
{
    return strrchr(kit->scheme, '+') ? strrchr(kit->scheme, '+') + 1 : kit->scheme;
}

static inline void kit_listen(struct kit_rank *rank)
{
    static unsigned names; /* a name of its own for each, so that a failed test leaves no trouble to the next */
    const struct kit *kit = rank->kit;
    const char *at = kit_transport(kit), *tls = strstr(kit->scheme, "tls+") ? "tls+" : "";
    const bool relay = strcmp(at, "relay") == 0, named = relay || strcmp(at, "sim") == 0; /* else: address and port */
    char address[KIT_ADDRESS_BYTES], where[80];
    uint16_t port = 0;
    snprintf(where, sizeof where, named ? "kit%u" : "127.0.0.1:0", ++names);
    if (relay) snprintf(where, sizeof where, "127.0.0.1:%u?room=%032x", kit->relay_port, names);
    snprintf(address, sizeof address, "%s%s://%s", tls, at, where);
    assert_int_equal(aq_link_listen(rank->net, address, &rank->listener, &port), AQ_OK);
    if (!named) snprintf(where, sizeof where, "127.0.0.1:%u", port);
    snprintf(rank->address, sizeof rank->address, "%s://%s%s%s", kit->scheme, where,
             !*kit->query ? ""
             : relay      ? "&"
                          : "?",
             kit->query);
}

/* Runs all ranks to their ends; their statuses are left in the kit. */
static inline void kit_run(struct kit *kit)
{
    const bool relay = strcmp(kit_transport(kit), "relay") == 0;
    struct relay_kit meeting;
    aq_error_clear();
    if (relay) relay_kit_open(&meeting, 0, 0, 4 * KIT_RANKS_MAX * KIT_RANKS_MAX);
    kit->relay_port = relay ? meeting.port : 0;
    for (uint32_t i = 0; i < kit->size; i++) {
        struct kit_rank *rank = &kit->ranks[i];
        *rank = (struct kit_rank){.kit = kit, .rank = i, .tls = kit->tls ? kit->tls[i] : NULL};
        assert_int_equal(aq_eventcount_open(&rank->eventcount), AQ_OK);
        const struct aq_net_config config = {
            .eventcount = rank->eventcount, .links_max = KIT_RANKS_MAX + 1, .tls = rank->tls};
        assert_int_equal(aq_net_open(&config, &rank->net), AQ_OK);
        kit_listen(rank);
    }
    for (uint32_t i = 0; i < kit->size; i++)
        assert_int_equal(aq_thread_open("rank", kit_thread, &kit->ranks[i], &kit->ranks[i].thread), AQ_OK);
    for (uint32_t i = 0; i < kit->size; i++)
        aq_thread_close(kit->ranks[i].thread);
    for (uint32_t i = 0; i < kit->size; i++)
        aq_eventcount_close(kit->ranks[i].eventcount);
    if (relay) relay_kit_close(&meeting, NULL);
}

/* The same, and all must have succeeded. */
static inline void kit_run_well(struct kit *kit)
{
    kit_run(kit);
    for (uint32_t i = 0; i < kit->size; i++)
        if (kit->ranks[i].status != AQ_OK)
            fail_msg("rank %u of %u over %s: %s: %s", i, kit->size, kit->scheme, aq_status_text(kit->ranks[i].status),
                     aq_error_text());
}

#define KIT_EXPECT(rank, condition) CASE_EXPECT((rank)->group, condition)

#endif
