/*
 * jinja_value.c -- values, their memory, and what Python does with them: truth, equality, order, membership, iteration.
 *
 * A run's memory is a list of chunks that grow; nothing is given back before the run's end. A text that was made last
 * can grow in place (jinja_join), so that adding to a text in a loop does not copy it each time.
 */
#include "jinja.h"

#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10, CHUNK_BYTES_MAX = 4 << 20, STEP_BYTES = 32 /* of work in one step */ };

struct jinja_chunk {
    struct jinja_chunk *before;
};

enum aq_status jinja_charge(struct jinja_run *run, uint64_t bytes)
{
    const uint64_t steps = 1 + bytes / STEP_BYTES;
    if (run->steps < steps) {
        run->steps = 0;
        return jinja_fail(run, AQ_NOSPC, "the template takes too many steps (AQ_CHAT_STEPS_MAX)");
    }
    run->steps -= steps;
    return AQ_OK;
}

enum aq_status jinja_heap(struct jinja_run *run, size_t bytes, void **out)
{
    *out = NULL;
    bytes = (bytes + 7) & ~(size_t)7;
    if ((size_t)(run->heap_end - run->heap_at) < bytes) {
        size_t chunk = run->heap_bytes < CHUNK_BYTES ? CHUNK_BYTES : run->heap_bytes;
        void *memory;
        if (chunk > CHUNK_BYTES_MAX) chunk = CHUNK_BYTES_MAX;
        if (chunk < bytes + sizeof(struct jinja_chunk)) chunk = bytes + sizeof(struct jinja_chunk);
        if (bytes > AQ_CHAT_MEMORY_BYTES_MAX || run->heap_bytes + chunk > AQ_CHAT_MEMORY_BYTES_MAX)
            return jinja_fail(run, AQ_NOSPC, "the template takes too much memory (AQ_CHAT_MEMORY_BYTES_MAX)");
        AQ_TRY(aq_alloc(chunk, &memory));
        ((struct jinja_chunk *)memory)->before = run->chunks;
        run->chunks = memory;
        run->heap_at = (char *)memory + sizeof(struct jinja_chunk);
        run->heap_end = (char *)memory + chunk;
        run->heap_bytes += chunk;
    }
    *out = run->heap_at;
    run->heap_at += bytes;
    return jinja_charge(run, bytes);
}

void jinja_heap_free(struct jinja_run *run)
{
    while (run->chunks) {
        struct jinja_chunk *before = run->chunks->before;
        aq_free(run->chunks);
        run->chunks = before;
    }
}

/* ---- making ---- */

struct jinja_value jinja_bool(bool value)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .integer = value};
}

struct jinja_value jinja_int(int64_t value)
{
    return (struct jinja_value){.kind = JINJA_INT, .integer = value};
}

struct jinja_value jinja_undefined(const char *name, uint32_t bytes)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .text = name, .bytes = bytes};
}

struct jinja_value jinja_borrow(const char *text, size_t bytes)
{
    AQ_ASSERT(bytes <= AQ_CHAT_MEMORY_BYTES_MAX);
    return (struct jinja_value){.kind = JINJA_STRING, .text = text, .bytes = (uint32_t)bytes};
}

enum aq_status jinja_string(struct jinja_run *run, const char *text, size_t bytes, struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, bytes, &memory));
    if (bytes) memcpy(memory, text, bytes);
    *out = jinja_borrow(memory, bytes);
    return AQ_OK;
}

/* Bytes from a text's end to the next piece of the heap. */
static size_t padding(const char *end)
{
    return (8 - ((uintptr_t)end & 7)) & 7;
}

enum aq_status jinja_join(struct jinja_run *run, struct jinja_value left, struct jinja_value right,
                          struct jinja_value *out)
{
    void *memory;
    const bool markup = left.form || right.form;
    if (markup && !left.form) AQ_TRY(jinja_escape(run, left, &left));
    if (markup && !right.form) AQ_TRY(jinja_escape(run, right, &right));
    const size_t bytes = (size_t)left.bytes + right.bytes;
    char *const end = (char *)run->text_end;
    if (left.bytes && left.text + left.bytes == end && end + padding(end) == run->heap_at &&
        (size_t)(run->heap_end - end) >= right.bytes + (size_t)8) {
        /* Nothing was allocated since: the text grows in place. */
        if (right.bytes > padding(end)) AQ_TRY(jinja_heap(run, right.bytes - padding(end), &memory));
        if (right.bytes) memcpy(end, right.text, right.bytes);
        *out = jinja_borrow(left.text, bytes);
    } else {
        AQ_TRY(jinja_heap(run, bytes, &memory));
        if (left.bytes) memcpy(memory, left.text, left.bytes);
        if (right.bytes) memcpy((char *)memory + left.bytes, right.text, right.bytes);
        *out = jinja_borrow(memory, bytes);
    }
    run->text_end = (uintptr_t)out->text + bytes;
    out->form = markup;
    return AQ_OK;
}

enum aq_status jinja_list(struct jinja_run *run, enum jinja_form form, uint32_t capacity, struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_list), &memory));
    struct jinja_list *list = memory;
    *list = (struct jinja_list){.capacity = capacity};
    if (capacity) {
        AQ_TRY(jinja_heap(run, capacity * sizeof *list->items, &memory));
        list->items = memory;
    }
    *out = (struct jinja_value){.kind = JINJA_LIST, .form = (uint8_t)form, .list = list};
    return AQ_OK;
}

/* Room for one more behind `count`, by doubling. */
static enum aq_status grow(struct jinja_run *run, void **items, uint32_t count, uint32_t *capacity, size_t bytes)
{
    void *memory;
    if (count < *capacity) return AQ_OK;
    if (count >= (UINT32_C(1) << 28)) return jinja_fail(run, AQ_NOSPC, "a list is too long");
    const uint32_t more = *capacity ? *capacity * 2 : 4;
    AQ_TRY(jinja_heap(run, more * bytes, &memory));
    if (count) memcpy(memory, *items, count * bytes);
    *items = memory;
    *capacity = more;
    return AQ_OK;
}

enum aq_status jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value)
{
    void *items = list->items;
    AQ_TRY(grow(run, &items, list->count, &list->capacity, sizeof value));
    list->items = items;
    list->items[list->count++] = value;
    return AQ_OK;
}

enum aq_status jinja_dict(struct jinja_run *run, enum jinja_kind kind, struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_dict), &memory));
    memset(memory, 0, sizeof(struct jinja_dict));
    *out = (struct jinja_value){.kind = (uint8_t)kind, .dict = memory};
    return AQ_OK;
}

static enum aq_status dict_add(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                               struct jinja_value value)
{
    void *pairs = dict->pairs;
    AQ_TRY(grow(run, &pairs, dict->count, &dict->capacity, sizeof *dict->pairs));
    dict->pairs = pairs;
    dict->pairs[dict->count++] = (struct jinja_pair){key, value};
    return AQ_OK;
}

enum aq_status jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key,
                               struct jinja_value **out)
{
    *out = NULL;
    if (key.kind == JINJA_DICT || (key.kind == JINJA_LIST && key.form == JINJA_FORM_LIST))
        return jinja_fail(run, AQ_INVAL, "a %s cannot be a key", jinja_kind_text(key));
    AQ_TRY(jinja_charge(run, 8 * (uint64_t)dict->count));
    for (uint32_t i = 0; i < dict->count; i++) {
        bool same;
        AQ_TRY(jinja_equal(run, dict->pairs[i].key, key, &same));
        if (!same) continue;
        *out = &dict->pairs[i].value;
        break;
    }
    return AQ_OK;
}

enum aq_status jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                              struct jinja_value value)
{
    struct jinja_value *there;
    AQ_TRY(jinja_dict_find(run, dict, key, &there));
    if (!there) return dict_add(run, dict, key, value);
    *there = value;
    return AQ_OK;
}

struct jinja_value *jinja_dict_get(const struct jinja_dict *dict, const char *key, size_t bytes)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const struct jinja_value *k = &dict->pairs[i].key;
        if (k->kind == JINJA_STRING && k->bytes == bytes && memcmp(k->text, key, bytes) == 0)
            return &dict->pairs[i].value;
    }
    return NULL;
}

static enum aq_status object_from_json(struct jinja_run *run, const json_t *json, uint32_t nesting,
                                       struct jinja_value *out)
{
    AQ_TRY(jinja_dict(run, JINJA_DICT, out));
    for (void *at = json_object_iter((json_t *)(uintptr_t)json); at;
         at = json_object_iter_next((json_t *)(uintptr_t)json, at)) {
        const char *name = json_object_iter_key(at);
        struct jinja_value key, value;
        AQ_TRY(jinja_string(run, name, strlen(name), &key));
        AQ_TRY(jinja_from_json(run, json_object_iter_value(at), nesting + 1, &value));
        AQ_TRY(dict_add(run, out->dict, key, value));
    }
    return AQ_OK;
}

enum aq_status jinja_from_json(struct jinja_run *run, const json_t *json, uint32_t nesting, struct jinja_value *out)
{
    if (nesting > JINJA_VALUE_NESTING_MAX)
        return aq_fail(AQ_NOSPC, JINJA_AREA, "%s%sobjects within objects are at most %d deep",
                       run->where ? run->where : "", run->where ? ": " : "", (int)JINJA_VALUE_NESTING_MAX);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return object_from_json(run, json, nesting, out);
    case JSON_ARRAY:
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, (uint32_t)json_array_size(json), out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            struct jinja_value item;
            AQ_TRY(jinja_from_json(run, json_array_get(json, i), nesting + 1, &item));
            AQ_TRY(jinja_list_add(run, out->list, item));
        }
        return AQ_OK;
    case JSON_STRING:
        return jinja_string(run, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(json));
        return AQ_OK;
    case JSON_REAL:
        *out = (struct jinja_value){.kind = JINJA_FLOAT, .real = json_real_value(json)};
        return AQ_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(json));
        return AQ_OK;
    default:
        *out = (struct jinja_value){.kind = JINJA_NONE};
        return AQ_OK;
    }
}

/* ---- asking ---- */

bool jinja_truth(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
    case JINJA_MISSING:
        return false;
    case JINJA_BOOL:
    case JINJA_INT:
        return v.integer != 0;
    case JINJA_FLOAT:
        return v.real != 0;
    case JINJA_STRING:
        return v.bytes != 0;
    case JINJA_LIST:
        return v.form == JINJA_FORM_ITERATOR || v.list->count != 0;
    case JINJA_DICT:
        return v.dict->count != 0;
    default:
        return true;
    }
}

bool jinja_is(struct jinja_value value, const char *text)
{
    return value.kind == JINJA_STRING && value.bytes == strlen(text) && memcmp(value.text, text, value.bytes) == 0;
}

const char *jinja_kind_text(struct jinja_value value)
{
    static const char *const names[] = {
        [JINJA_MISSING] = "missing",   [JINJA_UNDEFINED] = "undefined", [JINJA_NONE] = "None",   [JINJA_BOOL] = "bool",
        [JINJA_INT] = "int",           [JINJA_FLOAT] = "float",         [JINJA_STRING] = "str",  [JINJA_LIST] = "list",
        [JINJA_DICT] = "dict",         [JINJA_NAMESPACE] = "namespace", [JINJA_MACRO] = "macro", [JINJA_LOOP] = "loop",
        [JINJA_FUNCTION] = "function", [JINJA_METHOD] = "method"};
    if (value.kind == JINJA_LIST && value.form)
        return value.form == JINJA_FORM_TUPLE ? "tuple" : value.form == JINJA_FORM_VIEW ? "view" : "iterator";
    return names[value.kind];
}

enum aq_status jinja_fail_undefined(const struct jinja_run *run, struct jinja_value v)
{
    return jinja_fail(run, AQ_INVAL, "'%.*s' is undefined", v.bytes < 80 ? (int)v.bytes : 80, v.text);
}

enum aq_status jinja_want_text(const struct jinja_run *run, struct jinja_value v, const char *what)
{
    if (v.kind == JINJA_STRING) return AQ_OK;
    return jinja_fail(run, AQ_INVAL, "%s needs a str, not a %s", what, jinja_kind_text(v));
}

/* Exact, as Python: an int beyond 2^53 is not the float that it would round to. */
static int order_numbers(struct jinja_value a, struct jinja_value b)
{
    if (a.kind == JINJA_FLOAT && b.kind != JINJA_FLOAT) return -order_numbers(b, a);
    if (a.kind == JINJA_FLOAT) return a.real < b.real ? -1 : a.real > b.real;
    if (b.kind != JINJA_FLOAT) return a.integer < b.integer ? -1 : a.integer > b.integer;
    if (b.real >= 0x1p63) return -1;
    if (b.real < -0x1p63) return 1;
    const int64_t whole = (int64_t)b.real;
    if (a.integer != whole) return a.integer < whole ? -1 : 1;
    const double rest = b.real - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static enum aq_status deeper(struct jinja_run *run)
{
    if (run->depth++ < JINJA_DEPTH_MAX) return AQ_OK;
    return jinja_fail(run, AQ_NOSPC, "too deep (JINJA_DEPTH_MAX)");
}

static enum aq_status equal_dicts(struct jinja_run *run, const struct jinja_dict *a, const struct jinja_dict *b,
                                  bool *out)
{
    *out = a->count == b->count;
    for (uint32_t i = 0; *out && i < a->count; i++) {
        struct jinja_value *there;
        AQ_TRY(jinja_dict_find(run, b, a->pairs[i].key, &there));
        if (there)
            AQ_TRY(jinja_equal(run, a->pairs[i].value, *there, out));
        else
            *out = false;
    }
    return AQ_OK;
}

enum aq_status jinja_equal(struct jinja_run *run, struct jinja_value a, struct jinja_value b, bool *out)
{
    *out = false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        const bool nan = (a.kind == JINJA_FLOAT && isnan(a.real)) || (b.kind == JINJA_FLOAT && isnan(b.real));
        *out = !nan && order_numbers(a, b) == 0;
        return AQ_OK;
    }
    if (a.kind != b.kind) return AQ_OK;
    switch (a.kind) {
    case JINJA_STRING:
        AQ_TRY(jinja_charge(run, a.bytes == b.bytes ? a.bytes : 0));
        *out = a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0;
        return AQ_OK;
    case JINJA_LIST:
        if (a.form > JINJA_FORM_TUPLE || b.form > JINJA_FORM_TUPLE) {
            if (a.form == JINJA_FORM_VIEW || b.form == JINJA_FORM_VIEW)
                return jinja_fail(run, AQ_INVAL, "a view of a dict cannot be compared: use \"| list\"");
            *out = a.list == b.list;
            return AQ_OK;
        }
        *out = a.form == b.form && a.list->count == b.list->count;
        AQ_TRY(deeper(run));
        for (uint32_t i = 0; *out && i < a.list->count; i++) {
            AQ_TRY(jinja_charge(run, 0));
            AQ_TRY(jinja_equal(run, a.list->items[i], b.list->items[i], out));
        }
        run->depth--;
        return AQ_OK;
    case JINJA_DICT:
        AQ_TRY(deeper(run));
        AQ_TRY(equal_dicts(run, a.dict, b.dict, out));
        run->depth--;
        return AQ_OK;
    case JINJA_NAMESPACE:
        *out = a.dict == b.dict;
        return AQ_OK;
    default:
        *out = a.kind <= JINJA_NONE || a.integer == b.integer;
        return AQ_OK;
    }
}

enum aq_status jinja_order(struct jinja_run *run, struct jinja_value a, struct jinja_value b, int *out)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if ((a.kind == JINJA_FLOAT && isnan(a.real)) || (b.kind == JINJA_FLOAT && isnan(b.real)))
            return jinja_fail(run, AQ_INVAL, "NaN has no order");
        *out = order_numbers(a, b);
        return AQ_OK;
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        const uint32_t shorter = a.bytes < b.bytes ? a.bytes : b.bytes;
        AQ_TRY(jinja_charge(run, shorter));
        *out = shorter ? memcmp(a.text, b.text, shorter) : 0;
        if (*out == 0) *out = a.bytes < b.bytes ? -1 : a.bytes > b.bytes;
        return AQ_OK;
    }
    if (a.kind != JINJA_LIST || b.kind != JINJA_LIST || a.form != b.form || a.form > JINJA_FORM_TUPLE)
        return jinja_fail(run, AQ_INVAL, "a %s and a %s cannot be compared", jinja_kind_text(a), jinja_kind_text(b));
    AQ_TRY(deeper(run));
    *out = a.list->count < b.list->count ? -1 : a.list->count > b.list->count;
    for (uint32_t i = 0; i < a.list->count && i < b.list->count; i++) {
        bool same;
        AQ_TRY(jinja_equal(run, a.list->items[i], b.list->items[i], &same));
        if (same) continue;
        AQ_TRY(jinja_order(run, a.list->items[i], b.list->items[i], out));
        break;
    }
    run->depth--;
    return AQ_OK;
}

enum aq_status jinja_contains(struct jinja_run *run, struct jinja_value where, struct jinja_value what, bool *out)
{
    struct jinja_value *there;
    struct jinja_list *list;
    *out = false;
    switch (where.kind) {
    case JINJA_STRING:
        if (what.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, what);
        if (what.kind != JINJA_STRING)
            return jinja_fail(run, AQ_INVAL, "only a str can be in a str, not a %s", jinja_kind_text(what));
        AQ_TRY(jinja_charge(run, where.bytes));
        *out = jinja_find(where, 0, what) >= 0;
        return AQ_OK;
    case JINJA_DICT:
        AQ_TRY(jinja_dict_find(run, where.dict, what, &there));
        *out = there != NULL;
        return AQ_OK;
    default:
        AQ_TRY(jinja_iterate(run, where, &list));
        for (uint32_t i = 0; !*out && i < list->count; i++) {
            AQ_TRY(jinja_charge(run, 0));
            AQ_TRY(jinja_equal(run, list->items[i], what, out));
        }
        return AQ_OK;
    }
}

enum aq_status jinja_iterate(struct jinja_run *run, struct jinja_value value, struct jinja_list **out)
{
    struct jinja_value made;
    switch (value.kind) {
    case JINJA_UNDEFINED:
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 0, &made));
        break;
    case JINJA_LIST:
        if (value.form != JINJA_FORM_ITERATOR) {
            *out = value.list;
            return AQ_OK;
        }
        /* An iterator gives its remaining items once. */
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, value.list->count - value.list->taken, &made));
        for (; value.list->taken < value.list->count; value.list->taken++)
            made.list->items[made.list->count++] = value.list->items[value.list->taken];
        break;
    case JINJA_DICT:
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, value.dict->count, &made));
        for (uint32_t i = 0; i < value.dict->count; i++)
            AQ_TRY(jinja_list_add(run, made.list, value.dict->pairs[i].key));
        break;
    case JINJA_STRING:
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 0, &made));
        for (uint32_t i = 0, length; i < value.bytes; i += length) {
            jinja_decode(value.text + i, &length);
            AQ_TRY(jinja_list_add(run, made.list, jinja_borrow(value.text + i, length)));
        }
        break;
    default:
        return jinja_fail(run, AQ_INVAL, "a %s cannot be iterated over", jinja_kind_text(value));
    }
    *out = made.list;
    return AQ_OK;
}

enum aq_status jinja_length(struct jinja_run *run, struct jinja_value value, int64_t *out)
{
    switch (value.kind) {
    case JINJA_UNDEFINED:
        *out = 0;
        return AQ_OK;
    case JINJA_STRING:
        AQ_TRY(jinja_charge(run, value.bytes));
        *out = jinja_characters(value);
        return AQ_OK;
    case JINJA_DICT:
        *out = value.dict->count;
        return AQ_OK;
    case JINJA_LIST:
        *out = value.list->count;
        if (value.form != JINJA_FORM_ITERATOR) return AQ_OK;
        return jinja_fail(run, AQ_INVAL, "the result of a filter has no length: put \"| list\" before it");
    default:
        return jinja_fail(run, AQ_INVAL, "a %s has no length", jinja_kind_text(value));
    }
}
