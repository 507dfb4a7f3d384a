/*
 * conform_device.c -- every backend of devices.def and the isolated device, in every variant that this machine can
 * run, against the plain truth.
 *
 * The truth is the CPU backend with AQ_CPU=plain. Distances are Euclidean, relative to the truth: 3e-6 for results in
 * fp32 (a few units of 2^-24, sums in another order), 6e-3 for results rounded to bf16 (one unit of 2^-8), 8e-4 for
 * fp16 (2^-11). What is EXACT has the truth's bits on a GPU (cuda_kernels.h). A GPU makes every call three times
 * and must give the same bits: under the launch emulation in three orders of blocks and threads. A new backend needs
 * one line in devices.def; its results are copied to the host with aq_device_copy, so it need not share memory.
 */
#include "device_isolated.h"
#include "log_capture.h"
#include "sample.h"
#include "stage_help.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef AQ_CUDA_ON_HOST
#include "cuda_host_test.h"
#endif

#define AQ_DEVICE(name) #name,
static const char *const kinds[] = {
#include "devices.def"
    "isolated"};
#undef AQ_DEVICE

static const char *const variants[] = {"base", "avx2", "avx512", "avx512bf16", "amx"};

static struct aq_device *truth, *device; /* device: the one under test */
static bool gpu;

static const enum aq_element types[] = {AQ_F32, AQ_BF16, AQ_F16};
/* A GPU is asked so many times, in orders of its own; under ASan, which looks at addresses and takes its time, once. */
#ifdef __SANITIZE_ADDRESS__
enum { TIMES = 1 };
#else
enum { TIMES = 2 };
#endif
enum { TYPES = sizeof types / sizeof types[0] };

static double near_of(enum aq_element type)
{
    return type == AQ_BF16 ? 6e-3 : type == AQ_F16 ? 8e-4 : 3e-6;
}

static float value_of(const void *x, enum aq_element type, uint64_t i)
{
    if (type == AQ_F32) return ((const float *)x)[i];
    const uint16_t half = ((const uint16_t *)x)[i];
    return type == AQ_BF16 ? aq_bfloat_to_float(half) : aq_half_to_float(half);
}

static void *on(struct aq_device *where, const void *host, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(aq_device_alloc(where, AQ_MEMORY_DEVICE, bytes, &memory), AQ_OK);
    if (host) assert_int_equal(aq_device_copy(where, memory, host, bytes, NULL), AQ_OK);
    return memory;
}

static void off(struct aq_device *where, void *memory, void *host, size_t bytes)
{
    if (host) assert_int_equal(aq_device_copy(where, host, memory, bytes, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(where, NULL), AQ_OK);
    aq_device_free(where, AQ_MEMORY_DEVICE, memory, bytes);
}

static size_t bytes_of(enum aq_element type, uint64_t count)
{
    return count * aq_element_bytes(type);
}

/* The values as a type; takes them. */
static void *as_type(float *values, enum aq_element type, uint64_t count)
{
    if (type == AQ_F32) return values;
    uint16_t *halves = help_alloc(count * sizeof *halves + 4);
    for (uint64_t i = 0; i < count; i++)
        halves[i] = type == AQ_BF16 ? aq_bfloat_from_float(values[i]) : aq_half_from_float(values[i]);
    aq_free(values);
    return halves;
}

/* Random values of a type in host memory. Normal numbers are dear: those of a stream are made once, and repeated. */
static void *random_of(enum aq_element type, uint64_t count, uint64_t stream, float std)
{
    enum { OWN = 100003, STREAMS = 16 };
    static float *normals[STREAMS];
    AQ_ASSERT(stream < STREAMS);
    if (!normals[stream]) help_normal(normals[stream] = help_alloc(OWN * sizeof *normals[0]), OWN, stream, 1.0f);
    float *values = help_alloc(count * sizeof *values + 4);
    for (uint64_t i = 0; i < count; i++)
        values[i] = std * normals[stream][i % OWN];
    return as_type(values, type, count);
}

static void near(const char *what, const void *mine, const void *reference, enum aq_element type, uint64_t count,
                 double limit)
{
    float *x = help_alloc(count * sizeof *x + 4), *y = help_alloc(count * sizeof *y + 4);
    for (uint64_t i = 0; i < count; i++) {
        x[i] = value_of(mine, type, i);
        y[i] = value_of(reference, type, i);
    }
    const double distance = help_distance(x, y, count);
    if (!(distance <= limit)) fail_msg("%s: differs by %g, more than %g", what, distance, limit);
    aq_free(x);
    aq_free(y);
}

static void same(const char *what, const void *mine, const void *reference, enum aq_element type, uint64_t count)
{
    const size_t bytes = aq_element_bytes(type);
    if (count == 0 || memcmp(mine, reference, count * bytes) == 0) return;
    for (uint64_t i = 0; i < count; i++)
        if (memcmp((const uint8_t *)mine + i * bytes, (const uint8_t *)reference + i * bytes, bytes) != 0)
            fail_msg("%s: element %llu is %.9g, not %.9g", what, (unsigned long long)i, value_of(mine, type, i),
                     value_of(reference, type, i));
}

/* COMPARED_AS: fp32 results of a calculation in another type, which tells how near. SAME_ON_CPU: every variant of the
 * CPU's has the truth's bits; a GPU is compared. */
enum compare { NOT_COMPARED = 0, COMPARED = 1, EXACT = 2, COMPARED_AS = 3, SAME_ON_CPU = 4 };

struct array {
    enum aq_element type;
    uint64_t count;
    void *host; /* before; NULL: zeroes */
    enum compare compare;
    void *at, *results[2]; /* the truth's and the device's */
};

/* An emulated GPU, and a CPU under a sanitizer, take long: of a long table they run the short form (sample.h). */
static bool slow(void)
{
    return gpu || sample_sanitized();
}

static bool runs(size_t s, size_t of_each, size_t one_of)
{
    return !slow() || sample_has(s, of_each, one_of * sample_every(2));
}

/* Of a table of attention each size runs in one type. Dropout is s % 2, and a GPU takes other kernels without it: each
 * round of types begins one later, so that every width has both. */
static bool type_runs(size_t s)
{
    return (s % TYPES + s / TYPES + s / TYPES / TYPES) % TYPES == 0 || sample_all();
}

/* Blocks and threads of the launch emulation come in an order drawn by lot; elsewhere it is as it is. */
static void order(uint64_t seed)
{
#ifdef AQ_CUDA_ON_HOST
    cuda_host_seed(seed);
#else
    (void)seed;
#endif
}

#include "conform_device_truth.h"

/*
 * Runs `call` on the truth, and on the device under test (a GPU: so many times), with the same arrays, and compares.
 * `as`: the type whose limit holds for an array that is COMPARED_AS.
 */
static void both_as(const char *what, struct array *arrays, uint32_t count,
                    enum aq_status (*call)(struct aq_device *where, struct array *arrays, const void *context),
                    const void *context, enum aq_element as, int times)
{
    static const uint64_t seeds[] = {0, 0, 11, 12}; /* the truth's is nobody's */
    char text[200];
    const bool known = truth_reload(what, arrays, count);
    for (int round = known ? 1 : 0; round <= (gpu ? times : 1); round++) {
        struct aq_device *where = round ? device : truth;
        for (uint32_t i = 0; i < count; i++)
            arrays[i].at = on(where, arrays[i].host, bytes_of(arrays[i].type, arrays[i].count));
        order(seeds[round]);
        assert_int_equal(call(where, arrays, context), AQ_OK);
        for (uint32_t i = 0; i < count; i++) {
            const size_t bytes = bytes_of(arrays[i].type, arrays[i].count);
            void *result = help_alloc(bytes + 4);
            off(where, arrays[i].at, result, bytes);
            if (round < 2) {
                arrays[i].results[round] = result;
                continue;
            }
            snprintf(text, sizeof text, "%s, array %u: not the same every time", what, i);
            same(text, result, arrays[i].results[1], arrays[i].type, arrays[i].count);
            aq_free(result);
        }
    }
    order(0);
    if (!known) truth_keep(what, arrays, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct array *x = &arrays[i];
        snprintf(text, sizeof text, "%s, array %u", what, i);
        if (x->compare == (gpu ? EXACT : SAME_ON_CPU))
            same(text, x->results[1], x->results[0], x->type, x->count);
        else if (x->compare != NOT_COMPARED)
            near(text, x->results[1], x->results[0], x->type, x->count,
                 near_of(x->compare == COMPARED_AS ? as : x->type));
        aq_free(x->results[1]);
        aq_free(x->host);
    }
}

static void both(const char *what, struct array *arrays, uint32_t count,
                 enum aq_status (*call)(struct aq_device *where, struct array *arrays, const void *context),
                 const void *context)
{
    both_as(what, arrays, count, call, context, AQ_F32, TIMES);
}

static void test_memory_is_zeroed_and_copied(void **state)
{
    (void)state;
    enum { BYTES = 3 * 1000 * 1000 + 7 };
    uint8_t *host = help_alloc(BYTES), *back = help_alloc(BYTES);
    for (int kind = AQ_MEMORY_DEVICE; kind <= AQ_MEMORY_PINNED; kind++) {
        void *memory = NULL;
        assert_int_equal(aq_device_alloc(device, (enum aq_memory_kind)kind, BYTES, &memory), AQ_OK);
        assert_int_equal((uintptr_t)memory % AQ_ALIGN, 0);
        memset(host, 0, BYTES);
        memset(back, 1, BYTES);
        assert_int_equal(aq_device_copy(device, back, memory, BYTES, NULL), AQ_OK);
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
        assert_memory_equal(host, back, BYTES);
        for (int i = 0; i < BYTES; i++)
            host[i] = (uint8_t)(i * 7);
        assert_int_equal(aq_device_copy(device, memory, host, BYTES, NULL), AQ_OK);
        assert_int_equal(aq_device_zero(device, (uint8_t *)memory + 1000, 1200000, NULL), AQ_OK);
        assert_int_equal(aq_device_copy(device, back, memory, BYTES, NULL), AQ_OK);
        assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
        memset(host + 1000, 0, 1200000);
        assert_memory_equal(host, back, BYTES);
        aq_device_free(device, (enum aq_memory_kind)kind, memory, BYTES);
    }
    aq_free(host);
    aq_free(back);
}

/* Rooms that know no devices get their memory by it; what lies there goes to the device and back. */
static void test_pages_are_host_memory_that_is_copied(void **state)
{
    (void)state;
    enum { BYTES = 100 * 1000 };
    const struct aq_pages pages = aq_device_pages(device);
    uint8_t *host = NULL;
    assert_int_equal(aq_pages_take(&pages, BYTES, (void **)&host), AQ_OK);
    assert_int_equal((uintptr_t)host % 4096, 0); /* read from disk directly */
    for (int i = 0; i < BYTES; i++) {
        assert_int_equal(host[i], 0);
        host[i] = (uint8_t)(i * 5);
    }
    uint8_t *memory = on(device, NULL, BYTES);
    assert_int_equal(aq_device_copy(device, memory, host, BYTES / 2, NULL), AQ_OK);
    assert_int_equal(aq_device_copy(device, host + BYTES / 2, memory, BYTES / 2, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    assert_memory_equal(host, host + BYTES / 2, BYTES / 2);
    off(device, memory, NULL, BYTES);
    aq_pages_give(&pages, host, BYTES);
    aq_pages_give(&pages, NULL, 0);
}

static void test_events_pass_in_order_of_streams(void **state)
{
    (void)state;
    struct aq_stream *first = NULL, *second = NULL;
    struct aq_event *event = NULL;
    assert_int_equal(aq_device_stream_open(device, &first), AQ_OK);
    assert_int_equal(aq_device_stream_open(device, &second), AQ_OK);
    assert_int_equal(aq_device_event_open(device, &event), AQ_OK);
    assert_int_equal(aq_device_event_query(device, event), AQ_OK); /* never recorded: nothing to wait for */
    float host[256], back[256];
    help_normal(host, 256, 1, 1.0f);
    float *a = on(device, NULL, sizeof host), *b = on(device, NULL, sizeof host);
    assert_int_equal(aq_device_copy(device, a, host, sizeof host, first), AQ_OK);
    assert_int_equal(aq_device_event_record(device, event, first), AQ_OK);
    assert_int_equal(aq_device_event_wait(device, event, second), AQ_OK);
    assert_int_equal(aq_device_copy(device, b, a, sizeof host, second), AQ_OK);
    assert_int_equal(aq_device_copy(device, back, b, sizeof host, second), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, second), AQ_OK);
    assert_int_equal(aq_device_event_query(device, event), AQ_OK);
    assert_memory_equal(host, back, sizeof host);
    off(device, a, NULL, sizeof host);
    off(device, b, NULL, sizeof host);
    aq_device_event_close(device, event);
    aq_device_stream_close(device, first);
    aq_device_stream_close(device, second);
}

static void test_timed_events_measure_what_lies_between(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    struct aq_stream *stream = NULL;
    struct aq_event *events[2] = {NULL, NULL};
    uint64_t ns = UINT64_MAX;
    assert_int_equal(aq_device_stream_open(device, &stream), AQ_OK);
    uint8_t *memory = on(device, NULL, BYTES);
    for (int i = 0; i < 2; i++)
        assert_int_equal(aq_device_event_open_timed(device, &events[i]), AQ_OK);
    const uint64_t begin = aq_clock_ns();
    for (int round = 0; round < 2; round++) { /* an event is recorded again and again */
        assert_int_equal(aq_device_event_record(device, events[0], stream), AQ_OK);
        assert_int_equal(aq_device_zero(device, memory, BYTES, stream), AQ_OK);
        assert_int_equal(aq_device_event_record(device, events[1], stream), AQ_OK);
    }
    assert_int_equal(aq_device_stream_sync(device, stream), AQ_OK);
    const uint64_t end = aq_clock_ns();
    assert_int_equal(aq_device_event_elapsed(device, events[0], events[1], &ns), AQ_OK);
    assert_true(ns > 0 && ns <= end - begin);
    assert_int_equal(aq_device_event_elapsed(device, events[1], events[0], &ns), AQ_OK);
    assert_int_equal(ns, 0);
    off(device, memory, NULL, BYTES);
    for (int i = 0; i < 2; i++)
        aq_device_event_close(device, events[i]);
    aq_device_stream_close(device, stream);
}

static void count_piece(uint32_t piece, void *context)
{
    atomic_uint *counts = context;
    atomic_fetch_add_explicit(&counts[piece], 1, memory_order_relaxed); /* read after aq_device_parallel returned */
}

static void test_parallel_runs_every_piece_once(void **state)
{
    (void)state;
    enum { PIECES = 5000 };
    atomic_uint *counts = help_alloc(PIECES * sizeof *counts);
    for (int round = 0; round < 200; round++)
        aq_device_parallel(device, round % 7 + 1, count_piece, counts);
    aq_device_parallel(device, PIECES, count_piece, counts);
    unsigned expected[7] = {0};
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < round % 7 + 1; i++)
            expected[i]++;
    for (int i = 0; i < PIECES; i++)
        assert_int_equal(atomic_load(&counts[i]), 1 + (i < 7 ? expected[i] : 0));
    aq_free(counts);
}

#include "conform_device_matmul.h"

struct rows_case {
    uint64_t samples, T, H, D;
    enum aq_element type;
    float dropout;
    bool rounded;   /* attention's gradients in 16 bits */
    uint64_t share; /* attention: heads of queries to one of keys; 0: one */
    uint64_t window;
    float scale, cap;
    bool both;
    bool bf16; /* norms and embedding: x, the residual stream */
};

static enum aq_status layernorm_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_layernorm args = {.rows = x->T,
                                      .C = x->D,
                                      .epsilon = 1e-5f,
                                      .x = arrays[0].at,
                                      .x_type = arrays[0].type,
                                      .gamma = arrays[1].at,
                                      .beta = x->samples ? NULL : arrays[2].at,
                                      .y = arrays[3].at,
                                      .y_type = x->type,
                                      .mean = arrays[4].at,
                                      .rstd = arrays[5].at};
    const enum aq_status status = aq_device_layernorm(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_layernorm_backward back = {.rows = x->T,
                                               .C = x->D,
                                               .dy = arrays[6].at,
                                               .x = arrays[0].at,
                                               .x_type = arrays[0].type,
                                               .gamma = arrays[1].at,
                                               .mean = arrays[4].at,
                                               .rstd = arrays[5].at,
                                               .dx = arrays[7].at,
                                               .dgamma = arrays[8].at,
                                               .dbeta = arrays[9].at,
                                               .rounded = x->H % 2 && x->type != AQ_F32 ? arrays[10].at : NULL,
                                               .rounded_type = x->type,
                                               .sums = x->H / 2 ? arrays[11].at : NULL};
    return aq_device_layernorm_backward(where, &back, NULL);
}

static void test_layernorm_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1},    {1, 2},    {3, 4},     {3, 16},    {8, 33},  {9, 31},
                                        {50, 33},  {70, 64},  {131, 130}, {130, 100}, {7, 768}, {2, 1601},
                                        {9, 1600}, {3, 2052}, {3, 4100},  {40, 768}};
    for (size_t s = 0; s < 4 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const struct rows_case x = {.T = sizes[s / TYPES / 4][0],
                                    .D = sizes[s / TYPES / 4][1],
                                    .type = types[s % TYPES],
                                    .samples = s % 2, /* no beta                                            */
                                    .bf16 = s / 4 % 2,
                                    .H = s / TYPES % 4}; /* which of the two that come along are asked for */
        if ((x.H % 2 && x.type == AQ_F32) || !runs(s, 4 * TYPES, 5)) continue;
        const uint64_t N = x.T * x.D;
        float *biased = random_of(AQ_F32, N, 1, 2.0f);
        for (uint64_t i = 0; i < N; i++)
            biased[i] += 3.0f;
        const enum aq_element x_type = x.bf16 ? AQ_BF16 : AQ_F32;
        void *const stream = as_type(biased, x_type, N);
        /* A row of one or two elements has h of 0 or +-1 and a dx that cancels: nothing to measure its distance by. */
        const enum compare dx = x.D > 2 ? COMPARED : NOT_COMPARED, as_dx = x.D > 2 ? COMPARED_AS : NOT_COMPARED;
        struct array arrays[12] = {{x_type, N, stream, NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, x.D, random_of(AQ_F32, x.D, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, x.D, random_of(AQ_F32, x.D, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {x.type, N, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, x.T, NULL, COMPARED, NULL, {0}},
                                   {AQ_F32, N, random_of(AQ_F32, N, 4, 1.0f), NOT_COMPARED, NULL, {0}},
                                   {AQ_F32, N, random_of(AQ_F32, N, 5, 1.0f), dx, NULL, {0}},
                                   {AQ_F32, x.D, random_of(AQ_F32, x.D, 6, 1.0f), COMPARED, NULL, {0}},
                                   {AQ_F32, x.D, random_of(AQ_F32, x.D, 7, 1.0f), COMPARED, NULL, {0}},
                                   {x.type, N, NULL, dx, NULL, {0}},
                                   {AQ_F32, x.D, random_of(AQ_F32, x.D, 8, 1.0f), as_dx, NULL, {0}}};
        both_as("layernorm", arrays, 12, layernorm_call, &x, x.type, TIMES);
    }
}

#include "conform_device_window.h"

struct cached_case {
    uint64_t samples, T, first, H, share, D, window;
    enum aq_element type;
};

static enum aq_status cached_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct cached_case *x = context;
    struct aq_attention_cached args = {.samples = x->samples,
                                       .T = x->T,
                                       .first = x->first,
                                       .rows = x->first + x->T + 2,
                                       .H = x->H,
                                       .kv_heads = x->H / x->share,
                                       .D = x->D,
                                       .window = x->window,
                                       .scale = x->window ? 0.3f : 0.0f,
                                       .cap = x->window ? 0.7f : 0.0f,
                                       .type = x->type,
                                       .qkv = arrays[0].at,
                                       .cache = arrays[1].at,
                                       .out = arrays[2].at};
    return aq_device_attention_cached(where, &args, NULL);
}

/* Of one sample, in two calls (all but the last tokens, which are only kept; those) and in aq_attention's own. */
static void cached_is_attention(const struct cached_case *x)
{
    const uint64_t all = x->first + x->T, kv = x->H / x->share, row = (x->H + 2 * kv) * x->D, N = x->H * x->D;
    float *qkv = random_of(AQ_F32, all * row, 1, 1.0f), *lse = help_alloc(all * x->H * sizeof *lse + 4);
    float *whole = help_alloc(all * N * sizeof *whole), *last = help_alloc(all * N * sizeof *last);
    float *cache = help_alloc(all * 2 * kv * x->D * sizeof *cache);
    const struct aq_attention plain = {.samples = 1,
                                       .T = all,
                                       .H = x->H,
                                       .kv_heads = kv,
                                       .D = x->D,
                                       .T_mask = all,
                                       .window = x->window,
                                       .scale = x->window ? 0.3f : 0.0f,
                                       .cap = x->window ? 0.7f : 0.0f,
                                       .type = AQ_F32,
                                       .qkv = qkv,
                                       .out = whole,
                                       .lse = lse};
    struct aq_attention_cached args = {.samples = 1,
                                       .T = x->first,
                                       .rows = all,
                                       .H = x->H,
                                       .kv_heads = kv,
                                       .D = x->D,
                                       .window = x->window,
                                       .scale = plain.scale,
                                       .cap = plain.cap,
                                       .type = AQ_F32,
                                       .qkv = qkv,
                                       .cache = cache};
    assert_int_equal(aq_device_attention(truth, &plain, NULL), AQ_OK);
    assert_int_equal(aq_device_attention_cached(truth, &args, NULL), AQ_OK);
    args.first = args.T;
    args.T = x->T;
    args.qkv = qkv + x->first * row;
    args.out = last;
    assert_int_equal(aq_device_attention_cached(truth, &args, NULL), AQ_OK);
    near("attention over kept keys", last, whole + x->first * N, AQ_F32, x->T * N, 3e-6);
    aq_free(qkv);
    aq_free(lse);
    aq_free(whole);
    aq_free(last);
    aq_free(cache);
}

static void test_attention_cached_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][7] = {{1, 1, 0, 1, 1, 1, 0},    {1, 1, 5, 2, 1, 8, 0},    {2, 1, 37, 4, 2, 16, 0},
                                        {1, 3, 0, 3, 3, 20, 0},   {2, 5, 9, 2, 1, 33, 0},   {1, 1, 130, 12, 1, 64, 0},
                                        {1, 1, 63, 4, 2, 128, 7}, {2, 4, 3, 2, 2, 40, 4},   {1, 2, 70, 1, 1, 260, 1},
                                        {1, 7, 1, 6, 3, 24, 100}};
    for (size_t s = 0; s < TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / TYPES];
        const struct cached_case x = {.samples = size[0],
                                      .T = size[1],
                                      .first = size[2],
                                      .H = size[3],
                                      .share = size[4],
                                      .D = size[5],
                                      .window = size[6],
                                      .type = types[s % TYPES]};
        const uint64_t kv = x.H / x.share * x.D, rows = x.samples * x.T;
        const uint64_t kept = x.samples * (x.first + x.T + 2) * 2 * kv;
        struct array arrays[3] = {
            {x.type, rows * (x.H * x.D + 2 * kv), random_of(x.type, rows * (x.H * x.D + 2 * kv), 1, 1.0f), NOT_COMPARED,
             NULL, {0}},
            {x.type, kept, random_of(x.type, kept, 2, 1.0f), EXACT, NULL, {0}},
            {x.type, rows * x.H * x.D, NULL, COMPARED, NULL, {0}}};
        both_as("attention over kept keys", arrays, 3, cached_call, &x, x.type, TIMES);
        if (x.first > 0) cached_is_attention(&x);
    }
}

static enum aq_status embedding_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_dropout dropout = {.probability = x->dropout, .keys = arrays[7].at};
    const struct aq_embedding args = {.samples = x->samples,
                                      .T = x->T,
                                      .C = x->D,
                                      .V = 11,
                                      .add = x->H > 0 && x->scale == 0.0f,
                                      .tokens = arrays[0].at,
                                      .token_table = arrays[1].at,
                                      .position_table = x->H > 1 ? NULL : arrays[2].at,
                                      .scale = x->scale,
                                      .x = arrays[3].at,
                                      .x_type = arrays[3].type,
                                      .dropout = dropout};
    const enum aq_status status = aq_device_embedding(where, &args, NULL);
    if (status != AQ_OK) return status;
    const struct aq_embedding_backward back = {.samples = x->samples,
                                               .T = x->T,
                                               .C = x->D,
                                               .V = 11,
                                               .tokens = arrays[0].at,
                                               .dx = arrays[4].at,
                                               .token_gradient = arrays[5].at,
                                               .position_gradient = x->scale > 0.0f ? NULL : arrays[6].at,
                                               .scale = x->scale,
                                               .dropout = dropout};
    return aq_device_embedding_backward(where, &back, NULL);
}

static void test_embedding_matches_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1, 1, 1},   {3, 21, 70}, {3, 21, 300}, {2, 9, 100},
                                        {4, 150, 5}, {1, 700, 8}, {3, 1401, 8}, {1, 1030, 5}};
    for (size_t c = 0; c < 4 * sizeof sizes / sizeof sizes[0]; c++) {
        const size_t s = c / 2;
        const struct rows_case x = {.bf16 = c % 2,
                                    .scale = s / 2 % 3 > 1 ? 5.6568f : 0.0f,
                                    .samples = sizes[s / 2][0],
                                    .T = sizes[s / 2][1],
                                    .D = sizes[s / 2][2],
                                    .H = s / 2 % 3, /* added, and without places */
                                    .dropout = s % 2 ? 0.5f : 0.0f};
        if (x.bf16 && x.H > 0 && x.scale == 0.0f) continue; /* nothing is added to bf16 */
        const enum aq_element type = x.bf16 ? AQ_BF16 : AQ_F32;
        const uint64_t rows = x.samples * x.T, keys = x.samples * sizeof(struct aq_rng_key) / 4;
        struct array arrays[8] = {{AQ_F32, rows, help_alloc(rows * 4), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, 11 * x.D, random_of(AQ_F32, 11 * x.D, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.T * x.D, random_of(AQ_F32, x.T * x.D, 2, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {type, rows * x.D, random_of(type, rows * x.D, 7, 1.0f), EXACT, NULL, {0}},
                                  {AQ_F32, rows * x.D, random_of(AQ_F32, rows * x.D, 3, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, 11 * x.D, random_of(AQ_F32, 11 * x.D, 4, 1.0f), EXACT, NULL, {0}},
                                  {AQ_F32, x.T * x.D, random_of(AQ_F32, x.T * x.D, 5, 1.0f), EXACT, NULL, {0}},
                                  {AQ_F32, keys, help_alloc(keys * 4), NOT_COMPARED, NULL, {0}}};
        help_tokens(arrays[0].host, rows, 6, 11);
        for (uint64_t i = 0; i < x.samples; i++)
            ((struct aq_rng_key *)arrays[7].host)[i] = aq_rng_key(7, AQ_RNG_DROPOUT, 5, i);
        both("embedding", arrays, 8, embedding_call, &x);
    }
}

#include "conform_device_delta.h"
#include "conform_device_heads.h"
#include "conform_device_image.h"
#include "conform_device_loss.h"
#include "conform_device_magnitude.h"
#include "conform_device_conv.h"
#include "conform_device_text.h"
#include "conform_device_parts.h"

static enum aq_status flat_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    enum aq_status status =
        aq_device_scale(where, &(struct aq_scale){.x = arrays[0].at, .count = x->T, .factor = 1.0f / 3.0f}, NULL);
    if (status != AQ_OK) return status;
    const struct aq_dropout_apply dropout = {.samples = x->samples,
                                             .sample_elements = x->T / x->samples,
                                             .x = arrays[1].at,
                                             .y = arrays[2].at,
                                             .y_type = x->type,
                                             .dropout = {.probability = x->dropout, .keys = arrays[3].at}};
    status = dropout_twice(where, &dropout, arrays[0].at);
    if (status != AQ_OK) return status;
    const struct aq_column_sum sum = {
        .rows = x->T, .C = 1, .stride = 1, .x = arrays[2].at, .type = x->type, .sums = arrays[4].at};
    return aq_device_column_sum(where, &sum, NULL);
}

static void test_flat_ranges_match_truth(void **state)
{
    (void)state;
    enum { KEY = sizeof(struct aq_rng_key) / 4 };
    static const uint64_t sizes[] = {1, 15, 16, 1000, 70001};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t T = sizes[s / (2 * TYPES)];
        const struct rows_case x = {
            .T = T, .samples = s % 2 && T > 2 ? 3 : 1, .type = types[s / 2 % TYPES], .dropout = s % 2 ? 0.1f : 0.0f};
        struct array arrays[5];
        for (int i = 0; i < 2; i++)
            arrays[i] = (struct array){AQ_F32, x.T, random_of(AQ_F32, x.T, 1 + (uint64_t)i, 1.0f), EXACT, NULL, {0}};
        arrays[2] = (struct array){x.type, x.T, NULL, EXACT, NULL, {0}};
        arrays[3] = (struct array){AQ_F32, 3 * KEY, help_alloc(3 * KEY * 4), NOT_COMPARED, NULL, {0}};
        const enum compare sum = T <= 16 ? COMPARED : NOT_COMPARED; /* a long sum of signs cancels */
        arrays[4] = (struct array){AQ_F32, 1, NULL, sum, NULL, {0}};
        for (uint64_t i = 0; i < 3; i++)
            ((struct aq_rng_key *)arrays[3].host)[i] = aq_rng_key(9, AQ_RNG_DROPOUT, 1, 2 + i);
        both("flat", arrays, 5, flat_call, &x);
    }
}

/* More spans than go into a launch, and than are waited for at once; a span's bits are the same wherever it lies. */
static void test_squares_of_spans_match_truth(void **state)
{
    (void)state;
    enum { SPANS = 1100, FLOATS = 40000, TWICE = 33001 };
    struct aq_range spans[SPANS];
    double mine[SPANS], exact[SPANS];
    float *values = random_of(AQ_F32, FLOATS + TWICE + 3, 1, 1.0f);
    memcpy(values + FLOATS + 3, values, TWICE * sizeof *values); /* the same at another alignment */
    for (uint64_t i = 0; i < SPANS; i++) {
        spans[i] = (struct aq_range){i * 17 % 1000, i % 11 == 3 ? 0 : i % 300 == 5 ? FLOATS - 1000 : i * i % 517};
        mine[i] = NAN;
    }
    spans[0] = (struct aq_range){0, TWICE};
    spans[SPANS - 1] = (struct aq_range){FLOATS + 3, TWICE};
    float *there = on(device, values, (FLOATS + TWICE + 3) * sizeof *values);
    assert_int_equal(aq_device_squares(device, there, spans, SPANS, mine, NULL), AQ_OK);
    for (uint64_t i = 0; i < SPANS; i++) {
        exact[i] = 0;
        for (uint64_t k = 0; k < spans[i].count; k++)
            exact[i] += (double)values[spans[i].first + k] * values[spans[i].first + k];
        if (!(fabs(mine[i] - exact[i]) <= 1e-6 * exact[i]))
            fail_msg("span %llu is %.17g, not %.17g", (unsigned long long)i, mine[i], exact[i]);
    }
    assert_memory_equal(&mine[0], &mine[SPANS - 1], sizeof mine[0]);
    off(device, there, NULL, 0);
    aq_free(values);
}

static enum aq_status column_sum_call(struct aq_device *where, struct array *arrays, const void *context)
{
    const struct rows_case *x = context;
    const struct aq_column_sum sum = {
        .rows = x->T, .C = x->D, .stride = x->D + x->H, .x = arrays[0].at, .type = x->type, .sums = arrays[1].at};
    return aq_device_column_sum(where, &sum, NULL);
}

static void test_column_sums_match_truth(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 1}, {17, 64}, {100, 65}, {700, 33}, {333, 200}, {2, 1030}};
    for (size_t s = 0; s < 2 * TYPES * sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t *size = sizes[s / (2 * TYPES)];
        const struct rows_case x = {.T = size[0], .D = size[1], .H = s % 2 ? 2 : 4, .type = types[s / 2 % TYPES]};
        const uint64_t N = x.T * (x.D + x.H);
        struct array arrays[2] = {{x.type, N, random_of(x.type, N, 1, 1.0f), NOT_COMPARED, NULL, {0}},
                                  {AQ_F32, x.D, random_of(AQ_F32, x.D, 2, 1.0f), COMPARED, NULL, {0}}};
        both("column sum", arrays, 2, column_sum_call, &x);
    }
}

/* Element 16269 of this key rounds to another float where a logarithm is off by 8 units of 2^-52. */
static void test_initial_values_are_the_same_bits(void **state)
{
    (void)state;
    enum { N = 40000 };
    float *mine = help_alloc(N * sizeof(float));
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_INIT, 2, 2083);
    float *x = on(device, NULL, N * sizeof(float));
    struct aq_fill_normal fill = {.x = x, .count = N, .key = key, .std = 0.5f};
    assert_int_equal(aq_device_fill_normal(device, &fill, NULL), AQ_OK);
    off(device, x, mine, N * sizeof(float));
    for (int i = 0; i < N; i++)
        assert_true(mine[i] == 0.5f * aq_rng_normal(&key, (uint64_t)i));
    x = on(device, NULL, N * sizeof(float));
    fill = (struct aq_fill_normal){.x = x, .count = N, .key = key, .value = 3.0f};
    assert_int_equal(aq_device_fill_normal(device, &fill, NULL), AQ_OK);
    off(device, x, mine, N * sizeof(float));
    for (int i = 0; i < N; i++)
        assert_true(mine[i] == 3.0f);
    aq_free(mine);
}

/* Dropout keeps the mean and drops as many as asked: 5 standard deviations of 70001 draws at p = 0.1. */
static void test_dropout_drops_its_share(void **state)
{
    (void)state;
    enum { N = 70001 };
    float *host = help_alloc(N * sizeof(float));
    for (int i = 0; i < N; i++)
        host[i] = 1.0f;
    struct aq_rng_key key = aq_rng_key(1, AQ_RNG_DROPOUT, 5, 6);
    float *x = on(device, host, N * sizeof(float));
    struct aq_rng_key *keys = on(device, &key, sizeof key);
    const struct aq_dropout_apply args = {.samples = 1,
                                          .sample_elements = N,
                                          .x = x,
                                          .y = x,
                                          .y_type = AQ_F32,
                                          .dropout = {.probability = 0.1f, .keys = keys}};
    assert_int_equal(aq_device_dropout(device, &args, NULL), AQ_OK);
    off(device, x, host, N * sizeof(float));
    off(device, keys, NULL, sizeof key);
    int dropped = 0;
    for (int i = 0; i < N; i++) {
        assert_true(host[i] == 0.0f || host[i] == 1.0f / (1.0f - 0.1f));
        dropped += host[i] == 0.0f;
    }
    assert_true(fabs(dropped - 0.1 * N) < 5.0 * sqrt(N * 0.09));
    aq_free(host);
}

static int open_variant(const char *kind, const char *variant)
{
    if (strcmp(kind, "cpu") == 0) setenv("AQ_CPU", variant, 1);
    const struct aq_device_config config = {.kind = kind, .threads = 3};
    const enum aq_status status = aq_device_open(&config, &device);
    unsetenv("AQ_CPU");
    const char *wish = getenv("AQ_GPU"); /* required: a missing one is a failure */
    if (status == AQ_NODEV && !(wish && strcmp(wish, "required") == 0)) {
        print_message("skip: %s %s is not on this machine\n", kind, variant);
        return 77;
    }
    if (status != AQ_OK) return 1;
    gpu = strcmp(kind, "cuda") == 0;
    struct aq_device_info info;
    aq_device_info(device, &info);
    print_message("%s %s: %s\n", kind, variant, info.name);
    return info.threads >= 1 ? 0 : 1;
}

/* An argument is a pattern of the tests to run, as in test_*matmul*. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_zeroed_and_copied),
        cmocka_unit_test(test_pages_are_host_memory_that_is_copied),
        cmocka_unit_test(test_events_pass_in_order_of_streams),
        cmocka_unit_test(test_timed_events_measure_what_lies_between),
        cmocka_unit_test(test_parallel_runs_every_piece_once),
        cmocka_unit_test(test_matmul_matches_truth),
        cmocka_unit_test(test_matmul_ends_match_truth),
        cmocka_unit_test(test_matmul_with_sums_of_an_operand_matches_truth),
        cmocka_unit_test(test_matmul_with_a_bias_for_each_row_matches_truth),
        cmocka_unit_test(test_matmul_adds_to_each_row_its_own),
        cmocka_unit_test(test_residual_of_bf16_is_rounded_once),
        cmocka_unit_test(test_matmul_of_odd_extents_matches_truth),
        cmocka_unit_test(test_large_matmul_matches_truth),
        cmocka_unit_test(test_matmul_in_parts_has_the_same_bits),
        cmocka_unit_test(test_the_limit_of_k_into_16_bits_is_exact),
        cmocka_unit_test(test_layernorm_matches_truth),
        cmocka_unit_test(test_attention_matches_truth),
        cmocka_unit_test(test_attention_cached_matches_truth),
        cmocka_unit_test(test_rmsnorm_matches_truth),
        cmocka_unit_test(test_heads_that_turn_match_truth),
        cmocka_unit_test(test_gates_match_truth),
        DELTA_TESTS,
        cmocka_unit_test(test_attention_with_a_window_matches_truth),
        cmocka_unit_test(test_attention_of_both_sides_matches_truth),
        cmocka_unit_test(test_attention_with_a_cap_matches_truth),
        cmocka_unit_test(test_attention_with_a_window_is_as_defined),
        cmocka_unit_test(test_attention_at_its_size_matches_truth),
        cmocka_unit_test(test_attention_at_its_widest_matches_truth),
        cmocka_unit_test(test_disentangled_matches_truth),
        cmocka_unit_test(test_disentangled_is_its_definition),
        cmocka_unit_test(test_disentangled_whatever_rows_lie_between),
        cmocka_unit_test(test_gelu_matches_truth),
        cmocka_unit_test(test_tanh_matches_truth),
        cmocka_unit_test(test_unpacked_weights_match_truth),
        cmocka_unit_test(test_unpacked_nf4_matches_truth),
        cmocka_unit_test(test_magnitudes_match_truth),
        cmocka_unit_test(test_magnitude_is_its_definition),
        cmocka_unit_test(test_causal_conv_matches_truth),
        cmocka_unit_test(test_causal_conv_is_its_definition),
        cmocka_unit_test(test_causal_conv_goes_on_from_its_cache),
        cmocka_unit_test(test_parts_match_truth),
        cmocka_unit_test(test_parts_are_alone),
        cmocka_unit_test(test_unfold_matches_truth),
        cmocka_unit_test(test_embedding_matches_truth),
        cmocka_unit_test(test_cross_entropy_matches_truth),
        cmocka_unit_test(test_cross_entropy_with_a_cap_is_its_definition),
        cmocka_unit_test(test_cross_entropy_is_its_definition),
        cmocka_unit_test(test_cross_entropy_reads_no_column_beyond_the_vocabulary),
        cmocka_unit_test(test_cross_entropy_shows_an_overflow),
        cmocka_unit_test(test_squared_error_matches_truth),
        cmocka_unit_test(test_relu_matches_truth),
        cmocka_unit_test(test_batch_norm_matches_truth),
        cmocka_unit_test(test_batch_norm_is_its_definition),
        IMAGE_TESTS,
        cmocka_unit_test(test_argmax_is_the_first_of_the_largest),
        cmocka_unit_test(test_flat_ranges_match_truth),
        cmocka_unit_test(test_squares_of_spans_match_truth),
        cmocka_unit_test(test_column_sums_match_truth),
        cmocka_unit_test(test_initial_values_are_the_same_bits),
        cmocka_unit_test(test_dropout_drops_its_share),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    isolated_register("isolated");
    if (open_variant("cpu", "plain") != 0) return 1;
    truth = device;
    int failed = 0, ran = 0;
    const char *only = getenv("AQ_CONFORM"); /* one kind of the table */
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (only && strcmp(kinds[k], only) != 0) continue;
        const size_t count = strcmp(kinds[k], "cpu") == 0 ? sizeof variants / sizeof variants[0] : 1;
        for (size_t v = 0; v < count; v++) {
            const int opened = open_variant(kinds[k], variants[v]);
            if (opened == 77) continue;
            ran++;
            truth_rewind();
            failed += opened != 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
            if (opened == 0) aq_device_close(device);
        }
    }
    aq_device_close(truth);
    truth_forget();
    return failed ? 1 : ran ? 0 : 77;
}
