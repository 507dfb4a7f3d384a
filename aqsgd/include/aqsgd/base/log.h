/*
 * log.h -- one line an event: seconds, rank, area, text.
 *
 * Levels by how often the line comes, not by mood: 1 once a process, 2 once an object, 3 once a step, 4 once a
 * micro-batch, 5 once a frame. Errors (level 0) always come. AQ_LOG=net:4,edge:3 sets levels by area, AQ_LOG=2 for all;
 * the default is 1. Lines go to standard error, or where aq_log_sink says. No secrets, no bytes of the user's data.
 *
 * Locking: every function may be called from any thread; one line is written at once.
 */
#ifndef AQSGD_BASE_LOG_H
#define AQSGD_BASE_LOG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads AQ_LOG. rank is printed in every line; -1 for a process that is no rank. Call once, before threads. */
void aq_log_init(int rank);

/* Would a line of this area and level be written? For callers whose arguments are dear. */
bool aq_log_on(const char *area, int level);

/* Write one line. format is without a newline: `key=value key=value`. */
void aq_log(const char *area, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Where lines go; NULL for standard error. line has no newline. sink must be thread-safe and must not log. */
void aq_log_sink(void (*sink)(int level, const char *line, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
