/*
 * bench_job.c -- whole jobs: the throughput of a pipeline against the bound of its plan, and the cost of a cache on SSD
 * and of a checkpoint every 50 steps.
 *
 * Jobs are run as a user runs them, by `aqpipe launch` as a child process, in a folder below the current one (a disk,
 * not a memory file system), which is removed afterwards. Figures are read from their metrics.jsonl. Only whole epochs
 * after the first count: the first sends keyframes.
 *
 * `job measured/bound` is the bound's step time over the measured one: 1 would be a pipeline whose busiest resource
 * never idles. The bound is plan.h's, from costs measured in the same run on the same machine.
 *
 * `job NAME predicted/measured` is the step time that `aqpipe plan --measure` expects, over the measured one, of jobs
 * of several shapes: stages, rates, packing, replicas. Costs are measured before and after each run and the mean of
 * both predictions counts, because the machine may change meanwhile; of three rounds the median.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_job.h"
#include "commands.h"
#include "owned_folder.h"
#include "run_folder.h"
#include "run_lines.h"

enum { PATH_BYTES = AQ_BENCH_PATH_BYTES, TEXT_WORDS = 60000, ROUNDS = 3, SETS_MAX = 24, STEPS_MAX = 1024 };

static const char manifest_text[] = "job: {name: bench}\n"
                                    "model: {blocks: 4, heads: 4, channels: 256, context: 128, tied: false}\n"
                                    "data: {train: text.txt, train_samples_max: 512}\n"
                                    "train: {T: 128, batch: 128, micro_batch: 4, epochs: 4, lr: 1e-4, clip: 1.0}\n"
                                    "pipeline: {stages: 4, threads: 1}\n"
                                    "edges:\n"
                                    "  forward: {codec: aqsgd, bits: 4}\n"
                                    "  backward: {codec: directq, bits: 8}\n"
                                    "link: {rate_mbps: 100}\n"
                                    "checkpoint: {every: 0}\n";

static enum aq_status write_inputs(const char *folder)
{
    char path[PATH_BYTES];
    struct aq_text text = {0};
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 0, 0);
    for (uint64_t i = 0; i < TEXT_WORDS; i++)
        aq_text_add(&text, "%llu ", (unsigned long long)aq_rng_below(&key, i, 5000));
    enum aq_status status = aq_run_path(folder, "text.txt", path);
    if (status == AQ_OK) status = aq_file_replace(NULL, path, 0600, aq_text_of(&text), text.used);
    aq_text_deinit(&text);
    AQ_TRY(status);
    AQ_TRY(aq_run_path(folder, "job.yaml", path));
    return aq_file_replace(NULL, path, 0600, manifest_text, sizeof manifest_text - 1);
}

/* In the child: only what is safe between fork and exec. A signal that kills the bench ends its run, with a
 * checkpoint. */
static void become_launch(const char *program, int log, char *const *arguments, pid_t parent)
{
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent) _exit(125);
    if (null == -1 || dup2(null, 0) == -1 || dup2(log, 1) == -1 || dup2(log, 2) == -1) _exit(125);
    execv(program, arguments);
    _exit(126);
}

enum aq_status aq_bench_job_command(const char *folder, char *const *arguments)
{
    char program[AQ_RUN_PATH_BYTES], log[PATH_BYTES];
    if (!aq_program_beside("aqpipe", program))
        return aq_fail(AQ_NOTFOUND, "bench", "there is no program aqpipe next to aqpipe-bench: install both");
    AQ_TRY(aq_run_path(folder, "launch.log", log));
    int out;
    AQ_TRY(aq_file_open(NULL, log, AQ_FILE_ANEW, &out));
    const pid_t parent = getpid(), child = fork();
    if (child == 0) become_launch(program, out, arguments, parent);
    const enum aq_status status = child == -1 ? aq_fail_errno("bench", "cannot start %s", program) : AQ_OK;
    close(out);
    AQ_TRY(status);
    int code;
    while (waitpid(child, &code, 0) < 0) {
        if (errno != EINTR) return aq_fail_errno("bench", "cannot wait for aqpipe launch");
        (void)kill(child, SIGTERM); /* this process is to end */
    }
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return AQ_OK;
    char *text;
    size_t count;
    if (aq_file_load(NULL, log, 1 << 20, &text, &count) == AQ_OK) {
        aq_fail(AQ_ABORTED, "bench", "aqpipe launch failed: %.*s", (int)(count > 600 ? 600 : count), text);
        aq_free(text);
    }
    return AQ_ABORTED;
}

/* What a run's metrics say. */
static enum aq_status run_figures(const char *run, struct aq_bench_job_figures *out)
{
    static double each[STEPS_MAX];
    uint64_t digest = 0;
    char path[PATH_BYTES], line[1 << 16];
    AQ_TRY(aq_run_path(run, "metrics.jsonl", path));
    FILE *file = fopen(path, "r");
    if (!file) return aq_fail_errno("bench", "cannot read %s", path);
    double first = -1, last = -1;
    long steps = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(object, "event"));
        if (event && strcmp(event, "step") == 0) {
            const double time = json_number_value(json_object_get(object, "time"));
            const long here = (long)json_integer_value(json_object_get(object, "epoch"));
            const double loss = json_number_value(json_object_get(object, "loss"));
            digest = aq_digest_seeded(&loss, sizeof loss, digest);
            if (here == 0) {
                first = time;
            } else {
                if (steps < STEPS_MAX) each[steps] = time - last;
                steps++;
            }
            last = time;
        }
        json_decref(object);
    }
    fclose(file);
    if (steps == 0 || first < 0) return aq_fail(AQ_CORRUPT, "bench", "%s has no steps after the first epoch", path);
    const long counted = steps < STEPS_MAX ? steps : STEPS_MAX;
    *out = (struct aq_bench_job_figures){.mean_s = (last - first) / (double)steps,
                                         .median_s = aq_bench_middle(each, (size_t)counted),
                                         .losses = digest};
    return AQ_OK;
}

enum aq_status aq_bench_job_figures(const char *folder, const char *name, const char *const *sets,
                                    struct aq_bench_job_figures *out)
{
    char manifest[PATH_BYTES], run[PATH_BYTES], output[PATH_BYTES + 16];
    AQ_TRY(aq_run_path(folder, "job.yaml", manifest));
    AQ_TRY(aq_run_path(folder, name, run));
    snprintf(output, sizeof output, "output.path=%s", run);
    char *arguments[6 + 2 * SETS_MAX + 1] = {"aqpipe", "launch", manifest, "--no-progress", "--set", output};
    for (int i = 0, at = 6; sets[i]; i++) {
        AQ_ASSERT(i < SETS_MAX);
        arguments[at++] = (char *)(uintptr_t) "--set";
        arguments[at++] = (char *)(uintptr_t)sets[i];
    }
    AQ_TRY(aq_bench_job_command(folder, arguments));
    AQ_TRY(run_figures(run, out));
    return aq_owned_scratch_remove(folder, name);
}

enum aq_status aq_bench_job_run(const char *folder, const char *name, const char *const *sets, double *step_seconds)
{
    struct aq_bench_job_figures figures;
    AQ_TRY(aq_bench_job_figures(folder, name, sets, &figures));
    *step_seconds = figures.mean_s;
    return AQ_OK;
}

enum aq_status aq_bench_job_pair(const struct aq_bench_options *options, const char *folder, const char *const *one,
                                 const char *const *other, double *one_s, double *other_s)
{
    double ones[ROUNDS], others[ROUNDS];
    const int rounds = options->quick ? 1 : ROUNDS;
    for (int i = 0; i < rounds; i++) {
        AQ_TRY(aq_bench_job_run(folder, "one", one, &ones[i]));
        AQ_TRY(aq_bench_job_run(folder, "other", other, &others[i]));
    }
    *one_s = aq_bench_middle(ones, (size_t)rounds);
    *other_s = aq_bench_middle(others, (size_t)rounds);
    return AQ_OK;
}

static enum aq_status bench_ssd(const struct aq_bench_options *options, const char *folder)
{
    static const char *const in_memory[] = {"cache.kind=memory", NULL}, *const on_ssd[] = {"cache.kind=lmdb", NULL};
    double ssd, memory;
    AQ_TRY(aq_bench_job_pair(options, folder, in_memory, on_ssd, &memory, &ssd));
    aq_bench_emit(options, "job step ssd", ssd * 1e3, "ms");
    aq_bench_emit(options, "job step memory", memory * 1e3, "ms");
    aq_bench_emit(options, "job ssd/memory", ssd / memory, "ratio");
    return AQ_OK;
}

/* 104 short steps; those that count are 9 to 104, with the checkpoints of steps 50 and 100 among them. */
static enum aq_status bench_checkpoint(const struct aq_bench_options *options, const char *folder)
{
#define SHORT_STEPS "train.batch=16", "data.train_samples_max=128", "train.epochs=13"
    static const char *const none[] = {SHORT_STEPS, NULL}, *const each_50[] = {SHORT_STEPS, "checkpoint.every=50 steps",
                                                                               NULL};
#undef SHORT_STEPS
    double without, with;
    AQ_TRY(aq_bench_job_pair(options, folder, none, each_50, &without, &with));
    aq_bench_emit(options, "job step checkpoint50", with * 1e3, "ms");
    aq_bench_emit(options, "job step no checkpoint", without * 1e3, "ms");
    aq_bench_emit(options, "job checkpoint50/none", with / without, "ratio");
    return AQ_OK;
}

/* gflops 0: costs are measured. */
static enum aq_status plan_with(const char *folder, const char *const *sets, double gflops, uint32_t cores,
                                struct aq_plan_costs *costs, struct aq_plan_prediction *out)
{
    uint32_t count = 0;
    while (sets[count])
        count++;
    char manifest[PATH_BYTES];
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(aq_run_path(folder, "job.yaml", manifest), out);
    AQ_TRY_GOTO(aq_job_load(manifest, sets, count, &job), out);
    AQ_TRY_GOTO(aq_plan_open(job, &plan), out);
    if (gflops > 0)
        aq_plan_costs_assumed(plan, gflops, cores, costs);
    else
        AQ_TRY_GOTO(aq_plan_costs_measured(plan, cores, costs), out);
    AQ_TRY_GOTO(aq_plan_predict(plan, costs, out), out);
out:
    aq_plan_close(plan);
    aq_job_close(job);
    return status;
}

enum aq_status aq_bench_job_plan(const char *folder, const char *const *sets, struct aq_plan_prediction *out)
{
    struct aq_plan_costs costs;
    return plan_with(folder, sets, 0, aq_thread_cores(), &costs, out);
}

enum aq_status aq_bench_job_assumed(const char *folder, const char *const *sets, double gflops, uint32_t cores,
                                    struct aq_plan_costs *costs, struct aq_plan_prediction *out)
{
    return plan_with(folder, sets, gflops, cores, costs, out);
}

/* Costs are measured before and after the run, and the lower bound counts: noise only adds. */
static enum aq_status bench_bound(const struct aq_bench_options *options, const char *folder)
{
    static const char *const unpacked[] = {"link.entropy=off", NULL}; /* as the bound counts bytes */
    struct aq_plan_prediction before = {0}, after = {0};
    double step;
    AQ_TRY(aq_bench_job_plan(folder, unpacked, &before));
    AQ_TRY(aq_bench_job_run(folder, "bound", unpacked, &step));
    AQ_TRY(aq_bench_job_plan(folder, unpacked, &after));
    const struct aq_plan_prediction *least = before.bound_s < after.bound_s ? &before : &after;
    aq_bench_emit(options, "job step measured", step * 1e3, "ms");
    aq_bench_emit(options, "job step predicted", least->step_s * 1e3, "ms");
    aq_bench_emit(options, "job step bound", least->bound_s * 1e3, "ms");
    aq_bench_emit(options, "job measured/bound", least->bound_s / step, "ratio");
    return AQ_OK;
}

/* Some two seconds of steps each. */
#define SHORT "train.batch=32", "train.epochs=3", "cache.kind=memory"
#define TWO   "pipeline.stages=2"
#define OFF   "link.entropy=off"
#define QADAM                                                                                                          \
    "pipeline.replicas=2", "train.batch=64", "train.optimizer=qadam", "optimizer.warmup_steps=4", "reduce.codec=q4"
static const struct prediction_case {
    const char *name;
    const char *sets[SETS_MAX];
} prediction_cases[] = {
    {"pp1", {SHORT, "pipeline.stages=1", "data.train_samples_max=128", NULL}},
    {"pp2 100mbit", {SHORT, TWO, OFF, "data.train_samples_max=128", NULL}},
    {"pp2 20mbit", {SHORT, TWO, OFF, "data.train_samples_max=128", "link.rate_mbps=20", NULL}},
    {"pp2 20mbit packed", {SHORT, TWO, "data.train_samples_max=128", "link.rate_mbps=20", NULL}},
    {"pp3 20mbit packed", {SHORT, "pipeline.stages=3", "data.train_samples_max=128", "link.rate_mbps=20", NULL}},
    {"pp4 20mbit fp32",
     {SHORT, OFF, "data.train_samples_max=64", "link.rate_mbps=20", "edges.forward={codec: raw, precision: fp32}",
      "edges.backward={codec: raw, precision: fp32}", NULL}},
    {"pp4 100mbit packed", {SHORT, "data.train_samples_max=128", NULL}},
    {"dp2pp2 qadam4 100mbit", {SHORT, TWO, OFF, QADAM, "data.train_samples_max=256", NULL}},
    {"dp2pp2 qadam4 20mbit packed", {SHORT, TWO, QADAM, "data.train_samples_max=256", "link.rate_mbps=20", NULL}},
    {"dp2pp1 fp32 100mbit",
     {SHORT, OFF, "pipeline.stages=1", "pipeline.replicas=2", "data.train_samples_max=128", NULL}},
};
#undef SHORT
#undef TWO
#undef OFF
#undef QADAM

static enum aq_status predict_and_run(const char *folder, const char *const *sets, int rounds, double *steps,
                                      double *ratios)
{
    struct aq_plan_prediction before = {0}, after = {0};
    struct aq_bench_job_figures figures;
    AQ_TRY(aq_bench_job_plan(folder, sets, &before));
    for (int i = 0; i < rounds; i++) {
        AQ_TRY(aq_bench_job_figures(folder, "prediction", sets, &figures));
        AQ_TRY(aq_bench_job_plan(folder, sets, &after));
        steps[i] = figures.median_s;
        ratios[i] = (before.step_s + after.step_s) / 2 / steps[i];
        before = after;
    }
    return AQ_OK;
}

static enum aq_status bench_prediction(const struct aq_bench_options *options, const char *folder)
{
    const size_t count = sizeof prediction_cases / sizeof *prediction_cases;
    for (size_t i = 0; i < (options->quick ? 2 : count); i++) {
        const struct prediction_case *one = &prediction_cases[i];
        double steps[ROUNDS], ratios[ROUNDS];
        const int rounds = options->quick ? 1 : ROUNDS;
        char name[96];
        snprintf(name, sizeof name, "job %s step predicted/measured", one->name);
        if (!aq_bench_wanted(options, name)) continue;
        AQ_TRY(predict_and_run(folder, one->sets, rounds, steps, ratios));
        snprintf(name, sizeof name, "job %s step", one->name);
        aq_bench_emit(options, name, aq_bench_middle(steps, (size_t)rounds) * 1e3, "ms");
        snprintf(name, sizeof name, "job %s predicted/measured", one->name);
        aq_bench_emit(options, name, aq_bench_middle(ratios, (size_t)rounds), "ratio");
    }
    return AQ_OK;
}

enum aq_status aq_bench_job_begin(char folder[AQ_BENCH_PATH_BYTES])
{
    if (!getcwd(folder, AQ_BENCH_PATH_BYTES - 64)) return aq_fail_errno("bench", "cannot tell the current folder");
    snprintf(folder + strlen(folder), 64, "/aqpipe-bench-job-XXXXXX");
    AQ_TRY(aq_owned_scratch_make(folder));
    return write_inputs(folder);
}

enum aq_status aq_bench_job_end(const char *folder, enum aq_status status)
{
    const enum aq_status removed = aq_owned_scratch_remove(folder, NULL);
    return status != AQ_OK ? status : removed;
}

enum aq_status aq_bench_job(const struct aq_bench_options *options)
{
    char folder[PATH_BYTES];
    enum aq_status status = aq_bench_job_begin(folder);
    static const struct part {
        const char *words;
        enum aq_status (*run)(const struct aq_bench_options *options, const char *folder);
    } parts[] = {{"job step measured predicted bound measured/bound", bench_bound},
                 {"job pp1 pp2 pp3 pp4 dp2pp2 dp2pp1 qadam4 fp32 packed 20mbit 100mbit step predicted/measured",
                  bench_prediction},
                 {"job step ssd memory ssd/memory", bench_ssd},
                 {"job step checkpoint50/none no checkpoint", bench_checkpoint}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == AQ_OK; i++)
        if (aq_bench_wanted(options, parts[i].words)) status = parts[i].run(options, folder);
    return aq_bench_job_end(folder, status);
}
