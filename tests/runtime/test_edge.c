/*
 * test_edge.c -- the invariant: over any codec, both ends hold bit-identical messages, whatever is lost on the way.
 *
 * Two edges in one process, joined by a sim link, each with a memory cache and a thread of its own: the sender codes
 * drifting activations of a few samples for some epochs, the receiver decodes and answers with gradients. A run records
 * the digest of every activation that was decoded; a run in which messages were lost must record the same digests, and
 * so must one whose ends are devices that no host can reach, with three streams that run late. AQ_DEVICES=cuda takes
 * one kind of these alone (as it is in a program with the CUDA backend, on the host or not); AQ_GPU=required makes a
 * missing GPU a failure.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache_rot.h"
#include "device_isolated.h"
#include "edge_private.h"
#include "job.h"
#include "plan.h"

enum { SAMPLES = 6, B = 3, T = 8, C = 20, EPOCHS = 5, N = T * C };
enum { BYTES = B * N * sizeof(float), MICRO = SAMPLES / B, VISITS = EPOCHS * SAMPLES };

static const char manifest[] = "model: {blocks: 2, heads: 2, channels: 20, context: 8, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 8, batch: 6, micro_batch: 3, epochs: 5%s}\n"
                               "pipeline: {stages: 2}\n"
                               "edges: {warmup_epochs: %u, forward: {%s}, backward: {%s}}\n"
                               "link: {send_frames: 4, receive_slots: 2}\n"
                               "cache: {kind: memory, slots: 32}\n"
                               "facts: {vocabulary: 256, train_samples: 6, train_digest: 1, heldout_samples: 0}\n";

enum loss { NOTHING = 0, RECEIVER = 1, SENDER = 2, BOTH = 3 };

enum odd { WELL, ROWS_SHORT, BODY_LONG, BODY_NONE, NOT_JOINED, TOLD_AGAIN };

struct side {
    const struct aq_plan *plan;
    bool sender;
    enum loss lose; /* of samples 4 and 5, before the third epoch: the second answer comes to the first one's slot */
    bool spoil;     /* sample 2 has a value in the second epoch that no store holds */
    const char *kind;
    bool nccl;        /* bodies go from GPU to GPU */
    uint32_t rows;    /* of a cut that is not (T, C); 0: it is */
    bool shorter;     /* samples have `lengths` rows */
    bool steady;      /* activations are the same in all epochs */
    bool leap;        /* those of sample 3 are twenty times as large in the first epoch */
    uint32_t guarded; /* ends that have a guard: 1 the sender, 2 the receiver */
    uint32_t told;    /* edges.bits: auto: which rung both ways are told; 0: it is fixed */
    struct aq_edge_guard guard;
    enum odd odd; /* the sender's: what is wrong with a frame */
    struct aq_device *device;
    struct aq_stream *compute, *send, *receive;
    struct aq_values values, back; /* activations, gradients */
    float host[2][B * N];          /* of both: copies may be made after the call that asks for them */
    struct aq_bell *bell;
    struct aq_net *net;
    struct aq_link *link;
    struct aq_cache *cache;
    struct aq_edge *edge;
    char address[64];
    enum aq_status status;
    uint64_t decoded[VISITS];   /* digests of what the receiver computed with                */
    uint64_t gradients[VISITS]; /* of what the sender got back                              */
    uint64_t messages[SAMPLES]; /* digests of the messages at the end                       */
    uint64_t versions[SAMPLES];
    struct aq_edge_measures measures;
};

static enum aq_status side_open(struct side *s)
{
    const uint64_t deadline = aq_clock_after(120000000000u);
    const struct aq_plan_stage *stage = &s->plan->stages[s->sender ? 0 : 1];
    AQ_TRY(aq_bell_open(&s->bell));
    const struct aq_net_config net = {.bell = s->bell, .links_max = 2};
    AQ_TRY(aq_net_open(&net, &s->net));
    struct aq_link_config link = s->sender ? stage->link_out : stage->link_in;
    link.send_frames += 8;
    if (s->sender) {
        AQ_TRY(aq_link_connect(s->net, s->address, &link, deadline, &s->link));
    } else {
        struct aq_listener *listener;
        uint16_t port;
        AQ_TRY(aq_link_listen(s->net, s->address, &listener, &port));
        const enum aq_status status = aq_link_accept(listener, &link, deadline, &s->link);
        aq_listener_close(listener);
        AQ_TRY(status);
    }
    if (stage->cache.slots) {
        struct aq_cache_config cache = stage->cache;
        cache.bell = s->bell;
        cache.job_digest = s->plan->job_digest;
        cache.job_name = "test";
        AQ_TRY(aq_cache_open(&cache, &s->cache));
    }
    const struct aq_device_config device = {.kind = s->kind, .index = s->nccl && !s->sender, .threads = 1};
    AQ_TRY(aq_device_open(&device, &s->device));
    AQ_TRY(aq_device_stream_open_light(s->device, &s->compute));
    AQ_TRY(aq_device_stream_open_light(s->device, &s->send));
    AQ_TRY(aq_device_stream_open_light(s->device, &s->receive));
    AQ_TRY(aq_values_open(s->device, BYTES, &s->values));
    AQ_TRY(aq_values_open(s->device, BYTES, &s->back));
    struct aq_edge_shape shape = s->plan->edges[0].shape;
    if (s->rows) shape.rows = s->rows, shape.columns = N / s->rows;
    struct aq_codec_config rungs[AQ_EDGE_RUNGS];
    const uint32_t rung_count = aq_edge_ladder(&shape.forward, rungs);
    const float rung = s->guard.state[AQ_GUARD_RUNG];
    shape.guard = s->guarded & (s->sender ? 1u : 2u);
    shape.ladders = s->told > 0;
    aq_edge_guard_init(&s->guard, 0, rung_count, EPOCHS);
    s->guard.state[AQ_GUARD_RUNG] = rung;
    const struct aq_edge_config edge = {.device = s->device,
                                        .guard = shape.guard && s->sender ? &s->guard : NULL,
                                        .shape = &shape,
                                        .sender = s->sender,
                                        .link = s->link,
                                        .cache = s->plan->edges[0].size.message_bytes ? s->cache : NULL,
                                        .bell = s->bell,
                                        .silence_ns = 120000000000u};
    AQ_TRY(aq_edge_open(&edge, &s->edge));
    if (s->told) AQ_TRY(aq_edge_rungs(s->edge, s->told, s->told));
    AQ_TRY(aq_edge_warm(s->edge, s->values.at, s->compute)); /* nothing that comes later may tell */
    return aq_edge_join(s->edge, s->nccl ? AQ_TRANSPORT_NCCL : AQ_TRANSPORT_LINKS);
}

static void activation(uint64_t sample, uint32_t epoch, float *a)
{
    const struct aq_rng_key base = aq_rng_key(1, AQ_RNG_TEST, sample, 0);
    const struct aq_rng_key drift = aq_rng_key(1, AQ_RNG_TEST, sample, 1 + epoch);
    for (uint64_t i = 0; i < N; i++)
        a[i] = aq_rng_normal(&base, i) + 0.05f * aq_rng_normal(&drift, i);
}

static struct aq_cache_key message_key(const struct side *s, uint64_t sample)
{
    return (struct aq_cache_key){.sample = sample, .edge = 0, .side = s->sender ? 0 : 1};
}

static enum aq_status remake(struct side *s);

static enum aq_status wait_for(struct side *s, bool (*here)(const struct aq_edge *edge))
{
    for (;;) {
        const uint32_t seen = aq_bell_count(s->bell);
        const enum aq_status pumped = aq_edge_pump(s->edge); /* AQ_CLOSED: the other side is done already */
        AQ_TRY(remake(s));
        if (here(s->edge)) return AQ_OK;
        AQ_TRY(pumped);
        const bool busy = aq_edge_busy_since(s->edge) > 0 || aq_edge_carrying(s->edge);
        const enum aq_status status =
            aq_bell_wait(s->bell, seen, aq_clock_after(busy ? AQ_EDGE_POLL_NS : 120000000000u));
        if (!busy || status != AQ_TIMEOUT) AQ_TRY(status);
    }
}

static bool idle(const struct aq_edge *edge)
{
    return aq_edge_busy_since(edge) == 0 && !aq_edge_carrying(edge);
}

/* What is lost is the version that the other end has, too: one that is still being decoded is in no cache yet. */
static enum aq_status lose_message(struct side *s, uint32_t epoch)
{
    const bool mine = s->sender ? s->lose & SENDER : s->lose & RECEIVER;
    if (!mine || epoch != 2 || !s->cache) return AQ_OK;
    AQ_TRY(wait_for(s, idle));
    for (uint64_t sample = 4; sample <= 5; sample++) {
        const struct aq_cache_key key = message_key(s, sample);
        AQ_TRY(cache_rot(s->cache, &key));
    }
    return AQ_OK;
}

/* What a stage's forward is to an edge: host values to the device on the compute stream, and what was got from there.
 */
static enum aq_status values_set(struct side *s, const struct aq_values *values, const float *host)
{
    AQ_TRY(aq_values_write_begin(s->device, values, s->compute));
    AQ_TRY(aq_device_copy(s->device, values->at, host, BYTES, s->compute));
    return aq_values_write_end(s->device, values, s->compute);
}

static enum aq_status values_get(struct side *s, const struct aq_values *values, float *host)
{
    AQ_TRY(aq_values_read_begin(s->device, values, s->compute));
    AQ_TRY(aq_device_copy(s->device, host, values->at, BYTES, s->compute));
    AQ_TRY(aq_values_read_end(s->device, values, s->compute));
    return aq_device_stream_sync(s->device, s->compute);
}

/* The call, again when the micro-batch before it is done: nothing has happened till then. */
#define WHEN_DONE(call)                                                                                                \
    do {                                                                                                               \
        enum aq_status when_done_ = (call);                                                                            \
        if (when_done_ == AQ_AGAIN) {                                                                                  \
            AQ_TRY(wait_for(s, idle));                                                                                 \
            when_done_ = (call);                                                                                       \
        }                                                                                                              \
        AQ_TRY(when_done_);                                                                                            \
    } while (0)

static bool forward_here(const struct aq_edge *edge)
{
    return aq_edge_forward_here(edge, NULL);
}

/* Rows of each sample, where they have lengths: one has all, one the least. */
static const uint32_t lengths[SAMPLES] = {T, 1, 5, 3, T - 1, 4};

/* What lies behind the rows of a sample: what no codec takes, where it is not to be read, and zeroes where it came. */
static void padding_spoil(const struct side *s, const uint64_t *ids, float *values)
{
    for (int i = 0; s->shorter && i < B; i++)
        for (uint32_t v = lengths[ids[i]] * C; v < N; v++)
            values[i * N + (int)v] = NAN;
}

static enum aq_status padding_check(const struct side *s, const uint64_t *ids, const float *values)
{
    for (int i = 0; s->shorter && i < B; i++)
        for (uint32_t v = lengths[ids[i]] * C; v < N; v++)
            if (values[i * N + (int)v] != 0)
                return aq_fail(AQ_CORRUPT, "test", "sample %d has %g behind its rows", (int)ids[i],
                               (double)values[i * N + (int)v]);
    return AQ_OK;
}

/* What both ends have lost and the receiver waits for: as a stage computes it again. */
static enum aq_status remake(struct side *s)
{
    uint64_t id;
    if (!aq_edge_wanted(s->edge, &id) || !idle(s->edge)) return AQ_OK;
    const struct aq_edge_batch batch = {.samples = 1, .sample_ids = &id, .lengths = s->shorter ? &lengths[id] : NULL};
    activation(id, 0, s->host[0]);
    AQ_TRY(values_set(s, &s->values, s->host[0]));
    return aq_edge_remade(s->edge, &batch, &s->values, s->send);
}

/* Of an edge that is still: rows alone where they may be, each second time; and values that are asked for later. */
static enum aq_status send_forward(struct side *s, const struct aq_edge_batch *batch)
{
    const bool settled = batch->step % 2 && aq_edge_settled(s->edge, batch);
    return settled ? aq_edge_send_still(s->edge, batch) : aq_edge_send_forward(s->edge, batch, &s->values, s->send);
}

static enum aq_status receive_forward(struct side *s, const struct aq_edge_batch *batch)
{
    if (s->plan->edges[0].shape.still && batch->step == 3) {
        const enum aq_status status = aq_edge_receive_still(s->edge, batch);
        if (status == AQ_OK) return aq_edge_recall(s->edge, batch, &s->values, s->receive);
        if (status != AQ_NOTFOUND) return status;
    }
    return aq_edge_receive_forward(s->edge, batch, &s->values, s->receive);
}

static enum aq_status exchange(struct side *s, uint32_t epoch, uint32_t micro_batch)
{
    float *const values = s->host[0], *const back = s->host[1];
    const uint64_t ids[B] = {micro_batch * B, micro_batch * B + 1, micro_batch * B + 2};
    const struct aq_edge_batch batch = {.step = epoch,
                                        .micro_batch = micro_batch,
                                        .samples = B,
                                        .sample_ids = ids,
                                        .lengths = s->shorter ? lengths + micro_batch * B : NULL};
    const uint32_t visit = epoch * SAMPLES + micro_batch * B;
    if (s->sender) {
        for (int i = 0; i < B; i++)
            activation(ids[i], s->steady ? 0 : epoch, values + i * N);
        for (int v = 0; s->leap && epoch == 0 && micro_batch == 1 && v < N; v++)
            values[v] *= 20; /* sample 3 */
        for (int i = 0; s->spoil && epoch == 1 && i < B; i++)
            if (ids[i] == 2) values[i * N + 7] = INFINITY;
        padding_spoil(s, ids, values);
        AQ_TRY(values_set(s, &s->values, values));
        WHEN_DONE(send_forward(s, &batch));
        if (!idle(s->edge)) assert_int_equal(aq_edge_send_forward(s->edge, &batch, &s->values, s->send), AQ_AGAIN);
        /* The next forward writes there at once, as far as it is concerned. */
        AQ_TRY(values_set(s, &s->values, s->host[1]));
        AQ_TRY(aq_device_stream_sync(s->device, s->compute));
        AQ_TRY(wait_for(s, aq_edge_backward_here));
        WHEN_DONE(aq_edge_receive_backward(s->edge, &batch, &s->back, s->receive));
        if (s->plan->edges[0].shape.still) return AQ_OK; /* nothing came */
        AQ_TRY(values_get(s, &s->back, back));
        AQ_TRY(padding_check(s, ids, back));
        AQ_TRY(wait_for(s, idle));
        for (uint32_t i = 0; i < B; i++)
            s->gradients[visit + i] = aq_digest(back + i * N, N * sizeof(float));
        return AQ_OK;
    }
    AQ_TRY(wait_for(s, forward_here));
    WHEN_DONE(receive_forward(s, &batch));
    AQ_TRY(values_get(s, &s->values, values));
    AQ_TRY(padding_check(s, ids, values));
    for (uint32_t i = 0; i < B; i++)
        s->decoded[visit + i] = aq_digest(values + i * N, N * sizeof(float));
    for (int i = 0; i < B * N; i++)
        back[i] = values[i] * 1e-5f;
    padding_spoil(s, ids, back);
    AQ_TRY(values_set(s, &s->back, back));
    WHEN_DONE(aq_edge_send_backward(s->edge, &batch, &s->back, s->send));
    if (s->plan->edges[0].shape.still) return aq_device_stream_sync(s->device, s->compute); /* nobody has read them */
    return AQ_OK;
}

/* One frame that no edge sends; the receiver says what is wrong with it, and does not ask NCCL for anything. */
static enum aq_status be_odd(struct side *s)
{
    static uint8_t bodies[2][B * AQ_EDGE_ROW_BYTES]; /* of either side's thread */
    uint8_t *const body = bodies[s->sender];
    struct aq_frame frame = {.kind = AQ_FRAME_FORWARD,
                             .flags = AQ_EDGE_CARRIED,
                             .argument = B,
                             .body = body,
                             .body_bytes = sizeof bodies[0]};
    for (uint32_t i = 0; i < B; i++) {
        const struct aq_edge_row row = {.sample = i, .body_bytes = s->odd == BODY_NONE ? 0 : UINT32_MAX / 2};
        aq_edge_row_write(&row, body + (size_t)i * AQ_EDGE_ROW_BYTES);
    }
    if (s->odd == ROWS_SHORT) frame.body_bytes -= 16;
    if (s->odd == TOLD_AGAIN) frame = (struct aq_frame){.kind = AQ_FRAME_CONTROL, .flags = 1, .argument = 5};
    if (s->sender) AQ_TRY(aq_link_send(s->link, &frame, AQ_EDGE_MIRROR_NO_PIECE));
    for (;;) {
        struct aq_link_event event;
        const uint32_t seen = aq_bell_count(s->bell);
        while (s->sender && aq_link_poll(s->link, &event) == AQ_OK)
            if (event.kind == AQ_LINK_CLOSED) return AQ_OK;
        if (!s->sender) AQ_TRY(aq_edge_pump(s->edge));
        AQ_TRY(aq_bell_wait(s->bell, seen, aq_clock_after(120000000000u)));
    }
}

static enum aq_status side_work(struct side *s)
{
    AQ_TRY(side_open(s));
    if (s->odd) return be_odd(s);
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        AQ_TRY(lose_message(s, epoch));
        for (uint32_t m = 0; m < MICRO; m++)
            AQ_TRY(exchange(s, epoch, m));
    }
    AQ_TRY(aq_edge_drain(s->edge, aq_clock_after(120000000000u)));
    for (uint64_t i = 0; s->cache && i < SAMPLES; i++) {
        const struct aq_cache_key key = message_key(s, i);
        struct aq_cache_entry entry;
        if (aq_cache_peek(s->cache, &key, &entry) != AQ_OK) continue;
        s->messages[i] = entry.digest;
        s->versions[i] = entry.version;
    }
    aq_edge_measures(s->edge, &s->measures);
    const enum aq_status status = aq_link_finish(s->link, aq_clock_after(120000000000u));
    return status == AQ_CLOSED ? AQ_OK : status; /* closed: the other side was first to say goodbye */
}

static void side_run(void *context)
{
    struct side *s = context;
    s->status = side_work(s);
    if (s->status != AQ_OK) {
        if (s->link) (void)aq_link_abort(s->link, s->status, aq_error_text(), aq_clock_after(2000000000u));
        aq_edges_abandon(s->edge, NULL);
    }
    aq_edge_close(s->edge);
    aq_link_close(s->link);
    aq_net_close(s->net);
    aq_cache_close(s->cache);
    if (s->device) {
        aq_values_close(s->device, BYTES, &s->values);
        aq_values_close(s->device, BYTES, &s->back);
        aq_device_stream_close(s->device, s->compute);
        aq_device_stream_close(s->device, s->send);
        aq_device_stream_close(s->device, s->receive);
    }
    aq_device_close(s->device);
    aq_bell_close(s->bell);
}

struct result {
    struct side sender, receiver;
};

static const char *kind = "cpu";
static bool spoil, nccl, shorter, steady, leap;
static uint32_t guarded;        /* ends */
static uint32_t told;           /* rung of both ways */
static float rung;              /* where the sender begins */
static const char *freeze = ""; /* more of train */
static const char *backward = "codec: directq, bits: 8";
static uint32_t warmup; /* epochs, of a step each */
static uint32_t rows;   /* of a sample at the cut; 0: T */

static void run_sides(const char *codec, enum loss lose, enum odd odd, struct result *result)
{
    static unsigned count;
    char text[1024];
    struct aq_job *job;
    struct aq_plan *plan;
    const int bytes = snprintf(text, sizeof text, manifest, freeze, warmup, codec, backward);
    assert_int_equal(aq_job_parse(text, (size_t)bytes, "test.yaml", "/", NULL, 0, &job), AQ_OK);
    assert_int_equal(aq_plan_open(job, &plan), AQ_OK);
    const struct side side = {.plan = plan, .lose = lose, .odd = odd, .kind = kind, .nccl = nccl, .rows = rows,
                              .shorter = shorter, .steady = steady, .leap = leap, .guarded = guarded, .told = told,
                              .guard.state[AQ_GUARD_RUNG] = rung};
    *result = (struct result){.sender = side, .receiver = side};
    result->sender.sender = true;
    result->sender.spoil = spoil;
    snprintf(result->sender.address, sizeof result->sender.address, "sim://edge-%u", count);
    snprintf(result->receiver.address, sizeof result->receiver.address, "sim://edge-%u", count++);
    struct aq_thread *sender, *receiver;
    assert_int_equal(aq_thread_open("receiver", side_run, &result->receiver, &receiver), AQ_OK);
    assert_int_equal(aq_thread_open("sender", side_run, &result->sender, &sender), AQ_OK);
    aq_thread_close(sender);
    aq_thread_close(receiver);
    aq_plan_close(plan);
    aq_job_close(job);
}

static void run(const char *codec, enum loss lose, struct result *result)
{
    run_sides(codec, lose, WELL, result);
    assert_int_equal(result->sender.status, AQ_OK);
    assert_int_equal(result->receiver.status, AQ_OK);
    assert_memory_equal(result->sender.messages, result->receiver.messages, sizeof result->sender.messages);
    assert_memory_equal(result->sender.versions, result->receiver.versions, sizeof result->sender.versions);
}

static const char *const codecs[] = {
    "codec: aqsgd, bits: 1",
    "codec: aqsgd, bits: 2, scale: search",
    "codec: aqsgd, bits: 3, group: tile, tile: 32, hadamard: true",
    "codec: aqsgd, bits: 4",
    "codec: aqsgd, bits: 4, store: fp32, keyframe: fp32",
    "codec: aqsgd, bits: 4, store: bf16, keyframe: bf16",
    "codec: aqsgd, bits: 4, store: q8, keyframe: q8",
    "codec: aqsgd, bits: 5, store: q4, group: channel",
    "codec: aqsgd, bits: 6, store: q2, group: tensor, grid: midtread",
    "codec: aqsgd, bits: 7, rounding: stochastic, scale_format: pow2",
    "codec: aqsgd, bits: 8, scale_format: fp32",
    "codec: directq, bits: 3",
    "codec: raw, precision: fp32",
    "codec: raw, precision: bf16",
    "codec: ec, rate: 2.5",
    "codec: ec, error: 0.1, keyframe: ec",
    "codec: aqsgd, bits: 4, keyframe: ec, keyframe_rate: 5",
};

/* Every row of codecs.def, of activations and, where it may be, of gradients. */
static void test_edge_takes_every_codec_of_the_table(void **state)
{
    (void)state;
    static struct result result;
    enum aq_codec_kind codec;
    for (uint32_t i = 0; aq_codec_kind_at(i, &codec); i++) {
        const struct aq_codec_about *about = aq_codec_about(codec);
        char forward[64];
        snprintf(forward, sizeof forward, "codec: %s", about->name);
        const char *const before = backward;
        if (!about->activations) backward = forward;
        run(forward, NOTHING, &result);
        backward = before;
        assert_int_equal(result.sender.measures.keyframes, about->stateless ? 0 : SAMPLES);
        for (int s = 0; s < SAMPLES; s++)
            assert_int_equal(result.sender.versions[s], about->stateless ? 0 : EPOCHS);
    }
}

static void test_edge_holds_the_invariant_over_every_codec(void **state)
{
    (void)state;
    static struct result result;
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        run(codecs[i], NOTHING, &result);
        const bool remembers = strstr(codecs[i], "aqsgd") || strstr(codecs[i], "codec: ec");
        assert_int_equal(result.sender.measures.fetched + result.receiver.measures.fetched, 0);
        assert_int_equal(result.sender.measures.keyframes, remembers ? SAMPLES : 0);
        assert_int_equal(result.receiver.measures.keyframes, remembers ? SAMPLES : 0);
        for (int s = 0; s < SAMPLES; s++)
            assert_int_equal(result.sender.versions[s], remembers ? EPOCHS : 0);
        assert_int_equal(result.sender.measures.raws, 0);
    }
}

/* On each rung of a ladder the bits are those of an edge that began with so many: one that a guard has come to, and one
 * that is told (edges.bits: auto), which is the gradients', too. */
static void rungs_on(const char *device)
{
    static struct result plain, raised;
    static const char *const more[][2] = {{"codec: aqsgd, bits: 2", "codec: aqsgd, bits: 3"},
                                          {"codec: aqsgd, bits: 2", "codec: aqsgd, bits: 4"},
                                          {"codec: aqsgd, bits: 2", "codec: aqsgd, bits: 6"},
                                          {"codec: ec, rate: 1.5", "codec: ec, rate: 2"},
                                          {"codec: ec, rate: 1.5", "codec: ec, rate: 2.5"}};
    static const char *const back[] = {"codec: directq, bits: 3", "codec: directq, bits: 4", "codec: directq, bits: 6"};
    for (size_t i = 0; i < 10; i++) {
        const char *const *const codec = more[i / 2];
        const uint32_t high = (uint32_t)(i / 2 % 3 + 1);
        kind = "cpu";
        backward = back[i % 2 ? high - 1 : 2];
        run(codec[1], NOTHING, &plain);
        backward = i % 2 ? "codec: directq, bits: 2" : back[2];
        told = i % 2 ? high : 0;
        guarded = i % 2 ? 0 : 3;
        rung = (float)(i % 2 ? 0 : high);
        kind = device;
        run(codec[0], i ? NOTHING : RECEIVER, &raised);
        guarded = told = 0;
        rung = 0;
        kind = "cpu";
        backward = "codec: directq, bits: 8";
        assert_memory_equal(raised.receiver.decoded, plain.receiver.decoded, sizeof plain.receiver.decoded);
        assert_memory_equal(raised.sender.messages, plain.sender.messages, sizeof plain.sender.messages);
        assert_memory_equal(raised.sender.gradients, plain.sender.gradients, sizeof plain.sender.gradients);
        assert_true(raised.sender.measures.bits == strtod(strrchr(codec[1], ' '), NULL));
    }
}

static void test_edge_rung_has_the_bits_of_as_many_bits(void **state)
{
    (void)state;
    static struct result alone;
    rungs_on("cpu");
    rungs_on("isolated");
    guarded = 1; /* the receiver's manifest says nothing of a guard */
    rung = 1;
    aq_error_clear();
    run_sides("codec: aqsgd, bits: 2", NOTHING, WELL, &alone);
    guarded = 0;
    rung = 0;
    assert_int_equal(alone.receiver.status, AQ_PROTO);
    assert_int_not_equal(alone.sender.status, AQ_OK);
    told = 4; /* there are four, from 0 */
    run_sides("codec: aqsgd, bits: 2", NOTHING, WELL, &alone);
    told = 0;
    assert_int_equal(alone.sender.status, AQ_PROTO);
}

/* Its message is worth less than none after the second visit: the third is a keyframe, and all is well again. */
static void afresh_on(const char *device)
{
    static struct result loose, cured;
    leap = true;
    kind = device;
    run("codec: aqsgd, bits: 2", NOTHING, &loose);
    guarded = 3;
    run("codec: aqsgd, bits: 2", NOTHING, &cured);
    guarded = 0;
    kind = "cpu";
    leap = false;
    assert_int_equal(loose.sender.measures.keyframes, SAMPLES);
    assert_int_equal(cured.sender.measures.afresh, 1);
    assert_int_equal(cured.sender.measures.keyframes, SAMPLES + 1);
    assert_int_equal(cured.receiver.measures.keyframes, SAMPLES + 1);
    assert_int_equal(cured.sender.measures.fetched + cured.receiver.measures.fetched, 0);
    for (int s = 0; s < SAMPLES; s++)
        assert_int_equal(cured.sender.versions[s], s == 3 ? EPOCHS - 2 : EPOCHS);
    for (int v = 0; v < VISITS; v++)
        if (v % SAMPLES != 3 || v < 2 * SAMPLES)
            assert_int_equal(cured.receiver.decoded[v], loose.receiver.decoded[v]);
    assert_true(cured.sender.measures.sum_error2 < loose.sender.measures.sum_error2);
}

static void test_edge_sends_afresh_what_ran_away(void **state)
{
    (void)state;
    afresh_on("cpu");
    afresh_on("isolated");
}

/* Columns of 4 values, rows of 160: the shape is the cut's own, and the bytes follow it. */
static void test_edge_codes_the_shape_of_its_own_cut(void **state)
{
    (void)state;
    static struct result tall, flat;
    rows = N / 4;
    run("codec: aqsgd, bits: 4", NOTHING, &tall);
    rows = 1;
    run("codec: aqsgd, bits: 4", NOTHING, &flat);
    rows = 0;
    const uint64_t keyframes = SAMPLES * (2 * N), changes = (EPOCHS - 1) * SAMPLES * (N / 2);
    const uint64_t table = EPOCHS * SAMPLES * AQ_EDGE_ROW_BYTES, gaps = EPOCHS * SAMPLES * AQ_EDGE_BODY_ALIGN;
    const uint64_t least = table + keyframes + changes;
    const uint64_t tall_scales = (EPOCHS - 1) * SAMPLES * 2 * (N / 4), flat_scales = (EPOCHS - 1) * SAMPLES * 2;
    assert_in_range(tall.sender.measures.sent_bytes, least + tall_scales, least + tall_scales + gaps);
    assert_in_range(flat.sender.measures.sent_bytes, least + flat_scales, least + flat_scales + gaps);
}

static uint32_t rows_of_all(void)
{
    uint32_t sum = 0;
    for (int i = 0; i < SAMPLES; i++)
        sum += lengths[i];
    return sum;
}

/* Of samples that have lengths only the real rows are read, sent, written and kept, over every codec and a loss. */
static void test_edge_neither_sends_nor_keeps_padding(void **state)
{
    (void)state;
    static struct result padded, lost;
    shorter = true;
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        run(codecs[i], NOTHING, &padded);
        assert_int_equal(padded.sender.measures.raws, 0); /* no value behind the rows was looked at */
        assert_true(padded.sender.measures.values == (double)EPOCHS * rows_of_all() * C);
        for (enum loss lose = RECEIVER; lose <= SENDER; lose++) {
            run(codecs[i], lose, &lost);
            assert_memory_equal(lost.receiver.decoded, padded.receiver.decoded, sizeof padded.receiver.decoded);
            assert_memory_equal(lost.sender.messages, padded.sender.messages, sizeof padded.sender.messages);
        }
    }
    run("codec: raw, precision: fp32", NOTHING, &padded);
    const uint64_t values = (uint64_t)EPOCHS * rows_of_all() * C * sizeof(float);
    const uint64_t table = EPOCHS * SAMPLES * AQ_EDGE_ROW_BYTES, gaps = EPOCHS * SAMPLES * AQ_EDGE_BODY_ALIGN;
    assert_in_range(padded.sender.measures.sent_bytes, table + values, table + values + gaps);
    shorter = false;
}

static void test_edge_sends_warm_up_epochs_uncompressed(void **state)
{
    (void)state;
    static struct result whole, direct, kept;
    run("codec: raw, precision: fp32", NOTHING, &whole);
    warmup = 2;
    run("codec: directq, bits: 3", NOTHING, &direct);
    run("codec: aqsgd, bits: 3, keyframe: fp32", NOTHING, &kept);
    warmup = 0;
    const size_t first = 2 * SAMPLES * sizeof whole.receiver.decoded[0];
    assert_memory_equal(direct.receiver.decoded, whole.receiver.decoded, first);
    assert_memory_equal(kept.receiver.decoded, whole.receiver.decoded, first);
    assert_memory_equal(kept.sender.gradients, direct.sender.gradients, first);
    for (int visit = 2 * SAMPLES; visit < EPOCHS * SAMPLES; visit++) {
        assert_true(direct.receiver.decoded[visit] != whole.receiver.decoded[visit]);
        assert_true(kept.receiver.decoded[visit] != whole.receiver.decoded[visit]);
    }
    assert_int_equal(kept.sender.measures.keyframes, 2 * SAMPLES);
    for (int s = 0; s < SAMPLES; s++)
        assert_int_equal(kept.sender.versions[s], EPOCHS - 1);
    assert_int_equal(direct.sender.measures.raws, 0);
}

static void test_edge_heals_a_lost_message_bit_for_bit(void **state)
{
    (void)state;
    static struct result whole, lost;
    run("codec: aqsgd, bits: 3", NOTHING, &whole);
    for (enum loss lose = RECEIVER; lose <= SENDER; lose++) {
        run("codec: aqsgd, bits: 3", lose, &lost);
        assert_memory_equal(lost.receiver.decoded, whole.receiver.decoded, sizeof whole.receiver.decoded);
        assert_memory_equal(lost.sender.gradients, whole.sender.gradients, sizeof whole.sender.gradients);
        assert_memory_equal(lost.sender.messages, whole.sender.messages, sizeof whole.sender.messages);
        assert_int_equal(lost.receiver.measures.fetched, lose == RECEIVER ? 2 : 0);
        assert_int_equal(lost.sender.measures.fetched, lose == SENDER ? 2 : 0);
        assert_int_equal(lost.sender.measures.keyframes, SAMPLES);
    }
}

static void test_edge_sends_a_keyframe_where_both_have_lost_it(void **state)
{
    (void)state;
    static struct result lost;
    run("codec: aqsgd, bits: 3", BOTH, &lost);
    assert_int_equal(lost.sender.measures.keyframes, SAMPLES + 2);
    assert_int_equal(lost.sender.measures.fetched, 0);
}

/* It is sent as it is, both ends forget the sample, and it begins anew. */
static void test_edge_sends_raw_what_no_store_holds(void **state)
{
    (void)state;
    static struct result whole, spoilt;
    run("codec: aqsgd, bits: 4", NOTHING, &whole);
    spoil = true;
    run("codec: aqsgd, bits: 4", NOTHING, &spoilt);
    spoil = false;
    float a[N];
    activation(2, 1, a);
    a[7] = INFINITY;
    assert_int_equal(spoilt.receiver.decoded[SAMPLES + 2], aq_digest(a, sizeof a));
    assert_int_equal(spoilt.sender.measures.raws, 1);
    assert_int_equal(spoilt.receiver.measures.raws, 1);
    assert_int_equal(spoilt.sender.measures.keyframes, SAMPLES + 1);
    assert_int_equal(spoilt.sender.measures.fetched, 0);
    for (int s = 0; s < SAMPLES; s++)
        assert_int_equal(spoilt.sender.versions[s], s == 2 ? EPOCHS - 2 : EPOCHS);
    for (int v = 0; v < VISITS; v++)
        if (v % SAMPLES != 2) assert_int_equal(spoilt.receiver.decoded[v], whole.receiver.decoded[v]);
}

static void run_still(const char *codec, enum loss lose, struct result *result)
{
    steady = true;
    freeze = ", freeze: '*, !head'";
    run(codec, lose, result);
    steady = false;
    freeze = "";
}

/* Values as they are keep their bits, whatever is lost; after the first epoch rows alone travel, and no gradient. */
static void test_edge_sends_once_what_never_changes(void **state)
{
    (void)state;
    static struct result each, once;
    static const char *const plain[] = {"codec: raw, precision: fp32", "codec: raw, precision: fp16",
                                        "codec: aqsgd, bits: 4, store: fp32, keyframe: fp32"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        for (int which = 0; which < 5; which++) { /* what is lost; then lengths */
            shorter = which == 4;
            const enum loss lose = shorter ? NOTHING : (enum loss)which;
            steady = true;
            run(plain[i], NOTHING, &each);
            run_still(plain[i], lose, &once);
            shorter = false;
            assert_memory_equal(once.receiver.decoded, each.receiver.decoded, sizeof each.receiver.decoded);
            assert_int_equal(once.receiver.measures.sent_bytes, 0);
            assert_int_equal(once.sender.measures.held, (EPOCHS - 1) * SAMPLES);
            assert_int_equal(once.sender.measures.keyframes, SAMPLES);
            assert_int_equal(once.receiver.measures.fetched, lose & RECEIVER ? 2 : 0);
            assert_int_equal(once.sender.measures.fetched, 0); /* that it has lost one it does not see */
            if (which == 0 && i == 0)
                assert_int_equal(once.sender.measures.sent_bytes,
                                 EPOCHS * SAMPLES * AQ_EDGE_ROW_BYTES + SAMPLES * N * sizeof(float));
        }
}

/* What the first visit left is what each visit brings, over every codec with messages. */
static void test_edge_never_refines_what_never_changes(void **state)
{
    (void)state;
    static struct result once;
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        run_still(codecs[i], BOTH, &once);
        const bool still = strstr(codecs[i], "directq") == NULL;
        for (int s = 0; s < SAMPLES; s++)
            assert_int_equal(once.sender.versions[s], still ? 1 : 0);
        for (int v = 2 * SAMPLES; v < VISITS; v++)
            assert_int_equal(once.receiver.decoded[v], once.receiver.decoded[v - SAMPLES]);
    }
}

static void same(const struct result *a, const struct result *b, const char *codec)
{
    if (memcmp(a->receiver.decoded, b->receiver.decoded, sizeof a->receiver.decoded) != 0 ||
        memcmp(a->sender.gradients, b->sender.gradients, sizeof a->sender.gradients) != 0 ||
        memcmp(a->sender.messages, b->sender.messages, sizeof a->sender.messages) != 0)
        fail_msg("%s, lost %d, spoilt %d: %s%s has not the bits of the CPU", codec, a->sender.lose, a->sender.spoil,
                 kind, a->sender.nccl ? " over NCCL" : "");
    /* And it went the same way there: a loss that nobody met is none. */
    assert_int_equal(a->sender.measures.keyframes, b->sender.measures.keyframes);
    assert_int_equal(a->receiver.measures.keyframes, b->receiver.measures.keyframes);
    assert_int_equal(a->sender.measures.fetched, b->sender.measures.fetched);
    assert_int_equal(a->receiver.measures.fetched, b->receiver.measures.fetched);
    assert_memory_equal(a->sender.versions, b->sender.versions, sizeof a->sender.versions);
}

/* Codecs with kernels and without at one edge, either way round. */
static void mixed_on(const char *device)
{
    static struct result here, there;
    static const char *const ways[][2] = {{"codec: aqsgd, bits: 4", "codec: ec"},
                                          {"codec: ec", "codec: directq, bits: 8"},
                                          {"codec: ec", "codec: ec, rate: 3"},
                                          {"codec: raw, precision: fp32", "codec: ec"}};
    const char *const before = backward;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        for (int lose = 0; lose < 2; lose++) {
            backward = ways[i][1];
            run(ways[i][0], lose ? BOTH : NOTHING, &here);
            kind = device;
            run(ways[i][0], lose ? BOTH : NOTHING, &there);
            same(&there, &here, ways[i][0]);
            kind = "cpu";
        }
    }
    backward = before;
}

/* Every codec, what was lost, and what was spoilt, on that kind of device, against the CPU. */
static void edge_on(const char *device, bool over_nccl)
{
    static struct result here, there;
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (over_nccl && i % 10 != 3) continue; /* what carries a body knows no codec */
        for (int which = 0; which < 8; which++) {
            if (which == 4 && i % 4 != 3) continue; /* epochs that go uncompressed know no bits */
            spoil = which == 3;
            warmup = which == 4 ? 2 : 0;
            shorter = which == 5;
            const enum loss lose = which < 3 ? (enum loss)which : which == 7 ? BOTH : NOTHING;
            freeze = which >= 6 ? ", freeze: '*, !head'" : "";
            steady = which >= 6;
            kind = "cpu";
            run(codecs[i], lose, &here);
            kind = device;
            nccl = over_nccl;
            run(codecs[i], lose, &there);
            nccl = false;
            same(&there, &here, codecs[i]);
        }
        spoil = shorter = steady = false;
        warmup = 0;
        freeze = "";
    }
    kind = "cpu";
}

/* With both ends on GPUs of their own: is there a second? */
static bool edge_over_nccl(void)
{
    const struct aq_device_config config = {.kind = "cuda", .index = 1};
    struct aq_device *device = NULL;
    const enum aq_status status = aq_device_open(&config, &device);
    aq_device_close(device);
    if (status == AQ_OK) return true;
    printf("no second GPU: NCCL is not tested\n");
    return false;
}

static void test_edge_over_nccl_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    const char *only = getenv("AQ_DEVICES");
    if (!only || strcmp(only, "cuda") != 0 || !edge_over_nccl()) skip();
    edge_on("cuda", true);
}

/* What a frame says of bodies that NCCL carries is checked before NCCL hears of it. */
static void test_edge_refuses_what_no_edge_says_of_nccl(void **state)
{
    (void)state;
    static struct result result;
    const char *only = getenv("AQ_DEVICES");
    const bool gpus = only && strcmp(only, "cuda") == 0 && edge_over_nccl();
    for (enum odd odd = ROWS_SHORT; odd <= TOLD_AGAIN; odd++) {
        nccl = gpus && odd != NOT_JOINED;
        kind = gpus ? "cuda" : "cpu";
        aq_error_clear();
        run_sides("codec: aqsgd, bits: 4", NOTHING, odd, &result);
        assert_int_equal(result.sender.status, AQ_OK); /* and the link told it why */
        assert_int_equal(result.receiver.status, AQ_PROTO);
        if (!strstr(aq_error_text(), odd == TOLD_AGAIN ? "says something of what carries bodies (1) that was not asked"
                                                       : "no rows of such"))
            fail_msg("odd %d: %s", (int)odd, aq_error_text());
    }
    nccl = false;
    kind = "cpu";
}

static void test_edge_on_other_devices_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    const char *only = getenv("AQ_DEVICES"), *gpu = getenv("AQ_GPU");
    static const char *const kinds[] = {"isolated", "cuda"};
    uint32_t seen = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (only && strcmp(only, kinds[k]) != 0) continue;
        const struct aq_device_config config = {.kind = kinds[k], .threads = 1};
        struct aq_device *device = NULL;
        const enum aq_status status = aq_device_open(&config, &device);
        aq_device_close(device);
        if (status == AQ_NODEV && !(gpu && strcmp(gpu, "required") == 0)) {
            printf("no device of kind %s: not tested\n", kinds[k]);
            continue;
        }
        assert_int_equal(status, AQ_OK);
        edge_on(kinds[k], false);
        mixed_on(kinds[k]);
        rungs_on(kinds[k]);
        afresh_on(kinds[k]);
        seen++;
    }
    if (seen == 0) skip();
}

int main(void)
{
    isolated_register("isolated");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edge_takes_every_codec_of_the_table),
        cmocka_unit_test(test_edge_holds_the_invariant_over_every_codec),
        cmocka_unit_test(test_edge_rung_has_the_bits_of_as_many_bits),
        cmocka_unit_test(test_edge_sends_afresh_what_ran_away),
        cmocka_unit_test(test_edge_codes_the_shape_of_its_own_cut),
        cmocka_unit_test(test_edge_neither_sends_nor_keeps_padding),
        cmocka_unit_test(test_edge_sends_warm_up_epochs_uncompressed),
        cmocka_unit_test(test_edge_heals_a_lost_message_bit_for_bit),
        cmocka_unit_test(test_edge_sends_a_keyframe_where_both_have_lost_it),
        cmocka_unit_test(test_edge_sends_raw_what_no_store_holds),
        cmocka_unit_test(test_edge_sends_once_what_never_changes),
        cmocka_unit_test(test_edge_never_refines_what_never_changes),
        cmocka_unit_test(test_edge_on_other_devices_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_edge_over_nccl_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_edge_refuses_what_no_edge_says_of_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
