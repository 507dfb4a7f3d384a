/*
 * conform_model_extends.h -- the part of conform_model.c about tokens one after another; included there.
 */
#ifndef CONFORM_MODEL_EXTENDS_H
#define CONFORM_MODEL_EXTENDS_H

/* A model for generation, cut before layer `cut` (0: nowhere). */
static void extends_open(struct pipeline *p, const struct kind *kind, uint32_t cut, enum aq_stage_precision precision)
{
    *p = (struct pipeline){.config = config_of(kind), .count = cut ? 2 : 1, .device = help_device(2)};
    const uint32_t bounds[3] = {0, cut ? cut : p->config.layer_end, p->config.layer_end};
    p->config.B = 1;
    p->config.slots = 2;
    p->config.inference = p->config.extends = p->config.weights_16bit = true;
    p->config.precision = precision;
    p->config.model.tied = false;
    for (uint32_t s = 0; s < p->count; s++) {
        struct aq_stage_config config = p->config;
        config.layer_first = bounds[s];
        config.layer_end = bounds[s + 1];
        assert_int_equal(aq_stage_open(p->device, &config, &p->stages[s]), AQ_OK);
        help_init(p->stages[s], 5);
    }
    p->activation = help_alloc((uint64_t)T * 4096 * sizeof(float));
}

/* Tokens before .. used - 1 of slot `slot`; the logits of the last one. */
static enum aq_status extends_forward(struct pipeline *p, uint32_t slot, const struct aq_batch *batch, uint32_t before,
                                      uint32_t used, float *logits)
{
    struct aq_stage_input input = {.batch = batch, .evaluate = true, .tokens_used = used, .tokens_before = before};
    if (p->count == 2) AQ_TRY(aq_stage_forward(p->stages[0], slot, &input, p->activation, NULL, NULL));
    input.x = p->activation;
    AQ_TRY(aq_stage_forward(p->stages[p->count - 1], slot, &input, NULL, NULL, NULL));
    return aq_stage_logits(p->stages[p->count - 1], slot, used - 1, logits, NULL);
}

static void extends_run(const struct kind *kind, uint32_t cut, enum aq_stage_precision precision, double limit)
{
    struct pipeline p;
    extends_open(&p, kind, cut, precision);
    const uint32_t V = p.config.model.vocabulary;
    float *whole = help_alloc(V * sizeof *whole), *step = help_alloc(V * sizeof *step);
    struct aq_batch one = batch_make(&p.config, 0), other = batch_make(&p.config, 1);
    const uint32_t fields = one.field_count;
    for (uint32_t f = 0; f < one.field_count; f++) /* no targets */
        if (strcmp(one.fields[f].name, "tokens") != 0) one.field_count = other.field_count = f;
    one.samples = other.samples = 1;
    one.lengths = other.lengths = NULL;
    assert_int_equal(extends_forward(&p, 1, &other, 0, 4, step), AQ_OK); /* two texts at once */
    assert_int_equal(extends_forward(&p, 0, &one, 0, 3, step), AQ_OK);
    for (uint32_t used = 4; used <= T; used += used == 6 ? 2 : 1) { /* once two at a time */
        const uint32_t before = used == 8 ? 6 : used - 1;
        assert_int_equal(extends_forward(&p, 0, &one, before, used, step), AQ_OK);
        struct pipeline anew;
        extends_open(&anew, kind, cut, precision);
        assert_int_equal(extends_forward(&anew, 0, &one, 0, used, whole), AQ_OK);
        const double distance = help_distance(step, whole, V);
        if (!(distance <= limit))
            fail_msg("%s, cut %u: %u tokens behind %u differ by %g", kind->name, cut, used - before, before, distance);
        pipeline_close(&anew);
    }
    assert_int_equal(extends_forward(&p, 1, &other, 4, 5, step), AQ_OK);
    assert_int_equal(extends_forward(&p, 1, &other, 6, 7, step), AQ_INVAL); /* it has had five */
    assert_int_equal(extends_forward(&p, 1, &other, 5, 5, step), AQ_INVAL); /* nothing new      */
    const enum aq_status back = small_onward(kind->name) ? AQ_INVAL : AQ_OK; /* some have one state, the last token's */
    assert_int_equal(extends_forward(&p, 1, &other, 2, 3, step), back); /* back, and on */
    one.field_count = other.field_count = fields;
    batch_close(&one);
    batch_close(&other);
    pipeline_close(&p);
    aq_free(whole);
    aq_free(step);
}

static void test_tokens_one_after_another_equal_all_at_once(void **state)
{
    (void)state;
    int extend = 0;
    for (int k = 0; k < KINDS; k++) {
        struct aq_stage_config config = config_of(&kinds[k]);
        struct aq_stage_size size;
        const char *kind = NULL;
        config.inference = config.extends = true;
        const bool can = aq_model_extends(&config.model, &kind);
        assert_int_equal(aq_stage_measure(&config, &size), can ? AQ_OK : AQ_INVAL);
        assert_true(can || kind);
        if (!can) continue;
        extend++;
        extends_run(&kinds[k], 0, AQ_STAGE_FP32, 1e-5);
        extends_run(&kinds[k], 2, AQ_STAGE_FP32, 1e-5);
        extends_run(&kinds[k], 2, AQ_STAGE_BF16, 3e-2);
    }
    assert_true(extend >= 2);
}

#endif
