/*
 * test_base.c -- the vocabulary: statuses, memory, rings and event counts, Philox, digests, 16-bit floats, traces,
 * places at a door.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "sample.h"
#include "virtual_clock.h"

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    snprintf(context, 256, "%s", line);
}

static void test_status_held_errors_are_their_holders(void **state)
{
    (void)state;
    char line[256] = "";
    struct aq_error_hold outer, inner;
    aq_log_sink(quiet, line);
    aq_error_clear();
    aq_error_hold(&outer);
    assert_int_equal(aq_fail(AQ_MISMATCH, "test", "found %d", 7), AQ_MISMATCH);
    aq_error_hold(&inner);
    (void)aq_fail(AQ_IO, "test", "deeper");
    aq_error_release(&inner);
    (void)aq_fail(AQ_IO, "test", "later");
    aq_error_release(&outer);
    assert_string_equal(inner.text, "deeper");
    assert_string_equal(outer.text, "found 7");
    assert_string_equal(line, "");
    assert_string_equal(aq_error_text(), "");
    (void)aq_fail(AQ_IO, "test", "said");
    assert_non_null(strstr(line, "said"));
    assert_string_equal(aq_error_text(), "said");
    aq_error_clear();
    aq_log_sink(NULL, NULL);
}

static void test_status_first_error_is_kept(void **state)
{
    (void)state;
    char line[256] = "";
    aq_log_sink(quiet, line);
    aq_error_clear();
    assert_int_equal(aq_fail(AQ_AGAIN, "test", "never shown"), AQ_AGAIN);
    assert_string_equal(aq_error_text(), "");
    assert_int_equal(aq_fail(AQ_CORRUPT, "test", "slab %d\nis broken", 7), AQ_CORRUPT);
    assert_int_equal(aq_fail(AQ_IO, "test", "later"), AQ_IO);
    assert_string_equal(aq_error_text(), "slab 7\nis broken");
    assert_null(strchr(line, '\n'));
    aq_error_clear();
    aq_log_sink(NULL, NULL);
    for (int s = 0; s < AQ_STATUS_COUNT; s++)
        assert_true(strlen(aq_status_text((enum aq_status)s)) > 1);
    assert_string_equal(aq_status_text((enum aq_status)1234), "unknown status");
}

static void test_memory_counts_and_fails_on_demand(void **state)
{
    (void)state;
    char line[256];
    aq_log_sink(quiet, line);
    const uint64_t before = aq_memory_used();
    void *a, *b;
    assert_int_equal(aq_alloc(100, &a), AQ_OK);
    assert_int_equal((uintptr_t)a % AQ_ALIGN, 0);
    assert_int_equal(aq_map(5 << 20, &b), AQ_OK);
    assert_true(aq_memory_used() >= before + 100 + (5 << 20));
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(((uint8_t *)a)[i], 0);
    aq_free(a);
    aq_unmap(b, 5 << 20);
    assert_int_equal(aq_memory_used(), before);
    aq_memory_fail_at(2);
    assert_int_equal(aq_alloc(1, &a), AQ_OK);
    assert_int_equal(aq_alloc(1, &b), AQ_NOMEM);
    assert_int_equal(aq_alloc(1, &b), AQ_OK);
    aq_free(a);
    aq_free(b);
    assert_int_equal(aq_alloc(SIZE_MAX, &b), AQ_NOMEM);
    aq_log_sink(NULL, NULL);
    aq_error_clear();
}

/* Small and large blocks are the same, whatever was in their memory before. */
static void test_memory_is_aligned_and_zeroed_at_every_size(void **state)
{
    (void)state;
    const uint64_t before = aq_memory_used();
    for (int again = 0; again < 3; again++)
        for (size_t bytes = 1; bytes < 1 << 20; bytes = bytes * 5 / 3 + 1) {
            uint8_t *memory;
            assert_int_equal(AQ_NEW(bytes, &memory), AQ_OK);
            assert_int_equal((uintptr_t)memory % AQ_ALIGN, 0);
            for (size_t i = 0; i < bytes; i++)
                if (memory[i] != 0) fail_msg("byte %zu of %zu is %u", i, bytes, memory[i]);
            memset(memory, 0xa5, bytes);
            aq_free(memory);
        }
    assert_int_equal(aq_memory_used(), before);
}

/* A large block takes page faults only where it is used. */
static void test_memory_of_a_large_block_is_not_touched(void **state)
{
    (void)state;
    enum { BYTES = 64 << 20, PAGE = 4096 }; /* more than malloc ever keeps for later */
    struct rusage begin, end;
    uint8_t *memory;
    assert_int_equal(getrusage(RUSAGE_SELF, &begin), 0);
    assert_int_equal(AQ_NEW(BYTES, &memory), AQ_OK);
    memory[BYTES - 1] = 1;
    assert_int_equal(getrusage(RUSAGE_SELF, &end), 0);
    aq_free(memory);
    if (!sample_sanitized()) assert_in_range(end.ru_minflt - begin.ru_minflt, 0, BYTES / PAGE / 10);
}

static void test_arena_measures_what_it_places(void **state)
{
    (void)state;
    struct aq_arena measure = {0};
    assert_null(aq_arena_take(&measure, 10));
    assert_null(aq_arena_take(&measure, 100));
    void *memory;
    assert_int_equal(aq_map(measure.used, &memory), AQ_OK);
    struct aq_arena place = {.base = memory, .bytes = measure.used};
    assert_ptr_equal(aq_arena_take(&place, 10), memory);
    assert_ptr_equal(aq_arena_take(&place, 100), (uint8_t *)memory + 64);
    aq_unmap(memory, measure.used);
}

enum { TOKENS = 200000 };
struct passing {
    struct aq_ring *ring;
    struct aq_eventcount *filled, *emptied;
};

static void producer(void *context)
{
    struct passing *p = context;
    for (uint64_t i = 0; i < TOKENS; i++) {
        for (;;) {
            const uint32_t seen = aq_eventcount_read(p->emptied);
            if (aq_ring_push(p->ring, i)) break;
            aq_eventcount_wait(p->emptied, seen, AQ_NEVER);
        }
        aq_eventcount_notify(p->filled);
    }
}

static void test_ring_passes_every_token_in_order(void **state)
{
    (void)state;
    struct passing p;
    struct aq_thread *thread;
    assert_int_equal(aq_ring_open(8, &p.ring), AQ_OK);
    assert_int_equal(aq_eventcount_open(&p.filled), AQ_OK);
    assert_int_equal(aq_eventcount_open(&p.emptied), AQ_OK);
    assert_int_equal(aq_thread_open("producer", producer, &p, &thread), AQ_OK);
    for (uint64_t i = 0; i < TOKENS; i++) {
        uint64_t token;
        for (;;) {
            const uint32_t seen = aq_eventcount_read(p.filled);
            if (aq_ring_pop(p.ring, &token)) break;
            assert_int_equal(aq_eventcount_wait(p.filled, seen, aq_clock_after(120000000000u)), AQ_OK);
        }
        aq_eventcount_notify(p.emptied);
        assert_int_equal(token, i);
    }
    aq_thread_close(thread);
    assert_int_equal(aq_ring_count(p.ring), 0);
    const uint64_t soon = aq_clock_after(2000000);
    assert_int_equal(aq_eventcount_wait(p.filled, aq_eventcount_read(p.filled), soon), AQ_TIMEOUT);
    assert_true(aq_clock_ns() >= soon);
    aq_ring_close(p.ring);
    aq_eventcount_close(p.filled);
    aq_eventcount_close(p.emptied);
}

/* Known answers of Philox4x32-10: Random123's kat_vectors. */
static void test_philox_known_answers(void **state)
{
    (void)state;
    uint32_t out[4];
    struct aq_rng_key zero = {{0, 0}, {0, 0}};
    aq_rng_block(&zero, 0, out);
    const uint32_t want0[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    assert_memory_equal(out, want0, sizeof out);
    struct aq_rng_key ones = {{UINT32_MAX, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
    aq_rng_block(&ones, UINT64_MAX, out);
    const uint32_t want1[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    assert_memory_equal(out, want1, sizeof out);
    struct aq_rng_key pi = {{0xa4093822, 0x299f31d0}, {0x13198a2e, 0x03707344}};
    aq_rng_block(&pi, 0x85a308d3243f6a88u, out);
    const uint32_t want2[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    assert_memory_equal(out, want2, sizeof out);
}

static void test_rng_is_uniform_and_normal(void **state)
{
    (void)state;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 2, 3);
    double sum = 0, square = 0, normal = 0, normal2 = 0;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        const double u = (double)aq_rng_uniform(&key, i), z = (double)aq_rng_normal(&key, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        square += u * u;
        normal += z;
        normal2 += z * z;
        assert_true(aq_rng_below(&key, i, 7) < 7);
    }
    assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(square / N - 1.0 / 3) < 5 * 0.2981 / sqrt(N));
    assert_true(fabs(normal / N) < 5 / sqrt(N));
    assert_true(fabs(normal2 / N - 1) < 5 * 1.4142 / sqrt(N));
    const struct aq_rng_key other = aq_rng_key(1, AQ_RNG_TEST, 3, 2);
    assert_true(memcmp(&key, &other, sizeof key) != 0);
}

static void test_half_round_trips_and_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = aq_half_to_float((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(aq_half_to_float(aq_half_from_float(f))));
            continue;
        }
        assert_int_equal(aq_half_from_float(f), h);
        const float b = aq_bfloat_to_float((uint16_t)h);
        if (!isnan(b)) assert_int_equal(aq_bfloat_from_float(b), h);
    }
    assert_int_equal(aq_half_from_float(65519.996f), 0x7bff);
    assert_int_equal(aq_half_from_float(65520.0f), 0x7c00);
    assert_int_equal(aq_half_from_float(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(aq_half_from_float(1.0f + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(aq_half_from_float(0x1p-25f), 0);
    assert_int_equal(aq_half_from_float(1.5f * 0x1p-24f), 2);
    assert_int_equal(aq_bfloat_from_float(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(aq_bfloat_from_float(1.0f + 3 * 0x1p-8f), 0x3f82);
}

static void test_digest_known_answer(void **state)
{
    (void)state;
    assert_int_equal(aq_digest("", 0), 0x2d06800538d394c2u); /* XXH3_64bits of nothing, as published */
    assert_int_not_equal(aq_digest("a", 1), aq_digest_seeded("a", 1, 1));
}

static void test_trace_writes_json_and_counts_drops(void **state)
{
    (void)state;
    struct aq_trace *trace;
    assert_int_equal(aq_trace_open(2, &trace), AQ_OK);
    for (uint32_t i = 0; i < 3; i++)
        aq_trace_add(trace, "compute", "forward", 1000 + i, 3000 + i, 1, i);
    assert_int_equal(aq_trace_dropped(trace), 1);
    FILE *file = tmpfile();
    assert_int_equal(aq_trace_write(trace, 3, 1000, file), AQ_OK);
    rewind(file);
    char line[512];
    int lines = 0;
    while (fgets(line, sizeof line, file))
        lines++;
    assert_int_equal(lines, 5); /* two spans that overlap, in two rows, which have names, and the process's name */
    assert_non_null(strstr(line, "\"name\":\"compute 2\""));
    fclose(file);
    aq_trace_close(trace);
    aq_trace_add(NULL, "compute", "forward", 0, 1, 0, 0);
}

/* Spans of one row follow each other or lie within each other, and none is shorter than nothing. */
/* Viewers drop what has a negative time: nothing does. */
static void test_trace_begins_at_zero(void **state)
{
    (void)state;
    struct aq_trace *trace;
    char text[1024];
    assert_int_equal(aq_trace_open(3, &trace), AQ_OK);
    aq_trace_add(trace, "recv", "early", 1000, 1999, 0, 0);
    aq_trace_add(trace, "recv", "across", 1000, 5000, 0, 0);
    aq_trace_add(trace, "recv", "late", 6000, 7000, 0, 0);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(aq_trace_write(trace, 0, 2000, file), AQ_OK);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    assert_null(strstr(text, "early"));
    assert_non_null(strstr(text, "\"name\":\"across\",\"cat\":\"recv\",\"pid\":0,"
                                 "\"tid\":1,\"ts\":0.000,\"dur\":3.000"));
    assert_non_null(strstr(text, "\"name\":\"late\",\"cat\":\"recv\",\"pid\":0,"
                                 "\"tid\":1,\"ts\":4.000,\"dur\":1.000"));
    fclose(file);
    aq_trace_close(trace);
}

static void test_trace_rows_are_calls(void **state)
{
    (void)state;
    static const struct {
        const char *lane;
        uint64_t begin, end;
        const char *row; /* as the viewer numbers them */
    } spans[] = {
        {"send", 10, 30, "3"},    {"send", 20, 40, "4"},    {"send", 30, 35, "3"},    {"send", 35, 50, "3"},
        {"compute", 0, 100, "1"}, {"compute", 10, 60, "1"}, {"compute", 50, 70, "2"}, {"compute", 60, 60, "1"},
        {"compute", 90, 20, "1"}, /* its end was read before its begin */
    };
    enum { COUNT = sizeof spans / sizeof spans[0] };
    struct aq_trace *trace;
    char line[512], want[160];
    assert_int_equal(aq_trace_open(COUNT, &trace), AQ_OK);
    for (uint32_t i = 0; i < COUNT; i++)
        aq_trace_add(trace, spans[i].lane, "x", 1000 * spans[i].begin, 1000 * spans[i].end, i, 0);
    FILE *file = tmpfile();
    assert_int_equal(aq_trace_write(trace, 0, 0, file), AQ_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
        bool found = false;
        snprintf(want, sizeof want, "\"step\":%u,", i);
        rewind(file);
        while (!found && fgets(line, sizeof line, file))
            found = strstr(line, want) != NULL;
        assert_true(found);
        snprintf(want, sizeof want, "\"tid\":%s,\"ts\":%u.000,\"dur\":%u.000", spans[i].row, (unsigned)spans[i].begin,
                 spans[i].end > spans[i].begin ? (unsigned)(spans[i].end - spans[i].begin) : 0);
        if (!strstr(line, want)) fail_msg("span %u: no %s in %s", i, want, line);
    }
    fclose(file);
    aq_trace_close(trace);
}

enum { PLACES = 8, AGED = 1000000000 };

static void guest(struct aq_guest *at, enum aq_guest_state state, uint64_t source, uint64_t since_ns)
{
    *at = (struct aq_guest){.state = state, .source = source, .since_ns = since_ns};
}

static void test_source_is_an_address_or_a_network(void **state)
{
    (void)state;
    static const uint8_t four[] = {192, 0, 2, 1}, other[] = {192, 0, 2, 2};
    static const uint8_t mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 192, [14] = 2, [15] = 1};
    uint8_t six[2][16] = {{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 7}, {0x20, 1, 0x0d, 0xb8, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8}};
    assert_true(aq_source_of(four, 4) != aq_source_of(other, 4));
    assert_true(aq_source_of(four, 4) == aq_source_of(mapped, 16));
    assert_true(aq_source_of(six[0], 16) == aq_source_of(six[1], 16));
    six[1][7] = 8;
    assert_true(aq_source_of(six[0], 16) != aq_source_of(six[1], 16));
    assert_true(aq_source_of(six[0], 16) != aq_source_of(four, 4));
    assert_true(aq_source_of("no address", 10) == 0);
}

static void test_admission_one_source_has_half_of_the_places(void **state)
{
    (void)state;
    struct aq_guest guests[PLACES] = {{0}};
    for (uint32_t i = 0; i < PLACES / 2; i++) {
        assert_int_equal(aq_admit(guests, PLACES, 7, i), i);
        guest(&guests[i], AQ_GUEST_UNPROVED, 7, i);
    }
    /* Its half is taken: the newcomer goes, until the first of them has had its time. */
    assert_int_equal(aq_admit(guests, PLACES, 7, AGED - 1), AQ_ADMISSION_REFUSED);
    assert_int_equal(aq_admit(guests, PLACES, 7, AGED), 0);
    guests[0].state = AQ_GUEST_PROVED;
    assert_int_equal(aq_admit(guests, PLACES, 7, AGED), AQ_ADMISSION_REFUSED);
    assert_int_equal(aq_admit(guests, PLACES, 7, AGED + 1), 1);
    /* The other half is there for others. */
    assert_int_equal(aq_admit(guests, PLACES, 8, AGED), PLACES / 2);
}

static void test_admission_newcomers_of_crowded_sources_go_first(void **state)
{
    (void)state;
    struct aq_guest guests[PLACES];
    for (uint32_t i = 0; i < PLACES; i++) /* 0 to 2 of source 1, 3 to 6 of source 2, the last of source 3 */
        guest(&guests[i], AQ_GUEST_UNPROVED, i < 3 ? 1 : i < 7 ? 2 : 3, 100 + i);
    assert_int_equal(aq_admit(guests, PLACES, 4, 200), 6); /* the latest of the four */
    guests[6].state = AQ_GUEST_PROVED;
    assert_int_equal(aq_admit(guests, PLACES, 4, 200), 5); /* who has proved itself stays */
    assert_int_equal(aq_admit(guests, PLACES, 3, 200), 5); /* two of source 3 then, against four */
    assert_int_equal(aq_admit(guests, PLACES, 2, 200), AQ_ADMISSION_REFUSED);
    assert_int_equal(aq_admit(guests, PLACES, 1, 200), AQ_ADMISSION_REFUSED); /* four as well: it comes last */
    assert_int_equal(aq_admit(guests, PLACES, 4, 103 + AGED), 3);             /* who has had its time goes before */
}

static void test_admission_many_sources_take_turns_and_proved_stay(void **state)
{
    (void)state;
    struct aq_guest guests[PLACES];
    for (uint32_t i = 0; i < PLACES; i++)
        guest(&guests[i], AQ_GUEST_UNPROVED, 10 + i, 100 + i);
    assert_int_equal(aq_admit(guests, PLACES, 4, 200), AQ_ADMISSION_REFUSED);
    assert_int_equal(aq_admit(guests, PLACES, 4, 100 + AGED), 0);
    for (uint32_t i = 0; i < PLACES; i++)
        guests[i].state = AQ_GUEST_PROVED;
    assert_int_equal(aq_admit(guests, PLACES, 4, 9ull * AGED), AQ_ADMISSION_REFUSED);
    guests[5].state = AQ_GUEST_NONE;
    assert_int_equal(aq_admit(guests, PLACES, 4, 9ull * AGED), 5);
}

/* What a peer may send, and what a terminal gets of it. */
static const struct {
    const char *text;
    size_t count;
    const char *shown;
} nasty[] = {
#define NASTY(text, shown)                                                                                             \
    {                                                                                                                  \
        text, sizeof text - 1, shown                                                                                   \
    }
    NASTY("plain ~ text", "plain ~ text"),
    NASTY("gr\xc3\xbc\xc3\x9f, \xe6\x97\xa5, \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f, \xe6\x97\xa5, \xf0\x9f\x98\x80"),
    NASTY("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"), /* ESC, OSC, BEL          */
    NASTY("a\0b", "a\\x00b"),                                       /* NUL                    */
    NASTY("a\nb\rc\td\x7f", "a\\x0ab\\x0dc\\x09d\\x7f"),            /* C0, DEL                */
    NASTY("\xc2\x80\xc2\x9b"
          "31m\xc2\x9d\xc2\x9f\xc2\xa0",
          "\\xc2\\x80\\xc2\\x9b"
          "31m\\xc2\\x9d\\xc2\\x9f\xc2\xa0"), /* C1 as UTF-8, and behind */
    NASTY("\x9b"
          "31m\x9d\x80",
          "\\x9b"
          "31m\\x9d\\x80"), /* C1 as bytes            */
    NASTY("\xc0\x9b\xc1\xbf\xe0\x80\x9b\xf0\x80\x80\x9b",
          "\\xc0\\x9b\\xc1\\xbf\\xe0\\x80\\x9b\\xf0\\x80\\x80\\x9b"), /* overlong forms         */
    NASTY("\xed\xa0\x80\xf4\x90\x80\x80\xf8\x88\xff", "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xf8\\x88\\xff"),
    NASTY("\xe6\x97", "\\xe6\\x97"), /* ends in the middle     */
    NASTY("\xe6\x97"
          "x\xf0\x9f\x98",
          "\\xe6\\x97"
          "x\\xf0\\x9f\\x98"),
    NASTY("\xe2\x80\xae"
          "txt.exe\xe2\x80\xac",
          "\\xe2\\x80\\xae"
          "txt.exe\\xe2\\x80\\xac"),                                                       /* bidi override   */
    NASTY("\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c", "\\xe2\\x81\\xa6\\xe2\\x80\\x8f\\xd8\\x9c"), /* isolate, marks   */
    NASTY("\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf", "\\xe2\\x80\\xa8\\xe2\\x80\\x8b\\xef\\xbb\\xbf"), /* lines, hidden */
    NASTY("\xf3\xa0\x81\x81\xef\xbf\xbe", "\\xf3\\xa0\\x81\\x81\\xef\\xbf\\xbe"), /* tags, no character     */
};

static void test_printable_escapes_what_steers_a_terminal(void **state)
{
    (void)state;
    char out[256];
    for (size_t i = 0; i < sizeof nasty / sizeof *nasty; i++) {
        assert_int_equal(aq_printable(nasty[i].text, nasty[i].count, false, out, sizeof out), nasty[i].count);
        assert_string_equal(out, nasty[i].shown);
        /* In pieces, whatever the room: the same, and never past the end. */
        for (size_t room = AQ_PRINTABLE_BYTES_MIN; room < 40; room++) {
            char piece[40], joined[256] = "";
            for (size_t at = 0; at < nasty[i].count;) {
                piece[room < sizeof piece ? room : 0] = '!';
                const size_t used = aq_printable(nasty[i].text + at, nasty[i].count - at, false, piece, room);
                assert_true(used > 0 && strlen(piece) < room && (room == sizeof piece || piece[room] == '!'));
                strncat(joined, piece, sizeof joined - strlen(joined) - 1);
                at += used;
            }
            assert_string_equal(joined, nasty[i].shown);
        }
    }
    assert_int_equal(aq_printable("a\n\tb\r", 5, true, out, sizeof out), 5);
    assert_string_equal(out, "a\n\tb\\x0d");
    assert_string_equal(aq_printable_text(NULL, out, sizeof out), "");
    assert_string_equal(aq_printable_text("0123456789abcdef\xc3\xbc", out, 18), "0123456789abcdef");
}

/* Every byte sequence of up to 3 bytes: what comes out has no control, and reading it once more changes nothing. */
static void test_printable_is_clean_for_all_short_texts(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 1u << 24; v += v < 1u << 16 ? 1 : 7) {
        const char in[3] = {(char)(v >> 16), (char)(v >> 8), (char)v};
        char out[32], twice[64];
        assert_int_equal(aq_printable(in, 3, false, out, sizeof out), 3);
        for (const char *c = out; *c; c++) {
            if ((unsigned char)*c < 32 || *c == 127) fail_msg("control in the text of %06x", v);
            if ((unsigned char)c[0] == 0xc2 && (unsigned char)c[1] < 0xa0) fail_msg("C1 in the text of %06x", v);
        }
        if (strcmp(aq_printable_text(out, twice, sizeof twice), out) != 0) fail_msg("%06x is not clean", v);
    }
}

static void test_log_and_errors_are_printable(void **state)
{
    (void)state;
    char line[256] = "";
    aq_log_sink(quiet, line);
    aq_error_clear();
    (void)aq_fail(AQ_PROTO, "test", "peer said %s", "\x1b[31m\xc2\x9b\xe2\x80\xae\xff\nnext");
    assert_string_equal(line, "aqpipe: error: test: peer said \\x1b[31m\\xc2\\x9b\\xe2\\x80\\xae\\xff next");
    assert_string_equal(aq_error_text(), "peer said \\x1b[31m\\xc2\\x9b\\xe2\\x80\\xae\\xff\nnext");
    aq_error_clear();
    aq_log_sink(NULL, NULL);
}

static uint64_t now_ns;

static uint64_t virtual_now(void *context)
{
    (void)context;
    return now_ns;
}

struct heard {
    uint32_t lines;
    char last[256];
};

static void hear(int level, const char *line, void *context)
{
    (void)level;
    struct heard *heard = context;
    heard->lines++;
    snprintf(heard->last, sizeof heard->last, "%s", line);
}

/* Of a log: when (UTC), who, how grave, where. Of a command: how grave where it is, and where. */
static void test_log_lines_say_when_who_and_how_grave(void **state)
{
    (void)state;
    struct timespec before, after; /* of the clock that logs read: time() is behind it by up to a tick */
    char line[256] = "", heads[4][64] = {"rank 3 error test: x", "rank 3 warning test: x", "rank 3 info test: x",
                                         "error test: x"};
    const int levels[4] = {AQ_LOG_ERROR, AQ_LOG_WARNING, 1, AQ_LOG_ERROR};
    aq_log_sink(quiet, line);
    for (int i = 0; i < 4; i++) {
        struct tm date = {0};
        aq_log_init(i < 3 ? 3 : AQ_LOG_DAEMON);
        clock_gettime(CLOCK_REALTIME, &before);
        aq_log("test", levels[i], "x");
        clock_gettime(CLOCK_REALTIME, &after);
        const char *rest = strptime(line, "%Y-%m-%dT%H:%M:%S", &date);
        assert_non_null(rest);
        assert_in_range(timegm(&date), before.tv_sec, after.tv_sec);
        assert_true(rest[0] == '.' && rest[4] == 'Z' && rest[5] == ' ' && strspn(rest + 1, "0123456789") == 3);
        assert_string_equal(rest + 6, heads[i]);
        assert_true(aq_log_is_info(line) == (i == 2));
    }
    aq_log_init(AQ_LOG_COMMAND);
    aq_log("test", AQ_LOG_WARNING, "x");
    assert_string_equal(line, "aqpipe: warning: test: x");
    aq_log("test", 1, "x");
    assert_string_equal(line, "aqpipe: test: x");
    assert_false(aq_log_is_info("Segmentation info fault of another program, which is no line of ours"));
    aq_log_sink(NULL, NULL);
}

enum { TALKER_LINES = 20000 };

static void talk(void *context)
{
    (void)context;
    for (int i = 0; i < TALKER_LINES; i++)
        aq_log("test", 0, "line %d", i);
}

/* Lines come one at a time, and none to a sink that has been replaced: no lock but the log's is needed to hear them. */
static void test_log_sink_is_replaced_while_others_log(void **state)
{
    (void)state;
    struct heard heard[3] = {{0}};
    struct aq_thread *talker[2];
    aq_log_sink(hear, &heard[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_thread_open("talker", talk, NULL, &talker[i]), AQ_OK);
    aq_log_sink(hear, &heard[1]);
    const int early = heard[0].lines;
    aq_log_sink(hear, &heard[2]);
    for (int i = 0; i < 2; i++)
        aq_thread_close(talker[i]);
    aq_log_sink(NULL, NULL);
    assert_int_equal(heard[0].lines, early);
    assert_int_equal(heard[0].lines + heard[1].lines + heard[2].lines, 2 * TALKER_LINES);
}

static void test_log_limit_counts_what_it_holds_back(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct aq_log_limit limit = {.window_ns = 1000, .lines_max = 3};
    now_ns = 0;
    virtual_clock(virtual_now, NULL);
    aq_log_sink(hear, &heard);
    for (int i = 0; i < 10; i++)
        assert_int_equal(aq_log_limited(&limit, "test", 1, "refused %d", i), i < 3);
    assert_int_equal(heard.lines, 3);
    assert_string_equal(heard.last, "aqpipe: test: refused 2");
    now_ns = 500;
    aq_log_limit_tell(&limit); /* the window is not over */
    assert_int_equal(heard.lines, 3);
    now_ns = 1002;
    assert_true(aq_log_limited(&limit, "test", 1, "refused again"));
    assert_string_equal(heard.last, "aqpipe: test: refused again (and 7 more lines were held back)");
    for (int i = 0; i < 100; i++)
        aq_log_limited(&limit, "test", 1, "refused %d", i);
    assert_int_equal(heard.lines, 6);
    now_ns = 3000;
    aq_log_limit_tell(&limit);
    assert_string_equal(heard.last, "aqpipe: test: 98 more lines were held back");
    aq_log_limit_tell(&limit);
    assert_int_equal(heard.lines, 7);
    /* A thread's limit holds for what aq_fail says, too; without it everything goes out. */
    struct aq_log_limit strangers = {.lines_max = 2};
    aq_log_limit_thread(&strangers);
    for (int i = 0; i < 5; i++)
        (void)aq_fail(AQ_PROTO, "test", "no message");
    aq_log_limit_thread(NULL);
    assert_int_equal(heard.lines, 9);
    assert_int_equal(strangers.held, 3);
    (void)aq_fail(AQ_PROTO, "test", "no message");
    assert_int_equal(heard.lines, 10);
    aq_log_sink(NULL, NULL);
    virtual_clock(NULL, NULL);
    aq_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_first_error_is_kept),
        cmocka_unit_test(test_status_held_errors_are_their_holders),
        cmocka_unit_test(test_printable_escapes_what_steers_a_terminal),
        cmocka_unit_test(test_printable_is_clean_for_all_short_texts),
        cmocka_unit_test(test_log_and_errors_are_printable),
        cmocka_unit_test(test_log_limit_counts_what_it_holds_back),
        cmocka_unit_test(test_log_lines_say_when_who_and_how_grave),
        cmocka_unit_test(test_log_sink_is_replaced_while_others_log),
        cmocka_unit_test(test_memory_counts_and_fails_on_demand),
        cmocka_unit_test(test_memory_is_aligned_and_zeroed_at_every_size),
        cmocka_unit_test(test_memory_of_a_large_block_is_not_touched),
        cmocka_unit_test(test_arena_measures_what_it_places),
        cmocka_unit_test(test_ring_passes_every_token_in_order),
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_rng_is_uniform_and_normal),
        cmocka_unit_test(test_half_round_trips_and_rounds_to_even),
        cmocka_unit_test(test_digest_known_answer),
        cmocka_unit_test(test_trace_writes_json_and_counts_drops),
        cmocka_unit_test(test_trace_begins_at_zero),
        cmocka_unit_test(test_trace_rows_are_calls),
        cmocka_unit_test(test_source_is_an_address_or_a_network),
        cmocka_unit_test(test_admission_one_source_has_half_of_the_places),
        cmocka_unit_test(test_admission_newcomers_of_crowded_sources_go_first),
        cmocka_unit_test(test_admission_many_sources_take_turns_and_proved_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
