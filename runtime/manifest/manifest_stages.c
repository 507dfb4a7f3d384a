/*
 * manifest_stages.c -- pipeline.stages: a count, or a list of entries that must partition the layers. See manifest.h.
 *
 * Every entry makes one struct for each replica (rank = replica x P + stage); a key whose value is a list gives each
 * replica its own. Below: the checks of the cut, and of who listens where.
 */
#include <stdio.h>
#include <string.h>

#include "manifest.h"
#include "net/endpoint.h"
#include "security.h"
#include "ssh_host.h"

enum { PATH_BYTES = 128, KEY_BYTES = 96, LAYERS_BYTES = 48 };

static enum aq_status stages_take(struct aq_manifest *manifest, uint32_t count)
{
    void *memory = NULL;
    const uint32_t W = manifest->job.pipeline.replicas;
    if ((uint64_t)count * W > AQ_JOB_RANKS_MAX) {
        aq_manifest_error(manifest, "pipeline.replicas",
                          "%u replicas of %u stages are %llu workers; at most %u are possible", W, count,
                          (unsigned long long)count * W, AQ_JOB_RANKS_MAX);
        manifest->job.pipeline.replicas = 1;
    }
    const uint32_t ranks = count * manifest->job.pipeline.replicas;
    AQ_TRY(aq_pool_take(&manifest->pool, ranks * sizeof *manifest->stages, &memory));
    manifest->stages = memory;
    AQ_TRY(aq_pool_take(&manifest->pool, count * sizeof *manifest->stage_nodes, &memory));
    manifest->stage_nodes = memory;
    memset(manifest->stages, 0, ranks * sizeof *manifest->stages);
    memset(manifest->stage_nodes, 0, count * sizeof *manifest->stage_nodes);
    for (uint32_t r = 0; r < ranks; r++) {
        manifest->stages[r].device = "cpu";
        manifest->stages[r].speed = 1;
    }
    manifest->job.pipeline.stage_count = count;
    return AQ_OK;
}

static bool digits(const char **at, uint32_t *out)
{
    const size_t bytes = strspn(*at, "0123456789");
    uint32_t value = 0;
    if (bytes == 0 || bytes > 6) return false;
    for (size_t i = 0; i < bytes; i++)
        value = value * 10 + (uint32_t)((*at)[i] - '0');
    *at += bytes;
    *out = value;
    return true;
}

/* "0-2" or "3"; both ends belong to it. */
static bool read_layers(const char *text, struct aq_job_stage *stage)
{
    uint32_t first, last;
    if (!digits(&text, &first)) return false;
    last = first;
    text += strspn(text, " ");
    if (*text == '-') {
        text += 1 + strspn(text + 1, " ");
        if (!digits(&text, &last)) return false;
    }
    if (*text || last < first) return false;
    stage->layer_first = first;
    stage->layer_end = last + 1;
    return true;
}

/* A scalar key of an entry: the same for every replica of the stage, or a list with each one's own. */
static enum aq_status read_key(struct aq_manifest *manifest, uint32_t s, const struct aq_key *key,
                               const struct aq_yaml_node *node, const char *path)
{
    const uint32_t W = manifest->job.pipeline.replicas, P = manifest->job.pipeline.stage_count;
    const bool list = node->kind == AQ_YAML_LIST && W > 1;
    uint32_t count = 0;
    for (const struct aq_yaml_node *at = node->first; list && at; at = at->next)
        count++;
    if (list && count != W) {
        aq_yaml_error(&manifest->errors, node, "%s: %u values for %u replicas (pipeline.replicas); write one, or %u",
                      path, count, W, W);
        return AQ_OK;
    }
    const struct aq_yaml_node *at = list ? node->first : node;
    for (uint32_t w = 0; w < W; w++, at = list ? at->next : at) {
        const uint32_t before = manifest->errors.count;
        AQ_TRY(aq_manifest_scalar(manifest, key, at, path, &manifest->stages[w * P + s]));
        if (manifest->errors.count != before) break; /* once is enough */
    }
    return AQ_OK;
}

static enum aq_status read_entry(struct aq_manifest *manifest, uint32_t s, struct aq_yaml_node *entry)
{
    struct aq_job_stage *stage = &manifest->stages[s];
    manifest->stage_nodes[s] = entry;
    if (entry->kind != AQ_YAML_MAP) {
        aq_yaml_error(&manifest->errors, entry, "pipeline.stages.%u: must be keys, as in {layers: \"0-2\"}", s);
        return AQ_OK;
    }
    for (const struct aq_yaml_node *node = entry->first; node; node = node->next) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "pipeline.stages.%u.%s", s, node->key);
        const struct aq_key *key = aq_key_find(aq_keys_stage(), node->key);
        if (!key) {
            aq_manifest_unknown(manifest, node, path, node->key, aq_keys_stage());
        } else if (key->kind == AQ_KEY_LAYERS) {
            if (node->kind != AQ_YAML_SCALAR || !read_layers(node->text, stage))
                aq_yaml_error(&manifest->errors, node, "%s: must be a range of layers, first to last, as in \"0-2\"",
                              path);
        } else if (aq_key_is_scalar(key)) {
            AQ_TRY(read_key(manifest, s, key, node, path));
        }
    }
    for (uint32_t w = 1; w < manifest->job.pipeline.replicas; w++) {
        struct aq_job_stage *copy = &manifest->stages[w * manifest->job.pipeline.stage_count + s];
        copy->layer_first = stage->layer_first;
        copy->layer_end = stage->layer_end;
    }
    if (!manifest->job.pipeline.automatic && !aq_yaml_child(entry, "layers", 6))
        aq_yaml_error(&manifest->errors, entry,
                      "pipeline.stages.%u: layers is missing, as in layers: \"0-2\": other stages have it", s);
    return AQ_OK;
}

/* Does any entry set its layers? An entry that is no map does not. */
static bool any_layers(const struct aq_yaml_node *list)
{
    for (const struct aq_yaml_node *entry = list->first; entry; entry = entry->next)
        if (entry->kind == AQ_YAML_MAP && aq_yaml_child(entry, "layers", 6)) return true;
    return false;
}

static enum aq_status read_list(struct aq_manifest *manifest, struct aq_yaml_node *list)
{
    uint32_t count = 0;
    for (const struct aq_yaml_node *entry = list->first; entry; entry = entry->next)
        count++;
    if (count == 0 || count > AQ_JOB_STAGES_MAX) {
        aq_yaml_error(&manifest->errors, list, "pipeline.stages: %u entries; 1 to %u are possible", count,
                      AQ_JOB_STAGES_MAX);
        count = 1;
    }
    AQ_TRY(stages_take(manifest, count));
    manifest->job.pipeline.listed = true;
    manifest->job.pipeline.automatic = !any_layers(list);
    struct aq_yaml_node *entry = list->first;
    for (uint32_t s = 0; s < count && entry; s++, entry = entry->next)
        AQ_TRY(read_entry(manifest, s, entry));
    return AQ_OK;
}

enum aq_status aq_manifest_stages(struct aq_manifest *manifest)
{
    struct aq_yaml_node *node = aq_yaml_find(manifest->root, "pipeline.stages");
    if (node && node->kind == AQ_YAML_LIST) return read_list(manifest, node);
    uint32_t count = 1;
    if (node) {
        const char *at = node->kind == AQ_YAML_SCALAR && !node->quoted ? node->text : "";
        if (!digits(&at, &count) || *at || count < 1 || count > AQ_JOB_STAGES_MAX) {
            aq_yaml_error(&manifest->errors, node,
                          "pipeline.stages: must be a count of stages, 1 to %u, or a list of entries with layers",
                          AQ_JOB_STAGES_MAX);
            count = 1;
        }
    }
    AQ_TRY(stages_take(manifest, count));
    manifest->job.pipeline.automatic = true;
    return AQ_OK;
}

/* "layer 3" or "layers 3-5". */
static const char *layers_text(uint32_t first, uint32_t end, char text[LAYERS_BYTES])
{
    if (end - first == 1)
        snprintf(text, LAYERS_BYTES, "layer %u", first);
    else
        snprintf(text, LAYERS_BYTES, "layers %u-%u", first, end - 1);
    return text;
}

/* The ranges must start at 0, follow each other, and end with the last layer. */
static void check_ranges(struct aq_manifest *manifest, uint32_t layers)
{
    const struct aq_job *job = &manifest->job;
    uint32_t end = 0;
    for (uint32_t s = 0; s < job->pipeline.stage_count; s++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[s];
        char key[KEY_BYTES], range[LAYERS_BYTES];
        snprintf(key, sizeof key, "pipeline.stages.%u.layers", s);
        if (stage->layer_first > end)
            aq_manifest_error(manifest, key, "a gap: starts at layer %u, but no stage has %s", stage->layer_first,
                              layers_text(end, stage->layer_first, range));
        else if (stage->layer_first < end)
            aq_manifest_error(manifest, key, "an overlap: %s belong%s to an earlier stage; start at layer %u",
                              layers_text(stage->layer_first, stage->layer_end < end ? stage->layer_end : end, range),
                              end - stage->layer_first == 1 ? "s" : "", end);
        if (stage->layer_end > layers)
            aq_manifest_error(manifest, key, "ends at layer %u, but %u is the model's last", stage->layer_end - 1,
                              layers - 1);
        if (stage->layer_end > end) end = stage->layer_end;
        if (s + 1 == job->pipeline.stage_count && end < layers)
            aq_manifest_error(manifest, key, "a gap: the last stage ends at layer %u, but no stage has %s", end - 1,
                              layers_text(end, layers, range));
    }
}

void aq_manifest_check_cut(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t layers = aq_model_layers(&job->model.config), stages = job->pipeline.stage_count;
    if (stages > layers)
        aq_manifest_error(manifest, "pipeline.stages", "%u stages, but this %s has only %u layers", stages,
                          job->model.config.kind, layers);
    else if (!job->pipeline.automatic)
        check_ranges(manifest, layers);
}

/* One address of a stage (NULL: it has none), read as those will read it who use it. */
static void check_endpoint(struct aq_manifest *manifest, uint32_t stage, const char *name, const char *text,
                           bool dialled)
{
    struct aq_endpoint endpoint;
    char key[KEY_BYTES];
    const char *why;
    if (!text) return;
    snprintf(key, sizeof key, "pipeline.stages.%u.%s", stage, name);
    if (aq_endpoint_parse(text, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, key, "'%.80s' is not an address: %s", text, why);
    else if (dialled && endpoint.port == 0)
        aq_manifest_error(manifest, key, "'%.80s': port 0 cannot be reached", text);
    else if (!dialled && endpoint.name[0])
        aq_manifest_error(manifest, key, "'%.80s': a name before '@' is only for daemons (host)", text);
}

/* Of a host that the launcher starts an agent on. */
static void check_agent(struct aq_manifest *manifest, uint32_t stage, const char *text)
{
    struct aq_ssh_host agent;
    char key[KEY_BYTES];
    const char *why;
    snprintf(key, sizeof key, "pipeline.stages.%u.host", stage);
    if (aq_ssh_parse(text, &agent, &why) != AQ_OK)
        aq_manifest_error(manifest, key, "'%.80s' is not a host: %s", text, why);
}

void aq_manifest_check_endpoints(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_endpoint endpoint;
    const char *why;
    for (uint32_t r = 0; r < aq_job_ranks(job) && manifest->errors.count == 0; r++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[r];
        if (aq_ssh_is(stage->host))
            check_agent(manifest, r % job->pipeline.stage_count, stage->host);
        else
            check_endpoint(manifest, r % job->pipeline.stage_count, "host", stage->host, true);
        check_endpoint(manifest, r % job->pipeline.stage_count, "address", stage->address, false);
    }
    const char *host = job->link.host ? job->link.host : "";
    if (aq_endpoint_parse_host(host, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, "link.host", "'%.80s' is not a host: %s", host, why);
}

/* Port 0 is another port for each. */
static bool same_address(const char *a, const char *b)
{
    struct aq_endpoint endpoint;
    const char *why;
    if (!a || !b || strcmp(a, b) != 0) return false;
    return aq_endpoint_parse(a, &endpoint, &why) != AQ_OK || endpoint.port != 0;
}

void aq_manifest_check_addresses(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t ranks = aq_job_ranks(job), P = job->pipeline.stage_count;
    if (job->link.port_first && job->link.port_first + ranks - 1 > 65535)
        aq_manifest_error(manifest, "link.port_first", "%u %s need ports up to %u; 65535 is the last", ranks,
                          ranks > P ? "workers" : "stages", job->link.port_first + ranks - 1);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t other = 0; other < r; other++) {
            const char *a = job->pipeline.stages[r].address, *b = job->pipeline.stages[other].address;
            char key[KEY_BYTES];
            if (!same_address(a, b)) continue;
            snprintf(key, sizeof key, "pipeline.stages.%u.address", r % P);
            if (r % P == other % P)
                aq_manifest_error(manifest, key,
                                  "%s is the address of replicas %u and %u; write a list of %u addresses", a, other / P,
                                  r / P, job->pipeline.replicas);
            else
                aq_manifest_error(manifest, key, "%s is the address of stage %u already", a, other % P);
            return; /* replicas mostly repeat it */
        }
}

/* A relay's address, and what keeps values from it. */
static void check_relay(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    struct aq_endpoint endpoint;
    const char *why;
    if (aq_endpoint_parse(job->link.relay, &endpoint, &why) != AQ_OK)
        aq_manifest_error(manifest, "link.relay", "'%.80s' is not an address: %s", job->link.relay, why);
    else if (endpoint.name[0] || endpoint.port == 0 || strcmp(endpoint.host, "*") == 0)
        aq_manifest_error(manifest, "link.relay", "'%.80s' is not the host:port of a relay", job->link.relay);
    else if (!aq_security_on(job) || !job->security.keys)
        aq_manifest_error(manifest, "link.relay",
                          "needs security.keys (aqpipe keys init makes them): only TLS between the stages keeps their "
                          "values from the relay");
}

/* On every edge one of the two must listen, or both meet at the relay. */
void aq_manifest_check_dials(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    const uint32_t P = job->pipeline.stage_count;
    if (job->link.relay) check_relay(manifest);
    for (uint32_t r = 0; r < aq_job_ranks(job); r++) {
        const struct aq_job_stage *stage = &job->pipeline.stages[r];
        char key[KEY_BYTES];
        snprintf(key, sizeof key, "pipeline.stages.%u.dials", r % P);
        for (uint32_t other = 0; other < r && !job->link.relay; other++) {
            if (!aq_job_relayed(job, r, other)) continue;
            if (other / P == r / P)
                aq_manifest_error(manifest, key,
                                  "stage %u dials too, and of two neighbours one must listen: put a stage that can be "
                                  "reached between them, or name a relay (link.relay: host:port)",
                                  other % P);
            else
                aq_manifest_error(manifest, key,
                                  "replicas %u and %u both dial, but one of two replicas of a stage must listen, or "
                                  "both need a relay (link.relay: host:port)",
                                  other / P, r / P);
            return; /* replicas mostly repeat it */
        }
        if (!stage->dials || !stage->address) continue;
        snprintf(key, sizeof key, "pipeline.stages.%u.address", r % P);
        aq_manifest_error(manifest, key, "stage %u dials: it listens nowhere", r % P);
        return;
    }
}
