/* cut_correlation.c -- see the header. */
#include "cut_correlation.h"

#include <math.h>
#include <string.h>

static double square(double x)
{
    return x * x;
}

void aq_cut_distances(const float *values, uint32_t n, uint64_t each, const uint64_t *counts, double *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[(size_t)i * n + i] = 0;
        for (uint32_t j = i + 1; j < n; j++) {
            const uint64_t mine = counts ? counts[i] : each, theirs = counts ? counts[j] : each;
            const uint64_t both = mine < theirs ? mine : theirs, most = mine < theirs ? theirs : mine;
            const float *x = values + i * each, *y = values + j * each, *rest = mine < theirs ? y : x;
            double sum = 0;
            for (uint64_t e = 0; e < both; e++)
                sum += square((double)x[e] - y[e]);
            for (uint64_t e = both; e < most; e++)
                sum += square(rest[e]);
            out[(size_t)i * n + j] = out[(size_t)j * n + i] = sqrt(sum);
        }
    }
}

void aq_cut_distances_text(const int32_t *tokens, uint32_t n, uint32_t T, const uint32_t *lengths, double *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[(size_t)i * n + i] = 0;
        for (uint32_t j = i + 1; j < n; j++) {
            uint32_t differ = 0;
            for (uint32_t t = 0; t < T; t++) {
                const bool mine = !lengths || t < lengths[i], theirs = !lengths || t < lengths[j];
                differ += mine != theirs || (mine && tokens[(size_t)i * T + t] != tokens[(size_t)j * T + t]);
            }
            out[(size_t)i * n + j] = out[(size_t)j * n + i] = sqrt(2.0 * differ);
        }
    }
}

/* Less the means of rows and columns, which are alike, plus that of all; means: n doubles. Gives the mean square. */
static double centre(double *d, uint32_t n, double *means)
{
    double all = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum += d[(size_t)i * n + j];
        means[i] = sum / n;
        all += means[i] / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            double *at = &d[(size_t)i * n + j];
            *at = *at - means[i] - means[j] + all;
            squares += square(*at);
        }
    }
    return squares / square(n);
}

/* Moves sample i away from sample j by factor * (z_i - z_j). */
static void push(const float *z, uint64_t each, const uint64_t *counts, uint32_t i, uint32_t j, double factor,
                 float *gradient)
{
    const uint64_t mine = counts ? counts[i] : each, theirs = counts ? counts[j] : each;
    for (uint64_t e = 0; e < mine; e++) {
        const double other = e < theirs ? z[j * each + e] : 0;
        gradient[i * each + e] = (float)(gradient[i * each + e] + factor * (z[i * each + e] - other));
    }
}

double aq_cut_correlation(double *a, const float *z, uint32_t n, uint64_t each, const uint64_t *counts, double weight,
                          double *scratch, float *gradient)
{
    double *const b = scratch, *const means = scratch + (size_t)n * n, *const lengths = means + n;
    double both = 0;
    memset(gradient, 0, n * each * sizeof *gradient);
    if (n < 2) return 0;
    aq_cut_distances(z, n, each, counts, b);
    memcpy(lengths, b, (size_t)n * n * sizeof *b);
    const double of_x = centre(a, n, means), of_z = centre(b, n, means);
    for (size_t k = 0; k < (size_t)n * n; k++)
        both += a[k] * b[k] / square(n);
    /* V_xz is a mean of products of two such matrices: it is below 0 only by rounding, and 0 if one is all zeros. */
    if (!(both > 0) || !(of_x > 0) || !(of_z > 0)) return 0;
    const double root = sqrt(of_x * of_z), dcor = sqrt(both / root);
    /* d dcor / d b_ij = (A_ij - V_xz / V_z B_ij) / (2 dcor n^2 sqrt(V_x V_z)); b_ij and b_ji are one distance. */
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            const size_t k = (size_t)i * n + j;
            if (!(lengths[k] > 0)) continue;
            const double by_distance = (a[k] - both / of_z * b[k]) / (dcor * square(n) * root);
            push(z, each, counts, i, j, weight * by_distance / lengths[k], gradient);
        }
    }
    return dcor;
}
