/*
 * cpu_matvec.c -- a matrix product with one row of a: every weight is read once, so that memory bounds its rate.
 *
 * Weights are read in the order of memory, by whole rows. Stored (out, in), a piece is some of c's elements, each a dot
 * product. Stored (in, out), k is cut into parts, a piece sums its rows' share of all of c in its own memory, and the
 * shares are added in their order: their number depends only on K. So an element's sum does not depend on threads or on
 * N; it is not the same bits as in a product of several rows.
 */
#include <string.h>

#include "cpu_matmul.h"

enum { PIECE_COLUMNS = 64, PART_ROWS = 64, PARTS_MAX = 8, FINISH_COLUMNS = 1024 };

struct matvec {
    const struct cpu_product *product;
    const float *x;
    float *sums; /* parts times N */
    uint64_t parts;
};

static bool rounds(const struct aq_matmul *args)
{
    return args->compute == AQ_BF16 || args->compute == AQ_F16;
}

bool cpu_matvec_can(const struct cpu_product *product)
{
    const struct aq_matmul *args = product->args;
    if (args->M != 1 || args->K == 0 || args->a_transposed || product->cpu->gemm == &cpu_gemm_plain) return false;
    if (args->b_type != (rounds(args) ? args->compute : AQ_F32)) return false;
    return args->K + PARTS_MAX * args->N <= CPU_SHARED_BYTES / sizeof(float);
}

/* Columns n .. n + columns - 1 of c, from their sums. */
static void finish(const struct matvec *self, uint64_t n, uint64_t columns, const float *sums)
{
    const struct aq_matmul *args = self->product->args;
    if (args->accumulate)
        self->product->cpu->rows->add((float *)args->c + n, sums, AQ_F32, columns);
    else
        cpu_product_finish(self->product, 0, 1, n, columns, sums, columns);
}

static void dots_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct matvec *self = context;
    const struct aq_matmul *args = self->product->args;
    const uint64_t first = piece * PIECE_COLUMNS, columns = end_of(piece, args->N, PIECE_COLUMNS) - first;
    float sums[PIECE_COLUMNS];
    self->product->cpu->rows->dots(self->x, cpu_operand_at(&self->product->b, 0, first), args->b_stride, args->b_type,
                                   args->K, columns, sums);
    finish(self, first, columns, sums);
}

static void share_piece(uint64_t part, uint32_t worker, void *context)
{
    (void)worker;
    const struct matvec *self = context;
    const struct aq_matmul *args = self->product->args;
    const uint64_t first = part * args->K / self->parts, end = (part + 1) * args->K / self->parts;
    float *sums = self->sums + part * args->N;
    memset(sums, 0, args->N * sizeof *sums);
    self->product->cpu->rows->combine(self->x + first, cpu_operand_at(&self->product->b, first, 0), args->b_stride,
                                      args->b_type, args->N, end - first, sums);
}

static void shares_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct matvec *self = context;
    const uint64_t N = self->product->args->N;
    const uint64_t first = piece * FINISH_COLUMNS, columns = end_of(piece, N, FINISH_COLUMNS) - first;
    for (uint64_t part = 1; part < self->parts; part++)
        self->product->cpu->rows->add(self->sums + first, self->sums + part * N + first, AQ_F32, columns);
    finish(self, first, columns, self->sums + first);
}

void cpu_matvec(const struct cpu_product *product)
{
    const struct aq_matmul *args = product->args;
    struct cpu_pool *pool = product->cpu->pool;
    float *shared = cpu_shared(product->cpu);
    struct matvec self = {.product = product, .x = args->a, .sums = shared + args->K};
    if (args->a_type != AQ_F32 || rounds(args)) {
        for (uint64_t k = 0; k < args->K; k++)
            shared[k] = cpu_rounded(cpu_load(args->a, args->a_type, k), args->compute);
        self.x = shared;
    }
    if (args->b_transposed) {
        cpu_pool_run(pool, pieces_of(args->N, PIECE_COLUMNS), dots_piece, &self);
        return;
    }
    const uint64_t most = pieces_of(args->K, PART_ROWS);
    self.parts = most < PARTS_MAX ? most : PARTS_MAX;
    cpu_pool_run(pool, self.parts, share_piece, &self);
    cpu_pool_run(pool, pieces_of(args->N, FINISH_COLUMNS), shares_piece, &self);
}
