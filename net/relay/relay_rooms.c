/*
 * relay_rooms.c -- who meets whom: one that waits in a room and one that calls into it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay_private.h"

enum { UNHEARD_MS = 300000 };
static const uint64_t CALL_NS = 5000000000u;

/* In a time that does not depend on where they differ: a stranger learns nothing of a room's name. */
static bool same_name(const uint8_t *a, const uint8_t *b)
{
    uint8_t differs = 0;
    for (int i = 0; i < AQ_RELAY_ROOM_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

/* A room of this name, or a free place that gets it. There are as many places as connections. */
static uint32_t find_room(struct aq_relay *relay, const uint8_t name[AQ_RELAY_ROOM_BYTES])
{
    uint32_t empty = relay->config.connections;
    for (uint32_t i = 0; i < relay->config.connections; i++) {
        struct relay_room *room = &relay->rooms[i];
        if (room->connections > 0 && same_name(room->name, name)) return i;
        if (room->connections == 0 && empty == relay->config.connections) empty = i;
    }
    AQ_ASSERT(empty < relay->config.connections);
    struct relay_room *room = &relay->rooms[empty];
    *room = (struct relay_room){.filled_ns = aq_clock_ns()};
    memcpy(room->name, name, AQ_RELAY_ROOM_BYTES);
    relay->stats.rooms++;
    return empty;
}

/* The connection has sent nothing since its hello, and its socket is empty: a word fits, or it is gone. */
static bool say(const struct relay_connection *c, enum aq_relay_word word)
{
    uint8_t bytes[AQ_RELAY_WORD_BYTES];
    aq_relay_word_write(word, bytes);
    return send(c->fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof bytes;
}

static void leave_room(struct aq_relay *relay, struct relay_connection *c)
{
    struct relay_room *room = &relay->rooms[c->room];
    room->waiting -= c->state == RELAY_WAITING;
    room->calling -= c->state == RELAY_CALLING;
    if (--room->connections == 0) relay->stats.rooms--;
}

static void close_one(struct aq_relay *relay, uint32_t index)
{
    struct relay_connection *c = &relay->connections[index];
    if (c->state > RELAY_HELLO) leave_room(relay, c);
    close(c->fd);
    aq_free(c->bytes);
    *c = (struct relay_connection){.fd = -1};
    relay->stats.connections--;
}

void relay_drop(struct aq_relay *relay, uint32_t index, const char *why)
{
    const struct relay_connection *c = &relay->connections[index];
    const bool joined = c->state == RELAY_JOINED;
    const uint32_t peer = c->peer;
    if (why) {
        relay->stats.refused++;
        aq_log_limited(&relay->lines, "relay", 1, "a connection was closed: it %s", why);
    }
    close_one(relay, index);
    if (!joined) return;
    close_one(relay, peer);
    relay->stats.pairs--;
}

/*
 * Of the room, in that state: the one that called first, or that began to wait last, since a NAT may have forgotten the
 * others. AQ_RELAY_CONNECTIONS_MAX: none.
 */
static uint32_t next_in(const struct aq_relay *relay, uint32_t room, enum relay_state state)
{
    uint32_t next = AQ_RELAY_CONNECTIONS_MAX;
    for (uint32_t i = 0; i < relay->config.connections; i++) {
        const struct relay_connection *c = &relay->connections[i];
        if (c->state != state || c->room != room) continue;
        if (next == AQ_RELAY_CONNECTIONS_MAX ||
            (c->since_ns < relay->connections[next].since_ns) == (state == RELAY_CALLING))
            next = i;
    }
    return next;
}

/* The kernel's own time for bytes that nobody acknowledges is 15 minutes. Keep-alive is off while there are such. */
static void give_up_unheard(int fd)
{
    const int unheard_ms = UNHEARD_MS;
    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard_ms, sizeof unheard_ms) == -1)
        aq_log("relay", 1, "TCP_USER_TIMEOUT of a connection was refused: %s", strerror(errno));
}

/* Both are told; one that cannot be told is gone, and the other one is closed, too: its end dials again. */
static void join(struct aq_relay *relay, uint32_t waits, uint32_t calls)
{
    struct relay_connection *pair[2] = {&relay->connections[waits], &relay->connections[calls]};
    struct relay_room *room = &relay->rooms[pair[0]->room];
    bool good = true;
    room->waiting--;
    room->calling--;
    for (int i = 0; i < 2; i++) {
        good &= AQ_NEW(AQ_RELAY_BUFFER_BYTES, &pair[i]->bytes) == AQ_OK;
        pair[i]->state = RELAY_JOINED;
        give_up_unheard(pair[i]->fd);
        pair[i]->peer = i ? waits : calls;
    }
    relay->stats.pairs++;
    for (int i = 0; i < 2; i++)
        good = good && say(pair[i], AQ_RELAY_JOINED);
    if (!good) relay_drop(relay, waits, "was gone when its peer came");
}

static void refuse(struct aq_relay *relay, uint32_t index, enum aq_relay_word word, const char *why)
{
    (void)say(&relay->connections[index], word);
    relay_drop(relay, index, why);
}

void relay_enter(struct aq_relay *relay, uint32_t index)
{
    struct relay_connection *c = &relay->connections[index];
    uint8_t name[AQ_RELAY_ROOM_BYTES];
    enum aq_relay_role role;
    if (!aq_relay_hello_read(c->hello, &role, name)) {
        relay_drop(relay, index, "sent no hello of a relay");
        return;
    }
    const bool waits = role == AQ_RELAY_WAITS;
    c->room = find_room(relay, name);
    c->state = waits ? RELAY_WAITING : RELAY_CALLING;
    c->since_ns = aq_clock_ns();
    c->deadline_ns = waits ? AQ_NEVER : c->since_ns + CALL_NS;
    struct relay_room *room = &relay->rooms[c->room];
    room->connections++;
    room->waiting += waits;
    room->calling += !waits;
    if (room->connections > AQ_RELAY_ROOM_CONNECTIONS || room->waiting > AQ_RELAY_ROOM_WAITING ||
        room->calling > AQ_RELAY_ROOM_CALLING) {
        refuse(relay, index, AQ_RELAY_FULL, "is one too many for its room");
        return;
    }
    if (waits && !say(c, AQ_RELAY_WAITING)) {
        relay_drop(relay, index, "was gone behind its hello");
        return;
    }
    const uint32_t other = next_in(relay, c->room, waits ? RELAY_CALLING : RELAY_WAITING);
    if (other < AQ_RELAY_CONNECTIONS_MAX) join(relay, waits ? index : other, waits ? other : index);
}
