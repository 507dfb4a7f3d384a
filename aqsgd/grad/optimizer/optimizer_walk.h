/*
 * optimizer_walk.h -- a walk over the flat buffer of an optimizer: one elementwise piece of arithmetic, and up to four
 * sums of it, over pieces that belong to one tensor each; on the CPU's pool, or as a kernel.
 *
 * A walk is a struct by value: what it does (optimizer_walks.def), the arrays and the numbers that it does it with. Its
 * arithmetic is written once, in optimizer_element.h, which optimizer_walk_*.c compile for the CPU's instruction sets
 * and cuda_grad_walk.cu for a GPU; all without contraction, so that an update has the same bits everywhere.
 *
 * A piece is cut by its tensor alone. A sum over it is AQ_WALK_LANES partial sums in double (float i of the piece is
 * in lane i % AQ_WALK_LANES), folded by halves: the same on every device, with any number of threads.
 *
 * This header compiles as C and as CUDA C++.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_WALK_H
#define AQSGD_GRAD_OPTIMIZER_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_FLAT_PIECE = 16384, /* floats of one piece of work: 64 KiB of each array */
    AQ_FLAT_SUMS = 4,      /* sums that a piece can leave behind */
    AQ_WALK_LANES = 256,
    AQ_WALK_VALUES = 5, /* floats that belong to a tensor; the first is its weight decay */
    AQ_WALK_MASK_BYTES = AQ_FLAT_PIECE / 8
};

/* A part of one tensor. */
struct aq_flat_piece {
    uint64_t first;
    uint32_t count;
    uint32_t tensor;
};

enum aq_walk_kind {
    AQ_WALK_NONE = 0,
#define AQ_WALK(name, sums, maxima, masks) AQ_WALK_##name,
#define AQ_WALK_MASK(name)                 AQ_WALK_##name,
#define AQ_WALK_SPARSE(name, sums)         AQ_WALK_##name,
#define AQ_WALK_WORDS(name)                AQ_WALK_##name,
#define AQ_WALK_ROWS(name)                 AQ_WALK_##name,
#include "optimizer_walks.def"
    AQ_WALK_KINDS
};

/* Where a tensor's factors lie (PowerSGD): P by rows, Q by columns. columns 0: it has none. */
struct aq_walk_matrix {
    uint64_t offset, columns, p_at, q_at;
};

struct aq_walk;
/* The walk over the piece with that index, on the calling thread: host memory. */
typedef void aq_walk_run(const struct aq_walk *walk, uint32_t index);

struct aq_walk {
    enum aq_walk_kind kind;
    aq_walk_run *const *runs; /* of the CPU: by kind */
    /* The pieces [piece_first, piece_first + piece_count), as far as they lie in [begin, end) of the buffer. */
    uint32_t piece_first, piece_count;
    uint64_t begin, end;
    const struct aq_flat_piece *pieces; /* all there are */
    const float *values;                /* AQ_WALK_VALUES of each tensor */
    double *sums;                       /* AQ_FLAT_SUMS of each piece; of whole pieces alone */
    /* Arrays of the buffer. */
    const float *g;
    float *p, *m, *v, *last;
    const float *frozen; /* the variance whose zeros are masked */
    float *worker_error; /* NULL: none */
    float *server_error; /* of [chunk_first, chunk_first + chunk); NULL: none */
    uint64_t chunk_first, chunk;
    /* Numbers: c1 = 1 - b1, c2 = 1 - b2; k1 and k2 correct a bias. */
    float b1, c1, b2, c2, k1, k2, eps, lr, size;
    float scale; /* of gradients */
    /* slamb; c is staleness there. What is masked of a piece begins at sent_at of it in `sent` and `sent_g`. */
    uint8_t *mask; /* AQ_WALK_MASK_BYTES a piece, from its first float */
    const uint64_t *sent_at;
    float *sent, *sent_g; /* NULL: nothing is sent; no gradients are */
    struct aq_rng_key key;
    float b3, low;
    /* lioncub; c is the update's vector, or its sign */
    float *c;
    uint8_t *codes;
    uint64_t *lanes;
    uint64_t count; /* of codes */
    uint32_t lane_bits, times, middle;
    bool tie;
    const struct aq_flat_piece *rows;
    float *used; /* by row */
    /* PowerSGD */
    const struct aq_walk_matrix *matrices;
    const float *factor_p, *factor_q;
    float *out; /* gradients */
    uint32_t rank;
};

/* Sums of an element of a walk. */
static inline uint32_t aq_walk_sums(enum aq_walk_kind kind)
{
    switch (kind) {
#define AQ_WALK(name, sums, maxima, masks)                                                                             \
    case AQ_WALK_##name:                                                                                               \
        return sums;
#define AQ_WALK_MASK(name)         AQ_WALK(name, 1, 0, false)
#define AQ_WALK_SPARSE(name, sums) AQ_WALK(name, sums, 0, false)
#define AQ_WALK_WORDS(name)        AQ_WALK(name, 0, 0, false)
#define AQ_WALK_ROWS(name)         AQ_WALK(name, 0, 0, false)
#include "optimizer_walks.def"
    default:
        return 0;
    }
}

extern aq_walk_run *const aq_walk_runs_plain[AQ_WALK_KINDS];
#if defined(__x86_64__)
extern aq_walk_run *const aq_walk_runs_avx2[AQ_WALK_KINDS];
extern aq_walk_run *const aq_walk_runs_avx512[AQ_WALK_KINDS];
#endif

/* Those of "plain", "avx2" or "avx512" if this machine can run them, else NULL; the best, or what AQ_CPU names. */
aq_walk_run *const *aq_walk_runs_named(const char *name);
aq_walk_run *const *aq_walk_runs_best(void);
/* The piece with that index, on the calling thread: host memory. */
void aq_walk_piece(const struct aq_walk *walk, uint32_t index);
/* Of all its pieces. */
void aq_walk_pieces(const struct aq_walk *walk);
/* Each of its arrays is then where `to` says. */
void aq_walk_move(struct aq_walk *walk, void *(*to)(const void *context, const void *pointer), const void *context);

#endif
