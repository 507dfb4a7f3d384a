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

struct gating {
    const struct cpu_rows *rows;
    const struct aq_gating *args;
};

static void gating_columns(const struct gating *self, uint64_t g, uint64_t x, uint64_t n)
{
    const struct aq_gating *args = self->args;
    const void *gates = cpu_at(args->g, args->type, g);
    float s[PIECE];
    sigmoids(self->rows, gates, args->type, n, s);
    for (uint64_t i = 0; i < n; i++) {
        const float open = args->kind == AQ_GATING_SILU ? s[i] * cpu_load(gates, args->type, i) : s[i];
        cpu_store(args->y, args->type, x + i, cpu_load(args->x, args->type, x + i) * open);
    }
}

/* A piece is a row. */
static void gating_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct gating *self = context;
    const struct aq_gating *args = self->args;
    (void)worker;
    for (uint64_t head = 0; head < args->H; head++)
        for (uint64_t d = 0; d < args->D; d += PIECE)
            gating_columns(self, piece * args->g_row + head * args->g_head + d, (piece * args->H + head) * args->D + d,
                           args->D - d < PIECE ? args->D - d : PIECE);
}

enum aq_status cpu_gating(struct aq_device *device, const struct aq_gating *args, struct aq_stream *stream)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct gating self = {.rows = cpu->rows, .args = args};
    (void)stream;
    cpu_pool_run(cpu->pool, args->rows, gating_piece, &self);
    return AQ_OK;
}

struct gating_backward {
    const struct cpu_rows *rows;
    const struct aq_gating_backward *args;
};

static void gating_backward_columns(const struct gating_backward *self, uint64_t g, uint64_t x, uint64_t n)
{
    const struct aq_gating_backward *args = self->args;
    const void *gates = cpu_at(args->g, args->type, g);
    float s[PIECE];
    sigmoids(self->rows, gates, args->type, n, s);
    for (uint64_t i = 0; i < n; i++) {
        const float gate = cpu_load(gates, args->type, i), dy = cpu_load(args->dy, args->type, x + i);
        const float along = dy * cpu_load(args->x, args->type, x + i), shut = 1.0f - s[i];
        const bool silu = args->kind == AQ_GATING_SILU;
        cpu_store(args->dx, args->dx_type, x + i, dy * (silu ? s[i] * gate : s[i]));
        cpu_store(args->dg, args->type, g + i, along * s[i] * (silu ? 1.0f + gate * shut : shut));
    }
}

static void gating_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct gating_backward *self = context;
    const struct aq_gating_backward *args = self->args;
    (void)worker;
    for (uint64_t head = 0; head < args->H; head++)
        for (uint64_t d = 0; d < args->D; d += PIECE)
            gating_backward_columns(self, piece * args->g_row + head * args->g_head + d,
                                    (piece * args->H + head) * args->D + d,
                                    args->D - d < PIECE ? args->D - d : PIECE);
}

enum aq_status cpu_gating_backward(struct aq_device *device, const struct aq_gating_backward *args,
                                   struct aq_stream *stream)
{
    struct cpu_device *cpu = cpu_device_of(device);
    struct gating_backward self = {.rows = cpu->rows, .args = args};
    (void)stream;
    cpu_pool_run(cpu->pool, args->rows, gating_backward_piece, &self);
    return AQ_OK;
}
