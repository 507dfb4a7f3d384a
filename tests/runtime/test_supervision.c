/*
 * test_supervision.c -- launcher, daemon and workers as processes: every job ends, in the right way, and nobody is
 * left.
 *
 * The workers are puppets (puppet_worker.c). Each test runs whole launches in a folder of its own; moments of killing
 * come from aq_rng. No wait is a measure of speed: what is awaited comes soon or never, and a busy machine may take
 * PATIENCE_S for it; jobs that a test ends are so long that they never end by themselves. This process is a subreaper:
 * whatever a killed launcher or daemon leaves becomes its child, and is found.
 *
 * Usage: test_supervision AQPIPED PUPPET
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "control_socket.h"
#include "launcher.h"
#include "owned_folder.h"
#include "remove_tree.h"
#include "report.h"
#include "run_folder.h"
#include "run_rewind.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { PATIENCE_S = 120, HICCUP_S = 5 };
static const char *daemon_program;
static char root[64], run[128], checkpoint[160];

struct trial {
    const char *manifest;
    uint32_t stages;
    uint64_t resume;
    uint64_t ready_s;
    const char *hosts[8];
    const struct aq_token *token;
    bool trace;
    uint64_t trace_bytes; /* that a rank may send; 0: 64 KiB */
    struct aq_watch_config watch;
};

/* ---- helpers ---- */

static void pause_ms(uint64_t ms)
{
    const struct timespec moment = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * 1000000)};
    nanosleep(&moment, NULL);
}

static int each_setup(void **state)
{
    static int number;
    (void)state;
    snprintf(run, sizeof run, "%s/run-%d", root, number++);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", run);
    return aq_run_make_folder(run) == AQ_OK ? 0 : -1;
}

static void no_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

/* What follows the key in a puppet's manifest; 0: it is not there. */
static uint64_t number(const char *manifest, const char *key)
{
    const char *at = strstr(manifest, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void launch(const struct trial *trial, int signals, struct aq_launch_result *result)
{
    struct aq_progress progress = {.off = true, .steps = 100, .stages = trial->stages};
    char metrics_path[200], trace[200];
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", run);
    snprintf(trace, sizeof trace, "%s/trace.json", run);
    const struct aq_metrics_config metrics_config = {
        .path = metrics_path, .stages = trial->stages, .step = trial->resume};
    struct aq_metrics *metrics;
    struct aq_owner owner = {.job = "test job", .plan_hash = 0x1234};
    assert_int_equal(aq_owned_claim_run(run, AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_OK);
    assert_int_equal(aq_owned_claim(checkpoint, AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &owner), AQ_OK);
    assert_int_equal(aq_metrics_open(&metrics_config, &metrics), AQ_OK);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:s, s:i}", "event", "start", "name", "test", "stages",
                                                        (int)trial->stages)),
                     AQ_OK);
    static const struct aq_token none;
    const struct aq_launch config = {.name = "test job",
                                     .replicas = 1,
                                     .stages = trial->stages,
                                     .hosts = trial->hosts,
                                     .manifest = trial->manifest,
                                     .plan_hash = 0x1234,
                                     .resume = trial->resume,
                                     .run = run,
                                     .checkpoint = checkpoint,
                                     .id = owner.id,
                                     .trace = trial->trace ? trace : NULL,
                                     .daemon = daemon_program,
                                     .keep = 2,
                                     .bounds = {.steps = number(trial->manifest, "steps "),
                                                .mark_every = number(trial->manifest, "mark "),
                                                .trace_bytes = trial->trace_bytes ? trial->trace_bytes : 1 << 16},
                                     .begin_ns = aq_clock_ns(),
                                     .ready_ns_max = (trial->ready_s ? trial->ready_s : PATIENCE_S) * second_ns,
                                     .token = trial->token ? trial->token : &none,
                                     .watch = trial->watch,
                                     .metrics = metrics,
                                     .progress = &progress,
                                     .signals = signals};
    aq_error_clear();
    aq_log_sink(no_line, NULL);
    aq_launch_run(&config, result);
    aq_log_sink(NULL, NULL);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:s, s:O}", "event", "end", "state", "over", "stages",
                                                        result->stages)),
                     AQ_OK);
    aq_metrics_close(metrics);
}

/* Does this process live (a zombie does not)? */
static bool lives(int pid)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const int fd = open(path, O_RDONLY);
    if (fd == -1) return false;
    const ssize_t count = read(fd, text, sizeof text - 1);
    close(fd);
    if (count <= 0) return false;
    text[count] = 0;
    const char *fields = strrchr(text, ')');
    return fields && fields[1] == ' ' && fields[2] != 'Z' && fields[2] != 'X';
}

/* Processes of the run, workers and daemons, as the puppets wrote them down. */
static int read_pids(int *pids, int room)
{
    char path[200], *text;
    int count = 0, worker, parent;
    snprintf(path, sizeof path, "%s/pids", run);
    if (aq_file_load(NULL, path, 1 << 20, &text, NULL) != AQ_OK) return 0;
    for (const char *line = text; count + 1 < room && sscanf(line, "%d %d", &worker, &parent) == 2;) {
        pids[count++] = worker;
        pids[count++] = parent;
        line = strchr(line, '\n');
        if (!line) break;
        line++;
    }
    aq_free(text);
    return count;
}

/* Nobody of the run is left (but for `spared`). */
static void assert_nobody_left(int spared)
{
    int pids[64];
    const int count = read_pids(pids, 64);
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    for (;;) {
        int alive = 0;
        while (spared == 0 && waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        for (int i = 0; i < count; i++)
            if (pids[i] != spared && lives(pids[i])) alive = pids[i];
        if (!alive) return;
        if (aq_clock_ns() > deadline) fail_msg("process %d of %s is left", alive, run);
        pause_ms(5);
    }
}

static void await_pids(int wanted)
{
    int pids[64];
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    while (read_pids(pids, 64) < 2 * wanted) {
        assert_true(aq_clock_ns() < deadline);
        pause_ms(2);
    }
}

static uint64_t count_lines(const char *event)
{
    char path[200], *text, wanted[64];
    uint64_t count = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    snprintf(wanted, sizeof wanted, "\"event\":\"%s\"", event);
    if (aq_file_load(NULL, path, 1 << 24, &text, NULL) != AQ_OK) return 0;
    for (const char *at = text; (at = strstr(at, wanted)); at++)
        count++;
    aq_free(text);
    return count;
}

/* ---- a job that goes well ---- */

static void test_job_runs_to_its_end(void **state)
{
    (void)state;
    struct aq_launch_result result;
    const struct trial trial = {.manifest = "steps 9\nmark 2\n", .stages = 4, .trace = true};
    launch(&trial, -1, &result);
    assert_string_equal(result.cause, "");
    assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
    assert_int_equal(result.mark, 9);
    assert_int_equal(json_array_size(result.stages), 4);
    json_decref(result.stages);
    assert_int_equal(count_lines("step"), 9);
    struct aq_run_mark mark;
    assert_int_equal(aq_run_mark_read(checkpoint, &mark), AQ_OK);
    assert_int_equal(mark.step, 9);
    assert_int_equal(mark.plan_hash, 0x1234);
    /* Each checkpoint knows its part of the metrics: after the newest there is the end alone. */
    assert_in_range(mark.older_metrics, 1, mark.metrics - 1);
    char metrics[200];
    double seconds;
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", run);
    assert_int_equal(aq_run_rewind(metrics, mark.step, mark.metrics, &seconds), AQ_OK);
    assert_int_equal(count_lines("step"), 9);
    assert_int_equal(count_lines("end"), 0);
    assert_int_equal(aq_run_rewind(metrics, mark.older, mark.older_metrics, &seconds), AQ_OK);
    assert_int_equal(count_lines("step"), 8);
    uint64_t steps[16];
    uint32_t count;
    assert_int_equal(aq_run_marks(checkpoint, steps, 16, &count), AQ_OK);
    assert_int_equal(count, 2); /* keep = 2: those of steps 8 and 9 */
    assert_int_equal(steps[0] + steps[1], 17);
    char path[200], *text;
    snprintf(path, sizeof path, "%s/trace.json", run);
    assert_int_equal(aq_file_load(NULL, path, 1 << 20, &text, NULL), AQ_OK);
    json_t *trace = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(trace), 4 + 1);
    json_decref(trace);
    aq_free(text);
    assert_nobody_left(0);
}

/* The machine lets one worker wait while the others' lines go on coming: a slow moment, and no failure. */
static void test_rank_whose_lines_come_late_is_waited_for(void **state)
{
    (void)state;
    struct aq_launch_result result;
    const struct trial trial = {.manifest = "steps 1000\nms 0\nbehind 1 2\n", .stages = 3};
    launch(&trial, -1, &result);
    assert_string_equal(result.cause, "");
    assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
    json_decref(result.stages);
    assert_int_equal(count_lines("step"), 1000);
    assert_nobody_left(0);
}

static void test_report_is_computed_from_the_metrics(void **state)
{
    (void)state;
    struct aq_launch_result result;
    const struct trial trial = {.manifest = "steps 8\nms 4\n", .stages = 3};
    launch(&trial, -1, &result);
    json_decref(result.stages);
    json_t *report;
    assert_int_equal(aq_report_run(run, &report), AQ_OK);
    assert_string_equal(json_string_value(json_object_get(report, "name")), "test");
    assert_int_equal(json_integer_value(json_object_get(report, "steps")), 8);
    assert_int_equal(json_integer_value(json_object_get(report, "epochs")), 2);
    assert_int_equal(json_integer_value(json_object_get(report, "stages")), 3);
    assert_int_equal(json_integer_value(json_object_get(report, "cache_bytes")), 300);
    assert_float_equal(json_number_value(json_object_get(report, "sequences_per_second")), 2000, 1e-6);
    assert_float_equal(json_number_value(json_object_get(report, "sequences_per_second_warm")), 2000, 1e-6);
    assert_float_equal(json_number_value(json_object_get(report, "link_wait_share")), 0.25, 1e-9);
    const json_t *bytes = json_object_get(report, "bytes_per_step"), *loss = json_object_get(report, "train_loss");
    assert_float_equal(json_number_value(json_object_get(bytes, "forward")), 1000.5, 1e-9);
    assert_float_equal(json_number_value(json_object_get(bytes, "backward")), 500, 1e-9);
    assert_float_equal(json_number_value(json_object_get(loss, "first")), 4, 1e-9);
    assert_float_equal(json_number_value(json_object_get(loss, "last")), 0.5, 1e-9);
    assert_float_equal(json_number_value(json_object_get(loss, "last_epoch")), (4.0 / 5 + 4.0 / 6 + 4.0 / 7 + 0.5) / 4,
                       1e-9);
    json_decref(report);
}

/* ---- jobs that fail ---- */

static void expect_failure_within(uint64_t ready_s, const char *manifest, const char *cause)
{
    struct aq_launch_result result;
    const struct trial trial = {.manifest = manifest, .stages = 3, .ready_s = ready_s};
    launch(&trial, -1, &result);
    assert_int_equal(result.outcome, AQ_LAUNCH_FAILED);
    if (!strstr(result.cause, cause)) fail_msg("the cause of '%s' is '%s'", manifest, result.cause);
    assert_null(strchr(result.cause, '\n'));
    json_decref(result.stages);
    assert_nobody_left(0);
}

static void expect_failure(const char *manifest, const char *cause)
{
    expect_failure_within(PATIENCE_S, manifest, cause);
}

static void test_worker_that_fails_names_the_cause(void **state)
{
    (void)state;
    expect_failure("steps 9\nfail 1 3\n", "stage 1 failed: the puppet was told to fail");
    assert_true(count_lines("step") <= 3);
}

static void test_worker_that_exits_names_the_code(void **state)
{
    (void)state;
    expect_failure("steps 9\nexit 2 4\n", "ended with code 7 before it was done");
}

static void test_worker_that_ends_early_without_error_is_a_failure(void **state)
{
    (void)state;
    expect_failure("steps 9\nquit 0 4\n", "ended with code 0 before it was done");
}

static void test_worker_that_crashes_names_signal_and_last_line(void **state)
{
    (void)state;
    expect_failure("steps 9\nabort 0 2\n",
                   "was killed by signal 6 (ABRT); its last line: puppet: this is my last line");
}

static void test_echo_gives_way_to_the_cause(void **state)
{
    (void)state;
    /* The neighbour speaks first; rank 1 dies a moment later, and is the cause. */
    expect_failure("steps 9\nms 10\necho 2 2\nabort 1 3\n", "stage 1 (pid");
}

static void test_echo_alone_is_the_cause_in_the_end(void **state)
{
    (void)state;
    expect_failure("steps 9\nms 20\necho 2 2\nhang 0 3\nhang 1 3\n",
                   "stage 2 failed: the link to the next stage closed");
}

static void test_worker_that_garbles_is_killed(void **state)
{
    (void)state;
    expect_failure("steps 9\ngarble 1 2\n", "its control channel broke");
}

static void test_worker_that_closes_its_channel_cannot_hang_the_job(void **state)
{
    (void)state;
    expect_failure("steps 9\ndrop 1 2\n", "was killed by signal 9");
}

static void test_worker_that_reports_twice_is_a_failure(void **state)
{
    (void)state;
    expect_failure("steps 9\ntwice 1 2\n", "stage 1 breaks the protocol: it reports step 2 while step 3 is due");
}

/* What a worker says as if it were its daemon does not get as far as the launcher. */
static void test_worker_that_speaks_for_its_daemon_is_killed(void **state)
{
    (void)state;
    expect_failure("steps 9\nsay 1 2 {\"event\":\"exited\",\"code\":0}\n",
                   "it sent a message that only its daemon may send");
    expect_failure("steps 9\nsay 1 2 {\"event\":\"stop-asked\"}\n", "it sent a message that only its daemon may send");
}

/* A worker that never pauses: the first line ends the run, and none of them is written. */
static void test_worker_that_floods_ends_the_run_and_fills_no_disk(void **state)
{
    (void)state;
    expect_failure("steps 9\nflood 2 3 {\"event\":\"eval\",\"step\":2,\"loss\":1}\n",
                   "stage 2 breaks the protocol: it evaluates, which the plan does not have it do");
    assert_int_equal(count_lines("eval"), 0);
    expect_failure("steps 9\nflood 0 2 {\"event\":\"trace\",\"text\":\"0123456789012345678901234567890123456789\"}\n",
                   "more than the 65536 bytes");
}

static void test_worker_that_never_gets_ready_is_a_failure(void **state)
{
    (void)state;
    /* The first that is not ready is named: another one may be late on a busy machine. */
    expect_failure_within(1, "steps 9\nmute 0 0\n", "stage 0 has not become ready in time");
}

static void test_missing_daemon_program_is_a_failure(void **state)
{
    (void)state;
    const char *program = daemon_program;
    daemon_program = "/nonexistent/aqpiped";
    expect_failure("steps 9\n", "does not accept the job");
    daemon_program = program;
}

static void test_chatter_is_kept_bounded(void **state)
{
    (void)state;
    struct aq_launch_result result;
    const struct trial trial = {.manifest = "steps 3\nchatter 1 2\n", .stages = 2};
    launch(&trial, -1, &result);
    assert_string_equal(result.cause, "");
    assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
    json_decref(result.stages);
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        char path[200];
        struct stat info;
        snprintf(path, sizeof path, "%s/logs/stage-1.log%s", run, i ? ".1" : "");
        assert_int_equal(stat(path, &info), 0);
        bytes += (uint64_t)info.st_size;
    }
    assert_true(bytes <= 8 << 20 && bytes > 1 << 20);
}

/* ---- stopping ---- */

/* A launch in a process of its own; its exit code is the outcome. */
static pid_t launch_process(const struct trial *trial)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    struct aq_launch_result result;
    int signals;
    if (aq_launch_signals(&signals) != AQ_OK) _exit(99);
    launch(trial, signals, &result);
    _exit((int)result.outcome);
}

static int await_exit(pid_t pid)
{
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    int how;
    for (;;) {
        const pid_t got = waitpid(pid, &how, WNOHANG);
        if (got == pid) return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        if (aq_clock_ns() > deadline) {
            kill(pid, SIGKILL);
            fail_msg("the launcher does not end");
        }
        pause_ms(2);
    }
}

static void await_steps(uint64_t wanted)
{
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    while (count_lines("step") < wanted) {
        assert_true(aq_clock_ns() < deadline);
        pause_ms(2);
    }
}

static void test_stop_checkpoints_and_resume_goes_on(void **state)
{
    (void)state;
    struct trial trial = {.manifest = "steps 1000000\nms 10\n", .stages = 3};
    const pid_t pid = launch_process(&trial);
    await_steps(3);
    kill(pid, SIGINT);
    assert_int_equal(await_exit(pid), AQ_LAUNCH_STOPPED);
    assert_nobody_left(0);
    struct aq_run_mark mark;
    assert_int_equal(aq_run_mark_read(checkpoint, &mark), AQ_OK);
    assert_true(mark.step >= 3 && mark.step < 1000000);
    assert_int_equal(count_lines("step"), mark.step);
    char path[200];
    double seconds = -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    assert_int_equal(aq_run_rewind(path, mark.step - 1, 0, &seconds), AQ_OK);
    assert_int_equal(count_lines("step"), mark.step - 1);
    assert_int_equal(count_lines("end"), 0);
    assert_true(seconds > 0);
    snprintf(path, sizeof path, "%s/page", run);
    unlink(path);
    struct aq_launch_result result;
    char manifest[64];
    snprintf(manifest, sizeof manifest, "steps %llu\nms 5\n", (unsigned long long)mark.step + 400);
    trial.manifest = manifest; /* puppets do not wait for each other: 0 ms lets one run 64 steps ahead */
    trial.resume = mark.step - 1;
    launch(&trial, -1, &result);
    assert_string_equal(result.cause, "");
    assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
    assert_int_equal(count_lines("step"), mark.step + 400);
    json_decref(result.stages);
}

static void test_second_signal_aborts_at_once(void **state)
{
    (void)state;
    const struct trial trial = {.manifest = "steps 600\nms 10\nhang 0 5\n", .stages = 3};
    const pid_t pid = launch_process(&trial);
    await_steps(4); /* of the stop rank 0 hears at the earliest when it begins step 5, and there it hangs */
    kill(pid, SIGTERM);
    kill(pid, SIGINT);
    assert_int_equal(await_exit(pid), AQ_LAUNCH_FAILED);
    assert_nobody_left(0);
}

static void test_signal_before_the_first_step_aborts(void **state)
{
    (void)state;
    const struct trial trial = {.manifest = "steps 600\nmute 1 0\n", .stages = 3};
    const pid_t pid = launch_process(&trial);
    await_pids(3);
    kill(pid, SIGINT);
    assert_int_equal(await_exit(pid), AQ_LAUNCH_FAILED);
    assert_nobody_left(0);
}

/* ---- kill -9, at seeded moments ---- */

enum victim { VICTIM_WORKER, VICTIM_DAEMON, VICTIM_LAUNCHER, VICTIMS };

static void kill_one(uint64_t round)
{
    const struct aq_rng_key key = aq_rng_key(2, AQ_RNG_TEST, 9, round);
    const struct trial trial = {.manifest = "steps 1000000\nms 1\nmark 3\n", .stages = 3};
    const enum victim victim = (enum victim)(round % VICTIMS);
    int pids[64];
    each_setup(NULL);
    const pid_t pid = launch_process(&trial);
    await_pids(1 + (int)aq_rng_below(&key, 0, 3)); /* also while it starts */
    pause_ms(aq_rng_below(&key, 1, 60));
    const int count = read_pids(pids, 64);
    assert_true(count >= 2);
    const int worker = 2 * (int)aq_rng_below(&key, 2, (uint64_t)count / 2);
    kill(victim == VICTIM_LAUNCHER ? pid : victim == VICTIM_DAEMON ? pids[1] : pids[worker], SIGKILL);
    const int code = await_exit(pid);
    assert_int_equal(code, victim == VICTIM_LAUNCHER ? 128 + SIGKILL : AQ_LAUNCH_FAILED);
    assert_nobody_left(0);
    struct aq_run_mark mark;
    const enum aq_status status = aq_run_mark_read(checkpoint, &mark); /* whole, or not there yet */
    assert_true(status == AQ_OK || status == AQ_NOTFOUND);
}

static void test_kill_leaves_nobody(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 24; round++)
        kill_one(round);
}

/* ---- who neither dies nor goes on ---- */

/*
 * What tests/simulate_stopped cannot have: a worker that lives, and computes without an end. Nobody else can be blamed:
 * silence is long, and there is one stage, which a busy machine would have to leave out for HICCUP_S.
 */
static void test_who_is_stuck_is_noticed(void **state)
{
    (void)state;
    struct aq_launch_result result;
    const struct trial trial = {
        .manifest = "steps 1000000\nms 5\nhang 0 7\n",
        .stages = 1,
        .watch = {.silence_ns = PATIENCE_S * second_ns, .stall_ns = HICCUP_S * second_ns},
    };
    launch(&trial, -1, &result);
    assert_int_equal(result.outcome, AQ_LAUNCH_FAILED);
    if (!strstr(result.cause, "is alive, but in step 7 it computes for ")) fail_msg("the cause is '%s'", result.cause);
    assert_true(result.transient);
    json_decref(result.stages);
    assert_nobody_left(0);
}

/* ---- a listening daemon ---- */

static pid_t start_daemon(const char *listen, const char *token_file, char *address, size_t bytes)
{
    char port_file[128];
    static int number;
    snprintf(port_file, sizeof port_file, "%s/port-%d", root, number++);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 2);
        execl(daemon_program, daemon_program, "--listen", listen, "--port-file", port_file,
              token_file ? "--token-file" : NULL, token_file, NULL);
        _exit(126);
    }
    char *text;
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    while (aq_file_load(NULL, port_file, 100, &text, NULL) != AQ_OK) {
        int how;
        if (waitpid(pid, &how, WNOHANG) == pid) return -WEXITSTATUS(how);
        assert_true(aq_clock_ns() < deadline);
        pause_ms(2);
    }
    snprintf(address, bytes, "127.0.0.1:%d", (int)strtol(text, NULL, 10));
    aq_free(text);
    return pid;
}

static void end_daemon(pid_t pid)
{
    kill(pid, SIGTERM);
    assert_int_equal(await_exit(pid), 0);
}

static void write_token(const char *name, const char *text, mode_t mode, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_daemon_runs_stages_of_a_remote_launcher(void **state)
{
    (void)state;
    char address[64], path[128];
    struct aq_token token;
    write_token("token", "a secret of some length\n", 0600, path, sizeof path);
    assert_int_equal(aq_token_load(path, &token), AQ_OK);
    const pid_t pid = start_daemon("127.0.0.1:0", path, address, sizeof address);
    assert_true(pid > 0);
    for (int i = 0; i < 2; i++) { /* one job after the other */
        struct aq_launch_result result;
        const struct trial trial = {
            .manifest = "steps 6\nmark 2\n", .stages = 4, .token = &token, .hosts = {NULL, address, address, NULL}};
        launch(&trial, -1, &result);
        assert_string_equal(result.cause, "");
        assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
        json_decref(result.stages);
        assert_nobody_left((int)pid);
        each_setup(NULL);
    }
    end_daemon(pid);
}

static void test_daemon_refuses_a_second_job_and_names_the_first(void **state)
{
    (void)state;
    char address[64];
    const pid_t pid = start_daemon("127.0.0.1:0", NULL, address, sizeof address);
    struct aq_launch_result result;
    const struct trial trial = {.manifest = "steps 1000000\nms 5\n", .stages = 2, .hosts = {address, address}};
    const pid_t first = launch_process(&trial);
    await_steps(2);
    char first_run[128];
    snprintf(first_run, sizeof first_run, "%s", run);
    each_setup(NULL);
    launch(&trial, -1, &result);
    assert_int_equal(result.outcome, AQ_LAUNCH_FAILED);
    assert_non_null(strstr(result.cause, "it runs the job 'test job'"));
    json_decref(result.stages);
    snprintf(run, sizeof run, "%s", first_run);
    /* The daemon loses its launcher: the workers end, the daemon stays and takes the next job. */
    kill(first, SIGKILL);
    await_exit(first);
    assert_nobody_left((int)pid);
    const struct trial small = {.manifest = "steps 3\n", .stages = 2, .hosts = {address, address}};
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    do { /* until it has reaped them it is still busy */
        each_setup(NULL);
        launch(&small, -1, &result);
        json_decref(result.stages);
    } while (strstr(result.cause, "it runs the job") && aq_clock_ns() < deadline);
    assert_string_equal(result.cause, "");
    end_daemon(pid);
}

static void test_daemon_that_is_told_to_end_stops_its_job_first(void **state)
{
    (void)state;
    char address[64];
    const pid_t pid = start_daemon("127.0.0.1:0", NULL, address, sizeof address);
    const struct trial trial = {.manifest = "steps 1000000\nms 5\n", .stages = 2, .hosts = {address, address}};
    const pid_t launcher = launch_process(&trial);
    await_steps(2);
    kill(pid, SIGTERM);
    assert_int_equal(await_exit(launcher), AQ_LAUNCH_STOPPED);
    assert_int_equal(await_exit(pid), 0);
    assert_nobody_left(0);
}

/* A greeting has 5 s: on a busy machine it may take a second one. */
static enum aq_status greet(const char *address, const struct aq_token *token, struct aq_control **control)
{
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    enum aq_status status;
    do
        status = aq_control_meet(address, token, NULL, deadline, control);
    while ((status == AQ_CLOSED || status == AQ_IO) && aq_clock_ns() < deadline);
    return status;
}

static void test_daemon_keeps_strangers_out(void **state)
{
    (void)state;
    char address[64], path[128];
    struct aq_token token, other = {.bytes = 20};
    struct aq_control *control;
    write_token("token2", "another secret of some length\n", 0600, path, sizeof path);
    assert_int_equal(aq_token_load(path, &token), AQ_OK);
    const pid_t pid = start_daemon("127.0.0.1:0", path, address, sizeof address);
    aq_log_sink(no_line, NULL);
    memset(other.secret, 'x', 20);
    assert_int_equal(greet(address, &other, &control), AQ_REFUSED);
    other.bytes = 0;
    assert_int_equal(greet(address, &other, &control), AQ_REFUSED);
    /* A flood of silent connections, garbage, and an open before the proof: the daemon serves who knows the token. */
    int silent[40];
    for (int i = 0; i < 40; i++) {
        assert_int_equal(aq_control_connect(address, aq_clock_after(PATIENCE_S * second_ns), &silent[i]), AQ_OK);
        static const char *const lines[] = {"", "GET / HTTP/1.0\r\n\r\n", "{\"op\":\"open\",\"job\":\"x\"}\n",
                                            "\x16\x03\x01"};
        const char *line = lines[i % 4];
        assert_int_equal(send(silent[i], line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
    }
    assert_int_equal(greet(address, &token, &control), AQ_OK);
    json_t *answer;
    assert_int_equal(aq_control_send(control, json_pack("{s:s}", "op", "status")), AQ_OK);
    assert_int_equal(aq_control_receive(control, aq_clock_after(PATIENCE_S * second_ns), &answer), AQ_OK);
    assert_true(aq_control_is(answer, "event", "status"));
    json_decref(answer);
    aq_control_close(control);
    /* Whoever says nothing is let go of after 5 s. */
    char byte[4096];
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    while (recv(silent[39], byte, sizeof byte, MSG_DONTWAIT) != 0) {
        if (errno == ECONNRESET) break;
        assert_true(aq_clock_ns() < deadline);
        pause_ms(20);
    }
    for (int i = 0; i < 40; i++)
        close(silent[i]);
    aq_log_sink(NULL, NULL);
    end_daemon(pid);
}

static void no_daemon(const char *listen, const char *token_file)
{
    char address[64];
    const pid_t pid = start_daemon(listen, token_file, address, sizeof address);
    if (pid > 0) end_daemon(pid);
    assert_int_equal(pid, -2); /* wrong usage */
}

static void test_daemon_refuses_what_is_not_safe(void **state)
{
    (void)state;
    char path[128];
    static const char *const far[] = {"0.0.0.0:0", "[::]:0", "*:0"}, *const none[] = {"127.0.0.1:99999", "127.1:0",
                                                                                      ":0"};
    write_token("far", "a secret of some length\n", 0600, path, sizeof path);
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        no_daemon(far[i], NULL);
        no_daemon(far[i], path); /* hides and guards nothing */
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        no_daemon(none[i], path);
    write_token("loose", "a secret of some length\n", 0644, path, sizeof path);
    no_daemon("127.0.0.1:0", path);
    write_token("short", "secret\n", 0600, path, sizeof path);
    no_daemon("127.0.0.1:0", path);
    struct aq_token token;
    aq_log_sink(no_line, NULL);
    assert_int_equal(aq_token_load(path, &token), AQ_INVAL);
    assert_int_equal(aq_token_load(root, &token), AQ_INVAL);
    aq_log_sink(NULL, NULL);
}

/* ---- the run folder ---- */

static void test_run_folder_is_locked_by_process(void **state)
{
    (void)state;
    int fd;
    assert_int_equal(aq_run_holder(run), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        if (aq_run_lock(run, &fd) != AQ_OK) _exit(1);
        for (;;)
            pause();
    }
    const uint64_t deadline = aq_clock_after(PATIENCE_S * second_ns);
    while (aq_run_holder(run) != pid) {
        assert_true(aq_clock_ns() < deadline);
        pause_ms(2);
    }
    aq_log_sink(no_line, NULL);
    assert_int_equal(aq_run_lock(run, &fd), AQ_REFUSED);
    aq_log_sink(NULL, NULL);
    kill(pid, SIGKILL);
    await_exit(pid);
    assert_int_equal(aq_run_lock(run, &fd), AQ_OK);
    close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return remove_tree(root);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs("usage: test_supervision AQPIPED PUPPET\n", stderr);
        return 2;
    }
    daemon_program = argv[1];
    setenv("AQPIPE_WORKER", argv[2], 1);
    snprintf(root, sizeof root, "/tmp/aqpipe-supervision-XXXXXX");
    if (!mkdtemp(root) || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return 1;
    signal(SIGPIPE, SIG_IGN);
#define TEST(name) cmocka_unit_test_setup(name, each_setup)
    const struct CMUnitTest tests[] = {
        TEST(test_who_is_stuck_is_noticed),
        TEST(test_job_runs_to_its_end),
        TEST(test_rank_whose_lines_come_late_is_waited_for),
        TEST(test_report_is_computed_from_the_metrics),
        TEST(test_worker_that_fails_names_the_cause),
        TEST(test_worker_that_exits_names_the_code),
        TEST(test_worker_that_ends_early_without_error_is_a_failure),
        TEST(test_worker_that_crashes_names_signal_and_last_line),
        TEST(test_echo_gives_way_to_the_cause),
        TEST(test_echo_alone_is_the_cause_in_the_end),
        TEST(test_worker_that_garbles_is_killed),
        TEST(test_worker_that_closes_its_channel_cannot_hang_the_job),
        TEST(test_worker_that_reports_twice_is_a_failure),
        TEST(test_worker_that_speaks_for_its_daemon_is_killed),
        TEST(test_worker_that_floods_ends_the_run_and_fills_no_disk),
        TEST(test_worker_that_never_gets_ready_is_a_failure),
        TEST(test_missing_daemon_program_is_a_failure),
        TEST(test_chatter_is_kept_bounded),
        TEST(test_stop_checkpoints_and_resume_goes_on),
        TEST(test_second_signal_aborts_at_once),
        TEST(test_signal_before_the_first_step_aborts),
        TEST(test_kill_leaves_nobody),
        TEST(test_daemon_runs_stages_of_a_remote_launcher),
        TEST(test_daemon_refuses_a_second_job_and_names_the_first),
        TEST(test_daemon_that_is_told_to_end_stops_its_job_first),
        TEST(test_daemon_keeps_strangers_out),
        TEST(test_daemon_refuses_what_is_not_safe),
        TEST(test_run_folder_is_locked_by_process),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
