/*
 * split_weights.c -- files of stages (split_part.h): checked, made, and averaged.
 *
 * A turn's trained files are checked before another client starts with them: the ends that the client sent, and the
 * middle (a step whose gradient is no number is void, but the statistics of a batch norm have taken its activations).
 * The check cannot find values that are well-formed but badly trained.
 *
 * An average is over everything in a stage's file: weights, statistics and optimizer states, each value by itself,
 *
 *     w = (float)((n_1 w_1 + n_2 w_2 + ...) / (n_1 + n_2 + ...))
 *
 * n_i the samples of a client as a double, w_i its float, products and sums in double, one after the other in order of
 * the clients' names: the same bits wherever and whenever it is done. Up to 10^8 samples a product is exact, so that
 * the average of equal values is that value. The count of updates that moments have had is averaged alike, and rounded
 * to a whole number: the bias corrections of the next turns go by it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint_adapters.h"
#include "split_part.h"
#include "split_private.h"

/* ---- looking at them ---- */

static enum aq_status check_one(const struct aq_plan *plan, uint32_t rank, const char *folder, uint64_t *updates)
{
    struct aq_split_part part;
    enum aq_status status = aq_split_part_open(plan, rank, folder, &part);
    if (status == AQ_OK) status = aq_checkpoint_adopt(&part.checkpoint, folder, 0);
    *updates = (uint64_t)part.updates_ahead;
    aq_split_part_close(&part);
    return status;
}

/* An end that began with the newest weights has had the updates of those and its turn's, and no other number. */
static enum aq_status check_updates(const struct server *server, const struct site *site, uint32_t rank,
                                    uint64_t updates)
{
    char folder[AQ_RUN_PATH_BYTES];
    uint64_t began;
    if (!aq_job_counts_updates(server->job)) return AQ_OK;
    AQ_TRY(state_path(server, folder, "weights/%d", server->weights));
    AQ_TRY(aq_checkpoint_updates(folder, rank, &began));
    const uint64_t due = began + (site->until - site->begin);
    if (began == AQ_UPDATES_UNKNOWN || updates == due) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "split",
                   "stage-%u.safetensors: its optimizer state counts %llu updates, and this turn's counts %llu",
                   rank, (unsigned long long)updates, (unsigned long long)due);
}

/* The reason without our paths: it goes to the client. */
static void its_fault(const char *text, char why[AQ_SPLIT_TEXT_BYTES])
{
    const char *file = strstr(text, "stage-");
    snprintf(why, AQ_SPLIT_TEXT_BYTES, "the weights of its turn are refused: %.300s", file ? file : text);
}

enum aq_status turn_check(const struct server *server, const struct site *site, const char *ends, const char *middle,
                          char why[AQ_SPLIT_TEXT_BYTES])
{
    struct aq_error_hold hold;
    enum aq_status status = AQ_OK;
    uint64_t updates = 0;
    aq_error_hold(&hold);
    for (uint32_t rank = 0; rank < site->job.plan->stage_count && status == AQ_OK; rank++) {
        const bool ours = rank == AQ_SPLIT_SERVERS;
        status = check_one(site->job.plan, rank, ours ? middle : ends, &updates);
        if (status == AQ_OK && !ours) status = check_updates(server, site, rank, updates);
    }
    aq_error_release(&hold);
    if (status != AQ_OK) its_fault(hold.text, why);
    return status;
}

/* ---- making them ---- */

/* Frozen tensors are in no file of a turn: the collected model (split.collect) takes them from here. */
static enum aq_status keep_frozen(struct aq_split_part *part, const struct aq_job *job)
{
    if (!job->split.collect || aq_stage_frozen_count(part->stage) == 0) return AQ_OK;
    AQ_TRY(aq_checkpoint_frozen_digest(&part->checkpoint, &part->checkpoint.frozen_digest));
    return aq_checkpoint_frozen_write(&part->checkpoint);
}

static enum aq_status begin_one(struct aq_split_part *part, const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    AQ_TRY(job->model.weights ? aq_checkpoint_import(&part->checkpoint, job->model.weights, job->train.seed)
                              : aq_stage_init(part->stage, job->train.seed));
    if (job->train.lora_weights) AQ_TRY(aq_adapters_import(&part->checkpoint, &plan->model, job->train.lora_weights));
    AQ_TRY(keep_frozen(part, job));
    if (job->train.staleness) AQ_TRY(aq_stage_keep(part->stage, NULL)); /* all versions are these */
    AQ_TRY(aq_optimizer_versions_begin(part->optimizer, aq_stage_parameters(part->stage), NULL));
    AQ_TRY(aq_device_stream_sync(part->device, NULL));
    return aq_checkpoint_write(&part->checkpoint, 0);
}

enum aq_status weights_begin(const struct server *server, const struct aq_plan *plan)
{
    char folder[AQ_RUN_PATH_BYTES];
    enum aq_status status = state_path(server, folder, "weights");
    for (uint32_t rank = 0; rank < plan->stage_count && status == AQ_OK; rank++) {
        struct aq_split_part part;
        status = aq_split_part_open(plan, rank, folder, &part);
        if (status == AQ_OK) status = begin_one(&part, plan);
        aq_split_part_close(&part);
    }
    return status;
}

/* ---- averaging them ---- */

/* The next one behind `before` by name whose turn of this round is kept; NULL: that was the last. */
static const struct site *kept_after(const struct server *server, const struct site *before)
{
    const struct site *next = state_after(server, before);
    while (next && !next->kept)
        next = state_after(server, next);
    return next;
}

/* With global sampling all have the same weights, unless they compute differently: then it prints a warning, because
 * the sums are not exact. */
static void look_alike(const struct server *server, const struct aq_split_part *part, const struct site *site,
                       uint64_t *first)
{
    if (server->job->split.mode != AQ_SPLIT_GLOBAL) return;
    const uint64_t bytes = aq_stage_parameter_count(part->stage) * sizeof(float);
    const uint64_t digest = aq_digest(aq_stage_parameters(part->stage), bytes) | 1;
    if (*first == 0) *first = digest;
    if (*first != digest)
        server_say(
            server,
            "round %u: stage %u of %s has other weights than the first client's: do all compute on the same kind "
            "of device? They are averaged",
            server->round, part->checkpoint.rank, site->name);
}

/* *updates: their mean, where the job counts them. */
static enum aq_status sum_up(const struct server *server, struct aq_split_part *part, uint64_t count, float *one,
                             double *sum, uint64_t *updates)
{
    double samples = 0, counted = 0;
    uint64_t digest = 0;
    for (const struct site *site = kept_after(server, NULL); site; site = kept_after(server, site)) {
        char from[AQ_RUN_PATH_BYTES];
        const double n = (double)site->samples;
        const bool first = samples == 0;
        AQ_TRY(state_path(server, from, "round/%s", site->name));
        /* A file of an older version has no count: then it equals the client's own steps. */
        AQ_TRY(aq_checkpoint_adopt(&part->checkpoint, from, site->mark));
        counted += n * (double)(site->mark + (uint64_t)part->updates_ahead);
        look_alike(server, part, site, &digest);
        AQ_TRY(aq_checkpoint_snapshot(&part->checkpoint, one));
        for (uint64_t i = 0; i < count; i++)
            sum[i] = first ? n * (double)one[i] : sum[i] + n * (double)one[i];
        samples += n;
    }
    for (uint64_t i = 0; i < count; i++)
        one[i] = (float)(sum[i] / samples);
    *updates = (uint64_t)llround(counted / samples);
    return AQ_OK;
}

enum aq_status weights_average(const struct server *server, const struct aq_plan *plan, uint32_t rank, int to)
{
    char folder[AQ_RUN_PATH_BYTES];
    struct aq_split_part part = {0};
    void *one = NULL, *sum = NULL;
    uint64_t count = 0, updates = 0;
    enum aq_status status;
    AQ_TRY(state_path(server, folder, "weights"));
    AQ_TRY_GOTO(aq_split_part_open(plan, rank, folder, &part), out);
    if (plan->job->split.collect && aq_stage_frozen_count(part.stage) > 0) { /* the file names their digest */
        AQ_TRY_GOTO(aq_checkpoint_frozen_read(&part.checkpoint), out);
        AQ_TRY_GOTO(aq_checkpoint_frozen_digest(&part.checkpoint, &part.checkpoint.frozen_digest), out);
    }
    count = aq_checkpoint_floats(&part.checkpoint);
    AQ_TRY_GOTO(aq_map(count * sizeof(float), &one), out);
    AQ_TRY_GOTO(aq_map(count * sizeof(double), &sum), out);
    AQ_TRY_GOTO(sum_up(server, &part, count, one, sum, &updates), out);
    part.updates_ahead = (int64_t)(updates - (uint64_t)to); /* the number of the folder serves as the step */
    status = aq_checkpoint_write_values(&part.checkpoint, (uint64_t)to, one);
out:
    aq_unmap(one, count * sizeof(float));
    aq_unmap(sum, count * sizeof(double));
    aq_split_part_close(&part);
    return status;
}
