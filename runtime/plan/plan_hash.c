/*
 * plan_hash.c -- what all ranks must agree on, as one number; and what a cache belongs to, as another.
 *
 * Both are digests of a text, so that a difference can be looked at (AQ_LOG=plan:2 prints the texts). What cannot
 * change a result is left out: where things lie, who runs them with how many threads, how links and caches are
 * buffered.
 */
#include <string.h>

#include "keys.h"
#include "plan_private.h"

/* Keys, or sections with their dot, that change no result. */
static const char *const indifferent[] = {"job.name",
                                          "data.tokenizer_path",
                                          "data.train",
                                          "data.heldout",
                                          "model.weights",
                                          "model.vocabulary",
                                          "train.skips_max",
                                          "reduce.transport",
                                          "pipeline.threads",
                                          "pipeline.stages",
                                          "edges.",
                                          "link.",
                                          "security.",
                                          "control.",
                                          "cache.",
                                          "checkpoint.path",
                                          "checkpoint.keep",
                                          "checkpoint.mirror",
                                          "checkpoint.mirror_key",
                                          "output.",
                                          "facts."};

static bool matters(const char *name)
{
    for (size_t i = 0; i < sizeof indifferent / sizeof *indifferent; i++) {
        const size_t bytes = strlen(indifferent[i]);
        const bool section = indifferent[i][bytes - 1] == '.';
        if (strncmp(name, indifferent[i], section ? bytes : bytes + 1) == 0) return false;
    }
    return true;
}

static void add_keys(const struct aq_key_table keys, const void *base, const char *prefix, bool all,
                     struct aq_text *text)
{
    for (uint32_t i = 0; i < keys.count; i++) {
        const struct aq_key *key = &keys.keys[i];
        if (!aq_key_is_scalar(key) || !(all || matters(key->name))) continue;
        aq_text_add(text, "%s%s=", prefix, key->name);
        (void)aq_key_write(key, base, text);
        aq_text_add(text, "\n");
    }
}

static void add_cut(const struct aq_plan *plan, struct aq_text *text)
{
    aq_text_add(text, "vocabulary=%u\n", plan->model.vocabulary);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_text_add(text, "stage=%u-%u\n", plan->stages[s].layer_first, plan->stages[s].layer_end);
}

/* Who averages first decides what is averaged then: hosts matter, if not where they are. */
static void add_machines(const struct aq_job *job, struct aq_text *text)
{
    for (uint32_t v = 0; job->reduce.machine_first && v < job->pipeline.replicas; v++)
        aq_text_add(text, "replica %u on machine %u\n", v, aq_job_machine(job, v));
}

static void add_facts(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job_facts *facts = &plan->facts;
    aq_text_add(text, "train=%llu %016llx\nheldout=%llu %016llx\nweights=%016llx\n",
                (unsigned long long)facts->train_samples, (unsigned long long)facts->train_digest,
                (unsigned long long)facts->heldout_samples, (unsigned long long)facts->heldout_digest,
                (unsigned long long)facts->weights_digest);
}

/* kin: what also a run with another count of replicas has. */
static void plan_text(const struct aq_plan *plan, bool kin, struct aq_text *text)
{
    struct aq_job job = *plan->job; /* the values alone are read */
    if (kin) job.pipeline.replicas = 1;
    aq_text_add(text, "plan 1\n");
    add_keys(aq_keys_job(), &job, "", false, text);
    add_cut(plan, text);
    add_facts(plan, text);
    if (!kin) add_machines(plan->job, text);
    for (uint32_t s = 0; s < plan->stage_count && !kin; s++)
        aq_text_add(text, "slots=%u\n", plan->stages[s].config.slots);
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        add_keys(aq_keys_codec(), &plan->edges[e].shape.forward, "forward.", true, text);
        add_keys(aq_keys_codec(), &plan->edges[e].shape.backward, "backward.", true, text);
        aq_text_add(text, "body=%llu\n", (unsigned long long)plan->edges[e].size.body_bytes_max);
    }
}

/* What a message is a message of: the model and its beginning, the sample's tokens, the cut, and how it is kept. */
static void job_text(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job *job = plan->job;
    const struct aq_model_config *model = &plan->model;
    aq_text_add(text, "job 1\n%s %u %u %u %u %u %d\n", model->kind, model->blocks, model->heads, model->channels,
                model->vocabulary, model->context, model->tied);
    aq_text_add(text, "T=%u tokenizer=%s skip=%llu seed=%llu\n", job->train.T, job->data.tokenizer,
                (unsigned long long)job->data.skip, (unsigned long long)job->train.seed);
    add_cut(plan, text);
    add_facts(plan, text);
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

enum aq_status aq_plan_digests(struct aq_plan *plan)
{
    struct aq_text text = {0};
    plan_text(plan, true, &text);
    plan->kin = aq_digest(aq_text_of(&text), text.used);
    aq_text_deinit(&text);
    plan_text(plan, false, &text);
    plan->hash = aq_digest(aq_text_of(&text), text.used);
    log_text("hash", aq_text_of(&text));
    enum aq_status status = text.status;
    aq_text_deinit(&text);
    job_text(plan, &text);
    plan->job_digest = aq_digest(aq_text_of(&text), text.used);
    log_text("job digest", aq_text_of(&text));
    if (status == AQ_OK) status = text.status;
    aq_text_deinit(&text);
    return status;
}
