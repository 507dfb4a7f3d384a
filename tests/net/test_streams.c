/*
 * test_streams.c -- several connections as one (stripes.h), with peers that break their rules.
 */
#include "raw_peer.h"

#include <time.h>

#include "handshake.h"
#include "lanes.h"
#include "link_state.h"
#include "net_limits.h"
#include "stripes.h"

/* ---- stripes, over connections in memory ---- */

enum { BUNDLE = 77, SAID = 100000 };

static struct lane ends[2][LANES];
static uint8_t said[SAID], heard[SAID];

static enum aq_link_copies copies = AQ_LINK_COPIES_OFF;
static bool spare;

static void stripes_open(struct aq_byte_stream *stripes[2])
{
    const struct aq_stripes_config config = {.bundle = BUNDLE, .copies = copies, .spare = spare};
    lanes_open(ends);
    for (size_t i = 0; i < SAID; i++)
        said[i] = (uint8_t)(i * 7 + (i >> 8));
    for (int i = 0; i < 2; i++) {
        struct aq_byte_stream *parts[LANES];
        for (int n = 0; n < LANES; n++)
            parts[n] = &ends[i][n].stream;
        assert_int_equal(aq_stripes_open(parts, LANES, &config, &stripes[i]), AQ_OK);
    }
}

static void stripes_close(struct aq_byte_stream *stripes[2])
{
    aq_byte_stream_close(stripes[0]);
    aq_byte_stream_close(stripes[1]);
}

static size_t say(struct aq_byte_stream *stream, size_t from, size_t to)
{
    size_t put = 0;
    while (from < to) {
        const struct iovec iov = {said + from, to - from};
        if (stream->ops->write(stream, &iov, 1, &put) != AQ_OK) break;
        from += put;
    }
    return from;
}

/* Reads to the end of what is there; the status says which end. */
static enum aq_status hear(struct aq_byte_stream *stream, size_t *at)
{
    for (;;) {
        size_t got;
        const struct iovec iov = {heard + *at, SAID - *at};
        const enum aq_status status = stream->ops->read(stream, &iov, *at < SAID, &got);
        if (status != AQ_OK) return status;
        *at += got;
    }
}

/* A head into what end 1 reads of connection n; its bytes are zeros. */
static void forge_stripe(int n, const struct aq_stripe *stripe, uint64_t bundle)
{
    struct lane *lane = &ends[1][n];
    aq_stripe_encode(stripe, bundle, lane->bytes + lane->end);
    lane->end += AQ_STRIPE_HEAD_BYTES;
    memset(lane->bytes + lane->end, 0, stripe->bytes);
    lane->end += stripe->bytes;
}

static void forge(int n, uint64_t number, uint32_t bytes, uint64_t bundle)
{
    const struct aq_stripe stripe = {.number = number, .bytes = bytes};
    forge_stripe(n, &stripe, bundle);
}

static void forge_sum(int n, uint64_t number, uint32_t bytes, uint8_t place, uint8_t sum)
{
    const struct aq_stripe stripe = {.number = number, .bytes = bytes, .place = place, .sum = sum};
    forge_stripe(n, &stripe, BUNDLE);
}

static void test_stripes_are_one_stream_and_end_as_one(void **state)
{
    struct aq_byte_stream *stripes[2];
    struct aq_path path;
    size_t at = 0;
    (void)state;
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++)
        ends[0][n].piece = 1 + 997 * (size_t)n; /* each as slow as it likes */
    assert_int_equal(say(stripes[0], 0, SAID), SAID);
    assert_false(stripes[0]->unsent);
    for (int n = 0; n < LANES; n++)
        assert_true(ends[1][n].end > AQ_STRIPE_BYTES); /* all took their part */
    stripes[0]->ops->shut(stripes[0]);
    assert_int_equal(hear(stripes[1], &at), AQ_CLOSED);
    assert_int_equal(at, SAID);
    assert_memory_equal(heard, said, SAID);
    assert_true(stripes[1]->ops->measure(stripes[1]) == 3 * LANES);
    stripes[1]->ops->path(stripes[1], &path);
    assert_int_equal(stripes[1]->ops->direct(stripes[1]), -1);
    assert_int_equal(stripes[1]->ops->congestion(stripes[1], "nosuch"), AQ_NODEV);
    assert_int_equal(stripes[1]->ops->congestion(stripes[1], "reno"), AQ_OK);
    stripes_close(stripes);
}

/* A connection that has no room for its mark ends later: what others still carry is not lost with it. */
static void test_stripes_end_where_a_mark_waits_for_room(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t at = 0, put;
    (void)state;
    stripes_open(stripes);
    assert_int_equal(say(stripes[0], 0, 1000), 1000);
    ends[0][2].room = 0;
    ends[0][3].room = AQ_STRIPE_HEAD_BYTES / 2;
    ends[1][0].held = true; /* the connection with the bytes is the slowest */
    stripes[0]->ops->shut(stripes[0]);
    assert_true(stripes[0]->unsent);
    assert_true(ends[1][1].ended && !ends[1][2].ended && !ends[1][3].ended);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    ends[1][0].held = false;
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, 1000);
    ends[0][2].room = ends[0][3].room = LANE_BYTES;
    assert_int_equal(stripes[0]->ops->write(stripes[0], NULL, 0, &put), AQ_OK); /* of nothing: the marks */
    assert_false(stripes[0]->unsent);
    assert_true(ends[1][2].ended && ends[1][3].ended);
    assert_int_equal(hear(stripes[1], &at), AQ_CLOSED);
    assert_int_equal(at, 1000);
    stripes_close(stripes);
}

/* One whose window is small has room in the kernel all the same; what is written there would wait for it. */
static void test_stripes_go_where_the_window_has_room(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t at = 0;
    (void)state;
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++)
        ends[0][n].path = (struct aq_path){.window_bytes = 20 * 1448};
    ends[0][1].path.flight_bytes = ends[0][1].path.window_bytes - AQ_STRIPE_BYTES;
    assert_int_equal(say(stripes[0], 0, SAID / 2), SAID / 2);
    for (int n = 0; n < LANES; n++)
        assert_int_equal(ends[1][n].end > 0, n != 1);
    for (int n = 0; n < LANES; n++)
        ends[0][n].path.flight_bytes = ends[0][n].path.window_bytes; /* all alike: in turn, none is left out */
    assert_int_equal(say(stripes[0], SAID / 2, SAID), SAID);
    assert_true(ends[1][1].end > 0);
    stripes[0]->ops->shut(stripes[0]);
    assert_int_equal(hear(stripes[1], &at), AQ_CLOSED);
    assert_memory_equal(heard, said, SAID);
    stripes_close(stripes);
}

/* Two of a group over one connection would be late together: also where one alone has a window with room. */
static void test_stripes_of_a_group_go_apart_whatever_their_windows(void **state)
{
    struct aq_byte_stream *stripes[2];
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    stripes_open(stripes);
    for (int n = 1; n < LANES; n++)
        ends[0][n].path = (struct aq_path){.window_bytes = 1448, .flight_bytes = 2 * 1448};
    const size_t group = (size_t)(LANES - 1 < AQ_GROUP_STRIPES ? LANES - 1 : AQ_GROUP_STRIPES) * AQ_STRIPE_BYTES;
    assert_int_equal(say(stripes[0], 0, group), group);
    for (int n = 0; n < LANES; n++)
        assert_true(ends[1][n].end <= AQ_STRIPE_HEAD_BYTES + AQ_SUM_HEAD_BYTES + AQ_STRIPE_BYTES);
    stripes_close(stripes);
    copies = AQ_LINK_COPIES_OFF;
}

static void test_stripes_pass_one_that_stands_still(void **state)
{
    struct aq_byte_stream *stripes[2];
    struct aq_byte_stream_wait wait;
    size_t at = 0;
    (void)state;
    stripes_open(stripes);
    ends[0][1].room = 100; /* it takes the beginning of one stripe, and no more */
    assert_int_equal(say(stripes[0], 0, SAID), SAID);
    assert_true(stripes[0]->unsent);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_true(at >= AQ_STRIPE_BYTES && at < 2 * AQ_STRIPE_BYTES); /* what is due is what it holds back */
    stripes[0]->ops->wait(stripes[0], true, &wait);
    ends[0][1].room = LANE_BYTES;
    assert_int_equal(say(stripes[0], SAID, SAID), SAID);
    size_t put;
    assert_int_equal(stripes[0]->ops->write(stripes[0], NULL, 0, &put), AQ_OK); /* of nothing: what it had taken */
    assert_false(stripes[0]->unsent);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, SAID);
    assert_memory_equal(heard, said, SAID);
    stripes_close(stripes);
}

static size_t carried(void)
{
    size_t bytes = 0;
    for (int n = 0; n < LANES; n++)
        bytes += ends[1][n].end;
    return bytes;
}

/* To its end, as a link writes: also of nothing, until nothing is left to say. */
static void say_all(struct aq_byte_stream *stream, size_t from, size_t to)
{
    size_t put;
    assert_int_equal(say(stream, from, to), to);
    for (int i = 0; stream->unsent && i < 4; i++)
        (void)stream->ops->write(stream, NULL, 0, &put);
}

/* What one connection holds back is made from the sums on the others: nobody waits, and what comes late is dropped. */
static void test_sums_pass_what_stands_still(void **state)
{
    struct aq_byte_stream *stripes[2];
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    for (int held = 0; held < LANES; held++)
        for (size_t room = 0; room < 3 * AQ_STRIPE_BYTES; room += 977) { /* in a head, in a stripe, between two */
            size_t at = 0;
            stripes_open(stripes);
            ends[0][held].room = room;
            say_all(stripes[0], 0, SAID);
            assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
            assert_int_equal(at, SAID);
            assert_memory_equal(heard, said, SAID);
            ends[0][held].room = LANE_BYTES;
            size_t put;
            if (stripes[0]->unsent) assert_int_equal(stripes[0]->ops->write(stripes[0], NULL, 0, &put), AQ_OK);
            stripes[0]->ops->shut(stripes[0]);
            assert_int_equal(hear(stripes[1], &at), AQ_CLOSED);
            assert_int_equal(at, SAID);
            stripes_close(stripes);
        }
    copies = AQ_LINK_COPIES_OFF;
}

/* It stops when some stripes have come, and goes on when others were made in their place. */
static void test_sums_pass_one_that_stops_and_goes_on(void **state)
{
    struct aq_byte_stream *stripes[2];
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    for (size_t piece = 1000; piece < SAID; piece += 7919) {
        size_t at = 0;
        stripes_open(stripes);
        for (size_t from = 0, n = 0; from < SAID; from += piece, n++) {
            const size_t to = from + piece < SAID ? from + piece : SAID;
            for (size_t i = 0; i < LANES; i++)
                ends[1][i].held = i == n % LANES;
            say_all(stripes[0], from, to);
            assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
            assert_int_equal(at, to);
        }
        assert_memory_equal(heard, said, SAID);
        stripes_close(stripes);
    }
    copies = AQ_LINK_COPIES_OFF;
}

/* Of a sum only a part has come, and one before it was whole: it is waited for, and nothing is made of half of it. */
static void part_of_a_sum_waits(int held, int cut, size_t keep)
{
    struct aq_byte_stream *stripes[2];
    struct lane *lane = &ends[1][cut];
    size_t at = 0;
    stripes_open(stripes);
    ends[1][held].held = true;
    say_all(stripes[0], 0, SAID / 4);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, SAID / 4);
    say_all(stripes[0], SAID / 4, SAID / 2);
    const size_t end = lane->end;
    if (lane->begin + keep < end) lane->end = lane->begin + keep;
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_memory_equal(heard, said, at);
    lane->end = end;
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, SAID / 2);
    assert_memory_equal(heard, said, SAID / 2);
    stripes_close(stripes);
}

static void test_sums_of_which_a_part_has_come_wait(void **state)
{
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    for (int held = 0; held < LANES; held++)
        for (int cut = 0; cut < LANES; cut++)
            for (size_t keep = 0; cut != held && keep < SAID / 8; keep += 487)
                part_of_a_sum_waits(held, cut, keep);
    copies = AQ_LINK_COPIES_OFF;
}

/* Chosen: none until something is sent again. */
static void test_sums_begin_with_the_first_loss(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t at = 0;
    (void)state;
    copies = AQ_LINK_COPIES_AUTO;
    stripes_open(stripes);
    say_all(stripes[0], 0, SAID / 2);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_true(carried() < SAID / 2 + 64 * AQ_STRIPE_HEAD_BYTES);
    stripes_close(stripes);
    at = 0;
    stripes_open(stripes);
    ends[0][2].path.again_bytes = 1448;
    say_all(stripes[0], 0, SAID / 2);
    assert_true(carried() >= SAID / 2 * LANES / (LANES - 1));
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, SAID / 2);
    assert_memory_equal(heard, said, SAID / 2);
    stripes_close(stripes);
    copies = AQ_LINK_COPIES_OFF;
}

/* A loss of a full queue is not the way's: a quarter more bytes would fill it the more. */
static void test_sums_are_not_for_losses_of_a_full_queue(void **state)
{
    static const struct {
        uint64_t round_trip_ns, queue_ns;
        bool sums, fills; /* its congestion control fills queues by itself */
    } ways[] = {{20000000, 0, true, false},         {20000000, 9999999, true, false},
                {20000000, 11000000, false, false}, {20000000, 11000000, true, true},
                {80000000, 40000000, true, false},  {80000000, 41000000, false, false},
                {0, 11000000, false, false},        {5000000, 10000000, true, false}};
    struct aq_byte_stream *stripes[2];
    (void)state;
    copies = AQ_LINK_COPIES_AUTO;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        stripes_open(stripes);
        for (int n = 0; n < LANES; n++)
            ends[0][n].path = (struct aq_path){.round_trip_ns = ways[i].round_trip_ns, .steady = !ways[i].fills};
        ends[0][1].path.queue_ns = ways[i].queue_ns; /* of the way, whichever connection has seen it */
        ends[0][1].path.sent_bytes = 1;
        ends[0][3].path.queue_ns = AQ_NEVER; /* when it last sent something, long ago */
        ends[0][2].path.again_bytes = 1448;
        say_all(stripes[0], 0, SAID / 2);
        assert_int_equal(carried() >= SAID / 2 * LANES / (LANES - 1), ways[i].sums);
        stripes_close(stripes);
    }
    copies = AQ_LINK_COPIES_OFF;
}

/* TCP finds a loss when the queue that dropped the packet may be short again. */
static void test_sums_are_not_for_losses_soon_after_a_full_queue(void **state)
{
    struct aq_byte_stream *stripes[2];
    (void)state;
    copies = AQ_LINK_COPIES_AUTO;
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++) /* an hour: the test may be slow */
        ends[0][n].path = (struct aq_path){.round_trip_ns = 3600000000000, .steady = true};
    ends[0][1].path.queue_ns = 3600000000000;
    ends[0][1].path.sent_bytes = 1;
    say_all(stripes[0], 0, SAID / 4);
    ends[0][1].path.queue_ns = 0;
    ends[0][1].path.again_bytes = 1448;
    (void)nanosleep(&(struct timespec){0, AQ_COPIES_LOOK_NS + 1000000}, NULL);
    say_all(stripes[0], SAID / 4, SAID / 2);
    assert_true(carried() < SAID / 2 + 64 * AQ_STRIPE_HEAD_BYTES);
    stripes_close(stripes);
    copies = AQ_LINK_COPIES_OFF;
}

/* A busy link has room on one connection at a time. A sum of each single stripe would be as many bytes again. */
static void test_sums_are_not_for_single_stripes_of_a_busy_link(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t from = 0;
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    stripes_open(stripes);
    for (int i = 0; from < SAID / 2; from = say(stripes[0], from, SAID), i++)
        for (int n = 0; n < LANES; n++)
            ends[0][n].room = n == i % LANES ? AQ_STRIPE_HEAD_BYTES + AQ_STRIPE_BYTES : 0;
    assert_true(carried() < from + 64 * AQ_STRIPE_HEAD_BYTES);
    stripes_close(stripes);
    copies = AQ_LINK_COPIES_OFF;
}

/* Connections that are there for sums alone: one carries all of a small way, until a packet is lost. */
static void test_spare_connections_carry_nothing_without_sums(void **state)
{
    struct aq_byte_stream *stripes[2];
    struct aq_byte_stream_wait wait;
    size_t at = 0;
    (void)state;
    copies = AQ_LINK_COPIES_AUTO;
    spare = true;
    for (int i = 0; i < 8; i++) {
        const bool lossy = i % 2, steady = i / 2 % 2, wide = i / 4; /* wide: it makes no difference */
        stripes_open(stripes);
        for (int n = 0; n < LANES; n++)
            ends[0][n].path.steady = n > 0 || steady;
        ends[0][0].path.window_bytes = wide ? 600 * 1448 : 0;
        ends[0][1].path.again_bytes = lossy ? 1448 : 0;
        say_all(stripes[0], 0, SAID / 2);
        assert_int_equal(ends[1][2].end == 0, !lossy && steady);
        at = 0;
        assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
        assert_int_equal(at, SAID / 2);
        assert_memory_equal(heard, said, SAID / 2);
        stripes_close(stripes);
    }
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++)
        ends[0][n].path.steady = true;
    ends[0][0].room = SAID / 4;
    assert_in_range(say(stripes[0], 0, SAID), SAID / 4 - 2 * AQ_STRIPE_BYTES, SAID / 4 + AQ_STRIPE_BYTES);
    stripes[0]->ops->wait(stripes[0], true, &wait);
    assert_true(wait.wake_ns == AQ_NEVER); /* the others have room, and are not for this */
    stripes_close(stripes);
    spare = false;
    copies = AQ_LINK_COPIES_OFF;
}

static void test_stripes_keep_a_pace_together(void **state)
{
    struct aq_byte_stream *stripes[2];
    struct aq_byte_stream_wait wait;
    (void)state;
    stripes_open(stripes);
    assert_int_equal(stripes[0]->ops->pace(stripes[0], 8), AQ_OK); /* a byte a microsecond */
    const uint64_t begin_ns = aq_clock_ns();
    const size_t burst = say(stripes[0], 0, SAID);
    const uint64_t passed_ns = aq_clock_ns() - begin_ns;
    assert_true(burst >= AQ_STRIPES_AHEAD_NS / 1000);
    assert_true(burst <= AQ_STRIPES_AHEAD_NS / 1000 + passed_ns / 1000 + 2 * AQ_STRIPE_BYTES_MAX);
    stripes[0]->ops->wait(stripes[0], true, &wait);
    assert_true(wait.wake_ns > begin_ns && wait.wake_ns < begin_ns + UINT64_C(1000) * SAID);
    assert_int_equal(wait.fd, -1); /* there is room: nothing but the clock will say when */
    assert_true(say(stripes[0], burst, SAID) < SAID || aq_clock_ns() - begin_ns > UINT64_C(900) * SAID);
    stripes_close(stripes);
}

/* One connection that ends without its word is lost, and the stream with it, however whole the others are. */
static void test_stripes_lost_connection_loses_the_stream(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t at = 0;
    (void)state;
    stripes_open(stripes);
    assert_int_equal(say(stripes[0], 0, 1000), 1000);
    ends[1][2].ended = true;
    assert_int_equal(hear(stripes[1], &at), AQ_CLOSED);
    stripes_close(stripes);
    at = 0;
    stripes_open(stripes);
    ends[1][3].lost = true;
    assert_int_equal(hear(stripes[1], &at), AQ_IO);
    ends[0][0].lost = true;
    assert_true(say(stripes[0], 0, 1000) < 1000);
    stripes_close(stripes);
}

static void refuses(struct aq_byte_stream *stripes[2], enum aq_status status, const char *text)
{
    size_t at = 0;
    assert_int_equal(hear(stripes[1], &at), status);
    assert_non_null(strstr(aq_byte_stream_refusal(stripes[1]), text));
    stripes_close(stripes);
}

static void test_stripes_against_the_rules_are_refused_by_name(void **state)
{
    struct aq_byte_stream *stripes[2];
    (void)state;
    stripes_open(stripes);
    forge(0, 0, 10, BUNDLE + 1);
    refuses(stripes, AQ_CORRUPT, "arrived broken");
    stripes_open(stripes);
    forge(0, 0, AQ_STRIPE_BYTES_MAX + 1, BUNDLE);
    refuses(stripes, AQ_PROTO, "sent a stripe of 14321 bytes; the limit is 14320");
    stripes_open(stripes);
    forge(0, 0, AQ_STRIPE_BYTES_MAX, BUNDLE);
    forge(1, 1, 5, BUNDLE);
    forge(2, 1, 5, BUNDLE);
    refuses(stripes, AQ_PROTO, "sent stripe 1 again; 2 is expected");
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++)
        forge(n, 1 + (uint64_t)n, 5, BUNDLE);
    refuses(stripes, AQ_PROTO, "left out stripe 0");
    stripes_open(stripes);
    for (int n = 0; n < LANES; n++)
        forge(n, n == 3 ? 1 : 0, 0, BUNDLE); /* ends that differ */
    refuses(stripes, AQ_PROTO, "left out stripe 0");
    stripes_open(stripes);
    forge_sum(0, 0, 10, 0, 1);
    refuses(stripes, AQ_PROTO, "sent a stripe of a group; the handshake did not agree to any");
    for (int i = 0; i < 5;
         i++) { /* a place before 0 or too far, an empty sum, one of more than there were or could be */
        stripes_open(stripes);
        forge_sum(0, i == 0 ? 1 : 40, i == 2 ? 2 : 10, i == 0 ? 2 : i == 1 ? 15 : 0, i < 2 ? 0 : i == 4 ? 16 : 41);
        refuses(stripes, AQ_PROTO, "of a group, sum of");
    }
}

static void test_sums_against_the_rules_are_refused_by_name(void **state)
{
    struct aq_byte_stream *stripes[2];
    size_t at = 0;
    (void)state;
    copies = AQ_LINK_COPIES_ON;
    stripes_open(stripes);
    forge(0, 0, 10, BUNDLE);
    forge(1, 0, 10, BUNDLE); /* again: it came late */
    forge(1, 1, 5, BUNDLE);
    assert_int_equal(hear(stripes[1], &at), AQ_AGAIN);
    assert_int_equal(at, 15);
    forge(2, 1, 0, BUNDLE); /* an end before what has come */
    refuses(stripes, AQ_PROTO, "sent stripe 1 again; 2 is expected");
    stripes_open(stripes);
    forge(0, 0, 10, BUNDLE);
    ends[1][0].end -= 4;
    forge(1, 0, 10, BUNDLE);
    refuses(stripes, AQ_PROTO, "sent stripe 0 on two streams, of 10 and 10 bytes");
    stripes_open(stripes);
    forge_sum(0, 1, 12, 0, 2); /* of zeros: stripe 0 would have as many bytes as stripe 1 */
    forge_sum(1, 1, 11, 1, 0);
    refuses(stripes, AQ_PROTO, "sent a sum of 12 bytes by which stripe 0 had 11");
    stripes_open(stripes);
    forge_sum(0, 0, 12, 0, 1);
    refuses(stripes, AQ_PROTO, "sent a sum of 12 bytes by which stripe 0 had 0");
    stripes_open(stripes);
    forge(0, 0, 10, BUNDLE);
    forge_sum(0, 1, 10, 1, 0); /* stripe 0 was of this group, and the next says that it was of another */
    forge_sum(0, 2, 10, 1, 0);
    refuses(stripes, AQ_PROTO, "sent stripe 2 as part of a group that starts with 1, which was in another");
    copies = AQ_LINK_COPIES_OFF;
}

static void test_heads_and_hellos_have_their_bytes(void **state)
{
    static const uint8_t GOLDEN[12] = {5, 0, 0, 0, 0, 0, 0, 1, 0xf0, 0x37, 3, 0}; /* docs/FRAME.md */
    static const struct aq_hello BAD[] = {{.features = 8},
                                          {.features = 8, .streams = AQ_LINK_STREAMS_MAX + 1},
                                          {.features = 8, .streams = 2, .stream = 2, .bundle = 1},
                                          {.features = 8, .streams = 2, .stream = 1},
                                          {.streams = 2},
                                          {.bundle = 1},
                                          {.features = 32}};
    const struct aq_stripe stripe = {.number = UINT64_C(1) << 56 | 5, .bytes = AQ_STRIPE_BYTES_MAX, .place = 3};
    uint8_t head[AQ_STRIPE_HEAD_BYTES], body[AQ_FRAME_HELLO_BYTES];
    struct aq_stripe back;
    struct aq_hello hello = {.features = 8, .streams = 3, .stream = 2, .bundle = 0x1122334455667788}, read;
    char text[AQ_TEXT_BYTES];
    (void)state;
    aq_stripe_encode(&stripe, BUNDLE, head);
    assert_memory_equal(head, GOLDEN, sizeof GOLDEN);
    assert_int_equal(aq_stripe_decode(head, BUNDLE, &back, text), AQ_OK);
    assert_true(back.number == stripe.number && back.bytes == stripe.bytes && back.place == 3 && back.sum == 0);
    for (int bit = 0; bit < 8 * AQ_STRIPE_HEAD_BYTES; bit++) {
        head[bit / 8] ^= 1 << bit % 8;
        assert_int_equal(aq_stripe_decode(head, BUNDLE, &back, text), AQ_CORRUPT);
        head[bit / 8] ^= 1 << bit % 8;
    }
    aq_hello_encode(&hello, body);
    assert_int_equal(body[56] | body[60] << 8 | body[64] << 16, 3 | 2 << 8 | 0x88 << 16);
    assert_int_equal(aq_hello_decode(body, &read, text), AQ_OK);
    assert_true(read.streams == 3 && read.stream == 2 && read.bundle == hello.bundle);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        aq_hello_encode(&BAD[i], body);
        assert_int_equal(aq_hello_decode(body, &read, text), AQ_PROTO);
    }
}

/* ---- the handshake of several ---- */

static void accept_run(void *context)
{
    struct link_pair *pair = context;
    pair->accepted = aq_link_accept(pair->listener, &pair->config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair->link[0]);
}

static struct raw other_of(const struct raw *first, const struct aq_hello *answer, uint32_t stream)
{
    struct raw other = *first;
    other.fd = -1;
    other.hello.session = answer->session;
    other.hello.streams = answer->streams;
    other.hello.bundle = answer->bundle;
    other.hello.stream = stream;
    return other;
}

/* Closed without a word. */
static void sent_away(struct raw *raw)
{
    struct aq_header header;
    raw->sequence = raw->received = 0;
    assert_false(raw_read(raw, &header, NULL));
    close(raw->fd);
}

static void twist(struct raw *raw, int how)
{
    if (how == 0) raw->hello.bundle ^= 2;
    if (how == 1) raw->hello.rank++;
    if (how == 2) raw->hello.plan_hash++;
    if (how == 3) raw->hello.edge++;
    if (how == 4) raw->hello.streams++;
}

/* Whoever is wrong by one thing is let go; those who fit make the link, in any order, and it carries. */
static void test_streams_that_do_not_fit_are_let_go(void **state)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    struct aq_hello answer;
    (void)state;
    pair_config(&pair);
    pair.config[0].streams = 3;
    pair.config[0].outage_ns_max = pair.config[1].outage_ns_max = UINT64_C(1000000000);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    assert_int_equal(aq_thread_open("accept", accept_run, &pair, &thread), AQ_OK);
    struct raw first = raw_peer(&pair);
    first.hello.features |= AQ_FEATURE_STREAMS;
    first.hello.streams = 4;
    raw_greet(&first, pair.address, false);
    assert_int_equal(raw_answer(&first, &answer), AQ_OK);
    assert_int_equal(answer.streams, 4); /* the larger of both wishes */
    assert_true(answer.bundle != 0 && (answer.features & AQ_FEATURE_STREAMS));
    struct raw others[4];
    for (uint32_t n = 3; n > 0; n--) {
        for (int how = 0; how < 5; how++) {
            struct raw wrong = other_of(&first, &answer, n);
            twist(&wrong, how);
            raw_greet(&wrong, pair.address, false);
            sent_away(&wrong);
        }
        if (n == 2) raw_confirm(&first);
        others[n] = other_of(&first, &answer, n);
        if (n == 1) { /* a second one of a number that is there, before the last makes the link */
            struct raw twice = other_of(&first, &answer, 3);
            raw_greet(&twice, pair.address, false);
            sent_away(&twice);
        }
        raw_greet(&others[n], pair.address, false);
    }
    aq_thread_close(thread);
    assert_int_equal(pair.accepted, AQ_OK);
    assert_int_equal(pair.link[0]->direct, -1);
    const struct aq_frame frame = {.kind = AQ_FRAME_CONTROL, .step = 5};
    assert_int_equal(aq_link_send(pair.link[0], &frame, 1), AQ_OK);
    uint8_t head[AQ_STRIPE_HEAD_BYTES];
    struct aq_stripe stripe;
    assert_true(raw_take(&first, head, sizeof head)); /* the first stripe goes over the first stream */
    assert_int_equal(aq_stripe_decode(head, answer.bundle, &stripe, first.text), AQ_OK);
    assert_true(stripe.number == 0 && stripe.bytes == AQ_FRAME_HEADER_BYTES);
    close(first.fd);
    for (int n = 1; n < 4; n++)
        close(others[n].fd);
    pair_close(&pair);
}

/* A stripe against the rules ends the link for good: no healing, and the reason is said at both ends. */
static void test_stripe_against_the_rules_ends_the_link(void **state)
{
    struct link_pair pair = {0};
    struct aq_thread *thread;
    struct aq_hello answer;
    uint8_t head[AQ_STRIPE_HEAD_BYTES];
    (void)state;
    pair_config(&pair);
    pair.config[0].streams = 2;
    pair.config[0].outage_ns_max = pair.config[1].outage_ns_max = UINT64_C(60000000000);
    pair_nets(&pair);
    pair_listen(&pair, "tcp", "");
    assert_int_equal(aq_thread_open("accept", accept_run, &pair, &thread), AQ_OK);
    struct raw first = raw_peer(&pair);
    first.hello.features |= AQ_FEATURE_STREAMS;
    first.hello.streams = 1;
    raw_greet(&first, pair.address, true);
    assert_int_equal(raw_answer(&first, &answer), AQ_OK);
    assert_int_equal(answer.streams, 2);
    struct raw other = other_of(&first, &answer, 1);
    raw_greet(&other, pair.address, false);
    aq_thread_close(thread);
    assert_int_equal(pair.accepted, AQ_OK);
    const struct aq_stripe stripe = {.number = 7, .bytes = 20};
    aq_stripe_encode(&stripe, answer.bundle, head);
    raw_bytes(&first, head, sizeof head);
    raw_bytes(&other, head, sizeof head);
    const struct aq_link_event event = pair_event_of(&pair, 0, AQ_LINK_CLOSED, PAIR_PATIENCE);
    assert_int_equal(event.status, AQ_PROTO);
    assert_non_null(strstr(event.text, "left out stripe 0"));
    close(first.fd);
    close(other.fd);
    pair_close(&pair);
}

static uint32_t streams_between(uint32_t there, uint32_t here)
{
    struct link_pair pair = {0};
    pair_config(&pair);
    pair.config[0].streams = here;
    pair.config[1].streams = there;
    pair_open(&pair, "tcp", "");
    pair_exchange(&pair, 8, PAIR_PATIENCE);
    const struct aq_hello *hello = &pair.link[1]->peer; /* the listener's answer */
    const uint32_t streams = hello->features & AQ_FEATURE_STREAMS ? hello->streams : 1;
    assert_int_equal(pair.link[1]->direct == -1, streams > 1);
    assert_int_equal(pair.link[0]->direct == -1, streams > 1);
    pair_close(&pair);
    return streams;
}

static void finish_run(void *context)
{
    struct link_pair *pair = context;
    pair->connected = aq_link_finish(pair->link[1], PAIR_SECONDS(PAIR_PATIENCE));
}

/* At a pace so low that it holds back what is left at the end, after others waited for room: it ends all the same. */
static void test_paced_streams_end_in_good_order(void **state)
{
    static uint8_t body[6000];
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body_bytes = sizeof body, .body = body};
    (void)state;
    for (uint32_t streams = 2; streams <= 3; streams++) {
        struct link_pair pair = {0};
        struct aq_thread *thread;
        pair_config(&pair);
        for (int i = 0; i < 2; i++) {
            pair.config[i].streams = streams;
            pair.config[i].rate_mbps = 1;
        }
        pair_open(&pair, "tcp", "");
        for (uint64_t k = 0; k < 2; k++)
            for (int i = 0; i < 2; i++)
                assert_int_equal(aq_link_send(pair.link[i], &frame, k), AQ_OK);
        assert_int_equal(aq_thread_open("finish", finish_run, &pair, &thread), AQ_OK);
        assert_int_equal(aq_link_finish(pair.link[0], PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
        aq_thread_close(thread);
        assert_int_equal(pair.connected, AQ_OK);
        pair_close(&pair);
    }
}

static void test_number_of_streams_is_the_larger_wish_or_one(void **state)
{
    (void)state;
    assert_int_equal(streams_between(0, 0), 1); /* near: as it always was */
    assert_int_equal(streams_between(3, 3), 3);
    assert_int_equal(streams_between(2, 16), 16);
    assert_int_equal(streams_between(5, 0), 5);
    assert_int_equal(streams_between(0, 5), 1); /* the connector is near, and does not ask */
    assert_int_equal(streams_between(1, 4), 1);
    assert_int_equal(streams_between(4, 1), 1);
}

static void test_streams_asked_for_go_by_rate_and_round_trip(void **state)
{
    struct aq_link_config config;
    struct lane lane = {0};
    static const struct {
        double rate_mbps;
        uint64_t round_trip_ns;
        bool steady;
        uint32_t streams; /* 0: no word of them */
        enum aq_link_copies copies;
    } ways[] = {{100, 200000, false, 0, AQ_LINK_COPIES_AUTO},    {100, 80000000, true, 5, AQ_LINK_COPIES_AUTO},
                {100, 80000000, true, 1, AQ_LINK_COPIES_OFF},    {100, 80000000, false, 16, AQ_LINK_COPIES_AUTO},
                {10, 200000000, false, 11, AQ_LINK_COPIES_AUTO}, {10, 20000000, false, 2, AQ_LINK_COPIES_OFF},
                {0, 10000000, false, 11, AQ_LINK_COPIES_ON},     {1, 5000000, false, 1, AQ_LINK_COPIES_OFF},
                {1, 5000000, false, 5, AQ_LINK_COPIES_ON},       {100, 4999999, false, 0, AQ_LINK_COPIES_AUTO}};
    (void)state;
    aq_link_config_default(&config);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct aq_hello hello = {0};
        lane.stream.ops = &LANE_OPS;
        lane.path = (struct aq_path){.round_trip_ns = ways[i].round_trip_ns, .steady = ways[i].steady};
        config.rate_mbps = ways[i].rate_mbps;
        config.copies = ways[i].copies;
        aq_streams_ask(&config, &lane.stream, &hello);
        assert_int_equal(hello.streams, ways[i].streams);
        assert_int_equal(!!(hello.features & AQ_FEATURE_STREAMS), ways[i].streams > 0);
        const bool asks = ways[i].streams > 0 && ways[i].copies != AQ_LINK_COPIES_OFF;
        assert_int_equal(!!(hello.features & AQ_FEATURE_COPIES), asks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stripes_are_one_stream_and_end_as_one),
        cmocka_unit_test(test_stripes_end_where_a_mark_waits_for_room),
        cmocka_unit_test(test_stripes_go_where_the_window_has_room),
        cmocka_unit_test(test_stripes_of_a_group_go_apart_whatever_their_windows),
        cmocka_unit_test(test_stripes_pass_one_that_stands_still),
        cmocka_unit_test(test_sums_are_not_for_losses_of_a_full_queue),
        cmocka_unit_test(test_sums_are_not_for_losses_soon_after_a_full_queue),
        cmocka_unit_test(test_sums_are_not_for_single_stripes_of_a_busy_link),
        cmocka_unit_test(test_spare_connections_carry_nothing_without_sums),
        cmocka_unit_test(test_stripes_keep_a_pace_together),
        cmocka_unit_test(test_stripes_lost_connection_loses_the_stream),
        cmocka_unit_test(test_sums_pass_what_stands_still),
        cmocka_unit_test(test_sums_pass_one_that_stops_and_goes_on),
        cmocka_unit_test(test_sums_of_which_a_part_has_come_wait),
        cmocka_unit_test(test_sums_begin_with_the_first_loss),
        cmocka_unit_test(test_stripes_against_the_rules_are_refused_by_name),
        cmocka_unit_test(test_sums_against_the_rules_are_refused_by_name),
        cmocka_unit_test(test_heads_and_hellos_have_their_bytes),
        cmocka_unit_test(test_streams_that_do_not_fit_are_let_go),
        cmocka_unit_test(test_stripe_against_the_rules_ends_the_link),
        cmocka_unit_test(test_paced_streams_end_in_good_order),
        cmocka_unit_test(test_number_of_streams_is_the_larger_wish_or_one),
        cmocka_unit_test(test_streams_asked_for_go_by_rate_and_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
