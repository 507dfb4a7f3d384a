/*
 * command_plan.c -- `aqpipe plan job.yaml`: refuse a bad job with its place and reason, print a good one's plan; and
 * `aqpipe help keys`.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "cut.h"
#include "json_text.h"
#include "options.h"
#include "out.h"
#include "advice.h"
#include "plan_probe.h"
#include "run_folder.h"
#include "trackers.h"

/* Of one core, where nothing was measured: an AVX-512 server core at half of its peak in fp32. Printed with the result.
 */
static const double assumed_gflops = 100;

struct options {
    struct aq_arguments sets;
    bool json, measure, cold, probe, slack;
    const char *token_file;
    double forward_ms, backward_ms; /* of every stage; < 0: not given */
    double gflops;
    uint32_t cores;
    struct aq_probe_told *told; /* what was measured; NULL: nothing */
};

static const struct aq_option rows[] = {
    AQ_ROW(LIST, struct options, sets, "set", "KEY=VALUE",
           "set a key of the manifest (aqpipe help keys); a path is relative to the current folder"),
    AQ_ROW(FLAG, struct options, json, "json", NULL, "one JSON object instead of tables; errors, too"),
    AQ_ROW(FLAG, struct options, measure, "measure", NULL,
           "time each stage and codec on this machine, which should be idle, and pack a coded sample"),
    AQ_ROW(FLAG, struct options, probe, "probe", NULL,
           "have the job's daemons measure the network of each link, print it, and plan with it. A daemon must not "
           "have a job (docs/NETWORKS.md explains the table)"),
    AQ_ROW(TEXT, struct options, token_file, "token-file", "FILE",
           "with --probe: the secret shared with the daemons (AQPIPE_TOKEN_FILE)"),
    AQ_ROW_RANGE(NUMBER, struct options, forward_ms, "compute-forward-ms", "X", 0, 1e12,
                 "milliseconds of a micro-batch forward on every stage, instead of measuring"),
    AQ_ROW_RANGE(NUMBER, struct options, backward_ms, "compute-backward-ms", "Y", 0, 1e12,
                 "the same of its backward, both halves"),
    AQ_ROW_RANGE(NUMBER, struct options, gflops, "gflops", "G", 1e-9, 1e12,
                 "of a core, where nothing is measured or given (100)"),
    AQ_ROW_RANGE(U32, struct options, cores, "cores", "N", 1, 4096, "of each host; default: those of this machine"),
    AQ_ROW(FLAG, struct options, slack, "slack", NULL,
           "print how many more bits each cut can have at no cost in time, as --set takes it. Needs link.rate_mbps or "
           "--probe"),
    AQ_ROW(FLAG, struct options, cold, "first-epoch", NULL, "predict the first epoch, when samples are sent whole"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe plan", "JOB.yaml",
    "Checks the manifest and prints what would run: stages, memory, bytes of each link and step, the schedule, the "
    "predicted step time.",
    rows,
    "Exit status: 0 it can run; 1 this machine has too little memory for it, or a measurement failed; 2 wrong command "
    "line, manifest or path."};

static uint32_t cores_of(const struct options *options)
{
    return options->cores ? options->cores : aq_thread_cores();
}

/* Are the stages' times given? Then the times of layers are not used. */
static bool told_all(const struct options *options)
{
    return options->forward_ms >= 0 || options->backward_ms >= 0;
}

static enum aq_status costs_fill(const struct options *options, const struct aq_plan *plan, struct aq_plan_costs *costs)
{
    const uint32_t cores = cores_of(options);
    const bool forward = options->forward_ms >= 0, backward = options->backward_ms >= 0;
    if (options->measure)
        AQ_TRY(aq_plan_costs_measured(plan, cores, costs));
    else
        aq_plan_costs_assumed(plan, options->gflops, cores, costs);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        if (forward) costs->forward_s[s] = options->forward_ms * 1e-3;
        if (backward) aq_plan_costs_backward(plan, s, options->backward_ms * 1e-3, costs);
    }
    aq_plan_costs_reduce(plan, costs); /* a step computes what was given */
    costs->cold = options->cold;
    if (forward || backward)
        costs->origin = options->measure          ? "given and measured here"
                        : aq_plan_wants_gpu(plan) ? "given; codecs and updates of GPUs taken as 0 s"
                                                  : "given, codecs assumed";
    return AQ_OK;
}

/* The plan as one object, with what was measured of its network. */
static enum aq_status add_told(const struct aq_probe_told *told, struct aq_text *text)
{
    json_t *plan = json_loads(aq_text_of(text), 0, NULL);
    const bool added = plan && json_object_set_new(plan, "probe", aq_probe_told_json(told)) == 0;
    aq_text_deinit(text);
    *text = (struct aq_text){0};
    enum aq_status status = AQ_NOMEM;
    if (added) status = aq_json_text(plan, JSON_REAL_PRECISION(9), text);
    aq_text_bytes(text, "\n", 1);
    json_decref(plan);
    return status == AQ_OK ? AQ_OK : aq_fail(status, "plan", "no memory for the plan as JSON");
}

/* The spare capacity of links, below the plan or in its object. */
static enum aq_status add_slack(const struct options *options, const struct aq_plan *plan,
                                const struct aq_plan_costs *costs, struct aq_text *text)
{
    struct aq_plan_slack slack;
    struct aq_text list = {0};
    char before[AQ_TEXT_NUMBER], after[AQ_TEXT_NUMBER];
    enum aq_status status = aq_plan_slack(plan, costs, &slack);
    if (status != AQ_OK) return status;
    aq_plan_slack_text(plan, &slack, &list);
    if (options->json) {
        json_t *object = json_loads(aq_text_of(text), 0, NULL);
        json_object_set_new(object, "slack",
                            json_pack("{s:f, s:f, s:i, s:s}", "step_before_s", slack.before_s, "step_s", slack.step_s,
                                      "raised", (int)slack.raised, "set", aq_text_of(&list)));
        aq_text_deinit(text);
        *text = (struct aq_text){0};
        status = object ? aq_json_text(object, JSON_REAL_PRECISION(9), text) : AQ_NOMEM;
        aq_text_bytes(text, "\n", 1);
        json_decref(object);
    } else if (slack.raised) {
        aq_text_add(text, "slack: %u directions of cuts can have more bits, a step is then %s (%s): --set '%s'\n",
                    slack.raised, aq_text_seconds(slack.step_s, after), aq_text_seconds(slack.before_s, before),
                    aq_text_of(&list));
    } else {
        aq_text_add(text, "slack: no cut can have more bits without a longer step\n");
    }
    if (status == AQ_OK) status = list.status;
    aq_text_deinit(&list);
    return status;
}

/* costs NULL: times are left out. */
static enum aq_status print_with(const struct options *options, const struct aq_plan *plan,
                                 const struct aq_plan_costs *costs)
{
    struct aq_plan_prediction prediction;
    struct aq_text text = {0};
    if (costs) AQ_TRY(aq_plan_predict(plan, costs, &prediction));
    const struct aq_plan_prediction *foretold = costs ? &prediction : NULL;
    enum aq_status status = options->json ? aq_plan_print_json(plan, costs, foretold, &text)
                                          : aq_plan_print(plan, costs, foretold, aq_text_columns(STDOUT_FILENO), &text);
    if (status == AQ_OK && options->told && options->json) status = add_told(options->told, &text);
    if (status == AQ_OK && options->slack && costs) status = add_slack(options, plan, costs, &text);
    if (status == AQ_OK && !(options->json ? aq_out_raw : aq_out_text)(aq_text_of(&text)))
        status = aq_fail_errno("plan", "cannot print");
    aq_text_deinit(&text);
    return status;
}

/* Nothing is assumed of a GPU: its time is measured, or given, or left out; if it cannot be measured, prints why. */
static enum aq_status print(const struct options *options, const struct aq_plan *plan)
{
    struct aq_plan_costs costs;
    struct aq_plan_layers *layers = NULL;
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
    if (!told_all(options) && plan->stage_count > 1)
        AQ_TRY(options->measure ? aq_plan_layers_measured(plan, cores_of(options), &layers)
                                : aq_plan_layers_assumed(plan, &layers));
    if (layers && !options->measure) aq_plan_layers_as(layers, &costs, options->gflops);
    costs.layers = layers;
    const enum aq_status printed = print_with(options, plan, &costs);
    aq_plan_layers_close(layers);
    return printed;
}

/* The table of what was measured; after a failure that left none, nothing. */
static enum aq_status tell(const struct options *options, bool failed)
{
    struct aq_text text = {0};
    if (options->json) return AQ_OK; /* with the plan */
    if (failed && !aq_probe_told_any(options->told)) return AQ_OK;
    enum aq_status status = aq_probe_told_print(options->told, aq_text_columns(STDOUT_FILENO), &text);
    aq_text_add(&text, failed ? "the measurement failed, so no plan follows\n"
                              : "the plan below uses these measurements\n\n");
    if (status == AQ_OK && !aq_out_text(aq_text_of(&text))) status = aq_fail_errno("plan", "cannot print");
    aq_text_deinit(&text);
    return status;
}

/* Measure, print, and plan again with the result. */
static enum aq_status probe(struct options *options, struct aq_job *job, struct aq_plan **plan)
{
    const enum aq_status status = aq_plan_probe(job, *plan, options->token_file, &options->told);
    if (options->told) AQ_TRY(tell(options, status != AQ_OK));
    AQ_TRY(status);
    aq_plan_close(*plan);
    *plan = NULL;
    aq_probe_told_use(options->told, job);
    return aq_plan_open(job, plan);
}

/* Cut by measured layers, if the job sets it: prints that first. */
static enum aq_status cut(const struct options *options, struct aq_plan **plan)
{
    struct aq_text told = {0};
    enum aq_status status = aq_cut_measured(plan, cores_of(options), &told);
    if (status == AQ_OK && told.used > 0 && !options->json && !aq_out("%s\n\n", aq_text_of(&told)))
        status = aq_fail_errno("plan", "cannot print");
    aq_text_deinit(&told);
    return status;
}

/* What output.report_to lacks on this machine: a job runs without it, so it is told and changes no status. */
static void trackers_tell(const struct aq_job *job)
{
    struct aq_trackers_config config;
    char program[AQ_RUN_PATH_BYTES], text[1024];
    aq_follow_config(job, program, &config);
    if (!config.wanted) return;
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_trackers_check(&config, text, sizeof text);
    aq_error_release(&why);
    if (status != AQ_OK && status != AQ_NOTFOUND) snprintf(text, sizeof text, "%s", why.text);
    if (status == AQ_OK) return;
    for (char *rest = text, *told; (told = strsep(&rest, "\n")) != NULL;)
        if (*told) aq_log("plan", 1, "output.report_to: %s", told);
}

int aq_command_plan(int argc, char **argv)
{
    struct options options = {
        .forward_ms = -1, .backward_ms = -1, .gflops = assumed_gflops, .token_file = getenv("AQPIPE_TOKEN_FILE")};
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    struct aq_arguments rest;
    const int code = aq_options_read(&line, argc, argv, &options, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count != 1) return aq_options_wrong(line.name, "plan needs one manifest");
    enum aq_status status = aq_job_load(rest.of[0], options.sets.of, options.sets.count, &job);
    if (status == AQ_OK) status = aq_plan_open(job, &plan);
    const bool planned = status == AQ_OK;
    if (status == AQ_OK && options.probe) status = probe(&options, job, &plan);
    if (status == AQ_OK) status = cut(&options, &plan);
    if (status == AQ_OK) status = print(&options, plan);
    if (status == AQ_OK) status = aq_plan_here(plan);
    if (planned) trackers_tell(job);
    if (status == AQ_OK && options.told && !aq_probe_told_well(options.told)) status = AQ_IO; /* told in the table */
    aq_probe_told_close(options.told);
    aq_plan_close(plan);
    aq_job_close(job);
    return planned ? aq_exit_of(status) : AQ_EXIT_USAGE; /* as launch */
}

int aq_command_help_keys(int argc, char **argv)
{
    const bool page = argc > 1 && strcmp(argv[1], "--markdown") == 0;
    char *text;
    const enum aq_status status = page ? aq_keys_markdown(&text) : aq_keys_help(argc > 1 ? argv[1] : NULL, &text);
    if (status != AQ_OK) return status == AQ_NOTFOUND ? AQ_EXIT_USAGE : AQ_EXIT_FAILED;
    const bool shown = aq_out_text(text);
    aq_free(text);
    return shown ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}
