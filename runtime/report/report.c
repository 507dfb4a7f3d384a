/* report.c -- the report, from the sums of report_sums.c; the header defines the means. */
#include "report.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "heldout.h"
#include "json_text.h"
#include "metrics_index.h"
#include "progress.h"
#include "report_sums.h"
#include "run_folder.h"
#include "run_lines.h"

static json_t *copy(const json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    return value ? json_incref(value) : json_null();
}

/*
 * Loss, the task's metrics, targets and step of the last evaluation; nulls where there was none. loss_coded: through
 * the cuts' forward codecs, where the run measured that: after its last step.
 */
static json_t *heldout_of(const json_t *eval)
{
    const struct aq_task *task = aq_heldout_task(eval);
    json_t *all = json_pack("{s:o}", "loss", copy(eval, "loss"));
    const char *name;
    bool higher;
    for (uint32_t i = 0; (name = aq_task_metric(task, i, &higher)) != NULL; i++)
        json_object_set_new(all, name, copy(eval, name));
    json_object_set_new(all, "loss_coded", copy(eval, "loss_coded"));
    json_object_set_new(all, "targets", copy(eval, "targets"));
    json_object_set_new(all, "step", copy(eval, "step"));
    return all;
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
static json_t *bytes_per_step(const struct aq_report_sums *g, const struct aq_report_part *a,
                              const struct aq_report_part *b)
{
    const uint32_t links = g->n.stages > 1 ? g->n.stages - 1 : 0;
    const double steps = (double)(a->steps + (b ? b->steps : 0));
    double forward = 0, backward = 0;
    for (uint32_t e = 0; e < links; e++) {
        forward += a->forward[e] + (b ? b->forward[e] : 0);
        backward += a->backward[e] + (b ? b->backward[e] : 0);
    }
    if (steps == 0) return json_null();
    const double all = steps * (links ? links : 1) * g->n.replicas;
    const double gradient = a->gradient + (b ? b->gradient : 0), ranks = steps * g->n.stages * g->n.replicas;
    return json_pack("{s:o, s:o, s:f, s:o, s:o, s:f}", "forward", aq_control_number(forward / all), "backward",
                     aq_control_number(backward / all), "gradient", gradient / ranks, "forward_wire",
                     aq_control_number((a->forward_wire + (b ? b->forward_wire : 0)) / all), "backward_wire",
                     aq_control_number((a->backward_wire + (b ? b->backward_wire : 0)) / all), "gradient_wire",
                     (a->gradient_wire + (b ? b->gradient_wire : 0)) / ranks);
}

/* The share of all bytes counted above that packing left. */
static json_t *packed(const struct aq_report_sums *g)
{
    double bytes = 0, wires = 0;
    const struct aq_report_part *const both[] = {&g->n.cold, &g->n.warm};
    for (int i = 0; i < 2; i++) {
        for (uint32_t e = 0; e < g->n.stages; e++)
            bytes += both[i]->forward[e] + both[i]->backward[e];
        bytes += both[i]->gradient;
        wires += both[i]->forward_wire + both[i]->backward_wire + both[i]->gradient_wire;
    }
    return mean(wires, bytes);
}

static json_t *links(const struct aq_report_sums *g)
{
    json_t *list = json_array();
    const double steps = (double)(g->n.cold.steps + g->n.warm.steps) * g->n.replicas;
    const double warm = (double)g->n.warm.steps * g->n.replicas;
    for (uint32_t e = 0; e + 1 < g->n.stages; e++)
        json_array_append_new(list, json_pack("{s:I, s:o, s:o, s:o, s:o}", "link", (json_int_t)e, "forward",
                                              mean(g->n.cold.forward[e] + g->n.warm.forward[e], steps), "backward",
                                              mean(g->n.cold.backward[e] + g->n.warm.backward[e], steps),
                                              "forward_warm", mean(g->n.warm.forward[e], warm), "backward_warm",
                                              mean(g->n.warm.backward[e], warm)));
    return list;
}

/*
 * Of each cut in the last epoch, means over steps and replicas, null where there was none: drift |a-m|/|a|, c_Q of its
 * warm samples and the most of it, the error of gradients, the common mode; with a guard, the bits that it came to.
 */
static json_t *cuts(const struct aq_report_sums *g)
{
    static const char *const names[AQ_REPORT_GAUGES] = {"drift", "c_q", "gradient_error", "common_mode"};
    json_t *list = json_array();
    for (uint32_t e = 0; e + 1 < g->n.stages; e++) {
        const struct aq_report_gauge *gauges = g->n.gauges[e];
        json_t *cut = json_pack("{s:I}", "cut", (json_int_t)e);
        for (int i = 0; i < AQ_REPORT_GAUGES; i++)
            json_object_set_new(cut, names[i], mean(gauges[i].sum, (double)gauges[i].count));
        json_object_set_new(cut, "c_q_most", mean(gauges[1].most, gauges[1].count > 0));
        if (g->n.bits[e] > 0) json_object_set_new(cut, "bits", aq_control_number(g->n.bits[e]));
        json_array_append_new(list, cut);
    }
    return list;
}

/* The launcher's notices of losses, with their remedies (cut_judge.h). */
static json_t *notices(const struct aq_report_sums *g)
{
    json_t *list = json_array();
    const json_t *notice;
    size_t i;
    json_array_foreach(g->notices, i, notice) json_array_append_new(
        list, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "cause", copy(notice, "cause"), "cut", copy(notice, "cut"),
                        "stage", copy(notice, "stage"), "way", copy(notice, "way"), "text", copy(notice, "text"),
                        "remedy", copy(notice, "remedy")));
    return list;
}

/* A sum of reported values, as a whole number: null if a double does not hold it exactly. */
static json_t *whole(double value)
{
    return value >= 0 && value <= 9007199254740992.0 ? json_integer((json_int_t)value) : json_null();
}

/* The stages' reports at their end. */
static void add_stages(const struct aq_report_sums *g, json_t *report)
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
        json_array_append_new(memory, json_pack("{s:I, s:I, s:I, s:I}", "stage",
                                                (json_int_t)(g->n.stages ? r % g->n.stages : r), "replica",
                                                (json_int_t)(g->n.stages ? r / g->n.stages : 0), "measured",
                                                (json_int_t)aq_control_u64_or(stage, "memory_bytes", 0), "planned",
                                                json_is_integer(plan) ? json_integer_value(plan) : 0));
    }
    json_object_set_new(report, "cache_bytes", stages ? whole(cache) : json_null());
    json_object_set_new(report, "sent_wire_bytes", stages ? whole(sent) : json_null());
    json_object_set_new(report, "heals", stages ? whole(heals) : json_null());
    json_object_set_new(report, "outage_seconds", stages ? aq_control_number(outage_ns * 1e-9) : json_null());
    json_object_set_new(report, "memory", memory);
}

/*
 * Bytes that each machine sent, and has on disk: caches at the end, and the checkpoints that are kept, by the plan. The
 * start line has the machine of each rank (report_start.c); null if an older version wrote it.
 */
static json_t *machines(const struct aq_report_sums *g)
{
    const json_t *of = json_object_get(g->start, "machines"),
                 *written = json_object_get(g->start, "checkpoint_planned");
    const json_t *stages = json_object_get(g->end, "stages");
    const size_t ranks = json_array_size(of);
    double sent[AQ_JOB_RANKS_MAX] = {0}, disk[AQ_JOB_RANKS_MAX] = {0};
    json_int_t count = 0;
    if (!json_is_array(of) || ranks > AQ_JOB_RANKS_MAX) return json_null();
    for (size_t r = 0; r < ranks; r++) {
        const json_int_t machine = json_integer_value(json_array_get(of, r));
        if (machine < 0 || machine >= (json_int_t)ranks) return json_null();
        if (machine >= count) count = machine + 1;
        sent[machine] += g->n.sent[r];
        disk[machine] += json_number_value(json_array_get(written, r)) +
                         aq_control_number_or(json_array_get(stages, r), "cache_file_bytes", 0);
    }
    json_t *list = json_array();
    for (json_int_t m = 0; m < count; m++)
        json_array_append_new(list, json_pack("{s:I, s:o, s:o}", "machine", m, "sent_bytes", whole(sent[m]),
                                              "disk_bytes", stages ? whole(disk[m]) : json_null()));
    return list;
}

static json_t *make(const struct aq_report_sums *g)
{
    const struct aq_report_part *c = &g->n.cold, *w = &g->n.warm;
    json_t *report = json_object();
    static const char *const copied[] = {"name",  "codec",     "optimizer", "reduce",       "plan_hash",
                                         "edges", "rate_mbps", "batch",     "steps_planned"};
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        json_object_set_new(report, copied[i], copy(g->start, copied[i]));
    static const char *const frozen[] = {"parameters", "parameters_frozen"};
    for (size_t i = 0; i < 2 && g->start && json_object_get(g->start, frozen[1]); i++)
        json_object_set_new(report, frozen[i], copy(g->start, frozen[i]));
    if (json_object_get(g->start, "checkpoint_seconds"))
        json_object_set_new(report, "checkpoint_seconds", copy(g->start, "checkpoint_seconds"));
    json_object_set_new(report, "state", g->end ? copy(g->end, "state") : json_string("unfinished"));
    if (g->end && json_object_get(g->end, "cause")) json_object_set_new(report, "cause", copy(g->end, "cause"));
    json_object_set_new(report, "stages", json_integer(g->n.stages));
    json_object_set_new(report, "replicas", json_integer(g->n.replicas));
    json_object_set_new(report, "reduce_codec", g->choice ? json_incref(g->choice) : json_null());
    json_object_set_new(report, "steps", json_integer((json_int_t)g->n.step));
    json_object_set_new(report, "steps_skipped", json_integer((json_int_t)g->n.skipped));
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        if (g->n.figures[i] > 0)
            json_object_set_new(report, aq_step_figure(i)->name, aq_control_number(g->n.figures[i]));
    json_object_set_new(report, "epochs",
                        g->n.epoch_first < 0 ? json_integer(0)
                                             : whole((double)g->n.epoch_last - (double)g->n.epoch_first + 1));
    json_object_set_new(report, "seconds", aq_control_number(g->n.time));
    json_object_set_new(report, "compute_seconds", aq_control_number(g->n.compute_ns * 1e-9)); /* of all stages */
    json_object_set_new(report, "machines", machines(g));
    json_object_set_new(report, "sequences_per_second", mean(c->samples + w->samples, c->seconds + w->seconds));
    json_object_set_new(report, "sequences_per_second_warm", mean(w->samples, w->seconds));
    json_object_set_new(report, "step_seconds", mean(c->seconds + w->seconds, (double)(c->steps + w->steps)));
    json_object_set_new(report, "step_seconds_warm", mean(w->seconds, (double)w->steps));
    json_object_set_new(report, "bytes_per_step", bytes_per_step(g, c, w));
    json_object_set_new(report, "bytes_per_step_cold", bytes_per_step(g, c, NULL));
    json_object_set_new(report, "bytes_per_step_warm", bytes_per_step(g, w, NULL));
    json_object_set_new(report, "packed", packed(g));
    json_object_set_new(report, "links", links(g));
    json_object_set_new(report, "cuts", cuts(g));
    json_object_set_new(report, "notices", notices(g));
    json_object_set_new(report, "afresh", whole(g->n.afresh));
    json_object_set_new(report, "keyframes", aq_control_number(c->keyframes + w->keyframes));
    json_object_set_new(report, "fetched", aq_control_number(g->n.fetched));
    json_object_set_new(report, "restarts", json_integer((json_int_t)g->n.restarts));
    json_object_set_new(report, "link_wait_share", mean(g->n.link_wait_ns * 1e-9, g->n.stage_seconds));
    json_object_set_new(report, "packing_share", mean(g->n.packing_ns * 1e-9, g->n.stage_seconds));
    json_object_set_new(report, "wait_share", mean(g->n.wait_ns * 1e-9, g->n.stage_seconds));
    json_object_set_new(report, "reduce_share", mean(g->n.reduce_ns * 1e-9, g->n.stage_seconds));
    json_object_set_new(report, "optimizer_share", mean(g->n.optimizer_ns * 1e-9, g->n.stage_seconds));
    json_object_set_new(report, "train_loss",
                        json_pack("{s:o, s:o, s:o, s:o}", "first",
                                  mean(g->n.loss_first, (double)g->n.first_epoch.count > 0), "last",
                                  mean(g->n.loss_last, (double)g->n.first_epoch.count > 0), "first_epoch",
                                  mean(g->n.first_epoch.sum, (double)g->n.first_epoch.count), "last_epoch",
                                  mean(g->n.last_epoch.sum, (double)g->n.last_epoch.count)));
    json_object_set_new(report, "heldout", heldout_of(g->eval));
    if (json_object_get(g->end, "best")) json_object_set_new(report, "best", copy(g->end, "best"));
    add_stages(g, report);
    return report;
}

/* From the byte `offset` on. */
static enum aq_status walk(const char *folder, uint64_t offset, enum aq_status (*each)(const json_t *, void *),
                           void *context)
{
    char path[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    const enum aq_status status = aq_run_lines_from(path, offset, each, context);
    if (status == AQ_NOTFOUND)
        return aq_fail(status, "report", "%s: there is no such file; is %s a run folder?", path, folder);
    return status;
}

/* The folder distinguishes runs whose jobs have one name: its path as given, and its last name. */
static void add_folder(json_t *report, const char *folder)
{
    char path[PATH_MAX];
    const char *whole_path = realpath(folder, path) ? path : folder, *slash = strrchr(whole_path, '/');
    json_t *run = json_string(slash && slash[1] ? slash + 1 : whole_path), *named = json_string(folder);
    json_object_set_new(report, "run", run ? run : json_null()); /* a name that is no UTF-8 */
    json_object_set_new(report, "folder", named ? named : json_null());
}

enum aq_status aq_report_run(const char *folder, json_t **out)
{
    struct aq_report_sums sums;
    char path[AQ_RUN_PATH_BYTES];
    uint64_t offset;
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    aq_metrics_index_load(path, &sums, &offset);
    enum aq_status status = walk(folder, offset, aq_report_sums_add, &sums);
    if (status == AQ_OK && !sums.start)
        status = aq_fail(AQ_CORRUPT, "report", "the metrics of %s have no start line", folder);
    if (status == AQ_OK) add_folder(*out = make(&sums), folder);
    aq_report_sums_deinit(&sums);
    return status;
}

enum aq_status aq_report_write(json_t *runs, const char *path)
{
    return aq_json_replace(path, json_pack("{s:o}", "runs", runs), JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

static enum aq_status tsv_line(const json_t *line, void *context)
{
    FILE *file = context;
    int written = 1;
    if (aq_control_is(line, "event", "eval"))
        written = fprintf(file, "%llu\t%.6g\tnan\tnan\t%.9g\tnan\tnan\n",
                          (unsigned long long)aq_control_u64_or(line, "step", 0), aq_control_number_or(line, "time", 0),
                          aq_control_number_or(line, "loss", (double)NAN));
    if (aq_control_is(line, "event", "step"))
        written = fprintf(file, "%llu\t%.6g\t%.6g\t%.9g\tnan\t%.6g\t%.4f\n",
                          (unsigned long long)aq_control_u64_or(line, "step", 0), aq_control_number_or(line, "time", 0),
                          aq_control_number_or(line, "epoch", 0), aq_control_number_or(line, "loss", (double)NAN),
                          aq_control_number_or(line, "sequences_per_second", 0), aq_progress_link_wait(line));
    return written > 0 ? AQ_OK : aq_fail_errno("report", "cannot write the curve");
}

enum aq_status aq_report_tsv(const char *folder, FILE *file)
{
    fputs("step\ttime\tepoch\tloss\theldout_loss\tsequences_per_second\tlink_wait_share\n", file);
    return walk(folder, 0, tsv_line, file);
}
