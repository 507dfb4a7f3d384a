/*
 * test_data_forms.c -- data files as people have them: packed, with a byte order mark, as arrays, tables and lines, in
 * the layouts of published sets; one content has one digest whatever its form, and what is wrong is told with its line.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if AQ_ZLIB
#include <zlib.h>
#endif
#include <zstd.h>

#include "data_files.h"
#include "data_record.h"
#include "sample.h"
#include "stages/dataset.h"

#define MARK "\xEF\xBB\xBF"

static char folder[DATA_PATH_BYTES];
static char last_log[16384];

static void keep_log(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    const size_t used = strlen(last_log);
    snprintf(last_log + used, sizeof last_log - used, "%s\n", line);
}

/* Opens one file of the folder; the error's text, or "", is in aq_error_text. */
static enum aq_status open_file(const char *name, const struct aq_dataset_config *how, struct aq_dataset **data)
{
    char path[DATA_PATH_BYTES];
    const char *const paths[] = {data_path(folder, name, path)};
    struct aq_dataset_config config = *how;
    config.paths = paths;
    config.path_count = 1;
    if (!config.tokenizer_kind) config.tokenizer_kind = "bytes";
    if (!config.T) config.T = 16;
    *data = NULL;
    last_log[0] = 0;
    aq_error_clear();
    return aq_dataset_open(&config, data);
}

static uint64_t digest_of(const char *name, const struct aq_dataset_config *how)
{
    struct aq_dataset *data;
    if (open_file(name, how, &data) != AQ_OK) fail_msg("%s: %s", name, aq_error_text());
    const uint64_t digest = aq_dataset_digest(data);
    aq_dataset_close(data);
    return digest;
}

static void refused(const char *name, const struct aq_dataset_config *how, const char *part)
{
    struct aq_dataset *data;
    assert_int_not_equal(open_file(name, how, &data), AQ_OK);
    if (!strstr(aq_error_text(), part)) fail_msg("%s: \"%s\" is not in: %s", name, part, aq_error_text());
}

static void write_zstd(const char *name, const void *bytes, size_t count)
{
    const size_t room = ZSTD_compressBound(count);
    void *packed = malloc(room);
    const size_t size = ZSTD_compress(packed, room, bytes, count, 3);
    assert_false(ZSTD_isError(size));
    data_write(folder, name, packed, size);
    free(packed);
}

#if AQ_ZLIB
/* As gzip writes it; `members` of them behind each other, each a part of the text. */
static void write_gzip(const char *name, const char *bytes, size_t count, size_t members)
{
    const size_t room = count + members * 128 + count / 100 + 64;
    uint8_t *packed = malloc(room);
    size_t used = 0;
    for (size_t i = 0; i < members; i++) {
        const size_t from = count * i / members, to = count * (i + 1) / members;
        z_stream stream = {.next_in = (Bytef *)(uintptr_t)(bytes + from),
                           .avail_in = (uInt)(to - from),
                           .next_out = packed + used,
                           .avail_out = (uInt)(room - used)};
        assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        used += stream.total_out;
        deflateEnd(&stream);
    }
    data_write(folder, name, packed, used);
    free(packed);
}
#endif

/* ---- one content, one digest ---- */

static const char texts_lines[] = "{\"text\": \"a, b\"}\n{\"text\": \"he said \\\"no\\\"\\nand left\"}\n\n"
                                  "{\"text\": \"caf\\u00e9\", \"score\": 1}\n";
static const char texts_array[] = "[\n  {\"text\": \"a, b\"},\n  {\"text\": \"he said \\\"no\\\"\\nand left\"}\n ,"
                                  "{\"text\": \"caf\\u00e9\", \"tags\": [\"]\", {\"x\": \"}\"}]}\n]\n";
static const char texts_csv[] = "id,text\r\n1,\"a, b\"\r\n2,\"he said \"\"no\"\"\nand left\"\r\n3,caf\xC3\xA9\r\n";
static const char texts_tsv[] = "id\ttext\n1\ta, b\n2\the said \"no\" and left\n3\tcaf\xC3\xA9\n";

static void test_every_form_of_a_text_has_one_digest(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
    } files[] = {
        {"a.JSONL", texts_lines}, {"a.ndjson", texts_lines}, {"a.json", texts_array}, {"lines.json", texts_lines},
        {"a.csv", texts_csv},     {"mark.jsonl", MARK},      {"mark.json", MARK},     {"mark.csv", MARK},
    };
    const struct aq_dataset_config how = {.kind = "text", .T = 4};
    data_write_text(folder, "a.jsonl", texts_lines);
    const uint64_t digest = digest_of("a.jsonl", &how);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char marked[512];
        const char *of = strstr(files[i].name, ".csv")             ? texts_csv
                         : strcmp(files[i].name, "mark.json") == 0 ? texts_array
                                                                   : texts_lines;
        const bool mark = strcmp(files[i].text, MARK) == 0;
        snprintf(marked, sizeof marked, "%s%s", mark ? MARK : "", mark ? of : files[i].text);
        data_write_text(folder, files[i].name, marked);
        if (digest_of(files[i].name, &how) != digest) fail_msg("%s has other tokens", files[i].name);
    }
    data_write_text(folder, "other.jsonl", "{\"text\": \"a, c\"}\n");
    assert_int_not_equal(digest_of("other.jsonl", &how), digest);
    data_write_text(folder, "t.tsv", texts_tsv);
    data_write_text(folder, "t.jsonl",
                    "{\"text\": \"a, b\"}\n{\"text\": \"he said \\\"no\\\" and left\"}\n"
                    "{\"text\": \"caf\\u00e9\"}\n");
    assert_int_equal(digest_of("t.tsv", &how), digest_of("t.jsonl", &how));
}

static void test_packed_files_have_the_digest_of_what_they_hold(void **state)
{
    (void)state;
    const struct aq_dataset_config how = {.kind = "text", .T = 4};
    char marked[512];
    const int bytes = snprintf(marked, sizeof marked, "%s%s", MARK, texts_lines);
    data_write_text(folder, "a.jsonl", texts_lines);
    const uint64_t digest = digest_of("a.jsonl", &how);
    write_zstd("a.jsonl.zst", texts_lines, sizeof texts_lines - 1);
    write_zstd("m.ndjson.ZST", marked, (size_t)bytes);
    write_zstd("a.json.zst", texts_array, sizeof texts_array - 1);
    write_zstd("a.csv.zst", texts_csv, sizeof texts_csv - 1);
    assert_int_equal(digest_of("a.jsonl.zst", &how), digest);
    assert_int_equal(digest_of("m.ndjson.ZST", &how), digest);
    assert_int_equal(digest_of("a.json.zst", &how), digest);
    assert_int_equal(digest_of("a.csv.zst", &how), digest);
#if AQ_ZLIB
    write_gzip("a.jsonl.gz", texts_lines, sizeof texts_lines - 1, 1);
    write_gzip("many.jsonl.gz", texts_lines, sizeof texts_lines - 1, 3);
    write_gzip("m.jsonl.gz", marked, (size_t)bytes, 1);
    assert_int_equal(digest_of("a.jsonl.gz", &how), digest);
    assert_int_equal(digest_of("many.jsonl.gz", &how), digest);
    assert_int_equal(digest_of("m.jsonl.gz", &how), digest);
#endif
}

/* Longer than several windows: the pieces of a packed text are those of the mapped one, or give the same tokens. */
static void test_long_packed_texts_are_read_in_windows(void **state)
{
    (void)state;
    const size_t bytes = sample_every(2) == 1 ? 30 << 20 : 14 << 20; /* a window of two threads has 12 MiB */
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r"};
    char *text = malloc(bytes);
    uint64_t key = 7;
    data_write_vocabulary(folder, merges, sizeof merges / sizeof *merges);
    for (size_t i = 0; i < bytes; i++) {
        key = key * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const unsigned pick = (unsigned)(key >> 59);
        text[i] = pick < 3 ? ' ' : pick == 3 && (key >> 40) % 5 == 0 ? '\n' : "helloworld"[pick % 10];
    }
    data_write(folder, "long.txt", text, bytes);
    write_zstd("long.txt.zst", text, bytes);
    free(text);
    const struct aq_dataset_config one = {.tokenizer_kind = "gpt2", .tokenizer_path = folder, .T = 64, .threads = 1};
    const struct aq_dataset_config two = {.tokenizer_kind = "gpt2", .tokenizer_path = folder, .T = 64, .threads = 2};
    const uint64_t digest = digest_of("long.txt", &two);
    const uint64_t before = aq_memory_used();
    assert_int_equal(digest_of("long.txt.zst", &one), digest);
    assert_int_equal(digest_of("long.txt.zst", &two), digest);
    assert_int_equal(aq_memory_used(), before);
}

static void test_packed_files_that_are_damaged_are_refused(void **state)
{
    (void)state;
    const struct aq_dataset_config how = {.kind = "text", .T = 4};
    enum { ZEROES = 80 << 20 };
    char path[DATA_PATH_BYTES];
    uint8_t bytes[4096];
    write_zstd("cut.jsonl.zst", texts_lines, sizeof texts_lines - 1);
    FILE *file = fopen(data_path(folder, "cut.jsonl.zst", path), "rb");
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    data_write(folder, "cut.jsonl.zst", bytes, count - 5);
    refused("cut.jsonl.zst", &how, "cut.jsonl.zst: is not a complete zstd file: it ends in the middle");
    memcpy(bytes + count, "more", 4);
    data_write(folder, "behind.jsonl.zst", bytes, count + 4);
    refused("behind.jsonl.zst", &how, "behind.jsonl.zst: is not a complete zstd file");
    char *zeroes = calloc(1, ZEROES);
    write_zstd("bomb.jsonl.zst", zeroes, ZEROES);
    refused("bomb.jsonl.zst", &how, "bomb.jsonl.zst: "); /* one line of 80 MiB, or its ratio */
    memset(zeroes, '\n', ZEROES);
    write_zstd("feeds.jsonl.zst", zeroes, ZEROES);
    refused("feeds.jsonl.zst", &how, "unpacks to more than 1000 times its bytes");
    refused("feeds.jsonl.zst", &(struct aq_dataset_config){.kind = "instruct"}, "more than 1000 times its bytes");
#if AQ_ZLIB
    write_gzip("feeds.jsonl.gz", zeroes, ZEROES, 1);
    refused("feeds.jsonl.gz", &how, "unpacks to more than 1000 times its bytes");
    write_gzip("a.jsonl.gz", texts_lines, sizeof texts_lines - 1, 1);
    file = fopen(data_path(folder, "a.jsonl.gz", path), "rb");
    const size_t packed = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    data_write(folder, "cut.jsonl.gz", bytes, packed - 3);
    refused("cut.jsonl.gz", &how, "cut.jsonl.gz: is not a complete gzip file: it ends in the middle");
    bytes[packed - 6] ^= 1;
    data_write(folder, "flip.jsonl.gz", bytes, packed);
    refused("flip.jsonl.gz", &how, "flip.jsonl.gz: is not a complete gzip file: incorrect data check");
    bytes[packed - 6] ^= 1;
    memset(bytes + packed, 0, 64);
    data_write(folder, "tape.jsonl.gz", bytes, packed + 64);
    assert_int_equal(digest_of("tape.jsonl.gz", &how), digest_of("a.jsonl.gz", &how));
    bytes[packed + 20] = 'x';
    data_write(folder, "junk.jsonl.gz", bytes, packed + 64);
    refused("junk.jsonl.gz", &how, "other bytes follow its end");
#endif
    free(zeroes);
}

static void test_formats_that_are_no_text_name_the_conversion(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
        size_t count;
        const char *part;
    } files[] = {
        {"a.parquet", "PAR1\x15\x04\x15", 7,
         "is a Parquet file, which is not read here; convert it: python3 -c \"import pandas"},
        {"a.jsonl", "PAR1\x15\x04\x15", 7, "is a Parquet file"},
        {"a.arrow", "ARROW1\0\0", 8, "is an Arrow file"},
        {"a.xlsx", "PK\x03\x04\x14\0", 6, "save the sheet as CSV"},
        {"a.jsonl.xz",
         "\xfd"
         "7zXZ\0\0\0",
         8, "xz -dc '"},
        {"a.jsonl.bz2", "BZh91AY&SY\x11\x22", 12, "bzip2 -dc '"},
        {"u.csv",
         "\xff\xfe"
         "a\0,\0b\0",
         8, "is UTF-16, which is not read here; convert it: iconv -f UTF-16 -t UTF-8 '"},
        {"l.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 56, "git lfs pull"},
    };
    static const char *const kinds[] = {"text", "instruct", "tsv"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        data_write(folder, files[i].name, files[i].bytes, files[i].count);
        for (size_t k = 0; k < 3; k++)
            refused(files[i].name,
                    &(struct aq_dataset_config){.kind = kinds[k], .columns = {.text = "a", .label = "b"}},
                    files[i].part);
    }
    data_write_text(folder, "page.jsonl", "<!DOCTYPE html>\n<html></html>\n");
    refused("page.jsonl", &(struct aq_dataset_config){.kind = "instruct"}, "is a web page");
    data_write_text(folder, "zip.txt", "BZh is a word, and PK, too: PAR1 in the middle is text\n");
    (void)digest_of("zip.txt", &(struct aq_dataset_config){.kind = "text"});
}

static void test_texts_that_are_lines_of_json_warn(void **state)
{
    (void)state;
    const struct aq_dataset_config how = {.kind = "text", .T = 4};
    data_write_text(folder, "lines.txt", texts_lines);
    (void)digest_of("lines.txt", &how);
    assert_non_null(strstr(last_log, "lines.txt: its lines are JSON objects"));
    data_write_text(folder, "code.txt", "{ this is no JSON }\nbut text\n");
    (void)digest_of("code.txt", &how);
    assert_null(strstr(last_log, "JSON objects"));
}

/* ---- layouts ---- */

static const char template_text[] =
    "{\"chat_template\": \"{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}!{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}\"}";

static const struct aq_dataset_config chats = {.kind = "instruct", .T = 64, .chat = folder};

/* One line in each layout gives what the other gives. */
static void same_lines(const char *a, const char *b, const struct aq_dataset_config *how,
                       const struct aq_dataset_config *other)
{
    data_write_text(folder, "left.jsonl", a);
    data_write_text(folder, "right.jsonl", b);
    if (digest_of("left.jsonl", how) != digest_of("right.jsonl", other)) fail_msg("%s is not %s", a, b);
}

static void test_published_layouts_are_messages_or_pairs(void **state)
{
    (void)state;
    static const char messages[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
                                   "{\"role\": \"assistant\", \"content\": \"yo\"}]}";
    static const char pair[] = "{\"prompt\": \"q\", \"response\": \"a\"}";
    const struct aq_dataset_config plain = {.kind = "instruct", .T = 512};
    data_write_text(folder, "tokenizer_config.json", template_text);
    same_lines("{\"prompt\": \"q\", \"completion\": \"a\"}", pair, &plain, &plain);
    same_lines("{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, "
               "{\"from\": \"gpt\", \"value\": \"yo\"}]}",
               messages, &chats, &chats);
    same_lines("{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], "
               "\"completion\": [{\"role\": \"assistant\", \"content\": \"yo\"}]}",
               messages, &chats, &chats);
    same_lines("{\"instruction\": \"hi\", \"input\": \"\", \"output\": \"yo\"}", messages, &chats, &chats);
    same_lines("{\"instruction\": \"hi\", \"input\": null, \"output\": \"yo\", \"history\": []}", messages, &chats,
               &chats);
    same_lines("{\"instruction\": \"hi\", \"input\": \"you\", \"output\": \"yo\"}",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\\n\\nyou\"}, "
               "{\"role\": \"assistant\", \"content\": \"yo\"}]}",
               &chats, &chats);
    same_lines("{\"system\": \"be\", \"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, "
               "{\"from\": \"gpt\", \"value\": \"yo\"}]}",
               "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, "
               "{\"role\": \"user\", \"content\": \"hi\"}, "
               "{\"role\": \"assistant\", \"content\": \"yo\"}]}",
               &chats, &chats);
    same_lines("{\"instruction\": \"Say hi\", \"input\": \"\", \"output\": \"hi\"}",
               "{\"prompt\": \"Below is an instruction that describes a task. Write a response that appropriately "
               "completes the request.\\n\\n### Instruction:\\nSay hi\\n\\n### Response:\", \"response\": \"hi\"}",
               &plain, &plain);
}

static void test_other_names_are_given_by_fields(void **state)
{
    (void)state;
    const struct aq_dataset_config plain = {.kind = "instruct", .T = 64};
    const struct aq_dataset_config named = {
        .kind = "instruct", .T = 64, .names = "{\"prompt\": \"question\", \"response\": \"answer\"}"};
    const struct aq_dataset_config talks = {.kind = "instruct",
                                            .T = 64,
                                            .chat = folder,
                                            .names =
                                                "{\"messages\": \"dialog\", \"role\": \"who\", \"content\": \"says\"}"};
    const struct aq_dataset_config body = {.kind = "text", .T = 4, .names = "{\"text\": \"body\"}"};
    const struct aq_dataset_config text = {.kind = "text", .T = 4};
    data_write_text(folder, "tokenizer_config.json", template_text);
    same_lines("{\"question\": \"q\", \"answer\": \"a\"}", "{\"prompt\": \"q\", \"response\": \"a\"}", &named, &plain);
    same_lines("{\"dialog\": [{\"who\": \"user\", \"says\": \"hi\"}, {\"who\": \"model\", \"says\": \"yo\"}]}",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
               "{\"role\": \"assistant\", \"content\": \"yo\"}]}",
               &talks, &chats);
    same_lines("{\"body\": \"abcdef\"}", "{\"text\": \"abcdef\"}", &body, &text);
    data_write_text(folder, "f.csv", "question,answer\n\"q\",a\n");
    data_write_text(folder, "f.jsonl", "{\"prompt\": \"q\", \"response\": \"a\"}");
    assert_int_equal(digest_of("f.csv", &named), digest_of("f.jsonl", &plain));
    data_write_text(folder, "left.jsonl", "{\"question\": \"q\", \"answer\": \"a\"}");
    refused("left.jsonl", &plain,
            "left.jsonl:1: has no \"prompt\", and no \"messages\"; its fields are \"question\", "
            "\"answer\"; name yours");
    refused("left.jsonl", &text, "left.jsonl:1: has no \"text\" that is a string; its fields are \"question\"");
    refused("f.jsonl", &text, "but it has answers: set data.kind: instruct");
    data_write_text(folder, "typed.jsonl", "{\"text\": 3}");
    refused("typed.jsonl", &text, "typed.jsonl:1: has a \"text\" that is not a string (correct it, or skip it");
    refused("f.jsonl", &named, "has no \"question\", and no \"messages\"");
    assert_int_equal(aq_dataset_fields_check("{\"question\": \"prompt\"}"), AQ_INVAL);
    assert_int_equal(aq_dataset_fields_check("{\"prompt\": 3}"), AQ_INVAL);
    assert_int_equal(aq_dataset_fields_check("{\"prompt\": \"q\"}"), AQ_OK);
}

/* Answers that a prompt has are context; what is learnt is the completion's. */
static void test_a_completion_alone_is_learnt(void **state)
{
    (void)state;
    struct aq_dataset *data;
    int32_t got[2][64];
    data_write_text(folder, "tokenizer_config.json", template_text);
    data_write_text(folder, "turns.jsonl",
                    "{\"prompt\": [{\"role\": \"user\", \"content\": \"h\"}, "
                    "{\"role\": \"assistant\", \"content\": \"no\"}, "
                    "{\"role\": \"user\", \"content\": \"g\"}], "
                    "\"completion\": [{\"role\": \"assistant\", \"content\": \"yes\"}]}");
    assert_int_equal(open_file("turns.jsonl", &chats, &data), AQ_OK);
    assert_int_equal(aq_dataset_get(data, 0, (void *const[AQ_BATCH_FIELDS_MAX]){got[0], got[1]}), AQ_OK);
    char learnt[65] = "";
    size_t used = 0;
    for (size_t t = 0; t < 64; t++)
        if (got[1][t] >= 0) learnt[used++] = (char)got[1][t];
    assert_string_equal(learnt, "yes!");
    aq_dataset_close(data);
}

static void test_numbers_that_nobody_reads_may_be_what_python_writes(void **state)
{
    (void)state;
    const struct aq_dataset_config plain = {.kind = "instruct", .T = 64};
    const struct aq_dataset_config text = {.kind = "text", .T = 4};
    same_lines("{\"prompt\": \"NaN\", \"response\": \"a\", \"score\": NaN, \"id\": 123456789012345678901234567890}\n"
               "{\"prompt\": \"q\", \"response\": \"b\", \"x\": [-Infinity, {\"y\": Infinity}]}",
               "{\"prompt\": \"NaN\", \"response\": \"a\"}\n{\"prompt\": \"q\", \"response\": \"b\"}", &plain, &plain);
    same_lines("{\"text\": \"abcdef\", \"score\": NaN}", "{\"text\": \"abcdef\"}", &text, &text);
}

/* ---- bad lines ---- */

static void test_bad_lines_are_told_together_and_skipped_when_allowed(void **state)
{
    (void)state;
    char text[4096] = "", lines[65536] = "";
    size_t used = 0;
    const struct aq_dataset_config none = {.kind = "instruct", .T = 16, .whole = true};
    struct aq_dataset_config some = none;
    struct aq_dataset *data;
    for (int i = 0; i < 10; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"prompt\": \"q%d\", \"response\": \"%s\"}\n", i,
                                 i == 3 || i == 7 ? "" : "a");
    data_write_text(folder, "d.jsonl", text);
    refused("d.jsonl", &none, "d.jsonl:4: its response is empty (the first of 2 bad lines");
    assert_non_null(strstr(last_log, "d.jsonl:4: its response is empty"));
    assert_non_null(strstr(last_log, "d.jsonl:8: its response is empty"));
    some.skip_invalid = 1;
    refused("d.jsonl", &some, "data.skip_invalid: 2");
    some.skip_invalid = 2;
    assert_int_equal(open_file("d.jsonl", &some, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 8);
    assert_non_null(strstr(last_log, "skipped 2 bad lines; data.skip_invalid is 2"));
    aq_dataset_close(data);
    used = 0;
    for (int i = 0; i < 100; i++) /* each another cause */
        used += (size_t)snprintf(lines + used, sizeof lines - used, "{\"prompt%d\": 1}\n", i);
    data_write_text(folder, "all.jsonl", lines);
    refused("all.jsonl", &none, "all.jsonl:1: has no \"prompt\"");
    assert_non_null(strstr(aq_error_text(), "the first of 20 or more bad lines"));
    assert_non_null(strstr(last_log, "all.jsonl:20: "));
    assert_null(strstr(last_log, "all.jsonl:21: "));
}

/* A template that cannot be read is no fault of a line: no line is skipped for it, and none is trained without it. */
static void test_a_broken_template_is_not_skipped(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"instruction\": \"q\", \"output\": \"a\"}\n{\"instruction\": \"r\", \"output\": \"b\"}\n",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n"};
    const struct aq_dataset_config how = {
        .kind = "instruct", .T = 64, .whole = true, .chat = folder, .skip_invalid = 9};
    data_write_text(folder, "tokenizer_config.json", "{\"chat_template\": \"{% for m in\"}");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        data_write_text(folder, "b.jsonl", lines[i]);
        refused("b.jsonl", &how, "tokenizer_config.json");
    }
    data_write_text(folder, "tokenizer_config.json", template_text);
}

static void test_a_name_of_a_column_that_is_no_utf8_is_refused(void **state)
{
    (void)state;
    const struct aq_dataset_config how = {.kind = "instruct", .T = 16, .whole = true};
    data_write_text(folder, "n.csv", "prompt,r\xE9ponse\nq,a\n");
    refused("n.csv", &how, "n.csv:1: the name of column 2 is not UTF-8");
}

static void test_bad_lines_of_texts_and_tables_are_told_together(void **state)
{
    (void)state;
    struct aq_dataset_config text = {.kind = "text", .T = 2};
    struct aq_dataset_config table = {.kind = "tsv", .T = 8, .columns = {.text = "s", .label = "l"}};
    struct aq_dataset *data;
    data_write_text(folder, "t.jsonl", "{\"text\": \"abc\"}\n{\"text\": 7}\n{\"text\"\n{\"text\": \"def\"}\n");
    refused("t.jsonl", &text, "t.jsonl:2: has a \"text\" that is not a string");
    assert_non_null(strstr(last_log, "t.jsonl:3: is not JSON"));
    text.skip_invalid = 2;
    const uint64_t digest = digest_of("t.jsonl", &text);
    data_write_text(folder, "good.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"def\"}\n");
    assert_int_equal(digest, digest_of("good.jsonl", &text));
    data_write_text(folder, "t.csv", "s,l\na,1\n\"b\nb\",x\nc,0,0\nd,2\n");
    refused("t.csv", &table, "t.csv:3: the label \"x\" is not a number");
    assert_non_null(strstr(last_log, "t.csv:5: 3 fields between commas, the lines before have 2"));
    table.skip_invalid = 2;
    assert_int_equal(open_file("t.csv", &table, &data), AQ_OK);
    assert_int_equal(aq_dataset_count(data), 2);
    assert_int_equal(aq_dataset_outputs(data), 3);
    aq_dataset_close(data);
}

/* ---- tables and arrays ---- */

/* Records of a text under that name as "line|cell|cell;...", then ! and the error's text, if there is one. */
static void read_all(const char *name, const char *text, bool named, char *out, size_t bytes)
{
    char path[DATA_PATH_BYTES];
    const struct data_how how = {.fallback = DATA_TEXT, .named = named};
    struct data_reader *reader;
    size_t used = 0;
    bool ends = false;
    data_write_text(folder, name, text);
    aq_error_clear();
    assert_int_equal(data_reader_open(data_path(folder, name, path), &how, &reader), AQ_OK);
    while (!ends) {
        struct data_record record;
        const enum aq_status status = data_reader_next(reader, &record, &ends);
        if (status == AQ_OK && !record.at) break;
        used += (size_t)snprintf(out + used, bytes - used, "%llu", (unsigned long long)record.line);
        for (uint32_t i = 0; status == AQ_OK && i < record.cell_count; i++)
            used += (size_t)snprintf(out + used, bytes - used, "|%.*s", (int)record.cells[i].bytes, record.cells[i].at);
        if (status == AQ_OK && !record.cells)
            used += (size_t)snprintf(out + used, bytes - used, "|%.*s", (int)record.bytes, record.at);
        used += (size_t)snprintf(out + used, bytes - used, "%s;", status == AQ_OK ? "" : "!");
    }
    data_reader_close(reader);
    snprintf(out + used, bytes - used, "%s", ends ? "ends" : "");
}

static void test_tables_are_read_by_rfc_4180(void **state)
{
    (void)state;
    static const struct {
        const char *text, *rows;
    } cases[] = {
        {"a,b\n", "1|a|b;"},
        {"a,b", "1|a|b;"},
        {"a,b\r\nc,d\r\n", "1|a|b;2|c|d;"},
        {"\"a\",\"b\"\n", "1|a|b;"},
        {"\"a,1\",b\n", "1|a,1|b;"},
        {"\"a\"\"b\",c\n", "1|a\"b|c;"},
        {"\"\"\"a\"\"\",\"\"\n", "1|\"a\"|;"},
        {"\"a\nb\",c\nd,e\n", "1|a\nb|c;3|d|e;"},
        {"\"a\r\nb\",c\r\nd,e", "1|a\r\nb|c;3|d|e;"},
        {"a,\n", "1|a|;"},
        {",\n", "1||;"},
        {"\n\na,b\n\n", "3|a|b;"},
        {"x\"\"y,b\nc,d\n", "1|x\"\"y|b;2|c|d;"},
        {"x\"y,b\nc,d\n", "1|x\"y|b;2|c|d;"},
        {"a,\"b\"c\nd,e\n", "1!;2|d|e;"},
        {"a,b\nc\nd,e\n", "1|a|b;2!;3|d|e;"},
        {"a,\"b\nc,d\n", "1!;ends"},
    };
    char got[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        got[0] = 0;
        read_all("c.csv", cases[i].text, false, got, sizeof got);
        if (strcmp(got, cases[i].rows) != 0) fail_msg("%s: %s, not %s", cases[i].text, got, cases[i].rows);
    }
    got[0] = 0;
    read_all("c.tsv", "\"a\tb\"\n", false, got, sizeof got);
    assert_string_equal(got, "1|\"a|b\";");
}

static void test_arrays_are_read_element_by_element(void **state)
{
    (void)state;
    static const struct {
        const char *text, *rows;
    } cases[] = {
        {"[]", ""},
        {" [ {} ] ", "1|{} ;"},
        {"[{\"a\": \"],\\\"\"},\n{}]", "1|{\"a\": \"],\\\"\"};2|{};"},
        {"[1,\n[2, 3]]\n", "1|1;2|[2, 3];"},
        {"[{}", "1!;ends"},
        {"[{},", "1|{};1!;ends"},
        {"[{},]", "1|{};1!;ends"},
        {"[{}] x", "1|{};1!;ends"},
        {"[{\"a\": \"", "1!;ends"},
        {"[{}}]", "1!;ends"},
    };
    char got[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        got[0] = 0;
        read_all("c.json", cases[i].text, false, got, sizeof got);
        if (strcmp(got, cases[i].rows) != 0) fail_msg("%s: %s, not %s", cases[i].text, got, cases[i].rows);
    }
}

static void test_quotes_of_a_tsv_are_text_unless_asked_for(void **state)
{
    (void)state;
    struct aq_dataset_config how = {.kind = "tsv", .T = 16, .columns = {.text = "sentence", .label = "label"}};
    data_write_text(folder, "q.tsv", "sentence\tlabel\n\"he said \"\"no\"\"\"\t1\nplain\t0\n\"a, b\"\t1\n");
    data_write_text(folder, "q.csv", "sentence,label\n\"he said \"\"no\"\"\",1\nplain,0\n\"a, b\",1\n");
    data_write_text(folder, "q.jsonl",
                    "{\"sentence\": \"he said \\\"no\\\"\", \"label\": 1}\n"
                    "{\"sentence\": \"plain\", \"label\": 0}\n"
                    "{\"sentence\": \"a, b\", \"label\": \"1\"}\n");
    const uint64_t raw = digest_of("q.tsv", &how);
    assert_non_null(strstr(last_log, "q.tsv: 2 fields are in quotes"));
    const uint64_t csv = digest_of("q.csv", &how);
    assert_null(strstr(last_log, "are in quotes"));
    how.quotes = true;
    assert_int_equal(digest_of("q.tsv", &how), csv);
    assert_int_equal(digest_of("q.jsonl", &how), csv);
    assert_int_not_equal(raw, csv);
    data_write_text(folder, "bom.tsv", MARK "sentence\tlabel\ngood\t1\nbad\t0\n");
    (void)digest_of("bom.tsv", &how);
    data_write_text(folder, "semi.csv", "sentence;label\ngood;1\n");
    refused("semi.csv", &how, "semi.csv:1: data.text_column: there is no column sentence; the line has 1");
    assert_non_null(strstr(aq_error_text(), "save it with commas"));
}

/* ---- the kind ---- */

static void test_the_kind_is_recognised_from_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *kind, *why;
    } cases[] = {
        {"a.txt", "plain\n", "text", ""},
        {"a.txt", "{\"prompt\": \"a\", \"response\": \"b\"}\n", "text", ""},
        {"a.jsonl", "{\"text\": \"a\"}\n", "text", "a text"},
        {"a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n", "instruct", "prompt and response"},
        {"a.jsonl", "\n{bad\n{\"messages\": []}\n", "instruct", "messages"},
        {"a.json", "[{\"conversations\": []}]", "instruct", "messages"},
        {"a.ndjson", "{\"instruction\": \"a\", \"output\": \"b\"}\n", "instruct", "instruction and output"},
        {"a.jsonl", "{\"x\": 1}\n", "text", ""},
        {"a.csv", "prompt,completion\na,b\n", "instruct", "prompt and response"},
        {"a.csv", "sentence,label\na,b\n", "tsv", "rows"},
        {"a.tsv", "text\na\n", "text", "a text"},
        {"a.tsv", "x\t1\n", "tsv", "rows"},
        {"a.jsonl", "", "text", ""},
    };
    char path[DATA_PATH_BYTES], why[256];
    const char *paths[] = {path};
    struct aq_dataset_config config = {.paths = paths, .path_count = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        data_path(folder, cases[i].name, path);
        data_write_text(folder, cases[i].name, cases[i].text);
        const char *kind = aq_dataset_recognise(&config, why, sizeof why);
        if (strcmp(kind, cases[i].kind) != 0 || (*cases[i].why ? !strstr(why, cases[i].why) : why[0] != 0))
            fail_msg("case %zu: %s, because '%s'", i, kind, why);
    }
    data_path(folder, "absent.jsonl", path);
    aq_error_clear();
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "text");
    assert_string_equal(aq_error_text(), "");
    data_write_text(folder, "l.jsonl", "{\"text\": \"a\", \"label\": 1}\n");
    data_write_text(folder, "qa.csv", "question,answer\nq,a\n");
    data_path(folder, "qa.csv", path);
    config.field = "targets";
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "instruct");
    data_path(folder, "l.jsonl", path);
    config.field = "labels";
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "tsv");
    data_write_text(folder, "f.csv", "file,text,label\na.c,b,1\n");
    data_path(folder, "f.csv", path);
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "tsv");
    config.image.side = 32; /* the model reads images */
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "image_files");
    config.image.side = 0;
    config.field = NULL;
    static const struct {
        const char *name, *kind;
        size_t bytes;
    } records[] = {{"a.bin", "cifar10", 2 * 3073},
                   {"a.bin", "cifar100", 2 * 3074},
                   {"a.bin", "text", 2 * 3073 - 1},
                   {"a.bin", "cifar10", 3073ul * 3074},
                   {"a.txt", "text", 3074}};
    char *zeros = calloc(3073, 3074);
    assert_non_null(zeros);
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        data_path(folder, records[i].name, path);
        data_write(folder, records[i].name, zeros, records[i].bytes);
        assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), records[i].kind);
        assert_true(records[i].kind[0] == 't' || strstr(why, records[i].bytes % 3073 ? "3074" : "3073"));
    }
    free(zeros);
    data_path(folder, "l.jsonl", path);
    config.names = "{\"prompt\": \"text\", \"response\": \"label\"}";
    data_write_text(folder, "l.jsonl", "{\"q\": \"a\", \"label\": \"b\", \"text\": 3}\n");
    assert_string_equal(aq_dataset_recognise(&config, why, sizeof why), "instruct");
}

int main(void)
{
    aq_log_sink(keep_log, NULL);
    data_folder_open(folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_a_text_has_one_digest),
        cmocka_unit_test(test_packed_files_have_the_digest_of_what_they_hold),
        cmocka_unit_test(test_long_packed_texts_are_read_in_windows),
        cmocka_unit_test(test_packed_files_that_are_damaged_are_refused),
        cmocka_unit_test(test_formats_that_are_no_text_name_the_conversion),
        cmocka_unit_test(test_texts_that_are_lines_of_json_warn),
        cmocka_unit_test(test_published_layouts_are_messages_or_pairs),
        cmocka_unit_test(test_other_names_are_given_by_fields),
        cmocka_unit_test(test_a_completion_alone_is_learnt),
        cmocka_unit_test(test_numbers_that_nobody_reads_may_be_what_python_writes),
        cmocka_unit_test(test_bad_lines_are_told_together_and_skipped_when_allowed),
        cmocka_unit_test(test_a_broken_template_is_not_skipped),
        cmocka_unit_test(test_a_name_of_a_column_that_is_no_utf8_is_refused),
        cmocka_unit_test(test_bad_lines_of_texts_and_tables_are_told_together),
        cmocka_unit_test(test_tables_are_read_by_rfc_4180),
        cmocka_unit_test(test_arrays_are_read_element_by_element),
        cmocka_unit_test(test_quotes_of_a_tsv_are_text_unless_asked_for),
        cmocka_unit_test(test_the_kind_is_recognised_from_the_file),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    data_folder_close(folder);
    return failed;
}
