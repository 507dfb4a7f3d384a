/*
 * manifest.c -- YAML text to a typed job: tree, overrides, defaults, sections, then the checks. See job.h.
 *
 * Errors are reported where they are found and counted; reading continues as far as it makes sense, so that a user sees
 * several at once. Only AQ_NOMEM ends it at once.
 */
#include "manifest.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alias.h"
#include "aqsgd/base/given_file.h"
#include "nearest.h"
#include "stages/model_folder.h"

enum { WANTS_BYTES = 256, NAME_BYTES = 128, TEXT_BYTES = 1024 };

static struct aq_manifest *manifest_of(const struct aq_job *job)
{
    return (struct aq_manifest *)(uintptr_t)job; /* the job is the first member */
}

void aq_manifest_error(struct aq_manifest *manifest, const char *key, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct aq_yaml_node *node = aq_yaml_find(manifest->root, key);
    const struct aq_yaml_node file = {.source = manifest->job.source};
    const struct aq_key *of = aq_key_find(aq_keys_job(), key);
    if (node)
        aq_yaml_error(&manifest->errors, node, "%s: %s", key, text);
    else if (manifest->of_folder && of && of->of_model)
        aq_yaml_error(&manifest->errors, aq_yaml_find(manifest->root, "model.weights"), "%s (of its config.json): %s",
                      key, text);
    else
        aq_yaml_error(&manifest->errors, &file, "%s%s: %s", key, of && *of->fallback ? " (not given: its default)" : "",
                      text);
}

void aq_manifest_unknown(struct aq_manifest *manifest, const struct aq_yaml_node *node, const char *path,
                         const char *name, struct aq_key_table table)
{
    const char *nearest = aq_key_nearest(table, name), *meant = aq_alias_key(name);
    manifest->unknown++;
    if (meant && table.keys == aq_keys_job().keys)
        aq_yaml_error(&manifest->errors, node, "%s: there is no such key; that is %s here", path, meant);
    else if (nearest)
        aq_yaml_error(&manifest->errors, node, "%s: there is no such key; did you mean %s?", path, nearest);
    else
        aq_yaml_error(&manifest->errors, node, "%s: there is no such key; `aqpipe help keys` lists them all", path);
}

/* Paths in the manifest are relative to its folder, paths of --set to the current folder. NULL: a default. */
static enum aq_status absolute(struct aq_manifest *manifest, const struct aq_yaml_node *node, const char *path,
                               const char **out)
{
    char here[PATH_MAX], joined[PATH_MAX];
    const char *folder = manifest->job.folder;
    if (aq_model_hub_is(path)) {
        struct aq_error_hold why;
        aq_error_hold(&why);
        const enum aq_status status = aq_model_hub_path(path, joined, sizeof joined);
        aq_error_release(&why);
        if (status == AQ_OK) return aq_pool_text(&manifest->pool, joined, strlen(joined), out);
        if (node) aq_yaml_error(&manifest->errors, node, "%s", why.text);
        return AQ_OK;
    }
    if (*path == '/') {
        *out = path;
        return AQ_OK;
    }
    if (node && node->source != manifest->job.source) folder = getcwd(here, sizeof here);
    if (!folder) return AQ_INVAL;
    const int bytes = snprintf(joined, sizeof joined, "%s/%s", folder, path);
    if (bytes < 0 || (size_t)bytes >= sizeof joined) return AQ_INVAL;
    return aq_pool_text(&manifest->pool, joined, (size_t)bytes, out);
}

/* Is it a number of the key's kind, and only outside of its range? */
static bool is_number(const struct aq_key *key, const char *text)
{
    const bool whole = key->kind == AQ_KEY_U32 || key->kind == AQ_KEY_U64 || key->kind == AQ_KEY_I32 ||
                       key->kind == AQ_KEY_COUNT || key->kind == AQ_KEY_WINDOW || key->kind == AQ_KEY_IN_FLIGHT;
    const bool sign = *text == '-' || (*text == '+' && key->kind == AQ_KEY_I32);
    const char *digits = text + sign;
    char *end;
    if (whole) return *digits && strspn(digits, "0123456789") == strlen(digits);
    if (key->kind != AQ_KEY_F32 || !strpbrk(text, "0123456789")) return false;
    const double value = strtod(text, &end);
    return *end == 0 && isfinite(value) && text[strspn(text, "+-.0123456789eE")] == 0;
}

enum aq_status aq_manifest_scalar(struct aq_manifest *manifest, const struct aq_key *key,
                                  const struct aq_yaml_node *node, const char *path, void *base)
{
    char wants[WANTS_BYTES];
    aq_key_wants(key, wants, sizeof wants);
    if (node->kind != AQ_YAML_SCALAR) {
        aq_yaml_error(&manifest->errors, node, "%s: is a %s, but must be %s", path,
                      node->kind == AQ_YAML_LIST ? "list" : "section", wants);
        return AQ_OK;
    }
    if (!*node->text && !node->quoted) {
        aq_yaml_error(&manifest->errors, node, "%s: has no value; must be %s", path, wants);
        return AQ_OK;
    }
    if (aq_key_read(key, node->text, node->quoted, base) != AQ_OK && !node->quoted &&
        is_number(key, node->text)) {
        aq_yaml_error(&manifest->errors, node, "%s: '%.64s' is out of range: must be %s", path, node->text, wants);
        return AQ_OK;
    }
    if (aq_key_read(key, node->text, node->quoted, base) != AQ_OK) {
        aq_yaml_error(&manifest->errors, node, "%s: '%.64s'%s is not %s", path, node->text,
                      node->quoted ? " in quotes" : "", wants);
        return AQ_OK;
    }
    if (key->kind != AQ_KEY_PATH) return AQ_OK;
    const char **to = (const char **)((char *)base + key->offset);
    if (!*to) return AQ_OK;
    const enum aq_status status = absolute(manifest, node, *to, to);
    if (status == AQ_INVAL) aq_yaml_error(&manifest->errors, node, "%s: the path is too long", path);
    return status == AQ_INVAL ? AQ_OK : status;
}

static enum aq_status read_paths(struct aq_manifest *manifest, const struct aq_key *key,
                                 const struct aq_yaml_node *node)
{
    const struct aq_yaml_node *first = node->kind == AQ_YAML_LIST ? node->first : node;
    uint32_t count = 0;
    for (const struct aq_yaml_node *at = first; at; at = node->kind == AQ_YAML_LIST ? at->next : NULL) {
        if (at->kind != AQ_YAML_SCALAR || !*at->text) {
            aq_yaml_error(&manifest->errors, at, "%s: must be a path or a list of paths", key->name);
            return AQ_OK;
        }
        count++;
    }
    if (count > AQ_JOB_PATHS_MAX) {
        aq_yaml_error(&manifest->errors, node, "%s: %u files, but %u are the most; join some", key->name, count,
                      AQ_JOB_PATHS_MAX);
        return AQ_OK;
    }
    void *memory = NULL;
    AQ_TRY(aq_pool_take(&manifest->pool, (count + 1) * sizeof(char *), &memory));
    const char **paths = memory;
    const struct aq_yaml_node *at = first;
    for (uint32_t i = 0; i < count; i++, at = at->next) {
        const enum aq_status status = absolute(manifest, at, at->text, &paths[i]);
        if (status == AQ_INVAL) {
            aq_yaml_error(&manifest->errors, at, "%s: the path is too long", key->name);
            return AQ_OK;
        }
        AQ_TRY(status);
    }
    char *base = (char *)&manifest->job + key->offset;
    *(const char *const **)base = paths;
    *(uint32_t *)(base + sizeof(char *)) = count; /* the count is the next member, asserted below */
    return AQ_OK;
}
_Static_assert(offsetof(struct aq_job_data, train_count) == offsetof(struct aq_job_data, train) + sizeof(char *),
               "a list of paths and its count are neighbours");
_Static_assert(offsetof(struct aq_job_data, heldout_count) == offsetof(struct aq_job_data, heldout) + sizeof(char *),
               "a list of paths and its count are neighbours");

/* Is this path a prefix of keys, as split.privacy is of split.privacy.clip? */
static bool is_group(const char *path)
{
    const struct aq_key_table keys = aq_keys_job();
    const size_t bytes = strlen(path);
    for (uint32_t i = 0; i < keys.count; i++)
        if (strncmp(keys.keys[i].name, path, bytes) == 0 && keys.keys[i].name[bytes] == '.') return true;
    return false;
}

/* A section, or a group of keys in one: at most as deep as the table's names are. */
static enum aq_status read_section(struct aq_manifest *manifest, const struct aq_yaml_node *section, const char *name)
{
    if (section->kind == AQ_YAML_SCALAR && !*section->text && !section->quoted) return AQ_OK; /* "train:" alone */
    if (section->kind != AQ_YAML_MAP) {
        aq_yaml_error(&manifest->errors, section, "%s: must be a section of keys", name);
        return AQ_OK;
    }
    for (const struct aq_yaml_node *node = section->first; node; node = node->next) {
        char path[NAME_BYTES];
        snprintf(path, sizeof path, "%s.%s", name, node->key);
        const struct aq_key *key = aq_key_find(aq_keys_job(), path);
        if (!key && is_group(path))
            AQ_TRY(read_section(manifest, node, path));
        else if (!key)
            aq_manifest_unknown(manifest, node, path, path, aq_keys_job());
        else if (key->kind == AQ_KEY_PATHS)
            AQ_TRY(read_paths(manifest, key, node));
        else if (key->kind == AQ_KEY_MAP)
            AQ_TRY(aq_manifest_map(manifest, key, node));
        else if (aq_key_is_scalar(key))
            AQ_TRY(aq_manifest_scalar(manifest, key, node, path, &manifest->job));
    }
    return AQ_OK;
}

static void unknown_section(struct aq_manifest *manifest, const struct aq_yaml_node *node)
{
    uint32_t count;
    const struct aq_key_section *sections = aq_keys_sections(&count);
    struct aq_nearest nearest = {.word = node->key};
    for (uint32_t i = 0; i < count; i++)
        aq_nearest_try(&nearest, sections[i].name);
    char path[NAME_BYTES];
    snprintf(path, sizeof path, ".%s", node->key);
    const char *key = aq_alias_key(path); /* "learning_rate: 1e-4" without its section, or "batch: 8" */
    if (!key) key = aq_key_nearest(aq_keys_job(), path);
    if (aq_nearest_of(&nearest))
        aq_yaml_error(&manifest->errors, node, "%s: there is no such section; did you mean %s?", node->key,
                      aq_nearest_of(&nearest));
    else if (key)
        aq_yaml_error(&manifest->errors, node, "%s: there is no such section; did you mean the key %s?", node->key,
                      key);
    else
        aq_yaml_error(&manifest->errors, node, "%s: there is no such section; `aqpipe help keys` lists them all",
                      node->key);
}

static enum aq_status read_sections(struct aq_manifest *manifest)
{
    uint32_t count;
    const struct aq_key_section *sections = aq_keys_sections(&count);
    for (const struct aq_yaml_node *node = manifest->root->first; node; node = node->next) {
        uint32_t i = 0;
        while (i < count && strcmp(sections[i].name, node->key) != 0)
            i++;
        if (i == count)
            unknown_section(manifest, node);
        else
            AQ_TRY(read_section(manifest, node, node->key));
    }
    return AQ_OK;
}

/* The kind of model that the manifest names, where it is one: its defaults are the model's. */
static const char *kind_of(const struct aq_manifest *manifest)
{
    const struct aq_yaml_node *node = aq_yaml_find(manifest->root, "model.kind");
    const char *kind;
    for (uint32_t m = 0; node && node->kind == AQ_YAML_SCALAR && (kind = aq_model_kind(m)) != NULL; m++)
        if (strcmp(kind, node->text) == 0) return kind;
    return manifest->job.model.config.kind;
}

/* A model's keys have its own defaults; those of other models are as if they were not there. */
static enum aq_status read_defaults(struct aq_manifest *manifest)
{
    const struct aq_key_table keys = aq_keys_job();
    for (uint32_t i = 0; i < keys.count; i++) {
        const struct aq_key *key = &keys.keys[i];
        if (key->of_model || !aq_key_is_scalar(key) || !*key->fallback) continue;
        AQ_TRY(aq_key_read(key, key->fallback, false, &manifest->job));
        if (key->kind != AQ_KEY_PATH) continue;
        const char **path = (const char **)((char *)&manifest->job + key->offset);
        AQ_TRY(absolute(manifest, NULL, *path, path));
    }
    const char *kind = kind_of(manifest);
    aq_model_config_default(&manifest->job.model.config, kind);
    for (uint32_t i = 0; i < keys.count; i++)
        if (keys.keys[i].of_model && aq_key_applies(&keys.keys[i], kind))
            AQ_TRY(aq_key_read(&keys.keys[i], keys.keys[i].fallback, false, &manifest->job));
    return AQ_OK;
}

/* "train.batch=16": the value is YAML; its place is "--set train.batch". */
static enum aq_status read_set(struct aq_manifest *manifest, const char *set)
{
    char source[NAME_BYTES];
    const char *equals = strchr(set, '=');
    const struct aq_yaml_node here = {.source = "--set"};
    if (!equals || equals == set || (size_t)(equals - set) > NAME_BYTES / 2) {
        aq_yaml_error(&manifest->errors, &here, "'%.64s' is not key=value, as in --set train.batch=16", set);
        return AQ_OK;
    }
    const int bytes = snprintf(source, sizeof source, "--set %.*s", (int)(equals - set), set);
    const char *place, *path;
    struct aq_yaml_node *value = NULL;
    AQ_TRY(aq_pool_text(&manifest->pool, source, (size_t)bytes, &place));
    path = place + strlen("--set ");
    const struct aq_yaml_node at = {.source = place};
    if (!equals[1 + strspn(equals + 1, " \t\r\n")]) {
        aq_yaml_error(&manifest->errors, &at, "has no value; for an empty text write %s='\"\"'", path);
        return AQ_OK;
    }
    enum aq_status status =
        aq_yaml_parse(&manifest->pool, equals + 1, strlen(equals + 1), place, true, &manifest->errors, &value);
    if (status == AQ_OK) status = aq_yaml_graft(&manifest->pool, manifest->root, path, value, &manifest->errors);
    return status == AQ_INVAL ? AQ_OK : status;
}

static enum aq_status read_tree(struct aq_manifest *manifest, const char *text, size_t bytes, const char *const *sets,
                                uint32_t set_count)
{
    const enum aq_status status =
        aq_yaml_parse(&manifest->pool, text, bytes, manifest->job.source, false, &manifest->errors, &manifest->root);
    if (!manifest->root) return status;
    if (manifest->root->kind == AQ_YAML_SCALAR && !*manifest->root->text) manifest->root->kind = AQ_YAML_MAP;
    if (manifest->root->kind != AQ_YAML_MAP) {
        aq_yaml_error(&manifest->errors, manifest->root, "a manifest is sections of keys, as in 'train:' and 'data:'");
        return AQ_INVAL;
    }
    for (uint32_t i = 0; i < set_count; i++)
        AQ_TRY(read_set(manifest, sets[i]));
    return AQ_OK;
}

static enum aq_status read_job(struct aq_manifest *manifest, const char *text, size_t bytes, const char *const *sets,
                               uint32_t set_count)
{
    AQ_TRY(read_tree(manifest, text, bytes, sets, set_count));
    aq_manifest_aliases(manifest);
    AQ_TRY(read_defaults(manifest));
    aq_manifest_optimizer_defaults(manifest);
    AQ_TRY(read_sections(manifest));
    aq_manifest_folder(manifest);
    aq_manifest_data(manifest);
    const struct aq_job_facts *facts = &manifest->job.facts;
    if (facts->train_samples && !facts->places && !aq_yaml_find(manifest->root, "data.bos"))
        manifest->job.data.bos = AQ_BEGIN_NONE; /* planned by a version that put nothing in front */
    AQ_TRY(aq_manifest_adapter(manifest));
    aq_manifest_untie(manifest);
    const uint32_t tokens = aq_model_tokens(manifest->job.model.config.kind);
    if (tokens && aq_yaml_find(manifest->root, "train.T") && manifest->job.train.T != tokens)
        aq_manifest_error(manifest, "train.T", "a sample of %s has no tokens to count; leave it out",
                          manifest->job.model.config.kind);
    if (tokens) manifest->job.train.T = tokens; /* the model says it */
    aq_manifest_reduce(manifest);
    AQ_TRY(aq_manifest_stages(manifest));
    AQ_TRY(aq_manifest_edges(manifest));
    manifest->job.pipeline.stages = manifest->stages;
    manifest->job.edges = manifest->edges;
    if (manifest->errors.count == manifest->unknown) AQ_TRY(aq_manifest_check(manifest));
    const uint32_t count = manifest->errors.count;
    if (count > AQ_JOB_ERRORS_MAX)
        (void)aq_fail(AQ_INVAL, "manifest", "%s: %u more errors are not shown", manifest->job.source,
                      count - AQ_JOB_ERRORS_MAX);
    return count ? AQ_INVAL : AQ_OK;
}

enum aq_status aq_job_parse(const char *text, size_t bytes, const char *source, const char *folder,
                            const char *const *sets, uint32_t set_count, struct aq_job **out)
{
    struct aq_manifest *manifest;
    AQ_TRY(AQ_NEW(1, &manifest));
    manifest->errors.limit = AQ_JOB_ERRORS_MAX;
    enum aq_status status;
    AQ_TRY_GOTO(aq_pool_text(&manifest->pool, source, strlen(source), &manifest->job.source), out);
    AQ_TRY_GOTO(aq_pool_text(&manifest->pool, folder, strlen(folder), &manifest->job.folder), out);
    AQ_TRY_GOTO(read_job(manifest, text, bytes, sets, set_count), out);
    *out = &manifest->job;
    return AQ_OK;
out:
    aq_job_close(&manifest->job);
    return status;
}

static enum aq_status read_file(const char *path, char **text, size_t *bytes)
{
    int fd;
    AQ_TRY(aq_given_open("manifest", path, &fd));
    void *memory = NULL;
    ssize_t used;
    enum aq_status status;
    AQ_TRY_GOTO(aq_alloc(AQ_YAML_BYTES_MAX + 1, &memory), out);
    used = aq_read_all(fd, memory, AQ_YAML_BYTES_MAX + 1); /* one byte more than allowed: it is too long */
    if (used < 0) {
        status = aq_fail_errno("manifest", "cannot read the manifest %s", path);
        goto out;
    }
    *text = memory;
    *bytes = (size_t)used;
    memory = NULL;
out:
    aq_free(memory);
    close(fd);
    return status;
}

/* The absolute folder of a file, without a link's end resolved away: dirname. */
static enum aq_status folder_of(const char *path, char folder[PATH_MAX])
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int bytes = snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    if (bytes < 0 || (size_t)bytes >= sizeof parent)
        return aq_fail(AQ_INVAL, "manifest", "the path %s is too long", path);
    if (!realpath(parent, folder)) return aq_fail_errno("manifest", "cannot find the folder of %s", path);
    return AQ_OK;
}

enum aq_status aq_job_load(const char *path, const char *const *sets, uint32_t set_count, struct aq_job **out)
{
    char folder[PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    AQ_TRY(read_file(path, &text, &bytes));
    enum aq_status status;
    AQ_TRY_GOTO(folder_of(path, folder), out);
    status = aq_job_parse(text, bytes, path, folder, sets, set_count, out);
out:
    aq_free(text);
    return status;
}

void aq_job_close(struct aq_job *job)
{
    if (!job) return;
    struct aq_manifest *manifest = manifest_of(job);
    aq_pool_deinit(&manifest->pool);
    aq_free(manifest);
}

void aq_job_place(const struct aq_job *job, const char *key, char *text, size_t bytes)
{
    static const char set[] = "--set ";
    const struct aq_yaml_node *node = aq_yaml_find(manifest_of(job)->root, key);
    if (node && strncmp(node->source, set, sizeof set - 1) == 0 && strcmp(node->source + sizeof set - 1, key) == 0)
        snprintf(text, bytes, "--set"); /* the key follows in each message */
    else if (node)
        aq_yaml_place(node, text, bytes);
    else
        snprintf(text, bytes, "%s", job->source);
}
