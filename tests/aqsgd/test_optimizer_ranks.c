/*
 * test_optimizer_ranks.c -- each optimizer with W ranks against its paper's formulas in double (optimizer_reference.h);
 * SLAMB is in test_optimizer_slamb.c.
 */
#include "optimizer_reference.h"

static void test_adamw_averages_first(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.weight_decay = 0.1f;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_adamw, 0);
    aq_grad_codec_config_default(&config.reduce, "uniform");
    for (int i = 1; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_adamw_4_bits, 3);
}

static void test_sgd_without_error_feedback(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "sgd");
    aq_grad_codec_config_default(&config.reduce, "sign");
    config.reduce.scale = "l2";
    config.error_feedback = false;
    for (int i = 1; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_sgd_sign_no_errors, 3);
}

static void test_qadam_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "qadam");
    config.warmup_steps = 4;
    config.weight_decay = 0.1f;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_qadam, 3);
    config.form = "paper";
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_qadam, 3);
}

static void test_onebit_adam_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "onebit_adam");
    config.warmup_steps = 4;
    config.freeze_ratio = 0;
    config.weight_decay = 0.1f;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_onebit_adam, 3);
    config.bias_correction = false;
    expect_as_published(&config, 2, ref_onebit_adam, 3);
    /* The measured switch: v of these gradients settles, with beta2 = 0.75 and so over 4 steps. */
    config.freeze_ratio = 0.8f;
    config.beta2 = 0.75f;
    config.warmup_steps = 0;
    expect_as_published(&config, 4, ref_onebit_adam, 3);
}

static void test_lamb_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "lamb");
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_lamb, 0);
    config.bias_correction = false;
    config.coefficient_max = 0.3f;
    expect_as_published(&config, 2, ref_lamb, 0);
    config.form = "norm"; /* phi of the norm: equation 1 of SLAMB; the norms here are 2 to 35 */
    config.coefficient_min = 5.0f;
    config.coefficient_max = 20.0f;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_lamb, 0);
}

static void test_onebit_lamb_as_published(void **state)
{
    (void)state;
    static const char *const forms[] = {"paper", "sqrt"};
    for (int f = 0; f < 2; f++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, "onebit_lamb");
        config.warmup_steps = 4;
        config.form = forms[f];
        for (int i = 0; i < WIDTHS; i++)
            expect_as_published(&config, widths[i], ref_onebit_lamb, 3);
        config.weight_decay = 0;
        expect_as_published(&config, 2, ref_onebit_lamb, 3);
    }
}

static void test_lion_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "lion");
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_lion, 1);
}

static void test_lioncub_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "lioncub");
    config.momentum_names = "wte,head";
    config.momentum_every = 3;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_lioncub_votes, 1);
    aq_grad_codec_config_default(&config.reduce, "lp");
    for (uint32_t bits = 4; bits <= 16; bits *= 2) {
        config.lane_bits = bits;
        for (int i = 0; i < WIDTHS; i++)
            expect_as_published(&config, widths[i], ref_lioncub_lanes, 3);
    }
    static const float powers[] = {AQ_GRAD_NORM_L0, 2.0f, 0.7f, 3.0f};
    config.lane_bits = 8;
    for (int i = 0; i < 4 * WIDTHS; i++) {
        config.reduce.norm = powers[i % 4];
        expect_as_published(&config, widths[i / 4], ref_lioncub_lanes, 3);
    }
    aq_grad_codec_config_default(&config.reduce, "vote"); /* votes, of any number of ranks */
    config.lane_bits = 4;
    for (int i = 0; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_lioncub_lanes, 0);
}

/*
 * A rate by tensor: what moves is rate times what would have moved. Every kind; the reference makes the step at rate 1
 * and stretches it, from where its tensors were before.
 */
static void (*unrated)(void);
static struct aq_optimizer_tensor rated_tensors[RANK_TENSORS];

static void ref_rated(void)
{
    static vector before[RANKS_MAX];
    memcpy(before, P, sizeof(vector) * ranks.W);
    unrated();
    EACH(w, t, i)
    {
        P[w][i] = before[w][i] + (double)rated_tensors[t].rate * (P[w][i] - before[w][i]);
    }
}

static void test_rates_of_tensors_as_published(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        void (*reference)(void);
        uint64_t allowed;
    } kinds[] = {{"qadam", ref_qadam, 3},
                 {"adamw", ref_adamw, 0},
                 {"lion", ref_lion, 1},
                 {"lamb", ref_lamb, 0},
                 {"slamb", ref_slamb, 0},
                 {"onebit_adam", ref_onebit_adam, 3},
                 {"lioncub", ref_lioncub_votes, 1},
                 {"onebit_lamb", ref_onebit_lamb, 3}};
    static const float rates[RANK_TENSORS] = {10.0f, 0.5f, 1.0f, 3.0f, 1.0f, 0.25f};
    memcpy(rated_tensors, rank_tensors, sizeof rated_tensors);
    for (int t = 0; t < RANK_TENSORS; t++)
        rated_tensors[t].rate = rates[t];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct aq_optimizer_config config;
        aq_optimizer_config_default(&config, kinds[k].kind);
        if (config.warmup_steps > 0 || config.freeze_ratio > 0) config.warmup_steps = 4;
        config.freeze_ratio = 0;
        config.sync_every = 100;     /* slamb: an average of weights is no step */
        config.weight_decay = k % 2; /* large where it can be: qadam's decay is of what its step left */
        unrated = kinds[k].reference;
        ranks_tensors = rated_tensors;
        for (uint32_t W = 1; W <= 3; W++)
            expect_as_published(&config, W, ref_rated, kinds[k].allowed);
        ranks_tensors = NULL;
    }
}

static void test_power_sgd_as_published(void **state)
{
    (void)state;
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.low_rank = 2;
    for (int i = 1; i < WIDTHS; i++)
        expect_as_published(&config, widths[i], ref_adamw_low_rank, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_averages_first),
        cmocka_unit_test(test_sgd_without_error_feedback),
        cmocka_unit_test(test_qadam_as_published),
        cmocka_unit_test(test_onebit_adam_as_published),
        cmocka_unit_test(test_lamb_as_published),
        cmocka_unit_test(test_onebit_lamb_as_published),
        cmocka_unit_test(test_lion_as_published),
        cmocka_unit_test(test_lioncub_as_published),
        cmocka_unit_test(test_rates_of_tensors_as_published),
        cmocka_unit_test(test_power_sgd_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
