/*
 * rng.c -- Philox4x32-10, the readable truth. Source: Salmon et al., SC 2011, section 3.3 and table 1's constants.
 */
#include "aqsgd/base/rng.h"

#include <math.h>

static uint64_t mix(uint64_t x) /* the finalizer of splitmix64 (Steele, Lea, Flood 2014) */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct aq_rng_key aq_rng_key(uint64_t seed, enum aq_rng_purpose purpose, uint64_t a, uint64_t b)
{
    const uint64_t k = mix(seed + mix((uint64_t)purpose));
    const uint64_t c = mix(k ^ mix(a + mix(b)));
    return (struct aq_rng_key){.key = {(uint32_t)k, (uint32_t)(k >> 32)},
                               .counter = {(uint32_t)c, (uint32_t)(c >> 32)}};
}

void aq_rng_block(const struct aq_rng_key *key, uint64_t index, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = key->counter[0], c3 = key->counter[1];
    uint32_t k0 = key->key[0], k1 = key->key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint32_t aq_rng_u32(const struct aq_rng_key *key, uint64_t element)
{
    uint32_t block[4];
    aq_rng_block(key, element / 4, block);
    return block[element % 4];
}

float aq_rng_uniform(const struct aq_rng_key *key, uint64_t element)
{
    return (float)(aq_rng_u32(key, element) >> 8) * 0x1p-24f;
}

float aq_rng_normal(const struct aq_rng_key *key, uint64_t element)
{
    uint32_t block[4];
    aq_rng_block(key, element / 2, block);
    const uint32_t *pair = block + 2 * (element % 2);
    const double radius = sqrt(-2.0 * log(((double)pair[0] + 0.5) * 0x1p-32));
    return (float)(radius * cos(6.283185307179586476925 * (double)pair[1] * 0x1p-32));
}

uint64_t aq_rng_below(const struct aq_rng_key *key, uint64_t element, uint64_t bound)
{
    uint32_t block[4];
    aq_rng_block(key, element, block);
    const uint64_t word = (uint64_t)block[0] << 32 | block[1];
    __extension__ typedef unsigned __int128 wide; /* ISO C has no name for it; all our compilers have it */
    return (uint64_t)(((wide)word * bound) >> 64);
}
