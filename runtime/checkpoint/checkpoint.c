/* checkpoint.c -- a stage's weights and optimizer state to a safetensors file and back. */
#include "checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stages/weights.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 64, STATES_MAX = 16, COPIES = STATES_MAX + 3, METADATA_MAX = 2 * 13 + 1 };

/* Format 2 has `updates`. It is written where moments go from run to run, so that no reader takes the wrong count. */
static const char FORMAT[] = "aqpipe checkpoint 1", FORMAT_UPDATES[] = "aqpipe checkpoint 2";
static const uint64_t updates_max = 1ull << 53;

static const char PREVIOUS[] = "optimizer.previous";

enum aq_status aq_checkpoint_path(const char *folder, uint64_t step, uint32_t rank, char *path)
{
    const int bytes = snprintf(path, PATH_BYTES, "%s/%" PRIu64 "/stage-%u.safetensors", folder, step, rank);
    if (bytes >= PATH_BYTES) return aq_fail(AQ_INVAL, "checkpoint", "the path %s/... is too long", folder);
    return AQ_OK;
}

/* Below the folder of all checkpoints. */
static void file_name(uint64_t step, uint32_t rank, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%" PRIu64 "/stage-%u.safetensors", step, rank);
}

enum aq_status aq_checkpoint_open(const char *folder, uint64_t step, uint32_t rank, struct aq_weights **out)
{
    char name[NAME_BYTES];
    file_name(step, rank, name);
    return aq_weights_open_in(folder, name, out);
}

/* A view of device memory for the host: itself, or a copy that the caller unmaps. */
static enum aq_status host_view(struct aq_device *device, const float *values, uint64_t count, const float **view,
                                void **copy)
{
    struct aq_device_info info;
    aq_device_info(device, &info);
    *copy = NULL;
    *view = values;
    if (info.host_memory) return AQ_OK;
    AQ_TRY(aq_map(count * sizeof(float), copy));
    const enum aq_status status = aq_device_copy(device, *copy, values, count * sizeof(float), NULL);
    *view = *copy;
    return status == AQ_OK ? aq_device_stream_sync(device, NULL) : status;
}

/* Contents of a file: its tensors, and their values: of a snapshot, of the stage, or copied from a device. */
struct table {
    struct aq_weights_tensor *tensors;
    struct aq_tensor_info *infos;
    uint32_t count, states;
    char state_names[STATES_MAX][NAME_BYTES];
    void *copies[COPIES]; /* of the states, then of the weights, the previous ones and the tied residual */
    uint64_t copy_bytes[COPIES];
    void *memory;
};

static void table_close(struct table *table)
{
    for (int i = 0; i < COPIES; i++)
        aq_unmap(table->copies[i], table->copy_bytes[i]);
    aq_free(table->memory);
}

/* The previous parameters, where the stage has them; values NULL: the stage's own. */
static enum aq_status previous_add(const struct aq_checkpoint *c, const float *values, struct table *table,
                                   uint32_t *written)
{
    const float *previous = aq_stage_previous(c->stage);
    const uint64_t count = aq_stage_parameter_count(c->stage);
    if (!previous) return AQ_OK;
    table->copy_bytes[STATES_MAX + 1] = count * sizeof(float);
    if (!values) AQ_TRY(host_view(c->device, previous, count, &values, &table->copies[STATES_MAX + 1]));
    table->tensors[table->count + (*written)++] =
        (struct aq_weights_tensor){.name = PREVIOUS, .dimensions = 1, .shape = {count}, .values = values};
    return AQ_OK;
}

/* An array of the optimizer's state, of the rank that the file is of. */
static enum aq_status state_view(const struct aq_checkpoint *c, uint32_t index,
                                 const struct aq_optimizer_state_info *state, struct table *table, const float **values)
{
    const bool error = state->belongs == AQ_STATE_WORKER_ERROR || state->belongs == AQ_STATE_SERVER_ERROR;
    if (!c->stands_in || !error)
        return host_view(c->device, aq_optimizer_state(c->optimizer, index), state->count, values,
                         &table->copies[index]);
    AQ_TRY(aq_map_untouched(table->copy_bytes[index], &table->copies[index]));
    *values = table->copies[index];
    return AQ_OK;
}

/* The residual of model.tied: compressed, a saved tensor: zeros in the file of a rank that has lost its own. */
static enum aq_status tied_zeros(const struct aq_checkpoint *c, uint32_t index, struct table *table)
{
    const float *residual = aq_stage_tied_residual(c->stage);
    const struct aq_tensor_info *info = &table->infos[index];
    if (!c->stands_in || !residual || aq_stage_parameters(c->stage) + info->offset != residual) return AQ_OK;
    table->copy_bytes[STATES_MAX + 2] = info->count * sizeof(float);
    AQ_TRY(aq_map_untouched(table->copy_bytes[STATES_MAX + 2], &table->copies[STATES_MAX + 2]));
    table->tensors[index].values = table->copies[STATES_MAX + 2];
    return AQ_OK;
}

static void state_info(const struct aq_checkpoint *c, uint32_t index, struct aq_optimizer_state_info *out)
{
    uint64_t first;
    aq_optimizer_state_info(c->optimizer, index, out);
    if (c->stands_in && out->belongs == AQ_STATE_SERVER_ERROR)
        aq_grad_chunk(out->of, c->run.replicas, c->rank / c->run.stages, &first, &out->count);
}

/* Every tensor of the file, with its values: those of the snapshot, or (NULL) the stage's own. */
static enum aq_status table_open(const struct aq_checkpoint *c, const float *snapshot, struct table *table)
{
    AQ_ASSERT(!snapshot || !c->stands_in);
    *table = (struct table){.count = aq_stage_saved_count(c->stage)};
    table->states = c->optimizer ? aq_optimizer_state_count(c->optimizer) : 0;
    AQ_ASSERT(table->states < STATES_MAX);
    const uint32_t all = table->count + table->states + c->state_count + 1;
    AQ_TRY(aq_alloc(all * (sizeof *table->tensors + sizeof *table->infos), &table->memory));
    table->tensors = table->memory;
    table->infos = (struct aq_tensor_info *)(table->tensors + all);
    const uint64_t saved = aq_stage_saved_floats(c->stage);
    table->copy_bytes[STATES_MAX] = saved * sizeof(float);
    const float *values = snapshot;
    if (!snapshot)
        AQ_TRY(host_view(c->device, aq_stage_parameters(c->stage), saved, &values, &table->copies[STATES_MAX]));
    for (uint32_t i = 0; i < table->count; i++) {
        struct aq_tensor_info *info = &table->infos[i];
        aq_stage_saved(c->stage, i, info);
        struct aq_weights_tensor *t = &table->tensors[i];
        *t = (struct aq_weights_tensor){
            .name = info->name, .dimensions = info->dimensions, .values = values + info->offset};
        memcpy(t->shape, info->shape, info->dimensions * sizeof info->shape[0]);
        AQ_TRY(tied_zeros(c, i, table));
    }
    uint64_t at = saved; /* in the snapshot */
    uint32_t written = 0;
    for (uint32_t i = 0; i < table->states; i++) {
        struct aq_optimizer_state_info state;
        state_info(c, i, &state);
        if (state.count == 0) continue; /* a rank may own nothing of a short buffer */
        table->copy_bytes[i] = state.count * sizeof(float);
        if (snapshot)
            values = snapshot + at;
        else
            AQ_TRY(state_view(c, i, &state, table, &values));
        at += state.count;
        snprintf(table->state_names[i], NAME_BYTES, "optimizer.%s", state.name);
        table->tensors[table->count + written++] = (struct aq_weights_tensor){
            .name = table->state_names[i], .dimensions = 1, .shape = {state.count}, .values = values};
    }
    AQ_TRY(previous_add(c, snapshot ? snapshot + at : NULL, table, &written));
    if (aq_stage_previous(c->stage)) at += aq_stage_parameter_count(c->stage);
    for (uint32_t i = 0; i < c->state_count; i++) {
        const struct aq_checkpoint_state *state = &c->states[i];
        table->tensors[table->count + written++] =
            (struct aq_weights_tensor){.name = state->name,
                                       .dimensions = 1,
                                       .shape = {state->count},
                                       .values = snapshot ? snapshot + at : state->values};
        at += state->count;
    }
    table->states = written;
    return AQ_OK;
}

static uint64_t tensor_floats(const struct aq_weights_tensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->dimensions; i++)
        count *= tensor->shape[i];
    return count;
}

struct aq_checkpoint_file {
    struct aq_checkpoint checkpoint;
    uint64_t step;
    struct table table;
    struct aq_weights_writer *writer; /* NULL: not begun */
};

/* Key and value behind the list's last; value "": neither. */
static void metadata_add(const char *list[METADATA_MAX], const char *key, const char *value)
{
    uint32_t at = 0;
    while (list[at])
        at++;
    AQ_ASSERT(at + 2 < METADATA_MAX);
    if (!value[0]) return;
    list[at] = key;
    list[at + 1] = value;
}

/* The first piece: the folder, the digest of everything, and the file under a temporary name. */
static enum aq_status file_begin(struct aq_checkpoint_file *file)
{
    const struct aq_checkpoint *c = &file->checkpoint;
    const struct table *table = &file->table;
    char name[NAME_BYTES], hash[20], job[20], digest[20], number[24], rank[16], resume_hash[20], replicas[16],
        resume[20], frozen[20] = "", updates[24] = "", caches[24] = "";
    const char *metadata[METADATA_MAX] = {NULL};
    struct aq_device_info device;
    aq_device_info(c->device, &device);
    snprintf(number, sizeof number, "%" PRIu64, file->step);
    AQ_TRY(aq_file_make_folder(c->folder, number)); /* not the folder around it: its disk may be gone */
    uint64_t all = 0;
    for (uint32_t i = 0; i < table->count + table->states; i++)
        all = aq_digest_seeded(table->tensors[i].values, tensor_floats(&table->tensors[i]) * sizeof(float), all);
    snprintf(hash, sizeof hash, "%016" PRIx64, c->run.plan_hash);
    snprintf(resume, sizeof resume, "%016" PRIx64, c->run.rank_hash);
    snprintf(resume_hash, sizeof resume_hash, "%016" PRIx64, c->run.resume_hash);
    snprintf(replicas, sizeof replicas, "%u", c->run.replicas);
    snprintf(job, sizeof job, "%016" PRIx64, c->run.job_digest);
    snprintf(digest, sizeof digest, "%016" PRIx64, all);
    file_name(file->step, c->rank, name);
    snprintf(rank, sizeof rank, "%u", c->rank);
    if (c->frozen_digest) snprintf(frozen, sizeof frozen, "%016" PRIx64, c->frozen_digest);
    if (c->updates_ahead) snprintf(updates, sizeof updates, "%" PRIu64, file->step + (uint64_t)*c->updates_ahead);
    if (c->stands_in && c->caches) snprintf(caches, sizeof caches, "%" PRIu64, c->caches);
    metadata_add(metadata, "format", c->updates_ahead ? FORMAT_UPDATES : FORMAT);
    metadata_add(metadata, "plan_hash", hash);
    metadata_add(metadata, "rank_hash", resume);
    metadata_add(metadata, "resume_hash", resume_hash);
    metadata_add(metadata, "replicas", replicas);
    metadata_add(metadata, "job_digest", job);
    metadata_add(metadata, "step", number);
    metadata_add(metadata, "stage", rank);
    metadata_add(metadata, "digest", digest);
    metadata_add(metadata, "frozen", frozen);
    metadata_add(metadata, "device", device.rounding);
    metadata_add(metadata, "updates", updates);
    metadata_add(metadata, "caches", caches);
    return aq_weights_writer_open(c->folder, name, table->tensors, table->count + table->states, metadata,
                                  &file->writer);
}

enum aq_status aq_checkpoint_file_open(const struct aq_checkpoint *c, uint64_t step, const float *snapshot,
                                       struct aq_checkpoint_file **out)
{
    struct aq_checkpoint_file *file;
    AQ_TRY(AQ_NEW(1, &file));
    file->checkpoint = *c;
    file->step = step;
    const enum aq_status status = table_open(c, snapshot, &file->table);
    if (status == AQ_OK)
        *out = file;
    else
        aq_checkpoint_file_close(file);
    return status;
}

enum aq_status aq_checkpoint_file_piece(struct aq_checkpoint_file *file)
{
    if (file->writer) return aq_weights_writer_piece(file->writer);
    AQ_TRY(file_begin(file));
    return AQ_AGAIN;
}

void aq_checkpoint_file_close(struct aq_checkpoint_file *file)
{
    if (!file) return;
    aq_weights_writer_close(file->writer);
    table_close(&file->table);
    aq_free(file);
}

enum aq_status aq_checkpoint_write_values(const struct aq_checkpoint *c, uint64_t step, const float *snapshot)
{
    struct aq_checkpoint_file *file;
    AQ_TRY(aq_checkpoint_file_open(c, step, snapshot, &file));
    enum aq_status status;
    do {
        status = aq_checkpoint_file_piece(file);
    } while (status == AQ_AGAIN);
    aq_checkpoint_file_close(file);
    return status;
}

enum aq_status aq_checkpoint_write(const struct aq_checkpoint *c, uint64_t step)
{
    return aq_checkpoint_write_values(c, step, NULL);
}

uint64_t aq_checkpoint_floats(const struct aq_checkpoint *c)
{
    uint64_t floats = aq_stage_saved_floats(c->stage);
    for (uint32_t i = 0; c->optimizer && i < aq_optimizer_state_count(c->optimizer); i++) {
        struct aq_optimizer_state_info state;
        aq_optimizer_state_info(c->optimizer, i, &state);
        floats += state.count;
    }
    if (aq_stage_previous(c->stage)) floats += aq_stage_parameter_count(c->stage);
    for (uint32_t i = 0; i < c->state_count; i++)
        floats += c->states[i].count;
    return floats;
}

enum aq_status aq_checkpoint_snapshot(const struct aq_checkpoint *c, float *snapshot)
{
    uint64_t at = aq_stage_saved_floats(c->stage);
    AQ_TRY(aq_device_copy(c->device, snapshot, aq_stage_parameters(c->stage), at * sizeof(float), NULL));
    for (uint32_t i = 0; c->optimizer && i < aq_optimizer_state_count(c->optimizer); i++) {
        struct aq_optimizer_state_info state;
        aq_optimizer_state_info(c->optimizer, i, &state);
        AQ_TRY(aq_device_copy(c->device, snapshot + at, aq_optimizer_state(c->optimizer, i),
                              state.count * sizeof(float), NULL));
        at += state.count;
    }
    const float *previous = aq_stage_previous(c->stage);
    const uint64_t count = previous ? aq_stage_parameter_count(c->stage) : 0;
    if (previous) AQ_TRY(aq_device_copy(c->device, snapshot + at, previous, count * sizeof(float), NULL));
    at += count;
    for (uint32_t i = 0; i < c->state_count; i++) {
        memcpy(snapshot + at, c->states[i].values, c->states[i].count * sizeof *snapshot);
        at += c->states[i].count;
    }
    return aq_device_stream_sync(c->device, NULL);
}

/* Bytes of the longest array of the file, or of all parameters. */
static uint64_t longest_bytes(const struct aq_checkpoint *c)
{
    uint64_t most = aq_stage_saved_floats(c->stage);
    for (uint32_t i = 0; c->optimizer && i < aq_optimizer_state_count(c->optimizer); i++) {
        struct aq_optimizer_state_info state;
        aq_optimizer_state_info(c->optimizer, i, &state);
        if (state.count > most) most = state.count;
    }
    return most * sizeof(float);
}

static enum aq_status metadata_check(const struct aq_weights *weights, const char *path, const char *key,
                                     const char *want)
{
    const char *have = aq_weights_metadata(weights, key);
    if (!have)
        return aq_fail(AQ_CORRUPT, "checkpoint", "%s: is not a checkpoint of aqpipe: its metadata has no %s", path,
                       key);
    if (strcmp(have, want) == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "checkpoint", "%s: %s is %s, this run has %s", path, key, have, want);
}

/* Of a format that is known here; *updates: AQ_UPDATES_UNKNOWN in format 1. */
static enum aq_status format_check(const struct aq_weights *weights, const char *path, uint64_t *updates)
{
    const char *format = aq_weights_metadata(weights, "format"), *text = aq_weights_metadata(weights, "updates");
    char *end = NULL;
    *updates = AQ_UPDATES_UNKNOWN;
    if (!format || strcmp(format, FORMAT_UPDATES) != 0) return metadata_check(weights, path, "format", FORMAT);
    if (text && text[0] >= '0' && text[0] <= '9') *updates = strtoull(text, &end, 10);
    if (end && !*end && *updates <= updates_max) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint", "%s: its metadata's `updates` is '%.32s', which is not a count of updates",
                   path, text ? text : "missing");
}

/* Takes over the update count of the file's moments; this run has done `step` steps. */
static void updates_take(const struct aq_checkpoint *c, uint64_t updates, uint64_t step)
{
    if (c->updates_ahead) *c->updates_ahead = updates == AQ_UPDATES_UNKNOWN ? 0 : (int64_t)(updates - step);
}

enum aq_status aq_checkpoint_updates(const char *from, uint32_t rank, uint64_t *updates)
{
    char name[NAME_BYTES], path[PATH_BYTES];
    struct aq_weights *weights;
    uint64_t count;
    snprintf(name, sizeof name, "stage-%u.safetensors", rank);
    if (snprintf(path, sizeof path, "%s/%s", from, name) >= PATH_BYTES)
        return aq_fail(AQ_INVAL, "checkpoint", "the path %s/... is too long", from);
    AQ_TRY(aq_weights_open_in(from, name, &weights));
    const enum aq_status status = format_check(weights, path, &count);
    aq_weights_close(weights);
    if (status == AQ_OK) *updates = count;
    return status;
}

enum aq_status aq_checkpoint_caches(const struct aq_checkpoint *c, uint64_t step, uint64_t *mark)
{
    struct aq_weights *weights;
    enum aq_status status = AQ_OK;
    char *end = NULL;
    *mark = 0;
    AQ_TRY(aq_checkpoint_open(c->folder, step, c->rank, &weights));
    const char *text = aq_weights_metadata(weights, "caches");
    if (text && text[0] >= '1' && text[0] <= '9') *mark = strtoull(text, &end, 10);
    if (text && (!end || *end || *mark >= step))
        status = aq_fail(AQ_CORRUPT, "checkpoint",
                         "%s/%" PRIu64 "/stage-%u.safetensors: its metadata's `caches` is '%.32s', which is no step "
                         "before it",
                         c->folder, step, c->rank, text);
    aq_weights_close(weights);
    return status;
}

enum aq_status aq_checkpoint_frozen_check(const struct aq_checkpoint *c, const struct aq_weights *weights,
                                          const char *path)
{
    char text[24];
    const char *have = aq_weights_metadata(weights, "frozen");
    snprintf(text, sizeof text, "%016" PRIx64, c->frozen_digest);
    if (strcmp(have ? have : "0000000000000000", text) == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "checkpoint",
                   "%s: the frozen tensors that it was made with have digest %s, those here %s: put back "
                   "frozen-stage-%u.safetensors or the file of model.weights that the run started from",
                   path, have ? have : "none", text, c->rank);
}

/* Products are summed in another order elsewhere: no harm to the training, but not the bits of the run unbroken. */
static void device_compare(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path)
{
    struct aq_device_info here;
    const char *there = aq_weights_metadata(weights, "device");
    aq_device_info(c->device, &here);
    if (strcmp(there ? there : "", here.rounding) == 0) return;
    aq_log("checkpoint", AQ_LOG_WARNING,
           "%s was written on %s, and continues on %s: from here on its bits may differ from those of a run that was "
           "never interrupted",
           path, there ? there : "a CPU", here.rounding[0] ? here.rounding : "a CPU");
}

static enum aq_status headers_check(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path,
                                    uint64_t step, uint64_t *updates)
{
    char text[24];
    AQ_TRY(format_check(weights, path, updates));
    /* Of this plan, or of one that made the same steps and was to end or to save at others. */
    const char *resume = aq_weights_metadata(weights, "rank_hash");
    snprintf(text, sizeof text, "%016" PRIx64, c->run.rank_hash);
    const bool goes_on = resume && strcmp(resume, text) == 0;
    snprintf(text, sizeof text, "%016" PRIx64, c->run.plan_hash);
    if (!goes_on) AQ_TRY(metadata_check(weights, path, "plan_hash", text));
    snprintf(text, sizeof text, "%" PRIu64, step);
    AQ_TRY(metadata_check(weights, path, "step", text));
    snprintf(text, sizeof text, "%u", c->rank);
    AQ_TRY(metadata_check(weights, path, "stage", text));
    return aq_checkpoint_frozen_check(c, weights, path);
}

/* Values of other runs must not be NaN or infinite, or training would end with its first step. */
static enum aq_status check_finite(const char *path, const char *name, const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return aq_fail(AQ_CORRUPT, "checkpoint", "%s: %s: value %" PRIu64 " of %" PRIu64 " is %s", path, name, i,
                           count, isnan(values[i]) ? "NaN" : "infinite");
    return AQ_OK;
}

/* One tensor of the file into device memory (to NULL: nowhere), chained into *digest. */
static enum aq_status tensor_load(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path,
                                  const char *name, float *to, uint64_t count, float *staging, uint64_t *digest,
                                  bool others)
{
    uint32_t index;
    struct aq_weights_info info;
    if (aq_weights_find(weights, name, &index) != AQ_OK)
        return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no tensor %s", path, name);
    aq_weights_info(weights, index, &info);
    if (info.count != count)
        return aq_fail(AQ_MISMATCH, "checkpoint", "%s: %s has %" PRIu64 " values, this stage needs %" PRIu64, path,
                       name, info.count, count);
    AQ_TRY(aq_weights_read(weights, index, false, staging, count));
    if (others) AQ_TRY(check_finite(path, name, staging, count));
    if (digest) *digest = aq_digest_seeded(staging, count * sizeof(float), *digest);
    if (!to) return AQ_OK;
    AQ_TRY(aq_device_copy(c->device, to, staging, count * sizeof(float), NULL));
    return aq_device_stream_sync(c->device, NULL);
}

/* others: it is another's file (aq_checkpoint_adopt). */
static enum aq_status load_all(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path,
                               float *staging, bool others)
{
    uint64_t digest = 0;
    char text[NAME_BYTES];
    for (uint32_t i = 0; i < aq_stage_saved_count(c->stage); i++) {
        struct aq_tensor_info info;
        aq_stage_saved(c->stage, i, &info);
        float *to = aq_stage_parameters(c->stage) + info.offset;
        if (others && info.buffer && c->own_statistics) to = NULL;
        AQ_TRY(tensor_load(c, weights, path, info.name, to, info.count, staging, &digest, others));
    }
    for (uint32_t i = 0; c->optimizer && i < aq_optimizer_state_count(c->optimizer); i++) {
        struct aq_optimizer_state_info state;
        aq_optimizer_state_info(c->optimizer, i, &state);
        if (state.count == 0) continue;
        snprintf(text, sizeof text, "optimizer.%s", state.name);
        AQ_TRY(tensor_load(c, weights, path, text, aq_optimizer_state(c->optimizer, i), state.count, staging, &digest,
                           others));
    }
    if (aq_stage_previous(c->stage))
        AQ_TRY(tensor_load(c, weights, path, PREVIOUS, aq_stage_previous(c->stage), aq_stage_parameter_count(c->stage),
                           staging, &digest, others));
    for (uint32_t i = 0; i < c->state_count; i++) {
        const struct aq_checkpoint_state *state = &c->states[i];
        uint32_t index;
        if (state->optional && aq_weights_find(weights, state->name, &index) != AQ_OK) continue;
        AQ_TRY(tensor_load(c, weights, path, state->name, state->values, state->count, staging, &digest, others));
        AQ_TRY(state->check(state->values, state->count));
    }
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    const char *have = aq_weights_metadata(weights, "digest");
    if (have && strcmp(have, text) == 0) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint",
                   "%s: its bytes have digest %s, but it was written with %s: the file is damaged", path, text,
                   have ? have : "none");
}

enum aq_status aq_checkpoint_read(const struct aq_checkpoint *c, uint64_t step)
{
    char path[PATH_BYTES];
    struct aq_weights *weights = NULL;
    void *staging = NULL;
    const uint64_t bytes = longest_bytes(c);
    uint64_t updates;
    enum aq_status status;
    AQ_TRY(aq_checkpoint_path(c->folder, step, c->rank, path));
    AQ_TRY_GOTO(aq_checkpoint_open(c->folder, step, c->rank, &weights), out);
    AQ_TRY_GOTO(headers_check(c, weights, path, step, &updates), out);
    device_compare(c, weights, path);
    AQ_TRY_GOTO(aq_map(bytes, &staging), out);
    AQ_TRY_GOTO(load_all(c, weights, path, staging, false), out);
    updates_take(c, updates, step);
    if (aq_stage_previous(c->stage)) AQ_TRY_GOTO(aq_stage_previous_changed(c->stage, NULL), out);
    status = aq_stage_parameters_changed(c->stage, NULL);
out:
    aq_unmap(staging, bytes);
    aq_weights_close(weights);
    return status;
}

enum aq_status aq_checkpoint_adopt(const struct aq_checkpoint *c, const char *from, uint64_t step)
{
    char name[NAME_BYTES], text[24], path[PATH_BYTES];
    struct aq_weights *weights = NULL;
    void *staging = NULL;
    const uint64_t bytes = longest_bytes(c);
    uint64_t updates;
    enum aq_status status;
    snprintf(name, sizeof name, "stage-%u.safetensors", c->rank);
    if (snprintf(path, sizeof path, "%s/%s", from, name) >= PATH_BYTES)
        return aq_fail(AQ_INVAL, "checkpoint", "the path %s/... is too long", from);
    AQ_TRY_GOTO(aq_weights_open_in(from, name, &weights), out);
    snprintf(text, sizeof text, "%u", c->rank);
    AQ_TRY_GOTO(format_check(weights, path, &updates), out);
    AQ_TRY_GOTO(metadata_check(weights, path, "stage", text), out);
    AQ_TRY_GOTO(aq_map(bytes, &staging), out);
    AQ_TRY_GOTO(load_all(c, weights, path, staging, true), out);
    updates_take(c, updates, step);
    if (aq_stage_previous(c->stage)) AQ_TRY_GOTO(aq_stage_previous_changed(c->stage, NULL), out);
    status = aq_stage_parameters_changed(c->stage, NULL);
out:
    aq_unmap(staging, bytes);
    aq_weights_close(weights);
    return status;
}

/* One tensor of a published file into the stage. */
static enum aq_status tensor_import(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path,
                                    const struct aq_tensor_info *info, float *staging)
{
    const char *name = info->name;
    uint32_t index;
    if (aq_weights_find(weights, name, &index) != AQ_OK) name = info->begins_as;
    if (aq_weights_find_shared(weights, aq_stage_model(c->stage), name, &index) != AQ_OK)
        return aq_fail(AQ_NOTFOUND, "checkpoint", "%s: no tensor %s", path, name);
    AQ_TRY(aq_weights_read_as(weights, index, info, staging));
    AQ_TRY(check_finite(path, name, staging, info->count));
    return aq_stage_put(c->stage, info, 0, info->count, staging);
}

static void stage_tensor(const struct aq_stage *stage, uint32_t index, struct aq_tensor_info *out)
{
    const uint32_t saved = aq_stage_saved_count(stage);
    index < saved ? aq_stage_saved(stage, index, out) : aq_stage_frozen(stage, index - saved, out);
}

/* Has the stage a tensor of that name, or one that may start as a copy of it? */
static bool stage_wants(void *context, const char *name)
{
    const struct aq_stage *stage = context;
    const uint32_t all = aq_stage_saved_count(stage) + aq_stage_frozen_count(stage);
    char head[AQ_TENSOR_NAME_MAX];
    struct aq_tensor_info info;
    for (uint32_t i = 0; i < all; i++) {
        stage_tensor(stage, i, &info);
        if (strcmp(info.name, name) == 0 || strcmp(info.begins_as, name) == 0) return true;
    }
    aq_model_tied_head(aq_stage_model(stage), head); /* by which a file may call the embedding */
    return head[0] && strcmp(head, name) == 0;
}

/* No file of the model has adapters or residuals, and one for another task has not what is this task's own. */
static bool begins_untrained(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *path,
                             const struct aq_tensor_info *info)
{
    if (info->adapter || strncmp(info->name, "optimizer.", strlen("optimizer.")) == 0) return true;
    if (!aq_weights_starts_new(weights, aq_stage_model(c->stage), info)) return false;
    aq_log("checkpoint", AQ_LOG_WARNING, "%s: %s is new, and starts from train.seed", path, info->name);
    return true;
}

enum aq_status aq_checkpoint_import(const struct aq_checkpoint *c, const char *path, uint64_t seed)
{
    struct aq_weights *weights = NULL;
    void *staging = NULL;
    const uint32_t all = aq_stage_saved_count(c->stage) + aq_stage_frozen_count(c->stage);
    uint64_t bytes = 0; /* of the largest tensor */
    enum aq_status status;
    for (uint32_t i = 0; i < all; i++) {
        struct aq_tensor_info info;
        stage_tensor(c->stage, i, &info);
        if (info.count * sizeof(float) > bytes) bytes = info.count * sizeof(float);
    }
    AQ_TRY_GOTO(aq_weights_open_wanted(path, stage_wants, c->stage, &weights), out);
    AQ_TRY_GOTO(aq_map(bytes, &staging), out);
    for (uint32_t i = 0; i < all; i++) {
        struct aq_tensor_info info;
        stage_tensor(c->stage, i, &info);
        if (begins_untrained(c, weights, path, &info))
            AQ_TRY_GOTO(aq_stage_init_tensor(c->stage, &info, seed), out);
        else
            AQ_TRY_GOTO(tensor_import(c, weights, path, &info, staging), out);
    }
    AQ_TRY_GOTO(aq_stage_magnitudes(c->stage), out);
    AQ_TRY_GOTO(aq_stage_frozen_changed(c->stage, NULL), out);
    status = aq_stage_parameters_changed(c->stage, NULL);
out:
    aq_unmap(staging, bytes);
    aq_weights_close(weights);
    return status;
}
