/*
 * plan_probe.h -- `aqpipe plan --probe`: measures the job's network with its daemons, prints it, and plans with it.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_PLAN_PROBE_H
#define RUNTIME_PLAN_PROBE_H

#include <jansson.h>

#include "plan.h"
#include "runtime_text.h"

struct aq_probe_told; /* opaque: what was measured */

/* Blocks: at most half a minute per pair, if the network works at all. AQ_OK: all pairs have been tried. Else no
 * daemon was available, or one broke the protocol (logged); *out has the earlier measurements. token_file: may be
 * NULL. */
enum aq_status aq_plan_probe(struct aq_job *job, const struct aq_plan *plan, const char *token_file,
                             struct aq_probe_told **out);
void aq_probe_told_close(struct aq_probe_told *told); /* NULL is fine */

/* Has every pair been measured, with packets of any size? */
bool aq_probe_told_well(const struct aq_probe_told *told);
bool aq_probe_told_any(const struct aq_probe_told *told); /* was at least one pair measured? */

/* The table, and below it what is wrong or declared otherwise, with remedies. */
enum aq_status aq_probe_told_print(const struct aq_probe_told *told, unsigned columns, struct aq_text *text);
/* The same as a fresh array. */
json_t *aq_probe_told_json(const struct aq_probe_told *told);

/* The job with what was measured in place of what it declares: distances, and the slowest rate. No plan of it is open.
 */
void aq_probe_told_use(const struct aq_probe_told *told, struct aq_job *job);

#endif
