/*
 * bench_ranks.h -- W ranks as processes, each behind a link of its own, for benches of what goes between machines.
 *
 * Where root permits it, each rank lives in a network namespace of its own, joined to the others by a bridge, with a
 * token bucket (tc tbf) at both ends of its cable: the kernel shapes what it sends and what it receives. Namespaces
 * have no names and die with their processes: nothing is left behind, even by a bench that was killed. Elsewhere the
 * ranks meet over loopback, and links pace themselves (link.rate_mbps, shared among a rank's links).
 *
 * Call it while this process has no other thread and has opened no GPU: it forks.
 */
#ifndef RUNTIME_BENCH_RANKS_H
#define RUNTIME_BENCH_RANKS_H

#include "net/collective.h"

enum { AQ_BENCH_RANKS_MAX = 8 };

struct aq_bench_rank { /* what a rank finds when it starts */
    uint32_t rank, size;
    struct aq_bell *bell;
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

/* results: size * result_bytes. *shaped: by the kernel. Where a rank fails its line has been printed: its status. */
enum aq_status aq_bench_ranks_run(const struct aq_bench_ranks *ranks, void *results, bool *shaped);

#endif
