/*
 * advice_json.c -- a plan as one JSON object: `aqpipe plan --json`. Numbers are in bytes and seconds.
 */
#include "advice_private.h"
#include "control.h"
#include "json_text.h"
#include "keys.h"
#include "plan_epsilon.h"

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

/* A stage's expected choice, and its bytes; null: unknown, or (no key) there is no choice. */
static void add_choice(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s, json_t *stage)
{
    struct aq_grad_candidate candidates[AQ_GRAD_CANDIDATES_MAX];
    const uint32_t choice = costs ? costs->choice[s] : AQ_CHOICE_NONE, every = aq_plan_reduce_every(plan);
    (void)aq_grad_candidates(&plan->job->train.optimizer, candidates);
    if (!plan->job->train.optimizer.reduce_automatic || plan->replicas == 1) {
        json_object_set_new(stage, "step_bytes_gradient", whole(aq_plan_reduce_bytes(plan, s) / every));
    } else if (choice == AQ_CHOICE_NONE) {
        json_object_set_new(stage, "step_bytes_gradient", json_null());
        json_object_set_new(stage, "reduce_codec", json_null());
    } else {
        json_object_set_new(stage, "step_bytes_gradient",
                            whole(aq_plan_coded_bytes(plan, s, &candidates[choice].config) / every));
        json_object_set_new(stage, "reduce_codec", json_string(candidates[choice].name));
    }
}

static json_t *stage_json(const struct aq_plan *plan, const struct aq_plan_costs *costs, uint32_t s)
{
    const struct aq_plan_stage *stage = &plan->stages[s];
    json_t *memory = json_object();
    for (uint32_t i = 0; i < stage->line_count; i++)
        json_object_set_new(memory, stage->lines[i].name, whole(stage->lines[i].bytes));
    json_t *out =
        json_pack("{s:i, s:i, s:i, s:o, s:i, s:o, s:o, s:o}", "stage", (int)s, "layer_first", (int)stage->layer_first,
                  "layer_last", (int)stage->layer_end - 1, "parameters",
                  whole(stage->size.parameters + stage->size.frozen), "slots", (int)stage->config.slots, "memory",
                  memory, "memory_bytes", whole(stage->memory_bytes), "cache_bytes", whole(stage->cache_bytes));
    add_choice(plan, costs, s, out);
    json_object_set_new(out, "parameters_frozen", whole(stage->size.frozen));
    json_object_set_new(out, "flops_forward", whole((uint64_t)stage->size.flops_forward));
    json_object_set_new(out, "flops_backward", whole((uint64_t)stage->size.flops_backward));
    if (stage->program.split) json_object_set_new(out, "flops_weights", whole((uint64_t)stage->size.flops_weights));
    return out;
}

static const char *transport_name(enum aq_transport_kind transport)
{
    static const char *const names[] = {[AQ_TRANSPORT_AUTO] = "auto",
                                        [AQ_TRANSPORT_LINKS] = "links",
                                        [AQ_TRANSPORT_NCCL] = "nccl",
                                        [AQ_TRANSPORT_IPC] = "ipc"};
    return names[transport];
}

static json_t *edge_json(const struct aq_plan *plan, uint32_t e)
{
    const struct aq_plan_edge *edge = &plan->edges[e];
    json_t *line =
        json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:i, s:i, s:o, s:b}", "edge", (int)e,
                  "step_bytes_forward_first", whole(edge->step_forward_cold), "step_bytes_forward",
                  whole(edge->step_forward_warm), "step_bytes_backward_first", whole(edge->step_backward_first),
                  "step_bytes_backward", whole(edge->step_backward), "message_bytes", whole(edge->size.message_bytes),
                  "transport", transport_name(aq_plan_edge_transport(plan, e)), "rtt_ms",
                  aq_control_number((double)plan->job->edges[e].rtt_ms), "loss",
                  aq_control_number((double)plan->job->edges[e].loss), "send_frames", (int)edge->window.send_frames,
                  "receive_slots", (int)edge->window.receive_slots, "step_bytes_shared",
                  whole(edge->shape.shared * sizeof(float)), "frozen_prefix", (int)edge->shape.still);
    if (edge->shape.summed) json_object_set_new(line, "step_bytes_summed", whole(edge->shape.summed * sizeof(float)));
    if (aq_job_relayed(plan->job, e, e + 1)) json_object_set_new(line, "relayed", json_true());
    return line;
}

static void add_numbers(json_t *time, const char *name, const double *values, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(array, aq_control_number(values[i]));
    json_object_set_new(time, name, array);
}

/* Null: the plan has no distance. */
static json_t *distance_json(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    struct aq_plan_distance distance;
    if (!aq_plan_far(plan) || aq_plan_distance(plan, costs, &distance) != AQ_OK) return json_null();
    json_t *helps = json_array();
    for (uint32_t i = 0; i < distance.help_count; i++)
        json_array_append_new(helps, json_pack("{s:s, s:o, s:o}", "change", distance.helps[i].change, "share",
                                               aq_control_number(distance.helps[i].share), "step_s",
                                               aq_control_number(distance.helps[i].step_s)));
    return json_pack("{s:o, s:o, s:o}", "share", aq_control_number(distance.share), "loss_share",
                     aq_control_number(distance.loss_share), "helps", helps);
}

static json_t *schedules_json(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    struct aq_plan_schedules by;
    json_t *out = json_object();
    if (aq_plan_schedules(plan, costs, &by) != AQ_OK) return out;
    for (uint32_t i = 0; i < by.count; i++)
        json_object_set_new(out, by.of[i].name, aq_control_number(by.of[i].step_s));
    return out;
}

static json_t *cut_json(const struct aq_plan *plan, const struct aq_plan_costs *costs)
{
    const struct aq_plan_layers *layers = costs->layers;
    struct aq_plan_judged judged;
    if (!layers || plan->stage_count < 2 || aq_plan_judge(plan, costs, &judged) != AQ_OK) return json_null();
    json_t *ends = json_array(), *of = json_array();
    for (uint32_t s = 0; s < plan->stage_count; s++)
        json_array_append_new(ends, json_integer(judged.cut.end[s]));
    for (uint32_t l = 0; l < layers->layers; l++)
        json_array_append_new(of, aq_control_number(layers->of[l].forward_s + layers->of[l].backward_s));
    return json_pack("{s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o}", "origin", layers->origin, "layer_s", of, "best",
                     (int)judged.best, "slowest_s", aq_control_number(judged.here.slowest_s), "step_s",
                     aq_control_number(judged.step_here_s), "best_ends", ends, "best_slowest_s",
                     aq_control_number(judged.then.slowest_s), "best_step_s", aq_control_number(judged.step_then_s));
}

static json_t *time_json(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                         const struct aq_plan_prediction *prediction)
{
    const uint32_t P = plan->stage_count;
    json_t *time =
        json_pack("{s:s, s:i, s:o, s:o, s:o, s:s}", "origin", costs->origin, "cores", (int)costs->cores, "rate_mbps",
                  aq_control_number(costs->rate_mbps), "step_s", aq_control_number(prediction->step_s), "bound_s",
                  aq_control_number(prediction->bound_s), "binds", prediction->binds);
    add_numbers(time, "forward_s", costs->forward_s, P);
    add_numbers(time, "backward_s", costs->backward_s, P);
    if (plan->stages[0].program.split) add_numbers(time, "weights_s", costs->weights_s, P);
    add_numbers(time, "stage_s", prediction->compute_s, P);
    double idle[AQ_JOB_STAGES_MAX];
    for (uint32_t s = 0; s < P; s++)
        idle[s] = aq_plan_idle(prediction, s);
    add_numbers(time, "idle", idle, P);
    json_object_set_new(time, "cut", cut_json(plan, costs));
    add_numbers(time, "link_forward_s", prediction->forward_s, P - 1);
    add_numbers(time, "link_backward_s", prediction->backward_s, P - 1);
    json_object_set_new(time, "round_trips", distance_json(plan, costs));
    json_object_set_new(time, "step_s_by_schedule", schedules_json(plan, costs));
    json_object_set_new(time, "packed", json_boolean(costs->packed));
    add_numbers(time, "packed_forward", costs->forward_share, P - 1);
    add_numbers(time, "packed_backward", costs->backward_share, P - 1);
    if (plan->replicas > 1) {
        const uint32_t c = costs->choice[0] == AQ_CHOICE_NONE ? 0 : costs->choice[0];
        add_numbers(time, "reduce_links_s", costs->reduce_s, P);
        add_numbers(time, "reduce_compute_s", costs->pack_s, P);
        add_numbers(time, "packed_gradient", &costs->value_share[c], 1);
    }
    return time;
}

/* Null: no head is tied to a table behind a cut, whatever the value of model.tied. */
static json_t *tied_json(const struct aq_plan *plan)
{
    static const char *const names[] = {
        [AQ_TIED_NO] = "untied", [AQ_TIED_EXACT] = "exact", [AQ_TIED_COMPRESSED] = "compressed"};
    json_t *bytes = json_object();
    for (size_t how = 0; how < sizeof names / sizeof *names; how++) {
        struct aq_plan_tied traffic;
        if (!aq_plan_could_tie(plan) || aq_plan_tied_traffic(plan, (enum aq_tied)how, &traffic) != AQ_OK) {
            json_decref(bytes);
            return json_null();
        }
        json_object_set_new(bytes, names[how],
                            json_pack("{s:o, s:o}", "up", whole(traffic.up_words * sizeof(float)), "down",
                                      whole(traffic.down_words * sizeof(float))));
    }
    return json_pack("{s:s, s:o}", "choice", names[plan->model.tied], "step_bytes", bytes);
}

static json_t *totals_json(const struct aq_plan_totals *totals, bool timed)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "machines", (int)totals->machines, "sent_bytes",
                     whole(totals->sent_bytes), "gradient_bytes", whole(totals->gradient_bytes), "disk_bytes",
                     whole(totals->disk_bytes), "cache_bytes", whole(totals->cache_bytes), "data_bytes",
                     whole(totals->data_bytes), "seconds", timed ? aq_control_number(totals->seconds) : json_null(),
                     "compute_seconds", timed ? aq_control_number(totals->compute_seconds) : json_null());
}

/* The optimizer's fp32 steps; null: it has none here. compresses: does the run have others? */
static json_t *warmup_json(const struct aq_plan *plan, const struct aq_plan_totals *totals, bool timed)
{
    const uint64_t warm = aq_plan_warmup_steps(plan);
    json_t *bytes = json_array();
    if (warm == 0) {
        json_decref(bytes);
        return json_null();
    }
    for (uint32_t s = 0; s < plan->stage_count; s++)
        json_array_append_new(bytes, whole(aq_plan_warmup_bytes(plan, s)));
    return json_pack("{s:o, s:b, s:b, s:o, s:o}", "steps", whole(warm), "at_least",
                     (int)plan->stages[0].traffic.warmup_least, "compresses",
                     (int)(warm < plan->steps || plan->stages[0].traffic.falling > 0), "step_bytes_gradient", bytes,
                     "step_s", timed ? aq_control_number(totals->warmup_step_s) : json_null());
}

/* Null: there is no epsilon. */
static json_t *epsilon_json(const struct aq_plan *plan)
{
    const struct aq_job_privacy *privacy = &plan->job->split.privacy;
    struct aq_plan_epsilon_job job;
    if (!aq_plan_epsilon_counts(plan)) return json_null();
    aq_plan_epsilon_job(plan, &job);
    return json_pack(
        "{s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:b}", "training", job.training, "heldout", job.heldout, "delta",
        aq_control_number((double)privacy->delta), "visits", whole(job.visits), "passes", whole(job.passes),
        "epsilon_max", privacy->epsilon_max > 0 ? aq_control_number((double)privacy->epsilon_max) : json_null(),
        "stops_before_round", job.stops ? whole(job.stops) : json_null(), "weights_leave", (int)job.ends_leave);
}

enum aq_status aq_plan_print_json(const struct aq_plan *plan, const struct aq_plan_costs *costs,
                                  const struct aq_plan_prediction *prediction, struct aq_text *text)
{
    const bool timed = costs && prediction;
    struct aq_plan_totals totals;
    AQ_TRY(aq_plan_totals(plan, costs, prediction, &totals));
    json_t *stages = json_array(), *edges = json_array();
    for (uint32_t s = 0; s < plan->stage_count; s++)
        json_array_append_new(stages, stage_json(plan, costs, s));
    for (uint32_t e = 0; e + 1 < plan->stage_count; e++)
        json_array_append_new(edges, edge_json(plan, e));
    json_t *out = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:s, s:i, s:s, s:o, s:o, s:o, s:o}", "job", plan->job->name,
        "plan_hash", aq_control_hex(plan->hash), "job_digest", aq_control_hex(plan->job_digest), "parameters",
        whole(plan->parameters + plan->frozen), "train_samples", whole(plan->facts.train_samples), "samples_dropped",
        whole(plan->samples_dropped), "heldout_samples", whole(plan->facts.heldout_samples), "steps_per_epoch",
        whole(plan->steps_per_epoch), "steps", whole(plan->steps), "replicas", (int)plan->replicas, "reduce_transport",
        transport_name(aq_plan_reduce_transport(plan)), "micro_batches", (int)plan->micro_batches, "schedule",
        aq_schedule_name(plan->schedule), "stages", stages, "edges", edges, "totals", totals_json(&totals, timed),
        "time", timed ? time_json(plan, costs, prediction) : json_null());
    json_object_set_new(out, "parameters_frozen", whole(plan->frozen));
    json_object_set_new(out, "tied", tied_json(plan));
    json_object_set_new(out, "epsilon", epsilon_json(plan));
    if (plan->job->split.clients > 0) json_object_set_new(out, "turns_at_once", json_integer(aq_job_turns(plan->job)));
    json_object_set_new(out, "cache_window", json_integer((json_int_t)plan->ahead));
    json_object_set_new(out, "warmup", warmup_json(plan, &totals, timed));
    json_object_set_new(out, "reduce_every", whole(aq_plan_reduce_every(plan)));
    json_object_set_new(out, "reduce_delay", whole(aq_plan_reduce_delay(plan)));
    json_object_set_new(out, "checkpoint_steps",
                        whole(aq_job_every_steps(&plan->job->checkpoint.every, plan->steps_per_epoch)));
    json_object_set_new(out, "checkpoint_seconds", aq_control_number((double)plan->job->checkpoint.every.ns * 1e-9));
    const enum aq_status status = aq_json_text(out, JSON_REAL_PRECISION(9), text);
    json_decref(out);
    aq_text_bytes(text, "\n", 1);
    return status == AQ_OK ? text->status : status;
}
