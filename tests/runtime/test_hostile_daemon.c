/*
 * test_hostile_daemon.c -- clients of a daemon that proved themselves, or nearly, and then ask for what is not theirs:
 * as in test_daemon.c, in this process and by hand.
 */
#include "daemon_kit.h"

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
