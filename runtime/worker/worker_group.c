/*
 * worker_group.c -- the replicas of one stage as a group: what carries their data, its reductions, and whether they
 * agree. Every worker has a link to each other replica of its stage.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "net/collective.h"
#include "net/group_background.h"
#include "worker.h"

enum { BOUNCE_BYTES = 1 << 20 }; /* weights are digested in pieces of this size, on every device */

/*
 * Chooses what carries data of GPUs. The ranks collect all facts together, so that all choose alike. If the manifest
 * requires NCCL and it is not possible, all fail together.
 */
static enum aq_status choose_transport(struct aq_worker *worker)
{
    const enum aq_transport_kind asked = worker->job->reduce.transport;
    struct aq_nccl_facts facts;
    AQ_TRY(aq_nccl_facts(worker->replicas.group, worker->device, &facts));
    if (facts.gpus > 0 && facts.gpus < worker->W)
        return aq_fail(AQ_MISMATCH, "worker",
                       "stage %u has %u of its %u replicas on GPUs: a CPU sums a gradient norm differently, and "
                       "their weights would drift apart; set device: cpu, or cuda, for all of them",
                       worker->position, facts.gpus, worker->W);
    if (asked == AQ_TRANSPORT_LINKS || worker->job->reduce.patience_ns > 0) return AQ_OK;
    if (aq_worker_is_delayed(worker)) return AQ_OK; /* movements are averaged in the host's memory */
    const bool fits = facts.built && facts.distinct_gpus && facts.one_machine && worker->job->link.rate_mbps == 0;
    if (asked != AQ_TRANSPORT_NCCL && !fits) return AQ_OK;
    if (!facts.one_machine)
        aq_log("worker", AQ_LOG_WARNING,
               "stage %u reduces by NCCL between machines, on connections that are not encrypted", worker->position);
    AQ_TRY(aq_group_open_nccl(worker->replicas.group, &worker->replicas.group));
    if (worker->replica == 0) aq_log("worker", 1, "stage %u reduces by NCCL, from GPU to GPU", worker->position);
    return AQ_OK;
}

enum aq_status aq_worker_group_prepare(struct aq_worker *worker)
{
    const struct aq_grad_codec *codec = aq_optimizer_codec(worker->optimizer);
    if (!codec || aq_stage_parameter_count(worker->stage) == 0) return AQ_OK;
    if (!worker->replicas.group) return AQ_OK; /* it returns: the group is made at its first round's end */
    return aq_group_prepare(worker->replicas.group, codec, aq_stage_parameter_count(worker->stage));
}

/*
 * Numbers of a group's collectives begin above those of all groups before it over the same links. A round has a few
 * collectives, and is averaged as often as there are replicas, at most.
 */
static uint64_t group_first(const struct aq_worker_members *rounds)
{
    static_assert(AQ_GROUP_SIZE_MAX << 12 < 1 << 20, "attempts of a round are apart from the next step's");
    return rounds->step << 20 | (uint64_t)rounds->attempt << 12;
}

enum aq_status aq_worker_group_over(struct aq_worker *worker, struct aq_link *const *links, uint32_t rank,
                                    uint32_t size, enum aq_status (*meanwhile)(void *worker))
{
    const bool patient = worker->job->reduce.patience_ns > 0;
    struct aq_group_config config = {.rank = rank,
                                     .size = size,
                                     .links = links,
                                     .eventcount = worker->eventcount,
                                     .device = worker->device,
                                     .stream = worker->stream,
                                     .silence_ns = worker->links.silence_ns,
                                     .piece_bytes = AQ_PLAN_PIECE_BYTES,
                                     .values = aq_stage_parameter_count(worker->stage),
                                     .meanwhile = patient                        ? aq_worker_rounds_look
                                                  : worker->job->train.staleness ? meanwhile
                                                                                 : NULL,
                                     .look_ns = patient ? AQ_ROUNDS_LOOK_NS : 0,
                                     .first = group_first(&worker->replicas.rounds),
                                     .context = worker};
    if (aq_worker_is_delayed(worker)) { /* the pool is exec's; a wait looks whether the run ends */
        config.device = NULL;
        config.meanwhile = patient ? aq_worker_delay_meanwhile : aq_group_background_look;
        config.context = patient ? (void *)worker : worker->replicas.delay.background;
        config.look_ns = AQ_ROUNDS_LOOK_NS;
    }
    return aq_group_open_links(&config, &worker->replicas.group);
}

enum aq_status aq_worker_group_open(struct aq_worker *worker, enum aq_status (*meanwhile)(void *worker))
{
    struct aq_device_info info;
    if (worker->W == 1) return AQ_OK;
    aq_device_info(worker->device, &info);
    if (!info.host_memory)
        AQ_TRY(aq_device_alloc(worker->device, AQ_MEMORY_PINNED, BOUNCE_BYTES, &worker->replicas.bounce));
    AQ_TRY(aq_worker_speed_open(worker));
    AQ_TRY(aq_worker_delay_open(worker));
    if (worker->replicas.rounds.returns) return AQ_OK; /* it meets the others at its first round's end */
    AQ_TRY(aq_worker_group_over(worker, worker->replicas.peers, worker->replica, worker->W, meanwhile));
    AQ_TRY(choose_transport(worker));
    /* A codec that is chosen during the run is prepared then (worker_choose.c). */
    return worker->job->train.optimizer.reduce_automatic ? AQ_OK : aq_worker_group_prepare(worker);
}

void aq_worker_group_close(struct aq_worker *worker)
{
    aq_worker_speed_close(worker);
    aq_worker_delay_close(worker);
    aq_group_close(worker->replicas.group);
    if (worker->replicas.bounce)
        aq_device_free(worker->device, AQ_MEMORY_PINNED, worker->replicas.bounce, BOUNCE_BYTES);
}

/* Work that is done together with a reduction of gradients; they are cleared as soon as it has used them. */
struct along {
    const struct aq_worker *worker;
    const struct aq_reduce *asked;
    float *gradients;
};

/* Runs on any thread of the pool. On a device it is enqueued, without a pool. */
static enum aq_status before_and_clear(void *work, uint64_t first, uint64_t count)
{
    const struct along *along = work;
    AQ_TRY(along->asked->before(along->asked->work, first, count));
    if (along->worker->replicas.bounce)
        return aq_device_zero(along->worker->device, along->gradients + first, count * sizeof *along->gradients,
                              along->worker->stream);
    memset(along->gradients + first, 0, count * sizeof *along->gradients);
    return AQ_OK;
}

static enum aq_status after(void *work, uint64_t first, uint64_t count)
{
    const struct along *along = work;
    return along->asked->after(along->asked->work, first, count);
}

struct aq_compressed aq_worker_compressed(const struct aq_worker *worker, const struct aq_reduce *asked)
{
    return (struct aq_compressed){.worker = asked->worker,
                                  .server = asked->server,
                                  .x = asked->x,
                                  .count = asked->count,
                                  .worker_error = asked->worker_error,
                                  .server_error = asked->server_error,
                                  .whole = worker->W, /* reduce.patience: some may be missing */
                                  .step = asked->step};
}

static enum aq_status compressed(struct aq_worker *worker, const struct aq_reduce *asked)
{
    struct along along = {.worker = worker, .asked = asked, .gradients = aq_stage_gradients(worker->stage)};
    struct aq_compressed compressed = aq_worker_compressed(worker, asked);
    compressed.before = asked->before ? before_and_clear : NULL;
    compressed.after = asked->after ? after : NULL;
    compressed.work = &along;
    AQ_ASSERT(!asked->before || asked->count == aq_stage_parameter_count(worker->stage));
    if (asked->before) worker->times.cleared = true;
    return aq_compressed_allreduce(worker->replicas.group, &compressed);
}

enum aq_status aq_worker_group_perform(struct aq_worker *worker, const struct aq_reduce *asked)
{
    switch (asked->kind) {
    case AQ_REDUCE_MEAN:
        return aq_allreduce_mean(worker->replicas.group, asked->x, asked->count);
    case AQ_REDUCE_COMPRESSED:
        return compressed(worker, asked);
    default:
        return aq_allreduce_lanes(worker->replicas.group, asked->lanes, asked->count, asked->lane_bits);
    }
}

/* Piece by piece, so that it is the same from the memory of a GPU as from the host's. */
static enum aq_status weights_digest(const struct aq_worker *worker, uint64_t *out)
{
    const uint8_t *weights = (const uint8_t *)aq_stage_parameters(worker->stage);
    const uint64_t bytes = aq_stage_parameter_count(worker->stage) * sizeof(float);
    uint64_t digest = worker->checkpoints.frozen_digest; /* theirs are the same, too */
    for (uint64_t at = 0; at < bytes; at += BOUNCE_BYTES) {
        const size_t count = bytes - at < BOUNCE_BYTES ? (size_t)(bytes - at) : BOUNCE_BYTES;
        const void *piece = weights + at;
        if (worker->replicas.bounce) {
            AQ_TRY(aq_device_copy(worker->device, worker->replicas.bounce, piece, count, worker->stream));
            AQ_TRY(aq_device_stream_sync(worker->device, worker->stream));
            piece = worker->replicas.bounce;
        }
        digest = aq_digest_seeded(piece, count, digest);
    }
    *out = digest;
    return AQ_OK;
}

enum aq_status aq_worker_agree(struct aq_worker *worker)
{
    const struct aq_optimizer_config *config = &worker->job->train.optimizer;
    /* Some let them drift, and average them now and then, and at the end. */
    const bool apart = worker->step != worker->plan->steps && aq_optimizer_config_drifts(config, worker->step);
    struct aq_group *group = apart ? worker->replicas.reducer.alike : worker->replicas.group;
    if (worker->W == 1 || !group) return AQ_OK;
    uint64_t digest;
    AQ_TRY(weights_digest(worker, &digest));
    if (worker->job->reduce.patience_ns) { /* the launcher compares: a member may be lost at any time */
        worker->replicas.rounds.digest = digest;
        return AQ_OK;
    }
    return aq_group_agree(group, digest, "the weights");
}
