/* rank_data.c -- see the header. */
#include "rank_data.h"

#include <inttypes.h>
#include <string.h>

#include "control.h"
#include "lengths.h"
#include "stages/labels.h"

/* Finds the first part of each sample: the lengths of its parts add up to its own. */
static enum aq_status open_parts(struct aq_rank_data *data)
{
    const struct aq_job_facts *facts = &data->plan->facts;
    const uint64_t samples = facts->train_samples + facts->heldout_samples;
    AQ_TRY(AQ_NEW(samples + 1, &data->part_first));
    data->parts = data->train_lengths + samples;
    uint64_t part = 0;
    for (uint64_t s = 0; s < samples; s++) {
        data->part_first[s] = (uint32_t)part;
        for (uint64_t have = 0; have < data->train_lengths[s]; part++) {
            if (part == facts->parts || data->parts[part] > data->train_lengths[s] - have)
                return aq_fail(AQ_PROTO, "worker", "the parts of sample %" PRIu64 " are not as long as it", s);
            have += data->parts[part];
        }
    }
    data->part_first[samples] = (uint32_t)part;
    if (part != facts->parts) return aq_fail(AQ_PROTO, "worker", "parts remain after the last sample");
    return AQ_OK;
}

/* First tokens of a sample's parts, as row `row` of data->starts; NULL: samples have no parts. */
static const uint32_t *starts_of(const struct aq_rank_data *data, bool heldout, uint64_t sample, uint32_t row)
{
    const uint64_t at = sample + (heldout ? data->plan->facts.train_samples : 0);
    if (!data->parts) return NULL;
    uint32_t *to = data->starts + (uint64_t)row * data->plan->job->train.T;
    aq_dataset_starts(data->parts + data->part_first[at], data->part_first[at + 1] - data->part_first[at],
                      data->plan->job->train.T, to);
    return to;
}

/*
 * Lengths of all samples: a stage without data gets them from the launcher, which has read them. The digest is in the
 * plan, so that both ends of an edge have the same.
 */
static enum aq_status open_lengths(struct aq_rank_data *data, const json_t *start)
{
    const struct aq_job_facts *facts = &data->plan->facts;
    const uint64_t all = aq_plan_lengths_count(facts);
    const char *text;
    void *memory;
    if (!facts->lengths_digest) return AQ_OK;
    if (facts->parts > UINT32_MAX) return aq_fail(AQ_PROTO, "worker", "samples of too many parts");
    AQ_TRY(aq_control_get_text(start, "lengths", &text));
    AQ_TRY(aq_alloc(all * sizeof(uint32_t), &memory));
    data->lengths_memory = memory;
    AQ_TRY(aq_lengths_read(text, all, data->plan->job->train.T, memory));
    if ((aq_digest(memory, all * sizeof(uint32_t)) | 1) != facts->lengths_digest)
        return aq_fail(AQ_PROTO, "worker", "received other lengths of the samples than the plan's");
    data->train_lengths = memory;
    data->heldout_lengths = data->train_lengths + facts->train_samples;
    return facts->parts ? open_parts(data) : AQ_OK;
}

/* Compares the lengths of the samples that this stage reads with those that the launcher sent. */
static enum aq_status lengths_agree(const struct aq_rank_data *data, const struct aq_dataset *dataset, bool heldout)
{
    const uint32_t *here = aq_dataset_lengths(dataset), *told = heldout ? data->heldout_lengths : data->train_lengths;
    const uint64_t samples = heldout ? data->plan->facts.heldout_samples : data->plan->facts.train_samples;
    for (uint64_t i = 0; i < samples && (here || told); i++)
        if ((here ? here[i] : data->plan->job->train.T) != (told ? told[i] : data->plan->job->train.T))
            return aq_fail(AQ_MISMATCH, "worker", "sample %" PRIu64 " is not as long as the job was planned with", i);
    return AQ_OK;
}

/* A server's last stage of a turn has labels and nothing else of its client's data. */
static bool labels_alone(const struct aq_rank_data *data)
{
    return data->plan->job->split.client && data->position + 1 == data->plan->stage_count &&
           !aq_job_at_client(data->plan->job, data->rank);
}

static enum aq_status labels_agree(const struct aq_rank_data *data, const struct aq_dataset *labels, bool heldout)
{
    const uint64_t want = heldout ? data->plan->facts.heldout_samples : data->plan->facts.train_samples;
    if (aq_dataset_count(labels) == want && aq_dataset_outputs(labels) <= data->plan->model.vocabulary) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "worker",
                   "there are %" PRIu64 " labels of up to %u classes: the job is of %" PRIu64 " samples and %u classes",
                   aq_dataset_count(labels), aq_dataset_outputs(labels), want, data->plan->model.vocabulary);
}

static enum aq_status open_dataset(const struct aq_rank_data *data, bool heldout, struct aq_dataset **out)
{
    struct aq_dataset_config config = aq_plan_dataset(data->plan->job, heldout);
    const bool labels = labels_alone(data);
    if (labels) { /* of the samples that the client has taken of its data */
        config.kind = aq_labels_kind();
        config.samples_max = config.skip = 0;
    }
    AQ_TRY(aq_dataset_open(&config, out));
    if (labels) return labels_agree(data, *out, heldout);
    const uint64_t want = heldout ? data->plan->facts.heldout_digest : data->plan->facts.train_digest;
    if (aq_dataset_digest(*out) == want && data->plan->job->split.pad) return AQ_OK;
    if (aq_dataset_digest(*out) == want) return lengths_agree(data, *out, heldout);
    return aq_fail(AQ_MISMATCH, "worker",
                   "%s is not the data that the job was planned with (digest %016" PRIx64 ", planned %016" PRIx64 ")",
                   config.paths[0], aq_dataset_digest(*out), want);
}

/* Opens the sampler of this worker's part of each batch: a replica's, or with global sampling a client's. */
static enum aq_status open_sampler(struct aq_rank_data *data)
{
    const struct aq_job_facts *facts = &data->plan->facts;
    const struct aq_job_train *train = &data->plan->job->train;
    const struct aq_sampler_part part = {
        .all = facts->all_samples, .first = facts->first_sample, .count = facts->train_samples, .shift = data->shift};
    if (aq_job_global(data->plan->job))
        return aq_sampler_open_part(&part, data->plan->batch, train->seed, train->shuffle, &data->sampler);
    return aq_sampler_open_shard(facts->train_samples, data->plan->batch, train->seed, train->shuffle,
                                 data->rank / data->plan->stage_count, data->plan->replicas, &data->sampler);
}

/* The last stage counts the targets of whole steps: those of the other replicas, too. */
static enum aq_status open_targets(struct aq_rank_data *data)
{
    if (data->position + 1 != data->plan->stage_count || !aq_dataset_masks(data->train)) return AQ_OK;
    AQ_TRY(AQ_NEW(data->plan->replicas, &data->targets.samplers));
    for (uint32_t r = 0; r < data->plan->replicas; r++)
        AQ_TRY(aq_sampler_open_shard(data->plan->facts.train_samples, data->plan->batch, data->plan->job->train.seed,
                                     data->plan->job->train.shuffle, r, data->plan->replicas,
                                     &data->targets.samplers[r]));
    return AQ_OK;
}

/* First and last stage read the data; the others know its samples by their ids. */
static enum aq_status open_data(struct aq_rank_data *data)
{
    const bool reads = data->position == 0 || data->position + 1 == data->plan->stage_count;
    const uint32_t B = data->plan->stages[data->position].config.B, T = data->plan->stages[data->position].config.T;
    const struct aq_job *job = data->plan->job;
    struct aq_batch *batch = &data->batch;
    AQ_TRY(open_sampler(data));
    const char *kind = labels_alone(data) ? aq_labels_kind() : job->data.kind;
    if (reads) batch->field_count = aq_dataset_fields(kind, T, &job->data.image, batch->fields);
    struct aq_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        data->sample_ids = aq_arena_take(&arena, B * sizeof *data->sample_ids);
        data->lengths = aq_arena_take(&arena, B * sizeof *data->lengths);
        data->views = aq_arena_take(&arena, B * sizeof *data->views);
        if (data->parts) data->starts = aq_arena_take(&arena, ((size_t)B + 1) * T * sizeof *data->starts);
        for (uint32_t i = 0; i < batch->field_count; i++)
            batch->fields[i].values = aq_arena_take(&arena, (size_t)B * batch->fields[i].count * AQ_FIELD_BYTES);
        if (pass > 0) break;
        AQ_TRY(aq_alloc(arena.used, &data->host_memory));
        arena = (struct aq_arena){.base = data->host_memory, .bytes = arena.used};
    }
    batch->sample_ids = data->sample_ids;
    if (!reads) return AQ_OK;
    AQ_TRY(open_dataset(data, false, &data->train));
    AQ_TRY(open_targets(data));
    if (data->plan->facts.heldout_samples) AQ_TRY(open_dataset(data, true, &data->heldout));
    if (!data->plan->job->split.pad) return AQ_OK;
    data->train_lengths = aq_dataset_lengths(data->train);
    data->heldout_lengths = data->heldout ? aq_dataset_lengths(data->heldout) : NULL;
    return AQ_OK;
}

enum aq_status aq_rank_data_open(struct aq_rank_data *data, const struct aq_plan *plan, uint32_t rank, uint64_t shift,
                                 const json_t *start)
{
    *data = (struct aq_rank_data){.plan = plan, .rank = rank, .position = rank % plan->stage_count, .shift = shift};
    AQ_TRY(open_lengths(data, start));
    return open_data(data);
}

void aq_rank_data_close(struct aq_rank_data *data)
{
    aq_sampler_close(data->sampler);
    for (uint32_t r = 0; data->targets.samplers && r < data->plan->replicas; r++)
        aq_sampler_close(data->targets.samplers[r]);
    aq_free((void *)data->targets.samplers);
    aq_free(data->lengths_memory);
    aq_free(data->part_first);
    aq_dataset_close(data->train);
    aq_dataset_close(data->heldout);
    aq_free(data->host_memory);
}

/* --- steps ------------------------------------------------------------------------------------------------------ */

/* The sampler's step. */
static uint64_t turn_of(const struct aq_rank_data *data, uint64_t step)
{
    AQ_ASSERT(step >= data->idle);
    return step - data->idle;
}

uint32_t aq_rank_data_samples(const struct aq_rank_data *data, uint64_t step)
{
    return aq_sampler_size(data->sampler, turn_of(data, step));
}

uint32_t aq_rank_data_micro_batches(const struct aq_rank_data *data, uint64_t step)
{
    return aq_job_micro_batches(data->plan->job, aq_rank_data_samples(data, step));
}

void aq_rank_data_batch(struct aq_rank_data *data, uint64_t step, uint32_t micro_batch, struct aq_edge_batch *batch)
{
    const struct aq_job *job = data->plan->job;
    const uint32_t B = data->plan->stages[data->position].config.B, size = aq_rank_data_samples(data, step);
    const uint32_t first = micro_batch * B, samples = size - first < B ? size - first : B;
    const struct aq_augment *const augment = &job->data.augment;
    const uint64_t turn = turn_of(data, step), epoch = (turn + data->shift) / data->plan->steps_per_epoch;
    const uint64_t first_id = data->plan->facts.first_sample; /* of all clients, as an unsplit run has them */
    AQ_ASSERT(first < size);
    for (uint32_t i = 0; i < samples; i++) {
        const uint64_t sample = aq_sampler_at(data->sampler, turn, first + i);
        data->sample_ids[i] = job->data.skip + sample;
        if (data->train_lengths) data->lengths[i] = data->train_lengths[sample];
        if (aq_augment_any(augment))
            data->views[i] = aq_view_of(augment, job->train.seed, epoch, first_id + data->sample_ids[i]);
    }
    const uint32_t *const lengths = data->train_lengths ? data->lengths : NULL;
    *batch = (struct aq_edge_batch){.step = step,
                                    .micro_batch = micro_batch,
                                    .samples = samples,
                                    .sample_ids = data->sample_ids,
                                    .lengths = aq_rank_data_cut_lengths(data, lengths),
                                    .views = aq_augment_any(augment) ? data->views : NULL,
                                    .rate = aq_plan_learning_rate(data->plan, step + 1 + data->shift)};
}

const uint32_t *aq_rank_data_cut_lengths(const struct aq_rank_data *data, const uint32_t *lengths)
{
    return data->plan->job->split.pad ? NULL : lengths;
}

enum aq_status aq_rank_data_put(struct aq_rank_data *data, const struct aq_edge_batch *batch, bool heldout)
{
    const struct aq_job_data *about = &data->plan->job->data;
    const struct aq_dataset *from = heldout ? data->heldout : data->train;
    const bool sees = !heldout && data->position == 0 && aq_augment_any(&about->augment);
    float black[AQ_AUGMENT_COLOURS];
    const uint64_t skip = heldout ? 0 : about->skip;
    data->batch.samples = batch->samples;
    aq_dataset_image_black(&about->image, black);
    if (heldout)
        data->batch.lengths = data->heldout_lengths ? data->heldout_lengths + batch->sample_ids[0] : NULL;
    else
        data->batch.lengths = data->train_lengths ? data->lengths : NULL;
    data->batch.starts = data->parts ? data->starts : NULL;
    for (uint32_t i = 0; i < batch->samples; i++)
        (void)starts_of(data, heldout, batch->sample_ids[i] - skip, i);
    for (uint32_t i = 0; from && i < batch->samples; i++) {
        AQ_TRY(aq_dataset_put(from, batch->sample_ids[i] - skip, &data->batch, i));
        if (sees) aq_view_apply(&data->views[i], black, &data->batch, i);
    }
    return AQ_OK;
}

enum aq_status aq_rank_data_put_alone(struct aq_rank_data *data, const struct aq_edge_batch *batch)
{
    const uint64_t sample = batch->sample_ids[0] - data->plan->job->data.skip;
    data->batch.samples = 1;
    data->batch.lengths = data->train_lengths ? &data->train_lengths[sample] : NULL;
    data->batch.starts = starts_of(data, false, sample, data->plan->stages[data->position].config.B);
    return data->train ? aq_dataset_put(data->train, sample, &data->batch, 0) : AQ_OK;
}

/* Those of one replica's samples that count. */
static uint64_t targets_of(const struct aq_rank_data *data, struct aq_sampler *sampler, uint64_t step, uint32_t each)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < aq_sampler_size(sampler, step); i++)
        sum += aq_dataset_targets(data->train, aq_sampler_at(sampler, step, i), each);
    return sum;
}

double aq_rank_data_targets(struct aq_rank_data *data, const struct aq_task *task, uint64_t step)
{
    const struct aq_batch *batch = &data->batch;
    const char *field = aq_task_field(task);
    uint32_t each = data->plan->stages[data->position].config.T;
    for (uint32_t i = 0; i < batch->field_count; i++)
        if (strcmp(batch->fields[i].name, field) == 0) each = batch->fields[i].count;
    if (data->train) each = aq_dataset_targets(data->train, 0, each);
    if (!data->targets.samplers) return (double)aq_rank_data_samples(data, step) * each;
    if (data->targets.step != step + 1) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < data->plan->replicas; r++)
            sum += targets_of(data, data->targets.samplers[r], turn_of(data, step), each);
        data->targets.all = (double)(sum ? sum : 1) / data->plan->replicas;
        data->targets.step = step + 1;
    }
    return data->targets.all;
}
