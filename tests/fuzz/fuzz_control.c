/*
 * fuzz_control.c -- any bytes on a control channel: to a launcher from its daemon, to one that measures a network, to a
 * daemon from a stranger. Never a crash, never a leak, and a stranger is never let in.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon_private.h"
#include "fuzz.h"
#include "launcher_private.h"

enum { STAGES = 3, BYTES_MAX = 60000 };

/* A channel that holds these bytes and then ends. */
static struct aq_control *channel(const uint8_t *bytes, size_t count, int *peer)
{
    int fds[2];
    struct aq_control *control;
    AQ_ASSERT(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    AQ_ASSERT(send(fds[1], bytes, count, 0) == (ssize_t)count);
    AQ_ASSERT(shutdown(fds[1], SHUT_WR) == 0);
    AQ_ASSERT(aq_control_open(fds[0], &control) == AQ_OK);
    *peer = fds[1];
    return control;
}

static void to_launcher(const uint8_t *bytes, size_t count)
{
    static struct launcher launcher;
    static struct aq_launch_result result;
    struct aq_progress progress = {.off = true};
    const struct aq_metrics_config config = {.stages = STAGES};
    struct aq_metrics *metrics;
    AQ_ASSERT(aq_metrics_open(&config, &metrics) == AQ_OK);
    /* A folder that nobody can make: a complete mark ends there, with a status. */
    const struct aq_launch launch = {
        .stages = STAGES,
        .replicas = 1,
        .checkpoint = "/proc/none",
        .keep = 1,
        .bounds = {.steps = 9, .mark_every = 2, .evaluate_every = 3, .evaluates = true, .trace_bytes = 1000},
        .metrics = metrics,
        .progress = &progress,
        .signals = -1};
    int peer;
    memset(&result, 0, sizeof result);
    memset(&launcher, 0, sizeof launcher);
    launcher.launch = &launch;
    launcher.result = &result;
    launcher.ranks = STAGES;
    launcher.host_count = 1;
    launcher.hosts[0].address = "fuzz";
    launcher.hosts[0].control = channel(bytes, count, &peer);
    for (int r = 0; r < STAGES; r++)
        launcher.stages[r].state = STAGE_STARTED;
    json_t *message;
    while (launcher.hosts[0].control && aq_control_receive(launcher.hosts[0].control, 0, &message) == AQ_OK) {
        launcher_event(&launcher, &launcher.hosts[0], message);
        json_decref(message);
    }
    fuzz_told(launcher.cause == CAUSE_NONE && count > 0);
    AQ_ASSERT(launcher.ended <= STAGES && launcher.ready <= STAGES);
    AQ_ASSERT(memchr(result.cause, 0, sizeof result.cause) != NULL);
    for (int r = 0; r < STAGES; r++) {
        AQ_ASSERT(launcher.stages[r].step <= launch.bounds.steps && launcher.stages[r].trace_bytes <= 1000);
        json_decref(launcher.stages[r].report);
        json_decref(launcher.stages[r].evals);
    }
    aq_control_close(launcher.hosts[0].control);
    aq_metrics_close(metrics);
    close(peer);
}

/* A token is due: it comes from the last stage and is one of the model's, or there is a cause. */
static void to_asking(const uint8_t *bytes, size_t count, json_t *ask)
{
    static struct launcher launcher;
    static struct aq_launch_result result;
    struct aq_progress progress = {.off = true};
    const struct aq_launch launch = {.stages = STAGES,
                                     .replicas = 1,
                                     .probe = true,
                                     .ask = ask,
                                     .vocabulary = 9,
                                     .progress = &progress,
                                     .signals = -1};
    json_t *message;
    int peer;
    memset(&result, 0, sizeof result);
    memset(&launcher, 0, sizeof launcher);
    launcher.launch = &launch;
    launcher.result = &result;
    launcher.ranks = STAGES;
    launcher.host_count = 1;
    launcher.hosts[0].address = "fuzz";
    launcher.hosts[0].control = channel(bytes, count, &peer);
    launcher.token_due = true;
    for (int r = 0; r < STAGES; r++)
        launcher.stages[r].state = STAGE_STARTED;
    while (launcher.hosts[0].control && aq_control_receive(launcher.hosts[0].control, 0, &message) == AQ_OK) {
        launcher_event(&launcher, &launcher.hosts[0], message);
        json_decref(message);
    }
    AQ_ASSERT(launcher.token < launch.vocabulary && (launcher.token_due || launcher.gone));
    for (int r = 0; r < STAGES; r++)
        AQ_ASSERT(!launcher.stages[r].done && !launcher.stages[r].evals);
    aq_control_close(launcher.hosts[0].control);
    close(peer);
}

/* Both ends of a pair have been asked. */
static void to_probe(const uint8_t *bytes, size_t count)
{
    static struct probe probe;
    static struct aq_launch_result result;
    const struct aq_launch launch = {.stages = STAGES, .replicas = 1, .probe = true};
    struct aq_probe_pair pair = {.from = 0, .to = 1, .listener = 1};
    json_t *message;
    int peer;
    memset(&result, 0, sizeof result);
    memset(&probe, 0, sizeof probe);
    probe.launcher.launch = &launch;
    probe.launcher.result = &result;
    probe.launcher.ranks = STAGES;
    probe.pair = &pair;
    probe.answers[0].asked = probe.answers[1].asked = true;
    struct aq_control *control = channel(bytes, count, &peer);
    while (aq_control_receive(control, 0, &message) == AQ_OK) {
        const bool fine = probe_event(&probe, &probe.launcher.hosts[0], message);
        json_decref(message);
        AQ_ASSERT(fine == (probe.launcher.cause == CAUSE_NONE));
        if (!fine) break;
    }
    for (int i = 0; i < 2; i++) {
        if (!probe.answers[i].measured) continue;
        const struct aq_probe_figures *f = &pair.figures[i];
        AQ_ASSERT(f->rate_mbps >= 0 && f->rate_mbps <= 1e6 && f->again_bytes <= f->wire_bytes);
        AQ_ASSERT(memchr(f->congestion, 0, sizeof f->congestion) != NULL && f->segment > 0);
    }
    AQ_ASSERT(memchr(result.cause, 0, sizeof result.cause) != NULL);
    aq_control_close(control);
    close(peer);
}

static void to_daemon(const uint8_t *bytes, size_t count)
{
    static struct daemon daemon;
    const struct aq_daemon_config config = {.token = {.bytes = 20, .secret = "nobody knows this..."}};
    struct connection *connection = &daemon.connections[3];
    int peer;
    daemon.config = &config;
    *connection = (struct connection){.state = CONNECTION_GREETING, .nonce = "00000000000000000000000000000000"};
    connection->control = channel(bytes, count, &peer);
    aq_control_limit(connection->control, AQ_CONTROL_STRANGER_BYTES);
    connection_serve(&daemon, connection);
    AQ_ASSERT(connection->state == CONNECTION_FREE && !daemon.owner);
    close(peer);
}

/* The launcher talks to its user; a sanitizer's report, which goes to the descriptor, is still seen. */
static void be_quiet(void)
{
    static FILE *null;
    fuzz_quiet();
    if (null) return;
    null = fopen("/dev/null", "w");
    AQ_ASSERT(null);
    stderr = null;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count > BYTES_MAX) return 0;
    be_quiet();
    to_launcher(bytes, count);
    json_t *ask = json_object();
    to_asking(bytes, count, ask);
    json_decref(ask);
    to_probe(bytes, count);
    to_daemon(bytes, count);
    AQ_ASSERT(aq_memory_used() == 0);
    return 0;
}
