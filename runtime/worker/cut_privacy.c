/* cut_privacy.c -- see the header. */
#include "cut_privacy.h"

#include <math.h>
#include <openssl/rand.h>

enum { DRAWN = 512 }; /* random words at a time: 4 KiB of stack */

/* Each product's rounding, and the conversion's, could lift a clipped norm above its bound: by 2^-23 of it at most. */
static const double BELOW = 1.0 - 0x1p-22;
static const double TURN = 6.283185307179586476925286766559;

static double norm_of(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

static void clip_sample(float *values, uint64_t count, double clip, struct aq_cut_privacy *seen)
{
    const double norm = norm_of(values, count);
    seen->samples++;
    if (norm <= clip) {
        if (norm > seen->norm_max) seen->norm_max = norm;
        return;
    }
    seen->clipped++;
    if (isfinite(norm) && norm > seen->norm_max) seen->norm_max = norm;
    const double scale = isfinite(norm) ? clip / norm * BELOW : (double)NAN;
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(values[i] * scale);
}

/* In (0, 1], of 53 bits: its logarithm is finite. */
static double unit(uint64_t word)
{
    return (double)((word >> 11) + 1) * 0x1p-53;
}

/* Box-Muller: two words give two independent normals. */
static enum aq_status add_noise(float *values, uint64_t count, double sigma)
{
    uint64_t words[DRAWN];
    for (uint64_t i = 0; i < count; i += DRAWN) {
        const uint64_t here = count - i < DRAWN ? count - i : DRAWN;
        if (RAND_bytes((unsigned char *)words, sizeof words) != 1)
            return aq_fail(AQ_IO, "worker", "no random bytes for the noise at a cut: nothing is sent without");
        for (uint64_t k = 0; k < here; k += 2) {
            const double radius = sigma * sqrt(-2 * log(unit(words[k]))), angle = TURN * unit(words[k + 1]);
            values[i + k] = (float)(values[i + k] + radius * cos(angle));
            if (k + 1 < here) values[i + k + 1] = (float)(values[i + k + 1] + radius * sin(angle));
        }
    }
    return AQ_OK;
}

enum aq_status aq_cut_privacy(float *values, uint32_t samples, uint64_t each, double clip, double noise,
                              struct aq_cut_privacy *seen)
{
    AQ_ASSERT(clip > 0);
    AQ_ASSERT(noise >= 0);
    for (uint32_t s = 0; s < samples; s++)
        clip_sample(values + s * each, each, clip, seen);
    return noise > 0 ? add_noise(values, samples * each, noise * clip) : AQ_OK;
}
