/*
 * cpu_winograd.h -- convolutions of 3 x 3 by Winograd's minimal filtering, F(2 x 2, 3 x 3) of Lavin and Gray 2016;
 * private to this folder.
 *
 * A patch is 4 x 4 pixels of x and the 2 x 2 of y that they make. In place of 36 multiplications of x by w for these 4
 * values it takes 16, one for each place of the 4 x 4:
 *
 *     y  = A' [(G w G') * (B' x B)] A                          * : place by place, summed over channels
 *     dw = G' [sum over patches of (A dy A') * (B' x B)] G     the exact gradient of that
 *
 *     B' = 1  0 -1  0     G = 1   0   0      A' = 1  1  1  0
 *          0  1  1  0         1/2 1/2 1/2         0  1 -1 -1
 *          0 -1  1  0         1/2 -1/2 1/2
 *          0  1  0 -1         0   0   1
 *
 * All of it is fp32. The transforms only add and halve, and sums run only over channels: the error of y is no larger
 * than with sums of 9 C products. (F(4 x 4) would take 9 multiplications for these 16, and its errors are seven times
 * as large.) The backward of x is a forward of dy, with w turned by half a circle, rows for columns.
 *
 * Transformed data is in 16 planes, one per place, and in blocks of `lanes` channels:
 *
 *     [plane][block][patch][lane] of images       [plane][block of outputs][input][lane] of w
 */
#ifndef AQ_CPU_WINOGRAD_H
#define AQ_CPU_WINOGRAD_H

#include "cpu_device.h"

enum { WINOGRAD_PLANES = 16, WINOGRAD_BLOCKS = 2 /* of outputs, that a product makes at a time */ };

/* Channels of images in nhwc, and their planes. Patches are numbered line by line, image after image. */
struct cpu_patches {
    uint64_t height, width, C;  /* of an image; even */
    uint64_t channel, channels; /* these of them: multiples of lanes */
    uint64_t first, count;      /* of the patches */
    uint64_t plane, block;      /* floats from one to the next */
};

struct cpu_winograd {
    uint64_t lanes;
    /* B' x B, A dy A': images to planes; A' planes A: planes to images. */
    void (*input)(const struct cpu_patches *at, const float *x, float *planes);
    void (*gradient)(const struct cpu_patches *at, const float *dy, float *planes);
    void (*output)(const struct cpu_patches *at, const float *planes, float *y);
    /* G w G' of a block of w's C inputs. turned: as the backward of x needs them, w's outputs being its inputs. */
    void (*filter)(const float *w, uint64_t C, uint64_t N, uint64_t block, bool transposed, float *planes);
    /* dw += G' sums G for one of w's C inputs: a row of N values of each of the planes. */
    void (*filter_gradient)(const float *sums, uint64_t plane, uint64_t C, uint64_t N, float *dw);
    /*
     * One plane's product for WINOGRAD_BLOCKS blocks of outputs, which are `w_block` (`to_block`) floats apart:
     * to[patch] = sum over `blocks` blocks of inputs of x[input][patch] w[input].
     */
    void (*product)(const float *x, uint64_t x_block, uint64_t blocks, uint64_t patches, const float *w,
                    uint64_t w_block, float *to, uint64_t to_block);
    /*
     * One plane's sums over patches, made in registers, then written or added: to[input][output] = or += x[input]
     * dy[output]; rows of `to` are N apart.
     */
    void (*sums)(const float *x, uint64_t x_block, uint64_t blocks, uint64_t patches, const float *dy,
                 uint64_t dy_block, float *to, uint64_t N, bool add);
};

extern const struct cpu_winograd cpu_winograd_avx2;
extern const struct cpu_winograd cpu_winograd_avx512;

#endif
