/*
 * grad_kernels_avx2.c -- the gradient kernels by 8 values, with AVX2. Sums are four registers: lanes 0..7, 8..15 and so
 * on.
 */
#include "grad_scalar.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS uint32_t pack_8(const float *x, float *error, size_t i, bool ties_up, enum aq_sign_sum ask, __m256 *sum)
{
    __m256 y = _mm256_loadu_ps(x + i);
    if (error) {
        y = _mm256_add_ps(y, _mm256_loadu_ps(error + i));
        _mm256_storeu_ps(error + i, y);
    }
    if (ask == AQ_SIGN_ABS) *sum = _mm256_add_ps(*sum, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), y));
    if (ask == AQ_SIGN_SQUARE) *sum = _mm256_add_ps(*sum, _mm256_mul_ps(y, y));
    const __m256 up =
        ties_up ? _mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_GE_OQ) : _mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_GT_OQ);
    return (uint32_t)_mm256_movemask_ps(up);
}

ALWAYS float pack_as(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits)
{
    __m256 sum[4];
    float lanes[AQ_LANES];
    size_t i = 0;
    for (int k = 0; k < 4; k++)
        sum[k] = _mm256_setzero_ps();
    for (; i + 32 <= n; i += 32) {
        uint32_t word = pack_8(x, error, i, ties_up, ask, &sum[0]);
        word |= pack_8(x, error, i + 8, ties_up, ask, &sum[1]) << 8;
        word |= pack_8(x, error, i + 16, ties_up, ask, &sum[2]) << 16;
        word |= pack_8(x, error, i + 24, ties_up, ask, &sum[3]) << 24;
        memcpy(bits + i / 8, &word, sizeof word);
    }
    for (int k = 0; k < 4; k++)
        _mm256_storeu_ps(lanes + 8 * k, sum[k]);
    grad_sign_pack_from(i, x, error, n, ties_up, ask, bits, lanes);
    return ask == AQ_SIGN_NOTHING ? 0.0f : scalar_fold(lanes);
}

ALWAYS float pack_ask(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits)
{
    if (ask == AQ_SIGN_ABS) return pack_as(x, error, n, ties_up, AQ_SIGN_ABS, bits);
    if (ask == AQ_SIGN_SQUARE) return pack_as(x, error, n, ties_up, AQ_SIGN_SQUARE, bits);
    return pack_as(x, error, n, ties_up, AQ_SIGN_NOTHING, bits);
}

static float sign_pack(const float *x, float *error, size_t n, bool ties_up, enum aq_sign_sum ask, uint8_t *bits)
{
    if (error) return ties_up ? pack_ask(x, error, n, true, ask, bits) : pack_ask(x, error, n, false, ask, bits);
    return ties_up ? pack_ask(x, NULL, n, true, ask, bits) : pack_ask(x, NULL, n, false, ask, bits);
}

/* +s where the bit is set, -s elsewhere. */
ALWAYS __m256 values_8(uint8_t byte, __m256 up, __m256 down)
{
    const __m256i which = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), which), which);
    return _mm256_blendv_ps(down, up, _mm256_castsi256_ps(set));
}

static void sign_error(float *y, size_t n, const uint8_t *bits, float s)
{
    const __m256 up = _mm256_set1_ps(s), down = _mm256_set1_ps(-s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_sub_ps(_mm256_loadu_ps(y + i), values_8(bits[i / 8], up, down)));
    grad_sign_error_from(i, y, n, bits, s);
}

static void sign_apply(const uint8_t *bits, size_t n, float s, bool add, float *sum)
{
    const __m256 up = _mm256_set1_ps(s), down = _mm256_set1_ps(-s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 value = values_8(bits[i / 8], up, down);
        if (add) value = _mm256_add_ps(_mm256_loadu_ps(sum + i), value);
        _mm256_storeu_ps(sum + i, value);
    }
    grad_sign_apply_from(i, bits, n, s, add, sum);
}

const struct aq_grad_kernels aq_grad_kernels_avx2 = {
    .name = "avx2",
    .sign_pack = sign_pack,
    .sign_error = sign_error,
    .sign_apply = sign_apply,
    .take_error = grad_take_error,
    .leave_error = grad_leave_error,
    .accumulate = grad_accumulate,
};
#endif
