/*
 * test_hostile_daemon.c -- clients of a daemon that proved themselves, or nearly, and then ask for what is not theirs:
 * as in test_daemon.c, in this process and by hand.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon_private.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
static struct aq_daemon_config config;
static struct daemon *daemon_;
static char address[64];

static void count_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static int setup(void **state)
{
    (void)state;
    void *memory;
    uint16_t port;
    aq_log_sink(count_line, NULL);
    if (aq_alloc(sizeof(struct daemon), &memory) != AQ_OK) return -1;
    daemon_ = memory;
    config = (struct aq_daemon_config){.token = {.bytes = 24, .secret = "what only friends know.."}};
    daemon_->config = &config;
    daemon_->signals = -1;
    if (aq_control_listen("127.0.0.1:0", true, &daemon_->listener, &port) != AQ_OK) return -1;
    for (int i = 0; i < DAEMON_WORKERS_MAX; i++)
        daemon_->workers[i].output = daemon_->workers[i].log = -1;
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon_->connections[i].control) connection_close(daemon_, &daemon_->connections[i]);
    close(daemon_->listener);
    aq_free(daemon_);
    aq_log_sink(NULL, NULL);
    return aq_memory_used() == 0 ? 0 : -1;
}

/* A client of the daemon, byte by byte, and the daemon's end of it. */
struct client {
    int fd;
    struct connection *connection;
    char nonce[AQ_NONCE_CHARS + 1];
};

/* The next line the daemon has sent, or "" where the connection has ended. */
static const char *line_of(struct client *client, char *out, size_t bytes)
{
    size_t at = 0;
    while (at + 1 < bytes) {
        const ssize_t got = recv(client->fd, out + at, 1, 0);
        if (got <= 0) break;
        if (out[at++] == '\n') break;
    }
    out[at] = 0;
    return out;
}

static void come(struct client *client)
{
    char line[1024];
    assert_int_equal(aq_control_connect(address, aq_clock_after(120 * second_ns), &client->fd), AQ_OK);
    struct timeval patience = {.tv_sec = 120};
    assert_int_equal(setsockopt(client->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(fcntl(client->fd, F_SETFL, 0), 0); /* our end blocks */
    client->connection = NULL;
    for (int i = 0; i < DAEMON_CONNECTIONS_MAX; i++)
        if (daemon_->connections[i].state == CONNECTION_FREE) {
            client->connection = &daemon_->connections[i];
            break;
        }
    connection_accept(daemon_);
    assert_non_null(client->connection);
    assert_int_equal(client->connection->state, CONNECTION_GREETING);
    json_t *hello = json_loads(line_of(client, line, sizeof line), 0, NULL);
    assert_true(aq_control_is(hello, "event", "hello"));
    assert_int_equal(strlen(aq_control_text_or(hello, "nonce", "")), AQ_NONCE_CHARS);
    memcpy(client->nonce, aq_control_text_or(hello, "nonce", ""), sizeof client->nonce);
    json_decref(hello);
}

static void say(struct client *client, const char *line)
{
    assert_int_equal(send(client->fd, line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
    /* What loopback has been given it delivers before send returns. */
    connection_serve(daemon_, client->connection);
}

static const char ours[] = "0123456789abcdef0123456789abcdef";

static void greet(struct client *client, int protocol)
{
    char proof[AQ_PROOF_CHARS + 1], line[1024];
    come(client);
    assert_int_equal(aq_token_proof(&config.token, "client", client->nonce, ours, proof), AQ_OK);
    snprintf(line, sizeof line, "{\"op\":\"hello\",\"protocol\":%d,\"nonce\":\"%s\",\"proof\":\"%s\"}\n", protocol,
             ours, proof);
    say(client, line);
}

static void welcome(struct client *client)
{
    char line[1024];
    greet(client, AQ_CONTROL_PROTOCOL);
    assert_int_equal(client->connection->state, CONNECTION_PROVED);
    assert_non_null(strstr(line_of(client, line, sizeof line), "welcome"));
}

static void test_client_of_another_protocol_is_refused(void **state)
{
    static const int protocols[] = {0, AQ_CONTROL_PROTOCOL + 1, -1};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct client client;
        char line[1024];
        greet(&client, protocols[i]);
        assert_int_equal(client.connection->state, CONNECTION_FREE);
        assert_non_null(strstr(line_of(&client, line, sizeof line), "another protocol"));
        close(client.fd);
    }
}

/* A job runs, of somebody else. */
static void owned(struct client *owner)
{
    welcome(owner);
    daemon_->owner = owner->connection;
    snprintf(daemon_->job, sizeof daemon_->job, "theirs");
}

static void test_orders_come_from_the_owner_alone(void **state)
{
    static const char *const orders[] = {"{\"op\":\"abort\"}\n", "{\"op\":\"start\",\"rank\":0}\n",
                                         "{\"op\":\"forget\",\"step\":3}\n", "{\"op\":\"go\",\"rank\":0}\n"};
    struct client owner;
    (void)state;
    owned(&owner);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct client client;
        welcome(&client);
        say(&client, orders[i]);
        assert_int_equal(client.connection->state, CONNECTION_FREE);
        assert_ptr_equal(daemon_->owner, owner.connection);
        close(client.fd);
    }
    daemon_->owner = NULL;
    close(owner.fd);
}

static void test_second_job_is_refused_by_the_name_of_the_first(void **state)
{
    struct client owner, client;
    char line[1024];
    (void)state;
    owned(&owner);
    welcome(&client);
    say(&client,
        "{\"op\":\"open\",\"protocol\":1,\"job\":\"mine\",\"run\":\"/nowhere/a\",\"checkpoint\":\"/nowhere/b\"}\n");
    assert_non_null(strstr(line_of(&client, line, sizeof line), "it runs the job 'theirs' of"));
    assert_ptr_equal(daemon_->owner, owner.connection);
    assert_string_equal(daemon_->job, "theirs");
    daemon_->owner = NULL;
    close(client.fd);
    close(owner.fd);
}

static void test_rank_beyond_the_last_is_refused(void **state)
{
    struct client owner;
    char line[128];
    (void)state;
    owned(&owner);
    snprintf(line, sizeof line, "{\"op\":\"go\",\"rank\":%d}\n", DAEMON_WORKERS_MAX - 1);
    say(&owner, line); /* there is none such now: it may have ended */
    assert_int_equal(owner.connection->state, CONNECTION_PROVED);
    snprintf(line, sizeof line, "{\"op\":\"go\",\"rank\":%d}\n", DAEMON_WORKERS_MAX);
    say(&owner, line);
    assert_int_equal(owner.connection->state, CONNECTION_FREE);
    assert_null(daemon_->owner);
    close(owner.fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_client_of_another_protocol_is_refused),
        TEST(test_orders_come_from_the_owner_alone),
        TEST(test_second_job_is_refused_by_the_name_of_the_first),
        TEST(test_rank_beyond_the_last_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
