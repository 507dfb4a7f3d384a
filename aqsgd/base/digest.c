/* digest.c -- XXH3 behind one file, and the 16-bit floats of wire and disk. */
#include "aqsgd/base/digest.h"

#include <string.h>
#include <xxhash.h>

uint64_t aq_digest(const void *bytes, size_t count)
{
    return XXH3_64bits(bytes, count);
}

uint64_t aq_digest_seeded(const void *bytes, size_t count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, count, seed);
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t aq_half_from_float(float value)
{
    const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu)); /* NaN, made quiet */
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);                            /* rounds to 2^16 */
    if (magnitude < 0x38800000u) { /* below 2^-14: a denormal, in units of 2^-24 */
        const float scaled = bits_float(magnitude) + 0.5f; /* the sum's last place is 2^-24: the FPU rounds to even */
        return (uint16_t)(sign | (float_bits(scaled) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

float aq_half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
        return bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | quiet);
    }
    if (magnitude >= 0x400u) return bits_float(sign | ((magnitude << 13) + 0x38000000u));
    return bits_float(sign | float_bits((float)magnitude * 0x1p-24f));
}

uint16_t aq_bfloat_from_float(float value)
{
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float aq_bfloat_to_float(uint16_t bfloat)
{
    return bits_float((uint32_t)bfloat << 16);
}
