/*
 * manifest_check.c -- the checks of what concerns more than one key, in the order of manifest_checks.def, and those of
 * them that no other module has: the model, the batch, the best checkpoint, the kernel's names, keys of TLS.
 */
#include <stdio.h>
#include <string.h>

#include "keys.h"
#include "manifest.h"
#include "net/endpoint.h"
#include "security.h"
#include "stages/dataset.h"

enum { HOSTS_BYTES = 256, VOCABULARY_ANY = 256, TEXT_BYTES = 160 };

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
    const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, &job->data.image, fields);
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
        const uint32_t count = aq_dataset_fields(job->data.kind, job->train.T, &job->data.image, fields);
        const char *key;
        char text[TEXT_BYTES];
        if (!aq_model_fits(&model, job->train.T, job->model.task, fields, count, &key, text, sizeof text))
            aq_manifest_error(manifest, key, "%s", text);
        return true;
    }
    aq_manifest_error(manifest, "model.kind", "this model is not possible: %s", why.text);
    return false;
}

void aq_manifest_check_batch(struct aq_manifest *manifest)
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
        aq_manifest_error(manifest, "train.micro_batch", "makes %llu micro-batches of a batch; at most %u are possible",
                          (unsigned long long)(train->batch / share), AQ_JOB_MICRO_BATCHES_MAX);
}

/* Does a checkpoint come with every evaluation? */
static bool marks_evaluations(const struct aq_job *job)
{
    const struct aq_job_every *marks = &job->checkpoint.every, *looks = &job->train.evaluate_every;
    if (looks->count == 0) return true; /* only at the end, as a checkpoint is */
    return marks->count > 0 && marks->epochs == looks->epochs && looks->count % marks->count == 0;
}

void aq_manifest_check_best(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *key = job->checkpoint.best ? "checkpoint.best" : "train.early_stop";
    if (!job->checkpoint.best && !job->train.early_stop) return;
    if (!marks_evaluations(job))
        aq_manifest_error(manifest, key,
                          "needs a checkpoint at every evaluation: make train.evaluate_every a multiple of "
                          "checkpoint.every, both in steps or both in epochs");
}

/* A family that needs the residual stream in fp32. */
void aq_manifest_check_residual(struct aq_manifest *manifest)
{
    const struct aq_job_model *model = &manifest->job.model;
    char text[160];
    if (model->residual == AQ_STAGE_BF16 && !aq_model_residual_bf16(&model->config, text, sizeof text))
        aq_manifest_error(manifest, "model.residual", "%s", text);
}

void aq_manifest_check_protocol(struct aq_manifest *manifest)
{
    if (manifest->job.link.protocol == AQ_PROTOCOL_QUIC && !AQ_QUIC)
        aq_manifest_error(manifest, "link.protocol",
                          "this aqpipe was built without QUIC: apt-get install libngtcp2-dev "
                          "libngtcp2-crypto-gnutls-dev, and build it again, or write tcp");
}

void aq_manifest_check_congestion(struct aq_manifest *manifest)
{
    const char *name = manifest->job.link.congestion;
    const size_t letters = name ? strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") : 0;
    if (name && (name[letters] != '\0' || letters >= AQ_LINK_CONGESTION_BYTES))
        aq_manifest_error(manifest, "link.congestion",
                          "'%.80s' is not a congestion control of this kernel: write auto, or one of sysctl "
                          "net.ipv4.tcp_available_congestion_control",
                          name);
}

void aq_manifest_check_pace(struct aq_manifest *manifest)
{
    const double rate = manifest->job.link.rate_mbps;
    if (rate > 0 && rate < AQ_LINK_RATE_MBPS_MIN)
        aq_manifest_error(manifest, "link.rate_mbps",
                          "%g Mbit/s is less than the kernel can pace a link to: write %g or more, or 0 for no limit",
                          rate, AQ_LINK_RATE_MBPS_MIN);
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
void aq_manifest_check_security(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const char *outside = aq_security_outside(job);
    char hosts[HOSTS_BYTES];
    if (!aq_security_on(job) || job->security.keys) return;
    hosts_text(job, hosts);
    /* Without a port 0, which the system chooses. Of an IPv6 address only what follows its bracket is a port. */
    const char *port = outside ? strrchr(outside, ':') : NULL;
    const bool unset = port && strcmp(port, ":0") == 0 && (strchr(outside, ':') == port || port[-1] == ']');
    if (outside)
        aq_manifest_error(manifest, "security.keys",
                          "is not set, and %.*s is not on this machine: make a folder of keys (aqpipe keys init DIR "
                          "--job NAME --stages %u%s) and name it here, or set security.tls: off",
                          (int)(unset ? (size_t)(port - outside) : strlen(outside)), outside, aq_job_ranks(job), hosts);
    else
        aq_manifest_error(manifest, "security.keys",
                          "is not set, and security.tls is on: make a folder of keys (aqpipe keys init DIR --job NAME "
                          "--stages %u%s) and name it here",
                          aq_job_ranks(job), hosts);
}

/* The address of the status page, and who may see it. */
void aq_manifest_check_status(struct aq_manifest *manifest)
{
    const struct aq_job_status *status = &manifest->job.status;
    struct aq_endpoint endpoint;
    const char *why;
    if (!status->listen) return;
    if (aq_endpoint_parse(status->listen, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, "status.listen",
                          "'%.80s' is not an address: %s; write host:port, as in "
                          "127.0.0.1:8080",
                          status->listen, why);
    else if (!aq_endpoint_loopback(&endpoint) && !status->token_file && !status->client_authority)
        aq_manifest_error(manifest, "status.listen",
                          "%.80s can be reached from elsewhere: set status.token_file (a file with a secret), or "
                          "listen on 127.0.0.1 and use ssh -L",
                          status->listen);
}

void aq_manifest_check_trackers(struct aq_manifest *manifest)
{
    uint32_t wanted;
    char wrong[48];
    if (aq_trackers_read(manifest->job.output.report_to, &wanted, wrong, sizeof wrong) != AQ_OK)
        aq_manifest_error(manifest, "output.report_to", "'%s' is not one of tensorboard, wandb, mlflow", wrong);
}

enum when { ALWAYS, MODEL, SOUND };

static const struct {
    void (*check)(struct aq_manifest *manifest);
    enum when when;
} checks[] = {
#define AQ_CHECK(name, when) {aq_manifest_check_##name, when},
#include "manifest_checks.def"
};

enum aq_status aq_manifest_check(struct aq_manifest *manifest)
{
    aq_manifest_machines(manifest);
    check_model(manifest);
    const bool model = manifest->errors.count > 0 || check_kind(manifest);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const bool sound = model && manifest->errors.count == 0;
        if (checks[i].when == ALWAYS || (checks[i].when == MODEL && model) || sound) checks[i].check(manifest);
    }
    return aq_manifest_rules(manifest);
}
