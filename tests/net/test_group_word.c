/*
 * test_group_word.c -- how many trips, one after another, a reduction of a group takes, and that a word of each rank
 * adds none.
 *
 * Trips are counted, not timed: each message carries the number of trips that its sender has behind it, and who takes
 * it has one more behind it, or what it had. The carrying is done beside the links: messages between two ranks stay in
 * order.
 */
#include <stdatomic.h>

#include "group.h"
#include "group_kit.h"

enum { MESSAGES_MAX = 1024, VALUES = 60000, LAG_TRIPS = 2 };

/* Per pair of ranks, in order of messages; written before the message is posted, read after it has come. */
static struct {
    atomic_uint trips[MESSAGES_MAX]; /* relaxed: the link's own queue orders them */
    uint32_t posted, taken;
} ways[KIT_RANKS_MAX][KIT_RANKS_MAX];
static uint32_t behind[KIT_RANKS_MAX]; /* trips, by rank */
static const struct aq_group_ops *links;

static enum aq_status count_post(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    const uint32_t n = ways[group->rank][to].posted++;
    CASE_EXPECT(group, n < MESSAGES_MAX);
    atomic_store_explicit(&ways[group->rank][to].trips[n], behind[group->rank], memory_order_relaxed);
    return links->post(group, to, chunk, body);
}

static enum aq_status count_take(struct aq_group *group, uint32_t from, struct aq_chunk *chunk, const void **body)
{
    AQ_TRY(links->take(group, from, chunk, body));
    const uint32_t n = ways[from][group->rank].taken++;
    const uint32_t trips = atomic_load_explicit(&ways[from][group->rank].trips[n], memory_order_relaxed) + 1;
    if (trips > behind[group->rank]) behind[group->rank] = trips;
    return AQ_OK;
}

enum what { WORD_ALONE, REDUCTION_ALONE, WORD_AND_REDUCTION, HEARD_BEFORE };

static enum aq_status reduce(struct aq_group *group, uint64_t count, bool coded)
{
    static float rows[KIT_RANKS_MAX][VALUES], errors[KIT_RANKS_MAX][2][VALUES];
    const struct aq_optimizer_tensor tensor = {.count = count};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    if (!coded) return aq_allreduce_mean(group, rows[group->rank], count);
    aq_grad_codec_config_default(&config, "uniform");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, count, &codec));
    const struct aq_compressed asked = {.worker = codec,
                                        .server = codec,
                                        .x = rows[group->rank],
                                        .count = count,
                                        .worker_error = errors[group->rank][0],
                                        .server_error = errors[group->rank][1],
                                        .step = 1};
    const enum aq_status status = aq_compressed_allreduce(group, &asked);
    aq_grad_codec_close(codec);
    return status;
}

/* Trips that it takes on the rank where it takes most. */
static enum aq_status trips_of(struct aq_group *group, enum what what, uint64_t count, bool coded, uint32_t *out)
{
    uint32_t all[KIT_RANKS_MAX];
    uint64_t any;
    AQ_TRY(aq_group_agree(group, count, "the count")); /* what came before is over everywhere */
    behind[group->rank] = 0;
    if (what != REDUCTION_ALONE) AQ_TRY(aq_group_say(group, 1, 2));
    if (what == WORD_ALONE || what == HEARD_BEFORE) AQ_TRY(aq_group_hear(group, &any));
    if (what != WORD_ALONE) AQ_TRY(reduce(group, count, coded));
    if (what != REDUCTION_ALONE) AQ_TRY(aq_group_hear(group, &any));
    AQ_TRY(aq_all_gather(group, &behind[group->rank], sizeof *all, all));
    *out = 0;
    for (uint32_t rank = 0; rank < group->size; rank++)
        if (all[rank] > *out) *out = all[rank];
    return AQ_OK;
}

static enum aq_status run_trips(struct kit_rank *rank)
{
    static struct aq_group_ops counting;
    struct aq_group *group = rank->group;
    uint32_t trips, with, before;
    if (rank->rank == 0) {
        links = group->ops;
        counting = *group->ops;
        counting.post = count_post;
        counting.take = count_take;
    }
    AQ_TRY(aq_group_agree(group, 0, "the table"));
    for (uint32_t peer = 0; peer < group->size; peer++)
        ways[rank->rank][peer].posted = ways[peer][rank->rank].taken = 0;
    AQ_TRY(aq_group_agree(group, 1, "the counts"));
    group->ops = &counting;
    AQ_TRY(trips_of(group, WORD_ALONE, 0, false, &trips));
    KIT_EXPECT(rank, trips == 1);
    const uint64_t counts[] = {200, 9000, VALUES};
    for (uint32_t c = 0; c < 3; c++)
        for (int coded = 0; coded < 2; coded++) {
            AQ_TRY(trips_of(group, REDUCTION_ALONE, counts[c], coded, &trips));
            AQ_TRY(trips_of(group, WORD_AND_REDUCTION, counts[c], coded, &with));
            AQ_TRY(trips_of(group, HEARD_BEFORE, counts[c], coded, &before));
            KIT_EXPECT(rank, c > 0 || trips == LAG_TRIPS); /* a message of each chunk: parts, results */
            KIT_EXPECT(rank, with == trips);
            KIT_EXPECT(rank, before == trips + 1); /* what is saved, and that trips are counted */
        }
    group->ops = links;
    return aq_group_agree(group, 2, "the end");
}

static void test_a_word_beside_a_reduction_costs_no_trip(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; size++) {
        struct kit kit = {
            .size = size, .scheme = "sim", .query = "", .piece_bytes = CASE_CODED_BYTES, .run = run_trips};
        kit_run_well(&kit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_word_beside_a_reduction_costs_no_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
