/*
 * relay_private.h -- a relay's tables: connections, and the rooms that they are in. relay.c has the loop and the bytes,
 * relay_rooms.c who meets whom.
 */
#ifndef NET_RELAY_PRIVATE_H
#define NET_RELAY_PRIVATE_H

#include <stdbool.h>

#include "net/relay.h"
#include "relay_words.h"
#include "transport.h"

enum {
    AQ_RELAY_ROOM_WAITING = 16,      /* of a room: connections that wait, */
    AQ_RELAY_ROOM_CALLING = 64,      /* that call */
    AQ_RELAY_ROOM_CONNECTIONS = 512, /* and in all, two of each stream: 15 links of 16 streams, and those that wait */
    AQ_RELAY_BUFFER_BYTES = 64 << 10
};

enum relay_state { RELAY_FREE = 0, RELAY_HELLO, RELAY_WAITING, RELAY_CALLING, RELAY_JOINED };

struct relay_room {
    uint8_t name[AQ_RELAY_ROOM_BYTES];
    uint32_t connections; /* 0: the place is free */
    uint32_t waiting, calling;
    double tokens; /* bytes that it may carry now */
    uint64_t filled_ns;
};

struct relay_connection {
    enum relay_state state;
    int fd;
    uint64_t source, since_ns, deadline_ns; /* deadline: of RELAY_HELLO and RELAY_CALLING */
    uint8_t hello[AQ_RELAY_HELLO_BYTES];
    uint32_t hello_have;
    uint32_t room, peer; /* indexes; peer of RELAY_JOINED */
    uint8_t *bytes;      /* read from it, on their way to its peer: [begin, end) */
    uint32_t begin, end;
    bool ended, shut; /* it sends no more; its peer was told so */
};

struct aq_relay {
    struct aq_relay_config config;
    struct aq_acceptor acceptor; /* of tcp: only its socket is used */
    int fd;
    struct relay_connection *connections;
    struct relay_room *rooms; /* as many */
    struct aq_log_limit lines;
    struct aq_relay_stats stats;
    uint32_t turn; /* of the loop */
};

/* The connection's hello is whole: it waits, is joined, or is closed. */
void relay_enter(struct aq_relay *relay, uint32_t index);
/* And its peer, where it has one. why: for the log; NULL: nothing was wrong. */
void relay_drop(struct aq_relay *relay, uint32_t index, const char *why);

#endif
