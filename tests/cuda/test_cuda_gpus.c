/*
 * test_cuda_gpus.c -- several GPUs in one process, without one: what is enqueued goes to the GPU that was meant.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "aqsgd/device.h"
#include "aqsgd/device_math.h"
#include "cuda_runtime_api.h"

struct two_gpus {
    struct aq_device *devices[2];
    struct aq_event *events[2];
    float *memory[2];
    enum aq_status status;
};

/* A kernel, a copy and an event on each GPU, in turn, as a thread with two devices does it. */
static enum aq_status use_both(struct two_gpus *both)
{
    for (int turn = 0; turn < 4; turn++) {
        const int i = turn % 2;
        const struct aq_gelu gelu = {.count = 64, .type = AQ_F32, .x = both->memory[i], .y = both->memory[i]};
        AQ_TRY(aq_device_gelu(both->devices[i], &gelu, NULL));
        AQ_TRY(aq_device_zero(both->devices[1 - i], both->memory[1 - i], 64 * sizeof(float), NULL));
        AQ_TRY(aq_device_event_record(both->devices[i], both->events[i], NULL));
        AQ_TRY(aq_device_event_wait(both->devices[1 - i], both->events[i], NULL));
    }
    for (int i = 0; i < 2; i++)
        AQ_TRY(aq_device_stream_sync(both->devices[i], NULL));
    return AQ_OK;
}

static void *use_elsewhere(void *context)
{
    struct two_gpus *both = context;
    both->status = use_both(both);
    return NULL;
}

/* CUDA refuses kernels and events of a GPU that is not the thread's current one, and so does its emulation. */
static void test_a_thread_may_have_two_gpus_and_a_gpu_two_threads(void **state)
{
    (void)state;
    struct two_gpus both = {.status = AQ_INVAL};
    pthread_t thread;
    cuda_runtime_host_driver(13000, 2, 9, 0);
    for (uint32_t i = 0; i < 2; i++) {
        const struct aq_device_config config = {.kind = "cuda", .index = i};
        void *memory;
        assert_int_equal(aq_device_open(&config, &both.devices[i]), AQ_OK);
        assert_int_equal(aq_device_alloc(both.devices[i], AQ_MEMORY_DEVICE, 64 * sizeof(float), &memory), AQ_OK);
        both.memory[i] = memory;
    }
    for (int i = 0; i < 2; i++) /* GPU 1 is current */
        assert_int_equal(aq_device_event_open(both.devices[i], &both.events[i]), AQ_OK);
    assert_int_equal(use_both(&both), AQ_OK);
    assert_int_equal(pthread_create(&thread, NULL, use_elsewhere, &both), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(both.status, AQ_OK);
    for (int i = 0; i < 2; i++) {
        aq_device_event_close(both.devices[i], both.events[i]);
        aq_device_free(both.devices[i], AQ_MEMORY_DEVICE, both.memory[i], 64 * sizeof(float));
        aq_device_close(both.devices[i]);
    }
    cuda_runtime_host_driver(13000, 1, 9, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thread_may_have_two_gpus_and_a_gpu_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
