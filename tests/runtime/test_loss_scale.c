/*
 * test_loss_scale.c -- how the loss scale moves, who has none, and what of a file is believed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "loss_scale.h"

static struct aq_job job_of(enum aq_stage_precision precision, float fixed, uint32_t window)
{
    return (struct aq_job){.model = {.precision = precision},
                           .train = {.loss_scale = fixed, .loss_scale_window = window}};
}

static void test_loss_scale_doubles_and_halves(void **state)
{
    (void)state;
    const struct aq_job job = job_of(AQ_STAGE_FP16, 0.0f, 3);
    struct aq_loss_scale scale = aq_loss_scale_of(&job);
    assert_true(aq_loss_scale_moves(&scale) && aq_loss_scale_now(&scale) == 65536.0f);
    for (int i = 0; i < 2; i++)
        aq_loss_scale_good(&scale);
    assert_true(aq_loss_scale_now(&scale) == 65536.0f);
    aq_loss_scale_good(&scale);
    assert_true(aq_loss_scale_now(&scale) == 131072.0f);
    for (int i = 0; i < 2; i++)
        aq_loss_scale_good(&scale);
    assert_true(aq_loss_scale_halve(&scale)); /* the good steps before it do not count on */
    assert_true(aq_loss_scale_now(&scale) == 65536.0f);
    aq_loss_scale_good(&scale);
    assert_true(aq_loss_scale_now(&scale) == 65536.0f);
    for (int i = 0; i < 16; i++)
        assert_true(aq_loss_scale_halve(&scale));
    assert_true(aq_loss_scale_now(&scale) == AQ_LOSS_SCALE_MIN);
    assert_false(aq_loss_scale_halve(&scale));
    for (int i = 0; i < 3 * 40; i++)
        aq_loss_scale_good(&scale);
    assert_true(aq_loss_scale_now(&scale) == AQ_LOSS_SCALE_MAX);
    assert_int_equal(aq_loss_scale_check(scale.state, AQ_LOSS_SCALE_STATE), AQ_OK);
}

static void test_loss_scale_is_of_fp16_alone(void **state)
{
    (void)state;
    for (int p = AQ_STAGE_FP32; p <= AQ_STAGE_FP16; p++) {
        const float fixed = p == AQ_STAGE_FP16 ? 100.0f : 0.0f;
        const struct aq_job job = job_of((enum aq_stage_precision)p, fixed, 1);
        struct aq_loss_scale scale = aq_loss_scale_of(&job);
        const float wanted = fixed > 0.0f ? fixed : 1.0f;
        aq_loss_scale_good(&scale);
        assert_false(aq_loss_scale_halve(&scale));
        assert_true(!aq_loss_scale_moves(&scale) && aq_loss_scale_now(&scale) == wanted);
    }
}

static void test_loss_scale_of_a_file_is_looked_at(void **state)
{
    (void)state;
    static const struct {
        float state[AQ_LOSS_SCALE_STATE];
        enum aq_status status;
    } cases[] = {{{65536.0f, 0.0f}, AQ_OK},         {{1.0f, 1999.0f}, AQ_OK},        {{3.0f, 0.0f}, AQ_CORRUPT},
                 {{0.5f, 0.0f}, AQ_CORRUPT},        {{0x1p25f, 0.0f}, AQ_CORRUPT},   {{-2.0f, 0.0f}, AQ_CORRUPT},
                 {{NAN, 0.0f}, AQ_CORRUPT},         {{INFINITY, 0.0f}, AQ_CORRUPT},  {{2.0f, NAN}, AQ_CORRUPT},
                 {{2.0f, -1.0f}, AQ_CORRUPT},       {{2.0f, 0.5f}, AQ_CORRUPT},      {{2.0f, INFINITY}, AQ_CORRUPT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(aq_loss_scale_check(cases[i].state, AQ_LOSS_SCALE_STATE), cases[i].status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_scale_doubles_and_halves),
        cmocka_unit_test(test_loss_scale_is_of_fp16_alone),
        cmocka_unit_test(test_loss_scale_of_a_file_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
