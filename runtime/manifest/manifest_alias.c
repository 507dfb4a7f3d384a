/* manifest_alias.c -- other names of keys and values in a manifest's tree (manifest.h). */
#include <string.h>

#include "alias.h"
#include "manifest.h"

enum { NAME_MAX_BYTES = 512 };

struct alias {
    const char *name, *key, *answer; /* key NULL: an error with the answer */
};
struct alias_value {
    const char *key, *value, *ours, *needs;
};

static const struct alias aliases[] = {
#define AQ_ALIAS(name, key) {name, key, NULL},
#define AQ_ALIAS_TOLD(name, answer) {name, NULL, answer},
#include "aliases.def"
};
static const struct alias_value values[] = {
#define AQ_ALIAS_VALUE(key, value, ours, needs) {key, value, ours, needs},
#include "aliases.def"
};
static const char *const lists[] = {
#define AQ_ALIAS_LIST(key) key,
#include "aliases.def"
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Is a section's key one whose members are not ours to read? */
static bool is_map(const char *section, const char *key)
{
    const struct aq_key_table keys = aq_keys_job();
    const size_t bytes = strlen(section);
    for (uint32_t i = 0; i < keys.count; i++)
        if (keys.keys[i].kind == AQ_KEY_MAP && strncmp(keys.keys[i].name, section, bytes) == 0 &&
            keys.keys[i].name[bytes] == '.' && strcmp(keys.keys[i].name + bytes + 1, key) == 0)
            return true;
    return false;
}

/* Takes the members that are null out of maps. As deep as the tree is, which yaml_tree.h bounds. */
static void nulls_drop(struct aq_yaml_node *node, const char *section)
{
    struct aq_yaml_node **link = &node->first;
    while (*link) {
        struct aq_yaml_node *child = *link;
        bool none = false;
        if (node->kind == AQ_YAML_MAP && child->kind == AQ_YAML_SCALAR && !child->quoted)
            (void)aq_alias_word(child->text, &none);
        if (none) {
            *link = child->next;
            continue;
        }
        if (child->kind != AQ_YAML_SCALAR && !(section && child->key && is_map(section, child->key)))
            nulls_drop(child, section ? NULL : child->key);
        link = &child->next;
    }
}

/* The node of a dotted path is taken out of its map. */
static void detach(struct aq_yaml_node *root, const char *path)
{
    struct aq_yaml_node *map = root;
    const char *dot;
    while (map && (dot = strchr(path, '.')) != NULL) {
        map = aq_yaml_child(map, path, (size_t)(dot - path));
        path = dot + 1;
    }
    for (struct aq_yaml_node **link = map ? &map->first : NULL; link && *link; link = &(*link)->next)
        if (strcmp((*link)->key, path) == 0) {
            *link = (*link)->next;
            return;
        }
}

/* Was it typed on the command line? */
static bool is_set(const struct aq_manifest *manifest, const struct aq_yaml_node *node)
{
    return node->source != manifest->job.source;
}

static void name_take(struct aq_manifest *manifest, const struct alias *alias, struct aq_yaml_node *node)
{
    const struct aq_yaml_node *there = alias->key ? aq_yaml_find(manifest->root, alias->key) : NULL;
    struct aq_yaml_node value = *node;
    char place[NAME_MAX_BYTES];
    detach(manifest->root, alias->name);
    if (!alias->key) {
        aq_yaml_error(&manifest->errors, &value, "%s: %s", alias->name, alias->answer);
        return;
    }
    if (there && is_set(manifest, there) && !is_set(manifest, &value)) return;
    if (there && is_set(manifest, there) == is_set(manifest, &value)) {
        aq_yaml_error(&manifest->errors, &value, "%s: that is %s here, which is given, too; keep one", alias->name,
                      alias->key);
        return;
    }
    aq_yaml_place(&value, place, sizeof place);
    if (strncmp(place, "--set ", 6) == 0 && strcmp(place + 6, alias->name) == 0)
        aq_log("manifest", 1, "%s is %s here", place, alias->key);
    else
        aq_log("manifest", 1, "%s: %s is %s here", place, alias->name, alias->key);
    (void)aq_yaml_graft(&manifest->pool, manifest->root, alias->key, &value, &manifest->errors);
}

static void names_take(struct aq_manifest *manifest)
{
    for (size_t i = 0; i < COUNT(aliases); i++) {
        struct aq_yaml_node *node = aq_yaml_find(manifest->root, aliases[i].name);
        if (node && node->key && !aq_key_find(aq_keys_job(), aliases[i].name)) name_take(manifest, &aliases[i], node);
    }
}

/* Has the key this value itself? */
static bool is_ours(const char *key, const char *value)
{
    const struct aq_key *of = aq_key_find(aq_keys_job(), key);
    struct aq_job scratch = {0};
    const char *kind;
    if (strcmp(key, "model.kind") != 0)
        return of && of->names && aq_key_read(of, value, false, &scratch) == AQ_OK;
    for (uint32_t m = 0; (kind = aq_model_kind(m)) != NULL; m++)
        if (strcmp(kind, value) == 0) return true;
    return false;
}

static void values_take(struct aq_manifest *manifest)
{
    for (size_t i = 0; i < COUNT(values); i++) {
        struct aq_yaml_node *node = aq_yaml_find(manifest->root, values[i].key);
        char place[NAME_MAX_BYTES];
        if (!node || node->kind != AQ_YAML_SCALAR || strcmp(node->text, values[i].value) != 0) continue;
        if (is_ours(values[i].key, node->text)) continue;
        if (values[i].needs && !aq_yaml_find(manifest->root, values[i].needs)) {
            aq_yaml_error(&manifest->errors, node, "%s: %s is read as %s here, by its published folder: set %s to it",
                          values[i].key, values[i].value, values[i].ours, values[i].needs);
            node->text = values[i].ours;
            continue;
        }
        aq_yaml_place(node, place, sizeof place);
        aq_log("manifest", 1, "%s: %s: %s is %s here", place, values[i].key, values[i].value,
               *values[i].ours ? values[i].ours : "the default");
        node->text = values[i].ours;
        node->quoted = node->quoted || !*values[i].ours;
    }
}

/* [q_proj, v_proj] as "q_proj, v_proj". */
static void list_join(struct aq_manifest *manifest, struct aq_yaml_node *node)
{
    struct aq_text text = {0};
    for (const struct aq_yaml_node *at = node->first; at; at = at->next) {
        if (at->kind != AQ_YAML_SCALAR) {
            aq_text_deinit(&text);
            return; /* told where it is read */
        }
        aq_text_add(&text, "%s%s", at == node->first ? "" : ", ", at->text);
    }
    const char *joined = "";
    if (text.status == AQ_OK && text.used)
        (void)aq_pool_text(&manifest->pool, aq_text_of(&text), text.used, &joined);
    aq_text_deinit(&text);
    node->kind = AQ_YAML_SCALAR;
    node->quoted = true;
    node->text = joined;
    node->first = NULL;
}

void aq_manifest_aliases(struct aq_manifest *manifest)
{
    nulls_drop(manifest->root, NULL);
    names_take(manifest);
    for (size_t i = 0; i < COUNT(lists); i++) {
        struct aq_yaml_node *node = aq_yaml_find(manifest->root, lists[i]);
        if (node && node->kind == AQ_YAML_LIST) list_join(manifest, node);
    }
    values_take(manifest);
}
