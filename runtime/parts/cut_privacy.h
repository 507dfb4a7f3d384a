/*
 * cut_privacy.h -- what leaves a client at a cut: each sample's values clipped to a norm, and Gaussian noise.
 *
 *     v' = v * min(1, clip / |v|) + noise * clip * N(0, 1)          [v: all values of one sample at the cut]
 *
 * Caveats: a sample's norm is that of its whole matrix (rows times columns), because a sample is the unit of
 * protection; a clip of each token or pixel would leave a sample's sensitivity at sqrt(rows) times as much. The
 * gradient that comes back for clipped values is taken as that of the unclipped ones. Noise is from OpenSSL's
 * RAND_bytes by Box-Muller, never from the run's seed: who knows the seed (the server does) would take it away again.
 * So a run with noise is not repeatable. It is drawn in double and rounded to fp32 with the value: what that rounding
 * reveals is not counted (docs/PRIVACY.md).
 *
 * Locking: pure, except the source of random bytes.
 */
#ifndef RUNTIME_CUT_PRIVACY_H
#define RUNTIME_CUT_PRIVACY_H

#include <stdint.h>

#include "aqsgd/base.h"

/* Counts of the samples at a cut, over a run. */
struct aq_cut_privacy {
    uint64_t samples, clipped;
    double norm_max; /* of one before it was clipped */
};

/*
 * values: samples of `each` floats, one behind the other, in host memory; changed in place. clip > 0; noise a multiple
 * of it, 0: none. No clipped sample's norm is above clip; one that is within it keeps its bits. A sample with a value
 * that is not finite becomes NaN whole: nothing of it passes unclipped, and the step is not taken. AQ_IO: no random
 * bytes; then the values must not be sent.
 */
enum aq_status aq_cut_privacy(float *values, uint32_t samples, uint64_t each, double clip, double noise,
                              struct aq_cut_privacy *seen);

#endif
