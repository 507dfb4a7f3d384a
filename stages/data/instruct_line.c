/* instruct_line.c -- see instruct_line.h. */
#include "instruct_line.h"

#include <stdio.h>
#include <string.h>

#include "dataset_kind.h"

#define AREA DATASET_AREA

enum { WHY_BYTES = 700 };

static enum aq_status refuse(const char *place, const char *format, const char *name)
{
    char why[WHY_BYTES];
    snprintf(why, sizeof why, format, name);
    return aq_fail(AQ_CORRUPT, AREA, "%s: %s", place, why);
}

static enum aq_status no_memory(const char *place)
{
    return aq_fail(AQ_NOMEM, AREA, "%s: no memory for its messages", place);
}

/* ---- messages ---- */

/* A message with the names that chat templates read; a new reference, or NULL: it is no object, or has no role. */
static json_t *message_of(const struct data_roles *roles, json_t *given)
{
    const json_t *role = data_role_of(roles, DATA_ROLE_ROLE, given);
    json_t *content = data_role_of(roles, DATA_ROLE_CONTENT, given);
    if (!json_is_string(role)) return NULL;
    const char *speaker = data_speaker(json_string_value(role));
    if (json_object_get(given, "role") == role && speaker == json_string_value(role) &&
        (!content || json_object_get(given, "content") == content))
        return json_incref(given);
    json_t *message = json_copy(given);
    if (message && (json_object_set_new(message, "role", json_string(speaker)) != 0 ||
                    (content && json_object_set(message, "content", content) != 0))) {
        json_decref(message);
        return NULL;
    }
    return message;
}

/* Those of `list` behind the others; *answers: how many are of an assistant. */
static enum aq_status messages_add(const struct data_roles *roles, const json_t *list, const char *place, json_t *to,
                                   uint32_t *answers)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message = message_of(roles, json_array_get(list, i));
        if (!message)
            return aq_fail(AQ_CORRUPT, AREA,
                           "%s: messages[%zu] has no \"%s\" and \"%s\" that are texts (other names: data.fields)",
                           place, i, data_role_name(roles, DATA_ROLE_ROLE), data_role_name(roles, DATA_ROLE_CONTENT));
        const char *role = json_string_value(json_object_get(message, "role"));
        *answers += role && strcmp(role, "assistant") == 0;
        if (json_array_append_new(to, message) != 0) return no_memory(place);
    }
    return AQ_OK;
}

static enum aq_status text_add(json_t *to, const char *role, const char *text, size_t bytes, const char *place)
{
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, bytes);
    return json_array_append_new(to, message) == 0 ? AQ_OK : no_memory(place);
}

/* The object with its messages replaced by these (tools and documents stay); takes `messages`. */
static enum aq_status line_make(json_t *object, json_t *messages, const char *place, struct instruct_line *out)
{
    json_t *line = json_copy(object);
    if (!line || json_object_set(line, "messages", messages) != 0) {
        json_decref(line);
        return no_memory(place);
    }
    out->messages = line;
    return AQ_OK;
}

/* A separate system text goes in front, unless the messages start with one. */
static enum aq_status system_add(const struct data_roles *roles, const json_t *object, const json_t *list, json_t *to,
                                 const char *place)
{
    const json_t *system = data_role_of(roles, DATA_ROLE_SYSTEM, object);
    const json_t *role = data_role_of(roles, DATA_ROLE_ROLE, json_array_get(list, 0));
    if (!json_is_string(system) || json_string_length(system) == 0) return AQ_OK;
    if (json_is_string(role) && strcmp(json_string_value(role), "system") == 0) return AQ_OK;
    return text_add(to, "system", json_string_value(system), json_string_length(system), place);
}

static enum aq_status from_messages(const struct data_roles *roles, json_t *object, const char *place,
                                    struct instruct_line *out)
{
    const json_t *list = data_role_of(roles, DATA_ROLE_MESSAGES, object);
    uint32_t answers = 0;
    if (!json_is_array(list))
        return refuse(place, "has no list \"%s\" of messages", data_role_name(roles, DATA_ROLE_MESSAGES));
    json_t *messages = json_array();
    enum aq_status status = messages ? system_add(roles, object, list, messages, place) : no_memory(place);
    if (status == AQ_OK) status = messages_add(roles, list, place, messages, &answers);
    if (status == AQ_OK) status = line_make(object, messages, place, out);
    json_decref(messages);
    return status;
}

/* ---- prompt and response ---- */

/* TRL's conversations: the prompt is a list of messages, the completion one, too (or a text). */
static enum aq_status from_lists(const struct data_roles *roles, json_t *object, const char *place,
                                 struct instruct_line *out)
{
    const json_t *prompt = data_role_of(roles, DATA_ROLE_PROMPT, object);
    const json_t *response = data_role_of(roles, DATA_ROLE_RESPONSE, object);
    uint32_t learnt = 0;
    json_t *messages = json_array();
    enum aq_status status = messages ? system_add(roles, object, prompt, messages, place) : no_memory(place);
    if (status == AQ_OK) status = messages_add(roles, prompt, place, messages, &out->earlier);
    if (status == AQ_OK && json_is_string(response))
        status = text_add(messages, "assistant", json_string_value(response), json_string_length(response), place);
    else if (status == AQ_OK)
        status = messages_add(roles, response, place, messages, &learnt);
    if (status == AQ_OK && json_is_array(response) && learnt == 0)
        status = refuse(place, "its \"%s\" has no message of an assistant", data_role_name(roles, DATA_ROLE_RESPONSE));
    if (status == AQ_OK) status = line_make(object, messages, place, out);
    json_decref(messages);
    return status;
}

static enum aq_status from_pair(const struct data_roles *roles, json_t *object, const char *place,
                                struct instruct_line *out)
{
    const json_t *prompt = data_role_of(roles, DATA_ROLE_PROMPT, object);
    const json_t *response = data_role_of(roles, DATA_ROLE_RESPONSE, object);
    if (json_is_array(prompt) && (json_is_array(response) || json_is_string(response)))
        return from_lists(roles, object, place, out);
    if (!json_is_string(prompt))
        return refuse(place, "has no \"%s\" that is a string, or with its response a list of messages",
                      data_role_name(roles, DATA_ROLE_PROMPT));
    if (!json_is_string(response))
        return refuse(place, "has no \"%s\" that is a string", data_role_name(roles, DATA_ROLE_RESPONSE));
    if (json_string_length(response) == 0) return refuse(place, "its %s is empty", "response");
    out->prompt = json_string_value(prompt);
    out->prompt_bytes = json_string_length(prompt);
    out->response = json_string_value(response);
    out->response_bytes = json_string_length(response);
    return AQ_OK;
}

/* ---- instruction and output ---- */

static enum aq_status alpaca_text(const json_t *instruction, const json_t *input, struct instruct_line *out)
{
    static const char with[] = "Below is an instruction that describes a task, paired with an input that provides "
                               "further context. Write a response that appropriately completes the request.\n\n";
    static const char without[] = "Below is an instruction that describes a task. Write a response that appropriately "
                                  "completes the request.\n\n";
    const size_t more = json_string_length(input);
    const char *const parts[] = {more ? with : without,
                                 "### Instruction:\n",
                                 json_string_value(instruction),
                                 more ? "\n\n### Input:\n" : "",
                                 more ? json_string_value(input) : "",
                                 "\n\n### Response:"};
    const size_t lengths[] = {strlen(parts[0]),           strlen(parts[1]), json_string_length(instruction),
                              strlen(parts[3]), more,     strlen(parts[5])};
    void *memory;
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        bytes += lengths[i];
    AQ_TRY(aq_alloc(bytes + 1, &memory));
    out->prompt = out->text = memory;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        memcpy(out->text + out->prompt_bytes, parts[i], lengths[i]);
        out->prompt_bytes += lengths[i];
    }
    return AQ_OK;
}

static enum aq_status alpaca_messages(const struct data_roles *roles, json_t *object, const json_t *const parts[3],
                                      const char *place, struct instruct_line *out)
{
    const size_t asked = json_string_length(parts[0]), more = json_string_length(parts[1]);
    char *text;
    AQ_TRY(AQ_NEW(asked + more + 3, &text));
    memcpy(text, json_string_value(parts[0]), asked);
    if (more) memcpy(text + asked, "\n\n", 2);
    if (more) memcpy(text + asked + 2, json_string_value(parts[1]), more);
    json_t *messages = json_array();
    enum aq_status status = messages ? system_add(roles, object, NULL, messages, place) : no_memory(place);
    if (status == AQ_OK) status = text_add(messages, "user", text, asked + (more ? more + 2 : 0), place);
    if (status == AQ_OK)
        status = text_add(messages, "assistant", json_string_value(parts[2]), json_string_length(parts[2]), place);
    if (status == AQ_OK) status = line_make(object, messages, place, out);
    json_decref(messages);
    aq_free(text);
    return status;
}

static enum aq_status from_alpaca(const struct data_roles *roles, json_t *object, const char *place, bool chats,
                                  struct instruct_line *out)
{
    static const enum data_role needs[] = {DATA_ROLE_INSTRUCTION, DATA_ROLE_INPUT, DATA_ROLE_OUTPUT};
    const json_t *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = data_role_of(roles, needs[i], object);
        if (json_is_null(parts[i])) parts[i] = NULL;
        if (!json_is_string(parts[i]) && (parts[i] || i != 1))
            return refuse(place, "has no \"%s\" that is a string", data_role_name(roles, needs[i]));
    }
    if (json_string_length(parts[2]) == 0) return refuse(place, "its %s is empty", "output");
    if (json_array_size(json_object_get(object, "history")) > 0)
        return refuse(place, "has a \"%s\", which is not read: write its turns as messages", "history");
    if (chats) return alpaca_messages(roles, object, parts, place, out);
    AQ_TRY(alpaca_text(parts[0], parts[1], out));
    out->response = json_string_value(parts[2]);
    out->response_bytes = json_string_length(parts[2]);
    return AQ_OK;
}

static enum aq_status line_of(const struct data_roles *roles, json_t *object, const char *place, bool chats,
                              struct instruct_line *out)
{
    char why[WHY_BYTES];
    switch (data_layout_of(roles, object)) {
    case DATA_LAYOUT_MESSAGES:
        return from_messages(roles, object, place, out);
    case DATA_LAYOUT_PAIR:
        return from_pair(roles, object, place, out);
    case DATA_LAYOUT_ALPACA:
        return from_alpaca(roles, object, place, chats, out);
    default:
        data_layout_missing(roles, object, why, sizeof why);
        return aq_fail(AQ_CORRUPT, AREA, "%s: %s", place, why);
    }
}

enum aq_status instruct_line_of(const struct data_roles *roles, json_t *object, const char *place, bool chats,
                                struct instruct_line *out)
{
    *out = (struct instruct_line){0};
    const enum aq_status status = line_of(roles, object, place, chats, out);
    if (status != AQ_OK) instruct_line_free(out);
    return status;
}

void instruct_line_free(struct instruct_line *line)
{
    json_decref(line->messages);
    aq_free(line->text);
    *line = (struct instruct_line){0};
}
