/*
 * test_puppets.c -- a job of many workers: launcher and daemon start, join and end COUNT puppets, on this machine.
 *
 * The puppets (puppet_worker.c) speak what workers speak and compute nothing: pipelines of 64 stages (all of them,
 * where there are fewer) and their replicas, each with its links to both neighbours and to its replicas. What it costs
 * is printed: seconds until all had joined, descriptors and memory of launcher and daemon. Nothing here measures speed
 * but where the fourth argument asks for it: all must then have joined within so many seconds.
 *
 * Descriptors are what runs out first, at 338 workers of the 1024 that most systems begin with: this test begins with
 * two a worker, and at most 1024.
 *
 * Usage: test_puppets AQPIPED PUPPET [COUNT [SECONDS]]      (64)
 */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "job.h"
#include "launcher.h"
#include "owned_folder.h"
#include "remove_tree.h"
#include "run_folder.h"

enum { STAGES_MOST = 64, STEPS = 3, SOFT_FILES = 1024, PATIENCE_S = 300 };
static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static const char *daemon_program;
static char root[64];
static uint32_t count = 64;
static double seconds_max;

/* Numbers of a line of metrics.jsonl: the value of `key` in the line of that event; -1: there is none. */
static double told(const char *event, const char *key)
{
    char path[128], wanted[64], *text;
    double value = -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", root);
    assert_int_equal(aq_file_load(NULL, path, 1 << 24, &text, NULL), AQ_OK);
    snprintf(wanted, sizeof wanted, "\"event\":\"%s\"", event);
    const char *at = strstr(text, wanted);
    snprintf(wanted, sizeof wanted, "\"%s\":", key);
    at = at ? strstr(at, wanted) : NULL;
    if (at) value = strtod(at + strlen(wanted), NULL);
    aq_free(text);
    return value;
}

static void run(uint32_t stages, uint32_t replicas, struct aq_launch_result *result)
{
    static const char *hosts[AQ_JOB_RANKS_MAX]; /* NULL: all on this machine */
    static const struct aq_token none;
    char metrics_path[128], checkpoint[128], manifest[128];
    struct aq_owner owner = {.job = "puppets", .plan_hash = 0x1234};
    struct aq_progress progress = {.off = true, .steps = STEPS, .stages = stages};
    struct aq_metrics *metrics;
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", root);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", root);
    snprintf(manifest, sizeof manifest, "steps %u\nmark 1\nms 20\npipeline %u\npoll 20\n", STEPS, stages);
    const struct aq_metrics_config config = {.path = metrics_path, .stages = count};
    assert_int_equal(aq_owned_claim_run(root, AQ_OWNED_MAKE_ALL, &owner, NULL), AQ_OK);
    assert_int_equal(aq_owned_claim(checkpoint, AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &owner), AQ_OK);
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    const struct aq_launch launch = {.name = "puppets",
                                     .stages = stages,
                                     .replicas = replicas,
                                     .hosts = hosts,
                                     .manifest = manifest,
                                     .plan_hash = 0x1234,
                                     .run = root,
                                     .checkpoint = checkpoint,
                                     .id = owner.id,
                                     .daemon = daemon_program,
                                     .keep = 2,
                                     .bounds = {.steps = STEPS, .mark_every = 1, .trace_bytes = 1 << 16},
                                     .begin_ns = aq_clock_ns(),
                                     .ready_ns_max = PATIENCE_S * second_ns,
                                     .token = &none,
                                     .watch = {.silence_ns = 60 * second_ns, .stall_ns = 600 * second_ns},
                                     .metrics = metrics,
                                     .progress = &progress,
                                     .signals = -1};
    aq_launch_run(&launch, result);
    aq_metrics_close(metrics);
}

static void test_many_workers_join_train_and_end(void **state)
{
    struct aq_launch_result result;
    struct rusage own, children;
    const uint32_t stages = count < STAGES_MOST ? count : STAGES_MOST, replicas = count / stages;
    const uint64_t begin_ns = aq_clock_ns();
    (void)state;
    assert_int_equal(stages * replicas, count);
    run(stages, replicas, &result);
    const double all_s = (double)(aq_clock_ns() - begin_ns) * 1e-9, joined_s = told("go", "start_seconds");
    assert_string_equal(result.cause, "");
    assert_int_equal(result.outcome, AQ_LAUNCH_DONE);
    assert_int_equal(result.mark, STEPS);
    assert_int_equal(json_array_size(result.stages), count);
    for (uint32_t r = 0; r < count; r++)
        assert_true(json_is_object(json_array_get(result.stages, r)));
    json_decref(result.stages);
    assert_int_equal(getrusage(RUSAGE_SELF, &own), 0);
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &children), 0);
    printf("{\"workers\":%u,\"joined_seconds\":%.2f,\"all_seconds\":%.2f,\"launcher_bytes\":%lld,"
           "\"launcher_cpu_seconds\":%.2f,\"largest_child_bytes\":%lld}\n",
           count, joined_s, all_s, (long long)own.ru_maxrss * 1024,
           (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
               (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec) * 1e-6,
           (long long)children.ru_maxrss * 1024);
    if (seconds_max > 0 && joined_s > seconds_max) fail_msg("joined after %.2f s, wanted %.0f", joined_s, seconds_max);
}

int main(int argc, char **argv)
{
    struct rlimit files;
    if (argc < 3 || argc > 5) {
        fputs("usage: test_puppets AQPIPED PUPPET [COUNT [SECONDS]]\n", stderr);
        return 2;
    }
    daemon_program = argv[1];
    setenv("AQPIPE_WORKER", argv[2], 1);
    if (argc > 3) count = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 4) seconds_max = strtod(argv[4], NULL);
    if (count < 1 || count > AQ_JOB_RANKS_MAX) return 2;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 1;
    if (files.rlim_max < 4 * count + 64) {
        printf("skipped: at most %llu descriptors here, and %u workers take four each\n",
               (unsigned long long)files.rlim_max, count);
        return 77;
    }
    files.rlim_cur = 2 * count + 64 < SOFT_FILES ? 2 * count + 64 : SOFT_FILES; /* the daemon wants three a worker */
    snprintf(root, sizeof root, "/tmp/aqpipe-puppets-XXXXXX");
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || !mkdtemp(root)) return 1;
    signal(SIGPIPE, SIG_IGN);
    aq_log_init(-1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_workers_join_train_and_end)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return remove_tree(root) != 0 || failed;
}
