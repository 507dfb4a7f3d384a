/* decoder_shape.c -- from a form and a configuration to the shape of a block; norms and angles. See decoder.h. */
#include "decoder.h"

#include <math.h>

uint32_t decoder_head_dim(const struct aq_model_config *model)
{
    return model->head_dim ? model->head_dim : model->channels / model->heads;
}

uint32_t decoder_kv_heads(const struct aq_model_config *model)
{
    return model->kv_heads ? model->kv_heads : model->heads;
}

uint32_t decoder_rotary(const struct aq_model_config *model)
{
    return (uint32_t)((float)decoder_head_dim(model) * model->rope_partial) / 2 * 2;
}

bool decoder_is_delta(const struct decoder_form *form, const struct aq_model_config *model, uint32_t block)
{
    const uint32_t every = model->own[DELTA_OWN_EVERY];
    return form->delta && (every == 0 || (block + 1) % every != 0);
}

bool decoder_convolves(const struct aq_model_config *model, uint32_t block)
{
    const uint32_t bits = block < 32 ? model->attention_blocks : model->attention_blocks_high;
    return model->conv_taps && (block >= 64 || !(bits >> block % 32 & 1));
}

/* Has the block the tensor, of a name in its table? */
static bool has(const struct layer *layer, const struct aq_model_config *model, const char *const *names, bool conv,
                enum decoder_tensor tensor)
{
    const struct decoder_form *form = layer->form;
    const bool head_norm = tensor == QUERY_NORM || tensor == KEY_NORM;
    const bool of_delta = tensor >= DELTA_QKV && tensor <= DELTA_PROJECTION;
    const bool of_attention = tensor >= QUERY && tensor <= PROJECTION_BIAS && !of_delta;
    if (decoder_is_delta(form, model, layer->number - 1) ? of_attention : of_delta) return false;
    if (conv && (tensor == QUERY_BIAS || tensor == CONV_BIAS || tensor == PROJECTION_BIAS)) return model->conv_bias;
    if (!names[tensor] || (tensor == NORM1 && form->first_plain && layer->number == 1)) return false;
    if (tensor >= QUERY_BIAS && tensor <= VALUE_BIAS) return form->biased || model->qkv_bias;
    if (tensor == PROJECTION_BIAS) return form->biased || model->out_bias;
    if (tensor == GATE_BIAS || tensor == UP_BIAS || tensor == MLP_BIAS) return form->biased || model->mlp_bias;
    return !head_norm || model->qk_norm;
}

bool decoder_slides(const struct aq_model_config *model, uint32_t block)
{
    const uint32_t place = model->window_first ? block : block + 1;
    const bool whole = model->window_every && place % model->window_every == 0;
    return model->window && block >= model->window_from && !whole;
}

static struct linear qkv_linear(const struct decoder_shape *shape)
{
    const uint64_t q = shape->H * shape->D * (shape->form->head_gates ? 2 : 1), kv = shape->kv_heads * shape->D;
    const uint32_t *tensor = shape->tensor;
    if (shape->form->qkv_one_tensor || shape->taps)
        return linear_of(shape->C, shape->qkv, shape->form->out_in, tensor[QUERY], tensor[QUERY_BIAS]);
    return (struct linear){.in = shape->C,
                           .out_in = shape->form->out_in,
                           .count = 3,
                           .parts = {{tensor[QUERY], tensor[QUERY_BIAS], q},
                                     {tensor[KEY], tensor[KEY_BIAS], kv},
                                     {tensor[VALUE], tensor[VALUE_BIAS], kv}}};
}

/* A block with the delta rule: its sizes and its products. */
static void delta_shape(const struct aq_model_config *model, struct decoder_shape *shape)
{
    const bool out_in = shape->form->out_in;
    const uint32_t *own = model->own, *tensor = shape->tensor;
    struct decoder_delta *delta = &shape->delta;
    *delta = (struct decoder_delta){own[DELTA_OWN_KEYS], own[DELTA_OWN_VALUES], own[DELTA_OWN_DK], own[DELTA_OWN_DV],
                                    own[DELTA_OWN_TAPS], {0}, {0}, {0}};
    shape->mixed = delta->values * delta->Dv;
    shape->qkv = shape->heads = 2 * delta->keys * delta->Dk + shape->mixed;
    shape->heads_normed = true;
    shape->R = 0;
    delta->qkv = linear_of(shape->C, shape->qkv, out_in, tensor[DELTA_QKV], LAYER_NO_TENSOR);
    delta->z = linear_of(shape->C, shape->mixed, out_in, tensor[DELTA_Z], LAYER_NO_TENSOR);
    delta->gates = (struct linear){.in = shape->C,
                                   .out_in = out_in,
                                   .count = 2,
                                   .parts = {{tensor[DELTA_B], LAYER_NO_TENSOR, delta->values},
                                             {tensor[DELTA_A], LAYER_NO_TENSOR, delta->values}}};
    shape->projection = linear_of(shape->mixed, shape->C, out_in, tensor[DELTA_PROJECTION], LAYER_NO_TENSOR);
}

static struct linear up_linear(const struct decoder_shape *shape)
{
    const uint32_t *tensor = shape->tensor;
    if (!shape->form->gated) return linear_of(shape->C, shape->F, shape->form->out_in, tensor[GATE], tensor[GATE_BIAS]);
    if (!shape->form->names[UP])
        return linear_of(shape->C, 2 * shape->F, shape->form->out_in, tensor[GATE], LAYER_NO_TENSOR);
    return (struct linear){
        .in = shape->C,
        .out_in = shape->form->out_in,
        .count = 2,
        .parts = {{tensor[GATE], tensor[GATE_BIAS], shape->F}, {tensor[UP], tensor[UP_BIAS], shape->F}}};
}

/* Columns of a head that the block rotates. */
static uint32_t turning(const struct decoder_form *form, const struct aq_model_config *model, uint32_t block)
{
    const bool plain = model->rope_every && (block + 1) % model->rope_every == 0;
    const bool whole = form->window_turns && model->window && !decoder_slides(model, block);
    return form->turns && !plain && !whole ? decoder_rotary(model) : 0;
}

/* A convolution in the place of heads. */
static void conv_shape(const struct decoder_form *form, const struct aq_model_config *model, struct decoder_shape *out)
{
    AQ_ASSERT(form->conv_names);
    out->names = form->conv_names;
    out->taps = model->conv_taps;
    out->H = 1;
    out->kv_heads = 0;
    out->D = out->C;
    out->qkv = out->heads = 3 * out->C;
    out->mixed = out->C;
    out->R = 0;
    out->window = 0;
    out->heads_normed = false;
}

void decoder_shape(const struct layer *layer, const struct aq_model_config *model, struct decoder_shape *out)
{
    const struct decoder_form *form = layer->form;
    const uint64_t C = layer->in.columns, H = model->heads, D = decoder_head_dim(model);
    const float root = model->query_scale ? 1.0f / sqrtf((float)model->query_scale) : 0.0f;
    const bool scaled = model->residual_scale > 0.0f && model->residual_scale != 1.0f;
    uint32_t count = 0;
    *out = (struct decoder_shape){.form = form,
                                  .C = C,
                                  .H = H,
                                  .kv_heads = decoder_kv_heads(model),
                                  .D = D,
                                  .F = model->mlp ? model->mlp : 4 * C,
                                  .R = turning(form, model, layer->number - 1),
                                  .window = decoder_slides(model, layer->number - 1) ? model->window : 0,
                                  .score_scale = model->score_scale > 0.0f ? model->score_scale : root,
                                  .score_cap = model->score_cap,
                                  .residual_scale = scaled ? model->residual_scale : 0.0f,
                                  .heads_normed = model->qk_norm};
    out->qkv = (H + 2 * out->kv_heads) * D;
    out->names = form->names;
    out->heads = out->qkv + (form->head_gates ? H * D : 0);
    out->mixed = H * D;
    out->has_delta = decoder_is_delta(form, model, layer->number - 1);
    out->opens = out->has_delta || form->head_gates;
    if (decoder_convolves(model, layer->number - 1)) conv_shape(form, model, out);
    for (uint32_t i = 0; i < DECODER_TENSORS; i++)
        out->tensor[i] = has(layer, model, out->names, out->taps > 0, i) ? count++ : LAYER_NO_TENSOR;
    out->in = qkv_linear(out);
    out->projection =
        linear_of(out->H * out->D, C, form->out_in, out->tensor[PROJECTION], out->tensor[PROJECTION_BIAS]);
    out->up = up_linear(out);
    out->mlp = linear_of(out->F, C, form->out_in, out->tensor[MLP], out->tensor[MLP_BIAS]);
    if (out->has_delta) delta_shape(model, out);
}

struct aq_causal_conv decoder_conv(const struct layer_run *run, const struct decoder_shape *shape, const void *x,
                                   void *y, void *cache)
{
    const uint32_t bias = shape->tensor[CONV_BIAS];
    return (struct aq_causal_conv){.samples = run->samples,
                                   .T = run->tokens,
                                   .C = shape->C,
                                   .K = shape->taps,
                                   .gates = true,
                                   .type = stage_type(run->config->precision),
                                   .stride = shape->qkv,
                                   .x = x,
                                   .w = run->w[shape->tensor[CONV]],
                                   .bias = bias == LAYER_NO_TENSOR ? NULL : run->w[bias],
                                   .starts = run->starts,
                                   .first = run->first,
                                   .rows = run->config->T,
                                   .cache = cache,
                                   .y = y};
}

/* The column pair, of R / 2, that makes `rotations` turns in the context before (Peng et al. 2023). */
static double yarn_pair(const struct aq_model_config *model, double rotations, uint32_t R)
{
    const double pi = 3.14159265358979323846;
    return R * log(model->rope_original / (rotations * 2.0 * pi)) / (2.0 * log((double)model->rope_theta));
}

/* Fast pairs keep their frequency, slow ones are divided by the factor, between both is a ramp. */
static double yarn(const struct aq_model_config *model, double plain, uint32_t i, uint32_t R)
{
    const double low = fmax(floor(yarn_pair(model, (double)model->rope_fast, R)), 0.0);
    const double high = fmin(ceil(yarn_pair(model, (double)model->rope_slow, R)), R - 1.0);
    const double ramp = fmin(fmax((i - low) / (high == low ? 0.001 : high - low), 0.0), 1.0);
    return plain / (double)model->rope_yarn * ramp + plain * (1.0 - ramp);
}

/* Frequencies are rounded to single precision, and so is place times frequency, as published models have it. */
static float frequency(const struct aq_model_config *model, bool local, const struct aq_factors *factors, uint32_t i,
                       uint32_t R)
{
    const double pi = 3.14159265358979323846;
    const double theta = (double)(local && model->rope_local > 0.0f ? model->rope_local : model->rope_theta);
    const double slower = !local && model->rope_linear > 1.0f ? (double)model->rope_linear : 1.0;
    const double divisor = factors->count ? (double)factors->of[i] : slower;
    const double plain = pow(theta, -2.0 * i / R) / divisor, length = 2.0 * pi / plain;
    const double longest = model->rope_original / (double)model->rope_low;
    const double shortest = model->rope_original / (double)model->rope_high;
    if (!local && model->rope_yarn > 1.0f) return (float)yarn(model, plain, i, R);
    if (model->rope_factor == 1.0f || length < shortest) return (float)plain;
    if (length > longest) return (float)(plain / (double)model->rope_factor);
    const double smooth = (model->rope_original / length - (double)model->rope_low) /
                          ((double)model->rope_high - (double)model->rope_low);
    return (float)((1.0 - smooth) * plain / (double)model->rope_factor + smooth * plain);
}

void decoder_angles(const struct aq_model_config *model, bool local, uint32_t T, float *table)
{
    const uint32_t R = decoder_rotary(model), half = R / 2;
    const bool scaled = !local && (model->rope_yarn > 1.0f || model->rope_short.count);
    const float scale = scaled ? model->rope_attention : 1.0f;
    const struct aq_factors *factors = T > model->rope_original ? &model->rope_long : &model->rope_short;
    for (uint32_t i = 0; i < half; i++) {
        const float step = frequency(model, local, factors, i, R);
        for (uint32_t t = 0; t < T; t++) {
            const float angle = (float)t * step;
            table[(uint64_t)t * R + i] = scale * (float)cos((double)angle);
            table[(uint64_t)t * R + half + i] = scale * (float)sin((double)angle);
        }
    }
}

void decoder_final_norm(const struct layer *layer, struct layer_list *list)
{
    layer_list_add(list, layer->form->norm, 0, layer->in.columns, 0, 1 - layer->form->plus);
    if (!layer->form->norm_bias)
        layer_list_skip(list);
    else
        layer_list_add(list, layer->form->norm_bias, 0, layer->in.columns, 0, 0);
}

struct decoder_norm decoder_final_norm_of(float *mean, float *rstd)
{
    return (struct decoder_norm){DECODER_FINAL_NORM, DECODER_FINAL_NORM_BIAS, mean, rstd};
}

static enum aq_status layer_norm(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows,
                                 const void *x, enum aq_element x_type, void *y, enum aq_element type)
{
    const struct aq_layernorm args = {.rows = rows,
                                      .C = run->layer->in.columns,
                                      .epsilon = run->config->model.norm_eps,
                                      .x = x,
                                      .x_type = x_type,
                                      .gamma = run->w[norm->gamma],
                                      .beta = norm->beta == LAYER_NO_TENSOR ? NULL : run->w[norm->beta],
                                      .y = y,
                                      .y_type = type,
                                      .mean = norm->mean,
                                      .rstd = norm->rstd};
    return aq_device_layernorm(run->device, &args, run->stream);
}

enum aq_status decoder_norm(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows, const void *x,
                            void *y)
{
    const enum aq_element type = stage_type(run->config->precision);
    const float epsilon = run->config->model.norm_eps, *gamma = run->w[norm->gamma];
    const uint64_t C = run->layer->in.columns;
    if (run->layer->form->rms) {
        const struct aq_rmsnorm args = {.rows = rows,
                                        .C = C,
                                        .epsilon = epsilon,
                                        .plus = run->layer->form->plus,
                                        .x = x,
                                        .x_type = layer_stream(run->config),
                                        .gamma = gamma,
                                        .y = y,
                                        .y_type = type,
                                        .rstd = norm->rstd};
        return aq_device_rmsnorm(run->device, &args, run->stream);
    }
    return layer_norm(run, norm, rows, x, layer_stream(run->config), y, type);
}

enum aq_status decoder_post_norm(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows,
                                 const float *x, const float *other, float *y)
{
    AQ_ASSERT(run->layer->form->rms || !other);
    if (!run->layer->form->rms) return layer_norm(run, norm, rows, x, AQ_F32, y, AQ_F32);
    const struct aq_rmsnorm args = {.rows = rows,
                                    .C = run->layer->in.columns,
                                    .epsilon = run->config->model.norm_eps,
                                    .plus = run->layer->form->plus,
                                    .x = x,
                                    .gamma = run->w[norm->gamma],
                                    .other = other,
                                    .y = y,
                                    .y_type = AQ_F32,
                                    .rstd = norm->rstd};
    return aq_device_rmsnorm(run->device, &args, run->stream);
}

enum aq_status decoder_norm_gradient(const struct layer_run *run, const struct decoder_norm *norm, uint64_t rows,
                                     const float *dy, const void *x, enum aq_element x_type, float *dx,
                                     const struct layer_ending *ending)
{
    const enum aq_element type = stage_type(run->config->precision);
    const uint64_t C = run->layer->in.columns;
    uint16_t *rounded = ending ? ending->rounded : NULL;
    float *sums = ending ? ending->sums : NULL;
    if (run->layer->form->rms) {
        const struct aq_rmsnorm_backward args = {.rows = rows,
                                                 .C = C,
                                                 .plus = run->layer->form->plus,
                                                 .dy = dy,
                                                 .x = x,
                                                 .x_type = x_type,
                                                 .gamma = run->w[norm->gamma],
                                                 .rstd = norm->rstd,
                                                 .dx = dx,
                                                 .dgamma = run->g[norm->gamma],
                                                 .rounded = rounded,
                                                 .rounded_type = type,
                                                 .sums = sums};
        return aq_device_rmsnorm_backward(run->device, &args, run->stream);
    }
    const struct aq_layernorm_backward args = {.rows = rows,
                                               .C = C,
                                               .dy = dy,
                                               .x = x,
                                               .x_type = x_type,
                                               .gamma = run->w[norm->gamma],
                                               .mean = norm->mean,
                                               .rstd = norm->rstd,
                                               .dx = dx,
                                               .dgamma = run->g[norm->gamma],
                                               .dbeta = norm->beta == LAYER_NO_TENSOR ? NULL : run->g[norm->beta],
                                               .rounded = rounded,
                                               .rounded_type = type,
                                               .sums = sums};
    return aq_device_layernorm_backward(run->device, &args, run->stream);
}
