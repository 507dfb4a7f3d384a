/*
 * cuda_plan.h -- plans of matrix products: for each kind of product the request to cuBLASLt, and which of its
 * algorithms computes it. Used only by cuda_matmul.c and cuda_plan.c.
 *
 * A plan depends only on its key: not on addresses beyond the alignment that tensor cores need, so that a tensor has
 * the same plan wherever a cut of the model puts it, and P stages have the bits of one.
 */
#ifndef AQ_CUDA_PLAN_H
#define AQ_CUDA_PLAN_H

#include <assert.h>

#include <cublasLt.h>

#include "cuda_device.h"

enum {
    CUDA_ALIGN_MAX = 16,      /* what tensor cores' kernels load and store at once: more makes no better algorithm */
    CUDA_PLANS_MAX = 512,     /* shapes of a process: a GPT-2 stage has about 20, twice that with a last micro-batch */
    CUDA_ALGORITHMS_MAX = 8,  /* a plan knows, in the order of the heuristic: timed, where there is a table */
    CUDA_ALGORITHMS_TRIED = 4 /* where one fails */
};
enum { CUDA_SUMS_OF_A = 1, CUDA_SUMS_OF_B = 2 };

/* All that an algorithm may depend on. Compared as bytes: filled by memset and assignments. */
struct cuda_key {
    uint64_t M, N, K, a_stride, b_stride, c_stride;
    uint32_t align_a, align_b, align_c, align_other, align_bias;
    uint8_t in_type, c_type, compute, a_transposed, b_transposed, accumulate, after, bias, dropout;
    uint8_t sums; /* 0, or CUDA_SUMS_OF_A or _B: made with the product */
    uint8_t pad[2];
};
static_assert(sizeof(struct cuda_key) == 80, "no padding: keys are compared as bytes");

struct cuda_plan {
    struct cuda_key key;
    bool made, fused; /* fused: epilogue or sums are the product's own; else our kernels follow it */
    bool chosen;      /* its algorithm has been logged */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, result; /* of cuBLASLt: our b, our a, our c */
    uint32_t found, at;                           /* algorithms, and the one that is used */
    cublasLtMatmulAlgo_t algorithms[CUDA_ALGORITHMS_MAX];
};

struct cuda_matmul {
    struct cuda_device *cuda;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    char *table;   /* the file of timed algorithms; NULL: none is kept */
    uint32_t next; /* the plan that goes where a further one comes */
    struct cuda_plan plans[CUDA_PLANS_MAX];
};

/*
 * The plan of a product whose operands are in_type already; kept, or made now. AQ_CUDAERR (logged): cuBLASLt has no
 * algorithm for it. With a table, and a kind that it does not name, the algorithms are timed now
 * (cuda_table_products.c): c, and what GELU keeps, are then written with what the product will write there once more.
 * AQ_AGAIN (not logged): work is only being listed (aq_cuda_list), and the plan is not made yet.
 */
enum aq_status cuda_plan_of(struct cuda_matmul *matmul, const struct aq_matmul *args, enum aq_element in_type,
                            const struct aq_stream *stream, struct cuda_plan **out);

/* A residual of 16 bits: a product that cannot add it leaves fp32 sums, so that the result is rounded once. */
static inline bool cuda_rounds_once(const struct aq_matmul *args)
{
    return args->after == AQ_AFTER_RESIDUAL && args->c_type != AQ_F32;
}

/* The sums over k of an operand that a product writes, which are then to be added: in part 1 of the scratch. */
static inline float *cuda_plan_sums(const struct aq_stream *stream)
{
    return (float *)cuda_part(stream, 1);
}

/*
 * Enqueues the product. An algorithm that cuBLASLt refuses to run gives way to the next of CUDA_ALGORITHMS_TRIED, and
 * the last of a fused plan to the plain product: ask plan->fused afterwards. AQ_CUDAERR: none runs.
 */
enum aq_status cuda_plan_run(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                             const struct aq_stream *stream);

/* The product by algorithm `at` of its plan, once; for timing. */
cublasStatus_t cuda_plan_call(struct cuda_matmul *matmul, struct cuda_plan *plan, uint32_t at,
                              const struct aq_matmul *args, const struct aq_stream *stream);

/* Our kernels that follow a product of this plan: an ending that it has not made, the sums of an operand. */
enum aq_status cuda_plan_finish(const struct cuda_plan *plan, const struct aq_matmul *args,
                                const struct aq_stream *stream);

/*
 * Turns a fused plan into the plain product, whose ending cuda_plan_finish makes, with the algorithms for that. False:
 * it has no ending, or cuBLASLt has no such product. cuda_plan_remake turns it back; its algorithms are the same again.
 */
bool cuda_plan_unfuse(struct cuda_matmul *matmul, struct cuda_plan *plan);
enum aq_status cuda_plan_remake(struct cuda_matmul *matmul, struct cuda_plan *plan);

/* One line of what a plan computes, and how: for logs. `text` has CUDA_TEXT_BYTES. */
void cuda_plan_text(const struct cuda_plan *plan, char *text);

/*
 * cuda_table_products.c: the file of this GPU and library in the folder that AQ_GPU_TABLE names; *path is NULL where
 * none is named. AQ_NOMEM.
 */
enum aq_status cuda_products_path(const struct cuda_device *cuda, char **path);

/*
 * The algorithm of the table, or the fastest by the clock, which is then in the table: with the ending in the product
 * or after it. Failures are logged and change nothing.
 */
void cuda_products_choose(struct cuda_matmul *matmul, struct cuda_plan *plan, const struct aq_matmul *args,
                          const struct aq_stream *stream);

#endif
