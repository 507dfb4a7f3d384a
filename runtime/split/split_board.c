/*
 * split_board.c -- a split-server's output: the status page of status.listen, events with --json, and status.json.
 *
 * All come from the present state, in each turn of the loop where somebody reads a page or --json, else once a second.
 * A difference from the last report is an event, so the code that admits clients or gives them turns depends on none of
 * them. A client's loss, accuracy and bytes are read from its run after each of its turns, with a page or --json only:
 * that takes time by the length of the run, and `aqpipe status` reads the runs itself.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json_text.h"
#include "page.h"
#include "split_private.h"

/* status.json is written at most once in this time: with global sampling who waits for whom changes in each step. */
static const uint64_t write_ns = 1000ULL * 1000 * 1000;

enum { WAITS_BYTES = 192 };

struct shown {
    json_t *written;        /* status.json as it is on disk; NULL: not yet */
    uint64_t looked_ns;     /* when it was compared last                   */
    bool unwritable;        /* which was said                              */
    struct aq_board *board; /* NULL: no page */
    struct aq_page *page;
    bool begun;
    uint32_t round;
    struct told {
        bool here;
        uint32_t turns, missed;
        pid_t pid; /* of the launcher whose turn was reported last; 0: none runs */
    } told[AQ_JOB_CLIENTS_MAX];
    struct aq_board_split now;
};

/* Takes the reference. */
static void event(const struct server *server, json_t *line)
{
    if (line) aq_progress_json(server->config->progress, line);
    json_decref(line);
}

/* The client that has a turn at this moment, or NULL. */
static const struct site *who_trains(const struct server *server)
{
    for (uint32_t i = 0; i < server->site_count; i++)
        if (server->sites[i].pid != 0) return &server->sites[i];
    return NULL;
}

/* A client that is due in this round, has not joined again, and is waited for, or NULL. */
static const struct site *who_is_away(const struct server *server)
{
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        if (!site->control && site->round < server->round && server->round > 0) return site;
    }
    return NULL;
}

static void does_text(const struct server *server, const struct site *site, char *out, size_t bytes)
{
    const struct site *trains = who_trains(server);
    const bool done = server->round > 0 && site->round >= server->round;
    uint64_t step;
    const struct site *awaited = sums_awaited(server, &step);
    if (site->pid != 0 && awaited && awaited != site && sums_counted(server, site))
        snprintf(out, bytes, "waits for %s in step %llu of all", awaited->name, (unsigned long long)step + 1);
    else if (site->pid != 0)
        snprintf(out, bytes, "trains steps %llu to %llu", (unsigned long long)site->begin + 1,
                 (unsigned long long)site->until);
    else if (!site->control)
        snprintf(out, bytes, "is away%s", done ? "; this round is done" : "");
    else if (server->round == 0)
        snprintf(out, bytes, "waits for other clients");
    else if (done)
        snprintf(out, bytes, "is done with this round");
    else if (site->offered)
        snprintf(out, bytes, "begins its turn");
    else if (trains)
        snprintf(out, bytes, "waits for %s", trains->name);
    else
        snprintf(out, bytes, "waits for its turn");
}

/* The reason why the server waits; "": a client trains. */
static void waits_text(const struct server *server, char *out, size_t bytes)
{
    const struct site *away = who_is_away(server);
    uint32_t here = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        here += server->sites[i].control != NULL;
    if (server->stopping)
        snprintf(out, bytes, "stops");
    else if (server->round == 0)
        snprintf(out, bytes, "waits for clients: %u of %u are here", here, server->job->split.clients);
    else if (!who_trains(server) && away)
        snprintf(out, bytes, "waits for %s, which is away", away->name);
    else if (!who_trains(server))
        snprintf(out, bytes, "prepares the next turn");
}

/* Does somebody see figures of clients: the status page, or whoever reads --json? */
static bool live(const struct server *server)
{
    return server->shown->page || server->config->progress->json;
}

/* Its loss, accuracy and bytes, as its run has them: its metrics are read from their first line. */
static void take_figures(const struct server *server, const struct site *site, struct aq_board_client *client)
{
    json_t *line = report_client(server, site);
    const json_t *heldout = json_object_get(line, "heldout");
    client->bytes = aq_control_number_or(line, "sent_bytes", NAN);
    client->loss = aq_control_number_or(heldout, "loss", NAN);
    client->accuracy = aq_control_number_or(heldout, "accuracy", NAN);
    json_decref(line);
}

/* Does somebody wait for this client now: the server for one that is away, or another for its turn, or for its part? */
static bool is_awaited(const struct server *server, const struct site *site)
{
    uint64_t step;
    if (server->job->split.mode == AQ_SPLIT_GLOBAL && server->sums && sums_awaited(server, &step))
        return sums_awaited(server, &step) == site;
    const struct site *trains = who_trains(server);
    if (!trains) return site == who_is_away(server);
    bool wait = false;
    for (uint32_t i = 0; i < server->site_count; i++)
        wait |= server->sites[i].control && !server->sites[i].pid && server->sites[i].round < server->round;
    return site->pid != 0 && wait;
}

static void tell_site(struct server *server, uint32_t i)
{
    const struct site *site = &server->sites[i];
    struct told *told = &server->shown->told[i];
    struct aq_board_client *client = &server->shown->now.client[i];
    const bool here = site->control != NULL, turned = site->turns != told->turns || !server->shown->begun;
    if (strcmp(client->name, site->name) != 0) { /* one before it was forgotten */
        *told = (struct told){.turns = site->turns, .missed = site->missed};
        *client = (struct aq_board_client){.bytes = NAN, .loss = NAN, .accuracy = NAN, .epsilon = NAN, .delta = NAN};
        snprintf(client->name, sizeof client->name, "%s", site->name);
        if (live(server)) take_figures(server, site, client);
    } else if (turned && live(server)) {
        take_figures(server, site, client);
    }
    client->here = here;
    client->trains = site->pid != 0;
    client->awaited = is_awaited(server, site);
    client->turns = site->turns;
    client->missed = site->missed;
    client->epsilon = site->epsilon;
    client->delta = site->delta;
    client->late = site->lates;
    client->step = site->mark;
    client->samples = site->samples;
    does_text(server, site, client->does, sizeof client->does);
    if (here != told->here)
        event(server, json_pack("{s:s, s:s, s:I, s:I}", "event", here ? "joined" : "away", "client", site->name,
                                "samples", (json_int_t)site->samples, "round", (json_int_t)server->round));
    /* A turn that is tried again has a launcher of its own, and begins at its newest checkpoint. */
    if (site->pid != 0 && site->pid != told->pid)
        event(server,
              json_pack("{s:s, s:s, s:I, s:I, s:I}", "event", "turn", "client", site->name, "round",
                        (json_int_t)server->round, "begin", (json_int_t)site->mark, "until", (json_int_t)site->until));
    told->pid = site->pid;
    if (site->turns > told->turns)
        event(server, json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "event", "trained", "client", site->name,
                                "turns", (json_int_t)site->turns, "step", (json_int_t)site->mark, "sent_bytes",
                                aq_control_number(client->bytes), "loss", aq_control_number(client->loss), "accuracy",
                                aq_control_number(client->accuracy), "epsilon", aq_control_number(site->epsilon)));
    if (site->missed > told->missed)
        event(server, json_pack("{s:s, s:s, s:I, s:s}", "event", "missed", "client", site->name, "missed",
                                (json_int_t)site->missed, "cause", site->missed_why));
    told->here = here;
    told->turns = site->turns;
    told->missed = site->missed;
}

/* Takes the reference. A disk on which this fails stops the server at the next state_save. */
static void status_write(struct server *server, json_t *line)
{
    struct shown *shown = server->shown;
    struct aq_error_hold hold;
    char path[AQ_RUN_PATH_BYTES];
    shown->looked_ns = aq_clock_ns();
    if (!line || json_equal(line, shown->written)) {
        json_decref(line);
        return;
    }
    json_decref(shown->written);
    shown->written = line;
    aq_error_hold(&hold);
    enum aq_status status = state_path(server, path, "status.json");
    if (status == AQ_OK) status = aq_json_replace(path, json_incref(line), JSON_INDENT(1));
    aq_error_release(&hold);
    if (status != AQ_OK && !shown->unwritable)
        server_say(server, "status.json cannot be written, so `aqpipe status` is behind: %s", hold.text);
    shown->unwritable = status != AQ_OK;
}

static json_t *present(const struct server *server, const char *state, const char *waits)
{
    json_t *line = aq_board_split_json(&server->shown->now);
    if (!line) return NULL;
    json_object_set_new(line, "state", json_string(state));
    json_object_set_new(line, "waits_for", json_string(waits));
    return line;
}

static enum aq_board_state state_of(const struct server *server)
{
    return server->stopping ? AQ_BOARD_STOPPING : AQ_BOARD_RUNNING;
}

/* The present state, for the page, and events of its differences from the last one. */
static void present_take(struct server *server, char *waits, size_t bytes)
{
    struct shown *shown = server->shown;
    if (server->round != shown->round && server->round <= server->job->split.rounds)
        event(server, json_pack("{s:s, s:I, s:I}", "event", "round", "round", (json_int_t)server->round, "rounds",
                                (json_int_t)server->job->split.rounds));
    shown->round = server->round;
    shown->now.round = server->round;
    shown->now.clients = server->site_count;
    for (uint32_t i = 0; i < server->site_count; i++)
        tell_site(server, i);
    shown->begun = true;
    waits_text(server, waits, bytes);
    aq_board_split(shown->board, &shown->now, state_of(server), waits);
}

/* What each client does takes time by the square of their number: without a reader it is for status.json only. */
void shown_tell(struct server *server)
{
    struct shown *shown = server->shown;
    char waits[WAITS_BYTES];
    if (!shown) return;
    const bool due = !shown->written || aq_clock_ns() - shown->looked_ns >= write_ns;
    if (!due && !live(server)) return;
    present_take(server, waits, sizeof waits);
    if (due) status_write(server, present(server, aq_board_state_text(state_of(server)), waits));
}

static enum aq_status open_page(struct server *server)
{
    const struct aq_job_status *status = &server->job->status;
    if (!status->listen) return AQ_OK;
    AQ_TRY(aq_board_open(&server->shown->board));
    aq_board_split(server->shown->board, &server->shown->now, AQ_BOARD_STARTING, "starts");
    const struct aq_page_config config = {.listen = status->listen,
                                          .token_file = status->token_file,
                                          .certificate = status->certificate,
                                          .key = status->key,
                                          .client_authority = status->client_authority};
    AQ_TRY(aq_page_open(&config, server->shown->board, &server->shown->page));
    server_say(server, "status page: %s", aq_page_url(server->shown->page));
    return AQ_OK;
}

enum aq_status shown_open(struct server *server)
{
    const struct aq_job *job = server->job;
    AQ_TRY(AQ_NEW(1, &server->shown));
    server->shown->round = UINT32_MAX;
    struct aq_board_split *now = &server->shown->now;
    now->rounds = job->split.rounds;
    snprintf(now->job, sizeof now->job, "%s", job->name);
    snprintf(now->mode, sizeof now->mode, "%s", state_mode(server));
    AQ_TRY(open_page(server));
    event(server, json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "event", "start", "name", job->name, "mode", now->mode,
                            "rounds", (json_int_t)now->rounds, "clients", (json_int_t)job->split.clients, "status_page",
                            server->shown->page ? json_string(aq_page_url(server->shown->page)) : json_null()));
    return AQ_OK;
}

void shown_end(struct server *server, enum aq_status status)
{
    static const char *const states[] = {
        [AQ_SPLIT_DONE] = "done", [AQ_SPLIT_FAILED] = "failed", [AQ_SPLIT_STOPPED] = "stopped"};
    char cause[AQ_SPLIT_TEXT_BYTES], waits[WAITS_BYTES];
    if (!server->shown) return;
    /* Now: reports of clients may clear the error. */
    if (server->cause[0])
        snprintf(cause, sizeof cause, "%s", server->cause);
    else
        aq_printable_text(aq_error_text(), cause, sizeof cause);
    present_take(server, waits, sizeof waits);
    const enum aq_split_end end = status == AQ_OK ? server->end : AQ_SPLIT_FAILED;
    json_t *line = json_pack("{s:s, s:s, s:I, s:I}", "event", "end", "state", states[end], "rounds",
                             (json_int_t)server->shown->now.rounds, "turns", (json_int_t)round_turns(server));
    json_t *last = present(server, states[end], "");
    if (end == AQ_SPLIT_FAILED) {
        json_object_set_new(line, "cause", json_string(cause));
        json_object_set_new(last, "cause", json_string(cause));
    }
    event(server, line);
    status_write(server, last);
}

void shown_close(struct server *server)
{
    if (!server->shown) return;
    aq_page_close(server->shown->page);
    aq_board_close(server->shown->board);
    json_decref(server->shown->written);
    aq_free(server->shown);
}
