/*
 * edge_heal.c -- a message that one side has lost comes from the other.
 *
 * FETCH (no body) names sample, variant and version; MESSAGE brings the bytes, or none, in the order of the requests.
 * The sender answers from the references that it keeps for micro-batches in flight (it has stored m' already, but the
 * receiver needs m), and where it has not coded the sample since, from its cache; the receiver answers from its cache.
 *
 * A side that knows its cache to have lost messages asks ahead (aq_edge_refill), many at once: the link is filled, and
 * no sample waits for a round trip. Answers go to the cache, and no call waits for them. Only aq_edge_fetch waits: its
 * message is due and not here. Then the bodies that were received and not decoded are moved out of the link's slots
 * into separate memory, so that the answer finds a credit. That memory is bounded by the micro-batches in flight and is
 * taken only there.
 */
#include "edge_heal.h"

#include <string.h>

#include "edge_private.h"

/* Messages asked for ahead: what 400 Mbit/s carry in a third of a second, and 10 Mbit/s in 13 s. */
enum { ASKED_BYTES = 16 << 20 };

void aq_edge_hold(struct aq_edge *edge, uint64_t number, const struct aq_cache_key *key,
                  const struct aq_cache_entry *entry)
{
    struct aq_edge_held *held = &edge->held[number % edge->shape.slots];
    AQ_ASSERT(held->count < edge->shape.micro_batch);
    held->keys[held->count] = *key;
    held->entries[held->count++] = *entry;
}

void aq_edge_unhold(struct aq_edge *edge, uint64_t number)
{
    if (!edge->held) return;
    struct aq_edge_held *held = &edge->held[number % edge->shape.slots];
    while (held->count > 0)
        if (held->entries[--held->count].bytes) aq_cache_release(edge->config.cache, &held->entries[held->count]);
}

static struct aq_channel *requests_of(const struct aq_edge *edge)
{
    return aq_edge_channel(edge, AQ_CHANNEL_ID_fetch);
}

static struct aq_channel *answers_of(const struct aq_edge *edge)
{
    return aq_edge_channel(edge, AQ_CHANNEL_ID_message);
}

/* Frames among AQ_EDGE_REQUESTS: requests, and answers that there is no message. */
static uint32_t requests_out(const struct aq_edge *edge)
{
    return requests_of(edge)->out + answers_of(edge)->out - answers_of(edge)->bodies_out;
}

/* version 0: the oldest, for that is what the frames on their way were coded against. */
static const struct aq_cache_entry *held_find(const struct aq_edge *edge, const struct aq_edge_fetch *fetch)
{
    const struct aq_cache_entry *found = NULL;
    for (uint32_t i = 0; edge->held && i < edge->shape.slots; i++)
        for (uint32_t j = 0; j < edge->held[i].count; j++) {
            const struct aq_cache_key *key = &edge->held[i].keys[j];
            const struct aq_cache_entry *entry = &edge->held[i].entries[j];
            if (key->sample != fetch->key.sample || key->variant != fetch->key.variant) continue;
            if (fetch->version ? entry->version == fetch->version : !found || entry->version < found->version)
                found = entry;
        }
    return found;
}

static struct aq_edge_fetch *fetch_at(struct aq_edge_fetches *fetches, uint32_t i)
{
    return &fetches->items[(fetches->first + i) % AQ_EDGE_ASKS_MAX];
}

static struct aq_edge_fetch fetch_take(struct aq_edge_fetches *fetches)
{
    const struct aq_edge_fetch taken = *fetch_at(fetches, 0);
    fetches->first = (fetches->first + 1) % AQ_EDGE_ASKS_MAX;
    fetches->count--;
    return taken;
}

/* The receiver answers from its cache; so does the sender of what it has not coded meanwhile, or never codes again. */
static bool may_be_cached(const struct aq_edge *edge, const struct aq_edge_fetch *fetch)
{
    return edge->config.cache && (!edge->config.sender || fetch->version == 0 || edge->shape.still);
}

/* Of our own cache. AQ_NOTFOUND: it has none that will do. */
static enum aq_status answer_cached(struct aq_edge *edge, const struct aq_edge_fetch *fetch,
                                    struct aq_cache_entry *mine)
{
    if (!may_be_cached(edge, fetch)) return AQ_NOTFOUND;
    const enum aq_status status = aq_edge_cache_get(edge, &fetch->key, 0, mine);
    if (status == AQ_CORRUPT) return AQ_NOTFOUND;
    AQ_TRY(status);
    if (!edge->config.sender || !fetch->version || mine->version == fetch->version) return AQ_OK;
    aq_cache_release(edge->config.cache, mine);
    return AQ_NOTFOUND;
}

static enum aq_status answer(struct aq_edge *edge, const struct aq_edge_fetch *fetch, uint32_t index)
{
    struct aq_cache_entry mine = {0};
    const struct aq_cache_entry *entry = edge->config.sender ? held_find(edge, fetch) : NULL;
    const bool due = entry && !entry->bytes; /* its row is in transit, with the flag that both ends hold it */
    bool borrowed = false;
    if (!entry || due) {
        const enum aq_status status = answer_cached(edge, fetch, &mine);
        if (status != AQ_OK && status != AQ_NOTFOUND) return status;
        borrowed = status == AQ_OK;
        entry = borrowed ? &mine : NULL;
    }
    if (due && !entry) {
        edge->remake = *fetch;
        edge->remaking = true;
        aq_edge_body_return(edge, index);
        return AQ_OK;
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
    aq_log("edge", 2, "edge %u: the other side lost the message of sample %llu: %s", edge->shape.edge,
           (unsigned long long)fetch->key.sample, frame.body ? "sent" : "not here either");
    if (!frame.body) {
        aq_edge_body_return(edge, index);
        return aq_channel_post(answers_of(edge), &frame, AQ_CHANNEL_BARE);
    }
    return aq_channel_post(answers_of(edge), &frame, index);
}

/* Half of the send buffers stay with training: what is asked ahead must not hold up what is due. */
static bool answer_turn(const struct aq_edge *edge)
{
    const uint32_t bodies = edge->channels->body_count, most = bodies > 1 ? bodies / 2 : 1;
    return answers_of(edge)->bodies_out < most && requests_out(edge) < AQ_EDGE_REQUESTS;
}

/* Does a frame that has come change the sample's message? Its rows are not checked yet. */
static bool changes(const struct aq_frame *frame, const struct aq_edge_fetch *fetch)
{
    for (uint64_t i = 0; i < frame->argument && (i + 1) * AQ_EDGE_ROW_BYTES <= frame->body_bytes; i++) {
        struct aq_edge_row row;
        aq_edge_row_read((const uint8_t *)frame->body + i * AQ_EDGE_ROW_BYTES, &row);
        if (row.sample == fetch->key.sample && row.variant == fetch->key.variant && row.version_after &&
            !(row.flags & AQ_EDGE_HELD))
            return true;
    }
    return false;
}

/*
 * The receiver's: what the other side has lost is the message behind all that it had sent when it asked. A frame that
 * came before the question and is not decoded, or whose decoding has not ended on a device, goes first: it has a slot
 * to come to, for nothing that it waits for waits for this answer.
 */
static bool answer_is_early(const struct aq_edge *edge, const struct aq_edge_fetch *fetch)
{
    const struct aq_channel *forwards = aq_edge_channel(edge, AQ_CHANNEL_ID_forward);
    if (edge->config.sender) return false;
    if (aq_edge_decoding(edge)) return true;
    for (uint32_t i = 0; i < forwards->count; i++)
        if (changes(&aq_channel_at(forwards, i)->frame, fetch)) return true;
    return false;
}

enum aq_status aq_edge_fetches_serve(struct aq_edge *edge)
{
    struct aq_channel *asked = requests_of(edge);
    uint32_t index;
    for (const struct aq_frame *next; (next = aq_channel_ready(asked)) != NULL;) {
        const struct aq_edge_fetch fetch = {.key = aq_edge_key(edge, next->argument, (uint16_t)next->micro_batch),
                                            .version = next->step};
        if (answer_is_early(edge, &fetch) || edge->remaking || !answer_turn(edge)) break;
        if (aq_edge_body_take(edge, &index) != AQ_OK) break;
        (void)aq_channel_take(asked); /* it has no body */
        AQ_TRY(answer(edge, &fetch, index));
    }
    return AQ_OK;
}

static enum aq_status request_arrived(struct aq_channel *channel, const struct aq_frame *frame)
{
    struct aq_edge *edge = channel->set->config.edge;
    const char *wrong = NULL;
    if (!edge->config.cache)
        wrong = "while its codec keeps no messages";
    else if (frame->micro_batch > UINT16_MAX)
        wrong = "of a variant that cannot exist";
    else if (channel->count == channel->bound)
        wrong = "before earlier ones were answered, more than may wait";
    else if (edge->asks_left == 0)
        wrong = "more often than it can have lost one";
    if (wrong)
        return aq_fail(AQ_PROTO, "edge", "edge %u: the other side asks for the message of sample %llu %s",
                       edge->shape.edge, (unsigned long long)frame->argument, wrong);
    edge->asks_left--;
    return aq_channel_keep(channel, frame, 0);
}

/* --- asking ----------------------------------------------------------------------------------------------------- */

static enum aq_status ask(struct aq_edge *edge, const struct aq_edge_fetch *fetch)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_FETCH,
                                   .argument = fetch->key.sample,
                                   .micro_batch = fetch->key.variant,
                                   .step = fetch->version};
    AQ_ASSERT(edge->asking.count < AQ_EDGE_ASKS_MAX);
    AQ_TRY(aq_channel_post(requests_of(edge), &frame, AQ_CHANNEL_BARE));
    *fetch_at(&edge->asking, edge->asking.count++) = *fetch;
    return AQ_OK;
}

static struct aq_edge_fetch *asking_find(struct aq_edge *edge, const struct aq_cache_key *key)
{
    for (uint32_t i = 0; i < edge->asking.count; i++) {
        struct aq_edge_fetch *fetch = fetch_at(&edge->asking, i);
        if (fetch->key.sample == key->sample && fetch->key.variant == key->variant) return fetch;
    }
    return NULL;
}

/* Asked for ahead at once: what fills a long link, and what a slow one brings within seconds. */
static uint32_t asks_ahead(const struct aq_edge *edge)
{
    const uint64_t most = ASKED_BYTES / edge->size.message_bytes;
    return most < 2 ? 2 : most < AQ_EDGE_ASKS_MAX - 1 ? (uint32_t)most : AQ_EDGE_ASKS_MAX - 1;
}

/* Can the cache have had what it does not hold? */
bool aq_edge_refills(const struct aq_edge *edge)
{
    struct aq_cache_stats stats;
    if (!edge->config.cache) return false;
    aq_cache_stats(edge->config.cache, &stats);
    return stats.lost;
}

enum aq_status aq_edge_refill(struct aq_edge *edge, const struct aq_edge_batch *batch)
{
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_cache_entry entry;
        const struct aq_edge_fetch fetch = {.key = aq_edge_key_of(edge, batch, i),
                                            .bytes = aq_edge_message_bytes(edge, batch, i)};
        const enum aq_status status = aq_cache_peek(edge->config.cache, &fetch.key, &entry);
        if (status == AQ_OK || asking_find(edge, &fetch.key)) continue;
        if (status != AQ_NOTFOUND) return status;
        if (edge->asking.count >= asks_ahead(edge) || requests_out(edge) >= AQ_EDGE_REQUESTS) return AQ_AGAIN;
        AQ_TRY(ask(edge, &fetch));
    }
    return AQ_OK;
}

/* Is it an answer to this? Its body, where it has one, is a message. */
static enum aq_status message_check(const struct aq_edge *edge, const struct aq_edge_fetch *fetch,
                                    const struct aq_frame *message)
{
    const unsigned long long sample = fetch->key.sample, came = message->step;
    if (message->argument != sample || message->micro_batch != fetch->key.variant)
        return aq_fail(AQ_PROTO, "edge", "edge %u: asked for the message of sample %llu, got the one of %llu",
                       edge->shape.edge, sample, (unsigned long long)message->argument);
    if (!message->body) return AQ_OK;
    if (message->body_bytes != fetch->bytes)
        return aq_fail(AQ_PROTO, "edge", "edge %u: a message of %u bytes arrived, but it must have %u",
                       edge->shape.edge, message->body_bytes, fetch->bytes);
    /* Version 0 is no version, and the last number has no successor. */
    if (fetch->version ? came == fetch->version : came != 0 && came != UINT64_MAX) return AQ_OK;
    return aq_fail(AQ_PROTO, "edge", "edge %u: asked for version %llu of the message of sample %llu (0: any), got %llu",
                   edge->shape.edge, (unsigned long long)fetch->version, sample, came);
}

enum aq_status aq_edge_keep(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version, uint64_t digest,
                            const void *bytes, uint32_t count)
{
    void *slot;
    AQ_TRY(aq_cache_slot(edge->config.cache, aq_clock_after(edge->config.silence_ns), &slot));
    memcpy(slot, bytes, count);
    const enum aq_status status = aq_cache_put(edge->config.cache, key, version, digest, slot, count);
    if (status != AQ_OK) aq_cache_slot_return(edge->config.cache, slot);
    return status;
}

/* One that was asked for ahead: to the cache, unless something has come there meanwhile, or there is no room. */
static enum aq_status message_keep(struct aq_edge *edge, const struct aq_cache_key *key, const struct aq_frame *message)
{
    struct aq_cache_entry entry;
    enum aq_status status = aq_cache_peek(edge->config.cache, key, &entry);
    if (status != AQ_NOTFOUND) return status;
    status = aq_edge_keep(edge, key, message->step, aq_digest(message->body, message->body_bytes), message->body,
                          message->body_bytes);
    if (status == AQ_AGAIN) return AQ_OK;
    edge->measures.fetched += status == AQ_OK;
    return status;
}

/* For the call that waits for it, or for the cache. */
static enum aq_status answer_arrived(struct aq_channel *channel, const struct aq_frame *frame)
{
    struct aq_edge *edge = channel->set->config.edge;
    if (edge->asking.count == 0) return aq_channel_unexpected(channel->set, frame);
    const struct aq_edge_fetch fetch = fetch_take(&edge->asking);
    struct aq_frame message = *frame;
    enum aq_status status = message_check(edge, &fetch, &message);
    if (status == AQ_OK && fetch.awaited) return aq_channel_keep(channel, &message, 0);
    if (status == AQ_OK && message.body) status = message_keep(edge, &fetch.key, &message);
    aq_edge_message_release(edge, &message);
    return status;
}

/* Until the answer to the one that is awaited is here; others that come first are taken in. */
static enum aq_status answer_wait(struct aq_edge *edge, uint64_t sample)
{
    uint64_t deadline = aq_clock_after(edge->config.silence_ns);
    uint32_t before = edge->asking.count;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(edge->config.eventcount);
        AQ_TRY(aq_edge_pump(edge));
        if (aq_channel_ready(answers_of(edge))) return AQ_OK;
        if (edge->asking.count != before) deadline = aq_clock_after(edge->config.silence_ns);
        before = edge->asking.count;
        AQ_TRY(aq_channel_spill(aq_edge_channel(edge, AQ_CHANNEL_ID_forward)));
        AQ_TRY(aq_channel_spill(aq_edge_channel(edge, AQ_CHANNEL_ID_backward)));
        const uint64_t soon = aq_edge_carrying(edge) ? aq_clock_after(AQ_EDGE_POLL_NS) : deadline;
        const enum aq_status status =
            aq_eventcount_wait(edge->config.eventcount, seen, soon < deadline ? soon : deadline);
        if (status == AQ_TIMEOUT && soon < deadline) continue;
        if (status == AQ_TIMEOUT)
            return aq_fail(AQ_TIMEOUT, "edge", "edge %u: no answer for the lost message of sample %llu",
                           edge->shape.edge, (unsigned long long)sample);
        AQ_TRY(status);
    }
}

enum aq_status aq_edge_fetch(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version, uint32_t bytes,
                             struct aq_frame *message)
{
    const struct aq_edge_fetch fetch = {.key = *key, .version = version, .bytes = bytes, .awaited = true};
    struct aq_edge_fetch *ahead = asking_find(edge, key);
    if (ahead)
        ahead->awaited = true; /* of any version: mostly the one that is wanted */
    else
        AQ_TRY(ask(edge, &fetch));
    AQ_TRY(answer_wait(edge, key->sample));
    struct aq_frame answer = aq_channel_take(answers_of(edge)).frame;
    if (ahead && version && answer.body && answer.step != version) {
        aq_edge_message_release(edge, &answer);
        return aq_edge_fetch(edge, key, version, bytes, message);
    }
    if (!answer.body) return ahead && version ? aq_edge_fetch(edge, key, version, bytes, message) : AQ_NOTFOUND;
    *message = answer;
    return AQ_OK;
}

void aq_edge_message_release(struct aq_edge *edge, struct aq_frame *message)
{
    if (message->body) aq_link_release(edge->config.link, message->body);
    message->body = NULL;
}

static uint32_t requests_most(const struct aq_channels_config *config)
{
    (void)config;
    return AQ_EDGE_ASKS_MAX;
}

static uint32_t answers_most(const struct aq_channels_config *config)
{
    (void)config;
    return 1; /* the one that a call waits for */
}

extern const struct aq_channel_type aq_channel_fetch, aq_channel_message;
const struct aq_channel_type aq_channel_fetch = {.kind = AQ_FRAME_FETCH,
                                                 .direction = AQ_CHANNEL_BOTH,
                                                 .bare = true,
                                                 .bound = requests_most,
                                                 .arrived = request_arrived};
const struct aq_channel_type aq_channel_message = {
    .kind = AQ_FRAME_MESSAGE, .direction = AQ_CHANNEL_BOTH, .bound = answers_most, .arrived = answer_arrived};
