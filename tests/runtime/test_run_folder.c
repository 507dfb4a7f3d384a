/*
 * test_run_folder.c -- the run folder and the metrics in it: whole files, torn lines, marks, and a disk that is full.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "control.h"
#include "metrics.h"
#include "nearest.h"
#include "remove_tree.h"
#include "report.h"
#include "run_folder.h"
#include "run_lines.h"
#include "run_rewind.h"

static char folder[64], last_line[2048];

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aqpipe-folder-XXXXXX");
    aq_log_sink(quiet, NULL);
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    const bool removed = remove_tree(folder) == 0;
    aq_log_sink(NULL, NULL);
    return removed && aq_memory_used() == 0 ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char paths[4][AQ_RUN_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];
    assert_int_equal(aq_run_path(folder, name, path), AQ_OK);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_written_file_is_whole(void **state)
{
    (void)state;
    char *text;
    size_t count;
    assert_int_equal(aq_file_load(NULL, in_folder("none"), 100, &text, &count), AQ_NOTFOUND);
    assert_int_equal(aq_file_replace(NULL, in_folder("a"), 0600, "first", 5), AQ_OK);
    assert_int_equal(aq_file_replace(NULL, in_folder("a"), 0600, "second", 6), AQ_OK);
    assert_int_equal(aq_file_load(NULL, in_folder("a"), 100, &text, &count), AQ_OK);
    assert_string_equal(text, "second");
    assert_int_equal(count, 6);
    aq_free(text);
    assert_int_equal(aq_file_load(NULL, in_folder("a"), 5, &text, &count), AQ_NOSPC);
    assert_int_not_equal(access(in_folder("a.new"), F_OK), 0);
    assert_int_equal(aq_file_load(NULL, folder, 100, &text, &count), AQ_REFUSED);
    assert_int_equal(aq_file_replace(NULL, in_folder("no/such/folder"), 0600, "x", 1), AQ_NOTFOUND);
}

static void test_folders_are_made(void **state)
{
    (void)state;
    assert_int_equal(aq_run_make_folder(in_folder("a/b/c")), AQ_OK);
    assert_int_equal(aq_run_make_folder(in_folder("a/b/c")), AQ_OK);
    put("a/b/file", "stays");
    assert_int_equal(aq_run_make_folder(in_folder("a/b/file")), AQ_INVAL);
}

static void test_marks_are_whole_or_refused(void **state)
{
    (void)state;
    struct aq_run_mark mark = {.step = 42,
                               .plan_hash = 0xfedcba9876543210ULL,
                               .metrics = 1ULL << 40,
                               .kept_count = 2,
                               .kept = {42, 40}},
                       got;
    assert_int_equal(aq_run_mark_read(folder, &got), AQ_NOTFOUND);
    assert_int_equal(aq_run_mark_write(folder, &mark), AQ_OK);
    assert_int_equal(aq_run_mark_read(folder, &got), AQ_OK);
    assert_true(got.step == 42 && got.plan_hash == mark.plan_hash && got.metrics == mark.metrics);
    assert_true(got.kept_count == 2 && got.kept[0] == 42 && got.kept[1] == 40);
    put("complete", "{\"step\":42,\"older\":36,\"plan_hash\":\"0000000000000001\"}"); /* from before the list */
    assert_int_equal(aq_run_mark_read(folder, &got), AQ_OK);
    assert_true(got.kept_count == 2 && got.kept[0] == 42 && got.kept[1] == 36);
    static const char *const bad[] = {"",
                                      "{}",
                                      "{\"step\":1}",
                                      "{\"step\":-1,\"plan_hash\":\"0000000000000000\"}",
                                      "[]",
                                      "{\"step\":1,\"plan_hash\":\"x\"}",
                                      "{\"step\":1,\"plan_hash\":\"0000000000000001\",\"kept\":[1,-1]}",
                                      "{\"step\":1,\"plan_hash\":\"0000000000000001\",\"kept\":7}",
                                      "{\"step\":1,\"plan_hash\":\"00000000"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put("complete", bad[i]);
        assert_int_equal(aq_run_mark_read(folder, &got), AQ_CORRUPT);
    }
    uint64_t steps[8];
    uint32_t count;
    static const char *const names[] = {"7", "100", "x7", "-3", "7x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(aq_run_make_folder(in_folder(names[i])), AQ_OK);
    assert_int_equal(aq_run_marks(folder, steps, 8, &count), AQ_OK);
    assert_int_equal(count, 2);
    assert_int_equal(steps[0] + steps[1], 107);
}

static void test_rewind_drops_what_comes_after_and_a_torn_line(void **state)
{
    (void)state;
    double seconds = 0;
    char *text;
    put("metrics.jsonl", "{\"event\":\"start\",\"time\":0}\n"
                         "{\"event\":\"step\",\"step\":1,\"time\":1.5}\n"
                         "{\"event\":\"eval\",\"step\":1,\"time\":2.5}\n"
                         "{\"event\":\"step\",\"step\":2,\"time\":3.5}\n"
                         "{\"event\":\"end\",\"time\":4}\n"
                         "{\"event\":\"step\",\"st");
    assert_int_equal(aq_run_rewind(in_folder("metrics.jsonl"), 1, 0, &seconds), AQ_OK);
    assert_true(seconds == 2.5);
    assert_int_equal(aq_file_load(NULL, in_folder("metrics.jsonl"), 10000, &text, NULL), AQ_OK);
    assert_non_null(strstr(text, "\"eval\""));
    assert_null(strstr(text, "\"end\""));
    assert_null(strstr(text, "\"step\":2"));
    assert_int_equal(text[strlen(text) - 1], '\n');
    aq_free(text);
    put("metrics.jsonl", "{\"event\":\"start\"}\nnonsense\n{\"event\":\"step\",\"step\":1}\n");
    assert_int_equal(aq_run_rewind(in_folder("metrics.jsonl"), 1, 0, &seconds), AQ_CORRUPT);
    assert_non_null(strstr(last_line, "metrics.jsonl:2"));
    /* A hole behind the step's own line is what a loss of power leaves: dropped with all that follows. */
    put("metrics.jsonl", "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n\1\2\3ep\":2}\n"
                         "{\"event\":\"step\",\"step\":3}\n");
    assert_int_equal(aq_run_rewind(in_folder("metrics.jsonl"), 1, 0, &seconds), AQ_OK);
    assert_int_equal(aq_file_load(NULL, in_folder("metrics.jsonl"), 10000, &text, NULL), AQ_OK);
    assert_string_equal(text, "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n");
    aq_free(text);
    put("metrics.jsonl", "{\"event\":\"start\"}\nnonsense\n{\"event\":\"step\",\"step\":1}\n");
    assert_int_equal(aq_run_rewind(in_folder("metrics.jsonl"), 3, 0, &seconds), AQ_CORRUPT);
    seconds = 0;
    assert_int_equal(aq_run_rewind(in_folder("absent.jsonl"), 1, 0, &seconds), AQ_OK);
    assert_true(seconds == 0);
}

static json_t *step_line(uint64_t step, double loss)
{
    return json_pack("{s:s, s:I, s:f, s:i, s:f}", "event", "step", "step", (json_int_t)step, "seconds", 0.5, "samples",
                     4, "loss", loss);
}

/* The disk is full in the middle of a line: the file ends with the last whole one, and goes on when there is room
 * again. A checkpoint from then on would lack that line: it cannot be complete, and nothing says so twice. */
static void test_metrics_of_a_full_disk_end_with_a_whole_line(void **state)
{
    (void)state;
    struct aq_metrics *metrics;
    const json_t *joined;
    const struct aq_metrics_config config = {.path = in_folder("metrics.jsonl"), .stages = 1};
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s}", "event", "start")), AQ_OK);
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(1, 2.0), &joined), AQ_OK);
    assert_non_null(joined);
    struct rlimit limit, before;
    struct stat info;
    assert_int_equal(stat(config.path, &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)info.st_size + 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(aq_metrics_sync(metrics), AQ_OK);
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(2, 1.9), &joined), AQ_NOSPC);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    last_line[0] = 0;
    assert_int_equal(aq_metrics_sync(metrics), AQ_NOSPC);
    assert_string_equal(last_line, "");
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(3, 1.8), &joined), AQ_OK);
    aq_metrics_close(metrics);
    json_t *report;
    assert_int_equal(aq_report_run(folder, &report), AQ_OK);
    assert_true(json_number_value(json_object_get(json_object_get(report, "train_loss"), "last")) == 1.8);
    assert_string_equal(json_string_value(json_object_get(report, "state")), "unfinished");
    json_decref(report);
}

/* Ranks report in any order within the window; what is twice, or too far ahead, is refused. */
static void test_metrics_join_ranks_in_order(void **state)
{
    (void)state;
    struct aq_metrics *metrics;
    const json_t *joined;
    const struct aq_metrics_config config = {.stages = 3, .step = 10};
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint64_t step = 11; step < 15; step++) {
            assert_int_equal(aq_metrics_step(metrics, rank, step_line(step, 1), &joined), AQ_OK);
            assert_null(joined);
        }
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(11, 1), &joined), AQ_PROTO);
    assert_int_equal(aq_metrics_step(metrics, 2, step_line(10, 1), &joined), AQ_PROTO);
    assert_int_equal(aq_metrics_step(metrics, 2, step_line(11 + AQ_METRICS_AHEAD, 1), &joined), AQ_PROTO);
    assert_int_equal(aq_metrics_step(metrics, 2, json_object(), &joined), AQ_PROTO);
    for (uint64_t step = 14; step > 11; step--) {
        assert_int_equal(aq_metrics_step(metrics, 2, step_line(step, 1), &joined), AQ_OK);
        assert_null(joined);
    }
    assert_int_equal(aq_metrics_step(metrics, 2, step_line(11, 1), &joined), AQ_OK);
    for (uint64_t step = 11; step < 15; step++) {
        assert_non_null(joined);
        assert_int_equal(json_integer_value(json_object_get(joined, "step")), step);
        assert_int_equal(json_array_size(json_object_get(joined, "stage_seconds")), 3);
        assert_true(json_number_value(json_object_get(joined, "sequences_per_second")) == 8);
        assert_int_equal(aq_metrics_step(metrics, 0, NULL, &joined), AQ_OK);
    }
    assert_null(joined);
    aq_metrics_close(metrics);
}

/* Of steps that a rank leaves out: null in its place, its share of the samples is missing; and where nobody trained. */
static void test_metrics_join_steps_that_ranks_leave_out(void **state)
{
    (void)state;
    struct aq_metrics *metrics;
    const json_t *joined;
    const struct aq_metrics_config config = {.stages = 2};
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    aq_metrics_without(metrics, 1, 1, 3);
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(1, 1), &joined), AQ_OK);
    assert_null(joined); /* the step before is waited for */
    assert_int_equal(aq_metrics_step(metrics, 1, step_line(1, 1), &joined), AQ_OK);
    assert_non_null(joined);
    const json_int_t all = json_integer_value(json_object_get(joined, "samples"));
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(2, 1), &joined), AQ_OK);
    assert_non_null(joined);
    assert_true(json_is_null(json_array_get(json_object_get(joined, "stage_seconds"), 1)));
    assert_int_equal(json_integer_value(json_object_get(joined, "samples")), all / 2);
    aq_metrics_without(metrics, 0, 0, UINT64_MAX); /* it is lost */
    assert_int_equal(aq_metrics_step(metrics, 0, NULL, &joined), AQ_OK);
    assert_non_null(joined);
    assert_int_equal(json_integer_value(json_object_get(joined, "step")), 3);
    assert_null(json_object_get(joined, "samples"));
    assert_int_equal(aq_metrics_step(metrics, 0, NULL, &joined), AQ_OK);
    assert_null(joined);
    assert_int_equal(aq_metrics_step(metrics, 1, step_line(4, 1), &joined), AQ_OK);
    assert_non_null(joined);
    assert_int_equal(json_integer_value(json_object_get(joined, "samples")), all / 2);
    aq_metrics_close(metrics);
}

/* One rank's lines come late, as far as a run may let them: nothing is lost, and the order is kept. */
static void test_metrics_wait_for_a_rank_that_is_far_behind(void **state)
{
    (void)state;
    enum { AHEAD = 5000 };
    struct aq_metrics *metrics;
    const json_t *joined;
    const struct aq_metrics_config config = {.stages = 2, .step = 3};
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    for (uint64_t step = 4; step < 4 + AHEAD; step++) {
        assert_int_equal(aq_metrics_step(metrics, 0, step_line(step, 1), &joined), AQ_OK);
        assert_null(joined);
    }
    for (uint64_t step = 4; step < 4 + AHEAD; step++) {
        assert_int_equal(aq_metrics_step(metrics, 1, step_line(step, 1), &joined), AQ_OK);
        assert_non_null(joined);
        assert_int_equal(json_integer_value(json_object_get(joined, "step")), step);
    }
    assert_int_equal(aq_metrics_step(metrics, 0, step_line(4 + AHEAD - 1 + AQ_METRICS_AHEAD, 1), &joined), AQ_OK);
    assert_null(joined);
    aq_metrics_close(metrics);
}

static void test_report_takes_any_json(void **state)
{
    (void)state;
    static const char *const files[] = {
        "{}\n",
        "{\"event\":\"start\"}\n{\"event\":\"step\"}\n{\"event\":\"eval\"}\n{\"event\":\"end\"}\n",
        "{\"event\":\"start\",\"name\":7,\"codec\":[],\"stages\":\"x\"}\n{\"event\":\"step\",\"seconds\":1,\"step\":-1,"
        "\"link_wait_"
        "ns\":{},"
        "\"forward_bytes\":[\"a\",null],\"epoch\":\"b\",\"loss\":[1]}\n",
        "{\"event\":\"start\",\"stages\":99999999}\n{\"event\":\"step\",\"link_wait_ns\":[1,2,3],\"seconds\":1e300}\n",
        "{\"event\":\"start\",\"stages\":1}\n{\"event\":\"step\",\"seconds\":1,\"epoch\":0,\"link_wait_ns\":[1e308],"
        "\"forward_"
        "bytes\":[1e308]}\n"
        "{\"event\":\"step\",\"seconds\":1,\"epoch\":9223372036854775807,\"link_wait_ns\":[-1e308],\"gradient_bytes\":["
        "-1e308]}\n"
        "{\"event\":\"end\",\"stages\":[{\"cache_bytes\":1e308,\"heals\":-1e300,\"sent_wire_bytes\":1e300}]}\n",
        "{\"event\":\"start\"}\n{\"event\":\"end\",\"stages\":[null,1,{\"cache_bytes\":\"x\"}],\"state\":5}\n",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put("metrics.jsonl", files[i]);
        json_t *report;
        const enum aq_status status = aq_report_run(folder, &report);
        assert_int_equal(status, i == 0 ? AQ_CORRUPT : AQ_OK);
        struct aq_text text = {0};
        FILE *curve = fopen(in_folder("curve.tsv"), "w");
        assert_non_null(curve);
        assert_int_equal(aq_report_tsv(folder, curve), AQ_OK);
        fclose(curve);
        if (status != AQ_OK) continue;
        json_t *runs = json_pack("[o]", report);
        aq_report_table(runs, 0, &text);
        assert_int_equal(text.status, AQ_OK);
        aq_text_deinit(&text);
        assert_int_equal(aq_report_write(runs, in_folder("report.json")), AQ_OK);
    }
}

static const char *nearest(const char *word)
{
    static const char *const names[] = {"launch", "plan", "logs", "token-file"};
    struct aq_nearest found = {.word = word};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        aq_nearest_try(&found, names[i]);
    return aq_nearest_of(&found);
}

static void test_mistyped_word_finds_the_nearest(void **state)
{
    (void)state;
    assert_string_equal(nearest("lunch"), "launch");
    assert_string_equal(nearest("plna"), "plan");
    assert_string_equal(nearest("tokenfile"), "token-file");
    assert_null(nearest("worker"));
    assert_null(nearest("something"));
    assert_null(nearest("x"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_written_file_is_whole),
        TEST(test_folders_are_made),
        TEST(test_marks_are_whole_or_refused),
        TEST(test_rewind_drops_what_comes_after_and_a_torn_line),
        TEST(test_metrics_of_a_full_disk_end_with_a_whole_line),
        TEST(test_metrics_join_ranks_in_order),
        TEST(test_metrics_join_steps_that_ranks_leave_out),
        TEST(test_metrics_wait_for_a_rank_that_is_far_behind),
        TEST(test_report_takes_any_json),
        TEST(test_mistyped_word_finds_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
