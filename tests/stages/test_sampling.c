/*
 * test_sampling.c -- draws that are the same whenever they are made, ties, broken logits; what a stopper lets out.
 *
 * test_sampling_reference compares what is left of logits with NumPy and transformers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "log_capture.h"
#include "stages/sampling.h"

static struct aq_sampling *open_with(struct aq_sampling_config config, uint32_t vocabulary)
{
    struct aq_sampling *sampling;
    assert_int_equal(aq_sampling_open(&config, vocabulary, &sampling), AQ_OK);
    return sampling;
}

static int32_t next(struct aq_sampling *sampling, const float *logits)
{
    int32_t token = -1;
    assert_int_equal(aq_sampling_next(sampling, logits, &token), AQ_OK);
    return token;
}

static void test_greedy_takes_the_largest_and_of_equals_the_lowest(void **state)
{
    (void)state;
    struct aq_sampling_config config = aq_sampling_config_default();
    struct aq_sampling *sampling = open_with(config, 5);
    assert_int_equal(next(sampling, (const float[]){1, 3, 3, -INFINITY, 2}), 1);
    assert_int_equal(next(sampling, (const float[]){-INFINITY, -INFINITY, -7, -8, -7}), 2);
    aq_sampling_close(sampling);
    config.repetition_penalty = 2; /* 3 / 2 < 2, and -1 * 2 < -1.5 */
    sampling = open_with(config, 5);
    assert_int_equal(aq_sampling_note(sampling, (const int32_t[]){1}, 1), AQ_OK);
    assert_int_equal(next(sampling, (const float[]){1, 3, -9, -9, 2}), 4);
    assert_int_equal(next(sampling, (const float[]){-1.5F, -1, -2, -3, -1}), 0);
    aq_sampling_begin(sampling, 1); /* nothing was there */
    assert_int_equal(next(sampling, (const float[]){1, 3, -9, -9, 2}), 1);
    aq_sampling_close(sampling);
}

static void test_top_k_of_equals_keeps_the_lowest(void **state)
{
    (void)state;
    struct aq_sampling_config config = aq_sampling_config_default();
    const float logits[] = {0, 5, 5, 5, 1, 5};
    int32_t ids[6];
    double probabilities[6];
    uint32_t count;
    config.temperature = 1;
    config.top_k = 3;
    struct aq_sampling *sampling = open_with(config, 6);
    assert_int_equal(aq_sampling_candidates(sampling, logits, ids, probabilities, &count), AQ_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(ids, ((const int32_t[]){1, 2, 3}), sizeof(int32_t[3]));
    for (int i = 0; i < 3; i++)
        assert_true(fabs(probabilities[i] - 1. / 3) < 1e-15);
    aq_sampling_close(sampling);
    config.top_p = 0.34F; /* a third is not enough */
    sampling = open_with(config, 6);
    assert_int_equal(aq_sampling_candidates(sampling, logits, ids, probabilities, &count), AQ_OK);
    assert_int_equal(count, 2);
    aq_sampling_close(sampling);
}

static void test_draws_are_of_seed_sequence_and_position_alone(void **state)
{
    (void)state;
    enum { VOCABULARY = 64, STEPS = 40 };
    struct aq_sampling_config config = aq_sampling_config_default();
    float logits[VOCABULARY];
    int32_t first[2][STEPS];
    uint32_t differ = 0;
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = (float)((i * 37) % 64) / 32;
    config.temperature = 1;
    config.seed = 9;
    struct aq_sampling *a = open_with(config, VOCABULARY), *b = open_with(config, VOCABULARY);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        aq_sampling_begin(a, sequence);
        for (int i = 0; i < STEPS; i++)
            first[sequence][i] = next(a, logits);
    }
    for (uint64_t sequence = 2; sequence-- > 0;) { /* in another order, looked at between */
        int32_t ids[VOCABULARY];
        double probabilities[VOCABULARY];
        uint32_t count;
        aq_sampling_begin(b, sequence);
        for (int i = 0; i < STEPS; i++) {
            assert_int_equal(next(b, logits), first[sequence][i]);
            assert_int_equal(aq_sampling_candidates(b, logits, ids, probabilities, &count), AQ_OK);
        }
    }
    for (int i = 0; i < STEPS; i++)
        differ += first[0][i] != first[1][i];
    assert_true(differ > STEPS / 2);
    aq_sampling_close(b);
    config.seed = 10;
    b = open_with(config, VOCABULARY);
    differ = 0;
    for (int i = 0; i < STEPS; i++)
        differ += next(b, logits) != first[0][i];
    assert_true(differ > STEPS / 2);
    aq_sampling_close(a);
    aq_sampling_close(b);
}

static void test_broken_logits_and_settings_are_refused(void **state)
{
    (void)state;
    static const float bad[][3] = {{0, NAN, 1}, {0, INFINITY, 1}, {-INFINITY, -INFINITY, -INFINITY}};
    struct aq_sampling_config config = aq_sampling_config_default();
    struct aq_sampling *sampling = open_with(config, 3), *none = NULL;
    int32_t token = 77;
    capture_begin();
    for (int i = 0; i < 3; i++)
        assert_int_equal(aq_sampling_next(sampling, bad[i], &token), AQ_CORRUPT);
    assert_int_equal(token, 77);
    assert_true(captured_has("the logit of token 1 is nan"));
    assert_int_equal(aq_sampling_note(sampling, (const int32_t[]){3}, 1), AQ_INVAL);
    assert_int_equal(aq_sampling_note(sampling, (const int32_t[]){-1}, 1), AQ_INVAL);
    aq_sampling_close(sampling);
    config.temperature = -1;
    assert_int_equal(aq_sampling_open(&config, 3, &none), AQ_INVAL);
    config = aq_sampling_config_default();
    config.top_p = 0;
    assert_int_equal(aq_sampling_open(&config, 3, &none), AQ_INVAL);
    config.top_p = NAN;
    assert_int_equal(aq_sampling_open(&config, 3, &none), AQ_INVAL);
    config = aq_sampling_config_default();
    config.repetition_penalty = 0;
    assert_int_equal(aq_sampling_open(&config, 3, &none), AQ_INVAL);
    config = aq_sampling_config_default();
    assert_int_equal(aq_sampling_open(&config, 0, &none), AQ_INVAL);
    capture_end();
    /* A tiny temperature must not make infinities of what is finite. */
    config.temperature = 1e-38F;
    sampling = open_with(config, 3);
    assert_int_equal(next(sampling, (const float[]){1000, 2000, -1000}), 0); /* both are the largest there is */
    aq_sampling_close(sampling);
}

/* ---- the stopper ---- */

/* Pieces with bars between; expected: what each shows, bars between, a bar, what the end shows; ! where it stopped. */
static void expect_shown(const char *const *words, uint32_t count, const char *pieces, const char *expected)
{
    struct aq_stopper *stopper;
    struct aq_stopper_text shown;
    char got[256] = "";
    size_t used = 0;
    assert_int_equal(aq_stopper_open(words, count, &stopper), AQ_OK);
    for (const char *at = pieces; at;) {
        const char *end = strchr(at, '|');
        const size_t bytes = end ? (size_t)(end - at) : strlen(at);
        assert_int_equal(aq_stopper_put(stopper, at, bytes, &shown), AQ_OK);
        used += (size_t)snprintf(got + used, sizeof got - used, "%.*s%s|", (int)shown.bytes, shown.text,
                                 shown.stopped ? "!" : "");
        at = end ? end + 1 : NULL;
    }
    assert_int_equal(aq_stopper_end(stopper, &shown), AQ_OK);
    snprintf(got + used, sizeof got - used, "%.*s", (int)shown.bytes, shown.text);
    assert_string_equal(got, expected);
    aq_stopper_close(stopper);
}

static void test_stopper_holds_back_what_may_be_a_word(void **state)
{
    (void)state;
    static const char *const words[] = {"\nUser:", "END"};
    expect_shown(words, 2, "Hel|lo|\n|Use|d|", "Hel|lo|||\nUsed||");
    expect_shown(words, 2, "Hi\nUs|er: x|more", "Hi|!|!|");
    expect_shown(words, 2, "abEN|D|x", "ab|!|!|");
    expect_shown(words, 2, "EEN|EN", "E|EN|EN"); /* the second E begins it anew */
    expect_shown(words, 2, "a\nUser", "a|\nUser");
    expect_shown(words, 2, "x END \nUser:", "x !|");
    expect_shown(NULL, 0, "a||b", "a||b|");
    static const char *const own[] = {"aab", "ab"};
    expect_shown(own, 2, "a|a|a|b", "||a|!|"); /* aaab: both end here, aab is longer */
    static const char *const within[] = {"abcd", "bc"};
    expect_shown(within, 2, "abcd", "a!|"); /* as it would be in pieces */
    expect_shown(within, 2, "a|b|c|d", "||a!|!|");
    struct aq_stopper *none;
    static const char *const empty[] = {""};
    capture_begin();
    assert_int_equal(aq_stopper_open(empty, 1, &none), AQ_INVAL);
    capture_end();
}

static void test_stopper_shows_whole_characters(void **state)
{
    (void)state;
    static const char *const words[] = {"\xC3\xA9!"};
    expect_shown(NULL, 0, "\xC3|\xA9|\xF0\x9D|\x84|\x9E.", "|\xC3\xA9|||\xF0\x9D\x84\x9E.|");
    expect_shown(NULL, 0, "a\xE4\xB8", "a|\xEF\xBF\xBD");
    expect_shown(NULL, 0, "\xE4\xB8x\x80\xC0\xAF", "\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|");
    expect_shown(NULL, 0, "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|"); /* a surrogate */
    expect_shown(words, 1, "a\xC3|\xA9|?\xC3|\xA9!", "a||\xC3\xA9?|!|");
    expect_shown(words, 1, "\xE4|\xC3\xA9!", "|\xEF\xBF\xBD!|");
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    static const char *const words[] = {"one", "two"};
    const uint64_t used = aq_memory_used();
    struct aq_sampling_config config = aq_sampling_config_default();
    uint64_t failures = 0;
    capture_begin();
    for (uint64_t n = 1;; n++) {
        struct aq_sampling *sampling = NULL;
        struct aq_stopper *stopper = NULL;
        struct aq_stopper_text shown;
        aq_memory_fail_at(n);
        enum aq_status status = aq_sampling_open(&config, 100, &sampling);
        if (status == AQ_OK) status = aq_stopper_open(words, 2, &stopper);
        if (status == AQ_OK) status = aq_stopper_put(stopper, "some text", 9, &shown);
        aq_memory_fail_at(0);
        aq_sampling_close(sampling);
        aq_stopper_close(stopper);
        assert_int_equal(aq_memory_used(), used);
        if (status == AQ_OK) break;
        assert_int_equal(status, AQ_NOMEM);
        failures++;
    }
    capture_end();
    assert_true(failures > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_largest_and_of_equals_the_lowest),
        cmocka_unit_test(test_top_k_of_equals_keeps_the_lowest),
        cmocka_unit_test(test_draws_are_of_seed_sequence_and_position_alone),
        cmocka_unit_test(test_broken_logits_and_settings_are_refused),
        cmocka_unit_test(test_stopper_holds_back_what_may_be_a_word),
        cmocka_unit_test(test_stopper_shows_whole_characters),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
