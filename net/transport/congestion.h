/*
 * congestion.h -- the congestion control of a link's sockets (link.congestion).
 *
 * CUBIC and Reno take every lost packet for a full queue: at 80 ms and one packet lost in a thousand a connection has a
 * window of about 40 packets, 7 to 11 Mbit/s of 100. BBR goes by the rate that arrives and the round trip, and keeps
 * both over an idle time (net.ipv4.tcp_slow_start_after_idle is not for it). `auto` takes it for peers that are far,
 * where the kernel lets this process; near ones keep the kernel's default, which loses nothing there. Both ends choose
 * for what they send. A new connection (healing) chooses again. Locking: any thread.
 */
#ifndef NET_CONGESTION_H
#define NET_CONGESTION_H

#include <stdatomic.h>

#include "transport.h"

/* May this process have it? "" and "auto": yes. AQ_INVAL, logged with what would allow it. */
enum aq_status aq_congestion_check(const char *name);

/* For an open stream. told: set once the line is printed that names what would allow BBR to `auto`. */
void aq_congestion_choose(struct aq_byte_stream *stream, const char *name, atomic_bool *told);

/* Does a queue on the way hold so many packets that a loss now is one of a full queue? */
bool aq_path_full(const struct aq_path *path);

/*
 * A limit on the rate of a connection whose congestion control overflows a queue on the way. It starts at the estimate
 * of the bottleneck when packets are lost while the queue is full. It grows by 5 % per second without such losses, and
 * ends at three times the estimate, which is more than BBR's startup sends.
 */
struct aq_rate_limit {
    double bytes_per_s; /* 0: none */
    uint64_t again_bytes, since_ns;
};

/* again_bytes: sent again so far; bottleneck: bytes per second, 0: unknown. Returns whether the limit changed. */
bool aq_rate_limit_update(struct aq_rate_limit *limit, const struct aq_path *path, uint64_t again_bytes,
                          double bottleneck, uint64_t now_ns);

#endif
