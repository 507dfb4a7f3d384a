/*
 * test_group_again.c -- a reduction that fails because a rank is lost, and is made again by the others over the links
 * that they have: whatever has been sent by then. Of floats, and through a codec, whose errors are put back before.
 */
#include <stdatomic.h>
#include <time.h>

#include "group.h"
#include "group_kit.h"

enum { RANKS = 4, LOST = RANKS - 1, VALUES_MAX = 300000 };

static struct {
    bool stalls;    /* the lost rank is silent, and its links stay; else they end */
    uint32_t posts; /* that it makes before it is lost */
    uint32_t values;
    const struct aq_grad_codec *codec; /* NULL: floats */
    atomic_uint reached;               /* it is: 1. relaxed: only a hint to end */
    atomic_uint left;                  /* ranks that have left the first group; seq_cst: a barrier */
    atomic_uint done;                  /* ranks that have the mean */
    atomic_uint finished;              /* the first attempt came to its end on that many */
} plan;

static const struct aq_group_ops *links;
static float rows[RANKS][VALUES_MAX], worker[RANKS][VALUES_MAX], server[RANKS][VALUES_MAX];
static float calm[LOST][VALUES_MAX], calm_worker[LOST][VALUES_MAX]; /* of ranks that were never more */

static float value_of(uint32_t rank, uint32_t i)
{
    return (float)((i * 2654435761u + rank * 40503u) % 10007) * (rank == 1 ? 1e-3f : 0.7f);
}

static void fill(uint32_t rank)
{
    for (uint32_t i = 0; i < plan.values; i++) {
        rows[rank][i] = value_of(rank, i);
        worker[rank][i] = value_of(rank, i + 7) * 0.1f;
        server[rank][i] = value_of(rank, i + 9) * 0.01f;
    }
}

static enum aq_status reduce(struct kit_rank *rank)
{
    const uint32_t r = rank->rank;
    const struct aq_compressed asked = {.worker = plan.codec,
                                        .server = plan.codec,
                                        .x = rows[r],
                                        .count = plan.values,
                                        .worker_error = worker[r],
                                        .server_error = server[r],
                                        .whole = RANKS,
                                        .step = 3};
    return plan.codec ? aq_compressed_allreduce(rank->group, &asked)
                      : aq_allreduce_mean(rank->group, rows[r], plan.values);
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static enum aq_status post_some(struct aq_group *group, uint32_t to, const struct aq_chunk *chunk, const void *body)
{
    if (group->rank == LOST && plan.posts-- == 0) return AQ_IO;
    return links->post(group, to, chunk, body);
}

/* What the launcher's word is to a worker. */
static enum aq_status told(void *context)
{
    (void)context;
    return plan.stalls && atomic_load_explicit(&plan.reached, memory_order_relaxed) ? AQ_ABORTED : AQ_AGAIN;
}

static enum aq_status open_over(struct kit_rank *rank, uint32_t size, uint64_t first)
{
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = size,
                                           .links = rank->links,
                                           .eventcount = rank->eventcount,
                                           .silence_ns = 60000000000,
                                           .piece_bytes = KIT_PIECE_BYTES,
                                           .meanwhile = first ? NULL : told,
                                           .look_ns = 1000000,
                                           .first = first};
    return aq_group_open_links(&config, &rank->group);
}

static enum aq_status lose(struct kit_rank *rank, const struct aq_group_ops *counting)
{
    rank->group->ops = counting;
    const enum aq_status status = reduce(rank);
    KIT_EXPECT(rank, status == AQ_IO || plan.posts > 0);
    atomic_store_explicit(&plan.reached, 1, memory_order_relaxed);
    while (plan.stalls && atomic_load(&plan.done) < LOST) /* its links live as long as the others need them to */
        nap();
    return AQ_IO;
}

static enum aq_status leave(struct kit_rank *rank)
{
    uint64_t ended;
    enum aq_status status = AQ_AGAIN;
    if (plan.stalls) aq_link_halt(rank->links[LOST]);
    while (status == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(rank->eventcount);
        status = aq_group_leave(rank->group, &ended);
        if (status == AQ_AGAIN) (void)aq_eventcount_wait(rank->eventcount, seen, KIT_SECONDS(20));
    }
    KIT_EXPECT(rank, (ended & ~(1ull << LOST)) == 0);
    return status;
}

static enum aq_status run_again(struct kit_rank *rank)
{
    static struct aq_group_ops counting;
    aq_group_close(rank->group);
    AQ_TRY(open_over(rank, RANKS, 0));
    if (rank->rank == LOST) {
        links = rank->group->ops;
        counting = *links;
        counting.post = post_some;
    }
    fill(rank->rank);
    if (rank->rank == LOST) return lose(rank, &counting);
    if (reduce(rank) == AQ_OK)
        atomic_fetch_add(&plan.finished, 1);
    else
        AQ_TRY(leave(rank));
    KIT_EXPECT(rank, aq_group_number(rank->group) < 1000);
    atomic_fetch_add(&plan.left, 1);
    while (atomic_load(&plan.left) < LOST)
        nap();
    aq_group_close(rank->group);
    rank->group = NULL;
    aq_link_close(rank->links[LOST]);
    rank->links[LOST] = NULL;
    AQ_TRY(open_over(rank, LOST, 1000));
    fill(rank->rank);
    AQ_TRY(reduce(rank));
    for (uint32_t i = 0; i < plan.values && !plan.codec; i++) {
        const float mean = ((value_of(0, i) + value_of(1, i)) + value_of(2, i)) * (1.0f / 3);
        KIT_EXPECT(rank, rows[rank->rank][i] == mean);
    }
    if (plan.codec) {
        KIT_EXPECT(rank, memcmp(rows[rank->rank], calm[rank->rank], plan.values * sizeof(float)) == 0);
        KIT_EXPECT(rank, memcmp(worker[rank->rank], calm_worker[rank->rank], plan.values * sizeof(float)) == 0);
    }
    AQ_TRY(aq_group_agree(rank->group, 1, "the end"));
    atomic_fetch_add(&plan.done, 1);
    return AQ_OK;
}

static void lose_after_each_post(void)
{
    const uint32_t values = plan.values;
    const struct aq_grad_codec *codec = plan.codec;
    for (int stalls = 0; stalls < 2; stalls++)
        for (uint32_t posts = 0; posts < 60; posts += posts < 12 ? 1 : 7) {
            struct kit kit = {.size = RANKS, .scheme = "sim", .query = "latency_ms=2&rate_mbps=400", .run = run_again};
            memset(&plan, 0, sizeof plan);
            plan.stalls = stalls;
            plan.posts = posts;
            plan.values = values;
            plan.codec = codec;
            kit_run(&kit);
            for (uint32_t r = 0; r < LOST; r++)
                if (kit.ranks[r].status != AQ_OK)
                    fail_msg("stalls %d, after %u posts, rank %u: %s: %s", stalls, posts, r,
                             aq_status_text(kit.ranks[r].status), aq_error_text());
        }
}

static void test_the_others_reduce_again_whatever_a_lost_rank_has_sent(void **state)
{
    (void)state;
    plan.values = 60000;
    plan.codec = NULL;
    lose_after_each_post();
}

static enum aq_status run_calm(struct kit_rank *rank)
{
    fill(rank->rank);
    AQ_TRY(reduce(rank));
    memcpy(calm[rank->rank], rows[rank->rank], sizeof calm[0]);
    memcpy(calm_worker[rank->rank], worker[rank->rank], sizeof calm_worker[0]);
    return AQ_OK;
}

static void test_the_others_code_again_what_they_would_have_coded_alone(void **state)
{
    const struct aq_optimizer_tensor whole = {.count = VALUES_MAX};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    struct kit kit = {.size = LOST, .scheme = "sim", .query = "", .run = run_calm};
    (void)state;
    aq_grad_codec_config_default(&config, "sign"); /* of 8 KiB a piece: two messages of each chunk */
    assert_int_equal(aq_grad_codec_open(&config, &whole, 1, VALUES_MAX, &codec), AQ_OK);
    plan.values = VALUES_MAX;
    plan.codec = codec;
    kit_run_well(&kit);
    lose_after_each_post();
    aq_grad_codec_close(codec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_others_reduce_again_whatever_a_lost_rank_has_sent),
        cmocka_unit_test(test_the_others_code_again_what_they_would_have_coded_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
