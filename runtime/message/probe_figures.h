/*
 * probe_figures.h -- what one end of a link has measured of it (`aqpipe plan --probe`, docs/CONTROL.md section 9).
 *
 * The one who measures is another's machine: aq_probe_figures_take takes nothing that is missing or out of its range.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_PROBE_FIGURES_H
#define RUNTIME_PROBE_FIGURES_H

#include "control.h"
#include "net/link.h"

enum {
    AQ_PROBE_TRIPS = 20, /* round trips of small frames before the load */
    AQ_PROBE_TRIPS_AFTER = 5,
    AQ_PROBE_TRIPS_MAX = 64,
    AQ_PROBE_SEGMENT_SMALL = 1000, /* as links try where nothing comes through (net/link/handshake.c) */
    AQ_PROBE_TEXT_CHARS = 500,
    AQ_PROBE_SESSION_S = 75,                   /* of a pair, with its connection: longest of all waits */
    AQ_PROBE_PAIR_S = AQ_PROBE_SESSION_S + 30, /* that its answers are waited for */
};

struct aq_message; /* message.h */

/* How far a session came. */
enum aq_probe_phase { AQ_PROBE_CONNECT = 0, AQ_PROBE_SMALL, AQ_PROBE_LARGE, AQ_PROBE_LOAD, AQ_PROBE_PHASES };

struct aq_probe_figures {
    bool connected;                             /* this end connected: it has the round trips */
    uint32_t trips;                             /* timed before the load                      */
    double rtt_min_ms, rtt_ms, jitter_ms;       /* least, median, median difference of neighbours */
    double rtt_after_ms;                        /* median after the load                      */
    uint64_t sent_bytes, received_bytes;        /* of load                                    */
    double sent_seconds, received_seconds;      /* until the other end had all; first to last */
    double rate_mbps;                           /* of what it sent, in the second half of it  */
    uint64_t wire_bytes, again_bytes;           /* that went while half of the rate was asked for; of them once more */
    uint64_t full_wire_bytes, full_again_bytes; /* the same of the full load, in its second half */
    uint32_t segment, streams;                  /* bytes of a packet's contents; connections  */
    char congestion[AQ_LINK_CONGESTION_BYTES];  /* of what went                               */
};

/* A fresh `probed` line; NULL: no memory. */
json_t *aq_probe_figures_line(const struct aq_probe_figures *figures, uint32_t peer);

/* The figures of a `probed` message, whose fields aq_message_read found in their ranges. AQ_PROTO (logged): a figure is
 * missing that the end which connects has, or figures contradict each other. */
enum aq_status aq_probe_figures_take(const struct aq_message *message, bool connected, struct aq_probe_figures *out);

/* Do the two ends report the same load? NULL: yes; else a sentence with the difference. */
const char *aq_probe_figures_differ(const struct aq_probe_figures *a, const struct aq_probe_figures *b);

/* Retransmitted share of the sent bytes, at half and at full load; NaN if unknown. */
double aq_probe_loss(const struct aq_probe_figures *figures);
double aq_probe_loss_full(const struct aq_probe_figures *figures);

#endif
