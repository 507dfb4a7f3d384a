/*
 * test_daemon.c -- a daemon's door, in this process: whose proof counts, who gets a place, and that nobody waits for
 * one who does not read. The loop's calls are made by hand, so that nothing here depends on time.
 */
#include <signal.h>

#include "daemon_kit.h"

static void prove_with(struct client *client, const char *nonce, const char *proof)
{
    char line[1024];
    snprintf(line, sizeof line, "{\"op\":\"hello\",\"protocol\":1,\"nonce\":\"%s\",\"proof\":\"%s\"}\n", nonce, proof);
    say(client, line);
}

static const char ours[] = "0123456789abcdef0123456789abcdef";

static void refused(const char *nonce, const char *proof)
{
    struct client client;
    char line[1024];
    come(&client);
    prove_with(&client, nonce, proof);
    assert_int_equal(client.connection->state, CONNECTION_FREE);
    assert_non_null(strstr(line_of(&client, line, sizeof line), "refused"));
    assert_string_equal(line_of(&client, line, sizeof line), "");
    close(client.fd);
}

static void welcome(struct client *client)
{
    char proof[AQ_PROOF_CHARS + 1], line[1024];
    come(client);
    assert_int_equal(aq_token_proof(&config.token, "client", client->nonce, ours, proof), AQ_OK);
    prove_with(client, ours, proof);
    assert_int_equal(client->connection->state, CONNECTION_PROVED);
    assert_int_equal(aq_token_proof(&config.token, "daemon", client->nonce, ours, proof), AQ_OK);
    assert_non_null(strstr(line_of(client, line, sizeof line), proof));
}

static void test_only_the_whole_proof_of_this_nonce_lets_in(void **state)
{
    (void)state;
    struct client client;
    char proof[AQ_PROOF_CHARS + 1], part[AQ_PROOF_CHARS + 2], line[1024];
    /* What is known of one connection is worth nothing at another: each part of a right proof, made for the nonce of
     * the very connection it is tried at. */
    static const size_t parts[] = {0, 1, 2, 32, 63};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        come(&client);
        assert_int_equal(aq_token_proof(&config.token, "client", client.nonce, ours, proof), AQ_OK);
        snprintf(part, sizeof part, "%.*s", (int)parts[i], proof);
        prove_with(&client, ours, part);
        assert_int_equal(client.connection->state, CONNECTION_FREE);
        close(client.fd);
    }
    for (int place = 0; place < AQ_PROOF_CHARS; place++) { /* one character wrong, wherever it stands */
        come(&client);
        assert_int_equal(aq_token_proof(&config.token, "client", client.nonce, ours, proof), AQ_OK);
        proof[place] = proof[place] == '0' ? '1' : '0';
        prove_with(&client, ours, proof);
        assert_int_equal(client.connection->state, CONNECTION_FREE);
        close(client.fd);
    }
    come(&client); /* one too many */
    assert_int_equal(aq_token_proof(&config.token, "client", client.nonce, ours, proof), AQ_OK);
    snprintf(part, sizeof part, "%s0", proof);
    prove_with(&client, ours, part);
    assert_int_equal(client.connection->state, CONNECTION_FREE);
    close(client.fd);
    come(&client); /* the daemon's own proof, sent back to it */
    assert_int_equal(aq_token_proof(&config.token, "daemon", client.nonce, ours, proof), AQ_OK);
    prove_with(&client, ours, proof);
    assert_int_equal(client.connection->state, CONNECTION_FREE);
    close(client.fd);
    /* A recorded proof, at a later connection. */
    welcome(&client);
    assert_int_equal(aq_token_proof(&config.token, "client", client.nonce, ours, proof), AQ_OK);
    connection_close(daemon_, client.connection);
    close(client.fd);
    refused(ours, proof);
    refused("", "");
    refused("0123456789abcdef", proof);
    /* Without a proof, or with one that is no text. */
    static const char *const lines[] = {
        "{\"op\":\"hello\",\"protocol\":1,\"nonce\":\"0123456789abcdef0123456789abcdef\"}\n",
        "{\"op\":\"hello\",\"protocol\":1,\"nonce\":\"0123456789abcdef0123456789abcdef\",\"proof\":null}\n",
        "{\"op\":\"hello\",\"protocol\":1,\"nonce\":\"0123456789abcdef0123456789abcdef\",\"proof\":[]}\n",
        "{\"op\":\"status\"}\n", "{\"op\":\"open\",\"protocol\":1,\"job\":\"x\",\"run\":\"/\",\"checkpoint\":\"/\"}\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        come(&client);
        say(&client, lines[i]);
        assert_int_equal(client.connection->state, CONNECTION_FREE);
        (void)line_of(&client, line, sizeof line);
        close(client.fd);
    }
    assert_null(daemon_->owner);
}

static void test_nonces_differ_in_every_place(void **state)
{
    (void)state;
    enum { MANY = 64 };
    static char nonces[MANY][AQ_NONCE_CHARS + 1];
    for (int i = 0; i < MANY; i++) {
        struct client client;
        come(&client);
        memcpy(nonces[i], client.nonce, sizeof nonces[i]);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(nonces[i], nonces[j]);
        connection_close(daemon_, client.connection);
        close(client.fd);
    }
    /* Each digit takes many values: of 64 draws of 16 fewer than 8 different ones come once in 10^12. */
    for (int place = 0; place < AQ_NONCE_CHARS; place++) {
        uint32_t seen = 0;
        for (int i = 0; i < MANY; i++)
            seen |= 1u << (strchr("0123456789abcdef", nonces[i][place]) - "0123456789abcdef");
        assert_true(__builtin_popcount(seen) >= 8);
    }
}

/* Places as of many peers that hold them half open. */
static void crowd(int from, int to, uint64_t source, uint64_t since_ns, enum connection_state state)
{
    for (int i = from; i < to; i++)
        daemon_->connections[i] = (struct connection){.state = state, .source = source, .since_ns = since_ns};
}

static void test_places_go_to_those_who_are_not_a_crowd(void **state)
{
    (void)state;
    const uint64_t now = 1000 * second_ns;
    struct aq_control *control;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    assert_int_equal(aq_control_open_stranger(fds[0], &control), AQ_OK);
    /* 80 a second for 5 s, of one source: half of the places, and the others are free for everybody else. */
    crowd(0, DAEMON_CONNECTIONS_MAX / 2, 1, now, CONNECTION_GREETING);
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX / 2; i++)
        daemon_->connections[i].control = control;
    assert_null(connection_place(daemon_, 1, now));
    assert_ptr_equal(connection_place(daemon_, 2, now), &daemon_->connections[DAEMON_CONNECTIONS_MAX / 2]);
    /* After its second of grace the oldest gives way, also to one of the same source. */
    daemon_->connections[7].since_ns = now - second_ns;
    assert_ptr_equal(connection_place(daemon_, 1, now), &daemon_->connections[7]);
    /* All are taken: the crowd goes first; those who have proved themselves never. */
    crowd(DAEMON_CONNECTIONS_MAX / 2, DAEMON_CONNECTIONS_MAX, 3, 0, CONNECTION_PROVED);
    assert_true(connection_place(daemon_, 2, now) < &daemon_->connections[DAEMON_CONNECTIONS_MAX / 2]);
    crowd(0, DAEMON_CONNECTIONS_MAX, 3, 0, CONNECTION_PROVED);
    assert_null(connection_place(daemon_, 2, now));
    memset(daemon_->connections, 0, sizeof daemon_->connections);
    aq_control_close(control);
    close(fds[1]);
}

static void test_flood_is_let_in_little_and_logged_little(void **state)
{
    (void)state;
    enum { FLOOD = 400 };
    static int fds[FLOOD];
    const uint64_t before = aq_memory_used();
    lines_logged = 0;
    for (int i = 0; i < FLOOD; i++) {
        assert_int_equal(aq_control_connect(address, aq_clock_after(120 * second_ns), &fds[i]), AQ_OK);
        connection_accept(daemon_);
    }
    int held = 0;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        held += daemon_->connections[i].state == CONNECTION_GREETING;
    assert_int_equal(held, DAEMON_CONNECTIONS_MAX / 2);
    assert_true(aq_memory_used() - before < (uint64_t)held * 8192);
    assert_true(lines_logged <= 2 * DAEMON_STRANGER_LINES);
    /* Garbage of each of them is closed, and makes no more lines either. */
    for (int i = 0; i < FLOOD; i++)
        (void)send(fds[i], "\x1b]0;hello\x07\n", 11, MSG_NOSIGNAL);
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon_->connections[i].state != CONNECTION_FREE) connection_serve(daemon_, &daemon_->connections[i]);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        assert_int_equal(daemon_->connections[i].state, CONNECTION_FREE);
    assert_true(lines_logged <= 4 * DAEMON_STRANGER_LINES);
}

/* A log to be asked for. */
static void some_log(char *folder, size_t bytes)
{
    snprintf(folder, bytes, "/tmp/aq-daemon-XXXXXX");
    assert_non_null(mkdtemp(folder));
    char path[128];
    snprintf(path, sizeof path, "%s/logs", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/logs/stage-0.log", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 40000; i++)
        fputs("a line of \"text\" \x1b[31m\n", file);
    fclose(file);
    snprintf(daemon_->run, sizeof daemon_->run, "%s", folder);
}

static void test_client_that_does_not_read_costs_nobody_anything(void **state)
{
    (void)state;
    enum { LOOKERS = 40, QUESTIONS = 20 };
    static struct client lookers[LOOKERS];
    struct client other;
    char folder[64], line[4096], path[128];
    some_log(folder, sizeof folder);
    for (int i = 0; i < LOOKERS; i++) {
        const int small = 4096;
        welcome(&lookers[i]);
        assert_int_equal(setsockopt(lookers[i].fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
        /* Questions, none of the answers read. */
        for (int q = 0; q < QUESTIONS && lookers[i].connection->state == CONNECTION_PROVED; q++)
            say(&lookers[i], "{\"op\":\"logs\",\"rank\":0,\"bytes\":262144}\n");
    }
    assert_true(aq_memory_used() < sizeof(struct daemon) + (24 << 20));
    welcome(&other);
    say(&other, "{\"op\":\"status\"}\n");
    assert_non_null(strstr(line_of(&other, line, sizeof line), "\"status\""));
    /* They have 30 s, from when the first did not read; it took as long as it took to come here. */
    const uint64_t now = aq_clock_ns();
    const uint64_t begin = now - aq_control_stuck_ns(lookers[0].connection->control, now);
    connection_expire(daemon_, begin + 30 * second_ns);
    assert_int_equal(lookers[0].connection->state, CONNECTION_PROVED);
    assert_true(aq_control_waiting(lookers[0].connection->control) > 0);
    connection_expire(daemon_, begin + 31 * second_ns);
    assert_int_equal(lookers[0].connection->state, CONNECTION_FREE);
    assert_int_equal(other.connection->state, CONNECTION_PROVED);
    for (int i = 0; i < LOOKERS; i++)
        close(lookers[i].fd);
    close(other.fd);
    snprintf(path, sizeof path, "%s/logs/stage-0.log", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/logs", folder);
    rmdir(path);
    rmdir(folder);
}

static void test_log_comes_in_full_to_one_who_reads(void **state)
{
    (void)state;
    struct client client;
    char folder[64], path[128];
    some_log(folder, sizeof folder);
    welcome(&client);
    say(&client, "{\"op\":\"logs\",\"rank\":0,\"bytes\":262144}\n");
    static char text[2 << 20];
    size_t at = 0;
    while (at == 0 || text[at - 1] != '\n') {
        const ssize_t got = recv(client.fd, text + at, sizeof text - 1 - at, 0);
        assert_true(got > 0);
        at += (size_t)got;
        connection_push(daemon_, client.connection);
    }
    json_t *answer = json_loadb(text, at, 0, NULL);
    assert_true(aq_control_is(answer, "event", "logs"));
    assert_int_equal(strlen(aq_control_text_or(answer, "text", "")), 262144);
    assert_null(strchr(aq_control_text_or(answer, "text", ""), 0x1b));
    json_decref(answer);
    close(client.fd);
    snprintf(path, sizeof path, "%s/logs/stage-0.log", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/logs", folder);
    rmdir(path);
    rmdir(folder);
}

/* A line that never ends: closed as soon as it is longer than its sender may write, and it never costs more. */
static void test_long_lines_end_at_the_limit_of_the_state(void **state)
{
    (void)state;
    static char many[8192];
    memset(many, ' ', sizeof many);
    for (int proved = 0; proved < 2; proved++) {
        struct client client;
        size_t sent = 0;
        const size_t limit = proved ? DAEMON_LOOKER_BYTES_MAX : AQ_CONTROL_STRANGER_BYTES;
        if (proved)
            welcome(&client);
        else
            come(&client);
        const uint64_t before = aq_memory_used();
        while (client.connection->state != CONNECTION_FREE) {
            assert_true(sent <= limit);
            assert_int_equal(send(client.fd, many, 1024, MSG_NOSIGNAL), 1024);
            sent += 1024;
            connection_serve(daemon_, client.connection);
            assert_true(client.connection->state == CONNECTION_FREE || aq_memory_used() - before <= 2 * limit);
        }
        close(client.fd);
    }
}

/* A worker's end of the channel; the daemon's is in its place. */
static int worker_at(int place, uint32_t rank)
{
    int fds[2];
    struct worker *worker = &daemon_->workers[place];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    *worker = (struct worker){.used = true, .rank = rank, .pid = getpid(), .output = -1, .log = -1};
    assert_int_equal(aq_control_open(fds[0], &worker->control), AQ_OK);
    return fds[1];
}

static void write_all(int fd, const char *line)
{
    assert_int_equal(write(fd, line, strlen(line)), (ssize_t)strlen(line));
}

/* Two workers have sent a step's lines when one of them is reaped: the other's line is not behind the end. */
static void test_what_others_sent_before_an_end_comes_before_it(void **state)
{
    (void)state;
    struct client owner;
    char line[4096];
    welcome(&owner);
    daemon_->owner = owner.connection;
    const int living = worker_at(1, 3), ended = worker_at(0, 2);
    write_all(living, "{\"event\":\"step\",\"step\":5}\n");
    write_all(ended, "{\"event\":\"step\",\"step\":5}\n");
    close(ended);
    daemon_->workers[0].reaped = true; /* by signal 9 */
    daemon_->workers[0].wait_status = SIGKILL;
    worker_reap(daemon_);
    uint32_t ranks = 0;
    for (int i = 0; i < 2; i++) {
        json_t *step = json_loads(line_of(&owner, line, sizeof line), 0, NULL);
        assert_true(aq_control_is(step, "event", "step"));
        ranks |= 1u << aq_control_u64_or(step, "rank", 31);
        json_decref(step);
    }
    assert_int_equal(ranks, 1u << 2 | 1u << 3);
    json_t *exited = json_loads(line_of(&owner, line, sizeof line), 0, NULL);
    assert_true(aq_control_is(exited, "event", "exited"));
    assert_int_equal(aq_control_u64_or(exited, "rank", 31), 2);
    json_decref(exited);
    assert_false(daemon_->workers[0].used);
    aq_control_close(daemon_->workers[1].control);
    daemon_->workers[1] = (struct worker){.output = -1, .log = -1};
    daemon_->owner = NULL;
    close(living);
    close(owner.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_only_the_whole_proof_of_this_nonce_lets_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nonces_differ_in_every_place, setup, teardown),
        cmocka_unit_test_setup_teardown(test_places_go_to_those_who_are_not_a_crowd, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flood_is_let_in_little_and_logged_little, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_that_does_not_read_costs_nobody_anything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_comes_in_full_to_one_who_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_lines_end_at_the_limit_of_the_state, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_others_sent_before_an_end_comes_before_it, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
