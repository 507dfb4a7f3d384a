/*
 * test_ssh_host.c -- "ssh://USER@HOST:PORT" read, and what must never become an argument of ssh.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "ssh_host.h"

static void test_parts_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text, *user, *host;
        uint16_t port;
        bool v6;
    } rows[] = {{"ssh://node1", "", "node1", 0, false},
                {"node1", "", "node1", 0, false},
                {"ssh://me@node1.example:2222", "me", "node1.example", 2222, false},
                {"a.b_c-d@10.0.0.5", "a.b_c-d", "10.0.0.5", 0, false},
                {"ssh://[2001:db8::5]:22", "", "2001:db8::5", 22, true},
                {"ssh://me@[2001:db8::5]", "me", "2001:db8::5", 0, true},
                {"2001:db8::5", "", "2001:db8::5", 0, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct aq_ssh_host host;
        const char *why = "";
        assert_int_equal(aq_ssh_parse(rows[i].text, &host, &why), AQ_OK);
        assert_string_equal(host.user, rows[i].user);
        assert_string_equal(host.host.host, rows[i].host);
        assert_int_equal(host.port, rows[i].port);
        assert_int_equal(host.host.v6, rows[i].v6);
    }
}

static void test_what_ssh_could_misread_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "ssh://",
                                        "ssh://-oProxyCommand=x",
                                        "-p",
                                        "ssh://-l@node1",
                                        "me@-node",
                                        "a b@node1",
                                        "a$(x)@node1",
                                        "@node1",
                                        "me@you@node1",
                                        "node1;true",
                                        "node1 -oX=y",
                                        "node1:0",
                                        "node1:65536",
                                        "node1:",
                                        "node1:-1",
                                        "ssh://node1/",
                                        "tcp://node1:22"};
    char user[AQ_SSH_USER_BYTES + 16];
    struct aq_ssh_host host;
    const char *why;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        why = "";
        if (aq_ssh_parse(wrong[i], &host, &why) != AQ_INVAL) fail_msg("'%s' was taken", wrong[i]);
        assert_true(why[0] != '\0');
    }
    memset(user, 'u', AQ_SSH_USER_BYTES);
    memcpy(user + AQ_SSH_USER_BYTES, "@node1", sizeof "@node1");
    assert_int_equal(aq_ssh_parse(user, &host, &why), AQ_INVAL);
    assert_int_equal(aq_ssh_parse(user + 1, &host, &why), AQ_OK);
}

static void test_only_the_scheme_makes_an_agent(void **state)
{
    (void)state;
    assert_true(aq_ssh_is("ssh://x"));
    assert_false(aq_ssh_is("tcp://x:1"));
    assert_false(aq_ssh_is("x:1"));
    assert_false(aq_ssh_is(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts_are_read),
                                       cmocka_unit_test(test_what_ssh_could_misread_is_refused),
                                       cmocka_unit_test(test_only_the_scheme_makes_an_agent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
