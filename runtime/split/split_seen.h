/*
 * split_seen.h -- client.json in a split-client's folder: its round, turns, bytes and losses, for `aqpipe status` and
 * `aqpipe report` (split_folder.h).
 *
 * The client's process trains nothing itself: figures are read from the lines of its stages that pass it on their way
 * to the server. They are of all turns of this folder, also of those before a restart. sent_bytes: what this client's
 * own stages sent, also in turns that were missed; what it received is counted at the server.
 *
 * The file is replaced when a state changes, and at most once a second for figures. It is only shown: where it cannot
 * be written, as on a full disk, that is no failure. It is tried again with the next change or second.
 *
 * Locking: one thread, the client's.
 */
#ifndef RUNTIME_SPLIT_SEEN_H
#define RUNTIME_SPLIT_SEEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "job.h"

struct aq_split_seen; /* opaque */

/* Continues the file of job->output.path, if it is of this job and client. AQ_NOMEM; a damaged file is begun anew: it
 * is only shown. job is borrowed. */
enum aq_status aq_split_seen_open(const struct aq_job *job, const char *id, struct aq_split_seen **out);
void aq_split_seen_close(struct aq_split_seen *seen); /* NULL is fine */

/* What it does now. */
void aq_split_seen_waits(struct aq_split_seen *seen, const char *text);
void aq_split_seen_turn(struct aq_split_seen *seen, uint64_t round, uint64_t rounds, uint64_t begin, uint64_t until);
void aq_split_seen_turned(struct aq_split_seen *seen); /* the turn counts */
/* state: "done", "stopped", "epsilon" or "failed". cause: NULL: none. */
void aq_split_seen_end(struct aq_split_seen *seen, const char *state, const char *cause);

/* A line of one of its stages; other lines than step and eval are ignored. */
void aq_split_seen_line(struct aq_split_seen *seen, const json_t *line);
void aq_split_seen_tick(struct aq_split_seen *seen);

#endif
