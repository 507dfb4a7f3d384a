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

enum aq_status join_plan(struct server *server, const struct site *site, const struct aq_split_join *join,
                         bool together, struct aq_split_job *out)
{
    char run[AQ_RUN_PATH_BYTES], labels[AQ_RUN_PATH_BYTES];
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
    return aq_split_job_open(&asked, out);
}

void join_take(struct site *site, const struct aq_split_join *join, struct aq_split_job *job)
{
    aq_split_job_close(&site->job);
    site->job = *job;
    *job = (struct aq_split_job){0};
    if (join != &site->join) site->join = *join;
    site->samples = join->facts.train_samples;
}

bool join_other_network(const struct server *server, const struct site *site, const struct aq_plan *plan)
{
    uint32_t vocabulary = server->vocabulary, labels = server->labels;
    for (uint32_t i = 0; i < server->site_count && !vocabulary && !labels; i++) { /* who is here before round 1 */
        const struct site *other = &server->sites[i];
        if (other == site || !other->job.plan) continue;
        vocabulary = other->job.plan->model.vocabulary;
        labels = other->job.plan->model.labels;
    }
    return (vocabulary || labels) && (plan->model.vocabulary != vocabulary || plan->model.labels != labels);
}

bool join_too_many(const struct server *server, const struct site *site, const struct aq_split_join *join)
{
    uint64_t all = join->facts.train_samples;
    if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) return false;
    for (uint32_t i = 0; i < server->site_count; i++)
        if (&server->sites[i] != site) all += server->sites[i].samples;
    return all > UINT32_MAX;
}

void join_tell(struct server *server, struct site *site)
{
    if (server->all_samples == 0) return;
    (void)turn_tell(server, site,
                    json_pack("{s:s, s:I, s:I}", "event", "together", "samples", (json_int_t)server->all_samples,
                              "first", (json_int_t)site->first));
}

enum aq_status join_settle(struct server *server)
{
    if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) return AQ_OK;
    uint64_t all = 0;
    for (struct site *site = state_after(server, NULL); site; site = state_after(server, site)) {
        site->first = all;
        all += site->samples;
    }
    server->all_samples = all;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        struct aq_split_job job;
        AQ_TRY(join_plan(server, site, &site->join, true, &job));
        join_take(site, &site->join, &job);
        join_tell(server, site);
    }
    server_say(server, "batches are drawn over %" PRIu64 " samples of %u clients", all, server->site_count);
    return AQ_OK;
}
