/*
 * manifest_map.c -- a section whose keys are not this program's (data.chat_variables): kept as a JSON object.
 *
 * A scalar in quotes is a text. One without is what JSON has by that name (true, 12, 0.5, null), and else a text.
 */
#include <jansson.h>
#include <string.h>

#include "json_text.h"
#include "manifest.h"

static json_t *value_of(const struct aq_yaml_node *node);

static json_t *scalar_of(const struct aq_yaml_node *node)
{
    static const struct {
        const char *word, *json;
    } words[] = {{"True", "true"},   {"TRUE", "true"}, {"False", "false"},
                 {"FALSE", "false"}, {"~", "null"},    {"", "null"}};
    const char *text = node->text;
    for (size_t i = 0; i < sizeof words / sizeof *words && !node->quoted; i++)
        if (strcmp(node->text, words[i].word) == 0) text = words[i].json;
    json_t *value = node->quoted ? NULL : json_loads(text, JSON_DECODE_ANY, NULL);
    if (value && !json_is_object(value) && !json_is_array(value) && !json_is_string(value)) return value;
    json_decref(value);
    return json_string(node->text);
}

static json_t *map_of(const struct aq_yaml_node *node)
{
    json_t *map = json_object();
    for (const struct aq_yaml_node *at = node->first; map && at; at = at->next) {
        if (json_object_set_new(map, at->key, value_of(at)) == 0) continue;
        json_decref(map);
        return NULL;
    }
    return map;
}

/* NULL: no memory, or a text that is no UTF-8. As deep as the tree is, which yaml_tree.h bounds. */
static json_t *value_of(const struct aq_yaml_node *node)
{
    if (node->kind == AQ_YAML_SCALAR) return scalar_of(node);
    if (node->kind == AQ_YAML_MAP) return map_of(node);
    json_t *list = json_array();
    for (const struct aq_yaml_node *at = node->first; list && at; at = at->next) {
        if (json_array_append_new(list, value_of(at)) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

enum aq_status aq_manifest_map(struct aq_manifest *manifest, const struct aq_key *key, const struct aq_yaml_node *node)
{
    struct aq_text text = {0};
    if (node->kind != AQ_YAML_MAP) {
        aq_yaml_error(&manifest->errors, node, "%s: must be a section, as {enable_thinking: false}", key->name);
        return AQ_OK;
    }
    json_t *map = map_of(node);
    if (!map) {
        aq_yaml_error(&manifest->errors, node, "%s: has a text that is not UTF-8", key->name);
        return AQ_OK;
    }
    enum aq_status status = aq_json_text(map, JSON_COMPACT, &text);
    json_decref(map);
    if (status == AQ_OK)
        status = aq_pool_text(&manifest->pool, aq_text_of(&text), text.used,
                              (const char **)((char *)&manifest->job + key->offset));
    aq_text_deinit(&text);
    return status;
}
