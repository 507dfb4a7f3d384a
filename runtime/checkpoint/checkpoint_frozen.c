/*
 * checkpoint_frozen.c -- the frozen tensors of a stage, written once per run, next to its checkpoints.
 *
 *     <folder>/frozen-stage-<rank>.safetensors    tensors in order of layers; metadata: format "aqpipe frozen 1", the
 *                                                 stage, and the digest of all values, chained in that order
 *
 * Packed tensors (train.frozen_store) come last, as the values that they represent; the digest covers the packed bytes.
 * Most stores pack these values again with the same bits. For those that may not (nf4), the bytes of each such tensor
 * follow at the end as NAME.packed, and the values must be what these bytes unpack to.
 *
 * Each checkpoint has that digest ("frozen"), so that the file of another run, or weights that have changed since, are
 * refused. The file can be made again from the source of the values; only then the source is read.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "stages/weights.h"

enum { NAME_BYTES = 64 };

static const char FORMAT[] = "aqpipe frozen 1", PACKED[] = ".packed";

static void file_name(uint32_t rank, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "frozen-stage-%u.safetensors", rank);
}

/* Device address of the frozen fp32 tensors of the stage. */
static float *values_of(const struct aq_checkpoint *c)
{
    return aq_stage_parameters(c->stage) + aq_stage_saved_floats(c->stage);
}

/* All of them as the host has them: where they lie, or in memory that the caller unmaps (*copy, else NULL). */
static enum aq_status host_place(const struct aq_checkpoint *c, float **values, void **copy)
{
    struct aq_device_info info;
    aq_device_info(c->device, &info);
    const uint64_t bytes = aq_stage_frozen_floats(c->stage) * sizeof(float);
    if (!info.host_memory && bytes) AQ_TRY(aq_map(bytes, copy));
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

/* values: those in fp32, on the host. */
static enum aq_status digest_of(const struct aq_checkpoint *c, const void *values, uint64_t *digest)
{
    *digest = aq_digest_seeded(values, aq_stage_frozen_floats(c->stage) * sizeof(float), 0);
    AQ_TRY(aq_stage_packed_digest(c->stage, digest));
    *digest |= 1; /* 0: nothing is frozen */
    return AQ_OK;
}

enum aq_status aq_checkpoint_frozen_digest(const struct aq_checkpoint *c, uint64_t *digest)
{
    const uint64_t floats = aq_stage_frozen_floats(c->stage);
    void *copy = NULL;
    float *values;
    *digest = 0;
    if (aq_stage_frozen_count(c->stage) == 0) return AQ_OK;
    enum aq_status status = copy_out(c, &values, &copy);
    if (status == AQ_OK) status = digest_of(c, values, digest);
    aq_unmap(copy, floats * sizeof(float));
    return status;
}

/* One tensor of the file. name: of a tensor's bytes; empty: its values. */
struct filled {
    const struct aq_checkpoint *c;
    struct aq_tensor_info info;
    char name[AQ_TENSOR_NAME_MAX + sizeof PACKED];
};

static void packed_name(const struct aq_tensor_info *info, char name[AQ_TENSOR_NAME_MAX + sizeof PACKED])
{
    snprintf(name, AQ_TENSOR_NAME_MAX + sizeof PACKED, "%s%s", info->name, PACKED);
}

static enum aq_status fill(void *context, const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                           float *values)
{
    const struct filled *filled = context;
    (void)tensor;
    return aq_stage_get(filled->c->stage, &filled->info, first, count, values);
}

static enum aq_status fill_bytes(void *context, const struct aq_weights_tensor *tensor, uint64_t first, uint64_t count,
                                 uint8_t *bytes)
{
    const struct filled *filled = context;
    (void)tensor;
    return aq_stage_packed_get(filled->c->stage, &filled->info, first, count, bytes);
}

/*
 * Fills the table of the file: all frozen tensors, then the bytes of those that need them. values: host address of
 * those in fp32. Returns their count; there is room for two per tensor.
 */
static uint32_t tensors_fill(const struct aq_checkpoint *c, const float *values, struct aq_weights_tensor *tensors,
                             struct filled *filled)
{
    const uint32_t count = aq_stage_frozen_count(c->stage);
    uint32_t all = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct aq_tensor_info *info = &filled[i].info;
        filled[i].c = c;
        aq_stage_frozen(c->stage, i, &filled[i].info);
        tensors[i] = (struct aq_weights_tensor){.name = info->name,
                                                .dimensions = info->dimensions,
                                                .context = &filled[i],
                                                .type = aq_frozen_store_type(info->packed)};
        memcpy(tensors[i].shape, info->shape, info->dimensions * sizeof info->shape[0]);
        if (info->packed)
            tensors[i].fill = fill;
        else
            tensors[i].values = values + (info->offset - aq_stage_saved_floats(c->stage));
        if (!aq_stage_packed_bytes(info)) continue;
        filled[all] = filled[i];
        packed_name(info, filled[all].name);
        tensors[all] = (struct aq_weights_tensor){.name = filled[all].name,
                                                  .dimensions = 1,
                                                  .shape = {aq_stage_packed_bytes(info)},
                                                  .fill_bytes = fill_bytes,
                                                  .context = &filled[all],
                                                  .type = "U8"};
        all++;
    }
    return all;
}

enum aq_status aq_checkpoint_frozen_write(const struct aq_checkpoint *c)
{
    const uint64_t floats = aq_stage_frozen_floats(c->stage);
    const uint32_t count = aq_stage_frozen_count(c->stage);
    char name[NAME_BYTES], text[20], rank[16];
    uint64_t digest;
    struct aq_weights_writer *writer = NULL;
    void *copy = NULL, *memory = NULL;
    float *values;
    enum aq_status status;
    if (count == 0) return AQ_OK;
    file_name(c->rank, name);
    AQ_TRY_GOTO(copy_out(c, &values, &copy), out);
    AQ_TRY_GOTO(aq_alloc(2 * count * (sizeof(struct aq_weights_tensor) + sizeof(struct filled)), &memory), out);
    struct aq_weights_tensor *tensors = memory;
    struct filled *filled = (struct filled *)(tensors + 2 * count); /* whose names are borrowed */
    const uint32_t all = tensors_fill(c, values, tensors, filled);
    snprintf(rank, sizeof rank, "%u", c->rank);
    AQ_TRY_GOTO(digest_of(c, values, &digest), out);
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    const char *const metadata[] = {"format", FORMAT, "stage", rank, "digest", text, NULL};
    AQ_TRY_GOTO(aq_weights_writer_open(c->folder, name, tensors, all, metadata, &writer), out);
    do {
        status = aq_weights_writer_piece(writer);
    } while (status == AQ_AGAIN);
out:
    aq_weights_writer_close(writer);
    aq_free(memory);
    aq_unmap(copy, floats * sizeof(float));
    return status;
}

/* The bytes of a packed tensor, to the device. They must unpack to `values`, the `info->count` of the file. */
static enum aq_status take_bytes(const struct aq_checkpoint *c, const struct aq_weights *weights,
                                 const struct aq_tensor_info *info, const float *values)
{
    const uint64_t bytes = aq_stage_packed_bytes(info), count = info->count;
    char name[AQ_TENSOR_NAME_MAX + sizeof PACKED];
    void *memory;
    uint32_t index;
    packed_name(info, name);
    if (aq_weights_find(weights, name, &index) != AQ_OK)
        return aq_fail(AQ_CORRUPT, "checkpoint", "the file of frozen tensors has no tensor %s", name);
    AQ_TRY(aq_alloc(bytes > count * sizeof(float) ? bytes : count * sizeof(float), &memory));
    enum aq_status status = aq_weights_bytes(weights, index, memory, bytes);
    if (status == AQ_OK) status = aq_stage_packed_put(c->stage, info, memory);
    if (status == AQ_OK) status = aq_stage_get(c->stage, info, 0, count, memory);
    if (status == AQ_OK && memcmp(memory, values, count * sizeof(float)) != 0)
        status = aq_fail(AQ_CORRUPT, "checkpoint", "%s does not unpack to the values of %s", name, info->name);
    aq_free(memory);
    return status;
}

/* A packed tensor, to the device. */
static enum aq_status take_packed(const struct aq_checkpoint *c, const struct aq_weights *weights, uint32_t index,
                                  const struct aq_tensor_info *info)
{
    void *memory;
    AQ_TRY(aq_alloc(info->count * sizeof(float), &memory));
    enum aq_status status = aq_weights_read(weights, index, false, memory, info->count);
    for (uint64_t i = 0; status == AQ_OK && i < info->count; i++)
        if (!isfinite(((const float *)memory)[i]))
            status = aq_fail(AQ_CORRUPT, "checkpoint", "%s: value %" PRIu64 " is not finite", info->name, i);
    if (status == AQ_OK)
        status = aq_stage_packed_bytes(info) ? take_bytes(c, weights, info, memory)
                                             : aq_stage_put(c->stage, info, 0, info->count, memory);
    aq_free(memory);
    return status;
}

/*
 * All tensors of an open file, to the host, packed ones to the device. AQ_CORRUPT, AQ_MISMATCH: not what such a file
 * has.
 */
static enum aq_status take_all(const struct aq_checkpoint *c, const struct aq_weights *weights, const char *name,
                               float *values)
{
    const uint64_t before = aq_stage_saved_floats(c->stage);
    const char *format = aq_weights_metadata(weights, "format"), *digest = aq_weights_metadata(weights, "digest");
    char text[20];
    uint64_t have;
    if (!format || strcmp(format, FORMAT) != 0 || !digest)
        return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: is not a run's file of frozen tensors", c->folder,
                       name);
    for (uint32_t i = 0; i < aq_stage_frozen_count(c->stage); i++) {
        struct aq_tensor_info info;
        uint32_t index;
        aq_stage_frozen(c->stage, i, &info);
        if (aq_weights_find(weights, info.name, &index) != AQ_OK)
            return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: no tensor %s", c->folder, name, info.name);
        AQ_TRY(info.packed ? take_packed(c, weights, index, &info)
                           : aq_weights_read(weights, index, false, values + (info.offset - before), info.count));
    }
    AQ_TRY(digest_of(c, values, &have));
    snprintf(text, sizeof text, "%016" PRIx64, have);
    if (strcmp(text, digest) == 0) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "checkpoint", "%s/%s: is damaged: its bytes have digest %s, but it was written with %s",
                   c->folder, name, text, digest);
}

enum aq_status aq_checkpoint_frozen_read(const struct aq_checkpoint *c)
{
    const uint64_t bytes = aq_stage_frozen_floats(c->stage) * sizeof(float);
    struct aq_weights *weights = NULL;
    char name[NAME_BYTES];
    void *copy = NULL;
    float *values;
    if (aq_stage_frozen_count(c->stage) == 0) return AQ_OK;
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
