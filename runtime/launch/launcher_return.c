/*
 * launcher_return.c -- a lost replica returns while the others train (reduce.patience).
 *
 *     TRAINS --lost--> ENDS --all its processes have ended--> STARTS --a round ends without it--> ENTERS --> TRAINS
 *                       ^                                       |                                  |
 *                       +---------------- a process fails ------+----------------------------------+
 *     ENDS --they have ended, and a daemon of it is out of reach--> AWAY --the daemon answers--> STARTS
 *     ENDS, STARTS, ENTERS --launch->returns starts in a row, or too slow--> GONE
 *     ENTERS --the checkpoint that it was to read is broken off--> STARTS
 *
 * ENDS: its other processes are of no use without the lost one. Each gets SIGKILL, so that one that is stopped
 * ends, too. AWAY: a daemon that had some of them was lost, and is tried again (launcher_reach.c), however long
 * that takes; only a round that cannot end without the replica waits no longer than for a start. STARTS: the new
 * ones open devices and data, and then need weights. Those exist at the end of a round: there the checkpoint that
 * follows a round without a replica has its files, written by the first member (launcher_rounds.c). ENTERS: it
 * counts from the next step on, as any other replica: its processes read that checkpoint, link up among themselves
 * and train the round. Links to the other replicas are made at the round's end, when all have come there. GONE: the
 * next round without it is the last one of these processes, as before there was a way to return.
 *
 * So nobody waits for its start, and what it enters with is a file that a restart of all would read: the same bits. Its
 * message caches have no mark of that step. They are opened at that of the newest checkpoint before its loss (which
 * launcher_rounds.c tells the first member, whose files say it), and get a mark of that step before it trains.
 *
 * Caches that are gone, or were in memory, start empty. Then it sends each sample whole at the first visit, which over
 * a slow line may make it late in each round, be lost, and start with empty caches again. So each time that it was late
 * in such a round it may be late for twice as long, until it comes in time or its caches lack nothing.
 */
#include <inttypes.h>

#include "launcher_private.h"

static struct launcher_replica *replica_of(struct launcher *launcher, uint32_t rank)
{
    return &launcher->rounds.replicas[rank / launcher->launch->stages];
}

static bool all_are(const struct launcher *launcher, uint32_t replica, enum stage_state state)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (launcher->stages[r].state != state) return false;
    return true;
}

/* What the launcher knows of the old process is not the new one's. */
static void forget_rank(struct launcher *launcher, uint32_t rank)
{
    struct stage *stage = &launcher->stages[rank];
    json_decref(stage->report);
    json_decref(stage->evals);
    *stage = (struct stage){.host = stage->host};
    for (uint32_t r = 0; r < launcher->ranks; r++)
        launcher->stages[r].listens[rank / 64] &= ~(1ull << rank % 64);
    launcher->ended--;
}

/* Its processes have ended: new ones start, where there are daemons for all. */
static void start_again(struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    struct launcher_replica *of = &launcher->rounds.replicas[replica];
    of->state = launcher_reach_all(launcher, replica) ? REPLICA_STARTS : REPLICA_AWAY;
    if (of->state == REPLICA_AWAY) return;
    of->tries++;
    of->deadline_ns = launcher->watch.clock.now_ns + launcher->launch->ready_ns_max;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++) {
        forget_rank(launcher, r);
        host_start(launcher, r, true);
    }
}

static void end_all(struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (launcher->stages[r].state != STAGE_EXITED)
            stage_send(launcher, r, json_pack("{s:s, s:I}", "op", "end", "rank", (json_int_t)r));
}

void launcher_return_begin(struct launcher *launcher, uint32_t replica)
{
    struct launcher_replica *of = &launcher->rounds.replicas[replica];
    of->state = REPLICA_GONE;
    if (of->tries >= launcher->launch->returns) return;
    of->state = REPLICA_ENDS;
    of->deadline_ns = launcher->watch.clock.now_ns + launcher->launch->ready_ns_max;
    end_all(launcher, replica);
    if (all_are(launcher, replica, STAGE_EXITED)) start_again(launcher, replica);
}

bool launcher_return_exited(struct launcher *launcher, uint32_t rank)
{
    if (replica_of(launcher, rank)->state != REPLICA_ENDS) return false;
    if (launcher->aborting || launcher->cause != CAUSE_NONE) return true;
    if (all_are(launcher, rank / launcher->launch->stages, STAGE_EXITED))
        start_again(launcher, rank / launcher->launch->stages);
    return true;
}

bool launcher_return_is_late(const struct launcher *launcher, uint32_t replica, uint64_t first_ns)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[replica];
    const uint64_t now = launcher->watch.clock.now_ns, since = first_ns > of->go_ns ? first_ns : of->go_ns;
    if (of->state == REPLICA_ENTERS) return now > of->deadline_ns;
    return now + 1 - since > launcher_return_patience(launcher, replica);
}

uint64_t launcher_return_patience(const struct launcher *launcher, uint32_t replica)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[replica];
    uint64_t patience = launcher->launch->bounds.patience_ns;
    for (uint32_t i = 0; of->cold && i < of->late && patience < launcher->launch->ready_ns_max; i++)
        patience *= 2;
    return patience;
}

void launcher_return_cold(struct launcher *launcher, uint32_t rank)
{
    struct launcher_replica *of = replica_of(launcher, rank);
    if (of->from > launcher->launch->resume) of->cold = true;
}

/* Is there a checkpoint after that step in each run of the job? */
static bool is_regular(const struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    return step > 0 && launcher_is_due(bounds->mark_every, step, bounds->steps);
}

/*
 * Not sure is a mark that only this run has, and not one that repeats it by its log: of a checkpoint for a return that
 * did not come about. It may have replaced the mark before it, so then no mark is sure.
 */
void launcher_return_marked(struct launcher *launcher, uint64_t step, bool complete)
{
    const bool sure = complete || is_regular(launcher, step);
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        struct launcher_replica *of = &launcher->rounds.replicas[w];
        if (of->state == REPLICA_TRAINS && !of->lost && step > of->from) of->caches = sure ? step : 0;
    }
}

void launcher_return_open(struct launcher *launcher)
{
    const uint64_t step = launcher->launch->resume;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        launcher->rounds.replicas[w].caches = is_regular(launcher, step) ? step : 0;
}

void launcher_return_over(struct launcher *launcher, uint64_t step, uint64_t entering)
{
    struct launcher_rounds *rounds = &launcher->rounds;
    const bool none = rounds->entered && !(rounds->entered & rounds->named);
    for (uint32_t w = 0; w < launcher->launch->replicas && none && !is_regular(launcher, rounds->entered_at); w++)
        if (rounds->replicas[w].caches == rounds->entered_at) rounds->replicas[w].caches = 0;
    rounds->entered = entering;
    rounds->entered_at = step;
}

void launcher_return_came(struct launcher *launcher, bool in_time)
{
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        launcher->rounds.replicas[w].cold = false;
        if (in_time && !launcher->rounds.replicas[w].lost) launcher->rounds.replicas[w].late = 0;
    }
}

void launcher_return_reached(struct launcher *launcher)
{
    if (launcher->aborting || launcher->cause != CAUSE_NONE) return;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (launcher->rounds.replicas[w].state == REPLICA_AWAY) start_again(launcher, w);
}

bool launcher_return_may(const struct launcher *launcher, uint32_t replica)
{
    const enum replica_state state = launcher->rounds.replicas[replica].state;
    return state == REPLICA_ENDS || state == REPLICA_AWAY || state == REPLICA_STARTS;
}

bool launcher_return_waits(const struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    if (launcher->rounds.replicas[replica].state != REPLICA_STARTS) return false;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (launcher->stages[r].state != STAGE_STARTED || launcher->stages[r].phase != AQ_PHASE_WEIGHTS) return false;
    return true;
}

void launcher_return_enter(struct launcher *launcher, uint32_t replica, uint64_t step)
{
    const uint32_t P = launcher->launch->stages;
    struct launcher_replica *of = &launcher->rounds.replicas[replica];
    of->state = REPLICA_ENTERS;
    of->lost = false;
    of->from = step;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++) {
        struct stage *stage = &launcher->stages[r];
        stage->step = stage->round = stage->evaluated = step;
        aq_metrics_without(launcher->launch->metrics, r, 0, step);
    }
}

void launcher_return_told(struct launcher *launcher, uint64_t step)
{
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        const struct launcher_replica *of = replica_of(launcher, r);
        if (of->state == REPLICA_ENTERS && of->from == step) {
            launcher->rounds.replicas[r / launcher->launch->stages].deadline_ns =
                launcher->watch.clock.now_ns + launcher->launch->ready_ns_max;
            launcher->stages[r].mark = step;
            stage_send(launcher, r,
                       json_pack("{s:s, s:I, s:I}", "op", "enter", "rank", (json_int_t)r, "step", (json_int_t)step));
        }
    }
}

void launcher_return_stay(struct launcher *launcher, uint64_t step)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        struct launcher_replica *of = &launcher->rounds.replicas[w];
        if (of->state != REPLICA_ENTERS || of->from != step) continue;
        of->state = REPLICA_STARTS;
        of->lost = true;
        for (uint32_t r = w * P; r < (w + 1) * P; r++)
            aq_metrics_without(launcher->launch->metrics, r, 0, UINT64_MAX);
    }
}

void launcher_return_ready(struct launcher *launcher, uint32_t rank)
{
    const uint32_t P = launcher->launch->stages, replica = rank / P;
    struct launcher_replica *of = &launcher->rounds.replicas[replica];
    if (of->state != REPLICA_ENTERS || !all_are(launcher, replica, STAGE_READY)) return;
    of->state = REPLICA_TRAINS;
    of->caches = of->from;
    of->go_ns = launcher->watch.clock.now_ns + 1;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++) {
        json_t *message = json_pack("{s:s, s:I}", "op", "go", "rank", (json_int_t)r);
        launcher_steps_add(launcher, r, message);
        stage_send(launcher, r, message);
    }
    aq_progress_say(launcher->launch->progress, "replica %u is back, from step %" PRIu64, replica,
                    launcher_steps_due(launcher, replica * P));
}

void launcher_return_turn(struct launcher *launcher)
{
    const uint64_t now = launcher->watch.clock.now_ns;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        struct launcher_replica *of = &launcher->rounds.replicas[w];
        if (of->state == REPLICA_AWAY && !launcher_rounds_held(launcher))
            of->deadline_ns = now + launcher->launch->ready_ns_max;
        else if (launcher_return_may(launcher, w) && launcher_rounds_held(launcher))
            launcher->watch.progress_ns = now; /* the others wait for it, until its deadline */
        if (!launcher_return_may(launcher, w) || launcher_return_waits(launcher, w) || now <= of->deadline_ns) continue;
        aq_progress_say(launcher->launch->progress, "replica %u has not started again in time: it does not return", w);
        of->state = REPLICA_GONE;
        end_all(launcher, w);
    }
}
