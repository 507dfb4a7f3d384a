/*
 * test_group_errors.c -- compressed means whose members change from round to round: nothing is lost on the way but what
 * a lost rank takes with it.
 *
 * Of a round with members M, size m: m * mean + what the ranks have still to send after it = the sum of what the
 * members brought + what they had still to send before. What a rank has still to send is its worker error, and of the
 * buffer's chunks in a round of all W ranks W times the server errors. A rank that misses a round comes back without
 * both.
 */
#include <math.h>

#include "group_kit.h"

enum { RANKS = 4, VALUES = 9001, ALL = 15, ROUNDS = 14, STEADY = 400 };

static const uint32_t members_of[ROUNDS] = {ALL, 7, 7, 11, ALL, ALL, 3, 1, 13, 13, 5, ALL, 9, 7}; /* 0 is in all */

static struct {
    struct aq_grad_codec *codec;
    uint32_t whole; /* ranks of the group that the server errors belong to */
    float x[RANKS][VALUES], worker[RANKS][VALUES], server[RANKS][VALUES];
    double brought[RANKS][VALUES], dropped[RANKS][VALUES]; /* of each rank */
    double means[VALUES];                                  /* rank 0: of m * mean */
} test;

static float value_of(uint32_t rank, uint32_t round, uint32_t i)
{
    const uint32_t mixed = (i * 2654435761u + rank * 40503u + round * 2246822519u) % 10007;
    return ((float)mixed - 4000.0f) * (i % 100 == 7 ? 3e-2f : 1e-3f);
}

static uint32_t ranks_of(uint32_t members, uint32_t out[RANKS])
{
    uint32_t count = 0;
    for (uint32_t w = 0; w < RANKS; w++)
        if (members >> w & 1) out[count++] = w;
    return count;
}

/* A mean of those members. */
static enum aq_status average(struct kit_rank *rank, uint32_t members, uint64_t step)
{
    const uint32_t w = rank->rank;
    uint32_t ranks[RANKS];
    const uint32_t count = ranks_of(members, ranks);
    struct aq_group *group = rank->group;
    if (members != ALL) AQ_TRY(aq_group_open_part(rank->group, ranks, count, &group));
    const struct aq_compressed asked = {.worker = test.codec,
                                        .server = test.codec,
                                        .x = test.x[w],
                                        .count = VALUES,
                                        .worker_error = test.worker[w],
                                        .server_error = test.server[w],
                                        .whole = test.whole,
                                        .step = step};
    const enum aq_status status = aq_compressed_allreduce(group, &asked);
    for (uint32_t i = 0; i < VALUES && w == 0 && status == AQ_OK; i++)
        test.means[i] += (double)test.x[0][i] * count;
    if (members != ALL) aq_group_close(group);
    return status;
}

/* Its process ends. */
static void lose(uint32_t w)
{
    uint64_t first, chunk;
    aq_grad_chunk(VALUES, RANKS, w, &first, &chunk);
    for (uint64_t i = 0; i < VALUES; i++)
        test.dropped[w][i] += (double)test.worker[w][i];
    for (uint64_t i = 0; i < chunk; i++)
        test.dropped[w][first + i] += (double)test.server[w][i] * RANKS;
    memset(test.worker[w], 0, sizeof test.worker[w]);
    memset(test.server[w], 0, sizeof test.server[w]);
}

static enum aq_status run_rounds(struct kit_rank *rank)
{
    const uint32_t w = rank->rank;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (!(members_of[round] >> w & 1)) {
            lose(w);
            continue;
        }
        for (uint32_t i = 0; i < VALUES; i++) {
            test.x[w][i] = value_of(w, round, i);
            test.brought[w][i] += (double)test.x[w][i];
        }
        AQ_TRY(average(rank, members_of[round], round + 1));
    }
    return AQ_OK;
}

static void over(const char *kind, uint32_t whole, enum aq_status (*run)(struct kit_rank *rank))
{
    const struct aq_optimizer_tensor tensor = {.count = VALUES};
    struct aq_grad_codec_config config;
    struct kit kit = {.size = RANKS, .scheme = "sim", .query = "", .run = run};
    memset(&test, 0, sizeof test);
    test.whole = whole;
    assert_true(aq_grad_codec_config_named(&config, kind));
    assert_int_equal(aq_grad_codec_open(&config, &tensor, 1, VALUES, &test.codec), AQ_OK);
    kit_run_well(&kit);
    aq_grad_codec_close(test.codec);
}

static void test_members_change_and_all_that_was_brought_arrives_or_waits(void **state)
{
    static const char *const kinds[] = {"q8", "q4", "q2", "sign"};
    (void)state;
    for (int k = 0; k < 4; k++) {
        double waits = 0;
        over(kinds[k], RANKS, run_rounds);
        for (uint32_t owner = 0; owner < RANKS; owner++) {
            uint64_t first, chunk;
            aq_grad_chunk(VALUES, RANKS, owner, &first, &chunk);
            for (uint64_t i = first; i < first + chunk; i++) {
                double there = test.means[i] + (double)test.server[owner][i - first] * RANKS, brought = 0;
                for (uint32_t w = 0; w < RANKS; w++) {
                    there += (double)test.worker[w][i] + test.dropped[w][i];
                    brought += test.brought[w][i];
                    waits += fabs((double)test.worker[w][i]);
                }
                if (!(fabs(there - brought) <= 2e-4 * (1 + fabs(brought)))) /* 14 rounds of values up to some 100 */
                    fail_msg("%s: float %llu: %.9g has arrived or waits, %.9g was brought", kinds[k],
                             (unsigned long long)i, there, brought);
            }
        }
        assert_true(waits > 0);
    }
}

/* A rank is missing for ever. */
static enum aq_status run_steady(struct kit_rank *rank)
{
    for (uint32_t round = 0; round < STEADY && rank->rank < 3; round++) {
        for (uint32_t i = 0; i < VALUES; i++)
            test.x[rank->rank][i] = value_of(rank->rank, 0, i);
        AQ_TRY(average(rank, 7, round + 1));
    }
    return AQ_OK;
}

/* Root mean square of how far the mean of all rounds is from the true one. */
static double away(const char *kind, uint32_t whole)
{
    double sum = 0;
    over(kind, whole, run_steady);
    for (uint32_t i = 0; i < VALUES; i++) {
        double mean = 0;
        for (uint32_t w = 0; w < 3; w++)
            mean += (double)value_of(w, 0, i) / 3;
        sum += pow(test.means[i] / (3.0 * STEADY) - mean, 2) / VALUES;
    }
    return sqrt(sum);
}

/* What results lose does not add up: their owners send it about as soon as a server with an error of its own. */
static void test_a_rank_that_never_returns_makes_the_mean_no_worse(void **state)
{
    static const char *const kinds[] = {"q4", "q2", "sign"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        const double own = away(kinds[k], 0), waiting = away(kinds[k], RANKS);
        print_message("  %s: %.4g away, with server errors %.4g\n", kinds[k], waiting, own);
        assert_true(waiting < 1.5 * own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_change_and_all_that_was_brought_arrives_or_waits),
        cmocka_unit_test(test_a_rank_that_never_returns_makes_the_mean_no_worse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
