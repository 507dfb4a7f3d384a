/*
 * link_heal.c -- a link in the loop: from a lost connection to the next one.
 *
 * Invariants: while PARKED nothing is read, so that the position in the mailbox stays true however many handshakes it
 * takes. Frames that were sent and not acknowledged are in the queue between queue_acked and queue_head, their bodies
 * still lent by the caller; resuming moves queue_head back to the first that the peer has not got. Credits restart at
 * each resume: they are the slots that the peer had free at its position.
 */
#include <stdio.h>

#include "heal.h"
#include "link_state.h"

static const char *const AREA = "net";

void aq_link_acknowledged(struct aq_link *link, uint64_t upto)
{
    if (upto > link->acked_sequence) link->acked_sequence = upto;
    /* The peer may have a frame before the engine has reported it as sent: its body must not be given back yet. */
    const uint64_t limit =
        link->acked_sequence < link->written_sequence ? link->acked_sequence : link->written_sequence;
    for (; link->queue_acked != link->queue_head; link->queue_acked++) {
        const uint32_t index = link->queue[link->queue_acked & link->queue_mask];
        if (link->entries[index].sequence > limit) break;
        aq_link_count_sent(link, index); /* the stream may have been lost before the engine could say that it went */
        aq_link_tell(link, token_of(TOKEN_SENT, index));
    }
}

bool aq_link_park(struct aq_link *link, const char *why)
{
    struct aq_heal *heal = link->heal;
    if (!heal || link->state != LINK_OPEN) return false;
    const bool unacknowledged =
        link->queue_acked != link->queue_tail || !link->bye_sent || link->acked_sequence < link->bye_sequence;
    if (link->bye_received && !unacknowledged) return false;
    const uint64_t now_ns = aq_clock_ns();
    if (link->heard) link->lost_ns = now_ns; /* else it is still the outage before */
    link->heard = false;
    link->parked_ns = now_ns;
    uint64_t patience_ns = link->config.outage_ns_max;
    if (link->bye_received && patience_ns > AQ_FAREWELL_NS) patience_ns = AQ_FAREWELL_NS;
    link->outage_end_ns = link->lost_ns + patience_ns;
    aq_log(AREA, 1, "link to %s: %s; frames_to_send_again=%u", link->name, why, link->queue_head - link->queue_acked);
    link->state = LINK_PARKING;
    link->stream_ended = true;
    link->more = true;
    const struct aq_engine_ops *ops = link->net->engine_ops;
    if (link->receive_op.busy) ops->cancel(link->net->engine, &link->receive_op);
    if (link->send_op.busy) ops->cancel(link->net->engine, &link->send_op);
    return true;
}

/* Operations are back: no byte of the old stream counts from here on. */
static void settle(struct aq_link *link)
{
    struct aq_heal *heal = link->heal;
    if (link->receive_op.busy || link->send_op.busy) return;
    aq_byte_stream_close(link->stream);
    link->stream = NULL;
    link->direct = -1;
    aq_reader_cut(&link->reader);
    link->credit_granted = link->reader.slot_free_count;
    link->credit_back = 0;
    for (; link->out_count > 0; link->out_count--, link->out_head = (link->out_head + 1) % AQ_LINK_BATCH)
        aq_packer_release(&link->packer, link->out[link->out_head].buffer);
    if (link->ahead_entry != UINT32_MAX) aq_packer_release(&link->packer, link->ahead.buffer);
    link->ahead_entry = UINT32_MAX;
    link->out_head = 0;
    link->out_sent = 0;
    link->gap_number = 0;
    link->out_bytes = 0;
    link->want_ping = link->want_pong = link->want_ack = false;
    link->receive_wake_ns = link->send_wake_ns = AQ_NEVER;
    link->state = LINK_PARKED;
    heal->position = link->reader.sequence + 1;
    heal->slots = link->reader.slot_free_count;
    heal->deadline_ns = link->outage_end_ns;
    heal->fruitless = link->queue_acked != link->queue_head && link->acked_sequence == link->begun_sequence;
    atomic_store_explicit(&heal->phase, HEAL_PARKED, memory_order_release); /* pairs with aq_heal_phase in healer.c */
    aq_heal_wake(heal->wake_fd);
}

static void check_position(struct aq_link *link, uint64_t position, uint32_t slots)
{
    char text[AQ_TEXT_BYTES];
    if (position > link->acked_sequence && position - 1 <= link->sequence && slots <= link->peer.receive_slots) return;
    snprintf(text, sizeof text, "resumes at frame %llu with %u slots; %llu to %llu and at most %u were possible",
             (unsigned long long)position, slots, (unsigned long long)link->acked_sequence + 1,
             (unsigned long long)link->sequence + 1, link->peer.receive_slots);
    if (position > 0) link->sequence = position - 1; /* so that it takes our ABORT for the frame that it expects */
    aq_link_fail(link, AQ_PROTO, text);
}

/* The healer has brought a stream: continue at the peer's position. */
static void resume(struct aq_link *link, uint64_t now_ns)
{
    struct aq_heal *heal = link->heal;
    const uint64_t position = heal->peer_position;
    const uint32_t slots = heal->peer_slots;
    link->state = LINK_OPEN;
    if (!heal->stream) {
        aq_link_fail(link, heal->status, heal->text);
        return;
    }
    link->stream = heal->stream;
    heal->stream = NULL;
    link->direct = link->stream->ops->direct(link->stream);
    link->stream_ended = false;
    link->received_ns = link->sent_ns = now_ns;
    link->more = true;
    atomic_store_explicit(&heal->phase, HEAL_STANDING, memory_order_release); /* pairs with aq_heal_phase in healer.c */
    aq_heal_wake(heal->wake_fd); /* the peer may be at the acceptor once more */
    check_position(link, position, slots);
    if (link->state != LINK_OPEN) return;
    link->written_sequence = link->sequence;
    aq_link_acknowledged(link, position - 1);
    const uint32_t again = link->queue_head - link->queue_acked;
    link->queue_head = link->queue_acked;
    link->sequence = link->written_sequence = position - 1;
    link->credits = slots;
    link->begun_sequence = link->acked_sequence;
    if (link->bye_sent && link->bye_sequence >= position) link->bye_sent = false;
    AQ_COUNT(link, heals, 1);
    AQ_COUNT(link, outage_ns, now_ns - link->parked_ns);
    aq_log(AREA, 1, "link to %s: healed after %.3f s; frames_sent_again=%u", link->name,
           (double)(now_ns - link->parked_ns) * 1e-9, again);
}

static void give_up(struct aq_link *link, uint64_t now_ns)
{
    char text[AQ_TEXT_BYTES];
    snprintf(text, sizeof text,
             "the connection was lost and could not be restored for %.1f s, longer than outage_max (%.1f s)",
             (double)(now_ns - link->lost_ns) * 1e-9, (double)link->config.outage_ns_max * 1e-9);
    link->heal->outlasted = true;
    link->state = LINK_OPEN; /* from where aq_link_fail knows how to end it */
    aq_link_fail(link, AQ_TIMEOUT, text);
}

void aq_link_heal_work(struct aq_link *link, uint64_t now_ns, uint64_t *next_ns)
{
    const int phase = aq_heal_phase(link->heal);
    if (link->state == LINK_OPEN && phase == HEAL_ASKED && !aq_link_park(link, "the peer reconnected"))
        aq_link_fail(link, AQ_IO, "the peer reconnected after its BYE");
    if (link->state == LINK_PARKING) settle(link);
    if (link->state != LINK_PARKED) return;
    if (phase == HEAL_GIVEN)
        resume(link, now_ns);
    else if (now_ns >= link->outage_end_ns)
        give_up(link, now_ns);
    else if (link->outage_end_ns < *next_ns)
        *next_ns = link->outage_end_ns;
}

void aq_link_heal_over(struct aq_link *link)
{
    struct aq_heal *heal = link->heal;
    if (!heal) return;
    /* Pairs with aq_heal_turn in healer.c: either its stream was given before and is ours to close, or it keeps it. */
    const int phase = atomic_exchange_explicit(&heal->phase, HEAL_OVER, memory_order_acq_rel);
    if (phase == HEAL_GIVEN) {
        aq_byte_stream_close(heal->stream);
        heal->stream = NULL;
    }
    aq_heal_wake(heal->wake_fd);
}
