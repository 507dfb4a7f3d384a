/*
 * link_receive.c -- a link in the loop: bytes in, frames to the caller.
 *
 * Bodies arrive in their slots without a copy, except for bytes that came together with the header. While no record is
 * free the link reads nothing: the transport's own flow control holds the peer back.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "link_state.h"

static void deliver(struct aq_link *link, const struct aq_reader_frame *in)
{
    const struct aq_header *h = &in->header;
    AQ_ASSERT(link->record_free_count > 0);
    const uint32_t index = link->record_free[--link->record_free_count];
    link->records[index].frame = (struct aq_frame){.kind = h->kind,
                                                   .flags = h->flags,
                                                   .micro_batch = h->micro_batch,
                                                   .step = h->step,
                                                   .argument = h->argument,
                                                   .body_bytes = in->body_bytes,
                                                   .body = in->body};
    if (in->body) {
        AQ_ASSERT(link->credit_granted > 0);
        link->credit_granted--;
    }
    AQ_COUNT(link, received_frames, 1);
    AQ_COUNT(link, received_body_bytes, in->body_bytes);
    AQ_COUNT(link, received_packed_bytes, h->body_bytes);
    AQ_COUNT(link, packing_ns, link->reader.packing_ns);
    link->reader.packing_ns = 0;
    if (h->body_bytes > 0) AQ_COUNT(link, receive_ns, aq_clock_ns() - in->begun_ns);
    aq_trace_add(link->net->config.trace, "recv", aq_frame_kind_text(h->kind), in->begun_ns, aq_clock_ns(),
                 (uint32_t)h->step, h->micro_batch);
    aq_link_tell(link, token_of(TOKEN_RECEIVED, index));
}

static void take_abort(struct aq_link *link, const struct aq_reader_frame *in)
{
    char reason[AQ_TEXT_BYTES], text[AQ_TEXT_BYTES + 64];
    const enum aq_status cause = aq_abort_decode(in->body, in->header.body_bytes, reason);
    snprintf(text, sizeof text, "the peer gave up (%s): %.*s", aq_status_text(cause), AQ_TEXT_BYTES - 64, reason);
    link->bye_received = false; /* its last word is this one */
    aq_link_fail(link, AQ_ABORTED, text);
}

/* The peer has broken a rule: where that is behind its BYE, it has not left in good order. */
static void broken(struct aq_link *link, enum aq_status status, const char *text)
{
    link->bye_received = false;
    aq_link_fail(link, status, text);
}

static void handle(struct aq_link *link, const struct aq_reader_frame *in)
{
    const struct aq_header *h = &in->header;
    link->credits += h->credit;
    link->heard = true;
    if (h->kind >= AQ_FRAME_KIND_RUNTIME || h->kind == AQ_FRAME_BYE) link->want_ack = true;
    if (link->heal) aq_link_acknowledged(link, h->acknowledge);
    switch (h->kind) {
    case AQ_FRAME_CREDIT:
        break;
    case AQ_FRAME_PING:
        link->want_pong = true;
        link->pong_argument = h->argument;
        break;
    case AQ_FRAME_PONG: {
        const uint64_t answered_ns = aq_clock_ns(); /* this turn of the loop may have begun before the answer came */
        if (h->argument <= answered_ns)
            atomic_store_explicit(&link->counters.round_trip_ns, answered_ns - h->argument, memory_order_relaxed);
        break;
    }
    case AQ_FRAME_BYE:
        if (link->bye_received) {
            broken(link, AQ_PROTO, "a second BYE came");
            return;
        }
        link->bye_received = true;
        link->want_bye = true; /* ours follows when what is queued has gone out */
        break;
    case AQ_FRAME_ABORT:
        take_abort(link, in);
        break;
    default:
        if (link->bye_received)
            broken(link, AQ_PROTO, "a frame arrived after the BYE");
        else
            deliver(link, in);
    }
}

/* Everything whole that has been read, as long as there are records. */
static void frames(struct aq_link *link)
{
    struct aq_reader_frame in;
    while (link->state == LINK_OPEN && link->record_free_count > 0) {
        link->reader.sent_sequence = link->sequence;
        link->reader.slots_untold = link->credit_back;
        link->reader.credit_max = link->peer.receive_slots - link->credits;
        const enum aq_status status = aq_reader_next(&link->reader, &in);
        if (status == AQ_AGAIN) return;
        if (status != AQ_OK) {
            broken(link, status, link->reader.text);
            return;
        }
        handle(link, &in);
    }
}

/* For aq_link_stats: since when a frame has been coming in. */
static void publish(struct aq_link *link)
{
    const uint64_t begun = link->reader.in_body ? link->reader.begun_ns : 0;
    atomic_store_explicit(&link->counters.receive_begun_ns, begun, memory_order_relaxed);
}

static int room(struct aq_link *link)
{
    if (link->state == LINK_OPEN) return aq_reader_room(&link->reader, link->receive_iov);
    link->receive_iov[0] = (struct iovec){.iov_base = link->reader.stage, .iov_len = AQ_READER_STAGE_BYTES};
    return 1; /* lingering: read and thrown away */
}

static void took(struct aq_link *link, size_t bytes, uint64_t now_ns)
{
    link->received_ns = now_ns;
    if (link->state != LINK_OPEN) return;
    AQ_COUNT(link, received_wire_bytes, bytes);
    aq_reader_filled(&link->reader, bytes);
    frames(link);
    publish(link);
}

void aq_link_receive_done(struct aq_link *link, int result)
{
    if (result > 0)
        took(link, (size_t)result, aq_clock_ns());
    else if (result != -EAGAIN && result != -EINTR)
        aq_link_lost(link, result == 0 ? AQ_CLOSED : aq_byte_stream_errno(-result));
}

/* Frames that were read while no record was free come first. True: the caller must poll before more is read. */
static bool starved(struct aq_link *link)
{
    if (link->state != LINK_OPEN) return false;
    frames(link);
    if (link->state != LINK_OPEN || link->record_free_count > 0) return false;
    /* Pairs with take_received in link.c: a record that was pushed before this exchange is in the ring now. */
    atomic_exchange_explicit(&link->starved, true, memory_order_acq_rel);
    if (aq_ring_count(link->to_loop) > 0) link->more = true;
    return true;
}

/* A stream without its own socket: ask it. */
static void receive_through(struct aq_link *link, uint64_t now_ns)
{
    struct aq_byte_stream_wait wait;
    for (int i = 0; i < AQ_LINK_TURNS; i++) {
        size_t got;
        if (!aq_link_flows(link) || starved(link)) return;
        const int count = room(link);
        const enum aq_status status = link->stream->ops->read(link->stream, link->receive_iov, count, &got);
        if (status == AQ_OK) {
            took(link, got, now_ns);
            continue;
        }
        if (status != AQ_AGAIN) {
            aq_link_lost(link, status);
            return;
        }
        link->stream->ops->wait(link->stream, false, &wait);
        link->receive_wake_ns = wait.wake_ns;
        if (wait.fd == -1 || link->receive_op.busy) return;
        link->receive_op.kind = AQ_IO_POLL;
        link->receive_op.fd = wait.fd;
        link->receive_op.events = wait.events;
        link->net->engine_ops->submit(link->net->engine, &link->receive_op);
        return;
    }
    link->more = true;
}

void aq_link_receive(struct aq_link *link, uint64_t now_ns)
{
    link->receive_wake_ns = AQ_NEVER;
    if (link->direct == -1) {
        receive_through(link, now_ns);
        return;
    }
    if (link->receive_op.busy || starved(link)) return;
    const int count = room(link);
    link->receive_op.kind = AQ_IO_RECEIVE;
    link->receive_op.fd = link->direct;
    link->receive_op.message = (struct msghdr){.msg_iov = link->receive_iov, .msg_iovlen = (size_t)count};
    link->net->engine_ops->submit(link->net->engine, &link->receive_op);
}
