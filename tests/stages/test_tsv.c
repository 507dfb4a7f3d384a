/*
 * test_tsv.c -- tables of texts: columns by names and by numbers, pairs, labels by names and by numbers, what is cut,
 * lengths, and every row that is none, with its line and cause.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "data_files.h"
#include "stages/dataset.h"

enum { T = 8 };

static char folder[DATA_PATH_BYTES], path[DATA_PATH_BYTES], more[DATA_PATH_BYTES];

static enum aq_status open_with(const char *text, const struct aq_dataset_columns *columns, struct aq_dataset **data)
{
    const char *const paths[] = {path};
    const struct aq_dataset_config config = {
        .kind = "tsv", .paths = paths, .path_count = 1, .tokenizer_kind = "bytes", .T = T, .columns = *columns};
    data_write_text(folder, "table.tsv", text);
    *data = NULL;
    aq_error_clear();
    return aq_dataset_open(&config, data);
}

/* Sample `index` is these bytes and no more, with this label. */
static void expect(const struct aq_dataset *data, uint64_t index, const char *text, int32_t label)
{
    int32_t tokens[T], labels[1], types[T];
    float scores[1];
    void *const values[AQ_BATCH_FIELDS_MAX] = {tokens, labels, scores, types};
    assert_int_equal(aq_dataset_get(data, index, values), AQ_OK);
    assert_int_equal(aq_dataset_lengths(data)[index], strlen(text));
    for (size_t t = 0; t < T; t++)
        assert_int_equal(tokens[t], t < strlen(text) ? (unsigned char)text[t] : 0);
    for (size_t t = 0; t < T; t++)
        assert_int_equal(types[t], 0); /* these tokenizers have no template with types */
    assert_int_equal(labels[0], label);
}

static void test_columns_have_names_or_numbers(void **state)
{
    (void)state;
    struct aq_dataset *data;
    const struct aq_dataset_columns numbers = {.text = "4", .label = "2"}, names = {.text = "words", .label = "right"};
    assert_int_equal(open_with("gj04\t1\t\tabc\ncj99\t0\t*\tde\r\n\nx\t2\t\tfghi", &numbers, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 3);
    assert_int_equal(aq_dataset_outputs(data), 3);
    assert_int_equal(aq_dataset_vocabulary(data), 256);
    expect(data, 0, "abc", 1);
    expect(data, 1, "de", 0);
    expect(data, 2, "fghi", 2);
    aq_dataset_close(data);
    assert_int_equal(open_with("right\tother\twords\n1\t\tabc\n0\tq\tde\n", &names, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    expect(data, 0, "abc", 1);
    aq_dataset_close(data);
}

/* A line feed stands between two texts where the tokenizer has no end of text; the longer one is cut first. */
static void test_pairs_are_cut_from_the_longer(void **state)
{
    (void)state;
    struct aq_dataset *data;
    const struct aq_dataset_columns columns = {.text = "q", .pair = "s", .label = "l", .names = "yes,  no"};
    const char text[] = "q\ts\tl\nab\tcd\tno\nabcdefghij\tkl\tyes\nab\tcdefghijkl\tno\nabcdef\tghijkl\tyes\n";
    assert_int_equal(open_with(text, &columns, &data), AQ_OK);
    expect(data, 0, "ab\ncd", 1);
    expect(data, 1, "abcde\nkl", 0);
    expect(data, 2, "ab\ncdefg", 1);
    expect(data, 3, "abc\nghij", 0);
    assert_int_equal(aq_dataset_outputs(data), 2);
    assert_false(aq_dataset_masks(data));
    assert_int_equal(aq_dataset_targets(data, 0, 1), 1);
    aq_dataset_close(data);
}

/* Each file has its own first line, and ids go on through all of them; a part has the lengths of its samples. */
static void test_files_follow_each_other(void **state)
{
    (void)state;
    struct aq_dataset *data;
    const char *const paths[] = {path, more};
    const struct aq_dataset_config config = {.kind = "tsv",
                                             .paths = paths,
                                             .path_count = 2,
                                             .tokenizer_kind = "bytes",
                                             .T = T,
                                             .skip = 1,
                                             .columns = {.text = "t", .label = "l"}};
    data_write_text(folder, "table.tsv", "t\tl\na\t0\nbb\t1\n");
    data_write_text(folder, "more.tsv", "l\tx\tt\n1\t\tccc\n");
    assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    expect(data, 0, "bb", 1);
    expect(data, 1, "ccc", 1);
    aq_dataset_close(data);
}

/* Where the task asks for them labels are numbers with a point; what is none is refused with its line. */
static void test_scores_are_read_where_they_are_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
        const char *names;
    } broken[] = {
        {"a\t1.5\nb\thigh\n", "table.tsv:2: the label \"high\" is not a number", NULL},
        {"a\t\n", "table.tsv:1: the label \"\" is not a number", NULL},
        {"a\tnan\n", "the label \"nan\" is not a number", NULL},
        {"a\tinf\n", "the label \"inf\" is not a number", NULL},
        {"a\t1e99\n", "the label \"1e99\" is not a number", NULL},
        {"a\t0x1p3\n", "the label \"0x1p3\" is not a number", NULL},
        {"a\t 1\n", "the label \" 1\" is not a number", NULL},
        {"a\t1,5\n", "the label \"1,5\" is not a number", NULL},
        {"a\tyes\n", "data.labels: this task predicts a number", "no, yes"},
    };
    static const float wanted[] = {3.8f, -0.25f, 500.0f};
    const char *const paths[] = {path};
    struct aq_dataset_config config = {.kind = "tsv",
                                       .paths = paths,
                                       .path_count = 1,
                                       .tokenizer_kind = "bytes",
                                       .T = T,
                                       .field = "scores",
                                       .columns = {.text = "1", .label = "2"}};
    struct aq_dataset *data, *other;
    int32_t tokens[T], label, types[T];
    float score;
    void *const values[AQ_BATCH_FIELDS_MAX] = {tokens, &label, &score, types};
    data_write_text(folder, "table.tsv", "a\t3.8\nb\t-0.250\nc\t5e2\n");
    assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
    assert_int_equal(aq_dataset_outputs(data), 1);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(aq_dataset_get(data, i, values), AQ_OK);
        assert_true(score == wanted[i] && label == -1);
    }
    data_write_text(folder, "table.tsv", "a\t3.8\nb\t-0.250\nc\t6e2\n");
    assert_int_equal(aq_dataset_open(&config, &other), AQ_OK);
    assert_true(aq_dataset_digest(data) != aq_dataset_digest(other));
    aq_dataset_close(data);
    aq_dataset_close(other);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        data_write_text(folder, "table.tsv", broken[i].text);
        config.columns.names = broken[i].names;
        assert_int_not_equal(aq_dataset_open(&config, &data), AQ_OK);
        if (!strstr(aq_error_text(), broken[i].wanted)) fail_msg("case %zu: %s", i, aq_error_text());
        aq_error_clear();
    }
}

static void test_broken_rows_are_told_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
        struct aq_dataset_columns columns;
    } cases[] = {
        {"a\t0\nb\n", "table.tsv:2: 1 fields between tabs, the lines before have 2", {.text = "1", .label = "2"}},
        {"a\t0\nb\t1\t2\n", "table.tsv:2: 3 fields between tabs", {.text = "1", .label = "2"}},
        {"a\t0\nb\t-1\n", "table.tsv:2: the label \"-1\" is not a number from 0", {.text = "1", .label = "2"}},
        {"a\t0\nb\t\n", "table.tsv:2: the label \"\" is not a number", {.text = "1", .label = "2"}},
        {"a\t99999999999999999999\n",
         "table.tsv:1: the label \"99999999999999999999\" is not a number from 0 to 1048575",
         {.text = "1", .label = "2"}},
        {"a\tmaybe\n", "the label \"maybe\" is not in data.labels", {.text = "1", .label = "2", .names = "yes, no"}},
        {"a\tye\n", "the label \"ye\" is not in data.labels", {.text = "1", .label = "2", .names = "yes, no"}},
        {"a\tyes\n", "data.labels: name 2 is empty", {.text = "1", .label = "2", .names = "yes, , no"}},
        {"a\tyes\n", "data.labels: name 2 is empty", {.text = "1", .label = "2", .names = "yes,"}},
        {"a\tyes\n", "data.labels: name 1 is empty", {.text = "1", .label = "2", .names = ",yes"}},
        {"a\tyes\n", "data.labels: \"yes\" comes twice", {.text = "1", .label = "2", .names = "yes,no, yes"}},
        {"a\t0\n\t1\n", "table.tsv:2: its text is empty", {.text = "1", .label = "2"}},
        {"a\t\t1\n", "table.tsv:1: its second text is empty", {.text = "1", .pair = "2", .label = "3"}},
        {"t\tl\na\t0\n",
         "table.tsv:1: data.text_column: there is no column text; the line has 2",
         {.text = "text", .label = "l"}},
        {"a\t0\n", "table.tsv:1: data.label_column: there is no column 3; the line has 2", {.text = "1", .label = "3"}},
        {"a\t0\n", "names or numbers, not both", {.text = "1", .label = "l"}},
        {"a\t0\n", "data.label_column is missing", {.text = "1"}},
        {"a\t0\n", "data.text_column is missing", {.label = "1"}},
        {"t\tl\n", "has no line with a sample", {.text = "t", .label = "l"}},
        {"", "has no line with a sample", {.text = "1", .label = "2"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_dataset *data;
        const enum aq_status status = open_with(cases[i].text, &cases[i].columns, &data);
        assert_true(status == AQ_CORRUPT || status == AQ_INVAL);
        if (!strstr(aq_error_text(), cases[i].wanted)) fail_msg("case %zu: %s", i, aq_error_text());
    }
    struct aq_dataset *data;
    const struct aq_dataset_columns columns = {.text = "1", .label = "2"};
    aq_error_clear();
    data_write(folder, "table.tsv", "a\0b\t1\n", 6);
    const char *const paths[] = {path};
    const struct aq_dataset_config config = {
        .kind = "tsv", .paths = paths, .path_count = 1, .tokenizer_kind = "bytes", .T = T, .columns = columns};
    assert_int_equal(aq_dataset_open(&config, &data), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "table.tsv:1: has a zero byte"));
}

/* A sample has a token at least: a stage takes no other. A row has so many fields at most. */
static void test_rows_without_tokens_and_with_too_many_fields(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b"};
    char many[600];
    struct aq_dataset *data;
    const char *const paths[] = {path};
    struct aq_dataset_config config = {.kind = "tsv",
                                       .paths = paths,
                                       .path_count = 1,
                                       .tokenizer_kind = "huggingface",
                                       .tokenizer_path = folder,
                                       .T = T,
                                       .columns = {.text = "1", .label = "2"}};
    data_write_tokenizer_json(folder,
                              "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
                              "\"pattern\": {\"String\": \" \"}, \"behavior\": \"Removed\"}, {\"type\": "
                              "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}",
                              "", merges, 1);
    data_write_text(folder, "table.tsv", "ab\t0\n \t1\n");
    aq_error_clear();
    assert_int_equal(aq_dataset_open(&config, &data), AQ_CORRUPT);
    if (!strstr(aq_error_text(), "table.tsv:2: the tokenizer makes no token")) fail_msg("%s", aq_error_text());
    for (int tabs = 255; tabs <= 256; tabs++) {
        snprintf(many, sizeof many, "ab\t0%*s\n", tabs - 1, "");
        for (char *at = many; *at; at++)
            if (*at == ' ') *at = '\t';
        data_write_text(folder, "table.tsv", many);
        aq_error_clear();
        if (tabs == 255) {
            assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
            aq_dataset_close(data);
            continue;
        }
        assert_int_equal(aq_dataset_open(&config, &data), AQ_CORRUPT);
        if (!strstr(aq_error_text(), "table.tsv:1: more than 256 fields")) fail_msg("%s", aq_error_text());
    }
}

/* [CLS] and [SEP] are two: of three tokens one is the text's. */
static void test_a_frame_leaves_room_for_a_text(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b"};
    struct aq_dataset *data;
    const char *const paths[] = {path};
    struct aq_dataset_config config = {.kind = "tsv",
                                       .paths = paths,
                                       .path_count = 1,
                                       .tokenizer_kind = "huggingface",
                                       .tokenizer_path = folder,
                                       .columns = {.text = "1", .label = "2"}};
    data_write_tokenizer_json(folder,
                              "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
                              "\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"!\", 0], \"sep\": "
                              "[\"#\", 1]}",
                              "", merges, 1);
    data_write_text(folder, "table.tsv", "abab\t0\nba\t1\n");
    for (config.T = 1; config.T < 5; config.T++) {
        aq_error_clear();
        assert_int_equal(aq_dataset_open(&config, &data), config.T < 3 ? AQ_INVAL : AQ_OK);
        if (config.T < 3) {
            if (!strstr(aq_error_text(), "puts 2 tokens around it")) fail_msg("%s", aq_error_text());
            continue;
        }
        assert_int_equal(aq_dataset_lengths(data)[0], config.T);
        aq_dataset_close(data);
    }
}

/* The published sizes of CoLA's and QNLI's files, with GPT-2's tokens. */
static void test_glue_opens_as_published(void **state)
{
    (void)state;
    char cola[DATA_PATH_BYTES], qnli[DATA_PATH_BYTES], vocabulary[DATA_PATH_BYTES];
    if (!data_shared("cola/in_domain_train.tsv", cola) || !data_shared("qnli/train_10k.tsv", qnli) ||
        !data_shared("gpt2_bpe", vocabulary))
        skip();
    const char *paths[] = {cola};
    struct aq_dataset_config config = {.kind = "tsv",
                                       .paths = paths,
                                       .path_count = 1,
                                       .tokenizer_kind = "gpt2",
                                       .tokenizer_path = vocabulary,
                                       .T = 128,
                                       .columns = {.text = "4", .label = "2"}};
    struct aq_dataset *data;
    int32_t tokens[128], label, types[128];
    float score;
    void *const values[AQ_BATCH_FIELDS_MAX] = {tokens, &label, &score, types};
    uint64_t right = 0;
    assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 8551);
    for (uint64_t i = 0; i < 8551; i++) {
        assert_int_equal(aq_dataset_get(data, i, values), AQ_OK);
        right += (uint64_t)label;
    }
    assert_int_equal(right, 6023);
    aq_dataset_close(data);
    paths[0] = qnli;
    config.columns = (struct aq_dataset_columns){
        .text = "question", .pair = "sentence", .label = "label", .names = "entailment, not_entailment"};
    assert_int_equal(aq_dataset_open(&config, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 9999);
    assert_int_equal(aq_dataset_get(data, 0, values), AQ_OK);
    assert_int_equal(label, 1);
    uint32_t ends = 0;
    for (uint32_t t = 0; t < aq_dataset_lengths(data)[0]; t++)
        ends += tokens[t] == 50256;
    assert_int_equal(ends, 1); /* between question and sentence */
    aq_dataset_close(data);
}

int main(void)
{
    data_be_quiet();
    data_folder_open(folder);
    data_path(folder, "table.tsv", path);
    data_path(folder, "more.tsv", more);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_have_names_or_numbers),
        cmocka_unit_test(test_pairs_are_cut_from_the_longer),
        cmocka_unit_test(test_files_follow_each_other),
        cmocka_unit_test(test_scores_are_read_where_they_are_asked_for),
        cmocka_unit_test(test_broken_rows_are_told_with_their_line),
        cmocka_unit_test(test_rows_without_tokens_and_with_too_many_fields),
        cmocka_unit_test(test_a_frame_leaves_room_for_a_text),
        cmocka_unit_test(test_glue_opens_as_published),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(folder);
    return failed;
}
