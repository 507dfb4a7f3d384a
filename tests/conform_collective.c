/*
 * conform_collective.c -- every collective over links of every transport, bare, under fault+ and under tls+, for W = 1
 * to 8: the right bits, the same on all ranks.
 *
 * A new transport is one line in net/transports.def and is run here unasked. A new collective is one function below,
 * which runs on every rank and answers a status, and one line in COLLECTIVES.
 */
#include <math.h>
#include <stdlib.h>

#include "group_kit.h"
#include "tls_keys.h"

struct scheme {
    const char *name;
    const char *query;
    bool every_size; /* W = 1 to 8; else 2 and 4 */
};

#define AQ_TRANSPORT(scheme)                                                                                           \
    {#scheme, "", true}, {"fault+" #scheme, "seed=1&split=3000&delay_ms=0.1", false}, {"tls+" #scheme, "", false},
static const struct scheme SCHEMES[] = {
#include "transports.def"
};
#undef AQ_TRANSPORT
enum { SCHEME_COUNT = sizeof SCHEMES / sizeof *SCHEMES };

static struct aq_tls *identities[KIT_RANKS_MAX];
static char folder[KEYS_PATH_BYTES];

/* What rank r has at place i of buffer number n: signs and sizes that make the order of a sum matter. */
static float value_of(uint32_t rank, uint64_t n, uint64_t i)
{
    const struct aq_rng_key key = aq_rng_key(11, AQ_RNG_TEST, rank, n);
    const uint32_t word = aq_rng_u32(&key, i);
    return ldexpf((float)(int32_t)word, -(int)(word % 40));
}

static uint8_t byte_of(uint32_t rank, uint64_t n, uint64_t i)
{
    return (uint8_t)(rank * 37 + n * 11 + i * 7 + i / 251);
}

/* ---- the collectives, as every rank runs them ---- */

static uint64_t count_of(uint32_t size, uint32_t n)
{
    /* None, fewer than ranks, borders of cuts (512 values), of messages (4096 floats here) and of chunks, many. */
    const uint64_t counts[] = {0,
                               1,
                               size - 1,
                               7,
                               511,
                               512 * (uint64_t)size,
                               512 * (uint64_t)size + 1,
                               4096 * (uint64_t)size - 1,
                               4096 * (uint64_t)size,
                               100003,
                               4096 * 9 * (uint64_t)size + 513};
    return n < sizeof counts / sizeof *counts ? counts[n] : UINT64_MAX;
}

static enum aq_status check_sum(const struct kit_rank *rank, const float *x, uint64_t first, uint64_t count, uint32_t n)
{
    for (uint64_t i = 0; i < count; i++) {
        float sum = value_of(0, n, first + i);
        double exact = sum, scale = fabs(exact);
        for (uint32_t w = 1; w < rank->kit->size; w++) {
            const float value = value_of(w, n, first + i);
            sum += value;
            exact += value;
            scale += fabs((double)value);
        }
        KIT_EXPECT(rank, memcmp(&x[i], &sum, sizeof sum) == 0);
        KIT_EXPECT(rank, fabs(x[i] - exact) <= 1e-6 * scale);
    }
    return AQ_OK;
}

static enum aq_status make(uint32_t rank, uint32_t n, uint64_t count, float **out)
{
    void *memory;
    AQ_TRY(aq_alloc(count * sizeof **out, &memory));
    *out = memory;
    for (uint64_t i = 0; i < count; i++)
        (*out)[i] = value_of(rank, n, i);
    return AQ_OK;
}

static enum aq_status run_allreduce(struct kit_rank *rank)
{
    uint64_t count;
    for (uint32_t n = 0; (count = count_of(rank->kit->size, n)) != UINT64_MAX; n++) {
        float *x;
        AQ_TRY(make(rank->rank, n, count, &x));
        enum aq_status status = aq_allreduce(rank->group, x, count);
        if (status == AQ_OK) status = check_sum(rank, x, 0, count, n);
        aq_free(x);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status run_reduce_scatter(struct kit_rank *rank)
{
    uint64_t count, first, mine;
    for (uint32_t n = 0; (count = count_of(rank->kit->size, n)) != UINT64_MAX; n++) {
        float *x;
        AQ_TRY(make(rank->rank, n, count, &x));
        enum aq_status status = aq_reduce_scatter(rank->group, x, count, &first, &mine);
        if (status == AQ_OK) status = check_sum(rank, x + first, first, mine, n);
        for (uint64_t i = 0; i < count && status == AQ_OK; i++)
            if ((i < first || i >= first + mine) && x[i] != value_of(rank->rank, n, i))
                status =
                    aq_fail(AQ_CORRUPT, "test", "place %llu of another's chunk was changed", (unsigned long long)i);
        aq_free(x);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static const size_t BLOCKS[] = {0, 1, 8, 1000, KIT_PIECE_BYTES, KIT_PIECE_BYTES + 1, 7 * KIT_PIECE_BYTES + 333};
enum { BLOCK_COUNT = sizeof BLOCKS / sizeof *BLOCKS };

static enum aq_status run_all_gather(struct kit_rank *rank)
{
    const uint32_t size = rank->kit->size;
    for (uint32_t n = 0; n < BLOCK_COUNT; n++) {
        const size_t bytes = BLOCKS[n];
        void *memory;
        AQ_TRY(aq_alloc((size + 1) * bytes, &memory));
        uint8_t *all = memory, *mine = all + size * bytes;
        for (size_t i = 0; i < bytes; i++)
            mine[i] = byte_of(rank->rank, n, i);
        enum aq_status status = aq_all_gather(rank->group, mine, bytes, all);
        for (size_t i = 0; i < size * bytes && status == AQ_OK; i++)
            if (all[i] != byte_of((uint32_t)(i / bytes), n, i % bytes))
                status = aq_fail(AQ_CORRUPT, "test", "all-gather of %zu: byte %zu", bytes, i);
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status run_all_to_all(struct kit_rank *rank)
{
    const uint32_t size = rank->kit->size;
    for (uint32_t n = 0; n < BLOCK_COUNT; n++) {
        const size_t bytes = BLOCKS[n];
        void *memory;
        AQ_TRY(aq_alloc(2 * size * bytes, &memory));
        uint8_t *send = memory, *received = send + size * bytes;
        for (size_t i = 0; i < size * bytes; i++)
            send[i] = byte_of(rank->rank, n, i);
        enum aq_status status = aq_all_to_all(rank->group, send, received, bytes);
        for (size_t i = 0; i < size * bytes && status == AQ_OK; i++)
            if (received[i] != byte_of((uint32_t)(i / bytes), n, rank->rank * bytes + i % bytes))
                status = aq_fail(AQ_CORRUPT, "test", "all-to-all of %zu: byte %zu", bytes, i);
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

static enum aq_status run_broadcast(struct kit_rank *rank)
{
    for (uint32_t n = 0; n < BLOCK_COUNT; n++)
        for (uint32_t root = 0; root < rank->kit->size; root++) {
            void *memory;
            AQ_TRY(aq_alloc(BLOCKS[n], &memory));
            uint8_t *bytes = memory;
            for (size_t i = 0; i < BLOCKS[n]; i++)
                bytes[i] = byte_of(rank->rank, n, i);
            enum aq_status status = aq_broadcast(rank->group, root, bytes, BLOCKS[n]);
            for (size_t i = 0; i < BLOCKS[n] && status == AQ_OK; i++)
                if (bytes[i] != byte_of(root, n, i))
                    status = aq_fail(AQ_CORRUPT, "test", "broadcast of %zu from %u: byte %zu", BLOCKS[n], root, i);
            aq_free(memory);
            AQ_TRY(status);
        }
    return AQ_OK;
}

/* As much as every rank may put into a lane. */
static uint64_t lane_of(uint32_t size, uint32_t bits, uint32_t rank, uint64_t i)
{
    const struct aq_rng_key key = aq_rng_key(13, AQ_RNG_TEST, rank, bits);
    return aq_rng_below(&key, i, ((1u << bits) - 1) / size + 1);
}

static enum aq_status run_lanes(struct kit_rank *rank)
{
    const uint32_t size = rank->kit->size;
    for (uint32_t bits = 3; bits <= 16; bits = bits == 8 ? 16 : bits + 1) {
        const uint64_t count = 30011, per_word = 64 / bits, words = aq_lane_words(count, bits);
        void *memory;
        AQ_TRY(aq_alloc(words * 8, &memory));
        uint64_t *lanes = memory;
        for (uint64_t i = 0; i < count; i++)
            lanes[i / per_word] |= lane_of(size, bits, rank->rank, i) << i % per_word * bits;
        enum aq_status status = aq_allreduce_lanes(rank->group, lanes, count, bits);
        for (uint64_t i = 0; i < count && status == AQ_OK; i++) {
            uint64_t sum = 0;
            for (uint32_t w = 0; w < size; w++)
                sum += lane_of(size, bits, w, i);
            if ((lanes[i / per_word] >> i % per_word * bits & ((UINT64_C(1) << bits) - 1)) != sum)
                status = aq_fail(AQ_CORRUPT, "test", "lane %llu of %u bits", (unsigned long long)i, bits);
        }
        aq_free(memory);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* A NaN, its sign and payload, and both infinities: whatever the sum is, it is the same bits everywhere. */
static enum aq_status run_special(struct kit_rank *rank)
{
    static const uint32_t WORDS[] = {0x7fc00001, 0xffc12345, 0x7f800000, 0xff800000,
                                     0x80000000, 0x00000001, 0x7f7fffff};
    enum { COUNT = 10000, WORD_COUNT = sizeof WORDS / sizeof *WORDS };
    float x[COUNT];
    uint64_t all[KIT_RANKS_MAX];
    for (uint32_t i = 0; i < COUNT; i++)
        memcpy(&x[i], &WORDS[(i * (rank->rank + 1) + i / 77) % WORD_COUNT], sizeof *x);
    AQ_TRY(aq_allreduce(rank->group, x, COUNT));
    const uint64_t digest = aq_digest(x, sizeof x);
    AQ_TRY(aq_all_gather(rank->group, &digest, sizeof digest, all));
    for (uint32_t w = 0; w < rank->kit->size; w++)
        KIT_EXPECT(rank, all[w] == digest);
    KIT_EXPECT(rank, isnan(x[0]));
    return aq_group_agree(rank->group, digest, "the special sum");
}

static enum aq_status run_stats(struct kit_rank *rank)
{
    enum { COUNT = 50000 };
    static float rows[KIT_RANKS_MAX][COUNT];
    struct aq_group_stats stats;
    uint64_t first, mine;
    aq_group_chunk(COUNT, rank->kit->size, rank->rank, &first, &mine);
    AQ_TRY(aq_allreduce(rank->group, rows[rank->rank], COUNT));
    aq_group_stats(rank->group, &stats);
    const uint64_t others = rank->kit->size - 1; /* the others' chunks to them, the own one's result to each */
    KIT_EXPECT(rank, stats.collectives == 1);
    KIT_EXPECT(rank, rank->kit->size == 1 || stats.sent_bytes == (COUNT - mine + others * mine) * sizeof(float));
    KIT_EXPECT(rank, rank->kit->size == 1 || stats.received_bytes == (others * mine + COUNT - mine) * sizeof(float));
    return AQ_OK;
}

static const struct {
    const char *name;
    enum aq_status (*run)(struct kit_rank *rank);
} COLLECTIVES[] = {{"allreduce", run_allreduce},    {"reduce-scatter", run_reduce_scatter},
                   {"all-gather", run_all_gather},  {"all-to-all", run_all_to_all},
                   {"broadcast", run_broadcast},    {"lanes", run_lanes},
                   {"special values", run_special}, {"counters", run_stats}};
enum { COLLECTIVE_COUNT = sizeof COLLECTIVES / sizeof *COLLECTIVES };

/* All of them one after the other over the same links: what one leaves behind would trouble the next. */
static enum aq_status run_every(struct kit_rank *rank)
{
    struct aq_group_stats stats;
    AQ_TRY(run_stats(rank)); /* counts from nothing */
    for (uint32_t i = 0; i < COLLECTIVE_COUNT; i++)
        if (COLLECTIVES[i].run != run_stats) AQ_TRY(COLLECTIVES[i].run(rank));
    aq_group_stats(rank->group, &stats);
    KIT_EXPECT(rank, stats.collectives > COLLECTIVE_COUNT);
    return AQ_OK;
}

static void over(const struct scheme *scheme, uint32_t size, uint32_t threads)
{
    struct kit kit = {.size = size,
                      .scheme = scheme->name,
                      .query = scheme->query,
                      .tls = identities,
                      .threads = threads,
                      .run = run_every};
    kit_run_well(&kit);
}

static void test_every_collective_every_transport_right_and_equal_bits(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEME_COUNT; i++)
        for (uint32_t size = 1; size <= KIT_RANKS_MAX; size++)
            if (SCHEMES[i].every_size || size == 2 || size == 4) {
                print_message("  %s, W = %u\n", SCHEMES[i].name, size);
                over(&SCHEMES[i], size, 0);
            }
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
                      .query = "seed=5&cut_every=300000",
                      .outage_ns_max = 30000000000,
                      .run = run_every};
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
        struct aq_bell *bell; /* until the others have lost patience */
        AQ_TRY(aq_bell_open(&bell));
        (void)aq_bell_wait(bell, aq_bell_count(bell), KIT_SECONDS(2));
        aq_bell_close(bell);
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
    expect_odd(ODD_LEAVES, AQ_CLOSED, "left in good order", 0);
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
    assert_non_null(strstr(aq_error_text(), "runs over its lane"));
}

static enum aq_status run_disagree(struct kit_rank *rank)
{
    const enum aq_status status = aq_group_agree(rank->group, rank->rank == 2 ? 5 : 4, "the plan");
    KIT_EXPECT(rank, status == AQ_MISMATCH); /* on every rank */
    return AQ_OK;
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
                                     .bell = rank->bell,
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

static void test_chunk_every_count_is_a_partition(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= KIT_RANKS_MAX; size++)
        for (uint64_t count = 0; count < 20000; count = count * 3 / 2 + 1) {
            uint64_t end = 0;
            for (uint32_t rank = 0; rank < size; rank++) {
                uint64_t first, mine;
                aq_group_chunk(count, size, rank, &first, &mine);
                assert_int_equal(first, end);
                end += mine;
            }
            assert_int_equal(end, count);
        }
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
        cmocka_unit_test(test_chunk_every_count_is_a_partition),
        cmocka_unit_test(test_open_wrong_configurations_are_refused),
        cmocka_unit_test(test_every_collective_every_transport_right_and_equal_bits),
        cmocka_unit_test(test_every_collective_with_a_pool_same_bits),
        cmocka_unit_test(test_every_collective_links_cut_often_heals),
        cmocka_unit_test(test_allreduce_peer_with_another_count_says_both),
        cmocka_unit_test(test_allreduce_peer_in_another_collective_says_both),
        cmocka_unit_test(test_allreduce_peer_with_another_number_says_both),
        cmocka_unit_test(test_allreduce_foreign_frame_is_a_breach),
        cmocka_unit_test(test_allreduce_rank_dies_all_others_end),
        cmocka_unit_test(test_allreduce_rank_aborts_all_others_end),
        cmocka_unit_test(test_allreduce_rank_left_all_others_end),
        cmocka_unit_test(test_allreduce_silent_rank_times_out),
        cmocka_unit_test(test_lanes_that_run_over_are_refused),
        cmocka_unit_test(test_agree_one_differs_is_named_on_every_rank),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, open_identities, close_identities);
}
