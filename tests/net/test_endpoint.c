/*
 * test_endpoint.c -- spellings of addresses: what each is to every reader of the project, and that sockets agree.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "log_capture.h"
#include "net/endpoint.h"
#include "transport.h"

enum is { REFUSED, OUTSIDE, LOOPBACK };

static const struct {
    const char *text;
    enum is is;
    const char *identity; /* NULL: as no certificate says */
} TABLE[] = {
    {"127.0.0.1:7000", LOOPBACK, "127.0.0.1"},
    {"tcp://127.0.0.1:7000", LOOPBACK, "127.0.0.1"},
    {"127.3.2.1:0", LOOPBACK, "127.3.2.1"},
    {"127.255.255.255:65535", LOOPBACK, "127.255.255.255"},
    {"localhost:1", LOOPBACK, "localhost"},
    {"LOCALHOST:1", LOOPBACK, "localhost"},
    {"[::1]:1", LOOPBACK, "::1"},
    {"[0:0:0:0:0:0:0:1]:1", LOOPBACK, "::1"},
    {"[::0001]:1", LOOPBACK, "::1"},
    {"[::ffff:127.0.0.1]:1", LOOPBACK, "::ffff:127.0.0.1"},
    {"[::FFFF:7f00:1]:1", LOOPBACK, "::ffff:127.0.0.1"},
    {"gpu1@127.0.0.1:7000", LOOPBACK, "gpu1"},
    {"GPU1@[::1]:7000", LOOPBACK, "gpu1"},
    /* loopback by its beginning, or by its end, only */
    {"127.evil.example:7000", OUTSIDE, "127.evil.example"},
    {"tcp://127.evil.example:7000", OUTSIDE, "127.evil.example"},
    {"127.0.0.1.evil:7000", OUTSIDE, "127.0.0.1.evil"},
    {"localhost.evil:7000", OUTSIDE, "localhost.evil"},
    {"localhost.:7000", OUTSIDE, "localhost."},
    {"evil.localhost:7000", OUTSIDE, "evil.localhost"},
    {"localhost-1:7000", OUTSIDE, "localhost-1"},
    {"1270.example:7000", OUTSIDE, "1270.example"},
    {"localhost@10.0.0.1:7000", OUTSIDE, "localhost"},
    {"127.0.0.1@evil.example:7000", OUTSIDE, "127.0.0.1"},
    {"[::127.0.0.1]:1", OUTSIDE, "::127.0.0.1"},
    {"[::ffff:128.0.0.1]:1", OUTSIDE, "::ffff:128.0.0.1"},
    {"[::2]:1", OUTSIDE, "::2"},
    {"[1::]:1", OUTSIDE, "1::"},
    {"[fe80::1%eth0]:1", OUTSIDE, "fe80::1"},
    {"128.0.0.1:1", OUTSIDE, "128.0.0.1"},
    {"126.255.255.255:1", OUTSIDE, "126.255.255.255"},
    {"1.0.0.127:1", OUTSIDE, "1.0.0.127"},
    /* all addresses are no loopback */
    {"0.0.0.0:7000", OUTSIDE, "0.0.0.0"},
    {"[::]:7000", OUTSIDE, "::"},
    {"[::ffff:0.0.0.0]:7000", OUTSIDE, "::ffff:0.0.0.0"},
    {"*:7000", OUTSIDE, NULL},
    {"Host_2.Example.Org:7000", OUTSIDE, "host_2.example.org"},
    /* other spellings of IPv4, which some resolvers take */
    {"127.1:7000", REFUSED, NULL},
    {"127.0.1:7000", REFUSED, NULL},
    {"127.0.0.1.:7000", REFUSED, NULL},
    {"0x7f000001:7000", REFUSED, NULL},
    {"0x7f.0.0.1:7000", REFUSED, NULL},
    {"127.0.0.0x1:7000", REFUSED, NULL},
    {"0177.0.0.1:7000", REFUSED, NULL},
    {"127.0.0.01:7000", REFUSED, NULL},
    {"2130706433:7000", REFUSED, NULL},
    {"0:7000", REFUSED, NULL},
    {"127.0.0.256:7000", REFUSED, NULL},
    {"127.0.0.1.1:7000", REFUSED, NULL},
    {"evil.0x:7000", REFUSED, NULL},
    /* white space, control characters, other bytes */
    {" 127.0.0.1:7000", REFUSED, NULL},
    {"127.0.0.1 :7000", REFUSED, NULL},
    {"127.0.0.1: 7000", REFUSED, NULL},
    {"127.0.0.1:7000 ", REFUSED, NULL},
    {"127.0.0.1:7000\n", REFUSED, NULL},
    {"127.0.0.1\t:7000", REFUSED, NULL},
    {"local\033host:7000", REFUSED, NULL},
    {"h\xc3\xb6st:7000", REFUSED, NULL},
    {"127.0.0.1/8:7000", REFUSED, NULL},
    {"127.0.0.1?x:7000", REFUSED, NULL},
    {"a..b:7000", REFUSED, NULL},
    {".a:7000", REFUSED, NULL},
    /* ports */
    {"127.0.0.1:65536", REFUSED, NULL},
    {"127.0.0.1:99999", REFUSED, NULL},
    {"127.0.0.1:100000", REFUSED, NULL},
    {"127.0.0.1:4294967297", REFUSED, NULL},
    {"127.0.0.1:-1", REFUSED, NULL},
    {"127.0.0.1:+1", REFUSED, NULL},
    {"127.0.0.1:0x50", REFUSED, NULL},
    {"127.0.0.1:http", REFUSED, NULL},
    {"127.0.0.1:", REFUSED, NULL},
    {"127.0.0.1", REFUSED, NULL},
    {":7000", REFUSED, NULL},
    {":", REFUSED, NULL},
    {"", REFUSED, NULL},
    /* brackets */
    {"::1:7000", REFUSED, NULL},
    {"[::1]", REFUSED, NULL},
    {"[::1:7000", REFUSED, NULL},
    {"[::1]7000", REFUSED, NULL},
    {"[::1]x:7000", REFUSED, NULL},
    {"x[::1]:7000", REFUSED, NULL},
    {"[]:7000", REFUSED, NULL},
    {"[[::1]]:7000", REFUSED, NULL},
    {"[127.0.0.1]:7000", REFUSED, NULL},
    {"[localhost]:7000", REFUSED, NULL},
    {"[::1%lo]:7000", REFUSED, NULL},
    {"[::1%]:7000", REFUSED, NULL},
    {"[fe80::1%]:7000", REFUSED, NULL},
    {"[fe80::1%eth0%1]:7000", REFUSED, NULL},
    {"[fe80::1%a b]:7000", REFUSED, NULL},
    {"[fe80::1%an-interface-name-too-long]:7000", REFUSED, NULL},
    {"[::ffff:127.1]:7000", REFUSED, NULL},
    {"[1:2:3:4:5:6:7:8:9]:7000", REFUSED, NULL},
    /* names before '@', schemes */
    {"@127.0.0.1:7000", REFUSED, NULL},
    {"a@b@127.0.0.1:7000", REFUSED, NULL},
    {"a b@127.0.0.1:7000", REFUSED, NULL},
    {"a/b@127.0.0.1:7000", REFUSED, NULL},
    {"../x@127.0.0.1:7000", REFUSED, NULL},
    {"tcp://tcp://127.0.0.1:7000", REFUSED, NULL},
    {"TCP://127.0.0.1:7000", REFUSED, NULL},
    {"udp://127.0.0.1:7000", REFUSED, NULL},
    {"unix:///run/aqpiped", REFUSED, NULL},
    {"tcp://", REFUSED, NULL},
};

static void test_parse_each_spelling_is_one_thing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        struct aq_endpoint endpoint;
        const char *why = NULL;
        char identity[AQ_ENDPOINT_NAME_BYTES] = "";
        const enum aq_status status = aq_endpoint_parse(TABLE[i].text, &endpoint, &why);
        const enum is is = status != AQ_OK ? REFUSED : aq_endpoint_loopback(&endpoint) ? LOOPBACK : OUTSIDE;
        if (is != TABLE[i].is) fail_msg("'%s' is %d, wanted %d (%s)", TABLE[i].text, is, TABLE[i].is, why ? why : "");
        assert_true(status == AQ_OK || (status == AQ_INVAL && why));
        if (status != AQ_OK) continue;
        assert_int_equal(aq_endpoint_identity(&endpoint, identity), TABLE[i].identity != NULL);
        assert_string_equal(identity, TABLE[i].identity ? TABLE[i].identity : "");
    }
}

/* What is called loopback must be loopback to the socket that is made of it, too; numbers need no name server. */
static void test_loopback_is_what_sockets_get(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        struct aq_endpoint endpoint;
        struct addrinfo *list;
        struct in_addr four;
        const char *why;
        if (aq_endpoint_parse(TABLE[i].text, &endpoint, &why) != AQ_OK) continue;
        if (!endpoint.v6 && inet_pton(AF_INET, endpoint.host, &four) != 1) continue;
        if (strchr(endpoint.host, '%')) continue; /* no such interface here */
        assert_int_equal(aq_endpoint_resolve(&endpoint, false, &list), AQ_OK);
        if (aq_endpoint_loopback_address(list->ai_addr) != (TABLE[i].is == LOOPBACK))
            fail_msg("'%s' is another thing to a socket", TABLE[i].text);
        freeaddrinfo(list);
    }
}

static void test_text_parses_to_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        struct aq_endpoint endpoint, again;
        char text[AQ_ENDPOINT_TEXT_BYTES];
        const char *why;
        if (aq_endpoint_parse(TABLE[i].text, &endpoint, &why) != AQ_OK) continue;
        assert_int_equal(aq_endpoint_parse(aq_endpoint_text(&endpoint, 65535, text), &again, &why), AQ_OK);
        assert_string_equal(again.host, endpoint.host);
        assert_int_equal(again.v6, endpoint.v6);
        assert_int_equal(again.port, 65535);
    }
}

static void test_parse_host_takes_bare_ipv6(void **state)
{
    (void)state;
    struct aq_endpoint endpoint;
    const char *why;
    static const char *const loopback[] = {"::1", "[::1]", "127.0.0.1", "localhost"};
    static const char *const bad[] = {"", "::1]", "[::1", "127.0.0.1:1", "a:1", "a@b", "127.1", " ::1", "fe80::1%"};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++) {
        assert_int_equal(aq_endpoint_parse_host(loopback[i], &endpoint, &why), AQ_OK);
        assert_true(aq_endpoint_loopback(&endpoint));
        assert_int_equal(endpoint.port, 0);
    }
    assert_int_equal(aq_endpoint_parse_host("::", &endpoint, &why), AQ_OK);
    assert_false(aq_endpoint_loopback(&endpoint));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (aq_endpoint_parse_host(bad[i], &endpoint, &why) != AQ_INVAL) fail_msg("'%s' is taken", bad[i]);
}

/* A key is a whole one; its value ends at the next key. */
static void test_a_query_has_values_by_their_keys(void **state)
{
    static const struct {
        const char *key, *value;
    } rows[] = {{"rate", "5"}, {"late", ""}, {"room", "00ff"}, {"ate", NULL}, {"rat", NULL}, {"5", NULL}, {"x", NULL}};
    struct aq_address address;
    double number;
    (void)state;
    assert_int_equal(aq_address_parse("tcp://127.0.0.1:9?rate=5&late=&room=00ff", &address), AQ_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t bytes = 0;
        const char *at = aq_address_value(&address, rows[i].key, &bytes);
        assert_int_equal(at != NULL, rows[i].value != NULL);
        if (!at) continue;
        assert_int_equal(bytes, strlen(rows[i].value));
        assert_memory_equal(at, rows[i].value, bytes);
    }
    assert_int_equal(aq_address_number(&address, "rate", 1, &number), AQ_OK);
    assert_true(number == 5);
    assert_int_equal(aq_address_number(&address, "x", 1, &number), AQ_OK);
    assert_true(number == 1);
    capture_begin();
    assert_int_equal(aq_address_number(&address, "late", 1, &number), AQ_INVAL);
    assert_int_equal(aq_address_number(&address, "room", 1, &number), AQ_INVAL);
    capture_end();
}

/* Links read their addresses with the same eyes. */
static void test_links_refuse_what_is_no_address(void **state)
{
    (void)state;
    capture_begin();
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++) {
        char text[256];
        struct aq_address address;
        const char *bare = strncmp(TABLE[i].text, "tcp://", 6) == 0 ? TABLE[i].text + 6 : TABLE[i].text;
        if (strchr(bare, '?')) continue; /* the query of a link's address */
        snprintf(text, sizeof text, "tcp://%s", bare);
        const bool good = TABLE[i].is != REFUSED && !strchr(bare, '@');
        if (aq_address_parse(text, &address) != (good ? AQ_OK : AQ_INVAL)) fail_msg("%s", text);
    }
    capture_end();
}

/* A name that is loopback on this machine alone, as Debian writes a machine's own name into /etc/hosts: this
 * getaddrinfo takes the C library's place in the program, and knows one name more. */
int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict out)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(name && strcmp(name, "own-name.test") == 0 ? "127.0.1.1" : name, service, hints, out);
}

static void test_nobody_listens_at_a_name_that_others_cannot_reach(void **state)
{
    (void)state;
    struct aq_endpoint endpoint;
    struct addrinfo *list;
    const char *why;
    assert_int_equal(aq_endpoint_parse("own-name.test:7000", &endpoint, &why), AQ_OK);
    capture_begin();
    assert_int_equal(aq_endpoint_resolve(&endpoint, true, &list), AQ_REFUSED);
    assert_true(captured_has("'own-name.test' is a loopback address on this machine"));
    assert_int_equal(aq_endpoint_resolve(&endpoint, false, &list), AQ_OK); /* its listener may be at all addresses */
    freeaddrinfo(list);
    assert_int_equal(aq_endpoint_parse("ip6-localhost:7000", &endpoint, &why), AQ_OK); /* a name that says so */
    if (aq_endpoint_resolve(&endpoint, true, &list) == AQ_OK) freeaddrinfo(list);      /* not every machine has it */
    assert_false(captured_has("'ip6-localhost' is a loopback address"));
    assert_int_equal(aq_endpoint_parse("127.0.1.1:7000", &endpoint, &why), AQ_OK); /* who writes it means it */
    assert_int_equal(aq_endpoint_resolve(&endpoint, true, &list), AQ_OK);
    freeaddrinfo(list);
    capture_end();
}

static void test_own_address_is_that_of_the_route(void **state)
{
    (void)state;
    char own[AQ_ENDPOINT_HOST_BYTES];
    assert_int_equal(aq_endpoint_own("127.0.0.1", own), AQ_OK);
    assert_string_equal(own, "127.0.0.1");
    capture_begin();
    assert_int_equal(aq_endpoint_own("127.1", own), AQ_INVAL);
    if (aq_endpoint_own(NULL, own) == AQ_OK) assert_memory_not_equal(own, "127.", 4);
    capture_end();
}

/* Who is not root is root in a user namespace. */
static bool own_network(void)
{
    const unsigned user = geteuid();
    if (unshare(CLONE_NEWNET | (user ? CLONE_NEWUSER : 0)) != 0) return false;
    FILE *map = user ? fopen("/proc/self/uid_map", "w") : NULL;
    if (map) fprintf(map, "0 %u 1\n", user);
    return !user || (map && fclose(map) == 0);
}

/* In a network of its own: first a bridge, as Docker makes one, then a card, without and with routes. */
static void test_own_address_is_no_bridge(void **state)
{
    (void)state;
    enum { SKIPPED = 77, NONE = 1, BRIDGE = 2, ROUTE = 3, FAR = 4 };
    static const char bridge[] = "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
                                 "ip link set docker0 up",
                      bridged[] = "ip link add br0 type bridge && ip addr add 10.7.0.1/16 dev br0 && "
                                  "ip link set br0 up",
                      card[] = "ip link add card type veth peer name other && ip addr add 10.8.0.7/24 dev card && "
                               "ip link set card up && ip link set other up",
                      far[] = "ip route add default via 10.8.0.1 dev card && ip addr add 10.9.0.7/24 dev other";
    const pid_t child = fork();
    if (child == 0) {
        char own[AQ_ENDPOINT_HOST_BYTES];
        if (!own_network() || system(bridge) != 0) _exit(SKIPPED);
        if (aq_endpoint_own(NULL, own) != AQ_NOTFOUND) _exit(NONE);
        if (system(bridged) != 0) _exit(SKIPPED);
        if (aq_endpoint_own(NULL, own) != AQ_OK || strcmp(own, "10.7.0.1") != 0) _exit(NONE);
        if (system(card) != 0) _exit(SKIPPED);
        if (aq_endpoint_own(NULL, own) != AQ_OK || strcmp(own, "10.8.0.7") != 0) _exit(BRIDGE);
        if (system(far) != 0) _exit(SKIPPED);
        if (aq_endpoint_own(NULL, own) != AQ_OK || strcmp(own, "10.8.0.7") != 0) _exit(ROUTE);
        if (aq_endpoint_own("10.9.0.1", own) != AQ_OK || strcmp(own, "10.9.0.7") != 0) _exit(FAR);
        _exit(0);
    }
    int status = 0;
    assert_true(child != -1 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) {
        print_message("skipped: this system makes no network namespace, or has no bridges\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_each_spelling_is_one_thing),
        cmocka_unit_test(test_loopback_is_what_sockets_get),
        cmocka_unit_test(test_text_parses_to_the_same),
        cmocka_unit_test(test_parse_host_takes_bare_ipv6),
        cmocka_unit_test(test_a_query_has_values_by_their_keys),
        cmocka_unit_test(test_links_refuse_what_is_no_address),
        cmocka_unit_test(test_nobody_listens_at_a_name_that_others_cannot_reach),
        cmocka_unit_test(test_own_address_is_that_of_the_route),
        cmocka_unit_test(test_own_address_is_no_bridge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
