/* command_split.c -- `aqpipe split-server` and `aqpipe split-client` (docs/SPLIT.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "launcher.h"
#include "options.h"
#include "run_folder.h"
#include "split_client.h"
#include "split_server.h"

enum { PATIENCE_S = 600 };

struct asked {
    struct aq_arguments sets;
    const char *port_file, *id, *data, *heldout, *run, *samples;
    char run_set[AQ_RUN_SET_BYTES]; /* output.path=DIR, of --run */
    double patience_s;
    struct aq_progress progress;
};

static const char statuses[] =
    "Exit status: 0 all rounds are over; 1 failed, or no turn of any client was trained; 2 usage or manifest; 3 "
    "stopped by the user: the same command continues.";

static const char client_statuses[] =
    "Exit status: 0 all rounds are over; 1 failed, or no turn of any client was trained; 2 usage or manifest, or a "
    "damaged ledger of visits; 3 stopped by the user: the same command continues; 4 stopped before a turn that would "
    "pass split.privacy.epsilon_max.";

#define COMMON_OPTIONS                                                                                                 \
    AQ_ROW(TEXT, struct asked, run, "run", "DIR", "the run folder (output.path)"),                                     \
        AQ_ROW(LIST, struct asked, sets, "set", "KEY=VALUE", "override a key of the manifest (aqpipe help keys)"),     \
        AQ_ROW(FLAG, struct asked, progress.off, "no-progress", NULL, "print only errors"),                            \
        AQ_ROW(FLAG, struct asked, progress.json, "json", NULL, "print events as JSON, one a line; errors, too")

static const struct aq_option server_options[] = {
    COMMON_OPTIONS,
    AQ_ROW(TEXT, struct asked, port_file, "port-file", "FILE", "write the port there once listening"),
    {0}};

static const struct aq_option client_options[] = {
    AQ_ROW(TEXT, struct asked, data, "data", "PATH", "this client's samples (the same as --set data.train=PATH)"),
    AQ_ROW(TEXT, struct asked, heldout, "heldout", "PATH", "and its held-out ones (data.heldout)"),
    AQ_ROW(TEXT, struct asked, id, "id", "NAME", "its name, as in its certificate site-NAME.pem (aqpipe keys enroll)"),
    AQ_ROW_RANGE(TIME, struct asked, patience_s, "patience", "TIME", 1, 864000,
                 "how long to dial a server that is away, as in 10min, 2h (600)"),
    AQ_ROW(TEXT, struct asked, samples, "samples", "FILE",
           "write the samples there as the job reads them, for tools/split-audit, and end"),
    COMMON_OPTIONS,
    {0}};

static const struct aq_command_line server_line = {
    "aqpipe split-server", "JOB.yaml",
    "Split learning: holds the middle stage of the network and the order of turns, waits for split.clients clients, "
    "and trains split.rounds rounds. In each every client that takes part has one turn of split.epochs epochs; "
    "split.mode decides what a turn starts with, and what the end of a round makes of its turns. Data and labels stay "
    "with the clients. Ctrl-C stops; the same command continues.",
    server_options, statuses};

static const struct aq_command_line client_line = {
    "aqpipe split-client", "JOB.yaml",
    "Split learning: trains the first and the last stage on this client's data, in its turns; the middle is the "
    "server's, which is dialled at split.server. JOB.yaml is the server's; output.path and security.keys may be this "
    "client's own.",
    client_options, client_statuses};

/* The error was printed where it was found. */
static int exit_code(enum aq_status status, enum aq_split_end end)
{
    if (status == AQ_OK) return (int)end;
    return aq_exit_of(status);
}

static int read_line(const struct aq_command_line *line, int argc, char **argv, struct asked *asked,
                     struct aq_arguments *rest, int *signals)
{
    const int code = aq_options_read(line, argc, argv, asked, rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (rest->count != 1) return aq_options_wrong(line->name, "name one manifest");
    if (asked->run) {
        if (asked->sets.count == AQ_ARGUMENTS_MAX)
            return aq_options_wrong(line->name, "more than %d --set and --run", AQ_ARGUMENTS_MAX);
        if (aq_run_set(asked->run, asked->run_set) != AQ_OK) return AQ_EXIT_USAGE;
        asked->sets.of[asked->sets.count++] = asked->run_set;
    }
    aq_progress_begin(&asked->progress);
    if (asked->samples) return AQ_OPTIONS_READ; /* Ctrl-C ends it */
    return aq_launch_signals(signals) == AQ_OK ? AQ_OPTIONS_READ : AQ_EXIT_FAILED;
}

int aq_command_split_server(int argc, char **argv)
{
    static char program[AQ_RUN_PATH_BYTES];
    struct asked asked = {0};
    struct aq_arguments rest;
    enum aq_split_end end = AQ_SPLIT_FAILED;
    int signals = -1;
    const int code = read_line(&server_line, argc, argv, &asked, &rest, &signals);
    if (code != AQ_OPTIONS_READ) return code;
    if (!aq_program_beside("aqpipe", program)) return AQ_EXIT_FAILED;
    const struct aq_split_server_config config = {.manifest = rest.of[0],
                                                  .sets = asked.sets.of,
                                                  .set_count = asked.sets.count,
                                                  .program = program,
                                                  .port_file = asked.port_file,
                                                  .signals = signals,
                                                  .progress = &asked.progress};
    const enum aq_status status = aq_split_serve(&config, &end);
    close(signals);
    return exit_code(status, end);
}

int aq_command_split_client(int argc, char **argv)
{
    static char daemon[AQ_RUN_PATH_BYTES];
    struct asked asked = {.patience_s = PATIENCE_S};
    struct aq_arguments rest;
    enum aq_split_end end = AQ_SPLIT_FAILED;
    int signals = -1;
    const int code = read_line(&client_line, argc, argv, &asked, &rest, &signals);
    if (code != AQ_OPTIONS_READ) return code;
    if (!asked.id)
        return aq_options_wrong(client_line.name, "--id NAME is missing: the name in this client's certificate");
    if (aq_daemon_program(daemon) != AQ_OK) return AQ_EXIT_FAILED;
    const struct aq_split_client_config config = {.manifest = rest.of[0],
                                                  .sets = asked.sets.of,
                                                  .set_count = asked.sets.count,
                                                  .id = asked.id,
                                                  .data = asked.data,
                                                  .heldout = asked.heldout,
                                                  .daemon = daemon,
                                                  .patience_ns = (uint64_t)(asked.patience_s * 1e9),
                                                  .signals = signals,
                                                  .progress = &asked.progress};
    const enum aq_status status =
        asked.samples ? aq_split_samples(&config, asked.samples) : aq_split_follow(&config, &end);
    if (signals != -1) close(signals);
    return asked.samples && status == AQ_OK ? AQ_EXIT_DONE : exit_code(status, end);
}
