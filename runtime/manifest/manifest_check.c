/*
 * manifest_check.c -- what concerns more than one key: divisibility, the partition of the layers, codecs, addresses.
 */
#include <stdio.h>
#include <string.h>

#include "keys.h"
#include "manifest.h"
#include "nearest.h"
#include "net/endpoint.h"
#include "net/tls.h"
#include "security.h"
#include "ssh_host.h"
#include "stages/dataset.h"

enum {
    KEY_BYTES = 96,
    HOSTS_BYTES = 256,
    LAYERS_BYTES = 48,
    VOCABULARY_ANY = 256,
    TEXT_BYTES = 160,
    WORDS_BYTES = 2048
};

static void check_model(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_model_config *model = &job->model.config;
    const struct aq_key_table keys = aq_keys_job();
    const char *key;
    char text[TEXT_BYTES];
    for (uint32_t i = 0; aq_model_problem(model, job->train.T, i, &key, text, sizeof text); i++)
        aq_manifest_error(manifest, key, "%s", text);
    for (uint32_t i = 0; aq_model_task(model->kind) && i < keys.count; i++)
        if (!aq_key_applies(&keys.keys[i], model->kind) && aq_yaml_find(manifest->root, keys.keys[i].name))
            aq_manifest_error(manifest, keys.keys[i].name, "%s has no such key (model.kind)", model->kind);
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, fields);
    bool tokenized = false; /* other data has no use for a tokenizer */
    for (uint32_t i = 0; i < count; i++)
        tokenized = tokenized || strcmp(fields[i].name, "tokens") == 0;
    const struct aq_tokenizer_about *tokenizer = aq_tokenizer_about(job->data.tokenizer);
    if (tokenized && model->vocabulary && model->vocabulary < tokenizer->tokens)
        aq_manifest_error(manifest, "model.vocabulary", "%u is less than the %u tokens of the tokenizer %s",
                          model->vocabulary, tokenizer->tokens, tokenizer->name);
    else if (tokenized && manifest->of_folder && tokenizer->tokens && tokenizer->tokens != model->vocabulary &&
             !aq_yaml_find(manifest->root, "data.tokenizer"))
        aq_manifest_error(manifest, "data.tokenizer",
                          "the folder of model.weights has no tokenizer that is read here; name one, or '%s' if "
                          "that is meant",
                          tokenizer->name);
}

/* The model's own check; the vocabulary may not be known yet. False: its layers cannot be counted. */
static bool check_kind(struct aq_manifest *manifest)
{
    struct aq_model_config model = manifest->job.model.config;
    struct aq_error_hold why;
    if (!model.kind) {
        aq_manifest_error(manifest, "model.kind", "is empty");
        return false;
    }
    if (model.vocabulary == 0) model.vocabulary = VOCABULARY_ANY;
    aq_model_use_task(&model, manifest->job.model.task, model.labels);
    aq_error_hold(&why);
    const enum aq_status status = aq_model_config_check(&model);
    aq_error_release(&why);
    if (status == AQ_OK) {
        const struct aq_job *job = &manifest->job;
        struct aq_field fields[AQ_BATCH_FIELDS_MAX];
        const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, fields);
        const char *key;
        char text[TEXT_BYTES];
        if (!aq_model_fits(&model, job->train.T, job->model.task, fields, count, &key, text, sizeof text))
            aq_manifest_error(manifest, key, "%s", text);
        return true;
    }
    aq_manifest_error(manifest, "model.kind", "this model is not possible: %s", why.text);
    return false;
}

static void check_data(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_yaml_node file = {.source = job->source};
    if (job->data.train_count == 0)
        aq_yaml_error(&manifest->errors, &file, "data.train: is missing; name a file to train on");
    const struct aq_tokenizer_about *tokenizer = aq_tokenizer_about(job->data.tokenizer);
    if (tokenizer->files && !job->data.tokenizer_path)
        aq_manifest_error(manifest, "data.tokenizer", "%s needs data.tokenizer_path: a folder with %s", tokenizer->name,
                          tokenizer->files);
}

/* Crops and flips are of images, and a crop leaves something of them. */
static void check_augment(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *const key = job->data.augment.crop ? "data.augment.crop" : "data.augment.flip";
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    if (!aq_augment_any(&job->data.augment)) return;
    const uint32_t side = aq_augment_side(fields, aq_dataset_fields(job->data.kind, job->train.T, fields));
    if (side == 0)
        aq_manifest_error(manifest, key, "is of images: data.kind is %s", job->data.kind);
    else if (job->data.augment.crop >= side)
        aq_manifest_error(manifest, key, "%u leaves nothing of images of %u x %u", job->data.augment.crop, side, side);
}

static void check_train(struct aq_manifest *manifest)
{
    const struct aq_job_train *train = &manifest->job.train;
    const uint32_t W = manifest->job.pipeline.replicas;
    const uint64_t share = (uint64_t)train->micro_batch * W; /* the least that a step can have */
    if (train->batch % train->micro_batch)
        aq_manifest_error(manifest, "train.batch", "%u is not a multiple of train.micro_batch (%u); %u would be",
                          train->batch, train->micro_batch,
                          (train->batch / train->micro_batch + 1) * train->micro_batch);
    else if (train->batch % share)
        aq_manifest_error(manifest, "train.batch",
                          "%u is not a multiple of train.micro_batch (%u) times pipeline.replicas (%u); %llu would be",
                          train->batch, train->micro_batch, W,
                          (unsigned long long)((train->batch / share + 1) * share));
    else if (train->batch / share > AQ_JOB_MICRO_BATCHES_MAX)
        aq_manifest_error(manifest, "train.micro_batch", "makes %llu micro-batches of a batch; at most %u can be",
                          (unsigned long long)(train->batch / share), AQ_JOB_MICRO_BATCHES_MAX);
}

/* Does a checkpoint come with every evaluation? */
static bool marks_evaluations(const struct aq_job *job)
{
    const struct aq_job_every *marks = &job->checkpoint.every, *looks = &job->train.evaluate_every;
    if (looks->count == 0) return true; /* only at the end, as a checkpoint is */
    return marks->count > 0 && marks->epochs == looks->epochs && looks->count % marks->count == 0;
}

static void check_best(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *key = job->checkpoint.best ? "checkpoint.best" : "train.early_stop";
    if (!job->checkpoint.best && !job->train.early_stop) return;
    if (job->data.heldout_count == 0)
        aq_manifest_error(manifest, key, "needs held-out samples: name a file in data.heldout");
    if (!job->output.metrics)
        aq_manifest_error(manifest, key, "needs output.metrics: a resumed run reads the best figure there");
    if (!marks_evaluations(job))
        aq_manifest_error(manifest, key,
                          "needs a checkpoint at every evaluation: make train.evaluate_every a multiple of "
                          "checkpoint.every, both in steps or both in epochs");
}

/* A client's first stage would decide how often the server writes. */
static void check_timed(struct aq_manifest *manifest)
{
    if (manifest->job.checkpoint.every.ns > 0 && manifest->job.split.clients > 0)
        aq_manifest_error(manifest, "checkpoint.every", "a time does not go with split.clients: set steps or epochs");
}

/* "layer 3" or "layers 3-5". */
static const char *layers_text(uint32_t first, uint32_t end, char text[LAYERS_BYTES])
{
    if (end - first == 1)
        snprintf(text, LAYERS_BYTES, "layer %u", first);
    else
        snprintf(text, LAYERS_BYTES, "layers %u-%u", first, end - 1);
    return text;
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
                          "'%s' names nothing of the model: a layer is named as aqpipe plan shows it ('%s'), a tensor "
                          "by parts of its name that follow each other",
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

/* Something is left to train, adapters fit their layers, and the model can have adapters. */
static void check_freeze(struct aq_manifest *manifest)
{
    const struct aq_job_train *train = &manifest->job.train;
    const bool adapts = train->lora.rank > 0;
    struct aq_model_config model = manifest->job.model.config;
    struct aq_freeze_pattern any;
    const uint32_t errors = manifest->errors.count;
    if (model.vocabulary == 0) model.vocabulary = VOCABULARY_ANY; /* what matters here are names */
    check_patterns(manifest, "train.freeze", &model, train->freeze, aq_model_freeze_pattern);
    aq_manifest_lora(manifest, &model);
    if (adapts) check_patterns(manifest, "lora.targets", &model, train->lora.targets, aq_model_lora_pattern);
    if (adapts && aq_model_lora_pattern(&model, train->T, "*", 0, &any) && any.tensors == 0)
        aq_manifest_error(manifest, "lora.rank", "%s has no layers that adapters are made for", model.kind);
    else if (!adapts && train->lora.targets)
        aq_manifest_error(manifest, "lora.targets",
                          "names layers for adapters, but lora.rank is 0: there are no adapters");
    else if (train->frozen_store != AQ_FROZEN_FP32 && !adapts && !train->freeze)
        aq_manifest_error(manifest, "train.frozen_store", "nothing is frozen: give lora.rank or train.freeze");
    else if (manifest->errors.count == errors &&
             !aq_model_trains(&model, train->T, train->freeze, &train->lora, aq_model_layers(&model)))
        aq_manifest_error(manifest, "train.freeze", "freezes the whole model: nothing is left to train");
}

/* The ranges must start at 0, follow each other, and end with the last layer. */
static void check_ranges(struct aq_manifest *manifest, uint32_t layers)
{
    const struct aq_job *job = &manifest->job;
    uint32_t end = 0;
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[s];
        char key[KEY_BYTES], range[LAYERS_BYTES];
        snprintf(key, sizeof key, "pipeline.stages.%u.layers", s);
        if (stage->layer_first > end)
            aq_manifest_error(manifest, key, "a gap: starts at layer %u, but no stage has %s", stage->layer_first,
                              layers_text(end, stage->layer_first, range));
        else if (stage->layer_first < end)
            aq_manifest_error(manifest, key, "an overlap: %s belong%s to an earlier stage; start at layer %u",
                              layers_text(stage->layer_first, stage->layer_end < end ? stage->layer_end : end, range),
                              end - stage->layer_first == 1 ? "s" : "", end);
        if (stage->layer_end > layers)
            aq_manifest_error(manifest, key, "ends at layer %u, but %u is the model's last", stage->layer_end - 1,
                              layers - 1);
        if (stage->layer_end > end) end = stage->layer_end;
        if (s + 1 == job->pipeline.stage_count && end < layers)
            aq_manifest_error(manifest, key, "a gap: the last stage ends at layer %u, but no stage has %s", end - 1,
                              layers_text(end, layers, range));
    }
}

static void check_cut(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t layers = aq_model_layers(&job->model.config), stages = job->pipeline.stage_count;
    if (stages > layers)
        aq_manifest_error(manifest, "pipeline.stages", "%u stages, but this %s has only %u layers", stages,
                          job->model.config.kind, layers);
    else if (!job->pipeline.automatic)
        check_ranges(manifest, layers);
}

static void codec_error(struct aq_manifest *manifest, uint32_t edge, bool backward, const char *key, const char *why)
{
    char path[KEY_BYTES];
    snprintf(path, sizeof path, "edges.%s.%s", backward ? "backward" : "forward", key);
    const char *side = backward ? "backward" : "forward";
    if (aq_yaml_find(manifest->root, path))
        aq_manifest_error(manifest, path, "edge %u: %s", edge, why);
    else
        aq_manifest_error(manifest, "edges", "edge %u %s %s: %s", edge, side, key, why);
}

/* The fields of a codec against each other; aq_codec_config_check has the last word when the codec is opened. */
static void check_codec(struct aq_manifest *manifest, uint32_t edge, bool backward,
                        const struct aq_codec_config *config)
{
    const struct aq_codec_about *about = aq_codec_about(config->kind);
    if (backward && !about->stateless && config->store != AQ_PRECISION_NONE)
        codec_error(manifest, edge, backward, "store", "gradients have no messages to keep: write none");
    if (!about->grid) return;
    if (config->grid == AQ_GRID_MIDTREAD && config->bits < 2)
        codec_error(manifest, edge, backward, "grid", "midtread needs at least 2 bits");
    if (config->tile != 32 && config->tile != 64 && config->tile != 128 &&
        (config->hadamard || config->group == AQ_PER_TILE))
        codec_error(manifest, edge, backward, "tile", "must be 32, 64 or 128");
    if (!about->sparse && config->top_k > 0 && config->top_k < 1) {
        char why[KEY_BYTES] = "";
        enum aq_codec_kind kind;
        for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++)
            if (aq_codec_about(kind)->sparse) snprintf(why, sizeof why, "is for %s only", aq_codec_about(kind)->name);
        codec_error(manifest, edge, backward, "top_k", why);
    }
}

static void check_edges(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    for (uint32_t e = 0; e + 1 < job->pipeline.stage_count; e++) {
        const uint32_t before = manifest->errors.count;
        check_codec(manifest, e, false, &job->edges[e].forward);
        check_codec(manifest, e, true, &job->edges[e].backward);
        if (manifest->errors.count != before) return; /* the other edges mostly have the same error */
    }
}

/* One address of a stage (NULL: it has none), read as those will read it who use it. */
static void check_endpoint(struct aq_manifest *manifest, uint32_t stage, const char *name, const char *text,
                           bool dialled)
{
    struct aq_endpoint endpoint;
    char key[KEY_BYTES];
    const char *why;
    if (!text) return;
    snprintf(key, sizeof key, "pipeline.stages.%u.%s", stage, name);
    if (aq_endpoint_parse(text, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, key, "'%.80s' is no address: %s", text, why);
    else if (dialled && endpoint.port == 0)
        aq_manifest_error(manifest, key, "'%.80s': port 0 cannot be reached", text);
    else if (!dialled && endpoint.name[0])
        aq_manifest_error(manifest, key, "'%.80s': a name before '@' is of daemons (host)", text);
}

/* Of a host that the launcher starts an agent on. */
static void check_agent(struct aq_manifest *manifest, uint32_t stage, const char *text)
{
    struct aq_ssh_host agent;
    char key[KEY_BYTES];
    const char *why;
    snprintf(key, sizeof key, "pipeline.stages.%u.host", stage);
    if (aq_ssh_parse(text, &agent, &why) != AQ_OK)
        aq_manifest_error(manifest, key, "'%.80s' is no host: %s", text, why);
}

static void check_endpoints(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_endpoint endpoint;
    const char *why;
    for (uint32_t r = 0; r < aq_job_ranks(job) && manifest->errors.count == 0; r++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[r];
        if (aq_ssh_is(stage->host))
            check_agent(manifest, r % job->pipeline.stage_count, stage->host);
        else
            check_endpoint(manifest, r % job->pipeline.stage_count, "host", stage->host, true);
        check_endpoint(manifest, r % job->pipeline.stage_count, "address", stage->address, false);
    }
    const char *host = job->link.host ? job->link.host : "";
    if (aq_endpoint_parse_host(host, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, "link.host", "'%.80s' is no host: %s", host, why);
}

static void check_link(struct aq_manifest *manifest)
{
    const char *name = manifest->job.link.congestion;
    const size_t letters = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") : 0;
    if (name && (name[letters] != '\0' || letters >= AQ_LINK_CONGESTION_BYTES))
        aq_manifest_error(
            manifest, "link.congestion",
            "'%.80s' is no name of the kernel's: auto, or one of sysctl net.ipv4.tcp_available_congestion_control",
            name);
}

/* Port 0 is another port for each. */
static bool same_address(const char *a, const char *b)
{
    struct aq_endpoint endpoint;
    const char *why;
    if (!a || !b || strcmp(a, b) != 0) return false;
    return aq_endpoint_parse(a, &endpoint, &why) != AQ_OK || endpoint.port != 0;
}

static void check_addresses(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t ranks = aq_job_ranks(job), P = job->pipeline.stage_count;
    if (job->link.port_first && job->link.port_first + ranks - 1 > 65535)
        aq_manifest_error(manifest, "link.port_first", "%u %s need ports up to %u; 65535 is the last", ranks,
                          ranks > P ? "workers" : "stages", job->link.port_first + ranks - 1);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t other = 0; other < r; other++) {
            const char *a = job->pipeline.stages[r].address, *b = job->pipeline.stages[other].address;
            char key[KEY_BYTES];
            if (!same_address(a, b)) continue;
            snprintf(key, sizeof key, "pipeline.stages.%u.address", r % P);
            if (r % P == other % P)
                aq_manifest_error(manifest, key, "%s is the address of replicas %u and %u; write a list of %u", a,
                                  other / P, r / P, job->pipeline.replicas);
            else
                aq_manifest_error(manifest, key, "%s is the address of stage %u already", a, other % P);
            return; /* replicas mostly repeat it */
        }
}

/* On every edge one of the two must listen. */
static void check_dials(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t P = job->pipeline.stage_count;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[r];
        char key[KEY_BYTES];
        snprintf(key, sizeof key, "pipeline.stages.%u.dials", r % P);
        for (uint32_t other = 0; other < r && stage->dials; other++) {
            if (!job->pipeline.stages[other].dials || !aq_job_linked(job, r, other)) continue;
            if (other / P == r / P)
                aq_manifest_error(manifest, key,
                                  "stage %u dials too, and of two neighbours one must listen: put a stage that can be "
                                  "reached between them",
                                  other % P);
            else
                aq_manifest_error(manifest, key,
                                  "replicas %u and %u both dial, but one of two replicas of a stage must listen",
                                  other / P, r / P);
            return; /* replicas mostly repeat it */
        }
        if (!stage->dials || !stage->address) continue;
        snprintf(key, sizeof key, "pipeline.stages.%u.address", r % P);
        aq_manifest_error(manifest, key, "stage %u dials: it listens nowhere", r % P);
        return;
    }
}

/* Logits are the last stage's. */
static void check_logits(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t P = job->pipeline.stage_count;
    if (job->model.logits != AQ_LOGITS_16BIT) return;
    if (job->model.precision != AQ_STAGE_BF16 && job->model.precision != AQ_STAGE_FP16)
        aq_manifest_error(manifest, "model.logits",
                          "16bit follows model.precision, which has 32 bits: set fp32, or precision: bf16 or fp16");
    for (uint32_t r = P - 1; r < aq_job_ranks(job); r += P) {
        if (aq_device_gpu(job->pipeline.stages[r].device) != AQ_GPU_NO) continue;
        aq_manifest_error(manifest, "model.logits",
                          "16bit needs a GPU, and the last stage is on the CPU: write auto, or device: cuda there");
        return;
    }
}

/* A stage whose device is 'auto' may yet have a GPU: whoever opens it there sees. */
static void check_precision(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    if (job->train.loss_scale > 0.0f && job->model.precision != AQ_STAGE_FP16)
        aq_manifest_error(manifest, "train.loss_scale", "applies only to fp16 (model.precision); leave it out");
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
static void check_devices(struct aq_manifest *manifest)
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
                              "stage %u has replicas on %s and on %s: a gradient norm is not summed alike there, and "
                              "their weights would drift apart",
                              r % P, first, device);
            return;
        }
    }
}

static void check_mirror(struct aq_manifest *manifest)
{
    if (manifest->job.checkpoint.mirror && manifest->job.pipeline.stage_count < 2)
        aq_manifest_error(manifest, "checkpoint.mirror", "one stage has no neighbour to keep a copy");
    if (manifest->job.checkpoint.mirror_key && !manifest->job.checkpoint.mirror)
        aq_manifest_error(manifest, "checkpoint.mirror_key", "there are no copies to encrypt: set mirror: true");
}

static bool host_name(const struct aq_job *job, uint32_t rank, char out[AQ_ENDPOINT_NAME_BYTES])
{
    struct aq_endpoint endpoint;
    const char *host = job->pipeline.stages[rank].host, *why;
    return host && aq_endpoint_parse(host, &endpoint, &why) == AQ_OK && aq_endpoint_identity(&endpoint, out);
}

/* " --hosts A,B": the job's daemons, as `aqpipe keys` takes them; "" without daemons. */
static void hosts_text(const struct aq_job *job, char out[HOSTS_BYTES])
{
    char name[AQ_ENDPOINT_NAME_BYTES], earlier[AQ_ENDPOINT_NAME_BYTES];
    size_t bytes = 0;
    out[0] = 0;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        bool known = !host_name(job, r, name);
        for (uint32_t other = 0; other < r && !known; other++)
            known = host_name(job, other, earlier) && strcmp(earlier, name) == 0;
        if (known || bytes + sizeof name + 16 > HOSTS_BYTES) continue;
        bytes += (size_t)snprintf(out + bytes, HOSTS_BYTES - bytes, "%s%s", bytes ? "," : " --hosts ", name);
    }
}

/* Traffic that leaves this machine needs keys, or an explicit security.tls: off. */
static void check_security(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *outside = aq_security_outside(job);
    char hosts[HOSTS_BYTES];
    if (!aq_security_on(job) || job->security.keys) return;
    hosts_text(job, hosts);
    if (outside)
        aq_manifest_error(manifest, "security.keys",
                          "is missing, and %s is not on this machine: make a folder of keys (aqpipe keys init DIR "
                          "--job NAME --stages %u%s) and name it here, or set security.tls: off",
                          outside, aq_job_ranks(job), hosts);
    else
        aq_manifest_error(manifest, "security.keys",
                          "is missing, and security.tls is on: make a folder of keys (aqpipe keys init DIR --job NAME "
                          "--stages %u%s) and name it here",
                          aq_job_ranks(job), hosts);
}

static void check_status(struct aq_manifest *manifest)
{
    const struct aq_job_status *status = &manifest->job.status;
    const char *const said = status->token_file         ? "status.token_file"
                             : status->certificate      ? "status.certificate"
                             : status->key              ? "status.key"
                             : status->client_authority ? "status.client_authority"
                                                        : NULL;
    if (said && !status->listen) aq_manifest_error(manifest, said, "needs status.listen, the page's host:port");
    if (!status->certificate != !status->key)
        aq_manifest_error(manifest, status->key ? "status.key" : "status.certificate",
                          "needs %s, too: a certificate and its private key are two files",
                          status->key ? "status.certificate" : "status.key");
    if (status->client_authority && !status->certificate)
        aq_manifest_error(manifest, "status.client_authority",
                          "needs status.certificate: only a page under TLS can ask for a client's");
}

static void check_trackers(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    uint32_t wanted;
    char wrong[48];
    if (aq_trackers_read(job->output.report_to, &wanted, wrong, sizeof wrong) != AQ_OK)
        aq_manifest_error(manifest, "output.report_to", "'%s' is not one of tensorboard, wandb, mlflow", wrong);
    else if (wanted && job->split.clients)
        aq_manifest_error(manifest, "output.report_to",
                          "a job of split learning has a run folder for each client, and none for a tracker; call "
                          "tools/follow with a client's folder");
}

/* The launcher chooses bits at an epoch's end, so epochs must not overlap. */
static void check_bits(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    if (!job->bits_auto) return;
    if (job->train.staleness)
        aq_manifest_error(manifest, "edges.bits", "auto does not go with train.staleness: epochs overlap there");
}

/* Noise without a bound protects nothing. */
static void check_privacy(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_job_privacy *privacy = &job->split.privacy;
    if (privacy->noise > 0 && !(privacy->clip > 0))
        aq_manifest_error(manifest, "split.privacy.noise", "needs split.privacy.clip, of which it is a multiple");
    if (privacy->gradient_noise > 0 && !(privacy->gradient_clip > 0))
        aq_manifest_error(manifest, "split.privacy.gradient_noise",
                          "needs split.privacy.gradient_clip, of which it is a multiple");
    if (job->split.capture > 0 && (job->split.clients == 0 || job->pipeline.stage_count != 3))
        aq_manifest_error(manifest, "split.capture", "is of split learning, and of a server's stage between two");
    const bool correlates = privacy->distance_correlation > 0;
    if (correlates && job->train.micro_batch < 2)
        aq_manifest_error(manifest, "split.privacy.distance_correlation",
                          "compares the samples of a micro-batch: set train.micro_batch: 2, better 8, or more");
    if (!(privacy->clip > 0) && !(privacy->gradient_clip > 0) && !correlates) return;
    const char *const said = privacy->clip > 0            ? "split.privacy.clip"
                             : privacy->gradient_clip > 0 ? "split.privacy.gradient_clip"
                                                          : "split.privacy.distance_correlation";
    if (job->split.clients == 0)
        aq_manifest_error(manifest, said, "applies only to split learning: set split.clients, too");
}

/* With labels at the server they must be what a sample has, and no part of its input: one class. */
static void check_labels(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, fields);
    bool has = false;
    for (uint32_t i = 0; i < count; i++)
        has |= strcmp(fields[i].name, "labels") == 0 && fields[i].type == AQ_FIELD_I32 && fields[i].count == 1;
    if (!has)
        aq_manifest_error(manifest, "split.labels",
                          "server needs samples with one label each (data.kind: cifar10): other targets would be "
                          "the inputs themselves");
    if (job->split.privacy.gradient_clip > 0)
        aq_manifest_error(manifest, "split.privacy.gradient_clip",
                          "applies to the client's second cut, and with split.labels: server there is no second cut");
}

/* With global sampling all clients train at once, and the gradients of their ends pass the server in each step. */
static void check_global(struct aq_manifest *manifest)
{
    static const char *const key = "split.mode";
    const struct aq_job *job = &manifest->job;
    if (job->split.participation < 1)
        aq_manifest_error(manifest, key, "global has all clients in each round: write split.participation: 1");
    if (job->split.round_deadline_ns > 0)
        aq_manifest_error(manifest, key,
                          "global does not go with split.round_deadline: all train in step, and split.wait is how long "
                          "they wait for one");
    if (job->link.port_first || job->pipeline.stages[1].address)
        aq_manifest_error(
            manifest, key,
            "global allows no link.port_first and no address of stage 1: each turn listens on its own port");
    if (job->split.privacy.clip > 0 || job->split.privacy.gradient_clip > 0)
        aq_manifest_error(manifest, key,
                          "global does not go with split.privacy.clip and .gradient_clip: the gradients of a client's "
                          "ends pass the server in each step, unclipped");
    if (aq_dataset_kind_masks(job->data.kind))
        aq_manifest_error(manifest, key,
                          "global needs samples whose targets all count: data.kind: %s masks some, and the server, "
                          "which weighs what clients send, cannot know how many",
                          job->data.kind);
    if (job->train.staleness)
        aq_manifest_error(manifest, key, "global does not go with train.staleness: a step ends with its sum");
    if (job->train.optimizer.outer_every > 1)
        aq_manifest_error(manifest, key, "global does not go with reduce.every: gradients are averaged in each step");
}

/* A turn is a pipeline of three stages, whose ends are one client's and dial; with labels at the server of two. */
static void check_split(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_job_stage *stages = job->pipeline.stages;
    const bool labels = job->split.labels == AQ_SPLIT_LABELS_SERVER;
    const uint32_t wanted = labels ? 2 : 3;
    if (job->split.clients == 0) {
        if (job->split.client)
            aq_manifest_error(manifest, "split.client", "applies only to a split job: set split.clients, too");
        if (labels) aq_manifest_error(manifest, "split.labels", "applies only to a split job: set split.clients, too");
        return;
    }
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
    if (job->checkpoint.mirror || job->checkpoint.path || job->cache.path)
        aq_manifest_error(manifest, "split.clients",
                          "allows no checkpoint.mirror, checkpoint.path or cache.path: each client has its own below "
                          "output.path");
    if (job->train.early_stop || job->train.time_ns_max || job->guard || job->bits_auto ||
        job->model.precision == AQ_STAGE_FP16)
        aq_manifest_error(
            manifest, "split.clients",
            "does not go with train.early_stop, train.time_max, edges.guard, edges.bits: auto and fp16 yet");
    if (job->split.parallel > 1 && job->split.mode != AQ_SPLIT_FED1)
        aq_manifest_error(manifest, "split.parallel",
                          "needs split.mode: splitfed1: in the other modes a turn starts from the one before");
    if (job->split.parallel > 1 && (job->link.port_first || stages[1].address))
        aq_manifest_error(manifest, "split.parallel",
                          "allows no link.port_first and no address of stage 1: each turn listens on its own port");
    if (job->split.mode == AQ_SPLIT_GLOBAL) check_global(manifest);
    if (job->split.client && !aq_tls_host_good(job->split.client))
        aq_manifest_error(manifest, "split.client", "is no name of a site: 1 to 63 of a-z 0-9 . _ - :");
    if (!job->security.keys)
        aq_manifest_error(manifest, "security.keys",
                          "is missing: a split job is under mutual TLS always (aqpipe keys init, aqpipe keys enroll)");
}

/* The choice applies only to split learning, and must fit the model. */
static void check_statistics(struct aq_manifest *manifest)
{
    static const char *const key = "split.statistics";
    const struct aq_job *job = &manifest->job;
    if (job->split.statistics == AQ_SPLIT_AVERAGED) return;
    const bool keeps = aq_model_keeps_statistics(&job->model.config, job->train.T);
    if (job->split.clients == 0)
        aq_manifest_error(manifest, key, "applies only to split learning: set split.clients, too");
    else if (job->split.statistics == AQ_SPLIT_GROUP && keeps)
        aq_manifest_error(manifest, key,
                          "group needs a model without batch norms: a resnet with model.norm_groups (32 as published)");
    else if (job->split.statistics == AQ_SPLIT_LOCAL && !keeps)
        aq_manifest_error(manifest, key, "local needs a model with batch norms: this one keeps no statistics");
    else if (job->split.statistics == AQ_SPLIT_LOCAL && job->split.collect)
        aq_manifest_error(manifest, "split.collect",
                          "does not go with split.statistics: local: a model of all clients has no statistics then");
}

void aq_manifest_check(struct aq_manifest *manifest)
{
    aq_manifest_machines(manifest);
    check_model(manifest);
    const bool model = manifest->errors.count > 0 || check_kind(manifest);
    check_data(manifest);
    check_train(manifest);
    check_best(manifest);
    check_timed(manifest);
    if (model) check_cut(manifest);
    if (model && manifest->errors.count == 0) check_freeze(manifest);
    check_edges(manifest);
    check_augment(manifest);
    check_endpoints(manifest);
    check_addresses(manifest);
    check_link(manifest);
    check_dials(manifest);
    check_precision(manifest);
    check_logits(manifest);
    check_devices(manifest);
    check_mirror(manifest);
    check_security(manifest);
    check_status(manifest);
    check_trackers(manifest);
    check_bits(manifest);
    check_split(manifest);
    check_privacy(manifest);
    if (model && manifest->errors.count == 0) check_statistics(manifest);
}
