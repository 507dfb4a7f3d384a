/* trackers.c -- see the header. */
#include "trackers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "run_folder.h"
#include "runtime_text.h"

enum { ARGUMENTS_MAX = 16, NOTES_FD = 3, NO_PYTHON = 127, TICK_MS = 100 };
enum { PATIENCE_S = 3, TERMINATED_S = 10, ASKED_S = 2 };

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char area[] = "output.report_to";

/* What is missing of this program, or NULL. */
static const char *without(const struct aq_trackers_config *config)
{
    if (config->program) return NULL;
    const char *named = getenv("AQPIPE_FOLLOW");
    return named && *named ? "AQPIPE_FOLLOW names no file that can be read"
                           : "tools/follow is not where this aqpipe is installed (share/aqpipe/tools), or has another "
                             "owner than aqpipe: name it with AQPIPE_FOLLOW";
}

/* PYTHON PROGRAM [RUN] --mlflow ...; board: the folder of --tensorboard. Returns the count. */
static size_t arguments_of(const struct aq_trackers_config *config, const char *run, const char *board,
                           const char *arguments[ARGUMENTS_MAX])
{
    size_t count = 0;
    arguments[count++] = config->python;
    arguments[count++] = config->program;
    if (run) arguments[count++] = run;
    if (config->wanted & 1U << AQ_TRACKER_TENSORBOARD) {
        arguments[count++] = "--tensorboard";
        arguments[count++] = board;
    }
    if (config->wanted & 1U << AQ_TRACKER_MLFLOW) arguments[count++] = "--mlflow";
    if (config->wanted & 1U << AQ_TRACKER_WANDB) arguments[count++] = "--wandb";
    return count;
}

/* Starts it with the writing end of a pipe as descriptor `as`, and /dev/null as the other ones; *out gets ours. */
static enum aq_status start(const char *const *arguments, int as, int dies_by, pid_t *pid, int *out)
{
    int ends[2];
    const int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (quiet == -1 || pipe2(ends, O_CLOEXEC) != 0) {
        const enum aq_status status = aq_fail_errno("launch", "no pipe for %s", area);
        if (quiet != -1) close(quiet);
        return status;
    }
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const struct aq_child child = {.program = arguments[0],
                                   .arguments = arguments,
                                   .fds = {{AQ_CHILD_NULL, 0}, {quiet, 1}, {quiet, 2}, {ends[1], as}},
                                   .fd_count = 4,
                                   .search = true,
                                   .session = true, /* Ctrl-C ends the job, whose end it then sends */
                                   .alone = true,
                                   .dies_by = dies_by,
                                   .failed = NO_PYTHON};
    const enum aq_status status = aq_child_start(&child, arguments[0], pid);
    close(ends[1]);
    close(quiet);
    if (status != AQ_OK) close(ends[0]);
    *out = ends[0];
    return status;
}

void aq_trackers_start(struct aq_trackers *trackers, const struct aq_trackers_config *config,
                       struct aq_progress *progress)
{
    char board[AQ_RUN_PATH_BYTES];
    const char *arguments[ARGUMENTS_MAX], *why = without(config);
    *trackers = (struct aq_trackers){.config = *config};
    if (!config->wanted) return;
    if (!why && aq_run_path(config->run, "tensorboard", board) != AQ_OK) why = aq_error_text();
    if (!why) {
        size_t count = arguments_of(config, config->run, board, arguments);
        arguments[count++] = "--keep";
        arguments[count++] = "--every";
        arguments[count++] = "1";
        arguments[count++] = "--notes";
        arguments[count++] = "3";
        arguments[count] = NULL;
        if (start(arguments, NOTES_FD, SIGTERM, &trackers->pid, &trackers->notes) == AQ_OK) return;
        why = aq_error_text();
    }
    trackers->pid = 0;
    aq_progress_say(progress, "%s: %s; the job continues without it", area, why);
    aq_error_clear();
}

static void note(struct aq_trackers *trackers, struct aq_progress *progress)
{
    trackers->line[trackers->used] = 0;
    if (trackers->used > 0) aq_progress_say(progress, "%s: %s", area, trackers->line);
    trackers->used = 0;
}

/* Prints the lines that came. A long one loses its end. */
static void take(struct aq_trackers *trackers, struct aq_progress *progress)
{
    char piece[AQ_TRACKERS_LINE_BYTES];
    ssize_t got;
    while ((got = read(trackers->notes, piece, sizeof piece)) > 0)
        for (ssize_t i = 0; i < got; i++) {
            if (piece[i] == '\n')
                note(trackers, progress);
            else if (trackers->used + 1 < sizeof trackers->line)
                trackers->line[trackers->used++] = piece[i];
        }
}

static bool ended(struct aq_trackers *trackers)
{
    if (trackers->pid == 0 || waitpid(trackers->pid, &trackers->how, WNOHANG) != trackers->pid) return false;
    trackers->pid = 0;
    trackers->over = true;
    return true;
}

void aq_trackers_turn(struct aq_trackers *trackers, struct aq_progress *progress)
{
    if (!trackers || trackers->pid == 0) return;
    const bool over = ended(trackers);
    take(trackers, progress); /* after its end: all of it */
    if (!over) return;
    note(trackers, progress);
    close(trackers->notes);
    if (WIFEXITED(trackers->how) && WEXITSTATUS(trackers->how) == NO_PYTHON)
        aq_progress_say(progress, "%s: there is no %s: install Python 3, or name one with AQPIPE_PYTHON", area,
                        trackers->config.python);
}

/* What to type for what was not sent. */
static void say_rest(const struct aq_trackers *trackers, struct aq_progress *progress, const char *why)
{
    struct aq_text text = {0};
    char board[AQ_RUN_PATH_BYTES];
    const char *arguments[ARGUMENTS_MAX];
    if (aq_run_path(trackers->config.run, "tensorboard", board) != AQ_OK) return;
    const size_t count = arguments_of(&trackers->config, trackers->config.run, board, arguments);
    for (size_t i = 0; i < count; i++) {
        aq_text_shell(&text, arguments[i]);
        aq_text_add(&text, " ");
    }
    aq_progress_say(progress, "%s: %s; the rest is sent by: %s--keep", area, why, aq_text_of(&text));
    aq_text_deinit(&text);
}

/* Has a signal come that means "now"? A scheduler's warning (SIGUSR1) may come twice and never means that. */
static bool told_to_end(int signals)
{
    struct signalfd_siginfo info;
    bool told = false;
    while (signals >= 0 && read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGUSR1) told = true;
    return told;
}

/* Until it has ended, `until`, or such a signal: true. */
static bool await(struct aq_trackers *trackers, struct aq_progress *progress, uint64_t until, int signals)
{
    while (trackers->pid && aq_clock_ns() < until) {
        struct pollfd fds[2] = {{.fd = trackers->notes, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        (void)poll(fds, 2, TICK_MS);
        aq_trackers_turn(trackers, progress);
        if (told_to_end(signals)) return true;
        if (fds[0].revents & POLLHUP) (void)poll(NULL, 0, 1); /* its end of the pipe is closed: it is about to end */
    }
    return false;
}

void aq_trackers_end(struct aq_trackers *trackers, struct aq_progress *progress, int signals)
{
    const char *why = "not all trackers got everything";
    if (!trackers->pid && !trackers->over) return;
    const uint64_t until = aq_clock_after(AQ_TRACKERS_END_S * second_ns);
    bool asked = await(trackers, progress, aq_clock_after(PATIENCE_S * second_ns), signals);
    if (trackers->pid && !asked) {
        aq_progress_say(progress, "%s: waits up to %d s until the rest is sent (Ctrl-C ends the wait)", area,
                        AQ_TRACKERS_END_S);
        asked = await(trackers, progress, until, signals);
    }
    if (trackers->pid) {
        why = "not everything was sent in time";
        (void)kill(trackers->pid, SIGTERM);
        (void)await(trackers, progress, aq_clock_after((asked ? ASKED_S : TERMINATED_S) * second_ns), -1);
    }
    if (trackers->pid) {
        (void)kill(trackers->pid, SIGKILL);
        while (waitpid(trackers->pid, &trackers->how, 0) == -1 && errno == EINTR)
            continue;
        take(trackers, progress);
        close(trackers->notes);
        trackers->pid = 0;
    }
    if (!WIFEXITED(trackers->how) || WEXITSTATUS(trackers->how) != 0) say_rest(trackers, progress, why);
    trackers->over = false;
}

enum aq_status aq_trackers_check(const struct aq_trackers_config *config, char *text, size_t bytes)
{
    const char *arguments[ARGUMENTS_MAX], *why = without(config);
    struct aq_trackers trackers = {.config = *config};
    struct pollfd fd = {.events = POLLIN};
    size_t used = 0;
    ssize_t got = -1;
    text[0] = 0;
    if (why) {
        snprintf(text, bytes, "%s", why);
        return AQ_NOTFOUND;
    }
    size_t count = arguments_of(config, NULL, ".", arguments);
    arguments[count++] = "--check";
    arguments[count] = NULL;
    AQ_TRY(start(arguments, STDOUT_FILENO, SIGKILL, &trackers.pid, &fd.fd));
    const uint64_t until = aq_clock_after(AQ_TRACKERS_CHECK_S * second_ns);
    while (got != 0 && used < bytes - 1 && aq_clock_ns() < until) {
        (void)poll(&fd, 1, TICK_MS);
        got = read(fd.fd, text + used, bytes - 1 - used);
        if (got > 0) used += (size_t)got;
    }
    text[used] = 0;
    close(fd.fd);
    pid_t ended; /* a program may close its output long before it ends */
    while ((ended = waitpid(trackers.pid, &trackers.how, WNOHANG)) == 0 && aq_clock_ns() < until)
        (void)poll(NULL, 0, 1);
    if (ended == 0) (void)kill(trackers.pid, SIGKILL);
    while (ended == 0 && waitpid(trackers.pid, &trackers.how, 0) == -1 && errno == EINTR)
        continue;
    if (ended == 0) return aq_fail(AQ_TIMEOUT, "launch", "%s: %s does not answer", area, config->python);
    if (!WIFEXITED(trackers.how)) return aq_fail(AQ_IO, "launch", "%s: %s crashes", area, config->python);
    if (WEXITSTATUS(trackers.how) == NO_PYTHON)
        snprintf(text, bytes, "there is no %s: install Python 3, or name one with AQPIPE_PYTHON", config->python);
    if (WEXITSTATUS(trackers.how) == 0) return AQ_OK;
    return used || WEXITSTATUS(trackers.how) == NO_PYTHON
               ? AQ_NOTFOUND
               : aq_fail(AQ_IO, "launch", "%s: %s cannot run %s (status %d)", area, config->python, config->program,
                         WEXITSTATUS(trackers.how));
}
