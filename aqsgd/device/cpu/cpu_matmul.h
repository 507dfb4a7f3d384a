/*
 * cpu_matmul.h -- shared by the ways of cutting a matrix product into pieces; private to this folder.
 */
#ifndef AQ_CPU_MATMUL_H
#define AQ_CPU_MATMUL_H

#include "cpu_device.h"

struct cpu_product {
    struct cpu_device *cpu;
    const struct aq_matmul *args;
    struct cpu_operand a, b;
};

/* Are the sums the result? Then they are summed in c itself and nothing follows. */
static inline bool cpu_product_is_sums(const struct aq_matmul *args)
{
    return args->c_type == AQ_F32 && !args->bias && args->after == AQ_AFTER_NONE;
}

/* From the sums of a block at (m, n) to c: bias, GELU, residual, rounding, while the block is in the cache. */
void cpu_product_finish(const struct cpu_product *product, uint64_t m, uint64_t rows, uint64_t n, uint64_t columns,
                        const float *sums, uint64_t sums_stride);

/*
 * cpu_matvec.c: a product with one row of a, which memory bounds. can: is it one, and do the weights need no rounding?
 */
bool cpu_matvec_can(const struct cpu_product *product);
void cpu_matvec(const struct cpu_product *product);

/* cpu_matmul_panels.c. AQ_INVAL: c has 16 bits and K too large for its panels. */
enum aq_status cpu_matmul_panels(const struct cpu_product *product, const struct cpu_panels *panels);

#endif
