/*
 * test_launcher_files.c -- reduce.patience: the files of the checkpoint by which a replica returns, as the launcher
 * sees them.
 */
#include "rounds_kit.h"

/* The line of a rank, and the fields of the first message with that op that the launcher answers it by; a reference, or
 * NULL. */
static json_t *answer(uint32_t rank, const char *line, const char *op)
{
    char text[16384];
    json_t *message = json_loads(line, 0, NULL), *found = NULL;
    json_object_set_new(message, "rank", json_integer(rank));
    launcher_event(&launcher, &launcher.hosts[0], message);
    json_decref(message);
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *sent = json_loads(each, 0, NULL);
        if (!found && aq_control_is(sent, "op", op)) found = json_incref(sent);
        json_decref(sent);
    }
    return found;
}

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Replica 0 is lost, its new processes wait, and the round of step 8 has ended without it. */
static void wait_for_files(void)
{
    launch.returns = 2;
    begin_rounds(NEVER_NS);
    lose_first(5);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    say(2, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    start_ranks(0, P);
    train_rounds(1, 8);
}

/* Replica 1 has written its files, and it may enter. */
static void enter_with_files(void)
{
    char line[200];
    wait_for_files();
    for (uint32_t r = 0; r < P; r++) {
        snprintf(line, sizeof line, "{\"event\":\"stood-in\",\"step\":8,\"to\":%u,\"bytes\":%u,\"sha256\":\"%s\"}", r,
                 1000 + r, HASH);
        say(P + r, line);
    }
    for (uint32_t r = P; r + 1 < RANKS; r++)
        say_step(r, 8, "mark");
    json_t *enter = answer(RANKS - 1, "{\"event\":\"mark\",\"step\":8}", "enter"); /* the first one is of rank 0 */
    assert_non_null(enter);
    assert_int_equal(aq_control_u64_or(enter, "rank", 99), 0);
    assert_int_equal(aq_control_u64_or(enter, "step", 0), 8);
    assert_int_equal(aq_control_u64_or(enter, "from", 99), P);
    assert_int_equal(aq_control_u64_or(enter, "bytes", 0), 1000);
    assert_string_equal(aq_control_text_or(enter, "sha256", ""), HASH);
    json_decref(enter);
}

static void test_a_rank_that_returns_gets_its_file(void **state)
{
    (void)state;
    enter_with_files();
    json_t *give = answer(1, "{\"event\":\"fetch\",\"step\":8}", "give");
    assert_non_null(give);
    assert_int_equal(aq_control_u64_or(give, "rank", 99), P + 1);
    assert_int_equal(aq_control_u64_or(give, "to", 99), 1);
    assert_int_equal(aq_control_u64_or(give, "step", 0), 8);
    assert_int_equal(aq_control_u64_or(give, "bytes", 0), 1001);
    json_decref(give);
    assert_true(launcher_return_fetches(&launcher, 0));
    /* Of a file that it was not asked for, of another step, of a rank that does not wait, of nobody. */
    say(P, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"x\"}");
    say(P + 1, "{\"event\":\"ungiven\",\"step\":7,\"to\":1,\"text\":\"x\"}");
    say(P, "{\"event\":\"ungiven\",\"step\":8,\"to\":0,\"text\":\"x\"}");
    say(P, "{\"event\":\"ungiven\",\"step\":8,\"to\":99,\"text\":\"x\"}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENTERS);
    say(P + 1, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"no way there\"}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENDS);
    assert_true(launcher_is_lost(&launcher, 0));
    assert_string_equal(result.cause, "");
    assert_false(launcher.aborting);
}

static void test_a_rank_that_cannot_read_its_file_is_lost_alone(void **state)
{
    (void)state;
    enter_with_files();
    say(1, "{\"event\":\"failed\",\"status\":\"corrupt\",\"text\":\"x\",\"checkpoint\":8}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENDS);
    assert_string_equal(result.cause, "");
}

/* While it has no weights, the only one that has them is not left out. */
static void test_who_sends_the_only_weights_is_not_left_out(void **state)
{
    for (int ready = 0; ready < 2; ready++) {
        if (ready) assert_int_equal(setup(state), 0);
        enter_with_files();
        say(1, "{\"event\":\"fetch\",\"step\":8}");
        for (uint32_t r = 0; r < P && ready; r++)
            say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
        say(P, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        if (ready)
            assert_string_equal(result.cause, "");
        else
            assert_non_null(strstr(result.cause, "was killed by signal 9"));
        if (!ready) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_file_that_is_too_late_is_told_with_its_rate(void **state)
{
    (void)state;
    char text[LATE_BYTES];
    enter_with_files();
    launch.ready_ns_max = 900ull * 1000000000;
    launcher_return_late(&launcher, 0, text);
    assert_string_equal(text, "has not read its checkpoint in time (900 s)");
    say(1, "{\"event\":\"fetch\",\"step\":8}");
    launcher.stages[1].file.bytes = 1ull << 30;
    launcher_return_late(&launcher, 0, text);
    assert_string_equal(text, "has not read its checkpoint in time (900 s), a file of 1.00 GiB, for which its line "
                              "needs 9.54 Mbit/s");
}

static void test_files_out_of_place_are_refused(void **state)
{
    static const struct {
        uint32_t rank;
        const char *who, *line, *why;
        bool entered;
    } wrong[] = {
#define STOOD(step, to, hash)                                                                                          \
    "{\"event\":\"stood-in\",\"step\":" #step ",\"to\":" #to ",\"bytes\":9,\"sha256\":\"" hash "\"}"
        {P, "replica 1 stage 0", STOOD(8, 1, HASH), "was not asked for", false},  /* another stage         */
        {P, "replica 1 stage 0", STOOD(8, 3, HASH), "was not asked for", false},  /* of a member           */
        {P, "replica 1 stage 0", STOOD(8, 99, HASH), "was not asked for", false}, /* of nobody             */
        {P, "replica 1 stage 0", STOOD(4, 0, HASH), "was not asked for", false},  /* of the round before   */
        {P, "replica 1 stage 0", STOOD(12, 0, HASH), "was not asked for", false}, /* of one to come        */
        {P, "replica 1 stage 0", STOOD(8, 0, "x"), "'sha256' is not", false},
        {0, "replica 0 stage 0", STOOD(8, 0, HASH), "while it starts", false},
        {0, "replica 0 stage 0", "{\"event\":\"fetch\",\"step\":8}", "was not told to read", false},
        {0, "replica 0 stage 0", "{\"event\":\"fetch\",\"step\":4}", "was not told to read", true},
        {P, "replica 1 stage 0", "{\"event\":\"fetch\",\"step\":8}", "while it trains", true},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        if (wrong[i].entered)
            enter_with_files();
        else
            wait_for_files();
        const off_t bytes = size_of(metrics_path);
        say(wrong[i].rank, wrong[i].line);
        assert_refused(wrong[i].who, wrong[i].why, wrong[i].rank, bytes);
        assert_int_equal(teardown(state), 0);
    }
    assert_int_equal(setup(state), 0);
    enter_with_files();
    say(1, "{\"event\":\"fetch\",\"step\":8}");
    const off_t bytes = size_of(metrics_path);
    say(1, "{\"event\":\"fetch\",\"step\":8}");
    assert_refused("replica 0 stage 1", "was not told to read", 1, bytes);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_rank_that_returns_gets_its_file),
        TEST(test_a_rank_that_cannot_read_its_file_is_lost_alone),
        TEST(test_who_sends_the_only_weights_is_not_left_out),
        TEST(test_a_file_that_is_too_late_is_told_with_its_rate),
        TEST(test_files_out_of_place_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
