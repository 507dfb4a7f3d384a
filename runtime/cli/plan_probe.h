/*
 * plan_probe.h -- `aqpipe plan --probe`: the job's network as its daemons measure it, told, and planned with.
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_PLAN_PROBE_H
#define RUNTIME_PLAN_PROBE_H

#include <jansson.h>

#include "plan.h"
#include "runtime_text.h"

struct aq_probe_told; /* opaque: what was measured */

/* Blocks: half a minute a pair at most, where the network carries anything. AQ_OK: all pairs have been tried. Else no
 * daemon could be had, or one broke the protocol (logged); *out tells what was measured before. token_file: may be
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
