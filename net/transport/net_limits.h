/*
 * net_limits.h -- the bounds of this room, each with the reason for its size. (A plain limits.h would hide the
 * system's.)
 */
#ifndef NET_NET_LIMITS_H
#define NET_NET_LIMITS_H

#include <stdint.h>

enum {
    AQ_LINK_SEND_FRAMES_MAX = 4096, /* a ring has 65536 places; 4096 frames, slots and records each leave room   */
    AQ_LINK_RECEIVE_SLOTS_MAX = 4096,
    AQ_LINK_EMPTY_FRAMES = 64,        /* frames without a body that may wait for the caller; then TCP pushes back  */
    AQ_LINK_BATCH = 8,                /* frames that are encoded ahead of the socket: small ones leave in one call */
    AQ_LINK_CHUNK_BYTES = 256 << 10,  /* bytes of one send: 0.1 ms of one core, then the next link has its turn    */
    AQ_LINK_CHUNK_BYTES_MIN = 2896,   /* of a slow paced link: two segments, so that its first ten leave no burst  */
    AQ_LINK_PART_BYTES_MIN = 8 << 10, /* of a part where no rate is declared: 0.3 % are gaps                       */
    AQ_LINK_TURNS = 8,                /* reads or writes of a stream without its own socket, then the next         */
    AQ_LINK_BODY_BYTES_MAX = 1 << 30, /* header and body still count in 32 bits                                   */
    AQ_PACK_BYTES_MIN = 512,          /* of a body that is worth packing: a Huffman table takes about 100 bytes    */
    AQ_PACK_BYTES_MAX = 8 << 20,      /* of a body that is packed: it keeps the loop for 8 ms, and buffers small   */
    AQ_PACK_PAUSE = 64,               /* frames of a kind that does not pack, between two trials                   */
    AQ_PACK_RATE_MBPS = 200,          /* what a link of no declared rate to another machine is taken for           */
    AQ_PACK_RATE_MBPS_MAX = 1000,     /* `auto` packs up to here: beyond, the coders hardly keep up                */
    AQ_NET_LINKS_MAX = 1024,
    AQ_NET_REAP = 64,    /* completions looked at between two sleeps                                  */
    AQ_HANDSHAKES = 256, /* peers of a listener between accept and their link: 256 come back after one blip, and half a
                            megabyte; who goes when there are more is aqsgd/base/admission.h's to say          */
    AQ_LINK_STREAMS_MAX = 16,          /* connections of a link: 16 of Reno fill 90 Mbit/s at 80 ms and 0.1 % loss */
    AQ_STREAM_WINDOW_BYTES = 24 << 10, /* of Reno or CUBIC at 0.5 % loss: 17 segments                     */
    AQ_GROUP_STRIPES = 4,              /* that we send with a sum: a quarter more bytes                       */
    AQ_GROUP_STRIPES_MAX = 15,         /* that have one sum: each over another connection, and the sum over one */
    AQ_SIM_CHUNKS = 4096               /* writes under way in one direction of a sim stream                         */
};

/* The largest body that may go packed, by the largest body of the link. */
static inline uint32_t aq_packed_bytes_max(uint32_t body_bytes_max)
{
    return body_bytes_max < AQ_PACK_BYTES_MAX ? body_bytes_max : AQ_PACK_BYTES_MAX;
}
/* The least saving for which `auto` packs. */
#define AQ_PACK_SHARE_MIN 0.03
/* Of what is measured where no rate is declared: each new value's weight in the mean; the packing end's part of what
 * both ends' coders take; and how much slower than AQ_LINK_PACK_BYTE_NS a trial counts at most. */
#define AQ_PACK_MEAN_SHARE 0.125
#define AQ_PACK_OWN_SHARE  0.6
#define AQ_PACK_SLOWER_MAX 8
/* Between two gaps of a body (docs/FRAME.md): what waits in them waits so long, and they are 0.4 % at 10 Mbit/s. */
#define AQ_LINK_PART_NS 5e6
/* A peer with a round trip of so much is far: nearer ones get through a loss, or a slow start, in less than a step. */
#define AQ_FAR_NS UINT64_C(5000000)
/* Of a connection that is tried after one over which nothing came: below what tunnels leave of 1280 (docs/DECISIONS.md
 * 0145). */
#define AQ_SEGMENT_SMALL_BYTES 1000
/* How far a paced link of several streams may run ahead of its pace, so that the kernel can send meanwhile. */
#define AQ_STRIPES_AHEAD_NS UINT64_C(5000000)
/* Bytes of stripes that came before which one read drops, and leaves the loop to others. */
#define AQ_STRIPES_DROP_BYTES (1u << 20)
/* Sums of stripes, where they are chosen: how often losses are asked for, and how long one is remembered. */
#define AQ_COPIES_LOOK_NS UINT64_C(50000000)
#define AQ_COPIES_KEEP_NS UINT64_C(60000000000)
/* A loss is a queue's that was full, not the way's, where packets wait for more than half a round trip, and so long. */
#define AQ_QUEUE_FULL_NS UINT64_C(10000000)
/* TCP finds such a loss a round trip later or more, when the queue may be short again. */
#define AQ_QUEUE_KEEP_NS UINT64_C(250000000)
/* The limit on a rate that overflows a queue (struct aq_rate_limit): at least 1 Mbit/s, in bytes per second; how often
 * it grows, and by how much; and where it ends, in estimates of the bottleneck (BBR's startup sends 2.9 times that). */
#define AQ_RATE_LIMIT_MIN    125e3
#define AQ_RATE_LIMIT_NS     UINT64_C(1000000000)
#define AQ_RATE_LIMIT_GROWTH 1.05
#define AQ_RATE_LIMIT_OFF    3
/* A peer has 10 s for its HELLO; 1 s less where it is kept for another accept: so it still hears the reason. */
#define AQ_HANDSHAKE_NS        UINT64_C(10000000000)
#define AQ_HANDSHAKE_SOONER_NS UINT64_C(1000000000)
/* Refusals of a listener that were not logged one by one are counted, and logged after this time at most. */
#define AQ_REFUSALS_NS UINT64_C(10000000000)
/* An ended link waits 1 s for the peer to hang up, so that the last frame is not lost to a reset. */
#define AQ_LINGER_NS UINT64_C(1000000000)
/* Between two tries to connect: 10 ms, doubling to 0.5 s. */
#define AQ_BACK_OFF_NS_MIN UINT64_C(10000000)
#define AQ_BACK_OFF_NS_MAX UINT64_C(500000000)
/* A wait for a peer asks its caller that often whether it is still of use (aq_link_config, meanwhile). */
#define AQ_MEANWHILE_NS UINT64_C(20000000)
/* A peer that has sent BYE but not yet acknowledged ours may come back for this time; then it had nothing more to
 * send. */
#define AQ_FAREWELL_NS UINT64_C(5000000000)
/* The loop gives a link back at once; not in 60 s is our bug. */
#define AQ_DETACH_NS UINT64_C(60000000000)

#endif
