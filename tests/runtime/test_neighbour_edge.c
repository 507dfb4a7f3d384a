/*
 * test_neighbour_edge.c -- an edge, and a neighbour that sends rows, bodies, messages and requests that no stage sends:
 * each is told in one line (AQ_PROTO, AQ_CORRUPT), none reaches an assertion, none is taken for activations.
 *
 * The neighbour has the codec and its own messages, as a stage has, so that every frame is right but for one thing. On
 * the CPU, and with AQ_DEVICES=cuda where samples are coded by kernels in launches, which is other code.
 *
 * AQ_NEIGHBOUR_SEEDS: so many seeds of frames at random (40).
 */
#include "cache_rot.h"
#include "neighbour_kit.h"

#include <math.h>

enum { MESSAGE_MAX = 1024, BODY_MAX = 8192 };
#define VALUES_BYTES (KIT_B * KIT_N * sizeof(float))

/* What a neighbour remembers. */
struct peer {
    struct aq_codec *codec;
    uint8_t messages[KIT_SAMPLES][MESSAGE_MAX];
    uint64_t versions[KIT_SAMPLES], digests[KIT_SAMPLES];
    size_t message_bytes;
    struct aq_edge_row rows[KIT_B];
    uint8_t body[BODY_MAX];
    uint32_t bytes;
    struct aq_device *device; /* where it codes: a CPU */
    struct aq_stream *stream; /* the victim's          */
    struct aq_values values;
};

static const uint64_t ids[KIT_B] = {0, 1, 2};
static const char *kinds[] = {"cpu", "cuda"};

static bool setup(struct kit *kit, struct peer *peer, uint32_t stage, const char *codec, const char *kind)
{
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1}, asked = {.kind = kind, .threads = 1};
    struct aq_device *probe = NULL;
    const enum aq_status status = aq_device_open(&asked, &probe);
    aq_device_close(probe);
    const char *must = getenv("AQ_DEVICES");
    if (must && strcmp(must, kind) == 0) assert_int_equal(status, AQ_OK);
    if (status == AQ_NODEV) return false;
    *kit = (struct kit){.stage = stage, .codec = codec, .device_kind = kind};
    memset(peer, 0, sizeof *peer);
    kit_open(kit);
    assert_int_equal(kit->edge->on_device, strcmp(kind, "cuda") == 0);
    assert_int_equal(aq_device_open(&cpu, &peer->device), AQ_OK);
    assert_int_equal(aq_device_stream_open_light(kit->device, &peer->stream), AQ_OK);
    assert_int_equal(aq_codec_open(peer->device, &kit->plan->edges[0].shape.forward, KIT_T, KIT_C, &peer->codec),
                     AQ_OK);
    peer->message_bytes = kit->plan->edges[0].size.message_bytes;
    assert_true(peer->message_bytes <= MESSAGE_MAX && kit->plan->edges[0].size.body_bytes_max <= BODY_MAX);
    assert_int_equal(aq_values_open(kit->device, VALUES_BYTES, &peer->values), AQ_OK);
    assert_int_equal(aq_device_zero(kit->device, peer->values.at, VALUES_BYTES, peer->stream), AQ_OK);
    assert_int_equal(aq_device_stream_sync(kit->device, peer->stream), AQ_OK);
    aq_error_clear();
    return true;
}

static void teardown(struct kit *kit, struct peer *peer)
{
    kit_hang_up(kit);
    aq_edge_close(kit->edge);
    kit->edge = NULL;
    aq_values_close(kit->device, VALUES_BYTES, &peer->values);
    aq_device_stream_close(kit->device, peer->stream);
    aq_codec_close(peer->codec);
    aq_device_close(peer->device);
    kit_close(kit);
}

/* Rows to the head of the body. */
static void rows_write(struct peer *peer)
{
    for (uint32_t i = 0; i < KIT_B; i++)
        aq_edge_row_write(&peer->rows[i], peer->body + (size_t)i * AQ_EDGE_ROW_BYTES);
}

/* The samples of a step as an honest stage codes them. */
static void code(struct kit *kit, struct peer *peer, uint64_t step)
{
    uint32_t at = aq_edge_body_align(KIT_B * AQ_EDGE_ROW_BYTES);
    memset(peer->body, 0, sizeof peer->body);
    for (uint32_t i = 0; i < KIT_B; i++) {
        struct aq_edge_row *row = &peer->rows[i];
        struct aq_codec_result result;
        float a[KIT_N];
        uint8_t after[MESSAGE_MAX];
        const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, step, i);
        for (uint64_t k = 0; k < KIT_N; k++)
            a[k] = (float)(i + 1) * sinf((float)k) + 0.02f * (float)step * aq_rng_normal(&key, k);
        const bool warm = peer->message_bytes && peer->versions[i] > 0;
        assert_int_equal(aq_codec_encode(peer->codec, a, warm ? peer->messages[i] : NULL, &key, peer->body + at,
                                         BODY_MAX - at, NULL, peer->message_bytes ? after : NULL, &result, NULL),
                         AQ_OK);
        *row = (struct aq_edge_row){.sample = ids[i], .body_bytes = result.body_bytes, .flags = (uint16_t)result.flags};
        if (peer->message_bytes) {
            row->version_before = peer->versions[i];
            row->digest_before = peer->digests[i];
            row->version_after = row->version_before + 1;
            row->digest_after = aq_digest(after, peer->message_bytes);
            memcpy(peer->messages[i], after, peer->message_bytes);
            peer->versions[i] = row->version_after;
            peer->digests[i] = row->digest_after;
        }
        peer->bytes = at + row->body_bytes;
        at = aq_edge_body_align(peer->bytes);
    }
    rows_write(peer);
    (void)kit;
}

static struct aq_frame frame_of(const struct peer *peer, uint64_t step)
{
    return (struct aq_frame){
        .kind = AQ_FRAME_FORWARD, .step = step, .argument = KIT_B, .body = peer->body, .body_bytes = peer->bytes};
}

static bool settled(const struct kit *kit)
{
    return aq_edge_busy_since(kit->edge) == 0;
}

/* The next micro-batch is with the victim. */
static enum aq_status arrive(struct kit *kit)
{
    while (!aq_edge_forward_here(kit->edge, NULL)) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        AQ_TRY(aq_edge_pump(kit->edge));
        if (aq_edge_forward_here(kit->edge, NULL)) break;
        assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
    return AQ_OK;
}

/* The victim takes it, whatever comes of it. */
static enum aq_status take(struct kit *kit, struct peer *peer, uint64_t step, uint32_t samples)
{
    const struct aq_edge_batch batch = {.step = step, .samples = samples, .sample_ids = ids};
    AQ_TRY(arrive(kit));
    AQ_TRY(aq_edge_receive_forward(kit->edge, &batch, &peer->values, peer->stream));
    while (!settled(kit))
        AQ_TRY(aq_edge_pump(kit->edge));
    return AQ_OK;
}

static void first_step(struct kit *kit, struct peer *peer)
{
    code(kit, peer, 0);
    const struct aq_frame frame = frame_of(peer, 0);
    kit_say(kit, &frame);
    assert_int_equal(take(kit, peer, 0, KIT_B), AQ_OK);
}

static void answer(struct kit *kit, uint64_t sample, uint64_t version, const void *bytes, uint32_t count)
{
    const struct aq_frame frame = {
        .kind = AQ_FRAME_MESSAGE, .argument = sample, .step = version, .body = bytes, .body_bytes = count};
    kit_say(kit, &frame);
}

static void expect(enum aq_status status, enum aq_status want, const char *text, const char *what)
{
    if (status != want || !strstr(aq_error_text(), text))
        fail_msg("%s: %d (%s), wanted %d with '%s'", what, status, aq_error_text(), want, text);
    assert_null(strchr(aq_error_text(), '\n'));
}

/* ---- rows ---- */

enum spoil {
    HONEST,
    SAMPLE,
    VARIANT,
    FLAGS,
    HELD,
    KEY_OF_A_CHANGE,
    CHANGE_OF_NOTHING,
    RAW_AND_KEY,
    RAW_WITH_VERSIONS,
    AFTER_SKIPS,
    AFTER_SAME,
    AFTER_NONE,
    BEFORE_LAST,
    DIGEST_OF_NOTHING,
    DIGEST_AFTER,
    LONGER,
    LONGEST,
    SHORTER,
    NOTHING,
    BYTES_BEHIND,
    ROWS_CUT,
    COUNT_LESS,
    COUNT_MORE,
    STEP,
    WIDE_SAID,
    WIDE_UNSAID,
    WIDE_BEFORE,
    CHECK_LIES,
    SPOILS
};

/* A digest behind the rows, of other values than the first body's. */
static void check_lies(struct peer *peer, struct aq_frame *frame)
{
    enum { ROWS = KIT_B * AQ_EDGE_ROW_BYTES };
    static_assert(ROWS % AQ_EDGE_BODY_ALIGN == 0, "bodies begin right behind the rows");
    memmove(peer->body + ROWS + AQ_EDGE_BODY_ALIGN, peer->body + ROWS, frame->body_bytes - ROWS);
    memset(peer->body + ROWS, 0x5a, AQ_EDGE_CHECK_BYTES);
    memset(peer->body + ROWS + AQ_EDGE_CHECK_BYTES, 0, AQ_EDGE_BODY_ALIGN - AQ_EDGE_CHECK_BYTES);
    frame->flags |= AQ_EDGE_CHECKED;
    frame->body_bytes += AQ_EDGE_BODY_ALIGN;
}

/* One thing of an honest frame, and what is said of it. */
static const char *spoil(struct peer *peer, struct aq_frame *frame, enum spoil how, enum aq_status *want)
{
    struct aq_edge_row *row = &peer->rows[1];
    static const char *const texts[SPOILS] = {[SAMPLE] = "is of another sample",
                                              [VARIANT] = "is of another variant",
                                              [FLAGS] = "has unknown flags",
                                              [HELD] = "but activations change here",
                                              [KEY_OF_A_CHANGE] = "versions that do not fit its flags",
                                              [CHANGE_OF_NOTHING] = "versions that do not fit its flags",
                                              [RAW_AND_KEY] = "is raw and a keyframe",
                                              [RAW_WITH_VERSIONS] = "names a message where none is kept",
                                              [AFTER_SKIPS] = "the message after decoding is not the sender's",
                                              [AFTER_SAME] = "the message after decoding is not the sender's",
                                              [AFTER_NONE] = "versions that do not fit its flags",
                                              [BEFORE_LAST] = "versions that do not fit its flags",
                                              [DIGEST_OF_NOTHING] = "a digest of what it was not coded against",
                                              [DIGEST_AFTER] = "the message after decoding is not the sender's",
                                              [LONGER] = "is the last, and bytes follow it",
                                              [LONGEST] = "is longer than its frame",
                                              [SHORTER] = "edge 0",
                                              [NOTHING] = "edge 0",
                                              [BYTES_BEHIND] = "is the last, and bytes follow it",
                                              [ROWS_CUT] = "has no room for 3 rows",
                                              [COUNT_LESS] = "of 2 samples, expected",
                                              [COUNT_MORE] = "of 4294967299 samples, expected",
                                              [STEP] = "expected step 1",
                                              [WIDE_SAID] = "is wide, and its versions are not",
                                              [WIDE_UNSAID] = "is wide, and its versions are not",
                                              [WIDE_BEFORE] = "is wide, and its versions are not",
                                              [CHECK_LIES] = "step 1, sample 0: stage 1 decoded other values than"};
    const bool corrupt = how == DIGEST_AFTER || how == AFTER_SKIPS || how == AFTER_SAME || how == CHECK_LIES;
    *want = corrupt ? AQ_CORRUPT : AQ_PROTO;
    switch (how) {
    case SAMPLE:
        row->sample = 5;
        break;
    case VARIANT:
        row->variant = 1;
        break;
    case FLAGS:
        row->flags |= 16;
        break;
    case HELD:
        row->flags = AQ_EDGE_HELD;
        break;
    case KEY_OF_A_CHANGE:
        row->flags = AQ_CODED_KEYFRAME;
        break;
    case CHANGE_OF_NOTHING:
        *row = (struct aq_edge_row){.sample = 1, .version_after = 1, .body_bytes = row->body_bytes};
        break;
    case RAW_AND_KEY:
        *row =
            (struct aq_edge_row){.sample = 1, .flags = AQ_CODED_RAW | AQ_CODED_KEYFRAME, .body_bytes = row->body_bytes};
        break;
    case RAW_WITH_VERSIONS:
        row->flags = AQ_CODED_RAW;
        break;
    case AFTER_SKIPS:
        row->version_after++;
        break;
    case AFTER_SAME:
        row->version_after--;
        break;
    case AFTER_NONE:
        row->version_after = 0;
        break;
    case BEFORE_LAST:
        row->version_before = UINT64_MAX, row->version_after = 0;
        break;
    case DIGEST_OF_NOTHING:
        row->version_before = 0, row->version_after = 1, row->flags = AQ_CODED_KEYFRAME;
        break;
    case DIGEST_AFTER:
        row->digest_after ^= 1;
        break;
    case LONGER:
        peer->rows[2].body_bytes--;
        break;
    case LONGEST:
        row->body_bytes = UINT32_MAX;
        break;
    case SHORTER:
        row->body_bytes -= 16;
        break; /* the next one's bytes begin in the midst of this one's */
    case NOTHING:
        row->body_bytes = 0;
        break;
    case BYTES_BEHIND:
        frame->body_bytes += 1;
        break;
    case ROWS_CUT:
        frame->body_bytes = KIT_B * AQ_EDGE_ROW_BYTES - 1;
        break;
    case COUNT_LESS:
        frame->argument = 2;
        break;
    case COUNT_MORE:
        frame->argument = (1ull << 32) + KIT_B;
        break;
    case STEP:
        frame->step = 2;
        break;
    case WIDE_SAID:
        row->flags |= AQ_EDGE_WIDE;
        break;
    case WIDE_UNSAID:
        row->version_after |= AQ_EDGE_WIDE_VERSION;
        break;
    case WIDE_BEFORE:
        row->flags |= AQ_EDGE_WIDE;
        row->version_after |= AQ_EDGE_WIDE_VERSION;
        break;
    case CHECK_LIES:
        check_lies(peer, frame);
        break;
    default:
        break;
    }
    rows_write(peer);
    return texts[how];
}

static void test_rows_that_no_stage_sends_are_refused(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (enum spoil how = HONEST; how < SPOILS; how++) {
            static struct peer peer;
            struct kit kit;
            enum aq_status want;
            char what[48];
            if (!setup(&kit, &peer, 1, NULL, kinds[k])) break;
            first_step(&kit, &peer);
            code(&kit, &peer, 1);
            struct aq_frame frame = frame_of(&peer, 1);
            const char *text = spoil(&peer, &frame, how, &want);
            kit_say(&kit, &frame);
            const enum aq_status status = take(&kit, &peer, 1, KIT_B);
            snprintf(what, sizeof what, "spoil %d on %s", (int)how, kinds[k]);
            if (how == HONEST)
                assert_int_equal(status, AQ_OK);
            else if (how == SHORTER || how == NOTHING) /* which of the checks finds it is the codec's affair */
                assert_true(status == AQ_PROTO || status == AQ_CORRUPT);
            else
                expect(status, want, text, what);
            teardown(&kit, &peer);
        }
}

/* A stateless codec stores nothing: a row that names a message would be about one that nobody has. */
static void test_rows_of_a_stateless_codec_name_no_message(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        static struct peer peer;
        struct kit kit;
        setup(&kit, &peer, 1, "directq, bits: 4", "cpu");
        code(&kit, &peer, 0);
        if (how == 1) peer.rows[0].version_after = 1;
        if (how == 2) peer.rows[0].version_before = 1, peer.rows[0].version_after = 2;
        rows_write(&peer);
        const struct aq_frame frame = frame_of(&peer, 0);
        kit_say(&kit, &frame);
        const enum aq_status status = take(&kit, &peer, 0, KIT_B);
        if (how == 0) assert_int_equal(status, AQ_OK);
        if (how > 0) expect(status, AQ_PROTO, "names a message where none is kept", "stateless");
        teardown(&kit, &peer);
    }
}

/* ---- references ---- */

/*
 * The row says that its change is of another m than the victim holds: by version, or by digest alone. The victim asks;
 * what it is answered decides.
 */
static void test_a_reference_that_is_not_held_is_asked_for_and_compared(void **state)
{
    enum { GONE, OTHERS, OTHER_VERSION, OTHER_SAMPLE, SHORT, LONG, WELL, ANSWERS };
    static const char *const texts[ANSWERS] = {[GONE] = "the sender no longer has message version",
                                               [OTHERS] = "is not the one it was coded against",
                                               [OTHER_VERSION] = "asked for version",
                                               [OTHER_SAMPLE] = "asked for the message of sample 1, got the one of 2",
                                               [SHORT] = "bytes arrived, but it must have",
                                               [LONG] = "bytes arrived, but it must have"};
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int by_digest = 0; by_digest < 2; by_digest++)
            for (int how = GONE; how < ANSWERS; how++) {
                static struct peer peer, before;
                struct kit kit;
                char what[64];
                if (!setup(&kit, &peer, 1, NULL, kinds[k])) break;
                first_step(&kit, &peer);
                before = peer;
                code(&kit, &peer, 1);
                struct aq_edge_row *row = &peer.rows[1];
                if (by_digest) row->digest_before ^= 1;
                if (!by_digest) row->version_before = 7, row->version_after = 8;
                rows_write(&peer);
                if (how == WELL && by_digest) { /* the digest of the row must be that of the answer */
                    teardown(&kit, &peer);
                    continue;
                }
                const struct aq_frame frame = frame_of(&peer, 1);
                kit_say(&kit, &frame);
                assert_int_equal(arrive(&kit), AQ_OK); /* an answer that comes before the question is none */
                const uint32_t bytes = (uint32_t)peer.message_bytes;
                const uint64_t version = row->version_before;
                if (how == GONE) answer(&kit, 1, 0, NULL, 0);
                if (how == OTHERS) before.messages[1][3] ^= 1;
                if (how == OTHERS || how == WELL) answer(&kit, 1, version, before.messages[1], bytes);
                if (how == OTHER_VERSION) answer(&kit, 1, version + 1, before.messages[1], bytes);
                if (how == OTHER_SAMPLE) answer(&kit, 2, version, before.messages[2], bytes);
                if (how == SHORT) answer(&kit, 1, version, before.messages[1], bytes - 1);
                if (how == LONG) answer(&kit, 1, version, before.messages[1], bytes + 1);
                const enum aq_status status = take(&kit, &peer, 1, KIT_B);
                snprintf(what, sizeof what, "answer %d, by digest %d, on %s", how, by_digest, kinds[k]);
                if (how == WELL)
                    assert_int_equal(status, AQ_OK);
                else
                    expect(status, how == GONE || how == OTHERS ? AQ_CORRUPT : AQ_PROTO, texts[how], what);
                teardown(&kit, &peer);
            }
}

/* A sender that has lost its m asks the receiver: what comes back becomes its reference only where it can be one. */
static void test_a_sender_takes_no_message_without_a_version(void **state)
{
    static const uint64_t versions[] = {0, UINT64_MAX, 3};
    (void)state;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < 3; i++) {
            static struct peer peer;
            struct kit kit;
            if (!setup(&kit, &peer, 0, NULL, kinds[k])) break;
            const struct aq_edge_batch batch = {.samples = 1, .sample_ids = ids},
                                       later = {.step = 5, .samples = 1, .sample_ids = ids};
            assert_int_equal(aq_edge_send_forward(kit.edge, &batch, &peer.values, peer.stream), AQ_OK);
            while (!settled(&kit))
                assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
            const struct aq_cache_key key = {.sample = 0};
            assert_int_equal(cache_rot(kit.cache, &key), AQ_OK);
            static uint8_t zeros[MESSAGE_MAX];
            answer(&kit, 0, versions[i], zeros, (uint32_t)peer.message_bytes);
            const enum aq_status status = aq_edge_send_forward(kit.edge, &later, &peer.values, peer.stream);
            if (i < 2) expect(status, AQ_PROTO, "asked for version 0 of the message of sample 0", "version");
            if (i == 2) assert_int_equal(status, AQ_OK);
            teardown(&kit, &peer);
        }
}

/*
 * A sender that has lost a message wants the one behind all that it has sent. Its question overtakes nothing: what is
 * still to be decoded, or is being decoded on a device, comes first.
 */
static void test_a_receiver_answers_behind_what_came_before_the_question(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int issued = 0; issued < 2; issued++) {
            static struct peer peer;
            struct kit kit;
            struct aq_frame got = {0};
            if (!setup(&kit, &peer, 1, NULL, kinds[k])) break;
            first_step(&kit, &peer);
            code(&kit, &peer, 1);
            const struct aq_frame frame = frame_of(&peer, 1), fetch = {.kind = AQ_FRAME_FETCH, .argument = 1};
            const struct aq_edge_batch batch = {.step = 1, .samples = KIT_B, .sample_ids = ids};
            kit_say(&kit, &frame);
            if (!issued) kit_say(&kit, &fetch);
            assert_int_equal(arrive(&kit), AQ_OK);
            struct aq_channel *asked = aq_edge_channel(kit.edge, AQ_CHANNEL_ID_fetch);
            while (!issued && asked->count + kit.edge->measures.served == 0) { /* it is here, too */
                const uint32_t seen = aq_eventcount_read(kit.pair.eventcount);
                assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
                if (asked->count + kit.edge->measures.served == 0)
                    assert_int_equal(aq_eventcount_wait(kit.pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
            }
            assert_int_equal(aq_edge_receive_forward(kit.edge, &batch, &peer.values, peer.stream), AQ_OK);
            if (issued && kit.edge->on_device) { /* asked while the device is at it */
                kit.edge->asks_left--;
                assert_int_equal(aq_channel_keep(asked, &fetch, 0), AQ_OK);
                assert_true(aq_edge_decoding(kit.edge));
                assert_int_equal(aq_edge_fetches_serve(kit.edge), AQ_OK);
            } else if (issued) {
                kit_say(&kit, &fetch);
            }
            while (!settled(&kit)) /* no device notifies an event count */
                assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
            do
                assert_int_equal(kit_hear(&kit, &got), AQ_OK);
            while (got.kind != AQ_FRAME_MESSAGE);
            assert_int_equal(got.argument, 1);
            assert_int_equal(got.step, peer.versions[1]);
            assert_int_equal(got.body_bytes, peer.message_bytes);
            assert_memory_equal(got.body, peer.messages[1], peer.message_bytes);
            aq_link_release(kit.pair.link[1], got.body);
            teardown(&kit, &peer);
        }
}

/* ---- what nobody asked for, and too much of it ---- */

static void test_frames_that_are_not_due_are_refused(void **state)
{
    static uint8_t bytes[64];
    static const struct {
        uint32_t stage;
        const char *codec;
        struct aq_frame frame;
        const char *text;
    } odds[] = {
        {1,
         NULL,
         {.kind = AQ_FRAME_MESSAGE, .argument = 1, .step = 1, .body = bytes, .body_bytes = 64},
         "unexpected frame of kind 21"},
        {0, NULL, {.kind = AQ_FRAME_MESSAGE, .argument = 1}, "unexpected frame of kind 21"},
        {1,
         NULL,
         {.kind = AQ_FRAME_FETCH, .argument = 1, .body = bytes, .body_bytes = 8},
         "unexpected frame of kind 20"},
        {1, "directq, bits: 4", {.kind = AQ_FRAME_FETCH, .argument = 1}, "while its codec keeps no messages"},
        {1,
         NULL,
         {.kind = AQ_FRAME_BACKWARD, .argument = 3, .body = bytes, .body_bytes = 64},
         "unexpected frame of kind 17"},
        {0,
         NULL,
         {.kind = AQ_FRAME_FORWARD, .argument = 3, .body = bytes, .body_bytes = 64},
         "unexpected frame of kind 16"},
        {0,
         NULL,
         {.kind = AQ_FRAME_EVAL, .argument = 3, .body = bytes, .body_bytes = 64},
         "unexpected frame of kind 19"},
        {0, NULL, {.kind = AQ_FRAME_NORM, .body = bytes, .body_bytes = 8}, "unexpected frame of kind 18"},
        {1, NULL, {.kind = AQ_FRAME_CHUNK, .body = bytes, .body_bytes = 8}, "unexpected frame of kind 23"},
        {1, NULL, {.kind = AQ_FRAME_CONTROL, .flags = 1}, "that was not asked"},
        {1,
         NULL,
         {.kind = AQ_FRAME_FORWARD, .flags = AQ_EDGE_CARRIED, .argument = 3, .body = bytes, .body_bytes = 64},
         "are not rows of such bodies"},
        {1, NULL, {.kind = 27}, "unexpected frame of kind 27"},
        {1, NULL, {.kind = AQ_FRAME_SHARED, .body = bytes, .body_bytes = 64}, "while 0 of 0 are here"},
        {1,
         NULL,
         {.kind = AQ_FRAME_SHARED, .flags = 1, .body = bytes, .body_bytes = 64},
         "64 bytes of summed gradients (flags 1) from value 0 on in step 0, while 0 of 0 are here"},
        {0, NULL, {.kind = AQ_FRAME_SHARED, .flags = 3}, "0 bytes of summed gradients (flags 3)"},
        {1, NULL, {.kind = 31, .body = bytes, .body_bytes = 64}, "unexpected frame of kind 31"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
        static struct peer peer;
        struct kit kit;
        setup(&kit, &peer, odds[i].stage, odds[i].codec, "cpu");
        kit_say(&kit, &odds[i].frame);
        kit_refuses(&kit, AQ_PROTO, odds[i].text, NULL);
        teardown(&kit, &peer);
    }
}

static void test_norms_and_copies_beyond_their_number_are_refused(void **state)
{
    static struct peer peer;
    struct kit kit;
    (void)state;
    setup(&kit, &peer, 1, NULL, "cpu");
    for (int i = 0; i < (int)aq_edge_channel(kit.edge, AQ_CHANNEL_ID_norm)->bound + 1; i++)
        kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_NORM, .step = (uint64_t)i});
    kit_refuses(&kit, AQ_PROTO, "unexpected frame of kind 18 (step 4,", NULL);
    teardown(&kit, &peer);
    setup(&kit, &peer, 1, NULL, "cpu"); /* a stage that is still opening has nobody to take them */
    for (int i = 0; i < (int)aq_edge_channel(kit.edge, AQ_CHANNEL_ID_mirror)->bound + 1; i++)
        kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_MIRROR, .flags = 2, .step = (uint64_t)i});
    kit_refuses(&kit, AQ_PROTO, "unexpected frame of kind 24 (step 32,", NULL);
    teardown(&kit, &peer);
}

/* Requests cost an answer each: no more of them than messages can have been lost, and a step's that were due. */
static void test_a_flood_of_requests_is_refused(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage < 2; stage++) {
        static struct peer peer;
        struct kit kit;
        struct aq_frame frame = {0};
        setup(&kit, &peer, stage, NULL, "cpu");
        enum aq_status status = AQ_OK;
        int answers = 0;
        for (int i = 0; i < 1000 && status == AQ_OK; i++) {
            kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_FETCH, .argument = (uint64_t)i % KIT_SAMPLES});
            status = kit_hear(&kit, &frame);
            answers += status == AQ_OK && frame.kind == AQ_FRAME_MESSAGE;
        }
        expect(status, AQ_PROTO, "more often than it can have lost one", "flood");
        assert_int_equal(answers, 2 * KIT_SAMPLES);
        teardown(&kit, &peer);
    }
}

/* And no more at once than there is room for. */
static void test_a_burst_of_requests_is_refused(void **state)
{
    (void)state;
    static struct peer peer;
    struct kit kit;
    setup(&kit, &peer, 0, NULL, "cpu");
    kit.edge->asks_left = UINT64_MAX;
    kit.edge->channels->free_count = 0; /* none can be answered */
    enum aq_status status = AQ_OK;
    for (int i = 0; i < AQ_EDGE_ASKS_MAX + 1 && status == AQ_OK; i++) {
        kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_FETCH, .argument = (uint64_t)i});
        status = aq_edge_pump(kit.edge);
    }
    while (status == AQ_OK) {
        const uint32_t seen = aq_eventcount_read(kit.pair.eventcount);
        status = aq_edge_pump(kit.edge);
        if (status == AQ_OK)
            assert_int_equal(aq_eventcount_wait(kit.pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
    expect(status, AQ_PROTO, "more than may wait", "burst");
    assert_int_equal(aq_edge_channel(kit.edge, AQ_CHANNEL_ID_fetch)->count, AQ_EDGE_ASKS_MAX);
    kit.edge->channels->free_count = kit.edge->channels->body_count;
    teardown(&kit, &peer);
}

/* While it waits for a lost message a stage takes frames out of the link's slots: no more than can be in flight. */
static void test_frames_beyond_those_in_flight_are_refused(void **state)
{
    (void)state;
    static struct peer peer;
    struct kit kit;
    setup(&kit, &peer, 1, NULL, "cpu");
    const uint32_t slots = kit.plan->stages[0].program.slots;
    assert_true(slots > 0 && slots < 16);
    first_step(&kit, &peer);
    code(&kit, &peer, 1);
    peer.rows[0].version_before = 7;
    peer.rows[0].version_after = 8;
    rows_write(&peer);
    for (uint32_t i = 0; i < 40; i++) {
        struct aq_frame frame = frame_of(&peer, 1);
        frame.micro_batch = i;
        kit_say(&kit, &frame);
    }
    expect(take(&kit, &peer, 1, KIT_B), AQ_PROTO, "as many as can be in flight", "spill");
    assert_true(aq_edge_channel(kit.edge, AQ_CHANNEL_ID_forward)->count <= slots);
    teardown(&kit, &peer);
}

/* ---- gradients ---- */

static void test_gradients_that_no_stage_sends_are_refused(void **state)
{
    (void)state;
    for (int how = 0; how < 5; how++) {
        static struct peer peer;
        struct kit kit;
        setup(&kit, &peer, 0, NULL, "cpu");
        const struct aq_edge_batch batch = {.samples = KIT_B, .sample_ids = ids};
        assert_int_equal(aq_edge_send_forward(kit.edge, &batch, &peer.values, peer.stream), AQ_OK);
        struct aq_codec *codec;
        struct aq_codec_result result;
        const float g[KIT_N] = {1, 2, 3};
        uint32_t at = aq_edge_body_align(KIT_B * AQ_EDGE_ROW_BYTES);
        assert_int_equal(aq_codec_open(peer.device, &kit.plan->edges[0].shape.backward, KIT_T, KIT_C, &codec), AQ_OK);
        for (uint32_t i = 0; i < KIT_B; i++) {
            const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 0, i);
            assert_int_equal(
                aq_codec_encode(codec, g, NULL, &key, peer.body + at, BODY_MAX - at, NULL, NULL, &result, NULL), AQ_OK);
            peer.rows[i] = (struct aq_edge_row){
                .sample = ids[i], .body_bytes = result.body_bytes, .flags = (uint16_t)result.flags};
            peer.bytes = at + result.body_bytes;
            at = aq_edge_body_align(peer.bytes);
        }
        aq_codec_close(codec);
        if (how == 1) peer.rows[2].version_after = 1;
        if (how == 2) peer.rows[0].sample = 1;
        if (how == 3) peer.rows[1].flags = AQ_CODED_KEYFRAME;
        if (how == 4) peer.rows[1].body_bytes += 16, peer.bytes += 16;
        rows_write(&peer);
        struct aq_frame frame = frame_of(&peer, 0);
        frame.kind = AQ_FRAME_BACKWARD;
        kit_say(&kit, &frame);
        while (!aq_edge_backward_here(kit.edge)) {
            const uint32_t seen = aq_eventcount_read(kit.pair.eventcount);
            assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
            if (!aq_edge_backward_here(kit.edge))
                aq_eventcount_wait(kit.pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE));
        }
        const enum aq_status status = aq_edge_receive_backward(kit.edge, &batch, &peer.values, peer.stream);
        if (how == 0) assert_int_equal(status, AQ_OK);
        if (how > 0) assert_true(status == AQ_PROTO || status == AQ_CORRUPT);
        teardown(&kit, &peer);
    }
}

/* ---- at random ---- */

/* A few steps with frames that are honest but for bytes here and there, and frames of any kind between them. */
static void at_random(uint64_t seed)
{
    static struct peer peer;
    static uint8_t answers[4][MESSAGE_MAX]; /* lent until the link closes, while the next step is coded */
    struct kit kit;
    uint64_t n = 0;
    const struct aq_rng_key draws = aq_rng_key(seed, AQ_RNG_TEST, 1, 0);
    if (!setup(&kit, &peer, 1, seed % 3 ? NULL : "aqsgd, bits: 2, store: q8", kinds[seed % 2])) return;
    enum aq_status status = AQ_OK;
    for (uint64_t step = 0; step < 4 && status == AQ_OK; step++) {
        code(&kit, &peer, step);
        const uint64_t rows = aq_rng_below(&draws, n++, 3);
        const uint64_t bits = step ? aq_rng_below(&draws, n++, 3) : 0;
        for (uint64_t i = 0; i < bits; i++) {
            const uint64_t most = rows ? KIT_B * AQ_EDGE_ROW_BYTES : peer.bytes;
            const uint64_t at = aq_rng_below(&draws, n++, (uint32_t)most);
            peer.body[at] ^= (uint8_t)(1u << aq_rng_below(&draws, n++, 8));
        }
        struct aq_frame frame = frame_of(&peer, step);
        if (aq_rng_below(&draws, n++, 12) == 0)
            frame.body_bytes -= (uint32_t)aq_rng_below(&draws, n++, frame.body_bytes);
        kit_say(&kit, &frame);
        /* An answer stands ready for whatever may be asked; where nothing is, it is one that nobody asked for. */
        memcpy(answers[step], peer.messages[1], peer.message_bytes);
        if (step && rows) answer(&kit, aq_rng_below(&draws, n++, 3), step, answers[step], (uint32_t)peer.message_bytes);
        if (aq_rng_below(&draws, n++, 8) == 0)
            kit_say(&kit, &(struct aq_frame){.kind = (uint16_t)(16 + aq_rng_below(&draws, n++, 16)), .argument = 1});
        status = take(&kit, &peer, step, KIT_B);
    }
    assert_true(status == AQ_OK || status == AQ_PROTO || status == AQ_CORRUPT || status == AQ_TIMEOUT);
    teardown(&kit, &peer);
}

static void test_frames_at_random_end_in_a_status(void **state)
{
    const char *asked = getenv("AQ_NEIGHBOUR_SEEDS");
    const unsigned long seeds = asked ? strtoul(asked, NULL, 10) : 40;
    (void)state;
    kit_silence_ns = 20000000; /* what is asked for and never answered */
    for (uint64_t seed = 1; seed <= seeds; seed++)
        at_random(seed);
    kit_silence_ns = 0;
    print_message("  %lu seeds\n", seeds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_that_no_stage_sends_are_refused),
        cmocka_unit_test(test_rows_of_a_stateless_codec_name_no_message),
        cmocka_unit_test(test_a_reference_that_is_not_held_is_asked_for_and_compared),
        cmocka_unit_test(test_a_sender_takes_no_message_without_a_version),
        cmocka_unit_test(test_a_receiver_answers_behind_what_came_before_the_question),
        cmocka_unit_test(test_frames_that_are_not_due_are_refused),
        cmocka_unit_test(test_norms_and_copies_beyond_their_number_are_refused),
        cmocka_unit_test(test_a_flood_of_requests_is_refused),
        cmocka_unit_test(test_a_burst_of_requests_is_refused),
        cmocka_unit_test(test_frames_beyond_those_in_flight_are_refused),
        cmocka_unit_test(test_gradients_that_no_stage_sends_are_refused),
        cmocka_unit_test(test_frames_at_random_end_in_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
