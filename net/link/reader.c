/*
 * reader.c -- see reader.h. The checks follow the order of docs/FRAME.md, "Reading a header".
 */
#include "reader.h"

#include <stdio.h>
#include <string.h>

#include "net/link.h"
#include "net_limits.h"

void aq_reader_place(struct aq_reader *reader, struct aq_arena *arena, uint32_t body_bytes_max, uint32_t slots,
                     bool packs)
{
    reader->slot_bytes = (body_bytes_max + AQ_ALIGN - 1) / AQ_ALIGN * AQ_ALIGN;
    reader->slot_count = slots;
    reader->slots = aq_arena_take(arena, (size_t)reader->slot_bytes * slots);
    reader->slot_free = aq_arena_take(arena, sizeof *reader->slot_free * slots);
    reader->stage = aq_arena_take(arena, AQ_READER_STAGE_BYTES);
    reader->packed = packs ? aq_arena_take(arena, aq_packed_bytes_max(body_bytes_max)) : NULL;
    reader->control = aq_arena_take(arena, AQ_FRAME_CONTROL_BYTES_MAX);
}

void aq_reader_start(struct aq_reader *reader)
{
    reader->begin = reader->end = 0;
    reader->in_body = reader->gap_due = reader->cut = false;
    reader->sequence = 0;
    reader->slot_free_count = reader->slot_count;
    for (uint32_t i = 0; i < reader->slot_count; i++)
        reader->slot_free[i] = reader->slot_count - 1 - i;
}

void aq_reader_cut(struct aq_reader *reader)
{
    if (reader->in_body && reader->slot != UINT32_MAX) aq_reader_release(reader, reader->slot);
    reader->begin = reader->end = 0;
    reader->in_body = reader->gap_due = reader->cut = false;
}

/* Bytes of the body up to its end or the next gap; *last: its end. */
static uint32_t part_left(const struct aq_reader *reader, bool *last)
{
    const uint32_t left = reader->header.body_bytes - reader->body_got, part = reader->header.part_bytes;
    const uint32_t here = part > 0 ? part - reader->body_got % part : left;
    *last = left <= here;
    return *last ? left : here;
}

static void got_body(struct aq_reader *reader, uint32_t bytes)
{
    bool last;
    const uint32_t left = part_left(reader, &last);
    AQ_ASSERT(bytes <= left);
    reader->body_got += bytes;
    reader->gap_due = bytes == left && !last;
}

/* The bytes that come next belong to the body, and go there. */
static bool reads_body(const struct aq_reader *reader)
{
    return reader->in_body && !reader->gap_due && reader->body_got < reader->header.body_bytes;
}

int aq_reader_room(struct aq_reader *reader, struct iovec iov[2])
{
    int count = 0;
    bool last = true;
    if (reads_body(reader)) {
        AQ_ASSERT(reader->begin == reader->end);
        reader->begin = reader->end = 0;
        const uint32_t left = part_left(reader, &last);
        const bool whole = left <= AQ_READER_CHUNK_MAX;
        iov[count].iov_base = reader->body + reader->body_got;
        iov[count++].iov_len = whole ? left : AQ_READER_CHUNK_MAX;
        if (!whole) return count;
    }
    if (reader->begin > 0) {
        memmove(reader->stage, reader->stage + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    /* No more than the gap, so that the part behind it is read to its place. */
    const uint32_t most = last && !reader->gap_due ? AQ_READER_STAGE_BYTES : AQ_FRAME_GAP_BYTES;
    AQ_ASSERT(reader->end < most);
    iov[count].iov_base = reader->stage + reader->end;
    iov[count++].iov_len = most - reader->end;
    return count;
}

void aq_reader_filled(struct aq_reader *reader, size_t got)
{
    if (reads_body(reader)) {
        bool last;
        const uint32_t left = part_left(reader, &last);
        const uint32_t part = got < left ? (uint32_t)got : left;
        got_body(reader, part);
        got -= part;
    }
    AQ_ASSERT(got <= AQ_READER_STAGE_BYTES - reader->end);
    reader->end += (uint32_t)got;
}

static enum aq_status check_identity(struct aq_reader *reader, const struct aq_header *h)
{
    const char *what = h->from != reader->from ? "rank" : h->edge != reader->edge ? "edge" : "plan hash";
    if (h->from == reader->from && h->edge == reader->edge && h->plan_hash == reader->plan_hash) return AQ_OK;
    snprintf(reader->text, sizeof reader->text,
             "sent a %s with another %s than in the handshake: rank %u edge %u plan %016llx, was rank %u edge %u plan "
             "%016llx",
             aq_frame_kind_text(h->kind), what, h->from, h->edge, (unsigned long long)h->plan_hash, reader->from,
             reader->edge, (unsigned long long)reader->plan_hash);
    return AQ_MISMATCH;
}

static enum aq_status check_answers(struct aq_reader *reader, const struct aq_header *h)
{
    if (h->acknowledge > reader->sent_sequence) {
        snprintf(reader->text, sizeof reader->text, "acknowledges frame %llu, but only %llu were sent",
                 (unsigned long long)h->acknowledge, (unsigned long long)reader->sent_sequence);
        return AQ_PROTO;
    }
    if (h->credit > reader->credit_max) {
        snprintf(reader->text, sizeof reader->text, "gives back %u credits, but holds only %u", h->credit,
                 reader->credit_max);
        return AQ_PROTO;
    }
    return AQ_OK;
}

static enum aq_status check_order(struct aq_reader *reader, const struct aq_header *h)
{
    const uint64_t due = reader->sequence + 1 + reader->cut;
    if (h->sequence != due) {
        snprintf(reader->text, sizeof reader->text, "sent frame %llu where %llu was expected",
                 (unsigned long long)h->sequence, (unsigned long long)due);
        return AQ_PROTO;
    }
    if (reader->cut && h->kind != AQ_FRAME_ABORT) {
        snprintf(reader->text, sizeof reader->text, "sent a %s behind a body that it had cut; an ABORT was expected",
                 aq_frame_kind_text(h->kind));
        return AQ_PROTO;
    }
    if (h->kind == AQ_FRAME_HELLO) {
        snprintf(reader->text, sizeof reader->text, "sent a HELLO after the handshake");
        return AQ_PROTO;
    }
    return check_answers(reader, h);
}

static enum aq_status check_body(struct aq_reader *reader, const struct aq_header *h)
{
    if (h->part_bytes > 0 && !reader->parts) {
        snprintf(reader->text, sizeof reader->text, "sent a %s in parts; the handshake did not agree to any",
                 aq_frame_kind_text(h->kind));
        return AQ_PROTO;
    }

    const bool own = h->kind < AQ_FRAME_KIND_RUNTIME;
    const uint32_t limit = own ? (h->kind == AQ_FRAME_ABORT ? AQ_FRAME_CONTROL_BYTES_MAX : 0) : reader->body_bytes_max;
    if (h->body_bytes > limit) {
        snprintf(reader->text, sizeof reader->text, "sent a %s with a body of %u bytes; the limit is %u",
                 aq_frame_kind_text(h->kind), h->body_bytes, limit);
        return AQ_PROTO;
    }
    if (h->raw_bytes > 0 && !reader->packed) {
        snprintf(reader->text, sizeof reader->text, "sent a packed %s; the handshake did not agree to any",
                 aq_frame_kind_text(h->kind));
        return AQ_PROTO;
    }
    const uint32_t packed_max = aq_packed_bytes_max(limit);
    if (h->raw_bytes > 0 && (h->raw_bytes <= h->body_bytes || h->raw_bytes > packed_max)) {
        snprintf(reader->text, sizeof reader->text,
                 "sent a packed %s of %u bytes that unpacks to %u; more than it has, and at most %u were possible",
                 aq_frame_kind_text(h->kind), h->body_bytes, h->raw_bytes, packed_max);
        return AQ_PROTO;
    }
    if (h->body_bytes > 0 && !own && reader->slot_free_count <= reader->slots_untold) {
        snprintf(reader->text, sizeof reader->text,
                 "sent a %s (frame %llu) without a credit: all %u receive slots are taken, or not yet given back",
                 aq_frame_kind_text(h->kind), (unsigned long long)h->sequence, reader->slot_count);
        return AQ_PROTO;
    }
    return AQ_OK;
}

static uint8_t *slot_at(const struct aq_reader *reader, uint32_t slot)
{
    return reader->slots + (size_t)slot * reader->slot_bytes;
}

/* The header is whole: check it, find a place for its body, and move there what of the body has been read already. */
static enum aq_status take_header(struct aq_reader *reader)
{
    struct aq_header h;
    const enum aq_status status = aq_header_decode(reader->stage + reader->begin, &h, reader->text);
    if (status == AQ_MISMATCH) { /* the peer's HELLO was of this version: these are not the bytes that it sent */
        snprintf(reader->text, sizeof reader->text, "a header arrived broken: of another version than its HELLO");
        return AQ_CORRUPT;
    }
    AQ_TRY(status);
    AQ_TRY(check_identity(reader, &h));
    AQ_TRY(check_order(reader, &h));
    AQ_TRY(check_body(reader, &h));
    reader->header = h;
    reader->begin += AQ_FRAME_HEADER_BYTES;
    reader->in_body = true;
    reader->body_got = 0;
    reader->begun_ns = aq_clock_ns();
    reader->slot = UINT32_MAX;
    reader->body = reader->control;
    if (h.body_bytes > 0 && h.kind >= AQ_FRAME_KIND_RUNTIME) {
        reader->slot = reader->slot_free[--reader->slot_free_count];
        reader->body = h.raw_bytes > 0 ? reader->packed : slot_at(reader, reader->slot);
    }
    return AQ_OK;
}

/* Bytes of a body that were read together with its header or a gap go to their place, up to the next gap. */
static void take_staged(struct aq_reader *reader)
{
    bool last;
    const uint32_t staged = reader->end - reader->begin, left = part_left(reader, &last);
    const uint32_t bytes = staged < left ? staged : left;
    if (bytes > 0) memcpy(reader->body + reader->body_got, reader->stage + reader->begin, bytes);
    reader->begin += bytes;
    got_body(reader, bytes);
}

/* AQ_AGAIN: it has not come as a whole. */
static enum aq_status take_gap(struct aq_reader *reader, struct aq_reader_frame *out)
{
    struct aq_gap gap;
    if (reader->end - reader->begin < AQ_FRAME_GAP_BYTES) return AQ_AGAIN;
    AQ_TRY(aq_gap_decode(reader->stage + reader->begin, reader->header.sequence, &gap, reader->text));
    const struct aq_header said = {.version = AQ_FRAME_VERSION,
                                   .kind = AQ_FRAME_CREDIT,
                                   .acknowledge = gap.acknowledge,
                                   .credit = gap.credit,
                                   .from = reader->from,
                                   .edge = reader->edge,
                                   .plan_hash = reader->plan_hash};
    AQ_TRY(check_answers(reader, &said));
    reader->begin += AQ_FRAME_GAP_BYTES;
    reader->gap_due = false;
    if (gap.cut) {
        aq_reader_release(reader, reader->slot);
        reader->in_body = false;
        reader->cut = true;
    }
    *out = (struct aq_reader_frame){.header = said, .slot = UINT32_MAX, .begun_ns = reader->begun_ns};
    return AQ_OK;
}

/* The body is whole: checks its digest, and unpacks it where it is packed. */
static enum aq_status take_body(struct aq_reader *reader)
{
    const struct aq_header *h = &reader->header;
    const uint64_t digest = aq_digest(reader->body, h->body_bytes);
    if (digest != h->body_digest) {
        snprintf(reader->text, sizeof reader->text, "a %s of %u bytes arrived broken: digest %016llx, computed %016llx",
                 aq_frame_kind_text(h->kind), h->body_bytes, (unsigned long long)h->body_digest,
                 (unsigned long long)digest);
        return AQ_CORRUPT;
    }
    if (h->raw_bytes == 0) return AQ_OK;
    const uint64_t begin_ns = aq_clock_ns();
    uint8_t *slot = slot_at(reader, reader->slot);
    if (!aq_entropy_unpack(reader->entropy, reader->packed, h->body_bytes, slot, h->raw_bytes)) {
        snprintf(reader->text, sizeof reader->text, "a packed %s of %u bytes does not unpack to the %u of its header",
                 aq_frame_kind_text(h->kind), h->body_bytes, h->raw_bytes);
        return AQ_CORRUPT;
    }
    reader->body = slot;
    reader->packing_ns += aq_clock_ns() - begin_ns;
    return AQ_OK;
}

enum aq_status aq_reader_next(struct aq_reader *reader, struct aq_reader_frame *out)
{
    if (!reader->in_body) {
        const uint32_t staged = reader->end - reader->begin;
        if (staged < AQ_FRAME_HEADER_BYTES)
            return staged > 0 && aq_header_sniff(reader->stage + reader->begin, staged, reader->text) != AQ_OK
                       ? AQ_PROTO
                       : AQ_AGAIN;
        AQ_TRY(take_header(reader));
    }
    const struct aq_header *h = &reader->header;
    if (reader->gap_due) return take_gap(reader, out);
    if (reader->body_got < h->body_bytes && reader->begin < reader->end) {
        take_staged(reader);
        if (reader->gap_due) return take_gap(reader, out);
    }
    if (reader->body_got < h->body_bytes) return AQ_AGAIN;
    if (h->body_bytes > 0) AQ_TRY(take_body(reader));
    reader->in_body = reader->cut = false;
    reader->sequence = h->sequence;
    *out = (struct aq_reader_frame){.header = *h,
                                    .body_bytes = h->raw_bytes > 0 ? h->raw_bytes : h->body_bytes,
                                    .body = h->body_bytes > 0 ? reader->body : NULL,
                                    .slot = reader->slot,
                                    .begun_ns = reader->begun_ns};
    return AQ_OK;
}

void aq_reader_release(struct aq_reader *reader, uint32_t slot)
{
    AQ_ASSERT(slot < reader->slot_count);
    AQ_ASSERT(reader->slot_free_count < reader->slot_count);
    reader->slot_free[reader->slot_free_count++] = slot;
}
