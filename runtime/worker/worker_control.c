/*
 * worker_control.c -- what a worker and its launcher tell each other until the run's end, and what parts are asked with
 * it: the plan of the start message, phases, messages that are waited for.
 */
#include <inttypes.h>
#include <string.h>

#include "heartbeat.h"
#include "worker.h"

enum {
    REDUCE_SECONDS = 3600, /* 4.5 GB of gradients at 10 Mbit/s, or an evaluation             */
    LOCAL_SECONDS = 60     /* of a local step: how much longer the slowest replica may take */
};

#define SERVE_NS (20ull * 1000 * 1000)

enum aq_status aq_worker_plan_open(struct aq_worker *w, const json_t *start)
{
    const char *manifest, *run;
    uint64_t hash, rank;
    AQ_TRY(aq_control_get_text(start, "manifest", &manifest));
    AQ_TRY(aq_control_get_text(start, "run", &run));
    AQ_TRY(aq_control_get_hex(start, "plan_hash", &hash));
    AQ_TRY(aq_control_get_u64(start, "rank", &rank));
    AQ_TRY(aq_alloc_text(run, &w->checkpoints.run_folder));
    AQ_TRY(aq_job_parse(manifest, strlen(manifest), "manifest", run, NULL, 0, &w->job));
    AQ_TRY(aq_plan_open(w->job, &w->plan));
    if (aq_plan_hash(w->plan) != hash)
        return aq_fail(AQ_MISMATCH, "worker",
                       "this machine plans %016" PRIx64 ", the launcher %016" PRIx64
                       ": another version of aqpipe here?",
                       aq_plan_hash(w->plan), hash);
    if (rank >= w->plan->ranks)
        return aq_fail(AQ_PROTO, "worker", "started as rank %" PRIu64 " of %u", rank, w->plan->ranks);
    if (!aq_job_global(w->job) &&
        (aq_control_text_or(start, "sums", NULL) || aq_control_i64_or(start, "shift", 0) != 0))
        return aq_fail(AQ_PROTO, "worker", "received sums in a job without split.mode: global");
    w->rank = (uint32_t)rank;
    w->P = w->plan->stage_count;
    w->W = w->plan->replicas;
    w->position = w->rank % w->P;
    w->replica = w->rank / w->P;
    w->me = &w->plan->stages[w->position];
    const struct aq_job_link *link = &w->job->link;
    /* A neighbour may itself be waiting for the outage of another link. */
    w->links.outages_ns = (w->P - 1) * (link->outage_ns_max + (link->outage_ns_max ? link->silence_ns_max : 0));
    w->links.silence_ns = link->silence_ns_max ? link->silence_ns_max + w->links.outages_ns : UINT64_MAX;
    /* A neighbour may be averaging its gradients meanwhile; the links' own heartbeats show whether it lives. */
    if ((w->W > 1 || aq_job_global(w->job)) && link->silence_ns_max)
        w->links.silence_ns += aq_worker_seconds_ns(REDUCE_SECONDS);
    /* With global sampling for others' clients, too, each of which the server waits for that long. */
    if (aq_job_global(w->job) && link->silence_ns_max)
        w->links.silence_ns += AQ_JOB_TURNS_MAX * w->job->split.wait_ns;
    /* And replicas meet once a round, the slowest as much later as that takes. */
    if (w->W > 1 && aq_optimizer_config_local(&w->job->train.optimizer) && link->silence_ns_max)
        w->links.silence_ns += aq_worker_seconds_ns(LOCAL_SECONDS) * w->job->train.optimizer.outer_every;
    return AQ_OK;
}

enum aq_status aq_worker_set_phase(const struct aq_worker *w, enum aq_phase phase)
{
    aq_heartbeat_phase(phase);
    aq_log("worker", 2, "%s", aq_phase_text(phase));
    return aq_control_send(w->control, json_pack("{s:s, s:i}", "event", "doing", "doing", (int)phase));
}

enum aq_status aq_worker_await(struct aq_worker *w, const char *op, uint64_t deadline, json_t **out)
{
    for (;;) {
        /* A neighbour may need a copy of its checkpoint before it is ready, and another replica its file. */
        const bool serves = w->worker_parts.serve || w->replicas.rounds.gives;
        const uint64_t soon = serves ? aq_clock_after(SERVE_NS) : deadline;
        const enum aq_status status = aq_control_receive(w->control, soon < deadline ? soon : deadline, out);
        if (status == AQ_TIMEOUT && soon < deadline) {
            if (w->worker_parts.serve) AQ_TRY(aq_worker_serve(w));
            AQ_TRY(aq_worker_gives_look(w));
            continue;
        }
        if (status == AQ_TIMEOUT) return aq_fail(AQ_TIMEOUT, "worker", "the launcher did not send '%s' in time", op);
        if (status == AQ_CLOSED) return aq_fail(AQ_CLOSED, "worker", "the launcher has ended");
        AQ_TRY(status);
        if (aq_control_is(*out, "op", op)) return AQ_OK;
        if (aq_control_is(*out, "op", "stop") && w->rank == 0) w->steps.stop_asked = true;
        const bool address = aq_control_is(*out, "op", "connect") && w->replicas.rounds.addresses;
        enum aq_status taken = address ? aq_worker_rounds_address(w, *out) : AQ_OK;
        if (aq_control_is(*out, "op", "give")) taken = aq_worker_give(w, *out);
        json_decref(*out);
        AQ_TRY(taken);
    }
}

enum aq_status aq_worker_control_take(struct aq_worker *w, uint64_t deadline_ns)
{
    json_t *message;
    const enum aq_status status = aq_control_receive(w->control, deadline_ns, &message);
    if (status == AQ_AGAIN || status == AQ_TIMEOUT) return AQ_AGAIN;
    if (status == AQ_CLOSED) return aq_fail(AQ_CLOSED, "worker", "the launcher has ended");
    AQ_TRY(status);
    if (aq_control_is(message, "op", "stop") && w->rank == 0) w->steps.stop_asked = true;
    if (aq_control_is(message, "op", "marked") && w->checkpoints.state == AQ_CHECKPOINT_ACKED &&
        aq_control_u64_or(message, "step", 0) == w->checkpoints.step)
        w->checkpoints.state = AQ_MARK_NONE;
    struct aq_part_args args = {.message = message};
    enum aq_status taken = aq_worker_parts_on(&w->worker_parts, AQ_PART_MESSAGE, &args);
    const bool round = aq_control_is(message, "op", "members") || aq_control_is(message, "op", "break") ||
                       aq_control_is(message, "op", "averaged");
    if (taken == AQ_OK && round) taken = aq_worker_rounds_told(w, message);
    if (taken == AQ_OK && aq_control_is(message, "op", "connect")) taken = aq_worker_rounds_address(w, message);
    if (taken == AQ_OK && aq_control_is(message, "op", "give")) taken = aq_worker_give(w, message);
    json_decref(message);
    return taken;
}

enum aq_status aq_worker_control_poll(struct aq_worker *w)
{
    for (;;) {
        const enum aq_status status = aq_worker_control_take(w, 0);
        if (status == AQ_AGAIN) return aq_worker_gives_look(w);
        AQ_TRY(status);
    }
}

/* --- parts ------------------------------------------------------------------------------------------------------ */

enum aq_status aq_worker_parts_await(struct aq_worker *w, enum aq_part_moment moment, struct aq_part_args *args)
{
    const uint64_t end = aq_clock_after(aq_worker_seconds_ns(REDUCE_SECONDS) + w->links.outages_ns);
    enum aq_status status;
    while ((status = aq_worker_parts_on(&w->worker_parts, moment, args)) == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        status = aq_worker_parts_on(&w->worker_parts, moment, args);
        if (status != AQ_AGAIN) break;
        if (aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": the launcher did not send %s in time", w->step,
                           args->awaits);
        (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(SERVE_NS / 10));
    }
    return status;
}

static bool is_busy(const void *worker)
{
    return aq_worker_busy_since(worker) > 0;
}

static enum aq_status pump(void *worker)
{
    return aq_worker_pump(worker);
}

enum aq_status aq_worker_parts_join(struct aq_worker *w)
{
    w->worker_parts.worker = (struct aq_part_worker){.device = w->device,
                                                     .stage = w->stage,
                                                     .sampler = w->data.sampler,
                                                     .compute = w->stream,
                                                     .send = w->pipeline.send_stream,
                                                     .receive = w->pipeline.receive_stream,
                                                     .in = w->pipeline.in,
                                                     .out = w->pipeline.out,
                                                     .events = w->eventcount,
                                                     .trace = w->trace,
                                                     .silence_ns = w->links.silence_ns,
                                                     .spare_x = &w->pipeline.dx[0],
                                                     .spare_y = &w->pipeline.dy[0],
                                                     .checkpoints = w->checkpoints.folder,
                                                     .hash = w->checkpoints.hash,
                                                     .self = w,
                                                     .pump = pump,
                                                     .is_busy = is_busy,
                                                     .sample = aq_worker_sample,
                                                     .compute_alone = aq_worker_compute};
    struct aq_part_args args = {.step = w->step, .worker = &w->worker_parts.worker};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_JOINED, &args));
    w->steps.input_unused = args.input_unused;
    return AQ_OK;
}
