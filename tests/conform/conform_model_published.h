/*
 * conform_model_published.h -- the part of conform_model.c about what a published config.json can express; included
 * there.
 */
#ifndef CONFORM_MODEL_PUBLISHED_H
#define CONFORM_MODEL_PUBLISHED_H

/* What config.json cannot express is refused before training: a padding token beyond the vocabulary, a longer table. */
static void test_positions_fit_what_is_published(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        uint32_t vocabulary, first, context;
        bool fits;
    } cases[] = {{"roberta", 100, 100, 64, true},        {"roberta", 100, 101, 64, false},
                 {"roberta", 100, 0, 1048574, true},     {"roberta", 100, 0, 1048575, false},
                 {"xlm_roberta", 8, 5, 1048571, true},   {"xlm_roberta", 8, 5, 1048576, false},
                 {"bert", 100, 101, 64, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct aq_model_config model;
        aq_model_config_default(&model, cases[i].kind);
        model.vocabulary = cases[i].vocabulary;
        model.position_first = cases[i].first;
        model.context = cases[i].context;
        struct aq_error_hold why;
        aq_error_hold(&why);
        const enum aq_status status = aq_model_config_check(&model);
        aq_error_release(&why);
        if ((status == AQ_OK) != cases[i].fits) fail_msg("%s: case %zu gives %d", cases[i].kind, i, status);
        const char *key = cases[i].vocabulary < cases[i].first ? "model.position_first is" : "model.context is";
        if (!cases[i].fits && !strstr(why.text, key)) fail_msg("case %zu: %s", i, why.text);
    }
}

#endif
