/*
 * grad_kernels_avx512.c -- the gradient kernels by 16 values, with AVX-512. Sums are two registers: lanes
 * 0..15, 16..31.
 */
#include "grad_scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS __m512 pack_16(const float *x, float *error, size_t i, int compare, enum aq_sign_sum ask, uint16_t *mask,
                      __m512 sum)
{
    __m512 y = _mm512_loadu_ps(x + i);
    if (error) {
        y = _mm512_add_ps(y, _mm512_loadu_ps(error + i));
        _mm512_storeu_ps(error + i, y);
    }
    *mask = compare == _CMP_GE_OQ ? _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GE_OQ)
                                  : _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ);
    if (ask == AQ_SIGN_ABS) return _mm512_add_ps(sum, _mm512_abs_ps(y));
    if (ask == AQ_SIGN_SQUARE) return _mm512_add_ps(sum, _mm512_mul_ps(y, y));
    return sum;
}

ALWAYS float pack_as(const float *x, float *error, size_t n, int compare, enum aq_sign_sum ask, uint8_t *bits)
{
    __m512 low = _mm512_setzero_ps(), high = low;
    float lanes[AQ_LANES];
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint16_t mask[4];
        low = pack_16(x, error, i, compare, ask, &mask[0], low);
        high = pack_16(x, error, i + 16, compare, ask, &mask[1], high);
        low = pack_16(x, error, i + 32, compare, ask, &mask[2], low);
        high = pack_16(x, error, i + 48, compare, ask, &mask[3], high);
        const uint64_t word =
            (uint64_t)mask[0] | (uint64_t)mask[1] << 16 | (uint64_t)mask[2] << 32 | (uint64_t)mask[3] << 48;
        memcpy(bits + i / 8, &word, sizeof word);
    }
    _mm512_storeu_ps(lanes, low);
    _mm512_storeu_ps(lanes + 16, high);
    grad_sign_pack_from(i, x, error, n, compare == _CMP_GE_OQ, ask, bits, lanes);
    return ask == AQ_SIGN_NOTHING ? 0.0f : scalar_fold(lanes);
}

ALWAYS float pack_ask(const float *x, float *error, size_t n, int compare, enum aq_sign_sum ask, uint8_t *bits)
{
    if (ask == AQ_SIGN_ABS) return pack_as(x, error, n, compare, AQ_SIGN_ABS, bits);
    if (ask == AQ_SIGN_SQUARE) return pack_as(x, error, n, compare, AQ_SIGN_SQUARE, bits);
    return pack_as(x, error, n, compare, AQ_SIGN_NOTHING, bits);
}

static float sign_pack(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits)
{
    if (error)
        return ties_up ? pack_ask(x, error, n, _CMP_GE_OQ, ask, bits) : pack_ask(x, error, n, _CMP_GT_OQ, ask, bits);
    return ties_up ? pack_ask(x, NULL, n, _CMP_GE_OQ, ask, bits) : pack_ask(x, NULL, n, _CMP_GT_OQ, ask, bits);
}

static void sign_error(float *y, size_t n, const uint8_t *bits, float s)
{
    const __m512 up = _mm512_set1_ps(s), down = _mm512_set1_ps(-s);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t word;
        memcpy(&word, bits + i / 8, sizeof word);
        for (size_t j = 0; j < 64; j += 16) {
            const __m512 value = _mm512_mask_blend_ps((__mmask16)(word >> j), down, up);
            _mm512_storeu_ps(y + i + j, _mm512_sub_ps(_mm512_loadu_ps(y + i + j), value));
        }
    }
    grad_sign_error_from(i, y, n, bits, s);
}

static void sign_apply(const uint8_t *bits, size_t n, float s, bool add, float *sum)
{
    const __m512 up = _mm512_set1_ps(s), down = _mm512_set1_ps(-s);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint64_t word;
        memcpy(&word, bits + i / 8, sizeof word);
        for (size_t j = 0; j < 64; j += 16) {
            __m512 value = _mm512_mask_blend_ps((__mmask16)(word >> j), down, up);
            if (add) value = _mm512_add_ps(_mm512_loadu_ps(sum + i + j), value);
            _mm512_storeu_ps(sum + i + j, value);
        }
    }
    grad_sign_apply_from(i, bits, n, s, add, sum);
}

const struct aq_grad_kernels aq_grad_kernels_avx512 = {
    .name = "avx512",
    .sign_pack = sign_pack,
    .sign_error = sign_error,
    .sign_apply = sign_apply,
    .take_error = grad_take_error,
    .leave_error = grad_leave_error,
    .accumulate = grad_accumulate,
};
#endif
