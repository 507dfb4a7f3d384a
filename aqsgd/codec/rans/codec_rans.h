/*
 * codec_rans.h -- interleaved rANS over pairs of small integers: the packing of the entropy-coded codec (codec_ec.c).
 *
 * Source: J. Duda 2013, "Asymmetric numeral systems" (arXiv 1311.2540), range variant; interleaving by lanes that share
 * one stream of words as F. Giesen 2014 (arXiv 1402.3392) has it. The bytes are docs/FORMAT.md, "Entropy-coded".
 *
 * A value is a *code* of four bits: 1..15 is q = code - 8, 0 an escape. Two neighbours are one symbol, low nibble
 * first; the symbol 0 means that the pair is written elsewhere. Symbols go round 32 lanes; a lane's state is in [2^15,
 * 2^31), and moves by words of 16 bits that all lanes take from one stream, lane 0 first. So a warp decodes a chunk as
 * fast as registers of eight lanes do, and the bits are as of one lane after the other.
 *
 * All of it is integer arithmetic: the same on any machine. Encode works from the last symbol to the first and writes
 * words downwards, so that decode goes forward.
 *
 * Locking: none, no state beyond the arguments.
 */
#ifndef AQSGD_CODEC_RANS_H
#define AQSGD_CODEC_RANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AQ_RANS_LANES = 32,
    AQ_RANS_SLOT_BITS = 12,
    AQ_RANS_SLOTS = 1 << AQ_RANS_SLOT_BITS,
    AQ_RANS_STATE_BITS = 15,           /* a state is at least 2^15, and below 2^31 */
    AQ_RANS_GROUP = 2 * AQ_RANS_LANES, /* codes of one round of the lanes */
    AQ_RANS_LEVELS = 8,                /* |q| = 0..7 */
    AQ_RANS_ESCAPES_MAX = 2048,
    AQ_RANS_PAD = 16, /* bytes before the words' lower end that encode may overwrite */
    AQ_RANS_CODE_ZERO = 8
};

/* How often symbols are, of 4096: made by aq_rans_table from a body's head. */
struct aq_rans_table {
    uint32_t encode[256];           /* slots | first slot << 16; 0 slots: such a pair is escaped */
    uint32_t escape;                /* the same of symbol 0, which has none in `encode` */
    uint32_t decode[AQ_RANS_SLOTS]; /* symbol | slots << 8 | (slot - first slot) << 20 */
};

/* weights: of q = +-k for each k (either sign); escapes: slots of symbol 0. False: no sender writes these. */
bool aq_rans_table(const uint16_t weights[AQ_RANS_LEVELS], uint16_t escapes, struct aq_rans_table *out);

/* A symbol that had to be escaped: which pair, and its codes, of which 0 is no value of -7..7. */
struct aq_rans_escape {
    uint32_t pair;
    uint8_t symbol;
};

/* The output places of encode. */
struct aq_rans_coded {
    uint32_t states[AQ_RANS_LANES];
    uint8_t *words;   /* the lowest one */
    uint32_t escapes; /* the last pair's first */
};

/*
 * aq_rans_encode -- groups * 64 codes (those behind the last value are AQ_RANS_CODE_ZERO) to words that end at `end`.
 *
 * floor: words, and AQ_RANS_PAD bytes before them, stay at or above it. escapes: as many as escapes_max fit. False
 * where one of the two is too small. Every table of kernels gives the same words and states.
 */
typedef bool aq_rans_encoder(const struct aq_rans_table *table, const uint8_t *codes, size_t groups, uint8_t *floor,
                             uint8_t *end, struct aq_rans_escape *escapes, uint32_t escapes_max,
                             struct aq_rans_coded *out);

/*
 * aq_rans_decode -- and back: groups * 64 codes, 0 where the pair is escaped.
 *
 * words, word_bytes: of this chunk; readable: bytes behind words that may be read (not used), at least word_bytes.
 * False where the words are too few, too many, or not what an encoder ends with.
 */
typedef bool aq_rans_decoder(const struct aq_rans_table *table, const uint32_t states[AQ_RANS_LANES],
                             const uint8_t *words, size_t word_bytes, size_t readable, size_t groups, uint8_t *codes);

aq_rans_encoder aq_rans_encode_plain;
aq_rans_decoder aq_rans_decode_plain;
#if defined(__x86_64__)
aq_rans_encoder aq_rans_encode_avx2;
aq_rans_decoder aq_rans_decode_avx2;
#endif

/* Are these states that an encoder can end with? */
bool aq_rans_states(const uint32_t states[AQ_RANS_LANES]);

/* One round of the lanes at a time, for the vector forms' ends. */
bool aq_rans_encode_group(const struct aq_rans_table *table, const uint8_t *codes, size_t group, const uint8_t *floor,
                          struct aq_rans_escape *escapes, uint32_t escapes_max, struct aq_rans_coded *io);
bool aq_rans_decode_group(const struct aq_rans_table *table, uint32_t states[AQ_RANS_LANES], const uint8_t **words,
                          const uint8_t *end, uint8_t *codes);

#endif
