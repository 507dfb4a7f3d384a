/*
 * daemon.c -- the loop of aqpiped: one poll over signals, listener, connections and workers. See daemon.h.
 *
 * The loop ends after a request to end, when no worker is left; until then it continues to reap.
 */
#include "daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon_private.h"
#include "stop_signals.h"

enum { POLL_MAX = 2 + DAEMON_CONNECTIONS_MAX + 2 * DAEMON_WORKERS_MAX, TICK_MS = 500 };

/* The kind of a slot of the poll set. */
struct watch {
    enum { WATCH_SIGNAL, WATCH_LISTENER, WATCH_CONNECTION, WATCH_CHANNEL, WATCH_OUTPUT } kind;
    int index;
};

struct poll_set {
    struct pollfd fds[POLL_MAX];
    struct watch watches[POLL_MAX];
    int count;
};

static void add(struct poll_set *set, int fd, short events, int kind, int index)
{
    AQ_ASSERT(set->count < POLL_MAX);
    set->fds[set->count] = (struct pollfd){.fd = fd, .events = events};
    set->watches[set->count].kind = (unsigned)kind;
    set->watches[set->count].index = index;
    set->count++;
}

static void gather(struct daemon *daemon, struct poll_set *set)
{
    set->count = 0;
    add(set, daemon->signals, POLLIN, WATCH_SIGNAL, 0);
    if (daemon->listener != -1 && aq_clock_ns() >= daemon->accept_paused_until_ns)
        add(set, daemon->listener, POLLIN, WATCH_LISTENER, 0);
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++) {
        const struct connection *connection = &daemon->connections[i];
        if (connection->state == CONNECTION_FREE) continue;
        /* An observer's next request is read when it has read its answer: answers cannot pile up here. */
        const bool waits = aq_control_pending(connection->control),
                   reads = !waits || connection == daemon->owner || connection->state == CONNECTION_GREETING;
        const short events = (short)((waits ? POLLOUT : 0) | (reads ? POLLIN : 0));
        add(set, aq_control_fd(connection->control), events, WATCH_CONNECTION, i);
    }
    const bool room = !daemon->owner || aq_control_room(daemon->owner->control) >= DAEMON_ROOM;
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++) {
        const struct worker *worker = &daemon->workers[i];
        if (!worker->used) continue;
        if (worker->control) {
            const short events = (short)((room ? POLLIN : 0) | (aq_control_pending(worker->control) ? POLLOUT : 0));
            /* A fd with no events still reports a hang-up at once: leave it out while there is no room. */
            if (events) add(set, aq_control_fd(worker->control), events, WATCH_CHANNEL, i);
        }
        if (worker->output != -1) add(set, worker->output, POLLIN, WATCH_OUTPUT, i);
    }
}

/* SIGTERM and SIGINT: the first asks the job to stop in good order, the second (or one without a job) ends everything.
 */
static void on_term(struct daemon *daemon)
{
    if (daemon->owner && !daemon->term_seen && daemon->listener != -1) {
        aq_log("daemon", 1, "asked to end: the job '%s' is asked to stop first", daemon->job);
        owner_send(daemon, json_pack("{s:s, s:s}", "event", "stop-asked", "by", "the daemon, which was asked to end"));
    } else {
        daemon->ending = true;
    }
    daemon->term_seen = true;
}

static void on_signal(struct daemon *daemon)
{
    struct signalfd_siginfo info;
    while (read(daemon->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGCHLD)
            daemon->children_due = true;
        else
            on_term(daemon);
    worker_reap(daemon);
}

static void dispatch(struct daemon *daemon, const struct poll_set *set)
{
    for (int i = 0; i < set->count; i++) {
        if (set->fds[i].revents == 0) continue;
        const int index = set->watches[i].index;
        struct connection *connection = &daemon->connections[index];
        struct worker *worker = &daemon->workers[index];
        switch (set->watches[i].kind) {
        case WATCH_SIGNAL:
            on_signal(daemon);
            break;
        case WATCH_LISTENER:
            connection_accept(daemon);
            break;
        case WATCH_CONNECTION:
            if (connection->state == CONNECTION_FREE || aq_control_fd(connection->control) != set->fds[i].fd) break;
            connection_push(daemon, connection);
            connection_serve(daemon, connection);
            break;
        case WATCH_CHANNEL:
            if (!worker->used || !worker->control || aq_control_fd(worker->control) != set->fds[i].fd) break;
            (void)aq_control_push(worker->control);
            worker_serve(daemon, worker);
            break;
        case WATCH_OUTPUT:
            if (worker->used && worker->output == set->fds[i].fd) worker_listen(daemon, worker);
            break;
        }
    }
}

/* Poll does not report lines in a buffer: check channels that back-pressure had stopped, and only those, because a
 * check is a system call. */
static void resume(struct daemon *daemon)
{
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++) {
        struct worker *worker = &daemon->workers[i];
        if (worker->used && worker->control && worker->held) worker_serve(daemon, worker);
    }
}

static bool finished(struct daemon *daemon)
{
    if (daemon->listener == -1 && daemon->connections[0].state == CONNECTION_FREE) daemon->ending = true;
    if (daemon->term_seen && !daemon->owner) daemon->ending = true;
    if (!daemon->ending) return false;
    worker_kill_all(daemon);
    return !worker_any(daemon);
}

static enum aq_status loop(struct daemon *daemon)
{
    struct poll_set set;
    while (!finished(daemon)) {
        gather(daemon, &set);
        const int ready = poll(set.fds, (nfds_t)set.count, beat_tick_ms(daemon, TICK_MS));
        if (ready < 0 && errno != EINTR) return aq_fail_errno("daemon", "poll");
        if (ready > 0)
            dispatch(daemon, &set);
        else
            daemon->children_due = true; /* idle: time to check for a missed signal */
        resume(daemon);
        worker_reap(daemon);
        connection_expire(daemon, aq_clock_ns());
        connection_check(daemon);
        aq_log_limit_tell(&daemon->strangers);
        aq_log_limit_tell(&daemon->owner_lines);
        beat_advance(daemon, aq_clock_ns());
    }
    return AQ_OK;
}

static enum aq_status open_listener(struct daemon *daemon)
{
    const struct aq_daemon_config *config = daemon->config;
    uint16_t port;
    AQ_TRY(aq_control_listen(config->listen, config->tls != NULL, &daemon->listener, &port));
    if (config->token.bytes == 0 && !config->tls)
        aq_log("daemon", AQ_LOG_WARNING, "no token: every user of this machine can run jobs here as this user");
    aq_log("daemon", 1, "listening at %s, port %u", config->listen, port);
    return aq_control_port_write(config->port_file, port);
}

enum aq_status aq_daemon_run(const struct aq_daemon_config *config)
{
    struct daemon *daemon;
    AQ_TRY(AQ_NEW(1, &daemon));
    daemon->config = config;
    aq_control_descriptors(DAEMON_DESCRIPTORS_MAX);
    daemon->signals = daemon->listener = -1;
    daemon->strangers.lines_max = DAEMON_STRANGER_LINES;
    daemon->owner_lines.lines_max = DAEMON_OWNER_LINES;
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        daemon->workers[i].output = daemon->workers[i].log = -1;
    enum aq_status status;
    AQ_TRY_GOTO(aq_stop_signals("daemon", SIGCHLD, &daemon->signals), out);
    if (config->fd >= 0) {
        struct aq_control *control;
        AQ_TRY_GOTO(aq_control_open(config->fd, &control), out);
        connection_open_private(daemon, control);
    } else {
        AQ_TRY_GOTO(open_listener(daemon), out);
    }
    AQ_TRY_GOTO(aq_confine_enter(&config->confine, config->worker, config->keys), out);
    status = loop(daemon);
out:
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        connection_close(daemon, &daemon->connections[i]);
    if (daemon->listener != -1) close(daemon->listener);
    if (daemon->signals != -1) close(daemon->signals);
    aq_free(daemon);
    return status;
}
