/*
 * manifest_stages.c -- pipeline.stages: a count, or a list of entries that must partition the layers. See manifest.h.
 *
 * Every entry makes one struct for each replica (rank = replica x P + stage); a key whose value is a list gives each
 * replica its own.
 */
#include <stdio.h>
#include <string.h>

#include "manifest.h"

enum { PATH_BYTES = 128 };

static enum aq_status stages_take(struct aq_manifest *manifest, uint32_t count)
{
    void *memory = NULL;
    const uint32_t W = manifest->job.pipeline.replicas;
    if ((uint64_t)count * W > AQ_JOB_RANKS_MAX) {
        aq_manifest_error(manifest, "pipeline.replicas", "%u replicas of %u stages are %llu workers; at most %u can be",
                          W, count, (unsigned long long)count * W, AQ_JOB_RANKS_MAX);
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
        aq_yaml_error(&manifest->errors, list, "pipeline.stages: %u entries; 1 to %u can be", count, AQ_JOB_STAGES_MAX);
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
