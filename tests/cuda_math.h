/*
 * cuda_math.h -- what the tests of the mathematics' kernels share: arrays, the truth, distances.
 *
 * The truth is the CPU backend with AQ_CPU=plain, through the device's own functions; the kernels run under the launch
 * emulation (cuda_host/cuda_host.h), three times in three orders of blocks and threads, and must give the same bits
 * each time. Distances are Euclidean, relative to the truth; an array that is `exact` has the truth's bits.
 */
#ifndef CUDA_MATH_H
#define CUDA_MATH_H

#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda_host_test.h"
#include "device/cuda_kernels.h"

/* fp32 results: a few units of 2^-24, sums in another order. bf16 results: one unit of 2^-8. */
static const double NEAR = 3e-6, NEAR_BF16 = 6e-3;

enum compare { NOT_COMPARED = 0, COMPARED = 1, EXACT = 2, COMPARED_AS_BF16 = 3 };

struct array {
    enum aq_element type;
    uint64_t count;
    const void *host; /* before; NULL: zeroes. Taken over */
    enum compare compare;
    void *at, *results[2];
};

static struct aq_device *math_truth;
static void *math_scratch;

static inline size_t math_bytes(const struct array *array)
{
    return array->count * (array->type == AQ_BF16 ? 2 : 4);
}

static inline void *math_random(enum aq_element type, uint64_t count, uint64_t stream, float std)
{
    float *values = help_alloc(count * sizeof *values);
    help_normal(values, count, stream, std);
    if (type == AQ_F32) return values;
    uint16_t *halves = help_alloc(count * sizeof *halves);
    for (uint64_t i = 0; i < count; i++)
        halves[i] = aq_bfloat_from_float(values[i]);
    aq_free(values);
    return halves;
}

/* Keys of `count` samples, as an array of floats: math_keys_count of them. */
static inline uint64_t math_keys_count(uint64_t count)
{
    return count * sizeof(struct aq_rng_key) / 4;
}

static inline void *math_keys(uint64_t count)
{
    struct aq_rng_key *keys = help_alloc(count * sizeof *keys);
    for (uint64_t i = 0; i < count; i++)
        keys[i] = aq_rng_key(7, AQ_RNG_DROPOUT, 3, i);
    return keys;
}

static inline float math_value(const void *x, enum aq_element type, uint64_t i)
{
    return type == AQ_BF16 ? aq_bfloat_to_float(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static inline void math_compare(const char *what, const struct array *array)
{
    const size_t bytes = math_bytes(array);
    if (array->compare == EXACT) {
        if (memcmp(array->results[0], array->results[1], bytes) == 0) return;
        for (uint64_t i = 0; i < array->count; i++) {
            const float mine = math_value(array->results[1], array->type, i);
            const float true_value = math_value(array->results[0], array->type, i);
            if (memcmp(&mine, &true_value, sizeof mine) != 0)
                fail_msg("%s: element %llu is %.9g, not %.9g", what, (unsigned long long)i, mine, true_value);
        }
    }
    float *x = help_alloc(array->count * sizeof *x), *y = help_alloc(array->count * sizeof *y);
    for (uint64_t i = 0; i < array->count; i++) {
        x[i] = math_value(array->results[1], array->type, i);
        y[i] = math_value(array->results[0], array->type, i);
    }
    const bool halves = array->type == AQ_BF16 || array->compare == COMPARED_AS_BF16;
    const double distance = help_distance(x, y, array->count), limit = halves ? NEAR_BF16 : NEAR;
    if (!(distance <= limit)) fail_msg("%s: differs by %g, more than %g", what, distance, limit);
    aq_free(x);
    aq_free(y);
}

static inline void *math_copy(const struct array *array)
{
    void *copy = help_alloc(math_bytes(array));
    if (array->host && math_bytes(array)) memcpy(copy, array->host, math_bytes(array));
    return copy;
}

/* Runs `truth` once and `mine` under three seeds on copies of the same arrays, compares, and frees everything. */
static inline void math_both(const char *what, struct array *arrays, uint32_t count,
                             enum aq_status (*truth)(struct array *arrays, const void *context),
                             enum aq_status (*mine)(struct array *arrays, const void *context), const void *context)
{
    static const uint64_t seeds[] = {0, 11, 12};
    for (int round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < count; i++)
            arrays[i].at = math_copy(&arrays[i]);
        if (round) cuda_host_seed(seeds[round - 1]);
        assert_int_equal((round ? mine : truth)(arrays, context), AQ_OK);
        for (uint32_t i = 0; i < count; i++) {
            if (round < 2) {
                arrays[i].results[round] = arrays[i].at;
                continue;
            }
            if (memcmp(arrays[i].at, arrays[i].results[1], math_bytes(&arrays[i])) != 0)
                fail_msg("%s, array %u: depends on the order of blocks or threads", what, i);
            aq_free(arrays[i].at);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s, array %u", what, i);
        if (arrays[i].compare != NOT_COMPARED) math_compare(text, &arrays[i]);
        aq_free(arrays[i].results[0]);
        aq_free(arrays[i].results[1]);
        aq_free((void *)(uintptr_t)arrays[i].host);
    }
}

/* The truth's device and the kernels' scratch, around a group of tests. */
static inline int math_main(const struct CMUnitTest *tests, size_t count)
{
    setenv("AQ_CPU", "plain", 1);
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    if (aq_device_open(&config, &math_truth) != AQ_OK) return 1;
    if (aq_map(AQ_CUDA_SCRATCH_BYTES, &math_scratch) != AQ_OK) return 1;
    const int failed = _cmocka_run_group_tests("cuda", tests, count, NULL, NULL);
    aq_unmap(math_scratch, AQ_CUDA_SCRATCH_BYTES);
    aq_device_close(math_truth);
    return failed ? 1 : 0;
}

#endif
