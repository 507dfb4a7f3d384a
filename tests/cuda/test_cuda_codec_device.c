/*
 * test_cuda_codec_device.c -- batches of a codec on a device of kind cuda: a GPU stage next to a CPU stage.
 *
 * The CUDA backend over the runtime of cuda_host/runtime, the kernels under the launch emulation. What they compute is
 * test_cuda_codec's; here it is whether a codec finds them, whose memory is whose, and that both ends of an edge hold
 * the same messages, epoch after epoch, when one of them is a GPU.
 */
#include "codec_common.h"
#include "cuda_device.h"

enum { ROWS = 8, COLUMNS = 72, VALUES = ROWS * COLUMNS, SAMPLES = 3, EPOCHS = 4 };

/* The GPU's end of an edge. */
struct gpu {
    struct aq_device *device;
    struct aq_stream *stream;
    struct aq_codec *codec;
    float *a, *hat;                  /* device */
    uint8_t *bodies, *m;             /* pinned, as links and caches want them */
    struct aq_codec_result *results; /* pinned */
    uint32_t *corrupt;               /* pinned */
    size_t bound, message;
};

static void *memory_of(struct gpu *gpu, enum aq_memory_kind kind, size_t bytes)
{
    void *out = NULL;
    assert_int_equal(aq_device_alloc(gpu->device, kind, bytes, &out), AQ_OK);
    return out;
}

static void gpu_open(struct gpu *gpu, const struct aq_codec_config *config)
{
    const struct aq_device_config device = {.kind = "cuda"};
    assert_int_equal(aq_device_open(&device, &gpu->device), AQ_OK);
    assert_int_equal(aq_device_stream_open(gpu->device, &gpu->stream), AQ_OK);
    assert_int_equal(aq_codec_open(gpu->device, config, ROWS, COLUMNS, &gpu->codec), AQ_OK);
    assert_false(aq_codec_on_device(gpu->codec));
    const size_t used = cuda_runtime_host_used();
    const uint64_t wanted = aq_codec_device_bytes(gpu->codec);
    assert_int_equal(aq_codec_take_device(gpu->codec), AQ_OK);
    assert_int_equal(aq_codec_take_device(gpu->codec), AQ_OK); /* once */
    assert_true(aq_codec_on_device(gpu->codec));
    assert_true(wanted > 0 && cuda_runtime_host_used() - used >= wanted);
    assert_true(cuda_runtime_host_used() - used < wanted + CUDA_GRAIN + 4096);
    gpu->bound = aq_codec_bound(gpu->codec);
    gpu->message = aq_codec_message_bytes(gpu->codec);
    gpu->a = memory_of(gpu, AQ_MEMORY_DEVICE, 4 * SAMPLES * VALUES);
    gpu->hat = memory_of(gpu, AQ_MEMORY_DEVICE, 4 * SAMPLES * VALUES);
    gpu->bodies = memory_of(gpu, AQ_MEMORY_PINNED, SAMPLES * gpu->bound);
    gpu->m = memory_of(gpu, AQ_MEMORY_PINNED, SAMPLES * gpu->message);
    gpu->results = memory_of(gpu, AQ_MEMORY_PINNED, SAMPLES * sizeof *gpu->results);
    gpu->corrupt = memory_of(gpu, AQ_MEMORY_PINNED, SAMPLES * sizeof *gpu->corrupt);
}

static void gpu_close(struct gpu *gpu)
{
    aq_device_free(gpu->device, AQ_MEMORY_DEVICE, gpu->a, 4 * SAMPLES * VALUES);
    aq_device_free(gpu->device, AQ_MEMORY_DEVICE, gpu->hat, 4 * SAMPLES * VALUES);
    aq_device_free(gpu->device, AQ_MEMORY_PINNED, gpu->bodies, SAMPLES * gpu->bound);
    aq_device_free(gpu->device, AQ_MEMORY_PINNED, gpu->m, SAMPLES * gpu->message);
    aq_device_free(gpu->device, AQ_MEMORY_PINNED, gpu->results, SAMPLES * sizeof *gpu->results);
    aq_device_free(gpu->device, AQ_MEMORY_PINNED, gpu->corrupt, SAMPLES * sizeof *gpu->corrupt);
    aq_codec_close(gpu->codec);
    aq_device_stream_close(gpu->device, gpu->stream);
    aq_device_close(gpu->device);
    assert_int_equal(cuda_runtime_host_used(), 0);
}

static void gpu_send(struct gpu *gpu, const float *a, bool warm, const struct aq_rng_key *key)
{
    struct aq_codec_sample samples[SAMPLES];
    assert_int_equal(aq_device_copy(gpu->device, gpu->a, a, 4 * SAMPLES * VALUES, gpu->stream), AQ_OK);
    for (size_t i = 0; i < SAMPLES; i++)
        samples[i] = (struct aq_codec_sample){.a = gpu->a + i * VALUES,
                                              .m = warm ? gpu->m + i * gpu->message : NULL,
                                              .key = key,
                                              .body = gpu->bodies + i * gpu->bound,
                                              .m_out = gpu->m + i * gpu->message};
    assert_int_equal(aq_codec_encode_batch(gpu->codec, samples, SAMPLES, gpu->results, gpu->stream), AQ_OK);
    assert_int_equal(aq_device_stream_sync(gpu->device, gpu->stream), AQ_OK);
}

static void gpu_receive(struct gpu *gpu, uint8_t *const bodies[], const struct aq_codec_result *results, bool warm,
                        float *hat)
{
    struct aq_codec_sample samples[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++) {
        memcpy(gpu->bodies + i * gpu->bound, bodies[i], results[i].body_bytes);
        samples[i] = (struct aq_codec_sample){.m = warm ? gpu->m + i * gpu->message : NULL,
                                              .body = gpu->bodies + i * gpu->bound,
                                              .body_bytes = results[i].body_bytes,
                                              .flags = results[i].flags,
                                              .hat = gpu->hat + i * VALUES,
                                              .m_out = gpu->m + i * gpu->message};
    }
    assert_int_equal(aq_codec_decode_batch(gpu->codec, samples, SAMPLES, gpu->corrupt, gpu->stream), AQ_OK);
    assert_int_equal(aq_device_copy(gpu->device, hat, gpu->hat, 4 * SAMPLES * VALUES, gpu->stream), AQ_OK);
    assert_int_equal(aq_device_stream_sync(gpu->device, gpu->stream), AQ_OK);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_int_equal(gpu->corrupt[i], 0);
}

/* gpu_sends: or receives. */
static void run_edge(const struct aq_codec_config *config, bool gpu_sends)
{
    static float a[SAMPLES * VALUES], change[SAMPLES * VALUES], hat[2][SAMPLES * VALUES];
    struct aq_codec_result results[SAMPLES];
    struct gpu gpu;
    struct end cpu[SAMPLES];
    gpu_open(&gpu, config);
    for (size_t i = 0; i < SAMPLES; i++)
        end_open(&cpu[i], config, ROWS, COLUMNS);
    memset(a, 0, sizeof a);
    for (uint32_t u = 0; u < EPOCHS; u++) {
        const struct aq_rng_key key = test_key(u);
        const bool warm = u > 0;
        uint8_t *bodies[SAMPLES];
        fill(change, SAMPLES * VALUES, SHAPE_LAPLACE, u == 0 ? 3.0f : 0.1f, u);
        for (size_t e = 0; e < SAMPLES * VALUES; e++)
            a[e] += change[e];
        if (gpu_sends) gpu_send(&gpu, a, warm, &key);
        for (size_t i = 0; i < SAMPLES; i++) {
            const void *m = warm ? cpu[i].m : NULL;
            float *own = hat[0] + i * VALUES;
            bodies[i] = cpu[i].body;
            if (gpu_sends) {
                assert_int_equal(gpu.results[i].flags, warm ? 0 : AQ_CODED_KEYFRAME);
                assert_int_equal(aq_codec_decode(cpu[i].codec, gpu.bodies + i * gpu.bound, gpu.results[i].body_bytes,
                                                 gpu.results[i].flags, m, own, cpu[i].m, NULL),
                                 AQ_OK);
            } else {
                assert_int_equal(aq_codec_encode(cpu[i].codec, a + i * VALUES, m, &key, cpu[i].body, gpu.bound, own,
                                                 cpu[i].m, &results[i], NULL),
                                 AQ_OK);
            }
        }
        if (!gpu_sends) {
            gpu_receive(&gpu, bodies, results, warm, hat[1]);
            assert_memory_equal(hat[0], hat[1], sizeof hat[0]);
        }
        for (size_t i = 0; i < SAMPLES; i++)
            assert_memory_equal(cpu[i].m, gpu.m + i * gpu.message, gpu.message);
    }
    for (size_t i = 0; i < SAMPLES; i++)
        end_close(&cpu[i]);
    gpu_close(&gpu);
}

static void test_a_gpu_and_a_cpu_keep_the_same_messages(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 8; run++) {
        struct aq_codec_config config;
        aq_codec_config_default(&config, AQ_CODEC_AQSGD, 1 + run);
        config.store = (enum aq_codec_precision)(1 + run % 6);
        config.group = (enum aq_codec_group)(1 + run % 4);
        if (run % 3 == 1) config.rounding = AQ_ROUND_STOCHASTIC;
        run_edge(&config, run % 2 == 0);
        run_edge(&config, run % 2 == 1);
    }
}

static void test_too_little_memory_is_said_and_leaves_the_codec_as_it_was(void **state)
{
    (void)state;
    const struct aq_device_config cuda = {.kind = "cuda"};
    struct aq_codec_config config;
    struct aq_device *device;
    struct aq_codec *codec;
    assert_int_equal(aq_device_open(&cuda, &device), AQ_OK);
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
    assert_int_equal(aq_codec_open(device, &config, ROWS, COLUMNS, &codec), AQ_OK);
    cuda_runtime_host_memory(cuda_runtime_host_used() + 4096);
    quiet_begin();
    assert_int_equal(aq_codec_take_device(codec), AQ_NOMEM);
    quiet_end();
    assert_false(aq_codec_on_device(codec));
    cuda_runtime_host_memory((size_t)1 << 36);
    assert_int_equal(aq_codec_take_device(codec), AQ_OK);
    assert_true(aq_codec_on_device(codec));
    aq_codec_close(codec);
    aq_device_close(device);
}

static void test_a_cpu_has_no_kernels_to_take(void **state)
{
    (void)state;
    const struct aq_device_config cpu = {.kind = "cpu", .threads = 1};
    struct aq_codec_config config;
    struct aq_device *device;
    struct aq_codec *codec;
    assert_int_equal(aq_device_open(&cpu, &device), AQ_OK);
    aq_codec_config_default(&config, AQ_CODEC_AQSGD, 4);
    assert_int_equal(aq_codec_open(device, &config, ROWS, COLUMNS, &codec), AQ_OK);
    assert_int_equal(aq_codec_take_device(codec), AQ_OK);
    assert_false(aq_codec_on_device(codec));
    assert_int_equal(aq_codec_device_bytes(codec), 0);
    aq_codec_close(codec);
    aq_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gpu_and_a_cpu_keep_the_same_messages),
        cmocka_unit_test(test_too_little_memory_is_said_and_leaves_the_codec_as_it_was),
        cmocka_unit_test(test_a_cpu_has_no_kernels_to_take),
    };
    return cmocka_run_group_tests_name("cuda codec device", tests, NULL, NULL);
}
