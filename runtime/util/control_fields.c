/* control_fields.c -- typed reading of one control message; whatever is wrong becomes a sentence that names the field.
 */
#include "control.h"

#include <math.h>
#include <string.h>

/* Name of the message in log lines: its "op" or "event". */
static const char *kind(const json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "op"));
    if (!text) text = json_string_value(json_object_get(message, "event"));
    return text ? text : "?";
}

static enum aq_status bad(const json_t *message, const char *key, const char *wanted)
{
    return aq_fail(AQ_PROTO, "control", "message '%.40s': field '%s' is missing or not a %s", kind(message), key,
                   wanted);
}

enum aq_status aq_control_get_text(const json_t *message, const char *key, const char **out)
{
    const char *text = json_string_value(json_object_get(message, key));
    if (!text) return bad(message, key, "text");
    *out = text;
    return AQ_OK;
}

enum aq_status aq_control_get_u64(const json_t *message, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(message, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return bad(message, key, "whole number of at least 0");
    *out = (uint64_t)json_integer_value(value);
    return AQ_OK;
}

enum aq_status aq_control_get_u32(const json_t *message, const char *key, uint32_t *out)
{
    const json_t *value = json_object_get(message, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX)
        return bad(message, key, "whole number of 32 bits");
    *out = (uint32_t)json_integer_value(value);
    return AQ_OK;
}

enum aq_status aq_control_get_number(const json_t *message, const char *key, double *out)
{
    const json_t *value = json_object_get(message, key);
    if (json_is_null(value))
        *out = (double)NAN;
    else if (json_is_number(value))
        *out = json_number_value(value);
    else
        return bad(message, key, "number");
    return AQ_OK;
}

const char *aq_control_text_or(const json_t *message, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(message, key));
    return text ? text : otherwise;
}

uint64_t aq_control_u64_or(const json_t *message, const char *key, uint64_t otherwise)
{
    const json_t *value = json_object_get(message, key);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? (uint64_t)json_integer_value(value) : otherwise;
}

int64_t aq_control_i64_or(const json_t *message, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(message, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : otherwise;
}

double aq_control_number_or(const json_t *message, const char *key, double otherwise)
{
    const json_t *value = json_object_get(message, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

double aq_control_number_at(const json_t *message, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(message, key), i);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

double aq_control_number_in(const json_t *message, const char *outer, const char *key)
{
    return aq_control_number_or(json_object_get(message, outer), key, (double)NAN);
}

double aq_control_carried(double bytes, double left)
{
    return bytes > 0 && bytes < 1e18 ? bytes * (left > 0 && left <= 1 ? left : 1) : 0;
}

bool aq_control_bool_or(const json_t *message, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(message, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

bool aq_control_is(const json_t *message, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(message, key));
    return value && strcmp(value, text) == 0;
}

json_t *aq_control_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *aq_control_hex(uint64_t value)
{
    return json_sprintf("%016llx", (unsigned long long)value);
}

enum aq_status aq_control_get_hex(const json_t *message, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(message, key));
    uint64_t value = 0;
    size_t at = 0;
    for (; text && text[at] && at <= 16; at++) {
        const char c = text[at];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return bad(message, key, "text of 16 hexadecimal digits");
        value = value << 4 | (uint64_t)digit;
    }
    if (at != 16) return bad(message, key, "text of 16 hexadecimal digits");
    *out = value;
    return AQ_OK;
}
