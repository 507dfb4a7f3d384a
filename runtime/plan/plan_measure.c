/*
 * plan_measure.c -- seconds of one forward, backward, encode, decode and update, measured on this machine.
 *
 * A stage is measured as it will run, not as fast as it can: every stage of a host is open at once, they take turns on
 * all its cores, and each goes round all its slots as its program does (a backward meets activations that were written
 * several micro-batches ago). A stage alone, over and over on the same memory, finds its weights and activations in the
 * processor's caches and looks a fifth faster than it ever is beside the others. What counts is the median: one turn in
 * which something else ran does not move it.
 *
 * What links leave of the bytes of bodies is that of bodies coded here, of a model with random weights and after some
 * updates: plan_measure_codec.c. Stages on a GPU are measured where there is one; elsewhere their line says so.
 */
#include <stdlib.h>
#include <string.h>

#include "aqsgd/device.h"
#include "aqsgd/grad.h"
#include "plan_private.h"
#include "reduce_measure.h"

enum { REPEATS = 3, ROUNDS_LEAST = 3, ROUNDS_MAX = 31, MEASURE_SECONDS = 3, MEASURE_SECONDS_MAX = 20 };

/* One stage of the host that is being measured. */
struct bench {
    const struct aq_plan *plan;
    uint32_t rank, slots, rounds;
    struct aq_stage *stage;
    double forward_s[ROUNDS_MAX], backward_s[ROUNDS_MAX], weights_s[ROUNDS_MAX];
    struct aq_device *device;
    struct aq_stream *stream;
    float *x, *y; /* at the cut before and behind */
    uint64_t x_bytes, y_bytes;
    struct aq_batch batch; /* of the first and the last stage: values at random */
    uint64_t *ids;
};

static void bench_close(struct bench *bench)
{
    if (!bench->device) return;
    aq_stage_close(bench->stage);
    if (bench->x) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->x, bench->x_bytes);
    if (bench->y) aq_device_free(bench->device, AQ_MEMORY_DEVICE, bench->y, bench->y_bytes);
    for (uint32_t i = 0; i < bench->batch.field_count; i++)
        aq_free(bench->batch.fields[i].values);
    aq_free(bench->ids);
    if (bench->stream) aq_device_stream_close(bench->device, bench->stream);
    aq_device_close(bench->device);
    *bench = (struct bench){0};
}

/* Values of a cut (bytes 0: there is none), at random. */
static enum aq_status values_open(const struct bench *bench, uint64_t bytes, float **out)
{
    void *host = NULL;
    if (bytes == 0) return AQ_OK;
    AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bytes, (void **)out));
    AQ_TRY(aq_alloc(bytes, &host));
    float *values = host;
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, bench->rank, 0);
    for (uint64_t i = 0; i < bytes / sizeof *values; i++)
        values[i] = aq_rng_uniform(&key, i) - 0.5f;
    enum aq_status status = aq_device_copy(bench->device, *out, values, bytes, bench->stream);
    if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
    aq_free(host);
    return status;
}

/* A batch of what the data set names: targets that it may have, and numbers about 0. */
static enum aq_status batch_open(struct bench *bench, const struct aq_stage_config *stage)
{
    struct aq_batch *batch = &bench->batch;
    struct aq_field fields[AQ_BATCH_FIELDS_MAX];
    const uint32_t count = aq_dataset_fields(bench->plan->job->data.kind, stage->T, fields);
    const struct aq_rng_key key = aq_rng_key(1, AQ_RNG_TEST, bench->rank, 1);
    *batch = (struct aq_batch){.samples = stage->B, .sample_ids = bench->ids};
    for (uint32_t f = 0; f < count; f++) {
        const uint64_t values = (uint64_t)stage->B * fields[f].count;
        AQ_TRY(aq_alloc(values * AQ_FIELD_BYTES, &fields[f].values));
        batch->fields[batch->field_count++] = fields[f];
        for (uint64_t i = 0; i < values; i++)
            if (fields[f].type == AQ_FIELD_I32)
                ((int32_t *)fields[f].values)[i] = (int32_t)aq_rng_below(&key, i, bench->plan->facts.vocabulary);
            else
                ((float *)fields[f].values)[i] = aq_rng_uniform(&key, i) - 0.5f;
    }
    return AQ_OK;
}

static enum aq_status bench_open(struct bench *bench, const struct aq_plan *plan, uint32_t s, uint32_t threads)
{
    const struct aq_job_stage *place = &plan->job->pipeline.stages[s];
    const struct aq_device_config config = {.kind = place->device, .index = place->device_index, .threads = threads};
    const struct aq_stage_config *stage = &plan->stages[s].config;
    *bench = (struct bench){.plan = plan,
                            .rank = s,
                            .slots = stage->slots,
                            .x_bytes = plan->stages[s].size.x_bytes,
                            .y_bytes = plan->stages[s].size.y_bytes};
    AQ_TRY(aq_device_open(&config, &bench->device));
    AQ_TRY(aq_device_stream_open(bench->device, &bench->stream));
    AQ_TRY(aq_stage_open(bench->device, stage, &bench->stage));
    AQ_TRY(values_open(bench, bench->x_bytes, &bench->x));
    AQ_TRY(values_open(bench, bench->y_bytes, &bench->y));
    AQ_TRY(aq_alloc(stage->B * sizeof *bench->ids, (void **)&bench->ids));
    return batch_open(bench, stage);
}

static double seconds_since(uint64_t begin)
{
    return (double)(aq_clock_ns() - begin) * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static enum aq_status forward(struct bench *bench, uint32_t slot)
{
    const struct aq_plan *plan = bench->plan;
    const bool first = bench->rank == 0, last = bench->rank + 1 == plan->stage_count;
    const struct aq_stage_input input = {
        .x = first ? NULL : bench->x, .batch = &bench->batch, .seed = plan->job->train.seed, .loss_scale = 1};
    struct aq_stage_loss loss;
    AQ_TRY(aq_stage_forward(bench->stage, slot, &input, last ? NULL : bench->y, last ? &loss : NULL, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

static enum aq_status backward(struct bench *bench, uint32_t slot)
{
    const bool first = bench->rank == 0, last = bench->rank + 1 == bench->plan->stage_count;
    AQ_TRY(aq_stage_backward(bench->stage, slot, last ? NULL : bench->y, first ? NULL : bench->x, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

static enum aq_status weights(struct bench *bench, uint32_t slot)
{
    if (!bench->plan->stages[bench->rank].program.split) return AQ_OK;
    AQ_TRY(aq_stage_weights(bench->stage, slot, bench->stream));
    return aq_device_stream_sync(bench->device, bench->stream);
}

/* Stages first, first + stride ... of a host: what one of its cores works on. */
struct turns {
    struct bench *benches;
    uint32_t first, stride, count;
    enum aq_status status;
};

/* Every slot holds a micro-batch; then a round is, on each stage in turn, its oldest backward (its weight half) and a
 * forward. */
static enum aq_status time_turns(const struct turns *turns)
{
    const uint64_t begin = aq_clock_ns();
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        const double spent = seconds_since(begin);
        if (spent > MEASURE_SECONDS_MAX || (spent > MEASURE_SECONDS && round >= ROUNDS_LEAST)) break;
        for (uint32_t i = turns->first; i < turns->count; i += turns->stride) {
            struct bench *bench = &turns->benches[i];
            uint64_t start = aq_clock_ns();
            AQ_TRY(backward(bench, round % bench->slots));
            bench->backward_s[round] = seconds_since(start);
            start = aq_clock_ns();
            AQ_TRY(weights(bench, round % bench->slots));
            bench->weights_s[round] = seconds_since(start);
            start = aq_clock_ns();
            AQ_TRY(forward(bench, round % bench->slots));
            bench->forward_s[round] = seconds_since(start);
            bench->rounds = round + 1;
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
static enum aq_status time_stages(struct bench *benches, uint32_t count, uint32_t at_once)
{
    enum { AT_ONCE_MAX = AQ_JOB_STAGES_MAX };
    struct turns turns[AT_ONCE_MAX];
    struct aq_thread *threads[AT_ONCE_MAX] = {0};
    enum aq_status status = AQ_OK;
    for (uint32_t i = 0; i < count; i++) {
        AQ_TRY(aq_stage_init(benches[i].stage, benches[i].plan->job->train.seed));
        AQ_TRY(aq_stage_parameters_changed(benches[i].stage, benches[i].stream));
        for (uint32_t slot = 0; slot < benches[i].slots; slot++)
            AQ_TRY(forward(&benches[i], slot));
    }
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

static enum aq_status time_update(struct bench *bench, uint32_t s, struct aq_stage *stage, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    const struct aq_optimizer_tensor whole = {.count = aq_stage_parameter_count(stage), .decay = true};
    const float lr = plan->job->train.lr;
    struct aq_optimizer *optimizer;
    AQ_TRY(aq_optimizer_open(bench->device, &plan->job->train.optimizer, &whole, 1, whole.count, &optimizer));
    enum aq_status status = AQ_OK;
    for (int repeat = 0; repeat < REPEATS && status == AQ_OK; repeat++) {
        const uint64_t start = aq_clock_ns();
        double sum = 0;
        status = aq_stage_gradient_sum2(stage, &sum, bench->stream);
        if (status == AQ_OK)
            status = aq_optimizer_step(optimizer, aq_stage_parameters(stage), aq_stage_gradients(stage), lr, 1,
                                       (uint64_t)repeat + 1, bench->stream);
        if (status == AQ_OK) status = aq_stage_zero_grads(stage, bench->stream);
        if (status == AQ_OK) status = aq_stage_parameters_changed(stage, bench->stream);
        if (status == AQ_OK) status = aq_device_stream_sync(bench->device, bench->stream);
        const double seconds = seconds_since(start);
        if (repeat == 0 || seconds < out->step_s[s]) out->step_s[s] = seconds;
    }
    aq_optimizer_close(optimizer);
    return status;
}

/* The coding at a cut in one direction, of values that either call may change. */
static struct aq_plan_coding coding_of(const struct bench *bench, const struct aq_edge_shape *shape, bool forward,
                                       const float *values)
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

/* What a link leaves of the bytes that one end coded. */
static enum aq_status share_of(const struct bench *bench, const struct aq_link_config *link, uint32_t peer,
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
 * the same tokens after some updates. What is decoded here are gradients: any values do.
 */
static enum aq_status time_edge_out(struct bench *bench, const float *before, struct aq_plan_costs *out)
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
static enum aq_status time_edge_in(struct bench *bench, struct aq_plan_costs *out)
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

static enum aq_status time_rest(struct bench *bench, struct aq_plan_costs *out)
{
    const uint32_t s = bench->rank;
    const bool sends = s + 1 < bench->plan->stage_count;
    void *before = NULL;
    enum aq_status status;
    if (sends) AQ_TRY(aq_device_alloc(bench->device, AQ_MEMORY_DEVICE, bench->y_bytes, &before));
    if (sends) AQ_TRY_GOTO(forward(bench, 0), out);
    if (sends) AQ_TRY_GOTO(aq_device_copy(bench->device, before, bench->y, bench->y_bytes, bench->stream), out);
    AQ_TRY_GOTO(time_update(bench, s, bench->stage, out), out);
    AQ_TRY_GOTO(forward(bench, 0), out);
    if (sends) AQ_TRY_GOTO(time_edge_out(bench, before, out), out);
    AQ_TRY_GOTO(backward(bench, 0), out);
    if (s > 0) status = time_edge_in(bench, out);
out:
    if (before) aq_device_free(bench->device, AQ_MEMORY_DEVICE, before, bench->y_bytes);
    return status;
}

/* What computing a reduction costs, and what links leave of its bytes: by the gradients that the first stage has now.
 */
static enum aq_status time_packing(const struct bench *bench, struct aq_plan_costs *out)
{
    const struct aq_plan *plan = bench->plan;
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_plan_reduce_candidates(plan, candidates);
    if (count == 0) return AQ_OK;
    uint64_t parameters = plan->stages[0].size.parameters;
    for (uint32_t s = 1; parameters == 0 && s < plan->stage_count; s++) /* the first may be frozen */
        parameters = plan->stages[s].size.parameters;
    AQ_TRY(aq_reduce_measure_packing(bench->device, candidates, count, parameters, plan->replicas, out->value_s));
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
    struct bench *benches;
    uint32_t count = 0, at_once = cores / (out->threads[first] > 0 ? out->threads[first] : 1);
    enum aq_status status = AQ_OK;
    AQ_TRY(aq_alloc(plan->stage_count * sizeof *benches, (void **)&benches));
    for (uint32_t s = first; s < plan->stage_count && status == AQ_OK; s++)
        if (aq_job_same_host(plan->job, first, s)) status = bench_open(&benches[count++], plan, s, out->threads[s]);
    if (at_once > count) at_once = count;
    if (status == AQ_OK) status = time_stages(benches, count, at_once > 0 ? at_once : 1);
    if (status == AQ_OK && first == 0) status = time_packing(&benches[0], out);
    for (uint32_t i = 0; i < count && status == AQ_OK; i++) {
        out->forward_s[benches[i].rank] = median(benches[i].forward_s, benches[i].rounds);
        out->backward_s[benches[i].rank] = median(benches[i].backward_s, benches[i].rounds);
        if (plan->stages[benches[i].rank].program.split)
            out->weights_s[benches[i].rank] = median(benches[i].weights_s, benches[i].rounds);
        status = time_rest(&benches[i], out);
    }
    for (uint32_t i = 0; i < count; i++)
        bench_close(&benches[i]);
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
    aq_plan_costs_reduce(plan, out);
    return AQ_OK;
}
