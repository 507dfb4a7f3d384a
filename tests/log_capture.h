/*
 * log_capture.h -- the error lines that a test provokes, instead of on standard error.
 */
#ifndef TESTS_LOG_CAPTURE_H
#define TESTS_LOG_CAPTURE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"

enum { CAPTURE_LINES = 32, CAPTURE_BYTES = 1024 };

static struct {
    uint32_t count;
    char lines[CAPTURE_LINES][CAPTURE_BYTES];
} captured;

static void capture_line(int level, const char *line, void *context)
{
    (void)context;
    if (level == 0 && captured.count < CAPTURE_LINES)
        snprintf(captured.lines[captured.count++], CAPTURE_BYTES, "%s", line);
}

static inline void capture_begin(void)
{
    memset(&captured, 0, sizeof captured);
    aq_log_sink(capture_line, NULL);
}

static inline void capture_end(void)
{
    aq_log_sink(NULL, NULL);
}

/* Is there a line with this in it? */
static inline int captured_has(const char *words)
{
    for (uint32_t i = 0; i < captured.count; i++)
        if (strstr(captured.lines[i], words)) return 1;
    return 0;
}

#endif
