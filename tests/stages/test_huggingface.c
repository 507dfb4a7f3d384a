/*
 * test_huggingface.c -- tokenizer.json: what its parts do to a small text, and what is refused, by name and place.
 *
 * Equality with the published package over families and mixed Unicode is test_tokenizer_reference's.
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

static char folder[DATA_PATH_BYTES];

static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w"};
enum { MERGES = sizeof merges / sizeof merges[0], ADDED = 256 + MERGES, HELLO = 256 + 3, SPACE_W = 256 + 4 };

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(pattern, behaviour)                                                                                      \
    "{\"type\": \"Split\", \"pattern\": {" pattern "}, \"behavior\": \"" behaviour "\", \"invert\": false}"
#define STEPS(steps) "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"

static struct aq_tokenizer *open_json(const char *head, const char *model)
{
    struct aq_tokenizer *t;
    data_write_tokenizer_json(folder, head, model, merges, MERGES);
    assert_int_equal(aq_tokenizer_open("huggingface", folder, &t), AQ_OK);
    return t;
}

/* The tokens of text, each as its bytes, with '|' between. */
static void expect_tokens(const struct aq_tokenizer *t, const char *text, const char *expected)
{
    int32_t *tokens;
    size_t count, bytes, used = 0;
    char got[1024] = "", *part;
    assert_int_equal(aq_tokenizer_encode(t, text, strlen(text), &tokens, &count), AQ_OK);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(aq_tokenizer_decode(t, &tokens[i], 1, &part, &bytes), AQ_OK);
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%s", i ? "|" : "", part);
        assert_true(used < sizeof got);
        aq_free(part);
    }
    assert_string_equal(got, expected);
    aq_free(tokens);
}

static void expect_json(const char *head, const char *text, const char *expected)
{
    struct aq_tokenizer *t = open_json(head, "");
    expect_tokens(t, text, expected);
    aq_tokenizer_close(t);
}

static void test_split_behaviours(void **state)
{
    (void)state;
    /* "h e" and "l l" merge where no cut parts them. */
    expect_json(STEPS(SPLIT("\"String\": \"e\"", "Isolated") "," BYTE_LEVEL), "hellohello", "h|e|ll|o|h|e|ll|o");
    expect_json(STEPS(SPLIT("\"String\": \"e\"", "Removed") "," BYTE_LEVEL), "hello", "h|ll|o");
    expect_json(STEPS(SPLIT("\"String\": \"e\"", "MergedWithPrevious") "," BYTE_LEVEL), "hello", "he|ll|o");
    expect_json(STEPS(SPLIT("\"String\": \"e\"", "MergedWithNext") "," BYTE_LEVEL), "hello", "h|e|ll|o");
    expect_json(STEPS(SPLIT("\"Regex\": \"[he]\"", "Contiguous") "," BYTE_LEVEL), "hello", "he|ll|o");
    expect_json(STEPS(SPLIT("\"Regex\": \"(?=l)\"", "Isolated") "," BYTE_LEVEL), "hello", "he|l|l|o");
    expect_json(STEPS("{\"type\": \"Digits\", \"individual_digits\": true}," BYTE_LEVEL), "hello12", "hello|1|2");
    expect_json(STEPS("{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"), "wo w", " w|o| w");
}

static void test_normalizers(void **state)
{
    (void)state;
#define NORMAL(list) "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" list "]}," STEPS(BYTE_LEVEL)
    expect_json(NORMAL("{\"type\": \"Lowercase\"}"), "HELLO\xC4\xB0", "hello|i|\xCC|\x87");
    expect_json(NORMAL("{\"type\": \"NFC\"}"),
                "e\xCC\x81"
                "e\xC3\xA9",
                "\xC3|\xA9|e|\xC3|\xA9");
    expect_json(NORMAL("{\"type\": \"NFKC\"}"), "\xEF\xAC\x81!", "f|i|!");
    expect_json(NORMAL("{\"type\": \"NFD\"}"), "\xEA\xB0\x81", /* one syllable, three letters */
                "\xE1|\x84|\x80|\xE1|\x85|\xA1|\xE1|\x86|\xA8");
    expect_json(NORMAL("{\"type\": \"Prepend\", \"prepend\": \"he\"},"
                       "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"x+\"}, \"content\": \"ll\"}"),
                "xxo", "hello");
}

static void test_added_tokens(void **state)
{
    (void)state;
#define ADD(id, content, more) "{\"id\": " id ", \"content\": \"" content "\"" more "}"
    static const char head[] = "\"added_tokens\": [" ADD("256", "he", ", \"single_word\": true")
        "," ADD("261", "<a>", ", \"lstrip\": true")
        "," ADD("262", "<b>", ", \"rstrip\": true")
        "," ADD("263", "<ab>", "")
        "," ADD("264", "ZZ", ", \"normalized\": true")
        "], \"normalizer\": {\"type\": \"Lowercase\"}, " STEPS(BYTE_LEVEL);
    expect_json(head, "he hello x <a> y <b>  z<ab>ZzZ", "he| |hello| |x|<a>| |y| |<b>|z|<ab>|ZZ|z");
    /* A token of spaces alone, which all belong to the one before it, is none. */
    expect_json("\"added_tokens\": [" ADD("261", "<b>", ", \"rstrip\": true") "," ADD(
                    "262", "\\n", ", \"lstrip\": true") "], " STEPS(BYTE_LEVEL),
                "<b>\nx", "<b>|x");
}

static void test_whole_words_before_merges(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_json(STEPS(BYTE_LEVEL), "\"ignore_merges\": true, ");
    expect_tokens(t, "hello", "hello");
    expect_tokens(t, "hellol", "hello|l");
    aq_tokenizer_close(t);
}

static void test_end_of_text_from_tokenizer_config(void **state)
{
    (void)state;
    char path[DATA_PATH_BYTES];
    const char *head = "\"added_tokens\": [" ADD("261", "<x>", "") "," ADD("262", "</s>", "") "], " STEPS(BYTE_LEVEL);
    struct aq_tokenizer *t = open_json(head, "");
    assert_int_equal(aq_tokenizer_end_of_text(t), 262);
    aq_tokenizer_close(t);
    data_write_text(folder, "tokenizer_config.json", "{\"eos_token\": {\"content\": \"<x>\"}}");
    t = open_json(head, "");
    assert_int_equal(aq_tokenizer_end_of_text(t), 261);
    aq_tokenizer_close(t);
    remove(data_path(folder, "tokenizer_config.json", path));
}

#define TYPED(name, type) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": " type "}}"
#define PIECE(name)       TYPED(name, "0")
#define TEXT(name, type)  "{\"Sequence\": {\"id\": \"" name "\", \"type_id\": " type "}}"
#define TEMPLATE(single, pair)                                                                                         \
    "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": "             \
    "\"TemplateProcessing\", \"single\": [" single "], \"pair\": [" pair "], \"special_tokens\": {\"x\": {\"ids\": "   \
    "[7, 8]}, \"y\": {\"ids\": [9]}, \"z\": {\"ids\": [999]}}}]}, " STEPS(BYTE_LEVEL)

static void test_frame_of_templates(void **state)
{
    (void)state;
    struct aq_tokenizer *t =
        open_json(TEMPLATE(PIECE("x") "," TEXT("A", "0") "," PIECE("y"),
                           PIECE("x") "," TEXT("A", "0") "," PIECE("y") "," PIECE("y") "," TEXT("B", "1") "," TYPED(
                               "y", "2")),
                  "");
    static const struct aq_tokenizer_frame wanted = {{7, 8}, {9, 9}, {9}, 2, 2, 1, 1, 2};
    assert_memory_equal(aq_tokenizer_frame(t), &wanted, sizeof wanted);
    expect_tokens(t, "hello", "hello"); /* encoding does not ask for it */
    aq_tokenizer_close(t);
    t = open_json(
        "\"post_processor\": {\"type\": \"RobertaProcessing\", \"sep\": [\"y\", 5], \"cls\": [\"x\", 4]}," STEPS(
            BYTE_LEVEL),
        "");
    static const struct aq_tokenizer_frame roberta = {{4}, {5, 5}, {5}, 1, 2, 1, 0, 0};
    assert_memory_equal(aq_tokenizer_frame(t), &roberta, sizeof roberta);
    aq_tokenizer_close(t);
    t = open_json(
        "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"y\", 5], \"cls\": [\"x\", 4]}," STEPS(
            BYTE_LEVEL),
        "");
    static const struct aq_tokenizer_frame bert = {{4}, {5}, {5}, 1, 1, 1, 1, 1};
    assert_memory_equal(aq_tokenizer_frame(t), &bert, sizeof bert);
    aq_tokenizer_close(t);
}

static void test_characters_fall_back_to_bytes(void **state)
{
    (void)state;
    static char text[16384];
    size_t used = (size_t)snprintf(
        text, sizeof text,
        "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xE2\x96\x81\"},"
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
        "{\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]},"
        "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"byte_fallback\": true, \"merges\": "
        "[\"\xE2\x96\x81 a\", \"\xE2\x96\x81"
        "a b\"], \"vocab\": {\"<unk>\": 0, \"\xE2\x96\x81\": 1, \"a\": 2, \"b\": 3, "
        "\"\xE2\x96\x81"
        "a\": 4, \"\xE2\x96\x81"
        "ab\": 5");
    for (unsigned i = 0; i < 256; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, ", \"<0x%02X>\": %u", i, 6 + i);
    snprintf(text + used, sizeof text - used, "}}}");
    data_write_text(folder, "tokenizer.json", text);
    struct aq_tokenizer *t;
    assert_int_equal(aq_tokenizer_open("huggingface", folder, &t), AQ_OK);
    expect_tokens(t, " ab b\xC3\xA9\xFF", " ab| |b|\xC3|\xA9|\xFF");
    aq_tokenizer_close(t);
}

/* As `tokenizers` has it: "a b" is behind "b c" by its second place. */
static void test_a_merge_that_stands_there_twice_has_its_later_rank(void **state)
{
    (void)state;
    struct aq_tokenizer *t;
    data_write_text(folder, "tokenizer.json",
                    "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"a\", \"merges\": [\"a b\", \"b c\", \"a b\"], "
                    "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4}}}");
    assert_int_equal(aq_tokenizer_open("huggingface", folder, &t), AQ_OK);
    expect_tokens(t, "abc", "a|bc");
    expect_tokens(t, "abb", "ab|b");
    aq_tokenizer_close(t);
}

static void expect_fails(const char *head, const char *model, enum aq_status wanted, const char *part)
{
    struct aq_tokenizer *t = NULL;
    const uint64_t used = aq_memory_used();
    data_write_tokenizer_json(folder, head, model, merges, MERGES);
    aq_error_clear();
    const enum aq_status status = aq_tokenizer_open("huggingface", folder, &t);
    if (status != wanted || !strstr(aq_error_text(), part))
        fail_msg("status %d \"%s\" is not %d \"%s\"", status, aq_error_text(), wanted, part);
    assert_int_equal(aq_memory_used(), used);
}

static void test_refusals_name_type_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *head, *model, *part;
        enum aq_status status;
    } cases[] = {
        {"\"normalizer\": {\"type\": \"Capitals\"}", "", "tokenizer.json: normalizer is Capitals", AQ_INVAL},
        {STEPS(BYTE_LEVEL ", {\"type\": \"Clauses\"}"), "", "pre_tokenizer.pretokenizers[1] is Clauses", AQ_INVAL},
        {STEPS("{\"type\": \"Metaspace\", \"replacement\": \"__\"}"), "", "replacement is not a single character",
         AQ_CORRUPT},
        {STEPS("{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}"), "",
         "prepend_scheme is not always, first or never", AQ_CORRUPT},
        {STEPS(SPLIT("\"Regex\": \"(a\"", "Isolated")), "", "[0]: is not a regular expression", AQ_CORRUPT},
        {STEPS(SPLIT("\"Regex\": \"[a&&b]\"", "Isolated")), "", "&& in a class at byte 2", AQ_INVAL},
        {STEPS(SPLIT("\"Regex\": \"a\\\\b\"", "Isolated")), "", "such an escape at byte 1", AQ_INVAL},
        {STEPS(SPLIT("\"Regex\": \"(?<x>a)\"", "Isolated")), "", "such a group at byte 0", AQ_INVAL},
        {STEPS(SPLIT("\"Regex\": \"a\"", "Sideways")), "", "[0].behavior is unknown: Sideways", AQ_CORRUPT},
        {STEPS(SPLIT("\"Regexp\": \"a\"", "Isolated")), "", "[0].pattern has neither", AQ_CORRUPT},
        {STEPS("{}"), "", "[0] has no type", AQ_CORRUPT},
        {"\"pre_tokenizer\": {\"type\": \"Sequence\"}", "", "pre_tokenizer.pretokenizers is not a list", AQ_CORRUPT},
        {STEPS("{\"type\": \"ByteLevel\"}"), "", "add_prefix_space is neither", AQ_CORRUPT},
        {"\"normalizer\": {\"type\": \"Prepend\"}", "", "normalizer.prepend is not a string", AQ_CORRUPT},
        {STEPS(BYTE_LEVEL), "\"dropout\": 0.1, ", "model.dropout", AQ_INVAL},
        {STEPS(BYTE_LEVEL), "\"end_of_word_suffix\": \"</w>\", ", "model.end_of_word_suffix", AQ_INVAL},
        {STEPS(BYTE_LEVEL), "\"type\": \"BPE\", ", "tokenizer.json:2:", AQ_CORRUPT}, /* a member twice */
        {"\"added_tokens\": 1, " STEPS(BYTE_LEVEL), "", "added_tokens is not a list", AQ_CORRUPT},
        {"\"added_tokens\": [{\"id\": 1}], " STEPS(BYTE_LEVEL), "", "added_tokens[0] has no content", AQ_CORRUPT},
        {"\"added_tokens\": [" ADD("7", "hello", "") "]," STEPS(BYTE_LEVEL), "",
         "added_tokens[0] \"hello\" has the id 7", AQ_CORRUPT},
        {"\"added_tokens\": [" ADD("9000000", "<x>", "") "]," STEPS(BYTE_LEVEL), "", "\"<x>\" has no id in 0..261",
         AQ_CORRUPT},
        {"\"added_tokens\": [" ADD("7", "<x>", "") "]," STEPS(BYTE_LEVEL), "", "have the same id 7", AQ_CORRUPT},
        {TEMPLATE(TEXT("B", "0"), ""), "", "post_processor.processors[1].single[0] is neither", AQ_INVAL},
        {TEMPLATE(PIECE("w") "," TEXT("A", "0"), ""), "", "single[0]: \"w\" has no ids", AQ_CORRUPT},
        {TEMPLATE(PIECE("z") "," TEXT("A", "0"), ""), "", "has an id that no token has", AQ_CORRUPT},
        {TEMPLATE(PIECE("x") "," TEXT("A", "0"), TEXT("A", "0") "," TEXT("B", "0")), "",
         "puts other tokens around a pair", AQ_INVAL},
        {"\"decoder\": {\"type\": \"Cipher\"}", "", "decoder is Cipher", AQ_INVAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_fails(cases[i].head, cases[i].model, cases[i].status, cases[i].part);
    static const struct {
        const char *text, *part;
        enum aq_status status;
    } files[] = {
        {"", "tokenizer.json:1:", AQ_CORRUPT},
        {"[]", "is not a JSON object", AQ_CORRUPT},
        {"{}", "has no model", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"Unigram\"}}", "model.vocab is not a list", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\"}}", "model.vocab: is not a JSON object", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}", "model.merges is not a list", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}}", "model.merges:1: is not two",
         AQ_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}",
         "model.merges:1: merges a text that is not a token", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 9000000}, \"merges\": []}}",
         "\"b\" has no id in 0..1", AQ_CORRUPT},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct aq_tokenizer *t = NULL;
        data_write_text(folder, "tokenizer.json", files[i].text);
        aq_error_clear();
        assert_int_equal(aq_tokenizer_open("huggingface", folder, &t), files[i].status);
        if (!strstr(aq_error_text(), files[i].part)) fail_msg("\"%s\" lacks \"%s\"", aq_error_text(), files[i].part);
    }
}

/* The text is refused with these words. */
static void expect_refused(const char *head, const char *text, size_t bytes, const char *const words[2])
{
    struct aq_tokenizer *t = open_json(head, "");
    int32_t *tokens;
    size_t count;
    aq_error_clear();
    assert_int_equal(aq_tokenizer_encode(t, text, bytes, &tokens, &count), AQ_INVAL);
    for (int i = 0; i < 2; i++)
        if (!strstr(aq_error_text(), words[i])) fail_msg("\"%s\" lacks \"%s\"", aq_error_text(), words[i]);
    aq_tokenizer_close(t);
}

/* A pattern that takes for ever on some text is a status, not a hang, whether at one place or at each a little. */
static void test_pattern_that_runs_away_inval(void **state)
{
    (void)state;
    static const char *const regexes[] = {
        "(a+a+)+[bc]",           /* without end at one place           */
        "(?:a|a){21}b|.",        /* two million steps at each place    */
        "(?:a|a){14}b|.",        /* 16,000 at each                     */
        "(?:a|a){9}b|(?:a|a){12}b|.",
    };
    static char text[20001];
    memset(text, 'a', sizeof text - 1);
    for (size_t i = 0; i < sizeof regexes / sizeof regexes[0]; i++) {
        char head[512], shown[80];
        snprintf(head, sizeof head, STEPS(SPLIT("\"Regex\": \"%s\"", "Isolated") "," BYTE_LEVEL), regexes[i]);
        snprintf(shown, sizeof shown, "pretokenizers[0]: the pattern \"%s\" takes too much time", regexes[i]);
        expect_refused(head, text, 20000, (const char *const[]){shown, "Use another tokenizer"});
        snprintf(head, sizeof head,
                 "\"normalizer\": {\"type\": \"Replace\", \"content\": \"x\", \"pattern\": {\"Regex\": \"%s\"}}, %s",
                 regexes[i], STEPS(BYTE_LEVEL));
        snprintf(shown, sizeof shown, "normalizer: the pattern \"%s\" takes too much time", regexes[i]);
        expect_refused(head, text, 20000, (const char *const[]){shown, "Use another tokenizer"});
    }
}

/* Places that take many steps, with others between: the same cuts as with one limit for all. */
static void test_pattern_with_some_slow_places_cuts_alike(void **state)
{
    (void)state;
    struct aq_tokenizer *t =
        open_json(STEPS(SPLIT("\"Regex\": \"(?:h|h){12}b|hello|.\"", "Isolated") "," BYTE_LEVEL), "");
    int32_t *tokens;
    size_t count;
    static char text[4096];
    size_t used = 0;
    for (int i = 0; i < 40; i++) {
        memset(text + used, 'h', 14);
        memcpy(text + used + 14, "xyzhello\xC3\xA9", 10);
        used += 24;
    }
    assert_int_equal(aq_tokenizer_encode(t, text, used, &tokens, &count), AQ_OK);
    assert_int_equal(count, 40 * (14 + 3 + 1 + 2));
    for (int i = 0; i < 40; i++)
        assert_int_equal(tokens[20 * i + 17], HELLO);
    aq_free(tokens);
    aq_tokenizer_close(t);
}

#define REPLACE(from, to) "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" from "\"}, \"content\": \"" to "\"}"
#define NORMALIZERS(list)                                                                                              \
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" list "]}, " STEPS(BYTE_LEVEL)
#define A16 "aaaaaaaaaaaaaaaa"

/* Normalizers may make a text 32 times as long and 4096 bytes longer, all of them together. */
static void test_normalizer_that_grows_a_text_without_bound_inval(void **state)
{
    (void)state;
    static char head[1 << 17], text[20001];
    const char *const three[] = {"normalizer.normalizers[1] makes a text longer than ", "32 times as long"};
    memset(text, 'a', sizeof text - 1);
    expect_refused(NORMALIZERS(REPLACE("a", A16) "," REPLACE("a", A16) "," REPLACE("a", A16)), text, 180, three);
    expect_refused(NORMALIZERS(REPLACE("a", A16) "," REPLACE("a", A16)), text, 20000, three);
    size_t used = (size_t)snprintf(head, sizeof head, "%s", "\"normalizer\": {\"type\": \"Replace\", \"content\": \"");
    memset(head + used, 'a', 1 << 16);
    snprintf(head + used + (1 << 16), sizeof head - used - (1 << 16), "%s",
             "\", \"pattern\": {\"String\": \"a\"}}, " STEPS(BYTE_LEVEL));
    expect_refused(head, text, 3000, (const char *const[]){"makes a text longer than 100096 bytes", "remove"});
    /* An added token's content goes through them when the file is read. */
    snprintf(head, sizeof head,
             "\"added_tokens\": [{\"id\": %d, \"content\": \"aaaaaaaaaaaaaaaa\", \"normalized\": true}], %s", ADDED,
             NORMALIZERS(REPLACE("a", A16) "," REPLACE("a", A16) "," REPLACE("a", A16)));
    expect_fails(head, "", AQ_INVAL, "normalizers[2] makes a text longer than");
    /* What published ones do stays: a space becomes three bytes, U+FDFA in NFKD eleven times its own. */
    struct aq_tokenizer *t = open_json(NORMALIZERS(REPLACE(" ", "\xE2\x96\x81") ", {\"type\": \"NFKD\"}"), "");
    for (size_t i = 0; i + 4 <= sizeof text - 1; i += 4)
        memcpy(text + i, "\xEF\xB7\xBA ", 4);
    int32_t *tokens;
    size_t count;
    assert_int_equal(aq_tokenizer_encode(t, text, 20000, &tokens, &count), AQ_OK);
    assert_int_equal(count, 5000 * (33 + 3));
    aq_free(tokens);
    aq_tokenizer_close(t);
}

/* Marks in a row are put in order of their classes, in a time that grows with their count, not with its square. */
static void test_many_combining_marks_take_no_square_of_time(void **state)
{
    (void)state;
    enum { MARKS = 200000 };
    static char text[2 * MARKS];
    struct aq_tokenizer *t = open_json(NORMALIZERS("{\"type\": \"NFC\"}"), "");
    int32_t *tokens;
    size_t count, bytes;
    char *back;
    for (int i = 0; i < MARKS; i++)
        memcpy(text + 2 * i, i < MARKS / 2 ? "\xCC\x81" : i % 2 ? "\xCC\x96" : "\xCC\xB4", 2);
    assert_int_equal(aq_tokenizer_encode(t, text, sizeof text, &tokens, &count), AQ_OK);
    assert_int_equal(aq_tokenizer_decode(t, tokens, count, &back, &bytes), AQ_OK);
    assert_int_equal(bytes, sizeof text);
    for (int i = 0; i < MARKS; i++) /* classes 1, 220, 230 */
        assert_memory_equal(back + 2 * i, i < MARKS / 4 ? "\xCC\xB4" : i < MARKS / 2 ? "\xCC\x96" : "\xCC\x81", 2);
    aq_free(back);
    aq_free(tokens);
    aq_tokenizer_close(t);
}

/* Each place of a text is compared with each length of the added tokens that begin so. */
static void test_added_tokens_of_too_many_lengths_inval(void **state)
{
    (void)state;
    static char head[1 << 18];
    size_t used = (size_t)snprintf(head, sizeof head, "\"added_tokens\": [");
    for (int i = 0; i < 400; i++) {
        used += (size_t)snprintf(head + used, 80, "%s{\"id\": %d, \"content\": \"", i ? "," : "", ADDED + i);
        memset(head + used, 'a', (size_t)i + 2);
        used += (size_t)i + 2;
        used += (size_t)snprintf(head + used, 80, "\"}");
    }
    snprintf(head + used, sizeof head - used, "], %s", STEPS(BYTE_LEVEL));
    expect_fails(head, "", AQ_INVAL, "start with the byte 0x61 have too many different lengths");
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    const uint64_t used = aq_memory_used();
    enum aq_status status = AQ_NOMEM;
    int failures = 0;
    data_write_tokenizer_json(
        folder,
        "\"added_tokens\": [" ADD("261", "<x>", ", \"normalized\": true") "," ADD(
            "262", "<y>",
            "") "], \"normalizer\": {\"type\": \"NFC\"}, " STEPS(SPLIT("\"Regex\": \"l\"",
                                                                       "Isolated") ","
                                                                                   "{\"type\": \"ByteLevel\", "
                                                                                   "\"add_prefix_space\": true}"),
        "", merges, MERGES);
    for (uint64_t n = 1; status != AQ_OK; n++) {
        struct aq_tokenizer *t = NULL;
        int32_t *tokens = NULL;
        size_t count;
        aq_memory_fail_at(n);
        status = aq_tokenizer_open("huggingface", folder, &t);
        if (status == AQ_OK) status = aq_tokenizer_encode(t, "hello e\xCC\x81<x><y>", 16, &tokens, &count);
        aq_memory_fail_at(0);
        aq_free(tokens);
        aq_tokenizer_close(t);
        assert_int_equal(aq_memory_used(), used);
        if (status != AQ_OK) assert_int_equal(status, AQ_NOMEM);
        failures += status != AQ_OK;
        assert_true(n < 1000);
    }
    assert_true(failures > 20);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_behaviours),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_whole_words_before_merges),
        cmocka_unit_test(test_end_of_text_from_tokenizer_config),
        cmocka_unit_test(test_frame_of_templates),
        cmocka_unit_test(test_characters_fall_back_to_bytes),
        cmocka_unit_test(test_a_merge_that_stands_there_twice_has_its_later_rank),
        cmocka_unit_test(test_refusals_name_type_and_place),
        cmocka_unit_test(test_pattern_that_runs_away_inval),
        cmocka_unit_test(test_pattern_with_some_slow_places_cuts_alike),
        cmocka_unit_test(test_normalizer_that_grows_a_text_without_bound_inval),
        cmocka_unit_test(test_many_combining_marks_take_no_square_of_time),
        cmocka_unit_test(test_added_tokens_of_too_many_lengths_inval),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
