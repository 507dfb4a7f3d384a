/*
 * jinja_filter.c -- filters and tests, by name. A filter that Jinja has and this table has not is refused by its name.
 */
#include "jinja.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum aq_status filter_run(JINJA_CALL(in));

static bool given(struct jinja_value v)
{
    return v.kind != JINJA_MISSING;
}

static bool truth_or(struct jinja_value v, bool otherwise)
{
    return given(v) ? jinja_truth(v) : otherwise;
}

static enum aq_status none(struct jinja_run *run, const struct jinja_args *args, const char *what)
{
    return jinja_bind(run, args, what, "", 0, NULL);
}

/* ---- text ---- */

static enum aq_status cased(JINJA_CALL(in))
{
    struct jinja_value text;
    AQ_TRY(none(run, args, "the filter"));
    AQ_TRY(jinja_text(run, in, &text));
    AQ_TRY(jinja_case(run, text, (enum jinja_case)args->how, out));
    out->form = text.form;
    return AQ_OK;
}

static enum aq_status f_trim(JINJA_CALL(in))
{
    struct jinja_value text, of[1];
    AQ_TRY(jinja_bind(run, args, "trim", "chars", 0, of));
    AQ_TRY(jinja_text(run, in, &text));
    if (given(of[0]) && of[0].kind != JINJA_NONE) AQ_TRY(jinja_want_text(run, of[0], "trim"));
    AQ_TRY(jinja_charge(run, (uint64_t)text.bytes * (given(of[0]) ? of[0].bytes + 1 : 1)));
    *out = jinja_strip(text, of[0], true, true);
    return AQ_OK;
}

static enum aq_status f_string(JINJA_CALL(in))
{
    AQ_TRY(none(run, args, "string"));
    return jinja_text(run, in, out);
}

static enum aq_status f_safe(JINJA_CALL(in))
{
    AQ_TRY(none(run, args, "safe"));
    AQ_TRY(jinja_text(run, in, out));
    out->form = 1;
    return AQ_OK;
}

static enum aq_status f_escape(JINJA_CALL(in))
{
    AQ_TRY(none(run, args, "escape"));
    AQ_TRY(jinja_text(run, in, out));
    return out->form ? AQ_OK : jinja_escape(run, *out, out);
}

static enum aq_status f_replace(JINJA_CALL(in))
{
    struct jinja_value text, of[3];
    int64_t count = -1;
    AQ_TRY(jinja_bind(run, args, "replace", "old new count", 2, of));
    AQ_TRY(jinja_text(run, in, &text));
    AQ_TRY(jinja_text(run, of[0], &of[0]));
    AQ_TRY(jinja_text(run, of[1], &of[1]));
    if (of[2].kind == JINJA_INT)
        count = of[2].integer < 0 ? -1 : of[2].integer;
    else if (given(of[2]) && of[2].kind != JINJA_NONE)
        return jinja_fail(run, AQ_INVAL, "replace needs a whole number, not a %s", jinja_kind_text(of[2]));
    return jinja_replace(run, text, of[0], of[1], count, out);
}

static enum aq_status f_indent(JINJA_CALL(in))
{
    struct jinja_value text, lines, of[3], width = jinja_borrow("    ", 4);
    const struct jinja_value newline = jinja_borrow("\n", 1);
    AQ_TRY(jinja_bind(run, args, "indent", "width first blank", 0, of));
    AQ_TRY(jinja_text(run, in, &text));
    if (text.form) return jinja_fail(run, AQ_INVAL, "indent after \"safe\" is not supported");
    if (of[0].kind == JINJA_STRING)
        width = of[0];
    else if (of[0].kind == JINJA_INT)
        AQ_TRY(jinja_binary(run, JINJA_T_MUL, jinja_borrow(" ", 1), of[0], &width));
    else if (given(of[0]))
        return jinja_fail(run, AQ_INVAL, "indent needs a number or a str, not a %s", jinja_kind_text(of[0]));
    AQ_TRY(jinja_join(run, text, newline, &text));
    AQ_TRY(jinja_lines(run, text, false, &lines));
    *out = truth_or(of[1], false) ? width : jinja_borrow("", 0);
    for (uint32_t i = 0; i < lines.list->count; i++) {
        const struct jinja_value line = lines.list->items[i];
        if (i > 0) AQ_TRY(jinja_join(run, *out, newline, out));
        if (i > 0 && (line.bytes || truth_or(of[2], false))) AQ_TRY(jinja_join(run, *out, width, out));
        AQ_TRY(jinja_join(run, *out, line, out));
    }
    return AQ_OK;
}

static enum aq_status f_tojson(JINJA_CALL(in))
{
    struct jinja_value of[4];
    AQ_TRY(jinja_bind(run, args, "tojson", "ensure_ascii indent separators sort_keys", 0, of));
    struct jinja_json_style style = {.ascii = truth_or(of[0], false),
                                     .sort = truth_or(of[3], false),
                                     .item = jinja_borrow(", ", 2),
                                     .key = jinja_borrow(": ", 2)};
    if (of[1].kind == JINJA_STRING || of[1].kind == JINJA_INT) {
        style.pretty = true;
        style.item = jinja_borrow(",", 1);
        style.indent = of[1];
        if (of[1].kind == JINJA_INT) AQ_TRY(jinja_binary(run, JINJA_T_MUL, jinja_borrow(" ", 1), of[1], &style.indent));
    } else if (given(of[1]) && of[1].kind != JINJA_NONE) {
        return jinja_fail(run, AQ_INVAL, "tojson: indent is a number, not a %s", jinja_kind_text(of[1]));
    }
    if (given(of[2]) && of[2].kind != JINJA_NONE) {
        const bool pair = of[2].kind == JINJA_LIST && of[2].form <= JINJA_FORM_TUPLE && of[2].list->count == 2;
        if (!pair || of[2].list->items[0].kind != JINJA_STRING || of[2].list->items[1].kind != JINJA_STRING)
            return jinja_fail(run, AQ_INVAL, "tojson: separators are two texts");
        style.item = of[2].list->items[0];
        style.key = of[2].list->items[1];
    }
    return jinja_to_json(run, in, &style, out);
}

/* ---- numbers ---- */

/* A Python number's text: digits with single _ between them, white space around. */
static bool number_text(struct jinja_value text, char *out, size_t room)
{
    size_t used = 0;
    text = jinja_strip(text, (struct jinja_value){0}, true, true);
    for (uint32_t i = 0; i < text.bytes; i++) {
        if (text.text[i] == '_' && i > 0 && i + 1 < text.bytes && text.text[i - 1] != '_') continue;
        if (used + 1 == room || text.text[i] == 0) return false;
        out[used++] = text.text[i];
    }
    out[used] = 0;
    return used > 0 && !strpbrk(out, "xXpP");
}

static bool to_real(struct jinja_value in, double *out)
{
    char text[128], *end;
    if (in.kind == JINJA_INT || in.kind == JINJA_BOOL)
        *out = (double)in.integer;
    else if (in.kind == JINJA_FLOAT)
        *out = in.real;
    else if (in.kind == JINJA_STRING && number_text(in, text, sizeof text) && !strchr(text, '('))
        return *out = strtod(text, &end), *end == 0;
    else
        return false;
    return true;
}

static enum aq_status f_int(JINJA_CALL(in))
{
    struct jinja_value of[2];
    char text[128], *end;
    double real;
    AQ_TRY(jinja_bind(run, args, "int", "default base", 0, of));
    if (given(of[1]) && (of[1].kind != JINJA_INT || of[1].integer != 10))
        return jinja_fail(run, AQ_INVAL, "int: only base 10 is supported");
    *out = given(of[0]) ? of[0] : jinja_int(0);
    if (in.kind == JINJA_UNDEFINED) return jinja_fail(run, AQ_INVAL, "int of an undefined value");
    if (in.kind == JINJA_INT || in.kind == JINJA_BOOL) {
        *out = jinja_int(in.integer);
        return AQ_OK;
    }
    if (in.kind == JINJA_STRING && number_text(in, text, sizeof text)) {
        errno = 0;
        const long long value = strtoll(text, &end, 10);
        if (*end == 0 && errno == ERANGE) return jinja_fail(run, AQ_INVAL, "a whole number of more than 64 bits");
        if (*end == 0) {
            *out = jinja_int(value);
            return AQ_OK;
        }
    }
    if (!to_real(in, &real) || isnan(real)) return AQ_OK;
    if (fabs(real) >= 0x1p63) return jinja_fail(run, AQ_INVAL, "a whole number of more than 64 bits");
    *out = jinja_int((int64_t)real);
    return AQ_OK;
}

static enum aq_status f_float(JINJA_CALL(in))
{
    struct jinja_value of[1];
    double real;
    AQ_TRY(jinja_bind(run, args, "float", "default", 0, of));
    if (in.kind == JINJA_UNDEFINED) return jinja_fail(run, AQ_INVAL, "float of an undefined value");
    *out = given(of[0]) ? of[0] : (struct jinja_value){.kind = JINJA_FLOAT};
    if (to_real(in, &real)) *out = (struct jinja_value){.kind = JINJA_FLOAT, .real = real};
    return AQ_OK;
}

static enum aq_status f_abs(JINJA_CALL(in))
{
    AQ_TRY(none(run, args, "abs"));
    if (in.kind == JINJA_FLOAT) {
        *out = (struct jinja_value){.kind = JINJA_FLOAT, .real = fabs(in.real)};
        return AQ_OK;
    }
    if (in.kind != JINJA_INT && in.kind != JINJA_BOOL)
        return jinja_fail(run, AQ_INVAL, "abs needs a number, not a %s", jinja_kind_text(in));
    return in.integer < 0 ? jinja_binary(run, JINJA_T_SUB, jinja_int(0), in, out)
                          : jinja_binary(run, JINJA_T_ADD, jinja_int(0), in, out);
}

static enum aq_status f_round(JINJA_CALL(in))
{
    struct jinja_value of[2];
    char text[400];
    AQ_TRY(jinja_bind(run, args, "round", "precision method", 0, of));
    const int64_t precision = of[0].kind == JINJA_INT ? of[0].integer : 0;
    if (given(of[1]) && !jinja_is(of[1], "common"))
        return jinja_fail(run, AQ_INVAL, "round: only the method \"common\" is supported");
    if (in.kind != JINJA_FLOAT || precision < 0 || precision > 20)
        return jinja_fail(run, AQ_INVAL, "round is supported for floats, to 0 to 20 decimals");
    snprintf(text, sizeof text, "%.*f", (int)precision, in.real);
    *out = (struct jinja_value){.kind = JINJA_FLOAT, .real = strtod(text, NULL)};
    return AQ_OK;
}

/* ---- lists ---- */

static enum aq_status f_length(JINJA_CALL(in))
{
    int64_t length;
    AQ_TRY(none(run, args, "length"));
    AQ_TRY(jinja_length(run, in, &length));
    *out = jinja_int(length);
    return AQ_OK;
}

static enum aq_status f_first(JINJA_CALL(in))
{
    struct jinja_list *list;
    AQ_TRY(none(run, args, "first"));
    *out = jinja_undefined("first of nothing", 16);
    if (in.kind == JINJA_LIST && in.form == JINJA_FORM_ITERATOR) {
        if (in.list->taken < in.list->count) *out = in.list->items[in.list->taken++];
        return AQ_OK;
    }
    AQ_TRY(jinja_iterate(run, in, &list));
    if (list->count) *out = list->items[0];
    return AQ_OK;
}

static enum aq_status no_iterator(struct jinja_run *run, struct jinja_value in, const char *what)
{
    if (in.kind != JINJA_LIST || in.form != JINJA_FORM_ITERATOR) return AQ_OK;
    return jinja_fail(run, AQ_INVAL, "%s needs a list: put \"| list\" before it", what);
}

static enum aq_status f_last(JINJA_CALL(in))
{
    struct jinja_list *list;
    AQ_TRY(none(run, args, "last"));
    AQ_TRY(no_iterator(run, in, "last"));
    AQ_TRY(jinja_iterate(run, in, &list));
    *out = list->count ? list->items[list->count - 1] : jinja_undefined("last of nothing", 15);
    return AQ_OK;
}

static enum aq_status f_list(JINJA_CALL(in))
{
    struct jinja_list *list;
    AQ_TRY(none(run, args, "list"));
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, list->count, out));
    if (list->count) memcpy(out->list->items, list->items, list->count * sizeof *list->items);
    out->list->count = list->count;
    return AQ_OK;
}

static enum aq_status f_reverse(JINJA_CALL(in))
{
    const struct jinja_value backwards[3] = {{0}, {0}, jinja_int(-1)};
    struct jinja_list *list;
    AQ_TRY(none(run, args, "reverse"));
    if (in.kind == JINJA_STRING) return jinja_slice(run, in, backwards, out);
    AQ_TRY(no_iterator(run, in, "reverse"));
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_ITERATOR, list->count, out));
    for (uint32_t i = list->count; i > 0; i--)
        AQ_TRY(jinja_list_add(run, out->list, list->items[i - 1]));
    return AQ_OK;
}

/* An item's attribute "a.b.0": each part an item of the one before. */
static enum aq_status attribute_of(struct jinja_run *run, struct jinja_value item, struct jinja_value attribute,
                                   struct jinja_value *out)
{
    *out = item;
    if (attribute.kind == JINJA_INT) return jinja_item(run, item, attribute, out);
    AQ_TRY(jinja_want_text(run, attribute, "attribute"));
    for (uint32_t at = 0; at <= attribute.bytes;) {
        uint32_t end = at;
        int64_t number = 0;
        bool digits = true;
        for (; end < attribute.bytes && attribute.text[end] != '.'; end++) {
            digits = digits && attribute.text[end] >= '0' && attribute.text[end] <= '9' && number < 100000000;
            number = digits ? number * 10 + attribute.text[end] - '0' : 0;
        }
        const struct jinja_value part =
            digits && end > at ? jinja_int(number) : jinja_borrow(attribute.text + at, end - at);
        AQ_TRY(jinja_item(run, *out, part, out));
        at = end + 1;
    }
    return AQ_OK;
}

/* The key by which items are sorted or compared: an attribute, in lower case if case does not count. */
static enum aq_status sort_key(struct jinja_run *run, struct jinja_value item, struct jinja_value attribute,
                               bool case_sensitive, struct jinja_value *out)
{
    *out = item;
    if (given(attribute) && attribute.kind != JINJA_NONE) AQ_TRY(attribute_of(run, item, attribute, out));
    return out->kind == JINJA_STRING && !case_sensitive ? jinja_case(run, *out, JINJA_LOWER, out) : AQ_OK;
}

static enum aq_status f_join(JINJA_CALL(in))
{
    struct jinja_value of[2], between = jinja_borrow("", 0), item;
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "join", "d attribute", 0, of));
    if (given(of[0])) AQ_TRY(jinja_text(run, of[0], &between));
    AQ_TRY(jinja_iterate(run, in, &list));
    between.form = 0;
    *out = jinja_borrow("", 0);
    for (uint32_t i = 0; i < list->count; i++) {
        item = list->items[i];
        if (given(of[1]) && of[1].kind != JINJA_NONE) AQ_TRY(attribute_of(run, item, of[1], &item));
        AQ_TRY(jinja_text(run, item, &item));
        item.form = 0;
        if (i > 0) AQ_TRY(jinja_join(run, *out, between, out));
        AQ_TRY(jinja_join(run, *out, item, out));
    }
    return AQ_OK;
}

/* The arguments behind the first `skip`. */
static struct jinja_args rest_of(const struct jinja_args *args, uint32_t skip)
{
    struct jinja_args rest = {.count = args->count - skip, .named = args->named};
    memcpy(rest.values, args->values + skip, (args->count + args->named - skip) * sizeof *args->values);
    memcpy(rest.names, args->names, sizeof rest.names);
    return rest;
}

static enum aq_status f_map(JINJA_CALL(in))
{
    struct jinja_value of[2], value;
    struct jinja_list *list;
    const bool by_filter = args->count > 0;
    const struct jinja_args rest = rest_of(args, by_filter);
    if (by_filter)
        AQ_TRY(jinja_want_text(run, args->values[0], "map"));
    else
        AQ_TRY(jinja_bind(run, args, "map", "attribute default", 1, of));
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_ITERATOR, list->count, out));
    for (uint32_t i = 0; i < list->count; i++) {
        if (by_filter) {
            AQ_TRY(jinja_filter(run, args->values[0].text, args->values[0].bytes, list->items[i], &rest, &value));
        } else {
            AQ_TRY(attribute_of(run, list->items[i], of[0], &value));
            if (value.kind == JINJA_UNDEFINED && given(of[1])) value = of[1];
        }
        AQ_TRY(jinja_list_add(run, out->list, value));
    }
    return AQ_OK;
}

enum { WANTED = 1, BY_ATTRIBUTE = 2 };

/* select, reject and of attributes: items of which a test (without one: their truth) is `wanted`. */
static enum aq_status choose(JINJA_CALL(in))
{
    const bool by_attribute = args->how & BY_ATTRIBUTE, wanted = args->how & WANTED;
    struct jinja_list *list;
    struct jinja_value value;
    const uint32_t skip = (uint32_t)by_attribute + (args->count > (uint32_t)by_attribute);
    if (by_attribute && args->count == 0) return jinja_fail(run, AQ_INVAL, "this filter needs an attribute");
    const struct jinja_args rest = rest_of(args, skip);
    if (skip > (uint32_t)by_attribute) AQ_TRY(jinja_want_text(run, args->values[by_attribute], "a test's name"));
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_ITERATOR, 0, out));
    for (uint32_t i = 0; i < list->count; i++) {
        bool holds;
        value = list->items[i];
        AQ_TRY(jinja_charge(run, 0));
        if (by_attribute) AQ_TRY(attribute_of(run, value, args->values[0], &value));
        if (skip > (uint32_t)by_attribute)
            AQ_TRY(jinja_test(run, args->values[by_attribute].text, args->values[by_attribute].bytes, value, &rest,
                              &holds));
        else
            holds = jinja_truth(value);
        if (holds == wanted) AQ_TRY(jinja_list_add(run, out->list, list->items[i]));
    }
    return AQ_OK;
}

/* Merges sorted halves of pairs (key, value) until they are one: stable. `spare` is as long. */
static enum aq_status merge_sort(struct jinja_run *run, struct jinja_pair *pairs, struct jinja_pair *spare,
                                 uint32_t count, bool back)
{
    for (uint32_t width = 1; width < count; width *= 2) {
        for (uint32_t begin = 0; begin < count; begin += 2 * width) {
            const uint32_t middle = count - begin < width ? count : begin + width;
            const uint32_t end = count - begin < 2 * width ? count : begin + 2 * width;
            for (uint32_t a = begin, b = middle, to = begin; to < end; to++) {
                int order = -1;
                if (a < middle && b < end) AQ_TRY(jinja_order(run, pairs[a].key, pairs[b].key, &order));
                AQ_TRY(jinja_charge(run, 0));
                spare[to] = b == end || (a < middle && (back ? order >= 0 : order <= 0)) ? pairs[a++] : pairs[b++];
            }
        }
        memcpy(pairs, spare, count * sizeof *pairs);
    }
    return AQ_OK;
}

static enum aq_status sorted(struct jinja_run *run, const struct jinja_list *keys, const struct jinja_list *values,
                             bool back, struct jinja_value *out)
{
    const uint32_t count = values->count;
    void *memory;
    AQ_TRY(jinja_heap(run, 2 * (size_t)count * sizeof(struct jinja_pair), &memory));
    struct jinja_pair *pairs = memory;
    for (uint32_t i = 0; i < count; i++)
        pairs[i] = (struct jinja_pair){keys->items[i], values->items[i]};
    AQ_TRY(merge_sort(run, pairs, pairs + count, count, back));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, count, out));
    for (uint32_t i = 0; i < count; i++)
        AQ_TRY(jinja_list_add(run, out->list, pairs[i].value));
    return AQ_OK;
}

static enum aq_status f_sort(JINJA_CALL(in))
{
    struct jinja_value of[3], keys, key;
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "sort", "reverse case_sensitive attribute", 0, of));
    if (of[2].kind == JINJA_STRING && memchr(of[2].text, ',', of[2].bytes))
        return jinja_fail(run, AQ_INVAL, "sort by several attributes is not supported");
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, list->count, &keys));
    for (uint32_t i = 0; i < list->count; i++) {
        AQ_TRY(sort_key(run, list->items[i], of[2], truth_or(of[1], false), &key));
        AQ_TRY(jinja_list_add(run, keys.list, key));
    }
    return sorted(run, keys.list, list, truth_or(of[0], false), out);
}

static enum aq_status pairs_of(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value *out)
{
    AQ_TRY(jinja_list(run, JINJA_FORM_ITERATOR, dict->count, out));
    for (uint32_t i = 0; i < dict->count; i++) {
        struct jinja_value pair;
        AQ_TRY(jinja_list(run, JINJA_FORM_TUPLE, 2, &pair));
        pair.list->items[0] = dict->pairs[i].key;
        pair.list->items[1] = dict->pairs[i].value;
        pair.list->count = 2;
        AQ_TRY(jinja_list_add(run, out->list, pair));
    }
    return AQ_OK;
}

static enum aq_status f_items(JINJA_CALL(in))
{
    AQ_TRY(none(run, args, "items"));
    if (in.kind == JINJA_UNDEFINED) return jinja_list(run, JINJA_FORM_ITERATOR, 0, out);
    if (in.kind != JINJA_DICT) return jinja_fail(run, AQ_INVAL, "items needs a dict, not a %s", jinja_kind_text(in));
    return pairs_of(run, in.dict, out);
}

static enum aq_status f_dictsort(JINJA_CALL(in))
{
    struct jinja_value of[3], pairs, keys, key;
    AQ_TRY(jinja_bind(run, args, "dictsort", "case_sensitive by reverse", 0, of));
    if (given(of[1]) && !jinja_is(of[1], "key") && !jinja_is(of[1], "value"))
        return jinja_fail(run, AQ_INVAL, "dictsort sorts by \"key\" or \"value\"");
    const bool by_value = jinja_is(of[1], "value");
    if (in.kind != JINJA_DICT) return jinja_fail(run, AQ_INVAL, "dictsort needs a dict, not a %s", jinja_kind_text(in));
    AQ_TRY(pairs_of(run, in.dict, &pairs));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, in.dict->count, &keys));
    for (uint32_t i = 0; i < in.dict->count; i++) {
        const struct jinja_pair *pair = &in.dict->pairs[i];
        AQ_TRY(
            sort_key(run, by_value ? pair->value : pair->key, (struct jinja_value){0}, truth_or(of[0], false), &key));
        AQ_TRY(jinja_list_add(run, keys.list, key));
    }
    return sorted(run, keys.list, pairs.list, truth_or(of[2], false), out);
}

static enum aq_status f_unique(JINJA_CALL(in))
{
    struct jinja_value of[2], keys, key;
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "unique", "case_sensitive attribute", 0, of));
    AQ_TRY(jinja_iterate(run, in, &list));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 0, &keys));
    AQ_TRY(jinja_list(run, JINJA_FORM_ITERATOR, 0, out));
    for (uint32_t i = 0; i < list->count; i++) {
        bool seen;
        AQ_TRY(sort_key(run, list->items[i], of[1], truth_or(of[0], false), &key));
        AQ_TRY(jinja_contains(run, keys, key, &seen));
        if (seen) continue;
        AQ_TRY(jinja_list_add(run, keys.list, key));
        AQ_TRY(jinja_list_add(run, out->list, list->items[i]));
    }
    return AQ_OK;
}

static enum aq_status extreme(JINJA_CALL(in))
{
    const int sign = args->how;
    struct jinja_value of[2], best = {0}, key;
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "min or max", "case_sensitive attribute", 0, of));
    AQ_TRY(jinja_iterate(run, in, &list));
    *out = jinja_undefined("min or max of nothing", 21);
    for (uint32_t i = 0; i < list->count; i++) {
        int order = sign;
        AQ_TRY(sort_key(run, list->items[i], of[1], truth_or(of[0], false), &key));
        if (i > 0) AQ_TRY(jinja_order(run, key, best, &order));
        if (i > 0 && order * sign <= 0) continue;
        best = key;
        *out = list->items[i];
    }
    return AQ_OK;
}

static enum aq_status f_sum(JINJA_CALL(in))
{
    struct jinja_value of[2], item;
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "sum", "attribute start", 0, of));
    AQ_TRY(jinja_iterate(run, in, &list));
    *out = given(of[1]) ? of[1] : jinja_int(0);
    for (uint32_t i = 0; i < list->count; i++) {
        item = list->items[i];
        if (given(of[0]) && of[0].kind != JINJA_NONE) AQ_TRY(attribute_of(run, item, of[0], &item));
        AQ_TRY(jinja_binary(run, JINJA_T_ADD, *out, item, out));
    }
    return AQ_OK;
}

static enum aq_status f_default(JINJA_CALL(in))
{
    struct jinja_value of[2];
    AQ_TRY(jinja_bind(run, args, "default", "default_value boolean", 0, of));
    const bool replace = in.kind == JINJA_UNDEFINED || (truth_or(of[1], false) && !jinja_truth(in));
    *out = !replace ? in : given(of[0]) ? of[0] : jinja_borrow("", 0);
    return AQ_OK;
}

enum aq_status jinja_filter(struct jinja_run *run, const char *name, uint32_t name_bytes, struct jinja_value in,
                            const struct jinja_args *args, struct jinja_value *out)
{
    static const struct {
        const char *name;
        filter_run *filter;
        int how;
    } filters[] = {
        {"trim", f_trim, 0},
        {"length", f_length, 0},
        {"count", f_length, 0},
        {"upper", cased, JINJA_UPPER},
        {"lower", cased, JINJA_LOWER},
        {"title", cased, JINJA_TITLE_WORDS},
        {"capitalize", cased, JINJA_CAPITALIZE},
        {"join", f_join, 0},
        {"default", f_default, 0},
        {"d", f_default, 0},
        {"tojson", f_tojson, 0},
        {"first", f_first, 0},
        {"last", f_last, 0},
        {"list", f_list, 0},
        {"string", f_string, 0},
        {"int", f_int, 0},
        {"float", f_float, 0},
        {"abs", f_abs, 0},
        {"round", f_round, 0},
        {"replace", f_replace, 0},
        {"reverse", f_reverse, 0},
        {"map", f_map, 0},
        {"select", choose, WANTED},
        {"reject", choose, 0},
        {"selectattr", choose, BY_ATTRIBUTE | WANTED},
        {"rejectattr", choose, BY_ATTRIBUTE},
        {"items", f_items, 0},
        {"dictsort", f_dictsort, 0},
        {"sort", f_sort, 0},
        {"unique", f_unique, 0},
        {"min", extreme, -1},
        {"max", extreme, 1},
        {"sum", f_sum, 0},
        {"indent", f_indent, 0},
        {"safe", f_safe, 0},
        {"escape", f_escape, 0},
        {"e", f_escape, 0},
    };
    AQ_TRY(jinja_charge(run, 0));
    struct jinja_args own = *args;
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (strlen(filters[i].name) != name_bytes || memcmp(filters[i].name, name, name_bytes) != 0) continue;
        own.how = filters[i].how;
        return filters[i].filter(run, in, &own, out);
    }
    return jinja_fail(run, AQ_INVAL, "the filter \"%.*s\" is not supported", name_bytes < 60 ? (int)name_bytes : 60,
                      name);
}
