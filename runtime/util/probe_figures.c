/* probe_figures.c -- see the header. */
#include "probe_figures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double ms_max = 60000, seconds_max = 60, rate_max = 1e6, rate_min = 0.001;
static const uint64_t bytes_max = 1ULL << 40;
enum { SEGMENT_MAX = 65535, STREAMS_MAX = 16 };

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

static enum aq_status out_of_range(const char *key)
{
    return aq_fail(AQ_PROTO, "probe", "message 'probed': '%s' is out of its range", key);
}

static enum aq_status get_number(const json_t *line, const char *key, double most, double *out)
{
    AQ_TRY(aq_control_get_number(line, key, out));
    return *out >= 0 && *out <= most ? AQ_OK : out_of_range(key); /* not-a-number fails, too */
}

static enum aq_status get_bytes(const json_t *line, const char *key, uint64_t *out)
{
    AQ_TRY(aq_control_get_u64(line, key, out));
    return *out <= bytes_max ? AQ_OK : out_of_range(key);
}

static enum aq_status get_count(const json_t *line, const char *key, uint32_t most, uint32_t *out)
{
    AQ_TRY(aq_control_get_u32(line, key, out));
    return *out >= 1 && *out <= most ? AQ_OK : out_of_range(key);
}

static enum aq_status get_name(const json_t *line, char out[AQ_LINK_CONGESTION_BYTES])
{
    const char *text;
    AQ_TRY(aq_control_get_text(line, "congestion", &text));
    const size_t length = strlen(text);
    if (length == 0 || length >= AQ_LINK_CONGESTION_BYTES ||
        strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != length)
        return out_of_range("congestion");
    memcpy(out, text, length + 1);
    return AQ_OK;
}

static enum aq_status read_trips(const json_t *line, struct aq_probe_figures *f)
{
    AQ_TRY(get_count(line, "trips", AQ_PROBE_TRIPS_MAX, &f->trips));
    AQ_TRY(get_number(line, "rtt_min_ms", ms_max, &f->rtt_min_ms));
    AQ_TRY(get_number(line, "rtt_ms", ms_max, &f->rtt_ms));
    AQ_TRY(get_number(line, "jitter_ms", ms_max, &f->jitter_ms));
    AQ_TRY(get_number(line, "rtt_after_ms", ms_max, &f->rtt_after_ms));
    return f->rtt_min_ms <= f->rtt_ms ? AQ_OK : out_of_range("rtt_min_ms");
}

enum aq_status aq_probe_figures_read(const json_t *line, bool connected, struct aq_probe_figures *out)
{
    struct aq_probe_figures f = {.connected = connected};
    if (connected) AQ_TRY(read_trips(line, &f));
    AQ_TRY(get_bytes(line, "sent_bytes", &f.sent_bytes));
    AQ_TRY(get_bytes(line, "received_bytes", &f.received_bytes));
    AQ_TRY(get_bytes(line, "wire_bytes", &f.wire_bytes));
    AQ_TRY(get_bytes(line, "again_bytes", &f.again_bytes));
    AQ_TRY(get_bytes(line, "full_wire_bytes", &f.full_wire_bytes));
    AQ_TRY(get_bytes(line, "full_again_bytes", &f.full_again_bytes));
    AQ_TRY(get_number(line, "sent_seconds", seconds_max, &f.sent_seconds));
    AQ_TRY(get_number(line, "received_seconds", seconds_max, &f.received_seconds));
    AQ_TRY(get_number(line, "rate_mbps", rate_max, &f.rate_mbps));
    if (!(f.rate_mbps >= rate_min)) return out_of_range("rate_mbps"); /* a plan takes 0 for a line without a limit */
    AQ_TRY(get_count(line, "segment", SEGMENT_MAX, &f.segment));
    AQ_TRY(get_count(line, "streams", STREAMS_MAX, &f.streams));
    AQ_TRY(get_name(line, f.congestion));
    if (f.again_bytes > f.wire_bytes || f.full_again_bytes > f.full_wire_bytes) return out_of_range("again_bytes");
    *out = f;
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
