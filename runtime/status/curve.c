/* curve.c -- see the header. */
#include "curve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "control.h"
#include "run_folder.h"
#include "run_lines.h"

/* Of a large file all of its end is read, which the index (every 4 MiB) may not know; of an index's line what is behind
 * its digest. */
enum { TAIL_BYTES = 5 << 20, INDEX_HEAD = 17 };

static double array_wire(const json_t *line, const char *bytes, const char *packed)
{
    const size_t ranks = json_array_size(json_object_get(line, bytes));
    double sum = 0;
    for (size_t r = 0; r < ranks; r++)
        sum += aq_control_carried(aq_control_number_at(line, bytes, r), aq_control_number_at(line, packed, r));
    return sum;
}

double aq_curve_wire_bytes(const json_t *line)
{
    return array_wire(line, "forward_bytes", "forward_packed") + array_wire(line, "backward_bytes", "backward_packed") +
           array_wire(line, "gradient_bytes", "gradient_packed");
}

static double worst_cut(const json_t *line)
{
    const json_t *value;
    double most = (double)NAN;
    size_t r;
    json_array_foreach(json_object_get(line, "contraction"), r, value) if (json_is_number(value))
    {
        const double c = json_number_value(value);
        if (!(most >= c)) most = c;
    }
    return most;
}

static void join(struct aq_curve_point *to, const struct aq_curve_point *more)
{
    memcpy(to->x, more->x, sizeof to->x);
    to->steps += more->steps;
    for (int y = 0; y < AQ_CURVE_YS; y++) {
        if (more->seen[y] == 0) continue;
        const double all = (double)(to->seen[y] + more->seen[y]);
        if (to->seen[y] == 0) {
            to->low[y] = more->low[y];
            to->high[y] = more->high[y];
        }
        to->mean[y] = to->mean[y] * ((double)to->seen[y] / all) + more->mean[y] * ((double)more->seen[y] / all);
        to->low[y] = fmin(to->low[y], more->low[y]);
        to->high[y] = fmax(to->high[y], more->high[y]);
        to->seen[y] += more->seen[y];
    }
}

static void add_point(struct aq_curve *curve, const struct aq_curve_point *point)
{
    if (curve->each == 0) curve->each = 1;
    if (curve->count > 0 && curve->points[curve->count - 1].steps < curve->each) {
        join(&curve->points[curve->count - 1], point);
        return;
    }
    if (curve->count == AQ_CURVE_POINTS) {
        for (uint32_t i = 0; i < AQ_CURVE_POINTS / 2; i++) {
            struct aq_curve_point both = curve->points[2 * (size_t)i];
            join(&both, &curve->points[2 * (size_t)i + 1]);
            curve->points[i] = both;
        }
        curve->count = AQ_CURVE_POINTS / 2;
        curve->each *= 2;
    }
    curve->points[curve->count++] = *point;
}

static void add_step(struct aq_curve *curve, const json_t *line)
{
    struct aq_curve_point point = {.steps = 1};
    const double values[AQ_CURVE_YS] = {aq_control_number_or(line, "loss", (double)NAN), worst_cut(line),
                                        aq_control_number_or(line, "sequences_per_second", (double)NAN)};
    const double step = aq_control_number_or(line, "step", (double)NAN);
    curve->bytes += aq_curve_wire_bytes(line);
    curve->seconds = aq_control_number_or(line, "time", curve->seconds);
    if (!(step >= 0 && step < 1e18)) return;
    const double x[AQ_CURVE_XS] = {step, curve->seconds, curve->bytes};
    memcpy(point.x, x, sizeof point.x);
    for (int y = 0; y < AQ_CURVE_YS; y++) {
        if (!isfinite(values[y])) continue;
        point.mean[y] = point.low[y] = point.high[y] = values[y];
        point.seen[y] = 1;
    }
    curve->steps++;
    add_point(curve, &point);
}

static void add_eval(struct aq_curve *curve, const json_t *line)
{
    const double loss = aq_control_number_or(line, "loss", (double)NAN);
    const double step = aq_control_number_or(line, "step", (double)NAN);
    if (!isfinite(loss) || !(step >= 0 && step < 1e18)) return;
    if (curve->eval_each == 0) curve->eval_each = 1;
    if (curve->eval_turn++ % curve->eval_each != 0) return;
    if (curve->evals == AQ_CURVE_EVALS) {
        for (uint32_t i = 0; i < AQ_CURVE_EVALS / 2; i++)
            curve->heldout[i] = curve->heldout[2 * (size_t)i];
        curve->evals = AQ_CURVE_EVALS / 2;
        curve->eval_each *= 2;
    }
    curve->heldout[curve->evals++] = (struct aq_curve_eval){
        .x = {step, aq_control_number_or(line, "time", curve->seconds), curve->bytes}, .loss = loss};
}

void aq_curve_add(struct aq_curve *curve, const json_t *line)
{
    if (aq_control_is(line, "event", "step"))
        add_step(curve, line);
    else if (aq_control_is(line, "event", "eval"))
        add_eval(curve, line);
    else if (aq_control_is(line, "event", "start"))
        snprintf(curve->codec, sizeof curve->codec, "%s", aq_control_text_or(line, "codec", ""));
}

static enum aq_status visit(const json_t *line, void *context)
{
    aq_curve_add(context, line);
    return AQ_OK;
}

/* ---- large files: steps evenly spread, evaluations as the index has them, and all of the end ---- */

/* The first step behind this byte, if it is behind *seen. */
static enum aq_status probe(const char *path, uint64_t offset, struct aq_curve *curve, uint64_t *seen)
{
    struct aq_run_lines *lines;
    const char *text;
    size_t count;
    AQ_TRY(aq_run_lines_open(path, offset, &lines));
    enum aq_status status = offset > 0 ? aq_run_lines_next(lines, &text, &count) : AQ_OK; /* the rest of a line */
    bool found = false;
    while (!found && status == AQ_OK && (status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        json_t *line = json_loadb(text, count, 0, NULL);
        found = aq_control_is(line, "event", "step");
        if (offset == 0 || (found && aq_run_lines_at(lines) > *seen)) aq_curve_add(curve, line);
        if (!json_is_object(line))
            status = aq_fail(AQ_CORRUPT, "run", "%s: the line that ends at byte %llu is not a JSON object", path,
                             (unsigned long long)aq_run_lines_at(lines));
        json_decref(line);
    }
    if (found && aq_run_lines_at(lines) > *seen) *seen = aq_run_lines_at(lines);
    aq_run_lines_close(lines);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

/* Evaluations before `end` bytes, as the index has them: a shortcut, so that what of it cannot be read is left out. */
static void index_evals(const char *path, struct aq_curve *curve)
{
    char name[AQ_RUN_PATH_BYTES];
    struct aq_run_lines *lines;
    const char *text;
    size_t count;
    double seen = -1;
    if (snprintf(name, sizeof name, "%s.index", path) >= (int)sizeof name) return;
    if (aq_run_lines_open(name, 0, &lines) != AQ_OK) return;
    while (aq_run_lines_next(lines, &text, &count) == AQ_OK) {
        json_t *entry = count > INDEX_HEAD ? json_loadb(text + INDEX_HEAD, count - INDEX_HEAD, 0, NULL) : NULL;
        const json_t *eval = json_object_get(json_object_get(entry, "sums"), "eval");
        const double step = aq_control_number_or(eval, "step", -1);
        if (step > seen) add_eval(curve, eval);
        if (step > seen) seen = step;
        json_decref(entry);
    }
    aq_run_lines_close(lines);
}

static enum aq_status read_part(const char *path, uint64_t bytes, struct aq_curve *curve)
{
    const uint64_t tail = bytes - TAIL_BYTES;
    uint64_t seen = 0;
    curve->part = true;
    for (uint64_t i = 0; i < AQ_CURVE_POINTS - 1; i++)
        AQ_TRY(probe(path, tail / (AQ_CURVE_POINTS - 1) * i, curve, &seen));
    index_evals(path, curve);
    const double eval_last = curve->evals > 0 ? curve->heldout[curve->evals - 1].x[AQ_CURVE_STEP] : -1;
    struct aq_run_lines *lines;
    const char *text;
    size_t count;
    AQ_TRY(aq_run_lines_open(path, tail, &lines));
    enum aq_status status = aq_run_lines_next(lines, &text, &count);
    while (status == AQ_OK && (status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        json_t *line = aq_run_lines_at(lines) > seen ? json_loadb(text, count, 0, NULL) : NULL;
        const bool eval = aq_control_is(line, "event", "eval");
        if (line && (!eval || aq_control_number_or(line, "step", -1) > eval_last)) aq_curve_add(curve, line);
        json_decref(line);
    }
    aq_run_lines_close(lines);
    return status == AQ_NOTFOUND ? AQ_OK : status;
}

enum aq_status aq_curve_read(const char *folder, bool whole, struct aq_curve *curve)
{
    char path[AQ_RUN_PATH_BYTES];
    struct stat about;
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    memset(curve, 0, sizeof *curve);
    snprintf(curve->name, sizeof curve->name, "%.*s", (int)(end - begin), folder + begin);
    AQ_TRY(aq_run_path(folder, "metrics.jsonl", path));
    const bool large = !whole && stat(path, &about) == 0 && about.st_size > AQ_CURVE_LARGE_BYTES;
    const enum aq_status status =
        large ? read_part(path, (uint64_t)about.st_size, curve) : aq_run_lines(path, visit, curve);
    if (status != AQ_NOTFOUND) return status;
    return aq_fail(AQ_NOTFOUND, "run", "there is no %s: name the folder of a run", path);
}
