/*
 * grad_power.h -- means of powers, (mean |y|^p)^(1/p), and the geometric mean: the same bits on a CPU and on a GPU.
 *
 * The C library's pow, exp and log have other bits than a GPU's, and not the same on two machines. These use only
 * additions, multiplications, divisions, square roots, frexp and ldexp of normal numbers, each of which is exact or
 * rounded once everywhere. Included by C and by CUDA, which define AQ_ELEMENT and compile without contraction.
 */
#ifndef AQSGD_GRAD_GRAD_POWER_H
#define AQSGD_GRAD_GRAD_POWER_H

#include <math.h>

#include "aqsgd/grad_codec.h"

/*
 * log x of a normal x > 0, within 2 ulp: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(z),
 * z = (m - 1) / (m + 1), |z| < 0.172, by its series up to z^19.
 */
AQ_ELEMENT double element_log(double x)
{
    int e;
    double m = frexp(x, &e), sum = 1.0 / 19.0;
    if (m < 0.70710678118654752) {
        m *= 2.0;
        e--;
    }
    const double z = (m - 1.0) / (m + 1.0), z2 = z * z;
    for (int k = 17; k >= 1; k -= 2)
        sum = sum * z2 + 1.0 / (double)k;
    return (double)e * 0.69314718055994531 + 2.0 * z * sum;
}

/*
 * exp x, within 2 ulp: x = k log 2 + r with |r| <= 0.347, e^r by its series up to r^13. log 2 is in two parts, of which
 * the first has 32 bits, so that k times it is exact. Infinity above 709.7; 0 below -708, where results are not normal.
 */
AQ_ELEMENT double element_exp(double x)
{
    if (x > 709.7) return (double)INFINITY;
    if (!(x >= -708.0)) return 0.0;
    const double k = rint(x * 1.4426950408889634);
    const double r = (x - k * 0.69314718036912382) - k * 1.9082149292705877e-10;
    double sum = 1.0;
    for (int i = 13; i >= 1; i--)
        sum = 1.0 + sum * r / (double)i;
    return ldexp(sum, (int)k);
}

/* x^p for x >= 0 that is 0 or normal, p > 0. */
AQ_ELEMENT double element_power(double x, double p)
{
    if (p == 1.0) return x;
    if (p == 2.0) return x * x;
    if (p == 0.5) return sqrt(x);
    return x == 0.0 ? 0.0 : element_exp(p * element_log(x));
}

/* What of y is added up for a norm: of L0 the logarithm of what is not zero, else the power of the part of `largest`,
 * so that none overflows. */
AQ_ELEMENT double element_norm_term(float y, float norm, float largest)
{
    if (norm != AQ_GRAD_NORM_L0) return element_power(fabs((double)y) / (double)largest, (double)norm);
    return y == 0.0f ? 0.0 : element_log(fabs((double)y));
}

/* The mean, of the sum of `count` terms: of L0 of those that are not zero. */
AQ_ELEMENT double element_norm_mean(double sum, double count, float norm, float largest)
{
    const double mean = sum / count;
    return norm == AQ_GRAD_NORM_L0 ? element_exp(mean) : (double)largest * element_power(mean, 1.0 / (double)norm);
}

#endif
