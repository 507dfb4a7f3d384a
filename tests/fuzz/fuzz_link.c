/*
 * fuzz_link.c -- a peer that was let in and says what the input tells it to: frames right and wrong by one, in pieces
 * of any size, connections that end and come again with any HELLO, while time passes. At the other end is a real link
 * with its reader, sender and healing, behind a real door with its porter, all in one thread.
 *
 * Of right and wrong the target has its own idea, from docs/FRAME.md: what the link hands out is always the beginning
 * of what was said in order, frame by frame and byte by byte; what it says itself is in order, within its peer's
 * credits, and acknowledges and gives back no more than there was; a body comes back (SENT) when the peer has it, not
 * before. Never a crash, a hang, or memory that stays.
 */
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fuzz.h"
#include "handshake.h"
#include "heal.h"
#include "link_state.h"
#include "virtual_clock.h"

enum {
    INPUT_BYTES_MAX = 4096,
    BODY_MAX = 3000,
    SLOTS = 4,
    FRAMES = 6,
    WIRES = 12,
    WIRE_BYTES = 1 << 16,
    SAID_MAX = 2048,
    PEER = 1,
    EDGE = 3,
    TURNS = 64
};

struct said { /* a frame that the link may hand out */
    struct aq_header header;
};

struct wire { /* one connection: a stream whose other end is the input's */
    struct aq_byte_stream stream;
    bool open, ended, adopted, answered, wrong, last_word;
    uint8_t in[WIRE_BYTES];
    uint32_t begin, end, piece;
    uint8_t out[2 * AQ_FRAME_HEADER_BYTES + AQ_FRAME_CONTROL_BYTES_MAX + BODY_MAX];
    uint32_t out_have;
    struct aq_hello hello, answer;
    uint64_t next, heard; /* the next sequence of the peer's; the last of the link's */
    uint32_t credit;      /* bodies that the peer may send  */
    uint32_t theirs;      /* bodies that the link may send  */
};

static struct world {
    struct aq_net net;
    struct aq_listener *listener;
    struct aq_link *link;
    struct aq_link_config config;
    struct wire *at_acceptor[WIRES];
    uint32_t waiting, wire_count;
    struct wire *wire; /* the latest */
    struct said said[SAID_MAX];
    uint32_t said_count, told;
    uint64_t ns, sends, returned, seen_argument, acked;
    uint64_t sequence_of[SAID_MAX];
    const void *held[SLOTS];
    uint32_t held_count;
    bool blind, closed;
} w;
static struct wire wires[WIRES];

static uint64_t virtual_ns(void *context)
{
    (void)context;
    return w.ns;
}

static void fill(uint8_t *to, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

/* ---- what the link says ---- */

static void check_said_by_link(struct wire *wire, const struct aq_header *h, const uint8_t *body)
{
    AQ_ASSERT(h->from == w.config.rank && h->edge == EDGE && h->plan_hash == w.config.plan_hash);
    AQ_ASSERT(h->sequence == wire->heard + 1);
    AQ_ASSERT(!wire->last_word);
    wire->heard = h->sequence;
    AQ_ASSERT(h->acknowledge < wire->next || wire->wrong);
    AQ_ASSERT(h->credit <= SLOTS - wire->credit || wire->wrong);
    wire->credit += h->credit;
    if (h->kind == AQ_FRAME_ABORT) wire->last_word = true;
    if (h->kind < AQ_FRAME_KIND_RUNTIME) return;
    AQ_ASSERT(h->argument < w.sends && h->argument >= w.returned);
    w.sequence_of[h->argument % SAID_MAX] = h->sequence;
    if (h->body_bytes == 0) return;
    uint8_t expected[BODY_MAX];
    fill(expected, h->body_bytes, h->argument);
    AQ_ASSERT(memcmp(expected, body, h->body_bytes) == 0);
    AQ_ASSERT(wire->theirs > 0);
    wire->theirs--;
}

/* Bytes of the frame that out begins with; 0: not known yet. Its bodies are too short for parts. */
static uint32_t frame_bytes(const struct wire *wire, struct aq_header *h)
{
    char text[AQ_TEXT_BYTES];
    if (wire->out_have < AQ_FRAME_HEADER_BYTES) return 0;
    AQ_ASSERT(aq_header_decode(wire->out, h, text) == AQ_OK);
    AQ_ASSERT(h->part_bytes == 0);
    return AQ_FRAME_HEADER_BYTES + h->body_bytes;
}

static void parse(struct wire *wire)
{
    struct aq_header h;
    char text[AQ_TEXT_BYTES];
    for (uint32_t bytes; (bytes = frame_bytes(wire, &h)) > 0 && bytes <= wire->out_have;) {
        const uint8_t *body = wire->out + AQ_FRAME_HEADER_BYTES;
        if (h.body_bytes > 0) AQ_ASSERT(aq_digest(body, h.body_bytes) == h.body_digest);
        if (h.kind == AQ_FRAME_HELLO) {
            AQ_ASSERT(!wire->answered && aq_hello_decode(body, &wire->answer, text) == AQ_OK);
            wire->answered = true;
        } else if (wire->adopted)
            check_said_by_link(wire, &h, body);
        else
            AQ_ASSERT(h.kind == AQ_FRAME_ABORT);
        wire->out_have -= bytes;
        memmove(wire->out, wire->out + bytes, wire->out_have);
    }
}

/* ---- the stream ---- */

static enum aq_status wire_connected(struct aq_byte_stream *stream)
{
    (void)stream;
    return AQ_OK;
}

static enum aq_status wire_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    struct wire *wire = (struct wire *)stream;
    size_t left = wire->end - wire->begin, total = 0;
    if (left == 0) return wire->ended ? AQ_CLOSED : AQ_AGAIN;
    if (wire->piece > 0 && left > wire->piece) left = wire->piece;
    for (int i = 0; i < count && left > 0; i++) {
        const size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(iov[i].iov_base, wire->in + wire->begin, part);
        wire->begin += (uint32_t)part;
        left -= part;
        total += part;
    }
    *got = total;
    return AQ_OK;
}

/* The link has this connection from its first word or read on: what was said before and not heard was not said. */
static void adopt(struct wire *wire)
{
    if (wire->adopted || !w.link || w.link->stream != &wire->stream) return;
    AQ_ASSERT(wire->answered);
    wire->adopted = true;
    const uint64_t first = wire->answer.resume_sequence ? wire->answer.resume_sequence : 1;
    AQ_ASSERT(wire->next == 0 || first <= wire->next);
    wire->next = first;
    wire->credit = wire->answer.receive_slots;
    wire->theirs = wire->hello.receive_slots;
    wire->heard = wire->hello.resume_sequence ? wire->hello.resume_sequence - 1 : 0;
    if (wire->heard > w.acked && wire->heard <= w.link->sequence) w.acked = wire->heard;
    while (w.said_count > 0 && w.said[w.said_count - 1].header.sequence >= first)
        w.said_count--;
    AQ_ASSERT(w.said_count >= w.told);
    AQ_ASSERT(wire->credit <= SLOTS);
}

static enum aq_status wire_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    struct wire *wire = (struct wire *)stream;
    if (wire->ended) return AQ_CLOSED;
    adopt(wire);
    *put = 0;
    for (int i = 0; i < count; i++) {
        const uint8_t *from = iov[i].iov_base;
        for (size_t left = iov[i].iov_len; left > 0;) {
            const size_t room = sizeof wire->out - wire->out_have, part = left < room ? left : room;
            AQ_ASSERT(part > 0);
            memcpy(wire->out + wire->out_have, from, part);
            wire->out_have += (uint32_t)part;
            from += part;
            left -= part;
            parse(wire);
        }
        *put += iov[i].iov_len;
    }
    return AQ_OK;
}

static void wire_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    (void)stream, (void)write;
    *out = (struct aq_byte_stream_wait){.fd = -1, .wake_ns = AQ_NEVER};
}

static int wire_direct(struct aq_byte_stream *stream)
{
    (void)stream;
    return -1;
}

static double wire_measure(struct aq_byte_stream *stream)
{
    (void)stream;
    return 0;
}

static void wire_path(struct aq_byte_stream *stream, struct aq_path *out)
{
    (void)stream;
    *out = (struct aq_path){0};
}

static enum aq_status wire_congestion(struct aq_byte_stream *stream, const char *name)
{
    (void)stream, (void)name;
    return AQ_OK;
}

static void wire_shut(struct aq_byte_stream *stream)
{
    (void)stream;
}

static void wire_close(struct aq_byte_stream *stream)
{
    struct wire *wire = (struct wire *)stream;
    AQ_ASSERT(wire->open);
    wire->open = false;
    if (w.wire == wire) w.wire = NULL;
}

static const struct aq_byte_stream_ops WIRE_OPS = {.connected = wire_connected,
                                                   .read = wire_read,
                                                   .write = wire_write,
                                                   .wait = wire_wait,
                                                   .direct = wire_direct,
                                                   .measure = wire_measure,
                                                   .path = wire_path,
                                                   .congestion = wire_congestion,
                                                   .shut = wire_shut,
                                                   .close = wire_close};

static enum aq_status acceptor_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    (void)acceptor;
    if (w.waiting == 0) return AQ_AGAIN;
    *out = &w.at_acceptor[0]->stream;
    memmove(w.at_acceptor, w.at_acceptor + 1, --w.waiting * sizeof w.at_acceptor[0]);
    return AQ_OK;
}

static void acceptor_close(struct aq_acceptor *acceptor)
{
    struct aq_byte_stream *stream;
    while (acceptor_accept(acceptor, &stream) == AQ_OK)
        aq_byte_stream_close(stream);
}

static const struct aq_transport FUZZ_DOOR = {.scheme = "fuzz", .accept = acceptor_accept, .shut = acceptor_close};

/* ---- what the peer says ---- */

static void put(struct wire *wire, const void *bytes, size_t count)
{
    if (!wire || wire->ended) return;
    if (wire->begin == wire->end) wire->begin = wire->end = 0;
    if (count > WIRE_BYTES - wire->end) {
        wire->wrong = true; /* something is missing */
        return;
    }
    memcpy(wire->in + wire->end, bytes, count);
    wire->end += (uint32_t)count;
}

/* docs/FRAME.md, "Reading a header", as far as it can be known here: false where it must be refused. */
static bool permitted(const struct wire *wire, const struct aq_header *h)
{
    const bool own = h->kind < AQ_FRAME_KIND_RUNTIME, all_read = wire->begin == wire->end;
    if (h->kind < AQ_FRAME_CREDIT || h->kind > AQ_FRAME_KIND_LAST || (own && h->kind > AQ_FRAME_PONG)) return false;
    if (own && (h->flags || h->micro_batch || h->step || h->part_bytes)) return false;
    if (h->from != PEER || h->edge != EDGE || h->plan_hash != w.config.plan_hash || h->sequence != wire->next)
        return false;
    if (h->acknowledge > w.link->sequence + SAID_MAX || h->raw_bytes > 0) return false;
    if (h->body_bytes > (own ? h->kind == AQ_FRAME_ABORT ? AQ_FRAME_CONTROL_BYTES_MAX : 0 : BODY_MAX)) return false;
    if (h->part_bytes && (!(wire->answer.features & AQ_FEATURE_PARTS) || h->part_bytes < AQ_FRAME_PART_BYTES ||
                          h->part_bytes >= h->body_bytes))
        return false;
    if (h->credit > SLOTS) return false;
    return !(all_read && !own && h->body_bytes > 0 && wire->credit == 0);
}

/* One field of a header, off by a little or altogether. */
static void twist(struct aq_header *h, uint8_t field, uint8_t value)
{
    const uint64_t small[] = {1, UINT64_MAX, 2, 0x100, UINT64_C(1) << 31, UINT64_C(1) << 63, 5, 1024};
    const uint64_t by = small[value % 8];
    switch (field % 14) {
    case 0:
        h->sequence += by;
        break;
    case 1:
        h->acknowledge += by;
        break;
    case 2:
        h->credit += (uint32_t)by;
        break;
    case 3:
        h->kind = value;
        break;
    case 4:
        h->body_bytes = BODY_MAX + (value % 3);
        break;
    case 5:
        h->part_bytes = value % 2 ? AQ_FRAME_PART_BYTES - 1u + value / 64 : h->body_bytes;
        break;
    case 6:
        h->raw_bytes = (uint32_t)by;
        break;
    case 7:
        h->from += (uint32_t)by;
        break;
    case 8:
        h->edge += (uint32_t)by;
        break;
    case 9:
        h->plan_hash += by;
        break;
    case 10:
        h->step += by;
        break;
    case 11:
        h->flags = value;
        break;
    case 12:
        h->body_digest ^= by;
        break;
    default:
        h->kind = (uint16_t)(1 + value % 6);
        break;
    }
}

static void speak(struct fuzz_piece *rest, struct aq_header h, uint8_t twists)
{
    struct wire *wire = w.wire;
    uint8_t bytes[AQ_FRAME_HEADER_BYTES], body[BODY_MAX + 8];
    if (!wire || !wire->adopted || wire->ended) return;
    h.from = PEER;
    h.edge = EDGE;
    h.plan_hash = w.config.plan_hash;
    h.sequence = wire->next;
    h.acknowledge = wire->heard;
    for (uint8_t i = 0; i < twists; i++) {
        const uint8_t field = fuzz_byte(rest);
        if (field % 14 != 12) twist(&h, field, fuzz_byte(rest));
    }
    const uint32_t body_bytes = h.body_bytes <= sizeof body ? h.body_bytes : 0;
    fill(body, body_bytes, h.sequence);
    if (body_bytes > 0) h.body_digest = aq_digest(body, body_bytes);
    const bool broken = twists > 1 && (fuzz_byte(rest) & 3) == 0;
    if (broken) twist(&h, 12, fuzz_byte(rest));
    const bool good = permitted(wire, &h) && !(broken && h.body_bytes > 0) && !wire->wrong && !wire->last_word;
    aq_header_encode(&h, bytes);
    put(wire, bytes, sizeof bytes);
    for (uint32_t at = 0; at < body_bytes;) {
        const uint32_t left = body_bytes - at, part = h.part_bytes && h.part_bytes < left ? h.part_bytes : left;
        put(wire, body + at, part);
        at += part;
        if (at == body_bytes) break;
        const struct aq_gap gap = {.acknowledge = h.acknowledge, .cut = twists > 0 && fuzz_byte(rest) % 16 == 0};
        uint8_t gap_bytes[AQ_FRAME_GAP_BYTES];
        aq_gap_encode(&gap, h.sequence, gap_bytes);
        put(wire, gap_bytes, sizeof gap_bytes);
        if (gap.cut) { /* an ABORT may follow, and nothing else */
            wire->wrong = true;
            wire->next++;
            break;
        }
    }
    /* Gaps acknowledge, whatever becomes of the body around them. */
    if ((good || h.part_bytes > 0) && h.acknowledge > w.acked && h.acknowledge <= wire->heard) w.acked = h.acknowledge;
    if (!good) wire->wrong = true; /* nothing of this connection counts from here on */
    if (wire->wrong) return;
    wire->next++;
    wire->theirs += h.credit;
    if (h.kind < AQ_FRAME_KIND_RUNTIME) {
        if (h.kind == AQ_FRAME_ABORT) wire->wrong = true;
        return;
    }
    if (h.body_bytes > 0 && wire->credit > 0) wire->credit--;
    AQ_ASSERT(w.said_count < SAID_MAX);
    w.said[w.said_count++].header = h;
}

/* A good frame breaks off in the midst of its body, with its connection: it has not been said. */
static void break_off(uint8_t bytes)
{
    struct wire *wire = w.wire;
    uint8_t header[AQ_FRAME_HEADER_BYTES], body[256];
    fill(body, sizeof body, 1);
    const struct aq_header h = {.kind = AQ_FRAME_FORWARD,
                                .from = PEER,
                                .edge = EDGE,
                                .plan_hash = w.config.plan_hash,
                                .sequence = wire->next,
                                .body_bytes = sizeof body,
                                .body_digest = aq_digest(body, sizeof body)};
    aq_header_encode(&h, header);
    put(wire, header, sizeof header);
    put(wire, body, bytes);
    wire->wrong = true;
}

static void greet(struct fuzz_piece *rest, bool right)
{
    if (w.wire_count == WIRES) return;
    struct wire *wire = &wires[w.wire_count++], *before = w.wire;
    const uint64_t next = before && before->adopted ? before->next : 0;
    memset(wire, 0, offsetof(struct wire, in));
    wire->begin = wire->end = wire->piece = wire->out_have = 0;
    memset(&wire->hello, 0, sizeof *wire - offsetof(struct wire, hello));
    wire->stream.ops = &WIRE_OPS;
    wire->open = true;
    wire->next = next;
    const uint8_t what = right ? 0 : fuzz_byte(rest), how = right ? 0 : fuzz_byte(rest);
    struct aq_hello hello = {.job_digest = w.config.job_digest,
                             .plan_hash = w.config.plan_hash,
                             .rank = PEER,
                             .peer_rank = 0,
                             .edge = EDGE,
                             .body_bytes_max = BODY_MAX,
                             .receive_slots = SLOTS,
                             .features = AQ_FEATURE_PARTS | (w.config.outage_ns_max ? AQ_FEATURE_HEAL : 0)};
    if (w.link && w.link->heal) {
        hello.session = w.link->heal->session;
        hello.resume_sequence = w.link->sequence + 1;
        if (how & 1) hello.resume_sequence = w.link->acked_sequence + (how >> 1) % 4;
        if (how & 64) hello.resume_sequence += how & 128 ? 1 : UINT64_MAX;
        hello.receive_slots = (what >> 4) % (SLOTS + 2);
    }
    switch (what % 16) { /* mostly right */
    case 1:
        hello.session ^= 1;
        break;
    case 2:
        hello.rank++;
        break;
    case 3:
        hello.edge++;
        break;
    case 4:
        hello.session = 0;
        hello.resume_sequence = 0;
        break;
    case 5:
        hello.job_digest++;
        break;
    case 6:
        hello.features = how;
        break;
    default:
        break;
    }
    wire->hello = hello;
    uint8_t body[AQ_FRAME_HELLO_BYTES], bytes[AQ_FRAME_HEADER_BYTES];
    aq_hello_encode(&hello, body);
    struct aq_header h = {.kind = AQ_FRAME_HELLO,
                          .from = hello.rank,
                          .edge = hello.edge,
                          .plan_hash = hello.plan_hash,
                          .body_bytes = sizeof body,
                          .body_digest = aq_digest(body, sizeof body)};
    if (what % 16 == 7) h.sequence = 1;
    aq_header_encode(&h, bytes);
    put(wire, bytes, sizeof bytes);
    put(wire, body, what % 16 == 8 ? sizeof body - 1 : sizeof body);
    h = (struct aq_header){
        .kind = AQ_FRAME_HELLO, .from = hello.rank, .edge = hello.edge, .plan_hash = hello.plan_hash};
    aq_header_encode(&h, bytes);
    if (what % 16 != 9) put(wire, bytes, sizeof bytes);
    w.at_acceptor[w.waiting++] = wire;
    w.wire = wire;
}

/* ---- the caller of the link ---- */

static void received(const struct aq_frame *frame)
{
    AQ_ASSERT(w.told < w.said_count);
    const struct aq_header *h = &w.said[w.told++].header;
    AQ_ASSERT(frame->kind == h->kind && frame->flags == h->flags && frame->micro_batch == h->micro_batch);
    AQ_ASSERT(frame->step == h->step && frame->argument == h->argument && frame->body_bytes == h->body_bytes);
    fuzz_told(true);
    if (frame->body_bytes == 0) return;
    uint8_t expected[BODY_MAX];
    fill(expected, h->body_bytes, h->sequence);
    AQ_ASSERT(memcmp(expected, frame->body, h->body_bytes) == 0);
    AQ_ASSERT(w.held_count < SLOTS);
    w.held[w.held_count++] = frame->body;
}

static void poll_link(void)
{
    struct aq_link_event event;
    while (!w.closed && aq_link_poll(w.link, &event) == AQ_OK) {
        if (event.kind == AQ_LINK_RECEIVED) received(&event.frame);
        if (event.kind == AQ_LINK_SENT) {
            AQ_ASSERT(event.token == w.returned);
            if (w.link->heal) AQ_ASSERT(w.sequence_of[w.returned % SAID_MAX] <= w.acked);
            w.returned++;
        }
        if (event.kind != AQ_LINK_CLOSED) continue;
        AQ_ASSERT(event.status != AQ_OK && event.text[0] != '\0');
        if (event.status == AQ_PROTO || event.status == AQ_CORRUPT || event.status == AQ_MISMATCH) fuzz_told(false);
        w.closed = true;
    }
}

static void send_frame(uint8_t size)
{
    static uint8_t bodies[SAID_MAX][64];
    const uint32_t bytes = size % 4 == 0 ? 0 : size % 64;
    uint8_t *body = bodies[w.sends % SAID_MAX];
    if (w.sends == SAID_MAX) return;
    fill(body, bytes, w.sends);
    const struct aq_frame frame = {
        .kind = AQ_FRAME_FORWARD, .argument = w.sends, .body_bytes = bytes, .body = bytes ? body : NULL};
    w.sends++; /* the link may write within */
    if (aq_link_send(w.link, &frame, w.sends - 1) != AQ_OK) w.sends--;
}

/* Until nothing moves any more. */
static void turn(void)
{
    uint64_t next_ns, again_ns;
    for (int i = 0; i < TURNS; i++) {
        next_ns = AQ_NEVER;
        if (w.link && w.link->state != LINK_ENDED) aq_link_work(w.link, w.ns, &next_ns);
        for (uint32_t n = 0; n < AQ_HANDSHAKES && n < WIRES; n++)
            w.listener->hands[n].ready = true;
        if (w.link && w.link->heal) aq_acceptor_thread_turn(w.listener, &again_ns);
        if (w.wire) adopt(w.wire);
        if (next_ns > w.ns && i > 1) break;
    }
}

static void act(struct fuzz_piece *rest)
{
    const uint8_t op = fuzz_byte(rest), more = fuzz_byte(rest);
    const uint32_t sizes[] = {1, 100, BODY_MAX, 1024, 1025, 2999, 2048, 700};
    static const uint64_t TIMES[] = {1000000, 50000000, 600000000, 3000000000, 11000000000, 40000000000};
    switch (op % 16) {
    case 0:
    case 1:
        speak(rest, (struct aq_header){.kind = (uint16_t)(16 + more % 9), .step = more, .argument = op}, 0);
        break;
    case 2:
    case 3:
        speak(rest, (struct aq_header){.kind = AQ_FRAME_FORWARD, .step = more, .body_bytes = sizes[more % 8]}, 0);
        break;
    case 4:
        speak(rest, (struct aq_header){.kind = AQ_FRAME_FORWARD, .body_bytes = sizes[more % 8]}, 1 + (more >> 6));
        break;
    case 5:
        speak(rest, (struct aq_header){.kind = (uint16_t)(2 + more % 5)}, more >> 6);
        break;
    case 6:
        speak(rest, (struct aq_header){.kind = AQ_FRAME_CREDIT, .credit = more % 6}, 0);
        break;
    case 7:
        speak(rest, (struct aq_header){.kind = AQ_FRAME_FORWARD, .body_bytes = BODY_MAX, .part_bytes = 1024}, more & 1);
        break;
    case 8:
        if (w.wire) w.wire->piece = more;
        break;
    case 9: {
        const uint32_t count = more < rest->count ? more : (uint32_t)rest->count;
        if (count > 0 && w.wire) w.wire->wrong = true;
        put(w.wire, rest->bytes, count);
        rest->bytes += count;
        rest->count -= count;
        break;
    }
    case 10:
        if (w.wire && w.wire->adopted && more & 2) break_off(more);
        if (w.wire && more & 1) w.wire->ended = true;
        greet(rest, false);
        break;
    case 11:
    case 12:
        send_frame(more);
        break;
    case 13:
        if (w.held_count > 0) aq_link_release(w.link, w.held[--w.held_count]);
        break;
    case 14:
        poll_link();
        break;
    default:
        w.ns += TIMES[more % 6];
        break;
    }
    turn();
}

/* ---- one run ---- */

/* What stays from run to run. */
static const struct aq_net *bare_net(void)
{
    static struct aq_net net;
    if (net.commands) return &net;
    fuzz_quiet();
    virtual_clock(virtual_ns, NULL);
    net.config.links_max = 4;
    net.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    AQ_ASSERT(aq_ring_open(16, &net.commands) == AQ_OK && aq_eventcount_open(&net.call_eventcount) == AQ_OK);
    return &net;
}

static void set_up(uint8_t mode)
{
    void *memory;
    memset(&w, 0, offsetof(struct world, said));
    memset(&w.said_count, 0, sizeof w - offsetof(struct world, said_count));
    w.ns = 1000000000;
    w.net = *bare_net();
    AQ_ASSERT(aq_alloc(sizeof *w.listener, &memory) == AQ_OK);
    w.listener = memory;
    w.listener->net = &w.net;
    w.listener->acceptor = (struct aq_acceptor){.transport = &FUZZ_DOOR, .fd = -1};
    w.listener->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w.net.listeners = w.listener;
    w.net.open_count = 1;
    aq_link_config_default(&w.config);
    w.config.job_digest = 7;
    w.config.plan_hash = 9;
    w.config.peer_rank = PEER;
    w.config.edge = EDGE;
    w.config.body_bytes_max = BODY_MAX;
    w.config.send_frames = FRAMES;
    w.config.receive_slots = SLOTS;
    w.config.outage_ns_max = mode & 1 ? UINT64_C(100000000000) : 0;
    w.config.heartbeat_ns = mode & 2 ? UINT64_C(500000000) : 0;
    w.config.silence_ns_max = mode & 4 ? UINT64_C(2500000000) : 0;
}

static void tear_down(void)
{
    uint64_t next_ns, token;
    if (w.link) {
        aq_link_leave(w.link);
        for (int i = 0; i < 4 && w.link->state != LINK_ENDED; i++)
            aq_link_work(w.link, w.ns, &next_ns);
        AQ_ASSERT(w.link->state == LINK_ENDED);
        atomic_store_explicit(&w.link->detached, true, memory_order_release); /* what sweep in loop.c says */
        aq_link_close(w.link);
    }
    aq_listener_close(w.listener);
    while (aq_ring_pop(w.net.commands, &token)) {
    }
    for (uint32_t i = 0; i < w.wire_count; i++)
        AQ_ASSERT(!wires[i].open);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_piece rest = {data, size};
    if (size < 2 || size > INPUT_BYTES_MAX) return 0;
    (void)bare_net();
    const uint64_t used = aq_memory_used();
    const uint8_t mode = fuzz_byte(&rest);
    set_up(mode);
    for (uint8_t i = 0; i < mode >> 6; i++)
        greet(&rest, false); /* who comes before the right one */
    greet(&rest, true);
    struct wire *first = w.wire;
    /* Somebody before may have been right as well. */
    if (aq_link_accept(w.listener, &w.config, w.ns, &w.link) == AQ_OK) {
        for (uint32_t i = 0; i < w.wire_count; i++)
            if (w.link->stream == &wires[i].stream) first = &wires[i];
        w.wire = first;
        turn();
        while (rest.count > 0 && w.link->state != LINK_ENDED)
            act(&rest);
        poll_link();
    }
    tear_down();
    AQ_ASSERT(aq_memory_used() == used);
    return 0;
}
