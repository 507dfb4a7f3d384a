/*
 * schedule.c -- the table of schedules, and the emitter that makes a program of an order. See program.h and schedule.h.
 */
#include "schedule.h"

static const struct aq_schedule_ops *ops_of(enum aq_schedule_kind kind)
{
    switch (kind) {
#define AQ_SCHEDULE(name, id, text)                                                                                    \
    case id:                                                                                                           \
        return &schedule_##name;
#include "schedules.def"
    case AQ_SCHEDULE_AUTO:
        break; /* none: a plan chooses one */
    }
    return NULL;
}

const char *aq_schedule_name(enum aq_schedule_kind kind)
{
    const struct aq_schedule_ops *ops = ops_of(kind);
    return ops ? ops->name : "unknown";
}

bool aq_schedule_splits(enum aq_schedule_kind kind)
{
    const struct aq_schedule_ops *ops = ops_of(kind);
    return ops && ops->split;
}

const char *aq_op_name(enum aq_op op)
{
    static const char *const names[AQ_OP_COUNT] = {
        [AQ_OP_RECV_FWD] = "RECV_FWD", [AQ_OP_FORWARD] = "FORWARD",   [AQ_OP_SEND_FWD] = "SEND_FWD",
        [AQ_OP_RECV_BWD] = "RECV_BWD", [AQ_OP_BACKWARD] = "BACKWARD", [AQ_OP_SEND_BWD] = "SEND_BWD",
        [AQ_OP_WEIGHTS] = "WEIGHTS",   [AQ_OP_PREFETCH] = "PREFETCH", [AQ_OP_NORM] = "NORM",
        [AQ_OP_REDUCE] = "REDUCE",     [AQ_OP_STEP] = "STEP",         [AQ_OP_MARK] = "MARK"};
    return (unsigned)op < AQ_OP_COUNT && names[op] ? names[op] : "UNKNOWN";
}

enum aq_chain aq_op_chain(enum aq_op op)
{
    switch (op) {
    case AQ_OP_PREFETCH:
    case AQ_OP_RECV_FWD:
    case AQ_OP_FORWARD:
    case AQ_OP_SEND_FWD:
        return AQ_CHAIN_FORWARD;
    case AQ_OP_RECV_BWD:
    case AQ_OP_BACKWARD:
    case AQ_OP_SEND_BWD:
        return AQ_CHAIN_BACKWARD;
    case AQ_OP_WEIGHTS:
        return AQ_CHAIN_WEIGHTS;
    default:
        return AQ_CHAINS;
    }
}

static enum aq_status request_check(const struct aq_schedule_request *request, uint32_t stage)
{
    if (!ops_of(request->kind)) return aq_fail(AQ_INVAL, "schedule", "there is no schedule %d", (int)request->kind);
    if (request->stages < 1 || request->stages > AQ_JOB_STAGES_MAX || stage >= request->stages)
        return aq_fail(AQ_INVAL, "schedule", "stage %u of %u stages; 1 to %u stages are possible", stage,
                       request->stages, AQ_JOB_STAGES_MAX);
    if (request->micro_batches < 1 || request->micro_batches > AQ_JOB_MICRO_BATCHES_MAX)
        return aq_fail(AQ_INVAL, "schedule", "%u micro-batches in a step; 1 to %u are possible", request->micro_batches,
                       AQ_JOB_MICRO_BATCHES_MAX);
    if (request->staleness > AQ_STALENESS_MAX)
        return aq_fail(AQ_INVAL, "schedule", "staleness %u; 0 to %u can be", request->staleness, AQ_STALENESS_MAX);
    return AQ_OK;
}

uint32_t aq_schedule_slots(const struct aq_schedule_request *request, uint32_t stage)
{
    AQ_ASSERT(request_check(request, stage) == AQ_OK);
    const uint32_t slots = ops_of(request->kind)->slots(request, stage);
    AQ_ASSERT(slots >= 1 && slots <= aq_schedule_most(request));
    return slots;
}

uint32_t aq_schedule_bound(uint32_t micro_batches)
{
    return 8 * micro_batches + 4; /* PREFETCH, 3 forward, 3 backward, WEIGHTS; NORM, REDUCE, STEP, MARK */
}

struct emitter {
    struct aq_instruction *code;
    uint32_t count;
    uint32_t slots;
};

static void emit(struct emitter *emitter, enum aq_op op, uint32_t micro_batch, bool slot)
{
    emitter->code[emitter->count++] = (struct aq_instruction){
        .op = (uint8_t)op, .slot = (uint16_t)(slot ? micro_batch % emitter->slots : 0), .micro_batch = micro_batch};
}

enum aq_status aq_schedule_emit(const struct aq_schedule_request *request, uint32_t stage, struct aq_instruction *code,
                                uint32_t capacity, struct aq_program *out)
{
    AQ_TRY(request_check(request, stage));
    const uint32_t M = request->micro_batches, P = request->stages;
    if (capacity < aq_schedule_bound(M))
        return aq_fail(AQ_NOSPC, "schedule", "room for %u instructions, %u are needed", capacity, aq_schedule_bound(M));
    const struct aq_schedule_ops *ops = ops_of(request->kind);
    struct emitter emitter = {.code = code, .slots = aq_schedule_slots(request, stage)};
    const uint32_t entries = (ops->split ? 3 : 2) * M;
    struct aq_schedule_order *order;
    AQ_TRY(AQ_NEW(entries, &order));
    const uint32_t window = P == 1 ? 0 : request->window < M ? request->window : M;
    struct aq_schedule_request step = *request; /* of one step: the next one runs in parallel, outside its order */
    step.staleness = 0;
    ops->order(&step, stage, emitter.slots < M ? emitter.slots : M, order);
    for (uint32_t k = 0; k < entries; k++) {
        const uint32_t i = order[k].micro_batch;
        if (order[k].op == AQ_OP_FORWARD) {
            if (window) emit(&emitter, AQ_OP_PREFETCH, i + window, false);
            if (stage > 0) emit(&emitter, AQ_OP_RECV_FWD, i, true);
            emit(&emitter, AQ_OP_FORWARD, i, true);
            if (stage + 1 < P) emit(&emitter, AQ_OP_SEND_FWD, i, true);
        } else if (order[k].op == AQ_OP_WEIGHTS) {
            emit(&emitter, AQ_OP_WEIGHTS, i, true);
        } else {
            if (stage + 1 < P) emit(&emitter, AQ_OP_RECV_BWD, i, true);
            emit(&emitter, AQ_OP_BACKWARD, i, true);
            if (stage > 0) emit(&emitter, AQ_OP_SEND_BWD, i, true);
        }
    }
    aq_free(order);
    if (request->reduce) emit(&emitter, AQ_OP_REDUCE, 0, false);
    emit(&emitter, AQ_OP_NORM, 0, false);
    emit(&emitter, AQ_OP_STEP, 0, false);
    emit(&emitter, AQ_OP_MARK, 0, false);
    AQ_ASSERT(emitter.count <= capacity);
    *out = (struct aq_program){.code = code,
                               .count = emitter.count,
                               .stage = stage,
                               .stages = P,
                               .micro_batches = M,
                               .slots = emitter.slots,
                               .split = ops->split,
                               .flush = request->flush && ops->flushes,
                               .window = window,
                               .staleness = request->staleness};
    return AQ_OK;
}
