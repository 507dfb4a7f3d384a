/*
 * command_status.c -- status, top and stop: of a run folder on this machine, or of a daemon anywhere.
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
#include <termios.h>
#include <unistd.h>

#include "command_asked.h"
#include "commands.h"
#include "control_socket.h"
#include "heldout.h"
#include "job.h"
#include "metrics_index.h"
#include "net/tls.h"
#include "options.h"
#include "out.h"
#include "progress.h"
#include "run_folder.h"
#include "run_lines.h"
#include "runtime_text.h"
#include "split_folder.h"
#include "table.h"

enum { DAEMON_S = 15, STOP_S = 600 };
static const uint64_t second_ns = 1000ULL * 1000 * 1000;

static const struct aq_option options[] = {AQ_ASKED_OPTIONS, {0}};

static const struct aq_option top_options[] = {AQ_ASKED_OPTIONS,
                                               AQ_ROW(FLAG, struct aq_asked, once, "once", NULL, "show once"),
                                               AQ_ROW_RANGE(TIME, struct aq_asked, seconds, "seconds", "TIME", 0.1,
                                                            3600, "time between two looks, as in 500ms, 5s (1)"),
                                               {0}};

static const char of_run[] = "RUN\n--daemon HOST:PORT";

static const struct aq_command_line
    status_line = {"aqpipe status", of_run,
                   "Shows what a run, a daemon, a split-server or a split-client is doing. Of a split job: the round, "
                   "and who waits "
                   "for whom.",
                   options, NULL},
    top_line = {"aqpipe top", of_run,
                "Shows where each stage's time goes while a run trains, and on what; ? explains the columns, q or "
                "Ctrl-C ends.",
                top_options, NULL},
    stop_line = {"aqpipe stop", of_run, "Stops a run after its current step, with a checkpoint, and waits for its end.",
                 options, NULL};

int aq_asked_read(struct aq_asked *asked, const struct aq_command_line *line, int argc, char **argv)
{
    struct aq_arguments rest;
    uint32_t used = 0;
    *asked = (struct aq_asked){.token_file = getenv("AQPIPE_TOKEN_FILE"), .keys = getenv("AQPIPE_KEYS"), .seconds = 1};
    const int code = aq_options_read(line, argc, argv, asked, &rest);
    if (code != AQ_OPTIONS_READ) return code;
    if (!asked->daemon && rest.count == 0) return aq_options_wrong(line->name, "name a run folder");
    if (!asked->daemon) asked->folder = rest.of[used++];
    if (used < rest.count && strstr(line->arguments, "STAGE")) {
        char *end;
        const char *stage = rest.of[used++];
        const unsigned long rank = strtoul(stage, &end, 10);
        if (*end || end == stage || rank > 9999) return aq_options_wrong(line->name, "'%s' is not a stage", stage);
        asked->rank = (uint32_t)rank;
        asked->has_rank = true;
    }
    return used == rest.count ? AQ_OPTIONS_READ : aq_options_wrong(line->name, "'%s' is too much", rest.of[used]);
}

/* ---- of a daemon ---- */

enum aq_status aq_asked_daemon(const struct aq_asked *asked, json_t *question, const char *event, json_t **answer)
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
    if (status != AQ_OK) return aq_fail(status, "control", "the daemon at %s does not answer", asked->daemon);
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

static void print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    aq_out_raw("\n");
}

void aq_asked_print(json_t *value)
{
    print_json(value);
    json_decref(value);
}

static int daemon_status(const struct aq_asked *asked)
{
    json_t *answer;
    if (aq_asked_daemon(asked, json_pack("{s:s}", "op", "status"), "status", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    const char *job = aq_control_text_or(answer, "job", NULL) ? shown(answer, "job", "") : NULL;
    if (asked->json) {
        print_json(answer);
    } else if (!job) {
        aq_out("aqpiped %s at %s: no job\n", shown(answer, "version", "?"), asked->daemon);
    } else {
        aq_out("aqpiped %s at %s: job '%s' for %.0f s, run %s\n", shown(answer, "version", "?"), asked->daemon, job,
               aq_control_number_or(answer, "seconds", 0), shown(answer, "run", "?"));
        const json_t *worker;
        size_t i;
        json_array_foreach(json_object_get(answer, "workers"), i, worker)
        {
            char size[AQ_TEXT_NUMBER];
            aq_out("  stage %llu  pid %llu  %s  %.1f CPU s\n", (unsigned long long)aq_control_u64_or(worker, "rank", 0),
                   (unsigned long long)aq_control_u64_or(worker, "pid", 0),
                   aq_text_size(aq_control_u64_or(worker, "rss_bytes", 0), size),
                   (double)aq_control_u64_or(worker, "cpu_ns", 0) * 1e-9);
        }
    }
    json_decref(answer);
    return AQ_EXIT_DONE;
}

/* ---- of a run folder ---- */

static double number_of(const json_t *line, const char *key)
{
    return aq_control_number_or(line, key, (double)NAN);
}

struct latest {
    json_t *start, *go, *step, *eval, *end;
    json_t *notices; /* what was found to be lost: the report's list; NULL: nothing */
    char *line;      /* the file's last one when it was read, and its start: the next read continues there */
    size_t line_count;
    uint64_t line_begin;
};

static enum aq_status find_latest(const json_t *line, void *context)
{
    struct latest *latest = context;
    if (aq_control_is(line, "event", "notice")) aq_report_notice_add(&latest->notices, line);
    json_t **slot = aq_control_is(line, "event", "start")  ? &latest->start
                    : aq_control_is(line, "event", "go")   ? &latest->go
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
        json_decref(latest->go);
        latest->go = NULL;
    }
    return AQ_OK;
}

static void latest_close(struct latest *latest)
{
    json_decref(latest->start);
    json_decref(latest->go);
    json_decref(latest->step);
    json_decref(latest->eval);
    json_decref(latest->end);
    json_decref(latest->notices);
    aq_free(latest->line);
    *latest = (struct latest){0};
}

/* The line that was the last one is where it was: nothing before it has changed (a run that restarts from a
 * checkpoint cuts its file, and may have written as much again). */
static bool read_before(const char *path, const struct latest *latest)
{
    char *text;
    size_t count;
    uint64_t begin;
    if (!latest->line) return false;
    const uint64_t end = latest->line_begin + latest->line_count + 1;
    if (aq_run_line_before(path, end, &text, &count, &begin) != AQ_OK) return false;
    const bool same =
        begin == latest->line_begin && count == latest->line_count && memcmp(text, latest->line, count) == 0;
    aq_free(text);
    return same;
}

/* The sums from the file's index; *offset: the rest must be read from there on. */
static void read_index(const char *path, struct latest *latest, uint64_t *offset)
{
    struct aq_report_sums sums;
    latest_close(latest);
    aq_metrics_index_load(path, &sums, offset);
    latest->start = json_incref(sums.start);
    latest->eval = json_incref(sums.eval);
    latest->end = json_incref(sums.end);
    latest->notices = json_incref(sums.notices);
    aq_report_sums_deinit(&sums);
}

/* A step's line as metrics.c writes it, its event first; others are taken apart to see. */
static bool is_step(const char *text, size_t count)
{
    static const char kind[] = ":\"step\"";
    return memmem(text, count < 24 ? count : 24, kind, sizeof kind - 1) != NULL;
}

/* Reads the lines after the last one read. Of maybe hundreds of steps, only the newest is parsed. */
static enum aq_status read_since(const char *path, struct latest *latest)
{
    struct aq_run_lines *lines;
    const char *text;
    char *step;
    size_t count;
    uint64_t step_end = 0, begin;
    AQ_TRY(aq_run_lines_open(path, latest->line_begin, &lines));
    enum aq_status status = AQ_OK;
    while ((status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        if (is_step(text, count)) {
            step_end = aq_run_lines_at(lines);
            continue;
        }
        json_t *line = json_loadb(text, count, 0, NULL);
        (void)find_latest(line, latest);
        json_decref(line);
    }
    aq_run_lines_close(lines);
    if (status != AQ_NOTFOUND || step_end == 0) return status == AQ_NOTFOUND ? AQ_OK : status;
    AQ_TRY(aq_run_line_before(path, step_end, &step, &count, &begin));
    json_t *line = json_loadb(step, count, 0, NULL);
    (void)find_latest(line, latest);
    json_decref(line);
    aq_free(step);
    return AQ_OK;
}

/* *latest is all zeroes, or what an earlier call left: then only what has come since is read. */
static enum aq_status read_latest(const char *folder, struct latest *latest)
{
    char path[AQ_RUN_PATH_BYTES], *line = NULL;
    size_t count = 0;
    uint64_t begin = 0, offset = 0;
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    const bool more = read_before(path, latest);
    if (!more) read_index(path, latest, &offset);
    const bool some = aq_run_line_before(path, UINT64_MAX, &line, &count, &begin) == AQ_OK;
    const enum aq_status status =
        more ? read_since(path, latest) : aq_run_lines_from(path, offset, find_latest, latest);
    aq_free(latest->line);
    latest->line = some ? line : NULL;
    latest->line_count = count;
    latest->line_begin = begin;
    if (status == AQ_NOTFOUND)
        return aq_fail(status, "status", "%s is not a run folder: it has no metrics.jsonl", folder);
    if (status != AQ_OK) latest_close(latest);
    return status;
}

static const char *state_of(const char *folder, const struct latest *latest)
{
    if (aq_run_holder(folder) > 0) return latest->step ? "running" : "starting";
    return latest->end ? shown(latest->end, "state", "ended") : "interrupted";
}

/* One object: the fields of `status`, and the ranks of `top` (takes the reference; NULL: none). */
static void print_status(const struct aq_asked *asked, const struct latest *latest, json_t *ranks)
{
    const json_t *step = latest->step;
    json_t *all = json_pack("{s:O?, s:O?, s:s, s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "name",
                            json_object_get(latest->start, "name"), "codec", json_object_get(latest->start, "codec"),
                            "state", state_of(asked->folder, latest), "pid", (int)aq_run_holder(asked->folder), "step",
                            (json_int_t)aq_control_u64_or(step, "step", 0), "steps",
                            (json_int_t)aq_control_u64_or(latest->start, "steps_planned", 0), "loss",
                            aq_control_number(number_of(step, "loss")), "sequences_per_second",
                            aq_control_number(number_of(step, "sequences_per_second")), "seconds",
                            aq_control_number(number_of(step, "time")), "link_wait_share",
                            step ? aq_control_number(aq_progress_link_wait(step)) : json_null());
    json_object_set_new(all, "notices", latest->notices ? json_incref(latest->notices) : json_array());
    if (ranks) {
        json_object_set_new(all, "ranks", ranks);
    } else {
        json_object_set(all, "last", latest->step);
        json_object_set(all, "eval", latest->eval);
        json_object_set(all, "end", latest->end);
    }
    print_json(all);
    json_decref(all);
}

/* Notices of silent losses, with their remedies. */
static void add_notices(const struct latest *latest, struct aq_text *text)
{
    const json_t *notice;
    size_t i;
    json_array_foreach(latest->notices, i, notice)
        aq_text_add(text, "%s: %s\n", shown(notice, "text", ""), shown(notice, "remedy", ""));
}

static void add_folder_status(const struct aq_asked *asked, const struct latest *latest, struct aq_text *text)
{
    const json_t *step = latest->step, *eval = latest->eval;
    const pid_t holder = aq_run_holder(asked->folder);
    char loss[AQ_TEXT_NUMBER], more[AQ_TEXT_NUMBER];
    aq_text_add(text, "%s: '%s' (%s) is %s", asked->folder, shown(latest->start, "name", "?"),
                shown(latest->start, "codec", "?"), state_of(asked->folder, latest));
    if (holder > 0) aq_text_add(text, " (pid %d)", (int)holder);
    aq_text_add(text, "\nstep %llu of %llu", (unsigned long long)aq_control_u64_or(step, "step", 0),
                (unsigned long long)aq_control_u64_or(latest->start, "steps_planned", 0));
    if (step)
        aq_text_add(text, ", loss %s, %s seq/s, waits for links %.0f %%, %.0f s",
                    aq_text_figure(number_of(step, "loss"), 4, loss),
                    aq_text_figure(number_of(step, "sequences_per_second"), 2, more), aq_progress_link_wait(step) * 100,
                    aq_control_number_or(step, "time", 0));
    const char *metric;
    double value;
    bool higher;
    if (eval)
        aq_text_add(text, "\nheld-out after step %llu: loss %s", (unsigned long long)aq_control_u64_or(eval, "step", 0),
                    aq_text_figure(number_of(eval, "loss"), 4, loss));
    if (eval && aq_heldout_metric(eval, &metric, &value, &higher))
        aq_text_add(text, ", %s %s", metric, aq_text_figure(value, 3, more));
    if (aq_control_text_or(latest->end, "cause", NULL)) aq_text_add(text, "\n%s", shown(latest->end, "cause", ""));
    aq_text_add(text, "\n");
    add_notices(latest, text);
}

/* Of a split job: rounds, clients, and who waits for whom. */
static int split_status(const struct aq_asked *asked)
{
    struct aq_text text = {0};
    json_t *figures;
    const enum aq_status status = aq_split_folder_status(asked->folder, &figures);
    if (status != AQ_OK) return aq_exit_of(status);
    if (asked->json) {
        print_json(figures);
    } else {
        aq_split_folder_text(figures, aq_text_columns(STDOUT_FILENO), &text);
        aq_out_text(aq_text_of(&text));
    }
    aq_text_deinit(&text);
    json_decref(figures);
    return AQ_EXIT_DONE;
}

static int folder_status(const struct aq_asked *asked)
{
    if (aq_split_folder_role(asked->folder) != AQ_SPLIT_NO_FOLDER) return split_status(asked);
    struct latest latest = {0};
    struct aq_text text = {0}, folded = {0};
    const enum aq_status status = read_latest(asked->folder, &latest);
    if (status != AQ_OK) return aq_exit_of(status);
    if (asked->json) {
        print_status(asked, &latest, NULL);
    } else {
        add_folder_status(asked, &latest, &text);
        aq_text_fold(&folded, aq_text_of(&text), aq_text_columns(STDOUT_FILENO));
        aq_out_text(aq_text_of(&folded));
    }
    aq_text_deinit(&text);
    aq_text_deinit(&folded);
    latest_close(&latest);
    return AQ_EXIT_DONE;
}

int aq_command_status(int argc, char **argv)
{
    struct aq_asked asked;
    const int code = aq_asked_read(&asked, &status_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    return asked.daemon ? daemon_status(&asked) : folder_status(&asked);
}

/* ---- top ---- */

/* Of the step's time at this rank; NaN: it has no such part. */
static double share(const json_t *line, const char *key, size_t stage)
{
    const json_t *value = json_array_get(json_object_get(line, key), stage);
    const json_t *all = json_array_get(json_object_get(line, "stage_seconds"), stage);
    const double seconds = json_number_value(all);
    return json_is_number(value) && seconds > 0 ? json_number_value(value) * 1e-9 / seconds : (double)NAN;
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
        const double bytes = aq_control_number_at(line, keys[i][0], rank);
        out.bytes[i] = aq_control_carried(bytes, aq_control_number_at(line, keys[i][1], rank));
        given += aq_control_carried(bytes, 1);
        all += out.bytes[i];
    }
    if (given > 0) out.left = all / given;
    return out;
}

enum { SHARES = 7, BYTES = 3, MEASURES = 5, PLACES = 3, PLACE_BYTES = 28 };

/* What the columns mean: `?` shows it. */
static const char legend[] =
    "compute, codec, optim., reduce, idle: shares of the stage's last step. idle: nothing could run\n"
    "links, cache: of idle, waiting for a link or for the message cache\n"
    "sent fwd, sent bwd: bytes of activations and gradients that its links carried in the step\n"
    "gradients: bytes sent to other replicas. packed: what packing left of all bytes\n"
    "|a-m|/|a|: change of the activations since their last visit. |d-Q|/|d|, c_Q: its quantization\n"
    "  error; c_Q of warm samples only, below 0.707 (docs/GUIDE.md). |g-Q|/|g|: of the gradients\n"
    "mean/rms: common mode of the activations\n"
    "host: \"-\" is this machine. device: as the stage named it. memory: as planned\n";

/* A rank's host (NULL: this machine) and device (NULL: not known), and its planned bytes of memory (NaN: not known). */
static double places(const struct latest *latest, size_t r, const char **host, const char **device)
{
    const json_t *said = json_array_get(json_object_get(latest->go, "devices"), r);
    const json_t *asked = json_array_get(json_object_get(latest->start, "devices"), r);
    *host = json_string_value(json_array_get(json_object_get(latest->start, "hosts"), r));
    *device = json_is_string(said) ? json_string_value(said) : json_string_value(asked);
    return aq_control_number_at(latest->start, "memory_planned", r);
}

/* Of a device's text: threads and instructions of a CPU follow the comma. */
static size_t device_chars(const char *device)
{
    return strcspn(device, ",");
}

/* A cell of the table: what does not fit ends in "...". */
static void place_cell(struct aq_table *table, const char *text, size_t chars)
{
    char shown[PLACE_BYTES];
    const bool fits = aq_printable(text, chars, false, shown, sizeof shown) == chars;
    if (!fits) (void)aq_printable(text, chars, false, shown, sizeof shown - 3);
    aq_table_cell(table, "%s%s", shown, fits ? "" : "...");
}

static const struct {
    const char *key, *head, *name; /* of the step's line; of the column; in JSON */
} shares[SHARES] = {{"compute_ns", "compute", "compute"},
                    {"codec_ns", "codec", "codec"},
                    {"optimizer_ns", "optim.", "optimizer"},
                    {"reduce_ns", "reduce", "reduce"},
                    {"wait_ns", "idle", "idle"},
                    {"link_wait_ns", "links", "links"},
                    {"cache_wait_ns", "cache", "cache"}},
  sizes[BYTES] = {{NULL, "sent fwd", "forward_bytes"},
                  {NULL, "sent bwd", "backward_bytes"},
                  {NULL, "gradients", "gradient_bytes"}},
  measures[MEASURES] = {{"delta_ratio", "|a-m|/|a|", "delta_ratio"},
                        {"error_ratio", "|d-Q|/|d|", "error_ratio"},
                        {"contraction", "c_Q", "contraction"},
                        {"gradient_error_ratio", "|g-Q|/|g|", "gradient_error_ratio"},
                        {"common_mode", "mean/rms", "common_mode"}};

static void top_table(const struct latest *latest, struct aq_text *text)
{
    const json_t *line = latest->step;
    const size_t ranks = json_array_size(json_object_get(line, "compute_ns"));
    const size_t P = (size_t)aq_control_u64_or(latest->start, "stages", 0);
    const uint32_t replicas = P > 0 && ranks > P;
    struct aq_table table = {.columns = 2 + replicas + SHARES + BYTES + MEASURES + PLACES, .keys = 1 + replicas};
    if (replicas) aq_table_cell(&table, "replica");
    aq_table_cell(&table, "stage");
    for (int i = 0; i < SHARES; i++)
        aq_table_cell(&table, "%s", shares[i].head);
    for (int i = 0; i < BYTES; i++)
        aq_table_cell(&table, "%s", sizes[i].head);
    aq_table_cell(&table, "packed");
    for (int i = 0; i < MEASURES; i++)
        aq_table_cell(&table, "%s", measures[i].head);
    aq_table_cell(&table, "host");
    aq_table_cell(&table, "device");
    aq_table_cell(&table, "memory");
    for (size_t r = 0; r < ranks; r++) {
        const struct carried sent = carried(line, r);
        const char *host, *device;
        if (replicas) aq_table_cell(&table, "%zu", r / P);
        aq_table_cell(&table, "%zu", P > 0 ? r % P : r);
        for (int i = 0; i < SHARES; i++)
            aq_table_figure(&table, share(line, shares[i].key, r) * 100, 0, " %");
        for (int i = 0; i < BYTES; i++)
            aq_table_size(&table, sent.bytes[i]);
        aq_table_figure(&table, sent.left * 100, 0, " %");
        for (int i = 0; i < MEASURES; i++)
            aq_table_figure(&table, aq_control_number_at(line, measures[i].key, r), 4, "");
        const double memory = places(latest, r, &host, &device);
        place_cell(&table, host ? host : "-", strlen(host ? host : "-"));
        place_cell(&table, device ? device : "-", device ? device_chars(device) : 1);
        aq_table_size(&table, memory);
    }
    aq_table_print(&table, aq_text_columns(STDOUT_FILENO), text);
    aq_table_deinit(&table);
}

static void show_top(const struct latest *latest, const char *state)
{
    const json_t *line = latest->step;
    struct aq_text head = {0}, text = {0}, below = {0};
    char loss[AQ_TEXT_NUMBER], rate[AQ_TEXT_NUMBER], seconds[AQ_TEXT_NUMBER];
    aq_text_add(&head, "%s (%s), %s: step %llu of %llu, loss %s, %s seq/s, %s s a step\n",
                shown(latest->start, "name", "?"), shown(latest->start, "codec", "?"), state,
                (unsigned long long)aq_control_u64_or(line, "step", 0),
                (unsigned long long)aq_control_u64_or(latest->start, "steps_planned", 0),
                aq_text_figure(number_of(line, "loss"), 4, loss),
                aq_text_figure(number_of(line, "sequences_per_second"), 2, rate),
                aq_text_figure(number_of(line, "seconds"), 3, seconds));
    aq_text_fold(&text, aq_text_of(&head), aq_text_columns(STDOUT_FILENO));
    aq_text_add(&text, "\n");
    top_table(latest, &text);
    add_notices(latest, &below);
    aq_text_fold(&text, aq_text_of(&below), aq_text_columns(STDOUT_FILENO));
    aq_out_text(aq_text_of(&text));
    aq_text_deinit(&head);
    aq_text_deinit(&below);
    aq_text_deinit(&text);
}

/* The table as an object: shares of the step's time from 0 to 1, null if unknown. */
static json_t *top_ranks(const struct latest *latest)
{
    const json_t *line = latest->step;
    const size_t ranks = json_array_size(json_object_get(line, "compute_ns"));
    const size_t P = (size_t)aq_control_u64_or(latest->start, "stages", 0);
    json_t *list = json_array();
    for (size_t r = 0; r < ranks; r++) {
        const struct carried sent = carried(line, r);
        json_t *rank = json_pack("{s:I, s:I}", "replica", (json_int_t)(P > 0 ? r / P : 0), "stage",
                                 (json_int_t)(P > 0 ? r % P : r));
        for (int i = 0; i < SHARES; i++)
            json_object_set_new(rank, shares[i].name, aq_control_number(share(line, shares[i].key, r)));
        for (int i = 0; i < BYTES; i++)
            json_object_set_new(rank, sizes[i].name, aq_control_number(sent.bytes[i]));
        json_object_set_new(rank, "packed", aq_control_number(sent.left));
        for (int i = 0; i < MEASURES; i++)
            json_object_set_new(rank, measures[i].name,
                                aq_control_number(aq_control_number_at(line, measures[i].key, r)));
        const char *host, *device;
        const double memory = places(latest, r, &host, &device);
        json_object_set_new(rank, "host", host ? json_string(host) : json_null());
        json_object_set_new(rank, "device", device ? json_stringn(device, device_chars(device)) : json_string("-"));
        json_object_set_new(rank, "memory_planned", aq_control_number(memory));
        json_array_append_new(list, rank);
    }
    return list;
}

/* The terminal of `aqpipe top`; handlers of signals change it, so nothing else does while they may come. */
static struct termios terminal_before, terminal_raw;
static volatile sig_atomic_t terminal_is_raw;

/* In the background, reading the terminal or changing it would stop this process. -1: no job control there. */
static bool terminal_is_ours(void)
{
    const pid_t front = tcgetpgrp(STDIN_FILENO);
    return front <= 0 || front == getpgrp();
}

static void terminal_back(void)
{
    if (terminal_is_raw && terminal_is_ours()) (void)tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
    terminal_is_raw = 0;
}

static void terminal_again(void)
{
    if (terminal_is_ours()) terminal_is_raw = tcsetattr(STDIN_FILENO, TCSANOW, &terminal_raw) == 0;
}

/* Ends or stops this process by the signal's own action, once the handler has returned. */
static void on_leave(int signal_number)
{
    terminal_back();
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

static void on_continue(int signal_number)
{
    (void)signal_number;
    if (signal(SIGTSTP, on_leave) == SIG_IGN) (void)signal(SIGTSTP, SIG_IGN);
    terminal_again();
}

/* Keys come at once and are not shown, until this process ends, stops or is in the background. False: no terminal. */
static bool terminal_keys(void)
{
    static const int leaves[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
    if (tcgetattr(STDIN_FILENO, &terminal_before) != 0) return false;
    terminal_raw = terminal_before;
    terminal_raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (signal(leaves[i], SIG_IGN) != SIG_IGN && signal(leaves[i], on_leave) == SIG_ERR) return false;
    if (signal(SIGCONT, on_continue) == SIG_ERR) return false;
    terminal_again();
    return true;
}

int aq_command_top(int argc, char **argv)
{
    struct aq_asked asked;
    bool explained = false;
    const int code = aq_asked_read(&asked, &top_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (asked.daemon) return daemon_status(&asked);
    if (aq_split_folder_role(asked.folder) != AQ_SPLIT_NO_FOLDER)
        return aq_options_wrong(top_line.name,
                                "%s is a split job's: use aqpipe status, or name the run of one client "
                                "at the server, clients/NAME",
                                asked.folder);
    const bool terminal = isatty(STDOUT_FILENO) == 1 && !asked.once;
    struct latest latest = {0};
    const bool keys = terminal && !asked.json && terminal_keys();
    for (;;) {
        const enum aq_status status = read_latest(asked.folder, &latest);
        if (status != AQ_OK && keys) terminal_back();
        if (status != AQ_OK) return aq_exit_of(status);
        const char *state = state_of(asked.folder, &latest);
        if (terminal && !asked.json) aq_out_raw("\033[H\033[2J");
        if (asked.json)
            print_status(&asked, &latest, top_ranks(&latest));
        else if (latest.step)
            show_top(&latest, state);
        else
            aq_out("%s: %s, no step yet\n", asked.folder, state);
        if (terminal_is_raw) aq_out("\n%s", explained ? legend : "? explains the columns; q ends\n");
        fflush(stdout);
        struct pollfd input = {.fd = terminal_is_raw ? STDIN_FILENO : -1, .events = POLLIN};
        char key = 0;
        if (aq_run_holder(asked.folder) == 0 || !terminal) break;
        if (poll(&input, 1, (int)(asked.seconds * 1000)) > 0 && (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q')) break;
        explained = explained != (key == '?');
    }
    if (keys) terminal_back();
    latest_close(&latest);
    return AQ_EXIT_DONE;
}

/* ---- stop ---- */

static int folder_stop(const struct aq_asked *asked)
{
    const pid_t holder = aq_run_holder(asked->folder);
    if (access(asked->folder, F_OK) != 0) {
        (void)aq_command_failed("%s: there is no such folder", asked->folder);
        return AQ_EXIT_USAGE;
    }
    if (holder <= 0) return aq_command_failed("no run is active in %s", asked->folder);
    if (kill(holder, SIGTERM) != 0) {
        (void)aq_fail_errno("stop", "cannot stop process %d", (int)holder);
        return AQ_EXIT_FAILED;
    }
    if (!asked->json) fprintf(stderr, "aqpipe: process %d stops after its current step\n", (int)holder);
    const uint64_t deadline = aq_clock_after(STOP_S * second_ns);
    while (aq_run_holder(asked->folder) == holder) {
        if (aq_clock_ns() > deadline) {
            return aq_command_failed("it has not ended yet; see `aqpipe status %s`", asked->folder);
        }
        poll(NULL, 0, 100);
    }
    return folder_status(asked);
}

int aq_command_stop(int argc, char **argv)
{
    struct aq_asked asked;
    json_t *answer;
    const int code = aq_asked_read(&asked, &stop_line, argc, argv);
    if (code != AQ_OPTIONS_READ) return code;
    if (!asked.daemon) return folder_stop(&asked);
    if (aq_asked_daemon(&asked, json_pack("{s:s}", "op", "stop"), "stopping", &answer) != AQ_OK) return AQ_EXIT_FAILED;
    if (asked.json)
        print_json(answer);
    else
        aq_out("its launcher was asked to stop with a checkpoint\n");
    json_decref(answer);
    return AQ_EXIT_DONE;
}
