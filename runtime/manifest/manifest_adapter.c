/*
 * manifest_adapter.c -- a folder of PEFT's as lora.weights: it sets rank, scale and the adapted layers, so that the
 * manifest need not; keys that the manifest sets too must agree.
 *
 * A job with facts has all values, and the folder is not read (manifest_folder.c).
 */
#include <string.h>

#include "manifest.h"
#include "stages/adapter_folder.h"

enum { TARGETS_BYTES = 8 << 10, VOCABULARY_ANY = 256 };

static bool given(const struct aq_manifest *manifest, const char *key)
{
    return aq_yaml_find(manifest->root, key) != NULL;
}

static void take_numbers(struct aq_manifest *manifest, const struct aq_lora_config *there)
{
    struct aq_lora_config *here = &manifest->job.train.lora;
    static const char says[] = "but adapter_config.json (lora.weights) has %g; leave the key out";
    if (given(manifest, "lora.rank") && here->rank != there->rank)
        aq_manifest_error(manifest, "lora.rank", says, (double)there->rank);
    if (given(manifest, "lora.alpha") && here->alpha != there->alpha)
        aq_manifest_error(manifest, "lora.alpha", says, (double)there->alpha);
    if (given(manifest, "lora.rslora") && here->rslora != there->rslora)
        aq_manifest_error(manifest, "lora.rslora", "but adapter_config.json (lora.weights) has %s; leave the key out",
                          there->rslora ? "true" : "false");
    if (given(manifest, "lora.dora") && here->dora != there->dora)
        aq_manifest_error(manifest, "lora.dora", "but adapter_config.json (lora.weights) has %s; leave the key out",
                          there->dora ? "true" : "false");
    here->rank = there->rank;
    here->alpha = there->alpha;
    here->rslora = there->rslora;
    here->dora = there->dora;
    if (!given(manifest, "lora.dropout")) here->dropout = there->dropout; /* a choice of training */
}

enum aq_status aq_manifest_adapter(struct aq_manifest *manifest)
{
    struct aq_job *job = &manifest->job;
    struct aq_adapter_folder *folder;
    struct aq_lora_config numbers = {.rank = 0};
    struct aq_error_hold why;
    char targets[TARGETS_BYTES];
    if (!job->train.lora_weights || job->facts.train_samples || manifest->errors.count) return AQ_OK;
    struct aq_model_config model = job->model.config;
    if (model.vocabulary == 0) model.vocabulary = VOCABULARY_ANY;
    aq_error_hold(&why);
    enum aq_status status = aq_model_config_check(&model);
    if (status != AQ_OK) { /* reported by the check of the model */
        aq_error_release(&why);
        return AQ_OK;
    }
    status = aq_adapter_folder_open(job->train.lora_weights, &folder);
    if (status == AQ_OK) {
        numbers = *aq_adapter_folder_lora(folder);
        status = aq_adapter_folder_trains(folder, &model);
        if (status == AQ_OK) status = aq_adapter_folder_match(folder, &model, false, targets, sizeof targets);
        aq_adapter_folder_close(folder);
    }
    aq_error_release(&why);
    if (numbers.rank) take_numbers(manifest, &numbers); /* its errors are for the user: not held */
    if (status != AQ_OK)
        aq_manifest_error(manifest, "lora.weights", "%s", why.text);
    else if (given(manifest, "lora.targets"))
        aq_manifest_error(manifest, "lora.targets",
                          "lora.weights decides which layers have adapters; leave the key out");
    else if (*targets)
        return aq_pool_text(&manifest->pool, targets, strlen(targets), &job->train.lora.targets);
    return AQ_OK;
}
