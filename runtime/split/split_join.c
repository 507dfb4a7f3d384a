/*
 * split_join.c -- the input of a client's plan: its own facts of its data, and, with global sampling, those of all
 * clients together.
 *
 * A client joins with a plan of only its own data. With global sampling a batch is drawn over the data of all clients,
 * in order of their names: once split.clients of them are connected, the set is settled, and each gets the count of all
 * samples, and the count before its own. Both ends plan again with that.
 *
 * No other client joins later. A round starts with those of them that are connected: the samples of the others are left
 * out, until they are back at the start of a later round. So a round may have another number of steps than the one
 * before. Steps of the plan are then counted as if all rounds had been as this one (learning rates, orders of samples
 * and evaluations follow), and each client's own steps continue (turn_shift is the difference, and may be negative).
 *
 * A client's facts of its data count while it is connected. The sizes of the network (tokens or classes, labels) are
 * the manifest's; if data decide them, the job has the sizes on which split.clients connected clients agree, or those
 * that the server's owner gives (facts.vocabulary, facts.labels).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "split_private.h"

/* Its share as in its plan. The share of its first round is added if it differs. */
static struct aq_split_share share_of(const struct server *server, const struct site *site)
{
    struct aq_split_share share = {.all = server->all_samples, .first = site->first};
    if (site->began_all == 0 || (site->began_all == share.all && site->began_first == share.first)) return share;
    share.began_all = site->began_all;
    share.began_first = site->began_first;
    return share;
}

enum aq_status join_plan(struct server *server, const struct site *site, const struct aq_split_join *join,
                         bool together, struct aq_split_job *out)
{
    char run[AQ_RUN_PATH_BYTES], labels[AQ_RUN_PATH_BYTES];
    AQ_TRY(state_path(server, run, "clients/%s", site->name));
    AQ_TRY(state_path(server, labels, "labels/%s", site->name));
    const bool has = server->job->split.labels == AQ_SPLIT_LABELS_SERVER;
    const struct aq_split_share share = share_of(server, site);
    if (has) AQ_TRY(aq_run_make_folder(labels));
    const struct aq_split_asked asked = {.manifest = server->config->manifest,
                                         .sets = server->config->sets,
                                         .set_count = server->config->set_count,
                                         .client = site->name,
                                         .run = run,
                                         .labels = has ? labels : NULL,
                                         .facts = &join->facts,
                                         .share = together ? &share : NULL};
    AQ_TRY(aq_split_job_open(&asked, out));
    const enum aq_status status = aq_plan_fits(out->plan, aq_plan_memory_here());
    if (status != AQ_OK) aq_split_job_close(out);
    return status;
}

void join_take(struct site *site, const struct aq_split_join *join, struct aq_split_job *job)
{
    aq_split_job_close(&site->job);
    site->job = *job;
    *job = (struct aq_split_job){0};
    if (join != &site->join) site->join = *join;
    site->samples = join->facts.train_samples;
}

bool join_other_network(const struct server *server, const struct aq_split_join *join, const struct aq_plan *plan)
{
    const struct aq_job_facts *given = &server->job->facts; /* by the server's owner: --set facts.vocabulary=.. */
    if (given->vocabulary && join->facts.vocabulary != given->vocabulary) return true;
    if (given->labels && join->facts.labels != given->labels) return true;
    return (server->vocabulary || server->labels) &&
           (plan->model.vocabulary != server->vocabulary || plan->model.labels != server->labels);
}

bool join_too_many(const struct server *server, const struct site *site, const struct aq_split_join *join)
{
    uint64_t all = join->facts.train_samples;
    if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) return false;
    for (uint32_t i = 0; i < server->site_count; i++)
        if (&server->sites[i] != site && server->sites[i].control) all += server->sites[i].samples;
    return all > UINT32_MAX;
}

/* ---- agreeing ---- */

static bool one_network(const struct site *a, const struct site *b)
{
    return a->job.plan && b->job.plan && a->job.plan->model.vocabulary == b->job.plan->model.vocabulary &&
           a->job.plan->model.labels == b->job.plan->model.labels;
}

/* Those who are here, with the network of this one. */
static uint32_t agree_with(const struct server *server, const struct site *site)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        count += server->sites[i].control && one_network(&server->sites[i], site);
    return count;
}

/* The first client in order of names with whom enough agree, or NULL. */
static struct site *agreed_with(const struct server *server)
{
    for (struct site *site = state_after(server, NULL); site; site = state_after(server, site))
        if (site->control && agree_with(server, site) >= server->job->split.clients) return site;
    return NULL;
}

/* Enough are here, and not of one network: what each has, and who can decide. Once for each change. */
static void say_disagree(struct server *server)
{
    uint32_t here = 0;
    for (uint32_t i = 0; i < server->site_count; i++)
        here += server->sites[i].control != NULL;
    const bool disagree = here >= server->job->split.clients;
    if (disagree && !server->disagree) {
        server_say(
            server,
            "%u clients are connected, and their data make different networks: the first round starts when %u "
            "of one network are connected. To decide which, start the server again with --set facts.vocabulary=N --set "
            "facts.labels=N",
            here, server->job->split.clients);
        for (struct site *site = state_after(server, NULL); site; site = state_after(server, site))
            if (site->control)
                server_say(server, "%s has %u tokens or classes and %u labels", site->name, site->join.facts.vocabulary,
                           site->join.facts.labels);
    }
    server->disagree = disagree;
}

static void drop(struct server *server, struct site *site, const char *text)
{
    if (site->control) {
        server_say(server, "%s (%s) is refused: it %s", site->name, site->peer, text);
        turn_refuse(server, site, text);
    }
    state_forget(server, site);
}

/* Drops clients that differ from this one; with global sampling also those that have left: their samples are in no
 * batch. Returns its new place. */
static struct site *drop_others(struct server *server, const struct site *agreed)
{
    char name[sizeof agreed->name], text[AQ_SPLIT_TEXT_BYTES];
    const uint32_t vocabulary = agreed->job.plan->model.vocabulary, labels = agreed->job.plan->model.labels;
    const bool global = server->job->split.mode == AQ_SPLIT_GLOBAL;
    memcpy(name, agreed->name, sizeof name);
    for (uint32_t i = 0; i < server->site_count;) {
        struct site *site = &server->sites[i];
        const struct aq_plan *plan = site->job.plan;
        const bool other = plan && (plan->model.vocabulary != vocabulary || plan->model.labels != labels);
        if (!other && !(global && !site->control)) {
            i++;
            continue;
        }
        snprintf(text, sizeof text,
                 "has data of another network (%u tokens or classes, %u labels) than the %u clients that the job "
                 "starts with (%u, %u)",
                 plan ? plan->model.vocabulary : 0, plan ? plan->model.labels : 0, server->job->split.clients,
                 vocabulary, labels);
        drop(server, site, text);
    }
    return state_site(server, name);
}

static void claims_text(const struct site *site, uint64_t all, float most, char text[AQ_SPLIT_TEXT_BYTES])
{
    snprintf(text, AQ_SPLIT_TEXT_BYTES,
             "has %" PRIu64 " of the %" PRIu64 " samples of all clients, more than split.share_max: %.2f; if that is "
             "right, give the job a larger split.share_max",
             site->samples, all, (double)most);
}

/* Global sampling: a claim decides how many steps an epoch has, so no one of several may be nearly all of it. */
static bool drop_claims(struct server *server)
{
    bool any = false;
    for (;;) {
        struct site *most = NULL;
        uint64_t all = 0;
        for (uint32_t i = 0; i < server->site_count; i++) {
            all += server->sites[i].samples;
            if (!most || server->sites[i].samples > most->samples) most = &server->sites[i];
        }
        if (server->site_count < 2 || (double)most->samples <= (double)server->job->split.share_max * (double)all)
            return any;
        char text[AQ_SPLIT_TEXT_BYTES];
        claims_text(most, all, server->job->split.share_max, text);
        drop(server, most, text);
        any = true;
    }
}

bool join_agreed(struct server *server)
{
    for (;;) {
        const struct site *agreed = agreed_with(server);
        if (!agreed) {
            say_disagree(server);
            return false;
        }
        if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) {
            (void)drop_others(server, agreed);
            return true;
        }
        (void)drop_others(server, agreed);
        if (!drop_claims(server)) return true;
    }
}

static void tell(struct server *server, struct site *site, const char *why)
{
    const struct aq_split_share share = share_of(server, site);
    json_t *line = json_pack("{s:s, s:I, s:I}", "event", "together", "samples", (json_int_t)share.all, "first",
                             (json_int_t)share.first);
    if (share.began_all) {
        json_object_set_new(line, "began_samples", json_integer((json_int_t)share.began_all));
        json_object_set_new(line, "began_first", json_integer((json_int_t)share.began_first));
    }
    if (why[0]) json_object_set_new(line, "text", json_string(why));
    (void)turn_tell(server, site, line);
}

void join_tell(struct server *server, struct site *site)
{
    if (server->all_samples > 0 && !site->absent) tell(server, site, "");
}

/* ---- with global sampling: whose samples batches are drawn over ---- */

/* Assigns samples to those that are not out, in order of names; each gets its share. */
static enum aq_status settle(struct server *server, const char *why)
{
    uint64_t all = 0;
    uint32_t count = 0;
    for (struct site *site = state_after(server, NULL); site; site = state_after(server, site)) {
        site->first = site->absent ? 0 : all;
        all += site->absent ? 0 : site->samples;
        count += !site->absent;
    }
    server->all_samples = all;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        struct aq_split_job job;
        if (site->absent) continue;
        if (site->began_all == 0) {
            site->began_all = all;
            site->began_first = site->first;
        }
        AQ_TRY(join_plan(server, site, &site->join, true, &job));
        join_take(site, &site->join, &job);
        tell(server, site, why);
    }
    server_say(server, "batches are drawn over %" PRIu64 " samples of %u client%s%s%s", all, count,
               count == 1 ? "" : "s", why[0] ? ": " : "", why);
    return AQ_OK;
}

enum aq_status join_settle(struct server *server)
{
    if (server->job->split.mode != AQ_SPLIT_GLOBAL || server->all_samples > 0) return AQ_OK;
    return settle(server, "");
}

/* Is one of them waited for? Each once, for split.wait. */
static bool some_come(struct server *server)
{
    bool any = false;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        if (site->control || site->absent || site->round >= server->round) continue;
        if (site->deadline_ns == AQ_NEVER) {
            site->deadline_ns = aq_clock_after(server->job->split.wait_ns);
            site->lates += !site->late;
            site->late = true;
            server_say(server, "round %u: waits for %s", server->round, site->name);
        }
        any |= aq_clock_ns() <= site->deadline_ns;
    }
    return any;
}

/* Updates which clients are out, and which are in again. False: nothing has changed. */
static bool changes(struct server *server, char why[AQ_SPLIT_TEXT_BYTES])
{
    uint64_t lost = 0, won = 0;
    uint32_t gone = 0, back = 0;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        const bool absent = !site->control;
        if (absent == site->absent) continue;
        *(absent ? &gone : &back) += 1;
        *(absent ? &lost : &won) += site->samples;
        site->absent = absent;
    }
    int used = 0;
    why[0] = 0;
    if (gone)
        used = snprintf(why, AQ_SPLIT_TEXT_BYTES, "%u away, and %" PRIu64 " samples with %s", gone, lost,
                        gone == 1 ? "it" : "them");
    if (back)
        (void)snprintf(why + used, AQ_SPLIT_TEXT_BYTES - (size_t)used, "%s%u back, and %" PRIu64 " samples with %s",
                       gone ? "; " : "", back, won, back == 1 ? "it" : "them");
    return gone + back > 0;
}

bool join_gathered(struct server *server)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    bool any = false;
    if (server->job->split.mode != AQ_SPLIT_GLOBAL) return true;
    if (some_come(server)) return false;
    for (uint32_t i = 0; i < server->site_count; i++)
        any |= server->sites[i].control != NULL;
    /* If no client is here, those that are in stay in. Those that are out miss this round in any case: a client that
     * comes back in it would get a turn of samples that are in no batch of the round. */
    if (any && changes(server, why) && settle(server, why) != AQ_OK) {
        server_fails(server, NULL);
        return false;
    }
    for (uint32_t i = 0; i < server->site_count && !server->over; i++) {
        struct site *site = &server->sites[i];
        if (site->absent && site->round < server->round)
            turn_miss(server, site, site->why[0] ? site->why : "it is away");
    }
    return !server->over;
}

/* ---- what the server's owner allows ---- */

bool join_claims(const struct server *server, const struct site *site, char why[AQ_SPLIT_TEXT_BYTES])
{
    const struct aq_job_split *split = &server->job->split;
    uint64_t all = 0;
    if (split->mode != AQ_SPLIT_GLOBAL || server->all_samples == 0) return false;
    for (uint32_t i = 0; i < server->site_count; i++)
        all += server->sites[i].samples;
    if (site->samples > split->samples_max)
        snprintf(why, AQ_SPLIT_TEXT_BYTES,
                 "has %" PRIu64 " samples, and the job takes %" PRIu64 " of a client at most (split.samples_max)",
                 site->samples, split->samples_max);
    else if (server->site_count > 1 && (double)site->samples > (double)split->share_max * (double)all)
        claims_text(site, all, split->share_max, why);
    else
        return false;
    return true;
}

/* The round starts again: with other clients it has other batches, so that none of its turns counts. */
static void begin_again(struct server *server)
{
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        site->turns -= site->kept;
        site->kept = false;
        site->begin = site->until = 0;
        if (site->round == server->round) site->round = server->round - 1;
    }
    server->drawn = server->round - 1;
    server->last[0] = 0;
    sums_forget(server);
    server_say(server, "round %u begins again, without them", server->round);
}

enum aq_status join_limits(struct server *server)
{
    char why[AQ_SPLIT_TEXT_BYTES];
    bool any = false;
    for (uint32_t i = 0; i < server->site_count; i++) {
        struct site *site = &server->sites[i];
        if (site->absent || !join_claims(server, site, why)) continue;
        server_say(server, "%s is out of this job: it %s", site->name, why);
        any = site->absent = true;
    }
    if (!any) return AQ_OK;
    uint64_t all = 0;
    for (struct site *site = state_after(server, NULL); site; site = state_after(server, site)) {
        site->first = site->absent ? 0 : all;
        all += site->absent ? 0 : site->samples;
    }
    if (all == 0)
        return aq_fail(AQ_REFUSED, "split",
                       "no client is left that split.samples_max and split.share_max allow: raise them, or start with "
                       "another output.path");
    server->all_samples = all;
    if (server->drawn == server->round) begin_again(server);
    return state_save(server);
}
