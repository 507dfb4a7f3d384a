/*
 * edge_sides.h -- two edges in one process, joined by a sim link, each with a memory cache and a thread of its own, as
 * test_edge.c runs them. The sender codes drifting activations of a few samples for some epochs, the receiver decodes
 * and answers with gradients; a run records the digest of every activation that was decoded. What a run is like is told
 * by the variables before run_sides.
 */
#ifndef TESTS_EDGE_SIDES_H
#define TESTS_EDGE_SIDES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache_rot.h"
#include "device_isolated.h"
#include "edge_cached.h"
#include "edge_private.h"
#include "job.h"
#include "plan.h"

enum { SAMPLES = 6, B = 3, T = 8, C = 20, EPOCHS = 5, N = T * C };
enum { PIXELS = 8, CROP = 3, SIDE = 4 }; /* of images that are cropped, and their side at the cut: SIDE^2 rows */
enum { BYTES = B * N * sizeof(float), MICRO = SAMPLES / B, VISITS = EPOCHS * SAMPLES };

static const char manifest[] = "model: {blocks: 2, heads: 2, channels: 20, context: 8, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 8, batch: 6, micro_batch: 3, epochs: 5%s}\n"
                               "pipeline: {stages: 2}\n"
                               "edges: {check: %s, warmup_epochs: %u, forward: {%s}, backward: {%s}}\n"
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
    uint32_t index;   /* which GPU, where there is one of that number; else the first */
    _Atomic int *port; /* the receiver says here where it listens; NULL: the address is known */
    float means;      /* how far apart the means of channels lie */
    bool nccl;        /* bodies go from GPU to GPU */
    uint32_t rows;    /* of a cut that is not (T, C); 0: it is */
    bool shorter;     /* samples have `lengths` rows */
    bool steady;      /* activations are the same in all epochs */
    bool cropped;     /* samples are images, cropped and flipped anew in each epoch */
    bool unmoved;     /* and the edge is told of flips alone */
    bool huge;        /* those of samples 1 and 5, and from the third epoch on of sample 3, are beyond fp16 */
    float back_scale; /* gradients are so many times the activations */
    bool leap;        /* those of sample 3 are twenty times as large in the first epoch */
    uint32_t guarded; /* ends that have a guard: 1 the sender, 2 the receiver */
    uint32_t told;    /* edges.bits: auto: which level both ways are told; 0: it is fixed */
    struct aq_edge_guard guard;
    enum odd odd; /* the sender's: what is wrong with a frame */
    struct aq_device *device;
    struct aq_stream *compute, *send, *receive;
    struct aq_values values, back; /* activations, gradients */
    float host[2][B * N];          /* of both: copies may be made after the call that asks for them */
    struct aq_eventcount *eventcount;
    struct aq_net *net;
    struct aq_link *link;
    struct aq_cache *cache;
    struct aq_edge *edge;
    char address[64];
    enum aq_status status;
    uint64_t decoded[VISITS];   /* digests of what the receiver computed with                */
    uint64_t gradients[VISITS]; /* of what the sender got back                              */
    uint64_t messages[2 * SAMPLES]; /* digests of the messages at the end, and of those of flipped images */
    uint64_t versions[2 * SAMPLES];
    float kept[2 * SAMPLES][N]; /* the messages of images that are cropped, where they are fp32 */
    struct aq_edge_measures measures;
};

static enum aq_status side_open(struct side *s)
{
    const uint64_t deadline = aq_clock_after(120000000000u);
    const struct aq_plan_stage *stage = &s->plan->stages[s->sender ? 0 : 1];
    AQ_TRY(aq_eventcount_open(&s->eventcount));
    const struct aq_net_config net = {.eventcount = s->eventcount, .links_max = 2};
    AQ_TRY(aq_net_open(&net, &s->net));
    struct aq_link_config link = s->sender ? stage->link_out : stage->link_in;
    link.send_frames += 8;
    if (s->sender) {
        AQ_TRY(aq_link_connect(s->net, s->address, &link, deadline, &s->link));
    } else {
        struct aq_listener *listener;
        uint16_t port;
        AQ_TRY(aq_link_listen(s->net, s->address, &listener, &port));
        if (s->port) atomic_store_explicit(s->port, port, memory_order_release); /* the sender's process reads it */
        const enum aq_status status = aq_link_accept(listener, &link, deadline, &s->link);
        aq_listener_close(listener);
        AQ_TRY(status);
    }
    if (stage->cache.slots) {
        struct aq_cache_config cache = stage->cache;
        cache.eventcount = s->eventcount;
        cache.job_digest = s->plan->job_digest;
        cache.job_name = "test";
        if (s->cropped) cache.samples_max *= 2;
        if (s->rows) cache.value_bytes_max += s->rows * sizeof(float); /* scales */
        AQ_TRY(aq_cache_open(&cache, &s->cache));
    }
    struct aq_device_config device = {.kind = s->kind, .index = s->nccl ? !s->sender : s->index, .threads = 1};
    enum aq_status opened = aq_device_open(&device, &s->device);
    if (opened == AQ_NODEV && !s->nccl && device.index > 0) {
        device.index = 0;
        opened = aq_device_open(&device, &s->device);
    }
    AQ_TRY(opened);
    AQ_TRY(aq_device_stream_open_light(s->device, &s->compute));
    AQ_TRY(aq_device_stream_open_light(s->device, &s->send));
    AQ_TRY(aq_device_stream_open_light(s->device, &s->receive));
    AQ_TRY(aq_values_open(s->device, BYTES, &s->values));
    AQ_TRY(aq_values_open(s->device, BYTES, &s->back));
    struct aq_edge_shape shape = s->plan->edges[0].shape;
    if (s->rows) shape.rows = s->rows, shape.columns = N / s->rows;
    if (s->cropped) shape.pixels = s->unmoved ? 0 : PIXELS, shape.messages *= 2;
    struct aq_codec_config levels[AQ_EDGE_LEVELS];
    const uint32_t level_count = aq_edge_level_list(&shape.forward, levels);
    const float level = s->guard.state[AQ_GUARD_LEVEL];
    shape.guard = s->guarded & (s->sender ? 1u : 2u);
    shape.level_lists = s->told > 0;
    aq_edge_guard_init(&s->guard, 0, level_count, EPOCHS);
    s->guard.state[AQ_GUARD_LEVEL] = level;
    const struct aq_edge_config edge = {.device = s->device,
                                        .guard = shape.guard && s->sender ? &s->guard : NULL,
                                        .shape = &shape,
                                        .sender = s->sender,
                                        .link = s->link,
                                        .cache = s->plan->edges[0].size.message_bytes ? s->cache : NULL,
                                        .eventcount = s->eventcount,
                                        .silence_ns = 120000000000u};
    AQ_TRY(aq_edge_open(&edge, &s->edge));
    if (s->told) AQ_TRY(aq_edge_levels(s->edge, s->told, s->told));
    AQ_TRY(aq_edge_warm(s->edge, s->values.at, s->compute)); /* nothing that comes later may tell */
    return aq_edge_join(s->edge, s->nccl ? AQ_TRANSPORT_NCCL : AQ_TRANSPORT_LINKS);
}

static void activation(uint64_t sample, uint32_t epoch, float means, float *a)
{
    const struct aq_rng_key base = aq_rng_key(1, AQ_RNG_TEST, sample, 0);
    const struct aq_rng_key drift = aq_rng_key(1, AQ_RNG_TEST, sample, 1 + epoch);
    for (uint64_t i = 0; i < N; i++)
        a[i] = aq_rng_normal(&base, i) + 0.05f * aq_rng_normal(&drift, i);
    const struct aq_rng_key channels = aq_rng_key(1, AQ_RNG_TEST, SAMPLES, 0);
    for (uint64_t i = 0; means > 0 && i < N; i++)
        a[i] += means * aq_rng_normal(&channels, i % C);
}

static struct aq_view view_of(uint32_t epoch, uint64_t sample)
{
    const struct aq_augment augment = {.crop = CROP, .flip = true};
    return aq_view_of(&augment, 1, epoch, sample);
}

enum { COLUMNS = N / (SIDE * SIDE) };

/* What an image has at (y, x) of the cut, also beyond its edges. */
static float feature(uint64_t sample, bool flipped, int y, int x, int c)
{
    enum { FRAME = 16 };
    const struct aq_rng_key base = aq_rng_key(1, AQ_RNG_TEST, sample, 100 + flipped);
    return aq_rng_normal(&base, (uint64_t)(((y + FRAME / 2) * FRAME + x + FRAME / 2) * COLUMNS + c));
}

static void activation_seen(uint64_t sample, uint32_t epoch, float *a)
{
    const struct aq_view whole = view_of(epoch, sample), view = aq_view_at(&whole, SIDE, PIXELS);
    const struct aq_rng_key drift = aq_rng_key(1, AQ_RNG_TEST, sample, 1 + epoch);
    for (int i = 0; i < N; i++) {
        const int row = i / COLUMNS;
        a[i] = feature(sample, view.flipped, row / SIDE + view.down, row % SIDE + view.right, i % COLUMNS) +
               0.05f * aq_rng_normal(&drift, (uint64_t)i);
    }
}

static struct aq_cache_key message_key(const struct side *s, uint64_t sample, bool flipped)
{
    return (struct aq_cache_key){.sample = sample, .edge = 0, .side = s->sender ? 0 : 1, .variant = flipped};
}

static enum aq_status remake(struct side *s);

static enum aq_status wait_for(struct side *s, bool (*here)(const struct aq_edge *edge))
{
    for (;;) {
        const uint32_t seen = aq_eventcount_read(s->eventcount);
        const enum aq_status pumped = aq_edge_pump(s->edge); /* AQ_CLOSED: the other side is done already */
        if (pumped != AQ_CLOSED) AQ_TRY(pumped);
        AQ_TRY(remake(s));
        if (here(s->edge)) return AQ_OK;
        AQ_TRY(pumped);
        const bool busy = aq_edge_busy_since(s->edge) > 0 || aq_edge_carrying(s->edge);
        const enum aq_status status =
            aq_eventcount_wait(s->eventcount, seen, aq_clock_after(busy ? AQ_EDGE_POLL_NS : 120000000000u));
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
        const struct aq_cache_key key = message_key(s, sample, s->cropped && view_of(epoch, sample).flipped);
        const enum aq_status status = cache_rot(s->cache, &key);
        if (status != AQ_NOTFOUND || !(s->cropped || s->huge)) AQ_TRY(status); /* first seen so; or raw, and not kept */
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
    if (!aq_edge_recompute_pending(s->edge, &id) || !idle(s->edge)) return AQ_OK;
    const struct aq_edge_batch batch = {.samples = 1, .sample_ids = &id, .lengths = s->shorter ? &lengths[id] : NULL};
    activation(id, 0, s->means, s->host[0]);
    for (int v = 0; s->huge && (id == 1 || id == 5) && v < N; v++)
        s->host[0][v] *= 1e5f;
    AQ_TRY(values_set(s, &s->values, s->host[0]));
    return aq_edge_recompute_done(s->edge, &batch, &s->values, s->send);
}

/* Of an edge that is still: rows alone where they may be, each second time; and values that are asked for later. */
static enum aq_status send_forward(struct side *s, const struct aq_edge_batch *batch)
{
    const bool settled = batch->step % 2 && aq_edge_is_cached(s->edge, batch);
    return settled ? aq_edge_send_cached(s->edge, batch) : aq_edge_send_forward(s->edge, batch, &s->values, s->send);
}

static enum aq_status receive_forward(struct side *s, const struct aq_edge_batch *batch)
{
    if (s->plan->edges[0].shape.still && batch->step == 3) {
        const enum aq_status status = aq_edge_receive_cached(s->edge, batch);
        if (status == AQ_OK) return aq_edge_reload(s->edge, batch, &s->values, s->receive);
        if (status != AQ_NOTFOUND) return status;
    }
    return aq_edge_receive_forward(s->edge, batch, &s->values, s->receive);
}

static bool is_huge(const struct side *s, uint64_t sample, uint32_t epoch)
{
    return s->huge && (sample == 1 || sample == 5 || (sample == 3 && epoch >= 2 && !s->steady));
}

static enum aq_status exchange(struct side *s, uint32_t epoch, uint32_t micro_batch)
{
    float *const values = s->host[0], *const back = s->host[1];
    const uint64_t ids[B] = {micro_batch * B, micro_batch * B + 1, micro_batch * B + 2};
    struct aq_edge_batch batch = {.step = epoch,
                                  .micro_batch = micro_batch,
                                  .samples = B,
                                  .sample_ids = ids,
                                  .lengths = s->shorter ? lengths + micro_batch * B : NULL};
    struct aq_view views[B];
    for (int i = 0; i < B; i++)
        views[i] = view_of(epoch, ids[i]);
    if (s->cropped) batch.views = views;
    const uint32_t visit = epoch * SAMPLES + micro_batch * B;
    if (s->sender) {
        for (int i = 0; i < B; i++)
            s->cropped ? activation_seen(ids[i], epoch, values + i * N)
                       : activation(ids[i], s->steady ? 0 : epoch, s->means, values + i * N);
        for (int i = 0; i < B; i++)
            for (int v = 0; is_huge(s, ids[i], epoch) && v < N; v++)
                values[i * N + v] *= 1e5f;
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
        back[i] = values[i] * s->back_scale;
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
    if (s->sender) AQ_TRY(aq_link_send(s->link, &frame, AQ_CHANNEL_BARE));
    for (;;) {
        struct aq_link_event event;
        const uint32_t seen = aq_eventcount_read(s->eventcount);
        while (s->sender && aq_link_poll(s->link, &event) == AQ_OK)
            if (event.kind == AQ_LINK_CLOSED) return AQ_OK;
        if (!s->sender) AQ_TRY(aq_edge_pump(s->edge));
        AQ_TRY(aq_eventcount_wait(s->eventcount, seen, aq_clock_after(120000000000u)));
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
    for (uint64_t i = 0; s->cache && i < 2 * SAMPLES; i++) {
        const struct aq_cache_key key = message_key(s, i % SAMPLES, i >= SAMPLES);
        struct aq_cache_entry entry;
        if (aq_cache_peek(s->cache, &key, &entry) != AQ_OK) continue;
        s->messages[i] = entry.digest;
        s->versions[i] = entry.version;
        if (!s->cropped) continue;
        AQ_TRY(aq_cache_get(s->cache, &key, aq_clock_after(120000000000u), &entry));
        if (entry.byte_count == sizeof s->kept[i]) memcpy(s->kept[i], entry.bytes, sizeof s->kept[i]);
        aq_cache_release(s->cache, &entry);
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
        /* Nothing is decoded twice. Where that failed while the edge was pumped, it fails again. */
        const enum aq_status again = s->status == AQ_CORRUPT && s->edge ? aq_edge_pump(s->edge) : AQ_CORRUPT;
        if (again != AQ_CORRUPT && strcmp(s->kind, "cuda") == 0) fail_msg("pumped once more: %d", (int)again);
        if (s->link) (void)aq_link_abort(s->link, s->status, aq_error_text(), aq_clock_after(2000000000u));
        aq_edges_abandon(s->edge, NULL);
    }
    aq_link_halt(s->link); /* a link that ended, or whose peer does not read, may still read the edge's bodies */
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
    aq_eventcount_close(s->eventcount);
}

struct result {
    struct side sender, receiver;
};

static const char *kind = "cpu";
static bool spoil, nccl, shorter, steady, leap, cropped, unmoved, huge;
static float back_scale = 1e-5f; /* gradients of activations */
static uint32_t guarded;        /* ends */
static uint32_t told;           /* level of both ways */
static float means;             /* how far apart channels' means lie */
static float level;             /* where the sender begins */
static const char *freeze = ""; /* more of train */
static const char *backward = "codec: directq, bits: 8";
static const char *check = "all"; /* edges.check */
static uint32_t warmup; /* epochs, of a step each */
static uint32_t rows;   /* of a sample at the cut; 0: T */

/* What two sides of an edge are made from. */
struct sides {
    struct aq_job *job;
    struct aq_plan *plan;
    struct side side; /* either, but for `sender` and the address */
};

static void sides_open(const char *codec, enum loss lose, enum odd odd, struct sides *out)
{
    char text[1024];
    const int bytes = snprintf(text, sizeof text, manifest, freeze, check, warmup, codec, backward);
    assert_int_equal(aq_job_parse(text, (size_t)bytes, "test.yaml", "/", NULL, 0, &out->job), AQ_OK);
    assert_int_equal(aq_plan_open(out->job, &out->plan), AQ_OK);
    out->side = (struct side){.plan = out->plan,
                              .lose = lose,
                              .odd = odd,
                              .kind = kind,
                              .nccl = nccl,
                              .rows = rows,
                              .shorter = shorter,
                              .steady = steady,
                              .leap = leap,
                              .guarded = guarded,
                              .told = told,
                              .cropped = cropped,
                              .unmoved = unmoved,
                              .means = means,
                              .huge = huge,
                              .back_scale = back_scale,
                              .guard.state[AQ_GUARD_LEVEL] = level};
}

static void sides_close(struct sides *sides)
{
    aq_plan_close(sides->plan);
    aq_job_close(sides->job);
}

static void run_sides(const char *codec, enum loss lose, enum odd odd, struct result *result)
{
    static unsigned count;
    struct sides sides;
    sides_open(codec, lose, odd, &sides);
    *result = (struct result){.sender = sides.side, .receiver = sides.side};
    result->sender.sender = true;
    result->sender.spoil = spoil;
    snprintf(result->sender.address, sizeof result->sender.address, "sim://edge-%u", count);
    snprintf(result->receiver.address, sizeof result->receiver.address, "sim://edge-%u", count++);
    struct aq_thread *sender, *receiver;
    assert_int_equal(aq_thread_open("receiver", side_run, &result->receiver, &receiver), AQ_OK);
    assert_int_equal(aq_thread_open("sender", side_run, &result->sender, &sender), AQ_OK);
    aq_thread_close(sender);
    aq_thread_close(receiver);
    sides_close(&sides);
}

static void run(const char *codec, enum loss lose, struct result *result)
{
    run_sides(codec, lose, WELL, result);
    assert_int_equal(result->sender.status, AQ_OK);
    assert_int_equal(result->receiver.status, AQ_OK);
    assert_memory_equal(result->sender.messages, result->receiver.messages, sizeof result->sender.messages);
    assert_memory_equal(result->sender.versions, result->receiver.versions, sizeof result->sender.versions);
}

#endif
