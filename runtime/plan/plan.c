/*
 * plan.c -- from a job and the facts of its files to the immutable plan. See plan.h.
 */
#include "plan.h"

#include <stdio.h>
#include <string.h>

#include "aqsgd/grad.h"
#include "aqsgd/grad_device.h"
#include "edge.h"
#include "mirror.h"
#include "net/collective.h"
#include "plan_private.h"
#include "reduce_measure.h"
#include "stages/adapter_folder.h"
#include "stages/weights.h"
#include "transfer.h"

enum { PLACE_BYTES = 512, LAYER_TENSORS_MAX = 16 };

struct plan_open {
    struct aq_plan plan;           /* first: aq_plan_close gets from the one to the other */
    const struct aq_plan_cut *cut; /* NULL: the manifest's, or flops' */
    struct aq_plan_stage *stages;
    struct aq_plan_edge *edges;
    struct aq_instruction *code;
    uint32_t *lengths;
};

/* --- edges ------------------------------------------------------------------------------------------------------ */

/* The wire bytes of a step: whole micro-batches of B, the frames of one direction of one edge. */
static uint64_t step_bytes(const struct aq_plan *plan, const struct aq_edge_shape *shape, uint64_t coded, bool loopback)
{
    const uint32_t B = plan->job->train.micro_batch, checks = aq_edge_checks_most(shape);
    const uint32_t checks_later = shape->check == AQ_CHECK_ALL ? checks : 0;
    return aq_wire_bytes(aq_edge_body_bytes(B, checks, coded), loopback) +
           (plan->micro_batches - 1) * aq_wire_bytes(aq_edge_body_bytes(B, checks_later, coded), loopback);
}

/* Messages that a sample has at a cut: one a variant. */
static uint32_t variants(const struct aq_job *job)
{
    return job->data.augment.flip ? 2 : 1;
}

/* The side of images whose messages move with their crops; 0: none do. AQ_INVAL: they cannot. */
static enum aq_status pixels_fill(const struct aq_job *job, bool keeps, struct aq_edge_shape *out)
{
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    char place[PLACE_BYTES];
    if (!job->data.augment.crop || !keeps) return AQ_OK;
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, &job->data.image, fields);
    out->pixels = aq_augment_side(fields, count);
    aq_job_place(job, "data.augment.crop", place, sizeof place);
    if (aq_edge_side(out) == 0)
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: data.augment.crop: what crosses cut %u has %u rows, which are not an image that can be "
                       "cropped; name a codec without messages there, or no crop",
                       place, out->edge, out->rows);
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_codec_rows_check(&out->forward, out->columns);
    aq_error_release(&why);
    if (status == AQ_OK) return AQ_OK;
    return aq_fail(status, "manifest", "%s: data.augment.crop: edges.forward, cut %u of %u columns: %s", place,
                   out->edge, out->columns, why.text);
}

/* The shape of the edge behind a stage: values and codecs. Slots and windows come later, with the program. */
static enum aq_status shape_fill(const struct aq_plan *plan, uint32_t e, uint32_t layer_end, struct aq_edge_shape *out)
{
    const struct aq_job *job = plan->job;
    struct aq_cut_shape cut;
    AQ_TRY(aq_model_cut(&plan->model, layer_end, aq_plan_places(plan), &cut));
    *out = (struct aq_edge_shape){.edge = e,
                                  .rows = cut.rows,
                                  .columns = cut.columns,
                                  .rows_mean = plan->facts.lengths_mean,
                                  .micro_batch = job->train.micro_batch,
                                  .batch = plan->batch,
                                  .messages = plan->facts.train_samples / plan->replicas * variants(job),
                                  .warmup_steps = job->warmup_epochs * plan->steps_per_epoch,
                                  .seed = job->train.seed,
                                  .forward = job->edges[e].forward,
                                  .backward = job->edges[e].backward};
    const struct aq_job_train *train = &job->train;
    struct aq_codec_config kept;
    out->still = train->frozen_prefix && !aq_augment_any(&job->data.augment) &&
                 aq_codec_config_kept(&out->forward, &kept) &&
                 aq_model_frozen(&plan->model, aq_plan_places(plan), train->freeze, &train->lora, layer_end);
    if (out->still) out->forward = kept;
    struct aq_codec_config levels[AQ_EDGE_LEVELS];
    const bool keeps = !aq_codec_about(out->forward.kind)->stateless && out->forward.store != AQ_PRECISION_NONE;
    out->guard = job->guard && !out->still && keeps && aq_edge_level_list(&out->forward, levels) > 1;
    out->guard_back = job->guard && !out->still && aq_edge_level_list(&out->backward, levels) > 1;
    out->level_lists = job->bits_auto && !out->still;
    out->wide = job->edges[e].forward_bf16 == AQ_BF16_ON && aq_edge_wide(&out->forward, &kept);
    out->wide_back = job->edges[e].backward_bf16 == AQ_BF16_ON && aq_edge_wide(&out->backward, &kept);
    out->check = out->still ? AQ_CHECK_NONE : (enum aq_edge_check_mode)job->check;
    return pixels_fill(job, keeps, out);
}

enum aq_status aq_plan_edge_at(const struct aq_plan *plan, uint32_t e, uint32_t layer_end, struct aq_plan_edge *edge)
{
    const bool loopback = aq_plan_edge_loopback(plan->job, e);
    AQ_TRY(shape_fill(plan, e, layer_end, &edge->shape));
    AQ_TRY(aq_plan_codecs_possible(plan->job, &edge->shape));
    AQ_TRY(aq_edge_size_of(&edge->shape, &edge->size));
    edge->step_forward_warm = step_bytes(plan, &edge->shape, edge->size.forward_warm_bytes, loopback);
    edge->step_forward_cold = step_bytes(plan, &edge->shape, edge->size.forward_cold_bytes, loopback);
    edge->step_backward = step_bytes(plan, &edge->shape, edge->size.backward_bytes, loopback);
    edge->step_backward_first = edge->step_backward;
    if (edge->shape.still) {
        edge->step_backward = edge->step_backward_first = plan->micro_batches * aq_wire_bytes(0, loopback);
    } else if (plan->job->warmup_epochs) {
        edge->step_backward_first = step_bytes(plan, &edge->shape, edge->size.values_bytes, loopback);
        if (!edge->size.message_bytes) edge->step_forward_cold = edge->step_backward_first;
    }
    return AQ_OK;
}

enum aq_status aq_plan_edge_next(const struct aq_plan *plan, uint32_t known, uint32_t e, uint32_t layer_end,
                                 struct aq_plan_edge *edge)
{
    struct aq_edge_shape shape;
    memset(&shape, 0, sizeof shape); /* its padding, too: shapes that differ only in it would be measured twice */
    AQ_TRY(shape_fill(plan, e, layer_end, &shape));
    const bool alike = aq_plan_edge_loopback(plan->job, e) == aq_plan_edge_loopback(plan->job, known);
    edge->shape.edge = e;
    if (alike && memcmp(&shape, &edge->shape, sizeof shape) == 0) return AQ_OK;
    return aq_plan_edge_at(plan, e, layer_end, edge);
}

/* How much can be on its way: now that programs are there. */
static enum aq_status edge_windows(struct plan_open *open, uint32_t e, const struct aq_plan_window *window)
{
    struct aq_plan_edge *edge = &open->edges[e];
    edge->window = *window;
    edge->shape.slots = open->stages[e].program.slots;
    edge->shape.send_frames = window->send_frames;
    edge->shape.receive_slots = window->receive_slots;
    edge->shape.shared = open->stages[e + 1].size.shared;
    struct aq_plan_tied tied = {0};
    if (aq_plan_ties(&open->plan)) AQ_TRY(aq_plan_tied_traffic(&open->plan, open->plan.model.tied, &tied));
    edge->shape.tied = tied.up_words > tied.down_words ? tied.up_words : tied.down_words;
    const uint32_t end = e == 0 ? 0 : e + 1; /* the client's: stage 1 is the server's */
    edge->shape.summed = aq_job_global(open->plan.job) ? open->stages[end].size.parameters : 0;
    /* Pieces of mirrored checkpoints have their own receive slots: they take no credit from training. */
    if (open->plan.job->checkpoint.mirror) edge->shape.receive_slots += AQ_MIRROR_WINDOW;
    return aq_edge_size_of(&edge->shape, &edge->size);
}

/* --- stages ----------------------------------------------------------------------------------------------------- */

static bool edge_stores(const struct plan_open *open, uint32_t e)
{
    return open->edges[e].size.message_bytes > 0;
}

/* Does any edge keep messages? Then all programs prefetch; a stage whose edges do not has nothing to do for it. */
static uint32_t window_of(const struct plan_open *open)
{
    for (uint32_t e = 0; e + 1 < open->plan.stage_count; e++)
        if (edge_stores(open, e)) return open->plan.ahead;
    return 0;
}

static enum aq_status programs_fill(struct plan_open *open, uint32_t s, struct aq_schedule_request request,
                                    struct aq_instruction **code)
{
    struct aq_plan_stage *stage = &open->stages[s];
    request.window = window_of(open);
    request.reduce = open->plan.replicas > 1 || aq_job_global(open->plan.job);
    uint32_t bound = aq_schedule_bound(request.micro_batches);
    AQ_TRY(aq_schedule_emit(&request, s, *code, bound, &stage->program));
    *code += bound;
    request.micro_batches = open->plan.micro_batches_last;
    bound = aq_schedule_bound(request.micro_batches);
    AQ_TRY(aq_schedule_emit(&request, s, *code, bound, &stage->program_last));
    *code += bound;
    return AQ_OK;
}

/* The weight half of a backward reads buffers that must be unchanged since the other half. */
static enum aq_status split_check(const struct aq_job *job)
{
    char place[PLACE_BYTES];
    if (!aq_schedule_splits(job->pipeline.schedule) || !job->model.recompute) return AQ_OK;
    aq_job_place(job, "model.recompute", place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: model.recompute: pipeline.schedule: %s splits backward and keeps for its second half what "
                   "recomputation lets go; write recompute: false, or schedule: 1f1b",
                   place, aq_schedule_name(job->pipeline.schedule));
}

/* The client's own stages know the lengths of its samples by its data, and nobody else does. */
static bool hides_lengths(const struct aq_job *job, uint32_t s)
{
    return job->split.pad && aq_job_at_client(job, s);
}

/* All of a stage but how many micro-batches it holds. */
static enum aq_status stage_fill(struct plan_open *open, uint32_t s)
{
    const struct aq_job *job = open->plan.job;
    struct aq_plan_stage *stage = &open->stages[s];
    AQ_TRY(split_check(job));
    stage->config =
        (struct aq_stage_config){.model = open->plan.model,
                                 .task = job->model.task,
                                 .layer_first = stage->layer_first,
                                 .layer_end = stage->layer_end,
                                 .B = job->train.micro_batch,
                                 .T = aq_plan_places(&open->plan),
                                 .slots = 1,
                                 .versions = 1 + job->train.staleness,
                                 .precision = job->model.precision,
                                 .residual_bf16 = job->model.residual == AQ_STAGE_BF16,
                                 .recompute = job->model.recompute,
                                 .split = aq_schedule_splits(job->pipeline.schedule),
                                 .lengths = open->plan.facts.lengths_digest != 0 || hides_lengths(job, s),
                                 .parts = open->plan.facts.parts != 0,
                                 .freeze = job->train.freeze,
                                 .lr_patterns = job->train.lr_patterns,
                                 .tied_rows = aq_plan_tied_rows(&open->plan),
                                 .frozen_store = job->train.frozen_store,
                                 .lora = job->train.lora,
                                 .logits_16bit = aq_plan_logits_16bit(job, s),
                                 .pads_vocabulary = aq_device_gpu(job->pipeline.stages[s].device) != AQ_GPU_NO,
                                 .weights_16bit = aq_device_gpu(job->pipeline.stages[s].device) != AQ_GPU_NO};
    stage->boundary_copies = stage->config.weights_16bit ? AQ_PLAN_COPIES_MAX : 1;
    aq_model_layer_name(&open->plan.model, stage->layer_first, stage->name_first, sizeof stage->name_first);
    aq_model_layer_name(&open->plan.model, stage->layer_end - 1, stage->name_last, sizeof stage->name_last);
    AQ_TRY(aq_plan_stage_measure(job, s, stage));
    const bool mirror = s > 0 && stage->size.tied > 0 && stage->size.copied == 0; /* the first stage's, once more */
    open->plan.parameters += stage->size.parameters - (mirror ? stage->size.tied : 0);
    open->plan.frozen += stage->size.frozen;
    return AQ_OK;
}

static enum aq_status stage_slots(struct plan_open *open, uint32_t s)
{
    struct aq_plan_stage *stage = &open->stages[s];
    stage->config.slots = stage->program.slots;
    return aq_plan_stage_measure(open->plan.job, s, stage);
}

/*
 * Slots of a stage's cache, one commented line per consumer. The sender keeps the references of every micro-batch in
 * flight (it may have to give them to the receiver again); the receiver is done with one when it has decoded.
 */
static uint32_t cache_slots(const struct plan_open *open, uint32_t s, bool window)
{
    const struct aq_job *job = open->plan.job;
    const uint32_t B = job->train.micro_batch, ahead = window ? open->plan.ahead : 0;
    uint32_t slots = 0;
    if (s > 0 && edge_stores(open, s - 1)) slots += B * ahead + 2 * B; /* read ahead; m and m' of one micro-batch   */
    if (s + 1 < open->plan.stage_count && edge_stores(open, s))
        slots += B * ahead + 2 * B + B * open->stages[s].program.slots; /* the same; m of every one in flight      */
    return slots ? slots + (window ? job->cache.depth : 1) : 0;         /* being written                           */
}

static enum aq_status cache_fill(struct plan_open *open, uint32_t s)
{
    const struct aq_job *job = open->plan.job;
    struct aq_plan_stage *stage = &open->stages[s];
    const uint32_t wanted = cache_slots(open, s, true), needed = cache_slots(open, s, false);
    if (needed == 0) return AQ_OK;
    if (job->cache.slots && job->cache.slots < needed) {
        char place[PLACE_BYTES];
        aq_job_place(job, "cache.slots", place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: cache.slots: %u, but stage %u holds up to %u messages at once; write %u, "
                       "or 0 for what the window needs too (%u)",
                       place, job->cache.slots, s, needed, needed, wanted);
    }
    struct aq_cache_config *cache = &stage->cache;
    aq_cache_config_default(cache);
    cache->kind = job->cache.kind;
    cache->job_name = job->name;
    cache->slots = job->cache.slots ? job->cache.slots : wanted;
    cache->depth = job->cache.depth < cache->slots ? job->cache.depth : cache->slots;
    cache->bytes_max = job->cache.bytes_max;
    cache->direct = job->cache.direct;
    cache->sealed = aq_job_sealed(job) && !aq_job_at_client(job, s);
    cache->samples_max = 0;
    cache->value_bytes_max = 0;
    const uint64_t samples = open->plan.facts.train_samples / open->plan.replicas * variants(job); /* of this replica */
    const uint32_t sides[2] = {s > 0 ? s - 1 : UINT32_MAX, s + 1 < open->plan.stage_count ? s : UINT32_MAX};
    for (int k = 0; k < 2; k++) {
        if (sides[k] == UINT32_MAX || !edge_stores(open, sides[k])) continue;
        const uint64_t bytes = open->edges[sides[k]].size.message_bytes;
        const uint32_t versions = strcmp(cache->kind, "memory") == 0 ? 1 : 2; /* on disk the last mark's stay, too */
        cache->samples_max += samples;
        if (bytes > cache->value_bytes_max) cache->value_bytes_max = bytes;
        stage->cache_bytes += versions * samples * bytes; /* cells on disk have one size */
    }
    if (cache->bytes_max && stage->cache_bytes > cache->bytes_max) {
        char place[PLACE_BYTES], has[AQ_TEXT_NUMBER], needs[AQ_TEXT_NUMBER];
        aq_job_place(job, "cache.bytes_max", place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: cache.bytes_max: %s, but the messages of stage %u can take %s; raise it, "
                       "store them in fewer bits (edges.forward.store), or train on fewer samples",
                       place, aq_text_size(cache->bytes_max, has), s, aq_text_size(stage->cache_bytes, needs));
    }
    return AQ_OK;
}

static void link_common(const struct plan_open *open, struct aq_link_config *out)
{
    const struct aq_job_link *link = &open->plan.job->link;
    out->rate_mbps = link->rate_mbps;
    out->streams = link->streams;
    out->copies = link->copies;
    out->entropy = open->plan.job->split.pad ? AQ_LINK_ENTROPY_OFF : link->entropy; /* sizes would follow lengths */
    snprintf(out->congestion, sizeof out->congestion, "%s", link->congestion ? link->congestion : "");
    out->silence_ns_max = link->silence_ns_max;
    out->outage_ns_max = link->outage_ns_max;
    out->heartbeat_ns = link->silence_ns_max / 4; /* three may be lost */
}

static void link_fill(const struct plan_open *open, uint32_t s, uint32_t peer, uint32_t edge,
                      struct aq_link_config *out)
{
    const struct aq_plan_edge *about = &open->edges[edge];
    aq_link_config_default(out);
    link_common(open, out);
    out->rank = s;
    out->peer_rank = peer;
    out->edge = edge;
    out->body_bytes_max = (uint32_t)about->size.body_bytes_max;
    out->send_frames = about->shape.send_frames;
    out->receive_slots = about->shape.receive_slots;
}

/* A link to another replica of the stage; collectives cut what they send into pieces of the body's size. */
static void group_fill(const struct plan_open *open, uint32_t s, struct aq_link_config *out)
{
    aq_link_config_default(out);
    link_common(open, out);
    out->rank = s;
    out->edge = AQ_PLAN_GROUP_EDGE + s;
    aq_group_link_config(AQ_PLAN_PIECE_BYTES, out);
}

static void line(struct aq_plan_stage *stage, const char *name, uint64_t bytes)
{
    if (bytes == 0) return;
    AQ_ASSERT(stage->line_count < AQ_PLAN_LINES_MAX);
    stage->lines[stage->line_count++] = (struct aq_plan_line){name, bytes};
    stage->memory_bytes += bytes;
}

uint64_t aq_plan_optimizer_bytes(const struct aq_plan *plan, uint64_t parameters)
{
    const struct aq_optimizer_tensor whole = {.count = parameters, .decay = true};
    const struct aq_optimizer_group group = {.rank = 0, .size = plan->replicas};
    return aq_optimizer_measure(&plan->job->train.optimizer, &whole, 1, parameters, &group);
}

uint64_t aq_plan_cut_bytes(const struct aq_plan *plan, uint32_t s)
{
    struct aq_plan_part part;
    uint64_t most = 0;
    for (uint32_t i = 0; aq_plan_part(plan, s, i, &part); i++)
        if (part.cut_bytes > most) most = part.cut_bytes;
    return most;
}

uint64_t aq_plan_outer_bytes(const struct aq_plan *plan, uint64_t parameters)
{
    const struct aq_optimizer_tensor whole = {.count = parameters, .decay = true};
    if (aq_plan_reduce_every(plan) == 1) return 0;
    return aq_plan_optimizer_bytes(plan, parameters) -
           aq_optimizer_measure(&plan->job->train.optimizer, &whole, 1, parameters, NULL);
}

static uint64_t order_bytes(const struct aq_plan *plan)
{
    const struct aq_job_facts *facts = &plan->facts;
    const struct aq_sampler_part part = {.all = facts->all_samples, .count = facts->train_samples};
    return facts->all_samples ? aq_sampler_part_bytes(&part, plan->batch)
                              : 2 * facts->train_samples / plan->replicas * sizeof(uint32_t);
}

/* Buffers of the groups of a machine's replicas and of machines. */
static uint64_t parts_bytes(const struct aq_job *job)
{
    const uint32_t machines = aq_job_reducers(job);
    const struct aq_group_config local = {.size = job->pipeline.replicas / machines,
                                          .piece_bytes = AQ_PLAN_PIECE_BYTES},
                                 leaders = {.size = machines, .piece_bytes = AQ_PLAN_PIECE_BYTES};
    return job->reduce.machine_first ? aq_group_measure(&local) + aq_group_measure(&leaders) : 0;
}

/* Buffers of the replicas' reduction on a GPU, LAYER_TENSORS_MAX tensors per layer; rounding up covers some more. */
static uint64_t reduction_bytes(const struct plan_open *open, uint32_t s)
{
    const struct aq_plan *plan = &open->plan;
    const struct aq_plan_stage *stage = &open->stages[s];
    const struct aq_group_config group = {
        .size = plan->replicas, .piece_bytes = AQ_PLAN_PIECE_BYTES, .values = stage->size.parameters};
    const uint32_t tensors = LAYER_TENSORS_MAX * (stage->layer_end - stage->layer_first);
    bool gpu = false;
    for (uint32_t w = 0; w < plan->replicas; w++)
        gpu = gpu || aq_device_gpu(plan->job->pipeline.stages[w * plan->stage_count + s].device) != AQ_GPU_NO;
    if (plan->replicas == 1 || !gpu || aq_plan_reduce_delay(plan) > 0) return 0; /* or the host averages */
    return aq_group_measure_device(&group) +
           aq_grad_coder_measure(&plan->job->train.optimizer.reduce, stage->size.parameters, tensors);
}

static uint64_t carry_bytes(const struct plan_open *open, uint32_t e)
{
    return aq_plan_edge_transport(&open->plan, e) == AQ_TRANSPORT_LINKS ? 0 : open->edges[e].size.carry_bytes;
}

/* The sum, one line per consumer; what each takes is its own room's measure. */
static void memory_fill(struct plan_open *open, uint32_t s)
{
    const struct aq_plan *plan = &open->plan;
    const struct aq_job *job = plan->job;
    struct aq_plan_stage *stage = &open->stages[s];
    const struct aq_stage_size *size = &stage->size;
    const bool first = s == 0, last = s + 1 == plan->stage_count;
    const uint64_t samples = plan->facts.train_samples + plan->facts.heldout_samples;
    line(stage, "parameters", size->parameter_bytes - size->frozen_bytes);
    line(stage, "frozen", size->frozen_bytes);
    line(stage, "previous weights", size->previous_bytes);
    line(stage, "gradients", size->gradient_bytes);
    const bool gpu = stage->config.weights_16bit;
    const uint64_t outer = aq_plan_outer_bytes(plan, size->parameters);
    const uint64_t travel = aq_plan_travel_bytes(plan, size->parameters);
    const uint64_t errors = gpu ? aq_plan_travel_errors(plan, size->parameters) : 0;
    line(stage, "optimizer", aq_plan_optimizer_bytes(plan, size->parameters) - outer);
    line(stage, "outer step", outer - errors);
    line(stage, "slots", size->slot_bytes * stage->config.slots);
    line(stage, "workspace", size->workspace_bytes);
    line(stage, "boundary", 2 * (size->x_bytes + size->y_bytes) * stage->boundary_copies);
    line(stage, "reduction", reduction_bytes(open, s));
    if (gpu) {
        line(stage, "edge kernels",
             (first ? 0 : open->edges[s - 1].size.device_bytes) + (last ? 0 : open->edges[s].size.device_bytes));
        line(stage, "bodies between GPUs", (first ? 0 : carry_bytes(open, s - 1)) + (last ? 0 : carry_bytes(open, s)));
        line(stage, "device scratch", 2 * aq_device_stream_bytes()); /* the stage's stream's, the device's own one's */
    }
    stage->device_bytes = stage->memory_bytes;
    line(stage, "pinned", size->host_bytes + (gpu ? aq_plan_cut_bytes(plan, s) + travel + errors : 0));
    if ((stage->config.weights_16bit || aq_plan_tied_local(plan)) && (first || last))
        line(stage, "tied table", aq_plan_tied_host_bytes(plan));
    line(stage, "edge buffers",
         (first ? 0 : open->edges[s - 1].size.host_bytes) + (last ? 0 : open->edges[s].size.host_bytes));
    line(stage, "link buffers",
         (first ? 0 : aq_link_measure(&stage->link_in)) + (last ? 0 : aq_link_measure(&stage->link_out)));
    const uint64_t stream = aq_link_measure_stream(aq_job_link_scheme(job, false));
    if (stream > 0) line(stage, "link streams", stream * ((first ? 0 : 1) + (last ? 0 : 1) + plan->replicas - 1));
    const struct aq_group_config group = {.size = plan->replicas, .piece_bytes = AQ_PLAN_PIECE_BYTES};
    if (plan->replicas > 1)
        line(stage, "group buffers",
             (plan->replicas - 1) * aq_link_measure(&stage->link_group) + aq_group_measure(&group) + parts_bytes(job));
    if (job->reduce.patience_ns > 0) /* at most to each other replica a file (worker_snapshot.c) */
        line(stage, "files for replicas", (plan->replicas - 1) * aq_transfer_measure(&stage->link_group));
    if (plan->replicas > 1 && job->train.optimizer.reduce_automatic)
        line(stage, "measuring", aq_reduce_measure_bytes(size->parameters, plan->replicas));
    if (stage->cache.slots) line(stage, "cache", aq_cache_measure(&stage->cache));
    /* The first stage reads what its model reads, the last what its task compares with. */
    const uint64_t parts = plan->facts.parts ? plan->facts.parts + samples + 1 + (size_t)stage->config.T : 0;
    if (plan->facts.lengths_digest) line(stage, "lengths", (samples + parts) * sizeof *plan->lengths);
    if (first || last)
        line(stage, "samples", aq_dataset_bytes(job->data.kind, job->train.T, &job->data.image, samples));
    line(stage, "order of samples", order_bytes(plan));
    struct aq_plan_part part;
    for (uint32_t i = 0; aq_plan_part(plan, s, i, &part); i++)
        line(stage, part.name, part.bytes);
    line(stage, "program", AQ_PLAN_PROCESS_BYTES);
    /* A checkpoint is written from a copy while training continues; a single one at the end needs no copy. */
    if (job->checkpoint.every.count > 0 || job->checkpoint.every.ns > 0)
        line(stage, "snapshot",
             (size->parameters * (1 + job->train.staleness) + size->buffers) * sizeof(float) +
                 aq_plan_optimizer_bytes(plan, size->parameters) - travel); /* other scratch: a little more */
    if (job->checkpoint.mirror) line(stage, "mirror", aq_mirror_measure((first ? 0 : 1) + (last ? 0 : 1)));
    if (job->output.trace) line(stage, "trace", (uint64_t)AQ_PLAN_TRACE_RECORDS * AQ_PLAN_TRACE_BYTES);
}

static enum aq_status stages_fill(struct plan_open *open)
{
    struct aq_plan_cut cut;
    struct aq_instruction *code = open->code;
    if (open->cut)
        cut = *open->cut;
    else
        AQ_TRY(aq_plan_cut(open->plan.job, &open->plan.model, &cut));
    for (uint32_t s = 0; s < open->plan.stage_count; s++) {
        open->stages[s].layer_first = s ? cut.end[s - 1] : 0;
        open->stages[s].layer_end = cut.end[s];
    }
    for (uint32_t e = 0; e + 1 < open->plan.stage_count; e++)
        AQ_TRY(aq_plan_edge_at(&open->plan, e, cut.end[e], &open->edges[e]));
    open->plan.rows_if_tied = aq_plan_rows_if_tied(&open->plan);
    for (uint32_t s = 0; s < open->plan.stage_count; s++)
        AQ_TRY(stage_fill(open, s));
    AQ_TRY(aq_plan_tied_check(&open->plan));
    AQ_TRY(aq_plan_split_check(&open->plan, open->cut == NULL));
    struct aq_plan_flight flight;
    AQ_TRY(aq_plan_flight(&open->plan, &flight));
    open->plan.schedule = flight.request.kind;
    open->plan.in_flight = flight.request.in_flight;
    open->plan.ahead = flight.ahead;
    for (uint32_t s = 0; s < open->plan.stage_count; s++) {
        AQ_TRY(programs_fill(open, s, flight.request, &code));
        if (s + 1 < open->plan.stage_count) AQ_TRY(edge_windows(open, s, &flight.windows[s]));
        AQ_TRY(stage_slots(open, s));
        AQ_TRY(cache_fill(open, s));
        if (s > 0) link_fill(open, s, s - 1, s - 1, &open->stages[s].link_in);
        if (s + 1 < open->plan.stage_count) link_fill(open, s, s + 1, s, &open->stages[s].link_out);
        if (open->plan.replicas > 1) group_fill(open, s, &open->stages[s].link_group);
    }
    for (uint32_t s = 0; s < open->plan.stage_count; s++)
        memory_fill(open, s);
    return AQ_OK;
}

/*
 * Every rank's program against all others: the whole step, and the last of an epoch. A client's part of a step runs a
 * prefix of the whole step's program (program.h).
 */
static enum aq_status dry_run(const struct plan_open *open)
{
    struct aq_program_limits limits = {.credits = AQ_JOB_MICRO_BATCHES_MAX,
                                       .send_frames = AQ_JOB_MICRO_BATCHES_MAX,
                                       .replicas = open->plan.replicas,
                                       .summed = aq_job_global(open->plan.job)};
    for (uint32_t e = 0; e + 1 < open->plan.stage_count; e++) { /* what passes the narrowest passes a wider one, too */
        const struct aq_plan_window *window = &open->edges[e].window;
        if (limits.credits > window->receive_slots) limits.credits = window->receive_slots;
        if (limits.send_frames > window->send_frames) limits.send_frames = window->send_frames;
        if (aq_plan_edge_transport(&open->plan, e) == AQ_TRANSPORT_LINKS) continue;
        if (limits.credits > AQ_EDGE_CARRY_SLOTS) limits.credits = AQ_EDGE_CARRY_SLOTS; /* bodies wait there */
        if (limits.send_frames > AQ_EDGE_CARRY_SLOTS) limits.send_frames = AQ_EDGE_CARRY_SLOTS;
    }
    for (int last = 0; last < 2; last++) {
        struct aq_program programs[AQ_JOB_STAGES_MAX];
        struct aq_text why = {0};
        for (uint32_t s = 0; s < open->plan.stage_count; s++)
            programs[s] = last ? open->stages[s].program_last : open->stages[s].program;
        const enum aq_status status = aq_program_check(programs, open->plan.stage_count, &limits, &why);
        if (status != AQ_OK)
            aq_log("plan", AQ_LOG_WARNING, "link.receive_slots %u and link.send_frames %u may be too few: %s",
                   limits.credits, limits.send_frames, aq_text_of(&why));
        aq_text_deinit(&why);
        AQ_TRY(status);
    }
    return AQ_OK;
}

/* The model's outputs per sample, if its task is one of whole samples. */
static enum aq_status labels_fill(struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const uint32_t asked = job->model.config.labels, labels = plan->facts.labels;
    aq_model_use_task(&plan->model, job->model.task, asked ? asked : labels);
    char place[PLACE_BYTES];
    if (asked > 1 && plan->model.labels == 1) {
        aq_job_place(job, "model.labels", place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest", "%s: model.labels: %u, but the task is one number a sample; write 0",
                       place, asked);
    }
    if (!plan->model.labels || plan->model.labels >= labels) return AQ_OK;
    aq_job_place(job, "model.labels", place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: model.labels: %u, but the data has %u; write 0 (the data's number), or a larger number", place,
                   asked, labels);
}

/* The positions of a sample in the facts, also from a client of split learning: T, or T with the tokens before a
 * text. */
static enum aq_status places_check(const struct aq_plan *plan)
{
    const uint32_t T = plan->job->train.T, places = aq_plan_places(plan);
    if (places >= T && places - T <= AQ_TOKENIZER_FRAME_MAX) return AQ_OK;
    return aq_fail(AQ_INVAL, "plan", "facts.places: samples of %u places, and train.T is %u", places, T);
}

static enum aq_status counts_fill(struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const uint32_t W = job->pipeline.replicas;
    const uint64_t samples = plan->facts.train_samples / W, batch = job->train.batch / W; /* of each replica */
    const uint64_t drawn = plan->facts.all_samples ? plan->facts.all_samples : samples;   /* from, into batches */
    plan->model = job->model.config;
    if (plan->model.vocabulary == 0) plan->model.vocabulary = plan->facts.vocabulary;
    AQ_TRY(places_check(plan));
    AQ_TRY(labels_fill(plan));
    if (plan->model.vocabulary < plan->facts.vocabulary) {
        char place[PLACE_BYTES];
        const char *key = aq_model_outputs_key(plan->model.kind);
        aq_job_place(job, key, place, sizeof place);
        return aq_fail(
            AQ_INVAL, "manifest",
            "%s: %s: %u, but the data's targets have %u values; write 0 (the data's number), or a larger number", place,
            key, plan->model.vocabulary, plan->facts.vocabulary);
    }
    plan->layers = aq_model_layers(&plan->model);
    plan->stage_count = job->pipeline.stage_count;
    plan->replicas = W;
    plan->ranks = aq_job_ranks(job);
    if (samples == 0) {
        char place[PLACE_BYTES];
        aq_job_place(job, "pipeline.replicas", place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest", "%s: pipeline.replicas: data.train has %llu samples for %u replicas",
                       place, (unsigned long long)plan->facts.train_samples, W);
    }
    const struct aq_job_facts *facts = &plan->facts;
    if (facts->all_samples > UINT32_MAX)
        return aq_fail(AQ_INVAL, "plan", "all clients have %llu samples: batches are drawn over %u at most",
                       (unsigned long long)facts->all_samples, UINT32_MAX);
    if (facts->all_samples &&
        (facts->first_sample >= facts->all_samples || facts->train_samples > facts->all_samples - facts->first_sample))
        return aq_fail(AQ_INVAL, "plan", "%llu samples from %llu on are not among %llu of all clients",
                       (unsigned long long)facts->train_samples, (unsigned long long)facts->first_sample,
                       (unsigned long long)facts->all_samples);
    plan->samples_dropped = plan->facts.train_samples - samples * W;
    plan->facts.train_samples = samples * W; /* the workers get it, too */
    plan->batch = (uint32_t)batch;
    plan->steps_per_epoch = (drawn + batch - 1) / batch;
    plan->samples_last = (uint32_t)(drawn % batch ? drawn % batch : batch);
    plan->micro_batches = aq_job_micro_batches(job, plan->batch);
    plan->micro_batches_last = aq_job_micro_batches(job, plan->samples_last);
    if (plan->steps_per_epoch > UINT64_MAX / job->train.epochs)
        return aq_fail(AQ_INVAL, "plan", "%u epochs are more steps than can be counted", job->train.epochs);
    plan->steps = plan->steps_per_epoch * job->train.epochs;
    if (job->train.steps_max && job->train.steps_max < plan->steps) plan->steps = job->train.steps_max;
    return AQ_OK;
}

static enum aq_status arrays_take(struct plan_open *open)
{
    const struct aq_plan *plan = &open->plan;
    const size_t code = (size_t)plan->stage_count *
                        (aq_schedule_bound(plan->micro_batches) + aq_schedule_bound(plan->micro_batches_last));
    AQ_TRY(AQ_NEW(plan->stage_count, &open->stages));
    AQ_TRY(AQ_NEW(plan->stage_count, &open->edges));
    AQ_TRY(AQ_NEW(code, &open->code));
    open->plan.stages = open->stages;
    open->plan.edges = open->edges;
    return AQ_OK;
}

/* If the files are readable here, checks that the weights belong to this model. */
static enum aq_status weights_match(const struct aq_plan *plan)
{
    struct aq_weights *weights;
    if (!plan->job->model.weights || aq_plan_weights_gone(plan->job)) return AQ_OK;
    AQ_TRY(aq_weights_open(plan->job->model.weights, &weights));
    const enum aq_status status = aq_weights_match(weights, &plan->model);
    aq_weights_close(weights);
    return status;
}

/* Fails for a stage of the manifest's layers that needs more memory than its worker may take. */
static enum aq_status limits_check(const struct aq_plan *plan)
{
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const uint64_t limit = aq_job_memory(plan->job, s), bytes = plan->stages[s].memory_bytes;
        char key[48], place[PLACE_BYTES], has[AQ_TEXT_NUMBER], needs[AQ_TEXT_NUMBER];
        if (limit == 0 || bytes <= limit) continue;
        snprintf(key, sizeof key, "pipeline.stages.%u.memory", s);
        aq_job_place(plan->job, key, place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: %s: stage %u with layers %u-%u needs %s, and may take %s; give it fewer layers, lower "
                       "pipeline.in_flight or train.micro_batch, or set model.recompute",
                       place, key, s, plan->stages[s].layer_first, plan->stages[s].layer_end - 1,
                       aq_text_size(bytes, needs), aq_text_size(limit, has));
    }
    return AQ_OK;
}

/* All but what is read of files, which is there. */
static enum aq_status fill(struct plan_open *open)
{
    AQ_TRY(arrays_take(open));
    AQ_TRY(stages_fill(open));
    if (open->cut || !aq_plan_cut_uneven(open->plan.job)) AQ_TRY(limits_check(&open->plan));
    AQ_TRY(dry_run(open));
    AQ_TRY(aq_plan_digests(&open->plan));
    for (uint32_t s = 0; s < open->plan.stage_count; s++) {
        struct aq_plan_stage *stage = &open->stages[s];
        struct aq_link_config *const links[] = {&stage->link_in, &stage->link_out, &stage->link_group};
        for (int i = 0; i < 3; i++) {
            links[i]->job_digest = open->plan.job_digest;
            links[i]->plan_hash = open->plan.hash;
        }
        stage->cache.job_digest = open->plan.job_digest;
    }
    return AQ_OK;
}

/* Of stages that are not alike: by flops over their speeds, within their memory. Takes *plan. */
static enum aq_status cut_unevenly(struct aq_plan **plan)
{
    struct aq_plan *alike = *plan;
    struct aq_plan_layers *layers = NULL;
    struct aq_plan_cut cut;
    enum aq_status status;
    *plan = NULL;
    AQ_TRY_GOTO(aq_plan_layers_assumed(alike, &layers), out);
    AQ_TRY_GOTO(aq_plan_balance(alike, layers, &cut), out);
    status = aq_plan_open_cut(alike, &cut, plan);
out:
    aq_plan_layers_close(layers);
    aq_plan_close(alike);
    return status;
}

/* And the adapters are of this model, its labels known. */
static enum aq_status adapters_match(const struct aq_plan *plan)
{
    struct aq_adapter_folder *folder;
    char targets[8 << 10];
    if (!plan->job->train.lora_weights || aq_plan_weights_gone(plan->job)) return AQ_OK;
    AQ_TRY(aq_adapter_folder_open(plan->job->train.lora_weights, &folder));
    const enum aq_status status = aq_adapter_folder_match(folder, &plan->model, true, targets, sizeof targets);
    aq_adapter_folder_close(folder);
    return status;
}

enum aq_status aq_plan_open(const struct aq_job *job, struct aq_plan **out)
{
    struct plan_open *open;
    AQ_TRY(AQ_NEW(1, &open));
    enum aq_status status;
    open->plan.job = job;
    open->plan.facts = job->facts;
    if (job->facts.train_samples == 0) AQ_TRY_GOTO(aq_plan_facts(job, &open->plan.facts, &open->lengths), out);
    const uint64_t samples = open->plan.facts.train_samples;
    AQ_TRY_GOTO(counts_fill(&open->plan), out);
    if (open->lengths) AQ_TRY_GOTO(aq_plan_lengths_take(&open->plan, samples, open->lengths), out);
    if (job->facts.train_samples == 0) AQ_TRY_GOTO(weights_match(&open->plan), out);
    if (job->facts.train_samples == 0) AQ_TRY_GOTO(adapters_match(&open->plan), out);
    AQ_TRY_GOTO(fill(open), out);
    struct aq_plan *plan = &open->plan;
    if (aq_plan_cut_uneven(job)) AQ_TRY(cut_unevenly(&plan));
    *out = plan;
    return AQ_OK;
out:
    aq_plan_close(&open->plan);
    return status;
}

enum aq_status aq_plan_open_cut(const struct aq_plan *like, const struct aq_plan_cut *cut, struct aq_plan **out)
{
    const struct aq_job_facts *facts = &like->facts;
    const uint64_t samples = aq_plan_lengths_count(facts);
    void *memory = NULL, *lengths = NULL;
    AQ_TRY(aq_alloc(sizeof(struct plan_open), &memory));
    struct plan_open *open = memory;
    enum aq_status status;
    open->cut = cut;
    open->plan.job = like->job;
    open->plan.facts = *facts;
    if (like->lengths) {
        AQ_TRY_GOTO(aq_alloc(samples * sizeof *like->lengths, &lengths), out);
        memcpy(lengths, like->lengths, samples * sizeof *like->lengths);
        open->plan.lengths = open->lengths = lengths;
    }
    AQ_TRY_GOTO(counts_fill(&open->plan), out);
    open->plan.samples_dropped = like->samples_dropped;
    AQ_TRY_GOTO(fill(open), out);
    open->cut = NULL; /* borrowed until now */
    *out = &open->plan;
    return AQ_OK;
out:
    aq_plan_close(&open->plan);
    return status;
}

struct aq_plan_cut aq_plan_cut_of(const struct aq_plan *plan)
{
    struct aq_plan_cut cut = {{0}};
    for (uint32_t s = 0; s < plan->stage_count; s++)
        cut.end[s] = plan->stages[s].layer_end;
    return cut;
}

/* The most bytes that the stage's cache keeps, of messages at its present cuts. */
static uint64_t cache_memory(const struct plan_open *open, uint32_t s)
{
    struct aq_cache_config cache = open->stages[s].cache;
    if (cache.slots == 0) return 0;
    cache.value_bytes_max = 0;
    for (uint32_t e = s ? s - 1 : 0; e <= s && e + 1 < open->plan.stage_count; e++)
        if (open->edges[e].size.message_bytes > cache.value_bytes_max)
            cache.value_bytes_max = open->edges[e].size.message_bytes;
    return aq_cache_measure(&cache);
}

enum aq_status aq_plan_stage_bytes(const struct aq_plan *plan, uint32_t s, uint32_t first, uint32_t end,
                                   uint64_t *bytes)
{
    struct aq_plan_stage stages[AQ_JOB_STAGES_MAX];
    struct aq_plan_edge edges[AQ_JOB_STAGES_MAX];
    struct plan_open open = {.plan = *plan, .stages = stages, .edges = edges};
    open.plan.stages = stages;
    open.plan.edges = edges;
    memcpy(stages, plan->stages, plan->stage_count * sizeof *stages);
    memcpy(edges, plan->edges, (plan->stage_count - 1) * sizeof *edges);
    struct aq_plan_stage *stage = &stages[s];
    stage->layer_first = first;
    stage->layer_end = end;
    for (uint32_t e = s ? s - 1 : 0; e <= s && e + 1 < plan->stage_count; e++) {
        const struct aq_plan_window window = edges[e].window;
        AQ_TRY(aq_plan_edge_at(plan, e, e == s ? end : first, &edges[e]));
        edges[e].shape.shared = plan->edges[e].shape.shared;
        edges[e].shape.tied = plan->edges[e].shape.tied;
        AQ_TRY(edge_windows(&open, e, &window));
    }
    AQ_TRY(stage_fill(&open, s));
    AQ_TRY(stage_slots(&open, s));
    if (s > 0) link_fill(&open, s, s - 1, s - 1, &stage->link_in);
    if (s + 1 < plan->stage_count) link_fill(&open, s, s + 1, s, &stage->link_out);
    stage->line_count = 0;
    stage->memory_bytes = 0;
    memory_fill(&open, s);
    const uint64_t before = stage->cache.slots ? aq_cache_measure(&stage->cache) : 0;
    *bytes = stage->memory_bytes - before + cache_memory(&open, s);
    return AQ_OK;
}

void aq_plan_checkpoint_run(const struct aq_plan *plan, struct aq_checkpoint_run *out)
{
    *out = (struct aq_checkpoint_run){.plan_hash = aq_plan_hash(plan),
                                      .job_digest = plan->job_digest,
                                      .rank_hash = plan->rank_hash,
                                      .resume_hash = plan->resume_hash,
                                      .stages = plan->stage_count,
                                      .replicas = plan->replicas};
}

void aq_plan_close(struct aq_plan *plan)
{
    if (!plan) return;
    struct plan_open *open = (struct plan_open *)plan; /* the plan is the first member */
    aq_free(open->lengths);
    aq_free(open->code);
    aq_free(open->edges);
    aq_free(open->stages);
    aq_free(open);
}

float aq_plan_learning_rate(const struct aq_plan *plan, uint64_t step)
{
    const struct aq_job_train *train = &plan->job->train;
    const struct aq_lr_schedule schedule = {.decay = train->decay,
                                            .peak = train->lr,
                                            .least = train->lr_min,
                                            .from = train->warmup_from,
                                            .warmup = train->warmup_steps,
                                            .total = plan->steps,
                                            .every = aq_job_every_steps(&train->decay_every, plan->steps_per_epoch),
                                            .rate = train->decay_rate,
                                            .power = train->decay_power};
    return aq_lr_ends_rate(&train->lr_ends, &schedule, step);
}

uint64_t aq_plan_hash(const struct aq_plan *plan)
{
    return plan->hash;
}

enum aq_status aq_plan_manifest(const struct aq_plan *plan, char **text)
{
    struct aq_job with_facts = *plan->job; /* canonical reads the values alone */
    struct aq_job_stage stages[AQ_JOB_RANKS_MAX];
    for (uint32_t r = 0; r < plan->ranks; r++) {
        stages[r] = plan->job->pipeline.stages[r];
        stages[r].layer_first = plan->stages[r % plan->stage_count].layer_first;
        stages[r].layer_end = plan->stages[r % plan->stage_count].layer_end;
    }
    with_facts.pipeline.stages = stages;
    with_facts.pipeline.automatic = false;
    with_facts.facts = plan->facts;
    with_facts.pipeline.schedule = plan->schedule; /* what was chosen here, the cut too, is not chosen again there */
    with_facts.pipeline.in_flight = plan->in_flight;
    return aq_job_canonical(&with_facts, text);
}
