/*
 * test_neighbour.c -- copies of checkpoints, and a neighbour that misbehaves: what it sends reaches no assertion, and
 * no more of the disk than one copy of the step that is due.
 *
 * AQ_NEIGHBOUR_SEEDS: so many seeds of frames at random (40).
 */
#include "neighbour_kit.h"

#include <inttypes.h>

#include "seal.h"

enum { PIECE = 1, TAKEN, END, KEPT, WANT, NONE };
enum { DUE = 12, LAYERS_BYTES = 1 << 20 };

static const uint8_t key[AQ_SEAL_KEY_BYTES] = {1, 2, 3, 4, 5}, other_key[AQ_SEAL_KEY_BYTES] = {1, 2, 3, 4, 6};
static const char *hash; /* that the launcher has */
static bool sealing;

static void open_mirror(struct kit *kit, uint64_t resumed)
{
    struct aq_mirror_config config = {.folder = kit->folder,
                                      .in = kit->stage == 1 ? kit->edge : NULL,
                                      .out = kit->stage == 0 ? kit->edge : NULL,
                                      .eventcount = kit->pair.eventcount,
                                      .resumed = resumed,
                                      .key = sealing ? key : NULL,
                                      .hash = hash};
    aq_plan_mirror_shape(kit->plan, kit->stage, &config.shape);
    assert_int_equal(aq_mirror_open(&config, &kit->mirror), AQ_OK);
}

static void setup(struct kit *kit, uint32_t stage, uint64_t resumed)
{
    *kit = (struct kit){.stage = stage};
    kit_folder(kit);
    kit_open(kit);
    open_mirror(kit, resumed);
}

static void teardown(struct kit *kit)
{
    uint64_t bytes = 0;
    kit_close(kit);
    kit_files(kit->folder, true, &bytes);
}

/* As the room itself computes it. */
static uint32_t piece_bytes(const struct kit *kit)
{
    const uint64_t most = kit->plan->edges[0].size.body_bytes_max;
    return most < AQ_MIRROR_PIECE_BYTES_MAX ? (uint32_t)most : AQ_MIRROR_PIECE_BYTES_MAX;
}

static uint8_t bytes_of_pieces[AQ_MIRROR_PIECE_BYTES_MAX];

static void say(struct kit *kit, uint16_t op, uint64_t step, uint64_t argument, uint32_t bytes)
{
    const struct aq_frame frame = {.kind = AQ_FRAME_MIRROR,
                                   .flags = op,
                                   .step = step,
                                   .argument = argument,
                                   .body_bytes = bytes,
                                   .body = bytes ? bytes_of_pieces : NULL};
    kit_say(kit, &frame);
}

static void hear(struct kit *kit, uint16_t op)
{
    struct aq_frame frame = {0};
    assert_int_equal(kit_hear(kit, &frame), AQ_OK);
    assert_int_equal(frame.kind, AQ_FRAME_MIRROR);
    assert_int_equal(frame.flags, op);
    if (frame.body) aq_link_release(kit->pair.link[1], frame.body);
}

/* A copy in good order, of so many whole pieces and a short one. */
static void copy(struct kit *kit, uint64_t step, uint32_t pieces)
{
    const uint32_t each = piece_bytes(kit);
    uint64_t digest = 0;
    for (uint32_t i = 0; i <= pieces; i++) {
        const uint32_t bytes = i < pieces ? each : each / 2;
        say(kit, PIECE, step, (uint64_t)i * each, bytes);
        digest = aq_digest_seeded(bytes_of_pieces, bytes, digest);
        hear(kit, TAKEN);
    }
    say(kit, END, step, digest, 0);
    hear(kit, KEPT);
}

static void test_copy_of_a_step_that_never_was_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct kit kit;
        setup(&kit, (uint32_t)i, 0);
        aq_mirror_due(kit.mirror, DUE, 0);
        say(&kit, PIECE, 999, 0, piece_bytes(&kit));
        kit_refuses(&kit, AQ_PROTO, i ? "stage 0 sends its checkpoint of step 999" : "stage 1 sends its checkpoint of",
                    "that of step 12 is due");
        assert_false(kit_there(&kit, "999"));
        teardown(&kit);
    }
}

static void test_copy_while_none_is_due_is_refused(void **state)
{
    struct kit kit;
    (void)state;
    setup(&kit, 1, DUE);
    say(&kit, PIECE, DUE, 0, piece_bytes(&kit)); /* of the step that all go on from */
    kit_refuses(&kit, AQ_PROTO, "of step 12", "none is due");
    assert_false(kit_there(&kit, "12"));
    teardown(&kit);
}

static void test_copies_come_in_the_order_of_their_steps_each_once(void **state)
{
    struct kit kit;
    (void)state;
    setup(&kit, 1, 0);
    aq_mirror_due(kit.mirror, DUE, DUE + 6);
    copy(&kit, DUE, 2);
    copy(&kit, DUE + 6, 0); /* begun before this stage begins its own */
    assert_true(kit_there(&kit, "12/mirror-stage-0.safetensors") && kit_there(&kit, "18/mirror-stage-0.safetensors"));
    aq_mirror_due(kit.mirror, DUE + 6, 0);
    say(&kit, PIECE, DUE + 6, 0, piece_bytes(&kit)); /* once more */
    kit_refuses(&kit, AQ_PROTO, "of step 18", "none is due");
    teardown(&kit);

    setup(&kit, 1, 0);
    aq_mirror_due(kit.mirror, DUE, DUE + 6);
    say(&kit, PIECE, DUE + 6, 0, piece_bytes(&kit));
    kit_refuses(&kit, AQ_PROTO, "of step 18", "that of step 12 is due");
    teardown(&kit);
}

/* The disk gets no more than the plan lets a checkpoint of that stage be. */
static void test_copy_without_end_is_cut_at_the_plans_size(void **state)
{
    struct kit kit;
    struct aq_frame frame = {0};
    uint64_t bytes = 0;
    (void)state;
    setup(&kit, 1, 0);
    const uint64_t parameters = kit.plan->stages[0].size.parameters;
    const uint64_t most = parameters * sizeof(float) + aq_plan_optimizer_bytes(kit.plan, parameters) + LAYERS_BYTES;
    aq_mirror_due(kit.mirror, DUE, 0);
    enum aq_status status = AQ_OK;
    for (uint64_t at = 0; status == AQ_OK; at += piece_bytes(&kit)) {
        assert_true(at < 2 * most);
        say(&kit, PIECE, DUE, at, piece_bytes(&kit));
        status = kit_hear(&kit, &frame);
    }
    assert_int_equal(status, AQ_PROTO);
    assert_int_equal(kit_files(kit.folder, false, &bytes), 1);
    assert_true(bytes > 0 && bytes <= most);
    aq_mirror_close(kit.mirror);
    kit.mirror = NULL;
    bytes = 0;
    assert_int_equal(kit_files(kit.folder, false, &bytes), 0); /* what is not whole goes */
    teardown(&kit);
}

struct odd {
    uint16_t op;
    uint64_t step, argument;
    int32_t bytes; /* -1: of a piece */
};

/* Each behind the first piece of a copy that is due, or (first) alone. */
static void test_frames_out_of_order_are_refused(void **state)
{
    static const struct odd odds[] = {{PIECE, DUE, 0, -1},      {PIECE, DUE, 1, -1},
                                      {PIECE, DUE + 6, 0, -1},  {PIECE, DUE, UINT64_MAX, -1},
                                      {END, DUE + 6, 0, 0},     {END, DUE, 0, 8},
                                      {TAKEN, DUE, 0, 0},       {KEPT, DUE, 0, 0},
                                      {NONE, DUE, 0, 0},        {WANT, DUE, 0, 0},
                                      {WANT, 6, 0, 0},          {0, DUE, 0, 0},
                                      {7, DUE, 0, 0},           {UINT16_MAX, DUE, 0, -1},
                                      {TAKEN, DUE, 0, 100},     {KEPT, DUE, 0, -1},
                                      {WANT, UINT64_MAX, 0, 0}, {PIECE, DUE, 1ull << 60, 100},
                                      {PIECE, DUE, 0, 0},       {NONE, DUE, 0, 100}};
    (void)state;
    for (int first = 0; first < 2; first++)
        for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
            struct kit kit;
            const struct odd *odd = &odds[i];
            if (first && odd->op == PIECE && odd->step == DUE && odd->argument == 0 && odd->bytes < 0) continue;
            setup(&kit, 1, 0);
            aq_mirror_due(kit.mirror, DUE, 0);
            if (!first) say(&kit, PIECE, DUE, 0, piece_bytes(&kit));
            if (!first) hear(&kit, TAKEN);
            say(&kit, odd->op, odd->step, odd->argument, odd->bytes < 0 ? piece_bytes(&kit) : (uint32_t)odd->bytes);
            kit_refuses(&kit, AQ_PROTO, "stage 0", NULL);
            teardown(&kit);
        }
}

static void test_a_piece_behind_a_short_one_or_too_long_is_refused(void **state)
{
    struct kit kit;
    (void)state;
    setup(&kit, 1, 0);
    aq_mirror_due(kit.mirror, DUE, 0);
    say(&kit, PIECE, DUE, 0, 16);
    hear(&kit, TAKEN);
    say(&kit, PIECE, DUE, 16, 16); /* grains of a file would cost a frame and a job each */
    kit_refuses(&kit, AQ_PROTO, "unexpected frame of a checkpoint (1, step 12, 16, 16 bytes)", NULL);
    teardown(&kit);
}

/* Five without waiting for TAKEN: the disk may have taken some already, or the window is full; both are well. */
static void test_a_flood_of_pieces_ends_in_a_status(void **state)
{
    struct kit kit;
    struct aq_frame frame = {0};
    (void)state;
    setup(&kit, 1, 0);
    aq_mirror_due(kit.mirror, DUE, 0);
    for (uint32_t i = 0; i < 3 * AQ_MIRROR_WINDOW; i++)
        say(&kit, PIECE, DUE, (uint64_t)i * piece_bytes(&kit), piece_bytes(&kit));
    enum aq_status status = AQ_OK;
    for (uint32_t taken = 0; status == AQ_OK && taken < 3 * AQ_MIRROR_WINDOW; taken++)
        status = kit_hear(&kit, &frame);
    assert_true(status == AQ_OK || status == AQ_PROTO);
    teardown(&kit);
}

static void test_a_copy_that_is_not_what_was_sent_gets_no_name(void **state)
{
    struct kit kit;
    (void)state;
    setup(&kit, 1, 0);
    aq_mirror_due(kit.mirror, DUE, 0);
    say(&kit, PIECE, DUE, 0, piece_bytes(&kit));
    hear(&kit, TAKEN);
    say(&kit, END, DUE, 1 + aq_digest_seeded(bytes_of_pieces, piece_bytes(&kit), 0), 0);
    kit_refuses(&kit, AQ_CORRUPT, "stage 0 sent", NULL);
    assert_false(kit_there(&kit, "12/mirror-stage-0.safetensors"));
    teardown(&kit);
}

/* A copy is fetched before the first step, of the step that all go on from, once. */
static void test_copies_are_fetched_only_when_and_what_is_due(void **state)
{
    struct kit kit;
    (void)state;
    for (int how = 0; how < 4; how++) {
        setup(&kit, 1, 6);
        kit_put(&kit, "6", NULL, 0);
        kit_put(&kit, "6/mirror-stage-0.safetensors", "whole", 5);
        kit_put(&kit, "7", NULL, 0);
        kit_put(&kit, "7/mirror-stage-0.safetensors", "whole", 5);
        if (how == 3) {
            aq_mirror_train(kit.mirror);
            say(&kit, WANT, 6, 0, 0);
        }
        if (how == 0) say(&kit, WANT, 7, 0, 0);
        if (how == 1 || how == 2) {
            say(&kit, WANT, 6, 0, 0);
            hear(&kit, PIECE);
            if (how == 1) say(&kit, TAKEN, 6, 0, 0);
            if (how == 1) hear(&kit, END);
            if (how == 1) say(&kit, KEPT, 6, 0, 0);
            say(&kit, WANT, 6, 0, 0); /* again: after it has come, and while it comes */
        }
        kit_refuses(&kit, AQ_PROTO, "unexpected frame of a checkpoint (5,", NULL);
        teardown(&kit);
    }
}

static void test_leftovers_of_earlier_steps_go_and_nothing_else(void **state)
{
    struct kit kit;
    (void)state;
    setup(&kit, 1, 0);
    kit_put(&kit, "6", NULL, 0);
    kit_put(&kit, "6/mirror-stage-0.safetensors.partial", "half", 4);
    kit_put(&kit, "7", NULL, 0);
    kit_put(&kit, "7/mirror-stage-0.safetensors.partial", "half", 4);
    kit_put(&kit, "7/mine.txt", "mine", 4);
    kit_put(&kit, "7/mirror-stage-0.safetensors", "whole", 5);
    kit_put(&kit, "7/mirror-stage-3.safetensors.partial", "of another", 10);
    kit_put(&kit, "18", NULL, 0);
    kit_put(&kit, "18/mirror-stage-0.safetensors.partial", "later", 5);
    aq_mirror_due(kit.mirror, DUE, 0);
    copy(&kit, DUE, 1);
    assert_false(kit_there(&kit, "6"));
    assert_false(kit_there(&kit, "7/mirror-stage-0.safetensors.partial"));
    assert_true(kit_there(&kit, "7/mine.txt") && kit_there(&kit, "7/mirror-stage-0.safetensors") &&
                kit_there(&kit, "7/mirror-stage-3.safetensors.partial"));
    assert_true(kit_there(&kit, "18/mirror-stage-0.safetensors.partial"));
    assert_true(kit_there(&kit, "12/mirror-stage-0.safetensors"));
    teardown(&kit);
}

/* Frames that are almost right, of a seed; whatever comes of it, the disk holds one copy of the step at most. */
static void at_random(uint64_t seed)
{
    const struct aq_rng_key draws = aq_rng_key(seed, AQ_RNG_TEST, 0, 0);
    struct kit kit;
    uint64_t n = 0, at = 0, digest = 0, bytes = 0;
    setup(&kit, seed % 2, seed % 3 ? 0 : 6);
    const uint64_t parameters = kit.plan->stages[1 - kit.stage].size.parameters;
    const uint64_t most = parameters * sizeof(float) + aq_plan_optimizer_bytes(kit.plan, parameters) + LAYERS_BYTES;
    aq_mirror_due(kit.mirror, DUE, DUE + 6);
    enum aq_status status = AQ_OK;
    for (int i = 0; i < 40 && status == AQ_OK; i++) {
        const uint64_t draw = aq_rng_below(&draws, n++, 16);
        const uint32_t some = (uint32_t)aq_rng_below(&draws, n++, piece_bytes(&kit)) + 1;
        const uint64_t step = draw == 15 ? aq_rng_below(&draws, n++, 40) : DUE + (at > 3 * some ? 6 : 0);
        if (draw < 9) {
            const uint32_t body = draw == 8 ? some : piece_bytes(&kit);
            say(&kit, PIECE, step, at, body);
            digest = aq_digest_seeded(bytes_of_pieces, body, digest);
            at += body;
        } else if (draw < 12) {
            say(&kit, END, step, digest, 0);
            at = digest = 0;
        } else {
            say(&kit, (uint16_t)aq_rng_below(&draws, n++, 8), step, at, draw == 13 ? some : 0);
        }
        for (int turn = 0; turn < 4 && status == AQ_OK; turn++)
            status = kit_turn(&kit);
    }
    if (status != AQ_OK) assert_true(status == AQ_PROTO || status == AQ_CORRUPT || status == AQ_CLOSED);
    assert_true(kit_files(kit.folder, false, &bytes) <= 2 && bytes <= 2 * most);
    teardown(&kit);
}

static void test_frames_at_random_end_in_a_status(void **state)
{
    const char *asked = getenv("AQ_NEIGHBOUR_SEEDS");
    const unsigned long seeds = asked ? strtoul(asked, NULL, 10) : 40;
    (void)state;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        at_random(seed);
    print_message("  %lu seeds\n", seeds);
}

/* ---- what a keeper may do to what it keeps ---- */

enum { FILE_BYTES = 150000, COPY_MAX = 1 << 20 };
static uint8_t whole[FILE_BYTES], kept[COPY_MAX], forged[COPY_MAX], back[COPY_MAX];

static void make_file(void)
{
    const struct aq_rng_key draw = aq_rng_key(5, AQ_RNG_TEST, 0, 0);
    for (uint32_t i = 0; i < FILE_BYTES; i++)
        whole[i] = i % 16 < 8 ? (uint8_t)aq_rng_u32(&draw, i) : (uint8_t) "weights."[i % 8];
}

/* The victim's own file goes to its keeper, which is the test: what does it get? The hash goes to the launcher. */
static uint32_t lend(struct kit *kit, uint64_t step, char text[AQ_HASH_TEXT_BYTES])
{
    struct aq_frame frame = {0};
    char name[64];
    uint32_t have = 0;
    uint64_t digest = 0;
    snprintf(name, sizeof name, "%" PRIu64, step);
    kit_put(kit, name, NULL, 0);
    snprintf(name, sizeof name, "%" PRIu64 "/stage-%u.safetensors", step, kit->stage);
    kit_put(kit, name, whole, FILE_BYTES);
    aq_mirror_send(kit->mirror, step);
    for (;;) {
        assert_int_equal(kit_hear(kit, &frame), AQ_OK);
        if (frame.flags == END) break;
        assert_int_equal(frame.flags, PIECE);
        assert_int_equal(frame.argument, have);
        assert_true(have + frame.body_bytes <= COPY_MAX);
        memcpy(kept + have, frame.body, frame.body_bytes);
        have += frame.body_bytes;
        digest = aq_digest_seeded(frame.body, frame.body_bytes, digest);
        aq_link_release(kit->pair.link[1], frame.body);
        say(kit, TAKEN, step, 0, 0);
    }
    assert_int_equal(frame.argument, digest);
    say(kit, KEPT, step, 0, 0);
    while (aq_mirror_done(kit->mirror) == AQ_AGAIN)
        assert_int_equal(kit_turn(kit), AQ_OK);
    assert_int_equal(aq_mirror_done(kit->mirror), AQ_OK);
    snprintf(text, AQ_HASH_TEXT_BYTES, "%s", aq_mirror_hash(kit->mirror));
    return have;
}

/* Another process of that stage has lost its file and fetches it: this is what its keeper sends. */
static enum aq_status fetch(uint64_t step, const uint8_t *bytes, uint32_t count, bool *there)
{
    struct kit kit;
    struct aq_frame frame = {0};
    uint64_t digest = 0;
    char name[64];
    setup(&kit, 1, step);
    assert_int_equal(aq_mirror_fetch(kit.mirror, step), AQ_OK);
    hear(&kit, WANT);
    const uint32_t each = piece_bytes(&kit);
    enum aq_status status = AQ_OK;
    for (uint32_t at = 0; at < count && status == AQ_OK; at += each) {
        const uint32_t some = count - at < each ? count - at : each;
        memcpy(bytes_of_pieces, bytes + at, some);
        say(&kit, PIECE, step, at, some);
        digest = aq_digest_seeded(bytes_of_pieces, some, digest); /* which anybody can make */
        status = kit_hear(&kit, &frame);
    }
    if (status == AQ_OK) say(&kit, END, step, digest, 0);
    if (status == AQ_OK) status = kit_hear(&kit, &frame);
    if (status == AQ_OK) assert_int_equal(aq_mirror_done(kit.mirror), AQ_OK);
    if (status != AQ_OK) assert_int_equal(aq_mirror_done(kit.mirror), status);
    snprintf(name, sizeof name, "%" PRIu64 "/stage-1.safetensors", step);
    *there = kit_there(&kit, name);
    if (*there) assert_int_equal(kit_get(&kit, name, back, COPY_MAX), FILE_BYTES);
    if (*there) assert_memory_equal(back, whole, FILE_BYTES);
    teardown(&kit);
    return status;
}

static void expect_back(uint64_t step, const uint8_t *bytes, uint32_t count, enum aq_status want, const char *what)
{
    bool there = false;
    aq_error_clear();
    const enum aq_status status = fetch(step, bytes, count, &there);
    if (status != want || there != (want == AQ_OK))
        fail_msg("%s: %d (%s), wanted %d; the file is %sthere", what, status, aq_error_text(), want,
                 there ? "" : "not ");
}

static void test_a_forged_copy_is_not_taken(void **state)
{
    static char text[AQ_HASH_TEXT_BYTES];
    struct kit kit;
    (void)state;
    make_file();
    setup(&kit, 1, 0);
    assert_int_equal(lend(&kit, DUE, text), FILE_BYTES); /* in the clear */
    teardown(&kit);
    assert_memory_equal(kept, whole, FILE_BYTES);
    hash = text;
    expect_back(DUE, kept, FILE_BYTES, AQ_OK, "as it was");
    for (uint32_t at = 0; at < FILE_BYTES; at += FILE_BYTES / 7) {
        memcpy(forged, kept, FILE_BYTES);
        forged[at] ^= 1;
        expect_back(DUE, forged, FILE_BYTES, AQ_CORRUPT, "one bit");
    }
    expect_back(DUE, kept, FILE_BYTES - 1, AQ_CORRUPT, "one byte less");
    expect_back(DUE, kept, 10, AQ_CORRUPT, "next to nothing");
    memcpy(forged, kept, FILE_BYTES);
    forged[FILE_BYTES] = 0;
    expect_back(DUE, forged, FILE_BYTES + 1, AQ_CORRUPT, "one byte more");
    hash = NULL;
    expect_back(DUE, kept, FILE_BYTES, AQ_CORRUPT, "nobody knows its hash");
}

static void test_a_sealed_copy_hides_the_file_and_comes_back(void **state)
{
    static char text[AQ_HASH_TEXT_BYTES], plain[AQ_HASH_TEXT_BYTES];
    struct kit kit;
    (void)state;
    make_file();
    setup(&kit, 1, 0);
    (void)lend(&kit, DUE, plain);
    teardown(&kit);
    sealing = true;
    setup(&kit, 1, 0);
    const uint32_t count = lend(&kit, DUE, text);
    memcpy(forged, kept, count);
    assert_int_equal(lend(&kit, DUE + 6, text), count); /* the same file once more, as of the next step */
    teardown(&kit);
    assert_string_equal(text, plain); /* of the file, not of what covers it */
    assert_int_equal(count, aq_seal_bytes(FILE_BYTES));
    for (uint32_t i = 80; i + 8 <= count; i++)
        assert_memory_not_equal(kept + i, "weights.", 8);
    for (uint32_t i = 80; i + 16 <= count; i += 16)
        assert_memory_not_equal(kept + i, forged + i, 16); /* nothing shows that it is the same file */
    hash = text;
    expect_back(DUE + 6, kept, count, AQ_OK, "as it was");
    expect_back(DUE, forged, count, AQ_OK, "the older one, as what it is");
    sealing = false;
    expect_back(DUE + 6, kept, count, AQ_INVAL, "without a key");
    assert_non_null(strstr(aq_error_text(), "checkpoint.mirror_key"));
    sealing = true;
    expect_back(DUE, whole, FILE_BYTES, AQ_OK, "in the clear, from before there was a key");
    sealing = false;
    hash = NULL;
}

static void test_a_sealed_copy_that_was_touched_is_not_taken(void **state)
{
    enum { HEAD = AQ_SEAL_HEAD_BYTES, BOX = AQ_SEAL_BOX_BYTES };
    static char text[AQ_HASH_TEXT_BYTES];
    static uint8_t older[COPY_MAX];
    struct kit kit;
    (void)state;
    make_file();
    sealing = true;
    setup(&kit, 1, 0);
    const uint32_t count = lend(&kit, DUE, text);
    memcpy(older, kept, count);
    (void)lend(&kit, DUE + 6, text);
    teardown(&kit);
    hash = text;
    assert_true(count > HEAD + 2 * BOX);
    expect_back(DUE + 6, older, count, AQ_CORRUPT, "of an older step");
    static const uint32_t places[] = {
        0, 16, 24, 32, 40, 44, 48, 79, HEAD, HEAD + BOX - 1, HEAD + BOX + 5, HEAD + 2 * BOX};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        memcpy(forged, kept, count);
        forged[places[i]] ^= 1;
        expect_back(DUE + 6, forged, count, AQ_CORRUPT, "one bit");
    }
    memcpy(forged, kept, count);
    forged[count - 1] ^= 128;
    expect_back(DUE + 6, forged, count, AQ_CORRUPT, "the last bit");
    memcpy(forged, kept, count);
    memcpy(forged + HEAD, kept + HEAD + BOX, BOX);
    memcpy(forged + HEAD + BOX, kept + HEAD, BOX);
    expect_back(DUE + 6, forged, count, AQ_CORRUPT, "two chunks changed places");
    memcpy(forged, kept, count);
    memcpy(forged + HEAD, older + HEAD, BOX);
    expect_back(DUE + 6, forged, count, AQ_CORRUPT, "a chunk of an older step");
    memcpy(forged, older, count);
    memcpy(forged + 24, kept + 24, 8);
    expect_back(DUE + 6, forged, count, AQ_CORRUPT, "an older step that says it is this one");
    expect_back(DUE + 6, kept, HEAD + 2 * BOX, AQ_CORRUPT, "without its last chunk");
    assert_non_null(strstr(aq_error_text(), "is cut off")); /* before any hash */
    expect_back(DUE + 6, kept, HEAD, AQ_CORRUPT, "its head alone");
    expect_back(DUE + 6, kept, HEAD - 1, AQ_CORRUPT, "not even its head");
    memcpy(forged, kept, count);
    expect_back(DUE + 6, forged, count + 1, AQ_CORRUPT, "with a byte behind it");
    sealing = false;
    hash = NULL;
}

/* One key cannot open what another has sealed, nor can a length that is cut be told from the seal alone. */
static void test_seals_are_of_a_key_and_a_length(void **state)
{
    uint8_t head[AQ_SEAL_HEAD_BYTES], box[100 + AQ_SEAL_TAG_BYTES], plain[100];
    const struct aq_seal_about about = {.resume_hash = 1, .step = 2, .rank = 3, .file_bytes = 100};
    struct aq_seal_about less = about;
    struct aq_seal *seal;
    (void)state;
    make_file();
    assert_int_equal(aq_seal_new(&seal), AQ_OK);
    assert_int_equal(aq_seal_begin(seal, key, &about, head), AQ_OK);
    assert_int_equal(aq_seal_next(seal), 100);
    assert_int_equal(aq_seal_chunk(seal, whole, box), AQ_OK);
    assert_int_equal(aq_seal_next(seal), 0);
    assert_int_equal(aq_seal_open(seal, key, &about, head), AQ_OK);
    assert_int_equal(aq_seal_unchunk(seal, box, plain), AQ_OK);
    assert_memory_equal(plain, whole, 100);
    assert_int_equal(aq_seal_open(seal, other_key, &about, head), AQ_OK);
    assert_int_equal(aq_seal_unchunk(seal, box, plain), AQ_CORRUPT);
    less.file_bytes = 99;
    assert_int_equal(aq_seal_open(seal, key, &less, head), AQ_CORRUPT);
    less = about;
    less.rank = 2;
    assert_int_equal(aq_seal_open(seal, key, &less, head), AQ_CORRUPT);
    /* Of a longer file: the second chunk is not the first, nor the third, which is the last. */
    static uint8_t boxes[3][AQ_SEAL_BOX_BYTES], out[AQ_SEAL_CHUNK_BYTES];
    less = about;
    less.file_bytes = 3 * AQ_SEAL_CHUNK_BYTES;
    assert_int_equal(aq_seal_begin(seal, key, &less, head), AQ_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(aq_seal_chunk(seal, whole, boxes[i]), AQ_OK);
    assert_int_equal(aq_seal_next(seal), 0);
    for (int first = 0; first < 3; first++)
        for (int second = 0; second < 3; second++) {
            assert_int_equal(aq_seal_open(seal, key, &less, head), AQ_OK);
            assert_int_equal(aq_seal_unchunk(seal, boxes[first], out), first == 0 ? AQ_OK : AQ_CORRUPT);
            if (first > 0) continue;
            assert_memory_equal(out, whole, sizeof out);
            assert_int_equal(aq_seal_unchunk(seal, boxes[second], out), second == 1 ? AQ_OK : AQ_CORRUPT);
        }
    less = about;
    less.resume_hash = 2;
    assert_int_equal(aq_seal_open(seal, key, &less, head), AQ_CORRUPT);
    aq_seal_close(seal);
}

static void test_files_of_keys_are_ones_own_alone(void **state)
{
    struct kit kit;
    char path[KIT_PATH], link[KIT_PATH];
    uint8_t one[AQ_SEAL_KEY_BYTES], two[AQ_SEAL_KEY_BYTES];
    struct stat info;
    uint64_t bytes = 0;
    (void)state;
    kit_folder(&kit);
    kit_path(&kit, "key", path);
    kit_path(&kit, "link", link);
    assert_int_equal(aq_seal_key_load(path, one), AQ_NOTFOUND);
    assert_int_equal(aq_seal_key_make(path), AQ_OK);
    assert_int_equal(lstat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(aq_seal_key_load(path, one), AQ_OK);
    assert_int_equal(aq_seal_key_make(path), AQ_REFUSED);
    assert_int_equal(aq_seal_key_load(path, two), AQ_OK);
    assert_memory_equal(one, two, sizeof one);
    assert_int_equal(chmod(path, 0640), 0);
    aq_error_clear();
    assert_int_equal(aq_seal_key_load(path, one), AQ_REFUSED);
    assert_non_null(strstr(aq_error_text(), "chmod 600"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_not_equal(aq_seal_key_load(link, one), AQ_OK);
    assert_int_equal(truncate(path, 31), 0);
    assert_int_equal(aq_seal_key_load(path, one), AQ_CORRUPT);
    assert_int_not_equal(aq_seal_key_load(kit.folder, one), AQ_OK);
    kit_files(kit.folder, true, &bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_of_a_step_that_never_was_is_refused),
        cmocka_unit_test(test_copy_while_none_is_due_is_refused),
        cmocka_unit_test(test_copies_come_in_the_order_of_their_steps_each_once),
        cmocka_unit_test(test_copy_without_end_is_cut_at_the_plans_size),
        cmocka_unit_test(test_frames_out_of_order_are_refused),
        cmocka_unit_test(test_a_piece_behind_a_short_one_or_too_long_is_refused),
        cmocka_unit_test(test_a_flood_of_pieces_ends_in_a_status),
        cmocka_unit_test(test_a_copy_that_is_not_what_was_sent_gets_no_name),
        cmocka_unit_test(test_copies_are_fetched_only_when_and_what_is_due),
        cmocka_unit_test(test_leftovers_of_earlier_steps_go_and_nothing_else),
        cmocka_unit_test(test_frames_at_random_end_in_a_status),
        cmocka_unit_test(test_a_forged_copy_is_not_taken),
        cmocka_unit_test(test_a_sealed_copy_hides_the_file_and_comes_back),
        cmocka_unit_test(test_a_sealed_copy_that_was_touched_is_not_taken),
        cmocka_unit_test(test_seals_are_of_a_key_and_a_length),
        cmocka_unit_test(test_files_of_keys_are_ones_own_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
