/*
 * test_chat.c -- chat templates: what they render, where answers are, what is refused and where, limits, no memory.
 *
 * test_chat_jinja compares with jinja2; this runs anywhere. Templates in the style of published families lie in
 * tests/chat.
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
#include "log_capture.h"
#include "stages/chat.h"
#include "stages/dataset.h"

static const char special[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
static const char two_turns[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yo.\"},"
    " {\"role\": \"user\", \"content\": \"Sum?\"}, {\"role\": \"assistant\", \"content\": \"Four \\u00e9\"}]}";

/* Ends the capture: a line with these words was written. */
static void expect_said(const char *words)
{
    capture_end();
    if (!captured_has(words)) print_error("no line has: %s\nthe first is: %s\n", words, captured.lines[0]);
    assert_true(captured_has(words));
}

static char *template_text(const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.jinja", AQ_CHAT_TEMPLATES, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    static char text[1 << 16];
    *bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    return text;
}

static struct aq_chat_template *open_text(const char *text)
{
    struct aq_chat_template *template;
    assert_int_equal(aq_chat_parse(text, strlen(text), "t", special, &template), AQ_OK);
    return template;
}

static struct aq_chat_template *open_style(const char *name)
{
    struct aq_chat_template *template;
    size_t bytes;
    const char *text = template_text(name, &bytes);
    assert_int_equal(aq_chat_parse(text, bytes, name, special, &template), AQ_OK);
    return template;
}

static void expect_text(const char *template_text_, const char *expected)
{
    struct aq_chat_template *template = open_text(template_text_);
    const struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_text text;
    assert_int_equal(aq_chat_render(template, two_turns, strlen(two_turns), &config, &text), AQ_OK);
    assert_string_equal(text.text, expected);
    assert_int_equal(text.bytes, strlen(expected));
    assert_int_equal(text.answer_count, 0);
    aq_chat_text_free(&text);
    aq_chat_close(template);
}

/* expected: the answers, each followed by a vertical bar. */
static void expect_answers(const char *style, const char *line, const char *expected)
{
    struct aq_chat_template *template = open_style(style);
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_text text;
    char got[512];
    size_t used = 0;
    config.where = style;
    assert_int_equal(aq_chat_answers(template, line, strlen(line), &config, &text), AQ_OK);
    for (uint32_t i = 0; i < text.answer_count; i++) {
        assert_true(text.answers[i].begin < text.answers[i].end && text.answers[i].end <= text.bytes);
        used += (size_t)snprintf(got + used, sizeof got - used, "%.*s|",
                                 (int)(text.answers[i].end - text.answers[i].begin), text.text + text.answers[i].begin);
    }
    assert_string_equal(got, expected);
    aq_chat_text_free(&text);
    aq_chat_close(template);
}

static void expect_refused(const char *template_text_, const char *line, enum aq_status expected, const char *said)
{
    struct aq_chat_template *template = NULL;
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_text text = {0};
    config.where = "train.jsonl:3";
    capture_begin();
    enum aq_status status = aq_chat_parse(template_text_, strlen(template_text_), "t", special, &template);
    if (status == AQ_OK) status = aq_chat_answers(template, line, strlen(line), &config, &text);
    assert_int_equal(status, expected);
    expect_said(said);
    assert_null(text.text);
    aq_chat_close(template);
}

static void test_render_pieces_of_jinja(void **state)
{
    (void)state;
    expect_text("{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}\n{% endfor %}",
                "<s>[user] Hi\n[assistant] Yo.\n[user] Sum?\n[assistant] Four \xC3\xA9\n");
    expect_text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    expect_text("  {% if true %}\n  {% set a = 1 %}\n{{ a }}  {% endif %} b", "1   b"); /* a tag took the newline */
    expect_text("{% set a = 'x' ~ 'yz' %}{% set b = a[:2] ~ '!' %}{% set c = a ~ '?' %}{{ a ~ b ~ c }}", "xyzxy!xyz?");
    expect_text("{{ messages[::-1][0].content[-1] }}{{ messages | map(attribute='role') | unique | join('+') }}",
                "\xC3\xA9user+assistant");
    expect_text("{{ messages[0] | tojson(indent=1) }}{{ messages[0] }}",
                "{\n \"role\": \"user\",\n \"content\": \"Hi\"\n}{'role': 'user', 'content': 'Hi'}");
    expect_text(
        "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% set ns.n = ns.n + loop.length "
        "%}{% endfor %}{{ ns.n }}{{ nothing }}{{ none }}{{ 1.50 }}{{ 7 // -2 }}",
        "4None1.5-4");
    expect_text("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(b='x', a='y') }}", "12yx");
    expect_text("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024");
    expect_text("{{ messages[0]['pop clear'] is defined }}{{ messages[0][''] is defined }}", "FalseFalse");
    expect_text("{{ 'aXbX'.rstrip('X') }}{{ ' a'.lstrip() }}{{ 'a.b.c'.rpartition('.')[0] }}{{ 'abab'.rfind('ab') }}"
                "{{ 'ab'.removesuffix('b') }}{{ 'ab'.endswith('b') }}{{ 'ab'.isupper() }}{{ [2, 1] | min }}"
                "{{ [0, 3] | reject | list }}",
                "aXbaa.b2aTrueFalse1[0]");
    expect_text("{% set n = -9223372036854775807 - 1 %}{{ 'a,b'.split(',', n) }}{{ 'a b'.split(none, n) }}"
                "{{ 'a,b'.rsplit(',', n) }}{{ 'aa'.replace('a', 'b', n) }}{{ 'aa' | replace('a', 'b', n) }}",
                "['a', 'b']['a', 'b']['a', 'b']bbbb");
}

static void test_prompt_asked_for_is_written(void **state)
{
    (void)state;
    static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
    struct aq_chat_template *template = open_style("qwen3");
    struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_text text;
    config.add_generation_prompt = true;
    assert_int_equal(aq_chat_render(template, line, strlen(line), &config, &text), AQ_OK);
    assert_string_equal(text.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    aq_chat_text_free(&text);
    config.variables = "{\"enable_thinking\": false}";
    assert_int_equal(aq_chat_render(template, line, strlen(line), &config, &text), AQ_OK);
    assert_string_equal(text.text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    aq_chat_text_free(&text);
    assert_string_equal(aq_chat_variable(template, "eos_token"), "</s>");
    assert_null(aq_chat_variable(template, "pad_token"));
    aq_chat_close(template);
}

static void test_answers_of_each_style_end_with_their_end_token(void **state)
{
    (void)state;
    expect_answers("chatml", two_turns, "Yo.<|im_end|>|Four \xC3\xA9<|im_end|>|");
    expect_answers("qwen2", two_turns, "Yo.<|im_end|>|Four \xC3\xA9<|im_end|>|");
    expect_answers("llama3", two_turns, "Yo.<|eot_id|>|Four \xC3\xA9<|eot_id|>|");
    expect_answers("mistral", two_turns, " Yo.</s>| Four \xC3\xA9</s>|");
    expect_answers("gemma", two_turns, "Yo.<end_of_turn>|Four \xC3\xA9<end_of_turn>|");
    /* The text's end, which this style writes behind the last message alone. */
    expect_answers("phi", two_turns, "Yo.<|end|>|Four \xC3\xA9<|end|></s>|");
    /* Marked by the template, with its head. */
    expect_answers("smollm3", two_turns,
                   "<|im_start|>assistant\nYo.<|im_end|>\n|<|im_start|>assistant\nFour \xC3\xA9<|im_end|>\n|");
}

static void test_answers_thinking_left_out_of_earlier_turns(void **state)
{
    (void)state;
    static const char line[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                               "\"content\": \"<think>\\nhm\\n"
                               "</think>\\n\\nYo.\"}, {\"role\": \"user\", \"content\": \"Sum?\"}, {\"role\": "
                               "\"assistant\", \"content\": \"Four\","
                               " \"reasoning_content\": \"2+2\"}]}";
    expect_answers("qwen3", line, "Yo.<|im_end|>|<think>\n2+2\n</think>\n\nFour<|im_end|>|");
    /* The last content is cut at its thinking, too: what ends the answer is what stands behind the rest. */
    static const char inside[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"<think>hm</think>Yo.\"}]}";
    expect_answers("qwen3", inside, "<think>\nhm\n</think>\n\nYo.<|im_end|>|");
    expect_answers("qwen3", two_turns, "Yo.<|im_end|>|<think>\n\n</think>\n\nFour \xC3\xA9<|im_end|>|");
}

static void test_answers_that_cannot_be_told_are_refused(void **state)
{
    (void)state;
    expect_refused("{{ messages | length }}{% for m in messages %}{{ m.content }};{% endfor %}", two_turns, AQ_MISMATCH,
                   "train.jsonl:3: t: cannot find the answer of messages[1] in the text");
    expect_refused("{% for m in messages %}{{ m.content if loop.last else 'x' }};{% endfor %}", two_turns, AQ_MISMATCH,
                   "messages[1]");
    expect_refused("{% for m in messages %}{{ m.content }}{% endfor %}",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", AQ_INVAL,
                   "train.jsonl:3: the conversation has no");
    expect_refused("{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ f() }}", two_turns, AQ_INVAL,
                   "t:1:19: {% generation %} within a macro");
}

static void test_mistakes_name_line_and_column(void **state)
{
    (void)state;
    expect_refused("a\nbc {{ x.y }}", two_turns, AQ_INVAL, "train.jsonl:3: t:2:9: 'x' is undefined");
    expect_refused("\xC3\xA9 {% if x %}", two_turns, AQ_CORRUPT, "t:1:13: a block has no elif");
    expect_refused("{{ 'a' }}\n{% frobnicate %}", two_turns, AQ_CORRUPT, "t:2:4: unknown tag \"frobnicate\"");
    expect_refused("{% include 'x' %}", two_turns, AQ_INVAL, "t:1:4: the tag \"include\" is not supported");
    expect_refused("{{ 'a' | center(8) }}", two_turns, AQ_INVAL, "t:1:10: the filter \"center\" is not supported");
    expect_refused("{{ 'a'.zfill(8) }}", two_turns, AQ_INVAL, "str.zfill is not supported");
    expect_refused("{{ [1].sort() }}", two_turns, AQ_INVAL, "list.sort is not supported");
    expect_refused("{{ messages[0].setdefault }}", two_turns, AQ_INVAL, "dict.setdefault is not supported");
    expect_refused("{{ raise_exception('roles!') }}", two_turns, AQ_REFUSED, "refuses this conversation: roles!");
    expect_refused("{{ 1 + }}", two_turns, AQ_CORRUPT, "t:1:8: expected an expression");
    expect_refused("\xFF", two_turns, AQ_CORRUPT, "t: the template is not UTF-8");
    expect_refused("x", "{\"messages\": 1}", AQ_CORRUPT, "train.jsonl:3: has no list \"messages\"");
    expect_refused("x", "{\"messages\": [{\"content\": \"a\"}]}", AQ_CORRUPT, "messages[0] has no \"role\"");
    expect_refused("x", "{\"messages\": [", AQ_CORRUPT, "train.jsonl:3:1:");
    expect_refused("x", "[]", AQ_CORRUPT, "is not a JSON object");
    expect_refused("{{ tools[0] }}",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"\"}], \"tools\": [1, 9999999999999999999]}",
                   AQ_CORRUPT, "too big integer");
}

static void test_limits_end_what_does_not_end(void **state)
{
    (void)state;
    static char deep[4096];
    expect_refused("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", two_turns,
                   AQ_NOSPC, "AQ_CHAT_STEPS_MAX");
    expect_refused("{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
                   two_turns, AQ_NOSPC, "AQ_CHAT_MEMORY_BYTES_MAX");
    expect_refused("{% for a in range(99999) %}{{ 'abcdefghij' * 999 }}{% endfor %}", two_turns, AQ_NOSPC, "AQ_CHAT_");
    expect_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", two_turns, AQ_NOSPC, "JINJA_DEPTH_MAX");
    expect_refused("{{ range(1000000) }}", two_turns, AQ_NOSPC, "range has at most");
    expect_refused(
        "{% set ns = namespace(x=[]) %}{% for a in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        two_turns, AQ_NOSPC, "JINJA_VALUE_NESTING_MAX");
    memset(deep, '(', 2000);
    memcpy(deep, "{{ ", 3);
    expect_refused(deep, two_turns, AQ_CORRUPT, "brackets are nested too deep");
    memset(deep, 0, sizeof deep);
    strcpy(deep, "{{ ");
    for (int i = 0; i < 500; i++)
        strcat(deep, "not ");
    strcat(deep, "1 }}");
    expect_refused(deep, two_turns, AQ_NOSPC, "JINJA_NESTING_MAX");
}

/* ---- folders ---- */

static char folder[DATA_PATH_BYTES];

static void expect_folder(const char *name, const char *expected)
{
    struct aq_chat_template *template;
    const struct aq_chat_config config = aq_chat_config_default();
    struct aq_chat_text text;
    assert_int_equal(aq_chat_open(folder, name, &template), AQ_OK);
    assert_int_equal(aq_chat_render(template, two_turns, strlen(two_turns), &config, &text), AQ_OK);
    assert_string_equal(text.text, expected);
    aq_chat_text_free(&text);
    aq_chat_close(template);
}

static void test_folder_template_is_found(void **state)
{
    (void)state;
    struct aq_chat_template *template;
    capture_begin();
    assert_int_equal(aq_chat_open(folder, NULL, &template), AQ_NOTFOUND);
    expect_said("put the template to train with into the folder as chat_template.jinja");
    data_write_text(folder, "tokenizer_config.json",
                    "{\"bos_token\": {\"content\": \"<b>\"}, \"chat_template\": \"{{ bos_token }}1{{ "
                    "eos_token }}\"}");
    data_write_text(folder, "special_tokens_map.json", "{\"eos_token\": \"<e>\", \"bos_token\": \"no\"}");
    expect_folder(NULL, "<b>1<e>");
    expect_folder("default", "<b>1<e>");
    capture_begin();
    assert_int_equal(aq_chat_open(folder, "tool_use", &template), AQ_NOTFOUND);
    expect_said("has no chat template \"tool_use\"");
    data_write_text(folder, "tokenizer_config.json",
                    "{\"chat_template\": [{\"name\": \"default\", \"template\": \"2\"}, {\"name\": "
                    "\"tool_use\", \"template\": \"3{{ 1\"}]}");
    expect_folder(NULL, "2");
    capture_begin();
    assert_int_equal(aq_chat_open(folder, "tool_use", &template), AQ_CORRUPT);
    expect_said("tokenizer_config.json (chat_template \"tool_use\"):1:2: {{ has no }}");
    data_write_text(folder, "chat_template.jinja", "4{{ bos_token }}");
    expect_folder(NULL, "4no");
    data_write_text(folder, "tokenizer_config.json", "{\"chat_template\": 5}");
    expect_folder(NULL, "4no");
    data_write_text(folder, "tokenizer_config.json", "{");
    capture_begin();
    assert_int_equal(aq_chat_open(folder, NULL, &template), AQ_CORRUPT);
    expect_said("tokenizer_config.json:1:1:");
}

/* ---- tokens ---- */

/* expected: tokens with bars between, those of answers in brackets. */
static void expect_tokens(const char *kind, const char *user, const char *assistant, const char *expected)
{
    static const char source[] = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% "
                                 "endif %}{% endfor %}";
    struct aq_chat_template *template = open_text(source);
    const struct aq_chat_config config = aq_chat_config_default();
    struct aq_tokenizer *tokenizer;
    struct aq_chat_tokens tokens;
    char line[256], got[256] = "", *text;
    size_t used = 0, bytes, answers = 0;
    assert_int_equal(aq_tokenizer_open(kind, folder, &tokenizer), AQ_OK);
    snprintf(
        line, sizeof line,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}",
        user, assistant);
    assert_int_equal(aq_chat_tokenize(template, tokenizer, line, strlen(line), &config, &tokens), AQ_OK);
    for (size_t i = 0; i < tokens.count; i++) {
        assert_int_equal(aq_tokenizer_decode(tokenizer, tokens.tokens + i, 1, &text, &bytes), AQ_OK);
        used += (size_t)snprintf(got + used, sizeof got - used, tokens.answer[i] ? "[%s]" : "%s|", text);
        answers += tokens.answer[i];
        aq_free(text);
    }
    assert_string_equal(got, expected);
    assert_int_equal(tokens.answer_tokens, answers);
    aq_chat_tokens_free(&tokens);
    aq_tokenizer_close(tokenizer);
    aq_chat_close(template);
}

static void test_tokens_of_answers_are_marked(void **state)
{
    (void)state;
    static const char *const merges[] = {"h e", "l l",          "he ll", "hell o",        "\xC4\xA0 w",
                                         "o r", "\xC4\xA0w or", "l d",   "\xC4\xA0wor ld"};
    enum { MERGES = sizeof merges / sizeof *merges };
    data_write_vocabulary(folder, merges, MERGES);
    expect_tokens("gpt2", "hello", " world", "hello|[ world][<|endoftext|>]");
    expect_tokens("gpt2", "hel", "lo", "[hello][<|endoftext|>]"); /* one token has bytes of both */
    expect_tokens("gpt2", "", "a", "[a][<|endoftext|>]");
    /* The tokens' bytes are not the text. */
    data_write_tokenizer_json(folder,
                              "\"normalizer\": {\"type\": \"Lowercase\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                              "\"add_prefix_space\": false}",
                              "", merges, MERGES);
    expect_tokens("huggingface", "HELLO", " World", "hello|[ world][<][|][e][n][d][o][f][t][e][x][t][|][>]");
    expect_tokens("huggingface", "HEL", "LO w", "[hello][ w][<][|][e][n][d][o][f][t][e][x][t][|][>]");
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    const uint64_t before = aq_memory_used();
    struct aq_chat_config config = aq_chat_config_default();
    size_t bytes;
    const char *source = template_text("macros", &bytes);
    capture_begin();
    for (uint64_t n = 1;; n++) {
        struct aq_chat_template *template = NULL;
        struct aq_chat_text text = {0};
        aq_memory_fail_at(n);
        enum aq_status status = aq_chat_parse(source, bytes, "t", special, &template);
        if (status == AQ_OK) status = aq_chat_render(template, two_turns, strlen(two_turns), &config, &text);
        aq_memory_fail_at(0);
        aq_chat_text_free(&text);
        aq_chat_close(template);
        assert_int_equal(aq_memory_used(), before);
        if (status == AQ_OK) break;
        assert_int_equal(status, AQ_NOMEM);
        assert_true(n < 1000);
    }
    capture_end();
}

static int make_folder(void **state)
{
    (void)state;
    data_folder_open(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    data_folder_close(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render_pieces_of_jinja),
        cmocka_unit_test(test_prompt_asked_for_is_written),
        cmocka_unit_test(test_answers_of_each_style_end_with_their_end_token),
        cmocka_unit_test(test_answers_thinking_left_out_of_earlier_turns),
        cmocka_unit_test(test_answers_that_cannot_be_told_are_refused),
        cmocka_unit_test(test_mistakes_name_line_and_column),
        cmocka_unit_test(test_limits_end_what_does_not_end),
        cmocka_unit_test_setup_teardown(test_folder_template_is_found, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_tokens_of_answers_are_marked, make_folder, remove_folder),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
