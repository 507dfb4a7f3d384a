/*
 * optimizer_fused.h -- fused elementwise kernels over the flat buffer of an optimizer: one pass of arithmetic, and up
 * to four sums of it, over pieces that belong to one tensor each; on the CPU's pool, or on a GPU.
 *
 * A call is a struct by value: which kernel (optimizer_fused.def), the arrays and the numbers that it has. Arithmetic
 * is written once (fused_*.inc.h); optimizer_fused_*.c compile it for the CPU's instruction sets and cuda_grad_fused.cu
 * for a GPU, all without contraction, so that an update has the same bits everywhere.
 *
 * Pieces are cut only by their tensor. A sum over one is AQ_FUSED_LANES partial sums in double (float i of the piece is
 * in lane i % AQ_FUSED_LANES), folded by halves: the same on every device, with any number of threads.
 *
 * This header compiles as C and as CUDA C++.
 *
 * Locking: as grad.h.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_FUSED_H
#define AQSGD_GRAD_OPTIMIZER_FUSED_H

#include <stdbool.h>
#include <stdint.h>

#include "aqsgd/base.h"

enum {
    AQ_FLAT_PIECE = 16384, /* floats of one piece of work: 64 KiB of each array */
    AQ_FLAT_SUMS = 4,      /* sums that a piece can leave behind */
    AQ_FUSED_LANES = 256,
    AQ_FUSED_VALUES = 5,      /* floats that belong to a tensor; the first is its weight decay */
    AQ_FUSED_NOISE_BELOW = 4, /* of those: a variance below it is rounding noise (kinds that freeze v) */
    AQ_FUSED_MASK_BYTES = AQ_FLAT_PIECE / 8
};

/* A part of one tensor. */
struct aq_flat_piece {
    uint64_t first;
    uint32_t count;
    uint32_t tensor;
};

enum aq_fused_kind {
    AQ_FUSED_NONE = 0,
#define AQ_FUSED(name, sums, maxima, masks) AQ_FUSED_##name,
#include "optimizer_fused.def"
    AQ_FUSED_KINDS
};

/* The place of a tensor's factors (PowerSGD): P by rows, Q by columns. columns 0: it has none. */
struct aq_fused_matrix {
    uint64_t offset, columns, p_at, q_at;
};

struct aq_fused;
/* The kernel over the piece with that index, on the calling thread: host memory. */
typedef void aq_fused_run(const struct aq_fused *kernel, uint32_t index);

struct aq_fused {
    enum aq_fused_kind kind;
    aq_fused_run *const *runs; /* of the CPU: by kind */
    /* The pieces [piece_first, piece_first + piece_count), as far as they are in [begin, end) of the buffer. */
    uint32_t piece_first, piece_count;
    uint64_t begin, end;
    const struct aq_flat_piece *pieces; /* all there are */
    const float *values;                /* AQ_FUSED_VALUES of each tensor */
    double *sums;                       /* AQ_FLAT_SUMS of each piece; only of whole pieces */
    /* Arrays of the buffer. */
    const float *g;
    float *p, *m, *v, *last;
    const float *frozen; /* the variance whose zeros are masked */
    float *worker_error; /* NULL: none */
    float *server_error; /* of [chunk_first, chunk_first + chunk); NULL: none */
    uint64_t chunk_first, chunk;
    /* Numbers: c1 = 1 - b1, c2 = 1 - b2; k1 and k2 correct a bias. */
    float b1, c1, b2, c2, k1, k2, eps, lr, size;
    float inside; /* lamb, onebit_lamb, slamb: added to the variance, under the root */
    float scale;  /* of gradients */
    /* Work after an update: gradients are cleared, parameters rounded to fp16 (halves) or bf16. */
    float *cleared;
    uint16_t *rounded;
    bool halves;
    /* slamb; c is staleness there. The masked values of a piece start at its sent_at in `sent` and `sent_g`. */
    uint8_t *mask; /* AQ_FUSED_MASK_BYTES a piece, from its first float */
    const uint64_t *sent_at;
    float *sent, *sent_g; /* NULL: nothing is sent; no gradients are */
    struct aq_rng_key key;
    float b3, low; /* low: a second size of a step, which follows a tensor's rate as lr does (qadam, slamb) */
    /* lioncub; c is the update's vector, or its sign */
    float *c;
    uint8_t *codes;
    uint64_t *lanes;
    uint64_t count; /* of codes */
    uint32_t lane_bits, times, middle;
    float norm; /* of powers */
    bool tie;
    const struct aq_flat_piece *rows;
    float *used; /* by row */
    /* PowerSGD */
    const struct aq_fused_matrix *matrices;
    const float *factor_p, *factor_q;
    float *out; /* gradients */
    uint32_t rank;
};

/* Sums of an element of a kernel. */
static inline uint32_t aq_fused_sums(enum aq_fused_kind kind)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, masks)                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return sums;
#include "optimizer_fused.def"
    default:
        return 0;
    }
}

/* Are its pieces parts of tensors? Else they are words of lanes, or rows. */
static inline bool aq_fused_of_tensors(enum aq_fused_kind kind)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, masks)
#define AQ_FUSED_WORDS(name)                                                                                           \
    case AQ_FUSED_##name:                                                                                              \
        return false;
#define AQ_FUSED_ROWS(name)                                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        return false;
#include "optimizer_fused.def"
    default:
        return true;
    }
}

extern aq_fused_run *const aq_fused_runs_plain[AQ_FUSED_KINDS];
#if defined(__x86_64__)
extern aq_fused_run *const aq_fused_runs_avx2[AQ_FUSED_KINDS];
extern aq_fused_run *const aq_fused_runs_avx512[AQ_FUSED_KINDS];
#endif

/* Those of "plain", "avx2" or "avx512" if this machine can run them, else NULL; the best, or what AQ_CPU names. */
aq_fused_run *const *aq_fused_runs_named(const char *name);
aq_fused_run *const *aq_fused_runs_best(void);
/* The piece with that index, on the calling thread: host memory. */
void aq_fused_piece(const struct aq_fused *kernel, uint32_t index);
/* Of all its pieces. */
void aq_fused_pieces(const struct aq_fused *kernel);
/* Replaces each of its arrays by the one that `to` returns. */
void aq_fused_move(struct aq_fused *kernel, void *(*to)(const void *context, const void *pointer), const void *context);

#endif
