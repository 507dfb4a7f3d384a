/* report_table.c -- several runs as one table: first their differences, then their figures; one run as a list. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "cut_judge.h"
#include "heldout.h"
#include "report.h"
#include "step_figures.h"
#include "table.h"

enum { COLUMNS = 22, WORDS = 5, NAME_BYTES = 31, ROWS_MAX = 256 };

static const char *const heads[2][COLUMNS] = {
    {"run",      "codec",      "optimizer", "reduced",   "stages x", "seq/s", "warm",     "sent fwd",
     "sent bwd", "gradients",  "packed",    "waits for", "loss",     "loss",  "held-out", "held-out",
     "time",     "computing,", "sent by a", "disk of a", "cache",    "links"},
    {"",           "",           "",        "in",      "replicas", "",      "seq/s", "link, step",
     "link, step", "rank, step", "to",      "links",   "first",    "last",  "loss",  "metric",
     "",           "all stages", "machine", "machine", "",         "healed"},
};

/* The same columns in words: one run is a list. */
static const char *const names[COLUMNS] = {"run",
                                           "codec",
                                           "optimizer",
                                           "reduced in",
                                           "stages x replicas",
                                           "sequences/s",
                                           "sequences/s, warm",
                                           "sent forward per link and step",
                                           "sent backward per link and step",
                                           "gradients per rank and step",
                                           "packed to",
                                           "waits for links",
                                           "first loss",
                                           "last loss",
                                           "held-out loss",
                                           "held-out metric",
                                           "time",
                                           "computing, all stages",
                                           "sent by a machine",
                                           "disk of a machine",
                                           "cache",
                                           "links healed"};

/* Bytes on the links; a report from before packing has one figure. */
static double sent(const json_t *run, const char *packed, const char *plain)
{
    const double bytes = aq_control_number_in(run, "bytes_per_step", packed);
    return isfinite(bytes) ? bytes : aq_control_number_in(run, "bytes_per_step", plain);
}

/* Of the machine that has most of it. */
static double most(const json_t *run, const char *what)
{
    const json_t *machine;
    double largest = (double)NAN;
    size_t m;
    json_array_foreach(json_object_get(run, "machines"), m, machine) largest =
        fmax(largest, aq_control_number_or(machine, what, (double)NAN));
    return largest;
}

/* A name of a run or of what it chose, as a terminal may get it. */
static const char *shown(const char *text, char out[NAME_BYTES])
{
    return aq_printable_text(text ? text : "?", out, NAME_BYTES);
}

/* Its folder's name; where another run's folder has the same, the end of the path. Of old reports the job's name. */
static const char *name_of(const json_t *run, const json_t *runs, char out[NAME_BYTES])
{
    const char *name = aq_control_text_or(run, "run", aq_control_text_or(run, "name", "?"));
    const json_t *other;
    size_t r;
    json_array_foreach(runs, r, other)
    {
        const char *folder = aq_control_text_or(run, "folder", name);
        if (other == run || !aq_control_is(other, "run", name)) continue;
        return shown(strlen(folder) < NAME_BYTES ? folder : folder + strlen(folder) - (NAME_BYTES - 1), out);
    }
    return shown(name, out);
}

static void add_row(struct aq_table *table, const json_t *run, const json_t *runs)
{
    static const char *const words[] = {"codec", "optimizer", "reduce"};
    const uint64_t stages = aq_control_u64_or(run, "stages", 0), replicas = aq_control_u64_or(run, "replicas", 1);
    char name[NAME_BYTES], state[AQ_PRINTABLE_BYTES_MIN], number[AQ_TEXT_NUMBER];
    name_of(run, runs, name);
    if (aq_control_is(run, "state", "done"))
        aq_table_cell(table, "%s", name);
    else
        aq_table_cell(table, "%s (%.12s)", name,
                      aq_printable_text(aq_control_text_or(run, "state", "?"), state, sizeof state));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        aq_table_cell(table, "%s", shown(aq_control_text_or(run, words[i], "-"), name));
    aq_table_cell(table, "%llu x %llu", (unsigned long long)stages, (unsigned long long)replicas);
    aq_table_figure(table, aq_control_number_or(run, "sequences_per_second", (double)NAN), 2, "");
    aq_table_figure(table, aq_control_number_or(run, "sequences_per_second_warm", (double)NAN), 2, "");
    aq_table_size(table, sent(run, "forward_wire", "forward"));
    aq_table_size(table, sent(run, "backward_wire", "backward"));
    aq_table_size(table, sent(run, "gradient_wire", "gradient"));
    aq_table_figure(table, aq_control_number_or(run, "packed", (double)NAN) * 100, 0, " %");
    aq_table_figure(table, aq_control_number_or(run, "link_wait_share", (double)NAN) * 100, 0, " %");
    aq_table_figure(table, aq_control_number_in(run, "train_loss", "first"), 4, "");
    aq_table_figure(table, aq_control_number_in(run, "train_loss", "last"), 4, "");
    aq_table_figure(table, aq_control_number_in(run, "heldout", "loss"), 4, "");
    const char *metric;
    double value;
    bool higher;
    if (aq_heldout_metric(json_object_get(run, "heldout"), &metric, &value, &higher) && isfinite(value))
        aq_table_cell(table, "%.24s %.3f", metric, value);
    else
        aq_table_cell(table, "-");
    aq_table_cell(table, "%s", aq_text_hours(aq_control_number_or(run, "seconds", (double)NAN), number));
    aq_table_cell(table, "%s", aq_text_hours(aq_control_number_or(run, "compute_seconds", (double)NAN), number));
    aq_table_size(table, most(run, "sent_bytes"));
    aq_table_size(table, most(run, "disk_bytes"));
    aq_table_size(table, aq_control_number_or(run, "cache_bytes", (double)NAN));
    aq_table_figure(table, aq_control_number_or(run, "heals", (double)NAN), 0, "");
}

static void add_frozen(struct aq_text *text, const json_t *run, const char *name)
{
    const uint64_t all = aq_control_u64_or(run, "parameters", 0);
    const uint64_t frozen = aq_control_u64_or(run, "parameters_frozen", 0);
    if (frozen > 0 && frozen <= all)
        aq_text_add(text, "%s: %llu of %llu parameters were trained, the others are frozen\n", name,
                    (unsigned long long)(all - frozen), (unsigned long long)all);
}

/* checkpoint.every as a time. */
static void add_checkpoints(struct aq_text *text, const json_t *run, const char *name)
{
    char number[AQ_TEXT_NUMBER];
    const double seconds = aq_control_number_or(run, "checkpoint_seconds", 0);
    if (seconds > 0)
        aq_text_add(text, "%s: a checkpoint %s after the one before, at a step that stage 0 chooses\n", name,
                    aq_text_hours(seconds, number));
}

/* A run's restarts and other mishaps, if any. */
static void add_figure(struct aq_text *text, const char *name, const struct aq_step_figure *figure, double value)
{
    if (!figure->note || !(value > 0)) return;
    aq_text_add(text, "%s: ", name);
    aq_text_add(text, figure->note, value);
    aq_text_add(text, "\n");
}

static void add_mishaps(struct aq_text *text, const json_t *run, const char *name)
{
    const uint64_t restarts = aq_control_u64_or(run, "restarts", 0);
    const uint64_t skipped = aq_control_u64_or(run, "steps_skipped", 0);
    const double fetched = aq_control_number_or(run, "fetched", (double)NAN);
    if (skipped > 0)
        aq_text_add(text, "%s: %llu steps were skipped, their gradients were not finite\n", name,
                    (unsigned long long)skipped);
    for (int i = 0; i < AQ_STEP_FIGURES; i++)
        add_figure(text, name, aq_step_figure(i), aq_control_number_or(run, aq_step_figure(i)->name, (double)NAN));
    if (restarts == 0 && !(fetched > 0)) return;
    aq_text_add(text, "%s: restarted %llu times by itself; %.0f lost messages were fetched from the other side\n", name,
                (unsigned long long)restarts, isfinite(fetched) ? fetched : 0);
}

/* The last evaluation, with and without the cuts' codecs. */
static void add_coded(struct aq_text *text, const json_t *run, const char *name)
{
    const double plain = aq_control_number_in(run, "heldout", "loss"),
                 coded = aq_control_number_in(run, "heldout", "loss_coded");
    if (isfinite(coded))
        aq_text_add(text, "%s: held-out loss %.6f with the codec off, %.6f with it on (samples never seen)\n", name,
                    plain, coded);
}

/* The theorem's condition, of the cuts that do not fulfil it; and what a guard or edges.bits: auto did. */
static void add_contraction(struct aq_text *text, const json_t *run, const char *name)
{
    const json_t *cut;
    const double afresh = aq_control_number_or(run, "afresh", (double)NAN);
    double drift = 0, ratio = 0;
    size_t e, seen = 0;
    json_array_foreach(json_object_get(run, "cuts"), e, cut)
    {
        const double c_q = aq_control_number_or(cut, "c_q", (double)NAN);
        const double bits = aq_control_number_or(cut, "bits", (double)NAN);
        seen += isfinite(c_q);
        if (isfinite(c_q)) ratio = fmax(ratio, c_q);
        if (isfinite(c_q)) drift = fmax(drift, aq_control_number_or(cut, "drift", 0));
        if (c_q > sqrt(0.5))
            aq_text_add(text,
                        "%s: cut %zu does not contract, c_Q is %.3f (the theorem needs less than 0.707): give it "
                        "more bits or edges.guard: true, and edges.forward.store: fp16 if it is coarser\n",
                        name, e, c_q);
        const double gradient = aq_control_number_or(cut, "gradient_error", (double)NAN);
        if (gradient > sqrt(0.5))
            aq_text_add(text,
                        "%s: cut %zu sends gradients with an error of %.3f of their size (the theorem needs less than "
                        "0.707): give edges.backward more bits, or edges.guard: true\n",
                        name, e, gradient);
        if (isfinite(bits)) aq_text_add(text, "%s: cut %zu now sends %.3g bits forward\n", name, e, bits);
    }
    if (seen) aq_text_add(text, "%s: in the last epoch c_Q was at most %.3f, drift %.4f\n", name, ratio, drift);
    if (afresh > 0) aq_text_add(text, "%s: %.0f samples diverged and were sent whole again\n", name, afresh);
}

/* The notices of losses, and their remedies. */
static void add_notices(struct aq_text *text, const json_t *run, const char *name)
{
    const json_t *notice;
    size_t i;
    json_array_foreach(json_object_get(run, "notices"), i, notice)
    {
        char said[AQ_NOTICE_TEXT], remedy[AQ_NOTICE_TEXT];
        aq_printable_text(aq_control_text_or(notice, "text", ""), said, sizeof said);
        aq_printable_text(aq_control_text_or(notice, "remedy", ""), remedy, sizeof remedy);
        aq_text_add(text, "%s: %s: %s\n", name, said, remedy);
    }
}

/* The codec that each stage chose (reduce.codec: auto); replicas choose the same. */
static void add_choice(struct aq_text *text, const json_t *run, const char *name)
{
    const json_t *codecs = json_object_get(run, "reduce_codec");
    const size_t stages = (size_t)aq_control_u64_or(run, "stages", 0);
    char chosen[NAME_BYTES];
    if (!json_is_array(codecs)) return;
    aq_text_add(text, "%s: replicas averaged, stage by stage, in", name);
    for (size_t s = 0; s < stages && s < json_array_size(codecs); s++) {
        const char *codec = json_string_value(json_array_get(codecs, s));
        aq_text_add(text, "%s %.16s", s ? "," : "", shown(codec, chosen));
    }
    aq_text_add(text, ", chosen by themselves\n");
}

void aq_report_table(const json_t *runs, unsigned columns, struct aq_text *text)
{
    struct aq_table table = {.columns = COLUMNS, .left = (1u << WORDS) - 1, .keys = 1};
    struct aq_text below = {0};
    const size_t rows = json_array_size(runs) < ROWS_MAX ? json_array_size(runs) : ROWS_MAX;
    for (int i = 0; i < 2 * COLUMNS; i++)
        aq_table_cell(&table, "%s", heads[i / COLUMNS][i % COLUMNS]);
    for (size_t r = 0; r < rows; r++)
        add_row(&table, json_array_get(runs, r), runs);
    if (rows == 1)
        aq_table_list(&table, 2, names, &below); /* behind the two rows of heads */
    else
        aq_table_print(&table, columns, text);
    for (size_t r = 0; r < rows; r++) {
        char name[NAME_BYTES];
        const json_t *run = json_array_get(runs, r);
        name_of(run, runs, name);
        add_frozen(&below, run, name);
        add_checkpoints(&below, run, name);
        add_coded(&below, run, name);
        add_contraction(&below, run, name);
        add_notices(&below, run, name);
        add_choice(&below, run, name);
        add_mishaps(&below, run, name);
    }
    aq_text_fold(text, aq_text_of(&below), columns);
    if (below.status != AQ_OK) text->status = below.status;
    aq_text_deinit(&below);
    aq_table_deinit(&table);
}
