/*
 * manifest_edges.c -- the codecs of every edge, from edges.forward and .backward, edges.list, and a stage's own keys.
 *
 * A codec is made from layers of keys, the later wins: the keys of all edges, then this edge's entry, then an end's own
 * view. Kind and bits are looked up first, because the defaults depend on them. Both ends are made apart and compared.
 *
 * A job without codec keys, neither for all edges nor in a stage's view, has entropy-coded ones, and an entry of
 * edges.list changes the keys that it names. If a codec or bits are set, the other keys default to the published
 * values: so `edges.forward.codec: aqsgd` with no other key is the published setting, and older jobs keep their
 * meaning.
 */
#include <stdio.h>
#include <string.h>

#include "manifest.h"

enum { PATH_BYTES = 128, KEY_BYTES = 96, LAYERS_MAX = 3, TEXT_BYTES = 160, GRADIENT_PRESCALE_LOG2 = 16 };

struct layers {
    struct aq_yaml_node *nodes[LAYERS_MAX]; /* NULL: no keys */
    bool backward;
    bool said;             /* of codecs, somewhere in the job */
    int32_t prescale_log2; /* the default, if they do not set it */
};

/* Does any layer name this key? */
static bool names(const struct layers *layers, const char *key)
{
    for (uint32_t i = 0; i < LAYERS_MAX; i++) {
        struct aq_yaml_node *section = layers->nodes[i];
        if (section && section->kind == AQ_YAML_MAP && aq_yaml_child(section, key, strlen(key))) return true;
    }
    return false;
}

static void tell_activations(struct aq_manifest *manifest, const struct aq_yaml_node *node, const char *path,
                             const struct aq_codec_about *about)
{
    char others[TEXT_BYTES];
    int used = 0;
    enum aq_codec_kind kind;
    for (uint32_t i = 0; aq_codec_kind_at(i, &kind) && used < TEXT_BYTES; i++)
        if (!aq_codec_about(kind)->activations)
            used += snprintf(others + used, (size_t)(TEXT_BYTES - used), "%s%s", used ? ", " : "",
                             aq_codec_about(kind)->name);
    aq_yaml_error(&manifest->errors, node, "%s: %s is for activations; gradients are coded by one of %s", path,
                  about->name, others);
}

/* Tell what is wrong in one section of codec keys, once. */
static enum aq_status codec_validate(struct aq_manifest *manifest, const struct aq_yaml_node *section, const char *path,
                                     bool backward)
{
    if (!section) return AQ_OK;
    if (section->kind != AQ_YAML_MAP) {
        aq_yaml_error(&manifest->errors, section, "%s: must be keys of a codec, as in {codec: directq, bits: 8}", path);
        return AQ_OK;
    }
    for (const struct aq_yaml_node *node = section->first; node; node = node->next) {
        struct aq_codec_config scratch = {0};
        char full[PATH_BYTES];
        snprintf(full, sizeof full, "%s.%s", path, node->key);
        const struct aq_key *key = aq_key_find(aq_keys_codec(), node->key);
        if (!key)
            aq_manifest_unknown(manifest, node, full, node->key, aq_keys_codec());
        else
            AQ_TRY(aq_manifest_scalar(manifest, key, node, full, &scratch));
        const struct aq_codec_about *about = aq_codec_about(scratch.kind);
        if (backward && about && about->activations) tell_activations(manifest, node, full, about);
    }
    return AQ_OK;
}

static void codec_apply(const struct layers *layers, const char *only, struct aq_codec_config *config)
{
    for (uint32_t i = 0; i < LAYERS_MAX; i++) {
        const struct aq_yaml_node *section = layers->nodes[i];
        if (!section || section->kind != AQ_YAML_MAP) continue;
        for (const struct aq_yaml_node *node = section->first; node; node = node->next) {
            const struct aq_key *key = aq_key_find(aq_keys_codec(), node->key);
            if (!key || node->kind != AQ_YAML_SCALAR || (only && strcmp(only, node->key) != 0)) continue;
            (void)aq_key_read(key, node->text, node->quoted, config); /* codec_validate has reported failures */
        }
    }
}

static void codec_make(const struct layers *layers, struct aq_codec_config *out)
{
    struct aq_codec_config first = {.kind = aq_codec_kind_usual(layers->backward), .bits = layers->backward ? 8 : 4};
    codec_apply(layers, "codec", &first);
    codec_apply(layers, "bits", &first);
    if (layers->said || names(layers, "codec") || names(layers, "bits"))
        aq_codec_config_default(out, first.kind, first.bits);
    else
        aq_codec_config_unsaid(out, layers->backward);
    if (layers->backward && !aq_codec_about(out->kind)->stateless) out->store = AQ_PRECISION_NONE;
    out->prescale_log2 = layers->prescale_log2;
    codec_apply(layers, NULL, out);
}

static struct aq_yaml_node *child(struct aq_yaml_node *node, const char *key)
{
    return node && node->kind == AQ_YAML_MAP ? aq_yaml_child(node, key, strlen(key)) : NULL;
}

/* The entry of edges.list for this edge, checked that there is one at most. */
static struct aq_yaml_node *entry_of(struct aq_manifest *manifest, uint32_t edge)
{
    struct aq_yaml_node *list = aq_yaml_find(manifest->root, "edges.list"), *found = NULL;
    char number[16];
    snprintf(number, sizeof number, "%u", edge);
    if (!list || list->kind != AQ_YAML_LIST) return NULL;
    for (struct aq_yaml_node *entry = list->first; entry; entry = entry->next) {
        const struct aq_yaml_node *node = child(entry, "edge");
        if (!node || node->kind != AQ_YAML_SCALAR || strcmp(node->text, number) != 0) continue;
        if (found) aq_yaml_error(&manifest->errors, node, "edges.list: edge %u has an entry already", edge);
        found = entry;
    }
    return found;
}

static void entry_number(struct aq_manifest *manifest, const struct aq_yaml_node *entry)
{
    const uint32_t edges = manifest->job.pipeline.stage_count - 1;
    const struct aq_yaml_node *node = aq_yaml_child(entry, "edge", 4);
    if (!node) {
        aq_yaml_error(&manifest->errors, entry, "edges.list: an entry without 'edge: NUMBER'");
        return;
    }
    const size_t bytes = node->kind == AQ_YAML_SCALAR ? strlen(node->text) : 0;
    uint32_t edge = 0;
    for (size_t i = 0; i < bytes && i < 6; i++)
        edge = edge * 10 + (uint32_t)(node->text[i] - '0');
    const bool number =
        bytes > 0 && bytes < 6 && strspn(node->text, "0123456789") == bytes && (node->text[0] != '0' || bytes == 1);
    if (number && edge < edges) return;
    if (edges == 0)
        aq_yaml_error(&manifest->errors, node, "edges.list: one stage has no edges");
    else
        aq_yaml_error(&manifest->errors, node, "edges.list: edge '%.16s' is not one of the edges 0 to %u",
                      bytes ? node->text : "", edges - 1);
}

static void tell_entry_keys(struct aq_manifest *manifest, const struct aq_yaml_node *node, const char *path)
{
    const struct aq_key_table keys = aq_keys_edge();
    char names[TEXT_BYTES];
    int used = snprintf(names, sizeof names, "edge, forward, backward");
    for (uint32_t i = 0; i < keys.count && used < TEXT_BYTES; i++)
        used += snprintf(names + used, (size_t)(TEXT_BYTES - used), ", %s", keys.keys[i].name);
    aq_yaml_error(&manifest->errors, node, "%s: there is no such key; an entry has %s", path, names);
}

static enum aq_status validate_list(struct aq_manifest *manifest)
{
    const struct aq_yaml_node *list = aq_yaml_find(manifest->root, "edges.list");
    uint32_t index = 0;
    if (!list) return AQ_OK;
    if (list->kind != AQ_YAML_LIST) {
        aq_yaml_error(&manifest->errors, list, "edges.list: must be a list, as in [{edge: 0, forward: {bits: 2}}]");
        return AQ_OK;
    }
    for (const struct aq_yaml_node *entry = list->first; entry; entry = entry->next, index++) {
        char path[PATH_BYTES];
        if (entry->kind != AQ_YAML_MAP) {
            aq_yaml_error(&manifest->errors, entry, "edges.list: an entry must be keys: edge, forward, backward");
            continue;
        }
        entry_number(manifest, entry);
        for (const struct aq_yaml_node *node = entry->first; node; node = node->next) {
            const bool backward = strcmp(node->key, "backward") == 0;
            snprintf(path, sizeof path, "edges.list.%u.%s", index, node->key);
            struct aq_job_edge scratch;
            const struct aq_key *key = aq_key_find(aq_keys_edge(), node->key);
            if (backward || strcmp(node->key, "forward") == 0)
                AQ_TRY(codec_validate(manifest, node, path, backward));
            else if (key)
                AQ_TRY(aq_manifest_scalar(manifest, key, node, path, &scratch));
            else if (strcmp(node->key, "edge") != 0)
                tell_entry_keys(manifest, node, path);
        }
    }
    return AQ_OK;
}

static struct aq_yaml_node *view_of(const struct aq_manifest *manifest, uint32_t stage, const char *side)
{
    return child(manifest->stage_nodes[stage], side);
}

static enum aq_status validate_views(struct aq_manifest *manifest)
{
    const uint32_t stages = manifest->job.pipeline.stage_count;
    for (uint32_t s = 0; s < stages; s++) {
        char path[PATH_BYTES];
        struct aq_yaml_node *receive = view_of(manifest, s, "receive"), *send = view_of(manifest, s, "send");
        if (receive && s == 0)
            aq_yaml_error(&manifest->errors, receive, "pipeline.stages.0.receive: the first stage receives nothing");
        if (send && s + 1 == stages)
            aq_yaml_error(&manifest->errors, send, "pipeline.stages.%u.send: the last stage sends nothing", s);
        snprintf(path, sizeof path, "pipeline.stages.%u.receive", s);
        AQ_TRY(codec_validate(manifest, receive, path, false));
        snprintf(path, sizeof path, "pipeline.stages.%u.send", s);
        AQ_TRY(codec_validate(manifest, send, path, false));
    }
    return AQ_OK;
}

/* The keys of an entry that are no codec's; validate_list has reported failures. */
static void entry_apply(const struct aq_yaml_node *entry, struct aq_job_edge *edge)
{
    for (const struct aq_yaml_node *node = entry ? entry->first : NULL; node; node = node->next) {
        const struct aq_key *key = aq_key_find(aq_keys_edge(), node->key);
        if (key && node->kind == AQ_YAML_SCALAR) (void)aq_key_read(key, node->text, node->quoted, edge);
    }
}

/* A job that sets one of these keys gets exactly that. */
static void bf16_resolve(const struct layers *layers, int *bf16)
{
    static const char *const precisions[] = {"precision", "store", "keyframe", "scale_format"};
    bool named = false;
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++)
        named = named || names(layers, precisions[i]);
    if (*bf16 == AQ_BF16_AUTO) *bf16 = named ? AQ_BF16_OFF : AQ_BF16_ON;
}

static bool says_keys(const struct aq_yaml_node *section)
{
    return section && section->kind == AQ_YAML_MAP && section->first;
}

/* Does the job set a codec key outside of edges.list? */
static bool is_said(const struct aq_manifest *manifest)
{
    bool said = says_keys(aq_yaml_find(manifest->root, "edges.forward")) ||
                says_keys(aq_yaml_find(manifest->root, "edges.backward"));
    for (uint32_t s = 0; s < manifest->job.pipeline.stage_count; s++)
        said = said || says_keys(view_of(manifest, s, "send")) || says_keys(view_of(manifest, s, "receive"));
    return said;
}

/* Sender and receiver are made apart from their own keys; everything that affects the wire must be equal.
 */
static void edge_make(struct aq_manifest *manifest, uint32_t e)
{
    struct aq_yaml_node *entry = entry_of(manifest, e);
    struct aq_yaml_node *send = view_of(manifest, e, "send"), *receive = view_of(manifest, e + 1, "receive");
    struct aq_codec_config receiver;
    /* Gradients of fp16 come with the loss's scale: twice scaled they would not fit a scale's fp16. */
    const bool scaled = manifest->job.model.precision == AQ_STAGE_FP16;
    const struct layers backward = {
        {aq_yaml_find(manifest->root, "edges.backward"), child(entry, "backward"), NULL},
        .backward = true,
        .said = is_said(manifest),
        .prescale_log2 = scaled ? 0 : GRADIENT_PRESCALE_LOG2};
    struct layers forward = {{aq_yaml_find(manifest->root, "edges.forward"), child(entry, "forward"), send},
                             .backward = false,
                             .said = backward.said};
    manifest->edges[e].rtt_ms = manifest->job.link.rtt_ms;
    manifest->edges[e].loss = manifest->job.link.loss;
    if (entry && entry->kind == AQ_YAML_MAP) entry_apply(entry, &manifest->edges[e]);
    codec_make(&backward, &manifest->edges[e].backward);
    codec_make(&forward, &manifest->edges[e].forward);
    bf16_resolve(&forward, &manifest->edges[e].forward_bf16);
    bf16_resolve(&backward, &manifest->edges[e].backward_bf16);
    if (!send && !receive) return;
    forward.nodes[2] = receive;
    codec_make(&forward, &receiver);
    const struct aq_codec_config *sender = &manifest->edges[e].forward;
    if (sender->kind == receiver.kind && aq_codec_config_digest(sender) == aq_codec_config_digest(&receiver)) return;
    char says[TEXT_BYTES], expects[TEXT_BYTES], place[TEXT_BYTES];
    aq_codec_config_text(sender, says, sizeof says);
    aq_codec_config_text(&receiver, expects, sizeof expects);
    aq_yaml_place(send ? send : manifest->stage_nodes[e], place, sizeof place);
    aq_yaml_error(&manifest->errors, receive ? receive : send,
                  "edge %u: its ends differ: stage %u sends '%s' (%s), stage %u expects '%s'; make both the same", e, e,
                  says, place, e + 1, expects);
}

enum aq_status aq_manifest_edges(struct aq_manifest *manifest)
{
    AQ_TRY(codec_validate(manifest, aq_yaml_find(manifest->root, "edges.forward"), "edges.forward", false));
    AQ_TRY(codec_validate(manifest, aq_yaml_find(manifest->root, "edges.backward"), "edges.backward", true));
    AQ_TRY(validate_list(manifest));
    AQ_TRY(validate_views(manifest));
    const uint32_t edges = manifest->job.pipeline.stage_count - 1;
    void *memory = NULL;
    AQ_TRY(aq_pool_take(&manifest->pool, (edges + 1) * sizeof *manifest->edges, &memory));
    manifest->edges = memory;
    if (manifest->errors.count != manifest->unknown) return AQ_OK; /* half a codec would only make more errors of one */
    for (uint32_t e = 0; e < edges; e++)
        edge_make(manifest, e);
    return AQ_OK;
}

static void codec_error(struct aq_manifest *manifest, uint32_t edge, bool backward, const char *key, const char *why)
{
    char path[KEY_BYTES];
    snprintf(path, sizeof path, "edges.%s.%s", backward ? "backward" : "forward", key);
    const char *side = backward ? "backward" : "forward";
    if (aq_yaml_find(manifest->root, path))
        aq_manifest_error(manifest, path, "edge %u: %s", edge, why);
    else
        aq_manifest_error(manifest, "edges", "edge %u %s %s: %s", edge, side, key, why);
}

/* The fields of a codec against each other; aq_codec_config_check has the last word when the codec is opened. */
static void check_codec(struct aq_manifest *manifest, uint32_t edge, bool backward,
                        const struct aq_codec_config *config)
{
    const struct aq_codec_about *about = aq_codec_about(config->kind);
    if (backward && !about->stateless && config->store != AQ_PRECISION_NONE)
        codec_error(manifest, edge, backward, "store", "gradients keep no messages: write none");
    if (!about->grid) return;
    if (config->grid == AQ_GRID_MIDTREAD && config->bits < 2)
        codec_error(manifest, edge, backward, "grid", "midtread needs at least 2 bits");
    if (config->tile != 32 && config->tile != 64 && config->tile != 128 &&
        (config->hadamard || config->group == AQ_PER_TILE))
        codec_error(manifest, edge, backward, "tile", "must be 32, 64 or 128");
    if (!about->sparse && config->top_k > 0 && config->top_k < 1) {
        char why[KEY_BYTES] = "";
        enum aq_codec_kind kind;
        for (uint32_t i = 0; aq_codec_kind_at(i, &kind); i++)
            if (aq_codec_about(kind)->sparse) snprintf(why, sizeof why, "is for %s only", aq_codec_about(kind)->name);
        codec_error(manifest, edge, backward, "top_k", why);
    }
}

void aq_manifest_check_codecs(struct aq_manifest *manifest)
{
    const struct aq_job *job = &manifest->job;
    for (uint32_t e = 0; e + 1 < job->pipeline.stage_count; e++) {
        const uint32_t before = manifest->errors.count;
        check_codec(manifest, e, false, &job->edges[e].forward);
        check_codec(manifest, e, true, &job->edges[e].backward);
        if (manifest->errors.count != before) return; /* the other edges mostly have the same error */
    }
}
