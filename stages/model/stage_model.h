/*
 * stage_model.h -- what a model must tell stage.c; private to this folder.
 *
 * A model is a const table: its layers, its tensors in order, where its memory goes, and forward and backward of any
 * range of its layers. stage.c owns the flat parameter and gradient buffers, the slots and the workspace, and checks
 * the callers. A new model is one family of files model_<name>*.c and one line in models.def.
 */
#ifndef STAGE_MODEL_H
#define STAGE_MODEL_H

#include "aqsgd/device_math.h"
#include "stages/stage.h"

enum { PUBLISHED_CONFIG_BYTES = 8192 };

struct stage_memory {
    uint64_t slot_bytes, workspace_bytes;
    double flops_forward, flops_backward;
};

struct stage_model {
    const char *kind;
    void (*config_default)(struct aq_model_config *out);
    enum aq_status (*config_check)(const struct aq_model_config *model);
    uint32_t (*layers)(const struct aq_model_config *model);
    void (*layer_name)(const struct aq_model_config *model, uint32_t layer, char *text, size_t bytes);
    void (*cut)(const struct aq_model_config *model, uint32_t layer_end, uint32_t tokens, struct aq_cut_shape *out);

    /* The tensors of the stage, in order, with offsets; returns how many. out NULL: only counts. */
    uint32_t (*tensors)(const struct aq_stage_config *config, struct aq_tensor_info *out);
    /* Normal with this deviation, or (0) a constant; *name is the tensor whose stream of numbers it takes. */
    void (*initial)(const struct aq_stage_config *config, const struct aq_tensor_info *tensor, float *std, float *value,
                    const char **name);
    void (*measure)(const struct aq_stage_config *config, struct stage_memory *out);
    /* As stages/publish.h; json has room for PUBLISHED_CONFIG_BYTES, *count are used. */
    void (*publish_name)(const char *tensor, char *out, size_t bytes);
    enum aq_status (*publish_config)(const struct aq_model_config *model, bool tied, int32_t end_of_text, char *json,
                                     size_t *count);

    enum aq_status (*open)(struct aq_stage *stage, void **state); /* buffers of the stage are there already */
    void (*close)(void *state);
    enum aq_status (*forward)(void *state, uint32_t slot, const struct aq_stage_input *input, float *y,
                              struct aq_stage_loss *loss, struct aq_stream *stream);
    void (*loss)(void *state, uint32_t slot, struct aq_stage_loss *out); /* of what the stream has passed */
    enum aq_status (*backward)(void *state, uint32_t slot, const float *dy, float *dx, struct aq_stream *stream);
    enum aq_status (*logits)(void *state, uint32_t slot, uint32_t position, float *logits, struct aq_stream *stream);
};

/* What lies between a stage's products, and what the products do with it. */
static inline enum aq_element stage_type(enum aq_stage_precision precision)
{
    return precision == AQ_STAGE_BF16 ? AQ_BF16 : precision == AQ_STAGE_FP16 ? AQ_F16 : AQ_F32;
}

static inline enum aq_element stage_compute(enum aq_stage_precision precision)
{
    return precision == AQ_STAGE_TF32 ? AQ_TF32 : stage_type(precision);
}

/* The model of that kind, or NULL. */
const struct stage_model *stage_model_find(const char *kind);

/* The tensors of a stage, in order, into memory of aq_alloc. The config is one that was checked. AQ_NOMEM. */
enum aq_status aq_stage_tensors(const struct aq_stage_config *config, struct aq_tensor_info **tensors, uint32_t *count);

struct aq_stage {
    struct aq_device *device;
    const struct stage_model *model;
    struct aq_stage_config config;
    struct aq_stage_size size;
    struct aq_tensor_info *tensors;
    uint32_t tensor_count;
    struct aq_range *spans;        /* where each tensor lies */
    double *squares;               /* of each tensor's gradient, between the device's sums and theirs */
    float *parameters, *gradients; /* flat; gradients NULL for inference */
    uint16_t *rounded;             /* parameters in the products' 16 bits, where the device wants them so */
    void *slots;                   /* config.slots times size.slot_bytes */
    void *workspace;
    bool *forwarded; /* of each slot: a backward may follow */
    void *state;
};

#endif
