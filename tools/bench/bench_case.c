/* bench_case.c -- which cases run, how often, what of the repeats counts, and the one way a figure is printed. */
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static volatile sig_atomic_t interrupted;
static bool lost, emitted; /* standard output; something */

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void aq_bench_flush(void)
{
    if (fflush(stdout) != 0) lost = true;
}

/* more: further fields of the object, each with its comma. */
static void emit(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                 const char *more)
{
    if (!options->json)
        printf("%-44s %12.6g %s\n", name, value, unit);
    else if (isfinite(value))
        printf("{\"case\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"%s}\n", name, value, unit, more);
    else
        printf("{\"case\": \"%s\", \"value\": null, \"unit\": \"%s\"%s}\n", name, unit, more);
    emitted = true;
    aq_bench_flush();
}

void aq_bench_emit(const struct aq_bench_options *options, const char *name, double value, const char *unit)
{
    emit(options, name, value, unit, "");
}

void aq_bench_emit_by(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                      const char *by, uint64_t parameters)
{
    char more[128];
    snprintf(more, sizeof more, ", \"by\": \"%s\", \"parameters\": %llu", by, (unsigned long long)parameters);
    emit(options, name, value, unit, more);
}

void aq_bench_emitted(void)
{
    emitted = true;
}

bool aq_bench_wanted(const struct aq_bench_options *options, const char *name)
{
    char text[256];
    if (interrupted || lost) return false;
    if (!options->only) return true;
    snprintf(text, sizeof text, "%s", options->only);
    for (char *rest = text, *word; (word = strsep(&rest, " "));)
        if (!strstr(name, word)) return false;
    return true;
}

void aq_bench_begin(void)
{
    struct sigaction action = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGPIPE, &action, NULL);
    action.sa_handler = interrupt;
    action.sa_flags = (int)SA_RESETHAND;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

enum aq_status aq_bench_end(const struct aq_bench_options *options)
{
    if (interrupted) return aq_fail(AQ_ABORTED, "bench", "interrupted");
    if (lost) return aq_fail(AQ_ABORTED, "bench", "the reader of the figures has ended");
    if (emitted || !options->only) return AQ_OK;
    return aq_fail(AQ_INVAL, "bench", "--only \"%s\": no case of these benches has these words", options->only);
}

/* The best of `repeats` repeats, in seconds. */
static enum aq_status best(uint32_t repeats, enum aq_status (*run)(void *context), void *context, double *seconds)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < repeats; i++) {
        const uint64_t begin = aq_clock_ns();
        AQ_TRY(run(context));
        const uint64_t taken = aq_clock_ns() - begin;
        least = taken < least ? taken : least;
    }
    *seconds = 1e-9 * (double)least;
    return AQ_OK;
}

enum aq_status aq_bench_case(const struct aq_bench_options *options, const struct aq_bench_case *one, double *seconds,
                             const char *name, ...)
{
    const uint32_t repeats = options->quick ? (one->repeats + 3) / 4 : one->repeats;
    char text[96];
    double took = 0;
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    if (seconds != NULL) *seconds = 0;
    if (!aq_bench_wanted(options, text)) return one->makes ? one->run(one->context) : AQ_OK;
    AQ_TRY(one->device ? aq_bench_median(one->device, one->stream, repeats, one->run, one->context, &took)
                       : best(repeats, one->run, one->context, &took));
    if (seconds != NULL) *seconds = took;
    if (one->unit) aq_bench_emit(options, text, one->amount > 0 ? one->amount / took : one->scale * took, one->unit);
    return AQ_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double aq_bench_middle(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], by_size);
    return values[count / 2];
}

enum aq_status aq_bench_median(struct aq_device *device, struct aq_stream *stream, uint32_t repeats,
                               enum aq_status (*run)(void *context), void *context, double *seconds)
{
    enum { WARM_RUNS = 2, RUNS_MAX = 64 };
    struct aq_event *events[2] = {NULL, NULL};
    double took[RUNS_MAX];
    struct aq_device_info info;
    enum aq_status status;
    aq_device_info(device, &info);
    const uint32_t at_once = info.host_memory ? 1 : 3, counted = repeats < RUNS_MAX ? repeats : RUNS_MAX;
    for (int i = 0; i < 2; i++)
        AQ_TRY_GOTO(aq_device_event_open_timed(device, &events[i]), out);
    for (uint32_t i = 0; i < WARM_RUNS + counted; i++) {
        uint64_t ns = 0;
        AQ_TRY_GOTO(aq_device_event_record(device, events[0], stream), out);
        for (uint32_t k = 0; k < at_once; k++)
            AQ_TRY_GOTO(run(context), out);
        AQ_TRY_GOTO(aq_device_event_record(device, events[1], stream), out);
        AQ_TRY_GOTO(aq_device_stream_sync(device, stream), out);
        AQ_TRY_GOTO(aq_device_event_elapsed(device, events[0], events[1], &ns), out);
        if (i >= WARM_RUNS) took[i - WARM_RUNS] = 1e-9 * (double)ns / at_once;
    }
    *seconds = aq_bench_middle(took, counted);
out:
    for (int i = 0; i < 2; i++)
        aq_device_event_close(device, events[i]);
    return status;
}
