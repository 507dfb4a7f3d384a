/*
 * log.h -- one line per event: time, rank, severity, area, text.
 *
 *     2026-11-22T22:27:15.123Z rank 1 warning worker: stage 1 has lost its cache ...     of a worker (UTC)
 *     2026-11-22T22:27:15.123Z info daemon: listening at ...                             of a daemon that listens
 *     aqpipe: error: plan: job.yaml:7: ...                                               of a command
 *
 * Errors and warnings always come. Info has levels by how often the line comes, not by mood: 1 is for the log of a run
 * without trouble (start, first step, evaluations, checkpoints, end), 2 once per object, 3 once per step, 4 once per
 * micro-batch, 5 once per frame. AQ_LOG=net:4,edge:3 sets levels by area, AQ_LOG=2 for all; the default is 1. Lines go
 * to standard error, or to the sink of aq_log_sink. No secrets, no bytes of the user's data. Every line is made
 * printable (printable.h): peers' texts may be put into it as they came.
 *
 * Lines that a stranger can cause must not fill a disk: they go through a limit, which writes a few of them per window
 * and counts the rest.
 *
 *     static struct aq_log_limit refusals;                       // zeroes: 8 lines in 10 s
 *     aq_log_limited(&refusals, "net", 1, "refused peer=%s: %s", name, why);
 *     aq_log_limit_tell(&refusals);                              // now and then, from the loop: "n more ..."
 *
 *     aq_log_limit_thread(&refusals);    // or: whatever this thread logs from here on, aq_fail deep below included,
 *     serve_somebody_unknown();          // goes through the limit
 *     aq_log_limit_thread(NULL);
 *
 * Locking: every function may be called from any thread; one line is written at once. A limit is one thread's, or its
 * callers' lock guards it.
 */
#ifndef AQSGD_BASE_LOG_H
#define AQSGD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { AQ_LOG_ERROR = 0, AQ_LOG_WARNING = -1 };  /* levels; above 0: info                          */
enum { AQ_LOG_COMMAND = -1, AQ_LOG_DAEMON = -2 }; /* in place of a rank, for a process without one */

/* Reads AQ_LOG. rank is printed in every line. Call once, before threads. */
void aq_log_init(int rank);

/* Is this line of a log information: neither an error, nor a warning, nor another program's? */
bool aq_log_is_info(const char *line);

/* Would a line of this area and level be written? For callers whose arguments are dear. */
bool aq_log_on(const char *area, int level);

/* Write one line. format is without a newline: `key=value key=value`. */
void aq_log(const char *area, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Zeroes are good. The caller may set the first two; the rest is the limit's. */
struct aq_log_limit {
    uint64_t window_ns; /* 0: 10 s                                              */
    uint32_t lines_max; /* of a window; 0: 8                                    */
    uint32_t lines;     /* that went out in this window                         */
    uint64_t since_ns;  /* start of this window; 0: none yet                    */
    uint64_t held;      /* lines that were not written and not reported yet     */
    const char *area;   /* of the last line; the later report has it, too       */
    int level;
};

/* As aq_log, while the window has lines left; else the line is counted. The first line of the next window has their
 * number. area is kept: a text that stays. Was it written? */
bool aq_log_limited(struct aq_log_limit *limit, const char *area, int level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Log how many lines were held back, if any were and their window is over. For a loop's tick: after a flood no other
 * line may come to report it. */
void aq_log_limit_tell(struct aq_log_limit *limit);

/* Lines of the calling thread go through this limit, those of aq_fail too, until NULL is set. It must live as long. */
void aq_log_limit_thread(struct aq_log_limit *limit);

/* Sends lines to `sink`; NULL: to standard error. line has no newline. Lines of all threads come one at a time, none
 * after the sink has been replaced; so sink needs no lock. It must not log, nor wait. */
void aq_log_sink(void (*sink)(int level, const char *line, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
