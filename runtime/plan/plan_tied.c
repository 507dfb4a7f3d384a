/*
 * plan_tied.c -- a tied head that a cut separates from the embedding's table: the traffic between the two, and the jobs
 * where model.tied is impossible. See runtime/worker/worker_tied.c.
 */
#include "plan_private.h"

enum { PLACE_BYTES = 256 };

/* Split learning whose last stage is the server's: its head is every client's, and the embedding each one's own. */
static bool parted(const struct aq_job *job)
{
    return job->split.clients > 0 && job->split.labels != AQ_SPLIT_LABELS_CLIENT;
}

uint32_t aq_plan_rows_if_tied(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const uint64_t tokens = (uint64_t)plan->batch * aq_plan_places(plan);
    struct aq_model_config model = plan->model;
    model.tied = AQ_TIED_EXACT;
    if (model.vocabulary == 0 || parted(job)) return 0;
    if (!aq_model_ties(&model, aq_plan_places(plan), job->train.freeze, &job->train.lora, NULL)) return 0;
    return tokens < model.vocabulary ? (uint32_t)tokens : model.vocabulary;
}

uint32_t aq_plan_tied_rows(const struct aq_plan *plan)
{
    return plan->model.tied == AQ_TIED_NO ? 0 : plan->rows_if_tied;
}

bool aq_plan_could_tie(const struct aq_plan *plan)
{
    return plan->stage_count > 1 && plan->rows_if_tied > 0;
}

bool aq_plan_ties(const struct aq_plan *plan)
{
    return plan->stage_count > 1 && aq_plan_tied_rows(plan) > 0;
}

bool aq_plan_tied_local(const struct aq_plan *plan)
{
    return plan->job->split.clients > 0 && aq_plan_ties(plan);
}

uint64_t aq_plan_tied_floats(const struct aq_plan *plan)
{
    return (uint64_t)plan->model.vocabulary * plan->model.channels;
}

enum aq_status aq_plan_tied_codec(const struct aq_plan *plan, struct aq_grad_codec **out)
{
    const uint64_t floats = aq_plan_tied_floats(plan);
    const struct aq_optimizer_tensor table = {.count = floats};
    struct aq_grad_codec_config config;
    (void)aq_grad_codec_config_named(&config, AQ_PLAN_TIED_CODEC);
    return aq_grad_codec_open(&config, &table, 1, floats, out);
}

enum aq_status aq_plan_tied_traffic(const struct aq_plan *plan, enum aq_tied how, struct aq_plan_tied *out)
{
    const uint64_t floats = aq_plan_tied_floats(plan), rows = plan->rows_if_tied;
    struct aq_grad_codec *codec;
    *out = (struct aq_plan_tied){.up_words = floats, .down_words = floats};
    const bool nothing = how == AQ_TIED_NO || plan->job->split.clients > 0;
    if (nothing) *out = (struct aq_plan_tied){0};
    if (nothing || how != AQ_TIED_COMPRESSED) return AQ_OK;
    AQ_TRY(aq_plan_tied_codec(plan, &codec));
    out->up_words = (aq_grad_codec_bytes_pieces(codec, 0, floats) + sizeof(float) - 1) / sizeof(float);
    out->down_words = 1 + rows * (1 + plan->model.channels);
    aq_grad_codec_close(codec);
    return AQ_OK;
}

uint64_t aq_plan_tied_host_bytes(const struct aq_plan *plan)
{
    const bool needed = aq_plan_ties(plan) && plan->model.tied == AQ_TIED_COMPRESSED;
    const uint64_t each = aq_plan_tied_floats(plan) * sizeof(float);
    return aq_plan_tied_local(plan) ? each : needed ? 2 * each : 0;
}

uint64_t aq_plan_tied_bytes(const struct aq_plan *plan, uint32_t e, uint64_t words)
{
    const uint64_t most = plan->edges[e].size.body_bytes_max / sizeof(float), whole = words / most, rest = words % most;
    const bool loopback = aq_plan_edge_loopback(plan->job, e);
    return whole * aq_wire_bytes(most * sizeof(float), loopback) +
           (rest ? aq_wire_bytes(rest * sizeof(float), loopback) : 0);
}

uint64_t aq_plan_tied_sent(const struct aq_plan *plan, uint32_t s)
{
    struct aq_plan_tied traffic;
    if (!aq_plan_ties(plan) || aq_plan_tied_traffic(plan, plan->model.tied, &traffic) != AQ_OK) return 0;
    return (s > 0 ? aq_plan_tied_bytes(plan, s - 1, traffic.up_words) : 0) +
           (s + 1 < plan->stage_count ? aq_plan_tied_bytes(plan, s, traffic.down_words) : 0);
}

/* The setting under which the two sides would not compute the same bits. */
static const char *compressed_fault(const struct aq_plan *plan, const char **key)
{
    const struct aq_job *job = plan->job;
    const struct aq_optimizer_config *optimizer = &job->train.optimizer;
    const uint32_t last = plan->stage_count - 1;
    *key = "model.tied";
    if (job->split.clients > 0) return "both are a client's, where exact costs no link anything";
    if (aq_device_gpu(job->pipeline.stages[0].device) != aq_device_gpu(job->pipeline.stages[last].device))
        return "the first and the last stage run on devices of two kinds, whose updates are not rounded alike";
    if (plan->replicas == 1) return NULL;
    *key = "train.optimizer";
    if (!aq_optimizer_config_averages(optimizer))
        return "what the optimizer's replicas send has scales that depend on the stage";
    *key = "reduce.codec";
    if (optimizer->reduce_automatic || optimizer->low_rank || !aq_grad_codec_config_plain(&optimizer->reduce))
        return "the gradients of replicas are quantized with scales that depend on the stage";
    *key = "reduce.machine_first";
    return job->reduce.machine_first ? "machines may add the replicas of the two stages in another order" : NULL;
}

/* A sum along the pipeline comes once a step, and copies stay equal where each is trained by the same numbers. */
static enum aq_status shared_check(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const bool own =
        plan->replicas > 1 && (!aq_optimizer_config_averages(&job->train.optimizer) || job->reduce.every > 1);
    const char *key = job->train.staleness    ? "train.staleness"
                      : job->reduce.every > 1 ? "reduce.every"
                                              : "train.optimizer";
    char place[PLACE_BYTES];
    if (plan->stages[0].size.shared == 0 || (!job->train.staleness && !own)) return AQ_OK;
    aq_job_place(job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: %s: stages share a tensor whose gradients are summed along the pipeline in each step, after "
                   "replicas have averaged them; leave the key out, or write model.tied: untied for a table per "
                   "block",
                   place, key);
}

enum aq_status aq_plan_tied_check(const struct aq_plan *plan)
{
    char place[PLACE_BYTES];
    const char *key;
    AQ_TRY(shared_check(plan));
    if (!aq_plan_ties(plan) || plan->model.tied != AQ_TIED_COMPRESSED) return AQ_OK;
    const char *fault = compressed_fault(plan, &key);
    if (!fault) return AQ_OK;
    aq_job_place(plan->job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "manifest",
                   "%s: %s: model.tied: compressed updates the table on the first and on the last stage, bit for bit "
                   "alike, and here %s; write model.tied: exact, or model.tied: untied for two tensors",
                   place, key, fault);
}

enum aq_status aq_plan_tied_print(const struct aq_plan *plan, struct aq_text *text)
{
    static const struct {
        enum aq_tied how;
        const char *name, *of;
    } choices[] = {{AQ_TIED_EXACT, "exact", "the table's gradient and its values, fp32"},
                   {AQ_TIED_COMPRESSED, "compressed",
                    "its gradient in " AQ_PLAN_TIED_CODEC " with error feedback, and the rows that the batches name"},
                   {AQ_TIED_NO, "untied", "embedding and head are two tensors"}};
    const uint32_t last = plan->stage_count - 2;
    if (plan->job->split.clients > 0 && plan->stage_count > 1) {
        const struct aq_job_train *train = &plan->job->train;
        if (!aq_model_ties(&plan->model, train->T, train->freeze, &train->lora, NULL)) return AQ_OK;
        aq_text_add(text, "embedding and head are %s\n",
                    aq_plan_ties(plan) ? "one tensor, both at the client: nothing of it crosses a link (model.tied)"
                                       : "two tensors: the head is the server's (split.labels: server)");
        return AQ_OK;
    }
    if (!aq_plan_could_tie(plan)) return AQ_OK;
    aq_text_add(text,
                "%s, of %llu values, and a cut separates them; bytes once a step and link, towards the embedding and "
                "back (model.tied):\n",
                aq_plan_ties(plan) ? "embedding and head are one tensor" : "embedding and head are two tensors",
                (unsigned long long)aq_plan_tied_floats(plan));
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct aq_plan_tied traffic;
        AQ_TRY(aq_plan_tied_traffic(plan, choices[i].how, &traffic));
        aq_text_add(text, "  %c %-10s  %12llu  %s%12llu bytes  %s\n", plan->model.tied == choices[i].how ? '*' : ' ',
                    choices[i].name, (unsigned long long)aq_plan_tied_bytes(plan, last, traffic.up_words),
                    choices[i].how == AQ_TIED_COMPRESSED ? "up to " : "      ",
                    (unsigned long long)aq_plan_tied_bytes(plan, last, traffic.down_words), choices[i].of);
    }
    return AQ_OK;
}
