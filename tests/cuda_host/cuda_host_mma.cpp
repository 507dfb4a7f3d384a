/*
 * cuda_host_mma.cpp -- the warp's matrix products and loads, as PTX lays them out (cuda_mma.cuh).
 *
 * Products of bf16 or fp16 are exact in fp32; their 16 are added in double and rounded once, since the hardware's order
 * is not said. Kernels that agree with the truth here do so within that.
 */
#include "cuda_host.h"

#include <cstdlib>
#include <cstring>

namespace cuda_host
{

namespace
{

template <bool FP16> float half_of(uint64_t word, int index)
{
    const uint16_t half = (uint16_t)(word >> 16 * index);
    return FP16 ? aq_half_to_float(half) : aq_bfloat_to_float(half);
}

/* in[0], [1]: a; in[2]: b; in[3], [4]: sums. */
template <bool FP16> void resolve_mma(lane *lanes, uint32_t)
{
    float a[16][16], b[8][16];
    for (int i = 0; i < 32; i++) {
        const int g = i / 4, t = i % 4;
        for (int k = 0; k < 4; k++) {
            const int at = k / 2 * 8 + 2 * t + k % 2;
            a[g][at] = half_of<FP16>(lanes[i].in[k / 2], k % 2);
            a[g + 8][at] = half_of<FP16>(lanes[i].in[k / 2] >> 32, k % 2);
            b[g][at] = half_of<FP16>(lanes[i].in[2] >> 32 * (k / 2), k % 2);
        }
    }
    for (int i = 0; i < 32; i++) {
        for (int c = 0; c < 4; c++) {
            const int row = i / 4 + (c < 2 ? 0 : 8), column = 2 * (i % 4) + c % 2;
            double sum = 0.0;
            for (int k = 0; k < 16; k++)
                sum += (double)a[row][k] * b[column][k];
            const float before = value_of<float>(lanes[i].in[3 + c / 2] >> 32 * (c % 2));
            lanes[i].out[c] = word_of((float)(before + sum));
        }
    }
}

template <bool TRANSPOSED> void resolve_matrices(lane *lanes, uint32_t)
{
    for (int i = 0; i < 32; i++) {
        for (int m = 0; m < 4; m++) {
            uint32_t word = 0;
            for (int k = 0; k < 2; k++) {
                const int row = TRANSPOSED ? 2 * (i % 4) + k : i / 4, column = TRANSPOSED ? i / 4 : 2 * (i % 4) + k;
                const uint16_t *at = value_of<const uint16_t *>(lanes[8 * m + row].in[0]);
                word |= (uint32_t)at[column] << 16 * k;
            }
            lanes[i].out[m] = word;
        }
    }
}

} // namespace

bool hopper()
{
    const char *capability = getenv("CUDA_HOST_CAPABILITY");
    return !capability || strcmp(capability, "90") == 0;
}

void mma(const site &at, bool fp16, float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    lane &self = mine();
    /* Rows g in the lower word, rows g + 8 in the upper; first the lower k, then the upper. */
    self.in[0] = (uint64_t)a[1] << 32 | a[0];
    self.in[1] = (uint64_t)a[3] << 32 | a[2];
    self.in[2] = (uint64_t)b1 << 32 | b0;
    self.in[3] = word_of(sums[1]) << 32 | word_of(sums[0]);
    self.in[4] = word_of(sums[3]) << 32 | word_of(sums[2]);
    meet_warp(at, 0xffffffffu, fp16 ? resolve_mma<true> : resolve_mma<false>);
    for (int i = 0; i < 4; i++)
        sums[i] = value_of<float>(self.out[i]);
}

void matrices(const site &at, unsigned (&words)[4], const void *row, bool transposed)
{
    lane &self = mine();
    if (reinterpret_cast<uintptr_t>(row) % 16) complain(at, "a row that is not aligned to 16 bytes");
    self.in[0] = word_of(row);
    meet_warp(at, 0xffffffffu, transposed ? resolve_matrices<true> : resolve_matrices<false>);
    for (int i = 0; i < 4; i++)
        words[i] = (unsigned)self.out[i];
}

} // namespace cuda_host
