/*
 * test_cuda_grad.c -- the GPU's gradient codecs against the CPU's plain table, under the launch emulation: the same
 * bytes, errors and sums, step after step, over tensors that end anywhere, padding, and ranges that begin anywhere. And
 * every fused kernel of optimizers against the CPU's, in three orders of blocks and threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "cuda_host_test.h"
#include "cuda_grad.h"
#include "grad_internal.h"

enum { PARAMETERS = 150000, STEPS = 3, CANARY = 32 };

static const struct aq_optimizer_tensor tensors[] = {
    {.offset = 3, .count = 1},       {.offset = 4, .count = 509},      {.offset = 520, .count = 0},
    {.offset = 520, .count = 70001}, {.offset = 70600, .count = 4096}, {.offset = 74696, .count = 75000}};
static const uint64_t ranges[][2] = {{0, PARAMETERS}, {0, 1},        {5, 0},       {1, 700},
                                     {517, 66000},    {70520, 5003}, {149690, 310}};

/* One side's floats and bytes. */
struct side {
    float x[PARAMETERS], error[PARAMETERS], sum[PARAMETERS];
    uint8_t wire[4 * PARAMETERS + 4096 + CANARY];
};
static struct side cpu, gpu;

static void drop(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

/* The same values each time, drawn once, from another one on. */
static void fill_gradients(uint64_t number)
{
    static float drawn[PARAMETERS];
    static bool done;
    const struct aq_rng_key key = aq_rng_key(3, AQ_RNG_TEST, 5, 1);
    for (size_t i = 0; !done && i < PARAMETERS; i++) {
        const float value = aq_rng_normal(&key, i);
        drawn[i] = value * value * value * 1e-3f;
    }
    done = true;
    for (size_t i = 0; i < PARAMETERS; i++)
        cpu.x[i] = i % 61 == 0 ? 0.0f : drawn[(i + 9973 * number) % PARAMETERS];
    memcpy(gpu.x, cpu.x, sizeof gpu.x);
}

static enum aq_status cpu_encode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, bool errors,
                                 uint64_t step)
{
    uint8_t *wire = cpu.wire;
    for (uint64_t at = 0; at < count; at += AQ_GRAD_PIECE) {
        const uint64_t n = count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE;
        AQ_TRY(aq_grad_encode(codec, first + at, n, cpu.x + first + at, errors ? cpu.error + first + at : NULL, step,
                              wire));
        wire += aq_grad_codec_bytes(codec, first + at, n);
    }
    return AQ_OK;
}

static enum aq_status cpu_decode(const struct aq_grad_codec *codec, uint64_t first, uint64_t count, float weight,
                                 bool add, const uint8_t *wire)
{
    for (uint64_t at = 0; at < count; at += AQ_GRAD_PIECE) {
        const uint64_t n = count - at < AQ_GRAD_PIECE ? count - at : AQ_GRAD_PIECE;
        const size_t bytes = aq_grad_codec_bytes(codec, first + at, n);
        AQ_TRY(aq_grad_decode(codec, first + at, n, wire, bytes, weight, add, cpu.sum + first + at));
        wire += bytes;
    }
    return AQ_OK;
}

static void open_codec(const struct aq_grad_codec_config *config, struct aq_grad_codec **out)
{
    assert_int_equal(aq_grad_codec_open(config, tensors, sizeof tensors / sizeof tensors[0], PARAMETERS, out), AQ_OK);
    (*out)->kernels = &aq_grad_kernels_plain;
    (*out)->rows = &aq_codec_kernels_plain;
}

static void *tables_of(const struct aq_grad_codec *codec, uint64_t first, uint64_t count,
                       struct aq_cuda_grad_tables *tables)
{
    size_t bytes;
    void *made, *copied;
    assert_int_equal(aq_cuda_grad_tables_bytes(codec, first, count, &bytes), AQ_OK);
    assert_int_equal(aq_alloc(bytes, &made), AQ_OK);
    assert_int_equal(aq_alloc(bytes, &copied), AQ_OK);
    assert_int_equal(aq_cuda_grad_tables_fill(codec, first, count, made, tables), AQ_OK);
    memcpy(copied, made, bytes); /* as a copy to the device would be */
    memset(made, 0xA5, bytes);
    aq_free(made);
    aq_cuda_grad_tables_at(tables, copied);
    return copied;
}

static void run(const struct aq_grad_codec_config *config, uint64_t first, uint64_t count, bool errors, size_t shift)
{
    struct aq_grad_codec *codec;
    struct aq_cuda_grad_tables tables;
    open_codec(config, &codec);
    void *memory = tables_of(codec, first, count, &tables);
    const uint64_t bytes = aq_grad_codec_bytes_pieces(codec, first, count);
    memset(cpu.error, 0, sizeof cpu.error);
    memset(gpu.error, 0, sizeof gpu.error);
    for (uint64_t step = 0; step < STEPS; step++) {
        uint8_t *wire = gpu.wire + shift;
        uint32_t corrupt = 0;
        cuda_host_seed(step);
        fill_gradients(step);
        memset(gpu.wire, 0xA5, sizeof gpu.wire);
        memset(cpu.sum, 0x3c, sizeof cpu.sum);
        memset(gpu.sum, 0x3c, sizeof gpu.sum);
        assert_int_equal(cpu_encode(codec, first, count, errors, step), AQ_OK);
        assert_int_equal(
            aq_cuda_grad_encode(&tables, gpu.x + first, errors ? gpu.error + first : NULL, step, wire, NULL), AQ_OK);
        assert_memory_equal(cpu.wire, wire, (size_t)bytes);
        for (size_t i = 0; i < CANARY; i++)
            assert_int_equal(wire[bytes + i], 0xA5);
        assert_memory_equal(cpu.error, gpu.error, sizeof cpu.error);
        for (int add = 0; add < 2; add++) {
            assert_int_equal(cpu_decode(codec, first, count, 0.37f, add != 0, cpu.wire), AQ_OK);
            assert_int_equal(aq_cuda_grad_decode(&tables, wire, 0.37f, add != 0, gpu.sum + first, &corrupt, NULL),
                             AQ_OK);
            assert_memory_equal(cpu.sum, gpu.sum, sizeof cpu.sum);
            assert_int_equal(corrupt, 0);
        }
    }
    aq_free(memory);
    aq_grad_codec_close(codec);
}

/* Every range with a setting of its own, all settings over the ranges. */
static void run_ranges(const struct aq_grad_codec_config *config, uint32_t number)
{
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t *range = ranges[(number * 2 + i) % (sizeof ranges / sizeof ranges[0])];
        run(config, range[0], range[1], (number + i) % 3 != 0, number % 2);
    }
}

static void test_every_kind_has_the_bits_of_the_cpu(void **state)
{
    (void)state;
    uint32_t number = 0;
    for (uint32_t k = 0; aq_grad_codec_kind(k) != NULL; k++) {
        struct aq_grad_codec_config config;
        aq_grad_codec_config_default(&config, aq_grad_codec_kind(k));
        if (!aq_grad_codec_config_on_gpu(&config)) continue;
        for (int i = 0; i < 4; i++)
            run_ranges(&config, number++);
    }
}

static void test_signs_of_both_scales_and_buckets_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const uint32_t buckets[] = {0, 64, 1024};
    for (uint32_t i = 0; i < 6; i++) {
        struct aq_grad_codec_config config;
        aq_grad_codec_config_default(&config, "sign");
        config.scale = i % 2 == 0 ? "l1" : "l2";
        config.bucket = buckets[i / 2];
        run_ranges(&config, i);
    }
}

static void test_levels_of_all_bits_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const char *const grids[] = {"tread", "rise", "signed", NULL};
    static const uint32_t buckets[] = {512, 0, 64};
    static const float norms[] = {1.0f, 2.0f, AQ_GRAD_NORM_L0, 0.5f, INFINITY, 3.25f, 0.001f};
    for (uint32_t i = 0; i < 14; i++) {
        struct aq_grad_codec_config config;
        aq_grad_codec_config_default(&config, i % 2 == 0 ? "uniform" : "lp");
        config.bits = 2 + i / 2;
        config.bucket = buckets[i % 3];
        if (i % 2 == 0) config.grid = grids[i / 2 % 4];
        if (i % 2 == 1) config.norm = norms[i / 2];
        run_ranges(&config, i);
    }
}

/* What is not finite, and what has no finite sum. */
static void test_wild_values_have_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const float wild[] = {INFINITY, 3e38f, 1e-44f, -0.0f};
    static const float norms[] = {AQ_GRAD_NORM_L0, 2.0f, 0.25f, 40.0f};
    for (uint32_t i = 0; i < 36; i++) {
        const uint64_t first = 600, count = 3000;
        struct aq_grad_codec_config config;
        struct aq_grad_codec *codec;
        struct aq_cuda_grad_tables tables;
        uint32_t corrupt = 0;
        aq_grad_codec_config_default(&config, i < 20 ? aq_grad_codec_kind(i % 5 + 2) : "lp");
        if (i >= 20) config.norm = norms[i % 4];
        open_codec(&config, &codec);
        void *memory = tables_of(codec, first, count, &tables);
        fill_gradients(i);
        for (size_t e = 0; e < 900; e++)
            cpu.x[1000 + e] = gpu.x[1000 + e] = wild[i < 20 ? i / 5 : i / 4 % 4] * (e % 2 == 0 ? 1.0f : -1.0f);
        memset(cpu.error, 0, sizeof cpu.error);
        memset(gpu.error, 0, sizeof gpu.error);
        memset(cpu.sum, 0, sizeof cpu.sum);
        memset(gpu.sum, 0, sizeof gpu.sum);
        assert_int_equal(cpu_encode(codec, first, count, true, 1), AQ_OK);
        assert_int_equal(aq_cuda_grad_encode(&tables, gpu.x + first, gpu.error + first, 1, gpu.wire, NULL), AQ_OK);
        assert_memory_equal(cpu.wire, gpu.wire, (size_t)aq_grad_codec_bytes_pieces(codec, first, count));
        assert_memory_equal(cpu.error, gpu.error, sizeof cpu.error);
        aq_log_sink(drop, NULL); /* the CPU's refusal is wanted here */
        const enum aq_status status = cpu_decode(codec, first, count, 1.0f, true, cpu.wire);
        aq_log_sink(NULL, NULL);
        assert_int_equal(aq_cuda_grad_decode(&tables, gpu.wire, 1.0f, true, gpu.sum + first, &corrupt, NULL), AQ_OK);
        assert_int_equal(corrupt, status == AQ_CORRUPT);
        if (status == AQ_OK) assert_memory_equal(cpu.sum, gpu.sum, sizeof cpu.sum);
        aq_free(memory);
        aq_grad_codec_close(codec);
    }
    assert_string_equal(cuda_host_error(), "");
}

static void test_what_no_gpu_has_is_refused(void **state)
{
    (void)state;
    struct aq_grad_codec_config config;
    struct aq_grad_codec *codec;
    size_t bytes;
    aq_log_sink(drop, NULL);
    aq_grad_codec_config_default(&config, "topk");
    assert_int_equal(aq_grad_codec_config_check_device(&config), AQ_NODEV);
    aq_grad_codec_config_default(&config, "lp");
    open_codec(&config, &codec);
    assert_int_equal(aq_cuda_grad_tables_bytes(codec, 0, PARAMETERS + 1, &bytes), AQ_INVAL);
    aq_log_sink(NULL, NULL);
    assert_int_equal(aq_cuda_grad_tables_bytes(codec, 0, PARAMETERS, &bytes), AQ_OK);
    aq_grad_codec_close(codec);
}

/* ---- fused kernels ---- */

enum { FLAT = 21000, PIECES = 4, KERNEL_TENSORS = 3, RANK = 3, LANE_BITS = 4, ROWS = 5, ORDERS = 3 };

static const struct aq_flat_piece pieces[PIECES] = {
    {0, AQ_FLAT_PIECE, 0}, {AQ_FLAT_PIECE, 2001, 0}, {18400, 7, 1}, {18410, 2500, 2}};

static const struct aq_flat_piece rows[ROWS] = {
    {0, 100, 0}, {100, 100, 0}, {200, 100, 0}, {18400, 7, 1}, {18410, 50, 2}};

/* Everything that a kernel may change, and what it reads. */
struct flat {
    float p[FLAT], m[FLAT], v[FLAT], last[FLAT], c[FLAT], worker_error[FLAT], server_error[FLAT], out[FLAT];
    float used[ROWS];
    float g[FLAT], sent[FLAT], sent_g[FLAT], factor_p[FLAT], factor_q[FLAT], values[KERNEL_TENSORS][AQ_FUSED_VALUES];
    double sums[PIECES][AQ_FLAT_SUMS];
    uint64_t sent_at[PIECES + 1], lanes[FLAT * LANE_BITS / 64 + 1];
    uint8_t mask[PIECES * AQ_FUSED_MASK_BYTES], codes[FLAT];
    float cleared[FLAT];
    uint16_t rounded[FLAT];
    struct aq_fused_matrix matrices[KERNEL_TENSORS];
};

static struct flat first, here, there;
static bool halves; /* of kernels that round */

/* Gradients, momenta, variances of which some are zero, levels; a mask by the CPU, and its places. */
static void fill_flat(void)
{
    const struct aq_rng_key key = aq_rng_key(9, AQ_RNG_TEST, 7, 0);
    float *const floats = first.p;
    memset(&first, 0, sizeof first);
    for (uint64_t i = 0; i < offsetof(struct flat, values) / sizeof(float); i++)
        floats[i] = (float)(int32_t)aq_rng_u32(&key, i) * 0x1p-30f;
    for (uint64_t i = 0; i < FLAT; i++) {
        first.v[i] = i % 53 == 0 ? 0.0f : fabsf(first.v[i]);
        first.codes[i] = (uint8_t)(i % 15);
        first.cleared[i] = 1.0f;
    }
    memset(first.c + rows[1].first, 0, rows[1].count * sizeof(float));
    first.used[2] = 0.0f;
    for (uint32_t t = 0; t < KERNEL_TENSORS; t++) {
        const float values[AQ_FUSED_VALUES] = {0.01f * (float)t, 0.7f, 1.3f, 0.9f, t == 1 ? 2.0f : 0.3f};
        memcpy(first.values[t], values, sizeof values);
    }
    first.values[2][4] = 0.0f; /* PowerSGD's, and its first: not whole */
    first.matrices[0] = (struct aq_fused_matrix){.columns = 100};
    first.matrices[2] = (struct aq_fused_matrix){.offset = 18410, .columns = 50, .p_at = 600, .q_at = 300};
}

static struct aq_fused kernel_over(struct flat *flat, enum aq_fused_kind kind)
{
    return (struct aq_fused){.kind = kind,
                             .runs = aq_fused_runs_named("plain"),
                             .piece_count = PIECES,
                             .end = FLAT,
                             .pieces = pieces,
                             .values = flat->values[0],
                             .sums = flat->sums[0],
                             .g = flat->g,
                             .p = flat->p,
                             .m = flat->m,
                             .v = flat->v,
                             .last = flat->last,
                             .frozen = flat->v,
                             .worker_error = flat->worker_error,
                             .server_error = flat->server_error,
                             .chunk_first = 5000,
                             .chunk = 9000,
                             .b1 = 0.9f,
                             .c1 = 1.0f - 0.9f,
                             .b2 = 0.99f,
                             .c2 = 1.0f - 0.99f,
                             .k1 = 1.5f,
                             .k2 = 3.0f,
                             .eps = 1e-6f,
                             .lr = 0.01f,
                             .size = 7.0f,
                             .scale = 0.5f,
                             .cleared = flat->cleared,
                             .rounded = flat->rounded,
                             .halves = halves,
                             .mask = flat->mask,
                             .sent_at = flat->sent_at,
                             .sent = flat->sent,
                             .sent_g = flat->sent_g,
                             .key = aq_rng_key(3, AQ_RNG_TEST, 1, 2),
                             .b3 = 0.95f,
                             .low = 0.007f,
                             .c = flat->c,
                             .codes = flat->codes,
                             .lanes = flat->lanes,
                             .count = FLAT,
                             .lane_bits = LANE_BITS,
                             .times = 1,
                             .middle = 7,
                             .tie = true,
                             .rows = rows,
                             .used = flat->used,
                             .matrices = flat->matrices,
                             .factor_p = flat->factor_p,
                             .factor_q = flat->factor_q,
                             .out = flat->out,
                             .rank = RANK};
}

/* From one beginning: plain C, each instruction set, and the GPU in another order of blocks and threads each time. */
static void expect_kernel(struct aq_fused (*kernel_of)(struct flat *flat, enum aq_fused_kind kind),
                          enum aq_fused_kind kind)
{
    static const char *const sets[] = {"avx2", "avx512"};
    const struct aq_fused on_cpu = kernel_of(&here, kind), on_gpu = kernel_of(&there, kind);
    struct aq_fused on_set = on_gpu;
    memcpy(&here, &first, sizeof here);
    aq_fused_pieces(&on_cpu);
    if (memcmp(&here, &first, sizeof here) == 0) fail_msg("kernel %d does nothing", (int)kind);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        on_set.runs = aq_fused_runs_named(sets[i]);
        memcpy(&there, &first, sizeof there);
        if (on_set.runs) aq_fused_pieces(&on_set);
        if (on_set.runs && memcmp(&here, &there, sizeof here) != 0)
            fail_msg("kernel %d, %s: other bits than plain C's", (int)kind, sets[i]);
    }
    for (uint64_t order = 0; order < ORDERS; order++) {
        memcpy(&there, &first, sizeof there);
        cuda_host_seed(order);
        assert_int_equal(aq_cuda_fused(&on_gpu, NULL), AQ_OK);
        if (memcmp(&here, &there, sizeof here) != 0)
            fail_msg("kernel %d, order %d: other bits than the CPU's", (int)kind, (int)order);
    }
    assert_string_equal(cuda_host_error(), "");
}

static struct aq_fused whole(struct flat *flat, enum aq_fused_kind kind)
{
    const bool of_words = kind == AQ_FUSED_LIONCUB_PACK || kind == AQ_FUSED_LIONCUB_UNPACK;
    const bool of_rows = kind == AQ_FUSED_LIONCUB_USED || kind == AQ_FUSED_LIONCUB_MASK;
    struct aq_fused kernel = kernel_over(flat, kind);
    if (of_words || of_rows) kernel.piece_count = 1;
    if (of_words) kernel.end = FLAT * LANE_BITS / 64 + 1;
    if (of_rows) kernel.end = ROWS;
    return kernel;
}

/* From within the first piece into the last. */
static struct aq_fused range(struct flat *flat, enum aq_fused_kind kind)
{
    struct aq_fused kernel = kernel_over(flat, kind);
    kernel.begin = 5003;
    kernel.end = 18500;
    return kernel;
}

/* Of elements alone: can it begin at any float? */
static bool of_elements(enum aq_fused_kind kind)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, masks)                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return sums == 0;
#define AQ_FUSED_MASK(name)
#define AQ_FUSED_SPARSE(name, sums)
#define AQ_FUSED_WORDS(name)
#define AQ_FUSED_ROWS(name)
#include "optimizer_fused.def"
    default:
        return false;
    }
}

static void test_every_kernel_has_the_bits_of_plain_c_everywhere_in_any_order(void **state)
{
    (void)state;
    fill_flat();
    struct aq_fused mask = kernel_over(&first, AQ_FUSED_SLAMB_MASK);
    mask.m = here.m; /* the mask alone */
    aq_fused_pieces(&mask);
    for (uint32_t i = 0; i < PIECES; i++)
        first.sent_at[i + 1] = first.sent_at[i] + (uint64_t)first.sums[i][0];
    assert_true(first.sent_at[PIECES] > FLAT / 5 && first.sent_at[PIECES] < FLAT / 2);
    for (uint64_t i = 0; i < FLAT; i++) /* lanes to be taken apart */
        first.lanes[i * LANE_BITS / 64] |= i * 7 % 15 << i * LANE_BITS % 64;
    for (int kind = AQ_FUSED_NONE + 1; kind < AQ_FUSED_KINDS; kind++) {
        const bool masks = kind == AQ_FUSED_SLAMB_MASK;
        if (masks) memset(first.mask, 0xA5, sizeof first.mask);
        expect_kernel(whole, (enum aq_fused_kind)kind);
        if (masks) memcpy(first.mask, here.mask, sizeof first.mask);
        /* Those that go along with a reduction are asked for ranges; so can all be that begin at any float. */
        if (of_elements((enum aq_fused_kind)kind)) expect_kernel(range, (enum aq_fused_kind)kind);
    }
    halves = true;
    expect_kernel(whole, AQ_FUSED_ADAMW_ROUNDS);
    halves = false;
}

/* Plain C has to make up its fused multiply-add: sums that cancel, that are far apart, that are hardly floats. */
static void test_plain_c_rounds_a_fused_multiply_add_once(void **state)
{
    static const struct aq_flat_piece whole_flat = {.count = AQ_FLAT_PIECE};
    const struct aq_rng_key key = aq_rng_key(9, AQ_RNG_TEST, 8, 0);
    struct aq_fused kernel = kernel_over(&here, AQ_FUSED_SGD);
    (void)state;
    memset(&here, 0, sizeof here);
    kernel.pieces = &whole_flat;
    kernel.piece_count = 1;
    kernel.scale = 1.0f;
    kernel.lr = 0x1.000002p+0f;
    for (uint64_t i = 0; i < AQ_FLAT_PIECE; i++) {
        const uint32_t g = aq_rng_u32(&key, 2 * i), p = aq_rng_u32(&key, 2 * i + 1);
        const float near = aq_float_of((g & 0x807fffffu) | (0x40000000u + (p % 64 << 23)));
        here.g[i] = i % 4 == 0 ? aq_float_of(g) : near;
        here.p[i] = i % 4 == 0   ? aq_float_of(p)
                    : i % 4 == 1 ? kernel.lr * near
                                 : ldexpf(near, (int)(p >> 8) % 100 - 50);
    }
    for (uint64_t i = 3; i < AQ_FLAT_PIECE; i += 4) { /* just below half a bit of an odd p; in double the half */
        here.g[i] = -ldexpf(0x1.fffffcp-1f, (int)(i % 64) - 24);
        here.p[i] = ldexpf(0x1.000002p+0f, (int)(i % 64));
    }
    memcpy(&there, &here, sizeof there);
    aq_fused_pieces(&kernel);
    for (uint64_t i = 0; i < AQ_FLAT_PIECE; i++) {
        const float wanted = fmaf(-kernel.lr, there.g[i], fmaf(-0.0f, there.p[i], there.p[i]));
        if (isnan(wanted) ? !isnan(here.p[i]) : aq_bits_of(wanted) != aq_bits_of(here.p[i]))
            fail_msg("%a - %a %a is %a, not %a", (double)there.p[i], (double)kernel.lr, (double)there.g[i],
                     (double)wanted, (double)here.p[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_signs_of_both_scales_and_buckets_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_levels_of_all_bits_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_wild_values_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_what_no_gpu_has_is_refused),
        cmocka_unit_test(test_every_kernel_has_the_bits_of_plain_c_everywhere_in_any_order),
        cmocka_unit_test(test_plain_c_rounds_a_fused_multiply_add_once),
    };
    return cmocka_run_group_tests_name("cuda grad", tests, NULL, NULL);
}
