/*
 * chat_template.c -- which template a model folder has, and its special tokens.
 *
 * As transformers looks for it: chat_template.jinja, then `chat_template` of tokenizer_config.json, which is a text or
 * a list of {"name": ..., "template": ...}; those of a name also as additional_chat_templates/NAME.jinja. A special
 * token is a text or an object with its `content`.
 */
#include "chat_private.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dataset_file.h"

enum {
    CONFIG_BYTES_MAX = 32 << 20, /* some list 10^5 added tokens */
    PATH_BYTES_MAX = 4096,
    CALLED_BYTES = PATH_BYTES_MAX + 64
};

/* huge: a whole number that is too large makes all of them floats, which a template would write otherwise. */
static enum aq_status read_object(const char *called, const char *text, size_t bytes, bool huge, json_t **out)
{
    json_error_t error;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *object = json_loadb(text, bytes, flags, &error);
    if (!object && huge && json_error_code(&error) == json_error_numeric_overflow)
        object = json_loadb(text, bytes, flags | JSON_DECODE_INT_AS_REAL, &error);
    if (!object) return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s:%d:%d: %s", called, error.line, error.column, error.text);
    if (!json_is_object(object)) {
        json_decref(object);
        return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s: is not a JSON object", called);
    }
    *out = object;
    return AQ_OK;
}

enum aq_status aq_chat_object(const char *called, const char *text, size_t bytes, json_t **out)
{
    return read_object(called, text, bytes, false, out);
}

static enum aq_status path_of(const char *folder, const char *name, char path[PATH_BYTES_MAX])
{
    const int length = snprintf(path, PATH_BYTES_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES_MAX)
        return aq_fail(AQ_INVAL, JINJA_AREA, "the folder's name \"%.64s...\" is too long", folder);
    return AQ_OK;
}

/* The file in memory of aq_alloc; *text NULL: no such file. */
static enum aq_status load(const char *folder, const char *name, size_t most, char path[PATH_BYTES_MAX], char **text,
                           size_t *bytes)
{
    *text = NULL;
    uint8_t *read;
    AQ_TRY(path_of(folder, name, path));
    if (access(path, F_OK) != 0) return AQ_OK;
    AQ_TRY(aq_file_read(JINJA_AREA, path, most, &read, bytes));
    *text = (char *)read;
    return AQ_OK;
}

static enum aq_status load_config(const char *folder, const char *name, char path[PATH_BYTES_MAX], json_t **out)
{
    char *text;
    size_t bytes;
    *out = NULL;
    AQ_TRY(load(folder, name, CONFIG_BYTES_MAX, path, &text, &bytes));
    if (!text) return AQ_OK;
    const enum aq_status status = read_object(path, text, bytes, true, out); /* model_max_length: 10^30 says none */
    aq_free(text);
    return status;
}

static void take_tokens(json_t *variables, const json_t *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; config && i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token) && !json_object_get(variables, names[i])) json_object_set(variables, names[i], token);
    }
}

static enum aq_status make(const char *text, size_t bytes, const char *called, json_t *variables,
                           struct aq_chat_template **out)
{
    struct aq_chat_template *made;
    AQ_TRY(AQ_NEW(1, &made));
    const enum aq_status status = jinja_compile(text, bytes, called, &made->program);
    if (status != AQ_OK) {
        aq_free(made);
        return status;
    }
    made->variables = json_incref(variables);
    *out = made;
    return AQ_OK;
}

/* Fails with the names of a list of templates that lacks `name`. */
static enum aq_status fail_name(const char *path, const json_t *list, const char *name)
{
    char names[256] = "";
    size_t used = 0, i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        const char *one = json_string_value(json_object_get(entry, "name"));
        if (one && used < sizeof names - 1)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s\"%.40s\"", used ? ", " : "", one);
    }
    return aq_fail(AQ_NOTFOUND, JINJA_AREA, "%s: has no chat template \"%s\"; it has %s", path, name,
                   names[0] ? names : "one without a name");
}

/* A template's text, in memory of aq_alloc, and what errors call it. */
struct source {
    char *text;
    size_t bytes;
    char called[CALLED_BYTES];
};

static enum aq_status source_take(const json_t *text, struct source *out)
{
    out->bytes = json_string_length(text);
    AQ_TRY(AQ_NEW(out->bytes + 1, &out->text));
    memcpy(out->text, json_string_value(text), out->bytes);
    return AQ_OK;
}

/* `chat_template` of tokenizer_config.json. */
static enum aq_status from_config(const char *path, const json_t *value, const char *name, struct source *out)
{
    const char *wanted = name ? name : "default";
    size_t i;
    json_t *entry;
    snprintf(out->called, sizeof out->called, "%s (chat_template)", path);
    if (json_is_string(value)) {
        if (strcmp(wanted, "default") != 0) return fail_name(path, NULL, wanted);
        return source_take(value, out);
    }
    if (!json_is_array(value))
        return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s: chat_template is neither a text nor a list of them", path);
    json_array_foreach(value, i, entry)
    {
        const json_t *text = json_object_get(entry, "template");
        const char *this_name = json_string_value(json_object_get(entry, "name"));
        if (!this_name || !json_is_string(text))
            return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s: chat_template[%zu] has no name or no template", path, i);
        if (strcmp(this_name, wanted) != 0) continue;
        snprintf(out->called, sizeof out->called, "%s (chat_template \"%.20s\")", path, wanted);
        return source_take(text, out);
    }
    return fail_name(path, value, wanted);
}

static enum aq_status source_find(const char *folder, const char *name, json_t *config, const char *config_path,
                                  struct source *out)
{
    char path[PATH_BYTES_MAX], file[256] = "chat_template.jinja";
    const json_t *value = json_object_get(config, "chat_template");
    if (name && strcmp(name, "default") != 0) {
        if (strchr(name, '/') ||
            snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", name) >= (int)sizeof file)
            return aq_fail(AQ_INVAL, JINJA_AREA, "\"%.64s\" is not the name of a chat template", name);
    }
    AQ_TRY(load(folder, file, AQ_CHAT_TEMPLATE_BYTES_MAX, path, &out->text, &out->bytes));
    snprintf(out->called, sizeof out->called, "%s", path);
    if (out->text) return AQ_OK;
    if (value && !json_is_null(value)) return from_config(config_path, value, name, out);
    return aq_fail(AQ_NOTFOUND, JINJA_AREA,
                   "%s: has neither %s nor a chat_template in tokenizer_config.json. Base models have none: put the "
                   "template to train with into the folder as chat_template.jinja",
                   folder, file);
}

enum aq_status aq_chat_open(const char *folder, const char *name, struct aq_chat_template **out)
{
    char path[PATH_BYTES_MAX], map_path[PATH_BYTES_MAX];
    json_t *config = NULL, *map = NULL, *variables = json_object();
    struct source source = {.text = NULL};
    enum aq_status status;
    if (!variables) return aq_fail(AQ_NOMEM, JINJA_AREA, "no memory for a chat template");
    AQ_TRY_GOTO(load_config(folder, "tokenizer_config.json", path, &config), out);
    AQ_TRY_GOTO(load_config(folder, "special_tokens_map.json", map_path, &map), out);
    take_tokens(variables, config);
    take_tokens(variables, map);
    AQ_TRY_GOTO(source_find(folder, name, config, path, &source), out);
    status = make(source.text, source.bytes, source.called, variables, out);
out:
    aq_free(source.text);
    json_decref(config);
    json_decref(map);
    json_decref(variables);
    return status;
}

enum aq_status aq_chat_source(const char *folder, char **text, size_t *bytes)
{
    char path[PATH_BYTES_MAX];
    json_t *config = NULL;
    struct source source = {.text = NULL};
    enum aq_status status = load_config(folder, "tokenizer_config.json", path, &config);
    if (status == AQ_OK) status = source_find(folder, NULL, config, path, &source);
    json_decref(config);
    if (status == AQ_OK) {
        *text = source.text;
        *bytes = source.bytes;
    } else
        aq_free(source.text);
    return status;
}

enum aq_status aq_chat_parse(const char *text, size_t bytes, const char *called, const char *variables,
                             struct aq_chat_template **out)
{
    json_t *object = NULL;
    if (variables)
        AQ_TRY(aq_chat_object("a template's variables", variables, strlen(variables), &object));
    else if (!(object = json_object()))
        return aq_fail(AQ_NOMEM, JINJA_AREA, "no memory for a chat template");
    const enum aq_status status = make(text, bytes, called, object, out);
    json_decref(object);
    return status;
}

void aq_chat_close(struct aq_chat_template *template_)
{
    if (!template_) return;
    jinja_program_free(template_->program);
    json_decref(template_->variables);
    aq_free(template_);
}

const char *aq_chat_variable(const struct aq_chat_template *template_, const char *name)
{
    return json_string_value(json_object_get(template_->variables, name));
}
