/*
 * split_round.c -- rounds: their clients and order, the initial weights of each turn, and the merge at a round's end
 * (docs/SPLIT.md section 3).
 *
 *     mode        ends start with   the middle with            result of a turn; the round's end
 *     relay       weights/W         weights/W                  weights/W', which is W from then on
 *     splitfed1   weights/W         weights/W                  round/NAME; all three averaged: weights/W'
 *     splitfed2   weights/W         round/LAST, or weights/W   round/NAME; ends averaged, round/LAST's middle
 *     global      as splitfed1, all turns at once, in step with each other (split_sums.c)
 *
 * All of it is decided by split.json, which is written whole: a server that is killed at any moment continues without a
 * difference. The elapsed time of a round is written there now and then, too: its deadline counts only the time that a
 * server ran.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "split_private.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

static bool federated(const struct server *server)
{
    return server->job->split.mode != AQ_SPLIT_RELAY;
}

enum aq_status round_middle(const struct server *server, char out[AQ_RUN_PATH_BYTES])
{
    if (server->job->split.mode == AQ_SPLIT_FED2 && server->last[0])
        return state_path(server, out, "round/%s", server->last);
    return state_path(server, out, "weights/%d", server->weights);
}

enum aq_status round_ends(const struct server *server, const struct site *site, char out[AQ_RUN_PATH_BYTES])
{
    if (!federated(server)) return state_path(server, out, "weights/%d", server->weights == 0 ? 1 : 0);
    AQ_TRY(state_path(server, out, "round/%s", site->name));
    return aq_run_make_folder(out);
}

/* ---- steps of all, with global sampling ---- */

uint64_t round_steps(const struct server *server)
{
    const uint64_t batch = server->job->train.batch;
    return server->job->split.epochs * ((server->all_samples + batch - 1) / batch);
}

uint64_t turn_shift(const struct server *server, const struct site *site)
{
    return (server->round - 1) * round_steps(server) - site->begin;
}

/* ---- who, and in which order ---- */

/* A pure function of seed, round and name. */
uint64_t round_place(const struct server *server, const struct site *site, uint32_t round)
{
    const uint64_t numbers[2] = {server->job->train.seed, round};
    return aq_digest_seeded(site->name, strlen(site->name), aq_digest(numbers, sizeof numbers));
}

/* A turn that has begun is the first: a client that joins during the round may precede its client in the order. */
static bool before(const struct server *server, const struct site *a, const struct site *b)
{
    if ((a->until > 0) != (b->until > 0)) return a->until > 0;
    return round_place(server, a, server->round) < round_place(server, b, server->round);
}

/* Those that this round is not done with, in order. */
static uint32_t due_of(struct server *server, struct site *due[AQ_JOB_CLIENTS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        if (site->round >= server->round) continue;
        uint32_t at = count++;
        for (; at > 0 && before(server, site, due[at - 1]); at--)
            due[at] = due[at - 1];
        due[at] = site;
    }
    return count;
}

/* The round starts: the first of its order take part, as many as split.participation sets, and the others rest. */
static void round_draw(struct server *server)
{
    struct site *due[AQ_JOB_CLIENTS_MAX];
    const uint32_t count = due_of(server, due);
    /* A tenth of ten is one: a tenth as a float is a little more than one. */
    const double wanted = fmax(1, ceil((double)server->job->split.participation * count - 1e-5));
    for (uint32_t i = 0; i < count; i++) {
        if (server->job->split.mode != AQ_SPLIT_GLOBAL) due[i]->late = false; /* else it began with some of them late */
        if (i < wanted) continue;
        due[i]->round = server->round;
        due[i]->rested++;
    }
    server->drawn = server->round;
    server_save(server);
}

/* Time that the round has had of this server and of those before it. */
uint64_t round_elapsed_ns(const struct server *server)
{
    return server->round_before_ns + (aq_clock_ns() - server->round_ns);
}

/* split.json often enough that a restart gives a round little of its time again. */
static void deadline_keep(struct server *server, uint64_t most_ns)
{
    const uint64_t sixteenth = most_ns / 16;
    const uint64_t every = sixteenth < second_ns ? second_ns : sixteenth > 60 * second_ns ? 60 * second_ns : sixteenth;
    if (round_elapsed_ns(server) >= server->round_kept_ns + every) server_save(server);
}

static void round_next(struct server *server)
{
    if (server->round > 0 && server->all_samples > 0) server->steps_before += round_steps(server);
    server->round++;
    server->round_ns = aq_clock_ns();
    server->round_before_ns = server->round_kept_ns = 0;
    server->last[0] = 0;
    server_save(server);
}

/* ---- its end ---- */

static const struct aq_plan *any_plan(const struct server *server)
{
    for (uint32_t i = 0; i < server->site_count; i++)
        if (server->sites[i].job.plan) return server->sites[i].job.plan;
    return NULL;
}

static uint32_t kept(const struct server *server)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        count += server->sites[i].kept;
    return count;
}

/* Merges all turns of the round: the newest weights, in the other folder. */
static enum aq_status merge(const struct server *server, const struct aq_plan *plan)
{
    const int to = server->weights == 0 ? 1 : 0;
    for (uint32_t rank = 0; rank < plan->stage_count; rank++) {
        char from[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES];
        if (server->job->split.mode != AQ_SPLIT_FED2 || rank != AQ_SPLIT_SERVERS) {
            AQ_TRY(weights_average(server, plan, rank, to));
            continue;
        }
        AQ_TRY(state_path(server, from, "round/%s/stage-%u.safetensors", server->last, rank));
        AQ_TRY(state_path(server, path, "weights/%d/stage-%u.safetensors", to, rank));
        AQ_TRY(aq_split_copy(from, path));
    }
    return AQ_OK;
}

/* Removes a turn's files after the average. A file that stays is overwritten by the client's next turn. */
static void forget(const struct server *server, const struct site *site)
{
    char folder[AQ_RUN_PATH_BYTES], name[32];
    if (state_path(server, folder, "round/%s", site->name) != AQ_OK) return;
    for (uint32_t rank = 0; rank < server->job->pipeline.stage_count; rank++) {
        snprintf(name, sizeof name, "stage-%u.safetensors", rank);
        (void)aq_file_remove(folder, name);
    }
}

enum aq_status round_plan(const struct server *server, struct aq_split_job *again, const struct aq_plan **plan)
{
    char path[AQ_RUN_PATH_BYTES];
    *again = (struct aq_split_job){0};
    *plan = any_plan(server);
    for (uint32_t i = 0; i < server->site_count && !*plan; i++) {
        if (server->sites[i].turns == 0) continue;
        AQ_TRY(state_path(server, path, "turns/%s.yaml", server->sites[i].name));
        AQ_TRY(aq_job_load(path, NULL, 0, &again->job));
        AQ_TRY(aq_plan_open(again->job, &again->plan));
        *plan = again->plan;
    }
    return AQ_OK;
}

static enum aq_status average(const struct server *server)
{
    struct aq_split_job again;
    const struct aq_plan *plan;
    enum aq_status status = round_plan(server, &again, &plan);
    if (status == AQ_OK) status = merge(server, plan);
    aq_split_job_close(&again);
    return status;
}

/* All that take part are done. */
static void round_end(struct server *server)
{
    bool was[AQ_JOB_CLIENTS_MAX] = {false};
    const uint32_t count = kept(server);
    if (count > 0) {
        if (average(server) != AQ_OK) {
            server_fails(server, NULL);
            return;
        }
        server->weights = server->weights == 0 ? 1 : 0;
        server_say(server, "round %u: the turns of %u client%s are averaged", server->round, count,
                   count == 1 ? "" : "s");
        for (uint32_t i = 0; i < server->site_count; i++) {
            was[i] = server->sites[i].kept;
            server->sites[i].kept = false;
        }
    }
    sums_forget(server); /* before that is written: a server that is killed here repeats it */
    round_next(server);
    for (uint32_t i = 0; i < server->site_count && !server->over; i++)
        if (was[i]) forget(server, &server->sites[i]);
}

/* The deadline is over: whoever has not trained yet is late. */
static void too_late(struct server *server, struct site *const *due, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (due[i]->pid) kill(due[i]->pid, SIGTERM); /* all at once: each may take a moment */
    for (uint32_t i = 0; i < count && !server->over; i++) {
        due[i]->lates += !due[i]->late;
        due[i]->late = true;
        turn_miss(server, due[i], "it is late: the round's time is over (split.round_deadline)");
    }
}

/* ---- what is due ---- */

/* Initial weights of the first turn. */
static void weights_first(struct server *server)
{
    const struct aq_plan *plan = any_plan(server);
    if (!plan) return;
    if (join_settle(server) != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    plan = any_plan(server); /* that one was of a single client */
    if (weights_begin(server, plan) != AQ_OK) {
        server_fails(server, NULL);
        return;
    }
    server->weights = 0;
    server->vocabulary = plan->model.vocabulary;
    server->labels = plan->model.labels;
    if (server->round == 0)
        round_next(server);
    else
        server_save(server);
}

static void turns_advance(struct server *server, struct site *const *due, uint32_t count)
{
    const uint32_t most = server->job->split.mode == AQ_SPLIT_GLOBAL ? count : server->job->split.parallel;
    uint32_t busy = 0;
    for (uint32_t i = 0; i < count; i++)
        busy += due[i]->control && due[i]->offered;
    for (uint32_t i = 0; i < count && !server->over; i++) {
        const bool waits = due[i]->control && !due[i]->offered;
        if (waits && busy >= most) continue;
        turn_due(server, due[i]);
        busy += waits;
    }
}

uint64_t round_turns(const struct server *server)
{
    uint64_t turns = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        turns += server->sites[i].turns;
    return turns;
}

const struct site *round_cause(const struct server *server)
{
    for (uint32_t i = 0; i < server->site_count; i++)
        if (server->sites[i].missed_why[0]) return &server->sites[i];
    return NULL;
}

/* Each client hears whether the job trained anything, how many turns of it were trained, and why it missed its last. */
static void rounds_over(struct server *server)
{
    const bool trained = round_turns(server) > 0;
    server->over = true;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *each = &server->sites[i];
        if (each->turns == 0 && each->missed > 0)
            server_say(server, "%s has trained in none of the rounds; it missed its last turn: %s", each->name,
                       each->missed_why[0] ? each->missed_why : "no reason is known");
        char text[AQ_SPLIT_TEXT_BYTES];
        turn_text(each->missed_why, text);
        json_t *line = json_pack("{s:s, s:b, s:I, s:s}", "event", "end", "trained", trained, "turns",
                                 (json_int_t)each->turns, "text", text);
        if (!turn_tell(server, each, line)) continue;
        (void)aq_control_flush(each->control, aq_clock_after(5 * second_ns));
    }
}

/* A server that was killed after the last round: does a client not know yet that it is over? Waits for split.wait. */
static bool some_unaware(const struct server *server)
{
    bool any = false;
    for (uint32_t i = 0; i < server->site_count; i++)
        any |= server->sites[i].control == NULL;
    return any && aq_clock_ns() - server->round_ns < server->job->split.wait_ns;
}

void round_advance(struct server *server)
{
    struct site *due[AQ_JOB_CLIENTS_MAX];
    if (server->over || server->stopping) return;
    if (server->weights == SPLIT_WEIGHTS_NONE) {
        if (server->round > 0 || join_agreed(server)) weights_first(server);
        return;
    }
    if (server->round > server->job->split.rounds) {
        if (!some_unaware(server)) rounds_over(server);
        return;
    }
    if (server->drawn < server->round && !join_gathered(server)) return;
    if (server->drawn < server->round) round_draw(server);
    if (server->over) return;
    const uint64_t most_ns = server->job->split.round_deadline_ns;
    const uint32_t count = due_of(server, due);
    if (count > 0 && most_ns && round_elapsed_ns(server) > most_ns) {
        too_late(server, due, count);
        return;
    }
    if (most_ns) deadline_keep(server, most_ns);
    if (server->over) return;
    if (count > 0) {
        /* Those of splitfed1 need nothing of each other: each is waited for by itself. */
        const bool each = server->job->split.mode == AQ_SPLIT_FED1 || server->job->split.mode == AQ_SPLIT_GLOBAL;
        turns_advance(server, due, each ? count : 1);
        /* Global sampling has no next turn. */
        if (!server->over && server->job->split.mode != AQ_SPLIT_GLOBAL) ahead_advance(server, due, count);
        return;
    }
    round_end(server);
    if (!server->over && server->round > server->job->split.rounds) rounds_over(server);
}
