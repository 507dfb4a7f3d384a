/*
 * worker_snapshot.c -- checkpoints during training: a snapshot between two steps, written meanwhile, one at a time.
 *
 * A checkpoint is one point in time: between two steps, when every message of the step before has been put and none of
 * the next, the weights are copied and the cache's mark is begun. Both become durable while training continues; only
 * then does the stage report it, and only after the reports of all stages is the checkpoint complete. The cache keeps
 * what its two newest marks refer to, so the next mark is not begun before the job has this one.
 *
 * While a stage waits for a checkpoint it pumps its edges: a neighbour may need a message before it can come to the
 * same point.
 *
 * reduce.patience: the first member's rank writes the file of a missing one, and tells the launcher its length and
 * hash. The missing one's process gets them with `enter`, or, when all start from that checkpoint, with `start`. If
 * there is no such file on its disk (its host has a folder of its own), it listens for the writer, and asks for the
 * file:
 *
 *     writer    stood-in -> launcher                          launcher -> give    connects, and sends (transfer.h)
 *     missing               launcher -> enter     fetch -> launcher               accepts, compares, reads
 */
#include <inttypes.h>
#include <string.h>

#include "heartbeat.h"
#include "owned_folder.h"
#include "transfer.h"
#include "worker.h"

#define LOOK_NS (20ull * 1000 * 1000) /* edges and control channel have no common event count */

enum aq_status aq_worker_snapshot_open(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    /* A job that keeps checkpoints only at its end has nothing to do while they are written: it needs no copy. */
    const struct aq_job_every *every = &w->job->checkpoint.every;
    return aq_checkpoint_writer_open(&checkpoint, every->count > 0 || every->ns > 0, w->eventcount,
                                     &w->checkpoints.writer);
}

enum aq_status aq_worker_stop_heard(struct aq_worker *w)
{
    if (w->rank != 0 || w->last) return AQ_OK;
    AQ_TRY(aq_worker_control_poll(w));
    if (!w->steps.stop_asked) {
        aq_worker_mark_choose(w);
        return AQ_OK;
    }
    w->last = aq_worker_last_of(w, w->step);
    return aq_control_send(w->control, json_pack("{s:s, s:I}", "event", "stopping", "step", (json_int_t)w->last));
}

static enum aq_status mark_late(const struct aq_worker *w)
{
    static const char *const reasons[] = {[AQ_MARK_WRITING] = "this stage's disk takes too long",
                                          [AQ_CHECKPOINT_ACKED] = "another stage's part is missing"};
    return aq_fail(AQ_TIMEOUT, "worker", "the checkpoint of step %llu does not become complete: %s",
                   (unsigned long long)w->checkpoints.step,
                   w->checkpoints.state == AQ_MARK_AWAITED ? w->checkpoints.awaits : reasons[w->checkpoints.state]);
}

static enum aq_status mark_wait(struct aq_worker *w)
{
    const uint64_t end = aq_clock_after(aq_plan_checkpoint_ns_max(w->plan));
    while (w->checkpoints.state != AQ_MARK_NONE) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        if (w->checkpoints.state == AQ_CHECKPOINT_ACKED && !w->worker_parts.serve) {
            const enum aq_status status = aq_worker_control_take(w, aq_clock_after(LOOK_NS));
            if (status != AQ_AGAIN) AQ_TRY(status);
        } else { /* the disk, or a neighbour's copy, notifies the event count */
            AQ_TRY(aq_worker_control_poll(w));
            if (w->checkpoints.state == AQ_MARK_NONE) break;
            (void)aq_eventcount_wait(
                w->eventcount, seen,
                aq_clock_after(w->checkpoints.state == AQ_CHECKPOINT_ACKED ? LOOK_NS / 10 : LOOK_NS));
        }
        if (w->checkpoints.state != AQ_MARK_NONE && aq_clock_ns() > end) return mark_late(w);
    }
    return AQ_OK;
}

enum aq_status aq_worker_snapshot_wait(struct aq_worker *w)
{
    w->checkpoints.waiting = true;
    aq_heartbeat_phase(AQ_PHASE_MARK);
    const enum aq_status status = mark_wait(w);
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w->checkpoints.waiting = false;
    return status;
}

/* As often as a part needs until it has brought the file, while the neighbours are served. */
static enum aq_status restore_await(struct aq_worker *w, struct aq_part_args *args)
{
    enum aq_status status = aq_worker_parts_on(&w->worker_parts, AQ_PART_RESTORE, args);
    while (status == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        const enum aq_status served = aq_worker_serve(w);
        status = aq_worker_parts_on(&w->worker_parts, AQ_PART_RESTORE, args); /* of a damaged copy, too: unreadable */
        AQ_TRY(served);
        if (status == AQ_AGAIN) (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(LOOK_NS));
    }
    return status;
}

enum aq_status aq_worker_snapshot_restore(struct aq_worker *w)
{
    struct aq_part_args args = {.step = w->step};
    w->checkpoints.waiting = w->worker_parts.serve; /* until the first step */
    if (!w->checkpoints.lost) return AQ_OK;
    const uint64_t begin = aq_clock_ns();
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    enum aq_status status = restore_await(w, &args);
    if (args.unreadable) w->checkpoints.unreadable = w->step;
    AQ_TRY(status);
    status = aq_checkpoint_read(&checkpoint, w->step);
    if (status != AQ_OK && status != AQ_NOMEM && status != AQ_MISMATCH) w->checkpoints.unreadable = w->step;
    w->checkpoints.read_ns += aq_clock_ns() - begin;
    return status;
}

enum aq_status aq_worker_snapshot_begin(struct aq_worker *w)
{
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(aq_worker_control_poll(w)); /* the word that the last one is complete may be there */
    if (w->checkpoints.state != AQ_MARK_NONE) {
        aq_log("worker", 2, "step %llu: the checkpoint of step %llu is still being written: waits",
               (unsigned long long)w->step, (unsigned long long)w->checkpoints.step);
        AQ_TRY(aq_worker_snapshot_wait(w));
        w->checkpoints.wait_ns += aq_clock_ns() - begin;
    }
    /* A disk that has gone since must not get a checkpoint where it was mounted. */
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    if (w->pipeline.cache) AQ_TRY(aq_cache_mark_begin(w->pipeline.cache, w->step));
    struct aq_part_args args = {0};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_SNAPSHOT, &args));
    AQ_TRY(aq_checkpoint_writer_begin(w->checkpoints.writer, w->step));
    w->checkpoints.step = w->step;
    w->replicas.rounds.marked = w->replicas.rounds.digest;
    if (w->checkpoints.chosen <= w->step) w->checkpoints.chosen = 0;
    w->checkpoints.begin_ns = begin;
    w->checkpoints.state = AQ_MARK_WRITING;
    w->checkpoints.held_ns += aq_clock_ns() - begin;
    aq_trace_add(w->trace, "compute", "checkpoint", begin, aq_clock_ns(), (uint32_t)w->step, 0);
    return AQ_OK;
}

/* ---- files that are written for others ---- */

enum aq_status aq_worker_stood_in(struct aq_worker *w, uint32_t rank)
{
    struct aq_transfer_file file = {.folder = w->checkpoints.folder, .step = w->step, .rank = rank};
    AQ_TRY(aq_transfer_look(&file));
    return aq_control_send(w->control,
                           json_pack("{s:s, s:I, s:I, s:I, s:s}", "event", "stood-in", "step", (json_int_t)w->step,
                                     "to", (json_int_t)rank, "bytes", (json_int_t)file.bytes, "sha256", file.hash));
}

/* Is that a rank of the same stage in another replica? */
static bool is_like(const struct aq_worker *w, uint32_t rank)
{
    return rank < w->P * w->W && rank % w->P == w->position && rank / w->P != w->replica;
}

enum aq_status aq_worker_gives_open(struct aq_worker *w)
{
    return w->W > 1 && w->job->reduce.patience_ns ? AQ_NEW(w->W, &w->replicas.rounds.gives) : AQ_OK;
}

enum aq_status aq_worker_give(struct aq_worker *w, const json_t *message)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    struct aq_transfer_give_config config = {.connect_ns_max = w->job->link.connect_ns_max};
    struct aq_text address = {0};
    const char *listens;
    uint32_t to;
    AQ_TRY(aq_control_get_u32(message, "to", &to));
    AQ_TRY(aq_control_get_text(message, "address", &listens));
    AQ_TRY(aq_control_get_u64(message, "step", &config.file.step));
    AQ_TRY(aq_control_get_u64(message, "bytes", &config.file.bytes));
    if (!rounds->gives || !is_like(w, to) || config.file.bytes == 0)
        return aq_fail(AQ_PROTO, "worker", "rank %u is asked to send a checkpoint's file to rank %u", w->rank, to);
    AQ_TRY(aq_worker_net_open(w)); /* before its links are made: who it is */
    config.tls = w->links.tls;
    config.file.folder = w->checkpoints.folder;
    config.file.rank = to;
    config.link = aq_worker_transfer_link(w, to / w->P);
    aq_worker_address(w, listens, to, &address);
    config.address = aq_text_of(&address);
    aq_transfer_give_close(rounds->gives[to / w->P]); /* to a process that has ended since */
    rounds->gives[to / w->P] = NULL;
    const enum aq_status status = aq_transfer_give_open(&config, &rounds->gives[to / w->P]);
    aq_text_deinit(&address);
    return status;
}

enum aq_status aq_worker_gives_look(struct aq_worker *w)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    for (uint32_t v = 0; rounds->gives && v < w->W; v++) {
        struct aq_transfer_give *give = rounds->gives[v];
        struct aq_transfer_file file;
        const char *text;
        const enum aq_status status = give ? aq_transfer_give_done(give, &text) : AQ_AGAIN;
        if (status == AQ_AGAIN) continue;
        if (status != AQ_OK) {
            file = aq_transfer_give_file(give);
            aq_log("worker", AQ_LOG_WARNING, "the file of rank %u of step %" PRIu64 " does not reach it: %s", file.rank,
                   file.step, text);
            AQ_TRY(aq_control_send(w->control,
                                   json_pack("{s:s, s:I, s:I, s:s}", "event", "ungiven", "step", (json_int_t)file.step,
                                             "to", (json_int_t)file.rank, "text", text)));
        }
        aq_transfer_give_close(give);
        rounds->gives[v] = NULL;
    }
    return AQ_OK;
}

void aq_worker_gives_close(struct aq_worker *w)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    for (uint32_t v = 0; rounds->gives && v < w->W; v++)
        aq_transfer_give_close(rounds->gives[v]);
    aq_free((void *)rounds->gives);
    rounds->gives = NULL;
}

static enum aq_status fetch_from(struct aq_worker *w, uint32_t giver, const struct aq_transfer_file *file)
{
    const struct aq_link_config config = aq_worker_transfer_link(w, giver / w->P);
    struct aq_listener *listener = NULL;
    struct aq_link *link = NULL;
    AQ_TRY(aq_worker_net_open(w));
    AQ_TRY(aq_worker_listen(w, giver, &listener));
    enum aq_status status = aq_control_send(w->control, json_pack("{s:s, s:I, s:s}", "event", "fetch", "step",
                                                                  (json_int_t)file->step, "address", w->links.told));
    /* The launcher ends who waits for too long. */
    if (status == AQ_OK) status = aq_link_accept(listener, &config, AQ_NEVER, &link);
    if (status == AQ_OK) status = aq_listener_rest(listener); /* the link may heal */
    if (status == AQ_OK) status = aq_transfer_receive(link, w->eventcount, file);
    aq_link_close(link);
    aq_listener_close(listener);
    return status;
}

enum aq_status aq_worker_fetch(struct aq_worker *w, const json_t *message, uint64_t step)
{
    struct aq_transfer_file file = {.folder = w->checkpoints.folder, .step = step, .rank = w->rank};
    const uint64_t most = aq_plan_file_bytes_max(w->plan, w->position);
    const char *hash;
    uint32_t giver;
    if (!json_object_get(message, "from")) return AQ_OK; /* nobody else wrote it: it is here, or reading it fails */
    AQ_TRY(aq_control_get_u32(message, "from", &giver));
    AQ_TRY(aq_control_get_u64(message, "bytes", &file.bytes));
    AQ_TRY(aq_control_get_text(message, "sha256", &hash));
    if (!aq_hash_is(hash) || !is_like(w, giver) || file.bytes == 0 || file.bytes > most)
        return aq_fail(AQ_PROTO, "worker",
                       "rank %u is said to have written %" PRIu64 " bytes as this rank's file of step %" PRIu64
                       "; by the plan it has at most %" PRIu64,
                       giver, file.bytes, step, most);
    memcpy(file.hash, hash, sizeof file.hash);
    if (aq_transfer_is_here(&file)) {
        aq_log("worker", 1, "its file of step %" PRIu64 " is here", step);
        return AQ_OK;
    }
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    return fetch_from(w, giver, &file);
}
