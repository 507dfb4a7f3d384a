/*
 * test_tokenizer.c -- the tokenizers on a small vocabulary that is written here: cutting, merging, bad files, no
 * memory.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/publish.h"
#include "bpe.h"

static char folder[DATA_PATH_BYTES];

static const char *const merges[] = {"h e",          "l l", "he ll",          "hell o", "\xC4\xA0 w", "o r",
                                     "\xC4\xA0w or", "l d", "\xC4\xA0wor ld", "a a",    "aa a"};
enum { MERGES = sizeof merges / sizeof merges[0], HELLO = 256 + 3, WORLD = 256 + 8, AA = 256 + 9, AAA = 256 + 10 };

static struct aq_tokenizer *open_small(void)
{
    struct aq_tokenizer *tokenizer;
    data_write_vocabulary(folder, merges, MERGES);
    assert_int_equal(aq_tokenizer_open("gpt2", folder, &tokenizer), AQ_OK);
    return tokenizer;
}

static void expect_tokens(const struct aq_tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *expected,
                          size_t count)
{
    int32_t *tokens;
    size_t got;
    assert_int_equal(aq_tokenizer_encode(tokenizer, text, bytes, &tokens, &got), AQ_OK);
    assert_int_equal(got, count);
    assert_memory_equal(tokens, expected, count * sizeof(int32_t));
    aq_free(tokens);
}

static void expect_round_trip(const struct aq_tokenizer *tokenizer, const void *text, size_t bytes)
{
    int32_t *tokens;
    size_t count, back_bytes;
    char *back;
    assert_int_equal(aq_tokenizer_encode(tokenizer, text, bytes, &tokens, &count), AQ_OK);
    assert_int_equal(aq_tokenizer_decode(tokenizer, tokens, count, &back, &back_bytes), AQ_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    assert_int_equal(back[bytes], 0);
    aq_free(back);
    aq_free(tokens);
}

static void test_gpt2_small_vocabulary_merges(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_small();
    assert_int_equal(aq_tokenizer_vocabulary(t), 256 + MERGES + 1);
    assert_int_equal(aq_tokenizer_end_of_text(t), 256 + MERGES);
    expect_tokens(t, "hello world", 11, (const int32_t[]){HELLO, WORLD}, 2);
    expect_tokens(t, "hello world hello world", 23, (const int32_t[]){HELLO, WORLD, data_byte_token(' '), HELLO, WORLD},
                  5);
    expect_tokens(t, "aaaaa", 5, (const int32_t[]){AA, AAA}, 2); /* leftmost first: aa aa a, then aa aaa */
    expect_tokens(t, "", 0, NULL, 0);
    expect_tokens(t, "\0", 1, (const int32_t[]){data_byte_token(0)}, 1);
    expect_tokens(t, "\xFF\xFE", 2, (const int32_t[]){data_byte_token(0xFF), data_byte_token(0xFE)}, 2);
    /* The end of text is one token wherever it stands whole; what is about it is cut into words apart. */
    const int32_t end = 256 + MERGES, less = data_byte_token('<');
    expect_tokens(t, "<|endoftext|>", 13, &end, 1);
    expect_tokens(t, "hello<|endoftext|><|endoftext|> world<", 38, (const int32_t[]){HELLO, end, end, WORLD, less}, 5);
    int32_t *tokens;
    size_t count;
    assert_int_equal(aq_tokenizer_encode(t, "<|endoftext|", 12, &tokens, &count), AQ_OK);
    assert_int_equal(count, 12);
    aq_free(tokens);
    aq_tokenizer_close(t);
}

static void test_decode_token_out_of_range_inval(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_small();
    char *text;
    size_t bytes;
    assert_int_equal(aq_tokenizer_decode(t, (const int32_t[]){-1}, 1, &text, &bytes), AQ_INVAL);
    assert_int_equal(aq_tokenizer_decode(t, (const int32_t[]){256 + MERGES + 1}, 1, &text, &bytes), AQ_INVAL);
    assert_int_equal(aq_tokenizer_decode(t, (const int32_t[]){256 + MERGES}, 1, &text, &bytes), AQ_OK);
    assert_string_equal(text, "<|endoftext|>");
    aq_free(text);
    aq_tokenizer_close(t);
}

/* The engine with GPT-2's one step. */
static struct aq_bpe words_engine(void)
{
    struct aq_bpe bpe = {.step_count = 1};
    assert_int_equal(aq_bpe_pattern_open("test", aq_bpe_pattern_gpt2, strlen(aq_bpe_pattern_gpt2), false,
                                         &bpe.steps[0].pattern),
                     AQ_OK);
    return bpe;
}

/* What the words are given to here. */
struct aq_bpe_call {
    char got[256];
    size_t used;
    const uint8_t *text; /* of by_hand: what comes next */
    size_t left;
};

static enum aq_status collect(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    if (call->used) call->got[call->used++] = '|';
    memcpy(call->got + call->used, word, bytes);
    call->used += bytes;
    return AQ_OK;
}

/* Words are given with '|' between; '|' itself does not occur in them. */
static void expect_words(const char *text, size_t bytes, const char *expected)
{
    struct aq_bpe bpe = words_engine();
    struct aq_bpe_matcher *matcher;
    struct aq_bpe_call call = {.used = 0};
    const uint8_t *at = (const uint8_t *)text;
    assert_int_equal(aq_bpe_matcher_open(&matcher), AQ_OK);
    for (size_t start = 0, end; start < bytes; start = end) {
        const bool valid = aq_bpe_character(at + start, bytes - start) > 0;
        end = aq_bpe_run_end(at, bytes, start, valid);
        if (valid)
            assert_int_equal(aq_bpe_split(&bpe, 0, matcher, at + start, end - start, collect, &call), AQ_OK);
        else
            collect(&call, at + start, end - start);
    }
    assert_string_equal(call.got, expected);
    aq_bpe_matcher_close(matcher);
    aq_bpe_close(&bpe);
}

static void test_words_published_pattern(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"Hello world, it's 2024!", "Hello| world|,| it|'s| 2024|!"},
        {"we'll they're I'd DON'T", "we|'ll| they|'re| I|'d| DON|'|T"},
        {"a  b   c", "a| | b|  | c"},
        {"a \n\n b", "a| \n\n| b"},
        {"end   ", "end|   "},
        {"\t\tx y", "\t|\t|x| y"},
        {"na\xC3\xAFve caf\xC3\xA9 \xE2\x80\x94 ok?", "na\xC3\xAFve| caf\xC3\xA9| \xE2\x80\x94| ok|?"},
        {"\xE5\xAD\xA6\xC2\xBD\xD9\xA3", "\xE5\xAD\xA6|\xC2\xBD\xD9\xA3"}, /* a letter, then two numbers */
        {"a\xC2\xA0\xC2\xA0"
         "b",
         "a|\xC2\xA0|\xC2\xA0|b"}, /* no-break spaces are spaces */
        {"a\xC2\x85"
         "b\xE3\x80\x80"
         "c",
         "a|\xC2\x85|b|\xE3\x80\x80|c"}, /* next line; ideographic space */
        {"a\xE1\xA0\x8E\xE1\xA0\x8E"
         "b",
         "a|\xE1\xA0\x8E\xE1\xA0\x8E|b"},                           /* U+180E is none any more */
        {"a \x1C\x1D!", "a| \x1C\x1D!"},                            /* nor are the separators of ASCII */
        {"a\xFF\xFE b\x80", "a|\xFF\xFE| b|\x80"},                  /* invalid bytes are words */
        {"a \xFF", "a| |\xFF"},                                     /* and end the text before them */
        {"x\xED\xA0\x80y", "x|\xED\xA0\x80|y"},                     /* a surrogate */
        {"x\xC0\x80y\xE0\x80\x80z", "x|\xC0\x80|y|\xE0\x80\x80|z"}, /* overlong */
        {"x\xF4\x90\x80\x80y\xF0\x8F\x80\x80", "x|\xF4\x90\x80\x80|y|\xF0\x8F\x80\x80"},
        {"x\xE2\x80", "x|\xE2\x80"}, /* cut short */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_words(cases[i][0], strlen(cases[i][0]), cases[i][1]);
}

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}
static int kind(char c)
{
    return letter(c) ? 0 : digit(c) ? 1 : space(c) ? 2 : 3;
}

/* The published pattern for ASCII, written by hand: bytes of the first word. */
static size_t ascii_word(const char *text, size_t bytes)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(endings[i]);
        if (length <= bytes && memcmp(text, endings[i], length) == 0) return length;
    }
    size_t skip = text[0] == ' ' && bytes > 1 && !space(text[1]), length = skip;
    while (length < bytes && kind(text[length]) == kind(text[skip]))
        length++;
    if (kind(text[skip]) != 2) return length;
    return length == bytes || length == 1 ? length : length - 1;
}

static enum aq_status by_hand(struct aq_bpe_call *call, const uint8_t *word, size_t bytes)
{
    assert_ptr_equal(word, call->text);
    assert_int_equal(bytes, ascii_word((const char *)word, call->left));
    call->text += bytes;
    call->left -= bytes;
    return AQ_OK;
}

static void test_words_random_ascii_as_by_hand(void **state)
{
    (void)state;
    static const char alphabet[] = "ab9 \n\t'.sltrevmd  ";
    struct aq_rng_key key = aq_rng_key(11, AQ_RNG_TEST, 0, 0);
    struct aq_bpe bpe = words_engine();
    struct aq_bpe_matcher *matcher;
    uint8_t text[4096];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)alphabet[aq_rng_below(&key, i, sizeof alphabet - 1)];
    struct aq_bpe_call call = {.text = text, .left = sizeof text};
    assert_int_equal(aq_bpe_matcher_open(&matcher), AQ_OK);
    assert_int_equal(aq_bpe_split(&bpe, 0, matcher, text, sizeof text, by_hand, &call), AQ_OK);
    assert_int_equal(call.left, 0);
    aq_bpe_matcher_close(matcher);
    aq_bpe_close(&bpe);
}

/* The published merging, slow and plain: the pair of lowest rank, everywhere from the left, until no pair merges. */
static size_t merge_plainly(const struct aq_bpe_vocabulary *v, int32_t *tokens, size_t count)
{
    for (;;) {
        const struct aq_bpe_merge *best = NULL;
        for (size_t i = 0; i + 1 < count; i++) {
            const struct aq_bpe_merge *merge = aq_bpe_merge_find(v, (uint32_t)tokens[i], (uint32_t)tokens[i + 1]);
            if (merge && (!best || merge->rank < best->rank)) best = merge;
        }
        if (!best) return count;
        size_t kept = 0;
        for (size_t i = 0; i < count; kept++) {
            uint64_t pair = i + 1 < count ? (uint64_t)tokens[i] << 32 | (uint64_t)tokens[i + 1] : AQ_BPE_EMPTY;
            tokens[kept] = pair == best->pair ? (int32_t)best->token : tokens[i];
            i += pair == best->pair ? 2 : 1;
        }
        count = kept;
    }
}

static void test_merge_random_words_as_plainly(void **state)
{
    (void)state;
    static const char *const abc[] = {"a b",   "b a", "a a",   "ab a",      "c c",  "aa b",  "ab ab", "cc c",
                                      "ba ba", "b c", "aba c", "abab abab", "bc a", "cc cc", "aa aa", "aab a"};
    struct aq_tokenizer *t;
    struct aq_bpe_scratch scratch = {0};
    struct aq_rng_key key = aq_rng_key(12, AQ_RNG_TEST, 0, 0);
    uint64_t number = 0;
    data_write_vocabulary(folder, abc, sizeof abc / sizeof abc[0]);
    assert_int_equal(aq_tokenizer_open("gpt2", folder, &t), AQ_OK);
    const struct aq_bpe_vocabulary *v = &((const struct aq_bpe *)t->state)->vocabulary;
    for (int round = 0; round < 3000; round++) {
        uint8_t word[600];
        int32_t expected[600];
        size_t bytes = 1 + aq_rng_below(&key, number++, round % 100 == 0 ? 600 : 40);
        for (size_t i = 0; i < bytes; i++)
            word[i] = (uint8_t)('a' + aq_rng_below(&key, number++, 3));
        for (size_t i = 0; i < bytes; i++)
            expected[i] = data_byte_token(word[i]);
        size_t count = merge_plainly(v, expected, bytes);
        struct aq_token_list list = {0};
        assert_int_equal(aq_bpe_merge_word(v, &scratch, word, bytes, &list), AQ_OK);
        assert_int_equal(list.count, count);
        assert_memory_equal(list.at, expected, count * sizeof(int32_t));
        aq_free(list.at);
    }
    aq_bpe_scratch_free(&scratch);
    aq_tokenizer_close(t);
}

static void test_gpt2_endless_word_round_trips(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_small();
    size_t bytes = 3 * (size_t)AQ_BPE_WORD_BYTES_MAX + 17;
    void *memory;
    assert_int_equal(aq_alloc(bytes, &memory), AQ_OK);
    memset(memory, 'a', bytes);
    expect_round_trip(t, memory, bytes);
    memset(memory, 0xFF, bytes);
    expect_round_trip(t, memory, bytes);
    memset(memory, ' ', bytes);
    expect_round_trip(t, memory, bytes);
    aq_free(memory);
    aq_tokenizer_close(t);
}

/* Opening must fail with `wanted` and name `part` in the error's line. */
static void expect_open_fails(enum aq_status wanted, const char *part)
{
    struct aq_tokenizer *t = NULL;
    uint64_t used = aq_memory_used();
    aq_error_clear();
    assert_int_equal(aq_tokenizer_open("gpt2", folder, &t), wanted);
    if (!strstr(aq_error_text(), part)) fail_msg("\"%s\" does not say \"%s\"", aq_error_text(), part);
    assert_int_equal(aq_memory_used(), used);
}

static void test_open_unknown_kind_or_no_folder_fails(void **state)
{
    (void)state;
    struct aq_tokenizer *t = NULL;
    assert_int_equal(aq_tokenizer_open("word", folder, &t), AQ_INVAL);
    assert_int_equal(aq_tokenizer_open(NULL, folder, &t), AQ_INVAL);
    assert_int_equal(aq_tokenizer_open("gpt2", NULL, &t), AQ_INVAL);
    assert_int_equal(aq_tokenizer_open("gpt2", "/nonexistent/folder", &t), AQ_NOTFOUND);
    assert_null(t);
    aq_tokenizer_close(NULL);
}

/* Replaces the first `from` in the good vocabulary by `to`. */
static void break_vocabulary(const char *name, const char *from, const char *to)
{
    char path[DATA_PATH_BYTES];
    static char text[1 << 16];
    data_write_vocabulary(folder, merges, MERGES);
    FILE *file = fopen(data_path(folder, name, path), "rb");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 256, file);
    fclose(file);
    text[bytes] = 0;
    char *place = strstr(text, from);
    assert_non_null(place);
    memmove(place + strlen(to), place + strlen(from), strlen(place + strlen(from)) + 1);
    memcpy(place, to, strlen(to));
    data_write_text(folder, name, text);
}

static void test_open_bad_vocabulary_names_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *name, *from, *to, *part;
        enum aq_status status;
    } cases[] = {
        {"vocab.json", "\"a\": 64", "\"a\": ", "vocab.json:99:", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"a\": 9000000", "token \"a\" has no id", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"a\": -1", "token \"a\" has no id", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"a\": 6.5", "token \"a\" has no id", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"a\": 65", "the same id 65", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"b\": 64", "duplicate", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"ab\": 64", "no token for the byte 97", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"\": 64", "0 bytes", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"\xE2\x82\xAC\": 64", "no token for the byte 97", AQ_CORRUPT},
        {"vocab.json", "\"a\": 64", "\"\\u0000\": 64", "vocab.json:99:", AQ_CORRUPT},
        {"merges.txt", "l l\n", "ll\n", "merges.txt:3:", AQ_CORRUPT},
        {"merges.txt", "l l\n", " ll\n", "merges.txt:3:", AQ_CORRUPT},
        {"merges.txt", "l l\n", "l \n", "merges.txt:3:", AQ_CORRUPT},
        {"merges.txt", "l l\n", "l l l\n", "merges.txt:3:", AQ_CORRUPT},
        {"merges.txt", "l l\n", "l x\n", "merges.txt:3:", AQ_CORRUPT},
        {"merges.txt", "l l\n", "\xFF l\n", "merges.txt:3:", AQ_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        break_vocabulary(cases[i].name, cases[i].from, cases[i].to);
        expect_open_fails(cases[i].status, cases[i].part);
    }
    char path[DATA_PATH_BYTES];
    data_write_text(folder, "vocab.json", "[]");
    expect_open_fails(AQ_CORRUPT, "vocab.json");
    data_write_text(folder, "vocab.json", "");
    expect_open_fails(AQ_CORRUPT, "vocab.json");
    data_write_vocabulary(folder, merges, MERGES);
    remove(data_path(folder, "merges.txt", path));
    expect_open_fails(AQ_NOTFOUND, "neither merges.txt nor vocab.bpe");
    remove(data_path(folder, "vocab.json", path));
    expect_open_fails(AQ_NOTFOUND, "neither vocab.json nor encoder.json");
}

static void test_open_windows_lines_and_other_names(void **state)
{
    (void)state;
    char path[DATA_PATH_BYTES], other[DATA_PATH_BYTES];
    struct aq_tokenizer *t;
    break_vocabulary("merges.txt", "l l\n", "l l\r\n\n");
    assert_int_equal(rename(data_path(folder, "vocab.json", path), data_path(folder, "encoder.json", other)), 0);
    assert_int_equal(rename(data_path(folder, "merges.txt", path), data_path(folder, "vocab.bpe", other)), 0);
    assert_int_equal(aq_tokenizer_open("gpt2", folder, &t), AQ_OK);
    expect_tokens(t, "hello world", 11, (const int32_t[]){HELLO, WORLD}, 2);
    aq_tokenizer_close(t);
    remove(data_path(folder, "encoder.json", path));
    remove(data_path(folder, "vocab.bpe", path));
}

static enum aq_status published(void *context, const char *name, const char *bytes, size_t count)
{
    static const char *const order[] = {"vocab.json", "merges.txt", "tokenizer_config.json"};
    uint32_t *seen = context;
    char path[DATA_PATH_BYTES];
    assert_true(*seen < 3);
    assert_string_equal(name, order[*seen]);
    if (*seen == 2) {
        assert_non_null(strstr(bytes, "\"tokenizer_class\": \"GPT2Tokenizer\""));
        assert_non_null(strstr(bytes, "\"model_max_length\": 77"));
    } else {
        FILE *file = fopen(data_path(folder, name, path), "rb");
        for (size_t i = 0; i < count; i++)
            assert_int_equal(fgetc(file), (unsigned char)bytes[i]);
        assert_int_equal(fgetc(file), EOF);
        fclose(file);
    }
    return ++*seen == 3 ? AQ_NOSPC : AQ_OK;
}

static void test_published_files_are_those_that_were_read(void **state)
{
    (void)state;
    uint32_t seen = 0;
    data_write_vocabulary(folder, merges, MERGES);
    assert_int_equal(aq_publish_tokenizer("gpt2", folder, 77, published, &seen), AQ_NOSPC); /* as the last one said */
    assert_int_equal(seen, 3);
    assert_int_equal(aq_publish_tokenizer("bytes", NULL, 77, published, &seen), AQ_OK);
    assert_int_equal(aq_publish_tokenizer("gpt2", "/nonexistent", 77, published, &seen), AQ_NOTFOUND);
}

/* A folder may have several tokenizers' files: the one that says most is its own. */
static void test_folder_has_one_kind(void **state)
{
    (void)state;
    static const char *const steps[][2] = {{"tokenizer.model", "sentencepiece"},
                                           {"merges.txt", "gpt2"},
                                           {"tokenizer.json", "huggingface"},
                                           {"spm.model", "sentencepiece"}};
    char own[DATA_PATH_BYTES];
    data_folder_open(own);
    assert_null(aq_tokenizer_of_folder(own));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        data_write_text(own, steps[i][0], "");
        assert_string_equal(aq_tokenizer_of_folder(own), steps[i][1]);
    }
    data_folder_close(own);
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    data_write_vocabulary(folder, merges, MERGES);
    uint64_t used = aq_memory_used();
    enum aq_status status = AQ_NOMEM;
    int failures = 0;
    for (uint64_t n = 1; status != AQ_OK; n++) {
        struct aq_tokenizer *t = NULL;
        int32_t *tokens = NULL;
        size_t count, bytes;
        char *text = NULL;
        aq_memory_fail_at(n);
        status = aq_tokenizer_open("gpt2", folder, &t);
        if (status == AQ_OK) status = aq_tokenizer_encode(t, "hello world", 11, &tokens, &count);
        if (status == AQ_OK) status = aq_tokenizer_decode(t, tokens, count, &text, &bytes);
        aq_memory_fail_at(0);
        aq_free(text);
        aq_free(tokens);
        aq_tokenizer_close(t);
        assert_int_equal(aq_memory_used(), used);
        if (status != AQ_OK) assert_int_equal(status, AQ_NOMEM);
        failures += status != AQ_OK;
        assert_true(n < 1000);
    }
    assert_true(failures > 10);
}

/* ---- what a call leaves for the next one ---- */

enum { TEXTS = 4, LONG_BYTES = 40000, CALLS = 200, THREADS = 4 };

struct texts {
    const struct aq_tokenizer *tokenizer;
    char *at[TEXTS];
    size_t bytes[TEXTS], counts[TEXTS];
    int32_t *tokens[TEXTS]; /* of a tokenizer that has read nothing else */
    uint32_t first;
};

static void *encode_all(void *arg)
{
    const struct texts *texts = arg;
    for (uint32_t i = 0; i < CALLS; i++) {
        const uint32_t t = (texts->first + i) % TEXTS;
        expect_tokens(texts->tokenizer, texts->at[t], texts->bytes[t], texts->tokens[t], texts->counts[t]);
    }
    return NULL;
}

/* A long text between short ones: the next call finds a larger cache, and words that it has not read. */
static void test_calls_in_any_order_and_at_once_change_nothing(void **state)
{
    (void)state;
    struct texts texts = {0}, own[THREADS];
    const struct aq_rng_key key = aq_rng_key(13, AQ_RNG_TEST, 0, 0);
    uint64_t number = 0;
    for (uint32_t t = 0; t < TEXTS; t++) {
        texts.bytes[t] = t == 1 ? LONG_BYTES : 5 + 100 * t;
        assert_int_equal(aq_alloc_at(texts.bytes[t] + 1, &texts.at[t]), AQ_OK);
        for (size_t i = 0; i < texts.bytes[t]; i++)
            texts.at[t][i] = "helowrd 1'!"[aq_rng_below(&key, number++, 11)];
        struct aq_tokenizer *fresh = open_small();
        assert_int_equal(aq_tokenizer_encode(fresh, texts.at[t], texts.bytes[t], &texts.tokens[t], &texts.counts[t]),
                         AQ_OK);
        aq_tokenizer_close(fresh);
    }
    struct aq_tokenizer *tokenizer = open_small();
    texts.tokenizer = tokenizer;
    (void)encode_all(&texts);
    const uint64_t used = aq_memory_used();
    (void)encode_all(&texts);
    assert_int_equal(aq_memory_used(), used);
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        own[i] = texts;
        own[i].first = i;
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &own[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    aq_tokenizer_close(tokenizer);
    for (uint32_t t = 0; t < TEXTS; t++) {
        aq_free(texts.at[t]);
        aq_free(texts.tokens[t]);
    }
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

/* The first match in this text ends so many bytes from its begin. */
static void expect_match(const char *regex, const char *text, size_t bytes)
{
    struct aq_bpe_pattern *pattern;
    struct aq_bpe_matcher *matcher;
    size_t start, end;
    assert_int_equal(aq_bpe_pattern_open("test", regex, strlen(regex), false, &pattern), AQ_OK);
    assert_int_equal(aq_bpe_matcher_open(&matcher), AQ_OK);
    assert_int_equal(aq_bpe_match(pattern, matcher, (const uint8_t *)text, strlen(text), 0, &start, &end), AQ_OK);
    assert_int_equal(start, 0);
    assert_int_equal(end, bytes);
    aq_bpe_matcher_close(matcher);
    aq_bpe_pattern_close(pattern);
}

/* Oniguruma, which the files are written for, has superscripts and fractions in \w, but not in a class with \w. */
static void test_superscripts_are_of_words_outside_of_classes(void **state)
{
    (void)state;
    expect_match("\\w+", "n\u00b2m", 4);
    expect_match("\\w+", "\u00bd", 2);
    expect_match("[\\w]+", "n\u00b2m", 1);
    expect_match("\\W", "+n", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_superscripts_are_of_words_outside_of_classes),
        cmocka_unit_test(test_gpt2_small_vocabulary_merges),
        cmocka_unit_test(test_decode_token_out_of_range_inval),
        cmocka_unit_test(test_words_published_pattern),
        cmocka_unit_test(test_words_random_ascii_as_by_hand),
        cmocka_unit_test(test_merge_random_words_as_plainly),
        cmocka_unit_test(test_gpt2_endless_word_round_trips),
        cmocka_unit_test(test_open_unknown_kind_or_no_folder_fails),
        cmocka_unit_test(test_open_bad_vocabulary_names_the_place),
        cmocka_unit_test(test_open_windows_lines_and_other_names),
        cmocka_unit_test(test_published_files_are_those_that_were_read),
        cmocka_unit_test(test_folder_has_one_kind),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
        cmocka_unit_test(test_calls_in_any_order_and_at_once_change_nothing),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
