/*
 * test_launcher_delay.c -- reduce.delay with reduce.patience: averages that travel during the next steps, as the
 * launcher sees them.
 *
 * A round of four steps, a checkpoint every eight; an average is used two steps later.
 */
#include "rounds_kit.h"

enum { DELAY = 2, STEPS = 24 };

static void begin_delayed(void)
{
    launch.returns = 2;
    begin_rounds(NEVER_NS);
    launch.bounds.steps = STEPS;
    launch.bounds.delay = DELAY;
}

static void report(uint32_t first, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++)
        for (uint32_t r = first * P; r < RANKS; r++) {
            say_step(r, step, "step");
            if (step % 3 == 0 && r % P == P - 1) say_step(r, step, "eval");
        }
}

/* The line of the last rank by which all are at the round's end: how often the launcher answers with `travels`. */
static uint32_t count_travels(uint64_t end)
{
    char text[16384];
    uint32_t count = 0;
    json_t *message =
        json_pack("{s:s, s:I, s:I}", "event", "round", "rank", (json_int_t)(RANKS - 1), "step", (json_int_t)end);
    launcher_event(&launcher, &launcher.hosts[0], message);
    json_decref(message);
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *sent = json_loads(each, 0, NULL);
        count += aq_control_is(sent, "op", "members") && aq_control_bool_or(sent, "travels", false);
        json_decref(sent);
    }
    return count;
}

/* Replicas from `first` on train up to the end of the round, and come there. Does its average travel? */
static bool come(uint32_t first, uint64_t end)
{
    report(first, launcher.stages[first * P].step + 1, end - 1);
    for (uint32_t r = first * P; r + 1 < RANKS; r++)
        say_step(r, end, "round");
    const uint32_t count = count_travels(end);
    assert_string_equal(result.cause, "");
    assert_int_equal(launcher.rounds.averaging, end);
    assert_true(count == 0 || count == RANKS);
    return count > 0;
}

static void test_members_train_on_while_an_average_travels(void **state)
{
    (void)state;
    begin_delayed();
    assert_true(come(0, 4));
    report(0, 4, 5);
    assert_string_equal(result.cause, "");
    assert_int_equal(launcher.rounds.decided, 0);
    average(0);
    assert_int_equal(launcher.rounds.decided, 4);
    report(0, 6, 7);
    assert_string_equal(result.cause, "");
}

/* Where something follows for which all have to have the mean they wait. */
static void test_an_average_is_waited_for_where_more_follows(void **state)
{
    static const bool travels[] = {true, false /* a checkpoint */, true, false, false /* the last but one */, false};
    (void)state;
    begin_delayed();
    for (uint64_t end = 4; end <= STEPS; end += 4) {
        assert_true(come(0, end) == travels[end / 4 - 1]);
        average(0);
        report(0, end, end);
        for (uint32_t r = 0; r < RANKS && end % 8 == 0; r++)
            say_step(r, end, "mark");
        assert_string_equal(result.cause, "");
    }
    for (int how = 0; how < 4; how++) {
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
        begin_delayed();
        if (how == 0) launch.bounds.delay = 0;
        if (how == 1) launcher.stopping = true;
        if (how == 2) launcher.last_step = 4;
        if (how == 3) launch.until = 4;
        assert_false(come(0, 4));
    }
}

static void test_a_step_that_uses_a_mean_is_refused_before_all_have_it(void **state)
{
    (void)state;
    begin_delayed();
    come(0, 4);
    report(0, 4, 5);
    const off_t bytes = size_of(metrics_path);
    say_step(P, 6, "step");
    assert_refused("replica 1 stage 0", "not all have the average", P, bytes);
    assert_int_equal(teardown(state), 0);
    assert_int_equal(setup(state), 0); /* where it is waited for, at once */
    begin_delayed();
    launch.bounds.mark_every = 4;
    come(0, 4);
    const off_t before = size_of(metrics_path);
    say_step(P, 4, "step");
    assert_refused("replica 1 stage 0", "not all have the average", P, before);
}

/* It is lost in the round whose average travels, and enters when the next one ends. */
static void test_a_replica_that_is_lost_meanwhile_enters_a_round_later(void **state)
{
    (void)state;
    begin_delayed();
    come(0, 4);
    report(0, 4, 5);
    say_averaged(P, true, 0);
    exit_ranks(0, P);
    start_ranks(0, P);
    assert_true(launcher_return_waits(&launcher, 0));
    for (uint32_t r = P + 1; r < RANKS; r++)
        say_averaged(r, r == P + 1, 0);
    assert_int_equal(launcher.rounds.attempt, 2);
    assert_int_equal(launcher.rounds.named, 2);
    average(1);
    assert_int_equal(launcher.rounds.decided, 4);
    assert_int_equal(launcher.rounds.without, 0);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_STARTS);
    assert_metrics_have("\"step\":4,\"members\":[1],\"without\":[0],\"entering\":[]");
    assert_false(come(1, 8));
    average(1);
    assert_int_equal(launcher.rounds.without, 8);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENTERS);
    report(1, 8, 8);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 8, "mark");
    for (uint32_t r = 0; r < P; r++)
        say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
    report(0, 9, 11);
    for (uint32_t r = 0; r < P; r++)
        say_step(r, 12, "round");
    assert_false(come(1, 12)); /* it has to be linked up */
    average(0);
    assert_string_equal(result.cause, "");
    assert_int_equal(launcher.rounds.decided, 12);
}

/* One that does not return: all go back to the checkpoint of the next round's end, not of this one. */
static void test_who_does_not_return_ends_the_run_a_round_later(void **state)
{
    (void)state;
    begin_delayed();
    launch.returns = 0;
    come(0, 4);
    report(0, 4, 4);
    exit_ranks(0, P);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_GONE);
    for (uint32_t r = P; r < RANKS; r++)
        say_averaged(r, true, 0);
    average(1);
    assert_int_equal(launcher.rounds.decided, 4);
    assert_int_equal(launcher.rounds.without, 0);
    come(1, 8);
    average(1);
    assert_int_equal(launcher.rounds.without, 8);
    assert_string_equal(result.cause, "");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_members_train_on_while_an_average_travels),
        TEST(test_an_average_is_waited_for_where_more_follows),
        TEST(test_a_step_that_uses_a_mean_is_refused_before_all_have_it),
        TEST(test_a_replica_that_is_lost_meanwhile_enters_a_round_later),
        TEST(test_who_does_not_return_ends_the_run_a_round_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
