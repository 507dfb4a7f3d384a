/*
 * edge_heal.c -- a message that one side has lost comes from the other.
 *
 * FETCH (no body) names sample, variant and version; MESSAGE brings the bytes, or none. The sender answers from the
 * references that it keeps for micro-batches in flight (it has stored m' already, but the receiver needs m); the
 * receiver answers from its cache. While a side waits, the bodies it has received and not decoded are moved out of the
 * link's slots into memory of its own, so that the answer finds a credit. That memory is bounded by the micro-batches
 * in flight and is taken only here.
 */
#include <string.h>

#include "edge_private.h"

void aq_edge_hold(struct aq_edge *edge, uint32_t micro_batch, const struct aq_cache_key *key,
                  const struct aq_cache_entry *entry)
{
    struct aq_edge_held *held = &edge->held[micro_batch % edge->shape.slots];
    AQ_ASSERT(held->count < edge->shape.micro_batch);
    held->keys[held->count] = *key;
    held->entries[held->count++] = *entry;
}

void aq_edge_unhold(struct aq_edge *edge, uint32_t micro_batch)
{
    if (!edge->held) return;
    struct aq_edge_held *held = &edge->held[micro_batch % edge->shape.slots];
    while (held->count > 0)
        aq_cache_release(edge->config.cache, &held->entries[--held->count]);
}

static const struct aq_cache_entry *held_find(const struct aq_edge *edge, const struct aq_edge_fetch *fetch)
{
    for (uint32_t i = 0; edge->held && i < edge->shape.slots; i++)
        for (uint32_t j = 0; j < edge->held[i].count; j++) {
            const struct aq_cache_key *key = &edge->held[i].keys[j];
            if (key->sample == fetch->key.sample && key->variant == fetch->key.variant &&
                edge->held[i].entries[j].version == fetch->version)
                return &edge->held[i].entries[j];
        }
    return NULL;
}

static enum aq_status answer(struct aq_edge *edge, const struct aq_edge_fetch *fetch, uint32_t index)
{
    struct aq_cache_entry mine = {0};
    const struct aq_cache_entry *entry = edge->config.sender ? held_find(edge, fetch) : NULL;
    bool borrowed = false;
    if (!edge->config.sender && edge->config.cache) {
        const enum aq_status status = aq_edge_cache_get(edge, &fetch->key, &mine);
        if (status != AQ_OK && status != AQ_NOTFOUND && status != AQ_CORRUPT) return status;
        borrowed = status == AQ_OK;
        entry = borrowed ? &mine : NULL;
    }
    struct aq_frame frame = {.kind = AQ_FRAME_MESSAGE,
                             .argument = fetch->key.sample,
                             .micro_batch = fetch->key.variant,
                             .step = entry ? entry->version : 0};
    if (entry && entry->byte_count <= edge->size.body_bytes_max) {
        memcpy(aq_edge_body(edge, index), entry->bytes, entry->byte_count);
        frame.body = aq_edge_body(edge, index);
        frame.body_bytes = (uint32_t)entry->byte_count;
        edge->measures.served++;
    }
    if (borrowed) aq_cache_release(edge->config.cache, &mine);
    aq_log("edge", 1, "edge %u: the other side lost the message of sample %llu: %s", edge->shape.edge,
           (unsigned long long)fetch->key.sample, frame.body ? "sent" : "not here either");
    if (frame.body) return aq_edge_post(edge, &frame, index);
    aq_edge_body_return(edge, index);
    return aq_edge_post(edge, &frame, AQ_EDGE_NO_BODY);
}

enum aq_status aq_edge_fetches_serve(struct aq_edge *edge)
{
    uint32_t index;
    if (!edge->fetch_waits || aq_edge_body_take(edge, &index) == AQ_AGAIN) return AQ_OK;
    edge->fetch_waits = false;
    return answer(edge, &edge->fetch, index);
}

enum aq_status aq_edge_fetch_asked(struct aq_edge *edge, const struct aq_frame *frame)
{
    const char *wrong = NULL;
    if (!edge->config.cache)
        wrong = "while its codec keeps no messages";
    else if (frame->micro_batch > UINT16_MAX)
        wrong = "of a variant that there cannot be";
    else if (edge->fetch_waits)
        wrong = "before the last one was answered";
    else if (++edge->fetches_since > edge->shape.batch)
        wrong = "more often than a step has samples, and sends none";
    if (wrong)
        return aq_fail(AQ_PROTO, "edge", "edge %u: the other side asks for the message of sample %llu %s",
                       edge->shape.edge, (unsigned long long)frame->argument, wrong);
    edge->fetch = (struct aq_edge_fetch){.key = aq_edge_key(edge, frame->argument, (uint16_t)frame->micro_batch),
                                         .version = frame->step};
    edge->fetch_waits = true;
    return AQ_OK;
}

/* Move what waits in the link's slots into our own memory, so that the peer has credits for its answer. */
static enum aq_status spill(struct aq_edge *edge, struct aq_edge_queue *queue)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        const uint32_t at = (queue->first + i) % AQ_EDGE_QUEUE_MAX;
        struct aq_frame *frame = &queue->frames[at];
        if (queue->spilled[at] || !frame->body) continue;
        void *copy;
        AQ_TRY(aq_map(frame->body_bytes, &copy));
        memcpy(copy, frame->body, frame->body_bytes);
        aq_link_release(edge->config.link, frame->body);
        frame->body = copy;
        queue->spilled[at] = true;
    }
    return AQ_OK;
}

enum aq_status aq_edge_fetch(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version,
                             struct aq_frame *message)
{
    const uint64_t sample = key->sample;
    const uint64_t deadline = aq_clock_after(edge->config.silence_ns);
    const struct aq_frame ask = {
        .kind = AQ_FRAME_FETCH, .argument = sample, .micro_batch = key->variant, .step = version};
    edge->awaiting = true;
    edge->arrived = false;
    enum aq_status status = aq_edge_post(edge, &ask, AQ_EDGE_NO_BODY);
    while (status == AQ_OK && !edge->arrived) {
        const uint32_t seen = aq_bell_count(edge->config.bell);
        AQ_TRY_GOTO(aq_edge_pump(edge), out);
        if (edge->arrived) break;
        AQ_TRY_GOTO(spill(edge, &edge->forwards), out);
        AQ_TRY_GOTO(spill(edge, &edge->backwards), out);
        const uint64_t soon = aq_edge_carrying(edge) ? aq_clock_after(AQ_EDGE_POLL_NS) : deadline;
        status = aq_bell_wait(edge->config.bell, seen, soon < deadline ? soon : deadline);
        if (status == AQ_TIMEOUT && soon < deadline) status = AQ_OK;
        if (status == AQ_TIMEOUT)
            status = aq_fail(AQ_TIMEOUT, "edge", "edge %u: no answer for the lost message of sample %llu",
                             edge->shape.edge, (unsigned long long)sample);
    }
out:
    edge->awaiting = false;
    if (status != AQ_OK) return status;
    if (edge->message.argument != sample || edge->message.micro_batch != key->variant) {
        aq_edge_message_release(edge, &edge->message);
        return aq_fail(AQ_PROTO, "edge", "edge %u: asked for the message of sample %llu, got that of %llu",
                       edge->shape.edge, (unsigned long long)sample, (unsigned long long)edge->message.argument);
    }
    if (!edge->message.body) return AQ_NOTFOUND;
    if (edge->message.body_bytes != aq_codec_message_bytes(edge->forward)) {
        aq_edge_message_release(edge, &edge->message);
        return aq_fail(AQ_PROTO, "edge", "edge %u: a message of %u bytes came, it has %zu", edge->shape.edge,
                       edge->message.body_bytes, aq_codec_message_bytes(edge->forward));
    }
    /* Version 0 is none, and the last number has no successor. */
    const uint64_t came = edge->message.step;
    if (version ? came != version : came == 0 || came == UINT64_MAX) {
        aq_edge_message_release(edge, &edge->message);
        return aq_fail(
            AQ_PROTO, "edge", "edge %u: asked for version %llu of the message of sample %llu (0: any), got %llu",
            edge->shape.edge, (unsigned long long)version, (unsigned long long)sample, (unsigned long long)came);
    }
    *message = edge->message;
    return AQ_OK;
}

void aq_edge_message_release(struct aq_edge *edge, struct aq_frame *message)
{
    if (message->body) aq_link_release(edge->config.link, message->body);
    message->body = NULL;
}
