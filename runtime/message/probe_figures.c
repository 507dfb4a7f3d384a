/* probe_figures.c -- see the header. */
#include "probe_figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "message.h"

json_t *aq_probe_figures_line(const struct aq_probe_figures *f, uint32_t peer)
{
    json_t *line = json_pack(
        "{s:s, s:I, s:I, s:f, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:s}", "event", "probed", "peer",
        (json_int_t)peer, "sent_bytes", (json_int_t)f->sent_bytes, "sent_seconds", f->sent_seconds, "received_bytes",
        (json_int_t)f->received_bytes, "received_seconds", f->received_seconds, "rate_mbps", f->rate_mbps, "wire_bytes",
        (json_int_t)f->wire_bytes, "again_bytes", (json_int_t)f->again_bytes, "full_wire_bytes",
        (json_int_t)f->full_wire_bytes, "full_again_bytes", (json_int_t)f->full_again_bytes, "segment",
        (json_int_t)f->segment, "streams", (json_int_t)f->streams, "congestion", f->congestion);
    if (!line || !f->connected) return line;
    json_object_set_new(line, "trips", json_integer(f->trips));
    json_object_set_new(line, "rtt_min_ms", aq_control_number(f->rtt_min_ms));
    json_object_set_new(line, "rtt_ms", aq_control_number(f->rtt_ms));
    json_object_set_new(line, "jitter_ms", aq_control_number(f->jitter_ms));
    json_object_set_new(line, "rtt_after_ms", aq_control_number(f->rtt_after_ms));
    return line;
}

static enum aq_status wrong(const char *what)
{
    return aq_fail(AQ_PROTO, "probe", "a worker %s", what);
}

enum aq_status aq_probe_figures_take(const struct aq_message *message, bool connected, struct aq_probe_figures *out)
{
    const struct aq_message_probed *p = &message->probed;
    if (connected && !(AQ_MESSAGE_HAS(message, probed, trips) && AQ_MESSAGE_HAS(message, probed, rtt_min_ms) &&
                       AQ_MESSAGE_HAS(message, probed, rtt_ms) && AQ_MESSAGE_HAS(message, probed, jitter_ms) &&
                       AQ_MESSAGE_HAS(message, probed, rtt_after_ms)))
        return wrong("sends 'probed' without the round trips that it timed");
    if (connected && p->rtt_min_ms > p->rtt_ms) return wrong("sends 'probed' whose 'rtt_min_ms' is above its 'rtt_ms'");
    if (p->again_bytes > p->wire_bytes || p->full_again_bytes > p->full_wire_bytes)
        return wrong("sends 'probed' with more bytes sent again than sent");
    if (strspn(p->congestion, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
        strlen(p->congestion))
        return wrong("sends 'probed' whose 'congestion' is no name of a congestion control");
    *out = (struct aq_probe_figures){.connected = connected,
                                     .sent_bytes = p->sent_bytes,
                                     .received_bytes = p->received_bytes,
                                     .sent_seconds = p->sent_seconds,
                                     .received_seconds = p->received_seconds,
                                     .rate_mbps = p->rate_mbps,
                                     .wire_bytes = p->wire_bytes,
                                     .again_bytes = p->again_bytes,
                                     .full_wire_bytes = p->full_wire_bytes,
                                     .full_again_bytes = p->full_again_bytes,
                                     .segment = (uint32_t)p->segment,
                                     .streams = (uint32_t)p->streams};
    snprintf(out->congestion, sizeof out->congestion, "%s", p->congestion);
    if (!connected) return AQ_OK;
    out->trips = (uint32_t)p->trips;
    out->rtt_min_ms = p->rtt_min_ms;
    out->rtt_ms = p->rtt_ms;
    out->jitter_ms = p->jitter_ms;
    out->rtt_after_ms = p->rtt_after_ms;
    return AQ_OK;
}

/* Compares the bytes that `from` reports as sent with those that `to` reports as received. */
static const char *way_differs(const struct aq_probe_figures *from, const struct aq_probe_figures *to)
{
    const double slack_s = 1 + 0.5 * from->sent_seconds;
    if (from->sent_bytes != to->received_bytes) return "one end reports other bytes received than were sent";
    if (fabs(from->sent_seconds - to->received_seconds) > slack_s)
        return "the two ends report times of the same load that contradict each other";
    /* The second half cannot carry more than all of it did; its packets have our heads and those of TLS. */
    if (from->rate_mbps * 1e6 / 8 * to->received_seconds * 0.4 > (double)to->received_bytes)
        return "one end reports a rate that does not fit the bytes that arrived";
    return NULL;
}

const char *aq_probe_figures_differ(const struct aq_probe_figures *a, const struct aq_probe_figures *b)
{
    const char *why = way_differs(a, b);
    return why ? why : way_differs(b, a);
}

double aq_probe_loss_full(const struct aq_probe_figures *f)
{
    return f->full_wire_bytes ? (double)f->full_again_bytes / (double)f->full_wire_bytes : (double)NAN;
}

double aq_probe_loss(const struct aq_probe_figures *f)
{
    return f->wire_bytes ? (double)f->again_bytes / (double)f->wire_bytes : (double)NAN;
}
