/*
 * cpu_flat.c -- work on flat ranges: copies, zeroes, sums of squares, optimizers. Bound by memory, cut into even
 * pieces.
 */
#include <math.h>
#include <string.h>

#include "cpu_device.h"

enum { FLAT_BYTES = 1 << 20, FLAT_FLOATS = 64 << 10 };

static uint64_t count_of(uint64_t index, uint64_t count, uint64_t piece)
{
    const uint64_t left = count - index * piece;
    return left < piece ? left : piece;
}

struct flat_copy {
    uint8_t *to;
    const uint8_t *from; /* NULL: zeroes */
    uint64_t bytes;
};

static void copy_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_copy *copy = context;
    const uint64_t at = piece * FLAT_BYTES, n = count_of(piece, copy->bytes, FLAT_BYTES);
    if (copy->from)
        memcpy(copy->to + at, copy->from + at, n);
    else
        memset(copy->to + at, 0, n);
}

enum aq_status cpu_copy(struct aq_device *device, void *to, const void *from, size_t bytes, struct aq_stream *stream)
{
    (void)stream;
    struct flat_copy copy = {.to = to, .from = from, .bytes = bytes};
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(bytes, FLAT_BYTES), copy_piece, &copy);
    return AQ_OK;
}

enum aq_status cpu_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream)
{
    (void)stream;
    struct flat_copy copy = {.to = to, .bytes = bytes};
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(bytes, FLAT_BYTES), copy_piece, &copy);
    return AQ_OK;
}

struct flat_adamw {
    const struct cpu_rows *rows;
    const struct aq_adamw *args;
    float correction1, correction2;
};

static void adamw_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_adamw *flat = context;
    flat->rows->adamw(flat->args, piece * FLAT_FLOATS, count_of(piece, flat->args->count, FLAT_FLOATS),
                      flat->correction1, flat->correction2);
}

enum aq_status cpu_adamw(struct aq_device *device, const struct aq_adamw *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct flat_adamw flat = {.rows = cpu->rows,
                              .args = args,
                              .correction1 = (float)(1.0 / (1.0 - pow(args->beta1, (double)args->step))),
                              .correction2 = (float)(1.0 / (1.0 - pow(args->beta2, (double)args->step)))};
    cpu_pool_run(cpu->pool, pieces_of(args->count, FLAT_FLOATS), adamw_piece, &flat);
    return AQ_OK;
}

struct flat_sgd {
    const struct cpu_rows *rows;
    const struct aq_sgd *args;
};

static void sgd_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_sgd *flat = context;
    flat->rows->sgd(flat->args, piece * FLAT_FLOATS, count_of(piece, flat->args->count, FLAT_FLOATS));
}

enum aq_status cpu_sgd(struct aq_device *device, const struct aq_sgd *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct flat_sgd flat = {.rows = cpu->rows, .args = args};
    cpu_pool_run(cpu->pool, pieces_of(args->count, FLAT_FLOATS), sgd_piece, &flat);
    return AQ_OK;
}

static void lion_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct aq_lion *args = context;
    const uint64_t first = piece * FLAT_FLOATS, n = count_of(piece, args->count, FLAT_FLOATS);
    const float b1 = args->beta1, b2 = args->beta2, c1 = 1.0f - b1, c2 = 1.0f - b2;
    const float lr = args->lr, decay = args->weight_decay, scale = args->grad_scale;
    const float *gradients = args->gradients + first;
    float *p = args->parameters + first, *m = args->m + first;
    for (uint64_t i = 0; i < n; i++) {
        const float g = gradients[i] * scale, c = b1 * m[i] + c1 * g;
        const float sign = (float)((c > 0.0f) - (c < 0.0f));
        p[i] -= lr * (sign + decay * p[i]);
        m[i] = b2 * m[i] + c2 * g;
    }
}

enum aq_status cpu_lion(struct aq_device *device, const struct aq_lion *args, struct aq_stream *stream)
{
    (void)stream;
    struct aq_lion own = *args;
    cpu_pool_run(cpu_device_of(device)->pool, pieces_of(args->count, FLAT_FLOATS), lion_piece, &own);
    return AQ_OK;
}

struct flat_lamb {
    const struct aq_lamb_tensor *args;
    uint64_t piece;    /* floats: so many that the pieces' sums fit the shared scratch */
    double *sums;      /* of each piece, the squares of p and of u */
    float coefficient; /* for the second walk */
};

static float lamb_direction(const struct aq_lamb_tensor *args, float m, float v, float p)
{
    return m * args->correction1 / (sqrtf(v * args->correction2) + args->epsilon) + args->weight_decay * p;
}

static void lamb_moments_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_lamb *flat = context;
    const struct aq_lamb_tensor *args = flat->args;
    const uint64_t first = piece * flat->piece, end = first + count_of(piece, args->count, flat->piece);
    const float b1 = args->beta1, b2 = args->beta2, c1 = 1.0f - b1, c2 = 1.0f - b2;
    double p2 = 0.0, u2 = 0.0;
    for (uint64_t i = first; i < end; i++) {
        const float g = args->gradients[i] * args->grad_scale, p = args->parameters[i];
        const float m = args->m[i] = b1 * args->m[i] + c1 * g;
        const float v = args->v[i] = b2 * args->v[i] + c2 * g * g;
        const float u = lamb_direction(args, m, v, p);
        p2 += (double)p * p;
        u2 += (double)u * u;
    }
    flat->sums[2 * piece] = p2;
    flat->sums[2 * piece + 1] = u2;
}

static void lamb_step_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_lamb *flat = context;
    const struct aq_lamb_tensor *args = flat->args;
    const uint64_t first = piece * flat->piece, end = first + count_of(piece, args->count, flat->piece);
    const float size = args->lr * flat->coefficient;
    for (uint64_t i = first; i < end; i++)
        args->parameters[i] -= size * lamb_direction(args, args->m[i], args->v[i], args->parameters[i]);
}

enum aq_status cpu_lamb(struct aq_device *device, const struct aq_lamb_tensor *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct flat_lamb flat = {.args = args, .piece = FLAT_FLOATS, .sums = (double *)(void *)cpu_shared(cpu)};
    while (pieces_of(args->count, flat.piece) > CPU_SHARED_BYTES / (2 * sizeof *flat.sums))
        flat.piece *= 2;
    const uint64_t pieces = pieces_of(args->count, flat.piece);
    cpu_pool_run(cpu->pool, pieces, lamb_moments_piece, &flat);
    double p2 = 0.0, u2 = 0.0;
    for (uint64_t i = 0; i < pieces; i++) {
        p2 += flat.sums[2 * i];
        u2 += flat.sums[2 * i + 1];
    }
    flat.coefficient = 1.0f;
    if (p2 > 0.0 && u2 > 0.0)
        flat.coefficient = fminf(fmaxf((float)(sqrt(p2) / sqrt(u2)), args->coefficient_min), args->coefficient_max);
    cpu_pool_run(cpu->pool, pieces, lamb_step_piece, &flat);
    return AQ_OK;
}

struct flat_scale {
    const struct cpu_rows *rows;
    const struct aq_scale *args;
};

static void scale_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_scale *flat = context;
    float *x = flat->args->x + piece * FLAT_FLOATS;
    flat->rows->scale(x, count_of(piece, flat->args->count, FLAT_FLOATS), flat->args->factor, x, AQ_F32);
}

enum aq_status cpu_scale(struct aq_device *device, const struct aq_scale *args, struct aq_stream *stream)
{
    (void)stream;
    struct cpu_device *cpu = cpu_device_of(device);
    struct flat_scale flat = {.rows = cpu->rows, .args = args};
    cpu_pool_run(cpu->pool, pieces_of(args->count, FLAT_FLOATS), scale_piece, &flat);
    return AQ_OK;
}

struct flat_squares {
    const struct cpu_rows *rows;
    const float *x;
    uint64_t count;
    double *partial;
};

static void squares_piece(uint64_t piece, uint32_t worker, void *context)
{
    (void)worker;
    const struct flat_squares *flat = context;
    flat->partial[piece] = flat->rows->sum2(flat->x + piece * FLAT_FLOATS, count_of(piece, flat->count, FLAT_FLOATS));
}

/* The sums of the pieces are added in order of the pieces; rounds of as many as fit the shared scratch. */
static double squares_of(struct cpu_device *cpu, const float *x, uint64_t count)
{
    double *partial = (double *)(void *)cpu_shared(cpu), total = 0.0;
    const uint64_t round = CPU_SHARED_BYTES / sizeof *partial * FLAT_FLOATS;
    for (uint64_t first = 0; first < count; first += round) {
        const uint64_t n = count - first < round ? count - first : round;
        struct flat_squares flat = {.rows = cpu->rows, .x = x + first, .count = n, .partial = partial};
        cpu_pool_run(cpu->pool, pieces_of(n, FLAT_FLOATS), squares_piece, &flat);
        for (uint64_t i = 0; i < pieces_of(n, FLAT_FLOATS); i++)
            total += partial[i];
    }
    return total;
}

enum aq_status cpu_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                           double *sums, struct aq_stream *stream)
{
    (void)stream;
    for (uint32_t i = 0; i < count; i++)
        sums[i] = squares_of(cpu_device_of(device), x + spans[i].first, spans[i].count);
    return AQ_OK;
}
