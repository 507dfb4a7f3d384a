/*
 * conform_model_rope.h -- rotary embeddings whose frequencies depend on the samples' length; part of conform_model.c.
 */
#ifndef CONFORM_MODEL_ROPE_H
#define CONFORM_MODEL_ROPE_H

#include "decoder.h"

/* Up to the context before the short list divides, one token more and all places have the long one. */
static void test_longrope_divides_by_the_list_of_its_length(void **state)
{
    enum { LENGTH = 6, R = 4 };
    struct aq_model_config model;
    (void)state;
    aq_model_config_default(&model, "phi3");
    model.head_dim = 2 * R;
    model.rope_partial = 0.5f;
    model.rope_original = LENGTH - 1;
    model.rope_short = (struct aq_factors){R / 2, {1.0f, 1.5f}};
    model.rope_long = (struct aq_factors){R / 2, {1.25f, 4.0f}};
    model.rope_attention = 1.5f;
    for (uint32_t tokens = LENGTH - 1; tokens <= LENGTH; tokens++) {
        const struct aq_factors *list = tokens < LENGTH ? &model.rope_short : &model.rope_long;
        float table[LENGTH * R];
        decoder_angles(&model, false, tokens, table);
        for (uint32_t i = 0; i < tokens * R; i++) {
            const double angle = i / R * pow(10000.0, -2.0 * (i % (R / 2)) / R) / (double)list->of[i % (R / 2)];
            const double expected = 1.5 * (i % R < R / 2 ? cos(angle) : sin(angle));
            assert_true(fabs((double)table[i] - expected) < 1e-6);
        }
    }
    model.rope_long.count = 1;
    aq_error_clear();
    assert_int_equal(aq_model_config_check(&model), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "model.rope_long: 1 numbers, but 2 pairs of columns turn"));
}

#endif
