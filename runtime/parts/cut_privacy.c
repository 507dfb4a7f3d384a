/* cut_privacy.c -- see the header. */
#include "cut_privacy.h"

#include <math.h>
#include <openssl/rand.h>

#include "edge.h"
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
 * Activations: those that the first stage makes, also of held-out samples, and of lost ones that are computed again.
 * Gradients: those that the last stage gives back.
 */
struct part {
    const struct aq_job_privacy *asked;
    struct aq_cut_privacy activations, gradients; /* counts */
};

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
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    (void)rank;
    part->asked = &plan->job->split.privacy;
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
    case AQ_PART_CUT_OUTPUT:
        if (!(asked->clip > 0)) return AQ_OK;
        return clip_cut(args->cut, asked->clip, asked->noise, &part->activations);
    case AQ_PART_CUT_GRADIENT_BACK:
        if (!(asked->gradient_clip > 0)) return AQ_OK;
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
                                            .on = part_on};
