/*
 * plan_reduce.c -- bytes between the replicas of a stage in a step, by the formula of what the optimizer sends; and
 * what carries them, and those between stages.
 */
#include <string.h>

#include "plan_private.h"

/* Once from every rank to the owners of the chunks, once from the owners to every rank. */
static uint64_t both_ways(uint64_t bytes, uint64_t W)
{
    return 2 * (W - 1) * (bytes / W);
}

/* Of all values in a codec, in the pieces that they are coded in; 0: the codec is invalid (the check of the job
 * fails). */
static uint64_t coded_bytes(const struct aq_grad_codec_config *config, uint64_t parameters)
{
    const struct aq_optimizer_tensor whole = {.count = parameters};
    struct aq_grad_codec *codec;
    if (aq_grad_codec_open(config, &whole, 1, parameters, &codec) != AQ_OK) return 0;
    const uint64_t bytes = aq_grad_codec_bytes_pieces(codec, 0, parameters);
    aq_grad_codec_close(codec);
    return bytes;
}

uint32_t aq_plan_reduce_every(const struct aq_plan *plan)
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    return plan->replicas > 1 && aq_optimizer_config_local(config) ? config->outer_every : 1;
}

uint32_t aq_plan_reduce_delay(const struct aq_plan *plan)
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    return plan->replicas > 1 && aq_optimizer_config_local(config) ? config->outer_delay : 0;
}

uint64_t aq_plan_travel_bytes(const struct aq_plan *plan, uint64_t parameters)
{
    return aq_plan_reduce_delay(plan) > 0 ? parameters * sizeof(float) : 0;
}

uint64_t aq_plan_travel_errors(const struct aq_plan *plan, uint64_t parameters)
{
    const struct aq_optimizer_tensor whole = {.count = parameters, .decay = true};
    const struct aq_optimizer_group group = {.rank = 0, .size = plan->replicas};
    struct aq_optimizer_config without = plan->job->train.optimizer;
    if (aq_plan_reduce_delay(plan) == 0) return 0;
    without.error_feedback = without.retries = false;
    return aq_plan_optimizer_bytes(plan, parameters) - aq_optimizer_measure(&without, &whole, 1, parameters, &group);
}

uint64_t aq_plan_coded_bytes(const struct aq_plan *plan, uint32_t s, const struct aq_grad_codec_config *codec)
{
    return plan->replicas == 1 ? 0 : both_ways(coded_bytes(codec, plan->stages[s].size.parameters), plan->replicas);
}

/* Of a run: local steps end with an outer step, however short the last round is. */
uint64_t aq_plan_reductions(const struct aq_plan *plan)
{
    const uint32_t every = aq_plan_reduce_every(plan);
    return plan->replicas > 1 ? (plan->steps + every - 1) / every : 0;
}

uint64_t aq_plan_reductions_bytes(const struct aq_plan *plan, uint32_t s, uint64_t times)
{
    return both_ways(aq_optimizer_traffic_bytes(&plan->stages[s].traffic, times), aq_job_reducers(plan->job));
}

enum aq_status aq_plan_traffic(const struct aq_job *job, struct aq_plan_stage *stage)
{
    const uint32_t W = aq_job_reducers(job);
    struct aq_tensor_info *infos;
    uint32_t count;
    void *memory = NULL;
    if (W == 1) return AQ_OK;
    AQ_TRY(aq_stage_list(&stage->config, &infos, &count));
    enum aq_status status = aq_alloc((count + (size_t)1) * sizeof(struct aq_optimizer_tensor), &memory);
    struct aq_optimizer_tensor *tensors = memory;
    for (uint32_t i = 0; status == AQ_OK && i < count; i++)
        tensors[i] = (struct aq_optimizer_tensor){.offset = infos[i].offset,
                                                  .count = infos[i].count,
                                                  .decay = infos[i].decay,
                                                  .rows = infos[i].dimensions == 2 ? infos[i].shape[0] : 0,
                                                  .name = infos[i].name};
    if (status == AQ_OK)
        status = aq_optimizer_config_traffic(&job->train.optimizer, tensors, count, stage->size.parameters, W,
                                             &stage->traffic);
    aq_free(memory);
    aq_free(infos);
    return status;
}

uint64_t aq_plan_reduce_bytes(const struct aq_plan *plan, uint32_t s)
{
    const struct aq_optimizer_traffic *traffic = &plan->stages[s].traffic;
    uint64_t now_and_then = traffic->every ? traffic->every_bytes / traffic->every : 0;
    if (traffic->measure_every) now_and_then += traffic->measure_bytes / traffic->measure_every;
    return both_ways(traffic->step_bytes + now_and_then, aq_job_reducers(plan->job));
}

uint64_t aq_plan_warmup_bytes(const struct aq_plan *plan, uint32_t s)
{
    const uint64_t steps = aq_plan_warmup_steps(plan);
    const uint64_t bytes = steps ? aq_optimizer_traffic_warm(&plan->stages[s].traffic, steps) / steps : 0;
    return both_ways(bytes, aq_job_reducers(plan->job));
}

uint64_t aq_plan_warmup_steps(const struct aq_plan *plan)
{
    const uint64_t steps = plan->stages[0].traffic.warmup_steps;
    return steps < plan->steps ? steps : plan->steps;
}

uint64_t aq_plan_warmup_most(const struct aq_plan *plan)
{
    uint64_t most = 0;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        most = aq_plan_warmup_bytes(plan, s) > most ? aq_plan_warmup_bytes(plan, s) : most;
    return most;
}

bool aq_plan_never_compresses(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    const struct aq_optimizer_traffic *traffic = &plan->stages[0].traffic;
    const char *remedy = "fewer optimizer.warmup_steps";
    char size[AQ_TEXT_NUMBER];
    if (plan->steps == 0 || traffic->falling > 0 || aq_plan_warmup_steps(plan) < plan->steps) return false;
    if (!text) return true;
    if (traffic->warmup_least) remedy = "optimizer.freeze_ratio: 0 with optimizer.warmup_steps, or a lower train.beta2";
    if (config->low_rank) remedy = "a lower reduce.start_step";
    aq_text_add(text, "%s never compresses in this job. Its warm-up takes %s%llu steps, and the job has %llu: ",
                config->low_rank ? "PowerSGD" : config->kind, traffic->warmup_least ? "at least " : "",
                (unsigned long long)traffic->warmup_steps, (unsigned long long)plan->steps);
    aq_text_add(text, "all send fp32 gradients, up to %s per step. Remedy: %s",
                aq_text_size(aq_plan_warmup_most(plan), size), remedy);
    return true;
}

enum aq_transport_kind aq_plan_reduce_transport(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    bool gpu = false;
    for (uint32_t r = 0; r < plan->ranks; r++)
        gpu = gpu || aq_device_gpu(job->pipeline.stages[r].device) != AQ_GPU_NO;
    if (!gpu || aq_plan_reduce_delay(plan) > 0) return AQ_TRANSPORT_LINKS;
    if (job->reduce.transport != AQ_TRANSPORT_AUTO) return job->reduce.transport;
    return job->link.rate_mbps > 0 ? AQ_TRANSPORT_LINKS : AQ_TRANSPORT_AUTO;
}

enum aq_transport_kind aq_plan_edge_transport(const struct aq_plan *plan, uint32_t edge)
{
    const enum aq_transport_kind first = aq_job_edge_transport(plan->job, edge);
    for (uint32_t rank = edge; rank < plan->ranks; rank += plan->stage_count)
        if (aq_job_edge_transport(plan->job, rank) != first) return AQ_TRANSPORT_AUTO;
    return first;
}

bool aq_plan_carries(const struct aq_plan *plan, uint32_t edge)
{
    const enum aq_transport_kind transport = aq_plan_edge_transport(plan, edge);
    return transport == AQ_TRANSPORT_NCCL || transport == AQ_TRANSPORT_IPC;
}
