/*
 * checkpoint_reshard.c -- a stage resumes from the checkpoint of a run with another count of replicas.
 *
 * The files of all replicas of the stage must be here. Weights, and state that replicas share, come from replica 0; the
 * state of each replica is computed again so that the residuals of codecs are neither lost nor doubled
 * (aq_grad_reshard). A single replica has no residuals: those of the files go into its first moment
 * (aq_optimizer_absorb), or if they are of the weights (local steps) into these. It takes no outer steps either: outer
 * momentum ends there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "job.h"
#include "stages/weights.h"

enum { NAME_BYTES = 64 };

struct files {
    struct aq_weights *of[AQ_JOB_RANKS_MAX]; /* of each old replica */
    char path[4096];
    uint32_t count;
};

static const char *fact(const struct aq_weights *weights, const char *key)
{
    const char *value = aq_weights_metadata(weights, key);
    return value ? value : "";
}

static enum aq_status fact_check(const struct aq_weights *weights, const char *path, const char *key,
                                 const char *wanted)
{
    if (strcmp(fact(weights, key), wanted) == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "checkpoint", "%s: its %s is %s, the other replicas' files need %s", path, key,
                   fact(weights, key), wanted);
}

/* A file that another run, step, worker or count of replicas left here is refused. */
static enum aq_status open_file(const struct aq_checkpoint *c, uint64_t step, uint32_t rank, struct files *files,
                                struct aq_weights **out)
{
    char resume_hash[20], number[24], stage[16], replicas[16];
    AQ_TRY(aq_checkpoint_path(c->folder, step, rank, files->path));
    AQ_TRY(aq_checkpoint_open(c->folder, step, rank, out));
    snprintf(resume_hash, sizeof resume_hash, "%016" PRIx64, c->run.resume_hash);
    snprintf(number, sizeof number, "%" PRIu64, step);
    snprintf(stage, sizeof stage, "%u", rank);
    snprintf(replicas, sizeof replicas, "%u", files->count);
    AQ_TRY(fact_check(*out, files->path, "resume_hash", resume_hash));
    AQ_TRY(fact_check(*out, files->path, "step", number));
    AQ_TRY(fact_check(*out, files->path, "stage", stage));
    AQ_TRY(fact_check(*out, files->path, "replicas", replicas));
    return aq_checkpoint_frozen_check(c, *out, files->path);
}

uint32_t aq_checkpoint_replicas(const struct aq_checkpoint *c, uint64_t step)
{
    char resume_hash[20], hash[20], path[4096];
    struct aq_weights *weights;
    if (aq_checkpoint_path(c->folder, step, c->rank % c->run.stages, path) != AQ_OK) return 0;
    if (access(path, R_OK) != 0 || aq_checkpoint_open(c->folder, step, c->rank % c->run.stages, &weights) != AQ_OK) {
        aq_error_clear(); /* the reader of this rank's own file reports it */
        return 0;
    }
    snprintf(resume_hash, sizeof resume_hash, "%016" PRIx64, c->run.resume_hash);
    snprintf(hash, sizeof hash, "%016" PRIx64, c->run.plan_hash);
    const bool other =
        strcmp(fact(weights, "resume_hash"), resume_hash) == 0 && strcmp(fact(weights, "plan_hash"), hash) != 0;
    const unsigned long replicas = other ? strtoul(fact(weights, "replicas"), NULL, 10) : 0;
    aq_weights_close(weights);
    /* As many, and yet another plan: their machines are others (reduce.machine_first), who have nothing to share out.
     */
    return replicas <= AQ_JOB_RANKS_MAX && replicas != c->run.replicas ? (uint32_t)replicas : 0;
}

/* Its bytes are those that were written: the chain over its arrays in the order of the file. */
static enum aq_status file_check(const struct aq_weights *weights, const char *path, float *staging)
{
    uint64_t digest = 0;
    char text[20];
    for (uint32_t i = 0; i < aq_weights_count(weights); i++) {
        struct aq_weights_info info;
        aq_weights_info(weights, i, &info);
        AQ_TRY(aq_weights_read(weights, i, false, staging, info.count));
        digest = aq_digest_seeded(staging, info.count * sizeof(float), digest);
    }
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    if (strcmp(fact(weights, "digest"), text) == 0) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint",
                   "%s: its bytes have digest %s, but it was written with %s: the file is damaged", path, text,
                   fact(weights, "digest"));
}

static enum aq_status put(const struct aq_checkpoint *c, float *to, const float *from, uint64_t count)
{
    AQ_TRY(aq_device_copy(c->device, to, from, count * sizeof(float), NULL));
    return aq_device_stream_sync(c->device, NULL);
}

/* An array by name. AQ_NOTFOUND is not logged: a run with another count of replicas may not have had it. */
static enum aq_status take(const struct aq_weights *weights, const char *name, uint64_t count, float *out)
{
    uint32_t index;
    struct aq_weights_info info;
    if (aq_weights_find(weights, name, &index) != AQ_OK) return AQ_NOTFOUND;
    aq_weights_info(weights, index, &info);
    if (info.count != count)
        return aq_fail(AQ_MISMATCH, "checkpoint", "%s has %" PRIu64 " values, %" PRIu64 " were expected", name,
                       info.count, count);
    return aq_weights_read(weights, index, false, out, count);
}

static enum aq_status load_weights(const struct aq_checkpoint *c, const struct files *files, float *staging)
{
    for (uint32_t i = 0; i < aq_stage_saved_count(c->stage); i++) {
        struct aq_tensor_info info;
        aq_stage_saved(c->stage, i, &info);
        const enum aq_status status = take(files->of[0], info.name, info.count, staging);
        if (status == AQ_NOTFOUND)
            return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no tensor %s", files->path, info.name);
        AQ_TRY(status);
        AQ_TRY(put(c, aq_stage_parameters(c->stage) + info.offset, staging, info.count));
    }
    if (!aq_stage_previous(c->stage)) return aq_stage_parameters_changed(c->stage, NULL);
    const uint64_t count = aq_stage_parameter_count(c->stage);
    const enum aq_status status = take(files->of[0], "optimizer.previous", count, staging);
    if (status == AQ_NOTFOUND)
        return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no previous weights (train.staleness)", files->path);
    AQ_TRY(status);
    AQ_TRY(put(c, aq_stage_previous(c->stage), staging, count));
    AQ_TRY(aq_stage_previous_changed(c->stage, NULL));
    return aq_stage_parameters_changed(c->stage, NULL);
}

/* The arrays of one name of all old replicas, one after another in `all`; of a server error each its chunk. */
static enum aq_status take_all(const struct files *files, const char *name, enum aq_state_class belongs, uint64_t of,
                               float *all, const float **each)
{
    uint64_t at = 0;
    for (uint32_t v = 0; v < files->count; v++) {
        uint64_t first, count = of;
        if (belongs == AQ_STATE_SERVER_ERROR) aq_grad_chunk(of, files->count, v, &first, &count);
        each[v] = all + at;
        if (count > 0) AQ_TRY(take(files->of[v], name, count, all + at));
        at += count;
    }
    return AQ_OK;
}

static enum aq_status load_state(const struct aq_checkpoint *c, const struct files *files, uint32_t index, float *all,
                                 float *staging)
{
    struct aq_optimizer_state_info state;
    const float *each[AQ_JOB_RANKS_MAX];
    char name[NAME_BYTES];
    aq_optimizer_state_info(c->optimizer, index, &state);
    snprintf(name, sizeof name, "optimizer.%s", state.name);
    const enum aq_status status = take_all(files, name, state.belongs, state.of, all, each);
    if (status == AQ_NOTFOUND && strcmp(state.name, AQ_PREDICT_STATE) == 0) /* it would be the weights, and is no 0 */
        return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no %s (train.prediction)", files->path, name);
    if (status == AQ_NOTFOUND || state.count == 0) return AQ_OK; /* it starts at zero, as in such a run */
    AQ_TRY(status);
    AQ_TRY(aq_grad_reshard(state.belongs, state.of, files->count, each, c->run.replicas, c->rank / c->run.stages,
                           staging));
    return put(c, aq_optimizer_state(c->optimizer, index), staging, state.count);
}

/* Residuals of local steps are of the weights themselves. */
static enum aq_status move(const struct aq_checkpoint *c, const float *pending, float *x)
{
    const uint64_t count = aq_stage_parameter_count(c->stage);
    AQ_TRY(aq_device_copy(c->device, x, aq_stage_parameters(c->stage), count * sizeof *x, NULL));
    AQ_TRY(aq_device_stream_sync(c->device, NULL));
    for (uint64_t i = 0; i < count; i++)
        x[i] -= c->pending * pending[i];
    AQ_TRY(put(c, aq_stage_parameters(c->stage), x, count));
    return aq_stage_parameters_changed(c->stage, NULL);
}

/* One replica has no place for errors. */
static enum aq_status absorb(const struct aq_checkpoint *c, const struct files *files, float *all, float *staging)
{
    const uint64_t of = aq_stage_parameter_count(c->stage);
    const float *worker[AQ_JOB_RANKS_MAX], *server[AQ_JOB_RANKS_MAX];
    if (c->run.replicas > 1) return AQ_OK;
    const enum aq_status first = take_all(files, "optimizer.worker_error", AQ_STATE_WORKER_ERROR, of, all, worker);
    if (first != AQ_NOTFOUND) AQ_TRY(first);
    const enum aq_status second =
        take_all(files, "optimizer.server_error", AQ_STATE_SERVER_ERROR, of, all + files->count * of, server);
    if (second != AQ_NOTFOUND) AQ_TRY(second);
    if (first != AQ_OK && second != AQ_OK) return AQ_OK;
    AQ_TRY(aq_grad_pending(of, files->count, first == AQ_OK ? worker : NULL, second == AQ_OK ? server : NULL, staging));
    return c->pending > 0 ? move(c, staging, all) : aq_optimizer_absorb(c->optimizer, staging);
}

/* reduce.delay: at a round's end a replica's own weights are those that the next outer step replaces. */
static enum aq_status round_has_ended(const struct aq_weights *of, uint64_t count, const float *own, float *staging,
                                      bool *out)
{
    const enum aq_status status = take(of, "optimizer." AQ_DELAY_STATE, count, staging);
    *out = false;
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    *out = memcmp(own, staging, count * sizeof *own) == 0;
    return AQ_OK;
}

/*
 * Local steps (reduce.every): in the middle of a round replicas differ by changes that only they know, and cannot share
 * out. At a round's end their own weights equal the file's tensors.
 */
static enum aq_status round_check(const struct aq_checkpoint *c, const struct files *files, const struct aq_weights *of,
                                  uint64_t step, float *own, float *staging)
{
    const uint64_t count = aq_stage_parameter_count(c->stage);
    const enum aq_status status = take(of, "optimizer." AQ_OUTER_STATE, count, own);
    if (status == AQ_NOTFOUND) return AQ_OK; /* no local steps, or one replica */
    AQ_TRY(status);
    bool ended;
    AQ_TRY(round_has_ended(of, count, own, staging, &ended));
    if (ended) return AQ_OK;
    for (uint32_t i = 0; i < aq_stage_saved_count(c->stage); i++) {
        struct aq_tensor_info info;
        aq_stage_saved(c->stage, i, &info);
        if (info.offset >= count) continue; /* a buffer has one version */
        const enum aq_status taken = take(of, info.name, info.count, staging);
        if (taken == AQ_NOTFOUND) return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no tensor %s", files->path, info.name);
        AQ_TRY(taken);
        if (memcmp(staging, own + info.offset, info.count * sizeof *staging) == 0) continue;
        return aq_fail(AQ_MISMATCH, "checkpoint",
                       "%s: step %" PRIu64 " is in the middle of a round of reduce.every: %u replicas cannot take over "
                       "what %u have trained each on its own; resume with %u and stop that run (it stops where a round "
                       "ends), then resume with another count",
                       files->path, step, c->run.replicas, files->count, files->count);
    }
    return AQ_OK;
}

static enum aq_status load_all(const struct aq_checkpoint *c, const struct files *files, float *all, float *staging)
{
    AQ_TRY(load_weights(c, files, staging));
    for (uint32_t i = 0; i < aq_optimizer_state_count(c->optimizer); i++)
        AQ_TRY(load_state(c, files, i, all, staging));
    for (uint32_t i = 0; i < c->state_count; i++) {
        const struct aq_checkpoint_state *state = &c->states[i];
        const enum aq_status status = take(files->of[0], state->name, state->count, state->values);
        if (status == AQ_NOTFOUND && state->optional) continue;
        if (status == AQ_NOTFOUND) return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no %s", files->path, state->name);
        AQ_TRY(status);
        AQ_TRY(state->check(state->values, state->count));
    }
    return absorb(c, files, all, staging);
}

enum aq_status aq_checkpoint_reshard(const struct aq_checkpoint *c, uint64_t step, uint32_t replicas)
{
    struct files files = {.count = replicas};
    uint64_t longest = aq_stage_saved_floats(c->stage);
    void *memory = NULL;
    enum aq_status status = AQ_OK;
    AQ_ASSERT(replicas >= 1 && replicas <= AQ_JOB_RANKS_MAX);
    for (uint32_t v = 0; v < replicas; v++) {
        const uint32_t rank = v * c->run.stages + c->rank % c->run.stages;
        AQ_TRY_GOTO(open_file(c, step, rank, &files, &files.of[v]), out);
        for (uint32_t i = 0; i < aq_weights_count(files.of[v]); i++) {
            struct aq_weights_info info;
            aq_weights_info(files.of[v], i, &info);
            if (info.count > longest) longest = info.count;
        }
    }
    const uint64_t floats = (2 * (uint64_t)replicas + 2) * longest; /* errors of both kinds, and one array */
    AQ_TRY_GOTO(aq_map(floats * sizeof(float), &memory), out);
    float *staging = memory, *all = staging + longest;
    for (uint32_t v = replicas; v-- > 0 && status == AQ_OK;) { /* replica 0's last: what is missing is missing there */
        status = aq_checkpoint_path(c->folder, step, v * c->run.stages + c->rank % c->run.stages, files.path);
        if (status == AQ_OK) status = file_check(files.of[v], files.path, staging);
        if (status == AQ_OK) status = round_check(c, &files, files.of[v], step, all, staging);
    }
    if (status == AQ_OK) status = load_all(c, &files, all, staging);
    aq_unmap(memory, floats * sizeof(float));
out:
    for (uint32_t v = 0; v < replicas; v++)
        aq_weights_close(files.of[v]);
    return status;
}
