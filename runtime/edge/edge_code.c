/*
 * edge_code.c -- a micro-batch's samples to a body and back: reference from the cache, codec, digest, new message to
 * the cache.
 *
 * Both directions follow Algorithm 2 of AQ-SGD (Wang et al. 2022, appendix D): the sender codes a - m, both ends add
 * the decoded change to their own m. The rows carry what proves that the two m are one.
 */
#include <string.h>

#include "edge_private.h"

struct aq_cache_key aq_edge_key(const struct aq_edge *edge, uint64_t sample)
{
    return (struct aq_cache_key){
        .sample = sample, .edge = edge->shape.edge, .variant = 0, .side = edge->config.sender ? 0 : 1};
}

bool aq_edge_warms_up(const struct aq_edge *edge, uint64_t step)
{
    return step < edge->shape.warmup_steps;
}

/* The stream of random numbers of one sample in one direction. */
struct aq_rng_key aq_edge_round_key(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                    bool forward)
{
    const uint64_t edge_step = ((uint64_t)edge->shape.edge * 2 + (forward ? 0 : 1)) << 48 | batch->step;
    return aq_rng_key(edge->shape.seed, AQ_RNG_ROUND, edge_step, batch->sample_ids[i]);
}

enum aq_status aq_edge_cache_get(struct aq_edge *edge, uint64_t sample, struct aq_cache_entry *entry)
{
    const struct aq_cache_key key = aq_edge_key(edge, sample);
    const uint64_t begin = aq_clock_ns();
    const enum aq_status status =
        aq_cache_get(edge->config.cache, &key, aq_clock_after(edge->config.silence_ns), entry);
    edge->measures.cache_ns += aq_clock_ns() - begin;
    if (status == AQ_CORRUPT) aq_error_clear(); /* a loss is dealt with: a later failure is not this one */
    return status;
}

enum aq_status aq_edge_cache_slot(struct aq_edge *edge, void **slot)
{
    const uint64_t begin = aq_clock_ns();
    const enum aq_status status = aq_cache_slot(edge->config.cache, aq_clock_after(edge->config.silence_ns), slot);
    edge->measures.cache_ns += aq_clock_ns() - begin;
    if (status == AQ_AGAIN)
        return aq_fail(AQ_INVAL, "edge",
                       "edge %u: the cache has too few slots for the micro-batches in flight; "
                       "raise cache.slots",
                       edge->shape.edge);
    return status;
}

/*
 * The sender's reference: its own, else the receiver's, else none; none while epochs go uncompressed. *fetched: entry's
 * bytes lie in *message.
 */
enum aq_status aq_edge_reference_for_sending(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                             struct aq_cache_entry *entry, struct aq_frame *message, bool *fetched)
{
    *fetched = false;
    if (aq_edge_warms_up(edge, batch->step)) return AQ_NOTFOUND;
    enum aq_status status = aq_edge_cache_get(edge, batch->sample_ids[i], entry);
    if (status == AQ_NOTFOUND && !edge->config.cache_lost) return AQ_NOTFOUND;
    if (status != AQ_NOTFOUND && status != AQ_CORRUPT) return status;
    status = aq_edge_fetch(edge, batch->sample_ids[i], 0, message);
    if (status != AQ_OK) return status;
    *fetched = true;
    edge->measures.fetched++;
    *entry = (struct aq_cache_entry){.bytes = message->body,
                                     .byte_count = message->body_bytes,
                                     .version = message->step,
                                     .digest = aq_digest(message->body, message->body_bytes)};
    return AQ_OK;
}

void aq_edge_measure_sample(struct aq_edge_measures *m, const struct aq_codec_result *result, double values)
{
    m->samples++;
    m->keyframes += result->flags & AQ_CODED_KEYFRAME ? 1 : 0;
    m->raws += result->flags & AQ_CODED_RAW ? 1 : 0;
    m->sum_a2 += result->sum_a2;
    m->sum_delta2 += result->sum_delta2;
    m->sum_error2 += result->sum_error2;
    m->sum_a += result->sum_a;
    m->values += values;
}

void aq_edge_measure_row(struct aq_edge_measures *m, const struct aq_edge_row *row)
{
    m->samples++;
    m->keyframes += row->flags & AQ_CODED_KEYFRAME ? 1 : 0;
    m->raws += row->flags & AQ_CODED_RAW ? 1 : 0;
}

/* Code one sample of a codec with memory; fills the row. */
static enum aq_status encode_remembered(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                        const float *a, uint8_t *body, uint32_t capacity, struct aq_edge_row *row,
                                        struct aq_stream *stream)
{
    struct aq_cache *cache = edge->config.cache;
    struct aq_cache_entry entry = {0};
    struct aq_frame message = {0};
    struct aq_codec_result result;
    bool fetched = false;
    void *slot = NULL;
    enum aq_status status = aq_edge_reference_for_sending(edge, batch, i, &entry, &message, &fetched);
    if (status != AQ_OK && status != AQ_NOTFOUND) return status;
    const bool warm = status == AQ_OK;
    const struct aq_rng_key key = aq_edge_round_key(edge, batch, i, true);
    const struct aq_cache_key where = aq_edge_key(edge, batch->sample_ids[i]);
    AQ_TRY_GOTO(aq_edge_cache_slot(edge, &slot), out);
    AQ_TRY_GOTO(
        aq_codec_encode(edge->forward, a, warm ? entry.bytes : NULL, &key, body, capacity, NULL, slot, &result, stream),
        out);
    AQ_TRY_GOTO(aq_device_stream_sync(edge->config.device, stream), out);
    row->body_bytes = result.body_bytes;
    row->flags = (uint16_t)result.flags;
    if (result.flags & AQ_CODED_RAW) {
        aq_log("edge", 2, "edge %u sample %llu step %llu: values beyond the store or not finite, sent raw",
               edge->shape.edge, (unsigned long long)row->sample, (unsigned long long)batch->step);
        AQ_TRY_GOTO(aq_cache_drop(cache, &where), out);
    } else {
        const uint64_t bytes = aq_codec_message_bytes(edge->forward);
        row->version_before = warm ? entry.version : 0;
        row->digest_before = warm ? entry.digest : 0;
        row->version_after = row->version_before + 1;
        row->digest_after = aq_digest(slot, bytes);
        AQ_TRY_GOTO(aq_cache_put(cache, &where, row->version_after, row->digest_after, slot, bytes), out);
        slot = NULL;
    }
    aq_edge_measure_sample(&edge->measures, &result, (double)edge->values);
out:
    if (slot) aq_cache_slot_return(cache, slot);
    if (fetched)
        aq_edge_message_release(edge, &message);
    else if (warm && status == AQ_OK)
        aq_edge_hold(edge, batch->micro_batch, batch->sample_ids[i], &entry);
    else if (warm)
        aq_cache_release(cache, &entry);
    return status;
}

static enum aq_status encode_stateless(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                                       const struct aq_edge_batch *batch, uint32_t i, const float *a, uint8_t *body,
                                       uint32_t capacity, struct aq_edge_row *row, struct aq_stream *stream)
{
    struct aq_codec_result result;
    const struct aq_rng_key key = aq_edge_round_key(edge, batch, i, forward);
    AQ_TRY(aq_codec_encode(codec, a, NULL, &key, body, capacity, NULL, NULL, &result, stream));
    AQ_TRY(aq_device_stream_sync(edge->config.device, stream));
    row->body_bytes = result.body_bytes;
    row->flags = (uint16_t)result.flags;
    if (codec == edge->raw) row->flags |= AQ_CODED_RAW; /* for a receiver whose codec is another one */
    /* A raw codec's bodies are raw by choice; the count is of those that their values forced. */
    if (aq_codec_config_of(codec)->kind == AQ_CODEC_RAW) result.flags = 0;
    if (forward) aq_edge_measure_sample(&edge->measures, &result, (double)edge->values);
    return AQ_OK;
}

enum aq_status aq_edge_encode(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                              const struct aq_edge_batch *batch, const float *a, uint8_t *body, uint32_t *bytes,
                              struct aq_stream *stream)
{
    const uint64_t N = edge->values;
    uint32_t at = aq_edge_body_align(batch->samples * AQ_EDGE_ROW_BYTES);
    uint32_t end = batch->samples * AQ_EDGE_ROW_BYTES;
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_row row = {.sample = batch->sample_ids[i]};
        memset(body + end, 0, at - end);
        const uint32_t capacity = (uint32_t)(edge->size.body_bytes_max - at);
        if (forward && edge->config.cache)
            AQ_TRY(encode_remembered(edge, batch, i, a + i * N, body + at, capacity, &row, stream));
        else
            AQ_TRY(encode_stateless(edge, codec, forward, batch, i, a + i * N, body + at, capacity, &row, stream));
        aq_edge_row_write(&row, body + (size_t)i * AQ_EDGE_ROW_BYTES);
        end = at + row.body_bytes;
        at = aq_edge_body_align(end);
    }
    *bytes = end;
    return AQ_OK;
}

/* The receiver's reference for a row: its own where version and digest agree, else the sender's. */
enum aq_status aq_edge_reference_for_receiving(struct aq_edge *edge, const struct aq_edge_row *row,
                                               struct aq_cache_entry *entry, struct aq_frame *message, bool *fetched)
{
    *fetched = false;
    enum aq_status status = aq_edge_cache_get(edge, row->sample, entry);
    if (status == AQ_OK) {
        if (entry->version == row->version_before && entry->digest == row->digest_before) return AQ_OK;
        aq_log("edge", 1, "edge %u sample %llu: holds version %llu, coded against %llu: fetching it", edge->shape.edge,
               (unsigned long long)row->sample, (unsigned long long)entry->version,
               (unsigned long long)row->version_before);
        aq_cache_release(edge->config.cache, entry);
    } else if (status != AQ_NOTFOUND && status != AQ_CORRUPT) {
        return status;
    }
    status = aq_edge_fetch(edge, row->sample, row->version_before, message);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the sender no longer has message version %llu",
                       edge->shape.edge, (unsigned long long)row->sample, (unsigned long long)row->version_before);
    AQ_TRY(status);
    *fetched = true;
    edge->measures.fetched++;
    *entry = (struct aq_cache_entry){.bytes = message->body,
                                     .byte_count = message->body_bytes,
                                     .version = message->step,
                                     .digest = aq_digest(message->body, message->body_bytes)};
    if (entry->digest == row->digest_before && entry->byte_count == aq_codec_message_bytes(edge->forward)) return AQ_OK;
    aq_edge_message_release(edge, message);
    return aq_fail(AQ_CORRUPT, "edge",
                   "edge %u sample %llu: the message that was fetched is not the one it was coded against",
                   edge->shape.edge, (unsigned long long)row->sample);
}

static enum aq_status decode_remembered(struct aq_edge *edge, const struct aq_edge_row *row, const uint8_t *body,
                                        float *x, struct aq_stream *stream)
{
    struct aq_cache *cache = edge->config.cache;
    const struct aq_cache_key where = aq_edge_key(edge, row->sample);
    if (row->flags & AQ_CODED_RAW) {
        AQ_TRY(aq_codec_decode(edge->forward, body, row->body_bytes, row->flags, NULL, x, NULL, stream));
        return aq_cache_drop(cache, &where);
    }
    struct aq_cache_entry entry = {0};
    struct aq_frame message = {0};
    bool fetched = false, have = false;
    void *slot = NULL;
    enum aq_status status = AQ_OK;
    if (!(row->flags & AQ_CODED_KEYFRAME)) {
        AQ_TRY(aq_edge_reference_for_receiving(edge, row, &entry, &message, &fetched));
        have = true;
    }
    AQ_TRY_GOTO(aq_edge_cache_slot(edge, &slot), out);
    AQ_TRY_GOTO(
        aq_codec_decode(edge->forward, body, row->body_bytes, row->flags, have ? entry.bytes : NULL, x, slot, stream),
        out);
    AQ_TRY_GOTO(aq_device_stream_sync(edge->config.device, stream), out);
    const uint64_t bytes = aq_codec_message_bytes(edge->forward);
    const uint64_t digest = aq_digest(slot, bytes);
    if (digest != row->digest_after || row->version_after != row->version_before + 1) {
        status = aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the message after decoding is not the sender's",
                         edge->shape.edge, (unsigned long long)row->sample);
        goto out;
    }
    AQ_TRY_GOTO(aq_cache_put(cache, &where, row->version_after, digest, slot, bytes), out);
    slot = NULL;
out:
    if (slot) aq_cache_slot_return(cache, slot);
    if (fetched)
        aq_edge_message_release(edge, &message);
    else if (have)
        aq_cache_release(cache, &entry);
    return status;
}

/* Everything about a row that can be known before its body is touched. */
enum aq_status aq_edge_row_check(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                 const struct aq_edge_row *row, uint32_t at, uint32_t body_bytes, bool remembered)
{
    const char *wrong = NULL;
    const bool rawed = row->flags & AQ_CODED_RAW, key = row->flags & AQ_CODED_KEYFRAME;
    if (row->sample != batch->sample_ids[i])
        wrong = "is of another sample";
    else if (row->variant != 0 || (row->flags & ~(unsigned)(AQ_CODED_RAW | AQ_CODED_KEYFRAME)) != 0)
        wrong = "has unknown flags";
    else if (at > body_bytes || row->body_bytes > body_bytes - at)
        wrong = "is longer than its frame";
    else if (remembered && !rawed && (row->version_after == 0 || key != (row->version_before == 0)))
        wrong = "has versions that do not fit its flags";
    else if ((!remembered || rawed) && (row->version_before != 0 || row->version_after != 0))
        wrong = "names a message where none is kept";
    else if (rawed && key)
        wrong = "is raw and a keyframe";
    else if (row->version_before == 0 && row->digest_before != 0)
        wrong = "has a digest of what it was not coded against";
    else if (i + 1 == batch->samples && row->body_bytes != body_bytes - at)
        wrong = "is the last, and bytes follow it";
    if (!wrong) return AQ_OK;
    return aq_fail(AQ_PROTO, "edge", "edge %u step %llu micro-batch %u: row %u (sample %llu, expected %llu) %s",
                   edge->shape.edge, (unsigned long long)batch->step, batch->micro_batch, i,
                   (unsigned long long)row->sample, (unsigned long long)batch->sample_ids[i], wrong);
}

enum aq_status aq_edge_decode(struct aq_edge *edge, struct aq_codec *codec, bool forward,
                              const struct aq_edge_batch *batch, const struct aq_frame *frame, float *x,
                              struct aq_stream *stream)
{
    const uint64_t N = edge->values;
    const bool remembered = forward && edge->config.cache;
    const uint8_t *body = frame->body;
    uint32_t at = aq_edge_body_align(batch->samples * AQ_EDGE_ROW_BYTES);
    for (uint32_t i = 0; i < batch->samples; i++) {
        struct aq_edge_row row;
        aq_edge_row_read(body + (size_t)i * AQ_EDGE_ROW_BYTES, &row);
        AQ_TRY(aq_edge_row_check(edge, batch, i, &row, at, frame->body_bytes, remembered));
        if (remembered)
            AQ_TRY(decode_remembered(edge, &row, body + at, x + i * N, stream));
        else
            AQ_TRY(aq_codec_decode(codec, body + at, row.body_bytes, row.flags, NULL, x + i * N, NULL, stream));
        if (forward && !edge->config.sender) aq_edge_measure_row(&edge->measures, &row);
        at = aq_edge_body_align(at + row.body_bytes);
    }
    return AQ_OK;
}
