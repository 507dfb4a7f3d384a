/* test_congestion.c -- congestion control of a link's sockets: by name, by itself, and where the kernel has none. */
#include "raw_peer.h"

#include "congestion.h"
#include "net_limits.h"

/* A pair of byte streams over loopback, without a link. */
static void streams_open(struct aq_acceptor *acceptor, struct aq_byte_stream *ends[2])
{
    char address[64];
    assert_int_equal(aq_acceptor_open("tcp://127.0.0.1:0", NULL, acceptor), AQ_OK);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", acceptor->port);
    assert_int_equal(aq_byte_stream_connect(address, NULL, 0, false, &ends[1]), AQ_OK);
    while (ends[1]->ops->connected(ends[1]) == AQ_AGAIN)
        ;
    while (aq_acceptor_accept(acceptor, &ends[0]) == AQ_AGAIN)
        ;
}

static void streams_close(struct aq_acceptor *acceptor, struct aq_byte_stream *ends[2])
{
    aq_byte_stream_close(ends[0]);
    aq_byte_stream_close(ends[1]);
    aq_acceptor_close(acceptor);
}

static void test_congestion_of_a_name_is_the_sockets(void **state)
{
    struct aq_acceptor acceptor;
    struct aq_byte_stream *ends[2];
    struct aq_path path;
    atomic_bool told = false;
    (void)state;
    streams_open(&acceptor, ends);
    for (int i = 0; i < 2; i++) {
        aq_congestion_choose(ends[i], "reno", &told);
        ends[i]->ops->path(ends[i], &path);
        assert_false(path.steady);
        assert_true(path.round_trip_ns > 0 && path.round_trip_ns < AQ_FAR_NS);
        aq_congestion_choose(ends[i], "auto", &told); /* near: left as it is */
        ends[i]->ops->path(ends[i], &path);
        assert_false(path.steady);
        assert_int_equal(ends[i]->ops->congestion(ends[i], "nosuch"), AQ_NODEV);
        if (aq_congestion_check("bbr") != AQ_OK) continue; /* the kernel may lack it: its line is tested below */
        aq_congestion_choose(ends[i], "bbr", &told);
        ends[i]->ops->path(ends[i], &path);
        assert_true(path.steady);
    }
    assert_false(told);
    aq_congestion_choose(ends[0], "nosuch", &told);
    assert_true(told);
    streams_close(&acceptor, ends);
}

/* Of every connection of a link, at both ends: at the listener the others come after the first was answered. */
static void test_congestion_is_that_of_every_stream(void **state)
{
    struct link_pair pair = {0};
    char usual[32] = "";
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "r");
    (void)state;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%31s", usual), 1);
    fclose(file);
    const char *other = strcmp(usual, "reno") != 0 ? "reno" : "cubic";
    if (aq_congestion_check(other) != AQ_OK) skip(); /* a kernel of Reno alone */
    pair_config(&pair);
    for (int i = 0; i < 2; i++) {
        snprintf(pair.config[i].congestion, sizeof pair.config[i].congestion, "%s", other);
        pair.config[i].streams = 4;
    }
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    pair_meet(&pair, PAIR_PATIENCE);
    for (int i = 0; i < 2; i++) {
        struct aq_link_stats stats;
        aq_link_stats(pair.link[i], &stats);
        assert_int_equal(stats.streams, 4);
        assert_string_equal(stats.congestion, other);
    }
    pair_close(&pair);
}

static void test_congestion_that_the_kernel_has_not_is_refused_with_a_remedy(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    assert_int_equal(aq_congestion_check(""), AQ_OK);
    assert_int_equal(aq_congestion_check("auto"), AQ_OK);
    assert_int_equal(aq_congestion_check("reno"), AQ_OK);
    pair_config(&pair);
    for (int i = 0; i < 2; i++)
        snprintf(pair.config[i].congestion, sizeof pair.config[i].congestion, "nosuch");
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    pair_meet(&pair, 1);
    assert_int_equal(pair.accepted, AQ_INVAL);
    assert_int_equal(pair.connected, AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "link.congestion: nosuch: "));
    assert_non_null(strstr(aq_error_text(), "modprobe tcp_nosuch"));
    pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_congestion_of_a_name_is_the_sockets),
        cmocka_unit_test(test_congestion_is_that_of_every_stream),
        cmocka_unit_test(test_congestion_that_the_kernel_has_not_is_refused_with_a_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
