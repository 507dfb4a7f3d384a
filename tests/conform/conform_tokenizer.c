/*
 * conform_tokenizer.c -- what every tokenizer of tokenizers.def must do: a new row is tested unasked.
 *
 * Any bytes go in, the same bytes come out; tokens are within the vocabulary; encoding twice gives the same; decoding
 * token by token gives the same bytes as at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data_files.h"
#include "tokenizer.h"

static const char *const names[] = {
#define AQ_TOKENIZER(name) #name,
#include "stages/tokenizers.def"
#undef AQ_TOKENIZER
};

static char folder[DATA_PATH_BYTES];

static void check_text(const struct aq_tokenizer *t, const uint8_t *text, size_t bytes)
{
    int32_t *tokens, *again;
    size_t count, count_again, back_bytes, at = 0;
    char *back;
    assert_int_equal(aq_tokenizer_encode(t, (const char *)text, bytes, &tokens, &count), AQ_OK);
    assert_int_equal(aq_tokenizer_encode(t, (const char *)text, bytes, &again, &count_again), AQ_OK);
    assert_int_equal(count, count_again);
    assert_memory_equal(tokens, again, count * sizeof(int32_t));
    assert_int_equal(aq_tokenizer_decode(t, tokens, count, &back, &back_bytes), AQ_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    aq_free(back);
    for (size_t i = 0; i < count; i++) {
        assert_in_range(tokens[i], 0, aq_tokenizer_vocabulary(t) - 1);
        assert_int_equal(aq_tokenizer_decode(t, &tokens[i], 1, &back, &back_bytes), AQ_OK);
        assert_true(back_bytes <= bytes - at);
        assert_memory_equal(back, text + at, back_bytes);
        at += back_bytes;
        aq_free(back);
    }
    assert_int_equal(at, bytes);
    aq_free(tokens);
    aq_free(again);
}

static void test_any_bytes_round_trip(void **state)
{
    (void)state;
    /* Bytes that make and break UTF-8, letters, numbers, spaces, quotes. */
    static const uint8_t dense[] = "he llo  wor\n\t'sd19\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\xFF\xC0\x80.";
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct aq_tokenizer *t;
        struct aq_rng_key key = aq_rng_key(21, AQ_RNG_TEST, k, 0);
        uint64_t number = 0;
        uint8_t text[300];
        assert_int_equal(aq_tokenizer_open(names[k], folder, &t), AQ_OK);
        assert_true(aq_tokenizer_end_of_text(t) < (int32_t)aq_tokenizer_vocabulary(t));
        for (int round = 0; round < 2000; round++) {
            size_t bytes = aq_rng_below(&key, number++, sizeof text);
            for (size_t i = 0; i < bytes; i++, number++)
                text[i] = round % 2 ? dense[aq_rng_below(&key, number, sizeof dense)]
                                    : (uint8_t)aq_rng_below(&key, number, 256);
            check_text(t, text, bytes);
        }
        aq_tokenizer_close(t);
    }
}

static void test_every_token_decodes(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct aq_tokenizer *t;
        char *text;
        size_t bytes;
        assert_int_equal(aq_tokenizer_open(names[k], folder, &t), AQ_OK);
        for (uint32_t i = 0; i < aq_tokenizer_vocabulary(t); i++) {
            int32_t token = (int32_t)i;
            assert_int_equal(aq_tokenizer_decode(t, &token, 1, &text, &bytes), AQ_OK);
            assert_true(bytes > 0);
            aq_free(text);
        }
        aq_tokenizer_close(t);
    }
}

static int open_folder(void **state)
{
    (void)state;
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "\xC3\x83 \xC2\xA9", "1 9"};
    data_be_quiet();
    data_folder_open(folder);
    data_write_vocabulary(folder, merges, sizeof merges / sizeof merges[0]);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    data_folder_close(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_bytes_round_trip),
        cmocka_unit_test(test_every_token_decodes),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
