/*
 * relay.h -- a relay: two ends of a link that both dial (they are behind NAT) meet in a room of it, and it carries
 * their bytes. `aqpiped --relay` is its only user.
 *
 *     aq_link_relay_open(&config, &relay, &port);
 *     aq_link_relay_run(relay, stop_fd);            until stop_fd is readable
 *     aq_link_relay_close(relay);
 *
 * Caveats first.
 * - It knows no keys: the two ends run TLS, and only ciphertext passes here. Its operator sees addresses, times and
 *   sizes, and can cut.
 * - Everyone who reaches its port can use it, within the bounds below: let a firewall choose.
 * - A room is 16 random bytes, a secret of its users: a stranger cannot enter it. It exists while it has a connection.
 *   No log has its name.
 *
 * The bounds are fixed when it opens. They are: connections in all, half of them from one source (aq_admit). Of a room:
 * connections, and bytes per second over all of them. 64 KB of buffer per direction of a pair. 10 s for a hello, 5 s
 * for a caller to find a waiting end. A slow reader stops only its writer.
 *
 * Locking: one thread.
 */
#ifndef NET_RELAY_H
#define NET_RELAY_H

#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_relay; /* opaque */

enum { AQ_RELAY_CONNECTIONS_MAX = 1024, AQ_RELAY_RATE_MBPS = 1000 };

struct aq_relay_config {
    const char *listen;   /* host:port; port 0: the system chooses */
    double rate_mbps;     /* of a room; 0: no bound */
    uint32_t connections; /* 2 to AQ_RELAY_CONNECTIONS_MAX */
};

struct aq_relay_stats {
    uint64_t bytes; /* carried */
    uint32_t connections, rooms, pairs;
    uint64_t refused; /* connections that were closed for a bound, or for what they said */
};

/* Listens. AQ_INVAL, AQ_NOTFOUND, AQ_REFUSED (in use), AQ_NOMEM: logged. */
enum aq_status aq_link_relay_open(const struct aq_relay_config *config, struct aq_relay **out, uint16_t *port);
/* AQ_OK: stop_fd is readable. AQ_IO: logged. */
enum aq_status aq_link_relay_run(struct aq_relay *relay, int stop_fd);
void aq_link_relay_stats(const struct aq_relay *relay, struct aq_relay_stats *out); /* not while it runs */
void aq_link_relay_close(struct aq_relay *relay);                                   /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
