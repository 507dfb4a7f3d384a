/*
 * optimizer.c -- what all optimizers have in common: the table of kinds, memory, checks, and the sequence of rounds.
 */
#include "optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define AREA "optimizer"

static const struct aq_optimizer_kind *const kinds[] = {
#define AQ_OPTIMIZER(name) &aq_optimizer_##name,
#include "aqsgd/optimizers.def"
};

enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static const struct aq_optimizer_group alone = {.rank = 0, .size = 1};

static const struct aq_optimizer_kind *find_kind(const char *name)
{
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (name && strcmp(kinds[i]->name, name) == 0) return kinds[i];
    }
    return NULL;
}

const struct aq_optimizer_kind *aq_optimizer_kind_of(const struct aq_optimizer_config *config)
{
    return find_kind(config->kind);
}

const char *aq_optimizer_kind_name(uint32_t index)
{
    return index < KIND_COUNT ? kinds[index]->name : NULL;
}

enum aq_status aq_optimizer_check_range(const char *field, float value, float least, float below)
{
    if (value >= least && value < below) return AQ_OK; /* false for NaN too */
    return aq_fail(AQ_INVAL, AREA, "%s is %g, must be at least %g and below %g", field, (double)value, (double)least,
                   (double)below);
}

enum aq_status aq_optimizer_check_adam(const struct aq_optimizer_config *config)
{
    AQ_TRY(aq_optimizer_check_range("beta1", config->beta1, 0.0f, 1.0f));
    AQ_TRY(aq_optimizer_check_range("beta2", config->beta2, 0.0f, 1.0f));
    /* Zero would divide zero by zero where a parameter never had a gradient. */
    return aq_optimizer_check_range("epsilon", config->epsilon, 1e-30f, INFINITY);
}

void aq_optimizer_config_default(struct aq_optimizer_config *out, const char *kind)
{
    const struct aq_optimizer_kind *found = find_kind(kind);
    *out = (struct aq_optimizer_config){.kind = found ? found->name : kind, .error_feedback = true};
    aq_grad_codec_config_default(&out->reduce, "fp32");
    if (found) found->config_default(out);
}

/* A config that names no codec means fp32. */
static struct aq_grad_codec_config reduce_of(const struct aq_optimizer_config *config)
{
    struct aq_grad_codec_config reduce = config->reduce;
    if (!reduce.kind) aq_grad_codec_config_default(&reduce, "fp32");
    return reduce;
}

enum aq_status aq_optimizer_config_check(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    char known[AQ_GRAD_LIST_BYTES];
    if (!kind)
        return aq_fail(AQ_INVAL, AREA, "kind: there is no optimizer \"%s\"; known are %s",
                       config->kind ? config->kind : "(none)",
                       aq_grad_list(known, sizeof known, aq_optimizer_kind_name));
    AQ_TRY(aq_optimizer_check_range("weight_decay", config->weight_decay, 0.0f, INFINITY));
    const struct aq_grad_codec_config reduce = reduce_of(config);
    AQ_TRY(aq_grad_codec_config_check(&reduce));
    if (config->low_rank > 0 && !kind->averages_gradients)
        return aq_fail(AQ_INVAL, AREA,
                       "low_rank: %s sends no gradients, and only gradients can be compressed to a low rank",
                       kind->name);
    if (config->low_rank > 0 && !aq_grad_codec_config_plain(&reduce))
        return aq_fail(AQ_INVAL, AREA, "low_rank needs reduce fp32, not %s", reduce.kind);
    if (kind->averages_gradients && aq_grad_codec_config_signs(&reduce))
        return aq_fail(AQ_INVAL, AREA, "reduce: %s needs gradients with a size; vote sends only signs", kind->name);
    AQ_TRY(aq_optimizer_outer_check(config, kind->averages_gradients));
    return kind->config_check(config);
}

/* Checks that tensors are in order, within the buffer and apart; copies those that are not empty. */
static enum aq_status copy_tensors(const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                   struct aq_optimizer *optimizer)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        const struct aq_optimizer_tensor *tensor = &tensors[i];
        if (tensor->offset < end || tensor->offset > optimizer->parameters ||
            tensor->count > optimizer->parameters - tensor->offset)
            return aq_fail(AQ_INVAL, AREA, "tensor %u has floats %llu + %llu; free are %llu to %llu", (unsigned)i,
                           (unsigned long long)tensor->offset, (unsigned long long)tensor->count,
                           (unsigned long long)end, (unsigned long long)optimizer->parameters);
        if (tensor->rows > 1 && tensor->count % tensor->rows != 0)
            return aq_fail(AQ_INVAL, AREA, "tensor %u has %llu floats, which is not a multiple of its %llu rows",
                           (unsigned)i, (unsigned long long)tensor->count, (unsigned long long)tensor->rows);
        if (tensor->count == 0) continue;
        struct aq_optimizer_tensor *copy = &optimizer->tensors[optimizer->tensor_count++];
        *copy = *tensor;
        copy->name = NULL;
        if (copy->rate == 0.0f) copy->rate = 1.0f;
        optimizer->rated = optimizer->rated || copy->rate != 1.0f;
        if (!(copy->rate > 0.0f && isfinite(copy->rate)))
            return aq_fail(AQ_INVAL, AREA, "tensor %u has a rate of %g", (unsigned)i, (double)tensor->rate);
        if (tensor->name) {
            char *text;
            AQ_TRY(aq_alloc_text(tensor->name, &text));
            copy->name = text;
        }
        end = tensor->offset + tensor->count;
    }
    return AQ_OK;
}

static enum aq_status take(struct aq_optimizer *optimizer, const char *name, uint64_t count,
                           enum aq_state_class belongs, enum aq_memory_kind where, float **out)
{
    void *memory = NULL;
    AQ_ASSERT(optimizer->state_count < AQ_OPTIMIZER_STATES_MAX);
    optimizer->measured += count * sizeof(float);
    if (!optimizer->measuring)
        AQ_TRY(aq_device_alloc(optimizer->device, where, (size_t)count * sizeof(float), &memory));
    optimizer->states[optimizer->state_count++] = (struct aq_optimizer_array){
        .info = {.name = name, .count = count, .of = count, .belongs = belongs}, .where = where, .values = memory};
    *out = memory;
    return AQ_OK;
}

enum aq_status aq_optimizer_take(struct aq_optimizer *optimizer, const char *name, uint64_t count,
                                 enum aq_state_class belongs, float **out)
{
    return take(optimizer, name, count, belongs, AQ_MEMORY_DEVICE, out);
}

enum aq_status aq_optimizer_take_few(struct aq_optimizer *optimizer, const char *name, uint64_t count,
                                     enum aq_state_class belongs, float **out)
{
    return take(optimizer, name, count, belongs, AQ_MEMORY_PINNED, out);
}

static enum aq_status scratch(struct aq_optimizer *optimizer, bool mapped, enum aq_memory_kind where, size_t bytes,
                              void **out)
{
    void *memory = NULL;
    AQ_ASSERT(optimizer->scratch_count < AQ_OPTIMIZER_SCRATCH_MAX);
    optimizer->measured += bytes;
    if (!optimizer->measuring)
        AQ_TRY(mapped ? aq_map(bytes, &memory) : aq_device_alloc(optimizer->device, where, bytes, &memory));
    optimizer->scratch[optimizer->scratch_count++] =
        (struct aq_optimizer_scratch){.mapped = mapped, .where = where, .memory = memory, .bytes = bytes};
    *out = memory;
    return AQ_OK;
}

enum aq_status aq_optimizer_scratch(struct aq_optimizer *optimizer, size_t bytes, void **out)
{
    return scratch(optimizer, true, AQ_MEMORY_PINNED, bytes, out);
}

enum aq_status aq_optimizer_scratch_device(struct aq_optimizer *optimizer, size_t bytes, void **out)
{
    return scratch(optimizer, false, AQ_MEMORY_DEVICE, bytes, out);
}

enum aq_status aq_optimizer_scratch_pinned(struct aq_optimizer *optimizer, size_t bytes, void **out)
{
    return scratch(optimizer, false, AQ_MEMORY_PINNED, bytes, out);
}

enum aq_status aq_optimizer_take_errors(struct aq_optimizer *optimizer)
{
    const struct aq_optimizer_config *config = &optimizer->config;
    if (optimizer->group.size == 1 || !config->error_feedback || !aq_grad_codec_config_lossy(&config->reduce))
        return AQ_OK;
    /* With outer_delay a host's thread codes movements during the device's steps. */
    const enum aq_memory_kind where =
        aq_optimizer_is_local(optimizer) && config->outer_delay > 0 ? AQ_MEMORY_PINNED : AQ_MEMORY_DEVICE;
    uint64_t first, chunk;
    AQ_TRY(
        take(optimizer, "worker_error", optimizer->parameters, AQ_STATE_WORKER_ERROR, where, &optimizer->worker_error));
    if (!aq_grad_codec_config_keeps_server(&config->reduce)) return AQ_OK;
    aq_grad_chunk(optimizer->parameters, optimizer->group.size, optimizer->group.rank, &first, &chunk);
    AQ_TRY(take(optimizer, "server_error", chunk, AQ_STATE_SERVER_ERROR, where, &optimizer->server_error));
    optimizer->states[optimizer->state_count - 1].info.of = optimizer->parameters;
    return AQ_OK;
}

/* Everything that open takes for the kind. */
static enum aq_status place(struct aq_optimizer *optimizer)
{
    AQ_TRY(aq_optimizer_cut(optimizer));
    AQ_TRY(optimizer->kind->place(optimizer));
    AQ_TRY(aq_optimizer_outer_place(optimizer));
    AQ_TRY(aq_optimizer_predict_place(optimizer));
    AQ_TRY(aq_optimizer_average_place(optimizer));
    AQ_TRY(aq_optimizer_kept_place(optimizer));
    return aq_optimizer_choice_place(optimizer);
}

static enum aq_status open_codec(struct aq_optimizer *optimizer, const struct aq_optimizer_tensor *tensors,
                                 uint32_t tensor_count)
{
    const bool plain = aq_grad_codec_config_plain(&optimizer->config.reduce) || optimizer->config.reduce_automatic;
    if (optimizer->group.size == 1 || plain || optimizer->measuring || optimizer->parameters == 0) return AQ_OK;
    struct aq_grad_codec_config fp32;
    aq_grad_codec_config_default(&fp32, "fp32");
    if (aq_grad_codec_config_one_sided(&optimizer->config.reduce))
        AQ_TRY(aq_grad_codec_open(&fp32, tensors, tensor_count, optimizer->parameters, &optimizer->fp32));
    return aq_grad_codec_open(&optimizer->config.reduce, tensors, tensor_count, optimizer->parameters,
                              &optimizer->codec);
}

/* The texts of a config that an optimizer keeps: the table's, and copies. */
static enum aq_status keep_texts(struct aq_optimizer *optimizer)
{
    struct aq_optimizer_config *config = &optimizer->config;
    const char **const texts[] = {&config->form, &config->momentum_names, &config->mask_names};
    const char *wanted[sizeof texts / sizeof texts[0]];
    char *copy;
    config->kind = optimizer->kind->name;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        wanted[i] = *texts[i];
        *texts[i] = NULL;
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (!wanted[i]) continue;
        AQ_TRY(aq_alloc_text(wanted[i], &copy));
        *texts[i] = copy;
    }
    return AQ_OK;
}

static enum aq_status optimizer_make(struct aq_device *device, const struct aq_optimizer_config *config,
                                     const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                     uint64_t parameters, const struct aq_optimizer_group *group, bool measuring,
                                     struct aq_optimizer **out)
{
    AQ_TRY(aq_optimizer_config_check(config));
    if (parameters > SIZE_MAX / 8)
        return aq_fail(AQ_INVAL, AREA, "there is not enough memory for %llu parameters",
                       (unsigned long long)parameters);
    if (group->size == 0 || group->rank >= group->size)
        return aq_fail(AQ_INVAL, AREA, "rank %u of %u replicas", (unsigned)group->rank, (unsigned)group->size);
    struct aq_device_info info = {.host_memory = true};
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_optimizer), &memory));
    struct aq_optimizer *optimizer = memory;
    *optimizer = (struct aq_optimizer){.device = device,
                                       .kind = find_kind(config->kind),
                                       .config = *config,
                                       .group = *group,
                                       .parameters = parameters,
                                       .runs = aq_fused_runs_best(),
                                       .measuring = measuring};
    if (device) aq_device_info(device, &info);
    optimizer->isolated = !info.host_memory;
    optimizer->config.reduce = reduce_of(config);
    enum aq_status status;
    AQ_TRY_GOTO(keep_texts(optimizer), out);
    AQ_TRY_GOTO(aq_alloc((size_t)tensor_count * sizeof(struct aq_optimizer_tensor), &memory), out);
    optimizer->tensors = memory;
    AQ_TRY_GOTO(copy_tensors(tensors, tensor_count, optimizer), out);
    AQ_TRY_GOTO(open_codec(optimizer, tensors, tensor_count), out);
    AQ_TRY_GOTO(place(optimizer), out);
out:
    if (status != AQ_OK)
        aq_optimizer_close(optimizer);
    else
        *out = optimizer;
    return status;
}

bool aq_optimizer_config_averages(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    return kind && kind->averages_gradients && !aq_optimizer_config_local(config);
}

const char *aq_optimizer_config_takes(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    if (kind->takes) return kind->takes(config);
    const bool signs = aq_grad_codec_config_signs(&config->reduce);
    if (kind->averages_gradients) return signs ? "any codec but vote, which has no sizes" : NULL;
    return signs || config->low_rank > 0 ? "fp32, fp16, bf16, q8..q2, lp8..lp2 or sign" : NULL;
}

bool aq_optimizer_config_codes(const struct aq_optimizer_config *config)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    return !kind->codes || kind->codes(config);
}

bool aq_optimizer_config_drifts(const struct aq_optimizer_config *config, uint64_t step)
{
    const struct aq_optimizer_kind *kind = find_kind(config->kind);
    if (aq_optimizer_config_local(config)) return step % config->outer_every != 0;
    return kind->drifts && kind->drifts(config, step);
}

bool aq_optimizer_config_machines(const struct aq_optimizer_config *config)
{
    return find_kind(config->kind)->machines;
}

bool aq_optimizer_config_unpublished(const struct aq_optimizer_config *config)
{
    return find_kind(config->kind)->unpublished;
}

enum aq_status aq_optimizer_config_check_device(const struct aq_optimizer_config *config, char *why)
{
    char unread[AQ_OPTIMIZER_WHY_BYTES];
    if (!config->reduce.kind || aq_grad_codec_config_on_gpu(&config->reduce)) return AQ_OK;
    snprintf(why ? why : unread, AQ_OPTIMIZER_WHY_BYTES,
             "reduce.codec %s has no kernels for a GPU; take q8..q2, sign, bf16, fp16 or fp32", config->reduce.kind);
    return AQ_NODEV;
}

const struct aq_grad_codec *aq_optimizer_codec(const struct aq_optimizer *optimizer)
{
    return optimizer->codec;
}

enum aq_status aq_optimizer_open_group(struct aq_device *device, const struct aq_optimizer_config *config,
                                       const struct aq_optimizer_tensor *tensors, uint32_t tensor_count,
                                       uint64_t parameters, const struct aq_optimizer_group *group,
                                       struct aq_optimizer **out)
{
    struct aq_device_info info;
    char why[AQ_OPTIMIZER_WHY_BYTES];
    aq_device_info(device, &info);
    if (!info.host_memory && aq_optimizer_config_check_device(config, why) != AQ_OK)
        return aq_fail(AQ_NODEV, AREA, "%s", why);
    return optimizer_make(device, config, tensors, tensor_count, parameters, group ? group : &alone, false, out);
}

enum aq_status aq_optimizer_open(struct aq_device *device, const struct aq_optimizer_config *config,
                                 const struct aq_optimizer_tensor *tensors, uint32_t tensor_count, uint64_t parameters,
                                 struct aq_optimizer **out)
{
    return aq_optimizer_open_group(device, config, tensors, tensor_count, parameters, NULL, out);
}

uint64_t aq_optimizer_measure(const struct aq_optimizer_config *config, const struct aq_optimizer_tensor *tensors,
                              uint32_t tensor_count, uint64_t parameters, const struct aq_optimizer_group *group)
{
    struct aq_optimizer *optimizer = NULL;
    if (optimizer_make(NULL, config, tensors, tensor_count, parameters, group ? group : &alone, true, &optimizer) !=
        AQ_OK)
        return 0;
    const uint64_t bytes = optimizer->measured;
    aq_optimizer_close(optimizer);
    return bytes;
}

uint32_t aq_optimizer_state_floats(const struct aq_optimizer_config *config)
{
    /* A large round number of parameters, so that what does not grow with them does not count. */
    enum { PARAMETERS = 1 << 24 };
    const struct aq_optimizer_tensor whole = {.count = PARAMETERS, .decay = true};
    struct aq_optimizer *optimizer = NULL;
    uint64_t floats = 0;
    if (!find_kind(config->kind)) return 0;
    if (optimizer_make(NULL, config, &whole, 1, PARAMETERS, &alone, true, &optimizer) != AQ_OK) return 0;
    for (uint32_t i = 0; i < optimizer->state_count; i++)
        floats += optimizer->states[i].info.count / PARAMETERS;
    aq_optimizer_close(optimizer);
    return (uint32_t)floats;
}

void aq_optimizer_close(struct aq_optimizer *optimizer)
{
    if (!optimizer) return;
    for (uint32_t i = 0; i < optimizer->state_count && !optimizer->measuring; i++)
        aq_device_free(optimizer->device, optimizer->states[i].where, optimizer->states[i].values,
                       (size_t)optimizer->states[i].info.count * sizeof(float));
    for (uint32_t i = 0; i < optimizer->scratch_count && !optimizer->measuring; i++) {
        const struct aq_optimizer_scratch *piece = &optimizer->scratch[i];
        if (piece->mapped)
            aq_unmap(piece->memory, piece->bytes);
        else
            aq_device_free(optimizer->device, piece->where, piece->memory, piece->bytes);
    }
    aq_grad_codec_close(optimizer->codec);
    aq_grad_codec_close(optimizer->fp32);
    for (uint32_t t = 0; optimizer->tensors && t < optimizer->tensor_count; t++)
        aq_free((void *)(uintptr_t)optimizer->tensors[t].name);
    aq_free(optimizer->tensors);
    aq_free((void *)(uintptr_t)optimizer->config.form);
    aq_free((void *)(uintptr_t)optimizer->config.momentum_names);
    aq_free((void *)(uintptr_t)optimizer->config.mask_names);
    aq_free(optimizer);
}

uint32_t aq_optimizer_state_count(const struct aq_optimizer *optimizer)
{
    return optimizer->state_count;
}

float *aq_optimizer_state(struct aq_optimizer *optimizer, uint32_t index)
{
    AQ_ASSERT(index < optimizer->state_count);
    return optimizer->states[index].values;
}

const char *aq_optimizer_state_name(const struct aq_optimizer *optimizer, uint32_t index)
{
    AQ_ASSERT(index < optimizer->state_count);
    return optimizer->states[index].info.name;
}

void aq_optimizer_state_info(const struct aq_optimizer *optimizer, uint32_t index, struct aq_optimizer_state_info *out)
{
    AQ_ASSERT(index < optimizer->state_count);
    *out = optimizer->states[index].info;
}

/* ---- rounds ---- */

bool aq_optimizer_averages(const struct aq_optimizer *optimizer, uint64_t step)
{
    if (optimizer->group.size == 1 || aq_optimizer_is_local(optimizer)) return false;
    return optimizer->kind->averages ? optimizer->kind->averages(optimizer, step) : optimizer->kind->averages_gradients;
}

bool aq_optimizer_gauges(const struct aq_optimizer *optimizer)
{
    return optimizer->kind->gauges && optimizer->kind->gauges(optimizer);
}

enum aq_status aq_optimizer_gauge(struct aq_optimizer *optimizer, double *sum)
{
    return aq_optimizer_gauges(optimizer) ? optimizer->kind->gauge(optimizer, sum) : AQ_OK;
}

void aq_optimizer_gauged(struct aq_optimizer *optimizer, double total)
{
    optimizer->gauged = true;
    optimizer->gauge = total;
}

void aq_optimizer_figure_set(struct aq_optimizer *optimizer, const char *name, double value)
{
    AQ_ASSERT(optimizer->figure_count < AQ_OPTIMIZER_FIGURES_MAX);
    optimizer->figures[optimizer->figure_count++] = (struct aq_optimizer_figure){.name = name, .value = value};
}

void aq_optimizer_figures(const struct aq_optimizer *optimizer, struct aq_optimizer_figure *out, uint32_t *count)
{
    *count = optimizer->figure_count;
    for (uint32_t i = 0; i < optimizer->figure_count; i++)
        out[i] = optimizer->figures[i];
}

enum aq_status aq_optimizer_average(struct aq_optimizer *optimizer, float *gradients, uint64_t step,
                                    struct aq_stream *stream)
{
    if (step == 0) return aq_fail(AQ_INVAL, AREA, "steps count from 1");
    optimizer->call =
        (struct aq_optimizer_call){.averaging = true, .gradients = gradients, .step = step, .stream = stream};
    return AQ_OK;
}

enum aq_status aq_optimizer_begin(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                  float grad_scale, uint64_t step, struct aq_stream *stream)
{
    if (step == 0) return aq_fail(AQ_INVAL, AREA, "steps count from 1");
    if (!isfinite(lr) || !isfinite(grad_scale))
        return aq_fail(AQ_INVAL, AREA, "step %llu: the learning rate is %g, the gradients' scale %g",
                       (unsigned long long)step, (double)lr, (double)grad_scale);
    optimizer->figure_count = 0;
    optimizer->call = (struct aq_optimizer_call){.updating = true,
                                                 .parameters = parameters,
                                                 .update_gradients = gradients,
                                                 .lr = lr,
                                                 .grad_scale = grad_scale,
                                                 .step = step,
                                                 .stream = stream};
    return aq_optimizer_predict_leave(optimizer);
}

bool aq_optimizer_ends(struct aq_optimizer *optimizer, const struct aq_optimizer_ending *ending)
{
    struct aq_optimizer_call *call = &optimizer->call;
    AQ_ASSERT(call->updating && call->round == 0 && ending->gradients == call->update_gradients);
    /* If other versions of the parameters follow the update, it is not the last change of them. */
    if (!optimizer->kind->ends || aq_optimizer_is_local(optimizer) || optimizer->weights) return false;
    call->ending = *ending;
    return true;
}

enum aq_status aq_optimizer_begin_void(struct aq_optimizer *optimizer, float *parameters, uint64_t step,
                                       struct aq_stream *stream)
{
    if (step == 0) return aq_fail(AQ_INVAL, AREA, "steps count from 1");
    optimizer->gauged = false;
    optimizer->figure_count = 0;
    optimizer->call =
        (struct aq_optimizer_call){.void_step = true, .parameters = parameters, .step = step, .stream = stream};
    return aq_optimizer_predict_leave(optimizer);
}

void aq_optimizer_missed(struct aq_optimizer *optimizer, uint64_t steps)
{
    optimizer->missed = steps;
}

/* The update, or of a void step what is due all the same. */
static enum aq_status step_round(struct aq_optimizer *optimizer, uint32_t round, struct aq_reduce *out)
{
    struct aq_optimizer_call *call = &optimizer->call;
    if (!call->updated) {
        if (call->updating)
            AQ_TRY(optimizer->kind->update(optimizer, round, out));
        else if (optimizer->kind->due)
            AQ_TRY(optimizer->kind->due(optimizer, round, out));
        if (out->kind != AQ_REDUCE_NONE) return AQ_OK;
        call->updated = true;
    }
    if (aq_optimizer_is_local(optimizer)) AQ_TRY(aq_optimizer_outer_round(optimizer, call->outer_round++, out));
    return out->kind == AQ_REDUCE_NONE ? aq_optimizer_predict(optimizer) : AQ_OK;
}

enum aq_status aq_optimizer_round(struct aq_optimizer *optimizer, struct aq_reduce *out)
{
    struct aq_optimizer_call *call = &optimizer->call;
    *out = (struct aq_reduce){.kind = AQ_REDUCE_NONE};
    const uint32_t round = call->round++;
    if (optimizer->parameters == 0) { /* a stage that trains nothing: no replica of it has anything to send */
        *call = (struct aq_optimizer_call){0};
        return AQ_OK;
    }
    if (call->averaging)
        AQ_TRY(aq_optimizer_average_round(optimizer, round, out));
    else if (call->updating || call->void_step)
        AQ_TRY(step_round(optimizer, round, out));
    if (out->kind == AQ_REDUCE_NONE) *call = (struct aq_optimizer_call){0};
    return AQ_OK;
}

enum aq_status aq_optimizer_step(struct aq_optimizer *optimizer, float *parameters, const float *gradients, float lr,
                                 float grad_scale, uint64_t step, struct aq_stream *stream)
{
    struct aq_reduce reduce;
    if (optimizer->group.size > 1)
        return aq_fail(AQ_INVAL, AREA, "rank %u of %u cannot step without the others", (unsigned)optimizer->group.rank,
                       (unsigned)optimizer->group.size);
    AQ_TRY(aq_optimizer_begin(optimizer, parameters, gradients, lr, grad_scale, step, stream));
    AQ_TRY(aq_optimizer_round(optimizer, &reduce));
    AQ_ASSERT(reduce.kind == AQ_REDUCE_NONE);
    return AQ_OK;
}
