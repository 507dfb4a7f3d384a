/*
 * test_options.c -- a command line read by its table: values, ranges, both spellings, and one line that says what is
 * wrong and what was meant.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "commands.h"
#include "options.h"

struct asked {
    bool json, quiet, all;
    const char *output;
    uint32_t count;
    uint64_t mark;
    double rate, wait_s;
    uint64_t size;
    struct aq_arguments sets;
    int twice;
};

static const char *even_read(const char *text, void *to)
{
    const int value = atoi(text);
    *(int *)to = 2 * value;
    return value % 2 ? "an even number is wanted" : NULL;
}

static const struct aq_option options[] = {
    AQ_ROW_VERB("stat", NULL, "what is there", NULL),
    AQ_ROW_VERB("make", "FOLDER", "make it", "Makes it whole."),
    AQ_ROW_OF("make", FLAG, struct asked, all, "all", NULL, "of everything"),
    AQ_ROW(FLAG, struct asked, json, "json", NULL, "as JSON"),
    AQ_ROW(FLAG, struct asked, quiet, "no-progress", NULL, "be quiet"),
    {.name = "output",
     .letter = 'o',
     .kind = AQ_OPTION_TEXT,
     .offset = offsetof(struct asked, output),
     .value = "FILE",
     .help = "there"},
    AQ_ROW_RANGE(U32, struct asked, count, "count", "N", 2, 9, "how many"),
    AQ_ROW_RANGE(U64, struct asked, mark, "mark", "N", 1, 1e18, "which"),
    AQ_ROW_RANGE(NUMBER, struct asked, rate, "rate", "R", 0.5, 2, "how fast"),
    AQ_ROW_RANGE(TIME, struct asked, wait_s, "wait", "TIME", 0.1, 7200, "how long"),
    AQ_ROW_READ(aq_size_read, struct asked, size, "size", "BYTES", "how large"),
    AQ_ROW(LIST, struct asked, sets, "set", "KEY=VALUE", "a key"),
    AQ_ROW_READ(even_read, struct asked, twice, "even", "N", "twice it"),
    AQ_ROW(FLAG, struct asked, json, "secret", NULL, NULL),
    {0}};

static const struct aq_command_line line = {"aqpipe try", "PATH...", "Tries it.", options, "Ends."};

static char said[8192]; /* on standard output and error */

static int run(struct asked *asked, struct aq_arguments *rest, const char *words)
{
    static char text[512];
    char *argv[32] = {"try"};
    int argc = 1, pipes[2], out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    *asked = (struct asked){.count = 7};
    assert_int_equal(pipe(pipes), 0);
    fflush(stdout);
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    const int code = aq_options_read(&line, argc, argv, asked, rest);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(pipes[1]);
    const ssize_t count = read(pipes[0], said, sizeof said - 1);
    said[count > 0 ? count : 0] = 0;
    close(pipes[0]);
    close(out);
    close(err);
    return code;
}

static void test_values_come_from_both_spellings(void **state)
{
    (void)state;
    struct asked asked;
    struct aq_arguments rest;
    assert_int_equal(run(&asked, &rest,
                         "a --json b -o x --count=3 --set k=1 --mark 12345678901 --rate .5 --set=l=2 --even 4 -- --c"),
                     AQ_OPTIONS_READ);
    assert_true(asked.json);
    assert_false(asked.quiet);
    assert_string_equal(asked.output, "x");
    assert_int_equal(asked.count, 3);
    assert_true(asked.mark == 12345678901);
    assert_true(asked.rate == 0.5);
    assert_int_equal(asked.twice, 8);
    assert_int_equal(asked.sets.count, 2);
    assert_string_equal(asked.sets.of[1], "l=2");
    assert_int_equal(rest.count, 3);
    assert_string_equal(rest.of[2], "--c");
    assert_int_equal(run(&asked, &rest, "--no --out y"), AQ_OPTIONS_READ); /* cut short, where that is clear */
    assert_true(asked.quiet);
    assert_string_equal(asked.output, "y");
    assert_int_equal(asked.count, 7);
}

static void test_what_is_wrong_is_said_with_what_was_meant(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--jsn", "aqpipe try: there is no option '--jsn'; did you mean '--json'? (see aqpipe try --help)\n"},
        {"--progress", "did you mean '--no-progress'?"},
        {"--helo", "did you mean '--help'?"},
        {"--zzzzzzzzz", "there is no option '--zzzzzzzzz' ("},
        {"--stat", "there is no option '--stat'; did you mean '--set'?"},
        {"-x a", "there is no option '-x'"},
        {"--json -x", "there is no option '-x'"},
        {"a --set", "--set needs a value: --set KEY=VALUE"},
        {"--json=3", "--json takes no value"},
        {"--count 1", "--count: '1' is not a whole number from 2 to 9"},
        {"--count 10", "--count: '10' is not a whole number from 2 to 9"},
        {"--count -3", "--count: '-3' is not a whole number from 2 to 9"},
        {"--count 3x", "--count: '3x' is not a whole number"},
        {"--count 99999999999999999999", "is not a whole number"},
        {"--mark 0", "--mark: '0' is not a whole number of 1 or more"},
        {"--rate nan", "--rate: 'nan' is not a number from 0.5 to 2"},
        {"--rate 3", "is not a number from 0.5 to 2"},
        {"--even 3", "--even: '3': an even number is wanted"},
    };
    struct asked asked;
    struct aq_arguments rest;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run(&asked, &rest, cases[i][0]), AQ_EXIT_USAGE);
        if (!strstr(said, cases[i][1])) fail_msg("%s: %s", cases[i][0], said);
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one line */
    }
}

static void test_help_is_the_table(void **state)
{
    (void)state;
    static const char *const words[] = {"Usage: aqpipe try [OPTION...] PATH...",
                                        "Tries it.",
                                        "Ends.",
                                        "  stat  ",
                                        "-o, --output=FILE",
                                        "--set=KEY=VALUE",
                                        "how fast",
                                        "--verbose"};
    struct asked asked;
    struct aq_arguments rest;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run(&asked, &rest,
                             i == 0   ? "--help"
                             : i == 1 ? "-h --nonsense"
                                      : "a --json --help"),
                         AQ_EXIT_DONE);
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (!strstr(said, words[w])) fail_msg("no '%s' in: %s", words[w], said);
        assert_null(strstr(said, "secret"));
    }
    assert_int_equal(run(&asked, &rest, "--usage"), AQ_EXIT_DONE);
    assert_non_null(strstr(said, "[--count=N]"));
    assert_null(strstr(said, "how fast"));
}

/* The help of a sub-command has its own options and usage; its options go with no other. */
static void test_sub_commands_have_help_and_options_of_their_own(void **state)
{
    (void)state;
    struct asked asked;
    struct aq_arguments rest;
    assert_int_equal(run(&asked, &rest, "make --help"), AQ_EXIT_DONE);
    assert_non_null(strstr(said, "Usage: aqpipe try make [OPTION...] FOLDER\n\nMakes it whole.\n"));
    assert_non_null(strstr(said, "--all "));
    assert_null(strstr(said, "Ends."));
    assert_int_equal(run(&asked, &rest, "--help"), AQ_EXIT_DONE);
    assert_non_null(strstr(said, "  make "));
    assert_null(strstr(said, "--all "));
    assert_int_equal(run(&asked, &rest, "make x --all"), AQ_OPTIONS_READ);
    assert_true(asked.all);
    assert_int_equal(run(&asked, &rest, "stat x --all"), AQ_EXIT_USAGE);
    assert_non_null(strstr(said, "--all is an option of make"));
}

static void test_times_and_sizes_have_units(void **state)
{
    static const struct {
        const char *words;
        double seconds;
    } times[] = {{"--wait 90", 90},   {"--wait=500ms", 0.5}, {"--wait 10min", 600}, {"--wait 2h", 7200},
                 {"--wait 1.5m", 90}, {"--wait 3h", -1},     {"--wait 10x", -1},    {"--wait ms", -1},
                 {"--wait -1", -1},   {"--wait 1ms", -1}};
    static const struct {
        const char *words;
        uint64_t bytes;
    } sizes[] = {{"--size 5000000000", 5000000000},
                 {"--size 512M", 512ull << 20},
                 {"--size 512MiB", 512ull << 20},
                 {"--size 5GB", 5000000000},
                 {"--size 2kB", 2000},
                 {"--size 7B", 7},
                 {"--size 16G", 16ull << 30},
                 {"--size 5Gb", 0},
                 {"--size 5iB", 0},
                 {"--size 99999999T", 0},
                 {"--size 0", 0},
                 {"--size -1", 0}};
    struct asked asked;
    struct aq_arguments rest;
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        const int code = run(&asked, &rest, times[i].words);
        if (code != (times[i].seconds < 0 ? AQ_EXIT_USAGE : AQ_OPTIONS_READ)) fail_msg("%s: %d", times[i].words, code);
        if (code == AQ_OPTIONS_READ && asked.wait_s != times[i].seconds)
            fail_msg("%s: %g", times[i].words, asked.wait_s);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int code = run(&asked, &rest, sizes[i].words);
        if (code != (sizes[i].bytes ? AQ_OPTIONS_READ : AQ_EXIT_USAGE)) fail_msg("%s: %d", sizes[i].words, code);
        if (sizes[i].bytes && asked.size != sizes[i].bytes) fail_msg("%s", sizes[i].words);
    }
}

/* Names of command_aliases.def are read as the options that they stand for. */
static void test_aliases_are_the_options_they_stand_for(void **state)
{
    (void)state;
    struct asked asked;
    struct aq_arguments rest;
    assert_int_equal(run(&asked, &rest, "a --quiet"), AQ_OPTIONS_READ);
    assert_true(asked.quiet);
    assert_int_equal(run(&asked, &rest, "-q a"), AQ_OPTIONS_READ);
    assert_true(asked.quiet);
    assert_int_equal(run(&asked, &rest, "a --quiet=1"), AQ_EXIT_USAGE);
    assert_non_null(strstr(said, "--no-progress takes no value"));
    assert_int_equal(run(&asked, &rest, "a --max-restarts 3"), AQ_EXIT_USAGE); /* no --restarts here */
    assert_int_equal(run(&asked, &rest, "--help"), AQ_EXIT_DONE);
    assert_null(strstr(said, "--quiet"));
    assert_int_equal(run(&asked, &rest, "--json --coun 3"), AQ_OPTIONS_READ);
    assert_true(aq_options_json());
    assert_int_equal(run(&asked, &rest, "--json --nonsense"), AQ_EXIT_USAGE);
    assert_true(aq_options_json());
    assert_string_equal(aq_options_said(), "there is no option '--nonsense'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_come_from_both_spellings),
        cmocka_unit_test(test_what_is_wrong_is_said_with_what_was_meant),
        cmocka_unit_test(test_help_is_the_table),
        cmocka_unit_test(test_sub_commands_have_help_and_options_of_their_own),
        cmocka_unit_test(test_times_and_sizes_have_units),
        cmocka_unit_test(test_aliases_are_the_options_they_stand_for),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
