/*
 * worker_choose.c -- `reduce.codec: auto`: the replicas of a stage choose the codec of their reductions, once.
 *
 * Links and packing are measured before the run starts. The choice is made at the first REDUCE that averages, when it
 * is known what a step computes; nothing has been reduced by then. It is state of the optimizer, so that a resumed run
 * has it from its checkpoint and measures nothing: what was measured once is not measured alike again. Each stage
 * chooses for itself, because it has its own parameters and links.
 */
#include <assert.h>

#include "net/collective.h"
#include "reduce_measure.h"
#include "worker.h"

/* Measurements that ranks exchange before they choose: as they are here, on the wire. */
struct said {
    uint64_t index; /* chosen in an attempt to average that failed, or AQ_CHOICE_NONE */
    struct aq_grad_scene scene;
    double value_s[AQ_GRAD_CANDIDATES_MAX];
};
static_assert(sizeof(struct said) == 8 * (1 + 3 + AQ_GRAD_CANDIDATES_MAX), "no byte of a message is padding");

enum aq_status aq_worker_choose_open(struct aq_worker *worker)
{
    const struct aq_optimizer_config *config = &worker->job->train.optimizer;
    struct aq_worker_choice *choice = &worker->replicas.choice;
    uint32_t index;
    if (!config->reduce_automatic || worker->W == 1 || worker->me->size.parameters == 0) return AQ_OK;
    choice->count = aq_grad_candidates(config, choice->candidates);
    AQ_TRY(aq_optimizer_chosen(worker->optimizer, &index));
    if (index != AQ_CHOICE_NONE) {
        choice->name = choice->candidates[index].name;
        aq_log("worker", 1, "stage %u averages in %s, from its checkpoint (reduce.codec: auto)", worker->position,
               choice->name);
        AQ_TRY(aq_optimizer_choose(worker->optimizer, index));
        return aq_worker_group_prepare(worker);
    }
    if (worker->replicas.rounds.returns)
        return aq_fail(AQ_CORRUPT, "worker", "the checkpoint by which this replica returns names no codec");
    struct aq_device *packs = aq_worker_is_delayed(worker) ? NULL : worker->device;
    AQ_TRY(aq_reduce_measure_packing(packs, choice->candidates, choice->count, worker->me->size.parameters,
                                     worker->W, choice->value_s));
    AQ_TRY(aq_reduce_measure_links(worker->replicas.group, worker->device, worker->stream, &choice->links));
    choice->due = true;
    return AQ_OK;
}

/* What a peer names is a codec of the job. */
static enum aq_status known(const struct aq_worker *worker, uint32_t rank, uint64_t index)
{
    if (index < worker->replicas.choice.count) return AQ_OK;
    return aq_fail(AQ_PROTO, "worker", "rank %u of the replicas averages in codec %llu, and there are %u", rank,
                   (unsigned long long)index, worker->replicas.choice.count);
}

/* Of all ranks the slowest; what links carry is the same on all of them already. And what one of them has chosen. */
static enum aq_status join(struct aq_worker *worker, struct said *slowest)
{
    struct said all[AQ_GROUP_SIZE_MAX];
    uint32_t index;
    AQ_TRY(aq_optimizer_chosen(worker->optimizer, &index));
    const uint32_t steps =
        aq_optimizer_config_local(&worker->job->train.optimizer) ? worker->job->train.optimizer.outer_every : 1;
    *slowest = (struct said){.index = index,
                             .scene = {.rate = worker->replicas.choice.links.rate,
                                       .latency_s = worker->replicas.choice.links.latency_s,
                                       .compute_s = (double)worker->times.compute_ns * 1e-9 * steps}};
    for (uint32_t c = 0; c < worker->replicas.choice.count; c++)
        slowest->value_s[c] = worker->replicas.choice.value_s[c];
    AQ_TRY(aq_all_gather(worker->replicas.group, slowest, sizeof *slowest, all));
    for (uint32_t w = 0; w < aq_group_size(worker->replicas.group); w++) {
        if (all[w].index != AQ_CHOICE_NONE) {
            AQ_TRY(known(worker, w, all[w].index));
            slowest->index = all[w].index;
        }
        if (all[w].scene.compute_s > slowest->scene.compute_s) slowest->scene.compute_s = all[w].scene.compute_s;
        for (uint32_t c = 0; c < worker->replicas.choice.count; c++)
            if (all[w].value_s[c] > slowest->value_s[c]) slowest->value_s[c] = all[w].value_s[c];
    }
    return AQ_OK;
}

static void say(const struct aq_worker *worker, const struct said *said, const struct aq_grad_cost *costs)
{
    struct aq_text text = {0};
    for (uint32_t c = 0; c < worker->replicas.choice.count; c++)
        aq_text_add(&text, "%s%s %.4g s (packing %.3g ns a value)", c ? ", " : "",
                    worker->replicas.choice.candidates[c].name, aq_grad_cost_seconds(&costs[c], &said->scene),
                    said->value_s[c] * 1e9);
    aq_log("worker", 1,
           "stage %u averages in %s (reduce.codec: auto): links carry %.4g Mbit/s, a message takes %.3g s, %s "
           "computes %.4g s, a reduction takes in %s",
           worker->position, worker->replicas.choice.name, said->scene.rate * 8e-6, said->scene.latency_s,
           aq_optimizer_config_local(&worker->job->train.optimizer) ? "a round" : "a step", said->scene.compute_s,
           aq_text_of(&text));
    aq_text_deinit(&text);
}

/* reduce.patience: a rank may be lost meanwhile. In the next attempt all take what one of them has chosen in this. */
enum aq_status aq_worker_choose(struct aq_worker *worker)
{
    struct aq_worker_choice *choice = &worker->replicas.choice;
    struct aq_grad_cost costs[AQ_GRAD_CANDIDATES_MAX];
    struct said said;
    uint32_t mine;
    if (!choice->due) return AQ_OK;
    AQ_TRY(join(worker, &said));
    AQ_TRY(aq_optimizer_chosen(worker->optimizer, &mine));
    for (uint32_t c = 0; c < choice->count; c++) {
        costs[c].bytes = aq_plan_coded_bytes(worker->plan, worker->position, &choice->candidates[c].config);
        costs[c].pack_s = said.value_s[c] * (double)worker->me->size.parameters;
    }
    uint32_t index = (uint32_t)said.index;
    if (index == AQ_CHOICE_NONE) {
        index = aq_grad_choose(costs, choice->count, &said.scene);
        AQ_TRY(aq_broadcast(worker->replicas.group, 0, &index, sizeof index)); /* no arithmetic need be alike */
        AQ_TRY(known(worker, 0, index));
    }
    if (mine == AQ_CHOICE_NONE) {
        AQ_TRY(aq_optimizer_choose(worker->optimizer, index));
        AQ_TRY(aq_worker_group_prepare(worker));
    } else if (index != mine) {
        return aq_fail(AQ_PROTO, "worker", "a replica averages in codec %u, this one in %u", index, mine);
    }
    choice->due = worker->job->reduce.patience_ns > 0; /* until all have the mean: worker_local.c */
    choice->name = choice->candidates[index].name;
    choice->chosen_pack_s = costs[index].pack_s;
    choice->measured = true;
    if (worker->replica == 0) say(worker, &said, costs);
    return AQ_OK;
}
