/*
 * split_folder.c -- the figures of a split job, from its folder; the header has the map.
 *
 * A client's figures come from its own run, clients/NAME/metrics.jsonl: its accuracy is the one after its last turn, on
 * its own held-out samples; others have trained since.
 */
#include "split_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "heldout.h"
#include "net/tls.h"
#include "report.h"
#include "run_folder.h"
#include "table.h"

static const char *const AREA = "split";

enum { FILE_BYTES_MAX = 1 << 20, FIGURE_DECIMALS = 4, CELLS = 10 };

static const char *const files[] = {[AQ_SPLIT_OF_SERVER] = "split.json", [AQ_SPLIT_OF_CLIENT] = "client.json"};

/* Sums over the clients. */
struct all {
    double bytes, targets, loss;
    double judged, right; /* targets of clients that have an accuracy */
};

static json_t *copy(const json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    return value ? json_incref(value) : json_null();
}

enum aq_split_role aq_split_folder_role(const char *folder)
{
    char path[AQ_RUN_PATH_BYTES];
    for (enum aq_split_role role = AQ_SPLIT_OF_SERVER; role <= AQ_SPLIT_OF_CLIENT; role++)
        if (aq_run_path(folder, files[role], path) == AQ_OK && access(path, F_OK) == 0) return role;
    return AQ_SPLIT_NO_FOLDER;
}

/* A file of the folder that is one object. AQ_NOTFOUND: not logged. */
static enum aq_status load(const char *folder, const char *name, json_t **out)
{
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    AQ_TRY(aq_run_path(folder, name, path));
    AQ_TRY(aq_file_load(NULL, path, FILE_BYTES_MAX, &text, &count));
    *out = json_loadb(text, count, 0, NULL);
    aq_free(text);
    if (json_is_object(*out)) return AQ_OK;
    json_decref(*out);
    return aq_fail(AQ_CORRUPT, AREA, "%s is damaged: it is no JSON object", path);
}

enum aq_status aq_split_folder_check(const char *folder, enum aq_split_role role, const char *job, const char *client)
{
    const enum aq_split_role found = aq_split_folder_role(folder);
    json_t *state = NULL;
    if (found == AQ_SPLIT_NO_FOLDER) return AQ_OK;
    if (found != role)
        return aq_fail(AQ_INVAL, AREA, "%s is the folder of a split-%s (%s): name another output.path", folder,
                       found == AQ_SPLIT_OF_SERVER ? "server" : "client", files[found]);
    if (load(folder, files[role], &state) != AQ_OK) {
        aq_error_clear(); /* who needs what is in it says so */
        return AQ_OK;
    }
    const char *const whose = aq_control_text_or(state, "job", job);
    const char *const who = aq_control_text_or(state, "client", client ? client : "");
    /* A client that no server has accepted yet has nothing of a job: its manifest may be corrected. */
    const bool begun = role == AQ_SPLIT_OF_SERVER || aq_control_u64_or(state, "round", 0) > 0;
    enum aq_status status = AQ_OK;
    if (!begun)
        ;
    else if (strcmp(whose, job) != 0)
        status = aq_fail(AQ_INVAL, AREA,
                         "%s is the folder of job '%.80s', and this is job '%.80s': name another output.path", folder,
                         whose, job);
    else if (client && strcmp(who, client) != 0)
        status = aq_fail(AQ_INVAL, AREA,
                         "%s is the folder of client '%.80s', and this is client '%.80s': name another output.path",
                         folder, who, client);
    json_decref(state);
    return status;
}

/* ---- a server's ---- */

/* Of all its turns, a mean over the cuts times these: the stages' reports at their end cover only the last one. With
 * global sampling gradients cross, too: a mean over the stages. */
static double bytes_of(const json_t *run)
{
    const json_t *step = json_object_get(run, "bytes_per_step");
    const double each =
        aq_control_number_or(step, "forward_wire", NAN) + aq_control_number_or(step, "backward_wire", NAN);
    const double stages = aq_control_number_or(run, "stages", NAN),
                 gradients = aq_control_number_or(step, "gradient_wire", NAN);
    return aq_control_number_or(run, "steps", NAN) * (each * (stages - 1) + (gradients > 0 ? gradients * stages : 0));
}

static void add_to(struct all *all, const json_t *run, double samples, double bytes)
{
    const double known = aq_control_number_in(run, "heldout", "targets");
    /* With split.pad the number of targets may be the client's secret: then by samples, as averages of weights are. */
    const double targets = isfinite(known) ? known : samples;
    const double loss = aq_control_number_in(run, "heldout", "loss"),
                 accuracy = aq_control_number_in(run, "heldout", "accuracy");
    if (isfinite(bytes)) all->bytes += bytes;
    if (targets > 0 && isfinite(loss)) {
        all->targets += targets;
        all->loss += targets * loss;
    }
    if (targets > 0 && isfinite(accuracy)) {
        all->judged += targets;
        all->right += targets * accuracy;
    }
}

/* The client's run: its newest checkpoint, and its report; *run is NULL: it has had no turn yet. */
static uint64_t run_of(const char *folder, const char *name, json_t **run)
{
    char part[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES], inner[AQ_RUN_PATH_BYTES];
    static struct aq_run_mark mark;
    uint64_t step = 0;
    *run = NULL;
    if (snprintf(part, sizeof part, "clients/%s", name) >= (int)sizeof part ||
        aq_run_path(folder, part, path) != AQ_OK || aq_run_path(path, "checkpoint", inner) != AQ_OK)
        return 0;
    struct aq_error_hold hold; /* a run without a step is no failure */
    aq_error_hold(&hold);
    if (aq_run_mark_read(inner, &mark) == AQ_OK) step = mark.step;
    if (aq_run_path(path, "metrics.jsonl", inner) == AQ_OK && access(inner, R_OK) == 0 &&
        aq_report_run(path, run) != AQ_OK)
        *run = NULL;
    aq_error_release(&hold);
    return step;
}

/* site: its line of split.json. NULL: its name is none. */
static json_t *client_line(const char *folder, const json_t *site, struct all *all)
{
    static const char *const counts[] = {"turns", "missed", "rested", "late", "samples"};
    static const char *const kept[] = {"bytes_per_step", "bytes_per_step_cold", "bytes_per_step_warm", "train_loss",
                                       "heldout"};
    const char *name = aq_control_text_or(site, "name", ""), *why = aq_control_text_or(site, "why", "");
    json_t *run;
    if (!aq_tls_host_good(name)) return NULL; /* also a path */
    const uint64_t step = run_of(folder, name, &run);
    json_t *line = json_pack("{s:s, s:I, s:o, s:o, s:o}", "name", name, "step", (json_int_t)step, "missed_why",
                             why[0] ? json_string(why) : json_null(), "epsilon", copy(site, "epsilon"), "delta",
                             copy(site, "delta"));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(line, counts[i], json_integer((json_int_t)aq_control_u64_or(site, counts[i], 0)));
    if (!run) return line;
    const double bytes = bytes_of(run);
    add_to(all, run, aq_control_number_or(site, "samples", NAN), bytes);
    json_object_set_new(line, "seconds", aq_control_number(aq_control_number_or(run, "seconds", NAN)));
    json_object_set_new(line, "sent_bytes", aq_control_number(bytes));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set(line, kept[i], json_object_get(run, kept[i]));
    json_decref(run);
    return line;
}

json_t *aq_split_folder_client(const char *folder, const json_t *site)
{
    struct all all = {0};
    return client_line(folder, site, &all);
}

static json_t *of_server(const char *folder, const json_t *state)
{
    static const char *const planned[] = {"statistics", "labels", "epochs_a_turn", "privacy"};
    struct all all = {0};
    const json_t *plan = json_object_get(state, "planned"), *site; /* older versions wrote none */
    const uint64_t round = aq_control_u64_or(state, "round", 0), rounds = aq_control_u64_or(plan, "rounds", 0);
    const uint64_t had = round > 0 ? round - 1 : 0;
    json_t *clients = json_array();
    size_t i;
    json_array_foreach(json_object_get(state, "clients"), i, site)
    {
        json_t *line = client_line(folder, site, &all);
        if (line) json_array_append_new(clients, line);
    }
    json_t *report = json_pack(
        "{s:s, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "role", "split-server", "job", copy(state, "job"), "mode",
        copy(state, "mode"), "round", (json_int_t)(rounds > 0 && round > rounds ? rounds : round), "rounds",
        (json_int_t)(rounds > 0 && had > rounds ? rounds : had), "rounds_planned", copy(plan, "rounds"), "sent_bytes",
        aq_control_number(all.bytes), "loss", aq_control_number(all.targets > 0 ? all.loss / all.targets : NAN),
        "accuracy", aq_control_number(all.judged > 0 ? all.right / all.judged : NAN), "clients", clients);
    for (size_t p = 0; p < sizeof planned / sizeof *planned; p++)
        json_object_set_new(report, planned[p], copy(plan, planned[p]));
    return report;
}

/* ---- both ---- */

static void add_privacy(const char *folder, json_t *report)
{
    static const char *const kept[] = {"epsilon", "delta", "epsilon_max", "visits", "of"};
    json_t *privacy;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set_new(report, kept[i], json_null());
    if (load(folder, "privacy.json", &privacy) != AQ_OK) {
        aq_error_clear(); /* it has no noise, or the client says what is wrong with the file */
        return;
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set_new(report, kept[i], copy(privacy, kept[i]));
    json_decref(privacy);
}

enum aq_status aq_split_folder_report(const char *folder, json_t **out)
{
    const enum aq_split_role role = aq_split_folder_role(folder);
    json_t *state, *named = json_string(folder);
    *out = NULL;
    if (role == AQ_SPLIT_NO_FOLDER) {
        json_decref(named);
        return aq_fail(AQ_NOTFOUND, AREA, "%s is no folder of a split-server or a split-client", folder);
    }
    const enum aq_status status = load(folder, files[role], &state);
    if (status != AQ_OK) {
        json_decref(named);
        return status;
    }
    json_t *report = role == AQ_SPLIT_OF_SERVER ? of_server(folder, state) : json_incref(state);
    if (!report) {
        json_decref(named);
        json_decref(state);
        return aq_fail(AQ_NOMEM, AREA, "no memory for the report of %s", folder);
    }
    json_object_set_new(report, "folder", named ? named : json_null()); /* a name that is no UTF-8 */
    if (role == AQ_SPLIT_OF_CLIENT) {
        json_object_set_new(report, "role", json_string("split-client"));
        add_privacy(folder, report);
    }
    json_decref(state);
    *out = report;
    return AQ_OK;
}

/* The client's line of the server's present state, or NULL. */
static const json_t *told_of(const json_t *present, const char *name)
{
    const json_t *told;
    size_t i;
    json_array_foreach(json_object_get(present, "clients"), i, told)
    {
        if (aq_control_is(told, "name", name)) return told;
    }
    return NULL;
}

/* What each client does now; without a live server only what is on disk is known. */
static void add_present(json_t *report, const json_t *present)
{
    static const char *const kept[] = {"does", "here", "trains", "awaited"};
    json_t *client;
    size_t i;
    json_array_foreach(json_object_get(report, "clients"), i, client)
    {
        const json_t *told = told_of(present, aq_control_text_or(client, "name", ""));
        for (size_t k = 0; k < sizeof kept / sizeof *kept; k++)
            json_object_set_new(client, kept[k], copy(told, kept[k]));
    }
}

enum aq_status aq_split_folder_status(const char *folder, json_t **out)
{
    json_t *present = NULL;
    AQ_TRY(aq_split_folder_report(folder, out));
    const pid_t pid = aq_run_holder(folder);
    const bool server = aq_control_is(*out, "role", "split-server");
    if (server && load(folder, "status.json", &present) != AQ_OK) {
        aq_error_clear(); /* an older version, or the server has just begun */
        present = NULL;
    }
    const json_t *from = server ? present : *out;
    const char *was = aq_control_text_or(from, "state", pid > 0 ? "running" : "interrupted");
    const bool ended = strcmp(was, "done") == 0 || strcmp(was, "stopped") == 0 || strcmp(was, "failed") == 0 ||
                       strcmp(was, "epsilon") == 0;
    /* A process that was killed has left the state in which it was; one that has just begun that of the one before. */
    json_t *state = json_string(pid > 0 ? (ended ? "starting" : was) : ended ? was : "interrupted");
    json_t *waits = pid > 0 ? copy(from, "waits_for") : json_null(),
           *cause = pid > 0 ? json_null() : copy(from, "cause");
    if (server && pid > 0) add_present(*out, present);
    json_object_set_new(*out, "state", state);
    json_object_set_new(*out, "pid", json_integer(pid));
    json_object_set_new(*out, "waits_for", waits);
    json_object_set_new(*out, "cause", cause);
    json_decref(present);
    return AQ_OK;
}

/* ---- for people ---- */

static const char *metric_of(const json_t *heldout, char out[AQ_TABLE_CELL_BYTES])
{
    char figure[AQ_TEXT_NUMBER];
    const char *metric;
    double value;
    bool higher;
    if (!heldout || !aq_heldout_metric(heldout, &metric, &value, &higher)) return "-";
    snprintf(out, AQ_TABLE_CELL_BYTES, "%s %s", metric, aq_text_figure(value, FIGURE_DECIMALS, figure));
    return out;
}

static void clients_text(const json_t *figures, bool live, unsigned columns, struct aq_text *text)
{
    static const char *const heads[CELLS] = {"client", "does",          "turns",           "missed",  "late",
                                             "sent",   "held-out loss", "held-out metric", "epsilon", "samples"};
    char metric[AQ_TABLE_CELL_BYTES];
    const json_t *clients = json_object_get(figures, "clients"), *line;
    struct aq_table table = {.columns = CELLS - !live, .left = live ? 3 : 1, .keys = 1};
    size_t i;
    if (json_array_size(clients) == 0) return;
    for (size_t c = 0; c < CELLS; c++)
        if (c != 1 || live) aq_table_cell(&table, "%s", heads[c]);
    json_array_foreach(clients, i, line)
    {
        aq_table_cell(&table, "%s", aq_control_text_or(line, "name", "?"));
        if (live) aq_table_cell(&table, "%s", aq_control_text_or(line, "does", "is away"));
        for (size_t c = 2; c < 5; c++)
            aq_table_figure(&table, aq_control_number_or(line, heads[c], NAN), 0, "");
        aq_table_size(&table, aq_control_number_or(line, "sent_bytes", NAN));
        aq_table_figure(&table, aq_control_number_in(line, "heldout", "loss"), FIGURE_DECIMALS, "");
        aq_table_cell(&table, "%s", metric_of(json_object_get(line, "heldout"), metric));
        aq_table_figure(&table, aq_control_number_or(line, "epsilon", NAN), FIGURE_DECIMALS, "");
        aq_table_figure(&table, aq_control_number_or(line, "samples", NAN), 0, "");
    }
    aq_table_print(&table, columns, text);
    aq_table_deinit(&table);
}

static void epsilon_text(const json_t *figures, struct aq_text *text)
{
    char most[48] = "";
    if (!isfinite(aq_control_number_or(figures, "epsilon", NAN))) return;
    if (isfinite(aq_control_number_or(figures, "epsilon_max", NAN)))
        snprintf(most, sizeof most, " of at most %g", aq_control_number_or(figures, "epsilon_max", NAN));
    aq_text_add(text, "epsilon %.4g%s, delta %g: %llu visits of %s\n", aq_control_number_or(figures, "epsilon", NAN),
                most, aq_control_number_or(figures, "delta", NAN),
                (unsigned long long)aq_control_u64_or(figures, "visits", 0),
                aq_control_text_or(figures, "of", "a sample"));
}

static void figures_text(const json_t *figures, struct aq_text *text)
{
    char size[AQ_TEXT_NUMBER], loss[AQ_TEXT_NUMBER], metric[AQ_TABLE_CELL_BYTES];
    const double bytes = aq_control_number_or(figures, "sent_bytes", NAN),
                 accuracy = aq_control_number_or(figures, "accuracy", NAN);
    const json_t *heldout = json_object_get(figures, "heldout");
    const double held =
        heldout ? aq_control_number_or(heldout, "loss", NAN) : aq_control_number_or(figures, "loss", NAN);
    aq_text_add(text, "%s sent; held-out loss %s",
                bytes >= 0 && bytes < 1e18 ? aq_text_size((uint64_t)bytes, size) : "-",
                aq_text_figure(held, FIGURE_DECIMALS, loss));
    if (heldout)
        aq_text_add(text, ", %s\n", metric_of(heldout, metric));
    else
        aq_text_add(text, ", accuracy %s\n", aq_text_figure(accuracy, FIGURE_DECIMALS, loss));
}

static void head_text(const json_t *figures, struct aq_text *text)
{
    const bool server = aq_control_is(figures, "role", "split-server");
    const char *state = aq_control_text_or(figures, "state", NULL),
               *waits = aq_control_text_or(figures, "waits_for", ""),
               *cause = aq_control_text_or(figures, "cause", NULL);
    const unsigned long long pid = aq_control_u64_or(figures, "pid", 0);
    aq_text_add(text, "%s: '%s', %s", aq_control_text_or(figures, "folder", "?"),
                aq_control_text_or(figures, "job", "?"), server ? "split-server" : "split-client");
    if (server) aq_text_add(text, " (%s)", aq_control_text_or(figures, "mode", "?"));
    if (!server)
        aq_text_add(text, " %s of %s", aq_control_text_or(figures, "client", "?"),
                    aq_control_text_or(figures, "server", "?"));
    if (state) aq_text_add(text, ", %s", state);
    if (pid > 0) aq_text_add(text, " (pid %llu)", pid);
    aq_text_add(text, "\nround %llu of %llu", (unsigned long long)aq_control_u64_or(figures, "round", 0),
                (unsigned long long)aq_control_u64_or(figures, "rounds_planned", 0));
    if (!server) aq_text_add(text, ", %llu turns", (unsigned long long)aq_control_u64_or(figures, "turns", 0));
    aq_text_add(text, "%s%s\n", waits[0] ? "; " : "", waits);
    if (cause) aq_text_add(text, "%s\n", cause);
}

void aq_split_folder_text(const json_t *figures, unsigned columns, struct aq_text *text)
{
    struct aq_text head = {0};
    head_text(figures, &head);
    figures_text(figures, &head);
    epsilon_text(figures, &head);
    aq_text_fold(text, aq_text_of(&head), columns);
    aq_text_deinit(&head);
    clients_text(figures, json_object_get(figures, "state") && aq_control_u64_or(figures, "pid", 0) > 0, columns, text);
}
