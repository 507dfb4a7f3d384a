/*
 * advice_measure.c -- seconds of one forward, backward, encode, decode and update, measured on this machine.
 *
 * A stage is measured as it will run, not as fast as it can: every stage of a host is open at once, they take turns on
 * all its cores, and each goes round all its slots as its program does (a backward meets activations that were written
 * several micro-batches ago). A single stage, over and over on the same memory, finds its weights and activations in
 * the processor's caches and looks a fifth faster than it ever is next to the others. The median counts: one disturbed
 * turn does not move it.
 *
 * The share of bytes left after packing is measured on bodies coded here, of a model with random weights and after a
 * few updates: advice_measure_codec.c. Stages on a GPU are measured if this machine has one; else their line states
 * that they were not.
 */
#include <stdlib.h>
#include <string.h>

#include "aqsgd/device.h"
#include "aqsgd/grad.h"
#include "layer_bench.h"
#include "reduce_measure.h"

enum { ROUNDS_LEAST = 3, MEASURE_SECONDS = 3, MEASURE_SECONDS_MAX = 20 };

/* Stages first, first + stride ... of a host: what one of its cores works on. */
struct turns {
    struct aq_plan_bench *benches;
    uint32_t first, stride, count;
    enum aq_status status;
};

/* Every slot holds a micro-batch; then a round is, on each stage in turn, its oldest backward (its weight half) and a
 * forward. */
static enum aq_status time_turns(const struct turns *turns)
{
    const uint64_t begin = aq_clock_ns();
    for (uint32_t round = 0; round < AQ_PLAN_ROUNDS_MAX; round++) {
        const double spent = aq_plan_bench_since(begin);
        if (spent > MEASURE_SECONDS_MAX || (spent > MEASURE_SECONDS && round >= ROUNDS_LEAST)) break;
        for (uint32_t i = turns->first; i < turns->count; i += turns->stride) {
            struct aq_plan_bench *bench = &turns->benches[i];
            AQ_TRY(aq_plan_bench_round(bench, round));
        }
    }
    return AQ_OK;
}

static void run_turns(void *context)
{
    struct turns *turns = context;
    turns->status = time_turns(turns);
}

/* As many stages at once as their threads leave cores for. */
static enum aq_status time_stages(struct aq_plan_bench *benches, uint32_t count, uint32_t at_once)
{
    enum { AT_ONCE_MAX = AQ_JOB_STAGES_MAX };
    struct turns turns[AT_ONCE_MAX];
    struct aq_thread *threads[AT_ONCE_MAX] = {0};
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY(aq_plan_bench_begin(&benches[i]));
    for (uint32_t t = 0; t < at_once; t++)
        turns[t] = (struct turns){.benches = benches, .first = t, .stride = at_once, .count = count};
    for (uint32_t t = 1; t < at_once && status == AQ_OK; t++)
        status = aq_thread_open("aq-measure", run_turns, &turns[t], &threads[t]);
    if (status == AQ_OK) run_turns(&turns[0]);
    for (uint32_t t = 1; t < at_once; t++)
        aq_thread_close(threads[t]);
    for (uint32_t t = 0; t < at_once && status == AQ_OK; t++)
        status = turns[t].status;
    return status;
}

/* The coding at a cut in one direction, of values that either call may change. */
static struct aq_plan_coding coding_of(const struct aq_plan_bench *bench, const struct aq_edge_shape *shape,
                                       bool forward, const float *values)
{
    return (struct aq_plan_coding){.device = bench->device,
                                   .stream = bench->stream,
                                   .config = forward ? &shape->forward : &shape->backward,
                                   .rows = shape->rows,
                                   .columns = shape->columns,
                                   .B = shape->micro_batch,
                                   .before = values,
                                   .after = values};
}

/* The share of one end's coded bytes that is left after packing. */
static enum aq_status share_of(const struct aq_plan_bench *bench, const struct aq_link_config *link, uint32_t peer,
                               const struct aq_plan_coding *coding, double *share)
{
    uint32_t packed;
    const bool local = aq_job_same_host(bench->plan->job, bench->rank, peer);
    AQ_TRY(aq_link_packed(link, local, coding->bodies, coding->body_bytes, &packed));
    *share = (double)packed / coding->body_bytes;
    return AQ_OK;
}

/*
 * The edge to the next stage: what is sent is an output of this stage; then, against the message of that, the output of
 * the same tokens after some updates. This end decodes gradients: any values do.
 */
static enum aq_status time_edge_out(struct aq_plan_bench *bench, const float *before, struct aq_plan_costs *out)
{
    const uint32_t s = bench->rank;
    const struct aq_edge_shape *shape = &bench->plan->edges[s].shape;
    struct aq_plan_coding send = coding_of(bench, shape, true, bench->y);
    struct aq_plan_coding receive = coding_of(bench, shape, false, bench->y);
    send.before = before;
    AQ_TRY(aq_plan_time_coding(&send));
    enum aq_status status = share_of(bench, &bench->plan->stages[s].link_out, s + 1, &send, &out->forward_share[s]);
    out->send_s[s] = send.encode_s;
    aq_free(send.bodies);
    AQ_TRY(status);
    AQ_TRY(aq_plan_time_coding(&receive));
    out->receive_back_s[s] = receive.decode_s;
    aq_free(receive.bodies);
    return AQ_OK;
}

/* The edge from the stage before: x is the gradient of this stage's input, which is what is sent. */
static enum aq_status time_edge_in(struct aq_plan_bench *bench, struct aq_plan_costs *out)
{
    const uint32_t e = bench->rank - 1;
    const struct aq_edge_shape *shape = &bench->plan->edges[e].shape;
    struct aq_plan_coding send = coding_of(bench, shape, false, bench->x);
    struct aq_plan_coding receive = coding_of(bench, shape, true, bench->x);
    AQ_TRY(aq_plan_time_coding(&send));
    enum aq_status status = share_of(bench, &bench->plan->stages[e + 1].link_in, e, &send, &out->backward_share[e]);
    out->send_back_s[e] = send.encode_s;
    aq_free(send.bodies);
    AQ_TRY(status);
    AQ_TRY(aq_plan_time_coding(&receive));
    out->receive_s[e] = receive.decode_s;
    aq_free(receive.bodies);
    return AQ_OK;
}

static enum aq_status time_rest(struct aq_plan_bench *bench, struct aq_plan_costs *out)
{
    const uint32_t s = bench->rank;
    const bool sends = s + 1 < bench->plan->stage_count;
    void *before = NULL;
    enum aq_status status;
    if (sends) AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bench->y_bytes, &before));
    if (sends) AQ_TRY_GOTO(aq_plan_bench_forward(bench, 0), out);
    if (sends) AQ_TRY_GOTO(aq_device_copy(bench->device, before, bench->y, bench->y_bytes, bench->stream), out);
    AQ_TRY_GOTO(aq_plan_bench_update(bench, &out->step_s[s]), out);
    AQ_TRY_GOTO(aq_plan_bench_forward(bench, 0), out);
    if (sends) AQ_TRY_GOTO(time_edge_out(bench, before, out), out);
    AQ_TRY_GOTO(aq_plan_bench_backward(bench, 0), out);
    if (s > 0) status = time_edge_in(bench, out);
out:
    if (before) aq_device_free(bench->device, AQ_MEMORY_DEVICE, before, bench->y_bytes);
    return status;
}

/* The time to compute a reduction, and the share of its bytes left after packing: by the first stage's present
 * gradients.
 */
static enum aq_status time_packing(const struct aq_plan_bench *bench, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_plan_reduce_candidates(plan, candidates);
    if (count == 0) return AQ_OK;
    uint64_t parameters = plan->stages[0].size.parameters;
    for (uint32_t s = 1; parameters == 0 && s < plan->stage_count; s++) /* the first may be frozen */
        parameters = plan->stages[s].size.parameters;
    struct aq_device *packs = aq_plan_reduce_delay(plan) > 0 ? NULL : bench->device;
    AQ_TRY(aq_reduce_measure_packing(packs, candidates, count, parameters, plan->replicas, out->value_s));
    if (plan->stages[0].size.parameters == 0) return AQ_OK;
    const struct aq_plan_gradients gradients = {.device = bench->device,
                                                .stream = bench->stream,
                                                .values = aq_stage_gradients(bench->stage),
                                                .count = aq_stage_parameter_count(bench->stage),
                                                .link = &plan->stages[0].link_group,
                                                .local = aq_job_same_host(plan->job, 0, plan->stage_count)};
    for (uint32_t c = 0; c < count; c++)
        AQ_TRY(aq_plan_gradients_share(&gradients, &candidates[c].config, &out->value_share[c]));
    return AQ_OK;
}

/* The stages that share a host with stage `first`, which is the first of them. */
static enum aq_status measure_host(const struct aq_plan *plan, uint32_t first, uint32_t cores,
                                   struct aq_plan_costs *out)
{
    struct aq_plan_bench *benches;
    uint32_t count = 0, at_once = cores / (out->threads[first] > 0 ? out->threads[first] : 1);
    enum aq_status status = AQ_OK;
    AQ_TRY(AQ_NEW(plan->stage_count, &benches));
    for (uint32_t s = first; s < plan->stage_count && status == AQ_OK; s++)
        if (aq_job_same_host(plan->job, first, s))
            status = aq_plan_bench_open(&benches[count++], plan, s, &plan->stages[s].config, out->threads[s]);
    if (at_once > count) at_once = count;
    if (status == AQ_OK) status = time_stages(benches, count, at_once > 0 ? at_once : 1);
    if (status == AQ_OK && first == 0) status = time_packing(&benches[0], out);
    for (uint32_t i = 0; i < count && status == AQ_OK; i++) {
        out->forward_s[benches[i].rank] = aq_plan_bench_median(benches[i].forward_s, benches[i].rounds);
        out->backward_s[benches[i].rank] = aq_plan_bench_median(benches[i].backward_s, benches[i].rounds);
        if (plan->stages[benches[i].rank].program.split)
            out->weights_s[benches[i].rank] = aq_plan_bench_median(benches[i].weights_s, benches[i].rounds);
        status = time_rest(&benches[i], out);
    }
    for (uint32_t i = 0; i < count; i++)
        aq_plan_bench_close(&benches[i]);
    aq_free(benches);
    return status;
}

enum aq_status aq_plan_costs_measured(const struct aq_plan *plan, uint32_t cores, struct aq_plan_costs *out)
{
    aq_plan_costs_common(plan, cores, out);
    out->origin = "measured here";
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        bool known = false;
        for (uint32_t earlier = 0; earlier < s && !known; earlier++)
            known = aq_job_same_host(plan->job, earlier, s);
        if (!known) AQ_TRY(measure_host(plan, s, cores, out));
    }
    out->packed = true;
    aq_plan_costs_speed(plan, out);
    aq_plan_costs_reduce(plan, out);
    return AQ_OK;
}
