/*
 * manifest_optimizer.c -- the optimizer and how what replicas average travels: published settings as defaults, and what
 * does not fit together.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "aqsgd/grad_choice.h"
#include "manifest.h"

void aq_manifest_optimizer_defaults(struct aq_manifest *manifest)
{
    struct aq_optimizer_config *config = &manifest->job.train.optimizer, table = *config;
    const struct aq_yaml_node *node = aq_yaml_find(manifest->root, "train.optimizer");
    const char *kind = node && node->kind == AQ_YAML_SCALAR ? node->text : table.kind;
    bool known = false;
    for (uint32_t i = 0; aq_optimizer_kind_name(i); i++)
        known = known || strcmp(kind, aq_optimizer_kind_name(i)) == 0;
    aq_optimizer_config_default(config, known ? kind : table.kind); /* the key's reader has reported an unknown kind */
    if (config->epsilon <= 0) config->epsilon = table.epsilon;      /* of kinds that have none */
    if (!aq_optimizer_config_unpublished(config)) return;
    config->beta1 = table.beta1; /* the table's own defaults: what manifests without these keys have always meant */
    config->beta2 = table.beta2;
    config->epsilon = table.epsilon;
    config->weight_decay = table.weight_decay;
    config->momentum = table.momentum;
}

/* Of the manifest's names; powersgd sends factors in fp32, auto has memory for the coarsest that may be chosen. */
static void codec_of(const char *name, const struct aq_optimizer_config *config, struct aq_grad_codec_config *out)
{
    const struct aq_optimizer_config bare = {.error_feedback = config->error_feedback};
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    if (strcmp(name, "auto") == 0)
        *out = candidates[aq_grad_candidates(&bare, candidates) - 1].config;
    else if (!aq_grad_codec_config_named(out, name))
        aq_grad_codec_config_default(out, "fp32");
}

/* The key to name: the codec, or the optimizer if no codec is set. */
static const char *fit_key(const struct aq_manifest *manifest)
{
    return aq_yaml_find(manifest->root, "reduce.codec") ? "reduce.codec" : "train.optimizer";
}

/* Does the optimizer take this codec? Says which it takes. */
static bool check_fit(struct aq_manifest *manifest)
{
    const struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    const char *codec = manifest->job.reduce.codec ? manifest->job.reduce.codec : config->reduce.kind;
    const char *takes = aq_optimizer_config_takes(config);
    if (takes)
        aq_manifest_error(manifest, fit_key(manifest), "%s does not fit train.optimizer %s, which takes %s", codec,
                          config->kind, takes);
    return !takes;
}

/* The optimizers that average gradients, and can therefore average movements of weights, too. */
static const char *who_averages(struct aq_optimizer_config plain, char *text, size_t bytes)
{
    text[0] = 0;
    plain.outer_every = 0;
    for (uint32_t i = 0; aq_optimizer_kind_name(i); i++) {
        plain.kind = aq_optimizer_kind_name(i);
        if (aq_optimizer_config_averages(&plain))
            snprintf(text + strlen(text), bytes - strlen(text), "%s%s", text[0] ? ", " : "", plain.kind);
    }
    return text;
}

/* Local steps average movements of weights: which optimizers allow replicas with different weights? */
static bool check_local(struct aq_manifest *manifest)
{
    const struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    struct aq_optimizer_config plain = *config;
    char kinds[128];
    plain.outer_every = 0;
    if (config->outer_every == 0) return true;
    if (config->low_rank > 0) {
        aq_manifest_error(
            manifest, "reduce.codec",
            "%s does not fit reduce.every %u: it starts from the factors of the previous step's mean; take "
            "q8..q2, sign, bf16, fp16 or fp32",
            manifest->job.reduce.codec, config->outer_every);
        return false;
    }
    if (aq_optimizer_config_averages(&plain)) return true;
    aq_manifest_error(manifest, "reduce.every",
                      "%u does not fit train.optimizer %s: its steps average momenta, votes or parts of the weights "
                      "among replicas, which needs equal weights there; take %s",
                      config->outer_every, config->kind, who_averages(*config, kinds, sizeof kinds));
    return false;
}

/*
 * reduce.patience with reduce.every: 1: a step's mean of gradients is its round. What an optimizer makes of them, and
 * PowerSGD's two means, are not made again.
 */
static bool check_patient_steps(struct aq_manifest *manifest)
{
    const struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    char kinds[128];
    if (config->outer_every > 0) return true;
    if (config->low_rank > 0) {
        aq_manifest_error(manifest, "reduce.patience",
                          "does not go with reduce.codec: powersgd, whose two means of a step are not made again "
                          "without a lost replica; take q8..q2, sign, bf16, fp16 or fp32");
        return false;
    }
    if (aq_optimizer_config_averages(config)) return true;
    aq_manifest_error(manifest, "reduce.patience",
                      "does not fit train.optimizer %s: only a mean of gradients is made again without a lost replica, "
                      "not what this one makes of them; take %s",
                      config->kind, who_averages(*config, kinds, sizeof kinds));
    return false;
}

/* reduce.patience: what must be so that a round can end without a replica, with a checkpoint that all share. */
static bool check_patience(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_optimizer_config *config = &job->train.optimizer;
    const struct aq_job_every *every = &job->checkpoint.every;
    const char *why = NULL;
    if (job->reduce.patience_ns == 0) return true;
    const uint32_t round = config->outer_every > 0 ? config->outer_every : 1;
    if (job->pipeline.replicas < 2)
        why = "needs pipeline.replicas of 2 and more";
    else if (job->reduce.transport == AQ_TRANSPORT_NCCL)
        why = "needs reduce.transport: links: a communicator of NCCL ends with its first lost rank";
    else if (job->train.staleness > 0)
        why = "does not go with train.staleness: a step of the next round may be under way";
    else if (job->checkpoint.mirror)
        why = "does not go with checkpoint.mirror: the copy of a lost stage's file has no keeper";
    else if (every->ns > 0 || every->epochs || every->count % round != 0)
        why = "needs checkpoint.every in steps, a multiple of reduce.every: each checkpoint is at a round's end";
    if (why) aq_manifest_error(manifest, "reduce.patience", "%s", why);
    return !why && check_patient_steps(manifest);
}

/* reduce.delay: the average of a round travels during the first steps of the next one. */
static bool check_delay(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_job_reduce *reduce = &job->reduce;
    const char *why = NULL;
    if (reduce->delay == 0) return true;
    if (reduce->every < 2)
        why = "needs reduce.every of 2 and more: with 1 each step waits for its average of gradients; set 0";
    else if (reduce->steps == AQ_STEPS_SPEED)
        why = "does not go with reduce.steps: speed, which names the next round's steps when the average is there; "
              "take equal, or 0";
    else if (reduce->transport == AQ_TRANSPORT_NCCL)
        why = "needs reduce.transport: links: NCCL averages in the order of a GPU's steps";
    if (why) {
        aq_manifest_error(manifest, "reduce.delay", "%s", why);
        return false;
    }
    if (reduce->delay < reduce->every) return true;
    aq_manifest_error(manifest, "reduce.delay",
                      "%u must be below reduce.every, %u: an average ends before the next one begins", reduce->delay,
                      reduce->every);
    return false;
}

/* reduce.steps: speed. In the middle of a round replicas are at different steps: all looks are at its end. */
static bool check_steps(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const struct aq_job_every *every = &job->train.evaluate_every;
    if (job->reduce.steps == AQ_STEPS_EQUAL) return true;
    if (job->train.optimizer.outer_every == 0) {
        aq_manifest_error(manifest, "reduce.steps",
                          "speed needs reduce.every of 2 and more: with 1 every replica trains every step");
        return false;
    }
    if (every->count == 0 || (!every->epochs && every->count % job->train.optimizer.outer_every == 0)) return true;
    aq_manifest_error(manifest, "reduce.steps",
                      "speed needs train.evaluate_every in steps, a multiple of reduce.every: in the middle of a round "
                      "replicas are at different steps");
    return false;
}

void aq_manifest_check_rates(struct aq_manifest *manifest)
{
    struct aq_job_train *train = &manifest->job.train;
    if (!aq_lr_ends_read(train->schedule, &train->lr_ends))
        aq_manifest_error(manifest, "train.schedule",
                          "is not a list of at most %d ends in rising order, each one of extend, continue and restart "
                          "with a step, as in 'restart 24, continue 48'",
                          AQ_LR_ENDS_MAX);
    if (train->warmup_from > train->lr)
        aq_manifest_error(manifest, "train.warmup_from", "%g is more than train.lr, %g", (double)train->warmup_from,
                          (double)train->lr);
    if (train->warmup_from > 0 && train->warmup_steps == 0)
        aq_manifest_error(manifest, "train.warmup_from", "%g without a warm-up: set train.warmup_steps",
                          (double)train->warmup_from);
    if (train->lr_min > train->lr)
        aq_manifest_error(manifest, "train.lr_min", "%g is more than train.lr, %g", (double)train->lr_min,
                          (double)train->lr);
}

void aq_manifest_reduce(struct aq_manifest *manifest)
{
    struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    const struct aq_job_reduce *reduce = &manifest->job.reduce;
    const char *published = config->reduce.scale;
    if (manifest->errors.count > 0) return;
    if (reduce->codec) codec_of(reduce->codec, config, &config->reduce);
    config->reduce_automatic = reduce->codec && strcmp(reduce->codec, "auto") == 0;
    const struct aq_grad_codec_config wished = {.grid = reduce->grid,
                                                .scale = reduce->scale ? reduce->scale : published,
                                                .density = reduce->density,
                                                .norm = reduce->norm > 0.0f ? reduce->norm : AQ_GRAD_NORM_L0};
    aq_grad_codec_config_take(&config->reduce, &wished);
    if (config->reduce_automatic && reduce->grid) config->reduce.grid = reduce->grid; /* of those to be chosen */
    if (reduce->bucket) config->reduce.bucket = reduce->bucket;
    if (reduce->codec && strcmp(reduce->codec, "powersgd") == 0) {
        config->low_rank = reduce->rank;
        config->low_rank_start = reduce->start_step;
    }
    config->outer_every = reduce->every > 1 ? reduce->every : 0;
    config->outer_lr = reduce->outer_lr;
    config->outer_momentum = reduce->outer_momentum;
    config->outer_delay = reduce->delay;
    config->retries = reduce->patience_ns > 0;
    config->predict = manifest->job.train.staleness > 0 && manifest->job.train.prediction;
    if (!check_fit(manifest) || !check_local(manifest) || !check_patience(manifest) || !check_delay(manifest) ||
        !check_steps(manifest))
        return;
    if (reduce->bucket % 64) {
        aq_manifest_error(manifest, "reduce.bucket", "%u is not a multiple of 64", reduce->bucket);
        return;
    }
    struct aq_error_hold why;
    aq_error_hold(&why);
    const enum aq_status status = aq_optimizer_config_check(config);
    aq_error_release(&why);
    if (status != AQ_OK) aq_manifest_error(manifest, "train.optimizer", "this optimizer is not possible: %s", why.text);
}
