/*
 * launcher_rounds.c -- reduce.patience: which replicas average at a round's end, and what follows where some do not.
 * With reduce.every: 1 each step is a round.
 *
 *     worker           launcher
 *     round S     -->               each rank, at the end of the round that ends with step S
 *                 <--  members S    to all ranks of the replicas that are there, one set for all stages
 *     ... the mean over the members ...
 *     averaged S  -->               the members' ranks
 *                 <--  averaged S   when all have the mean
 *     ... the outer step, a checkpoint of S if somebody can enter, or cannot return ...
 *     mark S      -->               the members' ranks; the first member's wrote the missing ones' files
 *                 <--  enter S      when it is complete: to the ranks of a missing replica that is ready for it
 *
 * A replica with a rank that has ended, failed or is silent is lost. One that comes later than the first by more than
 * the patience is late: it is treated alike, and its work of this round is dropped. (Of one that returns the patience
 * counts from its `go`; it has as long as any start to read the checkpoint.) The others train on. The lost one
 * is started again, and trains from the next round's checkpoint on that finds it ready (launcher_return.c). Where it
 * cannot return, all workers are started again from that checkpoint (restart.h). Either way it has the members' weights
 * and outer momentum, and the same bits.
 *
 * A member that is lost while the members average: no stage has taken the outer step, because none was told that all
 * have the mean. Those still at it are told to end this attempt (`break`). When all that live have ended it
 * (`averaged`), members without the lost one are named, and the round is averaged again, from the movements that each
 * has kept. So either all stages of a replica count in a round, or none does, whatever moment it was lost in. A
 * link between living replicas that has ended ends the attempt alike, for all. If nobody is lost within the patience
 * then, the replica that most of the others miss is ended, too.
 *
 * A member may be lost while a checkpoint is being written. If its own part is not on disk, that checkpoint is broken
 * off: those that live write theirs to the end, and are told that it is over as if it were complete; its files go, and
 * the one before stays the run's last. Who was to enter with it waits for the next round's.
 *
 * A loss is the whole run's, as without the key, where no round can end without the replica: in the last round, where
 * nobody else is left, and, with checkpoint.best or train.early_stop, while a checkpoint is not complete. So the others
 * wait at the end of the last round but one until a replica that returns is ready to enter.
 *
 * reduce.delay: if all replicas average, and nothing follows on the round's end that needs the mean (`travels` in
 * `members`), the members train on, and their lines of the next steps come before `averaged`. Else they wait for the
 * mean at the round's end, as without the delay: where a replica is missing or has returned, where a checkpoint or the
 * run's end follows, and before the last round, for which a lost replica may be waited. So a replica that is lost while
 * an average travels enters one round later than the end of that round. Waiting or not changes no bit (worker_local.c).
 *
 * What was decided is a line `round` in metrics.jsonl. launch->rounds repeats it: a round there that ended without some
 * replicas ends without them here, too, so that the weights are the same. A replica that is among the next round's
 * members there is waited for here.
 */
#include <inttypes.h>

#include "launcher_private.h"
#include "run_lines.h"

bool launcher_is_lost(const struct launcher *launcher, uint32_t rank)
{
    return launcher->rounds.replicas[rank / launcher->launch->stages].lost;
}

bool launcher_was_lost(const struct launcher *launcher, uint32_t rank, uint64_t step)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[rank / launcher->launch->stages];
    return of->lost || step <= of->from;
}

bool launcher_is_ignored(const struct launcher *launcher, uint32_t rank)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[rank / launcher->launch->stages];
    return of->lost && of->state != REPLICA_STARTS;
}

static bool is_on(const struct launcher *launcher)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    return bounds->patience_ns > 0 && bounds->round_steps > 0 && !launcher->launch->ask && !launcher->launch->probe;
}

bool launcher_rounds_due(const struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    return is_on(launcher) && (step % bounds->round_steps == 0 || step == bounds->steps);
}

uint64_t launcher_rounds_after(const struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    const uint64_t next = (step / bounds->round_steps + 1) * bounds->round_steps;
    return next < bounds->steps ? next : bounds->steps;
}

static uint64_t next_round(const struct launcher *launcher)
{
    return launcher_rounds_after(launcher, launcher->rounds.decided);
}

/* Is every rank of the replica at the end of the round? */
static bool is_there(const struct launcher *launcher, uint32_t replica, uint64_t step)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t s = 0; s < P; s++)
        if (launcher->stages[replica * P + s].round < step) return false;
    return true;
}

static uint32_t living(const struct launcher *launcher)
{
    uint32_t count = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        count += !launcher->rounds.replicas[w].lost;
    return count;
}

/* Does another one that lives have weights? Who waits for the checkpoint of the round that has just ended has none, and
 * who fetches it neither. */
static bool others_have_weights(const struct launcher *launcher, uint32_t replica)
{
    const struct launcher_rounds *rounds = &launcher->rounds;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const struct launcher_replica *of = &rounds->replicas[w];
        const bool waits = (rounds->without && of->state == REPLICA_ENTERS && of->from == rounds->without) ||
                           launcher_return_fetches(launcher, w);
        if (w != replica && !of->lost && !waits) return true;
    }
    return false;
}

bool launcher_is_dropped(const struct launcher *launcher, uint64_t step)
{
    return step <= launcher->rounds.dropped;
}

/* The last of the checkpoints that are due, or were asked for, and are not complete; 0: none. */
static uint64_t open_mark(const struct launcher *launcher)
{
    const struct launcher_rounds *rounds = &launcher->rounds;
    const uint64_t every = launcher->launch->bounds.mark_every;
    const uint64_t regular = every > 0 ? rounds->decided - rounds->decided % every : 0;
    const uint64_t last = rounds->without > regular ? rounds->without : regular;
    return last > launcher->result->mark && !launcher_is_dropped(launcher, last) ? last : 0;
}

/* May the next round end without this replica? */
static bool can_lose(const struct launcher *launcher, uint32_t replica)
{
    const struct aq_launch *launch = launcher->launch;
    const uint64_t decided = launcher->rounds.decided;
    if (!is_on(launcher) || !launcher->gone || launcher->aborting || launcher->cause != CAUSE_NONE || launch->bits)
        return false;
    if (next_round(launcher) == launch->bounds.steps || !others_have_weights(launcher, replica)) return false;
    const uint64_t last = launcher->last_step ? launcher->last_step : launcher->result->early_step;
    if (last && decided >= last) return false;                   /* no round follows, which it could enter */
    if (!launcher->rounds.replicas[replica].member) return true; /* it has not averaged with the others yet */
    return open_mark(launcher) == 0 || !launcher->result->best.figure;
}

static uint64_t lost_of(const struct launcher *launcher)
{
    uint64_t lost = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (launcher->rounds.replicas[w].lost) lost |= 1ull << w;
    return lost;
}

/* Those that wait for a part of the average that will not come need not. */
static void break_off(struct launcher *launcher)
{
    const struct launcher_rounds *rounds = &launcher->rounds;
    const uint64_t lost = lost_of(launcher) & rounds->named;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (!launcher_is_lost(launcher, r) && launcher->stages[r].averaged == AVERAGE_NONE)
            stage_send(launcher, r,
                       json_pack("{s:s, s:I, s:I, s:I, s:o}", "op", "break", "rank", (json_int_t)r, "step",
                                 (json_int_t)rounds->averaging, "attempt", (json_int_t)rounds->attempt, "lost",
                                 aq_control_hex(lost)));
}

/* This member is lost: a checkpoint that its files are missing of will not be complete. */
static void drop_mark(struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    const uint64_t step = open_mark(launcher);
    bool has = true;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        has &= launcher->stages[r].mark == step;
    if (step == 0 || has) return;
    aq_progress_say(launcher->launch->progress,
                    "the checkpoint of step %" PRIu64 " is broken off: replica %u had not written its part", step,
                    replica);
    launcher->rounds.dropped = step;
    launcher_return_stay(launcher, step);
}

static void lose(struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    const struct launcher_replica *of = &launcher->rounds.replicas[replica];
    if (of->member && !of->lost) drop_mark(launcher, replica);
    launcher->rounds.replicas[replica].lost = true;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++) {
        aq_watch_stage_gone(&launcher->watch, r);
        aq_metrics_without(launcher->launch->metrics, r, 0, UINT64_MAX);
        json_array_clear(launcher->stages[r].evals);
    }
    launcher_flush(launcher);
    launcher_flush_mark(launcher);
    if (launcher->rounds.averaging && (launcher->rounds.named >> replica & 1)) break_off(launcher);
    launcher_return_begin(launcher, replica);
    launcher_return_giver_lost(launcher, replica);
}

/*
 * Adds the marks at which missing replicas open their message caches, replica to step, where one has any. In a run that
 * is repeated the log's.
 */
static void add_caches(const struct launcher *launcher, uint64_t step, uint64_t members, json_t *message)
{
    json_t *marks = json_object();
    for (uint32_t w = 0; w < launcher->launch->replicas && !launcher->rounds.log; w++) {
        char key[12];
        snprintf(key, sizeof key, "%u", w);
        if (!(members >> w & 1) && launcher->rounds.replicas[w].caches)
            json_object_set_new(marks, key, json_integer((json_int_t)launcher->rounds.replicas[w].caches));
    }
    (void)json_object_update(marks, json_object_get(launcher_rounds_logged(launcher, step), "caches"));
    if (json_object_size(marks) > 0) json_object_set(message, "caches", marks);
    json_decref(marks);
}

static json_t *replicas_of(const struct launcher *launcher, uint64_t bits)
{
    json_t *list = json_array();
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (bits >> w & 1) json_array_append_new(list, json_integer((json_int_t)w));
    return list;
}

/* A run that was started again also notes rounds with all members: an older line of that step may have others. */
static void note(struct launcher *launcher, uint64_t step, uint64_t members, uint64_t entering)
{
    json_t *line = json_pack("{s:s, s:I, s:o, s:o, s:o}", "event", "round", "step", (json_int_t)step, "members",
                             replicas_of(launcher, members), "without", replicas_of(launcher, ~members), "entering",
                             replicas_of(launcher, entering));
    add_caches(launcher, step, members, line);
    launcher_steps_note(launcher, line);
    const enum aq_status status = aq_metrics_line(launcher->launch->metrics, line);
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
}

const json_t *launcher_rounds_logged(const struct launcher *launcher, uint64_t step)
{
    char key[24];
    snprintf(key, sizeof key, "%" PRIu64, step);
    return json_object_get(launcher->rounds.log, key);
}

static bool logged_without(const struct launcher *launcher, uint64_t step, uint32_t replica)
{
    size_t index;
    const json_t *number;
    json_array_foreach(json_object_get(launcher_rounds_logged(launcher, step), "without"), index,
                       number) if (json_integer_value(number) == (json_int_t)replica) return true;
    return false;
}

/* Will the replica be in the round after the one that ends with this step, if it is ready? */
static bool is_due_back(const struct launcher *launcher, uint32_t replica, uint64_t step)
{
    if (!launcher_return_may(launcher, replica)) return false;
    return !launcher->rounds.log || !logged_without(launcher, launcher_rounds_after(launcher, step), replica);
}

/* Must the round's end wait until a replica that returns can enter? */
static bool is_held(const struct launcher *launcher, uint64_t step)
{
    const bool last = launcher_rounds_after(launcher, step) == launcher->launch->bounds.steps;
    if (launcher->stopping || (launcher->rounds.averaging == step && launcher->rounds.travels)) return false;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if ((last || launcher->rounds.log) && is_due_back(launcher, w, step) && !launcher_return_waits(launcher, w))
            return true;
    return false;
}

bool launcher_rounds_held(const struct launcher *launcher)
{
    return launcher->rounds.averaging && is_held(launcher, launcher->rounds.averaging);
}

/* Does something follow on the round's end for which all have to have the mean? */
static bool ends_with_more(const struct launcher *launcher, uint64_t step)
{
    const struct aq_launch *launch = launcher->launch;
    const bool last = step == launch->bounds.steps || step == launch->until || step == launcher->last_step;
    const bool marks = launcher_is_due(launch->bounds.mark_every, step, launch->bounds.steps);
    const bool next_is_last = launcher_rounds_after(launcher, step) == launch->bounds.steps; /* is_held */
    return last || marks || next_is_last || launcher->stopping || launcher->result->early_step > 0;
}

/* Names the members of a round, or those that are left of them. */
static void name_members(struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    struct launcher_rounds *rounds = &launcher->rounds;
    uint64_t returned = 0;
    rounds->attempt = rounds->averaging == step ? rounds->attempt + 1 : 1;
    rounds->averaging = step;
    rounds->named = 0;
    rounds->torn_ns = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        if (rounds->replicas[w].lost) continue;
        rounds->named |= 1ull << w;
        if (!rounds->replicas[w].member) returned |= 1ull << w;
    }
    if (rounds->attempt == 1)
        rounds->travels = bounds->delay > 0 && living(launcher) == launcher->launch->replicas && returned == 0 &&
                          !ends_with_more(launcher, step);
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        launcher->stages[r].averaged = AVERAGE_NONE;
        if (launcher_is_lost(launcher, r)) continue;
        json_t *message = json_pack("{s:s, s:I, s:I, s:I, s:o, s:o}", "op", "members", "rank", (json_int_t)r, "step",
                                    (json_int_t)step, "attempt", (json_int_t)rounds->attempt, "members",
                                    aq_control_hex(rounds->named), "returned", aq_control_hex(returned));
        if (rounds->travels) json_object_set_new(message, "travels", json_true());
        stage_send(launcher, r, message);
    }
}

/* All members have the mean: it counts, and the next round begins. */
static void end_round(struct launcher *launcher)
{
    struct launcher_rounds *rounds = &launcher->rounds;
    struct launcher_replica *replicas = rounds->replicas;
    const uint64_t step = rounds->averaging;
    const uint32_t count = living(launcher), all = launcher->launch->replicas;
    const bool travels = rounds->travels; /* the members train the next round */
    const bool last = step == launcher->last_step && step < launcher->launch->bounds.steps && !travels;
    uint64_t returned = 0, entering = 0;
    bool mark = count < all && launcher->stopping && !travels;
    for (uint32_t w = 0; w < all; w++) {
        if (!replicas[w].lost && !replicas[w].member) returned |= 1ull << w;
        if (!travels && is_due_back(launcher, w, step) && launcher_return_waits(launcher, w)) entering |= 1ull << w;
        mark |= replicas[w].state == REPLICA_GONE && !travels;
        replicas[w].member = !replicas[w].lost;
        if (replicas[w].member) replicas[w].tries = 0;
    }
    mark |= entering != 0;
    if (mark) rounds->without = step;
    for (uint32_t w = 0; w < all; w++)
        if (entering >> w & 1) launcher_return_enter(launcher, w, step);
    launcher_return_over(launcher, step, returned, entering);
    launcher_steps_next(launcher, step, rounds->named);
    if (count < all || returned || launcher->launch->resume > 0 || launcher->launch->bounds.by_speed)
        note(launcher, step, rounds->named, entering);
    if (count < all)
        aq_progress_say(launcher->launch->progress, "step %" PRIu64 ": the round ends with %u of %u replicas", step,
                        count, all);
    rounds->decided = step;
    rounds->averaging = 0;
    rounds->first_ns = 0;
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        if (!(rounds->named >> r / launcher->launch->stages & 1)) continue;
        json_t *message = json_pack("{s:s, s:I, s:I, s:b, s:b}", "op", "averaged", "rank", (json_int_t)r, "step",
                                    (json_int_t)step, "last", last, "mark", mark);
        add_caches(launcher, step, rounds->named, message);
        launcher_steps_add(launcher, r, message);
        stage_send(launcher, r, message);
    }
}

/* Links between replicas that live have ended: the one that most of the others miss is lost; of several the last. */
static void end_missed(struct launcher *launcher)
{
    struct launcher_rounds *rounds = &launcher->rounds;
    uint32_t most = 0, missed = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        uint32_t count = 0;
        for (uint32_t r = 0; r < launcher->ranks; r++)
            count += r / launcher->launch->stages != w && !launcher_is_lost(launcher, r) &&
                     (launcher->stages[r].ended >> w & 1);
        if (count == 0 || count < most || rounds->replicas[w].lost) continue;
        most = count;
        missed = w;
    }
    if (most > 0 && !rounds->log && can_lose(launcher, missed)) {
        aq_progress_say(launcher->launch->progress, "replica %u: %u links to it have ended: the round ends without it",
                        missed, most);
        lose(launcher, missed);
    } else if (launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED,
                             "the round of step %" PRIu64 " cannot be averaged: links between replicas have ended",
                             rounds->averaging))
        launcher->result->transient = true;
}

/* An average is under way: is it over, or has it to be made again? */
static void look_at_average(struct launcher *launcher)
{
    struct launcher_rounds *rounds = &launcher->rounds;
    const uint64_t now = launcher->watch.clock.now_ns + 1;
    bool whole = true;
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        if (launcher_is_lost(launcher, r)) continue;
        if (launcher->stages[r].averaged == AVERAGE_NONE) return;
        whole &= launcher->stages[r].averaged == AVERAGE_WHOLE;
    }
    if (rounds->named & lost_of(launcher)) {
        name_members(launcher, rounds->averaging);
    } else if (whole) {
        if (!is_held(launcher, rounds->averaging)) end_round(launcher);
    } else if (rounds->torn_ns == 0) { /* who is lost is known soon */
        rounds->torn_ns = now;
    } else if (now - rounds->torn_ns > launcher->launch->bounds.patience_ns) {
        end_missed(launcher);
        rounds->torn_ns = 0;
        if (launcher->cause == CAUSE_NONE) name_members(launcher, rounds->averaging);
    }
}

void launcher_rounds_averaged(struct launcher *launcher, uint32_t rank, bool whole, uint64_t ended)
{
    bool first = !whole;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (!launcher_is_lost(launcher, r) && launcher->stages[r].averaged == AVERAGE_TORN) first = false;
    launcher->stages[rank].averaged = whole ? AVERAGE_WHOLE : AVERAGE_TORN;
    launcher->stages[rank].ended = ended;
    if (launcher->aborting || launcher->cause != CAUSE_NONE) return;
    if (first) break_off(launcher); /* whoever has a whole link to it waits for its part, too */
    look_at_average(launcher);
}

/* The replicas that were missing in the run that is repeated. */
static void repeat(struct launcher *launcher, uint64_t step)
{
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        if (launcher->rounds.replicas[w].lost || !logged_without(launcher, step, w)) continue;
        if (can_lose(launcher, w))
            lose(launcher, w);
        else
            launcher_fail(launcher, CAUSE_OWN, AQ_MISMATCH,
                          "--rounds: the round of step %" PRIu64 " cannot end without replica %u here", step, w);
    }
}

/* Those that have not come in time to the round's end, where others are. */
static void lose_late(struct launcher *launcher, uint64_t step)
{
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        struct launcher_replica *of = &launcher->rounds.replicas[w];
        const bool enters = of->state == REPLICA_ENTERS;
        if (of->lost || is_there(launcher, w, step)) continue;
        if (!launcher_return_is_late(launcher, w, launcher->rounds.first_ns)) continue;
        if (!can_lose(launcher, w) || !launcher_steps_known(launcher, w)) continue;
        char late[LATE_BYTES];
        launcher_return_late(launcher, w, late);
        if (!enters) of->late = of->cold ? of->late + 1 : 0;
        aq_progress_say(launcher->launch->progress, "replica %u %s%s", w,
                        enters ? late : "is late by more than reduce.patience",
                        enters ? ": the round ends without it" : ": its work of this round is dropped");
        if (!enters && of->late)
            aq_progress_say(launcher->launch->progress,
                            "replica %u sends samples that its message caches lack; while it does, it may be late by "
                            "%.0f s when it is back",
                            w, (double)launcher_return_patience(launcher, w) * 1e-9);
        lose(launcher, w);
    }
}

/*
 * Names the members, when nobody is waited for any more. By the watch's clock, which does not run while the launcher
 * does not look: who has come and is not heard yet is not late.
 */
static void decide(struct launcher *launcher)
{
    if (!is_on(launcher) || !launcher->gone || launcher->aborting || launcher->rounds.without) return;
    if (launcher->rounds.averaging) {
        if (launcher->cause == CAUSE_NONE) look_at_average(launcher);
        return;
    }
    const uint64_t step = next_round(launcher), now = launcher->watch.clock.now_ns + 1;
    uint32_t there = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        there += !launcher->rounds.replicas[w].lost && is_there(launcher, w, step);
    if (there == 0 || step <= launcher->rounds.decided) return;
    if (launcher->rounds.first_ns == 0) launcher->rounds.first_ns = now;
    if (!launcher->rounds.log) lose_late(launcher, step);
    if (there < living(launcher)) return;
    if (launcher->rounds.log && open_mark(launcher)) return; /* so that who is left out breaks none off */
    launcher_return_came(launcher, now - launcher->rounds.first_ns <= launcher->launch->bounds.patience_ns);
    repeat(launcher, step);
    if (launcher->cause == CAUSE_NONE) name_members(launcher, step);
}

void launcher_rounds_came(struct launcher *launcher, uint32_t rank, uint64_t step)
{
    (void)step;
    if (!launcher_is_lost(launcher, rank)) decide(launcher);
}

bool launcher_rounds_lose(struct launcher *launcher, uint32_t rank, const char *why)
{
    char who[RANK_NAME_BYTES];
    const uint32_t replica = rank / launcher->launch->stages;
    if (launcher_is_ignored(launcher, rank)) return !launcher->aborting;
    const bool starts = launcher->rounds.replicas[replica].state == REPLICA_STARTS;
    if (starts ? launcher->aborting || launcher->cause != CAUSE_NONE : !can_lose(launcher, replica)) return false;
    aq_progress_say(launcher->launch->progress, "%s %.300s: %s", rank_name(launcher, rank, who), why,
                    starts ? "its replica does not return yet" : "the round ends without its replica");
    lose(launcher, replica);
    decide(launcher);
    return true;
}

void launcher_rounds_turn(struct launcher *launcher)
{
    if (!is_on(launcher) || launcher->aborting) return;
    launcher_return_turn(launcher);
    if (launcher->rounds.first_ns || launcher->rounds.averaging) decide(launcher);
}

/* The members continue, and those that return enter. If one cannot, all start again from here. */
void launcher_rounds_marked(struct launcher *launcher, uint64_t step)
{
    if (launcher->rounds.without == 0 || step != launcher->rounds.without) return;
    if (launcher_is_dropped(launcher, step)) {
        launcher->rounds.without = 0;
        decide(launcher);
        return;
    }
    if (launcher->stopping && launcher->cause == CAUSE_NONE) { /* a stop ends at a round's end, with a checkpoint */
        launcher->stopped = true;
        launcher->last_step = step;
        launcher_abort(launcher);
        return;
    }
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        if (launcher->rounds.replicas[w].state != REPLICA_GONE) continue;
        if (launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED,
                          "the round of step %" PRIu64 " ended with %u of %u replicas, and has its checkpoint", step,
                          living(launcher), launcher->launch->replicas))
            launcher->result->transient = true;
        return;
    }
    launcher->rounds.without = 0;
    launcher_return_told(launcher, step);
    decide(launcher);
}

/* ---- repeating a run ---- */

static enum aq_status take_line(const json_t *line, void *context)
{
    struct launcher *launcher = context;
    char key[24];
    size_t index;
    json_t *number;
    const json_t *without = json_object_get(line, "without"), *caches = json_object_get(line, "caches");
    if (!aq_control_is(line, "event", "round")) return AQ_OK;
    const uint64_t step = aq_control_u64_or(line, "step", 0);
    bool good = launcher_rounds_due(launcher, step) && json_array_size(without) < launcher->launch->replicas &&
                launcher_steps_named(launcher, line);
    json_array_foreach(without, index, number)
    {
        const json_int_t replica = json_is_integer(number) ? json_integer_value(number) : -1;
        good = good && replica >= 0 && replica < (json_int_t)launcher->launch->replicas;
    }
    const char *name;
    json_object_foreach((json_t *)caches, name, number)
    {
        const json_int_t mark = json_is_integer(number) ? json_integer_value(number) : -1;
        good = good && mark >= 0 && (uint64_t)mark < step;
    }
    if (!good || !json_is_array(without) || (caches && !json_is_object(caches)))
        return aq_fail(AQ_MISMATCH, "launch",
                       "%s: its round of step %" PRIu64 " is none of this job: repeat a run with its own manifest",
                       launcher->launch->rounds, step);
    snprintf(key, sizeof key, "%" PRIu64, step);
    return json_object_set(launcher->rounds.log, key, (json_t *)line) == 0
               ? AQ_OK
               : aq_fail(AQ_NOMEM, "launch", "no memory for the rounds");
}

enum aq_status launcher_rounds_open(struct launcher *launcher)
{
    launcher->rounds.decided = launcher->launch->resume;
    launcher_return_open(launcher);
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        launcher->rounds.replicas[w].member = true;
    if (is_on(launcher)) launcher_return_gather_open(launcher);
    AQ_TRY(launcher_steps_open(launcher));
    if (!launcher->launch->rounds) return AQ_OK;
    if (!is_on(launcher)) return aq_fail(AQ_INVAL, "launch", "--rounds: the manifest has no reduce.patience");
    launcher->rounds.log = json_object();
    const enum aq_status status = aq_run_lines(launcher->launch->rounds, take_line, launcher);
    if (status == AQ_NOTFOUND) return aq_fail(status, "launch", "--rounds: cannot read %s", launcher->launch->rounds);
    return status;
}

void launcher_rounds_close(struct launcher *launcher)
{
    json_decref(launcher->rounds.log);
}
