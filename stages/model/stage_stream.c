/*
 * stage_stream.c -- the residual stream of a stage, if it is bf16 (aq_stage_config.residual_bf16): which models may
 * have it so, and its way from and to a cut, where values are fp32.
 */
#include <stdio.h>

#include "decoder.h"
#include "stage_model.h"

/* What of a layer needs the stream in fp32; NULL: nothing. */
static const char *needs_fp32(const struct layer *layer, const struct aq_model_config *model)
{
    const struct decoder_form *form = layer->form;
    if (!layer->kind->bf16_stream || !form) return "layers that are computed in fp32";
    if (form->rows) return "a norm of the embedding's rows";
    if (form->sums) return "norms of its sums";
    if (form->posts) return "norms behind its branches";
    return model->residual_scale > 0.0f && model->residual_scale != 1.0f ? "a factor on its branches" : NULL;
}

bool aq_model_residual_bf16(const struct aq_model_config *model, char *text, size_t bytes)
{
    const uint32_t layers = aq_model_layers(model);
    for (uint32_t l = 0; l < layers; l++) {
        struct layer layer;
        stage_layer(model, 1, l, &layer);
        const char *needs = needs_fp32(&layer, model);
        if (!needs) continue;
        snprintf(text, bytes, "bf16 is not computed for %s, which has %s; set fp32", model->kind, needs);
        return false;
    }
    return true;
}

enum aq_status stage_stream_check(const struct aq_stage_config *config)
{
    char text[160];
    if (!config->residual_bf16) return AQ_OK;
    if (config->precision != AQ_STAGE_BF16)
        return aq_fail(AQ_INVAL, "stage", "a residual stream of bf16 needs products of bf16 (model.precision)");
    if (!aq_model_residual_bf16(&config->model, text, sizeof text))
        return aq_fail(AQ_INVAL, "stage", "model.residual: %s", text);
    return AQ_OK;
}

uint64_t stage_stream_edge(const struct aq_stage_config *config, const struct layer *last)
{
    const bool cut = config->layer_end < aq_model_layers(&config->model);
    if (!config->residual_bf16 || !cut) return 0;
    return (uint64_t)config->B * last->out.rows * last->out.columns * aq_element_bytes(layer_stream(config));
}

enum aq_status stage_stream_copy(const struct layer_run *run, const void *x, enum aq_element x_type, uint64_t count,
                                 void *y, enum aq_element y_type)
{
    const struct aq_dropout_apply args = {
        .samples = 1, .sample_elements = count, .x = x, .x_type = x_type, .y = y, .y_type = y_type};
    if (x_type == y_type) return aq_device_copy(run->device, y, x, count * aq_element_bytes(x_type), run->stream);
    return aq_device_dropout(run->device, &args, run->stream); /* of no probability: a conversion */
}
