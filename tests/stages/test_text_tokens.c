/*
 * test_text_tokens.c -- tokens of large texts: pieces on threads give the tokens of the whole; kept tokens are used
 * again, and whatever happened to their file shows in no sample.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_files.h"
#include "stages/dataset.h"

static char folder[DATA_PATH_BYTES], cache[DATA_PATH_BYTES], text_path[DATA_PATH_BYTES];
static const char *const merges[] = {
    "h e", "l l", "he ll", "hell o", "\xC4\xA0 w", "o r", "\xC4\x8A \xC4\x8A", "\xC4\xA0 \xC4\xA0"};
enum { MERGES = sizeof merges / sizeof merges[0], BIG = 9 << 20 };

/* Words, digits, runs of spaces and line feeds, characters of several bytes, bytes that are none. */
static char *big_text(void)
{
    static const char *const parts[] = {"hello",    " world",    "\n",  "\n\n",    " \n",           "  ",  "12", "'ll",
                                        "\xC3\xA9", "e\xCC\x81", ".\n", "\n    x", "<|endoftext|>", "\xFF"};
    const struct aq_rng_key key = aq_rng_key(31, AQ_RNG_TEST, 0, 0);
    void *memory;
    assert_int_equal(aq_alloc(BIG + 64, &memory), AQ_OK);
    char *text = memory;
    size_t at = 0;
    for (uint64_t i = 0; at < BIG; i++) {
        const char *part = parts[aq_rng_below(&key, i, sizeof parts / sizeof parts[0])];
        memcpy(text + at, part, strlen(part));
        at += strlen(part);
    }
    memset(text + BIG, 0, 64);
    return text;
}

static struct aq_dataset *open_with(const char *kind, const char *path, uint32_t threads, const char *kept)
{
    const char *paths[] = {path};
    const struct aq_dataset_config config = {.paths = paths,
                                             .path_count = 1,
                                             .tokenizer_kind = kind,
                                             .tokenizer_path = folder,
                                             .T = 4,
                                             .cache = kept,
                                             .threads = threads};
    struct aq_dataset *dataset = NULL;
    assert_int_equal(aq_dataset_open(&config, &dataset), AQ_OK);
    return dataset;
}

/* A pattern of today's families, NFC, and the older one of GPT-2. */
static void write_tokenizers(void)
{
    data_write_vocabulary(folder, merges, MERGES);
    data_write_tokenizer_json(
        folder,
        "\"added_tokens\": [{\"id\": 264, \"content\": \"<|endoftext|>\", \"special\": true}], \"normalizer\": "
        "{\"type\": "
        "\"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": "
        "\"Isolated\"}, "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}",
        "", merges, MERGES);
}

static void test_pieces_give_the_tokens_of_the_whole(void **state)
{
    (void)state;
    static const char *const kinds[] = {"bytes", "gpt2", "huggingface"};
    char *text = big_text();
    write_tokenizers();
    data_write_text(folder, "text", text);
    for (size_t k = 0; k < 3; k++) {
        struct aq_tokenizer *t;
        int32_t *tokens, block[4], targets[4];
        size_t count;
        assert_int_equal(aq_tokenizer_open(kinds[k], folder, &t), AQ_OK);
        assert_int_equal(aq_tokenizer_encode(t, text, strlen(text), &tokens, &count), AQ_OK);
        for (uint32_t threads = 1; threads <= 5; threads += 2) {
            struct aq_dataset *d = open_with(kinds[k], text_path, threads, NULL);
            assert_true(aq_dataset_digest(d) == aq_digest(tokens, count * sizeof(int32_t)));
            const uint64_t last = aq_dataset_count(d) - 1;
            assert_int_equal(aq_dataset_get(d, last, (void *const[AQ_BATCH_FIELDS_MAX]){block, targets}), AQ_OK);
            assert_memory_equal(block, tokens + 4 * last, sizeof block);
            aq_dataset_close(d);
        }
        aq_free(tokens);
        aq_tokenizer_close(t);
    }
    aq_free(text);
}

static void test_lines_keep_their_numbers_over_pieces(void **state)
{
    (void)state;
    char path[DATA_PATH_BYTES];
    FILE *file = fopen(data_path(folder, "many.jsonl", path), "wb");
    for (int i = 0; i < 200000; i++)
        fprintf(file, i == 190000 ? "{\"text\": 7}\n" : "{\"text\": \"hello world hello %d\"}\n\n", i);
    fclose(file);
    const char *paths[] = {path};
    const struct aq_dataset_config config = {
        .paths = paths, .path_count = 1, .tokenizer_kind = "bytes", .T = 4, .threads = 3};
    struct aq_dataset *d;
    aq_error_clear();
    assert_int_equal(aq_dataset_open(&config, &d), AQ_CORRUPT);
    assert_non_null(strstr(aq_error_text(), "many.jsonl:380001: has a \"text\" that is not a string"));
    remove(path);
}

/* The one file of the cache folder. */
static void kept_file(char path[DATA_PATH_BYTES])
{
    FILE *names;
    char command[DATA_PATH_BYTES + 16], name[64] = "";
    snprintf(command, sizeof command, "ls %s", cache);
    names = popen(command, "r");
    assert_int_equal(fscanf(names, "%63s", name), 1);
    assert_int_equal(fscanf(names, "%*s"), EOF);
    pclose(names);
    data_path(cache, name, path);
}

static int files_kept(void)
{
    char command[DATA_PATH_BYTES + 16];
    int count = -1;
    snprintf(command, sizeof command, "ls %s | wc -l", cache);
    FILE *names = popen(command, "r");
    assert_int_equal(fscanf(names, "%d", &count), 1);
    pclose(names);
    return count;
}

static uint64_t digest_by_cache(void)
{
    struct aq_dataset *d = open_with("gpt2", text_path, 0, cache);
    const uint64_t digest = aq_dataset_digest(d);
    aq_dataset_close(d);
    return digest;
}

static void change_byte(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void test_kept_tokens_are_used_and_damage_is_made_again(void **state)
{
    (void)state;
    static const long places[] = {8, 16, 24, 32, 40, 64, 70, -1};
    char path[DATA_PATH_BYTES];
    struct stat first, again;
    write_tokenizers();
    data_write_text(folder, "text", "hello world, hello hello world hello\n");
    struct aq_dataset *plain = open_with("gpt2", text_path, 0, NULL);
    const uint64_t wanted = aq_dataset_digest(plain);
    aq_dataset_close(plain);
    assert_true(digest_by_cache() == wanted);
    kept_file(path);
    assert_int_equal(stat(path, &first), 0);
    assert_true(digest_by_cache() == wanted);
    assert_int_equal(stat(path, &again), 0);
    assert_true(first.st_ino == again.st_ino); /* it was not made again */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        change_byte(path, places[i]);
        assert_true(digest_by_cache() == wanted);
        change_byte(path, places[i]); /* the new one is whole: now it is damaged */
        assert_true(digest_by_cache() == wanted);
    }
    assert_int_equal(truncate(path, 66), 0);
    assert_true(digest_by_cache() == wanted);
    assert_int_equal(truncate(path, 10), 0);
    assert_true(digest_by_cache() == wanted);
    assert_int_equal(truncate(path, 0), 0);
    assert_true(digest_by_cache() == wanted);
    /* Another program's file of that name stays, and the tokens are made without it. */
    FILE *file = fopen(path, "wb");
    fputs("mine, not yours", file);
    fclose(file);
    assert_true(digest_by_cache() == wanted);
    assert_int_equal(stat(path, &again), 0);
    assert_int_equal(again.st_size, 15);
    remove(path);
}

static void test_another_text_or_tokenizer_is_another_file(void **state)
{
    (void)state;
    char path[DATA_PATH_BYTES], other[DATA_PATH_BYTES];
    write_tokenizers();
    data_write_text(folder, "text", "hello world\n");
    const uint64_t before = digest_by_cache();
    kept_file(path);
    remove(path);
    data_write_text(folder, "text", "hello_world\n");
    assert_true(digest_by_cache() != before);
    kept_file(other);
    assert_string_not_equal(path, other);
    remove(other);
    data_write_vocabulary(folder, merges, MERGES - 1);
    data_write_text(folder, "text", "hello world\n");
    (void)digest_by_cache();
    kept_file(other);
    assert_string_not_equal(path, other);
    remove(other);
    /* A folder that is not there: without it. */
    struct aq_dataset *d = open_with("gpt2", text_path, 0, "/nonexistent/folder");
    assert_true(aq_dataset_digest(d) == before);
    aq_dataset_close(d);
}

/* The tokens' file may have no more than a few bytes: they are made without it, and nothing is left of it. */
static void test_a_full_disk_costs_the_cache_alone(void **state)
{
    (void)state;
    struct rlimit before, few;
    write_tokenizers();
    data_write_text(folder, "text", "hello world, hello hello world hello\n");
    struct aq_dataset *plain = open_with("gpt2", text_path, 0, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 10; bytes < 100; bytes += 60) { /* within the head, and behind it */
        few = (struct rlimit){.rlim_cur = bytes, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
        const uint64_t digest = digest_by_cache();
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_true(digest == aq_dataset_digest(plain));
        assert_int_equal(files_kept(), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
    aq_dataset_close(plain);
}

/* Once the tokens of the first file are made, somebody writes to it. */
static void write_to_text(int level, const char *line, void *context)
{
    (void)level, (void)context;
    if (strstr(line, "file=")) data_write_text(folder, "text", "hello hello\n");
}

static void test_a_text_that_changes_is_not_kept(void **state)
{
    (void)state;
    const char *paths[] = {text_path};
    const struct aq_dataset_config config = {.paths = paths,
                                             .path_count = 1,
                                             .tokenizer_kind = "gpt2",
                                             .tokenizer_path = folder,
                                             .T = 4,
                                             .cache = cache};
    struct aq_dataset *d;
    write_tokenizers();
    data_write_text(folder, "text", "hello world\n");
    setenv("AQ_LOG", "2", 1);
    aq_log_init(0);
    aq_log_sink(write_to_text, NULL);
    aq_error_clear();
    assert_int_equal(aq_dataset_open(&config, &d), AQ_CORRUPT);
    data_be_quiet();
    unsetenv("AQ_LOG");
    aq_log_init(0);
    assert_non_null(strstr(aq_error_text(), "text: changed while it was read"));
    assert_int_equal(files_kept(), 0);
}

static int open_folders(void **state)
{
    (void)state;
    data_be_quiet();
    data_folder_open(folder);
    data_folder_open(cache);
    data_path(folder, "text", text_path);
    return 0;
}

static int close_folders(void **state)
{
    (void)state;
    data_folder_close(folder);
    data_folder_close(cache);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_give_the_tokens_of_the_whole),
        cmocka_unit_test(test_lines_keep_their_numbers_over_pieces),
        cmocka_unit_test(test_kept_tokens_are_used_and_damage_is_made_again),
        cmocka_unit_test(test_another_text_or_tokenizer_is_another_file),
        cmocka_unit_test(test_a_full_disk_costs_the_cache_alone),
        cmocka_unit_test(test_a_text_that_changes_is_not_kept),
    };
    return cmocka_run_group_tests(tests, open_folders, close_folders);
}
