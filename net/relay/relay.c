/*
 * relay.c -- see relay.h. One loop of poll(): new connections, their hellos, and the bytes of pairs.
 *
 * Of each connection of a pair at most AQ_RELAY_BUFFER_BYTES are here. It is read while there is room and its room's
 * budget lasts; what was read is written to its peer. An end of one direction is passed on behind its last byte.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay_private.h"

enum {
    ACCEPTS_A_TURN = 8,    /* a flood of connections delays the bytes of pairs by as many searches for a place */
    READ_BYTES_MIN = 4096, /* that a room's budget must have: a read costs as much for one byte */
    IDLE_S = 30,           /* then the kernel asks the end whether it is there, */
    ASK_EVERY_S = 10,
    ASKED_MAX = 3,
    BURST_BYTES_MIN = 256 << 10
};
static const uint64_t HELLO_NS = 10000000000u, PAUSE_NS = 500000000u;
static const double BURST_S = 0.05;

/* ---- life ---- */

enum aq_status aq_link_relay_open(const struct aq_relay_config *config, struct aq_relay **out, uint16_t *port)
{
    char address[AQ_ADDRESS_BYTES];
    struct aq_relay *relay;
    enum aq_status status;
    if (config->connections < 2 || config->connections > AQ_RELAY_CONNECTIONS_MAX || !(config->rate_mbps >= 0))
        return aq_fail(AQ_INVAL, "relay", "connections %u: must be 2 to %d; rate %g Mbit/s: at least 0",
                       config->connections, AQ_RELAY_CONNECTIONS_MAX, config->rate_mbps);
    if (snprintf(address, sizeof address, "tcp://%s", config->listen) >= (int)sizeof address)
        return aq_fail(AQ_INVAL, "relay", "the address '%.80s...' is too long", config->listen);
    AQ_TRY(AQ_NEW(1, &relay));
    relay->config = *config;
    relay->fd = -1;
    AQ_TRY_GOTO(AQ_NEW(config->connections, &relay->connections), out);
    AQ_TRY_GOTO(AQ_NEW(config->connections, &relay->rooms), out);
    for (uint32_t i = 0; i < config->connections; i++)
        relay->connections[i].fd = -1;
    AQ_TRY_GOTO(aq_acceptor_open(address, NULL, &relay->acceptor), out);
    relay->fd = relay->acceptor.fd;
    if (port) *port = relay->acceptor.port;
    *out = relay;
out:
    if (status != AQ_OK) aq_link_relay_close(relay);
    return status;
}

void aq_link_relay_close(struct aq_relay *relay)
{
    if (!relay) return;
    for (uint32_t i = 0; relay->connections && i < relay->config.connections; i++)
        if (relay->connections[i].state != RELAY_FREE) relay_drop(relay, i, NULL);
    if (relay->fd != -1) aq_acceptor_close(&relay->acceptor);
    aq_free(relay->connections);
    aq_free(relay->rooms);
    aq_free(relay);
}

void aq_link_relay_stats(const struct aq_relay *relay, struct aq_relay_stats *out)
{
    *out = relay->stats;
}

/* ---- new connections ---- */

/* Its place, by the rule of all listeners: one in a room stays, one without a hello may have to go. */
static uint32_t place_for(struct aq_relay *relay, uint64_t source)
{
    struct aq_guest guests[AQ_RELAY_CONNECTIONS_MAX];
    for (uint32_t i = 0; i < relay->config.connections; i++) {
        const struct relay_connection *c = &relay->connections[i];
        guests[i] = (struct aq_guest){.source = c->source,
                                      .since_ns = c->since_ns,
                                      .state = c->state == RELAY_FREE    ? AQ_GUEST_NONE
                                               : c->state == RELAY_HELLO ? AQ_GUEST_UNPROVED
                                                                         : AQ_GUEST_PROVED};
    }
    const uint32_t at = aq_admit(guests, relay->config.connections, source, aq_clock_ns());
    if (at != AQ_ADMISSION_REFUSED && relay->connections[at].state != RELAY_FREE)
        relay_drop(relay, at, "sent no hello while others wait");
    return at;
}

static void keep_alive(int fd)
{
    const int on = 1, idle_s = IDLE_S, every_s = ASK_EVERY_S, most = ASKED_MAX;
    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &most, sizeof most) == -1 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == -1)
        aq_log("relay", 1, "options of a connection were refused: %s", strerror(errno));
}

/* False: the system has no descriptors, or no connections any more; both may come back. */
static bool let_in(struct aq_relay *relay)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        const int fd = accept4(relay->fd, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd == -1 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return true;
        if (fd == -1) {
            aq_log_limited(&relay->lines, "relay", 1, "no connection can be accepted: %s", strerror(errno));
            return false;
        }
        const uint64_t source = aq_sockaddr_source((const struct sockaddr *)&from);
        const uint32_t at = place_for(relay, source);
        if (at == AQ_ADMISSION_REFUSED) {
            relay->stats.refused++;
            aq_log_limited(&relay->lines, "relay", 1, "a connection was closed: too many, from its address or in all");
            close(fd);
            continue;
        }
        keep_alive(fd);
        relay->connections[at] = (struct relay_connection){.state = RELAY_HELLO,
                                                           .fd = fd,
                                                           .source = source,
                                                           .since_ns = aq_clock_ns(),
                                                           .deadline_ns = aq_clock_after(HELLO_NS)};
        relay->stats.connections++;
    }
    return true;
}

/* Bytes before the pair is joined: the rest of a hello, and then nothing. */
static void hear(struct aq_relay *relay, uint32_t index)
{
    struct relay_connection *c = &relay->connections[index];
    uint8_t more;
    const bool greeting = c->state == RELAY_HELLO;
    const ssize_t got = greeting ? recv(c->fd, c->hello + c->hello_have, sizeof c->hello - c->hello_have, MSG_DONTWAIT)
                                 : recv(c->fd, &more, 1, MSG_DONTWAIT);
    if (got == -1 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        relay_drop(relay, index, NULL);
        return;
    }
    if (!greeting) {
        relay_drop(relay, index, "spoke before it was joined");
        return;
    }
    c->hello_have += (uint32_t)got;
    if (!aq_relay_hello_begins(c->hello, c->hello_have))
        relay_drop(relay, index, "sent no hello of a relay");
    else if (c->hello_have == sizeof c->hello)
        relay_enter(relay, index);
}

/* ---- bytes ---- */

/* The bytes that its room may carry now. */
static double budget(const struct aq_relay *relay, struct relay_room *room, uint64_t now_ns)
{
    const double bytes_per_s = relay->config.rate_mbps * 1e6 / 8;
    const double least = BURST_BYTES_MIN, most = bytes_per_s * BURST_S > least ? bytes_per_s * BURST_S : least;
    if (bytes_per_s == 0) return least;
    room->tokens += (double)(now_ns - room->filled_ns) * 1e-9 * bytes_per_s;
    if (room->tokens > most) room->tokens = most;
    room->filled_ns = now_ns;
    return room->tokens;
}

/* False: the pair is over. */
static bool read_some(struct aq_relay *relay, uint32_t index, uint64_t now_ns)
{
    struct relay_connection *c = &relay->connections[index];
    struct relay_room *room = &relay->rooms[c->room];
    const double may = budget(relay, room, now_ns);
    size_t most = AQ_RELAY_BUFFER_BYTES - c->end;
    if (may < READ_BYTES_MIN || c->ended || most == 0) return true;
    if (may < (double)most) most = (size_t)may;
    const ssize_t got = recv(c->fd, c->bytes + c->end, most, MSG_DONTWAIT);
    if (got == -1 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got == -1) return false;
    c->ended = got == 0;
    c->end += (uint32_t)got;
    room->tokens -= (double)got;
    relay->stats.bytes += (uint64_t)got;
    return true;
}

/* What was read from `index` goes to its peer. False: the pair is over. */
static bool pass_on(struct aq_relay *relay, uint32_t index)
{
    struct relay_connection *c = &relay->connections[index];
    const int to = relay->connections[c->peer].fd;
    if (c->begin < c->end) {
        const ssize_t put = send(to, c->bytes + c->begin, c->end - c->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put == -1 && errno != EAGAIN && errno != EINTR) return false;
        if (put > 0) c->begin += (uint32_t)put;
    }
    if (c->begin == c->end) c->begin = c->end = 0;
    if (c->ended && c->end == 0 && !c->shut) {
        c->shut = true;
        if (shutdown(to, SHUT_WR) == -1) return false;
    }
    return !(c->shut && relay->connections[c->peer].shut);
}

static void carry(struct aq_relay *relay, uint32_t index, short events, uint64_t now_ns)
{
    const uint32_t peer = relay->connections[index].peer;
    bool good = !(events & (POLLERR | POLLNVAL));
    if (good && events & (POLLIN | POLLHUP)) good = read_some(relay, index, now_ns);
    if (good) good = pass_on(relay, index);
    if (good) good = pass_on(relay, peer);
    if (!good) relay_drop(relay, index, NULL);
}

/* ---- the loop ---- */

/* What to wait for of this connection; 0: nothing. *wake_ns: when it may be read again. */
static short wanted(struct aq_relay *relay, const struct relay_connection *c, uint64_t now_ns, uint64_t *wake_ns)
{
    if (c->state != RELAY_JOINED) return POLLIN;
    const struct relay_connection *peer = &relay->connections[c->peer];
    short events = peer->begin < peer->end ? POLLOUT : 0;
    if (c->ended || c->end == AQ_RELAY_BUFFER_BYTES) return events;
    if (budget(relay, &relay->rooms[c->room], now_ns) >= READ_BYTES_MIN) return events | POLLIN;
    if (now_ns + 1000000 < *wake_ns) *wake_ns = now_ns + 1000000;
    return events;
}

static void expire(struct aq_relay *relay, uint32_t index)
{
    struct relay_connection *c = &relay->connections[index];
    if (c->state == RELAY_CALLING) {
        uint8_t word[AQ_RELAY_WORD_BYTES];
        aq_relay_word_write(AQ_RELAY_NOBODY, word);
        (void)send(c->fd, word, sizeof word, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    relay_drop(relay, index, c->state == RELAY_HELLO ? "sent no hello in 10 s" : NULL);
}

struct poll_set {
    struct pollfd fds[AQ_RELAY_CONNECTIONS_MAX + 2];
    uint32_t index[AQ_RELAY_CONNECTIONS_MAX + 2];
    nfds_t count;
};

/* Drops what is over time, on the way. Returns when to look again. */
static uint64_t gather(struct aq_relay *relay, struct poll_set *set, uint64_t now_ns)
{
    uint64_t wake_ns = AQ_NEVER;
    set->count = 2;
    for (uint32_t i = 0; i < relay->config.connections; i++) {
        const struct relay_connection *c = &relay->connections[i];
        if (c->state == RELAY_FREE) continue;
        const bool timed = c->state == RELAY_HELLO || c->state == RELAY_CALLING;
        if (timed && now_ns >= c->deadline_ns) {
            expire(relay, i);
            continue;
        }
        if (timed && c->deadline_ns < wake_ns) wake_ns = c->deadline_ns;
        const short events = wanted(relay, c, now_ns, &wake_ns);
        if (events == 0) continue; /* else a hang-up would be reported for ever */
        set->index[set->count] = i;
        set->fds[set->count++] = (struct pollfd){.fd = c->fd, .events = events};
    }
    return wake_ns;
}

/* Each turn begins with another connection: the first one of a room finds the most of its budget. */
static void serve(struct aq_relay *relay, const struct poll_set *set)
{
    const uint64_t now_ns = aq_clock_ns();
    const nfds_t count = set->count - 2;
    relay->turn++;
    for (nfds_t k = 0; k < count; k++) {
        const nfds_t i = 2 + (relay->turn + k) % count;
        const struct relay_connection *c = &relay->connections[set->index[i]];
        /* Dropped with its peer in this turn, and perhaps another connection since. */
        if (set->fds[i].revents == 0 || c->state == RELAY_FREE || c->fd != set->fds[i].fd) continue;
        if (c->state == RELAY_JOINED)
            carry(relay, set->index[i], set->fds[i].revents, now_ns);
        else
            hear(relay, set->index[i]);
    }
}

enum aq_status aq_link_relay_run(struct aq_relay *relay, int stop_fd)
{
    struct poll_set set;
    uint64_t again_ns = 0;
    for (;;) {
        uint64_t now_ns = aq_clock_ns();
        uint64_t wake_ns = gather(relay, &set, now_ns);
        if (again_ns > now_ns && again_ns < wake_ns) wake_ns = again_ns;
        if (relay->lines.held > 0 && now_ns + PAUSE_NS < wake_ns) wake_ns = now_ns + PAUSE_NS;
        set.fds[0] = (struct pollfd){.fd = stop_fd, .events = POLLIN};
        set.fds[1] = (struct pollfd){.fd = again_ns > now_ns ? -1 : relay->fd, .events = POLLIN};
        const uint64_t ns = wake_ns > now_ns ? wake_ns - now_ns : 0;
        const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
        if (ppoll(set.fds, set.count, wake_ns == AQ_NEVER ? NULL : &left, NULL) == -1 && errno != EINTR)
            return aq_fail_errno("relay", "poll");
        if (set.fds[0].revents) return AQ_OK;
        serve(relay, &set);
        if (set.fds[1].revents && !let_in(relay)) again_ns = aq_clock_after(PAUSE_NS);
        aq_log_limit_tell(&relay->lines);
    }
}
