/*
 * digest.h -- 64-bit digests of bytes (XXH3 of xxHash, canonical on every machine) and the two 16-bit floats.
 *
 * A digest finds accidents (a lost write, a flipped bit, another version), not attackers: those are kept out by TLS.
 * The float conversions are the definition for wire and disk: round to nearest, ties to even, NaN stays NaN (quiet).
 * Locking: pure functions.
 */
#ifndef AQSGD_BASE_DIGEST_H
#define AQSGD_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* XXH3_64bits of the bytes. */
uint64_t aq_digest(const void *bytes, size_t count);
/* With a seed: chains digests, or keeps kinds apart. */
uint64_t aq_digest_seeded(const void *bytes, size_t count, uint64_t seed);

uint16_t aq_half_from_float(float value);   /* IEEE binary16; beyond 65504 (after rounding) gives infinity */
float aq_half_to_float(uint16_t half);
uint16_t aq_bfloat_from_float(float value); /* bfloat16 */
float aq_bfloat_to_float(uint16_t bfloat);

#ifdef __cplusplus
}
#endif
#endif
