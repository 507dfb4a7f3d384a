/*
 * cut_correlation.h -- how far the distances between samples at a cut reveal those between the inputs, and the gradient
 * that reduces it.
 *
 *     a_ij = |x_i - x_j|, b_ij = |z_i - z_j|; A, B: each less its row's and its column's mean, plus the mean of all
 *     V_xz = mean A_ij B_ij, V_x = mean A_ij^2, V_z = mean B_ij^2
 *     dcor = sqrt(V_xz / sqrt(V_x V_z))       [Szekely, Rizzo, Bakirov 2007; NoPeek: Vepakomma et al. 2020]
 *
 * 0 where samples' activations are far and near each other as if they knew nothing of the inputs, 1 where they are a
 * copy. It is of the samples of one micro-batch: with few it is large by itself. It is 0, with a gradient of 0, if all
 * inputs or all activations are the same point.
 *
 * Texts have the distances of one-hot tokens: sqrt(2 * places that differ).
 *
 * Locking: pure functions. Sums are in double, in one order: the same bits always.
 */
#ifndef RUNTIME_CUT_CORRELATION_H
#define RUNTIME_CUT_CORRELATION_H

#include <stdint.h>

#include "aqsgd/base.h"

/* Samples of `each` floats, of which counts[i] are real (counts NULL: all); the rest counts as 0. out: n x n. */
void aq_cut_distances(const float *values, uint32_t n, uint64_t each, const uint64_t *counts, double *out);
/* Samples of T tokens, of which lengths[i] are real (NULL: all); padding equals only padding. */
void aq_cut_distances_text(const int32_t *tokens, uint32_t n, uint32_t T, const uint32_t *lengths, double *out);

/*
 * a: distances of the inputs, n x n; changed. z: n samples of `each` floats. gradient: of weight * dcor by z, of the
 * same shape. scratch: n x (2 n + 1) doubles. Gives dcor. n < 2: 0, and a gradient of zeros.
 */
double aq_cut_correlation(double *a, const float *z, uint32_t n, uint64_t each, const uint64_t *counts, double weight,
                          double *scratch, float *gradient);

#endif
