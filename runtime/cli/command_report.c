/* command_report.c -- `aqpipe report`: figures of one or several runs, as a table, report.json, or a curve for
 * plotting. */
#include <getopt.h>
#include <stdio.h>

#include "commands.h"
#include "report.h"

static const char usage[] =
    "usage: aqpipe report RUN... [-o report.json] [--json] [--no-table]\n"
    "       aqpipe report --tsv RUN\n"
    "\n"
    "Computes the figures of run folders from their metrics.jsonl, also of runs that are still going on. Bytes sent\n"
    "are those of bodies as the links carried them; 'packed to' is what packing (link.entropy) left of them.\n"
    "\n"
    "  -o FILE      write {\"runs\": [...]} there\n"
    "  --json       write it to standard output instead of the table\n"
    "  --no-table   print no table\n"
    "  --tsv        the run's curve, tab-separated: step, time, epoch, loss, heldout_loss, sequences_per_second,\n"
    "               link_wait_share\n";

static int print_curve(const char *folder)
{
    return aq_report_tsv(folder, stdout) == AQ_OK ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

static int show(json_t *runs, const char *output, bool json, bool table)
{
    if (json) {
        json_t *report = json_pack("{s:O}", "runs", runs);
        json_dumpf(report, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(report);
    } else if (table) {
        struct aq_text text = {0};
        aq_report_table(runs, &text);
        fputs(aq_text_of(&text), stdout);
        aq_text_deinit(&text);
    }
    if (!output) return AQ_EXIT_DONE;
    return aq_report_write(json_incref(runs), output) == AQ_OK ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

int aq_command_report(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"table", no_argument, NULL, 'T'},
                                            {"no-table", no_argument, NULL, 'n'},
                                            {"tsv", no_argument, NULL, 't'},
                                            {"output", required_argument, NULL, 'o'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *output = NULL;
    bool json = false, table = true, tsv = false;
    for (int option; (option = getopt_long(argc, argv, "o:", options, NULL)) != -1;) {
        switch (option) {
        case 'j':
            json = true;
            break;
        case 'T':
            table = true;
            break;
        case 'n':
            table = false;
            break;
        case 't':
            tsv = true;
            break;
        case 'o':
            output = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            return AQ_EXIT_DONE;
        default:
            return aq_usage("report", "the options are wrong");
        }
    }
    if (optind == argc) return aq_usage("report", "which run folder?");
    if (tsv && optind + 1 != argc) return aq_usage("report", "--tsv takes one run folder");
    if (tsv) return print_curve(argv[optind]);
    json_t *runs = json_array();
    int code = AQ_EXIT_DONE;
    for (int i = optind; i < argc && code == AQ_EXIT_DONE; i++) {
        json_t *run;
        if (aq_report_run(argv[i], &run) != AQ_OK)
            code = AQ_EXIT_FAILED;
        else
            json_array_append_new(runs, run);
    }
    if (code == AQ_EXIT_DONE) code = show(runs, output, json, table);
    json_decref(runs);
    return code;
}
