/*
 * stage_run.c -- a stage's forward and backward: what the host knows goes to the device, then layer after layer, and
 * back.
 */
#include <string.h>

#include "aqsgd/device_graph.h"
#include "stage_model.h"

static bool is_last(const struct aq_stage *stage)
{
    return stage->config.layer_end == aq_model_layers(&stage->config.model);
}

const void *layer_operand(const struct layer_run *run, const float *weights, enum aq_element *type)
{
    const struct aq_stage *stage = run->stage;
    const uint64_t at = (uint64_t)(weights - stage->parameters);
    const uint64_t trained = stage->size.parameters + stage->size.copied; /* what the device has in 16 bits first */
    const uintptr_t first = (uintptr_t)stage->previous, own = (uintptr_t)weights;
    *type = stage->rounded[0] ? stage_type(stage->config.precision) : AQ_F32;
    if (!stage->rounded[0]) return weights;
    if (stage->previous && own >= first && own < first + trained * sizeof *weights)
        return stage->rounded[1] + (weights - stage->previous);
    return stage->rounded[0] + (at < trained ? at : at - (stage->size.buffers - stage->size.copied));
}

/* The CPU reads any type while it packs panels; a GPU's library needs both operands in one. */
bool layer_reads_bf16(const struct layer_run *run)
{
    return !run->stage->one_type || stage_type(run->config->precision) == AQ_BF16;
}

void *layer_unpacked(const struct aq_stage *stage)
{
    return stage->unpacked;
}

void *layer_rounded(const struct aq_stage *stage)
{
    return stage->ending;
}

struct layer_adapter_memory layer_adapter_memory(const struct aq_stage *stage)
{
    return stage->adapters;
}

static struct layer_run run_of(struct aq_stage *stage, uint32_t index, uint32_t l, struct aq_stream *stream)
{
    const struct stage_slot *slot = &stage->slots[index];
    struct stage_layer *layer = &stage->layers[l];
    const struct layer *of = &layer->layer;
    const struct aq_rng_key *adapter_keys =
        slot->adapters_dropped && slot->keys ? slot->keys + (uint64_t)layer->adapter_site * stage->config.B : NULL;
    /* A sample cut short has fewer rows of every shape. */
    const uint64_t samples = slot->samples, T = stage->config.T;
    return (struct layer_run){.stage = stage,
                              .device = stage->device,
                              .config = &stage->config,
                              .layer = of,
                              .task = stage->task,
                              .w = layer->w[stage->version],
                              .g = layer->g[stage->gradient],
                              .packed = layer->packed,
                              .state = layer->state,
                              .slot = slot->kept[l],
                              .slot_index = index,
                              .samples = slot->samples,
                              .tokens = slot->tokens,
                              .first = slot->first,
                              .rows_in = samples * of->in.rows * slot->tokens / T,
                              .rows_out = samples * of->out.rows * slot->tokens / T,
                              .loss_factor = slot->loss_factor,
                              .train = slot->train,
                              .compares = slot->compares,
                              .dropped = slot->dropped,
                              .split = stage->config.split,
                              .lengths = slot->shorter ? slot->lengths : NULL,
                              .host_lengths = slot->shorter ? slot->host_lengths : NULL,
                              .starts = slot->parted ? slot->starts : NULL,
                              .keys = slot->keys ? slot->keys + (uint64_t)layer->site * stage->config.B : NULL,
                              .adapter_keys = adapter_keys,
                              .stream = stream};
}

enum aq_status stage_layers_fill(struct aq_stage *stage)
{
    for (uint32_t l = 0; l < stage->layer_count; l++) {
        const struct layer_run run = run_of(stage, 0, l, NULL);
        if (run.layer->kind->open) AQ_TRY(run.layer->kind->open(&run));
    }
    return AQ_OK;
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

static enum aq_status lengths_check(const struct aq_stage_config *config, const struct aq_batch *batch)
{
    if (batch->lengths && !config->lengths)
        return aq_fail(AQ_INVAL, "stage", "samples with lengths, but the stage was opened for whole samples");
    for (uint32_t i = 0; batch->lengths && i < batch->samples; i++)
        if (batch->lengths[i] == 0 || batch->lengths[i] > config->T)
            return aq_fail(AQ_INVAL, "stage", "sample %u has %u tokens: 1 to %u", i, batch->lengths[i], config->T);
    return AQ_OK;
}

/* Each part's tokens must have its first token as start, and parts must be in order. */
static enum aq_status starts_check(const struct aq_stage_config *config, const struct aq_stage_input *input)
{
    const struct aq_batch *batch = input->batch;
    if (!batch->starts) return AQ_OK;
    if (!config->parts || input->tokens_used)
        return aq_fail(AQ_INVAL, "stage",
                       "the stage was opened for samples without parts, or to generate, and these have parts");
    for (uint32_t i = 0; i < batch->samples; i++) {
        const uint32_t *starts = batch->starts + (uint64_t)i * config->T;
        for (uint32_t t = 0; t < config->T; t++)
            if (starts[t] != t && (t == 0 || starts[t] != starts[t - 1]))
                return aq_fail(AQ_INVAL, "stage", "sample %u: token %u is of a part that starts at %u", i, t,
                               starts[t]);
    }
    return AQ_OK;
}

/* Are the tokens before these ones of this very slot's last forward, or of one before it? */
static enum aq_status before_check(const struct aq_stage *stage, const struct stage_slot *slot,
                                   const struct aq_stage_input *input)
{
    const uint32_t used = input->tokens_used ? input->tokens_used : stage->config.T;
    if (input->tokens_before == 0) return AQ_OK;
    if (!stage->config.extends || input->batch->samples != 1 || slot->compares)
        return aq_fail(AQ_INVAL, "stage", "tokens behind others: one sample of a stage that extends, without targets");
    const uint32_t had = slot->first + slot->tokens;
    for (uint32_t l = 0; l < stage->layer_count; l++)
        if (stage->layers[l].layer.onward && input->tokens_before != had)
            return aq_fail(AQ_INVAL, "stage", "tokens behind %u: %s has computed %u, and cannot go back",
                           input->tokens_before, stage->layers[l].layer.name, had);
    if (input->tokens_before < used && input->tokens_before <= had) return AQ_OK;
    return aq_fail(AQ_INVAL, "stage", "%u tokens behind %u: the slot has had %u", used - input->tokens_before,
                   input->tokens_before, had);
}

static enum aq_status input_check(const struct aq_stage *stage, uint32_t slot, const struct aq_stage_input *input)
{
    const struct aq_stage_config *config = &stage->config;
    const bool first = config->layer_first == 0;
    const struct layer *last = &stage->layers[stage->layer_count - 1].layer;
    if (slot >= config->slots)
        return aq_fail(AQ_INVAL, "stage", "forward of slot %u: the stage has %u", slot, config->slots);
    const struct aq_batch *batch = input->batch;
    if (!batch || batch->samples == 0 || batch->samples > config->B)
        return aq_fail(AQ_INVAL, "stage", "forward of %u samples: 1 to %u", batch ? batch->samples : 0, config->B);
    if (input->tokens_used > config->T)
        return aq_fail(AQ_INVAL, "stage", "forward of %u tokens: at most %u", input->tokens_used, config->T);
    if (!first && !input->x)
        return aq_fail(AQ_INVAL, "stage", "forward from layer %u on needs the activation of the stage before",
                       config->layer_first);
    if (!batch->sample_ids && stage->slots[slot].keys && !input->evaluate)
        return aq_fail(AQ_INVAL, "stage", "forward with dropout needs sample ids");
    AQ_TRY(lengths_check(config, batch));
    AQ_TRY(starts_check(config, input));
    AQ_TRY(before_check(stage, &stage->slots[slot], input));
    const struct layer *layer = &stage->layers[0].layer;
    const uint32_t used = input->tokens_used ? input->tokens_used : config->T;
    if (first) AQ_TRY(layer->kind->check(layer, config, batch, used));
    return stage->slots[slot].compares ? last->kind->check(last, config, batch, used) : AQ_OK;
}

/* A row of keys: of all samples of the micro-batch. */
static void key_row(struct stage_slot *slot, const struct aq_stage_input *input, enum aq_rng_purpose purpose,
                    uint64_t which, struct aq_rng_key *row)
{
    for (uint32_t sample = 0; sample < slot->samples; sample++)
        row[sample] = aq_rng_key(input->seed, purpose, which, input->batch->sample_ids[sample]);
}

/*
 * The keys of all masks of this micro-batch. They hold seed, step, the model's layer (not the stage's), site (of an
 * adapter: the number of the tensor that it adapts) and sample, so that a mask is the same wherever the model is cut
 * and in whatever micro-batch the sample comes.
 */
static enum aq_status keys_make(const struct aq_stage *stage, struct stage_slot *slot,
                                const struct aq_stage_input *input, struct aq_stream *stream)
{
    const uint32_t B = stage->config.B;
    uint64_t row = 0;
    for (uint32_t l = 0; l < stage->layer_count; l++) {
        const struct layer *layer = &stage->layers[l].layer;
        for (uint32_t site = 0; slot->dropped && site < layer->kind->sites; site++, row++)
            key_row(slot, input, AQ_RNG_DROPOUT, input->step << 20 | (uint64_t)layer->number << 4 | site,
                    slot->host_keys + row * B);
        for (uint32_t k = 0; slot->adapters_dropped && k < LAYER_TENSORS_MAX; k++) {
            if (!(layer->adapted >> k & 1)) continue;
            const uint64_t first = row + layer->adapters[k] - layer->adapter_first;
            for (uint32_t i = 0; i < 2; i++)
                key_row(slot, input, AQ_RNG_ADAPTER, input->step << 24 | (uint64_t)layer->number << 8 | 2 * k | i,
                        slot->host_keys + (first + i) * B);
        }
        for (uint64_t left = slot->adapters_dropped ? layer->adapted : 0; left; left &= left - 1)
            row += 2;
    }
    return aq_device_copy(stage->device, slot->keys, slot->host_keys, (size_t)row * B * sizeof *slot->keys, stream);
}

/* Copies the micro-batch's inputs to the device. The slot's last copies must have been made by then. */
static enum aq_status input_take(struct aq_stage *stage, uint32_t index, const struct aq_stage_input *input,
                                 struct aq_stream *stream)
{
    struct stage_slot *slot = &stage->slots[index];
    const uint32_t used = input->tokens_used ? input->tokens_used : stage->config.T, end = stage->layer_count - 1;
    enum aq_status status = aq_device_event_query(stage->device, slot->copied);
    if (status == AQ_AGAIN) status = aq_device_stream_sync(stage->device, stream);
    AQ_TRY(status);
    if (slot->keys && slot->train) AQ_TRY(keys_make(stage, slot, input, stream));
    slot->parted = input->batch->starts != NULL;
    if (slot->parted) {
        const size_t bytes = (size_t)slot->samples * stage->config.T * sizeof *slot->starts;
        memcpy(slot->host_starts, input->batch->starts, bytes);
        AQ_TRY(aq_device_copy(stage->device, slot->starts, slot->host_starts, bytes, stream));
    }
    slot->shorter = input->batch->lengths != NULL;
    if (slot->shorter) {
        const size_t bytes = slot->samples * sizeof *slot->lengths;
        memcpy(slot->host_lengths, input->batch->lengths, bytes);
        AQ_TRY(aq_device_copy(stage->device, slot->lengths, slot->host_lengths, bytes, stream));
    }
    struct layer_run run = run_of(stage, index, 0, stream);
    if (stage->config.layer_first == 0) AQ_TRY(run.layer->kind->take(&run, input->batch, used));
    run = run_of(stage, index, end, stream);
    if (slot->compares) AQ_TRY(run.layer->kind->take(&run, input->batch, used));
    return aq_device_event_record(stage->device, slot->copied, stream);
}

static bool has_targets(const struct aq_stage *stage, const struct aq_batch *batch)
{
    for (uint32_t i = 0; batch && is_last(stage) && i < batch->field_count; i++)
        if (batch->fields[i].values && strcmp(batch->fields[i].name, stage->task->field) == 0) return true;
    return false;
}

static enum aq_status forward_layers(struct aq_stage *stage, uint32_t index, const float *x, float *y,
                                     struct aq_stream *stream)
{
    const struct stage_slot *slot = &stage->slots[index];
    const enum aq_element type = layer_stream(&stage->config);
    for (uint32_t l = 0; l < stage->layer_count; l++) {
        const struct layer_run run = run_of(stage, index, l, stream);
        const bool end = l + 1 == stage->layer_count;
        const uint64_t in = run.rows_in * run.layer->in.columns, out = run.rows_out * run.layer->out.columns;
        void *to = !end ? slot->x[l + 1] : stage->edge ? stage->edge : y;
        if (l == 0 && x) AQ_TRY(stage_stream_copy(&run, x, AQ_F32, in, slot->x[0], type));
        AQ_TRY(run.layer->kind->forward(&run, slot->x[l], to));
        if (end && stage->edge) AQ_TRY(stage_stream_copy(&run, stage->edge, type, out, y, AQ_F32));
    }
    return AQ_OK;
}

enum aq_status aq_stage_forward(struct aq_stage *stage, uint32_t index, const struct aq_stage_input *input, float *y,
                                struct aq_stage_loss *loss, struct aq_stream *stream)
{
    const struct aq_stage_config *config = &stage->config;
    struct stage_slot *slot = index < config->slots ? &stage->slots[index] : &stage->slots[0];
    slot->compares = has_targets(stage, input->batch);
    AQ_TRY(input_check(stage, index, input));
    const bool last = is_last(stage), train = !input->evaluate && !config->inference;
    if (!last && !y) return aq_fail(AQ_INVAL, "stage", "forward of an inner stage needs room for its activation");
    slot->forwarded = slot->halved = false;
    slot->samples = input->batch->samples;
    /* One sample cut short is a shorter sample; several keep their length, and causality keeps the rest away. */
    slot->tokens = slot->samples == 1 && input->tokens_used ? input->tokens_used : config->T;
    slot->first = input->tokens_before;
    slot->tokens -= slot->first;
    slot->loss_factor = input->loss_factor;
    slot->train = train;
    slot->dropped = config->model.dropout > 0.0f && train;
    slot->adapters_dropped = config->lora.dropout > 0.0f && train;
    AQ_TRY(input_take(stage, index, input, stream));
    enum aq_status status;
    AQ_TRY(aq_device_graph_begin(stage->device, stage->graph, stream));
    do
        status = forward_layers(stage, index, config->layer_first == 0 ? NULL : input->x, y, stream);
    while (aq_device_graph_again(stage->device, stage->graph, &status));
    AQ_TRY(status);
    slot->forwarded = train && (!last || slot->compares);
    if (!last || !slot->compares || !loss) return AQ_OK;
    AQ_TRY(aq_device_stream_sync(stage->device, stream));
    return aq_stage_loss(stage, index, loss);
}

enum aq_status aq_stage_loss(struct aq_stage *stage, uint32_t slot, struct aq_stage_loss *out)
{
    if (!is_last(stage) || slot >= stage->config.slots)
        return aq_fail(AQ_INVAL, "stage", "there is no loss of slot %u: only the last stage has losses, in %u slots",
                       slot, stage->config.slots);
    const struct layer_run run = run_of(stage, slot, stage->layer_count - 1, NULL);
    *out = (struct aq_stage_loss){0};
    run.layer->kind->count(&run, out);
    return AQ_OK;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/*
 * One layer: *gradient: of its output (NULL: it makes the loss), then of its input. made: the layer above has made its
 * ending; then whether it has made the ending of the layer below.
 */
static enum aq_status backward_layer(struct aq_stage *stage, uint32_t index, uint32_t l, float *caller,
                                     const float **gradient, bool *made, struct aq_stream *stream)
{
    const struct stage_slot *slot = &stage->slots[index];
    const struct stage_layer *layer = &stage->layers[l];
    const struct layer_kind *kind = layer->layer.kind, *under = l > 0 ? stage->layers[l - 1].layer.kind : NULL;
    struct layer_run run = run_of(stage, index, l, stream);
    float *dx = layer->flow == STAGE_FLOW_OUT ? caller : stage->flow[layer->flow];
    if (!kind->backward) return AQ_OK; /* a first layer that has nothing to train */
    if (!layer->layer.passes && !kind->in_place) dx = NULL;
    AQ_ASSERT(dx || !kind->in_place);
    run.made = *made;
    if (kind->in_place && *gradient != dx) {
        const size_t bytes = (size_t)run.rows_in * run.layer->in.columns * sizeof *dx;
        AQ_TRY(aq_device_copy(stage->device, dx, *gradient, bytes, stream));
        *gradient = dx;
    }
    if (layer->again) {
        run.again = true;
        AQ_TRY(kind->forward(&run, slot->x[l], NULL));
        run.again = false;
    }
    struct layer_ending below;
    *made = layer->layer.passes && under && under->ending && kind->makes_ending && !slot->dropped;
    if (*made) {
        const struct layer_run next = run_of(stage, index, l - 1, stream);
        under->ending(&next, &below);
    }
    AQ_TRY(kind->backward(&run, slot->x[l], *gradient, dx, *made ? &below : NULL));
    *gradient = dx;
    return AQ_OK;
}

static enum aq_status backward_layers(struct aq_stage *stage, uint32_t index, const float *dy, float *dx,
                                      struct aq_stream *stream)
{
    const float *gradient = is_last(stage) ? NULL : dy;
    bool made = false;
    for (uint32_t l = stage->layer_count; l-- > 0 && layer_learns(&stage->layers[l].layer);)
        AQ_TRY(backward_layer(stage, index, l, dx, &gradient, &made, stream));
    const struct layer_run first = run_of(stage, index, 0, stream);
    if (!dx || first.layer->passes) return AQ_OK;
    return aq_device_zero(stage->device, dx, first.rows_in * first.layer->in.columns * sizeof *dx, stream);
}

enum aq_status aq_stage_backward(struct aq_stage *stage, uint32_t index, const float *dy, float *dx,
                                 struct aq_stream *stream)
{
    if (index >= stage->config.slots || !stage->slots[index].forwarded)
        return aq_fail(AQ_INVAL, "stage", "backward of slot %u: no forward that keeps activations went before", index);
    if (!is_last(stage) && !dy)
        return aq_fail(AQ_INVAL, "stage", "backward of an inner stage needs its output's gradient");
    if (stage->config.layer_first > 0 && !dx)
        return aq_fail(AQ_INVAL, "stage", "backward of an inner stage needs room for its input's gradient");
    stage->slots[index].forwarded = false;
    stage->slots[index].halved = stage->config.split;
    enum aq_status status;
    AQ_TRY(aq_device_graph_begin(stage->device, stage->graph, stream));
    do
        status = backward_layers(stage, index, dy, dx, stream);
    while (aq_device_graph_again(stage->device, stage->graph, &status));
    return status;
}

/* Without a graph: a stage with a split backward has none (stage.c, graph_open). */
enum aq_status aq_stage_weights(struct aq_stage *stage, uint32_t index, struct aq_stream *stream)
{
    if (index >= stage->config.slots || !stage->slots[index].halved)
        return aq_fail(AQ_INVAL, "stage", "the weight half of slot %u: no split backward went before", index);
    stage->slots[index].halved = false;
    for (uint32_t l = stage->layer_count; l-- > 0 && layer_learns(&stage->layers[l].layer);) {
        const struct layer_run run = run_of(stage, index, l, stream);
        if (run.layer->kind->weights) AQ_TRY(run.layer->kind->weights(&run, stage->slots[index].x[l]));
    }
    return AQ_OK;
}

enum aq_status aq_stage_logits(struct aq_stage *stage, uint32_t slot, uint32_t position, float *logits,
                               struct aq_stream *stream)
{
    if (!is_last(stage)) return aq_fail(AQ_INVAL, "stage", "only the last stage has logits");
    if (slot >= stage->config.slots || position >= stage->config.T)
        return aq_fail(AQ_INVAL, "stage", "logits of slot %u, position %u: %u slots, %u positions", slot, position,
                       stage->config.slots, stage->config.T);
    if (!stage->layers[stage->layer_count - 1].layer.kind->output)
        return aq_fail(AQ_INVAL, "stage", "a model of kind %s has no logits to give", stage->config.model.kind);
    const uint32_t first = stage->slots[slot].first, end = first + stage->slots[slot].tokens;
    if (position < first || position >= end)
        return aq_fail(AQ_INVAL, "stage", "logits of position %u: the last forward computed %u to %u", position, first,
                       end);
    const struct layer_run run = run_of(stage, slot, stage->layer_count - 1, stream);
    AQ_TRY(run.layer->kind->output(&run, position - first, logits));
    return aq_device_stream_sync(stage->device, stream);
}
