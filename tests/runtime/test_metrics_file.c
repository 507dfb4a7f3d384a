/*
 * test_metrics_file.c -- metrics.jsonl of any size: it goes back to a checkpoint by its tail alone, and the report
 * reads only what the index does not know.
 *
 * `test_metrics_file measure FOLDER RANKS MIB` makes a file of that size there, as a launcher writes it (a step's line
 * of that many ranks, a checkpoint every thousand steps), and says how long report, status and going back take, with
 * the index and the checkpoint's bytes and without (docs/RELIABILITY.md has the figures).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "control.h"
#include "metrics.h"
#include "metrics_index.h"
#include "remove_tree.h"
#include "report.h"
#include "run_folder.h"
#include "run_lines.h"
#include "run_rewind.h"

static char folder[256], path[300], last_line[2048];

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/aqpipe-metrics-XXXXXX");
    aq_log_sink(quiet, NULL);
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    const bool removed = remove_tree(folder) == 0;
    aq_log_sink(NULL, NULL);
    return removed && aq_memory_used() == 0 ? 0 : -1;
}

static void put_at(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_file(const char *wanted)
{
    char *text;
    assert_int_equal(aq_file_load(NULL, path, 1 << 20, &text, NULL), AQ_OK);
    assert_string_equal(text, wanted);
    aq_free(text);
}

static const char *beside(const char *suffix)
{
    static char names[2][320];
    static int next;
    char *name = names[next++ % 2];
    snprintf(name, sizeof names[0], "%s%s", path, suffix);
    return name;
}

/* ---- a run's lines ---- */

/* A rank's line of a step, with the keys that a worker sends. */
static json_t *rank_line(uint64_t step, uint32_t rank, uint32_t ranks)
{
    static const char *const keys[] = {"compute_ns",   "codec_ns",      "link_wait_ns",   "cache_wait_ns",
                                       "optimizer_ns", "forward_bytes", "backward_bytes", "keyframes",
                                       "raws",         "fetched",       "wait_ns",        "heals",
                                       "outage_ns",    "packing_ns",    "mark_ns",        "mark_wait_ns"};
    json_t *line = json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:i}", "event", "step", "step", (json_int_t)step, "epoch",
                             (json_int_t)((step - 1) / 1000), "seconds", 0.1 + (double)(step % 7) / 70, "lr", 1e-4,
                             "grad_norm", 1.0 / (double)step, "samples", 64);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set_new(line, keys[i], json_integer((json_int_t)(step * (i + 3) * (rank + 1) % 100000007)));
    json_object_set_new(line, "forward_packed", json_real(1 / (1.0 + (double)(step % 3))));
    json_object_set_new(line, "delta_ratio", json_real(0.1 / (double)(rank + 1)));
    if (rank + 1 == ranks) json_object_set_new(line, "loss", json_real(4 + 1.0 / (double)step));
    return line;
}

/* Steps first .. last by as many ranks, an evaluation every 50. */
static void train(struct aq_metrics *metrics, uint64_t first, uint64_t last, uint32_t ranks)
{
    const json_t *joined;
    for (uint64_t step = first; step <= last; step++) {
        for (uint32_t rank = 0; rank < ranks; rank++)
            assert_int_equal(aq_metrics_step(metrics, rank, rank_line(step, rank, ranks), &joined), AQ_OK);
        assert_non_null(joined);
        if (step % 50 == 0)
            assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:I, s:f}", "event", "eval", "step",
                                                                (json_int_t)step, "loss", 3.0 + 1.0 / (double)step)),
                             AQ_OK);
    }
}

static struct aq_metrics *begin(uint64_t step, double seconds, uint32_t ranks, uint64_t index_every)
{
    struct aq_metrics *metrics;
    const struct aq_metrics_config config = {
        .path = path, .stages = ranks, .step = step, .seconds = seconds, .mark_every = 100, .index_every = index_every};
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:s, s:i, s:I}", "event", "start", "name", "test",
                                                        "stages", (int)ranks, "resumed", (json_int_t)step)),
                     AQ_OK);
    aq_metrics_go(metrics);
    return metrics;
}

static char *report_text(void)
{
    json_t *report;
    assert_int_equal(aq_report_run(folder, &report), AQ_OK);
    char *text = json_dumps(report, JSON_INDENT(1));
    json_decref(report);
    return text;
}

/* The report with the index is, to the last digit, the report without; the index stands for at least `bytes`. */
static void assert_same_report(uint64_t bytes)
{
    struct aq_report_sums sums;
    uint64_t offset;
    aq_metrics_index_load(path, &sums, &offset);
    aq_report_sums_deinit(&sums);
    assert_true(offset >= bytes);
    char *indexed = report_text();
    assert_int_equal(rename(beside(".index"), beside(".aside")), 0);
    char *whole = report_text();
    assert_int_equal(rename(beside(".aside"), beside(".index")), 0);
    assert_string_equal(indexed, whole);
    (free)(indexed);
    (free)(whole);
}

static uint64_t size_of(const char *name)
{
    struct stat info;
    assert_int_equal(stat(name, &info), 0);
    return (uint64_t)info.st_size;
}

/* The last stage evaluates before the first one's line of that step has come, as on a busy machine: it is written
 * behind that line, and a checkpoint of the step before has nothing of it. */
static void test_evaluation_waits_for_its_step(void **state)
{
    (void)state;
    struct aq_metrics *metrics = begin(0, 0, 2, 0);
    const json_t *joined;
    train(metrics, 1, 100, 2);
    assert_int_equal(aq_metrics_step(metrics, 1, rank_line(101, 1, 2), &joined), AQ_OK);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:I}", "event", "eval", "step", (json_int_t)101)),
                     AQ_OK);
    const uint64_t bytes = aq_metrics_bytes_after(metrics, 100);
    assert_int_equal(aq_metrics_step(metrics, 0, rank_line(101, 0, 2), &joined), AQ_OK);
    assert_non_null(joined);
    assert_int_equal(aq_metrics_bytes_after(metrics, 100), bytes);
    aq_metrics_close(metrics);
    char *text;
    assert_int_equal(aq_file_load(NULL, path, 1 << 20, &text, NULL), AQ_OK);
    const char *step = strstr(text, "\"event\":\"step\",\"step\":101"),
               *eval = strstr(text, "\"event\":\"eval\",\"step\":101");
    assert_non_null(step);
    assert_true(eval > step);
    aq_free(text);
    double seconds;
    assert_int_equal(aq_run_rewind(path, 100, bytes, &seconds), AQ_OK);
}

/* ---- going back ---- */

#define START "{\"event\":\"start\",\"time\":0}\n"
#define STEP1 "{\"event\":\"step\",\"step\":1,\"time\":1.5}\n"
#define EVAL1 "{\"event\":\"eval\",\"step\":1,\"time\":1.75}\n"
#define STEP2 "{\"event\":\"step\",\"step\":2,\"time\":3.5}\n"
#define AGAIN "{\"event\":\"restart\",\"step\":1,\"restarts\":1,\"cause\":\"x\",\"time\":9}\n"
#define STEP3 "{\"event\":\"step\",\"step\":3,\"time\":4}\n"
#define END   "{\"event\":\"end\",\"time\":5}\n"

static void test_tail_alone_is_read_and_restarts_stay(void **state)
{
    (void)state;
    double seconds = 0;
    /* What stands before the step's line is not looked at: it may be gigabytes. */
    put_at(path, "anything\n" STEP1 STEP2 AGAIN STEP3 END "{\"event\":\"st");
    assert_int_equal(aq_run_rewind(path, 1, sizeof "anything\n" STEP1 - 1, &seconds), AQ_OK);
    assert_file("anything\n" STEP1 AGAIN);
    assert_true(seconds == 1.5);
    /* Again, from there: nothing is lost. */
    assert_int_equal(aq_run_rewind(path, 1, sizeof "anything\n" STEP1 - 1, &seconds), AQ_OK);
    assert_file("anything\n" STEP1 AGAIN);
    assert_int_not_equal(access(beside(".tail"), F_OK), 0);
}

/* The step's evaluation may come after the bytes that its checkpoint knows; a hole there is what a loss of power
 * leaves. */
static void test_tail_keeps_what_is_not_later_and_drops_holes(void **state)
{
    (void)state;
    double seconds = 0;
    put_at(path, START STEP1 EVAL1 "\1\2\3ep\":2}\n" AGAIN STEP3);
    assert_int_equal(aq_run_rewind(path, 1, sizeof START STEP1 - 1, &seconds), AQ_OK);
    assert_file(START STEP1 EVAL1 AGAIN);
    assert_true(seconds == 1.75);
    put_at(path, START STEP1);
    assert_int_equal(aq_run_rewind(path, 1, sizeof START STEP1 - 1, &seconds), AQ_OK);
    assert_file(START STEP1);
}

static void test_file_that_is_not_the_checkpoints_is_refused_and_left(void **state)
{
    (void)state;
    double seconds = 7;
    put_at(path, START STEP1 STEP2);
    static const uint64_t wrong[] = {sizeof START STEP1 STEP2, sizeof START STEP1 - 2, 1, UINT64_MAX - 1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(aq_run_rewind(path, 1, wrong[i], &seconds), AQ_CORRUPT);
        assert_non_null(strstr(last_line, "is not the file of the checkpoint of step 1"));
        assert_non_null(strstr(last_line, "move this one away"));
    }
    assert_int_equal(aq_run_rewind(path, 1, sizeof START STEP1 STEP2 - 1, &seconds), AQ_CORRUPT);
    assert_non_null(strstr(last_line, "of a later step"));
    put_at(path, START "nonsense\n" STEP2);
    assert_int_equal(aq_run_rewind(path, 1, sizeof START "nonsense\n" - 1, &seconds), AQ_CORRUPT);
    assert_file(START "nonsense\n" STEP2);
    assert_true(seconds == 7);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(aq_run_rewind(path, 1, 100, &seconds), AQ_OK); /* moved away */
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_not_equal(aq_run_rewind(path, 1, 100, &seconds), AQ_OK);
    assert_int_not_equal(aq_run_rewind(path, 1, 0, &seconds), AQ_OK);
}

/* Killed between the cut and the writing of what stays: it was put aside before, and is written now. */
static void test_cut_that_was_killed_is_finished(void **state)
{
    (void)state;
    double seconds = 0;
    char aside[200];
    snprintf(aside, sizeof aside, "%zu\n" AGAIN, sizeof START STEP1 - 1);
    static const char *const left[] = {START STEP1, START STEP1 "{\"event\":\"rest", START STEP1 STEP2 STEP3 AGAIN};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        put_at(path, left[i]);
        put_at(beside(".tail"), aside);
        assert_int_equal(aq_run_rewind(path, 1, sizeof START STEP1 - 1, &seconds), AQ_OK);
        assert_file(START STEP1 AGAIN);
        assert_int_not_equal(access(beside(".tail"), F_OK), 0);
    }
    static const char *const damaged[] = {"", "x\n" AGAIN, "99999\n" AGAIN, "12", "-1\n"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put_at(beside(".tail"), damaged[i]);
        assert_int_equal(aq_run_rewind(path, 1, sizeof START STEP1 - 1, &seconds), AQ_CORRUPT);
        assert_non_null(strstr(last_line, ".tail"));
        assert_file(START STEP1 AGAIN);
    }
}

/* Ranks train on while a checkpoint is being written: its bytes are those of its own step. */
static void test_metrics_know_where_a_step_ended(void **state)
{
    (void)state;
    double seconds;
    struct aq_metrics *metrics = begin(0, 0, 2, 0);
    assert_int_equal(aq_metrics_bytes_after(metrics, 100), 0);
    train(metrics, 1, 100, 2);
    const uint64_t at_100 = aq_metrics_bytes_after(metrics, 100);
    assert_int_equal(at_100, size_of(path));
    train(metrics, 101, 250, 2);
    assert_int_equal(aq_metrics_bytes_after(metrics, 100), at_100);
    assert_int_equal(aq_metrics_bytes_after(metrics, 250), size_of(path));
    assert_int_equal(aq_metrics_bytes_after(metrics, 150), 0);
    assert_int_equal(aq_metrics_bytes_after(metrics, 300), 0);
    const uint64_t at_200 = aq_metrics_bytes_after(metrics, 200);
    assert_true(at_200 > at_100);
    aq_metrics_close(metrics);
    assert_int_equal(aq_run_rewind(path, 200, at_200, &seconds), AQ_OK);
    assert_int_equal(size_of(path), at_200); /* the evaluation after step 200 included */
}

/* A checkpoint after a time may come at any step: the ends of the last 65,536 steps are known. */
static void test_metrics_know_where_any_step_ended_if_timed(void **state)
{
    (void)state;
    enum { MARKED = 50, LAST = MARKED + AQ_METRICS_AHEAD };
    struct aq_metrics *metrics;
    const json_t *joined;
    const struct aq_metrics_config config = {.path = path, .stages = 1, .step = 40, .mark_timed = true};
    uint64_t at[3] = {0};
    double seconds;
    put_at(path, "{\"event\":\"start\"}\n");
    assert_int_equal(aq_metrics_open(&config, &metrics), AQ_OK);
    assert_int_equal(aq_metrics_bytes_after(metrics, 39), 0); /* before this start */
    assert_int_equal(aq_metrics_bytes_after(metrics, 40), size_of(path));
    for (uint64_t step = 41; step <= LAST + 1; step++) {
        json_t *line = json_pack("{s:I}", "step", (json_int_t)step);
        assert_int_equal(aq_metrics_step(metrics, 0, line, &joined), AQ_OK);
        if (step >= MARKED && step < MARKED + 3) at[step - MARKED] = (uint64_t)size_of(path);
        if (step == MARKED + 2) {
            assert_int_equal(aq_metrics_bytes_after(metrics, MARKED + 1), at[1]);
            assert_int_equal(aq_metrics_bytes_after(metrics, MARKED + 3), 0); /* not made yet */
        }
        if (step == LAST) assert_int_equal(aq_metrics_bytes_after(metrics, MARKED), at[0]);
    }
    assert_int_equal(aq_metrics_bytes_after(metrics, MARKED), 0); /* another step's has its place */
    assert_int_equal(aq_metrics_bytes_after(metrics, MARKED + 1), at[1]);
    aq_metrics_close(metrics);
    assert_int_equal(aq_run_rewind(path, MARKED + 1, at[1], &seconds), AQ_OK);
    assert_int_equal(size_of(path), at[1]);
}

/* ---- the index ---- */

static void test_report_with_the_index_is_the_report_without(void **state)
{
    (void)state;
    double seconds;
    enum { EVERY = 20000 };
    struct aq_metrics *metrics = begin(0, 0, 3, EVERY);
    train(metrics, 1, 1150, 3);
    const uint64_t bytes = aq_metrics_bytes_after(metrics, 1100);
    assert_same_report(size_of(path) - 2 * EVERY);
    aq_metrics_close(metrics);
    assert_same_report(size_of(path) - 2 * EVERY);
    /* Back to a checkpoint and on: as if nothing had been. */
    assert_int_equal(aq_run_rewind(path, 1100, bytes, &seconds), AQ_OK);
    assert_same_report(bytes - 2 * EVERY);
    metrics = begin(1100, seconds, 3, EVERY);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:i}", "event", "restart", "step", 1100)), AQ_OK);
    train(metrics, 1101, 1400, 3);
    assert_int_equal(aq_metrics_line(metrics, json_pack("{s:s, s:s}", "event", "end", "state", "done")), AQ_OK);
    aq_metrics_close(metrics);
    assert_same_report(size_of(path) - 2 * EVERY);
    /* A run from before the index gets one when it goes on. */
    assert_int_equal(unlink(beside(".index")), 0);
    assert_int_equal(aq_run_rewind(path, 1400, 0, &seconds), AQ_OK);
    metrics = begin(1400, seconds, 3, EVERY);
    train(metrics, 1401, 1410, 3);
    aq_metrics_close(metrics);
    assert_same_report(size_of(path) - 2 * EVERY);
}

/* Whatever the index says: an entry that does not fit is passed over. */
static void test_index_that_does_not_fit_is_passed_over(void **state)
{
    (void)state;
    enum { EVERY = 5000 };
    struct aq_metrics *metrics = begin(0, 0, 2, EVERY);
    train(metrics, 1, 300, 2);
    aq_metrics_close(metrics);
    char *text, *damaged;
    size_t count;
    assert_int_equal(aq_file_load(NULL, beside(".index"), 1 << 24, &text, &count), AQ_OK);
    assert_true(count > 20 * 1000);
    const struct aq_rng_key key = aq_rng_key(72, AQ_RNG_INIT, 1, 0);
    uint64_t drawn = 0;
    for (int trial = 0; trial < 60; trial++) {
        void *memory;
        assert_int_equal(aq_alloc(count + 1, &memory), AQ_OK);
        damaged = memory;
        memcpy(damaged, text, count);
        for (int i = 0; i < 40; i++) /* most of the last entries are hit */
        {
            const size_t back = aq_rng_below(&key, drawn++, count / 4);
            damaged[count - 1 - back] ^= (char)(1 + aq_rng_below(&key, drawn++, 255));
        }
        const size_t kept = trial % 3 ? count : aq_rng_below(&key, drawn++, count);
        assert_int_equal(aq_file_replace(NULL, beside(".index"), 0600, damaged, kept), AQ_OK);
        aq_free(damaged);
        assert_same_report(0);
    }
    /* Another run's index, whole in itself. */
    assert_int_equal(aq_file_replace(NULL, beside(".index"), 0600, text, count), AQ_OK);
    aq_free(text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(beside(".index"), beside(".aside")), 0);
    metrics = begin(0, 5, 2, EVERY);
    train(metrics, 1, 300, 2);
    aq_metrics_close(metrics);
    assert_int_equal(rename(beside(".aside"), beside(".index")), 0);
    struct aq_report_sums sums;
    uint64_t offset;
    aq_metrics_index_load(path, &sums, &offset);
    aq_report_sums_deinit(&sums);
    assert_int_equal(offset, 0);
    assert_same_report(0);
}

/* ---- memory ---- */

static enum aq_status watch(const json_t *line, void *context)
{
    size_t *most = context;
    (void)line;
    if (aq_memory_used() > *most) *most = aq_memory_used();
    return AQ_OK;
}

static void test_reading_takes_memory_for_a_line(void **state)
{
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 4000; i++)
        fprintf(file, "{\"event\":\"step\",\"step\":%d,\"pad\":\"%01000d\"}\n", i + 1, i);
    fprintf(file, "{\"pad\":\"%0600000d\"}\n{\"event\":\"end\"}\n", 1); /* longer than the buffer was */
    fclose(file);
    size_t most = 0;
    uint64_t begin_at, end;
    char *text;
    size_t count;
    assert_int_equal(aq_run_lines(path, watch, &most), AQ_OK);
    assert_in_range(most, 1, 2 << 20);
    assert_int_equal(aq_run_line_before(path, UINT64_MAX, &text, &count, &end), AQ_OK);
    assert_string_equal(text, "{\"event\":\"end\"}");
    aq_free(text);
    assert_int_equal(aq_run_line_before(path, end, &text, &count, &begin_at), AQ_OK);
    assert_int_equal(count, 600000 + 10);
    assert_int_equal(begin_at + count + 1, end);
    aq_free(text);
    assert_int_equal(aq_run_line_before(path, 0, &text, &count, &end), AQ_NOTFOUND);
}

/* ---- measuring ---- */

static double timed(const char *what, uint64_t since)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const double seconds = (double)(aq_clock_ns() - since) * 1e-9;
    printf("%-52s %8.3f s  (peak memory so far %ld MiB)\n", what, seconds, usage.ru_maxrss >> 10);
    fflush(stdout);
    return seconds;
}

static void look(const char *what)
{
    json_t *report;
    const uint64_t since = aq_clock_ns();
    if (aq_report_run(folder, &report) == AQ_OK) json_decref(report);
    timed(what, since);
}

static int measure(const char *where, uint32_t ranks, uint64_t mib)
{
    double seconds;
    uint64_t step = 0, since = aq_clock_ns();
    snprintf(folder, sizeof folder, "%s", where);
    snprintf(path, sizeof path, "%s/metrics.jsonl", where);
    (void)unlink(path);
    aq_metrics_index_cut(path, 0);
    struct aq_metrics *metrics = begin(0, 0, ranks, 0);
    while (step % 1000 || size_of(path) < mib << 20) {
        train(metrics, step + 1, step + 100, ranks);
        step += 100;
    }
    const uint64_t mark = step, bytes = aq_metrics_bytes_after(metrics, mark);
    train(metrics, step + 1, step + 900, ranks);
    aq_metrics_close(metrics);
    printf("%llu steps of %u ranks, %.0f MiB, index %.1f MiB\n", (unsigned long long)step + 900, ranks,
           (double)size_of(path) / (1 << 20), (double)size_of(beside(".index")) / (1 << 20));
    timed("writing it", since);
    look("report, with the index");
    since = aq_clock_ns();
    if (aq_run_rewind(path, mark, bytes, &seconds) != AQ_OK) return 1;
    timed("back to the checkpoint, its bytes known", since);
    since = aq_clock_ns();
    aq_metrics_close(begin(mark, seconds, ranks, 0));
    timed("opening it to go on", since);
    if (mib > 4096) return 0; /* what follows reads all of it */
    if (rename(beside(".index"), beside(".aside")) != 0) return 1;
    look("report, without the index");
    since = aq_clock_ns();
    if (aq_run_rewind(path, mark, 0, &seconds) != AQ_OK) return 1;
    timed("back to the checkpoint, its bytes not known", since);
    (void)unlink(beside(".aside"));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "measure") == 0)
        return measure(argv[2], (uint32_t)strtoul(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_evaluation_waits_for_its_step),
        TEST(test_tail_alone_is_read_and_restarts_stay),
        TEST(test_tail_keeps_what_is_not_later_and_drops_holes),
        TEST(test_file_that_is_not_the_checkpoints_is_refused_and_left),
        TEST(test_cut_that_was_killed_is_finished),
        TEST(test_metrics_know_where_a_step_ended),
        TEST(test_metrics_know_where_any_step_ended_if_timed),
        TEST(test_report_with_the_index_is_the_report_without),
        TEST(test_index_that_does_not_fit_is_passed_over),
        TEST(test_reading_takes_memory_for_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
