/*
 * command_status.c -- status, top, stop and logs: of a run folder on this machine, or of a daemon anywhere.
 *
 * Nothing here disturbs a run: the folder is only read, and a stop is the same signal that Ctrl-C is.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "control_socket.h"
#include "heldout.h"
#include "job.h"
#include "metrics_index.h"
#include "net/tls.h"
#include "options.h"
#include "progress.h"
#include "run_folder.h"
#include "run_lines.h"
#include "runtime_text.h"

enum { DAEMON_S = 15, STOP_S = 600, LOG_BYTES = 16384, LOG_BYTES_MAX = 64 << 20 };
static const uint64_t second_ns = 1000ULL * 1000 * 1000;

struct asked {
    const char *daemon, *token_file, *keys; /* daemon NULL: a run folder */
    const char *folder;
    uint32_t rank;
    bool has_rank, json, once;
    double seconds;
};

#define OPTIONS_OF_ALL                                                                                                 \
    AQ_ROW(TEXT, struct asked, daemon, "daemon", "HOST:PORT", "ask the aqpiped there"),                                \
        AQ_ROW(TEXT, struct asked, token_file, "token-file", "FILE",                                                   \
               "the secret shared with it (also AQPIPE_TOKEN_FILE)"),                                                  \
        AQ_ROW(TEXT, struct asked, keys, "keys", "DIR",                                                                \
               "authority.pem and launcher.pem of aqpipe keys init (also AQPIPE_KEYS)"),                               \
        AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object")

static const struct aq_option options[] = {OPTIONS_OF_ALL, {0}};

static const struct aq_option top_options[] = {
    OPTIONS_OF_ALL,
    AQ_ROW(FLAG, struct asked, once, "once", NULL, "show once"),
    AQ_ROW_RANGE(NUMBER, struct asked, seconds, "seconds", "S", 0.1, 3600, "refresh every S seconds (1)"),
    {0}};

static const char of_run[] = "RUN\n--daemon HOST:PORT", of_stage[] = "RUN [STAGE]\n--daemon HOST:PORT STAGE";

static const struct aq_command_line
    status_line = {"aqpipe status", of_run, "What a run, or a daemon, is doing.", options, NULL, NULL},
    top_line = {"aqpipe top", of_run, "Where each stage's time goes, refreshed as the run goes on; q or Ctrl-C ends.",
                top_options,  NULL,   NULL},
    stop_line = {"aqpipe stop", of_run, "Stops a run after its current step, with a checkpoint, and waits for its end.",
                 options,       NULL,   NULL},
    logs_line = {"aqpipe logs", of_stage, "The end of what a stage's worker has written; of all stages without STAGE.",
                 options,       NULL,     NULL};

/* AQ_OPTIONS_READ: go on; else the exit status. */
static int parse(struct asked *asked, const struct aq_command_line *line, int argc, char **argv)
{
    struct aq_arguments rest;
    uint32_t used = 0;
    *asked = (struct asked){.token_file = getenv("AQPIPE_TOKEN_FILE"), .keys = getenv("AQPIPE_KEYS"), .seconds = 1};
    const int code = aq_options_read(line, argc, argv, asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (!asked->daemon && rest.count == 0) return aq_options_wrong(line->name, "which run folder?");
    if (!asked->daemon) asked->folder = rest.of[used++];
    if (used < rest.count && line == &logs_line) {
        char *end;
        const char *stage = rest.of[used++];
        const unsigned long rank = strtoul(stage, &end, 10);
        if (*end || end == stage || rank > 9999) return aq_options_wrong(line->name, "'%s' is no stage", stage);
        asked->rank = (uint32_t)rank;
        asked->has_rank = true;
    }
    return used == rest.count ? AQ_OPTIONS_READ : aq_options_wrong(line->name, "'%s' is too much", rest.of[used]);
}

/* ---- of a daemon ---- */

static enum aq_status ask(const struct asked *asked, json_t *question, const char *event, json_t **answer)
{
    struct aq_token token = {0};
    struct aq_tls *tls = NULL;
    struct aq_control *control = NULL;
    enum aq_status status = AQ_OK;
    if (asked->token_file) status = aq_token_load(asked->token_file, &token);
    if (status == AQ_OK && asked->keys) status = aq_tls_open(asked->keys, AQ_TLS_LAUNCHER, 0, &tls);
    const uint64_t deadline = aq_clock_after(DAEMON_S * second_ns);
    if (status == AQ_OK) status = aq_control_meet(asked->daemon, &token, tls, deadline, &control);
    if (status != AQ_OK) {
        aq_tls_close(tls);
        json_decref(question);
        return status;
    }
    status = aq_control_send(control, question);
    if (status == AQ_OK) status = aq_control_receive(control, deadline, answer);
    aq_control_close(control);
    aq_tls_close(tls);
    if (status != AQ_OK) return aq_fail(status, "control", "the daemon at %s gives no answer", asked->daemon);
    if (aq_control_is(*answer, "event", event)) return AQ_OK;
    (void)aq_fail(AQ_REFUSED, "control", "the daemon at %s refuses: %.300s", asked->daemon,
                  aq_control_text_or(*answer, "text", "it gives no reason"));
    json_decref(*answer);
    return AQ_REFUSED;
}

/* A peer's or a file's text as a terminal may get it; good until the eighth call after this one. */
static const char *shown(const json_t *message, const char *key, const char *otherwise)
{
    static char texts[8][1024];
    static unsigned turn;
    return aq_printable_text(aq_control_text_or(message, key, otherwise), texts[turn++ % 8], sizeof texts[0]);
}

/* Many lines of it. */
static void print_lines(const char *text, size_t count)
{
    char piece[4096];
    while (count > 0) {
        const size_t used = aq_printable(text, count, true, piece, sizeof piece);
        fputs(piece, stdout);
        text += used;
        count -= used;
    }
}

static void print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
}

static int daemon_status(const struct asked *asked)
{
    json_t *answer;
    if (ask(asked, json_pack("{s:s}", "op", "status"), "status", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    const char *job = aq_control_text_or(answer, "job", NULL) ? shown(answer, "job", "") : NULL;
    if (asked->json) {
        print_json(answer);
    } else if (!job) {
        printf("aqpiped %s at %s: no job\n", shown(answer, "version", "?"), asked->daemon);
    } else {
        printf("aqpiped %s at %s: job '%s' for %.0f s, run %s\n", shown(answer, "version", "?"), asked->daemon, job,
               aq_control_number_or(answer, "seconds", 0), shown(answer, "run", "?"));
        const json_t *worker;
        size_t i;
        json_array_foreach(json_object_get(answer, "workers"), i, worker)
        {
            char size[AQ_TEXT_NUMBER];
            printf("  stage %llu  pid %llu  %s  %.1f CPU s\n", (unsigned long long)aq_control_u64_or(worker, "rank", 0),
                   (unsigned long long)aq_control_u64_or(worker, "pid", 0),
                   aq_text_size(aq_control_u64_or(worker, "rss_bytes", 0), size),
                   (double)aq_control_u64_or(worker, "cpu_ns", 0) * 1e-9);
        }
    }
    json_decref(answer);
    return AQ_EXIT_DONE;
}

/* ---- of a run folder ---- */

struct latest {
    json_t *start, *step, *eval, *end;
};

static enum aq_status find_latest(const json_t *line, void *context)
{
    struct latest *latest = context;
    json_t **slot = aq_control_is(line, "event", "start")  ? &latest->start
                    : aq_control_is(line, "event", "step") ? &latest->step
                    : aq_control_is(line, "event", "eval") ? &latest->eval
                    : aq_control_is(line, "event", "end")  ? &latest->end
                                                           : NULL;
    if (!slot) return AQ_OK;
    json_decref(*slot);
    *slot = json_incref((json_t *)(uintptr_t)line);
    if (slot == &latest->start) { /* an end before it was another start's */
        json_decref(latest->end);
        latest->end = NULL;
    }
    return AQ_OK;
}

static void latest_close(struct latest *latest)
{
    json_decref(latest->start);
    json_decref(latest->step);
    json_decref(latest->eval);
    json_decref(latest->end);
    *latest = (struct latest){0};
}

static enum aq_status read_latest(const char *folder, struct latest *latest)
{
    char path[AQ_RUN_PATH_BYTES];
    *latest = (struct latest){0};
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    struct aq_report_sums sums; /* of what need not be read */
    uint64_t offset;
    aq_metrics_index_load(path, &sums, &offset);
    latest->start = json_incref(sums.start);
    latest->eval = json_incref(sums.eval);
    latest->end = json_incref(sums.end);
    aq_report_sums_deinit(&sums);
    const enum aq_status status = aq_run_lines_from(path, offset, find_latest, latest);
    if (status == AQ_NOTFOUND) return aq_fail(status, "status", "%s is no run folder: it has no metrics.jsonl", folder);
    if (status != AQ_OK) latest_close(latest);
    return status;
}

static const char *state_of(const char *folder, const struct latest *latest)
{
    if (aq_run_holder(folder) > 0) return latest->step ? "running" : "starting";
    return latest->end ? shown(latest->end, "state", "ended") : "interrupted";
}

static int folder_status(const struct asked *asked)
{
    struct latest latest;
    if (read_latest(asked->folder, &latest) != AQ_OK) return AQ_EXIT_FAILED;
    const char *state = state_of(asked->folder, &latest);
    const unsigned long long step = aq_control_u64_or(latest.step, "step", 0);
    const unsigned long long steps = aq_control_u64_or(latest.start, "steps_planned", 0);
    const pid_t holder = aq_run_holder(asked->folder);
    if (asked->json) {
        json_t *all = json_pack("{s:s, s:s, s:i, s:I, s:I, s:O*, s:O*, s:O*}", "name", shown(latest.start, "name", "?"),
                                "state", state, "pid", (int)holder, "step", (json_int_t)step, "steps",
                                (json_int_t)steps, "last", latest.step, "eval", latest.eval, "end", latest.end);
        print_json(all);
        json_decref(all);
    } else {
        printf("%s: '%s' (%s) is %s", asked->folder, shown(latest.start, "name", "?"),
               shown(latest.start, "codec", "?"), state);
        if (holder > 0) printf(" (pid %d)", (int)holder);
        printf("\nstep %llu of %llu", step, steps);
        if (latest.step)
            printf(", loss %.4f, %.2f seq/s, waits for links %.0f %%, %.0f s",
                   aq_control_number_or(latest.step, "loss", (double)NAN),
                   aq_control_number_or(latest.step, "sequences_per_second", 0),
                   aq_progress_link_wait(latest.step) * 100, aq_control_number_or(latest.step, "time", 0));
        const char *metric;
        double value;
        bool higher;
        if (latest.eval)
            printf("\nheld-out after step %llu: loss %.4f",
                   (unsigned long long)aq_control_u64_or(latest.eval, "step", 0),
                   aq_control_number_or(latest.eval, "loss", (double)NAN));
        if (latest.eval && aq_heldout_metric(latest.eval, &metric, &value, &higher)) printf(", %s %.3f", metric, value);
        if (aq_control_text_or(latest.end, "cause", NULL)) printf("\n%s", shown(latest.end, "cause", ""));
        putchar('\n');
    }
    latest_close(&latest);
    return AQ_EXIT_DONE;
}

int aq_command_status(int argc, char **argv)
{
    struct asked asked;
    const int code = parse(&asked, &status_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    return asked.daemon ? daemon_status(&asked) : folder_status(&asked);
}

/* ---- top ---- */

static double share(const json_t *line, const char *key, size_t stage)
{
    const json_t *value = json_array_get(json_object_get(line, key), stage);
    const json_t *all = json_array_get(json_object_get(line, "stage_seconds"), stage);
    const double seconds = json_number_value(all);
    return json_is_number(value) && seconds > 0 ? json_number_value(value) * 1e-7 / seconds : 0;
}

static double plain(const json_t *line, const char *key, size_t stage)
{
    const json_t *value = json_array_get(json_object_get(line, key), stage);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

struct carried {     /* by the links of a rank in a step, packed */
    double bytes[3]; /* forward, backward, gradient */
    double left;     /* of what was given to them   */
};

static struct carried carried(const json_t *line, size_t rank)
{
    static const char *const keys[3][2] = {{"forward_bytes", "forward_packed"},
                                           {"backward_bytes", "backward_packed"},
                                           {"gradient_bytes", "gradient_packed"}};
    struct carried out = {.left = 1};
    double given = 0, all = 0;
    for (int i = 0; i < 3; i++) {
        const double bytes = plain(line, keys[i][0], rank), left = plain(line, keys[i][1], rank);
        if (!(bytes >= 0 && bytes < 1e18)) continue;
        out.bytes[i] = left >= 0 && left <= 1 ? bytes * left : bytes;
        given += bytes;
        all += out.bytes[i];
    }
    if (given > 0) out.left = all / given;
    return out;
}

static void show_top(const struct latest *latest, const char *state)
{
    const json_t *line = latest->step;
    printf("%s (%s), %s: step %llu of %llu, loss %.4f, %.2f seq/s, %.3f s a step\n\n",
           shown(latest->start, "name", "?"), shown(latest->start, "codec", "?"), state,
           (unsigned long long)aq_control_u64_or(line, "step", 0),
           (unsigned long long)aq_control_u64_or(latest->start, "steps_planned", 0),
           aq_control_number_or(line, "loss", (double)NAN), aq_control_number_or(line, "sequences_per_second", 0),
           aq_control_number_or(line, "seconds", 0));
    puts("stage  compute   codec  optim.  reduce    idle   links   cache  sent fwd  sent bwd  gradients  packed  "
         "|a-m|/|a|  "
         "|d-Q|/|d|  "
         "mean/rms");
    const size_t ranks = json_array_size(json_object_get(line, "compute_ns"));
    const uint64_t P = aq_control_u64_or(latest->start, "stages", 0);
    for (size_t r = 0; r < ranks; r++) {
        if (P > 0 && ranks > P && r % P == 0) printf("replica %llu\n", (unsigned long long)(r / P));
        char forward[AQ_TEXT_NUMBER], backward[AQ_TEXT_NUMBER], gradient[AQ_TEXT_NUMBER];
        const struct carried sent = carried(line, r);
        printf("%5zu  %5.0f %%  %4.0f %%  %4.0f %%  %4.0f %%  %4.0f %%  %4.0f %%  %4.0f %%  %8s  %8s  %9s  %4.0f %%  "
               "%9.4f  "
               "%9.4f  %8.4f\n",
               P > 0 ? r % P : r, share(line, "compute_ns", r), share(line, "codec_ns", r),
               share(line, "optimizer_ns", r), share(line, "reduce_ns", r), share(line, "wait_ns", r),
               share(line, "link_wait_ns", r), share(line, "cache_wait_ns", r),
               aq_text_size((uint64_t)sent.bytes[0], forward), aq_text_size((uint64_t)sent.bytes[1], backward),
               aq_text_size((uint64_t)sent.bytes[2], gradient), sent.left * 100, plain(line, "delta_ratio", r),
               plain(line, "error_ratio", r), plain(line, "common_mode", r));
    }
}

int aq_command_top(int argc, char **argv)
{
    struct asked asked;
    const int code = parse(&asked, &top_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.daemon) return daemon_status(&asked);
    const bool terminal = isatty(STDOUT_FILENO) == 1 && !asked.once;
    for (;;) {
        struct latest latest;
        if (read_latest(asked.folder, &latest) != AQ_OK) return AQ_EXIT_FAILED;
        const char *state = state_of(asked.folder, &latest);
        if (terminal) fputs("\033[H\033[2J", stdout);
        if (latest.step)
            show_top(&latest, state);
        else
            printf("%s: %s, no step yet\n", asked.folder, state);
        fflush(stdout);
        const bool over = aq_run_holder(asked.folder) == 0;
        latest_close(&latest);
        if (over || !terminal) return AQ_EXIT_DONE;
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        char key = 0;
        if (poll(&input, 1, (int)(asked.seconds * 1000)) > 0 && (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q'))
            return AQ_EXIT_DONE;
    }
}

/* ---- stop ---- */

static int folder_stop(const struct asked *asked)
{
    const pid_t holder = aq_run_holder(asked->folder);
    if (holder <= 0) {
        fprintf(stderr, "aqpipe: nothing runs in %s\n", asked->folder);
        return AQ_EXIT_FAILED;
    }
    if (kill(holder, SIGTERM) != 0) {
        (void)aq_fail_errno("stop", "cannot stop process %d", (int)holder);
        return AQ_EXIT_FAILED;
    }
    fprintf(stderr, "aqpipe: process %d stops after its current step\n", (int)holder);
    const uint64_t deadline = aq_clock_after(STOP_S * second_ns);
    while (aq_run_holder(asked->folder) == holder) {
        if (aq_clock_ns() > deadline) {
            fprintf(stderr, "aqpipe: it has not ended yet; `aqpipe status %s` tells\n", asked->folder);
            return AQ_EXIT_FAILED;
        }
        poll(NULL, 0, 100);
    }
    return folder_status(asked);
}

int aq_command_stop(int argc, char **argv)
{
    struct asked asked;
    json_t *answer;
    const int code = parse(&asked, &stop_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (!asked.daemon) return folder_stop(&asked);
    if (ask(&asked, json_pack("{s:s}", "op", "stop"), "stopping", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    json_decref(answer);
    puts("its launcher is told to stop with a checkpoint");
    return AQ_EXIT_DONE;
}

/* ---- logs ---- */

static int daemon_logs(const struct asked *asked)
{
    json_t *answer;
    if (!asked->has_rank) return aq_options_wrong(logs_line.name, "of a daemon: which stage?");
    json_t *question = json_pack("{s:s, s:I, s:i}", "op", "logs", "rank", (json_int_t)asked->rank, "bytes", LOG_BYTES);
    if (ask(asked, question, "logs", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    const char *text = aq_control_text_or(answer, "text", "");
    print_lines(text, strlen(text));
    json_decref(answer);
    return AQ_EXIT_DONE;
}

/* Shows the end of one stage's log. False: there is none. */
static bool folder_log(const char *folder, uint32_t rank, bool head)
{
    char name[48], path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    snprintf(name, sizeof name, "logs/stage-%u.log", rank);
    if (aq_run_path(folder, name, path) != AQ_OK || aq_file_load(NULL, path, LOG_BYTES_MAX, &text, &count) != AQ_OK)
        return false;
    if (head) printf("==> %s <==\n", path);
    size_t skip = count > LOG_BYTES ? count - LOG_BYTES : 0;
    while (skip > 0 && skip < count && text[skip - 1] != '\n')
        skip++;                             /* from the begin of a line */
    print_lines(text + skip, count - skip); /* what a worker wrote may come from its peers */
    aq_free(text);
    return true;
}

int aq_command_logs(int argc, char **argv)
{
    struct asked asked;
    const int code = parse(&asked, &logs_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.daemon) return daemon_logs(&asked);
    bool any = false;
    for (uint32_t rank = asked.rank; asked.has_rank ? rank == asked.rank : rank < AQ_JOB_RANKS_MAX; rank++)
        any |= folder_log(asked.folder, rank, !asked.has_rank);
    if (any) return AQ_EXIT_DONE;
    fprintf(stderr, "aqpipe: there is no log in %s/logs\n", asked.folder);
    return AQ_EXIT_FAILED;
}
