/*
 * manifest_folder.c -- a published folder as model.weights: its config.json sets the model's kind and every size, so
 * that the manifest need not; keys that the manifest sets too must agree. Its tokenizer is the job's if the manifest
 * names none.
 *
 * A job with facts and every key of the model was resolved by a launcher: the folder is not read. So a worker plans
 * without it, and a run resumes from its checkpoint even if the folder was deleted; its tokenizer is then the one in
 * the run's folder.
 */
#include <string.h>
#include <unistd.h>

#include "manifest.h"
#include "stages/dataset.h"
#include "stages/model_folder.h"

enum { LABELS_BYTES = 64 << 10 };

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
    if (memcmp(a, b, aq_model_key_bytes(key)) == 0) return;
    if (key->offset == offsetof(struct aq_model_config, vocabulary) && here->vocabulary == 0) return;
    value_text(key, here, &mine);
    value_text(key, there, &its);
    aq_manifest_error(manifest, key->name, "%s, but %s/config.json (model.weights) has %s; leave the key out",
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
        const bool of_head = manifest->job.model.config.new_head && strcmp(keys[i].name, "model.classes") == 0;
        if (!of_head && !aq_yaml_find(manifest->root, keys[i].name)) continue;
        if (of_head || job_chooses(&keys[i]))
            memcpy((char *)&model + keys[i].offset, (const char *)&manifest->job.model.config + keys[i].offset,
                   aq_model_key_bytes(&keys[i]));
        else
            check_same(manifest, folder, &keys[i]);
    }
    model.labels = manifest->job.model.config.labels; /* the data's to say */
    model.new_head = manifest->job.model.config.new_head;
    manifest->job.model.config = model;
    manifest->of_folder = true;
}

/* data.labels in the order of the head that the folder brings: the same names are the same labels. */
static void order_labels(struct aq_manifest *manifest, const struct aq_model_folder *folder)
{
    struct aq_job_data *data = &manifest->job.data;
    char ordered[LABELS_BYTES];
    struct aq_error_hold why;
    if (!data->labels || manifest->job.model.config.new_head || !aq_model_folder_classifies(folder)) return;
    aq_error_hold(&why);
    enum aq_status status = aq_model_folder_order(folder, data->labels, ordered, sizeof ordered);
    aq_error_release(&why);
    if (status == AQ_MISMATCH) aq_manifest_error(manifest, "data.labels", "%s", why.text);
    if (status != AQ_OK || strcmp(ordered, data->labels) == 0) return;
    aq_log("manifest", 1, "data.labels: in the order of %s's head: %s", manifest->job.model.weights, ordered);
    status = aq_pool_text(&manifest->pool, ordered, strlen(ordered), &data->labels);
    if (status != AQ_OK) aq_manifest_error(manifest, "data.labels", "no memory for their names");
}

/* After the folder that a run began as has gone, its tokenizer and chat template are in the run's folder. */
static void find_tokenizer_again(struct aq_manifest *manifest)
{
    struct aq_job_data *data = &manifest->job.data;
    const char *run = manifest->job.output.path;
    if (!run) return;
    const char *own = aq_tokenizer_of_folder(run);
    if (own && data->tokenizer_path && access(data->tokenizer_path, F_OK) != 0 && strcmp(own, data->tokenizer) == 0)
        data->tokenizer_path = run;
    if (own && data->chat && access(data->chat, F_OK) != 0) data->chat = run;
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

/*
 * Was it resolved by a launcher? Then it has facts and every key of the model. The server of split learning has a
 * client's facts with the manifest as it was written, and reads the folder.
 */
static bool resolved(const struct aq_manifest *manifest)
{
    uint32_t count;
    const struct aq_model_key *keys = aq_model_keys(manifest->job.model.config.kind, &count);
    bool all = manifest->job.facts.train_samples > 0;
    for (uint32_t i = 0; i < count && all; i++)
        all = aq_yaml_find(manifest->root, keys[i].name) != NULL;
    return all;
}

void aq_manifest_folder(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_model_folder *folder;
    struct aq_error_hold why;
    find_tokenizer_again(manifest);
    if (!job->model.weights || resolved(manifest) || !aq_model_folder_is(job->model.weights)) return;
    aq_error_hold(&why);
    const enum aq_status status = aq_model_folder_open(job->model.weights, &folder);
    aq_error_release(&why);
    if (status != AQ_OK) {
        aq_manifest_error(manifest, "model.weights", "%s", why.text);
        return;
    }
    merge(manifest, folder);
    order_labels(manifest, folder);
    aq_model_folder_close(folder);
    choose_tokenizer(manifest);
}
