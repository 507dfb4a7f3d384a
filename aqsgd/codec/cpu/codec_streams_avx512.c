/*
 * codec_streams_avx512.c -- the kernels that read and write bit streams, and the random numbers, by 16 values.
 *
 * squeeze and its inverse move the b bits of eight codes together inside 64-bit words; VBMI then moves the bytes.
 */
#include "codec_scalar.h"

#if defined(__x86_64__)
#include "codec_avx512.h"

#define VBMI __attribute__((target("avx512vbmi")))

/* ---- bit streams ---- */

/* Eight bytes of b bits to the low 8b bits of their 64: pairs, then fours, then eights. */
ALWAYS __m512i squeeze(__m512i codes, uint32_t bits)
{
    const __m512i by_one = _mm512_set1_epi16((int16_t)(1u | 1u << (bits + 8)));
    const __m512i by_two = _mm512_set1_epi32((int32_t)(1u | 1u << (2 * bits + 16)));
    const __m512i pairs = _mm512_maddubs_epi16(by_one, codes); /* by_one unsigned: 2^7 would be negative as signed */
    const __m512i fours = _mm512_madd_epi16(pairs, by_two);
    const __m512i high = _mm512_srl_epi64(fours, _mm_cvtsi32_si128((int)(32 - 4 * bits)));
    /* Bit by bit: fours below bit 4b, high from there on. Bits above 8b are unused. */
    return _mm512_ternarylogic_epi64(_mm512_set1_epi64((int64_t)((UINT64_C(1) << (4 * bits)) - 1)), fours, high, 0xca);
}

ALWAYS void pack_words(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out)
{
    for (size_t u = 0; u < units; u++) {
        uint64_t word;
        memcpy(&word, codes + 8 * u, sizeof word);
        word = _pext_u64(word, UINT64_C(0x0101010101010101) * ((1u << bits) - 1u));
        for (uint32_t k = 0; k < bits; k++)
            out[u * bits + k] = (uint8_t)(word >> (8 * k));
    }
}

/* f(b, k) for k = 0..63, and those rows for b = 1..8. */
#define FOUR_OF(f, b, k)    f(b, k), f(b, (k) + 1), f(b, (k) + 2), f(b, (k) + 3)
#define SIXTEEN_OF(f, b, k) FOUR_OF(f, b, k), FOUR_OF(f, b, (k) + 4), FOUR_OF(f, b, (k) + 8), FOUR_OF(f, b, (k) + 12)
#define ROW_OF(f, b)                                                                                                   \
    {                                                                                                                  \
        SIXTEEN_OF(f, b, 0), SIXTEEN_OF(f, b, 16), SIXTEEN_OF(f, b, 32), SIXTEEN_OF(f, b, 48)                          \
    }
#define ROWS_OF(f)                                                                                                     \
    {                                                                                                                  \
        ROW_OF(f, 1), ROW_OF(f, 2), ROW_OF(f, 3), ROW_OF(f, 4), ROW_OF(f, 5), ROW_OF(f, 6), ROW_OF(f, 7), ROW_OF(f, 8) \
    }

/* Byte k of the stream's 8*b bytes is byte k%b of word k/b. */
#define PACK_BYTE(b, k) (((k) / (b)*8 + (k) % (b)) & 63) /* beyond 8*b: whatever */
static const uint8_t pack_bytes[8][64] = ROWS_OF(PACK_BYTE);

/* Backwards: the source of byte k of the words, and the bit of its word at which field k starts. */
#define UNPACK_BYTE(b, k) ((k) % 8 < (b) ? (k) / 8 * (b) + (k) % 8 : 0)
static const uint8_t unpack_bytes[8][64] = ROWS_OF(UNPACK_BYTE);
#define UNPACK_SHIFT(b, k) ((k) % 8 * (b))
static const uint8_t unpack_shifts[8][64] = ROWS_OF(UNPACK_SHIFT);

/* The two bytes of 16 that hold code k/4, at the bottom of the k/4-th lane; 0x80 gives zero. */
#define FIELD_BYTE(b, k) ((k) % 4 < 2 && (k) / 4 * (b) / 8 + (k) % 4 < 16 ? (k) / 4 * (b) / 8 + (k) % 4 : 0x80)
static const uint8_t field_bytes[8][64] = ROWS_OF(FIELD_BYTE);

/* Eight units at once, each a 64-bit word that is stored over the unused bytes of the one before. */
void aq_avx512_pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out)
{
    size_t u = 0;
    if (bits == 8) {
        memcpy(out, codes, 8 * units);
        return;
    }
    for (; u + 8 < units && (units - u - 8) * bits >= 8; u += 8) {
        uint64_t words[8];
        _mm512_storeu_si512(words, squeeze(_mm512_loadu_si512(codes + 8 * u), bits));
        for (uint32_t k = 0; k < 8; k++)
            memcpy(out + (u + k) * bits, &words[k], sizeof words[k]);
    }
    pack_words(codes + 8 * u, units - u, bits, out + u * bits);
}

void aq_avx512_unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes)
{
    const uint64_t spread = UINT64_C(0x0101010101010101) * ((1u << bits) - 1u);
    if (bits == 8) {
        memcpy(codes, in, 8 * units);
        return;
    }
    for (size_t u = 0; u < units; u++) {
        uint64_t word = 0;
        if ((units - u) * bits >= 8) {
            memcpy(&word, in + u * bits, sizeof word);
        } else {
            for (uint32_t k = 0; k < bits; k++)
                word |= (uint64_t)in[u * bits + k] << (8 * k);
        }
        word = _pdep_u64(word, spread);
        memcpy(codes + 8 * u, &word, sizeof word);
    }
}

VBMI void aq_vbmi_pack(const uint8_t *codes, size_t units, uint32_t bits, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, codes, 8 * units);
        return;
    }
    const __m512i index = _mm512_loadu_si512(pack_bytes[bits - 1]);
    size_t u = 0;
    for (; (units - u) * bits >= 64; u += 8) {
        const __m512i words = squeeze(_mm512_loadu_si512(codes + 8 * u), bits);
        _mm512_storeu_si512(out + u * bits, _mm512_permutexvar_epi8(index, words));
    }
    for (; u < units; u += 8) {
        const size_t left = units - u < 8 ? units - u : 8;
        const __mmask64 in_mask = left == 8 ? ~UINT64_C(0) : (UINT64_C(1) << (8 * left)) - 1;
        const __m512i words = squeeze(_mm512_maskz_loadu_epi8(in_mask, codes + 8 * u), bits);
        _mm512_mask_storeu_epi8(out + u * bits, (UINT64_C(1) << (left * bits)) - 1,
                                _mm512_permutexvar_epi8(index, words));
    }
}

VBMI void aq_vbmi_unpack(const uint8_t *in, size_t units, uint32_t bits, uint8_t *codes)
{
    if (bits == 8) {
        memcpy(codes, in, 8 * units);
        return;
    }
    const __m512i index = _mm512_loadu_si512(unpack_bytes[bits - 1]);
    const __m512i shift = _mm512_loadu_si512(unpack_shifts[bits - 1]);
    const __m512i mask = _mm512_set1_epi8((char)((1u << bits) - 1u));
    for (size_t u = 0; u < units; u += 8) {
        const size_t left = (units - u) * bits;
        const __m512i words = left >= 64 ? _mm512_loadu_si512(in + u * bits)
                                         : _mm512_maskz_loadu_epi8((UINT64_C(1) << left) - 1, in + u * bits);
        const __m512i fields = _mm512_multishift_epi64_epi8(shift, _mm512_permutexvar_epi8(index, words));
        _mm512_storeu_si512(codes + 8 * u, _mm512_and_si512(fields, mask));
    }
}

/* ---- quantizing straight into the stream ---- */

/* The place of the b bits of 16 codes. Up to four bits: eight codes in one word of four bytes, a broadcast and a
 * shift each. Eight: bytes. Between: in 16 bytes, of which each code has two, and a shift. */
struct fields {
    __m512i bytes, shifts, mask;
};

ALWAYS struct fields fields_of(uint32_t bits)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int32_t)bits));
    const __m512i in_word = _mm512_sub_epi32(at, _mm512_maskz_set1_epi32(0xff00, (int32_t)(8 * bits)));
    return (struct fields){_mm512_loadu_si512(field_bytes[bits - 1]),
                           bits <= 4 ? in_word : _mm512_and_si512(at, _mm512_set1_epi32(7)),
                           _mm512_set1_epi32((1 << bits) - 1)};
}

/* The deq of 16 codes at `in`. The permutations look at the low four or five bits of an index and no further. */
ALWAYS __m512 read_16(const uint8_t *in, uint32_t bits, const struct fields *fields, const struct table *table,
                      enum size_class size)
{
    if (size == FOUR_BITS) {
        const __m512i low = _mm512_broadcastd_epi32(_mm_loadu_si32(in));
        const __m512i words = _mm512_mask_broadcastd_epi32(low, 0xff00, _mm_loadu_si32(in + bits));
        return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, fields->shifts), table->low);
    }
    const __m128i some = _mm_loadu_si128((const __m128i *)(const void *)in);
    __m512i code;
    if (size == EIGHT_BITS)
        code = _mm512_cvtepu8_epi32(some);
    else
        code = _mm512_srlv_epi32(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(some), fields->bytes), fields->shifts);
    if (size == FIVE_BITS) return _mm512_permutex2var_ps(table->low, code, table->high);
    if (size == MORE_BITS) code = _mm512_and_si512(code, fields->mask);
    return _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(code), table->center), table->unit);
}

ALWAYS size_t apply_stream_form(const uint8_t *in, size_t bytes, size_t n, const struct aq_quant *quant, const void *m,
                                float *hat, void *m_out, uint32_t *peak, enum aq_row_kind kind, enum size_class size)
{
    const uint32_t bits = quant->bits;
    const struct fields fields = fields_of(bits);
    const struct table table = table_of(quant);
    const __m512i absolute = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = _mm512_setzero_si512();
    size_t i = 0, at = 0;
    for (; i + 64 <= n && at + 6 * bits + 16 <= bytes; i += 64, at += 8 * bits) {
        __m512 y[4]; /* side by side: one after the other their operations would wait for each other */
        for (size_t k = 0; k < 4; k++)
            y[k] = read_16(in + at + 2 * bits * k, bits, &fields, &table, size);
        for (size_t k = 0; k < 4; k++)
            y[k] = _mm512_add_ps(load_row(m, kind, i + 16 * k, 0xffff), y[k]);
        for (size_t k = 0; k < 4; k++)
            largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(y[k]), absolute));
        for (size_t k = 0; k < 4; k++) {
            if (hat != NULL) _mm512_storeu_ps(hat + i + 16 * k, y[k]);
            store_row(m_out, kind, i + 16 * k, 0xffff, y[k]);
        }
    }
    const uint32_t seen = _mm512_reduce_max_epu32(largest);
    *peak = seen > *peak ? seen : *peak;
    return i;
}

ALWAYS size_t apply_stream_kind(const uint8_t *in, size_t bytes, size_t n, const struct aq_quant *quant, const void *m,
                                float *hat, void *m_out, uint32_t *peak, enum aq_row_kind kind)
{
    if (quant->bits <= 4) {
        if (hat == NULL) return apply_stream_form(in, bytes, n, quant, m, NULL, m_out, peak, kind, FOUR_BITS);
        return apply_stream_form(in, bytes, n, quant, m, hat, m_out, peak, kind, FOUR_BITS);
    }
    if (quant->bits == 5) return apply_stream_form(in, bytes, n, quant, m, hat, m_out, peak, kind, FIVE_BITS);
    if (quant->bits == 8) return apply_stream_form(in, bytes, n, quant, m, hat, m_out, peak, kind, EIGHT_BITS);
    return apply_stream_form(in, bytes, n, quant, m, hat, m_out, peak, kind, MORE_BITS);
}

size_t aq_avx512_apply_stream(const uint8_t *in, size_t bytes, size_t n, const struct aq_quant *quant, const void *m,
                              float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind,
                              uint32_t *peak)
{
    if (m_kind != out_kind) return 0;
    if (m_kind == AQ_ROW_FP16) return apply_stream_kind(in, bytes, n, quant, m, hat, m_out, peak, AQ_ROW_FP16);
    if (m_kind == AQ_ROW_FP32) return apply_stream_kind(in, bytes, n, quant, m, hat, m_out, peak, AQ_ROW_FP32);
    return 0;
}

/* Byte 0 of each of the 32 lanes of two registers, twice. */
#define LANE_BYTE(b, k) ((k) % 32 * 4)
static const uint8_t lane_bytes[64] = ROW_OF(LANE_BYTE, 0);

/* The low bytes of 4 x 16 sums, in order. */
VBMI ALWAYS __m512i low_bytes(__m512 s0, __m512 s1, __m512 s2, __m512 s3, __m512i pick)
{
    const __m512i low = _mm512_permutex2var_epi8(_mm512_castps_si512(s0), pick, _mm512_castps_si512(s1));
    const __m512i high = _mm512_permutex2var_epi8(_mm512_castps_si512(s2), pick, _mm512_castps_si512(s3));
    return _mm512_mask_blend_epi64(0xf0, low, high);
}

/* Compile-time choices of a step: every combination that is used becomes its own loop. */
struct step_form {
    enum aq_row_kind kind; /* of m and m_out */
    bool few;              /* at most four bits: levels from a table */
    bool measured;         /* the squared error is wanted */
};

VBMI ALWAYS size_t step_stream_form(const float *d, size_t n, const struct aq_quant *quant, uint8_t *out, const void *m,
                                    float *hat, void *m_out, double *error2, uint32_t *peak, struct step_form form,
                                    const void *ahead_m)
{
    const enum aq_row_kind kind = form.kind;
    const bool few = form.few, measured = form.measured, watched = kind != AQ_ROW_FP32;
    const uint32_t bits = quant->bits;
    const size_t lines = kind == AQ_ROW_FP32 ? 4 : 2; /* of 64 values of m */
    const struct grid grid = grid_of(quant);
    const __mmask64 used = bits == 8 ? ~UINT64_C(0) : (UINT64_C(1) << (8 * bits)) - 1;
    struct step_state s = {no_sum(), _mm512_setzero_ps()};
    const __m512i pick = _mm512_loadu_si512(lane_bytes), index = _mm512_loadu_si512(pack_bytes[bits - 1]);
    size_t i = 0;
    for (; i + 64 <= n; i += 64, out += 8 * bits) {
        for (size_t line = 0; line < lines; line++)
            _mm_prefetch((const char *)ahead_m + (i * lines + 64 * line), _MM_HINT_T0);
        __m512 sums[4];
        for (size_t k = 0; k < 4; k++)
            sums[k] = step_16(d, m, hat, m_out, kind, kind, &grid, RISE, few, i + 16 * k, 0xffff, &s, k % 2 == 1,
                              measured, watched);
        __m512i codes = low_bytes(sums[0], sums[1], sums[2], sums[3], pick);
        if (bits < 8) codes = _mm512_permutexvar_epi8(index, squeeze(codes, bits));
        if (bits == 8)
            _mm512_storeu_si512(out, codes);
        else if (bits == 4)
            _mm256_storeu_si256((__m256i *)(void *)out, _mm512_castsi512_si256(codes));
        else if (bits == 2)
            _mm_storeu_si128((__m128i *)(void *)out, _mm512_castsi512_si128(codes));
        else
            _mm512_mask_storeu_epi8(out, used, codes);
    }
    const uint32_t seen = peak_of(&s);
    *peak = seen > *peak ? seen : *peak;
    if (error2 != NULL) add_lanes(error2, s.error);
    return i;
}

VBMI ALWAYS size_t step_stream_kind(const float *d, size_t n, const struct aq_quant *quant, uint8_t *out, const void *m,
                                    float *hat, void *m_out, double *error2, uint32_t *peak, enum aq_row_kind kind,
                                    const void *ahead_m)
{
    const bool few = quant->bits <= 4, measured = error2 != NULL;
    if (hat != NULL || (measured && !few))
        return step_stream_form(d, n, quant, out, m, hat, m_out, error2, peak, (struct step_form){kind, false, true},
                                ahead_m);
    if (measured)
        return step_stream_form(d, n, quant, out, m, NULL, m_out, error2, peak, (struct step_form){kind, true, true},
                                ahead_m);
    if (few)
        return step_stream_form(d, n, quant, out, m, NULL, m_out, NULL, peak, (struct step_form){kind, true, false},
                                ahead_m);
    return step_stream_form(d, n, quant, out, m, NULL, m_out, NULL, peak, (struct step_form){kind, false, false},
                            ahead_m);
}

VBMI size_t aq_vbmi_step_stream(const float *d, size_t n, const struct aq_quant *quant, uint8_t *out, const void *m,
                                float *hat, void *m_out, enum aq_row_kind m_kind, enum aq_row_kind out_kind,
                                double *error2, uint32_t *peak, const void *ahead_m)
{
    if (m_kind != out_kind || !quant->rise) return 0;
    if (m_kind == AQ_ROW_FP16)
        return step_stream_kind(d, n, quant, out, m, hat, m_out, error2, peak, AQ_ROW_FP16, ahead_m);
    /* A level below 2^100 is less than half a last place of the largest fp32: no sum of it and a finite m overflows. */
    if (m_kind == AQ_ROW_FP32 && quant->unit < 0x1p90f)
        return step_stream_kind(d, n, quant, out, m, hat, m_out, error2, peak, AQ_ROW_FP32, ahead_m);
    return 0;
}

/* ---- random numbers ---- */

/* The low and high halves of 16 products of 32 bits. */
ALWAYS void multiply(__m512i x, __m512i y, __m512i *low, __m512i *high)
{
    const __m512i even = _mm512_mul_epu32(x, y);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), y);
    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

/* Philox4x32-10 of 16 blocks at once (aq_rng_block), from a block index whose 16 successors share the upper word. */
ALWAYS void philox_16(const struct aq_rng_key *key, uint64_t block, __m512i out[4])
{
    const __m512i m0 = _mm512_set1_epi32((int32_t)0xD2511F53u), m1 = _mm512_set1_epi32((int32_t)0xCD9E8D57u);
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i c0 = _mm512_add_epi32(_mm512_set1_epi32((int32_t)(uint32_t)block), count);
    __m512i c1 = _mm512_set1_epi32((int32_t)(uint32_t)(block >> 32));
    __m512i c2 = _mm512_set1_epi32((int32_t)key->counter[0]), c3 = _mm512_set1_epi32((int32_t)key->counter[1]);
    uint32_t k0 = key->key[0], k1 = key->key[1];
    for (int round = 0; round < 10; round++) {
        __m512i low0, high0, low1, high1;
        multiply(c0, m0, &low0, &high0);
        multiply(c2, m1, &low1, &high1);
        c0 = _mm512_xor_si512(_mm512_xor_si512(high1, c1), _mm512_set1_epi32((int32_t)k0));
        c2 = _mm512_xor_si512(_mm512_xor_si512(high0, c3), _mm512_set1_epi32((int32_t)k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void aq_avx512_noise(const struct aq_rng_key *key, uint64_t first, size_t n, float *out)
{
    const __m512 scale = _mm512_set1_ps(0x1p-24f);
    const __m512i place = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    size_t i = 0;
    while (i < n) {
        const uint64_t at = first + i;
        if (at % 4 != 0 || n - i < 64 || (uint32_t)(at / 4) > UINT32_MAX - 16) {
            scalar_noise(key, at, 1, out + i++);
            continue;
        }
        __m512i words[4];
        philox_16(key, at / 4, words);
        for (int w = 0; w < 4; w++) {
            const __m512 u = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(words[w], 8)), scale);
            _mm512_i32scatter_ps(out + i + w, place, u, 4);
        }
        i += 64;
    }
}

/* ---- entropy coded ---- */

/* The level of each code 0..15; of 0, which is beyond the table, 0. */
ALWAYS __m512 ec_table(const struct aq_ec_grid *grid)
{
    const __m512i size = _mm512_setr_epi32(0, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512 level = _mm512_permutexvar_ps(size, _mm512_castps256_ps512(_mm256_loadu_ps(grid->levels)));
    const __m512i signs = _mm512_maskz_set1_epi32(0x00fe, (int32_t)0x80000000u);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(level), signs));
}

bool aq_avx512_ec_quantize(const float *d, size_t n, const struct aq_ec_grid *grid, uint8_t *codes, float *levels,
                           double *error2)
{
    const __m512 table = ec_table(grid), inverse = _mm512_set1_ps(grid->inverse);
    const __m512i zero_code = _mm512_set1_epi32(AQ_RANS_CODE_ZERO);
    __m512 errors[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __mmask16 outside = 0;
    float lanes[AQ_LANES];
    size_t i = 0;
    for (; i + AQ_LANES <= n; i += AQ_LANES)
        for (int r = 0; r < 2; r++) {
            const __m512 x = _mm512_loadu_ps(d + i + 16 * r);
            const __m512 t = _mm512_add_ps(_mm512_mul_ps(_mm512_abs_ps(x), inverse), _mm512_set1_ps(0.5f));
            const __mmask16 inside = _mm512_cmp_ps_mask(t, _mm512_set1_ps((float)AQ_RANS_LEVELS), _CMP_LT_OQ);
            const __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
            const __m512i size = _mm512_maskz_cvttps_epi32(inside, t);
            const __m512i above = _mm512_maskz_add_epi32(inside, zero_code, size);
            const __m512i code = _mm512_mask_sub_epi32(above, below & inside, zero_code, size);
            const __m512 level = _mm512_permutexvar_ps(code, table), e = _mm512_sub_ps(x, level);
            _mm512_storeu_ps(levels + i + 16 * r, level);
            errors[r] = _mm512_add_ps(errors[r], _mm512_mul_ps(e, e));
            outside = (__mmask16)(outside | ~inside);
            _mm_storeu_si128((__m128i *)(void *)(codes + i + 16 * r), _mm512_cvtepi32_epi8(code));
        }
    _mm512_storeu_ps(lanes, errors[0]);
    _mm512_storeu_ps(lanes + 16, errors[1]);
    for (int l = 0; l < AQ_LANES; l++)
        error2[l] += (double)lanes[l];
    const bool rest = scalar_ec_quantize(d + i, n - i, grid, codes + i, levels + i, error2);
    return rest || outside != 0;
}

bool aq_avx512_ec_levels(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, float *levels)
{
    const __m512 table = ec_table(grid);
    __mmask16 zeros = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + i)));
        zeros = (__mmask16)(zeros | _mm512_testn_epi32_mask(code, code));
        _mm512_storeu_ps(levels + i, _mm512_permutexvar_ps(code, table));
    }
    const bool rest = scalar_ec_levels(codes + i, n - i, grid, levels + i);
    return rest || zeros != 0;
}

ALWAYS __m512i mixed(__m512i x)
{
    const __m512i first = _mm512_set1_epi32(0x21f0aaad), second = _mm512_set1_epi32((int32_t)0xd35a2d97u);
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 16)), first);
    x = _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, 15)), second);
    return _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
}

/* w of 16 values: twice a byte is put below 2^23's last place, and 2^23 + 255 is subtracted, which is exact. */
ALWAYS __m512 noise_16(__m512i doubled, __m512 unit)
{
    const __m512i magic = _mm512_set1_epi32(0x4b000000);
    const __m512i bits = _mm512_ternarylogic_epi32(doubled, _mm512_set1_epi32(510), magic, 0xea); /* a & b | c */
    return _mm512_mul_ps(_mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(8388863.0f)), unit);
}

/* The state of a row's hash: its next 16 words. */
ALWAYS __m512i dither_begin(struct aq_ec_dither_row row)
{
    return _mm512_add_epi32(_mm512_set1_epi32((int32_t)row.begin),
                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

/* w of 64 columns, 16 by 16. */
ALWAYS void noise_64(__m512i *at, __m512i mask, __m512 unit, __m512 out[4])
{
    const __m512i words = _mm512_xor_si512(mixed(*at), mask);
    *at = _mm512_add_epi32(*at, _mm512_set1_epi32(16));
    out[0] = noise_16(_mm512_slli_epi32(words, 1), unit);
    out[1] = noise_16(_mm512_srli_epi32(words, 7), unit);
    out[2] = noise_16(_mm512_srli_epi32(words, 15), unit);
    out[3] = noise_16(_mm512_srli_epi32(words, 23), unit);
}

void aq_avx512_ec_dither(struct aq_ec_dither_row row, size_t n, float unit, float *values)
{
    const __m512 scale = _mm512_set1_ps(unit);
    const __m512i mask = _mm512_set1_epi32((int32_t)row.mask);
    __m512i at = dither_begin(row);
    size_t i = 0;
    for (; n - i >= 64; i += 64) {
        __m512 noise[4];
        noise_64(&at, mask, scale, noise);
        for (int q = 0; q < 4; q++)
            _mm512_storeu_ps(values + i + 16 * q, _mm512_add_ps(_mm512_loadu_ps(values + i + 16 * q), noise[q]));
    }
    for (; i < n; i++)
        values[i] += (float)(2 * (int32_t)aq_ec_dither_byte(row, (uint32_t)i) - 255) * unit;
}

/* Is there a code of 0? */
ALWAYS bool any_zero(const uint8_t *codes, size_t n)
{
    __mmask64 zeros = 0;
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 mask = n - i >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - i)) - 1;
        const __m512i code = _mm512_maskz_loadu_epi8(mask, codes + i);
        zeros |= _mm512_mask_testn_epi8_mask(mask, code, code);
    }
    return zeros != 0;
}

/* Of 16 values x^ = m + ((level - w) + common), as update and ec_dither have it. */
ALWAYS void ec_apply_16(const uint8_t *codes, __m512 table, __m512 noise, const float *common, const void *m,
                        enum aq_row_kind m_kind, float *hat, void *m_out, enum aq_row_kind out_kind, size_t i,
                        __mmask16 mask, __m512i *peak)
{
    const __m128i bytes = mask == 0xffff ? _mm_loadu_si128((const __m128i *)(const void *)(codes + i))
                                         : _mm_maskz_loadu_epi8(mask, codes + i);
    __m512 level = _mm512_add_ps(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(bytes), table), noise);
    if (common != NULL) level = _mm512_add_ps(level, _mm512_maskz_loadu_ps(mask, common + i));
    const __m512 y = m_kind == AQ_ROW_NONE ? level : _mm512_add_ps(load_row(m, m_kind, i, mask), level);
    *peak = _mm512_mask_max_epu32(*peak, mask, *peak, _mm512_castps_si512(magnitude(y)));
    if (hat != NULL) store_row(hat, AQ_ROW_FP32, i, mask, y);
    store_row(m_out, out_kind, i, mask, y);
}

ALWAYS uint32_t ec_apply_kind(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid,
                              struct aq_ec_dither_row row, const float *common, const void *m,
                              enum aq_row_kind m_kind, float *hat, void *m_out, enum aq_row_kind out_kind)
{
    const __m512 table = ec_table(grid), unit = _mm512_set1_ps(-grid->dither);
    const __m512i mask = _mm512_set1_epi32((int32_t)row.mask);
    __m512i at = dither_begin(row), peak = _mm512_setzero_si512();
    __m512 noise[4];
    size_t i = 0;
    for (; n - i >= 64; i += 64) {
        noise_64(&at, mask, unit, noise);
        for (size_t q = 0; q < 64; q += 16)
            ec_apply_16(codes, table, noise[q / 16], common, m, m_kind, hat, m_out, out_kind, i + q, 0xffff, &peak);
    }
    if (i < n) noise_64(&at, mask, unit, noise);
    for (size_t q = 0; i < n; i += 16, q++)
        ec_apply_16(codes, table, noise[q], common, m, m_kind, hat, m_out, out_kind, i, tail_mask(n - i), &peak);
    return _mm512_reduce_max_epu32(peak);
}

bool aq_avx512_ec_apply(const uint8_t *codes, size_t n, const struct aq_ec_grid *grid, struct aq_ec_dither_row row,
                        const float *common, const void *m, enum aq_row_kind m_kind, float *hat, void *m_out,
                        enum aq_row_kind out_kind, uint32_t *peak)
{
    if (any_zero(codes, n)) return false;
    if (m_kind == AQ_ROW_FP16 && out_kind == AQ_ROW_FP16)
        *peak = ec_apply_kind(codes, n, grid, row, common, m, AQ_ROW_FP16, hat, m_out, AQ_ROW_FP16);
    else if (m_kind == AQ_ROW_FP32 && out_kind == AQ_ROW_FP32)
        *peak = ec_apply_kind(codes, n, grid, row, common, m, AQ_ROW_FP32, hat, m_out, AQ_ROW_FP32);
    else if (m_kind == AQ_ROW_NONE && out_kind == AQ_ROW_NONE)
        *peak = ec_apply_kind(codes, n, grid, row, common, m, AQ_ROW_NONE, hat, m_out, AQ_ROW_NONE);
    else
        return false;
    return true;
}

#else
typedef int aq_codec_no_avx512_streams; /* ISO C requires something in a file */
#endif
