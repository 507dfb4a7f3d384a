/* bits_auto.c -- see the header. */
#include "bits_auto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "edge_guard.h"
#include "json_text.h"
#include "run_folder.h"

enum { BYTES_MAX = 1 << 24, EPOCH_CHARS = 24, CORES_ENOUGH = 1 << 20 };
static const double assumed_gflops = 100;
static const double mbps_least = 1e-6, mbps_most = 1e9; /* beyond, a simulated step ends never, or is all link */

/* Of a rank in this epoch; link: to the previous stage, to the next: bytes of bodies that came, and for how long. */
struct measured {
    uint64_t steps;
    double compute_ns, codec_ns;
    struct {
        double bytes, ns;
    } link[2];
};

struct aq_bits {
    const struct aq_plan *plan;
    char path[AQ_RUN_PATH_BYTES];
    json_t *decided;
    struct measured ranks[AQ_JOB_RANKS_MAX];
};

static uint32_t ways_of(const struct aq_plan *plan)
{
    return 2 * (plan->stage_count - 1);
}

/* Levels that direction w may have. */
static uint32_t levels_of(const struct aq_plan *plan, uint32_t w)
{
    const struct aq_edge_shape *shape = &plan->edges[w / 2].shape;
    struct aq_codec_config level_list[AQ_EDGE_LEVELS];
    return shape->level_lists ? aq_edge_level_list(w % 2 == 0 ? &shape->forward : &shape->backward, level_list) : 1;
}

static bool levels_read(const struct aq_plan *plan, const json_t *list, uint32_t *levels)
{
    const uint32_t ways = ways_of(plan);
    bool good = json_is_array(list) && json_array_size(list) == ways;
    for (uint32_t w = 0; good && w < ways; w++) {
        const json_t *level = json_array_get(list, w);
        good = json_is_integer(level) && json_integer_value(level) >= 0 &&
               json_integer_value(level) < (json_int_t)levels_of(plan, w);
        if (good) levels[w] = (uint32_t)json_integer_value(level);
    }
    return good;
}

static enum aq_status load(struct aq_bits *bits)
{
    uint32_t levels[2 * AQ_JOB_STAGES_MAX];
    char *text;
    size_t count;
    const char *epoch;
    json_t *list;
    const enum aq_status status = aq_file_load(NULL, bits->path, BYTES_MAX, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    json_t *found = json_loadb(text, count, JSON_REJECT_DUPLICATES, NULL);
    aq_free(text);
    bool good = json_is_object(found);
    if (good) json_object_foreach(found, epoch, list) good = good && levels_read(bits->plan, list, levels);
    if (!good) {
        json_decref(found);
        return aq_fail(AQ_CORRUPT, "launch",
                       "%s is damaged, or of another job: remove it, and the bits of the remaining epochs are "
                       "decided again (edges.bits: auto)",
                       bits->path);
    }
    json_decref(bits->decided);
    bits->decided = found;
    return AQ_OK;
}

enum aq_status aq_bits_open(const struct aq_plan *plan, const char *run, bool goes_on, struct aq_bits **out)
{
    *out = NULL;
    if (!plan->job->bits_auto || plan->stage_count == 1) return AQ_OK;
    struct aq_bits *bits;
    AQ_TRY(AQ_NEW(1, &bits));
    *bits = (struct aq_bits){.plan = plan, .decided = json_object()};
    enum aq_status status = aq_run_path(run, "bits.json", bits->path);
    if (status == AQ_OK && goes_on) status = load(bits);
    if (status != AQ_OK) {
        aq_bits_close(bits);
        return status;
    }
    *out = bits;
    return AQ_OK;
}

void aq_bits_close(struct aq_bits *bits)
{
    if (!bits) return;
    json_decref(bits->decided);
    aq_free(bits);
}

void aq_bits_step(struct aq_bits *bits, uint32_t rank, const json_t *line)
{
    const double compute = aq_control_number_or(line, "compute_ns", 0);
    const double codec = aq_control_number_or(line, "codec_ns", 0);
    if (!(compute >= 0 && compute < 1e18 && codec >= 0 && codec < 1e18)) return; /* a worker's word */
    struct measured *m = &bits->ranks[rank];
    m->steps++;
    m->compute_ns += compute;
    m->codec_ns += codec;
    static const char *const keys[2][2] = {{"in_link_bytes", "in_link_ns"}, {"out_link_bytes", "out_link_ns"}};
    for (int i = 0; i < 2; i++) {
        const double bytes = aq_control_number_or(line, keys[i][0], 0), ns = aq_control_number_or(line, keys[i][1], 0);
        if (!(bytes >= 0 && bytes < 1e18 && ns >= 0 && ns < 1e18)) continue;
        m->link[i].bytes += bytes;
        m->link[i].ns += ns;
    }
}

/* Mbit/s received over that link of a rank; 0: no bytes, no measurement, or not limited by the link. */
static double came_mbps(const struct measured *m, int link)
{
    const double mbps = m->link[link].ns > 0 ? m->link[link].bytes * 8e3 / m->link[link].ns : 0;
    return mbps >= mbps_least && mbps <= mbps_most ? mbps : 0;
}

/* Without a declared rate, links have the measured rate of bodies: an edge the rate of its slower direction in its
 * slowest replica, reductions the rate of the slowest edge. False: a rate is unknown. */
static bool links_measured(const struct aq_bits *bits, struct aq_plan_costs *costs)
{
    const struct aq_plan *plan = bits->plan;
    const uint32_t P = plan->stage_count;
    if (plan->job->link.rate_mbps > 0) return true;
    for (uint32_t e = 0; e + 1 < P; e++) {
        if (aq_plan_carries(plan, e) || plan->edges[e].shape.still) continue;
        double least = INFINITY;
        for (uint32_t v = 0; v < plan->replicas; v++) {
            const struct measured *here = &bits->ranks[v * P + e];
            least = fmin(least, fmin(came_mbps(here + 1, 0), came_mbps(here, 1)));
        }
        if (!(least > 0)) return false;
        costs->edge_mbps[e] = least;
        if (costs->rate_mbps == 0 || least < costs->rate_mbps) costs->rate_mbps = least;
    }
    if (costs->rate_mbps > 0) aq_plan_costs_reduce(plan, costs);
    return true;
}

/* Of a micro-batch at stage s, of the slowest replica; false: not measured. */
static bool stage_seconds(const struct aq_bits *bits, uint32_t s, double *compute, double *codec)
{
    const struct aq_plan *plan = bits->plan;
    *compute = *codec = 0;
    for (uint32_t v = 0; v < plan->replicas; v++) {
        const struct measured *m = &bits->ranks[v * plan->stage_count + s];
        if (m->steps == 0) return false;
        const double pieces = (double)m->steps * (double)plan->micro_batches * 1e9;
        *compute = fmax(*compute, m->compute_ns / pieces);
        *codec = fmax(*codec, m->codec_ns / pieces);
    }
    return true;
}

/* Assumed, and where an epoch was measured as that one was: its seconds have waited for cores already. */
static void costs_of(const struct aq_bits *bits, uint64_t epoch, struct aq_plan_costs *costs)
{
    const struct aq_plan *plan = bits->plan;
    aq_plan_costs_assumed(plan, assumed_gflops, aq_thread_cores(), costs);
    costs->cold = epoch == 0;
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_stage_size *size = &plan->stages[s].size;
        const double flops = size->flops_forward + size->flops_backward;
        double compute, codec, assumed = 0;
        if (!stage_seconds(bits, s, &compute, &codec)) return;
        costs->cores = CORES_ENOUGH;
        costs->forward_s[s] = compute * (flops > 0 ? size->flops_forward / flops : 1.0 / 3);
        aq_plan_costs_backward(plan, s, compute - costs->forward_s[s], costs);
        if (s > 0) assumed += costs->receive_s[s - 1] + costs->send_back_s[s - 1];
        if (s + 1 < plan->stage_count) assumed += costs->send_s[s] + costs->receive_back_s[s];
        const double share = assumed > 0 ? codec / assumed : 1;
        if (s > 0) costs->receive_s[s - 1] *= share, costs->send_back_s[s - 1] *= share;
        if (s + 1 < plan->stage_count) costs->send_s[s] *= share, costs->receive_back_s[s] *= share;
    }
}

static enum aq_status note(struct aq_bits *bits, const char *name, const struct aq_plan_levels *levels)
{
    json_t *list = json_array();
    for (uint32_t w = 0; w < ways_of(bits->plan); w++)
        json_array_append_new(list, json_integer((json_int_t)levels->of[w]));
    if (json_object_set_new(bits->decided, name, list) != 0) return aq_fail(AQ_NOMEM, "launch", "%s", bits->path);
    return aq_json_replace(bits->path, json_incref(bits->decided), JSON_COMPACT);
}

/* Those of the epoch before; of the first one the manifest's bits. */
static void last_levels(const struct aq_bits *bits, uint64_t epoch, struct aq_plan_levels *out)
{
    char name[EPOCH_CHARS];
    *out = (struct aq_plan_levels){0};
    snprintf(name, sizeof name, "%llu", (unsigned long long)epoch - 1);
    if (epoch == 0 || !levels_read(bits->plan, json_object_get(bits->decided, name), out->of))
        memset(out->of, 0, sizeof out->of);
}

enum aq_status aq_bits_decide(struct aq_bits *bits, uint64_t epoch, uint32_t out[2 * AQ_JOB_STAGES_MAX])
{
    struct aq_plan_costs costs;
    struct aq_plan_levels levels;
    char name[EPOCH_CHARS];
    snprintf(name, sizeof name, "%llu", (unsigned long long)epoch);
    const json_t *before = json_object_get(bits->decided, name);
    if (!before || !levels_read(bits->plan, before, levels.of)) {
        costs_of(bits, epoch, &costs);
        if (links_measured(bits, &costs)) {
            AQ_TRY(aq_plan_levels(bits->plan, &costs, &levels));
            aq_log("launch", 1, "epoch %s: a step takes %.4g s, and %.4g s with the bits that links have room for%s",
                   name, levels.before_s, levels.step_s,
                   levels.hurried ? ", as far as could be found out in two seconds" : "");
        } else {
            last_levels(bits, epoch, &levels);
            aq_log("launch", 1, "epoch %s: no measurement of what links carry: bits stay", name);
        }
        AQ_TRY(note(bits, name, &levels));
    }
    for (uint32_t w = 0; w < ways_of(bits->plan); w++)
        out[w] = levels.of[w];
    memset(bits->ranks, 0, sizeof bits->ranks);
    return AQ_OK;
}
