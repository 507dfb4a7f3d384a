/*
 * test_command_cache.c -- `aqpipe cache` on real caches: what it prints, that it writes nothing, what it refuses.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_kit.h"

#include <jansson.h>

enum { MESSAGE_BYTES = 5000, OUTPUT_BYTES = 1 << 16, SAMPLES = 8 };

static const char *program;
static char run[KIT_PATH], cache_path[KIT_PATH + 32], output[OUTPUT_BYTES];

/* The command's exit status; what it wrote, errors too, is in output. */
static int command(const char *arguments)
{
    char line[4 * KIT_PATH];
    assert_true(snprintf(line, sizeof line, "%s cache %s 2>&1", program, arguments) < (int)sizeof line);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    const size_t count = fread(output, 1, sizeof output - 1, pipe);
    output[count] = 0;
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int command_on(const char *verb, const char *path)
{
    char arguments[2 * KIT_PATH];
    snprintf(arguments, sizeof arguments, "%s %s", verb, path);
    return command(arguments);
}

static bool said(const char *text)
{
    if (strstr(output, text)) return true;
    fprintf(stderr, "not in the output: %s\n%s", text, output);
    return false;
}

static void open_cache(uint64_t mark, struct aq_cache **cache)
{
    struct aq_cache_config config;
    aq_cache_config_default(&config);
    config.path = cache_path;
    config.job_name = "a test";
    config.job_digest = 0xabcdef;
    config.value_bytes_max = MESSAGE_BYTES;
    config.samples_max = 64;
    config.slots = 6;
    config.depth = 3;
    config.mark = mark;
    assert_int_equal(aq_cache_open(&config, cache), AQ_OK);
}

static void put(struct aq_cache *cache, uint64_t sample, uint16_t side, uint64_t version)
{
    const struct aq_cache_key key = {.sample = sample, .edge = 1 - side, .side = side};
    void *slot;
    assert_int_equal(aq_cache_slot(cache, kit_deadline(), &slot), AQ_OK);
    kit_fill(sample, version, slot, MESSAGE_BYTES);
    assert_int_equal(aq_cache_put(cache, &key, version, aq_digest(slot, MESSAGE_BYTES), slot, MESSAGE_BYTES), AQ_OK);
}

/* Two edges' messages at marks 10 and 20; at 20 half of the samples have a newer one. */
static int setup(void **state)
{
    (void)state;
    struct aq_cache *cache;
    kit_folder(NULL, run);
    snprintf(cache_path, sizeof cache_path, "%s/cache", run);
    assert_int_equal(mkdir(cache_path, 0700), 0);
    snprintf(cache_path, sizeof cache_path, "%s/cache/stage-1", run);
    open_cache(0, &cache);
    for (uint64_t sample = 0; sample < SAMPLES; sample++) {
        put(cache, sample, 0, 1);
        put(cache, sample, 1, 1);
    }
    assert_int_equal(kit_mark(cache, 10), AQ_OK);
    for (uint64_t sample = 0; sample < SAMPLES / 2; sample++)
        put(cache, sample, 0, 2);
    assert_int_equal(kit_mark(cache, 20), AQ_OK);
    aq_cache_close(cache);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kit_remove(run);
    return 0;
}

static void test_stat_tells_whose_and_how_much(void **state)
{
    (void)state;
    assert_int_equal(command_on("stat", run), 0);
    assert_true(said("cache/stage-1\n"));
    assert_true(said("job        \"a test\", digest 0000000000abcdef, format 1"));
    assert_true(said("marks      20 (newest), 10"));
    assert_true(said("16 messages, "));
    assert_true(said("edge 0     received  8 messages"));
    assert_true(said("edge 1     sent      8 messages"));
}

static void test_stat_json_is_an_object_with_the_figures(void **state)
{
    (void)state;
    assert_int_equal(command_on("stat --json", cache_path), 0);
    const char *object = strchr(output, '{'); /* a line before it says that the disk does not support O_DIRECT: tmpfs */
    assert_non_null(object);
    json_t *line = json_loads(object, 0, NULL);
    assert_non_null(line);
    assert_string_equal(json_string_value(json_object_get(line, "job")), "a test");
    assert_string_equal(json_string_value(json_object_get(line, "job_digest")), "0000000000abcdef");
    assert_int_equal(json_integer_value(json_object_get(line, "mark_previous")), 10);
    assert_int_equal(json_integer_value(json_object_get(line, "messages")), 2 * SAMPLES);
    assert_int_equal(json_integer_value(json_object_get(line, "bytes")), 2 * SAMPLES * MESSAGE_BYTES);
    assert_int_equal(json_array_size(json_object_get(line, "edges")), 2);
    json_decref(line);
}

static uint64_t file_digest(const char *name)
{
    static uint8_t bytes[1 << 20];
    char path[2 * KIT_PATH];
    snprintf(path, sizeof path, "%s/%s", cache_path, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return aq_digest(bytes, count);
}

static void test_verify_of_a_good_cache_writes_nothing(void **state)
{
    (void)state;
    const uint64_t index = file_digest("index.mdb"), slab = file_digest("slab");
    assert_int_equal(command_on("verify", run), 0);
    assert_true(said("mark 20, 16 messages, "));
    assert_true(said(" 0 broken"));
    assert_int_equal(command_on("verify --mark 10", run), 0);
    assert_true(said("mark 10, 16 messages, "));
    assert_true(file_digest("index.mdb") == index && file_digest("slab") == slab);
}

static void test_verify_names_every_broken_message(void **state)
{
    (void)state;
    struct aq_cache_walk *walk;
    struct aq_cache_visit visit;
    struct aq_cache_info info;
    char path[2 * KIT_PATH], line[256];
    uint8_t byte = 0;
    assert_int_equal(aq_cache_walk_open(cache_path, 0, false, &walk), AQ_OK);
    aq_cache_walk_info(walk, &info);
    do
        assert_int_equal(aq_cache_walk_next(walk, &visit), AQ_OK);
    while (visit.key.side != 0 || visit.key.sample != 3);
    aq_cache_walk_close(walk);
    snprintf(path, sizeof path, "%s/slab", cache_path);
    const int fd = open(path, O_RDWR);
    const off_t at = (off_t)(4096 + visit.cell * info.cell_bytes + 77);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    assert_int_equal(command_on("verify", run), 1);
    snprintf(line, sizeof line,
             "edge 1 sent, sample 3, variant 0, version %d: its bytes have changed since they were written", 2);
    assert_true(said(line));
    assert_true(said(" 1 broken"));
    assert_int_equal(command_on("stat", run), 0); /* which reads no message */
}

static void test_compact_keeps_what_the_marks_hold(void **state)
{
    (void)state;
    char path[2 * KIT_PATH];
    struct stat before, after;
    struct aq_cache *cache;
    open_cache(20, &cache);
    for (uint64_t sample = 0; sample < SAMPLES; sample++)
        put(cache, sample, 1, 2);
    aq_cache_close(cache); /* without a mark: what was put is forgotten, its cells are free */
    snprintf(path, sizeof path, "%s/slab", cache_path);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(command_on("compact", run), 0);
    assert_true(said(" freed, "));
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_size < before.st_size);
    assert_int_equal(command_on("verify", run), 0);
    assert_int_equal(command_on("verify --mark 10", run), 0);
}

static void test_a_cache_in_use_is_refused_by_name(void **state)
{
    (void)state;
    struct aq_cache *cache;
    char holder[64];
    open_cache(20, &cache);
    snprintf(holder, sizeof holder, "pid %ld): end that process first", (long)getpid());
    static const char *const verbs[] = {"stat", "verify", "compact", "wipe"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(command_on(verbs[i], run), 1);
        assert_true(said("is in use by another process ("));
        if (access("/proc/locks", R_OK) == 0) assert_true(said(holder));
    }
    aq_cache_close(cache);
    assert_int_equal(command_on("verify", run), 0); /* nothing was done to it */
}

static void test_wipe_leaves_nothing(void **state)
{
    (void)state;
    struct stat about;
    assert_int_equal(command_on("wipe --mark 1", run), 2);
    assert_true(said("--mark is an option of stat verify"));
    assert_int_equal(command_on("stat", run), 0);
    assert_int_equal(command_on("wipe --json", run), 0);
    assert_true(said("\"freed\":"));
    assert_int_equal(stat(cache_path, &about), -1);
    assert_int_equal(command_on("stat", run), 2);
}

static void test_usage_is_told(void **state)
{
    (void)state;
    assert_int_equal(command("--help"), 0);
    assert_true(said("Usage: aqpipe cache [OPTION...] stat|verify|compact|wipe PATH..."));
    assert_int_equal(command(""), 2);
    assert_int_equal(command("shrink x"), 2);
    assert_true(said("'shrink' is not one of"));
    assert_int_equal(command("stat"), 2);
    assert_int_equal(command_on("stat --mark x", run), 2);
    assert_int_equal(command_on("verify --mark 11", run), 1);
    assert_true(said("holds marks 20 and 10, not 11"));
    assert_int_equal(command_on("stat", "/proc/none"), 2);
    assert_true(said("there is no cache"));
}

int main(int argc, char **argv)
{
    if (argc < 2) return 1;
    program = argv[1];
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_stat_tells_whose_and_how_much),
        TEST(test_stat_json_is_an_object_with_the_figures),
        TEST(test_verify_of_a_good_cache_writes_nothing),
        TEST(test_verify_names_every_broken_message),
        TEST(test_compact_keeps_what_the_marks_hold),
        TEST(test_a_cache_in_use_is_refused_by_name),
        TEST(test_wipe_leaves_nothing),
        TEST(test_usage_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
