/*
 * manifest_optimizer.c -- the optimizer and how what replicas average travels: published settings as defaults, and what
 * does not fit together.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "manifest.h"

void aq_manifest_optimizer_defaults(struct aq_manifest *manifest)
{
    struct aq_optimizer_config *config = &manifest->job.train.optimizer, table = *config;
    const struct aq_yaml_node *node = aq_yaml_find(manifest->root, "train.optimizer");
    const char *kind = node && node->kind == AQ_YAML_SCALAR ? node->text : table.kind;
    bool known = false;
    for (uint32_t i = 0; aq_optimizer_kind_name(i); i++)
        known = known || strcmp(kind, aq_optimizer_kind_name(i)) == 0;
    aq_optimizer_config_default(config, known ? kind : table.kind); /* an unknown kind is told by the key's reader */
    if (config->epsilon <= 0) config->epsilon = table.epsilon;      /* of kinds that have none */
    if (strcmp(config->kind, "adamw") != 0 && strcmp(config->kind, "sgd") != 0) return;
    config->beta1 = table.beta1; /* the table's own defaults: what manifests without these keys have always meant */
    config->beta2 = table.beta2;
    config->epsilon = table.epsilon;
    config->weight_decay = table.weight_decay;
    config->momentum = table.momentum;
}

/* "q4" -> uniform of 4 bits, "lp8" -> lp of 8; the others but auto are kinds by themselves. */
static void codec_of(const char *name, bool error_feedback, struct aq_grad_codec_config *out)
{
    const bool uniform = name[0] == 'q', lp = strncmp(name, "lp", 2) == 0;
    if (strcmp(name, "auto") == 0) { /* the coarsest that may be chosen: what memory has to be there for */
        aq_grad_codec_config_default(out, error_feedback ? "sign" : "uniform");
        return;
    }
    if (!uniform && !lp) {
        aq_grad_codec_config_default(out, strcmp(name, "powersgd") == 0 ? "fp32" : name);
        return;
    }
    aq_grad_codec_config_default(out, uniform ? "uniform" : "lp");
    out->bits = (uint32_t)(name[uniform ? 1 : 2] - '0');
}

static bool is_kind(const struct aq_manifest *manifest, const char *kind)
{
    return strcmp(manifest->job.train.optimizer.kind, kind) == 0;
}

/* Where to point: at the codec, or at the optimizer where none was given. */
static const char *fit_key(const struct aq_manifest *manifest)
{
    return aq_yaml_find(manifest->root, "reduce.codec") ? "reduce.codec" : "train.optimizer";
}

/* What falls by steps must say how often; nothing falls to more than it begins with. */
static bool check_decay(struct aq_manifest *manifest)
{
    const struct aq_job_train *train = &manifest->job.train;
    if (aq_lr_decay_paces(train->decay) && train->decay_every.count == 0) {
        aq_manifest_error(manifest, "train.decay", "this decay wants train.decay_every: '20 epochs', '520 steps'");
        return false;
    }
    if (train->lr_min <= train->lr) return true;
    aq_manifest_error(manifest, "train.lr_min", "%g is more than train.lr, %g", (double)train->lr_min,
                      (double)train->lr);
    return false;
}

/* Does the optimizer take this codec? Says which it takes. */
static bool check_fit(struct aq_manifest *manifest)
{
    const struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    const char *codec = manifest->job.reduce.codec ? manifest->job.reduce.codec : config->reduce.kind;
    const bool vote = strcmp(config->reduce.kind, "vote") == 0, lp = strcmp(config->reduce.kind, "lp") == 0;
    const bool momentum =
        is_kind(manifest, "qadam") || is_kind(manifest, "onebit_adam") || is_kind(manifest, "onebit_lamb");
    const bool lioncub = is_kind(manifest, "lioncub"), slamb = is_kind(manifest, "slamb");
    const char *takes = NULL;
    if (lioncub && config->lane_bits == 0 && !vote)
        takes = "vote (or lp2..lp8 with optimizer.lane_bits)";
    else if (lioncub && config->lane_bits > 0 && !lp)
        takes = "lp2..lp8, for its lanes are numbers";
    else if (slamb && (strcmp(config->reduce.kind, "fp32") != 0 || config->low_rank > 0))
        takes = "fp32, of few values";
    else if (momentum && (vote || config->low_rank > 0))
        takes = "fp32, fp16, bf16, q8..q2, lp8..lp2 or sign";
    else if (!lioncub && !slamb && !momentum && vote)
        takes = "any codec but vote, which has no sizes";
    if (takes)
        aq_manifest_error(manifest, fit_key(manifest), "%s does not fit train.optimizer %s, which takes %s", codec,
                          config->kind, takes);
    return !takes;
}

void aq_manifest_reduce(struct aq_manifest *manifest)
{
    struct aq_optimizer_config *config = &manifest->job.train.optimizer;
    const struct aq_job_reduce *reduce = &manifest->job.reduce;
    const char *published = config->reduce.scale;
    if (manifest->errors.count > 0) return;
    if (reduce->codec) codec_of(reduce->codec, config->error_feedback, &config->reduce);
    config->reduce_automatic = reduce->codec && strcmp(reduce->codec, "auto") == 0;
    const bool sign = strcmp(config->reduce.kind, "sign") == 0;
    if (sign && published) config->reduce.scale = published;
    if (sign && reduce->scale) config->reduce.scale = reduce->scale;
    if ((config->reduce_automatic || strcmp(config->reduce.kind, "uniform") == 0) && reduce->grid)
        config->reduce.grid = reduce->grid;
    if (reduce->bucket) config->reduce.bucket = reduce->bucket;
    if (strcmp(config->reduce.kind, "lp") == 0) config->reduce.norm = reduce->norm > 0.0f ? reduce->norm : INFINITY;
    if (reduce->codec && strcmp(reduce->codec, "powersgd") == 0) {
        config->low_rank = reduce->rank;
        config->low_rank_start = reduce->start_step;
    }
    if (!check_fit(manifest) || !check_decay(manifest)) return;
    if (reduce->bucket % 64) {
        aq_manifest_error(manifest, "reduce.bucket", "%u is not a multiple of 64", reduce->bucket);
        return;
    }
    if (aq_optimizer_config_check(config) != AQ_OK)
        aq_manifest_error(manifest, "train.optimizer", "there can be no such optimizer (the line before says why)");
}
