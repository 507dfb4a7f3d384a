/*
 * manifest_lora.c -- the keys of adapters: do they go together, and do their names name something of the model?
 *
 * In PEFT an embedding or a head that is saved whole is a tensor of its own, tied model or not. So is it here, unless
 * the manifest sets model.tied.
 */
#include <string.h>

#include "manifest.h"

enum { PROBLEM_BYTES = 512, VOCABULARY_ANY = 256 };

/* A name that names nothing. */
static void name_error(struct aq_manifest *manifest, const char *key, const struct aq_model_config *model,
                       const struct aq_lora_name *name, const char *what)
{
    char near[AQ_FREEZE_PART_MAX];
    const char *dot = strrchr(name->text, '.');
    aq_manifest_nearest(model, manifest->job.train.T, dot ? dot + 1 : name->text, near, sizeof near);
    if (name->copy)
        aq_manifest_error(manifest, key,
                          "'%s' is the embedding's table here (model.tied): name that one, or set model.tied: untied",
                          name->text);
    else if (name->tensors)
        aq_manifest_error(manifest, key, "'%s' names %u tensors, and none of them has an adapter (lora.targets)",
                          name->text, name->tensors);
    else if (*near && (!dot || strcmp(near, dot + 1) != 0) && strcmp(near, name->text) != 0)
        aq_manifest_error(manifest, key, "'%s' names %s: did you mean '%s'?", name->text, what, near);
    else
        aq_manifest_error(manifest, key, "'%s' names %s: write the name of a module, or the end of one", name->text,
                          what);
}

/* Every name of a text names something; those of adapters (counts) an adapter. */
static void check_names(struct aq_manifest *manifest, const char *key, const struct aq_model_config *model,
                        const char *text, bool adapters)
{
    const struct aq_job_train *train = &manifest->job.train;
    struct aq_lora_name name;
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; status == AQ_OK; i++) {
        status = aq_lora_name(&train->lora, model, train->T, text, i, &name);
        if (status == AQ_OK && (adapters ? name.adapters : name.tensors) == 0)
            name_error(manifest, key, model, &name, adapters ? "no adapter" : "no module of the model");
    }
    if (status != AQ_NOTFOUND) aq_manifest_error(manifest, key, "no memory to find its names");
}

/* Are they numbers for names? */
static void check_numbers(struct aq_manifest *manifest, const char *key, const char *json, double most, bool whole)
{
    char problem[PROBLEM_BYTES];
    if (json && !aq_lora_numbers(json, most, whole, problem, sizeof problem))
        aq_manifest_error(manifest, key, "expected %s", problem);
}

void aq_manifest_lora(struct aq_manifest *manifest, const struct aq_model_config *model)
{
    const struct aq_job_train *train = &manifest->job.train;
    const struct aq_lora_config *lora = &train->lora;
    const struct {
        const char *key, *text;
    } texts[] = {{"lora.rank_pattern", lora->ranks},
                 {"lora.alpha_pattern", lora->alphas},
                 {"lora.modules_to_save", lora->saved}};
    const uint32_t errors = manifest->errors.count;
    check_numbers(manifest, "lora.rank_pattern", lora->ranks, AQ_LORA_RANK_MAX, true);
    check_numbers(manifest, "lora.alpha_pattern", lora->alphas, AQ_LORA_ALPHA_MAX, false);
    if (lora->rank == 0 || manifest->errors.count > errors) return;
    if (train->lora_weights) return; /* of a folder PEFT has checked the names */
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].text) check_names(manifest, texts[i].key, model, texts[i].text, i < 2);
}

void aq_manifest_untie(struct aq_manifest *manifest)
{
    struct aq_model_config *model = &manifest->job.model.config, known = *model;
    const struct aq_lora_config *lora = &manifest->job.train.lora;
    char head[AQ_TENSOR_NAME_MAX], table[AQ_TENSOR_NAME_MAX];
    struct aq_error_hold why;
    if (model->tied == AQ_TIED_NO || lora->rank == 0 || !lora->saved || manifest->errors.count) return;
    if (manifest->job.train.lora_weights || aq_yaml_find(manifest->root, "model.tied")) return; /* decided */
    if (known.vocabulary == 0) known.vocabulary = VOCABULARY_ANY;
    aq_model_use_task(&known, manifest->job.model.task, known.labels);
    aq_error_hold(&why);
    const enum aq_status status = aq_model_config_check(&known);
    aq_error_release(&why);
    if (status != AQ_OK) return; /* reported by the check of the model */
    aq_model_tied_head(&known, head);
    if (!*head || !aq_model_ties(&known, known.context, NULL, NULL, table)) return;
    if (!aq_lora_saves(lora, &known, head) && !aq_lora_saves(lora, &known, table)) return;
    model->tied = AQ_TIED_NO;
    aq_log("manifest", 1,
           "model.tied: untied, because lora.modules_to_save names the embedding or the head, which PEFT trains apart; "
           "model.tied: exact trains one table for both");
}
