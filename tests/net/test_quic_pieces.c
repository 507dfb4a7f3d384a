/*
 * test_quic_pieces.c -- bytes over datagrams that are lost, repeated and reordered (net/transport/pieces.h).
 *
 * Two ends and a list of datagrams between them. What parity repairs is checked against the bytes themselves, for every
 * choice of lost datagrams; what a hostile peer may send is refused by its text, or changes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "pieces.h"

enum { FLIGHT = 64, BYTES = AQ_PIECE_HEAD_BYTES + AQ_PIECE_BYTES + 2, SAID = 200000 };

struct datagram {
    uint8_t bytes[BYTES];
    size_t count;
    uint64_t id;
    uint8_t kind;
};

static struct aq_pieces *ends[2];
static struct datagram flight[FLIGHT];
static uint32_t in_flight;
static uint8_t said[SAID];

static int open_ends(void **state)
{
    (void)state;
    in_flight = 0;
    for (size_t i = 0; i < SAID; i++)
        said[i] = (uint8_t)(i * 31 + (i >> 8) * 7 + 3);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_pieces_open(&ends[i]), AQ_OK);
    return 0;
}

static void tell_window(void);

/* Ends that know each other. */
static int open_whole(void **state)
{
    const char *text;
    open_ends(state);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_pieces_grow(ends[i]), AQ_OK);
    tell_window();
    struct aq_piece_out out;
    assert_true(aq_pieces_next(ends[0], &out));
    aq_pieces_sent(ends[0], &out);
    assert_int_equal(aq_pieces_receive(ends[1], out.head, sizeof out.head, &text), AQ_OK);
    in_flight = 0;
    return 0;
}

static int close_ends(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        aq_pieces_close(ends[i]);
    return 0;
}

/* All that is due at that end goes into the list. */
static void take_due(struct aq_pieces *end)
{
    struct aq_piece_out out;
    while (aq_pieces_next(end, &out)) {
        struct datagram *d = &flight[in_flight++];
        assert_true(in_flight <= FLIGHT);
        memcpy(d->bytes, out.head, AQ_PIECE_HEAD_BYTES);
        if (out.body_bytes) memcpy(d->bytes + AQ_PIECE_HEAD_BYTES, out.body, out.body_bytes);
        d->count = AQ_PIECE_HEAD_BYTES + out.body_bytes;
        d->id = out.id;
        d->kind = out.kind;
        aq_pieces_sent(end, &out);
    }
}

/* One block: `count` pieces of odd sizes, and its parity. Returns the bytes that were written. */
static size_t write_block(uint32_t count, size_t from)
{
    size_t at = from, put;
    for (uint32_t i = 0; i < count; i++) {
        const struct iovec iov = {said + at, 1 + (i * 577 + 91) % AQ_PIECE_BYTES};
        assert_int_equal(aq_pieces_write(ends[0], &iov, 1, AQ_PIECE_BYTES, &put), AQ_OK);
        at += put;
        take_due(ends[0]);
    }
    aq_pieces_flush(ends[0]);
    take_due(ends[0]);
    return at - from;
}

static void deliver(uint32_t which)
{
    const char *text = NULL;
    assert_int_equal(aq_pieces_receive(ends[1], flight[which].bytes, flight[which].count, &text), AQ_OK);
}

static size_t read_all(size_t from)
{
    static uint8_t heard[SAID];
    size_t total = 0, got;
    const struct iovec iov[2] = {{heard, 1000}, {heard + 1000, SAID - 1000}};
    while (aq_pieces_read(ends[1], iov, 2, &got) == AQ_OK) {
        assert_memory_equal(heard, said + from + total, got);
        total += got;
    }
    return total;
}

/* What the reader has to say of its window. */
static void tell_window(void)
{
    const char *text;
    in_flight = 0;
    take_due(ends[1]);
    for (uint32_t i = 0; i < in_flight; i++)
        assert_int_equal(aq_pieces_receive(ends[0], flight[i].bytes, flight[i].count, &text), AQ_OK);
}

/* A block of `count` pieces whose datagrams `lost` (bits) do not come. */
static void lose(uint32_t count, uint32_t rows, uint32_t lost)
{
    static size_t from;
    if (from > SAID - 40000) from = 0;
    tell_window();
    in_flight = 0;
    aq_pieces_parity(ends[0], rows);
    const size_t bytes = write_block(count, from);
    assert_int_equal(in_flight, count + rows);
    for (uint32_t i = 0; i < count + rows; i++)
        if (!(lost >> i & 1)) deliver(i);
    assert_int_equal(read_all(from), bytes);
    from += bytes;
}

/* Every choice of as many lost datagrams as there are rows, over blocks of 1, 5 and 24 pieces. */
static void test_any_lost_datagrams_of_a_block_are_repaired(void **state)
{
    static const uint32_t COUNTS[] = {1, 5, AQ_PIECES_BLOCK};
    struct aq_pieces_stats stats;
    (void)state;
    for (int c = 0; c < 3; c++)
        for (uint32_t rows = 1; rows <= AQ_PIECES_ROWS; rows++)
            for (uint32_t lost = 0; lost < 1u << (COUNTS[c] + rows); lost++)
                if ((uint32_t)__builtin_popcount(lost) == rows) lose(COUNTS[c], rows, lost);
    aq_pieces_stats(ends[1], &stats);
    assert_true(stats.repaired > 5000);
}

/* Without parity: in any order, each datagram twice, and the lost one when it is sent again. */
static void test_a_lost_piece_is_repeated_alone(void **state)
{
    const size_t bytes = write_block(10, 0);
    struct aq_pieces_stats stats;
    (void)state;
    assert_int_equal(in_flight, 10);
    for (uint32_t i = 10; i-- > 0;)
        if (i != 4) {
            deliver(i);
            deliver(i);
        }
    const size_t first = read_all(0);
    assert_true(first < bytes);
    for (uint32_t i = 0; i < 10; i++)
        if (i == 4)
            aq_pieces_lost(ends[0], flight[i].id);
        else
            aq_pieces_acked(ends[0], flight[i].id);
    aq_pieces_lost(ends[0], flight[7].id); /* it was acknowledged: late news */
    in_flight = 0;
    take_due(ends[0]);
    assert_int_equal(in_flight, 1);
    deliver(0);
    assert_int_equal(first + read_all(first), bytes);
    aq_pieces_stats(ends[0], &stats);
    assert_int_equal(stats.repeated, 1);
    assert_int_equal(stats.unacked, 1);
    aq_pieces_acked(ends[0], flight[0].id);
    aq_pieces_stats(ends[0], &stats);
    assert_int_equal(stats.unacked, 0);
}

/* The end comes behind all bytes, also where its piece is repaired. */
static void test_the_end_is_repaired_too(void **state)
{
    size_t put, got;
    uint8_t byte[16];
    const struct iovec iov = {said, 9}, room = {byte, sizeof byte};
    (void)state;
    aq_pieces_parity(ends[0], 1);
    assert_int_equal(aq_pieces_write(ends[0], &iov, 1, AQ_PIECE_BYTES, &put), AQ_OK);
    aq_pieces_end(ends[0]);
    take_due(ends[0]);
    assert_int_equal(in_flight, 3);
    deliver(2);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_AGAIN);
    deliver(0);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_OK);
    assert_int_equal(got, 9);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_CLOSED);
    assert_int_equal(aq_pieces_write(ends[0], &iov, 1, AQ_PIECE_BYTES, &put), AQ_AGAIN);
}

/* A reader that reads nothing: the writer stops within the window, and goes on when it is told. */
static void test_the_window_holds_the_writer(void **state)
{
    const struct iovec iov = {said, 1};
    uint8_t heard[AQ_PIECES_WINDOW];
    const struct iovec room = {heard, sizeof heard};
    uint32_t count = 0;
    size_t put, got;
    const char *text;
    (void)state;
    while (aq_pieces_write(ends[0], &iov, 1, 1, &put) == AQ_OK) {
        in_flight = 0;
        take_due(ends[0]);
        deliver(0);
        count++;
    }
    assert_int_equal(count, AQ_PIECES_WINDOW - AQ_PIECES_BLOCK);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_OK);
    assert_int_equal(got, count);
    in_flight = 0;
    take_due(ends[1]);
    assert_int_equal(in_flight, 1); /* the word alone */
    assert_int_equal(aq_pieces_receive(ends[0], flight[0].bytes, flight[0].count, &text), AQ_OK);
    assert_int_equal(aq_pieces_write(ends[0], &iov, 1, 1, &put), AQ_OK);
    in_flight = 0;
    aq_pieces_lost(ends[1], flight[0].id);
    take_due(ends[1]); /* a lost word goes again */
    assert_int_equal(in_flight, 1);
}

/* The one datagram that tells of the larger window is lost, and nothing reports it: a later one tells it. */
static void test_a_lost_word_of_a_grown_window_is_made_up_for(void **state)
{
    size_t put, bytes = 0;
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_pieces_grow(ends[i]), AQ_OK);
    take_due(ends[1]);
    assert_int_equal(in_flight, 1);
    in_flight = 0;
    for (int i = 0; i < AQ_PIECES_WINDOW_FIRST - AQ_PIECES_BLOCK; i++) {
        const struct iovec iov = {said + i, 1};
        assert_int_equal(aq_pieces_write(ends[0], &iov, 1, 1, &put), AQ_OK);
        take_due(ends[0]);
    }
    const struct iovec more = {said, 1};
    assert_int_equal(aq_pieces_write(ends[0], &more, 1, 1, &put), AQ_AGAIN);
    for (uint32_t i = 0; i < in_flight; i++)
        if (flight[i].kind == 1) deliver(i);
    bytes = read_all(0);
    assert_int_equal(bytes, AQ_PIECES_WINDOW_FIRST - AQ_PIECES_BLOCK);
    tell_window();
    assert_int_equal(aq_pieces_write(ends[0], &more, 1, 1, &put), AQ_OK);
}

/* Blocks whose parity waits have bounded places; more of them cost a repetition, never memory or a wrong byte. */
static void test_parity_of_many_blocks_is_bounded(void **state)
{
    size_t bytes = 0;
    struct aq_pieces_stats stats;
    (void)state;
    aq_pieces_parity(ends[0], 1);
    for (int block = 0; block < AQ_PIECES_REPAIRS + 3; block++) {
        in_flight = 0;
        bytes += write_block(2, bytes);
        deliver(2); /* parity alone */
    }
    assert_int_equal(read_all(0), 0);
    aq_pieces_stats(ends[1], &stats);
    assert_int_equal(stats.repaired, 0);
}

/* The window is full when the direction ends: the end comes behind the pieces, once there is room. */
static void test_an_end_waits_for_the_window(void **state)
{
    const struct iovec iov = {said, 1};
    uint8_t heard[AQ_PIECES_WINDOW_FIRST];
    const struct iovec room = {heard, sizeof heard};
    size_t put, got;
    (void)state;
    while (aq_pieces_write(ends[0], &iov, 1, 1, &put) == AQ_OK)
        take_due(ends[0]);
    aq_pieces_end(ends[0]);
    take_due(ends[0]);
    assert_int_equal(in_flight, AQ_PIECES_WINDOW_FIRST - AQ_PIECES_BLOCK);
    for (uint32_t i = 0; i < in_flight; i++)
        deliver(i);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_OK);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_AGAIN);
    tell_window();
    in_flight = 0;
    take_due(ends[0]);
    assert_int_equal(in_flight, 1);
    deliver(0);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_CLOSED);
}

static void refused(const uint8_t *bytes, size_t count, const char *why)
{
    const char *text = NULL;
    assert_int_equal(aq_pieces_receive(ends[1], bytes, count, &text), AQ_PROTO);
    assert_string_equal(text, why);
}

static void test_hostile_datagrams_are_refused(void **state)
{
    uint8_t d[BYTES] = {1};
    (void)state;
    refused(d, AQ_PIECE_HEAD_BYTES - 1, "sent a datagram without a head");
    refused(d, AQ_PIECE_HEAD_BYTES, "sent a piece of no possible length");
    refused(d, AQ_PIECE_HEAD_BYTES + AQ_PIECE_BYTES + 1, "sent a piece of no possible length");
    d[1] = 1; /* an end with bytes */
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent a piece of no possible length");
    d[1] = 0;
    d[5] = (AQ_PIECES_WINDOW - AQ_PIECES_BLOCK) >> 8;
    d[4] = (uint8_t)(AQ_PIECES_WINDOW - AQ_PIECES_BLOCK);
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent a piece beyond the window");
    memset(d + 4, 0xff, 4);
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent a datagram of an unknown kind");
    memset(d + 4, 0, 4);
    d[8] = 1;
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "reports pieces that were not sent");
    d[8] = 0;
    d[0] = 4;
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent a datagram of an unknown kind");
    d[0] = 3; /* window */
    d[3] = 2;
    refused(d, AQ_PIECE_HEAD_BYTES, "sent a datagram of an unknown kind");
    d[3] = 0;
    d[0] = 2; /* parity */
    d[2] = AQ_PIECES_BLOCK + 1;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity of no possible block");
    d[2] = 1;
    d[1] = AQ_PIECES_ROWS;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity of no possible block");
    d[1] = 0;
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent parity of no possible block");
    d[5] = AQ_PIECES_WINDOW >> 8;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity beyond the window");
    d[5] = 0;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity that does not fit its pieces"); /* of no bytes */
    d[AQ_PIECE_HEAD_BYTES + 1] = 0x81;                                               /* an end with bytes */
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity that does not fit its pieces");
}

/* A stranger keeps 40 pieces here and no parity, whatever he claims; a peer that is known gets the rest. */
static void test_a_stranger_has_a_small_window(void **state)
{
    enum { FEW = AQ_PIECES_WINDOW_FIRST - AQ_PIECES_BLOCK };
    uint8_t d[BYTES] = {1, 0, 0, 1}; /* his own window is whole */
    uint8_t heard[AQ_PIECES_WINDOW_FIRST];
    const struct iovec iov = {said, 1}, room = {heard, sizeof heard};
    size_t put, got;
    const char *text = NULL;
    (void)state;
    d[4] = FEW;
    refused(d, AQ_PIECE_HEAD_BYTES + 1, "sent a piece beyond the window");
    d[0] = 2;
    d[2] = 1;
    d[4] = 0;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent parity before this end takes any");
    d[3] = 2;
    refused(d, AQ_PIECE_HEAD_BYTES + 3, "sent a datagram of an unknown kind");

    assert_int_equal(aq_pieces_grow(ends[0]), AQ_OK); /* the writer knows the reader, not the reader the writer */
    aq_pieces_parity(ends[0], 1);
    take_due(ends[0]);
    assert_int_equal(in_flight, 1);
    in_flight = 0;
    for (int i = 0; i < FEW; i++) {
        const struct iovec one = {said + i, 1};
        assert_int_equal(aq_pieces_write(ends[0], &one, 1, 1, &put), AQ_OK);
        take_due(ends[0]);
    }
    assert_int_equal(in_flight, FEW); /* no parity */
    assert_int_equal(aq_pieces_write(ends[0], &iov, 1, 1, &put), AQ_AGAIN);
    for (uint32_t i = FEW; i-- > 1;)
        deliver(i);
    assert_int_equal(aq_pieces_grow(ends[1]), AQ_OK); /* with pieces that wait for the first */
    deliver(0);
    assert_int_equal(aq_pieces_read(ends[1], &room, 1, &got), AQ_OK);
    assert_int_equal(got, FEW);
    assert_memory_equal(heard, said, FEW);
    struct aq_piece_out out;
    assert_true(aq_pieces_next(ends[1], &out));
    assert_int_equal(aq_pieces_receive(ends[0], out.head, sizeof out.head, &text), AQ_OK);
    in_flight = 0;
    for (int i = 0; i < FEW + 10; i++) { /* more than before */
        assert_int_equal(aq_pieces_write(ends[0], &iov, 1, 1, &put), AQ_OK);
        take_due(ends[0]);
        in_flight = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_stranger_has_a_small_window, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(test_a_lost_word_of_a_grown_window_is_made_up_for, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(test_an_end_waits_for_the_window, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(test_any_lost_datagrams_of_a_block_are_repaired, open_whole, close_ends),
        cmocka_unit_test_setup_teardown(test_a_lost_piece_is_repeated_alone, open_whole, close_ends),
        cmocka_unit_test_setup_teardown(test_the_end_is_repaired_too, open_whole, close_ends),
        cmocka_unit_test_setup_teardown(test_the_window_holds_the_writer, open_whole, close_ends),
        cmocka_unit_test_setup_teardown(test_parity_of_many_blocks_is_bounded, open_whole, close_ends),
        cmocka_unit_test_setup_teardown(test_hostile_datagrams_are_refused, open_whole, close_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
