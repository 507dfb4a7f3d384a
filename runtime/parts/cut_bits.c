/*
 * cut_bits.c -- the part of a worker that chooses bit levels of its cuts: edges.guard and edges.bits: auto.
 *
 * Three inputs decide. The guards (edge_guard.h) raise the level of what this stage sends, from what they measure. With
 * edges.bits: auto the launcher sends levels at the start and at the start of each epoch, from the bytes and times that
 * the line of each step reports here. The plan's slack is the launcher's first guess (bits_auto.h). An edge takes the
 * higher level of the two.
 */
#include "control.h"
#include "edge.h"
#include "worker_parts.h"

struct part {
    const struct aq_plan *plan;
    uint32_t position;
    bool guards, guards_back;        /* the cut's shape has that guard, and this stage keeps it           */
    struct aq_edge_guard guard;      /* of activations at the cut behind this stage                       */
    struct aq_edge_guard guard_back; /* of gradients at the cut before it                                 */
    uint64_t epochs;                 /* up to the last one whose levels the launcher has sent; 0: not yet */
    uint32_t forward, backward;      /* those levels                                                      */
    uint64_t bytes[2], ns[2];        /* received over the links in and out, up to the last line           */
};

static bool part_wanted(const struct aq_plan *plan, uint32_t rank)
{
    (void)rank;
    return plan->stage_count > 1 && (plan->job->guard || plan->job->bits_auto);
}

static enum aq_status part_open(void *self, const struct aq_plan *plan, uint32_t rank)
{
    struct part *part = self;
    struct aq_codec_config levels[AQ_EDGE_LEVELS];
    const uint32_t epoch_steps = (uint32_t)plan->steps_per_epoch, position = rank % plan->stage_count;
    part->plan = plan;
    part->position = position;
    part->guards = position + 1 < plan->stage_count && plan->edges[position].shape.guard;
    part->guards_back = position > 0 && plan->edges[position - 1].shape.guard_back;
    if (part->guards)
        aq_edge_guard_init(&part->guard, position, aq_edge_level_list(&plan->edges[position].shape.forward, levels),
                           epoch_steps);
    if (!part->guards_back) return AQ_OK;
    aq_edge_guard_init(&part->guard_back, position - 1,
                       aq_edge_level_list(&plan->edges[position - 1].shape.backward, levels), epoch_steps);
    part->guard_back.gradients = true;
    return AQ_OK;
}

static void message_take(struct part *part, const json_t *message)
{
    if (!aq_control_is(message, "op", "bits")) return;
    part->epochs = 1 + aq_control_u64_or(message, "epoch", 0);
    part->forward = (uint32_t)aq_control_u64_or(message, "forward", UINT32_MAX);
    part->backward = (uint32_t)aq_control_u64_or(message, "backward", UINT32_MAX);
}

/* With edges.bits: auto the launcher sends all ranks the bit levels at their start and at the start of each epoch. */
static enum aq_status levels_await(const struct part *part, struct aq_part_args *args)
{
    const uint64_t steps = part->plan->steps_per_epoch;
    if (!part->plan->job->bits_auto || (!args->first && args->step % steps != 0)) return AQ_OK;
    args->awaits = "the bits of this epoch";
    if (part->epochs != 1 + args->step / steps) return AQ_AGAIN;
    if (args->edge_out) AQ_TRY(aq_edge_levels(args->edge_out, part->forward, 0));
    return args->edge_in ? aq_edge_levels(args->edge_in, 0, part->backward) : AQ_OK;
}

static enum aq_status part_on(void *self, enum aq_part_moment moment, struct aq_part_args *args)
{
    struct part *part = self;
    switch (moment) {
    case AQ_PART_EDGE_OPEN:
        if (args->sends && part->guards) args->guard = &part->guard;
        if (!args->sends && part->guards_back) args->guard = &part->guard_back;
        return AQ_OK;
    case AQ_PART_MESSAGE:
        message_take(part, args->message);
        return AQ_OK;
    case AQ_PART_STEP_AWAIT:
        return levels_await(part, args);
    case AQ_PART_SNAPSHOT:
        if (part->guards) aq_edge_guard_settle(&part->guard);
        if (part->guards_back) aq_edge_guard_settle(&part->guard_back);
        return AQ_OK;
    default:
        return AQ_OK;
    }
}

static enum aq_status guard_check(const float *values, uint32_t count)
{
    AQ_ASSERT(count == AQ_EDGE_GUARD_STATE);
    return aq_edge_guard_check(values);
}

static struct aq_checkpoint_state state_of(const char *name, struct aq_edge_guard *guard, bool optional)
{
    return (struct aq_checkpoint_state){
        .name = name, .values = guard->state, .count = AQ_EDGE_GUARD_STATE, .optional = optional, .check = guard_check};
}

static void part_state(void *self, struct aq_checkpoint_state *states, uint32_t *count)
{
    struct part *part = self;
    if (part->guards) states[(*count)++] = state_of("optimizer.guard", &part->guard, false);
    if (!part->guards_back) return;
    states[(*count)++] = state_of("optimizer.guard_back", &part->guard_back, true); /* an older file has none */
}

/* edges.bits: auto without a declared rate: what came over each link since the last line, and how long it took. */
static void received_report(struct part *part, struct aq_link *const links[2], json_t *line)
{
    static const char *const keys[2][2] = {{"in_link_bytes", "in_link_ns"}, {"out_link_bytes", "out_link_ns"}};
    if (!part->plan->job->bits_auto || part->plan->job->link.rate_mbps > 0) return;
    for (int i = 0; i < 2; i++) {
        struct aq_link_stats now;
        if (!links[i]) continue;
        aq_link_stats(links[i], &now);
        json_object_set_new(line, keys[i][0], json_integer((json_int_t)(now.received_packed_bytes - part->bytes[i])));
        json_object_set_new(
            line, keys[i][1],
            json_integer(now.receive_ns > part->ns[i] ? (json_int_t)(now.receive_ns - part->ns[i]) : 0));
        part->bytes[i] = now.received_packed_bytes;
        part->ns[i] = now.receive_ns;
    }
}

static void part_report(void *self, const struct aq_part_step *step, json_t *line)
{
    struct part *part = self;
    received_report(part, step->links, line);
    if (part->position > 0) json_object_set_new(line, "backward_bits", aq_control_number(step->in->bits_back));
    if (part->position + 1 == part->plan->stage_count) return;
    json_object_set_new(line, "forward_bits", aq_control_number(step->out->bits));
    if (part->plan->job->guard) json_object_set_new(line, "afresh", json_integer((json_int_t)step->out->afresh));
}

const struct aq_part_ops aq_part_cut_bits = {.name = "cut_bits",
                                             .bytes = sizeof(struct part),
                                             .wanted = part_wanted,
                                             .open = part_open,
                                             .on = part_on,
                                             .state = part_state,
                                             .report = part_report};
