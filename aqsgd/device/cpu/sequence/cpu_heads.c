/*
 * cpu_heads.c -- the mathematics of decoders, except layer norm and GELU, as pieces for the pool: root mean square
 * norms, normalization and rotary embedding of heads, gated activations. Sums over rows go as in cpu_pieces.c.
 */
#include <string.h>

#include "cpu_device.h"

enum { ROWS = CPU_GROUP_ROWS, HEAD_MAX = 8192 };

static void rmsnorm_piece(struct cpu_device *cpu, const struct aq_rmsnorm *args, uint64_t piece)
{
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++) {
        void *y = cpu_at_w(args->y, args->y_type, r * args->C);
        cpu->rows->rmsnorm(cpu_at(args->x, args->x_type, r * args->C), args->x_type, args->gamma, args->C, args->plus,
                           args->epsilon, y, args->y_type, args->rstd + r);
        if (args->other) cpu->rows->add(y, args->other + r * args->C, AQ_F32, args->C);
    }
}

CPU_PIECES(rmsnorm, aq_rmsnorm, pieces_of(args->rows, ROWS))

static void rmsnorm_backward_piece(struct cpu_device *cpu, const struct aq_rmsnorm_backward *args, uint64_t piece)
{
    const uint64_t C = args->C;
    const uint64_t group = cpu_group_rows(args->rows, C);
    float *dgamma = cpu_shared(cpu) + piece * C;
    memset(dgamma, 0, C * sizeof *dgamma);
    for (uint64_t r = piece * group; r < end_of(piece, args->rows, group); r++) {
        float *dx = args->dx + r * C;
        cpu->rows->rmsnorm_backward(args->dy + r * C, cpu_at(args->x, args->x_type, r * C), args->x_type, args->gamma,
                                    args->plus, args->rstd[r], C, dx, dgamma);
        if (args->rounded) cpu->rows->scale(dx, C, 1.0f, args->rounded + r * C, args->rounded_type);
    }
}

CPU_RUN(rmsnorm_backward, aq_rmsnorm_backward)

enum aq_status cpu_rmsnorm_backward(struct aq_device *device, const struct aq_rmsnorm_backward *args,
                                    struct aq_stream *stream)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t groups = pieces_of(args->rows, cpu_group_rows(args->rows, args->C));
    rmsnorm_backward_run(cpu, args, groups);
    if (args->dgamma) cpu_reduce(cpu, groups, args->C, 0, args->C, args->dgamma);
    if (!args->sums) return AQ_OK;
    const void *summed = args->rounded ? (const void *)args->rounded : args->dx;
    const enum aq_element type = args->rounded ? args->rounded_type : AQ_F32;
    const struct aq_column_sum sum = {
        .rows = args->rows, .C = args->C, .stride = args->C, .x = summed, .type = type, .sums = args->sums};
    return cpu_column_sum(device, &sum, stream);
}

static enum aq_status head_check(uint64_t D, const float *gamma)
{
    if (!gamma || D <= HEAD_MAX) return AQ_OK;
    return aq_fail(AQ_INVAL, "device", "a norm over heads of %llu channels exceeds the limit of %d",
                   (unsigned long long)D, HEAD_MAX);
}

/* The first column of head `head`; gated: each of the H heads of queries has a gate behind it. */
static uint64_t gated_column(bool gated, uint64_t H, uint64_t D, uint64_t head)
{
    return (head + (gated ? head < H ? head : H : 0)) * D;
}

/* Head `head` of queries and keys, of row r, at element `from` of x and `at` of y. */
static void rope_head(const struct cpu_rows *rows, const struct aq_rope *args, uint64_t r, uint64_t head, uint64_t from,
                      uint64_t at)
{
    const float *gamma = head < args->H ? args->q_gamma : args->k_gamma;
    const float *cosines = args->R ? args->table + aq_place_of(args->starts, r, args->T) * args->R : NULL;
    const uint64_t half = args->R / 2, rest = args->D - args->R;
    const void *x = cpu_at(args->x, args->type, from), *after = cpu_at(args->x, args->type, from + args->R);
    void *y = cpu_at_w(args->y, args->type, at), *y_rest = cpu_at_w(args->y, args->type, at + args->R);
    float normed[HEAD_MAX];
    if (!gamma) {
        if (half) rows->rotate(x, args->type, cosines, cosines + half, 1.0f, half, y, args->type);
        if (rest && x != y) memcpy(y_rest, after, rest * aq_element_bytes(args->type));
        return;
    }
    rows->rmsnorm(x, args->type, gamma, args->D, args->plus, args->epsilon, normed, AQ_F32,
                  args->rstd + r * (args->H + args->kv_heads) + head);
    if (half) rows->rotate(normed, AQ_F32, cosines, cosines + half, 1.0f, half, y, args->type);
    if (rest) rows->scale(normed + args->R, rest, 1.0f, y_rest, args->type);
}

static void rope_piece(struct cpu_device *cpu, const struct aq_rope *args, uint64_t piece)
{
    const uint64_t heads = args->H + args->kv_heads, D = args->D, width = (heads + args->kv_heads) * D;
    const uint64_t width_x = gated_column(args->gated, args->H, D, heads + args->kv_heads);
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->samples * args->T, ROWS); r++) {
        for (uint64_t head = 0; head < heads; head++)
            rope_head(cpu->rows, args, r, head, r * width_x + gated_column(args->gated, args->H, D, head),
                      r * width + head * D);
        const uint64_t values = r * width + heads * D;
        const uint64_t from = r * width_x + gated_column(args->gated, args->H, D, heads);
        if (args->y != args->x)
            memcpy(cpu_at_w(args->y, args->type, values), cpu_at(args->x, args->type, from),
                   args->kv_heads * args->D * aq_element_bytes(args->type));
    }
}

CPU_RUN(rope, aq_rope)

enum aq_status cpu_rope(struct aq_device *device, const struct aq_rope *args, struct aq_stream *stream)
{
    (void)stream;
    AQ_TRY(head_check(args->D, args->q_gamma));
    rope_run(cpu_device_of(device), args, pieces_of(args->samples * args->T, ROWS));
    return AQ_OK;
}

/* At element `at` of dy, and `to` of x and dx. dgamma: this group's, of queries or keys. */
static void rope_backward_head(const struct cpu_rows *rows, const struct aq_rope_backward *args, uint64_t r,
                               uint64_t head, uint64_t at, uint64_t to, float *dgamma)
{
    const float *gamma = head < args->H ? args->q_gamma : args->k_gamma;
    const float *cosines = args->R ? args->table + aq_place_of(args->starts, r, args->T) * args->R : NULL;
    const float *dy = args->dy + at;
    const uint64_t half = args->R / 2, rest = args->D - args->R;
    void *dx = cpu_at_w(args->dx, args->type, to);
    float turned[HEAD_MAX], sums[HEAD_MAX];
    if (!gamma) {
        if (half) rows->rotate(dy, AQ_F32, cosines, cosines + half, -1.0f, half, dx, args->type);
        if (rest && (const void *)dy != dx)
            rows->scale(dy + args->R, rest, 1.0f, cpu_at_w(args->dx, args->type, to + args->R), args->type);
        return;
    }
    if (half) rows->rotate(dy, AQ_F32, cosines, cosines + half, -1.0f, half, turned, AQ_F32);
    memcpy(turned + args->R, dy + args->R, rest * sizeof *turned);
    memset(sums, 0, args->D * sizeof *sums);
    rows->rmsnorm_backward(turned, cpu_at(args->x, args->type, to), args->type, gamma, args->plus,
                           args->rstd[r * (args->H + args->kv_heads) + head], args->D, sums, dgamma);
    rows->scale(sums, args->D, 1.0f, dx, args->type);
}

static void rope_backward_piece(struct cpu_device *cpu, const struct aq_rope_backward *args, uint64_t piece)
{
    const uint64_t heads = args->H + args->kv_heads, width = (heads + args->kv_heads) * args->D, D = args->D;
    const uint64_t width_x = gated_column(args->gated, args->H, D, heads + args->kv_heads);
    const uint64_t tokens = args->samples * args->T, group = cpu_group_rows(tokens, 2 * D);
    float *partial = cpu_shared(cpu) + piece * 2 * D;
    if (args->q_gamma) memset(partial, 0, 2 * D * sizeof *partial);
    for (uint64_t r = piece * group; r < end_of(piece, tokens, group); r++) {
        for (uint64_t head = 0; head < heads; head++)
            rope_backward_head(cpu->rows, args, r, head, r * width + head * D,
                               r * width_x + gated_column(args->gated, args->H, D, head),
                               head < args->H ? partial : partial + D);
        const uint64_t values = r * width + heads * D;
        void *dx = cpu_at_w(args->dx, args->type, r * width_x + gated_column(args->gated, args->H, D, heads));
        if (dx != args->dy + values) cpu->rows->scale(args->dy + values, args->kv_heads * D, 1.0f, dx, args->type);
    }
}

CPU_RUN(rope_backward, aq_rope_backward)

enum aq_status cpu_rope_backward(struct aq_device *device, const struct aq_rope_backward *args,
                                 struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t rows = args->samples * args->T, D = args->D, groups = pieces_of(rows, cpu_group_rows(rows, 2 * D));
    AQ_TRY(head_check(D, args->q_gamma));
    rope_backward_run(cpu, args, groups);
    if (args->q_gamma && args->dq_gamma) cpu_reduce(cpu, groups, 2 * D, 0, D, args->dq_gamma);
    if (args->q_gamma && args->dk_gamma) cpu_reduce(cpu, groups, 2 * D, D, D, args->dk_gamma);
    return AQ_OK;
}

static void gated_piece(struct cpu_device *cpu, const struct aq_gated *args, uint64_t piece)
{
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++)
        cpu->rows->gated(args->gate, args->F, cpu_at(args->x, args->type, 2 * r * args->F),
                         cpu_at(args->x, args->type, (2 * r + 1) * args->F), cpu_at_w(args->y, args->type, r * args->F),
                         args->type);
}

CPU_PIECES(gated, aq_gated, pieces_of(args->rows, ROWS))

static void gated_backward_piece(struct cpu_device *cpu, const struct aq_gated_backward *args, uint64_t piece)
{
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++) {
        const uint64_t g = 2 * r * args->F, u = g + args->F;
        cpu->rows->gated_backward(args->gate, args->F, cpu_at(args->x, args->type, g), cpu_at(args->x, args->type, u),
                                  cpu_at(args->dy, args->type, r * args->F), cpu_at_w(args->dx, args->type, g),
                                  cpu_at_w(args->dx, args->type, u), args->type);
    }
}

CPU_PIECES(gated_backward, aq_gated_backward, pieces_of(args->rows, ROWS))
