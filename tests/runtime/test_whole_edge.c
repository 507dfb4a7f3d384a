/*
 * test_whole_edge.c -- gradients that cross an edge whole, those of shared tensors and those that are summed over
 * clients: in order, in turn, of one step; and a neighbour that sends them otherwise (AQ_PROTO, one line).
 */
#include "edge_shared.h"
#include "neighbour_kit.h"

static const struct aq_edge_vectors *vectors(const struct kit *kit)
{
    return aq_edge_channel(kit->edge, AQ_CHANNEL_ID_shared)->state;
}

static void setup(struct kit *kit)
{
    *kit = (struct kit){.stage = 1};
    kit_open(kit);
}

static void teardown(struct kit *kit)
{
    kit_hang_up(kit);
    aq_edge_close(kit->edge);
    kit->edge = NULL;
    kit_close(kit);
}

/* What stages share comes once, whole and in order. */
static void test_shared_gradients_out_of_order_are_refused(void **state)
{
    enum { FLOATS = 700 };
    static const float values[FLOATS] = {1, 2, 3};
    struct kit kit;
    (void)state;
    kit_shared = FLOATS;
    for (int odd = 0; odd < 6; odd++) {
        setup(&kit);
        const uint64_t most = kit.edge->size.body_bytes_max / sizeof(float);
        float here[FLOATS] = {0};
        assert_true(most > 8 && most < FLOATS);
        for (uint64_t at = 0; at < FLOATS; at += most) {
            const uint64_t count = FLOATS - at < most ? FLOATS - at : most;
            assert_int_equal(aq_edge_receive_shared(kit.edge, 5, here), AQ_AGAIN);
            kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED,
                                             .step = odd == 1 && at ? 6 : 5,
                                             .argument = odd == 2 ? at + 1 : at,
                                             .body = odd == 3 ? NULL : values + at,
                                             .body_bytes = odd == 3 ? 0 : (uint32_t)(count * 4 - (odd == 4 ? 4 : 0))});
            if (odd >= 1 && odd <= 4 && (odd > 1 || at)) break;
            while (vectors(&kit)->of[AQ_EDGE_SHARED].here < at + count)
                assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
        }
        if (odd == 5)
            kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED, .step = 5, .body = values, .body_bytes = 4});
        if (odd > 0) {
            kit_refuses(&kit, AQ_PROTO, "of 700 are here", NULL);
        } else {
            assert_int_equal(aq_edge_receive_shared(kit.edge, 5, here), AQ_OK);
            assert_memory_equal(here, values, sizeof here);
            assert_int_equal(aq_edge_receive_shared(kit.edge, 6, here), AQ_AGAIN);
        }
        teardown(&kit);
    }
    kit_shared = 0;
}

/* What a tied table's sides tell each other has any length up to the plan's, which each frame says alike. */
static void test_tied_words_out_of_order_are_refused(void **state)
{
    enum { WORDS = 700, MOST = 900, ODDS = 8 };
    static const float values[MOST] = {1, 2, 3};
    struct kit kit;
    (void)state;
    kit_tied = MOST;
    for (int odd = 0; odd < ODDS; odd++) {
        uint64_t words = 0;
        setup(&kit);
        const uint64_t most = kit.edge->size.body_bytes_max / sizeof(float);
        assert_true(most > 8 && most < WORDS / 2);
        if (odd == 7) assert_int_equal(aq_edge_whole_hold(kit.edge, AQ_EDGE_TIED), AQ_OK);
        for (uint64_t at = 0; at < WORDS; at += most) {
            const uint64_t count = WORDS - at < most ? WORDS - at : most;
            const uint32_t said = odd == 5 ? MOST + 1 : odd == 6 && at ? WORDS + 1 : WORDS;
            if (odd != 7) assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_TIED, 5, &words), AQ_AGAIN);
            kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED,
                                             .flags = odd == 3 ? 5 : 4,
                                             .step = odd == 1 && at ? 6 : 5,
                                             .micro_batch = said,
                                             .argument = odd == 2 ? at + 1 : at,
                                             .body = values + at,
                                             .body_bytes = (uint32_t)(count * 4 - (odd == 4 ? 4 : 0))});
            if (odd > 0 && (at || (odd != 1 && odd != 6))) break;
            while (vectors(&kit)->of[AQ_EDGE_TIED].here < at + count)
                assert_int_equal(aq_edge_pump(kit.edge), AQ_OK);
        }
        if (odd > 0) {
            kit_refuses(&kit, AQ_PROTO, "are here", NULL);
        } else {
            assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_TIED, 5, &words), AQ_OK);
            assert_int_equal(words, WORDS);
            assert_memory_equal(aq_edge_whole(kit.edge, AQ_EDGE_TIED), values, WORDS * sizeof *values);
            aq_edge_whole_release(kit.edge, AQ_EDGE_TIED);
            assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_TIED, 6, &words), AQ_AGAIN);
        }
        teardown(&kit);
    }
    kit_tied = 0;
}

/* What is said of the summed gradients, all of it or a part, before the odd one. */
static void say_summed(struct kit *kit, const float *values, uint64_t count, uint64_t step)
{
    const uint64_t most = kit->edge->size.body_bytes_max / sizeof(float);
    for (uint64_t at = 0; at < count; at += most)
        kit_say(kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED,
                                        .flags = 1,
                                        .step = step,
                                        .argument = at,
                                        .body = values + at,
                                        .body_bytes = (uint32_t)(count - at < most ? count - at : most) * 4});
}

static void pump_until(struct kit *kit, uint64_t here)
{
    while (vectors(kit)->of[AQ_EDGE_SUMMED].here < here)
        assert_int_equal(aq_edge_pump(kit->edge), AQ_OK);
}

/* The next frame of what this side sends, which goes on as its buffers come back. */
static void hear_sending(struct kit *kit, uint64_t step, struct aq_frame *frame)
{
    struct aq_link_event event;
    for (;;) {
        const uint32_t seen = aq_eventcount_read(kit->pair.eventcount);
        assert_int_equal(aq_edge_pump(kit->edge), AQ_OK);
        const enum aq_status status =
            vectors(kit)->of[AQ_EDGE_SUMMED].held
                ? aq_edge_whole_send(kit->edge, AQ_EDGE_SUMMED, step, vectors(kit)->of[AQ_EDGE_SUMMED].count)
                : AQ_OK;
        assert_true(status == AQ_OK || status == AQ_AGAIN);
        while (aq_link_poll(kit->pair.link[1], &event) == AQ_OK) {
            assert_int_not_equal(event.kind, AQ_LINK_CLOSED);
            if (event.kind != AQ_LINK_RECEIVED) continue;
            *frame = event.frame;
            return;
        }
        assert_int_equal(aq_eventcount_wait(kit->pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
    }
}

/* Those of one step, back and forth: they lie apart from what stages share, and the sum may be none. */
static void test_summed_gradients_come_and_go(void **state)
{
    enum { FLOATS = 700 };
    static float values[FLOATS] = {1, 2, 3};
    struct kit kit;
    struct aq_frame frame = {0};
    uint64_t words = 0;
    (void)state;
    kit_shared = 9;
    kit_summed = FLOATS;
    setup(&kit);
    const uint64_t most = kit.edge->size.body_bytes_max / sizeof(float);
    assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_SUMMED, 5, &words), AQ_AGAIN);
    kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED, .step = 5, .body = values, .body_bytes = 36});
    say_summed(&kit, values, FLOATS, 5);
    pump_until(&kit, FLOATS);
    assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_SUMMED, 5, &words), AQ_OK);
    assert_int_equal(words, FLOATS);
    assert_memory_equal(aq_edge_whole(kit.edge, AQ_EDGE_SUMMED), values, sizeof values);
    aq_edge_whole(kit.edge, AQ_EDGE_SUMMED)[FLOATS - 1] = 7;
    for (uint64_t at = 0; at < FLOATS; at += frame.body_bytes / 4) {
        hear_sending(&kit, 5, &frame);
        assert_int_equal(frame.kind, AQ_FRAME_SHARED);
        assert_int_equal(frame.flags, 1);
        assert_int_equal(frame.step, 5);
        assert_int_equal(frame.argument, at);
        assert_int_equal(frame.body_bytes, (FLOATS - at < most ? FLOATS - at : most) * 4);
        if (at + most >= FLOATS) assert_true(((const float *)frame.body)[FLOATS - at - 1] == 7);
        aq_link_release(kit.pair.link[1], frame.body);
    }
    assert_false(vectors(&kit)->of[AQ_EDGE_SUMMED].held);
    float shared[9];
    assert_int_equal(aq_edge_receive_shared(kit.edge, 5, shared), AQ_OK);
    assert_memory_equal(shared, values, sizeof shared);
    kit_say(&kit, &(struct aq_frame){.kind = AQ_FRAME_SHARED, .flags = 3, .step = 6});
    pump_until(&kit, FLOATS);
    assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_SUMMED, 6, &words), AQ_OK);
    assert_int_equal(words, 0);
    assert_int_equal(aq_edge_whole_send(kit.edge, AQ_EDGE_SUMMED, 6, 0), AQ_OK);
    assert_int_equal(kit_hear(&kit, &frame), AQ_OK);
    assert_int_equal(frame.flags, 3);
    assert_int_equal(frame.body_bytes, 0);
    teardown(&kit);
    kit_shared = kit_summed = 0;
}

static void test_summed_gradients_out_of_order_or_turn_are_refused(void **state)
{
    enum { FLOATS = 700 };
    static const float values[FLOATS] = {1, 2, 3};
    static const struct {
        uint64_t before; /* floats that came as they should */
        bool hold;       /* and then it is our turn */
        struct aq_frame frame;
    } odds[] = {{0, false, {.flags = 1, .argument = 8, .body = values, .body_bytes = 32}},
                {0, false, {.flags = 1, .body = values, .body_bytes = 32}},
                {0, false, {.flags = 1}},
                {0, false, {.flags = 2}},
                {0, false, {.flags = 5, .body = values, .body_bytes = 32}},
                {0, false, {.flags = 3, .argument = 1}},
                {0, false, {.flags = 3, .body = values, .body_bytes = 32}},
                {0, true, {.flags = 3}},
                {1, false, {.flags = 3, .step = 5}},
                {1, false, {.flags = 1, .step = 6}},
                {FLOATS, false, {.flags = 3, .step = 5}},
                {FLOATS, false, {.flags = 1, .step = 5, .argument = FLOATS, .body = values, .body_bytes = 4}}};
    struct kit kit;
    (void)state;
    kit_summed = FLOATS;
    for (size_t i = 0; i < sizeof odds / sizeof *odds; i++) {
        setup(&kit);
        const uint64_t most = kit.edge->size.body_bytes_max / sizeof(float);
        const uint64_t before = odds[i].before == 1 ? most : odds[i].before;
        struct aq_frame frame = odds[i].frame;
        frame.kind = AQ_FRAME_SHARED;
        if (frame.step == 6) { /* the next piece, of another step */
            frame.argument = before;
            frame.body = values;
            frame.body_bytes = (uint32_t)(FLOATS - before < most ? FLOATS - before : most) * 4;
        }
        say_summed(&kit, values, before, 5);
        pump_until(&kit, before);
        if (odds[i].hold) assert_int_equal(aq_edge_whole_hold(kit.edge, AQ_EDGE_SUMMED), AQ_OK);
        kit_say(&kit, &frame);
        kit_refuses(&kit, AQ_PROTO, odds[i].hold ? "not the other side's turn" : "gradients (flags", NULL);
        teardown(&kit);
    }
    for (int early = 0; early < 2; early++) { /* of another step, or before it was due */
        uint64_t words;
        setup(&kit);
        say_summed(&kit, values, FLOATS, 5);
        pump_until(&kit, FLOATS);
        assert_int_equal(early ? aq_edge_whole_hold(kit.edge, AQ_EDGE_SUMMED)
                               : aq_edge_whole_receive(kit.edge, AQ_EDGE_SUMMED, 6, &words),
                         AQ_PROTO);
        const char *text = early ? "arrived too early" : "summed gradients of step 5 arrived in step 6";
        assert_non_null(strstr(aq_error_text(), text));
        teardown(&kit);
    }
    kit_summed = 0;
}

/* Who says goodbye with a part of them will not send the rest; whole ones are still to be had. */
static void test_half_of_the_gradients_and_a_goodbye_are_an_end(void **state)
{
    enum { FLOATS = 300 };
    static const float values[FLOATS] = {1, 2, 3};
    struct kit kit;
    (void)state;
    kit_summed = FLOATS;
    for (int whole = 0; whole < 2; whole++) {
        uint64_t words;
        setup(&kit);
        const uint64_t most = kit.edge->size.body_bytes_max / sizeof(float);
        assert_true(most < FLOATS);
        say_summed(&kit, values, whole ? FLOATS : most, 5);
        pump_until(&kit, whole ? FLOATS : most);
        assert_int_equal(aq_link_finish(kit.pair.link[1], PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
        enum aq_status status = AQ_OK;
        while (!whole && status == AQ_OK) {
            const uint32_t seen = aq_eventcount_read(kit.pair.eventcount);
            status = aq_edge_pump(kit.edge);
            if (status == AQ_OK)
                assert_int_equal(aq_eventcount_wait(kit.pair.eventcount, seen, PAIR_SECONDS(PAIR_PATIENCE)), AQ_OK);
        }
        assert_int_equal(status, whole ? AQ_OK : AQ_CLOSED);
        if (whole) assert_int_equal(aq_edge_whole_receive(kit.edge, AQ_EDGE_SUMMED, 5, &words), AQ_OK);
        teardown(&kit);
    }
    kit_summed = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_gradients_out_of_order_are_refused),
        cmocka_unit_test(test_tied_words_out_of_order_are_refused),
        cmocka_unit_test(test_summed_gradients_come_and_go),
        cmocka_unit_test(test_summed_gradients_out_of_order_or_turn_are_refused),
        cmocka_unit_test(test_half_of_the_gradients_and_a_goodbye_are_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
