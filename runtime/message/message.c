/* message.c -- see the header: the table, and a line read by its row. */
#include "message.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "control.h"
#include "heartbeat.h"
#include "message_table.h"
#include "stages/dataset.h"

enum { NEEDED = 1, MAY = 0, KEPT = AQ_USE_KEPT, GUEST = AQ_USE_GUEST, PLAIN = 0, ANY_STATE = 0 };
#define IN(state) (1u << AQ_STATE_##state)

/* clang-format off */
#define AQ_MESSAGE(id, key, word, from, to, states, use, help) \
    static const struct aq_message_field fields_##id[] = {
#define AQ_FIELD(id, name, kind, need, min, max, limit, help) \
    AQ_FIELD_AS(id, name, #name, kind, need, min, max, limit, help)
#define AQ_FIELD_AS(id, name, key, kind, need, min, max, limit, help) \
    {key, AQ_KIND_##kind, need, min, max, AQ_LIMIT_##limit, offsetof(struct aq_message, id.name), help},
#define AQ_END(id) {0}}; static_assert(AQ_FIELDS_##id <= 64, "a bit of `there` for each field");
#include "messages.def"
/* clang-format on */

#define EVENT "event"
#define OP    "op"
static const struct aq_message_row rows[AQ_MESSAGES] = {
#define AQ_MESSAGE(id, key, word, from, to, states, use, help)                                                         \
    [AQ_MESSAGE_##id] = {key, word, AQ_END_##from, AQ_END_##to, states, use, help, fields_##id, AQ_FIELDS_##id},
#include "messages.def"
};

static const char *const state_texts[AQ_STATES] = {
#define AQ_STATE(name, text) text,
#include "messages.def"
};

static const char *const limit_texts[AQ_LIMITS] = {
    "",
#define AQ_LIMIT(name, text) text,
#include "messages.def"
};

const struct aq_message_row *aq_message_row(enum aq_message_id id)
{
    return &rows[id];
}

const char *aq_message_state_text(enum aq_message_state state)
{
    return state_texts[state];
}

const char *aq_message_word(enum aq_message_id id)
{
    return rows[id].word;
}

bool aq_message_allowed(enum aq_message_id id, enum aq_message_state state)
{
    return rows[id].states == 0 || rows[id].states & 1u << state;
}

bool aq_message_guest(enum aq_message_id id)
{
    return (rows[id].use & AQ_USE_GUEST) != 0;
}

enum aq_message_id aq_message_find(const json_t *line, enum aq_message_end from, enum aq_message_end to)
{
    const char *const event = json_string_value(json_object_get(line, EVENT));
    const char *const op = json_string_value(json_object_get(line, OP));
    for (int i = 0; i < AQ_MESSAGES; i++) {
        const struct aq_message_row *row = &rows[i];
        const char *word = strcmp(row->key, EVENT) == 0 ? event : op;
        if (row->from == from && row->to == to && word && strcmp(word, row->word) == 0) return (enum aq_message_id)i;
    }
    return AQ_MESSAGES;
}

static bool refuse(struct aq_message_wrong *wrong, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(struct aq_message_wrong *wrong, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wrong->text, sizeof wrong->text, format, arguments);
    va_end(arguments);
    return false;
}

/* A line that is kept has few fields, and in each a number or a name. */
static bool check_kept(const struct aq_message_row *row, json_t *line, struct aq_message_wrong *wrong)
{
    const char *key;
    json_t *value;
    if (json_object_size(line) > AQ_MESSAGE_KEPT_FIELDS)
        return refuse(wrong, "sends a line '%s' of %zu fields; at most %d are known", row->word, json_object_size(line),
                      AQ_MESSAGE_KEPT_FIELDS);
    json_object_foreach(line, key, value)
    {
        const bool plain = json_is_number(value) || json_is_boolean(value) || json_is_null(value) ||
                           (json_is_string(value) && json_string_length(value) <= AQ_MESSAGE_NAME_CHARS);
        if (strlen(key) > AQ_MESSAGE_KEY_CHARS || !plain)
            return refuse(wrong, "sends a line '%s' whose field '%.32s' is neither a number nor a name", row->word,
                          key);
    }
    return true;
}

static double most_of(const struct aq_message_field *field, const struct aq_message_limits *limits)
{
    if (field->limit == AQ_LIMIT_NONE) return field->max > 0 ? field->max : INFINITY;
    return limits ? (double)limits->most[field->limit] : -1;
}

static bool has_only(const json_t *text, enum aq_message_kind kind)
{
    const char *bytes = json_string_value(text);
    const size_t count = json_string_length(text);
    if (kind == AQ_KIND_TEXT) return true;
    for (size_t i = 0; i < count; i++) {
        const bool blank = kind == AQ_KIND_LINES && (bytes[i] == ' ' || bytes[i] == '\n');
        if (!blank && (bytes[i] <= ' ' || bytes[i] > '~')) return false;
    }
    return true;
}

static bool between(const struct aq_message_field *field, const struct aq_message_limits *limits, double number)
{
    const bool bounded = field->min != 0 || field->max > 0 || field->limit != AQ_LIMIT_NONE;
    return !bounded || (number >= field->min && number <= most_of(field, limits));
}

static bool take_number(const struct aq_message_field *field, const json_t *value,
                        const struct aq_message_limits *limits, void *out)
{
    const json_int_t whole = json_integer_value(value);
    switch (field->kind) {
    case AQ_KIND_U64:
        if (!json_is_integer(value) || whole < 0 || !between(field, limits, (double)whole)) return false;
        *(uint64_t *)out = (uint64_t)whole;
        return true;
    case AQ_KIND_I64:
        if (!json_is_integer(value) || !between(field, limits, (double)whole)) return false;
        *(int64_t *)out = whole;
        return true;
    default:
        *(double *)out = json_number_value(value);
        return json_is_number(value) && between(field, limits, *(double *)out);
    }
}

static bool take(const struct aq_message_field *field, const json_t *line, const struct aq_message_limits *limits,
                 void *out)
{
    const json_t *value = json_object_get(line, field->name);
    const char *text = json_string_value(value);
    switch (field->kind) {
    case AQ_KIND_BOOL:
        *(bool *)out = json_is_true(value);
        return json_is_boolean(value);
    case AQ_KIND_OBJECT:
        *(const json_t **)out = value;
        return json_is_object(value);
    case AQ_KIND_HEX: /* not aq_control_get_hex alone: a stranger's line must not fill the log */
        return text && aq_is_hex(text, 16) && aq_control_get_hex(line, field->name, out) == AQ_OK;
    case AQ_KIND_TEXT:
    case AQ_KIND_WORD:
    case AQ_KIND_LINES:
        *(const char **)out = text;
        return text && between(field, limits, (double)json_string_length(value)) && has_only(value, field->kind);
    default:
        return take_number(field, value, limits, out);
    }
}

void aq_message_due(const struct aq_message_field *field, const struct aq_message_limits *limits, char *text,
                    size_t bytes)
{
    static const char *const kinds[] = {
        [AQ_KIND_U64] = "a whole number",    [AQ_KIND_I64] = "a whole number",
        [AQ_KIND_NUMBER] = "a number",       [AQ_KIND_BOOL] = "true or false",
        [AQ_KIND_TEXT] = "a text",           [AQ_KIND_WORD] = "a printable word",
        [AQ_KIND_LINES] = "printable lines", [AQ_KIND_HEX] = "16 hexadecimal digits",
        [AQ_KIND_OBJECT] = "an object",
    };
    const bool text_kind = field->kind >= AQ_KIND_TEXT && field->kind <= AQ_KIND_LINES;
    const double most = most_of(field, limits);
    char range[96] = "";
    const char *name = limit_texts[field->limit];
    if (field->limit != AQ_LIMIT_NONE && !limits)
        snprintf(range, sizeof range, " from %.15g to %s", field->min, name);
    else if (isfinite(most) && field->min == most)
        snprintf(range, sizeof range, " of %.15g", most);
    else if (isfinite(most) && text_kind)
        snprintf(range, sizeof range, " of %.15g to %.15g", field->min, most);
    else if (isfinite(most))
        snprintf(range, sizeof range, " from %.15g to %.15g", field->min, most);
    else if (field->min != 0 || field->kind == AQ_KIND_U64)
        snprintf(range, sizeof range, " of at least %.15g", field->min);
    const bool named = limits && field->limit != AQ_LIMIT_NONE;
    snprintf(text, bytes, "%s%s%s%s%s%s", kinds[field->kind], range, text_kind && range[0] ? " characters" : "",
             named ? " (" : "", named ? name : "", named ? ")" : "");
}

bool aq_message_read(enum aq_message_id id, const json_t *line, const struct aq_message_limits *limits,
                     struct aq_message *out, struct aq_message_wrong *wrong)
{
    const struct aq_message_row *row = aq_message_row(id);
    uint64_t there = 0;
    char due[160];
    memset(out, 0, sizeof *out);
    out->id = id;
    out->line = (json_t *)(uintptr_t)line;
    if ((row->use & AQ_USE_KEPT) && !check_kept(row, out->line, wrong)) return false;
    for (uint32_t i = 0; i < row->count; i++) {
        const struct aq_message_field *field = &row->fields[i];
        const json_t *value = json_object_get(line, field->name);
        const bool has = value && !json_is_null(value);
        if (!has && !field->needed) continue;
        if (has && take(field, line, limits, (char *)out + field->at)) {
            there |= 1ull << i;
            continue;
        }
        aq_message_due(field, limits, due, sizeof due);
        return has ? refuse(wrong, "sends '%s' whose '%s' is not %s", row->word, field->name, due)
                   : refuse(wrong, "sends '%s' without '%s', %s", row->word, field->name, due);
    }
    out->there = there;
    return true;
}
