/*
 * kept_errors.h -- error lines that come while a progress line is live: they are printed at the end, unless the cause
 * repeats them.
 *
 *     struct aq_kept_errors errors = {0};
 *     aq_log_sink(aq_kept_errors_take, &errors);
 *     ...
 *     aq_kept_errors_show(&errors, cause);       // also removes the sink
 *
 * Locking: the log's, around aq_kept_errors_take.
 */
#ifndef RUNTIME_KEPT_ERRORS_H
#define RUNTIME_KEPT_ERRORS_H

enum { AQ_ERRORS_KEPT = 8, AQ_KEPT_ERROR_BYTES = 1100 };

struct aq_kept_errors {
    int count;
    char lines[AQ_ERRORS_KEPT][AQ_KEPT_ERROR_BYTES];
};

/* A sink of aq_log_sink: errors are kept, other lines go to standard error at once. context: struct aq_kept_errors. */
void aq_kept_errors_take(int level, const char *line, void *context);

/* Removes the sink and prints what was kept, without lines that `cause` has. */
void aq_kept_errors_show(struct aq_kept_errors *errors, const char *cause);

#endif
