/*
 * manifest_split.c -- split learning: does the pipeline fit the turns of clients, and the data and the model the mode?
 */
#include <string.h>

#include "manifest.h"
#include "net/tls.h"
#include "stages/dataset.h"
#include "stages/task.h"

/* With labels at the server they must be what a sample has, and no part of its input: one class. */
static void check_labels(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, &job->data.image, fields);
    bool has = false;
    for (uint32_t i = 0; i < count; i++)
        has |= strcmp(fields[i].name, "labels") == 0 && fields[i].type == AQ_FIELD_I32 && fields[i].count == 1;
    if (!has)
        aq_manifest_error(
            manifest, "split.labels",
            "server needs samples with one label each (data.kind: image_files, cifar10, cifar100 or tsv): "
            "other targets would be the inputs themselves");
    const char *task = job->model.task ? job->model.task : aq_model_task(job->model.config.kind);
    const struct aq_task *of = aq_task_find(task); /* NULL: refused elsewhere, as an unknown model.kind is */
    if (has && of && aq_task_numbers(of))
        aq_manifest_error(manifest, "split.labels",
                          "server takes classes, and the labels of model.task: %s are numbers; write client", task);
}

/* With global sampling all clients train at once, and the gradients of their ends pass the server in each step. */
static void check_global(struct aq_manifest *manifest)
{
    static const char *const key = "split.mode";
    const struct aq_job *job = &manifest->job;
    if (job->link.port_first || job->pipeline.stages[1].address)
        aq_manifest_error(
            manifest, key,
            "global allows no link.port_first and no address of stage 1: each turn listens on its own port");
    if (job->split.clients > AQ_JOB_TURNS_MAX)
        aq_manifest_error(manifest, key, "global trains all clients at once, at most %u; split.clients is %u",
                          AQ_JOB_TURNS_MAX, job->split.clients);
    if (aq_dataset_kind_masks(job->data.kind))
        aq_manifest_error(manifest, key,
                          "global needs samples whose targets all count: data.kind: %s masks some, and the server "
                          "cannot know how many",
                          job->data.kind);
}

/* A GPU is one job's at a time, and turns at once are as many jobs. */
static void check_gpu(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    if (aq_job_turns(job) > 1 && aq_device_gpu(job->pipeline.stages[1].device) == AQ_GPU_YES)
        aq_manifest_error(manifest, "split.clients",
                          "%u turns at once cannot have stage 1 on one GPU, which is one turn's at a time; write "
                          "device: cpu for it, or %s",
                          aq_job_turns(job),
                          aq_job_global(job) ? "split.mode: splitfed1" : "split.parallel: 1");
}

/* A turn is a pipeline of three stages, whose ends are one client's and dial; with labels at the server of two. */
void aq_manifest_check_split(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_job_stage *stages = job->pipeline.stages;
    const bool labels = job->split.labels == AQ_SPLIT_LABELS_SERVER;
    const uint32_t wanted = labels ? 2 : 3;
    if (job->split.clients == 0) return;
    if (labels) check_labels(manifest);
    if (job->pipeline.stage_count != wanted || job->pipeline.replicas != 1) {
        aq_manifest_error(manifest, "split.clients",
                          "needs pipeline.stages: %s and no replicas; here are %u stages and %u replicas",
                          labels ? "2 (a client's first and the server's, which has the labels)"
                                 : "3 (a client's first, the server's, the client's last)",
                          job->pipeline.stage_count, job->pipeline.replicas);
        return;
    }
    if (!stages[0].dials || stages[1].dials || (!labels && !stages[2].dials))
        aq_manifest_error(manifest, "split.clients",
                          "needs `dials: true` in pipeline.stages 0%s, and not in 1: clients dial, the server listens",
                          labels ? "" : " and 2");
    for (uint32_t s = 0; s < wanted; s++)
        if (stages[s].host) aq_manifest_error(manifest, "split.clients", "allows no host in pipeline.stages.%u", s);
    if (job->split.parallel > 1 && (job->link.port_first || stages[1].address))
        aq_manifest_error(manifest, "split.parallel",
                          "allows no link.port_first and no address of stage 1: each turn listens on its own port");
    if (job->split.mode == AQ_SPLIT_GLOBAL) check_global(manifest);
    check_gpu(manifest);
    if (job->split.client && !aq_tls_host_good(job->split.client))
        aq_manifest_error(manifest, "split.client", "is not a site name: use 1 to 63 of a-z 0-9 . _ - :");
}

/* The statistics of batch norms must fit the model. */
void aq_manifest_check_statistics(struct aq_manifest *manifest)
{
    static const char *const key = "split.statistics";
    const struct aq_job *job = &manifest->job;
    if (job->split.statistics == AQ_SPLIT_AVERAGED || job->split.clients == 0) return;
    const bool keeps = aq_model_keeps_statistics(&job->model.config, job->train.T);
    if (job->split.statistics == AQ_SPLIT_GROUP && keeps)
        aq_manifest_error(manifest, key,
                          "group needs a model without batch norms: a resnet with model.norm_groups (32 as published)");
    else if (job->split.statistics == AQ_SPLIT_LOCAL && !keeps)
        aq_manifest_error(manifest, key, "local needs a model with batch norms: this one keeps no statistics");
}

/* Padding may cross the cuts only where it changes nothing of what is before it, in any layer of the server. */
void aq_manifest_check_pad(struct aq_manifest *manifest)
{
    static const char *const key = "split.pad";
    const struct aq_job *job = &manifest->job;
    const struct aq_job_data *data = &job->data;
    if (!job->split.pad || job->split.clients == 0) return;
    if (!aq_dataset_kind_lengths(data->kind))
        aq_manifest_error(manifest, key, "hides lengths, and all samples of data.kind: %s are alike; leave it out",
                          data->kind);
    else if (!aq_model_causal(&job->model.config))
        aq_manifest_error(manifest, key,
                          "needs a decoder: the server's layers of %s see the tokens behind each token, and must know "
                          "which are padding",
                          job->model.config.kind);
    else if (aq_dataset_kind_masks(data->kind) && data->pack && data->pack_mask)
        aq_manifest_error(manifest, key,
                          "does not go with data.pack_mask: packed conversations do not see each other, so the server "
                          "must know where each begins; write data.pack: false, or data.pack_mask: false");
}
