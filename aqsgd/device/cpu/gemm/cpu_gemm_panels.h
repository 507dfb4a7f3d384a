/*
 * cpu_gemm_panels.h -- products from packed panels, after Goto and van de Geijn 2008; private to this folder.
 *
 * A panel holds a few lanes (rows of op(a) or columns of op(b)) of a range of k, in the order in which the kernel reads
 * it:
 *
 *     row panel     [unit][rows]        column panel     [unit][PANEL_COLUMNS]
 *
 * A unit is 32 bits: one fp32 value (it may be a bf16's or an fp16's), or two bf16 values of neighbouring k, the lower
 * one first. Lanes and k beyond the operand are zero. The kernel multiplies one row panel by one column panel and keeps
 * the sums in registers. A variant may order the values inside a panel as its kernel likes (AVX2 and AMX do).
 *
 * k is cut into chunks that depend only on K (panel_chunk), and an element's sums are added chunk after chunk: its bits
 * do not depend on M, N or on which thread made it.
 */
#ifndef AQ_CPU_GEMM_PANELS_H
#define AQ_CPU_GEMM_PANELS_H

#include "cpu_gemm.h"

enum {
    PANEL_ROWS = 8, /* of the variants with vectors */
    PANEL_COLUMNS = 48,
    PANEL_ROWS_MAX = 32,   /* of any variant */
    PANEL_UNITS_MAX = 512, /* of any variant */
};

struct cpu_panels {
    uint32_t rows;      /* of a row panel; at most PANEL_ROWS_MAX, a divisor of 96 */
    uint32_t unit;      /* values of k in a unit: 1 or 2 */
    uint32_t units_max; /* of a chunk; a multiple of 16  */
    /* `lanes` rows (columns) of op(x) from `first`, k from `k` for `depth`, as panels one after another. */
    void (*pack_rows)(const struct cpu_operand *x, uint64_t first, uint64_t lanes, uint64_t k, uint64_t depth,
                      uint32_t *out);
    void (*pack_columns)(const struct cpu_operand *x, uint64_t first, uint64_t lanes, uint64_t k, uint64_t depth,
                         uint32_t *out);
    /* c (rows x columns, at most a tile) = or += the product of one panel each. */
    void (*tile)(uint64_t units, const uint32_t *a, const uint32_t *b, float *c, uint64_t c_stride, uint64_t rows,
                 uint64_t columns, bool accumulate);
    /* Called by each thread before its first and after its last tile of a piece; may be NULL. */
    void (*begin)(void);
    void (*end)(void);
};

extern const struct cpu_panels cpu_panels_avx2;           /* fp32                                        */
extern const struct cpu_panels cpu_panels_avx2_rounded;   /* bf16 values in fp32 registers               */
extern const struct cpu_panels cpu_panels_avx2_halves;    /* fp16 values in fp32 registers               */
extern const struct cpu_panels cpu_panels_avx512;         /* fp32                                        */
extern const struct cpu_panels cpu_panels_avx512_rounded; /* bf16 values in fp32 registers               */
extern const struct cpu_panels cpu_panels_avx512_halves;  /* fp16 values in fp32 registers               */
extern const struct cpu_panels cpu_panels_avx512bf16;     /* pairs of bf16 values                        */
extern const struct cpu_panels cpu_panels_amx;            /* the same on tiles                           */

static inline uint64_t panel_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static inline uint64_t panel_least(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

/* k's chunk for a product over K: even parts of at most units_max units, a multiple of 16 units. */
static inline uint64_t panel_chunk(uint64_t K, const struct cpu_panels *panels)
{
    const uint64_t most = (uint64_t)panels->units_max * panels->unit, parts = (K + most - 1) / most;
    return panel_up((K + parts - 1) / parts, 16 * (uint64_t)panels->unit);
}

static inline void panels_begin(const struct cpu_panels *panels)
{
    if (panels->begin) panels->begin();
}

static inline void panels_end(const struct cpu_panels *panels)
{
    if (panels->end) panels->end();
}

/* One product on one thread, both operands packed block by block into scratch (CPU_GEMM_FLOATS). */
void cpu_panels_run(const struct cpu_panels *panels, uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a,
                    const struct cpu_operand *b, float *c, uint64_t c_stride, bool accumulate, float *scratch);

#endif
