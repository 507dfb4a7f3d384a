/*
 * conform_tokenizer.c -- what every tokenizer of tokenizers.def must do: a new row is tested unasked.
 *
 * Any bytes go in, the same bytes come out, unless the kind says that it normalizes; tokens are within the vocabulary;
 * encoding twice gives the same; decoding token by token gives the same bytes as at once. A kind whose library this
 * program was built without is left out, and the test says so.
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

/* False: built without its library. */
static bool open_kind(const char *name, struct aq_tokenizer **out)
{
    const enum aq_status status = aq_tokenizer_open(name, folder, out);
    if (status == AQ_NODEV) print_message("%s: built without its library\n", name);
    if (status != AQ_NODEV) assert_int_equal(status, AQ_OK);
    return status == AQ_OK;
}

static void check_text(const struct aq_tokenizer *t, const uint8_t *text, size_t bytes)
{
    int32_t *tokens, *again;
    size_t count, count_again, back_bytes, whole_bytes, at = 0;
    char *back, *whole;
    assert_int_equal(aq_tokenizer_encode(t, (const char *)text, bytes, &tokens, &count), AQ_OK);
    assert_int_equal(aq_tokenizer_encode(t, (const char *)text, bytes, &again, &count_again), AQ_OK);
    assert_int_equal(count, count_again);
    assert_memory_equal(tokens, again, count * sizeof(int32_t));
    assert_int_equal(aq_tokenizer_decode(t, tokens, count, &whole, &whole_bytes), AQ_OK);
    if (!t->kind->about.normalizes) {
        assert_int_equal(whole_bytes, bytes);
        assert_memory_equal(whole, text, bytes);
    }
    for (size_t i = 0; i < count; i++) {
        assert_in_range(tokens[i], 0, aq_tokenizer_vocabulary(t) - 1);
        assert_int_equal(aq_tokenizer_decode(t, &tokens[i], 1, &back, &back_bytes), AQ_OK);
        assert_true(back_bytes <= whole_bytes - at);
        assert_memory_equal(back, whole + at, back_bytes);
        at += back_bytes;
        aq_free(back);
    }
    assert_int_equal(at, whole_bytes);
    aq_free(whole);
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
        if (!open_kind(names[k], &t)) continue;
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
        if (!open_kind(names[k], &t)) continue;
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
    static const char *const pieces[] = {"he", "ll", "\xE2\x96\x81w", "\xE2\x96\x81", "a"};
    data_be_quiet();
    data_folder_open(folder);
    data_write_vocabulary(folder, merges, sizeof merges / sizeof merges[0]);
    data_write_tokenizer_json(folder,
                              "\"added_tokens\": [{\"id\": 263, \"content\": \"<|endoftext|>\"}], "
                              "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
                              "", merges, sizeof merges / sizeof merges[0]);
    data_write_spm(folder, pieces, sizeof pieces / sizeof pieces[0]);
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
