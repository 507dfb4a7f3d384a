/* worker_parts.c -- asks each part of a worker: see the header. */
#include "worker_parts.h"

/* States of a checkpoint that a part has at most: cut_bits has two. */
enum { STATES_OF_ONE = 2 };

static const struct aq_part_ops *const all[] = {
#define AQ_PART(name) &aq_part_##name,
#include "worker_parts.def"
};

bool aq_plan_part(const struct aq_plan *plan, uint32_t s, uint32_t i, struct aq_plan_part *out)
{
    *out = (struct aq_plan_part){0};
    if (i == AQ_PARTS) return false;
    if (all[i]->memory && all[i]->wanted(plan, s)) all[i]->memory(plan, s, out);
    return true;
}

enum aq_status aq_worker_parts_open(struct aq_worker_parts *parts, const struct aq_plan *plan, uint32_t rank)
{
    for (uint32_t i = 0; i < AQ_PARTS; i++) {
        if (!all[i]->wanted(plan, rank)) continue;
        AQ_TRY(aq_alloc(all[i]->bytes, &parts->self[i]));
        parts->use_cuts = parts->use_cuts || all[i]->uses_cuts;
        parts->use_chains = parts->use_chains || all[i]->uses_chains;
        parts->serve = parts->serve || all[i]->serves;
        parts->frames += all[i]->frames;
        AQ_TRY(all[i]->open(parts->self[i], plan, rank));
    }
    return AQ_OK;
}

void aq_worker_parts_close(struct aq_worker_parts *parts)
{
    for (uint32_t i = 0; i < AQ_PARTS; i++) {
        if (parts->self[i] && all[i]->close) all[i]->close(parts->self[i]);
        aq_free(parts->self[i]);
        parts->self[i] = NULL;
    }
}

enum aq_status aq_worker_parts_on(struct aq_worker_parts *parts, enum aq_part_moment moment, struct aq_part_args *args)
{
    args->factor = args->factor_next = 1.0f;
    args->mended = args->ends = args->done = args->input_unused = args->unreadable = false;
    args->shift = args->updates = 0;
    args->reduced = (struct aq_part_reduced){0};
    args->guard = NULL;
    args->hash = NULL;
    args->key = NULL;
    args->awaits = NULL;
    args->note[0] = args->remedy[0] = '\0';
    for (uint32_t i = 0; i < AQ_PARTS; i++)
        if (parts->self[i]) AQ_TRY(all[i]->on(parts->self[i], moment, args));
    return AQ_OK;
}

void aq_worker_parts_state(struct aq_worker_parts *parts, struct aq_checkpoint_state *states, uint32_t *count)
{
    for (uint32_t i = 0; i < AQ_PARTS; i++)
        if (parts->self[i] && all[i]->state) {
            AQ_ASSERT(*count + STATES_OF_ONE <= AQ_CHECKPOINT_STATES_MAX);
            all[i]->state(parts->self[i], states, count);
        }
}

void aq_worker_parts_report(struct aq_worker_parts *parts, const struct aq_part_step *step, json_t *line)
{
    for (uint32_t i = 0; i < AQ_PARTS; i++)
        if (parts->self[i] && all[i]->report) all[i]->report(parts->self[i], step, line);
}
