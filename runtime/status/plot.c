/* plot.c -- see the header. */
#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xml_text.h"

static const char *const colours[AQ_PLOT_RUNS_MAX] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                      "#E69F00", "#56B4E9", "#8C564B", "#777777"};
static const char *const x_names[AQ_CURVE_XS] = {"step", "time", "bytes"};
static const char *const y_names[AQ_CURVE_YS] = {"loss", "c_q", "speed"};
static const char *const y_labels[AQ_CURVE_YS] = {"loss (nats a target)", "c_Q of the worst cut", "sequences a second"};

enum { RINGS_MANY = 60, TICKS = 6, TICKS_MAX = 32, LEGEND_LINE = 20, CHAR_WIDTH = 8 };
enum { LEFT = 72, RIGHT = 20, TOP = 44, BOTTOM = 66 }; /* margins, in units of the picture */

const char *aq_plot_x_name(enum aq_curve_x x)
{
    return x_names[x];
}

const char *aq_plot_y_name(enum aq_curve_y y)
{
    return y_names[y];
}

struct frame { /* from values to places */
    const struct aq_plot *plot;
    double x_max, low, high;
    double x_unit; /* what the axis counts in */
    const char *x_label;
};

static double x_of(const struct frame *frame, double value)
{
    return LEFT + value / frame->x_max * (frame->plot->width - LEFT - RIGHT);
}

static double y_of(const struct frame *frame, double value)
{
    double share = (value - frame->low) / (frame->high - frame->low);
    if (share < 0) share = 0; /* the outermost steps end at the border */
    if (share > 1) share = 1;
    return frame->plot->height - BOTTOM - share * (frame->plot->height - TOP - BOTTOM);
}

/* The mean over `width` neighbours, fewer at both ends; NaN: none of them has the figure. */
static double smooth(const struct aq_curve *run, enum aq_curve_y y, uint32_t at, uint32_t width)
{
    const uint32_t reach = width / 2, from = at > reach ? at - reach : 0;
    const uint32_t to = run->count - 1 - at > reach ? at + reach : run->count - 1;
    double sum = 0, seen = 0;
    for (uint32_t i = from; i <= to; i++) {
        sum += run->points[i].mean[y] * (double)run->points[i].seen[y];
        seen += (double)run->points[i].seen[y];
    }
    return seen > 0 ? sum / seen : (double)NAN;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All means, smooth points and held-out losses, and of the single steps all but the outermost hundredth. */
static enum aq_status vertical(struct frame *frame, const struct aq_curve *const *runs, uint32_t count, uint32_t width)
{
    const enum aq_curve_y y = frame->plot->y;
    size_t used = 0, room = 0;
    void *memory;
    for (uint32_t r = 0; r < count; r++)
        room += runs[r]->count;
    AQ_TRY(aq_alloc(room * sizeof(double), &memory));
    double *single = memory, low = INFINITY, high = -INFINITY;
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < runs[r]->count; i++) {
            const double mean = smooth(runs[r], y, i, width);
            if (runs[r]->points[i].seen[y] > 0) single[used++] = runs[r]->points[i].mean[y];
            if (isfinite(mean)) low = fmin(low, mean);
            if (isfinite(mean)) high = fmax(high, mean);
        }
        for (uint32_t i = 0; y == AQ_CURVE_LOSS && i < runs[r]->evals; i++) {
            low = fmin(low, runs[r]->heldout[i].loss);
            high = fmax(high, runs[r]->heldout[i].loss);
        }
    }
    qsort(single, used, sizeof *single, ascending);
    if (used > 0) low = fmin(low, single[used / 100]);
    if (used > 0) high = fmax(high, single[used - 1 - used / 100]);
    aq_free(memory);
    if (y == AQ_CURVE_SPEED) low = 0;
    double margin = 0.05 * (high - low);
    if (!(margin > 1e-6 * fabs(high))) margin = high != 0 ? fabs(high) * 0.1 : 0.1; /* a level line */
    frame->low = y == AQ_CURVE_SPEED ? 0 : low - margin;
    frame->high = high + margin;
    return AQ_OK;
}

static void horizontal(struct frame *frame, const struct aq_curve *const *runs, uint32_t count)
{
    static const struct {
        double from, unit;
        const char *label;
    } units[AQ_CURVE_XS][4] = {
        {{0, 1, "step"}},
        {{0, 1, "time (s)"}, {600, 60, "time (min)"}, {4 * 3600, 3600, "time (h)"}, {4 * 86400, 86400, "time (days)"}},
        {{0, 1, "bytes sent"}, {1e4, 1e3, "sent (kB)"}, {1e7, 1e6, "sent (MB)"}, {1e10, 1e9, "sent (GB)"}}};
    const enum aq_curve_x x = frame->plot->x;
    double end = 0;
    for (uint32_t r = 0; r < count; r++)
        end = fmax(end, runs[r]->points[runs[r]->count - 1].x[x]);
    frame->x_max = end > 0 ? end * 1.02 : 1;
    for (int i = 0; i < 4 && units[x][i].label; i++)
        if (end >= units[x][i].from) {
            frame->x_unit = units[x][i].unit;
            frame->x_label = units[x][i].label;
        }
}

/* 1, 2 or 5 times a power of ten, of which some TICKS fit. */
static double tick_of(double range)
{
    const double rough = range / TICKS, power = pow(10, floor(log10(rough))), part = rough / power;
    return (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10) * power;
}

static void grid(const struct frame *frame, struct aq_text *out)
{
    const struct aq_plot *plot = frame->plot;
    const double right = plot->width - RIGHT, bottom = plot->height - BOTTOM;
    const double dx = tick_of(frame->x_max / frame->x_unit), dy = tick_of(frame->high - frame->low);
    for (int i = 0; i < TICKS_MAX && i * dx <= frame->x_max / frame->x_unit; i++) {
        const double v = i * dx;
        const double x = x_of(frame, v * frame->x_unit);
        aq_text_add(out, "<path class=\"g\" d=\"M%.1f %dV%.1f\"/>", x, TOP, bottom);
        aq_text_add(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.6g</text>\n", x, bottom + 18, v);
    }
    const double first = ceil(frame->low / dy);
    for (int i = 0; i < TICKS_MAX && (first + i) * dy <= frame->high; i++) {
        const double k = first + i, y = y_of(frame, k * dy);
        aq_text_add(out, "<path class=\"g\" d=\"M%d %.1fH%.1f\"/>", LEFT, y, right);
        aq_text_add(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.5g</text>\n", LEFT - 8, y + 4,
                    k == 0 ? 0 : k * dy);
    }
    aq_text_add(out, "<path d=\"M%d %dV%.1fH%.1f\" fill=\"none\" stroke=\"currentColor\"/>\n", LEFT, TOP, bottom,
                right);
    aq_text_add(out, "<text x=\"%.1f\" y=\"%u\" text-anchor=\"middle\">%s</text>", (LEFT + right) / 2,
                plot->height - 30, frame->x_label);
    aq_text_add(out,
                "<text class=\"side\" transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
                (TOP + bottom) / 2, y_labels[plot->y]);
}

/* Single steps: a line, or the band of the steps of a point. */
static void thin(const struct frame *frame, const struct aq_curve *run, const char *colour, struct aq_text *out)
{
    const enum aq_curve_y y = frame->plot->y;
    const bool band = run->each > 1;
    bool begun = false;
    aq_text_add(out, "<path d=\"");
    for (uint32_t i = 0; i < run->count; i++) {
        const struct aq_curve_point *p = &run->points[i];
        if (p->seen[y] == 0) continue;
        aq_text_add(out, "%s%.1f %.1f", begun ? "L" : "M", x_of(frame, p->x[frame->plot->x]),
                    y_of(frame, band ? p->low[y] : p->mean[y]));
        begun = true;
    }
    for (uint32_t i = run->count; band && i-- > 0;)
        if (run->points[i].seen[y] > 0)
            aq_text_add(out, "L%.1f %.1f", x_of(frame, run->points[i].x[frame->plot->x]),
                        y_of(frame, run->points[i].high[y]));
    aq_text_add(out,
                band ? "Z\" fill=\"%s\" fill-opacity=\"0.25\" stroke=\"none\"/>\n"
                     : "\" fill=\"none\" stroke=\"%s\" stroke-opacity=\"0.35\"/>\n",
                colour);
}

static void thick(const struct frame *frame, const struct aq_curve *run, const char *colour, uint32_t width,
                  struct aq_text *out)
{
    bool begun = false;
    aq_text_add(out, "<path d=\"");
    for (uint32_t i = 0; i < run->count; i++) {
        const double mean = smooth(run, frame->plot->y, i, width);
        if (!isfinite(mean)) continue;
        aq_text_add(out, "%s%.1f %.1f", begun ? "L" : "M", x_of(frame, run->points[i].x[frame->plot->x]),
                    y_of(frame, mean));
        begun = true;
    }
    aq_text_add(out, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\" stroke-linejoin=\"round\"/>\n", colour);
    for (uint32_t i = 0; frame->plot->y == AQ_CURVE_LOSS && i < run->evals; i++)
        aq_text_add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                    x_of(frame, run->heldout[i].x[frame->plot->x]), y_of(frame, run->heldout[i].loss),
                    run->evals > RINGS_MANY ? 2 : 5, colour);
}

/* The names of runs: their codecs if these differ, else their folders. */
static bool by_codec(const struct aq_curve *const *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        if (!*runs[r]->codec) return false;
        for (uint32_t other = 0; other < r; other++)
            if (strcmp(runs[r]->codec, runs[other]->codec) == 0) return false;
    }
    return count > 1;
}

static void legend(const struct frame *frame, const struct aq_curve *const *runs, uint32_t count, struct aq_text *out)
{
    const struct aq_plot *plot = frame->plot;
    const bool codecs = by_codec(runs, count);
    for (uint32_t r = 0; r < count; r++) {
        const struct aq_curve *run = runs[r];
        const double y = (count > 1 ? TOP + 18 : TOP - 14) + (double)r * LEGEND_LINE; /* of one: above its curve */
        char last[AQ_TEXT_NUMBER], held[AQ_TEXT_NUMBER];
        aq_text_add(out, "<text x=\"%u\" y=\"%.1f\" text-anchor=\"end\">", plot->width - RIGHT - 42, y);
        if (!plot->inside) aq_text_xml(out, codecs ? run->codec : run->name);
        aq_text_add(out, "%s%s", plot->inside ? "" : ", ",
                    aq_text_figure(smooth(run, plot->y, run->count - 1, run->count / 10), 4, last));
        if (plot->y == AQ_CURVE_LOSS && run->evals > 0)
            aq_text_add(out, ", held out %s", aq_text_figure(run->heldout[run->evals - 1].loss, 4, held));
        aq_text_add(out, "</text><path d=\"M%u %.1fh28\" stroke=\"%s\" stroke-width=\"3\"/>\n",
                    plot->width - RIGHT - 36, y - 5, colours[r]);
    }
}

static void head(const struct aq_plot *plot, struct aq_text *out)
{
    char title[96];
    snprintf(title, sizeof title, "%s against %s", y_labels[plot->y],
             plot->x == AQ_CURVE_STEP   ? "steps"
             : plot->x == AQ_CURVE_TIME ? "time"
                                        : "bytes sent");
    if (!plot->inside) aq_text_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    aq_text_add(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %u %u\" role=\"img\" font-size=\"13\" "
                "font-family=\"sans-serif\"",
                plot->width, plot->height);
    if (!plot->inside) aq_text_add(out, " width=\"%u\" height=\"%u\" color=\"#222222\"", plot->width, plot->height);
    aq_text_add(out, "><title>");
    aq_text_xml(out, plot->title ? plot->title : title);
    aq_text_add(out, "</title>\n");
    if (!plot->inside) /* a page has these in its own style sheet */
        aq_text_add(out, "<style>text{fill:currentColor}.g{stroke:currentColor;stroke-opacity:.13;fill:none}</style>\n"
                         "<rect width=\"100%%\" height=\"100%%\" fill=\"#FFFFFF\"/>\n");
    aq_text_add(out, "<text x=\"%d\" y=\"26\" font-size=\"17\">", LEFT);
    aq_text_xml(out, plot->title ? plot->title : title);
    aq_text_add(out, "</text>\n");
}

bool aq_plot_has(const struct aq_curve *run, enum aq_curve_y y)
{
    for (uint32_t i = 0; i < run->count; i++)
        if (run->points[i].seen[y] > 0) return true;
    return false;
}

static enum aq_status check(const struct aq_plot *plot, const struct aq_curve *const *runs, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        if (!aq_plot_has(runs[r], plot->y))
            return aq_fail(AQ_INVAL, "plot", "%s has no step with a figure for '%s' yet", runs[r]->name,
                           y_names[plot->y]);
    return AQ_OK;
}

enum aq_status aq_plot_svg(const struct aq_plot *plot, const struct aq_curve *const *runs, uint32_t count,
                           struct aq_text *out)
{
    AQ_ASSERT(count >= 1 && count <= AQ_PLOT_RUNS_MAX);
    AQ_ASSERT(plot->width > LEFT + RIGHT && plot->height > TOP + BOTTOM);
    AQ_TRY(check(plot, runs, count));
    struct frame frame = {.plot = plot};
    uint32_t shortest = UINT32_MAX;
    bool part = false, band = false;
    for (uint32_t r = 0; r < count; r++) {
        shortest = runs[r]->count < shortest ? runs[r]->count : shortest;
        part |= runs[r]->part;
        band |= runs[r]->each > 1;
    }
    const uint32_t width = (plot->smooth ? plot->smooth : shortest / 20) | 1;
    AQ_TRY(vertical(&frame, runs, count, width));
    horizontal(&frame, runs, count);
    head(plot, out);
    grid(&frame, out);
    for (uint32_t r = 0; r < count; r++)
        thin(&frame, runs[r], colours[r], out);
    for (uint32_t r = 0; r < count; r++)
        thick(&frame, runs[r], colours[r], width, out);
    legend(&frame, runs, count, out);
    aq_text_add(out,
                "<text class=\"note\" x=\"%d\" y=\"%u\" font-size=\"11\" opacity=\"0.7\">thick: mean of %u %s; thin: "
                "%s%s%s</text>\n",
                LEFT, plot->height - 8, width, band ? "points" : "steps",
                band ? "all steps, smallest to largest" : "single steps",
                plot->y == AQ_CURVE_LOSS ? "; rings: held out" : "", part ? "; of large files some steps" : "");
    aq_text_add(out, "</svg>\n");
    return out->status;
}
