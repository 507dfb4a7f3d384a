/*
 * test_hostile_reader.c -- what the reader of a link makes of frames that are wrong by one: a number, a rank, a byte.
 *
 * Every frame here has right digests: the peer is not broken, it misbehaves. What is right goes through in the same
 * test, so that a refusal is of the one thing that differs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "net/link.h"
#include "net_limits.h"
#include "reader.h"

enum { BODY_MAX = 3000, SLOTS = 2, FROM = 3, EDGE = 5, SENT = 7, HELD = 2 };
#define PLAN UINT64_C(0x99aabbccddeeff00)

struct bench {
    struct aq_reader reader;
    void *memory;
};

static int open_bench(void **state)
{
    static struct bench bench;
    struct aq_arena arena = {0};
    memset(&bench, 0, sizeof bench);
    aq_reader_place(&bench.reader, &arena, BODY_MAX, SLOTS, false);
    assert_int_equal(aq_alloc(arena.used, &bench.memory), AQ_OK);
    arena = (struct aq_arena){.base = bench.memory, .bytes = arena.used};
    aq_reader_place(&bench.reader, &arena, BODY_MAX, SLOTS, false);
    aq_reader_start(&bench.reader);
    bench.reader.from = FROM;
    bench.reader.edge = EDGE;
    bench.reader.plan_hash = PLAN;
    bench.reader.body_bytes_max = BODY_MAX;
    bench.reader.sent_sequence = SENT;
    bench.reader.credit_max = HELD;
    bench.reader.parts = true;
    *state = &bench;
    return 0;
}

static int close_bench(void **state)
{
    struct bench *bench = *state;
    aq_free(bench->memory);
    return 0;
}

/* A frame that is right: the next of this peer. */
static struct aq_header good(const struct bench *bench, uint16_t kind, uint32_t body_bytes)
{
    return (struct aq_header){.kind = kind,
                              .from = FROM,
                              .edge = EDGE,
                              .plan_hash = PLAN,
                              .sequence = bench->reader.sequence + 1,
                              .body_bytes = body_bytes};
}

/* What the reader says of it. */
static enum aq_status feed(struct bench *bench, struct aq_header header)
{
    static uint8_t bytes[AQ_FRAME_HEADER_BYTES + 4 * BODY_MAX];
    struct aq_reader_frame frame;
    struct iovec iov[2];
    enum aq_status status = AQ_AGAIN;
    memset(bytes, 'b', sizeof bytes);
    if (header.body_bytes > 0) header.body_digest = aq_digest(bytes + AQ_FRAME_HEADER_BYTES, header.body_bytes);
    aq_header_encode(&header, bytes);
    bench->reader.text[0] = 0;
    for (size_t at = 0, end = AQ_FRAME_HEADER_BYTES + header.body_bytes; at < end && status == AQ_AGAIN;) {
        aq_reader_room(&bench->reader, iov);
        const size_t left = at < AQ_FRAME_HEADER_BYTES ? AQ_FRAME_HEADER_BYTES - at : end - at;
        const size_t part = left < iov[0].iov_len ? left : iov[0].iov_len;
        memcpy(iov[0].iov_base, bytes + at, part);
        aq_reader_filled(&bench->reader, part);
        at += part;
        status = aq_reader_next(&bench->reader, &frame);
    }
    return status;
}

static void refused(struct bench *bench, struct aq_header header, enum aq_status wanted, const char *text)
{
    assert_int_equal(feed(bench, header), wanted);
    if (!strstr(bench->reader.text, text)) fail_msg("said \"%s\", not \"%s\"", bench->reader.text, text);
}

static void test_number_that_is_not_the_next_is_proto(void **state)
{
    struct bench *bench = *state;
    static const int64_t wrong[] = {-1, 0, 2, 3, 1000};
    assert_int_equal(feed(bench, good(bench, AQ_FRAME_CREDIT, 0)), AQ_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct aq_header header = good(bench, AQ_FRAME_CREDIT, 0);
        header.sequence = (uint64_t)(1 + wrong[i]);
        refused(bench, header, AQ_PROTO, "where 2 was expected");
        aq_reader_cut(&bench->reader);
    }
    assert_int_equal(feed(bench, good(bench, AQ_FRAME_CREDIT, 0)), AQ_OK);
}

static void test_credits_beyond_what_it_holds_are_proto(void **state)
{
    struct bench *bench = *state;
    struct aq_header header = good(bench, AQ_FRAME_CREDIT, 0);
    header.credit = HELD + 1;
    refused(bench, header, AQ_PROTO, "gives back 3 credits, but holds only 2");
    aq_reader_cut(&bench->reader);
    header.credit = HELD;
    assert_int_equal(feed(bench, header), AQ_OK);
}

static void test_acknowledging_what_was_not_sent_is_proto(void **state)
{
    struct bench *bench = *state;
    struct aq_header header = good(bench, AQ_FRAME_CREDIT, 0);
    header.acknowledge = SENT + 1;
    refused(bench, header, AQ_PROTO, "acknowledges frame 8, but only 7 were sent");
    aq_reader_cut(&bench->reader);
    header.acknowledge = SENT;
    assert_int_equal(feed(bench, header), AQ_OK);
}

static void test_other_rank_edge_or_plan_is_mismatch(void **state)
{
    struct bench *bench = *state;
    struct aq_header header = good(bench, AQ_FRAME_PING, 0);
    header.from++;
    refused(bench, header, AQ_MISMATCH, "another rank");
    aq_reader_cut(&bench->reader);
    header = good(bench, AQ_FRAME_PING, 0);
    header.edge--;
    refused(bench, header, AQ_MISMATCH, "another edge");
    aq_reader_cut(&bench->reader);
    header = good(bench, AQ_FRAME_PING, 0);
    header.plan_hash ^= 1;
    refused(bench, header, AQ_MISMATCH, "another plan hash");
}

static void test_hello_after_the_handshake_is_proto(void **state)
{
    struct bench *bench = *state;
    refused(bench, good(bench, AQ_FRAME_HELLO, 0), AQ_PROTO, "sent a HELLO after the handshake");
}

static void test_body_one_byte_too_long_is_proto(void **state)
{
    struct bench *bench = *state;
    refused(bench, good(bench, AQ_FRAME_FORWARD, BODY_MAX + 1), AQ_PROTO, "a body of 3001 bytes; the limit is 3000");
    aq_reader_cut(&bench->reader);
    refused(bench, good(bench, AQ_FRAME_CREDIT, 1), AQ_PROTO, "a body of 1 bytes; the limit is 0");
    aq_reader_cut(&bench->reader);
    refused(bench, good(bench, AQ_FRAME_ABORT, AQ_FRAME_CONTROL_BYTES_MAX + 1), AQ_PROTO, "the limit is");
    aq_reader_cut(&bench->reader);
    assert_int_equal(feed(bench, good(bench, AQ_FRAME_FORWARD, BODY_MAX)), AQ_OK);
}

/* Even of one byte: a slot is a slot. */
static void test_body_without_a_slot_is_proto(void **state)
{
    struct bench *bench = *state;
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(feed(bench, good(bench, AQ_FRAME_FORWARD, 1)), AQ_OK);
    refused(bench, good(bench, AQ_FRAME_FORWARD, 1), AQ_PROTO, "without a credit");
    aq_reader_cut(&bench->reader);
    aq_reader_release(&bench->reader, 0);
    assert_int_equal(feed(bench, good(bench, AQ_FRAME_FORWARD, 1)), AQ_OK);
}

/* A body that its sender cut, again and again: each time its slot is free again. */
static void test_cut_body_gives_its_slot_back(void **state)
{
    struct bench *bench = *state;
    enum { LARGE = 3 * AQ_FRAME_PART_BYTES };
    static uint8_t body[LARGE], gap[AQ_FRAME_GAP_BYTES], header_bytes[AQ_FRAME_HEADER_BYTES];
    struct aq_reader reader = {0};
    struct aq_arena arena = {0};
    struct aq_reader_frame frame;
    void *memory;
    (void)bench;
    aq_reader_place(&reader, &arena, LARGE, SLOTS, false);
    assert_int_equal(aq_alloc(arena.used, &memory), AQ_OK);
    arena = (struct aq_arena){.base = memory, .bytes = arena.used};
    aq_reader_place(&reader, &arena, LARGE, SLOTS, false);
    aq_reader_start(&reader);
    reader.body_bytes_max = LARGE;
    reader.parts = true;
    const struct aq_header header = {.kind = AQ_FRAME_FORWARD,
                                     .sequence = 1,
                                     .body_bytes = LARGE,
                                     .part_bytes = AQ_FRAME_PART_BYTES,
                                     .body_digest = aq_digest(body, LARGE)};
    const struct aq_gap cut = {.cut = true};
    aq_header_encode(&header, header_bytes);
    aq_gap_encode(&cut, 1, gap);
    const struct iovec pieces[3] = {
        {header_bytes, sizeof header_bytes}, {body, AQ_FRAME_PART_BYTES}, {gap, sizeof gap}};
    enum aq_status status = AQ_AGAIN;
    for (int p = 0; p < 3; p++)
        for (size_t at = 0; at < pieces[p].iov_len;) {
            struct iovec iov[2];
            aq_reader_room(&reader, iov);
            const size_t left = pieces[p].iov_len - at, part = left < iov[0].iov_len ? left : iov[0].iov_len;
            memcpy(iov[0].iov_base, (const uint8_t *)pieces[p].iov_base + at, part);
            aq_reader_filled(&reader, part);
            at += part;
            status = aq_reader_next(&reader, &frame);
        }
    assert_int_equal(status, AQ_OK);
    assert_int_equal(frame.header.kind, AQ_FRAME_CREDIT);
    assert_int_equal(reader.slot_free_count, SLOTS);
    aq_free(memory);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_number_that_is_not_the_next_is_proto),
        TEST(test_credits_beyond_what_it_holds_are_proto),
        TEST(test_acknowledging_what_was_not_sent_is_proto),
        TEST(test_other_rank_edge_or_plan_is_mismatch),
        TEST(test_hello_after_the_handshake_is_proto),
        TEST(test_body_one_byte_too_long_is_proto),
        TEST(test_body_without_a_slot_is_proto),
        TEST(test_cut_body_gives_its_slot_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
