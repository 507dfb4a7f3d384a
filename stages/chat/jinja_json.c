/*
 * jinja_json.c -- values as text: str() and repr() of Python, and json.dumps.
 *
 * Text is written into a buffer of the run's heap that doubles. The depth of what is written is bounded.
 */
#include "jinja.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    struct jinja_run *run;
    const struct jinja_json_style *json; /* NULL: repr */
    char *at;
    size_t bytes, capacity;
    uint32_t nesting;
};

static enum aq_status put(struct writer *w, const char *text, size_t bytes)
{
    void *memory;
    if (w->bytes + bytes > w->capacity) {
        size_t capacity = w->capacity ? w->capacity * 2 : 128;
        if (capacity < w->bytes + bytes) capacity = w->bytes + bytes;
        AQ_TRY(jinja_heap(w->run, capacity, &memory));
        if (w->bytes) memcpy(memory, w->at, w->bytes);
        w->at = memory;
        w->capacity = capacity;
    }
    if (bytes) memcpy(w->at + w->bytes, text, bytes);
    w->bytes += bytes;
    return AQ_OK;
}

static enum aq_status put_text(struct writer *w, const char *text)
{
    return put(w, text, strlen(text));
}

/* The shortest decimals that read back as the same value, as Python writes them. */
static enum aq_status put_real(struct writer *w, double value)
{
    char digits[40], text[80];
    int precision = 1;
    if (!isfinite(value)) {
        const bool nan = isnan(value);
        if (w->json) return put_text(w, nan ? "NaN" : value < 0 ? "-Infinity" : "Infinity");
        return put_text(w, nan ? "nan" : value < 0 ? "-inf" : "inf");
    }
    for (; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision - 1, value);
        if (strtod(digits, NULL) == value) break;
    }
    snprintf(digits, sizeof digits, "%.*e", precision - 1, value);
    const long exponent = strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) return put_text(w, digits);
    const int decimals = precision - 1 - (int)exponent;
    snprintf(text, sizeof text, "%.*f", decimals > 1 ? decimals : 1, value);
    return put_text(w, text);
}

static enum aq_status put_json_string(struct writer *w, struct jinja_value string)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    AQ_TRY(put(w, "\"", 1));
    uint32_t length;
    for (uint32_t i = 0; i < string.bytes; i += length) {
        const uint32_t c = jinja_decode(string.text + i, &length);
        const char *found = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        char text[16];
        if (found)
            snprintf(text, sizeof text, "\\%c", to[found - from]);
        else if (c < 0x20 || (w->json->ascii && c >= 0x7F && c < 0x10000))
            snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        else if (w->json->ascii && c >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((unsigned)(c - 0x10000) >> 10),
                     0xDC00 + ((unsigned)(c - 0x10000) & 0x3FF));
        else {
            AQ_TRY(put(w, string.text + i, length));
            continue;
        }
        AQ_TRY(put_text(w, text));
    }
    return put(w, "\"", 1);
}

static enum aq_status put_repr_string(struct writer *w, struct jinja_value string)
{
    const bool single = memchr(string.text ? string.text : "", '\'', string.bytes) != NULL;
    const bool twofold = memchr(string.text ? string.text : "", '"', string.bytes) != NULL;
    const char quote = single && !twofold ? '"' : '\'';
    AQ_TRY(put(w, &quote, 1));
    uint32_t length;
    for (uint32_t i = 0; i < string.bytes; i += length) {
        const uint32_t c = jinja_decode(string.text + i, &length);
        char text[16];
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == '\\' || c == (uint32_t)quote)
            snprintf(text, sizeof text, "\\%c", (char)c);
        else if (jinja_is_printable(c)) {
            AQ_TRY(put(w, string.text + i, length));
            continue;
        } else
            snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        AQ_TRY(put_text(w, text));
    }
    return put(w, &quote, 1);
}

static enum aq_status put_value(struct writer *w, struct jinja_value value);

/* A new line of the pretty form, or the separator of two items. */
static enum aq_status between(struct writer *w, bool first, bool last)
{
    const struct jinja_json_style *style = w->json;
    if (!style) return first || last ? AQ_OK : put(w, ", ", 2);
    if (!first && !last) AQ_TRY(put(w, style->item.text, style->item.bytes));
    if (!style->pretty) return AQ_OK;
    AQ_TRY(put(w, "\n", 1));
    for (uint32_t i = 0; i < w->nesting - last; i++)
        AQ_TRY(put(w, style->indent.text, style->indent.bytes));
    return AQ_OK;
}

/* A key of JSON is always a string. */
static enum aq_status put_key(struct writer *w, struct jinja_value key)
{
    if (!w->json || key.kind == JINJA_STRING) return put_value(w, key);
    if (key.kind < JINJA_NONE || key.kind > JINJA_FLOAT)
        return jinja_fail(w->run, AQ_INVAL, "a %s cannot be a key in JSON", jinja_kind_text(key));
    AQ_TRY(put(w, "\"", 1));
    AQ_TRY(put_value(w, key));
    return put(w, "\"", 1);
}

static enum aq_status put_dict(struct writer *w, const struct jinja_dict *dict)
{
    struct jinja_pair *pairs = dict->pairs;
    AQ_TRY(put(w, "{", 1));
    if (w->json && w->json->sort && dict->count) {
        void *memory;
        AQ_TRY(jinja_heap(w->run, dict->count * sizeof *pairs, &memory));
        pairs = memory;
        for (uint32_t i = 0; i < dict->count; i++) { /* by insertion: dicts are small */
            uint32_t place = i;
            for (; place > 0; place--) {
                int order;
                AQ_TRY(jinja_order(w->run, pairs[place - 1].key, dict->pairs[i].key, &order));
                if (order <= 0) break;
                pairs[place] = pairs[place - 1];
            }
            pairs[place] = dict->pairs[i];
        }
    }
    for (uint32_t i = 0; i < dict->count; i++) {
        AQ_TRY(between(w, i == 0, false));
        AQ_TRY(put_key(w, pairs[i].key));
        AQ_TRY(w->json ? put(w, w->json->key.text, w->json->key.bytes) : put(w, ": ", 2));
        AQ_TRY(put_value(w, pairs[i].value));
    }
    if (dict->count) AQ_TRY(between(w, false, true));
    return put(w, "}", 1);
}

static enum aq_status put_list(struct writer *w, struct jinja_value value)
{
    const struct jinja_list *list = value.list;
    const bool tuple = !w->json && value.form == JINJA_FORM_TUPLE;
    if (value.form > JINJA_FORM_TUPLE)
        return jinja_fail(w->run, AQ_INVAL, "%s has no text: use \"| list\"", jinja_kind_text(value));
    AQ_TRY(put(w, tuple ? "(" : "[", 1));
    for (uint32_t i = 0; i < list->count; i++) {
        AQ_TRY(between(w, i == 0, false));
        AQ_TRY(put_value(w, list->items[i]));
    }
    if (list->count) AQ_TRY(between(w, false, true));
    if (tuple && list->count == 1) AQ_TRY(put(w, ",", 1));
    return put(w, tuple ? ")" : "]", 1);
}

static enum aq_status put_value(struct writer *w, struct jinja_value value)
{
    char text[32];
    enum aq_status status;
    AQ_TRY(jinja_charge(w->run, 0));
    switch (value.kind) {
    case JINJA_NONE:
        return put_text(w, w->json ? "null" : "None");
    case JINJA_BOOL:
        return put_text(w, value.integer ? w->json ? "true" : "True" : w->json ? "false" : "False");
    case JINJA_INT:
        snprintf(text, sizeof text, "%" PRId64, value.integer);
        return put_text(w, text);
    case JINJA_FLOAT:
        return put_real(w, value.real);
    case JINJA_STRING:
        if (!w->json && value.form)
            return jinja_fail(w->run, AQ_INVAL, "a result of \"safe\" or \"escape\" within a list is not supported");
        return w->json ? put_json_string(w, value) : put_repr_string(w, value);
    case JINJA_LIST:
    case JINJA_DICT:
        if (++w->nesting > JINJA_VALUE_NESTING_MAX)
            return jinja_fail(w->run, AQ_NOSPC, "lists within lists are too deep (JINJA_VALUE_NESTING_MAX)");
        status = value.kind == JINJA_LIST ? put_list(w, value) : put_dict(w, value.dict);
        w->nesting--;
        return status;
    case JINJA_UNDEFINED:
        if (!w->json) return put_text(w, "Undefined");
        return jinja_fail(w->run, AQ_INVAL, "'%.*s' is undefined and cannot be written as JSON",
                          value.bytes < 80 ? (int)value.bytes : 80, value.text);
    default:
        return jinja_fail(w->run, AQ_INVAL, "a %s has no %s", jinja_kind_text(value), w->json ? "JSON" : "text");
    }
}

enum aq_status jinja_text(struct jinja_run *run, struct jinja_value value, struct jinja_value *out)
{
    struct writer w = {.run = run};
    if (value.kind == JINJA_STRING) {
        *out = value;
        return AQ_OK;
    }
    if (value.kind == JINJA_UNDEFINED) {
        *out = jinja_borrow("", 0);
        return AQ_OK;
    }
    AQ_TRY(put_value(&w, value));
    *out = jinja_borrow(w.at, w.bytes);
    return AQ_OK;
}

enum aq_status jinja_to_json(struct jinja_run *run, struct jinja_value value, const struct jinja_json_style *style,
                             struct jinja_value *out)
{
    struct writer w = {.run = run, .json = style};
    AQ_TRY(put_value(&w, value));
    *out = jinja_borrow(w.at, w.bytes);
    return AQ_OK;
}
