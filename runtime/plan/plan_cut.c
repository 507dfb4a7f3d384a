/*
 * plan_cut.c -- the layers of each stage: as the manifest sets them, or cut so that the dearest stage is the cheapest.
 *
 * The automatic cut minimizes the largest sum of flops (forward and backward) of one stage over all cuts into P parts,
 * by dynamic programming; of equal cuts the one that ends its stages first wins, so that every rank finds the same. If
 * stages differ, or layers were measured, plan_balance.c cuts again.
 */
#include <float.h>

#include "plan_private.h"

enum aq_status aq_plan_layer_size(const struct aq_job *job, const struct aq_model_config *model, uint32_t layer,
                                  struct aq_stage_size *out)
{
    const struct aq_stage_config config = {.model = *model,
                                           .task = job->model.task,
                                           .layer_first = layer,
                                           .layer_end = layer + 1,
                                           .B = job->train.micro_batch,
                                           .T = job->train.T,
                                           .slots = 1,
                                           .precision = job->model.precision,
                                           .residual_bf16 = job->model.residual == AQ_STAGE_BF16,
                                           .recompute = job->model.recompute,
                                           .freeze = job->train.freeze,
                                           .frozen_store = job->train.frozen_store,
                                           .lora = job->train.lora};
    return aq_stage_measure(&config, out);
}

bool aq_plan_logits_16bit(const struct aq_job *job, uint32_t s)
{
    if (aq_device_gpu(job->pipeline.stages[s].device) == AQ_GPU_NO) return false;
    if (job->model.logits == AQ_LOGITS_AUTO) return job->model.precision == AQ_STAGE_FP16;
    return job->model.logits == AQ_LOGITS_16BIT;
}

enum aq_status aq_plan_stage_measure(const struct aq_job *job, uint32_t s, struct aq_plan_stage *stage)
{
    struct aq_stage_config config = stage->config;
    if (aq_device_gpu(job->pipeline.stages[s].device) == AQ_GPU_MAYBE) config.logits_16bit = false;
    AQ_TRY(aq_stage_measure(&config, &stage->size));
    return aq_plan_traffic(job, stage);
}

static enum aq_status layer_flops(const struct aq_job *job, const struct aq_model_config *model, uint32_t layers,
                                  double *sums)
{
    sums[0] = 0;
    for (uint32_t l = 0; l < layers; l++) {
        struct aq_stage_size size;
        AQ_TRY(aq_plan_layer_size(job, model, l, &size));
        sums[l + 1] = sums[l] + size.flops_forward + size.flops_backward;
    }
    return AQ_OK;
}

/*
 * best[p][l]: the largest stage when the first l layers are cut into p parts; from[p][l]: the first layer of the last
 * part. Row by row, P rows of layers + 1 entries.
 */
static void balance(const double *sums, uint32_t layers, uint32_t P, double *best, uint32_t *from)
{
    const uint32_t width = layers + 1;
    for (uint32_t l = 0; l <= layers; l++)
        best[width + l] = l ? sums[l] : DBL_MAX;
    for (uint32_t p = 2; p <= P; p++)
        for (uint32_t l = 0; l <= layers; l++) {
            double least = DBL_MAX;
            uint32_t where = 0;
            for (uint32_t k = p - 1; k < l; k++) {
                const double before = best[(p - 1) * width + k], last = sums[l] - sums[k];
                const double worst = before > last ? before : last;
                if (worst < least) {
                    least = worst;
                    where = k;
                }
            }
            best[p * width + l] = least;
            from[p * width + l] = where;
        }
}

static enum aq_status cut_automatic(const struct aq_job *job, const struct aq_model_config *model,
                                    struct aq_plan_cut *out)
{
    const uint32_t layers = aq_model_layers(model), P = job->pipeline.stage_count;
    const size_t cells = (size_t)(P + 1) * (layers + 1);
    double *sums = NULL, *best = NULL;
    uint32_t *from = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(AQ_NEW(layers + 1, &sums), out);
    AQ_TRY_GOTO(AQ_NEW(cells, &best), out);
    AQ_TRY_GOTO(AQ_NEW(cells, &from), out);
    AQ_TRY_GOTO(layer_flops(job, model, layers, sums), out);
    balance(sums, layers, P, best, from);
    uint32_t at = layers;
    for (uint32_t p = P; p >= 1; p--) {
        out->end[p - 1] = at;
        at = p > 1 ? from[(size_t)p * (layers + 1) + at] : 0;
    }
out:
    aq_free(from);
    aq_free(best);
    aq_free(sums);
    return status;
}

enum aq_status aq_plan_cut(const struct aq_job *job, const struct aq_model_config *model, struct aq_plan_cut *out)
{
    *out = (struct aq_plan_cut){{0}};
    if (job->pipeline.automatic) return cut_automatic(job, model, out);
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++)
        out->end[s] = job->pipeline.stages[s].layer_end;
    return AQ_OK;
}
