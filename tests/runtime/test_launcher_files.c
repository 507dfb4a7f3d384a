/*
 * test_launcher_files.c -- reduce.patience: the files of the checkpoint by which a replica returns, as the launcher
 * sees them.
 */
#include "rounds_kit.h"

/* All messages with that op that the launcher has sent since the last look; a reference. */
static json_t *sent(const char *op)
{
    char text[16384];
    json_t *all = json_array();
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *message = json_loads(each, 0, NULL);
        if (aq_control_is(message, "op", op)) json_array_append(all, message);
        json_decref(message);
    }
    return all;
}

/* The line of a rank, and the first message with that op that the launcher answers it by; a reference, or NULL. */
static json_t *answer(uint32_t rank, const char *line, const char *op)
{
    json_t *message = json_loads(line, 0, NULL);
    json_object_set_new(message, "rank", json_integer(rank));
    launcher_event(&launcher, &launcher.hosts[0], message);
    json_decref(message);
    json_t *all = sent(op), *found = json_incref(json_array_get(all, 0));
    json_decref(all);
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
    json_t *give = answer(1, "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}", "give");
    assert_non_null(give);
    assert_int_equal(aq_control_u64_or(give, "rank", 99), P + 1);
    assert_int_equal(aq_control_u64_or(give, "to", 99), 1);
    assert_int_equal(aq_control_u64_or(give, "step", 0), 8);
    assert_int_equal(aq_control_u64_or(give, "bytes", 0), 1001);
    assert_string_equal(aq_control_text_or(give, "address", ""), "a:1");
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
        say(1, "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}");
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
    say(1, "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}");
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
        {0, "replica 0 stage 0", "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}", "was not told to read", false},
        {0, "replica 0 stage 0", "{\"event\":\"fetch\",\"step\":4,\"address\":\"a:1\"}", "was not told to read", true},
        {P, "replica 1 stage 0", "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}", "while it trains", true},
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
    say(1, "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}");
    const off_t bytes = size_of(metrics_path);
    say(1, "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}");
    assert_refused("replica 0 stage 1", "was not told to read", 1, bytes);
}

/* ---- all start from that checkpoint ---- */

#define FETCH "{\"event\":\"fetch\",\"step\":8,\"address\":\"a:1\"}"

/* Another launcher, which knows what its run folder has. */
static void launch_again(void)
{
    struct host host = launcher.hosts[0];
    for (uint32_t r = 0; r < RANKS; r++) {
        json_decref(launcher.stages[r].report);
        json_decref(launcher.stages[r].evals);
    }
    json_decref(launcher.hashes);
    memset(&launcher, 0, sizeof launcher);
    launch.resume = 8;
    launcher.launch = &launch;
    launcher.result = &result;
    launcher.ranks = RANKS;
    launcher.host_count = 1;
    launcher.hosts[0] = host;
    result = (struct aq_launch_result){.mark = 8};
    aq_watch_init(&launcher.watch, &launch.watch, 1);
    assert_int_equal(launcher_hashes_load(&launcher), AQ_OK);
    assert_int_equal(launcher_rounds_open(&launcher), AQ_OK);
}

/* Replica 1 has the files of replica 0, and all start. */
static void start_all(void)
{
    enter_with_files();
    launch.fetches = true;
    launch_again();
    hosts_start(&launcher);
}

static void test_a_later_launch_knows_who_wrote_the_files(void **state)
{
    (void)state;
    start_all();
    json_t *starts = sent("start");
    assert_int_equal(json_array_size(starts), RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        const json_t *start = json_array_get(starts, r);
        assert_true(aq_control_bool_or(start, "waits", false));
        assert_int_equal(aq_control_u64_or(start, "from", 99), r < P ? P + r : 99);
        assert_int_equal(aq_control_u64_or(start, "bytes", 0), r < P ? 1000 + r : 0);
        assert_string_equal(aq_control_text_or(start, "sha256", ""), r < P ? HASH : "");
    }
    json_decref(starts);
    /* Not where nobody could connect to the rank, and not by a process that returns. */
    assert_true(launcher.rounds.gathers);
    host_start(&launcher, 0, true);
    starts = sent("start");
    assert_null(json_object_get(json_array_get(starts, 0), "waits"));
    assert_null(json_object_get(json_array_get(starts, 0), "from"));
    json_decref(starts);
    launch.fetches = false;
    launch_again();
    assert_false(launcher.rounds.gathers);
}

static void test_all_enter_when_each_has_its_file(void **state)
{
    (void)state;
    start_all();
    start_ranks(P, RANKS);
    start_ranks(0, 1);
    say(1, "{\"event\":\"doing\",\"doing\":10}");
    json_t *give = answer(1, FETCH, "give");
    assert_int_equal(aq_control_u64_or(give, "rank", 99), P + 1);
    assert_int_equal(aq_control_u64_or(give, "to", 99), 1);
    assert_string_equal(aq_control_text_or(give, "address", ""), "a:1");
    json_decref(give);
    start_ranks(2, P);
    assert_true(launcher.rounds.gathers);
    json_t *early = sent("enter");
    assert_int_equal(json_array_size(early), 0);
    json_decref(early);
    char line[64];
    snprintf(line, sizeof line, "{\"event\":\"doing\",\"doing\":%d}", AQ_PHASE_WEIGHTS);
    json_t *first = answer(1, line, "enter");
    assert_non_null(first);
    assert_int_equal(aq_control_u64_or(first, "step", 0), 8);
    assert_null(json_object_get(first, "from"));
    json_decref(first);
    assert_false(launcher.rounds.gathers);
    say(P + 1, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"it had come already\"}");
    assert_string_equal(result.cause, "");
    begin();
}

static void test_a_file_that_does_not_come_is_an_unreadable_checkpoint(void **state)
{
    (void)state;
    start_all();
    say(1, FETCH);
    say(P, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"x\"}"); /* of a file of another rank */
    assert_string_equal(result.cause, "");
    say(P + 1, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"it is not here any more\"}");
    assert_non_null(strstr(result.cause, "replica 0 stage 1 does not get its checkpoint from replica 1 stage 1"));
    assert_true(result.unreadable && result.transient);
    /* Its process had ended: that is the cause, and the next start may find the file. */
    say(P + 1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_non_null(strstr(result.cause, "was killed by signal 9"));
    assert_true(!result.unreadable && result.transient);
}

static void test_a_daemon_that_is_lost_meanwhile_is_the_cause(void **state)
{
    (void)state;
    start_all();
    say(1, FETCH);
    say(P + 1, "{\"event\":\"ungiven\",\"step\":8,\"to\":1,\"text\":\"x\"}");
    host_lost(&launcher, &launcher.hosts[0], AQ_CLOSED, NULL);
    assert_non_null(strstr(result.cause, "the daemon of test is out of reach"));
    assert_true(!result.unreadable && result.transient);
}

/* Whatever the receiver makes of the end of its link. */
static void test_a_writer_that_is_killed_is_the_cause(void **state)
{
    (void)state;
    start_all();
    say(1, FETCH);
    say(1, "{\"event\":\"failed\",\"status\":\"protocol violated\",\"text\":\"x\",\"checkpoint\":8}");
    assert_non_null(strstr(result.cause, "replica 0 stage 1 failed: x"));
    assert_true(result.unreadable && result.transient);
    say(P + 1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_non_null(strstr(result.cause, "was killed by signal 9"));
    assert_true(!result.unreadable && result.transient);
}

static void test_a_start_that_is_too_long_names_the_file(void **state)
{
    (void)state;
    start_all();
    launch.ready_ns_max = 900ull * 1000000000;
    assert_false(launcher_return_gather_late(&launcher));
    assert_string_equal(result.cause, "");
    launcher.stages[1].file.bytes = 1ull << 30;
    say(1, FETCH);
    assert_true(launcher_return_gather_late(&launcher));
    assert_string_equal(result.cause, "replica 0 has not read its checkpoint in time (900 s), a file of 1.00 GiB, for "
                                      "which its line needs 9.54 Mbit/s");
    assert_true(result.unreadable && result.transient);
}

static void test_a_fetch_out_of_place_at_the_start_is_refused(void **state)
{
    for (int wrong = 0; wrong < 4; wrong++) {
        if (wrong > 0) assert_int_equal(setup(state), 0);
        start_all();
        uint32_t rank = 0;
        if (wrong == 0) rank = P; /* whose file nobody else has written */
        if (wrong == 1) start_ranks(0, 1);
        if (wrong == 2) say(0, FETCH);
        if (wrong == 3) launcher.rounds.gathers = false; /* nobody waits */
        const off_t bytes = size_of(metrics_path);
        say(rank, FETCH);
        assert_refused(rank ? "replica 1 stage 0" : "replica 0 stage 0", "was not told to read", rank, bytes);
        if (wrong < 3) assert_int_equal(teardown(state), 0);
    }
}

/* What is noted in the run folder may be damaged, of another count of ranks, or of a version without it. */
static void test_a_note_that_cannot_be_is_none(void **state)
{
#define NOTE(by, bytes, hash) "{\"by\":" by ",\"bytes\":" bytes ",\"sha256\":\"" hash "\"}"
    static const struct {
        const char *entry;
        bool gathers;
    } notes[] = {
        {NOTE("3", "9", HASH), true},
        {NOTE("4", "9", HASH), false}, /* another stage */
        {NOTE("0", "9", HASH), false}, /* itself        */
        {NOTE("6", "9", HASH), false}, /* nobody        */
        {NOTE("-3", "9", HASH), false},
        {NOTE("\"3\"", "9", HASH), false},
        {NOTE("3", "0", HASH), false},
        {NOTE("3", "-1", HASH), false},
        {NOTE("3", "9", "x"), false},
        {"\"" HASH "\"", false},
        {"[3]", false},
        {"null", false},
    };
    char text[400];
    enter_with_files();
    launch.fetches = true;
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        for (int count = 5; count <= 6; count++) {
            snprintf(text, sizeof text, "{\"8\":[%s,\"\",\"\",\"\",\"\"%s]}", notes[i].entry,
                     count == 6 ? ",\"\"" : "");
            assert_int_equal(aq_file_replace(folder, "hashes.json", 0600, text, strlen(text)), AQ_OK);
            launch_again();
            assert_int_equal(launcher.rounds.gathers, notes[i].gathers && count == 6);
        }
    (void)state;
}

/* Its processes have ended, and start again, after its file was written and before the checkpoint is complete. */
static void test_a_note_stays_when_the_process_is_another_one(void **state)
{
    (void)state;
    char line[200];
    launch.returns = 2;
    begin_rounds(NEVER_NS);
    lose_first(5);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    train_rounds(1, 8); /* of its stages one has not ended yet */
    for (uint32_t r = 0; r < P; r++) {
        snprintf(line, sizeof line, "{\"event\":\"stood-in\",\"step\":8,\"to\":%u,\"bytes\":%u,\"sha256\":\"%s\"}", r,
                 1000 + r, HASH);
        say(P + r, line);
    }
    for (uint32_t r = 1; r < P; r++)
        say(r, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_STARTS);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 8, "mark");
    assert_int_equal(result.mark, 8);
    launch.fetches = true;
    launch_again();
    assert_true(launcher.rounds.gathers);
    assert_int_equal(launcher.stages[0].file.step, 8);
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
        TEST(test_a_later_launch_knows_who_wrote_the_files),
        TEST(test_all_enter_when_each_has_its_file),
        TEST(test_a_file_that_does_not_come_is_an_unreadable_checkpoint),
        TEST(test_a_daemon_that_is_lost_meanwhile_is_the_cause),
        TEST(test_a_writer_that_is_killed_is_the_cause),
        TEST(test_a_start_that_is_too_long_names_the_file),
        TEST(test_a_fetch_out_of_place_at_the_start_is_refused),
        TEST(test_a_note_that_cannot_be_is_none),
        TEST(test_a_note_stays_when_the_process_is_another_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
