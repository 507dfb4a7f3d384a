/*
 * sampler.c -- the order of the samples: Fisher and Yates' shuffle, keyed by (seed, epoch, replica).
 *
 * Nothing is carried from one epoch to the next, so that any rank knows any epoch's order at any time. Steps are
 * numbered over all epochs; a step never crosses an epoch's end.
 */
#include "stages/dataset.h"

struct aq_sampler {
    uint64_t count, seed, steps; /* samples and steps of an epoch, of this replica */
    uint32_t batch, replica, replicas;
    bool shuffle;
    /* The orders of two epochs that follow each other: epoch e lies in order[e & 1]. */
    uint32_t *order[2];
    uint64_t epoch[2]; /* of each order; UINT64_MAX: not made yet */
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
        return aq_fail(AQ_INVAL, "sampler", "%llu samples: at most %u can be put in order", (unsigned long long)count,
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
    aq_free(sampler->order[0]);
    aq_free(sampler->order[1]);
    aq_free(sampler);
}

uint64_t aq_sampler_steps_per_epoch(const struct aq_sampler *sampler)
{
    return sampler->steps;
}

uint32_t aq_sampler_size(const struct aq_sampler *sampler, uint64_t step)
{
    uint64_t left = sampler->count - step % sampler->steps * sampler->batch;
    return left < sampler->batch ? (uint32_t)left : sampler->batch;
}

/* Durstenfeld: from the end on, a place takes one of those not yet placed; number i of the stream is place i's. */
static void make_order(const struct aq_sampler *sampler, uint64_t epoch, uint32_t *order)
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

uint64_t aq_sampler_at(struct aq_sampler *sampler, uint64_t step, uint32_t position)
{
    AQ_ASSERT(position < aq_sampler_size(sampler, step));
    uint64_t epoch = step / sampler->steps, place = step % sampler->steps * sampler->batch + position;
    if (!sampler->shuffle) return place * sampler->replicas + sampler->replica;
    unsigned slot = epoch & 1;
    if (sampler->epoch[slot] != epoch) {
        make_order(sampler, epoch, sampler->order[slot]);
        sampler->epoch[slot] = epoch;
    }
    return (uint64_t)sampler->order[slot][place] * sampler->replicas + sampler->replica;
}
