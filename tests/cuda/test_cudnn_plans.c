/*
 * test_cudnn_plans.c -- the graphs of cuda_cudnn_*.c in cuDNN itself, without a GPU: it takes a GPU's properties
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

/* Each GPU that this is built for. */
static const int gpus[][3] = {{800, 108, 166912}, {900, 132, 232448}, {1000, 148, 232448}};

/* A plan can be made, up to what needs a driver. Freed. */
static void has_an_algorithm(const struct cudnn_key *key, int capability, cudnnBackendDescriptor_t gpu,
                             uint64_t workspace_max, const char *text)
{
    struct cudnn_plan *plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    cudnn_plan_make(&calls, key, NULL, gpu, workspace_max, plan);
    const bool loaded_last = plan->failed == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    printf("sm_%d, %s: %s\n", capability / 10, text,
           plan->plan    ? "a plan"
           : loaded_last ? "made; there is no driver to load it"
                         : plan->why);
    if (!plan->plan && !loaded_last) fail_msg("no algorithm: %s", plan->why);
    cudnn_plan_drop(plan);
    free(plan);
}

/* Models' shapes, windows, odd lengths, shared heads of keys; encoders, samples of several lengths and of parts. */
static void test_each_shape_has_a_deterministic_algorithm(void **state)
{
    (void)state;
    static const struct cudnn_key shapes[] = {
        {.type = AQ_BF16, .attention = {16, 1024, 12, 12, 64, 0, 0}}, /* GPT-2 124M */
        {.type = AQ_BF16, .attention = {4, 1024, 25, 25, 64, 0, 0}},  /* GPT-2 1.5B */
        {.type = AQ_F16, .attention = {2, 2048, 16, 8, 128, 0, 0}},   /* Qwen3 0.6B */
        {.type = AQ_BF16, .attention = {2, 1000, 9, 3, 64, 0, 0}},    /* SmolLM2 135M, an odd length */
        {.type = AQ_BF16, .attention = {2, 512, 8, 4, 128, 128, 0}},  /* a window */
        {.type = AQ_BF16, .attention = {16, 512, 12, 12, 64, 0, CUDNN_BOTH}},
        {.type = AQ_F16, .attention = {2, 511, 8, 8, 128, 0, CUDNN_BOTH | CUDNN_LENGTHS}},
        {.type = AQ_BF16, .attention = {8, 1024, 12, 12, 64, 65, CUDNN_BOTH}}, /* ModernBERT's local layers */
        {.type = AQ_BF16, .attention = {8, 1024, 12, 12, 64, 65, CUDNN_BOTH | CUDNN_LENGTHS}},
        {.type = AQ_BF16, .attention = {4, 1024, 9, 3, 64, 0, CUDNN_PARTS}},
        {.type = AQ_F16, .attention = {2, 1000, 16, 8, 128, 128, CUDNN_PARTS}}};
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        cudnnBackendDescriptor_t gpu = gpu_of(gpus[g][0], gpus[g][1], gpus[g][2]);
        for (size_t s = 0; s < 2 * sizeof shapes / sizeof shapes[0]; s++) {
            struct cudnn_key key = shapes[s / 2];
            char text[128];
            key.operation = s % 2 ? CUDNN_ATTENTION_BACKWARD : CUDNN_ATTENTION;
            key.alignment = 16;
            snprintf(text, sizeof text, "T %llu, D %llu, window %llu, masks %llu%s",
                     (unsigned long long)key.attention.T, (unsigned long long)key.attention.D,
                     (unsigned long long)key.attention.window, (unsigned long long)key.attention.masks,
                     s % 2 ? ", backward" : "");
            has_an_algorithm(&key, gpus[g][0], gpu, (uint64_t)1 << 40, text);
        }
        calls.cudnnBackendDestroyDescriptor(gpu);
    }
}

/*
 * ResNet's shapes, and some that nothing divides, in each precision; within the workspace that a stream has. Gradients
 * in 16 bits of an odd number of channels have none in cuDNN 9.28: those are left to the project's own.
 */
static void test_each_convolution_has_a_deterministic_algorithm(void **state)
{
    (void)state;
    static const struct {
        uint64_t sizes[7]; /* samples, height, width, C, N, K, stride */
        uint16_t alignment;
    } shapes[] = {{{16, 56, 56, 64, 64, 3, 1}, 16},  {{16, 56, 56, 64, 128, 3, 2}, 16},
                  {{16, 56, 56, 64, 128, 1, 2}, 16}, {{16, 14, 14, 256, 64, 1, 1}, 16},
                  {{16, 32, 32, 3, 64, 3, 1}, 16},   {{2, 224, 224, 3, 64, 7, 2}, 16},
                  {{3, 33, 29, 5, 7, 3, 2}, 4},      {{16, 56, 56, 60, 120, 3, 1}, 16}};
    static const uint32_t types[] = {AQ_F32, AQ_TF32, AQ_BF16, AQ_F16};
    for (size_t g = 0; g < sizeof gpus / sizeof gpus[0]; g++) {
        cudnnBackendDescriptor_t gpu = gpu_of(gpus[g][0], gpus[g][1], gpus[g][2]);
        for (size_t s = 0; s < 12 * sizeof shapes / sizeof shapes[0]; s++) {
            struct cudnn_key key = {.operation = (uint16_t)(CUDNN_CONV + s % 3),
                                    .alignment = shapes[s / 12].alignment,
                                    .type = types[s / 3 % 4]};
            char text[128];
            memcpy(&key.conv, shapes[s / 12].sizes, sizeof key.conv);
            if (aq_element_bytes(key.type) == 2 && key.conv.C % 2 && key.operation != CUDNN_CONV) continue;
            snprintf(text, sizeof text,
                     "operation %zu of %llu x %llu, %llu to %llu channels, K %llu, stride %llu, type %u", s % 3,
                     (unsigned long long)key.conv.height, (unsigned long long)key.conv.width,
                     (unsigned long long)key.conv.C, (unsigned long long)key.conv.N, (unsigned long long)key.conv.K,
                     (unsigned long long)key.conv.stride, key.type);
            has_an_algorithm(&key, gpus[g][0], gpu, CUDA_WORKSPACE_BYTES, text);
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
    const struct cudnn_key key = {.operation = CUDNN_ATTENTION_BACKWARD,
                                  .alignment = 16,
                                  .type = AQ_BF16,
                                  .attention = {1, 64, 2, 2, 4096, 0, 0}};
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
        cmocka_unit_test(test_each_convolution_has_a_deterministic_algorithm),
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
