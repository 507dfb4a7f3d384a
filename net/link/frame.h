/*
 * frame.h -- the frame header and the handshake's body as bytes: docs/FRAME.md in C.
 *
 * Encoding and decoding are explicit, byte by byte, so that the wire is little-endian on every machine. Decoding checks
 * what can be checked without knowing the link: magic, version, digest, reserved bytes, kind. reader.c checks the rest.
 * Locking: pure functions.
 */
#ifndef NET_FRAME_H
#define NET_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_FRAME_VERSION = 1,
    AQ_FRAME_HEADER_BYTES = 128,
    AQ_FRAME_DIGEST_OFFSET = 120, /* the header digest covers all before it                     */
    AQ_FRAME_HELLO_BYTES = 96,
    AQ_FRAME_CONTROL_BYTES_MAX = 1024, /* body of a kind 1..15: one line of text and a little      */
    AQ_FRAME_KIND_RUNTIME = 16,        /* first and last kind that belong to the runtime             */
    AQ_FRAME_KIND_LAST = 31,
    AQ_FRAME_ABORT_TEXT_MAX = 500, /* bytes of text in an ABORT that we send                    */
    AQ_FEATURE_HEAL = 1,           /* the bits of features in a HELLO                            */
    AQ_FEATURE_PACK = 2,
    AQ_FEATURE_PARTS = 4,
    AQ_FEATURE_STREAMS = 8,
    AQ_FEATURE_COPIES = 32,     /* sums of stripes. 16 was copies of them */
    AQ_LINK_FLAG_PACKED = 1,    /* the bit of link_flags                                      */
    AQ_FRAME_PART_BYTES = 1024, /* of a body in parts: the least that one may have            */
    AQ_FRAME_GAP_BYTES = 24,
    AQ_FRAME_GAP_DIGEST_OFFSET = 16,
    AQ_GAP_FLAG_CUT = 1, /* the bit of a gap's flags                                   */
    AQ_STRIPE_HEAD_BYTES = 16,
    AQ_SUM_HEAD_BYTES = 2,
    AQ_STRIPE_BYTES = 4304, /* of those we send: a sum with heads, TLS's too, is three segments, which any window has */
    AQ_STRIPE_BYTES_MAX = 14320 /* with its head and that of TLS: the first ten segments of a connection */
};

struct aq_header {
    uint16_t version; /* filled by decode; encode writes ours */
    uint16_t kind;
    uint16_t flags;
    uint32_t body_bytes; /* on the wire */
    uint32_t from;
    uint32_t edge;
    uint64_t plan_hash;
    uint64_t sequence;
    uint64_t acknowledge;
    uint32_t credit;
    uint32_t micro_batch;
    uint64_t step;
    uint64_t argument;
    uint64_t body_digest;
    uint32_t raw_bytes;  /* of a packed body: when it is unpacked; 0: it is not packed    */
    uint32_t part_bytes; /* of a body in parts: bytes between two gaps; 0: it comes as a whole */
};

struct aq_gap { /* what passes a body, between two parts of it */
    uint64_t acknowledge;
    uint32_t credit;
    bool cut; /* the rest of the body does not come, but an ABORT */
};

struct aq_stripe { /* a head between the connections of a link (stripes.h) */
    uint64_t number;
    uint32_t bytes; /* 0: the end of this direction, after `number` stripes */
    uint8_t place;  /* in its group, from 0 */
    uint8_t sum;    /* 0: a stripe; else the sum of that many, the last of them `number` */
};

struct aq_hello {
    uint64_t job_digest;
    uint64_t plan_hash;
    uint32_t rank;
    uint32_t peer_rank;
    uint32_t edge;
    uint32_t body_bytes_max;
    uint32_t receive_slots;
    uint32_t features;
    uint64_t session;         /* 0: new, or does not heal           */
    uint64_t resume_sequence; /* 0: new; else the link resumes here */
    uint32_t streams;         /* with AQ_FEATURE_STREAMS: wished for, promised, or there are; else 0 */
    uint32_t stream;          /* number of this connection among them */
    uint64_t bundle;          /* their name, from the listener; 0: none yet */
};

enum { AQ_TEXT_BYTES = 512 }; /* one line with the reason why a link ended */

void aq_header_encode(const struct aq_header *header, uint8_t out[AQ_FRAME_HEADER_BYTES]);

/* Bytes that cannot start a header of aqpipe: looks at the first four at most. text describes what came instead. */
enum aq_status aq_header_sniff(const uint8_t *bytes, size_t count, char text[AQ_TEXT_BYTES]);

/* AQ_PROTO, AQ_MISMATCH, AQ_CORRUPT as in FRAME.md, with the reason in text. Never logs. */
enum aq_status aq_header_decode(const uint8_t bytes[AQ_FRAME_HEADER_BYTES], struct aq_header *out,
                                char text[AQ_TEXT_BYTES]);

/* sequence: of the frame that the gap is in. Decoding: AQ_CORRUPT, AQ_PROTO. */
void aq_gap_encode(const struct aq_gap *gap, uint64_t sequence, uint8_t out[AQ_FRAME_GAP_BYTES]);
enum aq_status aq_gap_decode(const uint8_t bytes[AQ_FRAME_GAP_BYTES], uint64_t sequence, struct aq_gap *out,
                             char text[AQ_TEXT_BYTES]);
/* Number of gaps in a body of that size; part_bytes 0: none. */
static inline uint32_t aq_gap_count(uint32_t body_bytes, uint32_t part_bytes)
{
    return part_bytes > 0 ? (body_bytes - 1) / part_bytes : 0;
}

/* bundle: of the connections. Decoding: AQ_CORRUPT, AQ_PROTO. */
void aq_stripe_encode(const struct aq_stripe *stripe, uint64_t bundle, uint8_t out[AQ_STRIPE_HEAD_BYTES]);
enum aq_status aq_stripe_decode(const uint8_t bytes[AQ_STRIPE_HEAD_BYTES], uint64_t bundle, struct aq_stripe *out,
                                char text[AQ_TEXT_BYTES]);

void aq_hello_encode(const struct aq_hello *hello, uint8_t out[AQ_FRAME_HELLO_BYTES]);
enum aq_status aq_hello_decode(const uint8_t bytes[AQ_FRAME_HELLO_BYTES], struct aq_hello *out,
                               char text[AQ_TEXT_BYTES]);

/* The body of an ABORT; returns its bytes. */
uint32_t aq_abort_encode(enum aq_status cause, const char *text, uint8_t out[AQ_FRAME_CONTROL_BYTES_MAX]);
/* Any bytes give a status and a printable line. */
enum aq_status aq_abort_decode(const uint8_t *body, uint32_t body_bytes, char text[AQ_TEXT_BYTES]);

/* "FORWARD", "BYE", ...: for logs and traces; a string literal. */
const char *aq_frame_kind_text(uint16_t kind);

#endif
