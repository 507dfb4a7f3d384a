/*
 * split_report.c -- the results of a split-server: report.json and a table, and the model with split.collect.
 *
 * A client's figures come from its own run, clients/NAME/metrics.jsonl: its accuracy is the one after its last turn, on
 * its own held-out samples; others have trained since.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "export.h"
#include "json_text.h"
#include "report.h"
#include "split_private.h"

enum { FIGURE_DECIMALS = 4 };

/* Sums over the clients. */
struct all {
    double bytes, targets, loss;
    double judged, right; /* targets of clients that have an accuracy */
};

/* report[outer][inner], or NaN. */
static double at(const json_t *report, const char *outer, const char *inner)
{
    return aq_control_number_or(outer ? json_object_get(report, outer) : report, inner, NAN);
}

static json_t *client_line(const struct server *server, const struct site *site, struct all *all)
{
    char path[AQ_RUN_PATH_BYTES], metrics[AQ_RUN_PATH_BYTES];
    json_t *run = NULL;
    json_t *line = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "name", site->name, "turns",
                             (json_int_t)site->turns, "missed", (json_int_t)site->missed, "rested",
                             (json_int_t)site->rested, "late", (json_int_t)site->lates, "step",
                             (json_int_t)state_mark(server, site), "samples", (json_int_t)site->samples, "missed_why",
                             site->missed_why[0] ? json_string(site->missed_why) : json_null());
    if (state_path(server, path, "clients/%s", site->name) != AQ_OK ||
        aq_run_path(path, "metrics.jsonl", metrics) != AQ_OK || access(metrics, R_OK) != 0 ||
        aq_report_run(path, &run) != AQ_OK) {
        aq_error_clear(); /* it has had no turn yet */
        return line;
    }
    /* Of all its turns, a mean over the cuts times these: the stages' reports at their end cover only the last one.
     * With global sampling gradients cross, too: a mean over the stages. */
    const json_t *step = json_object_get(run, "bytes_per_step");
    const double each = at(step, NULL, "forward_wire") + at(step, NULL, "backward_wire");
    const double stages = at(run, NULL, "stages"), gradients = at(step, NULL, "gradient_wire");
    const double bytes = at(run, NULL, "steps") * (each * (stages - 1) + (gradients > 0 ? gradients * stages : 0)),
                 known = at(run, "heldout", "targets");
    /* With split.pad the number of targets may be the client's secret: then by samples, as averages of weights are. */
    const double targets = isfinite(known) ? known : (double)site->samples;
    const double loss = at(run, "heldout", "loss"), accuracy = at(run, "heldout", "accuracy");
    if (isfinite(bytes)) all->bytes += bytes;
    if (targets > 0 && isfinite(loss)) {
        all->targets += targets;
        all->loss += targets * loss;
    }
    if (targets > 0 && isfinite(accuracy)) {
        all->judged += targets;
        all->right += targets * accuracy;
    }
    json_object_set_new(line, "seconds", aq_control_number(at(run, NULL, "seconds")));
    json_object_set_new(line, "sent_bytes", aq_control_number(bytes));
    static const char *const kept[] = {"bytes_per_step", "bytes_per_step_cold", "bytes_per_step_warm", "train_loss",
                                       "heldout"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set(line, kept[i], json_object_get(run, kept[i]));
    json_decref(run);
    return line;
}

json_t *report_client(const struct server *server, const struct site *site)
{
    struct all all = {0};
    return client_line(server, site, &all);
}

/* The agreed limits of the data that leaves a client; null: nothing is clipped. */
static json_t *privacy_line(const struct aq_job_privacy *privacy)
{
    if (!(privacy->clip > 0) && !(privacy->gradient_clip > 0) && !(privacy->distance_correlation > 0))
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "clip", (double)privacy->clip, "noise", (double)privacy->noise,
                     "gradient_clip", (double)privacy->gradient_clip, "gradient_noise", (double)privacy->gradient_noise,
                     "distance_correlation", (double)privacy->distance_correlation);
}

/* Whose the statistics of batch norms were; null: the model has none to speak of. */
static json_t *statistics_line(const struct server *server)
{
    static const char *const names[] = {
        [AQ_SPLIT_AVERAGED] = "averaged", [AQ_SPLIT_LOCAL] = "local", [AQ_SPLIT_GROUP] = "group"};
    const struct aq_job *job = server->job;
    const bool none =
        job->split.statistics == AQ_SPLIT_AVERAGED && !aq_model_keeps_statistics(&job->model.config, job->train.T);
    return none ? json_null() : json_string(names[job->split.statistics]);
}

static json_t *make(const struct server *server)
{
    struct all all = {0};
    json_t *clients = json_array();
    for (uint32_t i = 0; i < server->site_count; i++)
        json_array_append_new(clients, client_line(server, &server->sites[i], &all));
    const uint32_t rounds = server->job->split.rounds;
    const uint32_t had = server->round == 0 ? 0 : server->round - 1;
    return json_pack("{s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o}", "job", server->job->name, "mode",
                     state_mode(server), "statistics", statistics_line(server), "labels",
                     server->job->split.labels == AQ_SPLIT_LABELS_SERVER ? "server" : "client", "rounds",
                     (json_int_t)(had < rounds ? had : rounds), "rounds_planned", (json_int_t)rounds, "epochs_a_turn",
                     (json_int_t)server->job->split.epochs, "sent_bytes", all.bytes, "loss",
                     aq_control_number(all.targets > 0 ? all.loss / all.targets : NAN), "accuracy",
                     aq_control_number(all.judged > 0 ? all.right / all.judged : NAN), "privacy",
                     privacy_line(&server->job->split.privacy), "clients", clients);
}

static void say_table(const struct server *server, const json_t *report)
{
    char size[AQ_TEXT_NUMBER], loss[AQ_TEXT_NUMBER], accuracy[AQ_TEXT_NUMBER];
    const json_t *clients = json_object_get(report, "clients");
    for (size_t i = 0; i < json_array_size(clients); i++) {
        const json_t *line = json_array_get(clients, i);
        const double bytes = at(line, NULL, "sent_bytes");
        server_say(server, "%s: %llu turns, %llu missed, %llu rested, late %llu times; %s sent; loss %s, accuracy %s",
                   aq_control_text_or(line, "name", "?"), (unsigned long long)aq_control_u64_or(line, "turns", 0),
                   (unsigned long long)aq_control_u64_or(line, "missed", 0),
                   (unsigned long long)aq_control_u64_or(line, "rested", 0),
                   (unsigned long long)aq_control_u64_or(line, "late", 0),
                   aq_text_size(bytes > 0 ? (uint64_t)bytes : 0, size),
                   aq_text_figure(at(line, "heldout", "loss"), FIGURE_DECIMALS, loss),
                   aq_text_figure(at(line, "heldout", "accuracy"), FIGURE_DECIMALS, accuracy));
    }
    const double bytes = at(report, NULL, "sent_bytes");
    server_say(server, "in all, %llu of %llu rounds: %s sent; loss %s, accuracy %s",
               (unsigned long long)aq_control_u64_or(report, "rounds", 0),
               (unsigned long long)aq_control_u64_or(report, "rounds_planned", 0), aq_text_size((uint64_t)bytes, size),
               aq_text_figure(at(report, NULL, "loss"), FIGURE_DECIMALS, loss),
               aq_text_figure(at(report, NULL, "accuracy"), FIGURE_DECIMALS, accuracy));
}

enum aq_status report_leave(const struct server *server)
{
    char path[AQ_RUN_PATH_BYTES];
    json_t *report = make(server);
    if (!report) return aq_fail(AQ_NOMEM, "split", "no memory for the report");
    say_table(server, report);
    const enum aq_status status = state_path(server, path, "report.json");
    if (status == AQ_OK) return aq_json_replace(path, report, JSON_INDENT(1));
    json_decref(report);
    return status;
}

static enum aq_status model_of(const struct server *server, const struct aq_plan *plan)
{
    char weights[AQ_RUN_PATH_BYTES];
    AQ_TRY(state_path(server, weights, "weights"));
    const struct aq_export export = {.plan = plan,
                                     .checkpoint = weights,
                                     .step = (uint64_t)server->weights,
                                     .folder = server->job->output.path,
                                     .run = server->job->output.path,
                                     .type = "F32",
                                     .file_bytes_max = AQ_EXPORT_FILE_BYTES};
    AQ_TRY(aq_export_description(&export));
    return aq_export_weights(&export);
}

enum aq_status model_leave(const struct server *server)
{
    struct aq_split_job again;
    const struct aq_plan *plan;
    if (!server->job->split.collect || server->weights == SPLIT_WEIGHTS_NONE) return AQ_OK;
    enum aq_status status = round_plan(server, &again, &plan);
    if (status == AQ_OK && plan) status = model_of(server, plan);
    aq_split_job_close(&again);
    return status;
}
