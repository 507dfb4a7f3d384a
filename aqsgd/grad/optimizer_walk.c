/*
 * optimizer_walk.c -- walks on the CPU: the arithmetic of optimizer_element.h over a piece, once for each kind, so that
 * the compiler makes a loop of vectors of each.
 */
#define AQ_ELEMENT static inline __attribute__((always_inline))
#include "optimizer_element.h"

#include <string.h>

/* The partial sums of one piece. */
struct lanes {
    double of[AQ_FLAT_SUMS][AQ_WALK_LANES];
};

AQ_ELEMENT void run_element(enum aq_walk_kind kind, bool masks, const struct aq_walk *walk, const float *values,
                            uint64_t begin, uint64_t end)
{
    const struct aq_walk w = *walk; /* a copy, which no store can change */
    for (uint64_t i = begin; i < end; i++)
        element(kind, masks, w, values, i, NULL);
}

AQ_ELEMENT void add_term(double *sum, double term, bool most)
{
    *sum = !most ? *sum + term : term > *sum ? term : *sum;
}

/* Of a whole piece. */
AQ_ELEMENT void run_sums(enum aq_walk_kind kind, bool masks, uint32_t sums, uint32_t maxima, const struct aq_walk *walk,
                         const float *values, const struct aq_flat_piece *piece, double *out)
{
    const struct aq_walk w = *walk;
    struct lanes lanes;
    memset(lanes.of, 0, sums * sizeof lanes.of[0]);
    for (uint32_t at = 0; at < piece->count; at += AQ_WALK_LANES) {
        const uint32_t n = piece->count - at < AQ_WALK_LANES ? piece->count - at : AQ_WALK_LANES;
        for (uint32_t j = 0; j < n; j++) {
            double terms[AQ_FLAT_SUMS];
            element(kind, masks, w, values, piece->first + at + j, terms);
            for (uint32_t k = 0; k < sums; k++)
                add_term(&lanes.of[k][j], terms[k], maxima >> k & 1);
        }
    }
    for (uint32_t k = 0; k < sums; k++) {
        for (uint32_t width = AQ_WALK_LANES / 2; width > 0; width /= 2) {
            for (uint32_t j = 0; j < width; j++)
                add_term(&lanes.of[k][j], lanes.of[k][j + width], maxima >> k & 1);
        }
        out[k] = lanes.of[k][0];
    }
}

static bool has_zero(const float *v, uint64_t count)
{
    uint32_t zeros = 0;
    for (uint64_t i = 0; i < count; i++)
        zeros += v[i] == 0.0f;
    return zeros > 0;
}

AQ_ELEMENT void run(enum aq_walk_kind kind, bool may_mask, uint32_t sums, uint32_t maxima, const struct aq_walk *walk,
                    uint32_t index)
{
    const struct aq_flat_piece *piece = &walk->pieces[index];
    const float *values = walk->values + (size_t)AQ_WALK_VALUES * piece->tensor;
    const uint64_t last = piece->first + piece->count;
    const uint64_t begin = piece->first > walk->begin ? piece->first : walk->begin;
    const uint64_t end = last < walk->end ? last : walk->end;
    double *out = walk->sums + (size_t)AQ_FLAT_SUMS * index;
    if (begin >= end) return;
    /* As a rule there is no zero, and neither m nor the errors need be written. */
    const bool masks = may_mask && has_zero(walk->frozen + begin, end - begin);
    if (sums > 0) AQ_ASSERT(begin == piece->first && end == last);
    if (sums > 0 && masks)
        run_sums(kind, true, sums, maxima, walk, values, piece, out);
    else if (sums > 0)
        run_sums(kind, false, sums, maxima, walk, values, piece, out);
    else if (masks)
        run_element(kind, true, walk, values, begin, end);
    else
        run_element(kind, false, walk, values, begin, end);
}

#define AQ_WALK(name, sums, maxima, masks)                                                                             \
    static void run_##name(const struct aq_walk *walk, uint32_t index)                                                 \
    {                                                                                                                  \
        run(AQ_WALK_##name, masks, sums, maxima, walk, index);                                                         \
    }
#include "optimizer_walks.def"
#undef AQ_WALK

void aq_walk_piece(const struct aq_walk *walk, uint32_t index)
{
    static void (*const runs[AQ_WALK_KINDS])(const struct aq_walk *walk, uint32_t index) = {
#define AQ_WALK(name, sums, maxima, masks) [AQ_WALK_##name] = run_##name,
#include "optimizer_walks.def"
#undef AQ_WALK
    };
    AQ_ASSERT(walk->kind > AQ_WALK_NONE && walk->kind < AQ_WALK_KINDS);
    runs[walk->kind](walk, index);
}

void aq_walk_pieces(const struct aq_walk *walk)
{
    for (uint32_t i = 0; i < walk->piece_count; i++)
        aq_walk_piece(walk, walk->piece_first + i);
}

void aq_walk_move(struct aq_walk *walk, void *(*to)(const void *context, const void *pointer), const void *context)
{
    walk->pieces = to(context, walk->pieces);
    walk->values = to(context, walk->values);
    walk->sums = to(context, walk->sums);
    walk->g = to(context, walk->g);
    walk->p = to(context, walk->p);
    walk->m = to(context, walk->m);
    walk->v = to(context, walk->v);
    walk->last = to(context, walk->last);
    walk->frozen = to(context, walk->frozen);
    walk->worker_error = to(context, walk->worker_error);
    walk->server_error = to(context, walk->server_error);
}
