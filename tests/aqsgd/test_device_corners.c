/*
 * test_device_corners.c -- dropout masks where a counter of 32 bits would run over: the words of a stream are counted
 * in 64 bits, in every variant of the row kernels alike.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/base.h"
#include "aqsgd/device.h"
#include "cpu_rows.h"

static void test_masks_across_every_carry_are_those_of_the_stream(void **state)
{
    enum { N = 700 };
    static const uint64_t places[] = {0, UINT64_C(1) << 32, UINT64_C(1) << 34, UINT64_C(3) << 34, UINT64_C(1) << 40};
    static float ones[N], wanted[N], got[N];
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 2, 3);
    const struct cpu_rows *tables[4] = {&cpu_rows_plain};
    size_t count = 1;
    (void)state;
#if defined(__x86_64__)
    if (aq_processor_has() & AQ_AVX2) tables[count++] = &cpu_rows_avx2;
    if (aq_processor_has() & AQ_AVX512) tables[count++] = &cpu_rows_avx512;
#endif
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (uint64_t back = 0; back <= 300; back += 50) {
            const struct cpu_mask mask = {
                .key = &key, .offset = places[p] > back ? places[p] - back : back, .threshold = 1u << 23, .factor = 2};
            for (uint64_t i = 0; i < N; i++)
                wanted[i] = aq_rng_u32(&key, mask.offset + i) >> 8 >= mask.threshold ? 2 : 0;
            for (size_t t = 0; t < count; t++) {
                tables[t]->mask(ones, N, &mask, got, AQ_F32);
                if (memcmp(got, wanted, sizeof got) != 0)
                    fail_msg("%s: the mask at %llu is not that of its words", tables[t]->name,
                             (unsigned long long)mask.offset);
            }
        }
}

/* A stream does not come again after 2^34 words (2^32 blocks of four). */
static void test_streams_do_not_come_again(void **state)
{
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, 2, 3);
    uint32_t first[64], later[64];
    (void)state;
    for (int shift = 32; shift < 64; shift++) {
        for (uint64_t i = 0; i < 64; i++) {
            first[i] = aq_rng_u32(&key, i);
            later[i] = aq_rng_u32(&key, (UINT64_C(1) << shift) + i);
        }
        assert_memory_not_equal(first, later, sizeof first);
    }
}

/* Of a kind every machine says the same; what auto is here is what opening it takes. */
static void test_who_asks_for_a_gpu_is_told_one_thing(void **state)
{
    const struct aq_device_config config = {.kind = "auto", .threads = 1};
    struct aq_device *device = NULL;
    struct aq_device_info info;
    (void)state;
    assert_int_equal(aq_device_gpu("cpu"), AQ_GPU_NO);
    assert_int_equal(aq_device_gpu("cuda"), AQ_GPU_YES);
    assert_int_equal(aq_device_gpu("auto"), AQ_GPU_MAYBE);
    assert_int_equal(aq_device_gpu(NULL), AQ_GPU_MAYBE);
    assert_true(!aq_device_gpu_here("cpu", 0) && aq_device_gpu_here("cuda", 0));
    if (aq_device_open(&config, &device) != AQ_OK) return; /* a GPU that is there and cannot be had */
    aq_device_info(device, &info);
    assert_true(info.host_memory != aq_device_gpu_here("auto", 0));
    aq_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_asks_for_a_gpu_is_told_one_thing),
        cmocka_unit_test(test_masks_across_every_carry_are_those_of_the_stream),
        cmocka_unit_test(test_streams_do_not_come_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
