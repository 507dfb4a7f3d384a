/*
 * test_cudnn_plans.c -- the graphs of cuda_cudnn_plan.c in cuDNN itself, without a GPU: it takes a GPU's properties
 * in words, names algorithms for it and compiles them; what a machine without a driver cannot do is load what came
 * out, and the library says so by its own status, which is the end that is wanted here. With a GPU plans are made
 * to the end. What the graphs compute is conform_device_cuda_cudnn's (a stand-in) and gpu_conform_device_cudnn's (a
 * GPU).
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda_cudnn.h"

static struct cudnn_calls calls;

/* What cuDNN asks of a GPU, as its descriptor's text has it; H100's but for the first two. */
static const char properties[] =
    "{\"deviceVer\": %d, \"multiProcessorCount\": %d, \"maxSharedMemoryPerBlockOptin\": %d, \"deviceName\": \"a GPU\", "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"smCountOrigin\": 0, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"oversizedSharedMemoryPerBlock\": 0, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, \"isTccDriver\": 0, "
    "\"supportCoopLaunch\": 1, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, \"memoryBusWidth\": 5120, "
    "\"l2CacheSize\": 52428800, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"totalGlobalMem\": 85000000000}";

static cudnnBackendDescriptor_t gpu_of(int capability, int processors, int shared)
{
    char text[2048];
    cudnnBackendDescriptor_t made = NULL;
    snprintf(text, sizeof text, properties, capability, processors, shared);
    assert_int_equal(calls.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made), 0);
    assert_int_equal(calls.cudnnBackendSetAttribute(made, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                                    (int64_t)strlen(text) + 1, text),
                     0);
    const cudnnStatus_t status = calls.cudnnBackendFinalize(made);
    if (status != CUDNN_STATUS_SUCCESS) {
        char why[512];
        calls.cudnnGetLastErrorString(why, sizeof why);
        fail_msg("cuDNN does not take a GPU's properties: %s", why);
    }
    return made;
}

/* Of each GPU that this is built for: models' shapes, windows, odd lengths, shared heads of keys. */
static void test_each_shape_has_a_deterministic_algorithm(void **state)
{
    (void)state;
    static const int gpus[][3] = {{800, 108, 166912}, {900, 132, 232448}, {1000, 148, 232448}};
    static const struct cudnn_key shapes[] = {{16, 1024, 12, 12, 64, 0, AQ_BF16, 0}, /* GPT-2 124M */
                                              {4, 1024, 25, 25, 64, 0, AQ_BF16, 0},  /* GPT-2 1.5B */
                                              {2, 2048, 16, 8, 128, 0, AQ_F16, 0},   /* Qwen3 0.6B */
                                              {2, 1000, 9, 3, 64, 0, AQ_BF16, 0},    /* SmolLM2 135M, an odd length */
                                              {2, 512, 8, 4, 128, 128, AQ_BF16, 0}}; /* a window */
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        cudnnBackendDescriptor_t gpu = gpu_of(gpus[g][0], gpus[g][1], gpus[g][2]);
        for (size_t s = 0; s < 2 * sizeof shapes / sizeof shapes[0]; s++) {
            struct cudnn_plan *plan = calloc(1, sizeof *plan);
            struct cudnn_key key = shapes[s / 2];
            key.backward = s % 2;
            assert_non_null(plan);
            cudnn_plan_make(&calls, &key, NULL, gpu, (uint64_t)1 << 40, plan);
            const bool loaded_last = plan->failed == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
            printf("sm_%d, T %llu, D %llu%s: %s\n", gpus[g][0] / 10, (unsigned long long)key.T,
                   (unsigned long long)key.D, key.backward ? ", backward" : "",
                   plan->plan    ? "a plan"
                   : loaded_last ? "made; there is no driver to load it"
                                 : plan->why);
            if (!plan->plan && !loaded_last) fail_msg("no algorithm: %s", plan->why);
            cudnn_plan_drop(plan);
            free(plan);
        }
        calls.cudnnBackendDestroyDescriptor(gpu);
    }
}

/* A shape that no algorithm is for ends in words and frees what was made. */
static void test_a_shape_that_has_none_is_said(void **state)
{
    (void)state;
    cudnnBackendDescriptor_t gpu = gpu_of(900, 132, 232448);
    struct cudnn_plan *plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    const struct cudnn_key key = {1, 64, 2, 2, 4096, 0, AQ_BF16, 1};
    cudnn_plan_make(&calls, &key, NULL, gpu, 1 << 20, plan);
    assert_null(plan->plan);
    assert_true(plan->failed != CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER && plan->why[0]);
    cudnn_plan_drop(plan);
    assert_int_equal(plan->count, 0);
    free(plan);
    calls.cudnnBackendDestroyDescriptor(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_shape_has_a_deterministic_algorithm),
        cmocka_unit_test(test_a_shape_that_has_none_is_said),
    };
    void *library = dlopen(AQ_CUDNN_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
#define TAKE(name)                                                                                                     \
    *(void **)&calls.name = dlsym(library, #name);                                                                     \
    if (!calls.name) return 1;
    CUDNN_CALLS(TAKE)
    return cmocka_run_group_tests(tests, NULL, NULL);
}
