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
 *
 * The file lies where the first member's rank has written it. A rank of another host, whose folder does not have it,
 * asks for it (`fetch`) and gets it from that rank over a link of its own (worker_snapshot.c):
 *
 *     stood-in <- the writer      enter -> the rank      listening, fetch <- the rank      connect, give -> the writer
 *
 * If the file does not come (the writer is lost, cannot connect, or sends another one), the replica is lost again, and
 * returns at a later round's end.
 *
 * All may start from that checkpoint, too: it is noted in hashes.json who wrote which file. Then each rank first gets
 * its file, in the same way, and waits. When all have theirs, all `enter`, and make their links as at any start:
 *
 *     start (waits, from) -> the rank      fetch <- the rank      give -> the writer, which waits, too
 *     doing (weights) <- each rank         enter -> all
 *
 * If a file does not come, the checkpoint cannot be read: all start from the one before, or the run ends (restart.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "launcher_private.h"
#include "runtime_text.h"

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
    /* The file was written for the rank, whichever process of it comes. */
    *stage = (struct stage){.host = stage->host, .file = stage->file};
    stage->file.asked = false;
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

/* A run that repeats this one lets a replica enter only where it averages at the end of its first round. */
void launcher_return_over(struct launcher *launcher, uint64_t step, uint64_t returned, uint64_t entering)
{
    struct launcher_rounds *rounds = &launcher->rounds;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++)
        if (returned >> w & 1) rounds->replicas[w].caches = rounds->replicas[w].from;
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

/* If another rank has written this one's file of the step. */
static void add_file(const struct stage *stage, uint64_t step, json_t *message)
{
    if (stage->file.step != step) return;
    json_object_set_new(message, "from", json_integer((json_int_t)stage->file.by));
    json_object_set_new(message, "bytes", json_integer((json_int_t)stage->file.bytes));
    json_object_set_new(message, "sha256", json_string(stage->file.hash));
}

static json_t *enter_of(uint32_t rank, uint64_t step)
{
    return json_pack("{s:s, s:I, s:I}", "op", "enter", "rank", (json_int_t)rank, "step", (json_int_t)step);
}

void launcher_return_told(struct launcher *launcher, uint64_t step)
{
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        struct launcher_replica *of = replica_of(launcher, r);
        if (of->state != REPLICA_ENTERS || of->from != step) continue;
        of->deadline_ns = launcher->watch.clock.now_ns + launcher->launch->ready_ns_max;
        launcher->stages[r].mark = step;
        json_t *message = enter_of(r, step);
        add_file(&launcher->stages[r], step, message);
        stage_send(launcher, r, message);
    }
}

/* ---- its files ---- */

void launcher_return_stood_in(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *of = &launcher->stages[message->stood_in.to];
    of->file.step = message->stood_in.step;
    of->file.bytes = message->stood_in.bytes;
    of->file.by = rank;
    of->file.asked = false;
    memcpy(of->file.hash, message->stood_in.sha256, AQ_HASH_TEXT_BYTES);
}

/* The rank does not get its file. */
static void cannot_enter(struct launcher *launcher, uint32_t rank, const char *why)
{
    char who[RANK_NAME_BYTES], text[400];
    snprintf(text, sizeof text, "does not get its checkpoint from %s: %.300s",
             rank_name(launcher, launcher->stages[rank].file.by, who), why);
    launcher->stages[rank].file.asked = false;
    if (launcher_rounds_lose(launcher, rank, text)) return;
    const bool starts = launcher->rounds.gathers;
    rank_name(launcher, rank, who);
    /* Before all start: a process that was lost is a better cause, after which the next start may find the file. */
    if (starts ? !launcher_fail(launcher, CAUSE_ECHO, AQ_ABORTED,
                                "%s %s (if another disk has %" PRIu64 "/stage-%u.safetensors, copy it to its folder)",
                                who, text, launcher->launch->resume, rank)
               : !launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED, "%s %s", who, text))
        return;
    launcher->result->transient = true;
    launcher->result->unreadable = starts;
}

static void giver_is_lost(struct launcher *launcher, uint32_t rank)
{
    struct launcher_replica *of = replica_of(launcher, rank);
    if (of->tries > 0) of->tries--; /* it is not this replica that fails to start */
    cannot_enter(launcher, rank, "it is lost");
}

void launcher_return_fetch(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    const uint32_t by = stage->file.by;
    stage->file.asked = true;
    if (launcher->aborting || launcher->cause != CAUSE_NONE) return;
    if (launcher_is_lost(launcher, by)) {
        giver_is_lost(launcher, rank);
        return;
    }
    char who[RANK_NAME_BYTES], other[RANK_NAME_BYTES], size[AQ_TEXT_NUMBER];
    aq_progress_say(launcher->launch->progress, "%s gets its checkpoint of step %" PRIu64 " (%s) from %s",
                    rank_name(launcher, rank, who), message->fetch.step, aq_text_size(stage->file.bytes, size),
                    rank_name(launcher, by, other));
    stage_send(launcher, by,
               json_pack("{s:s, s:I, s:I, s:I, s:s, s:I}", "op", "give", "rank", (json_int_t)by, "step",
                         (json_int_t)message->fetch.step, "to", (json_int_t)rank, "address", message->fetch.address,
                         "bytes", (json_int_t)stage->file.bytes));
}

static bool waits_for_file(const struct launcher *launcher, uint32_t rank)
{
    const struct launcher_replica *of = &launcher->rounds.replicas[rank / launcher->launch->stages];
    const struct stage *stage = &launcher->stages[rank];
    const bool starts = launcher->rounds.gathers && stage->phase < AQ_PHASE_WEIGHTS;
    return (starts || of->state == REPLICA_ENTERS) && stage->state == STAGE_STARTED && stage->file.asked;
}

void launcher_return_ungiven(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint64_t to = message->ungiven.to;
    char why[300];
    if (to >= launcher->ranks || !waits_for_file(launcher, (uint32_t)to)) return;
    if (launcher->stages[to].file.by != rank || launcher->stages[to].file.step != message->ungiven.step) return;
    cannot_enter(launcher, (uint32_t)to, aq_printable_text(message->ungiven.text, why, sizeof why));
}

bool launcher_return_fetches(const struct launcher *launcher, uint32_t replica)
{
    const uint32_t P = launcher->launch->stages;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (waits_for_file(launcher, r)) return true;
    return false;
}

void launcher_return_giver_lost(struct launcher *launcher, uint32_t replica)
{
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (waits_for_file(launcher, r) && launcher->stages[r].file.by / launcher->launch->stages == replica)
            giver_is_lost(launcher, r);
}

void launcher_return_late(const struct launcher *launcher, uint32_t replica, char text[LATE_BYTES])
{
    const uint32_t P = launcher->launch->stages;
    const double seconds = (double)launcher->launch->ready_ns_max * 1e-9;
    char size[AQ_TEXT_NUMBER];
    uint64_t bytes = 0;
    for (uint32_t r = replica * P; r < (replica + 1) * P; r++)
        if (waits_for_file(launcher, r) && launcher->stages[r].file.bytes > bytes)
            bytes = launcher->stages[r].file.bytes;
    snprintf(text, LATE_BYTES, "has not read its checkpoint in time (%.0f s)", seconds);
    const size_t used = strlen(text);
    if (bytes > 0)
        snprintf(text + used, LATE_BYTES - used, ", a file of %s, for which its line needs %.3g Mbit/s",
                 aq_text_size(bytes, size), (double)bytes * 8e-6 / seconds);
}

/* ---- all start ---- */

void launcher_return_gather_open(struct launcher *launcher)
{
    const uint64_t resume = launcher->launch->resume;
    for (uint32_t r = 0; r < launcher->ranks && resume > 0 && launcher->launch->fetches; r++)
        if (launcher_hash_stood_in(launcher, resume, r)) launcher->rounds.gathers = true;
}

void launcher_return_gather_add(const struct launcher *launcher, uint32_t rank, json_t *start)
{
    if (!launcher->rounds.gathers) return;
    json_object_set_new(start, "waits", json_true());
    add_file(&launcher->stages[rank], launcher->launch->resume, start);
}

void launcher_return_gathered(struct launcher *launcher)
{
    if (!launcher->rounds.gathers || launcher->aborting || launcher->cause != CAUSE_NONE) return;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].phase < AQ_PHASE_WEIGHTS) return;
    launcher->rounds.gathers = false;
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        launcher->stages[r].file.asked = false;
        stage_send(launcher, r, enter_of(r, launcher->launch->resume));
    }
}

bool launcher_return_gather_late(struct launcher *launcher)
{
    char text[LATE_BYTES];
    uint32_t rank = 0;
    while (rank < launcher->ranks && !waits_for_file(launcher, rank))
        rank++;
    if (rank == launcher->ranks) return false;
    launcher_return_late(launcher, rank / launcher->launch->stages, text);
    if (launcher_fail(launcher, CAUSE_OWN, AQ_TIMEOUT, "replica %u %s", rank / launcher->launch->stages, text))
        launcher->result->transient = launcher->result->unreadable = true;
    return true;
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
