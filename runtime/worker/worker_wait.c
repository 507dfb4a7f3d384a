/*
 * worker_wait.c -- what a worker looks after while a step runs or while it waits: its edges, its device, parts, and the
 * checkpoint that is under way.
 */
#include "worker.h"

static const uint64_t DEVICE_NS_MAX = UINT64_C(600) * 1000000000; /* nothing on a device takes so long */

enum aq_status aq_worker_pump(struct aq_worker *worker)
{
    struct aq_edge *const edges[] = {worker->pipeline.in, worker->pipeline.out};
    for (uint32_t i = 0; i < 2; i++) {
        const enum aq_status status = edges[i] ? aq_edge_pump(edges[i]) : AQ_OK;
        if (status == AQ_CLOSED)
            return aq_fail(AQ_CLOSED, "worker", "stage %u ended normally before the run was done",
                           worker->position + (i ? 1 : -1u));
        AQ_TRY(status);
    }
    AQ_TRY(aq_worker_issues_advance(worker));
    AQ_TRY(aq_worker_delay_look(worker));
    struct aq_part_args args = {0};
    if (worker->worker_parts.use_chains) AQ_TRY(aq_worker_parts_on(&worker->worker_parts, AQ_PART_PUMP, &args));
    return aq_worker_snapshot_advance(worker);
}

/* A neighbour that has left in good order is at the end of the run, as this stage is. */
static enum aq_status pump_edges(struct aq_worker *w)
{
    struct aq_edge *const edges[] = {w->pipeline.in, w->pipeline.out};
    for (int i = 0; i < 2; i++) {
        const enum aq_status status = edges[i] ? aq_edge_pump(edges[i]) : AQ_OK;
        if (status != AQ_CLOSED) AQ_TRY(status);
    }
    return AQ_OK;
}

enum aq_status aq_worker_serve(struct aq_worker *w)
{
    AQ_TRY(pump_edges(w));
    AQ_TRY(aq_worker_delay_look(w));
    return aq_worker_snapshot_advance(w);
}

uint64_t aq_worker_busy_since(const struct aq_worker *w)
{
    const struct aq_edge *const edges[] = {w->pipeline.in, w->pipeline.out};
    uint64_t since = w->pipeline.issue_count ? w->pipeline.issues[w->pipeline.issue_first].issued_ns : UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        const uint64_t edge = edges[i] ? aq_edge_busy_since(edges[i]) : 0;
        if (edge && edge < since) since = edge;
    }
    return since == UINT64_MAX ? 0 : since;
}

uint32_t aq_worker_carrying(const struct aq_worker *w)
{
    return (w->pipeline.in ? aq_edge_carrying(w->pipeline.in) : 0) |
           (w->pipeline.out ? aq_edge_carrying(w->pipeline.out) : 0);
}

enum aq_status aq_worker_poll_wait(struct aq_worker *w, uint32_t seen)
{
    const enum aq_status status = aq_eventcount_wait(w->eventcount, seen, aq_clock_after(AQ_EDGE_POLL_NS));
    const uint64_t since = aq_worker_busy_since(w);
    if (since && aq_clock_ns() > since + DEVICE_NS_MAX)
        return aq_fail(AQ_TIMEOUT, "worker", "step %llu: the device has not come back for %llu s",
                       (unsigned long long)w->step, (unsigned long long)(DEVICE_NS_MAX / 1000000000));
    return status == AQ_TIMEOUT ? AQ_OK : status;
}

enum aq_status aq_worker_settle(struct aq_worker *w)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_pump(w));
        if (!aq_worker_busy_since(w) && !aq_worker_carrying(w)) return AQ_OK;
        AQ_TRY(aq_worker_poll_wait(w, seen));
    }
}
