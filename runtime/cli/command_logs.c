/*
 * command_logs.c -- logs: of a run folder, of a split job's folder, or of a daemon anywhere.
 *
 * Nothing here disturbs a run: its files are only read.
 */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/base/file.h"
#include "command_asked.h"
#include "commands.h"
#include "control.h"
#include "job.h"
#include "net/tls.h"
#include "out.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "split_folder.h"

enum { LOG_BYTES = 16384, LOG_BYTES_MAX = 64 << 20, FOLLOW_MS = 250 };

static const struct aq_option logs_options[] = {
    AQ_ASKED_OPTIONS,
    AQ_ROW_MORE(FLAG, struct aq_asked, follow, "follow", NULL, "print what is added until the run ends", .letter = 'f'),
    AQ_ROW_MORE(U32, struct aq_asked, lines, "lines", "N", "the last N lines of each stage; default: its last 16 KiB",
                .min = 1, .max = 1e6, .letter = 'n'),
    {0}};

static const struct aq_command_line logs_line = {
    "aqpipe logs", "RUN [STAGE]\n--daemon HOST:PORT STAGE",
    "Prints the end of a stage's log; of all stages without STAGE. Of a split-server: those of all clients' "
    "turns.",
    logs_options, NULL};

/* {"stage": 1, "text": "..."}; else the text, under a head where there are several. stage: -1: the launcher's. */
static void show_log(const struct aq_asked *asked, int64_t stage, const char *path, const char *text, size_t count)
{
    if (!asked->json) {
        if (path && (asked->client || !asked->has_rank)) aq_out("==> %s <==\n", path);
        aq_out_bytes(text, count); /* what a worker wrote may come from its peers */
        return;
    }
    json_t *words = json_stringn(text, count);
    struct aq_text shown = {0};
    for (size_t i = 0; !words && i < count; i++) /* no UTF-8: logs are printable, so this is a cut character */
        aq_text_bytes(&shown, (unsigned char)text[i] < 0x80 && text[i] ? &text[i] : "?", 1);
    if (!words) words = json_string(aq_text_of(&shown));
    aq_asked_print(json_pack("{s:s*, s:o, s:o}", "client", asked->client, "stage",
                             stage < 0 ? json_null() : json_integer(stage), "text", words));
    aq_text_deinit(&shown);
}

/* Start of the last `lines` lines, or of the last LOG_BYTES with 0 lines: always the start of a line. */
static size_t tail_begin(const char *text, size_t count, uint32_t lines)
{
    size_t at = count;
    if (lines > 0) {
        if (at > 0 && text[at - 1] == '\n') at--;
        for (; at > 0 && (text[at - 1] != '\n' || --lines > 0); at--)
            ;
        return at;
    }
    at = count > LOG_BYTES ? count - LOG_BYTES : 0;
    while (at > 0 && at < count && text[at - 1] != '\n')
        at++;
    return at;
}

static int daemon_logs(const struct aq_asked *asked)
{
    json_t *answer;
    if (!asked->has_rank) return aq_options_wrong(logs_line.name, "--daemon needs a stage");
    if (asked->follow) return aq_options_wrong(logs_line.name, "--follow needs a run folder");
    json_t *question = json_pack("{s:s, s:I, s:i}", "op", "logs", "rank", (json_int_t)asked->rank, "bytes", LOG_BYTES);
    if (aq_asked_daemon(asked, question, "logs", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    const char *text = aq_control_text_or(answer, "text", "");
    const size_t begin = asked->lines ? tail_begin(text, strlen(text), asked->lines) : 0;
    show_log(asked, asked->rank, NULL, text + begin, strlen(text + begin));
    json_decref(answer);
    return AQ_EXIT_DONE;
}

static enum aq_status log_path(const struct aq_asked *asked, uint32_t rank, char path[AQ_RUN_PATH_BYTES])
{
    char name[48];
    snprintf(name, sizeof name, "logs/stage-%u.log", rank);
    return aq_run_path(asked->folder, name, path);
}

/* Shows the end of one log; *seen: how much of the file that was. False: there is none. */
static bool file_log(const struct aq_asked *asked, int64_t stage, const char *path, uint64_t *seen)
{
    char *text;
    size_t count;
    if (aq_file_load(NULL, path, LOG_BYTES_MAX, &text, &count) != AQ_OK) return false;
    const size_t begin = tail_begin(text, count, asked->lines);
    if (stage >= 0 || count > 0) show_log(asked, stage, path, text + begin, count - begin); /* launchers rarely write */
    aq_free(text);
    *seen = count;
    return stage >= 0 || count > 0;
}

/* Of a run: how many logs it has. */
static uint32_t run_logs(const struct aq_asked *asked, uint64_t *seen)
{
    char path[AQ_RUN_PATH_BYTES];
    uint32_t logs = 0;
    for (uint32_t rank = asked->rank; asked->has_rank ? rank == asked->rank : rank < AQ_JOB_RANKS_MAX; rank++)
        logs += log_path(asked, rank, path) == AQ_OK && file_log(asked, rank, path, &seen[rank]);
    return logs;
}

/* Of a split-server: of each client what the launcher of its turns wrote, and the stage here. */
static uint32_t client_logs(struct aq_asked one, const char *client, uint64_t *seen)
{
    char path[AQ_RUN_PATH_BYTES], run[AQ_RUN_PATH_BYTES], name[AQ_RUN_PATH_BYTES];
    if (!aq_tls_host_good(client)) return 0;
    snprintf(name, sizeof name, "logs/%s.log", client);
    if (aq_run_path(one.folder, name, path) != AQ_OK) return 0;
    snprintf(name, sizeof name, "clients/%s", client);
    if (aq_run_path(one.folder, name, run) != AQ_OK) return 0;
    one.client = client;
    one.folder = run;
    return (!one.has_rank && file_log(&one, -1, path, seen)) + run_logs(&one, seen);
}

static uint32_t server_logs(const struct aq_asked *asked, uint64_t *seen)
{
    char path[AQ_RUN_PATH_BYTES];
    struct dirent **names;
    uint32_t logs = 0;
    const int count = aq_run_path(asked->folder, "clients", path) == AQ_OK ? scandir(path, &names, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        logs += client_logs(*asked, names[i]->d_name, seen);
        (free)(names[i]); /* scandir's own memory */
    }
    if (count > 0) (free)(names);
    return logs;
}

/* Prints the bytes after *seen. A log that became shorter was rotated: it is shown from its start. */
static void follow_log(const struct aq_asked *asked, uint32_t rank, uint64_t *seen, uint32_t *last)
{
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    struct stat about;
    if (log_path(asked, rank, path) != AQ_OK || stat(path, &about) != 0 || (uint64_t)about.st_size == *seen) return;
    if (aq_file_load(NULL, path, LOG_BYTES_MAX, &text, &count) != AQ_OK) return;
    const size_t begin = count > *seen ? (size_t)*seen : 0;
    show_log(asked, rank, *last == rank ? NULL : path, text + begin, count - begin);
    fflush(stdout);
    *last = rank;
    *seen = count;
    aq_free(text);
}

static void follow(const struct aq_asked *asked, const char *locked, uint64_t *seen)
{
    uint32_t last = UINT32_MAX;
    for (bool active = true; active;) {
        active = aq_run_holder(locked) > 0; /* asked before the look, so that the last lines are shown, too */
        for (uint32_t rank = asked->rank; asked->has_rank ? rank == asked->rank : rank < AQ_JOB_RANKS_MAX; rank++)
            follow_log(asked, rank, &seen[rank], &last);
        if (active) poll(NULL, 0, FOLLOW_MS);
    }
}

int aq_command_logs(int argc, char **argv)
{
    static uint64_t seen[AQ_JOB_RANKS_MAX];
    char run[AQ_RUN_PATH_BYTES];
    struct aq_asked asked;
    const int code = aq_asked_read(&asked, &logs_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.daemon) return daemon_logs(&asked);
    if (asked.has_rank && asked.rank >= AQ_JOB_RANKS_MAX)
        return aq_options_wrong(logs_line.name, "stages are 0 to %d", AQ_JOB_RANKS_MAX - 1);
    const char *const locked = asked.folder;
    const enum aq_split_role role = aq_split_folder_role(locked);
    if (role == AQ_SPLIT_OF_SERVER && asked.follow)
        return aq_options_wrong(logs_line.name, "--follow needs one client's run: %s/clients/NAME", locked);
    if (role == AQ_SPLIT_OF_CLIENT && aq_run_path(locked, "run", run) == AQ_OK) asked.folder = run;
    const uint32_t logs = role == AQ_SPLIT_OF_SERVER ? server_logs(&asked, seen) : run_logs(&asked, seen);
    fflush(stdout);
    if (asked.follow && aq_run_holder(locked) > 0) {
        follow(&asked, locked, seen);
        return AQ_EXIT_DONE;
    }
    if (logs > 0) return AQ_EXIT_DONE;
    if (role == AQ_SPLIT_OF_SERVER)
        (void)aq_command_failed("%s has no log%s of a client's turn", locked, asked.has_rank ? " of that stage" : "");
    else if (access(asked.folder, F_OK) != 0)
        (void)aq_command_failed("%s: there is no such folder", asked.folder);
    else if (asked.has_rank)
        (void)aq_command_failed("there is no log of stage %u in %s/logs on this machine", asked.rank, asked.folder);
    else
        (void)aq_command_failed("there is no log in %s/logs", asked.folder);
    return AQ_EXIT_USAGE;
}
