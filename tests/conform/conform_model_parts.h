/*
 * conform_model_parts.h -- the part of conform_model.c about samples that have parts; included there, in its middle.
 */
#ifndef CONFORM_MODEL_PARTS_H
#define CONFORM_MODEL_PARTS_H

/* Do all of its layers know parts? Else the first that does not is named. */
static bool parts_known(const struct kind *kind)
{
    struct aq_stage_config config = config_of(kind);
    struct aq_stage_size size;
    config.parts = true;
    aq_error_clear();
    const enum aq_status status = aq_stage_measure(&config, &size);
    if (status == AQ_OK) return true;
    assert_int_equal(status, AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "does not know the parts of a sample"));
    return false;
}

static void test_parts_are_the_same_in_every_cut(void **state)
{
    (void)state;
    static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
    uint32_t known = 0;
    for (int i = 0; i < 3 * KINDS; i++) {
        const int k = i / 3;
        if (!parts_known(&kinds[k])) continue;
        struct run run = {.kind = &kinds[k], .threads = 2, .parts = true, .dropout = i % 2 ? 0.25f : 0.0f};
        run.precision = precisions[i % 3];
        struct result whole = run_once(&run);
        const uint32_t layers = config_of(&kinds[k]).layer_end;
        for (run.cut = 1; run.cut < layers; run.cut++) {
            run.recompute = run.cut % 3 == 1;
            run.split = run.cut % 3 == 2;
            struct result cut = run_once(&run);
            expect_same(&whole, &cut, 0, "parts");
            result_free(&cut);
        }
        result_free(&whole);
        known++;
    }
    assert_true(known >= 3);
}

/* Batch 0 of p, its parts one by one in front of samples of their own: losses and gradients of all, as of p. */
static void expect_alone(struct pipeline *p, struct pipeline *alone)
{
    const struct aq_batch *batch = &p->batches[0];
    struct aq_batch *one = &alone->batches[0];
    double sum = 0;
    uint32_t parts = 0;
    const double whole = forward(p, 0, false);
    backward(p, 0);
    one->samples = 1;
    for (uint32_t s = 0; s < batch->samples; s++)
        for (uint32_t first = 0, end; first < T; first = end, parts++) {
            const uint32_t *starts = batch->starts + s * T;
            const int32_t *tokens = batch->fields[0].values, *targets = batch->fields[1].values;
            int32_t *own[2] = {one->fields[0].values, one->fields[1].values};
            for (end = first + 1; end < T && starts[end] == first;)
                end++;
            for (uint32_t t = 0; t < T; t++) {
                own[0][t] = t < end - first ? tokens[s * T + first + t] : 1;
                own[1][t] = t < end - first ? targets[s * T + first + t] : -1;
            }
            sum += forward(alone, 0, false);
            backward(alone, 0);
        }
    if (!(fabs(sum - whole) <= 1e-6 * whole)) fail_msg("%s: losses %.9g and %.9g", p->config.model.kind, whole, sum);
    assert_true(parts > batch->samples);
    for (uint32_t i = 0; i < aq_stage_tensor_count(p->stages[0]); i++) {
        struct aq_tensor_info info;
        aq_stage_tensor(p->stages[0], i, &info);
        const float *x = aq_stage_gradients(p->stages[0]), *y = aq_stage_gradients(alone->stages[0]);
        const double distance = help_distance(x + info.offset, y + info.offset, info.count);
        if (!(distance <= 1e-5)) fail_msg("%s: %s differs by %g", p->config.model.kind, info.name, distance);
    }
}

static void test_a_part_is_what_it_is_alone(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        if (!parts_known(&kinds[k])) continue;
        struct run run = {.kind = &kinds[k], .threads = 2, .tied = k % 2};
        struct pipeline alone = pipeline_open(&run);
        run.parts = true;
        struct pipeline p = pipeline_open(&run);
        expect_alone(&p, &alone);
        pipeline_close(&p);
        pipeline_close(&alone);
    }
}

static void test_parts_are_checked(void **state)
{
    (void)state;
    const struct run run = {.kind = &kinds[0], .threads = 1, .parts = true};
    struct pipeline p = pipeline_open(&run);
    struct aq_stage_input input = {.batch = &p.batches[0], .evaluate = true, .loss_factor = 1};
    uint32_t starts[B * T] = {0};
    p.batches[0].starts = starts;
    for (uint32_t wrong = 1; wrong < 5; wrong += 2) { /* of a later token; of one that begins no part */
        starts[T + 3] = wrong == 1 ? 4 : 1;
        aq_error_clear();
        assert_int_equal(aq_stage_forward(p.stages[0], 0, &input, NULL, NULL, NULL), AQ_INVAL);
        assert_non_null(strstr(aq_error_text(), "sample 1: token 3 is of a part that starts at"));
    }
    pipeline_close(&p);
    const struct run whole = {.kind = &kinds[0], .threads = 1};
    p = pipeline_open(&whole);
    p.batches[0].starts = starts;
    memset(starts, 0, sizeof starts);
    input.batch = &p.batches[0];
    assert_int_equal(aq_stage_forward(p.stages[0], 0, &input, NULL, NULL, NULL), AQ_INVAL);
    pipeline_close(&p);
}

#endif
