/* board.c -- see the header. */
#include "board.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

struct aq_board {
    struct aq_mutex *mutex;
    struct aq_board_view view;
    uint64_t begin_ns, waits_ns; /* when the launch began; since when the phase is what it is */
    double pace;                 /* s a step, smoothed; 0: none yet                           */
};

static const char *const states[AQ_BOARD_STATES] = {"starting", "running", "stopping", "restarting",
                                                    "done",     "stopped", "failed"};
static const struct {
    const char *key, *name;
} parts[AQ_BOARD_PARTS] = {{"compute_ns", "compute"}, {"codec_ns", "codec"},         {"optimizer_ns", "optimizer"},
                           {"reduce_ns", "reduce"},   {"link_wait_ns", "link_wait"}, {"cache_wait_ns", "cache_wait"},
                           {"wait_ns", "wait"}};
static const char *const gauges[AQ_BOARD_GAUGES] = {"delta_ratio", "error_ratio", "contraction", "gradient_error_ratio",
                                                    "common_mode"};
static const struct {
    const char *bytes, *packed, *name;
} ways[AQ_BOARD_WAYS] = {{"forward_bytes", "forward_packed", "forward"},
                         {"backward_bytes", "backward_packed", "backward"},
                         {"gradient_bytes", "gradient_packed", "gradient"}};

/* Remedy for a stage that stays in this phase before the first step; else none is needed. */
static const char *const remedies[AQ_PHASES] = {
    [AQ_PHASE_START] = "if it lasts: is the data on a slow disk? `aqpipe logs RUN` shows what the stage writes",
    [AQ_PHASE_DEVICE] = "if it lasts: is the GPU taken by another program (nvidia-smi), or memory short?",
    [AQ_PHASE_DATA] = "large data take a while once; data.cache keeps what was read",
    [AQ_PHASE_WEIGHTS] = "if it lasts: are the weights or checkpoints on a slow or distant disk?",
    [AQ_PHASE_CACHE] = "if it lasts: is the disk of cache.path slow? `aqpipe doctor JOB` measures it",
    [AQ_PHASE_CONNECT] = "if it lasts: do firewalls let the stages' ports through? `aqpipe doctor JOB` tries them",
    [AQ_PHASE_MEASURE] = "some seconds for each link"};
static const char *const state_remedies[AQ_BOARD_STATES] = {
    [AQ_BOARD_STARTING] = "if it lasts: does aqpiped run on every host (aqpipe status --daemon HOST:PORT)?",
    [AQ_BOARD_RUNNING] = "",
    [AQ_BOARD_STOPPING] = "it writes a checkpoint; a second signal ends it at once, without that checkpoint",
    [AQ_BOARD_RESTARTING] = "it restarts by itself; `aqpipe logs RUN` shows the cause",
    [AQ_BOARD_DONE] = "`aqpipe report RUN` has the figures",
    [AQ_BOARD_STOPPED] = "`aqpipe resume RUN` continues",
    [AQ_BOARD_FAILED] = "fix the cause; `aqpipe resume RUN` continues from the last checkpoint"};

const char *aq_board_state_text(enum aq_board_state state)
{
    return (unsigned)state < AQ_BOARD_STATES ? states[state] : "?";
}

const char *aq_board_part_name(enum aq_board_part part)
{
    return parts[part].name;
}

const char *aq_board_gauge_name(enum aq_board_gauge gauge)
{
    return gauges[gauge];
}

const char *aq_board_way_name(enum aq_board_way way)
{
    return ways[way].name;
}

const char *aq_board_rank_name(const struct aq_board_view *view, uint32_t rank, char out[AQ_BOARD_NAME_BYTES])
{
    const uint32_t P = view->stages ? view->stages : 1;
    if (view->ranks > P)
        snprintf(out, AQ_BOARD_NAME_BYTES, "replica %u stage %u", rank / P, rank % P);
    else
        snprintf(out, AQ_BOARD_NAME_BYTES, "stage %u", rank);
    return out;
}

double aq_board_link_wait(const struct aq_board_rank *rank, bool in)
{
    const double all = rank->parts[AQ_BOARD_LINK_WAIT];
    if (!(rank->seconds > 0) || !isfinite(all)) return (double)NAN;
    const double before = isfinite(rank->in_wait) ? fmin(fmax(rank->in_wait, 0), all) : 0; /* the first has no such */
    return (in ? before : all - before) / rank->seconds;
}

double aq_board_sent(const struct aq_board_view *view)
{
    double all = 0;
    for (uint32_t r = 0; r < view->ranks; r++)
        for (int i = 0; i < AQ_BOARD_WAYS; i++)
            all += view->rank[r].bytes_all[i];
    return all;
}

double aq_board_stage_hours(const struct aq_board_view *view)
{
    return view->up_s * view->ranks / 3600;
}

static void forget_steps(struct aq_board_rank *rank)
{
    rank->seconds = rank->in_wait = (double)NAN;
    for (int i = 0; i < AQ_BOARD_PARTS; i++)
        rank->parts[i] = (double)NAN;
    for (int i = 0; i < AQ_BOARD_GAUGES; i++)
        rank->gauges[i] = (double)NAN;
}

enum aq_status aq_board_open(struct aq_board **out)
{
    struct aq_board *board;
    AQ_TRY(AQ_NEW(1, &board));
    const enum aq_status status = aq_mutex_open(&board->mutex);
    if (status != AQ_OK) {
        aq_free(board);
        return status;
    }
    struct aq_board_view *view = &board->view;
    view->loss = view->lr = view->grad_norm = view->seconds = view->speed = view->time = view->heldout = view->left_s =
        (double)NAN;
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        view->figures[i] = (double)NAN;
    for (uint32_t r = 0; r < AQ_JOB_RANKS_MAX; r++)
        forget_steps(&view->rank[r]);
    board->begin_ns = board->waits_ns = aq_clock_ns();
    snprintf(view->waits, sizeof view->waits, "begins");
    *out = board;
    return AQ_OK;
}

void aq_board_close(struct aq_board *board)
{
    if (!board) return;
    aq_mutex_close(board->mutex);
    aq_free(board);
}

void aq_board_run(struct aq_board *board, const char *folder)
{
    struct aq_curve *curve;
    if (!board || AQ_NEW(1, &curve) != AQ_OK) return;
    char path[4096];
    const bool there = snprintf(path, sizeof path, "%s/metrics.jsonl", folder) < (int)sizeof path;
    int fd;
    if (there && aq_file_open(NULL, path, AQ_FILE_READ, &fd) == AQ_OK) {
        close(fd);
        if (aq_curve_read(folder, false, curve) != AQ_OK) memset(curve, 0, sizeof *curve); /* the launcher tells why */
    }
    aq_mutex_lock(board->mutex);
    board->view.curve = *curve;
    aq_mutex_unlock(board->mutex);
    aq_free(curve);
}

static void set_waits(struct aq_board *board, const char *text)
{
    if (strcmp(board->view.waits, text) == 0) return;
    snprintf(board->view.waits, sizeof board->view.waits, "%s", text);
    board->waits_ns = aq_clock_ns();
}

static void set_state(struct aq_board *board, enum aq_board_state state, const char *waits)
{
    board->view.state = state;
    set_waits(board, waits);
}

static void take_rank(struct aq_board_rank *rank, const json_t *line, uint32_t r, uint64_t step)
{
    struct aq_board_past *past = &rank->past[step % AQ_BOARD_STEPS];
    rank->seconds = aq_control_number_at(line, "stage_seconds", r);
    rank->in_wait = aq_control_number_at(line, "in_wait_ns", r) * 1e-9;
    past->seconds = (float)rank->seconds;
    for (int i = 0; i < AQ_BOARD_PARTS; i++) {
        rank->parts[i] = aq_control_number_at(line, parts[i].key, r) * 1e-9;
        past->parts[i] = (float)rank->parts[i];
    }
    for (int i = 0; i < AQ_BOARD_GAUGES; i++)
        rank->gauges[i] = aq_control_number_at(line, gauges[i], r);
    for (int i = 0; i < AQ_BOARD_WAYS; i++) {
        const double wire = aq_control_carried(aq_control_number_at(line, ways[i].bytes, r),
                                               aq_control_number_at(line, ways[i].packed, r));
        rank->bytes[i] = wire;
        rank->bytes_all[i] += wire;
    }
}

static void on_step(struct aq_board *board, const json_t *line)
{
    struct aq_board_view *view = &board->view;
    view->step = aq_control_u64_or(line, "step", view->step);
    view->epoch = aq_control_u64_or(line, "epoch", 0);
    view->loss = aq_control_number_or(line, "loss", (double)NAN);
    view->lr = aq_control_number_or(line, "lr", (double)NAN);
    view->grad_norm = aq_control_number_or(line, "grad_norm", (double)NAN);
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        view->figures[i] = aq_control_number_or(line, aq_step_figure(i)->name, (double)NAN);
    view->seconds = aq_control_number_or(line, "seconds", (double)NAN);
    view->speed = aq_control_number_or(line, "sequences_per_second", (double)NAN);
    view->time = aq_control_number_or(line, "time", (double)NAN);
    if (aq_control_bool_or(line, "skipped", false)) view->skipped++;
    for (uint32_t r = 0; r < view->ranks; r++)
        take_rank(&view->rank[r], line, r, view->step);
    view->past[view->step % AQ_BOARD_STEPS].step = view->step;
    view->past[view->step % AQ_BOARD_STEPS].seconds = view->seconds;
    if (view->seconds > 0) board->pace = board->pace > 0 ? 0.9 * board->pace + 0.1 * view->seconds : view->seconds;
    view->left_s = view->steps >= view->step ? (double)(view->steps - view->step) * board->pace : (double)NAN;
    if (view->state == AQ_BOARD_STARTING || view->state == AQ_BOARD_RESTARTING) view->state = AQ_BOARD_RUNNING;
    set_waits(board, "");
}

static void on_start(struct aq_board *board, const json_t *line)
{
    struct aq_board_view *view = &board->view;
    const uint64_t P = aq_control_u64_or(line, "stages", 1), W = aq_control_u64_or(line, "replicas", 1);
    snprintf(view->job, sizeof view->job, "%s", aq_control_text_or(line, "name", ""));
    snprintf(view->codec, sizeof view->codec, "%s", aq_control_text_or(line, "codec", ""));
    view->stages = P >= 1 && P <= AQ_JOB_STAGES_MAX ? (uint32_t)P : 1;
    view->ranks = W >= 1 && W <= AQ_JOB_RANKS_MAX / view->stages ? view->stages * (uint32_t)W : view->stages;
    for (uint32_t r = 0; r < view->ranks; r++) {
        const char *host = json_string_value(json_array_get(json_object_get(line, "hosts"), r));
        snprintf(view->rank[r].host, sizeof view->rank[r].host, "%s", host ? host : "");
    }
    memset(view->past, 0, sizeof view->past);
    view->steps = aq_control_u64_or(line, "steps_planned", 0);
    view->step = view->mark = aq_control_u64_or(line, "resumed", 0);
    set_state(board, AQ_BOARD_STARTING, "starts daemons and workers");
}

static void on_end(struct aq_board *board, const json_t *line)
{
    const char *state = aq_control_text_or(line, "state", "");
    board->view.left_s = 0;
    snprintf(board->view.cause, sizeof board->view.cause, "%s", aq_control_text_or(line, "cause", ""));
    set_state(board,
              strcmp(state, "done") == 0      ? AQ_BOARD_DONE
              : strcmp(state, "stopped") == 0 ? AQ_BOARD_STOPPED
                                              : AQ_BOARD_FAILED,
              "");
}

static void on_notice(struct aq_board_view *view, const json_t *line)
{
    const char *text = aq_control_text_or(line, "text", "");
    for (uint32_t i = 0; i < view->notices; i++)
        if (strcmp(view->notice[i].text, text) == 0) return;
    if (view->notices == AQ_BOARD_NOTICES_MAX) return;
    struct aq_board_notice *notice = &view->notice[view->notices++];
    snprintf(notice->text, sizeof notice->text, "%s", text);
    snprintf(notice->remedy, sizeof notice->remedy, "%s", aq_control_text_or(line, "remedy", ""));
}

void aq_board_line(struct aq_board *board, const json_t *line)
{
    if (!board) return;
    aq_mutex_lock(board->mutex);
    struct aq_board_view *view = &board->view;
    aq_curve_add(&view->curve, line);
    if (aq_control_is(line, "event", "step")) {
        on_step(board, line);
    } else if (aq_control_is(line, "event", "start")) {
        on_start(board, line);
    } else if (aq_control_is(line, "event", "go")) {
        set_state(board, AQ_BOARD_RUNNING, "computes the first step");
    } else if (aq_control_is(line, "event", "eval")) {
        view->heldout = aq_control_number_or(line, "loss", (double)NAN);
    } else if (aq_control_is(line, "event", "notice")) {
        on_notice(view, line);
    } else if (aq_control_is(line, "event", "restart")) {
        view->restarts = aq_control_u64_or(line, "restarts", 0);
        snprintf(view->cause, sizeof view->cause, "%s", aq_control_text_or(line, "cause", ""));
        set_state(board, AQ_BOARD_RESTARTING, "restarts from the last checkpoint");
    } else if (aq_control_is(line, "event", "end")) {
        on_end(board, line);
    }
    aq_mutex_unlock(board->mutex);
}

void aq_board_phase(struct aq_board *board, const char *text)
{
    if (!board) return;
    aq_mutex_lock(board->mutex);
    set_waits(board, text ? text : "");
    aq_mutex_unlock(board->mutex);
}

void aq_board_stopping(struct aq_board *board)
{
    if (!board) return;
    aq_mutex_lock(board->mutex);
    set_state(board, AQ_BOARD_STOPPING, "ends the step, and writes a checkpoint");
    aq_mutex_unlock(board->mutex);
}

const char *aq_board_does(const struct aq_board_rank *rank)
{
    if (rank->lives) return aq_phase_text(rank->phase);
    return rank->away_s > 0 ? "waits for its daemon, which is out of reach" : "is not there";
}

void aq_board_ranks(struct aq_board *board, const struct aq_board_rank *ranks, uint32_t count)
{
    if (!board) return;
    uint64_t mark = UINT64_MAX;
    aq_mutex_lock(board->mutex);
    for (uint32_t r = 0; r < count && r < AQ_JOB_RANKS_MAX; r++) {
        struct aq_board_rank *to = &board->view.rank[r];
        to->lives = ranks[r].lives;
        to->pid = ranks[r].pid;
        to->phase = ranks[r].phase;
        to->phase_s = ranks[r].phase_s;
        to->silent_s = ranks[r].silent_s;
        to->away_s = ranks[r].away_s;
        to->step = ranks[r].step;
        to->mark = ranks[r].mark;
        if (ranks[r].mark < mark) mark = ranks[r].mark;
    }
    if (count > 0 && mark > board->view.mark) board->view.mark = mark;
    aq_mutex_unlock(board->mutex);
}

void aq_board_split(struct aq_board *board, const struct aq_board_split *now, enum aq_board_state state,
                    const char *waits)
{
    if (!board) return;
    aq_mutex_lock(board->mutex);
    snprintf(board->view.job, sizeof board->view.job, "%s", now->job);
    board->view.split = *now;
    set_state(board, state, waits);
    aq_mutex_unlock(board->mutex);
}

/* The remedy, by the stage that is least far while a job starts. */
static const char *remedy_of(const struct aq_board_view *view)
{
    const char *remedy = state_remedies[view->state];
    if (view->split.rounds > 0) return *view->waits ? "start `aqpipe split-client` where a client is away" : "";
    if (view->state != AQ_BOARD_STARTING && view->state != AQ_BOARD_RESTARTING) return remedy;
    enum aq_phase least = AQ_PHASES;
    for (uint32_t r = 0; r < view->ranks; r++)
        if (view->rank[r].lives && view->rank[r].phase != AQ_PHASE_GO && view->rank[r].phase < least)
            least = view->rank[r].phase;
    return least < AQ_PHASES && remedies[least] ? remedies[least] : remedy;
}

void aq_board_look(struct aq_board *board, struct aq_board_view *view)
{
    aq_mutex_lock(board->mutex);
    *view = board->view;
    const uint64_t now = aq_clock_ns(), waits_ns = board->waits_ns;
    const uint64_t begin_ns = board->begin_ns;
    aq_mutex_unlock(board->mutex);
    view->waits_s = now > waits_ns ? (double)(now - waits_ns) * 1e-9 : 0;
    view->up_s = now > begin_ns ? (double)(now - begin_ns) * 1e-9 : 0;
    snprintf(view->remedy, sizeof view->remedy, "%s", remedy_of(view));
}
