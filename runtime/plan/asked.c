/* asked.c -- stages and cuts of a model that is asked. See the header. */
#include "asked.h"

#include "checkpoint_adapters.h"
#include "stages/adapter_folder.h"
#include "stages/weights.h"

enum { TARGETS_BYTES = 8 << 10, FRAMES = 2 /* a step follows the one before: its frame, and room for the next */ };

struct aq_stage_config aq_asked_config(const struct aq_model_config *model, const struct aq_job *job,
                                       enum aq_stage_precision precision, const struct aq_asked_size *size)
{
    const bool trained_bf16 = job && job->model.residual == AQ_STAGE_BF16;
    return (struct aq_stage_config){.model = *model,
                                    .task = size->task,
                                    .B = size->B,
                                    .T = size->T,
                                    .slots = 1,
                                    .precision = precision,
                                    .residual_bf16 = trained_bf16 && precision == AQ_STAGE_BF16,
                                    .inference = true,
                                    .weights_16bit = size->writes,
                                    .logits_rows = size->writes ? 1 : 0,
                                    .pads_vocabulary = true,
                                    .extends = size->extends,
                                    .lengths = size->lengths,
                                    .parts = size->parts};
}

/* Training initializes a task's head at random if the file has none; answers of a random head would be meaningless. */
static enum aq_status check_trained(const struct aq_stage *stage, const struct aq_model_config *model, const char *path,
                                    const struct aq_adapter_folder *adapter)
{
    struct aq_weights *weights;
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_weights_open(path, &weights));
    for (uint32_t i = 0; status == AQ_OK && i < aq_stage_saved_count(stage); i++) {
        struct aq_tensor_info info;
        uint32_t index;
        aq_stage_saved(stage, i, &info);
        if (!info.fresh || aq_weights_find(weights, info.name, &index) == AQ_OK) continue;
        if (!adapter || aq_adapter_folder_find(adapter, model, info.name, &index) != AQ_OK)
            status = aq_fail(AQ_NOTFOUND, "model", "%s has no %s: it was not trained for this task", path, info.name);
    }
    aq_weights_close(weights);
    return status;
}

/* The model, with its adapter if there is one, was trained for the task; the adapter is of the model. */
static enum aq_status check(const struct aq_stage *stage, const struct aq_model_config *model, const char *path,
                            const char *adapter)
{
    struct aq_adapter_folder *folder = NULL;
    char targets[TARGETS_BYTES];
    enum aq_status status = AQ_OK;
    if (adapter) {
        AQ_TRY(aq_adapter_folder_open(adapter, &folder));
        status = aq_adapter_folder_match(folder, model, true, targets, sizeof targets);
    }
    if (status == AQ_OK) status = check_trained(stage, model, path, folder);
    aq_adapter_folder_close(folder);
    return status;
}

enum aq_status aq_asked_adapt(const char *adapter, struct aq_model_config *model)
{
    struct aq_adapter_folder *folder;
    uint32_t labels;
    if (!adapter) return AQ_OK;
    AQ_TRY(aq_adapter_folder_open(adapter, &folder));
    if (!aq_adapter_folder_ties(folder, model)) model->tied = AQ_TIED_NO;
    const enum aq_status status = aq_adapter_folder_labels(folder, model, &labels);
    if (status == AQ_OK && labels > 0 && labels != model->labels) {
        model->labels = labels;
        model->new_head = true;
    }
    aq_adapter_folder_close(folder);
    return status;
}

enum aq_status aq_asked_stage_open(struct aq_device *device, const struct aq_stage_config *config, const char *path,
                                   const char *adapter, struct aq_stage **out)
{
    struct aq_stage *stage;
    enum aq_status status;
    AQ_TRY(aq_stage_open(device, config, &stage));
    const struct aq_checkpoint checkpoint = {.device = device, .stage = stage};
    AQ_TRY_GOTO(check(stage, &config->model, path, adapter), out);
    AQ_TRY_GOTO(aq_checkpoint_import(&checkpoint, path, 0), out);
    if (adapter) AQ_TRY_GOTO(aq_adapters_merge(&checkpoint, &config->model, adapter), out);
    *out = stage;
    return AQ_OK;
out:
    aq_stage_close(stage);
    return status;
}

enum aq_status aq_asked_cut(const struct aq_plan *plan, const struct aq_stage_config *config, uint32_t e,
                            struct aq_edge_shape *out)
{
    const struct aq_edge_shape *of = &plan->edges[e].shape;
    struct aq_cut_shape cut;
    AQ_TRY(aq_model_cut(&config->model, plan->stages[e].layer_end, config->T, &cut));
    *out = (struct aq_edge_shape){.edge = e,
                                  .rows = cut.rows,
                                  .columns = cut.columns,
                                  .micro_batch = config->B,
                                  .batch = config->B,
                                  .send_frames = FRAMES,
                                  .receive_slots = FRAMES,
                                  .seed = of->seed,
                                  .forward = of->forward,
                                  .backward = of->backward};
    return AQ_OK;
}
