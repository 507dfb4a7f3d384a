/*
 * test_epsilon.c -- the curve of Gaussian noise against values of mpmath with 60 digits; both ways; at its ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "epsilon.h"

static bool near(double a, double b, double relative)
{
    return fabs(a - b) <= relative * fmax(fabs(a), fabs(b));
}

static void test_epsilons_are_those_of_60_digits(void **state)
{
    (void)state;
    static const struct {
        double noise, visits, delta, epsilon;
    } truth[] = {{8, 20, 1e-5, 4.9833064059707096},      {40, 20, 1e-6, 0.94051552653077643},
                 {1, 1, 1e-5, 9.9972561464343004},       {0.5, 300, 1e-5, 2694.5099326918546},
                 {200, 5, 1e-8, 0.10284578713117885},    {0.004, 8, 1e-5, 1006030.467907813},
                 {1000, 1, 1e-12, 0.011628153482731158}, {1e6, 100, 1e-5, 0},
                 {3, 7, 1e-30, 21.46632173161844}};
    for (size_t i = 0; i < sizeof truth / sizeof *truth; i++) {
        const double mu = sqrt(truth[i].visits * aq_epsilon_visit(truth[i].noise, 1));
        assert_true(near(aq_epsilon(mu, truth[i].delta), truth[i].epsilon, 1e-9));
    }
}

static void test_deltas_are_those_of_60_digits(void **state)
{
    (void)state;
    static const double truth[][3] = {{1, 1, 0.12693673750664395},         {1, 0, 0.38292492254802621},
                                      {0.1, 0.5, 6.8565824558387371e-9},   {10, 60, 0.13683538039646127},
                                      {30, 500, 0.044652092298350787},     {0.01, 0.05, 5.4814402007468726e-10},
                                      {1e-4, 2e-4, 8.4915517212003496e-7}, {100, 5000, 0.49601097601864319}};
    for (size_t i = 0; i < sizeof truth / sizeof *truth; i++)
        assert_true(near(aq_epsilon_delta(truth[i][0], truth[i][1]), truth[i][2], 1e-10));
}

/* One visit of four vectors is four visits, and noise counts by its square. */
static void test_visits_compose(void **state)
{
    (void)state;
    assert_true(near(aq_epsilon_visit(8, 1), 4.0 / 64, 1e-15));
    assert_true(near(aq_epsilon_visit(8, 32), 32 * aq_epsilon_visit(8, 1), 1e-15));
    assert_true(near(aq_epsilon_visit(16, 4), aq_epsilon_visit(8, 1), 1e-15));
}

static void test_it_grows_with_mu_and_falls_with_delta(void **state)
{
    (void)state;
    double before = 0;
    for (double mu = 1e-3; mu < 1e6; mu *= 1.37) {
        const double here = aq_epsilon(mu, 1e-5);
        assert_true(here > before);
        assert_true(aq_epsilon(mu, 1e-6) > here);
        assert_true(near(aq_epsilon_delta(mu, here), 1e-5, 1e-6) && aq_epsilon_delta(mu, here) <= 1e-5);
        before = here;
    }
}

/* A limit is never passed by what it allows, and a little more passes it. */
static void test_the_largest_mu_is_within_its_epsilon(void **state)
{
    (void)state;
    for (double epsilon = 1e-3; epsilon < 1e6; epsilon *= 2.3)
        for (double delta = 1e-20; delta < 0.4; delta *= 97) {
            const double mu = aq_epsilon_mu_max(epsilon, delta);
            assert_true(mu > 0 && aq_epsilon_delta(mu, epsilon) <= delta);
            assert_true(aq_epsilon_delta(mu * (1 + 1e-9), epsilon) > delta);
            assert_true(near(aq_epsilon(mu, delta), epsilon, 1e-9));
        }
}

static void test_no_noise_is_no_bound_and_no_visit_is_none(void **state)
{
    (void)state;
    assert_true(aq_epsilon(0, 1e-5) == 0 && aq_epsilon_delta(0, 0) == 0);
    assert_true(isinf(aq_epsilon((double)INFINITY, 1e-5)) && aq_epsilon_delta((double)INFINITY, 3) == 1);
    assert_true(aq_epsilon_delta(1e-300, 1e10) == 0);
    assert_true(isfinite(aq_epsilon(1e9, 1e-30)) && aq_epsilon(1e9, 1e-30) > 4.9e17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epsilons_are_those_of_60_digits),
        cmocka_unit_test(test_deltas_are_those_of_60_digits),
        cmocka_unit_test(test_visits_compose),
        cmocka_unit_test(test_it_grows_with_mu_and_falls_with_delta),
        cmocka_unit_test(test_the_largest_mu_is_within_its_epsilon),
        cmocka_unit_test(test_no_noise_is_no_bound_and_no_visit_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
