/*
 * conform_model_adapters.h -- the part of conform_model.c about low-rank adapters; included there, in its middle.
 */
#ifndef CONFORM_MODEL_ADAPTERS_H
#define CONFORM_MODEL_ADAPTERS_H

/* Other ranks and alphas for the first product of an attention, by any family's name of it; of block 0 a third one. */
#define SOME(inside, number)                                                                                           \
    "\"" inside "q_proj\":" number ",\"" inside "query_proj\":" number ",\"" inside "query\":" number                  \
    ",\"" inside "c_attn\":" number ",\"" inside "Wqkv\":" number ",\"" inside "qkv_proj\":" number
static const char OTHER_RANKS[] = "{" SOME("", "5") "}";
static const char OTHER_ALPHAS[] = "{" SOME("0.self_attn.", "4") "," SOME("", "15") "}";

/* Is any layer of that kind of models one that may have adapters? Both ways of saying so agree. */
static bool adapts(const struct kind *kind)
{
    const struct aq_stage_config config = config_of(kind);
    const struct aq_lora_config lora = {.rank = 2, .alpha = 1};
    struct aq_freeze_pattern pattern;
    assert_true(aq_model_lora_pattern(&config.model, config.T, "*", 0, &pattern));
    if (pattern.tensors > 0)
        assert_true(aq_model_trains(&config.model, config.T, NULL, &lora, config.layer_end));
    return pattern.tensors > 0;
}

/* Has its last layer something that trains beside adapters? */
static bool begins_untrained(const struct kind *kind)
{
    const struct aq_stage_config config = config_of(kind);
    struct layer last;
    stage_layer(&config.model, config.T, config.layer_end - 1, &last);
    return last.kind->fresh != 0;
}

/* Adapters alone train, and give the bits of one stage however the model is cut, split or made again. */
static void test_adapters_are_the_same_in_every_cut(void **state)
{
    (void)state;
    static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
    static const char *const lists[] = {NULL, "block 0", "*, !block 0, !k_proj, !key_proj"}; /* of q, k, v two */
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 9 && adapts(&kinds[k]); i++) {
            struct run run = {.kind = &kinds[k], .threads = 2, .rank = 1 + (uint32_t)i % 4};
            run.precision = precisions[i % 3];
            run.targets = lists[i / 3];
            run.lora_dropout = i % 2 ? 0.25f : 0.0f;
            run.dora = i % 2 == 0 && i != 4;
            run.dropout = i / 3 == 1 ? 0.125f : 0.0f;
            run.ranks = i % 3 ? OTHER_RANKS : NULL;
            run.alphas = i % 4 ? OTHER_ALPHAS : NULL;
            struct result whole = run_once(&run);
            const uint32_t layers = config_of(&kinds[k]).layer_end;
            for (run.cut = 1; run.cut < layers; run.cut++) {
                run.recompute = run.cut % 3 == 1;
                run.split = run.cut % 3 == 2;
                if (!sample_has(layers * (size_t)i + run.cut, layers, 2 * sample_every(2))) continue;
                struct result parts = run_once(&run);
                expect_same(&whole, &parts, 0, "adapters");
                result_free(&parts);
            }
            for (uint32_t t = 0; t < whole.count; t++) {
                double size = 0;
                for (uint64_t n = 0; n < whole.sizes[t]; n++)
                    size += fabs((double)whole.values[t][n]);
                if (!strstr(whole.names[t], ".lora_") && !begins_untrained(&kinds[k]))
                    fail_msg("%s trains", whole.names[t]);
                if (!(size > 0)) fail_msg("%s has no gradient", whole.names[t]);
            }
            result_free(&whole);
        }
}

/* At the beginning they change no bit of what the model gives. */
static void test_new_adapters_change_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 2 && adapts(&kinds[k]); i++) {
            struct run run = {.kind = &kinds[k], .threads = 2, .dropout = i ? 0.25f : 0.0f};
            struct pipeline base = pipeline_open(&run);
            run.rank = 3;
            struct pipeline adapted = pipeline_open(&run);
            for (uint32_t t = 0; t < aq_stage_tensor_count(adapted.stages[0]); t++) { /* as it begins without help */
                struct aq_tensor_info b;
                aq_stage_tensor(adapted.stages[0], t, &b);
                if (b.adapter && strstr(b.name, ".lora_B."))
                    memset(aq_stage_parameters(adapted.stages[0]) + b.offset, 0, b.count * sizeof(float));
            }
            for (uint32_t m = 0; m < MICRO; m++)
                assert_true(forward(&base, m, false) == forward(&adapted, m, false));
            pipeline_close(&base);
            pipeline_close(&adapted);
        }
}

/* Gradients of A and B, and of what trains beside them, are confirmed as all others are. */
static void test_gradients_of_adapters_match_finite_differences(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        if (!adapts(&kinds[k])) continue;
        const struct run alone = {.kind = &kinds[k], .threads = 2, .rank = 3},
                         dropped = {.kind = &kinds[k], .threads = 2, .rank = 2, .lora_dropout = 0.25f, .rslora = true},
                         beside = {
                             .kind = &kinds[k], .threads = 2, .rank = 2, .freeze = "weight", .targets = "block 1"},
                         lengths = {
                             .kind = &kinds[k], .threads = 2, .rank = 2, .freeze = "weight", .dora = true};
        differences(&alone);
        differences(&lengths);
        differences(&dropped);
        differences(&beside);
    }
}

/* Modules that are named train beside the adapters and have none; nothing else of the model does. */
static void test_saved_modules_train_whole(void **state)
{
    (void)state;
    static const char saved[] = "down_proj, output.dense, c_proj, Wo, ffn.w2, norm, LayerNorm, ln_1, mlp";
    for (int k = 0; k < KINDS; k++) {
        if (!adapts(&kinds[k])) continue;
        const struct run run = {.kind = &kinds[k], .threads = 2, .rank = 2, .saved = saved};
        struct pipeline p = pipeline_open(&run);
        uint32_t whole = 0, adapters = 0;
        for (uint32_t i = 0; i < aq_stage_tensor_count(p.stages[0]); i++) {
            struct aq_tensor_info info;
            char which, of[AQ_TENSOR_NAME_MAX];
            aq_stage_tensor(p.stages[0], i, &info);
            const bool adapter = aq_tensor_adapts(info.name, &which, of);
            const bool named = aq_lora_saves(&p.config.lora, &p.config.model, adapter ? of : info.name);
            if (named == adapter && !info.fresh) fail_msg("%s: %s trains", kinds[k].name, info.name);
            adapter ? adapters++ : whole++;
        }
        for (uint32_t i = 0; i < aq_stage_frozen_count(p.stages[0]); i++) {
            struct aq_tensor_info info;
            aq_stage_frozen(p.stages[0], i, &info);
            if (aq_lora_saves(&p.config.lora, &p.config.model, info.name)) fail_msg("%s is frozen", info.name);
        }
        if (!whole || !adapters) fail_msg("%s: %u modules, %u adapters", kinds[k].name, whole, adapters);
        pipeline_close(&p);
        differences(&run);
    }
}

/* What OTHER_ALPHAS say of that tensor. */
static float alpha_by_hand(const struct pipeline *of, const char *tensor)
{
    static const char *const first[] = {"q_proj", "query_proj", "query", "c_attn", "Wqkv", "qkv_proj"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        char end[32];
        const int bytes = snprintf(end, sizeof end, ".%s.weight", first[i]);
        const char *at = strstr(tensor, end);
        if (at && at[bytes] == 0) return strstr(tensor, ".0.self_attn.") ? 4.0f : 15.0f;
    }
    return of->config.lora.alpha;
}

/* With adapters that are larger: base and adapters are a matrix, W + (alpha / rank) B A, whichever way round W lies. */
static void merge(struct pipeline *into, const struct pipeline *of)
{
    for (uint32_t i = 0; i < aq_stage_tensor_count(of->stages[0]); i++) {
        struct aq_tensor_info a, b, w;
        uint32_t t = 0;
        char adapted[AQ_TENSOR_NAME_MAX], again[AQ_TENSOR_NAME_MAX];
        aq_stage_tensor(of->stages[0], i, &a);
        if (!a.adapter || !strstr(a.name, ".lora_A.")) continue;
        aq_stage_tensor(of->stages[0], i + 1, &b);
        char which[2];
        assert_true(aq_tensor_adapts(a.name, &which[0], adapted) && aq_tensor_adapts(b.name, &which[1], again));
        assert_true(which[0] == 'A' && which[1] == 'B' && !aq_tensor_adapts(adapted, which, again + 0));
        assert_true(aq_tensor_adapts(b.name, &which[1], again));
        assert_string_equal(adapted, again);
        struct aq_lora_config its;
        aq_lora_of(&of->config.lora, &of->config.model, adapted, &its);
        const float scale = aq_lora_scale(&its), alpha = alpha_by_hand(of, adapted);
        const uint32_t rank = its.rank;
        if (its.alpha != alpha) fail_msg("%s: alpha %g in place of %g", adapted, (double)its.alpha, (double)alpha);
        assert_true(a.shape[0] == rank && b.shape[1] == rank);
        do
            aq_stage_tensor(into->stages[0], t++, &w);
        while (strcmp(w.name, adapted) != 0);
        const uint64_t in = a.shape[1], out = b.shape[0];
        struct aq_tensor_info m = {0};
        const bool dora = of->config.lora.dora;
        if (dora) aq_stage_tensor(of->stages[0], i + 2, &m);
        float *lengths = aq_stage_parameters(of->stages[0]) + m.offset;
        const float *down = aq_stage_parameters(of->stages[0]) + a.offset;
        float *up = aq_stage_parameters(of->stages[0]) + b.offset;
        for (uint64_t n = 0; n < b.count; n++)
            up[n] *= 8; /* else their share of the loss is rounding's */
        float *W = aq_stage_parameters(into->stages[0]) + w.offset;
        for (uint64_t o = 0; o < out; o++)
            for (uint64_t n = 0; n < in; n++) {
                float sum = 0;
                for (uint32_t r = 0; r < rank; r++)
                    sum += up[o * rank + r] * down[r * in + n];
                W[a.adapts_out_in ? o * in + n : n * out + o] += scale * sum;
            }
        for (uint64_t o = 0; dora && o < out; o++) {
            double length = 0;
            lengths[o] *= 1 + 0.125f * (float)(o % 5);
            for (uint64_t n = 0; n < in; n++)
                length += pow((double)W[a.adapts_out_in ? o * in + n : n * out + o], 2);
            for (uint64_t n = 0; n < in; n++)
                W[a.adapts_out_in ? o * in + n : n * out + o] *= lengths[o] / (float)sqrt(length);
        }
    }
}

static void test_adapters_equal_a_merged_model(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * KINDS; i++) {
        const int k = i / 2;
        if (!adapts(&kinds[k])) continue;
        struct run run = {.kind = &kinds[k], .threads = 2};
        struct pipeline merged = pipeline_open(&run);
        run.rank = 3;
        run.rslora = k % 2;
        run.dora = i % 2;
        run.ranks = k % 3 ? OTHER_RANKS : NULL;
        run.alphas = OTHER_ALPHAS;
        struct pipeline adapted = pipeline_open(&run);
        const double before = forward(&merged, 0, true);
        merge(&merged, &adapted);
        const double one = forward(&merged, 0, true), other = forward(&adapted, 0, true);
        if (!(fabs(one - before) > 1e-4 * before)) /* ten times what is let pass below */
            fail_msg("%s: adapters move the loss from %g to %g", kinds[k].name, before, one);
        assert_true(fabs(one - other) <= 1e-5 * one);
        pipeline_close(&merged);
        pipeline_close(&adapted);
    }
}

static const enum aq_frozen_store stores[] = {
#define AQ_FROZEN_STORE(name, NAME, number) AQ_FROZEN_##NAME,
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE
};
enum { STORES = sizeof stores / sizeof stores[0] };
static const enum aq_stage_precision packed_precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};

static void test_frozen_weights_in_fewer_bits_are_the_same_in_every_cut(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 3 * STORES && adapts(&kinds[k]); i++) {
            struct run run = {.kind = &kinds[k], .threads = 2, .rank = 2, .store = stores[i % STORES]};
            run.precision = packed_precisions[i / STORES];
            if (!sample_has((size_t)(k * 3 * STORES + i), 3 * STORES, 3 * sample_every(2))) continue;
            if (i == 1) run.freeze = "*, !k_proj, !key_proj, !bias"; /* parts of a product, some packed */
            struct result whole = run_once(&run);
            const uint32_t layers = config_of(&kinds[k]).layer_end;
            for (run.cut = 1; run.cut < layers; run.cut++) {
                run.recompute = run.cut % 3 == 1;
                run.split = run.cut % 3 == 2;
                if (!sample_has(layers * (size_t)i + run.cut, layers, 2 * sample_every(2))) continue;
                struct result parts = run_once(&run);
                expect_same(&whole, &parts, 0, "packed");
                result_free(&parts);
            }
            result_free(&whole);
        }
}

/* How far a value may be from what was put: of the largest of its group, and of its tensor. */
static const float store_bounds[][2] = {[AQ_FROZEN_BF16] = {0x1p-8f, 0},
                                        [AQ_FROZEN_Q8] = {0.5f / 126.99f, 0},
                                        [AQ_FROZEN_NF4] = {0.1525f, 0},
                                        [AQ_FROZEN_NF4_DOUBLE] = {0.1525f, 0.01f}};

/* What was kept, put again as values or as bytes, is the same. */
static void expect_put_again(struct aq_stage *of, const struct aq_tensor_info *info, const float *kept)
{
    const uint64_t bytes = aq_stage_packed_bytes(info);
    float *again = help_alloc(info->count * sizeof *again);
    if (bytes) {
        uint8_t *packed = help_alloc(bytes);
        assert_int_equal(aq_stage_packed_get(of, info, 0, bytes, packed), AQ_OK);
        help_normal(again, info->count, 1, 1.0f);
        assert_int_equal(aq_stage_put(of, info, 0, info->count, again), AQ_OK);
        assert_int_equal(aq_stage_packed_put(of, info, packed), AQ_OK);
        aq_free(packed);
    } else {
        assert_int_equal(aq_stage_put(of, info, 0, info->count, kept), AQ_OK);
    }
    assert_int_equal(aq_stage_get(of, info, 0, info->count, again), AQ_OK);
    assert_memory_equal(kept, again, info->count * sizeof *kept);
    aq_free(again);
}

/* How far what is kept is from what was put; how many values are packed. */
static uint64_t expect_kept(struct aq_stage *of, struct aq_stage *fp32, enum aq_frozen_store store)
{
    const uint32_t count = aq_stage_frozen_count(of);
    uint64_t digest = 0, packed = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct aq_tensor_info info, there;
        uint32_t at = 0;
        aq_stage_frozen(of, i, &info);
        do
            aq_stage_frozen(fp32, at++, &there);
        while (strcmp(there.name, info.name) != 0);
        assert_true(!there.packed && (!info.packed || (info.packed == store && info.dimensions == 2)));
        float *kept = help_alloc(info.count * sizeof *kept), *exact = help_alloc(info.count * sizeof *exact);
        assert_int_equal(aq_stage_get(fp32, &there, 0, info.count, exact), AQ_OK);
        assert_int_equal(aq_stage_put(of, &info, 0, info.count, exact), AQ_OK);
        assert_int_equal(aq_stage_get(of, &info, 0, info.count, kept), AQ_OK);
        float largest = 0;
        for (uint64_t n = 0; n < info.count; n++)
            largest = fmaxf(largest, fabsf(exact[n]));
        for (uint64_t n = 0; n < info.count; n++) {
            float most = fabsf(exact[n]), bound = 0;
            const uint64_t group = n / AQ_STAGE_GROUP * AQ_STAGE_GROUP;
            for (uint64_t j = group; store != AQ_FROZEN_BF16 && j < group + AQ_STAGE_GROUP && j < info.count; j++)
                most = fmaxf(most, fabsf(exact[j]));
            if (info.packed) bound = most * store_bounds[store][0] + largest * store_bounds[store][1];
            assert_true(fabsf(kept[n] - exact[n]) <= bound);
        }
        expect_put_again(of, &info, kept);
        assert_int_equal(aq_stage_put(fp32, &there, 0, info.count, kept), AQ_OK);
        if (info.packed) packed += info.count;
        aq_free(kept);
        aq_free(exact);
    }
    assert_int_equal(aq_stage_packed_digest(of, &digest), AQ_OK);
    assert_true(packed == 0 || digest != 0);
    assert_int_equal(aq_stage_frozen_changed(fp32, NULL), AQ_OK);
    return packed;
}

/* A model of fp32 that has the values that are kept gives the same loss and gradients, bit for bit. */
static void test_frozen_weights_in_fewer_bits_compute_as_their_values(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 3 * STORES && adapts(&kinds[k]); i++) {
            struct run run = {.kind = &kinds[k], .threads = 2, .rank = 2, .precision = packed_precisions[i / STORES]};
            if (!sample_has((size_t)(k * 3 * STORES + i), 3 * STORES, 3 * sample_every(2))) continue;
            struct pipeline exact = pipeline_open(&run);
            run.store = stores[i % STORES];
            struct pipeline packed = pipeline_open(&run);
            struct aq_stage_size size, less;
            struct aq_stage_config config = exact.config;
            const uint64_t count = expect_kept(packed.stages[0], exact.stages[0], run.store);
            assert_int_equal(aq_stage_measure(&config, &size), AQ_OK);
            config.frozen_store = run.store;
            assert_int_equal(aq_stage_measure(&config, &less), AQ_OK);
            assert_true(count > 0 && less.packed == count && less.frozen == size.frozen);
            if (run.store == AQ_FROZEN_BF16) assert_true(less.packed_bytes == 2 * count);
            /* of small tensors the map of nf4_double takes more than the values */
            assert_true(less.frozen_bytes < size.frozen_bytes || run.store == AQ_FROZEN_NF4_DOUBLE);
            assert_true(forward(&exact, 0, false) == forward(&packed, 0, false));
            backward(&exact, 0);
            backward(&packed, 0);
            assert_memory_equal(aq_stage_gradients(exact.stages[0]), aq_stage_gradients(packed.stages[0]),
                                aq_stage_parameter_count(exact.stages[0]) * sizeof(float));
            pipeline_close(&exact);
            pipeline_close(&packed);
        }
}

#endif
