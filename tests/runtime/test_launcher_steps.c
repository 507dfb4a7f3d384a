/*
 * test_launcher_steps.c -- reduce.steps: speed: what each replica trains of a round, in the log, resumed and repeated.
 */
#include "rounds_kit.h"

static void begin_speed(uint64_t patience_ns)
{
    launch.bounds.by_speed = true;
    begin_rounds(patience_ns);
}

static void assert_share(uint32_t replica, uint64_t steps, uint64_t position, uint64_t updates)
{
    const struct launcher_share *share = &launcher.rounds.replicas[replica].share;
    assert_int_equal(share->steps, steps);
    assert_int_equal(share->position, position);
    assert_int_equal(share->updates, updates);
}

/* All ranks report the steps of the first round up to this one. */
static void train_to(uint64_t last)
{
    for (uint64_t step = 1; step <= last; step++)
        for (uint32_t r = 0; r < RANKS; r++)
            say_step(r, step, "step");
}

/* Rank r of replicas from `first` on comes to the round's end; its steps took seconds[r] each. */
static void come(uint32_t first, uint64_t step, const double *seconds)
{
    for (uint32_t r = first * P; r < RANKS; r++) {
        char line[200];
        snprintf(line, sizeof line, "{\"event\":\"round\",\"step\":%llu,\"step_seconds\":%.17g}",
                 (unsigned long long)step, seconds[r]);
        say(r, line);
    }
}

/* A round of four steps: the second replica's slowest rank takes more than twice as long as the first replica's. */
static const double twice[RANKS] = {0.1, 0.2, 0.1, 0.2, 0.3, 0.41};

static void test_a_slow_replica_trains_fewer_steps(void **state)
{
    (void)state;
    launch.bounds.evaluates = false;
    begin_speed(NEVER_NS);
    for (uint32_t w = 0; w < W; w++)
        assert_share(w, 4, 0, 0);
    train_to(3);
    come(0, 4, twice);
    average(0);
    assert_share(0, 4, 4, 4);
    assert_share(1, 2, 4, 4);
    assert_metrics_have("\"step\":4,\"members\":[0,1],\"without\":[],\"entering\":[],\"steps\":[4,2],"
                        "\"position\":[4,4],\"updates\":[4,4]");
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(launcher_steps_due(&launcher, r), 4); /* this round's last line is not there yet */
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 4, "step");
    assert_int_equal(launcher_steps_due(&launcher, 0), 5);
    assert_int_equal(launcher_steps_due(&launcher, P), 7);
    for (uint64_t step = 5; step < 8; step++)
        for (uint32_t r = 0; r < RANKS; r++)
            if (r < P || step > 6) say_step(r, step, "step");
    assert_metrics_have("{\"event\":\"step\",\"step\":7");
    come(0, 8, twice);
    average(0);
    assert_share(0, 4, 8, 8);
    assert_share(1, 2, 6, 6);
    assert_string_equal(result.cause, "");
}

/* Its only step of the round is the last one, whose line comes when the next round is named already. */
static void test_a_share_may_be_one_step(void **state)
{
    (void)state;
    static const double ten[RANKS] = {0.1, 0.1, 0.1, 1, 1, 1};
    launch.bounds.evaluates = false;
    begin_speed(NEVER_NS);
    train_to(3);
    come(0, 4, ten);
    average(0);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 4, "step");
    assert_share(1, 1, 4, 4);
    for (uint64_t step = 5; step < 8; step++)
        for (uint32_t r = 0; r < P; r++)
            say_step(r, step, "step");
    come(0, 8, ten);
    average(0);
    assert_share(1, 1, 5, 5);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 8, "step");
    assert_int_equal(launcher_steps_due(&launcher, P), 12);
    assert_metrics_have("{\"event\":\"step\",\"step\":8");
    const off_t bytes = size_of(metrics_path);
    say_step(P, 9, "step");
    assert_refused("replica 1 stage 0", "reports step 9 while step 12 is due", P, bytes);
}

/* What the ranks are told is what the log has. */
static void test_each_rank_is_told_its_share(void **state)
{
    (void)state;
    char text[16384];
    uint32_t told = 0;
    launch.bounds.evaluates = false;
    begin_speed(NEVER_NS);
    train_to(3);
    come(0, 4, twice);
    for (uint32_t r = 0; r + 1 < RANKS; r++)
        say_averaged(r, true, 0);
    json_t *last = json_pack("{s:s, s:i, s:i, s:b, s:i}", "event", "averaged", "step", 4, "attempt", 1, "whole", true,
                             "rank", RANKS - 1);
    launcher_event(&launcher, &launcher.hosts[0], last);
    json_decref(last);
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *sent = json_loads(each, 0, NULL);
        if (aq_control_is(sent, "op", "averaged")) {
            const uint64_t rank = aq_control_u64_or(sent, "rank", RANKS);
            assert_int_equal(aq_control_u64_or(sent, "steps", 0), rank < P ? 4 : 2);
            assert_int_equal(aq_control_u64_or(sent, "position", 0), 4);
            assert_int_equal(aq_control_u64_or(sent, "updates", 0), 4);
            told++;
        }
        json_decref(sent);
    }
    assert_int_equal(told, RANKS);
}

/* In the first round nobody knows how long a replica takes; then its share is of what it takes. */
static void test_only_a_replica_whose_speed_is_known_is_late(void **state)
{
    (void)state;
    launch.bounds.evaluates = false;
    begin_speed(1);
    for (uint64_t round = 4; round <= 8; round += 4) {
        for (uint64_t step = round - 3; step < round; step++)
            for (uint32_t r = 0; r < RANKS; r++)
                say_step(r, step, "step");
        for (uint32_t r = 0; r < P; r++)
            say_step(r, round, "round");
        launcher_rounds_turn(&launcher);
        aq_watch_tick(&launcher.watch, round * NEVER_NS);
        launcher_rounds_turn(&launcher);
        assert_int_equal(launcher_is_lost(&launcher, P), round == 8);
        if (round == 8) break;
        static const double alike[RANKS] = {1, 1, 1, 1, 1, 1};
        come(1, round, alike);
        average(0);
        assert_share(1, 4, 4, 4);
        for (uint32_t r = 0; r < RANKS; r++)
            say_step(r, round, "step");
    }
    assert_string_equal(result.cause, "");
}

/* Its batches of the dropped round are trained again; its moments are the first member's. */
static void test_a_lost_replicas_batches_come_again(void **state)
{
    (void)state;
    launch.bounds.evaluates = false;
    launch.returns = 1;
    begin_speed(NEVER_NS);
    train_to(3);
    come(0, 4, twice);
    average(0);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 4, "step");
    for (uint64_t step = 5; step < 7; step++)
        for (uint32_t r = 0; r < P; r++)
            say_step(r, step, "step");
    /* The fast one is lost: nobody has trained step 6 and before in the lines that are whole but it. */
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 7, "step");
    come(1, 8, twice);
    average(1);
    assert_share(0, 4, 4, 6);
    assert_share(1, 4, 6, 6); /* the fastest of those that are left */
    assert_string_equal(result.cause, "");
}

/* Steps that only the lost replica would have trained have a line, too: none is missing. */
static void test_steps_that_nobody_trained_have_their_line(void **state)
{
    (void)state;
    launch.bounds.evaluates = false;
    launch.returns = 1;
    begin_speed(NEVER_NS);
    train_to(3);
    come(0, 4, twice);
    average(0);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 4, "step");
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 7, "step");
    for (uint64_t step = 1; step <= 7; step++) {
        char line[64];
        snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":%llu,", (unsigned long long)step);
        assert_metrics_have(line);
    }
    assert_string_equal(result.cause, "");
}

static void test_step_times_out_of_bounds(void **state)
{
    static const struct {
        const char *seconds;
        bool refused;
        uint64_t steps;
    } of[] = {{"-1", true, 0}, {"\"x\"", true, 0}, {"[1]", true, 0},  {"null", false, 4},
              {"0", false, 4}, {"1e10", true, 0},  {"1e9", false, 1}, {"5e-324", false, 4}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char line[100];
        if (i > 0) assert_int_equal(setup(state), 0);
        launch.bounds.evaluates = false;
        begin_speed(NEVER_NS);
        train_to(3);
        for (uint32_t r = 0; r < P; r++)
            say(r, "{\"event\":\"round\",\"step\":4,\"step_seconds\":0.25}");
        const off_t bytes = size_of(metrics_path);
        snprintf(line, sizeof line, "{\"event\":\"round\",\"step\":4,\"step_seconds\":%s}", of[i].seconds);
        for (uint32_t r = P; r < RANKS && !launcher.stages[P].distrusted; r++)
            say(r, line);
        if (of[i].refused) {
            assert_refused("replica 1 stage 0", "'step_seconds'", P, bytes);
        } else {
            average(0);
            assert_share(1, of[i].steps, 4, 4);
            assert_string_equal(result.cause, "");
        }
        if (i + 1 < sizeof of / sizeof *of) assert_int_equal(teardown(state), 0);
    }
}

/* By the line of the checkpoint's step, the last one of the file. */
static void test_a_run_resumes_with_the_shares_of_its_log(void **state)
{
    static const struct {
        const char *text, *why; /* NULL: it resumes with these shares, or, of other replicas, with equal ones */
        uint64_t steps, position, updates;
    } logs[] = {
        {"{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[1,1],\"position\":[1,1],\"updates\":[1,1]}\n"
         "{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[4,2],\"position\":[8,5],\"updates\":[8,6]}\n"
         "{\"event\":\"round\",\"step\":4,\"without\":[],\"steps\":[4,3],\"position\":[4,4],\"updates\":[4,4]}\n",
         NULL, 2, 5, 6},
        {"{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[4,2],\"position\":[8,5],\"updates\":[8,6]}\n"
         "{\"event\":\"step\",\"step\":8}\nno JSON\n{\"event\":\"restart\",\"step\":8}\n{\"event\":\"round\",\"st",
         NULL, 2, 5, 6},
        {"{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[4,2],\"position\":[8,5],\"updates\":[8,6]}\n"
         "{\"event\":\"step\",\"step\":7}\n",
         "no whole line", 0, 0, 0},
        {"{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[4,2,1],\"position\":[8,5,2],\"updates\":[8,6,3]}\n",
         NULL, 4, 8, 8},
        {"", "has no whole line of the round that ends with step 8", 0, 0, 0},
        {"{\"event\":\"round\",\"step\":8,\"without\":[]}\n", "no whole line", 0, 0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,0],\"position\":[8,5],\"updates\":[8,6]}\n", "no whole line", 0,
         0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,5],\"position\":[8,5],\"updates\":[8,6]}\n", "no whole line", 0,
         0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,-2],\"position\":[8,5],\"updates\":[8,6]}\n", "no whole line", 0,
         0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,2],\"position\":[8,9],\"updates\":[8,6]}\n", "no whole line", 0,
         0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,2],\"position\":[8,5],\"updates\":[8,9]}\n", "no whole line", 0,
         0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,2],\"position\":[8,5]}\n", "no whole line", 0, 0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,2],\"position\":[8,\"5\"],\"updates\":[8,6]}\n", "no whole line",
         0, 0, 0},
        {"{\"event\":\"round\",\"step\":8,\"steps\":[4,2],\"position\":[8,-5],\"updates\":[8,6]}\n", "no whole line", 0,
         0, 0}};
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        FILE *file = fopen(metrics_path, "w");
        assert_non_null(file);
        fputs(logs[i].text, file);
        fclose(file);
        launch.bounds = (struct aq_launch_bounds){
            .steps = 16, .round_steps = 4, .mark_every = 8, .patience_ns = NEVER_NS, .by_speed = true};
        launch.resume = 8;
        const enum aq_status status = launcher_rounds_open(&launcher);
        assert_int_equal(status, logs[i].why ? AQ_MISMATCH : AQ_OK);
        if (logs[i].why)
            assert_non_null(strstr(aq_error_text(), logs[i].why));
        else
            assert_share(1, logs[i].steps, logs[i].position, logs[i].updates);
        if (!logs[i].why) {
            launcher.stages[P].step = 8;
            assert_int_equal(launcher_steps_due(&launcher, P), 8 + 4 - logs[i].steps + 1);
        }
        aq_error_clear();
        if (i + 1 < sizeof logs / sizeof *logs) assert_int_equal(teardown(state), 0);
    }
}

/* Whatever their speed is here: the log's, and the launcher counts on. */
static void test_a_repeated_run_has_the_steps_of_its_log(void **state)
{
    static const struct {
        const char *text;
        bool read, ends;
    } logs[] = {{"{\"event\":\"round\",\"step\":4,\"without\":[],\"steps\":[1,3]}\n", true, true},
                {"{\"event\":\"round\",\"step\":8,\"without\":[],\"steps\":[1,3]}\n", true, false},
                {"{\"event\":\"round\",\"step\":4,\"without\":[]}\n", false, false},
                {"{\"event\":\"round\",\"step\":4,\"without\":[],\"steps\":[1,3,4]}\n", false, false},
                {"{\"event\":\"round\",\"step\":4,\"without\":[],\"steps\":[1,\"3\"]}\n", false, false}};
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        char path[160];
        if (i > 0) assert_int_equal(setup(state), 0);
        snprintf(path, sizeof path, "%s/log.jsonl", folder);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(logs[i].text, file);
        fclose(file);
        launch.rounds = path;
        launch.bounds = (struct aq_launch_bounds){
            .steps = 16, .round_steps = 4, .mark_every = 8, .patience_ns = NEVER_NS, .by_speed = true};
        launch.manifest = "x";
        launch.ready_ns_max = NEVER_NS;
        aq_watch_init(&launcher.watch, &launch.watch, 1);
        assert_int_equal(launcher_rounds_open(&launcher), logs[i].read ? AQ_OK : AQ_MISMATCH);
        if (logs[i].read) {
            begin();
            train_to(3);
            come(0, 4, twice);
            average(0);
            if (logs[i].ends) assert_share(0, 1, 4, 4);
            if (logs[i].ends) assert_share(1, 3, 4, 4);
            assert_int_equal(*result.cause != 0, !logs[i].ends);
            if (!logs[i].ends) assert_non_null(strstr(result.cause, "no line of the round that ends with step 4"));
        }
        launcher_rounds_close(&launcher);
        launcher.rounds.log = NULL;
        aq_error_clear();
        if (i + 1 < sizeof logs / sizeof *logs) assert_int_equal(teardown(state), 0);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_slow_replica_trains_fewer_steps),
        TEST(test_a_share_may_be_one_step),
        TEST(test_each_rank_is_told_its_share),
        TEST(test_only_a_replica_whose_speed_is_known_is_late),
        TEST(test_a_lost_replicas_batches_come_again),
        TEST(test_steps_that_nobody_trained_have_their_line),
        TEST(test_step_times_out_of_bounds),
        TEST(test_a_run_resumes_with_the_shares_of_its_log),
        TEST(test_a_repeated_run_has_the_steps_of_its_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
