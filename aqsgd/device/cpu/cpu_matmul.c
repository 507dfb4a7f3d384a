/*
 * cpu_matmul.c -- a matrix product as pieces for the pool: blocks of c of one fixed shape, each finished where it was
 * summed.
 *
 * The shape of the pieces depends only on the product, never on the number of threads. The epilogue (bias, GELU,
 * residual, rounding) is done on the piece while it is in the cache. Variants with panels have their own way of
 * cutting, in cpu_matmul_panels.c, and so has a product with one row (cpu_matvec.c); here is the one for all others.
 */
#include "cpu_matmul.h"

enum { PIECE_M = 128, PIECE_N = 256 };

static uint64_t least(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

void cpu_product_finish(const struct cpu_product *product, uint64_t m, uint64_t rows, uint64_t n, uint64_t columns,
                        const float *sums, uint64_t sums_stride)
{
    const struct aq_matmul *args = product->args;
    for (uint64_t r = 0; r < rows; r++) {
        const uint64_t at = (m + r) * args->c_stride + n;
        struct cpu_mask mask = {0};
        if (args->after == AQ_AFTER_RESIDUAL && args->dropout.probability > 0.0f) {
            const uint64_t sample = (m + r) / args->dropout_sample_rows;
            const uint64_t row = (m + r) % args->dropout_sample_rows;
            mask = cpu_mask_of(&args->dropout, sample, row * args->N + n);
        }
        void *other = args->other ? cpu_at_w(args->other, args->c_type, at) : NULL;
        const float *bias = args->bias ? args->bias + (m + r) * args->bias_stride + n : NULL;
        product->cpu->rows->finish(args->after, columns, sums + r * sums_stride, bias,
                                   cpu_at_w(args->c, args->c_type, at), args->c_type, other, &mask);
    }
}

static void piece_run(uint64_t piece, uint32_t worker, void *context)
{
    const struct cpu_product *product = context;
    const struct aq_matmul *args = product->args;
    const uint64_t across = (args->N + PIECE_N - 1) / PIECE_N;
    const uint64_t m = piece / across * PIECE_M, n = piece % across * PIECE_N;
    const uint64_t rows = least(args->M - m, PIECE_M), columns = least(args->N - n, PIECE_N);
    float *scratch = cpu_scratch(product->cpu, worker);
    struct cpu_operand a = product->a, b = product->b;
    a.data = cpu_operand_at(&a, m, 0);
    b.data = cpu_operand_at(&b, 0, n);
    const bool in_place = args->c_type == AQ_F32;
    float *sums = in_place ? (float *)args->c + m * args->c_stride + n : scratch + CPU_GEMM_FLOATS;
    const uint64_t stride = in_place ? args->c_stride : PIECE_N;
    product->cpu->gemm->run(rows, columns, args->K, &a, &b, args->compute, sums, stride, args->accumulate, scratch);
    if (!cpu_product_is_sums(args)) cpu_product_finish(product, m, rows, n, columns, sums, stride);
}

static enum aq_status product_run(struct cpu_device *cpu, const struct aq_matmul *args)
{
    struct cpu_product product = {
        .cpu = cpu,
        .args = args,
        .a = {.data = args->a, .stride = args->a_stride, .type = args->a_type, .transposed = args->a_transposed},
        .b = {.data = args->b, .stride = args->b_stride, .type = args->b_type, .transposed = args->b_transposed}};
    if (cpu_matvec_can(&product)) {
        cpu_matvec(&product);
        return AQ_OK;
    }
    const struct cpu_panels *panels = cpu_gemm_panels(cpu->gemm, args->compute);
    if (panels && args->K) return cpu_matmul_panels(&product, panels);
    const uint64_t pieces = (args->M + PIECE_M - 1) / PIECE_M * ((args->N + PIECE_N - 1) / PIECE_N);
    cpu_pool_run(cpu->pool, pieces, piece_run, &product);
    return AQ_OK;
}

enum aq_status cpu_matmul(struct aq_device *device, const struct aq_matmul *args, struct aq_stream *stream)
{
    const bool of_a = args->sums_a != NULL;
    const struct aq_column_sum sums = {.rows = args->K,
                                       .C = of_a ? args->M : args->N,
                                       .stride = of_a ? args->a_stride : args->b_stride,
                                       .x = of_a ? args->a : args->b,
                                       .type = of_a ? args->a_type : args->b_type,
                                       .sums = of_a ? args->sums_a : args->sums_b};
    AQ_TRY(product_run(cpu_device_of(device), args));
    return sums.sums && sums.rows ? cpu_column_sum(device, &sums, stream) : AQ_OK;
}
