/*
 * jinja_eval.c -- expressions.
 *
 * An undefined value is quiet where Jinja's is (printed, tested, gone through) and an error where Jinja's is (its
 * attribute, arithmetic, order). Whole numbers have 64 bits: what does not fit is refused.
 */
#include "jinja.h"

#include <math.h>
#include <string.h>

/* ---- arithmetic ---- */

static double real(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.real : (double)v.integer;
}

static struct jinja_value from_real(double value)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .real = value};
}

static enum aq_status whole_power(const struct jinja_run *run, int64_t base, int64_t exponent, struct jinja_value *out)
{
    int64_t value = 1;
    bool over = false;
    for (; exponent > 0 && !over; exponent /= 2) {
        if (exponent % 2) over = __builtin_mul_overflow(value, base, &value);
        if (exponent > 1) over = over || __builtin_mul_overflow(base, base, &base);
    }
    *out = jinja_int(value);
    return over ? jinja_fail(run, AQ_INVAL, "a whole number of more than 64 bits") : AQ_OK;
}

/* Division as Python's: towards minus infinity; the rest has the divisor's sign. */
static enum aq_status whole(const struct jinja_run *run, uint8_t op, int64_t a, int64_t b, struct jinja_value *out)
{
    int64_t value = 0;
    bool over = false;
    switch (op) {
    case JINJA_T_ADD:
        over = __builtin_add_overflow(a, b, &value);
        break;
    case JINJA_T_SUB:
        over = __builtin_sub_overflow(a, b, &value);
        break;
    case JINJA_T_MUL:
        over = __builtin_mul_overflow(a, b, &value);
        break;
    case JINJA_T_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        if (!over) value = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    default:
        if (b != -1) value = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    }
    *out = jinja_int(value);
    return over ? jinja_fail(run, AQ_INVAL, "a whole number of more than 64 bits") : AQ_OK;
}

static enum aq_status numbers(const struct jinja_run *run, uint8_t op, struct jinja_value a, struct jinja_value b,
                              struct jinja_value *out)
{
    const bool wholes = a.kind != JINJA_FLOAT && b.kind != JINJA_FLOAT;
    if ((op == JINJA_T_DIV || op == JINJA_T_FLOORDIV || op == JINJA_T_MOD) && real(b) == 0)
        return jinja_fail(run, AQ_INVAL, "division by zero");
    if (wholes && op == JINJA_T_POW && b.integer >= 0) return whole_power(run, a.integer, b.integer, out);
    if (wholes && op != JINJA_T_POW && op != JINJA_T_DIV) return whole(run, op, a.integer, b.integer, out);
    const double x = real(a), y = real(b);
    double rest;
    switch (op) {
    case JINJA_T_ADD:
        *out = from_real(x + y);
        return AQ_OK;
    case JINJA_T_SUB:
        *out = from_real(x - y);
        return AQ_OK;
    case JINJA_T_MUL:
        *out = from_real(x * y);
        return AQ_OK;
    case JINJA_T_DIV:
        *out = from_real(x / y);
        return AQ_OK;
    case JINJA_T_POW:
        if ((x < 0 && y != floor(y)) || (x == 0 && y < 0)) return jinja_fail(run, AQ_INVAL, "no real number");
        *out = from_real(pow(x, y));
        return AQ_OK;
    default:
        rest = fmod(x, y);
        if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
        *out = from_real(op == JINJA_T_MOD ? rest : floor((x - rest) / y + 0.5));
        return AQ_OK;
    }
}

static enum aq_status repeat(struct jinja_run *run, struct jinja_value what, int64_t times, struct jinja_value *out)
{
    if (times < 0) times = 0;
    if (times > AQ_CHAT_MEMORY_BYTES_MAX) return jinja_fail(run, AQ_NOSPC, "repeated too often");
    if (what.kind == JINJA_STRING) {
        void *memory;
        AQ_TRY(jinja_heap(run, (size_t)what.bytes * (size_t)times, &memory));
        for (int64_t i = 0; what.bytes && i < times; i++)
            memcpy((char *)memory + i * what.bytes, what.text, what.bytes);
        *out = jinja_borrow(memory, (size_t)what.bytes * (size_t)times);
        out->form = what.form;
        return AQ_OK;
    }
    AQ_TRY(jinja_list(run, what.form, 0, out));
    for (int64_t i = 0; what.list->count && i < times; i++)
        for (uint32_t item = 0; item < what.list->count; item++)
            AQ_TRY(jinja_list_add(run, out->list, what.list->items[item]));
    return AQ_OK;
}

static bool is_sequence(struct jinja_value v)
{
    return v.kind == JINJA_STRING || (v.kind == JINJA_LIST && v.form <= JINJA_FORM_TUPLE);
}

enum aq_status jinja_binary(struct jinja_run *run, uint8_t op, struct jinja_value a, struct jinja_value b,
                            struct jinja_value *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (b.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, b);
    if (jinja_is_number(a) && jinja_is_number(b)) return numbers(run, op, a, b, out);
    if (op == JINJA_T_ADD && a.kind == JINJA_STRING && b.kind == JINJA_STRING) return jinja_join(run, a, b, out);
    if (op == JINJA_T_ADD && is_sequence(a) && is_sequence(b) && a.kind == b.kind && a.form == b.form) {
        AQ_TRY(jinja_list(run, a.form, a.list->count + b.list->count, out));
        if (a.list->count) memcpy(out->list->items, a.list->items, a.list->count * sizeof a);
        if (b.list->count) memcpy(out->list->items + a.list->count, b.list->items, b.list->count * sizeof a);
        out->list->count = a.list->count + b.list->count;
        return AQ_OK;
    }
    if (op == JINJA_T_MUL && is_sequence(a) && (b.kind == JINJA_INT || b.kind == JINJA_BOOL))
        return repeat(run, a, b.integer, out);
    if (op == JINJA_T_MUL && is_sequence(b) && (a.kind == JINJA_INT || a.kind == JINJA_BOOL))
        return repeat(run, b, a.integer, out);
    if (op == JINJA_T_MOD && a.kind == JINJA_STRING)
        return jinja_fail(run, AQ_INVAL, "formatting by %% is not supported: use ~");
    return jinja_fail(run, AQ_INVAL, "%s is not for a %s and a %s", signs[op - JINJA_T_ADD], jinja_kind_text(a),
                      jinja_kind_text(b));
}

static enum aq_status sign(struct jinja_run *run, bool negative, struct jinja_value v, struct jinja_value *out)
{
    if (v.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, v);
    if (!jinja_is_number(v)) return jinja_fail(run, AQ_INVAL, "a %s has no sign", jinja_kind_text(v));
    if (v.kind == JINJA_FLOAT) {
        *out = from_real(negative ? -v.real : v.real);
        return AQ_OK;
    }
    return whole(run, negative ? JINJA_T_SUB : JINJA_T_ADD, 0, v.integer, out);
}

/* ---- attributes and items ---- */

static enum aq_status bound_method(struct jinja_run *run, struct jinja_value self, const char *name, uint32_t bytes,
                                   bool *found, struct jinja_value *out)
{
    uint32_t number;
    void *memory;
    AQ_TRY(jinja_method_find(run, self, name, bytes, found, &number));
    if (!*found) return AQ_OK;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_method), &memory));
    *(struct jinja_method *)memory = (struct jinja_method){.self = self, .number = number};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .method = memory};
    return AQ_OK;
}

enum aq_status jinja_attribute(struct jinja_run *run, struct jinja_value object, const char *name, uint32_t bytes,
                               struct jinja_value *out)
{
    bool found = false;
    struct jinja_value *member;
    switch (object.kind) {
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(run, object);
    case JINJA_LOOP:
        return jinja_loop_attribute(run, object.loop, name, bytes, out);
    case JINJA_STRING:
    case JINJA_LIST:
    case JINJA_DICT:
        AQ_TRY(bound_method(run, object, name, bytes, &found, out));
        break;
    case JINJA_MACRO:
        return jinja_fail(run, AQ_INVAL, "a macro's attributes are not supported");
    default:
        break;
    }
    if (found) return AQ_OK;
    member =
        object.kind == JINJA_DICT || object.kind == JINJA_NAMESPACE ? jinja_dict_get(object.dict, name, bytes) : NULL;
    *out = member ? *member : jinja_undefined(name, bytes);
    return AQ_OK;
}

enum aq_status jinja_item(struct jinja_run *run, struct jinja_value object, struct jinja_value index,
                          struct jinja_value *out)
{
    const bool whole_index = index.kind == JINJA_INT || index.kind == JINJA_BOOL;
    struct jinja_value *member;
    int64_t length;
    *out = index.kind == JINJA_STRING ? jinja_undefined(index.text, index.bytes) : jinja_undefined("item", 4);
    if (object.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, object);
    if (object.kind == JINJA_DICT) {
        AQ_TRY(jinja_dict_find(run, object.dict, index, &member));
        if (member) {
            *out = *member;
            return AQ_OK;
        }
    }
    if (index.kind == JINJA_STRING) return jinja_attribute(run, object, index.text, index.bytes, out);
    if (whole_index && object.kind == JINJA_LIST && object.form > JINJA_FORM_TUPLE)
        return jinja_fail(run, AQ_INVAL, "a %s has no items by number: use \"| list\"", jinja_kind_text(object));
    if (!whole_index || !is_sequence(object)) return AQ_OK;
    AQ_TRY(jinja_length(run, object, &length));
    const int64_t i = index.integer < 0 ? index.integer + length : index.integer;
    if (i < 0 || i >= length) return AQ_OK;
    if (object.kind == JINJA_LIST) {
        *out = object.list->items[i];
        return AQ_OK;
    }
    const uint32_t at = jinja_offset(object, i);
    uint32_t bytes;
    jinja_decode(object.text + at, &bytes);
    *out = jinja_borrow(object.text + at, bytes);
    out->form = object.form;
    return AQ_OK;
}

/* A slice's part; left out: `otherwise`. */
static enum aq_status slice_part(const struct jinja_run *run, struct jinja_value part, int64_t otherwise,
                                 int64_t length, bool back, int64_t *out)
{
    *out = otherwise;
    if (part.kind == JINJA_MISSING || part.kind == JINJA_NONE) return AQ_OK;
    if (part.kind != JINJA_INT && part.kind != JINJA_BOOL)
        return jinja_fail(run, AQ_INVAL, "a slice needs whole numbers, not a %s", jinja_kind_text(part));
    const int64_t least = back ? -1 : 0, most = back ? length - 1 : length;
    int64_t i = part.integer < 0 ? part.integer + length : part.integer;
    *out = i < least ? least : i > most ? most : i;
    return AQ_OK;
}

enum aq_status jinja_slice(struct jinja_run *run, struct jinja_value object, const struct jinja_value parts[3],
                           struct jinja_value *out)
{
    int64_t length, from, to, step = 1;
    if (object.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, object);
    if (object.kind == JINJA_LIST && object.form > JINJA_FORM_TUPLE)
        return jinja_fail(run, AQ_INVAL, "a %s has no slices: use \"| list\"", jinja_kind_text(object));
    if (!is_sequence(object)) {
        *out = jinja_undefined("slice", 5);
        return AQ_OK;
    }
    if (parts[2].kind == JINJA_INT || parts[2].kind == JINJA_BOOL)
        step = parts[2].integer;
    else if (parts[2].kind != JINJA_MISSING && parts[2].kind != JINJA_NONE)
        return jinja_fail(run, AQ_INVAL, "a slice needs whole numbers, not a %s", jinja_kind_text(parts[2]));
    if (step == 0) return jinja_fail(run, AQ_INVAL, "a slice's step is 0");
    AQ_TRY(jinja_length(run, object, &length));
    if (step > length + 1) step = length + 1;
    if (step < -length - 1) step = -length - 1;
    AQ_TRY(slice_part(run, parts[0], step < 0 ? length - 1 : 0, length, step < 0, &from));
    AQ_TRY(slice_part(run, parts[1], step < 0 ? -1 : length, length, step < 0, &to));
    if (object.kind == JINJA_LIST) {
        AQ_TRY(jinja_list(run, object.form, 0, out));
        for (int64_t i = from; step < 0 ? i > to : i < to; i += step)
            AQ_TRY(jinja_list_add(run, out->list, object.list->items[i]));
        return AQ_OK;
    }
    if (step == 1) {
        const uint32_t begin = jinja_offset(object, from), end = to > from ? jinja_offset(object, to) : begin;
        *out = jinja_borrow(object.text + begin, end - begin);
    } else {
        struct jinja_list *characters;
        void *memory;
        uint32_t used = 0;
        AQ_TRY(jinja_iterate(run, object, &characters));
        AQ_TRY(jinja_heap(run, object.bytes, &memory));
        for (int64_t i = from; step < 0 ? i > to : i < to; i += step) {
            memcpy((char *)memory + used, characters->items[i].text, characters->items[i].bytes);
            used += characters->items[i].bytes;
        }
        *out = jinja_borrow(memory, used);
    }
    out->form = object.form;
    return AQ_OK;
}

/* ---- expressions ---- */

static struct jinja_value look_up(const struct jinja_run *run, uint32_t number)
{
    struct jinja_value function;
    for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++)
            if (scope->bindings[i].name == number) return scope->bindings[i].value;
    const struct jinja_name *name = &run->program->names[number];
    return jinja_function_find(name->text, name->bytes, &function) ? function
                                                                   : jinja_undefined(name->text, name->bytes);
}

enum aq_status jinja_eval_args(struct jinja_run *run, uint32_t first, struct jinja_args *out)
{
    out->count = out->named = 0;
    for (uint32_t node = first; node; node = jinja_node_at(run, node)->next) {
        const struct jinja_node *argument = jinja_node_at(run, node);
        const bool named = argument->kind == JINJA_N_KEYWORD;
        AQ_ASSERT(out->count + out->named < JINJA_ARGS_MAX); /* the parser's bound */
        AQ_TRY(jinja_eval(run, named ? argument->child[0] : node, &out->values[out->count + out->named]));
        if (named)
            out->names[out->named++] = argument->name;
        else
            out->count++;
    }
    return AQ_OK;
}

static enum aq_status eval_call(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value value = run->block_text;
    struct jinja_args args;
    bool holds;
    if (node->child[0]) AQ_TRY(jinja_eval(run, node->child[0], &value));
    AQ_TRY(jinja_eval_args(run, node->child[1], &args));
    run->at = node->at;
    if (node->kind == JINJA_N_CALL) return jinja_call(run, value, &args, out);
    if (node->kind == JINJA_N_FILTER)
        return jinja_filter(run, node->constant.text, node->constant.bytes, value, &args, out);
    AQ_TRY(jinja_test(run, node->constant.text, node->constant.bytes, value, &args, &holds));
    *out = jinja_bool(holds);
    return AQ_OK;
}

static enum aq_status compare(struct jinja_run *run, uint8_t op, struct jinja_value a, struct jinja_value b, bool *out)
{
    int order;
    if (op == JINJA_T_EQ || op == JINJA_T_NE) {
        AQ_TRY(jinja_equal(run, a, b, out));
        *out = *out == (op == JINJA_T_EQ);
        return AQ_OK;
    }
    if (op == JINJA_T_IN || op == JINJA_T_NOT_IN) {
        AQ_TRY(jinja_contains(run, b, a, out));
        *out = *out == (op == JINJA_T_IN);
        return AQ_OK;
    }
    if (a.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, a);
    if (b.kind == JINJA_UNDEFINED) return jinja_fail_undefined(run, b);
    AQ_TRY(jinja_order(run, a, b, &order));
    *out = op == JINJA_T_LT ? order < 0 : op == JINJA_T_LE ? order <= 0 : op == JINJA_T_GT ? order > 0 : order >= 0;
    return AQ_OK;
}

/* a < b < c: each with its neighbour, until one does not hold. */
static enum aq_status eval_compare(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;
    AQ_TRY(jinja_eval(run, node->child[0], &left));
    for (uint32_t operand = node->child[1]; operand && holds; operand = jinja_node_at(run, operand)->next) {
        AQ_TRY(jinja_eval(run, jinja_node_at(run, operand)->child[0], &right));
        run->at = jinja_node_at(run, operand)->at;
        AQ_TRY(compare(run, jinja_node_at(run, operand)->op, left, right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return AQ_OK;
}

static enum aq_status eval_items(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value key, value;
    const uint32_t first = node->child[0];
    if (node->kind == JINJA_N_DICT) {
        AQ_TRY(jinja_dict(run, JINJA_DICT, out));
        for (uint32_t pair = first; pair; pair = jinja_node_at(run, pair)->next) {
            AQ_TRY(jinja_eval(run, jinja_node_at(run, pair)->child[0], &key));
            AQ_TRY(jinja_eval(run, jinja_node_at(run, pair)->child[1], &value));
            run->at = jinja_node_at(run, pair)->at;
            AQ_TRY(jinja_dict_set(run, out->dict, key, value));
        }
        return AQ_OK;
    }
    if (node->kind == JINJA_N_CONCAT) {
        *out = jinja_borrow("", 0);
        for (uint32_t operand = first; operand; operand = jinja_node_at(run, operand)->next) {
            AQ_TRY(jinja_eval(run, operand, &value));
            run->at = node->at;
            AQ_TRY(jinja_text(run, value, &value));
            value.form = 0; /* without autoescape ~ makes a plain text */
            AQ_TRY(jinja_join(run, *out, value, out));
        }
        return AQ_OK;
    }
    AQ_TRY(jinja_list(run, node->kind == JINJA_N_TUPLE ? JINJA_FORM_TUPLE : JINJA_FORM_LIST, 0, out));
    for (uint32_t item = first; item; item = jinja_node_at(run, item)->next) {
        AQ_TRY(jinja_eval(run, item, &value));
        AQ_TRY(jinja_list_add(run, out->list, value));
    }
    return AQ_OK;
}

static enum aq_status eval_item(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    const struct jinja_node *index = jinja_node_at(run, node->child[1]);
    struct jinja_value object, parts[3] = {{0}};
    AQ_TRY(jinja_eval(run, node->child[0], &object));
    if (index->kind != JINJA_N_SLICE) {
        AQ_TRY(jinja_eval(run, node->child[1], &parts[0]));
        run->at = node->at;
        return jinja_item(run, object, parts[0], out);
    }
    for (int i = 0; i < 3; i++)
        if (index->child[i]) AQ_TRY(jinja_eval(run, index->child[i], &parts[i]));
    run->at = node->at;
    return jinja_slice(run, object, parts, out);
}

/* and, or (which give one of their operands), not, if-else. */
static enum aq_status eval_logic(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    AQ_TRY(jinja_eval(run, node->child[0], out));
    const bool truth = jinja_truth(*out);
    switch (node->kind) {
    case JINJA_N_NOT:
        *out = jinja_bool(!truth);
        return AQ_OK;
    case JINJA_N_AND:
        return truth ? jinja_eval(run, node->child[1], out) : AQ_OK;
    case JINJA_N_OR:
        return truth ? AQ_OK : jinja_eval(run, node->child[1], out);
    default:
        if (truth) return jinja_eval(run, node->child[1], out);
        if (node->child[2]) return jinja_eval(run, node->child[2], out);
        *out = jinja_undefined("if without else", 15);
        return AQ_OK;
    }
}

static enum aq_status eval(struct jinja_run *run, uint32_t number, struct jinja_value *out)
{
    const struct jinja_node *node = jinja_node_at(run, number);
    struct jinja_value left, right;
    run->at = node->at;
    switch (node->kind) {
    case JINJA_N_CONST:
        *out = node->constant;
        return AQ_OK;
    case JINJA_N_NAME:
        *out = look_up(run, node->name);
        return AQ_OK;
    case JINJA_N_TUPLE:
    case JINJA_N_LIST:
    case JINJA_N_DICT:
    case JINJA_N_CONCAT:
        return eval_items(run, node, out);
    case JINJA_N_NOT:
    case JINJA_N_AND:
    case JINJA_N_OR:
    case JINJA_N_CONDITION:
        return eval_logic(run, node, out);
    case JINJA_N_NEGATIVE:
    case JINJA_N_POSITIVE:
        AQ_TRY(jinja_eval(run, node->child[0], &left));
        run->at = node->at;
        return sign(run, node->kind == JINJA_N_NEGATIVE, left, out);
    case JINJA_N_BINARY:
        AQ_TRY(jinja_eval(run, node->child[0], &left));
        AQ_TRY(jinja_eval(run, node->child[1], &right));
        run->at = node->at;
        return jinja_binary(run, node->op, left, right, out);
    case JINJA_N_COMPARE:
        return eval_compare(run, node, out);
    case JINJA_N_ATTRIBUTE:
        AQ_TRY(jinja_eval(run, node->child[0], &left));
        run->at = node->at;
        return jinja_attribute(run, left, node->constant.text, node->constant.bytes, out);
    case JINJA_N_ITEM:
        return eval_item(run, node, out);
    case JINJA_N_CALL:
    case JINJA_N_FILTER:
    case JINJA_N_TEST:
        return eval_call(run, node, out);
    default:
        return jinja_fail(run, AQ_INVAL, "this has no value here");
    }
}

enum aq_status jinja_eval(struct jinja_run *run, uint32_t node, struct jinja_value *out)
{
    AQ_TRY(jinja_charge(run, 0));
    if (++run->depth > JINJA_DEPTH_MAX) return jinja_fail(run, AQ_NOSPC, "too deep (JINJA_DEPTH_MAX)");
    struct jinja_value value = {0};
    AQ_TRY(eval(run, node, &value));
    run->depth--;
    *out = value;
    return AQ_OK;
}

/* ---- arguments ---- */

enum aq_status jinja_bind(struct jinja_run *run, const struct jinja_args *args, const char *what,
                          const char *parameters, uint32_t required, struct jinja_value *out)
{
    uint32_t used = 0, position = 0;
    for (const char *p = parameters; *p; position++) {
        const size_t bytes = strcspn(p, " ");
        out[position] = (struct jinja_value){.kind = JINJA_MISSING};
        if (position < args->count) {
            out[position] = args->values[position];
            used++;
        }
        for (uint32_t i = 0; i < args->named; i++) {
            const struct jinja_name *name = &run->program->names[args->names[i]];
            if (name->bytes != bytes || memcmp(name->text, p, bytes) != 0) continue;
            if (position < args->count)
                return jinja_fail(run, AQ_INVAL, "%s: %.*s is given twice", what, (int)bytes, p);
            out[position] = args->values[args->count + i];
            used++;
        }
        if (position < required && out[position].kind == JINJA_MISSING)
            return jinja_fail(run, AQ_INVAL, "%s needs %.*s", what, (int)bytes, p);
        p += bytes + (p[bytes] == ' ');
    }
    if (used == args->count + args->named) return AQ_OK;
    return jinja_fail(run, AQ_INVAL, "%s takes no such argument here (it takes: %s)", what,
                      *parameters ? parameters : "none");
}
