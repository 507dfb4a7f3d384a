/*
 * test_frame.c -- the bytes of docs/FRAME.md: golden header and HELLO, round trips, and every reserved byte and broken
 * bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "net/link.h"
#include "reader.h"

static const struct aq_header SAMPLE = {.version = 1,
                                        .kind = AQ_FRAME_FORWARD,
                                        .flags = 0x1234,
                                        .body_bytes = 0x01020304,
                                        .from = 2,
                                        .edge = 1,
                                        .plan_hash = 0x1122334455667788,
                                        .sequence = 5,
                                        .acknowledge = 4,
                                        .credit = 3,
                                        .micro_batch = 7,
                                        .step = 0x0a0b0c0d,
                                        .argument = 0xfffffffffffffffe,
                                        .body_digest = 0xdeadbeefcafef00d};

/* Frozen with version 1: these bytes must never change. */
static const uint8_t GOLDEN[AQ_FRAME_HEADER_BYTES] = {
    'A',  'Q',  'P',  'F',  1, 0,    16,   0,    0x34, 0x12, 0,    0,    4,    3,    2,    1,    2,    0,    0,
    0,    1,    0,    0,    0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 5,    0,    0,    0,    0,    0,
    0,    0,    4,    0,    0, 0,    0,    0,    0,    0,    3,    0,    0,    0,    7,    0,    0,    0,    0x0d,
    0x0c, 0x0b, 0x0a, 0,    0, 0,    0,    0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0d, 0xf0, 0xfe, 0xca,
    0xef, 0xbe, 0xad, 0xde, 0, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
    0,    0,    0,    0,    0, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,
    0,    0,    0,    0,    0, 0,    0xca, 0xe5, 0xf0, 0x3c, 0x91, 0x1c, 0x11, 0x5e};

static void test_header_encode_is_golden(void **state)
{
    uint8_t bytes[AQ_FRAME_HEADER_BYTES];
    (void)state;
    aq_header_encode(&SAMPLE, bytes);
    assert_memory_equal(bytes, GOLDEN, sizeof bytes);
}

static void test_header_decode_golden_gives_the_fields(void **state)
{
    struct aq_header out = {0};
    char text[AQ_TEXT_BYTES];
    (void)state;
    uint8_t again[AQ_FRAME_HEADER_BYTES];
    assert_int_equal(aq_header_decode(GOLDEN, &out, text), AQ_OK);
    aq_header_encode(&out, again); /* the struct has padding, its bytes have none */
    assert_memory_equal(again, GOLDEN, sizeof again);
    assert_int_equal(out.plan_hash, SAMPLE.plan_hash);
    assert_int_equal(out.body_bytes, SAMPLE.body_bytes);
}

static void test_header_any_bit_flipped_is_refused(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 8 * AQ_FRAME_HEADER_BYTES; bit++) {
        uint8_t bytes[AQ_FRAME_HEADER_BYTES];
        struct aq_header out;
        char text[AQ_TEXT_BYTES] = "";
        memcpy(bytes, GOLDEN, sizeof bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        const enum aq_status status = aq_header_decode(bytes, &out, text);
        assert_int_equal(status, bit < 32 ? AQ_PROTO : bit < 48 ? AQ_MISMATCH : AQ_CORRUPT);
        assert_true(text[0] != '\0');
    }
}

/* A packed one: where the bytes differ, and that it comes back. */
static void test_header_packed_is_golden(void **state)
{
    struct aq_header in = SAMPLE, out = {0};
    uint8_t bytes[AQ_FRAME_HEADER_BYTES], wanted[AQ_FRAME_HEADER_BYTES];
    char text[AQ_TEXT_BYTES];
    (void)state;
    in.raw_bytes = 0x01020305;
    aq_header_encode(&in, bytes);
    memcpy(wanted, GOLDEN, sizeof wanted);
    wanted[10] = 1;
    memcpy(wanted + 80, (const uint8_t[]){5, 3, 2, 1}, 4);
    memcpy(wanted + 120, (const uint8_t[]){0x50, 0x66, 0xba, 0x71, 0x0c, 0xbb, 0xbc, 0xc2}, 8);
    assert_memory_equal(bytes, wanted, sizeof bytes);
    assert_int_equal(aq_header_decode(bytes, &out, text), AQ_OK);
    assert_int_equal(out.raw_bytes, in.raw_bytes);
    assert_int_equal(out.body_bytes, in.body_bytes);
    in.kind = AQ_FRAME_ABORT; /* the link's own are never packed */
    in.flags = 0;
    in.micro_batch = 0;
    in.step = 0;
    aq_header_encode(&in, bytes);
    assert_int_equal(aq_header_decode(bytes, &out, text), AQ_PROTO);
}

/* In parts: where the bytes differ, that it comes back, and what no header may say. */
static void test_header_in_parts_is_golden(void **state)
{
    struct aq_header in = SAMPLE, out = {0};
    uint8_t bytes[AQ_FRAME_HEADER_BYTES], wanted[AQ_FRAME_HEADER_BYTES];
    char text[AQ_TEXT_BYTES];
    (void)state;
    in.part_bytes = 0x2d40;
    aq_header_encode(&in, bytes);
    memcpy(wanted, GOLDEN, sizeof wanted);
    memcpy(wanted + 84, (const uint8_t[]){0x40, 0x2d}, 2);
    memcpy(wanted + 120, (const uint8_t[]){0x20, 0x06, 0xf6, 0xd5, 0xbb, 0x3a, 0xb1, 0xb3}, 8);
    assert_memory_equal(bytes, wanted, sizeof bytes);
    assert_int_equal(aq_header_decode(bytes, &out, text), AQ_OK);
    assert_int_equal(out.part_bytes, in.part_bytes);
    static const uint32_t WRONG[] = {1, AQ_FRAME_PART_BYTES - 1, 0x01020304, UINT32_MAX};
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        in.part_bytes = WRONG[i];
        aq_header_encode(&in, bytes);
        assert_int_equal(aq_header_decode(bytes, &out, text), AQ_PROTO);
        assert_non_null(strstr(text, "in parts of"));
    }
    in = (struct aq_header){.kind = AQ_FRAME_ABORT, .body_bytes = 4000, .body_digest = 1, .part_bytes = 2000};
    aq_header_encode(&in, bytes); /* the link's own come as a whole */
    assert_int_equal(aq_header_decode(bytes, &out, text), AQ_PROTO);
}

static void test_gap_is_golden_and_any_bit_flipped_is_corrupt(void **state)
{
    static const uint8_t WANTED[AQ_FRAME_GAP_BYTES] = {9, 8, 7, 6, 5,    4,    3,    2,    4,    3,    2,    1,
                                                       1, 0, 0, 0, 0x5f, 0x48, 0xf9, 0x2b, 0xb7, 0x48, 0xc8, 0x8f};
    const struct aq_gap in = {.acknowledge = 0x0203040506070809, .credit = 0x01020304, .cut = true};
    struct aq_gap out = {0};
    uint8_t bytes[AQ_FRAME_GAP_BYTES];
    char text[AQ_TEXT_BYTES];
    (void)state;
    aq_gap_encode(&in, 5, bytes);
    assert_memory_equal(bytes, WANTED, sizeof bytes);
    assert_int_equal(aq_gap_decode(bytes, 5, &out, text), AQ_OK);
    assert_int_equal(out.acknowledge, in.acknowledge);
    assert_int_equal(out.credit, in.credit);
    assert_true(out.cut);
    assert_int_equal(aq_gap_decode(bytes, 6, &out, text), AQ_CORRUPT); /* of another frame */
    for (unsigned bit = 0; bit < 8 * AQ_FRAME_GAP_BYTES; bit++) {
        aq_gap_encode(&in, 5, bytes);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_int_equal(aq_gap_decode(bytes, 5, &out, text), AQ_CORRUPT);
        const uint64_t digest = aq_digest_seeded(bytes, AQ_FRAME_GAP_DIGEST_OFFSET, 5);
        for (int i = 0; i < 8; i++)
            bytes[AQ_FRAME_GAP_DIGEST_OFFSET + i] = (uint8_t)(digest >> (8 * i));
        const bool unknown = bit > 96 && bit < 128; /* flags but the first: zero */
        assert_int_equal(aq_gap_decode(bytes, 5, &out, text), unknown ? AQ_PROTO : AQ_OK);
    }
}

/* The digest made right again: what is reserved must still be zero, and a kind known. */
static void reseal(uint8_t bytes[AQ_FRAME_HEADER_BYTES])
{
    const uint64_t digest = aq_digest(bytes, AQ_FRAME_DIGEST_OFFSET);
    for (int i = 0; i < 8; i++)
        bytes[AQ_FRAME_DIGEST_OFFSET + i] = (uint8_t)(digest >> (8 * i));
}

static void test_header_reserved_bytes_not_zero_are_proto(void **state)
{
    static const int RESERVED[][2] = {{10, 12}, {80, 84}, {88, 120}};
    (void)state;
    for (size_t range = 0; range < sizeof RESERVED / sizeof *RESERVED; range++)
        for (int at = RESERVED[range][0]; at < RESERVED[range][1]; at++) {
            uint8_t bytes[AQ_FRAME_HEADER_BYTES];
            struct aq_header out;
            char text[AQ_TEXT_BYTES];
            memcpy(bytes, GOLDEN, sizeof bytes);
            bytes[at] = 1;
            reseal(bytes);
            assert_int_equal(aq_header_decode(bytes, &out, text), AQ_PROTO);
            assert_non_null(strstr(text, "reserved"));
        }
}

static void test_header_unknown_kind_is_proto(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 65536; kind++) {
        uint8_t bytes[AQ_FRAME_HEADER_BYTES];
        struct aq_header out;
        char text[AQ_TEXT_BYTES];
        const struct aq_header header = {.kind = (uint16_t)kind};
        const bool known = (kind >= 1 && kind <= 6) || (kind >= 16 && kind <= 31);
        aq_header_encode(&header, bytes);
        assert_int_equal(aq_header_decode(bytes, &out, text), known ? AQ_OK : AQ_PROTO);
    }
}

static void test_header_other_version_names_both(void **state)
{
    uint8_t bytes[AQ_FRAME_HEADER_BYTES];
    struct aq_header out;
    char text[AQ_TEXT_BYTES];
    (void)state;
    memcpy(bytes, GOLDEN, sizeof bytes);
    bytes[4] = 9;
    assert_int_equal(aq_header_decode(bytes, &out, text), AQ_MISMATCH);
    assert_non_null(strstr(text, "version 9"));
    assert_non_null(strstr(text, "version 1"));
}

static void test_hello_round_trip_and_reserved(void **state)
{
    const struct aq_hello in = {
        .job_digest = 1, .plan_hash = 2, .rank = 3, .peer_rank = 4, .edge = 5, .body_bytes_max = 6, .receive_slots = 7};
    uint8_t bytes[AQ_FRAME_HELLO_BYTES];
    struct aq_hello out = {0};
    char text[AQ_TEXT_BYTES];
    (void)state;
    aq_hello_encode(&in, bytes);
    assert_int_equal(bytes[28], 6);
    assert_int_equal(aq_hello_decode(bytes, &out, text), AQ_OK);
    uint8_t again[AQ_FRAME_HELLO_BYTES];
    aq_hello_encode(&out, again);
    assert_memory_equal(again, bytes, sizeof again);
    assert_int_equal(out.receive_slots, 7);
    for (int at = 36; at < AQ_FRAME_HELLO_BYTES; at++) {
        aq_hello_encode(&in, bytes);
        bytes[at] = 8; /* bits 0 to 2 of byte 36 are the features that there are */
        assert_int_equal(aq_hello_decode(bytes, &out, text), AQ_PROTO);
    }
    struct aq_hello resumes = in;
    resumes.features = AQ_FEATURE_HEAL;
    resumes.session = 0x0102030405060708;
    resumes.resume_sequence = 9;
    aq_hello_encode(&resumes, bytes);
    assert_int_equal(bytes[36], AQ_FEATURE_HEAL);
    assert_int_equal(bytes[40], 8);
    assert_int_equal(bytes[48], 9);
    assert_int_equal(aq_hello_decode(bytes, &out, text), AQ_OK);
    assert_int_equal(out.session, resumes.session);
    assert_int_equal(out.resume_sequence, 9);
    resumes.session = 0; /* a place, but of which link? */
    aq_hello_encode(&resumes, bytes);
    assert_int_equal(aq_hello_decode(bytes, &out, text), AQ_PROTO);
}

static void test_abort_any_body_gives_a_printable_line(void **state)
{
    uint8_t body[AQ_FRAME_CONTROL_BYTES_MAX];
    char text[AQ_TEXT_BYTES];
    (void)state;
    const uint32_t bytes = aq_abort_encode(AQ_NOSPC, "disk full", body);
    assert_int_equal(aq_abort_decode(body, bytes, text), AQ_NOSPC);
    assert_string_equal(text, "disk full");
    assert_int_equal(aq_abort_decode(body, 3, text), AQ_ABORTED);
    memset(body, 7, sizeof body);
    assert_int_equal(aq_abort_decode(body, sizeof body, text), AQ_ABORTED);
    assert_int_equal(strlen(text), AQ_TEXT_BYTES - 1);
    for (const char *at = text; *at; at++)
        assert_int_equal(*at, '.');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header_encode_is_golden),
        cmocka_unit_test(test_header_decode_golden_gives_the_fields),
        cmocka_unit_test(test_header_packed_is_golden),
        cmocka_unit_test(test_header_in_parts_is_golden),
        cmocka_unit_test(test_gap_is_golden_and_any_bit_flipped_is_corrupt),
        cmocka_unit_test(test_header_any_bit_flipped_is_refused),
        cmocka_unit_test(test_header_reserved_bytes_not_zero_are_proto),
        cmocka_unit_test(test_header_unknown_kind_is_proto),
        cmocka_unit_test(test_header_other_version_names_both),
        cmocka_unit_test(test_hello_round_trip_and_reserved),
        cmocka_unit_test(test_abort_any_body_gives_a_printable_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
