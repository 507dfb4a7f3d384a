/*
 * test_progress.c -- the line that a person sees while a job runs: what it says, and that it fits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "progress.h"
#include "runtime_text.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;

static struct aq_progress running(void)
{
    return (struct aq_progress){.steps = 20000,
                                .step = 12345,
                                .rate = 2,
                                .loss = 3.1234,
                                .metric = "ppl",
                                .heldout = 31.123,
                                .sequences = 12.34,
                                .link_wait = 0.43};
}

static const char *line_of(const struct aq_progress *progress, uint64_t now_ns, unsigned columns)
{
    static char line[AQ_PROGRESS_LINE_BYTES];
    aq_progress_line(progress, now_ns, columns, line);
    if (columns) assert_true(strlen(line) <= columns);
    return line;
}

static void test_line_keeps_the_time_left_at_any_width(void **state)
{
    (void)state;
    const struct aq_progress progress = running();
    assert_string_equal(line_of(&progress, 0, 0),
                        "############........   62%  step 12345/20000  loss 3.1234  held-out ppl 31.123  12.34 seq/s  "
                        "wait for links 43%  left 1:03:48");
    assert_string_equal(line_of(&progress, 0, 120), " 62%  step 12345/20000  loss 3.1234  held-out ppl 31.123  "
                                                    "12.34 seq/s  wait for links 43%  left 1:03:48");
    assert_string_equal(line_of(&progress, 0, 80),
                        "step 12345/20000  loss 3.1234  held-out ppl 31.123  12.34 seq/s  left 1:03:48");
    assert_string_equal(line_of(&progress, 0, 60), "step 12345/20000  loss 3.1234  12.34 seq/s  left 1:03:48");
    for (unsigned columns = 30; columns < 160; columns++) {
        const char *line = line_of(&progress, 0, columns);
        assert_non_null(strstr(line, "step 12345/20000"));
        assert_non_null(strstr(line, "left 1:03:48"));
    }
}

static void test_what_is_no_step_is_said_with_its_time(void **state)
{
    (void)state;
    struct aq_progress progress = {.steps = 100};
    assert_string_equal(line_of(&progress, second_ns, 80), "");
    aq_progress_phase(&progress, "stage %u reads and tokenizes the data (%u of %u ready)", 1, 2, 4);
    const uint64_t begin = progress.phase_ns;
    assert_string_equal(line_of(&progress, begin + 12 * second_ns, 80),
                        "stage 1 reads and tokenizes the data (2 of 4 ready) 0:12");
    assert_string_equal(line_of(&progress, begin + 12 * second_ns, 20), "stage 1 reads a 0:12");
    aq_progress_phase(&progress, "stage %u reads and tokenizes the data (%u of %u ready)", 1, 2, 4);
    assert_true(progress.phase_ns == begin); /* it goes on */

    progress = running();
    aq_progress_phase(&progress, "evaluates");
    assert_null(strstr(line_of(&progress, progress.phase_ns + second_ns, 80), "evaluates")); /* soon over */
    assert_string_equal(line_of(&progress, progress.phase_ns + 64 * second_ns, 80),
                        "step 12345/20000  evaluates 1:04  loss 3.1234  12.34 seq/s  left 1:03:48");
    assert_string_equal(line_of(&progress, progress.phase_ns + 64 * second_ns, 60),
                        "step 12345/20000  evaluates 1:04  loss 3.1234  left 1:03:48");
}

static void test_figures_that_are_none_are_not_there(void **state)
{
    (void)state;
    struct aq_progress progress = running();
    progress.loss = progress.heldout = (double)NAN;
    progress.rate = 0;
    assert_string_equal(line_of(&progress, 0, 0),
                        "############........   62%  step 12345/20000  12.34 seq/s  wait for links 43%  left ?");
}

/* COLUMNS counts wherever it is set; where nobody looks, lines have no limit. */
static void test_columns_are_those_of_who_looks(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(unsetenv("COLUMNS"), 0);
    assert_int_equal(aq_text_columns(ends[1]), 0);
    assert_int_equal(setenv("COLUMNS", "97", 1), 0);
    assert_int_equal(aq_text_columns(ends[1]), 97);
    assert_int_equal(setenv("COLUMNS", "many", 1), 0);
    assert_int_equal(aq_text_columns(ends[1]), 0);
    assert_int_equal(unsetenv("COLUMNS"), 0);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_keeps_the_time_left_at_any_width),
        cmocka_unit_test(test_what_is_no_step_is_said_with_its_time),
        cmocka_unit_test(test_figures_that_are_none_are_not_there),
        cmocka_unit_test(test_columns_are_those_of_who_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
