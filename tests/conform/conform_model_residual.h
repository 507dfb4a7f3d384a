/*
 * conform_model_residual.h -- the part of conform_model.c about a residual stream of bf16 (aq_stage_config); included
 * there. While `stream_bf16` is set, every configuration has one.
 */
#ifndef CONFORM_MODEL_RESIDUAL_H
#define CONFORM_MODEL_RESIDUAL_H

static bool stream_takes(const struct kind *kind)
{
    char text[160];
    const struct aq_stage_config config = config_of(kind);
    return aq_model_residual_bf16(&config.model, text, sizeof text);
}

/* A family that is added, or whose layers change, changes this list. */
static void test_models_without_a_bf16_stream_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const taken[] = {"gpt2",    "llama",   "mistral", "ministral3", "smollm3",
                                        "granite", "qwen3_5", "phi3",    "lfm2"};
    for (uint32_t i = 0; aq_model_kind(i); i++) {
        const char *name = aq_model_kind(i);
        struct aq_model_config model;
        char text[160] = "";
        bool expected = false;
        for (size_t k = 0; k < sizeof taken / sizeof taken[0]; k++)
            expected = expected || strcmp(taken[k], name) == 0;
        aq_model_config_default(&model, name);
        if (aq_model_residual_bf16(&model, text, sizeof text) != expected) fail_msg("%s: %s", name, text);
        if (!expected) assert_non_null(strstr(text, name));
        model.residual_scale = 0.5f; /* granite's */
        if (aq_model_residual_bf16(&model, text, sizeof text)) assert_string_not_equal(name, "granite");
    }
    struct aq_stage_size size;
    for (int k = 0; k < KINDS; k++) {
        struct aq_stage_config config = config_of(&kinds[k]);
        config.residual_bf16 = true;
        assert_int_equal(aq_stage_measure(&config, &size), AQ_INVAL); /* products of fp32 */
        config.precision = AQ_STAGE_BF16;
        assert_int_equal(aq_stage_measure(&config, &size), stream_takes(&kinds[k]) ? AQ_OK : AQ_INVAL);
    }
}

static void test_a_bf16_stream_is_the_same_in_every_cut(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * KINDS; i++) {
        const struct kind *kind = &kinds[i / 4];
        if (!stream_takes(kind)) continue;
        struct run run = {.kind = kind,
                          .threads = 2,
                          .precision = AQ_STAGE_BF16,
                          .dropout = i & 1 ? 0.25f : 0.0f,
                          .rank = i & 2 ? 2 : 0};
        stream_bf16 = true;
        struct result whole = run_once(&run);
        const uint32_t layers = config_of(kind).layer_end;
        for (run.cut = 0; run.cut < layers; run.cut++)
            for (uint32_t way = 0; way < 3; way++) {
                char what[80];
                if (!sample_has(3 * ((size_t)i * layers + run.cut) + way, 3 * layers, 4 * sample_every(2))) continue;
                run.recompute = way == 1;
                run.split = way == 2;
                snprintf(what, sizeof what, "%s, bf16 stream, case %d, way %u, cut at %u", kind->name, i, way, run.cut);
                struct result parts = run_once(&run);
                expect_same(&whole, &parts, 0, what);
                result_free(&parts);
            }
        stream_bf16 = false;
        result_free(&whole);
    }
}

/* How far the gradients of all tensors are from each other, over the length of the first. */
static double gradients_apart(const struct result *a, const struct result *b)
{
    double far = 0, length = 0;
    for (uint32_t i = 0; i < a->count; i++)
        for (uint64_t k = 0; k < a->sizes[i]; k++) {
            const double x = (double)a->values[i][k], d = (double)b->values[i][k] - x;
            far += d * d;
            length += x * x;
        }
    return sqrt(far / length);
}

/*
 * It rounds, and no more than that: 8 bits of mantissa, twice in each block. Measured: gradients within 1.3e-2 of their
 * length, with the delta rule, which divides q and k by their lengths, within 8.3e-2; losses within 1.3e-2.
 */
static void test_a_bf16_stream_is_near_an_fp32_one(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        if (!stream_takes(&kinds[k])) continue;
        const struct run run = {.kind = &kinds[k], .threads = 2, .precision = AQ_STAGE_BF16};
        struct result wide = run_once(&run);
        stream_bf16 = true;
        struct result narrow = run_once(&run);
        stream_bf16 = false;
        const double loss = fabs(narrow.loss[0] / wide.loss[0] - 1.0), far = gradients_apart(&wide, &narrow);
        print_message("%s: losses within %.2g, gradients within %.2g\n", kinds[k].name, loss, far);
        const double limit = strcmp(kinds[k].name, "qwen3_5") == 0 ? 0.1 : 2e-2;
        if (!(loss > 0 && loss < 2e-2 && far < limit)) fail_msg("%s: too far", kinds[k].name);
        result_free(&wide);
        result_free(&narrow);
    }
}

/* What crosses a cut is the rounded stream, as fp32. */
static void test_a_bf16_stream_leaves_a_stage_as_it_is_within(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        if (!stream_takes(&kinds[k])) continue;
        stream_bf16 = true;
        for (uint32_t cut = 1; cut < 3; cut++) {
            const struct run run = {.kind = &kinds[k], .threads = 1, .cut = cut, .precision = AQ_STAGE_BF16};
            struct pipeline p = pipeline_open(&run);
            struct aq_cut_shape shape;
            assert_int_equal(aq_model_cut(&p.config.model, cut, p.config.T, &shape), AQ_OK);
            (void)forward(&p, 0, false);
            const uint64_t values = (uint64_t)p.batches[0].samples * shape.rows * shape.columns;
            for (uint64_t i = 0; i < values; i++) {
                const float value = p.activation[i];
                if (aq_bfloat_to_float(aq_bfloat_from_float(value)) != value)
                    fail_msg("%s, cut at %u: value %llu is %.9g", kinds[k].name, cut, (unsigned long long)i,
                             (double)value);
            }
            pipeline_close(&p);
        }
        stream_bf16 = false;
    }
}

static void test_a_bf16_stream_extends(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const char *kind;
        const struct aq_stage_config config = config_of(&kinds[k]);
        if (!stream_takes(&kinds[k]) || config.model.labels || !aq_model_extends(&config.model, &kind)) continue;
        stream_bf16 = true;
        extends_run(&kinds[k], 0, AQ_STAGE_BF16, 4e-2);
        extends_run(&kinds[k], 2, AQ_STAGE_BF16, 4e-2);
        stream_bf16 = false;
    }
}

/* Of a block its input and the sum behind its first branch, and the head's input: half of each. */
static void test_a_bf16_stream_takes_half_of_its_memory(void **state)
{
    (void)state;
    struct aq_stage_size wide, narrow;
    for (int k = 0; k < KINDS; k++) {
        struct aq_stage_config config = config_of(&kinds[k]);
        if (!stream_takes(&kinds[k]) || config.model.labels) continue;
        config.B = 32; /* every array ends at a line of memory */
        config.precision = AQ_STAGE_BF16;
        assert_int_equal(aq_stage_measure(&config, &wide), AQ_OK);
        config.residual_bf16 = true;
        assert_int_equal(aq_stage_measure(&config, &narrow), AQ_OK);
        const uint64_t N = (uint64_t)config.B * config.T * config.model.channels;
        assert_int_equal(wide.slot_bytes - narrow.slot_bytes, N * 2 * (2 * config.model.blocks + 1));
        assert_int_equal(wide.workspace_bytes, narrow.workspace_bytes); /* gradients are fp32 */
        config.layer_end = 2;
        assert_int_equal(aq_stage_measure(&config, &narrow), AQ_OK);
        config.residual_bf16 = false;
        assert_int_equal(aq_stage_measure(&config, &wide), AQ_OK);
        assert_int_equal(narrow.workspace_bytes - wide.workspace_bytes, N * 2); /* on its way to the cut */
        assert_int_equal(narrow.y_bytes, wide.y_bytes);
    }
}

#define RESIDUAL_TESTS                                                                                                 \
    cmocka_unit_test(test_models_without_a_bf16_stream_are_refused_by_name),                                           \
        cmocka_unit_test(test_a_bf16_stream_is_the_same_in_every_cut),                                                 \
        cmocka_unit_test(test_a_bf16_stream_is_near_an_fp32_one),                                                      \
        cmocka_unit_test(test_a_bf16_stream_leaves_a_stage_as_it_is_within),                                           \
        cmocka_unit_test(test_a_bf16_stream_extends), cmocka_unit_test(test_a_bf16_stream_takes_half_of_its_memory)

#endif
