/*
 * test_processor.c -- one table of instruction sets: what AQ_CPU says is taken, or refused, by device, codecs, gradient
 * codecs and optimizers alike.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aqsgd/device.h"
#include "aqsgd/device_math.h"
#include "codec_internal.h"
#include "grad_internal.h"
#include "log_capture.h"
#include "optimizer_fused.h"

static enum aq_status device_status(void)
{
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    struct aq_device *device = NULL;
    const enum aq_status status = aq_device_open(&config, &device);
    aq_device_close(device);
    return status;
}

static void test_every_name_is_known_to_all(void **state)
{
    static const struct {
        const char *name, *codec, *others;
        enum aq_instructions needs;
    } levels[] = {{"plain", "plain", "plain", AQ_PLAIN},
                  {"base", "plain", "plain", AQ_BASE},
                  {"avx2", "avx2", "avx2", AQ_AVX2},
                  {"avx512", "avx512", "avx512", AQ_AVX512},
                  {"avx512bf16", "avx512", "avx512", AQ_AVX512_BF16},
                  {"amx", "avx512", "avx512", AQ_AMX_BF16},
                  {"vbmi", "vbmi", "avx512", AQ_AVX512_VBMI}};
    (void)state;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        uint32_t set = 0;
        setenv("AQ_CPU", levels[i].name, 1);
        capture_begin();
        const enum aq_status chosen = aq_processor_choose(&set), opened = device_status();
        capture_end();
        assert_int_equal(chosen, aq_processor_has() & levels[i].needs ? AQ_OK : AQ_NODEV);
        assert_int_equal(opened, chosen);
        if (chosen != AQ_OK) {
            assert_non_null(strstr(captured.lines[0], "it has plain base"));
            continue;
        }
        assert_true((set & levels[i].needs) && set == aq_processor_used() && (set & ~aq_processor_has()) == 0);
        assert_string_equal(aq_codec_kernels_best()->name, levels[i].codec);
        assert_string_equal(aq_grad_kernels_best()->name, levels[i].others);
        assert_ptr_equal(aq_fused_runs_best(), aq_fused_runs_named(levels[i].others));
    }
    unsetenv("AQ_CPU");
}

static void test_an_unknown_name_is_refused_with_those_there_are(void **state)
{
    uint32_t set = 0;
    (void)state;
    setenv("AQ_CPU", "sse9", 1);
    capture_begin();
    const enum aq_status chosen = aq_processor_choose(&set), opened = device_status();
    capture_end();
    unsetenv("AQ_CPU");
    assert_int_equal(chosen, AQ_INVAL);
    assert_int_equal(opened, AQ_INVAL);
    assert_non_null(strstr(captured.lines[0], "AQ_CPU=sse9 is unknown; this processor has plain base"));
    assert_string_equal(captured.lines[0], captured.lines[1]);
    assert_int_equal(aq_processor_choose(&set), AQ_OK);
    assert_int_equal(set, aq_processor_has());
}

static uint32_t refusals;

static void count_refusals(int level, const char *line, void *context)
{
    (void)context;
    static const char words[] = "Linux refuses the tile registers of AMX to this process (";
    if (level == AQ_LOG_WARNING && strstr(line, words)) refusals++;
}

/* A product of bf16 on the CPU as it opens now. */
static void product(float c[9])
{
    enum { SIDE = 3, K = 70 };
    const struct aq_device_config config = {.kind = "cpu", .threads = 1};
    struct aq_device *device;
    float a[SIDE * K], b[SIDE * K];
    for (int i = 0; i < SIDE * K; i++) {
        a[i] = (float)(i * 7 % 32 - 15) / 13;
        b[i] = (float)(i * 5 % 32 - 17) / 11;
    }
    const struct aq_matmul args = {.M = SIDE, .N = SIDE, .K = K, .a = a, .a_stride = K, .b = b, .b_stride = SIDE,
                                   .compute = AQ_BF16, .c = c, .c_stride = SIDE};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
    aq_device_close(device);
}

/* Linux refuses tile registers where a signal stack is too small for them. Products are then made without them. */
static void test_products_without_tiles_that_linux_refuses(void **state)
{
    (void)state;
    if ((aq_processor_has() & AQ_AMX_BF16) == 0) {
        print_message("skipped: this processor has no AMX\n");
        skip();
    }
    static char small[4096];
    const stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
    stack_t before;
    float refused[9], without[9];
    if (sigaltstack(&stack, &before) != 0) {
        print_message("skipped: Linux refuses so small a signal stack, with or without tiles\n");
        skip();
    }
    aq_log_sink(count_refusals, NULL);
    product(refused);
    assert_int_equal(refusals, 1);
    assert_int_equal(sigaltstack(&before, NULL), 0);
    setenv("AQ_CPU", "avx512bf16", 1);
    product(without);
    unsetenv("AQ_CPU");
    assert_memory_equal(refused, without, sizeof refused);
    assert_true(aq_processor_request_tiles());
    product(refused); /* tiles may order the sums as they like */
    aq_log_sink(NULL, NULL);
    assert_int_equal(refusals, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_without_tiles_that_linux_refuses), /* first: Linux takes nothing back */
        cmocka_unit_test(test_every_name_is_known_to_all),
        cmocka_unit_test(test_an_unknown_name_is_refused_with_those_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
