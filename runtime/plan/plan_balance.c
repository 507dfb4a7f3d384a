/*
 * plan_balance.c -- the cut whose slowest stage or link is as fast as can be, of what each layer takes (plan.h).
 *
 * A stage takes, in a step, its layers' forwards and backwards of all micro-batches, their part of the optimizer's step
 * and the coding at its cuts, over its speed. A link takes the bytes at its cut over its rate. The largest of all these
 * bounds a pipeline that is kept full: that is minimized, over all cuts, by dynamic programming (Bellman; stages in
 * order, for every count of layers that the first stages can have). Many cuts reach the least: a second pass takes of
 * them the one with the least sum of squares of the stages' times. Only stage_seconds adds up a stage's time, so that
 * both passes, and callers that ask for the times of a cut, see the same bits.
 */
#include <float.h>
#include <stdio.h>

#include "plan_private.h"

struct balance {
    const struct aq_plan *plan;
    const struct aq_plan_layers *layers;
    uint32_t P, L;
    double *sums;           /* [s][l]: the first l layers at stage s, a step */
    const uint8_t *allowed; /* [s][k][l]: layers k to l fit stage s; NULL: all do */
    double *best;           /* [s][l]: of stages up to s with the first l layers */
    uint32_t *from;         /* [s][l]: first layer of stage s then               */
    double bound;           /* second pass: of stages and links                  */
};

static size_t at(const struct balance *balance, uint32_t s, uint32_t l)
{
    return (size_t)s * (balance->L + 1) + l;
}

bool aq_plan_cut_uneven(const struct aq_job *job)
{
    bool uneven = false;
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++)
        uneven = uneven || aq_job_memory(job, s) > 0 || aq_job_speed(job, s) != aq_job_speed(job, 0);
    return uneven && job->pipeline.automatic && job->pipeline.stage_count > 1;
}

static void sums_fill(struct balance *balance)
{
    const double M = balance->plan->micro_batches;
    for (uint32_t s = 0; s < balance->P; s++) {
        balance->sums[at(balance, s, 0)] = 0;
        for (uint32_t l = 0; l < balance->L; l++) {
            const struct aq_plan_layer_cost *cost = &balance->layers->of[at(balance, s, l)];
            balance->sums[at(balance, s, l + 1)] =
                balance->sums[at(balance, s, l)] + M * (cost->forward_s + cost->backward_s) + cost->step_s;
        }
    }
}

/* Stage s with layers first to end - 1. */
static double stage_seconds(const struct balance *balance, uint32_t s, uint32_t first, uint32_t end)
{
    const double M = balance->plan->micro_batches;
    double seconds = balance->sums[at(balance, s, end)] - balance->sums[at(balance, s, first)];
    if (first > 0) seconds += M * balance->layers->of[at(balance, s, first)].begins_s;
    if (end < balance->L) seconds += M * balance->layers->of[at(balance, s, end)].ends_s;
    return seconds / aq_job_speed(balance->plan->job, s);
}

/* The link behind stage s. Bytes from GPU to GPU have no rate here. */
static double link_seconds(const struct balance *balance, uint32_t s, uint32_t end)
{
    const struct aq_plan *plan = balance->plan;
    const double rate = plan->job->link.rate_mbps * 1e6 / 8;
    const struct aq_plan_layer_cost *cost = &balance->layers->of[at(balance, s, end)];
    if (s + 1 == balance->P || !(rate > 0) || aq_plan_carries(plan, s)) return 0;
    const double bytes = cost->forward_bytes > cost->backward_bytes ? cost->forward_bytes : cost->backward_bytes;
    return plan->micro_batches * bytes / rate;
}

static bool is_allowed(const struct balance *balance, uint32_t s, uint32_t first, uint32_t end)
{
    return !balance->allowed || balance->allowed[at(balance, s, first) * (balance->L + 1) + end];
}

/* The cost of stages up to s: the largest, or within the bound the sum of squares; DBL_MAX: impossible.
 */
static double joined(const struct balance *balance, uint32_t s, uint32_t first, uint32_t end)
{
    const double before = s ? balance->best[at(balance, s - 1, first)] : 0;
    if (before == DBL_MAX || !is_allowed(balance, s, first, end)) return DBL_MAX;
    const double stage = stage_seconds(balance, s, first, end), link = link_seconds(balance, s, end);
    const double more = stage > link ? stage : link;
    if (balance->bound > 0) return more > balance->bound ? DBL_MAX : before + stage * stage;
    return before > more ? before : more;
}

static void pass(struct balance *balance)
{
    const uint32_t P = balance->P, L = balance->L;
    for (uint32_t s = 0; s < P; s++)
        for (uint32_t end = 0; end <= L; end++) {
            double least = DBL_MAX;
            uint32_t where = 0;
            const uint32_t last = s ? end : end > 0;
            for (uint32_t first = s; first < last; first++) {
                const double cost = joined(balance, s, first, end);
                if (cost >= least) continue;
                least = cost;
                where = first;
            }
            balance->best[at(balance, s, end)] = least;
            balance->from[at(balance, s, end)] = where;
        }
}

/* Which layers a stage with a limit of memory can have. Far beyond the limit nothing is looked at any more. */
static enum aq_status allowed_fill(const struct balance *balance, uint8_t *allowed)
{
    for (uint32_t s = 0; s < balance->P; s++) {
        const uint64_t limit = aq_job_memory(balance->plan->job, s);
        for (uint32_t first = 0; first < balance->L; first++) {
            uint64_t bytes = 0;
            for (uint32_t end = first + 1; end <= balance->L && (limit == 0 || bytes <= 2 * limit); end++) {
                /* Only the first stage starts at layer 0, and only the last one ends at layer L. */
                if ((first == 0) != (s == 0) || (end == balance->L) != (s + 1 == balance->P)) continue;
                if (limit) AQ_TRY(aq_plan_stage_bytes(balance->plan, s, first, end, &bytes));
                allowed[at(balance, s, first) * (balance->L + 1) + end] = limit == 0 || bytes <= limit;
            }
        }
    }
    return AQ_OK;
}

static enum aq_status refuse(const struct aq_plan *plan)
{
    char sums[2][AQ_TEXT_NUMBER];
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const uint64_t limit = aq_job_memory(plan->job, s);
        if (limit == 0 || plan->stages[s].memory_bytes <= limit) continue;
        return aq_fail(AQ_INVAL, "plan",
                       "no cut of %u layers into %u stages fits pipeline.stages.*.memory: cut by even flops, stage %u "
                       "needs %s and may take %s; lower pipeline.in_flight or train.micro_batch, set model.recompute, "
                       "or add stages",
                       plan->layers, plan->stage_count, s, aq_text_size(plan->stages[s].memory_bytes, sums[0]),
                       aq_text_size(limit, sums[1]));
    }
    return aq_fail(AQ_INVAL, "plan",
                   "no cut of %u layers into %u stages fits pipeline.stages.*.memory; lower pipeline.in_flight or "
                   "train.micro_batch, set model.recompute, or add stages",
                   plan->layers, plan->stage_count);
}

static enum aq_status balance_open(struct balance *balance, void **memory, void **allowed)
{
    const size_t cells = (size_t)balance->P * (balance->L + 1);
    bool limited = false;
    AQ_TRY(aq_alloc(cells * (2 * sizeof(double) + sizeof(uint32_t)), memory));
    balance->sums = *memory;
    balance->best = balance->sums + cells;
    balance->from = (uint32_t *)(balance->best + cells);
    sums_fill(balance);
    for (uint32_t s = 0; s < balance->P; s++)
        limited = limited || aq_job_memory(balance->plan->job, s) > 0;
    if (!limited || !allowed) return AQ_OK;
    AQ_TRY(aq_alloc(cells * (balance->L + 1), allowed));
    balance->allowed = *allowed;
    return allowed_fill(balance, *allowed);
}

static struct balance balance_of(const struct aq_plan *plan, const struct aq_plan_layers *layers)
{
    AQ_ASSERT(layers->stages == plan->stage_count && layers->layers == plan->layers);
    return (struct balance){.plan = plan, .layers = layers, .P = plan->stage_count, .L = plan->layers};
}

enum aq_status aq_plan_balance(const struct aq_plan *plan, const struct aq_plan_layers *layers, struct aq_plan_cut *out)
{
    struct balance balance = balance_of(plan, layers);
    void *memory = NULL, *allowed = NULL;
    enum aq_status status;
    AQ_TRY_GOTO(balance_open(&balance, &memory, &allowed), out);
    const uint32_t P = balance.P, L = balance.L;
    pass(&balance);
    balance.bound = balance.best[at(&balance, P - 1, L)];
    if (balance.bound == DBL_MAX) AQ_TRY_GOTO(refuse(plan), out);
    if (balance.bound > 0) pass(&balance);
    *out = (struct aq_plan_cut){{0}};
    uint32_t end = L;
    for (uint32_t s = P; s > 0; s--) {
        out->end[s - 1] = end;
        end = balance.from[at(&balance, s - 1, end)];
    }
out:
    aq_free(allowed);
    aq_free(memory);
    return status;
}

enum aq_status aq_plan_cut_times(const struct aq_plan *plan, const struct aq_plan_layers *layers,
                                 const struct aq_plan_cut *cut, struct aq_plan_cut_times *out)
{
    struct balance balance = balance_of(plan, layers);
    void *memory = NULL;
    AQ_TRY(balance_open(&balance, &memory, NULL));
    *out = (struct aq_plan_cut_times){.slowest_s = 0};
    for (uint32_t s = 0; s < balance.P; s++) {
        out->stage_s[s] = stage_seconds(&balance, s, s ? cut->end[s - 1] : 0, cut->end[s]);
        out->link_s[s] = link_seconds(&balance, s, cut->end[s]);
        if (out->stage_s[s] > out->slowest_s) out->slowest_s = out->stage_s[s];
        if (out->link_s[s] > out->slowest_s) out->slowest_s = out->link_s[s];
    }
    aq_free(memory);
    return AQ_OK;
}
