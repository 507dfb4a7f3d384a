/*
 * test_cuda_cudnn.c -- what is asked of cuDNN, without a GPU: the emulated library checks each graph and computes it
 * (cuda_host/runtime/cudnn_host.c). Results are those of the project's own kernels, and what cuDNN cannot do is theirs.
 */
#include "stage_help.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "aqsgd/device_graph.h"
#include "attention_results.h"
#include "conv_results.h"
#include "cudnn.h"

/*
 * Asked for, cuDNN computes what its graph has words for, by the first algorithm that is deterministic and can be made;
 * the rest, and all where it has none, is the project's.
 */
static void test_attention_by_cudnn_is_the_house_s(void **state)
{
    (void)state;
    static const struct {
        struct cudnn_host_say say;
        struct attended_how how;
        int ran, algorithm;
    } cases[] = {{{.version = 92801, .workspace = 4096}, {.window = 9}, 2, 1},
                 {{.version = 92801, .workspace = 4096, .failing = 0x6}, {.window = 9}, 2, 3},
                 {{.version = 92801, .workspace = 4096, .failing = 0xe}, {.window = 9}, 0, 0},
                 {{.version = 92801, .workspace = 64 << 20}, {.window = 9}, 0, 0}, /* more than there is to work in */
                 {{.version = 92801, .workspace = 4096}, {.window = 9, .dropout = 0.25f}, 0, 0},
                 {{.version = 92801, .workspace = 4096}, {.window = 9, .fp32 = true}, 1, 1}, /* backward is ours */
                 {{.version = 92801, .workspace = 4096}, {.both = true}, 2, 1},
                 {{.version = 92801, .workspace = 4096}, {.both = true, .window = 9}, 2, 1},
                 {{.version = 92801, .workspace = 4096}, {.both = true, .lengths = true}, 2, 1},
                 {{.version = 92801, .workspace = 4096}, {.both = true, .window = 1, .lengths = true}, 2, 1},
                 {{.version = 92801, .workspace = 4096}, {.parts = true}, 2, 1},
                 {{.version = 92801, .workspace = 4096}, {.parts = true, .window = 4}, 2, 1}};
    int algorithm;
    quiet_begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unsetenv("AQ_GPU_ATTENTION");
        struct attended *own = attend(&cases[i].how);
        assert_int_equal(cudnn_host_ran(&algorithm), 0);
        setenv("AQ_GPU_ATTENTION", "cudnn", 1);
        cudnn_host_say(cases[i].say);
        struct attended *by_cudnn = attend(&cases[i].how);
        assert_int_equal(cudnn_host_open(), 0);
        const int ran = cudnn_host_ran(&algorithm);
        if (ran != cases[i].ran) fail_msg("case %zu: cuDNN ran %d times, not %d", i, ran, cases[i].ran);
        if (ran) assert_int_equal(algorithm, cases[i].algorithm);
        attended_near(by_cudnn->out, own->out, ATTENDED_OUT);
        if (!cases[i].how.fp32) attended_near(by_cudnn->dqkv_rounded, own->dqkv_rounded, ATTENDED_WIDE);
        free(own);
        free(by_cudnn);
    }
    quiet_end();
    cudnn_host_say((struct cudnn_host_say){.version = 92801, .workspace = 4096});
    unsetenv("AQ_GPU_ATTENTION");
}

static void test_a_way_that_is_not_there_is_said(void **state)
{
    (void)state;
    static const char *const variables[] = {"AQ_GPU_ATTENTION", "AQ_GPU_CONVOLUTION"};
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_device *device = NULL;
    for (size_t i = 0; i < 2; i++) {
        struct aq_error_hold hold;
        aq_error_hold(&hold);
        setenv(variables[i], "flash", 1);
        assert_int_equal(aq_device_open(&config, &device), AQ_INVAL);
        assert_non_null(strstr(hold.text, variables[i]));
        aq_error_release(&hold);
        aq_error_hold(&hold);
        setenv(variables[i], "cudnn", 1);
        cudnn_host_say((struct cudnn_host_say){.version = 91900});
        assert_int_equal(aq_device_open(&config, &device), AQ_NODEV);
        assert_non_null(strstr(hold.text, variables[i]));
        aq_error_release(&hold);
        cudnn_host_say((struct cudnn_host_say){.version = 92801, .workspace = 4096});
        setenv(variables[i], "own", 1);
        assert_int_equal(aq_device_open(&config, &device), AQ_OK);
        aq_device_close(device);
        unsetenv(variables[i]);
    }
}

/* --- convolutions ----------------------------------------------------------------------------------------------- */

static uint64_t conv_values(const struct aq_conv_shape *s)
{
    return s->samples * s->height * s->width * s->C + s->K * s->K * s->C * s->N +
           s->samples * aq_conv_out(s->height, s->stride) * aq_conv_out(s->width, s->stride) * s->N;
}

/* With cuDNN and without: `ran` graphs by `algorithm`, and the same results to the order of sums. */
static void convolve_both(const struct aq_conv_shape *shape, uint64_t conv_bytes, int ran, int algorithm)
{
    int by = 0;
    unsetenv("AQ_GPU_CONVOLUTION");
    float *own = conv_results(shape, conv_bytes, NULL);
    assert_int_equal(cudnn_host_ran(&by), 0);
    setenv("AQ_GPU_CONVOLUTION", "cudnn", 1);
    float *other = conv_results(shape, conv_bytes, NULL);
    const int count = cudnn_host_ran(&by);
    unsetenv("AQ_GPU_CONVOLUTION");
    assert_int_equal(cudnn_host_open(), 0);
    if (count != ran || (ran && by != algorithm))
        fail_msg("%llu x %llu, stride %llu: %d graphs by algorithm %d, not %d by %d", (unsigned long long)shape->height,
                 (unsigned long long)shape->K, (unsigned long long)shape->stride, count, by, ran, algorithm);
    for (uint64_t i = 0; i < conv_values(shape); i++)
        if (!(fabsf(other[i] - own[i]) < 1e-4f * (1.0f + fabsf(own[i]))))
            fail_msg("%llu x %llu, value %llu: %g by cuDNN, %g", (unsigned long long)shape->height,
                     (unsigned long long)shape->K, (unsigned long long)i, (double)other[i], (double)own[i]);
    aq_free(own);
    aq_free(other);
}

/* Odd sizes, strides, 1 x 1, windows beyond the image; one channel, so that nothing is aligned; all precisions. */
static void test_convolutions_by_cudnn_are_the_house_s(void **state)
{
    (void)state;
    static const struct aq_conv_shape shapes[] = {{2, 11, 17, 12, 20, 3, 1, AQ_F32}, {5, 9, 7, 12, 20, 3, 2, AQ_F32},
                                                  {2, 6, 5, 1, 3, 5, 3, AQ_F32},     {4, 6, 5, 16, 8, 1, 1, AQ_F32},
                                                  {3, 8, 8, 8, 16, 1, 2, AQ_F32},    {2, 3, 2, 3, 5, 7, 2, AQ_F32}};
    static const enum aq_element computes[] = {AQ_F32, AQ_TF32, AQ_BF16, AQ_F16};
    for (size_t i = 0; i < 4 * sizeof shapes / sizeof shapes[0]; i++) {
        struct aq_conv_shape shape = shapes[i / 4];
        shape.compute = computes[i % 4];
        /* In fp32 only the algorithm without tensor cores, which the fallback names. */
        convolve_both(&shape, 0, 3, shape.compute == AQ_F32 ? 3 : 1);
    }
}

/* In 16 bits a batch is cut where the scratch ends, the last piece smaller; in fp32 there is nothing to cut. */
static void test_pieces_of_a_batch_are_the_whole(void **state)
{
    (void)state;
    const struct aq_conv_shape rounded = {5, 9, 7, 12, 20, 3, 2, AQ_BF16}, exact = {5, 9, 7, 12, 20, 3, 2, AQ_F32};
    const uint64_t sample = 9 * 7 * 12 * sizeof(uint16_t);
    convolve_both(&rounded, 2 * sample, 9, 1);
    convolve_both(&exact, 2 * sample, 3, 3);
    quiet_begin();
    convolve_both(&rounded, sample - 1, 0, 0); /* not even one fits */
    quiet_end();
}

/* y of ones and weights of ones: each value is the number of pixels that it reads, times C. */
static void convolve_ones(struct aq_device *device, const struct aq_conv_shape *shape)
{
    enum { VALUES = 512 };
    float ones[VALUES], y[VALUES];
    void *memory = NULL;
    const uint64_t out = shape->samples * shape->height * shape->width * shape->N;
    for (int i = 0; i < VALUES; i++)
        ones[i] = 1;
    assert_true(out <= VALUES && shape->samples * shape->height * shape->width * shape->C <= VALUES && shape->K == 1);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 3 * sizeof ones, &memory), AQ_OK);
    float *x = memory, *w = x + VALUES;
    const struct aq_conv conv = {*shape, x, w, w + VALUES};
    assert_int_equal(aq_device_copy(device, x, ones, sizeof ones, NULL), AQ_OK);
    assert_int_equal(aq_device_copy(device, w, ones, sizeof ones, NULL), AQ_OK);
    assert_int_equal(aq_device_conv(device, &conv, NULL), AQ_OK);
    assert_int_equal(aq_device_copy(device, y, conv.y, sizeof y, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    for (uint64_t i = 0; i < out; i++)
        if (y[i] != (float)shape->C) fail_msg("value %llu: %g", (unsigned long long)i, (double)y[i]);
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 3 * sizeof ones);
}

/* Convolutions of as many shapes as there are places for plans, less `but`. */
static void convolve_others(struct aq_device *device, uint32_t but)
{
    uint32_t left = CUDNN_PLANS_MAX - but;
    for (uint64_t C = 1; C <= 32; C++)
        for (uint64_t N = 1; N <= 32 && left > 0; N++, left--)
            convolve_ones(device, &(struct aq_conv_shape){1, 1, 1, C, N, 1, 1, AQ_BF16});
}

/* The plan of a batch's last piece takes the place of another: not of the plan of the pieces before it. */
static void test_the_plan_of_a_last_piece_leaves_that_of_the_others(void **state)
{
    (void)state;
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_conv_shape pieces = {7, 3, 3, 1, 1, 1, 1, AQ_BF16};
    struct aq_device *device = NULL;
    int by;
    setenv("AQ_GPU_CONVOLUTION", "cudnn", 1);
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    cuda_device_of(device)->conv_bytes = 4 * 9 * sizeof(uint16_t);
    convolve_ones(device, &pieces); /* 4 and 3 images: the first two plans */
    convolve_others(device, 2);
    pieces.samples = 10;
    convolve_ones(device, &pieces); /* 4, 4 and 2: all places are taken, and the first is the next to go */
    aq_device_close(device);
    unsetenv("AQ_GPU_CONVOLUTION");
    assert_int_equal(cudnn_host_open(), 0);
    assert_int_equal(cudnn_host_ran(&by), CUDNN_PLANS_MAX - 2 + 2 + 3);
}

/* How often a convolution is enqueued in a pass: once if it is launched as a graph. */
static int times_of_a_pass(struct aq_device *device, struct aq_graph *graph, const struct aq_conv *conv)
{
    enum aq_status status;
    int times = 0;
    assert_int_equal(aq_device_graph_begin(device, graph, NULL), AQ_OK);
    do {
        times++;
        status = aq_device_conv(device, conv, NULL);
    } while (aq_device_graph_again(device, graph, &status));
    assert_int_equal(status, AQ_OK);
    return times;
}

/* A graph has kernels of a plan. When the plan has gone, and is made again, that graph is not launched any more. */
static void test_no_graph_outlives_its_plan(void **state)
{
    (void)state;
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_conv conv = {.shape = {2, 3, 3, 1, 1, 1, 1, AQ_BF16}};
    struct aq_device *device = NULL;
    struct aq_graph *graph = NULL;
    void *memory = NULL;
    int by;
    setenv("AQ_GPU_CONVOLUTION", "cudnn", 1);
    setenv("AQ_GPU_GRAPHS", "1", 1);
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_graph_open(device, &graph), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 4096, &memory), AQ_OK);
    assert_int_equal(aq_device_zero(device, memory, 4096, NULL), AQ_OK);
    float *values = memory;
    conv.x = values;
    conv.w = values + 256;
    conv.y = values + 512;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(times_of_a_pass(device, graph, &conv), 2);
        assert_int_equal(times_of_a_pass(device, graph, &conv), 2);
        assert_int_equal(times_of_a_pass(device, graph, &conv), 1);
        convolve_others(device, 0);
    }
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 4096);
    aq_device_graph_close(device, graph);
    aq_device_close(device);
    unsetenv("AQ_GPU_GRAPHS");
    unsetenv("AQ_GPU_CONVOLUTION");
    assert_int_equal(cudnn_host_open(), 0);
    assert_true(cudnn_host_ran(&by) > 0);
}

/* Where it has no algorithm, or too little room to work in, the kernels of the project do it and the log says so. */
static void test_a_convolution_that_cudnn_cannot_do_is_the_house_s(void **state)
{
    (void)state;
    const struct aq_conv_shape shape = {2, 11, 17, 12, 20, 3, 1, AQ_BF16};
    static const struct {
        struct cudnn_host_say say;
        int ran, algorithm;
    } cases[] = {{{.version = 92801, .workspace = 4096, .failing = 0x6}, 3, 3},
                 {{.version = 92801, .workspace = 4096, .failing = 0xe}, 0, 0},
                 {{.version = 92801, .workspace = 64 << 20}, 0, 0}};
    quiet_begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cudnn_host_say(cases[i].say);
        convolve_both(&shape, 0, cases[i].ran, cases[i].algorithm);
    }
    quiet_end();
    cudnn_host_say((struct cudnn_host_say){.version = 92801, .workspace = 4096});
}

/* A checkpoint names what cuDNN computes. */
static void test_the_rounding_names_what_cudnn_computes(void **state)
{
    (void)state;
    static const struct {
        const char *attention, *convolution, *end;
    } cases[] = {{"own", "own", NULL},
                 {"cudnn", "own", ", cuDNN 92801"},
                 {"own", "cudnn", ", cuDNN 92801: convolutions"},
                 {"cudnn", "cudnn", ", cuDNN 92801: attention and convolutions"},
                 {"fastest", "own", ", cuDNN 92801: attention by the table"},
                 {"fastest", "cudnn", ", cuDNN 92801: convolutions, attention by the table"},
                 {"own", "fastest", ", cuDNN 92801: convolutions by the table"},
                 {"cudnn", "fastest", ", cuDNN 92801: attention, convolutions by the table"},
                 {"fastest", "fastest", ", cuDNN 92801: attention and convolutions by the table"}};
    char folder[] = "/tmp/aqpipe-rounding-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/cudnn-the-host-4-92801", folder);
    setenv("AQ_GPU_TABLE", folder, 1);
    const struct aq_device_config config = {.kind = "cuda"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_device *device = NULL;
        struct aq_device_info info;
        setenv("AQ_GPU_ATTENTION", cases[i].attention, 1);
        setenv("AQ_GPU_CONVOLUTION", cases[i].convolution, 1);
        assert_int_equal(aq_device_open(&config, &device), AQ_OK);
        aq_device_info(device, &info);
        const char *end = strstr(info.rounding, ", cuDNN");
        if (cases[i].end)
            assert_string_equal(end, cases[i].end);
        else
            assert_null(end);
        aq_device_close(device);
    }
    unsetenv("AQ_GPU_TABLE");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    unsetenv("AQ_GPU_ATTENTION");
    unsetenv("AQ_GPU_CONVOLUTION");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_by_cudnn_is_the_house_s),
        cmocka_unit_test(test_a_way_that_is_not_there_is_said),
        cmocka_unit_test(test_convolutions_by_cudnn_are_the_house_s),
        cmocka_unit_test(test_pieces_of_a_batch_are_the_whole),
        cmocka_unit_test(test_the_plan_of_a_last_piece_leaves_that_of_the_others),
        cmocka_unit_test(test_no_graph_outlives_its_plan),
        cmocka_unit_test(test_a_convolution_that_cudnn_cannot_do_is_the_house_s),
        cmocka_unit_test(test_the_rounding_names_what_cudnn_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
