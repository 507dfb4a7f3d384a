/* command_report.c -- `aqpipe report`: figures of one or several runs, as a table, report.json, or a curve for
 * plotting. */
#include <stdio.h>
#include <unistd.h>

#include "commands.h"
#include "options.h"
#include "out.h"
#include "report.h"
#include "split_folder.h"

static int print_curve(const char *folder)
{
    const enum aq_split_role role = aq_split_folder_role(folder);
    if (role != AQ_SPLIT_NO_FOLDER)
        return aq_options_wrong("aqpipe report", "%s is a split job's: %s", folder,
                                role == AQ_SPLIT_OF_SERVER ? "name the run of one client in it, clients/NAME"
                                                           : "its curve is at the server, in clients/NAME");
    return aq_exit_of(aq_report_tsv(folder, stdout));
}

/* Split jobs have tables of their own; the other runs are joined in one. */
static void add_tables(const json_t *runs, struct aq_text *text)
{
    const unsigned columns = aq_text_columns(STDOUT_FILENO);
    json_t *plain = json_array(), *run;
    size_t i;
    json_array_foreach(runs, i, run)
    {
        if (!json_object_get(run, "role"))
            json_array_append(plain, run);
        else
            aq_split_folder_text(run, columns, text);
    }
    if (json_array_size(plain) > 0) aq_report_table(plain, columns, text);
    json_decref(plain);
}

static int show(json_t *runs, const char *output, bool json, bool table)
{
    if (json) {
        json_t *report = json_pack("{s:O}", "runs", runs);
        json_dumpf(report, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
        aq_out_raw("\n");
        json_decref(report);
    } else if (table) {
        struct aq_text text = {0};
        add_tables(runs, &text);
        aq_out_text(aq_text_of(&text));
        aq_text_deinit(&text);
    }
    if (!output) return AQ_EXIT_DONE;
    return aq_report_write(json_incref(runs), output) == AQ_OK ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

struct asked {
    const char *output;
    bool json, table, no_table, tsv;
};

static const struct aq_option options[] = {
    AQ_ROW_MORE(TEXT, struct asked, output, "output", "FILE", "write {\"runs\": [...]} to FILE", .letter = 'o'),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "print the object instead of the table; errors, too"),
    AQ_ROW(FLAG, struct asked, no_table, "no-table", NULL, "print nothing"),
    AQ_ROW(FLAG, struct asked, table, "table", NULL, NULL), /* as it is */
    AQ_ROW(FLAG, struct asked, tsv, "tsv", NULL,
           "the run's curve, tab-separated: step, time, epoch, loss, heldout_loss, sequences_per_second, "
           "link_wait_share"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe report", "RUN...\n--tsv RUN",
    "Computes the figures of run folders from their metrics.jsonl, also of runs that are still running: a list for one "
    "run, a table for several. Of a split-server's folder: rounds, and bytes, loss and epsilon by client; of a "
    "split-client's: its own. Bytes sent are those of bodies as the links carried them; 'packed to' is what packing "
    "(link.entropy) left of them.",
    options, NULL};

int aq_command_report(int argc, char **argv)
{
    struct asked asked = {0};
    struct aq_arguments rest;
    int code = aq_options_read(&line, argc, argv, &asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest.count == 0) return aq_options_wrong(line.name, "name a run folder");
    if (asked.tsv && rest.count != 1) return aq_options_wrong(line.name, "--tsv takes one run folder");
    if (asked.tsv) return print_curve(rest.of[0]);
    json_t *runs = json_array();
    code = AQ_EXIT_DONE;
    for (uint32_t i = 0; i < rest.count && code == AQ_EXIT_DONE; i++) {
        json_t *run;
        const bool split = aq_split_folder_role(rest.of[i]) != AQ_SPLIT_NO_FOLDER;
        code = aq_exit_of(split ? aq_split_folder_report(rest.of[i], &run) : aq_report_run(rest.of[i], &run));
        if (code == AQ_EXIT_DONE) json_array_append_new(runs, run);
    }
    if (code == AQ_EXIT_DONE) code = show(runs, asked.output, asked.json, !asked.no_table);
    json_decref(runs);
    return code;
}
