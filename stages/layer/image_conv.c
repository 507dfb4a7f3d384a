/* image_conv.c -- a convolution with its normalization, forward and backward. See image_conv.h. */
#include "image_conv.h"

#include <math.h>
#include <stdio.h>

enum { CONV, WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VARIANCE, TENSORS, GROUP_TENSORS = RUNNING_MEAN };

static const float EPSILON = 1e-5f, MOMENTUM = 0.1f; /* PyTorch's */

static uint64_t side_of(uint32_t rows)
{
    uint64_t side = 1;
    while (side * side < rows)
        side++;
    return side;
}

struct image_conv image_conv_of(const struct layer *layer, const struct aq_cut_shape *in,
                                const struct aq_cut_shape *out, uint32_t K, uint32_t which, bool relu)
{
    const uint64_t side = side_of(in->rows);
    return (struct image_conv){.shape = {.height = side,
                                         .width = side,
                                         .C = in->columns,
                                         .N = out->columns,
                                         .K = K,
                                         .stride = out->rows < in->rows ? 2 : 1},
                               .first = which * (layer->groups ? GROUP_TENSORS : TENSORS),
                               .groups = layer->groups,
                               .relu = relu,
                               .published = layer->transposed};
}

void image_conv_tensors(const struct image_conv *self, const char *conv, const char *norm, struct layer_list *list)
{
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    const uint64_t N = self->shape.N, taps = self->shape.K * self->shape.K;
    const float std = sqrtf(2.0f / (float)(taps * N));
    char name[AQ_TENSOR_NAME_MAX];
    snprintf(name, sizeof name, "%s.weight", conv);
    if (self->published)
        layer_list_add_linear(list, name, taps * self->shape.C, N, (uint32_t)self->shape.K, std);
    else
        layer_list_add(list, name, taps * self->shape.C, N, std, 0);
    for (int i = 0; i < (self->groups ? 2 : 4); i++) {
        snprintf(name, sizeof name, "%s.%s", norm, names[i]);
        if (i < 2)
            layer_list_add(list, name, 0, N, 0, i == 0 ? 1 : 0);
        else
            layer_list_buffer(list, name, N, i == 3 ? 1 : 0);
    }
}

uint64_t image_conv_values(const struct image_conv *self)
{
    const struct aq_conv_shape *shape = &self->shape;
    return aq_conv_out(shape->height, shape->stride) * aq_conv_out(shape->width, shape->stride) * shape->N;
}

double image_conv_flops(const struct image_conv *self)
{
    const struct aq_conv_shape *shape = &self->shape;
    return 2.0 * (double)(image_conv_values(self) * shape->K * shape->K * shape->C);
}

void image_conv_place(const struct image_conv *self, const struct aq_stage_config *config, enum layer_memory what,
                      struct aq_arena *arena, struct image_conv_kept *kept)
{
    if (what == LAYER_KEPT) kept->c = aq_arena_take(arena, config->B * image_conv_values(self) * sizeof(float));
    if (what != LAYER_SLOT || config->inference) return;
    const uint64_t count = self->groups ? (uint64_t)config->B * self->groups : self->shape.N;
    kept->mean = aq_arena_take(arena, count * sizeof(float));
    kept->rstd = aq_arena_take(arena, count * sizeof(float));
}

static struct aq_conv_shape shape_of(const struct image_conv *self, const struct layer_run *run)
{
    struct aq_conv_shape shape = self->shape;
    shape.samples = run->samples;
    shape.compute = stage_compute(run->config->precision);
    return shape;
}

static enum aq_status batch_norm(const struct image_conv *self, const struct layer_run *run,
                                 const struct image_conv_kept *kept, const float *add, float *y)
{
    float *const *w = run->w + self->first;
    /* The running statistics move once, not when this is made again for a backward. */
    const bool moves = run->train && !run->again;
    const struct aq_batch_norm norm = {.rows = run->samples * image_conv_values(self) / self->shape.N,
                                       .C = self->shape.N,
                                       .training = run->train,
                                       .relu = self->relu,
                                       .epsilon = EPSILON,
                                       .momentum = MOMENTUM,
                                       .x = kept->c,
                                       .gamma = w[WEIGHT],
                                       .beta = w[BIAS],
                                       .add = add,
                                       .y = y,
                                       .mean = kept->mean,
                                       .rstd = kept->rstd,
                                       .running_mean = moves || !run->train ? w[RUNNING_MEAN] : NULL,
                                       .running_variance = moves || !run->train ? w[RUNNING_VARIANCE] : NULL};
    return aq_device_batch_norm(run->device, &norm, run->stream);
}

static enum aq_status group_norm(const struct image_conv *self, const struct layer_run *run,
                                 const struct image_conv_kept *kept, const float *add, float *y)
{
    float *const *w = run->w + self->first;
    const struct aq_group_norm norm = {.samples = run->samples,
                                       .T = image_conv_values(self) / self->shape.N,
                                       .C = self->shape.N,
                                       .groups = self->groups,
                                       .relu = self->relu,
                                       .epsilon = EPSILON,
                                       .x = kept->c,
                                       .gamma = w[WEIGHT],
                                       .beta = w[BIAS],
                                       .add = add,
                                       .y = y,
                                       .mean = kept->mean,
                                       .rstd = kept->rstd};
    return aq_device_group_norm(run->device, &norm, run->stream);
}

enum aq_status image_conv_forward(const struct image_conv *self, const struct layer_run *run,
                                  const struct image_conv_kept *kept, const float *x, const float *add, float *y)
{
    const struct aq_conv conv = {.shape = shape_of(self, run), .x = x, .w = run->w[self->first + CONV], .y = kept->c};
    AQ_TRY(aq_device_conv(run->device, &conv, run->stream));
    if (!y) return AQ_OK;
    return self->groups ? group_norm(self, run, kept, add, y) : batch_norm(self, run, kept, add, y);
}

static enum aq_status norm_backward(const struct image_conv *self, const struct layer_run *run,
                                    const struct image_conv_kept *kept, const struct image_conv_backward *what)
{
    float *const *w = run->w + self->first, *const *g = run->g + self->first;
    const uint64_t T = image_conv_values(self) / self->shape.N;
    const struct aq_batch_norm_backward batch = {.rows = run->samples * T,
                                                 .C = self->shape.N,
                                                 .relu = self->relu,
                                                 .x = kept->c,
                                                 .dy = what->dy,
                                                 .gamma = w[WEIGHT],
                                                 .mean = kept->mean,
                                                 .rstd = kept->rstd,
                                                 .beta = w[BIAS],
                                                 .add = what->add,
                                                 .dx = what->dc,
                                                 .dgamma = g[WEIGHT],
                                                 .dbeta = g[BIAS],
                                                 .dz = what->dz};
    if (!self->groups) return aq_device_batch_norm_backward(run->device, &batch, run->stream);
    const struct aq_group_norm_backward group = {.samples = run->samples,
                                                 .T = T,
                                                 .C = self->shape.N,
                                                 .groups = self->groups,
                                                 .relu = self->relu,
                                                 .x = kept->c,
                                                 .dy = what->dy,
                                                 .gamma = w[WEIGHT],
                                                 .mean = kept->mean,
                                                 .rstd = kept->rstd,
                                                 .beta = w[BIAS],
                                                 .add = what->add,
                                                 .dx = what->dc,
                                                 .dgamma = g[WEIGHT],
                                                 .dbeta = g[BIAS],
                                                 .dz = what->dz};
    return aq_device_group_norm_backward(run->device, &group, run->stream);
}

enum aq_status image_conv_backward(const struct image_conv *self, const struct layer_run *run,
                                   const struct image_conv_kept *kept, const struct image_conv_backward *what)
{
    const struct aq_conv_shape shape = shape_of(self, run);
    float *const dw = run->g[self->first + CONV];
    AQ_TRY(norm_backward(self, run, kept, what));
    const struct aq_conv_weights weights = {.shape = shape, .x = what->x, .dy = what->dc, .dw = dw};
    if (dw) AQ_TRY(aq_device_conv_weights(run->device, &weights, run->stream));
    const struct aq_conv_backward back = {
        .shape = shape, .dy = what->dc, .w = run->w[self->first + CONV], .dx = what->dx};
    return what->dx ? aq_device_conv_backward(run->device, &back, run->stream) : AQ_OK;
}

enum aq_status image_add(const struct layer_run *run, const float *x, float *y, uint64_t count)
{
    const struct aq_dropout_apply args = {
        .samples = 1, .sample_elements = count, .x = x, .y = y, .y_type = AQ_F32, .add = true};
    return aq_device_dropout(run->device, &args, run->stream);
}
