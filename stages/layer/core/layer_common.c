/* layer_common.c -- sums and masks as layers use them. See layer.h. */
#include "layer.h"

#include <math.h>
#include <string.h>

struct aq_dropout layer_dropout(const struct layer_run *run, uint32_t site)
{
    if (!run->dropped) return (struct aq_dropout){0};
    return (struct aq_dropout){.probability = run->config->model.dropout,
                               .keys = run->keys + (uint64_t)site * run->config->B};
}

enum aq_status layer_first_rows(const struct layer_run *run, float *x, float *first, bool back)
{
    const uint64_t C = run->layer->in.columns;
    for (uint64_t i = 0; i < run->samples; i++) {
        float *row = x + i * run->tokens * C, *one = first + i * C;
        AQ_TRY(aq_device_copy(run->device, back ? row : one, back ? one : row, C * sizeof *x, run->stream));
    }
    return AQ_OK;
}

enum aq_status layer_column_sum(const struct layer_run *run, const void *x, uint64_t rows, uint64_t columns,
                                float *sums)
{
    if (!sums) return AQ_OK;
    const struct aq_column_sum args = {.rows = rows,
                                       .C = columns,
                                       .stride = columns,
                                       .x = x,
                                       .type = stage_type(run->config->precision),
                                       .sums = sums};
    return aq_device_column_sum(run->device, &args, run->stream);
}

enum aq_status layer_check_field(const struct aq_batch *batch, const char *name, uint32_t count, uint32_t used,
                                 int32_t least, uint32_t bound)
{
    const int32_t *values = aq_batch_find(batch, name, AQ_FIELD_I32, count);
    if (!values) return aq_fail(AQ_INVAL, "stage", "the batch has no %s of %u values per sample", name, count);
    for (uint32_t sample = 0; sample < batch->samples; sample++)
        for (uint32_t i = 0; i < used; i++) {
            const int32_t value = values[(uint64_t)sample * count + i];
            if (value < least || value >= (int64_t)bound)
                return aq_fail(AQ_INVAL, "stage", "%s: value %d at position %u of sample %u is outside the model's %u",
                               name, value, i, sample, bound);
        }
    return AQ_OK;
}

void layer_verdict_place(const struct aq_stage_config *config, enum layer_memory what, struct aq_arena *arena,
                         struct layer_verdict *verdict)
{
    const uint64_t each = config->B * sizeof(float);
    if (what == LAYER_SLOT) {
        verdict->losses = aq_arena_take(arena, each);
        verdict->targets = aq_arena_take(arena, each);
        verdict->guesses = aq_arena_take(arena, each);
    }
    if (what == LAYER_HOST) {
        verdict->host_losses = aq_arena_take(arena, each);
        verdict->host_targets = aq_arena_take(arena, each);
        verdict->host_guesses = aq_arena_take(arena, each);
    }
}

/* NaN is not counted; what is infinite would make all weights so. */
static enum aq_status check_numbers(const struct aq_batch *batch, const char *name, uint32_t outputs)
{
    const float *values = aq_batch_find(batch, name, AQ_FIELD_F32, 1);
    if (!values || outputs != 1)
        return aq_fail(AQ_INVAL, "stage", "%s: needs one number per sample and one output: %s, %u outputs", name,
                       values ? "there are" : "the batch has none", outputs);
    for (uint32_t sample = 0; sample < batch->samples; sample++)
        if (isinf(values[sample]))
            return aq_fail(AQ_INVAL, "stage", "%s: the number of sample %u is infinite", name, sample);
    return AQ_OK;
}

enum aq_status layer_verdict_check(const struct layer *layer, const struct aq_stage_config *config,
                                   const struct aq_batch *batch, uint32_t tokens_used)
{
    (void)tokens_used;
    const struct aq_task *task = aq_task_find(config->task);
    if (task->numbers) return check_numbers(batch, task->field, layer->out.columns);
    return layer_check_field(batch, task->field, 1, 1, -1, layer->out.columns);
}

enum aq_status layer_verdict_take(const struct layer_run *run, const struct aq_batch *batch, uint32_t tokens_used)
{
    const struct layer_verdict *verdict = run->slot;
    (void)tokens_used;
    const enum aq_field_type type = run->task->numbers ? AQ_FIELD_F32 : AQ_FIELD_I32;
    const size_t bytes = (size_t)run->samples * AQ_FIELD_BYTES;
    memcpy(verdict->host_targets, aq_batch_find(batch, run->task->field, type, 1), bytes);
    return aq_device_copy(run->device, verdict->targets, verdict->host_targets, bytes, run->stream);
}

enum aq_status layer_verdict_make(const struct layer_run *run, float *outputs, void *gradient, enum aq_element type)
{
    const struct layer_verdict *verdict = run->slot;
    const uint64_t columns = run->layer->out.columns;
    const size_t bytes = run->samples * sizeof(float);
    const struct aq_argmax guess = {
        .rows = run->samples, .C = columns, .stride = columns, .x = outputs, .index = verdict->guesses};
    const struct aq_cross_entropy loss = {.rows = run->samples,
                                          .V = columns,
                                          .logits = outputs,
                                          .logits_stride = columns,
                                          .targets = verdict->targets,
                                          .losses = verdict->losses,
                                          .gradient = gradient,
                                          .gradient_stride = columns,
                                          .gradient_type = type,
                                          .scale = run->loss_factor};
    if (run->task->numbers)
        AQ_TRY(aq_device_copy(run->device, verdict->host_guesses, outputs, bytes, run->stream));
    if (run->task->wants_guesses) AQ_TRY(aq_device_argmax(run->device, &guess, run->stream));
    AQ_TRY(run->task->loss(run->device, &loss, run->stream));
    if (run->task->wants_guesses)
        AQ_TRY(aq_device_copy(run->device, verdict->host_guesses, verdict->guesses, bytes, run->stream));
    return aq_device_copy(run->device, verdict->host_losses, verdict->losses, bytes, run->stream);
}

void layer_verdict_count(const struct layer_run *run, struct aq_stage_loss *out)
{
    const struct layer_verdict *verdict = run->slot;
    const struct stage_counted rows = {.rows = run->samples,
                                       .losses = verdict->host_losses,
                                       .targets = verdict->host_targets,
                                       .guesses = verdict->host_guesses,
                                       .numbers = (const float *)(const void *)verdict->host_targets,
                                       .said = (const float *)(const void *)verdict->host_guesses};
    run->task->count(&rows, out);
}
