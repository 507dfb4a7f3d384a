/*
 * test_watch.c -- who is silent and what is stuck, with time that the test hands in: the alarms, and above all the
 * false ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "watch.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

/* A job whose time this test is: two stages at host 0, one at host 1; everybody beats every 10 s. */
struct world {
    struct aq_watch watch;
    uint64_t now_ns;
    uint64_t work[3];
    enum aq_phase phase[3];
    bool host_stopped[2], stage_stopped[3];
};

static const struct aq_watch_config usual = {
    .silence_ns = 60000000000, .stall_ns = 600000000000, .first_ns = 1000000000, .mark_ns = 600000000000};
enum { STAGES = 3, HOSTS = 2 };

static uint32_t host_of(uint32_t stage)
{
    return stage / 2;
}

static void begin(struct world *world, const struct aq_watch_config *config)
{
    memset(world, 0, sizeof *world);
    world->now_ns = 5000 * second_ns;
    aq_watch_init(&world->watch, config, world->now_ns);
    for (uint32_t h = 0; h < HOSTS; h++)
        aq_watch_host_heard(&world->watch, h);
    for (uint32_t s = 0; s < STAGES; s++)
        aq_watch_stage_begin(&world->watch, s, host_of(s));
}

/* What has come since the last look is told. */
static void hear(struct world *world)
{
    for (uint32_t h = 0; h < HOSTS; h++)
        if (!world->host_stopped[h]) aq_watch_host_heard(&world->watch, h);
    for (uint32_t s = 0; s < STAGES; s++)
        if (!world->host_stopped[host_of(s)] && !world->stage_stopped[s])
            aq_watch_stage_beat(&world->watch, s, world->work[s], 1, world->phase[s]);
}

/* So many seconds with a look every 200 ms and beats every 10 s. The first finding ends it. */
static struct aq_watch_finding pass(struct world *world, double seconds)
{
    const uint64_t end = world->now_ns + (uint64_t)(seconds * 1e9), tick = second_ns / 5;
    struct aq_watch_finding found = {.kind = AQ_WATCH_WELL};
    while (world->now_ns < end && found.kind == AQ_WATCH_WELL) {
        world->now_ns += tick;
        if (world->now_ns / tick % 50 == 0) hear(world);
        aq_watch_tick(&world->watch, world->now_ns);
        found = aq_watch_look(&world->watch);
    }
    return found;
}

/* A healthy stage does something after `seconds`. */
static void work_after(struct world *world, double seconds, uint32_t stage)
{
    assert_int_equal(pass(world, seconds).kind, AQ_WATCH_WELL);
    world->work[stage]++;
}

static void test_stopped_daemon_is_silent_after_the_limit_and_not_before(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    assert_int_equal(pass(&world, 100).kind, AQ_WATCH_WELL);
    world.host_stopped[1] = true;
    assert_int_equal(pass(&world, 50).kind, AQ_WATCH_WELL);
    const struct aq_watch_finding found = pass(&world, 21);
    assert_int_equal(found.kind, AQ_WATCH_HOST_SILENT); /* and not the stage that is there */
    assert_int_equal(found.number, 1);
}

static void test_stopped_worker_is_told_by_its_daemon(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    assert_int_equal(pass(&world, 100).kind, AQ_WATCH_WELL);
    world.stage_stopped[1] = true;
    assert_int_equal(pass(&world, 50).kind, AQ_WATCH_WELL);
    const struct aq_watch_finding found = pass(&world, 31);
    assert_int_equal(found.kind, AQ_WATCH_STAGE_SILENT);
    assert_int_equal(found.number, 1);
}

static void test_worker_may_take_long_until_its_first_beat(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    world.stage_stopped[2] = true; /* its program is being read from a slow disk */
    assert_int_equal(pass(&world, 590).kind, AQ_WATCH_WELL);
    assert_int_equal(pass(&world, 31).kind, AQ_WATCH_STAGE_SILENT);
}

static void test_stuck_job_is_found_and_names_who_waits_for_nobody(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    for (int i = 0; i < 50; i++)
        work_after(&world, 2, (uint32_t)i % STAGES);
    world.phase[0] = world.phase[2] = AQ_PHASE_NEIGHBOUR;
    world.phase[1] = AQ_PHASE_COMPUTE;
    assert_int_equal(pass(&world, 595).kind, AQ_WATCH_WELL);
    const struct aq_watch_finding found = pass(&world, 20);
    assert_int_equal(found.kind, AQ_WATCH_STUCK);
    assert_int_equal(found.number, 1);
    assert_true(found.limit_ns == usual.stall_ns);
}

static void test_stuck_job_whose_stages_all_wait_names_the_longest(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    for (uint32_t s = 0; s < STAGES; s++)
        world.phase[s] = AQ_PHASE_NEIGHBOUR;
    work_after(&world, 30, 2);
    work_after(&world, 30, 1);
    work_after(&world, 30, 0);
    const struct aq_watch_finding found = pass(&world, 700);
    assert_int_equal(found.kind, AQ_WATCH_STUCK);
    assert_int_equal(found.number, 2);
}

static void test_line_of_a_worker_is_progress(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(pass(&world, 500).kind, AQ_WATCH_WELL);
        aq_watch_stage_heard(&world.watch, 2);
    }
    assert_int_equal(pass(&world, 5100).kind, AQ_WATCH_STUCK); /* ten times the longest pause */
}

/* ---- false alarms ---- */

static void test_slow_run_may_get_slower_still(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    for (double pause = 0.1; pause < 40000; pause *= 8) /* a machine that swaps more and more */
        work_after(&world, pause, 0);
    assert_int_equal(pass(&world, 9.0 * 26214).kind, AQ_WATCH_WELL);
    assert_int_equal(pass(&world, 3.0 * 26214).kind, AQ_WATCH_STUCK);
}

static void test_long_evaluation_works_on(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    world.phase[0] = world.phase[1] = world.phase[2] = AQ_PHASE_EVALUATE;
    for (int batch = 0; batch < 200; batch++) /* hours without a step */
        work_after(&world, 120, 2);
}

static void test_first_step_has_what_the_plan_says(void **state)
{
    (void)state;
    struct aq_watch_config config = usual;
    config.first_ns = 7200 * second_ns;
    struct world world;
    begin(&world, &config);
    assert_int_equal(pass(&world, 3000).kind, AQ_WATCH_WELL); /* reading weights: nothing is due before go */
    aq_watch_go(&world.watch);
    work_after(&world, 7100, 0);
    work_after(&world, 3, 0);
    work_after(&world, 7100, 1); /* another kind of work may be the slow one */
}

static void test_long_checkpoint_has_its_own_time(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    work_after(&world, 1, 0);
    world.phase[2] = AQ_PHASE_MARK;
    assert_int_equal(pass(&world, 1190).kind, AQ_WATCH_WELL);
    assert_int_equal(pass(&world, 30).kind, AQ_WATCH_STUCK);
}

static void test_outage_of_links_is_waited_for(void **state)
{
    (void)state;
    struct aq_watch_config config = usual;
    config.outage_ns = 360 * second_ns;
    struct world world;
    begin(&world, &config);
    aq_watch_go(&world.watch);
    work_after(&world, 950, 0);
    assert_int_equal(pass(&world, 9500).kind, AQ_WATCH_WELL); /* ten times that pause */
}

static void test_machine_that_slept_has_lost_nobody(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    for (int night = 0; night < 20; night++) {
        work_after(&world, 25, 0);
        world.now_ns += 8 * 3600 * second_ns; /* all processes together */
        aq_watch_tick(&world.watch, world.now_ns);
        assert_int_equal(aq_watch_look(&world.watch).kind, AQ_WATCH_WELL);
    }
    world.host_stopped[0] = true; /* and afterwards it counts as ever */
    assert_int_equal(pass(&world, 80).kind, AQ_WATCH_HOST_SILENT);
}

static void test_watcher_that_was_stopped_reads_before_it_judges(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    assert_int_equal(pass(&world, 55).kind, AQ_WATCH_WELL);
    world.now_ns += 300 * second_ns;
    hear(&world); /* what lay in the sockets */
    aq_watch_tick(&world.watch, world.now_ns);
    assert_int_equal(aq_watch_look(&world.watch).kind, AQ_WATCH_WELL);
    assert_int_equal(pass(&world, 300).kind, AQ_WATCH_WELL);
}

static void test_short_limit_survives_one_late_look(void **state)
{
    (void)state;
    const struct aq_watch_config config = {.silence_ns = second_ns / 2, .stall_ns = second_ns};
    struct aq_watch watch;
    aq_watch_init(&watch, &config, 0);
    aq_watch_host_heard(&watch, 0);
    aq_watch_tick(&watch, 2 * second_ns);
    assert_int_equal(aq_watch_look(&watch).kind, AQ_WATCH_WELL);
    for (uint64_t now = 2 * second_ns; now < 3 * second_ns; now += second_ns / 50)
        aq_watch_tick(&watch, now);
    assert_int_equal(aq_watch_look(&watch).kind, AQ_WATCH_HOST_SILENT);
    assert_true(aq_watch_interval(&config) * AQ_WATCH_BEATS <= config.silence_ns);
}

static void test_who_has_ended_is_not_missed(void **state)
{
    (void)state;
    struct world world;
    begin(&world, &usual);
    aq_watch_go(&world.watch);
    work_after(&world, 10, 0);
    world.stage_stopped[2] = world.host_stopped[1] = true;
    aq_watch_stage_gone(&world.watch, 2);
    aq_watch_host_gone(&world.watch, 1);
    assert_int_equal(pass(&world, 500).kind, AQ_WATCH_WELL);
}

static void test_zero_is_never(void **state)
{
    (void)state;
    const struct aq_watch_config never = {.first_ns = 1};
    struct world world;
    begin(&world, &never);
    aq_watch_go(&world.watch);
    world.host_stopped[0] = world.host_stopped[1] = true;
    assert_int_equal(pass(&world, 100000).kind, AQ_WATCH_WELL);
    assert_true(aq_watch_interval(&never) == 0);
}

/* Any run in which everybody beats at least every 50 s, and no pause is more than nine times a longer one before. */
static void test_healthy_runs_are_left_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 77, seed);
        struct world world;
        begin(&world, &usual);
        aq_watch_go(&world.watch);
        double longest = 60;
        for (uint64_t i = 0; i < 60; i++) {
            const double pause = longest * (0.05 + 8.5 * (double)aq_rng_below(&key, 3 * i, 1000) / 1000);
            world.phase[aq_rng_below(&key, 3 * i + 1, STAGES)] =
                (enum aq_phase)aq_rng_below(&key, 3 * i + 2, AQ_PHASES);
            work_after(&world, pause < 3000 ? pause : 3000, (uint32_t)(i % STAGES));
            if (pause > longest) longest = pause < 3000 ? pause : 3000;
        }
    }
}

/* Of global sampling: the server's stage waits for other clients, and only its word for it counts. */
static void test_who_waits_for_other_clients_is_not_stuck(void **state)
{
    (void)state;
    struct aq_watch_config config = usual;
    struct world world;
    for (uint32_t server = 0; server < 2; server++) {
        config.server = server;
        begin(&world, &config);
        aq_watch_go(&world.watch);
        world.phase[0] = world.phase[2] = AQ_PHASE_REDUCE;
        world.phase[1] = AQ_PHASE_SUMS;
        assert_int_equal(pass(&world, 5000).kind, server ? AQ_WATCH_WELL : AQ_WATCH_STUCK);
        world.phase[0] = world.phase[2] = AQ_PHASE_SUMS; /* a client says so */
        world.phase[1] = AQ_PHASE_REDUCE;
        assert_int_equal(pass(&world, 5000).kind, AQ_WATCH_STUCK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_waits_for_other_clients_is_not_stuck),
        cmocka_unit_test(test_stopped_daemon_is_silent_after_the_limit_and_not_before),
        cmocka_unit_test(test_stopped_worker_is_told_by_its_daemon),
        cmocka_unit_test(test_worker_may_take_long_until_its_first_beat),
        cmocka_unit_test(test_stuck_job_is_found_and_names_who_waits_for_nobody),
        cmocka_unit_test(test_stuck_job_whose_stages_all_wait_names_the_longest),
        cmocka_unit_test(test_line_of_a_worker_is_progress),
        cmocka_unit_test(test_slow_run_may_get_slower_still),
        cmocka_unit_test(test_long_evaluation_works_on),
        cmocka_unit_test(test_first_step_has_what_the_plan_says),
        cmocka_unit_test(test_long_checkpoint_has_its_own_time),
        cmocka_unit_test(test_outage_of_links_is_waited_for),
        cmocka_unit_test(test_machine_that_slept_has_lost_nobody),
        cmocka_unit_test(test_watcher_that_was_stopped_reads_before_it_judges),
        cmocka_unit_test(test_short_limit_survives_one_late_look),
        cmocka_unit_test(test_who_has_ended_is_not_missed),
        cmocka_unit_test(test_zero_is_never),
        cmocka_unit_test(test_healthy_runs_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
