/*
 * plan_facts.c -- what a plan must know of the job's files: vocabulary, counts and digests. See plan.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan_private.h"
#include "stages/dataset.h"
#include "stages/weights.h"

enum { PLACE_BYTES = 512, WEIGHTS_HEAD_BYTES = 64 * 1024 };

/* A file that is not there is told with the line of the manifest that names it. */
static enum aq_status readable(const struct aq_job *job, const char *key, const char *path)
{
    if (access(path, R_OK) == 0) return AQ_OK;
    const int error = errno;
    char place[PLACE_BYTES];
    aq_job_place(job, key, place, sizeof place);
    errno = error;
    const enum aq_status status = aq_fail_errno("manifest", "%s: %s: cannot read %s", place, key, path);
    return error == ENOENT ? AQ_NOTFOUND : status;
}

static enum aq_status dataset_facts(const struct aq_job *job, bool heldout, uint64_t *samples, uint64_t *digest,
                                    uint32_t *outputs)
{
    const struct aq_dataset_config config = aq_plan_dataset(job, heldout);
    for (uint32_t i = 0; i < config.path_count; i++)
        AQ_TRY(readable(job, heldout ? "data.heldout" : "data.train", config.paths[i]));
    struct aq_dataset *dataset;
    AQ_TRY(aq_dataset_open(&config, &dataset));
    *samples = aq_dataset_count(dataset);
    *digest = aq_dataset_digest(dataset);
    *outputs = aq_dataset_outputs(dataset);
    aq_dataset_close(dataset);
    return AQ_OK;
}

/* The head of a safetensors file names and places every tensor; with the length it tells one file from another. */
static enum aq_status weights_facts(const struct aq_job *job, uint64_t *digest)
{
    const char *path = job->model.weights;
    AQ_TRY(readable(job, "model.weights", path));
    struct aq_weights *weights;
    AQ_TRY(aq_weights_open(path, &weights)); /* whole and well-formed? */
    aq_weights_close(weights);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return aq_fail_errno("plan", "cannot open %s", path);
    void *head = NULL;
    struct stat about;
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc(WEIGHTS_HEAD_BYTES, &head), out);
    const ssize_t bytes = aq_pread_all(fd, head, WEIGHTS_HEAD_BYTES, 0);
    if (bytes < 0 || fstat(fd, &about) < 0)
        status = aq_fail_errno("plan", "cannot read %s", path);
    else
        *digest = aq_digest_seeded(head, (size_t)bytes, (uint64_t)about.st_size);
out:
    aq_free(head);
    close(fd);
    return status;
}

struct aq_dataset_config aq_plan_dataset(const struct aq_job *job, bool heldout)
{
    const struct aq_job_data *data = &job->data;
    return (struct aq_dataset_config){.kind = data->kind,
                                      .paths = heldout ? data->heldout : data->train,
                                      .path_count = heldout ? data->heldout_count : data->train_count,
                                      .tokenizer_kind = data->tokenizer,
                                      .tokenizer_path = data->tokenizer_path,
                                      .T = job->train.T,
                                      .samples_max = heldout ? data->heldout_samples_max : data->train_samples_max,
                                      .skip = heldout ? 0 : data->skip};
}

bool aq_plan_weights_gone(const struct aq_job *job)
{
    return job->model.weights && job->facts.weights_digest && access(job->model.weights, F_OK) != 0;
}

enum aq_status aq_plan_facts(const struct aq_job *job, struct aq_job_facts *out)
{
    struct aq_job_facts facts = {0};
    uint32_t outputs;
    if (job->data.tokenizer_path && aq_tokenizer_about(job->data.tokenizer)->files)
        AQ_TRY(readable(job, "data.tokenizer_path", job->data.tokenizer_path));
    AQ_TRY(dataset_facts(job, false, &facts.train_samples, &facts.train_digest, &facts.vocabulary));
    if (job->data.heldout_count)
        AQ_TRY(dataset_facts(job, true, &facts.heldout_samples, &facts.heldout_digest, &outputs));
    if (aq_plan_weights_gone(job))
        facts.weights_digest = job->facts.weights_digest;
    else if (job->model.weights)
        AQ_TRY(weights_facts(job, &facts.weights_digest));
    *out = facts;
    return AQ_OK;
}
