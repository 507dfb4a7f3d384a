/* progress.c -- see the header. Lines go to standard error; standard output is for --json alone. */
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "aqsgd/base.h"
#include "control.h"
#include "heldout.h"

static const uint64_t live_ns = 150ULL * 1000 * 1000, plain_ns = 5000ULL * 1000 * 1000;
enum { LINE_BYTES = 400, BAR_CELLS = 20, SAY_BYTES = 1400 };

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
    fputc('\n', stdout);
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

static void show(struct aq_progress *progress, const char *line)
{
    if (!progress->terminal) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    struct winsize size;
    int columns = 100;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) columns = size.ws_col;
    fprintf(stderr, "\r%.*s\033[K", columns - 1, line);
    progress->live = true;
}

void aq_progress_step(struct aq_progress *progress, const json_t *joined)
{
    const double seconds = aq_control_number_or(joined, "seconds", 0);
    const double loss = aq_control_number_or(joined, "loss", (double)NAN);
    const uint64_t step = aq_control_u64_or(joined, "step", 0), now = aq_clock_ns();
    aq_progress_json(progress, joined);
    if (seconds > 0) progress->rate = progress->rate > 0 ? 0.9 * progress->rate + 0.1 / seconds : 1 / seconds;
    if (isfinite(loss)) progress->loss = isfinite(progress->loss) ? 0.9 * progress->loss + 0.1 * loss : loss;
    if (progress->off || (progress->json && !progress->terminal)) return;
    const bool last = step >= progress->steps;
    if (!last && now - progress->shown_ns < (progress->terminal ? live_ns : plain_ns)) return;
    progress->shown_ns = now;
    char line[LINE_BYTES], eta[32], cells[BAR_CELLS + 1], heldout[48] = "";
    const double share = progress->steps ? (double)step / (double)progress->steps : 0;
    const double left = progress->steps > step ? (double)(progress->steps - step) : 0;
    duration(progress->rate > 0 ? left / progress->rate : (double)NAN, eta, sizeof eta);
    bar(share > 1 ? 1 : share, cells);
    if (isfinite(progress->heldout))
        snprintf(heldout, sizeof heldout, "  held-out %s %.3f", progress->metric, progress->heldout);
    snprintf(line, sizeof line, "%s %3.0f%%  step %llu/%llu  loss %.4f%s  %.2f seq/s  wait for links %.0f%%  left %s",
             cells, share * 100, (unsigned long long)step, (unsigned long long)progress->steps, progress->loss, heldout,
             aq_control_number_or(joined, "sequences_per_second", 0), aq_progress_link_wait(joined) * 100, eta);
    show(progress, line);
}

void aq_progress_eval(struct aq_progress *progress, const json_t *line)
{
    bool higher;
    if (!aq_heldout_metric(line, &progress->metric, &progress->heldout, &higher)) progress->heldout = (double)NAN;
    if (progress->metric && strcmp(progress->metric, "perplexity") == 0) progress->metric = "ppl";
    aq_progress_json(progress, line);
}
