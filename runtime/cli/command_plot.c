/* command_plot.c -- `aqpipe plot`: curves of runs as an SVG picture, each run in its colour. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "out.h"
#include "plot.h"

enum { WIDTH = 1200, HEIGHT = 720, SMOOTH_MAX = AQ_CURVE_POINTS };

struct asked {
    const char *output, *title;
    enum aq_curve_x x;
    enum aq_curve_y y;
    uint32_t smooth;
    bool json;
};

static const char *read_x(const char *value, void *to)
{
    for (int x = 0; x < AQ_CURVE_XS; x++)
        if (strcmp(value, aq_plot_x_name((enum aq_curve_x)x)) == 0) {
            *(enum aq_curve_x *)to = (enum aq_curve_x)x;
            return NULL;
        }
    return "step, time or bytes";
}

static const char *read_y(const char *value, void *to)
{
    for (int y = 0; y < AQ_CURVE_YS; y++)
        if (strcmp(value, aq_plot_y_name((enum aq_curve_y)y)) == 0) {
            *(enum aq_curve_y *)to = (enum aq_curve_y)y;
            return NULL;
        }
    return "loss, c_q or speed";
}

static const struct aq_option options[] = {
    AQ_ROW_MORE(TEXT, struct asked, output, "output", "FILE",
                "the picture (SVG); without it, it goes to standard output", .letter = 'o'),
    AQ_ROW_READ(read_x, struct asked, x, "x", "step|time|bytes",
                "the horizontal axis: steps, seconds of training, or bytes that all links carried (time)"),
    AQ_ROW_READ(read_y, struct asked, y, "y", "loss|c_q|speed",
                "the vertical axis: loss, c_Q of the worst cut, or sequences a second (loss)"),
    AQ_ROW_RANGE(U32, struct asked, smooth, "smooth", "N", 0, SMOOTH_MAX,
                 "points of the mean that is drawn thick; 0: a twentieth of the shortest curve (0)"),
    AQ_ROW(TEXT, struct asked, title, "title", "TEXT", "the title; else the axes"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "what was drawn as one JSON object (needs -o); errors, too"),
    {0}};

static const struct aq_command_line line = {
    "aqpipe plot", "RUN...",
    "Draws the curves of up to 8 run folders from their metrics.jsonl, also of runs that are still running: single "
    "steps thin, their mean thick, held-out losses as rings. Of a file above 64 MiB 2048 steps are read, with --x "
    "bytes "
    "all of it.",
    options, NULL};

/* {"error": text, "status": word, "file": whose} on standard output, for programs; people have the line of aq_fail. */
static void say_wrong(const struct asked *asked, enum aq_status status, const char *file)
{
    if (!asked->json) return;
    aq_command_json_done();
    json_t *wrong = json_pack("{s:s, s:i, s:s, s:s}", "event", "error", "exit", aq_exit_of(status), "status",
                              aq_status_text(status), "error", aq_error_text());
    json_t *name = file ? json_string(file) : NULL; /* NULL too where it is no UTF-8 */
    json_object_set_new(wrong, "file", name ? name : json_null());
    json_dumpf(wrong, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    aq_out_raw("\n");
    json_decref(wrong);
}

static void say_drawn(const struct asked *asked, const struct aq_curve *const *runs, uint32_t count)
{
    if (!asked->json) return;
    json_t *list = json_array();
    for (uint32_t r = 0; r < count; r++)
        json_array_append_new(list, json_pack("{s:s*, s:I, s:I, s:I, s:b}", "name", runs[r]->name, "steps",
                                              (json_int_t)runs[r]->steps, "points", (json_int_t)runs[r]->count,
                                              "evaluations", (json_int_t)runs[r]->evals, "part", (int)runs[r]->part));
    json_t *all = json_pack("{s:s, s:s, s:s, s:o}", "output", asked->output, "x", aq_plot_x_name(asked->x), "y",
                            aq_plot_y_name(asked->y), "runs", list);
    json_dumpf(all, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    aq_out_raw("\n");
    json_decref(all);
}

static enum aq_status draw(const struct asked *asked, const struct aq_arguments *folders, struct aq_curve **runs,
                           const char **file)
{
    struct aq_text svg = {0};
    const struct aq_plot plot = {
        .x = asked->x, .y = asked->y, .title = asked->title, .smooth = asked->smooth, .width = WIDTH, .height = HEIGHT};
    for (uint32_t r = 0; r < folders->count; r++) {
        *file = folders->of[r];
        AQ_TRY(AQ_NEW(1, &runs[r]));
        AQ_TRY(aq_curve_read(folders->of[r], asked->x == AQ_CURVE_BYTES, runs[r]));
    }
    *file = asked->output;
    enum aq_status status = aq_plot_svg(&plot, (const struct aq_curve *const *)runs, folders->count, &svg);
    if (status == AQ_OK && asked->output)
        status = aq_file_replace(NULL, asked->output, 0666, svg.bytes, svg.used);
    else if (status == AQ_OK)
        aq_out_raw(aq_text_of(&svg));
    aq_text_deinit(&svg);
    return status;
}

int aq_command_plot(int argc, char **argv)
{
    struct asked asked = {.x = AQ_CURVE_TIME};
    struct aq_arguments folders;
    struct aq_curve *runs[AQ_PLOT_RUNS_MAX] = {0};
    const char *file = NULL;
    const int code = aq_options_read(&line, argc, argv, &asked, &folders);
    if (code != AQ_OPTIONS_READ) return code;
    if (folders.count == 0) return aq_options_wrong(line.name, "name a run folder");
    if (folders.count > AQ_PLOT_RUNS_MAX)
        return aq_options_wrong(line.name, "%u runs: at most %d fit into one picture, a colour for each", folders.count,
                                AQ_PLOT_RUNS_MAX);
    if (asked.json && !asked.output) return aq_options_wrong(line.name, "--json needs -o FILE for the picture");
    const enum aq_status status = draw(&asked, &folders, runs, &file);
    if (status == AQ_OK)
        say_drawn(&asked, (const struct aq_curve *const *)runs, folders.count);
    else
        say_wrong(&asked, status, file);
    for (uint32_t r = 0; r < folders.count; r++)
        aq_free(runs[r]);
    return aq_exit_of(status);
}
