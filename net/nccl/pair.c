/*
 * pair.c -- see net/pair.h: which kind of pair, and what both kinds have in common.
 */
#include "pair_private.h"

enum aq_status aq_pair_open(const struct aq_pair_config *config, struct aq_pair **out)
{
    AQ_ASSERT(!config->id != !config->offer);
    return config->id ? aq_pair_open_nccl(config, out) : aq_pair_open_ipc(config, out);
}

void aq_pair_close(struct aq_pair *pair)
{
    if (pair) pair->ops->close(pair);
}

void aq_pairs_abandon(struct aq_pair *const *pairs, uint32_t count)
{
    aq_pairs_abandon_nccl(pairs, count);
}

void aq_pair_move(struct aq_pair *pair, void *at, size_t bytes)
{
    AQ_ASSERT(pair->noted - pair->passed < AQ_PAIR_MOVES && bytes > 0);
    pair->noted++;
    pair->ops->note(pair, at, bytes);
}

enum aq_status aq_pair_poll(struct aq_pair *pair)
{
    return pair->ops->poll(pair);
}

enum aq_status aq_pair_failed(const struct aq_pair *pair)
{
    AQ_ASSERT(pair->ops->failed);
    return pair->ops->failed(pair);
}

enum aq_status aq_pair_taken(struct aq_pair *pair, uint64_t moves)
{
    if (moves < pair->passed || moves > pair->noted || !pair->sends || pair->ops->failed)
        return aq_fail(AQ_PROTO, "pair", "the other end reports %llu bodies taken: %llu were given, %llu taken",
                       (unsigned long long)moves, (unsigned long long)pair->noted, (unsigned long long)pair->passed);
    pair->passed = moves;
    return AQ_OK;
}

uint64_t aq_pair_noted(const struct aq_pair *pair)
{
    return pair->noted;
}

uint64_t aq_pair_passed(const struct aq_pair *pair)
{
    return pair->passed;
}
