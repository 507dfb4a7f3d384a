/*
 * codec_rans_slots.h -- how many of the 4096 slots each symbol has (codec_rans.h): one source for C and CUDA.
 *
 * All of it is integer arithmetic: docs/FORMAT.md, "Entropy-coded", Slots.
 */
#ifndef AQSGD_CODEC_RANS_SLOTS_H
#define AQSGD_CODEC_RANS_SLOTS_H

#include "codec_rans.h"

#ifdef __CUDACC__
#define AQ_RANS_FUNCTION static __host__ __device__ inline
#else
#define AQ_RANS_FUNCTION static inline
#endif

enum { AQ_RANS_SIDE = 15 /* values of one code that is no escape */ };

AQ_RANS_FUNCTION uint32_t aq_rans_weight(const uint16_t weights[AQ_RANS_LEVELS], uint32_t code)
{
    return weights[code < AQ_RANS_CODE_ZERO ? AQ_RANS_CODE_ZERO - code : code - AQ_RANS_CODE_ZERO];
}

AQ_RANS_FUNCTION uint64_t aq_rans_weight_sum(const uint16_t weights[AQ_RANS_LEVELS])
{
    uint64_t sum = weights[0];
    for (uint32_t k = 1; k < AQ_RANS_LEVELS; k++)
        sum += 2u * (uint64_t)weights[k];
    return sum;
}

/* Slots of a pair of codes, rounded to nearest; total: the square of the sum of weights. */
AQ_RANS_FUNCTION uint32_t aq_rans_pair_slots(const uint16_t weights[AQ_RANS_LEVELS], uint32_t a, uint32_t b,
                                             uint64_t total, uint32_t slots)
{
    const uint64_t product = (uint64_t)aq_rans_weight(weights, a) * aq_rans_weight(weights, b);
    return (uint32_t)((product * slots + total / 2) / total);
}

/* Weight of a pair that has no slot, else 0. Without a division: a GPU has none of 64 bits. */
AQ_RANS_FUNCTION uint64_t aq_rans_pair_lost(const uint16_t weights[AQ_RANS_LEVELS], uint32_t a, uint32_t b,
                                            uint64_t total, uint32_t slots)
{
    const uint64_t product = (uint64_t)aq_rans_weight(weights, a) * aq_rans_weight(weights, b);
    return product * slots + total / 2 < total ? product : 0;
}

/* Slots that pairs too rare for one would need, for choosing `escapes`: rounded up. */
AQ_RANS_FUNCTION uint32_t aq_rans_pruned(const uint16_t weights[AQ_RANS_LEVELS], uint32_t escapes)
{
    const uint64_t sum = aq_rans_weight_sum(weights), total = sum * sum;
    uint64_t lost = 0;
    for (uint32_t b = 1; b <= AQ_RANS_SIDE && total > 0; b++)
        for (uint32_t a = 1; a <= AQ_RANS_SIDE; a++)
            lost += aq_rans_pair_lost(weights, a, b, total, AQ_RANS_SLOTS - escapes);
    return total == 0 ? 0 : (uint32_t)((lost * AQ_RANS_SLOTS + total - 1) / total);
}

/* Slots of all 256 symbols; escapes: of symbol 0. False: no sender writes these. */
AQ_RANS_FUNCTION bool aq_rans_slots(const uint16_t weights[AQ_RANS_LEVELS], uint32_t escapes, uint16_t slots[256])
{
    const uint64_t sum = aq_rans_weight_sum(weights), total = sum * sum;
    const uint32_t zero = AQ_RANS_CODE_ZERO | AQ_RANS_CODE_ZERO << 4;
    uint32_t used = escapes, largest = 0;
    if (weights[0] == 0 || escapes < 1 || escapes > AQ_RANS_ESCAPES_MAX) return false;
    for (uint32_t symbol = 0; symbol < 256; symbol++) {
        const uint32_t a = symbol & 15, b = symbol >> 4;
        slots[symbol] = 0;
        if (symbol == 0) slots[symbol] = (uint16_t)escapes;
        if (a == 0 || b == 0) continue;
        slots[symbol] = (uint16_t)aq_rans_pair_slots(weights, a, b, total, AQ_RANS_SLOTS - escapes);
        if (symbol == zero && slots[symbol] == 0) slots[symbol] = 1; /* what fills a chunk up */
        if (largest == 0 || slots[symbol] > slots[largest]) largest = symbol;
        used += slots[symbol];
    }
    /* Rounding leaves some over, or lacks some: the most frequent pair bears it. */
    if (used >= AQ_RANS_SLOTS + (uint32_t)slots[largest]) return false;
    slots[largest] = (uint16_t)(slots[largest] + AQ_RANS_SLOTS - used);
    return true;
}

/* An entry of each of the two tables. */
AQ_RANS_FUNCTION uint32_t aq_rans_decode_entry(uint32_t symbol, uint32_t slots, uint32_t slot)
{
    return symbol | slots << 8 | slot << 20;
}

#endif
