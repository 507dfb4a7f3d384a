/*
 * checkpoint_frozen.c -- what never changes of a stage, written once for a run, beside its checkpoints.
 *
 *     <folder>/frozen-stage-<rank>.safetensors    tensors in order of layers; metadata: format "aqpipe frozen 1", the
 *                                                 stage, and the digest of all values, chained in that order
 *
 * Each checkpoint has that digest ("frozen"), so that the file of another run, or weights that have changed since, are
 * refused. The file can be made again from where the values came from; only then is that read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "stages/weights.h"

enum { NAME_BYTES = 64 };

static const char FORMAT[] = "aqpipe frozen 1";

static void file_name(uint32_t rank, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "frozen-stage-%u.safetensors", rank);
}

/* Where the frozen tensors of the stage lie on its device. */
static float *values_of(const struct aq_checkpoint *c)
{
    return aq_stage_parameters(c->stage) + aq_stage_saved_floats(c->stage);
}

/* All of them as the host has them: where they lie, or in memory that the caller unmaps (*copy, else NULL). */
static enum aq_status host_place(const struct aq_checkpoint *c, float **values, void **copy)
{
    struct aq_device_info info;
    aq_device_info(c->device, &info);
    if (!info.host_memory) AQ_TRY(aq_map(aq_stage_frozen_floats(c->stage) * sizeof(float), copy));
    *values = *copy ? *copy : values_of(c);
    return AQ_OK;
}

static enum aq_status copy_out(const struct aq_checkpoint *c, float **values, void **copy)
{
    const uint64_t bytes = aq_stage_frozen_floats(c->stage) * sizeof(float);
    AQ_TRY(host_place(c, values, copy));
    if (*copy) AQ_TRY(aq_device_copy(c->device, *copy, values_of(c), bytes, NULL));
    return aq_device_stream_sync(c->device, NULL);
}

static uint64_t digest_of(const void *values, uint64_t floats)
{
    return aq_digest_seeded(values, floats * sizeof(float), 0) | 1; /* 0: nothing is frozen */
}

enum aq_status aq_checkpoint_frozen_digest(const struct aq_checkpoint *c, uint64_t *digest)
{
    const uint64_t floats = aq_stage_frozen_floats(c->stage);
    void *copy = NULL;
    float *values;
    *digest = 0;
    if (floats == 0) return AQ_OK;
    const enum aq_status status = copy_out(c, &values, &copy);
    if (status == AQ_OK) *digest = digest_of(values, floats);
    aq_unmap(copy, floats * sizeof(float));
    return status;
}

enum aq_status aq_checkpoint_frozen_write(const struct aq_checkpoint *c)
{
    const uint64_t floats = aq_stage_frozen_floats(c->stage);
    const uint32_t count = aq_stage_frozen_count(c->stage);
    char name[NAME_BYTES], digest[20], rank[16];
    struct aq_weights_writer *writer = NULL;
    void *copy = NULL, *memory = NULL;
    float *values;
    enum aq_status status;
    if (count == 0) return AQ_OK;
    file_name(c->rank, name);
    AQ_TRY_GOTO(copy_out(c, &values, &copy), out);
    AQ_TRY_GOTO(aq_alloc(count * (sizeof(struct aq_weights_tensor) + sizeof(struct aq_tensor_info)), &memory), out);
    struct aq_weights_tensor *tensors = memory;
    struct aq_tensor_info *infos = (struct aq_tensor_info *)(tensors + count); /* whose names are borrowed */
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_tensor_info *info = &infos[i];
        aq_stage_frozen(c->stage, i, &infos[i]);
        const float *at = values + (info->offset - aq_stage_saved_floats(c->stage));
        tensors[i] = (struct aq_weights_tensor){.name = info->name, .dimensions = info->dimensions, .values = at};
        memcpy(tensors[i].shape, info->shape, info->dimensions * sizeof info->shape[0]);
    }
    snprintf(rank, sizeof rank, "%u", c->rank);
    snprintf(digest, sizeof digest, "%016" PRIx64, digest_of(values, floats));
    const char *const metadata[] = {"format", FORMAT, "stage", rank, "digest", digest, NULL};
    AQ_TRY_GOTO(aq_weights_writer_open(c->folder, name, tensors, count, metadata, &writer), out);
    do {
        status = aq_weights_writer_piece(writer);
    } while (status == AQ_AGAIN);
out:
    aq_weights_writer_close(writer);
    aq_free(memory);
    aq_unmap(copy, floats * sizeof(float));
    return status;
}

/* All tensors of an open file, to the host. AQ_CORRUPT, AQ_MISMATCH: not what such a file has. */
static enum aq_status take_all(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *name,
                               float *values)
{
    const uint64_t before = aq_stage_saved_floats(c->stage);
    const char *format = aq_weights_metadata(weights, "format"), *digest = aq_weights_metadata(weights, "digest");
    char text[20];
    if (!format || strcmp(format, FORMAT) != 0 || !digest)
        return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: is not what a run writes of its frozen tensors", c->folder,
                       name);
    for (uint32_t i = 0; i < aq_stage_frozen_count(c->stage); i++) {
        struct aq_tensor_info info;
        uint32_t index;
        aq_stage_frozen(c->stage, i, &info);
        if (aq_weights_find(weights, info.name, &index) != AQ_OK)
            return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: no tensor %s", c->folder, name, info.name);
        AQ_TRY(aq_weights_read(weights, index, false, values + (info.offset - before), info.count));
    }
    snprintf(text, sizeof text, "%016" PRIx64, digest_of(values, aq_stage_frozen_floats(c->stage)));
    if (strcmp(text, digest) == 0) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: its bytes have digest %s, it was written with %s", c->folder, name,
                   text, digest);
}

enum aq_status aq_checkpoint_frozen_read(const struct aq_checkpoint *c)
{
    const uint64_t bytes = aq_stage_frozen_floats(c->stage) * sizeof(float);
    struct aq_weights *weights = NULL;
    char name[NAME_BYTES];
    void *copy = NULL;
    float *values;
    if (bytes == 0) return AQ_OK;
    file_name(c->rank, name);
    enum aq_status status = aq_weights_open_in(c->folder, name, &weights);
    if (status == AQ_NOTFOUND && c->rank >= c->run.stages) { /* a replica that the run did not have: the first's */
        file_name(c->rank % c->run.stages, name);
        status = aq_weights_open_in(c->folder, name, &weights);
    }
    AQ_TRY(status);
    AQ_TRY_GOTO(host_place(c, &values, &copy), out);
    AQ_TRY_GOTO(take_all(c, weights, name, values), out);
    if (copy) AQ_TRY_GOTO(aq_device_copy(c->device, values_of(c), copy, bytes, NULL), out);
    status = aq_stage_frozen_changed(c->stage, NULL);
out:
    aq_unmap(copy, bytes);
    aq_weights_close(weights);
    return status;
}

enum aq_status aq_checkpoint_frozen_open(const char *folder, uint32_t rank, struct aq_weights **out)
{
    char name[NAME_BYTES];
    file_name(rank, name);
    return aq_weights_open_in(folder, name, out);
}
