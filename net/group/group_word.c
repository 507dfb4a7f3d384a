/*
 * group_word.c -- a word of each rank to all, on the way with the reduction that comes next.
 *
 * Whether a step counts is known when the gradients are, and parts of these could leave at once; but what a codec loses
 * of a void step must not stay in its errors. So the words leave first, then as many messages of each chunk as leave
 * before any is taken (AQ_GROUP_LAG + 1), and packing keeps what it changes (collective_compressed.c). The words are
 * taken before the first message. Where one of them stops the reduction all ranks know it at the same place in the
 * program, and which messages are on their way: they are taken and dropped, and errors put back (docs/DECISIONS.md
 * 0300). A rank whose own word stops it posts no message, and the others know.
 *
 * On the wire a word is an all-gather of 8 bytes (docs/FRAME.md, "Chunks").
 */
#include <string.h>

#include "group.h"

/* The links below a group of another kind carry it. */
static struct aq_group *carrier(struct aq_group *group)
{
    return group->host ? group->host : group;
}

enum aq_status aq_group_say(struct aq_group *group, uint64_t word, uint64_t stops)
{
    group = carrier(group);
    struct aq_group_word *say = &group->word;
    struct aq_chunk head;
    AQ_ASSERT(!say->said);
    AQ_TRY(aq_group_begin(group, AQ_COLLECTIVE_ALL_GATHER, 0, sizeof word, &head));
    for (uint32_t to = 0; to < group->size; to++) /* the word before may still be lent */
        if (to != group->rank) AQ_TRY(group->ops->settle(group, to, group->posted[to]));
    head.bytes = sizeof word;
    *say = (struct aq_group_word){.said = group->size > 1, .mine = word, .stops = stops, .any = word, .head = head};
    if (word & stops) say->stopped = UINT64_C(1) << group->rank;
    enum aq_status status = AQ_OK;
    for (uint32_t i = 1; i < group->size && status == AQ_OK; i++)
        status = aq_group_post(group, (group->rank + i) % group->size, &head, &say->mine);
    return status == AQ_OK ? AQ_OK : aq_group_end(group, status);
}

/* All words of a group that has sent its word. */
static enum aq_status take_words(struct aq_group *group)
{
    struct aq_group_word *say = &group->word;
    for (uint32_t i = 1; i < group->size; i++) {
        const uint32_t from = (group->rank + group->size - i) % group->size;
        const void *body;
        uint64_t word;
        AQ_TRY(aq_group_take(group, from, &say->head, &body));
        memcpy(&word, body, sizeof word);
        aq_group_give(group, from, body);
        say->any |= word;
        if (word & say->stops) say->stopped |= UINT64_C(1) << from;
    }
    say->said = false;
    return AQ_OK;
}

enum aq_status aq_group_hear(struct aq_group *group, uint64_t *any)
{
    struct aq_group *on = carrier(group);
    if (group->broken != AQ_OK) return group->broken;
    if (on->broken != AQ_OK) return on->broken;
    const enum aq_status status = on->word.said ? take_words(on) : AQ_OK;
    if (status != AQ_OK) return aq_group_end(on, status);
    *any = on->word.any;
    return AQ_OK;
}

enum aq_status aq_group_words_begin(struct aq_exchange *exchange, bool *rides, bool *stop)
{
    struct aq_group *group = exchange->group, *below = group->whole ? group->whole : group->host;
    uint64_t any;
    *stop = false;
    *rides = group->word.said && exchange->gather && !exchange->sure && !(group->word.mine & group->word.stops);
    if (group->word.said && exchange->gather && !exchange->sure && !*rides) /* the others' messages are on their way */
        return aq_group_words_hear(exchange, stop);
    if (group->word.said && !*rides) {
        AQ_TRY(aq_group_hear(group, &any));
        *stop = group->word.stopped != 0;
    }
    if (below && below->word.said) {
        AQ_TRY(aq_group_hear(below, &any));
        *stop = *stop || below->word.stopped != 0;
    }
    return AQ_OK;
}

enum aq_status aq_group_words_hear(struct aq_exchange *exchange, bool *stop)
{
    struct aq_group *group = exchange->group;
    uint64_t first, count;
    AQ_TRY(take_words(group));
    *stop = group->word.stopped != 0;
    for (uint64_t m = 0; m <= AQ_GROUP_LAG && *stop; m++) {
        if (!aq_exchange_span(exchange, group->rank, m, &first, &count)) break;
        struct aq_chunk part = exchange->head;
        part.piece = (uint32_t)m;
        part.bytes = exchange->ops->bytes(exchange, 0, first, count);
        for (uint32_t from = 0; from < group->size; from++) {
            const void *body;
            if (from == group->rank || (group->word.stopped >> from & 1)) continue;
            AQ_TRY(aq_group_take(group, from, &part, &body));
            aq_group_give(group, from, body);
        }
    }
    return AQ_OK;
}
