/*
 * test_parts.c -- large bodies in parts: what passes them in the gaps, what a reader makes of them, and how little a
 * paced link leaves in the kernel.
 *
 * No times: a link at 2 Mbit/s has four seconds to do with a body of a megabyte what takes it milliseconds, and what is
 * asked is which of two events comes first. The pairs are closed hard, so that nobody waits for the rest.
 */
#include "link_pair.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "congestion.h"
#include "link_state.h"
#include "net_limits.h"

enum { LARGE = 1 << 20, RATE_MBPS = 2 };

static uint8_t large_body[LARGE];

static void begin(struct link_pair *pair)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++) {
        pair->config[i].rate_mbps = RATE_MBPS;
        pair->config[i].body_bytes_max = LARGE;
        pair->config[i].receive_slots = 1;
    }
}

static void send_body(struct link_pair *pair, int side, uint32_t bytes, uint64_t token)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = bytes, .body = large_body};
    assert_int_equal(aq_link_send(pair->link[side], &frame, token), AQ_OK);
}

/* Side 1 sends the large body; returns when it has begun to come. */
static void begin_large(struct link_pair *pair)
{
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    struct aq_link_stats stats = {0};
    send_body(pair, 1, LARGE, 1);
    while (stats.received_wire_bytes < 2 * AQ_FRAME_HEADER_BYTES) {
        aq_link_stats(pair->link[0], &stats);
        assert_true(aq_clock_ns() < deadline_ns);
    }
    assert_int_equal(stats.received_frames, 0);
}

static void schemes(void (*run)(const char *scheme))
{
    run("tcp");
    run("sim");
    run("fault+tcp");
}

/* A link that heals gives a body back when the peer has acknowledged it: not behind the peer's own large body. */
static void acknowledge(const char *scheme)
{
    struct link_pair pair = {0};
    begin(&pair);
    for (int i = 0; i < 2; i++)
        pair.config[i].outage_ns_max = PAIR_PATIENCE * UINT64_C(1000000000);
    pair_nets(&pair);
    pair_listen(&pair, scheme, "");
    pair_meet(&pair, PAIR_PATIENCE);
    assert_int_equal(pair.connected, AQ_OK);
    aq_listener_close(pair.listener);
    begin_large(&pair);
    for (uint64_t n = 0; n < 3; n++) {
        send_body(&pair, 0, 100, n);
        const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
        assert_int_equal(event.kind, AQ_LINK_SENT);
        assert_int_equal(event.token, n);
        aq_link_release(pair.link[1], pair_event_of(&pair, 1, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.body);
    }
    pair_close(&pair);
}

static void test_acknowledgement_passes_a_large_body(void **state)
{
    (void)state;
    schemes(acknowledge);
}

/* With one slot each body needs the credit of the one before: it comes while the peer sends its own. */
static void credit(const char *scheme)
{
    struct link_pair pair = {0};
    begin(&pair);
    pair_open(&pair, scheme, "");
    begin_large(&pair);
    for (uint64_t n = 0; n < 3; n++) {
        send_body(&pair, 0, 100, n);
        assert_int_equal(pair_event(&pair, 0, PAIR_PATIENCE).kind, AQ_LINK_SENT);
        aq_link_release(pair.link[1], pair_event_of(&pair, 1, AQ_LINK_RECEIVED, PAIR_PATIENCE).frame.body);
    }
    pair_close(&pair);
}

static void test_credit_passes_a_large_body(void **state)
{
    (void)state;
    schemes(credit);
}

/* Who gives up need not send its large body to the end before it can say why. */
static void abort_in(const char *scheme)
{
    struct link_pair pair = {0};
    struct aq_link_stats stats;
    begin(&pair);
    pair_open(&pair, scheme, "");
    begin_large(&pair);
    assert_int_equal(aq_link_abort(pair.link[1], AQ_NOSPC, "the disk is full", PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    const struct aq_link_event event = pair_event(&pair, 0, PAIR_PATIENCE);
    assert_int_equal(event.kind, AQ_LINK_CLOSED);
    assert_int_equal(event.status, AQ_ABORTED);
    assert_non_null(strstr(event.text, "the disk is full"));
    aq_link_stats(pair.link[0], &stats);
    assert_true(stats.received_wire_bytes < LARGE);
    assert_int_equal(stats.received_frames, 0);
    pair_close(&pair);
}

static void test_abort_cuts_a_large_body(void **state)
{
    (void)state;
    schemes(abort_in);
}

/* What a paced socket holds back is bounded by its rate: else whatever is queued next waits behind 64 KB. */
static void test_paced_socket_holds_little(void **state)
{
    struct link_pair pair = {0};
    int most = 0;
    (void)state;
    begin(&pair);
    pair_open(&pair, "tcp", "");
    begin_large(&pair);
    struct aq_link_stats stats = {0};
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    while (stats.received_wire_bytes < 48 << 10) {
        int held = 0;
        assert_int_equal(ioctl(pair.link[1]->direct, SIOCOUTQNSD, &held), 0);
        if (held > most) most = held;
        aq_link_stats(pair.link[0], &stats);
        assert_true(aq_clock_ns() < deadline_ns);
    }
    assert_true(most > 0);
    assert_true(most <= 3 * AQ_LINK_CHUNK_BYTES_MIN); /* half of the least low-water mark, and a send on top */
    pair_close(&pair);
}

/* An unpaced socket knows what its network carries as soon as something has been acknowledged. */
static void test_unpaced_socket_measures_the_network(void **state)
{
    struct aq_acceptor acceptor;
    struct aq_byte_stream *ends[2];
    char address[64];
    uint8_t sink[4096];
    const uint64_t deadline_ns = PAIR_SECONDS(PAIR_PATIENCE);
    (void)state;
    assert_int_equal(aq_acceptor_open("tcp://127.0.0.1:0", NULL, &acceptor), AQ_OK);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", acceptor.port);
    assert_int_equal(aq_byte_stream_connect(address, NULL, 0, false, &ends[0]), AQ_OK);
    while (ends[0]->ops->connected(ends[0]) == AQ_AGAIN)
        assert_true(aq_clock_ns() < deadline_ns);
    while (aq_acceptor_accept(&acceptor, &ends[1]) == AQ_AGAIN)
        assert_true(aq_clock_ns() < deadline_ns);
    assert_true(aq_byte_stream_local(ends[0]));
    while (ends[0]->ops->measure(ends[0]) == 0) {
        size_t bytes;
        const struct iovec out = {.iov_base = large_body, .iov_len = 100000};
        const struct iovec in = {.iov_base = sink, .iov_len = sizeof sink};
        (void)ends[0]->ops->write(ends[0], &out, 1, &bytes);
        (void)ends[1]->ops->read(ends[1], &in, 1, &bytes);
        assert_true(aq_clock_ns() < deadline_ns);
    }
    assert_true(ends[1]->ops->measure(ends[1]) == 0); /* it has sent nothing */
    assert_int_equal(ends[0]->ops->pace(ends[0], 10), AQ_OK);
    assert_true(ends[0]->ops->measure(ends[0]) == 0); /* its rate is what was asked for */
    for (int i = 0; i < 2; i++)
        aq_byte_stream_close(ends[i]);
    aq_acceptor_close(&acceptor);
}

/* ---- the reader alone ---- */

enum { PART = AQ_FRAME_PART_BYTES, BODY = 3 * PART + 100, STREAM_BYTES = 8192, READER_SLOTS = 2 };

struct stream {
    uint8_t bytes[STREAM_BYTES];
    size_t count;
};

static void put_frame(struct stream *stream, uint64_t sequence, uint16_t kind, uint32_t body_bytes, uint32_t part_bytes)
{
    struct aq_header h = {.kind = kind,
                          .from = 1,
                          .edge = 2,
                          .plan_hash = 3,
                          .sequence = sequence,
                          .body_bytes = body_bytes,
                          .part_bytes = part_bytes,
                          .body_digest = body_bytes > 0 ? aq_digest(large_body, body_bytes) : 0};
    aq_header_encode(&h, stream->bytes + stream->count);
    stream->count += AQ_FRAME_HEADER_BYTES;
}

static void put_bytes(struct stream *stream, uint32_t from, uint32_t bytes)
{
    assert_true(stream->count + bytes <= STREAM_BYTES);
    memcpy(stream->bytes + stream->count, large_body + from, bytes);
    stream->count += bytes;
}

static void put_gap(struct stream *stream, uint64_t sequence, const struct aq_gap *gap)
{
    aq_gap_encode(gap, sequence, stream->bytes + stream->count);
    stream->count += AQ_FRAME_GAP_BYTES;
}

/* A body of four parts; gaps acknowledge 1, 2, 3 and give back a credit each. */
static void put_body(struct stream *stream, uint64_t sequence)
{
    put_frame(stream, sequence, AQ_FRAME_FORWARD, BODY, PART);
    for (uint32_t p = 0; p < 4; p++) {
        put_bytes(stream, p * PART, p < 3 ? PART : BODY - 3 * PART);
        if (p < 3) put_gap(stream, sequence, &(struct aq_gap){.acknowledge = p + 1, .credit = 1});
    }
}

struct came {
    enum aq_status status; /* that ended it; AQ_AGAIN: nothing did */
    uint32_t bodies, gaps, empty, aborts;
};

/* Through a new reader in pieces of at most that size. */
static struct came read_stream(const struct stream *stream, size_t piece, bool parts)
{
    struct aq_reader reader = {0};
    struct aq_arena arena = {0};
    struct aq_reader_frame frame;
    struct came came = {.status = AQ_AGAIN};
    void *memory;
    aq_reader_place(&reader, &arena, BODY, READER_SLOTS, false);
    assert_int_equal(aq_alloc(arena.used, &memory), AQ_OK);
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    aq_reader_place(&reader, &arena, BODY, READER_SLOTS, false);
    reader.from = 1;
    reader.edge = 2;
    reader.plan_hash = 3;
    reader.body_bytes_max = BODY;
    reader.parts = parts;
    reader.sent_sequence = 3;
    reader.credit_max = 1;
    aq_reader_start(&reader);
    for (size_t at = 0; at < stream->count && came.status == AQ_AGAIN;) {
        struct iovec iov[2];
        const int count = aq_reader_room(&reader, iov);
        size_t got = 0;
        for (int i = 0; i < count && at < stream->count && got < piece; i++) {
            size_t bytes = iov[i].iov_len;
            if (bytes > stream->count - at) bytes = stream->count - at;
            if (bytes > piece - got) bytes = piece - got;
            memcpy(iov[i].iov_base, stream->bytes + at, bytes);
            at += bytes;
            got += bytes;
            if (bytes < iov[i].iov_len) break;
        }
        aq_reader_filled(&reader, got);
        while ((came.status = aq_reader_next(&reader, &frame)) == AQ_OK) {
            came.gaps += frame.header.kind == AQ_FRAME_CREDIT && frame.header.acknowledge == came.gaps + 1;
            came.empty += frame.header.kind == AQ_FRAME_NORM;
            came.aborts += frame.header.kind == AQ_FRAME_ABORT;
            if (frame.header.kind != AQ_FRAME_FORWARD) continue;
            assert_int_equal(frame.body_bytes, BODY);
            assert_memory_equal(frame.body, large_body, BODY);
            came.bodies++;
            aq_reader_release(&reader, frame.slot);
        }
    }
    aq_free(memory);
    return came;
}

static void test_reader_body_in_parts_in_any_pieces(void **state)
{
    struct stream stream = {0};
    (void)state;
    put_frame(&stream, 1, AQ_FRAME_NORM, 0, 0);
    put_body(&stream, 2);
    put_frame(&stream, 3, AQ_FRAME_NORM, 0, 0);
    for (size_t piece = 1; piece < stream.count + 7; piece += 1 + piece / 16) {
        const struct came came = read_stream(&stream, piece, true);
        assert_int_equal(came.status, AQ_AGAIN);
        assert_int_equal(came.bodies, 1);
        assert_int_equal(came.gaps, 3);
        assert_int_equal(came.empty, 2);
    }
    assert_int_equal(read_stream(&stream, 100, false).status, AQ_PROTO); /* none were agreed */
}

static void test_reader_gap_says_too_much_is_proto(void **state)
{
    static const struct aq_gap WRONG[] = {{.acknowledge = 4}, {.acknowledge = 1, .credit = 2}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct stream stream = {0};
        put_frame(&stream, 1, AQ_FRAME_FORWARD, BODY, PART);
        put_bytes(&stream, 0, PART);
        put_gap(&stream, 1, &WRONG[i]);
        assert_int_equal(read_stream(&stream, 1000, true).status, AQ_PROTO);
    }
    struct stream stream = {0};
    put_frame(&stream, 1, AQ_FRAME_FORWARD, BODY, PART);
    put_bytes(&stream, 0, PART);
    put_gap(&stream, 2, &(struct aq_gap){.acknowledge = 1}); /* of another frame */
    assert_int_equal(read_stream(&stream, 1000, true).status, AQ_CORRUPT);
}

static void test_reader_cut_body_abort_alone_may_follow(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct stream stream = {0};
        put_frame(&stream, 1, AQ_FRAME_FORWARD, BODY, PART);
        put_bytes(&stream, 0, PART);
        put_gap(&stream, 1, &(struct aq_gap){.cut = true});
        put_frame(&stream, i == 2 ? 1 : 2, i == 1 ? AQ_FRAME_NORM : AQ_FRAME_ABORT, 0, 0);
        const struct came came = read_stream(&stream, 1000, true);
        assert_int_equal(came.status, i == 0 ? AQ_AGAIN : AQ_PROTO);
        assert_int_equal(came.aborts, i == 0);
        assert_int_equal(came.bodies, 0);
    }
}

/* A full queue drops packets: the rate is limited to the bottleneck's, grows again, and is not limited for ever. */
static void test_rate_that_overflows_a_queue_is_limited(void **state)
{
    const struct aq_path full = {.steady = true, .round_trip_ns = 80000000, .queue_ns = 41000000},
                         calm = {.steady = true, .round_trip_ns = 80000000, .queue_ns = 20000000};
    struct aq_rate_limit limit = {0};
    uint64_t now_ns = 1000000000;
    (void)state;
    assert_false(aq_rate_limit_update(&limit, &calm, 1448, 1e7, now_ns)); /* of the way */
    assert_false(aq_rate_limit_update(&limit, &full, 1448, 1e7, now_ns)); /* nothing was lost */
    assert_false(aq_rate_limit_update(&limit, &full, 2896, 0, now_ns));   /* nothing is known */
    assert_true(aq_rate_limit_update(&limit, &full, 4344, 1e7, now_ns));
    assert_true(limit.bytes_per_s == 1e7);
    assert_false(aq_rate_limit_update(&limit, &calm, 4344, 1e7, now_ns + AQ_RATE_LIMIT_NS - 1));
    assert_true(aq_rate_limit_update(&limit, &calm, 4344, 1e7, now_ns + AQ_RATE_LIMIT_NS));
    assert_true(limit.bytes_per_s == 1e7 * AQ_RATE_LIMIT_GROWTH);
    assert_true(aq_rate_limit_update(&limit, &full, 5792, 1, now_ns)); /* a wrong estimate does not stop a link */
    assert_true(limit.bytes_per_s == AQ_RATE_LIMIT_MIN);
    for (int i = 0; limit.bytes_per_s > 0; i++) {
        assert_in_range(i, 0, 200);
        now_ns += 2 * AQ_RATE_LIMIT_NS;
        (void)aq_rate_limit_update(&limit, &calm, 5792, 2 * AQ_RATE_LIMIT_MIN, now_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_that_overflows_a_queue_is_limited),
        cmocka_unit_test(test_acknowledgement_passes_a_large_body),
        cmocka_unit_test(test_credit_passes_a_large_body),
        cmocka_unit_test(test_abort_cuts_a_large_body),
        cmocka_unit_test(test_paced_socket_holds_little),
        cmocka_unit_test(test_unpaced_socket_measures_the_network),
        cmocka_unit_test(test_reader_body_in_parts_in_any_pieces),
        cmocka_unit_test(test_reader_gap_says_too_much_is_proto),
        cmocka_unit_test(test_reader_cut_body_abort_alone_may_follow),
    };
    for (uint32_t i = 0; i < LARGE; i++)
        large_body[i] = (uint8_t)(i * 2654435761u >> 24);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
