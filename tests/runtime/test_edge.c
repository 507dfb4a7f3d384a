/*
 * test_edge.c -- the invariant: over any codec, both ends hold bit-identical messages, whatever is lost on the way.
 *
 * Two edges in one process (edge_sides.h) record the digest of every activation that was decoded; a run in which
 * messages were lost must record the same digests, and so must one whose ends are devices that no host can reach, with
 * three streams that run late. AQ_DEVICES=cuda takes
 * one kind of these alone (as it is in a program with the CUDA backend, on the host or not); AQ_GPU=required makes a
 * missing GPU a failure.
 */
#include "codec_internal.h"
#include "edge_sides.h"
#include "sample.h"

/* A fault of a decoder: a bit of value 5 of that sample's x^, in every batch that such a codec decodes. */
static bool faulty;
static enum aq_codec_kind faulty_kind;
static uint32_t faulty_sample;
static _Atomic uint32_t faulty_turn; /* calls so far, where samples come one by one */

enum aq_status __real_aq_codec_decode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples,
                                            uint32_t count, uint32_t *corrupt, struct aq_stream *stream);
enum aq_status __wrap_aq_codec_decode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples,
                                            uint32_t count, uint32_t *corrupt, struct aq_stream *stream);

static enum aq_status flip(struct aq_device *device, float *value, struct aq_stream *stream)
{
    void *memory;
    AQ_TRY(aq_device_alloc(device, AQ_MEMORY_PINNED, sizeof(uint32_t), &memory));
    uint32_t *bits = memory;
    AQ_TRY(aq_device_copy(device, bits, value, sizeof *bits, stream));
    AQ_TRY(aq_device_stream_sync(device, stream));
    *bits ^= 1;
    AQ_TRY(aq_device_copy(device, value, bits, sizeof *bits, stream));
    AQ_TRY(aq_device_stream_sync(device, stream));
    aq_device_free(device, AQ_MEMORY_PINNED, memory, sizeof(uint32_t));
    return AQ_OK;
}

/* Where the host decodes, samples come one by one: the fault is then in each that is the micro-batch's. */
enum aq_status __wrap_aq_codec_decode_batch(struct aq_codec *codec, const struct aq_codec_sample *samples,
                                            uint32_t count, uint32_t *corrupt, struct aq_stream *stream)
{
    AQ_TRY(__real_aq_codec_decode_batch(codec, samples, count, corrupt, stream));
    if (!faulty || codec->config.kind != faulty_kind) return AQ_OK;
    const uint32_t at = count == 1 ? 0 : faulty_sample;
    if (count == 1 && faulty_turn++ % B != faulty_sample) return AQ_OK;
    return flip(codec->device, samples[at].hat + 5, stream);
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
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i += sample_every(3)) {
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

/* On each level the bits are those of an edge that began with so many: one that a guard has come to, and one that is
 * told (edges.bits: auto), which is the gradients', too. */
static void levels_on(const char *device)
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
        level = (float)(i % 2 ? 0 : high);
        kind = device;
        run(codec[0], i ? NOTHING : RECEIVER, &raised);
        guarded = told = 0;
        level = 0;
        kind = "cpu";
        backward = "codec: directq, bits: 8";
        assert_memory_equal(raised.receiver.decoded, plain.receiver.decoded, sizeof plain.receiver.decoded);
        assert_memory_equal(raised.sender.messages, plain.sender.messages, sizeof plain.sender.messages);
        assert_memory_equal(raised.sender.gradients, plain.sender.gradients, sizeof plain.sender.gradients);
        assert_true(raised.sender.measures.bits == strtod(strrchr(codec[1], ' '), NULL));
    }
}

static void test_edge_level_has_the_bits_of_as_many_bits(void **state)
{
    (void)state;
    static struct result alone;
    levels_on("cpu");
    levels_on("isolated");
    guarded = 1; /* the receiver's manifest says nothing of a guard */
    level = 1;
    aq_error_clear();
    run_sides("codec: aqsgd, bits: 2", NOTHING, WELL, &alone);
    guarded = 0;
    level = 0;
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
    const uint64_t table = EPOCHS * SAMPLES * (AQ_EDGE_ROW_BYTES + AQ_EDGE_CHECK_BYTES);
    const uint64_t gaps = EPOCHS * SAMPLES * AQ_EDGE_BODY_ALIGN;
    const uint64_t least = table + keyframes + changes;
    const uint64_t tall_scales = (EPOCHS - 1) * SAMPLES * 2 * (N / 4), flat_scales = (EPOCHS - 1) * SAMPLES * 2;
    assert_in_range(tall.sender.measures.sent_bytes, least + tall_scales, least + tall_scales + gaps);
    assert_in_range(flat.sender.measures.sent_bytes, least + flat_scales, least + flat_scales + gaps);
}

/*
 * Images that are cropped and flipped anew in each epoch: both ends keep one message of either side, move it with the
 * crops, heal it, and code what is left of the difference.
 */
static void test_edge_moves_messages_with_crops(void **state)
{
    (void)state;
    static struct result whole, lost, still;
    cropped = true;
    rows = SIDE * SIDE;
    for (size_t i = 1 % sample_every(3); i < sizeof codecs / sizeof codecs[0]; i += sample_every(3)) {
        if (strstr(codecs[i], "store: q2")) continue; /* a row of 10 columns is no whole byte */
        run(codecs[i], NOTHING, &whole);
        const bool remembers = strstr(codecs[i], "aqsgd") || strstr(codecs[i], "codec: ec");
        uint32_t seen = 0, messages = 0;
        for (uint64_t s = 0; s < SAMPLES; s++)
            for (uint32_t epoch = 0, had = 0; epoch < EPOCHS; had |= 1u << view_of(epoch++, s).flipped)
                seen += !(had >> view_of(epoch, s).flipped & 1);
        for (int s = 0; s < 2 * SAMPLES; s++)
            messages += whole.sender.messages[s] != 0;
        assert_true(seen > SAMPLES);
        assert_int_equal(whole.sender.measures.keyframes, remembers ? seen : 0);
        assert_int_equal(messages, remembers ? seen : 0);
        assert_int_equal(whole.sender.measures.fetched + whole.receiver.measures.fetched, 0);
        for (enum loss lose = RECEIVER; lose <= SENDER; lose++) {
            run(codecs[i], lose, &lost);
            assert_memory_equal(lost.receiver.decoded, whole.receiver.decoded, sizeof whole.receiver.decoded);
            assert_memory_equal(lost.sender.messages, whole.sender.messages, sizeof whole.sender.messages);
            if (remembers) assert_true(lost.sender.measures.fetched + lost.receiver.measures.fetched > 0);
        }
    }
    /* What is coded is smaller than where references stay where they are; an edge's worth of rows was never seen. */
    run("codec: aqsgd, bits: 4", NOTHING, &whole);
    unmoved = true;
    run("codec: aqsgd, bits: 4", NOTHING, &still);
    unmoved = cropped = false;
    rows = 0;
    print_message("changes that are coded, of what they are where references do not move: %.3f\n",
                  whole.sender.measures.warm_delta2 / still.sender.measures.warm_delta2);
    assert_true(whole.sender.measures.warm_delta2 < 0.5 * still.sender.measures.warm_delta2);
}

/* Has a crop of that side of the sample seen (y, x)? */
static bool was_seen(uint64_t sample, bool flipped, int y, int x)
{
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        const struct aq_view whole = view_of(epoch, sample), view = aq_view_at(&whole, SIDE, PIXELS);
        const int from = y - view.down, at = x - view.right;
        if (view.flipped == flipped && from >= 0 && from < SIDE && at >= 0 && at < SIDE) return true;
    }
    return false;
}

/* A message is the whole image's: each pixel that a crop has seen stays in its place, the others are 0. */
static void test_edge_keeps_what_a_crop_did_not_see(void **state)
{
    (void)state;
    static struct result result;
    uint32_t unseen = 0, seen = 0;
    cropped = true;
    rows = SIDE * SIDE;
    run("codec: aqsgd, bits: 8, store: fp32, keyframe: fp32", NOTHING, &result);
    cropped = false;
    rows = 0;
    for (int m = 0; m < 2 * SAMPLES; m++)
        for (int i = 0; i < N; i++) {
            const uint64_t sample = (uint64_t)m % SAMPLES;
            const bool flipped = m >= SAMPLES;
            const int y = i / COLUMNS / SIDE, x = i / COLUMNS % SIDE;
            const float kept = result.receiver.kept[m][i];
            if (was_seen(sample, flipped, y, x))
                seen += fabsf(kept - feature(sample, flipped, y, x, i % COLUMNS)) < 0.4f; /* drifts by 0.05 */
            else
                unseen += kept == 0.0f;
        }
    assert_int_equal(seen + unseen, 2 * SAMPLES * N);
    assert_true(seen > unseen && unseen > 0);
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
    for (size_t i = 2 % sample_every(3); i < sizeof codecs / sizeof codecs[0]; i += sample_every(3)) {
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
    const uint64_t table = EPOCHS * SAMPLES * (AQ_EDGE_ROW_BYTES + AQ_EDGE_CHECK_BYTES);
    const uint64_t gaps = EPOCHS * SAMPLES * AQ_EDGE_BODY_ALIGN;
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
    activation(2, 1, 0, a);
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

static void run_cached(const char *codec, enum loss lose, struct result *result)
{
    steady = true;
    freeze = ", freeze: '*, !head'";
    run(codec, lose, result);
    steady = false;
    freeze = "";
}

/*
 * A sample that fp16 cannot hold goes in bf16 from its first visit on, or from where it grew so: no sample is raw, and
 * messages, also lost ones, are one at both ends. Its gradients, too large for an fp16 scale after the prescale, too.
 */
static void huge_on(const char *device)
{
    static struct result result, lost;
    static const char *const wides[] = {"codec: aqsgd, bits: 4", "codec: ec, rate: 2.5", "codec: directq, bits: 8",
                                        "codec: lowrank",
                                        "codec: aqsgd, bits: 2, group: tile, tile: 32, hadamard: true",
                                        "codec: aqsgd, bits: 5, group: channel"};
    huge = true;
    kind = device;
    for (size_t i = 0; i < sizeof wides / sizeof wides[0]; i++) {
        const bool remembers = strstr(wides[i], "directq") == NULL;
        run(wides[i], NOTHING, &result);
        assert_int_equal(result.sender.measures.raws + result.receiver.measures.raws, 0);
        assert_int_equal(result.receiver.measures.raws_back, 0);
        /* directq keeps no message, and its fp16 scales reach so far (FORMAT.md): it needs no bf16. */
        assert_int_equal(result.sender.measures.wide, remembers ? 2 * EPOCHS + EPOCHS - 2 : 0);
        assert_int_equal(result.sender.measures.keyframes, remembers ? SAMPLES + 1 : 0);
        for (int s = 0; remembers && s < SAMPLES; s++)
            assert_true(result.sender.versions[s] == (s == 1 || s == 5 ? AQ_EDGE_WIDE_VERSION | EPOCHS
                                                      : s == 3 ? AQ_EDGE_WIDE_VERSION | (EPOCHS - 2)
                                                               : EPOCHS));
        assert_true(result.sender.measures.sum_error2 < 0.1 * result.sender.measures.sum_a2);
        for (enum loss lose = RECEIVER; lose <= SENDER && remembers; lose++) {
            run(wides[i], lose, &lost);
            assert_memory_equal(lost.receiver.decoded, result.receiver.decoded, sizeof result.receiver.decoded);
            assert_memory_equal(lost.sender.messages, result.sender.messages, sizeof result.sender.messages);
        }
    }
    for (enum loss lose = NOTHING; lose <= BOTH; lose++) { /* and where a sample never changes */
        steady = true;
        run("codec: aqsgd, bits: 4", lose, &result);
        run_cached("codec: aqsgd, bits: 4", lose, &lost);
        assert_int_equal(lost.sender.measures.raws + lost.receiver.measures.raws, 0);
        assert_int_equal(lost.sender.measures.held, (EPOCHS - 1) * SAMPLES);
        for (int s = 0; s < SAMPLES; s++)
            assert_true(lost.sender.versions[s] == (s == 1 || s == 5 ? AQ_EDGE_WIDE_VERSION | 1 : 1));
        assert_memory_equal(lost.receiver.decoded, result.receiver.decoded, SAMPLES * sizeof *result.receiver.decoded);
        for (int v = SAMPLES; v < VISITS; v++)
            assert_int_equal(lost.receiver.decoded[v], lost.receiver.decoded[v - SAMPLES]);
    }
    cropped = true;
    rows = SIDE * SIDE;
    run("codec: aqsgd, bits: 4", NOTHING, &result);
    cropped = false;
    rows = 0;
    assert_int_equal(result.sender.measures.raws + result.receiver.measures.raws, 0);
    assert_true(result.sender.measures.wide > 2 * EPOCHS);
    run("codec: aqsgd, bits: 4, store: fp16", NOTHING, &result); /* who names it gets it */
    assert_int_equal(result.sender.measures.raws, 2 * EPOCHS + EPOCHS - 2);
    assert_int_equal(result.sender.measures.wide, 0);
    assert_true(result.sender.measures.raw_peak > 1e5 && result.sender.measures.raw_peak < 1e6);
    huge = false;
    back_scale = 1;
    run("codec: raw, precision: fp16", NOTHING, &result);
    assert_int_equal(result.sender.measures.raws, 0);
    assert_int_equal(result.receiver.measures.raws_back, 0);
    assert_int_equal(result.receiver.measures.wide_back, 0); /* scales of fp16 reach so far: FORMAT.md */
    huge = true;
    run("codec: raw, precision: fp16", NOTHING, &result);
    assert_int_equal(result.sender.measures.raws, 2 * EPOCHS + EPOCHS - 2); /* counted, also of what is raw by choice */
    back_scale = 1e-5f;
    huge = false;
    kind = "cpu";
}

static void test_edge_codes_in_bf16_what_fp16_cannot_hold(void **state)
{
    (void)state;
    huge_on("cpu");
    huge_on("isolated");
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
            run_cached(plain[i], lose, &once);
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
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i += sample_every(3)) {
        run_cached(codecs[i], BOTH, &once);
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

enum { THIRDS = 3 }; /* of the codecs: parts of this test that run at once (PARTS) */

/* Every codec of one third, or of all (THIRDS), what was lost, and what was spoilt,
 * on that kind of device, against the CPU. */
static void edge_on(const char *device, bool over_nccl, size_t third)
{
    static struct result here, there;
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (third < THIRDS && i % THIRDS != third) continue;
        if (over_nccl && i % 10 != 3) continue; /* what carries a body knows no codec */
        for (int which = 0; which < 13; which++) {
            if (which >= 8 && which < 11 && strstr(codecs[i], "store: q2")) continue;
            const size_t one_of = strcmp(device, "cuda") == 0 ? 4 : sample_every(4);
            if (which == 4 ? i % 4 != 3 : !sample_has(13 * i + (size_t)which, 13, one_of))
                continue; /* 4: epochs that go uncompressed know no bits, so each form has the same few */
            huge = which >= 11;
            back_scale = which == 11 ? 1 : 1e-5f;
            spoil = which == 3;
            warmup = which == 4 ? 2 : 0;
            shorter = which == 5;
            const enum loss lose = which < 3 ? (enum loss)which : which == 7 ? BOTH : which == 12 ? RECEIVER
                                   : which >= 8 && which < 11 ? (enum loss)(which - 8) : NOTHING;
            freeze = which == 6 || which == 7 ? ", freeze: '*, !head'" : "";
            steady = which == 6 || which == 7;
            cropped = which >= 8 && which < 11;
            rows = cropped ? SIDE * SIDE : 0;
            kind = "cpu";
            run(codecs[i], lose, &here);
            kind = device;
            nccl = over_nccl;
            run(codecs[i], lose, &there);
            nccl = false;
            same(&there, &here, codecs[i]);
        }
        spoil = shorter = steady = cropped = huge = false;
        back_scale = 1e-5f;
        warmup = rows = 0;
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
    edge_on("cuda", true, THIRDS);
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
        if (!strstr(aq_error_text(), odd == TOLD_AGAIN
                                         ? "answers a question about the transport of bodies (1) that was not asked"
                                         : "are not rows of such bodies"))
            fail_msg("odd %d: %s", (int)odd, aq_error_text());
    }
    nccl = false;
    kind = "cpu";
}

/*
 * A bit that a decoder gets wrong, in the first body of a micro-batch or in the last: which checks find it, either way,
 * and what they say. Messages are right: their digests see nothing.
 */
static void faults_on(const char *device)
{
    static struct result result;
    static const char *const checks[] = {"none", "first", "all"};
    const char *const before = backward;
    backward = "codec: ec";
    kind = device;
    for (int which = 0; which < 12; which++) {
        const bool back = which % 2, last = which / 2 % 2;
        check = checks[which / 4];
        faulty_kind = back ? AQ_CODEC_EC : AQ_CODEC_AQSGD;
        faulty_sample = last ? B - 1 : 0;
        aq_error_clear();
        faulty_turn = 0;
        faulty = true;
        run_sides("codec: aqsgd, bits: 4", NOTHING, WELL, &result);
        faulty = false;
        const bool seen = which / 4 == 2 || (which / 4 == 1 && !last);
        const enum aq_status here = back ? result.sender.status : result.receiver.status;
        if (here != (seen ? AQ_CORRUPT : AQ_OK))
            fail_msg("%s: check %s, %s, sample %d: %d", device, check, back ? "backward" : "forward",
                     (int)faulty_sample, (int)here);
    }
    check = "all";
    backward = before;
    kind = "cpu";
}

static void test_edge_finds_what_was_decoded_wrong(void **state)
{
    (void)state;
    faults_on("cpu");
    faults_on("isolated");
    struct aq_edge_shape shape = {.edge = 2};
    const uint64_t id = 17;
    const struct aq_edge_batch batch = {.step = 40, .samples = 1, .sample_ids = &id};
    aq_error_clear();
    assert_int_equal(aq_edge_check_failed(&shape, true, &batch, 0, "ec"), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "cut 2 backward, step 40, sample 17: stage 2 decoded other values than "
                                            "stage 3 sent (codec ec)"));
    assert_non_null(strstr(aq_error_text(), "edges.backward, or run one of them with device: cpu"));
    aq_error_clear();
}

/* The first frame of a step and direction carries one digest, whatever the micro-batches. */
static void test_edge_carries_a_digest_a_step(void **state)
{
    (void)state;
    static struct result result[3];
    static const char *const checks[] = {"none", "first", "all"};
    for (int i = 0; i < 3; i++) {
        check = checks[i];
        run("codec: raw, precision: fp32", NOTHING, &result[i]);
    }
    check = "all";
    const uint64_t plain = result[0].sender.measures.sent_bytes;
    assert_int_equal(result[1].sender.measures.sent_bytes, plain + EPOCHS * AQ_EDGE_BODY_ALIGN);
    assert_int_equal(result[2].sender.measures.sent_bytes, plain + EPOCHS * MICRO * 2 * AQ_EDGE_BODY_ALIGN);
    assert_int_equal(result[1].receiver.measures.sent_bytes,
                     result[0].receiver.measures.sent_bytes + EPOCHS * AQ_EDGE_BODY_ALIGN);
    assert_memory_equal(result[2].receiver.decoded, result[0].receiver.decoded, sizeof result[0].receiver.decoded);
}

/* Runs these cases with a device of each other kind that there is. */
static void on_other_devices(void (*cases_on)(const char *device))
{
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
        cases_on(kinds[k]);
        seen++;
    }
    if (seen == 0) skip();
}

static void first_third_on(const char *device)
{
    edge_on(device, false, 0);
}

static void second_third_on(const char *device)
{
    edge_on(device, false, 1);
}

static void last_third_on(const char *device)
{
    edge_on(device, false, 2);
}

static void ways_on(const char *device)
{
    mixed_on(device);
    levels_on(device);
    afresh_on(device);
}

static void troubles_on(const char *device)
{
    faults_on(device);
    huge_on(device);
}

static void test_edge_on_other_devices_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    on_other_devices(first_third_on);
}

static void test_edge_on_other_devices_has_the_bits_of_the_cpu_second_third(void **state)
{
    (void)state;
    on_other_devices(second_third_on);
}

static void test_edge_on_other_devices_has_the_bits_of_the_cpu_last_third(void **state)
{
    (void)state;
    on_other_devices(last_third_on);
}

static void test_edge_on_other_devices_mixes_codecs_and_levels(void **state)
{
    (void)state;
    on_other_devices(ways_on);
}

static void test_edge_on_other_devices_finds_faults(void **state)
{
    (void)state;
    on_other_devices(troubles_on);
}

/* An argument is a pattern of the tests to run. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    isolated_register("isolated");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edge_takes_every_codec_of_the_table),
        cmocka_unit_test(test_edge_holds_the_invariant_over_every_codec),
        cmocka_unit_test(test_edge_level_has_the_bits_of_as_many_bits),
        cmocka_unit_test(test_edge_sends_afresh_what_ran_away),
        cmocka_unit_test(test_edge_codes_the_shape_of_its_own_cut),
        cmocka_unit_test(test_edge_moves_messages_with_crops),
        cmocka_unit_test(test_edge_keeps_what_a_crop_did_not_see),
        cmocka_unit_test(test_edge_neither_sends_nor_keeps_padding),
        cmocka_unit_test(test_edge_sends_warm_up_epochs_uncompressed),
        cmocka_unit_test(test_edge_heals_a_lost_message_bit_for_bit),
        cmocka_unit_test(test_edge_sends_a_keyframe_where_both_have_lost_it),
        cmocka_unit_test(test_edge_sends_raw_what_no_store_holds),
        cmocka_unit_test(test_edge_codes_in_bf16_what_fp16_cannot_hold),
        cmocka_unit_test(test_edge_sends_once_what_never_changes),
        cmocka_unit_test(test_edge_never_refines_what_never_changes),
        cmocka_unit_test(test_edge_finds_what_was_decoded_wrong),
        cmocka_unit_test(test_edge_carries_a_digest_a_step),
        cmocka_unit_test(test_edge_on_other_devices_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_edge_on_other_devices_has_the_bits_of_the_cpu_second_third),
        cmocka_unit_test(test_edge_on_other_devices_has_the_bits_of_the_cpu_last_third),
        cmocka_unit_test(test_edge_on_other_devices_mixes_codecs_and_levels),
        cmocka_unit_test(test_edge_on_other_devices_finds_faults),
        cmocka_unit_test(test_edge_over_nccl_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_edge_refuses_what_no_edge_says_of_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
