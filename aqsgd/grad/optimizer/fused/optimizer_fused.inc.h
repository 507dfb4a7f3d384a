/*
 * optimizer_fused.inc.h -- fused kernels on the CPU: the arithmetic of optimizer_bodies.h over a piece, once for each,
 * so that the compiler makes a loop of vectors of each.
 *
 * Each optimizer_fused_*.c is this file for one instruction set, and defines the name of its table: AQ_FUSED_TABLE.
 */
#include <string.h>

#include "codec_internal.h"

#define AQ_ELEMENT static inline __attribute__((always_inline))
/* No array of a kernel overlaps another. */
#if defined(__clang__)
#define AQ_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define AQ_APART _Pragma("GCC ivdep")
#endif

AQ_ELEMENT float element_fma(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    /*
     * The product is exact in double. If the sum is not, its last bit is set, so that making it a float rounds once
     * (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008).
     */
    const double product = (double)a * (double)b, sum = product + (double)c;
    const double part = sum - product, lost = (product - (sum - part)) + ((double)c - part);
    uint64_t bits;
    double odd;
    memcpy(&bits, &sum, sizeof bits);
    const uint64_t inexact = lost > 0.0 || lost < 0.0, away = (lost > 0.0) == (sum > 0.0), even = inexact & ~bits;
    bits += (even & away) - (even & ~away);
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
#endif
}

AQ_ELEMENT uint16_t element_rounded(float x, bool halves)
{
    return halves ? aq_half_from_float(x) : aq_bfloat_from_float(x);
}

#include "optimizer_bodies.h"

enum { MASK_ROW = 512 };

/* The partial sums of one piece. */
struct lanes {
    double of[AQ_FLAT_SUMS][AQ_FUSED_LANES];
};

AQ_ELEMENT void run_element(enum aq_fused_kind kind, bool masks, const struct aq_fused *kernel, const float *values,
                            uint64_t begin, uint64_t end)
{
    const struct aq_fused w = *kernel; /* a copy, which no store can change */
    AQ_APART
    for (uint64_t i = begin; i < end; i++)
        element(kind, masks, w, values, i, NULL);
}

AQ_ELEMENT void add_term(double *sum, double term, bool most)
{
    *sum = !most ? *sum + term : term > *sum ? term : *sum;
}

AQ_ELEMENT void fold_lanes(struct lanes *lanes, uint32_t sums, uint32_t maxima, double *out)
{
    for (uint32_t k = 0; k < sums; k++) {
        for (uint32_t width = AQ_FUSED_LANES / 2; width > 0; width /= 2) {
            for (uint32_t j = 0; j < width; j++)
                add_term(&lanes->of[k][j], lanes->of[k][j + width], maxima >> k & 1);
        }
        out[k] = lanes->of[k][0];
    }
}

/* Of a whole piece. */
AQ_ELEMENT void run_sums(enum aq_fused_kind kind, bool masks, uint32_t sums, uint32_t maxima,
                         const struct aq_fused *kernel, const float *values, const struct aq_flat_piece *piece,
                         double *out)
{
    const struct aq_fused w = *kernel;
    struct lanes lanes;
    memset(lanes.of, 0, sums * sizeof lanes.of[0]);
    for (uint32_t at = 0; at < piece->count; at += AQ_FUSED_LANES) {
        const uint32_t n = piece->count - at < AQ_FUSED_LANES ? piece->count - at : AQ_FUSED_LANES;
        for (uint32_t j = 0; j < n; j++) {
            double terms[AQ_FLAT_SUMS];
            element(kind, masks, w, values, piece->first + at + j, terms);
            for (uint32_t k = 0; k < sums; k++)
                add_term(&lanes.of[k][j], terms[k], maxima >> k & 1);
        }
    }
    fold_lanes(&lanes, sums, maxima, out);
}

static bool has_zero(const float *v, uint64_t count)
{
    uint32_t zeros = 0;
    for (uint64_t i = 0; i < count; i++)
        zeros += v[i] == 0.0f;
    return zeros > 0;
}

AQ_ELEMENT void run(enum aq_fused_kind kind, bool may_mask, uint32_t sums, uint32_t maxima,
                    const struct aq_fused *kernel, uint32_t index)
{
    const struct aq_flat_piece *piece = &kernel->pieces[index];
    const float *values = kernel->values + (size_t)AQ_FUSED_VALUES * piece->tensor;
    const uint64_t last = piece->first + piece->count;
    const uint64_t begin = piece->first > kernel->begin ? piece->first : kernel->begin;
    const uint64_t end = last < kernel->end ? last : kernel->end;
    double *out = kernel->sums + (size_t)AQ_FLAT_SUMS * index;
    if (begin >= end) return;
    /* As a rule there is no zero, and neither m nor the errors need be written. */
    const bool masks = may_mask && has_zero(kernel->frozen + begin, end - begin);
    if (sums > 0) AQ_ASSERT(begin == piece->first && end == last);
    if (sums > 0 && masks)
        run_sums(kind, true, sums, maxima, kernel, values, piece, out);
    else if (sums > 0)
        run_sums(kind, false, sums, maxima, kernel, values, piece, out);
    else if (masks)
        run_element(kind, true, kernel, values, begin, end);
    else
        run_element(kind, false, kernel, values, begin, end);
}

/* Draws the mask; how many are in it. */
AQ_ELEMENT void run_mask(enum aq_fused_kind kind, const struct aq_fused *kernel, uint32_t index)
{
    const struct aq_fused w = *kernel;
    const struct aq_flat_piece *piece = &w.pieces[index];
    const float *values = w.values + (size_t)AQ_FUSED_VALUES * piece->tensor;
    const float share = values[4];
    uint8_t *mask = w.mask + (size_t)AQ_FUSED_MASK_BYTES * index;
    float uniform[MASK_ROW + AQ_CODEC_PAD / 2];
    uint32_t count = 0;
    run_element(kind, false, kernel, values, piece->first, piece->first + piece->count);
    memset(mask, 0, (piece->count + 31) / 32 * 4);
    for (uint32_t at = 0; at < piece->count; at += MASK_ROW) {
        const uint32_t n = piece->count - at < MASK_ROW ? piece->count - at : MASK_ROW;
        if (share < 1.0f) aq_codec_kernels_best()->noise(&w.key, piece->first + at, n, uniform);
        for (uint32_t i = 0; i < n; i++) {
            if (share < 1.0f && !(uniform[i] < share)) continue;
            mask[(at + i) / 8] = (uint8_t)(mask[(at + i) / 8] | 1u << (at + i) % 8);
            count++;
        }
    }
    w.sums[(size_t)AQ_FLAT_SUMS * index] = (double)count;
}

/* A row at a time: its masked values have the first places, one after another. */
AQ_ELEMENT void run_sparse(enum aq_fused_kind kind, uint32_t sums, const struct aq_fused *kernel, uint32_t index)
{
    const struct aq_fused w = *kernel;
    const struct aq_flat_piece *piece = &w.pieces[index];
    const float *values = w.values + (size_t)AQ_FUSED_VALUES * piece->tensor;
    uint64_t place = w.sent_at ? w.sent_at[index] : 0;
    struct lanes lanes;
    memset(lanes.of, 0, sums * sizeof lanes.of[0]);
    for (uint32_t at = 0; at < piece->count; at += AQ_FUSED_LANES) {
        const uint32_t n = piece->count - at < AQ_FUSED_LANES ? piece->count - at : AQ_FUSED_LANES;
        uint32_t in[AQ_FUSED_LANES];
        float g[AQ_FUSED_LANES];
        for (uint32_t j = 0; j < n; j++) {
            in[j] = element_masked(w, index, at + j);
            g[j] = element_place(kind, w, piece->first + at + j, in[j], place);
            place += in[j];
        }
        for (uint32_t j = 0; j < n && sums > 0; j++) {
            double terms[AQ_FLAT_SUMS];
            element_sparse(kind, w, values, piece->first + at + j, in[j] != 0, g[j], terms);
            for (uint32_t k = 0; k < sums; k++)
                lanes.of[k][j] += terms[k];
        }
    }
    if (sums > 0) fold_lanes(&lanes, sums, 0, w.sums + (size_t)AQ_FLAT_SUMS * index);
}

AQ_ELEMENT void run_words(enum aq_fused_kind kind, const struct aq_fused *kernel, uint32_t index)
{
    const struct aq_fused w = *kernel;
    const uint64_t begin = (uint64_t)AQ_FLAT_PIECE * index;
    const uint64_t end = w.end - begin < AQ_FLAT_PIECE ? w.end : begin + AQ_FLAT_PIECE;
    for (uint64_t i = begin; i < end; i++)
        element_word(kind, w, i);
}

/* P Q' where a matrix has factors, and the error that it leaves: row by row, each factor over the whole of it. */
static void run_rows(const struct aq_fused *kernel, uint32_t index)
{
    const struct aq_fused w = *kernel;
    const struct aq_flat_piece *piece = &w.pieces[index];
    const struct aq_fused_matrix *matrix = &w.matrices[piece->tensor];
    const uint64_t end = piece->first + piece->count;
    for (uint64_t at = piece->first; matrix->columns && at < end;) {
        const uint64_t row = (at - matrix->offset) / matrix->columns, column = (at - matrix->offset) % matrix->columns;
        const uint64_t left = matrix->columns - column, n = left < end - at ? left : end - at;
        const float *p = w.factor_p + matrix->p_at + row * w.rank, *q = w.factor_q + matrix->q_at + column;
        float *out = w.out + at;
        for (uint64_t j = 0; j < n; j++)
            out[j] = p[0] * q[j];
        for (uint32_t k = 1; k < w.rank; k++) {
            for (uint64_t j = 0; j < n; j++)
                out[j] += p[k] * q[k * matrix->columns + j];
        }
        for (uint64_t j = 0; w.worker_error && j < n; j++)
            w.worker_error[at + j] -= out[j];
        at += n;
    }
}

#define RUN(name, call)                                                                                                \
    static void run_##name(const struct aq_fused *kernel, uint32_t index)                                              \
    {                                                                                                                  \
        call;                                                                                                          \
    }
#define AQ_FUSED(name, sums, maxima, masks) RUN(name, run(AQ_FUSED_##name, masks, sums, maxima, kernel, index))
#define AQ_FUSED_MASK(name)                 RUN(name, run_mask(AQ_FUSED_##name, kernel, index))
#define AQ_FUSED_SPARSE(name, sums)         RUN(name, run_sparse(AQ_FUSED_##name, sums, kernel, index))
#define AQ_FUSED_WORDS(name)                RUN(name, run_words(AQ_FUSED_##name, kernel, index))
#define AQ_FUSED_ROWS(name)                 RUN(name, run_rows(kernel, index))
#include "optimizer_fused.def"

aq_fused_run *const AQ_FUSED_TABLE[AQ_FUSED_KINDS] = {
#define AQ_FUSED(name, sums, maxima, masks) [AQ_FUSED_##name] = run_##name,
#include "optimizer_fused.def"
};
