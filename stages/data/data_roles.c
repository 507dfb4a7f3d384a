/* data_roles.c -- the tables of roles, layouts and speakers. See data_roles.h. */
#include "data_roles.h"

#include <stdio.h>
#include <string.h>

#include "dataset_kind.h"

#define AREA DATASET_AREA

enum { NAMES_MAX = 2, SHOWN_MAX = 12 };

static const struct {
    const char *role, *names[NAMES_MAX];
} roles_table[DATA_ROLES] = {
    [DATA_ROLE_TEXT] = {"text", {"text"}},
    [DATA_ROLE_PROMPT] = {"prompt", {"prompt"}},
    [DATA_ROLE_RESPONSE] = {"response", {"response", "completion"}},
    [DATA_ROLE_INSTRUCTION] = {"instruction", {"instruction"}},
    [DATA_ROLE_INPUT] = {"input", {"input"}},
    [DATA_ROLE_OUTPUT] = {"output", {"output"}},
    [DATA_ROLE_MESSAGES] = {"messages", {"messages", "conversations"}},
    [DATA_ROLE_ROLE] = {"role", {"role", "from"}},
    [DATA_ROLE_CONTENT] = {"content", {"content", "value"}},
    [DATA_ROLE_SYSTEM] = {"system", {"system"}},
};

/* In the order in which they are tried. */
static const struct {
    const char *name;
    uint32_t count;
    enum data_role needs[2];
} layouts[DATA_LAYOUTS] = {
    [DATA_LAYOUT_MESSAGES] = {"messages", 1, {DATA_ROLE_MESSAGES}},
    [DATA_LAYOUT_PAIR] = {"prompt and response", 2, {DATA_ROLE_PROMPT, DATA_ROLE_RESPONSE}},
    [DATA_LAYOUT_ALPACA] = {"instruction and output", 2, {DATA_ROLE_INSTRUCTION, DATA_ROLE_OUTPUT}},
};

static const struct {
    const char *word, *role;
} speakers[] = {{"human", "user"},      {"prompter", "user"}, {"gpt", "assistant"},
                {"chatgpt", "assistant"}, {"bot", "assistant"}, {"model", "assistant"}};

const char *data_speaker(const char *role)
{
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
        if (strcmp(speakers[i].word, role) == 0) return speakers[i].role;
    return role;
}

static enum aq_status name_take(struct data_roles *roles, const char *role, const json_t *name)
{
    for (int i = 0; i < DATA_ROLES; i++) {
        if (strcmp(roles_table[i].role, role) != 0) continue;
        roles->names[i] = json_string_value(name);
        if (roles->names[i] && roles->names[i][0]) return AQ_OK;
        return aq_fail(AQ_INVAL, AREA, "data.fields: %s must be the name of a field, a text", role);
    }
    return aq_fail(AQ_INVAL, AREA,
                   "data.fields: '%.64s' is unknown; it can name text, prompt, response, instruction, input, output, "
                   "messages, role, content and system",
                   role);
}

enum aq_status data_roles_open(const char *fields, struct data_roles *out)
{
    json_error_t error;
    *out = (struct data_roles){0};
    if (!fields) return AQ_OK;
    out->fields = json_loads(fields, 0, &error);
    if (!json_is_object(out->fields))
        return aq_fail(AQ_INVAL, AREA, "data.fields: must be names, as {prompt: question, response: answer}");
    const char *role;
    json_t *name;
    json_object_foreach(out->fields, role, name) AQ_TRY(name_take(out, role, name));
    return AQ_OK;
}

void data_roles_close(struct data_roles *roles)
{
    json_decref(roles->fields);
    *roles = (struct data_roles){0};
}

enum aq_status aq_dataset_fields_check(const char *fields)
{
    struct data_roles roles;
    const enum aq_status status = data_roles_open(fields, &roles);
    data_roles_close(&roles);
    return status;
}

json_t *data_role_of(const struct data_roles *roles, enum data_role role, const json_t *object)
{
    if (roles->names[role]) return json_object_get(object, roles->names[role]);
    for (int i = 0; i < NAMES_MAX && roles_table[role].names[i]; i++) {
        json_t *member = json_object_get(object, roles_table[role].names[i]);
        if (member) return member;
    }
    return NULL;
}

const char *data_role_name(const struct data_roles *roles, enum data_role role)
{
    return roles->names[role] ? roles->names[role] : roles_table[role].role;
}

/* How many of a layout's roles an object has. */
static uint32_t layout_has(const struct data_roles *roles, const json_t *object, enum data_layout layout)
{
    uint32_t has = 0;
    for (uint32_t i = 0; i < layouts[layout].count; i++)
        has += data_role_of(roles, layouts[layout].needs[i], object) != NULL;
    return has;
}

enum data_layout data_layout_of(const struct data_roles *roles, const json_t *object)
{
    for (int i = 0; i < DATA_LAYOUTS; i++)
        if (layout_has(roles, object, (enum data_layout)i) == layouts[i].count) return (enum data_layout)i;
    return DATA_LAYOUTS;
}

const char *data_layout_name(enum data_layout layout)
{
    return layout < DATA_LAYOUTS ? layouts[layout].name : "none";
}

/* "q", "a": the names that an object has, and how to name them. */
static void names_add(const json_t *object, const char *example, char *text, size_t bytes)
{
    size_t used = strlen(text), shown = 0;
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)object, name, member)
    {
        if (shown == SHOWN_MAX || used >= bytes) break;
        used += (size_t)snprintf(text + used, bytes - used, "%s\"%.40s\"", shown ? ", " : "; its fields are ", name);
        shown++;
    }
    if (used < bytes) snprintf(text + used, bytes - used, "; name yours in data.fields, as %s", example);
}

void data_text_missing(const struct data_roles *roles, const json_t *object, char *text, size_t bytes)
{
    const char *name = data_role_name(roles, DATA_ROLE_TEXT);
    const bool other = json_object_get(object, name) != NULL; /* of another type: no other name would help */
    snprintf(text, bytes, other ? "has a \"%s\" that is not a string" : "has no \"%s\" that is a string", name);
    if (data_layout_of(roles, object) != DATA_LAYOUTS)
        snprintf(text + strlen(text), bytes - strlen(text), ", but it has answers: set data.kind: instruct");
    else if (!other)
        names_add(object, "{text: body}", text, bytes);
}

void data_layout_missing(const struct data_roles *roles, const json_t *object, char *text, size_t bytes)
{
    snprintf(text, bytes, "has no \"%s\", and no \"%s\"", data_role_name(roles, DATA_ROLE_PROMPT),
             data_role_name(roles, DATA_ROLE_MESSAGES));
    for (int i = 0; i < DATA_LAYOUTS; i++) {
        if (layout_has(roles, object, (enum data_layout)i) == 0) continue;
        for (uint32_t r = 0; r < layouts[i].count; r++)
            if (!data_role_of(roles, layouts[i].needs[r], object))
                snprintf(text, bytes, "has no \"%s\"", data_role_name(roles, layouts[i].needs[r]));
    }
    names_add(object, "{prompt: question, response: answer}", text, bytes);
}
