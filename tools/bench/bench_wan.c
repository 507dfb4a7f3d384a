/*
 * bench_wan.c -- whole jobs over a wide-area network (runtime/lab): a pipeline's speed with distance, losses and rates.
 *
 * Four ends, at each a daemon with its keys, as on four machines; jobs are launched from end 0. The job is GPT-2 of 2
 * blocks of 128 channels, T 256, 8 micro-batches of 2, forward 4 bits, backward 8, mutual TLS, a thread per stage (the
 * four share this machine's cores, with the lab), all other keys at their defaults. It sets the round trip of its links
 * (link.rtt_ms), if this version has that key, and no rate. Steps after the first epoch count, by their median.
 *
 * `wan NETWORK measured/bound` is the bound's step time over the measured one. The bound: the busiest resource without
 * distance, plus 2 (P - 1) one-way trips, in which a step's pipeline fills and drains. The busiest resource is plan.h's
 * bound, from costs measured in this run on this machine without a network (before and after each job; the least so
 * far, because noise only adds): the stages' arithmetic over all cores, or the bytes of a link over 1448/1500 of its
 * rate, which is TCP's share. It has no TLS, no packing, no lab in it. The bound assumes that no stage computes while
 * the first micro-batch is on its way: stages that share cores can compute meanwhile, so that the ratio may exceed 1 a
 * little if arithmetic binds.
 *
 * `wan NETWORK predicted/measured`: the prediction of `aqpipe plan --measure` if the manifest sets the rate, too.
 *
 * `wan 100mbit rtt80 staleness1/rtt0`: sequences per second with train.staleness 1 at 80 ms, over the rate without it
 * at 0.2 ms. Two steps overlap there and end one soon after the other, so that both rates are of means.
 *
 * `wan NETWORK timed ...` are the same jobs in network mode: a stage computes nothing, and waits in each pass as long
 * as the plan counts for it at TIMED_GFLOPS (timed_worker.c). So stages need no core each. All that a step takes longer
 * than its bound is the cost of the network: frames, codecs, TLS, packets and the lab. That bound is the longest way
 * through the pipeline: all of a stage's passes, or all of a link's frames, behind what the first micro-batch needs to
 * get there, and what the last one needs to come back. Bodies are not packed (link.entropy), because noise does not
 * shrink as activations do.
 *
 * `wan 100mbit rtt80 relay/direct`: two stages that both dial and meet at a relay half way (40 ms from each), over the
 * same two with a link of 80 ms between them, by sequences per second.
 *
 * `wan lost cache 1000 messages rtt80 time/bytes`: two stages around one block, 1000 samples, each with a message. An
 * epoch with both caches, and one after the loss of the second stage's: the extra time, over the time of the messages'
 * bytes.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_job.h"
#include "commands.h"
#include "keys.h"
#include "net/tls.h"
#include "run_folder.h"
#include "wan_lab.h"

enum {
    ENDS = 4,
    RELAY = ENDS, /* behind the daemons; it is at the last end */
    SETS = 32,
    SET_BYTES = 512,
    BATCH = 16,
    MICRO_BATCHES = 8,
    DAEMON_S = 20,
    LOST_MESSAGES = 1000,
    MESSAGE_BYTES = 256 * 128 * 2
};
static const double TCP_SHARE = 1448.0 / 1500;
static const double TIMED_GFLOPS = 100; /* of a stage's core: what `aqpipe plan` assumes */

struct network {
    double rate_mbps, rtt_ms, loss; /* loss: percent */
    const char *congestion;         /* NULL: as the machine has it */
};

struct job {
    const char *name; /* of its network and shape, in the names of cases */
    struct network network;
    const char *layers[ENDS]; /* of each stage */
    const char *more;         /* another change of its keys, or NULL */
    bool bound, predict;
};

#define FOUR                                                                                                           \
    {                                                                                                                  \
        "0", "1", "2", "3"                                                                                             \
    } /* embedding, two blocks, head */
#define TWO                                                                                                            \
    {                                                                                                                  \
        "0-1", "2-3"                                                                                                   \
    }
static const char QUIC[] = "link.protocol=quic";
static const struct job near = {"100mbit rtt0", {100, 0.2, 0, NULL}, FOUR, NULL, true, true};
static const struct job jobs[] = {
    {"100mbit rtt80 loss0", {100, 80, 0, NULL}, FOUR, NULL, true, true},
    {"100mbit rtt80 loss0.1", {100, 80, 0.1, NULL}, FOUR, NULL, true, true},
    {"100mbit rtt80 loss0.1 reno", {100, 80, 0.1, "reno"}, FOUR, NULL, true, true},
    {"10mbit rtt200 loss0.5", {10, 200, 0.5, NULL}, FOUR, NULL, true, true},
    {"pp2 100mbit rtt80", {100, 80, 0, NULL}, TWO, NULL, false, true},
    {"pp2 20mbit rtt40", {20, 40, 0, NULL}, TWO, NULL, false, true},
    {"pp3 50mbit rtt20", {50, 20, 0, NULL}, {"0-1", "2", "3"}, NULL, false, true},
    {"gpipe 100mbit rtt80", {100, 80, 0, NULL}, FOUR, "pipeline.schedule=gpipe", false, true},
    {"100mbit rtt300", {100, 300, 0, NULL}, FOUR, NULL, false, true},
    {"100mbit rtt80 loss0 quic", {100, 80, 0, NULL}, FOUR, QUIC, true, true},
    {"100mbit rtt80 loss0.1 quic", {100, 80, 0.1, NULL}, FOUR, QUIC, true, true},
    {"10mbit rtt200 loss0.5 quic", {10, 200, 0.5, NULL}, FOUR, QUIC, true, true},
    {"100mbit rtt300 quic", {100, 300, 0, NULL}, FOUR, QUIC, false, true},
};
enum { JOBS = sizeof jobs / sizeof jobs[0], JOBS_QUICK = 1 };
static const char RELAY_CASE[] = "wan 100mbit rtt80 relay/direct", OVER_RELAY[] = "link.relay=10.79.0.4:7900";
static const char STALE_CASE[] = "wan 100mbit rtt80 staleness1/rtt0",
                  STALE_TIMED_CASE[] = "wan 100mbit rtt80 timed staleness1/rtt0",
                  LOST_CASE[] = "wan lost cache 1000 messages rtt80 time/bytes";

struct wan {
    const struct aq_bench_options *options;
    char folder[AQ_BENCH_PATH_BYTES], keys[AQ_BENCH_PATH_BYTES];
    pid_t daemons[ENDS + 1];
    double near_s; /* of a step, the mean; 0: not measured */
    uint64_t near_losses;
    double least, most;         /* predicted/measured */
    double compute_s;           /* the least arithmetic of a step of four stages that was measured so far */
    bool timed;                 /* network mode */
    struct aq_plan_costs costs; /* then: what the stages of the present job wait for */
};

/* ---- the network and its daemons ---- */

/* The machine's default is read once, before any job changes it. */
static const char *usual_congestion(void)
{
    static char name[AQ_WAN_NAME_BYTES];
    char *text;
    if (!name[0] && aq_file_load(NULL, "/proc/sys/net/ipv4/tcp_congestion_control", 256, &text, NULL) == AQ_OK) {
        text[strcspn(text, "\n")] = 0;
        snprintf(name, sizeof name, "%s", text);
        aq_free(text);
    }
    return name;
}

static enum aq_status tell_network(const struct network *network)
{
    const struct aq_wan_rules rules = {
        .rate_mbps = network->rate_mbps, .delay_ms = network->rtt_ms / 2, .loss = network->loss / 100, .queue_ms = -1};
    struct aq_wan_change change = {.from = AQ_WAN_ALL,
                                   .to = AQ_WAN_ALL,
                                   .given = AQ_WAN_RATE | AQ_WAN_DELAY | AQ_WAN_LOSS | AQ_WAN_QUEUE | AQ_WAN_CONGESTION,
                                   .ahead = rules,
                                   .back = rules};
    snprintf(change.congestion, sizeof change.congestion, "%s",
             network->congestion ? network->congestion : usual_congestion());
    return aq_wan_tell(&change);
}

static enum aq_status make_keys(const char *keys)
{
    const int64_t now = (int64_t)time(NULL), from = now - 3600, until = now + 86400;
    AQ_TRY(aq_tls_make_authority(keys, "bench", from, until));
    AQ_TRY(aq_tls_make(keys, AQ_TLS_LAUNCHER, 0, from, until));
    for (uint32_t end = 0; end < ENDS; end++) {
        char host[32];
        snprintf(host, sizeof host, "10.79.0.%u", end + 1);
        AQ_TRY(aq_tls_make(keys, AQ_TLS_STAGE, end, from, until));
        AQ_TRY(aq_tls_make_daemon(keys, host, from, until));
    }
    return AQ_OK;
}

static bool tell_number(const char *name, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6f", value);
    return setenv(name, text, 1) == 0;
}

/* In the child: its worker is this program, whose stage waits. */
static bool tell_times(const struct wan *wan, uint32_t stage)
{
    char worker[AQ_RUN_PATH_BYTES];
    const double backward_s = wan->costs.backward_s[stage] + wan->costs.weights_s[stage];
    return aq_program_beside("aqpipe-bench", worker) && setenv("AQPIPE_WORKER", worker, 1) == 0 &&
           tell_number("TIMED_FORWARD_MS", wan->costs.forward_s[stage] * 1e3) &&
           tell_number("TIMED_BACKWARD_MS", backward_s * 1e3) && tell_number("TIMED_SAMPLE_FLOATS", MESSAGE_BYTES / 2);
}

/* In the child. */
static void become_daemon(const struct wan *wan, uint32_t end, const char *port_file, int log)
{
    char program[AQ_RUN_PATH_BYTES], address[48], host[32];
    snprintf(host, sizeof host, "10.79.0.%u", end + 1);
    snprintf(address, sizeof address, "%s:7700", host);
    const char *const daemon[] = {"aqpiped", "--listen", address,       "--keys",  wan->keys,
                                  "--host",  host,       "--port-file", port_file, NULL};
    const char *const relay[] = {"aqpiped", "--relay", strchr(OVER_RELAY, '=') + 1, "--port-file", port_file, NULL};
    const char *const *arguments = end == RELAY ? relay : daemon;
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)signal(SIGPIPE, SIG_DFL);
    if (!aq_program_beside("aqpiped", program) || aq_wan_enter(end == RELAY ? ENDS - 1 : end) != AQ_OK) _exit(125);
    if (wan->timed && !tell_times(wan, end)) _exit(125);
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(125);
    execv(program, (char *const *)(uintptr_t)arguments);
    _exit(126);
}

static enum aq_status start_daemon(struct wan *wan, uint32_t end)
{
    const struct timespec pause = {0, 20000000};
    char name[32], port_file[AQ_BENCH_PATH_BYTES];
    int log;
    snprintf(name, sizeof name, "daemon-%u.log", end);
    AQ_TRY(aq_file_open(wan->folder, name, AQ_FILE_ANEW, &log));
    snprintf(name, sizeof name, "port-%u", end);
    AQ_TRY(aq_run_path(wan->folder, name, port_file));
    wan->daemons[end] = fork();
    if (wan->daemons[end] == 0) become_daemon(wan, end, port_file, log);
    close(log);
    if (wan->daemons[end] < 0) return aq_fail_errno("bench", "cannot start a daemon");
    const uint64_t until_ns = aq_clock_after(DAEMON_S * UINT64_C(1000000000));
    while (access(port_file, F_OK) != 0) {
        if (aq_clock_ns() > until_ns)
            return aq_fail(AQ_TIMEOUT, "bench", "the daemon of end %u does not start: %s/daemon-%u.log", end,
                           wan->folder, end);
        (void)nanosleep(&pause, NULL);
    }
    return AQ_OK;
}

static void stop_daemons(struct wan *wan)
{
    for (uint32_t end = 0; end <= RELAY; end++) {
        if (wan->daemons[end] <= 0) continue;
        (void)kill(wan->daemons[end], SIGTERM);
        while (waitpid(wan->daemons[end], NULL, 0) < 0 && errno == EINTR)
            continue;
        wan->daemons[end] = 0;
    }
}

static enum aq_status start_daemons(struct wan *wan)
{
    char name[32];
    for (uint32_t end = 0; end < ENDS; end++) {
        snprintf(name, sizeof name, "port-%u", end);
        AQ_TRY(aq_file_remove(wan->folder, name));
        AQ_TRY(start_daemon(wan, end));
    }
    return AQ_OK;
}

/* ---- jobs ---- */

struct sets {
    uint32_t count;
    const char *of[SETS + 1];
    char text[SETS][SET_BYTES];
};

static void add_set(struct sets *sets, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_set(struct sets *sets, const char *format, ...)
{
    va_list arguments;
    AQ_ASSERT(sets->count < SETS);
    va_start(arguments, format);
    vsnprintf(sets->text[sets->count], SET_BYTES, format, arguments);
    va_end(arguments);
    sets->of[sets->count] = sets->text[sets->count];
    sets->of[++sets->count] = NULL;
}

static uint32_t stages_of(const struct job *job)
{
    uint32_t count = 0;
    while (count < ENDS && job->layers[count])
        count++;
    return count;
}

/* Its stages meet at the relay, each at the network's distance from it. */
static bool over_relay(const struct job *job)
{
    return job->more == OVER_RELAY;
}

/* at: each stage at its end; else here, in a plan that must have one host and its cores. */
static void add_stages(struct sets *sets, const struct job *job, bool at)
{
    char text[SET_BYTES] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < stages_of(job); i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s{layers: '%s'", i ? ", " : "", job->layers[i]);
        if (at) used += (size_t)snprintf(text + used, sizeof text - used, ", host: 'tcp://10.79.0.%u:7700'", i + 1);
        if (at && over_relay(job)) used += (size_t)snprintf(text + used, sizeof text - used, ", dials: true");
        if (at && !over_relay(job))
            used += (size_t)snprintf(text + used, sizeof text - used, ", address: '10.79.0.%u:7800'", i + 1);
        used += (size_t)snprintf(text + used, sizeof text - used, "}");
    }
    add_set(sets, "pipeline.stages=[%s]", text);
}

static bool has_key(const char *name)
{
    return aq_key_find(aq_keys_job(), name) != NULL;
}

static void make_sets(const struct wan *wan, const struct job *job, bool at, struct sets *sets)
{
    sets->count = 0;
    add_stages(sets, job, at);
    add_set(sets, "model.blocks=2");
    add_set(sets, "model.channels=128");
    add_set(sets, "model.context=256");
    add_set(sets, "train.T=256");
    add_set(sets, "train.batch=%d", BATCH);
    add_set(sets, "train.micro_batch=2");
    add_set(sets, "data.train_samples_max=%d", wan->options->quick ? 32 : 64);
    add_set(sets, "train.epochs=%d", wan->options->quick ? 3 : 5);
    add_set(sets, "link.rate_mbps=0");
    if (wan->timed) add_set(sets, "link.entropy=off");
    if (wan->timed) add_set(sets, "train.idle_stage=warn"); /* it trains nothing */
    if (at) add_set(sets, "security.keys=%s", wan->keys);
    if (job->more) add_set(sets, "%s", job->more); /* the last word counts */
}

static void add_distance(struct sets *sets, const struct network *network)
{
    if (network->rtt_ms >= 1 && has_key("link.rtt_ms")) add_set(sets, "link.rtt_ms=%g", network->rtt_ms);
    if (network->loss > 0 && has_key("link.loss")) add_set(sets, "link.loss=%g", network->loss / 100);
}

/* The plan's prediction of the job: without distance (its bound), or with all keys of the network. */
static enum aq_status plan_job(const struct wan *wan, const struct job *job, bool distance,
                               struct aq_plan_prediction *out)
{
    static struct sets sets;
    make_sets(wan, job, false, &sets);
    add_set(&sets, "link.rate_mbps=%g", job->network.rate_mbps * TCP_SHARE);
    if (distance) add_distance(&sets, &job->network);
    if (distance && job->network.congestion) add_set(&sets, "link.congestion=%s", job->network.congestion);
    return aq_bench_job_plan(wan->folder, sets.of, out);
}

static enum aq_status run_job(const struct wan *wan, const struct job *job, struct aq_bench_job_figures *out)
{
    static struct sets sets;
    struct network way = job->network;
    if (over_relay(job)) way.rtt_ms *= 2; /* there and on */
    make_sets(wan, job, true, &sets);
    add_distance(&sets, &way);
    AQ_TRY(tell_network(&job->network));
    return aq_bench_job_figures(wan->folder, "run", sets.of, out);
}

static const char *case_of(const struct job *job, const char *what)
{
    static char name[128];
    snprintf(name, sizeof name, "wan %s %s", job->name, what);
    return name;
}

static bool wanted(const struct wan *wan, const struct job *job)
{
    static const char *const cases[] = {"measured/bound",     "sequences/s",      "step bound",
                                        "predicted/measured", "same losses",      "timed measured/bound",
                                        "timed sequences/s",  "timed step bound", "timed predicted/measured"};
    const size_t timed = 5, count = sizeof cases / sizeof cases[0];
    bool any = false;
    for (size_t i = wan->timed ? timed : 0; i < (wan->timed ? count : timed); i++)
        any = any || aq_bench_wanted(wan->options, case_of(job, cases[i]));
    return any;
}

/* ---- network mode ---- */

/*
 * A step of stages that compute side by side. Stage s has its passes behind the first micro-batch's way down to it, and
 * before a gradient's way up; a link has its frames behind that way and before the last micro-batch's way to the end
 * and back.
 */
static double network_bound(const struct job *job, const struct aq_plan_costs *costs,
                            const struct aq_plan_prediction *plan)
{
    const double trip_s = job->network.rtt_ms * 1e-3;
    double before_s = 0, frame_s = 0, most_s = 0;
    for (uint32_t s = 0; s < stages_of(job); s++) {
        const double passes_s = costs->forward_s[s] + costs->backward_s[s] + costs->weights_s[s];
        most_s = fmax(most_s, before_s + MICRO_BATCHES * passes_s);
        before_s += passes_s;
        if (s + 1 == stages_of(job)) break;
        before_s += (plan->forward_s[s] + plan->backward_s[s]) / MICRO_BATCHES + trip_s;
        frame_s = fmax(frame_s, fmax(plan->forward_s[s], plan->backward_s[s]) / MICRO_BATCHES);
    }
    return fmax(most_s, before_s + (MICRO_BATCHES - 1) * frame_s);
}

/* plans[0]: without distance and losses, for the bound; plans[1]: with all that the manifest can have. */
static enum aq_status plan_timed(struct wan *wan, const struct job *job, struct aq_plan_prediction plans[2])
{
    static struct sets sets;
    for (int i = 0; i < 2; i++) {
        make_sets(wan, job, false, &sets);
        add_set(&sets, "link.rate_mbps=%g", job->network.rate_mbps * TCP_SHARE);
        if (i == 1) add_distance(&sets, &job->network);
        if (i == 1 && job->network.congestion) add_set(&sets, "link.congestion=%s", job->network.congestion);
        AQ_TRY(aq_bench_job_assumed(wan->folder, sets.of, TIMED_GFLOPS, ENDS, &wan->costs, &plans[i]));
    }
    return AQ_OK;
}

/* A run whose stages wait for what the plan counts: new daemons, which give their workers those times. */
static enum aq_status run_timed(struct wan *wan, const struct job *job, struct aq_plan_prediction plans[2],
                                struct aq_bench_job_figures *out)
{
    stop_daemons(wan);
    AQ_TRY(plan_timed(wan, job, plans));
    AQ_TRY(start_daemons(wan));
    return run_job(wan, job, out);
}

static enum aq_status bench_timed(struct wan *wan, const struct job *job)
{
    struct aq_plan_prediction plans[2];
    struct aq_bench_job_figures figures;
    AQ_TRY(run_timed(wan, job, plans, &figures));
    const double bound_s = network_bound(job, &wan->costs, &plans[0]), ratio = plans[1].step_s / figures.median_s;
    aq_bench_emit(wan->options, case_of(job, "timed sequences/s"), BATCH / figures.median_s, "1/s");
    aq_bench_emit(wan->options, case_of(job, "timed step bound"), bound_s * 1e3, "ms");
    aq_bench_emit(wan->options, case_of(job, "timed measured/bound"), bound_s / figures.median_s, "ratio");
    aq_bench_emit(wan->options, case_of(job, "timed predicted/measured"), ratio, "ratio");
    wan->least = fmin(wan->least, ratio);
    wan->most = fmax(wan->most, ratio);
    if (job == &near) wan->near_s = figures.mean_s;
    return AQ_OK;
}

/* ---- all arithmetic ---- */

/* Arithmetic is the same for all jobs with a bound, and noise only adds to it; bytes are counted. */
static void emit_bound(struct wan *wan, const struct job *job, const struct aq_plan_prediction plans[2], double step_s)
{
    double link_s = 0;
    for (int i = 0; i < 2; i++) {
        double compute_s = plans[i].cores_s;
        for (uint32_t s = 0; s < stages_of(job); s++) {
            compute_s = fmax(compute_s, plans[i].compute_s[s]);
            link_s = fmax(link_s, fmax(plans[i].forward_s[s], plans[i].backward_s[s]));
        }
        wan->compute_s = fmin(wan->compute_s, compute_s);
    }
    const double bound_s = fmax(wan->compute_s, link_s) + (stages_of(job) - 1) * job->network.rtt_ms * 1e-3;
    aq_bench_emit(wan->options, case_of(job, "step bound"), bound_s * 1e3, "ms");
    aq_bench_emit(wan->options, case_of(job, "measured/bound"), bound_s / step_s, "ratio");
}

static enum aq_status bench_one(struct wan *wan, const struct job *job)
{
    struct aq_plan_prediction plans[2], expected = {0};
    struct aq_bench_job_figures figures;
    AQ_TRY(plan_job(wan, job, false, &plans[0]));
    AQ_TRY(run_job(wan, job, &figures));
    AQ_TRY(plan_job(wan, job, false, &plans[1]));
    if (job->predict) AQ_TRY(plan_job(wan, job, true, &expected));
    aq_bench_emit(wan->options, case_of(job, "sequences/s"), BATCH / figures.median_s, "1/s");
    if (job->bound) emit_bound(wan, job, plans, figures.median_s);
    if (job->predict) {
        const double ratio = expected.step_s / figures.median_s;
        aq_bench_emit(wan->options, case_of(job, "predicted/measured"), ratio, "ratio");
        wan->least = fmin(wan->least, ratio);
        wan->most = fmax(wan->most, ratio);
    }
    if (job == &near) {
        wan->near_s = figures.mean_s;
        wan->near_losses = figures.losses;
    } else if (wan->near_s > 0 && stages_of(job) == ENDS) {
        aq_bench_emit(wan->options, case_of(job, "same losses"), figures.losses == wan->near_losses, "1: bit for bit");
    }
    return AQ_OK;
}

static enum aq_status bench_stale(struct wan *wan)
{
    const struct job stale = {"", {100, 80, 0, NULL}, FOUR, "train.staleness=1", false, false};
    const char *const name = wan->timed ? STALE_TIMED_CASE : STALE_CASE;
    struct aq_bench_job_figures figures;
    struct aq_plan_prediction plans[2];
    if (!aq_bench_wanted(wan->options, name)) return AQ_OK;
    if (!has_key("train.staleness")) {
        fprintf(stderr, "%s: left out: this version has no key train.staleness\n", name);
        return AQ_OK;
    }
    AQ_TRY(wan->timed ? run_timed(wan, &stale, plans, &figures) : run_job(wan, &stale, &figures));
    if (!wan->timed)
        aq_bench_emit(wan->options, "wan 100mbit rtt80 staleness1 sequences/s", BATCH / figures.mean_s, "1/s");
    aq_bench_emit(wan->options, name, wan->near_s / figures.mean_s, "ratio");
    return AQ_OK;
}

static enum aq_status bench_relay(struct wan *wan)
{
    const struct job direct = {.network = {100, 80, 0, NULL}, .layers = TWO};
    const struct job relayed = {.network = {100, 40, 0, NULL}, .layers = TWO, .more = OVER_RELAY};
    struct aq_bench_job_figures figures[2];
    if (!aq_bench_wanted(wan->options, RELAY_CASE)) return AQ_OK;
    if (wan->daemons[RELAY] == 0) AQ_TRY(start_daemon(wan, RELAY));
    AQ_TRY(run_job(wan, &direct, &figures[0]));
    AQ_TRY(run_job(wan, &relayed, &figures[1]));
    if (figures[0].losses != figures[1].losses)
        return aq_fail(AQ_MISMATCH, "bench", "over the relay the losses are other ones");
    aq_bench_emit(wan->options, "wan 100mbit rtt80 relay sequences/s", BATCH / figures[1].median_s, "1/s");
    aq_bench_emit(wan->options, RELAY_CASE, figures[0].median_s / figures[1].median_s, "ratio");
    return AQ_OK;
}

/* ---- a lost cache ---- */

/* Seconds of all steps of that epoch; *fetched: messages that came from a neighbour in it. */
static enum aq_status epoch_figures(const char *run, long epoch, double *seconds, uint64_t *fetched)
{
    char path[AQ_BENCH_PATH_BYTES], line[1 << 16];
    AQ_TRY(aq_run_path(run, "metrics.jsonl", path));
    FILE *file = fopen(path, "r");
    if (!file) return aq_fail_errno("bench", "cannot read %s", path);
    *seconds = 0;
    *fetched = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL), *each;
        const char *event = json_string_value(json_object_get(object, "event"));
        size_t i;
        if (event && strcmp(event, "step") == 0 && json_integer_value(json_object_get(object, "epoch")) == epoch) {
            *seconds += json_number_value(json_object_get(object, "seconds"));
            json_array_foreach(json_object_get(object, "fetched"), i, each) *fetched +=
                (uint64_t)json_integer_value(each);
        }
        json_decref(object);
    }
    fclose(file);
    return *seconds > 0 ? AQ_OK : aq_fail(AQ_CORRUPT, "bench", "%s has no steps of epoch %ld", path, epoch);
}

static enum aq_status go_on(const struct wan *wan, const char *run, const char *epochs)
{
    const char *const arguments[] = {"aqpipe", "resume", run, "--no-progress", "--epochs", epochs, NULL};
    return aq_bench_job_command(wan->folder, (char *const *)(uintptr_t)arguments);
}

static enum aq_status bench_lost(struct wan *wan)
{
    static struct sets sets;
    const struct job job = {"", {100, 80, 0, NULL}, {"0", "1-2"}, "model.blocks=1", false, false};
    char manifest[AQ_BENCH_PATH_BYTES], run[AQ_BENCH_PATH_BYTES], output[AQ_BENCH_PATH_BYTES + 16];
    const char *arguments[8 + 2 * SETS] = {"aqpipe", "launch", manifest, "--no-progress", "--set", output};
    double kept_s, lost_s;
    uint64_t none, fetched;
    if (!aq_bench_wanted(wan->options, LOST_CASE) || wan->options->quick) return AQ_OK;
    AQ_TRY(tell_network(&job.network));
    AQ_TRY(aq_run_path(wan->folder, "job.yaml", manifest));
    AQ_TRY(aq_run_path(wan->folder, "lost", run));
    snprintf(output, sizeof output, "output.path=%s", run);
    make_sets(wan, &job, true, &sets);
    add_distance(&sets, &job.network);
    add_set(&sets, "data.train_samples_max=%d", LOST_MESSAGES);
    add_set(&sets, "train.batch=40");
    add_set(&sets, "train.epochs=1");
    add_set(&sets, "checkpoint.every=1 epoch");
    for (uint32_t i = 0; i < sets.count; i++) {
        arguments[6 + 2 * i] = "--set";
        arguments[7 + 2 * i] = sets.of[i];
    }
    AQ_TRY(aq_bench_job_command(wan->folder, (char *const *)(uintptr_t)arguments));
    AQ_TRY(go_on(wan, run, "2"));
    AQ_TRY(aq_file_rename(run, "cache/stage-1", "cache/lost"));
    AQ_TRY(go_on(wan, run, "3"));
    AQ_TRY(epoch_figures(run, 1, &kept_s, &none));
    AQ_TRY(epoch_figures(run, 2, &lost_s, &fetched));
    if (none != 0 || fetched != LOST_MESSAGES)
        return aq_fail(AQ_CORRUPT, "bench", "%llu messages were fetched, and %llu without a lost cache",
                       (unsigned long long)fetched, (unsigned long long)none);
    const double bytes_s = LOST_MESSAGES * MESSAGE_BYTES * 8e-6 / (job.network.rate_mbps * TCP_SHARE);
    aq_bench_emit(wan->options, "wan lost cache 1000 messages rtt80 epoch", lost_s, "s");
    aq_bench_emit(wan->options, "wan lost cache 1000 messages rtt80 epoch with cache", kept_s, "s");
    aq_bench_emit(wan->options, LOST_CASE, (lost_s - kept_s) / bytes_s, "ratio");
    return AQ_OK;
}

/* ---- all of it ---- */

static enum aq_status bench_jobs(struct wan *wan, bool timed)
{
    const uint32_t count = wan->options->quick ? JOBS_QUICK : JOBS;
    const char *const words = timed ? "timed predicted/measured" : "predicted/measured";
    char name[64];
    wan->timed = timed;
    wan->near_s = wan->most = 0;
    wan->least = INFINITY;
    bool compared = wanted(wan, &near) || aq_bench_wanted(wan->options, timed ? STALE_TIMED_CASE : STALE_CASE);
    for (uint32_t i = 0; i < count; i++)
        compared = compared || (!timed && aq_bench_wanted(wan->options, case_of(&jobs[i], "same losses")));
    if (compared) AQ_TRY(timed ? bench_timed(wan, &near) : bench_one(wan, &near));
    AQ_TRY(bench_stale(wan));
    for (uint32_t i = 0; i < count; i++)
        if (wanted(wan, &jobs[i])) AQ_TRY(timed ? bench_timed(wan, &jobs[i]) : bench_one(wan, &jobs[i]));
    if (wan->most == 0) return AQ_OK;
    snprintf(name, sizeof name, "wan %s least", words);
    aq_bench_emit(wan->options, name, wan->least, "ratio");
    snprintf(name, sizeof name, "wan %s most", words);
    aq_bench_emit(wan->options, name, wan->most, "ratio");
    return AQ_OK;
}

static enum aq_status bench_all(struct wan *wan)
{
    AQ_TRY(start_daemons(wan));
    AQ_TRY(bench_jobs(wan, false));
    AQ_TRY(bench_relay(wan));
    AQ_TRY(bench_lost(wan));
    return bench_jobs(wan, true);
}

/* At end 0 of the lab. */
static int run_inside(void *context)
{
    static struct wan wan;
    wan = (struct wan){.options = context, .compute_s = INFINITY};
    (void)usual_congestion();
    enum aq_status status = aq_bench_job_begin(wan.folder);
    if (status == AQ_OK) {
        status = aq_run_path(wan.folder, "keys", wan.keys);
        if (status == AQ_OK) status = make_keys(wan.keys);
        if (status == AQ_OK) status = bench_all(&wan);
        stop_daemons(&wan);
        status = aq_bench_job_end(wan.folder, status);
    }
    if (status == AQ_OK) status = aq_bench_end(wan.options);
    return status == AQ_OK ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

enum aq_status aq_bench_wan(const struct aq_bench_options *options)
{
    static struct aq_wan_lab lab = {.ends = ENDS, .mtu = 1500, .seed = 1, .run = run_inside};
    int code = AQ_EXIT_FAILED;
    lab.context = (void *)(uintptr_t)options;
    lab.stats = !options->json;
    AQ_TRY(aq_wan_lab_run(&lab, &code));
    aq_bench_emitted(); /* or the reason was printed inside */
    return code == AQ_EXIT_DONE ? AQ_OK : AQ_ABORTED;
}
