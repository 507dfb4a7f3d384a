/*
 * metrics.c -- joining the step lines of P ranks.
 *
 * A ring of `room` steps (a power of two, which grows up to AQ_METRICS_AHEAD), step n in place n modulo that; `next` is
 * the step that is written next. Common values (loss of the last rank, learning rate, ...) become one value, all others
 * an array by stage.
 */
#include "metrics.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "json_text.h"
#include "metrics_index.h"
#include "run_folder.h"
#include "runtime_text.h"
#include "step_figures.h"

/* A checkpoint is complete before the next but one starts: two are under way at most. */
enum { ROOM_FIRST = 64, MARKS = 4 };

struct aq_metrics {
    int fd;                /* -1: written nowhere                         */
    enum aq_status failed; /* why the file lacks a line */
    char path[AQ_RUN_PATH_BYTES];
    uint64_t bytes;      /* of whole lines in the file                  */
    struct aq_text text; /* the line that is written                    */
    uint32_t stages;
    uint64_t next;
    double seconds_before;
    uint64_t go_ns;                 /* 0: not yet */
    struct aq_metrics_index *index; /* NULL: none */
    struct aq_board *board;         /* NULL: none */
    uint64_t mark_every;            /* steps      */
    struct {
        uint64_t step, bytes; /* of the file when the step was done, before the next one's line */
    } marks[MARKS];           /* the newest steps that a checkpoint is due at, in turn          */
    uint64_t first;           /* the step of the first end that is known                        */
    uint64_t *ends;           /* [AQ_METRICS_AHEAD] bytes after a step, at its remainder; NULL: no timed checkpoints */
    json_t *joined;
    json_t *held; /* evaluations after steps whose own lines are not whole yet; NULL: none were */
    struct {
        uint64_t after, last;
    } without[AQ_JOB_RANKS_MAX]; /* in these steps the rank's lines are not waited for */
    uint64_t room;
    json_t **lines; /* [room][stages]; NULL: not come yet */
};

/* The lines of one step, by rank. */
static json_t **place_of(const struct aq_metrics *metrics, uint64_t step)
{
    return metrics->lines + (step & (metrics->room - 1)) * metrics->stages;
}

/* Make room for `ahead` steps, the next one to be written included. */
static enum aq_status make_room(struct aq_metrics *metrics, uint64_t ahead)
{
    struct aq_metrics grown = *metrics;
    if (ahead <= metrics->room) return AQ_OK;
    if (grown.room == 0) grown.room = ROOM_FIRST;
    while (grown.room < ahead)
        grown.room *= 2;
    AQ_TRY(AQ_NEW(grown.room * grown.stages, &grown.lines));
    for (uint64_t n = 0; n < metrics->room; n++)
        memcpy(place_of(&grown, metrics->next + n), place_of(metrics, metrics->next + n),
               grown.stages * sizeof *grown.lines);
    aq_free(metrics->lines);
    *metrics = grown;
    return AQ_OK;
}

enum aq_status aq_metrics_open(const struct aq_metrics_config *config, struct aq_metrics **out)
{
    AQ_ASSERT(config->stages >= 1 && config->stages <= AQ_JOB_RANKS_MAX);
    struct aq_metrics *metrics;
    AQ_TRY(AQ_NEW(1, &metrics));
    metrics->stages = config->stages;
    metrics->next = config->step + 1;
    metrics->seconds_before = config->seconds;
    metrics->mark_every = config->mark_every;
    metrics->first = config->step;
    metrics->board = config->board;
    metrics->fd = -1;
    enum aq_status roomy = make_room(metrics, ROOM_FIRST);
    if (roomy == AQ_OK && config->mark_timed) roomy = AQ_NEW(AQ_METRICS_AHEAD, &metrics->ends);
    if (roomy != AQ_OK) {
        aq_metrics_close(metrics);
        return roomy;
    }
    if (config->path) {
        struct stat info;
        snprintf(metrics->path, sizeof metrics->path, "%s", config->path);
        enum aq_status status = aq_file_open(NULL, config->path, AQ_FILE_APPEND, &metrics->fd);
        if (status == AQ_OK && fstat(metrics->fd, &info) != 0)
            status = aq_fail_errno("metrics", "cannot write %s", config->path);
        if (status != AQ_OK) {
            aq_metrics_close(metrics);
            return status;
        }
        const enum aq_status named = info.st_size > 0 ? AQ_OK : aq_run_sync_folder_of(config->path);
        if (named != AQ_OK) {
            aq_metrics_close(metrics);
            return named;
        }
        metrics->bytes = (uint64_t)info.st_size;
        metrics->index = aq_metrics_index_open(config->path, config->index_every);
    }
    *out = metrics;
    return AQ_OK;
}

void aq_metrics_close(struct aq_metrics *metrics)
{
    if (!metrics) return;
    for (uint64_t i = 0; i < metrics->room * metrics->stages; i++)
        json_decref(metrics->lines[i]);
    aq_free(metrics->lines);
    aq_free(metrics->ends);
    json_decref(metrics->joined);
    json_decref(metrics->held);
    aq_text_deinit(&metrics->text);
    aq_metrics_index_close(metrics->index);
    if (metrics->fd != -1) close(metrics->fd);
    aq_free(metrics);
}

void aq_metrics_go(struct aq_metrics *metrics)
{
    metrics->go_ns = aq_clock_ns();
}

double aq_metrics_seconds(const struct aq_metrics *metrics)
{
    return metrics->seconds_before + (metrics->go_ns ? (double)(aq_clock_ns() - metrics->go_ns) * 1e-9 : 0);
}

/* A line is in the file whole or not at all: what a full disk took of it is cut off again. */
static enum aq_status write_line(struct aq_metrics *metrics, const json_t *line)
{
    aq_board_line(metrics->board, line);
    if (metrics->fd == -1) return AQ_OK;
    metrics->text.used = 0;
    AQ_TRY(aq_json_text(line, JSON_COMPACT, &metrics->text));
    aq_text_bytes(&metrics->text, "\n", 1);
    AQ_TRY(metrics->text.status);
    if (!aq_write_all(metrics->fd, metrics->text.bytes, metrics->text.used)) {
        metrics->failed = aq_fail_errno("metrics", "cannot write %s", metrics->path);
        if (ftruncate(metrics->fd, (off_t)metrics->bytes) != 0) metrics->fd = -1; /* nothing may follow half a line */
        return metrics->failed;
    }
    metrics->bytes += metrics->text.used;
    aq_metrics_index_add(metrics->index, line, metrics->text.bytes, metrics->text.used);
    return AQ_OK;
}

/* Takes the reference. */
static enum aq_status write_now(struct aq_metrics *metrics, json_t *line)
{
    enum aq_status status = AQ_OK;
    if (json_object_set_new(line, "time", json_real(aq_metrics_seconds(metrics))) != 0)
        status = aq_fail(AQ_NOMEM, "metrics", "no memory for a line");
    if (status == AQ_OK) status = write_line(metrics, line);
    json_decref(line);
    return status;
}

/*
 * The last stage may evaluate before another stage's line of that step has come: the evaluation waits for it, so that
 * lines are in the order of steps, and a checkpoint's size of the file has no later ones. At most AQ_METRICS_AHEAD
 * wait, as many steps as a rank may be ahead, because there is one per step (launcher_bounds.c).
 */
static bool is_early(const struct aq_metrics *metrics, const json_t *line)
{
    return aq_control_is(line, "event", "eval") && aq_control_u64_or(line, "step", 0) >= metrics->next;
}

enum aq_status aq_metrics_line(struct aq_metrics *metrics, json_t *line)
{
    if (!line) return aq_fail(AQ_NOMEM, "metrics", "no memory for a line");
    json_object_del(line, "rank");
    if (!is_early(metrics, line)) return write_now(metrics, line);
    if (!metrics->held) metrics->held = json_array();
    if (json_array_append_new(metrics->held, line) == 0) return AQ_OK;
    return aq_fail(AQ_NOMEM, "metrics", "no memory for a line");
}

/* A step's line has been written: what has waited for it follows. */
static enum aq_status write_held(struct aq_metrics *metrics)
{
    enum aq_status status = AQ_OK;
    while (status == AQ_OK && json_array_size(metrics->held) > 0 &&
           !is_early(metrics, json_array_get(metrics->held, 0))) {
        status = write_now(metrics, json_incref(json_array_get(metrics->held, 0)));
        json_array_remove(metrics->held, 0);
    }
    return status;
}

enum aq_status aq_metrics_sync(struct aq_metrics *metrics)
{
    AQ_TRY(metrics->failed);
    if (metrics->fd != -1 && fsync(metrics->fd) != 0) return aq_fail_errno("metrics", "cannot write %s", metrics->path);
    return AQ_OK;
}

uint64_t aq_metrics_bytes_after(const struct aq_metrics *metrics, uint64_t step)
{
    if (step + 1 == metrics->next) return metrics->bytes;
    for (int i = 0; i < MARKS; i++)
        if (metrics->marks[i].step == step) return metrics->marks[i].bytes;
    if (!metrics->ends || step < metrics->first || step >= metrics->next) return 0;
    return metrics->next - 1 - step <= AQ_METRICS_AHEAD ? metrics->ends[step % AQ_METRICS_AHEAD] : 0;
}

/* The line of the next step is about to be written: what is there now is all of the one before. */
static void note_mark(struct aq_metrics *metrics)
{
    const uint64_t step = metrics->next - 1;
    if (metrics->ends) metrics->ends[step % AQ_METRICS_AHEAD] = metrics->bytes;
    if (metrics->mark_every == 0 || step == 0 || step % metrics->mark_every != 0) return;
    const size_t place = step / metrics->mark_every % MARKS;
    metrics->marks[place].step = step;
    metrics->marks[place].bytes = metrics->bytes;
}

/* Values that belong to the step and not to a stage: the first stage that has one sets it. */
static bool is_common(const char *key)
{
    static const char *const common[] = {"event", "step",      "epoch",   "seconds", "loss",
                                         "lr",    "grad_norm", "samples", "skipped"};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strcmp(key, common[i]) == 0) return true;
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        if (strcmp(key, aq_step_figure(i)->name) == 0) return true;
    return false;
}

/* The array of `key` over all stages, null where a stage has none. */
static json_t *gather(json_t *const *lines, uint32_t stages, const char *key)
{
    json_t *array = json_array();
    for (uint32_t r = 0; array && r < stages; r++) {
        json_t *value = json_object_get(lines[r], key);
        json_array_append_new(array, value ? json_incref(value) : json_null());
    }
    return array;
}

/* The loss of a step is the mean over those who know one: the last stages of the replicas, with as many samples each.
 */
static void join_loss(const struct aq_metrics *metrics, json_t *const *lines, json_t *joined)
{
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t r = 0; r < metrics->stages; r++) {
        const json_t *loss = json_object_get(lines[r], "loss");
        if (!loss) continue;
        sum += json_is_number(loss) ? json_number_value(loss) : (double)NAN;
        count++;
    }
    if (count > 1) json_object_set_new(joined, "loss", aq_control_number(sum / count));
}

/* Each rank counts the samples of all replicas: of those that are missing none were trained. */
static void join_samples(const struct aq_metrics *metrics, json_t *const *lines, json_t *joined)
{
    const uint64_t samples = aq_control_u64_or(joined, "samples", 0);
    uint32_t here = 0;
    for (uint32_t r = 0; r < metrics->stages; r++)
        here += lines[r] != NULL;
    if (here < metrics->stages && samples > 0)
        json_object_set_new(joined, "samples", json_integer((json_int_t)(samples * here / metrics->stages)));
}

/* A step is void where it was void on any replica: as a rule on all, with local steps on its own. */
static void join_skipped(const struct aq_metrics *metrics, json_t *const *lines, json_t *joined)
{
    for (uint32_t r = 0; r < metrics->stages; r++)
        if (json_is_true(json_object_get(lines[r], "skipped"))) json_object_set_new(joined, "skipped", json_true());
}

static json_t *join(const struct aq_metrics *metrics, json_t *const *lines, uint64_t step)
{
    json_t *joined = json_pack("{s:s, s:I, s:n, s:f}", "event", "step", "step", (json_int_t)step, "epoch", "time",
                               aq_metrics_seconds(metrics));
    if (!joined) return NULL;
    for (uint32_t r = 0; r < metrics->stages; r++) {
        const char *key;
        json_t *value;
        json_object_foreach(lines[r], key, value)
        {
            const json_t *have = json_object_get(joined, key);
            if (strcmp(key, "rank") == 0 || (have && !json_is_null(have))) continue;
            json_object_set_new(joined, key, is_common(key) ? json_incref(value) : gather(lines, metrics->stages, key));
        }
    }
    join_loss(metrics, lines, joined);
    join_skipped(metrics, lines, joined);
    join_samples(metrics, lines, joined);
    json_object_set_new(joined, "stage_seconds", gather(lines, metrics->stages, "seconds"));
    const double seconds = aq_control_number_or(joined, "seconds", 0),
                 samples = aq_control_number_or(joined, "samples", 0);
    json_object_set_new(joined, "sequences_per_second", aq_control_number(seconds > 0 ? samples / seconds : 0));
    return joined;
}

static enum aq_status keep(struct aq_metrics *metrics, uint32_t rank, json_t *line)
{
    uint64_t step;
    enum aq_status status = aq_control_get_u64(line, "step", &step);
    if (status == AQ_OK &&
        (rank >= metrics->stages || step < metrics->next || step - metrics->next >= AQ_METRICS_AHEAD ||
         (step - metrics->next < metrics->room && place_of(metrics, step)[rank])))
        status = aq_fail(AQ_PROTO, "metrics", "stage %u reports step %llu while step %llu is due", rank,
                         (unsigned long long)step, (unsigned long long)metrics->next);
    if (status == AQ_OK) status = make_room(metrics, step - metrics->next + 1);
    if (status != AQ_OK) {
        json_decref(line);
        return status;
    }
    place_of(metrics, step)[rank] = line;
    return AQ_OK;
}

void aq_metrics_without(struct aq_metrics *metrics, uint32_t rank, uint64_t after, uint64_t step)
{
    AQ_ASSERT(rank < metrics->stages);
    metrics->without[rank].after = after;
    metrics->without[rank].last = step;
}

static bool is_without(const struct aq_metrics *metrics, uint32_t rank)
{
    return metrics->next > metrics->without[rank].after && metrics->next <= metrics->without[rank].last;
}

enum aq_status aq_metrics_step(struct aq_metrics *metrics, uint32_t rank, json_t *line, const json_t **joined)
{
    *joined = NULL;
    if (line) AQ_TRY(keep(metrics, rank, line));
    json_t **lines = place_of(metrics, metrics->next);
    bool any = false; /* or some rank's lines come again later: in this step nobody trained */
    for (uint32_t r = 0; r < metrics->stages; r++)
        any |= lines[r] != NULL || (is_without(metrics, r) && metrics->without[r].last != UINT64_MAX);
    for (uint32_t r = 0; r < metrics->stages; r++)
        if (!lines[r] && !(is_without(metrics, r) && any)) return AQ_OK;
    json_decref(metrics->joined);
    metrics->joined = join(metrics, lines, metrics->next);
    for (uint32_t r = 0; r < metrics->stages; r++) {
        json_decref(lines[r]);
        lines[r] = NULL;
    }
    note_mark(metrics);
    metrics->next++;
    if (!metrics->joined) return aq_fail(AQ_NOMEM, "metrics", "no memory for the line of a step");
    AQ_TRY(write_line(metrics, metrics->joined));
    AQ_TRY(write_held(metrics));
    *joined = metrics->joined;
    return AQ_OK;
}
