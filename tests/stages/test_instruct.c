/*
 * test_instruct.c -- instructions and answers: what is learnt, how conversations are packed, chat templates, and every
 * line that is none, with its number and cause.
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

enum { T = 12 };

static char folder[DATA_PATH_BYTES], path[DATA_PATH_BYTES];

/* ChatML, as many models have it, without the mark of answers. */
static const char chatml[] =
    "{\"chat_template\": \"{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}!{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}\"}";

static bool together;
static uint64_t skip;

static enum aq_status open_with(const char *text, bool whole, const char *chat, struct aq_dataset **data)
{
    const char *const paths[] = {path};
    const struct aq_dataset_config config = {.kind = "instruct",
                                             .paths = paths,
                                             .path_count = 1,
                                             .tokenizer_kind = "bytes",
                                             .T = T,
                                             .chat = chat,
                                             .whole = whole,
                                             .together = together,
                                             .skip = skip};
    data_write_text(folder, "lines.jsonl", text);
    *data = NULL;
    aq_error_clear();
    return aq_dataset_open(&config, data);
}

/* Sample `index`: its tokens, and its targets with a dot for those that do not count. */
static void expect(const struct aq_dataset *data, uint64_t index, const char *tokens, const char *targets)
{
    int32_t got[2][T];
    uint32_t counted = 0;
    assert_int_equal(aq_dataset_get(data, index, (void *const[AQ_BATCH_FIELDS_MAX]){got[0], got[1]}), AQ_OK);
    assert_int_equal(strlen(tokens), strlen(targets));
    assert_int_equal(aq_dataset_lengths(data)[index], strlen(tokens));
    for (size_t t = 0; t < T; t++) {
        const bool real = t < strlen(tokens), counts = real && targets[t] != '.';
        counted += counts;
        assert_int_equal(got[0][t], real ? (unsigned char)tokens[t] : 0);
        assert_int_equal(got[1][t], counts ? (unsigned char)targets[t] : -1);
    }
    assert_int_equal(aq_dataset_targets(data, index, T), counted);
}

/* Worked by hand: the answer and the line feed that ends it are learnt, from the last token of the prompt on. */
static void test_answers_alone_are_learnt(void **state)
{
    (void)state;
    struct aq_dataset *data;
    static const char text[] =
        "{\"prompt\": \"ab\", \"response\": \"xyz\"}\n\n{\"prompt\": \"\", \"response\": \"q\"}";
    assert_int_equal(open_with(text, true, NULL, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    assert_true(aq_dataset_masks(data));
    expect(data, 0, "abxyz", ".xyz\n");
    expect(data, 1, "q", "\n"); /* nobody can learn the first of all tokens */
    aq_dataset_close(data);
}

/* First fit in the order of the file, of places of one to eight: 8 | 3 | 5 ... */
static void test_packs_are_the_first_that_fit(void **state)
{
    (void)state;
    struct aq_dataset *data, *again;
    static const char text[] = "{\"prompt\": \"aaaa\", \"response\": \"AAAA\"}\n"  /* 8 places: sample 0, 4 left */
                               "{\"prompt\": \"bbb\", \"response\": \"BBBB\"}\n"   /* 7: sample 1, 5 left         */
                               "{\"prompt\": \"c\", \"response\": \"CC\"}\n"       /* 3: sample 0, 1 left         */
                               "{\"prompt\": \"ddd\", \"response\": \"DD\"}\n"     /* 5: sample 1, full           */
                               "{\"prompt\": \"ee\", \"response\": \"EE\"}\n"      /* 4: sample 2                 */
                               "{\"prompt\": \"g\", \"response\": \"G\"}\n"        /* 2: sample 2, for one is left */
                               "{\"prompt\": \"\", \"response\": \"F\"}\n";        /* 1: sample 0, full           */
    assert_int_equal(open_with(text, false, NULL, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 3);
    expect(data, 0, "aaaaAAAAcCCF", "...AAAA\nCC\n\n");
    expect(data, 1, "bbbBBBBdddDD", "..BBBB\n..DD\n");
    expect(data, 2, "eeEEgG", ".EE\nG\n");
    assert_int_equal(open_with(text, false, NULL, &again), AQ_OK);
    assert_true(aq_dataset_digest(data) == aq_dataset_digest(again));
    aq_dataset_close(again);
    assert_int_equal(open_with(text, true, NULL, &again), AQ_OK);
    assert_int_equal(aq_dataset_count(again), 7);
    assert_true(aq_dataset_digest(data) != aq_dataset_digest(again));
    aq_dataset_close(again);
    aq_dataset_close(data);
}

/* Of the packs above: parts in the order in which they lie, where each token's begins; a part of the samples. */
static void test_packed_conversations_are_parts(void **state)
{
    (void)state;
    struct aq_dataset *data;
    static const char text[] = "{\"prompt\": \"aaaa\", \"response\": \"AAAA\"}\n"
                               "{\"prompt\": \"bbb\", \"response\": \"BBBB\"}\n"
                               "{\"prompt\": \"c\", \"response\": \"CC\"}\n"
                               "{\"prompt\": \"e\", \"response\": \"EEE\"}\n";
    static const uint32_t parts[] = {8, 3, 7, 4}, starts[T] = {0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 11};
    uint32_t got[T];
    uint64_t count;
    assert_int_equal(open_with(text, false, NULL, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    assert_memory_equal(aq_dataset_parts(data, &count), parts, sizeof parts);
    assert_int_equal(count, 4);
    aq_dataset_starts(parts + 2, 2, T, got);
    assert_memory_equal(got, starts, sizeof starts);
    aq_dataset_close(data);
    skip = 1;
    assert_int_equal(open_with(text, false, NULL, &data), AQ_OK);
    assert_memory_equal(aq_dataset_parts(data, &count), parts + 2, 2 * sizeof *parts);
    assert_int_equal(count, 2);
    aq_dataset_close(data);
    skip = 0;
    together = true;
    assert_int_equal(open_with(text, false, NULL, &data), AQ_OK);
    assert_null(aq_dataset_parts(data, &count));
    assert_int_equal(count, 0);
    aq_dataset_close(data);
    together = false;
    assert_int_equal(open_with(text, true, NULL, &data), AQ_OK);
    assert_null(aq_dataset_parts(data, &count));
    aq_dataset_close(data);
}

/* What is beyond T + 1 tokens is cut; where no answer is left there is no sample. */
static void test_long_ones_are_cut(void **state)
{
    (void)state;
    struct aq_dataset *data;
    static const char text[] = "{\"prompt\": \"0123456789\", \"response\": \"abcdef\"}\n"
                               "{\"prompt\": \"0123456789abc\", \"response\": \"lost\"}\n"
                               "{\"prompt\": \"x\", \"response\": \"y\"}\n";
    assert_int_equal(open_with(text, true, NULL, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    expect(data, 0, "0123456789ab", ".........abc");
    expect(data, 1, "xy", "y\n");
    aq_dataset_close(data);
    static const char lost[] = "{\"prompt\": \"0123456789abc\", \"response\": \"lost\"}\n";
    assert_int_equal(open_with(lost, true, NULL, &data), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "no line has an answer within T=12 tokens (1 have none)"));
}

static void test_messages_take_the_folders_template(void **state)
{
    (void)state;
    struct aq_dataset *data;
    data_write_text(folder, "tokenizer_config.json", chatml);
    assert_int_equal(open_with("{\"messages\": [{\"role\": \"user\", \"content\": \"h\"}, "
                               "{\"role\": \"assistant\", \"content\": \"y\"}]}",
                               true, folder, &data),
                     AQ_OK);
    expect(data, 0, "<u>h!<a>y", ".......y!");
    aq_dataset_close(data);
}

static void test_broken_lines_are_told_with_their_number(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\"}\n", "lines.jsonl:2: has no \"response\""},
        {"{\"response\": \"a\"}\n", "lines.jsonl:1: has no \"prompt\""},
        {"{\"prompt\": 3, \"response\": \"a\"}\n", "lines.jsonl:1: has no \"prompt\""},
        {"{\"prompt\": \"a\", \"response\": \"\"}\n", "lines.jsonl:1: its response is empty"},
        {"\n{\"prompt\": \"a\"\n", "lines.jsonl:2: is not JSON"},
        {"[1]\n", "lines.jsonl:1: is not a JSON object"},
        {"{\"messages\": []}\n", "lines.jsonl:1: \"messages\" need a chat template"},
        {"", "there is no record to learn from: is the file empty?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_dataset *data;
        const enum aq_status status = open_with(cases[i][0], false, NULL, &data);
        assert_true(status == AQ_CORRUPT || status == AQ_INVAL);
        if (!strstr(aq_error_text(), cases[i][1])) fail_msg("case %zu: %s", i, aq_error_text());
    }
    static const char *const chats[] = {
        "{\"messages\": 3}", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", "{\"messages\": [3]}"};
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        struct aq_dataset *data;
        assert_int_not_equal(open_with(chats[i], false, folder, &data), AQ_OK);
        if (!strstr(aq_error_text(), "lines.jsonl:1")) fail_msg("case %zu: %s", i, aq_error_text());
    }
}

int main(void)
{
    data_be_quiet();
    data_folder_open(folder);
    data_path(folder, "lines.jsonl", path);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_alone_are_learnt),
        cmocka_unit_test(test_packs_are_the_first_that_fit),
        cmocka_unit_test(test_packed_conversations_are_parts),
        cmocka_unit_test(test_long_ones_are_cut),
        cmocka_unit_test(test_messages_take_the_folders_template),
        cmocka_unit_test(test_broken_lines_are_told_with_their_number),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(folder);
    return failed;
}
