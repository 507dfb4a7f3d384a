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
#include "aqsgd/base/printable.h"
#include "aqsgd/base/thread.h"

enum { AREAS_MAX = 16, AREA_BYTES = 16, LINE_BYTES = 2048, AREA_ROOM = 128, UTC_BYTES = 40, WINDOW_LINES = 8 };
#define WINDOW_NS (10ULL * 1000 * 1000 * 1000)

static struct {
    char area[AREA_BYTES];
    int level;
} areas[AREAS_MAX];
static int area_count;
static int default_level = 1;
static int rank_shown = AQ_LOG_COMMAND;
static void (*sink)(int level, const char *line, void *context); /* this and the next: aq_mutex_log guards them */
static void *sink_context;
static atomic_bool sink_set; /* without a sink no lock is taken: a child may log between fork and exec */
static _Thread_local struct aq_log_limit *thread_limit; /* NULL: every line goes out */

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
    aq_mutex_lock(aq_mutex_log());
    sink_context = context;
    sink = to;
    atomic_store_explicit(&sink_set, to != NULL, memory_order_relaxed); /* a hint; the mutex orders the rest */
    aq_mutex_unlock(aq_mutex_log());
}

/* The sink takes the line, if there is one. */
static bool sink_takes(int level, const char *line)
{
    if (!atomic_load_explicit(&sink_set, memory_order_relaxed)) return false;
    aq_mutex_lock(aq_mutex_log());
    const bool takes = sink != NULL;
    if (takes) sink(level, line, sink_context);
    aq_mutex_unlock(aq_mutex_log());
    return takes;
}

bool aq_log_on(const char *area, int level)
{
    if (level <= 0) return true;
    for (int i = 0; i < area_count; i++)
        if (strcmp(areas[i].area, area) == 0) return level <= areas[i].level;
    return level <= default_level;
}

/* "2026-11-22T22:27:15.123Z" of the calendar of 1582; by hand, because gmtime_r may open a file. */
static void utc_text(uint64_t wall_ns, char out[UTC_BYTES])
{
    const uint64_t ms = wall_ns / 1000000, s = ms / 1000;
    const uint64_t days = s / 86400 + 719468;                       /* since 1 March of the year 0 */
    const uint64_t era = days / 146097, day_of_era = days % 146097; /* of 400 years                */
    const uint64_t year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    const uint64_t day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    const uint64_t march = (5 * day_of_year + 2) / 153; /* months since March */
    const uint64_t day = day_of_year - (153 * march + 2) / 5 + 1, month = march < 10 ? march + 3 : march - 9;
    snprintf(out, UTC_BYTES, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", (unsigned)(era * 400 + year + (month <= 2)),
             (unsigned)month, (unsigned)day, (unsigned)(s / 3600 % 24), (unsigned)(s / 60 % 60), (unsigned)(s % 60),
             (unsigned)(ms % 1000));
}

bool aq_log_is_info(const char *line)
{
    enum { AFTER_DATE = 10, AFTER_TIME = 23, WORDS_MAX = 24 };
    if (strlen(line) < UTC_BYTES || line[AFTER_DATE] != 'T' || line[AFTER_TIME] != 'Z') return false;
    const char *info = strstr(line, " info ");
    return info && info - line <= AFTER_TIME + WORDS_MAX;
}

/* The part before the text: of a log the time, process, severity and area; of a command the area. */
static size_t write_head(char *line, const char *area, int level)
{
    const char *const grave = level == AQ_LOG_ERROR ? "error" : level == AQ_LOG_WARNING ? "warning" : "info";
    char time[UTC_BYTES], rank[24] = "";
    if (rank_shown == AQ_LOG_COMMAND)
        return (size_t)snprintf(line, AREA_ROOM, "aqpipe: %s%s%.40s: ", level > 0 ? "" : grave, level > 0 ? "" : ": ",
                                area);
    utc_text(aq_clock_wall_ns(), time);
    if (rank_shown >= 0) snprintf(rank, sizeof rank, "rank %d ", rank_shown);
    return (size_t)snprintf(line, AREA_ROOM, "%s %s%s %.40s: ", time, rank, grave, area);
}

/* Make the line printable and write it. `more`: added behind it. */
static void write_line(const char *area, int level, const char *text, uint64_t more)
{
    char line[LINE_BYTES], tail[64] = "";
    size_t at = write_head(line, area, level);
    if (more > 0) snprintf(tail, sizeof tail, " (and %llu more lines were held back)", (unsigned long long)more);
    (void)aq_printable(text, strlen(text), false, line + at, LINE_BYTES - at - sizeof tail);
    at += strlen(line + at);
    memcpy(line + at, tail, strlen(tail) + 1);
    at += strlen(tail);
    if (sink_takes(level, line)) return;
    line[at++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, at);
    (void)written; /* a failure to write the log cannot be reported anywhere */
}

/* Is the limit's window over (or has none begun)? */
static bool window_over(const struct aq_log_limit *limit, uint64_t now_ns)
{
    const uint64_t window_ns = limit->window_ns ? limit->window_ns : WINDOW_NS;
    return limit->since_ns == 0 || now_ns >= limit->since_ns + window_ns;
}

/* May one more line be written? *more: the lines held back that it is to report. */
static bool limit_takes(struct aq_log_limit *limit, const char *area, int level, uint64_t *more)
{
    const uint64_t now = aq_clock_ns();
    limit->area = area;
    limit->level = level;
    if (window_over(limit, now)) {
        limit->since_ns = now ? now : 1;
        limit->lines = 0;
    }
    if (limit->lines >= (limit->lines_max ? limit->lines_max : WINDOW_LINES)) {
        limit->held++;
        return false;
    }
    limit->lines++;
    *more = limit->held;
    limit->held = 0;
    return true;
}

static bool write_limited(struct aq_log_limit *limit, const char *area, int level, const char *format,
                          va_list arguments)
{
    char text[LINE_BYTES];
    uint64_t more = 0;
    if (limit && !limit_takes(limit, area, level, &more)) return false;
    vsnprintf(text, sizeof text, format, arguments);
    for (char *c = text; *c; c++) /* one event, one line; ours have newlines for good reason */
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    write_line(area, level, text, more);
    return true;
}

void aq_log(const char *area, int level, const char *format, ...)
{
    if (!aq_log_on(area, level)) return;
    va_list arguments;
    va_start(arguments, format);
    (void)write_limited(thread_limit, area, level, format, arguments);
    va_end(arguments);
}

bool aq_log_limited(struct aq_log_limit *limit, const char *area, int level, const char *format, ...)
{
    if (!aq_log_on(area, level)) return false;
    va_list arguments;
    va_start(arguments, format);
    const bool written = write_limited(limit, area, level, format, arguments);
    va_end(arguments);
    return written;
}

void aq_log_limit_tell(struct aq_log_limit *limit)
{
    if (limit->held == 0 || !window_over(limit, aq_clock_ns())) return;
    char text[64];
    snprintf(text, sizeof text, "%llu more lines were held back", (unsigned long long)limit->held);
    limit->held = 0;
    write_line(limit->area, limit->level, text, 0);
}

void aq_log_limit_thread(struct aq_log_limit *limit)
{
    thread_limit = limit;
}
