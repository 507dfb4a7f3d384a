/*
 * test_launcher_rounds.c -- reduce.patience: rounds that end without a replica, and its return.
 *
 * A round of four steps, except where a test says so, a checkpoint every eight, sixteen steps.
 */
#include "rounds_kit.h"

static void test_a_round_ends_without_a_lost_replica(void **state)
{
    (void)state;
    begin_rounds(NEVER_NS);
    train_rounds(0, 5);
    assert_int_equal(launcher.rounds.decided, 4);
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_string_equal(result.cause, "");
    assert_true(launcher_is_lost(&launcher, 0) && launcher_is_lost(&launcher, P - 1));
    assert_false(launcher_is_lost(&launcher, P));
    say_step(0, 99, "step"); /* nothing that it says counts, be it wrong, late or of an old state */
    say_step(0, 4, "round");
    say_step(P - 1, 8, "mark");
    say(0, "{\"event\":\"failed\",\"status\":\"closed\",\"text\":\"x\"}");
    assert_string_equal(result.cause, "");
    train_rounds(1, 8);
    assert_int_equal(launcher.rounds.without, 8);
    assert_int_equal(launcher.stages[0].step, 5);
    for (uint32_t r = P; r < RANKS; r++) {
        assert_int_equal(result.mark, 0);
        say_step(r, 8, "mark");
    }
    assert_int_equal(result.mark, 8);
    assert_non_null(strstr(result.cause, "the round of step 8 ended with 1 of 2 replicas"));
    assert_true(result.transient);
}

static void test_nobody_is_left_out_of_the_last_round_or_the_best_checkpoint(void **state)
{
    static const uint64_t trained[] = {8 /* its checkpoint is not complete, and may be the best */,
                                       13 /* the last round */, 15 /* its average is under way */};
    for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        begin_rounds(NEVER_NS);
        result.best.figure = trained[i] == 8 ? "loss" : NULL;
        train_rounds(0, trained[i]);
        for (uint32_t r = 0; r < RANKS && trained[i] > 8; r++)
            say_step(r, 8, "mark");
        for (uint32_t r = 0; r < RANKS && trained[i] == 15; r++)
            say_step(r, 16, "round");
        say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_non_null(strstr(result.cause, "was killed by signal 9"));
        assert_true(result.transient);
        if (i + 1 < sizeof trained / sizeof *trained) assert_int_equal(teardown(state), 0);
    }
}

static void all_come(uint64_t step)
{
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, step, "round");
    assert_int_equal(launcher.rounds.averaging, step);
    assert_int_equal(launcher.rounds.attempt, 1);
}

/* Whatever has been told when the first replica is lost: its share does not count, on any stage. */
static void test_a_round_is_averaged_again_without_who_is_lost_meanwhile(void **state)
{
    for (uint32_t told = 0; told < 2 * RANKS;
         told++) { /* ranks that have the mean before the loss, or miss replica 0 */
        if (told > 0) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        train_rounds(0, 3);
        all_come(4);
        if (told < RANKS)
            for (uint32_t r = 0; r < told; r++)
                say_averaged(RANKS - 1 - r, true, 0); /* the last one to tell is of replica 0 */
        else
            for (uint32_t r = 0; r < told - RANKS && r < P; r++)
                say_averaged(P + r, false, 1);
        assert_int_equal(launcher.rounds.attempt, 1);
        say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_true(launcher_is_lost(&launcher, 0) && !launcher_is_lost(&launcher, P));
        for (uint32_t r = P; r < RANKS; r++) {
            assert_int_equal(launcher.rounds.decided, 0);
            if (launcher.rounds.attempt == 1 && launcher.stages[r].averaged == AVERAGE_NONE)
                say_averaged(r, r == P, 0); /* one has it all the same */
        }
        assert_int_equal(launcher.rounds.attempt, 2);
        assert_int_equal(launcher.rounds.named, 2);
        say_step(0, 4, "averaged"); /* of the process that has ended */
        average(1);
        assert_int_equal(launcher.rounds.decided, 4);
        assert_int_equal(launcher.rounds.averaging, 0);
        assert_string_equal(result.cause, "");
        assert_metrics_have("\"step\":4,\"members\":[1],\"without\":[0],\"entering\":[]");
        if (told + 1 < 2 * RANKS) assert_int_equal(teardown(state), 0);
    }
}

/* Links between replicas that live have ended: after the patience the one that is missed ends, too. */
static void test_a_replica_that_the_others_miss_is_lost(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(1);
    train_rounds(0, 3);
    all_come(4);
    for (uint32_t r = 0; r < RANKS; r++)
        say_averaged(r, r >= P + 1, r == 0 ? 2 : r == P ? 1 : 0); /* the two first stages miss each other */
    assert_int_equal(launcher.rounds.attempt, 1);
    launcher_rounds_turn(&launcher); /* no time has passed */
    assert_int_equal(launcher.rounds.attempt, 1);
    aq_watch_tick(&launcher.watch, NEVER_NS);
    launcher_rounds_turn(&launcher);
    assert_true(!launcher_is_lost(&launcher, 0) && launcher_is_lost(&launcher, P));
    assert_int_equal(launcher.rounds.attempt, 2);
    assert_int_equal(launcher.rounds.named, 1);
    for (uint32_t r = 0; r < P; r++)
        say_averaged(r, true, 0);
    assert_int_equal(launcher.rounds.decided, 4);
    assert_string_equal(result.cause, "");
}

/* Which ranks the launcher told to end the attempt because of this line, a bit each; *lost: of the last one. */
static uint64_t broken_by(uint32_t rank, bool whole, uint64_t ended, char lost[17])
{
    char text[16384], line[200];
    uint64_t told = 0;
    snprintf(line, sizeof line,
             "{\"event\":\"averaged\",\"step\":4,\"attempt\":1,\"whole\":%s,\"ended\":\"%016llx\",\"rank\":%u}",
             whole ? "true" : "false", (unsigned long long)ended, rank);
    json_t *message = json_loads(line, 0, NULL);
    launcher_event(&launcher, &launcher.hosts[0], message);
    json_decref(message);
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *sent = json_loads(each, 0, NULL);
        if (aq_control_is(sent, "op", "break")) {
            told |= 1ull << aq_control_u64_or(sent, "rank", 63);
            snprintf(lost, 17, "%s", aq_control_text_or(sent, "lost", ""));
        }
        json_decref(sent);
    }
    return told;
}

/* With three replicas and more, one has whole links to both ends of the one that has ended, and would wait. */
static void test_a_link_that_has_ended_ends_the_attempt_for_all(void **state)
{
    (void)state;
    char lost[17] = "";
    launch.returns = 1;
    begin_rounds(1);
    train_rounds(0, 3);
    all_come(4);
    assert_int_equal(broken_by(1, true, 0, lost), 0);
    assert_int_equal(broken_by(0, false, 2, lost), 0x3f & ~3u); /* rank 1 has sent it */
    assert_string_equal(lost, "0000000000000000");
    assert_int_equal(broken_by(P, false, 1, lost), 0); /* all know */
    assert_string_equal(result.cause, "");
}

static void test_averages_out_of_place_are_refused(void **state)
{
    static const struct {
        bool named;
        const char *line, *why;
    } wrong[] = {{false, "{\"event\":\"averaged\",\"step\":4,\"attempt\":1,\"whole\":true}", "it was not asked for"},
                 {true, "{\"event\":\"averaged\",\"step\":8,\"attempt\":1,\"whole\":true}", "it was not asked for"},
                 {true, "{\"event\":\"averaged\",\"step\":4,\"attempt\":2,\"whole\":true}", "it was not asked for"},
                 {true, "{\"event\":\"averaged\",\"step\":4,\"attempt\":65,\"whole\":true}", "'attempt' is not"},
                 {true, "{\"event\":\"averaged\",\"step\":4,\"attempt\":1}", "'whole'"},
                 {true, "{\"event\":\"step\",\"step\":4}", "not all have the average of its round"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        begin_rounds(NEVER_NS);
        train_rounds(0, 3);
        if (wrong[i].named) all_come(4);
        const off_t bytes = size_of(metrics_path);
        say(P, wrong[i].line);
        assert_refused("replica 1 stage 0", wrong[i].why, P, bytes);
        assert_int_equal(teardown(state), 0);
    }
    assert_int_equal(setup(state), 0);
    begin_rounds(NEVER_NS);
    train_rounds(0, 3);
    all_come(4);
    say_averaged(P, true, 0);
    const off_t bytes = size_of(metrics_path);
    say_averaged(P, true, 0);
    assert_refused("replica 1 stage 0", "it was not asked for", P, bytes);
}

static void test_replicas_with_other_weights_end_the_run(void **state)
{
    (void)state;
    begin_rounds(NEVER_NS);
    train_rounds(0, 8);
    for (uint32_t r = 0; r < RANKS; r++) {
        char line[100];
        snprintf(line, sizeof line, "{\"event\":\"mark\",\"step\":8,\"weights\":\"%016x\"}", r == 4 ? 99 : r % P);
        assert_string_equal(result.cause, "");
        say(r, line);
    }
    assert_non_null(strstr(result.cause, "step 8: the weights of replica 1 stage 1 (digest 0000000000000063) differ"));
    assert_int_equal(result.mark, 0);
}

static void all_mark(uint32_t first, uint64_t step)
{
    for (uint32_t r = first; r < RANKS; r++)
        say_step(r, step, "mark");
}

/* Nobody would come to the next round's end, so that it could return. */
static void test_after_the_last_step_of_a_stopped_run_nobody_is_left_out(void **state)
{
    for (int early = 0; early < 2; early++) {
        if (early) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        launch.bounds.steps = 64;
        train_rounds(0, 8);
        all_mark(0, 8);
        *(early ? &result.early_step : &launcher.last_step) = 8;
        say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_non_null(strstr(result.cause, "was killed by signal 9"));
        if (!early) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_repeated_round_waits_for_the_regular_checkpoint(void **state)
{
    (void)state;
    begin_rounds(NEVER_NS);
    launcher.rounds.log = json_object();
    train_rounds(0, 11);
    for (uint32_t r = 0; r < RANKS; r++)
        say_step(r, 12, "round");
    assert_int_equal(launcher.rounds.averaging, 0);
    all_mark(0, 8);
    launcher_rounds_turn(&launcher);
    average(0);
    assert_int_equal(launcher.rounds.decided, 12);
    assert_string_equal(result.cause, "");
    launcher_rounds_close(&launcher);
    launcher.rounds.log = NULL;
}

static void test_a_late_replica_is_left_out(void **state)
{
    (void)state;
    begin_rounds(1);
    train_rounds(0, 3);
    launcher_rounds_turn(&launcher); /* nobody is at the end: nobody is late */
    assert_int_equal(launcher.rounds.decided, 0);
    for (uint32_t r = 0; r < P; r++)
        say_step(r, 4, "round");
    launcher_rounds_turn(&launcher); /* no time has passed for the launcher, whatever the machine's clock has done */
    assert_false(launcher_is_lost(&launcher, P));
    aq_watch_tick(&launcher.watch, NEVER_NS);
    launcher_rounds_turn(&launcher); /* after a jump a second counts at most */
    assert_true(!launcher_is_lost(&launcher, 0) && launcher_is_lost(&launcher, P));
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 4, "round"); /* too late */
    for (uint32_t r = 0; r < P; r++)
        say_averaged(r, true, 0);
    assert_int_equal(launcher.rounds.without, 4);
    assert_int_equal(launcher.rounds.decided, 4);
    assert_string_equal(result.cause, "");
}

static void test_a_jump_of_the_clock_makes_nobody_late(void **state)
{
    (void)state;
    begin_rounds(2ull * 1000 * 1000 * 1000);
    train_rounds(0, 3);
    for (uint32_t r = 0; r < P; r++)
        say_step(r, 4, "round");
    aq_watch_tick(&launcher.watch, NEVER_NS); /* the launcher was stopped for an hour */
    launcher_rounds_turn(&launcher);
    for (uint32_t r = P; r < RANKS; r++) /* they had come long ago */
        say_step(r, 4, "round");
    average(0);
    assert_false(launcher_is_lost(&launcher, P));
    assert_int_equal(launcher.rounds.decided, 4);
    assert_int_equal(launcher.rounds.without, 0);
}

static void test_a_lost_replica_returns(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(NEVER_NS);
    lose_first(5);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENDS);
    say_step(0, 99, "step"); /* of a process that is being ended */
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_STARTS);
    assert_int_equal(launcher.ended, 0);
    assert_false(launcher_return_waits(&launcher, 0));
    start_ranks(0, P);
    assert_true(launcher_return_waits(&launcher, 0));
    train_rounds(1, 8);
    assert_int_equal(launcher.rounds.without, 8);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENTERS);
    assert_false(launcher_is_lost(&launcher, 0));
    train_rounds(1, 9); /* nobody waits for its start */
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 8, "mark");
    assert_int_equal(result.mark, 8);
    assert_int_equal(launcher.rounds.without, 0);
    say(1, "{\"event\":\"listening\",\"address\":\"127.0.0.1:1\",\"peer\":4}");
    for (uint32_t r = 0; r < P; r++)
        say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_TRAINS);
    for (uint64_t step = 9; step < 12; step++)
        for (uint32_t r = 0; r < P; r++) {
            say_step(r, step, "step");
            if (step == 9 && r == P - 1) say_step(r, step, "eval");
        }
    for (uint64_t step = 10; step < 12; step++)
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, step, "step");
    all_come(12);
    average(0);
    assert_int_equal(launcher.rounds.decided, 12);
    assert_int_equal(launcher.rounds.without, 0);
    assert_string_equal(result.cause, "");
    assert_metrics_have("\"step\":8,\"members\":[1],\"without\":[0],\"entering\":[0]");
    assert_metrics_have("\"step\":12,\"members\":[0,1],\"without\":[],\"entering\":[]");
}

/* Replicas from `first` on train the next step, with reduce.every: 1. */
static void train_step(uint32_t first)
{
    const uint64_t step = launcher.stages[first * P].step + 1;
    for (uint32_t r = first * P; r < RANKS; r++)
        say_step(r, step, "round");
    average(first);
    for (uint32_t r = first * P; r < RANKS; r++) {
        assert_int_equal(launcher.rounds.decided, step);
        say_step(r, step, "step");
        if (step % 3 == 0 && r % P == P - 1) say_step(r, step, "eval");
    }
}

/* For the launcher; *now_ns: the machine's clock. */
static void pass_a_second(uint64_t *now_ns)
{
    const uint64_t before = launcher.watch.clock.now_ns;
    *now_ns += NEVER_NS / 1000; /* of a jump a second counts at most */
    aq_watch_tick(&launcher.watch, *now_ns);
    assert_true(launcher.watch.clock.now_ns > before);
    launcher_rounds_turn(&launcher);
}

/* A step is a round. While one that returns reads its checkpoint the others wait, beyond the patience, too. */
static void test_a_step_ends_without_a_replica_and_waits_for_one_that_enters(void **state)
{
    for (uint32_t late = 0; late < 2; late++) {
        uint64_t now_ns = 0;
        if (late > 0) assert_int_equal(setup(state), 0);
        launch.returns = 2;
        begin_rounds(1000000);
        launch.bounds.round_steps = 1;
        for (uint64_t step = 1; step <= 5; step++)
            train_step(0);
        for (uint32_t r = 0; r < P; r++)
            say(r, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_STARTS);
        train_step(1);
        assert_int_equal(launcher.rounds.without, 0); /* nobody can enter yet */
        start_ranks(0, P);
        train_step(1);
        assert_int_equal(launcher.rounds.without, 7);
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, 8, "round");
        pass_a_second(&now_ns);
        assert_int_equal(launcher.rounds.averaging, 0); /* the checkpoint is not complete */
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, 7, "mark");
        pass_a_second(&now_ns);
        pass_a_second(&now_ns);
        assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENTERS);
        assert_false(launcher_is_lost(&launcher, 0));
        for (uint32_t r = 0; r < P; r++)
            say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
        launcher_rounds_turn(&launcher);
        assert_false(launcher_is_lost(&launcher, 0)); /* it has been told to train just now */
        if (late) pass_a_second(&now_ns);
        assert_true(launcher_is_lost(&launcher, 0) == (late > 0));
        for (uint32_t r = 0; r < P && !late; r++)
            say_step(r, 8, "round");
        average(late);
        assert_int_equal(launcher.rounds.decided, 8);
        assert_string_equal(result.cause, "");
        assert_metrics_have("\"step\":7,\"members\":[1],\"without\":[0],\"entering\":[0]");
        assert_metrics_have(late ? "\"step\":8,\"members\":[1],\"without\":[0],\"entering\":[]"
                                 : "\"step\":8,\"members\":[0,1],\"without\":[],\"entering\":[]");
        if (!late) assert_int_equal(teardown(state), 0);
    }
}

/* Whatever part of a checkpoint is there when its replica is lost: it is broken off, also in a later round. */
static void step_and_eval(uint32_t rank, uint64_t step)
{
    say_step(rank, step, "step");
    if (step % 3 == 0 && rank % P == P - 1) say_step(rank, step, "eval");
}

/*
 * The first replica has been lost and is back after the round that ends with `from`; it sends a sample that its caches
 * lack in the next step, the others train their round, and `seconds` pass.
 */
static void come_back_late(uint64_t from, uint32_t seconds, uint64_t *now_ns)
{
    exit_ranks(0, P);
    start_ranks(0, P);
    for (uint32_t r = P; r < RANKS; r++) /* the step whose round's end they have come to */
        if (launcher.stages[r].round > launcher.stages[r].step) step_and_eval(r, launcher.stages[r].round);
    train_rounds(1, from);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, from, "mark");
    for (uint32_t r = 0; r < P; r++)
        say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_TRAINS);
    char line[100];
    snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":%llu,\"loss\":1.5,\"targets\":5,\"keyframes\":1}",
             (unsigned long long)from + 1);
    say(0, line);
    for (uint64_t step = from + 1; step < from + 4; step++)
        for (uint32_t r = P; r < RANKS; r++)
            if (step > launcher.stages[r].step) step_and_eval(r, step);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, from + 4, "round");
    for (uint32_t i = 0; i < seconds; i++)
        pass_a_second(now_ns);
}

/* Else one whose caches are empty would be late in each round, lost, and empty again. */
static void test_a_replica_whose_caches_are_filled_again_may_be_late_for_longer(void **state)
{
    (void)state;
    uint64_t now_ns = 0;
    launch.returns = 9;
    begin_rounds(1500ull * 1000 * 1000);
    launch.bounds.steps = 64;
    lose_first(5);
    come_back_late(8, 1, &now_ns);
    assert_false(launcher_is_lost(&launcher, 0));
    pass_a_second(&now_ns);
    assert_true(launcher_is_lost(&launcher, 0));
    average(1);
    come_back_late(16, 2, &now_ns); /* 3 s */
    assert_false(launcher_is_lost(&launcher, 0));
    pass_a_second(&now_ns);
    pass_a_second(&now_ns);
    assert_true(launcher_is_lost(&launcher, 0));
    average(1);
    come_back_late(24, 4, &now_ns); /* 6 s */
    assert_false(launcher_is_lost(&launcher, 0));
    for (uint32_t r = 0; r < P; r++) {
        for (uint64_t step = launcher.stages[r].step + 1; step < 28; step++)
            step_and_eval(r, step);
        say_step(r, 28, "round");
    }
    average(0);
    assert_int_equal(launcher.rounds.decided, 28);
    assert_int_equal(launcher.rounds.replicas[0].late, 2);
    for (uint32_t r = P; r < RANKS; r++) { /* all that it sends is in its caches again */
        for (uint64_t step = 28; step < 32; step++)
            step_and_eval(r, step);
        say_step(r, 32, "round");
    }
    pass_a_second(&now_ns);
    pass_a_second(&now_ns);
    assert_true(launcher_is_lost(&launcher, 0));
    assert_int_equal(launcher.rounds.replicas[0].late, 0);
    assert_string_equal(result.cause, "");
}

/* What is told to the first member, and noted: the newest mark that all caches of the lost replica have. */
static void test_a_lost_replicas_caches_are_opened_at_the_newest_mark_of_all(void **state)
{
    for (uint32_t all = 0; all < 2; all++) {
        if (all) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        launch.bounds.steps = 64;
        train_rounds(0, 8);
        for (uint32_t r = 0; r < RANKS; r++)
            if (all || r != 1) say_step(r, 8, "mark"); /* else it is lost before its part is on disk */
        lose_first(9);
        assert_string_equal(result.cause, "");
        train_rounds(1, 12);
        assert_string_equal(result.cause, "");
        assert_metrics_have(all ? "\"without\":[0],\"entering\":[],\"caches\":{\"0\":8}"
                                : "\"without\":[0],\"entering\":[],\"time\"");
        assert_string_equal(result.cause, "");
        if (!all) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_loss_breaks_off_a_checkpoint_that_is_not_complete(void **state)
{
    for (uint32_t told = 0; told < 2 * RANKS; told++) {
        const uint64_t trained = told < RANKS ? 9 : 13;
        if (told > 0) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        launch.bounds.steps = 24;
        train_rounds(0, trained);
        for (uint32_t r = RANKS; r-- > RANKS - told % RANKS;)
            say_step(r, 8, "mark");
        say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_true(launcher_is_lost(&launcher, 0) && launcher_is_dropped(&launcher, 8));
        for (uint32_t r = P; r < RANKS - told % RANKS; r++)
            say_step(r, 8, "mark");
        assert_int_equal(result.mark, 0);
        say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
        start_ranks(0, P);
        train_rounds(1, trained / 4 * 4 + 4);
        assert_int_equal(launcher.rounds.without, trained / 4 * 4 + 4);
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, launcher.rounds.decided, "mark");
        assert_int_equal(result.mark, launcher.rounds.decided);
        assert_false(launcher_is_dropped(&launcher, result.mark));
        assert_string_equal(result.cause, "");
        if (told + 1 < 2 * RANKS) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_checkpoint_that_has_the_lost_replicas_part_becomes_complete(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(NEVER_NS);
    train_rounds(0, 9);
    for (uint32_t r = 0; r < P + 1; r++)
        say_step(r, 8, "mark");
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    for (uint32_t r = P + 1; r < RANKS; r++)
        say_step(r, 8, "mark");
    assert_int_equal(result.mark, 8);
    assert_string_equal(result.cause, "");
}

/* Three replicas of two stages: one round, and the share of the ranks in `members` of its average. */
static void train_round(uint32_t members, uint64_t last)
{
    for (uint64_t step = last - 3; step <= last; step++) {
        for (uint32_t r = 0; r < RANKS && step == last; r++)
            if (members >> r / 2 & 1) say_step(r, step, "round");
        for (uint32_t r = 0; r < RANKS && step == last; r++)
            if (members >> r / 2 & 1) say_averaged(r, true, 0);
        for (uint32_t r = 0; r < RANKS; r++)
            if (members >> r / 2 & 1) say_step(r, step, "step");
    }
}

/* Who was to enter from a checkpoint that is broken off enters from the next one. */
static void test_a_replica_that_was_to_enter_waits_for_the_next_checkpoint(void **state)
{
    (void)state;
    launch.returns = 1;
    launch.stages = 2;
    launch.replicas = 3;
    begin_rounds(NEVER_NS);
    launch.bounds.steps = 24;
    launch.bounds.evaluates = false;
    train_round(7, 4);
    exit_ranks(4, RANKS);
    start_ranks(4, RANKS);
    train_round(3, 8);
    assert_int_equal(launcher.rounds.replicas[2].state, REPLICA_ENTERS);
    assert_int_equal(launcher.rounds.without, 8);
    say_step(1, 8, "mark");
    say(2, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_int_equal(launcher.rounds.replicas[2].state, REPLICA_STARTS);
    assert_true(launcher_is_lost(&launcher, 4) && launcher_is_lost(&launcher, 2));
    say_step(0, 8, "mark");
    assert_int_equal(result.mark, 0);
    assert_int_equal(launcher.rounds.without, 0);
    assert_true(launcher_return_waits(&launcher, 2));
    train_round(1, 12);
    assert_int_equal(launcher.rounds.replicas[2].state, REPLICA_ENTERS);
    assert_string_equal(result.cause, "");
    say(1, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}"); /* nobody else has weights */
    assert_non_null(strstr(result.cause, "was killed by signal 9"));
}

/*
 * A repeated run takes no checkpoint for a return that did not come about: it was broken off, or who was to enter was
 * lost first. So nobody returns with its mark, nor with one that it may have replaced.
 */
static void test_caches_are_not_opened_at_a_mark_for_a_return_that_was_none(void **state)
{
    for (uint32_t whole = 0; whole < 2; whole++) {
        if (whole) assert_int_equal(setup(state), 0);
        launch.returns = 3;
        launch.stages = 2;
        launch.replicas = 3;
        begin_rounds(NEVER_NS);
        launch.bounds.steps = 64;
        launch.bounds.evaluates = false;
        train_round(7, 4);
        train_round(7, 8);
        for (uint32_t r = 0; r < RANKS; r++)
            say_step(r, 8, "mark");
        for (uint32_t w = 0; w < 3; w++)
            assert_int_equal(launcher.rounds.replicas[w].caches, 8);
        exit_ranks(4, RANKS);
        start_ranks(4, RANKS);
        train_round(3, 12);
        assert_int_equal(launcher.rounds.without, 12);
        for (uint32_t r = 0; r < 4; r++)
            if (whole || r != 2) say_step(r, 12, "mark");
        assert_int_equal(result.mark, whole ? 12 : 8);
        for (uint32_t r = 4; r < RANKS && whole; r++)
            say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
        assert_int_equal(launcher.rounds.replicas[2].state, whole ? REPLICA_TRAINS : REPLICA_ENTERS);
        /* It has not averaged yet; or half a mark. */
        say(whole ? 4 : 2, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        assert_int_equal(launcher.rounds.replicas[0].caches, whole ? 12 : 0);
        assert_int_equal(launcher.rounds.replicas[1].caches, whole ? 12 : 8);
        train_round(whole ? 3 : 1, 16);
        assert_string_equal(result.cause, "");
        assert_int_equal(launcher.rounds.decided, 16);
        assert_int_equal(launcher.rounds.replicas[0].caches, 0);
        assert_int_equal(launcher.rounds.replicas[1].caches, whole ? 0 : 8);
        assert_int_equal(launcher.rounds.replicas[2].caches, 8);
        if (!whole) assert_int_equal(teardown(state), 0);
    }
}

/* Two replicas: the one that enters is lost again before the checkpoint is complete. The other one has the weights. */
static void test_a_replica_that_enters_is_lost_again(void **state)
{
    (void)state;
    launch.returns = 2;
    begin_rounds(NEVER_NS);
    launch.bounds.steps = 24;
    lose_first(5);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
    start_ranks(0, P);
    train_rounds(1, 8);
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_ENTERS);
    assert_int_equal(launcher.rounds.without, 8);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_string_equal(result.cause, "");
    assert_true(launcher_is_lost(&launcher, 0));
    train_rounds(1, 9);
    all_mark(P, 8);
    assert_int_equal(result.mark, 8);
    train_rounds(1, 12);
    assert_int_equal(launcher.rounds.decided, 12);
    assert_string_equal(result.cause, "");
    say(P, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}"); /* nobody else lives */
    assert_non_null(strstr(result.cause, "was killed by signal 9"));
}

/* A regular checkpoint may still be being written when the replica enters at the round after it. */
static void test_a_slow_checkpoint_does_not_mind_who_enters(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(NEVER_NS);
    lose_first(5);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
    train_rounds(1, 8);
    start_ranks(0, P);
    train_rounds(1, 12);
    for (uint64_t step = 8; step <= 12; step += 4) {
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, step, "mark");
        assert_string_equal(result.cause, "");
        assert_int_equal(result.mark, step);
    }
}

/* train.skips_max: of a replica's own steps it is its loss, of steps that are void for all the run's end. */
static void test_void_steps_of_all_end_the_run(void **state)
{
    for (uint32_t common = 0; common < 2; common++) {
        if (common > 0) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        if (common > 0) launch.bounds.round_steps = 1;
        say(0, "{\"event\":\"failed\",\"status\":\"invalid\",\"text\":\"2 steps in a row\",\"checkpoint\":0}");
        assert_int_equal(launcher_is_lost(&launcher, 0), common == 0);
        assert_int_equal(strstr(result.cause, "2 steps in a row") != NULL, common > 0);
        if (common == 0) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_replica_with_an_old_state_is_refused(void **state)
{
    static const struct {
        bool told; /* the round without it has ended, and its checkpoint is complete */
        const char *line, *why;
    } wrong[] = {{false, "{\"event\":\"ready\"}", "is ready to return, and was not told from which step"},
                 {false, "{\"event\":\"step\",\"step\":6}", "sends 'step' while it starts"},
                 {false, "{\"event\":\"round\",\"step\":8}", "sends 'round' while it starts"},
                 {true, "{\"event\":\"step\",\"step\":6}", "reports step 6 while step 9 is due"},
                 {true, "{\"event\":\"step\",\"step\":10}", "reports step 10 while step 9 is due"},
                 {true, "{\"event\":\"mark\",\"step\":8}", "that of step 8 is complete"},
                 {true, "{\"event\":\"round\",\"step\":8}", "comes to a round's end at step 8"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        lose_first(5);
        say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
        start_ranks(0, P);
        if (wrong[i].told) {
            train_rounds(1, 8);
            for (uint32_t r = P; r < RANKS; r++)
                say_step(r, 8, "mark");
            for (uint32_t r = 0; r < P; r++)
                say(r, "{\"event\":\"ready\",\"checkpoint_seconds\":0}");
        }
        assert_string_equal(result.cause, "");
        const off_t bytes = size_of(metrics_path);
        say(0, wrong[i].line);
        assert_refused("replica 0 stage 0", wrong[i].why, 0, bytes);
        if (i + 1 < sizeof wrong / sizeof *wrong) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_replica_that_cannot_return_sends_all_to_the_rounds_checkpoint(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(NEVER_NS);
    lose_first(1);
    say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_STARTS);
    say(2, "{\"event\":\"failed\",\"status\":\"no device\",\"text\":\"x\"}");
    assert_int_equal(launcher.rounds.replicas[0].state, REPLICA_GONE);
    assert_string_equal(result.cause, ""); /* the others are not harmed before the round's end */
    train_rounds(1, 4);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 4, "mark");
    assert_non_null(strstr(result.cause, "the round of step 4 ended with 1 of 2 replicas"));
}

/* The last round needs all: its start is held until the replica can enter, or has had its time. */
static void test_the_last_round_but_one_waits_for_a_replica_that_returns(void **state)
{
    for (int in_time = 0; in_time < 2; in_time++) {
        if (in_time) assert_int_equal(setup(state), 0);
        launch.returns = 1;
        begin_rounds(NEVER_NS);
        launch.ready_ns_max = 1;
        train_rounds(0, 8);
        for (uint32_t r = 0; r < RANKS; r++)
            say_step(r, 8, "mark");
        lose_first(9);
        say(0, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
        say(2, "{\"event\":\"exited\",\"code\":1,\"pid\":1}");
        train_rounds(1, 11);
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, 12, "round");
        average(1);
        assert_int_equal(launcher.rounds.decided, 8);
        if (in_time)
            start_ranks(0, P);
        else
            aq_watch_tick(&launcher.watch, NEVER_NS);
        launcher_rounds_turn(&launcher);
        assert_int_equal(launcher.rounds.decided, 12);
        assert_int_equal(launcher.rounds.replicas[0].state, in_time ? REPLICA_ENTERS : REPLICA_GONE);
        assert_string_equal(result.cause, "");
        for (uint32_t r = P; r < RANKS; r++)
            say_step(r, 12, "step");
        say_step(RANKS - 1, 12, "eval"); /* it is not waited for: it was lost in this step */
        assert_metrics_have("\"event\":\"eval\",\"step\":12");
        if (!in_time) assert_int_equal(teardown(state), 0);
    }
}

static void test_a_stop_does_not_wait_for_a_replica_that_returns(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_rounds(NEVER_NS);
    train_rounds(0, 8);
    all_mark(0, 8);
    lose_first(9);
    train_rounds(1, 11);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 12, "round");
    average(1);
    assert_int_equal(launcher.rounds.decided, 8);
    launcher.stopping = true;
    launcher_rounds_turn(&launcher);
    assert_int_equal(launcher.rounds.decided, 12);
    assert_int_equal(launcher.rounds.without, 12);
}

static void test_rounds_out_of_place_are_refused(void **state)
{
    static const struct {
        uint64_t trained, patience_ns;
        const char *line;
    } wrong[] = {{2, NEVER_NS, "{\"event\":\"round\",\"step\":3}"},
                 {2, NEVER_NS, "{\"event\":\"round\",\"step\":4}"},
                 {3, 0, "{\"event\":\"round\",\"step\":4}"},
                 {4, NEVER_NS, "{\"event\":\"round\",\"step\":4}"},
                 {3, NEVER_NS, "{\"event\":\"round\",\"step\":12}"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 0) assert_int_equal(setup(state), 0);
        begin_rounds(wrong[i].patience_ns);
        train_rounds(0, wrong[i].trained);
        const off_t bytes = size_of(metrics_path);
        say(P, wrong[i].line);
        assert_refused("replica 1 stage 0", "comes to a round's end at step", P, bytes);
        if (i + 1 < sizeof wrong / sizeof *wrong) assert_int_equal(teardown(state), 0);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_round_ends_without_a_lost_replica),
        TEST(test_nobody_is_left_out_of_the_last_round_or_the_best_checkpoint),
        TEST(test_a_round_is_averaged_again_without_who_is_lost_meanwhile),
        TEST(test_a_replica_that_the_others_miss_is_lost),
        TEST(test_a_link_that_has_ended_ends_the_attempt_for_all),
        TEST(test_a_replica_whose_caches_are_filled_again_may_be_late_for_longer),
        TEST(test_a_lost_replicas_caches_are_opened_at_the_newest_mark_of_all),
        TEST(test_caches_are_not_opened_at_a_mark_for_a_return_that_was_none),
        TEST(test_averages_out_of_place_are_refused),
        TEST(test_replicas_with_other_weights_end_the_run),
        TEST(test_after_the_last_step_of_a_stopped_run_nobody_is_left_out),
        TEST(test_a_loss_breaks_off_a_checkpoint_that_is_not_complete),
        TEST(test_a_checkpoint_that_has_the_lost_replicas_part_becomes_complete),
        TEST(test_a_replica_that_was_to_enter_waits_for_the_next_checkpoint),
        TEST(test_a_repeated_round_waits_for_the_regular_checkpoint),
        TEST(test_a_late_replica_is_left_out),
        TEST(test_a_jump_of_the_clock_makes_nobody_late),
        TEST(test_a_lost_replica_returns),
        TEST(test_a_step_ends_without_a_replica_and_waits_for_one_that_enters),
        TEST(test_a_replica_that_enters_is_lost_again),
        TEST(test_a_slow_checkpoint_does_not_mind_who_enters),
        TEST(test_void_steps_of_all_end_the_run),
        TEST(test_a_replica_with_an_old_state_is_refused),
        TEST(test_a_replica_that_cannot_return_sends_all_to_the_rounds_checkpoint),
        TEST(test_the_last_round_but_one_waits_for_a_replica_that_returns),
        TEST(test_a_stop_does_not_wait_for_a_replica_that_returns),
        TEST(test_rounds_out_of_place_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
