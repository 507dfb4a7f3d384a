/*
 * cpu_gating.c -- heads that are multiplied by a gate of their own (struct aq_gating), as pieces for the pool.
 */
#include "cpu_device.h"

enum { PIECE = 256 }; /* columns at once */

/* s = 1 / (1 + e^-g) of n columns. */
static void sigmoids(const struct cpu_rows *rows, const void *g, enum aq_element type, uint64_t n, float *s)
{
    for (uint64_t i = 0; i < n; i++)
        s[i] = cpu_load(g, type, i);
    (void)rows->exp_sum(s, n, -1.0f, 0.0f);
    for (uint64_t i = 0; i < n; i++)
        s[i] = 1.0f / (1.0f + s[i]);
}

static void gating_columns(const struct cpu_rows *rows, const struct aq_gating *args, uint64_t g, uint64_t x,
                           uint64_t n)
{
    const void *gates = cpu_at(args->g, args->type, g);
    float s[PIECE];
    sigmoids(rows, gates, args->type, n, s);
    for (uint64_t i = 0; i < n; i++) {
        const float open = args->kind == AQ_GATING_SILU ? s[i] * cpu_load(gates, args->type, i) : s[i];
        cpu_store(args->y, args->type, x + i, cpu_load(args->x, args->type, x + i) * open);
    }
}

/* A piece is a row. */
static void gating_piece(struct cpu_device *cpu, const struct aq_gating *args, uint64_t piece)
{
    for (uint64_t head = 0; head < args->H; head++)
        for (uint64_t d = 0; d < args->D; d += PIECE)
            gating_columns(cpu->rows, args, piece * args->g_row + head * args->g_head + d,
                           (piece * args->H + head) * args->D + d, args->D - d < PIECE ? args->D - d : PIECE);
}

CPU_PIECES(gating, aq_gating, args->rows)

static void gating_backward_columns(const struct cpu_rows *rows, const struct aq_gating_backward *args, uint64_t g,
                                    uint64_t x, uint64_t n)
{
    const void *gates = cpu_at(args->g, args->type, g);
    float s[PIECE];
    sigmoids(rows, gates, args->type, n, s);
    for (uint64_t i = 0; i < n; i++) {
        const float gate = cpu_load(gates, args->type, i), dy = cpu_load(args->dy, args->type, x + i);
        const float along = dy * cpu_load(args->x, args->type, x + i), shut = 1.0f - s[i];
        const bool silu = args->kind == AQ_GATING_SILU;
        cpu_store(args->dx, args->dx_type, x + i, dy * (silu ? s[i] * gate : s[i]));
        cpu_store(args->dg, args->type, g + i, along * s[i] * (silu ? 1.0f + gate * shut : shut));
    }
}

static void gating_backward_piece(struct cpu_device *cpu, const struct aq_gating_backward *args, uint64_t piece)
{
    for (uint64_t head = 0; head < args->H; head++)
        for (uint64_t d = 0; d < args->D; d += PIECE)
            gating_backward_columns(cpu->rows, args, piece * args->g_row + head * args->g_head + d,
                                    (piece * args->H + head) * args->D + d, args->D - d < PIECE ? args->D - d : PIECE);
}

CPU_PIECES(gating_backward, aq_gating_backward, args->rows)
