/*
 * checkpoint_copies.c -- the part of a worker for checkpoint.mirror: a copy of each checkpoint at a neighbour, and this
 * stage's own file back from there if its disk has lost it (mirror.h).
 */
#include <string.h>

#include "mirror.h"
#include "seal.h"
#include "worker_parts.h"

struct part {
    const struct aq_plan *plan;
    uint32_t rank;
    const struct aq_part_worker *worker;
    struct aq_mirror *mirror;
    uint64_t fetch_end_ns; /* deadline of the fetch that is under way; 0: there is none */
    uint64_t sent;         /* the step of the last file sent                            */
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    return plan->job->checkpoint.mirror;
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    part->plan = plan;
    part->rank = rank;
    return AQ_OK;
}

/* The module that moves copies, with this stage's own key where it has one. */
static enum aq_status mirror_open(struct part *part, const struct aq_part_args *args)
{
    uint8_t key[AQ_SEAL_KEY_BYTES];
    const struct aq_part_worker *worker = part->worker = args->worker;
    const char *path = part->plan->job->checkpoint.mirror_key;
    if (path) AQ_TRY(aq_seal_key_load(path, key));
    struct aq_mirror_config config = {.folder = worker->checkpoints,
                                      .in = worker->in,
                                      .out = worker->out,
                                      .eventcount = worker->events,
                                      .resumed = args->step,
                                      .key = path ? key : NULL,
                                      .hash = worker->hash[0] ? worker->hash : NULL};
    aq_plan_mirror_shape(part->plan, part->rank, &config.shape);
    const enum aq_status status = aq_mirror_open(&config, &part->mirror);
    if (path) explicit_bzero(key, sizeof key);
    return status;
}

static enum aq_status fetch_begin(struct part *part, struct aq_part_args *args)
{
    const unsigned long long step = (unsigned long long)args->step;
    aq_log("worker", AQ_LOG_WARNING,
           "stage %u has lost its checkpoint of step %llu: it comes from the copy at stage %u", part->rank, step,
           aq_mirror_keeper(part->rank, part->plan->stage_count));
    part->fetch_end_ns = aq_clock_after(aq_plan_checkpoint_ns_max(part->plan));
    if (part->worker->hash[0]) return aq_mirror_fetch(part->mirror, args->step);
    args->unreadable = true;
    return aq_fail(
        AQ_NOTFOUND, "worker",
        "the checkpoint of step %llu of stage %u is missing or damaged, and the launcher has no SHA-256 of it to "
        "recognize a true copy",
        step, part->rank);
}

/* This stage's file from its keeper, into its place. */
static enum aq_status fetch(struct part *part, struct aq_part_args *args)
{
    const uint32_t keeper = aq_mirror_keeper(part->rank, part->plan->stage_count);
    if (part->fetch_end_ns == 0) AQ_TRY(fetch_begin(part, args));
    const enum aq_status status = aq_mirror_done(part->mirror);
    if (status == AQ_AGAIN && aq_clock_ns() > part->fetch_end_ns)
        return aq_fail(AQ_TIMEOUT, "worker", "stage %u does not send the copy of this stage's checkpoint", keeper);
    args->unreadable = status == AQ_NOTFOUND || status == AQ_CORRUPT; /* an older one may be whole */
    if (status == AQ_NOTFOUND)
        return aq_fail(
            AQ_NOTFOUND, "worker",
            "the checkpoint of step %llu of stage %u is missing or damaged, and stage %u holds no copy of it",
            (unsigned long long)args->step, part->rank, keeper);
    return status;
}

/* The checkpoint is complete when its copy is durable, too. */
static enum aq_status copy_send(struct part *part, struct aq_part_args *args)
{
    if (part->sent != args->step) {
        aq_mirror_send(part->mirror, args->step);
        part->sent = args->step;
        AQ_TRY(aq_mirror_pump(part->mirror, args->waits));
    }
    args->awaits = "the copy at the neighbour takes too long";
    AQ_TRY(aq_mirror_done(part->mirror));
    args->hash = aq_mirror_hash(part->mirror);
    return AQ_OK;
}

static void part_close(void *self)
{
    struct part *part = self;
    aq_mirror_close(part->mirror);
    part->mirror = NULL;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    if (moment == AQ_PART_JOINED) return mirror_open(part, args);
    if (!part->mirror) return AQ_OK;
    switch (moment) {
    case AQ_PART_RESTORE:
        return fetch(part, args);
    case AQ_PART_GO:
        aq_mirror_train(part->mirror);
        return AQ_OK;
    case AQ_PART_SERVE:
        aq_mirror_due(part->mirror, args->mark_now, args->mark_next);
        return aq_mirror_pump(part->mirror, args->waits);
    case AQ_PART_WRITTEN:
        return copy_send(part, args);
    case AQ_PART_EDGES_CLOSE: /* whose bodies it may be writing */
        part_close(self);
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

const struct aq_part_ops aq_part_mirror = {.name = "mirror",
                                           .bytes = sizeof(struct part),
                                           .serves = true,
                                           .frames = AQ_MIRROR_FRAMES,
                                           .wanted = part_wanted,
                                           .open = part_open,
                                           .on = part_on,
                                           .close = part_close};
