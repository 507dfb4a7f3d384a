/*
 * test_weights_set.c -- weights in several files: one set of tensors, the bits of one file; and every way in which an
 * index and its shards can disagree, or lead out of the folder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/weights.h"

#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"

static char place[DATA_PATH_BYTES];
static const float values[6] = {1, 2, 3, 4, 5, 6};

/* Both have two tensors; 9 values, 36 bytes. */
static void write_shards(void)
{
    char path[DATA_PATH_BYTES];
    const struct aq_weights_tensor one[] = {
        {.name = "transformer.b", .dimensions = 2, .shape = {2, 2}, .values = values},
        {.name = "transformer.d", .dimensions = 1, .shape = {2}, .values = values + 1}};
    const struct aq_weights_tensor two[] = {
        {.name = "transformer.a", .dimensions = 1, .shape = {2}, .values = values + 2},
        {.name = "lm_head.c", .dimensions = 1, .shape = {1}, .values = values}};
    assert_int_equal(aq_weights_write(data_path(place, ONE, path), one, 2, NULL), AQ_OK);
    assert_int_equal(aq_weights_write(data_path(place, TWO, path), two, 2, NULL), AQ_OK);
}

static void write_index(const char *metadata, const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\": {%s}, \"weight_map\": {%s}}", metadata, map);
    data_write_text(place, "model.safetensors.index.json", text);
}

#define MAP                                                                                                            \
    "\"transformer.a\": \"" TWO "\", \"transformer.b\": \"" ONE "\", \"lm_head.c\": \"" TWO                            \
    "\", \"transformer.d\": \"" ONE "\""

static void expect_tensor(const struct aq_weights *weights, const char *name, const float *expected, uint64_t count)
{
    float read[8];
    uint32_t index;
    assert_int_equal(aq_weights_find(weights, name, &index), AQ_OK);
    assert_int_equal(aq_weights_read(weights, index, false, read, count), AQ_OK);
    assert_memory_equal(read, expected, count * sizeof(float));
}

static void test_set_is_one_set_of_tensors(void **state)
{
    struct aq_weights *weights;
    struct aq_weights_info info;
    uint32_t index;
    (void)state;
    write_shards();
    write_index("\"total_size\": 36", MAP);
    assert_int_equal(aq_weights_open(place, &weights), AQ_OK);
    assert_int_equal(aq_weights_count(weights), 4);
    expect_tensor(weights, "transformer.a", values + 2, 2);
    expect_tensor(weights, "a", values + 2, 2);
    expect_tensor(weights, "b", values, 4);
    expect_tensor(weights, "transformer.d", values + 1, 2);
    expect_tensor(weights, "lm_head.c", values, 1);
    assert_int_equal(aq_weights_find(weights, "c", &index), AQ_NOTFOUND);
    assert_int_equal(aq_weights_find(weights, "b", &index), AQ_OK);
    aq_weights_info(weights, index, &info);
    assert_string_equal(info.name, "transformer.b");
    assert_non_null(strstr(info.file, ONE));
    const uint64_t digest = aq_weights_digest(weights);
    aq_weights_close(weights);
    write_index("", MAP); /* without sizes */
    assert_int_equal(aq_weights_open(place, &weights), AQ_OK);
    assert_true(aq_weights_digest(weights) == digest);
    aq_weights_close(weights);
}

static bool wants_d(void *context, const char *name)
{
    (void)context;
    return strcmp(name, "d") == 0;
}

static bool wants_nothing(void *context, const char *name)
{
    (void)context;
    (void)name;
    return false;
}

/* The other shard may be missing: a stage elsewhere has it. */
static void test_set_opens_the_shards_that_are_wanted(void **state)
{
    char path[DATA_PATH_BYTES];
    struct aq_weights *weights;
    (void)state;
    write_shards();
    write_index("\"total_size\": 36", MAP);
    assert_int_equal(unlink(data_path(place, TWO, path)), 0);
    assert_int_equal(aq_weights_open(place, &weights), AQ_NOTFOUND);
    assert_non_null(strstr(aq_error_text(), TWO));
    assert_int_equal(aq_weights_open_wanted(place, wants_d, NULL, &weights), AQ_OK);
    assert_int_equal(aq_weights_count(weights), 2);
    expect_tensor(weights, "d", values + 1, 2);
    aq_weights_close(weights);
    assert_int_equal(aq_weights_open_wanted(place, wants_nothing, NULL, &weights), AQ_OK);
    assert_int_equal(aq_weights_count(weights), 0);
    aq_weights_close(weights);
    aq_error_clear();
}

static void expect_refused(enum aq_status status, const char *says)
{
    struct aq_weights *weights;
    aq_error_clear();
    assert_int_equal(aq_weights_open(place, &weights), status);
    if (!strstr(aq_error_text(), says)) fail_msg("'%s' does not say '%s'", aq_error_text(), says);
}

static void test_set_that_lies_is_refused(void **state)
{
    static const struct {
        const char *metadata, *map, *says;
    } cases[] = {
        {"", MAP ", \"transformer.a\": \"" ONE "\"", "duplicate object key"},
        {"",
         "\"transformer.a\": \"" ONE "\", \"transformer.b\": \"" ONE "\", \"lm_head.c\": \"" TWO
         "\", \"transformer.d\": \"" ONE "\"",
         TWO ": has \"transformer.a\", which by"},
        {"", "\"transformer.a\": \"../evil.safetensors\"",
         "should be in \"../evil.safetensors\", which is not the name"},
        {"", "\"transformer.a\": \"/etc/evil.safetensors\"", "is not the name of"},
        {"", "\"transformer.a\": \"sub/evil.safetensors\"", "is not the name of"},
        {"", "\"transformer.a\": \"..\"", "is not the name of"},
        {"", "\"transformer.a\": \".safetensors\"", "is not the name of"},
        {"", "\"transformer.a\": \"pytorch_model-00001-of-00002.bin\"", "is not the name of"},
        {"", "\"transformer.a\": 3", "is not the name of"},
        {"", "\"transformer.a\": \"\\u001bx.safetensors\"", "is not the name of"},
    };
    (void)state;
    write_shards();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_index(cases[i].metadata, cases[i].map);
        expect_refused(AQ_CORRUPT, cases[i].says);
    }
    data_write_text(place, "model.safetensors.index.json", "{\"weight_map\": 3}");
    expect_refused(AQ_CORRUPT, "\"weight_map\" does not map");
    data_write_text(place, "model.safetensors.index.json", "{\"weight_map\"");
    expect_refused(AQ_CORRUPT, "index.json:1:");
    data_write_text(place, "model.safetensors.index.json", "[]");
    expect_refused(AQ_CORRUPT, "\"weight_map\" does not map");
    write_index("", "\"transformer.a\": \"model-00003-of-00002.safetensors\"");
    expect_refused(AQ_NOTFOUND, "model-00003-of-00002.safetensors: there is no such file, which");
}

/* What nothing is computed from: sizes, names that no shard has, tensors that the index does not name. */
static void test_set_that_errs_is_read(void **state)
{
    static const char *const cases[][2] = {
        {"\"total_size\": 40", MAP},
        {"\"total_size\": \"36\"", MAP},
        {"\"total_size\": NaN", MAP},
        {"", MAP ", \"transformer.e\": \"" ONE "\""},
        {"", "\"transformer.a\": \"" TWO "\", \"lm_head.c\": \"" TWO "\", \"transformer.d\": \"" ONE "\""}};
    struct aq_weights *weights;
    uint32_t index;
    (void)state;
    write_shards();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_index(cases[i][0], cases[i][1]);
        assert_int_equal(aq_weights_open(place, &weights), AQ_OK);
        assert_int_equal(aq_weights_count(weights), 4);
        expect_tensor(weights, "b", values, 4);
        assert_int_equal(aq_weights_find(weights, "e", &index), AQ_NOTFOUND);
        aq_weights_close(weights);
    }
}

/* What stands in a download's place is told with the command that gets the file. */
static void test_set_that_was_not_downloaded_is_told(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123456789\n";
    (void)state;
    write_shards();
    write_index("", MAP);
    data_write_text(place, TWO, pointer);
    expect_refused(AQ_CORRUPT, TWO ": is a Git LFS pointer, not the file itself: run `git lfs pull`");
    data_write_text(place, TWO, "<!DOCTYPE html>\n<html>log in</html>");
    expect_refused(AQ_CORRUPT, TWO ": is a web page, not the file itself");
    write_shards();
    data_write_text(place, "model.safetensors.index.json", " <HTML>");
    expect_refused(AQ_CORRUPT, "index.json: is a web page");
}

static void test_set_with_a_damaged_shard_is_refused(void **state)
{
    (void)state;
    write_shards();
    write_index("", MAP);
    data_write_text(place, TWO, "short");
    expect_refused(AQ_CORRUPT, TWO);
}

/* A single file comes first, as everywhere. */
static void test_set_prefers_the_single_file(void **state)
{
    char path[DATA_PATH_BYTES];
    struct aq_weights *weights;
    const struct aq_weights_tensor all[] = {{.name = "a", .dimensions = 1, .shape = {2}, .values = values}};
    (void)state;
    write_index("", "\"transformer.a\": \"..\"");
    assert_int_equal(aq_weights_write(data_path(place, "model.safetensors", path), all, 1, NULL), AQ_OK);
    assert_int_equal(aq_weights_open(place, &weights), AQ_OK);
    expect_tensor(weights, "transformer.a", values, 2);
    aq_weights_close(weights);
    assert_int_equal(unlink(path), 0);
}

static void test_pickles_are_refused_with_the_line_that_converts_them(void **state)
{
    char empty[DATA_PATH_BYTES], path[DATA_PATH_BYTES];
    struct aq_weights *weights;
    (void)state;
    data_folder_open(empty);
    aq_error_clear();
    assert_int_equal(aq_weights_open(empty, &weights), AQ_NOTFOUND);
    assert_non_null(strstr(aq_error_text(), "there are no weights"));
    data_write(empty, "pytorch_model.bin", "PK\3\4", 4);
    data_path(empty, "pytorch_model.bin", path);
    for (int file = 0; file < 2; file++) {
        aq_error_clear();
        assert_int_equal(aq_weights_open(file ? path : empty, &weights), AQ_CORRUPT);
        assert_non_null(strstr(aq_error_text(), path));
        assert_non_null(strstr(aq_error_text(), "torch.load("));
        assert_non_null(strstr(aq_error_text(), "weights_only=True"));
    }
    data_write(empty, "pytorch_model.bin", "\x80\2}q", 4);
    assert_int_equal(aq_weights_open(path, &weights), AQ_CORRUPT);
    data_write_text(empty, "pytorch_model.bin.index.json", "{}");
    aq_error_clear();
    assert_int_equal(aq_weights_open(empty, &weights), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "save_pretrained("));
    data_folder_close(empty);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_is_one_set_of_tensors),
        cmocka_unit_test(test_set_opens_the_shards_that_are_wanted),
        cmocka_unit_test(test_set_that_lies_is_refused),
        cmocka_unit_test(test_set_that_errs_is_read),
        cmocka_unit_test(test_set_that_was_not_downloaded_is_told),
        cmocka_unit_test(test_set_with_a_damaged_shard_is_refused),
        cmocka_unit_test(test_set_prefers_the_single_file),
        cmocka_unit_test(test_pickles_are_refused_with_the_line_that_converts_them),
    };
    data_be_quiet();
    data_folder_open(place);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(place);
    return failed;
}
