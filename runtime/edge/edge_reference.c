/*
 * edge_reference.c -- which message a sample is coded against, and its fields in the rows: the rules of version and
 * digest, of both ends and any device.
 *
 * Both directions follow Algorithm 2 of AQ-SGD (Wang et al. 2022, appendix D): the sender codes a - m, both ends add
 * the decoded change to their own m. The rows prove that the two m are equal.
 */
#include <math.h>
#include <string.h>

#include "edge_heal.h"
#include "edge_private.h"

struct aq_cache_key aq_edge_key(const struct aq_edge *edge, uint64_t sample, uint16_t variant)
{
    return (struct aq_cache_key){
        .sample = sample, .edge = edge->shape.edge, .variant = variant, .side = edge->config.sender ? 0 : 1};
}

struct aq_cache_key aq_edge_key_of(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i)
{
    return aq_edge_key(edge, batch->sample_ids[i], aq_edge_variant(batch, i));
}

uint32_t aq_edge_rows(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i)
{
    const uint32_t rows = batch->lengths ? batch->lengths[i] : edge->shape.rows;
    AQ_ASSERT(rows >= 1 && rows <= edge->shape.rows);
    return rows;
}

uint32_t aq_edge_message_bytes(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i)
{
    return (uint32_t)aq_codec_message_bytes_of(edge->forward, aq_edge_rows(edge, batch, i));
}

bool aq_edge_warms_up(const struct aq_edge *edge, uint64_t step)
{
    return step < edge->shape.warmup_steps;
}

/* The stream of random numbers of one sample in one direction. */
struct aq_rng_key aq_edge_round_key_of(const struct aq_edge_shape *shape, const struct aq_edge_batch *batch, uint32_t i,
                                       bool forward)
{
    const uint64_t edge_step = ((uint64_t)shape->edge * 2 + (forward ? 0 : 1)) << 48 | batch->step;
    const uint64_t variant = aq_edge_variant(batch, i);
    return aq_rng_key(shape->seed, AQ_RNG_ROUND, edge_step, batch->sample_ids[i] ^ variant << 48);
}

enum aq_status aq_edge_cache_get(struct aq_edge *edge, const struct aq_cache_key *key, uint32_t bytes,
                                 struct aq_cache_entry *entry)
{
    const uint64_t begin = aq_clock_ns();
    enum aq_status status = aq_cache_get(edge->config.cache, key, aq_clock_after(edge->config.silence_ns), entry);
    edge->measures.cache_ns += aq_clock_ns() - begin;
    if (status == AQ_OK && bytes && entry->byte_count != bytes) { /* of a sample of another length: not ours */
        aq_cache_release(edge->config.cache, entry);
        status = AQ_CORRUPT;
    }
    if (status == AQ_CORRUPT) aq_error_clear(); /* a loss is dealt with: a later failure is not this one */
    return status;
}

static enum aq_status cache_slot(struct aq_edge *edge, void **slot)
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

/* The other side's message: AQ_NOTFOUND where it has none. */
static enum aq_status reference_fetch(struct aq_edge *edge, const struct aq_cache_key *key, uint64_t version,
                                      uint32_t bytes, struct aq_edge_reference *out)
{
    AQ_TRY(aq_edge_fetch(edge, key, version, bytes, &out->message));
    const struct aq_frame *message = &out->message;
    out->fetched = true;
    edge->measures.fetched++;
    out->entry = (struct aq_cache_entry){.bytes = message->body,
                                         .byte_count = message->body_bytes,
                                         .version = message->step,
                                         .digest = aq_digest(message->body, message->body_bytes)};
    return AQ_OK;
}

/* Its own, else the receiver's, else none; none while epochs go uncompressed. */
static enum aq_status reference_for_sending(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                            struct aq_edge_reference *out)
{
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    const uint32_t bytes = aq_edge_message_bytes(edge, batch, i);
    if (aq_edge_warms_up(edge, batch->step)) return AQ_NOTFOUND;
    const enum aq_status status = aq_edge_cache_get(edge, &key, bytes, &out->entry);
    if (status == AQ_NOTFOUND && !aq_edge_refills(edge)) return AQ_NOTFOUND;
    if (status == AQ_NOTFOUND || status == AQ_CORRUPT)
        AQ_TRY(reference_fetch(edge, &key, 0, bytes, out));
    else
        AQ_TRY(status);
    if (!(out->entry.version & AQ_EDGE_WIDE_VERSION) || aq_edge_wide_of(edge, edge->forward)) return AQ_OK;
    out->warm = !out->fetched; /* of a run that had a wide codec: no codec here reads it */
    aq_edge_reference_release(edge, out);
    return AQ_NOTFOUND;
}

/* Its own where version and digest agree with the row, else the sender's. */
static enum aq_status reference_for_receiving(struct aq_edge *edge, const struct aq_edge_row *row, uint32_t bytes,
                                              struct aq_edge_reference *out)
{
    const struct aq_cache_key key = aq_edge_key(edge, row->sample, row->variant);
    const struct aq_cache_entry *entry = &out->entry;
    enum aq_status status = aq_edge_cache_get(edge, &key, bytes, &out->entry);
    if (status == AQ_OK) {
        if (entry->version == row->version_before && entry->digest == row->digest_before) return AQ_OK;
        aq_log("edge", 1, "edge %u sample %llu: holds version %llu, coded against %llu: fetching it", edge->shape.edge,
               (unsigned long long)row->sample, (unsigned long long)entry->version,
               (unsigned long long)row->version_before);
        aq_cache_release(edge->config.cache, &out->entry);
    } else if (status != AQ_NOTFOUND && status != AQ_CORRUPT) {
        return status;
    }
    status = reference_fetch(edge, &key, row->version_before, bytes, out);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the sender no longer has message version %llu",
                       edge->shape.edge, (unsigned long long)row->sample, (unsigned long long)row->version_before);
    AQ_TRY(status);
    if (entry->digest == row->digest_before && entry->byte_count == bytes) return AQ_OK;
    aq_edge_reference_release(edge, out);
    return aq_fail(AQ_CORRUPT, "edge",
                   "edge %u sample %llu: the message that was fetched is not the one it was coded against",
                   edge->shape.edge, (unsigned long long)row->sample);
}

enum aq_status aq_edge_reference_send(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                      struct aq_edge_reference *out)
{
    if (edge->shape.still) {
        AQ_TRY(aq_edge_cached_reference(edge, batch, i, out));
        return out->held ? AQ_OK : cache_slot(edge, &out->slot);
    }
    const enum aq_status status = reference_for_sending(edge, batch, i, out);
    if (status != AQ_NOTFOUND) AQ_TRY(status);
    out->warm = status == AQ_OK;
    return cache_slot(edge, &out->slot);
}

enum aq_status aq_edge_reference_receive(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                         const struct aq_edge_row *row, struct aq_edge_reference *out)
{
    if (row->flags & AQ_CODED_RAW) return AQ_OK;
    if (row->flags & AQ_EDGE_HELD) return aq_edge_cached_held(edge, batch, i, row, out);
    if (!(row->flags & AQ_CODED_KEYFRAME)) {
        AQ_TRY(reference_for_receiving(edge, row, aq_edge_message_bytes(edge, batch, i), out));
        out->warm = true;
    }
    return cache_slot(edge, &out->slot);
}

void aq_edge_reference_release(struct aq_edge *edge, struct aq_edge_reference *reference)
{
    aq_edge_message_release(edge, &reference->message);
    if (reference->warm && !reference->fetched) aq_cache_release(edge->config.cache, &reference->entry);
    reference->warm = reference->fetched = reference->held = false;
}

void aq_edge_reference_close(struct aq_edge *edge, struct aq_edge_reference *reference)
{
    if (reference->slot) aq_cache_slot_return(edge->config.cache, reference->slot);
    aq_edge_reference_release(edge, reference);
    *reference = (struct aq_edge_reference){0};
}

/* m' to the cache; m to those that are held until the gradient is back. */
static enum aq_status keep_sent(struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i, bool forget,
                                struct aq_edge_reference *reference, struct aq_edge_row *row)
{
    const struct aq_cache_key key = aq_edge_key_of(edge, batch, i);
    if (row->flags & AQ_CODED_RAW) {
        aq_log("edge", 2, "edge %u sample %llu step %llu: values beyond the store or not finite, sent raw",
               edge->shape.edge, (unsigned long long)row->sample, (unsigned long long)batch->step);
        AQ_TRY(aq_cache_drop(edge->config.cache, &key));
    } else {
        const uint64_t bytes = aq_edge_message_bytes(edge, batch, i);
        row->version_before = reference->warm ? reference->entry.version : 0;
        row->digest_before = reference->warm ? reference->entry.digest : 0;
        row->version_after = (row->version_before + 1) | (row->flags & AQ_EDGE_WIDE ? AQ_EDGE_WIDE_VERSION : 0);
        row->digest_after = aq_digest(reference->slot, bytes);
        if (forget) {
            edge->measures.afresh++;
            AQ_TRY(aq_cache_drop(edge->config.cache, &key)); /* the slot goes back when the sample is closed */
        } else {
            AQ_TRY(
                aq_cache_put(edge->config.cache, &key, row->version_after, row->digest_after, reference->slot, bytes));
            reference->slot = NULL;
        }
    }
    if (!reference->warm || reference->fetched) return AQ_OK;
    aq_edge_hold(edge, aq_edge_number(batch), &key, &reference->entry);
    reference->warm = false;
    return AQ_OK;
}

/* The largest finite magnitude of a raw body. */
static double raw_peak(const uint8_t *body, uint64_t values)
{
    float peak = 0;
    for (uint64_t v = 0; v < values; v++) {
        float value;
        memcpy(&value, body + v * sizeof value, sizeof value);
        value = fabsf(value);
        if (value > peak && value < INFINITY) peak = value;
    }
    return (double)peak;
}

enum aq_status aq_edge_sent(struct aq_edge *edge, const struct aq_codec *codec, bool forward, bool wide,
                            const struct aq_edge_batch *batch, uint32_t i, const struct aq_codec_result *result,
                            const uint8_t *body, struct aq_edge_reference *reference, struct aq_edge_row *row)
{
    const bool raw = result->flags & AQ_CODED_RAW; /* by the values: a codec that is plain fp32 does not set the flag */
    const uint64_t values = (uint64_t)aq_edge_rows(edge, batch, i) * edge->shape.columns;
    const double peak = raw && body ? raw_peak(body, values) : 0;
    *row = (struct aq_edge_row){.sample = batch->sample_ids[i],
                                .body_bytes = result->body_bytes,
                                .flags = (uint16_t)result->flags,
                                .variant = aq_edge_variant(batch, i)};
    if (wide && !raw) row->flags |= AQ_EDGE_WIDE;
    if (codec == edge->raw) row->flags |= AQ_CODED_RAW; /* for a receiver whose codec is another one */
    struct aq_edge_measures *m = &edge->measures;
    const bool warm = reference && reference->warm;
    const bool forget = warm && edge->config.guard && aq_edge_guard_add(edge->config.guard, result);
    if (reference) AQ_TRY(keep_sent(edge, batch, i, forget, reference, row));
    if (!forward) {
        if (edge->config.guard && !edge->config.sender) (void)aq_edge_guard_add(edge->config.guard, result);
        m->raws_back += raw;
        m->wide_back += wide && !raw;
        m->raw_peak_back = fmax(m->raw_peak_back, peak);
        m->gradient2 += result->sum_a2;
        m->gradient_error2 += result->sum_error2;
        return AQ_OK;
    }
    if (warm && !(result->flags & AQ_CODED_RAW)) {
        m->warm_delta2 += result->sum_delta2;
        m->warm_error2 += result->sum_stored2;
    }
    m->samples++;
    m->keyframes += !aq_codec_is_plain(codec) && result->flags & AQ_CODED_KEYFRAME ? 1 : 0;
    m->raws += raw;
    m->wide += wide && !raw;
    m->raw_peak = fmax(m->raw_peak, peak);
    m->sum_a2 += result->sum_a2;
    m->sum_delta2 += result->sum_delta2;
    m->sum_error2 += result->sum_error2;
    m->sum_a += result->sum_a;
    m->values += (double)values;
    return AQ_OK;
}

/* The message after is the sender's, and goes to the cache. */
static enum aq_status keep_received(struct aq_edge *edge, const struct aq_edge_row *row, uint64_t bytes,
                                    struct aq_edge_reference *reference)
{
    const struct aq_cache_key key = aq_edge_key(edge, row->sample, row->variant);
    if (row->flags & AQ_CODED_RAW) return aq_cache_drop(edge->config.cache, &key);
    if (row->flags & AQ_EDGE_HELD) return AQ_OK;
    const uint64_t digest = aq_digest(reference->slot, bytes);
    const uint64_t wide = row->flags & AQ_EDGE_WIDE ? AQ_EDGE_WIDE_VERSION : 0;
    if (digest != row->digest_after || row->version_after != ((row->version_before + 1) | wide))
        return aq_fail(AQ_CORRUPT, "edge", "edge %u sample %llu: the message after decoding is not the sender's",
                       edge->shape.edge, (unsigned long long)row->sample);
    AQ_TRY(aq_cache_put(edge->config.cache, &key, row->version_after, digest, reference->slot, bytes));
    reference->slot = NULL;
    return AQ_OK;
}

enum aq_status aq_edge_received(struct aq_edge *edge, bool forward, const struct aq_edge_batch *batch, uint32_t i,
                                const struct aq_edge_row *row, struct aq_edge_reference *reference)
{
    if (reference) AQ_TRY(keep_received(edge, row, aq_edge_message_bytes(edge, batch, i), reference));
    if (!forward || edge->config.sender) return AQ_OK;
    edge->measures.samples++;
    edge->measures.keyframes += row->flags & AQ_CODED_KEYFRAME ? 1 : 0;
    edge->measures.raws += row->flags & AQ_CODED_RAW ? 1 : 0;
    edge->measures.held += row->flags & AQ_EDGE_HELD ? 1 : 0;
    return AQ_OK;
}

/* Fault of a row with the flag that both ends hold the message; NULL: it has no fault. */
static const char *held_wrong(const struct aq_edge *edge, const struct aq_edge_row *row, bool remembered)
{
    if (!edge->shape.still || !remembered) return "announces a held message, but activations change here";
    if (row->flags != AQ_EDGE_HELD || row->body_bytes != 0) return "is held, and coded, too";
    if (row->version_before == 0 || row->version_before != row->version_after ||
        row->digest_before != row->digest_after)
        return "is held, and names another message after";
    return NULL;
}

/* Fault of a row whose flags or versions name the wide codec; NULL: it has no fault. */
static const char *wide_wrong(const struct aq_edge *edge, const struct aq_codec *codec, const struct aq_edge_row *row,
                              bool remembered)
{
    const bool said = row->flags & AQ_EDGE_WIDE, held = row->flags & AQ_EDGE_HELD;
    const bool before = row->version_before & AQ_EDGE_WIDE_VERSION, after = row->version_after & AQ_EDGE_WIDE_VERSION;
    if ((said || before || after) && !aq_edge_wide_of(edge, codec)) return "is wide, and no codec here is";
    if (said && row->flags & (AQ_CODED_RAW | AQ_EDGE_HELD)) return "is wide, and raw or held, too";
    if (held && before != after) return "is held, and becomes wide";
    if (remembered && !held && row->version_after && (after != said || (row->version_before && before != said)))
        return "is wide, and its versions are not, or they are and it is not";
    return NULL;
}

/* Everything about a row that can be known before its body is touched. */
enum aq_status aq_edge_row_check(const struct aq_edge *edge, const struct aq_edge_batch *batch, uint32_t i,
                                 const struct aq_codec *codec, const struct aq_edge_row *row, uint32_t at,
                                 uint32_t body_bytes, bool remembered)
{
    const char *wrong = NULL;
    const bool rawed = row->flags & AQ_CODED_RAW, key = row->flags & AQ_CODED_KEYFRAME;
    const bool held = row->flags & AQ_EDGE_HELD;
    if (row->sample != batch->sample_ids[i])
        wrong = "is of another sample";
    else if (row->variant != aq_edge_variant(batch, i))
        wrong = "is of another variant";
    else if ((row->flags & ~(unsigned)(AQ_CODED_RAW | AQ_CODED_KEYFRAME | AQ_EDGE_HELD | AQ_EDGE_WIDE)) != 0)
        wrong = "has unknown flags";
    else if (wide_wrong(edge, codec, row, remembered))
        wrong = wide_wrong(edge, codec, row, remembered);
    else if (held && held_wrong(edge, row, remembered))
        wrong = held_wrong(edge, row, remembered);
    else if (at > body_bytes || row->body_bytes > body_bytes - at)
        wrong = "is longer than its frame";
    else if (remembered && !rawed && !held && (row->version_after == 0 || key != (row->version_before == 0)))
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
