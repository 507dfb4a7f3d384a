/*
 * link_send.c -- a link in the loop: queued frames out, with the link's own frames in between.
 *
 * Up to AQ_LINK_BATCH frames are encoded ahead and leave gathered, headers and bodies, in one call of at most
 * AQ_LINK_CHUNK_BYTES (1 ms of a paced link). Encoded frames keep their order; the link's own frames (PONG, PING,
 * CREDIT) go before queued ones. A frame with a body and no credit holds the queue: order is part of the contract. A
 * large body goes in parts (docs/FRAME.md): what is to acknowledge, credits and an ABORT pass it in the gaps.
 *
 * Where bodies are packed (packer.h), the next of the queue is packed while the one before it goes out.
 */
#include <errno.h>
#include <string.h>

#include "link_state.h"

static uint32_t take_credit(struct aq_link *link)
{
    const uint32_t credit = link->credit_back;
    link->credit_granted += credit;
    link->credit_back = 0;
    link->want_ack = false;
    return credit;
}

static void encode(struct aq_link *link, struct aq_header *h, const struct aq_packed *body, uint32_t entry)
{
    AQ_ASSERT(link->out_count < AQ_LINK_BATCH);
    struct aq_link_out *out = &link->out[(link->out_head + link->out_count++) % AQ_LINK_BATCH];
    h->from = link->config.rank;
    h->edge = link->config.edge;
    h->plan_hash = link->config.plan_hash;
    h->sequence = ++link->sequence;
    h->acknowledge = link->reader.sequence;
    h->credit = take_credit(link);
    h->body_bytes = body->byte_count;
    h->part_bytes = entry != UINT32_MAX && h->body_bytes > link->part_bytes ? link->part_bytes : 0;
    h->raw_bytes = body->raw_bytes;
    h->body_digest = h->body_bytes > 0 ? aq_digest(body->bytes, h->body_bytes) : 0;
    aq_header_encode(h, out->header);
    out->kind = h->kind;
    out->micro_batch = h->micro_batch;
    out->step = h->step;
    out->sequence = h->sequence;
    out->body = body->bytes;
    out->body_bytes = body->byte_count;
    out->part_bytes = h->part_bytes;
    out->wire_bytes = AQ_FRAME_HEADER_BYTES + (uint64_t)h->body_bytes +
                      AQ_FRAME_GAP_BYTES * (uint64_t)aq_gap_count(h->body_bytes, h->part_bytes);
    out->buffer = body->buffer;
    out->entry = entry;
    out->begun_ns = aq_clock_ns();
    link->out_bytes += out->wire_bytes;
}

static const struct aq_packed EMPTY = {.buffer = AQ_PACKER_NONE};

/* Where no rate is declared: the rate that the network carries, which parts follow. 0: not known. */
static double measure(struct aq_link *link)
{
    if (link->config.rate_mbps > 0) return 0;
    const double rate_mbps = link->stream->ops->measure(link->stream);
    if (rate_mbps == 0 || link->part_bytes == 0) return rate_mbps;
    const double bytes = rate_mbps * 1e6 / 8 * AQ_LINK_PART_NS * 1e-9;
    link->part_bytes = bytes < AQ_LINK_PART_BYTES_MIN ? AQ_LINK_PART_BYTES_MIN
                       : bytes > AQ_LINK_CHUNK_BYTES  ? AQ_LINK_CHUNK_BYTES
                                                      : (uint32_t)bytes;
    return rate_mbps;
}

/* The head of the queue as it will go out. AQ_AGAIN: what is on its way must leave first. */
static enum aq_status pack_head(struct aq_link *link)
{
    const uint32_t index = link->queue[link->queue_head & link->queue_mask];
    if (link->ahead_entry == index) return AQ_OK;
    AQ_ASSERT(link->ahead_entry == UINT32_MAX);
    const uint32_t bytes = link->entries[index].frame.body_bytes;
    const double rate_mbps = bytes > AQ_LINK_PART_BYTES_MIN ? measure(link) : 0;
    if (link->packer.measures) aq_packer_rate(&link->packer, rate_mbps);
    const uint64_t begin_ns = aq_clock_ns();
    AQ_TRY(aq_packer_pack(&link->packer, &link->entries[index].frame, &link->ahead));
    if (link->packer.entropy) AQ_COUNT(link, packing_ns, aq_clock_ns() - begin_ns);
    link->ahead_entry = index;
    return AQ_OK;
}

static void encode_own(struct aq_link *link, uint16_t kind, uint64_t argument)
{
    struct aq_header h = {.kind = kind, .argument = argument};
    encode(link, &h, &EMPTY, UINT32_MAX);
}

static bool encode_queued(struct aq_link *link, uint64_t now_ns)
{
    if (link->queue_head == link->queue_tail) return false;
    const uint32_t index = link->queue[link->queue_head & link->queue_mask];
    const struct aq_frame *frame = &link->entries[index].frame;
    if (frame->body_bytes > 0 && link->credits == 0) {
        if (link->credit_mark_ns == 0) link->credit_mark_ns = now_ns;
        return false;
    }
    if (pack_head(link) != AQ_OK) return false;
    aq_link_count_time(link, now_ns);
    link->credit_mark_ns = 0;
    link->queue_head++;
    if (frame->body_bytes > 0) link->credits--;
    struct aq_header h = {.kind = frame->kind,
                          .flags = frame->flags,
                          .micro_batch = frame->micro_batch,
                          .step = frame->step,
                          .argument = frame->argument};
    encode(link, &h, &link->ahead, index);
    link->entries[index].sequence = link->sequence;
    link->entries[index].wire_bytes = link->ahead.byte_count;
    link->ahead_entry = UINT32_MAX;
    return true;
}

/* The next frame that may go, if any. */
static bool encode_next(struct aq_link *link, uint64_t now_ns)
{
    if (link->state == LINK_LINGER) {
        if (!link->want_abort) return false;
        struct aq_header h = {.kind = AQ_FRAME_ABORT, .argument = link->config.rank};
        const struct aq_packed body = {
            .bytes = link->abort_body, .byte_count = link->abort_bytes, .buffer = AQ_PACKER_NONE};
        encode(link, &h, &body, UINT32_MAX);
        link->want_abort = false;
        return true;
    }
    if (link->want_pong) {
        link->want_pong = false;
        encode_own(link, AQ_FRAME_PONG, link->pong_argument);
        return true;
    }
    if (link->want_ping) {
        link->want_ping = false;
        encode_own(link, AQ_FRAME_PING, now_ns);
        return true;
    }
    if (!link->bye_sent && encode_queued(link, now_ns)) return true;
    if (link->want_bye && !link->bye_sent && link->queue_head == link->queue_tail) {
        link->bye_sent = true;
        encode_own(link, AQ_FRAME_BYE, 0);
        link->bye_sequence = link->sequence;
        return true;
    }
    if (link->heal && link->want_ack) {
        encode_own(link, AQ_FRAME_CREDIT, 0);
        return true;
    }
    /* Half of the slots may wait for a frame that carries their credits; then they get a separate one. */
    if (link->credit_back > 0 && link->credit_granted <= link->config.receive_slots / 2) {
        encode_own(link, AQ_FRAME_CREDIT, 0);
        return true;
    }
    return false;
}

void aq_link_count_time(struct aq_link *link, uint64_t now_ns)
{
    const bool busy = link->out_count > 0 || link->queue_head != link->queue_tail;
    if (link->busy_mark_ns > 0 && now_ns > link->busy_mark_ns) AQ_COUNT(link, busy_ns, now_ns - link->busy_mark_ns);
    link->busy_mark_ns = busy ? now_ns : 0;
    if (link->credit_mark_ns > 0 && now_ns > link->credit_mark_ns) {
        AQ_COUNT(link, credit_wait_ns, now_ns - link->credit_mark_ns);
        link->credit_mark_ns = now_ns;
    }
}

/* The gap before part `number` of the first frame; it carries whatever is due when its turn comes. */
static void encode_gap(struct aq_link *link, struct aq_link_out *out, uint32_t number)
{
    if (link->gap_number == number) return;
    link->gap_number = number;
    const bool cut = link->state == LINK_LINGER && link->want_abort && link->out_count == 1;
    const struct aq_gap gap = {.acknowledge = link->reader.sequence, .credit = take_credit(link), .cut = cut};
    aq_gap_encode(&gap, out->sequence, link->gap);
    if (!cut) return;
    const uint64_t wire_bytes = link->out_sent + AQ_FRAME_GAP_BYTES;
    link->out_bytes -= out->wire_bytes - wire_bytes;
    out->wire_bytes = wire_bytes;
    out->entry = UINT32_MAX; /* it was not sent */
}

/* Of a body in parts, its bytes and gaps from `at` on: a gap and the part behind it at most. Returns the pieces. */
static int gather_part(struct aq_link *link, struct aq_link_out *out, uint64_t at, size_t left, struct iovec *iov)
{
    const uint32_t period = out->part_bytes + AQ_FRAME_GAP_BYTES;
    uint32_t number = (uint32_t)(at / period), skip = (uint32_t)(at % period);
    int count = 0;
    if (skip >= out->part_bytes) {
        encode_gap(link, out, ++number);
        iov[count].iov_base = link->gap + (skip - out->part_bytes);
        iov[count++].iov_len = period - skip;
        if (AQ_FRAME_HEADER_BYTES + at + (period - skip) == out->wire_bytes) return count; /* cut here */
        skip = 0;
    }
    const uint32_t first = number * out->part_bytes + skip;
    const uint32_t rest = out->body_bytes - first, part = out->part_bytes - skip;
    const size_t bytes = rest < part ? rest : part;
    iov[count].iov_base = (void *)(uintptr_t)(out->body + first);
    /* The header's part of the chunk is no reason for a small send before the gap. */
    iov[count++].iov_len = bytes < left + AQ_FRAME_HEADER_BYTES ? bytes : left;
    return count;
}

/* Headers and bodies of what is encoded, from the first byte not yet sent. Returns the pieces. */
static int gather(struct aq_link *link)
{
    size_t left = link->chunk_bytes;
    uint64_t skip = link->out_sent;
    int count = 0;
    for (uint32_t i = 0; i < link->out_count && left > 0; i++, skip = 0) {
        struct aq_link_out *out = &link->out[(link->out_head + i) % AQ_LINK_BATCH];
        if (skip < AQ_FRAME_HEADER_BYTES) {
            link->send_iov[count].iov_base = out->header + skip;
            link->send_iov[count].iov_len = AQ_FRAME_HEADER_BYTES - skip;
            left -= link->send_iov[count].iov_len < left ? link->send_iov[count].iov_len : left;
            count++;
            skip = AQ_FRAME_HEADER_BYTES;
        }
        if (out->part_bytes > 0 && left > 0)
            return count + gather_part(link, out, skip - AQ_FRAME_HEADER_BYTES, left, link->send_iov + count);
        const uint64_t rest = out->body_bytes - (skip - AQ_FRAME_HEADER_BYTES);
        if (rest == 0 || left == 0) continue;
        const size_t part = rest < left ? rest : left;
        link->send_iov[count].iov_base = (void *)(uintptr_t)(out->body + (skip - AQ_FRAME_HEADER_BYTES));
        link->send_iov[count++].iov_len = part;
        left -= part;
    }
    return count;
}

/* Once a frame, however often it is sent. */
void aq_link_count_sent(struct aq_link *link, uint32_t entry)
{
    struct aq_link_entry *sent = &link->entries[entry];
    const uint32_t kind = (uint32_t)sent->frame.kind - AQ_FRAME_KIND_RUNTIME;
    if (sent->counted) return;
    sent->counted = true;
    AQ_COUNT(link, sent_frames, 1);
    AQ_COUNT(link, sent_body_bytes, sent->frame.body_bytes);
    AQ_COUNT(link, sent_packed_bytes, sent->wire_bytes);
    AQ_COUNT(link, sent_kind_body[kind], sent->frame.body_bytes);
    AQ_COUNT(link, sent_kind_packed[kind], sent->wire_bytes);
}

static void frame_sent(struct aq_link *link, const struct aq_link_out *out, uint64_t now_ns)
{
    link->written_sequence = out->sequence;
    if (out->entry == UINT32_MAX) return;
    aq_link_count_sent(link, out->entry);
    aq_trace_add(link->net->config.trace, "send", aq_frame_kind_text(out->kind), out->begun_ns, now_ns,
                 (uint32_t)out->step, out->micro_batch);
    if (!link->heal) aq_link_tell(link, token_of(TOKEN_SENT, out->entry));
}

static void advance(struct aq_link *link, size_t bytes, uint64_t now_ns)
{
    AQ_COUNT(link, sent_wire_bytes, bytes);
    link->sent_ns = now_ns;
    AQ_ASSERT(bytes <= link->out_bytes);
    link->out_bytes -= bytes;
    while (bytes > 0) {
        const struct aq_link_out *out = &link->out[link->out_head];
        const uint64_t left = out->wire_bytes - link->out_sent;
        if (bytes < left) {
            link->out_sent += bytes;
            break;
        }
        bytes -= left;
        link->out_sent = 0;
        link->gap_number = 0;
        link->out_head = (link->out_head + 1) % AQ_LINK_BATCH;
        link->out_count--;
        aq_packer_release(&link->packer, out->buffer);
        frame_sent(link, out, now_ns);
    }
    if (link->heal) aq_link_acknowledged(link, 0);
    aq_link_count_time(link, now_ns);
}

void aq_link_send_done(struct aq_link *link, int result)
{
    if (result > 0)
        advance(link, (size_t)result, aq_clock_ns());
    else if (result != 0 && result != -EAGAIN && result != -EINTR)
        aq_link_lost(link, aq_byte_stream_errno(-result));
}

static void fill(struct aq_link *link, uint64_t now_ns)
{
    while (link->out_count < AQ_LINK_BATCH && link->out_bytes < link->chunk_bytes)
        if (!encode_next(link, now_ns)) break;
    if (link->busy_mark_ns == 0) aq_link_count_time(link, now_ns);
}

/* While something goes out, the head of the queue is packed: when its turn comes, it is ready. */
static bool waits_unpacked(const struct aq_link *link)
{
    return link->packer.entropy && link->queue_head != link->queue_tail && link->ahead_entry == UINT32_MAX;
}

static void pack_ahead(struct aq_link *link)
{
    /* Where both buffers are taken, it is packed in its turn. */
    if (link->state == LINK_OPEN && waits_unpacked(link)) (void)pack_head(link);
}

static void send_through(struct aq_link *link, uint64_t now_ns)
{
    struct aq_byte_stream_wait wait;
    for (int i = 0; i < AQ_LINK_TURNS; i++) {
        size_t put;
        fill(link, now_ns);
        if (link->out_count == 0 && !link->stream->unsent) {
            pack_ahead(link);
            return;
        }
        const int count = gather(link);
        const enum aq_status status = link->stream->ops->write(link->stream, link->send_iov, count, &put);
        if (status == AQ_OK) {
            advance(link, put, now_ns);
            continue;
        }
        if (status != AQ_AGAIN) {
            aq_link_lost(link, status);
            return;
        }
        pack_ahead(link);
        link->stream->ops->wait(link->stream, true, &wait);
        link->send_wake_ns = wait.wake_ns;
        if (wait.fd == -1 || link->send_op.busy) return;
        link->send_op.kind = AQ_IO_POLL;
        link->send_op.fd = wait.fd;
        link->send_op.events = wait.events;
        link->net->engine_ops->submit(link->net->engine, &link->send_op);
        return;
    }
    link->more = true;
}

void aq_link_send_work(struct aq_link *link, uint64_t now_ns)
{
    link->send_wake_ns = AQ_NEVER;
    if (link->direct == -1 || link->config.rate_mbps > 0) { /* a paced socket takes more than it says: ask it first */
        send_through(link, now_ns);
        return;
    }
    if (!link->send_op.busy) fill(link, now_ns);
    if (link->send_op.busy || link->out_count == 0) {
        pack_ahead(link);
        return;
    }
    link->send_op.kind = AQ_IO_SEND;
    link->send_op.fd = link->direct;
    link->send_op.message = (struct msghdr){.msg_iov = link->send_iov, .msg_iovlen = (size_t)gather(link)};
    link->net->engine_ops->submit(link->net->engine, &link->send_op);
    if (waits_unpacked(link)) link->more = true; /* when the engine has handed this to the system */
}
