/*
 * launcher.c -- the loop of a launch: poll signals and daemons until every stage has ended, for better or worse.
 *
 * States: starting (until every stage is ready), running, and then the end: all exited. A cause of failure turns it to
 * aborting; an echo (closed, aborted, timed out) first waits ECHO_S for a better one.
 */
#include "launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launcher_private.h"
#include "stop_signals.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { ECHO_S = 2, ABORT_S = 10, TICK_MS = 200, TURN_LINES = 1024, OWN_DESCRIPTORS = 64 /* beside a channel a host */ };

enum aq_status aq_launch_signals(int *fd)
{
    /* SIGUSR1: schedulers of clusters warn by it. A suspended launcher would stall every stage. */
    if (signal(SIGTSTP, SIG_IGN) == SIG_ERR) return aq_fail_errno("launch", "signal");
    return aq_stop_signals("launch", SIGUSR1, fd);
}

bool launcher_fail(struct launcher *launcher, enum cause_class cause, enum aq_status status, const char *format, ...)
{
    if (launcher->aborting || cause <= launcher->cause) return false;
    va_list arguments;
    va_start(arguments, format);
    char text[sizeof launcher->result->cause];
    vsnprintf(text, sizeof text, format, arguments);
    (void)aq_printable(text, strlen(text), true, launcher->result->cause, sizeof launcher->result->cause);
    va_end(arguments);
    launcher->result->status = status;
    launcher->result->transient = launcher->result->unreadable = false; /* the caller knows better */
    launcher->cause_deadline_ns = cause == CAUSE_OWN ? 0 : aq_clock_after(ECHO_S * second_ns);
    launcher->cause = cause;
    return true;
}

const char *rank_name(const struct launcher *launcher, uint32_t rank, char text[RANK_NAME_BYTES])
{
    const uint32_t P = launcher->launch->stages;
    if (launcher->launch->replicas > 1)
        snprintf(text, RANK_NAME_BYTES, "replica %u stage %u", rank / P, rank % P);
    else
        snprintf(text, RANK_NAME_BYTES, "stage %u", rank);
    return text;
}

void launcher_abort(struct launcher *launcher)
{
    launcher->aborting = true;
    launcher->end_deadline_ns = aq_clock_after(ABORT_S * second_ns);
    hosts_send(launcher, json_pack("{s:s}", "op", "abort"));
}

void launcher_stop(struct launcher *launcher, const char *who)
{
    if (launcher->aborting) return;
    if (launcher->stopping || !launcher->gone) {
        const unsigned long long mark = launcher->result->mark;
        if (!launcher->gone)
            launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED, "stopped by %s before the first step", who);
        else if (mark == 0)
            launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED, "stopped at once by %s; there is no checkpoint", who);
        else
            launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED, "stopped at once by %s; the checkpoint of step %llu is kept",
                          who, mark);
        return;
    }
    launcher->stopping = true;
    aq_board_stopping(launcher->launch->board);
    if (launcher->launch->bounds.round_steps > 1)
        aq_progress_say(launcher->launch->progress,
                        "%s: stops when the %sround of %u steps ends (%s)%s, with a checkpoint (once more: at once)",
                        who, launcher->launch->bounds.votes_travel ? "next " : "", launcher->launch->bounds.round_steps,
                        launcher->launch->bounds.votes_travel ? "reduce.delay" : "reduce.every",
                        launcher->launch->bounds.votes_travel ? ", or the run" : "");
    else
        aq_progress_say(launcher->launch->progress, "%s: stops after this step, with a checkpoint (once more: at once)",
                        who);
    stage_send(launcher, 0, json_pack("{s:s, s:i}", "op", "stop", "rank", 0));
}

void launcher_signals(struct launcher *launcher)
{
    struct signalfd_siginfo info;
    while (read(launcher->launch->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const char *name = sigabbrev_np((int)info.ssi_signo);
        char text[32];
        /* A scheduler's warning may come to all processes and be passed on besides: it never means "at once". */
        if (info.ssi_signo == SIGUSR1 && launcher->stopping) continue;
        snprintf(text, sizeof text, "SIG%s", name ? name : "?");
        launcher_stop(launcher, text);
    }
}

/* Reads at most one turn's lines of a daemon, so that one that never pauses blocks no other. True: there may be
 * more. */
static bool read_host(struct launcher *launcher, struct host *host)
{
    for (int i = 0; i < TURN_LINES && host->control; i++) {
        json_t *message;
        const enum aq_status status = aq_control_receive(host->control, 0, &message);
        const enum aq_status lost = status == AQ_AGAIN ? host->broken : status;
        if (lost != AQ_OK) host_lost(launcher, host, lost, NULL);
        if (status != AQ_OK) return false;
        launcher_event(launcher, host, message);
        json_decref(message);
    }
    return host->control != NULL;
}

/* Deadlines: of becoming ready, of an echo, of an abort. False: it is over. */
static bool go_on(struct launcher *launcher)
{
    const uint64_t now = aq_clock_ns(), ranks = launcher->ranks;
    if (launcher->ended == ranks) return false;
    if (launcher->aborting) return now < launcher->end_deadline_ns;
    if (!launcher->gone && launcher->cause == CAUSE_NONE && now > launcher->ready_deadline_ns &&
        !launcher_return_gather_late(launcher)) {
        uint32_t rank = 0;
        while (rank + 1 < ranks && launcher->stages[rank].state != STAGE_STARTED)
            rank++;
        char name[RANK_NAME_BYTES];
        launcher_fail(launcher, CAUSE_OWN, AQ_TIMEOUT, "%s has not become ready in time",
                      rank_name(launcher, rank, name));
    }
    if (launcher->cause != CAUSE_NONE && now >= launcher->cause_deadline_ns) launcher_abort(launcher);
    const uint64_t end_ns = launcher->launch->time_end_ns;
    if (end_ns && now >= end_ns && launcher->gone && !launcher->stopping && launcher->cause == CAUSE_NONE)
        launcher_stop(launcher, "train.time_max");
    return true;
}

/* Often enough to beat in time. */
static int tick_ms(const struct launcher *launcher)
{
    const uint64_t beat_ms = launcher->beat_ns / 1000000;
    return beat_ms && beat_ms < TICK_MS ? (int)beat_ms : TICK_MS;
}

bool launcher_turn(struct launcher *launcher)
{
    struct pollfd fds[AQ_JOB_RANKS_MAX + 1];
    nfds_t count = 0;
    if (!go_on(launcher)) return false;
    if (launcher->launch->signals >= 0)
        fds[count++] = (struct pollfd){.fd = launcher->launch->signals, .events = POLLIN};
    for (uint32_t i = 0; i < launcher->host_count; i++) {
        struct aq_control *control = launcher->hosts[i].control;
        short events = control && aq_control_pending(control) ? POLLIN | POLLOUT : POLLIN;
        const int fd = control ? aq_control_fd(control) : launcher_reach_fd(&launcher->hosts[i], &events);
        if (fd != -1) fds[count++] = (struct pollfd){.fd = fd, .events = events};
    }
    if (poll(fds, count, launcher->more ? 0 : tick_ms(launcher)) < 0 && errno != EINTR) {
        launcher_fail(launcher, CAUSE_OWN, AQ_IO, "poll: errno %d", errno);
        return true;
    }
    if (launcher->launch->signals >= 0) launcher_signals(launcher);
    launcher->more = false;
    for (uint32_t i = 0; i < launcher->host_count; i++)
        launcher->more |= read_host(launcher, &launcher->hosts[i]);
    watch_send(launcher);
    watch_look(launcher);
    launcher_reach_turn(launcher);
    launcher_rounds_turn(launcher);
    launcher_starting(launcher);
    launcher_board(launcher);
    aq_trackers_turn(launcher->launch->trackers, launcher->launch->progress);
    aq_progress_tick(launcher->launch->progress);
    return true;
}

static void close_trace(struct launcher *launcher)
{
    if (!launcher->trace) return;
    const bool written =
        fputs("{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":\"aqpipe " AQ_VERSION "\"}}]\n",
              launcher->trace) != EOF;
    if ((fclose(launcher->trace) != 0 || !written) && !launcher->trace_failed)
        (void)aq_fail_errno("launch", "cannot write %s", launcher->launch->trace);
}

static void conclude(struct launcher *launcher)
{
    struct aq_launch_result *result = launcher->result;
    result->stages = json_array();
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        json_t *report = launcher->stages[r].report;
        json_decref(launcher->stages[r].evals);
        if (report) json_object_del(report, "event");
        json_array_append_new(result->stages, report ? report : json_null());
    }
    if (launcher->stopping) result->transient = false; /* who asked for the end gets it */
    if (launcher->cause != CAUSE_NONE)
        result->outcome = AQ_LAUNCH_FAILED;
    else
        result->outcome = launcher->stopped ? AQ_LAUNCH_STOPPED : AQ_LAUNCH_DONE;
}

/* The run's best evaluation up to the checkpoint that it resumes from. */
static enum aq_status best_open(struct launcher *launcher)
{
    struct aq_best *best = &launcher->result->best;
    char path[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_best_open(launcher->launch->best, best));
    AQ_TRY(aq_run_path(launcher->launch->run, "metrics.jsonl", path));
    if (launcher->launch->resume > 0) AQ_TRY(aq_best_read(best, path));
    launcher->best_kept = best->step;
    return AQ_OK;
}

void aq_launch_run(const struct aq_launch *launch, struct aq_launch_result *result)
{
    const uint32_t ranks = launch->stages * launch->replicas;
    AQ_ASSERT(ranks >= 1 && ranks <= AQ_JOB_RANKS_MAX);
    *result = (struct aq_launch_result){.mark = launch->resume};
    void *memory;
    if (aq_alloc(sizeof(struct launcher), &memory) != AQ_OK) {
        result->outcome = AQ_LAUNCH_FAILED;
        result->status = AQ_NOMEM;
        snprintf(result->cause, sizeof result->cause, "no memory");
        return;
    }
    struct launcher *launcher = memory;
    launcher->launch = launch;
    launcher->ranks = ranks;
    aq_control_descriptors(ranks + OWN_DESCRIPTORS);
    launcher->mark_bytes = launch->resume_bytes;
    for (uint32_t r = 0; r < ranks; r++)
        launcher->stages[r].step = launch->resume;
    launcher->result = result;
    launcher->ready_deadline_ns = aq_clock_after(launch->ready_ns_max);
    watch_open(launcher);
    enum aq_status status = best_open(launcher);
    if (status == AQ_OK) status = launcher_hashes_load(launcher);
    if (status == AQ_OK) status = launcher_rounds_open(launcher);
    if (status == AQ_OK) status = hosts_open(launcher);
    if (status != AQ_OK) {
        if (launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text()))
            result->transient = launch->again || launcher->private_silent;
    } else {
        hosts_start(launcher);
        while (launcher_turn(launcher))
            continue;
    }
    hosts_close(launcher);
    json_decref(launcher->hashes);
    launcher_rounds_close(launcher);
    close_trace(launcher);
    conclude(launcher);
    aq_free(launcher);
}
