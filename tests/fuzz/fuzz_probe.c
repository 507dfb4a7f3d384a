/*
 * fuzz_probe.c -- an end that measures a link (probe_session.h), against a peer that says what the input makes of an
 * honest one's frames: other fields, other bodies, twice, not at all, or an end in the midst.
 *
 * An honest peer gives figures that a launcher takes; any other a status. Never a crash, a wait without an end, a body
 * that is not given back, or memory that stays.
 *
 * An input: which end we are, then of each damage the number of the peer's frame, what is done to it, and a value.
 *
 * The link is stood in for (fuzz_link has it), and so is the time: it goes on by being asked for.
 */
#include <string.h>

#include "fuzz.h"
#include "message.h"
#include "probe_session.h"
#include "virtual_clock.h"

enum {
    QUEUE = 1024,
    BODY = 64 << 10,
    LARGE = 8 << 10,
    TRIPS = 20,
    LARGE_TRIPS = 2,
    AFTER = 5,
    LOADS = 3,
    DAMAGES_MAX = 16
};
enum { PING = 1, PONG, LOAD, LOAD_END, LOADED, TURN };

static uint8_t body[BODY];
static struct {
    uint64_t now_ns;
    struct aq_frame queue[QUEUE]; /* of the peer */
    uint32_t head, tail, told;    /* told: frames that the peer has said so far */
    uint32_t sent, lent;          /* frames without SENT; bodies that are out   */
    uint64_t bytes;               /* of the load that we send                   */
    uint32_t step;                /* of an asking peer: how far it is            */
    bool asks, ended, end_told, stopped;
    const uint8_t *damages;
    size_t damage_count;
} play;

static uint64_t tick(void *context)
{
    (void)context;
    return play.now_ns += 2000000;
}

/* ---- the peer ---- */

static void damage(struct aq_frame *frame, uint32_t *copies)
{
    static const uint32_t sizes[] = {0, 1, LARGE, BODY};
    static const uint64_t arguments[] = {0, 1, BODY, UINT64_MAX, 10000000000, 10000000001};
    for (size_t i = 0; i < play.damage_count; i++) {
        const uint8_t *d = &play.damages[3 * i];
        if (d[0] != (uint8_t)play.told) continue;
        switch (d[1] % 9) {
        case 0:
            frame->flags = d[2];
            break;
        case 1:
            frame->micro_batch ^= d[2];
            break;
        case 2:
            frame->body_bytes = sizes[d[2] % 4];
            break;
        case 3:
            frame->argument = arguments[d[2] % 6];
            break;
        case 4:
            frame->kind = (uint16_t)(16 + d[2] % 16);
            break;
        case 5:
            frame->step = d[2];
            break;
        case 6:
            *copies = 0;
            break;
        case 7:
            *copies = 2 + d[2] % 3;
            break;
        default:
            play.ended = true;
        }
    }
}

static void says(uint16_t flags, uint32_t number, uint64_t argument, uint32_t bytes)
{
    struct aq_frame frame = {
        .kind = AQ_FRAME_PROBE, .flags = flags, .micro_batch = number, .argument = argument, .body_bytes = bytes};
    uint32_t copies = 1;
    damage(&frame, &copies);
    play.told++;
    frame.body = frame.body_bytes ? body : NULL;
    for (; copies > 0 && play.tail - play.head < QUEUE && !play.ended; copies--)
        play.queue[play.tail++ % QUEUE] = frame;
}

static void says_load(void)
{
    for (int i = 0; i < LOADS; i++)
        says(LOAD, 0, 0, BODY);
    says(LOAD_END, 0, LOADS * BODY, 0);
}

/* An asking peer goes on when what it waited for has come. */
static void asks_on(void)
{
    const uint32_t step = play.step++;
    if (step < TRIPS)
        says(PING, step, 0, 0);
    else if (step < TRIPS + LARGE_TRIPS)
        says(PING, step - TRIPS, 0, LARGE);
    else if (step < TRIPS + LARGE_TRIPS + 2)
        says_load();
    else if (step == TRIPS + LARGE_TRIPS + 2)
        says(TURN, 0, 4000000000, 0);
    else if (step >= TRIPS + LARGE_TRIPS + 4 && step < TRIPS + LARGE_TRIPS + 4 + AFTER)
        says(PING, step - TRIPS - LARGE_TRIPS - 4, 0, 0);
}

static void hears(const struct aq_frame *frame)
{
    if (frame->flags == LOAD) play.bytes += frame->body_bytes;
    if (frame->flags == PING) says(PONG, frame->micro_batch, 0, frame->body_bytes);
    if (frame->flags == LOAD_END) {
        AQ_ASSERT(frame->argument == play.bytes);
        says(LOADED, 0, play.bytes, 0);
        play.bytes = 0;
        if (play.asks) asks_on(); /* of two loads the second is followed by PINGs */
    }
    if (frame->flags == TURN) {
        says_load();
        says_load();
    }
    if (play.asks && (frame->flags == PONG || frame->flags == LOADED)) asks_on();
}

/* ---- a link that is not there ---- */

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token);
enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out);
void __wrap_aq_link_release(struct aq_link *link, const void *bytes);
enum aq_status __wrap_aq_link_finish(struct aq_link *link, uint64_t deadline_ns);
enum aq_status __wrap_aq_link_abort(struct aq_link *link, enum aq_status cause, const char *text, uint64_t deadline_ns);
void __wrap_aq_link_halt(struct aq_link *link);
void __wrap_aq_link_stats(const struct aq_link *link, struct aq_link_stats *out);
enum aq_status __wrap_aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns);
uint32_t __wrap_aq_eventcount_read(struct aq_eventcount *eventcount);

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token)
{
    (void)link, (void)token;
    AQ_ASSERT(frame->kind == AQ_FRAME_PROBE && play.sent < 8); /* as aq_probe_link_config asks */
    if (play.end_told) return AQ_CLOSED;
    play.sent++;
    hears(frame);
    return AQ_OK;
}

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out)
{
    (void)link;
    AQ_ASSERT(!play.end_told);
    if (play.sent > 0) {
        play.sent--;
        *out = (struct aq_link_event){.kind = AQ_LINK_SENT};
    } else if (play.head != play.tail) {
        *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED, .frame = play.queue[play.head++ % QUEUE]};
        play.lent += out->frame.body_bytes > 0;
    } else if (play.ended) {
        *out = (struct aq_link_event){.kind = AQ_LINK_CLOSED, .status = AQ_CLOSED, .text = "the peer said BYE"};
        play.end_told = true;
    } else {
        return AQ_AGAIN;
    }
    return AQ_OK;
}

void __wrap_aq_link_release(struct aq_link *link, const void *bytes)
{
    (void)link;
    AQ_ASSERT(bytes == body && play.lent > 0);
    play.lent--;
}

enum aq_status __wrap_aq_link_finish(struct aq_link *link, uint64_t deadline_ns)
{
    (void)link, (void)deadline_ns;
    return play.end_told ? AQ_CLOSED : AQ_OK;
}

enum aq_status __wrap_aq_link_abort(struct aq_link *link, enum aq_status cause, const char *text, uint64_t deadline_ns)
{
    (void)link, (void)text, (void)deadline_ns;
    AQ_ASSERT(cause != AQ_OK);
    return AQ_OK;
}

void __wrap_aq_link_halt(struct aq_link *link)
{
    (void)link;
    play.stopped = true;
}

void __wrap_aq_link_stats(const struct aq_link *link, struct aq_link_stats *out)
{
    (void)link;
    *out = (struct aq_link_stats){.path_bytes = play.now_ns / 100,
                                  .delivered_bytes = play.now_ns / 100,
                                  .again_bytes = play.now_ns / 100000,
                                  .path_asked_ns = play.now_ns,
                                  .segment_bytes = 1448,
                                  .streams = 1,
                                  .congestion = "bbr"};
}

enum aq_status __wrap_aq_eventcount_wait(struct aq_eventcount *eventcount, uint32_t seen, uint64_t deadline_ns)
{
    (void)eventcount, (void)seen;
    AQ_ASSERT(deadline_ns < AQ_NEVER); /* no wait without an end */
    if (deadline_ns > play.now_ns) play.now_ns = deadline_ns;
    return AQ_TIMEOUT;
}

uint32_t __wrap_aq_eventcount_read(struct aq_eventcount *eventcount)
{
    (void)eventcount;
    return 0;
}

/* ---- */

static void takes(const struct aq_probe_figures *figures, bool connected)
{
    struct aq_probe_figures read;
    struct aq_message message;
    struct aq_message_wrong wrong;
    json_t *line = aq_probe_figures_line(figures, 1);
    AQ_ASSERT(aq_message_read(AQ_MESSAGE_probed, line, NULL, &message, &wrong));
    AQ_ASSERT(aq_probe_figures_take(&message, connected, &read) == AQ_OK);
    AQ_ASSERT(read.received_bytes == LOADS * BODY && read.sent_bytes > 0);
    json_decref(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct aq_probe_figures figures;
    enum aq_probe_phase phase = AQ_PROBE_CONNECT;
    if (count < 1 || count > 1 + 3 * DAMAGES_MAX) return 0;
    fuzz_quiet();
    virtual_clock(tick, NULL);
    memset(&play, 0, sizeof play);
    play.now_ns = 1000000000;
    play.asks = bytes[0] % 2;
    play.damages = bytes + 1;
    play.damage_count = (count - 1) / 3;
    if (play.asks) asks_on();
    const uint64_t begin_ns = play.now_ns;
    const enum aq_status status = aq_probe_session((struct aq_link *)(void *)body, NULL, !play.asks, &figures, &phase);
    AQ_ASSERT(play.stopped && play.lent == 0 && phase < AQ_PROBE_PHASES);
    AQ_ASSERT(play.now_ns - begin_ns < (AQ_PROBE_SESSION_S + 25) * UINT64_C(1000000000));
    AQ_ASSERT(status == AQ_OK || status == AQ_PROTO || status == AQ_TIMEOUT || status == AQ_CLOSED);
    AQ_ASSERT(play.damage_count > 0 || status == AQ_OK);
    if (status == AQ_OK) takes(&figures, !play.asks);
    fuzz_told(status == AQ_OK);
    aq_error_clear();
    AQ_ASSERT(aq_memory_used() == 0);
    return 0;
}
