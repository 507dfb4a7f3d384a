/*
 * metrics_index.h -- metrics.jsonl.index: the report's sums of the first bytes of metrics.jsonl, every few MiB.
 *
 * A file of 12 GiB takes minutes to read; with an entry only the part after it is read. Nothing depends on the index:
 * an entry that does not fit the file (its digest, or the digest of the line before its byte) is skipped, and without
 * one the file is read from its start. So it is neither synced nor renamed, and its failures are only logged at level
 * 1.
 *
 * One entry a line: 16 digits (digest of what follows), a space, and an object (docs/CONTROL.md section 7). An entry
 * covers the bytes before a step's line: at least one line follows.
 *
 * Locking: one thread; readers may look while the launcher writes.
 */
#ifndef RUNTIME_METRICS_INDEX_H
#define RUNTIME_METRICS_INDEX_H

#include <jansson.h>
#include <stdint.h>

#include "report_sums.h"

enum { AQ_METRICS_INDEX_BYTES = 4 << 20 }; /* of metrics between two entries: 0.1 s of reading */

/* The newest entry that fits; without one, a fresh *sums and offset 0. aq_report_sums_deinit in the end. */
void aq_metrics_index_load(const char *metrics_path, struct aq_report_sums *sums, uint64_t *offset);

/* Entries of more than the first `bytes` go; 0: all, and the file with them. */
void aq_metrics_index_cut(const char *metrics_path, uint64_t bytes);

struct aq_metrics_index; /* opaque: the writer */

/* Goes on behind the newest entry that fits; what the file has behind that is read. `every`: bytes between two entries,
 * 0: AQ_METRICS_INDEX_BYTES. NULL where that cannot be. */
struct aq_metrics_index *aq_metrics_index_open(const char *metrics_path, uint64_t every);
void aq_metrics_index_close(struct aq_metrics_index *index); /* NULL is fine */

/* This line (with its newline) was appended to the file. NULL is fine. */
void aq_metrics_index_add(struct aq_metrics_index *index, const json_t *line, const char *text, size_t count);

#endif
