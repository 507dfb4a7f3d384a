/*
 * test_hostile_control.c -- tokens, proofs and fields of the control channel from somebody who means no good: each
 * wrong by as little as can be.
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "control.h"
#include "control_socket.h"
#include "control_token.h"
#include "run_folder.h"

static const struct aq_token token = {.bytes = 20, .secret = "0123456789abcdefghij"};

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static void test_proof_that_is_not_whole_is_none(void **state)
{
    char proof[AQ_PROOF_CHARS + 1], got[AQ_PROOF_CHARS + 2];
    (void)state;
    assert_int_equal(aq_token_proof(&token, "client", "a", "b", proof), AQ_OK);
    assert_true(aq_token_proves(proof, proof));
    for (size_t length = 0; length < AQ_PROOF_CHARS; length++) {
        memcpy(got, proof, length);
        got[length] = 0;
        assert_false(aq_token_proves(proof, got));
    }
    for (size_t i = 0; i < AQ_PROOF_CHARS; i++) {
        memcpy(got, proof, sizeof proof);
        got[i] ^= 1;
        assert_false(aq_token_proves(proof, got));
    }
    memcpy(got, proof, AQ_PROOF_CHARS);
    got[AQ_PROOF_CHARS] = '0';
    got[AQ_PROOF_CHARS + 1] = 0;
    assert_false(aq_token_proves(proof, got));
}

/* Of another side, another nonce, the nonces the other way round, another token: another proof. */
static void test_proof_is_of_one_side_and_both_nonces(void **state)
{
    char proofs[5][AQ_PROOF_CHARS + 1];
    struct aq_token other = token;
    (void)state;
    other.secret[token.bytes - 1] ^= 1;
    assert_int_equal(aq_token_proof(&token, "client", "a", "b", proofs[0]), AQ_OK);
    assert_int_equal(aq_token_proof(&token, "daemon", "a", "b", proofs[1]), AQ_OK);
    assert_int_equal(aq_token_proof(&token, "client", "b", "a", proofs[2]), AQ_OK);
    assert_int_equal(aq_token_proof(&token, "client", "a", "c", proofs[3]), AQ_OK);
    assert_int_equal(aq_token_proof(&other, "client", "a", "b", proofs[4]), AQ_OK);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(proofs[i], proofs[j]);
}

static void test_nonces_do_not_come_again(void **state)
{
    enum { COUNT = 64 };
    char nonces[COUNT][AQ_NONCE_CHARS + 1];
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(aq_token_nonce(nonces[i]), AQ_OK);
        assert_int_equal(strlen(nonces[i]), AQ_NONCE_CHARS);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(nonces[i], nonces[j]);
    }
}

static void test_token_file_is_private_and_long_enough(void **state)
{
    static const struct {
        mode_t mode;
        size_t bytes;
        enum aq_status status;
    } files[] = {{0600, AQ_TOKEN_BYTES_MIN, AQ_OK},      {0600, AQ_TOKEN_BYTES_MIN - 1, AQ_INVAL},
                 {0600, AQ_TOKEN_BYTES_MAX, AQ_OK},      {0600, AQ_TOKEN_BYTES_MAX + 1, AQ_INVAL},
                 {0640, AQ_TOKEN_BYTES_MIN, AQ_REFUSED}, {0620, AQ_TOKEN_BYTES_MIN, AQ_REFUSED},
                 {0604, AQ_TOKEN_BYTES_MIN, AQ_REFUSED}, {0602, AQ_TOKEN_BYTES_MIN, AQ_REFUSED},
                 {0400, AQ_TOKEN_BYTES_MIN, AQ_OK}};
    static char text[AQ_TOKEN_BYTES_MAX + 2];
    char folder[] = "/tmp/aqpipe-test-XXXXXX", path[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/token", folder);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct aq_token got;
        memset(text, 'k', sizeof text);
        text[files[i].bytes] = '\n';
        assert_int_equal(aq_file_replace(NULL, path, 0600, text, files[i].bytes + 1), AQ_OK);
        assert_int_equal(chmod(path, files[i].mode), 0);
        assert_int_equal(aq_token_load(path, &got), files[i].status);
        if (files[i].status == AQ_OK) assert_int_equal(got.bytes, files[i].bytes);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static void test_number_below_zero_is_none(void **state)
{
    uint64_t u = 5;
    uint32_t v = 5;
    (void)state;
    json_t *m = json_pack("{s:i, s:I, s:s}", "below", -1, "least", (json_int_t)INT64_MIN, "text", "7");
    assert_int_equal(aq_control_get_u64(m, "below", &u), AQ_PROTO);
    assert_int_equal(aq_control_get_u64(m, "least", &u), AQ_PROTO);
    assert_int_equal(aq_control_get_u32(m, "below", &v), AQ_PROTO);
    assert_int_equal(u, 5);
    assert_int_equal(v, 5);
    assert_int_equal(aq_control_u64_or(m, "below", 9), 9);
    assert_int_equal(aq_control_u64_or(m, "least", 9), 9);
    assert_int_equal(aq_control_u64_or(m, "text", 9), 9);
    json_decref(m);
}

/* An address of this machine that is not loopback; "": it has none. */
static void own_address(char *out, size_t bytes)
{
    struct ifaddrs *all = NULL;
    out[0] = 0;
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *one = all; one && !out[0]; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && !(one->ifa_flags & IFF_LOOPBACK))
            getnameinfo(one->ifa_addr, sizeof(struct sockaddr_in), out, (socklen_t)bytes, NULL, 0, NI_NUMERICHOST);
    freeifaddrs(all);
}

static void test_nobody_talks_to_a_daemon_elsewhere_without_keys(void **state)
{
    (void)state;
    char host[64], address[80];
    int door;
    uint16_t port;
    struct aq_control *control;
    const struct aq_token held = {.bytes = 16, .secret = "a secret of some"};
    own_address(host, sizeof host);
    if (!host[0]) {
        print_message("skip: this machine has no address but loopback\n");
        skip();
    }
    assert_int_equal(aq_control_listen("0.0.0.0:0", true, &door, &port), AQ_OK);
    snprintf(address, sizeof address, "%s:%u", host, port);
    assert_int_equal(aq_control_meet(address, &held, NULL, aq_clock_after(60000000000u), &control), AQ_REFUSED);
    close(door);
}

/* A daemon that says its hello and resets the connection, so that nothing can be answered: the cause has words. */
static void test_a_daemon_that_hangs_up_in_the_greeting_is_named(void **state)
{
    (void)state;
    enum { TIMES = 30 };
    static const char hello[] = "{\"event\":\"hello\",\"protocol\":%d,\"version\":\"1\",\"nonce\":\"%s\"}\n";
    const struct linger at_once = {.l_onoff = 1};
    char line[256], nonce[AQ_NONCE_CHARS + 1], address[64];
    int door;
    uint16_t port;
    assert_int_equal(aq_token_nonce(nonce), AQ_OK);
    const int count = snprintf(line, sizeof line, hello, AQ_CONTROL_PROTOCOL, nonce);
    assert_int_equal(aq_control_listen("127.0.0.1:0", false, &door, &port), AQ_OK);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    const pid_t pid = fork();
    for (int i = 0; pid == 0 && i < TIMES; i++) {
        struct pollfd knock = {.fd = door, .events = POLLIN};
        (void)poll(&knock, 1, 60000);
        const int fd = accept(door, NULL, NULL);
        const bool said = send(fd, line, (size_t)count, MSG_NOSIGNAL) == count;
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(fd);
        if (!said || i == TIMES - 1) _exit(!said);
    }
    for (int i = 0; i < TIMES; i++) {
        struct aq_control *control;
        aq_error_clear();
        assert_int_equal(aq_control_meet(address, &token, NULL, aq_clock_after(60000000000u), &control), AQ_CLOSED);
        /* In the greeting, or before it where the reset has come at once. */
        assert_true(strstr(aq_error_text(), "closed the connection in the greeting") ||
                    strstr(aq_error_text(), "cannot reach the daemon"));
    }
    close(door);
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proof_that_is_not_whole_is_none),
        cmocka_unit_test(test_proof_is_of_one_side_and_both_nonces),
        cmocka_unit_test(test_nonces_do_not_come_again),
        cmocka_unit_test(test_token_file_is_private_and_long_enough),
        cmocka_unit_test(test_number_below_zero_is_none),
        cmocka_unit_test(test_nobody_talks_to_a_daemon_elsewhere_without_keys),
        cmocka_unit_test(test_a_daemon_that_hangs_up_in_the_greeting_is_named),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
