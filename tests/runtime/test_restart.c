/* test_restart.c -- which failures begin again, how often, and from which checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "remove_tree.h"
#include "restart.h"
#include "run_folder.h"
#include "virtual_clock.h"

static char folder[64];

static int each_setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aq-restart-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int each_teardown(void **state)
{
    (void)state;
    return remove_tree(folder);
}

static uint64_t at(void *context)
{
    return *(const uint64_t *)context;
}

static const struct aq_launch_result killed = {.outcome = AQ_LAUNCH_FAILED, .transient = true, .mark = 6};

static void test_failure_of_the_job_ends_it(void **state)
{
    (void)state;
    struct aq_restart restart = {.max = 3};
    uint64_t step = 99;
    const struct aq_launch_result full = {.outcome = AQ_LAUNCH_FAILED, .status = AQ_NOSPC, .mark = 6};
    const struct aq_launch_result stopped = {.outcome = AQ_LAUNCH_STOPPED, .transient = true, .mark = 6};
    assert_false(aq_restart_due(&restart, &full, folder, &step));
    assert_false(aq_restart_due(&restart, &stopped, folder, &step));
    struct aq_restart never = {.max = 0};
    assert_false(aq_restart_due(&never, &killed, folder, &step));
    assert_int_equal(step, 99);
    assert_int_equal(restart.total, 0);
}

static void test_restarts_without_a_new_checkpoint_are_bounded(void **state)
{
    (void)state;
    struct aq_restart restart = {.max = 3};
    uint64_t step;
    for (int i = 0; i < 3; i++) {
        assert_true(aq_restart_due(&restart, &killed, folder, &step));
        assert_int_equal(step, 6);
    }
    assert_false(aq_restart_due(&restart, &killed, folder, &step));
    struct aq_launch_result further = killed;
    further.mark = 9;
    assert_true(aq_restart_due(&restart, &further, folder, &step));
    assert_int_equal(step, 9);
    assert_int_equal(restart.in_row, 1);
    assert_int_equal(restart.total, 4);
}

/* Ten minutes of running begin the count anew; ten minutes of waiting for a machine that never comes do not. */
static void test_long_running_counts_and_long_waiting_does_not(void **state)
{
    (void)state;
    struct aq_restart restart = {.max = 2};
    struct aq_launch_result waited = killed, ran = killed;
    uint64_t step, now = 3600;
    now *= 1000000000u;
    virtual_clock(at, &now);
    ran.go_ns = now;
    assert_true(aq_restart_due(&restart, &waited, folder, &step));
    now += (AQ_RESTART_CALM_S + 1) * 1000000000ULL;
    assert_true(aq_restart_due(&restart, &waited, folder, &step));
    assert_int_equal(restart.in_row, 2);
    now += (AQ_RESTART_CALM_S + 1) * 1000000000ULL;
    assert_false(aq_restart_due(&restart, &waited, folder, &step));
    assert_true(aq_restart_due(&restart, &ran, folder, &step));
    assert_int_equal(restart.in_row, 1);
    virtual_clock(NULL, NULL);
}

static void test_unreadable_checkpoint_gives_way_to_the_older_once(void **state)
{
    (void)state;
    struct aq_restart restart = {.max = 3};
    struct aq_run_mark mark = {.step = 6, .older = 3, .plan_hash = 0x55, .metrics = 900, .older_metrics = 500}, got;
    struct aq_launch_result result = killed;
    uint64_t step;
    result.unreadable = true;
    assert_false(aq_restart_due(&restart, &result, folder, &step)); /* no checkpoint is noted at all */
    assert_int_equal(aq_run_mark_write(folder, &mark), AQ_OK);
    assert_true(aq_restart_due(&restart, &result, folder, &step));
    assert_int_equal(step, 3);
    assert_int_equal(aq_run_mark_read(folder, &got), AQ_OK);
    assert_int_equal(got.step, 3);
    assert_int_equal(got.older, 0);
    assert_int_equal(got.plan_hash, 0x55);
    assert_int_equal(got.metrics, 500);
    assert_int_equal(got.older_metrics, 0);
    result.mark = 3;
    assert_false(aq_restart_due(&restart, &result, folder, &step)); /* and there is none before that one */
}

static void test_a_replica_returns_where_the_others_reach_it(void **state)
{
    (void)state;
    static const struct {
        const char *link_host, *address, *first, *second;
        uint32_t returns;
    } cases[] = {{"127.0.0.1", NULL, NULL, NULL, 3},
                 {"127.0.0.1", NULL, "127.0.0.1:7001", "127.0.0.1:7002", 3},
                 {"127.0.0.1", NULL, "10.0.0.1:7001", "10.0.0.1:7001", 3},
                 {"127.0.0.1", NULL, "10.0.0.1:7001", "10.0.0.2:7001", 0},
                 {"127.0.0.1", NULL, NULL, "10.0.0.2:7001", 0},
                 {"127.0.0.1", "10.0.0.1:9000", "10.0.0.1:7001", "10.0.0.2:7001", 0},
                 {"0.0.0.0", NULL, "10.0.0.1:7001", "10.0.0.2:7001", 3},
                 {"0.0.0.0", "127.0.0.1:9000", "10.0.0.1:7001", "10.0.0.2:7001", 0}};
    const struct aq_restart restart = {.max = 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_job_stage stages[2] = {{.host = cases[i].first, .address = cases[i].address},
                                         {.host = cases[i].second}};
        struct aq_job job = {.pipeline = {.stage_count = 1, .replicas = 2, .stages = stages},
                             .link = {.host = cases[i].link_host}};
        assert_int_equal(aq_restart_returns(&restart, &job), cases[i].returns);
        if (cases[i].returns == 0) continue;
        const struct aq_restart none = {.max = 0};
        assert_int_equal(aq_restart_returns(&none, &job), 0);
        stages[1].dials = true; /* it cannot be reached */
        assert_int_equal(aq_restart_returns(&restart, &job), 0);
        stages[1].dials = false;
        job.train.early_stop = 1;
        assert_int_equal(aq_restart_returns(&restart, &job), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_failure_of_the_job_ends_it, each_setup, each_teardown),
        cmocka_unit_test_setup_teardown(test_restarts_without_a_new_checkpoint_are_bounded, each_setup, each_teardown),
        cmocka_unit_test_setup_teardown(test_long_running_counts_and_long_waiting_does_not, each_setup, each_teardown),
        cmocka_unit_test_setup_teardown(test_unreadable_checkpoint_gives_way_to_the_older_once, each_setup,
                                        each_teardown),
        cmocka_unit_test(test_a_replica_returns_where_the_others_reach_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
