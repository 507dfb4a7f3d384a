/*
 * conform_task.c -- what every task promises of its figures: they have names, what is counted in parts adds up to what
 * is counted at once, nothing counted is no figure; and each figure's own definition.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "stage_task.h"

enum { ROWS = 11 };

/* Losses, targets (some not counted) and guesses; the figures below are worked out by hand from these. */
static const float losses[ROWS] = {0.5f, 1.25f, 0.0f, 2.0f, 0.75f, 0.25f, 3.0f, 0.5f, 1.0f, 0.0f, 0.125f};
static const int32_t targets[ROWS] = {0, 1, -1, 2, 1, 0, 2, 2, 1, -1, 0};
static const int32_t guesses[ROWS] = {0, 1, 0, 1, 1, 0, 0, 2, 0, 2, 0};

/* Of a task of numbers: what is wanted (NAN: not counted) and said. */
static const float numbers[ROWS] = {1, 2.5f, NAN, 4, 0, 3, 5, 1.5f, 2, NAN, 3.5f};
static const float outputs[ROWS] = {1.25f, 2, 7, 3, 0.5f, 3, 4, 2, 1, 9, 4.5f};

static struct aq_stage_loss count(const struct aq_task *task, uint32_t first, uint32_t end)
{
    const struct stage_counted rows = {
        .rows = end - first, .losses = losses + first, .targets = targets + first, .guesses = guesses + first,
        .numbers = numbers + first, .said = outputs + first};
    struct aq_stage_loss loss = {0};
    task->count(&rows, &loss);
    return loss;
}

static void test_parts_add_up_to_the_whole(void **state)
{
    (void)state;
    const char *name;
    for (uint32_t t = 0; (name = aq_task_name(t)) != NULL; t++) {
        const struct aq_task *task = aq_task_find(name);
        const struct aq_stage_loss whole = count(task, 0, ROWS);
        bool higher;
        assert_non_null(aq_task_metric(task, 0, &higher));
        assert_true(strlen(aq_task_field(task)) > 0);
        for (uint32_t cut = 0; cut <= ROWS; cut++) {
            struct aq_stage_loss all = count(task, 0, cut);
            const struct aq_stage_loss rest = count(task, cut, ROWS);
            aq_task_add(&all, &rest);
            assert_int_equal(all.targets, whole.targets);
            for (uint32_t i = 0; aq_task_metric(task, i, &higher); i++) {
                const double value = aq_task_value(task, i, &all), wanted = aq_task_value(task, i, &whole);
                assert_true(value == wanted || (isnan(value) && isnan(wanted)));
            }
        }
        const struct aq_stage_loss none = {0};
        for (uint32_t i = 0; aq_task_metric(task, i, &higher); i++)
            assert_true(isnan(aq_task_value(task, i, &none)));
    }
    assert_null(aq_task_find("no such"));
    assert_null(aq_task_find(NULL));
}

static double value_of(const char *task, const char *metric, bool *higher)
{
    const struct aq_task *of = aq_task_find(task);
    const struct aq_stage_loss loss = count(of, 0, ROWS);
    const char *name;
    assert_non_null(of);
    assert_int_equal(loss.targets, 9);
    for (uint32_t i = 0; (name = aq_task_metric(of, i, higher)) != NULL; i++)
        if (strcmp(name, metric) == 0) return aq_task_value(of, i, &loss);
    fail_msg("%s has no %s", task, metric);
    return 0;
}

/* exp of the mean loss of what is counted: 9.375 / 9. */
static void test_perplexity_is_the_exponential_of_the_mean(void **state)
{
    (void)state;
    bool higher;
    assert_true(fabs(value_of("language_model", "perplexity", &higher) - exp(9.375 / 9)) < 1e-12);
    assert_false(higher);
}

/* sklearn.metrics.accuracy_score of the nine: right are rows 0, 1, 4, 5, 7 and 10. */
static void test_accuracy_is_the_share_of_right_guesses(void **state)
{
    (void)state;
    bool higher;
    assert_true(value_of("classification", "accuracy", &higher) == 6.0 / 9);
    assert_true(higher);
}

/* Two classes: TP 3, FP 1, FN 2, TN 4. scikit-learn: matthews_corrcoef 0.40824829, f1_score 0.66666667. */
static void test_two_classes_have_a_correlation(void **state)
{
    (void)state;
    static const int32_t wanted[] = {1, 1, 1, 1, 1, 0, 0, 0, 0, 0, -1}, said[] = {1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1};
    const struct aq_task *task = aq_task_find("classification");
    const struct stage_counted rows = {.rows = ROWS, .losses = losses, .targets = wanted, .guesses = said};
    const struct stage_counted alike = {.rows = 4, .losses = losses, .targets = wanted, .guesses = said + 6};
    struct aq_stage_loss loss = {0}, none = {0};
    const char *name;
    bool higher;
    task->count(&rows, &loss);
    task->count(&alike, &none); /* all are 1, and none is said to be */
    int seen = 0;
    for (uint32_t i = 0; (name = aq_task_metric(task, i, &higher)) != NULL; i++) {
        const bool matthews = strcmp(name, "matthews") == 0;
        if (!matthews && strcmp(name, "f1") != 0) continue;
        const double is = aq_task_value(task, i, &loss), should = matthews ? 10.0 / sqrt(600.0) : 2.0 / 3.0;
        assert_true(fabs(is - should) < 1e-12 && higher);
        assert_true(aq_task_value(task, i, &none) == 0);
        seen++;
    }
    assert_int_equal(seen, 2);
    assert_true(isnan(value_of("classification", "matthews", &higher))); /* of three classes there is none */
}

/* numpy.corrcoef of the nine pairs: 0.87298850; the mean of the losses that are counted: 9.375 / 9. */
static void test_numbers_have_an_error_and_a_correlation(void **state)
{
    (void)state;
    bool higher;
    assert_true(fabs(value_of("regression", "mse", &higher) - 9.375 / 9) < 1e-12);
    assert_false(higher);
    assert_true(fabs(value_of("regression", "pearson", &higher) - 0.8729885030865183) < 1e-12);
    assert_true(higher);
    static const float same[3] = {0.1f, 0.1f, 0.1f}, rising[3] = {1, 2, 3};
    const struct aq_task *task = aq_task_find("regression");
    const struct stage_counted none = {.rows = 3, .losses = losses, .numbers = rising, .said = same};
    const struct stage_counted all = {.rows = 3, .losses = losses, .numbers = rising, .said = rising};
    struct aq_stage_loss flat = {0}, line = {0};
    task->count(&none, &flat);
    task->count(&all, &line);
    assert_true(aq_task_value(task, 1, &flat) == 0 && fabs(aq_task_value(task, 1, &line) - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_add_up_to_the_whole),
        cmocka_unit_test(test_perplexity_is_the_exponential_of_the_mean),
        cmocka_unit_test(test_accuracy_is_the_share_of_right_guesses),
        cmocka_unit_test(test_two_classes_have_a_correlation),
        cmocka_unit_test(test_numbers_have_an_error_and_a_correlation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
