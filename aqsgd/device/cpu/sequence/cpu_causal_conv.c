/*
 * cpu_causal_conv.c -- causal convolutions along tokens, every column for itself (struct aq_causal_conv).
 *
 * A piece is some tokens of a sample and a block of columns. It brings their inputs, and those of the K - 1 tokens
 * before them, to fp32 rows side by side, and the weights to a row for each tap. Backward needs the gradients of the
 * K - 1 tokens behind them too, and computes these again. Sums of weights go as in cpu_pieces.c.
 */
#include <assert.h>
#include <string.h>

#include "cpu_device.h"

enum { TILE = 32, COLUMNS = 512, HALO = AQ_CAUSAL_CONV_TAPS - 1, SUM_COLUMNS = 64 };

/* Rows of a worker's scratch, each of the piece's columns. */
enum {
    CONV_FLOATS = COLUMNS * (AQ_CAUSAL_CONV_TAPS /* weights */ + TILE + 2 * HALO /* inputs */ + TILE + HALO /* dz */)
};
static_assert(CPU_GEMM_FLOATS + CONV_FLOATS <= CPU_WORKER_BYTES / sizeof(float), "a worker's scratch holds a piece");

struct conv {
    struct cpu_device *cpu;
    const struct aq_causal_conv *args;
    uint64_t group; /* rows of a partial sum */
};

/* Tokens t0 .. t1 - 1 of a sample, columns c0 .. c0 + n - 1; the scratch rows of token `low` and on. */
struct conv_tile {
    uint64_t sample, t0, t1, c0, n;
    int64_t low; /* below 0: a token of the cache */
    float *weights, *inputs, *dz;
};

/* Tokens of its part, or sample, that lie before token t. */
static uint64_t conv_place(const struct aq_causal_conv *args, uint64_t sample, uint64_t t)
{
    return args->cache ? args->first + t : aq_place_of(args->starts, sample * args->T + t, args->T);
}

/* Column c0 of the first, second or third part of a row of x. */
static const void *conv_x(const struct aq_causal_conv *args, uint64_t row, uint64_t part, uint64_t c0)
{
    return cpu_at(args->x, args->type, row * args->stride + part * args->C + c0);
}

static void conv_input(const struct conv *self, uint64_t row, uint64_t c0, uint64_t n, float *u)
{
    const struct aq_causal_conv *args = self->args;
    const void *other = args->gates ? conv_x(args, row, 2, c0) : NULL;
    self->cpu->rows->product(conv_x(args, row, 0, c0), other, args->type, n, u);
}

static uint64_t cache_at(const struct aq_causal_conv *args, uint64_t sample, uint64_t token)
{
    return (sample * args->rows + token % args->rows) * args->C;
}

/* Weights, a row a tap, and the inputs of tokens low .. end - 1. */
static void tile_load(const struct conv *self, uint32_t worker, uint64_t end, struct conv_tile *tile)
{
    const struct aq_causal_conv *args = self->args;
    const uint64_t n = tile->n, before = conv_place(args, tile->sample, tile->t0);
    tile->weights = cpu_scratch(self->cpu, worker) + CPU_GEMM_FLOATS;
    tile->inputs = tile->weights + args->K * n;
    tile->dz = tile->inputs + (TILE + 2 * HALO) * n;
    tile->low = (int64_t)tile->t0 - (int64_t)(before < args->K - 1 ? before : args->K - 1);
    for (uint64_t k = 0; k < args->K; k++)
        for (uint64_t i = 0; i < n; i++)
            tile->weights[k * n + i] = args->w[(tile->c0 + i) * args->K + k];
    for (int64_t t = tile->low; t < (int64_t)end; t++) {
        float *u = tile->inputs + (uint64_t)(t - tile->low) * n;
        const uint64_t token = (uint64_t)((int64_t)args->first + t);
        const void *kept =
            t < 0 ? cpu_at(args->cache, args->type, cache_at(args, tile->sample, token) + tile->c0) : NULL;
        if (kept)
            self->cpu->rows->product(kept, NULL, args->type, n, u);
        else
            conv_input(self, tile->sample * args->T + (uint64_t)t, tile->c0, n, u);
    }
}

/* What token t's sum reads. */
static struct cpu_taps tile_taps(const struct aq_causal_conv *args, const struct conv_tile *tile, uint64_t t)
{
    const uint64_t n = tile->n, place = conv_place(args, tile->sample, t),
                   count = place < args->K ? place + 1 : args->K;
    return (struct cpu_taps){.n = n,
                             .count = count,
                             .u = tile->inputs + (uint64_t)((int64_t)(t + 1 - count) - tile->low) * n,
                             .w = tile->weights + (args->K - count) * n,
                             .u_stride = (int64_t)n,
                             .w_stride = (int64_t)n,
                             .bias = args->bias ? args->bias + tile->c0 : NULL,
                             .silu = args->silu,
                             .type = args->type};
}

static void conv_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct conv *self = context;
    const struct aq_causal_conv *args = self->args;
    const uint64_t blocks = pieces_of(args->C, COLUMNS), block = piece % blocks, tiles = pieces_of(args->T, TILE);
    const uint64_t at = piece / blocks % tiles, c0 = block * COLUMNS;
    struct conv_tile tile = {.sample = piece / blocks / tiles,
                             .t0 = at * TILE,
                             .t1 = end_of(at, args->T, TILE),
                             .c0 = c0,
                             .n = end_of(block, args->C, COLUMNS) - c0};
    tile_load(self, worker, tile.t1, &tile);
    for (uint64_t t = tile.t0; t < tile.t1; t++) {
        const struct cpu_taps taps = tile_taps(args, &tile, t);
        const uint64_t row = tile.sample * args->T + t;
        self->cpu->rows->taps(&taps, args->gates ? conv_x(args, row, 1, c0) : NULL,
                              cpu_at_w(args->y, args->type, row * args->C + c0));
    }
}

/* The inputs of one token go to the cache, if it still has room for them behind later ones. */
static void keep_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct conv *self = context;
    const struct aq_causal_conv *args = self->args;
    const uint64_t sample = piece / args->T, t = piece % args->T;
    float *u = cpu_scratch(self->cpu, worker) + CPU_GEMM_FLOATS;
    if (t + args->rows < args->T) return;
    for (uint64_t c0 = 0; c0 < args->C; c0 += COLUMNS) {
        const uint64_t n = args->C - c0 < COLUMNS ? args->C - c0 : COLUMNS;
        conv_input(self, piece, c0, n, u);
        self->cpu->rows->scale(
            u, n, 1.0f, cpu_at_w(args->cache, args->type, cache_at(args, sample, args->first + t) + c0), args->type);
    }
}

enum aq_status cpu_causal_conv(struct aq_device *device, const struct aq_causal_conv *args, struct aq_stream *stream)
{
    (void)stream;
    struct conv self = {.cpu = cpu_device_of(device), .args = args};
    const uint64_t pieces = args->samples * pieces_of(args->T, TILE) * pieces_of(args->C, COLUMNS);
    cpu_pool_run(self.cpu->pool, pieces, conv_piece, &self);
    if (args->cache) cpu_pool_run(self.cpu->pool, args->samples * args->T, keep_piece, &self);
    return AQ_OK;
}

/* dx of token t, from dz of it and of those behind it in its part. */
static void conv_dx(const struct conv *self, const struct conv_tile *tile, uint64_t t)
{
    const struct aq_causal_conv *args = self->args;
    const struct cpu_rows *rows = self->cpu->rows;
    const uint64_t row = tile->sample * args->T + t, n = tile->n, C = args->C, at = row * args->stride + tile->c0;
    uint64_t count = 1;
    while (count < args->K && t + count < args->T && conv_place(args, tile->sample, t + count) >= count)
        count++;
    const struct cpu_taps taps = {.n = n,
                                  .count = count,
                                  .u = tile->dz + (t - tile->t0) * n,
                                  .w = tile->weights + (args->K - 1) * n,
                                  .u_stride = (int64_t)n,
                                  .w_stride = -(int64_t)n,
                                  .type = args->type};
    rows->taps(&taps, args->gates ? conv_x(args, row, 2, tile->c0) : NULL, cpu_at_w(args->dx, args->type, at));
    if (args->gates) rows->taps(&taps, conv_x(args, row, 0, tile->c0), cpu_at_w(args->dx, args->type, at + 2 * C));
}

/* sums: of the taps' weights, then of the bias, C each; NULL: not wanted. */
static void conv_tile_backward(const struct conv *self, uint32_t worker, struct conv_tile *tile, float *sums)
{
    const struct aq_causal_conv *args = self->args;
    const uint64_t C = args->C, c0 = tile->c0, n = tile->n;
    const uint64_t end = tile->t1 + args->K - 1 < args->T ? tile->t1 + args->K - 1 : args->T;
    tile_load(self, worker, end, tile);
    for (uint64_t t = tile->t0; t < end; t++) {
        const struct cpu_taps taps = tile_taps(args, tile, t);
        const uint64_t row = tile->sample * args->T + t;
        float *dz = tile->dz + (t - tile->t0) * n;
        void *dgate = t < tile->t1 && args->gates ? cpu_at_w(args->dx, args->type, row * args->stride + C + c0) : NULL;
        self->cpu->rows->taps_backward(&taps, args->gates ? conv_x(args, row, 1, c0) : NULL,
                                       cpu_at(args->dy, args->type, row * C + c0), dz, dgate);
        if (t >= tile->t1 || !sums) continue;
        self->cpu->rows->taps_sums(&taps, dz, sums + (args->K - taps.count) * C + c0, C);
        self->cpu->rows->add(sums + args->K * C + c0, dz, AQ_F32, n);
    }
    for (uint64_t t = tile->t0; t < tile->t1; t++)
        conv_dx(self, tile, t);
}

static void conv_backward_piece(uint64_t piece, uint32_t worker, void *context)
{
    const struct conv *self = context;
    const struct aq_causal_conv *args = self->args;
    const uint64_t blocks = pieces_of(args->C, COLUMNS), block = piece % blocks, group = piece / blocks, T = args->T;
    const uint64_t c0 = block * COLUMNS, n = end_of(block, args->C, COLUMNS) - c0;
    float *sums = args->dw || args->dbias ? cpu_shared(self->cpu) + group * (args->K + 1) * args->C : NULL;
    for (uint64_t k = 0; sums && k <= args->K; k++)
        memset(sums + k * args->C + c0, 0, n * sizeof *sums);
    for (uint64_t r = group * self->group, end = end_of(group, args->samples * T, self->group); r < end;) {
        struct conv_tile tile = {.sample = r / T, .t0 = r % T, .t1 = T, .c0 = c0, .n = n};
        if (tile.t1 > tile.t0 + TILE) tile.t1 = tile.t0 + TILE;
        if (tile.t1 > tile.t0 + (end - r)) tile.t1 = tile.t0 + (end - r);
        conv_tile_backward(self, worker, &tile, sums);
        r += tile.t1 - tile.t0;
    }
}

/* dw has a column's taps side by side, the groups' sums a tap's columns. */
static void conv_sums_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct conv *self = context;
    const struct aq_causal_conv *args = self->args;
    const uint64_t C = args->C, K = args->K, groups = pieces_of(args->samples * args->T, self->group);
    for (uint64_t c = piece * SUM_COLUMNS; c < end_of(piece, C, SUM_COLUMNS); c++)
        for (uint64_t k = 0; k < K; k++)
            for (uint64_t group = 0; group < groups; group++)
                args->dw[c * K + k] += cpu_shared(self->cpu)[group * (K + 1) * C + k * C + c];
}

enum aq_status cpu_causal_conv_backward(struct aq_device *device, const struct aq_causal_conv *args,
                                        struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t rows = args->samples * args->T, C = args->C, width = (args->K + 1) * C;
    if (width * sizeof(float) > CPU_SHARED_BYTES)
        return aq_fail(AQ_INVAL, "device", "a convolution of %llu columns and %llu taps exceeds the limit of %d sums",
                       (unsigned long long)C, (unsigned long long)args->K, CPU_SHARED_BYTES / (int)sizeof(float));
    struct conv self = {.cpu = cpu, .args = args, .group = cpu_group_rows(rows, width)};
    const uint64_t groups = pieces_of(rows, self.group);
    cpu_pool_run(cpu->pool, groups * pieces_of(C, COLUMNS), conv_backward_piece, &self);
    if (args->dw) cpu_pool_run(cpu->pool, pieces_of(C, SUM_COLUMNS), conv_sums_piece, &self);
    if (args->dbias) cpu_reduce(cpu, groups, width, args->K * C, C, args->dbias);
    return AQ_OK;
}
