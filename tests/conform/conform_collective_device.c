/*
 * conform_collective_device.c -- groups whose memory is a device's: every case of collective_cases.c over links with
 * GPUs, with a GPU beside a CPU, with a device behind a wall, and over NCCL; and what NCCL must not hang on.
 *
 * GPU, CUDA and NCCL are those of cuda_host/runtime: the arithmetic, the order of calls and the ends of waits are
 * tested, no speed.
 */
#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "collective_cases.h"
#include "cuda_runtime_api.h"
#include "device_isolated.h"
#include "group.h"
#include "group_kit.h"
#include "nccl.h"
#include "sample.h"

enum { GPUS = 8, FEW_SECONDS = 50 };

/* Patience of a group whose rank is silent. Long enough that ranks which are only slow on a busy machine are heard. */
static const double SILENCE_S = 2.5;

static enum aq_status run_every(struct kit_rank *rank)
{
    return collective_cases_run_behind(rank->group, rank->device);
}

static void nothing_left(void)
{
    assert_int_equal(nccl_host_open(), 0);
    assert_int_equal(cuda_runtime_host_used(), 0);
}

static struct kit kit_of(uint32_t size, const char *device, enum aq_status (*run)(struct kit_rank *rank))
{
    struct kit kit = {.size = size, .scheme = "sim", .query = "", .piece_bytes = CASE_CODED_BYTES, .run = run};
    for (uint32_t i = 0; i < size; i++)
        kit.devices[i] = device;
    return kit;
}

static void test_gpus_over_links_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t size = sample_all() ? 2 : 3; size <= 3; size++) {
        struct kit kit = kit_of(size, "cuda", run_every);
        kit_run_well(&kit);
    }
    nothing_left();
}

static void test_a_gpu_beside_a_cpu_the_same_bits(void **state)
{
    (void)state;
    struct kit kit = kit_of(3, NULL, run_every);
    kit.devices[1] = "cuda";
    kit_run_well(&kit);
    nothing_left();
}

static void test_memory_behind_a_wall_is_never_read_by_the_host(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 3; size++) {
        struct kit kit = kit_of(size, "isolated", run_every);
        kit_run_well(&kit);
    }
}

static void test_gpus_over_nccl_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= (sample_all() ? 4 : 3); size++) {
        if (size == 2 && !sample_all()) continue;
        struct kit kit = kit_of(size, "cuda", run_every);
        kit.nccl = true;
        kit_run_well(&kit);
    }
    nothing_left();
}

/* A large buffer goes in few messages: of its own length over 8, which for the largest are 16 MiB. */
enum { LARGE = 4 << 20, LARGE_MESSAGES = 8 };

static enum aq_status run_large(struct kit_rank *rank)
{
    void *memory;
    const float one = 1.0f;
    AQ_TRY(aq_device_alloc(rank->device, AQ_MEMORY_DEVICE, LARGE * sizeof one, &memory));
    float *x = memory;
    for (uint64_t i = 0; i < LARGE; i += LARGE / 64)
        AQ_TRY(aq_device_copy(rank->device, x + i, &one, sizeof one, NULL));
    enum aq_status status = aq_allreduce(rank->group, x, LARGE);
    if (status == AQ_OK) status = aq_device_stream_sync(rank->device, NULL);
    for (uint64_t i = 0; i < LARGE && status == AQ_OK; i++)
        if (x[i] != (i % (LARGE / 64) ? 0.0f : 2.0f)) status = aq_fail(AQ_CORRUPT, "test", "value %d", (int)i);
    aq_device_free(rank->device, AQ_MEMORY_DEVICE, memory, LARGE * sizeof one);
    return status;
}

static void test_large_buffers_go_over_nccl_in_large_messages(void **state)
{
    (void)state;
    uint64_t messages, bytes;
    struct kit kit = kit_of(2, "cuda", run_large);
    kit.nccl = true;
    kit.values = LARGE;
    nccl_host_sent(&messages, &bytes);
    kit_run_well(&kit);
    nccl_host_sent(&messages, &bytes);
    assert_int_equal(messages, 2 * 2 * LARGE_MESSAGES); /* of two ranks, parts and results */
    assert_int_equal(bytes, LARGE / 2 * sizeof(float) / LARGE_MESSAGES);
    nothing_left();
    assert_int_equal(aq_group_nccl_piece(2, UINT64_C(1) << 30), 16 << 20);
    for (uint32_t size = 2; size <= AQ_GROUP_SIZE_MAX; size++) {
        const uint64_t piece = aq_group_nccl_piece(size, UINT64_C(1) << 30);
        assert_true(piece == AQ_GROUP_PIECE_BYTES || aq_group_nccl_bytes(size, UINT64_C(1) << 30) <= 320 << 20);
        if (size <= 16) assert_true((size - 1) * piece >= 14 << 20); /* what a rank sends in a step */
        assert_int_equal(aq_group_nccl_piece(size, 0), AQ_GROUP_PIECE_BYTES);
    }
}

/* A codec that is prepared for is not made anew: the same bits, and no memory is taken. */
static enum aq_status run_prepared(struct kit_rank *rank)
{
    enum { COUNT = 2 * AQ_GRAD_PIECE + 77 };
    static float rows[2][2][COUNT];
    const struct aq_optimizer_tensor tensor = {.count = COUNT};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    aq_grad_codec_config_default(&config, "sign");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, COUNT, &codec));
    enum aq_status status = AQ_OK;
    for (int prepared = 0; prepared < 2 && status == AQ_OK; prepared++) {
        float *x = rows[rank->rank][prepared];
        for (uint32_t i = 0; i < COUNT; i++)
            x[i] = (float)((i * 7919 + rank->rank) % 1001) - 500;
        const struct aq_compressed asked = {.worker = codec, .server = codec, .x = x, .count = COUNT};
        if (prepared) status = aq_group_prepare(rank->group, codec, COUNT);
        if (status == AQ_OK) status = aq_compressed_allreduce(rank->group, &asked);
    }
    if (status == AQ_OK && memcmp(rows[rank->rank][0], rows[rank->rank][1], sizeof rows[0][0]) != 0)
        status = aq_fail(AQ_CORRUPT, "test", "prepared, the bits are others");
    aq_group_close(rank->group); /* borrows the codec */
    rank->group = NULL;
    aq_grad_codec_close(codec);
    return status;
}

static void test_prepared_the_same_bits(void **state)
{
    (void)state;
    for (int nccl = 0; nccl < 2; nccl++) {
        struct kit kit = kit_of(2, "cuda", run_prepared);
        kit.nccl = nccl;
        kit_run_well(&kit);
    }
    nothing_left();
}

/* ---- what differs between the ranks is one line on all ---- */

/* Rank 1 is odd before NCCL is opened; everybody answers the same. */
enum odd_open { ODD_VERSION, ODD_BUILD, ODD_NOWHERE };

static enum aq_status run_open_odd(struct kit_rank *rank)
{
    const enum odd_open odd = *(const enum odd_open *)rank->kit->context;
    if (rank->rank == 1 && odd == ODD_VERSION) nccl_host_version(22703);
    if (rank->rank == 1 && odd == ODD_BUILD) nccl_host_version(0);
    if (rank->rank == 1 && odd == ODD_NOWHERE) return aq_fail(AQ_NOSPC, "test", "rank 1 never comes");
    return aq_group_open_nccl(rank->group, &rank->group);
}

static void expect_open(enum odd_open odd, enum aq_status wanted, const char *text)
{
    struct kit kit = kit_of(3, "cuda", run_open_odd);
    kit.context = &odd;
    kit_run(&kit);
    for (uint32_t i = 0; i < kit.size; i++)
        assert_int_equal(kit.ranks[i].status, wanted);
    if (!strstr(aq_error_text(), text)) fail_msg("'%s' is not in '%s'", text, aq_error_text());
    nothing_left();
}

static void test_other_versions_of_nccl_the_same_line_on_all(void **state)
{
    (void)state;
    expect_open(ODD_VERSION, AQ_MISMATCH, "rank 1 has NCCL 22703, rank 0 has 22809");
    expect_open(ODD_BUILD, AQ_NODEV, "rank 1 has no NCCL");
}

static void test_a_rank_without_a_gpu_the_same_line_on_all(void **state)
{
    (void)state;
    struct kit kit = kit_of(3, "cuda", run_every);
    kit.nccl = true;
    kit.devices[2] = NULL;
    kit_run(&kit);
    for (uint32_t i = 0; i < kit.size; i++)
        assert_int_equal(kit.ranks[i].status, AQ_NODEV);
    assert_non_null(strstr(aq_error_text(), "rank 2 has no GPU"));
    nothing_left();
}

static enum aq_status run_facts(struct kit_rank *rank)
{
    struct aq_nccl_facts facts;
    AQ_TRY(aq_nccl_facts(rank->group, rank->device, &facts));
    KIT_EXPECT(rank, facts.one_machine && facts.distinct_gpus && facts.built == (rank->kit->context == NULL));
    KIT_EXPECT(rank, facts.gpus == (rank->kit->context ? 2 : 3));
    KIT_EXPECT(rank, facts.rank == (rank->kit->context ? 1 : UINT32_MAX));
    return AQ_OK;
}

static void test_facts_are_found_out_together(void **state)
{
    (void)state;
    struct kit kit = kit_of(3, "cuda", run_facts);
    kit_run_well(&kit);
    kit.devices[1] = NULL;
    kit.context = &kit;
    kit_run_well(&kit);
}

/* ---- what must not hang ---- */

/* Rank 1 is odd, in the second reduction or before the first; the others end soon, by themselves. */
enum odd { ODD_FAILS, ODD_DIES, ODD_LINGERS, ODD_GOES, ODD_SLEEPS, ODD_LOST, ODD_COUNT };

static uint64_t waited_ns[KIT_RANKS_MAX]; /* by the others */
static atomic_uint ended;                 /* so many of the others have an answer */

/* Rank 1 is silent until all others have an answer: longer than anybody's patience, which is SILENCE_S. */
static void sleep_until_others_end(const struct kit_rank *rank)
{
    for (int i = 0; i < 6000 && atomic_load(&ended) < rank->kit->size - 1; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static enum aq_status odd_one(struct kit_rank *rank, enum odd odd, float *x)
{
    const struct aq_chunk head = {.number = 2, .argument = 20000, .collective = AQ_COLLECTIVE_ALLREDUCE};
    switch (odd) {
    case ODD_FAILS:
        nccl_host_fail(1);
        return aq_allreduce(rank->group, x, 20000);
    case ODD_COUNT:
        return aq_allreduce(rank->group, x, 19999);
    case ODD_DIES:
        AQ_TRY(rank->group->ops->meet(rank->group, &head)); /* all others are in it, and wait for NCCL */
        return aq_fail(AQ_NOSPC, "test", "rank 1 has died");
    case ODD_LINGERS: /* it says so over the links when all wait for NCCL, which hears of it much later */
        AQ_TRY(rank->group->ops->meet(rank->group, &head));
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        for (uint32_t peer = 0; peer < rank->kit->size; peer++)
            if (peer != 1) (void)aq_link_abort(rank->links[peer], AQ_NOSPC, "rank 1 lingers", KIT_SECONDS(2));
        sleep_until_others_end(rank);
        return AQ_NOSPC;
    case ODD_GOES: /* as one that is through with the last collective before the others are */
        AQ_TRY(rank->group->ops->meet(rank->group, &head));
        for (uint32_t peer = 0; peer < rank->kit->size; peer++)
            if (peer != 1) (void)aq_link_finish(rank->links[peer], aq_clock_after(0));
        aq_error_clear(); /* that no BYE came back is no news */
        sleep_until_others_end(rank);
        return AQ_TIMEOUT;
    default:
        if (odd == ODD_LOST) AQ_TRY(rank->group->ops->meet(rank->group, &head));
        sleep_until_others_end(rank);
        return AQ_TIMEOUT;
    }
}

static enum aq_status run_odd(struct kit_rank *rank)
{
    static float rows[KIT_RANKS_MAX][20000];
    float *x = rows[rank->rank];
    AQ_TRY(aq_allreduce(rank->group, x, 100));
    if (rank->rank == 1) return odd_one(rank, *(const enum odd *)rank->kit->context, x);
    const uint64_t begin_ns = aq_clock_ns();
    const enum aq_status status = aq_allreduce(rank->group, x, 20000);
    waited_ns[rank->rank] = aq_clock_ns() - begin_ns;
    KIT_EXPECT(rank, status == AQ_OK || aq_allreduce(rank->group, x, 1) == status); /* broken for good */
    KIT_EXPECT(rank, status == AQ_OK || aq_group_agree(rank->group, 1, "a thing") == status);
    atomic_fetch_add(&ended, 1);
    return status;
}

static void expect_odd(enum odd odd, enum aq_status first, const char *text, double silence_s)
{
    const uint64_t begin_ns = aq_clock_ns();
    struct kit kit = kit_of(3, "cuda", run_odd);
    bool found = false;
    kit.nccl = true;
    kit.context = &odd;
    kit.silence_s = silence_s;
    atomic_store(&ended, 0);
    kit_run(&kit);
    for (uint32_t i = 0; i < kit.size; i++) {
        if (i != 1) assert_int_not_equal(kit.ranks[i].status, AQ_OK);
        found = found || kit.ranks[i].status == first;
    }
    if (!found || !strstr(aq_error_text(), text)) fail_msg("'%s' is not in '%s'", text, aq_error_text());
    assert_true(aq_clock_ns() - begin_ns < FEW_SECONDS * UINT64_C(1000000000)); /* and the group's patience is 60 s */
    nothing_left();
}

static void test_nccl_fails_on_one_rank_all_others_end(void **state)
{
    (void)state;
    expect_odd(ODD_FAILS, AQ_NCCLERR, "a test wants this group to fail", 0);
}

static void test_a_rank_dies_in_nccl_all_others_end(void **state)
{
    (void)state;
    expect_odd(ODD_DIES, AQ_ABORTED, "rank 1 has died", 0);
}

static void test_a_rank_that_says_why_is_not_waited_for(void **state)
{
    (void)state;
    expect_odd(ODD_LINGERS, AQ_ABORTED, "rank 1 lingers", 0);
    assert_true(waited_ns[0] < UINT64_C(2000000000) &&
                waited_ns[2] < UINT64_C(2000000000)); /* and the group's patience is 60 s */
}

static void test_a_rank_that_does_not_come_times_out(void **state)
{
    (void)state;
    expect_odd(ODD_SLEEPS, AQ_TIMEOUT, "for rank 1", SILENCE_S);
}

static void test_a_rank_that_is_silent_in_nccl_times_out(void **state)
{
    (void)state;
    expect_odd(ODD_LOST, AQ_TIMEOUT, "for NCCL, in collective 2", SILENCE_S);
}

/* Who ended normally was through: the others' wait is for NCCL alone. */
static void test_a_rank_that_left_in_good_order_is_no_error(void **state)
{
    (void)state;
    expect_odd(ODD_GOES, AQ_TIMEOUT, "for NCCL, in collective 2", SILENCE_S);
}

static void test_another_count_says_both_before_anything_is_sent(void **state)
{
    (void)state;
    expect_odd(ODD_COUNT, AQ_MISMATCH, "(allreduce of 19999", 0);
}

/* Rank 1 tells its facts and hears the id, and opens no communicator. */
static enum aq_status run_open_alone(struct kit_rank *rank)
{
    struct aq_nccl_facts facts;
    char id[8 + NCCL_UNIQUE_ID_BYTES];
    if (rank->rank != 1) {
        const enum aq_status status = aq_group_open_nccl(rank->group, &rank->group);
        atomic_fetch_add(&ended, 1);
        return status;
    }
    AQ_TRY(aq_nccl_facts(rank->group, rank->device, &facts));
    AQ_TRY(aq_broadcast(rank->group, 0, id, sizeof id));
    if (!rank->kit->context) return aq_fail(AQ_NOSPC, "test", "rank 1 has died");
    sleep_until_others_end(rank);
    return AQ_TIMEOUT;
}

static void test_a_communicator_that_does_not_come_up_ends(void **state)
{
    (void)state;
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        struct kit kit = kit_of(3, "cuda", run_open_alone);
        if (sleeps) kit.context = &kit;
        kit.silence_s = sleeps ? SILENCE_S : 0;
        atomic_store(&ended, 0);
        kit_run(&kit);
        bool found = false;
        for (uint32_t i = 0; i < kit.size; i += 2) {
            assert_int_not_equal(kit.ranks[i].status, AQ_OK);
            found = found || kit.ranks[i].status == (sleeps ? AQ_TIMEOUT : AQ_ABORTED);
        }
        const char *text = sleeps ? "opening a communicator" : "rank 1 has died";
        if (!found || !strstr(aq_error_text(), text)) fail_msg("'%s' is not in '%s'", text, aq_error_text());
        nothing_left();
    }
}

/* A gradient that nobody checked: the owner's codec says so, and nobody goes on with it. */
static enum aq_status run_nan(struct kit_rank *rank)
{
    static float rows[2][1000];
    const struct aq_optimizer_tensor tensor = {.count = 1000};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    float *x = rows[rank->rank];
    for (uint32_t i = 0; i < 1000; i++)
        x[i] = rank->rank == 0 && i == 700 ? INFINITY : (float)i - 500;
    aq_grad_codec_config_default(&config, "sign");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, 1000, &codec));
    const struct aq_compressed asked = {.worker = codec, .server = codec, .x = x, .count = 1000};
    const enum aq_status status = aq_compressed_allreduce(rank->group, &asked);
    aq_grad_codec_close(codec);
    KIT_EXPECT(rank, rank->rank == 0 || aq_group_agree(rank->group, 1, "a thing") == AQ_CORRUPT);
    return status == AQ_OK ? aq_group_agree(rank->group, 1, "a thing") : status;
}

static void test_compressed_gradient_not_finite_fails_on_all(void **state)
{
    (void)state;
    for (int nccl = 0; nccl < 2; nccl++) {
        struct kit kit = kit_of(2, "cuda", run_nan);
        kit.nccl = nccl;
        kit_run(&kit);
        assert_int_equal(kit.ranks[1].status, AQ_CORRUPT); /* the owner of the second half */
        assert_int_not_equal(kit.ranks[0].status, AQ_OK);
    }
    nothing_left();
}

static enum aq_status run_topk(struct kit_rank *rank)
{
    const struct aq_optimizer_tensor tensor = {.count = 1000};
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    aq_grad_codec_config_default(&config, "topk");
    AQ_TRY(aq_grad_codec_open(&config, &tensor, 1, 1000, &codec));
    KIT_EXPECT(rank, aq_group_prepare(rank->group, codec, 1000) == AQ_NODEV);
    aq_grad_codec_close(codec);
    return AQ_OK;
}

static void test_codec_without_kernels_is_refused(void **state)
{
    (void)state;
    struct kit kit = kit_of(2, "cuda", run_topk);
    kit_run_well(&kit);
    assert_non_null(strstr(aq_error_text(), "topk has no kernels for a GPU"));
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(void)
{
    collective_cases_on_gpus = true;
    isolated_register("isolated");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpus_over_links_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_gpu_beside_a_cpu_the_same_bits),
        cmocka_unit_test(test_memory_behind_a_wall_is_never_read_by_the_host),
        cmocka_unit_test(test_gpus_over_nccl_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_large_buffers_go_over_nccl_in_large_messages),
        cmocka_unit_test(test_prepared_the_same_bits),
        cmocka_unit_test(test_other_versions_of_nccl_the_same_line_on_all),
        cmocka_unit_test(test_a_rank_without_a_gpu_the_same_line_on_all),
        cmocka_unit_test(test_facts_are_found_out_together),
        cmocka_unit_test(test_nccl_fails_on_one_rank_all_others_end),
        cmocka_unit_test(test_a_rank_dies_in_nccl_all_others_end),
        cmocka_unit_test(test_a_rank_that_says_why_is_not_waited_for),
        cmocka_unit_test(test_a_rank_that_does_not_come_times_out),
        cmocka_unit_test(test_a_rank_that_is_silent_in_nccl_times_out),
        cmocka_unit_test(test_a_rank_that_left_in_good_order_is_no_error),
        cmocka_unit_test(test_another_count_says_both_before_anything_is_sent),
        cmocka_unit_test(test_a_communicator_that_does_not_come_up_ends),
        cmocka_unit_test(test_compressed_gradient_not_finite_fails_on_all),
        cmocka_unit_test(test_codec_without_kernels_is_refused),
    };
    aq_log_sink(quiet, NULL);
    cuda_runtime_host_driver(13000, GPUS, 9, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
