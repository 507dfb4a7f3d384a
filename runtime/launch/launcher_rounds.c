/*
 * launcher_rounds.c -- reduce.patience: which replicas average at a round's end, and what follows where some do not.
 *
 *     worker          launcher
 *     round S    -->               each rank, at the end of the round that ends with step S
 *                <--  members S    to all ranks of the replicas that are there, one set for all stages
 *     ... the mean over the members, the outer step, a checkpoint of S if somebody is missing ...
 *     mark S     -->               the members' ranks; the first member's wrote the missing ones' files
 *
 * A replica with a rank that has ended, failed or is silent is lost. One that comes later than the first by more than
 * the patience is late: it is treated alike, and its work of this round is dropped. When the checkpoint is complete,
 * all workers are started again from it (restart.h): the missing replica has the members' weights and outer momentum.
 *
 * A loss is the whole run's, as without the key, where no round can end without the replica: while members that include
 * it may be averaging, while a checkpoint is not complete, in the last round, and where nobody else is left.
 *
 * What was decided is a line `round` in metrics.jsonl. launch->rounds repeats it: a round there that ended without some
 * replicas ends without them here, too, so that the weights are the same.
 */
#include <inttypes.h>

#include "launcher_private.h"
#include "run_lines.h"

bool launcher_is_lost(const struct launcher *launcher, uint32_t rank)
{
    return launcher->rounds.lost[rank / launcher->launch->stages];
}

static bool is_on(const struct launcher *launcher)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    return bounds->patience_ns > 0 && bounds->round_steps > 1 && !launcher->launch->ask && !launcher->launch->probe;
}

bool launcher_rounds_due(const struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    return is_on(launcher) && (step % bounds->round_steps == 0 || step == bounds->steps);
}

static uint64_t next_round(const struct launcher *launcher)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    const uint64_t next = (launcher->rounds.decided / bounds->round_steps + 1) * bounds->round_steps;
    return next < bounds->steps ? next : bounds->steps;
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
        count += !launcher->rounds.lost[w];
    return count;
}

/* May the next round end without this replica? */
static bool can_lose(const struct launcher *launcher, uint32_t replica)
{
    const struct aq_launch *launch = launcher->launch;
    const uint64_t decided = launcher->rounds.decided, every = launch->bounds.mark_every;
    if (!is_on(launcher) || !launcher->gone || launcher->aborting || launcher->cause != CAUSE_NONE || launch->bits)
        return false;
    if (launcher->rounds.without || next_round(launcher) == launch->bounds.steps) return false;
    if (living(launcher) < 2) return false;
    if (every > 0 && decided % every == 0 && decided > launcher->result->mark) return false;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (r / launch->stages != replica && !launcher_is_lost(launcher, r) && launcher->stages[r].step < decided)
            return false;
    return true;
}

static void lose(struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    launcher->rounds.lost[replica] = true;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++) {
        aq_watch_stage_gone(&launcher->watch, r);
        aq_metrics_lose(launcher->launch->metrics, r);
    }
    launcher_flush(launcher);
}

/* A run that was started again also notes rounds with all members: an older line of that step may have others. */
static void note(struct launcher *launcher, uint64_t step, uint64_t members)
{
    json_t *in = json_array(), *out = json_array();
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        json_array_append_new(members >> w & 1 ? in : out, json_integer((json_int_t)w));
    const enum aq_status status =
        aq_metrics_line(launcher->launch->metrics, json_pack("{s:s, s:I, s:o, s:o}", "event", "round", "step",
                                                             (json_int_t)step, "members", in, "without", out));
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
    if (living(launcher) == launcher->launch->replicas) return;
    aq_progress_say(launcher->launch->progress,
                    "step %" PRIu64 ": the round ends with %u of %u replicas; all continue from its checkpoint", step,
                    living(launcher), launcher->launch->replicas);
}

static void name_members(struct launcher *launcher, uint64_t step)
{
    uint64_t members = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (!launcher->rounds.lost[w]) members |= 1ull << w;
    const bool missing = living(launcher) < launcher->launch->replicas;
    if (missing) launcher->rounds.without = step;
    if (missing || launcher->launch->resume > 0) note(launcher, step, members);
    launcher->rounds.decided = step;
    launcher->rounds.first_ns = 0;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (!launcher_is_lost(launcher, r))
            stage_send(launcher, r,
                       json_pack("{s:s, s:I, s:I, s:o}", "op", "members", "rank", (json_int_t)r, "step",
                                 (json_int_t)step, "members", aq_control_hex(members)));
}

/* The replicas that were missing in the run that is repeated. */
static void repeat(struct launcher *launcher, uint64_t step)
{
    char key[24];
    size_t index;
    const json_t *number;
    snprintf(key, sizeof key, "%" PRIu64, step);
    json_array_foreach(json_object_get(launcher->rounds.log, key), index, number)
    {
        const json_int_t replica = json_integer_value(number);
        if (launcher->rounds.lost[replica]) continue;
        if (can_lose(launcher, (uint32_t)replica))
            lose(launcher, (uint32_t)replica);
        else
            launcher_fail(launcher, CAUSE_OWN, AQ_MISMATCH,
                          "--rounds: the round of step %" PRIu64 " cannot end without replica %u here", step,
                          (unsigned)replica);
    }
}

/* Names the members, when nobody is waited for any more. */
static void decide(struct launcher *launcher)
{
    if (!is_on(launcher) || !launcher->gone || launcher->aborting || launcher->rounds.without) return;
    const uint64_t step = next_round(launcher), now = aq_clock_ns();
    uint32_t there = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        there += !launcher->rounds.lost[w] && is_there(launcher, w, step);
    if (there == 0 || step <= launcher->rounds.decided) return;
    if (launcher->rounds.first_ns == 0) launcher->rounds.first_ns = now;
    if (now - launcher->rounds.first_ns > launcher->launch->bounds.patience_ns && !launcher->rounds.log)
        for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
            if (launcher->rounds.lost[w] || is_there(launcher, w, step) || !can_lose(launcher, w)) continue;
            aq_progress_say(launcher->launch->progress,
                            "replica %u is late by more than reduce.patience: its work of this round is dropped", w);
            lose(launcher, w);
        }
    if (there < living(launcher)) return;
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
    if (launcher_is_lost(launcher, rank)) return !launcher->aborting;
    if (!can_lose(launcher, rank / launcher->launch->stages)) return false;
    aq_progress_say(launcher->launch->progress, "%s %.300s: the round ends without its replica",
                    rank_name(launcher, rank, who), why);
    lose(launcher, rank / launcher->launch->stages);
    decide(launcher);
    return true;
}

void launcher_rounds_turn(struct launcher *launcher)
{
    if (launcher->rounds.first_ns) decide(launcher);
}

void launcher_rounds_marked(struct launcher *launcher, uint64_t step)
{
    if (launcher->rounds.without == 0 || step != launcher->rounds.without) return;
    if (launcher->stopping && launcher->cause == CAUSE_NONE) { /* a stop ends at a round's end, with a checkpoint */
        launcher->stopped = true;
        launcher->last_step = step;
        launcher_abort(launcher);
        return;
    }
    if (launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED,
                      "the round of step %" PRIu64 " ended with %u of %u replicas, and has its checkpoint", step,
                      living(launcher), launcher->launch->replicas))
        launcher->result->transient = true;
}

/* ---- repeating a run ---- */

static enum aq_status take_line(const json_t *line, void *context)
{
    struct launcher *launcher = context;
    char key[24];
    size_t index;
    const json_t *number, *without = json_object_get(line, "without");
    if (!aq_control_is(line, "event", "round")) return AQ_OK;
    const uint64_t step = aq_control_u64_or(line, "step", 0);
    bool good = launcher_rounds_due(launcher, step) && json_array_size(without) < launcher->launch->replicas;
    json_array_foreach(without, index, number)
    {
        const json_int_t replica = json_is_integer(number) ? json_integer_value(number) : -1;
        good = good && replica >= 0 && replica < (json_int_t)launcher->launch->replicas;
    }
    if (!good || !json_is_array(without))
        return aq_fail(AQ_MISMATCH, "launch",
                       "%s: its round of step %" PRIu64 " is none of this job: repeat a run with its own manifest",
                       launcher->launch->rounds, step);
    snprintf(key, sizeof key, "%" PRIu64, step);
    return json_object_set(launcher->rounds.log, key, (json_t *)without) == 0
               ? AQ_OK
               : aq_fail(AQ_NOMEM, "launch", "no memory for the rounds");
}

enum aq_status launcher_rounds_open(struct launcher *launcher)
{
    launcher->rounds.decided = launcher->launch->resume;
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
