/*
 * cpu_gemm_plain.c -- the matrix product as three loops: the truth that the others are tested against.
 */
#include "cpu_gemm.h"
#include "cpu_rows.h"

static float load(const struct cpu_operand *x, enum aq_element compute, uint64_t row, uint64_t column)
{
    return cpu_rounded(cpu_load(cpu_operand_at(x, row, column), x->type, 0), compute);
}

static void run(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    (void)scratch;
    for (uint64_t m = 0; m < M; m++) {
        for (uint64_t n = 0; n < N; n++) {
            double sum = 0.0;
            for (uint64_t k = 0; k < K; k++) sum += (double)load(a, compute, m, k) * load(b, compute, k, n);
            c[m * c_stride + n] = (float)sum + (accumulate ? c[m * c_stride + n] : 0.0f);
        }
    }
}

const struct cpu_gemm cpu_gemm_plain = {.name = "plain", .run = run};
