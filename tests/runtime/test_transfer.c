/*
 * test_transfer.c -- a checkpoint's file over a link of its own: it comes as it is, or not at all, whatever the other
 * end sends. What had its name before stays until the whole file is here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "link_pair.h"
#include "remove_tree.h"
#include "transfer.h"

enum { BYTES = 3 * AQ_TRANSFER_PIECE_BYTES + 1000, STEP = 8, RANK = 2, PIECE = 1 };

static char here[64], there[64]; /* folders of the receiver and of the sender */
static uint64_t held; /* bytes that the transports keep from their first use on */
static uint8_t content[BYTES + AQ_TRANSFER_PIECE_BYTES];
static struct aq_transfer_file file; /* as the receiver expects it */

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static void put(const char *folder, const void *bytes, size_t count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%d", folder, STEP);
    (void)mkdir(path, 0700);
    snprintf(path, sizeof path, "%d/stage-%d.safetensors", STEP, RANK);
    assert_int_equal(aq_file_replace(folder, path, 0600, bytes, count), AQ_OK);
}

static int setup(void **state)
{
    (void)state;
    aq_log_sink(quiet, NULL);
    snprintf(here, sizeof here, "/tmp/aqpipe-here-XXXXXX");
    snprintf(there, sizeof there, "/tmp/aqpipe-there-XXXXXX");
    if (!mkdtemp(here) || !mkdtemp(there)) return -1;
    pair_fill(content, sizeof content, 0, 3);
    put(there, content, BYTES);
    file = (struct aq_transfer_file){.folder = there, .step = STEP, .rank = RANK};
    if (aq_transfer_look(&file) != AQ_OK || file.bytes != BYTES || !aq_transfer_is_here(&file)) return -1;
    file.folder = here;
    return aq_transfer_is_here(&file) ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    aq_log_sink(NULL, NULL);
    return remove_tree(here) == 0 && remove_tree(there) == 0 && aq_memory_used() == held ? 0 : -1;
}

static bool has(const char *name)
{
    char path[160];
    struct stat info;
    snprintf(path, sizeof path, "%s/%d/%s", here, STEP, name);
    return stat(path, &info) == 0;
}

static void configs(struct link_pair *pair)
{
    pair_config(pair);
    for (int i = 0; i < 2; i++)
        aq_transfer_link_config(&pair->config[i]);
}

/* ---- a sender that is not honest ---- */

struct sent {
    uint16_t kind, flags;
    uint64_t step, offset;
    uint32_t bytes; /* 0: the link ends instead */
};

static void send_one(struct link_pair *pair, const struct sent *sent)
{
    const struct aq_frame frame = {.kind = sent->kind,
                                   .flags = sent->flags,
                                   .step = sent->step,
                                   .argument = sent->offset,
                                   .body_bytes = sent->bytes,
                                   .body = sent->bytes ? content + sent->offset % BYTES : NULL};
    assert_int_equal(aq_link_send(pair->link[1], &frame, 0), AQ_OK);
}

/* What becomes of a file whose first piece is right, and that continues so. */
static enum aq_status receive_after(const struct sent *second, bool ends)
{
    struct link_pair pair = {0};
    configs(&pair);
    pair_open(&pair, "sim", "");
    const struct sent first = {AQ_FRAME_MIRROR, PIECE, STEP, 0, AQ_TRANSFER_PIECE_BYTES};
    send_one(&pair, &first);
    if (second) send_one(&pair, second);
    if (ends) { /* when the receiver has the first piece, or the link would end without it */
        (void)pair_event_of(&pair, 1, AQ_LINK_SENT, PAIR_PATIENCE);
        aq_link_close(pair.link[1]);
    }
    const enum aq_status status = aq_transfer_receive(pair.link[0], pair.eventcount, &file);
    aq_listener_close(pair.listener);
    pair_close(&pair);
    return status;
}

static void test_what_is_not_due_leaves_nothing(void **state)
{
    enum { P = AQ_TRANSFER_PIECE_BYTES };
    static const struct sent wrong[] = {
        {AQ_FRAME_FORWARD, PIECE, STEP, P, P},      /* another kind             */
        {AQ_FRAME_MIRROR, 3, STEP, P, P},           /* other flags              */
        {AQ_FRAME_MIRROR, PIECE, STEP + 8, P, P},   /* of another step          */
        {AQ_FRAME_MIRROR, PIECE, STEP, 2 * P, P},   /* a gap                    */
        {AQ_FRAME_MIRROR, PIECE, STEP, 0, P},       /* once more                */
        {AQ_FRAME_MIRROR, PIECE, STEP, P, 0},       /* nothing                  */
        {AQ_FRAME_MIRROR, PIECE, UINT64_MAX, P, P}, /* far out                  */
    };
    (void)state;
    put(here, "older", 5);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(receive_after(&wrong[i], false), AQ_PROTO);
        assert_true(has("stage-2.safetensors") && !has("stage-2.safetensors.partial"));
    }
    assert_int_not_equal(receive_after(NULL, true), AQ_OK); /* it ends too early */
    assert_true(has("stage-2.safetensors") && !has("stage-2.safetensors.partial"));
}

static void test_more_than_was_said_is_refused(void **state)
{
    (void)state;
    const struct sent second = {AQ_FRAME_MIRROR, PIECE, STEP, AQ_TRANSFER_PIECE_BYTES, 100};
    file.bytes = AQ_TRANSFER_PIECE_BYTES + 99;
    assert_int_equal(receive_after(&second, false), AQ_PROTO);
    assert_false(has("stage-2.safetensors") || has("stage-2.safetensors.partial"));
}

static void test_another_file_is_refused(void **state)
{
    (void)state;
    const struct sent second = {AQ_FRAME_MIRROR, PIECE, STEP, AQ_TRANSFER_PIECE_BYTES, 100};
    file.bytes = AQ_TRANSFER_PIECE_BYTES + 100; /* and its hash is of the whole file */
    assert_int_equal(receive_after(&second, false), AQ_CORRUPT);
    assert_false(has("stage-2.safetensors") || has("stage-2.safetensors.partial"));
}

/* ---- a sender that is ---- */

static struct aq_transfer_give *give(struct link_pair *pair, uint64_t bytes)
{
    struct aq_transfer_give_config config = {.file = file,
                                             .address = pair->address,
                                             .link = pair->config[1],
                                             .connect_ns_max = PAIR_PATIENCE * 1000000000ull};
    struct aq_transfer_give *out;
    config.file.folder = there;
    config.file.bytes = bytes;
    assert_int_equal(aq_transfer_give_open(&config, &out), AQ_OK);
    return out;
}

static enum aq_status give_end(struct aq_transfer_give *one, const char **text)
{
    enum aq_status status;
    const uint64_t end = PAIR_SECONDS(PAIR_PATIENCE);
    while ((status = aq_transfer_give_done(one, text)) == AQ_AGAIN && aq_clock_ns() < end)
        usleep(1000);
    return status;
}

static void test_a_file_comes_as_it_is(void **state)
{
    (void)state;
    put(here, content + 1, BYTES);
    assert_false(aq_transfer_is_here(&file)); /* of the same length */
    for (int heals = 0; heals < 2; heals++) {
        struct link_pair pair = {0};
        const char *text;
        configs(&pair);
        for (int i = 0; i < 2; i++)
            pair.config[i].outage_ns_max = heals ? 60ull * 1000000000 : 0;
        pair_nets(&pair);
        pair_listen(&pair, "tcp", "");
        struct aq_transfer_give *one = give(&pair, BYTES);
        assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]),
                         AQ_OK);
        assert_int_equal(aq_listener_rest(pair.listener), AQ_OK);
        assert_int_equal(aq_transfer_receive(pair.link[0], pair.eventcount, &file), AQ_OK);
        assert_true(aq_transfer_is_here(&file));
        assert_false(has("stage-2.safetensors.partial"));
        aq_link_close(pair.link[0]);
        assert_int_equal(give_end(one, &text), AQ_OK);
        aq_transfer_give_close(one);
        aq_listener_close(pair.listener);
        pair_close(&pair);
        put(here, "older", 5);
    }
}

static void test_a_sender_says_what_it_cannot(void **state)
{
    static const char *const why[] = {"is shorter than when it was written", "a frame where it only receives a file",
                                      "the link ended after"};
    (void)state;
    for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
        struct link_pair pair = {0};
        const char *text;
        configs(&pair);
        pair.config[0].receive_slots = 1; /* so that the sender is not done before it hears */
        pair_nets(&pair);
        pair_listen(&pair, "tcp", "");
        struct aq_transfer_give *one = give(&pair, i == 0 ? BYTES + 1 : BYTES);
        assert_int_equal(aq_link_accept(pair.listener, &pair.config[0], PAIR_SECONDS(PAIR_PATIENCE), &pair.link[0]),
                         AQ_OK);
        const struct aq_frame frame = {.kind = AQ_FRAME_MIRROR, .flags = PIECE, .step = STEP};
        if (i == 1) assert_int_equal(aq_link_send(pair.link[0], &frame, 0), AQ_OK);
        if (i == 2) aq_link_close(pair.link[0]);
        const enum aq_status status = give_end(one, &text);
        assert_true(status != AQ_OK && status != AQ_AGAIN);
        if (!strstr(text, why[i])) fail_msg("'%s' has no '%s'", text, why[i]);
        aq_transfer_give_close(one);
        if (i != 2) aq_link_close(pair.link[0]);
        aq_listener_close(pair.listener);
        pair_close(&pair);
    }
    /* Nobody listens, and it is given up. */
    struct link_pair pair = {0};
    configs(&pair);
    snprintf(pair.address, sizeof pair.address, "tcp://127.0.0.1:1");
    aq_transfer_give_close(give(&pair, BYTES));
}

static int setup_group(void **state)
{
    struct link_pair pair = {0};
    (void)state;
    configs(&pair);
    pair_open(&pair, "sim", "");
    aq_listener_close(pair.listener);
    pair_close(&pair);
    held = aq_memory_used();
    return 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_not_due_leaves_nothing), TEST(test_more_than_was_said_is_refused),
        TEST(test_another_file_is_refused),        TEST(test_a_file_comes_as_it_is),
        TEST(test_a_sender_says_what_it_cannot),
    };
    return cmocka_run_group_tests(tests, setup_group, NULL);
}
