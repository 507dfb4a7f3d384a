/*
 * fuzz_edge.c -- any bytes as what the neighbour of a stage sends: frames of any kind, with rows and bodies of any
 * content. Behind what is taken the edge goes on as a stage does: an activation is answered with a gradient, a gradient
 * with the next activation, for which a message may be lost and asked for.
 *
 * The link is played by this file (its calls are wrapped by the linker): frames of the input come out of it one by one,
 * what the edge sends goes nowhere. Byte 0 chooses codec and side, byte 1 bit 1 whether messages are lost, bit 0
 * whether the frames of activations are sealed: their rows get the ids, versions and digests that fit, so that
 * mutations of a body reach the decoder and the cache. Bit 2: gradients cross the cut whole, some that are shared and
 * some that are summed over clients.
 *
 * A frame of the input: kind, flags, step, micro-batch, argument (a byte each), the body's length (2 bytes), the body.
 */
#include <stdio.h>
#include <string.h>

#include "cache_rot.h"
#include "edge.h"
#include "edge_eval.h"
#include "edge_norm.h"
#include "edge_row.h"
#include "edge_shared.h"
#include "fuzz.h"
#include "job.h"
#include "plan.h"

enum {
    SHARED = 5,
    TIED = 40,
    SUMMED = 300,
    SAMPLES = 6,
    B = 3,
    T = 4,
    C = 6,
    N = T * C,
    CODECS = 4,
    FRAMES_MAX = 24,
    TOKENS_MAX = 64,
    HEAD_BYTES = 7
};

static const char manifest[] = "model: {blocks: 2, heads: 2, channels: 6, context: 4, vocabulary: 256, tied: false}\n"
                               "data: {train: nowhere.txt}\n"
                               "train: {T: 4, batch: 6, micro_batch: 3, epochs: 5}\n"
                               "pipeline: {stages: 2}\n"
                               "edges: {forward: {%s}, backward: {codec: directq, bits: 8}}\n"
                               "link: {send_frames: 4, receive_slots: 2}\n"
                               "cache: {kind: memory, slots: 32}\n"
                               "facts: {vocabulary: 256, train_samples: 6, train_digest: 1, heldout_samples: 0}\n";

static const char *const codecs[CODECS] = {"codec: aqsgd, bits: 4", "codec: aqsgd, bits: 2, store: q8",
                                           "codec: directq, bits: 4", "codec: raw"};
static struct aq_plan *plans[CODECS];
static struct aq_device *device;
static struct aq_eventcount *eventcount;

/* --- the link --- */

static struct {
    struct aq_frame frames[FRAMES_MAX];
    uint32_t count, next, out; /* out: bodies that the edge holds */
    uint64_t tokens[TOKENS_MAX];
    uint32_t token_count;
    bool pause; /* after each frame the edge may look at it */
} wire;

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out);
enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token);
void __wrap_aq_link_release(struct aq_link *link, const void *body);

enum aq_status __wrap_aq_link_poll(struct aq_link *link, struct aq_link_event *out)
{
    (void)link;
    if (wire.token_count > 0) {
        *out = (struct aq_link_event){.kind = AQ_LINK_SENT, .token = wire.tokens[--wire.token_count]};
        return AQ_OK;
    }
    wire.pause = !wire.pause;
    if (!wire.pause || wire.next == wire.count) return AQ_AGAIN;
    *out = (struct aq_link_event){.kind = AQ_LINK_RECEIVED, .frame = wire.frames[wire.next++]};
    if (out->frame.body) wire.out++;
    return AQ_OK;
}

enum aq_status __wrap_aq_link_send(struct aq_link *link, const struct aq_frame *frame, uint64_t token)
{
    (void)link;
    if (wire.token_count == TOKENS_MAX) return AQ_AGAIN;
    AQ_ASSERT(frame->body_bytes == 0 || frame->body);
    wire.tokens[wire.token_count++] = token;
    return AQ_OK;
}

void __wrap_aq_link_release(struct aq_link *link, const void *body)
{
    (void)link;
    AQ_ASSERT(body && wire.out > 0);
    wire.out--;
}

/* --- the input --- */

static void start(void)
{
    if (device) return;
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    AQ_ASSERT(aq_device_open(&config, &device) == AQ_OK);
    AQ_ASSERT(aq_eventcount_open(&eventcount) == AQ_OK);
    for (int i = 0; i < CODECS; i++) {
        char text[1024];
        struct aq_job *job; /* the plan borrows it; both live as long as the process */
        const int bytes = snprintf(text, sizeof text, manifest, codecs[i]);
        AQ_ASSERT(aq_job_parse(text, (size_t)bytes, "fuzz.yaml", "/", NULL, 0, &job) == AQ_OK);
        AQ_ASSERT(aq_plan_open(job, &plans[i]) == AQ_OK);
    }
    fuzz_quiet();
}

static void wire_fill(struct fuzz_piece rest, uint32_t body_bytes_max)
{
    memset(&wire, 0, sizeof wire);
    while (wire.count < FRAMES_MAX && rest.count >= HEAD_BYTES) {
        struct aq_frame *frame = &wire.frames[wire.count++];
        frame->kind = fuzz_byte(&rest);
        frame->flags = fuzz_byte(&rest);
        frame->step = fuzz_byte(&rest);
        frame->micro_batch = fuzz_byte(&rest);
        frame->argument = fuzz_byte(&rest);
        uint32_t bytes = fuzz_byte(&rest);
        bytes |= (uint32_t)fuzz_byte(&rest) << 8;
        if (bytes > rest.count) bytes = (uint32_t)rest.count;
        if (bytes > body_bytes_max) bytes = body_bytes_max; /* the link's own promise */
        frame->body_bytes = bytes;
        frame->body = bytes ? rest.bytes : NULL;
        rest.bytes += bytes;
        rest.count -= bytes;
    }
}

/* Make the rows of a frame of activations fit this side's cache, and their digests what decoding gives. */
static void seal(const struct aq_plan *plan, struct aq_cache *cache, struct aq_frame *frame, uint8_t *body)
{
    struct aq_codec *codec;
    float hat[N];
    uint64_t message[64];
    memcpy(body, frame->body, frame->body_bytes);
    AQ_ASSERT(aq_codec_open(device, &plan->edges[0].shape.forward, T, C, &codec) == AQ_OK);
    const uint64_t bytes = aq_codec_message_bytes(codec);
    AQ_ASSERT(bytes <= sizeof message);
    uint32_t at = aq_edge_body_align((uint32_t)frame->argument * AQ_EDGE_ROW_BYTES);
    for (uint32_t i = 0; i < frame->argument && i < B; i++) {
        struct aq_edge_row row;
        struct aq_cache_entry entry = {0};
        if ((i + 1) * AQ_EDGE_ROW_BYTES > frame->body_bytes) break;
        aq_edge_row_read(body + (size_t)i * AQ_EDGE_ROW_BYTES, &row);
        row.sample = i;
        row.version_before = row.version_after = row.digest_before = row.digest_after = 0;
        const struct aq_cache_key key = {.sample = i, .side = 1};
        const bool whole = at <= frame->body_bytes && row.body_bytes <= frame->body_bytes - at;
        if (cache && whole && !(row.flags & AQ_CODED_RAW)) {
            const bool warm = !(row.flags & AQ_CODED_KEYFRAME) &&
                              aq_cache_get(cache, &key, aq_clock_after(1000000000), &entry) == AQ_OK;
            if (warm) {
                row.version_before = entry.version;
                row.digest_before = entry.digest;
            }
            memset(message, 0, sizeof message);
            (void)aq_codec_decode(codec, body + at, row.body_bytes, row.flags, warm ? entry.bytes : message, hat,
                                  message, NULL);
            row.digest_after = aq_digest(message, bytes);
            row.version_after = row.version_before + 1;
            if (warm) aq_cache_release(cache, &entry);
        }
        aq_edge_row_write(&row, body + (size_t)i * AQ_EDGE_ROW_BYTES);
        if (!whole) break;
        at = aq_edge_body_align(at + row.body_bytes);
    }
    frame->body = body;
    aq_codec_close(codec);
}

/* The other direction, as a stage goes on when one has come; before it, with `lose`, this side has lost a message. */
static enum aq_status go_on(struct aq_edge *edge, struct aq_cache *cache, struct aq_edge_batch batch, bool sender,
                            bool lose)
{
    static float values[B * N];
    const struct aq_cache_key key = {.sample = batch.sample_ids[0], .side = sender ? 0 : 1};
    const struct aq_values from = {.at = values};
    if (lose && cache) (void)cache_rot(cache, &key); /* it may have none */
    if (sender) batch.step++;
    const enum aq_status status =
        sender ? aq_edge_send_forward(edge, &batch, &from, NULL) : aq_edge_send_backward(edge, &batch, &from, NULL);
    return status == AQ_AGAIN ? AQ_OK : status;
}

/* Gradients that are all here, of whatever step; what is to be summed is answered. */
static enum aq_status gradients(struct aq_edge *edge, uint64_t step)
{
    float shared[SHARED];
    uint64_t words;
    enum aq_status status = aq_edge_receive_shared(edge, step, shared);
    if (status != AQ_OK && status != AQ_AGAIN) return status;
    status = aq_edge_whole_receive(edge, AQ_EDGE_TIED, step, &words);
    if (status != AQ_OK && status != AQ_AGAIN) return status;
    if (status == AQ_OK) aq_edge_whole_release(edge, AQ_EDGE_TIED);
    status = aq_edge_whole_receive(edge, AQ_EDGE_SUMMED, step, &words);
    if (status != AQ_OK) return status == AQ_AGAIN ? AQ_OK : status;
    for (int i = 0; i < SUMMED && words; i++)
        aq_edge_whole(edge, AQ_EDGE_SUMMED)[i] *= 0.5f;
    if (step % 2) { /* as a client's end does */
        aq_edge_whole_release(edge, AQ_EDGE_SUMMED);
        return AQ_OK;
    }
    status = aq_edge_whole_send(edge, AQ_EDGE_SUMMED, step, words);
    return status == AQ_AGAIN ? AQ_CLOSED : status; /* its buffers are out: enough of it */
}

/* Take in frame after frame, decode whatever is there as what it says it is, and answer it. */
static enum aq_status play(const struct aq_plan *plan, struct aq_edge *edge, struct aq_cache *cache, uint8_t how)
{
    static const uint64_t ids[B] = {0, 1, 2};
    static uint8_t bodies[FRAMES_MAX][65536];
    float values[B * N];
    const bool sealed = how % 2 == 1, lose = how / 2 % 2 == 1, whole = how / 4 % 2 == 1;
    double norm;
    uint16_t flags;
    for (uint32_t i = 0; i <= wire.count; i++) {
        const uint32_t at = wire.next;
        struct aq_frame *frame = &wire.frames[at < FRAMES_MAX ? at : 0];
        if (sealed && at < wire.count && frame->kind == AQ_FRAME_FORWARD && frame->body)
            seal(plan, cache, frame, bodies[at]);
        AQ_TRY(aq_edge_pump(edge));
        if (wire.next == at) continue;
        const uint32_t samples = frame->argument >= 1 && frame->argument <= B ? (uint32_t)frame->argument : B;
        const struct aq_edge_batch batch = {
            .step = frame->step, .micro_batch = frame->micro_batch, .samples = samples, .sample_ids = ids};
        if (aq_edge_forward_here(edge, NULL)) {
            AQ_TRY(aq_edge_receive_forward(edge, &batch, &(struct aq_values){.at = values}, NULL));
            AQ_TRY(go_on(edge, cache, batch, false, lose));
        }
        if (aq_edge_eval_here(edge))
            AQ_TRY(aq_edge_receive_eval(edge, &batch, &(struct aq_values){.at = values}, NULL));
        if (aq_edge_backward_here(edge)) {
            AQ_TRY(aq_edge_receive_backward(edge, &batch, &(struct aq_values){.at = values}, NULL));
            AQ_TRY(go_on(edge, cache, batch, true, lose));
        }
        if (frame->kind == AQ_FRAME_SHARED && whole) AQ_TRY(gradients(edge, frame->step));
        if (frame->kind == AQ_FRAME_NORM) AQ_TRY(aq_edge_receive_norm(edge, frame->step % 2, &norm, &flags));
    }
    return AQ_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t ids[B] = {0, 1, 2};
    struct fuzz_piece rest = {data, size};
    struct aq_cache *cache = NULL;
    struct aq_edge *edge;
    float a[B * N] = {0.5f, -1.0f, 3.0f};
    start();
    const uint8_t which = fuzz_byte(&rest), how = fuzz_byte(&rest);
    const struct aq_plan *plan = plans[which % CODECS];
    const bool sender = which / CODECS % 2 == 1;
    struct aq_edge_shape shape = plan->edges[0].shape;
    if (how / 4 % 2 == 1) {
        shape.shared = SHARED;
        shape.summed = SUMMED;
        shape.tied = TIED;
    }
    wire_fill(rest, (uint32_t)plan->edges[0].size.body_bytes_max);
    if (plan->edges[0].size.message_bytes) {
        struct aq_cache_config config = plan->stages[sender ? 0 : 1].cache;
        config.job_name = "fuzz";
        AQ_ASSERT(aq_cache_open(&config, &cache) == AQ_OK);
    }
    const struct aq_edge_config config = {.device = device,
                                          .shape = &shape,
                                          .sender = sender,
                                          .cache = cache,
                                          .eventcount = eventcount,
                                          .silence_ns = 0}; /* nobody answers later than at once */
    AQ_ASSERT(aq_edge_open(&config, &edge) == AQ_OK);
    if (sender) {
        const struct aq_edge_batch batch = {.samples = B, .sample_ids = ids};
        AQ_ASSERT(aq_edge_send_forward(edge, &batch, &(struct aq_values){.at = a}, NULL) == AQ_OK);
    }
    fuzz_told(play(plan, edge, cache, how) == AQ_OK);
    aq_edge_close(edge);
    aq_cache_close(cache);
    AQ_ASSERT(wire.out == 0 || edge);
    return 0;
}
