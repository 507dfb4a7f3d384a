/* cut_privacy.c -- see the header. */
#include "cut_privacy.h"

#include <inttypes.h>
#include <math.h>
#include <openssl/rand.h>
#include <string.h>

#include "control.h"
#include "epsilon.h"
#include "plan_epsilon.h"
#include "stages/dataset.h"
#include "visit_ledger.h"
#include "worker_parts.h"

enum { DRAWN = 512 }; /* random words at a time: 4 KiB of stack */

/* Each product's rounding, and the conversion's, could lift a clipped norm above its bound: by 2^-23 of it at most. */
static const double BELOW = 1.0 - 0x1p-22;
static const double TURN = 6.283185307179586476925286766559;

static double norm_of(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

static void clip_sample(float *values, uint64_t count, double clip, struct aq_cut_privacy *seen)
{
    const double norm = norm_of(values, count);
    seen->samples++;
    if (norm <= clip) {
        if (norm > seen->norm_max) seen->norm_max = norm;
        return;
    }
    seen->clipped++;
    if (isfinite(norm) && norm > seen->norm_max) seen->norm_max = norm;
    const double scale = isfinite(norm) ? clip / norm * BELOW : (double)NAN;
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(values[i] * scale);
}

/* In (0, 1], of 53 bits: its logarithm is finite. */
static double unit(uint64_t word)
{
    return (double)((word >> 11) + 1) * 0x1p-53;
}

/* Box-Muller: two words give two independent normals. */
static enum aq_status add_noise(float *values, uint64_t count, double sigma)
{
    uint64_t words[DRAWN];
    for (uint64_t i = 0; i < count; i += DRAWN) {
        const uint64_t here = count - i < DRAWN ? count - i : DRAWN;
        if (RAND_bytes((unsigned char *)words, sizeof words) != 1)
            return aq_fail(AQ_IO, "worker", "no random bytes for the noise at a cut: nothing is sent without");
        for (uint64_t k = 0; k < here; k += 2) {
            const double radius = sigma * sqrt(-2 * log(unit(words[k]))), angle = TURN * unit(words[k + 1]);
            values[i + k] = (float)(values[i + k] + radius * cos(angle));
            if (k + 1 < here) values[i + k + 1] = (float)(values[i + k + 1] + radius * sin(angle));
        }
    }
    return AQ_OK;
}

enum aq_status aq_cut_privacy(float *values, uint32_t samples, uint64_t each, double clip, double noise,
                              struct aq_cut_privacy *seen)
{
    AQ_ASSERT(clip > 0);
    AQ_ASSERT(noise >= 0);
    for (uint32_t s = 0; s < samples; s++)
        clip_sample(values + s * each, each, clip, seen);
    return noise > 0 ? add_noise(values, samples * each, noise * clip) : AQ_OK;
}

/* ---- the part of a worker: split.privacy, of a client's stages ---- */

/*
 * Visits that are counted on disk before their micro-batches are computed: those of a step, or of a pass over held-out
 * samples, as far as one record has room. So a step waits for the disk once per cut. Each serves one micro-batch once;
 * what is sent again is counted again. After a crash some are counted that nobody saw.
 */
struct reserved {
    uint64_t step;
    enum aq_part_samples kind;
    uint32_t first, count;                  /* places in the step, or in the held-out data            */
    uint64_t ids[AQ_LEDGER_RECORD_SAMPLES]; /* of these places                                        */
    bool left[AQ_LEDGER_RECORD_SAMPLES];    /* where a micro-batch begins that has not taken its visit */
};

struct part {
    const struct aq_plan *plan;
    const struct aq_job_privacy *asked;
    struct aq_sampler *sampler;                   /* the worker's */
    struct aq_cut_privacy activations, gradients; /* counts */
    struct aq_ledger *trained, *heldout;          /* of visits; NULL: no epsilon, or no such samples */
    double most;                                  /* of mu^2, for each sample */
    struct reserved reserved[AQ_LEDGER_CUTS];
};

/*
 * Activations: those that the first stage makes, also of held-out samples, and of lost ones that are computed again.
 * Gradients: those that the last stage gives back.
 */
static bool clips_activations(const struct aq_plan *plan, uint32_t rank)
{
    return rank == 0 && plan->job->split.privacy.clip > 0;
}

static bool clips_gradients(const struct aq_plan *plan, uint32_t rank)
{
    return rank + 1 == plan->stage_count && plan->job->split.privacy.gradient_clip > 0;
}

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    return aq_job_at_client(plan->job, rank) && (clips_activations(plan, rank) || clips_gradients(plan, rank));
}

static void part_memory(const struct aq_plan *plan, uint32_t s, struct aq_plan_part *out)
{
    out->cut_bytes = s == 0 ? plan->stages[s].size.y_bytes : plan->stages[s].size.x_bytes;
    if (!aq_plan_epsilon_counts(plan)) return;
    out->name = "ledgers of visits";
    out->bytes = aq_ledger_bytes(plan->job->data.skip + plan->facts.train_samples);
    if (plan->facts.heldout_samples > 0) out->bytes += aq_ledger_bytes(plan->facts.heldout_samples);
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    (void)rank;
    part->plan = plan;
    part->asked = &plan->job->split.privacy;
    part->most = aq_plan_epsilon_most(plan);
    return AQ_OK;
}

static void part_close(void *self)
{
    struct part *part = self;
    aq_ledger_close(part->trained);
    aq_ledger_close(part->heldout);
    part->trained = part->heldout = NULL;
}

static enum aq_status ledger_open(const char *folder, uint64_t digest, uint64_t samples, struct aq_ledger **out)
{
    const enum aq_status status = aq_ledger_open(folder, digest, samples, out);
    if (status != AQ_NOTFOUND) return status;
    return aq_fail(AQ_CORRUPT, "privacy", "the ledger of visits in %s is gone, so nothing is sent: bring it back",
                   folder);
}

/* The client's process has made the ledgers, in a folder of its own choice (split_visits.h). */
static enum aq_status ledgers_open(struct part *part, const json_t *start)
{
    const struct aq_plan *plan = part->plan;
    const char *folder = aq_control_text_or(start, "ledger", NULL);
    if (!aq_plan_epsilon_counts(plan)) return AQ_OK;
    if (!folder) return aq_fail(AQ_PROTO, "worker", "received no folder of ledgers of visits, so nothing is sent");
    AQ_TRY(ledger_open(folder, aq_plan_epsilon_data(plan, false), plan->job->data.skip + plan->facts.train_samples,
                       &part->trained));
    if (plan->facts.heldout_samples == 0) return AQ_OK;
    return ledger_open(folder, aq_plan_epsilon_data(plan, true), plan->facts.heldout_samples, &part->heldout);
}

static enum aq_status would_pass(const struct part *part, const struct aq_ledger *ledger, bool heldout)
{
    const double delta = (double)part->asked->delta;
    return aq_fail(
        AQ_REFUSED, "privacy",
        "split.privacy.epsilon_max: another visit of a %s sample would pass epsilon %g (delta %g; it is %.4g "
        "now), so nothing of it is sent",
        heldout ? "held-out" : "training", (double)part->asked->epsilon_max, delta,
        aq_epsilon(sqrt(aq_ledger_most(ledger).sum), delta));
}

static bool reserved_take(struct reserved *reserved, const struct aq_part_cut *cut, uint32_t place)
{
    const struct aq_edge_batch *batch = cut->batch;
    const uint32_t at = place - reserved->first;
    if (cut->kind != reserved->kind || batch->step != reserved->step || place < reserved->first ||
        at >= reserved->count || !reserved->left[at])
        return false;
    AQ_ASSERT(batch->samples <= reserved->count - at); /* what leaves is what was counted */
    AQ_ASSERT(memcmp(&reserved->ids[at], batch->sample_ids, batch->samples * sizeof *reserved->ids) == 0);
    reserved->left[at] = false;
    return true;
}

/* The micro-batches around the one at `place` that are as large, in blocks of a record: with a batch norm another size
 * is another visit. */
static void reserved_fill(const struct part *part, const struct aq_part_cut *cut, uint32_t place, struct reserved *out)
{
    const bool trains = cut->kind == AQ_PART_TRAINED;
    const uint32_t B = part->plan->stages[0].config.B, size = cut->batch->samples;
    const uint32_t all = trains ? cut->step_samples : (uint32_t)part->plan->facts.heldout_samples;
    const uint32_t room = AQ_LEDGER_RECORD_SAMPLES / B * B;
    out->step = cut->batch->step;
    out->kind = cut->kind;
    out->first = size < B ? place : place / room * room;
    out->count = 0;
    for (uint32_t at = out->first; size <= all - at && out->count + size <= room; at += size) {
        for (uint32_t i = 0; i < size; i++)
            out->ids[out->count + i] =
                trains ? part->plan->job->data.skip + aq_sampler_at(part->sampler, out->step, at + i) : at + i;
        out->left[out->count] = true;
        out->count += size;
    }
}

static enum aq_status ledger_add(struct part *part, const struct aq_part_cut *cut, bool gradients, const uint64_t *ids,
                                 uint32_t count)
{
    const bool heldout = cut->kind == AQ_PART_HELDOUT;
    struct aq_ledger *ledger = heldout ? part->heldout : part->trained;
    if (!ledger) return aq_fail(AQ_PROTO, "privacy", "no ledger of visits is open, so nothing is sent");
    const struct aq_ledger_batch visit = {
        .cut = gradients ? AQ_LEDGER_GRADIENTS : AQ_LEDGER_ACTIVATIONS,
        .ids = ids,
        .count = count,
        .each = aq_plan_epsilon_visit(part->plan, gradients, cut->trains, cut->batch->samples),
        .most = part->most};
    const enum aq_status status = aq_ledger_add(ledger, &visit);
    return status == AQ_REFUSED ? would_pass(part, ledger, heldout) : status;
}

/* On disk before the values may leave. Whatever the codec, the cache or a lost frame make of them is not a release. */
static enum aq_status visits_count(struct part *part, const struct aq_part_cut *cut, bool gradients)
{
    const struct aq_edge_batch *batch = cut->batch;
    const uint32_t B = part->plan->stages[0].config.B, place = batch->micro_batch * B;
    struct reserved *reserved = &part->reserved[gradients ? AQ_LEDGER_GRADIENTS : AQ_LEDGER_ACTIVATIONS];
    if (!aq_plan_epsilon_counts(part->plan)) return AQ_OK;
    /* Across a cut that keeps its messages a step does not send all of its samples. */
    if (cut->kind == AQ_PART_REMADE || cut->edge->shape.still || B > AQ_LEDGER_RECORD_SAMPLES)
        return ledger_add(part, cut, gradients, batch->sample_ids, batch->samples);
    if (reserved_take(reserved, cut, place)) return AQ_OK;
    reserved_fill(part, cut, place, reserved);
    const enum aq_status status = ledger_add(part, cut, gradients, reserved->ids, reserved->count);
    if (status != AQ_OK) {
        reserved->count = 0;
        return status;
    }
    const bool taken = reserved_take(reserved, cut, place);
    AQ_ASSERT(taken);
    return AQ_OK;
}

/* Only a sample's real rows: padding is not sent, so its values must not count in a norm. */
static enum aq_status clip_samples(float *values, const struct aq_edge_shape *shape, const struct aq_edge_batch *batch,
                                   double clip, double noise, struct aq_cut_privacy *seen)
{
    const uint64_t each = (uint64_t)shape->rows * shape->columns;
    if (!batch->lengths) return aq_cut_privacy(values, batch->samples, each, clip, noise, seen);
    for (uint32_t i = 0; i < batch->samples; i++)
        AQ_TRY(aq_cut_privacy(values + i * each, 1, (uint64_t)batch->lengths[i] * shape->columns, clip, noise, seen));
    return AQ_OK;
}

static enum aq_status clip_cut(const struct aq_part_cut *cut, double clip, double noise, struct aq_cut_privacy *seen)
{
    const struct aq_edge_shape *shape = &cut->edge->shape;
    const uint64_t count = (uint64_t)cut->batch->samples * shape->rows * shape->columns;
    float *at;
    AQ_TRY(aq_cut_host_read(cut->host, cut->values, count, &at));
    AQ_TRY(clip_samples(at, shape, cut->batch, clip, noise, seen));
    return aq_cut_host_write(cut->host, cut->values, count);
}

static void log_counts(const struct aq_cut_privacy *seen, const char *what, const char *unit)
{
    if (seen->samples > 0)
        aq_log("worker", 1, "split.privacy: of %llu %s that left, %llu were clipped; the largest norm was %.4g%s",
               (unsigned long long)seen->samples, what, (unsigned long long)seen->clipped, seen->norm_max, unit);
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    const struct aq_job_privacy *asked = part->asked;
    switch (moment) {
    case AQ_PART_START:
        return ledgers_open(part, args->message);
    case AQ_PART_JOINED:
        part->sampler = args->worker->sampler;
        return AQ_OK;
    case AQ_PART_CUT_OUTPUT:
        if (!(asked->clip > 0)) return AQ_OK;
        AQ_TRY(visits_count(part, args->cut, false));
        return clip_cut(args->cut, asked->clip, asked->noise, &part->activations);
    case AQ_PART_CUT_GRADIENT_BACK:
        if (!(asked->gradient_clip > 0)) return AQ_OK;
        AQ_TRY(visits_count(part, args->cut, true));
        /*
         * A gradient at a cut is of the step's mean loss, each sample's loss divided by their number. So is the bound,
         * which is of the gradient of a sample's own loss, however large a batch is.
         */
        return clip_cut(args->cut, (double)asked->gradient_clip / args->cut->step_samples, asked->gradient_noise,
                        &part->gradients);
    case AQ_PART_RUN_END:
        log_counts(&part->activations, "activations", "");
        log_counts(&part->gradients, "gradients", ", of a step's mean loss");
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

extern const struct aq_part_ops aq_part_privacy;
const struct aq_part_ops aq_part_privacy = {.name = "privacy",
                                            .bytes = sizeof(struct part),
                                            .uses_cuts = true,
                                            .wanted = part_wanted,
                                            .memory = part_memory,
                                            .open = part_open,
                                            .on = part_on,
                                            .close = part_close};
