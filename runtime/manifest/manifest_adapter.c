/*
 * manifest_adapter.c -- a folder of PEFT's as lora.weights: it sets rank, scale and the adapted layers, so that the
 * manifest need not; keys that the manifest sets too must agree.
 *
 * Also the patterns of train.freeze and lora.targets: each names something, and something is left to train.
 *
 * A job with facts has all values, and the folder is not read (manifest_folder.c).
 */
#include <stdio.h>
#include <string.h>

#include "manifest.h"
#include "nearest.h"
#include "stages/adapter_folder.h"

enum { TARGETS_BYTES = 8 << 10, VOCABULARY_ANY = 256, WORDS_BYTES = 2048 };

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

/* Its texts become the job's. They name what they name in PEFT; a manifest cannot change them. */
static enum aq_status take_texts(struct aq_manifest *manifest, const struct aq_lora_config *there)
{
    struct aq_lora_config *here = &manifest->job.train.lora;
    const struct {
        const char *key, *from, **to;
    } texts[] = {{"lora.rank_pattern", there->ranks, &here->ranks},
                 {"lora.alpha_pattern", there->alphas, &here->alphas},
                 {"lora.modules_to_save", there->saved, &here->saved}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (given(manifest, texts[i].key))
            aq_manifest_error(manifest, texts[i].key,
                              "adapter_config.json (lora.weights) decides that; leave the key out");
        else if (texts[i].from)
            AQ_TRY(aq_pool_text(&manifest->pool, texts[i].from, strlen(texts[i].from), texts[i].to));
    }
    return AQ_OK;
}

/* The model is untied where the folder holds the embedding and the head apart. */
static void untie(struct aq_manifest *manifest)
{
    if (given(manifest, "model.tied"))
        aq_manifest_error(manifest, "model.tied",
                          "but adapter_config.json (lora.weights) trains the embedding or the head apart "
                          "(modules_to_save without ensure_weight_tying); set model.tied: untied");
    else
        aq_log("manifest", 1, "model.tied: untied, because lora.weights trains the embedding or the head apart");
    manifest->job.model.config.tied = AQ_TIED_NO;
}

/* Opens the folder and compares it with the model. *folder: also where it failed; or NULL. *apart: as of untie. */
static enum aq_status compare(const char *path, struct aq_model_config *model, struct aq_adapter_folder **folder,
                              bool *apart, char *targets)
{
    AQ_TRY(aq_adapter_folder_open(path, folder));
    *apart = !aq_adapter_folder_ties(*folder, model);
    if (*apart) model->tied = AQ_TIED_NO;
    AQ_TRY(aq_adapter_folder_trains(*folder, model));
    return aq_adapter_folder_match(*folder, model, false, targets, TARGETS_BYTES);
}

enum aq_status aq_manifest_adapter(struct aq_manifest *manifest)
{
    struct aq_job *job = &manifest->job;
    struct aq_adapter_folder *folder = NULL;
    struct aq_error_hold why;
    char targets[TARGETS_BYTES];
    bool apart = false;
    if (!job->train.lora_weights || job->facts.train_samples || manifest->errors.count) return AQ_OK;
    struct aq_model_config model = job->model.config;
    if (model.vocabulary == 0) model.vocabulary = VOCABULARY_ANY;
    aq_model_use_task(&model, job->model.task, model.labels);
    aq_error_hold(&why);
    enum aq_status status = aq_model_config_check(&model);
    if (status != AQ_OK) { /* reported by the check of the model */
        aq_error_release(&why);
        return AQ_OK;
    }
    status = compare(job->train.lora_weights, &model, &folder, &apart, targets);
    aq_error_release(&why);
    if (apart) untie(manifest);
    if (status != AQ_OK) aq_manifest_error(manifest, "lora.weights", "%s", why.text);
    if (!folder) return AQ_OK;
    take_numbers(manifest, aq_adapter_folder_lora(folder));
    enum aq_status kept = take_texts(manifest, aq_adapter_folder_lora(folder));
    aq_adapter_folder_close(folder);
    if (status == AQ_OK && given(manifest, "lora.targets"))
        aq_manifest_error(manifest, "lora.targets",
                          "lora.weights decides which layers have adapters; leave the key out");
    else if (kept == AQ_OK && status == AQ_OK && *targets)
        kept = aq_pool_text(&manifest->pool, targets, strlen(targets), &job->train.lora.targets);
    return kept;
}

void aq_manifest_nearest(const struct aq_model_config *model, uint32_t T, const char *unknown, char *out, size_t bytes)
{
    char words[WORDS_BYTES];
    uint32_t least = UINT32_MAX;
    *out = 0;
    for (uint32_t l = 0; *unknown && l < aq_model_layers(model); l++) {
        aq_model_freeze_words(model, T, l, words, sizeof words);
        for (char *word = words, *end; *word; word = end) {
            struct aq_nearest nearest = {.word = unknown};
            end = word + strcspn(word, " ");
            if (*end) *end++ = 0;
            aq_nearest_try(&nearest, word);
            if (!aq_nearest_of(&nearest) || nearest.distance >= least) continue;
            least = nearest.distance;
            snprintf(out, bytes, "%.*s", (int)bytes - 1, word);
        }
    }
}

/* A pattern of train.freeze, or of lora.targets, that names nothing. */
static void pattern_error(struct aq_manifest *manifest, const char *key, const struct aq_model_config *model,
                          const struct aq_freeze_pattern *pattern)
{
    char near[AQ_FREEZE_PART_MAX], layer[AQ_FREEZE_PART_MAX];
    if (pattern->copy) {
        aq_manifest_error(manifest, key,
                          "'%s' is the embedding's table here (model.tied): name that one, or set model.tied: untied",
                          pattern->text);
        return;
    }
    if (pattern->tensors == 0 && pattern->named) {
        aq_manifest_error(manifest, key, "'%s' names no layer that can have adapters, but %u other tensors",
                          pattern->text, pattern->named);
        return;
    }
    aq_manifest_nearest(model, manifest->job.train.T, pattern->unknown, near, sizeof near);
    aq_model_layer_name(model, 1, layer, sizeof layer);
    if (*near)
        aq_manifest_error(manifest, key, "'%s' names nothing of the model: it has no '%s'; did you mean '%s'?",
                          pattern->text, pattern->unknown, near);
    else
        aq_manifest_error(manifest, key,
                          "'%s' names nothing of the model: write a layer as aqpipe plan prints it ('%s'), or "
                          "consecutive parts of a tensor's name",
                          pattern->text, layer);
}

typedef bool pattern_reader(const struct aq_model_config *model, uint32_t T, const char *list, uint32_t index,
                            struct aq_freeze_pattern *out);

/* Every pattern of a list (NULL: none) names something. */
static void check_patterns(struct aq_manifest *manifest, const char *key, const struct aq_model_config *model,
                           const char *list, pattern_reader *read)
{
    const uint32_t T = manifest->job.train.T;
    struct aq_freeze_pattern pattern;
    uint32_t i = 0;
    if (!list) return;
    for (; i < AQ_FREEZE_PATTERNS_MAX && read(model, T, list, i, &pattern); i++)
        if (pattern.tensors == 0) pattern_error(manifest, key, model, &pattern);
    if (i == AQ_FREEZE_PATTERNS_MAX && read(model, T, list, i, &pattern))
        aq_manifest_error(manifest, key, "has more than %d patterns", AQ_FREEZE_PATTERNS_MAX);
}

/* Adapters with a trained length per row (DoRA). */
void aq_manifest_check_dora(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    for (uint32_t r = 0; job->train.lora.dora && r < aq_job_ranks(job); r++)
        if (aq_device_gpu(job->pipeline.stages[r].device) != AQ_GPU_NO) {
            aq_manifest_error(manifest, "lora.dora",
                              "is computed only on CPUs: stage %u has device %s; set device: cpu",
                              r % job->pipeline.stage_count, job->pipeline.stages[r].device);
            return;
        }
}

/* Each pattern of train.lr_patterns has a rate. */
static void check_lr_patterns(struct aq_manifest *manifest, const struct aq_model_config *model)
{
    const struct aq_job_train *train = &manifest->job.train;
    struct aq_freeze_pattern pattern;
    if (!train->lr_patterns) return;
    for (uint32_t i = 0; aq_model_rate_pattern(model, train->T, train->lr_patterns, i, &pattern); i++)
        if (pattern.rate == 0.0f || *pattern.text == '!')
            aq_manifest_error(manifest, "train.lr_patterns", "'%s' has no rate above 0: 'embedding = 3e-2'",
                              pattern.text);
    if (!(train->lr > 0))
        aq_manifest_error(manifest, "train.lr_patterns", "warm-up and decay are those of train.lr, which is 0");
}

/* Something is left to train, adapters fit their layers, and the model can have adapters. */
void aq_manifest_check_freeze(struct aq_manifest *manifest)
{
    const struct aq_job_train *train = &manifest->job.train;
    const bool adapts = train->lora.rank > 0;
    struct aq_model_config model = manifest->job.model.config;
    struct aq_freeze_pattern any;
    const uint32_t errors = manifest->errors.count;
    if (model.vocabulary == 0) model.vocabulary = VOCABULARY_ANY; /* what matters here are names */
    check_patterns(manifest, "train.freeze", &model, train->freeze, aq_model_freeze_pattern);
    check_lr_patterns(manifest, &model);
    if (manifest->errors.count == errors)
        check_patterns(manifest, "train.lr_patterns", &model, train->lr_patterns, aq_model_rate_pattern);
    aq_manifest_lora(manifest, &model);
    if (adapts) check_patterns(manifest, "lora.targets", &model, train->lora.targets, aq_model_lora_pattern);
    if (adapts && aq_model_lora_pattern(&model, train->T, "*", 0, &any) && any.tensors == 0)
        aq_manifest_error(manifest, "lora.rank", "%s has no layers that adapters are made for", model.kind);
    else if (manifest->errors.count == errors &&
             !aq_model_trains(&model, train->T, train->freeze, &train->lora, aq_model_layers(&model)))
        aq_manifest_error(manifest, "train.freeze", "freezes the whole model: nothing is left to train");
}
