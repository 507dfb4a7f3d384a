/*
 * stripes.h -- several connections as one stream of bytes: one lost packet slows its own connection, not the link.
 *
 * What is written is cut into stripes, numbered in order; each goes to the connection with room over which it is there
 * first (its window, and what is in front of it; in turn where several are alike), behind a head of 16 bytes
 * (docs/FRAME.md, "Several streams"). The reader knows the head that each connection is at, takes the one that is due
 * and leaves the others where they are, in the kernel: without sums nothing is kept here. To the link it is one stream,
 * in order: frames, credits, digests and healing are as over one connection. When one connection is lost the stream is
 * lost, and the link makes all of them again.
 *
 * Sums: where both ends agreed on them (link.copies) stripes are of groups of up to AQ_GROUP_STRIPES, each on another
 * connection, and behind a group goes the exclusive or of its stripes over one that has none of them. A stripe that
 * does not come is made from the sum and the others. So a packet that is lost on one connection delays nothing; a
 * stripe that comes later is read and dropped. Only then are stripes kept here, those of one group at most. A sum whose
 * connections are all stalled is left out.
 *
 * Chosen (AQ_LINK_COPIES_AUTO), sums go for a minute after each loss of the way. A loss where packets wait in a queue
 * was a full queue, and sums would fill it further. Connections that exist only for sums (`spare`) carry nothing while
 * there are no sums. BBR paces each connection by the rate that it has seen, and bursts over five connections show each
 * of them a fifth (docs/DECISIONS.md 0490, 0921).
 *
 * Bytes that write has taken may still be here (stream.unsent): the next write sends them, also an empty one. Nothing
 * from the peer but heads is looked at: a head that is broken, a number that came before (without sums), a gap between
 * all numbers at hand, two lengths of one stripe, and an end that is not the end of all are AQ_CORRUPT or AQ_PROTO
 * (aq_byte_stream_refusal says why). Locking: as any stream.
 */
#ifndef NET_STRIPES_H
#define NET_STRIPES_H

#include "frame.h"
#include "net/link.h"
#include "transport.h"

/* What the ends agreed on. */
struct aq_stripes_config {
    uint64_t bundle;            /* of their handshake: it seeds the digests of heads */
    enum aq_link_copies copies; /* when this end sends sums; OFF: none come either   */
    bool spare;                 /* under BBR this end would have one connection if there were no sums */
};

/* parts[0 .. count) that are open, in the order of their numbers. Takes the parts, also on failure. AQ_NOMEM, AQ_IO
 * (no descriptors left); logged. */
enum aq_status aq_stripes_open(struct aq_byte_stream *const *parts, uint32_t count,
                               const struct aq_stripes_config *config, struct aq_byte_stream **out);

#endif
