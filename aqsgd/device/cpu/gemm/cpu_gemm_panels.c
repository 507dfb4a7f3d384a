/*
 * cpu_gemm_panels.c -- one product on one thread from packed panels, and the variants that have panels.
 */
#include "cpu_gemm_panels.h"

#if defined(__x86_64__)

/* Units of scratch: 256 rows and 336 columns of a chunk are 1.2 MB of the 2 MiB. */
enum { BLOCK_ROWS = 256, BLOCK_COLUMNS = 336 };

void cpu_panels_run(const struct cpu_panels *panels, uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a,
                    const struct cpu_operand *b, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    const uint64_t chunk = panel_chunk(K, panels);
    panels_begin(panels);
    uint32_t *columns = (uint32_t *)(void *)scratch, *rows = columns + BLOCK_COLUMNS * PANEL_UNITS_MAX;
    for (uint64_t n = 0; n < N; n += BLOCK_COLUMNS) {
        const uint64_t wide = panel_least(N - n, BLOCK_COLUMNS);
        for (uint64_t k = 0; k < K; k += chunk) {
            const uint64_t depth = panel_least(K - k, chunk), units = (depth + panels->unit - 1) / panels->unit;
            panels->pack_columns(b, n, wide, k, depth, columns);
            for (uint64_t m = 0; m < M; m += BLOCK_ROWS) {
                const uint64_t high = panel_least(M - m, BLOCK_ROWS);
                panels->pack_rows(a, m, high, k, depth, rows);
                for (uint64_t i = 0; i < high; i += panels->rows)
                    for (uint64_t j = 0; j < wide; j += PANEL_COLUMNS)
                        panels->tile(units, rows + i * units, columns + j * units, c + (m + i) * c_stride + n + j,
                                     c_stride, panel_least(high - i, panels->rows),
                                     panel_least(wide - j, PANEL_COLUMNS), accumulate || k > 0);
            }
        }
    }
    panels_end(panels);
}

static void run_avx2(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                     enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    cpu_panels_run(cpu_gemm_panels(&cpu_gemm_avx2, compute), M, N, K, a, b, c, c_stride, accumulate, scratch);
}

static void run_rounded(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                        enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    cpu_panels_run(cpu_gemm_panels(&cpu_gemm_avx512, compute), M, N, K, a, b, c, c_stride, accumulate, scratch);
}

static void run_pairs(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                      enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    cpu_panels_run(cpu_gemm_panels(&cpu_gemm_avx512bf16, compute), M, N, K, a, b, c, c_stride, accumulate, scratch);
}

static void run_tiles(uint64_t M, uint64_t N, uint64_t K, const struct cpu_operand *a, const struct cpu_operand *b,
                      enum aq_element compute, float *c, uint64_t c_stride, bool accumulate, float *scratch)
{
    cpu_panels_run(cpu_gemm_panels(&cpu_gemm_amx, compute), M, N, K, a, b, c, c_stride, accumulate, scratch);
}

const struct cpu_gemm cpu_gemm_avx2 = {.name = "AVX2",
                                       .run = run_avx2,
                                       .fp32 = &cpu_panels_avx2,
                                       .bf16 = &cpu_panels_avx2_rounded,
                                       .fp16 = &cpu_panels_avx2_halves};
const struct cpu_gemm cpu_gemm_avx512 = {.name = "AVX-512",
                                         .run = run_rounded,
                                         .fp32 = &cpu_panels_avx512,
                                         .bf16 = &cpu_panels_avx512_rounded,
                                         .fp16 = &cpu_panels_avx512_halves};
const struct cpu_gemm cpu_gemm_avx512bf16 = {.name = "AVX-512 BF16",
                                             .run = run_pairs,
                                             .fp32 = &cpu_panels_avx512,
                                             .bf16 = &cpu_panels_avx512bf16,
                                             .fp16 = &cpu_panels_avx512_halves};
const struct cpu_gemm cpu_gemm_amx = {.name = "AMX",
                                      .run = run_tiles,
                                      .fp32 = &cpu_panels_avx512,
                                      .bf16 = &cpu_panels_amx,
                                      .fp16 = &cpu_panels_avx512_halves};

#endif
