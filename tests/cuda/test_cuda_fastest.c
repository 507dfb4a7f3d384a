/*
 * test_cuda_fastest.c -- AQ_GPU_ATTENTION=fastest, without a GPU: the emulated clock says who is slow
 * (CUDA_HOST_SLOW), the table keeps what was chosen, and only a table that can be kept is used.
 */
#include "stage_help.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "aqsgd/device_graph.h"
#include "attention_results.h"
#include "conv_results.h"
#include "cudnn.h"

enum { TIMED = 1 + 3 * 8 }; /* calls until a way is timed */
static const struct attended_how how = {.window = 3, .small = true};
static char folder[] = "/tmp/aqpipe-fastest-XXXXXX", path[128];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/cudnn-the-host-4-92801", folder);
    setenv("AQ_GPU_TABLE", folder, 1);
    setenv("AQ_GPU_ATTENTION", "fastest", 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unsetenv("AQ_GPU_TABLE");
    unsetenv("AQ_GPU_ATTENTION");
    unsetenv("CUDA_HOST_SLOW");
    return rmdir(folder);
}

/* Attention with this way slow by the clock; cuDNN ran so often. free()d by the caller. */
static struct attended *attended_with(const char *slow, int ran)
{
    int algorithm;
    setenv("CUDA_HOST_SLOW", slow, 1);
    struct attended *x = attend(&how);
    const int found = cudnn_host_ran(&algorithm);
    if (found != ran) fail_msg("slow: %s: cuDNN ran %d times, not %d", slow, found, ran);
    return x;
}

/* As AQ_GPU_ATTENTION=own or cudnn has it. free()d by the caller. */
static struct attended *attended_always(const char *way)
{
    int algorithm;
    setenv("AQ_GPU_ATTENTION", way, 1);
    struct attended *x = attend(&how);
    setenv("AQ_GPU_ATTENTION", "fastest", 1);
    (void)cudnn_host_ran(&algorithm);
    return x;
}

static void is_as(const char *way, struct attended *x)
{
    struct attended *y = attended_always(way);
    assert_true(attended_same(x, y));
    free(y);
    free(x);
}

static char *text_of_table(void)
{
    static char text[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static void table_write(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The faster one by the clock, once; then the table's, whatever the clock says: a restart has the same bits. */
static void test_the_faster_is_chosen_once_and_kept(void **state)
{
    (void)state;
    is_as("cudnn", attended_with("attention", 2 * (TIMED + 1)));
    is_as("cudnn", attended_with("cudnn", 2));
    assert_int_equal(unlink(path), 0);
    is_as("own", attended_with("cudnn", 2 * TIMED));
    is_as("own", attended_with("attention", 0));
    const char *text = text_of_table();
    assert_true(strncmp(text, "aqpipe cudnn 1\n", 15) == 0 && strlen(text) > 2 * 128);
    assert_int_equal(unlink(path), 0);
}

/* Forward and backward have a line each, and either may follow the other. */
static void test_forward_and_backward_are_chosen_apart(void **state)
{
    (void)state;
    free(attended_with("attention", 2 * (TIMED + 1)));
    for (int backward = 0; backward < 2; backward++) {
        char text[4096], *at = strcpy(text, text_of_table()) + strlen("aqpipe cudnn 1\n");
        if (backward) at = strchr(at, '\n') + 1;
        memcpy(at + 128, " own   ", 7);
        table_write(text);
        struct attended *x = attended_with("attention", backward ? 0 : 1), *y = attended_always("own");
        attended_near(x->out, y->out, ATTENDED_OUT);
        attended_near(x->dqkv_rounded, y->dqkv_rounded, ATTENDED_WIDE);
        free(x);
        free(y);
    }
    assert_int_equal(unlink(path), 0);
}

/* As a crash may leave it, or another version: what is cut off, or no line of ours, is chosen again, and kept. */
static void test_lines_that_are_none_are_ignored(void **state)
{
    (void)state;
    struct stat info;
    free(attended_with("attention", 2 * (TIMED + 1)));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 20), 0); /* in the second line */
    is_as("cudnn", attended_with("attention", 2 + TIMED));
    is_as("cudnn", attended_with("cudnn", 2));
    char text[4096];
    strcpy(text, text_of_table());
    for (char *at = text; (at = strstr(at, " cudnn ")); at++)
        if (at > text + 20) memcpy(at, " flash ", 7);
    table_write(text);
    is_as("own", attended_with("cudnn", 2 * TIMED));
    is_as("own", attended_with("attention", 0));
    assert_int_equal(unlink(path), 0);
}

/* A line without its end is not completed by the next one: a restart has the bits of the choice that was used. */
static void test_a_line_that_is_cut_off_is_replaced(void **state)
{
    (void)state;
    struct stat info;
    char text[1024];
    free(attended_with("attention", 2 * (TIMED + 1)));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 5), 0);
    struct attended *x = attended_with("cudnn", 1 + TIMED), *y = attended_with("cudnn", 1);
    assert_true(attended_same(x, y));
    free(x);
    free(y);
    memset(text, 'x', sizeof text - 1); /* longer than both lines */
    text[sizeof text - 1] = 0;
    memcpy(text, "aqpipe cudnn 1\n", 15);
    table_write(text);
    free(attended_with("cudnn", 2 * TIMED));
    assert_null(strchr(text_of_table(), 'x'));
    free(attended_with("attention", 0));
    assert_int_equal(unlink(path), 0);
}

/* What an open is answered, with these words in the one line of it. */
static void open_refused(enum aq_status status, const char *words)
{
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_device *device = NULL;
    struct aq_error_hold hold;
    aq_error_hold(&hold);
    assert_int_equal(aq_device_open(&config, &device), status);
    aq_error_release(&hold);
    if (!strstr(hold.text, words) || !strstr(hold.text, "AQ_GPU_ATTENTION=fastest"))
        fail_msg("nothing says '%s': %s", words, hold.text);
}

static void test_only_a_table_that_can_be_kept_is_used(void **state)
{
    (void)state;
    unsetenv("AQ_GPU_TABLE");
    open_refused(AQ_INVAL, "set AQ_GPU_TABLE to one");
    setenv("AQ_GPU_TABLE", "/proc/nowhere", 1);
    open_refused(AQ_NOTFOUND, "/proc/nowhere/cudnn-the-host-4-92801");
    setenv("AQ_GPU_TABLE", folder, 1);
    table_write("aqpipe products 1\nsomething else\n");
    open_refused(AQ_CORRUPT, "is not a table of cudnn: remove it");
    assert_string_equal(text_of_table(), "aqpipe products 1\nsomething else\n");
    static const off_t sizes[] = {1, (1 << 20) + 1}; /* of zeroes: no text; too large */
    for (int i = 0; i < 2; i++) {
        struct stat info;
        table_write("");
        assert_int_equal(truncate(path, sizes[i]), 0);
        open_refused(i ? AQ_NOSPC : AQ_CORRUPT, "remove it");
        assert_true(stat(path, &info) == 0 && info.st_size == sizes[i]);
    }
    table_write("aqpipe cudnn 1"); /* no whole line */
    open_refused(AQ_CORRUPT, "is not a table of cudnn: remove it");
    assert_int_equal(unlink(path), 0);
    cudnn_host_say((struct cudnn_host_say){.version = 91900});
    open_refused(AQ_NODEV, "cuDNN 91900 is installed");
    cudnn_host_say((struct cudnn_host_say){.version = 92801, .workspace = 4096});
}

/* y, dx and dw with this way slow by the clock; those of `as` are the same, and cuDNN ran so often. */
static void convolved_as(const struct aq_conv_shape *shape, const char *slow, const char *as, int ran)
{
    const uint64_t pixels = shape->samples * shape->height * shape->width;
    const uint64_t count = pixels * (shape->C + shape->N) + shape->K * shape->K * shape->C * shape->N;
    int algorithm;
    setenv("CUDA_HOST_SLOW", slow, 1);
    float *x = conv_results(shape, 0, NULL);
    const int found = cudnn_host_ran(&algorithm);
    if (found != ran) fail_msg("slow: %s: cuDNN ran %d times, not %d", slow, found, ran);
    setenv("AQ_GPU_CONVOLUTION", as, 1);
    float *y = conv_results(shape, 0, NULL);
    setenv("AQ_GPU_CONVOLUTION", "fastest", 1);
    (void)cudnn_host_ran(&algorithm);
    assert_memory_equal(x, y, count * sizeof *x);
    aq_free(x);
    aq_free(y);
}

/* Convolutions likewise; a gradient of weights, which is added to, has nothing of the clock's runs. */
static void test_convolutions_are_chosen_too(void **state)
{
    (void)state;
    static const enum aq_element computes[] = {AQ_F32, AQ_BF16};
    char products[160];
    snprintf(products, sizeof products, "%s/products-the-host-4-130000", folder);
    unsetenv("AQ_GPU_ATTENTION");
    setenv("AQ_GPU_CONVOLUTION", "fastest", 1);
    for (int i = 0; i < 2; i++) {
        const struct aq_conv_shape shape = {2, 4, 5, 8, 16, 3, 1, computes[i]};
        convolved_as(&shape, "columns_gather", "cudnn", 3 * (TIMED + 1));
        convolved_as(&shape, "cudnn", "cudnn", 3);
        assert_int_equal(unlink(path), 0);
        convolved_as(&shape, "cudnn", "own", 3 * TIMED);
        convolved_as(&shape, "columns_gather", "own", 0);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(unlink(products), 0);
    unsetenv("AQ_GPU_CONVOLUTION");
    setenv("AQ_GPU_ATTENTION", "fastest", 1);
}

/* A device, and attended values in its memory. */
struct opened {
    struct aq_device *device;
    void *memory;
    struct aq_attention args;
};

static struct opened opened_of(const char *graphs)
{
    const struct aq_device_config config = {.kind = "cuda"};
    struct opened x = {NULL};
    setenv("AQ_GPU_GRAPHS", graphs, 1);
    assert_int_equal(aq_device_open(&config, &x.device), AQ_OK);
    unsetenv("AQ_GPU_GRAPHS");
    assert_int_equal(aq_device_alloc(x.device, AQ_MEMORY_DEVICE, sizeof(struct attended), &x.memory), AQ_OK);
    attended_fill(x.memory);
    x.args = attended_args(x.memory, &how, NULL);
    return x;
}

static void opened_close(struct opened *x)
{
    aq_device_free(x->device, AQ_MEMORY_DEVICE, x->memory, sizeof(struct attended));
    aq_device_close(x->device);
    assert_int_equal(cudnn_host_open(), 0);
}

static char said[8192]; /* lines of the log */

static void line_keep(int level, const char *line, void *context)
{
    (void)level;
    (void)context;
    const size_t at = strlen(said);
    snprintf(said + at, sizeof said - at, "%s\n", line);
}

/* These words are in so many lines since the last time. */
static void said_lines(const char *words, int lines)
{
    int found = 0;
    for (const char *at = strstr(said, words); at; at = strstr(at + 1, words))
        found++;
    if (found != lines) fail_msg("'%s' is in %d lines, not in %d: %s", words, found, lines, said);
    said[0] = 0;
}

static void test_the_log_says_who_computes_and_why(void **state)
{
    (void)state;
    static const struct aq_conv_shape large = {1, 1, 1, 2056, 2056, 1, 1, AQ_F32};
    const uint64_t bytes = (large.C + large.N + large.C * large.N) * sizeof(float);
    int algorithm;
    aq_log_sink(line_keep, NULL);
    free(attended_with("attention", 2 * (TIMED + 1)));
    said_lines(": cuDNN (by the clock: cuDNN ", 2);
    free(attended_with("cudnn", 2));
    said_lines(": cuDNN (by the table)", 2);
    assert_int_equal(unlink(path), 0);
    free(attended_with("cudnn", 2 * TIMED));
    said_lines(": our kernels (by the clock: cuDNN ", 2);
    free(attended_with("attention", 0));
    said_lines(": our kernels (by the table)", 2);
    setenv("AQ_GPU_CONVOLUTION", "fastest", 1);
    struct opened x = opened_of("0");
    void *memory;
    assert_int_equal(aq_device_alloc(x.device, AQ_MEMORY_DEVICE, bytes, &memory), AQ_OK);
    float *values = memory;
    const struct aq_conv_weights args = {large, values, values + large.C, values + large.C + large.N};
    uint8_t launches[8192];
    struct aq_cuda_list list = {
        .stream = cuda_device_of(x.device)->own->at, .bytes = launches, .room = sizeof launches};
    aq_cuda_list_use(&list); /* nothing runs: our own way has a product whose algorithm is not chosen yet */
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_device_conv_weights(x.device, &args, NULL), AQ_AGAIN);
    aq_cuda_list_use(NULL);
    assert_int_equal(cudnn_host_ran(&algorithm), 0);
    said_lines("2056 to 2056 channels, 1 x 1, stride 1: our kernels (too large for the clock)", 1);
    aq_log_sink(NULL, NULL);
    aq_device_free(x.device, AQ_MEMORY_DEVICE, memory, bytes);
    opened_close(&x);
    unsetenv("AQ_GPU_CONVOLUTION");
    assert_int_equal(unlink(path), 0);
}

/* The table was whole when the device was opened, and is not when it is asked: the job ends, with the cause. */
static void test_a_table_that_is_lost_later_ends_the_job(void **state)
{
    (void)state;
    struct opened x = opened_of("0");
    struct aq_error_hold hold;
    table_write("something else\n");
    aq_error_hold(&hold);
    assert_int_equal(aq_device_attention(x.device, &x.args, NULL), AQ_CORRUPT);
    aq_error_release(&hold);
    assert_non_null(strstr(hold.text, path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(aq_device_attention(x.device, &x.args, NULL), AQ_OK);
    opened_close(&x);
    assert_int_equal(unlink(path), 0);
}

/* A list has the launches of the call, none of the clock's; where launches are only listed the clock is not asked. */
static void test_timing_is_not_listed(void **state)
{
    (void)state;
    uint8_t bytes[2][4096];
    struct opened x = opened_of("0");
    struct aq_cuda_list lists[2];
    int algorithm;
    (void)cudnn_host_ran(&algorithm);
    setenv("CUDA_HOST_SLOW", "cudnn", 1);
    for (int i = 0; i < 2; i++)
        lists[i] = (struct aq_cuda_list){
            .stream = cuda_device_of(x.device)->own->at, .bytes = bytes[i], .room = sizeof bytes[i]};
    aq_cuda_list_use(&lists[0]);
    assert_int_equal(aq_device_attention(x.device, &x.args, NULL), AQ_AGAIN);
    assert_true(lists[0].unmade && lists[0].launches == 0 && cudnn_host_ran(&algorithm) == 0);
    lists[0].enqueues = lists[1].enqueues = true;
    assert_int_equal(aq_device_attention(x.device, &x.args, NULL), AQ_OK); /* asks the clock */
    assert_int_equal(cudnn_host_ran(&algorithm), TIMED);
    aq_cuda_list_use(&lists[1]);
    assert_int_equal(aq_device_attention(x.device, &x.args, NULL), AQ_OK);
    aq_cuda_list_use(NULL);
    assert_true(lists[0].launches == 1 && lists[1].launches == 1 && lists[0].used == lists[1].used);
    assert_memory_equal(bytes[0], bytes[1], lists[0].used);
    assert_int_equal(aq_device_stream_sync(x.device, NULL), AQ_OK);
    opened_close(&x);
    assert_int_equal(unlink(path), 0);
}

/* The first pass asks the clock one by one; then passes are graphs as always. */
static void test_passes_become_graphs(void **state)
{
    (void)state;
    static const int times[] = {2, 2, 2, 1};
    struct opened x = opened_of("1");
    struct aq_graph *graph = NULL;
    assert_int_equal(aq_device_graph_open(x.device, &graph), AQ_OK);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        enum aq_status status;
        int now = 0;
        assert_int_equal(aq_device_graph_begin(x.device, graph, NULL), AQ_OK);
        do {
            now++;
            status = aq_device_attention(x.device, &x.args, NULL);
        } while (aq_device_graph_again(x.device, graph, &status));
        assert_int_equal(status, AQ_OK);
        assert_int_equal(now, times[i]);
    }
    aq_device_graph_close(x.device, graph);
    opened_close(&x);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_faster_is_chosen_once_and_kept),
        cmocka_unit_test(test_forward_and_backward_are_chosen_apart),
        cmocka_unit_test(test_lines_that_are_none_are_ignored),
        cmocka_unit_test(test_a_line_that_is_cut_off_is_replaced),
        cmocka_unit_test(test_only_a_table_that_can_be_kept_is_used),
        cmocka_unit_test(test_convolutions_are_chosen_too),
        cmocka_unit_test(test_the_log_says_who_computes_and_why),
        cmocka_unit_test(test_a_table_that_is_lost_later_ends_the_job),
        cmocka_unit_test(test_timing_is_not_listed),
        cmocka_unit_test(test_passes_become_graphs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
