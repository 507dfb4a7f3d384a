/*
 * conform_grad_device.c -- optimizers where memory is a device's: every kind of optimizers.def, over
 * groups of 1 to 4 ranks, on a device behind a wall and on GPUs over links and over NCCL, has the bits of the CPU: the
 * parameters and every array of state, after every step, also when it begins anew from its state on the way.
 *
 * A new kind is walked unasked, as in conform_grad.c. GPU, CUDA and NCCL are those of cuda_host/runtime; where CUDA
 * itself is built (label gpu), ranks share a GPU over links, and have one each over NCCL, as far as there are any.
 */
#include <math.h>

#include "aqsgd/grad.h"
#include "collective_cases.h"
#include "device_isolated.h"
#include "group_kit.h"
#include "optimizer.h"
#if !AQ_WITH_CUDA
#include "cuda_runtime_api.h"
#include "nccl.h"
#endif

enum { GPUS = 8, RANKS = 4, FLOATS = 22000, STEPS = 8, RESTART = 5, CONFIGS = 33, ARRAYS = 12, SKIPPED = 77 };

/* Matrices, a tensor of two pieces, a gap, tails that no block fills, and one tensor that never has a gradient. */
static const struct aq_optimizer_tensor tensors[] = {
    {.offset = 0, .count = 1200, .decay = true, .rows = 40, .name = "wte.weight"},
    {.offset = 1200, .count = 7, .decay = false, .name = "ln.bias"},
    {.offset = 1216, .count = 19800, .decay = true, .rows = 99, .name = "h.0.weight"},
    {.offset = 21016, .count = 70, .decay = false, .name = "h.0.dead"},
    {.offset = 21086, .count = 799, .decay = true, .name = "head.weight"},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0], DEAD = 3 };

static struct aq_optimizer_config configs[CONFIGS];
static uint32_t config_count;
/* Of the parameters, every array of state, and the first of them when it has taken up residuals. */
static uint64_t wanted[CONFIGS][RANKS + 1][RANKS][STEPS][ARRAYS];
static bool learning; /* on CPUs: what is wanted */
static bool gpu;      /* whose products are its own */
/* Parameters of a kind with such products, on a CPU: over links a GPU is near them, over NCCL it has the links' bits.
 */
static float near_these[CONFIGS][FLOATS];
enum { NEAR_SIZE = 2 };

static bool fits(const struct aq_optimizer_config *config)
{
    aq_error_clear();
    return aq_optimizer_config_check(config) == AQ_OK && aq_optimizer_config_check_device(config, NULL) == AQ_OK;
}

static void add(struct aq_optimizer_config config)
{
    if (!fits(&config)) return;
    assert_true(config_count < CONFIGS);
    configs[config_count++] = config;
}

static void add_slambs(struct aq_optimizer_config config)
{
    config.form = "algorithm";
    config.sync_gradient = true;
    config.dense_below = 800;
    add(config);
    config.form = "code";
    config.density = 0.6f;
    add(config);
    config.form = "paper";
    config.density_steps = 3;
    aq_grad_codec_config_default(&config.reduce, "fp16");
    add(config);
}

/* Masked votes; lanes of levels and, where W ranks leave none, of votes. */
static void add_lioncubs(struct aq_optimizer_config config)
{
    config.mask_names = "wte,dead";
    add(config);
    config.mask_names = NULL;
    aq_grad_codec_config_default(&config.reduce, "lp");
    config.momentum_every = 3;
    config.momentum_names = "wte,head";
    config.lane_bits = 16;
    add(config);
    config.lane_bits = 4;
    config.reduce.norm = INFINITY;
    config.measure_every = 2;
    add(config);
    config.reduce.norm = AQ_GRAD_NORM_L0;
    config.lane_bits = 8;
    add(config);
    config.reduce.norm = 2.0f;
    add(config);
    config.reduce.norm = 0.7f;
    add(config);
}

/* The kind's defaults, with phases so short that all of them come, before and after it begins anew. */
static void add_kind(const char *kind)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, kind);
    if (config.warmup_steps > 0 || config.freeze_ratio > 0.0f) config.warmup_steps = 2;
    config.freeze_ratio = 0.0f;
    if (config.sync_every > 0) config.sync_every = 3;
    config.total_steps = STEPS;
    add(config);
    if (strcmp(kind, "onebit_lamb") == 0) {
        config.form = "sqrt";
        add(config);
    }
    if (strcmp(kind, "onebit_adam") == 0) { /* frozen by norms of the past */
        config.freeze_ratio = 0.2f;
        config.beta2 = 0.8f;
        config.warmup_steps = 0;
        add(config);
    }
    if (strcmp(kind, "slamb") == 0) add_slambs(config);
    if (strcmp(kind, "lioncub") == 0) add_lioncubs(config);
    if (strcmp(kind, "qadam") == 0) { /* nothing goes along */
        aq_grad_codec_config_default(&config.reduce, "fp32");
        add(config);
    }
}

/* PowerSGD: the products are the device's. */
static void add_low_rank(void)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "sgd");
    config.low_rank = 2;
    config.low_rank_start = 1;
    add(config);
    config.error_feedback = false;
    add(config);
}

/* Local steps; what they add goes along with a codec, or before and after it. */
static void add_local(void)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.outer_every = 3;
    config.outer_lr = 0.7f;
    config.outer_momentum = 0.9f;
    config.total_steps = STEPS;
    add(config);
    config.outer_momentum = 0;
    aq_grad_codec_config_default(&config.reduce, "uniform");
    add(config);
}

/* A step ahead of the weights: of each step, of those that local steps shall meet at, of means of them now and then. */
static void add_predicted(void)
{
    struct aq_optimizer_config config;
    aq_optimizer_config_default(&config, "adamw");
    config.predict = true;
    config.total_steps = STEPS;
    add(config);
    config.outer_every = 3;
    config.outer_lr = 0.7f;
    config.outer_momentum = 0.9f;
    add(config);
    aq_optimizer_config_default(&config, "slamb");
    config.predict = true;
    config.sync_every = 3;
    config.total_steps = STEPS;
    add(config);
}

static void add_kinds(void)
{
    add_low_rank();
    add_local();
    add_predicted();
    for (uint32_t k = 0; aq_optimizer_kind_name(k); k++)
        add_kind(aq_optimizer_kind_name(k));
}

/* ---- one rank ---- */

struct run {
    struct kit_rank *rank;
    const struct aq_optimizer_config *config;
    struct aq_optimizer *optimizer;
    float *parameters, *gradients; /* device memory */
    bool learns;                   /* what it comes to is what is wanted */
};

static enum aq_status perform(const struct run *run, const struct aq_reduce *asked)
{
    struct aq_group *group = run->rank->group;
    if (asked->kind == AQ_REDUCE_MEAN) return aq_allreduce_mean(group, asked->x, asked->count);
    if (asked->kind == AQ_REDUCE_LANES) return aq_allreduce_lanes(group, asked->lanes, asked->count, asked->lane_bits);
    const struct aq_compressed compressed = {.worker = asked->worker,
                                             .server = asked->server,
                                             .x = asked->x,
                                             .count = asked->count,
                                             .worker_error = asked->worker_error,
                                             .server_error = asked->server_error,
                                             .step = asked->step,
                                             .before = asked->before,
                                             .after = asked->after,
                                             .work = asked->work};
    return aq_compressed_allreduce(group, &compressed);
}

static enum aq_status rounds(const struct run *run)
{
    struct aq_reduce asked;
    AQ_TRY(aq_optimizer_round(run->optimizer, &asked));
    while (asked.kind != AQ_REDUCE_NONE) {
        AQ_TRY(perform(run, &asked));
        AQ_TRY(aq_optimizer_round(run->optimizer, &asked));
    }
    return AQ_OK;
}

/* A part that all ranks share, and one of their own; tensors differ in size. Cheap: there are thousands of them. */
static void fill(float *out, uint32_t rank, uint64_t step)
{
    uint32_t common = (uint32_t)step * 2654435761u, own = common ^ (rank + 1) * 40503u << 8;
    memset(out, 0, FLOATS * sizeof *out);
    for (int t = 0; t < TENSORS; t++) {
        for (uint64_t i = tensors[t].offset; i < tensors[t].offset + tensors[t].count && t != DEAD; i++) {
            common = common * 1664525u + 1013904223u;
            own = own * 1664525u + 1013904223u;
            const float value = (float)(int32_t)common * 0x1p-31f + (float)(int32_t)own * 0x1p-31f + 0.1f;
            const float noise = i % 97 == 6 ? 1e-9f : 1.0f;
            /* Some never have any, and some have rounding errors only. */
            out[i] = i % 97 == 5 ? 0.0f : value * value * value * (t % 2 ? 0.01f : 1.0f) * noise;
        }
    }
}

static enum aq_status put(const struct run *run, float *to, const float *from, uint64_t count)
{
    AQ_TRY(aq_device_copy(run->rank->device, to, from, count * sizeof *to, NULL));
    return aq_device_stream_sync(run->rank->device, NULL);
}

/* The digest of an array, which is what was wanted, or will be. */
static enum aq_status look(const struct run *run, const float *from, uint64_t count, uint64_t step, uint32_t array,
                           const char *name)
{
    float here[FLOATS];
    const uint32_t c = (uint32_t)(run->config - configs), size = run->rank->kit->size;
    uint64_t *at = &wanted[c][size][run->rank->rank][step - 1][array];
    AQ_TRY(put(run, here, from, count));
    const uint64_t digest = aq_digest(here, count * sizeof *here);
    if (run->learns) *at = digest;
    if (*at == digest) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "test", "%s %u, W = %u, rank %u, step %u: other bits of %s than on a CPU",
                   run->config->kind, c, size, run->rank->rank, (unsigned)step, name);
}

static enum aq_status look_at_all(const struct run *run, uint64_t step)
{
    AQ_TRY(look(run, run->parameters, FLOATS, step, 0, "the parameters"));
    if (aq_optimizer_config_local(run->config) || run->config->predict) {
        AQ_TRY(aq_optimizer_show(run->optimizer, run->parameters, NULL));
        AQ_TRY(look(run, run->parameters, FLOATS, step, ARRAYS - 2, "what is to be seen"));
        AQ_TRY(aq_optimizer_hide(run->optimizer, run->parameters, NULL));
    }
    for (uint32_t i = 0; i < aq_optimizer_state_count(run->optimizer); i++) {
        struct aq_optimizer_state_info info;
        aq_optimizer_state_info(run->optimizer, i, &info);
        KIT_EXPECT(run->rank, i + 3 < ARRAYS);
        AQ_TRY(look(run, aq_optimizer_state(run->optimizer, i), info.count, step, 1 + i, info.name));
    }
    return AQ_OK;
}

/* Within what sums in another order leave of a step's 0.01. */
static enum aq_status look_near(const struct run *run)
{
    float here[FLOATS], *wanted_here = near_these[run->config - configs];
    if (run->rank->kit->size != NEAR_SIZE || run->rank->rank > 0) return AQ_OK;
    AQ_TRY(put(run, learning ? wanted_here : here, run->parameters, FLOATS));
    for (uint32_t i = 0; i < FLOATS && !learning; i++)
        KIT_EXPECT(run->rank, fabsf(here[i] - wanted_here[i]) <= 1e-4f);
    return AQ_OK;
}

static enum aq_status open_optimizer(struct run *run)
{
    const struct aq_optimizer_group group = {.rank = run->rank->rank, .size = run->rank->kit->size};
    return aq_optimizer_open_group(run->rank->device, run->config, tensors, TENSORS, FLOATS, &group, &run->optimizer);
}

/* Another optimizer with the state of this one, by way of the host, as a checkpoint has it. */
static enum aq_status begin_anew(struct run *run)
{
    float here[FLOATS];
    struct aq_optimizer *last = run->optimizer;
    AQ_TRY(open_optimizer(run));
    for (uint32_t i = 0; i < aq_optimizer_state_count(last); i++) {
        struct aq_optimizer_state_info info;
        aq_optimizer_state_info(last, i, &info);
        AQ_TRY(put(run, here, aq_optimizer_state(last, i), info.count));
        AQ_TRY(put(run, aq_optimizer_state(run->optimizer, i), here, info.count));
    }
    aq_optimizer_close(last);
    return AQ_OK;
}

static enum aq_status one_step(struct run *run, uint64_t step)
{
    float here[FLOATS];
    fill(here, run->rank->rank, step);
    AQ_TRY(put(run, run->gradients, here, FLOATS));
    AQ_TRY(aq_optimizer_average(run->optimizer, run->gradients, step, NULL));
    AQ_TRY(rounds(run));
    AQ_TRY(
        aq_optimizer_begin(run->optimizer, run->parameters, run->gradients, 0.01f, step % 3 ? 1.0f : 0.5f, step, NULL));
    return rounds(run);
}

static enum aq_status absorb(const struct run *run)
{
    float pending[FLOATS];
    fill(pending, 77, 1);
    if (aq_optimizer_absorb(run->optimizer, pending) != AQ_OK) return AQ_OK; /* a kind that does not */
    return look(run, aq_optimizer_state(run->optimizer, 0), FLOATS, STEPS, ARRAYS - 1, "what takes up");
}

static enum aq_status run_config(struct run *run)
{
    const struct aq_rng_key key = aq_rng_key(61, AQ_RNG_TEST, 0, 0);
    float here[FLOATS];
    AQ_TRY(open_optimizer(run));
    for (uint64_t i = 0; i < FLOATS; i++)
        here[i] = aq_rng_normal(&key, i);
    AQ_TRY(put(run, run->parameters, here, FLOATS));
    AQ_TRY(aq_optimizer_versions_begin(run->optimizer, run->parameters, NULL));
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (step == RESTART && !run->learns) AQ_TRY(begin_anew(run));
        AQ_TRY(one_step(run, step));
        AQ_TRY(look_at_all(run, step));
    }
    AQ_TRY(look_near(run));
    return absorb(run);
}

static enum aq_status run_all(struct kit_rank *rank)
{
    struct run run = {.rank = rank};
    void *memory;
    const size_t bytes = FLOATS * sizeof(float);
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_device_alloc(rank->device, AQ_MEMORY_DEVICE, 2 * bytes, &memory));
    run.parameters = memory;
    run.gradients = run.parameters + FLOATS;
    for (uint32_t c = 0; c < config_count && status == AQ_OK; c++) {
        const bool own = gpu && configs[c].low_rank > 0;
        if (own && rank->kit->size != NEAR_SIZE) continue;
        run.config = &configs[c];
        run.learns = learning || (own && !rank->kit->nccl);
        status = run_config(&run);
        aq_optimizer_close(run.optimizer);
        run.optimizer = NULL;
    }
    aq_device_free(rank->device, AQ_MEMORY_DEVICE, memory, 2 * bytes);
    return status;
}

static void run_kit(uint32_t size, const char *device, bool nccl)
{
    struct kit kit = {.size = size,
                      .scheme = "sim",
                      .query = "",
                      .piece_bytes = CASE_CODED_BYTES,
                      .threads = 1,
                      .one_gpu = AQ_WITH_CUDA && !nccl,
                      .nccl = nccl,
                      .run = run_all};
    learning = !device;
    gpu = device && strcmp(device, "cuda") == 0;
    for (uint32_t i = 0; i < size; i++)
        kit.devices[i] = device;
    kit_run_well(&kit);
}

/* On the host nothing may be left behind; how many GPUs there are. */
#if AQ_WITH_CUDA
static void nothing_left(void)
{
}

static uint32_t gpus(void)
{
    struct aq_device *device;
    uint32_t count = 0;
    while (count < GPUS) {
        const struct aq_device_config config = {.kind = "cuda", .index = count};
        if (aq_device_open(&config, &device) != AQ_OK) break;
        aq_device_close(device);
        count++;
    }
    return count;
}
#else
static void nothing_left(void)
{
    assert_int_equal(nccl_host_open(), 0);
    assert_int_equal(cuda_runtime_host_used(), 0);
}

static uint32_t gpus(void)
{
    cuda_runtime_host_driver(13000, GPUS, 9, 0);
    return GPUS;
}
#endif

static void test_cpus_say_what_is_wanted(void **state)
{
    (void)state;
    add_kinds();
    for (uint32_t size = 1; size <= RANKS; size++)
        run_kit(size, NULL, false);
    assert_true(config_count >= 6);
}

static void test_memory_behind_a_wall_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= RANKS; size += size)
        run_kit(size, "isolated", false);
}

static void test_gpus_over_links_the_bits_of_the_cpu(void **state)
{
    (void)state;
    run_kit(NEAR_SIZE, "cuda", false);
    nothing_left();
}

static void test_gpus_over_nccl_the_bits_of_the_cpu(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 3 && size <= gpus(); size++)
        run_kit(size, "cuda", true);
    nothing_left();
}

static void quiet(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

int main(void)
{
    isolated_register("isolated");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpus_say_what_is_wanted), /* first */
        cmocka_unit_test(test_memory_behind_a_wall_the_bits_of_the_cpu),
        cmocka_unit_test(test_gpus_over_links_the_bits_of_the_cpu),
        cmocka_unit_test(test_gpus_over_nccl_the_bits_of_the_cpu),
    };
    aq_log_sink(quiet, NULL);
    if (gpus() == 0) {
        printf("skipped: %s\n", aq_error_text());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
