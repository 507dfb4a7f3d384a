/*
 * cpu_pieces.c -- row-wise mathematics as pieces for the pool: layer norm, embedding, cross-entropy, column sums,
 * dropout.
 *
 * Sums over rows (gradients of biases and of layer norm) go in two phases: each piece sums its own rows into a partial
 * row in the shared scratch, then pieces of columns add the partial rows in order. The grouping depends only on the
 * shape.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { ROWS = CPU_GROUP_ROWS, COLUMNS = 64 };

uint64_t cpu_group_rows(uint64_t rows, uint64_t width)
{
    uint64_t group = ROWS;
    while (pieces_of(rows, group) * width * sizeof(float) > CPU_SHARED_BYTES)
        group *= 2;
    return group;
}

struct reduce {
    const float *partial; /* groups rows of `width` floats */
    uint64_t groups, width, offset, columns;
    float *sums;
};

static void reduce_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct reduce *reduce = context;
    const uint64_t first = piece * COLUMNS, end = end_of(piece, reduce->columns, COLUMNS);
    for (uint64_t group = 0; group < reduce->groups; group++) {
        const float *row = reduce->partial + group * reduce->width + reduce->offset;
        for (uint64_t c = first; c < end; c++)
            reduce->sums[c] += row[c];
    }
}

void cpu_reduce(struct cpu_device *cpu, uint64_t groups, uint64_t width, uint64_t offset, uint64_t columns, float *sums)
{
    struct reduce reduce = {.partial = cpu_shared(cpu),
                            .groups = groups,
                            .width = width,
                            .offset = offset,
                            .columns = columns,
                            .sums = sums};
    cpu_pool_run(cpu->pool, pieces_of(columns, COLUMNS), reduce_piece, &reduce);
}

static void layernorm_piece(struct cpu_device *cpu, const struct aq_layernorm *args, uint64_t piece)
{
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->rows, ROWS); r++)
        cpu->rows->layernorm(cpu_at(args->x, args->x_type, r * args->C), args->x_type, args->gamma, args->beta,
                             args->C, args->epsilon, cpu_at_w(args->y, args->y_type, r * args->C), args->y_type,
                             args->mean + r, args->rstd + r);
}

CPU_PIECES(layernorm, aq_layernorm, pieces_of(args->rows, ROWS))

static void layernorm_backward_piece(struct cpu_device *cpu, const struct aq_layernorm_backward *args, uint64_t piece)
{
    const uint64_t group = cpu_group_rows(args->rows, 2 * args->C);
    float *dgamma = cpu_shared(cpu) + piece * 2 * args->C, *dbeta = dgamma + args->C;
    memset(dgamma, 0, 2 * args->C * sizeof *dgamma);
    for (uint64_t r = piece * group; r < end_of(piece, args->rows, group); r++)
        cpu->rows->layernorm_backward(args->dy + r * args->C, cpu_at(args->x, args->x_type, r * args->C), args->x_type,
                                      args->gamma, args->mean[r], args->rstd[r], args->C, args->dx + r * args->C,
                                      dgamma, dbeta);
}

CPU_RUN(layernorm_backward, aq_layernorm_backward)

enum aq_status cpu_layernorm_backward(struct aq_device *device, const struct aq_layernorm_backward *args,
                                      struct aq_stream *stream)
{
    struct cpu_device *cpu = cpu_device_of(device);
    const uint64_t groups = pieces_of(args->rows, cpu_group_rows(args->rows, 2 * args->C));
    layernorm_backward_run(cpu, args, groups);
    if (args->dgamma) cpu_reduce(cpu, groups, 2 * args->C, 0, args->C, args->dgamma);
    if (args->dbeta) cpu_reduce(cpu, groups, 2 * args->C, args->C, args->C, args->dbeta);
    const struct aq_dropout_apply round = {.samples = 1,
                                           .sample_elements = args->rows * args->C,
                                           .x = args->dx,
                                           .y = args->rounded,
                                           .y_type = args->rounded_type};
    if (args->rounded) AQ_TRY(cpu_dropout(device, &round, stream));
    if (!args->sums) return AQ_OK;
    const void *summed = args->rounded ? (const void *)args->rounded : args->dx;
    const enum aq_element type = args->rounded ? args->rounded_type : AQ_F32;
    const struct aq_column_sum sum = {
        .rows = args->rows, .C = args->C, .stride = args->C, .x = summed, .type = type, .sums = args->sums};
    return cpu_column_sum(device, &sum, stream);
}

static void column_sum_piece(struct cpu_device *cpu, const struct aq_column_sum *args, uint64_t piece)
{
    const uint64_t group = cpu_group_rows(args->rows, args->C);
    float *sums = cpu_shared(cpu) + piece * args->C;
    memset(sums, 0, args->C * sizeof *sums);
    for (uint64_t r = piece * group; r < end_of(piece, args->rows, group); r++)
        cpu->rows->add(sums, cpu_at(args->x, args->type, r * args->stride), args->type, args->C);
}

CPU_RUN(column_sum, aq_column_sum)

enum aq_status cpu_column_sum(struct aq_device *device, const struct aq_column_sum *args, struct aq_stream *stream)
{
    (void)stream;
    const uint64_t groups = pieces_of(args->rows, cpu_group_rows(args->rows, args->C));
    column_sum_run(cpu_device_of(device), args, groups);
    cpu_reduce(cpu_device_of(device), groups, args->C, 0, args->C, args->sums);
    return AQ_OK;
}

/* x: n values of row r from column c on. */
static void embedding_row(struct cpu_device *cpu, const struct aq_embedding *args, uint64_t r, uint64_t c, uint64_t n,
                          float *x)
{
    const uint64_t C = args->C, place = aq_place_of(args->starts, r, args->T);
    const float *token = args->token_table + (uint64_t)args->tokens[r] * C + c;
    const struct cpu_mask mask = cpu_mask_of(&args->dropout, r / args->T, r % args->T * C + c);
    if (args->add)
        cpu->rows->add(x, token, AQ_F32, n);
    else
        memcpy(x, token, n * sizeof *x);
    if (args->scale != 0.0f) cpu->rows->scale(x, n, args->scale, x, AQ_F32);
    if (args->position_table) cpu->rows->add(x, args->position_table + place * C + c, AQ_F32, n);
    if (mask.key) cpu->rows->mask(x, n, &mask, x, AQ_F32);
}

enum { WIDE = 512 };

static void embedding_piece(struct cpu_device *cpu, const struct aq_embedding *args, uint64_t piece)
{
    const uint64_t C = args->C;
    float wide[WIDE];
    for (uint64_t r = piece * ROWS; r < end_of(piece, args->samples * args->T, ROWS); r++) {
        if (args->x_type == AQ_F32) {
            embedding_row(cpu, args, r, 0, C, (float *)args->x + r * C);
            continue;
        }
        for (uint64_t c = 0, n; c < C; c += n) {
            n = C - c < WIDE ? C - c : WIDE;
            embedding_row(cpu, args, r, c, n, wide);
            cpu->rows->scale(wide, n, 1.0f, cpu_at_w(args->x, args->x_type, r * C + c), args->x_type);
        }
    }
}

CPU_PIECES(embedding, aq_embedding, pieces_of(args->samples * args->T, ROWS))

/* A piece is a few columns of every row: no two pieces add to the same place, and rows come in order. */
static void embedding_backward_piece(struct cpu_device *cpu, const struct aq_embedding_backward *args, uint64_t piece)
{
    const uint64_t C = args->C, first = piece * COLUMNS, n = end_of(piece, C, COLUMNS) - first;
    for (uint64_t r = 0; r < args->samples * args->T; r++) {
        const float *dx = args->dx + r * C + first;
        float masked[COLUMNS];
        const struct cpu_mask mask = cpu_mask_of(&args->dropout, r / args->T, r % args->T * C + first);
        if (mask.key) {
            cpu->rows->mask(dx, n, &mask, masked, AQ_F32);
            dx = masked;
        }
        if (args->scale != 0.0f) {
            cpu->rows->scale(dx, n, args->scale, masked, AQ_F32);
            dx = masked;
        }
        if (args->token_gradient)
            cpu->rows->add(args->token_gradient + (uint64_t)args->tokens[r] * C + first, dx, AQ_F32, n);
        if (args->position_gradient)
            cpu->rows->add(args->position_gradient + aq_place_of(args->starts, r, args->T) * C + first, dx, AQ_F32, n);
    }
}

CPU_PIECES(embedding_backward, aq_embedding_backward, pieces_of(args->C, COLUMNS))

/* `n` values of 16 bits as fp32, in `wide`. */
static void widen(const struct cpu_rows *rows, const void *x, enum aq_element type, uint64_t n, float *wide)
{
    memset(wide, 0, n * sizeof *wide);
    rows->add(wide, x, type, n);
}

/*
 * A few logits at a time, which stay until their gradient is made: of 16 bits, as a GPU does, or with a cap. The
 * gradient may overwrite the logits.
 */
static void cross_entropy_row_pieces(const struct cpu_rows *rows, const struct aq_cross_entropy *args, uint64_t r,
                                     int32_t target, void *gradient)
{
    const enum aq_element type = args->logits_type, to = args->gradient_type;
    const void *logits = cpu_at(args->logits, type, r * args->logits_stride);
    float wide[WIDE], capped[WIDE], at_target, top = -INFINITY, sum = 0.0f;
    for (uint64_t v = 0, n; v < args->V; v += n) {
        n = args->V - v < WIDE ? args->V - v : WIDE;
        widen(rows, cpu_at(logits, type, v), type, n, wide);
        const float most = rows->max(wide, n);
        top = most > top ? most : top;
    }
    widen(rows, cpu_at(logits, type, (uint64_t)target), type, 1, &at_target);
    for (uint64_t v = 0, n; v < args->V; v += n) {
        n = args->V - v < WIDE ? args->V - v : WIDE;
        widen(rows, cpu_at(logits, type, v), type, n, wide);
        sum += rows->exp_sum(wide, n, 1.0f, top);
    }
    args->losses[r] = logf(sum) - (at_target - top);
    if (!gradient) return;
    for (uint64_t v = 0, n; v < args->V; v += n) {
        n = args->V - v < WIDE ? args->V - v : WIDE;
        widen(rows, cpu_at(logits, type, v), type, n, wide);
        memcpy(capped, wide, n * sizeof *capped);
        (void)rows->exp_sum(wide, n, 1.0f, top);
        if (args->cap > 0.0f) rows->cap_slope(capped, n, 1.0f, args->cap, wide);
        rows->scale(wide, n, args->scale / sum, cpu_at_w(gradient, to, v), to);
    }
    float weight = expf(at_target - top) / sum - 1.0f;
    if (args->cap > 0.0f) rows->cap_slope(&at_target, 1, 1.0f, args->cap, &weight);
    cpu_store(gradient, to, (uint64_t)target, weight * args->scale);
    memset(cpu_at_w(gradient, to, args->V), 0, (args->gradient_stride - args->V) * aq_element_bytes(to));
}

static void cross_entropy_row(const struct cpu_rows *rows, const struct aq_cross_entropy *args, uint64_t r)
{
    const int32_t target = args->targets[r];
    void *gradient = args->gradient ? cpu_at_w(args->gradient, args->gradient_type, r * args->gradient_stride) : NULL;
    if (target < 0) {
        args->losses[r] = 0.0f;
        if (gradient) memset(gradient, 0, args->gradient_stride * aq_element_bytes(args->gradient_type));
        return;
    }
    if (args->logits_type != AQ_F32 || args->cap > 0.0f) {
        cross_entropy_row_pieces(rows, args, r, target, gradient);
        return;
    }
    float *logits = (float *)args->logits + r * args->logits_stride;
    const float top = rows->max(logits, args->V), at_target = logits[target] - top;
    const float sum = rows->exp_sum(logits, args->V, 1.0f, top);
    args->losses[r] = logf(sum) - at_target;
    if (!gradient) return;
    const float weight = logits[target] / sum;
    rows->scale(logits, args->V, args->scale / sum, gradient, args->gradient_type);
    cpu_store(gradient, args->gradient_type, (uint64_t)target, (weight - 1.0f) * args->scale);
    memset(cpu_at_w(gradient, args->gradient_type, args->V), 0,
           (args->gradient_stride - args->V) * aq_element_bytes(args->gradient_type));
}

/* Rows of a piece. */
static uint64_t cross_entropy_rows(const struct aq_cross_entropy *args)
{
    return 1 + 8192 / args->V;
}

static void cross_entropy_piece(struct cpu_device *cpu, const struct aq_cross_entropy *args, uint64_t piece)
{
    const uint64_t group = cross_entropy_rows(args);
    for (uint64_t r = piece * group; r < end_of(piece, args->rows, group); r++)
        cross_entropy_row(cpu->rows, args, r);
}

CPU_PIECES(cross_entropy, aq_cross_entropy, pieces_of(args->rows, cross_entropy_rows(args)))

/* As many rows as samples of a micro-batch: no work for a pool. */
enum aq_status cpu_squared_error(struct aq_device *device, const struct aq_squared_error *args,
                                 struct aq_stream *stream)
{
    (void)device;
    (void)stream;
    for (uint64_t r = 0; r < args->rows; r++) {
        const float target = args->targets[r];
        const float off = isnan(target) ? 0.0f : args->outputs[r * args->outputs_stride] - target;
        args->losses[r] = off * off;
        if (!args->gradient) continue;
        void *gradient = cpu_at_w(args->gradient, args->gradient_type, r * args->gradient_stride);
        memset(gradient, 0, args->gradient_stride * aq_element_bytes(args->gradient_type));
        cpu_store(gradient, args->gradient_type, 0, args->scale * (2.0f * off));
    }
    return AQ_OK;
}

enum { FLAT = 16 << 10 };

/* x in 16 bits, or a sum: a few at a time. */
static void dropout_wide(const struct cpu_rows *rows, const struct aq_dropout_apply *args, uint64_t sample,
                         uint64_t first, uint64_t n)
{
    float wide[WIDE];
    for (uint64_t end = first + n; first < end; first += n) {
        n = end - first < WIDE ? end - first : WIDE;
        const uint64_t at = sample * args->sample_elements + first;
        const struct cpu_mask mask = cpu_mask_of(&args->dropout, sample, first);
        void *y = cpu_at_w(args->y, args->y_type, at);
        memset(wide, 0, n * sizeof *wide);
        rows->add(wide, cpu_at(args->x, args->x_type, at), args->x_type, n);
        if (mask.key)
            rows->mask(wide, n, &mask, args->add ? wide : y, args->y_type);
        else if (!args->add)
            rows->scale(wide, n, 1.0f, y, args->y_type);
        if (args->add) rows->add(y, wide, AQ_F32, n);
    }
}

static void dropout_piece(struct cpu_device *cpu, const struct aq_dropout_apply *args, uint64_t piece)
{
    const uint64_t pieces = pieces_of(args->sample_elements, FLAT), sample = piece / pieces;
    const uint64_t first = piece % pieces * FLAT, n = end_of(piece % pieces, args->sample_elements, FLAT) - first;
    const uint64_t at = sample * args->sample_elements + first;
    const struct cpu_mask mask = cpu_mask_of(&args->dropout, sample, first);
    const float *x = args->x;
    if (args->x_type != AQ_F32 || args->add)
        dropout_wide(cpu->rows, args, sample, first, n);
    else if (mask.key)
        cpu->rows->mask(x + at, n, &mask, cpu_at_w(args->y, args->y_type, at), args->y_type);
    else
        cpu->rows->scale(x + at, n, 1.0f, cpu_at_w(args->y, args->y_type, at), args->y_type);
}

CPU_PIECES(dropout, aq_dropout_apply, pieces_of(args->sample_elements, FLAT) * args->samples)

static void fill_normal_piece(struct cpu_device *cpu, const struct aq_fill_normal *args, uint64_t piece)
{
    (void)cpu;
    for (uint64_t i = piece * FLAT; i < end_of(piece, args->count, FLAT); i++)
        args->x[i] = args->std == 0.0f ? args->value : args->std * aq_rng_normal(&args->key, i);
}

CPU_PIECES(fill_normal, aq_fill_normal, pieces_of(args->count, FLAT))
