/*
 * probe_session.c -- see the header.
 *
 * The rate is what TCP has delivered in the second half of the time, because slow start takes the first half. Losses
 * are counted while half of that goes: a full queue's are the load's own. Both ends measure with their own clock,
 * differences only. A wait is as long as 20 round trips, so that an end that is 400 ms away, or moves there meanwhile,
 * is slow and not silent.
 */
#include "probe_session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG_PING = 1, FLAG_PONG, FLAG_LOAD, FLAG_LOAD_END, FLAG_LOADED, FLAG_TURN };
enum {
    LOAD_BYTES = 64 << 10,
    LARGE_BYTES = 8 << 10, /* five full packets and a rest                                      */
    LARGE_TRIPS = 2,
    SEND_FRAMES = 4,    /* 2 s at 1 Mbit/s, behind which the end of a load waits               */
    RECEIVE_SLOTS = 512 /* 32 MiB: 2.6 Gbit/s at 100 ms                                      */
};
static const uint64_t second_ns = 1000000000, load_ns_min = 4000000000, load_ns_max = 10000000000,
                      wait_ns_min = 8000000000, path_ns = 50000000, load_bytes_max = 256ULL << 20;
enum { LOAD_TRIPS = 20, WAIT_TRIPS = 20 };
static const char *const AREA = "probe";

struct session {
    struct aq_link *link;
    struct aq_eventcount *eventcount;
    uint64_t end_ns, rtt_ns; /* rtt_ns: the longest seen so far */
    uint32_t on_their_way;   /* frames without SENT             */
    uint8_t *load;
    struct aq_probe_figures *figures;
};

void aq_probe_link_config(struct aq_link_config *config)
{
    config->body_bytes_max = LOAD_BYTES;
    config->send_frames = SEND_FRAMES + 4; /* and some without a body */
    config->receive_slots = RECEIVE_SLOTS;
    config->rate_mbps = 0;
    config->entropy = AQ_LINK_ENTROPY_OFF;
    config->copies = AQ_LINK_COPIES_OFF; /* TCP would count its sums as delivered bytes */
    config->outage_ns_max = 0;
    config->heartbeat_ns = 0;
    config->silence_ns_max = 0;
    config->path_every_ns = path_ns;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

/* One event. AQ_AGAIN: none until then. RECEIVED alone is given out. */
static enum aq_status next(struct session *s, struct aq_frame *out, uint64_t until_ns)
{
    struct aq_link_event event;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(s->eventcount);
        const enum aq_status status = aq_link_poll(s->link, &event);
        if (status == AQ_OK && event.kind == AQ_LINK_SENT) {
            s->on_their_way--;
            if (!out) return AQ_OK;
        } else if (status == AQ_OK && event.kind == AQ_LINK_RECEIVED) {
            if (!out) {
                if (event.frame.body_bytes) aq_link_release(s->link, event.frame.body);
                return aq_fail(AQ_PROTO, AREA, "the peer sent a frame while it should listen");
            }
            *out = event.frame;
            return AQ_OK;
        } else if (status == AQ_OK) {
            return aq_fail(event.status == AQ_CLOSED ? AQ_PROTO : event.status, AREA, "the connection ended: %s",
                           event.text);
        } else {
            if (status != AQ_AGAIN) return status;
            if (aq_clock_ns() >= until_ns) return AQ_AGAIN;
            (void)aq_eventcount_wait(s->eventcount, seen, until_ns);
        }
    }
}

static uint64_t patience(const struct session *s)
{
    const uint64_t trips_ns = WAIT_TRIPS * s->rtt_ns;
    const uint64_t until_ns = aq_clock_after(trips_ns > wait_ns_min ? trips_ns : wait_ns_min);
    return until_ns < s->end_ns ? until_ns : s->end_ns;
}

/* The frame that is due, and no other. `what` for people. Its body is released unread. */
static enum aq_status await(struct session *s, uint16_t flags, const char *what, struct aq_frame *out)
{
    const enum aq_status status = next(s, out, patience(s));
    if (status == AQ_AGAIN) return aq_fail(AQ_TIMEOUT, AREA, "%s did not come", what);
    AQ_TRY(status);
    if (out->body_bytes) aq_link_release(s->link, out->body);
    if (out->kind != AQ_FRAME_PROBE || (flags && out->flags != flags) || out->step != 0)
        return aq_fail(AQ_PROTO, AREA, "the peer sent frame %u, flags %u, where %s was expected", out->kind, out->flags,
                       what);
    return AQ_OK;
}

static enum aq_status say(struct session *s, uint16_t flags, uint32_t number, uint64_t argument, uint32_t bytes)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_PROBE,
                                   .flags = flags,
                                   .micro_batch = number,
                                   .argument = argument,
                                   .body_bytes = bytes,
                                   .body = bytes ? s->load : NULL};
    AQ_TRY(aq_link_send(s->link, &frame, 0));
    s->on_their_way++;
    return AQ_OK;
}

/* --- round trips -------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

static enum aq_status trip(struct session *s, uint32_t number, uint32_t bytes, double *ms)
{
    struct aq_frame answer;
    const uint64_t begin = aq_clock_ns();
    AQ_TRY(say(s, FLAG_PING, number, 0, bytes));
    AQ_TRY(await(s, FLAG_PONG, bytes ? "the answer to a large frame" : "the answer to a small frame", &answer));
    const uint64_t took = aq_clock_ns() - begin;
    if (answer.micro_batch != number || answer.body_bytes != bytes || answer.argument != 0)
        return aq_fail(AQ_PROTO, AREA, "the peer answered to a frame that it was not asked about");
    if (took > s->rtt_ns) s->rtt_ns = took;
    *ms = (double)took * 1e-6;
    return AQ_OK;
}

static enum aq_status small_trips(struct session *s)
{
    double ms[AQ_PROBE_TRIPS], apart[AQ_PROBE_TRIPS];
    struct aq_probe_figures *f = s->figures;
    uint32_t count = 0;
    while (count < AQ_PROBE_TRIPS) {
        AQ_TRY(trip(s, count, 0, &ms[count]));
        if (count > 0) apart[count - 1] = fabs(ms[count] - ms[count - 1]);
        count++;
    }
    f->trips = count;
    f->jitter_ms = median(apart, count - 1);
    f->rtt_ms = median(ms, count);
    f->rtt_min_ms = ms[0]; /* in order now */
    return AQ_OK;
}

/* --- load that goes ----------------------------------------------------------------------------------------------- */

/* Of one load. */
struct load {
    uint64_t for_ns, frame_ns; /* frame_ns: from one frame to the next at least; 0: as the link takes them */
    uint64_t bytes, begin_ns, end_ns;
    struct aq_link_stats half, last, end; /* of the link: halfway, with the last frame, when all has come */
};

/* Is there room for the next frame, and is it time? AQ_AGAIN: it was waited for a little. */
static enum aq_status room(struct session *s, const struct load *load)
{
    const uint64_t due_ns = load->begin_ns + load->bytes / LOAD_BYTES * load->frame_ns;
    const bool full = s->on_their_way >= SEND_FRAMES;
    if (!full && aq_clock_ns() >= due_ns) return AQ_OK;
    const enum aq_status status = next(s, NULL, full ? patience(s) : due_ns);
    if (status == AQ_AGAIN && full) return aq_fail(AQ_TIMEOUT, AREA, "the load makes no progress");
    return status == AQ_OK ? AQ_AGAIN : status;
}

static enum aq_status send_load(struct session *s, struct load *load)
{
    struct aq_frame answer;
    bool halfway = false;
    load->begin_ns = aq_clock_ns();
    aq_link_stats(s->link, &load->half);
    while (aq_clock_ns() - load->begin_ns < load->for_ns && load->bytes < load_bytes_max) {
        if (!halfway && aq_clock_ns() - load->begin_ns >= load->for_ns / 2) {
            aq_link_stats(s->link, &load->half);
            halfway = true;
        }
        const enum aq_status status = room(s, load);
        if (status == AQ_AGAIN) continue;
        AQ_TRY(status);
        AQ_TRY(say(s, FLAG_LOAD, 0, 0, LOAD_BYTES));
        load->bytes += LOAD_BYTES;
    }
    aq_link_stats(s->link, &load->last);
    AQ_TRY(say(s, FLAG_LOAD_END, 0, load->bytes, 0));
    AQ_TRY(await(s, FLAG_LOADED, "the end of the load", &answer));
    if (answer.argument != load->bytes) return aq_fail(AQ_PROTO, AREA, "the peer counts another load than was sent");
    load->end_ns = aq_clock_ns();
    aq_link_stats(s->link, &load->end);
    return AQ_OK;
}

static uint64_t since(uint64_t before, uint64_t after)
{
    return after > before ? after - before : 0;
}

/* Rate at which bytes came at the other end, also those behind a gap, in the second half. The whole time counts if
 * it was too short to ask TCP twice. */
static double rate_of(const struct load *load)
{
    const uint64_t ns = since(load->half.path_asked_ns, load->last.path_asked_ns);
    const uint64_t bytes = since(load->half.delivered_bytes, load->last.delivered_bytes);
    if (ns >= path_ns && bytes > 0) return (double)bytes * 8e3 / (double)ns;
    return (double)load->bytes * 8e3 / (double)(load->end_ns - load->begin_ns);
}

/* As much as goes, to measure the rate; then half of that, to count losses: in a full queue the load itself causes
 * them. */
static enum aq_status send_loads(struct session *s, uint64_t for_ns)
{
    struct aq_probe_figures *f = s->figures;
    struct load full = {.for_ns = for_ns};
    AQ_TRY(send_load(s, &full));
    f->sent_bytes = full.bytes;
    f->sent_seconds = (double)(full.end_ns - full.begin_ns) * 1e-9;
    f->rate_mbps = rate_of(&full);
    f->full_wire_bytes = since(full.half.path_bytes, full.end.path_bytes);
    f->full_again_bytes = since(full.half.again_bytes, full.end.again_bytes);
    const uint64_t frames = full.bytes / LOAD_BYTES;
    struct load half = {.for_ns = for_ns, .frame_ns = 2 * (full.end_ns - full.begin_ns) / (frames ? frames : 1)};
    AQ_TRY(send_load(s, &half));
    f->wire_bytes = since(full.end.path_bytes, half.end.path_bytes);
    f->again_bytes = since(full.end.again_bytes, half.end.again_bytes);
    return AQ_OK;
}

/* --- load that comes ---------------------------------------------------------------------------------------------- */

static enum aq_status receive_load(struct session *s)
{
    struct aq_probe_figures *f = s->figures;
    struct aq_frame frame;
    uint64_t bytes = 0, first_ns = 0, last_ns = 0;
    AQ_TRY(await(s, 0, "load", &frame));
    while (frame.flags == FLAG_LOAD) {
        last_ns = aq_clock_ns();
        bytes += frame.body_bytes;
        if (first_ns == 0) first_ns = last_ns;
        if (frame.body_bytes != LOAD_BYTES || bytes > load_bytes_max || last_ns >= s->end_ns)
            return aq_fail(AQ_PROTO, AREA, "the peer sends more load than it was asked for, or an empty piece");
        AQ_TRY(await(s, 0, "load", &frame));
    }
    if (frame.flags != FLAG_LOAD_END || frame.argument != bytes || bytes == 0)
        return aq_fail(AQ_PROTO, AREA, "the peer says that it sent %llu bytes of load, and %llu arrived",
                       (unsigned long long)frame.argument, (unsigned long long)bytes);
    if (f->received_bytes == 0) { /* the full load */
        f->received_bytes = bytes;
        f->received_seconds = (double)(last_ns - first_ns) * 1e-9;
    }
    return say(s, FLAG_LOADED, 0, bytes, 0);
}

/* --- the two ends ------------------------------------------------------------------------------------------------- */

static enum aq_status ask(struct session *s, enum aq_probe_phase *phase)
{
    double ms[AQ_PROBE_TRIPS_AFTER];
    *phase = AQ_PROBE_SMALL;
    AQ_TRY(small_trips(s));
    *phase = AQ_PROBE_LARGE;
    for (uint32_t i = 0; i < LARGE_TRIPS; i++)
        AQ_TRY(trip(s, i, LARGE_BYTES, &ms[i]));
    *phase = AQ_PROBE_LOAD;
    const uint64_t trips_ns = LOAD_TRIPS * (uint64_t)(s->figures->rtt_ms * 1e6);
    const uint64_t for_ns = trips_ns < load_ns_min ? load_ns_min : trips_ns > load_ns_max ? load_ns_max : trips_ns;
    AQ_TRY(send_loads(s, for_ns));
    AQ_TRY(say(s, FLAG_TURN, 0, for_ns, 0));
    AQ_TRY(receive_load(s));
    AQ_TRY(receive_load(s));
    for (uint32_t i = 0; i < AQ_PROBE_TRIPS_AFTER; i++)
        AQ_TRY(trip(s, i, 0, &ms[i]));
    s->figures->rtt_after_ms = median(ms, AQ_PROBE_TRIPS_AFTER);
    return AQ_OK;
}

/* Answers `count` PINGs, of `bytes` bytes each. */
static enum aq_status answer_trips(struct session *s, uint32_t count, uint32_t bytes)
{
    struct aq_frame ping;
    for (uint32_t i = 0; i < count; i++) {
        AQ_TRY(await(s, FLAG_PING, bytes ? "a large frame" : "a small frame", &ping));
        if (ping.body_bytes != bytes || ping.micro_batch != i || ping.argument != 0)
            return aq_fail(AQ_PROTO, AREA, "the peer asks for an answer that a probe does not ask for");
        AQ_TRY(say(s, FLAG_PONG, i, 0, bytes));
    }
    return AQ_OK;
}

static enum aq_status answer(struct session *s, enum aq_probe_phase *phase)
{
    struct aq_frame frame;
    *phase = AQ_PROBE_SMALL;
    AQ_TRY(answer_trips(s, AQ_PROBE_TRIPS, 0));
    *phase = AQ_PROBE_LARGE;
    AQ_TRY(answer_trips(s, LARGE_TRIPS, LARGE_BYTES));
    *phase = AQ_PROBE_LOAD;
    AQ_TRY(receive_load(s));
    AQ_TRY(receive_load(s));
    AQ_TRY(await(s, FLAG_TURN, "its word to send load", &frame));
    if (frame.body_bytes || frame.argument < load_ns_min || frame.argument > load_ns_max)
        return aq_fail(AQ_PROTO, AREA, "the peer asks for load of %.1f s", (double)frame.argument * 1e-9);
    AQ_TRY(send_loads(s, frame.argument));
    return answer_trips(s, AQ_PROBE_TRIPS_AFTER, 0);
}

static void describe(const struct session *s)
{
    struct aq_link_stats stats;
    aq_link_stats(s->link, &stats);
    s->figures->segment = stats.segment_bytes;
    s->figures->streams = stats.streams;
    memcpy(s->figures->congestion, stats.congestion, sizeof stats.congestion);
}

enum aq_status aq_probe_session(struct aq_link *link, struct aq_eventcount *eventcount, bool connected,
                                struct aq_probe_figures *out, enum aq_probe_phase *phase)
{
    void *memory;
    struct aq_probe_figures figures = {.connected = connected};
    AQ_TRY(aq_alloc(LOAD_BYTES, &memory));
    struct session s = {.link = link,
                        .eventcount = eventcount,
                        .end_ns = aq_clock_after(AQ_PROBE_SESSION_S * second_ns),
                        .load = memory,
                        .figures = &figures};
    uint32_t random = 1;
    for (uint32_t i = 0; i < LOAD_BYTES; i++) { /* what no tunnel on the way packs */
        random = random * 1664525u + 1013904223u;
        s.load[i] = (uint8_t)(random >> 24);
    }
    describe(&s);
    enum aq_status status = connected ? ask(&s, phase) : answer(&s, phase);
    if (status == AQ_OK) {
        status = aq_link_finish(link, patience(&s));
        if (status == AQ_CLOSED) status = AQ_OK; /* the peer finished first */
    }
    if (status != AQ_OK) (void)aq_link_abort(link, status, aq_error_text(), aq_clock_after(second_ns));
    aq_link_halt(link); /* what was lent is ours again */
    aq_free(memory);
    if (status == AQ_OK) *out = figures;
    return status;
}
