/*
 * launcher_probe.h -- what is between every two ranks of a job that have a link, measured by their daemons
 * (docs/CONTROL.md section 9).
 *
 * The caller has made the plan; the daemons are taken as for a launch, and given back whatever happens. Nothing is
 * written anywhere.
 *
 *     struct aq_probe_pair pairs[] = {{.from = 0, .to = 1, .listener = 1}, ...};
 *     status = aq_probe_run(&launch, pairs, count, &progress);       launch.probe, names, hosts, manifest, keys
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_LAUNCHER_PROBE_H
#define RUNTIME_LAUNCHER_PROBE_H

#include "launcher.h"
#include "probe_figures.h"

enum aq_probe_outcome {
    AQ_PROBE_UNKNOWN = 0, /* not come to                                                          */
    AQ_PROBE_MEASURED,
    AQ_PROBE_BLACK_HOLE, /* measured only with small packets: large ones do not arrive           */
    AQ_PROBE_FAILED
};

struct aq_probe_pair {
    uint32_t from, to; /* ranks, from < to: the caller's            */
    uint32_t listener; /* the one of them that listens: the caller's */
    enum aq_probe_outcome outcome;
    struct aq_probe_figures figures[2];   /* of from, and of to; where something was measured         */
    const struct aq_probe_figures *trips; /* the one of them that has the round trips               */
    enum aq_status status;                /* FAILED: what kind                                        */
    char text[2 * AQ_PROBE_TEXT_CHARS];   /* FAILED: why; BLACK_HOLE: what was seen with large ones   */
};

/* AQ_OK: every pair has been tried, and has its outcome. Else a daemon is not available, or broke the protocol;
 * earlier measurements stay valid, and `cause` (of `bytes` bytes) is one line. */
enum aq_status aq_probe_run(const struct aq_launch *launch, struct aq_probe_pair *pairs, uint32_t count, char *cause,
                            size_t bytes);

/* The path between two ranks changed while they were measured: the round trip after the load differs. */
bool aq_probe_moved(const struct aq_probe_pair *pair);

#endif
