/*
 * manifest_machines.c -- reduce.machine_first: can the replicas of a host average among themselves first? And what a
 * stage's device can compute.
 */
#include <stdio.h>
#include <string.h>

#include "manifest.h"

/* Two replicas that share a host at the first stage or at this one, but not at both. */
static bool apart(const struct aq_job *job, uint32_t stage, uint32_t *a, uint32_t *b)
{
    const uint32_t P = job->pipeline.stage_count, W = job->pipeline.replicas;
    for (*a = 0; *a < W; ++*a)
        for (*b = *a + 1; *b < W; ++*b)
            if (aq_job_same_host(job, *a * P, *b * P) != aq_job_same_host(job, *a * P + stage, *b * P + stage))
                return true;
    return false;
}

/* The optimizers that support it, as text of the message. */
static const char *who_fits(char *text, size_t bytes)
{
    text[0] = '\0';
    for (uint32_t i = 0; aq_optimizer_kind_name(i); i++) {
        const struct aq_optimizer_config config = {.kind = aq_optimizer_kind_name(i)};
        if (!aq_optimizer_config_machines(&config)) continue;
        snprintf(text + strlen(text), bytes - strlen(text), "%s%s", text[0] ? ", " : "", config.kind);
    }
    return text;
}

/*
 * reduce.machine_first: replicas of a machine must do the same in every stage, because the norm that clips their
 * gradients is of all stages; and means over machines must weigh all samples alike.
 */
void aq_manifest_machines(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t W = job->pipeline.replicas;
    uint32_t count[AQ_JOB_RANKS_MAX] = {0}, a, b;
    char kinds[128];
    if (!job->reduce.machine_first) return;
    if (!aq_optimizer_config_machines(&job->train.optimizer))
        aq_manifest_error(
            manifest, "reduce.machine_first",
            "does not fit train.optimizer %s, whose codec errors would belong to one replica of a machine; use %s",
            job->train.optimizer.kind, who_fits(kinds, sizeof kinds));
    for (uint32_t v = 0; v < W; v++)
        count[aq_job_machine(job, v)]++;
    for (uint32_t v = 0; v < W; v++)
        if (count[aq_job_machine(job, v)] != count[0]) {
            aq_manifest_error(manifest, "reduce.machine_first",
                              "the host of replica 0 has %u replicas, that of replica %u has %u: their means would "
                              "have different weights; put the same number on each host",
                              count[0], v, count[aq_job_machine(job, v)]);
            return;
        }
    for (uint32_t s = 1; s < job->pipeline.stage_count; s++)
        if (apart(job, s, &a, &b)) {
            aq_manifest_error(manifest, "reduce.machine_first",
                              "replicas %u and %u share a host at stage 0 or at stage %u, but not "
                              "at both",
                              a, b, s);
            return;
        }
}

/* Logits are the last stage's. */
void aq_manifest_check_logits(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t P = job->pipeline.stage_count;
    if (job->model.logits != AQ_LOGITS_16BIT) return;
    for (uint32_t r = P - 1; r < aq_job_ranks(job); r += P) {
        if (aq_device_gpu(job->pipeline.stages[r].device) != AQ_GPU_NO) continue;
        aq_manifest_error(manifest, "model.logits",
                          "16bit needs a GPU, and the last stage is on the CPU: write auto, or device: cuda there");
        return;
    }
}

/* A stage whose device is 'auto' may yet have a GPU: whoever opens it there sees. */
void aq_manifest_check_precision(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    if (job->model.precision != AQ_STAGE_TF32) return;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        if (aq_device_gpu(job->pipeline.stages[r].device) != AQ_GPU_NO) continue;
        aq_manifest_error(manifest, "model.precision",
                          "tf32 needs GPUs, and stage %u is on the CPU: set fp32, or device: cuda for every stage",
                          r % job->pipeline.stage_count);
        return;
    }
}

/* Optimizers and reductions that a GPU does not support, and NCCL on a CPU. 'auto' may turn out to be a GPU: its
 * worker checks. */
void aq_manifest_check_devices(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t P = job->pipeline.stage_count, W = job->pipeline.replicas;
    char why[AQ_OPTIMIZER_WHY_BYTES];
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const char *device = job->pipeline.stages[r].device;
        const enum aq_device_gpu gpu = aq_device_gpu(device);
        if (gpu == AQ_GPU_YES && job->train.optimizer.kind &&
            aq_optimizer_config_check_device(&job->train.optimizer, why) != AQ_OK) {
            aq_manifest_error(manifest, "train.optimizer", "stage %u is on a GPU: %s", r % P, why);
            return;
        }
        if (gpu == AQ_GPU_YES && job->reduce.machine_first) {
            aq_manifest_error(manifest, "reduce.machine_first",
                              "stage %u is on a GPU: replicas of a host average among themselves only on CPUs; set "
                              "false",
                              r % P);
            return;
        }
        if (gpu == AQ_GPU_NO && W > 1 && job->reduce.transport == AQ_TRANSPORT_NCCL) {
            aq_manifest_error(manifest, "reduce.transport",
                              "nccl needs GPUs, and stage %u is on the CPU: set auto, or device: cuda for every "
                              "replica",
                              r % P);
            return;
        }
        if (gpu == AQ_GPU_NO && P > 1 &&
            (job->link.transport == AQ_TRANSPORT_NCCL || job->link.transport == AQ_TRANSPORT_IPC)) {
            aq_manifest_error(manifest, "link.transport",
                              "%s needs GPUs, and stage %u is on the CPU: set auto, or device: cuda for every "
                              "stage",
                              job->link.transport == AQ_TRANSPORT_IPC ? "ipc" : "nccl", r % P);
            return;
        }
        const char *first = job->pipeline.stages[r % P].device;
        if (gpu != aq_device_gpu(first) && gpu != AQ_GPU_MAYBE && aq_device_gpu(first) != AQ_GPU_MAYBE) {
            aq_manifest_error(manifest, "pipeline.stages",
                              "stage %u has replicas on %s and on %s: CPUs and GPUs sum a gradient norm differently, "
                              "and their weights would drift apart",
                              r % P, first, device);
            return;
        }
    }
}
