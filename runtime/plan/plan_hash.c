/*
 * plan_hash.c -- digests: one of the settings that all ranks must share, two that a run must keep to resume, and one
 * that a cache belongs to.
 *
 * keys.def has the scope of each key: which of the digests read it.
 *
 * All are digests of a text, so that a difference can be looked at (AQ_LOG=plan:2 prints the texts, and
 * aq_plan_differences compares them). Settings that cannot change a result are left out: paths, hosts, threads, buffers
 * of links and caches. The length of the run, its evaluations and checkpoints change no earlier step, and the schedule
 * changes no bit: a checkpoint serves a run that differs in these.
 */
#include <stdio.h>
#include <string.h>

#include "keys.h"
#include "plan_private.h"

enum { DIFFERENCES_SHOWN = 12, IDENTITY_BYTES = 512 };

/* A value as the digests have it. model.tied has the names of older runs. reduce.norm 0 was the largest value in older
 * runs, and is L0 since: a digest of its own keeps one from resuming as the other. */
static const char *word_of(const struct aq_key *key, const char *value)
{
    if (strcmp(key->name, "model.tied") == 0)
        return strcmp(value, "exact") == 0 ? "true" : strcmp(value, "untied") == 0 ? "false" : value;
    return strcmp(key->name, "reduce.norm") == 0 && strcmp(value, "0") == 0 ? "l0" : value;
}

static void add_key(const struct aq_key *key, const void *base, const char *prefix, struct aq_text *text)
{
    struct aq_text value = {0};
    if (!aq_key_is_scalar(key)) return;
    const bool said = aq_key_write(key, base, &value) && strcmp(aq_text_of(&value), key->fallback) != 0;
    if (said || key->since == AQ_SINCE_FIRST)
        aq_text_add(text, "%s%s=%s\n", prefix, key->name, word_of(key, aq_text_of(&value)));
    if (text->status == AQ_OK) text->status = value.status;
    aq_text_deinit(&value);
}

static void add_codec(const struct aq_codec_config *codec, uint32_t edge, const char *direction,
                      enum aq_key_scope scope, struct aq_text *text)
{
    const struct aq_key_table keys = aq_keys_codec();
    char prefix[48];
    snprintf(prefix, sizeof prefix, "edges.list.%u.%s.", edge, direction);
    for (uint32_t i = 0; i < keys.count; i++)
        if (keys.keys[i].scope >= scope) add_key(&keys.keys[i], codec, prefix, text);
}

static void add_cut(const struct aq_plan *plan, struct aq_text *text)
{
    aq_text_add(text, "model.vocabulary=%u\n", plan->model.vocabulary);
    if (plan->model.labels) aq_text_add(text, "labels=%u\n", plan->model.labels);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_text_add(text, "pipeline.stages.%u.layers=%u-%u\n", s, plan->stages[s].layer_first,
                    plan->stages[s].layer_end - 1);
}

/* The grouping of replicas into machines decides the averages, so it matters; the machines' addresses do not. */
static void add_machines(const struct aq_job *job, struct aq_text *text)
{
    for (uint32_t v = 0; job->reduce.machine_first && v < job->pipeline.replicas; v++)
        aq_text_add(text, "machine of replica %u=%u\n", v, aq_job_machine(job, v));
}

static void add_file(const char *name, uint64_t samples, uint64_t digest, struct aq_text *text)
{
    aq_text_add(text, "%s=%llu samples (digest %016llx)\n", name, (unsigned long long)samples,
                (unsigned long long)digest);
}

static void add_facts(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job_facts *facts = &plan->facts;
    add_file("data.train", facts->train_samples, facts->train_digest, text);
    add_file("data.heldout", facts->heldout_samples, facts->heldout_digest, text);
    aq_text_add(text, "model.weights=digest %016llx\n", (unsigned long long)facts->weights_digest);
    if (facts->places && facts->places != plan->job->train.T) aq_text_add(text, "places=%u\n", facts->places);
    if (facts->lengths_digest) aq_text_add(text, "lengths=digest %016llx\n", (unsigned long long)facts->lengths_digest);
}

/* Clients may come and go between rounds. A client's checkpoint serves its run to the end. */
static void add_global(const struct aq_plan *plan, enum aq_key_scope scope, struct aq_text *text)
{
    const struct aq_job_facts *facts = &plan->facts;
    const bool began = scope != AQ_SCOPE_PLAN && facts->began_samples > 0;
    aq_text_add(text, "split.mode=global, of %llu samples from %llu on\n",
                (unsigned long long)(began ? facts->began_samples : facts->all_samples),
                (unsigned long long)(began ? facts->began_first : facts->first_sample));
}

/* A line per setting: its name, "=", its value. */
static void plan_text(const struct aq_plan *plan, enum aq_key_scope scope, struct aq_text *text)
{
    const struct aq_key_table keys = aq_keys_job();
    struct aq_job job = *plan->job; /* the values alone are read */
    job.pipeline.schedule = plan->schedule;
    job.pipeline.in_flight = plan->in_flight;
    for (uint32_t i = 0; i < keys.count; i++) {
        const struct aq_key *key = &keys.keys[i];
        const bool any = key->scope == AQ_SCOPE_RANK && scope == AQ_SCOPE_RESUME; /* its line has the default then */
        if ((key->scope < scope && !any) || !aq_key_applies(key, plan->model.kind)) continue;
        if (any && aq_key_read(key, key->fallback, false, &job) != AQ_OK) text->status = AQ_INVAL;
        add_key(key, &job, "", text);
    }
    add_cut(plan, text);
    add_facts(plan, text);
    if (scope != AQ_SCOPE_RESUME) add_machines(plan->job, text);
    for (uint32_t s = 0; s < plan->stage_count && scope == AQ_SCOPE_PLAN; s++)
        aq_text_add(text, "slots of stage %u=%u\n", s, plan->stages[s].config.slots);
    if (scope == AQ_SCOPE_PLAN && aq_job_sealed(plan->job)) aq_text_add(text, "split.seal=true\n");
    if (aq_job_global(plan->job)) add_global(plan, scope, text);
    if (aq_plan_ties(plan)) aq_text_add(text, "head is the embedding's table=true\n");
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        add_codec(&plan->edges[e].shape.forward, e, "forward", scope, text);
        add_codec(&plan->edges[e].shape.backward, e, "backward", scope, text);
        if (plan->edges[e].shape.still) aq_text_add(text, "edges.list.%u.still=true\n", e);
        const bool all = scope == AQ_SCOPE_PLAN; /* both ends agree; a checkpoint serves a run that differs in this */
        if (all && plan->edges[e].shape.wide) aq_text_add(text, "edges.list.%u.forward_bf16=on\n", e);
        if (all && plan->edges[e].shape.wide_back) aq_text_add(text, "edges.list.%u.backward_bf16=on\n", e);
        aq_text_add(text, "bytes of a body on edge %u=%llu\n", e,
                    (unsigned long long)plan->edges[e].size.body_bytes_max);
    }
}

/* ---- differences ---- */

/* The value of a line's name in a text of such lines; its length to *bytes. NULL: no such line. */
static const char *value_of(const char *text, const char *line, size_t name, size_t *bytes)
{
    for (; *text; text += strcspn(text, "\n") + 1) {
        if (strncmp(text, line, name + 1) != 0) continue; /* with its "=" */
        *bytes = strcspn(text + name + 1, "\n");
        return text + name + 1;
    }
    return NULL;
}

/* Lines of `from` that `other` has not, or otherwise; there: `from` is what was. Only what follows from keys, or keys?
 */
static uint32_t compare(const char *from, const char *other, bool there, bool derived, uint32_t found,
                        struct aq_text *out)
{
    for (; *from; from += strcspn(from, "\n") + 1) {
        const size_t name = strcspn(from, "="), mine = strcspn(from + name + 1, "\n");
        size_t bytes = 4;
        const char *value = value_of(other, from, name, &bytes);
        if ((memchr(from, ' ', name) != NULL) != derived) continue;
        if (value && (there || (bytes == mine && strncmp(value, from + name + 1, bytes) == 0))) continue;
        if (!value) value = "none";
        const char *was = there ? from + name + 1 : value, *is = there ? value : from + name + 1;
        if (found++ >= DIFFERENCES_SHOWN) continue;
        aq_text_add(out, "%s%.*s: %.*s there, %.*s here", found > 1 ? "; " : "", (int)name, from,
                    (int)(there ? mine : bytes), was, (int)(there ? bytes : mine), is);
    }
    return found;
}

enum aq_status aq_plan_differences(const struct aq_plan *there, const struct aq_plan *here, bool resume,
                                   struct aq_text *out)
{
    struct aq_text was = {0}, is = {0};
    plan_text(there, resume ? AQ_SCOPE_RESUME : AQ_SCOPE_PLAN, &was);
    plan_text(here, resume ? AQ_SCOPE_RESUME : AQ_SCOPE_PLAN, &is);
    const enum aq_status status = was.status != AQ_OK ? was.status : is.status;
    uint32_t found = 0;
    for (int derived = 0; status == AQ_OK && derived < 2 && found == 0; derived++) {
        found = compare(aq_text_of(&is), aq_text_of(&was), false, derived, found, out);
        found = compare(aq_text_of(&was), aq_text_of(&is), true, derived, found, out);
    }
    if (found > DIFFERENCES_SHOWN) aq_text_add(out, "; and %u more", found - DIFFERENCES_SHOWN);
    aq_text_deinit(&was);
    aq_text_deinit(&is);
    return status != AQ_OK ? status : out->status;
}

/* ---- digests ---- */

static void add_colours(const char *name, const struct aq_factors *values, struct aq_text *text)
{
    for (uint32_t i = 0; i < values->count; i++)
        aq_text_add(text, "%s of colour %u=%.9g\n", name, i, (double)values->of[i]);
}

/* Everything that a message depends on: the model and its initial weights, the sample's tokens, the cut, and the
 * store's format. */
static void job_text(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job *job = plan->job;
    const struct aq_model_config *model = &plan->model;
    const struct aq_job_facts *facts = &plan->facts;
    char identity[IDENTITY_BYTES];
    aq_model_identity(model, identity, sizeof identity);
    aq_text_add(text, "job 1\n%s\n", identity);
    aq_text_add(text, "T=%u tokenizer=%s skip=%llu seed=%llu\n", job->train.T, job->data.tokenizer,
                (unsigned long long)job->data.skip, (unsigned long long)job->train.seed);
    aq_text_add(text, "vocabulary=%u\n", model->vocabulary);
    if (model->labels) aq_text_add(text, "labels=%u\n", model->labels);
    if (facts->lengths_digest) aq_text_add(text, "lengths=%016llx\n", (unsigned long long)facts->lengths_digest);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_text_add(text, "stage=%u-%u\n", plan->stages[s].layer_first, plan->stages[s].layer_end);
    aq_text_add(text, "train=%llu %016llx\nheldout=%llu %016llx\nweights=%016llx\n",
                (unsigned long long)facts->train_samples, (unsigned long long)facts->train_digest,
                (unsigned long long)facts->heldout_samples, (unsigned long long)facts->heldout_digest,
                (unsigned long long)facts->weights_digest);
    if (job->split.client) aq_text_add(text, "client=%s\n", job->split.client);
    if (aq_augment_any(&job->data.augment))
        aq_text_add(text, "crop=%u flip=%d\n", job->data.augment.crop, (int)job->data.augment.flip);
    if (job->data.augment.cutout) aq_text_add(text, "cutout=%u\n", job->data.augment.cutout);
    add_colours("mean", &job->data.image.mean, text);
    add_colours("std", &job->data.image.std, text);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        aq_text_add(text, "edge=%d %d %016llx\n", (int)plan->edges[e].shape.forward.kind,
                    (int)plan->edges[e].shape.forward.store,
                    (unsigned long long)aq_codec_config_digest(&plan->edges[e].shape.forward));
}

/* Line by line, for whoever wonders why two ranks differ. */
static void log_text(const char *name, const char *text)
{
    while (aq_log_on("plan", 2) && *text) {
        const size_t bytes = strcspn(text, "\n");
        aq_log("plan", 2, "%s: %.*s", name, (int)bytes, text);
        text += bytes + (text[bytes] == '\n');
    }
}

static enum aq_status digest_of(const struct aq_plan *plan, enum aq_key_scope scope, uint64_t *out)
{
    struct aq_text text = {0};
    aq_text_add(&text, "plan 2\n");
    plan_text(plan, scope, &text);
    *out = aq_digest(aq_text_of(&text), text.used);
    if (scope == AQ_SCOPE_PLAN) log_text("hash", aq_text_of(&text));
    const enum aq_status status = text.status;
    aq_text_deinit(&text);
    return status;
}

enum aq_status aq_plan_digests(struct aq_plan *plan)
{
    struct aq_text text = {0};
    AQ_TRY(digest_of(plan, AQ_SCOPE_RESUME, &plan->resume_hash));
    AQ_TRY(digest_of(plan, AQ_SCOPE_RANK, &plan->rank_hash));
    AQ_TRY(digest_of(plan, AQ_SCOPE_PLAN, &plan->hash));
    job_text(plan, &text);
    plan->job_digest = aq_digest(aq_text_of(&text), text.used);
    log_text("job digest", aq_text_of(&text));
    const enum aq_status status = text.status;
    aq_text_deinit(&text);
    return status;
}
