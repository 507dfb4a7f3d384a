/* launcher_hosts.c -- the daemons of a job: the private one that is started here, and those that listen elsewhere. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "launcher_private.h"
#include "ssh_host.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { CONNECT_S = 15, OPEN_S = 15, AGENT_OPEN_S = 45, DAEMON_END_S = 5, RETURN_S = 600 };

static enum aq_status start_private(struct launcher *launcher, struct host *host)
{
    int channel[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
        return aq_fail_errno("launch", "cannot open a channel to the daemon");
    enum aq_status status = aq_control_open(channel[0], &host->control);
    if (status != AQ_OK) {
        close(channel[0]);
    } else {
        const char *const arguments[] = {launcher->launch->daemon, "--fd", "3", NULL};
        const struct aq_child child = {.program = launcher->launch->daemon,
                                       .arguments = arguments,
                                       .fds = {{AQ_CHILD_NULL, 0}, {channel[1], AQ_CONTROL_FD}},
                                       .fd_count = 2};
        status = aq_child_start(&child, launcher->launch->daemon, &host->pid);
    }
    close(channel[1]);
    return status;
}

/* Which of the hosts so far is this stage's? A new one is added. */
static uint32_t host_of(struct launcher *launcher, const char *address)
{
    for (uint32_t i = 0; i < launcher->host_count; i++) {
        const char *have = launcher->hosts[i].address;
        if (have == address || (have && address && strcmp(have, address) == 0)) return i;
    }
    launcher->hosts[launcher->host_count].address = address;
    return launcher->host_count++;
}

/* Its answer to the job. A signal does not wait for it: AQ_ABORTED, with the cause. */
static enum aq_status answer(struct launcher *launcher, const struct host *host, uint64_t patience_s, json_t **message)
{
    const uint64_t deadline_ns = aq_clock_after(patience_s * second_ns);
    enum aq_status status;
    while ((status = aq_control_receive(host->control, 0, message)) == AQ_AGAIN) {
        const uint64_t now = aq_clock_ns();
        if (now >= deadline_ns) return AQ_TIMEOUT;
        struct pollfd fds[] = {{.fd = launcher->launch->signals, .events = POLLIN}, /* -1 is ignored */
                               {.fd = aq_control_fd(host->control),
                                .events = aq_control_pending(host->control) ? POLLIN | POLLOUT : POLLIN}};
        if (poll(fds, 2, (int)((deadline_ns - now) / 1000000) + 1) < 0 && errno != EINTR)
            return aq_fail_errno("launch", "poll");
        if (fds[0].revents) launcher_signals(launcher);
        if (launcher->cause == CAUSE_NONE) continue;
        if (host->pid > 0) kill(host->pid, SIGKILL); /* it has started nothing yet */
        return AQ_ABORTED;
    }
    return status;
}

enum aq_status host_ask(const struct launcher *launcher, struct aq_control *control, bool again)
{
    const struct aq_launch *launch = launcher->launch;
    return aq_control_send(
        control, json_pack("{s:s, s:b, s:s, s:i, s:s, s:o, s:o, s:o, s:s, s:s, s:s?, s:I, s:b, s:b, s:f, s:f}", "op",
                           "open", "probe", launch->probe, "job", launch->name, "protocol", AQ_CONTROL_PROTOCOL,
                           "version", AQ_VERSION, "plan_hash", aq_control_hex(launch->plan_hash), "resume_hash",
                           aq_control_hex(launch->resume_hash), "id", aq_control_hex(launch->id), "run", launch->run,
                           "checkpoint", launch->checkpoint, "cache", launch->cache, "resume",
                           (json_int_t)launch->resume, "resumed", launch->resumed || launch->resume > 0 || again,
                           "fresh", launch->fresh && !again, "beat_seconds", (double)launcher->beat_ns * 1e-9,
                           "silence_seconds", (double)launch->watch.silence_ns * 1e-9 * AQ_WATCH_STARTS));
}

static const char *host_name(const struct host *host)
{
    return host->address ? host->address : "this machine";
}

enum aq_status host_answered(const struct launcher *launcher, struct host *host, const json_t *message)
{
    const bool opened = aq_control_is(message, "event", "opened");
    host->beats = launcher->beat_ns > 0 && aq_control_bool_or(message, "beats", false);
    if (!opened)
        return aq_fail(AQ_REFUSED, "launch", "the daemon of %s does not accept the job: %.300s", host_name(host),
                       aq_control_text_or(message, "text", "it gives no reason"));
    return aq_ssh_is(host->address) ? agent_check(host, aq_control_text_or(message, "version", "unknown")) : AQ_OK;
}

static enum aq_status take(struct launcher *launcher, struct host *host)
{
    const bool agent = aq_ssh_is(host->address);
    json_t *message;
    enum aq_status status = host_ask(launcher, host->control, false);
    /* A daemon that has already ended may have sent the cause; one that never started has not. */
    if (status == AQ_OK || status == AQ_CLOSED)
        status = answer(launcher, host, agent ? AGENT_OPEN_S : OPEN_S, &message);
    if (status == AQ_ABORTED) return status;
    if (agent && status != AQ_OK) {
        char text[AQ_ERROR_BYTES];
        snprintf(text, sizeof text, "%s", aq_error_text());
        if (status == AQ_PROTO) aq_error_clear(); /* the next one contains it */
        return agent_why(host, status, text);
    }
    if (status == AQ_TIMEOUT || status == AQ_CLOSED)
        return aq_fail(status, "launch", "the daemon of %s does not accept the job (%s)", host_name(host),
                       host->address ? aq_status_text(status) : launcher->launch->daemon);
    AQ_TRY(status);
    status = host_answered(launcher, host, message);
    watch_heard(launcher, host);
    json_decref(message);
    return status;
}

/* At a restart a machine may be booting, or its daemon still be reaping what it ran: it is waited for. */
static enum aq_status meet(struct launcher *launcher, struct host *host)
{
    const struct aq_launch *launch = launcher->launch;
    const uint64_t patience = aq_clock_after(RETURN_S * second_ns);
    for (;;) {
        enum aq_status status = aq_ssh_is(host->address)
                                    ? agent_start(host)
                                    : aq_control_meet(host->address, launch->token, launch->tls,
                                                      aq_clock_after(CONNECT_S * second_ns), &host->control);
        if (status == AQ_OK) status = take(launcher, host);
        const bool back = status == AQ_REFUSED || status == AQ_TIMEOUT || status == AQ_CLOSED || status == AQ_IO;
        if (!launch->again || !back || aq_clock_ns() > patience) return status;
        aq_control_close(host->control);
        host->control = NULL;
        agent_end(host);
        struct pollfd fd = {.fd = launch->signals, .events = POLLIN}; /* -1 is ignored */
        if (poll(&fd, 1, 1000) > 0) launcher_signals(launcher);
        if (launcher->cause != CAUSE_NONE) return AQ_ABORTED; /* who asked for the end need not wait for a machine */
        aq_error_clear();
        watch_send(launcher); /* to those that have the job already */
    }
}

enum aq_status hosts_open(struct launcher *launcher)
{
    const struct aq_launch *launch = launcher->launch;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        launcher->stages[r].host = host_of(launcher, launch->hosts[r]);
    for (uint32_t i = 0; i < launcher->host_count; i++) {
        struct host *host = &launcher->hosts[i];
        aq_progress_phase(launch->progress,
                          aq_ssh_is(host->address) ? "starts an agent at %s"
                          : host->address          ? "connects to the daemon at %s"
                                                   : "starts a daemon%.0s",
                          host->address ? host->address : "");
        aq_progress_tick(launch->progress);
        if (host->address && strcmp(host->address, AQ_LAUNCH_GUEST) == 0) {
            AQ_TRY(aq_control_open(launch->guest, &host->control));
            AQ_TRY(take(launcher, host));
            continue;
        }
        if (host->address) {
            AQ_TRY(meet(launcher, host));
            continue;
        }
        AQ_TRY(start_private(launcher, host));
        const enum aq_status status = take(launcher, host);
        launcher->private_silent = status == AQ_TIMEOUT; /* stopped, or the machine is: not the job's fault */
        AQ_TRY(status);
    }
    return AQ_OK;
}

void host_start(struct launcher *launcher, uint32_t rank, bool returns)
{
    const struct aq_launch *launch = launcher->launch;
    aq_watch_stage_begin(&launcher->watch, rank, launcher->stages[rank].host);
    json_t *message =
        json_pack("{s:s, s:b, s:I, s:I, s:s, s:o, s:o, s:I, s:s, s:s}", "op", "start", "probe", launch->probe, "rank",
                  (json_int_t)rank, "stages", (json_int_t)launcher->ranks, "manifest", launch->manifest, "plan_hash",
                  aq_control_hex(launch->plan_hash), "id", aq_control_hex(launch->id), "resume",
                  (json_int_t)launch->resume, "run", launch->run, "checkpoint", launch->checkpoint);
    const char *hash = launcher_hash(launcher, launch->resume, rank);
    if (hash) json_object_set_new(message, "sha256", json_string(hash));
    if (launch->until) json_object_set_new(message, "until", json_integer((json_int_t)launch->until));
    if (launch->ask) json_object_set(message, "ask", launch->ask);
    const char *host = launcher->hosts[launcher->stages[rank].host].address;
    const bool guest = host && strcmp(host, AQ_LAUNCH_GUEST) == 0; /* no path of this machine goes there */
    if (launch->lengths && !guest)                                 /* a guest has its own */
        json_object_set_new(message, "lengths", json_string(launch->lengths));
    if (launch->sums && !guest) json_object_set_new(message, "sums", json_string(launch->sums));
    if (launch->shift || launch->updates) {
        json_object_set_new(message, "shift", json_integer((json_int_t)launch->shift));
        json_object_set_new(message, "updates", json_integer((json_int_t)launch->updates));
    }
    if (launch->adopt) json_object_set_new(message, "adopt", json_string(launch->adopt));
    if (returns) json_object_set_new(message, "returns", json_true());
    if (!returns) launcher_return_gather_add(launcher, rank, message);
    stage_send(launcher, rank, message);
    launcher->stages[rank].state = STAGE_STARTED;
}

void hosts_start(struct launcher *launcher)
{
    for (uint32_t r = 0; r < launcher->ranks; r++)
        host_start(launcher, r, false);
}

/* How the private daemon ended, in words. Waits a moment for its end. */
static void death_of(struct host *host, char *text, size_t bytes)
{
    int how = 0;
    snprintf(text, bytes, "closed its connection");
    for (int i = 0; i < 100 && host->pid > 0; i++) {
        const pid_t got = waitpid(host->pid, &how, WNOHANG);
        if (got == 0) {
            const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
            nanosleep(&moment, NULL);
            continue;
        }
        if (got == host->pid && WIFSIGNALED(how))
            snprintf(text, bytes, "(pid %d) was killed by signal %d", (int)host->pid, WTERMSIG(how));
        else if (got == host->pid)
            snprintf(text, bytes, "(pid %d) ended with code %d", (int)host->pid, WEXITSTATUS(how));
        host->pid = 0;
    }
}

/* Its workers die with it; no line will report their end. */
static void end_stages(struct launcher *launcher, const struct host *host)
{
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        struct stage *stage = &launcher->stages[r];
        if (&launcher->hosts[stage->host] != host || stage->state == STAGE_EXITED || stage->state == STAGE_NONE)
            continue;
        stage->state = STAGE_EXITED;
        launcher->ended++;
    }
}

void host_lost(struct launcher *launcher, struct host *host, enum aq_status status, const char *why)
{
    char how[512] = "", text[700];
    if (!host->control) return;
    aq_control_close(host->control);
    host->control = NULL;
    host->broken = AQ_OK;
    aq_watch_host_gone(&launcher->watch, (uint32_t)(host - launcher->hosts));
    if (host->pid > 0)
        death_of(host, how, 96);
    else
        snprintf(how, sizeof how, "is out of reach (%s)", aq_status_text(status));
    if (host->said > 0) agent_tail(host, how, sizeof how);
    snprintf(text, sizeof text, "the %s of %s %s", host->said > 0 ? "agent" : "daemon", host_name(host),
             why ? why : how);
    end_stages(launcher, host);
    if (status != AQ_PROTO && launcher_reach_lost(launcher, host, text)) {
        aq_error_clear(); /* the channel's: no error of the run */
        return;
    }
    if (launcher_fail(launcher, CAUSE_OWN, status, "%s", text)) launcher->result->transient = status != AQ_PROTO;
}

void host_send(struct host *host, json_t *message)
{
    if (!host->control) {
        json_decref(message);
        return;
    }
    const enum aq_status status = aq_control_send(host->control, message);
    /* The loop still reads its lines, of which one may have the cause, and then finds it lost. Not here: a list of
     * ranks is being told something that those of a lost replica are not told. */
    if (status != AQ_OK && status != AQ_CLOSED && host->broken == AQ_OK) host->broken = status;
}

void stage_send(struct launcher *launcher, uint32_t rank, json_t *message)
{
    host_send(&launcher->hosts[launcher->stages[rank].host], message);
}

void hosts_send(struct launcher *launcher, json_t *message)
{
    for (uint32_t i = 0; i < launcher->host_count; i++)
        host_send(&launcher->hosts[i], json_incref(message));
    json_decref(message);
}

void hosts_close(struct launcher *launcher)
{
    for (uint32_t i = 0; i < launcher->host_count; i++) {
        struct host *host = &launcher->hosts[i];
        launcher_reach_close(host);
        if (host->control) (void)aq_control_flush(host->control, aq_clock_after(second_ns));
        aq_control_close(host->control);
        host->control = NULL;
        /* A private daemon, and ssh, end when their connection does, after the workers were reaped. */
        const uint64_t deadline = aq_clock_after(DAEMON_END_S * second_ns);
        while (host->pid > 0) {
            const pid_t got = waitpid(host->pid, NULL, WNOHANG);
            if (got != 0) break;
            if (aq_clock_ns() > deadline) {
                kill(host->pid, SIGKILL); /* its workers die with it */
                while (waitpid(host->pid, NULL, 0) == -1 && errno == EINTR)
                    continue;
                break;
            }
            const struct timespec moment = {.tv_nsec = 2 * 1000 * 1000};
            nanosleep(&moment, NULL);
        }
        host->pid = 0;
        if (host->said > 0) close(host->said);
        host->said = 0;
    }
}
