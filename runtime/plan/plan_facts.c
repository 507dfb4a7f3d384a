/*
 * plan_facts.c -- what a plan must know of the job's files: vocabulary, counts and digests. See plan.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lengths.h"
#include "plan_private.h"
#include "stages/adapter_folder.h"
#include "stages/dataset.h"
#include "stages/weights.h"

enum { PLACE_BYTES = 512 };

/* A path as a shell, or a hub of models, would understand it: the remedy, or NULL. */
static const char *other_path(const char *key, const char *path)
{
    if (strstr(path, "://")) return "a file of this machine is needed: download it first";
    if (strpbrk(path, "~$*?")) return "~, $ and * have no meaning here: write the path in full";
    if (strcmp(key, "model.weights") == 0 && !strstr(path, ".safetensors"))
        return "if it is a model's name, write hf://NAME, or get it by `hf download NAME --local-dir FOLDER`";
    return NULL;
}

/* The error for a missing file names the line of the manifest. */
static enum aq_status readable(const struct aq_job *job, const char *key, const char *path)
{
    if (access(path, R_OK) == 0) return AQ_OK;
    const int error = errno;
    char place[PLACE_BYTES];
    aq_job_place(job, key, place, sizeof place);
    const char *remedy = error == ENOENT ? other_path(key, path) : NULL;
    if (remedy) return aq_fail(AQ_NOTFOUND, "manifest", "%s: %s: there is no %s; %s", place, key, path, remedy);
    errno = error;
    const enum aq_status status = aq_fail_errno("manifest", "%s: %s: cannot read %s", place, key, path);
    return error == ENOENT ? AQ_NOTFOUND : status;
}

/* A data set's path that is no file, which is there. */
static enum aq_status is_file(const struct aq_job *job, const char *key, const char *path)
{
    struct stat about;
    char place[PLACE_BYTES];
    if (stat(path, &about) != 0 || S_ISREG(about.st_mode)) return AQ_OK;
    aq_job_place(job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest", "%s: %s: %s is %s, not a file; name a file, or a list of files", place, key,
                   path, S_ISDIR(about.st_mode) ? "a folder" : "a device, pipe or socket");
}

/* The facts of one of the two data sets. */
struct told {
    uint64_t samples, digest;
    uint32_t outputs, vocabulary, places;
    uint32_t ends[AQ_DATASET_ENDS_MAX]; /* each and 1 */
    uint32_t *lengths;                  /* memory of aq_alloc, or NULL: of samples, then of their parts */
    uint64_t parts;
};

static enum aq_status lengths_copy(const struct aq_dataset *dataset, struct told *out)
{
    const uint32_t *lengths = aq_dataset_lengths(dataset), *parts = aq_dataset_parts(dataset, &out->parts);
    if (!lengths) return AQ_OK;
    AQ_TRY(AQ_NEW(out->samples + out->parts, &out->lengths));
    memcpy(out->lengths, lengths, out->samples * sizeof *lengths);
    if (parts) memcpy(out->lengths + out->samples, parts, out->parts * sizeof *parts);
    return AQ_OK;
}

static enum aq_status dataset_facts(const struct aq_job *job, bool heldout, struct told *out)
{
    const struct aq_dataset_config config = aq_plan_dataset(job, heldout);
    for (uint32_t i = 0; i < config.path_count; i++) {
        const char *key = heldout ? "data.heldout" : "data.train";
        AQ_TRY(readable(job, key, config.paths[i]));
        AQ_TRY(is_file(job, key, config.paths[i]));
    }
    struct aq_dataset *dataset;
    AQ_TRY(aq_dataset_open(&config, &dataset));
    *out = (struct told){.samples = aq_dataset_count(dataset),
                         .digest = aq_dataset_digest(dataset),
                         .outputs = aq_dataset_outputs(dataset),
                         .vocabulary = aq_dataset_vocabulary(dataset),
                         .places = aq_dataset_tokens(dataset)};
    uint32_t ends;
    const int32_t *end = aq_dataset_ends(dataset, &ends);
    for (uint32_t i = 0; i < ends; i++)
        out->ends[i] = (uint32_t)end[i] + 1;
    const enum aq_status status = lengths_copy(dataset, out);
    aq_dataset_close(dataset);
    return status;
}

static enum aq_status weights_facts(const struct aq_job *job, uint64_t *digest)
{
    const char *path = job->model.weights;
    struct aq_weights *weights;
    AQ_TRY(readable(job, "model.weights", path));
    AQ_TRY(aq_weights_open(path, &weights)); /* whole and well-formed? */
    *digest = aq_weights_digest(weights);
    aq_weights_close(weights);
    return AQ_OK;
}

/* One digest of the model's weights and the adapters'; without adapters only of the model's. */
static enum aq_status adapter_facts(const struct aq_job *job, uint64_t *digest)
{
    struct aq_adapter_folder *folder;
    AQ_TRY(aq_adapter_folder_open(job->train.lora_weights, &folder));
    const uint64_t both[2] = {*digest, aq_weights_digest(aq_adapter_folder_weights(folder))};
    aq_adapter_folder_close(folder);
    *digest = aq_digest(both, sizeof both) | 1;
    return AQ_OK;
}

struct aq_dataset_config aq_plan_dataset(const struct aq_job *job, bool heldout)
{
    const struct aq_job_data *data = &job->data;
    const char *task = job->model.task ? job->model.task : aq_model_task(job->model.config.kind);
    return (struct aq_dataset_config){
        .kind = data->kind,
        .paths = heldout ? data->heldout : data->train,
        .path_count = heldout ? data->heldout_count : data->train_count,
        .tokenizer_kind = data->tokenizer,
        .tokenizer_path = data->tokenizer_path,
        .cache = data->cache,
        .T = job->train.T,
        .begin = data->bos,
        .places_max = job->model.config.context,
        .tokens_max = job->model.weights ? job->model.config.vocabulary : 0,
        .field = aq_task_field(aq_task_find(task)),
        .columns = {data->columns.text, data->columns.pair, data->columns.label, data->labels},
        .chat = data->chat,
        .chat_variables = data->chat_variables,
        .whole = !data->pack,
        .together = !data->pack_mask,
        .names = data->fields,
        .skip_invalid = data->skip_invalid,
        .quotes = data->quotes,
        .image = data->image,
        .samples_max = heldout ? data->heldout_samples_max : data->train_samples_max,
        .skip = heldout ? 0 : data->skip};
}

uint32_t aq_plan_places(const struct aq_plan *plan)
{
    return plan->facts.places ? plan->facts.places : plan->job->train.T;
}

bool aq_plan_weights_gone(const struct aq_job *job)
{
    return job->model.weights && job->facts.weights_digest && access(job->model.weights, F_OK) != 0;
}

uint64_t aq_plan_lengths_count(const struct aq_job_facts *facts)
{
    return facts->train_samples + facts->heldout_samples + facts->parts;
}

/* Leaves out samples [first, end) and their parts; `lengths` has `samples` lengths, then those of the parts. */
static void leave_out(struct aq_job_facts *facts, uint64_t first, uint64_t end, uint64_t samples, uint32_t *lengths)
{
    uint32_t *parts = lengths + samples;
    uint64_t from = 0, to, part = 0;
    for (uint64_t s = 0; facts->parts && s < end; s++) {
        if (s == first) from = part;
        for (uint64_t left = lengths[s]; left > 0; part++)
            left -= parts[part];
    }
    to = part;
    memmove(lengths + first, lengths + end, (samples - end) * sizeof *lengths);
    lengths += samples - (end - first);
    memmove(lengths, parts, from * sizeof *parts);
    if (facts->parts) memmove(lengths + from, parts + to, (facts->parts - to) * sizeof *parts);
    facts->parts -= to - from;
}

enum aq_status aq_plan_lengths_take(struct aq_plan *plan, uint64_t train_samples, uint32_t *lengths)
{
    struct aq_job_facts *facts = &plan->facts;
    const uint64_t train = facts->train_samples, bytes = sizeof *lengths;
    char place[PLACE_BYTES];
    uint64_t sum = 0;
    if (plan->job->split.pad) { /* the server plans without them, and so does the client */
        AQ_ASSERT(facts->parts == 0); /* manifest_split.c */
        return AQ_OK;
    }
    if (train < train_samples) leave_out(facts, train, train_samples, train_samples + facts->heldout_samples, lengths);
    const uint64_t all = aq_plan_lengths_count(facts);
    aq_job_place(plan->job, "data.train_samples_max", place, sizeof place);
    if (aq_lengths_characters(all, plan->job->train.T) > AQ_LENGTHS_TEXT_MAX)
        return aq_fail(AQ_INVAL, "manifest",
                       "%s: data.train_samples_max: the lengths of %llu samples and parts of up to %u tokens take more "
                       "than %d KiB, too much to send to stages; take at most %llu, with the held-out ones",
                       place, (unsigned long long)all, plan->job->train.T, AQ_LENGTHS_TEXT_MAX >> 10,
                       (unsigned long long)aq_lengths_count_max(plan->job->train.T));
    for (uint64_t i = 0; i < train; i++)
        sum += lengths[i];
    facts->lengths_mean = (uint32_t)((sum + train - 1) / train);
    facts->lengths_digest = aq_digest(lengths, all * bytes) | 1;
    plan->lengths = lengths;
    return AQ_OK;
}

enum aq_status aq_plan_lengths(const struct aq_plan *plan, char **text)
{
    *text = NULL;
    if (!plan->lengths) return AQ_OK;
    return aq_lengths_write(plan->lengths, aq_plan_lengths_count(&plan->facts), plan->job->train.T, text);
}

/* The lengths of a sample's parts add up to its own; no part is left over. */
static bool parts_fit(const struct aq_job_facts *facts, const uint32_t *lengths)
{
    const uint64_t samples = facts->train_samples + facts->heldout_samples;
    const uint32_t *parts = lengths + samples;
    uint64_t part = 0;
    for (uint64_t s = 0; s < samples && facts->parts > 0; s++)
        for (uint64_t have = 0; have < lengths[s]; part++) {
            if (part == facts->parts || parts[part] > lengths[s] - have) return false;
            have += parts[part];
        }
    return part == facts->parts;
}

static enum aq_status lengths_fit(const struct aq_job_facts *facts, const uint32_t *lengths)
{
    const uint64_t train = facts->train_samples;
    uint64_t sum = 0;
    if ((aq_digest(lengths, aq_plan_lengths_count(facts) * sizeof *lengths) | 1) != facts->lengths_digest)
        return aq_fail(AQ_MISMATCH, "plan", "they are not those that the job was planned with");
    for (uint64_t i = 0; i < train; i++)
        sum += lengths[i];
    if ((sum + train - 1) / train != facts->lengths_mean)
        return aq_fail(AQ_MISMATCH, "plan", "their mean is not %u tokens", facts->lengths_mean);
    return parts_fit(facts, lengths) ? AQ_OK
                                     : aq_fail(AQ_MISMATCH, "plan", "the parts of a sample are not as long as it");
}

enum aq_status aq_plan_lengths_check(const struct aq_plan *plan, const char *text)
{
    const struct aq_job_facts *facts = &plan->facts;
    const uint64_t count = aq_plan_lengths_count(facts);
    const uint32_t T = plan->job->train.T;
    void *memory;
    if (!facts->lengths_digest) return aq_fail(AQ_MISMATCH, "plan", "all samples of this job are alike");
    if (strlen(text) != aq_lengths_characters(count, T)) /* before memory is taken for them */
        return aq_fail(AQ_MISMATCH, "plan", "they are not of %llu samples and parts", (unsigned long long)count);
    AQ_TRY(aq_alloc(count * sizeof(uint32_t), &memory));
    enum aq_status status = aq_lengths_read(text, count, T, memory);
    if (status == AQ_OK) status = lengths_fit(facts, memory);
    aq_free(memory);
    return status;
}

/* Of both, one behind the other, and so their parts; where one has no lengths, all its samples are whole. */
static enum aq_status lengths_join(const struct told *train, const struct told *heldout, uint32_t T, uint32_t **out)
{
    const struct told *const both[] = {train, heldout};
    void *memory;
    *out = NULL;
    if (!train->lengths && !heldout->lengths) return AQ_OK;
    AQ_TRY(aq_alloc((train->samples + heldout->samples + train->parts + heldout->parts) * sizeof **out, &memory));
    uint32_t *at = *out = memory;
    for (int b = 0; b < 2; b++)
        for (uint64_t i = 0; i < both[b]->samples; i++)
            *at++ = both[b]->lengths ? both[b]->lengths[i] : T;
    for (int b = 0; b < 2; b++)
        for (uint64_t i = 0; i < both[b]->parts; i++)
            *at++ = both[b]->lengths[both[b]->samples + i];
    return AQ_OK;
}

/* The held-out samples may have no label that the training samples lack, unless the manifest states how many there are:
 * a client of split learning may hold none of the last. */
static enum aq_status labels_check(const struct aq_job *job, const struct told *train, const struct told *heldout)
{
    const struct aq_model_config *model = &job->model.config;
    const uint32_t stated = train->vocabulary ? model->labels : model->vocabulary;
    if (!heldout->samples || heldout->outputs <= train->outputs || heldout->outputs <= stated) return AQ_OK;
    char place[PLACE_BYTES];
    aq_job_place(job, "data.heldout", place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest", "%s: data.heldout: has %u labels, data.train has %u: set %s, or data.labels",
                   place, heldout->outputs, train->outputs,
                   train->vocabulary ? "model.labels" : aq_model_outputs_key(model->kind));
}

enum aq_status aq_plan_facts(const struct aq_job *job, struct aq_job_facts *out, uint32_t **lengths)
{
    struct told train = {0}, heldout = {0};
    enum aq_status status;
    *lengths = NULL;
    if (job->data.tokenizer_path && aq_tokenizer_about(job->data.tokenizer)->files)
        AQ_TRY(readable(job, "data.tokenizer_path", job->data.tokenizer_path));
    AQ_TRY(dataset_facts(job, false, &train));
    if (job->data.heldout_count) AQ_TRY_GOTO(dataset_facts(job, true, &heldout), out);
    AQ_TRY_GOTO(labels_check(job, &train, &heldout), out);
    struct aq_job_facts facts = {.vocabulary = train.vocabulary ? train.vocabulary : train.outputs,
                                 .train_samples = train.samples,
                                 .train_digest = train.digest,
                                 .heldout_samples = heldout.samples,
                                 .heldout_digest = heldout.digest,
                                 .places = train.places,
                                 .ends = {train.ends[0], train.ends[1]},
                                 .parts = train.parts + heldout.parts,
                                 .all_samples = job->facts.all_samples,
                                 .first_sample = job->facts.first_sample,
                                 .began_samples = job->facts.began_samples,
                                 .began_first = job->facts.began_first};
    if (train.vocabulary && train.outputs != train.vocabulary) facts.labels = train.outputs;
    if (aq_plan_weights_gone(job))
        facts.weights_digest = job->facts.weights_digest;
    else if (job->model.weights)
        AQ_TRY_GOTO(weights_facts(job, &facts.weights_digest), out);
    if (job->train.lora_weights && !aq_plan_weights_gone(job))
        AQ_TRY_GOTO(adapter_facts(job, &facts.weights_digest), out);
    AQ_TRY_GOTO(lengths_join(&train, &heldout, job->train.T, lengths), out);
    *out = facts;
out:
    aq_free(train.lengths);
    aq_free(heldout.lengths);
    return status;
}
