/*
 * bench_ranks.h -- W ranks as processes, each behind its own link: used by benches of traffic between machines.
 *
 * With root rights, each rank is in its own network namespace, joined to the others by a bridge, with a token bucket
 * (tc tbf) at both ends of its cable: the kernel shapes both directions. Namespaces have no names and die with their
 * processes: even a killed bench leaves nothing. Otherwise the ranks meet over loopback, and links pace themselves
 * (link.rate_mbps, shared among a rank's links).
 *
 * Call it while this process has no other thread and has opened no GPU: it forks.
 */
#ifndef TOOLS_BENCH_RANKS_H
#define TOOLS_BENCH_RANKS_H

#include "net/collective.h"

enum { AQ_BENCH_RANKS_MAX = 8 };

struct aq_bench_rank { /* what a rank finds when it starts */
    uint32_t rank, size;
    struct aq_eventcount *eventcount;
    struct aq_link *links[AQ_BENCH_RANKS_MAX]; /* of aq_group_link_config(piece_bytes) */
    uint32_t piece_bytes;
};

struct aq_bench_ranks {
    uint32_t size;
    double rate_mbps; /* 0: links are neither shaped nor paced, what is measured goes another way */
    uint32_t piece_bytes;
    /* On every rank, in its process; result is handed to the caller of aq_bench_ranks_run. */
    enum aq_status (*run)(struct aq_bench_rank *rank, void *context, void *result);
    void *context;
    size_t result_bytes; /* at most 4096 */
};

/* results: size * result_bytes. *shaped: by the kernel. If a rank fails, its line has been printed, and its status is
 * returned. */
enum aq_status aq_bench_ranks_run(const struct aq_bench_ranks *ranks, void *results, bool *shaped);

#endif
