/*
 * daemon_worker.c -- a worker's life: started with its channel at fd 3, its output kept in a bounded log, reaped for
 * certain.
 *
 * The end of a worker has three signs that come in any order: its channel closes, its output closes, waitpid has it.
 * `exited` is sent after waitpid and after everything readable was read, of this worker and of the others. So it is the
 * rank's last line to the launcher, and a line that another worker had sent before this one ended comes before it: the
 * launcher may end that worker at once, and take no more lines from it (reduce.patience).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "daemon_private.h"
#include "runtime_text.h"

#define LINGER_NS (5ULL * 1000 * 1000 * 1000) /* of a worker that has closed its channel: to write what it must */

struct worker *worker_find(struct daemon *daemon, uint32_t rank)
{
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        if (daemon->workers[i].used && daemon->workers[i].rank == rank) return &daemon->workers[i];
    return NULL;
}

bool worker_any(const struct daemon *daemon)
{
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        if (daemon->workers[i].used) return true;
    return false;
}

void worker_kill(struct worker *worker)
{
    worker->killed = true;
    kill(worker->pid, SIGKILL);
}

/* The kernel's count of out-of-memory kills in this process's cgroup, which its workers share; 0: unknown. */
static uint64_t memory_kills(void)
{
    char line[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES] = "";
    unsigned long long count = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = 0;
            if (snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.events", line + 3) >= (int)sizeof path)
                path[0] = 0;
        }
    if (file) fclose(file);
    file = path[0] ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "oom_kill %llu", &count) == 1) break;
    if (file) fclose(file);
    return count;
}

/* The likely cause if a worker was killed, but not by aqpipe; "": none. */
static void say_why(const struct worker *worker, char *text, size_t bytes)
{
    char held[AQ_TEXT_NUMBER], limit_text[96];
    struct rlimit cpu;
    text[0] = 0;
    const bool limited = getrlimit(RLIMIT_CPU, &cpu) == 0 && cpu.rlim_cur != RLIM_INFINITY;
    snprintf(limit_text, sizeof limit_text, "not by aqpipe: perhaps by its limit of CPU time (ulimit -t: %llu s)",
             (unsigned long long)cpu.rlim_cur);
    if (WIFSIGNALED(worker->wait_status) && WTERMSIG(worker->wait_status) == SIGXCPU)
        snprintf(text, bytes, "its limit of CPU time is used up (ulimit -t)");
    if (worker->killed || !WIFSIGNALED(worker->wait_status) || WTERMSIG(worker->wait_status) != SIGKILL) return;
    snprintf(text, bytes, "%s; it held %s at most",
             memory_kills() > worker->memory_kills
                 ? "the kernel killed it because memory ran out (oom_kill in memory.events)"
             : limited ? limit_text
                       : "not by aqpipe: perhaps by the kernel because memory ran out (see dmesg)",
             aq_text_size(worker->peak_bytes, held));
}

/* ---- the log ---- */

static void log_open(struct daemon *daemon, struct worker *worker, bool rename_first)
{
    char name[48], aside[48];
    worker->log = -1;
    snprintf(name, sizeof name, "logs/stage-%u.log", worker->rank);
    snprintf(aside, sizeof aside, "logs/stage-%u.log.1", worker->rank);
    if (daemon->probing) return; /* there is no run folder: its last line is sent when it ends */
    enum aq_status status = aq_file_make_folder(daemon->run, "logs");
    if (status == AQ_OK && rename_first) (void)aq_file_rename(daemon->run, name, aside);
    if (status == AQ_OK) status = aq_file_open(daemon->run, name, AQ_FILE_APPEND, &worker->log);
    if (status != AQ_OK) {
        (void)aq_fail(status, "daemon", "cannot write %s/%s; the output of stage %u is lost", daemon->run, name,
                      worker->rank);
        return;
    }
    struct stat info;
    worker->log_bytes = fstat(worker->log, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static void log_write(struct daemon *daemon, struct worker *worker, const char *bytes, size_t count)
{
    if (worker->log == -1) return;
    if (worker->log_bytes + count > DAEMON_LOG_BYTES_MAX) {
        close(worker->log);
        log_open(daemon, worker, true);
        if (worker->log == -1) return;
    }
    if (aq_write_all(worker->log, bytes, count)) {
        worker->log_bytes += count;
        return;
    }
    (void)aq_fail_errno("daemon", "cannot write the log of stage %u; the rest of its output is lost", worker->rank);
    close(worker->log);
    worker->log = -1;
}

/* Keeps the last line that is not of level info: it explains a crash better than the signal. */
static void log_scan(struct worker *worker, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char c = bytes[i];
        if (c != '\n') {
            if (worker->line_bytes < sizeof worker->line - 1)
                worker->line[worker->line_bytes++] = (unsigned char)c < 32 || (unsigned char)c > 126 ? ' ' : c;
            continue;
        }
        worker->line[worker->line_bytes] = 0;
        if (strspn(worker->line, " ") < worker->line_bytes && !aq_log_is_info(worker->line))
            memcpy(worker->last, worker->line, worker->line_bytes + 1);
        worker->line_bytes = 0;
    }
}

void worker_listen(struct daemon *daemon, struct worker *worker)
{
    char bytes[16384];
    for (int round = 0; round < 16; round++) { /* a chatty worker must not starve the others */
        const ssize_t count = read(worker->output, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count <= 0) {
            close(worker->output);
            worker->output = -1;
            return;
        }
        log_write(daemon, worker, bytes, (size_t)count);
        log_scan(worker, bytes, (size_t)count);
    }
}

/* ---- starting ---- */

/* In the child, between fork and exec. */
static bool confine(void *context)
{
    static const char refused[] = "aqpiped: Landlock refuses a worker's rules\n";
    if (aq_confine_follow(*(const int *)context)) return true;
    const ssize_t told = write(2, refused, sizeof refused - 1);
    (void)told;
    return false;
}

static enum aq_status close_failed(int fd, enum aq_status status)
{
    close(fd);
    return status;
}

static enum aq_status spawn(struct daemon *daemon, struct worker *worker)
{
    int channel[2], output[2], heartbeat, rules;
    AQ_TRY(aq_heartbeat_make(daemon->beat_ns, &heartbeat, &worker->heartbeat));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
        return close_failed(heartbeat, aq_fail_errno("daemon", "cannot open a channel to stage %u", worker->rank));
    if (pipe2(output, O_CLOEXEC) != 0) {
        const enum aq_status failed = aq_fail_errno("daemon", "cannot open a pipe to stage %u", worker->rank);
        close(channel[0]);
        close(channel[1]);
        return close_failed(heartbeat, failed);
    }
    /* Some KiB a worker, not its lines' most: hundreds are copied by each fork. Its start widens the bounds. */
    enum aq_status status = aq_control_open_stranger(channel[0], &worker->control);
    if (status == AQ_OK)
        status = aq_confine_rules(&daemon->config->confine, daemon->config->worker, daemon->config->keys, &rules);
    else
        close(channel[0]);
    if (status == AQ_OK) {
        char what[32];
        snprintf(what, sizeof what, "a process for stage %u", worker->rank);
        const char *const arguments[] = {daemon->config->worker, "worker", NULL};
        const struct aq_child child = {.program = daemon->config->worker,
                                       .arguments = arguments,
                                       .fds = {{AQ_CHILD_NULL, 0},
                                               {output[1], 1},
                                               {output[1], 2},
                                               {channel[1], AQ_CONTROL_FD},
                                               {heartbeat, AQ_HEARTBEAT_FD}},
                                       .fd_count = 5,
                                       .alone = true,
                                       .dies_by = SIGKILL,
                                       .data_max = daemon->config->confine.memory_bytes_max,
                                       .last = confine,
                                       .context = &rules,
                                       .failed_line = "aqpiped: cannot run the worker program\n"};
        status = aq_child_start(&child, what, &worker->pid);
        if (rules != -1) close(rules);
    }
    close(heartbeat);
    close(channel[1]);
    close(output[1]);
    if (status == AQ_OK && fcntl(output[0], F_SETFL, O_NONBLOCK) != 0)
        status = aq_fail_errno("daemon", "cannot open the output of stage %u", worker->rank);
    worker->output = output[0];
    return status;
}

static void worker_free(struct worker *worker)
{
    aq_control_close(worker->control);
    aq_heartbeat_free(worker->heartbeat);
    if (worker->output != -1) close(worker->output);
    if (worker->log != -1) close(worker->log);
    *worker = (struct worker){.output = -1, .log = -1};
}

enum aq_status worker_start(struct daemon *daemon, uint32_t rank, json_t *message)
{
    if (worker_find(daemon, rank)) return aq_fail(AQ_INVAL, "daemon", "stage %u is started already", rank);
    struct worker *worker = NULL;
    for (int i = 0; i < DAEMON_WORKERS_MAX && !worker; i++)
        if (!daemon->workers[i].used) worker = &daemon->workers[i];
    if (!worker) return aq_fail(AQ_NOSPC, "daemon", "at most %d stages run on one machine", DAEMON_WORKERS_MAX);
    *worker = (struct worker){
        .used = true, .rank = rank, .output = -1, .log = -1, .since_ns = aq_clock_ns(), .memory_kills = memory_kills()};
    log_open(daemon, worker, false);
    enum aq_status status = spawn(daemon, worker);
    if (status == AQ_OK) {
        aq_control_queue(worker->control, AQ_CONTROL_BUFFER_BYTES + AQ_CONTROL_LINE_BYTES_MAX);
        aq_control_limit(worker->control, DAEMON_REPORT_BYTES_MAX);
        status = aq_control_send(worker->control, json_incref(message));
    }
    if (status == AQ_OK) {
        aq_log("daemon", 2, "stage=%u pid=%d started", rank, (int)worker->pid);
        return AQ_OK;
    }
    if (worker->pid > 0)
        worker_kill(worker); /* reaped in the loop, which sends `exited` */
    else
        worker_free(worker);
    return status;
}

/* ---- running and ending ---- */

/* A worker must not send a daemon's events: the launcher could not distinguish them. */
static bool is_ours(const json_t *message)
{
    static const char *const events[] = {"exited", "stop-asked", "opened", "refused"};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (aq_control_is(message, "event", events[i])) return true;
    return false;
}

void worker_serve(struct daemon *daemon, struct worker *worker)
{
    while (worker->control) {
        json_t *message;
        worker->held = daemon->owner && aq_control_room(daemon->owner->control) < DAEMON_ROOM;
        if (worker->held) return; /* back-pressure */
        const enum aq_status status = aq_control_receive(worker->control, 0, &message);
        if (status == AQ_AGAIN) return;
        if (status != AQ_OK) {
            if (status != AQ_CLOSED && worker->pid > 0 && !worker->reaped) {
                snprintf(worker->last, sizeof worker->last, "its control channel broke: %s", aq_status_text(status));
                worker_kill(worker);
            }
            aq_control_close(worker->control);
            worker->control = NULL;
            worker->kill_ns = aq_clock_after(LINGER_NS); /* without a channel it is of no use to anybody */
            return;
        }
        if (is_ours(message)) {
            snprintf(worker->last, sizeof worker->last, "it sent a message that only its daemon may send");
            if (worker->pid > 0) worker_kill(worker);
            json_decref(message);
            aq_control_close(worker->control);
            worker->control = NULL;
            worker->kill_ns = aq_clock_after(LINGER_NS);
            return;
        }
        if (json_object_set_new(message, "rank", json_integer(worker->rank)) != 0) {
            json_decref(message);
            message = NULL; /* owner_send reports that memory is out */
        }
        owner_send(daemon, message);
    }
}

/* It has ended: reads the rest, sends `exited` and frees the worker. */
static void worker_finish(struct daemon *daemon, struct worker *worker)
{
    bool open = false;
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++) {
        if (daemon->workers[i].used) worker_serve(daemon, &daemon->workers[i]);
        open |= daemon->workers[i].control != NULL;
    }
    /* Their lines wait until the launcher has read what came before: the loop comes again. Left open without
     * back-pressure: a descendant of the worker holds the other end, and nothing more will come. */
    if (open && daemon->owner && aq_control_room(daemon->owner->control) < DAEMON_ROOM) return;
    if (worker->output != -1) worker_listen(daemon, worker);
    if (worker->line_bytes > 0) log_scan(worker, "\n", 1);
    char why[160];
    say_why(worker, why, sizeof why);
    const bool signalled = WIFSIGNALED(worker->wait_status);
    const int number = signalled ? WTERMSIG(worker->wait_status) : WEXITSTATUS(worker->wait_status);
    aq_log("daemon", 2, "stage=%u pid=%d %s=%d", worker->rank, (int)worker->pid, signalled ? "signal" : "code", number);
    owner_send(daemon, json_pack("{s:s, s:I, s:I, s:i, s:s, s:s}", "event", "exited", "rank", (json_int_t)worker->rank,
                                 "pid", (json_int_t)worker->pid, signalled ? "signal" : "code", number, "last",
                                 worker->last, "why", why));
    worker_free(worker);
}

void worker_reap(struct daemon *daemon)
{
    const bool due = daemon->children_due;
    daemon->children_due = false; /* before the loop: a worker that ends meanwhile sets it again */
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++) {
        struct worker *worker = &daemon->workers[i];
        if (!worker->used || worker->pid <= 0) continue;
        struct rusage usage;
        if (!worker->reaped && due) {
            worker->reaped = wait4(worker->pid, &worker->wait_status, WNOHANG, &usage) == worker->pid;
            if (worker->reaped) worker->peak_bytes = (uint64_t)usage.ru_maxrss * 1024;
        }
        if (worker->reaped)
            worker_finish(daemon, worker);
        else if (!worker->control && aq_clock_ns() > worker->kill_ns)
            worker_kill(worker);
    }
}

void worker_kill_all(struct daemon *daemon)
{
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        if (daemon->workers[i].used && daemon->workers[i].pid > 0 && !daemon->workers[i].reaped)
            worker_kill(&daemon->workers[i]);
}

/* ---- status ---- */

/* Resident bytes and CPU time of a process, from /proc. */
static void measure(pid_t pid, uint64_t *rss_bytes, uint64_t *cpu_ns)
{
    char path[64], text[1024];
    *rss_bytes = *cpu_ns = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1) return;
    const ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0) return;
    text[count] = 0;
    const char *fields = strrchr(text, ')'); /* the name may contain anything */
    unsigned long user, system;
    long rss;
    if (!fields ||
        sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld",
               &user, &system, &rss) != 3)
        return;
    *cpu_ns = (uint64_t)(user + system) * (1000000000ULL / (uint64_t)sysconf(_SC_CLK_TCK));
    *rss_bytes = (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE);
}

json_t *worker_status(const struct daemon *daemon)
{
    json_t *list = json_array();
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++) {
        const struct worker *worker = &daemon->workers[i];
        if (!worker->used) continue;
        uint64_t rss, cpu;
        measure(worker->pid, &rss, &cpu);
        json_array_append_new(list, json_pack("{s:I, s:I, s:f, s:I, s:I}", "rank", (json_int_t)worker->rank, "pid",
                                              (json_int_t)worker->pid, "seconds",
                                              (double)(aq_clock_ns() - worker->since_ns) * 1e-9, "rss_bytes",
                                              (json_int_t)rss, "cpu_ns", (json_int_t)cpu));
    }
    return list;
}
