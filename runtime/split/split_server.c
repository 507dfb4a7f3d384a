/* split_server.c -- the loop of a split-server: signals, the door, its clients. Turns are split_turn.c's. */
#include "split_server.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control_socket.h"
#include "owned_folder.h"
#include "split_folder.h"
#include "split_private.h"
#include "stages/dataset.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char *const AREA = "split";
enum {
    POLL_MAX = 2 + SPLIT_NEWCOMERS_MAX + 2 * AQ_JOB_CLIENTS_MAX + SPLIT_SUMS_POLLS,
    OWN_DESCRIPTORS = 64, /* files, logs, the status page */
    TICK_MS = 100,
    ACCEPTS = 16,
    REFUSALS_S = 10,
    REFUSAL_LINES = 16,
    LINES = 256
};

/* ---- the door ---- */

static void pending_close(struct pending *pending)
{
    aq_control_close(pending->control);
    pending->control = NULL;
}

static struct pending *place_for(struct server *server, const struct pending *who)
{
    struct aq_guest guests[SPLIT_NEWCOMERS_MAX];
    for (int i = 0; i < SPLIT_NEWCOMERS_MAX; i++) {
        const struct pending *each = &server->pendings[i];
        const bool certified = each->control && aq_control_certified(each->control);
        guests[i] = (struct aq_guest){.source = each->source,
                                      .since_ns = each->since_ns,
                                      .state = !each->control ? AQ_GUEST_NONE
                                               : certified    ? AQ_GUEST_PROVED
                                                              : AQ_GUEST_UNPROVED};
    }
    const uint32_t index = aq_admit(guests, SPLIT_NEWCOMERS_MAX, who->source, who->since_ns);
    if (index == AQ_ADMISSION_REFUSED) return NULL;
    pending_close(&server->pendings[index]);
    return &server->pendings[index];
}

static enum aq_status secure(struct server *server, struct pending *pending)
{
    const struct aq_tls_name any = {.role = AQ_TLS_SITE};
    struct aq_tls_session *session;
    AQ_TRY(aq_control_keep_alive(aq_control_fd(pending->control)));
    AQ_TRY(aq_tls_session_open(server->tls, aq_control_fd(pending->control), true, &any, pending->peer, &session));
    aq_control_secure(pending->control, session);
    return AQ_OK;
}

static void accept_all(struct server *server)
{
    for (int i = 0; i < ACCEPTS; i++) {
        struct pending who = {.since_ns = aq_clock_ns()};
        int fd;
        if (aq_control_accept(server->listener, &fd, &who.source, who.peer) != AQ_OK) return;
        struct pending *place = place_for(server, &who);
        if (!place || aq_control_open_stranger(fd, &who.control) != AQ_OK) {
            close(fd);
            continue;
        }
        *place = who;
        if (secure(server, place) != AQ_OK) pending_close(place);
    }
}

/* ---- who comes in ---- */

static bool other_data(const struct site *site, const struct aq_split_join *join, bool settled)
{
    const struct aq_job_facts *was = &site->join.facts, *is = &join->facts;
    /* Maybe before this server was started; with global sampling others count on it once all are settled. */
    const bool began = site->turns > 0 || site->until > 0 || settled;
    if (began && site->samples != is->train_samples) return true;
    return site->job.plan && (was->train_digest != is->train_digest || was->train_samples != is->train_samples ||
                              was->heldout_digest != is->heldout_digest);
}

/* One whose certificate is good may come again and again: a few lines in a while, and a count. */
static void tell_refusals(struct server *server)
{
    if (server->refusals == 0 || aq_clock_ns() < server->refusals_ns + REFUSALS_S * second_ns) return;
    if (server->unsaid) server_say(server, "%u more refusals were not printed", server->unsaid);
    server->refusals = server->unsaid = 0;
}

static bool say_refusal(struct server *server)
{
    tell_refusals(server);
    if (server->refusals++ == 0) server->refusals_ns = aq_clock_ns();
    if (server->refusals <= REFUSAL_LINES) return true;
    server->unsaid++;
    return false;
}

static void refuse(struct server *server, struct pending *pending, const char *name, const char *text,
                   const char *manifest)
{
    char clean[AQ_SPLIT_TEXT_BYTES];
    aq_printable_text(text, clean, sizeof clean);
    if (say_refusal(server)) server_say(server, "%s (%s) is refused: it %s", name, pending->peer, clean);
    json_t *line = json_pack("{s:s, s:s, s:s*}", "event", "refused", "text", clean, "manifest", manifest);
    (void)aq_control_send(pending->control, line);
    (void)aq_control_flush(pending->control, aq_clock_after(second_ns));
    pending_close(pending);
}

/* What a client that has joined waits for. */
static void waits_for(const struct server *server, const struct site *site, char text[AQ_SPLIT_TEXT_BYTES])
{
    uint32_t here = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        here += server->sites[i].control != NULL;
    if (server->round == 0 && here < server->job->split.clients)
        snprintf(text, AQ_SPLIT_TEXT_BYTES, "waits for other clients: %u of %u are here", here,
                 server->job->split.clients);
    else if (server->round > 0 && site->round >= server->round)
        snprintf(text, AQ_SPLIT_TEXT_BYTES, "waits for round %u", server->round + 1);
    else
        snprintf(text, AQ_SPLIT_TEXT_BYTES, "waits for its turn");
}

static void welcome(struct server *server, struct pending *pending, struct site *site)
{
    if (site->control) turn_away(server, site, "it came again by another connection");
    site->control = pending->control;
    pending->control = NULL;
    memcpy(site->peer, pending->peer, sizeof site->peer);
    aq_control_limit(site->control, AQ_CONTROL_LINE_BYTES_MAX);
    aq_control_queue(site->control, SPLIT_QUEUE_BYTES);
    aq_split_session_init(&site->session, site->name, server->job->split.samples_max,
                          server->job->pipeline.stage_count - 1);
    site->offered = false;
    turn_greet(server, site);
    server_say(server, "%s (%s) has joined, with %" PRIu64 " samples", site->name, site->peer,
               site->join.facts.train_samples);
    char waits[AQ_SPLIT_TEXT_BYTES];
    waits_for(server, site, waits);
    const enum aq_status status = aq_control_send(
        site->control, json_pack("{s:s, s:I, s:I, s:s}", "event", "joined", "round", (json_int_t)server->round, "of",
                                 (json_int_t)server->job->split.rounds, "waits", waits));
    if (status != AQ_OK) turn_away(server, site, aq_status_text(status));
    if (status == AQ_OK) join_tell(server, site);
}

/* Two folders with one bundle: the first that is here has it. Within one folder a new connection replaces the old. */
static bool other_machine(const struct site *site, const struct aq_split_join *join)
{
    return site->control && site->join.instance && join->instance && site->join.instance != join->instance;
}

/* Why a client cannot be one of this job; "": it can. Nothing of it is taken yet. */
static void why_not(struct server *server, const struct site *site, bool is_known, const struct aq_split_join *join,
                    char why[AQ_SPLIT_TEXT_BYTES])
{
    why[0] = 0;
    if (!site)
        snprintf(why, AQ_SPLIT_TEXT_BYTES, "has no place: there are %u clients already", state_sites_max(server));
    else if (!is_known && server->all_samples > 0)
        snprintf(why, AQ_SPLIT_TEXT_BYTES,
                 "was not there when the clients of this job were settled (split.mode: global)");
    else if (other_data(site, join, server->all_samples > 0))
        snprintf(why, AQ_SPLIT_TEXT_BYTES, "comes with other data than it began with");
    else if (join->facts.lengths_digest && server->job->split.pad)
        snprintf(why, AQ_SPLIT_TEXT_BYTES, "has lengths of its samples to send, which split.pad hides");
    else if (join->facts.lengths_digest && !aq_dataset_kind_lengths(server->job->data.kind))
        snprintf(why, AQ_SPLIT_TEXT_BYTES,
                 "has lengths of its samples to send, and all samples of data.kind: %s are alike",
                 server->job->data.kind);
    else if (is_known && join_claims(server, site, why))
        return; /* why says it */
    else if (join_too_many(server, site, join))
        snprintf(why, AQ_SPLIT_TEXT_BYTES,
                 "has too many samples: batches are drawn over %u of all clients at most (split.mode: global)",
                 UINT32_MAX);
}

/*
 * A client must not learn this machine's paths: of each absolute path, written "/..." by aq_plan_manifest, the last
 * part stays. Plans are compared by other keys.
 */
static void hide_paths(char *manifest)
{
    char *to = manifest;
    for (const char *at = manifest; *at;) {
        *to++ = *at++;
        if (at[-1] != '"' || *at != '/') continue;
        const char *name = at;
        for (; *at && *at != '"'; at++) {
            if (*at == '/') name = at + 1;
            if (*at == '\\' && at[1]) at++;
        }
        memmove(to, name, (size_t)(at - name));
        to += at - name;
        if (*at) *to++ = *at++;
    }
    *to = 0;
}

/*
 * Its hash must match the plan that this server makes of its data; its turns are planned with that data, or with the
 * data of all. False: it is refused.
 */
static bool plans(struct server *server, struct pending *pending, struct site *site, const struct aq_split_join *join)
{
    struct aq_split_job job;
    struct aq_error_hold hold;
    char text[AQ_SPLIT_TEXT_BYTES] = "", *manifest = NULL;
    aq_error_hold(&hold);
    enum aq_status status = join_plan(server, site, join, false, &job);
    const bool other = status == AQ_OK && aq_plan_hash(job.plan) != join->plan_hash;
    if (other && aq_plan_manifest(job.plan, &manifest) != AQ_OK) manifest = NULL;
    if (manifest) hide_paths(manifest);
    if (status == AQ_OK && !other && join_other_network(server, join, job.plan))
        snprintf(text, sizeof text,
                 "has data of another network (%u tokens or classes, %u labels) than the job has; whoever runs the "
                 "server can set facts.vocabulary and facts.labels there before the first round",
                 job.plan->model.vocabulary, job.plan->model.labels);
    else if (status == AQ_OK && !other && other_machine(site, join))
        snprintf(text, sizeof text,
                 "is connected from another machine or folder (%s). Each client needs its own bundle (aqpipe keys "
                 "enroll). If that client has ended, its connection ends within 30 s",
                 site->peer);
    if (status == AQ_OK && !other && !text[0] && server->all_samples > 0 && !site->absent) {
        aq_split_job_close(&job);
        status = join_plan(server, site, join, true, &job);
    }
    aq_error_release(&hold);
    if (other) snprintf(text, sizeof text, "has another plan: model, cut, codec or another key differs");
    if (status != AQ_OK) { /* paths and sizes of this machine are for its owner */
        if (say_refusal(server)) server_say(server, "%s cannot be planned: %.300s", site->name, hold.text);
        snprintf(text, sizeof text, "has what this server cannot plan; the server's log has the reason");
    }
    if (text[0])
        refuse(server, pending, site->name, text, manifest);
    else
        join_take(site, join, &job);
    if (status == AQ_OK && text[0]) aq_split_job_close(&job);
    aq_free(manifest);
    return !text[0];
}

/* The first line of a peer, whose certificate must be a site's. */
static void first_line(struct server *server, struct pending *pending, const json_t *line)
{
    const struct aq_tls_name *peer = aq_control_peer(pending->control);
    struct aq_split_session session;
    enum aq_split_act act;
    char why[AQ_SPLIT_TEXT_BYTES];
    if (!peer || peer->role != AQ_TLS_SITE) {
        pending_close(pending);
        return;
    }
    aq_split_session_init(&session, peer->host, server->job->split.samples_max, AQ_SPLIT_ENDS);
    if (aq_split_hear(&session, line, &act) != AQ_OK || act != AQ_SPLIT_JOIN) {
        refuse(server, pending, peer->host, session.why[0] ? session.why : "leaves before it has joined", NULL);
        return;
    }
    const uint32_t known = server->site_count;
    struct site *site = state_site(server, session.join.id);
    const bool is_known = server->site_count == known;
    why_not(server, site, is_known, &session.join, why);
    if (why[0]) refuse(server, pending, peer->host, why, NULL);
    if (why[0] || !plans(server, pending, site, &session.join)) {
        server->site_count = known; /* a client that never joined is not waited for */
        return;
    }
    const bool drawn = server->round > 0 && server->drawn == server->round && server->job->split.participation < 1;
    if (!is_known && drawn) { /* who takes part in this round is decided */
        site->round = server->round;
        site->rested++;
    }
    welcome(server, pending, site);
}

static void serve_pending(struct server *server, struct pending *pending)
{
    json_t *line;
    aq_log_limit_thread(&server->strangers); /* TLS may say why */
    (void)aq_control_push(pending->control);
    const enum aq_status status = aq_control_receive(pending->control, 0, &line);
    aq_log_limit_thread(NULL);
    if (status == AQ_OK) {
        first_line(server, pending, line);
        json_decref(line);
    } else if (status != AQ_AGAIN || aq_clock_ns() > pending->since_ns + SPLIT_NEWCOMER_S * second_ns) {
        pending_close(pending);
    }
}

static void serve_site(struct server *server, struct site *site)
{
    /* Nothing more is read after a failure of this server's disk: the session does not expect the next lines. */
    for (int i = 0; i < LINES && site->control && !server->over; i++) {
        json_t *line;
        if (aq_control_check(site->control) != AQ_OK) {
            turn_away(server, site, "its certificate is no longer valid");
            return;
        }
        const enum aq_status status = aq_control_receive(site->control, 0, &line);
        if (status == AQ_AGAIN) break;
        if (status != AQ_OK) {
            turn_away(server, site, status == AQ_CLOSED ? "it closed its connection" : aq_status_text(status));
            return;
        }
        turn_line(server, site, line);
        json_decref(line);
    }
}

/* ---- the loop ---- */

static void on_signals(struct server *server)
{
    struct signalfd_siginfo info;
    while (read(server->config->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (!server->stopping) server_say(server, "stops: all that was trained is kept; the same command continues");
        server->stopping = true;
    }
}

static short wants(const struct aq_control *control)
{
    return (short)(aq_control_pending(control) ? POLLIN | POLLOUT : POLLIN);
}

static enum aq_status wait_some(struct server *server)
{
    struct pollfd fds[POLL_MAX];
    nfds_t count = 0;
    fds[count++] = (struct pollfd){.fd = server->config->signals, .events = POLLIN};
    fds[count++] = (struct pollfd){.fd = server->listener, .events = POLLIN};
    for (int i = 0; i < SPLIT_NEWCOMERS_MAX; i++) {
        const struct aq_control *control = server->pendings[i].control;
        if (control) fds[count++] = (struct pollfd){.fd = aq_control_fd(control), .events = wants(control)};
    }
    bool busy = false;
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        busy |= site->pid != 0 && !site->launch; /* about to end: nothing tells */
        if (site->control)
            fds[count++] = (struct pollfd){.fd = aq_control_fd(site->control), .events = wants(site->control)};
        if (site->launch)
            fds[count++] = (struct pollfd){.fd = aq_control_fd(site->launch), .events = wants(site->launch)};
    }
    count += sums_polls(server, fds + count);
    if (poll(fds, count, busy ? 2 : TICK_MS) < 0 && errno != EINTR) return aq_fail_errno(AREA, "poll");
    return AQ_OK;
}

static enum aq_status loop(struct server *server)
{
    while (!server->over) {
        AQ_TRY(wait_some(server));
        on_signals(server);
        accept_all(server);
        for (int i = 0; i < SPLIT_NEWCOMERS_MAX; i++)
            if (server->pendings[i].control) serve_pending(server, &server->pendings[i]);
        for (uint32_t i = 0; i < server->site_count && !server->over; i++) {
            struct site *site = &server->sites[i];
            serve_site(server, site);
            if (!server->over) turn_pump(server, site);
        }
        sums_serve(server);
        aq_log_limit_tell(&server->strangers);
        tell_refusals(server);
        if (server->stopping) {
            server->over = true;
            server->end = AQ_SPLIT_STOPPED;
        }
        round_advance(server);
        shown_tell(server);
        AQ_TRY(caches_wipe(server, false));
    }
    return AQ_OK;
}

/* ---- open and close ---- */

/* The owner's facts must not change between starts, because weights belong to one network. */
static enum aq_status same_network(const struct server *server)
{
    const struct aq_job_facts *given = &server->job->facts;
    const bool same = (!given->vocabulary || given->vocabulary == server->vocabulary) &&
                      (!given->labels || given->labels == server->labels);
    if (same || (!server->vocabulary && !server->labels)) return AQ_OK;
    return aq_fail(AQ_REFUSED, AREA,
                   "%s has weights of a network with %u tokens or classes and %u labels, and facts.vocabulary and "
                   "facts.labels give %u and %u: leave them out, or choose another output.path",
                   server->job->output.path, server->vocabulary, server->labels, given->vocabulary, given->labels);
}

/* With `device: auto` only this machine knows whether several turns would need one GPU. */
static enum aq_status gpu_check(const struct server *server)
{
    const struct aq_job_stage *middle = &server->job->pipeline.stages[1];
    const uint32_t turns = aq_job_turns(server->job);
    if (turns < 2 || !aq_device_gpu_here(middle->device, middle->device_index)) return AQ_OK;
    return aq_fail(AQ_INVAL, AREA,
                   "pipeline.stages.1.device: %s is a GPU here, and %u turns at once cannot have stage 1 on one; write "
                   "device: cpu for it, or %s",
                   middle->device, turns, aq_job_global(server->job) ? "split.mode: splitfed1" : "split.parallel: 1");
}

static enum aq_status enter(struct server *server)
{
    const char *run = server->job->output.path;
    AQ_TRY(gpu_check(server));
    aq_control_descriptors(POLL_MAX + OWN_DESCRIPTORS);
    struct aq_owner owner = {.job = server->job->name};
    AQ_TRY(aq_split_folder_check(run, AQ_SPLIT_OF_SERVER, server->job->name, NULL));
    AQ_TRY(aq_owned_claim_run(run, AQ_OWNED_MAKE_ALL, &owner, NULL));
    AQ_TRY(aq_run_lock(run, &server->lock));
    AQ_TRY(state_load(server));
    AQ_TRY(same_network(server)); /* a folder that is refused stays as it is */
    server->round_ns = aq_clock_ns();
    if (server->round > server->job->split.rounds && server->ended)
        return aq_fail(AQ_INVAL, AREA, "%s has finished its %u rounds: raise split.rounds to continue", run,
                       server->job->split.rounds);
    server->ended = false;
    if (server->round > server->job->split.rounds)
        server_say(server, "all rounds are over: clients are told, and the results are written");
    return state_save(server); /* what is shown of this folder is of this job, also before a client is here */
}

static enum aq_status listen_at(struct server *server)
{
    uint16_t port;
    AQ_TRY(aq_tls_open(server->job->security.keys, AQ_TLS_LAUNCHER, 0, &server->tls));
    AQ_TRY(aq_control_listen(server->job->split.server, true, &server->listener, &port));
    server_say(server, "waits for %u client%s at %s, port %u", server->job->split.clients,
               server->job->split.clients == 1 ? "" : "s", server->job->split.server, port);
    return aq_control_port_write(server->config->port_file, port);
}

/* A job that has had all its rounds, and no turn that was trained. */
static enum aq_status nothing_trained(const struct server *server)
{
    const struct site *site = round_cause(server);
    return aq_fail(AQ_ABORTED, AREA,
                   "nothing was trained: no client ended a turn in %u round%s. %s%s%s. Remove the cause, and start "
                   "both ends again with another output.path",
                   server->job->split.rounds, server->job->split.rounds == 1 ? "" : "s", site ? site->name : "No turn",
                   site ? " missed its last turn: " : " was due", site ? site->missed_why : "");
}

/* Writes the results when it is stopped, or all rounds are over. Untrained weights are no model. */
static enum aq_status leave(struct server *server)
{
    const bool done = server->end == AQ_SPLIT_DONE, trained = round_turns(server) > 0;
    AQ_TRY(state_save(server)); /* the report is of it */
    AQ_TRY(report_leave(server));
    if (done && trained) AQ_TRY(model_leave(server));
    if (done) AQ_TRY(caches_wipe(server, true));
    server->ended = done;
    if (done) AQ_TRY(state_save(server));
    return done && !trained ? nothing_trained(server) : AQ_OK;
}

static void close_all(struct server *server)
{
    for (int i = 0; i < SPLIT_NEWCOMERS_MAX; i++)
        pending_close(&server->pendings[i]);
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        turn_halt(site);
        aq_control_close(site->control);
        aq_split_out_close(&site->out);
        aq_split_in_close(&site->in);
        aq_split_job_close(&site->job);
    }
    sums_close(server);
    shown_close(server);
    aq_tls_close(server->tls);
    if (server->listener != -1) close(server->listener);
    if (server->lock != -1) close(server->lock);
    aq_job_close(server->job);
    aq_free(server);
}

/* A failure of a run that had begun is not one of what was given: exit status 1, and a service starts it again. */
static enum aq_status begun_of(enum aq_status status)
{
    const bool given = status == AQ_INVAL || status == AQ_NOTFOUND || status == AQ_MISMATCH || status == AQ_CORRUPT;
    return given ? AQ_ABORTED : status;
}

enum aq_status aq_split_serve(const struct aq_split_server_config *config, enum aq_split_end *end)
{
    struct aq_split_job base = {0};
    struct server *server;
    AQ_TRY(AQ_NEW(1, &server));
    server->config = config;
    server->listener = server->lock = -1;
    const struct aq_split_asked asked = {
        .manifest = config->manifest, .sets = config->sets, .set_count = config->set_count};
    enum aq_status status = aq_split_job_open(&asked, &base);
    if (status == AQ_OK) {
        server->job = base.job;
        status = enter(server);
    }
    if (status == AQ_OK) status = shown_open(server);
    if (status == AQ_OK) status = listen_at(server);
    if (status == AQ_OK) status = sums_open(server);
    if (status == AQ_OK) status = join_limits(server);
    if (status == AQ_OK) status = begun_of(loop(server));
    if (status == AQ_OK && server->end != AQ_SPLIT_FAILED) status = begun_of(leave(server));
    *end = status == AQ_OK ? server->end : AQ_SPLIT_FAILED;
    shown_end(server, status);
    close_all(server);
    return status;
}
