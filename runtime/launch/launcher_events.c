/* launcher_events.c -- what daemons and workers report, and what follows from it. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bits_auto.h"
#include "cut_judge.h"
#include "heldout.h"
#include "launcher_private.h"
#include "owned_folder.h"

static void on_listening(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint64_t peer = launcher_peer(rank, message);
    stage_send(launcher, (uint32_t)peer,
               json_pack("{s:s, s:I, s:s, s:I}", "op", "connect", "rank", (json_int_t)peer, "address",
                         message->listening.address, "from", (json_int_t)rank));
}

static void to_all(struct launcher *launcher, const char *op, uint64_t step)
{
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        json_t *message = json_pack("{s:s, s:I}", "op", op, "rank", (json_int_t)r);
        if (step) json_object_set_new(message, "step", json_integer((json_int_t)step));
        if (strcmp(op, "go") == 0) launcher_steps_add(launcher, r, message);
        stage_send(launcher, r, message);
    }
}

/* The first step starts: prints how long that took. */
static void say_go(struct launcher *launcher)
{
    const struct aq_launch *launch = launcher->launch;
    const double seconds = (double)(aq_clock_ns() - launch->begin_ns) * 1e-9;
    json_t *devices = json_array();
    for (uint32_t r = 0; r < launcher->ranks; r++)
        json_array_append_new(devices, *launcher->stages[r].on ? json_string(launcher->stages[r].on) : json_null());
    const enum aq_status status =
        aq_metrics_line(launch->metrics, json_pack("{s:s, s:I, s:f, s:f, s:o}", "event", "go", "step",
                                                   (json_int_t)launch->resume, "start_seconds", seconds,
                                                   "checkpoint_seconds", launcher->read_seconds, "devices", devices));
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
    if (launch->resume > 0)
        aq_progress_say(launch->progress, "trains again after %.2f s, of which reading the checkpoint took %.2f s",
                        seconds, launcher->read_seconds);
}

/* Before the first step: what the last of those does that are not ready yet. */
void launcher_starting(struct launcher *launcher)
{
    uint32_t last = launcher->ranks;
    char who[RANK_NAME_BYTES];
    if (launcher->gone) return;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].state == STAGE_STARTED &&
            (last == launcher->ranks || launcher->stages[r].phase < launcher->stages[last].phase))
            last = r;
    if (last == launcher->ranks) return;
    aq_progress_phase(launcher->launch->progress, "%s %s (%u of %u ready)", rank_name(launcher, last, who),
                      aq_phase_text(launcher->stages[last].phase), launcher->ready, launcher->ranks);
}

/* edges.bits: auto. When every rank is about to start an epoch, sends each its levels: forward and backward. */
static void say_bits(struct launcher *launcher)
{
    const struct aq_launch *launch = launcher->launch;
    const uint32_t P = launch->stages;
    uint64_t done = launch->bounds.steps;
    uint32_t levels[2 * AQ_JOB_STAGES_MAX];
    if (!launch->bits || launcher->aborting) return;
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        const uint64_t step = launcher->stages[r].step > launch->resume ? launcher->stages[r].step : launch->resume;
        done = step < done ? step : done;
    }
    const uint64_t epoch = done / launch->epoch_steps;
    if (done == launch->bounds.steps || epoch < launcher->bits_epochs) return;
    launcher->bits_epochs = epoch + 1;
    const enum aq_status status = aq_bits_decide(launch->bits, epoch, levels);
    if (status != AQ_OK) {
        launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
        return;
    }
    for (uint32_t r = 0; r < launcher->ranks; r++) {
        const uint32_t s = r % P;
        const uint32_t forward = s + 1 < P ? levels[2 * s] : 0, backward = s > 0 ? levels[2 * s - 1] : 0;
        stage_send(launcher, r,
                   json_pack("{s:s, s:I, s:I, s:i, s:i}", "op", "bits", "rank", (json_int_t)r, "epoch",
                             (json_int_t)epoch, "forward", (int)forward, "backward", (int)backward));
    }
}

static void on_ready(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    launcher->stages[rank].state = STAGE_READY;
    const double seconds = message->ready.checkpoint_seconds;
    if (seconds > launcher->read_seconds) launcher->read_seconds = seconds;
    const char *device = message->ready.device, *on = message->ready.on;
    (void)aq_printable_text(on ? on : "", launcher->stages[rank].on, sizeof launcher->stages[rank].on);
    if (device)
        aq_progress_say(launcher->launch->progress, "rank %u, whose device is auto, is on %.200s", rank, device);
    launcher->rtt_ms = fmax(launcher->rtt_ms, message->ready.rtt_ms);
    if (launcher->gone) launcher_return_ready(launcher, rank);
    if (launcher->gone || ++launcher->ready < launcher->ranks || launcher->aborting) return;
    if (launcher->rtt_ms > 0)
        aq_progress_say(launcher->launch->progress,
                        "stages are up to %.0f ms of round trip apart, more than the plan assumes: set "
                        "link.rtt_ms: %.0f, and schedule and windows follow (aqpipe plan)",
                        launcher->rtt_ms, launcher->rtt_ms);
    launcher->gone = true;
    launcher->result->go_ns = aq_clock_ns();
    aq_watch_go(&launcher->watch);
    to_all(launcher, "go", 0);
    if (launcher->launch->ask) return; /* generation has no metrics, and its caller sets the phase */
    aq_metrics_go(launcher->launch->metrics);
    aq_progress_phase(launcher->launch->progress, "computes the first step");
    say_go(launcher);
    say_bits(launcher);
}

/* The phase between this step and the next one, by the plan, so that no worker needs to report it. */
static void phase_after(struct launcher *launcher, uint64_t step)
{
    const struct aq_launch_bounds *bounds = &launcher->launch->bounds;
    const bool last = step == (launcher->last_step ? launcher->last_step : bounds->steps);
    const bool evaluates = bounds->evaluates &&
                           launcher_is_due(bounds->evaluate_every, step + bounds->shift, bounds->steps + bounds->shift);
    const bool told = launcher->stages[launcher->launch->stages - 1].evaluated >= step;
    const char *phase = evaluates && !told ? "evaluates" : last ? "writes the checkpoint" : "computes the next step";
    aq_progress_phase(launcher->launch->progress, "%s", phase);
}

/* Prints and writes the losses that the step's line shows; ends the run if the job requires it. */
static enum aq_status judge_step(struct launcher *launcher, const json_t *joined)
{
    const struct aq_launch *launch = launcher->launch;
    struct aq_notice notices[AQ_NOTICES_AT_ONCE];
    const uint32_t count = aq_cut_judge_step(launch->judge, joined, notices);
    for (uint32_t i = 0; i < count; i++) {
        AQ_TRY(aq_metrics_line(launch->metrics, aq_notice_line(&notices[i], aq_control_u64_or(joined, "step", 0))));
        if (notices[i].ends)
            launcher_fail(launcher, CAUSE_OWN, AQ_INVAL, "%s: %s", notices[i].text, notices[i].remedy);
        else
            aq_progress_say(launch->progress, "%s: %s", notices[i].text, notices[i].remedy);
    }
    return AQ_OK;
}

/* Takes the line's reference; NULL: there is no new one, but fewer ranks are waited for. */
static void take_step(struct launcher *launcher, uint32_t rank, json_t *line)
{
    const json_t *joined;
    enum aq_status status = aq_metrics_step(launcher->launch->metrics, rank, line, &joined);
    while (status == AQ_OK && joined) {
        aq_progress_step(launcher->launch->progress, joined);
        phase_after(launcher, aq_control_u64_or(joined, "step", 0));
        status = judge_step(launcher, joined);
        if (status == AQ_OK) status = aq_metrics_step(launcher->launch->metrics, 0, NULL, &joined);
    }
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
}

static void on_step(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    if (launcher->launch->bits) aq_bits_step(launcher->launch->bits, rank, message->line);
    if (AQ_MESSAGE_HAS(message, step, keyframes) && message->step.keyframes > 0) launcher_return_cold(launcher, rank);
    say_bits(launcher);
    take_step(launcher, rank, json_incref(message->line));
}

/* The earliest step whose evaluation some replica has reported, and the others have not yet; 0: none. */
static uint64_t eval_step(const struct launcher *launcher)
{
    const uint32_t P = launcher->launch->stages;
    uint64_t first = 0;
    for (uint32_t w = 0; w < launcher->launch->replicas; w++) {
        const json_t *part = json_array_get(launcher->stages[w * P + P - 1].evals, 0);
        const uint64_t step = part ? aq_control_u64_or(part, "step", 0) : 0;
        if (step && (first == 0 || step < first)) first = step;
    }
    return first;
}

/*
 * Each replica evaluates a part of the held-out samples, and one may report steps ahead. When all that were not lost
 * then have reported the next evaluation, the parts are added in the order of replicas. A new reference, or NULL: not
 * yet.
 */
static json_t *join_evals(struct launcher *launcher)
{
    const uint32_t P = launcher->launch->stages, W = launcher->launch->replicas;
    struct stage *lasts = &launcher->stages[P - 1];
    struct aq_stage_loss all = {0}, coded = {0};
    const uint64_t step = eval_step(launcher);
    json_t *joined = NULL;
    if (step == 0) return NULL;
    for (uint32_t w = 0; w < W; w++)
        if (!launcher_was_lost(launcher, w * P, step) && json_array_size(lasts[w * P].evals) == 0) return NULL;
    for (uint32_t w = 0; w < W; w++) {
        if (launcher_was_lost(launcher, w * P, step)) continue;
        const json_t *part = json_array_get(lasts[w * P].evals, 0);
        if (aq_control_u64_or(part, "step", 0) != step)
            launcher_fail(launcher, CAUSE_OWN, AQ_PROTO, "replica %u has no evaluation after step %llu", w,
                          (unsigned long long)step);
        if (!joined) joined = json_copy((json_t *)part);
        aq_heldout_add(&all, part);
        aq_heldout_add_coded(&coded, part);
        json_array_remove(lasts[w * P].evals, 0);
    }
    aq_heldout_say(joined, aq_heldout_task(joined), &all);
    aq_heldout_say_coded(joined, &coded);
    return joined;
}

/* If evaluations may end the run, every rank waits for the launcher's line: all end after the same step, or none. */
static void judge_eval(struct launcher *launcher, const json_t *line)
{
    const struct aq_launch *launch = launcher->launch;
    struct aq_best *best = &launcher->result->best;
    const uint64_t step = aq_control_u64_or(line, "step", 0);
    (void)aq_best_take(best, line);
    if (launch->early_stop == 0) return;
    const bool stop = best->since >= launch->early_stop && step < launch->bounds.steps;
    if (stop) {
        launcher->result->early_step = step;
        aq_progress_say(launch->progress, "step %llu: %u evaluations without a better %s than after step %llu: the end",
                        (unsigned long long)step, best->since, best->figure, (unsigned long long)best->step);
    }
    for (uint32_t r = 0; r < launcher->ranks; r++)
        stage_send(launcher, r,
                   json_pack("{s:s, s:I, s:I, s:b}", "op", "evaluated", "rank", (json_int_t)r, "step", (json_int_t)step,
                             "stop", stop));
}

/* Takes the reference. */
static void take_eval(struct launcher *launcher, json_t *joined)
{
    const enum aq_status status = aq_metrics_line(launcher->launch->metrics, json_incref(joined));
    aq_progress_eval(launcher->launch->progress, joined);
    phase_after(launcher, aq_control_u64_or(joined, "step", 0));
    if (status == AQ_OK && launcher->result->best.figure) judge_eval(launcher, joined);
    json_decref(joined);
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
}

static void on_eval(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    json_t *joined;
    if (launcher->launch->replicas == 1) {
        take_eval(launcher, json_incref(message->line));
        return;
    }
    if (!stage->evals) stage->evals = json_array();
    json_array_append(stage->evals, message->line);
    while ((joined = join_evals(launcher)))
        take_eval(launcher, joined);
}

void launcher_flush(struct launcher *launcher)
{
    json_t *joined;
    take_step(launcher, 0, NULL);
    while ((joined = join_evals(launcher)))
        take_eval(launcher, joined);
}

/*
 * The list of complete checkpoints with this one and the earlier ones of this run, the newest first, at most `room`. A
 * checkpoint later than the one resumed from could not be read, or will be written again.
 */
static void kept_with(const struct aq_run_mark *old, uint64_t before, uint32_t room, struct aq_run_mark *mark)
{
    mark->kept[mark->kept_count++] = mark->step;
    for (uint32_t i = 0; i < old->kept_count && mark->kept_count < room; i++)
        if (old->kept[i] <= before && old->kept[i] < mark->step) mark->kept[mark->kept_count++] = old->kept[i];
}

static void forget(struct launcher *launcher, uint64_t step)
{
    if (step == launcher->best_kept || step == launcher->result->best.step) return;
    hosts_send(launcher, json_pack("{s:s, s:I}", "op", "forget", "step", (json_int_t)step));
}

/* The best evaluation's checkpoint is complete: the one that was the best may go, if it is not among the newest. */
static void best_keep(struct launcher *launcher, const struct aq_run_mark *mark)
{
    const uint64_t before = launcher->best_kept, best = launcher->result->best.step;
    if (best == 0 || best > mark->step || best == before) return;
    launcher->best_kept = best;
    for (uint32_t i = 0; i < launcher->launch->keep && i < mark->kept_count; i++)
        if (mark->kept[i] == before) return; /* it goes when it is old */
    if (before) forget(launcher, before);
}

/* Every rank has the checkpoint of this step: commit it, notify them, and drop the oldest that this run committed. */
static enum aq_status complete(struct launcher *launcher, uint64_t step)
{
    const struct aq_launch *launch = launcher->launch;
    const struct aq_owner owner = {
        .job = launch->name, .id = launch->id, .resume_hash = launch->resume_hash, .plan_hash = launch->plan_hash};
    const uint64_t before = launcher->result->mark;
    struct aq_run_mark old = {0}, mark = {.step = step,
                                          .older = launch->keep > 1 && before < step ? before : 0,
                                          .metrics = aq_metrics_bytes_after(launch->metrics, step),
                                          .older_metrics = launcher->mark_bytes,
                                          .plan_hash = launch->plan_hash,
                                          .resume_hash = launch->resume_hash};
    AQ_TRY(aq_metrics_sync(launch->metrics));
    AQ_TRY(aq_owned_check(launch->checkpoint, AQ_OWNED_CHECKPOINT, launch->id));
    if (before > 0) AQ_TRY(aq_run_mark_read(launch->checkpoint, &old));
    kept_with(&old, before, launch->keep + AQ_RUN_FORGET_AGAIN, &mark);
    AQ_TRY(launcher_hashes_note(launcher, step, mark.older));
    AQ_TRY(aq_run_mark_write(launch->checkpoint, &mark));
    /* After the mark: killed in between, the run has its checkpoint. */
    if (!launcher->noted) AQ_TRY(aq_owned_note(launch->run, &owner, true));
    launcher->noted = true;
    launcher->result->mark = step;
    launcher->mark_bytes = mark.metrics;
    to_all(launcher, "marked", step);
    best_keep(launcher, &mark);
    for (uint32_t i = launch->keep; i < mark.kept_count; i++)
        forget(launcher, mark.kept[i]);
    for (uint32_t i = 0; i < old.kept_count; i++)
        if (old.kept[i] > before && old.kept[i] < step) forget(launcher, old.kept[i]);
    return AQ_OK;
}

/* Have all replicas of a stage put the same weights into this checkpoint? If not, that is the run's cause. */
static bool are_alike(struct launcher *launcher, uint64_t step)
{
    const uint32_t P = launcher->launch->stages;
    char who[RANK_NAME_BYTES], other[RANK_NAME_BYTES];
    for (uint32_t s = 0; s < P; s++)
        for (uint32_t r = s, first = launcher->ranks; r < launcher->ranks; r += P) {
            if (launcher_was_lost(launcher, r, step)) continue;
            if (first == launcher->ranks) first = r;
            if (launcher->stages[r].weights == launcher->stages[first].weights) continue;
            launcher_fail(launcher, CAUSE_OWN, AQ_MISMATCH,
                          "step %llu: the weights of %s (digest %016llx) differ from those of %s (%016llx)",
                          (unsigned long long)step, rank_name(launcher, r, who),
                          (unsigned long long)launcher->stages[r].weights, rank_name(launcher, first, other),
                          (unsigned long long)launcher->stages[first].weights);
            return false;
        }
    return true;
}

/* A checkpoint that a lost replica's files are missing of: those that live go on, and it goes. */
static void break_off(struct launcher *launcher, uint64_t step)
{
    to_all(launcher, "marked", step);
    hosts_send(launcher, json_pack("{s:s, s:I}", "op", "forget", "step", (json_int_t)step));
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].mark == step) launcher->stages[r].mark = launcher->result->mark;
}

/* Has every rank that lives put the checkpoint of this step on disk? */
static void look_at_mark(struct launcher *launcher, uint64_t step)
{
    enum aq_status status = AQ_OK;
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (launcher->stages[r].mark != step && !launcher_was_lost(launcher, r, step)) return;
    if (!are_alike(launcher, step)) return;
    launcher_return_marked(launcher, step, !launcher_is_dropped(launcher, step));
    if (launcher_is_dropped(launcher, step))
        break_off(launcher, step);
    else
        status = complete(launcher, step);
    if (status != AQ_OK) launcher_fail(launcher, CAUSE_OWN, status, "%s", aq_error_text());
    if (status == AQ_OK) launcher_rounds_marked(launcher, step);
}

void launcher_flush_mark(struct launcher *launcher)
{
    for (uint32_t r = 0; r < launcher->ranks; r++)
        if (!launcher_is_lost(launcher, r) && launcher->stages[r].mark > launcher->result->mark) {
            look_at_mark(launcher, launcher->stages[r].mark); /* those under way are of one step */
            return;
        }
}

static void on_mark(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint64_t step = message->mark.step;
    if (!launcher_hash_told(launcher, rank, message->mark.sha256 ? message->mark.sha256 : "")) {
        launcher_fail(launcher, CAUSE_OWN, AQ_PROTO, "rank %u reports a checkpoint of step %llu without a SHA-256",
                      rank, (unsigned long long)step);
        return;
    }
    launcher->stages[rank].mark = step;
    launcher->stages[rank].weights = AQ_MESSAGE_HAS(message, mark, weights) ? message->mark.weights : 0;
    look_at_mark(launcher, step);
}

static void on_trace(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const char *text = message->trace.text;
    (void)rank;
    if (!text || !launcher->launch->trace || launcher->trace_failed) return;
    if (!launcher->trace) {
        int fd = -1;
        const enum aq_status status = aq_file_open(NULL, launcher->launch->trace, AQ_FILE_ANEW, &fd);
        launcher->trace = status == AQ_OK ? fdopen(fd, "w") : NULL;
        if (!launcher->trace && fd != -1) close(fd);
        if (!launcher->trace || fputs("[\n", launcher->trace) == EOF) launcher->trace_failed = true;
    }
    if (!launcher->trace_failed && fputs(text, launcher->trace) == EOF) launcher->trace_failed = true;
    /* A trace is for looking at: that it cannot be written ends no run. */
    if (launcher->trace_failed) (void)aq_fail_errno("launch", "cannot write %s", launcher->launch->trace);
}

static void on_stopping(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    (void)rank;
    launcher->last_step = message->stopping.step;
    aq_progress_say(launcher->launch->progress, "step %llu is the last one", (unsigned long long)launcher->last_step);
}

static void on_round(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    launcher_rounds_came(launcher, rank, message->round_end.step);
}

static void on_averaged(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    const uint64_t ended = AQ_MESSAGE_HAS(message, averaged, ended) ? message->averaged.ended : 0;
    launcher_rounds_averaged(launcher, rank, message->averaged.whole, ended);
}

static void on_token(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    (void)rank;
    launcher->token = (uint32_t)message->token.token;
    launcher->token_due = false;
}

static void on_done(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    struct stage *stage = &launcher->stages[rank];
    stage->done = true;
    stage->state = STAGE_DONE;
    stage->report = json_incref(message->line);
    if (message->done.stopped) launcher->stopped = true;
}

/* Failures that a restart may cure, once the job has run: a passing fault of a link, neighbour or disk. */
static bool is_transient(const struct launcher *launcher, enum aq_status status)
{
    const bool passing =
        status == AQ_CLOSED || status == AQ_ABORTED || status == AQ_TIMEOUT || status == AQ_IO || status == AQ_CORRUPT;
    return passing && (launcher->gone || launcher->launch->again);
}

static void on_failed(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    static const enum aq_status echoes[] = {AQ_CLOSED, AQ_ABORTED, AQ_TIMEOUT};
    const char *name = message->failed.status ? message->failed.status : "";
    const char *text = message->failed.text ? message->failed.text : "it gives no reason";
    enum cause_class cause = CAUSE_OWN;
    enum aq_status status = AQ_IO;
    for (size_t i = 0; i < sizeof echoes / sizeof *echoes; i++)
        if (strcmp(name, aq_status_text(echoes[i])) == 0) cause = CAUSE_ECHO;
    if (launcher->rounds.gathers && launcher->stages[rank].file.asked) cause = CAUSE_ECHO; /* its writer may be lost */
    for (int s = 1; s < AQ_STATUS_COUNT; s++)
        if (strcmp(name, aq_status_text((enum aq_status)s)) == 0) status = (enum aq_status)s;
    launcher->stages[rank].failed = true;
    char who[RANK_NAME_BYTES];
    const struct launcher_replica *of = &launcher->rounds.replicas[rank / launcher->launch->stages];
    /* With reduce.every: 1 void steps are void for all: train.skips_max ends the run. */
    const bool common = status == AQ_INVAL && launcher->launch->bounds.round_steps <= 1 &&
                        of->state == REPLICA_TRAINS && !launcher_is_ignored(launcher, rank);
    if (!common && launcher_rounds_lose(launcher, rank, text)) return;
    if (!launcher_fail(launcher, cause, status, "%s failed: %.800s", rank_name(launcher, rank, who), text)) return;
    launcher->result->unreadable = message->failed.checkpoint > 0;
    launcher->result->transient = launcher->result->unreadable || is_transient(launcher, status);
}

static void on_exited(struct launcher *launcher, uint32_t rank, const struct aq_message_exited *exited)
{
    struct stage *stage = &launcher->stages[rank];
    if (stage->state == STAGE_EXITED || stage->state == STAGE_NONE) return;
    stage->state = STAGE_EXITED;
    launcher->ended++;
    aq_watch_stage_gone(&launcher->watch, rank);
    if (launcher_return_exited(launcher, rank)) return;
    const uint64_t sig = exited->signal, code = exited->code;
    const int pid = (int)exited->pid;
    const char *last = exited->last ? exited->last : "", *why = exited->why ? exited->why : "";
    if (stage->failed || (stage->done && sig == 0 && code == 0)) return;
    if (launcher_rounds_lose(launcher, rank, sig > 0 ? "was killed" : "ended")) return;
    const char *gap = *last ? "; its last line: " : "";
    char who[RANK_NAME_BYTES];
    bool noted;
    rank_name(launcher, rank, who);
    if (sig > 0)
        noted =
            launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED, "%s (pid %d) was killed by signal %llu (%s)%s%.200s%s%.400s",
                          who, pid, (unsigned long long)sig, sigabbrev_np((int)sig) ? sigabbrev_np((int)sig) : "?",
                          *why ? ": " : "", why, gap, last);
    else
        noted = launcher_fail(launcher, CAUSE_OWN, AQ_ABORTED,
                              "%s (pid %d) ended with code %llu before it was done%s%.400s", who, pid,
                              (unsigned long long)code, gap, last);
    if (noted) launcher->result->transient = sig > 0 || launcher->gone || launcher->launch->again;
}

/* The check has noted the phase. */
static void on_phase(struct launcher *launcher, uint32_t rank, const struct aq_message *message)
{
    (void)rank;
    (void)message;
    launcher_starting(launcher);
    launcher_return_gathered(launcher);
    launcher_rounds_turn(launcher); /* a replica that returns may be waited for */
}

static void (*const handlers[AQ_MESSAGES])(struct launcher *, uint32_t rank, const struct aq_message *) = {
    [AQ_MESSAGE_listening] = on_listening,
    [AQ_MESSAGE_phase] = on_phase,
    [AQ_MESSAGE_ready] = on_ready,
    [AQ_MESSAGE_step] = on_step,
    [AQ_MESSAGE_eval] = on_eval,
    [AQ_MESSAGE_mark] = on_mark,
    [AQ_MESSAGE_stopping] = on_stopping,
    [AQ_MESSAGE_trace] = on_trace,
    [AQ_MESSAGE_token] = on_token,
    [AQ_MESSAGE_done] = on_done,
    [AQ_MESSAGE_failed] = on_failed,
    [AQ_MESSAGE_round_end] = on_round,
    [AQ_MESSAGE_averaged] = on_averaged,
    [AQ_MESSAGE_stood_in] = launcher_return_stood_in,
    [AQ_MESSAGE_fetch] = launcher_return_fetch,
    [AQ_MESSAGE_ungiven] = launcher_return_ungiven,
};

static void daemon_wrong(struct launcher *launcher, struct host *host, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void daemon_wrong(struct launcher *launcher, struct host *host, const char *format, ...)
{
    char text[AQ_MESSAGE_WRONG_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    launcher_fail(launcher, CAUSE_OWN, AQ_PROTO, "the daemon of %s breaks the protocol: %s",
                  host->address ? host->address : "this machine", text);
    host_lost(launcher, host, AQ_PROTO, NULL);
}

/* A line of the daemon itself. False: it is not one. */
static bool daemon_event(struct launcher *launcher, struct host *host, json_t *line, struct aq_message *message)
{
    const enum aq_message_id id = aq_message_find(line, AQ_END_DAEMON, AQ_END_LAUNCHER);
    struct aq_message_wrong wrong;
    if (id != AQ_MESSAGE_beat && id != AQ_MESSAGE_exited && id != AQ_MESSAGE_stop_asked) return false;
    if (!aq_message_read(id, line, NULL, message, &wrong))
        daemon_wrong(launcher, host, "it %s", wrong.text);
    else if (id == AQ_MESSAGE_exited)
        on_exited(launcher, (uint32_t)message->exited.rank, &message->exited);
    else if (id == AQ_MESSAGE_beat)
        watch_beat(launcher, message);
    else {
        char who[128];
        snprintf(who, sizeof who, "%s", message->stop_asked.by ? message->stop_asked.by : "a daemon");
        launcher_stop(launcher, who);
    }
    return true;
}

void launcher_event(struct launcher *launcher, struct host *host, json_t *line)
{
    const char *event = aq_control_text_or(line, "event", "");
    struct aq_message message;
    uint32_t rank = 0;
    watch_heard(launcher, host);
    if (strcmp(event, "beat") == 0 && !json_object_get(line, "rank")) return; /* the daemon's own */
    if (strcmp(event, "stop-asked") != 0 &&
        (aq_control_get_u32(line, "rank", &rank) != AQ_OK || rank >= launcher->ranks ||
         &launcher->hosts[launcher->stages[rank].host] != host)) {
        daemon_wrong(launcher, host, "its line '%.32s' is of no rank that it runs", event);
        return;
    }
    if (daemon_event(launcher, host, line, &message) || launcher_is_ignored(launcher, rank)) return;
    if (!launcher_expects(launcher, rank, line, &message)) return;
    aq_watch_stage_heard(&launcher->watch, rank);
    if (handlers[message.id]) handlers[message.id](launcher, rank, &message);
}
