/*
 * trace.h -- what happened when: fixed records in a ring of memory, written as a Chrome/Perfetto trace at the end.
 *
 * A lane is "compute", "codec", "send", "recv", "cache", "average"; spans that overlap without nesting (two frames, two
 * reads) get their own rows when they are written, because viewers take a row's spans for calls. Opening takes all the
 * memory there will be; a full trace drops the newest records and counts them. Times are aq_clock_ns.
 *
 * Locking: aq_trace_add from any thread (one atomic add); open, write, close from one thread while no thread adds.
 */
#ifndef AQSGD_BASE_TRACE_H
#define AQSGD_BASE_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include "aqsgd/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AQ_TRACE_LINE_BYTES_MAX = 256, /* of what is written: names are short literals */
    AQ_TRACE_NAMES_MAX = 129       /* lines that are no spans: of the process and its rows */
};

struct aq_trace; /* opaque */

/* records: how many fit. AQ_NOMEM. */
enum aq_status aq_trace_open(uint32_t records, struct aq_trace **out);
void aq_trace_close(struct aq_trace *trace); /* NULL is fine */

/* One span. name and lane must outlive the trace (string literals). step, micro_batch: for the viewer. NULL trace:
 * no-op. */
void aq_trace_add(struct aq_trace *trace, const char *lane, const char *name, uint64_t begin_ns, uint64_t end_ns,
                  uint32_t step, uint32_t micro_batch);

/*
 * Append the spans to file as Chrome trace events, one JSON object per line, each followed by a comma; the caller
 * writes "[" before the first, and one more event and "]" after the last, so that the traces of several ranks can be
 * joined. zero_ns is time zero: spans that end before it are left out, and those that include it start there. Sorts the
 * records, and may be called once. AQ_IO.
 */
enum aq_status aq_trace_write(struct aq_trace *trace, int rank, uint64_t zero_ns, FILE *file);

/* Records that did not fit, or found no row when they were written. */
uint64_t aq_trace_dropped(const struct aq_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
