/* split_report.c -- the results of a split-server: report.json (split_folder.h) and a table, and the model with
 * split.collect. */
#include <math.h>
#include <stdio.h>

#include "export.h"
#include "json_text.h"
#include "split_folder.h"
#include "split_private.h"

enum { FIGURE_DECIMALS = 4 };

json_t *report_client(const struct server *server, const struct site *site)
{
    json_t *state = state_line(site), *line = aq_split_folder_client(server->job->output.path, state);
    json_decref(state);
    return line;
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

json_t *report_planned(const struct server *server)
{
    const struct aq_job_split *split = &server->job->split;
    return json_pack("{s:I, s:s, s:o, s:I, s:o}", "rounds", (json_int_t)split->rounds, "labels",
                     split->labels == AQ_SPLIT_LABELS_SERVER ? "server" : "client", "statistics",
                     statistics_line(server), "epochs_a_turn", (json_int_t)split->epochs, "privacy",
                     privacy_line(&split->privacy));
}

static void say_table(const struct server *server, const json_t *report)
{
    char size[AQ_TEXT_NUMBER], loss[AQ_TEXT_NUMBER], accuracy[AQ_TEXT_NUMBER], epsilon[96];
    const json_t *clients = json_object_get(report, "clients");
    for (size_t i = 0; i < json_array_size(clients); i++) {
        const json_t *line = json_array_get(clients, i);
        const double bytes = aq_control_number_or(line, "sent_bytes", NAN);
        epsilon[0] = 0;
        if (isfinite(aq_control_number_or(line, "epsilon", NAN)))
            snprintf(epsilon, sizeof epsilon, "; epsilon %.4g, delta %g", aq_control_number_or(line, "epsilon", NAN),
                     aq_control_number_or(line, "delta", NAN));
        server_say(
            server, "%s: %llu turns, %llu missed, %llu rested, late %llu times; %s sent; loss %s, accuracy %s%s",
            aq_control_text_or(line, "name", "?"), (unsigned long long)aq_control_u64_or(line, "turns", 0),
            (unsigned long long)aq_control_u64_or(line, "missed", 0),
            (unsigned long long)aq_control_u64_or(line, "rested", 0),
            (unsigned long long)aq_control_u64_or(line, "late", 0), aq_text_size(bytes > 0 ? (uint64_t)bytes : 0, size),
            aq_text_figure(aq_control_number_in(line, "heldout", "loss"), FIGURE_DECIMALS, loss),
            aq_text_figure(aq_control_number_in(line, "heldout", "accuracy"), FIGURE_DECIMALS, accuracy), epsilon);
    }
    const double bytes = aq_control_number_or(report, "sent_bytes", NAN);
    server_say(server, "in all, %llu of %llu rounds: %s sent; loss %s, accuracy %s",
               (unsigned long long)aq_control_u64_or(report, "rounds", 0),
               (unsigned long long)aq_control_u64_or(report, "rounds_planned", 0), aq_text_size((uint64_t)bytes, size),
               aq_text_figure(aq_control_number_or(report, "loss", NAN), FIGURE_DECIMALS, loss),
               aq_text_figure(aq_control_number_or(report, "accuracy", NAN), FIGURE_DECIMALS, accuracy));
}

enum aq_status report_leave(const struct server *server)
{
    char path[AQ_RUN_PATH_BYTES];
    json_t *report;
    AQ_TRY(aq_split_folder_report(server->job->output.path, &report));
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
