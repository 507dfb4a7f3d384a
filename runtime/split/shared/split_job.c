/* split_job.c -- see the header. */
#include "split_job.h"

#include <stdio.h>
#include <string.h>

#include "run_folder.h"
#include "runtime_text.h"
#include "split_labels.h"

enum { SETS_MAX = 280, SETS_OWN = 26 };

static const char *const AREA = "split";

/* Sets in one text, each ended by a zero: key=value. */
struct sets {
    const char *of[SETS_MAX];
    uint32_t count;
    struct aq_text texts[SETS_OWN];
    uint32_t own;
};

/* A text in YAML's single quotes. */
static void add_text(struct sets *sets, const char *key, const char *value)
{
    struct aq_text *text = &sets->texts[sets->own++];
    if (!value) return;
    aq_text_add(text, "%s='", key);
    for (; *value; value++)
        aq_text_add(text, *value == '\'' ? "''" : "%c", *value);
    aq_text_add(text, "'");
    sets->of[sets->count++] = aq_text_of(text);
}

static void add_number(struct sets *sets, const char *key, uint64_t value)
{
    struct aq_text *text = &sets->texts[sets->own++];
    aq_text_add(text, "%s=%llu", key, (unsigned long long)value);
    sets->of[sets->count++] = aq_text_of(text);
}

/* Of the data a server has nothing, or labels (split_labels.h). */
static void add_facts(struct sets *sets, const struct aq_job_facts *facts, const char *labels)
{
    char path[2][AQ_RUN_PATH_BYTES];
    for (uint32_t i = 0; i < 2; i++)
        snprintf(path[i], sizeof path[i], "%s/%s", labels ? labels : "", aq_split_labels_name(i));
    add_text(sets, "data.train", labels ? path[0] : "at-the-client");
    if (labels && facts->heldout_samples > 0) add_text(sets, "data.heldout", path[1]);
    add_number(sets, "facts.vocabulary", facts->vocabulary);
    add_number(sets, "facts.labels", facts->labels);
    add_number(sets, "facts.places", facts->places);
    add_number(sets, "facts.end", facts->ends[0]);
    add_number(sets, "facts.end_other", facts->ends[1]);
    add_number(sets, "facts.train_samples", facts->train_samples);
    add_number(sets, "facts.train_digest", facts->train_digest);
    add_number(sets, "facts.heldout_samples", facts->heldout_samples);
    add_number(sets, "facts.heldout_digest", facts->heldout_digest);
    add_number(sets, "facts.weights_digest", facts->weights_digest);
    add_number(sets, "facts.lengths_digest", facts->lengths_digest);
    add_number(sets, "facts.lengths_mean", facts->lengths_mean);
    add_number(sets, "facts.parts", facts->parts);
}

static enum aq_status texts_status(const struct sets *sets)
{
    for (uint32_t i = 0; i < sets->own; i++)
        if (sets->texts[i].status != AQ_OK) return sets->texts[i].status;
    return AQ_OK;
}

static enum aq_status load(const struct aq_split_asked *asked, uint64_t epochs, struct aq_job **out)
{
    struct sets sets = {.count = asked->set_count};
    if (asked->set_count + SETS_OWN > SETS_MAX) return aq_fail(AQ_INVAL, AREA, "there are too many --set");
    memcpy(sets.of, asked->sets, asked->set_count * sizeof *asked->sets);
    if (asked->run) add_text(&sets, "output.path", asked->run);
    if (asked->client) {
        add_text(&sets, "split.client", asked->client);
        add_number(&sets, "train.epochs", epochs);
        add_number(&sets, "train.steps_max", 0);
    }
    if (asked->client && asked->share) {
        add_number(&sets, "facts.all_samples", asked->share->all);
        add_number(&sets, "facts.first_sample", asked->share->first);
        add_number(&sets, "facts.began_samples", asked->share->began_all);
        add_number(&sets, "facts.began_first", asked->share->began_first);
    }
    if (asked->data) add_text(&sets, "data.train", asked->data);
    if (asked->heldout) add_text(&sets, "data.heldout", asked->heldout);
    if (asked->facts) add_facts(&sets, asked->facts, asked->labels);
    enum aq_status status = texts_status(&sets);
    if (status == AQ_OK) status = aq_job_load(asked->manifest, sets.of, sets.count, out);
    for (uint32_t i = 0; i < sets.own; i++)
        aq_text_deinit(&sets.texts[i]);
    return status;
}

enum aq_status aq_split_job_open(const struct aq_split_asked *asked, struct aq_split_job *out)
{
    struct aq_split_asked base = *asked;
    struct aq_split_job made = {0};
    base.client = NULL;
    base.facts = NULL;
    AQ_TRY(load(&base, 0, &made.job));
    enum aq_status status = AQ_OK;
    if (made.job->split.clients == 0)
        status =
            aq_fail(AQ_INVAL, AREA, "%s is not a job of split learning: split.clients is not set", asked->manifest);
    if (status == AQ_OK && asked->client) {
        const uint64_t epochs = (uint64_t)made.job->split.rounds * made.job->split.epochs;
        aq_job_close(made.job);
        made.job = NULL;
        status = load(asked, epochs, &made.job);
        if (status == AQ_OK) status = aq_plan_open(made.job, &made.plan);
    }
    if (status == AQ_OK)
        *out = made;
    else
        aq_split_job_close(&made);
    return status;
}

void aq_split_job_close(struct aq_split_job *job)
{
    aq_plan_close(job->plan);
    aq_job_close(job->job);
    *job = (struct aq_split_job){0};
}
