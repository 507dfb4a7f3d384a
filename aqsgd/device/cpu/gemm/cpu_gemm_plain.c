/*
 * cpu_gemm_plain.c -- the matrix product as plain loops: the truth that the others are tested against.
 *
 * An element of c is the sum over k, in this order, in double: products of floats are exact there. Blocks of c share
 * what is read of a and b, and change no sum.
 */
#include "cpu_gemm.h"
#include "cpu_rows.h"

enum { ROWS = 16, COLUMNS = 64 };

static double load(const struct cpu_operand *x, enum aq_element compute, uint64_t row, uint64_t column)
{
    return cpu_rounded(cpu_load(cpu_operand_at(x, row, column), x->type, 0), compute);
}

static void block_run(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                      enum aq_element compute, float *c, uint64_t c_stride, bool accumulate)
{
    double sums[ROWS][COLUMNS] = {{0.0}}, row[COLUMNS];
    for (uint64_t k = 0; k < K; k++) {
        for (uint64_t n = 0; n < N; n++) row[n] = load(b, compute, k, n);
        for (uint64_t m = 0; m < M; m++) {
            const double x = load(a, compute, m, k);
            for (uint64_t n = 0; n < N; n++) sums[m][n] += x * row[n];
        }
    }
    for (uint64_t m = 0; m < M; m++) {
        float *to = c + m * c_stride;
        for (uint64_t n = 0; n < N; n++) to[n] = (float)sums[m][n] + (accumulate ? to[n] : 0.0f);
    }
}

static void run(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    (void)scratch;
    for (uint64_t m = 0; m < M; m += ROWS) {
        struct cpu_operand rows = *a;
        rows.data = cpu_operand_at(a, m, 0);
        for (uint64_t n = 0; n < N; n += COLUMNS) {
            struct cpu_operand columns = *b;
            columns.data = cpu_operand_at(b, 0, n);
            block_run(M - m < ROWS ? M - m : ROWS, N - n < COLUMNS ? N - n : COLUMNS, K, &rows, &columns, compute,
                      c + m * c_stride + n, c_stride, accumulate);
        }
    }
}

const struct cpu_gemm cpu_gemm_plain = {.name = "plain", .run = run};
