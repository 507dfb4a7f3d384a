/*
 * jinja_method.c -- methods of str, list and dict, and the environment's functions.
 *
 * A name that Python's type has and this table has not is refused where it is read, so that it is not taken for an
 * undefined attribute. Methods that change a list or dict are refused as in Jinja's immutable sandbox.
 */
#include "jinja.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef enum aq_status method_run(JINJA_CALL(self));

static enum aq_status none(struct jinja_run *run, const struct jinja_args *args)
{
    return jinja_bind(run, args, args->name, "", 0, NULL);
}

static enum aq_status want_count(struct jinja_run *run, struct jinja_value v, const char *what, int64_t *out)
{
    if (v.kind == JINJA_MISSING) return AQ_OK;
    if (v.kind != JINJA_INT)
        return jinja_fail(run, AQ_INVAL, "%s needs a whole number, not a %s", what, jinja_kind_text(v));
    *out = v.integer < 0 ? -1 : v.integer; /* all of them; counted down it stays within its type */
    return AQ_OK;
}

/* ---- str ---- */

enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };

static enum aq_status strip(JINJA_CALL(self))
{
    struct jinja_value of[1];
    AQ_TRY(jinja_bind(run, args, "strip", "chars", 0, of));
    if (of[0].kind > JINJA_NONE) AQ_TRY(jinja_want_text(run, of[0], "strip"));
    if (of[0].kind == JINJA_UNDEFINED) return jinja_fail(run, AQ_INVAL, "strip of an undefined value");
    AQ_TRY(jinja_charge(run, (uint64_t)self.bytes * (of[0].bytes + 1)));
    *out = jinja_strip(self, of[0], args->how & STRIP_LEFT, args->how & STRIP_RIGHT);
    return AQ_OK;
}

/* The next run of white space from `at` on: its start and end. */
static bool next_space(struct jinja_value text, uint32_t at, uint32_t *begin, uint32_t *end)
{
    uint32_t length;
    for (; at < text.bytes; at += length)
        if (jinja_is_space(jinja_decode(text.text + at, &length))) break;
    *begin = at;
    for (; at < text.bytes; at += length)
        if (!jinja_is_space(jinja_decode(text.text + at, &length))) break;
    *end = at;
    return *begin < text.bytes;
}

static enum aq_status split_spaces(struct jinja_run *run, struct jinja_value self, int64_t most,
                                   struct jinja_value *out)
{
    struct jinja_value rest = jinja_strip(self, (struct jinja_value){0}, true, false);
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 4, out));
    while (rest.bytes > 0) {
        uint32_t begin, end;
        if (most-- == 0) return jinja_list_add(run, out->list, rest);
        if (!next_space(rest, 0, &begin, &end)) end = begin;
        AQ_TRY(jinja_list_add(run, out->list, jinja_borrow(rest.text, begin)));
        rest.text += end;
        rest.bytes -= end;
    }
    return AQ_OK;
}

static enum aq_status s_split(JINJA_CALL(self))
{
    struct jinja_value of[2];
    int64_t most = -1;
    AQ_TRY(jinja_bind(run, args, "split", "sep maxsplit", 0, of));
    AQ_TRY(want_count(run, of[1], "split", &most));
    AQ_TRY(jinja_charge(run, self.bytes));
    if (of[0].kind == JINJA_MISSING || of[0].kind == JINJA_NONE) return split_spaces(run, self, most, out);
    AQ_TRY(jinja_want_text(run, of[0], "split"));
    if (of[0].bytes == 0) return jinja_fail(run, AQ_INVAL, "split needs a separator that is not empty");
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 4, out));
    uint32_t at = 0;
    for (int64_t found; most != 0 && (found = jinja_find(self, at, of[0])) >= 0; most--) {
        AQ_TRY(jinja_list_add(run, out->list, jinja_borrow(self.text + at, (uint32_t)found - at)));
        at = (uint32_t)found + of[0].bytes;
    }
    return jinja_list_add(run, out->list, jinja_borrow(self.text + at, self.bytes - at));
}

/* Offset of the last `what` that ends at `end` at most, or -1. */
static int64_t find_last(struct jinja_value text, uint32_t end, struct jinja_value what)
{
    for (int64_t at = (int64_t)end - what.bytes; at >= 0; at--)
        if (memcmp(text.text + at, what.text, what.bytes) == 0) return at;
    return -1;
}

static enum aq_status s_rsplit(JINJA_CALL(self))
{
    struct jinja_value of[2], backwards;
    int64_t most = -1, found;
    uint32_t end = self.bytes;
    AQ_TRY(jinja_bind(run, args, "rsplit", "sep maxsplit", 0, of));
    AQ_TRY(want_count(run, of[1], "rsplit", &most));
    if (of[0].kind == JINJA_MISSING || of[0].kind == JINJA_NONE) {
        if (most < 0) return split_spaces(run, self, most, out);
        return jinja_fail(run, AQ_INVAL, "rsplit at white space, a number of times, is not supported");
    }
    AQ_TRY(jinja_want_text(run, of[0], "rsplit"));
    if (of[0].bytes == 0) return jinja_fail(run, AQ_INVAL, "rsplit needs a separator that is not empty");
    AQ_TRY(jinja_charge(run, (uint64_t)self.bytes * (of[0].bytes + 1)));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 4, &backwards));
    for (; most != 0 && (found = find_last(self, end, of[0])) >= 0; most--) {
        const uint32_t begin = (uint32_t)found + of[0].bytes;
        AQ_TRY(jinja_list_add(run, backwards.list, jinja_borrow(self.text + begin, end - begin)));
        end = (uint32_t)found;
    }
    AQ_TRY(jinja_list_add(run, backwards.list, jinja_borrow(self.text, end)));
    AQ_TRY(jinja_list(run, JINJA_FORM_LIST, backwards.list->count, out));
    for (uint32_t i = backwards.list->count; i > 0; i--)
        AQ_TRY(jinja_list_add(run, out->list, backwards.list->items[i - 1]));
    return AQ_OK;
}

/* What a method and its mirror image have in common: the first of them, or the last. */
enum { AT_BEGIN, AT_END };

static enum aq_status cut(JINJA_CALL(self))
{
    const bool last = args->how == AT_END;
    struct jinja_value of[1], parts[3] = {jinja_borrow("", 0), jinja_borrow("", 0), jinja_borrow("", 0)};
    AQ_TRY(jinja_bind(run, args, "partition", "sep", 1, of));
    AQ_TRY(jinja_want_text(run, of[0], "partition"));
    if (of[0].bytes == 0) return jinja_fail(run, AQ_INVAL, "partition needs a separator that is not empty");
    AQ_TRY(jinja_charge(run, (uint64_t)self.bytes * (last ? of[0].bytes + 1 : 1)));
    const int64_t found = last ? find_last(self, self.bytes, of[0]) : jinja_find(self, 0, of[0]);
    if (found < 0) {
        parts[last ? 2 : 0] = self;
    } else {
        const uint32_t end = (uint32_t)found + of[0].bytes;
        parts[0] = jinja_borrow(self.text, (uint32_t)found);
        parts[1] = of[0];
        parts[2] = jinja_borrow(self.text + end, self.bytes - end);
    }
    AQ_TRY(jinja_list(run, JINJA_FORM_TUPLE, 3, out));
    for (int i = 0; i < 3; i++)
        AQ_TRY(jinja_list_add(run, out->list, parts[i]));
    return AQ_OK;
}

static enum aq_status s_splitlines(JINJA_CALL(self))
{
    struct jinja_value of[1];
    AQ_TRY(jinja_bind(run, args, "splitlines", "keepends", 0, of));
    AQ_TRY(jinja_charge(run, self.bytes));
    return jinja_lines(run, self, jinja_truth(of[0]), out);
}

/* A text, or any of a tuple of them, at the beginning or end. */
static enum aq_status stands_at(JINJA_CALL(self))
{
    const bool end = args->how == AT_END;
    struct jinja_value of[1];
    AQ_TRY(jinja_bind(run, args, args->name, "text", 1, of));
    const bool many = of[0].kind == JINJA_LIST && of[0].form == JINJA_FORM_TUPLE;
    *out = jinja_bool(false);
    for (uint32_t i = 0; i < (many ? of[0].list->count : 1); i++) {
        const struct jinja_value text = many ? of[0].list->items[i] : of[0];
        AQ_TRY(jinja_want_text(run, text, args->name));
        if (text.bytes <= self.bytes &&
            memcmp(self.text + (end ? self.bytes - text.bytes : 0), text.text, text.bytes) == 0)
            *out = jinja_bool(true);
    }
    return AQ_OK;
}

static enum aq_status remove_at(JINJA_CALL(self))
{
    const bool end = args->how == AT_END;
    struct jinja_value of[1], there;
    AQ_TRY(jinja_bind(run, args, args->name, "text", 1, of));
    AQ_TRY(jinja_want_text(run, of[0], args->name));
    AQ_TRY(stands_at(run, self, args, &there));
    *out = self;
    if (!there.integer) return AQ_OK;
    out->bytes -= of[0].bytes;
    if (!end) out->text += of[0].bytes;
    return AQ_OK;
}

static enum aq_status s_replace(JINJA_CALL(self))
{
    struct jinja_value of[3];
    int64_t count = -1;
    AQ_TRY(jinja_bind(run, args, "replace", "old new count", 2, of));
    AQ_TRY(jinja_want_text(run, of[0], "replace"));
    AQ_TRY(jinja_want_text(run, of[1], "replace"));
    AQ_TRY(want_count(run, of[2], "replace", &count));
    return jinja_replace(run, self, of[0], of[1], count, out);
}

static enum aq_status position(JINJA_CALL(self))
{
    const bool last = args->how == AT_END;
    struct jinja_value of[1];
    AQ_TRY(jinja_bind(run, args, args->name, "sub", 1, of));
    AQ_TRY(jinja_want_text(run, of[0], args->name));
    AQ_TRY(jinja_charge(run, (uint64_t)self.bytes * (last ? of[0].bytes + 1 : 1)));
    const int64_t found = last ? find_last(self, self.bytes, of[0]) : jinja_find(self, 0, of[0]);
    *out = jinja_int(found < 0 ? -1 : jinja_characters(jinja_borrow(self.text, (uint32_t)found)));
    return AQ_OK;
}

static enum aq_status s_index(JINJA_CALL(self))
{
    AQ_TRY(position(run, self, args, out));
    return out->integer < 0 ? jinja_fail(run, AQ_INVAL, "index: it is not in this text") : AQ_OK;
}

static enum aq_status s_count(JINJA_CALL(self))
{
    struct jinja_value of[1];
    int64_t count = 0;
    AQ_TRY(jinja_bind(run, args, "count", "sub", 1, of));
    AQ_TRY(jinja_want_text(run, of[0], "count"));
    AQ_TRY(jinja_charge(run, self.bytes));
    if (of[0].bytes == 0) {
        *out = jinja_int(jinja_characters(self) + 1);
        return AQ_OK;
    }
    for (int64_t at = 0; (at = jinja_find(self, (uint32_t)at, of[0])) >= 0; at += of[0].bytes)
        count++;
    *out = jinja_int(count);
    return AQ_OK;
}

static enum aq_status s_join(JINJA_CALL(self))
{
    struct jinja_value of[1];
    struct jinja_list *list;
    AQ_TRY(jinja_bind(run, args, "join", "iterable", 1, of));
    AQ_TRY(jinja_iterate(run, of[0], &list));
    *out = jinja_borrow("", 0);
    for (uint32_t i = 0; i < list->count; i++) {
        AQ_TRY(jinja_want_text(run, list->items[i], "join"));
        if (i > 0) AQ_TRY(jinja_join(run, *out, self, out));
        AQ_TRY(jinja_join(run, *out, list->items[i], out));
    }
    return AQ_OK;
}

static enum aq_status cased(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    return jinja_case(run, self, (enum jinja_case)args->how, out);
}

static enum aq_status classed(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    AQ_TRY(jinja_charge(run, self.bytes));
    *out = jinja_bool(jinja_all_of(self, (enum jinja_class)args->how));
    return AQ_OK;
}

/* ---- list and dict ---- */

static enum aq_status l_index(JINJA_CALL(self))
{
    struct jinja_value of[1];
    AQ_TRY(jinja_bind(run, args, "index", "value", 1, of));
    for (uint32_t i = 0; i < self.list->count; i++) {
        bool same;
        AQ_TRY(jinja_charge(run, 0));
        AQ_TRY(jinja_equal(run, self.list->items[i], of[0], &same));
        *out = jinja_int(i);
        if (same) return AQ_OK;
    }
    return jinja_fail(run, AQ_INVAL, "index: it is not in this list");
}

static enum aq_status l_count(JINJA_CALL(self))
{
    struct jinja_value of[1];
    int64_t count = 0;
    AQ_TRY(jinja_bind(run, args, "count", "value", 1, of));
    for (uint32_t i = 0; i < self.list->count; i++) {
        bool same;
        AQ_TRY(jinja_charge(run, 0));
        AQ_TRY(jinja_equal(run, self.list->items[i], of[0], &same));
        count += same;
    }
    *out = jinja_int(count);
    return AQ_OK;
}

static enum aq_status d_get(JINJA_CALL(self))
{
    struct jinja_value of[2], *member;
    AQ_TRY(jinja_bind(run, args, "get", "key default", 1, of));
    AQ_TRY(jinja_dict_find(run, self.dict, of[0], &member));
    *out = member ? *member : of[1].kind == JINJA_MISSING ? (struct jinja_value){.kind = JINJA_NONE} : of[1];
    return AQ_OK;
}

static enum aq_status d_keys(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    AQ_TRY(jinja_list(run, JINJA_FORM_VIEW, self.dict->count, out));
    for (uint32_t i = 0; i < self.dict->count; i++)
        AQ_TRY(jinja_list_add(run, out->list, self.dict->pairs[i].key));
    return AQ_OK;
}

static enum aq_status d_values(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    AQ_TRY(jinja_list(run, JINJA_FORM_VIEW, self.dict->count, out));
    for (uint32_t i = 0; i < self.dict->count; i++)
        AQ_TRY(jinja_list_add(run, out->list, self.dict->pairs[i].value));
    return AQ_OK;
}

static enum aq_status d_items(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    AQ_TRY(jinja_filter(run, "items", 5, self, args, out));
    out->form = JINJA_FORM_VIEW;
    return AQ_OK;
}

static enum aq_status copy(JINJA_CALL(self))
{
    AQ_TRY(none(run, args));
    *out = self; /* nothing changes a list or a dict */
    return AQ_OK;
}

static const struct {
    enum jinja_kind kind;
    const char *name;
    method_run *method;
    int how;
} methods[] = {
    {JINJA_STRING, "strip", strip, STRIP_LEFT | STRIP_RIGHT},
    {JINJA_STRING, "lstrip", strip, STRIP_LEFT},
    {JINJA_STRING, "rstrip", strip, STRIP_RIGHT},
    {JINJA_STRING, "split", s_split, 0},
    {JINJA_STRING, "rsplit", s_rsplit, 0},
    {JINJA_STRING, "splitlines", s_splitlines, 0},
    {JINJA_STRING, "partition", cut, AT_BEGIN},
    {JINJA_STRING, "rpartition", cut, AT_END},
    {JINJA_STRING, "startswith", stands_at, AT_BEGIN},
    {JINJA_STRING, "endswith", stands_at, AT_END},
    {JINJA_STRING, "removeprefix", remove_at, AT_BEGIN},
    {JINJA_STRING, "removesuffix", remove_at, AT_END},
    {JINJA_STRING, "replace", s_replace, 0},
    {JINJA_STRING, "find", position, AT_BEGIN},
    {JINJA_STRING, "rfind", position, AT_END},
    {JINJA_STRING, "index", s_index, 0},
    {JINJA_STRING, "count", s_count, 0},
    {JINJA_STRING, "join", s_join, 0},
    {JINJA_STRING, "upper", cased, JINJA_UPPER},
    {JINJA_STRING, "lower", cased, JINJA_LOWER},
    {JINJA_STRING, "title", cased, JINJA_TITLE},
    {JINJA_STRING, "capitalize", cased, JINJA_CAPITALIZE},
    {JINJA_STRING, "swapcase", cased, JINJA_SWAP},
    {JINJA_STRING, "isalpha", classed, JINJA_ALPHA},
    {JINJA_STRING, "isdecimal", classed, JINJA_DIGIT},
    {JINJA_STRING, "isspace", classed, JINJA_SPACE},
    {JINJA_STRING, "isupper", classed, JINJA_IS_UPPER},
    {JINJA_STRING, "islower", classed, JINJA_IS_LOWER},
    {JINJA_LIST, "index", l_index, 0},
    {JINJA_LIST, "count", l_count, 0},
    {JINJA_LIST, "copy", copy, 0},
    {JINJA_DICT, "get", d_get, 0},
    {JINJA_DICT, "items", d_items, 0},
    {JINJA_DICT, "keys", d_keys, 0},
    {JINJA_DICT, "values", d_values, 0},
    {JINJA_DICT, "copy", copy, 0},
};

/* Methods that Python has, and this has not; a blank on both sides of each. */
static const struct {
    enum jinja_kind kind;
    const char *names;
} absent[] = {
    {JINJA_STRING, " casefold center encode expandtabs format format_map isalnum isascii isdigit isidentifier "
                   "isnumeric isprintable istitle ljust maketrans rindex rjust translate zfill "},
    {JINJA_LIST, " append clear extend insert pop remove reverse sort "},
    {JINJA_DICT, " clear fromkeys pop popitem setdefault update "},
};

static bool is_absent(struct jinja_value self, const char *name, uint32_t bytes)
{
    char word[24];
    if (bytes > sizeof word - 3 || memchr(name, ' ', bytes) || memchr(name, 0, bytes)) return false;
    snprintf(word, sizeof word, " %.*s ", (int)bytes, name);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (absent[i].kind == self.kind && strstr(absent[i].names, word)) return true;
    return false;
}

enum aq_status jinja_method_find(struct jinja_run *run, struct jinja_value self, const char *name, uint32_t bytes,
                                 bool *found, uint32_t *number)
{
    *found = false;
    if (self.kind == JINJA_LIST && self.form >= JINJA_FORM_VIEW) return AQ_OK;
    for (uint32_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (methods[i].kind != self.kind || strlen(methods[i].name) != bytes ||
            memcmp(methods[i].name, name, bytes) != 0)
            continue;
        *found = true;
        *number = i;
        break;
    }
    if (!*found && is_absent(self, name, bytes))
        return jinja_fail(run, AQ_INVAL, "%s.%.*s is not supported", jinja_kind_text(self), (int)bytes, name);
    return AQ_OK;
}

enum aq_status jinja_method_call(struct jinja_run *run, const struct jinja_method *method,
                                 const struct jinja_args *args, struct jinja_value *out)
{
    if (method->self.kind == JINJA_STRING && method->self.form)
        return jinja_fail(run, AQ_INVAL, "methods of a result of \"safe\" or \"escape\" are not supported");
    AQ_TRY(jinja_charge(run, 0));
    struct jinja_args own = *args;
    own.name = methods[method->number].name;
    own.how = methods[method->number].how;
    return methods[method->number].method(run, method->self, &own, out);
}

/* ---- functions ---- */

static enum aq_status g_range(JINJA_CALL(self))
{
    int64_t part[3] = {0, 0, 1};
    (void)self;
    if (args->count < 1 || args->count > 3 || args->named)
        return jinja_fail(run, AQ_INVAL, "range needs one to three numbers");
    for (uint32_t i = 0; i < args->count; i++) {
        if (args->values[i].kind != JINJA_INT && args->values[i].kind != JINJA_BOOL)
            return jinja_fail(run, AQ_INVAL, "range needs whole numbers, not a %s", jinja_kind_text(args->values[i]));
        part[args->count == 1 ? 1 : i] = args->values[i].integer;
    }
    if (part[2] == 0) return jinja_fail(run, AQ_INVAL, "range: the step is 0");
    AQ_TRY(jinja_list(run, JINJA_FORM_VIEW, 0, out));
    for (int64_t at = part[0]; part[2] > 0 ? at < part[1] : at > part[1];) {
        if (out->list->count == JINJA_RANGE_MAX)
            return jinja_fail(run, AQ_NOSPC, "range has at most %d numbers", (int)JINJA_RANGE_MAX);
        AQ_TRY(jinja_list_add(run, out->list, jinja_int(at)));
        if (__builtin_add_overflow(at, part[2], &at)) break;
    }
    return AQ_OK;
}

/* dict(a=1) and namespace(a=1), of another dict, too. */
static enum aq_status members(struct jinja_run *run, enum jinja_kind kind, const struct jinja_args *args,
                              struct jinja_value *out)
{
    AQ_TRY(jinja_dict(run, kind, out));
    if (args->count > 1 || (args->count == 1 && args->values[0].kind != JINJA_DICT))
        return jinja_fail(run, AQ_INVAL, "this needs named arguments, or a dict");
    for (uint32_t i = 0; args->count && i < args->values[0].dict->count; i++)
        AQ_TRY(
            jinja_dict_set(run, out->dict, args->values[0].dict->pairs[i].key, args->values[0].dict->pairs[i].value));
    for (uint32_t i = 0; i < args->named; i++) {
        const struct jinja_name *name = &run->program->names[args->names[i]];
        AQ_TRY(jinja_dict_set(run, out->dict, jinja_borrow(name->text, name->bytes), args->values[args->count + i]));
    }
    for (uint32_t i = 0; kind == JINJA_NAMESPACE && i < out->dict->count; i++) {
        const struct jinja_value key = out->dict->pairs[i].key;
        if (key.kind == JINJA_STRING && key.bytes && key.text[0] == '_')
            return jinja_fail(run, AQ_INVAL, "the name of a namespace's member cannot start with _");
    }
    return AQ_OK;
}

static enum aq_status g_dict(JINJA_CALL(self))
{
    (void)self;
    return members(run, JINJA_DICT, args, out);
}

static enum aq_status g_namespace(JINJA_CALL(self))
{
    (void)self;
    return members(run, JINJA_NAMESPACE, args, out);
}

static enum aq_status g_raise(JINJA_CALL(self))
{
    struct jinja_value of[1], text;
    (void)self, (void)out;
    AQ_TRY(jinja_bind(run, args, "raise_exception", "message", 1, of));
    AQ_TRY(jinja_text(run, of[0], &text));
    return jinja_fail(run, AQ_REFUSED, "the template refuses this conversation: %.*s",
                      text.bytes < 300 ? (int)text.bytes : 300, text.text);
}

static enum aq_status g_strftime(JINJA_CALL(self))
{
    struct jinja_value of[1];
    char format[128], text[256];
    const time_t now = (time_t)run->now;
    struct tm when;
    (void)self;
    AQ_TRY(jinja_bind(run, args, "strftime_now", "format", 1, of));
    AQ_TRY(jinja_want_text(run, of[0], "strftime_now"));
    if (of[0].bytes >= sizeof format || memchr(of[0].text, 0, of[0].bytes))
        return jinja_fail(run, AQ_INVAL, "strftime_now: a format has less than %zu bytes", sizeof format);
    memcpy(format, of[0].text, of[0].bytes);
    format[of[0].bytes] = 0;
    if (!gmtime_r(&now, &when)) return jinja_fail(run, AQ_INVAL, "strftime_now: no such time");
    const size_t bytes = strftime(text, sizeof text, format, &when);
    if (bytes == 0 && of[0].bytes) return jinja_fail(run, AQ_INVAL, "strftime_now: no such format");
    return jinja_string(run, text, bytes, out);
}

static const struct {
    const char *name;
    method_run *function; /* NULL: Jinja has it, this has not */
} functions[] = {
    {"range", g_range},           {"dict", g_dict}, {"namespace", g_namespace}, {"raise_exception", g_raise},
    {"strftime_now", g_strftime}, {"cycler", NULL}, {"joiner", NULL},           {"lipsum", NULL},
};

bool jinja_function_find(const char *name, uint32_t bytes, struct jinja_value *out)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strlen(functions[i].name) != bytes || memcmp(functions[i].name, name, bytes) != 0) continue;
        *out = (struct jinja_value){.kind = JINJA_FUNCTION, .integer = (int64_t)i};
        return true;
    }
    return false;
}

enum aq_status jinja_function_call(struct jinja_run *run, struct jinja_value function, const struct jinja_args *args,
                                   struct jinja_value *out)
{
    if (!functions[function.integer].function)
        return jinja_fail(run, AQ_INVAL, "the function %s is not supported", functions[function.integer].name);
    return functions[function.integer].function(run, function, args, out);
}
