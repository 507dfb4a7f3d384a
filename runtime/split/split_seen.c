/* split_seen.c -- see the header. */
#include "split_seen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "heldout.h"
#include "json_text.h"
#include "run_folder.h"

static const uint64_t write_ns = 1000ULL * 1000 * 1000;

enum { FILE_BYTES_MAX = 1 << 20, DOES_BYTES = 192 };

struct aq_split_seen {
    char path[AQ_RUN_PATH_BYTES];
    json_t *all; /* the document */
    double sent;
    bool changed;
    uint64_t written_ns;
};

static void seen_write(struct aq_split_seen *seen)
{
    struct aq_error_hold hold;
    json_object_set_new(seen->all, "sent_bytes", aq_control_number(seen->sent));
    seen->written_ns = aq_clock_ns();
    aq_error_hold(&hold);
    seen->changed = aq_json_replace(seen->path, json_incref(seen->all), JSON_INDENT(1)) != AQ_OK; /* then again later */
    aq_error_release(&hold);
}

/* What an earlier process of this client left; NULL: nothing, or of another job. */
static json_t *before_of(const char *path, const struct aq_job *job, const char *id)
{
    struct aq_error_hold hold;
    char *text;
    size_t count;
    aq_error_hold(&hold);
    const enum aq_status status = aq_file_load(NULL, path, FILE_BYTES_MAX, &text, &count);
    aq_error_release(&hold);
    if (status != AQ_OK) return NULL;
    json_t *before = json_loadb(text, count, 0, NULL);
    aq_free(text);
    if (aq_control_is(before, "job", job->name) && aq_control_is(before, "client", id)) return before;
    json_decref(before);
    return NULL;
}

enum aq_status aq_split_seen_open(const struct aq_job *job, const char *id, struct aq_split_seen **out)
{
    struct aq_split_seen *seen;
    static const char *const kept[] = {"round", "turns", "step"};
    *out = NULL;
    AQ_TRY(AQ_NEW(1, &seen));
    enum aq_status status = aq_run_path(job->output.path, "client.json", seen->path);
    if (status != AQ_OK) {
        aq_free(seen);
        return status;
    }
    json_t *before = before_of(seen->path, job, id);
    const double sent = aq_control_number_or(before, "sent_bytes", 0);
    seen->sent = sent >= 0 && sent < 1e18 ? sent : 0;
    seen->all = json_pack("{s:i, s:s, s:s, s:s, s:I}", "format", 1, "job", job->name, "client", id, "server",
                          job->split.server, "rounds_planned", (json_int_t)job->split.rounds);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        json_object_set_new(seen->all, kept[i], json_integer((json_int_t)aq_control_u64_or(before, kept[i], 0)));
    json_object_set_new(seen->all, "train_loss", aq_control_number(aq_control_number_or(before, "train_loss", NAN)));
    json_object_set(seen->all, "heldout", json_object_get(before, "heldout"));
    json_decref(before);
    *out = seen;
    return seen->all ? AQ_OK : aq_fail(AQ_NOMEM, "split", "no memory for client.json");
}

void aq_split_seen_close(struct aq_split_seen *seen)
{
    if (!seen) return;
    json_decref(seen->all);
    aq_free(seen);
}

static void state_set(struct aq_split_seen *seen, const char *state, const char *text)
{
    json_t *waits = json_string(text);
    json_object_set_new(seen->all, "state", json_string(state));
    json_object_set_new(seen->all, "waits_for", waits ? waits : json_null());
    json_object_del(seen->all, "cause");
}

void aq_split_seen_waits(struct aq_split_seen *seen, const char *text)
{
    const bool same = aq_control_is(seen->all, "state", "waiting") && aq_control_is(seen->all, "waits_for", text);
    if (same) return; /* as after each try to connect */
    state_set(seen, "waiting", text);
    seen_write(seen);
}

void aq_split_seen_turn(struct aq_split_seen *seen, uint64_t round, uint64_t rounds, uint64_t begin, uint64_t until)
{
    char text[DOES_BYTES];
    if (begin < until)
        snprintf(text, sizeof text, "trains steps %" PRIu64 " to %" PRIu64, begin + 1, until);
    else
        snprintf(text, sizeof text, "sends what it trained, up to step %" PRIu64, until);
    state_set(seen, "training", text);
    json_object_set_new(seen->all, "round", json_integer((json_int_t)round));
    json_object_set_new(seen->all, "rounds_planned", json_integer((json_int_t)rounds));
    seen_write(seen);
}

void aq_split_seen_turned(struct aq_split_seen *seen)
{
    const uint64_t had = aq_control_u64_or(seen->all, "turns", 0);
    json_object_set_new(seen->all, "turns", json_integer((json_int_t)had + 1));
    aq_split_seen_waits(seen, "waits for its turn");
}

void aq_split_seen_end(struct aq_split_seen *seen, const char *state, const char *cause)
{
    json_t *text = cause ? json_string(cause) : NULL;
    state_set(seen, state, "");
    if (text) json_object_set_new(seen->all, "cause", text);
    seen_write(seen);
}

/* Bytes that a link carried; what is not known is not counted. */
static double carried(const json_t *line, const char *bytes, const char *packed)
{
    return aq_control_carried(aq_control_number_or(line, bytes, 0), aq_control_number_or(line, packed, 1));
}

static void on_eval(struct aq_split_seen *seen, const json_t *line)
{
    const char *name;
    bool higher;
    const struct aq_task *task = aq_heldout_task(line);
    json_t *heldout = json_pack("{s:o}", "loss", aq_control_number(aq_control_number_or(line, "loss", NAN)));
    for (uint32_t i = 0; (name = aq_task_metric(task, i, &higher)) != NULL; i++)
        json_object_set_new(heldout, name, aq_control_number(aq_control_number_or(line, name, NAN)));
    json_object_set_new(heldout, "step", json_integer((json_int_t)aq_control_u64_or(line, "step", 0)));
    if (heldout) json_object_set_new(seen->all, "heldout", heldout);
    seen->changed = true;
}

void aq_split_seen_line(struct aq_split_seen *seen, const json_t *line)
{
    if (aq_control_is(line, "event", "eval")) on_eval(seen, line);
    if (!aq_control_is(line, "event", "step")) return;
    seen->sent += carried(line, "forward_bytes", "forward_packed") +
                  carried(line, "backward_bytes", "backward_packed") +
                  carried(line, "gradient_bytes", "gradient_packed");
    const double loss = aq_control_number_or(line, "loss", NAN);
    if (isfinite(loss)) json_object_set_new(seen->all, "train_loss", aq_control_number(loss));
    json_object_set_new(seen->all, "step", json_integer((json_int_t)aq_control_u64_or(line, "step", 0)));
    seen->changed = true;
}

void aq_split_seen_tick(struct aq_split_seen *seen)
{
    if (seen->changed && aq_clock_ns() - seen->written_ns >= write_ns) seen_write(seen);
}
