/*
 * worker_answer.c -- a worker that trains nothing: its stage of a run's model, one step of a text after another
 * (docs/CONTROL.md section 10).
 *
 * The run's plan gives the layers, the links and the forward codecs; sizes follow from the text. The first stage gets
 * the tokens, and so does the last one, which draws the next: stages between see neither texts nor logits. Every
 * message of the launcher is checked before it is used.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "asked.h"
#include "lengths.h"
#include "stages/model_folder.h"
#include "stages/sampling.h"
#include "worker.h"

enum { IDLE_S = 3600, END_S = 60, TOKENS_MAX = 1 << 20, THREADS_MAX = 1024, IDENTITY_BYTES = 512 };

struct answer {
    struct aq_worker *w;
    const char *path, *adapter; /* borrowed from the start message; adapter NULL: none                         */
    uint32_t T, threads;
    enum aq_stage_precision precision;
    bool keeps, coded, first, last;
    struct aq_sampling_config draws;
    struct aq_model_folder *folder;
    struct aq_edge_shape in, out; /* of the cuts before and behind                                             */
    struct aq_sampling *sampling; /* of the last stage                                                         */
    float *logits;
    int32_t *tokens; /* T of them, of first and last stage; NULL: this stage has none                        */
    uint32_t held;   /* of them                                                                               */
    uint32_t used;   /* that were computed, or would be again                                                 */
};

/* ---- what is asked ---- */

static enum aq_status read_draws(const json_t *ask, struct aq_sampling_config *out)
{
    double temperature, top_p, penalty;
    AQ_TRY(aq_control_get_number(ask, "temperature", &temperature));
    AQ_TRY(aq_control_get_number(ask, "top_p", &top_p));
    AQ_TRY(aq_control_get_number(ask, "penalty", &penalty));
    AQ_TRY(aq_control_get_u32(ask, "top_k", &out->top_k));
    AQ_TRY(aq_control_get_hex(ask, "seed", &out->seed));
    out->temperature = (float)temperature;
    out->top_p = (float)top_p;
    out->repetition_penalty = (float)penalty;
    return aq_sampling_check(out);
}

static enum aq_status read_ask(const json_t *start, struct answer *a)
{
    const json_t *ask = json_object_get(start, "ask");
    uint32_t precision;
    AQ_TRY(aq_control_get_text(ask, "model", &a->path));
    a->adapter = aq_control_text_or(ask, "adapter", NULL);
    AQ_TRY(aq_control_get_u32(ask, "T", &a->T));
    AQ_TRY(aq_control_get_u32(ask, "threads", &a->threads));
    AQ_TRY(aq_control_get_u32(ask, "precision", &precision));
    a->precision = (enum aq_stage_precision)precision;
    a->keeps = aq_control_bool_or(ask, "keeps", false);
    a->coded = aq_control_bool_or(ask, "coded", false);
    const bool known = precision == AQ_STAGE_FP32 || precision == AQ_STAGE_BF16 || precision == AQ_STAGE_FP16;
    if (!known || a->T == 0 || a->T > TOKENS_MAX || a->threads > THREADS_MAX || a->path[0] != '/')
        return aq_fail(AQ_PROTO, "worker",
                       "asked for a computation that no stage has: %u tokens, precision %u, %u threads", a->T,
                       precision, a->threads);
    return read_draws(ask, &a->draws);
}

/* The folder's model is the one that the launcher reads, and the run's cut is one of its. */
static enum aq_status open_model(struct answer *a, const json_t *start, struct aq_model_config *out)
{
    char text[IDENTITY_BYTES];
    const char *kind;
    uint64_t wanted;
    AQ_TRY(aq_control_get_hex(json_object_get(start, "ask"), "identity", &wanted));
    AQ_TRY(aq_model_folder_open(a->path, &a->folder));
    *out = *aq_model_folder_model(a->folder);
    aq_model_identity(out, text, sizeof text);
    if (aq_digest(text, strlen(text)) != wanted || aq_model_layers(out) != a->w->plan->layers)
        return aq_fail(AQ_MISMATCH, "worker", "%s is another model here than where the text is asked for", a->path);
    aq_model_use_task(out, NULL, out->labels);
    AQ_TRY(aq_model_config_check(out));
    if (a->keeps && !aq_model_extends(out, &kind))
        return aq_fail(AQ_PROTO, "worker", "asked to keep a cache, which a layer of kind %s does not have", kind);
    return AQ_OK;
}

/* ---- this stage, of the sizes of a text ---- */

static enum aq_status cut(struct answer *a, uint32_t e, struct aq_edge_shape *shape, struct aq_link_config *link)
{
    struct aq_edge_size size;
    AQ_TRY(aq_asked_cut(a->w->plan, &a->w->pipeline.asked.config, e, shape));
    AQ_TRY(aq_edge_size_of(shape, &size));
    link->body_bytes_max = (uint32_t)size.body_bytes_max;
    link->send_frames = shape->send_frames;
    link->receive_slots = shape->receive_slots;
    /* A worker of another question, or of another time, is no neighbour. */
    char text[128];
    snprintf(text, sizeof text, "ask %016" PRIx64 " T=%u precision=%d keeps=%d coded=%d", a->w->checkpoints.run_id,
             a->T, (int)a->precision, a->keeps, a->coded);
    link->plan_hash = aq_digest_seeded(text, strlen(text), a->w->plan->hash);
    return AQ_OK;
}

/* Checks the daemon's limit (--max-memory) before anything large is allocated. */
static enum aq_status within_limit(const struct answer *a)
{
    const struct aq_plan_stage *me = a->w->me;
    struct rlimit limit;
    char has[AQ_TEXT_NUMBER], needs[AQ_TEXT_NUMBER];
    if (getrlimit(RLIMIT_DATA, &limit) != 0) return aq_fail_errno("worker", "cannot ask for the limit of memory");
    uint64_t bytes = AQ_PLAN_PROCESS_BYTES + me->size.parameter_bytes + me->size.slot_bytes + me->size.workspace_bytes +
                     me->size.host_bytes + me->size.x_bytes + me->size.y_bytes;
    if (!a->first) bytes += aq_link_measure(&me->link_in);
    if (!a->last) bytes += aq_link_measure(&me->link_out);
    if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return AQ_OK;
    return aq_fail(AQ_NOMEM, "worker", "stage %u needs %s for %u tokens, and its daemon allows %s (--max-memory)",
                   a->w->position, aq_text_size(bytes, needs), a->T, aq_text_size(limit.rlim_cur, has));
}

static enum aq_status size_stage(struct answer *a, const struct aq_model_config *model)
{
    struct aq_worker *w = a->w;
    const struct aq_asked_size size = {.B = 1, .T = a->T, .writes = true, .extends = a->keeps};
    struct aq_model_config untied = *model;
    AQ_TRY(aq_asked_adapt(a->adapter, &untied));
    w->pipeline.asked = *w->me;
    w->pipeline.asked.config = aq_asked_config(&untied, w->job, a->precision, &size);
    w->pipeline.asked.config.layer_first = w->me->layer_first;
    w->pipeline.asked.config.layer_end = w->me->layer_end;
    w->pipeline.asked.boundary_copies = 1;
    AQ_TRY(aq_stage_measure(&w->pipeline.asked.config, &w->pipeline.asked.size));
    if (!a->first) AQ_TRY(cut(a, w->position - 1, &a->in, &w->pipeline.asked.link_in));
    if (!a->last) AQ_TRY(cut(a, w->position, &a->out, &w->pipeline.asked.link_out));
    w->me = &w->pipeline.asked;
    return within_limit(a);
}

static enum aq_status open_text(struct answer *a)
{
    const uint32_t vocabulary = a->w->me->config.model.vocabulary;
    if (!a->first && !a->last) return AQ_OK;
    AQ_TRY(AQ_NEW(a->T, &a->tokens));
    if (!a->last) return AQ_OK;
    AQ_TRY(AQ_NEW(vocabulary, &a->logits));
    AQ_TRY(aq_sampling_open(&a->draws, vocabulary, &a->sampling));
    aq_sampling_begin(a->sampling, 0);
    return AQ_OK;
}

static enum aq_status open_stage(struct answer *a)
{
    struct aq_worker *w = a->w;
    const struct aq_device_config device = {
        .kind = "cpu", .threads = a->threads ? a->threads : aq_job_threads(w->job, w->rank, aq_thread_cores())};
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_DEVICE));
    AQ_TRY(aq_device_open(&device, &w->device));
    AQ_TRY(aq_worker_device_open(w));
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_WEIGHTS));
    return aq_asked_stage_open(w->device, &w->me->config, a->path, a->adapter, &w->stage);
}

static enum aq_status open_edges(struct answer *a)
{
    struct aq_worker *w = a->w;
    /* The links' own heartbeats show whether a neighbour lives; its time to compute depends on its prompt. */
    struct aq_edge_config config = {
        .device = w->device, .eventcount = w->eventcount, .silence_ns = w->links.silence_ns};
    AQ_TRY(aq_worker_set_phase(w, AQ_PHASE_CONNECT));
    AQ_TRY(aq_worker_links_open(w));
    if (!a->first) {
        config.shape = &a->in;
        config.link = w->pipeline.link_in;
        AQ_TRY(aq_edge_open(&config, &w->pipeline.in));
    }
    if (a->last) return AQ_OK;
    config.shape = &a->out;
    config.sender = true;
    config.link = w->pipeline.link_out;
    return aq_edge_open(&config, &w->pipeline.out);
}

static enum aq_status open_all(struct answer *a, const json_t *start)
{
    struct aq_worker *w = a->w;
    struct aq_model_config model;
    AQ_TRY(aq_worker_plan_open(w, start));
    aq_log_init((int)w->rank);
    AQ_TRY(aq_control_get_hex(start, "id", &w->checkpoints.run_id));
    AQ_TRY(read_ask(start, a));
    if (w->replica > 0)
        return aq_fail(AQ_PROTO, "worker", "rank %u is asked, which is not a stage's first replica", w->rank);
    w->W = 1; /* one pipeline answers */
    w->links.silence_ns = UINT64_MAX;
    a->first = w->position == 0;
    a->last = w->position + 1 == w->P;
    AQ_TRY(open_model(a, start, &model));
    AQ_TRY(size_stage(a, &model));
    AQ_TRY(aq_eventcount_open(&w->eventcount));
    aq_heartbeat_eventcount(w->eventcount);
    AQ_TRY(open_text(a));
    AQ_TRY(open_stage(a));
    return open_edges(a);
}

/* ---- a step ---- */

/* The tokens from a->held up to `used`: as lengths, of which none is 0 (lengths.h). */
static enum aq_status take_tokens(struct answer *a, const char *text, uint32_t used)
{
    uint32_t *fresh = (uint32_t *)(a->tokens + a->held);
    const uint32_t count = used - a->held;
    AQ_TRY(aq_lengths_read(text, count, a->w->me->config.model.vocabulary, fresh));
    for (uint32_t i = 0; i < count; i++)
        fresh[i]--;
    if (a->last) AQ_TRY(aq_sampling_note(a->sampling, a->tokens + a->held, count));
    a->held = used;
    return AQ_OK;
}

/* The text up to `used`; what is before `before` was computed. The first stage's input, or what has come. */
static enum aq_status compute(struct answer *a, uint32_t before, uint32_t used)
{
    static const uint64_t nobody[1] = {0};
    struct aq_worker *w = a->w;
    const uint32_t rows = used - before;
    const struct aq_edge_batch crossing = {.step = w->plan->steps + before,
                                           .samples = 1,
                                           .sample_ids = nobody,
                                           .lengths = &rows,
                                           .flags = a->coded ? AQ_EDGE_CODED : 0};
    const struct aq_batch batch = {
        .samples = 1, .field_count = a->tokens ? 1 : 0, .fields = {{"tokens", AQ_FIELD_I32, a->T, a->tokens}}};
    const struct aq_values *x = &w->pipeline.x[0], *y = &w->pipeline.y[0];
    if (!a->first) AQ_TRY(aq_worker_receive_eval(w, &crossing));
    const struct aq_stage_input input = {
        .x = a->first ? NULL : x->at, .batch = &batch, .evaluate = true, .tokens_used = used, .tokens_before = before};
    if (!a->first) AQ_TRY(aq_values_read_begin(w->device, x, w->stream));
    if (!a->last) AQ_TRY(aq_values_write_begin(w->device, y, w->stream));
    AQ_TRY(aq_stage_forward(w->stage, 0, &input, a->last ? NULL : y->at, NULL, w->stream));
    if (!a->first) AQ_TRY(aq_values_read_end(w->device, x, w->stream));
    if (!a->last) AQ_TRY(aq_values_write_end(w->device, y, w->stream));
    return a->last ? AQ_OK : aq_worker_send_eval(w, &crossing);
}

static enum aq_status step(struct answer *a, uint32_t before, uint32_t used, const json_t *message)
{
    struct aq_worker *w = a->w;
    const char *text;
    int32_t token;
    if (used > a->T || used <= a->used || before != (a->keeps ? a->used : 0))
        return aq_fail(AQ_PROTO, "worker", "asked for tokens %u to %u of %u behind %u", before, used, a->T, a->used);
    if (a->tokens) {
        AQ_TRY(aq_control_get_text(message, "tokens", &text));
        AQ_TRY(take_tokens(a, text, used));
    }
    aq_heartbeat_phase(AQ_PHASE_COMPUTE);
    AQ_TRY(compute(a, before, used));
    a->used = used;
    aq_heartbeat_work();
    aq_heartbeat_phase(AQ_PHASE_GO);
    if (!a->last) return AQ_OK;
    AQ_TRY(aq_stage_logits(w->stage, 0, used - 1, a->logits, w->stream));
    AQ_TRY(aq_sampling_next(a->sampling, a->logits, &token));
    return aq_control_send(w->control, json_pack("{s:s, s:i}", "event", "token", "token", (int)token));
}

/* *end: that was all. */
static enum aq_status serve(struct answer *a, bool *end)
{
    json_t *message;
    uint32_t before = 0, used;
    AQ_TRY(aq_worker_await(a->w, "forward", aq_worker_after_s(IDLE_S), &message));
    enum aq_status status = aq_control_get_u32(message, "used", &used);
    *end = status == AQ_OK && used == 0;
    if (status == AQ_OK && !*end) status = aq_control_get_u32(message, "before", &before);
    if (status == AQ_OK && !*end) status = step(a, before, used, message);
    json_decref(message);
    return status;
}

static enum aq_status answer_all(struct answer *a)
{
    struct aq_worker *w = a->w;
    json_t *go;
    bool end = false;
    AQ_TRY(aq_control_send(
        w->control, json_pack("{s:s, s:I}", "event", "ready", "answers", (json_int_t)w->me->config.model.vocabulary)));
    aq_heartbeat_phase(AQ_PHASE_GO);
    AQ_TRY(aq_worker_await(w, "go", aq_worker_after_s(IDLE_S), &go));
    json_decref(go);
    while (!end)
        AQ_TRY(serve(a, &end));
    const uint64_t deadline = aq_worker_after_s(END_S);
    aq_heartbeat_phase(AQ_PHASE_END);
    AQ_TRY(aq_worker_drain(w, deadline));
    AQ_TRY(aq_control_send(w->control, json_pack("{s:s}", "event", "done")));
    return aq_worker_leave(w, deadline);
}

enum aq_status aq_worker_answer(struct aq_worker *w, const json_t *start)
{
    struct answer a = {.w = w};
    enum aq_status status = open_all(&a, start);
    if (status == AQ_OK) status = answer_all(&a);
    aq_sampling_close(a.sampling);
    aq_free(a.logits);
    aq_free(a.tokens);
    aq_model_folder_close(a.folder);
    return status;
}
