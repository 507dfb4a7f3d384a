/*
 * test_pieces.c -- tokenizer.json of pieces: Unigram, WordPiece and whole words, the normalizers and decoders that come
 * with them; and what is refused, by place, cause and remedy.
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
#include "piece_trie.h"
#include "stages/dataset.h"

static char folder[DATA_PATH_BYTES];

#define SPACE "\xE2\x96\x81" /* U+2581 */

static struct aq_tokenizer *open_file(const char *text)
{
    struct aq_tokenizer *t = NULL;
    data_write_text(folder, "tokenizer.json", text);
    aq_error_clear();
    if (aq_tokenizer_open("huggingface", folder, &t) != AQ_OK) fail_msg("%s: %s", text, aq_error_text());
    return t;
}

/* The tokens of text, as numbers; and the text that they are. */
static void expect_ids(const struct aq_tokenizer *t, const char *text, const char *ids, const char *back)
{
    int32_t *tokens;
    size_t count, bytes, used = 0;
    char got[1024] = "", *said;
    assert_int_equal(aq_tokenizer_encode(t, text, strlen(text), &tokens, &count), AQ_OK);
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(got + used, sizeof got - used, "%s%d", i ? " " : "", (int)tokens[i]);
    assert_string_equal(got, ids);
    assert_int_equal(aq_tokenizer_text(t, tokens, count, &said, &bytes), AQ_OK);
    assert_string_equal(said, back);
    assert_int_equal(bytes, strlen(back));
    aq_free(said);
    aq_free(tokens);
}

static void expect_file(const char *file, const char *text, const char *ids, const char *back)
{
    struct aq_tokenizer *t = open_file(file);
    expect_ids(t, text, ids, back);
    aq_tokenizer_close(t);
}

/* ---- Unigram ---- */

#define UNIGRAM(more, pieces) "\"model\": {\"type\": \"Unigram\", " more "\"vocab\": [" pieces "]}"
#define METASPACE                                                                                                      \
    "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"always\"}, "                                   \
    "\"decoder\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"always\"}, "

static void test_unigram_takes_the_largest_sum(void **state)
{
    (void)state;
#define PIECES "[\"?\", 0], [\"a\", -1], [\"b\", -1], [\"ab\", -1.5], [\"bc\", -1.25], [\"c\", -3], [\"abc\", -9]"
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", PIECES) "}", "abc", "1 4", "abc"); /* -2.25, and -4.5 of ab c */
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", PIECES) "}", "abab", "3 3", "abab");
    /* Characters that are no pieces: one unknown token in a row, which is a piece where their text is one. */
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", PIECES) "}", "axyb\xC3\xA9", "1 0 2 0", "a?b?");
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", "[\"?\", 0], [\"xy\", -50]") "}", "xy", "1", "xy");
    /* Of two ways with one sum the first one is taken: the longer last piece. */
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", "[\"?\", 0], [\"a\", -1], [\"aa\", -2]") "}", "aaa", "1 2", "aaa");
    /* A file of the first versions has no type: its vocabulary is a list. */
    expect_file("{\"model\": {\"unk_id\": 0, \"vocab\": [[\"?\", 0], [\"a\", -1]]}}", "aa", "1 1", "aa");
    /* An unknown character has the least score and 10 less: 5 - 30 is less than -20. */
    expect_file("{" UNIGRAM("\"unk_id\": 0, ", "[\"?\", 0], [\"x\", 5], [\"xy\", -20]") "}", "xy", "2", "xy");
#undef PIECES
}

static void test_unigram_falls_back_to_bytes(void **state)
{
    (void)state;
#define PIECES "[\"?\", 0], [\"a\", -1], [\"<0xC3>\", -1], [\"<0xA9>\", -1]"
    static const char decoder[] = "{\"decoder\": {\"type\": \"ByteFallback\"}, ";
    char file[1024];
    snprintf(file, sizeof file, "%s%s}", decoder, UNIGRAM("\"unk_id\": 0, \"byte_fallback\": true, ", PIECES));
    expect_file(file, "a\xC3\xA9", "1 2 3", "a\xC3\xA9");
    expect_file(file, "\xC3\xA9\xC3\xA8", "0", "?"); /* one byte has no token, and the row is one text */
    snprintf(file, sizeof file, "%s%s}", decoder, UNIGRAM("\"unk_id\": 0, ", PIECES));
    expect_file(file, "a\xC3\xA9", "1 0", "a?");
#undef PIECES
}

static void test_unigram_without_unknown_token_refuses_the_text(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_file("{" UNIGRAM("\"unk_id\": null, ", "[\"a\", -1]") "}");
    int32_t *tokens;
    size_t count;
    expect_ids(t, "aa", "0 0", "aa");
    aq_error_clear();
    assert_int_equal(aq_tokenizer_encode(t, "aab", 3, &tokens, &count), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "not a piece of model.vocab, at byte 2"));
    assert_non_null(strstr(aq_error_text(), "set model.unk_id"));
    aq_tokenizer_close(t);
}

static void test_metaspace_goes_from_the_first_token_only(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_file("{" METASPACE UNIGRAM(
        "\"unk_id\": 0, ", "[\"?\", 0], [\"" SPACE "the\", -2], [\"" SPACE "\", -3], [\"cat\", -4]") "}");
    char *text;
    size_t bytes;
    expect_ids(t, "the cat the", "1 2 3 1", "the cat the");
    /* Tokens that continue a text keep it. */
    assert_int_equal(aq_tokenizer_decode(t, (const int32_t[]){1, 2, 3}, 3, &text, &bytes), AQ_OK);
    assert_string_equal(text, " the cat");
    aq_free(text);
    aq_tokenizer_close(t);
}

/* A long piece at each byte of a text of its own letter: refused, not slow without end. */
static void test_unigram_of_long_pieces_stays_within_its_budget(void **state)
{
    (void)state;
    enum { LONG = 60000, TEXT = 100000 };
    static char file[LONG + 256], text[TEXT];
    struct aq_tokenizer *t;
    int32_t *tokens;
    size_t count, used = (size_t)snprintf(file, sizeof file,
                                          "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, "
                                          "\"vocab\": [[\"?\", 0], [\"a\", -1], [\"");
    memset(file + used, 'a', LONG);
    snprintf(file + used + LONG, sizeof file - used - LONG, "\", -2]]}}");
    memset(text, 'a', sizeof text);
    t = open_file(file);
    aq_error_clear();
    assert_int_equal(aq_tokenizer_encode(t, text, sizeof text, &tokens, &count), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "Unigram takes too much time"));
    assert_non_null(strstr(aq_error_text(), "Remove the longest pieces"));
    aq_tokenizer_close(t);
}

/* ---- Precompiled ---- */

static char charsmap[2048]; /* in base64 */

static void put_base64(const uint8_t *bytes, size_t count, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;
    for (size_t i = 0; i < count; i += 3) {
        uint32_t three = 0;
        for (size_t k = 0; k < 3; k++)
            three = three << 8 | (i + k < count ? bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            out[used++] = i + k > count ? '=' : digits[three >> (18 - 6 * k) & 63];
    }
    out[used] = 0;
}

/*
 * A table of one block that makes "x" of U+00E9, nothing of U+0007, and "yz" of "q". A unit has its label, the offset
 * to its children and whether a leaf is there; `leaf` has its text's place and the sign bit.
 */
static void make_charsmap(void)
{
    enum { UNITS = 256, HAS_LEAF = 1 << 8 };
    static const char texts[] = "x\0\0yz"; /* at 0, 2 and 3 */
    static const struct {
        uint32_t at, unit, base, leaf;
    } nodes[] = {{0x07, 0x07 | HAS_LEAF, 0x10, 2},
                 {'q', 'q' | HAS_LEAF, 0x11, 3},
                 {0xC3, 0xC3, 0x20, 0},
                 {0x20 ^ 0xA9, 0xA9 | HAS_LEAF, 0x12, 0}};
    uint32_t words[1 + UNITS] = {4 * UNITS};
    uint8_t table[sizeof words + sizeof texts];
    for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
        words[1 + nodes[i].at] = nodes[i].unit | (nodes[i].at ^ nodes[i].base) << 10;
        if (nodes[i].unit & HAS_LEAF) words[1 + nodes[i].base] = UINT32_C(1) << 31 | nodes[i].leaf;
    }
    memcpy(table, words, sizeof words);
    memcpy(table + sizeof words, texts, sizeof texts);
    put_base64(table, sizeof table, charsmap);
}

static void test_precompiled_by_clusters(void **state)
{
    (void)state;
    static char file[1 << 15];
    snprintf(file, sizeof file, "{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"%s\"}, %s}",
             charsmap,
             UNIGRAM("\"unk_id\": 0, ",
                     "[\"?\", 0], [\"x\", -1], [\"y\", -1], [\"z\", -1], [\"a\", -1], [\"\xCC\x81\", -1]"));
    struct aq_tokenizer *t = open_file(file);
    expect_ids(t, "aqa", "4 2 3 4", "ayza");
    expect_ids(t, "a\007a", "4 4", "aa");
    expect_ids(t, "\xC3\xA9", "1", "x");
    expect_ids(t, "\xC3\xA9\xCC\x81z", "1 3", "xz"); /* the cluster becomes what its beginning is */
    expect_ids(t, "a\xCC\x81", "4 5", "a\xCC\x81");
    /* A cluster of six bytes goes character by character. */
    expect_ids(t, "\xC3\xA9\xCC\x81\xCC\x81", "1 5 5", "x\xCC\x81\xCC\x81");
    aq_tokenizer_close(t);
}

/* ---- BERT ---- */

#define BERT_NORMALIZER(more) "\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, " more "}, "
#define BERT_REST                                                                                                      \
    "\"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", " \
    "\"cleanup\": true}, \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", "                              \
    "\"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 6, \"vocab\": {\"[UNK]\": 0, \"un\": 1, "    \
    "\"##aff\": 2, \"##able\": 3, \"##a\": 4, \"e\": 5, \".\": 6, \"\xE4\xB8\xAD\": 7, \"E\": 8, \"\xC3\xA9\": 9, "    \
    "\"'\": 10, \"s\": 11}}"

static void test_bert(void **state)
{
    (void)state;
    struct aq_tokenizer *t = open_file("{" BERT_NORMALIZER(
        "\"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true") BERT_REST "}");
    expect_ids(t, "unaff e", "1 2 5", "unaff e");
    expect_ids(t, "UNA.", "1 4 6", "una.");             /* cleanup takes the space */
    expect_ids(t, "unab", "0", "[UNK]");                /* not all of it is pieces */
    expect_ids(t, "unaffable", "0", "[UNK]");           /* nine characters */
    expect_ids(t, "\xC3\x89\xC2\xAD\te", "5 5", "e e"); /* lower case, no accent; a soft hyphen goes */
    expect_ids(t, "e\xE4\xB8\xAD\xE4\xB8\xAD", "5 7 7", "e \xE4\xB8\xAD \xE4\xB8\xAD");
    expect_ids(t, "e's", "5 10 11", "e ' s"); /* each token is cleaned by itself */
    aq_tokenizer_close(t);
    t = open_file("{" BERT_NORMALIZER("\"handle_chinese_chars\": false, \"strip_accents\": false, \"lowercase\": false")
                      BERT_REST "}");
    expect_ids(t, "E \xC3\xA9 \xE4\xB8\xAD\xE4\xB8\xAD", "8 9 0", "E \xC3\xA9 [UNK]");
    aq_tokenizer_close(t);
}

static void test_whole_words(void **state)
{
    (void)state;
    expect_file("{\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, \"decoder\": {\"type\": \"WordPiece\"}, "
                "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"one\": 1, \"two\": "
                "2}}}",
                "one three two", "1 0 2", "one? two");
}

static void test_cuts(void **state)
{
    (void)state;
#define CUT(step, words)                                                                                               \
    "{\"pre_tokenizer\": {\"type\": " step "}, \"decoder\": {\"type\": \"WordPiece\"}, \"model\": {\"type\": "         \
    "\"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, " words "}}}"
    expect_file(CUT("\"CharDelimiterSplit\", \"delimiter\": \"-\"", "\"a\": 1, \"b c\": 2"), "-a--b c", "1 2", "a b c");
    expect_file(CUT("\"FixedLength\", \"length\": 2", "\"a\\n\": 1, \"\xC3\xA9z\": 2, \"c\": 3"), "a\n\xC3\xA9zc",
                "1 2 3", "a\n \xC3\xA9z c");
    /* Spaces go with what is before them, and those at the beginning are gone; kana count as ideographs. */
    expect_file(CUT("\"UnicodeScripts\"",
                    "\"ab \": 1, \"\xE4\xB8\xAD\xE3\x81\xA9\xE3\x83\xBC \": 2, \"12.\": 3, \"\xD0\xB6\": 4"),
                "  ab \xE4\xB8\xAD\xE3\x81\xA9\xE3\x83\xBC 12.\xD0\xB6", "1 2 3 4",
                "ab  \xE4\xB8\xAD\xE3\x81\xA9\xE3\x83\xBC  12. \xD0\xB6");
#undef CUT
}

/* ---- refusals ---- */

static void test_refusals_name_place_cause_and_remedy(void **state)
{
    (void)state;
    static const struct {
        const char *file, *part, *remedy;
        enum aq_status status;
    } cases[] = {
        {"{" UNIGRAM("", "") "}", "tokenizer.json: model.vocab is not a list of 1 to", "Save the tokenizer again",
         AQ_CORRUPT},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": {\"a\": 0}}}", "model.vocab is not a list",
         "Save the tokenizer", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"a\", -1], [\"b\", NaN]") "}",
         "model.vocab[1]: the score of the piece \"b\" is not a finite", "Set it", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"a\", -1], [\"b\", -Infinity]") "}", "model.vocab[1]: the score", "Set it", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"a\", -1], [\"b\", \"-1\"]") "}", "model.vocab[1]: the score", "Set it", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"a\", -1], [\"b\", -2], [\"a\", -3]") "}",
         "model.vocab[2] and model.vocab[0] are the same piece \"a\"", "Rename", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"a\", -1], \"b\"") "}", "model.vocab[1] is not a piece and its score", "Save", AQ_CORRUPT},
        {"{" UNIGRAM("", "[\"\", -1]") "}", "model.vocab[0] is not a piece and its score", "Save", AQ_CORRUPT},
        {"{" UNIGRAM("\"unk_id\": 1, ", "[\"a\", -1]") "}", "model.unk_id is not one of the 1 pieces", "Set it",
         AQ_CORRUPT},
        {"{" UNIGRAM("\"unk_id\": -1, ", "[\"a\", -1]") "}", "model.unk_id is not one of the 1 pieces", "Set it",
         AQ_CORRUPT},
        {"{" UNIGRAM("\"alpha\": 0.1, ", "[\"a\", -1]") "}", "model.alpha and model.nbest_size", "Remove", AQ_INVAL},
        {"{\"added_tokens\": [{\"id\": 1, \"content\": \"a\"}], " UNIGRAM("", "[\"a\", -1], [\"b\", -1]") "}",
         "added_tokens[0] \"a\" has the id 1", "", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"a\": 0}}}",
         "model.unk_token \"[UNK]\" is not in model.vocab", "Add it", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"a\", \"vocab\": {}}}", "is not a JSON object of 1 to",
         "", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"a\", \"max_input_chars_per_word\": -1, \"vocab\": "
         "{\"a\": 0}}}",
         "model.max_input_chars_per_word is not a number", "Save", AQ_CORRUPT},
        {"{\"model\": {\"type\": \"Markov\"}}", "model.type is Markov", "these are: BPE Unigram WordPiece WordLevel",
         AQ_INVAL},
        {"{\"normalizer\": {\"type\": \"Precompiled\"}, " UNIGRAM("", "[\"a\", -1]") "}",
         "normalizer.precompiled_charsmap is not a string", "Save", AQ_CORRUPT},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"\"}, " UNIGRAM("",
                                                                                                  "[\"a\", -1]") "}",
         "precompiled_charsmap is damaged: it is empty", "Save", AQ_CORRUPT},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"A*==\"}, " UNIGRAM(
             "", "[\"a\", -1]") "}",
         "precompiled_charsmap is damaged: it is not base64", "download tokenizer.json again", AQ_CORRUPT},
        {"{\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAQAAAAAAAA=\"}, " UNIGRAM(
             "", "[\"a\", -1]") "}",
         "precompiled_charsmap is damaged: its length is wrong", "Save", AQ_CORRUPT},
        {"{\"pre_tokenizer\": {\"type\": \"CharDelimiterSplit\", \"delimiter\": \"ab\"}, " UNIGRAM("",
                                                                                                   "[\"a\", -1]") "}",
         "pre_tokenizer.delimiter is not a single character", "Set it to one", AQ_CORRUPT},
        {"{\"pre_tokenizer\": {\"type\": \"FixedLength\", \"length\": 0}, " UNIGRAM("", "[\"a\", -1]") "}",
         "pre_tokenizer.length is not in 1..65535", "Set it to a number", AQ_CORRUPT},
        {"{\"decoder\": {\"type\": \"Strip\", \"content\": \"ab\", \"start\": 1, \"stop\": 0}, " UNIGRAM(
             "", "[\"a\", -1]") "}",
         "decoder has no single character", "", AQ_CORRUPT},
        {"{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": "
         "\"ByteFallback\"}]}, " UNIGRAM("", "[\"a\", -1]") "}",
         "decoder.decoders[1] is behind Fuse", "Put it before Fuse", AQ_INVAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_tokenizer *t = NULL;
        const uint64_t used = aq_memory_used();
        data_write_text(folder, "tokenizer.json", cases[i].file);
        aq_error_clear();
        const enum aq_status status = aq_tokenizer_open("huggingface", folder, &t);
        if (status != cases[i].status || !strstr(aq_error_text(), cases[i].part) ||
            !strstr(aq_error_text(), cases[i].remedy))
            fail_msg("%zu: status %d \"%s\" is not %d \"%s\" \"%s\"", i, status, aq_error_text(), cases[i].status,
                     cases[i].part, cases[i].remedy);
        assert_int_equal(aq_memory_used(), used);
    }
}

/* ---- the trie ---- */

enum { MANY = 3000 };

/* Pieces of few letters and of many, some of them beginnings of others: each is found, and nothing else. */
static void test_trie_finds_its_pieces(void **state)
{
    (void)state;
    static char text[MANY][16];
    static struct aq_piece pieces[MANY];
    struct aq_piece_trie *trie;
    uint32_t count = 0, found = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        const int length = i % 3 == 0 ? snprintf(text[count], 16, "%x", i)
                           : i % 3 == 1
                               ? snprintf(text[count], 16, "%c%c%c", 1 + i % 255, 1 + i / 7 % 255, i % 2 ? 7 : 250)
                               : snprintf(text[count], 16, "%u%u", i, i);
        bool twice = false;
        for (uint32_t k = 0; k < count; k++)
            twice = twice || strcmp(text[k], text[count]) == 0;
        if (twice) continue;
        pieces[count] = (struct aq_piece){(const uint8_t *)text[count], (uint32_t)length, count};
        count++;
    }
    assert_int_equal(aq_piece_trie_open(pieces, count, &trie), AQ_OK);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0, k = 0;
        while (text[i][k] && (at = aq_piece_trie_next(trie, at, (uint8_t)text[i][k])) != 0)
            k++;
        assert_true(at != 0);
        assert_int_equal(trie->units[at].token, i);
        for (unsigned byte = 0; byte < 256; byte++)
            assert_true(aq_piece_trie_next(trie, at, (uint8_t)byte) < trie->count);
    }
    for (uint32_t i = 0; i < trie->count; i++)
        found += trie->units[i].token != AQ_PIECE_NONE;
    assert_int_equal(found, count);
    assert_int_equal(aq_piece_trie_next(trie, 0, 0), 0);
    aq_piece_trie_close(trie);
}

static void test_no_memory_at_any_place_leaks_nothing(void **state)
{
    (void)state;
    const uint64_t used = aq_memory_used();
    enum aq_status status = AQ_NOMEM;
    int failures = 0;
    static char file[1 << 15];
    snprintf(file, sizeof file,
             "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Precompiled\", "
             "\"precompiled_charsmap\": \"%s\"}, {\"type\": \"Strip\", \"strip_right\": true}]}, "
             "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
             "\"a\"}, \"content\": \"b\"}, {\"type\": \"Metaspace\"}]}, %s}",
             charsmap, UNIGRAM("\"unk_id\": 0, ", "[\"?\", 0], [\"x\", -1], [\"ab\", -1]"));
    data_write_text(folder, "tokenizer.json", file);
    for (uint64_t n = 1; status != AQ_OK; n++) {
        struct aq_tokenizer *t = NULL;
        int32_t *tokens = NULL;
        char *text = NULL;
        size_t count, bytes;
        aq_memory_fail_at(n);
        status = aq_tokenizer_open("huggingface", folder, &t);
        if (status == AQ_OK) status = aq_tokenizer_encode(t, "qab\xC3\xA9 ", 6, &tokens, &count);
        if (status == AQ_OK) status = aq_tokenizer_text(t, tokens, count, &text, &bytes);
        aq_memory_fail_at(0);
        aq_free(text);
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
    make_charsmap();
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
        cmocka_unit_test(test_unigram_takes_the_largest_sum),
        cmocka_unit_test(test_unigram_falls_back_to_bytes),
        cmocka_unit_test(test_unigram_without_unknown_token_refuses_the_text),
        cmocka_unit_test(test_metaspace_goes_from_the_first_token_only),
        cmocka_unit_test(test_unigram_of_long_pieces_stays_within_its_budget),
        cmocka_unit_test(test_precompiled_by_clusters),
        cmocka_unit_test(test_bert),
        cmocka_unit_test(test_whole_words),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_refusals_name_place_cause_and_remedy),
        cmocka_unit_test(test_trie_finds_its_pieces),
        cmocka_unit_test(test_no_memory_at_any_place_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
