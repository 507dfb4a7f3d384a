/* report.c -- one pass over metrics.jsonl adds up what the report says; see the header for what is a mean over what. */
#include "report.h"

#include <math.h>
#include <string.h>

#include "control.h"
#include "job.h"
#include "progress.h"
#include "run_folder.h"

struct sums {
    uint64_t steps;
    double samples, seconds;
    double forward[AQ_JOB_STAGES_MAX], backward[AQ_JOB_STAGES_MAX], keyframes; /* link e: between stage e and e+1 */
    double gradient;                                                           /* between replicas, of all ranks */
    double forward_wire, backward_wire, gradient_wire;                         /* packed: what links carried */
};

struct curve { /* a mean over an epoch */
    double sum;
    uint64_t count;
};

struct gather {
    json_t *start, *eval, *end, *choice; /* choice: codec of the reductions by rank, where it was chosen */
    uint32_t stages, replicas;
    uint64_t step, restarts, skipped;
    double fetched, loss_scale; /* of the last step; 0: not fp16 */
    int64_t epoch_first, epoch_last; /* -1: none yet */
    struct sums cold, warm;
    double packing_ns, link_wait_ns, wait_ns, reduce_ns, optimizer_ns, stage_seconds;
    double time, loss_first, loss_last;
    struct curve first_epoch, last_epoch;
};

/* array[i] as a number, 0 where there is none. */
static double item(const json_t *line, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(line, key), i);
    return json_is_number(value) ? json_number_value(value) : 0;
}

/* Bytes and what packing left of them; a run from before packing left all. */
static double wire(const json_t *line, const char *bytes, const char *packed, size_t i)
{
    const double left = item(line, packed, i);
    return item(line, bytes, i) * (left > 0 ? left : 1);
}

static void add_loss(struct gather *g, double loss)
{
    if (!isfinite(loss)) return;
    if (g->first_epoch.count == 0) g->loss_first = loss;
    g->loss_last = loss;
    if (g->epoch_last == g->epoch_first) {
        g->first_epoch.sum += loss;
        g->first_epoch.count++;
    }
    g->last_epoch.sum += loss;
    g->last_epoch.count++;
}

static void add_step(struct gather *g, const json_t *line)
{
    const int64_t epoch = (int64_t)aq_control_u64_or(line, "epoch", 0);
    if (g->epoch_first < 0) g->epoch_first = epoch;
    if (epoch != g->epoch_last) g->last_epoch = (struct curve){0};
    g->epoch_last = epoch;
    const size_t ranks = json_array_size(json_object_get(line, "link_wait_ns"));
    if (g->stages == 0 && ranks <= AQ_JOB_STAGES_MAX) g->stages = (uint32_t)ranks; /* no start line: one replica */
    struct sums *sums = epoch == g->epoch_first ? &g->cold : &g->warm;
    const double seconds = aq_control_number_or(line, "seconds", 0);
    sums->steps++;
    sums->samples += aq_control_number_or(line, "samples", 0);
    sums->seconds += seconds;
    g->skipped += aq_control_bool_or(line, "skipped", false);
    g->loss_scale = aq_control_number_or(line, "loss_scale", g->loss_scale);
    for (size_t r = 0; r < ranks && r < AQ_JOB_RANKS_MAX && g->stages > 0; r++) {
        const size_t s = r % g->stages;
        sums->forward[s] += item(line, "forward_bytes", r);
        if (s > 0) sums->backward[s - 1] += item(line, "backward_bytes", r);
        sums->gradient += item(line, "gradient_bytes", r);
        sums->forward_wire += wire(line, "forward_bytes", "forward_packed", r);
        sums->backward_wire += wire(line, "backward_bytes", "backward_packed", r);
        sums->gradient_wire += wire(line, "gradient_bytes", "gradient_packed", r);
        g->packing_ns += item(line, "packing_ns", r);
        g->reduce_ns += item(line, "reduce_ns", r);
        g->optimizer_ns += item(line, "optimizer_ns", r);
        sums->keyframes += item(line, "keyframes", r);
        g->fetched += item(line, "fetched", r);
        g->link_wait_ns += item(line, "link_wait_ns", r);
        g->wait_ns += item(line, "wait_ns", r);
        g->stage_seconds += item(line, "stage_seconds", r);
    }
    g->step = aq_control_u64_or(line, "step", g->step);
    add_loss(g, aq_control_number_or(line, "loss", (double)NAN));
}

static void replace(json_t **slot, const json_t *line)
{
    json_decref(*slot);
    *slot = json_incref((json_t *)(uintptr_t)line);
}

static void add_choice(struct gather *g, const json_t *line)
{
    const json_t *codecs = json_object_get(line, "reduce_codec");
    if (codecs) replace(&g->choice, codecs);
}

static enum aq_status visit(const json_t *line, void *context)
{
    struct gather *g = context;
    g->time = aq_control_number_or(line, "time", g->time);
    if (aq_control_is(line, "event", "start")) {
        const uint64_t stages = aq_control_u64_or(line, "stages", 0), replicas = aq_control_u64_or(line, "replicas", 1);
        replace(&g->start, line);
        if (stages >= 1 && stages <= AQ_JOB_STAGES_MAX) g->stages = (uint32_t)stages;
        if (replicas >= 1 && replicas <= AQ_JOB_RANKS_MAX) g->replicas = (uint32_t)replicas;
    }
    if (aq_control_is(line, "event", "step")) add_choice(g, line);
    if (aq_control_is(line, "event", "step"))
        add_step(g, line);
    else if (aq_control_is(line, "event", "restart"))
        g->restarts++;
    else if (aq_control_is(line, "event", "eval"))
        replace(&g->eval, line);
    else if (aq_control_is(line, "event", "end"))
        replace(&g->end, line);
    return AQ_OK;
}

static json_t *copy(const json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    return value ? json_incref(value) : json_null();
}

static json_t *mean(double sum, double count)
{
    return count > 0 ? aq_control_number(sum / count) : json_null();
}

/*
 * Bytes of a step, means: forward and backward of one link over the links and replicas, gradient of one rank over all
 * ranks (sent to the other replicas); with _wire, what the links carried of them: packed (link.entropy). Null where
 * there was no step.
 */
static json_t *bytes_per_step(const struct gather *g, const struct sums *a, const struct sums *b)
{
    const uint32_t links = g->stages > 1 ? g->stages - 1 : 0;
    const double steps = (double)(a->steps + (b ? b->steps : 0));
    double forward = 0, backward = 0;
    for (uint32_t e = 0; e < links; e++) {
        forward += a->forward[e] + (b ? b->forward[e] : 0);
        backward += a->backward[e] + (b ? b->backward[e] : 0);
    }
    if (steps == 0) return json_null();
    const double all = steps * (links ? links : 1) * g->replicas;
    const double gradient = a->gradient + (b ? b->gradient : 0), ranks = steps * g->stages * g->replicas;
    return json_pack("{s:o, s:o, s:f, s:o, s:o, s:f}", "forward", aq_control_number(forward / all), "backward",
                     aq_control_number(backward / all), "gradient", gradient / ranks, "forward_wire",
                     aq_control_number((a->forward_wire + (b ? b->forward_wire : 0)) / all), "backward_wire",
                     aq_control_number((a->backward_wire + (b ? b->backward_wire : 0)) / all), "gradient_wire",
                     (a->gradient_wire + (b ? b->gradient_wire : 0)) / ranks);
}

/* What packing left of all bytes that were counted above. */
static json_t *packed(const struct gather *g)
{
    double bytes = 0, wires = 0;
    const struct sums *const both[] = {&g->cold, &g->warm};
    for (int i = 0; i < 2; i++) {
        for (uint32_t e = 0; e < g->stages; e++)
            bytes += both[i]->forward[e] + both[i]->backward[e];
        bytes += both[i]->gradient;
        wires += both[i]->forward_wire + both[i]->backward_wire + both[i]->gradient_wire;
    }
    return mean(wires, bytes);
}

static json_t *links(const struct gather *g)
{
    json_t *list = json_array();
    const double steps = (double)(g->cold.steps + g->warm.steps) * g->replicas;
    const double warm = (double)g->warm.steps * g->replicas;
    for (uint32_t e = 0; e + 1 < g->stages; e++)
        json_array_append_new(list, json_pack("{s:I, s:o, s:o, s:o, s:o}", "link", (json_int_t)e, "forward",
                                              mean(g->cold.forward[e] + g->warm.forward[e], steps), "backward",
                                              mean(g->cold.backward[e] + g->warm.backward[e], steps), "forward_warm",
                                              mean(g->warm.forward[e], warm), "backward_warm",
                                              mean(g->warm.backward[e], warm)));
    return list;
}

/* What the stages said at their end. */
static void add_stages(const struct gather *g, json_t *report)
{
    const json_t *stages = json_object_get(g->end, "stages"), *planned = json_object_get(g->start, "memory_planned"),
                 *stage;
    double cache = 0, sent = 0, heals = 0, outage_ns = 0;
    json_t *memory = json_array();
    size_t r;
    json_array_foreach(stages, r, stage)
    {
        cache += aq_control_number_or(stage, "cache_bytes", 0);
        sent += aq_control_number_or(stage, "sent_wire_bytes", 0);
        heals += aq_control_number_or(stage, "heals", 0);
        outage_ns += aq_control_number_or(stage, "outage_ns", 0);
        const json_t *plan = json_array_get(planned, r);
        json_array_append_new(memory,
                              json_pack("{s:I, s:I, s:I, s:I}", "stage", (json_int_t)(g->stages ? r % g->stages : r),
                                        "replica", (json_int_t)(g->stages ? r / g->stages : 0), "measured",
                                        (json_int_t)aq_control_u64_or(stage, "memory_bytes", 0), "planned",
                                        json_is_integer(plan) ? json_integer_value(plan) : 0));
    }
    json_object_set_new(report, "cache_bytes", stages ? json_integer((json_int_t)cache) : json_null());
    json_object_set_new(report, "sent_wire_bytes", stages ? json_integer((json_int_t)sent) : json_null());
    json_object_set_new(report, "heals", stages ? json_integer((json_int_t)heals) : json_null());
    json_object_set_new(report, "outage_seconds", stages ? aq_control_number(outage_ns * 1e-9) : json_null());
    json_object_set_new(report, "memory", memory);
}

static json_t *make(const struct gather *g)
{
    const struct sums *c = &g->cold, *w = &g->warm;
    json_t *report = json_object();
    static const char *const copied[] = {"name", "codec", "plan_hash", "edges", "rate_mbps", "batch", "steps_planned"};
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        json_object_set_new(report, copied[i], copy(g->start, copied[i]));
    json_object_set_new(report, "state", g->end ? copy(g->end, "state") : json_string("unfinished"));
    if (g->end && json_object_get(g->end, "cause")) json_object_set_new(report, "cause", copy(g->end, "cause"));
    json_object_set_new(report, "stages", json_integer(g->stages));
    json_object_set_new(report, "replicas", json_integer(g->replicas));
    json_object_set_new(report, "reduce_codec", g->choice ? json_incref(g->choice) : json_null());
    json_object_set_new(report, "steps", json_integer((json_int_t)g->step));
    json_object_set_new(report, "steps_skipped", json_integer((json_int_t)g->skipped));
    if (g->loss_scale > 0) json_object_set_new(report, "loss_scale", aq_control_number(g->loss_scale));
    json_object_set_new(report, "epochs",
                        json_integer((json_int_t)(g->epoch_first < 0 ? 0 : g->epoch_last - g->epoch_first + 1)));
    json_object_set_new(report, "seconds", aq_control_number(g->time));
    json_object_set_new(report, "sequences_per_second", mean(c->samples + w->samples, c->seconds + w->seconds));
    json_object_set_new(report, "sequences_per_second_warm", mean(w->samples, w->seconds));
    json_object_set_new(report, "step_seconds", mean(c->seconds + w->seconds, (double)(c->steps + w->steps)));
    json_object_set_new(report, "step_seconds_warm", mean(w->seconds, (double)w->steps));
    json_object_set_new(report, "bytes_per_step", bytes_per_step(g, c, w));
    json_object_set_new(report, "bytes_per_step_cold", bytes_per_step(g, c, NULL));
    json_object_set_new(report, "bytes_per_step_warm", bytes_per_step(g, w, NULL));
    json_object_set_new(report, "packed", packed(g));
    json_object_set_new(report, "links", links(g));
    json_object_set_new(report, "keyframes", aq_control_number(c->keyframes + w->keyframes));
    json_object_set_new(report, "fetched", aq_control_number(g->fetched));
    json_object_set_new(report, "restarts", json_integer((json_int_t)g->restarts));
    json_object_set_new(report, "link_wait_share", mean(g->link_wait_ns * 1e-9, g->stage_seconds));
    json_object_set_new(report, "packing_share", mean(g->packing_ns * 1e-9, g->stage_seconds));
    json_object_set_new(report, "wait_share", mean(g->wait_ns * 1e-9, g->stage_seconds));
    json_object_set_new(report, "reduce_share", mean(g->reduce_ns * 1e-9, g->stage_seconds));
    json_object_set_new(report, "optimizer_share", mean(g->optimizer_ns * 1e-9, g->stage_seconds));
    json_object_set_new(report, "train_loss",
                        json_pack("{s:o, s:o, s:o, s:o}", "first",
                                  mean(g->loss_first, (double)g->first_epoch.count > 0), "last",
                                  mean(g->loss_last, (double)g->first_epoch.count > 0), "first_epoch",
                                  mean(g->first_epoch.sum, (double)g->first_epoch.count), "last_epoch",
                                  mean(g->last_epoch.sum, (double)g->last_epoch.count)));
    json_object_set_new(report, "heldout",
                        json_pack("{s:o, s:o, s:o, s:o}", "loss", copy(g->eval, "loss"), "perplexity",
                                  copy(g->eval, "perplexity"), "targets", copy(g->eval, "targets"), "step",
                                  copy(g->eval, "step")));
    add_stages(g, report);
    return report;
}

static enum aq_status walk(const char *folder, enum aq_status (*each)(const json_t *, void *), void *context)
{
    char path[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    const enum aq_status status = aq_run_lines(path, each, context);
    if (status == AQ_NOTFOUND)
        return aq_fail(status, "report", "%s: there is no such file; is %s a run folder?", path, folder);
    return status;
}

enum aq_status aq_report_run(const char *folder, json_t **out)
{
    struct gather g = {.epoch_first = -1, .epoch_last = -1, .replicas = 1};
    enum aq_status status = walk(folder, visit, &g);
    if (status == AQ_OK && !g.start)
        status = aq_fail(AQ_CORRUPT, "report", "the metrics of %s have no start line", folder);
    if (status == AQ_OK) *out = make(&g);
    json_decref(g.start);
    json_decref(g.eval);
    json_decref(g.end);
    json_decref(g.choice);
    return status;
}

static int add_piece(const char *bytes, size_t count, void *text)
{
    aq_text_bytes(text, bytes, count);
    return ((struct aq_text *)text)->status == AQ_OK ? 0 : -1;
}

enum aq_status aq_report_write(json_t *runs, const char *path)
{
    json_t *report = json_pack("{s:o}", "runs", runs);
    struct aq_text text = {0};
    enum aq_status status = AQ_OK;
    if (!report ||
        json_dump_callback(report, add_piece, &text, JSON_INDENT(1) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9)) != 0)
        status = aq_fail(AQ_NOMEM, "report", "no memory for the report");
    json_decref(report);
    aq_text_add(&text, "\n");
    if (status == AQ_OK) status = text.status;
    if (status == AQ_OK) status = aq_run_write(path, aq_text_of(&text), text.used);
    aq_text_deinit(&text);
    return status;
}

struct tsv {
    struct aq_text *text;
    double heldout;
};

static enum aq_status tsv_line(const json_t *line, void *context)
{
    struct tsv *tsv = context;
    if (aq_control_is(line, "event", "eval"))
        aq_text_add(tsv->text, "%llu\t%.6g\tnan\tnan\t%.9g\tnan\tnan\n",
                    (unsigned long long)aq_control_u64_or(line, "step", 0), aq_control_number_or(line, "time", 0),
                    aq_control_number_or(line, "loss", (double)NAN));
    if (!aq_control_is(line, "event", "step")) return AQ_OK;
    aq_text_add(tsv->text, "%llu\t%.6g\t%.6g\t%.9g\tnan\t%.6g\t%.4f\n",
                (unsigned long long)aq_control_u64_or(line, "step", 0), aq_control_number_or(line, "time", 0),
                aq_control_number_or(line, "epoch", 0), aq_control_number_or(line, "loss", (double)NAN),
                aq_control_number_or(line, "sequences_per_second", 0), aq_progress_link_wait(line));
    return tsv->text->status;
}

enum aq_status aq_report_tsv(const char *folder, struct aq_text *text)
{
    struct tsv tsv = {.text = text};
    aq_text_add(text, "step\ttime\tepoch\tloss\theldout_loss\tsequences_per_second\tlink_wait_share\n");
    return walk(folder, tsv_line, &tsv);
}
