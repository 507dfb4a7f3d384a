/*
 * test_hostile_edge.c -- the other end of an edge proved itself, and then misbehaves: rows that are wrong in one field,
 * messages that are not those that were asked for. Each has its status and its line, and the right one goes through.
 *
 * Two edges in one process. What the sender codes is altered before the receiver decodes it. A thread is the other side
 * where the receiver has to ask: the edge itself, or a peer that answers what a test wants.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "edge_heal.h"
#include "edge_private.h"
#include "job.h"
#include "plan.h"

enum { B = 3, T = 8, C = 20, N = T * C, BODY_BYTES = 1 << 16, SAMPLE = 4, MANY_FRAMES = 100 };
#define PATIENCE_NS UINT64_C(120000000000)

static const char manifest[] = "model: {blocks: 2, heads: 2, channels: 20, context: 8, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 8, batch: 6, micro_batch: 3, epochs: 5}\n"
                               "pipeline: {stages: 2}\n"
                               "edges: {forward: {codec: aqsgd, bits: 3}, backward: {codec: directq, bits: 8}}\n"
                               "link: {send_frames: 4, receive_slots: 2}\n"
                               "cache: {kind: lmdb, slots: 32}\n"
                               "facts: {vocabulary: 256, train_samples: 6, train_digest: 1, heldout_samples: 0}\n";

struct side {
    bool sender;
    struct aq_device *device;
    struct aq_eventcount *eventcount;
    struct aq_net *net;
    struct aq_link *link;
    struct aq_cache *cache;
    struct aq_edge *edge;
};

/* What the thread on the other side answers to a FETCH. */
enum answer { AS_AN_EDGE, OTHER_SAMPLE, TOO_SHORT, TOO_LONG, OTHER_BYTES, THE_RIGHT_ONE };

static struct aq_job *job;
static struct aq_plan *plan;
static struct side sender, receiver;
static char address[64];
static float values[N], decoded[B * N];
static uint8_t body[BODY_BYTES], message_bytes[N * sizeof(float)];
static size_t message_count;
static uint32_t body_bytes;
static enum answer answer;
static atomic_bool over;
static enum aq_status connected;

static enum aq_status link_open(struct side *s)
{
    const uint64_t deadline = aq_clock_after(PATIENCE_NS);
    struct aq_link_config link = s->sender ? plan->stages[0].link_out : plan->stages[1].link_in;
    link.send_frames += 8;
    if (s->sender) return aq_link_connect(s->net, address, &link, deadline, &s->link);
    struct aq_listener *listener;
    uint16_t port;
    AQ_TRY(aq_link_listen(s->net, address, &listener, &port));
    const enum aq_status status = aq_link_accept(listener, &link, deadline, &s->link);
    aq_listener_close(listener);
    return status;
}

static void connector(void *context)
{
    connected = link_open(context);
}

static void cache_open(struct side *s, bool lost)
{
    struct aq_cache_config cache = plan->stages[s->sender ? 0 : 1].cache;
    cache.kind = "memory";
    cache.eventcount = s->eventcount;
    cache.job_digest = plan->job_digest;
    cache.job_name = "test";
    cache.lost = lost;
    assert_int_equal(aq_cache_open(&cache, &s->cache), AQ_OK);
}

static void edge_open(struct side *s)
{
    cache_open(s, false);
    const struct aq_device_config device = {.kind = "cpu", .threads = 1};
    assert_int_equal(aq_device_open(&device, &s->device), AQ_OK);
    const struct aq_edge_config edge = {.device = s->device,
                                        .shape = &plan->edges[0].shape,
                                        .sender = s->sender,
                                        .link = s->link,
                                        .cache = s->cache,
                                        .eventcount = s->eventcount,
                                        .silence_ns = UINT64_C(5000000000)};
    assert_int_equal(aq_edge_open(&edge, &s->edge), AQ_OK);
}

static int open_with(const char *const *sets, uint32_t set_count)
{
    static unsigned count;
    struct aq_thread *thread;
    snprintf(address, sizeof address, "sim://hostile-edge-%u", count++);
    assert_int_equal(aq_job_parse(manifest, strlen(manifest), "test.yaml", "/", sets, set_count, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    sender = (struct side){.sender = true};
    receiver = (struct side){.sender = false};
    struct side *const sides[2] = {&sender, &receiver};
    for (int i = 0; i < 2; i++) {
        const struct aq_net_config net = {.links_max = 2};
        struct aq_net_config own = net;
        assert_int_equal(aq_eventcount_open(&sides[i]->eventcount), AQ_OK);
        own.eventcount = sides[i]->eventcount;
        assert_int_equal(aq_net_open(&own, &sides[i]->net), AQ_OK);
    }
    assert_int_equal(aq_thread_open("connector", connector, &sender, &thread), AQ_OK);
    assert_int_equal(link_open(&receiver), AQ_OK);
    aq_thread_close(thread);
    assert_int_equal(connected, AQ_OK);
    edge_open(&sender);
    edge_open(&receiver);
    for (int i = 0; i < N; i++)
        values[i] = (float)(i % 13) - 6;
    return 0;
}

static int open_sides(void **state)
{
    (void)state;
    return open_with(NULL, 0);
}

static int open_many(void **state)
{
    const char *const sets[] = {"link.send_frames=100"};
    (void)state;
    return open_with(sets, 1);
}

static int close_sides(void **state)
{
    (void)state;
    struct side *const sides[2] = {&sender, &receiver};
    for (int i = 0; i < 2; i++) {
        aq_link_halt(sides[i]->link);
        aq_edge_close(sides[i]->edge);
        aq_link_close(sides[i]->link);
        aq_net_close(sides[i]->net);
        aq_cache_close(sides[i]->cache);
        aq_device_close(sides[i]->device);
        aq_eventcount_close(sides[i]->eventcount);
    }
    aq_plan_close(plan);
    aq_job_close(job);
    return 0;
}

static const uint64_t ids[B] = {SAMPLE, 1, 2};

static struct aq_edge_batch batch_of(uint64_t step, uint32_t samples)
{
    return (struct aq_edge_batch){.step = step, .samples = samples, .sample_ids = ids};
}

/* The sender codes samples at `a` and posts them. */
static void post(const struct aq_edge_batch *batch, float *a)
{
    const struct aq_values from = {.at = a};
    uint32_t index;
    aq_edge_unhold(sender.edge, 0);
    while (aq_edge_body_take(sender.edge, &index) != AQ_OK)
        assert_int_equal(aq_edge_pump(sender.edge), AQ_OK);
    memset(aq_edge_body(sender.edge, index), 0xee, sender.edge->size.body_bytes_max);
    assert_int_equal(
        aq_edge_encode_issue(sender.edge, sender.edge->forward, AQ_FRAME_FORWARD, batch, &from, index, NULL, NULL),
        AQ_OK);
}

/* The same; the frame's body comes to `body`, and not to the receiver. */
static void encode(const struct aq_edge_batch *batch, float *a)
{
    struct aq_link_event event = {0};
    post(batch, a);
    while (event.kind != AQ_LINK_RECEIVED) {
        const uint32_t seen = aq_eventcount_read(receiver.eventcount);
        const enum aq_status status = aq_link_poll(receiver.link, &event);
        if (status == AQ_AGAIN)
            (void)aq_eventcount_wait(receiver.eventcount, seen, aq_clock_after(UINT64_C(5000000000)));
        else
            assert_int_equal(status, AQ_OK);
    }
    assert_int_equal(event.frame.kind, AQ_FRAME_FORWARD);
    assert_true(event.frame.body_bytes <= sizeof body);
    body_bytes = event.frame.body_bytes;
    memcpy(body, event.frame.body, body_bytes);
    aq_link_release(receiver.link, event.frame.body);
}

/* One sample, coded by the sender: its row. */
static struct aq_edge_row code(uint64_t step)
{
    struct aq_edge_row row;
    const struct aq_edge_batch batch = batch_of(step, 1);
    values[0] += 0.125f;
    encode(&batch, values);
    aq_edge_row_read(body, &row);
    return row;
}

/* The receiver decodes `body`, as a frame that it has taken out of the link's slots. */
static enum aq_status decode_body(const struct aq_edge_batch *batch, float *x)
{
    const struct aq_values to = {.at = x};
    void *copy;
    assert_int_equal(aq_map(body_bytes, &copy), AQ_OK);
    memcpy(copy, body, body_bytes);
    const struct aq_edge_received got = {.frame = {.kind = AQ_FRAME_FORWARD, .body = copy, .body_bytes = body_bytes},
                                         .spilled = true,
                                         .bodies = copy,
                                         .bytes = body_bytes};
    return aq_edge_decode_issue(receiver.edge, receiver.edge->forward, batch, &got, &to, NULL);
}

static enum aq_status decode(uint64_t step, const struct aq_edge_row *row)
{
    const struct aq_edge_batch batch = batch_of(step, 1);
    aq_edge_row_write(row, body);
    aq_error_clear();
    return decode_body(&batch, decoded);
}

static void refused(uint64_t step, struct aq_edge_row row, enum aq_status wanted, const char *text)
{
    assert_int_equal(decode(step, &row), wanted);
    if (!strstr(aq_error_text(), text)) fail_msg("said \"%s\", not \"%s\"", aq_error_text(), text);
}

static uint64_t version_there(const struct side *s)
{
    struct aq_cache_entry entry;
    const struct aq_cache_key key = aq_edge_key(s->edge, SAMPLE, 0);
    return aq_cache_peek(s->cache, &key, &entry) == AQ_OK ? entry.version : 0;
}

/* ---- rows ---- */

static void test_row_with_a_wrong_field_is_refused(void **state)
{
    (void)state;
    for (uint64_t step = 0; step < 2; step++) { /* a keyframe, then a change */
        const struct aq_edge_row good = code(step);
        const bool key = good.flags & AQ_CODED_KEYFRAME;
        assert_int_equal(key, step == 0);
        struct aq_edge_row row = good;
        row.sample++;
        refused(step, row, AQ_PROTO, "is of another sample");
        row = good;
        row.variant = 1;
        refused(step, row, AQ_PROTO, "is of another variant");
        row = good;
        row.flags |= 1u << 15;
        refused(step, row, AQ_PROTO, "has unknown flags");
        row = good;
        row.flags = AQ_EDGE_HELD;
        refused(step, row, AQ_PROTO, "announces a held message, but activations change here");
        receiver.edge->shape.still = true;
        refused(step, row, AQ_PROTO, "is held, and coded, too");
        row.flags |= AQ_CODED_KEYFRAME;
        refused(step, row, AQ_PROTO, "is held, and coded, too");
        row.flags = AQ_EDGE_HELD;
        row.body_bytes = 0;
        row.version_before = row.version_after + 1;
        refused(step, row, AQ_PROTO, "is held, and names another message after");
        receiver.edge->shape.still = false;
        row = good;
        row.body_bytes++;
        refused(step, row, AQ_PROTO, "is longer than its frame");
        row = good;
        row.flags = (uint16_t)(row.flags ^ AQ_CODED_KEYFRAME);
        refused(step, row, AQ_PROTO, "has versions that do not fit its flags");
        row = good;
        row.version_before = key ? 1 : 0;
        refused(step, row, AQ_PROTO, "has versions that do not fit its flags");
        row = good;
        row.version_after = 0;
        refused(step, row, AQ_PROTO, "has versions that do not fit its flags");
        row = good;
        row.flags = AQ_CODED_RAW;
        refused(step, row, AQ_PROTO, "names a message where none is kept");
        row = good;
        row.digest_after ^= 1;
        refused(step, row, AQ_CORRUPT, "is not the sender's");
        row = good;
        row.version_after++;
        refused(step, row, AQ_CORRUPT, "is not the sender's");
        assert_int_equal(version_there(&receiver), step); /* nothing of all this is kept */
        assert_int_equal(decode(step, &good), AQ_OK);
        assert_int_equal(version_there(&receiver), step + 1);
    }
}

static void test_bytes_between_two_bodies_are_zero(void **state)
{
    static float three[B * N];
    uint32_t end = B * AQ_EDGE_ROW_BYTES, gaps = 0;
    (void)state;
    for (uint64_t step = 0; step < 2; step++) { /* keyframes have no gaps here: 320 bytes; changes have 76 */
        const struct aq_edge_batch batch = batch_of(step, B);
        encode(&batch, three);
    }
    for (int i = 0; i < B; i++) {
        struct aq_edge_row row;
        const uint32_t at = aq_edge_body_align(end);
        aq_edge_row_read(body + i * AQ_EDGE_ROW_BYTES, &row);
        for (; end < at; end++, gaps++)
            assert_int_equal(body[end], 0);
        end = at + row.body_bytes;
    }
    assert_true(gaps > 0);
}

static void test_each_way_rounds_by_its_own_numbers(void **state)
{
    (void)state;
    const struct aq_edge_batch batch = batch_of(3, 2), later = batch_of(4, 2);
    const struct aq_rng_key keys[] = {
        aq_edge_round_key(sender.edge, &batch, 0, true), aq_edge_round_key(sender.edge, &batch, 0, false),
        aq_edge_round_key(sender.edge, &batch, 1, true), aq_edge_round_key(sender.edge, &later, 0, true)};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&keys[i], &keys[j], sizeof keys[i]);
}

/* ---- what is asked for ---- */

static void answer_fetch(const struct aq_frame *ask)
{
    static uint8_t bytes[sizeof message_bytes + 64];
    struct aq_frame frame = {.kind = AQ_FRAME_MESSAGE, .argument = ask->argument, .step = ask->step, .body = bytes};
    memcpy(bytes, message_bytes, message_count);
    frame.body_bytes = (uint32_t)message_count;
    if (answer == OTHER_SAMPLE) frame.argument = ask->argument - 1;
    if (answer == TOO_SHORT) frame.body_bytes -= 1;
    if (answer == TOO_LONG) frame.body_bytes += 1;
    if (answer == OTHER_BYTES) bytes[7] ^= 1;
    (void)aq_link_send(sender.link, &frame, 0);
}

static void other_side(void *context)
{
    (void)context;
    while (!atomic_load_explicit(&over, memory_order_acquire)) {
        struct aq_link_event event;
        const uint32_t seen = aq_eventcount_read(sender.eventcount);
        if (answer == AS_AN_EDGE) {
            (void)aq_edge_pump(sender.edge);
        } else {
            while (aq_link_poll(sender.link, &event) == AQ_OK)
                if (event.kind == AQ_LINK_RECEIVED && event.frame.kind == AQ_FRAME_FETCH) answer_fetch(&event.frame);
        }
        (void)aq_eventcount_wait(sender.eventcount, seen, aq_clock_after(UINT64_C(10000000)));
    }
}

static void receiving_side(void *context)
{
    (void)context;
    while (!atomic_load_explicit(&over, memory_order_acquire)) {
        const uint32_t seen = aq_eventcount_read(receiver.eventcount);
        (void)aq_edge_pump(receiver.edge);
        (void)aq_eventcount_wait(receiver.eventcount, seen, aq_clock_after(UINT64_C(10000000)));
    }
}

static struct aq_thread *other_side_open(enum answer with)
{
    struct aq_thread *thread;
    answer = with;
    atomic_store_explicit(&over, false, memory_order_release);
    assert_int_equal(aq_thread_open("other", other_side, NULL, &thread), AQ_OK);
    return thread;
}

static void other_side_close(struct aq_thread *thread)
{
    atomic_store_explicit(&over, true, memory_order_release);
    aq_eventcount_notify(sender.eventcount);
    aq_thread_close(thread);
}

/* A reference of the right version and other bytes: not used, but fetched. */
static void test_reference_with_other_bytes_is_fetched(void **state)
{
    const struct aq_cache_key key = aq_edge_key(receiver.edge, SAMPLE, 0);
    struct aq_cache_entry entry;
    void *slot;
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    assert_int_equal(aq_cache_slot(receiver.cache, aq_clock_after(PATIENCE_NS), &slot), AQ_OK);
    assert_int_equal(aq_cache_get(receiver.cache, &key, aq_clock_after(PATIENCE_NS), &entry), AQ_OK);
    memcpy(slot, entry.bytes, entry.byte_count);
    ((uint8_t *)slot)[3] ^= 1;
    const uint64_t bytes = entry.byte_count;
    aq_cache_release(receiver.cache, &entry);
    assert_int_equal(aq_cache_put(receiver.cache, &key, 1, aq_digest(slot, bytes), slot, bytes), AQ_OK);
    const struct aq_edge_row second = code(1);
    struct aq_thread *thread = other_side_open(AS_AN_EDGE);
    const enum aq_status status = decode(1, &second);
    other_side_close(thread);
    assert_int_equal(status, AQ_OK);
    assert_int_equal(receiver.edge->measures.fetched, 1);
    assert_int_equal(version_there(&receiver), 2);
}

static void test_message_that_is_not_the_one_is_refused(void **state)
{
    static const struct {
        enum answer answer;
        enum aq_status status;
        const char *text;
    } answers[] = {{OTHER_SAMPLE, AQ_PROTO, "asked for the message of sample 4, got the one of 3"},
                   {TOO_SHORT, AQ_PROTO, "a message of"},
                   {TOO_LONG, AQ_PROTO, "a message of"},
                   {OTHER_BYTES, AQ_CORRUPT, "is not the one it was coded against"},
                   {THE_RIGHT_ONE, AQ_OK, ""}};
    struct aq_cache_entry entry;
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    struct aq_cache_key key = aq_edge_key(sender.edge, SAMPLE, 0);
    assert_int_equal(aq_cache_get(sender.cache, &key, aq_clock_after(PATIENCE_NS), &entry), AQ_OK);
    message_count = entry.byte_count;
    memcpy(message_bytes, entry.bytes, message_count);
    aq_cache_release(sender.cache, &entry);
    const struct aq_edge_row second = code(1);
    key = aq_edge_key(receiver.edge, SAMPLE, 0);
    assert_int_equal(aq_cache_drop(receiver.cache, &key), AQ_OK);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct aq_thread *thread = other_side_open(answers[i].answer);
        const enum aq_status status = decode(1, &second);
        other_side_close(thread);
        assert_int_equal(status, answers[i].status);
        if (!strstr(aq_error_text(), answers[i].text)) fail_msg("said \"%s\"", aq_error_text());
    }
    assert_int_equal(version_there(&receiver), 2);
}

/* A flipped image is no change of the image: each variant has its own m, on both sides, also where one is lost. */
static void test_variants_of_a_sample_keep_references_of_their_own(void **state)
{
    static float both[2 * N], back[2 * N];
    const uint64_t twice[2] = {SAMPLE, SAMPLE};
    const struct aq_view views[2] = {{.flipped = false}, {.flipped = true}};
    struct aq_cache_entry entries[2];
    (void)state;
    for (uint64_t step = 0; step < 3; step++) {
        const struct aq_edge_batch batch = {.step = step, .samples = 2, .sample_ids = twice, .views = views};
        for (int i = 0; i < N; i++) {
            both[i] = (float)i + 0.5f * (float)step;
            both[N + i] = (float)(N - i) + 0.5f * (float)step;
        }
        encode(&batch, both);
        if (step == 2) { /* one of the receiver's is lost: the sender has it, of that variant */
            const struct aq_cache_key key = aq_edge_key(receiver.edge, SAMPLE, 1);
            assert_int_equal(aq_cache_drop(receiver.cache, &key), AQ_OK);
        }
        struct aq_thread *thread = other_side_open(AS_AN_EDGE);
        const enum aq_status status = decode_body(&batch, back);
        other_side_close(thread);
        assert_int_equal(status, AQ_OK);
        for (int i = 0; i < 2; i++) {
            struct aq_edge_row row;
            aq_edge_row_read(body + i * AQ_EDGE_ROW_BYTES, &row);
            assert_int_equal(row.variant, i);
            assert_int_equal(row.version_before, step);
            const struct aq_cache_key key = aq_edge_key(sender.edge, SAMPLE, (uint16_t)i);
            assert_int_equal(aq_cache_peek(sender.cache, &key, &entries[i]), AQ_OK);
            assert_int_equal(entries[i].digest, row.digest_after);
        }
        assert_true(entries[0].digest != entries[1].digest);
        for (int i = 0; i < 2 * N; i++)
            if (fabsf(back[i] - both[i]) > 1)
                fail_msg("step %u value %d: %g, sent %g", (unsigned)step, i, back[i], both[i]);
    }
    assert_int_equal(receiver.edge->measures.fetched, 1);
    assert_int_equal(sender.edge->measures.keyframes, 2);
}

/* The sender has a reference in flight, of one version: that one is to be had, and no other. */
static void test_sender_answers_with_the_version_that_was_asked_for(void **state)
{
    const struct aq_cache_key key = aq_edge_key(receiver.edge, SAMPLE, 0);
    const uint32_t bytes = (uint32_t)receiver.edge->size.message_bytes;
    struct aq_frame message = {0};
    (void)state;
    (void)code(0);
    (void)code(1); /* version 1 is held, until the gradient is back */
    struct aq_thread *thread = other_side_open(AS_AN_EDGE);
    const enum aq_status other = aq_edge_fetch(receiver.edge, &key, 7, bytes, &message);
    const enum aq_status right = aq_edge_fetch(receiver.edge, &key, 1, bytes, &message);
    other_side_close(thread);
    assert_int_equal(other, AQ_NOTFOUND);
    assert_int_equal(right, AQ_OK);
    assert_int_equal(message.step, 1);
    aq_edge_message_release(receiver.edge, &message);
}

/* A sample that the cache never had is no loss, whatever the step: nobody is asked (nobody would answer here). */
static void test_cold_sample_asks_nobody(void **state)
{
    (void)state;
    assert_int_equal(plan->steps_per_epoch, 1);
    assert_true(code(0).flags & AQ_CODED_KEYFRAME);
    const struct aq_cache_key key = aq_edge_key(sender.edge, SAMPLE, 0);
    assert_int_equal(aq_cache_drop(sender.cache, &key), AQ_OK); /* as after a raw body */
    assert_true(code(7).flags & AQ_CODED_KEYFRAME);
    assert_int_equal(sender.edge->measures.fetched, 0);
}

/* A sample that goes raw is cold on both sides. */
static void test_raw_sample_is_forgotten_by_both(void **state)
{
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    const float before = values[3];
    values[3] = INFINITY;
    const struct aq_edge_row second = code(1);
    values[3] = before;
    assert_int_equal(second.flags, AQ_CODED_RAW);
    assert_int_equal(decode(1, &second), AQ_OK);
    assert_int_equal(version_there(&sender), 0);
    assert_int_equal(version_there(&receiver), 0);
}

/* A cache that stands for one that was lost: what it does not hold may be at the other side. */
/* As code, while the receiver answers. */
static struct aq_edge_row code_against(uint64_t step)
{
    const struct aq_edge_batch batch = batch_of(step, 1);
    struct aq_channel *forward = aq_edge_channel(receiver.edge, AQ_CHANNEL_ID_forward);
    struct aq_thread *thread;
    struct aq_edge_row row;
    atomic_store_explicit(&over, false, memory_order_release);
    assert_int_equal(aq_thread_open("receiver", receiving_side, NULL, &thread), AQ_OK);
    post(&batch, values);
    atomic_store_explicit(&over, true, memory_order_release);
    aq_eventcount_notify(receiver.eventcount);
    aq_thread_close(thread);
    while (!aq_channel_ready(forward))
        assert_int_equal(aq_edge_pump(receiver.edge), AQ_OK);
    const struct aq_channel_item item = aq_channel_take(forward);
    body_bytes = item.frame.body_bytes;
    memcpy(body, item.frame.body, body_bytes);
    aq_channel_release(forward, &item);
    aq_edge_row_read(body, &row);
    return row;
}

static void test_sender_asks_for_what_a_lost_cache_had(void **state)
{
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    aq_cache_close(sender.cache);
    cache_open(&sender, true);
    sender.edge->config.cache = sender.cache;
    const struct aq_edge_row second = code_against(1);
    assert_int_equal(second.flags, 0);
    assert_int_equal(second.version_before, 1);
    assert_int_equal(sender.edge->measures.fetched, 1);
}

/* ---- what is asked for ahead ---- */

static void lose(struct side *s)
{
    aq_cache_close(s->cache);
    cache_open(s, true);
    s->edge->config.cache = s->cache;
}

/* Both sides live until nothing is asked for any more. */
static void settle(const struct side *asks)
{
    while (asks->edge->asking.count > 0) {
        const uint32_t seen = aq_eventcount_read(asks->eventcount);
        assert_int_equal(aq_edge_pump(sender.edge), AQ_OK);
        assert_int_equal(aq_edge_pump(receiver.edge), AQ_OK);
        (void)aq_eventcount_wait(asks->eventcount, seen, aq_clock_after(UINT64_C(1000000)));
    }
}

static enum aq_status refill(struct side *s, uint32_t samples)
{
    const struct aq_edge_batch batch = batch_of(1, samples);
    return aq_edge_refill(s->edge, &batch);
}

static void test_lost_messages_come_before_their_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) { /* the sender's; then the receiver's, of a sample that is not on its way */
        struct side *const side = i == 0 ? &sender : &receiver;
        const struct aq_edge_row first = code((uint64_t)i * 2);
        assert_int_equal(decode((uint64_t)i * 2, &first), AQ_OK);
        assert_false(aq_edge_refills(side->edge));
        aq_edge_unhold(sender.edge, 0);
        const uint64_t version = version_there(side);
        lose(side);
        assert_true(aq_edge_refills(side->edge));
        assert_int_equal(refill(side, B), AQ_OK);
        assert_int_equal(refill(side, B), AQ_OK); /* asks once */
        assert_int_equal(side->edge->asking.count, B);
        settle(side);
        assert_int_equal(side->edge->measures.fetched, 1); /* the others were never seen */
        assert_int_equal(version_there(side), version);
        const struct aq_edge_row second = code((uint64_t)i * 2 + 1);
        assert_int_equal(second.version_before, version);
        assert_int_equal(decode((uint64_t)i * 2 + 1, &second), AQ_OK);
        assert_int_equal(side->edge->measures.fetched, 1);
    }
}

/* Its sample is on its way: the receiver gets what the frame was coded against, not what the sender holds by now. */
static void test_a_message_on_its_way_comes_as_it_was(void **state)
{
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    const struct aq_edge_row second = code(1);
    lose(&receiver);
    assert_int_equal(refill(&receiver, 1), AQ_OK);
    settle(&receiver);
    assert_int_equal(version_there(&receiver), 1);
    assert_int_equal(decode(1, &second), AQ_OK);
    assert_int_equal(version_there(&receiver), 2);
}

/* What is due and was asked for ahead is not asked for again; what comes late replaces nothing. */
static void test_a_message_asked_for_is_waited_for(void **state)
{
    (void)state;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    lose(&sender);
    assert_int_equal(refill(&sender, B), AQ_OK);
    const struct aq_edge_row second = code_against(1);
    assert_int_equal(second.version_before, 1);
    assert_int_equal(sender.edge->measures.fetched, 1);
    assert_int_equal(receiver.edge->measures.served, 1);
    assert_int_equal(decode(1, &second), AQ_OK);

    const struct aq_cache_key key = aq_edge_key(receiver.edge, SAMPLE, 0);
    assert_int_equal(aq_cache_drop(receiver.cache, &key), AQ_OK);
    assert_int_equal(refill(&receiver, 1), AQ_OK);
    void *slot;
    assert_int_equal(aq_cache_slot(receiver.cache, aq_clock_after(PATIENCE_NS), &slot), AQ_OK);
    memset(slot, 5, N);
    assert_int_equal(aq_cache_put(receiver.cache, &key, 7, aq_digest(slot, N), slot, N), AQ_OK);
    settle(&receiver);
    assert_int_equal(version_there(&receiver), 7);
}

/* No more at once than a link is filled by; the rest when those have come. */
static void test_as_many_are_asked_for_as_may_wait(void **state)
{
    (void)state;
    uint64_t many[B] = {0};
    uint32_t asked = 0;
    enum aq_status status = AQ_OK;
    sender.edge->size.message_bytes = 4 << 20;
    lose(&sender);
    while (status == AQ_OK && asked < 100) {
        for (int i = 0; i < B; i++)
            many[i] = asked++;
        const struct aq_edge_batch batch = {.step = 1, .samples = B, .sample_ids = many};
        status = aq_edge_refill(sender.edge, &batch);
    }
    assert_int_equal(status, AQ_AGAIN);
    assert_int_equal(sender.edge->asking.count, 4);
    settle(&sender);
    struct aq_channel *requests = aq_edge_channel(sender.edge, AQ_CHANNEL_ID_fetch);
    requests->out = AQ_EDGE_REQUESTS; /* the link has no room for more */
    many[0] = 200;
    const struct aq_edge_batch another = {.step = 1, .samples = 1, .sample_ids = many};
    assert_int_equal(aq_edge_refill(sender.edge, &another), AQ_AGAIN);
    requests->out = 0;
    assert_int_equal(refill(&sender, B), AQ_OK);
    settle(&sender);
}

/* Half of the send buffers stay with training, which ones however carry answers: there may be more than 64. */
static void test_answers_leave_half_of_many_send_buffers(void **state)
{
    (void)state;
    uint32_t taken;
    struct aq_edge *edge = receiver.edge;
    const struct aq_edge_row first = code(0);
    assert_int_equal(decode(0, &first), AQ_OK);
    assert_int_equal(edge->channels->body_count, MANY_FRAMES);
    while (aq_edge_body_take(edge, &taken) == AQ_OK)
        assert_in_range(taken, 0, MANY_FRAMES - 1);
    aq_edge_body_return(edge, 70);
    const struct aq_frame asked = {.kind = AQ_FRAME_FETCH, .argument = SAMPLE};
    assert_int_equal(aq_channels_arrived(edge->channels, &asked), AQ_OK);
    assert_int_equal(aq_edge_fetches_serve(edge), AQ_OK);
    assert_int_equal(aq_edge_channel(edge, AQ_CHANNEL_ID_message)->bodies_out, 1);
    aq_edge_body_return(edge, 70 - 64); /* training's */
    assert_int_equal(aq_edge_channel(edge, AQ_CHANNEL_ID_message)->bodies_out, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_sides, close_sides)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_row_with_a_wrong_field_is_refused),
        TEST(test_bytes_between_two_bodies_are_zero),
        TEST(test_variants_of_a_sample_keep_references_of_their_own),
        TEST(test_each_way_rounds_by_its_own_numbers),
        TEST(test_reference_with_other_bytes_is_fetched),
        TEST(test_message_that_is_not_the_one_is_refused),
        TEST(test_sender_answers_with_the_version_that_was_asked_for),
        TEST(test_cold_sample_asks_nobody),
        TEST(test_raw_sample_is_forgotten_by_both),
        TEST(test_sender_asks_for_what_a_lost_cache_had),
        TEST(test_lost_messages_come_before_their_samples),
        TEST(test_a_message_on_its_way_comes_as_it_was),
        TEST(test_a_message_asked_for_is_waited_for),
        TEST(test_as_many_are_asked_for_as_may_wait),
        cmocka_unit_test_setup_teardown(test_answers_leave_half_of_many_send_buffers, open_many, close_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
