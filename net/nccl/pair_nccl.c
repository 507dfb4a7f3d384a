/*
 * pair_nccl.c -- a pair over NCCL: a channel of two ranks, and moves that are noted until it is free for them.
 */
#include <assert.h>

#include "nccl_channel.h"
#include "pair_private.h"

#if AQ_WITH_NCCL

enum { BLOCKS_MAX = 2 }; /* multiprocessors that a move takes, also while it waits: there are two pairs an edge */

struct pair_nccl {
    struct aq_pair pair;
    struct aq_nccl_channel channel; /* a move is a batch */
    uint32_t peer;
    struct aq_nccl_move moves[AQ_PAIR_MOVES]; /* of move n: [n % AQ_PAIR_MOVES] */
};
static_assert((int)AQ_PAIR_MOVES < (int)AQ_NCCL_BATCHES, "there is room for every move");

static const char *operation(const struct pair_nccl *nccl)
{
    return nccl->channel.stands ? "moving a body" : "opening a communicator";
}

static void nccl_note(struct aq_pair *pair, void *at, size_t bytes)
{
    struct pair_nccl *nccl = (struct pair_nccl *)pair;
    nccl->moves[pair->noted % AQ_PAIR_MOVES] = (struct aq_nccl_move){
        .from = pair->sends ? at : NULL, .to = pair->sends ? NULL : at, .bytes = bytes, .peer = nccl->peer};
}

static enum aq_status nccl_advance(struct pair_nccl *nccl)
{
    struct aq_nccl_channel *channel = &nccl->channel;
    for (;;) {
        const enum aq_status status = aq_nccl_channel_poll(channel, operation(nccl));
        if (status == AQ_AGAIN && channel->stands) return AQ_OK;
        if (status != AQ_OK || channel->told == nccl->pair.noted) return status;
        const struct aq_nccl_move *move = &nccl->moves[(channel->told + 1) % AQ_PAIR_MOVES];
        AQ_TRY(aq_nccl_channel_tell(channel, move, nccl->pair.sends, move, !nccl->pair.sends));
    }
}

static enum aq_status nccl_poll(struct aq_pair *pair)
{
    struct pair_nccl *nccl = (struct pair_nccl *)pair;
    if (nccl->channel.stands && pair->passed == pair->noted) return AQ_OK;
    const enum aq_status status = nccl_advance(nccl);
    pair->passed = nccl->channel.passed;
    return status;
}

static enum aq_status nccl_failed(const struct aq_pair *pair)
{
    const struct pair_nccl *nccl = (const struct pair_nccl *)pair;
    return aq_nccl_channel_failed(&nccl->channel, operation(nccl));
}

static void nccl_close(struct aq_pair *pair)
{
    struct pair_nccl *nccl = (struct pair_nccl *)pair;
    if (pair->noted != pair->passed) aq_pairs_abandon(&pair, 1);
    aq_nccl_channel_close(&nccl->channel);
    aq_free(nccl);
}

static const struct aq_pair_ops OPS = {
    .poll = nccl_poll, .failed = nccl_failed, .note = nccl_note, .close = nccl_close};

enum aq_status aq_pair_open_nccl(const struct aq_pair_config *config, struct aq_pair **out)
{
    const struct aq_nccl_channel_config channel = {.id = config->id,
                                                   .rank = config->first ? 0 : 1,
                                                   .size = 2,
                                                   .blocks_max = BLOCKS_MAX,
                                                   .silence_ns = config->silence_ns,
                                                   .who = config->name};
    struct pair_nccl *nccl;
    AQ_TRY(AQ_NEW(1, &nccl));
    nccl->pair = (struct aq_pair){.ops = &OPS, .sends = config->sends};
    nccl->peer = config->first ? 1 : 0;
    const enum aq_status status = aq_nccl_channel_open(&nccl->channel, &channel);
    if (status == AQ_OK)
        *out = &nccl->pair;
    else
        nccl_close(&nccl->pair);
    return status;
}

void aq_pairs_abandon_nccl(struct aq_pair *const *pairs, uint32_t count)
{
    struct aq_nccl_channel *channels[AQ_NCCL_TOGETHER] = {NULL};
    AQ_ASSERT(count <= AQ_NCCL_TOGETHER);
    for (uint32_t i = 0; i < count; i++)
        if (pairs[i] && pairs[i]->ops == &OPS) channels[i] = &((struct pair_nccl *)pairs[i])->channel;
    aq_nccl_channels_abandon(channels, count);
}

#else

/* No caller opens one: aq_nccl_refuse has given the reason on both ends. */
enum aq_status aq_pair_open_nccl(const struct aq_pair_config *config, struct aq_pair **out)
{
    (void)out;
    return aq_fail(AQ_NODEV, "nccl", "%s: built without NCCL", config->name);
}

void aq_pairs_abandon_nccl(struct aq_pair *const *pairs, uint32_t count)
{
    (void)pairs;
    (void)count;
}

#endif
