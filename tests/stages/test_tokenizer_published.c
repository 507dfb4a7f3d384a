/*
 * test_tokenizer_published.c -- GPT-2's own vocabulary on real text, against another implementation's tokens.
 *
 * The counts and sequences are those of gpt-tokenizer 4.0.0 (r50k_base). Skips where the shared data is not there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/dataset.h"

static struct aq_tokenizer *tokenizer;

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *text;
    assert_int_equal(aq_alloc(*bytes + 1, &text), AQ_OK);
    assert_int_equal(fread(text, 1, *bytes, file), *bytes);
    fclose(file);
    return text;
}

static void expect_file(const char *name, size_t expected_count, const int32_t *first, size_t first_count)
{
    char path[DATA_PATH_BYTES];
    if (!data_shared(name, path)) skip();
    size_t bytes, count, back_bytes;
    int32_t *tokens;
    char *text = read_file(path, &bytes), *back;
    assert_int_equal(aq_tokenizer_encode(tokenizer, text, bytes, &tokens, &count), AQ_OK);
    assert_int_equal(count, expected_count);
    assert_memory_equal(tokens, first, first_count * sizeof(int32_t));
    assert_int_equal(aq_tokenizer_decode(tokenizer, tokens, count, &back, &back_bytes), AQ_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    aq_free(back);
    aq_free(tokens);
    aq_free(text);
}

static void test_published_sentence_same_tokens(void **state)
{
    (void)state;
    static const char text[] = "Hello world, it's 2024: na\xC3\xAFve caf\xC3\xA9 \xE2\x80\x94 ok?";
    static const int32_t expected[] = {15496, 995, 11, 340, 338, 48609, 25, 41492, 40304, 851, 12876, 30};
    int32_t *tokens;
    size_t count;
    assert_int_equal(aq_tokenizer_encode(tokenizer, text, sizeof text - 1, &tokens, &count), AQ_OK);
    assert_int_equal(count, sizeof expected / sizeof expected[0]);
    assert_memory_equal(tokens, expected, sizeof expected);
    aq_free(tokens);
    static const char two[] = "Hello world<|endoftext|>Hello world";
    static const int32_t parted[] = {15496, 995, 50256, 15496, 995};
    assert_int_equal(aq_tokenizer_encode(tokenizer, two, sizeof two - 1, &tokens, &count), AQ_OK);
    assert_int_equal(count, sizeof parted / sizeof parted[0]);
    assert_memory_equal(tokens, parted, sizeof parted);
    aq_free(tokens);
    assert_int_equal(aq_tokenizer_vocabulary(tokenizer), 50257);
    assert_int_equal(aq_tokenizer_end_of_text(tokenizer), 50256);
}

static void test_published_wikitext2_valid_same_tokens(void **state)
{
    (void)state;
    static const int32_t first[] = {220, 198, 796, 8074, 20272, 9106, 3876, 385, 796, 220, 198, 220, 198, 8074, 20272,
                                    9106};
    expect_file("wikitext2/valid.txt", 258659, first, sizeof first / sizeof first[0]);
}

static void test_published_wikitext2_train_same_tokens(void **state)
{
    (void)state;
    static const int32_t first[] = {220, 198, 796, 2211, 784, 1478, 1971, 2254, 376, 13, 34, 13, 1622, 796, 220, 198};
    expect_file("wikitext2/train.txt", 2448382, first, sizeof first / sizeof first[0]);
}

static void test_published_arxiv_same_count(void **state)
{
    (void)state;
    expect_file("arxiv/abstracts_18k.txt", 4621351, NULL, 0);
}

int main(void)
{
    char path[DATA_PATH_BYTES];
    if (!data_shared("gpt2_bpe/vocab.bpe", path)) return 77;
    *strrchr(path, '/') = 0;
    if (aq_tokenizer_open("gpt2", path, &tokenizer) != AQ_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_sentence_same_tokens),
        cmocka_unit_test(test_published_wikitext2_valid_same_tokens),
        cmocka_unit_test(test_published_wikitext2_train_same_tokens),
        cmocka_unit_test(test_published_arxiv_same_count),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    aq_tokenizer_close(tokenizer);
    return failed;
}
