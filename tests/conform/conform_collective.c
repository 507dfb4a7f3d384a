/*
 * conform_collective.c -- every collective over links of every transport, bare, under fault+ and under tls+, and for W
 * = 1 to 8: the right bits, the same on all ranks.
 *
 * A new transport is one line in net/transport/transports.def and is run here unasked. The collectives are those of
 * collective_cases.c.
 */
#include <math.h>

#include "collective_cases.h"
#include "group_kit.h"
#include "sample.h"
#include "tls_keys.h"

struct scheme {
    const char *name;
    const char *query;
    uint32_t sizes; /* W = 1 to this; 0: 2 and 4 */
};

#define AQ_TRANSPORT(scheme)                                                                                           \
    {#scheme, "", 4}, {"fault+" #scheme, "seed=1&split=3000&delay_ms=0.1", 0}, {"tls+" #scheme, "", 0},
static const struct scheme SCHEMES[] = {
#include "transports.def"
};
#undef AQ_TRANSPORT
enum { SCHEME_COUNT = sizeof SCHEMES / sizeof *SCHEMES };

static struct aq_tls *identities[KIT_RANKS_MAX];
static char folder[KEYS_PATH_BYTES];

static enum aq_status run_every(struct kit_rank *rank)
{
    return collective_cases_run(rank->group);
}

static void over(const struct scheme *scheme, uint32_t size, uint32_t threads)
{
    struct kit kit = {.size = size,
                      .scheme = scheme->name,
                      .query = scheme->query,
                      .tls = identities,
                      .threads = threads,
                      .piece_bytes = size <= CASE_CODED_RANKS ? CASE_CODED_BYTES : CASE_PIECE_BYTES,
                      .run = run_every};
    kit_run_well(&kit);
}

/* Under a sanitizer each transport has groups of one size: 2, 3 or 4 ranks. */
static bool size_wanted(int scheme, uint32_t size)
{
    const uint32_t one = SCHEMES[scheme].sizes < 3 && scheme % 3 == 1 ? 4 : 2 + (uint32_t)scheme % 3;
    return sample_every(2) == 1 || size == one;
}

static void test_every_collective_every_transport_right_and_equal_bits(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEME_COUNT; i++)
        for (uint32_t size = 1; size <= 4; size++)
            if ((SCHEMES[i].sizes >= size || size == 2 || size == 4) && size_wanted(i, size)) {
                print_message("  %s, W = %u\n", SCHEMES[i].name, size);
                over(&SCHEMES[i], size, 0);
            }
}

static void test_every_collective_up_to_8_ranks_right_and_equal_bits(void **state)
{
    (void)state;
    const struct scheme scheme = {.name = "sim", .query = ""};
    for (uint32_t size = 5; size <= KIT_RANKS_MAX; size += (uint32_t)sample_every(3))
        over(&scheme, size, 0);
}

static void test_every_collective_with_a_pool_same_bits(void **state)
{
    (void)state;
    const struct scheme scheme = {.name = "sim", .query = ""};
    over(&scheme, 2, 3);
    over(&scheme, 3, 2);
}

static void test_every_collective_links_cut_often_heals(void **state)
{
    (void)state;
    struct kit kit = {.size = 3,
                      .scheme = "fault+tcp",
                      .query = "seed=5&cut_every=2000000",
                      .piece_bytes = CASE_CODED_BYTES,
                      .outage_ns_max = 30000000000,
                      .run = run_every};
    kit_run_well(&kit);
}

/* ---- parts of a group ---- */

enum { PARTS = 4, PART_RANKS_MAX = 3 };
static const struct {
    uint32_t count, ranks[PART_RANKS_MAX];
} PART[PARTS] = {{3, {0, 2, 4}}, {2, {1, 3}}, {2, {0, 4}}, {1, {3}}};

/* Each part in its turn, while the others are in the whole's next collective already; then all once more. */
static enum aq_status run_parts(struct kit_rank *rank)
{
    struct aq_group *parts[PARTS] = {0};
    enum aq_status status = AQ_OK;
    for (uint32_t turn = 0; turn < 2 * PARTS && status == AQ_OK; turn++) {
        const uint32_t p = turn % PARTS;
        bool mine = false;
        for (uint32_t i = 0; i < PART[p].count; i++)
            mine = mine || PART[p].ranks[i] == rank->rank;
        if (mine && !parts[p]) status = aq_group_open_part(rank->group, PART[p].ranks, PART[p].count, &parts[p]);
        if (mine && status == AQ_OK && turn < PARTS) status = collective_cases_run(parts[p]);
        if (mine && status == AQ_OK) status = aq_group_agree(parts[p], p, "the part");
        if (status == AQ_OK) status = aq_group_agree(rank->group, turn, "the turn");
    }
    for (uint32_t p = 0; p < PARTS; p++)
        aq_group_close(parts[p]);
    return status;
}

static void test_parts_of_a_group_are_groups(void **state)
{
    (void)state;
    static const char *const schemes[][2] = {{"sim", ""}, {"fault+tcp", "seed=1&split=3000&delay_ms=0.1"}};
    for (size_t i = sample_every(2) - 1; i < sizeof schemes / sizeof *schemes; i++) { /* a sanitizer: the second */
        struct kit kit = {.size = 5,
                          .scheme = schemes[i][0],
                          .query = schemes[i][1],
                          .piece_bytes = CASE_CODED_BYTES,
                          .run = run_parts};
        kit_run_well(&kit);
    }
}

/* Rank 1 leaves the order: it is in the part's collective while rank 0 is in the whole's. */
static enum aq_status run_other_order(struct kit_rank *rank)
{
    static const uint32_t both[] = {0, 1};
    static float x[2][1000];
    struct aq_group *part;
    AQ_TRY(aq_group_open_part(rank->group, both, 2, &part));
    const enum aq_status status = aq_allreduce(rank->rank == 0 ? part : rank->group, x[rank->rank], 1000);
    KIT_EXPECT(rank, status != AQ_OK && aq_allreduce(rank->group, x[rank->rank], 1) != AQ_OK); /* the whole is broken */
    aq_group_close(part);
    return status;
}

static void test_part_and_whole_in_another_order_is_found_out(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_other_order};
    kit_run(&kit);
    bool mismatch = false;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_not_equal(kit.ranks[r].status, AQ_OK);
        mismatch = mismatch || kit.ranks[r].status == AQ_MISMATCH;
    }
    assert_true(mismatch);
}

static enum aq_status run_wrong_parts(struct kit_rank *rank)
{
    static const uint32_t twice[] = {0, 0}, falling[] = {1, 0}, beyond[] = {0, 1, 2}, none[] = {0}, all[] = {0, 1};
    struct aq_group *part = NULL, *inner = NULL;
    KIT_EXPECT(rank, aq_group_open_part(rank->group, twice, 2, &part) == AQ_INVAL);
    KIT_EXPECT(rank, aq_group_open_part(rank->group, falling, 2, &part) == AQ_INVAL);
    KIT_EXPECT(rank, aq_group_open_part(rank->group, beyond, 3, &part) == AQ_INVAL);
    KIT_EXPECT(rank, rank->rank == 0 || aq_group_open_part(rank->group, none, 1, &part) == AQ_INVAL);
    AQ_TRY(aq_group_open_part(rank->group, all, 2, &part));
    KIT_EXPECT(rank, aq_group_open_part(part, all, 2, &inner) == AQ_INVAL);
    aq_group_close(part);
    return AQ_OK;
}

static void test_parts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_wrong_parts};
    kit_run_well(&kit);
}

/* ---- what goes wrong ---- */

/* Rank 1 does as `odd` says, the others call an allreduce of 20000. */
enum odd { ODD_COUNT, ODD_COLLECTIVE, ODD_NUMBER, ODD_FRAME, ODD_DIES, ODD_ABORTS, ODD_LEAVES, ODD_SLEEPS };

static enum aq_status odd_one(struct kit_rank *rank, enum odd odd, float *x)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL};
    switch (odd) {
    case ODD_COUNT:
        return aq_allreduce(rank->group, x, 19999);
    case ODD_COLLECTIVE:
        return aq_reduce_scatter(rank->group, x, 20000, NULL, NULL);
    case ODD_NUMBER:
        AQ_TRY(aq_allreduce(rank->group, x, 0));
        return aq_allreduce(rank->group, x, 20000);
    case ODD_FRAME:
        AQ_TRY(aq_link_send(rank->links[0], &frame, 0));
        return aq_allreduce(rank->group, x, 20000);
    case ODD_DIES:
        aq_group_close(rank->group);
        rank->group = NULL;
        for (uint32_t peer = 0; peer < rank->kit->size; peer++) {
            aq_link_close(rank->links[peer]);
            rank->links[peer] = NULL;
        }
        return AQ_ABORTED;
    case ODD_ABORTS:
        return aq_fail(AQ_NOSPC, "test", "the disk is full");
    case ODD_LEAVES:
        return AQ_OK;
    default: {
        struct aq_eventcount *eventcount; /* until the others have lost patience */
        AQ_TRY(aq_eventcount_open(&eventcount));
        (void)aq_eventcount_wait(eventcount, aq_eventcount_read(eventcount), KIT_SECONDS(2));
        aq_eventcount_close(eventcount);
        return AQ_TIMEOUT;
    }
    }
}

static enum aq_status run_odd(struct kit_rank *rank)
{
    static float rows[KIT_RANKS_MAX][20000];
    const enum odd odd = *(const enum odd *)rank->kit->context;
    float *x = rows[rank->rank];
    AQ_TRY(aq_allreduce(rank->group, x, 100));
    if (rank->rank == 1) return odd_one(rank, odd, x);
    const enum aq_status status = aq_allreduce(rank->group, x, 20000);
    KIT_EXPECT(rank, status == AQ_OK || aq_allreduce(rank->group, x, 1) == status); /* broken for good */
    return status;
}

/* Every rank but rank 1 ends with an error; `first`, where it is not AQ_OK, is that of one of them. */
static void expect_odd(enum odd odd, enum aq_status first, const char *text, double silence_s)
{
    for (uint32_t size = 2; size <= 4; size += 2) {
        struct kit kit = {
            .size = size, .scheme = "sim", .query = "", .silence_s = silence_s, .run = run_odd, .context = &odd};
        bool found = false;
        kit_run(&kit);
        for (uint32_t i = 0; i < size; i++) {
            if (i != 1) assert_int_not_equal(kit.ranks[i].status, AQ_OK);
            found = found || kit.ranks[i].status == first;
        }
        assert_true(found);
        if (!strstr(aq_error_text(), text)) fail_msg("'%s' is not in '%s'", text, aq_error_text());
    }
}

static void test_allreduce_peer_with_another_count_says_both(void **state)
{
    (void)state;
    expect_odd(ODD_COUNT, AQ_MISMATCH, "(allreduce of 19999", 0);
}

static void test_allreduce_peer_in_another_collective_says_both(void **state)
{
    (void)state;
    expect_odd(ODD_COLLECTIVE, AQ_MISMATCH, "(reduce-scatter of 20000", 0);
}

static void test_allreduce_peer_with_another_number_says_both(void **state)
{
    (void)state;
    expect_odd(ODD_NUMBER, AQ_MISMATCH, "collective 3", 0);
}

static void test_allreduce_foreign_frame_is_a_breach(void **state)
{
    (void)state;
    expect_odd(ODD_FRAME, AQ_PROTO, "only CHUNK", 0);
}

static void test_allreduce_rank_dies_all_others_end(void **state)
{
    (void)state;
    expect_odd(ODD_DIES, AQ_IO, "without a BYE", 0);
}

static void test_allreduce_rank_aborts_all_others_end(void **state)
{
    (void)state;
    expect_odd(ODD_ABORTS, AQ_ABORTED, "the disk is full", 0);
}

static void test_allreduce_rank_left_all_others_end(void **state)
{
    (void)state;
    expect_odd(ODD_LEAVES, AQ_CLOSED, "ended normally", 0);
}

static void test_allreduce_silent_rank_times_out(void **state)
{
    (void)state;
    expect_odd(ODD_SLEEPS, AQ_TIMEOUT, "for rank 1", 0.5);
}

static enum aq_status run_overflow(struct kit_rank *rank)
{
    uint64_t lanes[1000] = {0};
    lanes[700] = UINT64_C(8) << 20; /* twice 8 does not fit 4 bits */
    return aq_allreduce_lanes(rank->group, lanes, 16000, 4);
}

static void test_lanes_that_run_over_are_refused(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_overflow};
    kit_run(&kit);
    assert_int_equal(kit.ranks[1].status, AQ_INVAL); /* the owner of the second half */
    assert_int_not_equal(kit.ranks[0].status, AQ_OK);
    assert_non_null(strstr(aq_error_text(), "overflows its lane"));
}

/* A gradient that nobody checked: its scale is no number, and no rank gets a result. */
static enum aq_status run_nan(struct kit_rank *rank)
{
    static float rows[2][1000];
    const struct aq_optimizer_tensor tensor = {.count = 1000};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    float *x = rows[rank->rank];
    for (uint32_t i = 0; i < 1000; i++)
        x[i] = (float)i - 500;
    if (rank->rank == 0) x[700] = NAN;
    aq_grad_codec_config_default(&config, "sign");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, 1000, &codec));
    const struct aq_compressed asked = {.worker = codec, .server = codec, .x = x, .count = 1000};
    const enum aq_status status = aq_compressed_allreduce(rank->group, &asked);
    aq_grad_codec_close(codec);
    return status;
}

static void test_compressed_gradient_with_a_nan_fails_on_all(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_nan};
    kit_run(&kit);
    assert_int_equal(kit.ranks[1].status, AQ_CORRUPT); /* the owner of the second half */
    assert_int_not_equal(kit.ranks[0].status, AQ_OK);
}

static enum aq_status run_large_piece(struct kit_rank *rank)
{
    const struct aq_optimizer_tensor tensor = {.count = 200000};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    aq_grad_codec_config_default(&config, "fp32");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, 200000, &codec));
    const struct aq_compressed asked = {.worker = codec, .server = codec, .count = 200000};
    const enum aq_status status = aq_compressed_allreduce(rank->group, &asked);
    aq_grad_codec_close(codec);
    KIT_EXPECT(rank, status == AQ_INVAL);
    return aq_group_agree(rank->group, 1, "nothing"); /* nothing was sent: the group is whole */
}

static void test_compressed_pieces_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_large_piece};
    kit_run_well(&kit);
    assert_non_null(strstr(aq_error_text(), "raise its piece_bytes"));
}

static enum aq_status run_disagree(struct kit_rank *rank)
{
    const enum aq_status status = aq_group_agree(rank->group, rank->rank == 2 ? 5 : 4, "the plan");
    KIT_EXPECT(rank, status == AQ_MISMATCH); /* on every rank */
    /* Also where the one that differs has less, or is rank 0; and the group is whole. */
    KIT_EXPECT(rank, aq_group_agree(rank->group, rank->rank == 2 ? 3 : 4, "the plan") == AQ_MISMATCH);
    KIT_EXPECT(rank, aq_group_agree(rank->group, rank->rank == 0 ? 5 : 4, "the plan") == AQ_MISMATCH);
    KIT_EXPECT(rank, aq_group_agree(rank->group, rank->rank == 0 ? 3 : 4, "the plan") == AQ_MISMATCH);
    return aq_group_agree(rank->group, UINT64_MAX, "the plan");
}

static void test_agree_one_differs_is_named_on_every_rank(void **state)
{
    (void)state;
    struct kit kit = {.size = 4, .scheme = "sim", .query = "", .run = run_disagree};
    kit_run_well(&kit);
    assert_non_null(strstr(aq_error_text(), "the plan of rank 0"));
    assert_non_null(strstr(aq_error_text(), "rank 2 ("));
}

static enum aq_status run_open_wrong(struct kit_rank *rank)
{
    struct aq_group *group;
    struct aq_group_config config = {.rank = rank->rank,
                                     .size = 2,
                                     .links = rank->links,
                                     .eventcount = rank->eventcount,
                                     .silence_ns = 1000000000,
                                     .piece_bytes = KIT_PIECE_BYTES};
    config.size = 0;
    KIT_EXPECT(rank, aq_group_open_links(&config, &group) == AQ_INVAL);
    config.size = 3; /* the third link is missing */
    KIT_EXPECT(rank, aq_group_open_links(&config, &group) == AQ_INVAL);
    config.size = 2;
    config.piece_bytes = 2 * KIT_PIECE_BYTES; /* more than the link carries */
    KIT_EXPECT(rank, aq_group_open_links(&config, &group) == AQ_INVAL);
    config.piece_bytes = KIT_PIECE_BYTES;
    config.silence_ns = 0;
    KIT_EXPECT(rank, aq_group_open_links(&config, &group) == AQ_INVAL);
    KIT_EXPECT(rank, aq_broadcast(rank->group, 2, &config, 1) == AQ_INVAL);
    KIT_EXPECT(rank, aq_allreduce_lanes(rank->group, NULL, 0, 9) == AQ_INVAL);
    return AQ_OK;
}

static void test_open_wrong_configurations_are_refused(void **state)
{
    (void)state;
    struct kit kit = {.size = 2, .scheme = "sim", .query = "", .run = run_open_wrong};
    kit_run_well(&kit);
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static int open_identities(void **state)
{
    (void)state;
    keys_make(folder, "group");
    for (uint32_t i = 0; i < KEYS_STAGES; i++)
        assert_int_equal(aq_tls_open(folder, AQ_TLS_STAGE, i, &identities[i]), AQ_OK);
    return 0;
}

static int close_identities(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < KIT_RANKS_MAX; i++)
        aq_tls_close(identities[i]);
    keys_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_wrong_configurations_are_refused),
        cmocka_unit_test(test_every_collective_every_transport_right_and_equal_bits),
        cmocka_unit_test(test_every_collective_up_to_8_ranks_right_and_equal_bits),
        cmocka_unit_test(test_every_collective_with_a_pool_same_bits),
        cmocka_unit_test(test_every_collective_links_cut_often_heals),
        cmocka_unit_test(test_parts_of_a_group_are_groups),
        cmocka_unit_test(test_part_and_whole_in_another_order_is_found_out),
        cmocka_unit_test(test_parts_that_cannot_be_are_refused),
        cmocka_unit_test(test_allreduce_peer_with_another_count_says_both),
        cmocka_unit_test(test_allreduce_peer_in_another_collective_says_both),
        cmocka_unit_test(test_allreduce_peer_with_another_number_says_both),
        cmocka_unit_test(test_allreduce_foreign_frame_is_a_breach),
        cmocka_unit_test(test_allreduce_rank_dies_all_others_end),
        cmocka_unit_test(test_allreduce_rank_aborts_all_others_end),
        cmocka_unit_test(test_allreduce_rank_left_all_others_end),
        cmocka_unit_test(test_allreduce_silent_rank_times_out),
        cmocka_unit_test(test_lanes_that_run_over_are_refused),
        cmocka_unit_test(test_compressed_gradient_with_a_nan_fails_on_all),
        cmocka_unit_test(test_compressed_pieces_that_do_not_fit_are_refused),
        cmocka_unit_test(test_agree_one_differs_is_named_on_every_rank),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, open_identities, close_identities);
}
