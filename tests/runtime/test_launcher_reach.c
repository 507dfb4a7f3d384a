/*
 * test_launcher_reach.c -- a daemon that is lost while other replicas train: its replicas are, and it is tried again.
 *
 * Of rounds_kit.h, with stages of the first replica at a second daemon, "127.0.0.1:1", where nobody listens.
 */
#include "rounds_kit.h"

static int far_peer; /* the other end of the second daemon's channel */

static void open_far(struct aq_control **control)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(aq_control_open(fds[0], control), AQ_OK);
    if (far_peer) close(far_peer);
    far_peer = fds[1];
}

static int setup_far(void **state)
{
    far_peer = 0;
    launcher.hosts[1] = (struct host){0};
    return setup(state);
}

static int teardown_far(void **state)
{
    launcher_reach_close(&launcher.hosts[1]);
    aq_control_close(launcher.hosts[1].control);
    if (far_peer) close(far_peer);
    return teardown(state);
}

/* All train, the ranks below `count` at the second daemon. */
static void begin_far(uint32_t count)
{
    begin_rounds(NEVER_NS);
    launcher.host_count = 2;
    launcher.hosts[1].address = "127.0.0.1:1";
    open_far(&launcher.hosts[1].control);
    for (uint32_t r = 0; r < count; r++)
        launcher.stages[r].host = 1;
}

/* The second replica trains up to this step, and its rounds end. */
static void train_second(uint64_t last)
{
    for (uint64_t step = launcher.stages[P].step + 1; step <= last; step++) {
        for (uint32_t r = P; r < RANKS && step % 4 == 0; r++)
            say_step(r, step, "round");
        if (step % 4 == 0) average(1);
        if (step % 4 == 0 && launcher.rounds.decided < step) return; /* it is held */
        for (uint32_t r = P; r < RANKS; r++) {
            say_step(r, step, "step");
            if (step % 3 == 0 && r == RANKS - 1) say_step(r, step, "eval");
        }
    }
}

static enum replica_state first(void)
{
    return launcher.rounds.replicas[0].state;
}

static void test_a_lost_daemon_costs_its_replica_only(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(P);
    host_lost(&launcher, &launcher.hosts[1], AQ_CLOSED, NULL);
    assert_string_equal(result.cause, "");
    assert_true(launcher_is_lost(&launcher, 0) && !launcher_is_lost(&launcher, P));
    assert_int_equal(first(), REPLICA_AWAY);
    assert_int_equal(launcher.ended, P);
    train_second(8);
    assert_int_equal(launcher.rounds.decided, 8);
    assert_int_equal(launcher.rounds.without, 0); /* nobody waits for this checkpoint */
    assert_metrics_have("\"step\":8,\"members\":[1],\"without\":[0],\"entering\":[]");
    assert_string_equal(result.cause, "");
}

/* Answers a bit for each rank that the launcher has told to end. */
static uint64_t told_to_end(void)
{
    char text[16384];
    uint64_t told = 0;
    const ssize_t got = recv(peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    for (char *next = text, *each; (each = strsep(&next, "\n")) != NULL;) {
        json_t *sent = json_loads(each, 0, NULL);
        if (aq_control_is(sent, "op", "end")) told |= 1ull << aq_control_u64_or(sent, "rank", 63);
        json_decref(sent);
    }
    return told;
}

static void test_stages_at_other_daemons_end_with_it(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(1);
    host_lost(&launcher, &launcher.hosts[1], AQ_TIMEOUT, "has been silent");
    assert_int_equal(first(), REPLICA_ENDS);
    assert_int_equal(told_to_end(), 1u << 1 | 1u << 2);
    say(2, "{\"event\":\"failed\",\"status\":\"closed\",\"text\":\"its neighbour has gone\"}");
    for (uint32_t r = 1; r < P; r++) {
        assert_int_equal(first(), REPLICA_ENDS);
        say(r, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    }
    assert_int_equal(first(), REPLICA_AWAY);
    assert_string_equal(result.cause, "");
}

/* The other stages notice it first, and have ended when the launcher does. */
static void test_a_daemon_may_be_noticed_last(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(1);
    say(1, "{\"event\":\"failed\",\"status\":\"closed\",\"text\":\"its neighbour has gone\"}");
    for (uint32_t r = 1; r < P; r++)
        say(r, "{\"event\":\"exited\",\"signal\":9,\"pid\":1}");
    assert_int_equal(first(), REPLICA_ENDS);
    host_lost(&launcher, &launcher.hosts[1], AQ_CLOSED, NULL);
    assert_int_equal(first(), REPLICA_AWAY);
    assert_string_equal(result.cause, "");
}

static void test_the_run_is_lost_where_nobody_is_left_or_a_daemon_lies(void **state)
{
    static const struct {
        uint32_t ranks;
        enum aq_status status;
        const char *address;
        bool transient;
    } lost[] = {{RANKS, AQ_CLOSED, "127.0.0.1:1", true}, /* all replicas have a stage there */
                {P + 1, AQ_CLOSED, "127.0.0.1:1", true},
                {P, AQ_PROTO, "127.0.0.1:1", false},
                {P, AQ_CLOSED, AQ_LAUNCH_GUEST, true}}; /* it is the one to connect */
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        if (i > 0) assert_int_equal(setup_far(state), 0);
        launch.returns = 1;
        begin_far(lost[i].ranks);
        launcher.hosts[1].address = lost[i].address;
        host_lost(&launcher, &launcher.hosts[1], lost[i].status, NULL);
        assert_non_null(strstr(result.cause, "the daemon of "));
        assert_non_null(strstr(result.cause, "is out of reach"));
        assert_int_equal(result.transient, lost[i].transient);
        launcher_reach_turn(&launcher);
        assert_null(launcher.hosts[1].reach.meeting);
        if (i + 1 < sizeof lost / sizeof *lost) assert_int_equal(teardown_far(state), 0);
    }
}

static void test_a_replica_that_does_not_return_is_not_waited_for(void **state)
{
    (void)state;
    begin_far(P);
    host_lost(&launcher, &launcher.hosts[1], AQ_CLOSED, NULL);
    assert_int_equal(first(), REPLICA_GONE);
    launcher.hosts[1].reach.due_ns = 0;
    launcher_reach_turn(&launcher);
    assert_null(launcher.hosts[1].reach.meeting);
    train_second(4);
    assert_int_equal(launcher.rounds.without, 4); /* from this checkpoint all start again */
    assert_string_equal(result.cause, "");
}

static void pass_a_second(void)
{
    static uint64_t now = NEVER_NS;
    now += NEVER_NS;
    aq_watch_tick(&launcher.watch, now); /* a second at most */
    launcher_rounds_turn(&launcher);
}

/* However long it takes, but for a round that cannot end without it. */
static void test_a_daemon_is_awaited_until_a_round_waits_for_it_too_long(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(P);
    launch.ready_ns_max = 5ull * 1000 * 1000 * 1000;
    host_lost(&launcher, &launcher.hosts[1], AQ_CLOSED, NULL);
    for (int i = 0; i < 20; i++)
        pass_a_second();
    assert_int_equal(first(), REPLICA_AWAY);
    train_second(12); /* the round after this one is the last */
    assert_int_equal(launcher.rounds.decided, 8);
    for (int i = 0; i < 5; i++) {
        pass_a_second();
        assert_int_equal(first(), REPLICA_AWAY);
        assert_int_equal(launcher.watch.progress_ns, launcher.watch.clock.now_ns); /* it is awaited: no stall */
    }
    pass_a_second();
    assert_int_equal(first(), REPLICA_GONE);
    assert_int_equal(launcher.rounds.decided, 12);
    assert_int_equal(launcher.rounds.without, 12);
}

/* Nor does a stop wait for it, although rank 0 is not there to answer. */
static void test_a_stop_does_not_wait_for_a_daemon(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(P);
    host_lost(&launcher, &launcher.hosts[1], AQ_CLOSED, NULL);
    launcher_stop(&launcher, "you");
    train_second(4);
    assert_int_equal(launcher.rounds.without, 4);
    for (uint32_t r = P; r < RANKS; r++)
        say_step(r, 4, "mark");
    assert_int_equal(result.mark, 4);
    assert_true(launcher.stopped && launcher.aborting);
    assert_string_equal(result.cause, "");
}

/* One try, until it has failed. */
static void try_once(struct host *host)
{
    const uint32_t tries = host->reach.tries;
    assert_int_equal(first(), REPLICA_AWAY); /* else there is none */
    host->reach.due_ns = 0;
    while (host->reach.tries == tries)
        launcher_reach_turn(&launcher);
}

static void test_pauses_between_tries_double_up_to_half_a_minute(void **state)
{
    (void)state;
    struct host *host = &launcher.hosts[1];
    uint64_t pause_ns = 500ull * 1000 * 1000;
    launch.returns = 1;
    begin_far(P);
    aq_error_clear();
    host_lost(&launcher, host, AQ_CLOSED, NULL);
    launcher_reach_turn(&launcher); /* none is due yet */
    assert_null(host->reach.meeting);
    for (uint32_t i = 1; i < 40; i++) {
        const uint64_t before_ns = aq_clock_ns();
        try_once(host);
        pause_ns = 2 * pause_ns < 30000000000ull ? 2 * pause_ns : 30000000000ull;
        assert_int_equal(host->reach.tries, i);
        assert_true(host->reach.due_ns >= before_ns + pause_ns && host->reach.due_ns <= aq_clock_ns() + pause_ns);
    }
    assert_non_null(strstr(host->reach.why, "cannot reach the daemon at 127.0.0.1:1"));
    assert_int_equal(first(), REPLICA_AWAY);
    assert_string_equal(result.cause, "");
    assert_string_equal(aq_error_text(), ""); /* none of them is the run's error */
}

/* Whatever answers at that port: it is another failed try, and the run goes on. */
static void test_a_stranger_at_its_port_is_a_failed_try(void **state)
{
    static const struct {
        const char *line, *why;
    } said[] = {{"SSH-2.0-OpenSSH\n", "not JSON"},
                {"{\"event\":\"hello\"}\n", "speaks protocol 0"},
                {"{\"event\":\"hello\",\"protocol\":1,\"nonce\":7}\n", "nonce"},
                {"{\"event\":\"refused\",\"text\":\"too many\"}\n", "refuses: too many"},
                {NULL, "closed the connection in the greeting"}};
    char address[64];
    uint16_t port;
    int listener, fd = -1;
    struct host *host = &launcher.hosts[1];
    (void)state;
    assert_int_equal(aq_control_listen("127.0.0.1:0", false, &listener, &port), AQ_OK);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    launch.returns = 1;
    begin_far(P);
    launcher.hosts[1].address = address;
    host_lost(&launcher, host, AQ_CLOSED, NULL);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        assert_int_equal(first(), REPLICA_AWAY);
        uint64_t source;
        char from[64];
        host->reach.due_ns = 0;
        while (aq_control_accept(listener, &fd, &source, from) != AQ_OK)
            launcher_reach_turn(&launcher);
        if (said[i].line) assert_true(write(fd, said[i].line, strlen(said[i].line)) > 0);
        if (!said[i].line) close(fd);
        while (host->reach.tries == i)
            launcher_reach_turn(&launcher);
        assert_non_null(strstr(host->reach.why, said[i].why));
        assert_null(host->reach.meeting);
        if (said[i].line) close(fd);
    }
    close(listener);
    assert_int_equal(first(), REPLICA_AWAY);
    assert_string_equal(result.cause, "");
}

/* What a daemon is asked when it has been greeted. */
static void test_a_daemon_takes_the_job_again(void **state)
{
    static const char refused[] = "{\"event\":\"refused\",\"text\":\"it runs the job 'x' of y\"}\n",
                      opened[] = "{\"event\":\"opened\",\"pid\":1,\"beats\":true}\n";
    struct host *host = &launcher.hosts[1];
    char text[16384];
    (void)state;
    launch.returns = 1;
    launch.fresh = true;
    begin_far(P);
    host_lost(&launcher, host, AQ_CLOSED, NULL);
    open_far(&host->reach.control);
    host->reach.deadline_ns = aq_clock_after(NEVER_NS);
    launcher_reach_turn(&launcher); /* no answer yet */
    assert_non_null(host->reach.control);
    assert_true(write(far_peer, refused, sizeof refused - 1) > 0);
    launcher_reach_turn(&launcher);
    assert_null(host->reach.control);
    assert_non_null(strstr(host->reach.why, "does not accept the job: it runs the job 'x' of y"));
    open_far(&host->reach.control);
    assert_int_equal(host_ask(&launcher, host->reach.control, true), AQ_OK);
    const ssize_t got = recv(far_peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = 0;
    json_t *asked = json_loads(text, 0, NULL);
    assert_false(aq_control_bool_or(asked, "fresh", true)); /* the run has checkpoints by now */
    assert_true(aq_control_bool_or(asked, "resumed", false));
    json_decref(asked);
    host->reach.deadline_ns = aq_clock_after(NEVER_NS);
    assert_true(write(far_peer, opened, sizeof opened - 1) > 0);
    launcher_reach_turn(&launcher);
    assert_non_null(host->control);
    assert_int_equal(first(), REPLICA_STARTS);
    assert_int_equal(launcher.ended, 0);
    const ssize_t started = recv(far_peer, text, sizeof text - 1, MSG_DONTWAIT);
    text[started > 0 ? started : 0] = 0;
    assert_non_null(strstr(text, "\"op\":\"start\""));
    assert_non_null(strstr(text, "\"returns\":true"));
    assert_string_equal(result.cause, "");
}

/* Over ssh an agent is started again, and asked the same. */
static void test_an_agent_is_started_again(void **state)
{
    static const char script[] = "#!/bin/sh\nread asked\necho '{\"event\":\"opened\",\"version\":\"" AQ_VERSION
                                 "\"}'\nwhile read line; do :; done\n";
    struct host *host = &launcher.hosts[1];
    char path[200], *before = strdup(getenv("PATH"));
    (void)state;
    snprintf(path, sizeof path, "%s/ssh", folder);
    assert_int_equal(aq_file_replace(NULL, path, 0700, script, sizeof script - 1), AQ_OK);
    assert_int_equal(setenv("PATH", folder, 1), 0);
    launch.returns = 1;
    begin_far(P);
    host->address = "ssh://localhost";
    host_lost(&launcher, host, AQ_CLOSED, NULL);
    assert_int_equal(first(), REPLICA_AWAY);
    host->reach.due_ns = 0;
    while (!host->control && host->reach.tries == 0)
        launcher_reach_turn(&launcher);
    assert_string_equal(host->reach.why, "");
    assert_true(host->control && host->pid > 0);
    assert_int_equal(first(), REPLICA_STARTS);
    assert_int_equal(setenv("PATH", before, 1), 0);
    free(before);
    agent_end(host);
    close(host->said);
}

/* It is lost when its lines were read, and not amid those that are being told something. */
static void test_a_daemon_that_cannot_be_sent_to_is_lost_later(void **state)
{
    (void)state;
    launch.returns = 1;
    begin_far(P);
    json_t *big = json_object();
    char *long_text = malloc(AQ_CONTROL_LINE_BYTES_MAX + 1);
    memset(long_text, 'x', AQ_CONTROL_LINE_BYTES_MAX);
    long_text[AQ_CONTROL_LINE_BYTES_MAX] = 0;
    json_object_set_new(big, "x", json_string(long_text));
    free(long_text);
    host_send(&launcher.hosts[1], big); /* longer than any line may be */
    assert_true(launcher.hosts[1].broken != AQ_OK);
    assert_non_null(launcher.hosts[1].control);
    assert_false(launcher_is_lost(&launcher, 0));
    assert_true(launcher_turn(&launcher));
    assert_null(launcher.hosts[1].control);
    assert_true(launcher_is_lost(&launcher, 0));
    assert_string_equal(result.cause, "");
    assert_string_equal(aq_error_text(), ""); /* the channel's is no error of the run */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_far, teardown_far)
    const struct CMUnitTest tests[] = {
        TEST(test_a_lost_daemon_costs_its_replica_only),
        TEST(test_stages_at_other_daemons_end_with_it),
        TEST(test_a_daemon_may_be_noticed_last),
        TEST(test_the_run_is_lost_where_nobody_is_left_or_a_daemon_lies),
        TEST(test_a_replica_that_does_not_return_is_not_waited_for),
        TEST(test_a_daemon_is_awaited_until_a_round_waits_for_it_too_long),
        TEST(test_a_stop_does_not_wait_for_a_daemon),
        TEST(test_pauses_between_tries_double_up_to_half_a_minute),
        TEST(test_a_stranger_at_its_port_is_a_failed_try),
        TEST(test_a_daemon_takes_the_job_again),
        TEST(test_an_agent_is_started_again),
        TEST(test_a_daemon_that_cannot_be_sent_to_is_lost_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
