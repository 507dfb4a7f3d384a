/* progress.c -- see the header. Lines go to standard error; standard output is only for --json. */
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base.h"
#include "control.h"
#include "heldout.h"
#include "runtime_text.h"
#include "out.h"

static const uint64_t live_ns = 150ULL * 1000 * 1000, plain_ns = 5000ULL * 1000 * 1000;
static const uint64_t phase_ns_min = 2000ULL * 1000 * 1000; /* shorter phases are not shown between steps */
enum { BAR_CELLS = 20, SAY_BYTES = 1400, FIELD_BYTES = AQ_PROGRESS_PHASE_BYTES + 40 };

/* The fields of the line, in its order. */
enum { BAR, PERCENT, STEP, PHASE, LOSS, HELDOUT, SEQUENCES, LINK_WAIT, LEFT, FIELDS };

void aq_progress_begin(struct aq_progress *progress)
{
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->loss = progress->heldout = (double)NAN;
    progress->shown_ns = aq_clock_ns() - plain_ns; /* the first step is shown at once */
}

void aq_progress_end(struct aq_progress *progress)
{
    if (progress->live) fputc('\n', stderr);
    progress->live = false;
}

void aq_progress_say(struct aq_progress *progress, const char *format, ...)
{
    char text[SAY_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    char clean[SAY_BYTES]; /* what a peer sent must not steer the terminal */
    aq_progress_end(progress);
    fprintf(stderr, "aqpipe: %s\n", aq_printable_text(text, clean, sizeof clean));
}

void aq_progress_json(struct aq_progress *progress, const json_t *line)
{
    if (!progress->json) return;
    json_dumpf(line, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)aq_out_raw("\n");
    fflush(stdout);
}

static double sum(const json_t *array)
{
    const json_t *value;
    double total = 0;
    size_t i;
    json_array_foreach(array, i, value) total += json_number_value(value);
    return total;
}

double aq_progress_link_wait(const json_t *joined)
{
    const double waits = sum(json_object_get(joined, "link_wait_ns")) * 1e-9;
    const double all = sum(json_object_get(joined, "stage_seconds"));
    return all > 0 ? waits / all : 0;
}

/* "1:02:03", "4:05" */
static void duration(double seconds, char *out, size_t bytes)
{
    if (!(seconds >= 0) || seconds > 1e8) {
        snprintf(out, bytes, "?");
        return;
    }
    const unsigned long s = (unsigned long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, bytes, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, bytes, "%lu:%02lu", s / 60, s % 60);
}

static void bar(double share, char out[BAR_CELLS + 1])
{
    const int full = (int)(share * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++)
        out[i] = i < full ? '#' : '.';
    out[BAR_CELLS] = 0;
}

static bool shows(const struct aq_progress *progress)
{
    return !progress->off && (!progress->json || progress->terminal);
}

/* The phase and its duration; at most words_max bytes of its text. */
static void phase_fill(const struct aq_progress *p, uint64_t now_ns, size_t words_max, char field[FIELD_BYTES])
{
    char text[32];
    const uint64_t phase_ns = now_ns > p->phase_ns ? now_ns - p->phase_ns : 0;
    field[0] = 0;
    if (!*p->phase || (p->step > 0 && phase_ns < phase_ns_min)) return;
    duration((double)phase_ns * 1e-9, text, sizeof text);
    snprintf(field, FIELD_BYTES, "%.*s %s", (int)words_max, p->phase, text);
}

/* The text of each field; "": it is left out. */
static void fields_fill(const struct aq_progress *p, uint64_t now_ns, char fields[FIELDS][FIELD_BYTES])
{
    char text[32], cells[BAR_CELLS + 1];
    for (int i = 0; i < FIELDS; i++)
        fields[i][0] = 0;
    phase_fill(p, now_ns, AQ_PROGRESS_PHASE_BYTES, fields[PHASE]);
    if (p->step == 0) return;
    const double share = p->steps ? (double)p->step / (double)p->steps : 0;
    const double left = p->steps > p->step ? (double)(p->steps - p->step) : 0;
    duration(p->rate > 0 ? left / p->rate : (double)NAN, text, sizeof text);
    bar(share > 1 ? 1 : share, cells);
    snprintf(fields[BAR], FIELD_BYTES, "%s", cells);
    snprintf(fields[PERCENT], FIELD_BYTES, "%3.0f%%", share * 100);
    snprintf(fields[STEP], FIELD_BYTES, "step %llu/%llu", (unsigned long long)p->step, (unsigned long long)p->steps);
    if (isfinite(p->loss)) snprintf(fields[LOSS], FIELD_BYTES, "loss %.4f", p->loss);
    if (p->metric && isfinite(p->heldout))
        snprintf(fields[HELDOUT], FIELD_BYTES, "held-out %s %.3f", p->metric, p->heldout);
    snprintf(fields[SEQUENCES], FIELD_BYTES, "%.2f seq/s", p->sequences);
    snprintf(fields[LINK_WAIT], FIELD_BYTES, "wait for links %.0f%%", p->link_wait * 100);
    snprintf(fields[LEFT], FIELD_BYTES, "left %s", text);
}

void aq_progress_line(const struct aq_progress *progress, uint64_t now_ns, unsigned columns,
                      char out[AQ_PROGRESS_LINE_BYTES])
{
    static const int lesser[] = {BAR, LINK_WAIT, PERCENT, HELDOUT, SEQUENCES, LOSS}; /* what goes first */
    char fields[FIELDS][FIELD_BYTES];
    size_t width = 0, at = 0;
    fields_fill(progress, now_ns, fields);
    for (int i = 0; i < FIELDS; i++)
        if (*fields[i]) width += strlen(fields[i]) + (width ? 2 : 0);
    for (size_t i = 0; columns > 0 && width > columns && i < sizeof lesser / sizeof *lesser; i++) {
        if (*fields[lesser[i]]) width -= strlen(fields[lesser[i]]) + 2;
        *fields[lesser[i]] = 0;
    }
    const size_t words = strlen(progress->phase), over = width > columns ? width - columns : 0;
    if (columns > 0 && over > 0) phase_fill(progress, now_ns, words > over ? words - over : 0, fields[PHASE]);
    out[0] = 0;
    for (int i = 0; i < FIELDS && at < AQ_PROGRESS_LINE_BYTES; i++)
        if (*fields[i])
            at += (size_t)snprintf(out + at, AQ_PROGRESS_LINE_BYTES - at, "%s%s", at ? "  " : "", fields[i]);
    if (columns > 0 && columns < AQ_PROGRESS_LINE_BYTES) out[columns] = 0;
}

static void show(struct aq_progress *progress, uint64_t now_ns)
{
    char line[AQ_PROGRESS_LINE_BYTES];
    const unsigned columns = aq_text_columns(STDERR_FILENO);
    progress->shown_ns = now_ns;
    /* A character in the last column would start another line. */
    aq_progress_line(progress, now_ns, progress->terminal && columns > 1 ? columns - 1 : columns, line);
    if (!*line) return;
    fprintf(stderr, progress->terminal ? "\r%s\033[K" : "%s\n", line);
    progress->live = progress->terminal;
}

void aq_progress_phase(struct aq_progress *progress, const char *format, ...)
{
    char text[AQ_PROGRESS_PHASE_BYTES], clean[AQ_PROGRESS_PHASE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)aq_printable_text(text, clean, sizeof clean);
    if (strcmp(clean, progress->phase) == 0) return;
    memcpy(progress->phase, clean, sizeof clean);
    progress->phase_ns = aq_clock_ns();
    aq_board_phase(progress->board, clean);
}

void aq_progress_tick(struct aq_progress *progress)
{
    const uint64_t now = aq_clock_ns(), since = now - progress->phase_ns;
    const uint64_t least = !progress->terminal ? plain_ns : progress->step == 0 ? 0 : phase_ns_min;
    if (!shows(progress) || !*progress->phase || since < least) return;
    if (now - progress->shown_ns < (progress->terminal ? live_ns : plain_ns)) return;
    show(progress, now);
}

void aq_progress_step(struct aq_progress *progress, const json_t *joined)
{
    const double seconds = aq_control_number_or(joined, "seconds", 0);
    const double loss = aq_control_number_or(joined, "loss", (double)NAN);
    const uint64_t now = aq_clock_ns();
    aq_progress_json(progress, joined);
    progress->step = aq_control_u64_or(joined, "step", 0);
    progress->phase[0] = 0;
    progress->sequences = aq_control_number_or(joined, "sequences_per_second", 0);
    progress->link_wait = aq_progress_link_wait(joined);
    if (seconds > 0) progress->rate = progress->rate > 0 ? 0.9 * progress->rate + 0.1 / seconds : 1 / seconds;
    if (isfinite(loss)) progress->loss = isfinite(progress->loss) ? 0.9 * progress->loss + 0.1 * loss : loss;
    if (!shows(progress)) return;
    const bool last = progress->step >= progress->steps;
    if (last || now - progress->shown_ns >= (progress->terminal ? live_ns : plain_ns)) show(progress, now);
}

void aq_progress_eval(struct aq_progress *progress, const json_t *line)
{
    bool higher;
    if (!aq_heldout_metric(line, &progress->metric, &progress->heldout, &higher)) progress->heldout = (double)NAN;
    if (progress->metric && strcmp(progress->metric, "perplexity") == 0) progress->metric = "ppl";
    aq_progress_json(progress, line);
}
