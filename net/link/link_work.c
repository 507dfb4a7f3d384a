/*
 * link_work.c -- a link in the loop: tokens from the caller, timers, and the four states from open to ended.
 */
#include <stdio.h>
#include <string.h>

#include "link_state.h"

void aq_link_tell(struct aq_link *link, uint64_t token)
{
    const bool pushed = aq_ring_push(link->to_caller, token);
    AQ_ASSERT(pushed); /* the ring holds one token for every entry and record, and CLOSED */
    aq_eventcount_notify(link->net->config.eventcount);
    aq_eventcount_notify(link->net->call_eventcount);
}

/* From now on nothing that comes in counts; what is on its way out, and an ABORT where one is wanted, has until
 * then. */
static void linger(struct aq_link *link, enum aq_status status, const char *text, uint64_t deadline_ns)
{
    link->state = LINK_LINGER;
    link->end_status = status;
    snprintf(link->end_text, sizeof link->end_text, "%s", text);
    link->linger_ns = deadline_ns;
    if (link->stream_ended) link->want_abort = false; /* there is nobody to hear it */
}

void aq_link_fail(struct aq_link *link, enum aq_status status, const char *text)
{
    if (link->state != LINK_OPEN) return;
    if (link->bye_received) { /* it has said all it had to say; what we still had for it is not wanted any more */
        linger(link, AQ_CLOSED, "the peer said BYE", 0);
        return;
    }
    aq_fail(status, "net", "link to %s: %s", link->name, text);
    const bool peer_at_fault = status == AQ_PROTO || status == AQ_CORRUPT || status == AQ_MISMATCH;
    if (peer_at_fault) {
        link->abort_bytes = aq_abort_encode(status, text, link->abort_body);
        link->want_abort = true;
    }
    linger(link, status, text, peer_at_fault ? aq_clock_after(AQ_LINGER_NS) : 0);
}

void aq_link_lost(struct aq_link *link, enum aq_status status)
{
    link->stream_ended = true;
    if (link->state != LINK_OPEN) return;
    /* Its certificate has been revoked, or it broke a rule: it need not come again. */
    if (status == AQ_TLSERR || status == AQ_PROTO || status == AQ_CORRUPT) {
        char text[AQ_TEXT_BYTES];
        snprintf(text, sizeof text, "the peer %.500s", aq_byte_stream_refusal(link->stream));
        aq_link_fail(link, status, text);
        return;
    }
    if (aq_link_park(link, status == AQ_CLOSED ? "the connection was ended without a BYE" : "the connection broke"))
        return;
    if (status == AQ_CLOSED)
        aq_link_fail(link, AQ_IO, "the peer closed the connection without a BYE (was its process killed?)");
    else
        aq_link_fail(link, AQ_IO, "the connection broke");
}

static void take_tokens(struct aq_link *link)
{
    uint64_t token;
    while (aq_ring_pop(link->to_loop, &token)) {
        const uint32_t index = (uint32_t)token;
        switch (token >> 32) {
        case TOKEN_SEND:
            link->queue[link->queue_tail++ & link->queue_mask] = index;
            break;
        case TOKEN_RELEASE:
            aq_reader_release(&link->reader, index);
            link->credit_back++;
            break;
        case TOKEN_RECORD:
            link->record_free[link->record_free_count++] = index;
            break;
        case TOKEN_FINISH:
            link->want_bye = true;
            break;
        default:
            AQ_ASSERT(token >> 32 == TOKEN_ABORT);
            if (link->state > LINK_PARKED) break;
            link->want_abort = true;
            linger(link, link->abort_cause, "this end gave up", link->abort_deadline_ns);
        }
    }
}

static void sooner(uint64_t *next_ns, uint64_t when_ns)
{
    if (when_ns < *next_ns) *next_ns = when_ns;
}

/* Heartbeat and silence. A caller that does not poll makes us deaf: that is not the peer's silence. */
static void timers(struct aq_link *link, uint64_t now_ns, uint64_t *next_ns)
{
    const struct aq_link_config *c = &link->config;
    const bool deaf = link->record_free_count == 0;
    if (c->heartbeat_ns > 0 && link->out_count == 0) {
        if (now_ns >= link->sent_ns + c->heartbeat_ns) {
            link->want_ping = true;
            link->sent_ns = now_ns;
        }
        sooner(next_ns, link->sent_ns + c->heartbeat_ns);
    }
    if (deaf) link->received_ns = now_ns;
    if (c->silence_ns_max > 0 && !deaf) {
        if (now_ns >= link->received_ns + c->silence_ns_max) {
            char text[AQ_TEXT_BYTES];
            snprintf(text, sizeof text, "nothing arrived for %.1f s: the connection is broken, or the peer hangs",
                     (double)(now_ns - link->received_ns) * 1e-9);
            if (!aq_link_park(link, text)) aq_link_fail(link, AQ_TIMEOUT, text);
            return;
        }
        sooner(next_ns, link->received_ns + c->silence_ns_max);
    }
}

/* Operations are back: close the stream and tell the caller, unless it has left. */
static void end(struct aq_link *link)
{
    if (link->receive_op.busy || link->send_op.busy) return;
    aq_link_heal_over(link);
    aq_byte_stream_close(link->stream);
    link->stream = NULL;
    link->state = LINK_ENDED;
    aq_link_count_time(link, aq_clock_ns());
    memcpy(link->text, link->end_text, sizeof link->text);
    atomic_store_explicit(&link->ended, (int)link->end_status, memory_order_release); /* pairs with ended() in link.c */
    if (!link->leave) aq_link_tell(link, token_of(TOKEN_CLOSED, 0));
}

static void start_ending(struct aq_link *link)
{
    const struct aq_engine_ops *ops = link->net->engine_ops;
    link->state = LINK_ENDING;
    if (link->receive_op.busy) ops->cancel(link->net->engine, &link->receive_op);
    if (link->send_op.busy) ops->cancel(link->net->engine, &link->send_op);
}

void aq_link_leave(struct aq_link *link)
{
    link->leave = true;
    if (link->state == LINK_ENDING || link->state == LINK_ENDED) return;
    linger(link, AQ_ABORTED, "closed by this end", 0);
    start_ending(link);
}

/* Both have said BYE: nothing is missing. */
static void look_for_end(struct aq_link *link, uint64_t now_ns)
{
    /* Who waits for room sends nothing: of several connections that may never come, for a write has heard of it. */
    const bool sends = link->send_op.busy && link->send_op.kind != AQ_IO_POLL;
    const bool out_empty = link->out_count == 0 && !sends && !(link->stream && link->stream->unsent);
    const bool in_doubt = link->heal && (link->acked_sequence < link->bye_sequence || link->want_ack);
    if (!in_doubt && link->state == LINK_OPEN && link->bye_received && link->bye_sent && out_empty)
        linger(link, AQ_CLOSED, "the peer said BYE", now_ns + AQ_LINGER_NS);
    if (link->state != LINK_LINGER) return;
    if (link->stream && out_empty && !link->want_abort && !link->stream_shut) {
        link->stream->ops->shut(link->stream);
        link->stream_shut = true;
        link->more |= link->stream->unsent;
    }
    if (link->stream_ended || now_ns >= link->linger_ns) start_ending(link);
}

/* What the transport knows of losses. */
static void ask_path(struct aq_link *link, uint64_t now_ns)
{
    struct aq_path path;
    if (link->config.path_every_ns == 0 || now_ns < link->path_due_ns || !aq_link_flows(link)) return;
    link->path_due_ns = now_ns + link->config.path_every_ns;
    link->stream->ops->path(link->stream, &path);
    atomic_store_explicit(&link->counters.path_bytes, path.sent_bytes, memory_order_relaxed);
    atomic_store_explicit(&link->counters.delivered_bytes, path.delivered_bytes, memory_order_relaxed);
    atomic_store_explicit(&link->counters.path_asked_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&link->counters.again_bytes, path.again_bytes, memory_order_relaxed);
}

void aq_link_work(struct aq_link *link, uint64_t now_ns, uint64_t *next_ns)
{
    take_tokens(link);
    link->more = false;
    if (link->state == LINK_OPEN) timers(link, now_ns, next_ns);
    ask_path(link, now_ns);
    if (aq_link_flows(link)) aq_link_receive(link, now_ns);
    if (aq_link_flows(link)) aq_link_send_work(link, now_ns);
    if (link->heal) aq_link_heal_work(link, now_ns, next_ns);
    look_for_end(link, now_ns);
    if (link->state == LINK_LINGER) sooner(next_ns, link->linger_ns);
    if (link->state == LINK_ENDING) end(link);
    if (link->state >= LINK_ENDING) return;
    sooner(next_ns, link->receive_wake_ns);
    sooner(next_ns, link->send_wake_ns);
    if (link->more) sooner(next_ns, now_ns);
}

void aq_link_done(struct aq_link *link, struct aq_io *op)
{
    if (link->state >= LINK_ENDING) return; /* the next turn ends it */
    if (!aq_link_flows(link)) return;       /* bytes of a lost stream */
    if (op->kind == AQ_IO_POLL) return;     /* the next turn asks the stream */
    if (op == &link->receive_op)
        aq_link_receive_done(link, op->result);
    else
        aq_link_send_done(link, op->result);
}
