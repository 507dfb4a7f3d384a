/*
 * link_state.h -- what a link and a net are made of, and who owns which part.
 *
 * Two threads: the caller's and the net loop. They share nothing but rings of tokens, what a token names (it changes
 * hands with the token), and the few atomics below. Tokens: the kind in the upper, an index in the lower 32 bits.
 *
 *   to_loop:    SEND entry, RELEASE slot, RECORD record, FINISH, ABORT        to_caller:  RECEIVED record, SENT entry,
 *   CLOSED
 *
 * A link's life in the loop: OPEN -> (LINGER: last words go out, the rest of the input is thrown away) -> ENDING:
 * operations are cancelled -> ENDED: the stream is closed, CLOSED was told. A link that heals goes from OPEN to PARKING
 * (operations are cancelled) and PARKED (no stream) when its connection is lost, and back to OPEN with the next stream.
 */
#ifndef NET_LINK_STATE_H
#define NET_LINK_STATE_H

#include <stdatomic.h>

#include "engine.h"
#include "frame.h"
#include "net/link.h"
#include "net_limits.h"
#include "packer.h"
#include "reader.h"
#include "transport.h"

enum {
    TOKEN_SEND = 1,
    TOKEN_RELEASE,
    TOKEN_RECORD,
    TOKEN_FINISH,
    TOKEN_ABORT,
    TOKEN_RECEIVED,
    TOKEN_SENT,
    TOKEN_CLOSED
};
static inline uint64_t token_of(uint32_t kind, uint32_t index)
{
    return (uint64_t)kind << 32 | index;
}

struct aq_link_entry { /* a frame to send: the caller's, then with SEND the loop's, until SENT */
    struct aq_frame frame;
    uint64_t token;
    uint64_t sequence;   /* the loop's: of its last sending             */
    uint32_t wire_bytes; /* the loop's: of the body, in its last sending */
    bool counted;        /* the loop's: it has been sent at least once  */
};

struct aq_link_record { /* a frame received: the loop's, then with RECEIVED the caller's, until RECORD */
    struct aq_frame frame;
};

struct aq_link_out { /* a frame on its way into the stream */
    uint8_t header[AQ_FRAME_HEADER_BYTES];
    uint16_t kind;
    uint32_t micro_batch;
    uint64_t step, sequence;
    const uint8_t *body;
    uint32_t body_bytes, part_bytes;
    uint64_t wire_bytes; /* with header and gaps */
    uint8_t buffer;      /* of the packer, until it is out: AQ_PACKER_NONE: none */
    uint32_t entry;      /* UINT32_MAX: the link's own */
    uint64_t begun_ns;
};

struct aq_link_counters { /* written by the loop, read by anybody: relaxed, they order nothing */
    atomic_uint_fast64_t sent_frames, sent_body_bytes, sent_wire_bytes;
    atomic_uint_fast64_t received_frames, received_body_bytes, received_wire_bytes;
    atomic_uint_fast64_t sent_kind_body[AQ_LINK_KINDS], sent_kind_packed[AQ_LINK_KINDS];
    atomic_uint_fast64_t sent_packed_bytes, received_packed_bytes, packing_ns;
    atomic_uint_fast64_t busy_ns, credit_wait_ns, round_trip_ns, heals, outage_ns;
    atomic_uint_fast64_t receive_ns, receive_begun_ns; /* of whole frames; of the one that is coming in, else 0 */
    atomic_uint_fast64_t path_bytes, delivered_bytes, again_bytes, path_asked_ns;
};

enum aq_link_state { LINK_OPEN, LINK_PARKING, LINK_PARKED, LINK_LINGER, LINK_ENDING, LINK_ENDED };

struct aq_link {
    /* Fixed when the link is made. */
    struct aq_net *net;
    struct aq_link_config config;
    struct aq_hello peer;
    char name[AQ_NAME_BYTES + 48]; /* "rank 2 at 10.77.0.3:7001, edge 1" */
    void *memory;
    size_t memory_bytes;
    struct aq_link *next; /* the caller's list of all links of the net */
    struct aq_heal *heal; /* NULL: a lost connection ends the link     */
    struct aq_path path;  /* when it was made */

    /* The caller's. */
    uint32_t *entry_free;
    uint32_t entry_free_count;
    uint8_t *slot_lent; /* one flag a slot */
    bool closed_told;

    /* Shared. */
    struct aq_ring *to_loop, *to_caller;
    struct aq_link_entry *entries;
    struct aq_link_record *records;
    uint8_t abort_body[AQ_FRAME_CONTROL_BYTES_MAX]; /* written before ABORT is pushed                                */
    uint32_t abort_bytes;
    uint64_t abort_deadline_ns;
    enum aq_status abort_cause;
    char text[AQ_TEXT_BYTES]; /* why it ended: written by the loop before `ended`                                    */
    atomic_int ended;         /* enum aq_status, AQ_OK: not yet. Release in the loop, acquire in the caller           */
    atomic_bool starved;      /* the loop waits for records. Exchanged by both: a record pushed before the loop's
                                 exchange is seen by the loop, one pushed after it wakes it                          */
    bool halted;              /* the caller's: the loop was asked to forget the link                                  */
    atomic_bool detached;     /* the loop has forgotten the link. Release in the loop, acquire in the caller          */
    struct aq_link_counters counters;

    /* The loop's. */
    enum aq_link_state state;
    struct aq_byte_stream *stream;
    int direct; /* the stream's socket; -1: ask the stream */
    struct aq_io receive_op, send_op;
    struct iovec receive_iov[2], send_iov[2 * AQ_LINK_BATCH];
    uint64_t receive_wake_ns, send_wake_ns;
    bool more;            /* there is work left that needs no waiting */
    uint64_t path_due_ns; /* when the transport is asked next */

    struct aq_reader reader;
    uint32_t *record_free;
    uint32_t record_free_count;
    uint32_t credit_back;    /* slots released and not yet told to the peer           */
    uint32_t credit_granted; /* frames that the peer may still send                  */
    uint64_t received_ns;
    bool bye_received, stream_ended;

    uint32_t *queue; /* entries in order, a ring of queue_mask + 1 */
    uint32_t queue_mask, queue_head, queue_tail;
    uint32_t queue_acked; /* heals: from here to queue_head frames wait to be acknowledged */
    struct aq_link_out out[AQ_LINK_BATCH];
    uint32_t out_head, out_count;
    uint32_t chunk_bytes; /* of one send at most             */
    uint32_t part_bytes;  /* of a larger body; 0: the peer reads none in parts */
    struct aq_packer packer;
    struct aq_packed ahead; /* of ahead_entry                       */
    uint32_t ahead_entry;   /* packed before its turn; UINT32_MAX: none */
    uint64_t out_bytes;     /* not yet in the stream, of all in out[]  */
    uint64_t out_sent;      /* of the first: header, body and gaps     */
    uint32_t gap_number;    /* of the first: the gap that `gap` holds, from 1; 0: none yet */
    uint8_t gap[AQ_FRAME_GAP_BYTES];
    uint64_t sequence; /* of the last frame encoded               */
    uint64_t written_sequence, acked_sequence, bye_sequence;
    uint32_t credits; /* frames with a body that I may still send */
    bool want_ack;    /* heals: something has come that no header of ours has acknowledged */
    bool want_ping, want_pong, want_bye, bye_sent, want_abort, stream_shut, leave;
    uint64_t pong_argument;
    uint64_t sent_ns;        /* when last something went out                    */
    uint64_t busy_mark_ns;   /* 0: not busy; else counted up to here             */
    uint64_t credit_mark_ns; /* 0: not waiting for credit; else counted up to here */
    uint64_t linger_ns;      /* LINGER: until when at most                       */
    uint64_t lost_ns;        /* when the outage began                           */
    uint64_t parked_ns;      /* when the last stream was lost                   */
    uint64_t begun_sequence; /* acknowledged when this stream began             */
    uint64_t outage_end_ns;  /* PARKED: the end of patience                     */
    bool heard;              /* a frame has come over this stream: an outage is over */
    enum aq_status end_status;
    char end_text[AQ_TEXT_BYTES];
};

struct aq_net {
    struct aq_net_config config;
    struct aq_thread *thread;
    struct aq_ring *commands;   /* links to add; with the lowest bit set: to detach */
    struct aq_eventcount *call_eventcount; /* wakes a caller that waits inside a call of ours  */
    struct aq_entropy *entropy; /* made with the first link that packs; then the loop's */
    int wake_fd;
    atomic_bool wake_pending; /* exchanged by both, as `starved` */
    atomic_int started;       /* -1: not yet; else enum aq_status. Release in the loop, acquire in the caller */
    atomic_bool stop;         /* release in the caller, acquire in the loop */
    atomic_bool slowed;       /* the line of aq_congestion_choose has been said */

    /* The caller's. */
    struct aq_link *links;
    struct aq_listener *listeners;
    uint32_t open_count;

    /* The loop's. */
    const struct aq_engine_ops *engine_ops;
    struct aq_engine *engine;
    struct aq_io wake_op;
    struct aq_link **work;
    uint32_t work_count;
};

#define AQ_COUNT(link, counter, amount)                                                                                \
    atomic_fetch_add_explicit(&(link)->counters.counter, (amount), memory_order_relaxed)

/* loop.c: the caller's side. */
void aq_net_wake(struct aq_net *net);
void aq_net_add(struct aq_net *net, struct aq_link *link);
void aq_net_detach(struct aq_net *net, struct aq_link *link);

/* link.c: takes the stream (also on failure); heal is lent until aq_link_close, NULL: the link does not heal. */
enum aq_status aq_link_make(struct aq_net *net, const struct aq_link_config *config, struct aq_byte_stream *stream,
                            const struct aq_hello *peer, struct aq_heal *heal, struct aq_link **out);
enum aq_status aq_link_config_check(const struct aq_link_config *config);

/* link_work.c: the loop's side. */
void aq_link_work(struct aq_link *link, uint64_t now_ns, uint64_t *next_ns);
void aq_link_done(struct aq_link *link, struct aq_io *op);
void aq_link_leave(struct aq_link *link); /* hard end, nothing told; detached when operations are back */
void aq_link_tell(struct aq_link *link, uint64_t token);
void aq_link_fail(struct aq_link *link, enum aq_status status, const char *text); /* the world's or the peer's fault */
void aq_link_lost(struct aq_link *link, enum aq_status status);                   /* the stream's answer         */

/* link_receive.c, link_send.c: the loop's side. */
void aq_link_receive(struct aq_link *link, uint64_t now_ns);
void aq_link_receive_done(struct aq_link *link, int result);
void aq_link_send_work(struct aq_link *link, uint64_t now_ns);
void aq_link_send_done(struct aq_link *link, int result);
void aq_link_count_time(struct aq_link *link, uint64_t now_ns);
void aq_link_count_sent(struct aq_link *link, uint32_t entry);

/* link_heal.c: the loop's side. */
bool aq_link_park(struct aq_link *link, const char *why); /* false: this link does not heal, or not any more       */
void aq_link_heal_work(struct aq_link *link, uint64_t now_ns, uint64_t *next_ns);
void aq_link_heal_over(struct aq_link *link);                   /* the link has ended: the healer's work is done */
void aq_link_acknowledged(struct aq_link *link, uint64_t upto); /* gives SENT for what the peer has              */
static inline bool aq_link_flows(const struct aq_link *link)
{
    return (link->state == LINK_OPEN || link->state == LINK_LINGER) && !link->stream_ended;
}

#endif
