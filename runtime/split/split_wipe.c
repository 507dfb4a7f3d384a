/*
 * split_wipe.c -- split.cache_ttl, split.cache_max: the server's caches of clients, copies of private features at rest,
 * neither outlive their use nor fill a disk.
 *
 * Age is the files' age, so that it counts across restarts of the server. If there are too many bytes, the cache with
 * the latest next turn is deleted first: the order of turns is known. A client whose cache was deleted sends the
 * messages again from its own as they are needed (edge_heal.c): that costs bytes, and no number changes.
 */
#include <sys/stat.h>
#include <time.h>

#include "runtime_text.h"
#include "split_private.h"
#include "storage/cache.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { LOOK_S = 1, TRY_AGAIN_S = 60 };

/* A client's cache. */
struct kept {
    uint64_t bytes, written_ns; /* bytes 0: there is none */
    bool again;                 /* its next turn is of the next round */
    uint64_t place;             /* in that round                      */
};

static struct kept kept_of(const struct server *server, const struct site *site)
{
    static const char *const files[] = {"index.mdb", "slab"};
    char path[AQ_RUN_PATH_BYTES];
    struct stat about;
    struct kept kept = {.again = site->round >= server->round};
    kept.place = round_place(server, site, server->round + kept.again);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (state_path(server, path, "clients/%s/cache/stage-1/%s", site->name, files[i]) != AQ_OK ||
            stat(path, &about) != 0)
            continue;
        const uint64_t at = (uint64_t)about.st_mtim.tv_sec * second_ns + (uint64_t)about.st_mtim.tv_nsec;
        if (at > kept.written_ns) kept.written_ns = at;
        kept.bytes += (uint64_t)about.st_size;
    }
    return kept;
}

static enum aq_status wipe_one(struct server *server, const struct site *site, struct kept *kept)
{
    char path[AQ_RUN_PATH_BYTES], size[AQ_TEXT_NUMBER];
    uint64_t bytes;
    enum aq_status status = state_path(server, path, "clients/%s/cache/stage-1", site->name);
    if (status == AQ_OK) status = aq_cache_wipe(path, &bytes);
    if (status == AQ_OK) {
        server_say(server, "the cache of %s is wiped: %s", site->name, aq_text_size(bytes, size));
        kept->bytes = 0;
        return AQ_OK;
    }
    server_say(server, "%s", aq_error_text());
    server->wipe_ns = aq_clock_after(TRY_AGAIN_S * second_ns);
    return status;
}

/* Those that are too old, or all of them. */
static enum aq_status wipe_old(struct server *server, struct kept *kept, bool all)
{
    const uint64_t ttl = server->job->split.cache_ttl_ns;
    struct timespec now;
    enum aq_status status = AQ_OK;
    clock_gettime(CLOCK_REALTIME, &now); /* as files have it */
    const uint64_t now_ns = (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
    for (uint32_t i = 0; ttl > 0 && i < server->site_count; i++) {
        if (server->sites[i].pid || kept[i].bytes == 0) continue;
        if (!all && (now_ns < kept[i].written_ns || now_ns - kept[i].written_ns < ttl)) continue;
        const enum aq_status wiped = wipe_one(server, &server->sites[i], &kept[i]);
        if (wiped != AQ_OK) status = wiped;
    }
    return status;
}

static bool comes_later(const struct kept *a, const struct kept *b)
{
    return a->again != b->again ? a->again : a->place > b->place;
}

/* Those that are wanted last, as long as there are too many bytes. */
static enum aq_status wipe_much(struct server *server, struct kept *kept)
{
    const uint64_t most = server->job->split.cache_max;
    for (uint32_t left = server->site_count; most > 0 && left > 0; left--) {
        uint64_t bytes = 0;
        uint32_t last = server->site_count;
        for (uint32_t i = 0; i < server->site_count; i++) {
            bytes += kept[i].bytes;
            if (server->sites[i].pid || kept[i].bytes == 0) continue;
            if (last == server->site_count || comes_later(&kept[i], &kept[last])) last = i;
        }
        if (bytes <= most || last == server->site_count) break;
        AQ_TRY(wipe_one(server, &server->sites[last], &kept[last]));
    }
    return AQ_OK;
}

enum aq_status caches_wipe(struct server *server, bool all)
{
    struct kept kept[AQ_JOB_CLIENTS_MAX];
    const struct aq_job_split *asked = &server->job->split;
    if ((asked->cache_ttl_ns == 0 && asked->cache_max == 0) || (!all && aq_clock_ns() < server->wipe_ns)) return AQ_OK;
    server->wipe_ns = aq_clock_after(LOOK_S * second_ns);
    for (uint32_t i = 0; i < server->site_count; i++)
        kept[i] = kept_of(server, &server->sites[i]);
    enum aq_status status = wipe_old(server, kept, all);
    if (status == AQ_OK) status = wipe_much(server, kept);
    return all ? status : AQ_OK;
}
