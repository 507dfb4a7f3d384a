/*
 * test_optimizer_slamb.c -- SLAMB with W ranks against its paper's formulas in double (optimizer_reference.h): its
 * forms, values of 16 bits, a share that falls, and masks that take few values.
 */
#include "optimizer_reference.h"

static void test_slamb_as_published(void **state)
{
    (void)state;
    static const char *const forms[] = {"appendix", "algorithm", "code"};
    for (int f = 0; f < 3; f++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, "slamb");
        config.form = forms[f];
        config.sync_every = 4;
        config.seed = 7;
        config.total_steps = STEPS;
        for (int i = 0; i < WIDTHS; i++)
            expect_as_published(&config, widths[i], ref_slamb, 0);
        config.sync_gradient = true;
        config.dense_below = 800;
        expect_as_published(&config, 3, ref_slamb, 0);
        config.beta3 = 1.0f; /* Theorem 4.1: nothing is stale */
        expect_as_published(&config, 2, ref_slamb, 0);
    }
}

/*
 * Values of 16 bits: those that lie between two numbers may fall to either. With 3, 6, 10 and 12 ranks many means lie
 * there, and their weight is no number of fp32.
 */
static void test_slamb_in_16_bits_as_published(void **state)
{
    (void)state;
    static const char *const kinds[] = {"fp16", "bf16"};
    for (int k = 0; k < 2; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, "slamb");
        aq_grad_codec_config_default(&config.reduce, kinds[k]);
        config.sync_every = 4;
        config.total_steps = STEPS;
        for (int i = 0; i < WIDTHS; i++)
            if ((widths[i] & (widths[i] - 1)) == 0) expect_as_published(&config, widths[i], ref_slamb, 6);
        config.sync_gradient = true;
        config.density = 0.8f; /* gradients and momenta together are more than the parameters */
        config.dense_below = 800;
        expect_as_published(&config, 4, ref_slamb, 6);
    }
}

/* k falls from 1 in six steps; and phi as it is printed, with a tensor that starts as zeros. */
static void test_slamb_with_a_falling_share_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "slamb");
    config.density_steps = 6;
    config.sync_every = 4;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_slamb, 0);
    config.form = "paper";
    start_at_zero = true;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_slamb, 0);
    start_at_zero = false;
}

/* Masks that leave most tensors without a masked part: what stands for its ratio is clipped like any other. */
static void test_slamb_with_few_values_as_published(void **state)
{
    (void)state;
    static const char *const forms[] = {"appendix", "algorithm", "code"};
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "slamb");
    config.weight_decay = 0.1f;
    config.sync_every = 3;
    config.density = 0.002f;
    for (int f = 0; f < 3; f++) {
        config.form = forms[f];
        for (int i = 1; i < WIDTHS; i++)
            expect_as_published(&config, widths[i], ref_slamb, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slamb_as_published),
        cmocka_unit_test(test_slamb_in_16_bits_as_published),
        cmocka_unit_test(test_slamb_with_a_falling_share_as_published),
        cmocka_unit_test(test_slamb_with_few_values_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
