/*
 * group_part.c -- a group of some ranks of another group, over the same links: the ranks of one machine, or one rank of
 * each machine.
 *
 * It posts and takes the whole's messages, under the whole's numbers of ranks, in the order in which both ends call
 * collectives of the whole and of its parts. Its collectives are numbered from PART_FIRST on, so that a rank which is
 * in another group's collective is found out as one that is in another collective.
 */
#include "group.h"

#define PART_FIRST (UINT64_C(1) << 40)

struct part {
    struct aq_group group;
    uint32_t rank_of[AQ_GROUP_SIZE_MAX]; /* in the whole */
};

static enum aq_status part_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    const uint32_t rank = ((struct part *)group)->rank_of[to];
    group->whole->posted[rank]++;
    return group->whole->ops->post(group->whole, rank, chunk, body);
}

/* A collective has ended before the next one starts: what the whole has posted beyond the part's count came before. */
static enum aq_status part_settle(struct aq_group *group, uint32_t to, uint64_t count)
{
    const uint32_t rank = ((struct part *)group)->rank_of[to];
    const uint64_t before = group->whole->posted[rank] - group->posted[to];
    return group->whole->ops->settle(group->whole, rank, before + count);
}

static enum aq_status part_take(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body)
{
    return group->whole->ops->take(group->whole, ((struct part *)group)->rank_of[from], chunk, body);
}

static void part_give(struct aq_group *group, uint32_t from, const void *body)
{
    group->whole->ops->give(group->whole, ((struct part *)group)->rank_of[from], body);
}

static void part_close(struct aq_group *group)
{
    aq_group_deinit(group);
    aq_free(group);
}

static const struct aq_group_ops PART_OPS = {
    .name = "part",
    .post = part_post,
    .settle = part_settle,
    .take = part_take,
    .give = part_give,
    .close = part_close,
};

enum aq_status aq_group_open_part(struct aq_group *whole, const uint32_t *ranks, uint32_t count, struct aq_group **out)
{
    uint32_t own = count;
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= whole->size || (i > 0 && ranks[i] <= ranks[i - 1]))
            return aq_fail(AQ_INVAL, "group", "rank %u as number %u of a part: ranks of %u in ascending order",
                           ranks[i], i, whole->size);
        if (ranks[i] == whole->rank) own = i;
    }
    if (own == count || whole->whole)
        return aq_fail(AQ_INVAL, "group", "a part needs a whole group, and ranks that include this one");
    if (whole->isolated || whole->wires_isolated || whole->ops->meet)
        return aq_fail(AQ_NODEV, "group",
                       "a group of GPUs cannot be split into parts, because a part averages in host memory");
    struct part *part;
    AQ_TRY(AQ_NEW(1, &part));
    const struct aq_group_config config = {.rank = own,
                                           .size = count,
                                           .device = whole->device,
                                           .silence_ns = whole->silence_ns,
                                           .piece_bytes = whole->piece_bytes};
    const enum aq_status status = aq_group_init(&part->group, &PART_OPS, false, &config);
    if (status != AQ_OK) {
        part_close(&part->group);
        return status;
    }
    part->group.whole = whole;
    part->group.number = PART_FIRST;
    for (uint32_t i = 0; i < count; i++)
        part->rank_of[i] = ranks[i];
    *out = &part->group;
    return AQ_OK;
}
