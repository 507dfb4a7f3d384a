/*
 * edge_cached.c -- an edge upstream of which nothing changes: the second visit of a sample sends only its row.
 *
 * The activation of a sample is the same at each visit, so that a - m is known without computing a: the first visit
 * left it. The rule is therefore: the message of the first visit *is* the activation. It is coded once, as a keyframe,
 * and never refined. If keyframe and store have one float format, the result equals the values sent raw in that format,
 * bit for bit; the plan codes raw edges so (aq_codec_config_kept).
 *
 * Only the caches decide who holds what, as ever:
 *
 *     sender has m     its index says so, and the bytes are not read: a row with AQ_EDGE_HELD, version and digest
 *     sender lost it   asks the receiver; has that lost it, too, the stage computes, and a keyframe goes
 *     receiver has m   x is m; if its own stage does not need x either, not even its index is read
 *     receiver lost it asks for that version; the sender reads its copy, or if that is lost its stage computes the
 *                      activation again (aq_edge_recompute_pending, aq_edge_recompute_done); the result is the message
 *                      from then on
 *
 * x is decoded from m by the codec's own decode, with a body of zeroes: scales of zero and codes whose change is -0, so
 * that m + change has the bits of m.
 */
#include "edge_cached.h"

#include <string.h>

#include "edge_heal.h"
#include "edge_private.h"

/* Is it there, as long as it must be? Its bytes are not read. */
static enum aq_status peek(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                           struct aq_cache_entry *out)
{
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    AQ_TRY(aq_cache_peek(edge->config.cache, &key, out));
    return out->byte_count == aq_edge_message_bytes(edge, batch, i) ? AQ_OK : AQ_NOTFOUND;
}

bool aq_edge_is_cached(const struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    struct aq_cache_entry entry;
    for (uint32_t i = 0; edge->shape.still && i < batch->samples; i++)
        if (peek(edge, batch, i, &entry) != AQ_OK) return false;
    return edge->shape.still;
}

static enum aq_status keep_fetched(struct aq_edge *edge, const struct aq_cache_key *key,
                                   const struct aq_cache_entry *entry)
{
    const enum aq_status status =
        aq_edge_keep(edge, key, entry->version, entry->digest, entry->bytes, (uint32_t)entry->byte_count);
    if (status != AQ_AGAIN) return status;
    return aq_fail(AQ_INVAL, "edge", "edge %u: the cache has no slot for a message that came; raise cache.slots",
                   edge->shape.edge);
}

/* The other side's message: to the cache, and out, whose bytes are the frame's. AQ_NOTFOUND: it has none. */
static enum aq_status fetch(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i, uint64_t version,
                            struct aq_frame *message, struct aq_cache_entry *out)
{
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    AQ_TRY(aq_edge_fetch(edge, &key, version, aq_edge_message_bytes(edge, batch, i), message));
    *out = (struct aq_cache_entry){.bytes = message->body,
                                   .byte_count = message->body_bytes,
                                   .version = message->step,
                                   .digest = aq_digest(message->body, message->body_bytes)};
    edge->measures.fetched++;
    return AQ_OK;
}

/* --- the sender -------------------------------------------------------------------------------------------------- */

enum aq_status aq_edge_cached_reference(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                        struct aq_edge_reference *out)
{
    struct aq_frame message;
    enum aq_status status = peek(edge, batch, i, &out->entry);
    out->held = status == AQ_OK;
    if (status != AQ_NOTFOUND) return status;
    if (!aq_edge_refills(edge)) return AQ_OK;
    status = fetch(edge, batch, i, 0, &message, &out->entry);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    status = keep_fetched(edge, &key, &out->entry);
    aq_edge_message_release(edge, &message);
    out->held = status == AQ_OK;
    return status;
}

void aq_edge_cached_sent(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                         const struct aq_edge_reference *reference, struct aq_edge_row *row)
{
    struct aq_cache_entry entry = reference->entry;
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    AQ_ASSERT(reference->held && entry.version > 0);
    *row = (struct aq_edge_row){.sample = batch->sample_ids[i],
                                .version_before = entry.version,
                                .version_after = entry.version,
                                .digest_before = entry.digest,
                                .digest_after = entry.digest,
                                .flags = AQ_EDGE_HELD,
                                .variant = key.variant};
    entry.bytes = NULL;
    aq_edge_hold(edge, aq_edge_number(batch), &key, &entry);
    edge->measures.samples++;
    edge->measures.held++;
}

enum aq_status aq_edge_send_cached(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    uint32_t index;
    AQ_ASSERT(edge->config.sender && edge->shape.still);
    if (aq_edge_encoding(edge)) return AQ_AGAIN; /* frames go in order */
    if (!aq_edge_is_cached(edge, batch)) return AQ_NOTFOUND;
    AQ_TRY(aq_edge_body_take(edge, &index));
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_reference reference = {.held = true};
        struct aq_edge_row row;
        (void)peek(edge, batch, i, &reference.entry);
        aq_edge_cached_sent(edge, batch, i, &reference, &row);
        aq_edge_row_write(&row, aq_edge_body(edge, index) + (size_t)i * AQ_EDGE_ROW_BYTES);
    }
    return aq_edge_post_batch(edge, AQ_FRAME_FORWARD, batch, index, batch->samples * AQ_EDGE_ROW_BYTES);
}

bool aq_edge_recompute_pending(const struct aq_edge *edge, uint64_t *id)
{
    *id = edge->remake.key.sample;
    return edge->remaking;
}

/* The message of the sample, at `message`, of that version; where any will do, of a wide one if it must be. */
static enum aq_status make_again(struct aq_edge *edge, const struct aq_edge_batch *batch, const struct aq_values *a,
                                 uint8_t *body, void *message, bool any, uint64_t *version, struct aq_stream *stream)
{
    const bool can = aq_edge_wide_of(edge, edge->forward) != NULL, wide = can && *version & AQ_EDGE_WIDE_VERSION;
    uint32_t flags = 0;
    AQ_TRY(aq_edge_encode_alone(edge, batch, a, wide, body, message, &flags, stream));
    if (flags & AQ_CODED_RAW && any && can && !wide) {
        *version |= AQ_EDGE_WIDE_VERSION;
        AQ_TRY(aq_edge_encode_alone(edge, batch, a, true, body, message, &flags, stream));
    }
    if (flags & AQ_CODED_RAW)
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: its message is lost, and computing it again made none",
                       edge->shape.edge, (unsigned long long)batch->sample_ids[0]);
    return AQ_OK;
}

enum aq_status aq_edge_recompute_done(struct aq_edge *edge, const struct aq_edge_batch *batch,
                                      const struct aq_values *a, struct aq_stream *stream)
{
    const struct aq_edge_fetch *asked = &edge->remake;
    uint64_t version = asked->version ? asked->version : 1;
    const uint32_t bytes = aq_edge_message_bytes(edge, batch, 0);
    uint32_t index;
    void *slot;
    AQ_ASSERT(edge->remaking && batch->samples == 1 && batch->sample_ids[0] == asked->key.sample);
    if (aq_edge_encoding(edge)) return AQ_AGAIN;
    AQ_TRY(aq_edge_body_take(edge, &index));
    uint8_t *const body = aq_edge_body(edge, index);
    enum aq_status status = aq_cache_slot(edge->config.cache, aq_clock_after(edge->config.silence_ns), &slot);
    if (status == AQ_OK) {
        status = make_again(edge, batch, a, body, slot, asked->version == 0, &version, stream);
        if (status == AQ_OK) memcpy(body, slot, bytes);
        if (status == AQ_OK)
            status = aq_cache_put(edge->config.cache, &asked->key, version, aq_digest(body, bytes), slot, bytes);
        if (status != AQ_OK) aq_cache_slot_return(edge->config.cache, slot);
    }
    if (status != AQ_OK) {
        aq_edge_body_return(edge, index);
        return status;
    }
    aq_log("edge", 1, "edge %u: the message of sample %llu was lost at both ends: computed again", edge->shape.edge,
           (unsigned long long)asked->key.sample);
    edge->remaking = false;
    edge->measures.served++;
    const struct aq_frame frame = {.kind = AQ_FRAME_MESSAGE,
                                   .flags = AQ_EDGE_REMADE,
                                   .argument = asked->key.sample,
                                   .micro_batch = asked->key.variant,
                                   .step = version,
                                   .body_bytes = bytes,
                                   .body = body};
    return aq_channel_post(aq_edge_channel(edge, AQ_CHANNEL_ID_message), &frame, index);
}

/* --- the receiver ------------------------------------------------------------------------------------------------ */

enum aq_status aq_edge_cached_held(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                   const struct aq_edge_row *row, struct aq_edge_reference *out)
{
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    const unsigned long long sample = key.sample;
    struct aq_cache_entry *entry = &out->entry;
    enum aq_status status = aq_edge_cache_get(edge, &key, aq_edge_message_bytes(edge, batch, i), entry);
    if (status == AQ_OK) {
        out->warm = true;
        if (!row || (entry->version == row->version_before && entry->digest == row->digest_before)) return AQ_OK;
        aq_edge_reference_release(edge, out);
    } else if (status != AQ_NOTFOUND && status != AQ_CORRUPT) {
        return status;
    }
    status = fetch(edge, batch, i, row ? row->version_before : 0, &out->message, entry);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_CORRUPT, "edge",
                       "edge %u sample %llu: the sender announced that it holds the message, but has none",
                       edge->shape.edge, sample);
    AQ_TRY(status);
    out->warm = out->fetched = true;
    const bool remade = out->message.flags & AQ_EDGE_REMADE;
    if (!row || remade || entry->digest == row->digest_before) return keep_fetched(edge, &key, entry);
    return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the message that was fetched is not the one that is held",
                   edge->shape.edge, sample);
}

enum aq_status aq_edge_cached_back(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    uint32_t index;
    AQ_TRY(aq_edge_body_take(edge, &index)); /* as many are on their way as of others */
    const struct aq_frame frame = {.kind = AQ_FRAME_BACKWARD,
                                   .flags = batch->flags,
                                   .step = batch->step,
                                   .micro_batch = batch->micro_batch,
                                   .argument = batch->samples};
    return aq_channel_post(aq_edge_channel(edge, AQ_CHANNEL_ID_backward), &frame, index);
}
