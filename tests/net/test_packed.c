/*
 * test_packed.c -- packed bodies: what the reader makes of any that could come, what the sender's rule packs, and links
 * whose ends want different things.
 */
#include "link_pair.h"
#include "net_limits.h"
#include "packer.h"
#include "reader.h"

enum { BYTES = 20000, BODY_MAX = 30000, SLOTS = 2 };

/* ---- the reader: one frame, as a peer could send it ---- */

struct bench {
    struct aq_entropy *entropy;
    struct aq_reader reader;
    void *memory;
    uint8_t body[BYTES], packed[BYTES + 1000];
    uint32_t packed_bytes;
};

static int open_bench(void **state)
{
    static struct bench bench;
    struct aq_arena arena = {0};
    memset(&bench, 0, sizeof bench);
    assert_int_equal(aq_entropy_open(&bench.entropy), AQ_OK);
    aq_reader_place(&bench.reader, &arena, BODY_MAX, SLOTS, true);
    assert_int_equal(aq_alloc(arena.used, &bench.memory), AQ_OK);
    arena = (struct aq_arena){.base = bench.memory, .bytes = arena.used};
    aq_reader_place(&bench.reader, &arena, BODY_MAX, SLOTS, true);
    aq_reader_start(&bench.reader);
    bench.reader.body_bytes_max = BODY_MAX;
    bench.reader.entropy = bench.entropy;
    pair_fill(bench.body, BYTES, 0, 1);
    bench.packed_bytes = aq_entropy_pack(bench.entropy, bench.body, BYTES, bench.packed, BYTES);
    assert_in_range(bench.packed_bytes, BYTES / 4, BYTES / 2);
    *state = &bench;
    return 0;
}

static int close_bench(void **state)
{
    struct bench *bench = *state;
    aq_entropy_close(bench->entropy);
    aq_free(bench->memory);
    return 0;
}

static void feed(struct aq_reader *reader, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        struct iovec iov[2];
        aq_reader_room(reader, iov);
        const size_t part = count < iov[0].iov_len ? count : iov[0].iov_len;
        memcpy(iov[0].iov_base, bytes, part);
        aq_reader_filled(reader, part);
        bytes += part;
        count -= part;
        if (count == 0) break;
        struct aq_reader_frame frame;
        if (aq_reader_next(reader, &frame) != AQ_AGAIN) break; /* refused at its header: feed_frame asks again */
    }
}

/* bench->packed as the body of a FORWARD that says raw_bytes; digests are right. */
static enum aq_status feed_frame(struct bench *bench, uint32_t raw_bytes, struct aq_reader_frame *out)
{
    uint8_t bytes[AQ_FRAME_HEADER_BYTES];
    const struct aq_header header = {.kind = AQ_FRAME_FORWARD,
                                     .body_bytes = bench->packed_bytes,
                                     .raw_bytes = raw_bytes,
                                     .sequence = bench->reader.sequence + 1,
                                     .body_digest = aq_digest(bench->packed, bench->packed_bytes)};
    aq_header_encode(&header, bytes);
    feed(&bench->reader, bytes, sizeof bytes);
    const enum aq_status status = aq_reader_next(&bench->reader, out);
    if (status != AQ_AGAIN) return status;
    feed(&bench->reader, bench->packed, bench->packed_bytes);
    return aq_reader_next(&bench->reader, out);
}

static void refused(struct bench *bench, uint32_t raw_bytes, enum aq_status wanted, const char *text)
{
    struct aq_reader_frame frame;
    assert_int_equal(feed_frame(bench, raw_bytes, &frame), wanted);
    assert_non_null(strstr(bench->reader.text, text));
}

static void test_reader_packed_body_comes_unpacked(void **state)
{
    struct bench *bench = *state;
    struct aq_reader_frame frame;
    assert_int_equal(feed_frame(bench, BYTES, &frame), AQ_OK);
    assert_int_equal(frame.body_bytes, BYTES);
    assert_int_equal(frame.header.body_bytes, bench->packed_bytes);
    assert_memory_equal(frame.body, bench->body, BYTES);
    assert_true(frame.body >= bench->reader.slots); /* in its slot, not in the buffer */
    assert_true(frame.body < bench->reader.slots + (size_t)SLOTS * bench->reader.slot_bytes);
    assert_int_equal(feed_frame(bench, BYTES, &frame), AQ_OK); /* and the next one after it */
}

static void test_reader_packed_not_agreed_is_proto(void **state)
{
    struct bench *bench = *state;
    bench->reader.packed = NULL;
    refused(bench, BYTES, AQ_PROTO, "sent a packed FORWARD; the handshake did not agree to any");
}

static void test_reader_packed_larger_than_slot_is_proto(void **state)
{
    refused(*state, BODY_MAX + 1, AQ_PROTO, "that unpacks to 30001; more than it has, and at most 30000 were possible");
}

static void test_reader_packed_that_does_not_save_is_proto(void **state)
{
    struct bench *bench = *state;
    refused(bench, bench->packed_bytes, AQ_PROTO, "more than it has");
}

static void test_reader_packed_of_another_size_is_corrupt(void **state)
{
    refused(*state, BYTES - 1, AQ_CORRUPT, "does not unpack to the 19999 of its header");
}

/* A bomb: 30 kB that would become 300 MB is refused by its size, without being unpacked. */
static void test_reader_bomb_is_corrupt(void **state)
{
    enum { HUGE_BYTES = 300000000 };
    struct bench *bench = *state;
    void *zeros;
    assert_int_equal(aq_map(HUGE_BYTES, &zeros), AQ_OK);
    bench->packed_bytes = aq_entropy_pack(bench->entropy, zeros, HUGE_BYTES, bench->packed, sizeof bench->packed);
    aq_unmap(zeros, HUGE_BYTES);
    assert_in_range(bench->packed_bytes, 1, sizeof bench->packed);
    refused(bench, BODY_MAX, AQ_CORRUPT, "does not unpack to the 30000 of its header");
}

static void test_reader_noise_is_corrupt(void **state)
{
    struct bench *bench = *state;
    pair_fill(bench->packed, bench->packed_bytes, 1, 0);
    refused(bench, BYTES, AQ_CORRUPT, "does not unpack");
}

/* What older versions of Zstandard wrote: the library might read it, the link does not. */
static void test_reader_old_format_is_corrupt(void **state)
{
    struct bench *bench = *state;
    bench->packed[0] = 0x27; /* version 0.7; today's is 0x28 */
    refused(bench, BYTES, AQ_CORRUPT, "does not unpack");
}

static void test_reader_bytes_left_over_are_corrupt(void **state)
{
    struct bench *bench = *state;
    memcpy(bench->packed + bench->packed_bytes, "\x50\x2a\x4d\x18\0\0\0\0", 8); /* an empty frame that is skipped */
    bench->packed_bytes += 8;
    refused(bench, BYTES, AQ_CORRUPT, "does not unpack");
}

/* Every byte of a packed body broken in turn, the digest made right: a status, or other bytes of the right size. */
static void test_unpack_any_byte_broken_never_writes_past(void **state)
{
    struct bench *bench = *state;
    static uint8_t out[BYTES + 64];
    for (uint32_t at = 0; at < bench->packed_bytes; at++) {
        memset(out + BYTES, 0x5a, 64);
        bench->packed[at] ^= 0xff;
        (void)aq_entropy_unpack(bench->entropy, bench->packed, bench->packed_bytes, out, BYTES);
        bench->packed[at] ^= 0xff;
        for (int i = 0; i < 64; i++)
            assert_int_equal(out[BYTES + i], 0x5a);
        assert_false(aq_entropy_unpack(bench->entropy, bench->packed, at, out, BYTES)); /* cut there */
    }
    assert_true(aq_entropy_unpack(bench->entropy, bench->packed, bench->packed_bytes, out, BYTES));
    assert_memory_equal(out, bench->body, BYTES);
}

/* ---- the sender's rule ---- */

struct rule {
    struct aq_packer packer;
    struct aq_link_config config;
    uint8_t skewed[BYTES], noise[BYTES], buffers[2][BYTES];
};

static void rule_start(struct bench *bench, struct rule *rule, enum aq_link_entropy entropy, double rate, bool local)
{
    memset(rule, 0, sizeof *rule);
    aq_link_config_default(&rule->config);
    rule->config.entropy = entropy;
    rule->config.rate_mbps = rate;
    for (int i = 0; i < 2; i++)
        rule->packer.buffers[i] = rule->buffers[i];
    aq_packer_start(&rule->packer, &rule->config, local, bench->entropy);
    pair_fill(rule->skewed, BYTES, 0, 1);
    pair_fill(rule->noise, BYTES, 0, 0);
}

/* Was it packed? */
static bool tried(struct rule *rule, uint16_t kind, const uint8_t *body, uint32_t bytes)
{
    const struct aq_frame frame = {.kind = kind, .body = body, .body_bytes = bytes};
    struct aq_packed packed;
    assert_int_equal(aq_packer_pack(&rule->packer, &frame, &packed), AQ_OK);
    assert_true(packed.raw_bytes == bytes ? packed.byte_count < bytes : packed.bytes == body);
    aq_packer_release(&rule->packer, packed.buffer);
    return packed.raw_bytes > 0;
}

static void test_rule_zstd_tries_every_body_of_size(void **state)
{
    static struct rule rule;
    rule_start(*state, &rule, AQ_LINK_ENTROPY_ZSTD, 0, true);
    for (int i = 0; i < 5; i++) {
        assert_false(tried(&rule, AQ_FRAME_FORWARD, rule.noise, BYTES));
        assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
        assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, 512));
        assert_false(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, 511));
    }
}

static void test_rule_large_bodies_go_as_they_are(void **state)
{
    static struct rule rule;
    const uint32_t most = aq_packed_bytes_max(UINT32_MAX);
    void *zeros, *buffer;
    rule_start(*state, &rule, AQ_LINK_ENTROPY_ZSTD, 0, true);
    assert_int_equal(aq_map(most + 1, &zeros), AQ_OK);
    assert_int_equal(aq_map(most, &buffer), AQ_OK);
    rule.packer.buffers[0] = buffer;
    assert_true(tried(&rule, AQ_FRAME_FORWARD, zeros, most));
    assert_false(tried(&rule, AQ_FRAME_FORWARD, zeros, most + 1));
    aq_unmap(zeros, most + 1);
    aq_unmap(buffer, most);
}

static void test_rule_auto_leaves_alone_what_does_not_pack(void **state)
{
    static struct rule rule;
    rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, 100, true);
    assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
    uint32_t pause = 1;
    for (int trial = 0; trial < 10; trial++) {
        assert_false(tried(&rule, AQ_FRAME_FORWARD, rule.noise, BYTES));
        assert_true(tried(&rule, AQ_FRAME_BACKWARD, rule.skewed, BYTES)); /* each kind for itself */
        for (uint32_t i = 0; i < pause; i++)
            assert_false(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
        if (pause < 64) pause *= 2;
    }
    assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
    assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES)); /* all is forgiven */
}

static void test_rule_auto_knows_where_it_pays(void **state)
{
    static struct rule rule;
    static const struct {
        double rate;
        bool local, packs;
    } CASES[] = {{0, true, false},    {0, false, true},     {10, true, true},
                 {1000, false, true}, {1001, false, false}, {10000, true, false}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, CASES[i].rate, CASES[i].local);
        assert_int_equal(tried(&rule, AQ_FRAME_CHUNK, rule.skewed, BYTES), CASES[i].packs);
    }
    /* A tenth of the bytes can be saved: that is worth it at 100 Mbit/s and where nothing is known, not at 1000. */
    static const double RATES[] = {0, 100, 1000};
    for (int i = 0; i < 3; i++) {
        rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, RATES[i], false);
        memset(rule.noise, 0, BYTES / 10);
        assert_int_equal(tried(&rule, AQ_FRAME_CHUNK, rule.noise, BYTES), RATES[i] < 1000);
        rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, RATES[i], false);
        memset(rule.noise, 0, BYTES / 25); /* a 25th: only where the link is known to be slow */
        assert_int_equal(tried(&rule, AQ_FRAME_CHUNK, rule.noise, BYTES), RATES[i] == 100);
    }
}

/* The network is seen to carry so much, again and again. */
static void carries(struct rule *rule, double rate_mbps)
{
    for (int i = 0; i < 200; i++)
        aq_packer_rate(&rule->packer, rate_mbps);
}

/* How many of so many frames went packed. */
static uint32_t packed_of(struct rule *rule, const uint8_t *body, uint32_t frames)
{
    uint32_t packed = 0;
    for (uint32_t i = 0; i < frames; i++)
        packed += tried(rule, AQ_FRAME_FORWARD, body, BYTES);
    return packed;
}

/* No rate is declared: what is packed follows the network, and comes back when that gets slow. At 10 Mbit/s the coder
 * may be as slow as a trial counts at most, at 100 Gbit/s as quick as it likes. */
static void test_rule_auto_measures_the_network(void **state)
{
    static struct rule rule;
    rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, 0, false);
    memset(rule.noise, 0, BYTES / 25); /* saves too little for a link of which nothing is known */
    assert_int_equal(packed_of(&rule, rule.noise, 20), 0);
    carries(&rule, 10);
    assert_true(packed_of(&rule, rule.noise, 200) > 100);
    assert_int_equal(packed_of(&rule, rule.skewed, 20), 20);
    carries(&rule, 100000);
    assert_int_equal(packed_of(&rule, rule.skewed, 400), 0);
    assert_int_equal(rule.packer.kinds[0].pause, AQ_PACK_PAUSE); /* it is tried now and then only */
    carries(&rule, 0);                                           /* not known: as before */
    assert_int_equal(packed_of(&rule, rule.skewed, 400), 0);
    carries(&rule, 10);
    assert_true(packed_of(&rule, rule.skewed, 200) >= 200 - AQ_PACK_PAUSE);
}

/* Where coders were slow, cores being busy, trials find out that they are not any more. */
static void test_rule_auto_measures_the_coder(void **state)
{
    static struct rule rule;
    uint32_t frames = 0;
    rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, 0, false);
    rule.packer.byte_ns = AQ_PACK_SLOWER_MAX * AQ_LINK_PACK_BYTE_NS;
    /* More than all must be saved now; a seventh where the coder is quick. Two thirds can be. */
    carries(&rule, 600);
    assert_false(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
    while (!tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES))
        assert_true(frames++ < 100 * AQ_PACK_PAUSE);
    rule_start(*state, &rule, AQ_LINK_ENTROPY_AUTO, 600, false); /* declared: not measured */
    rule.packer.byte_ns = AQ_PACK_SLOWER_MAX * AQ_LINK_PACK_BYTE_NS;
    carries(&rule, 0);
    assert_false(rule.packer.measures);
    assert_true(tried(&rule, AQ_FRAME_FORWARD, rule.skewed, BYTES));
}

static void test_packer_both_buffers_taken_is_again(void **state)
{
    static struct rule rule;
    struct aq_packed packed[3];
    rule_start(*state, &rule, AQ_LINK_ENTROPY_ZSTD, 0, true);
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body = rule.skewed, .body_bytes = BYTES};
    assert_int_equal(aq_packer_pack(&rule.packer, &frame, &packed[0]), AQ_OK);
    assert_int_equal(aq_packer_pack(&rule.packer, &frame, &packed[1]), AQ_OK);
    assert_int_equal(aq_packer_pack(&rule.packer, &frame, &packed[2]), AQ_AGAIN);
    assert_int_equal(packed[0].byte_count, packed[1].byte_count);
    assert_memory_equal(packed[0].bytes, packed[1].bytes, packed[0].byte_count); /* the same bytes each time */
    aq_packer_release(&rule.packer, packed[0].buffer);
    assert_int_equal(aq_packer_pack(&rule.packer, &frame, &packed[2]), AQ_OK);
}

/* ---- two ends ---- */

static void ends(const char *scheme, enum aq_link_entropy one, enum aq_link_entropy other, double rate, bool packs)
{
    struct link_pair pair = {0};
    struct aq_link_stats stats[2];
    pair_config(&pair);
    pair.config[0].entropy = one;
    pair.config[1].entropy = other;
    pair.config[0].rate_mbps = pair.config[1].rate_mbps = rate;
    pair_open(&pair, scheme, "");
    pair_exchange(&pair, 30, PAIR_PATIENCE);
    for (int i = 0; i < 2; i++)
        aq_link_stats(pair.link[i], &stats[i]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stats[i].sent_packed_bytes < stats[i].sent_body_bytes, packs);
        assert_int_equal(stats[i].sent_body_bytes, stats[1 - i].received_body_bytes);
        assert_int_equal(stats[i].sent_packed_bytes, stats[1 - i].received_packed_bytes);
        assert_int_equal(stats[i].packing_ns > 0, packs);
    }
    pair_close(&pair);
}

static void test_link_packs_where_both_ends_may(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *const scheme = ((const char *const[]){"sim", "tcp", "fault+tcp"})[i];
        ends(scheme, AQ_LINK_ENTROPY_ZSTD, AQ_LINK_ENTROPY_ZSTD, 0, true);
        ends(scheme, AQ_LINK_ENTROPY_AUTO, AQ_LINK_ENTROPY_AUTO, 900, true);
        ends(scheme, AQ_LINK_ENTROPY_AUTO, AQ_LINK_ENTROPY_AUTO, 0, false); /* on this machine */
        ends(scheme, AQ_LINK_ENTROPY_ZSTD, AQ_LINK_ENTROPY_OFF, 0, false);
        ends(scheme, AQ_LINK_ENTROPY_OFF, AQ_LINK_ENTROPY_AUTO, 900, false);
    }
}

static void test_link_packed_bit_flipped_is_corrupt(void **state)
{
    static uint8_t body[BYTES];
    struct link_pair pair = {0};
    (void)state;
    pair_fill(body, BYTES, 0, 1);
    pair_config(&pair);
    for (int i = 0; i < 2; i++) {
        pair.config[i].entropy = AQ_LINK_ENTROPY_ZSTD;
        pair.config[i].heartbeat_ns = 0; /* a PING would move the place */
    }
    pair_open(&pair, "fault+sim", "flip_after=5000");
    const struct aq_frame frame = {.kind = AQ_FRAME_FORWARD, .body = body, .body_bytes = BYTES};
    assert_int_equal(aq_link_send(pair.link[1], &frame, 1), AQ_OK);
    const struct aq_link_event event = pair_event_of(&pair, 0, AQ_LINK_CLOSED, PAIR_PATIENCE);
    assert_int_equal(event.status, AQ_CORRUPT);
    assert_non_null(strstr(event.text, "arrived broken"));
    pair_close(&pair);
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_bench, close_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reader_packed_body_comes_unpacked),
        TEST(test_reader_packed_not_agreed_is_proto),
        TEST(test_reader_packed_larger_than_slot_is_proto),
        TEST(test_reader_packed_that_does_not_save_is_proto),
        TEST(test_reader_packed_of_another_size_is_corrupt),
        TEST(test_reader_bomb_is_corrupt),
        TEST(test_reader_noise_is_corrupt),
        TEST(test_reader_old_format_is_corrupt),
        TEST(test_reader_bytes_left_over_are_corrupt),
        TEST(test_unpack_any_byte_broken_never_writes_past),
        TEST(test_rule_zstd_tries_every_body_of_size),
        TEST(test_rule_large_bodies_go_as_they_are),
        TEST(test_rule_auto_leaves_alone_what_does_not_pack),
        TEST(test_rule_auto_knows_where_it_pays),
        TEST(test_rule_auto_measures_the_network),
        TEST(test_rule_auto_measures_the_coder),
        TEST(test_packer_both_buffers_taken_is_again),
        TEST(test_link_packs_where_both_ends_may),
        TEST(test_link_packed_bit_flipped_is_corrupt),
    };
    aq_log_sink(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
