/*
 * split_wipe.c -- split.cache_ttl: the server's cache of a client, a copy of private features at rest, does not outlive
 * its use.
 *
 * Its age is that of its files, so that a server that was away knows it, too. A client whose cache is gone sends the
 * messages again from its own as they are wanted (edge_heal.c): that costs bytes, and no number changes.
 */
#include <errno.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime_text.h"
#include "split_private.h"
#include "storage/cache.h"

static const uint64_t second_ns = 1000ULL * 1000 * 1000;
enum { LOOK_S = 1, TRY_AGAIN_S = 60 };

/* When the newest of the cache's files was written; false: there are none. */
static bool written_last(const struct server *server, const struct site *site, uint64_t *ns)
{
    static const char *const files[] = {"index.mdb", "slab"};
    char path[AQ_RUN_PATH_BYTES];
    struct stat about;
    bool any = false;
    *ns = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (state_path(server, path, "clients/%s/cache/stage-1/%s", site->name, files[i]) != AQ_OK ||
            stat(path, &about) != 0)
            continue;
        const uint64_t at = (uint64_t)about.st_mtim.tv_sec * second_ns + (uint64_t)about.st_mtim.tv_nsec;
        if (at > *ns) *ns = at;
        any = true;
    }
    return any;
}

static enum aq_status wipe_one(const struct server *server, const struct site *site)
{
    char path[AQ_RUN_PATH_BYTES], size[AQ_TEXT_NUMBER];
    uint64_t bytes;
    AQ_TRY(state_path(server, path, "clients/%s/cache/stage-1", site->name));
    AQ_TRY(aq_cache_wipe(path, &bytes));
    server_say(server, "the cache of %s is wiped: %s", site->name, aq_text_size(bytes, size));
    return AQ_OK;
}

enum aq_status caches_wipe(struct server *server, bool all)
{
    const uint64_t ttl = server->job->split.cache_ttl_ns;
    struct timespec now;
    uint64_t written;
    enum aq_status status = AQ_OK;
    if (ttl == 0 || (!all && aq_clock_ns() < server->wipe_ns)) return AQ_OK;
    server->wipe_ns = aq_clock_after(LOOK_S * second_ns);
    clock_gettime(CLOCK_REALTIME, &now); /* as files have it */
    const uint64_t now_ns = (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
    for (uint32_t i = 0; i < server->site_count; i++) {
        const struct site *site = &server->sites[i];
        if (site->pid || !written_last(server, site, &written)) continue;
        if (!all && (now_ns < written || now_ns - written < ttl)) continue;
        const enum aq_status wiped = wipe_one(server, site);
        if (wiped == AQ_OK) continue;
        server_say(server, "%s", aq_error_text());
        server->wipe_ns = aq_clock_after(TRY_AGAIN_S * second_ns);
        status = wiped;
    }
    return all ? status : AQ_OK;
}
