/*
 * cpu_flat.c -- work on flat ranges: copies, zeroes, scaling, weights of 8 bits, sums of squares. Bound
 * by memory, cut into even pieces.
 */
#include <assert.h>
#include <string.h>

#include "cpu_device.h"

enum { FLAT_BYTES = 1 << 20, FLAT_FLOATS = 64 << 10 };
static_assert(FLAT_FLOATS % AQ_UNPACK_GROUP == 0, "a group is of one piece");

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

static void scale_piece(struct cpu_device *cpu, const struct aq_scale *args, uint64_t piece)
{
    float *x = args->x + piece * FLAT_FLOATS;
    cpu->rows->scale(x, count_of(piece, args->count, FLAT_FLOATS), args->factor, x, AQ_F32);
}

CPU_PIECES(scale, aq_scale, pieces_of(args->count, FLAT_FLOATS))

static void cap_piece(struct cpu_device *cpu, const struct aq_cap *args, uint64_t piece)
{
    const uint64_t n = count_of(piece, args->count, FLAT_FLOATS);
    cpu->rows->cap(args->x + piece * FLAT_FLOATS, n, 1.0f / args->cap, args->cap);
}

CPU_PIECES(cap, aq_cap, pieces_of(args->count, FLAT_FLOATS))

static void unpack_piece(struct cpu_device *cpu, const struct aq_unpack *args, uint64_t piece)
{
    const uint64_t first = piece * FLAT_FLOATS, end = first + count_of(piece, args->count, FLAT_FLOATS);
    float values[AQ_UNPACK_GROUP];
    for (uint64_t at = first; at < end; at += AQ_UNPACK_GROUP) {
        const uint64_t n = count_of(at / AQ_UNPACK_GROUP, args->count, AQ_UNPACK_GROUP);
        for (uint64_t i = 0; i < n; i++)
            values[i] = (float)args->x[at + i];
        cpu->rows->scale(values, n, args->scales[at / AQ_UNPACK_GROUP],
                         (uint8_t *)args->y + at * aq_element_bytes(args->y_type), args->y_type);
    }
}

CPU_PIECES(unpack, aq_unpack, pieces_of(args->count, FLAT_FLOATS))

static float nf4_scale(const struct aq_unpack_nf4 *args, uint64_t group)
{
    if (!args->scale_codes) return args->scales[group];
    const float scale = args->map[args->scale_codes[group]] * args->scales[group / AQ_NF4_SCALES];
    return scale + args->map[AQ_NF4_MAP - 1];
}

static void unpack_nf4_piece(struct cpu_device *cpu, const struct aq_unpack_nf4 *args, uint64_t piece)
{
    const uint64_t first = piece * FLAT_FLOATS, end = first + count_of(piece, args->count, FLAT_FLOATS);
    for (uint64_t at = first; at < end; at += AQ_UNPACK_GROUP) {
        const uint64_t group = at / AQ_UNPACK_GROUP, n = count_of(group, args->count, AQ_UNPACK_GROUP);
        cpu->rows->nf4(args->x + at / 2, n, nf4_scale(args, group),
                       (uint8_t *)args->y + at * aq_element_bytes(args->y_type), args->y_type);
    }
}

CPU_PIECES(unpack_nf4, aq_unpack_nf4, pieces_of(args->count, FLAT_FLOATS))

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
