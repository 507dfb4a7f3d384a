/*
 * log_capture.h -- the error lines that a test provokes, instead of on standard error.
 */
#ifndef TESTS_LOG_CAPTURE_H
#define TESTS_LOG_CAPTURE_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"

enum { CAPTURE_LINES = 32, CAPTURE_BYTES = 1024 };

static struct {
    _Atomic uint32_t count; /* published after the line: read while other threads log */
    char lines[CAPTURE_LINES][CAPTURE_BYTES];
} captured;

static void capture_line(int level, const char *line, void *context)
{
    (void)context;
    const uint32_t at = captured.count; /* the log calls one at a time */
    if (level != AQ_LOG_ERROR || at >= CAPTURE_LINES) return;
    snprintf(captured.lines[at], CAPTURE_BYTES, "%s", line);
    captured.count = at + 1;
}

static inline void capture_begin(void)
{
    captured.count = 0;
    aq_log_sink(capture_line, NULL);
}

static inline void capture_end(void)
{
    aq_log_sink(NULL, NULL);
}

/* Is there a line with this in it? */
static inline int captured_has(const char *words)
{
    const uint32_t count = captured.count;
    for (uint32_t i = 0; i < count; i++)
        if (strstr(captured.lines[i], words)) return 1;
    return 0;
}

#endif
