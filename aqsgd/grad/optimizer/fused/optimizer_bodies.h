/*
 * optimizer_bodies.h -- the arithmetic of the fused kernels, one element at a time: the truth for the CPU and for a
 * GPU.
 *
 * Included by optimizer_fused.inc.h and by cuda_grad_fused.cu, which define AQ_ELEMENT, element_fma (a b + c, rounded
 * once) and element_rounded (to fp16 where it is halves, else to bf16). Every operation is rounded once: both are
 * compiled without contraction, and tests/cuda_ptx checks the output of nvcc. `kind` and `masks` are constants where
 * this is compiled; formulas and their sources are in the kinds' files (optimizer_*.c).
 *
 * In a body: w is the call, values are the tensor's, i is the element (or word), terms are as many as the kernel has
 * sums; masks: does the piece have anything to be masked? in: is it in the mask, as the at-th that is? g: the return
 * value of place.
 */
#ifndef AQSGD_GRAD_OPTIMIZER_BODIES_H
#define AQSGD_GRAD_OPTIMIZER_BODIES_H

#include <math.h>

#include "grad_power.h"
#include "optimizer_fused.h"

#define AQ_UNUSED __attribute__((unused))
#define AQ_BODY(name)                                                                                                  \
    AQ_ELEMENT void body_##name(AQ_UNUSED const struct aq_fused w, AQ_UNUSED const float *values,                      \
                                AQ_UNUSED uint64_t i, AQ_UNUSED bool masks, AQ_UNUSED double *terms)
#define AQ_BODY_PLACE(name) AQ_ELEMENT float place_##name(const struct aq_fused w, uint64_t i, bool in, uint64_t at)
#define AQ_BODY_SPARSE(name)                                                                                           \
    AQ_ELEMENT void body_##name(AQ_UNUSED const struct aq_fused w, AQ_UNUSED const float *values,                      \
                                AQ_UNUSED uint64_t i, AQ_UNUSED bool in, AQ_UNUSED float g, AQ_UNUSED double *terms)
#define AQ_BODY_WORD(name) AQ_ELEMENT void body_##name(const struct aq_fused w, uint64_t i)
#define AQ_FUSED(name, sums, maxima, masks)
#include "optimizer_fused.def"
#undef AQ_BODY
#undef AQ_BODY_PLACE
#undef AQ_BODY_SPARSE
#undef AQ_BODY_WORD

AQ_ELEMENT void element(enum aq_fused_kind kind, bool masks, const struct aq_fused w, const float *values, uint64_t i,
                        double *terms)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, wipes)                                                                            \
    case AQ_FUSED_##name:                                                                                              \
        body_##name(w, values, i, masks, terms);                                                                       \
        return;
#define AQ_FUSED_SPARSE(name, sums)
#define AQ_FUSED_WORDS(name)
#define AQ_FUSED_ROWS(name)
#include "optimizer_fused.def"
    default:
        return;
    }
}

AQ_ELEMENT float element_place(enum aq_fused_kind kind, const struct aq_fused w, uint64_t i, bool in, uint64_t at)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, wipes)
#define AQ_FUSED_SPARSE(name, sums)                                                                                    \
    case AQ_FUSED_##name:                                                                                              \
        return place_##name(w, i, in, at);
#include "optimizer_fused.def"
    default:
        return 0.0f;
    }
}

AQ_ELEMENT void element_sparse(enum aq_fused_kind kind, const struct aq_fused w, const float *values, uint64_t i,
                               bool in, float g, double *terms)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, wipes)
#define AQ_FUSED_SPARSE(name, sums)                                                                                    \
    case AQ_FUSED_##name:                                                                                              \
        body_##name(w, values, i, in, g, terms);                                                                       \
        return;
#include "optimizer_fused.def"
    default:
        return;
    }
}

AQ_ELEMENT void element_word(enum aq_fused_kind kind, const struct aq_fused w, uint64_t i)
{
    switch (kind) {
#define AQ_FUSED(name, sums, maxima, wipes)
#define AQ_FUSED_WORDS(name)                                                                                           \
    case AQ_FUSED_##name:                                                                                              \
        body_##name(w, i);                                                                                             \
        return;
#include "optimizer_fused.def"
    default:
        return;
    }
}

AQ_ELEMENT bool element_masked(const struct aq_fused w, uint32_t piece, uint32_t j)
{
    return w.mask[(uint64_t)AQ_FUSED_MASK_BYTES * piece + j / 8] >> j % 8 & 1;
}

#endif
