/*
 * launcher_kit.h -- a launcher's events in this process: two replicas of three stages, twelve steps, a checkpoint every
 * four, an evaluation every three. Lines come as from a daemon.
 *
 * For one test program each: everything is static.
 */
#ifndef TESTS_KIT_LAUNCHER_KIT_H
#define TESTS_KIT_LAUNCHER_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "launcher_private.h"
#include "message_table.h"
#include "owned_folder.h"
#include "remove_tree.h"
#include "run_folder.h"
#include "worker.h"

enum { P = 3, W = 2, RANKS = P * W };
#define NEVER_NS (3600ull * 1000000000) /* nobody is so late here */

static char folder[64], metrics_path[128], trace_path[128], checkpoint[128];
static struct launcher launcher;
static struct aq_launch launch;
static struct aq_launch_result result;
static struct aq_metrics *metrics;
static struct aq_progress progress;
static struct aq_owner owner;
static int peer;

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static int setup(void **state)
{
    (void)state;
    int fds[2];
    snprintf(folder, sizeof folder, "/tmp/aqpipe-bounds-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(metrics_path, sizeof metrics_path, "%s/metrics.jsonl", folder);
    snprintf(trace_path, sizeof trace_path, "%s/trace.json", folder);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", folder);
    aq_log_sink(quiet, NULL);
    owner = (struct aq_owner){.job = "test", .plan_hash = 0x1234};
    if (aq_owned_claim_run(folder, AQ_OWNED_MAKE_ALL, &owner, NULL) != AQ_OK) return -1;
    if (aq_owned_claim(checkpoint, AQ_OWNED_CHECKPOINT, AQ_OWNED_MAKE_ALL, &owner) != AQ_OK) return -1;
    progress = (struct aq_progress){.off = true};
    const struct aq_metrics_config config = {.path = metrics_path, .stages = RANKS, .mark_every = 4};
    if (aq_metrics_open(&config, &metrics) != AQ_OK) return -1;
    launch = (struct aq_launch){
        .name = "test",
        .stages = P,
        .replicas = W,
        .plan_hash = 0x1234,
        .run = folder,
        .id = owner.id,
        .checkpoint = checkpoint,
        .trace = trace_path,
        .keep = 2,
        .bounds = {.steps = 12, .mark_every = 4, .evaluate_every = 3, .evaluates = true, .trace_bytes = 100},
        .metrics = metrics,
        .progress = &progress,
        .signals = -1};
    memset(&result, 0, sizeof result);
    memset(&launcher, 0, sizeof launcher);
    launcher.launch = &launch;
    launcher.result = &result;
    launcher.ranks = RANKS;
    launcher.host_count = 1;
    launcher.hosts[0].address = "test";
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return -1;
    peer = fds[1];
    if (aq_control_open(fds[0], &launcher.hosts[0].control) != AQ_OK) return -1;
    for (int r = 0; r < RANKS; r++)
        launcher.stages[r].state = STAGE_STARTED;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        json_decref(launcher.stages[r].report);
        json_decref(launcher.stages[r].evals);
    }
    if (launcher.trace) fclose(launcher.trace);
    json_decref(launcher.hashes);
    aq_control_close(launcher.hosts[0].control);
    aq_metrics_close(metrics);
    close(peer);
    const bool removed = remove_tree(folder) == 0;
    aq_log_sink(NULL, NULL);
    return removed && aq_memory_used() == 0 ? 0 : -1;
}

/* A line of a worker, as its daemon passes it on. */
static void say(uint32_t rank, const char *line)
{
    char drained[4096];
    json_t *message = json_loads(line, 0, NULL);
    assert_non_null(message);
    json_object_set_new(message, "rank", json_integer(rank));
    launcher_event(&launcher, &launcher.hosts[0], message);
    json_decref(message);
    while (recv(peer, drained, sizeof drained, MSG_DONTWAIT) > 0)
        continue;
}

static void say_step(uint32_t rank, uint64_t step, const char *event)
{
    char line[200];
    snprintf(line, sizeof line, "{\"event\":\"%s\",\"step\":%llu,\"loss\":1.5,\"targets\":5}", event,
             (unsigned long long)step);
    say(rank, line);
}

static void begin(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
    assert_true(launcher.gone);
}

static off_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : 0;
}

/* That was it: a cause that names the rank, nothing written, and nothing that it says later counts. */
__attribute__((unused)) static void assert_refused(const char *who, const char *why, uint32_t rank, off_t metrics_bytes)
{
    if (launcher.trace) fflush(launcher.trace);
    if (launcher.cause != CAUSE_OWN || !strstr(result.cause, who) || !strstr(result.cause, why))
        fail_msg("the cause is '%s', and should say '%s' and '%s'", result.cause, who, why);
    assert_int_equal(result.status, AQ_PROTO);
    assert_false(result.transient);
    assert_int_equal(size_of(metrics_path), metrics_bytes);
    const uint64_t step = launcher.stages[rank].step;
    say_step(rank, step + 1, "step");
    say(rank, "{\"event\":\"trace\",\"text\":\"x\"}");
    assert_int_equal(launcher.stages[rank].step, step);
    assert_int_equal(size_of(metrics_path), metrics_bytes);
}

#endif
