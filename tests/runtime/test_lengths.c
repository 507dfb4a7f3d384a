/*
 * test_lengths.c -- lengths of samples to a text and back, of every width; texts that are none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "lengths.h"

enum { COUNT = 101 };

static void test_every_width_comes_back(void **state)
{
    (void)state;
    static const uint32_t mosts[] = {1, 2, 3, 8, 9, 64, 65, 128, 1000, 1 << 20, UINT32_MAX};
    const struct aq_rng_key key = aq_rng_key(7, AQ_RNG_TEST, 0, 0);
    for (size_t m = 0; m < sizeof mosts / sizeof mosts[0]; m++)
        for (uint64_t count = 0; count <= COUNT; count++) {
            uint32_t lengths[COUNT + 1] = {0}, back[COUNT + 1] = {0};
            char *text;
            for (uint64_t i = 0; i < count; i++)
                lengths[i] = i == 0 ? mosts[m] : 1 + (uint32_t)aq_rng_below(&key, i, mosts[m]);
            assert_int_equal(aq_lengths_write(lengths, count, mosts[m], &text), AQ_OK);
            assert_int_equal(strlen(text), aq_lengths_characters(count, mosts[m]));
            assert_int_equal(aq_lengths_read(text, count, mosts[m], back), AQ_OK);
            assert_memory_equal(lengths, back, sizeof lengths);
            /* Seven more have a character more, at least. */
            assert_int_equal(aq_lengths_read(text, count + 7, mosts[m], back), AQ_PROTO);
            aq_free(text);
        }
}

/* Worked by hand: lengths 1, 64 and 3 of at most 64 are six bits each: 0, 63 and 2. */
static void test_a_text_is_as_the_header_says(void **state)
{
    (void)state;
    const uint32_t lengths[] = {1, 64, 3};
    uint32_t back[3];
    char *text;
    assert_int_equal(aq_lengths_write(lengths, 3, 64, &text), AQ_OK);
    assert_string_equal(text, "0_2");
    aq_free(text);
    assert_int_equal(aq_lengths_characters(8551, 64), 8551);
    assert_int_equal(aq_lengths_read("0_2", 3, 60, back), AQ_PROTO); /* 64 is beyond 60 */
    assert_int_equal(aq_lengths_read("0+2", 3, 64, back), AQ_PROTO);
    assert_int_equal(aq_lengths_read("0_", 3, 64, back), AQ_PROTO);
    assert_int_equal(aq_lengths_read("", 0, 64, back), AQ_OK);
    assert_int_equal(aq_lengths_read("1", 2, 3, back), AQ_OK); /* two bits each, and two that are left: zero */
    assert_int_equal(aq_lengths_read("G", 2, 3, back), AQ_PROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_width_comes_back),
        cmocka_unit_test(test_a_text_is_as_the_header_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
