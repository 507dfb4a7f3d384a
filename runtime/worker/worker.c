/*
 * worker.c -- the life of a stage worker: start, open, join, train, close. One step is worker_step.c.
 */
#include "worker.h"

#include "checkpoint_adapters.h"
#include "confine.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "aqsgd/device_owner.h"
#include "checkpoint.h"
#include "heartbeat.h"
#include "lengths.h"
#include "net/collective.h"
#include "net/tls.h"
#include "owned_folder.h"
#include "run_folder.h"
#include "stages/labels.h"

enum {
    START_SECONDS = 600,   /* from start to go: other stages may be loading                            */
    REDUCE_SECONDS = 3600, /* 4.5 GB of gradients at 10 Mbit/s, or an evaluation                        */
    LOCAL_SECONDS = 60,    /* of a local step: how much longer the slowest replica may take            */
    PATH_BYTES = 4096
};

#define SERVE_NS (20ull * 1000 * 1000)

static uint64_t seconds_ns(uint64_t seconds)
{
    return seconds * 1000000000u;
}

/* --- Opening
 * ---------------------------------------------------------------------------------------------------------- */

enum aq_status aq_worker_plan_open(struct aq_worker *w, const json_t *start)
{
    const char *manifest, *run;
    uint64_t hash, rank;
    AQ_TRY(aq_control_get_text(start, "manifest", &manifest));
    AQ_TRY(aq_control_get_text(start, "run", &run));
    AQ_TRY(aq_control_get_hex(start, "plan_hash", &hash));
    AQ_TRY(aq_control_get_u64(start, "rank", &rank));
    AQ_TRY(aq_alloc_text(run, &w->run_folder));
    AQ_TRY(aq_job_parse(manifest, strlen(manifest), "manifest", run, NULL, 0, &w->job));
    AQ_TRY(aq_plan_open(w->job, &w->plan));
    if (aq_plan_hash(w->plan) != hash)
        return aq_fail(AQ_MISMATCH, "worker",
                       "this machine plans %016" PRIx64 ", the launcher %016" PRIx64
                       ": another version of aqpipe here?",
                       aq_plan_hash(w->plan), hash);
    if (rank >= w->plan->ranks)
        return aq_fail(AQ_PROTO, "worker", "started as rank %" PRIu64 " of %u", rank, w->plan->ranks);
    w->rank = (uint32_t)rank;
    w->P = w->plan->stage_count;
    w->W = w->plan->replicas;
    w->position = w->rank % w->P;
    w->replica = w->rank / w->P;
    w->me = &w->plan->stages[w->position];
    const struct aq_job_link *link = &w->job->link;
    /* A neighbour may itself be waiting for the outage of another link. */
    w->outages_ns = (w->P - 1) * (link->outage_ns_max + (link->outage_ns_max ? link->silence_ns_max : 0));
    w->silence_ns = link->silence_ns_max ? link->silence_ns_max + w->outages_ns : UINT64_MAX;
    /* A neighbour may be averaging its gradients meanwhile; the links' own heartbeats show whether it lives. */
    if ((w->W > 1 || aq_job_global(w->job)) && link->silence_ns_max) w->silence_ns += seconds_ns(REDUCE_SECONDS);
    /* With global sampling for others' clients, too, each of which the server waits for that long. */
    if (aq_job_global(w->job) && link->silence_ns_max) w->silence_ns += AQ_JOB_CLIENTS_MAX * w->job->split.wait_ns;
    /* And replicas meet once a round, the slowest as much later as that takes. */
    if (aq_worker_is_local(w) && link->silence_ns_max)
        w->silence_ns += seconds_ns(LOCAL_SECONDS) * w->job->train.optimizer.outer_every;
    return AQ_OK;
}

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
    aq_device_owner_set(w->run_folder);
    const struct aq_device_config device = {
        .kind = place->device,
        .index = place->device_index,
        .threads = aq_job_threads(w->job, w->rank, aq_thread_cores()),
        .owner = aq_digest_seeded(w->run_folder, strlen(w->run_folder), w->plan->job_digest) | 1};
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
                                                  .name = infos[i].name};
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
    if (w->W > 1) AQ_TRY(aq_alloc(count * sizeof *w->replicas.squares, (void **)&w->replicas.squares));
    return AQ_OK;
}

/* Finds the first part of each sample: the lengths of its parts add up to its own. */
static enum aq_status open_parts(struct aq_worker *w)
{
    const struct aq_job_facts *facts = &w->plan->facts;
    const uint64_t samples = facts->train_samples + facts->heldout_samples;
    void *memory;
    AQ_TRY(aq_alloc((samples + 1) * sizeof(uint32_t), &memory));
    w->part_first = memory;
    w->parts = w->train_lengths + samples;
    uint64_t part = 0;
    for (uint64_t s = 0; s < samples; s++) {
        w->part_first[s] = (uint32_t)part;
        for (uint64_t have = 0; have < w->train_lengths[s]; part++) {
            if (part == facts->parts || w->parts[part] > w->train_lengths[s] - have)
                return aq_fail(AQ_PROTO, "worker", "the parts of sample %" PRIu64 " are not as long as it", s);
            have += w->parts[part];
        }
    }
    w->part_first[samples] = (uint32_t)part;
    if (part != facts->parts) return aq_fail(AQ_PROTO, "worker", "parts remain after the last sample");
    return AQ_OK;
}

const uint32_t *aq_worker_starts(const struct aq_worker *w, bool heldout, uint64_t sample, uint32_t row)
{
    const uint64_t at = sample + (heldout ? w->plan->facts.train_samples : 0);
    if (!w->parts) return NULL;
    uint32_t *to = w->starts + (uint64_t)row * w->job->train.T;
    aq_dataset_starts(w->parts + w->part_first[at], w->part_first[at + 1] - w->part_first[at], w->job->train.T, to);
    return to;
}

/*
 * Lengths of all samples: a stage without data gets them from the launcher, which has read them. The digest is in the
 * plan, so that both ends of an edge have the same.
 */
static enum aq_status open_lengths(struct aq_worker *w, const json_t *start)
{
    const struct aq_job_facts *facts = &w->plan->facts;
    const uint64_t all = aq_plan_lengths_count(facts);
    const char *text;
    void *memory;
    if (!facts->lengths_digest) return AQ_OK;
    if (facts->parts > UINT32_MAX) return aq_fail(AQ_PROTO, "worker", "samples of too many parts");
    AQ_TRY(aq_control_get_text(start, "lengths", &text));
    AQ_TRY(aq_alloc(all * sizeof(uint32_t), &memory));
    w->lengths_memory = memory;
    AQ_TRY(aq_lengths_read(text, all, w->job->train.T, memory));
    if ((aq_digest(memory, all * sizeof(uint32_t)) | 1) != facts->lengths_digest)
        return aq_fail(AQ_PROTO, "worker", "received other lengths of the samples than the plan's");
    w->train_lengths = memory;
    w->heldout_lengths = w->train_lengths + facts->train_samples;
    return facts->parts ? open_parts(w) : AQ_OK;
}

/* Compares the lengths of the samples that this stage reads with those that the launcher sent. */
static enum aq_status lengths_agree(const struct aq_worker *w, const struct aq_dataset *dataset, bool heldout)
{
    const uint32_t *here = aq_dataset_lengths(dataset), *told = heldout ? w->heldout_lengths : w->train_lengths;
    const uint64_t samples = heldout ? w->plan->facts.heldout_samples : w->plan->facts.train_samples;
    for (uint64_t i = 0; i < samples && (here || told); i++)
        if ((here ? here[i] : w->job->train.T) != (told ? told[i] : w->job->train.T))
            return aq_fail(AQ_MISMATCH, "worker", "sample %" PRIu64 " is not as long as the job was planned with", i);
    return AQ_OK;
}

/* A server's last stage of a turn has labels and nothing else of its client's data. */
static bool labels_alone(const struct aq_worker *w)
{
    return w->job->split.client && w->position + 1 == w->P && !aq_job_at_client(w->job, w->rank);
}

static enum aq_status labels_agree(const struct aq_worker *w, const struct aq_dataset *labels, bool heldout)
{
    const uint64_t want = heldout ? w->plan->facts.heldout_samples : w->plan->facts.train_samples;
    if (aq_dataset_count(labels) == want && aq_dataset_outputs(labels) <= w->plan->model.vocabulary) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "worker",
                   "there are %" PRIu64 " labels of up to %u classes: the job is of %" PRIu64 " samples and %u classes",
                   aq_dataset_count(labels), aq_dataset_outputs(labels), want, w->plan->model.vocabulary);
}

static enum aq_status open_dataset(const struct aq_worker *w, bool heldout, struct aq_dataset **out)
{
    struct aq_dataset_config config = aq_plan_dataset(w->job, heldout);
    const bool labels = labels_alone(w);
    if (labels) { /* of the samples that the client has taken of its data */
        config.kind = aq_labels_kind();
        config.samples_max = config.skip = 0;
    }
    AQ_TRY(aq_dataset_open(&config, out));
    if (labels) return labels_agree(w, *out, heldout);
    const uint64_t want = heldout ? w->plan->facts.heldout_digest : w->plan->facts.train_digest;
    if (aq_dataset_digest(*out) == want) return lengths_agree(w, *out, heldout);
    return aq_fail(AQ_MISMATCH, "worker",
                   "%s is not the data that the job was planned with (digest %016" PRIx64 ", planned %016" PRIx64 ")",
                   config.paths[0], aq_dataset_digest(*out), want);
}

/* Opens the sampler of this worker's part of each batch: a replica's, or with global sampling a client's. */
static enum aq_status open_sampler(struct aq_worker *w)
{
    const struct aq_job_facts *facts = &w->plan->facts;
    const struct aq_job_train *train = &w->job->train;
    const struct aq_sampler_part part = {
        .all = facts->all_samples, .first = facts->first_sample, .count = facts->train_samples, .shift = w->sums.shift};
    if (aq_job_global(w->job))
        return aq_sampler_open_part(&part, w->plan->batch, train->seed, train->shuffle, &w->sampler);
    return aq_sampler_open_shard(facts->train_samples, w->plan->batch, train->seed, train->shuffle, w->replica, w->W,
                                 &w->sampler);
}

/* The last stage counts the targets of whole steps: those of the other replicas, too. */
static enum aq_status open_targets(struct aq_worker *w)
{
    void *memory;
    if (w->position + 1 != w->P || !aq_dataset_masks(w->train)) return AQ_OK;
    AQ_TRY(aq_alloc(w->W * sizeof *w->targets.samplers, &memory));
    w->targets.samplers = memory;
    for (uint32_t r = 0; r < w->W; r++)
        AQ_TRY(aq_sampler_open_shard(w->plan->facts.train_samples, w->plan->batch, w->job->train.seed,
                                     w->job->train.shuffle, r, w->W, &w->targets.samplers[r]));
    return AQ_OK;
}

/* First and last stage read the data; the others know its samples by their ids. */
static enum aq_status open_data(struct aq_worker *w)
{
    const bool reads = w->position == 0 || w->position + 1 == w->P;
    const uint32_t B = w->me->config.B, T = w->me->config.T;
    struct aq_batch *batch = &w->batch;
    AQ_TRY(open_sampler(w));
    const char *kind = labels_alone(w) ? aq_labels_kind() : w->job->data.kind;
    if (reads) batch->field_count = aq_dataset_fields(kind, T, batch->fields);
    struct aq_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        w->sample_ids = aq_arena_take(&arena, B * sizeof *w->sample_ids);
        w->lengths = aq_arena_take(&arena, B * sizeof *w->lengths);
        w->variants = aq_arena_take(&arena, B * sizeof *w->variants);
        w->views = aq_arena_take(&arena, B * sizeof *w->views);
        if (w->parts) w->starts = aq_arena_take(&arena, ((size_t)B + 1) * T * sizeof *w->starts);
        for (uint32_t i = 0; i < batch->field_count; i++)
            batch->fields[i].values = aq_arena_take(&arena, (size_t)B * batch->fields[i].count * AQ_FIELD_BYTES);
        if (pass > 0) break;
        AQ_TRY(aq_alloc(arena.used, &w->host_memory));
        arena = (struct aq_arena){.base = w->host_memory, .bytes = arena.used};
    }
    batch->sample_ids = w->sample_ids;
    if (!reads) return AQ_OK;
    AQ_TRY(open_dataset(w, false, &w->train));
    AQ_TRY(open_targets(w));
    return w->plan->facts.heldout_samples ? open_dataset(w, true, &w->heldout) : AQ_OK;
}

/* As at the beginning of a run. */
static enum aq_status begin_weights(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    w->frozen_due = aq_stage_frozen_count(w->stage) > 0;
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
    return aq_checkpoint_frozen_digest(&checkpoint, &w->frozen_digest);
}

/* Once for a run, and where the file was lost; when it is known that the checkpoint is of these values. */
static enum aq_status keep_frozen(struct aq_worker *w)
{
    const struct aq_checkpoint checkpoint = aq_worker_checkpoint(w);
    if (!w->frozen_due) return AQ_OK;
    AQ_TRY(aq_owned_check(w->checkpoint_folder, AQ_OWNED_CHECKPOINT, w->run_id));
    w->frozen_due = false;
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
    w->step = w->resumed_at = resume;
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
        w->checkpoints.lost = w->job->checkpoint.mirror; /* there may be a copy */
        if (!w->checkpoints.lost) w->checkpoints.unreadable = resume;
        if (w->checkpoints.lost) aq_error_clear();
        return w->checkpoints.lost ? AQ_OK : status;
    }
    return w->job->train.staleness ? aq_stage_keep(w->stage, w->stream) : AQ_OK;
}

/*
 * The cache as it was at the mark, else an empty one: the messages that it lacks come from the neighbours as they are
 * needed, bit for bit (edge_heal.c). A cache of another job is refused and not touched.
 */
static enum aq_status open_or_rebuild(struct aq_worker *w, struct aq_cache_config *config)
{
    const enum aq_status status = aq_cache_open(config, &w->pipeline.cache);
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
        snprintf(parent, sizeof parent, "%s/cache", w->run_folder);
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

enum aq_status aq_worker_await(struct aq_worker *w, const char *op, uint64_t deadline, json_t **out)
{
    for (;;) {
        /* A neighbour may need a copy of its checkpoint before it is ready. */
        const uint64_t soon = w->checkpoints.mirror ? aq_clock_after(SERVE_NS) : deadline;
        const enum aq_status status = aq_control_receive(w->control, soon < deadline ? soon : deadline, out);
        if (status == AQ_TIMEOUT && soon < deadline) {
            AQ_TRY(aq_worker_serve(w));
            continue;
        }
        if (status == AQ_TIMEOUT) return aq_fail(AQ_TIMEOUT, "worker", "the launcher did not send '%s' in time", op);
        if (status == AQ_CLOSED) return aq_fail(AQ_CLOSED, "worker", "the launcher has ended");
        AQ_TRY(status);
        if (aq_control_is(*out, "op", op)) return AQ_OK;
        if (aq_control_is(*out, "op", "stop") && w->rank == 0) w->stop_asked = true;
        json_decref(*out);
    }
}

static enum aq_status open_edges(struct aq_worker *w)
{
    struct aq_edge_config config = {.device = w->device,
                                    .eventcount = w->eventcount,
                                    .trace = w->trace,
                                    .silence_ns = w->silence_ns,
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

enum aq_status aq_worker_set_phase(const struct aq_worker *w, enum aq_phase phase)
{
    aq_heartbeat_phase(phase);
    aq_log("worker", 2, "%s", aq_phase_text(phase));
    return aq_control_send(w->control, json_pack("{s:s, s:i}", "event", "doing", "doing", (int)phase));
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
    AQ_TRY(aq_worker_sums_told(w, start));
    AQ_TRY(aq_control_get_text(start, "checkpoint", &folder));
    AQ_TRY(aq_alloc_text(folder, &w->checkpoint_folder));
    const char *hash = aq_control_text_or(start, "sha256", "");
    if (*hash && !aq_hash_is(hash)) return aq_fail(AQ_PROTO, "worker", "received no SHA-256: %.80s", hash);
    snprintf(w->checkpoints.hash, sizeof w->checkpoints.hash, "%s", hash);
    AQ_TRY(aq_control_get_hex(start, "id", &w->run_id));
    const uint64_t until = aq_control_u64_or(start, "until", 0);
    if (until > 0 && until < aq_worker_steps_end(w)) w->last = until; /* equal on all ranks, so it needs no vote */
    if (w->job->output.trace) AQ_TRY(aq_trace_open(AQ_PLAN_TRACE_RECORDS, &w->trace));
    AQ_TRY(aq_eventcount_open(&w->eventcount));
    aq_heartbeat_eventcount(w->eventcount);
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_DEVICE));
    AQ_TRY(open_stage(w));
    AQ_TRY(open_optimizer(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_DATA));
    AQ_TRY(open_lengths(w, start));
    AQ_TRY(open_data(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_WEIGHTS));
    AQ_TRY(load_weights(w, aq_control_u64_or(start, "resume", 0)));
    const char *from = aq_control_text_or(start, "adopt", NULL);
    if (from) AQ_TRY(adopt(w, from));
    AQ_TRY(aq_worker_snapshot_open(w));
    AQ_TRY(aq_worker_warm(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_CACHE));
    const enum aq_status cache = open_cache(w, false);
    if (cache != AQ_AGAIN) AQ_TRY(cache);
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_CONNECT));
    AQ_TRY(aq_worker_links_open(w));
    AQ_TRY(aq_worker_group_open(w));
    AQ_TRY(aq_worker_warm_reduction(w));
    if (cache == AQ_AGAIN) AQ_TRY(open_cache(w, true));
    AQ_TRY(open_edges(w));
    AQ_TRY(aq_worker_sums_open(w));
    AQ_TRY(aq_worker_mirror_open(w));
    AQ_TRY(aq_worker_tied_open(w));
    AQ_TRY(aq_worker_versions_open(w));
    AQ_TRY(keep_frozen(w));
    args = (struct aq_part_args){.run_folder = w->run_folder, .step = w->step};
    AQ_TRY(aq_worker_parts_on(&w->worker_parts, AQ_PART_RUN_BEGIN, &args));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_MEASURE));
    return aq_worker_choose_open(w);
}

/* --- Running
 * ---------------------------------------------------------------------------------------------------------- */

static bool due(const struct aq_job_every *every, uint64_t step, uint64_t steps_per_epoch)
{
    const uint64_t steps = aq_job_every_steps(every, steps_per_epoch);
    return steps > 0 && step % steps == 0;
}

/* By the steps of all clients, where there are such. */
static bool evaluation_is_due(const struct aq_worker *w, uint64_t step)
{
    return due(&w->job->train.evaluate_every, aq_worker_global(w, step), w->plan->steps_per_epoch);
}

bool aq_worker_is_sync_point(const struct aq_worker *w, uint64_t steps)
{
    const bool end = steps == aq_worker_steps_end(w) || steps == w->last;
    const bool evaluates = w->plan->facts.heldout_samples > 0 && evaluation_is_due(w, steps);
    return end || evaluates || aq_worker_mark_is_due(w, steps);
}

static enum aq_status evaluate(struct aq_worker *w)
{
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
    return w->final ? AQ_OK : aq_worker_swap_out(w);
}

/* Asks the parts, until none of them awaits a message of the launcher. */
static enum aq_status parts_await(struct aq_worker *w, enum aq_part_moment moment, struct aq_part_args *args)
{
    const uint64_t end = aq_clock_after(seconds_ns(REDUCE_SECONDS) + w->outages_ns);
    enum aq_status status;
    while ((status = aq_worker_parts_on(&w->worker_parts, moment, args)) == AQ_AGAIN) {
        const uint32_t seen = aq_eventcount_read(w->eventcount);
        AQ_TRY(aq_worker_serve(w));
        AQ_TRY(aq_worker_control_poll(w));
        status = aq_worker_parts_on(&w->worker_parts, moment, args);
        if (status != AQ_AGAIN) break;
        if (aq_clock_ns() > end)
            return aq_fail(AQ_TIMEOUT, "worker", "step %" PRIu64 ": the launcher did not send %s in time", w->step,
                           args->awaits);
        (void)aq_eventcount_wait(w->eventcount, seen, aq_clock_after(SERVE_NS / 10));
    }
    return status;
}

static enum aq_status evaluated(struct aq_worker *w)
{
    struct aq_part_args args = {.step = w->step};
    if (w->final) return AQ_OK;
    aq_heartbeat_phase(AQ_PHASE_EVALUATE);
    AQ_TRY(parts_await(w, AQ_PART_EVALUATED_AWAIT, &args));
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w->final = args.ends;
    return AQ_OK;
}

static enum aq_status train(struct aq_worker *w)
{
    const uint64_t first_step = w->step;
    aq_program_run_init(&w->steps.program, &w->me->program, AQ_LANES_CHAINS, 0);
    AQ_TRY(aq_worker_prefetch_first(w));
    while (w->step < aq_worker_steps_end(w)) {
        AQ_TRY(aq_worker_control_poll(w));
        aq_heartbeat_step(w->step + 1);
        struct aq_part_args args = {
            .step = w->step, .first = w->step == first_step, .edge_in = w->pipeline.in, .edge_out = w->pipeline.out};
        AQ_TRY(parts_await(w, AQ_PART_STEP_AWAIT, &args));
        AQ_TRY(aq_worker_step(w));
        if (w->step == first_step) AQ_TRY(tell_memory(w, "after its first step"));
        if (w->step == first_step)
            aq_log("worker", 1, "step %" PRIu64 ", the first, took %.3f s", w->step + 1,
                   (double)(aq_clock_ns() - w->times.begin_ns) * 1e-9);
        AQ_TRY(aq_worker_report_step(w));
        w->step++;
        const bool end = w->step == aq_worker_steps_end(w);
        w->final = end || w->step == w->last;
        w->stopped = w->final && !end;
        if (evaluation_is_due(w, w->step) || end) {
            AQ_TRY(evaluate(w));
            AQ_TRY(evaluated(w));
        }
        if (aq_worker_snapshot_is_due(w)) AQ_TRY(snapshot(w));
        if (w->final) break;
    }
    return aq_worker_snapshot_wait(w);
}

/* Link `number`, 0 .. W + 1, of this worker, to close them all; some are NULL. */
static struct aq_link *link_number(const struct aq_worker *w, uint32_t number)
{
    if (number < 2) return number == 0 ? w->pipeline.link_out : w->pipeline.link_in;
    return w->replicas.peers ? w->replicas.peers[number - 2] : NULL;
}

enum aq_status aq_worker_drain(struct aq_worker *w, uint64_t deadline)
{
    if (w->pipeline.out) AQ_TRY(aq_edge_drain(w->pipeline.out, deadline));
    return w->pipeline.in ? aq_edge_drain(w->pipeline.in, deadline) : AQ_OK;
}

enum aq_status aq_worker_leave(struct aq_worker *w, uint64_t deadline)
{
    for (uint32_t i = 0; i < 2 + w->W; i++) {
        struct aq_link *link = link_number(w, i);
        const enum aq_status status = link ? aq_link_finish(link, deadline) : AQ_OK;
        if (status != AQ_CLOSED) AQ_TRY(status); /* closed: the neighbour finished first */
    }
    return aq_control_flush(w->control, deadline);
}

static enum aq_status finish(struct aq_worker *w)
{
    const uint64_t deadline = aq_clock_after(seconds_ns(60) + w->outages_ns);
    AQ_TRY(aq_worker_drain(w, deadline));
    AQ_TRY(aq_worker_report_done(w));
    return aq_worker_leave(w, deadline);
}

static void close_all(struct aq_worker *w, enum aq_status status)
{
    if (status != AQ_OK) {
        const uint64_t deadline = aq_clock_after(seconds_ns(2));
        for (uint32_t i = 0; i < 2 + w->W; i++)
            if (link_number(w, i)) (void)aq_link_abort(link_number(w, i), status, aq_error_text(), deadline);
        /* Freeing memory of the device waits for all work there. */
        aq_edges_abandon(w->pipeline.out, w->pipeline.in);
    }
    aq_worker_device_synchronize(w);
    /* A peer that does not read keeps an ABORT from going out, and bodies of groups and edges on their way. */
    for (uint32_t i = 0; i < 2 + w->W; i++)
        aq_link_halt(link_number(w, i));
    aq_worker_machine_close(w);
    aq_worker_group_close(w);
    aq_worker_sums_close(w);
    aq_worker_tied_close(w);
    aq_mirror_close(w->checkpoints.mirror); /* before the edges, whose bodies it may be writing */
    aq_edge_close(w->pipeline.out);
    aq_edge_close(w->pipeline.in);
    for (uint32_t i = 0; i < 2 + w->W; i++)
        aq_link_close(link_number(w, i));
    aq_free((void *)w->replicas.peers);
    aq_net_close(w->net);
    aq_tls_close(w->tls);
    aq_checkpoint_writer_close(w->checkpoints.writer); /* before the stage, whose values it may be writing */
    aq_worker_parts_close(&w->worker_parts);
    aq_cache_close(w->pipeline.cache);
    aq_sampler_close(w->sampler);
    for (uint32_t r = 0; w->targets.samplers && r < w->W; r++)
        aq_sampler_close(w->targets.samplers[r]);
    aq_free((void *)w->targets.samplers);
    aq_free(w->lengths_memory);
    aq_free(w->part_first);
    aq_dataset_close(w->train);
    aq_dataset_close(w->heldout);
    aq_optimizer_close(w->optimizer);
    aq_free(w->replicas.squares);
    aq_stage_close(w->stage);
    if (w->device) aq_worker_device_close(w);
    aq_device_close(w->device);
    aq_trace_close(w->trace);
    aq_heartbeat_eventcount(NULL);
    aq_eventcount_close(w->eventcount);
    aq_free(w->host_memory);
    aq_free(w->run_folder);
    aq_free(w->checkpoint_folder);
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
    AQ_TRY_GOTO(aq_worker_await(&w, "start", aq_clock_after(seconds_ns(START_SECONDS)), &message), out);
    const bool probe = aq_control_bool_or(message, "probe", false), ask = json_object_get(message, "ask") != NULL;
    status = !probe ? open_all(&w, message) : ask ? aq_worker_answer(&w, message) : aq_worker_probe(&w, message);
    json_decref(message);
    if (status != AQ_OK || probe) goto out;
    AQ_TRY_GOTO(report_ready(&w), out);
    aq_heartbeat_phase(AQ_PHASE_GO);
    AQ_TRY_GOTO(aq_worker_await(&w, "go", aq_clock_after(seconds_ns(START_SECONDS)), &message), out);
    json_decref(message);
    w.go_ns = aq_clock_ns();
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    w.checkpoints.waiting = false;
    aq_log("worker", 1, "trains: steps %" PRIu64 " to %" PRIu64, w.step + 1, aq_worker_steps_end(&w));
    if (w.checkpoints.mirror) aq_mirror_train(w.checkpoints.mirror);
    AQ_TRY_GOTO(train(&w), out);
    aq_heartbeat_phase(AQ_PHASE_END);
    status = finish(&w);
    const enum aq_status parts = aq_worker_parts_on(&w.worker_parts, AQ_PART_RUN_END, &args);
    if (status == AQ_OK) status = parts;
    if (status == AQ_OK)
        aq_log("worker", 1, "%s after step %" PRIu64 ", %.1f s of training", w.stopped ? "stopped" : "done", w.step,
               (double)(aq_clock_ns() - w.go_ns) * 1e-9);
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
