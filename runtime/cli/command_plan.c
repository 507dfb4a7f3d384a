/*
 * command_plan.c -- `aqpipe plan job.yaml`: refuse a bad job with its place and reason, print a good one's plan; and
 * `aqpipe help keys`.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "plan.h"

enum { SETS_MAX = 256 };

/* Of one core, where nothing was measured: an AVX-512 server core at half of its peak in fp32. Printed with the result.
 */
static const double assumed_gflops = 100;

struct options {
    const char *path;
    const char *sets[SETS_MAX];
    uint32_t set_count;
    bool json, measure, cold;
    double forward_ms, backward_ms; /* of every stage; < 0: not given */
    double gflops;
    uint32_t cores;
};

static const char usage[] =
    "usage: aqpipe plan JOB.yaml [--set KEY=VALUE]... [options]\n"
    "  --json                      one JSON object instead of tables\n"
    "  --measure                   time each stage and codec on this machine (idle: nothing else should run), on its\n"
    "                              GPU where the stage is on one, and pack a sample of what is coded\n"
    "  --compute-forward-ms X      of one micro-batch on every stage, instead of measuring\n"
    "  --compute-backward-ms Y\n"
    "  --gflops G                  a core's rate, where nothing is measured or given (100)\n"
    "  --cores N                   of each host (those of this machine)\n"
    "  --first-epoch               predict the first epoch, when samples are sent whole\n"
    "`aqpipe help keys` lists the keys of a job.\n";

static bool number(const char *text, double *out)
{
    char *end;
    if (!text) return false;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out) && *out >= 0;
}

/* The option at argv[*i] with its value; false: it is none of these, or its value is no number. */
static bool option_number(int argc, char **argv, int *i, struct options *options)
{
    const char *name = argv[*i], *value = *i + 1 < argc ? argv[*i + 1] : NULL;
    double cores = 0;
    ++*i;
    if (strcmp(name, "--compute-forward-ms") == 0) return number(value, &options->forward_ms);
    if (strcmp(name, "--compute-backward-ms") == 0) return number(value, &options->backward_ms);
    if (strcmp(name, "--gflops") == 0) return number(value, &options->gflops) && options->gflops > 0;
    if (strcmp(name, "--cores") != 0 || !number(value, &cores) || cores < 1 || cores > 4096) return false;
    options->cores = (uint32_t)cores;
    return true;
}

static bool options_read(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--json") == 0)
            options->json = true;
        else if (strcmp(name, "--measure") == 0)
            options->measure = true;
        else if (strcmp(name, "--first-epoch") == 0)
            options->cold = true;
        else if (strcmp(name, "--set") == 0 && i + 1 < argc && options->set_count < SETS_MAX)
            options->sets[options->set_count++] = argv[++i];
        else if (name[0] != '-' && !options->path)
            options->path = name;
        else if (!option_number(argc, argv, &i, options)) {
            (void)aq_fail(AQ_INVAL, "plan", "cannot understand '%s'; `aqpipe plan --help` says what can be", name);
            return false;
        }
    }
    if (!options->path) (void)aq_fail(AQ_INVAL, "plan", "no manifest is named: aqpipe plan JOB.yaml");
    return options->path != NULL;
}

static enum aq_status costs_fill(const struct options *options, const struct aq_plan *plan, struct aq_plan_costs *costs)
{
    const uint32_t cores = options->cores ? options->cores : aq_thread_cores();
    const bool forward = options->forward_ms >= 0, backward = options->backward_ms >= 0;
    if (options->measure)
        AQ_TRY(aq_plan_costs_measured(plan, cores, costs));
    else
        aq_plan_costs_assumed(plan, options->gflops, cores, costs);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        if (forward) costs->forward_s[s] = options->forward_ms * 1e-3;
        if (backward) costs->backward_s[s] = options->backward_ms * 1e-3;
    }
    aq_plan_costs_reduce(plan, costs); /* a step computes what was given */
    costs->cold = options->cold;
    if (forward || backward)
        costs->origin = options->measure          ? "given and measured here"
                        : aq_plan_wants_gpu(plan) ? "given; codecs and updates of GPUs taken as 0 s"
                                                  : "given, codecs assumed";
    return AQ_OK;
}

/* costs NULL: nothing is said about time. */
static enum aq_status print_with(const struct options *options, const struct aq_plan *plan,
                                 const struct aq_plan_costs *costs)
{
    struct aq_plan_prediction prediction;
    struct aq_text text = {0};
    if (costs) AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    const struct aq_plan_prediction *foretold = costs ? &prediction : NULL;
    enum aq_status status =
        options->json ? aq_plan_print_json(plan, costs, foretold, &text) : aq_plan_print(plan, costs, foretold, &text);
    if (status == AQ_OK && fputs(aq_text_of(&text), stdout) < 0) status = aq_fail_errno("plan", "cannot print");
    aq_text_deinit(&text);
    return status;
}

/* Nothing is assumed of a GPU: its time is measured, or given, or not told; where it cannot be measured, why. */
static enum aq_status print(const struct options *options, const struct aq_plan *plan)
{
    struct aq_plan_costs costs;
    char origin[96];
    const bool given = options->forward_ms >= 0 && options->backward_ms >= 0;
    if (aq_plan_wants_gpu(plan) && !options->measure && !given) return print_with(options, plan, NULL);
    const enum aq_status status = costs_fill(options, plan, &costs);
    if (status == AQ_NODEV) AQ_TRY(print_with(options, plan, NULL));
    AQ_TRY(status);
    if (!options->measure && options->forward_ms < 0 && options->backward_ms < 0) {
        snprintf(origin, sizeof origin, "assumed: %g GFLOP/s a core, see --measure", options->gflops);
        costs.origin = origin;
    }
    return print_with(options, plan, &costs);
}

int aq_command_plan(int argc, char **argv)
{
    struct options options = {.forward_ms = -1, .backward_ms = -1, .gflops = assumed_gflops};
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) return fputs(usage, stdout) < 0;
    if (!options_read(argc, argv, &options)) return AQ_EXIT_USAGE;
    enum aq_status status = aq_job_load(options.path, options.sets, options.set_count, &job);
    if (status == AQ_OK) status = aq_plan_open(job, &plan);
    const bool planned = status == AQ_OK;
    if (status == AQ_OK) status = print(&options, plan);
    if (status == AQ_OK) status = aq_plan_fits(plan, aq_plan_memory_here());
    aq_plan_close(plan);
    aq_job_close(job);
    return status == AQ_OK ? AQ_EXIT_DONE : planned ? AQ_EXIT_FAILED : AQ_EXIT_USAGE; /* as launch */
}

int aq_command_help_keys(int argc, char **argv)
{
    const bool page = argc > 1 && strcmp(argv[1], "--markdown") == 0;
    char *text;
    if ((page ? aq_keys_markdown(&text) : aq_keys_help(&text)) != AQ_OK) return 1;
    const int failed = fputs(text, stdout) < 0;
    aq_free(text);
    return failed;
}
