/* report_table.c -- several runs as one aligned table. A cell is text; the widths follow from what is in them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "heldout.h"
#include "report.h"

enum { COLUMNS = 15, CELL_BYTES = 40, NAME_BYTES = 31, ROWS_MAX = 256 };

static const char *const heads[2][COLUMNS] = {
    {"run", "codec", "seq/s", "warm", "sent fwd", "sent bwd", "gradients", "packed", "waits for", "loss", "loss",
     "held-out", "perplex-", "cache", "links"},
    {"", "", "", "seq/s", "link, step", "link, step", "rank, step", "to", "links", "first", "last", "loss", "ity", "",
     "healed"},
};

static double at(const json_t *run, const char *outer, const char *inner)
{
    return aq_control_number_or(inner ? json_object_get(run, outer) : run, inner ? inner : outer, (double)NAN);
}

static void number(char *cell, double value, int decimals, const char *unit)
{
    if (isfinite(value))
        snprintf(cell, CELL_BYTES, "%.*f%s", decimals, value, unit);
    else
        snprintf(cell, CELL_BYTES, "-");
}

static void size(char *cell, double bytes)
{
    char text[AQ_TEXT_NUMBER];
    if (!(bytes >= 0 && bytes < 1e18))
        snprintf(cell, CELL_BYTES, "-");
    else
        snprintf(cell, CELL_BYTES, "%s", aq_text_size((uint64_t)(bytes + 0.5), text));
}

/* What the links carried; a report from before packing has one figure. */
static double sent(const json_t *run, const char *packed, const char *plain)
{
    const double bytes = at(run, "bytes_per_step", packed);
    return isfinite(bytes) ? bytes : at(run, "bytes_per_step", plain);
}

static void fill(const json_t *run, char cells[COLUMNS][CELL_BYTES])
{
    (void)aq_printable_text(aq_control_text_or(run, "name", "?"), cells[0], NAME_BYTES);
    (void)aq_printable_text(aq_control_text_or(run, "codec", "?"), cells[1], NAME_BYTES);
    number(cells[2], at(run, "sequences_per_second", NULL), 2, "");
    number(cells[3], at(run, "sequences_per_second_warm", NULL), 2, "");
    size(cells[4], sent(run, "forward_wire", "forward"));
    size(cells[5], sent(run, "backward_wire", "backward"));
    size(cells[6], sent(run, "gradient_wire", "gradient"));
    number(cells[7], at(run, "packed", NULL) * 100, 0, " %");
    number(cells[8], at(run, "link_wait_share", NULL) * 100, 0, " %");
    number(cells[9], at(run, "train_loss", "first"), 4, "");
    number(cells[10], at(run, "train_loss", "last"), 4, "");
    number(cells[11], at(run, "heldout", "loss"), 4, "");
    const char *metric_name;
    double metric;
    bool higher;
    if (!aq_heldout_metric(json_object_get(run, "heldout"), &metric_name, &metric, &higher)) metric = (double)NAN;
    number(cells[12], metric, 3, "");
    if (isfinite(metric) && strcmp(metric_name, "perplexity") != 0)
        snprintf(cells[12], CELL_BYTES, "%.20s %.3f", metric_name, metric);
    size(cells[13], at(run, "cache_bytes", NULL));
    number(cells[14], at(run, "heals", NULL), 0, "");
    if (!aq_control_is(run, "state", "done")) {
        char name[21], state[AQ_PRINTABLE_BYTES_MIN];
        snprintf(cells[0], CELL_BYTES, "%s (%.12s)",
                 aq_printable_text(aq_control_text_or(run, "name", "?"), name, sizeof name),
                 aq_printable_text(aq_control_text_or(run, "state", "?"), state, sizeof state));
    }
}

static void put_row(struct aq_text *text, const size_t *widths, const char *const *cells)
{
    for (int c = 0; c < COLUMNS; c++) /* words to the left, numbers to the right */
        aq_text_add(text, c < 2 ? "%s%-*s" : "%s%*s", c ? "  " : "", (int)widths[c], cells[c]);
    aq_text_add(text, "\n");
}

/* A name of a run or of what it chose, as a terminal may get it. */
static const char *shown(const char *text, char out[NAME_BYTES])
{
    return aq_printable_text(text ? text : "?", out, NAME_BYTES);
}

static const char *name_of(const json_t *run, char out[NAME_BYTES])
{
    return shown(aq_control_text_or(run, "name", "?"), out);
}

/* What a run went through, where it went through something. */
static void add_mishaps(struct aq_text *text, const json_t *run)
{
    const uint64_t restarts = aq_control_u64_or(run, "restarts", 0);
    const uint64_t skipped = aq_control_u64_or(run, "steps_skipped", 0);
    const double fetched = at(run, "fetched", NULL);
    const double loss_scale = at(run, "loss_scale", NULL);
    char name[NAME_BYTES];
    if (skipped > 0)
        aq_text_add(text, "%s: %llu steps were skipped, their gradients were not finite\n", name_of(run, name),
                    (unsigned long long)skipped);
    if (loss_scale > 0)
        aq_text_add(text, "%s: fp16, the loss scale was %g at the end\n", name_of(run, name), loss_scale);
    if (restarts == 0 && !(fetched > 0)) return;
    aq_text_add(text, "%s: begun again %llu times by itself, %.0f lost messages fetched from the other side\n",
                name_of(run, name), (unsigned long long)restarts, isfinite(fetched) ? fetched : 0);
}

/* What stages chose to average in (reduce.codec: auto); replicas chose alike. */
static void add_choice(struct aq_text *text, const json_t *run)
{
    const json_t *codecs = json_object_get(run, "reduce_codec");
    const size_t stages = (size_t)aq_control_u64_or(run, "stages", 0);
    char name[NAME_BYTES];
    if (!json_is_array(codecs)) return;
    aq_text_add(text, "%s: replicas averaged, stage by stage, in", name_of(run, name));
    for (size_t s = 0; s < stages && s < json_array_size(codecs); s++) {
        const char *codec = json_string_value(json_array_get(codecs, s));
        aq_text_add(text, "%s %.16s", s ? "," : "", shown(codec, name));
    }
    aq_text_add(text, ", chosen by themselves\n");
}

void aq_report_table(const json_t *runs, struct aq_text *text)
{
    size_t widths[COLUMNS], rows = json_array_size(runs);
    char cells[COLUMNS][CELL_BYTES];
    const char *row[COLUMNS];
    if (rows > ROWS_MAX) rows = ROWS_MAX;
    for (int c = 0; c < COLUMNS; c++) {
        row[c] = cells[c];
        widths[c] = strlen(heads[0][c]) > strlen(heads[1][c]) ? strlen(heads[0][c]) : strlen(heads[1][c]);
    }
    for (size_t r = 0; r < rows; r++) {
        fill(json_array_get(runs, r), cells);
        for (int c = 0; c < COLUMNS; c++)
            if (strlen(cells[c]) > widths[c]) widths[c] = strlen(cells[c]);
    }
    put_row(text, widths, heads[0]);
    put_row(text, widths, heads[1]);
    for (size_t r = 0; r < rows; r++) {
        fill(json_array_get(runs, r), cells);
        put_row(text, widths, row);
    }
    for (size_t r = 0; r < rows; r++) {
        add_choice(text, json_array_get(runs, r));
        add_mishaps(text, json_array_get(runs, r));
    }
}
