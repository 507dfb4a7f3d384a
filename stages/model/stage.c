/*
 * stage.c -- a stage's buffers, checks and bookkeeping; the mathematics is its model's.
 */
#include <stdio.h>
#include <string.h>

#include "stage_model.h"

#define STAGE_MODEL(name) extern const struct stage_model stage_model_##name;
#include "models.def"
#undef STAGE_MODEL

#define STAGE_MODEL(name) &stage_model_##name,
static const struct stage_model *const models[] = {
#include "models.def"
};
#undef STAGE_MODEL

enum { MODEL_COUNT = sizeof models / sizeof models[0] };

const struct stage_model *stage_model_find(const char *kind)
{
    for (int i = 0; i < MODEL_COUNT; i++)
        if (kind && strcmp(models[i]->kind, kind) == 0) return models[i];
    return NULL;
}

void aq_model_config_default(struct aq_model_config *out, const char *kind)
{
    const struct stage_model *model = stage_model_find(kind);
    *out = (struct aq_model_config){.kind = kind};
    if (model) model->config_default(out);
}

enum aq_status aq_model_config_check(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    if (!ops) return aq_fail(AQ_INVAL, "stage", "model.kind: %s is unknown; say gpt2", model->kind ? model->kind : "");
    return ops->config_check(model);
}

uint32_t aq_model_layers(const struct aq_model_config *model)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    return ops ? ops->layers(model) : 0;
}

void aq_model_layer_name(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    if (ops)
        ops->layer_name(model, layer, text, bytes);
    else
        snprintf(text, bytes, "layer %u", layer);
}

enum aq_status aq_model_cut(const struct aq_model_config *model, uint32_t layer_end, uint32_t tokens,
                            struct aq_cut_shape *out)
{
    const struct stage_model *ops = stage_model_find(model->kind);
    const uint32_t layers = aq_model_layers(model);
    if (layer_end == 0 || layer_end >= layers)
        return aq_fail(AQ_INVAL, "stage", "a cut before layer %u of %u: there is none", layer_end, layers);
    ops->cut(model, layer_end, tokens, out);
    return AQ_OK;
}

static enum aq_status config_check(const struct aq_stage_config *config)
{
    AQ_TRY(aq_model_config_check(&config->model));
    const uint32_t layers = aq_model_layers(&config->model);
    if (config->layer_first >= config->layer_end || config->layer_end > layers)
        return aq_fail(AQ_INVAL, "stage", "layers %u..%u: the model has layers 0..%u", config->layer_first,
                       config->layer_end, layers);
    if (config->B == 0 || config->B > 65536) return aq_fail(AQ_INVAL, "stage", "B is %u: 1 to 65536", config->B);
    if (config->T == 0 || config->T > config->model.context)
        return aq_fail(AQ_INVAL, "stage", "T is %u: 1 to model.context, %u", config->T, config->model.context);
    if (config->slots == 0 || config->slots > 4096)
        return aq_fail(AQ_INVAL, "stage", "%u slots: 1 to 4096", config->slots);
    if (config->precision < AQ_STAGE_FP32 || config->precision > AQ_STAGE_FP16)
        return aq_fail(AQ_INVAL, "stage", "precision %d: fp32, tf32, bf16 or fp16", (int)config->precision);
    return AQ_OK;
}

enum aq_status aq_stage_tensors(const struct aq_stage_config *config, struct aq_tensor_info **tensors, uint32_t *count)
{
    const struct stage_model *model = stage_model_find(config->model.kind);
    void *memory;
    *count = model->tensors(config, NULL);
    AQ_TRY(aq_alloc((*count + 1) * sizeof **tensors, &memory));
    *tensors = memory;
    model->tensors(config, memory);
    return AQ_OK;
}

/* One micro-batch at the cut behind layer layer_end - 1. */
static uint64_t cut_bytes(const struct aq_stage_config *config, uint32_t layer_end)
{
    struct aq_cut_shape cut;
    if (layer_end == 0 || layer_end == aq_model_layers(&config->model)) return 0;
    stage_model_find(config->model.kind)->cut(&config->model, layer_end, config->T, &cut);
    return (uint64_t)config->B * cut.rows * cut.columns * sizeof(float);
}

enum aq_status aq_stage_measure(const struct aq_stage_config *config, struct aq_stage_size *out)
{
    AQ_TRY(config_check(config));
    const struct stage_model *model = stage_model_find(config->model.kind);
    struct aq_tensor_info *tensors;
    uint32_t count;
    AQ_TRY(aq_stage_tensors(config, &tensors, &count));
    struct stage_memory sizes;
    model->measure(config, &sizes);
    *out = (struct aq_stage_size){.slot_bytes = sizes.slot_bytes,
                                  .workspace_bytes = sizes.workspace_bytes,
                                  .flops_forward = sizes.flops_forward,
                                  .flops_backward = sizes.flops_backward,
                                  .x_bytes = cut_bytes(config, config->layer_first),
                                  .y_bytes = cut_bytes(config, config->layer_end)};
    for (uint32_t i = 0; i < count; i++)
        out->parameters += tensors[i].count;
    out->parameter_bytes = out->parameters * sizeof(float);
    out->gradient_bytes = config->inference ? 0 : out->parameter_bytes;
    if (config->rounds && stage_type(config->precision) != AQ_F32)
        out->parameter_bytes += out->parameters * sizeof(uint16_t);
    aq_free(tensors);
    return AQ_OK;
}

static enum aq_status buffers_open(struct aq_stage *stage)
{
    const struct aq_stage_size *size = &stage->size;
    void *memory = NULL;
    AQ_TRY(aq_alloc((stage->tensor_count + 1) * sizeof *stage->tensors, &memory));
    stage->tensors = memory;
    stage->model->tensors(&stage->config, stage->tensors);
    AQ_TRY(aq_alloc((stage->tensor_count + 1) * sizeof *stage->spans, &memory));
    stage->spans = memory;
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        stage->spans[i] = (struct aq_range){stage->tensors[i].offset, stage->tensors[i].count};
    AQ_TRY(aq_alloc((stage->tensor_count + 1) * sizeof *stage->squares, &memory));
    stage->squares = memory;
    AQ_TRY(aq_alloc(stage->config.slots * sizeof *stage->forwarded, &memory));
    stage->forwarded = memory;
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->parameter_bytes, &memory));
    stage->parameters = memory;
    if (stage->config.rounds && stage_type(stage->config.precision) != AQ_F32)
        stage->rounded = (uint16_t *)(stage->parameters + size->parameters);
    if (size->gradient_bytes) {
        AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->gradient_bytes, &memory));
        stage->gradients = memory;
    }
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->slot_bytes * stage->config.slots, &memory));
    stage->slots = memory;
    AQ_TRY(aq_device_alloc(stage->device, AQ_MEMORY_DEVICE, size->workspace_bytes, &memory));
    stage->workspace = memory;
    return AQ_OK;
}

enum aq_status aq_stage_open(struct aq_device *device, const struct aq_stage_config *config, struct aq_stage **out)
{
    struct aq_stage_size size;
    struct aq_device_info info;
    struct aq_stage_config mine = *config;
    aq_device_info(device, &info);
    mine.rounds = info.rounds;
    if (config->precision == AQ_STAGE_TF32 && !info.tf32)
        return aq_fail(AQ_INVAL, "stage", "model.precision: tf32 is of GPUs, and this stage is on %s; say fp32",
                       info.name);
    AQ_TRY(aq_stage_measure(&mine, &size));
    void *memory = NULL;
    AQ_TRY(aq_alloc(sizeof(struct aq_stage), &memory));
    struct aq_stage *stage = memory;
    stage->device = device;
    stage->model = stage_model_find(config->model.kind);
    stage->config = mine;
    stage->config.model.kind = stage->model->kind; /* the caller's text may go */
    stage->size = size;
    stage->tensor_count = stage->model->tensors(config, NULL);
    enum aq_status status;
    AQ_TRY_GOTO(buffers_open(stage), out);
    AQ_TRY_GOTO(stage->model->open(stage, &stage->state), out);
    *out = stage;
    return AQ_OK;
out:
    aq_stage_close(stage);
    return status;
}

void aq_stage_close(struct aq_stage *stage)
{
    if (!stage) return;
    if (stage->state) stage->model->close(stage->state);
    const struct aq_stage_size *size = &stage->size;
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->workspace, size->workspace_bytes);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->slots, size->slot_bytes * stage->config.slots);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->gradients, size->gradient_bytes);
    aq_device_free(stage->device, AQ_MEMORY_DEVICE, stage->parameters, size->parameter_bytes);
    aq_free(stage->forwarded);
    aq_free(stage->squares);
    aq_free(stage->spans);
    aq_free(stage->tensors);
    aq_free(stage);
}

uint32_t aq_stage_tensor_count(const struct aq_stage *stage)
{
    return stage->tensor_count;
}

void aq_stage_tensor(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out)
{
    AQ_ASSERT(index < stage->tensor_count);
    *out = stage->tensors[index];
}

uint64_t aq_stage_parameter_count(const struct aq_stage *stage)
{
    return stage->size.parameters;
}

float *aq_stage_parameters(struct aq_stage *stage)
{
    return stage->parameters;
}

float *aq_stage_gradients(struct aq_stage *stage)
{
    return stage->gradients;
}

enum aq_status aq_stage_init(struct aq_stage *stage, uint64_t seed)
{
    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct aq_tensor_info *tensor = &stage->tensors[i];
        float std = 0.0f, value = 0.0f;
        const char *name = tensor->name;
        stage->model->initial(&stage->config, tensor, &std, &value, &name);
        const struct aq_rng_key key = aq_rng_key(seed, AQ_RNG_INIT, aq_digest(name, strlen(name)), 0);
        const struct aq_fill_normal fill = {
            .x = stage->parameters + tensor->offset, .count = tensor->count, .key = key, .std = std, .value = value};
        AQ_TRY(aq_device_fill_normal(stage->device, &fill, NULL));
    }
    return aq_stage_parameters_changed(stage, NULL);
}

/*
 * On a CPU products read the fp32 weights and round them on their way into packed panels: there is no copy to refresh.
 */
enum aq_status aq_stage_parameters_changed(struct aq_stage *stage, struct aq_stream *stream)
{
    const struct aq_dropout_apply round = {.samples = 1,
                                           .sample_elements = stage->size.parameters,
                                           .x = stage->parameters,
                                           .y = stage->rounded,
                                           .y_type = stage_type(stage->config.precision)};
    if (stage->rounded) AQ_TRY(aq_device_dropout(stage->device, &round, stream));
    return aq_device_stream_sync(stage->device, stream);
}

static enum aq_status input_check(const struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input)
{
    const struct aq_stage_config *config = &stage->config;
    const bool first = config->layer_first == 0;
    if (slot >= config->slots)
        return aq_fail(AQ_INVAL, "stage", "forward of slot %u: the stage has %u", slot, config->slots);
    if (input->samples == 0 || input->samples > config->B)
        return aq_fail(AQ_INVAL, "stage", "forward of %u samples: 1 to %u", input->samples, config->B);
    if (input->tokens_used > config->T)
        return aq_fail(AQ_INVAL, "stage", "forward of %u tokens: at most %u", input->tokens_used, config->T);
    if (first ? !input->tokens : !input->x)
        return aq_fail(AQ_INVAL, "stage", "forward of layer %u on wants %s", config->layer_first,
                       first ? "tokens" : "the activation of the stage before");
    if (!input->sample_ids && config->model.dropout > 0.0f && !input->evaluate)
        return aq_fail(AQ_INVAL, "stage", "forward with dropout wants sample ids");
    const uint32_t V = config->model.vocabulary, used = input->tokens_used ? input->tokens_used : config->T;
    for (uint32_t sample = 0; first && sample < input->samples; sample++) {
        for (uint32_t t = 0; t < used; t++) {
            const int32_t token = input->tokens[(uint64_t)sample * config->T + t];
            if (token < 0 || (uint32_t)token >= V)
                return aq_fail(AQ_INVAL, "stage", "token %d at %u of sample %u: the vocabulary has %u", token, t,
                               sample, V);
        }
    }
    if (config->layer_end != aq_model_layers(&config->model) || !input->targets) return AQ_OK;
    for (uint64_t i = 0; i < (uint64_t)input->samples * config->T; i++)
        if (input->targets[i] < -1 || input->targets[i] >= (int64_t)V)
            return aq_fail(AQ_INVAL, "stage", "target %d at %llu: the vocabulary has %u", input->targets[i],
                           (unsigned long long)i, V);
    return AQ_OK;
}

enum aq_status aq_stage_forward(struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input, float *y,
                                struct aq_stage_loss *loss, struct aq_stream *stream)
{
    AQ_TRY(input_check(stage, slot, input));
    const bool last = stage->config.layer_end == aq_model_layers(&stage->config.model);
    if (!last && !y) return aq_fail(AQ_INVAL, "stage", "forward of an inner stage wants room for its activation");
    stage->forwarded[slot] = false;
    AQ_TRY(stage->model->forward(stage->state, slot, input, y, loss, stream));
    stage->forwarded[slot] = !input->evaluate && !stage->config.inference && (!last || input->targets);
    return AQ_OK;
}

enum aq_status aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out)
{
    const bool last = stage->config.layer_end == aq_model_layers(&stage->config.model);
    if (!last || slot >= stage->config.slots)
        return aq_fail(AQ_INVAL, "stage", "the loss of slot %u: the last stage has one, and %u slots", slot,
                       stage->config.slots);
    stage->model->loss(stage->state, slot, out);
    return AQ_OK;
}

enum aq_status aq_stage_backward(struct aq_stage *stage, uint32_t slot, const float *dy, float *dx,
                                 struct aq_stream *stream)
{
    if (slot >= stage->config.slots || !stage->forwarded[slot])
        return aq_fail(AQ_INVAL, "stage", "backward of slot %u: no forward that keeps activations went before", slot);
    const bool last = stage->config.layer_end == aq_model_layers(&stage->config.model);
    if (!last && !dy) return aq_fail(AQ_INVAL, "stage", "backward of an inner stage wants its output's gradient");
    stage->forwarded[slot] = false;
    return stage->model->backward(stage->state, slot, dy, dx, stream);
}

enum aq_status aq_stage_zero_grads(struct aq_stage *stage, struct aq_stream *stream)
{
    if (!stage->gradients) return aq_fail(AQ_INVAL, "stage", "a stage for inference has no gradients");
    return aq_device_zero(stage->device, stage->gradients, stage->size.gradient_bytes, stream);
}

enum aq_status aq_stage_gradient_squares(struct aq_stage *stage, double *squares, struct aq_stream *stream)
{
    if (!stage->gradients) return aq_fail(AQ_INVAL, "stage", "a stage for inference has no gradients");
    return aq_device_squares(stage->device, stage->gradients, stage->spans, stage->tensor_count, squares, stream);
}

enum aq_status aq_stage_gradient_sum2(struct aq_stage *stage, double *sum, struct aq_stream *stream)
{
    AQ_TRY(aq_stage_gradient_squares(stage, stage->squares, stream));
    for (uint32_t i = stage->tensor_count; i-- > 0;)
        *sum += stage->squares[i];
    return AQ_OK;
}

enum aq_status aq_stage_logits(struct aq_stage *stage, uint32_t slot, uint32_t position, float *logits,
                               struct aq_stream *stream)
{
    if (stage->config.layer_end != aq_model_layers(&stage->config.model))
        return aq_fail(AQ_INVAL, "stage", "logits come from the last stage alone");
    if (slot >= stage->config.slots || position >= stage->config.T)
        return aq_fail(AQ_INVAL, "stage", "logits of slot %u, position %u: %u slots, %u positions", slot, position,
                       stage->config.slots, stage->config.T);
    return stage->model->logits(stage->state, slot, position, logits, stream);
}
