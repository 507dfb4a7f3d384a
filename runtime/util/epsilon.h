/*
 * epsilon.h -- the (epsilon, delta) of Gaussian noise: the exact curve, both ways.
 *
 * A release adds noise of standard deviation s to a vector that one sample moves by at most D: it is mu-Gaussian
 * differentially private with mu = D / s (Dong, Roth and Su 2022). Releases compose to mu^2 = the sum of their mu^2,
 * also if each is chosen by what came of those before it, as long as the sum has a bound (Koskela, Tobaben and Honkela
 * 2023). Then (Balle and Wang 2018, theorem 8)
 *
 *     delta(epsilon) = P(mu/2 - epsilon/mu) - exp(epsilon) P(-mu/2 - epsilon/mu)      [P: of the normal distribution]
 *
 * This is the mechanism's own curve, not a bound on it: docs/DECISIONS.md 1010.
 *
 * Locking: pure functions.
 */
#ifndef RUNTIME_EPSILON_H
#define RUNTIME_EPSILON_H

/* mu >= 0, epsilon >= 0. In 0 .. 1; relative error about 1e-13, divided by mu where mu is below 1. mu 0: 0; mu
 * infinite: 1. */
double aq_epsilon_delta(double mu, double epsilon);

/* The least epsilon of that delta (0 < delta < 1), rounded up: never below the truth by more than the curve's own
 * rounding. mu 0: 0; mu infinite: infinity. */
double aq_epsilon(double mu, double delta);

/* The largest mu whose delta at this epsilon (> 0) is at most this one, rounded down. */
double aq_epsilon_mu_max(double epsilon, double delta);

/* What one release adds to mu^2: a sample's clipped vector, replaced by another, moves by 2 clips, and the noise is
 * `noise` clips. messages: how many of the vectors of a micro-batch one sample moves (batch norm: all). noise > 0. */
double aq_epsilon_visit(double noise, unsigned messages);

#endif
