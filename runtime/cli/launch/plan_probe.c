/*
 * plan_probe.c -- see the header: pairs of ranks, the launcher's probe of them, and what a person makes of it.
 */
#include "plan_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "launcher_probe.h"
#include "net/tls.h"
#include "run_folder.h"
#include "table.h"

/* Told from what: a distance, a rate, a loss, two directions. */
static const double near_ms = 1, apart_ms = 2, apart_times = 1.25, slower = 0.9, quicker = 1.25, lossy = 1e-4,
                    most_lossy = 0.3, lopsided = 1.5, fast_mbps = 1000;

struct aq_probe_told {
    uint32_t stages, replicas, count;
    double rate_mbps; /* declared; 0: none */
    float *declared;  /* of each pair: its round trip, as the manifest has it */
    struct aq_probe_pair *pairs;
    char *addresses; /* AQ_ADDRESS of each pair's listener, as declared; "": the system's port */
};

enum { WHERE_BYTES = 300 };

static bool measured(const struct aq_probe_pair *pair)
{
    return pair->outcome == AQ_PROBE_MEASURED || pair->outcome == AQ_PROBE_BLACK_HOLE;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

static void where_meet(const struct aq_job *job, uint32_t a, uint32_t b, char *out)
{
    const uint32_t rank = aq_job_listener(job, a, b);
    const struct aq_job_stage *stage = &job->pipeline.stages[rank];
    if (aq_job_relayed(job, a, b))
        snprintf(out, WHERE_BYTES, "the relay %s", job->link.relay);
    else if (stage->address)
        snprintf(out, WHERE_BYTES, "%s", stage->address);
    else if (job->link.port_first)
        snprintf(out, WHERE_BYTES, "%s:%u", job->link.host, job->link.port_first + rank);
    else
        snprintf(out, WHERE_BYTES, "%s, at a port that the system chooses", job->link.host);
}

/* Every two that have a link, the neighbours first. */
static void pairs_fill(const struct aq_job *job, struct aq_probe_told *told)
{
    const uint32_t ranks = aq_job_ranks(job), P = told->stages;
    for (int groups = 0; groups < 2; groups++)
        for (uint32_t a = 0; a < ranks; a++)
            for (uint32_t b = a + 1; b < ranks; b++) {
                if (!aq_job_linked(job, a, b) || (a / P != b / P) != groups) continue;
                told->declared[told->count] = groups ? job->link.rtt_ms : job->edges[a % P].rtt_ms;
                where_meet(job, a, b, &told->addresses[told->count * WHERE_BYTES]);
                told->pairs[told->count++] =
                    (struct aq_probe_pair){.from = a, .to = b, .listener = aq_job_listener(job, a, b)};
            }
}

static enum aq_status told_open(const struct aq_job *job, struct aq_probe_told **out)
{
    const uint32_t count = aq_job_links(job);
    void *memory;
    AQ_TRY(aq_alloc(sizeof(struct aq_probe_told) + count * (sizeof(struct aq_probe_pair) + sizeof(float) + WHERE_BYTES),
                    &memory));
    struct aq_probe_told *told = memory;
    told->pairs = (struct aq_probe_pair *)(told + 1);
    told->declared = (float *)(told->pairs + count);
    told->addresses = (char *)(told->declared + count);
    told->stages = job->pipeline.stage_count;
    told->replicas = job->pipeline.replicas;
    told->rate_mbps = job->link.rate_mbps;
    pairs_fill(job, told);
    *out = told;
    return AQ_OK;
}

static enum aq_status run(const struct aq_job *job, const struct aq_plan *plan, const struct aq_launch *with,
                          struct aq_probe_told *told)
{
    const char *hosts[AQ_JOB_RANKS_MAX];
    char cause[1024], *manifest;
    struct aq_progress progress = {0};
    AQ_TRY(aq_plan_manifest(plan, &manifest));
    for (uint32_t r = 0; r < plan->ranks; r++)
        hosts[r] = job->pipeline.stages[r].host;
    struct aq_launch launch = *with;
    launch.hosts = hosts;
    launch.manifest = manifest;
    launch.progress = &progress;
    aq_progress_begin(&progress);
    const enum aq_status status = aq_probe_run(&launch, told->pairs, told->count, cause, sizeof cause);
    aq_progress_end(&progress);
    aq_free(manifest);
    if (status == AQ_OK || (cause[0] && strstr(aq_error_text(), cause))) return status; /* logged where it happened */
    return aq_fail(status, "probe", "%s", cause);
}

enum aq_status aq_plan_probe(struct aq_job *job, const struct aq_plan *plan, const char *token_file,
                             struct aq_probe_told **out)
{
    static struct aq_token token;
    char daemon[AQ_RUN_PATH_BYTES];
    struct aq_launch launch = {.name = job->name,
                               .stages = plan->stage_count,
                               .replicas = plan->replicas,
                               .plan_hash = aq_plan_hash(plan),
                               .run = job->output.path,
                               .checkpoint = job->output.path,
                               .daemon = daemon,
                               .probe = true,
                               .token = &token,
                               .signals = -1};
    if (plan->ranks < 2) return aq_fail(AQ_INVAL, "probe", "a job of one rank has no links");
    if (token_file) AQ_TRY(aq_token_load(token_file, &token));
    AQ_TRY(aq_daemon_program(daemon));
    AQ_TRY(aq_launcher_keys(job, &launch.tls));
    struct aq_probe_told *told = NULL;
    enum aq_status status = told_open(job, &told);
    if (status == AQ_OK) status = run(job, plan, &launch, told);
    aq_tls_close(launch.tls);
    *out = told;
    return status;
}

void aq_probe_told_close(struct aq_probe_told *told)
{
    aq_free(told);
}

bool aq_probe_told_well(const struct aq_probe_told *told)
{
    for (uint32_t i = 0; i < told->count; i++)
        if (told->pairs[i].outcome != AQ_PROBE_MEASURED) return false;
    return true;
}

/* --- what follows ------------------------------------------------------------------------------------------------- */

static double slower_way(const struct aq_probe_pair *pair)
{
    return fmin(pair->figures[0].rate_mbps, pair->figures[1].rate_mbps);
}

/* The value for a manifest: near peers are 0, others to a tenth of a millisecond. */
static float distance_of(const struct aq_probe_pair *pair)
{
    return pair->trips->rtt_ms < near_ms ? 0.0F : (float)(round(pair->trips->rtt_ms * 10) / 10);
}

static bool is_group(const struct aq_probe_told *told, const struct aq_probe_pair *pair)
{
    return pair->from / told->stages != pair->to / told->stages;
}

static double rate_of(const struct aq_probe_told *told)
{
    double rate = INFINITY;
    for (uint32_t i = 0; i < told->count; i++)
        if (measured(&told->pairs[i])) rate = fmin(rate, slower_way(&told->pairs[i]));
    return isfinite(rate) ? fmax(round(rate * 10), 1) / 10 : told->rate_mbps; /* 0 would be no limit */
}

/* The loss of the worse direction, with its load halved; a very small loss counts as 0. */
static float loss_of(const struct aq_probe_pair *pair)
{
    const double loss = fmax(aq_probe_loss(&pair->figures[0]), aq_probe_loss(&pair->figures[1]));
    return loss > lossy ? (float)fmin(loss, most_lossy) : 0.0F; /* not of NaN */
}

/* Of every edge the most over replicas; what was not measured stays as it was declared. */
static void losses(const struct aq_probe_told *told, const struct aq_job *job, float *edges)
{
    bool seen[AQ_JOB_STAGES_MAX] = {false};
    for (uint32_t e = 0; e + 1 < told->stages; e++)
        edges[e] = job->edges[e].loss;
    for (uint32_t i = 0; i < told->count; i++) {
        const struct aq_probe_pair *pair = &told->pairs[i];
        const uint32_t e = pair->from % told->stages;
        if (!measured(pair) || is_group(told, pair)) continue;
        edges[e] = seen[e] ? fmaxf(edges[e], loss_of(pair)) : loss_of(pair);
        seen[e] = true;
    }
}

/* Of every edge the longest over replicas; what was not measured stays as it was declared. */
static void distances(const struct aq_probe_told *told, const struct aq_job *job, float *edges, float *group)
{
    bool seen[AQ_JOB_STAGES_MAX] = {false}, seen_group = false;
    *group = job->link.rtt_ms;
    for (uint32_t e = 0; e + 1 < told->stages; e++)
        edges[e] = job->edges[e].rtt_ms;
    for (uint32_t i = 0; i < told->count; i++) {
        const struct aq_probe_pair *pair = &told->pairs[i];
        if (!measured(pair)) continue;
        const bool of_group = is_group(told, pair);
        float *to = of_group ? group : &edges[pair->from % told->stages];
        bool *known = of_group ? &seen_group : &seen[pair->from % told->stages];
        *to = *known ? fmaxf(*to, distance_of(pair)) : distance_of(pair);
        *known = true;
    }
}

void aq_probe_told_use(const struct aq_probe_told *told, struct aq_job *job)
{
    float edges[AQ_JOB_STAGES_MAX], lost[AQ_JOB_STAGES_MAX], group;
    distances(told, job, edges, &group);
    losses(told, job, lost);
    aq_job_measured(job, edges, group, lost, rate_of(told));
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

/* "stage 1", or "replica 1 stage 0". */
static const char *name_of(const struct aq_probe_told *told, uint32_t rank, char text[48])
{
    if (told->replicas > 1)
        snprintf(text, 48, "replica %u stage %u", rank / told->stages, rank % told->stages);
    else
        snprintf(text, 48, "stage %u", rank);
    return text;
}

static void row(const struct aq_probe_told *told, uint32_t i, struct aq_table *table)
{
    const struct aq_probe_pair *pair = &told->pairs[i];
    const bool known = measured(pair);
    const double none = (double)NAN;
    const struct aq_probe_figures *trips = pair->trips, *f = pair->figures;
    if (is_group(told, pair))
        aq_table_cell(table, "replicas");
    else
        aq_table_cell(table, "%u", pair->from % told->stages);
    aq_table_cell(table, "%u-%u", pair->from, pair->to);
    aq_table_figure(table, known ? trips->rtt_min_ms : none, 1, " ms");
    aq_table_figure(table, known ? trips->rtt_ms : none, 1, " ms");
    aq_table_figure(table, known ? trips->jitter_ms : none, 1, " ms");
    aq_table_figure(table, known ? f[0].rate_mbps : none, 1, "");
    aq_table_figure(table, known ? f[1].rate_mbps : none, 1, "");
    aq_table_figure(table, known ? 100 * aq_probe_loss(&f[0]) : none, 2, " %");
    aq_table_figure(table, known ? 100 * aq_probe_loss(&f[1]) : none, 2, " %");
    aq_table_cell(table, "%s", known ? f[0].congestion : "-");
    aq_table_cell(table, known ? "%u" : "-", f[0].streams);
    aq_table_figure(table, (double)told->declared[i], 1, " ms");
}

enum { COLUMNS = 12 };

static void print_table(const struct aq_probe_told *told, unsigned columns, struct aq_text *text)
{
    static const char *const heads[COLUMNS] = {"edge", "ranks",   "rtt min", "median",     "jitter",  "Mbit/s up",
                                               "down", "lost up", "down",    "congestion", "streams", "declared"};
    struct aq_table table = {.columns = COLUMNS, .left = 3 | 1 << 9, .keys = 2};
    for (int c = 0; c < COLUMNS; c++)
        aq_table_cell(&table, "%s", heads[c]);
    for (uint32_t i = 0; i < told->count; i++)
        row(told, i, &table);
    aq_table_print(&table, columns, text);
    aq_table_deinit(&table);
}

/* One finding of a pair: a sentence, and what to do. */
struct finding {
    char text[1400], remedy[400];
};
enum { FINDINGS_MAX = 5 };

static void failed_find(const struct aq_probe_told *told, uint32_t i, struct finding *out)
{
    const struct aq_probe_pair *pair = &told->pairs[i];
    const char *where = &told->addresses[i * WHERE_BYTES];
    char who[48];
    snprintf(out->text, sizeof out->text, "not measured: %s", pair->text[0] ? pair->text : "after another failure");
    if (pair->status == AQ_TIMEOUT || pair->status == AQ_REFUSED)
        snprintf(out->remedy, sizeof out->remedy,
                 "%s listens at %s: let TCP through to there in the firewalls on the way, or correct its address",
                 name_of(told, pair->listener, who), where);
    else if (pair->status == AQ_TLSERR)
        snprintf(out->remedy, sizeof out->remedy, "both ends need a stage-N.pem of one authority (aqpipe keys)");
    else if (pair->status == AQ_PROTO)
        snprintf(out->remedy, sizeof out->remedy, "the same aqpipe on both machines; if it is, do not trust that one");
}

static void hole_find(const struct aq_probe_pair *pair, struct finding *out)
{
    snprintf(out->text, sizeof out->text,
             "MTU black hole: packets with %u bytes come through, larger ones vanish without a word (%s)",
             pair->figures[0].segment, pair->text);
    snprintf(
        out->remedy, sizeof out->remedy,
        "sysctl -w net.ipv4.tcp_mtu_probing=1 on both machines; or a lower MTU of their interfaces (ip link set DEV "
        "mtu 1280); or let ICMP \"fragmentation needed\" through the firewalls");
}

static uint32_t declared_find(const struct aq_probe_told *told, uint32_t i, struct finding *out)
{
    const struct aq_probe_pair *pair = &told->pairs[i];
    const double said = (double)told->declared[i], rtt = pair->trips->rtt_ms, rate = slower_way(pair);
    uint32_t count = 0;
    if (fabs(rtt - said) > apart_ms && (rtt > apart_times * said || said > apart_times * rtt)) {
        snprintf(out[count].text, sizeof out->text, "the round trip is %.1f ms, declared are %.1f", rtt, said);
        snprintf(out[count++].remedy, sizeof out->remedy,
                 is_group(told, pair) ? "link.rtt_ms: %.1f" : "rtt_ms: %.1f, below", (double)distance_of(pair));
    }
    if (told->rate_mbps > 0 && rate < slower * told->rate_mbps) {
        snprintf(out[count].text, sizeof out->text, "it carries %.1f Mbit/s, declared are %g", rate, told->rate_mbps);
        snprintf(out[count++].remedy, sizeof out->remedy, "link.rate_mbps: %.1f", rate);
    } else if (told->rate_mbps > 0 && rate > quicker * told->rate_mbps) {
        snprintf(out[count].text, sizeof out->text, "it carries %.1f Mbit/s, and link.rate_mbps holds it to %g", rate,
                 told->rate_mbps);
        snprintf(out[count++].remedy, sizeof out->remedy, "link.rate_mbps: %.1f, if the job may have all of it", rate);
    }
    return count;
}

static uint32_t find(const struct aq_probe_told *told, uint32_t i, struct finding *out)
{
    const struct aq_probe_pair *pair = &told->pairs[i];
    const struct aq_probe_figures *f = pair->figures;
    uint32_t count = 0;
    if (!measured(pair)) {
        failed_find(told, i, out);
        return 1;
    }
    if (pair->outcome == AQ_PROBE_BLACK_HOLE) hole_find(pair, &out[count++]);
    if (aq_probe_moved(pair)) {
        snprintf(out[count].text, sizeof out->text,
                 "the round trip has changed while it was measured: %.1f ms before the load, %.1f after it",
                 pair->trips->rtt_ms, pair->trips->rtt_after_ms);
        snprintf(out[count++].remedy, sizeof out->remedy, "measure again; the plan below takes the first figure");
    }
    count += declared_find(told, i, &out[count]);
    const double more = fmax(f[0].rate_mbps, f[1].rate_mbps);
    if (more > lopsided * slower_way(pair))
        snprintf(
            out[count++].text, sizeof out->text,
            "its directions differ: %.1f Mbit/s from rank %u to rank %u, %.1f back; a plan knows one rate, the slower",
            f[0].rate_mbps, pair->from, pair->to, f[1].rate_mbps);
    const double loss = fmax(aq_probe_loss(&f[0]), aq_probe_loss(&f[1]));
    if (loss > lossy && strncmp(f[0].congestion, "bbr", 3) != 0 && count < FINDINGS_MAX) {
        snprintf(out[count].text, sizeof out->text,
                 "%.2f %% of its bytes were lost, and %s takes that for a full queue", 100 * loss, f[0].congestion);
        snprintf(out[count++].remedy, sizeof out->remedy,
                 "link.congestion: bbr (docs/NETWORKS.md), where the loss is not the load's own");
    }
    return count;
}

/* The keys to write into the manifest, from all measurements. */
static void print_manifest(const struct aq_probe_told *told, struct aq_text *text)
{
    float longest[AQ_JOB_STAGES_MAX] = {0}, link = 0;
    bool any = false, group = false;
    for (uint32_t i = 0; i < told->count; i++) {
        const struct aq_probe_pair *pair = &told->pairs[i];
        if (!measured(pair)) continue;
        any = true;
        if (!is_group(told, pair))
            longest[pair->from % told->stages] = fmaxf(longest[pair->from % told->stages], distance_of(pair));
        else
            link = fmaxf(link, distance_of(pair));
        group |= is_group(told, pair);
    }
    if (!any) return;
    if (!group) link = longest[0];
    aq_text_add(text, "for the manifest:\n  link: {rtt_ms: %.1f", (double)link);
    if (rate_of(told) < fast_mbps) aq_text_add(text, ", rate_mbps: %.1f", rate_of(told));
    aq_text_add(text, "}\n");
    bool first = true;
    for (uint32_t e = 0; e + 1 < told->stages; e++) {
        if (fabsf(longest[e] - link) <= 0.05F * link) continue;
        aq_text_add(text, "%s{edge: %u, rtt_ms: %.1f}", first ? "  edges: {list: [" : ", ", e, (double)longest[e]);
        first = false;
    }
    if (!first) aq_text_add(text, "]}\n");
}

bool aq_probe_told_any(const struct aq_probe_told *told)
{
    for (uint32_t i = 0; i < told->count; i++)
        if (measured(&told->pairs[i])) return true;
    return false;
}

enum aq_status aq_probe_told_print(const struct aq_probe_told *told, unsigned columns, struct aq_text *text)
{
    struct finding findings[FINDINGS_MAX];
    char from[48], to[48];
    print_table(told, columns, text);
    for (uint32_t i = 0; i < told->count; i++) {
        memset(findings, 0, sizeof findings);
        const uint32_t count = find(told, i, findings);
        for (uint32_t k = 0; k < count; k++) {
            aq_text_add(text, "%s to %s: %s\n", name_of(told, told->pairs[i].from, from),
                        name_of(told, told->pairs[i].to, to), findings[k].text);
            if (findings[k].remedy[0]) aq_text_add(text, "  remedy: %s\n", findings[k].remedy);
        }
    }
    aq_text_add(text,
                "up: from the lower rank to the higher, one pair after the other, over the links' own connections; "
                "times are each end's monotonic clock\n");
    print_manifest(told, text);
    return text->status;
}

static json_t *pair_json(const struct aq_probe_told *told, uint32_t i)
{
    static const char *const outcomes[] = {"not measured", "measured", "mtu black hole", "not measured"};
    const struct aq_probe_pair *pair = &told->pairs[i];
    struct finding findings[FINDINGS_MAX] = {0};
    json_t *object =
        json_pack("{s:i, s:i, s:s, s:s, s:f}", "from", pair->from, "to", pair->to, "outcome", outcomes[pair->outcome],
                  "listens", &told->addresses[i * WHERE_BYTES], "declared_rtt_ms", (double)told->declared[i]);
    if (!is_group(told, pair)) json_object_set_new(object, "edge", json_integer(pair->from % told->stages));
    if (measured(pair)) {
        const struct aq_probe_figures *t = pair->trips, *f = pair->figures;
        json_object_set_new(object, "rtt_ms",
                            json_pack("{s:f, s:f, s:f, s:f}", "min", t->rtt_min_ms, "median", t->rtt_ms, "jitter",
                                      t->jitter_ms, "after_load", t->rtt_after_ms));
        json_object_set_new(object, "rate_mbps", json_pack("{s:f, s:f}", "up", f[0].rate_mbps, "down", f[1].rate_mbps));
        json_object_set_new(object, "loss",
                            json_pack("{s:o, s:o, s:o, s:o}", "up", aq_control_number(aq_probe_loss(&f[0])), "down",
                                      aq_control_number(aq_probe_loss(&f[1])), "up_full_load",
                                      aq_control_number(aq_probe_loss_full(&f[0])), "down_full_load",
                                      aq_control_number(aq_probe_loss_full(&f[1]))));
        json_object_set_new(object, "congestion",
                            json_pack("{s:s, s:s}", "up", f[0].congestion, "down", f[1].congestion));
        json_object_set_new(object, "segment", json_integer(f[0].segment));
        json_object_set_new(object, "streams", json_integer(f[0].streams));
    }
    json_t *list = json_array();
    const uint32_t count = find(told, i, findings);
    for (uint32_t k = 0; k < count; k++)
        json_array_append_new(list, json_pack("{s:s, s:s?}", "found", findings[k].text, "remedy",
                                              findings[k].remedy[0] ? findings[k].remedy : NULL));
    json_object_set_new(object, "findings", list);
    return object;
}

json_t *aq_probe_told_json(const struct aq_probe_told *told)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < told->count; i++)
        json_array_append_new(list, pair_json(told, i));
    return list;
}
