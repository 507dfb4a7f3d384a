/*
 * test_cuda_device.c -- the CUDA backend's own rules, without a GPU: what it says where there is none and where
 * memory comes from. Whose a GPU is, is test_cuda_lock's; what it computes conform_device_cuda's.
 */
#include "stage_help.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec_common.h"
#include "conv_results.h"
#include "cuda_plan.h"

static void says(uint32_t index, enum aq_status status, const char *words)
{
    struct cuda_probe probe;
    char why[CUDA_TEXT_BYTES] = "";
    assert_int_equal(cuda_probe(index, &probe, why), status);
    if (!strstr(why, words)) fail_msg("nothing says '%s': %s", words, why);
}

static void test_probe_says_what_is_missing(void **state)
{
    (void)state;
    cuda_runtime_host_driver(0, 0, 0, 0);
    says(0, AQ_NOTFOUND, "there is no NVIDIA driver here");
    cuda_runtime_host_driver(12040, 1, 9, 0);
    says(0, AQ_NODEV, "the driver is for CUDA 12.4, this build for 13.0");
    cuda_runtime_host_driver(13000, 0, 0, 0);
    says(0, AQ_NOTFOUND, "shows no GPU");
    cuda_runtime_host_driver(13000, 2, 9, 0);
    says(2, AQ_NODEV, "device_index: 2: this machine has GPUs 0 to 1");
    cuda_runtime_host_driver(13000, 1, 7, 5);
    says(0, AQ_NODEV, "has compute capability 7.5; this build is for sm_80-real,90-real,100");
    cuda_runtime_host_driver(13000, 1, 9, 0);
    struct cuda_probe probe;
    char why[CUDA_TEXT_BYTES];
    assert_int_equal(cuda_probe(0, &probe, why), AQ_OK);
    assert_string_equal(probe.uuid, "00010203-0405-0607-0809-0a0b0c0d0e00");
}

static void test_architectures_fit_as_cuda_says(void **state)
{
    (void)state;
    const struct {
        const char *list;
        int major, minor;
        bool fits;
    } cases[] = {{"80-real,90-real,100", 8, 0, true},
                 {"80-real,90-real,100", 8, 9, true},
                 {"80-real,90-real,100", 9, 0, true},
                 {"80-real,90-real,100", 12, 0, true},
                 {"80-real,90-real", 10, 0, false},
                 {"86-real", 8, 0, false},
                 {"90a-real", 9, 0, true},
                 {"90a", 10, 0, false},
                 {"80-virtual", 9, 0, true},
                 {"90-virtual", 8, 0, false},
                 {"80", 7, 5, false},
                 {"", 9, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (cuda_architecture_fits(cases[i].list, cases[i].major, cases[i].minor) != cases[i].fits)
            fail_msg("%s on %d.%d", cases[i].list, cases[i].major, cases[i].minor);
}

/* The memory of tests is no kinder than CUDA's word. */
static void test_fresh_memory_is_as_bad_as_cuda_allows(void **state)
{
    (void)state;
    enum { BYTES = 4096, PIECE = 2 << 20 };
    void *memory[3];
    uint64_t seen[4];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(i < 2 ? cudaMalloc(&memory[i], BYTES) : cudaMalloc(&memory[i], PIECE), cudaSuccess);
        assert_int_equal((uintptr_t)memory[i] % 512, 256);
        memcpy(&seen[i], memory[i], sizeof seen[i]);
    }
    void *pinned = NULL;
    assert_int_equal(cudaHostAlloc(&pinned, BYTES, cudaHostAllocPortable), cudaSuccess);
    assert_int_equal((uintptr_t)pinned % 4096, 512);
    memcpy(&seen[3], pinned, sizeof seen[3]);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaFree(memory[i]), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
}

/* The CPU takes the place of a GPU that is not there, where it was asked to, and of no other. */
static void test_auto_takes_the_cpu_only_where_there_is_no_gpu(void **state)
{
    (void)state;
    static const struct {
        int version, count, major, minor;
        enum aq_status automatic, asked;
        const char *words;
    } cases[] = {{0, 0, 0, 0, AQ_OK, AQ_NODEV, "there is no NVIDIA driver here"},
                 {13000, 0, 0, 0, AQ_OK, AQ_NODEV, "shows no GPU"},
                 {12040, 1, 9, 0, AQ_NODEV, AQ_NODEV, "install a later driver"},
                 {13000, 1, 7, 5, AQ_NODEV, AQ_NODEV, "build with -DCMAKE_CUDA_ARCHITECTURES=75"},
                 {13000, 1, 9, 0, AQ_OK, AQ_OK, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct aq_device_config automatic = {.kind = "auto", .threads = 1}, asked = {.kind = "cuda"};
        struct aq_device *device = NULL;
        struct aq_device_info info;
        cuda_runtime_host_driver(cases[i].version, cases[i].count, cases[i].major, cases[i].minor);
        aq_error_clear();
        /* One question for whoever plans and judges: what auto is here, and what every machine says of it. */
        assert_true(aq_device_gpu_here("auto", 0) == (cases[i].automatic != AQ_OK || cases[i].asked == AQ_OK));
        assert_true(aq_device_gpu_here(NULL, 0) == aq_device_gpu_here("auto", 0));
        assert_true(aq_device_gpu_here("cuda", 0) && !aq_device_gpu_here("cpu", 0));
        assert_int_equal(aq_device_open(&automatic, &device), cases[i].automatic);
        if (cases[i].automatic == AQ_OK) {
            aq_device_info(device, &info);
            assert_true(info.host_memory != aq_device_gpu_here("auto", 0));
            assert_true(info.host_memory == (cases[i].words != NULL));
            aq_device_close(device);
        } else {
            assert_non_null(strstr(aq_error_text(), cases[i].words));
        }
        aq_error_clear();
        assert_int_equal(aq_device_open(&asked, &device), cases[i].asked);
        if (cases[i].asked == AQ_OK)
            aq_device_close(device);
        else
            assert_non_null(strstr(aq_error_text(), cases[i].words));
    }
}

static void test_memory_is_one_allocation_and_says_who_needs_it(void **state)
{
    (void)state;
    enum { PIECE = 1000001 };
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_reserve(device, 4 * PIECE, "stage 0: parameters 4 MB"), AQ_OK);
    const size_t used = cuda_runtime_host_used();
    void *pieces[5];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, PIECE, &pieces[i]), AQ_OK);
        assert_int_equal((uintptr_t)pieces[i] % AQ_DEVICE_ALIGN, 0);
        for (size_t at = 0; at < PIECE; at++)
            assert_int_equal(((const uint8_t *)pieces[i])[at], 0);
        memset(pieces[i], 0x55, PIECE);
    }
    assert_int_equal(cuda_runtime_host_used(), used);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, PIECE, &pieces[4]), AQ_OK);
    assert_true(cuda_runtime_host_used() > used); /* beyond the plan: its own */
    struct aq_device_memory memory;
    void *library = NULL;
    assert_int_equal(aq_device_memory(device, &memory), AQ_OK);
    assert_int_equal(memory.held, cuda_runtime_host_used());
    assert_int_equal(memory.all, memory.free + memory.held);
    assert_int_equal(cudaMalloc(&library, 12345), cudaSuccess); /* somebody else's */
    assert_int_equal(aq_device_memory(device, &memory), AQ_OK);
    assert_int_equal(memory.all - memory.free - memory.held, 12345);
    assert_int_equal(cudaFree(library), cudaSuccess);
    for (int i = 0; i < 5; i++)
        aq_device_free(device, AQ_MEMORY_DEVICE, pieces[i], PIECE);
    assert_int_equal(cuda_runtime_host_used(), used);
    assert_int_equal(aq_device_memory(device, &memory), AQ_OK);
    assert_int_equal(memory.held, used);
    aq_device_close(device);
    assert_int_equal(cuda_runtime_host_used(), 0);

    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    cuda_runtime_host_memory(cuda_runtime_host_used() + (64 << 20));
    aq_error_clear();
    assert_int_equal(aq_device_reserve(device, (uint64_t)1 << 30, "stage 0: parameters 0.7 GB slots 0.3 GB"), AQ_NOMEM);
    const char *line = aq_error_text();
    assert_non_null(strstr(line, "needs 1.00 GiB, 0.06 of"));
    assert_non_null(strstr(line, "parameters 0.7 GB slots 0.3 GB"));
    aq_device_close(device);
    cuda_runtime_host_memory(4096);
    aq_error_clear();
    assert_int_equal(aq_device_open(&config, &device), AQ_NOMEM);
    assert_non_null(strstr(aq_error_text(), "has no memory left for a context"));
    cuda_runtime_host_memory((size_t)1 << 36);
    assert_int_equal(cuda_runtime_host_used(), 0);
}

static void test_more_shapes_than_plans_are_kept(void **state)
{
    (void)state;
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    void *memory = NULL;
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 3 * 4096 * sizeof(float), &memory), AQ_OK);
    float *a = memory, *b = a + 4096, *c = b + 4096;
    for (int round = 0; round < 2; round++)
        for (uint64_t n = 1; n <= 700; n++) {
            for (uint64_t i = 0; i < n; i++)
                b[i] = (float)i;
            a[0] = (float)round + 1.0f;
            const struct aq_matmul args = {
                .M = 1, .N = n, .K = 1, .a = a, .b = b, .c = c, .a_stride = 1, .b_stride = n, .c_stride = n};
            assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
            assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
            assert_true(c[n - 1] == a[0] * (float)(n - 1));
        }
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 3 * 4096 * sizeof(float));
    aq_device_close(device);
}

/* One step of a small stage; the kinds of products that it was made of. */
static void stage_step(struct aq_device *device, enum aq_stage_precision precision, uint32_t C, uint32_t V)
{
    enum { B = 2, T = 8 };
    struct aq_stage_config config = help_config(1, 2, C, V, B, T);
    struct aq_stage *stage = NULL;
    int32_t tokens[B * T];
    config.precision = precision;
    help_tokens(tokens, B * T, 1, V);
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    assert_int_equal(aq_stage_init(stage, 1), AQ_OK);
    const struct aq_batch batch = help_batch(tokens, tokens, NULL, B, T);
    const struct aq_stage_input input = {.batch = &batch, .loss_factor = 1.0f};
    struct aq_stage_loss loss = {0};
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_OK);
    aq_stage_close(stage);
}

/* The gradients of a small stage by name, and its loss. */
struct learned {
    double loss;
    uint32_t count;
    struct aq_tensor_info infos[64];
    float *gradients;
};

static struct learned learn(struct aq_device *device, enum aq_stage_precision precision, const char *freeze)
{
    enum { B = 2, T = 8, C = 32, V = 40 };
    struct aq_stage_config config = help_config(2, 2, C, V, B, T);
    struct aq_stage *stage = NULL;
    struct learned out = {0};
    int32_t tokens[B * T];
    config.precision = precision;
    config.freeze = freeze;
    help_tokens(tokens, B * T, 1, V);
    assert_int_equal(aq_stage_open(device, &config, &stage), AQ_OK);
    assert_int_equal(aq_stage_init(stage, 1), AQ_OK);
    const struct aq_batch batch = help_batch(tokens, tokens, NULL, B, T);
    const struct aq_stage_input input = {.batch = &batch, .loss_factor = 1.0f};
    struct aq_stage_loss loss = {0};
    assert_int_equal(aq_stage_zero_grads(stage, NULL), AQ_OK);
    assert_int_equal(aq_stage_forward(stage, 0, &input, NULL, &loss, NULL), AQ_OK);
    assert_int_equal(aq_stage_backward(stage, 0, NULL, NULL, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    out.loss = loss.sum;
    out.count = aq_stage_tensor_count(stage);
    assert_true(out.count <= 64);
    for (uint32_t i = 0; i < out.count; i++)
        aq_stage_tensor(stage, i, &out.infos[i]);
    out.gradients = help_alloc(aq_stage_parameter_count(stage) * sizeof(float));
    assert_int_equal(aq_device_copy(device, out.gradients, aq_stage_gradients(stage),
                                    aq_stage_parameter_count(stage) * sizeof(float), NULL),
                     AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    aq_stage_close(stage);
    return out;
}

/* As far as sums in another order may be apart. */
static bool is_near(const float *a, const float *b, uint64_t count)
{
    float most = 0.0f, apart = 0.0f;
    for (uint64_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(a[i]));
        apart = fmaxf(apart, fabsf(a[i] - b[i]));
    }
    return apart <= 1e-5f * most;
}

/*
 * What is frozen has its copies in 16 bits, too; what trains has the gradients that it has where all does. But for a
 * bias whose weights are frozen: there is no product then that sums its gradient on the way.
 */
static void test_frozen_tensors_have_copies_and_change_no_gradient(void **state)
{
    (void)state;
    static const enum aq_stage_precision precisions[] = {AQ_STAGE_FP32, AQ_STAGE_BF16, AQ_STAGE_FP16};
    static const char *const lists[] = {"embedding, block 0", "wpe, ln_1, bias", "wte", "*, !block 1", "*, !bias"};
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    for (size_t k = 0; k < sizeof precisions / sizeof precisions[0]; k++) {
        struct learned all = learn(device, precisions[k], NULL);
        for (size_t n = 0; n < sizeof lists / sizeof lists[0]; n++) {
            struct learned some = learn(device, precisions[k], lists[n]);
            assert_true(some.loss == all.loss);
            assert_in_range(some.count, 1, all.count - 1);
            for (uint32_t i = 0, at = 0; i < some.count; i++, at++) {
                while (at < all.count && strcmp(all.infos[at].name, some.infos[i].name) != 0)
                    at++;
                assert_true(at < all.count);
                const float *want = all.gradients + all.infos[at].offset, *got = some.gradients + some.infos[i].offset;
                const bool same = memcmp(want, got, some.infos[i].count * sizeof(float)) == 0;
                const bool alone = strcmp(lists[n], "*, !bias") == 0; /* biases, and no weights */
                if (!same && !(alone && is_near(want, got, some.infos[i].count)))
                    fail_msg("%s frozen: %s", lists[n], some.infos[i].name);
            }
            aq_free(some.gradients);
        }
        aq_free(all.gradients);
    }
    aq_device_close(device);
}

static void test_products_are_computed_as_asked_for(void **state)
{
    (void)state;
    static const struct {
        enum aq_stage_precision precision;
        cublasComputeType_t compute;
        cudaDataType_t type;
    } kinds[] = {{AQ_STAGE_FP32, CUBLAS_COMPUTE_32F, CUDA_R_32F},
                 {AQ_STAGE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F},
                 {AQ_STAGE_BF16, CUBLAS_COMPUTE_32F, CUDA_R_16BF},
                 {AQ_STAGE_FP16, CUBLAS_COMPUTE_32F, CUDA_R_16F}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    for (int i = 0; i < KINDS; i++) {
        uint64_t before[KINDS];
        for (int k = 0; k < KINDS; k++)
            before[k] = cublaslt_host_products(kinds[k].compute, kinds[k].type);
        stage_step(device, kinds[i].precision, 32, 40);
        for (int k = 0; k < KINDS; k++) /* 5 forward, head and all; twice as many backward */
            assert_int_equal(cublaslt_host_products(kinds[k].compute, kinds[k].type) - before[k], k == i ? 15 : 0);
    }
    aq_device_close(device);
    struct aq_stage *stage = NULL;
    struct aq_device *cpu = help_device(1);
    struct aq_stage_config stage_config = help_config(1, 2, 32, 40, 1, 8);
    stage_config.precision = AQ_STAGE_TF32;
    aq_error_clear();
    assert_int_equal(aq_stage_open(cpu, &stage_config, &stage), AQ_INVAL);
    assert_non_null(strstr(aq_error_text(), "model.precision: tf32 needs a GPU"));
    aq_device_close(cpu);
}

/* Each product of a stage is one that tensor cores are fast at, and ends as it should by itself. */
static void test_products_of_a_stage_are_the_library_s_fast_ones(void **state)
{
    (void)state;
    static const enum aq_stage_precision precisions[] = {AQ_STAGE_BF16, AQ_STAGE_FP16, AQ_STAGE_TF32};
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
        const struct cublaslt_host_counts before = cublaslt_host_counted();
        stage_step(device, precisions[i], 64, 4001); /* as 50257, one more than a multiple of 16 */
        const struct cublaslt_host_counts after = cublaslt_host_counted();
        /* Four biases, the gradients of two, and GELU backward; both GELUs are ours in fp32. */
        assert_int_equal(after.fused - before.fused, precisions[i] == AQ_STAGE_TF32 ? 5 : 7);
        assert_true(after.tensor > before.tensor);
        assert_true(after.slow == before.slow);
    }
    aq_device_close(device);
}

/* A product of 16 x 16 x 16 in bf16, with what may come after it, on memory as aq_device_alloc aligns it. */
enum { SIZE = 16 };
static struct aq_matmul small_product(uint16_t *values)
{
    return (struct aq_matmul){.M = SIZE,
                              .N = SIZE,
                              .K = SIZE,
                              .a = values,
                              .b = values,
                              .c = values + 1024,
                              .a_stride = SIZE,
                              .b_stride = SIZE,
                              .c_stride = SIZE,
                              .a_type = AQ_BF16,
                              .b_type = AQ_BF16,
                              .c_type = AQ_BF16,
                              .compute = AQ_BF16,
                              .bias = (const float *)(const void *)(values + 2048),
                              .bias_rounded = values + 2048};
}

/*
 * What was found for a bias at a multiple of 16 bytes is not used for one at a multiple of 2; and what is found for one
 * at a multiple of 256 is good for one at a multiple of 16, in whichever order they come: a cut moves tensors.
 */
static void test_a_plan_is_for_its_alignments(void **state)
{
    (void)state;
    static const uint64_t offs[] = {0, 1, 2, 8, 128};
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(aq_device_open(&config, &device), AQ_OK);
        assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 16384, &memory), AQ_OK);
        const struct cuda_matmul *matmul = cuda_device_of(device)->matmul;
        uint16_t *values = memory;
        for (size_t i = 0; i < sizeof offs / sizeof offs[0]; i++) {
            struct aq_matmul args = small_product(values);
            args.bias_rounded += turn ? offs[4 - i] : offs[i];
            assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
            args = small_product(values);
            args.a = values + (turn ? offs[4 - i] : offs[i]); /* an overlap in what is read does not matter */
            assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
        }
        assert_int_equal(matmul->next, 5); /* 16 bytes and more are one; 2 and 4, of the bias and of a */
        aq_device_free(device, AQ_MEMORY_DEVICE, memory, 16384);
        aq_device_close(device);
    }
}

/*
 * A convolution in pieces, the last one smaller, is that in one, and what the kernels without products give. y and dx
 * have the same bits in pieces; dw is added piece by piece.
 */
static void test_a_convolution_in_pieces_is_the_same(void **state)
{
    (void)state;
    static const struct {
        struct aq_conv_shape shape;
        uint64_t conv_bytes; /* of a piece  */
        uint32_t plans[2];   /* kinds of products: in one, in pieces; 16 bits are cut at 8 values, too */
    } cases[] = {
        {{2, 11, 17, 12, 20, 3, 1, AQ_F32}, 50 * 720, {3, 6}},   {{5, 9, 7, 12, 20, 3, 2, AQ_F32}, 41 * 432, {3, 6}},
        {{2, 11, 17, 12, 20, 3, 1, AQ_BF16}, 50 * 432, {6, 12}}, {{5, 7, 7, 8, 16, 1, 2, AQ_F16}, 33 * 64, {3, 4}},
        {{2, 6, 5, 1, 3, 5, 3, AQ_F32}, 4 * 304, {3, 3}},        {{4, 6, 5, 16, 8, 1, 1, AQ_F32}, 500, {3, 3}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct aq_conv_shape *s = &cases[i].shape;
        const uint64_t in = s->samples * s->height * s->width * s->C;
        const uint64_t out = s->samples * aq_conv_out(s->height, s->stride) * aq_conv_out(s->width, s->stride) * s->N;
        const uint64_t w = s->K * s->K * s->C * s->N;
        uint32_t plans[3];
        float *whole = conv_results(s, 0, &plans[0]), *pieces = conv_results(s, cases[i].conv_bytes, &plans[1]);
        float *plain = conv_results(s, 4, &plans[2]);
        if (plans[0] != cases[i].plans[0] || plans[1] != cases[i].plans[1] || plans[2] != 0)
            fail_msg("case %zu: %u kinds of products in one, %u in pieces, %u without", i, plans[0], plans[1],
                     plans[2]);
        assert_memory_equal(pieces, whole, (out + in) * sizeof *whole);
        for (uint64_t at = 0; at < out + in + w; at++) {
            const float limit = 1e-4f * (1.0f + fabsf(whole[at]));
            if (!(fabsf(pieces[at] - whole[at]) < limit) || !(fabsf(plain[at] - whole[at]) < limit))
                fail_msg("case %zu, value %llu: %g in one, %g in pieces, %g without products", i,
                         (unsigned long long)at, (double)whole[at], (double)pieces[at], (double)plain[at]);
        }
        aq_free(whole);
        aq_free(pieces);
        aq_free(plain);
    }
}

/* GELU in fp32 is ours: cuBLASLt's is close and not exact. */
static void test_gelu_is_fused_for_16_bits_alone(void **state)
{
    (void)state;
    static const enum aq_matmul_after endings[] = {AQ_AFTER_GELU, AQ_AFTER_GELU_BACKWARD};
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 16384, &memory), AQ_OK);
    for (unsigned i = 0; i < 4; i++) {
        struct aq_matmul args = small_product(memory);
        args.after = endings[i % 2];
        args.other = (uint16_t *)memory + 4096;
        if (i % 2) args.bias = NULL, args.bias_rounded = NULL;
        if (i / 2) args.c_type = AQ_F32, args.bias_rounded = NULL;
        const uint64_t before = cublaslt_host_counted().fused;
        assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
        assert_int_equal(cublaslt_host_counted().fused - before, i / 2 ? 0 : 1);
    }
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 16384);
    aq_device_close(device);
}

/* The next of four algorithms, then the plain way, then an error that names the product. */
static void test_a_product_that_fails_is_tried_another_way(void **state)
{
    (void)state;
    static const struct {
        struct cublaslt_host_algorithms say;
        int last; /* 8 and more: the plain way; -1: none */
    } cases[] = {{{.count = 5}, 0},
                 {{.count = 5, .failing = 0x3}, 2},
                 {{.count = 5, .failing = 0xf}, 8}, /* the fifth is not tried */
                 {{.count = 2, .failing = 0x103}, 9},
                 {{.count = 8, .failing = 0xfff}, -1}};
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    uint16_t truth[SIZE * SIZE];
    quiet_begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(aq_device_open(&config, &device), AQ_OK);
        assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 16384, &memory), AQ_OK);
        uint16_t *values = memory;
        for (int v = 0; v < 2048 + SIZE; v++)
            values[v] = aq_bfloat_from_float((float)(v % 7) - 3.0f);
        const struct aq_matmul args = small_product(values);
        cublaslt_host_say(cases[i].say);
        for (int times = 0; times < 2; times++) { /* the second time it is known */
            const enum aq_status status = aq_device_matmul(device, &args, NULL);
            assert_int_equal(status, cases[i].last < 0 ? AQ_CUDAERR : AQ_OK);
            if (status != AQ_OK) break;
            assert_int_equal(cublaslt_host_last(), cases[i].last);
            assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
            if (i == 0) memcpy(truth, args.c, sizeof truth);
            assert_memory_equal(args.c, truth, cases[i].last < 8 ? sizeof truth : 0);
        }
        aq_device_free(device, AQ_MEMORY_DEVICE, memory, 16384);
        aq_device_close(device);
    }
    quiet_end();
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3});
}

/* What a device with that table runs a product with; accumulated into c, if asked to, which must be its one product. */
static int last_with_table(bool accumulate)
{
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 16384, &memory), AQ_OK);
    uint16_t *values = memory;
    for (int i = 0; i < 2048; i++)
        values[i] = aq_bfloat_from_float(i < 1024 ? 1.0f : 0.0f);
    struct aq_matmul args = small_product(values);
    args.bias = NULL;
    args.bias_rounded = NULL;
    if (accumulate) args.accumulate = true, args.c_type = AQ_F32;
    assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    if (accumulate) assert_true(((const float *)args.c)[0] == (float)SIZE);
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 16384);
    aq_device_close(device);
    return cublaslt_host_last();
}

/*
 * The fastest by the clock, once; then the file's, whatever the clock says; a file that is none is said and not used.
 */
static void test_the_fastest_algorithm_is_found_once_and_kept(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-table-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/products-the-host-4-130000", folder);
    assert_int_equal(last_with_table(false), 8); /* no table: the heuristic's first */
    setenv("AQ_GPU_TABLE", folder, 1);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3, .slow = 0x500});
        assert_int_equal(last_with_table(accumulate), 9);
        cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3, .slow = 0x600});
        assert_int_equal(last_with_table(accumulate), 9);
        cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3, .slow = 0x600, .failing = 0x200});
        quiet_begin();
        assert_int_equal(last_with_table(accumulate), 8);
        quiet_end();
    }
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3, .slow = 0x500});
    assert_int_equal(truncate(path, 100), 0); /* as a crash may leave it: what is cut off is found again */
    assert_int_equal(last_with_table(false), 9);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("something else\n", file) > 0);
    assert_int_equal(fclose(file), 0);
    quiet_begin();
    assert_int_equal(last_with_table(false), 8);
    quiet_end();
    unsetenv("AQ_GPU_TABLE");
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3});
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

enum ending { RESIDUAL, SUMS, GRADIENT }; /* a bias' gradient with that of its weights; GELU backward */

/* What a device with that table runs a product with an ending with; its result is what one product gives. */
static int last_with_ending(enum ending ending)
{
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 32768, &memory), AQ_OK);
    uint16_t *values = memory;
    float *const sums = (float *)(void *)(values + 8192);
    for (int i = 0; i < 1024; i++)
        values[i] = aq_bfloat_from_float(1.0f);
    struct aq_matmul args = small_product(values);
    if (ending != RESIDUAL) args.bias = NULL; /* its bias is 0 */
    args.bias_rounded = NULL;
    if (ending == GRADIENT) {
        args.after = AQ_AFTER_GELU_BACKWARD; /* of 0: half of the sum */
        args.other = values + 4096;
    } else {
        args.c_type = AQ_F32;
        args.after = ending == RESIDUAL ? AQ_AFTER_RESIDUAL : AQ_AFTER_NONE;
        args.other = ending == RESIDUAL ? values + 4096 : NULL;
        for (int i = 0; i < SIZE * SIZE; i++)
            ((float *)(args.other ? args.other : args.c))[i] = 3.0f;
        args.accumulate = ending == SUMS;
        args.sums_b = ending == SUMS ? sums : NULL;
        sums[0] = 5.0f;
    }
    assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    if (ending == GRADIENT)
        assert_true(aq_bfloat_to_float(((const uint16_t *)args.c)[SIZE]) == (float)SIZE / 2);
    else
        assert_true(((const float *)args.c)[SIZE] == (float)SIZE + 3.0f);
    if (ending == SUMS) assert_true(sums[0] == (float)SIZE + 5.0f);
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 32768);
    aq_device_close(device);
    return cublaslt_host_last();
}

/* An ending is made in the product or after it, whichever is faster by the clock; the file keeps that, too. */
static void test_an_ending_is_made_where_it_is_faster(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-table-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/products-the-host-4-130000", folder);
    setenv("AQ_GPU_TABLE", folder, 1);
    for (enum ending ending = RESIDUAL; ending <= GRADIENT; ending++) {
        static const struct {
            struct cublaslt_host_algorithms say;
            int last;
        } cases[] = {{{.count = 3, .slow = 0x703}, 2}, /* the third with an ending */
                     {{.count = 3, .slow = 0x507}, 2}, /* by the file */
                     {{.count = 3, .slow = 0x507}, 9}, /* by the clock: the second without */
                     {{.count = 3, .slow = 0x706}, 9},
                     {{.count = 3, .slow = 0x706, .failing = 0x200}, 8}, /* the file's fails: the next without */
                     {{.count = 3, .slow = 0x706}, 0}};
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            cublaslt_host_say(cases[i].say);
            if (i == 2 || i == 5) assert_int_equal(unlink(path), 0); /* nothing is known */
            const int last = last_with_ending(ending);
            if (last != cases[i].last)
                fail_msg("ending %d, case %zu: algorithm %d, not %d", ending, i, last, cases[i].last);
        }
        assert_int_equal(unlink(path), 0);
    }
    unsetenv("AQ_GPU_TABLE");
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3});
    assert_int_equal(rmdir(folder), 0);
}

/* Launches of the clock are not of the pass: a list has what a product that is not timed has. */
static void test_timing_of_products_is_not_listed(void **state)
{
    (void)state;
    char folder[] = "/tmp/aqpipe-table-XXXXXX", path[128];
    uint8_t bytes[2][4096];
    struct aq_cuda_list lists[2];
    struct aq_device *device = NULL;
    const struct aq_device_config config = {.kind = "cuda"};
    void *memory = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/products-the-host-4-130000", folder);
    setenv("AQ_GPU_TABLE", folder, 1);
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3, .slow = 0x7}); /* the ending after the product */
    assert_int_equal(aq_device_open(&config, &device), AQ_OK);
    assert_int_equal(aq_device_alloc(device, AQ_MEMORY_DEVICE, 16384, &memory), AQ_OK);
    const struct aq_matmul args = small_product(memory);
    for (int i = 0; i < 2; i++) {
        lists[i] = (struct aq_cuda_list){.stream = cuda_device_of(device)->own->at,
                                         .bytes = bytes[i],
                                         .room = sizeof bytes[i],
                                         .enqueues = true};
        aq_cuda_list_use(&lists[i]);
        assert_int_equal(aq_device_matmul(device, &args, NULL), AQ_OK);
        aq_cuda_list_use(NULL);
    }
    assert_int_equal(aq_device_stream_sync(device, NULL), AQ_OK);
    assert_true(cublaslt_host_last() >= 8 && lists[1].launches == 2);
    assert_true(lists[0].launches == 2 && !lists[0].full && lists[0].used == lists[1].used);
    assert_memory_equal(bytes[0], bytes[1], lists[0].used);
    aq_device_free(device, AQ_MEMORY_DEVICE, memory, 16384);
    aq_device_close(device);
    unsetenv("AQ_GPU_TABLE");
    cublaslt_host_say((struct cublaslt_host_algorithms){.count = 3});
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* More queues than a stage has streams, unless somebody has said how many. */
static void test_streams_do_not_share_their_way_to_the_gpu(void **state)
{
    (void)state;
    const struct aq_device_config config = {.kind = "cuda"};
    struct aq_device *device = NULL;
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(aq_device_open(&config, &device), AQ_OK);
        aq_device_close(device);
        assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), turn ? "12" : "32");
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "12", 1);
    }
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

static void test_what_attention_cannot_do_is_said(void **state)
{
    (void)state;
    float nothing[4] = {0};
    struct aq_attention args = {
        .samples = 1, .T = 1, .H = 1, .kv_heads = 1, .D = 513, .T_mask = 1, .qkv = nothing, .lse = nothing};
    assert_int_equal(aq_cuda_attention(&args, NULL, NULL), AQ_INVAL);
    args.D = 64;
    args.H = 64;
    args.T = args.T_mask = 131073;
    assert_int_equal(aq_cuda_attention_backward(&args, nothing, NULL), AQ_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_says_what_is_missing),
        cmocka_unit_test(test_architectures_fit_as_cuda_says),
        cmocka_unit_test(test_fresh_memory_is_as_bad_as_cuda_allows),
        cmocka_unit_test(test_auto_takes_the_cpu_only_where_there_is_no_gpu),
        cmocka_unit_test(test_memory_is_one_allocation_and_says_who_needs_it),
        cmocka_unit_test(test_more_shapes_than_plans_are_kept),
        cmocka_unit_test(test_frozen_tensors_have_copies_and_change_no_gradient),
        cmocka_unit_test(test_products_are_computed_as_asked_for),
        cmocka_unit_test(test_products_of_a_stage_are_the_library_s_fast_ones),
        cmocka_unit_test(test_a_plan_is_for_its_alignments),
        cmocka_unit_test(test_a_convolution_in_pieces_is_the_same),
        cmocka_unit_test(test_gelu_is_fused_for_16_bits_alone),
        cmocka_unit_test(test_a_product_that_fails_is_tried_another_way),
        cmocka_unit_test(test_the_fastest_algorithm_is_found_once_and_kept),
        cmocka_unit_test(test_an_ending_is_made_where_it_is_faster),
        cmocka_unit_test(test_timing_of_products_is_not_listed),
        cmocka_unit_test(test_streams_do_not_share_their_way_to_the_gpu),
        cmocka_unit_test(test_what_attention_cannot_do_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
