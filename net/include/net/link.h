/*
 * link.h -- a link: one framed, ordered, checked, flow-controlled connection between two ranks.
 *
 * Caveats first.
 * - A net object owns one thread (the net loop: fds, io_uring) that does all input and output. Nothing here calls back:
 *   the caller polls at its own pace and sleeps on the event count it gave.
 * - aq_link_send *lends* the body until the AQ_LINK_SENT event with its token comes: when the system has taken it, or,
 *   for a link that heals, when the peer has acknowledged it.
 * - A received body is memory of the link's receive pool: give it back (aq_link_release), or the peer runs out of
 *   credits. One credit is one frame with a body; the peer may send as many as there are free receive slots. Frames
 *   without a body need no credit.
 * - Bytes from the peer never reach an assertion: anything wrong closes the link with AQ_PROTO or AQ_CORRUPT and a
 *   text.
 *
 * Bodies may go over the wire packed (entropy): the user at both ends sees them as they were given.
 *
 * With outage_ns_max a lost connection is made again by the side that connected, and what the peer had not received is
 * sent again, in order, once: the caller only sees a delay. The link ends with AQ_TIMEOUT when an outage is longer.
 *
 * The handshake (HELLO both ways) carries protocol version, job digest, plan hash, rank and edge; a peer that differs
 * is refused with a text that names both sides' values (AQ_MISMATCH). Every frame has a header with its own checksum, a
 * sequence number, and a checksum of the body; the layout is docs/FRAME.md.
 *
 * Addresses: "tcp://host:port", "sim://name?rate_mbps=100&latency_ms=5" (in this process; both optional), each also as
 * "fault+tcp://host:port?seed=1&split=7" (tests; net/transport/transport_fault.c lists what can go wrong).
 * "tcp://host:port?segment=536": packets of at most that size, both ways, for a link that connects.
 * "tls+tcp://host:port?peer=2" is under mutual TLS 1.3: the other end must hold the certificate of stage 2 of this job
 * (without peer: of the rank in its HELLO). A peer that does not is refused with AQ_TLSERR.
 *
 * Environment: AQ_NET_ENGINE=uring or poll forces how the loop waits; without it io_uring is taken where it is
 * permitted, and poll() where it is not (logged).
 *
 *     aq_net_open(&net_config, &net);
 *     aq_link_connect(net, "tcp://127.0.0.1:7001", &config, deadline, &link);
 *     aq_link_send(link, &frame, token);
 *     while (aq_link_poll(link, &event) == AQ_OK) ...
 *
 * Locking: all calls of one net object and its links from one thread. Send, poll and release of some links may move to
 * another thread, and back, where the two order it by themselves (group_background.h).
 */
#ifndef NET_LINK_H
#define NET_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aq_net;      /* opaque: the loop                  */
struct aq_link;     /* opaque                            */
struct aq_listener; /* opaque                            */

struct aq_net_config {
    struct aq_eventcount *eventcount; /* notified at every event; may be NULL */
    struct aq_trace *trace; /* lanes "send" and "recv"; may be NULL */
    uint32_t links_max;     /* links and listeners together     */
    struct aq_tls *tls;     /* who we are in "tls+" addresses (net/tls.h); the caller's. NULL: there are none */
};
enum aq_status aq_net_open(const struct aq_net_config *config, struct aq_net **out);
void aq_net_close(struct aq_net *net); /* closes what is left, hard. NULL is fine */

/* Bodies that get smaller by it are sent packed, without loss; both ends must have AUTO or ZSTD (net/link/packer.h). */
enum aq_link_entropy {
    AQ_LINK_ENTROPY_OFF = 0,
    AQ_LINK_ENTROPY_AUTO = 1, /* where it saves more than it costs: packer.h has the rule */
    AQ_LINK_ENTROPY_ZSTD = 2  /* every body is tried                                     */
};

#define AQ_LINK_RATE_MBPS_MIN 0.01 /* the kernel paces no slower */
enum { AQ_LINK_CONGESTION_BYTES = 16 }; /* the kernel's names have 15 letters at most */

/* Parts of bodies over two connections each: AUTO, where packets are lost and the link has room for them; ON, where it
 * has room. */
enum aq_link_copies {
    AQ_LINK_COPIES_AUTO = 0,
    AQ_LINK_COPIES_OFF = 1,
    AQ_LINK_COPIES_ON = 2
};

struct aq_link_config {
    uint64_t job_digest; /* identity of the job; both ends must agree */
    uint64_t plan_hash;
    uint32_t rank;      /* mine                                                              */
    uint32_t peer_rank; /* whom I expect; UINT32_MAX: anybody of the job                     */
    uint32_t edge;      /* number of the edge; UINT32_MAX: none                              */
    uint32_t body_bytes_max;
    uint32_t send_frames;   /* frames that may be queued by the caller at once           */
    uint32_t receive_slots; /* buffers of body_bytes_max: the peer's credits             */
    double rate_mbps;       /* pace my sending to this many 10^6 bit/s of headers and bodies; 0: do not */
    /* Congestion control of my sockets by the kernel's name ("cubic"); "auto": bbr to peers that are far, where this
     * process may have it; "": the kernel's default. AQ_INVAL of accept and connect where it may not. */
    char congestion[AQ_LINK_CONGESTION_BYTES];
    uint32_t streams;      /* connections, 1 to 16; 0: one to near peers; under BBR one, and four for sums; else by
                            * rate and round trip. The larger number of both ends; one where either asks for one */
    enum aq_link_copies copies; /* over several streams; off where either end has it off */
    uint64_t heartbeat_ns; /* silent for so long: send a PING; 0: none                  */
    uint64_t silence_ns_max; /* nothing received for so long: the link is dead; 0: never  */
    enum aq_link_entropy entropy;
    uint64_t outage_ns_max; /* a lost connection is made again within this; 0: it ends the link. Both ends must heal */
    struct aq_pages pages;  /* where its memory comes from, received bodies among it; zeroed: plain memory */
    uint64_t path_every_ns; /* how often path_bytes and again_bytes of its stats are asked for; 0: never */
    /* Asked now and then while accept or connect waits, in the caller's thread: all but AQ_AGAIN ends the wait, and is
     * its status. NULL: none. */
    enum aq_status (*meanwhile)(void *context);
    void *context;
};
void aq_link_config_default(struct aq_link_config *out);

/* May this process have that congestion control? "" and "auto": yes. AQ_INVAL, logged with what would allow it. */
enum aq_status aq_link_congestion_check(const char *name);

/* Frame kinds of the data plane; numbers are for ever (docs/FRAME.md). The link itself uses 1..15. */
enum aq_frame_kind {
    AQ_FRAME_HELLO = 1,
    AQ_FRAME_CREDIT = 2,
    AQ_FRAME_PING = 3,
    AQ_FRAME_BYE = 4,   /* in good order: no frame of the runtime comes after it              */
    AQ_FRAME_ABORT = 5, /* body: status and text of the first cause (aq_link_abort)          */
    AQ_FRAME_PONG = 6,
    AQ_FRAME_FORWARD = 16,  /* activations of one micro-batch                                */
    AQ_FRAME_BACKWARD = 17, /* gradients of one micro-batch                                  */
    AQ_FRAME_NORM = 18,     /* partial sums of the gradient norm, or the total               */
    AQ_FRAME_EVAL = 19,     /* activations of held-out samples                               */
    AQ_FRAME_FETCH = 20,    /* asks the other side for one message m                         */
    AQ_FRAME_MESSAGE = 21,  /* answers it                                                    */
    AQ_FRAME_CONTROL = 22,  /* runtime's own: results of a step, stop, mark                  */
    AQ_FRAME_CHUNK = 23,    /* collectives                                                   */
    AQ_FRAME_MIRROR = 24,   /* copies of checkpoints at a neighbour (runtime/checkpoint/mirror.h)       */
    AQ_FRAME_PROBE = 25,    /* measuring a network before there is a job (runtime/rank/probe_session.h) */
    AQ_FRAME_SHARED = 26,   /* gradients of tensors that several stages have copies of                  */
    AQ_FRAME_KEY = 27       /* the key of a sealed cache (runtime/edge/channel/edge_key.h)                      */
};

struct aq_frame {
    uint16_t kind;
    uint16_t flags; /* the runtime's own                                               */
    uint32_t micro_batch;
    uint64_t step;
    uint64_t argument;   /* the runtime's own                                               */
    uint32_t body_bytes; /* 0: none                                                         */
    const void *body;
};

/* Port 0 lets the system choose; *port gets the real one. AQ_REFUSED: in use (logs the address), AQ_INVAL: address. */
enum aq_status aq_link_listen(struct aq_net *net, const char *address, struct aq_listener **out, uint16_t *port);

/*
 * NULL is fine. Links that heal keep the listener's address open until the last of them is closed, only for their own
 * peers; while the caller has the listener they cannot heal, so close it as soon as all links have been accepted, or
 * let it rest (aq_listener_rest).
 */
void aq_listener_close(struct aq_listener *listener);

/*
 * No link is accepted for a while: those that were made here, and heal, do so meanwhile. New peers of this job wait as
 * long as a handshake may take, and come again. Ends by itself with the next aq_link_accept, or aq_listener_close.
 * Does nothing where no link of it heals. AQ_NOMEM, AQ_IO: no thread.
 */
enum aq_status aq_listener_rest(struct aq_listener *listener);

/*
 * One link from the next peer that passes the handshake; peers that do not are refused one by one and logged, and the
 * wait continues. Blocks until the deadline: AQ_TIMEOUT. Slow-loris peers are bounded: a handshake has 10 s, and peers
 * that have not proved who they are are dropped when there are too many (aqsgd/base/admission.h).
 */
enum aq_status aq_link_accept(struct aq_listener *listener, const struct aq_link_config *config, uint64_t deadline_ns,
                              struct aq_link **out);

/* Tries again with back-off while no program listens there, until the deadline. AQ_TIMEOUT, AQ_MISMATCH, AQ_PROTO,
 * AQ_TLSERR, AQ_INVAL. */
enum aq_status aq_link_connect(struct aq_net *net, const char *address, const struct aq_link_config *config,
                               uint64_t deadline_ns, struct aq_link **out);

/*
 * The first half of close: nothing moves on it any more, and no body that was lent is read or written after this
 * returns. For whoever has to free lent memory first, and still has bodies to release. NULL is fine, twice too.
 */
void aq_link_halt(struct aq_link *link);
/* Hard: whatever is queued is dropped. NULL is fine. */
void aq_link_close(struct aq_link *link);

/* In good order: everything queued is sent, then BYE; wait for the peer's BYE or the deadline. Frames received
 * meanwhile are dropped, SENT events too: every lent body is back when this returns AQ_OK. AQ_TIMEOUT, or why the link
 * ended. The link must still be closed. A peer whose BYE came first gets ours by itself, when what was queued has
 * gone out. */
enum aq_status aq_link_finish(struct aq_link *link, uint64_t deadline_ns);

/* Tell the peer why this rank gives up: what is being sent is finished (a large body is cut at its next gap), what is
 * queued is dropped, ABORT(status, text) goes out; returns when the peer has hung up or at the deadline (AQ_TIMEOUT).
 * The link must still be closed. */
enum aq_status aq_link_abort(struct aq_link *link, enum aq_status cause, const char *text, uint64_t deadline_ns);

/* Rank of the peer (from its HELLO), and its address for people's eyes (borrowed until aq_link_close). */
uint32_t aq_link_peer_rank(const struct aq_link *link);
const char *aq_link_peer_name(const struct aq_link *link);

/*
 * Queue a frame of kind 16..31; body lent until AQ_LINK_SENT with this token, or until AQ_LINK_CLOSED, which gives back
 * whatever had not been sent. AQ_AGAIN: send_frames are queued already (SENT events not yet polled count).
 * AQ_INVAL: body_bytes > body_bytes_max of either end, or a kind of the link's own. After the link has ended: its
 * status.
 */
enum aq_status aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token);

enum aq_link_event_kind { AQ_LINK_RECEIVED = 1, AQ_LINK_SENT = 2, AQ_LINK_CLOSED = 3 };

struct aq_link_event {
    enum aq_link_event_kind kind;
    struct aq_frame frame; /* RECEIVED; a body is borrowed until aq_link_release                            */
    uint64_t token;        /* SENT                                                                         */
    enum aq_status status; /* CLOSED: AQ_CLOSED after the peer's BYE, AQ_ABORTED after its ABORT, else why   */
    const char *text;      /* CLOSED: one line; borrowed until aq_link_close                                */
};

/* The next event, or AQ_AGAIN. CLOSED comes once, last, after everything received before it. */
enum aq_status aq_link_poll(struct aq_link *link, struct aq_link_event *out);

/* Give a received body back: its slot becomes a credit of the peer. Another body asserts. */
void aq_link_release(struct aq_link *link, const void *body);

enum { AQ_LINK_KINDS = 16 }; /* of the runtime: 16 to 31 */
struct aq_link_bytes {
    uint64_t body;   /* as the caller gave them                         */
    uint64_t packed; /* as they went out: packed, or as they are        */
};

struct aq_link_stats {
    uint64_t sent_frames, sent_body_bytes, sent_wire_bytes;
    uint64_t received_frames, received_body_bytes, received_wire_bytes;
    uint64_t sent_packed_bytes;                     /* the same bodies as they went out: packed, or as they are  */
    struct aq_link_bytes sent_kinds[AQ_LINK_KINDS]; /* the same, by kind - 16                     */
    uint64_t received_packed_bytes;                 /* and as they came                                          */
    uint64_t packing_ns;                            /* time that the loop has spent on packing and unpacking      */
    uint64_t busy_ns;         /* time with bytes queued or on their way out                      */
    uint64_t credit_wait_ns;  /* time with a frame at the head of the queue and no credit        */
    uint64_t receive_ns;      /* time in the midst of a frame with a body that is coming in      */
    uint64_t round_trip_ns;   /* of the last PING                                                */
    uint64_t path_ns;         /* round trip of the first connection, as its transport knew it; 0: it did not */
    uint64_t path_bytes;      /* that the transport has sent, when it was last asked (path_every_ns)    */
    uint64_t delivered_bytes; /* that the peer's has, behind a gap or not; in packets, at most          */
    uint64_t again_bytes;     /* of what was sent: again, because it was lost                           */
    uint64_t path_asked_ns;   /* when that was; 0: never                                                */
    uint32_t segment_bytes;   /* of the transport's largest packets, when the link was made; 0: it has none */
    uint32_t streams;         /* connections                                                            */
    char congestion[AQ_LINK_CONGESTION_BYTES]; /* of the first connection when the link was made; "": none */
    uint64_t heals;                            /* how often the connection was made again                         */
    uint64_t outage_ns;                        /* time without a connection, of outages that were healed          */
};
/* A snapshot; the loop continues counting. Also good after the link has ended. */
void aq_link_stats(const struct aq_link *link, struct aq_link_stats *out);

/* Bytes of RAM that a link of this config will take; what `aqpipe plan` prints. */
uint64_t aq_link_measure(const struct aq_link_config *config);
/* And what the stream below it takes, by the scheme of its address ("tls+quic://"). */
uint64_t aq_link_measure_stream(const char *scheme);

/* Nanoseconds that packing a byte and unpacking it take together (aqpipe bench link): what AUTO reckons with. */
#define AQ_LINK_PACK_BYTE_NS 2.0

/*
 * Bytes that the first body of its kind takes on a link of this config: packed by its rule, or as it is. local: the
 * peer is on this machine. For a plan, which has a body and no link. AQ_NOMEM.
 */
enum aq_status aq_link_packed(const struct aq_link_config *config, bool local, const void *body, uint32_t body_bytes,
                              uint32_t *out);

#ifdef __cplusplus
}
#endif
#endif
