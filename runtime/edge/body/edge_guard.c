/* edge_guard.c -- see the header. All arithmetic on the state is in float, one operation at a time, so that what a
 * checkpoint brings back decides as what was never written. */
#include "edge_guard.h"

#include <math.h>
#include <string.h>

#include "keys.h"

enum { MEAN_STEPS = 8, COUNT_MAX = 1 << 24 };
static const float LIMIT = 0.70710678f;  /* sqrt(1/2) */
static const float LIMIT_BACK = 0.5f;    /* of gradients */
static const float GROWTH_LEAST = 1.05f; /* of the drift from epoch to epoch: less is noise */
static const float BLAME_LEAST = 0.4f;   /* c_Q below which errors cannot be what grows: 1 / sqrt(1 - c_Q^2) */
static const uint32_t level_bits[AQ_EDGE_LEVELS] = {0, 1, 2, 4};

/* The largest value of this key of a codec in a manifest. */
static float most(const char *key)
{
    const struct aq_key *found = aq_key_find(aq_keys_codec(), key);
    AQ_ASSERT(found);
    return (float)found->max;
}

uint32_t aq_edge_level_list(const struct aq_codec_config *config, struct aq_codec_config levels[AQ_EDGE_LEVELS])
{
    const struct aq_codec_about *about = aq_codec_about(config->kind);
    const float bits_most = most("bits"), rate_most = most("rate");
    uint32_t count = 1;
    levels[0] = *config;
    if (!(about->grid || about->varies)) return 1;
    if (config->error > 0) return 1; /* the rate decides nothing */
    for (uint32_t i = 1; i < AQ_EDGE_LEVELS; i++) {
        struct aq_codec_config more = *config;
        if (about->grid)
            more.bits = (uint32_t)fminf((float)(more.bits + level_bits[i]), bits_most);
        else
            more.rate = fminf(more.rate + (float)level_bits[i] / 2, rate_most);
        if (aq_edge_level_bits(&more) <= aq_edge_level_bits(&levels[count - 1])) break;
        levels[count++] = more;
    }
    return count;
}

double aq_edge_level_bits(const struct aq_codec_config *config)
{
    return aq_codec_about(config->kind)->varies ? (double)config->rate : (double)config->bits;
}

void aq_edge_guard_init(struct aq_edge_guard *guard, uint32_t edge, uint32_t levels, uint32_t epoch_steps)
{
    AQ_ASSERT(levels >= 1 && levels <= AQ_EDGE_LEVELS && epoch_steps >= 1);
    *guard = (struct aq_edge_guard){.edge = edge, .levels = levels, .epoch_steps = epoch_steps};
}

/* One level up, and all measurements restart, because the old ones were of fewer bits. */
static void raise(struct aq_edge_guard *guard, const char *why, float seen)
{
    float *s = guard->state;
    const float epoch = s[AQ_GUARD_EPOCH];
    const bool can = s[AQ_GUARD_LEVEL] + 1.0f < (float)guard->levels;
    const float level = can ? s[AQ_GUARD_LEVEL] + 1.0f : s[AQ_GUARD_LEVEL];
    aq_log("edge", 1, "edge %u step %llu: %s (%.3f): %s", guard->edge, (unsigned long long)guard->step, why,
           (double)seen, can ? "more bits from here on" : "and there are no more bits to give");
    memset(s, 0, sizeof guard->state);
    s[AQ_GUARD_LEVEL] = level;
    s[AQ_GUARD_EPOCH] = epoch;
}

/* An epoch is over. Its first and only one may be cold: then there are no steps in it. */
static void epoch_end(struct aq_edge_guard *guard, float next)
{
    float *s = guard->state;
    const float steps = s[AQ_GUARD_DRIFT_STEPS];
    if (steps > 0) {
        const float drift = s[AQ_GUARD_DRIFT] / steps, rate = s[AQ_GUARD_RATE] / steps;
        const float before = s[AQ_GUARD_DRIFT_BEFORE], rate_before = s[AQ_GUARD_RATE_BEFORE];
        const bool grows = before > 0 && rate < rate_before && drift > before * GROWTH_LEAST;
        if (grows && s[AQ_GUARD_RATIO] > BLAME_LEAST)
            raise(guard, "the change of its samples grows though the learning rate falls", drift / before);
        s[AQ_GUARD_DRIFT_BEFORE] = drift;
        s[AQ_GUARD_RATE_BEFORE] = rate;
    }
    s[AQ_GUARD_DRIFT] = s[AQ_GUARD_RATE] = s[AQ_GUARD_DRIFT_STEPS] = 0;
    s[AQ_GUARD_EPOCH] = next;
}

void aq_edge_guard_settle(struct aq_edge_guard *guard)
{
    float *s = guard->state;
    const double a2 = guard->a2, delta2 = guard->delta2, error2 = guard->error2;
    guard->a2 = guard->delta2 = guard->error2 = 0;
    if (!(a2 > 0) || !(delta2 > 0) || !isfinite(a2) || !isfinite(delta2) || !isfinite(error2)) return;
    const float epoch = (float)(guard->step / guard->epoch_steps % COUNT_MAX);
    if (epoch != s[AQ_GUARD_EPOCH]) epoch_end(guard, epoch);
    s[AQ_GUARD_DRIFT] += (float)sqrt(delta2 / a2);
    s[AQ_GUARD_RATE] += guard->rate;
    s[AQ_GUARD_DRIFT_STEPS] += 1.0f;
    s[AQ_GUARD_STEPS] = fminf(s[AQ_GUARD_STEPS] + 1.0f, MEAN_STEPS);
    s[AQ_GUARD_RATIO] += ((float)sqrt(error2 / delta2) - s[AQ_GUARD_RATIO]) / s[AQ_GUARD_STEPS];
    if (s[AQ_GUARD_STEPS] < MEAN_STEPS || s[AQ_GUARD_RATIO] <= (guard->gradients ? LIMIT_BACK : LIMIT)) return;
    raise(guard,
          guard->gradients ? "the error of its gradients is above half of their size"
                           : "its error is above sqrt(1/2) of the change",
          s[AQ_GUARD_RATIO]);
}

uint32_t aq_edge_guard_level(struct aq_edge_guard *guard, uint64_t step, float rate)
{
    if (step != guard->step) aq_edge_guard_settle(guard);
    guard->step = step;
    guard->rate = rate;
    return (uint32_t)guard->state[AQ_GUARD_LEVEL];
}

bool aq_edge_guard_add(struct aq_edge_guard *guard, const struct aq_codec_result *result)
{
    if (result->flags & AQ_CODED_RAW) return false;
    guard->a2 += result->sum_a2;
    guard->delta2 += result->sum_delta2;
    guard->error2 += result->sum_error2; /* more bits help only there, not the rounding of the store */
    return result->sum_error2 > 0.5 * result->sum_a2;
}

enum aq_status aq_edge_guard_check(const float state[AQ_EDGE_GUARD_STATE])
{
    bool well = true;
    for (int i = 0; i < AQ_EDGE_GUARD_STATE; i++)
        well = well && isfinite(state[i]) && state[i] >= 0;
    const float whole[] = {state[AQ_GUARD_LEVEL], state[AQ_GUARD_STEPS], state[AQ_GUARD_EPOCH],
                           state[AQ_GUARD_DRIFT_STEPS]};
    for (size_t i = 0; well && i < sizeof whole / sizeof *whole; i++)
        well = whole[i] <= (float)COUNT_MAX && whole[i] == floorf(whole[i]);
    if (well && state[AQ_GUARD_LEVEL] < AQ_EDGE_LEVELS && state[AQ_GUARD_STEPS] <= MEAN_STEPS) return AQ_OK;
    return aq_fail(AQ_CORRUPT, "edge", "the state of a cut's guard is not possible in any run");
}
