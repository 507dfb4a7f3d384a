/* through.c -- from a run's folder to its stages as processes. See the header. */
#include "through.h"

#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "control.h"
#include "net/tls.h"
#include "run_folder.h"

enum { READY_S = 600, IDENTITY_BYTES = 512 };

struct aq_through {
    struct aq_token token;
    struct aq_tls *tls;
    struct aq_progress progress;
    struct aq_asking *asking;
    const char *hosts[AQ_JOB_RANKS_MAX];
    char path[AQ_RUN_PATH_BYTES], adapter[AQ_RUN_PATH_BYTES], daemon[AQ_RUN_PATH_BYTES];
    char *manifest;
    json_t *ask;
};

static json_t *ask_of(const struct aq_through *through, const struct aq_through_asked *asked)
{
    const struct aq_local *local = asked->local;
    const struct aq_sampling_config *draws = asked->draws;
    char identity[IDENTITY_BYTES];
    aq_model_identity(aq_model_folder_model(local->folder), identity, sizeof identity);
    return json_pack("{s:s, s:s?, s:o, s:I, s:i, s:b, s:b, s:I, s:f, s:I, s:f, s:f, s:o}", "model", through->path,
                     "adapter", through->adapter[0] ? through->adapter : NULL, "identity",
                     aq_control_hex(aq_digest(identity, strlen(identity))), "T", (json_int_t)asked->T, "precision",
                     (int)local->asked.precision, "keeps", asked->keeps, "coded", local->asked.codec, "threads",
                     (json_int_t)local->asked.threads, "temperature", (double)draws->temperature, "top_k",
                     (json_int_t)draws->top_k, "top_p", (double)draws->top_p, "penalty",
                     (double)draws->repetition_penalty, "seed", aq_control_hex(draws->seed));
}

/* Two askings of one run are not each other's neighbours. */
static uint64_t id_of(const struct aq_plan *plan)
{
    const uint64_t now[2] = {aq_clock_ns(), (uint64_t)getpid()};
    return aq_digest_seeded(now, sizeof now, plan->hash) | 1;
}

static enum aq_status start(struct aq_through *through, const struct aq_through_asked *asked)
{
    const struct aq_local *local = asked->local;
    const struct aq_plan *plan = local->plan;
    if (!aq_absolute(local->asked.path, through->path) ||
        (local->asked.adapter && !aq_absolute(local->asked.adapter, through->adapter)))
        return aq_fail(AQ_INVAL, "generate", "the path of %s is too long", local->asked.path);
    if (asked->token_file) AQ_TRY(aq_token_load(asked->token_file, &through->token));
    AQ_TRY(aq_daemon_program(through->daemon));
    AQ_TRY(aq_launcher_keys(local->job, &through->tls));
    AQ_TRY(aq_plan_manifest(plan, &through->manifest));
    through->ask = ask_of(through, asked);
    if (!through->ask) return aq_fail(AQ_NOMEM, "generate", "not enough memory for this request");
    for (uint32_t s = 0; s < plan->stage_count; s++) /* the first replica's */
        through->hosts[s] = local->job->pipeline.stages[s].host;
    const struct aq_launch launch = {.name = local->job->name,
                                     .stages = plan->stage_count,
                                     .replicas = 1,
                                     .hosts = through->hosts,
                                     .manifest = through->manifest,
                                     .plan_hash = aq_plan_hash(plan),
                                     .run = through->path,
                                     .checkpoint = through->path,
                                     .id = id_of(plan),
                                     .daemon = through->daemon,
                                     .ready_ns_max = (uint64_t)READY_S * 1000000000u,
                                     .probe = true,
                                     .ask = through->ask,
                                     .vocabulary = local->model.vocabulary,
                                     .token = &through->token,
                                     .tls = through->tls,
                                     .watch = aq_watch_of_plan(plan),
                                     .progress = &through->progress,
                                     .signals = -1};
    aq_progress_begin(&through->progress);
    const enum aq_status status = aq_asking_open(&launch, &through->asking);
    aq_progress_end(&through->progress);
    through->progress.off = true; /* from here on the terminal is the text's */
    return status;
}

enum aq_status aq_through_open(const struct aq_through_asked *asked, struct aq_through **out)
{
    const struct aq_job_split *split = &asked->local->job->split;
    if (split->clients || split->client)
        return aq_fail(AQ_INVAL, "generate",
                       "--pipeline: %s is a run of split learning: the clients have its first and last stages",
                       asked->local->asked.path);
    struct aq_through *through;
    AQ_TRY(AQ_NEW(1, &through));
    const enum aq_status status = start(through, asked);
    if (status == AQ_OK)
        *out = through;
    else
        aq_through_close(through);
    return status;
}

void aq_through_close(struct aq_through *through)
{
    if (!through) return;
    aq_asking_close(through->asking);
    aq_tls_close(through->tls);
    aq_free(through->manifest);
    json_decref(through->ask);
    aq_free(through);
}

enum aq_status aq_through_next(struct aq_through *through, const struct aq_asking_step *step, int32_t *token)
{
    return aq_asking_next(through->asking, step, token);
}
