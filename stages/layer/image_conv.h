/*
 * image_conv.h -- what layers of images share: a convolution with the normalization behind it, which follow each
 * other as one step of a residual network (He et al. 2016).
 *
 *     c = conv(x, w)                       kept for backward
 *     y = [ReLU](norm(c) + add)            add: a shortcut's values, or none
 *
 * Five tensors, numbered from `first` on: conv.weight ((K K C), N), norm.weight, norm.bias, and of a batch norm two
 * buffers, norm.running_mean and norm.running_var (PyTorch's, with its momentum and epsilon). A group norm has three
 * and no buffers.
 *
 * Locking: a layer's.
 */
#ifndef IMAGE_CONV_H
#define IMAGE_CONV_H

#include "layer.h"

struct image_conv {
    struct aq_conv_shape shape; /* samples and compute: of the run        */
    uint32_t first;             /* of its tensors                         */
    uint32_t groups;            /* of its norm (layer.groups); 0: a batch norm */
    bool relu;
    bool published; /* files have its weights as nn.Conv2d does (layer.transposed) */
};

/* What it keeps of forward. */
struct image_conv_kept {
    float *c;           /* (rows out, N)                                              */
    float *mean, *rstd; /* N; of the slot: a forward that is made again finds them. A group norm's: B groups */
};

/* Convolution `which` of the layer. rows x columns as images: rows are the square of a side. Fewer of out: stride 2. */
struct image_conv image_conv_of(const struct layer *layer, const struct aq_cut_shape *in,
                                const struct aq_cut_shape *out, uint32_t K, uint32_t which, bool relu);
void image_conv_tensors(const struct image_conv *self, const char *conv, const char *norm, struct layer_list *list);
/* Its memory of LAYER_KEPT and LAYER_SLOT; none else. */
void image_conv_place(const struct image_conv *self, const struct aq_stage_config *config, enum layer_memory what,
                      struct aq_arena *arena, struct image_conv_kept *kept);
uint64_t image_conv_values(const struct image_conv *self); /* of a sample's output */
double image_conv_flops(const struct image_conv *self);    /* of a sample, forward */

/* y NULL: only what is kept. y may be add. */
enum aq_status image_conv_forward(const struct image_conv *self, const struct layer_run *run,
                                  const struct image_conv_kept *kept, const float *x, const float *add, float *y);
/*
 * dx, where not NULL, is written. dc: memory for the gradient of c; it may be dy. dz, where not NULL: the gradient of
 * add; it may be dy where dc is not.
 */
struct image_conv_backward {
    const float *x, *add, *dy;
    float *dc, *dz, *dx;
};
enum aq_status image_conv_backward(const struct image_conv *self, const struct layer_run *run,
                                   const struct image_conv_kept *kept, const struct image_conv_backward *what);

/* y += x. */
enum aq_status image_add(const struct layer_run *run, const float *x, float *y, uint64_t count);

#endif
