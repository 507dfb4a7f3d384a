/*
 * wan_line.h -- one line of the wide-area lab: delay, rate and loss of packets from one end to another.
 *
 * A line is a queue, a transmitter with a rate, a wire with a delay, and a loss of packets at its end. A packet that
 * finds more in the queue than it holds is dropped (tail drop); so is one that is bigger than blackhole_bytes,
 * silently. A packet that is lost on the wire has used the transmitter before. Order is kept, by jitter too: it is a
 * delay that wanders, linear between random points, never steeper than a half.
 *
 * Segments. A kernel hands TCP over in runs of up to 64 kB (IFF_VNET_HDR with TSO), which a network would see as
 * packets of about the MTU. A line counts, paces, queues and loses those packets, one by one, and delivers arrived
 * packets in runs again: neighbours that are due within the line's tick are one write. That makes the lab cheap, and a
 * receiver's network card does the same with packets that come close together. Only IPv4 passes.
 *
 * Rates count IP packets, headers and all, without a frame around them: 1500 bytes bring 1448 of TCP (timestamps on).
 *
 * Locking: none; one thread. Time is given: nothing here reads a clock.
 */
#ifndef TOOLS_WAN_LINE_H
#define TOOLS_WAN_LINE_H

#include <linux/virtio_net.h>
#include <stdbool.h>

#include "aqsgd/base.h"

/* A packet of a TUN device, with the header of IFF_VNET_HDR before it: 64 kB of IP at most. */
enum { AQ_WAN_READ_BYTES = (int)sizeof(struct virtio_net_hdr) + 65536 };

struct aq_wan_rules {
    double rate_mbps;         /* 0: no limit                                          */
    double delay_ms;          /* one way                                              */
    double jitter_ms;         /* delay_ms plus and minus at most so much              */
    double loss;              /* of packets, 0 to 1                                   */
    double queue_ms;          /* what may wait, at the rate; < 0: 2 delay_ms, 50 or more */
    uint32_t blackhole_bytes; /* bigger packets vanish; 0: none does          */
};

struct aq_wan_counts {
    uint64_t packets, bytes; /* that were delivered                           */
    uint64_t lost, full, blackholed;
    uint64_t late_ns_max; /* a delivery against its time: the lab itself was late */
};

struct aq_wan_line {
    struct aq_wan_rules rules;
    struct aq_wan_counts counts;
    struct aq_rng_key key;
    uint64_t drawn;       /* random numbers so far                            */
    uint64_t free_ns;     /* when the transmitter has sent what is accepted   */
    uint64_t due_last_ns; /* nothing overtakes                                */
    struct aq_wan_packet *first, *last;
};

/* A line without limits. Numbers of losses and jitter are (seed, index)'s. */
void aq_wan_line_init(struct aq_wan_line *line, uint64_t seed, uint32_t index);
void aq_wan_line_deinit(struct aq_wan_line *line); /* drops packets under way */

/* The address that it goes to, host order; false: neither IPv4 nor whole. */
bool aq_wan_target(const uint8_t *bytes, size_t count, uint32_t *address);

/*
 * A packet enters the line. bytes: struct virtio_net_hdr and the packet, borrowed. AQ_PROTO (not logged): no IPv4
 * packet that this file understands; it is dropped. AQ_NOMEM.
 */
enum aq_status aq_wan_line_offer(struct aq_wan_line *line, uint64_t now_ns, const uint8_t *bytes, size_t count);

/* When aq_wan_line_deliver has something to do next; AQ_NEVER. */
uint64_t aq_wan_line_wake_ns(const struct aq_wan_line *line);

/* Write to the TUN device `fd` what is due; a device that is down loses it. AQ_IO (logged): it is not taken. */
enum aq_status aq_wan_line_deliver(struct aq_wan_line *line, uint64_t now_ns, int fd);

#endif
