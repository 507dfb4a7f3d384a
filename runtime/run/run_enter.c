/* run_enter.c -- see the header. */
#include "run_enter.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "json_text.h"
#include "resume_check.h"
#include "resume_schedule.h"
#include "run_lines.h"
#include "run_rewind.h"

enum { LAST_LINES = 256 /* after a step's line there are few others */ };

/* The content of run.json; hash 0: no file. */
struct identity {
    uint64_t hash, resume_hash;
    char name[64];
};

static enum aq_status read_identity(const char *run, struct identity *out)
{
    char path[AQ_RUN_PATH_BYTES], *text;
    size_t count;
    *out = (struct identity){.name = "?"};
    AQ_TRY(aq_run_path(run, "run.json", path));
    const enum aq_status status = aq_file_load(NULL, path, 1 << 20, &text, &count);
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    json_t *identity = json_loadb(text, count, 0, NULL);
    aq_free(text);
    enum aq_status got = AQ_OK;
    if (!json_is_object(identity) || aq_control_get_hex(identity, "plan_hash", &out->hash) != AQ_OK)
        got = aq_fail(AQ_CORRUPT, "launch", "%s is damaged: choose another folder with --run", path);
    if (got == AQ_OK && json_object_get(identity, "resume_hash"))
        got = aq_control_get_hex(identity, "resume_hash", &out->resume_hash);
    snprintf(out->name, sizeof out->name, "%.60s", aq_control_text_or(identity, "name", "?"));
    json_decref(identity);
    return got;
}

static enum aq_status write_identity(const struct aq_run_entry *entry)
{
    const struct aq_plan *plan = entry->plan;
    char path[AQ_RUN_PATH_BYTES];
    json_t *identity = json_pack("{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:s}", "name", plan->job->name, "plan_hash",
                                 aq_control_hex(aq_plan_hash(plan)), "resume_hash", aq_control_hex(plan->resume_hash),
                                 "replicas", (json_int_t)plan->replicas, "stages", (json_int_t)plan->stage_count,
                                 "steps", (json_int_t)plan->steps, "steps_per_epoch", (json_int_t)plan->steps_per_epoch,
                                 "parameters", (json_int_t)(plan->parameters + plan->frozen), "version", AQ_VERSION);
    enum aq_status status = aq_run_path(plan->job->output.path, "run.json", path);
    if (status == AQ_OK)
        status = aq_json_replace(path, identity, JSON_COMPACT);
    else
        json_decref(identity);
    if (status == AQ_OK) status = aq_run_path(plan->job->output.path, "manifest.yaml", path);
    if (status == AQ_OK) status = aq_file_replace(NULL, path, 0600, entry->manifest, strlen(entry->manifest));
    return status;
}

struct found {
    uint64_t step;  /* the last that was trained; 0: none */
    double seconds; /* of training, up to that step       */
    bool done;      /* the run came to its end            */
};

/* Steps start early in the file, and the end is its last line: the rest is not read. */
static enum aq_status find(const char *metrics, struct found *found)
{
    struct aq_run_lines *lines;
    const char *text;
    char *last;
    uint64_t begin = UINT64_MAX;
    size_t count;
    enum aq_status status = aq_run_lines_open(metrics, 0, &lines);
    *found = (struct found){0};
    if (status == AQ_NOTFOUND) return AQ_OK;
    AQ_TRY(status);
    while (!found->step && (status = aq_run_lines_next(lines, &text, &count)) == AQ_OK) {
        json_t *line = json_loadb(text, count, 0, NULL);
        if (aq_control_is(line, "event", "step")) found->step = aq_control_u64_or(line, "step", 1);
        json_decref(line);
    }
    aq_run_lines_close(lines);
    /* The last line is the end's, if the run ended; the last step's is not far before it. */
    for (int i = 0; i < LAST_LINES && status == AQ_OK; i++) {
        status = aq_run_line_before(metrics, begin, &last, &count, &begin);
        if (status == AQ_CORRUPT && i > 0) status = AQ_NOTFOUND; /* a hole: the rewind checks whether it matters */
        if (status != AQ_OK) break;
        json_t *line = json_loadb(last, count, 0, NULL);
        const bool step = aq_control_is(line, "event", "step");
        if (i == 0) found->done = aq_control_is(line, "event", "end") && aq_control_is(line, "state", "done");
        if (step) found->step = aq_control_u64_or(line, "step", 1);
        if (step) found->seconds = aq_control_number_or(line, "time", 0);
        json_decref(line);
        aq_free(last);
        if (step) break;
    }
    if (status != AQ_NOTFOUND) AQ_TRY(status);
    return AQ_OK;
}

/*
 * The run has been further than its folders show: without this check it would start again, and overwrite its files on
 * another disk.
 */
static enum aq_status refuse_gone(const struct aq_run_entry *entry, enum aq_owned_state state, uint64_t step)
{
    static const char *const what[] = {[AQ_OWNED_MISSING] = "is not there",
                                       [AQ_OWNED_EMPTY] = "is empty",
                                       [AQ_OWNED_OLD] = "holds no complete checkpoint",
                                       [AQ_OWNED_OURS] = "holds no complete checkpoint"};
    return aq_fail(AQ_REFUSED, "launch",
                   "%s has been trained up to step %llu, but the folder of its checkpoints, %s, %s: is its disk "
                   "mounted? If they are lost for good, --fresh starts again",
                   entry->plan->job->output.path, (unsigned long long)step, entry->checkpoint, what[state]);
}

/* Must this run have had a checkpoint by now? The one at its end is always written. */
static bool was_due(const struct aq_plan *plan, const struct found *found)
{
    const struct aq_job_every *every = &plan->job->checkpoint.every;
    const uint64_t steps = aq_job_every_steps(every, plan->steps_per_epoch);
    if (found->done) return true;
    return every->ns > 0 ? found->seconds * 1e9 >= (double)every->ns : steps > 0 && found->step >= steps;
}

/* A run without a checkpoint, as far as the folders show: if its checkpoints are elsewhere, it must not start again. */
static enum aq_status begin_anew(const struct aq_run_entry *entry, enum aq_owned_state state, const struct found *found)
{
    const bool there = state == AQ_OWNED_OURS || state == AQ_OWNED_OLD;
    if (entry->checkpointed || (found->step > 0 && !there && (entry->marked || was_due(entry->plan, found))))
        return refuse_gone(entry, state, found->step);
    return AQ_OK;
}

/* ---- a run of another plan ---- */

static void no_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

/* The plan of the run that is here, as its manifest.yaml has it. False: none that this version can read. */
static bool plan_before(const char *run, struct aq_job **job, struct aq_plan **plan)
{
    char path[AQ_RUN_PATH_BYTES];
    *job = NULL;
    *plan = NULL;
    if (aq_run_path(run, "manifest.yaml", path) != AQ_OK) return false;
    aq_log_sink(no_line, NULL); /* what is wrong with it is no error of this launch */
    const bool read = aq_job_load(path, NULL, 0, job) == AQ_OK && aq_plan_open(*job, plan) == AQ_OK;
    aq_log_sink(NULL, NULL);
    aq_error_clear();
    if (!read) aq_job_close(*job);
    return read;
}

static enum aq_status refuse_other(const struct aq_run_entry *entry, const struct identity *there)
{
    const char *run = entry->plan->job->output.path;
    struct aq_text differences = {0};
    struct aq_job *job;
    struct aq_plan *plan;
    const bool planned = plan_before(run, &job, &plan);
    if (planned) {
        if (aq_plan_differences(plan, entry->plan, entry->resume, &differences) != AQ_OK) aq_text_deinit(&differences);
        aq_plan_close(plan);
        aq_job_close(job);
    }
    if (differences.used == 0) /* its manifest was deleted, or cannot be read */
        aq_text_add(&differences, "its hash is %016llx, this job's is %016llx%s", (unsigned long long)there->hash,
                    (unsigned long long)aq_plan_hash(entry->plan),
                    planned ? ", and no key differs: another version of aqpipe made it" : "");
    const bool same_name = strcmp(there->name, entry->plan->job->name) == 0;
    const bool serves = there->resume_hash == entry->plan->resume_hash; /* but --resume was not said */
    const enum aq_status status =
        aq_fail(AQ_MISMATCH, "launch",
                "%s holds the run '%s' of another plan: %s. %s; for this job, choose another folder with --run%s", run,
                there->name, aq_text_of(&differences),
                serves ? "--resume continues it with these values" : "To continue it, undo that",
                same_name ? ", or delete that run with --fresh" : "");
    aq_text_deinit(&differences);
    return status;
}

/*
 * A run of another plan. One that made no step has nothing to lose; one of this job's name is deleted with --fresh. Its
 * checkpoints have its own hashes.
 */
static enum aq_status enter_other(struct aq_run_entry *entry, const struct identity *there, uint64_t steps, bool marked)
{
    const bool begun = steps > 0 || marked || entry->checkpointed;
    const bool thrown = entry->fresh && strcmp(there->name, entry->plan->job->name) == 0;
    if (begun && !thrown) return refuse_other(entry, there);
    entry->fresh = true;
    entry->owner.resume_hash = there->resume_hash;
    entry->owner.plan_hash = there->hash;
    return AQ_OK;
}

/* ---- a run that resumes ---- */

/* Its own last step. */
static uint64_t steps_end(const struct aq_run_entry *entry)
{
    return entry->plan->steps - entry->shift;
}

/* The run resumes with a longer or shorter plan. Reports how that changes the values that depend on the end.
 */
static enum aq_status extend(struct aq_run_entry *entry)
{
    const struct aq_plan *here = entry->plan;
    const uint64_t at = entry->resume_step;
    const struct aq_optimizer_config *optimizer = &here->job->train.optimizer;
    struct aq_job *job;
    struct aq_plan *there;
    if (at > steps_end(entry))
        return aq_fail(AQ_REFUSED, "launch",
                       "%s has made %llu steps already, and this plan ends at step %llu: raise train.epochs or "
                       "train.steps_max to continue",
                       here->job->output.path, (unsigned long long)at, (unsigned long long)steps_end(entry));
    if (aq_job_global(here->job)) return AQ_OK; /* its server reports the changes */
    if (!plan_before(here->job->output.path, &job, &there)) return AQ_OK;
    char rates[sizeof entry->extended / 2];
    aq_resume_rates(there, here, at, rates, sizeof rates);
    const bool averaged = at == there->steps && here->replicas > 1 && aq_optimizer_config_drifts(optimizer, at);
    int used = 0;
    if (here->steps != there->steps)
        used = snprintf(entry->extended, sizeof entry->extended, "it ends at step %llu, not %llu",
                        (unsigned long long)here->steps, (unsigned long long)there->steps);
    if (used > 0) used += snprintf(entry->extended + used, sizeof entry->extended - (size_t)used, "%s", rates);
    if (used > 0 && averaged)
        (void)snprintf(entry->extended + used, sizeof entry->extended - (size_t)used,
                       "; %s averaged the weights at step %llu, where it was to end", optimizer->kind,
                       (unsigned long long)at);
    aq_plan_close(there);
    aq_job_close(job);
    return AQ_OK;
}

/* A run that train.early_stop has ended, as long as the manifest has it so. False without metrics. */
static bool ended_early(struct aq_run_entry *entry, const char *metrics)
{
    const struct aq_job *job = entry->plan->job;
    if (job->train.early_stop == 0 || entry->resume_step == 0) return false;
    if (aq_best_open(aq_best_figure(job), &entry->best) != AQ_OK || aq_best_read(&entry->best, metrics) != AQ_OK) {
        aq_error_clear(); /* training reports it again */
        return false;
    }
    return entry->best.since >= job->train.early_stop && entry->best.last == entry->resume_step;
}

/* A folder with files: may this launch use it, and from which step does it resume? */
static enum aq_status enter_used(struct aq_run_entry *entry, const struct identity *there)
{
    const struct aq_plan *plan = entry->plan;
    const char *run = plan->job->output.path;
    char metrics[AQ_RUN_PATH_BYTES];
    struct aq_run_mark mark;
    struct found found = {0};
    enum aq_owned_state state;
    /* The same except its extent or the count of replicas: its checkpoint serves. */
    const bool same = there->hash == aq_plan_hash(plan),
               other = !same && !(entry->resume && there->resume_hash == plan->resume_hash);
    if (entry->fresh && !other) return AQ_OK;
    AQ_TRY(aq_run_path(run, "metrics.jsonl", metrics));
    AQ_TRY(find(metrics, &found)); /* aq_run_rewind checks whether holes matter */
    AQ_TRY(aq_owned_look(entry->checkpoint, AQ_OWNED_CHECKPOINT, &entry->owner, &state));
    if (state == AQ_OWNED_OTHERS && !other) return AQ_OK; /* claiming it reports the owner */
    const enum aq_status status = aq_run_mark_read(entry->checkpoint, &mark);
    const bool marked = status == AQ_OK;
    if (other) return enter_other(entry, there, found.step, status != AQ_NOTFOUND && state != AQ_OWNED_OTHERS);
    if (status != AQ_NOTFOUND) AQ_TRY(status);
    if (!entry->resume && (marked || found.step || entry->checkpointed))
        return aq_fail(AQ_REFUSED, "launch",
                       "%s already holds this job (%s): --resume continues it, --fresh deletes it", run,
                       marked ? "with a checkpoint" : "without a checkpoint");
    if (!marked) AQ_TRY(begin_anew(entry, state, &found));
    if (marked && mark.plan_hash != there->hash && mark.resume_hash != plan->resume_hash)
        return aq_fail(AQ_MISMATCH, "launch", "the checkpoint of %s belongs to plan %016llx, the run to %016llx", run,
                       (unsigned long long)mark.plan_hash, (unsigned long long)there->hash);
    entry->resume_step = marked ? mark.step : 0;
    entry->resume_bytes = marked ? mark.metrics : 0;
    if (!same) AQ_TRY(extend(entry));
    /* A run killed after its last checkpoint still has to write its model; without metrics it counts as finished. */
    const bool all = entry->resume_step >= steps_end(entry);
    entry->early = !all && ended_early(entry, metrics);
    entry->finished = (all || entry->early) && (found.done || !plan->job->output.metrics);
    if (entry->finished) return AQ_OK; /* its report stays as it is */
    if (marked) AQ_TRY(aq_resume_check(plan, run, entry->resume_step));
    entry->rewinds = true;
    return AQ_OK;
}

/* ---- the folders ---- */

/* The folder of the caches of this machine's stages; NULL: no caches on disk. */
static enum aq_status find_caches(struct aq_run_entry *entry)
{
    const struct aq_job *job = entry->plan->job;
    bool any = false;
    for (uint32_t s = 0; s < entry->plan->stage_count; s++) {
        const struct aq_cache_config *cache = &entry->plan->stages[s].cache;
        any |= cache->slots > 0 && strcmp(cache->kind, "memory") != 0;
    }
    if (!any) return AQ_OK;
    entry->folders.cache = entry->cache;
    if (!job->cache.path) return aq_run_path(job->output.path, "cache", entry->cache);
    const int bytes = snprintf(entry->cache, sizeof entry->cache, "%s", job->cache.path);
    return bytes < (int)sizeof entry->cache ? AQ_OK : aq_fail(AQ_INVAL, "launch", "cache.path is too long");
}

/* These folders are the run's: from here on it may write in them, and, with --fresh, remove what it left there. */
static enum aq_status own_folders(struct aq_run_entry *entry)
{
    const char *run = entry->plan->job->output.path;
    char metrics[AQ_RUN_PATH_BYTES];
    struct aq_owned_folders folders = entry->folders;
    struct aq_owner *owner = &entry->owner;
    bool here = false;
    for (uint32_t r = 0; r < entry->plan->ranks; r++)
        here |= entry->plan->job->pipeline.stages[r].host == NULL;
    if (!here) folders.cache = NULL;
    AQ_TRY(aq_owned_enter(&folders, entry->resume ? AQ_OWNED_MAKE_LAST : AQ_OWNED_MAKE_ALL, owner));
    AQ_TRY(aq_run_lock(entry->checkpoint, &entry->checkpoint_lock));
    AQ_TRY(aq_owned_check(entry->checkpoint, AQ_OWNED_CHECKPOINT, owner->id)); /* nobody was quicker */
    if (entry->fresh) {
        AQ_TRY(aq_owned_clear_run(run, owner));
        AQ_TRY(aq_owned_clear_checkpoints(entry->checkpoint, owner));
    }
    owner->resume_hash = entry->plan->resume_hash;
    owner->plan_hash = aq_plan_hash(entry->plan);
    if (entry->fresh) AQ_TRY(aq_owned_note(run, owner, false));
    if (!entry->rewinds) return AQ_OK;
    AQ_TRY(aq_run_path(run, "metrics.jsonl", metrics));
    return aq_run_rewind(metrics, entry->resume_step, entry->resume_bytes, &entry->seconds);
}

enum aq_status aq_run_enter(struct aq_run_entry *entry)
{
    const struct aq_plan *plan = entry->plan;
    const char *run = plan->job->output.path;
    struct identity there;
    enum aq_owned_state state;
    const enum aq_owned_make make = entry->resume ? AQ_OWNED_MAKE_NONE : AQ_OWNED_MAKE_ALL;
    entry->lock = entry->checkpoint_lock = -1;
    entry->folders = (struct aq_owned_folders){.run = run, .checkpoint = entry->checkpoint};
    entry->owner =
        (struct aq_owner){.job = plan->job->name, .resume_hash = plan->resume_hash, .plan_hash = aq_plan_hash(plan)};
    if (entry->resume && access(run, F_OK) != 0)
        return aq_fail(AQ_NOTFOUND, "launch", "--resume: there is no run folder %s", run);
    AQ_TRY(find_caches(entry));
    AQ_TRY(aq_owned_look(run, AQ_OWNED_RUN, &entry->owner, &state));
    entry->marked = state == AQ_OWNED_OURS;
    AQ_TRY(aq_owned_claim_run(run, make, &entry->owner, NULL));
    AQ_TRY(aq_run_lock(run, &entry->lock));
    /* Of two launches at once one has the lock, and the marker may be the other's. */
    entry->owner.id = 0;
    AQ_TRY(aq_owned_claim_run(run, make, &entry->owner, &entry->checkpointed));
    AQ_TRY(read_identity(run, &there));
    if (there.hash == 0 && entry->checkpointed && !entry->fresh)
        return aq_fail(AQ_REFUSED, "launch",
                       "%s had checkpoints and has lost its run.json, so their plan is unknown: put it back, or start "
                       "again with --fresh",
                       run);
    if (there.hash) AQ_TRY(enter_used(entry, &there));
    if (entry->finished) return AQ_OK;
    AQ_TRY(own_folders(entry));
    return write_identity(entry);
}

void aq_run_leave(struct aq_run_entry *entry)
{
    if (entry->checkpoint_lock != -1) close(entry->checkpoint_lock);
    if (entry->lock != -1) close(entry->lock);
    entry->lock = entry->checkpoint_lock = -1;
}
