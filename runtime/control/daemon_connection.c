/*
 * daemon_connection.c -- the lines that each peer may send to a daemon: the greeting, the job's owner, and observers.
 *
 * A connection proves itself once; then it may look (status, logs, stop) or open a job and own it. The owner's end is
 * the job's end: its workers are killed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon_private.h"
#include "net/tls.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { GREETING_S = 5, IDLE_S = 120, PATIENCE_S = 30, LOG_BYTES_ASKED_MAX = 256 << 10 };
static const uint64_t accept_paused_until_ns =
    100ULL * 1000 * 1000; /* no descriptors are left: time without new connections */

void connection_close(struct daemon *daemon, struct connection *connection)
{
    if (connection->state == CONNECTION_FREE) return;
    aq_control_close(connection->control);
    connection->control = NULL;
    connection->state = CONNECTION_FREE;
    if (daemon->owner != connection) return;
    daemon->owner = NULL;
    aq_log("daemon", 2, "job=%s ends", daemon->job);
    worker_kill_all(daemon); /* the loop reaps them */
}

/* Send and see to it that a connection that takes nothing ends. Takes the reference. */
static enum aq_status reply(struct daemon *daemon, struct connection *connection, json_t *message)
{
    const enum aq_status status = aq_control_send(connection->control, message);
    if (status != AQ_OK) connection_close(daemon, connection);
    return status;
}

static enum aq_status refuse(struct daemon *daemon, struct connection *connection, const char *text)
{
    return reply(daemon, connection, json_pack("{s:s, s:s}", "event", "refused", "text", text));
}

void owner_send(struct daemon *daemon, json_t *message)
{
    if (daemon->owner)
        (void)reply(daemon, daemon->owner, message);
    else
        json_decref(message);
}

/* ---- coming in ---- */

struct connection *connection_place(struct daemon *daemon, uint64_t source, uint64_t now_ns)
{
    struct aq_guest guests[DAEMON_CONNECTIONS_MAX];
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++) {
        const struct connection *connection = &daemon->connections[i];
        const bool known = connection->state == CONNECTION_PROVED ||
                           (connection->state == CONNECTION_GREETING && aq_control_certified(connection->control));
        guests[i] = (struct aq_guest){.source = connection->source,
                                      .since_ns = connection->since_ns,
                                      .state = connection->state == CONNECTION_FREE ? AQ_GUEST_NONE
                                               : known                              ? AQ_GUEST_PROVED
                                                                                    : AQ_GUEST_UNPROVED};
    }
    const uint32_t index = aq_admit(guests, DAEMON_CONNECTIONS_MAX, source, now_ns);
    return index == AQ_ADMISSION_REFUSED ? NULL : &daemon->connections[index];
}

static enum aq_status greet(struct connection *connection)
{
    AQ_TRY(aq_control_keep_alive(aq_control_fd(connection->control)));
    AQ_TRY(aq_token_nonce(connection->nonce));
    return aq_control_send(connection->control,
                           json_pack("{s:s, s:i, s:s, s:s}", "event", "hello", "protocol", AQ_CONTROL_PROTOCOL,
                                     "version", AQ_VERSION, "nonce", connection->nonce));
}

/* The greeting's 5 s are for the certificates, too. */
static enum aq_status secure(struct daemon *daemon, struct connection *connection)
{
    const struct aq_tls_name launcher = {.role = AQ_TLS_LAUNCHER};
    struct aq_tls_session *session;
    if (!daemon->config->tls) return AQ_OK;
    AQ_TRY(aq_tls_session_open(daemon->config->tls, aq_control_fd(connection->control), true, &launcher,
                               connection->peer, &session));
    aq_control_secure(connection->control, session);
    return AQ_OK;
}

/* One newcomer is let in, or closed. */
static void let_in(struct daemon *daemon, int fd, struct connection pending)
{
    pending.state = CONNECTION_GREETING;
    pending.since_ns = aq_clock_ns();
    pending.deadline_ns = aq_clock_after(GREETING_S * second_ns);
    struct connection *connection = connection_place(daemon, pending.source, pending.since_ns);
    if (!connection || aq_control_open_stranger(fd, &pending.control) != AQ_OK) {
        close(fd);
        if (!connection) aq_log("daemon", 1, "peer=%s refused: too many connections", pending.peer);
        return;
    }
    if (connection->state != CONNECTION_FREE) {
        aq_log("daemon", 1, "peer=%s refused: it has not proved its identity, and others wait", connection->peer);
        connection_close(daemon, connection);
    }
    *connection = pending;
    if (secure(daemon, connection) != AQ_OK || greet(connection) != AQ_OK) connection_close(daemon, connection);
}

void connection_accept(struct daemon *daemon)
{
    aq_log_limit_thread(&daemon->strangers);
    for (int i = 0; i < DAEMON_ACCEPTS_MAX; i++) {
        struct connection pending = {0};
        int fd;
        const enum aq_status status = aq_control_accept(daemon->listener, &fd, &pending.source, pending.peer);
        if (status == AQ_NOSPC) {
            (void)aq_fail_errno("daemon", "no connection can be accepted for now (ulimit -n)");
            daemon->accept_paused_until_ns = aq_clock_after(accept_paused_until_ns);
        }
        if (status != AQ_OK) break; /* that was all */
        let_in(daemon, fd, pending);
    }
    aq_log_limit_thread(NULL);
}

void connection_open_private(struct daemon *daemon, struct aq_control *control)
{
    struct connection *connection = &daemon->connections[0];
    *connection = (struct connection){
        .state = CONNECTION_PROVED, .control = control, .since_ns = aq_clock_ns(), .deadline_ns = AQ_NEVER};
    aq_control_queue(control, DAEMON_QUEUE_BYTES_MAX);
    snprintf(connection->peer, sizeof connection->peer, "its launcher");
}

void connection_expire(struct daemon *daemon, uint64_t now_ns)
{
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++) {
        struct connection *connection = &daemon->connections[i];
        if (connection->state == CONNECTION_FREE) continue;
        const bool owner = connection == daemon->owner;
        /* The owner may sleep as long as it likes: only its workers wait for it. */
        const bool stuck = aq_control_stuck_ns(connection->control, now_ns) > PATIENCE_S * second_ns;
        if (owner || (!stuck && now_ns < connection->deadline_ns)) continue;
        aq_log_limited(&daemon->strangers, "daemon", 2, "peer=%s %s, closed", connection->peer,
                       stuck ? "does not read" : "silent");
        connection_close(daemon, connection);
    }
}

void connection_check(struct daemon *daemon)
{
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++) {
        struct connection *connection = &daemon->connections[i];
        if (connection->state != CONNECTION_FREE && aq_control_check(connection->control) != AQ_OK)
            connection_close(daemon, connection);
    }
}

static enum aq_status prove(struct daemon *daemon, struct connection *connection, const json_t *message)
{
    char proof[AQ_PROOF_CHARS + 1];
    const struct aq_token *token = &daemon->config->token;
    const char *nonce = aq_control_text_or(message, "nonce", "");
    if (aq_control_u64_or(message, "protocol", 0) != AQ_CONTROL_PROTOCOL) {
        (void)refuse(daemon, connection, "another protocol: this is aqpiped " AQ_VERSION " with protocol 1");
        return AQ_MISMATCH;
    }
    if (!aq_control_is(message, "op", "hello") || strlen(nonce) != AQ_NONCE_CHARS ||
        aq_token_proof(token, "client", connection->nonce, nonce, proof) != AQ_OK ||
        !aq_token_proves(proof, aq_control_text_or(message, "proof", ""))) {
        aq_log("daemon", 1, "peer=%s refused: it does not have the token", connection->peer);
        (void)refuse(daemon, connection, "the token is not this daemon's (--token-file)");
        return AQ_REFUSED;
    }
    AQ_TRY(aq_token_proof(token, "daemon", connection->nonce, nonce, proof));
    AQ_TRY(reply(daemon, connection, json_pack("{s:s, s:s}", "event", "welcome", "proof", proof)));
    connection->state = CONNECTION_PROVED;
    connection->deadline_ns = aq_clock_after(IDLE_S * second_ns);
    aq_control_limit(connection->control, DAEMON_LOOKER_BYTES_MAX);
    aq_control_queue(connection->control, DAEMON_QUEUE_BYTES_MAX);
    return AQ_OK;
}

/* ---- the job ---- */

static enum aq_status copy_text(const json_t *message, const char *key, char *out, size_t bytes)
{
    const char *text;
    AQ_TRY(aq_control_get_text(message, key, &text));
    if (strlen(text) >= bytes)
        return aq_fail(AQ_PROTO, "daemon", "the field '%s' is longer than %zu bytes", key, bytes - 1);
    memcpy(out, text, strlen(text) + 1);
    return AQ_OK;
}

/* The job's folders on this machine are its own, or become so. */
static enum aq_status enter_folders(struct daemon *daemon, const json_t *message)
{
    struct aq_owner *owner = &daemon->run_owner;
    const char *cache = aq_control_text_or(message, "cache", NULL);
    *owner = (struct aq_owner){.job = daemon->job, .resume = aq_control_u64_or(message, "resume", 0)};
    AQ_TRY(aq_control_get_hex(message, "id", &owner->id));
    AQ_TRY(aq_control_get_hex(message, "resume_hash", &owner->resume_hash));
    AQ_TRY(aq_control_get_hex(message, "plan_hash", &owner->plan_hash));
    if (daemon->run[0] != '/' || daemon->checkpoint[0] != '/' || (cache && cache[0] != '/') || owner->id == 0)
        return aq_fail(AQ_INVAL, "daemon", "run, checkpoint and cache must be absolute paths, and the run have an id");
    const struct aq_confine_list *run = &daemon->config->confine.run;
    const char *const asked[] = {daemon->run, daemon->checkpoint, cache ? cache : daemon->run};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (run->count + daemon->config->confine.data.count > 0 && !aq_confine_below(run, asked[i]))
            return aq_fail(AQ_REFUSED, "daemon",
                           "%.300s is not in a folder that this daemon allows for runs (--allow-run)", asked[i]);
    const struct aq_owned_folders folders = {daemon->run, daemon->checkpoint, cache};
    const bool resumed = aq_control_bool_or(message, "resumed", false);
    AQ_TRY(aq_owned_enter(&folders, resumed ? AQ_OWNED_MAKE_LAST : AQ_OWNED_MAKE_ALL, owner));
    if (!aq_control_bool_or(message, "fresh", false)) return AQ_OK;
    if (cache) AQ_TRY(aq_owned_clear_caches(cache, owner));
    return aq_owned_clear_checkpoints(daemon->checkpoint, owner);
}

static enum aq_status open_job(struct daemon *daemon, struct connection *connection, const json_t *message)
{
    char text[2 * DAEMON_TEXT_BYTES];
    if (aq_control_u64_or(message, "protocol", 0) != AQ_CONTROL_PROTOCOL)
        return refuse(daemon, connection, "another protocol: this is aqpiped " AQ_VERSION " with protocol 1");
    if (daemon->owner || worker_any(daemon)) {
        snprintf(text, sizeof text, "it runs the job '%s' of %s", daemon->job,
                 daemon->owner ? daemon->owner->peer : "a launcher that has ended");
        return refuse(daemon, connection, text);
    }
    if (daemon->term_seen) return refuse(daemon, connection, "it is about to end");
    AQ_TRY(copy_text(message, "job", daemon->job, sizeof daemon->job));
    daemon->probing = aq_control_bool_or(message, "probe", false);
    if (!daemon->probing) {
        AQ_TRY(copy_text(message, "run", daemon->run, sizeof daemon->run));
        AQ_TRY(copy_text(message, "checkpoint", daemon->checkpoint, sizeof daemon->checkpoint));
        aq_error_clear();
        if (enter_folders(daemon, message) != AQ_OK) {
            snprintf(text, sizeof text, "%s", aq_error_text());
            aq_error_clear();
            daemon->run[0] = 0; /* no logs are shown from there */
            return refuse(daemon, connection, text);
        }
    }
    daemon->owner = connection;
    aq_control_limit(connection->control, AQ_CONTROL_LINE_BYTES_MAX); /* a manifest comes with each start */
    daemon->job_since_ns = aq_clock_ns();
    aq_log("daemon", 2, "job=%s peer=%s", daemon->job, connection->peer);
    beat_open(daemon, message);
    return reply(daemon, connection,
                 json_pack("{s:s, s:i, s:b, s:s}", "event", "opened", "pid", (int)getpid(), "beats", true, "version",
                           AQ_VERSION));
}

static enum aq_status forget(struct daemon *daemon, const json_t *message)
{
    uint64_t step;
    if (daemon->probing) return aq_fail(AQ_PROTO, "daemon", "a measurement of the network has no checkpoints");
    AQ_TRY(aq_control_get_u64(message, "step", &step));
    /* A failure is logged; an old checkpoint that stays is harmless. */
    if (aq_owned_forget(daemon->checkpoint, &daemon->run_owner, step) != AQ_OK) aq_error_clear();
    return AQ_OK;
}

static enum aq_status start(struct daemon *daemon, json_t *message, uint32_t rank)
{
    /* An owner without folders starts no worker that would write into them. */
    if (aq_control_bool_or(message, "probe", false) != daemon->probing)
        return aq_fail(AQ_PROTO, "daemon", "a worker that %s is not what was opened",
                       daemon->probing ? "trains" : "measures the network");
    const enum aq_status status = worker_start(daemon, rank, message);
    if (status == AQ_OK || worker_find(daemon, rank)) return AQ_OK;
    owner_send(daemon, json_pack("{s:s, s:I, s:s, s:s}", "event", "failed", "rank", (json_int_t)rank, "status",
                                 aq_status_text(status), "text",
                                 "the daemon cannot start its worker; see its log for the reason"));
    owner_send(daemon,
               json_pack("{s:s, s:I, s:i, s:i}", "event", "exited", "rank", (json_int_t)rank, "pid", 0, "code", 1));
    return AQ_OK;
}

static enum aq_status from_owner(struct daemon *daemon, json_t *message)
{
    uint32_t rank;
    beat_heard(daemon);
    if (aq_control_is(message, "op", "beat")) return AQ_OK;
    if (aq_control_is(message, "op", "abort")) {
        worker_kill_all(daemon);
        return AQ_OK;
    }
    if (aq_control_is(message, "op", "forget")) return forget(daemon, message);
    AQ_TRY(aq_control_get_u32(message, "rank", &rank));
    if (rank >= DAEMON_WORKERS_MAX) return aq_fail(AQ_PROTO, "daemon", "there is no stage %u", rank);
    if (aq_control_is(message, "op", "start")) return start(daemon, message, rank);
    struct worker *worker = worker_find(daemon, rank);
    if (aq_control_is(message, "op", "end")) {
        if (worker && worker->pid > 0 && !worker->reaped) worker_kill(worker);
        return AQ_OK;
    }
    if (!worker || !worker->control) return AQ_OK; /* it has ended; `exited` is on its way */
    if (aq_control_send(worker->control, json_incref(message)) != AQ_OK && worker->pid > 0 && !worker->reaped) {
        aq_log("daemon", 1, "stage %u does not read its messages, so it was killed", rank);
        worker_kill(worker);
    }
    return AQ_OK;
}

/* ---- from outside ---- */

static enum aq_status tell_status(struct daemon *daemon, struct connection *connection)
{
    const bool busy = daemon->owner != NULL;
    return reply(daemon, connection,
                 json_pack("{s:s, s:s, s:o, s:s, s:f, s:o}", "event", "status", "version", AQ_VERSION, "job",
                           busy ? json_string(daemon->job) : json_null(), "run",
                           busy && !daemon->probing ? daemon->run : "", "seconds",
                           busy ? (double)(aq_clock_ns() - daemon->job_since_ns) * 1e-9 : 0.0, "workers",
                           worker_status(daemon)));
}

/* Bytes that wait for all observers together. */
static size_t lookers_wait(const struct daemon *daemon)
{
    size_t bytes = 0;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon->connections[i].state == CONNECTION_PROVED && &daemon->connections[i] != daemon->owner)
            bytes += aq_control_waiting(daemon->connections[i].control);
    return bytes;
}

static enum aq_status tell_log(struct daemon *daemon, struct connection *connection, const json_t *message)
{
    uint32_t rank;
    char name[48];
    uint64_t bytes = aq_control_u64_or(message, "bytes", 16384);
    AQ_TRY(aq_control_get_u32(message, "rank", &rank));
    if (bytes > LOG_BYTES_ASKED_MAX) bytes = LOG_BYTES_ASKED_MAX;
    if (lookers_wait(daemon) > DAEMON_LOOKERS_BYTES_MAX)
        return refuse(daemon, connection, "other clients have asked for logs and do not read them: try again later");
    if (daemon->run[0] == 0) return refuse(daemon, connection, "it has had no job yet");
    snprintf(name, sizeof name, "logs/stage-%u.log", rank);
    char *text;
    size_t count;
    if (aq_file_load(daemon->run, name, 2 * DAEMON_LOG_BYTES_MAX, &text, &count) != AQ_OK)
        return refuse(daemon, connection, "there is no log of this stage");
    const size_t skip = count > bytes ? count - (size_t)bytes : 0;
    for (size_t i = 0; i < count; i++) /* a log may hold any byte, JSON only text */
        if (((unsigned char)text[i] < 32 && text[i] != '\n') || (unsigned char)text[i] > 126) text[i] = '?';
    json_t *answer = json_pack("{s:s, s:I, s:s}", "event", "logs", "rank", (json_int_t)rank, "text", text + skip);
    aq_free(text);
    return reply(daemon, connection, answer);
}

static enum aq_status from_proved(struct daemon *daemon, struct connection *connection, json_t *message)
{
    if (aq_control_is(message, "op", "status")) return tell_status(daemon, connection);
    if (aq_control_is(message, "op", "logs")) return tell_log(daemon, connection, message);
    if (connection == daemon->owner) return from_owner(daemon, message);
    if (aq_control_is(message, "op", "open")) return open_job(daemon, connection, message);
    if (aq_control_is(message, "op", "stop")) {
        if (!daemon->owner) return refuse(daemon, connection, "it runs no job");
        owner_send(daemon, json_pack("{s:s, s:s}", "event", "stop-asked", "by", connection->peer));
        return reply(daemon, connection, json_pack("{s:s}", "event", "stopping"));
    }
    return aq_fail(AQ_PROTO, "daemon", "%s asks for '%.40s', which is not known or needs a job", connection->peer,
                   aq_control_text_or(message, "op", ""));
}

void connection_push(struct daemon *daemon, struct connection *connection)
{
    aq_log_limit_thread(connection == daemon->owner ? &daemon->owner_lines : &daemon->strangers); /* TLS may say why */
    const enum aq_status status = aq_control_push(connection->control);
    aq_log_limit_thread(NULL);
    /* The owner's lines from before its close are still read. */
    if (status != AQ_OK && status != AQ_AGAIN && connection != daemon->owner) connection_close(daemon, connection);
}

/* One line. AQ_AGAIN: there is none now. */
static enum aq_status serve_line(struct daemon *daemon, struct connection *connection)
{
    json_t *message;
    AQ_TRY(aq_control_receive(connection->control, 0, &message));
    enum aq_status status;
    if (connection->state == CONNECTION_GREETING) {
        status = prove(daemon, connection, message);
    } else {
        if (connection->deadline_ns != AQ_NEVER) connection->deadline_ns = aq_clock_after(IDLE_S * second_ns);
        status = from_proved(daemon, connection, message);
    }
    json_decref(message);
    return status;
}

void connection_serve(struct daemon *daemon, struct connection *connection)
{
    while (connection->state != CONNECTION_FREE) {
        /* An observer gets its next answer when it has read this one. */
        if (connection->state == CONNECTION_PROVED && connection != daemon->owner &&
            aq_control_pending(connection->control))
            return;
        aq_log_limit_thread(connection == daemon->owner ? &daemon->owner_lines : &daemon->strangers);
        const enum aq_status status = serve_line(daemon, connection);
        aq_log_limit_thread(NULL);
        if (status == AQ_AGAIN) return;
        if (status != AQ_OK) connection_close(daemon, connection);
    }
}
