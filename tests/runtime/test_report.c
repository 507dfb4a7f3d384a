/*
 * test_report.c -- reports of several runs: what tells them apart, figures that are none, totals, and that tables fit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "control.h"
#include "report.h"
#include "table.h"

static char folder[64];

/* A run of two stages and two replicas on two machines: 2 steps, each rank sends 1,000 bytes a step and more. */
static void make_run(const char *name, const char *optimizer, const char *reduce, const char *end)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"event\":\"start\",\"name\":\"job\",\"codec\":\"AQ-SGD fw4 "
            "bw8\",\"stages\":2,\"replicas\":2,\"time\":0%s%s%s%s%s}\n",
            *optimizer ? ",\"optimizer\":\"" : "", optimizer, *optimizer ? "\",\"reduce\":\"" : "", reduce,
            *optimizer ? "\",\"machines\":[0,0,1,1],\"checkpoint_planned\":[100,100,100,100]" : "");
    for (int step = 1; step <= 2; step++)
        fprintf(
            file,
            "{\"event\":\"step\",\"step\":%d,\"epoch\":0,\"time\":%d,\"seconds\":1800,\"samples\":8,"
            "\"stage_seconds\":[1800,1800,1800,1800],\"link_wait_ns\":[0,0,0,0],\"compute_ns\":[9e11,9e11,9e11,9e11],"
            "\"forward_bytes\":[1000,0,1000,0],\"backward_bytes\":[0,500,0,500],\"gradient_bytes\":[200,200,400,400],"
            "\"gradient_packed\":[0.5,0.5,0.5,0.5]}\n",
            step, step * 3600);
    fputs(end, file);
    fclose(file);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aq-report-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    static const char *const names[] = {"first", "second", "sub/first", "sub"};
    char path[160];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, names[i]);
        (void)unlink(path);
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)rmdir(path);
    }
    return rmdir(folder) == 0 && aq_memory_used() == 0 ? 0 : -1;
}

static json_t *report_of(const char *name)
{
    json_t *report;
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(aq_report_run(path, &report), AQ_OK);
    return report;
}

static const char END[] = "{\"event\":\"end\",\"state\":\"done\",\"time\":7300,\"stages\":[{\"cache_file_bytes\":4000},"
                          "{\"cache_file_bytes\":5000},{\"cache_file_bytes\":6000},null]}\n";

static void test_runs_of_one_job_are_told_apart(void **state)
{
    (void)state;
    make_run("first", "adamw", "q4", END);
    make_run("second", "lioncub", "vote", "");
    json_t *runs = json_pack("[o, o]", report_of("first"), report_of("second"));
    const json_t *first = json_array_get(runs, 0), *second = json_array_get(runs, 1);
    assert_true(aq_control_is(first, "run", "first") && aq_control_is(second, "run", "second"));
    assert_true(aq_control_is(first, "optimizer", "adamw") && aq_control_is(first, "reduce", "q4"));
    assert_int_equal(aq_control_u64_or(second, "stages", 0), 2);
    assert_int_equal(aq_control_u64_or(second, "replicas", 0), 2);
    struct aq_text text = {0};
    aq_report_table(runs, 0, &text);
    assert_non_null(strstr(aq_text_of(&text), "\nfirst                AQ-SGD fw4 bw8  adamw      q4       2 x 2 "));
    assert_non_null(strstr(aq_text_of(&text), "\nsecond (unfinished)  AQ-SGD fw4 bw8  lioncub    vote     2 x 2 "));
    aq_text_deinit(&text);
    json_decref(runs);
}

static void test_folders_of_one_name_are_shown_with_their_path(void **state)
{
    char path[160];
    (void)state;
    snprintf(path, sizeof path, "%s/sub", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    make_run("first", "adamw", "q4", END);
    make_run("sub/first", "adamw", "q4", END);
    json_t *runs = json_pack("[o, o]", report_of("first"), report_of("sub/first"));
    struct aq_text text = {0};
    aq_report_table(runs, 0, &text);
    snprintf(path, sizeof path, "\n%s/first ", folder);
    assert_non_null(strstr(aq_text_of(&text), path));
    assert_non_null(strstr(aq_text_of(&text), "/sub/first "));
    aq_text_deinit(&text);
    json_decref(runs);
}

/* Each machine: what its two ranks sent in both steps as links carried it; caches and checkpoints on its disk. */
static void test_totals_are_of_machines(void **state)
{
    (void)state;
    make_run("first", "adamw", "q4", END);
    json_t *report = report_of("first");
    const json_t *machines = json_object_get(report, "machines");
    assert_int_equal(json_array_size(machines), 2);
    assert_int_equal(aq_control_u64_or(json_array_get(machines, 0), "sent_bytes", 0), 2 * (1000 + 500 + 100 + 100));
    assert_int_equal(aq_control_u64_or(json_array_get(machines, 1), "sent_bytes", 0), 2 * (1000 + 500 + 200 + 200));
    assert_int_equal(aq_control_u64_or(json_array_get(machines, 0), "disk_bytes", 0), 4000 + 5000 + 200);
    assert_int_equal(aq_control_u64_or(json_array_get(machines, 1), "disk_bytes", 0), 6000 + 200);
    assert_true(fabs(aq_control_number_or(report, "seconds", 0) - 7300) < 1e-6);
    assert_true(fabs(aq_control_number_or(report, "compute_seconds", 0) - 8 * 900) < 1e-6);
    json_decref(report);
}

/* A figure that does not exist: "-" in the table, left out of one run's list, null in JSON. */
static void test_figures_that_are_none(void **state)
{
    (void)state;
    make_run("first", "", "", "");
    json_t *report = report_of("first"), *runs = json_pack("[O]", report);
    assert_true(json_is_null(json_object_get(report, "machines")));
    assert_true(json_is_null(json_object_get(report, "optimizer")));
    assert_true(json_is_null(json_object_get(json_object_get(report, "train_loss"), "last")));
    struct aq_text text = {0};
    aq_report_table(runs, 0, &text);
    assert_null(strstr(aq_text_of(&text), "nan"));
    assert_null(strstr(aq_text_of(&text), " -\n"));
    assert_null(strstr(aq_text_of(&text), "optimizer"));
    assert_non_null(strstr(aq_text_of(&text), "\nstages x replicas                2 x 2\n"));
    aq_text_deinit(&text);
    json_decref(runs);
    runs = json_pack("[O, O]", report, report);
    aq_report_table(runs, 0, &text);
    assert_null(strstr(aq_text_of(&text), "nan"));
    assert_non_null(strstr(aq_text_of(&text), " -  "));
    aq_text_deinit(&text);
    json_decref(runs);
    json_decref(report);
}

/* At any width every line fits, and every cell is there. */
static void test_tables_fit(void **state)
{
    static const unsigned widths[] = {40, 60, 80, 120, 1000};
    (void)state;
    make_run("first", "adamw", "q4", END);
    make_run("second", "onebit_adam", "sign", END);
    json_t *runs = json_pack("[o, o]", report_of("first"), report_of("second"));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        struct aq_text text = {0};
        aq_report_table(runs, widths[i], &text);
        static const char *const cells[] = {"onebit_adam", "AQ-SGD fw4 bw8", "2 x 2", "2.03 h", "2.00 h", "healed"};
        for (size_t c = 0; c < sizeof cells / sizeof *cells; c++)
            if (!strstr(aq_text_of(&text), cells[c])) fail_msg("%u: no %s in\n%s", widths[i], cells[c], text.bytes);
        for (char *line = strtok(text.bytes, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > widths[i]) fail_msg("%zu columns of %u: %s", strlen(line), widths[i], line);
        aq_text_deinit(&text);
    }
    json_decref(runs);
}

/* Words to the left, figures to the right; what is too wide for any block is cut, and says so. */
static void test_a_table_goes_on_below(void **state)
{
    (void)state;
    struct aq_text text = {0};
    struct aq_table table = {.columns = 4, .left = 1 | 8, .keys = 1};
    static const char *const cells[] = {"name",         "a",     "b", "where", "one", "1000", "2",
                                        "this machine", "three", "4", "5",     "x"};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        aq_table_cell(&table, "%s", cells[i]);
    aq_table_print(&table, 0, &text);
    assert_string_equal(aq_text_of(&text), "name      a  b  where\none    1000  2  this machine\nthree     4  5  x\n");
    aq_text_deinit(&text);
    aq_table_print(&table, 16, &text);
    assert_string_equal(aq_text_of(&text), "name      a  b\none    1000  2\nthree     4  5\n\n"
                                           "name   where\none    this m~\nthree  x\n");
    aq_text_deinit(&text);
    aq_table_deinit(&table);
}

static void test_prose_is_folded_at_blanks(void **state)
{
    (void)state;
    struct aq_text text = {0};
    aq_text_fold(&text, "one two three four five\nshort\na-word-that-is-longer-than-a-line and more\n", 14);
    assert_string_equal(aq_text_of(&text),
                        "one two three\n    four five\nshort\na-word-that-is-longer-than-a-line\n    and more\n");
    aq_text_deinit(&text);
    aq_text_fold(&text, "one two three four five", 0);
    assert_string_equal(aq_text_of(&text), "one two three four five");
    aq_text_deinit(&text);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_runs_of_one_job_are_told_apart),
        TEST(test_folders_of_one_name_are_shown_with_their_path),
        TEST(test_totals_are_of_machines),
        TEST(test_figures_that_are_none),
        TEST(test_tables_fit),
        TEST(test_a_table_goes_on_below),
        TEST(test_prose_is_folded_at_blanks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
