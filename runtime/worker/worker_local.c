/*
 * worker_local.c -- reduce.every: the replicas of a stage train some steps each on its own, then meet; and which
 * version of the weights is looked at.
 *
 * Between two meetings nothing goes from one replica to another: no gradient, no norm, no word whether a step is void
 * or the last one. A replica clips by its own norm, leaves out its own void steps and moves its own loss scale. They
 * agree at the end of a round: on the weights from which all continue (the optimizer's outer step, in STEP), and on
 * whether the run ends there. So a stop takes effect only at a round's end, and a run ends with weights that all share.
 *
 * Held-out loss and checkpoints in the middle of a round use the outer weights: those of the last outer step, which all
 * replicas share. A checkpoint keeps a replica's own weights, too (AQ_OUTER_STATE). With train.prediction they use the
 * weights, and a checkpoint keeps the predicted ones, too (AQ_PREDICT_STATE).
 *
 * reduce.patience: a replica that is lost in the middle of a round harms no other one before its end. There each rank
 * reports that it has come (`round`) and waits. The launcher answers all with one set of members (launcher_rounds.c),
 * so that all stages average over the same replicas. If the members change, the group is made again: links to those who
 * are missing are closed, links to those who have returned are made, in the order of replicas as at the start. Its mean
 * is over those who are in it.
 *
 * A member may be lost while they average. So each keeps its own movement, and what its codec still has to send, and
 * takes the outer step only when the launcher has heard from all ranks that they have the mean (`averaged`). Else, when
 * all have ended the attempt, it names those that are left, and they average again. Links between them stay: before a
 * rank reports the end of an attempt, nothing of it is lent to a link any more, and what still comes of it is told
 * apart by its number and dropped.
 *
 * With reduce.every: 1 each step is such a round, and all this is in REDUCE (worker_reduce.c, patient): gradients are
 * averaged, the votes whether the step is void travel with each attempt, and the update follows as ever.
 *
 * After a round without some replica a checkpoint may follow. The weights are the same on all replicas then, so the
 * first member's ranks can write the files of the missing ones: all that differs there are the inner optimizer's
 * moments and the statistics of batch norms, which are this replica's, and the errors of a codec and of a tied head,
 * which are zero: they have gone with the process.
 *
 * A replica that returns is a new process per stage. It opens what needs no weights, and waits (`enter`) for a round's
 * checkpoint, from which it starts as after a restart, with this difference: it has no links to other replicas before
 * the end of its first round. It keeps its listener until then. If its file of that checkpoint is not on its disk, it
 * comes from the rank that wrote it (worker_snapshot.c). When all start from such a checkpoint, each fetches its file
 * before it waits, and `enter` comes when all have theirs.
 *
 * reduce.delay: the average begins at a round's end, on a thread of its own (net/group_background.h), and travels
 * during the first steps of the next round (aqsgd/grad/optimizer/optimizer_outer.c has the formula). An evaluation or a
 * checkpoint needs the outer weights, and waits for it first. So no average is under way in a checkpoint, and a run
 * that resumes there has the same bits. The votes for the last step and for a checkpoint travel with an average, and
 * are heard with its result: they take effect at the end of the round after.
 *
 * With reduce.patience, too, members meet at the round's end, and the launcher's votes count there. `members` has
 * `travels`, or all wait for the mean there: the state of a checkpoint by which a replica returns, or the end of a run,
 * is that of the round's end. An attempt is a task of the thread. exec begins it, and ends it, where it looks after its
 * edges (aq_worker_delay_look), so between any two instructions of a step, and where it waits. Before a further attempt
 * the movement and the codec's errors are put back, which no step reads or writes. The result is used at the same step
 * as ever, when all members have it. So neither the time nor the number of attempts changes a bit. Whether a rank waits
 * or trains meanwhile is its own affair: it waits before a look at the outer weights, and while a codec is chosen.
 *
 * reduce.steps: speed: the launcher names, with `go` and a round's `averaged`, how many steps of the next round this
 * replica trains (launcher_steps.c has the rule). They are the last ones of the round: the next step's number is larger
 * by the others, and nothing happens in between. All ranks of a replica are told the same, so frames between its stages
 * have the same step at both ends. In return the launcher learns with `round` how long a step takes: the median of
 * those since the last round's end, without averages, evaluations and checkpoints.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "heartbeat.h"
#include "net/collective.h"
#include "net/group_background.h"
#include "owned_folder.h"
#include "worker.h"

enum { SAYS_LAST_STEP = 1, SAYS_MARK_STEP = 4 };

#define SOON_NS      (5ull * 1000 * 1000)
#define SOON_LOOK_NS (200ull * 1000)
#define MEET_NS_MAX  (3600ull * 1000 * 1000 * 1000) /* beyond the patience; the launcher looks who does not come */

bool aq_worker_is_local(const struct aq_worker *worker)
{
    return worker->W > 1 && aq_optimizer_config_local(&worker->job->train.optimizer);
}

/* Do all replicas have the same weights after `steps` steps? */
static bool meet_after(const struct aq_worker *worker, uint64_t steps)
{
    return steps == worker->plan->steps || !aq_optimizer_config_drifts(&worker->job->train.optimizer, steps);
}

static bool is_patient(const struct aq_worker *worker)
{
    return worker->job->reduce.patience_ns > 0;
}

bool aq_worker_is_delayed(const struct aq_worker *worker)
{
    return aq_worker_is_local(worker) && worker->job->train.optimizer.outer_delay > 0;
}

/* With reduce.patience the launcher names the last step and checkpoints at a round's end. */
bool aq_worker_votes_travel(const struct aq_worker *worker)
{
    return aq_worker_is_delayed(worker) && !is_patient(worker);
}

/* With reduce.delay their own weights do from the first step on, up to the run's end. */
bool aq_worker_is_apart(const struct aq_worker *worker)
{
    return aq_worker_is_delayed(worker) || (aq_worker_is_local(worker) && !meet_after(worker, worker->step));
}

bool aq_worker_hears(const struct aq_worker *worker, uint64_t step)
{
    return !aq_worker_is_local(worker) || meet_after(worker, aq_worker_last_of(worker, step));
}

static bool is_member(const struct aq_worker *w, uint32_t replica)
{
    return w->replicas.rounds.members >> replica & 1;
}

static enum aq_status out_of_order(const struct aq_worker *w, const char *op, uint64_t step)
{
    return aq_fail(AQ_PROTO, "worker",
                   "step %" PRIu64 ": the launcher's '%s' of the round that ends with step %" PRIu64 " is out of order",
                   w->step + 1, op, step);
}

static enum aq_status members_told(struct aq_worker *w, const json_t *message, uint64_t step, uint64_t attempt)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    uint64_t members, returned = 0;
    AQ_TRY(aq_control_get_hex(message, "members", &members));
    if (json_object_get(message, "returned")) AQ_TRY(aq_control_get_hex(message, "returned", &returned));
    const bool travels = aq_control_bool_or(message, "travels", false);
    const bool again = step == rounds->step && rounds->over != step && rounds->ended == rounds->attempt;
    const bool open = step != rounds->step && rounds->over != rounds->step; /* the round before */
    if (attempt != (again ? rounds->attempt + 1ull : 1) || (step == rounds->step && !again) || open)
        return out_of_order(w, "members", step);
    const bool beyond = (w->W < 64 && members >> w->W != 0) || (returned & ~members) != 0;
    if (travels && (!aq_worker_is_delayed(w) || returned != 0))
        return aq_fail(AQ_PROTO, "worker", "step %" PRIu64 ": the launcher has an average travel that cannot", step);
    if (beyond || !(members >> w->replica & 1) || (returned >> w->replica & 1) != rounds->returns)
        return aq_fail(AQ_PROTO, "worker",
                       "step %" PRIu64 ": the launcher names %" PRIx64 " as members, %" PRIx64
                       " of which have returned",
                       step, members, returned);
    rounds->step = step;
    rounds->attempt = (uint32_t)attempt;
    rounds->ended = 0;
    rounds->broken = false;
    rounds->travels = travels;
    rounds->members = members;
    rounds->returned = returned;
    return AQ_OK;
}

static uint64_t all_replicas(const struct aq_worker *w)
{
    return w->W < 64 ? (1ull << w->W) - 1 : UINT64_MAX;
}

/* At which marks missing replicas open their caches. */
static enum aq_status caches_told(struct aq_worker *w, const json_t *message)
{
    const json_t *told = json_object_get(message, "caches");
    for (uint32_t v = 0; v < w->W; v++) {
        char key[12];
        snprintf(key, sizeof key, "%u", v);
        const json_t *mark = json_object_get(told, key);
        w->replicas.rounds.caches[v] = 0;
        if (!mark) continue;
        if (!json_is_integer(mark) || json_integer_value(mark) < 0 ||
            (uint64_t)json_integer_value(mark) >= w->replicas.rounds.step)
            return aq_fail(AQ_PROTO, "worker",
                           "step %" PRIu64 ": the launcher names no step for the caches of replica %u",
                           w->replicas.rounds.step, v);
        w->replicas.rounds.caches[v] = (uint64_t)json_integer_value(mark);
    }
    return AQ_OK;
}

/* All have the mean. */
static enum aq_status over_told(struct aq_worker *w, const json_t *message)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const uint64_t all = all_replicas(w), step = rounds->step;
    const bool mark = aq_control_bool_or(message, "mark", false), last = aq_control_bool_or(message, "last", false);
    if ((mark || last) && step != w->step + 1) return out_of_order(w, "averaged", step); /* it trains already */
    rounds->over = step;
    rounds->returns = false;
    w->replicas.choice.due = false;
    aq_worker_rounds_close(w);
    if (rounds->members != all) rounds->without = step;
    AQ_TRY(caches_told(w, message));
    if (rounds->attempt > 1 || rounds->members != all)
        aq_error_clear(); /* dealt with: a later failure is another one */
    if (mark) rounds->mark = step;
    if (last) w->last = step;
    return aq_worker_speed_told(w, message, step);
}

enum aq_status aq_worker_rounds_told(struct aq_worker *w, const json_t *message)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const bool members = aq_control_is(message, "op", "members"), breaks = aq_control_is(message, "op", "break");
    uint64_t step, attempt;
    AQ_TRY(aq_control_get_u64(message, "step", &step));
    if (!is_patient(w) || (step != w->step + 1 && step != rounds->step)) /* an average may travel */
        return out_of_order(w, aq_control_text_or(message, "op", "?"), step);
    if (members || breaks) AQ_TRY(aq_control_get_u64(message, "attempt", &attempt));
    if (members) return members_told(w, message, step, attempt);
    if (step != rounds->step || rounds->over == step) return out_of_order(w, breaks ? "break" : "averaged", step);
    if (breaks) {
        if (attempt != rounds->attempt) return out_of_order(w, "break", step);
        rounds->broken = true;
        return aq_control_get_hex(message, "lost", &rounds->lost);
    }
    if (rounds->ended != rounds->attempt) return out_of_order(w, "averaged", step);
    return over_told(w, message);
}

static bool are_named(const struct aq_worker *w, uint32_t attempt)
{
    return w->replicas.rounds.step == w->step + 1 && w->replicas.rounds.attempt > attempt;
}

/* By when the launcher must have answered. */
static uint64_t launcher_deadline(const struct aq_worker *w)
{
    const uint64_t silence = w->links.silence_ns, patience = w->job->reduce.patience_ns;
    const uint64_t meet = silence > MEET_NS_MAX ? silence : MEET_NS_MAX + w->links.outages_ns;
    return aq_clock_after(meet > UINT64_MAX - patience ? UINT64_MAX : meet + patience);
}

static enum aq_status launcher_late(const struct aq_worker *w, const char *op)
{
    return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": the launcher did not send '%s' in time", w->step + 1, op);
}

/* Until the launcher has named the members after that attempt, or all have the mean. */
static enum aq_status wait_for_launcher(struct aq_worker *w, uint32_t attempt)
{
    const uint64_t end = launcher_deadline(w);
    const uint64_t soon = aq_clock_after(SOON_NS);
    while (!are_named(w, attempt) && w->replicas.rounds.over != w->step + 1) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        if (are_named(w, attempt) || w->replicas.rounds.over == w->step + 1) break;
        if (aq_clock_ns() > end) return launcher_late(w, attempt ? "averaged" : "members");
        /* The control connection wakes nobody. Mostly the answer comes soon: with reduce.every: 1 twice a step. */
        (void)aq_eventcount_wait(w->eventcount, seen,
                                 aq_clock_after(aq_clock_ns() < soon ? SOON_LOOK_NS : AQ_ROUNDS_LOOK_NS));
    }
    return AQ_OK;
}

/* Is the link to this replica of this round, because one of both has returned? */
static bool is_new(const struct aq_worker *w, uint32_t replica)
{
    const struct aq_worker_members *rounds = &w->replicas.rounds;
    return replica != w->replica && (rounds->returns || (rounds->returned >> replica & 1));
}

/*
 * The links of those who are missing go, also where they still seem to work: who returns is another process. In a
 * further attempt new links are made anew: when the first one was ended, one end may have had a link, and not the
 * other.
 */
static void close_missing(struct aq_worker *w)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    for (uint32_t v = 0; v < w->W; v++) {
        if (!is_member(w, v) || (rounds->attempt > 1 && is_new(w, v))) aq_worker_replica_close(w, v);
        if (!is_member(w, v)) rounds->addresses[v][0] = 0;
    }
}

/* It came before `members`, because the launcher had it before the replica was ready. */
static enum aq_status link_to(struct aq_worker *w, uint32_t replica, uint64_t deadline)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const bool both = rounds->returns && rounds->returned >> replica & 1;
    const uint32_t peer = replica * w->P + w->position;
    const bool accepts = both ? aq_job_listener(w->job, w->rank, peer) == w->rank : rounds->returns;
    if (accepts) return aq_worker_replica_accept(w, rounds->listener, replica, deadline);
    if (!rounds->addresses[replica][0])
        return aq_fail(AQ_PROTO, "worker",
                       "step %" PRIu64 ": rank %u is a member, and it is not known where it listens", w->step + 1,
                       peer);
    return aq_worker_replica_connect(w, rounds->addresses[replica], replica);
}

/* The group of the members. */
static enum aq_status regroup(struct aq_worker *w)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    struct aq_link *links[AQ_GROUP_SIZE_MAX];
    uint32_t size = 0, rank = 0;
    const uint64_t deadline = aq_clock_after(w->job->link.connect_ns_max);
    if (w->replicas.group) {
        struct aq_group_stats stats;
        aq_group_stats(w->replicas.group, &stats);
        w->replicas.ended_sent_bytes += stats.sent_bytes;
    }
    aq_group_close(w->replicas.group);
    w->replicas.group = w->replicas.reducer.sends = NULL;
    close_missing(w);
    for (uint32_t v = 0; v < w->W; v++) {
        if (!is_member(w, v)) continue;
        if (v == w->replica)
            rank = size;
        else if (!w->replicas.peers[v]) {
            const enum aq_status status = link_to(w, v, deadline);
            if (status != AQ_OK && rounds->listener) (void)aq_listener_rest(rounds->listener); /* heals others */
            if (status != AQ_OK) return status;
        }
        links[size++] = w->replicas.peers[v];
    }
    if (rounds->listener) AQ_TRY(aq_listener_rest(rounds->listener)); /* it may be needed again */
    AQ_TRY(aq_worker_group_over(w, links, rank, size, NULL));         /* staleness and patience exclude each other */
    AQ_TRY(aq_worker_group_prepare(w));
    w->replicas.reducer.sends = w->replicas.group;
    rounds->grouped = rounds->members;
    return AQ_OK;
}

/* The group as the launcher has named it: all members make it again, or none does. */
static enum aq_status group_of_members(struct aq_worker *w)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const uint64_t named = rounds->grouped ? rounds->grouped : all_replicas(w);
    const bool grouped = w->replicas.group && named == rounds->members;
    if (grouped && rounds->returned == 0 && rounds->attempt == 1) return AQ_OK;
    aq_log("worker", AQ_LOG_WARNING,
           "step %" PRIu64 ": replicas %" PRIx64 " (bits) of %u average, attempt %u; %" PRIx64 " have returned",
           rounds->step, rounds->members, w->W, rounds->attempt, rounds->returned);
    return regroup(w);
}

enum aq_status aq_worker_rounds_look(void *worker)
{
    struct aq_worker *w = worker;
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const uint64_t now = aq_clock_ns();
    if (now >= rounds->look_ns) {
        rounds->look_ns = now + AQ_ROUNDS_LOOK_NS;
        AQ_TRY(aq_worker_control_poll(w));
    }
    if (!rounds->broken) return AQ_AGAIN;
    return aq_fail(AQ_ABORTED, "worker", "step %" PRIu64 ": this average ends: a replica is lost, or a link",
                   w->step + 1);
}

static enum aq_status average_once(struct aq_worker *w, bool asks)
{
    struct aq_reduce asked;
    const enum aq_status look = aq_worker_rounds_look(w);
    if (look != AQ_AGAIN) return look;
    AQ_TRY(group_of_members(w));
    if (!asks) return AQ_OK;
    AQ_TRY(aq_worker_choose(w));
    aq_optimizer_ask_again(w->optimizer, &asked);
    return aq_worker_perform_voted(w, &asked);
}

/* Statuses of links that end, at this end or the other one: no fault of what is averaged. AQ_MISMATCH: the other end
 * was told earlier that the attempt ends, and has closed a link that this one would have healed. */
static bool is_of_link(enum aq_status status)
{
    return status == AQ_CLOSED || status == AQ_ABORTED || status == AQ_TIMEOUT || status == AQ_IO ||
           status == AQ_REFUSED || status == AQ_MISMATCH;
}

/*
 * After an attempt that failed: until nothing of it is lent to a link. *ended: members that no link leads to now.
 *
 * Of an attempt that was ended new links are halted, and are not told: the next one makes them anew, and one that the
 * other end has not would be waited for as long as it may be made again (link.outage_max).
 */
static enum aq_status leave_group(struct aq_worker *w, uint64_t *ended)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    const uint64_t end = aq_clock_after(w->links.silence_ns);
    uint64_t ranks = 0, before = 0; /* whose links have ended: now, and before others were halted */
    if (w->replicas.group) (void)aq_group_leave(w->replicas.group, &before);
    for (;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        for (uint32_t v = 0; v < w->W; v++)
            if (rounds->broken && w->replicas.peers[v] && (is_new(w, v) || rounds->lost >> v & 1))
                aq_link_halt(w->replicas.peers[v]);
        if (!w->replicas.group || aq_group_leave(w->replicas.group, &ranks) != AQ_AGAIN) break;
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        if (aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": parts of an average do not leave", w->step + 1);
        (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(AQ_ROUNDS_LOOK_NS));
    }
    const uint64_t grouped = rounds->grouped ? rounds->grouped : UINT64_MAX;
    *ended = 0;
    for (uint32_t v = 0, rank = 0; v < w->W; v++) {
        const uint64_t now = rounds->broken && is_new(w, v) ? before : ranks;
        const bool none = !w->replicas.peers[v] && !(rounds->broken && is_new(w, v));
        if (v != w->replica && is_member(w, v) && (none || (w->replicas.group && (now >> rank & 1))))
            *ended |= 1ull << v;
        rank += grouped >> v & 1;
    }
    return AQ_OK;
}

/* An attempt has ended like this: the launcher hears of it. */
static enum aq_status attempt_end(struct aq_worker *w, enum aq_status status)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    uint64_t ended = 0;
    if (status != AQ_OK && !is_of_link(status)) return status;
    if (status != AQ_OK) AQ_TRY(leave_group(w, &ended));
    rounds->ended = rounds->attempt;
    return aq_control_send(w->control, json_pack("{s:s, s:I, s:I, s:b, s:o}", "event", "averaged", "step",
                                                 (json_int_t)rounds->step, "attempt", (json_int_t)rounds->attempt,
                                                 "whole", status == AQ_OK, "ended", aq_control_hex(ended)));
}

enum aq_status aq_worker_rounds_perform(struct aq_worker *w, const struct aq_reduce *asked)
{
    struct aq_worker_members *rounds = &w->replicas.rounds;
    AQ_ASSERT(!asked || (!asked->before && !asked->after)); /* they could be done only once */
    if (asked) AQ_TRY(aq_optimizer_keep(w->optimizer));
    while (rounds->over != w->step + 1) {
        AQ_TRY(attempt_end(w, average_once(w, asked != NULL)));
        AQ_TRY(wait_for_launcher(w, rounds->attempt));
        if (asked && rounds->over != w->step + 1) AQ_TRY(aq_optimizer_put_back(w->optimizer));
    }
    return AQ_OK;
}

enum aq_status aq_worker_rounds_address(struct aq_worker *w, const json_t *message)
{
    const char *to;
    uint32_t from;
    AQ_TRY(aq_control_get_text(message, "address", &to));
    AQ_TRY(aq_control_get_u32(message, "from", &from));
    if (!w->replicas.rounds.addresses || from >= w->P * w->W || from / w->P == w->replica ||
        !aq_job_linked(w->job, w->rank, from) || strlen(to) >= AQ_ADDRESS_TEXT_BYTES)
        return aq_fail(AQ_PROTO, "worker", "rank %u is asked to connect to rank %u, to which it needs no link now",
                       w->rank, from);
    snprintf(w->replicas.rounds.addresses[from / w->P], AQ_ADDRESS_TEXT_BYTES, "%s", to);
    return AQ_OK;
}

enum aq_status aq_worker_rounds_enter(struct aq_worker *w, uint64_t *step)
{
    json_t *message;
    aq_heartbeat_phase(AQ_PHASE_GO); /* until a round of the others ends, or all have their files */
    aq_log("worker", 1, "waits %s",
           w->replicas.rounds.returns ? "for a round's end to return to the other replicas"
                                      : "until all ranks have their files of the checkpoint");
    AQ_TRY(aq_worker_await(w, "enter", AQ_NEVER, &message));
    enum aq_status status = aq_control_get_u64(message, "step", step);
    aq_heartbeat_phase(AQ_PHASE_WEIGHTS);
    if (status == AQ_OK && (*step == 0 || *step >= w->plan->steps || !meet_after(w, *step)))
        status = aq_fail(AQ_PROTO, "worker", "the launcher has it return after step %" PRIu64 ", where no round ends",
                         *step);
    if (status == AQ_OK) status = aq_worker_fetch(w, message, *step);
    json_decref(message);
    return status;
}

void aq_worker_rounds_close(struct aq_worker *w)
{
    aq_listener_close(w->replicas.rounds.listener);
    w->replicas.rounds.listener = NULL;
}

enum aq_status aq_worker_rounds_stand_in(struct aq_worker *w)
{
    struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (w->replicas.rounds.without == 0 || w->step != w->replicas.rounds.without) return AQ_OK;
    for (uint32_t v = 0; v < w->replica; v++)
        if (is_member(w, v)) return AQ_OK; /* it does */
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    for (uint32_t v = 0; v < w->W; v++) {
        if (is_member(w, v)) continue;
        checkpoint.rank = v * w->P + w->position;
        checkpoint.stands_in = true;
        checkpoint.caches = w->replicas.rounds.caches[v];
        AQ_TRY(aq_checkpoint_write(&checkpoint, w->step));
        AQ_TRY(aq_worker_stood_in(w, checkpoint.rank));
        AQ_TRY(aq_worker_serve(w));
    }
    return AQ_OK;
}

/* ---- reduce.steps: speed ---- */

static bool goes_by_speed(const struct aq_worker *w)
{
    return w->W > 1 && w->job->reduce.steps == AQ_STEPS_SPEED;
}

enum aq_status aq_worker_speed_open(struct aq_worker *w)
{
    if (!goes_by_speed(w)) return AQ_OK;
    return AQ_NEW(w->job->train.optimizer.outer_every, &w->replicas.speed.seconds);
}

void aq_worker_speed_close(struct aq_worker *w)
{
    aq_free(w->replicas.speed.seconds);
}

enum aq_status aq_worker_speed_told(struct aq_worker *w, const json_t *message, uint64_t step)
{
    struct aq_worker_speed *speed = &w->replicas.speed;
    const uint64_t every = w->job->train.optimizer.outer_every, end = aq_worker_steps_end(w);
    uint64_t steps, position, updates;
    if (!goes_by_speed(w) || step >= end) return AQ_OK;
    const uint64_t next = (step / every + 1) * every, length = (next < end ? next : end) - step;
    AQ_TRY(aq_control_get_u64(message, "steps", &steps));
    AQ_TRY(aq_control_get_u64(message, "position", &position));
    AQ_TRY(aq_control_get_u64(message, "updates", &updates));
    if (steps == 0 || steps > length || position > step || updates > step)
        return aq_fail(AQ_PROTO, "worker",
                       "the launcher names %" PRIu64 " of %" PRIu64 " steps of the round after step %" PRIu64
                       ", %" PRIu64 " batches and %" PRIu64 " updates before",
                       steps, length, step, position, updates);
    speed->due = true;
    speed->after = step;
    speed->first = step + length - steps;
    speed->position = position;
    speed->updates = updates;
    return AQ_OK;
}

void aq_worker_speed_begin(struct aq_worker *w)
{
    struct aq_worker_speed *speed = &w->replicas.speed;
    if (!speed->due || w->step != speed->after) return;
    const uint64_t jump = speed->first - w->step;
    speed->due = false;
    for (uint32_t i = 0; i < 2; i++) { /* the same samples as before */
        struct aq_worker_refill *refill = &w->pipeline.refills[i];
        if (refill->end > 0) refill->step += jump;
        if (refill->end > 0) refill->end += jump;
    }
    w->step = speed->first;
    w->data.idle = speed->first - speed->position;
    aq_optimizer_missed(w->optimizer, speed->first - speed->updates);
    if (jump > 0)
        aq_log("worker", 1, "steps %" PRIu64 " to %" PRIu64 " are for faster replicas", speed->after + 1, w->step);
}

void aq_worker_speed_trained(struct aq_worker *w)
{
    struct aq_worker_speed *speed = &w->replicas.speed;
    const uint64_t took = aq_clock_ns() - w->times.begin_ns, reduced = w->times.reduce_ns;
    if (!speed->seconds || speed->count == w->job->train.optimizer.outer_every) return;
    speed->seconds[speed->count++] = (double)(took > reduced ? took - reduced : 0) * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void aq_worker_speed_report(struct aq_worker *w, json_t *line)
{
    struct aq_worker_speed *speed = &w->replicas.speed;
    if (speed->count == 0) return;
    qsort(speed->seconds, speed->count, sizeof *speed->seconds, by_size);
    json_object_set_new(line, "step_seconds", aq_control_number(speed->seconds[speed->count / 2]));
    speed->count = 0;
}

/* ---- the end of a round ---- */

/* The launcher names the members, and takes the vote whether the run ends here. */
enum aq_status aq_worker_rounds_meet(struct aq_worker *w)
{
    json_t *line = json_pack("{s:s, s:I}", "event", "round", "step", (json_int_t)(w->step + 1));
    aq_worker_speed_report(w, line);
    AQ_TRY(aq_control_send(w->control, line));
    return wait_for_launcher(w, 0);
}

static enum aq_status votes_exchange(struct aq_worker *worker)
{
    uint64_t mine = worker->last ? SAYS_LAST_STEP : 0, all[AQ_GROUP_SIZE_MAX];
    if (aq_worker_mark_said(worker, worker->step)) mine |= SAYS_MARK_STEP;
    AQ_TRY(aq_all_gather(worker->replicas.group, &mine, sizeof mine, all));
    for (uint32_t v = 0; v < worker->W; v++) {
        if ((all[v] & SAYS_LAST_STEP) && !worker->last) worker->last = aq_worker_last_of(worker, worker->step);
        if (all[v] & SAYS_MARK_STEP) AQ_TRY(aq_worker_mark_heard(worker, worker->step));
    }
    return AQ_OK;
}

/* ---- reduce.delay ---- */

enum aq_status aq_worker_delay_open(struct aq_worker *w)
{
    if (!aq_worker_is_delayed(w)) return AQ_OK;
    return aq_group_background_open(w->eventcount, &w->replicas.delay.background);
}

void aq_worker_delay_stop(struct aq_worker *w)
{
    aq_group_background_stop(w->replicas.delay.background);
}

void aq_worker_delay_close(struct aq_worker *w)
{
    aq_group_background_close(w->replicas.delay.background);
    w->replicas.delay.background = NULL;
}

/* Has an average begun of which not all members have the mean? Only with reduce.patience. */
static bool delay_is_open(const struct aq_worker *w)
{
    return w->replicas.delay.of != w->replicas.rounds.over && w->replicas.delay.of == w->replicas.rounds.step;
}

static void delay_start(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    const struct aq_reduce *asked = &delay->asked;
    struct aq_group_task task = {
        .group = w->replicas.group, .word = delay->vote, .mean = aq_worker_compressed(w, asked)};
    if (asked->kind == AQ_REDUCE_MEAN) task.mean.worker = NULL;
    AQ_ASSERT(asked->kind == AQ_REDUCE_MEAN || asked->kind == AQ_REDUCE_COMPRESSED);
    delay->vote = 0;
    delay->under_way = true;
    aq_group_background_begin(delay->background, &task);
}

static void delay_take(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    struct aq_group_done done;
    aq_group_background_take(delay->background, &done);
    delay->under_way = false;
    delay->heard |= done.words;
    delay->sent_bytes += done.sent_bytes;
    aq_trace_add(w->trace, "average", "average", done.begin_ns, done.end_ns, (uint32_t)w->step, 0);
}

/* The group that the launcher has named, and its thread begins. */
static enum aq_status attempt_begin(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    const enum aq_status look = aq_worker_rounds_look(w);
    if (look != AQ_AGAIN) return look;
    AQ_TRY(group_of_members(w));
    if (w->replicas.choice.due) { /* at the round's end, between two rounds of the optimizer: it does not travel */
        AQ_TRY(aq_worker_choose(w));
        aq_optimizer_ask_again(w->optimizer, &delay->asked);
    }
    delay_start(w);
    return AQ_OK;
}

/* An attempt has ended, or another one is to be begun. */
static enum aq_status delay_turn(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    const struct aq_worker_members *rounds = &w->replicas.rounds;
    if (delay->under_way) {
        if (rounds->broken) aq_group_background_break(delay->background);
        const enum aq_status status = aq_group_background_state(delay->background);
        if (status == AQ_AGAIN) return AQ_OK;
        delay_take(w);
        return attempt_end(w, status);
    }
    if (rounds->ended == rounds->attempt) return AQ_OK;
    if (rounds->attempt > 1 && delay->asked.count > 0) AQ_TRY(aq_optimizer_put_back(w->optimizer));
    const enum aq_status status = attempt_begin(w);
    return status == AQ_OK ? AQ_OK : attempt_end(w, status);
}

enum aq_status aq_worker_delay_look(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    struct aq_worker_members *rounds = &w->replicas.rounds;
    if (!delay->background) return AQ_OK;
    if (!is_patient(w)) {
        const enum aq_status status = aq_group_background_state(delay->background);
        return status == AQ_AGAIN ? AQ_OK : status;
    }
    if (delay->turning || !delay_is_open(w)) return AQ_OK;
    delay->turning = true; /* who waits within looks, too */
    const uint64_t now = aq_clock_ns();
    const bool due = now >= rounds->look_ns;
    if (due) rounds->look_ns = now + AQ_ROUNDS_LOOK_NS;
    enum aq_status status = due ? aq_worker_control_poll(w) : AQ_OK;
    if (status == AQ_OK && delay_is_open(w)) status = delay_turn(w);
    delay->turning = false;
    return status;
}

uint64_t aq_worker_delay_looks_ns(const struct aq_worker *w)
{
    return delay_is_open(w) ? aq_clock_after(AQ_ROUNDS_LOOK_NS) : AQ_NEVER;
}

/* In the thread while a task is under way. Else in this one, which chooses a codec or makes a link. */
enum aq_status aq_worker_delay_meanwhile(void *worker)
{
    const struct aq_worker_delay *delay = &((const struct aq_worker *)worker)->replicas.delay;
    return delay->under_way ? aq_group_background_look(delay->background) : aq_worker_rounds_look(worker);
}

/* AQ_AGAIN: the mean is not there, or with reduce.patience not all members have it. */
static enum aq_status delay_state(const struct aq_worker *w)
{
    if (is_patient(w)) return delay_is_open(w) ? AQ_AGAIN : AQ_OK;
    return aq_group_background_state(w->replicas.delay.background);
}

/* next: the phase that follows. */
static enum aq_status delay_wait(struct aq_worker *w, enum aq_phase next)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(w);
    const uint64_t end = is_patient(w) ? launcher_deadline(w) : UINT64_MAX; /* else the group's silence ends it */
    enum aq_status status;
    aq_heartbeat_phase(AQ_PHASE_REDUCE);
    for (;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        status = delay_state(w);
        if (status != AQ_AGAIN) break;
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        if (aq_clock_ns() > end) return launcher_late(w, "averaged");
        status = aq_worker_meanwhile(w); /* with staleness a step more is under way */
        if (status != AQ_AGAIN) AQ_TRY(status);
        if (status == AQ_AGAIN) (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(AQ_ROUNDS_LOOK_NS));
    }
    AQ_TRY(status);
    aq_heartbeat_phase(next);
    if (delay->under_way) delay_take(w);
    delay->waited_ns += aq_worker_own_ns(w) - own;
    aq_trace_add(w->trace, "compute", "reduce", begin, aq_clock_ns(), (uint32_t)w->step, 0);
    return AQ_OK;
}

enum aq_status aq_worker_delay_begin(struct aq_worker *w, const struct aq_reduce *asked)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    delay->asked = asked ? *asked : (struct aq_reduce){.kind = AQ_REDUCE_MEAN};
    if (!is_patient(w)) {
        delay_start(w);
        return AQ_OK;
    }
    const bool travels = w->replicas.rounds.travels && !w->replicas.choice.due;
    if (asked) AQ_TRY(aq_optimizer_keep(w->optimizer));
    delay->of = w->step + 1;
    AQ_TRY(aq_worker_delay_look(w));
    return travels ? AQ_OK : aq_worker_delay_await(w);
}

/* Between two steps there is no line of metrics to count bytes and waiting in. */
static void delay_count(struct aq_worker *w)
{
    w->times.reduce_bytes += w->replicas.delay.sent_bytes;
    w->times.reduce_ns += w->replicas.delay.waited_ns;
    w->replicas.delay.sent_bytes = w->replicas.delay.waited_ns = 0;
}

enum aq_status aq_worker_delay_await(struct aq_worker *w)
{
    AQ_TRY(delay_wait(w, AQ_PHASE_UPDATE));
    delay_count(w);
    return AQ_OK;
}

enum aq_status aq_worker_delay_settle(struct aq_worker *w)
{
    if (!aq_worker_is_delayed(w)) return AQ_OK;
    if (w->replicas.delay.under_way || delay_is_open(w)) AQ_TRY(delay_wait(w, AQ_PHASE_COMPUTE));
    return aq_optimizer_settle(w->optimizer, w->stream);
}

/* The step after which a vote takes effect that is given now. */
static uint64_t round_after(const struct aq_worker *w)
{
    const uint64_t every = w->job->train.optimizer.outer_every, end = aq_worker_steps_end(w);
    const uint64_t next = (aq_worker_last_of(w, w->step) / every + 1) * every;
    return next < end ? next : end;
}

/* The first rank's, for the next average. */
static enum aq_status delay_vote(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    AQ_TRY(aq_worker_control_poll(w));
    if (!w->steps.stop_asked) {
        if (aq_worker_mark_time(w)) delay->vote |= SAYS_MARK_STEP;
        return AQ_OK;
    }
    delay->vote |= SAYS_LAST_STEP;
    return aq_control_send(w->control,
                           json_pack("{s:s, s:I}", "event", "stopping", "step", (json_int_t)round_after(w)));
}

/*
 * What was voted with the average before takes effect; the first rank gives its votes for the next one. The average
 * before is waited for: with staleness this may come before its outer step.
 */
static enum aq_status delay_votes(struct aq_worker *w)
{
    struct aq_worker_delay *delay = &w->replicas.delay;
    AQ_TRY(aq_worker_delay_settle(w));
    if ((delay->heard & SAYS_LAST_STEP) && !w->last) w->last = aq_worker_last_of(w, w->step);
    if (delay->heard & SAYS_MARK_STEP) AQ_TRY(aq_worker_mark_heard(w, w->step));
    delay->heard = 0;
    if (w->last || aq_worker_last_of(w, w->step) == aq_worker_steps_end(w)) return AQ_OK;
    if (w->rank == 0) AQ_TRY(delay_vote(w));
    /* A stage that trains nothing has no average to give its vote to. */
    return aq_stage_parameter_count(w->stage) == 0 ? aq_worker_delay_begin(w, NULL) : AQ_OK;
}

enum aq_status aq_worker_local_reduce(struct aq_worker *worker)
{
    const bool patient = is_patient(worker), hears = aq_worker_hears(worker, worker->step);
    worker->times.squared = false;
    if (hears && aq_worker_is_delayed(worker))
        AQ_TRY(patient ? aq_worker_delay_settle(worker) : delay_votes(worker)); /* the last round may be short */
    if (aq_worker_is_delayed(worker)) delay_count(worker);
    if (hears && !aq_worker_votes_travel(worker)) {
        const uint64_t begin = aq_clock_ns(), own = aq_worker_own_ns(worker);
        AQ_TRY(patient ? aq_worker_rounds_meet(worker) : votes_exchange(worker));
        worker->times.reduce_ns += aq_worker_own_ns(worker) - own;
        aq_trace_add(worker->trace, "compute", "agree", begin, aq_clock_ns(), (uint32_t)worker->step, 0);
    }
    /* With reduce.patience it is chosen in an attempt to average. */
    return meet_after(worker, worker->step + 1) && !patient ? aq_worker_choose(worker) : AQ_OK;
}

/* The two versions are the same at the end of a round. */
static enum aq_status
change(struct aq_worker *worker,
       enum aq_status (*to)(struct aq_optimizer *optimizer, float *parameters, struct aq_stream *stream), bool always)
{
    if (!always && !aq_worker_is_apart(worker) && !worker->job->train.optimizer.predict) return AQ_OK;
    aq_stage_use(worker->stage, &(struct aq_stage_use){.previous = false});
    AQ_TRY(to(worker->optimizer, aq_stage_parameters(worker->stage), worker->stream));
    AQ_TRY(aq_stage_parameters_changed(worker->stage, worker->stream));
    AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
    return aq_worker_tied_follow(worker);
}

enum aq_status aq_worker_swap_in(struct aq_worker *worker)
{
    AQ_TRY(aq_worker_delay_settle(worker));
    return change(worker, aq_optimizer_show, false);
}

enum aq_status aq_worker_swap_out(struct aq_worker *worker)
{
    return change(worker, aq_optimizer_hide, false);
}

/* Resharded weights come from the end of a round. Weights that were read or taken over have the version of
 * checkpoints. */
enum aq_status aq_worker_versions_open(struct aq_worker *worker)
{
    if (worker->replicas.resharded) return change(worker, aq_optimizer_versions_reshard, true);
    if (worker->step > 0 || worker->checkpoints.adopted) return aq_worker_swap_out(worker);
    AQ_TRY(aq_optimizer_versions_begin(worker->optimizer, aq_stage_parameters(worker->stage), worker->stream));
    return aq_device_stream_sync(worker->device, worker->stream);
}
