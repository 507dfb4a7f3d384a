/*
 * plan_fits.c -- what this machine has for a plan: memory, devices, folders, disk, keys, congestion control. The plan
 * cannot know these limits.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aqsgd/base/control_group.h"
#include "net/tls.h"
#include "plan_private.h"
#include "run_folder.h"
#include "security.h"

enum { PLACE_BYTES = 512, PATH_BYTES = 4096, BLOCK_BYTES = 4096 };

#define WRITE_NS_MAX     (600ull * 1000 * 1000 * 1000) /* for the slowest stage's disk */
#define COPY_BYTES_S_MIN (1u << 17)                    /* a link of 1 Mbit/s */

uint64_t aq_plan_checkpoint_ns_max(const struct aq_plan *plan)
{
    const uint64_t parameters = plan->parameters,
                   bytes = parameters * sizeof(float) + aq_plan_optimizer_bytes(plan, parameters);
    return WRITE_NS_MAX + (plan->job->checkpoint.mirror ? bytes / COPY_BYTES_S_MIN * 1000000000u : 0);
}

uint64_t aq_plan_memory_here(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
    const uint64_t group = aq_control_group_here().memory_bytes;
    return group < machine ? group : machine;
}

enum aq_status aq_plan_devices_built(const struct aq_plan *plan)
{
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_job_stage *stage = &plan->job->pipeline.stages[r];
        struct aq_error_hold hold;
        char place[PLACE_BYTES];
        if (stage->host || aq_job_at_client(plan->job, r)) continue;
        aq_error_hold(&hold);
        const bool built = aq_device_built(stage->device) == AQ_OK;
        aq_error_release(&hold);
        if (built) continue;
        aq_job_place(plan->job, "pipeline.stages", place, sizeof place);
        return aq_fail(
            AQ_NODEV, "plan",
            "%s: pipeline.stages: stage %u: device: %s is not in this build of aqpipe; use device: cpu, install "
            "a build with CUDA, or name the host that has one",
            place, r % plan->stage_count, stage->device);
    }
    return AQ_OK;
}

/* why: "bits with ec is not possible: ...". Its first word is the key, which may have its own place in the manifest. */
static enum aq_status codec_refused(const struct aq_job *job, uint32_t edge, const char *direction, const char *why)
{
    char key[64], whole[64], place[PLACE_BYTES], at[PLACE_BYTES];
    snprintf(key, sizeof key, "edges.%s", direction);
    snprintf(whole, sizeof whole, "edges.%s.%.*s", direction, (int)strcspn(why, " "), why);
    aq_job_place(job, key, place, sizeof place);
    aq_job_place(job, whole, at, sizeof at);
    const bool named = strcmp(at, job->source) != 0;
    if (!named && strcmp(place, job->source) == 0) { /* neither key is given for all edges */
        snprintf(key, sizeof key, "edges.list");
        aq_job_place(job, key, place, sizeof place);
        return aq_fail(AQ_INVAL, "manifest", "%s: %s: edge %u, %s: %s", place, key, edge, direction, why);
    }
    return aq_fail(AQ_INVAL, "manifest", "%s: %s: %s (edge %u)", named ? at : place, named ? whole : key, why, edge);
}

enum aq_status aq_plan_codecs_possible(const struct aq_job *job, const struct aq_edge_shape *shape)
{
    const struct aq_codec_config *const both[] = {&shape->forward, &shape->backward};
    static const char *const directions[] = {"forward", "backward"};
    for (uint32_t i = 0; i < 2; i++) {
        struct aq_error_hold hold;
        aq_error_hold(&hold);
        const enum aq_status status = aq_codec_config_check(both[i], shape->rows, shape->columns);
        aq_error_release(&hold);
        if (status != AQ_OK) return codec_refused(job, shape->edge, directions[i], hold.text);
    }
    return AQ_OK;
}

/* The server of split learning has a stage 1 for each of its turns at once. */
static uint64_t copies_of(const struct aq_plan *plan, uint32_t rank)
{
    const struct aq_job *job = plan->job;
    return job->split.clients > 0 && rank == 1 ? aq_job_turns(job) : 1;
}

static enum aq_status turns_too_many(const struct aq_plan *plan, uint64_t sum, uint64_t memory_bytes)
{
    const struct aq_job *job = plan->job;
    const uint64_t turns = aq_job_turns(job);
    const char *key = aq_job_global(job) ? "split.clients" : "split.parallel";
    char place[PLACE_BYTES], needs[AQ_TEXT_NUMBER], has[AQ_TEXT_NUMBER], each[AQ_TEXT_NUMBER];
    aq_job_place(job, key, place, sizeof place);
    return aq_fail(AQ_NOMEM, "plan",
                   "%s: %s: %u turns at once have %u stages 1 of %s each, and need %s on this machine, which has %s: "
                   "write %s, or make a turn smaller (train.micro_batch, pipeline.in_flight, model.recompute)",
                   place, key, (unsigned)turns, (unsigned)turns, aq_text_size(plan->stages[1].memory_bytes, each),
                   aq_text_size(sum, needs), aq_text_size(memory_bytes, has),
                   aq_job_global(job) ? "split.mode: splitfed1" : "a smaller split.parallel");
}

enum aq_status aq_plan_fits(const struct aq_plan *plan, uint64_t memory_bytes)
{
    uint64_t sum = 0, one = 0, largest = 0;
    uint32_t worst = 0;
    AQ_TRY(aq_plan_devices_built(plan));
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const uint32_t s = r % plan->stage_count;
        const struct aq_plan_stage *stage = &plan->stages[s];
        const struct aq_job_stage *place = &plan->job->pipeline.stages[r];
        if (place->host || aq_job_at_client(plan->job, r)) continue;
        /* A stage on a GPU is checked when it opens its device, because the launcher may run on another machine. */
        const bool gpu = aq_device_gpu_here(place->device, place->device_index);
        const uint64_t bytes = stage->memory_bytes - (gpu ? stage->device_bytes : 0);
        one += bytes;
        sum += bytes * copies_of(plan, r);
        for (uint32_t i = 0; !gpu && i < stage->line_count; i++)
            if (stage->lines[i].bytes > largest) {
                largest = stage->lines[i].bytes;
                worst = s;
            }
    }
    if (sum <= memory_bytes) return AQ_OK;
    if (one <= memory_bytes) return turns_too_many(plan, sum, memory_bytes);
    char place[PLACE_BYTES], needs[AQ_TEXT_NUMBER], has[AQ_TEXT_NUMBER], most[AQ_TEXT_NUMBER];
    aq_job_place(plan->job, "pipeline.stages", place, sizeof place);
    return aq_fail(
        AQ_NOMEM, "plan",
        "%s: pipeline.stages: the stages of this machine need %s, it has %s; the largest part is %s on stage "
        "%u: lower pipeline.in_flight or train.micro_batch, set model.recompute, or move stages to another host",
        place, aq_text_size(one, needs), aq_text_size(memory_bytes, has), aq_text_size(largest, most), worst);
}

enum aq_status aq_plan_rank_fits(const struct aq_plan *plan, uint32_t rank, uint64_t memory_bytes)
{
    AQ_ASSERT(rank < plan->ranks);
    const struct aq_plan_stage *stage = &plan->stages[rank % plan->stage_count];
    const uint64_t first = stage->config.weights_16bit ? stage->device_bytes : 0; /* of a GPU's own memory */
    if (stage->memory_bytes - first <= memory_bytes) return AQ_OK;
    const struct aq_plan_line *largest = NULL;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < stage->line_count; i++) {
        const bool here = sum >= first;
        sum += stage->lines[i].bytes;
        if (here && (!largest || stage->lines[i].bytes > largest->bytes)) largest = &stage->lines[i];
    }
    char needs[AQ_TEXT_NUMBER], has[AQ_TEXT_NUMBER], most[AQ_TEXT_NUMBER];
    return aq_fail(
        AQ_NOMEM, "plan",
        "rank %u needs %s by its plan, a worker may have %s here (aqpiped --max-memory); the largest part is "
        "%s (%s): raise --max-memory, lower pipeline.in_flight or train.micro_batch, set model.recompute, "
        "or cut into more stages",
        rank, aq_text_size(stage->memory_bytes - first, needs), aq_text_size(memory_bytes, has),
        largest ? largest->name : "?", aq_text_size(largest ? largest->bytes : 0, most));
}

uint64_t aq_plan_checkpoint_bytes(const struct aq_plan *plan, uint32_t s)
{
    const uint64_t parameters = plan->stages[s].size.parameters;
    const uint64_t bytes = parameters * sizeof(float) + aq_plan_optimizer_bytes(plan, parameters);
    return bytes * plan->job->checkpoint.keep * (plan->job->checkpoint.mirror ? 2 : 1) +
           plan->stages[s].size.frozen * sizeof(float);
}

/* The present bytes of a stage's slab on disk: a run that resumes needs no second copy of it. */
static uint64_t slab_held(const char *folder, uint32_t rank)
{
    char path[PATH_BYTES];
    struct stat about;
    if (snprintf(path, sizeof path, "%s/stage-%u/slab", folder, rank) >= (int)sizeof path) return 0;
    return stat(path, &about) == 0 ? (uint64_t)about.st_blocks * 512 : 0;
}

/*
 * Free bytes of the file system that the folder is, or will be, on: of the nearest part of its path that exists.
 * *why: why no file can be created there, or NULL.
 */
static bool disk_free(const char *folder, uint64_t *bytes, const char **why)
{
    char path[PATH_BYTES];
    struct statvfs system_of;
    struct stat about;
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) return false;
    while (statvfs(path, &system_of) != 0 || stat(path, &about) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash || path[1] == 0) return false;
        slash[slash == path ? 1 : 0] = 0;
    }
    *bytes = (uint64_t)system_of.f_bavail * system_of.f_frsize;
    *why = !S_ISDIR(about.st_mode)               ? "a part of this path is a file"
           : system_of.f_blocks == 0             ? "its file system is virtual"
           : (system_of.f_flag & ST_RDONLY) != 0 ? "its file system is read-only"
           : access(path, W_OK) != 0             ? "the folder above it belongs to another user"
                                                 : NULL;
    return true;
}

/* Can a file be created in this folder? NULL is fine. */
static enum aq_status folder_fits(const struct aq_plan *plan, const char *key, const char *folder)
{
    char place[PLACE_BYTES];
    uint64_t bytes;
    const char *why = NULL;
    if (!folder || !disk_free(folder, &bytes, &why) || !why) return AQ_OK;
    aq_job_place(plan->job, key, place, sizeof place);
    return aq_fail(AQ_INVAL, "plan", "%s: %s%s: no file can be created in %s, because %s; name another folder", place,
                   key, strcmp(key, "output.path") == 0 ? " (--run)" : "", folder, why);
}

/* Does this machine run this rank itself? */
static bool rank_is_here(const struct aq_plan *plan, uint32_t rank)
{
    return !plan->job->pipeline.stages[rank].host && !aq_job_at_client(plan->job, rank);
}

enum aq_status aq_plan_disk_fits(const struct aq_plan *plan, const char *folder)
{
    const struct aq_job *job = plan->job;
    uint64_t least = 0, held = 0, free_bytes;
    bool here = false;
    for (uint32_t r = 0; r < plan->ranks; r++) {
        const struct aq_cache_config *cache = &plan->stages[r % plan->stage_count].cache;
        here |= rank_is_here(plan, r);
        if (cache->slots == 0 || job->pipeline.stages[r].host || strcmp(cache->kind, "memory") == 0) continue;
        const uint64_t cell = (cache->value_bytes_max + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        least += cache->samples_max * cell;
        held += slab_held(folder, r);
    }
    AQ_TRY(folder_fits(plan, "output.path", job->output.path));
    if (here) AQ_TRY(folder_fits(plan, "checkpoint.path", job->checkpoint.path));
    if (least > 0) AQ_TRY(folder_fits(plan, job->cache.path ? "cache.path" : "output.path", folder));
    const char *why;
    if (least == 0 || !disk_free(folder, &free_bytes, &why)) return AQ_OK;
    char place[PLACE_BYTES], needs[AQ_TEXT_NUMBER], more[AQ_TEXT_NUMBER], has[AQ_TEXT_NUMBER];
    const char *key = job->cache.path ? "cache.path" : "output.path";
    aq_job_place(job, key, place, sizeof place);
    aq_text_size(least, needs);
    aq_text_size(2 * least, more);
    aq_text_size(free_bytes + held, has);
    if (least > free_bytes + held)
        return aq_fail(AQ_NOSPC, "plan",
                       "%s: %s: the messages of this machine's stages need %s in %s (%s between two "
                       "checkpoints), %s is free there: name another disk, store them in fewer bits "
                       "(edges.forward.store), or train on fewer samples",
                       place, key, needs, folder, more, has);
    if (2 * least > free_bytes + held)
        aq_log("plan", AQ_LOG_WARNING,
               "%s: the messages need %s, and up to %s while a checkpoint is kept; %s is free: the run may stop on a "
               "full disk",
               folder, needs, more, has);
    return AQ_OK;
}

enum aq_status aq_plan_links_fit(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    const bool keys = aq_security_on(job) && job->split.clients == 0;
    char place[PLACE_BYTES];
    if (plan->ranks == 1) return AQ_OK; /* no links */
    for (uint32_t r = 0; r < plan->ranks; r++) {
        struct aq_error_hold why;
        struct aq_tls *tls = NULL;
        if (!rank_is_here(plan, r)) continue;
        aq_error_hold(&why);
        const char *key = "link.congestion";
        enum aq_status status = aq_link_congestion_check(job->link.congestion);
        if (status == AQ_OK && keys) {
            key = "security.keys";
            status = aq_tls_open(aq_security_folder(job), AQ_TLS_STAGE, r, &tls);
            aq_tls_close(tls);
        }
        aq_error_release(&why);
        if (status == AQ_OK) continue;
        const size_t named = strncmp(why.text, key, strlen(key)) == 0 ? strlen(key) + 2 : 0; /* "KEY: ..." */
        aq_job_place(job, key, place, sizeof place);
        return aq_fail(status == AQ_NOMEM ? status : AQ_INVAL, "plan", "%s: %s: %s", place, key, why.text + named);
    }
    return AQ_OK;
}

enum aq_status aq_plan_here(const struct aq_plan *plan)
{
    const struct aq_job *job = plan->job;
    char caches[AQ_RUN_PATH_BYTES];
    AQ_TRY(aq_plan_fits(plan, aq_plan_memory_here()));
    AQ_TRY(aq_plan_links_fit(plan));
    if (job->cache.path) return aq_plan_disk_fits(plan, job->cache.path);
    AQ_TRY(aq_run_path(job->output.path, "cache", caches));
    return aq_plan_disk_fits(plan, caches);
}
