/*
 * transport_relay.c -- streams between two ends that both dial, over a relay (net/relay.h), which joins their
 * connections.
 *
 *     relay://host:port?room=0123456789abcdef0123456789abcdef      host:port is the relay's
 *
 * The end that listens has PARKED connections at the relay, which wait in its room; the other end calls into the room,
 * and the relay joins it to one of them. Then the stream is the TCP stream to the relay, and all bytes on it are the
 * peer's. One that was joined is replaced at once, one that was lost after a pause, so that links can heal.
 *
 * The relay may drop, delay, change, repeat, swap and read what it carries. So links go under tls+ with the
 * certificates of the two ends, and a manifest without keys is refused. A relay can only end a connection or prevent
 * one. Words that make no sense are AQ_PROTO.
 *
 * The path of a stream is the one to the relay. Locking: as any stream.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "net_limits.h"
#include "relay_words.h"
#include "transport.h"

enum {
    PARKED = 2,          /* one is taken while another waits: a link's connections come one after the other */
    ASK_EVERY_S = 10,    /* of the kernel, after 30 s of silence: a waiting connection that a NAT forgot ... */
    ASKED_MAX = 3,       /* ... is noticed within 60 s */
    JOINS_A_SECOND = 64, /* four links of 16 connections; a relay that joins more makes us dial no faster */
    REACHED_MS = 10000,  /* within this a listener's relay must have answered, */
    ADDRESS_MS = 4000,   /* and each of its addresses must have let us connect; then the next one is tried */
    TRIES = 8            /* of them; one that refuses takes no time */
};
static const uint64_t PAUSE_NS_MIN = 100000000u, PAUSE_NS_MAX = 5000000000u;

struct relay_stream {
    struct aq_byte_stream stream; /* next: the connection to the relay */
    uint8_t out[AQ_RELAY_HELLO_BYTES], in[AQ_RELAY_WORD_BYTES];
    uint32_t out_sent, in_have;
    bool open, waiting, joined;
};

struct relay_acceptor {
    struct relay_stream *parked[PARKED]; /* NULL: to be dialled, not before again_ns */
    uint64_t again_ns[PARKED], pause_ns[PARKED];
    uint32_t attempt[PARKED]; /* counts those that failed: each dials the next address of the relay's name */
    uint8_t room[AQ_RELAY_ROOM_BYTES];
    uint32_t joins; /* in the second that began at since_ns */
    uint64_t since_ns;
    int timer;
    struct aq_log_limit lines;
};

static const struct aq_byte_stream_ops RELAY_OPS;

/* ---- an end's connection ---- */

static enum aq_status room_of(const struct aq_address *address, uint8_t room[AQ_RELAY_ROOM_BYTES])
{
    char digits[2 * AQ_RELAY_ROOM_BYTES + 1];
    size_t bytes;
    const char *at = aq_address_value(address, "room", &bytes);
    snprintf(digits, sizeof digits, "%.*s", at && bytes < sizeof digits ? (int)bytes : 0, at ? at : "");
    return aq_hex_read(digits, AQ_RELAY_ROOM_BYTES, room)
               ? AQ_OK
               : aq_fail(AQ_INVAL, "net", "address 'relay://%.80s...': 'room' needs %d hexadecimal digits",
                         address->place.host, 2 * AQ_RELAY_ROOM_BYTES);
}

static enum aq_status dial(const struct aq_address *address, const uint8_t room[AQ_RELAY_ROOM_BYTES],
                           enum aq_relay_role role, uint32_t attempt, bool paced, struct relay_stream **out)
{
    char place[AQ_ENDPOINT_TEXT_BYTES], whole[AQ_ENDPOINT_TEXT_BYTES + 64];
    double segment;
    struct relay_stream *r;
    struct aq_byte_stream *below;
    struct aq_address relay;
    AQ_TRY(aq_address_number(address, "segment", 0, &segment));
    const int used =
        snprintf(whole, sizeof whole, "tcp://%s", aq_endpoint_text(&address->place, address->place.port, place));
    if (segment > 0) snprintf(whole + used, sizeof whole - (size_t)used, "?segment=%.0f", segment);
    AQ_TRY(aq_address_parse(whole, &relay));
    AQ_TRY(AQ_NEW(1, &r));
    const enum aq_status status = aq_transport_connect(&relay, attempt, paced, &below);
    if (status != AQ_OK) {
        aq_free(r);
        return status;
    }
    r->stream.ops = &RELAY_OPS;
    r->stream.next = below;
    snprintf(r->stream.name, sizeof r->stream.name, "%.80s (relay)", below->name);
    aq_relay_hello_write(role, room, r->out);
    *out = r;
    return AQ_OK;
}

static enum aq_status refused(struct relay_stream *r, enum aq_status status, const char *why)
{
    r->stream.broken = why;
    return status;
}

/* One word of the relay. */
static enum aq_status take_word(struct relay_stream *r)
{
    struct aq_byte_stream *below = r->stream.next;
    enum aq_relay_word word;
    while (r->in_have < sizeof r->in) {
        const struct iovec iov = {r->in + r->in_have, sizeof r->in - r->in_have};
        size_t got;
        AQ_TRY(below->ops->read(below, &iov, 1, &got));
        r->in_have += (uint32_t)got;
    }
    r->in_have = 0;
    if (!aq_relay_word_read(r->in, &word)) return refused(r, AQ_PROTO, "is no relay: start aqpiped --relay there");
    const bool waits = r->out[8] == AQ_RELAY_WAITS; /* then the text is of the relay, else of the peer */
    if (word == AQ_RELAY_NOBODY)
        return refused(r, AQ_REFUSED,
                       waits ? "answers one that waits as if it called"
                             : "is not at the relay: its stage has not dialled it");
    if (word == AQ_RELAY_FULL)
        return refused(r, AQ_REFUSED,
                       waits ? "has no place left in the room of this stage"
                             : "cannot be called: the relay has no place left in its room");
    if (word == AQ_RELAY_WAITING && r->waiting) return refused(r, AQ_PROTO, "is a relay that repeats itself");
    r->waiting = true;
    r->joined = word == AQ_RELAY_JOINED;
    return AQ_OK;
}

static enum aq_status relay_connected(struct aq_byte_stream *stream)
{
    struct relay_stream *r = (struct relay_stream *)stream;
    struct aq_byte_stream *below = stream->next;
    if (!r->open) AQ_TRY(below->ops->connected(below));
    r->open = true;
    below->local = false; /* the relay may be here; the peer is not */
    while (r->out_sent < sizeof r->out) {
        const struct iovec iov = {r->out + r->out_sent, sizeof r->out - r->out_sent};
        size_t put;
        AQ_TRY(below->ops->write(below, &iov, 1, &put));
        r->out_sent += (uint32_t)put;
    }
    while (!r->joined)
        AQ_TRY(take_word(r));
    return AQ_OK;
}

static enum aq_status relay_read(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *got)
{
    return stream->next->ops->read(stream->next, iov, count, got);
}

static enum aq_status relay_write(struct aq_byte_stream *stream, const struct iovec *iov, int count, size_t *put)
{
    const enum aq_status status = stream->next->ops->write(stream->next, iov, count, put);
    stream->unsent = stream->next->unsent;
    return status;
}

static void relay_wait(struct aq_byte_stream *stream, bool write, struct aq_byte_stream_wait *out)
{
    const struct relay_stream *r = (const struct relay_stream *)stream;
    if (!r->joined) write = !r->open || r->out_sent < sizeof r->out;
    stream->next->ops->wait(stream->next, write, out);
}

static int relay_direct(struct aq_byte_stream *stream)
{
    return stream->next->ops->direct(stream->next);
}

static void relay_shut(struct aq_byte_stream *stream)
{
    stream->next->ops->shut(stream->next);
}

static const struct aq_byte_stream_ops RELAY_OPS = {
    .connected = relay_connected,
    .read = relay_read,
    .write = relay_write,
    .wait = relay_wait,
    .direct = relay_direct,
    .pace = aq_filter_pace,
    .measure = aq_filter_measure,
    .path = aq_filter_path,
    .congestion = aq_filter_congestion,
    .shut = relay_shut,
    .close = aq_filter_close,
};

static enum aq_status relay_connect(const struct aq_address *address, uint32_t attempt, bool paced,
                                    struct aq_byte_stream **out)
{
    uint8_t room[AQ_RELAY_ROOM_BYTES];
    struct relay_stream *r;
    AQ_TRY(room_of(address, room));
    AQ_TRY(dial(address, room, AQ_RELAY_CALLS, attempt, paced, &r));
    *out = &r->stream;
    return AQ_OK;
}

/* ---- listening ---- */

/* The acceptor's descriptor is readable when a waiting connection can go on, or when one is to be dialled again. */
static void watch(const struct aq_acceptor *acceptor, struct relay_stream *r, int operation)
{
    struct aq_byte_stream_wait wait;
    relay_wait(&r->stream, false, &wait);
    struct epoll_event event = {.events = wait.events & POLLOUT ? EPOLLOUT : EPOLLIN};
    if (epoll_ctl(acceptor->fd, operation, wait.fd, &event) != 0)
        aq_log("net", AQ_LOG_WARNING, "a connection to the relay cannot be watched: %s", strerror(errno));
}

static enum aq_status park(struct aq_acceptor *acceptor, int i)
{
    struct relay_acceptor *a = acceptor->state;
    const int every_s = ASK_EVERY_S, most = ASKED_MAX;
    const enum aq_status status =
        dial(&acceptor->address, a->room, AQ_RELAY_WAITS, a->attempt[i], false, &a->parked[i]);
    if (status != AQ_OK) {
        a->parked[i] = NULL; /* logged */
        return status;
    }
    const int fd = relay_direct(&a->parked[i]->stream);
    if (setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most) == -1)
        aq_log("net", 1, "TCP_KEEPINTVL or TCP_KEEPCNT refused: %s", strerror(errno));
    watch(acceptor, a->parked[i], EPOLL_CTL_ADD);
    return AQ_OK;
}

static void unpark(struct aq_acceptor *acceptor, int i, bool pauses)
{
    struct relay_acceptor *a = acceptor->state;
    a->parked[i] = NULL;
    a->pause_ns[i] = !pauses                             ? 0
                     : a->pause_ns[i] == 0               ? PAUSE_NS_MIN
                     : a->pause_ns[i] * 2 < PAUSE_NS_MAX ? a->pause_ns[i] * 2
                                                         : PAUSE_NS_MAX;
    a->again_ns[i] = aq_clock_after(a->pause_ns[i]);
    a->attempt[i] += pauses;
}

/* One was joined: when its place may be dialled again. */
static uint64_t count_join(struct relay_acceptor *a)
{
    static const uint64_t second_ns = 1000000000u;
    const uint64_t now_ns = aq_clock_ns();
    if (now_ns >= a->since_ns + second_ns) {
        a->since_ns = now_ns;
        a->joins = 0;
    }
    return ++a->joins <= JOINS_A_SECOND ? now_ns : a->since_ns + second_ns;
}

/* As far as it goes now. True: it is joined, and the caller's. */
static bool advance(struct aq_acceptor *acceptor, int i, struct aq_byte_stream **out)
{
    struct relay_acceptor *a = acceptor->state;
    if (!a->parked[i] && aq_clock_ns() >= a->again_ns[i]) {
        if (park(acceptor, i) != AQ_OK) unpark(acceptor, i, true);
    }
    struct relay_stream *r = a->parked[i];
    if (!r) return false;
    const enum aq_status status = relay_connected(&r->stream);
    if (status == AQ_AGAIN) {
        watch(acceptor, r, EPOLL_CTL_MOD);
        if (r->waiting) a->pause_ns[i] = 0;
        return false;
    }
    (void)epoll_ctl(acceptor->fd, EPOLL_CTL_DEL, relay_direct(&r->stream), NULL); /* closing it would do it, too */
    unpark(acceptor, i, status != AQ_OK);
    if (status == AQ_OK) {
        *out = &r->stream;
        a->again_ns[i] = count_join(a);
        if (aq_clock_ns() >= a->again_ns[i]) (void)park(acceptor, i); /* else in the next turn */
        return true;
    }
    aq_log_limited(&a->lines, "net", 1, "the relay %s %s: dialled again in %.1f s", r->stream.name,
                   r->stream.broken       ? r->stream.broken
                   : status == AQ_REFUSED ? "refuses connections"
                                          : "ended a waiting connection",
                   (double)a->pause_ns[i] * 1e-9);
    aq_filter_close(&r->stream);
    return false;
}

static enum aq_status relay_accept(struct aq_acceptor *acceptor, struct aq_byte_stream **out)
{
    struct relay_acceptor *a = acceptor->state;
    uint64_t level, next_ns = AQ_NEVER;
    struct itimerspec when = {{0}, {0}};
    (void)!read(a->timer, &level, sizeof level); /* a late one only costs a look */
    aq_log_limit_tell(&a->lines);
    for (int i = 0; i < PARKED; i++)
        if (advance(acceptor, i, out)) return AQ_OK;
    for (int i = 0; i < PARKED; i++)
        if (!a->parked[i] && a->again_ns[i] < next_ns) next_ns = a->again_ns[i];
    if (next_ns != AQ_NEVER) {
        const uint64_t now_ns = aq_clock_ns(), ns = next_ns > now_ns ? next_ns - now_ns : 1;
        when.it_value = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    }
    if (timerfd_settime(a->timer, 0, &when, NULL) != 0) return aq_fail_errno("net", "the timer of a relay's listener");
    return AQ_AGAIN;
}

static void relay_acceptor_close(struct aq_acceptor *acceptor)
{
    struct relay_acceptor *a = acceptor->state;
    for (int i = 0; i < PARKED; i++)
        if (a->parked[i]) aq_filter_close(&a->parked[i]->stream);
    if (a->timer != -1) close(a->timer);
    if (acceptor->fd != -1) close(acceptor->fd);
    acceptor->fd = -1;
    aq_free(a);
    acceptor->state = NULL;
}

static enum aq_status park_next(struct aq_acceptor *acceptor)
{
    struct relay_acceptor *a = acceptor->state;
    if (a->parked[0]) aq_filter_close(&a->parked[0]->stream);
    a->parked[0] = NULL;
    a->attempt[0]++;
    return park(acceptor, 0);
}

/* Until the room has us: a relay that is not there is an error now, and not in ten minutes. */
static enum aq_status reach(struct aq_acceptor *acceptor, enum aq_status parked)
{
    struct relay_acceptor *a = acceptor->state;
    const uint64_t deadline_ns = aq_clock_after(REACHED_MS * UINT64_C(1000000));
    uint64_t try_ns = aq_clock_after(ADDRESS_MS * UINT64_C(1000000));
    for (;;) {
        struct relay_stream *r = a->parked[0];
        if (!r && parked != AQ_REFUSED) return parked; /* no such host, or no memory: reported */
        const enum aq_status status = r ? relay_connected(&r->stream) : AQ_REFUSED;
        if (r) watch(acceptor, r, EPOLL_CTL_MOD);
        if (status == AQ_OK || (status == AQ_AGAIN && r->waiting)) return AQ_OK;
        const uint64_t now_ns = aq_clock_ns();
        const char *broken = r ? r->stream.broken : NULL;
        const bool lost = status != AQ_AGAIN || (!r->open && now_ns >= try_ns);
        if (lost && !broken && a->attempt[0] < TRIES && now_ns < deadline_ns) {
            parked = park_next(acceptor);
            try_ns = aq_clock_after(ADDRESS_MS * UINT64_C(1000000));
            continue;
        }
        if (lost || now_ns >= deadline_ns)
            return aq_fail(status == AQ_AGAIN ? AQ_TIMEOUT : AQ_REFUSED, "net", "the relay '%.80s', port %u %s",
                           acceptor->address.place.host, acceptor->address.place.port,
                           broken ? broken
                                  : "does not answer: start aqpiped --relay there, and let this machine reach it");
        struct aq_byte_stream_wait wait;
        relay_wait(&r->stream, false, &wait);
        struct pollfd ready = {.fd = wait.fd, .events = wait.events};
        const uint64_t until_ns = !r->open && try_ns < deadline_ns ? try_ns : deadline_ns;
        (void)poll(&ready, 1, until_ns > now_ns ? (int)((until_ns - now_ns) / 1000000u) + 1 : 1);
    }
}

static enum aq_status relay_listen(struct aq_acceptor *acceptor)
{
    struct relay_acceptor *a;
    enum aq_status status;
    AQ_TRY(AQ_NEW(1, &a));
    acceptor->state = a;
    acceptor->port = acceptor->address.place.port;
    a->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    acceptor->fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    AQ_TRY_GOTO(room_of(&acceptor->address, a->room), out);
    if (a->timer == -1 || acceptor->fd == -1 || epoll_ctl(acceptor->fd, EPOLL_CTL_ADD, a->timer, &event) != 0) {
        status = aq_fail_errno("net", "listen at a relay");
        goto out;
    }
    enum aq_status parked = AQ_OK;
    for (int i = PARKED; i-- > 0;)
        parked = park(acceptor, i);
    status = reach(acceptor, parked);
out:
    if (status != AQ_OK) relay_acceptor_close(acceptor);
    return status;
}

const struct aq_transport aq_transport_relay = {.scheme = "relay",
                                                .listen = relay_listen,
                                                .accept = relay_accept,
                                                .shut = relay_acceptor_close,
                                                .connect = relay_connect};
