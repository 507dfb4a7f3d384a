/*
 * test_sentencepiece.c -- SentencePiece models: special tokens in a text, damaged models, the published one of
 * DeBERTa-v3.
 *
 * The published ids are those of the package sentencepiece 0.2 and, for special tokens, of transformers 5.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "data_files.h"
#include "spm.h"
#include "stages/dataset.h"

static char folder[DATA_PATH_BYTES];
static const char *const pieces[] = {"\xE2\x96\x81he", "llo", "h", "e", "[MASK]"};
enum { PIECES = sizeof pieces / sizeof pieces[0], FIRST = 3 + 256 };

static void expect_tokens(const struct aq_tokenizer *t, const char *text, const int32_t *expected, size_t count)
{
    int32_t *tokens;
    size_t got;
    assert_int_equal(aq_tokenizer_encode(t, text, strlen(text), &tokens, &got), AQ_OK);
    assert_int_equal(got, count);
    assert_memory_equal(tokens, expected, count * sizeof(int32_t));
    aq_free(tokens);
}

static void test_small_model_specials_and_bytes(void **state)
{
    (void)state;
    struct aq_tokenizer *t;
    data_write_spm(folder, pieces, PIECES);
    assert_int_equal(aq_tokenizer_open("sentencepiece", folder, &t), AQ_OK);
    assert_int_equal(aq_tokenizer_vocabulary(t), FIRST + PIECES);
    assert_int_equal(aq_tokenizer_end_of_text(t), 2);
    expect_tokens(t, " hello</s>he\n", (const int32_t[]){FIRST, FIRST + 1, 2, FIRST + 2, FIRST + 3, 3 + '\n'}, 6);
    aq_tokenizer_close(t);
}

static void test_published_deberta_v3(void **state)
{
    (void)state;
    char path[DATA_PATH_BYTES];
    struct aq_tokenizer *t;
    if (!data_shared("deberta_v3_spm/spm.model", path)) skip();
    *strrchr(path, '/') = 0;
    assert_int_equal(aq_tokenizer_open("sentencepiece", path, &t), AQ_OK);
    assert_int_equal(aq_tokenizer_vocabulary(t), 128001);
    expect_tokens(t, "What is the capital of France?", (const int32_t[]){458, 269, 262, 1909, 265, 2378, 302}, 7);
    expect_tokens(t, "a [MASK] b [SEP] c", (const int32_t[]){266, 128000, 2165, 2, 2285}, 5);
    expect_tokens(t, " \n ", NULL, 0);
    const struct aq_tokenizer_frame *frame = aq_tokenizer_frame(t);
    assert_int_equal(frame->before_count + frame->between_count + frame->after_count, 3);
    assert_int_equal(frame->before[0], 1);
    assert_int_equal(frame->between[0], 2);
    assert_int_equal(frame->after[0], 2);
    aq_tokenizer_close(t);
}

/* Every byte changed, and every length cut: a status, or a tokenizer that works. */
static void test_damaged_model_is_a_status(void **state)
{
    (void)state;
    static char model[1 << 15];
    char path[DATA_PATH_BYTES];
    data_write_spm(folder, pieces, PIECES);
    FILE *file = fopen(data_path(folder, "spm.model", path), "rb");
    const size_t count = fread(model, 1, sizeof model, file);
    fclose(file);
    uint32_t refused = 0, taken = 0;
    for (size_t i = 0; i < 2 * count; i += 7) {
        struct aq_tokenizer *t;
        const size_t at = i / 2;
        const char before = model[at];
        model[at] = (char)(before ^ (i % 2 ? 0x80 : 1 << at % 7));
        data_write(folder, "spm.model", model, i % 3 ? count : at);
        const enum aq_status status = aq_tokenizer_open("sentencepiece", folder, &t);
        model[at] = before;
        if (status == AQ_OK) {
            int32_t *tokens;
            size_t tokens_count;
            if (aq_tokenizer_encode(t, "hello h\xC3\xA9", 9, &tokens, &tokens_count) == AQ_OK) aq_free(tokens);
            aq_tokenizer_close(t);
            taken++;
        } else {
            assert_int_equal(status, AQ_CORRUPT);
            refused++;
        }
    }
    assert_true(refused > 20 && taken > 20);
}

/* A model of one piece whose normalizer has this table. */
static void expect_charsmap(const uint32_t *units, uint32_t unit_count, const char *texts, size_t texts_bytes,
                            const char *problem)
{
    uint8_t model[8192] = {0x0A, 8, 0x0A, 1, 'a', 0x15, 0, 0, 0, 0};
    const size_t map = 4 + 4 * unit_count + texts_bytes, spec = map + 3;
    const uint32_t array = 4 * unit_count;
    size_t at = 10;
    assert_true(map > 127 && map + 20 < sizeof model);
    const uint8_t head[] = {0x1A, (uint8_t)(0x80 | (spec & 0x7F)), (uint8_t)(spec >> 7),
                            0x12, (uint8_t)(0x80 | (map & 0x7F)),  (uint8_t)(map >> 7)};
    memcpy(model + at, head, sizeof head);
    memcpy(model + at + 6, &array, 4);
    memcpy(model + at + 10, units, array);
    memcpy(model + at + 10 + array, texts, texts_bytes);
    at += 10 + array + texts_bytes;
    aq_error_clear();
    assert_int_equal(aq_spm_check("spm.model", model, at), problem ? AQ_CORRUPT : AQ_OK);
    if (problem) assert_non_null(strstr(aq_error_text(), problem));
}

static void test_charsmap_stays_within_itself(void **state)
{
    (void)state;
    static uint32_t units[512];
    expect_charsmap(units, 512, "a", 2, NULL);
    expect_charsmap(units, 512, "ab", 2, "its texts do not end");
    char rule[67] = {0};
    memset(rule, 'a', 65);
    expect_charsmap(units, 512, rule, 66, "more than 64 bytes of one match");
    expect_charsmap(units, 512, rule + 1, 65, NULL);
    units[3] = 700u << 10;
    expect_charsmap(units, 512, "a", 2, "a unit points out of its array");
    units[3] = 256u << 10 | 1u << 8;
    units[3 ^ 256] = 1u << 31 | 1;
    expect_charsmap(units, 512, "a", 2, NULL);
    units[3 ^ 256] = 1u << 31 | 2;
    expect_charsmap(units, 512, "a", 2, "a leaf points out of its texts");
    units[3 ^ 256] = 1u << 31 | 1;
    expect_charsmap(units, 512, "\xC3\xA9", 3, "a leaf points into a character");
    expect_charsmap(units, 512, "\xC3", 2, "its texts are not UTF-8");
    memset(units, 0, sizeof units);
    units[0] = 1u << 31 | 700u << 10; /* the root is never a leaf's value */
    expect_charsmap(units, 512, "a", 2, "a unit points out of its array");
}

static int open_folder(void **state)
{
    (void)state;
    data_be_quiet();
    data_folder_open(folder);
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
    struct aq_tokenizer *t = NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_model_specials_and_bytes),
        cmocka_unit_test(test_published_deberta_v3),
        cmocka_unit_test(test_damaged_model_is_a_status),
        cmocka_unit_test(test_charsmap_stays_within_itself),
    };
    open_folder(NULL);
    data_write_spm(folder, pieces, PIECES);
    const bool absent = aq_tokenizer_open("sentencepiece", folder, &t) == AQ_NODEV;
    aq_tokenizer_close(t);
    close_folder(NULL);
    if (absent) {
        print_message("skipped: built without SentencePiece (apt-get install libsentencepiece-dev)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
