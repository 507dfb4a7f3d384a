/* resume_check.c -- see the header. Workers judge files that cannot be read here: they heal them, or fail with the
 * cause. */
#include "resume_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run_folder.h"

static void no_line(int level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

/* The marks of a stage's cache. False: it has none, or cannot be read. */
static bool marks_of(const char *path, struct aq_cache_info *info)
{
    struct aq_cache_walk *walk;
    if (access(path, F_OK) != 0) return false;
    aq_log_sink(no_line, NULL); /* the worker that opens it will report the fault */
    const enum aq_status status = aq_cache_walk_open(path, 0, false, &walk);
    aq_log_sink(NULL, NULL);
    aq_error_clear();
    if (status != AQ_OK) return false;
    aq_cache_walk_info(walk, info);
    aq_cache_walk_close(walk);
    return info->mark_last > 0;
}

enum aq_status aq_resume_check(const struct aq_plan *plan, const char *run, uint64_t step)
{
    char parent[AQ_RUN_PATH_BYTES], path[AQ_RUN_PATH_BYTES], name[24];
    struct aq_cache_info info, other = {0};
    uint32_t other_stage = 0, others = 0;
    if (plan->job->cache.path)
        snprintf(parent, sizeof parent, "%s", plan->job->cache.path);
    else
        AQ_TRY(aq_run_path(run, "cache", parent));
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_cache_config *cache = &plan->stages[r % plan->stage_count].cache;
        if (cache->slots == 0 || strcmp(cache->kind, "memory") == 0 || plan->job->pipeline.stages[r].host) continue;
        snprintf(name, sizeof name, "stage-%u", r);
        AQ_TRY(aq_run_path(parent, name, path));
        if (!marks_of(path, &info) || info.job_digest != plan->job_digest) continue;
        if (info.mark_last == step || info.mark_previous == step) return AQ_OK;
        if (others++ > 0) continue;
        other = info;
        other_stage = r;
    }
    if (others == 0) return AQ_OK;
    return aq_fail(AQ_MISMATCH, "launch",
                   "the checkpoint is of step %" PRIu64 ", but no cache here holds its mark (stage %u's holds %" PRIu64
                   " and %" PRIu64 "): they are not of one point in time; put the right ones there, or remove %s to "
                   "resume with empty caches, which is no longer the same run",
                   step, other_stage, other.mark_previous, other.mark_last, parent);
}
