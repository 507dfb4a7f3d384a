/*
 * test_cuda_graph.c -- graphs of launches on the emulated runtime (device_graph.h): when one is launched, that none is
 * with an argument of another time, what no graph can hold, and what CUDA forbids while it records. Whole models:
 * test_cuda_graph_models.c.
 */
#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>

#include "aqsgd/device_graph.h"
#include "cuda_runtime_api.h"

enum { ROWS = 3, C = 40, COUNT = ROWS * C, OUTPUTS = 2, GRAPHS = 256 /* that a graph keeps */ };

static struct aq_device *device;
static float *x, *more_x /* three times x */, *ones, *identity, *between, *y[OUTPUTS], *rstd, *pinned;
static struct aq_graph *graph;

/*
 * What a pass enqueues: the first rows of y = norm(x + x), or norm(x + more_x), by zeroes, a copy, a product and a
 * kernel with a factor.
 */
static struct pass {
    float epsilon;
    int output, more_input;
    uint64_t rows;
    int times; /* so often it was enqueued */
    enum aq_status (*more)(struct aq_stream *stream, const struct pass *pass);
} pass;

static enum aq_status pass_enqueue(struct aq_stream *stream)
{
    pass.times++;
    float *to = y[pass.output];
    const struct aq_matmul product = {.M = ROWS,
                                      .N = C,
                                      .K = ROWS,
                                      .a = identity,
                                      .b = pass.more_input ? more_x : x,
                                      .c = between,
                                      .a_stride = ROWS,
                                      .b_stride = C,
                                      .c_stride = C,
                                      .compute = AQ_F32,
                                      .accumulate = true};
    const struct aq_rmsnorm norm = {
        .rows = pass.rows, .C = C, .epsilon = pass.epsilon, .x = between, .gamma = ones, .y = to, .rstd = rstd};
    AQ_TRY(aq_device_zero(device, to, COUNT * sizeof *to, stream));
    AQ_TRY(aq_device_copy(device, between, x, COUNT * sizeof *x, stream));
    AQ_TRY(aq_device_matmul(device, &product, stream));
    AQ_TRY(aq_device_rmsnorm(device, &norm, stream));
    return pass.more ? pass.more(stream, &pass) : AQ_OK;
}

static enum aq_status pass_run(void)
{
    enum aq_status status;
    pass.times = 0;
    assert_int_equal(aq_device_graph_begin(device, graph, NULL), AQ_OK);
    do
        status = pass_enqueue(NULL);
    while (aq_device_graph_again(device, graph, &status));
    return status;
}

/* A pass over other values of x, enqueued `times` times and launched as a graph or not; its result is right. */
static void pass_check(int times, bool launched)
{
    static uint64_t number;
    const uint64_t before = cuda_runtime_host_graph_launches();
    float host[COUNT], thrice[COUNT], got[COUNT];
    const float share = pass.more_input ? 4 : 2;
    help_normal(host, COUNT, ++number, 1.0f);
    for (int i = 0; i < COUNT; i++)
        thrice[i] = 3 * host[i];
    assert_int_equal(aq_device_copy(device, x, host, sizeof host, NULL), AQ_OK);
    assert_int_equal(aq_device_copy(device, more_x, thrice, sizeof thrice, NULL), AQ_OK);
    assert_int_equal(pass_run(), AQ_OK);
    assert_int_equal(aq_device_copy(device, got, y[pass.output], sizeof got, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    assert_int_equal(pass.times, times);
    assert_int_equal(cuda_runtime_host_graph_launches() - before, launched);
    for (uint64_t i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int c = 0; c < C; c++)
            sum += pow(share * host[i * C + c], 2) / C;
        const double factor = i < pass.rows ? 1 / sqrt(sum + pass.epsilon) : 0;
        for (int c = 0; c < C; c++)
            assert_true(fabs(got[i * C + c] - share * host[i * C + c] * factor) < 1e-5);
    }
}

static float *device_ones(void)
{
    void *memory = NULL;
    float host[COUNT];
    for (int i = 0; i < COUNT; i++)
        host[i] = 1;
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, sizeof host, &memory), AQ_OK);
    assert_int_equal(aq_device_copy(device, memory, host, sizeof host, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    return memory;
}

static int graph_begin(void **state)
{
    (void)state;
    pass = (struct pass){.epsilon = 0.5f, .rows = ROWS};
    return aq_device_graph_open(device, &graph) == AQ_OK && graph ? 0 : -1;
}

static int graph_end(void **state)
{
    (void)state;
    aq_device_graph_close(device, graph);
    graph = NULL;
    return 0;
}

static void refused_with(enum aq_status status, enum aq_status wanted, const char *words)
{
    if (status != wanted || !strstr(aq_error_text(), words))
        fail_msg("status %d, \"%s\"; wanted %d, \"%s\"", status, aq_error_text(), wanted, words);
    aq_error_clear();
}

static void test_a_pass_that_comes_again_is_one_launch(void **state)
{
    (void)state;
    pass_check(2, false); /* listed, enqueued */
    pass_check(2, true);  /* listed, recorded */
    for (int i = 0; i < 3; i++)
        pass_check(1, true);
}

static void test_another_argument_is_another_graph(void **state)
{
    (void)state;
    const struct pass first = pass;
    for (int change = 0; change < 4; change++) {
        pass = first;
        pass_check(change == 0 ? 2 : 1, change > 0);
        pass_check(change == 0 ? 2 : 1, true);
        if (change == 0) pass.epsilon = 0.25f;
        if (change == 1) pass.output = 1;
        if (change == 2) pass.rows = ROWS - 1;
        if (change == 3) pass.more_input = 1;
        pass_check(2, false);
        pass_check(2, true);
        pass_check(1, true);
    }
    pass = first;
    pass_check(1, true);
}

/* A product of a shape that has no plan ends the list; the pass runs, and counts for nothing. */
static void test_a_product_without_a_plan_runs_first(void **state)
{
    (void)state;
    struct aq_device *const all = device;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(graph_begin(state), 0);
    pass_check(2, false);
    pass_check(2, false);
    pass_check(2, true);
    pass_check(1, true);
    graph_end(state);
    aq_device_close(device);
    device = all;
}

static struct aq_event *event;
static struct aq_stream *other;

static enum aq_status more_sync(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    return aq_device_stream_sync(device, stream);
}

static enum aq_status more_record(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    return aq_device_event_record(device, event, stream);
}

static enum aq_status more_wait(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    return aq_device_event_wait(device, event, stream);
}

static enum aq_status more_query(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    (void)stream;
    return aq_device_event_query(device, event);
}

static enum aq_status more_alloc(struct aq_stream *stream, const struct pass *of)
{
    void *memory = NULL;
    (void)of;
    (void)stream;
    return aq_device_alloc(device, AQ_MEMORY_DEVICE, 64, &memory);
}

static enum aq_status more_squares(struct aq_stream *stream, const struct pass *of)
{
    const struct aq_range span = {0, C};
    double sum;
    (void)of;
    return aq_device_squares(device, x, &span, 1, &sum, stream);
}

static enum aq_status more_draws(struct aq_stream *stream, const struct pass *of)
{
    const struct aq_fill_normal fill = {.x = rstd, .count = 1, .std = 1};
    (void)of;
    return aq_device_fill_normal(device, &fill, stream);
}

static enum aq_status more_elsewhere(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    (void)stream;
    return aq_device_zero(device, rstd, sizeof *rstd, other);
}

static void test_what_no_graph_can_hold_is_said(void **state)
{
    (void)state;
    static const struct {
        enum aq_status (*more)(struct aq_stream *stream, const struct pass *pass);
        const char *words;
    } cases[] = {{more_sync, "a wait for the stream cannot be part of a graph; unset AQ_GPU_GRAPHS"},
                 {more_record, "an event cannot be part"},
                 {more_wait, "a wait for an event cannot be part"},
                 {more_query, "a look at an event cannot be part"},
                 {more_alloc, "an allocation cannot be part"},
                 {more_squares, "a sum that the host reads cannot be part"},
                 {more_draws, "a draw of initial values cannot be part"},
                 {more_elsewhere, "goes to another stream than the graph's"}};
    assert_int_equal(aq_device_event_open(device, &event), AQ_OK);
    assert_int_equal(aq_device_stream_open_light(device, &other), AQ_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pass.more = cases[i].more;
        refused_with(pass_run(), AQ_INVAL, cases[i].words);
    }
    pass.more = NULL;
    assert_int_equal(more_sync(NULL, NULL), AQ_OK); /* outside it is what it was */
    pass_check(2, false);
    aq_device_stream_close(device, other);
    aq_device_event_close(device, event);
}

/* Other work where the same was asked for again, which neither CUDA nor a list can set right. */
static enum aq_status more_each_time(struct aq_stream *stream, const struct pass *of)
{
    return aq_device_zero(device, rstd, sizeof *rstd * (of->times == 1 ? 1 : 2), stream);
}

static void test_a_pass_that_differs_when_repeated_is_an_error(void **state)
{
    (void)state;
    pass.more = more_each_time;
    refused_with(pass_run(), AQ_MISMATCH, "was not the same twice; unset AQ_GPU_GRAPHS");
    refused_with(pass_run(), AQ_MISMATCH, "was not the same twice"); /* while CUDA records */
    pass.more = NULL;
    pass_check(2, false);
    pass_check(2, true);
    pass_check(1, true);
}

static float pageable[COUNT];

static enum aq_status more_pageable(struct aq_stream *stream, const struct pass *of)
{
    (void)of;
    return aq_device_copy(device, pageable, x, sizeof pageable, stream);
}

static enum aq_status more_pinned(struct aq_stream *stream, const struct pass *of)
{
    return aq_device_copy(device, pinned, y[of->output], COUNT * sizeof *pinned, stream);
}

static void test_what_cuda_refuses_to_record_is_an_error(void **state)
{
    (void)state;
    pass.more = more_pageable;
    assert_int_equal(pass_run(), AQ_OK); /* enqueued one by one it may be */
    refused_with(pass_run(), AQ_CUDAERR,
                 "operation not permitted when stream is capturing (cudaError); unset AQ_GPU_GRAPHS");
    pass.more = more_pinned;
    pass_check(2, false);
    pass_check(2, true);
    pass_check(1, true);
    pass.more = NULL;
    cuda_runtime_host_graph_fails();
    pass_check(2, false);
    refused_with(pass_run(), AQ_NOMEM, "cudaGraphInstantiate (AQ_GPU_GRAPHS)");
    cuda_runtime_host_graph_fails();
    refused_with(pass_run(), AQ_NOMEM, "; unset AQ_GPU_GRAPHS");
    pass_check(2, true); /* there was memory again */
    pass_check(1, true);
}

/* The one that was not used for the longest gives its place to another. */
static void test_more_graphs_than_are_kept(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * GRAPHS; i++) { /* without a wait: those that go may be running */
        pass.epsilon = 1000.0f + (float)(i / 2);
        assert_int_equal(pass_run(), AQ_OK);
    }
    for (int i = 0; i <= GRAPHS; i++) {
        pass.epsilon = 1.0f + (float)i;
        pass_check(2, false);
        pass_check(2, true);
    }
    pass.epsilon = 3.0f; /* the third: the first went for the last */
    pass_check(1, true);
    pass.epsilon = 1.0f;
    pass_check(2, false); /* and the second goes for it, not the third */
    pass.epsilon = 3.0f;
    pass_check(1, true);
    pass.epsilon = 2.0f;
    pass_check(2, false);
}

static enum aq_status many_zeroes(struct aq_stream *stream, const struct pass *of)
{
    for (int i = 0; i < 2000; i++)
        AQ_TRY(aq_device_zero(device, between, sizeof *between, stream));
    const struct aq_scale last = {.x = between, .count = 1, .factor = of->epsilon};
    return aq_device_scale(device, &last, stream);
}

/* The host's time from the end of a list that has not come before to the second enqueueing. */
static uint64_t time_of_a_new_list(float last)
{
    pass = (struct pass){.epsilon = last, .more = many_zeroes};
    assert_int_equal(aq_device_graph_begin(device, graph, NULL), AQ_OK);
    enum aq_status status = many_zeroes(NULL, &pass);
    const uint64_t begin = aq_clock_ns();
    assert_true(aq_device_graph_again(device, graph, &status));
    const uint64_t end = aq_clock_ns();
    status = many_zeroes(NULL, &pass);
    assert_false(aq_device_graph_again(device, graph, &status));
    assert_int_equal(status, AQ_OK);
    return end - begin;
}

/* A loss factor that differs in each step is the last argument of a long list: 256 of them are not read for each. */
static void test_long_lists_that_begin_alike_cost_no_more(void **state)
{
    (void)state;
    uint64_t few = UINT64_MAX, many = UINT64_MAX;
    for (int i = 0; i < GRAPHS + 40; i++) {
        const uint64_t ns = time_of_a_new_list(1.0f + (float)i);
        if (i < 8 && ns < few) few = ns;
        if (i >= GRAPHS && ns < many) many = ns;
    }
    print_message("%.1f us with few lists, %.1f us with %d\n", (double)few * 1e-3, (double)many * 1e-3, GRAPHS);
    assert_true(many < 8 * few);
}

static void test_it_is_asked_for_by_the_environment(void **state)
{
    (void)state;
    static const struct {
        const char *graphs, *sync, *words;
        bool has;
    } cases[] = {{NULL, NULL, NULL, false},
                 {"", NULL, NULL, false},
                 {"0", "1", NULL, false},
                 {"1", "0", NULL, true},
                 {"1", NULL, NULL, true},
                 {"yes", NULL, "it must be 0 or 1", false},
                 {"1", "1", "AQ_SYNC=1 waits after every kernel", false}};
    const struct aq_device_config config = {.kind = "cuda"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct aq_device *one = NULL;
        struct aq_graph *its = NULL;
        cases[i].graphs ? setenv("AQ_GPU_GRAPHS", cases[i].graphs, 1) : unsetenv("AQ_GPU_GRAPHS");
        if (cases[i].sync) setenv("AQ_SYNC", cases[i].sync, 1);
        const enum aq_status status = aq_device_open(&config, &one);
        unsetenv("AQ_SYNC");
        setenv("AQ_GPU_GRAPHS", "1", 1);
        if (cases[i].words) {
            refused_with(status, AQ_INVAL, cases[i].words);
            continue;
        }
        assert_int_equal(status, AQ_OK);
        assert_int_equal(aq_device_graph_open(one, &its), AQ_OK);
        assert_true((its != NULL) == cases[i].has);
        aq_device_graph_close(one, its);
        aq_device_close(one);
    }
    struct aq_device *cpu = help_device(1);
    struct aq_graph *its = NULL;
    enum aq_status status = AQ_AGAIN;
    assert_int_equal(aq_device_graph_open(cpu, &its), AQ_OK);
    assert_null(its);
    assert_int_equal(aq_device_graph_begin(cpu, its, NULL), AQ_OK);
    assert_false(aq_device_graph_again(cpu, its, &status));
    assert_int_equal(status, AQ_AGAIN);
    aq_device_close(cpu);
}

/* The emulated runtime: it forbids while it records what CUDA forbids, and keeps arguments as they were. */
static void test_the_runtime_records_as_cuda_does(void **state)
{
    (void)state;
    cudaStream_t stream, second;
    cudaEvent_t mark;
    cudaGraph_t made;
    cudaGraphExec_t exec;
    void *memory;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventRecord(mark, second), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &made), cudaErrorIllegalState);
    for (int what = 0; what < 8; what++) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        assert_int_equal(cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
        const cudaError_t error = what == 0   ? cudaStreamSynchronize(stream)
                                  : what == 1 ? cudaEventQuery(mark)
                                  : what == 2 ? cudaMalloc(&memory, 64)
                                  : what == 3 ? cudaFree(x)
                                  : what == 4 ? cudaHostAlloc(&memory, 64, cudaHostAllocPortable)
                                  : what == 5 ? cudaMemcpyAsync(pageable, x, 64, cudaMemcpyDefault, stream)
                                  : what == 6 ? cudaStreamSynchronize(second)
                                              : cudaStreamWaitEvent(stream, mark, 0);
        assert_int_equal(error, what == 7 ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaMemsetAsync(rstd, 0, 4, stream), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(stream, &made), cudaErrorStreamCaptureInvalidated);
        assert_null(made);
    }
    /* What was recorded has not run; launched twice it runs twice. */
    assert_int_equal(cudaMemsetAsync(rstd, 0, 12, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(rstd + 1, rstd, 4, cudaMemcpyDefault, stream), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(rstd, 1, 4, stream), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &made), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, made, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(made), cudaSuccess);
    for (int times = 0; times < 3; times++) {
        uint32_t words[2];
        assert_int_equal(cudaMemcpyAsync(pinned, rstd, 8, cudaMemcpyDefault, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        memcpy(words, pinned, sizeof words);
        assert_int_equal(words[0], times > 0 ? 0x01010101 : 0);
        assert_int_equal(words[1], times > 1 ? 0x01010101 : 0);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    assert_int_equal(cudaEventDestroy(mark), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(second), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_pass_that_comes_again_is_one_launch, graph_begin, graph_end),
        cmocka_unit_test_setup_teardown(test_another_argument_is_another_graph, graph_begin, graph_end),
        cmocka_unit_test(test_a_product_without_a_plan_runs_first),
        cmocka_unit_test_setup_teardown(test_what_no_graph_can_hold_is_said, graph_begin, graph_end),
        cmocka_unit_test_setup_teardown(test_a_pass_that_differs_when_repeated_is_an_error, graph_begin, graph_end),
        cmocka_unit_test_setup_teardown(test_what_cuda_refuses_to_record_is_an_error, graph_begin, graph_end),
        cmocka_unit_test_setup_teardown(test_more_graphs_than_are_kept, graph_begin, graph_end),
        cmocka_unit_test_setup_teardown(test_long_lists_that_begin_alike_cost_no_more, graph_begin, graph_end),
        cmocka_unit_test(test_it_is_asked_for_by_the_environment),
        cmocka_unit_test(test_the_runtime_records_as_cuda_does),
    };
    const struct aq_device_config config = {.kind = "cuda"};
    const float rows[ROWS * ROWS] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    void *memory = NULL;
    setenv("AQ_GPU_GRAPHS", "1", 1);
    if (aq_device_open(&config, &device) != AQ_OK) return 1;
    float **const all[] = {&x, &more_x, &ones, &identity, &between, &rstd, &y[0], &y[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] = device_ones();
    if (aq_device_copy(device, identity, rows, sizeof rows, NULL) != AQ_OK) return 1;
    if (aq_device_alloc(device, AQ_MEMORY_PINNED, COUNT * sizeof *pinned, &memory) != AQ_OK) return 1;
    pinned = memory;
    pass.rows = ROWS;
    if (pass_run() != AQ_OK) return 1; /* without a graph: the product has a plan from here on */
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    aq_device_free(device, AQ_MEMORY_PINNED, pinned, COUNT * sizeof *pinned);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        aq_device_free(device, AQ_MEMORY_DEVICE, *all[i], COUNT * sizeof **all[i]);
    aq_device_close(device);
    return failed;
}
