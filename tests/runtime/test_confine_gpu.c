/*
 * test_confine_gpu.c -- a GPU opens, computes and closes behind what confines a worker: the seccomp filter, Landlock
 * with a run folder (the daemon's rules, then the worker's), and both. Each case is a process of its own, because CUDA
 * starts once per process.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aqsgd/device.h"
#include "confine.h"

enum { SKIPPED = 77, FAILED = 99 };

static char run_folder[] = "/var/tmp/aq-confine-gpu-XXXXXX";

/* Opens GPU 0 and copies a page to it and back. */
static int gpu_works(void)
{
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_device *device = NULL;
    void *host = NULL, *memory = NULL;
    if (aq_device_open(&config, &device) != AQ_OK) return FAILED;
    const bool done = aq_device_alloc(device, AQ_MEMORY_PINNED, 4096, &host) == AQ_OK &&
                      aq_device_alloc(device, AQ_MEMORY_DEVICE, 4096, &memory) == AQ_OK;
    if (done) memset(host, 7, 4096);
    const bool copied = done && aq_device_copy(device, memory, host, 4096, NULL) == AQ_OK &&
                        aq_device_zero(device, memory, 2048, NULL) == AQ_OK &&
                        aq_device_copy(device, host, memory, 4096, NULL) == AQ_OK &&
                        aq_device_stream_sync(device, NULL) == AQ_OK;
    const bool right = copied && ((uint8_t *)host)[2047] == 0 && ((uint8_t *)host)[2048] == 7;
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 4096);
    aq_device_free(device, AQ_MEMORY_PINNED, host, 4096);
    aq_device_close(device);
    return right ? 0 : FAILED;
}

static void in_child(bool folders, bool filter)
{
    int how;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static struct aq_confine confine = {.gpus = true};
        if (folders) {
            if (aq_confine_allow(&confine.run, run_folder) != AQ_OK) _exit(FAILED);
            const enum aq_status status = aq_confine_enter(&confine, "/proc/self/exe", NULL);
            if (status != AQ_OK) _exit(status == AQ_NODEV ? SKIPPED : FAILED);
            int rules;
            if (aq_confine_rules(&confine, "/proc/self/exe", NULL, &rules) != AQ_OK || rules == -1 ||
                !aq_confine_follow(rules))
                _exit(FAILED);
        }
        if (filter && !aq_confine_worker()) _exit(SKIPPED);
        _exit(gpu_works());
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == SKIPPED) {
        print_message("this kernel has no Landlock or no seccomp filter\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void test_gpu_works_freely(void **state)
{
    (void)state;
    in_child(false, false);
}

static void test_gpu_works_behind_the_filter(void **state)
{
    (void)state;
    in_child(false, true);
}

static void test_gpu_works_behind_landlock(void **state)
{
    (void)state;
    in_child(true, false);
}

static void test_gpu_works_behind_both(void **state)
{
    (void)state;
    in_child(true, true);
}

/* With an argument only the tests whose names match run. */
int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_works_freely),
        cmocka_unit_test(test_gpu_works_behind_the_filter),
        cmocka_unit_test(test_gpu_works_behind_landlock),
        cmocka_unit_test(test_gpu_works_behind_both),
    };
    if (count > 1) cmocka_set_test_filter(arguments[1]);
    if (!mkdtemp(run_folder)) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(run_folder);
    return failed;
}
