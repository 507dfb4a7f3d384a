/*
 * manifest_folder.c -- a published folder as model.weights: its config.json says the model's kind and every size, so
 * that the manifest need not; what the manifest says all the same must be the same. Its tokenizer is the job's where
 * the manifest names none.
 *
 * A job with facts is one that a launcher has resolved: it says everything, and the folder is not asked. So a worker
 * plans without it, and a run goes on from its checkpoint where the folder is gone.
 */
#include <string.h>

#include "manifest.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"

static size_t value_bytes(const struct aq_model_key *key)
{
    return key->kind == AQ_MODEL_BOOL ? sizeof(bool) : sizeof(uint32_t);
}
_Static_assert(sizeof(float) == sizeof(uint32_t), "a model's keys have one of two sizes");

/* Choices of training: a job may make others than those who made the folder. */
static bool job_chooses(const struct aq_model_key *key)
{
    return key->offset == offsetof(struct aq_model_config, dropout) ||
           key->offset == offsetof(struct aq_model_config, tied) ||
           key->offset == offsetof(struct aq_model_config, init_std);
}

/* The value as a manifest would have it. */
static void value_text(const struct aq_model_key *key, const struct aq_model_config *model, struct aq_text *out)
{
    const struct aq_key *of = aq_key_find(aq_keys_job(), key->name);
    struct aq_job job = {.model.config = *model};
    (void)aq_key_write(of, &job, out);
}

/* What both say. A vocabulary of 0 is whatever there is. */
static void check_same(struct aq_manifest *manifest, const struct aq_model_folder *folder,
                       const struct aq_model_key *key)
{
    const struct aq_model_config *there = aq_model_folder_model(folder), *here = &manifest->job.model.config;
    const char *a = (const char *)here + key->offset, *b = (const char *)there + key->offset;
    struct aq_text mine = {0}, its = {0};
    if (memcmp(a, b, value_bytes(key)) == 0) return;
    if (key->offset == offsetof(struct aq_model_config, vocabulary) && here->vocabulary == 0) return;
    value_text(key, here, &mine);
    value_text(key, there, &its);
    aq_manifest_error(manifest, key->name, "%s, but %s/config.json (model.weights) says %s; leave the key out",
                      aq_text_of(&mine), manifest->job.model.weights, aq_text_of(&its));
    aq_text_deinit(&mine);
    aq_text_deinit(&its);
}

static void merge(struct aq_manifest *manifest, const struct aq_model_folder *folder)
{
    struct aq_model_config model = *aq_model_folder_model(folder);
    const char *given = aq_yaml_find(manifest->root, "model.kind") ? manifest->job.model.config.kind : NULL;
    uint32_t count;
    const struct aq_model_key *keys = aq_model_keys(model.kind, &count);
    if (given && strcmp(given, model.kind) != 0)
        aq_manifest_error(manifest, "model.kind", "%.64s, but %s (model.weights) is a %s; leave the key out", given,
                          manifest->job.model.weights, model.kind);
    for (uint32_t i = 0; i < count; i++) {
        if (!aq_yaml_find(manifest->root, keys[i].name)) continue;
        if (job_chooses(&keys[i]))
            memcpy((char *)&model + keys[i].offset, (const char *)&manifest->job.model.config + keys[i].offset,
                   value_bytes(&keys[i]));
        else
            check_same(manifest, folder, &keys[i]);
    }
    model.labels = manifest->job.model.config.labels; /* the data's to say */
    manifest->job.model.config = model;
    manifest->of_folder = true;
}

/* The folder's own, unless the manifest names one; where a kind has files and no path is given, those of the folder. */
static void choose_tokenizer(struct aq_manifest *manifest)
{
    struct aq_job_data *data = &manifest->job.data;
    const char *folder = data->tokenizer_path ? data->tokenizer_path : manifest->job.model.weights;
    const bool named = aq_yaml_find(manifest->root, "data.tokenizer") != NULL;
    const char *own = named ? NULL : aq_tokenizer_of_folder(folder);
    if (own) data->tokenizer = own;
    if (aq_tokenizer_about(data->tokenizer)->files) data->tokenizer_path = folder;
}

void aq_manifest_folder(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_model_folder *folder;
    struct aq_error_hold why;
    if (!job->model.weights || job->facts.train_samples || !aq_model_folder_is(job->model.weights)) return;
    aq_error_hold(&why);
    const enum aq_status status = aq_model_folder_open(job->model.weights, &folder);
    aq_error_release(&why);
    if (status != AQ_OK) {
        aq_manifest_error(manifest, "model.weights", "%s", why.text);
        return;
    }
    merge(manifest, folder);
    aq_model_folder_close(folder);
    choose_tokenizer(manifest);
}
