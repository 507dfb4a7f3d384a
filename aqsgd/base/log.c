/*
 * log.c -- the only place that writes lines for people.
 *
 * A line is made on the stack and leaves with one write(2), so that lines of threads and processes never mix.
 */
#include "aqsgd/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aqsgd/base/clock.h"

enum { AREAS_MAX = 16, AREA_BYTES = 16, LINE_BYTES = 2048 };

static struct {
    char area[AREA_BYTES];
    int level;
} areas[AREAS_MAX];
static int area_count;
static int default_level = 1;
static int rank_shown = -1;
static void (*sink)(int level, const char *line, void *context);
static void *sink_context;

static void area_add(const char *begin, const char *end)
{
    const char *colon = memchr(begin, ':', (size_t)(end - begin));
    const long level = strtol(colon ? colon + 1 : begin, NULL, 10);
    if (!colon) {
        default_level = (int)level;
        return;
    }
    if (area_count == AREAS_MAX) return;
    size_t bytes = (size_t)(colon - begin);
    if (bytes >= AREA_BYTES) bytes = AREA_BYTES - 1;
    memcpy(areas[area_count].area, begin, bytes);
    areas[area_count].area[bytes] = 0;
    areas[area_count].level = (int)level;
    area_count++;
}

void aq_log_init(int rank)
{
    rank_shown = rank;
    area_count = 0;
    default_level = 1;
    const char *text = getenv("AQ_LOG");
    while (text && *text) {
        const char *end = strchr(text, ',');
        if (!end) end = text + strlen(text);
        area_add(text, end);
        text = *end ? end + 1 : end;
    }
}

void aq_log_sink(void (*to)(int level, const char *line, void *context), void *context)
{
    sink_context = context;
    sink = to;
}

bool aq_log_on(const char *area, int level)
{
    if (level <= 0) return true;
    for (int i = 0; i < area_count; i++)
        if (strcmp(areas[i].area, area) == 0) return level <= areas[i].level;
    return level <= default_level;
}

void aq_log(const char *area, int level, const char *format, ...)
{
    if (!aq_log_on(area, level)) return;
    char line[LINE_BYTES];
    int at;
    if (rank_shown >= 0)
        at = snprintf(line, sizeof line, "%.3f rank %d %s%s: ", (double)aq_clock_ns() * 1e-9, rank_shown,
                      level <= 0 ? "error " : "", area);
    else
        at = snprintf(line, sizeof line, "aqpipe: %s%s: ", level <= 0 ? "error: " : "", area);
    va_list arguments;
    va_start(arguments, format);
    const int more = vsnprintf(line + at, sizeof line - (size_t)at - 1, format, arguments);
    va_end(arguments);
    at += more < 0 ? 0 : more;
    if (at > LINE_BYTES - 2) at = LINE_BYTES - 2;
    for (int i = 0; i < at; i++) /* one event, one line, whatever the text brings */
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    if (sink) {
        line[at] = 0;
        sink(level, line, sink_context);
        return;
    }
    line[at++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, (size_t)at);
    (void)written; /* nowhere is left to say that the log cannot be written */
}
