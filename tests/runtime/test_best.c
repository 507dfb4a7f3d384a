/*
 * test_best.c -- the best of a run's evaluations: by a loss and by a metric, ties, what is no number, and from a file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "best.h"

static bool take(struct aq_best *best, uint64_t step, const char *figure, double value)
{
    json_t *line = json_pack("{s:s, s:I, s:f}", "event", "eval", "step", (json_int_t)step, figure, value);
    const bool better = aq_best_take(best, line);
    json_decref(line);
    return better;
}

static void test_the_lowest_loss_is_the_best(void **state)
{
    (void)state;
    struct aq_best best;
    assert_int_equal(aq_best_open("loss", &best), AQ_OK);
    assert_true(take(&best, 5, "loss", 2.0));
    assert_true(take(&best, 10, "loss", 1.5));
    assert_false(take(&best, 15, "loss", 1.5)); /* of equal ones the first */
    assert_false(take(&best, 20, "accuracy", 1.0)); /* without the figure */
    assert_int_equal(best.step, 10);
    assert_int_equal(best.since, 2);
    assert_int_equal(best.last, 20);
    assert_true(take(&best, 25, "loss", 1.0) && best.value == 1.0 && best.since == 0);
}

static void test_a_metric_has_its_own_direction(void **state)
{
    (void)state;
    struct aq_best best;
    assert_int_equal(aq_best_open("matthews", &best), AQ_OK);
    assert_true(take(&best, 1, "matthews", -0.5));
    assert_true(take(&best, 2, "matthews", 0.25));
    assert_false(take(&best, 3, "matthews", 0.125));
    assert_int_equal(best.step, 2);
    assert_int_equal(aq_best_open("perplexity", &best), AQ_OK);
    assert_true(take(&best, 1, "perplexity", 20) && take(&best, 2, "perplexity", 19));
    assert_int_equal(aq_best_open("beauty", &best), AQ_INVAL);
    assert_int_equal(aq_best_open(NULL, &best), AQ_OK);
    assert_false(take(&best, 1, "loss", 1));
    assert_int_equal(best.step, 0);
}

static void test_a_file_says_what_was_known(void **state)
{
    (void)state;
    struct aq_best best;
    char path[] = "/tmp/aq-best-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    fputs("{\"event\":\"step\",\"step\":1,\"loss\":0.1}\n{\"event\":\"eval\",\"step\":1,\"loss\":3}\n"
          "{\"event\":\"eval\",\"step\":2,\"loss\":null}\n{\"event\":\"eval\",\"step\":3,\"loss\":2}\n"
          "{\"event\":\"eval\",\"step\":4,\"loss\":2.5}\n{\"event\":\"eval\",\"step\":5,\"lo",
          file);
    fclose(file);
    assert_int_equal(aq_best_open("loss", &best), AQ_OK);
    assert_int_equal(aq_best_read(&best, path), AQ_OK);
    assert_true(best.step == 3 && best.value == 2 && best.since == 1 && best.last == 4);
    unlink(path);
    assert_int_equal(aq_best_open("loss", &best), AQ_OK);
    assert_int_equal(aq_best_read(&best, path), AQ_OK); /* there is none */
    assert_int_equal(best.step, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_lowest_loss_is_the_best),
        cmocka_unit_test(test_a_metric_has_its_own_direction),
        cmocka_unit_test(test_a_file_says_what_was_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
