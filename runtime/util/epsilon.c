/* epsilon.c -- see the header. */
#include "epsilon.h"

#include <math.h>
#include <stdbool.h>

#include "aqsgd/base.h"

enum {
    TERMS = 60,    /* of the continued fraction: from FAR on it has all digits after fewer than 20 */
    HALVINGS = 200 /* more than the bits of a double's range between two figures                  */
};
static const double FAR = 20, SQRT_HALF = 0.70710678118654752440, SQRT_HALF_PI = 1.25331413731550025121;
static const double SQRT_TWO_PI = 2.50662827463100050242;

/* Mills' ratio for x >= 0: P(-x) / p(x), of the normal distribution and its density. */
static double mills(double x)
{
    if (x < FAR) return SQRT_HALF_PI * erfc(x * SQRT_HALF) * exp(x * x / 2);
    double fraction = x;
    for (int k = TERMS; k > 0; k--)
        fraction = x + k / fraction;
    return 1 / fraction;
}

static double density(double x)
{
    return exp(-x * x / 2) / SQRT_TWO_PI;
}

/* exp(epsilon) p(b) = p(a) for a = mu/2 - epsilon/mu, b = -mu/2 - epsilon/mu: no exponential of a large number. */
double aq_epsilon_delta(double mu, double epsilon)
{
    AQ_ASSERT(mu >= 0);
    AQ_ASSERT(epsilon >= 0);
    if (mu == 0) return 0;
    if (isinf(mu)) return 1;
    const double far = epsilon / mu, a = mu / 2 - far, b = mu / 2 + far;
    if (isinf(far)) return 0;
    const double delta = a < 0 ? density(a) * (mills(-a) - mills(b)) : erfc(-a * SQRT_HALF) / 2 - density(a) * mills(b);
    return delta > 0 ? delta : 0;
}

/* Halves [low, high] until no double lies between. is_low: does the point belong to low's part? */
static void narrow(double *low, double *high, bool (*is_low)(double at, double x, double y), double x, double y)
{
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = *low + (*high - *low) / 2;
        if (!(middle > *low && middle < *high)) return;
        if (is_low(middle, x, y))
            *low = middle;
        else
            *high = middle;
    }
}

static bool epsilon_is_low(double epsilon, double mu, double delta)
{
    return aq_epsilon_delta(mu, epsilon) > delta;
}

/* At this epsilon P(a) itself is delta or less: P(-x) < exp(-x^2 / 2). */
static double epsilon_enough(double mu, double delta)
{
    return mu * mu / 2 + mu * sqrt(-2 * log(delta));
}

double aq_epsilon(double mu, double delta)
{
    AQ_ASSERT(delta > 0 && delta < 1);
    if (isinf(mu)) return (double)INFINITY;
    if (aq_epsilon_delta(mu, 0) <= delta) return 0;
    double low = 0, high = epsilon_enough(mu, delta);
    narrow(&low, &high, epsilon_is_low, mu, delta);
    return high;
}

static bool mu_is_low(double mu, double epsilon, double delta)
{
    return aq_epsilon_delta(mu, epsilon) <= delta;
}

double aq_epsilon_mu_max(double epsilon, double delta)
{
    AQ_ASSERT(epsilon > 0);
    AQ_ASSERT(delta > 0 && delta < 1);
    double low = 0, high = 1;
    while (mu_is_low(high, epsilon, delta))
        high *= 2;
    narrow(&low, &high, mu_is_low, epsilon, delta);
    return low;
}

double aq_epsilon_visit(double noise, unsigned messages)
{
    AQ_ASSERT(noise > 0);
    return 4 * (double)messages / (noise * noise);
}
