/*
 * test_group_background.c -- reductions that a thread makes: their bits are those of the collectives; the words of all
 * ranks come along; a stop ends one that waits for a rank; a rank that fails ends it on the others.
 */
#include <stdatomic.h>
#include <time.h>

#include "group_kit.h"
#include "net/group_background.h"

enum { COUNT = 50000, LOOK_NS = 1000000 };

/* A further group over the rank's links, whose waits look whether the background stops. */
static enum aq_status group_open(struct kit_rank *rank, struct aq_group_background *background)
{
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = rank->kit->size,
                                           .links = rank->links,
                                           .eventcount = rank->eventcount,
                                           .silence_ns = UINT64_C(60000000000),
                                           .piece_bytes = KIT_PIECE_BYTES,
                                           .meanwhile = aq_group_background_look,
                                           .context = background,
                                           .look_ns = LOOK_NS,
                                           .first = aq_group_number(rank->group)};
    aq_group_close(rank->group);
    rank->group = NULL;
    return aq_group_open_links(&config, &rank->group);
}

static enum aq_status finish(struct kit_rank *rank, struct aq_group_background *background)
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(rank->eventcount);
        const enum aq_status status = aq_group_background_state(background);
        if (status != AQ_AGAIN) return status;
        (void)aq_eventcount_wait(rank->eventcount, seen, KIT_SECONDS(60));
    }
}

static void fill(float *x, uint32_t rank, uint32_t round)
{
    for (uint64_t i = 0; i < COUNT; i++)
        x[i] = (float)((i * 7919 + rank * 131 + round * 17) % 1000) - 400.0f;
}

static enum aq_status rounds_run(struct kit_rank *rank, struct aq_group_background *background, float *memory)
{
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec = NULL;
    struct aq_group_done done;
    uint64_t first, chunk;
    float *errors[2] = {memory + 2 * COUNT, memory + 4 * COUNT};
    aq_grad_chunk(COUNT, rank->kit->size, rank->rank, &first, &chunk);
    if (!aq_grad_codec_config_named(&config, "q4")) return AQ_INVAL;
    const struct aq_optimizer_tensor whole = {.count = COUNT};
    enum aq_status status;
    AQ_TRY_GOTO(aq_grad_codec_open(&config, &whole, 1, COUNT, &codec), out);
    AQ_TRY_GOTO(group_open(rank, background), out);
    for (uint32_t round = 0; round < 6; round++) {
        struct aq_compressed asked[2];
        for (int i = 0; i < 2; i++) { /* by the thread, and here: each with errors of its own */
            asked[i] = (struct aq_compressed){.x = memory + i * COUNT, .count = COUNT, .step = round};
            if (round % 2) asked[i].worker = asked[i].server = codec;
            if (round % 2) asked[i].worker_error = errors[i];
            if (round % 2) asked[i].server_error = errors[i] + COUNT;
            fill(asked[i].x, rank->rank, round);
        }
        const struct aq_group_task task = {.group = rank->group, .word = UINT64_C(1) << rank->rank, .mean = asked[0]};
        aq_group_background_begin(background, &task);
        AQ_TRY_GOTO(finish(rank, background), out);
        aq_group_background_take(background, &done);
        KIT_EXPECT(rank, done.words == (UINT64_C(1) << rank->kit->size) - 1 && done.sent_bytes > 0);
        KIT_EXPECT(rank, done.end_ns >= done.begin_ns && aq_group_background_state(background) == AQ_OK);
        AQ_TRY_GOTO(round % 2 ? aq_compressed_allreduce(rank->group, &asked[1])
                              : aq_allreduce_mean(rank->group, asked[1].x, COUNT),
                    out);
        KIT_EXPECT(rank, memcmp(asked[0].x, asked[1].x, COUNT * sizeof(float)) == 0);
        KIT_EXPECT(rank, memcmp(errors[0], errors[1], 2 * COUNT * sizeof(float)) == 0);
    }
out:
    aq_grad_codec_close(codec);
    return status;
}

static enum aq_status rounds(struct kit_rank *rank)
{
    struct aq_group_background *background;
    void *memory;
    AQ_TRY(aq_alloc(6 * COUNT * sizeof(float), &memory));
    enum aq_status status = aq_group_background_open(rank->eventcount, &background);
    if (status == AQ_OK) {
        status = rounds_run(rank, background, memory);
        aq_group_background_close(background);
    }
    aq_free(memory);
    return status;
}

static void test_reductions_have_the_bits_of_the_callers_own(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; size++) {
        static struct kit kit;
        kit = (struct kit){.size = size, .scheme = "sim", .query = "", .run = rounds};
        kit_run_well(&kit);
    }
}

/* Rank 0 begins and stops; rank 1 never comes, and hears of it by its link. */
static enum aq_status stops_or_hears(struct kit_rank *rank)
{
    static float x[2][COUNT];
    struct aq_group_background *background;
    enum aq_status status;
    AQ_TRY(aq_group_background_open(rank->eventcount, &background));
    AQ_TRY_GOTO(group_open(rank, background), out);
    if (rank->rank == 1) {
        struct aq_link_event event = {0};
        while (event.kind != AQ_LINK_CLOSED) {
            const uint32_t seen = aq_eventcount_read(rank->eventcount);
            if (aq_link_poll(rank->links[0], &event) == AQ_OK) {
                if (event.kind == AQ_LINK_RECEIVED && event.frame.body)
                    aq_link_release(rank->links[0], event.frame.body);
            } else
                AQ_TRY_GOTO(aq_eventcount_wait(rank->eventcount, seen, KIT_SECONDS(60)), out);
        }
        status = event.status;
    } else {
        const struct aq_group_task task = {.group = rank->group, .mean = {.x = x[0], .count = COUNT}};
        aq_group_background_begin(background, &task);
        aq_group_background_stop(background);
        aq_group_background_stop(background);
        status = aq_group_background_state(background);
        if (status == AQ_ABORTED && aq_allreduce(rank->group, x[1], COUNT) != AQ_ABORTED) status = AQ_MISMATCH;
        /* As a worker does: what is lent to links stays until they are halted. */
        (void)aq_link_abort(rank->links[1], status, "stopped", KIT_SECONDS(2));
        aq_link_halt(rank->links[1]);
    }
out:
    aq_group_background_close(background);
    return status;
}

static void test_a_stop_ends_a_reduction_that_waits(void **state)
{
    (void)state;
    static struct kit kit;
    kit = (struct kit){.size = 2, .scheme = "sim", .query = "", .run = stops_or_hears};
    kit_run(&kit);
    assert_int_equal(kit.ranks[0].status, AQ_ABORTED);
    assert_int_equal(kit.ranks[1].status, AQ_ABORTED);
}

/* Until both ranks have left their groups, as the launcher waits before it names another attempt. */
static enum aq_status await_both(void)
{
    static atomic_uint left;
    const uint64_t end = KIT_SECONDS(60);
    atomic_fetch_add_explicit(&left, 1, memory_order_acq_rel); /* pairs with the other rank's load */
    while (atomic_load_explicit(&left, memory_order_acquire) < 2) {
        if (aq_clock_ns() > end) return AQ_TIMEOUT;
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return AQ_OK;
}

/*
 * Rank 0 begins, and breaks it off; rank 1 comes only then. Both leave, and average over the same links in a group that
 * is made again.
 */
static enum aq_status again(struct kit_rank *rank, struct aq_group_background *background, float *x)
{
    struct aq_group_done done;
    uint64_t ended;
    const struct aq_group_config config = {.rank = rank->rank,
                                           .size = rank->kit->size,
                                           .links = rank->links,
                                           .eventcount = rank->eventcount,
                                           .silence_ns = UINT64_C(60000000000),
                                           .piece_bytes = KIT_PIECE_BYTES,
                                           .meanwhile = aq_group_background_look,
                                           .context = background,
                                           .look_ns = LOOK_NS,
                                           .first = 4096}; /* above all of the attempt before */
    for (;;) {
        const uint32_t seen = aq_eventcount_read(rank->eventcount);
        if (aq_group_leave(rank->group, &ended) == AQ_OK) break;
        AQ_TRY(aq_eventcount_wait(rank->eventcount, seen, KIT_SECONDS(60)));
    }
    KIT_EXPECT(rank, ended == 0);
    AQ_TRY(await_both());
    aq_group_close(rank->group);
    rank->group = NULL;
    AQ_TRY(aq_group_open_links(&config, &rank->group));
    fill(x, rank->rank, 0);
    const struct aq_group_task task = {
        .group = rank->group, .word = 1u << rank->rank, .mean = {.x = x, .count = COUNT}};
    aq_group_background_begin(background, &task);
    AQ_TRY(finish(rank, background));
    aq_group_background_take(background, &done);
    KIT_EXPECT(rank, done.words == 3 && x[1] == 0.5f * (float)(7919 % 1000 + (7919 + 131) % 1000) - 400.0f);
    return AQ_OK;
}

static enum aq_status breaks_off(struct kit_rank *rank)
{
    static float x[2][COUNT];
    struct aq_group_background *background;
    struct aq_group_done done = {0};
    float *own = x[rank->rank];
    enum aq_status status;
    AQ_TRY(aq_group_background_open(rank->eventcount, &background));
    AQ_TRY_GOTO(group_open(rank, background), out);
    if (rank->rank == 0) {
        const struct aq_group_task task = {.group = rank->group, .word = 1, .mean = {.x = own, .count = COUNT}};
        aq_group_background_begin(background, &task);
        aq_group_background_break(background);
        aq_group_background_break(background);
        KIT_EXPECT(rank, finish(rank, background) == AQ_ABORTED);
        aq_group_background_take(background, &done);
        KIT_EXPECT(rank, done.words == 0 && aq_group_background_state(background) == AQ_OK);
    }
    status = again(rank, background, own);
out:
    aq_group_background_close(background);
    return status;
}

static void test_a_reduction_that_is_broken_off_is_made_again(void **state)
{
    (void)state;
    static struct kit kit;
    kit = (struct kit){.size = 2, .scheme = "sim", .query = "", .run = breaks_off};
    kit_run_well(&kit);
}

/* The last rank fails in place of its reduction: the others' threads say so, and nothing of them can be taken. */
static enum aq_status last_fails(struct kit_rank *rank)
{
    static float x[KIT_RANKS_MAX][COUNT];
    struct aq_group_background *background;
    if (rank->rank + 1 == rank->kit->size) return AQ_IO;
    AQ_TRY(aq_group_background_open(rank->eventcount, &background));
    enum aq_status status = group_open(rank, background);
    if (status == AQ_OK) {
        const struct aq_group_task task = {.group = rank->group, .mean = {.x = x[rank->rank], .count = COUNT}};
        aq_group_background_begin(background, &task);
        status = finish(rank, background);
    }
    aq_group_background_stop(background);
    for (uint32_t peer = 0; peer < rank->kit->size && status != AQ_OK; peer++) {
        if (!rank->links[peer]) continue;
        (void)aq_link_abort(rank->links[peer], status, "another rank failed", KIT_SECONDS(2));
        aq_link_halt(rank->links[peer]);
    }
    aq_group_background_close(background);
    return status;
}

static void test_a_rank_that_fails_ends_the_others_reductions(void **state)
{
    (void)state;
    static struct kit kit;
    kit = (struct kit){.size = 3, .scheme = "sim", .query = "", .run = last_fails};
    kit_run(&kit);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_not_equal(kit.ranks[r].status, AQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reductions_have_the_bits_of_the_callers_own),
        cmocka_unit_test(test_a_stop_ends_a_reduction_that_waits),
        cmocka_unit_test(test_a_reduction_that_is_broken_off_is_made_again),
        cmocka_unit_test(test_a_rank_that_fails_ends_the_others_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
