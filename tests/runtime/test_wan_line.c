/* test_wan_line.c -- lines of the lab: times, losses, queues, and the headers of runs that were taken apart. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "wan_line.h"

enum { MSS = 1000, HEADS = 20 + 32, PACKET_MAX = 40000 };
#define MS(x) ((uint64_t)((x)*1e6))

static uint8_t packet[PACKET_MAX];

static uint16_t sum_of(const void *memory, size_t bytes, uint32_t sum)
{
    const uint8_t *at = memory;
    for (size_t i = 0; i < bytes; i++)
        sum += i % 2 ? at[i] : (uint32_t)at[i] << 8;
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

/* What a kernel hands over: a run of TCP of so many bytes, every byte a function of its place; answers its length. */
static size_t make_run(uint32_t body)
{
    struct virtio_net_hdr head = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                  .gso_type = body > MSS ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE,
                                  .gso_size = body > MSS ? MSS : 0,
                                  .hdr_len = HEADS,
                                  .csum_start = 20,
                                  .csum_offset = 16};
    struct iphdr ip = {.version = 4,
                       .ihl = 5,
                       .tot_len = htons((uint16_t)(HEADS + body)),
                       .id = htons(7),
                       .ttl = 64,
                       .protocol = IPPROTO_TCP,
                       .saddr = htonl(0x0a4f0001),
                       .daddr = htonl(0x0a4f0002)};
    struct tcphdr tcp = {
        .source = htons(1), .dest = htons(2), .seq = htonl(UINT32_MAX - 1500), .doff = 8, .psh = 1, .fin = 1, .ack = 1};
    memcpy(packet, &head, sizeof head);
    memcpy(packet + sizeof head, &ip, sizeof ip);
    memcpy(packet + sizeof head + 20, &tcp, sizeof tcp);
    for (uint32_t i = 0; i < body; i++)
        packet[sizeof head + HEADS + i] = (uint8_t)(i * 7 + i / 256);
    return sizeof head + HEADS + body;
}

struct got {
    struct virtio_net_hdr head;
    struct iphdr ip;
    struct tcphdr tcp;
    uint8_t bytes[PACKET_MAX];
    size_t body;
};

/* The next thing that was delivered; body 0: nothing. */
static void take(int fd, struct got *got)
{
    uint8_t all[PACKET_MAX];
    const ssize_t count = recv(fd, all, sizeof all, MSG_DONTWAIT);
    memset(got, 0, sizeof *got);
    if (count < 0) {
        assert_int_equal(errno, EAGAIN);
        return;
    }
    memcpy(&got->head, all, sizeof got->head);
    memcpy(&got->ip, all + sizeof got->head, 20);
    memcpy(&got->tcp, all + sizeof got->head + 20, 20);
    got->body = (size_t)count - sizeof got->head - HEADS;
    memcpy(got->bytes, all + sizeof got->head + HEADS, got->body);
}

/* Does it stand for the bytes from..from+body of the run, with headers that a receiver takes? */
static void check_run(const struct got *got, uint32_t from, uint32_t body, bool last)
{
    assert_int_equal(got->body, body);
    assert_int_equal(ntohs(got->ip.tot_len), HEADS + body);
    assert_int_equal(ntohs(got->ip.id), 7 + from / MSS);
    if (from > 0) assert_int_equal(sum_of(&got->ip, 20, 0), 0xffff);
    assert_int_equal(ntohl(got->tcp.seq), UINT32_MAX - 1500 + from);
    assert_int_equal(got->tcp.fin, last);
    assert_int_equal(got->tcp.psh, last);
    assert_int_equal(got->head.gso_type, body > MSS ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE);
    for (uint32_t i = 0; i < body; i++)
        assert_int_equal(got->bytes[i], (uint8_t)((i + from) * 7 + (i + from) / 256));
    if (from > 0 || !last)
        assert_int_equal(ntohs(got->tcp.check), sum_of(&got->ip.saddr, 8, IPPROTO_TCP + HEADS - 20 + body));
}

static void open_pair(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0);
}

static void test_line_paced_delivers_in_time_and_order(void **state)
{
    (void)state;
    struct aq_wan_line line;
    struct got got;
    int fds[2];
    open_pair(fds);
    aq_wan_line_init(&line, 1, 0);
    line.rules.rate_mbps = 8.416; /* 1052 bytes take 1 ms */
    line.rules.delay_ms = 20;
    const size_t count = make_run(2500);
    assert_int_equal(aq_wan_line_offer(&line, MS(100), packet, count), AQ_OK);
    assert_int_equal(aq_wan_line_wake_ns(&line), MS(121));
    assert_int_equal(aq_wan_line_deliver(&line, MS(120), fds[0]), AQ_OK);
    take(fds[1], &got);
    assert_int_equal(got.body, 0);
    assert_int_equal(aq_wan_line_deliver(&line, MS(121), fds[0]), AQ_OK);
    take(fds[1], &got);
    check_run(&got, 0, 1000, false);
    assert_int_equal(aq_wan_line_wake_ns(&line), MS(122));
    assert_int_equal(aq_wan_line_deliver(&line, MS(130), fds[0]), AQ_OK);
    take(fds[1], &got);
    check_run(&got, 1000, 1500, true); /* two at once: one run */
    take(fds[1], &got);
    assert_int_equal(got.body, 0);
    assert_int_equal(aq_wan_line_wake_ns(&line), AQ_NEVER);
    assert_int_equal(line.counts.packets, 3);
    assert_int_equal(line.counts.bytes, 2500 + 3 * HEADS);
    aq_wan_line_deinit(&line);
    close(fds[0]);
    close(fds[1]);
}

static void test_line_lossy_loses_single_packets_of_a_run(void **state)
{
    (void)state;
    struct aq_wan_line line;
    struct got got;
    int fds[2];
    uint32_t body = 0, runs = 0;
    open_pair(fds);
    aq_wan_line_init(&line, 1, 0);
    line.rules.loss = 0.2;
    for (int i = 1; i <= 50; i++) {
        const size_t count = make_run(30000);
        assert_int_equal(aq_wan_line_offer(&line, MS(i), packet, count), AQ_OK);
        if (aq_wan_line_wake_ns(&line) <= MS(i)) assert_int_equal(aq_wan_line_deliver(&line, MS(i), fds[0]), AQ_OK);
        for (take(fds[1], &got); got.body; take(fds[1], &got)) {
            const uint32_t from = ntohl(got.tcp.seq) - (UINT32_MAX - 1500);
            check_run(&got, from, (uint32_t)got.body, from + got.body == 30000);
            body += (uint32_t)got.body;
            runs++;
        }
    }
    assert_int_equal(line.counts.packets + line.counts.lost, 1500);
    assert_int_equal(body, line.counts.packets * MSS);
    assert_in_range(line.counts.lost, 240, 360); /* 300, four standard deviations */
    assert_true(runs > 200);
    aq_wan_line_deinit(&line);
    close(fds[0]);
    close(fds[1]);
}

static void test_line_full_drops_the_tail(void **state)
{
    (void)state;
    struct aq_wan_line line;
    struct got got;
    int fds[2];
    open_pair(fds);
    aq_wan_line_init(&line, 1, 0);
    line.rules.rate_mbps = 8.416;
    line.rules.queue_ms = 4.5;
    const size_t count = make_run(10000);
    assert_int_equal(aq_wan_line_offer(&line, MS(1), packet, count), AQ_OK);
    assert_int_equal(line.counts.full, 6);
    assert_int_equal(aq_wan_line_deliver(&line, MS(100), fds[0]), AQ_OK);
    take(fds[1], &got);
    check_run(&got, 0, 4000, false);
    take(fds[1], &got);
    assert_int_equal(got.body, 0);
    aq_wan_line_deinit(&line);
    close(fds[0]);
    close(fds[1]);
}

static void test_line_blackhole_swallows_big_packets_alone(void **state)
{
    (void)state;
    struct aq_wan_line line;
    struct got got;
    int fds[2];
    open_pair(fds);
    aq_wan_line_init(&line, 1, 0);
    line.rules.blackhole_bytes = 1000;
    assert_int_equal(aq_wan_line_offer(&line, MS(1), packet, make_run(2300)), AQ_OK);
    assert_int_equal(aq_wan_line_offer(&line, MS(1), packet, make_run(900)), AQ_OK);
    assert_int_equal(line.counts.blackholed, 2);
    assert_int_equal(aq_wan_line_deliver(&line, MS(2), fds[0]), AQ_OK);
    take(fds[1], &got);
    check_run(&got, 2000, 300, true);
    take(fds[1], &got);
    check_run(&got, 0, 900, true);
    aq_wan_line_deinit(&line);
    close(fds[0]);
    close(fds[1]);
}

static void test_line_that_gets_nearer_keeps_order(void **state)
{
    (void)state;
    struct aq_wan_line line;
    uint64_t last = 0;
    aq_wan_line_init(&line, 1, 0);
    line.rules.delay_ms = 200;
    assert_int_equal(aq_wan_line_offer(&line, MS(1), packet, make_run(900)), AQ_OK);
    line.rules.delay_ms = 10;
    assert_int_equal(aq_wan_line_offer(&line, MS(2), packet, make_run(900)), AQ_OK);
    assert_int_equal(line.due_last_ns, MS(201));
    line.rules.jitter_ms = 8;
    for (uint64_t i = 0, least = UINT64_MAX, most = 0; i < 5000; i++) {
        const uint64_t now = MS(300 + (double)i);
        assert_int_equal(aq_wan_line_offer(&line, now, packet, make_run(900)), AQ_OK);
        assert_true(line.due_last_ns >= last);
        last = line.due_last_ns;
        least = last - now < least ? last - now : least;
        most = last - now > most ? last - now : most;
        if (i == 4999) {
            assert_in_range(least, MS(2), MS(4));
            assert_in_range(most, MS(16), MS(18));
        }
    }
    aq_wan_line_deinit(&line);
}

static void test_line_odd_packets_are_refused(void **state)
{
    (void)state;
    struct aq_wan_line line;
    uint32_t address;
    aq_wan_line_init(&line, 1, 0);
    const size_t count = make_run(3000);
    assert_true(aq_wan_target(packet, count, &address));
    assert_int_equal(address, 0x0a4f0002);
    assert_false(aq_wan_target(packet, 20, &address));
    for (size_t cut = 0; cut <= sizeof(struct virtio_net_hdr) + HEADS; cut++)
        assert_int_equal(aq_wan_line_offer(&line, 0, packet, cut), AQ_PROTO);
    packet[1] = VIRTIO_NET_HDR_GSO_UDP;
    assert_int_equal(aq_wan_line_offer(&line, 0, packet, count), AQ_PROTO);
    (void)make_run(3000);
    packet[sizeof(struct virtio_net_hdr)] = 0x65; /* IPv6 */
    assert_int_equal(aq_wan_line_offer(&line, 0, packet, count), AQ_PROTO);
    assert_null(line.first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_paced_delivers_in_time_and_order),
        cmocka_unit_test(test_line_lossy_loses_single_packets_of_a_run),
        cmocka_unit_test(test_line_full_drops_the_tail),
        cmocka_unit_test(test_line_blackhole_swallows_big_packets_alone),
        cmocka_unit_test(test_line_that_gets_nearer_keeps_order),
        cmocka_unit_test(test_line_odd_packets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
