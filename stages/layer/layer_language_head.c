/*
 * layer_language_head.c -- final norm, the product with the vocabulary, and the task's loss, in one: logits exist for a
 * chunk of rows at a time and belong to the stage.
 *
 * The gradient of the last chunk made is used where backward follows at once; else backward makes the logits again from
 * the final norm. Of several chunks all gradients are kept, in the products' type: the logits' product, a tenth of a
 * small model's work, is then not made twice, and the head's weights get theirs in one. With recomputation memory
 * counts more than that. If backward is split, the weight half needs that gradient later: each slot has its own, from
 * its forward to its weight half, and no logits are made twice.
 *
 * Logits are fp32, or on a GPU, where the configuration has logits_16bit, of the products' type. The latter share
 * memory with their gradient: cross-entropy writes it over them, and if the gradient of all rows stays, all rows are
 * one chunk.
 *
 * On a GPU's tensor cores, which are fed 16 bytes at a time, the products have more words than the vocabulary
 * (config.pads_vocabulary): GPT-2's 50,257 would be a product of 50,256 and a sliver, three times a micro-batch. Only
 * the products know of it. The weights of the words too many are what lies behind the table in the stage's memory:
 *
 *     forward             their logits are in columns that nothing reads;
 *     gradient of x       the loss makes these columns of the logits' gradient 0, and 0 times a weight is 0;
 *     gradient of W       so is what is added behind the table's gradient: x + 0 = x, since no gradient is -0.
 *
 * No tensor, file or message has another size, and results have the same bits, where sums have the same order. Weights
 * are finite: the loss of a stage with another one is not.
 *
 * The weights of a tied model are the embedding's table, or if a cut separates the two a copy of it that follows the
 * table (config.tied_rows). Else they are a separate tensor that starts with the same values.
 */
#include "decoder.h"

/* A chunk of logits takes at most this much, unless chunks_of gives more; 1024 tokens of GPT-2's vocabulary are one. */
enum { LOGITS_BYTES_MAX = 256 << 20, LINE_BYTES = 128 };

/* Words of a padded vocabulary are a multiple of the first; of the second, where the first might be a tenth more. */
enum { WORDS = 128, WORDS_FEW = 16 };

struct head_slot {
    void *norm; /* final norm, type */
    float *mean, *rstd, *losses;
    void *dlogits; /* split: the gradient of all rows, type; else NULL */
    int32_t *targets;
    int32_t *host_targets;
    float *host_losses;
};

struct head_state {
    float *dnorm;         /* WORK                                                                     */
    float *unused;        /* WORK: the gradient of the input, where the norm learns and nothing below */
    void *logits;         /* a chunk of rows, then their gradient; where that stays elsewhere and logits of 16 bits
                             with it, the room of one fp32 row for output()                           */
    void *dlogits;        /* the gradient of all rows, type, or NULL                                  */
    uint32_t logits_slot; /* 1 + the slot whose gradient of logits is here; 0: none                   */
};

struct chunks {
    uint64_t rows, stride; /* of a chunk; values of a row of logits */
    enum aq_element type;  /* of a logit                            */
    bool keeps;            /* the gradient of all                   */
};

/* Logits are divided by it. */
static float divisor_of(const struct aq_stage_config *config)
{
    return config->model.logit_divisor > 0.0f ? config->model.logit_divisor : 1.0f;
}

/* Words of the products. */
static uint64_t words_of(const struct layer *layer, const struct aq_stage_config *config)
{
    const uint64_t V = layer->out.columns, piece = V >= 16 * WORDS ? WORDS : WORDS_FEW;
    const bool pads = config->pads_vocabulary && stage_compute(config->precision) != AQ_F32;
    return pads ? (V + piece - 1) / piece * piece : V;
}

/*
 * Rows of logits start on cache lines; a chunk is a multiple of 64 rows where it is not all of them. Logits of 16 bits
 * need no room but their gradient's: where that stays, fewer rows at a time would save nothing. A GPU is slower with
 * many chunks, each of which ends with idle processors twice: fp32 logits may take half of what their gradient takes.
 */
static struct chunks chunks_of(const struct layer *layer, const struct aq_stage_config *config)
{
    const uint64_t all = (uint64_t)config->B * layer->in.rows;
    const bool changed = divisor_of(config) != 1.0f || config->model.logit_cap > 0.0f; /* in fp32 */
    struct chunks chunks = {.type = config->logits_16bit && !changed ? stage_type(config->precision) : AQ_F32};
    const uint64_t each = aq_element_bytes(chunks.type), line = LINE_BYTES / each;
    chunks.stride = (words_of(layer, config) + line - 1) / line * line;
    const bool trains = !config->recompute && !config->inference, stays = trains && !config->split;
    const uint64_t half = all * chunks.stride * aq_element_bytes(stage_type(config->precision)) / 2;
    const bool more = config->weights_16bit && stays && half > LOGITS_BYTES_MAX;
    chunks.rows = (more ? half : LOGITS_BYTES_MAX) / (chunks.stride * each) / 64 * 64;
    if (chunks.rows == 0) chunks.rows = 64;
    if (each == 2 && trains) chunks.rows = all;
    if (config->logits_rows) chunks.rows = config->logits_rows;
    if (chunks.rows > all) chunks.rows = all;
    chunks.keeps = stays && all > chunks.rows;
    return chunks;
}

/* Of state->logits. */
static uint64_t logits_bytes(const struct aq_stage_config *config, const struct chunks *chunks)
{
    const uint64_t each = aq_element_bytes(chunks->type), chunk = chunks->rows * chunks->stride * each;
    const uint64_t row = chunks->stride * sizeof(float); /* output()'s */
    const bool elsewhere = each == 2 && (chunks->keeps || config->split);
    return elsewhere || chunk < row ? row : chunk;
}

/* Is the gradient of the product's input needed? */
static bool norm_learns(const struct layer *layer)
{
    return layer_goes_on(layer, DECODER_HEAD);
}

static struct linear linear_of_head(const struct layer *layer, uint64_t words)
{
    return linear_of(layer->in.columns, words, true, DECODER_HEAD, LAYER_NO_TENSOR);
}

/* Of words_of. */
static struct linear products_of(const struct layer_run *run)
{
    return linear_of_head(run->layer, words_of(run->layer, run->config));
}

static void tensors(const struct layer *layer, const struct aq_stage_config *config, struct layer_list *list)
{
    const struct decoder_form *form = layer->form;
    decoder_final_norm(layer, list);
    layer_list_room(list, (words_of(layer, config) - layer->out.columns) * layer->in.columns);
    if (config->model.tied && config->layer_first == 0) {
        layer_list_alias(list, form->head, form->tokens, "set model.tied: untied");
        return;
    }
    if (config->model.tied && config->tied_rows > 0 && !config->inference) {
        layer_list_copy(list, form->head, form->tokens, layer->out.columns, layer->in.columns, config->model.init_std);
        return;
    }
    layer_list_add_as(list, form->head, form->tokens, layer->out.columns, layer->in.columns, config->model.init_std, 0);
}

static void place(const struct layer *layer, const struct aq_stage_config *config, enum layer_memory what,
                  struct aq_arena *arena, void *to)
{
    const uint64_t rows = (uint64_t)config->B * layer->in.rows, N = rows * layer->in.columns;
    const uint64_t typed = aq_element_bytes(stage_type(config->precision));
    const struct chunks chunks = chunks_of(layer, config);
    struct head_slot *slot = to;
    struct head_state *state = to;
    switch (what) {
    case LAYER_SLOT:
        slot->norm = aq_arena_take(arena, N * typed);
        if (!layer->form->rms) slot->mean = aq_arena_take(arena, rows * sizeof(float));
        slot->rstd = aq_arena_take(arena, rows * sizeof(float));
        slot->losses = aq_arena_take(arena, rows * sizeof(float));
        slot->dlogits = config->split ? aq_arena_take(arena, rows * chunks.stride * typed) : NULL;
        slot->targets = aq_arena_take(arena, rows * sizeof *slot->targets);
        break;
    case LAYER_HOST:
        slot->host_targets = aq_arena_take(arena, rows * sizeof *slot->host_targets);
        slot->host_losses = aq_arena_take(arena, rows * sizeof *slot->host_losses);
        break;
    case LAYER_WORK:
        if (config->inference || !norm_learns(layer)) break;
        state->dnorm = aq_arena_take(arena, N * sizeof(float));
        if (!layer->passes) state->unused = aq_arena_take(arena, N * sizeof(float));
        break;
    case LAYER_STAGE:
        state->logits = aq_arena_take(arena, logits_bytes(config, &chunks));
        state->dlogits = chunks.keeps ? aq_arena_take(arena, rows * chunks.stride * typed) : NULL;
        break;
    default:
        break;
    }
}

static void flops(const struct layer *layer, const struct aq_stage_config *config, struct layer_flops *out)
{
    const struct linear linear = linear_of_head(layer, layer->out.columns);
    *out = (struct layer_flops){0};
    linear_flops(layer, &linear, (double)config->B * layer->in.rows, out);
}

static enum aq_status check(const struct layer *layer, const struct aq_stage_config *config,
                            const struct aq_batch *batch, uint32_t tokens_used)
{
    (void)tokens_used;
    const char *field = aq_task_field(aq_task_find(config->task));
    return layer_check_field(batch, field, layer->in.rows, layer->in.rows, -1, layer->out.columns);
}

static enum aq_status take(const struct layer_run *run, const struct aq_batch *batch, uint32_t used)
{
    const struct head_slot *slot = run->slot;
    const uint32_t T = run->config->T;
    const int32_t *targets = aq_batch_find(batch, run->task->field, AQ_FIELD_I32, T);
    for (uint32_t sample = 0; sample < run->samples; sample++)
        for (uint32_t t = 0; t < run->tokens; t++)
            slot->host_targets[(uint64_t)sample * run->tokens + t] = t < used ? targets[(uint64_t)sample * T + t] : -1;
    return aq_device_copy(run->device, slot->targets, slot->host_targets, run->rows_in * sizeof *slot->targets,
                          run->stream);
}

/* Memory of the gradient of all rows: the slot's, the stage's, or NULL. */
static void *dlogits_kept(const struct layer_run *run)
{
    const struct head_slot *slot = run->slot;
    const struct head_state *state = run->state;
    return slot->dlogits ? slot->dlogits : state->dlogits;
}

/* Unless all are kept, a gradient shares the start of its logits. */
static void *dlogits_of(const struct layer_run *run, uint64_t first, uint64_t *stride)
{
    const struct head_state *state = run->state;
    const uint64_t typed = aq_element_bytes(stage_type(run->config->precision));
    const struct chunks chunks = chunks_of(run->layer, run->config);
    uint8_t *const kept = dlogits_kept(run);
    *stride = kept ? chunks.stride : chunks.stride * (aq_element_bytes(chunks.type) / typed);
    return kept ? kept + first * chunks.stride * typed : state->logits;
}

/* The norm's rows from `first` on. */
static struct linear_rows norm_rows(const struct layer_run *run, uint64_t first)
{
    const struct head_slot *slot = run->slot;
    const uint64_t bytes = run->layer->in.columns * aq_element_bytes(stage_type(run->config->precision));
    return (struct linear_rows){(const uint8_t *)slot->norm + first * bytes, 0};
}

/* Logits of `rows` rows of the norm from `first` on. */
static enum aq_status logits_make(const struct layer_run *run, uint64_t first, uint64_t rows, void *logits,
                                  enum aq_element type, uint64_t stride)
{
    const struct linear linear = products_of(run);
    const struct linear_to to = {.c = logits, .type = type, .stride = stride};
    const float divisor = divisor_of(run->config);
    const struct aq_scale divide = {.x = logits, .count = rows * stride, .factor = 1.0f / divisor};
    const struct aq_cap cap = {.x = logits, .count = rows * stride, .cap = run->config->model.logit_cap};
    AQ_TRY(linear_forward(run, &linear, rows, norm_rows(run, first), &to));
    if (divisor != 1.0f) AQ_TRY(aq_device_scale(run->device, &divide, run->stream));
    return cap.cap > 0.0f ? aq_device_cap(run->device, &cap, run->stream) : AQ_OK;
}

/* Logits of rows [first, first+rows) and their losses; their gradient too, where `gradient`. */
static enum aq_status head_chunk(const struct layer_run *run, uint64_t first, uint64_t rows, bool gradient)
{
    const struct head_slot *slot = run->slot;
    const struct head_state *state = run->state;
    const struct chunks chunks = chunks_of(run->layer, run->config);
    uint64_t stride;
    void *dlogits = dlogits_of(run, first, &stride);
    void *logits = chunks.type == AQ_F32 ? state->logits : dlogits;
    AQ_TRY(logits_make(run, first, rows, logits, chunks.type, chunks.stride));
    const struct aq_cross_entropy loss = {.rows = rows,
                                          .V = run->layer->out.columns,
                                          .logits = logits,
                                          .logits_type = chunks.type,
                                          .logits_stride = chunks.stride,
                                          .targets = slot->targets + first,
                                          .losses = slot->losses + first,
                                          .gradient = gradient ? dlogits : NULL,
                                          .gradient_stride = stride,
                                          .gradient_type = stage_type(run->config->precision),
                                          .scale = run->loss_factor / divisor_of(run->config),
                                          .cap = run->config->model.logit_cap};
    return run->task->loss(run->device, &loss, run->stream);
}

static struct decoder_norm norm_of(const struct layer_run *run)
{
    const struct head_slot *slot = run->slot;
    return decoder_final_norm_of(slot->mean, slot->rstd);
}

static enum aq_status forward(const struct layer_run *run, const void *x, void *y)
{
    const struct head_slot *slot = run->slot;
    struct head_state *state = run->state;
    const uint64_t rows = run->rows_in;
    (void)y;
    const struct decoder_norm norm = norm_of(run);
    AQ_TRY(decoder_norm(run, &norm, rows, x, slot->norm));
    if (!run->compares) return AQ_OK;
    const uint64_t chunk = chunks_of(run->layer, run->config).rows;
    const bool gradient = run->train && (dlogits_kept(run) || rows <= chunk);
    for (uint64_t first = 0; first < rows; first += chunk)
        AQ_TRY(head_chunk(run, first, rows - first < chunk ? rows - first : chunk, gradient));
    state->logits_slot = gradient ? run->slot_index + 1 : 0;
    return aq_device_copy(run->device, slot->host_losses, slot->losses, rows * sizeof *slot->losses, run->stream);
}

static void count(const struct layer_run *run, struct aq_stage_loss *out)
{
    const struct head_slot *slot = run->slot;
    const struct stage_counted rows = {
        .rows = run->rows_in, .losses = slot->host_losses, .targets = slot->host_targets};
    run->task->count(&rows, out);
}

static enum aq_status head_chunk_weights(const struct layer_run *run, uint64_t first, uint64_t rows)
{
    const struct linear linear = products_of(run);
    struct linear_rows dlogits;
    dlogits.at = dlogits_of(run, first, &dlogits.stride);
    return linear_weight_gradient(run, &linear, rows, norm_rows(run, first), dlogits);
}

static enum aq_status weights(const struct layer_run *run, const void *x)
{
    (void)x;
    return head_chunk_weights(run, 0, run->rows_in);
}

/*
 * The product and, unless they come later, its weights of a chunk of rows: the gradient of the norm's rows is written,
 * not added to.
 */
static enum aq_status head_chunk_backward(const struct layer_run *run, uint64_t first, uint64_t rows)
{
    const struct head_state *state = run->state;
    const struct linear linear = products_of(run);
    struct linear_rows dlogits;
    dlogits.at = dlogits_of(run, first, &dlogits.stride);
    const struct linear_to to = {.c = state->dnorm + first * run->layer->in.columns, .type = AQ_F32};
    if (norm_learns(run->layer)) AQ_TRY(linear_input_gradient(run, &linear, rows, dlogits, &to));
    return run->split ? AQ_OK : head_chunk_weights(run, first, rows);
}

/*
 * The gradient of the logits is still here if this slot's forward was the last to use the memory; else the logits are
 * made again from the final norm. Keeping them for every slot would cost more memory than all else together: only a
 * split backward does.
 */
static enum aq_status backward(const struct layer_run *run, const void *x, const float *dy, float *dx,
                               const struct layer_ending *below)
{
    struct head_state *state = run->state;
    const uint64_t rows = run->rows_in, chunk = chunks_of(run->layer, run->config).rows;
    (void)dy;
    for (uint64_t first = 0; !run->split && first < rows; first += chunk) {
        const uint64_t some = rows - first < chunk ? rows - first : chunk;
        if (state->logits_slot != run->slot_index + 1) AQ_TRY(head_chunk(run, first, some, true));
        if (!state->dlogits) AQ_TRY(head_chunk_backward(run, first, some));
    }
    if (dlogits_kept(run)) AQ_TRY(head_chunk_backward(run, 0, rows));
    if (state->logits_slot != run->slot_index + 1) state->logits_slot = 0; /* another's are gone; a second time, too */
    if (!norm_learns(run->layer)) return AQ_OK;
    if (!dx) dx = state->unused;
    AQ_TRY(aq_device_zero(run->device, dx, rows * run->layer->in.columns * sizeof *dx, run->stream));
    const struct decoder_norm norm = norm_of(run);
    return decoder_norm_gradient(run, &norm, rows, state->dnorm, x, layer_stream(run->config), dx, below);
}

static enum aq_status output(const struct layer_run *run, uint32_t row, float *values)
{
    struct head_state *state = run->state;
    const uint64_t V = run->layer->out.columns;
    AQ_TRY(logits_make(run, row, 1, state->logits, AQ_F32, chunks_of(run->layer, run->config).stride));
    state->logits_slot = 0;
    return aq_device_copy(run->device, values, state->logits, V * sizeof *values, run->stream);
}

const struct layer_kind layer_language_head = {.name = "language_head",
                                               .makes_ending = true,
                                               .extends = true,
                                               .parts = true,
                                               .bf16_stream = true,
                                               .state_bytes = sizeof(struct head_state),
                                               .slot_bytes = sizeof(struct head_slot),
                                               .tensors = tensors,
                                               .place = place,
                                               .flops = flops,
                                               .check = check,
                                               .take = take,
                                               .forward = forward,
                                               .backward = backward,
                                               .weights = weights,
                                               .count = count,
                                               .output = output};
