/*
 * split_join.c -- what a client's turns are planned with: what it says of its data, and, with global sampling, what
 * all clients together have.
 *
 * A client joins with a plan of its own data alone. With global sampling a batch is drawn over the data of all, one
 * client's behind the other's in order of their names: once split.clients of them are here, who they are is settled for
 * the whole job, and each is told how many samples there are in all, and how many lie before its own. Both ends plan
 * again with that.
 */
#include <inttypes.h>
#include <string.h>

#include "split_private.h"

enum aq_status join_plan(struct server *server, struct site *site, const struct aq_split_join *join, bool together)
{
    char run[AQ_RUN_PATH_BYTES], labels[AQ_RUN_PATH_BYTES];
    struct aq_split_job job = {0};
    AQ_TRY(state_path(server, run, "clients/%s", site->name));
    AQ_TRY(state_path(server, labels, "labels/%s", site->name));
    const bool has = server->job->split.labels == AQ_SPLIT_LABELS_SERVER;
    if (has) AQ_TRY(aq_run_make_folder(labels));
    const struct aq_split_asked asked = {.manifest = server->config->manifest,
                                         .sets = server->config->sets,
                                         .set_count = server->config->set_count,
                                         .client = site->name,
                                         .run = run,
                                         .labels = has ? labels : NULL,
                                         .facts = &join->facts,
                                         .all_samples = together ? server->all_samples : 0,
                                         .first_sample = together ? site->first : 0};
    AQ_TRY(aq_split_job_open(&asked, &job));
    aq_split_job_close(&site->job);
    site->job = job;
    if (join != &site->join) site->join = *join;
    site->samples = join->facts.train_samples;
    return AQ_OK;
}

/* Its place among all clients, where that is settled: planned with, and told. */
enum aq_status join_together(struct server *server, struct site *site)
{
    if (server->all_samples == 0) return AQ_OK;
    AQ_TRY(join_plan(server, site, &site->join, true));
    (void)turn_tell(server, site,
                    json_pack("{s:s, s:I, s:I}", "event", "together", "samples", (json_int_t)server->all_samples,
                              "first", (json_int_t)site->first));
    return AQ_OK;
}

/* The next one behind `before` by name. */
static struct site *after(struct server *server, const struct site *before)
{
    struct site *next = NULL;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        if (before && strcmp(site->name, before->name) <= 0) continue;
        if (!next || strcmp(site->name, next->name) < 0) next = site;
    }
    return next;
}

enum aq_status join_settle(struct server *server)
{
    if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) return AQ_OK;
    uint64_t all = 0;
    for (struct site *site = after(server, NULL); site; site = after(server, site)) {
        site->first = all;
        all += site->samples;
    }
    server->all_samples = all;
    for (uint32_t i = 0; i < server->site_count; i++)
        AQ_TRY(join_together(server, &server->sites[i]));
    server_say(server, "batches are drawn over %" PRIu64 " samples of %u clients", all, server->site_count);
    return AQ_OK;
}
