/*
 * advice_print.c -- a plan for people: the tables of `aqpipe plan`. The same for programs is advice_json.c.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "advice_private.h"
#include "plan_epsilon.h"
#include "security.h"
#include "table.h"

enum { GRID_COLUMNS = 108, GRID_HEAD = 18, CODEC_BYTES = 120, ABOUT_BYTES = 256 };

static void print_head(const struct aq_plan *plan, struct aq_text *text)
{
    static const char *const products[] = {[AQ_STAGE_FP32] = "fp32",
                                           [AQ_STAGE_BF16] = "bf16 products",
                                           [AQ_STAGE_TF32] = "tf32 products",
                                           [AQ_STAGE_FP16] = "fp16 products"};
    const struct aq_job *job = plan->job;
    const struct aq_model_config *model = &plan->model;
    char about[ABOUT_BYTES];
    aq_model_describe(model, about, sizeof about);
    aq_text_add(text, "job %s: %s, %s, %s; %llu parameters", job->name, model->kind, about,
                products[job->model.precision], (unsigned long long)(plan->parameters + plan->frozen));
    if (plan->frozen)
        aq_text_add(text, ", %llu trained, %llu frozen", (unsigned long long)plan->parameters,
                    (unsigned long long)plan->frozen);
    if (job->train.freeze) aq_text_add(text, " (train.freeze: %s)", job->train.freeze);
    if (job->train.lora.rank) {
        uint32_t least = job->train.lora.rank, most = least;
        if (job->train.lora.ranks) (void)aq_lora_ranks(&job->train.lora, model, job->train.T, &least, &most);
        aq_text_add(text, ", adapters of rank %u", least);
        if (most > least) aq_text_add(text, " to %u", most);
        aq_text_add(text, ", alpha %g%s", (double)job->train.lora.alpha, job->train.lora.rslora ? " / sqrt(rank)" : "");
    }
    if (job->train.lora.alphas) aq_text_add(text, ", other alphas for some");
    if (job->train.lora.saved) aq_text_add(text, ", whole modules (%s)", job->train.lora.saved);
    if (job->train.lora.rank && job->train.lora.dora) aq_text_add(text, ", lengths of rows (DoRA)");
    if (job->train.lora.rank && job->train.lora.dropout > 0.0f)
        aq_text_add(text, ", dropout %g", (double)job->train.lora.dropout);
    aq_text_add(text, "\n");
    char replicas[32] = "";
    if (plan->replicas > 1) snprintf(replicas, sizeof replicas, "%u replicas x ", plan->replicas);
    char tokens[32] = "";
    if (!aq_model_tokens(model->kind)) snprintf(tokens, sizeof tokens, " of %u tokens", job->train.T);
    aq_text_add(text, "data %llu samples%s, %llu held out; batch %u = %s%u micro-batches of %u\n",
                (unsigned long long)plan->facts.train_samples, tokens, (unsigned long long)plan->facts.heldout_samples,
                job->train.batch, replicas, plan->micro_batches, job->train.micro_batch);
    if (plan->samples_dropped)
        aq_text_add(text, "     the last %llu samples are left out, so that all replicas have the same number\n",
                    (unsigned long long)plan->samples_dropped);
    aq_text_add(text, "run  %llu steps: %llu an epoch (the last with %u samples), %u epochs\n",
                (unsigned long long)plan->steps, (unsigned long long)plan->steps_per_epoch,
                plan->samples_last * plan->replicas, job->train.epochs);
    aq_text_add(text, "plan %016llx  job digest %016llx\n\n", (unsigned long long)plan->hash,
                (unsigned long long)plan->job_digest);
}

static void print_stages(const struct aq_plan *plan, unsigned columns, struct aq_text *text)
{
    static const char *const heads[] = {"stage", "layers", "",      "parameters", "frozen",
                                        "slots", "memory", "cache", "where"};
    enum { COLUMNS = sizeof heads / sizeof *heads, FROZEN = 4, LEFT = 1 | 2 | 4 };
    const bool frozen = plan->frozen > 0; /* else the column is not there */
    struct aq_table table = {.columns = COLUMNS - !frozen, .left = LEFT | 1u << (COLUMNS - 1 - !frozen), .keys = 1};
    for (int c = 0; c < COLUMNS; c++)
        if (frozen || c != FROZEN) aq_table_cell(&table, "%s", c == FROZEN - 1 && frozen ? "trained" : heads[c]);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct aq_plan_stage *stage = &plan->stages[s];
        const struct aq_job_stage *place = &plan->job->pipeline.stages[s];
        aq_table_cell(&table, "%u", s);
        aq_table_cell(&table, "%u-%u", stage->layer_first, stage->layer_end - 1);
        if (stage->layer_end - stage->layer_first == 1)
            aq_table_cell(&table, "%s", stage->name_first);
        else
            aq_table_cell(&table, "%s .. %s", stage->name_first, stage->name_last);
        aq_table_cell(&table, "%llu", (unsigned long long)stage->size.parameters);
        if (frozen) aq_table_cell(&table, "%llu", (unsigned long long)stage->size.frozen);
        aq_table_cell(&table, "%u", stage->config.slots);
        aq_table_size(&table, (double)stage->memory_bytes);
        aq_table_size(&table, stage->cache_bytes ? (double)stage->cache_bytes : (double)NAN);
        aq_table_cell(&table, "%s %s", place->host ? place->host : "this machine", place->device);
    }
    aq_table_print(&table, columns, text);
    aq_table_deinit(&table);
    aq_text_add(text, "\n");
}

/* One line per consumer, a column per stage. Stages list the same consumers, some of them not all: by name. */
static void print_memory(const struct aq_plan *plan, unsigned columns, struct aq_text *text)
{
    const char *names[AQ_PLAN_LINES_MAX];
    uint32_t count = 0;
    struct aq_table table = {.columns = 1 + plan->stage_count, .left = 1, .keys = 1};
    for (uint32_t s = 0; s < plan->stage_count; s++)
        for (uint32_t i = 0; i < plan->stages[s].line_count; i++) {
            uint32_t k = 0;
            while (k < count && strcmp(names[k], plan->stages[s].lines[i].name) != 0)
                k++;
            if (k == count && count < AQ_PLAN_LINES_MAX) names[count++] = plan->stages[s].lines[i].name;
        }
    aq_table_cell(&table, "memory");
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_table_cell(&table, "stage %u", s);
    for (uint32_t k = 0; k < count; k++) {
        aq_table_cell(&table, "  %s", names[k]);
        for (uint32_t s = 0; s < plan->stage_count; s++) {
            const struct aq_plan_stage *stage = &plan->stages[s];
            uint64_t bytes = 0;
            for (uint32_t i = 0; i < stage->line_count; i++)
                if (strcmp(stage->lines[i].name, names[k]) == 0) bytes = stage->lines[i].bytes;
            aq_table_size(&table, bytes ? (double)bytes : (double)NAN);
        }
    }
    aq_table_cell(&table, "  sum");
    for (uint32_t s = 0; s < plan->stage_count; s++)
        aq_table_size(&table, (double)plan->stages[s].memory_bytes);
    aq_table_print(&table, columns, text);
    aq_table_deinit(&table);
    if (aq_plan_wants_gpu(plan))
        aq_text_add(text, "a GPU also holds a CUDA context, the code of libraries and kernels, and NCCL's buffers: its "
                          "worker measures them at the start, its log has them\n");
    aq_text_add(text, "\n");
}

static bool same_codec(const struct aq_codec_config *a, const struct aq_codec_config *b)
{
    return a->kind == b->kind && a->scale == b->scale && a->rounding == b->rounding &&
           aq_codec_config_digest(a) == aq_codec_config_digest(b);
}

static const char *edge_transport_text(enum aq_transport_kind transport)
{
    if (transport == AQ_TRANSPORT_LINKS) return "over links";
    if (transport == AQ_TRANSPORT_NCCL) return "over NCCL, from GPU to GPU, as coded; frames' heads over links";
    if (transport == AQ_TRANSPORT_IPC) return "by CUDA IPC, from GPU to GPU, as coded; frames' heads over links";
    return "by CUDA IPC where the two stages' GPUs are on one machine, over NCCL where that cannot be and each has its "
           "own, else over links";
}

/* The memory and disk of the split-server itself, in addition to its stages. */
static void print_sums(const struct aq_plan *plan, struct aq_text *text)
{
    char memory[AQ_TEXT_NUMBER], disk[AQ_TEXT_NUMBER];
    uint64_t values = 0;
    const uint64_t every = aq_job_every_steps(&plan->job->checkpoint.every, plan->steps_per_epoch);
    for (uint32_t s = 0; s < plan->stage_count; s++)
        values += plan->stages[s].size.parameters;
    aq_text_add(text, "sums of gradients: %s of memory of the split-server, and %s on its disk for each step until ",
                aq_text_size(values * (sizeof(float) + sizeof(double)), memory),
                aq_text_size(values * sizeof(float), disk));
    if (every > 0)
        aq_text_add(text, "all clients have a newer checkpoint (checkpoint.every: %llu steps)\n",
                    (unsigned long long)every);
    else
        aq_text_add(text, "the round's end (checkpoint.every)\n");
}

/* Turns at once, each with a middle stage of its own. */
static void print_turns(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job *job = plan->job;
    char each[AQ_TEXT_NUMBER];
    if (job->split.clients == 0 || plan->stage_count < 2) return;
    const uint32_t turns = aq_job_turns(job);
    aq_text_add(text, "turns at once: %u (%s), %s stage 1 on device %s of the split-server, %s%s\n", turns,
                aq_job_global(job) ? "split.mode: global" : "split.parallel", turns > 1 ? "each with a" : "with",
                job->pipeline.stages[1].device, aq_text_size(plan->stages[1].memory_bytes, each),
                turns > 1 ? " each" : "");
}

static void print_edges(const struct aq_plan *plan, struct aq_text *text)
{
    if (plan->stage_count == 1) return;
    aq_text_add(text, "%s\n",
                plan->job->link.entropy == AQ_LINK_ENTROPY_OFF
                    ? "bytes on the wire per step:"
                    : "bytes on the wire per step, at most (bodies may go packed):");
    aq_text_add(text, "%-5s  %11s  %11s  %11s  %12s\n", "link", "fwd first", "fwd", "bwd", "uncompressed");
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_plan_edge *edge = &plan->edges[e];
        char name[24], codec[CODEC_BYTES], back[CODEC_BYTES];
        snprintf(name, sizeof name, "%u-%u", e, e + 1);
        aq_codec_config_text(&edge->shape.forward, codec, sizeof codec);
        aq_codec_config_text(&edge->shape.backward, back, sizeof back);
        const struct aq_job_edge *mine = &plan->job->edges[e], *before = e ? mine - 1 : NULL;
        const bool same = before && edge->shape.still == edge[-1].shape.still &&
                          same_codec(&before->forward, &mine->forward) &&
                          same_codec(&before->backward, &mine->backward);
        aq_text_add(text, "%-5s  %11llu  %11llu  %11llu  %12llu%s", name, (unsigned long long)edge->step_forward_cold,
                    (unsigned long long)edge->step_forward_warm, (unsigned long long)edge->step_backward,
                    (unsigned long long)(plan->batch * edge->size.values_bytes), same ? "  as above\n" : "\n");
        if (!same) aq_text_add(text, "       forward  %s\n       backward %s\n", codec, back);
        if (edge->shape.still)
            aq_text_add(text,
                        "       frozen prefix: nothing trains before this cut, so a sample is computed and sent only "
                        "at its first visit, and no gradient goes back\n");
        if (plan->job->edges[e].rtt_ms > 0) {
            aq_text_add(text, "       round trip %g ms; ", (double)plan->job->edges[e].rtt_ms);
            if (plan->job->edges[e].loss > 0)
                aq_text_add(text, "%g %% of packets lost; ", 100 * (double)plan->job->edges[e].loss);
            aq_text_add(text, "each way %u receive slots and %u send buffers", edge->window.receive_slots,
                        edge->window.send_frames);
            if (edge->size.message_bytes)
                aq_text_add(text, "; messages of %u micro-batches read ahead (cache.window)", plan->ahead);
            aq_text_add(text, "\n");
        }
        if (aq_job_relayed(plan->job, e, e + 1))
            aq_text_add(text, "       both stages dial: they meet at the relay %s\n", plan->job->link.relay);
        if (!same || aq_plan_edge_transport(plan, e) != aq_plan_edge_transport(plan, e - 1))
            aq_text_add(text, "       %s\n", edge_transport_text(aq_plan_edge_transport(plan, e)));
    }
    if (plan->edges[0].shape.shared)
        aq_text_add(text,
                    "and %llu bytes each way, once a step and link: gradients of what is shared by stages (model.tied; "
                    "untied: a table per block, nothing of it travels)\n",
                    (unsigned long long)aq_wire_bytes(plan->edges[0].shape.shared * sizeof(float),
                                                      aq_plan_edge_loopback(plan->job, 0)));
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        if (plan->edges[e].shape.summed)
            aq_text_add(text,
                        "edge %u besides: %llu bytes each way, once a step: gradients of the client's end, and their "
                        "mean over clients (split.mode: global; not in the time below)\n",
                        e,
                        (unsigned long long)aq_wire_bytes(plan->edges[e].shape.summed * sizeof(float),
                                                          aq_plan_edge_loopback(plan->job, e)));
    print_turns(plan, text);
    if (aq_job_global(plan->job)) print_sums(plan, text);
    if (plan->job->warmup_epochs)
        aq_text_add(text, "%u epochs at the beginning go uncompressed: backward %llu bytes per step\n",
                    plan->job->warmup_epochs, (unsigned long long)plan->edges[0].step_backward_first);
    aq_text_add(text, "\n");
}

/* What split.privacy comes to for one sample of a client, and what it does not cover. */
static void print_epsilon(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job_split *split = &plan->job->split;
    struct aq_plan_epsilon_job job;
    if (!(split->privacy.clip > 0) && !(split->privacy.gradient_clip > 0)) return;
    if (!aq_plan_epsilon_counts(plan)) {
        aq_text_add(text, "epsilon: none, because not all that leaves a client at its cuts has noise (%s)\n\n",
                    split->privacy.noise > 0 ? "split.privacy.gradient_noise" : "split.privacy.noise");
        return;
    }
    aq_plan_epsilon_job(plan, &job);
    aq_text_add(text,
                "epsilon of a client that takes part in all %u rounds, delta %g: %.4g of a training sample (%llu "
                "visits",
                split->rounds, (double)split->privacy.delta, job.training, (unsigned long long)job.visits);
    const bool shared = aq_plan_epsilon_shared(plan) > 0 && job.passes > 0;
    if (shared)
        aq_text_add(text, ", and %llu passes: data.heldout is of the same file", (unsigned long long)job.passes);
    aq_text_add(text, ")");
    if (job.passes > 0 && !shared)
        aq_text_add(text, ", %.4g of a held-out one (%llu passes)", job.heldout, (unsigned long long)job.passes);
    aq_text_add(text, "\n");
    if (job.stops > 0)
        aq_text_add(text, "       round %u would pass split.privacy.epsilon_max: %g: a client stops after round %u\n",
                    job.stops, (double)split->privacy.epsilon_max, job.stops - 1);
    aq_text_add(text, "       not in it: %s%slosses, norms and counts%s (docs/PRIVACY.md)\n\n",
                job.ends_leave ? "weights or statistics of the client's stages, which leave it without noise; " : "",
                split->labels == AQ_SPLIT_LABELS_SERVER ? "labels, " : "",
                job.ends_leave ? "" : ". No weights of the client's stages change");
}

static const char *reduce_transport_text(enum aq_transport_kind transport)
{
    if (transport == AQ_TRANSPORT_LINKS) return "over links";
    if (transport == AQ_TRANSPORT_NCCL) return "over NCCL, from GPU to GPU";
    return "over NCCL if each replica of a stage has its own GPU on one machine, else over links";
}

/* Local steps: how often replicas meet, and what that saves against the mean of gradients in every step. */
static void print_round(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    struct aq_grad_codec_config fp32;
    uint64_t round = 0, each = 0;
    char a[AQ_TEXT_NUMBER], b[AQ_TEXT_NUMBER];
    aq_grad_codec_config_default(&fp32, "fp32");
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        round += aq_plan_reduce_bytes(plan, s);
        each += aq_plan_coded_bytes(plan, s, &fp32);
    }
    aq_text_add(
        text,
        "reduce.every %u: a round is %u steps%s, then an outer step of rate %g, momentum %g: a replica sends %s "
        "per step",
        config->outer_every, config->outer_every,
        plan->job->reduce.steps == AQ_STEPS_SPEED ? " of the fastest replica" : "", (double)config->outer_lr,
        (double)config->outer_momentum, aq_text_size(round / config->outer_every, a));
    aq_text_add(text, ", %.0f times less than fp32 gradients in every step (%s)",
                round > 0 ? (double)each * config->outer_every / (double)round : 0, aq_text_size(each, b));
    if (config->outer_delay > 0)
        aq_text_add(text, ", during the first %u steps of the next round (reduce.delay %u)", config->outer_delay,
                    config->outer_delay);
    aq_text_add(text, "\n");
}

/* reduce.patience over several machines: the files that a replica needs to return, and how long they take. */
static void print_return(const struct aq_plan *plan, struct aq_text *text)
{
    const struct aq_job *job = plan->job;
    const double mbps = job->link.rate_mbps;
    bool apart = false;
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) /* the first member's rank writes for the same stage of others */
        apart |= aq_job_apart(job, r % job->pipeline.stage_count, r);
    if (job->reduce.patience_ns == 0 || !apart) return;
    aq_text_add(text, "reduce.patience: to return, each stage of a lost replica gets a file from another replica:");
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const uint64_t bytes = aq_plan_file_bytes_max(plan, s);
        char size[AQ_TEXT_NUMBER];
        aq_text_add(text, "%s stage %u %s", s ? "," : "", s, aq_text_size(bytes, size));
        if (mbps > 0) aq_text_add(text, " (%.0f s)", (double)bytes * 8e-6 / mbps);
    }
    aq_text_add(text, "%s. It is not sent where checkpoint.path is one folder that the hosts share\n",
                mbps > 0 ? " at link.rate_mbps" : "; set link.rate_mbps to see how long that takes");
}

/* The optimizer's first steps, in which replicas send more (mostly fp32 gradients), and whether there are others. */
static void print_warmup(const struct aq_plan *plan, struct aq_text *text)
{
    const uint64_t warm = aq_plan_warmup_steps(plan);
    char a[AQ_TEXT_NUMBER];
    if (warm == 0) return;
    if (plan->stages[0].traffic.falling > 0) {
        aq_text_add(text, "density: what is sent falls over the first %llu of %llu steps: %s per step in the mean\n",
                    (unsigned long long)warm, (unsigned long long)plan->steps,
                    aq_text_size(aq_plan_warmup_most(plan), a));
        return;
    }
    if (warm < plan->steps)
        aq_text_add(text, "warm-up: %s %llu of %llu steps send fp32 gradients, up to %s per step\n",
                    plan->stages[0].traffic.warmup_least ? "at least the first" : "the first", (unsigned long long)warm,
                    (unsigned long long)plan->steps, aq_text_size(aq_plan_warmup_most(plan), a));
    if (warm < plan->steps) return;
    aq_text_add(text, "warning: ");
    (void)aq_plan_never_compresses(plan, text);
    aq_text_add(text, "\n");
}

/* The traffic between the replicas of a stage. */
static void print_groups(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_text *text)
{
    const struct aq_optimizer_config *config = &plan->job->train.optimizer;
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t count = aq_grad_candidates(config, candidates), every = aq_plan_reduce_every(plan);
    if (plan->replicas == 1) return;
    aq_text_add(text, "%-5s  %12s  bytes that each replica sends the others per %s%s\n", "stage",
                every > 1 ? "movements" : "gradients", every > 1 ? "round" : "step",
                plan->job->link.entropy == AQ_LINK_ENTROPY_OFF ? "" : ", at most");
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        aq_text_add(text, "%-5u  ", s);
        if (!config->reduce_automatic) aq_text_add(text, "%12llu\n", (unsigned long long)aq_plan_reduce_bytes(plan, s));
        for (uint32_t c = 0; config->reduce_automatic && c < count; c++)
            aq_text_add(text, "%12llu in %s%s%s",
                        (unsigned long long)aq_plan_coded_bytes(plan, s, &candidates[c].config), candidates[c].name,
                        costs && costs->choice[s] == c ? " (expected)" : "", c + 1 < count ? "" : "\n");
    }
    print_warmup(plan, text);
    if (every > 1) print_round(plan, text);
    print_return(plan, text);
    aq_text_add(text, "%s\n", reduce_transport_text(aq_plan_reduce_transport(plan)));
    if (config->reduce_automatic)
        aq_text_add(text, "reduce.codec: auto: each stage chooses when it first averages, by what it measures then%s\n",
                    costs && costs->choice[0] == AQ_CHOICE_NONE ? "; expected where link.rate_mbps is given" : "");
    aq_text_add(text, "\n");
}

static enum aq_status print_grid(const struct aq_plan *plan, unsigned columns, struct aq_text *text)
{
    struct aq_program programs[AQ_JOB_STAGES_MAX];
    const unsigned grid_columns = columns >= GRID_COLUMNS + GRID_HEAD || columns == 0 ? GRID_COLUMNS
                                  : columns > 2 * GRID_HEAD                           ? columns - GRID_HEAD
                                                                                      : GRID_HEAD;
    for (uint32_t s = 0; s < plan->stage_count; s++)
        programs[s] = plan->stages[s].program;
    aq_text_add(text, "schedule %s, a column is the time of one forward or %s:\n", aq_schedule_name(plan->schedule),
                programs[0].split ? "half of a backward (B of the input, W of the weights)" : "backward");
    AQ_TRY(aq_program_grid(programs, plan->stage_count, grid_columns, text));
    aq_text_add(text, "\n");
    return AQ_OK;
}

static bool any_packed(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        if (costs->forward_share[e] < 1 || costs->backward_share[e] < 1) return true;
    return false;
}

static void print_reduction(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_text *text)
{
    char a[AQ_TEXT_NUMBER], b[AQ_TEXT_NUMBER];
    uint32_t worst = 0;
    if (plan->replicas == 1) return;
    for (uint32_t s = 1; s < plan->stage_count; s++)
        if (costs->reduce_s[s] + costs->pack_s[s] > costs->reduce_s[worst] + costs->pack_s[worst]) worst = s;
    const uint32_t c = costs->choice[worst] == AQ_CHOICE_NONE ? 0 : costs->choice[worst];
    aq_text_add(text, "replicas of stage %u: %s on their links", worst, aq_text_seconds(costs->reduce_s[worst], a));
    if (costs->value_share[c] < 1) aq_text_add(text, " (packed to %.2f)", costs->value_share[c]);
    aq_text_add(text, " beside %s of computing%s\n", aq_text_seconds(costs->pack_s[worst], b),
                aq_plan_reduce_delay(plan) > 0 ? ", during the next round's first steps"
                : costs->reduce_in_step        ? ", along with the update"
                                               : ", before the update");
}

static void print_stage_times(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                              const struct aq_plan_prediction *prediction, unsigned columns, struct aq_text *text)
{
    enum { WEIGHTS = 4, PACKED = 9, COLUMNS = 11 };
    static const char *const heads[COLUMNS] = {"stage", "threads",  "forward",  "backward",   "weights",   "a step",
                                               "idle",  "link fwd", "link bwd", "packed fwd", "packed bwd"};
    const bool split = plan->stages[0].program.split, packed = any_packed(plan, costs);
    struct aq_table table = {.columns = COLUMNS - !split - (packed ? 0 : 2), .left = 1, .keys = 1};
    for (int c = 0; c < COLUMNS; c++)
        if ((split || c != WEIGHTS) && (packed || c < PACKED)) aq_table_cell(&table, "%s", heads[c]);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const double seconds[] = {costs->forward_s[s],      costs->backward_s[s],     costs->weights_s[s],
                                  prediction->compute_s[s], prediction->forward_s[s], prediction->backward_s[s]};
        const double shares[] = {costs->forward_share[s], costs->backward_share[s]};
        const bool last = s + 1 == plan->stage_count;
        char number[AQ_TEXT_NUMBER];
        aq_table_cell(&table, "%u", s);
        aq_table_cell(&table, "%u", costs->threads[s]);
        for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
            if (split || i + 2 != WEIGHTS)
                aq_table_cell(&table, "%s", last && i > 3 ? "-" : aq_text_seconds(seconds[i], number));
            if (i == 3) aq_table_cell(&table, "%.0f %%", 100 * aq_plan_idle(prediction, s));
        }
        for (uint32_t i = 0; packed && i < 2; i++)
            aq_table_figure(&table, !last && shares[i] < 1 ? shares[i] : (double)NAN, 2, "");
    }
    aq_table_print(&table, columns, text);
    aq_table_deinit(&table);
}

/* "round trips take 52 % of a step; train.batch 64: 21 %" */
static void print_distance(const struct aq_plan_distance *distance, struct aq_text *text)
{
    aq_text_add(text, "round trips take %.0f %% of a step", 100 * distance->share);
    for (uint32_t i = 0; i < distance->help_count; i++)
        aq_text_add(text, "; %s: %.0f %%", distance->helps[i].change, 100 * distance->helps[i].share);
    aq_text_add(text, "\n");
    if (distance->loss_share > 0)
        aq_text_add(text, "lost packets take %.0f %% of a step\n", 100 * distance->loss_share);
}

static enum aq_status print_schedules(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                      struct aq_text *text)
{
    struct aq_plan_schedules by;
    char number[AQ_TEXT_NUMBER];
    AQ_TRY(aq_plan_schedules(plan, costs, &by));
    aq_text_add(text, "a step by schedule:");
    for (uint32_t i = 0; i < by.count; i++)
        aq_text_add(text, "%s %s %s", i ? ";" : "", by.of[i].name, aq_text_seconds(by.of[i].step_s, number));
    aq_text_add(text, "\n");
    return AQ_OK;
}

/* The cost of the cut; names the best one if it differs. */
static enum aq_status print_cut(const struct aq_plan *plan, const struct aq_plan_costs *costs, struct aq_text *text)
{
    const struct aq_job_pipeline *pipeline = &plan->job->pipeline;
    struct aq_plan_judged judged;
    char a[AQ_TEXT_NUMBER], b[AQ_TEXT_NUMBER];
    AQ_TRY(aq_plan_judge(plan, costs, &judged));
    aq_text_add(text, "cut, by %s: ", costs->layers->origin);
    aq_plan_layers_text(plan, costs->layers, text);
    aq_text_add(text, " a micro-batch\n     slowest stage or link %s of a step",
                aq_text_seconds(judged.here.slowest_s, a));
    if (judged.best) {
        aq_text_add(text, "; no other cut is faster\n");
        return AQ_OK;
    }
    aq_text_add(text, "; cut at ");
    aq_plan_cut_text(plan, &judged.cut, text);
    aq_text_add(text, " %s", aq_text_seconds(judged.then.slowest_s, b));
    aq_text_add(text, ", a step %s, not %s", aq_text_seconds(judged.step_then_s, a),
                aq_text_seconds(judged.step_here_s, b));
    if (!pipeline->automatic) aq_text_add(text, ": leave the stages' layers out");
    aq_text_add(text, "%s\n",
                !costs->layers->device[0]          ? ""
                : pipeline->cut == AQ_CUT_MEASURED ? ""
                : pipeline->automatic              ? ": pipeline.cut: measured"
                                                   : ", and write pipeline.cut: measured");
    return AQ_OK;
}

static enum aq_status print_time(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                 const struct aq_plan_prediction *prediction, unsigned columns, struct aq_text *text)
{
    char a[AQ_TEXT_NUMBER], b[AQ_TEXT_NUMBER], c[AQ_TEXT_NUMBER];
    aq_text_add(text, "time, %s; %u cores a host", costs->origin, costs->cores);
    if (costs->rate_mbps > 0)
        aq_text_add(text, ", links %g Mbit/s each way%s\n", costs->rate_mbps,
                    costs->packed ? "" : ", bodies before packing (--measure packs a sample)");
    else
        aq_text_add(text, ", links as fast as they go (taken as 0 s)\n");
    print_stage_times(plan, costs, prediction, columns, text);
    print_reduction(plan, costs, text);
    aq_text_add(text, "predicted step %s = %.3g sequences/s; bound %s by %s (%.0f %%); %s an epoch\n",
                aq_text_seconds(prediction->step_s, a), plan->job->train.batch / prediction->step_s,
                aq_text_seconds(prediction->bound_s, b), prediction->binds,
                100 * prediction->bound_s / prediction->step_s,
                aq_text_seconds(prediction->step_s * (double)plan->steps_per_epoch, c));
    if (plan->stage_count > 1 && costs->layers) AQ_TRY(print_cut(plan, costs, text));
    if (plan->stage_count > 1) AQ_TRY(print_schedules(plan, costs, text));
    if (!aq_plan_far(plan)) return AQ_OK;
    struct aq_plan_distance distance;
    AQ_TRY(aq_plan_distance(plan, costs, &distance));
    print_distance(&distance, text);
    return AQ_OK;
}

/* The bytes of messages in fewer bits, without their scales. */
static void print_smaller(const struct aq_plan *plan, uint64_t cache_bytes, struct aq_text *text)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } stores[] = {
        [AQ_PRECISION_FP32] = {"fp32", 32}, [AQ_PRECISION_FP16] = {"fp16", 16}, [AQ_PRECISION_BF16] = {"bf16", 16},
        [AQ_PRECISION_Q8] = {"q8", 8},      [AQ_PRECISION_Q4] = {"q4", 4},      [AQ_PRECISION_Q2] = {"q2", 2}};
    uint32_t most = 0; /* bits of a value, of the edge that stores in most */
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++) {
        const struct aq_codec_config *forward = &plan->edges[e].shape.forward;
        if (plan->edges[e].size.message_bytes > 0 && stores[forward->store].bits > most)
            most = stores[forward->store].bits;
    }
    aq_text_add(text, "     to have less: ");
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++) {
        char number[AQ_TEXT_NUMBER];
        if (stores[i].bits == 0 || stores[i].bits >= most || stores[i].bits > 8) continue;
        aq_text_add(text, "edges.forward.store: %s (about %s), ", stores[i].name,
                    aq_text_size(cache_bytes * stores[i].bits / most, number));
    }
    aq_text_add(text, "fewer samples (data.train_samples_max) or fewer cuts\n");
}

/* checkpoint.every as a time: no step is known before the run. */
static void print_checkpoints(const struct aq_plan *plan, const struct aq_plan_totals *totals, struct aq_text *text)
{
    char every[AQ_TEXT_NUMBER];
    const double seconds = (double)plan->job->checkpoint.every.ns * 1e-9;
    if (seconds == 0) return;
    aq_text_add(text, "checkpoint  %s after the one before, at a step that stage 0 chooses",
                aq_text_hours(seconds, every));
    if (totals->seconds > 0)
        aq_text_add(text, "; about %.0f in this run and one at its end", floor(totals->seconds / seconds));
    aq_text_add(text, "\n");
}

/* A cache much larger than what is trained on is worth a word before it fills a disk. */
static void print_totals(const struct aq_plan *plan, const struct aq_plan_totals *totals, struct aq_text *text)
{
    char a[AQ_TEXT_NUMBER], b[AQ_TEXT_NUMBER];
    if (totals->seconds > 0)
        aq_text_add(text, "all  %s, %s of computing on %u stages; ", aq_text_hours(totals->seconds, a),
                    aq_text_hours(totals->compute_seconds, b), plan->ranks);
    else
        aq_text_add(text, "all  ");
    aq_text_add(text, "a machine sends %s and has %s on disk%s\n", aq_text_size(totals->sent_bytes, a),
                aq_text_size(totals->disk_bytes, b), totals->machines > 1 ? " at most" : "");
    print_checkpoints(plan, totals, text);
    if (totals->cache_bytes == 0) return;
    aq_text_add(text, "disk %s of caches for %s of data: %s\n", aq_text_size(totals->cache_bytes, a),
                aq_text_size(totals->data_bytes, b),
                "each sample's message at both ends of each link, and again until the next checkpoint");
    if (totals->cache_bytes >> 30 > 0) print_smaller(plan, totals->cache_bytes, text);
}

static enum aq_status print_all(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                const struct aq_plan_prediction *prediction, unsigned columns, struct aq_text *text)
{
    struct aq_plan_totals totals;
    AQ_TRY(aq_plan_totals(plan, costs, prediction, &totals));
    print_head(plan, text);
    print_stages(plan, columns, text);
    print_memory(plan, columns, text);
    print_edges(plan, text);
    print_epsilon(plan, text);
    AQ_TRY(aq_plan_tied_print(plan, text));
    print_groups(plan, costs, text);
    AQ_TRY(print_grid(plan, columns, text));
    if (costs && prediction)
        AQ_TRY(print_time(plan, costs, prediction, columns, text));
    else if (aq_plan_wants_gpu(plan))
        aq_text_add(text,
                    "time: a GPU's cannot be foretold without one. `aqpipe plan --measure` times its stages where it "
                    "is; --compute-forward-ms and --compute-backward-ms name what they take\n");
    print_totals(plan, &totals, text);
    return text->status;
}

enum aq_status aq_plan_print(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                             const struct aq_plan_prediction *prediction, unsigned columns, struct aq_text *text)
{
    struct aq_text wide = {0};
    enum aq_status status = print_all(plan, costs, prediction, columns, &wide);
    aq_text_fold(text, aq_text_of(&wide), columns);
    aq_text_deinit(&wide);
    return status == AQ_OK ? text->status : status;
}
