/*
 * worker.c -- the life of a stage worker: start, open, join, train, close. One step is worker_step.c.
 */
#include "worker.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "aqsgd/device_owner.h"
#include "checkpoint.h"
#include "checkpoint_adapters.h"
#include "confine.h"
#include "heartbeat.h"
#include "owned_folder.h"

enum {
    START_SECONDS = 600, /* from start to go: other stages may be loading */
    PATH_BYTES = 4096
};

/* --- Opening
 * ---------------------------------------------------------------------------------------------------------- */

/* A plan that needs more memory than the daemon allows (--max-memory) is refused before it allocates. */
static enum aq_status within_limit(const struct aq_worker *w)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0) return aq_fail_errno("worker", "cannot ask for the limit of memory");
    return limit.rlim_cur == RLIM_INFINITY ? AQ_OK : aq_plan_rank_fits(w->plan, w->rank, limit.rlim_cur);
}

static int by_bytes(const void *a, const void *b)
{
    const struct aq_plan_line *left = a, *right = b;
    return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

/* The lines of what is on the device, the largest first. */
static void add_consumers(const struct aq_plan_stage *me, struct aq_text *what)
{
    struct aq_plan_line lines[AQ_PLAN_LINES_MAX];
    uint32_t count = 0;
    for (uint64_t bytes = 0; count < me->line_count && bytes < me->device_bytes; count++) {
        lines[count] = me->lines[count];
        bytes += lines[count].bytes;
    }
    qsort(lines, count, sizeof *lines, by_bytes);
    for (uint32_t i = 0; i < count; i++) {
        char number[AQ_TEXT_NUMBER];
        aq_text_add(what, "%s %s %s", i ? "," : "", lines[i].name, aq_text_size(lines[i].bytes, number));
    }
}

/* Memory that a neighbour's process may map is allocated separately (edge_carry.c). */
static uint64_t shared_bytes(const struct aq_worker *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const bool there = i == 0 ? w->position > 0 : w->position + 1 < w->P;
        if (there && aq_job_edge_transport(w->job, w->rank - 1 + i) != AQ_TRANSPORT_LINKS)
            bytes += w->plan->edges[w->position - 1 + i].size.shared_bytes;
    }
    return bytes;
}

/*
 * All else that the plan puts on the device, in one allocation; the scratch of the device's own stream it has already.
 */
static enum aq_status reserve(struct aq_worker *w)
{
    const bool gpu = w->me->config.weights_16bit;
    const uint64_t bytes = w->me->device_bytes - (gpu ? aq_device_stream_bytes() + shared_bytes(w) : 0);
    struct aq_text what = {0};
    aq_text_add(&what, "stage %u:", w->rank);
    add_consumers(w->me, &what);
    aq_text_add(&what, "; lower train.micro_batch or pipeline.in_flight, set model.recompute, or cut into more stages");
    const enum aq_status status = aq_device_reserve(w->device, bytes, aq_text_of(&what));
    aq_text_deinit(&what);
    return status;
}

/* A plan cannot know what else uses the memory of its GPU. It is logged when the device is open, and after the first
 * step, when kernels and libraries are loaded. */
static enum aq_status tell_memory(const struct aq_worker *w, const char *when)
{
    char all[AQ_TEXT_NUMBER], held[AQ_TEXT_NUMBER], beside[AQ_TEXT_NUMBER], left[AQ_TEXT_NUMBER];
    struct aq_device_memory memory;
    AQ_TRY(aq_device_memory(w->device, &memory));
    if (memory.all == 0) return AQ_OK;
    const uint64_t ours = memory.free + memory.held;
    aq_log(
        "worker", 1,
        "stage %u %s: of its GPU's %s the plan holds %s, the CUDA context, libraries, kernels and other processes %s; "
        "%s are free",
        w->position, when, aq_text_size(memory.all, all), aq_text_size(memory.held, held),
        aq_text_size(memory.all > ours ? memory.all - ours : 0, beside), aq_text_size(memory.free, left));
    return AQ_OK;
}

/*
 * A kernel that is loaded when it is first called may wait for all that runs on its GPU. NCCL's kernels there may wait
 * for another rank, whose own first call may wait for ours. So kernels are loaded when the process starts, and those
 * that libraries load lazily, when the stage is warmed up (worker_warm.c).
 */
static bool may_carry(const struct aq_worker *w)
{
    return (w->W > 1 && w->job->reduce.transport != AQ_TRANSPORT_LINKS) ||
           (w->position > 0 && aq_job_edge_transport(w->job, w->rank - 1) != AQ_TRANSPORT_LINKS) ||
           (w->position + 1 < w->P && aq_job_edge_transport(w->job, w->rank) != AQ_TRANSPORT_LINKS);
}

static enum aq_status open_stage(struct aq_worker *w)
{
    const struct aq_job_stage *place = &w->job->pipeline.stages[w->rank];
    aq_device_owner_set(w->checkpoints.run_folder);
    const struct aq_device_config device = {
        .kind = place->device,
        .index = place->device_index,
        .threads = aq_job_threads(w->job, w->rank, aq_thread_cores()),
        .owner =
            aq_digest_seeded(w->checkpoints.run_folder, strlen(w->checkpoints.run_folder), w->plan->job_digest) | 1};
    struct aq_device_info info;
    if (may_carry(w)) (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    AQ_TRY(aq_device_open(&device, &w->device));
    AQ_TRY(reserve(w));
    AQ_TRY(tell_memory(w, "begins"));
    aq_device_info(w->device, &info);
    char instructions[64], frozen[48] = "";
    aq_processor_text(aq_processor_used(), instructions);
    if (w->me->size.frozen) snprintf(frozen, sizeof frozen, " trained, %" PRIu64 " frozen", w->me->size.frozen);
    aq_log("worker", 1,
           "stage %u of %u, replica %u of %u: layers %u-%u (%s .. %s), %" PRIu64
           " parameters%s, on %s, instructions %s",
           w->position, w->P, w->replica, w->W, w->me->layer_first, w->me->layer_end - 1, w->me->name_first,
           w->me->name_last, w->me->size.parameters, frozen, info.name, instructions);
    AQ_TRY(aq_stage_open(w->device, &w->me->config, &w->stage));
    return aq_worker_device_open(w);
}

static enum aq_status open_optimizer(struct aq_worker *w)
{
    const uint32_t count = aq_stage_tensor_count(w->stage);
    void *memory;
    AQ_TRY(aq_alloc(count * (sizeof(struct aq_optimizer_tensor) + sizeof(struct aq_tensor_info)), &memory));
    struct aq_optimizer_tensor *tensors = memory;
    struct aq_tensor_info *infos = (struct aq_tensor_info *)(tensors + count); /* whose names are borrowed */
    for (uint32_t i = 0; i < count; i++) {
        aq_stage_tensor(w->stage, i, &infos[i]);
        tensors[i] = (struct aq_optimizer_tensor){.offset = infos[i].offset,
                                                  .count = infos[i].count,
                                                  .decay = infos[i].decay,
                                                  .rows = infos[i].dimensions == 2 ? infos[i].shape[0] : 0,
                                                  .name = infos[i].name,
                                                  .rate = infos[i].rate > 0 ? infos[i].rate / w->job->train.lr : 1};
    }
    const bool machines = w->job->reduce.machine_first;
    const struct aq_optimizer_group group = {.rank = machines ? aq_job_machine(w->job, w->replica) : w->replica,
                                             .size = aq_job_reducers(w->job)};
    struct aq_optimizer_config config = w->job->train.optimizer;
    config.seed = w->job->train.seed;
    config.total_steps = w->plan->steps;
    const enum aq_status status = aq_optimizer_open_group(w->device, &config, tensors, count,
                                                          aq_stage_parameter_count(w->stage), &group, &w->optimizer);
    aq_free(memory);
    AQ_TRY(status);
    if (w->W > 1) AQ_TRY(AQ_NEW(count, &w->replicas.squares));
    return AQ_OK;
}

/* As at the beginning of a run. */
static enum aq_status begin_weights(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    w->checkpoints.frozen_due = aq_stage_frozen_count(w->stage) > 0;
    const uint64_t seed = w->job->train.seed;
    AQ_TRY(w->job->model.weights ? aq_checkpoint_import(&checkpoint, w->job->model.weights, seed)
                                 : aq_stage_init(w->stage, seed));
    const char *adapter = w->job->train.lora_weights;
    return adapter ? aq_adapters_import(&checkpoint, &w->plan->model, adapter) : AQ_OK;
}

/* On resume, loads the frozen tensors from the file of the run, or if that is lost from their first source. */
static enum aq_status load_frozen(struct aq_worker *w, uint64_t resume)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (resume && aq_checkpoint_frozen_read(&checkpoint) != AQ_OK) {
        aq_log("worker", AQ_LOG_WARNING, "rank %u has lost its frozen tensors (%s): they are made again from %s",
               w->rank, aq_error_text(), w->job->model.weights ? w->job->model.weights : "train.seed");
        aq_error_clear(); /* dealt with */
        AQ_TRY(begin_weights(w));
    }
    return aq_checkpoint_frozen_digest(&checkpoint, &w->checkpoints.frozen_digest);
}

/* Once for a run, and where the file was lost; when it is known that the checkpoint is of these values. */
static enum aq_status keep_frozen(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (!w->checkpoints.frozen_due) return AQ_OK;
    AQ_TRY(aq_owned_check(w->checkpoints.folder, AQ_OWNED_CHECKPOINT, w->checkpoints.run_id));
    w->checkpoints.frozen_due = false;
    return aq_checkpoint_frozen_write(&checkpoint);
}

/* A turn starts with the weights, statistics and optimizer that others have trained, not with one's own last ones. */
static enum aq_status adopt(struct aq_worker *w, const char *folder)
{
    struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    checkpoint.own_statistics = w->job->split.statistics == AQ_SPLIT_LOCAL; /* those are the client's, loaded before */
    w->checkpoints.adopted = true;
    aq_log("worker", 1, "starts with the weights in %s", folder);
    AQ_TRY(aq_checkpoint_adopt(&checkpoint, folder, w->step));
    aq_log("worker", 1, "its optimizer's moments have had %" PRIu64 " updates",
           w->step + (uint64_t)w->checkpoints.updates_ahead);
    return AQ_OK;
}

static enum aq_status load_weights(struct aq_worker *w, uint64_t resume)
{
    w->step = w->checkpoints.resumed_at = resume;
    if (!resume) AQ_TRY(begin_weights(w));
    AQ_TRY(load_frozen(w, resume));
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (resume) {
        const uint64_t begin = aq_clock_ns();
        const uint32_t replicas = aq_checkpoint_replicas(&checkpoint, resume);
        w->replicas.resharded = replicas > 0;
        const enum aq_status status =
            replicas ? aq_checkpoint_reshard(&checkpoint, resume, replicas) : aq_checkpoint_read(&checkpoint, resume);
        if (w->replicas.resharded && w->position == 0 && w->replica == 0)
            aq_log("worker", AQ_LOG_WARNING,
                   "the checkpoint of step %" PRIu64 " is of %u replicas, this run has %u: samples move, and "
                   "start with keyframes",
                   resume, replicas, w->W);
        w->checkpoints.read_ns = aq_clock_ns() - begin;
        /* An older one may be whole. But a file of another run or step is not ours: it is not touched. */
        if (status == AQ_OK || status == AQ_NOMEM || status == AQ_MISMATCH) return status;
        w->checkpoints.lost = w->worker_parts.serve; /* there may be a copy */
        if (!w->checkpoints.lost) w->checkpoints.unreadable = resume;
        if (w->checkpoints.lost) aq_error_clear();
        return w->checkpoints.lost ? AQ_OK : status;
    }
    return w->job->train.staleness ? aq_stage_keep(w->stage, w->stream) : AQ_OK;
}

/* A mark of this step, before anything is put into the cache. */
static enum aq_status mark_cache(struct aq_worker *w)
{
    AQ_TRY(aq_cache_mark_begin(w->pipeline.cache, w->step));
    for (;;) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        const enum aq_status status = aq_cache_mark_done(w->pipeline.cache);
        if (status != AQ_AGAIN) return status;
        (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(AQ_ROUNDS_LOOK_NS));
    }
}

/*
 * The cache of a replica that was lost has no mark of the step from which it returns: it is opened at the one that the
 * checkpoint names. AQ_NOTFOUND: it has neither.
 */
static enum aq_status open_at_mark(struct aq_worker *w, struct aq_cache_config *config)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    uint64_t earlier = 0;
    if (config->mark > 0 && !w->checkpoints.lost) AQ_TRY(aq_checkpoint_caches(&checkpoint, w->step, &earlier));
    if (earlier > 0) {
        struct aq_error_hold first;
        aq_error_hold(&first);
        const enum aq_status status = aq_cache_open(config, &w->pipeline.cache);
        aq_error_release(&first);
        if (status == AQ_OK) return AQ_OK; /* it has returned before, and all start again */
        config->mark = earlier;
    }
    AQ_TRY(aq_cache_open(config, &w->pipeline.cache));
    if (earlier == 0) return AQ_OK;
    aq_log("worker", 1, "its message cache is as it was at step %" PRIu64, earlier);
    return mark_cache(w);
}

/*
 * The cache as it was at the mark, else an empty one: the messages that it lacks come from the neighbours as they are
 * needed, bit for bit (edge_heal.c). A cache of another job is refused and not touched.
 */
static enum aq_status open_or_rebuild(struct aq_worker *w, struct aq_cache_config *config)
{
    const enum aq_status status = open_at_mark(w, config);
    const bool lost = status == AQ_NOTFOUND || status == AQ_CORRUPT || status == AQ_IO;
    if (!lost || config->mark == 0) return status;
    aq_log("worker", AQ_LOG_WARNING,
           "rank %u has lost its cache of step %" PRIu64 " (%s): it starts empty, messages come from the neighbours",
           w->rank, w->step, aq_status_text(status));
    AQ_TRY(aq_cache_discard(config->path));
    aq_error_clear(); /* dealt with: a later failure is not this one */
    config->mark = 0;
    config->lost = true;
    return aq_cache_open(config, &w->pipeline.cache);
}

/* AQ_AGAIN: a part needs the links first (linked). */
static enum aq_status open_cache(struct aq_worker *w, bool linked)
{
    struct aq_cache_config config = w->me->cache;
    struct aq_part_args args = {.link_in = linked ? w->pipeline.link_in : NULL, .events = w->eventcount};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_CACHE_OPEN, &args));
    if (config.slots == 0) return AQ_OK;
    config.key = config.sealed ? args.key : NULL;
    char path[PATH_BYTES], parent[PATH_BYTES];
    if (w->job->cache.path)
        snprintf(parent, sizeof parent, "%s", w->job->cache.path);
    else
        snprintf(parent, sizeof parent, "%s/cache", w->checkpoints.run_folder);
    const int bytes = snprintf(path, sizeof path, "%s/stage-%u", parent, w->rank);
    if (bytes >= (int)sizeof path) return aq_fail(AQ_INVAL, "worker", "cache.path is too long");
    config.path = path;
    config.eventcount = w->eventcount;
    config.trace = w->trace;
    config.pages = aq_device_pages(w->device);
    config.job_digest = w->plan->job_digest;
    config.job_name = w->job->name;
    config.mark = strcmp(config.kind, "memory") == 0 ? 0 : w->step;
    config.fresh = w->step == 0 || w->replicas.resharded;
    if (w->replicas.resharded) config.mark = 0;
    if (w->step > 0 && config.mark == 0)
        aq_log("worker", AQ_LOG_WARNING, "a cache in memory starts cold: the first epoch from here sends keyframes");
    return open_or_rebuild(w, &config);
}

static enum aq_status open_edges(struct aq_worker *w)
{
    struct aq_edge_config config = {.device = w->device,
                                    .eventcount = w->eventcount,
                                    .trace = w->trace,
                                    .silence_ns = w->links.silence_ns,
                                    .mirror = w->job->checkpoint.mirror};
    struct aq_part_args args = {0};
    if (w->position > 0) {
        const struct aq_plan_edge *edge = &w->plan->edges[w->position - 1];
        config.shape = &edge->shape;
        config.sender = false;
        AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_EDGE_OPEN, &args));
        config.guard = args.guard;
        config.link = w->pipeline.link_in;
        config.cache = edge->size.message_bytes ? w->pipeline.cache : NULL;
        AQ_TRY(aq_edge_open(&config, &w->pipeline.in));
        AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_EDGE_OPENED, &args));
    }
    if (w->position + 1 < w->P) {
        const struct aq_plan_edge *edge = &w->plan->edges[w->position];
        config.shape = &edge->shape;
        config.sender = true;
        config.link = w->pipeline.link_out;
        args.sends = true;
        AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_EDGE_OPEN, &args));
        config.guard = args.guard;
        config.cache = edge->size.message_bytes ? w->pipeline.cache : NULL;
        AQ_TRY(aq_edge_open(&config, &w->pipeline.out));
        args.edge_out = w->pipeline.out;
        AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_EDGE_OPENED, &args));
    }
    AQ_TRY(aq_worker_warm_edges(w));
    if (w->pipeline.in) AQ_TRY(aq_edge_join(w->pipeline.in, aq_job_edge_transport(w->job, w->rank - 1)));
    return w->pipeline.out ? aq_edge_join(w->pipeline.out, aq_job_edge_transport(w->job, w->rank)) : AQ_OK;
}

/* All start from a checkpoint some files of which others have written. One that does not come may be whole in an older
 * checkpoint, as one that cannot be read. For want of memory or disk here no other checkpoint helps. */
static enum aq_status fetch_first(struct aq_worker *w, const json_t *start, uint64_t resume)
{
    aq_heartbeat_phase(AQ_PHASE_WEIGHTS);
    const enum aq_status status = aq_worker_fetch(w, start, resume);
    if (status != AQ_OK && status != AQ_NOMEM && status != AQ_NOSPC) w->checkpoints.unreadable = resume;
    return status;
}

static enum aq_status open_all(struct aq_worker *w, const json_t *start)
{
    const char *folder;
    AQ_TRY(aq_worker_plan_open(w, start));
    aq_log_init((int)w->rank);
    AQ_TRY(within_limit(w));
    struct aq_part_args args = {.message = start};
    AQ_TRY(aq_worker_parts_open(&w->worker_parts, w->plan, w->rank)); /* a checkpoint may change their states */
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_START, &args));
    w->steps.shift = (uint64_t)args.shift;
    w->checkpoints.updates_ahead = args.updates;
    AQ_TRY(aq_control_get_text(start, "checkpoint", &folder));
    AQ_TRY(aq_alloc_text(folder, &w->checkpoints.folder));
    const char *hash = aq_control_text_or(start, "sha256", "");
    if (*hash && !aq_hash_is(hash)) return aq_fail(AQ_PROTO, "worker", "received no SHA-256: %.80s", hash);
    snprintf(w->checkpoints.hash, sizeof w->checkpoints.hash, "%s", hash);
    AQ_TRY(aq_control_get_hex(start, "id", &w->checkpoints.run_id));
    w->replicas.rounds.returns = w->job->reduce.patience_ns > 0 && aq_control_bool_or(start, "returns", false);
    AQ_TRY(aq_worker_gives_open(w));
    const uint64_t until = aq_control_u64_or(start, "until", 0);
    if (until > 0 && until < aq_worker_steps_end(w)) w->last = until; /* equal on all ranks, so it needs no vote */
    if (w->job->output.trace) AQ_TRY(aq_trace_open(AQ_PLAN_TRACE_RECORDS, &w->trace));
    AQ_TRY(aq_eventcount_open(&w->eventcount));
    aq_heartbeat_eventcount(w->eventcount);
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_DEVICE));
    AQ_TRY(open_stage(w));
    AQ_TRY(open_optimizer(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_DATA));
    AQ_TRY(aq_rank_data_open(&w->data, w->plan, w->rank, w->steps.shift, start));
    uint64_t resume = aq_control_u64_or(start, "resume", 0);
    const bool waits = w->replicas.rounds.gives && resume > 0 && aq_control_bool_or(start, "waits", false);
    if (waits) AQ_TRY(fetch_first(w, start, resume));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_WEIGHTS));
    if (w->replicas.rounds.returns || waits) AQ_TRY(aq_worker_rounds_enter(w, &resume));
    AQ_TRY(load_weights(w, resume));
    const char *from = aq_control_text_or(start, "adopt", NULL);
    if (from) AQ_TRY(adopt(w, from));
    AQ_TRY(aq_worker_snapshot_open(w));
    AQ_TRY(aq_worker_warm(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_CACHE));
    const enum aq_status cache = open_cache(w, false);
    if (cache != AQ_AGAIN) AQ_TRY(cache);
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_CONNECT));
    AQ_TRY(aq_worker_links_open(w));
    AQ_TRY(aq_worker_group_open(w, aq_worker_meanwhile));
    AQ_TRY(aq_worker_reducer_open(w));
    AQ_TRY(aq_worker_warm_reduction(w));
    if (cache == AQ_AGAIN) AQ_TRY(open_cache(w, true));
    AQ_TRY(open_edges(w));
    AQ_TRY(aq_worker_parts_join(w));
    AQ_TRY(aq_worker_snapshot_restore(w));
    AQ_TRY(aq_worker_tied_open(w));
    AQ_TRY(aq_worker_versions_open(w));
    AQ_TRY(keep_frozen(w));
    args = (struct aq_part_args){.run_folder = w->checkpoints.run_folder, .step = w->step};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_RUN_BEGIN, &args));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_MEASURE));
    return aq_worker_choose_open(w);
}

/* --- Running
 * ---------------------------------------------------------------------------------------------------------- */

static enum aq_status evaluate(struct aq_worker *w)
{
    if (w->plan->facts.heldout_samples == 0) return AQ_OK; /* no average need be waited for */
    AQ_TRY(aq_worker_swap_in(w));
    AQ_TRY(aq_worker_evaluate(w));
    return aq_worker_swap_out(w);
}

/* At a run's end the weights stay in their place: what is written may be they, and no copy. */
static enum aq_status snapshot(struct aq_worker *w)
{
    AQ_TRY(aq_worker_swap_in(w));
    AQ_TRY(aq_worker_agree(w));
    AQ_TRY(aq_worker_rounds_stand_in(w));
    AQ_TRY(aq_worker_snapshot_begin(w));
    return w->steps.final ? AQ_OK : aq_worker_swap_out(w);
}

static enum aq_status evaluated(struct aq_worker *w)
{
    struct aq_part_args args = {.step = w->step};
    if (w->steps.final) return AQ_OK;
    aq_heartbeat_phase(AQ_PHASE_EVALUATE);
    AQ_TRY(aq_worker_parts_await(w, AQ_PART_EVALUATED_AWAIT, &args));
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w->steps.final = args.ends;
    return AQ_OK;
}

static enum aq_status train(struct aq_worker *w)
{
    aq_worker_speed_begin(w);
    const uint64_t first_step = w->step;
    aq_program_run_init(&w->steps.program, &w->me->program, AQ_LANES_CHAINS, 0);
    AQ_TRY(aq_worker_prefetch_first(w));
    while (w->step < aq_worker_steps_end(w)) {
        AQ_TRY(aq_worker_control_poll(w));
        aq_heartbeat_step(w->step + 1);
        struct aq_part_args args = {
            .step = w->step, .first = w->step == first_step, .edge_in = w->pipeline.in, .edge_out = w->pipeline.out};
        AQ_TRY(aq_worker_parts_await(w, AQ_PART_STEP_AWAIT, &args));
        AQ_TRY(aq_worker_step(w));
        if (w->step == first_step) AQ_TRY(tell_memory(w, "after its first step"));
        if (w->step == first_step)
            aq_log("worker", 1, "step %" PRIu64 ", the first, took %.3f s", w->step + 1,
                   (double)(aq_clock_ns() - w->times.begin_ns) * 1e-9);
        AQ_TRY(aq_worker_report_step(w));
        aq_worker_speed_trained(w);
        w->step++;
        const bool end = w->step == aq_worker_steps_end(w);
        w->steps.final = end || w->step == w->last;
        w->steps.stopped = w->steps.final && !end;
        if (aq_worker_evaluation_is_due(w, w->step) || end) {
            AQ_TRY(evaluate(w));
            AQ_TRY(evaluated(w));
        }
        if (aq_worker_snapshot_is_due(w)) AQ_TRY(snapshot(w));
        if (w->steps.final) break;
        aq_worker_speed_begin(w);
    }
    return aq_worker_snapshot_wait(w);
}

static enum aq_status finish(struct aq_worker *w)
{
    const uint64_t deadline = aq_clock_after(aq_worker_seconds_ns(60) + w->links.outages_ns);
    AQ_TRY(aq_worker_drain(w, deadline));
    AQ_TRY(aq_worker_report_done(w));
    return aq_worker_leave(w, deadline);
}

static void close_all(struct aq_worker *w, enum aq_status status)
{
    aq_worker_delay_stop(w);
    if (status != AQ_OK) {
        const uint64_t deadline = aq_clock_after(aq_worker_seconds_ns(2));
        aq_worker_links_abort(w, status, deadline);
        /* Freeing memory of the device waits for all work there. */
        aq_edges_abandon(w->pipeline.out, w->pipeline.in);
    }
    aq_worker_device_synchronize(w);
    /* A peer that does not read keeps an ABORT from going out, and bodies of groups and edges on their way. */
    aq_worker_links_halt(w);
    aq_worker_reducer_close(w);
    aq_worker_group_close(w);
    struct aq_part_args args = {0};
    (void)aq_worker_parts_on(&w->worker_parts, AQ_PART_EDGES_CLOSE, &args);
    aq_worker_tied_close(w);
    aq_edge_close(w->pipeline.out);
    aq_edge_close(w->pipeline.in);
    aq_worker_links_close(w);
    aq_checkpoint_writer_close(w->checkpoints.writer); /* before the stage, whose values it may be writing */
    aq_worker_parts_close(&w->worker_parts);
    aq_cache_close(w->pipeline.cache);
    aq_rank_data_close(&w->data);
    aq_optimizer_close(w->optimizer);
    aq_free(w->replicas.squares);
    aq_stage_close(w->stage);
    if (w->device) aq_worker_device_close(w);
    aq_device_close(w->device);
    aq_trace_close(w->trace);
    aq_heartbeat_eventcount(NULL);
    aq_eventcount_close(w->eventcount);
    aq_free(w->checkpoints.run_folder);
    aq_free(w->checkpoints.folder);
    aq_plan_close(w->plan);
    aq_job_close(w->job);
}

/* Reports the chosen device if the manifest left it open, and the distance to the next stage if the plan has none. */
static enum aq_status report_ready(const struct aq_worker *w)
{
    struct aq_device_info info;
    json_t *line =
        json_pack("{s:s, s:f}", "event", "ready", "checkpoint_seconds", (double)w->checkpoints.read_ns * 1e-9);
    aq_device_info(w->device, &info);
    if (line && aq_device_gpu(w->job->pipeline.stages[w->rank].device) == AQ_GPU_MAYBE)
        json_object_set_new(line, "device", json_string(info.name));
    if (line) json_object_set_new(line, "on", json_string(info.name));
    const double rtt_ms = aq_worker_distance_ms(w);
    if (line && rtt_ms > 0) json_object_set_new(line, "rtt_ms", aq_control_number(rtt_ms));
    return aq_control_send(w->control, line);
}

enum aq_status aq_worker_run(struct aq_control *control)
{
    struct aq_worker w = {.control = control};
    struct aq_part_args args = {0};
    json_t *message = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(aq_worker_await(&w, "start", aq_clock_after(aq_worker_seconds_ns(START_SECONDS)), &message), out);
    const bool probe = aq_control_bool_or(message, "probe", false), ask = json_object_get(message, "ask") != NULL;
    status = !probe ? open_all(&w, message) : ask ? aq_worker_answer(&w, message) : aq_worker_probe(&w, message);
    json_decref(message);
    if (status != AQ_OK || probe) goto out;
    AQ_TRY_GOTO(report_ready(&w), out);
    aq_heartbeat_phase(AQ_PHASE_GO);
    AQ_TRY_GOTO(aq_worker_await(&w, "go", aq_clock_after(aq_worker_seconds_ns(START_SECONDS)), &message), out);
    status = aq_worker_speed_told(&w, message, w.step);
    json_decref(message);
    if (status != AQ_OK) goto out;
    w.steps.go_ns = aq_clock_ns();
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w.checkpoints.waiting = false;
    aq_log("worker", 1, "trains: steps %" PRIu64 " to %" PRIu64, w.step + 1, aq_worker_steps_end(&w));
    AQ_TRY_GOTO(aq_worker_parts_on(&w.worker_parts, AQ_PART_GO, &args), out);
    AQ_TRY_GOTO(train(&w), out);
    aq_heartbeat_phase(AQ_PHASE_END);
    status = finish(&w);
    const enum aq_status parts = aq_worker_parts_on(&w.worker_parts, AQ_PART_RUN_END, &args);
    if (status == AQ_OK) status = parts;
    if (status == AQ_OK)
        aq_log("worker", 1, "%s after step %" PRIu64 ", %.1f s of training", w.steps.stopped ? "stopped" : "done",
               w.step, (double)(aq_clock_ns() - w.steps.go_ns) * 1e-9);
out:
    if (status != AQ_OK) aq_worker_report_failed(&w, status);
    close_all(&w, status);
    return status;
}

int aq_command_worker(int argc, char **argv)
{
    if (argc != 1) {
        aq_log("worker", 0, "%s takes no arguments: it is started by aqpiped", argv[0]);
        return 2;
    }
    aq_log_init(AQ_LOG_COMMAND);
    /* Ctrl-C reaches the whole foreground group, but only the launcher stops a worker. */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    struct aq_control *control;
    enum aq_status status = aq_control_open(AQ_CONTROL_FD, &control);
    if (status != AQ_OK) {
        aq_log("worker", 0, "there is no control channel at descriptor %d: only aqpiped starts this command",
               AQ_CONTROL_FD);
        return 2;
    }
    if (!aq_confine_worker()) aq_log("worker", 2, "no seccomp filter here: nothing keeps this worker from exec");
    status = aq_heartbeat_open();
    if (status == AQ_OK) status = aq_worker_run(control);
    aq_heartbeat_close();
    aq_control_close(control);
    return status == AQ_OK ? 0 : 1;
}
