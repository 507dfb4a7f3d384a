/* checkpoint_adapters_read.c -- PEFT's adapters into a stage, next to its weights or added to them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint_adapters.h"
#include "stages/adapter_folder.h"
#include "stages/publish.h"

struct reader {
    const struct aq_checkpoint *to;
    const struct aq_model_config *model;
    struct aq_adapter_folder *folder;
};

static void tensor_of(const struct reader *reader, uint32_t index, struct aq_tensor_info *out)
{
    const uint32_t saved = aq_stage_saved_count(reader->to->stage);
    index < saved ? aq_stage_saved(reader->to->stage, index, out)
                  : aq_stage_frozen(reader->to->stage, index - saved, out);
}

/* A tensor of the folder, in newly allocated fp32 memory. */
static enum aq_status values_read(const struct reader *reader, uint32_t index, bool transposed, float **out,
                                  struct aq_weights_info *info)
{
    const struct aq_weights *weights = aq_adapter_folder_weights(reader->folder);
    aq_weights_info(weights, index, info);
    float *values;
    AQ_TRY(AQ_NEW(info->count, &values));
    enum aq_status status = aq_weights_read(weights, index, transposed, values, info->count);
    for (uint64_t i = 0; status == AQ_OK && i < info->count; i++)
        if (!isfinite(values[i]))
            status = aq_fail(AQ_CORRUPT, "adapter", "%s: %s: value %" PRIu64 " of %" PRIu64 " is %s", info->file,
                             info->name, i, info->count, isnan(values[i]) ? "NaN" : "infinite");
    if (status == AQ_OK)
        *out = values;
    else
        aq_free(values);
    return status;
}

/* A tensor that the folder has as it is. */
static enum aq_status whole_read(const struct reader *reader, const struct aq_tensor_info *info)
{
    float *values;
    struct aq_weights_info have;
    uint32_t index;
    if (aq_adapter_folder_find(reader->folder, reader->model, info->name, &index) != AQ_OK) return AQ_OK;
    AQ_TRY(values_read(reader, index, info->transposed, &values, &have));
    enum aq_status status = AQ_OK;
    if (have.count != info->count)
        status = aq_fail(AQ_MISMATCH, "adapter", "%s: %s has %" PRIu64 " values, the model %" PRIu64, have.file,
                         have.name, have.count, info->count);
    if (status == AQ_OK) status = aq_stage_put(reader->to->stage, info, 0, info->count, values);
    aq_free(values);
    return status;
}

/* Does the name of an adapter's half follow from that of a matrix? */
static bool half_name(const char *tensor, char which, char *out, size_t bytes)
{
    static const char end[] = ".weight";
    const size_t count = strlen(tensor), less = sizeof end - 1;
    if (count <= less || strcmp(tensor + count - less, end) != 0) return false;
    return snprintf(out, bytes, "%.*s.lora_%c.weight", (int)(count - less), tensor, which) < (int)bytes;
}

/* w += s B A, w on the host. */
static void add_product(const struct aq_lora_config *lora, const float *a, const float *b, uint64_t in, uint64_t out,
                        bool out_in, float *w)
{
    const float scale = aq_lora_scale(lora);
    for (uint64_t o = 0; o < out; o++)
        for (uint64_t i = 0; i < in; i++) {
            float sum = 0;
            for (uint32_t r = 0; r < lora->rank; r++)
                sum += b[o * lora->rank + r] * a[r * in + i];
            w[out_in ? o * in + i : i * out + o] += scale * sum;
        }
}

/* Rows of w, the weights of one output each, are given the lengths m. */
static enum aq_status give_lengths(const float *m, uint64_t in, uint64_t out, bool out_in, float *w)
{
    double *squares;
    AQ_TRY(AQ_NEW(out, &squares));
    memset(squares, 0, out * sizeof *squares);
    aq_lora_squares(w, 0, in * out, in, out, out_in, squares);
    for (uint64_t o = 0; o < out; o++) {
        const float factor = aq_lora_factor(squares[o], m[o]);
        for (uint64_t i = 0; i < in; i++)
            w[out_in ? o * in + i : i * out + o] *= factor;
    }
    aq_free(squares);
    return AQ_OK;
}

/* A matrix that the folder adapts. */
static enum aq_status product_merge(const struct reader *reader, const struct aq_tensor_info *info)
{
    struct aq_lora_config lora;
    float *a = NULL, *b = NULL, *m = NULL;
    char name[AQ_TENSOR_NAME_MAX];
    const char *names[] = {info->name};
    struct aq_weights_info of_a, of_b, of_m;
    uint32_t index;
    bool out_in = false;
    void *w = NULL;
    enum aq_status status;
    if (!half_name(info->name, 'A', name, sizeof name)) return AQ_OK;
    if (aq_adapter_folder_find(reader->folder, reader->model, name, &index) != AQ_OK) return AQ_OK;
    aq_lora_of(aq_adapter_folder_lora(reader->folder), reader->model, info->name, &lora);
    AQ_TRY_GOTO(values_read(reader, index, false, &a, &of_a), out);
    (void)half_name(info->name, 'B', name, sizeof name);
    AQ_TRY_GOTO(aq_adapter_folder_find(reader->folder, reader->model, name, &index), out);
    AQ_TRY_GOTO(values_read(reader, index, false, &b, &of_b), out);
    AQ_TRY_GOTO(aq_publish_out_in(reader->model, names, 1, &out_in), out);
    AQ_TRY_GOTO(aq_alloc(info->count * sizeof(float), &w), out);
    AQ_TRY_GOTO(aq_stage_get(reader->to->stage, info, 0, info->count, w), out);
    add_product(&lora, a, b, of_a.shape[1], of_b.shape[0], out_in, w);
    if (lora.dora) {
        (void)half_name(info->name, 'M', name, sizeof name);
        AQ_TRY_GOTO(aq_adapter_folder_find(reader->folder, reader->model, name, &index), out);
        AQ_TRY_GOTO(values_read(reader, index, false, &m, &of_m), out);
        if (of_m.count != of_b.shape[0])
            AQ_TRY_GOTO(aq_fail(AQ_MISMATCH, "adapter",
                                "%s: %s has %" PRIu64 " values, and its lora_B %" PRIu64 " rows", of_m.file, of_m.name,
                                of_m.count, of_b.shape[0]),
                        out);
        AQ_TRY_GOTO(give_lengths(m, of_a.shape[1], of_b.shape[0], out_in, w), out);
    }
    status = aq_stage_put(reader->to->stage, info, 0, info->count, w);
out:
    aq_free(a);
    aq_free(b);
    aq_free(m);
    aq_free(w);
    return status;
}

typedef enum aq_status taker(const struct reader *reader, const struct aq_tensor_info *info);

/* Every tensor of the stage. */
static enum aq_status take_all(const struct aq_checkpoint *to, const struct aq_model_config *model, const char *path,
                               taker *take)
{
    struct reader reader = {.to = to, .model = model};
    const uint32_t all = aq_stage_saved_count(to->stage) + aq_stage_frozen_count(to->stage);
    enum aq_status status;
    AQ_TRY(aq_adapter_folder_open(path, &reader.folder));
    for (uint32_t i = 0; i < all; i++) {
        struct aq_tensor_info info;
        tensor_of(&reader, i, &info);
        AQ_TRY_GOTO(take(&reader, &info), out);
    }
    AQ_TRY_GOTO(aq_stage_frozen_changed(to->stage, NULL), out);
    status = aq_stage_parameters_changed(to->stage, NULL);
out:
    aq_adapter_folder_close(reader.folder);
    return status;
}

enum aq_status aq_adapters_import(const struct aq_checkpoint *checkpoint, const struct aq_model_config *model,
                                  const char *path)
{
    return take_all(checkpoint, model, path, whole_read);
}

static enum aq_status both(const struct reader *reader, const struct aq_tensor_info *info)
{
    AQ_TRY(product_merge(reader, info));
    return whole_read(reader, info);
}

enum aq_status aq_adapters_merge(const struct aq_checkpoint *checkpoint, const struct aq_model_config *model,
                                 const char *path)
{
    return take_all(checkpoint, model, path, both);
}
