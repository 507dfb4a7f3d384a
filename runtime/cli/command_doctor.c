/*
 * command_doctor.c -- `aqpipe doctor [JOB.yaml]`: finds faults of a job before hours are spent on it.
 */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "doctor.h"
#include "options.h"
#include "out.h"
#include "plan.h"

struct options {
    struct aq_arguments sets;
    bool json;
    const char *token_file;
};

static const struct aq_option rows[] = {
    AQ_ROW(LIST, struct options, sets, "set", "KEY=VALUE", "set a key of the manifest (aqpipe help keys)"),
    AQ_ROW(TEXT, struct options, token_file, "token-file", "FILE",
           "the secret shared with the job's daemons (AQPIPE_TOKEN_FILE)"),
    AQ_ROW(FLAG, struct options, json, "json", NULL, "one JSON object per line; errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe doctor", "[JOB.yaml]",
    "Checks this machine before hours are spent: clock, memory, cores, GPU, limits, network; with a job also at its "
    "plan, disk room and speed, ports, certificates and daemons. Each finding comes with its remedy. Run it on every "
    "machine of a job.",
    rows,
    "Exit status: 0 all is well, or doubtful at most; 1 something is bad: a job would fail; 2 wrong command line or "
    "manifest."};

void doctor_found(struct doctor *doctor, enum doctor_state state, const char *check, const char *remedy,
                  const char *format, ...)
{
    static const char *const names[] = {"well", "doubtful", "bad"};
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    doctor->counts[state]++;
    if (doctor->json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s, s:s?}", "check", check, "state", names[state], "found", text, "remedy", remedy);
        if (object) json_dumpf(object, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        (void)aq_out_raw("\n");
        json_decref(object);
        return;
    }
    aq_out("%-9s %-14s %s\n", names[state], check, text);
    if (remedy) aq_out("%-9s %-14s %s\n", "", "  remedy:", remedy);
}

void doctor_failed(struct doctor *doctor, const char *check, const char *remedy)
{
    doctor_found(doctor, DOCTOR_BAD, check, remedy, "%s", aq_error_text());
    aq_error_clear();
}

/* A failure is a finding: it is printed once, there. */
static void quiet(int level, const char *text, void *context)
{
    (void)level, (void)text, (void)context;
}

int aq_command_doctor(int argc, char **argv)
{
    struct options options = {.token_file = getenv("AQPIPE_TOKEN_FILE")};
    struct aq_arguments rest;
    struct aq_job *job = NULL;
    struct aq_plan *plan = NULL;
    const int code = aq_options_read(&line, argc, argv, &options, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count > 1)
        return aq_options_wrong(line.name, "'%s' is one argument too many: doctor takes one manifest", rest.of[1]);
    if (options.sets.count && rest.count == 0) return aq_options_wrong(line.name, "--set needs a manifest");
    struct doctor doctor = {.json = options.json, .token_file = options.token_file};
    if (rest.count) {
        enum aq_status status = aq_job_load(rest.of[0], options.sets.of, options.sets.count, &job);
        if (status == AQ_OK) status = aq_plan_open(job, &plan);
        if (status != AQ_OK) {
            aq_job_close(job);
            return AQ_EXIT_USAGE; /* printed, with its place and remedy */
        }
    }
    aq_log_sink(quiet, NULL);
    doctor_machine(&doctor);
    if (plan) doctor_job(&doctor, job, plan);
    aq_log_sink(NULL, NULL);
    aq_plan_close(plan);
    aq_job_close(job);
    if (!doctor.json)
        aq_out("%u well, %u doubtful, %u bad\n", doctor.counts[DOCTOR_WELL], doctor.counts[DOCTOR_DOUBTFUL],
               doctor.counts[DOCTOR_BAD]);
    return doctor.counts[DOCTOR_BAD] ? AQ_EXIT_FAILED : AQ_EXIT_DONE;
}
