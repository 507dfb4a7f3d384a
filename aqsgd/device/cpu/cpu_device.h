/*
 * cpu_device.h -- what the files of the CPU backend share: the device, its pool, its scratch, its matrix products.
 */
#ifndef AQ_CPU_DEVICE_H
#define AQ_CPU_DEVICE_H

#include "cpu_gemm.h"
#include "cpu_pool.h"
#include "cpu_rows.h"
#include "device_ops.h"

enum {
    CPU_WORKER_BYTES = 4 << 20,       /* of each thread: packed panels, sums, rows of attention; see CPU_*_FLOATS   */
    CPU_SHARED_BYTES = 16 << 20,      /* of all: the operand of a product that every piece reads, packed           */
    CPU_GEMM_FLOATS = 512 << 10,      /* 2 MiB of a worker's: packed panels and sums of a matrix product           */
    CPU_ATTENTION_FLOATS = 128 << 10, /* 512 KiB: a block of score rows; twice in backward                         */
};

struct cpu_winograd; /* cpu_winograd.h */

struct cpu_device {
    struct aq_device base;
    struct cpu_pool *pool;
    const struct cpu_rows *rows;
    const struct cpu_gemm *gemm;
    const struct cpu_winograd *winograd; /* NULL: none */
    uint32_t threads;
    bool bf16;        /* products of bf16 are faster than of fp32 */
    uint8_t *scratch; /* CPU_SHARED_BYTES, then CPU_WORKER_BYTES for each thread */
    size_t scratch_bytes;
    char name[128];
};

static inline struct cpu_device *cpu_device_of(struct aq_device *device)
{
    return (struct cpu_device *)device;
}

static inline float *cpu_shared(struct cpu_device *cpu)
{
    return (float *)(void *)cpu->scratch;
}

/* The first CPU_GEMM_FLOATS are for cpu_gemm, the rest for its callers. */
static inline float *cpu_scratch(struct cpu_device *cpu, uint32_t worker)
{
    return (float *)(void *)(cpu->scratch + CPU_SHARED_BYTES + (size_t)worker * CPU_WORKER_BYTES);
}

/* Scores of attention: a row for each query, of so many floats; and the block of them as an operand of products. */
static inline uint64_t cpu_score_stride(uint64_t keys)
{
    return (keys + 15) / 16 * 16;
}

static inline struct cpu_operand cpu_score_block(const float *scores, uint64_t stride, bool transposed)
{
    return (struct cpu_operand){.data = scores, .stride = stride, .type = AQ_F32, .transposed = transposed};
}

/* How many pieces of `piece` elements cpu_pool_run has to run, and where one of them ends. */
static inline uint64_t pieces_of(uint64_t count, uint64_t piece)
{
    return (count + piece - 1) / piece;
}

static inline uint64_t end_of(uint64_t index, uint64_t count, uint64_t piece)
{
    return (index + 1) * piece < count ? (index + 1) * piece : count;
}

/*
 * An operation of math.def whose pieces need only the device and its arguments: NAME_piece(cpu, args, piece). CPU_RUN
 * defines NAME_run, which runs so many pieces in the pool; CPU_PIECES cpu_NAME itself, of `pieces`, an expression of
 * args.
 */
struct cpu_call {
    struct cpu_device *cpu;
    const void *args;
};

#define CPU_RUN(name, type)                                                                                            \
    static void name##_call(uint64_t piece, uint32_t worker, void *context)                                            \
    {                                                                                                                  \
        const struct cpu_call *call = (const struct cpu_call *)context;                                                \
        (void)worker;                                                                                                  \
        name##_piece(call->cpu, (const struct type *)call->args, piece);                                               \
    }                                                                                                                  \
    static void name##_run(struct cpu_device *cpu, const struct type *args, uint64_t pieces)                           \
    {                                                                                                                  \
        struct cpu_call call = {cpu, args};                                                                            \
        cpu_pool_run(cpu->pool, pieces, name##_call, &call);                                                           \
    }

#define CPU_PIECES(name, type, pieces)                                                                                 \
    CPU_RUN(name, type)                                                                                                \
    enum aq_status cpu_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream)             \
    {                                                                                                                  \
        (void)stream;                                                                                                  \
        name##_run(cpu_device_of(device), args, pieces);                                                               \
        return AQ_OK;                                                                                                  \
    }

/*
 * cpu_pieces.c: sums over rows. Rows of a group, at least CPU_GROUP_ROWS, so that a partial row of `width` floats for
 * each group fits the shared scratch, where group i's is at i * width; then, columns offset .. offset + columns - 1 of
 * the groups' partial rows, added in order to sums.
 */
enum { CPU_GROUP_ROWS = 16 };
uint64_t cpu_group_rows(uint64_t rows, uint64_t width);
void cpu_reduce(struct cpu_device *cpu, uint64_t groups, uint64_t width, uint64_t offset, uint64_t columns,
                float *sums);

static inline struct cpu_mask cpu_mask_of(const struct aq_dropout *dropout, uint64_t sample, uint64_t offset)
{
    if (dropout->probability <= 0.0f) return (struct cpu_mask){0};
    return (struct cpu_mask){.key = dropout->keys + sample,
                             .offset = offset,
                             .threshold = (uint32_t)(dropout->probability * 0x1p24f),
                             .factor = 1.0f / (1.0f - dropout->probability)};
}

/*
 * The functions of math.def: cpu_matmul.c, cpu_attention.c, cpu_pieces.c (rows), cpu_heads.c (what decoders add),
 * cpu_flat.c (elements), cpu_image.c.
 */
#define AQ_MATH(name, type, ...)                                                                                       \
    enum aq_status cpu_##name(struct aq_device *device, const struct type *args, struct aq_stream *stream);
#include "aqsgd/math.def"

/* cpu_flat.c */
enum aq_status cpu_copy(struct aq_device *device, void *to, const void *from, size_t bytes, struct aq_stream *stream);
enum aq_status cpu_zero(struct aq_device *device, void *to, size_t bytes, struct aq_stream *stream);
enum aq_status cpu_squares(struct aq_device *device, const float *x, const struct aq_range *spans, uint32_t count,
                           double *sums, struct aq_stream *stream);

#endif
