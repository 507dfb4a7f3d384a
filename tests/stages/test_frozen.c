/*
 * test_frozen.c -- frozen weights in fewer bits: nf4 has the bits of bitsandbytes, and every store keeps its promises.
 *
 * golden/nf4.safetensors is what bitsandbytes made (golden/nf4_make.py).
 */
#include <stdio.h>

#include "aqsgd/base.h"
#include "frozen_store.h"
#include "stage_help.h"
#include "stages/weights.h"

static struct aq_weights *golden;

static const char *const cases[] = {"one",   "odd",  "group",   "group_and_one", "scales_of_eight", "matrix",
                                    "zeros", "tiny", "nothing", "outliers",      "ties",
                                    "two_rows_of_scales"};

static const struct frozen_store *const stores[] = {
#define AQ_FROZEN_STORE(name, NAME, number) &frozen_store_##name,
#include "stages/frozen_stores.def"
#undef AQ_FROZEN_STORE
};
enum { STORES = sizeof stores / sizeof stores[0], STEP = 61 };

static uint32_t index_of(const char *name, const char *what, uint64_t *count)
{
    char full[96];
    struct aq_weights_info info;
    uint32_t index;
    snprintf(full, sizeof full, "%s.%s", name, what);
    assert_int_equal(aq_weights_find(golden, full, &index), AQ_OK);
    aq_weights_info(golden, index, &info);
    *count = info.count;
    return index;
}

static float *golden_floats(const char *name, const char *what, uint64_t *count)
{
    const uint32_t index = index_of(name, what, count);
    float *values = help_alloc(*count * sizeof *values);
    assert_int_equal(aq_weights_read(golden, index, false, values, *count), AQ_OK);
    return values;
}

static void expect_bytes(const char *name, const char *what, const uint8_t *have)
{
    uint64_t count;
    const uint32_t index = index_of(name, what, &count);
    uint8_t *bytes = help_alloc(count);
    assert_int_equal(aq_weights_bytes(golden, index, bytes, count), AQ_OK);
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] != have[i])
            fail_msg("%s.%s: byte %llu is %u, not %u", name, what, (unsigned long long)i, have[i], bytes[i]);
    aq_free(bytes);
}

static void expect_floats(const char *name, const char *what, const float *have, uint64_t step)
{
    uint64_t count;
    float *values = golden_floats(name, what, &count);
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(&values[i], &have[i * step], sizeof values[i]) != 0)
            fail_msg("%s.%s: value %llu is %a, not %a", name, what, (unsigned long long)i, (double)have[i * step],
                     (double)values[i]);
    aq_free(values);
}

/* A tensor as a store keeps it: each part in memory of its own, so that a sanitizer sees what goes beyond it. */
struct kept {
    const struct frozen_store *store;
    uint64_t count;
    uint8_t *parts[FROZEN_PARTS];
};

static struct kept kept_of(const struct frozen_store *store, const float *values, uint64_t count)
{
    struct kept kept = {.store = store, .count = count};
    for (uint32_t p = 0; p < FROZEN_PARTS; p++) {
        const uint64_t bytes = frozen_part_bytes(store, p, count);
        if (bytes) kept.parts[p] = help_alloc(bytes);
        if (bytes) memset(kept.parts[p], 0xa5, bytes);
    }
    assert_int_equal(store->pack(values, count, kept.parts), AQ_OK);
    return kept;
}

static void kept_free(struct kept *kept)
{
    for (uint32_t p = 0; p < FROZEN_PARTS; p++)
        aq_free(kept->parts[p]);
}

static void kept_values(const struct kept *kept, uint64_t first, uint64_t count, float *values)
{
    const uint8_t *parts[FROZEN_PARTS];
    for (uint32_t p = 0; p < FROZEN_PARTS; p++) {
        const struct frozen_part *part = &kept->store->parts[p];
        parts[p] = part->bytes ? kept->parts[p] + (part->values ? first / part->values * part->bytes : 0) : NULL;
    }
    kept->store->unpack(parts, first, count, values);
}

static void test_nf4_has_the_bits_of_bitsandbytes(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t count;
        float *input = golden_floats(cases[c], "input", &count), *values = help_alloc(count * sizeof *values);
        const uint64_t step = count < 700 ? 1 : STEP;
        struct kept kept = kept_of(&frozen_store_nf4, input, count);
        kept_values(&kept, 0, count, values);
        expect_bytes(cases[c], "codes", kept.parts[0]);
        expect_floats(cases[c], "nf4.scales", (const float *)(const void *)kept.parts[1], 1);
        expect_floats(cases[c], "nf4.values", values, step);
        kept_free(&kept);
        kept = kept_of(&frozen_store_nf4_double, input, count);
        kept_values(&kept, 0, count, values);
        const float *map = (const float *)(const void *)kept.parts[3];
        expect_bytes(cases[c], "codes", kept.parts[0]);
        expect_floats(cases[c], "nf4_double.offset", &map[AQ_NF4_MAP - 1], 1);
        expect_floats(cases[c], "nf4_double.scales_of_scales", (const float *)(const void *)kept.parts[2], 1);
        expect_bytes(cases[c], "nf4_double.scales", kept.parts[1]);
        expect_floats(cases[c], "nf4_double.values", values, step);
        kept_free(&kept);
        aq_free(input);
        aq_free(values);
    }
}

/* Every byte is written; values come back from any group on, and from a device, as they are. */
static void test_stores_keep_tensors_of_any_size(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 63, 64, 65, 127, 4096, 16384, 16385, 33000};
    struct aq_device *device = help_device(2);
    for (size_t s = 0; s < STORES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t count = sizes[s / STORES];
        const struct frozen_store *store = stores[s % STORES];
        float *input = help_alloc(count * sizeof *input), *values = help_alloc(count * sizeof *values);
        float *other = help_alloc(count * sizeof *other);
        help_normal(input, count, s, s % 3 ? 0.02f : 1.0f);
        for (uint64_t i = 0; i < count && s % 2; i += 3)
            input[i] = i % 2 ? 0.0f : -0.0f;
        struct kept kept = kept_of(store, input, count), again;
        kept_values(&kept, 0, count, values);
        for (uint64_t first = 0; first < count; first += 7 * AQ_STAGE_GROUP) { /* from any group on */
            const uint64_t n = count - first < 1000 ? count - first : 1000;
            kept_values(&kept, first, n, other);
            assert_memory_equal(other, values + first, n * sizeof *other);
        }
        assert_int_equal(store->apply(device, (const uint8_t *const *)kept.parts, count, other, AQ_F32, NULL), AQ_OK);
        assert_memory_equal(other, values, count * sizeof *other);
        double far = 0, all = 0;
        for (uint64_t i = 0; i < count; i++) {
            far += ((double)values[i] - (double)input[i]) * ((double)values[i] - (double)input[i]);
            all += (double)input[i] * (double)input[i];
        }
        assert_true(far <= 0.02 * all); /* nf4 of normal numbers: 0.009 */
        again = kept_of(store, store->repeats ? values : input, count);
        for (uint32_t p = 0; p < FROZEN_PARTS; p++)
            if (again.parts[p])
                assert_memory_equal(again.parts[p], kept.parts[p], frozen_part_bytes(store, p, count));
        kept_free(&again);
        kept_free(&kept);
        aq_free(input);
        aq_free(values);
        aq_free(other);
    }
    aq_device_close(device);
}

/* Numbers of rows are files' for ever. */
static void test_stores_have_their_numbers_and_names(void **state)
{
    (void)state;
    static const char *const names[] = {"fp32", "bf16", "q8", "nf4", "nf4_double"};
    for (int i = 0; i < 5; i++)
        assert_string_equal(aq_frozen_store_name((enum aq_frozen_store)i), names[i]);
    assert_null(frozen_store_of((enum aq_frozen_store)5));
    assert_string_equal(aq_frozen_store_type(AQ_FROZEN_BF16), "BF16");
    assert_string_equal(aq_frozen_store_type(AQ_FROZEN_NF4), "F32");
}

/*
 * The offset of double quantization is PyTorch's mean of the scales, added in its order. The scales of golden/ are of
 * fp16, whose sums are exact in any order; these have 24 bits. Made by torch 2.15.0, torch.set_num_threads(1):
 *     torch.from_numpy((((i * 2654435761 + 12345) % 2**32) >> 8).astype(float32) / 2**24).mean(), i = arange(count)
 */
static void test_mean_of_scales_is_that_of_torch(void **state)
{
    static const struct {
        uint32_t scales;
        float mean;
    } means[] = {{9, 0x1.e37856p-2f},    {100, 0x1.f88278p-2f},  {261, 0x1.fd9f44p-2f},
                 {1000, 0x1.fffa90p-2f}, {5000, 0x1.fff3a0p-2f}, {30000, 0x1.fffcb6p-2f}};
    (void)state;
    for (size_t m = 0; m < sizeof means / sizeof means[0]; m++) {
        const uint64_t count = (uint64_t)AQ_STAGE_GROUP * means[m].scales;
        float *values = help_alloc(count * sizeof *values);
        memset(values, 0, count * sizeof *values);
        for (uint32_t i = 0; i < means[m].scales; i++)
            values[(uint64_t)AQ_STAGE_GROUP * i] = (float)((i * 2654435761u + 12345u) >> 8) / (1 << 24);
        struct kept kept = kept_of(&frozen_store_nf4_double, values, count);
        const float mean = ((const float *)(const void *)kept.parts[3])[AQ_NF4_MAP - 1];
        if (mean != means[m].mean)
            fail_msg("the mean of %u scales is %a, not %a", means[m].scales, (double)mean, (double)means[m].mean);
        kept_free(&kept);
        aq_free(values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nf4_has_the_bits_of_bitsandbytes),
        cmocka_unit_test(test_mean_of_scales_is_that_of_torch),
        cmocka_unit_test(test_stores_keep_tensors_of_any_size),
        cmocka_unit_test(test_stores_have_their_numbers_and_names),
    };
    if (aq_weights_open(AQ_GOLDEN "/nf4.safetensors", &golden) != AQ_OK) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    aq_weights_close(golden);
    return failed;
}
