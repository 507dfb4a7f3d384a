/*
 * cpu_gemm.h -- one matrix product on one thread, with a variant for each kind of machine; private to this folder.
 *
 *     cpu_gemm_plain    plain loops, the truth (AQ_CPU=plain)
 *     cpu_gemm_dnnl     oneDNN's single-threaded sgemm, on blocks (machines without AVX2)
 *     cpu_gemm_avx2     packed panels and a register-blocked kernel
 *     cpu_gemm_avx512   the same, wider
 *     cpu_gemm_avx512bf16, cpu_gemm_amx   bf16 by AVX512_BF16, or on AMX's tiles
 *
 * c (M x N, fp32) = op(a) op(b), or += . Operands are read through their types; with compute AQ_BF16 or AQ_F16 both are
 * rounded to it first. An element's sum runs over k in an order that depends only on K, so that the result does not
 * depend on how M and N were cut.
 */
#ifndef AQ_CPU_GEMM_H
#define AQ_CPU_GEMM_H

#include "aqsgd/device_math.h"

struct cpu_operand {
    const void *data;
    uint64_t stride;
    enum aq_element type;
    bool transposed;
};

struct cpu_panels; /* the kernels of a packing variant: cpu_gemm_panels.h */

struct cpu_gemm {
    const char *name;
    /* scratch: CPU_GEMM_FLOATS of the calling worker. */
    void (*run)(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch);
    const struct cpu_panels *fp32, *bf16, *fp16; /* for products that share a packed operand between threads; or NULL */
};

extern const struct cpu_gemm cpu_gemm_plain;
extern const struct cpu_gemm cpu_gemm_dnnl;
extern const struct cpu_gemm cpu_gemm_avx2;       /* bf16 and fp16 products on fp32 registers       */
extern const struct cpu_gemm cpu_gemm_avx512;     /* fp32; bf16 and fp16 products on fp32 registers */
extern const struct cpu_gemm cpu_gemm_avx512bf16; /* bf16 products by AVX512_BF16                   */
extern const struct cpu_gemm cpu_gemm_amx;        /* bf16 products on AMX's tiles                   */

static inline const struct cpu_panels *cpu_gemm_panels(const struct cpu_gemm *gemm, enum aq_element compute)
{
    return compute == AQ_BF16 ? gemm->bf16 : compute == AQ_F16 ? gemm->fp16 : gemm->fp32;
}

/* Row m, column k of op(operand) as an address. */
static inline const void *cpu_operand_at(const struct cpu_operand *x, uint64_t row, uint64_t column)
{
    const uint64_t index = x->transposed ? column * x->stride + row : row * x->stride + column;
    return (const uint8_t *)x->data + index * aq_element_bytes(x->type);
}

#endif
