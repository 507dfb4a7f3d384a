/*
 * cpu_gemm_dnnl.c -- the matrix product by oneDNN's sgemm, one thread per call: for machines without AVX2.
 *
 * oneDNN of Debian runs on OpenMP. Each of our threads sets OpenMP to one thread, itself; oneDNN then calls its kernel
 * directly and never wakes its own pool. Operands of 16 bits are widened block by block: exact, if slow.
 */
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include "cpu_conv.h"
#include "cpu_rows.h"

void cpu_dnnl_one_thread(void)
{
    static _Thread_local bool done;
    if (done) return;
    done = true;
    /* libdnnl brings libgomp along; asking for the function by name spares the link line of a library we do not use. */
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    union {
        void *object;
        void (*function)(int);
    } set_threads = {.object = symbol};
    if (symbol) set_threads.function(1);
}

static void sgemm(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                  float *c, uint64_t c_stride, bool accumulate)
{
    cpu_dnnl_one_thread();
    const dnnl_status_t status =
        dnnl_sgemm(a->transposed ? 'T' : 'N', b->transposed ? 'T' : 'N', (dnnl_dim_t)M, (dnnl_dim_t)N, (dnnl_dim_t)K,
                   1.0f, a->data, (dnnl_dim_t)a->stride, b->data, (dnnl_dim_t)b->stride, accumulate ? 1.0f : 0.0f, c,
                   (dnnl_dim_t)c_stride);
    AQ_ASSERT(status == dnnl_success); /* it only fails for arguments that cannot be */
}

/* A block of op(x) in fp32, as stored (so that `transposed` stays), rounded as the product requires. */
static struct cpu_operand widen_block(const struct cpu_operand *x, enum aq_element compute, uint64_t row, uint64_t rows,
                                      uint64_t column, uint64_t columns, float *to)
{
    const uint64_t outer = x->transposed ? columns : rows, inner = x->transposed ? rows : columns;
    const uint8_t *from = cpu_operand_at(x, row, column);
    const uint64_t step = x->stride * aq_element_bytes(x->type);
    for (uint64_t i = 0; i < outer; i++, from += step) {
        for (uint64_t j = 0; j < inner; j++)
            to[i * inner + j] = cpu_rounded(cpu_load(from, x->type, j), compute);
    }
    return (struct cpu_operand){.data = to, .stride = inner, .type = AQ_F32, .transposed = x->transposed};
}

enum { BLOCK = 384 }; /* three blocks of floats fit CPU_GEMM_FLOATS */

static void run(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    const bool whole = compute == AQ_F32 || compute == AQ_TF32;
    if (whole && a->type == AQ_F32 && b->type == AQ_F32) {
        sgemm(M, N, K, a, b, c, c_stride, accumulate);
        return;
    }
    for (uint64_t n = 0; n < N; n += BLOCK) {
        const uint64_t columns = N - n < BLOCK ? N - n : BLOCK;
        for (uint64_t k = 0; k < K; k += BLOCK) {
            const uint64_t depth = K - k < BLOCK ? K - k : BLOCK;
            const struct cpu_operand right = widen_block(b, compute, k, depth, n, columns, scratch);
            for (uint64_t m = 0; m < M; m += BLOCK) {
                const uint64_t rows = M - m < BLOCK ? M - m : BLOCK;
                const struct cpu_operand left = widen_block(a, compute, m, rows, k, depth, scratch + BLOCK * BLOCK);
                sgemm(rows, columns, depth, &left, &right, c + m * c_stride + n, c_stride, accumulate || k > 0);
            }
        }
    }
}

const struct cpu_gemm cpu_gemm_dnnl = {.name = "oneDNN", .run = run};
