/*
 * optimizer.c -- what all optimizers have in common: the table of kinds, the state, the walk over the flat buffer.
 *
 * Tensors that touch and decay alike become one stretch, so that a model's hundred tensors cost a handful of calls.
 * What lies between tensors (padding) is never touched.
 */
#include "optimizer.h"

#include <math.h>
#include <string.h>

#define AREA "optimizer"

static const struct aq_optimizer_kind *const kinds[] = {
#define AQ_OPTIMIZER(name) &aq_optimizer_##name,
#include "optimizers.def"
#undef AQ_OPTIMIZER
};

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

struct aq_optimizer {
    struct aq_device *device; /* borrowed */
    const struct aq_optimizer_kind *kind;
    struct aq_optimizer_config config;
    uint64_t parameters;
    struct aq_optimizer_tensor *stretches; /* merged */
    uint32_t stretch_count;
    float *state[AQ_OPTIMIZER_STATES_MAX];
    uint32_t state_count;
};

static const struct aq_optimizer_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (name && strcmp(kinds[i]->name, name) == 0) return kinds[i];
    }
    return NULL;
}

enum aq_status aq_optimizer_check_range(const char *field, float value, float least, float below)
{
    if (value >= least && value < below) return AQ_OK; /* false for NaN too */
    return aq_fail(AQ_INVAL, AREA, "%s is %g, must be at least %g and below %g", field, (double)value, (double)least,
                   (double)below);
}

void aq_optimizer_config_default(struct aq_optimizer_config *out, const char *kind)
{
    const struct aq_optimizer_kind *found = find_kind(kind);
    *out = (struct aq_optimizer_config){.kind = found ? found->name : kind};
    if (found) found->config_default(out);
}

enum aq_status aq_optimizer_config_check(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    if (!kind)
        return aq_fail(AQ_INVAL, AREA, "kind: there is no optimizer \"%s\"; known are adamw and sgd",
                       config->kind ? config->kind : "(none)");
    AQ_TRY(aq_optimizer_check_range("weight_decay", config->weight_decay, 0.0f, INFINITY));
    return kind->config_check(config);
}

uint32_t aq_optimizer_state_floats(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    return kind ? kind->state_floats(config) : 0;
}

/* Checks that tensors are in order, within the buffer and apart, and writes the merged stretches. */
static enum aq_status merge_tensors(const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                    uint64_t parameters, struct aq_optimizer *optimizer)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        const struct aq_optimizer_tensor *tensor = &tensors[i];
        if (tensor->offset < end || tensor->offset > parameters || tensor->count > parameters - tensor->offset)
            return aq_fail(AQ_INVAL, AREA, "tensor %u has floats %llu + %llu; free are %llu to %llu", (unsigned)i,
                           (unsigned long long)tensor->offset, (unsigned long long)tensor->count,
                           (unsigned long long)end, (unsigned long long)parameters);
        struct aq_optimizer_tensor *last =
            optimizer->stretch_count ? &optimizer->stretches[optimizer->stretch_count - 1] : NULL;
        if (tensor->count == 0) continue;
        if (last && last->decay == tensor->decay && tensor->offset == end)
            last->count += tensor->count;
        else
            optimizer->stretches[optimizer->stretch_count++] = *tensor;
        end = tensor->offset + tensor->count;
    }
    return AQ_OK;
}

enum aq_status aq_optimizer_open(struct aq_device *device, const struct aq_optimizer_config *config,
                                 const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t parameters,
                                 struct aq_optimizer **out)
{
    AQ_TRY(aq_optimizer_config_check(config));
    if (parameters > SIZE_MAX / sizeof(float))
        return aq_fail(AQ_INVAL, AREA, "%llu parameters do not fit memory", (unsigned long long)parameters);
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_optimizer), &memory));
    struct aq_optimizer *optimizer = memory;
    *optimizer = (struct aq_optimizer){.device = device,
                                       .kind = find_kind(config->kind),
                                       .config = *config,
                                       .parameters = parameters};
    optimizer->config.kind = optimizer->kind->name; /* the caller's text need not live on */
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc((size_t)tensor_count * sizeof(struct aq_optimizer_tensor), &memory), out);
    optimizer->stretches = memory;
    AQ_TRY_GOTO(merge_tensors(tensors, tensor_count, parameters, optimizer), out);
    uint32_t states = optimizer->kind->state_floats(config);
    AQ_ASSERT(states <= AQ_OPTIMIZER_STATES_MAX);
    for (uint32_t i = 0; i < states; i++) {
        AQ_TRY_GOTO(aq_device_alloc(device, AQ_MEMORY_DEVICE, (size_t)parameters * sizeof(float), &memory), out);
        optimizer->state[i] = memory;
        optimizer->state_count++;
    }
out:
    if (status != AQ_OK)
        aq_optimizer_close(optimizer);
    else
        *out = optimizer;
    return status;
}

void aq_optimizer_close(struct aq_optimizer *optimizer)
{
    if (!optimizer) return;
    for (uint32_t i = 0; i < optimizer->state_count; i++)
        aq_device_free(optimizer->device, AQ_MEMORY_DEVICE, optimizer->state[i],
                       (size_t)optimizer->parameters * sizeof(float));
    aq_free(optimizer->stretches);
    aq_free(optimizer);
}

uint32_t aq_optimizer_state_count(const struct aq_optimizer *optimizer)
{
    return optimizer->state_count;
}

float *aq_optimizer_state(struct aq_optimizer *optimizer, uint32_t index)
{
    AQ_ASSERT(index < optimizer->state_count);
    return optimizer->state[index];
}

const char *aq_optimizer_state_name(const struct aq_optimizer *optimizer, uint32_t index)
{
    AQ_ASSERT(index < optimizer->state_count);
    return optimizer->kind->state_names[index];
}

enum aq_status aq_optimizer_step(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                 float grad_scale, uint64_t step, struct aq_stream *stream)
{
    if (step == 0) return aq_fail(AQ_INVAL, AREA, "steps count from 1");
    if (!isfinite(lr) || !isfinite(grad_scale))
        return aq_fail(AQ_INVAL, AREA, "step %llu: the learning rate is %g, the gradients' scale %g",
                       (unsigned long long)step, (double)lr, (double)grad_scale);
    for (uint32_t i = 0; i < optimizer->stretch_count; i++) {
        const struct aq_optimizer_tensor *stretch = &optimizer->stretches[i];
        struct aq_optimizer_update update = {.parameters = parameters + stretch->offset,
                                             .gradients = gradients + stretch->offset,
                                             .count = stretch->count,
                                             .lr = lr,
                                             .weight_decay = stretch->decay ? optimizer->config.weight_decay : 0.0f,
                                             .grad_scale = grad_scale,
                                             .step = step};
        for (uint32_t s = 0; s < optimizer->state_count; s++) update.state[s] = optimizer->state[s] + stretch->offset;
        AQ_TRY(optimizer->kind->update(optimizer->device, &optimizer->config, &update, stream));
    }
    return AQ_OK;
}
