/*
 * sampler.c -- the order of the samples: Fisher and Yates' shuffle, keyed by (seed, epoch, replica).
 *
 * Nothing is carried from one epoch to the next, so that any rank knows any epoch's order at any time. Steps are
 * numbered over all epochs; a step never crosses an epoch's end.
 *
 * For a part (aq_sampler_open_part) the order of all samples is made, and the samples of the part are kept, with the
 * place of each step's first one.
 */
#include "stages/dataset.h"

struct aq_sampler {
    uint64_t count, seed, steps; /* samples and steps of an epoch, of this replica or of all parts */
    uint32_t batch, replica, replicas;
    bool shuffle;
    /* The orders of two consecutive epochs: epoch e is in order[e & 1]. */
    uint32_t *order[2];
    uint64_t epoch[2]; /* of each order; UINT64_MAX: not made yet */
    /* Of a part: an order has only its samples, and step k of the epoch has those from begin[][k] up to the next. */
    uint32_t *begin[2]; /* steps + 1; NULL: this is no part */
    uint32_t *all;      /* the order of all, while an epoch's part is made */
    uint64_t first, own, shift;
};

enum aq_status aq_sampler_open(uint64_t count, uint32_t batch, uint64_t seed, bool shuffle, struct aq_sampler **out)
{
    return aq_sampler_open_shard(count, batch, seed, shuffle, 0, 1, out);
}

enum aq_status aq_sampler_open_shard(uint64_t count, uint32_t batch, uint64_t seed, bool shuffle, uint32_t replica,
                                     uint32_t replicas, struct aq_sampler **out)
{
    if (replica >= replicas || count % replicas)
        return aq_fail(AQ_INVAL, "sampler", "replica %u of %u of %llu samples: they must divide evenly",
                       (unsigned)replica, (unsigned)replicas, (unsigned long long)count);
    if (count == 0 || batch == 0)
        return aq_fail(AQ_INVAL, "sampler", "%llu samples in batches of %u: both must be at least 1",
                       (unsigned long long)count, (unsigned)batch);
    if (count > UINT32_MAX)
        return aq_fail(AQ_INVAL, "sampler", "%llu samples: at most %u are possible", (unsigned long long)count,
                       (unsigned)UINT32_MAX);
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_sampler), &memory));
    count /= replicas;
    struct aq_sampler *sampler = memory;
    *sampler = (struct aq_sampler){.count = count,
                                   .seed = seed,
                                   .steps = (count + batch - 1) / batch,
                                   .batch = batch,
                                   .replica = replica,
                                   .replicas = replicas,
                                   .shuffle = shuffle,
                                   .epoch = {UINT64_MAX, UINT64_MAX}};
    for (int i = 0; i < 2 && shuffle; i++) {
        enum aq_status status = aq_alloc(count * sizeof(uint32_t), &memory);
        if (status != AQ_OK) {
            aq_sampler_close(sampler);
            return status;
        }
        sampler->order[i] = memory;
    }
    *out = sampler;
    return AQ_OK;
}

void aq_sampler_close(struct aq_sampler *sampler)
{
    if (!sampler) return;
    for (int i = 0; i < 2; i++) {
        aq_free(sampler->order[i]);
        aq_free(sampler->begin[i]);
    }
    aq_free(sampler->all);
    aq_free(sampler);
}

/* A sampler of the order of all has become one of a part. */
static enum aq_status part_open(struct aq_sampler *sampler)
{
    AQ_TRY(AQ_NEW(sampler->count, &sampler->all));
    for (int i = 0; i < 2; i++) {
        AQ_TRY(AQ_NEW(sampler->own, &sampler->order[i]));
        AQ_TRY(AQ_NEW(sampler->steps + 1, &sampler->begin[i]));
    }
    return AQ_OK;
}

enum aq_status aq_sampler_open_part(const struct aq_sampler_part *part, uint32_t batch, uint64_t seed, bool shuffle,
                                    struct aq_sampler **out)
{
    struct aq_sampler *sampler;
    if (part->count == 0 || part->first >= part->all || part->count > part->all - part->first)
        return aq_fail(AQ_INVAL, "sampler", "%llu samples from %llu on are not part of %llu",
                       (unsigned long long)part->count, (unsigned long long)part->first, (unsigned long long)part->all);
    AQ_TRY(aq_sampler_open(part->all, batch, seed, false, &sampler));
    sampler->shuffle = shuffle;
    sampler->first = part->first;
    sampler->own = part->count;
    sampler->shift = part->shift;
    const enum aq_status status = part_open(sampler);
    if (status != AQ_OK)
        aq_sampler_close(sampler);
    else
        *out = sampler;
    return status;
}

uint64_t aq_sampler_part_bytes(const struct aq_sampler_part *part, uint32_t batch)
{
    return (part->all + 2 * (part->count + (part->all + batch - 1) / batch + 1)) * sizeof(uint32_t);
}

uint64_t aq_sampler_steps_per_epoch(const struct aq_sampler *sampler)
{
    return sampler->steps;
}

/* Durstenfeld: from the end on, a place takes one of those not yet placed; number i of the stream is place i's. */
static void shuffled(const struct aq_sampler *sampler, uint64_t epoch, uint32_t *order)
{
    struct aq_rng_key key = aq_rng_key(sampler->seed, AQ_RNG_SHUFFLE, epoch, sampler->replica);
    for (uint64_t i = 0; i < sampler->count; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = sampler->count - 1; i > 0; i--) {
        uint64_t j = aq_rng_below(&key, i, i + 1);
        uint32_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* Makes the order of all, and keeps the samples of the part, as indices within it. */
static void make_part(struct aq_sampler *sampler, uint64_t epoch, unsigned slot)
{
    uint32_t *order = sampler->order[slot], *begin = sampler->begin[slot], met = 0;
    if (sampler->shuffle) shuffled(sampler, epoch, sampler->all);
    for (uint64_t place = 0; place < sampler->count; place++) {
        const uint64_t sample = sampler->shuffle ? sampler->all[place] : place;
        if (place % sampler->batch == 0) begin[place / sampler->batch] = met;
        if (sample >= sampler->first && sample - sampler->first < sampler->own)
            order[met++] = (uint32_t)(sample - sampler->first);
    }
    AQ_ASSERT(met == sampler->own);
    begin[sampler->steps] = met;
}

/* The slot of an epoch's order, which is made if it is missing. */
static unsigned slot_of(struct aq_sampler *sampler, uint64_t epoch)
{
    const unsigned slot = epoch & 1;
    if (sampler->epoch[slot] == epoch) return slot;
    if (sampler->begin[slot])
        make_part(sampler, epoch, slot);
    else
        shuffled(sampler, epoch, sampler->order[slot]);
    sampler->epoch[slot] = epoch;
    return slot;
}

uint32_t aq_sampler_size(struct aq_sampler *sampler, uint64_t step)
{
    const uint64_t at = step + sampler->shift, place = at % sampler->steps;
    const uint64_t left = sampler->count - place * sampler->batch;
    if (!sampler->begin[0]) return left < sampler->batch ? (uint32_t)left : sampler->batch;
    const uint32_t *begin = sampler->begin[slot_of(sampler, at / sampler->steps)];
    return begin[place + 1] - begin[place];
}

uint64_t aq_sampler_at(struct aq_sampler *sampler, uint64_t step, uint32_t position)
{
    AQ_ASSERT(position < aq_sampler_size(sampler, step));
    const uint64_t at = step + sampler->shift, epoch = at / sampler->steps, in_epoch = at % sampler->steps;
    if (sampler->begin[0]) {
        const unsigned slot = slot_of(sampler, epoch);
        return sampler->order[slot][sampler->begin[slot][in_epoch] + position];
    }
    const uint64_t place = in_epoch * sampler->batch + position;
    if (!sampler->shuffle) return place * sampler->replicas + sampler->replica;
    return (uint64_t)sampler->order[slot_of(sampler, epoch)][place] * sampler->replicas + sampler->replica;
}
