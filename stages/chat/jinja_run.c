/*
 * jinja_run.c -- a program's statements: output, loops, scopes, macros.
 *
 * Scopes are as Jinja's: a loop, a macro, a block that is captured and `with` have their own, `if` has none; a name is
 * looked up from the inside out, and set in the innermost. A loop's scope is emptied for each item. A macro sees the
 * scope that it was made in.
 *
 * There is one output. Captured text (macros, set blocks) is written behind it and cut off again.
 */
#include "jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum aq_status exec_list(struct jinja_run *run, uint32_t first);

enum aq_status jinja_fail(const struct jinja_run *run, enum aq_status status, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return jinja_program_fail(run->program, run->where, run->at, status, "%s", text);
}

/* ---- output ---- */

enum aq_status jinja_write(struct jinja_run *run, const char *text, size_t bytes)
{
    AQ_TRY(jinja_charge(run, bytes));
    if (run->out_bytes + bytes > AQ_CHAT_OUTPUT_BYTES_MAX)
        return jinja_fail(run, AQ_NOSPC, "the text becomes too long (AQ_CHAT_OUTPUT_BYTES_MAX)");
    if (run->out_bytes + bytes + 1 > run->out_capacity) {
        size_t capacity = run->out_capacity ? run->out_capacity * 2 : 4096;
        void *memory;
        if (capacity < run->out_bytes + bytes + 1) capacity = run->out_bytes + bytes + 1;
        AQ_TRY(aq_alloc(capacity, &memory));
        if (run->out_bytes) memcpy(memory, run->out, run->out_bytes);
        aq_free(run->out);
        run->out = memory;
        run->out_capacity = capacity;
    }
    if (bytes) memcpy(run->out + run->out_bytes, text, bytes);
    run->out_bytes += bytes;
    run->out[run->out_bytes] = 0;
    return AQ_OK;
}

enum aq_status jinja_capture_end(struct jinja_run *run, size_t mark, struct jinja_value *out)
{
    AQ_TRY(jinja_string(run, run->out ? run->out + mark : "", run->out_bytes - mark, out));
    run->out_bytes = mark;
    return AQ_OK;
}

/* ---- scopes ---- */

static enum aq_status scope_open(struct jinja_run *run, struct jinja_scope *parent, struct jinja_scope **out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_scope), &memory));
    *out = memory;
    **out = (struct jinja_scope){.parent = parent};
    return AQ_OK;
}

static enum aq_status scope_set(struct jinja_run *run, struct jinja_scope *scope, uint32_t name,
                                struct jinja_value value)
{
    for (uint32_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].name != name) continue;
        scope->bindings[i].value = value;
        return AQ_OK;
    }
    if (scope->count == scope->capacity) {
        const uint32_t capacity = scope->capacity ? scope->capacity * 2 : 4;
        void *memory;
        AQ_TRY(jinja_heap(run, capacity * sizeof *scope->bindings, &memory));
        if (scope->count) memcpy(memory, scope->bindings, scope->count * sizeof *scope->bindings);
        scope->bindings = memory;
        scope->capacity = capacity;
    }
    scope->bindings[scope->count++] = (struct jinja_binding){name, value};
    return AQ_OK;
}

static enum aq_status set_member(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value)
{
    struct jinja_value space;
    for (const struct jinja_scope *scope = run->scope; scope; scope = scope->parent)
        for (uint32_t i = 0; i < scope->count; i++) {
            if (scope->bindings[i].name != target->name) continue;
            space = scope->bindings[i].value;
            if (space.kind != JINJA_NAMESPACE)
                return jinja_fail(run, AQ_INVAL, "only a namespace's members can be set, this is a %s",
                                  jinja_kind_text(space));
            if (target->constant.bytes && target->constant.text[0] == '_')
                return jinja_fail(run, AQ_INVAL, "the name of a namespace's member cannot start with _");
            return jinja_dict_set(run, space.dict, target->constant, value);
        }
    return jinja_fail(run, AQ_INVAL, "there is no such namespace");
}

/* Gives a target its value: a name, a member, or names that share the items. */
static enum aq_status assign(struct jinja_run *run, struct jinja_scope *scope, uint32_t target,
                             struct jinja_value value)
{
    const struct jinja_node *node = jinja_node_at(run, target);
    struct jinja_list *list;
    run->at = node->at;
    if (node->kind == JINJA_N_NAME) return scope_set(run, scope, node->name, value);
    if (node->kind == JINJA_N_NAMESPACE_REF) return set_member(run, node, value);
    AQ_TRY(jinja_iterate(run, value, &list));
    uint32_t i = 0;
    for (uint32_t item = node->child[0]; item; item = jinja_node_at(run, item)->next, i++)
        if (i < list->count) AQ_TRY(scope_set(run, scope, jinja_node_at(run, item)->name, list->items[i]));
    if (i == list->count) return AQ_OK;
    return jinja_fail(run, AQ_INVAL, "%u names for %u items", (unsigned)i, (unsigned)list->count);
}

/* Runs statements in this scope. */
static enum aq_status exec_in(struct jinja_run *run, struct jinja_scope *scope, uint32_t first)
{
    struct jinja_scope *outer = run->scope;
    run->scope = scope;
    AQ_TRY(exec_list(run, first));
    run->scope = outer;
    return AQ_OK;
}

static enum aq_status exec_inner(struct jinja_run *run, uint32_t first)
{
    struct jinja_scope *scope;
    AQ_TRY(scope_open(run, run->scope, &scope));
    return exec_in(run, scope, first);
}

/* The text of statements, run in a new scope. */
static enum aq_status capture(struct jinja_run *run, uint32_t first, struct jinja_value *out)
{
    const size_t mark = run->out_bytes;
    run->captures++;
    AQ_TRY(exec_inner(run, first));
    run->captures--;
    return jinja_capture_end(run, mark, out);
}

/* ---- loops ---- */

enum aq_status jinja_loop_reach(struct jinja_run *run, struct jinja_loop *loop, uint64_t index, bool *there)
{
    const struct jinja_node *node = jinja_node_at(run, loop->node);
    const uint32_t target = node->child[0], filter = node->child[2], place = run->at;
    struct jinja_scope *scope, *outer = run->scope;
    while (loop->passed->count <= index && loop->source_at < loop->source->count) {
        const struct jinja_value item = loop->source->items[loop->source_at++];
        AQ_TRY(scope_open(run, loop->outer, &scope));
        AQ_TRY(assign(run, scope, target, item));
        struct jinja_value passes;
        run->scope = scope;
        AQ_TRY(jinja_eval(run, filter, &passes));
        run->scope = outer;
        if (jinja_truth(passes)) AQ_TRY(jinja_list_add(run, loop->passed, item));
    }
    run->at = place;
    *there = loop->passed->count > index;
    return AQ_OK;
}

static enum aq_status loop_open(struct jinja_run *run, uint32_t node, struct jinja_loop **out)
{
    struct jinja_value items, passed;
    void *memory;
    AQ_TRY(jinja_eval(run, jinja_node_at(run, node)->child[1], &items));
    run->at = jinja_node_at(run, node)->at;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_loop), &memory));
    struct jinja_loop *loop = memory;
    *loop = (struct jinja_loop){.node = node, .outer = run->scope, .depth = run->loop_depth};
    AQ_TRY(jinja_iterate(run, items, &loop->source));
    if (jinja_node_at(run, node)->child[2]) {
        AQ_TRY(jinja_list(run, JINJA_FORM_LIST, 0, &passed));
        loop->passed = passed.list;
    } else {
        loop->passed = loop->source;
        loop->source_at = loop->source->count;
    }
    *out = loop;
    return AQ_OK;
}

static enum aq_status exec_for(struct jinja_run *run, uint32_t number)
{
    const struct jinja_node *node = jinja_node_at(run, number);
    struct jinja_loop *loop;
    struct jinja_scope *scope;
    AQ_TRY(loop_open(run, number, &loop));
    AQ_TRY(scope_open(run, run->scope, &scope));
    run->loop_depth++;
    for (;; loop->index++) {
        bool there;
        AQ_TRY(jinja_loop_reach(run, loop, loop->index, &there));
        if (!there) break;
        AQ_TRY(jinja_charge(run, 0));
        scope->count = 0;
        if (run->loop_name < JINJA_NAMES_MAX)
            AQ_TRY(scope_set(run, scope, run->loop_name, (struct jinja_value){.kind = JINJA_LOOP, .loop = loop}));
        AQ_TRY(assign(run, scope, node->child[0], loop->passed->items[loop->index]));
        AQ_TRY(exec_in(run, scope, node->child[3]));
        const bool leaves = run->flow == JINJA_FLOW_BREAK;
        run->flow = JINJA_FLOW_ON;
        if (leaves) break;
    }
    run->loop_depth--;
    return loop->passed->count == 0 && node->child[4] ? exec_inner(run, node->child[4]) : AQ_OK;
}

enum aq_status jinja_loop_attribute(struct jinja_run *run, struct jinja_loop *loop, const char *name, uint32_t bytes,
                                    struct jinja_value *out)
{
    static const char *const names[] = {"index",    "index0",   "first",     "depth",  "depth0", "last",   "nextitem",
                                        "previtem", "revindex", "revindex0", "length", "cycle",  "changed"};
    enum { INDEX, INDEX0, FIRST, DEPTH, DEPTH0, LAST, NEXT, PREVIOUS, BACK, BACK0, LENGTH, CYCLE, CHANGED, NAMES };
    unsigned which = 0;
    bool there;
    while (which < NAMES && (strlen(names[which]) != bytes || memcmp(names[which], name, bytes) != 0))
        which++;
    if (which == LAST || which == NEXT) AQ_TRY(jinja_loop_reach(run, loop, (uint64_t)loop->index + 1, &there));
    if (which >= BACK && which <= LENGTH) AQ_TRY(jinja_loop_reach(run, loop, UINT64_MAX, &there));
    const struct jinja_list *list = loop->passed;
    switch (which) {
    case INDEX:
    case INDEX0:
        *out = jinja_int((int64_t)loop->index + (which == INDEX));
        return AQ_OK;
    case FIRST:
        *out = jinja_bool(loop->index == 0);
        return AQ_OK;
    case DEPTH:
    case DEPTH0: /* of recursion, which is not supported */
        *out = jinja_int(which == DEPTH);
        return AQ_OK;
    case LAST:
        *out = jinja_bool(!there);
        return AQ_OK;
    case NEXT:
        *out = there ? list->items[loop->index + 1] : jinja_undefined(name, bytes);
        return AQ_OK;
    case PREVIOUS:
        *out = loop->index ? list->items[loop->index - 1] : jinja_undefined(name, bytes);
        return AQ_OK;
    case BACK:
    case BACK0:
        *out = jinja_int((int64_t)list->count - loop->index - (which == BACK0));
        return AQ_OK;
    case LENGTH:
        *out = jinja_int(list->count);
        return AQ_OK;
    case NAMES:
        *out = jinja_undefined(name, bytes);
        return AQ_OK;
    default: {
        void *memory;
        AQ_TRY(jinja_heap(run, sizeof(struct jinja_method), &memory));
        *(struct jinja_method *)memory =
            (struct jinja_method){.self = {.kind = JINJA_LOOP, .loop = loop}, .number = which == CHANGED};
        *out = (struct jinja_value){.kind = JINJA_METHOD, .method = memory};
        return AQ_OK;
    }
    }
}

/* ---- macros ---- */

static enum aq_status macro_arguments(struct jinja_run *run, const struct jinja_macro *macro,
                                      const struct jinja_args *args, struct jinja_scope *scope)
{
    const struct jinja_node *node = jinja_node_at(run, macro->node);
    const uint32_t first = node->child[node->kind == JINJA_N_MACRO ? 0 : 1];
    uint32_t given = 0, used = 0;
    for (uint32_t p = first; p; p = jinja_node_at(run, p)->next) {
        const uint32_t name = jinja_node_at(run, p)->name;
        if (given < args->count) AQ_TRY(scope_set(run, scope, name, args->values[given++]));
    }
    if (given < args->count) return jinja_fail(run, AQ_INVAL, "a macro takes %u arguments at most", (unsigned)given);
    for (uint32_t i = 0; i < args->named; i++) {
        uint32_t position = 0, p = first;
        for (; p && jinja_node_at(run, p)->name != args->names[i]; p = jinja_node_at(run, p)->next)
            position++;
        if ((!p && args->names[i] != run->caller_name) || (p && position < args->count)) {
            const struct jinja_name *name = &run->program->names[args->names[i]];
            return jinja_fail(run, AQ_INVAL, "a macro's argument '%.*s' is %s",
                              name->bytes < 60 ? (int)name->bytes : 60, name->text,
                              p ? "given twice" : "none of its parameters");
        }
        AQ_TRY(scope_set(run, scope, args->names[i], args->values[args->count + i]));
    }
    for (uint32_t p = first; p; p = jinja_node_at(run, p)->next) {
        const struct jinja_node *parameter = jinja_node_at(run, p);
        bool there = used++ < args->count;
        for (uint32_t i = 0; i < args->named; i++)
            there = there || args->names[i] == parameter->name;
        if (there) continue;
        const struct jinja_name *name = &run->program->names[parameter->name];
        struct jinja_value value = jinja_undefined(name->text, name->bytes);
        if (parameter->child[0]) AQ_TRY(jinja_eval(run, parameter->child[0], &value));
        AQ_TRY(scope_set(run, scope, parameter->name, value));
    }
    return AQ_OK;
}

static enum aq_status macro_call(struct jinja_run *run, const struct jinja_macro *macro, const struct jinja_args *args,
                                 struct jinja_value *out)
{
    const struct jinja_node *node = jinja_node_at(run, macro->node);
    struct jinja_scope *scope, *outer = run->scope;
    const uint32_t loop_depth = run->loop_depth, place = run->at;
    const size_t mark = run->out_bytes;
    AQ_TRY(scope_open(run, macro->scope, &scope));
    if (run->caller_name < JINJA_NAMES_MAX && node->kind == JINJA_N_MACRO)
        AQ_TRY(scope_set(run, scope, run->caller_name, jinja_undefined("caller", 6)));
    run->scope = scope;
    AQ_TRY(macro_arguments(run, macro, args, scope));
    run->captures++;
    AQ_TRY(exec_list(run, node->child[node->kind == JINJA_N_MACRO ? 1 : 2]));
    run->captures--;
    run->scope = outer;
    run->loop_depth = loop_depth;
    run->at = place;
    return jinja_capture_end(run, mark, out);
}

static enum aq_status loop_call(struct jinja_run *run, const struct jinja_method *method, const struct jinja_args *args,
                                struct jinja_value *out)
{
    struct jinja_loop *loop = method->self.loop;
    struct jinja_value seen;
    bool same = false;
    if (args->named || (method->number == 0 && args->count == 0))
        return jinja_fail(run, AQ_INVAL, "loop.%s cannot be used like this", method->number ? "changed" : "cycle");
    if (method->number == 0) {
        *out = args->values[loop->index % args->count];
        return AQ_OK;
    }
    AQ_TRY(jinja_list(run, JINJA_FORM_TUPLE, args->count, &seen));
    for (uint32_t i = 0; i < args->count; i++)
        AQ_TRY(jinja_list_add(run, seen.list, args->values[i]));
    if (loop->changed.kind != JINJA_MISSING) AQ_TRY(jinja_equal(run, loop->changed, seen, &same));
    loop->changed = seen;
    *out = jinja_bool(!same);
    return AQ_OK;
}

enum aq_status jinja_call(struct jinja_run *run, struct jinja_value callee, const struct jinja_args *args,
                          struct jinja_value *out)
{
    switch (callee.kind) {
    case JINJA_MACRO:
        return macro_call(run, callee.macro, args, out);
    case JINJA_FUNCTION:
        return jinja_function_call(run, callee, args, out);
    case JINJA_METHOD:
        if (callee.method->self.kind == JINJA_LOOP) return loop_call(run, callee.method, args, out);
        return jinja_method_call(run, callee.method, args, out);
    case JINJA_UNDEFINED:
        return jinja_fail(run, AQ_INVAL, "'%.*s' is undefined and cannot be called",
                          callee.bytes < 80 ? (int)callee.bytes : 80, callee.text);
    default:
        return jinja_fail(run, AQ_INVAL, "a %s cannot be called", jinja_kind_text(callee));
    }
}

/* ---- statements ---- */

static enum aq_status make_macro(struct jinja_run *run, uint32_t node, struct jinja_value *out)
{
    void *memory;
    AQ_TRY(jinja_heap(run, sizeof(struct jinja_macro), &memory));
    *(struct jinja_macro *)memory = (struct jinja_macro){.node = node, .scope = run->scope};
    *out = (struct jinja_value){.kind = JINJA_MACRO, .macro = memory};
    return AQ_OK;
}

static enum aq_status exec_output(struct jinja_run *run, struct jinja_value value)
{
    struct jinja_value text;
    AQ_TRY(jinja_text(run, value, &text));
    return jinja_write(run, text.text, text.bytes);
}

/* A captured text through a block's filters. */
static enum aq_status filtered(struct jinja_run *run, uint32_t filters, struct jinja_value text,
                               struct jinja_value *out)
{
    const struct jinja_value before = run->block_text;
    *out = text;
    if (!filters) return AQ_OK;
    run->block_text = text;
    AQ_TRY(jinja_eval(run, filters, out));
    run->block_text = before;
    return AQ_OK;
}

static enum aq_status exec_generation(struct jinja_run *run, const struct jinja_node *node)
{
    const size_t begin = run->out_bytes;
    AQ_TRY(exec_inner(run, node->child[0]));
    run->at = node->at;
    if (!run->mark_answers || run->out_bytes == begin) return AQ_OK;
    if (run->captures)
        return jinja_fail(run, AQ_INVAL, "{%% generation %%} within a macro or a captured block is not supported");
    if (run->answer_count && run->answers[run->answer_count - 1].end > begin)
        return jinja_fail(run, AQ_INVAL, "{%% generation %%} within another is not supported");
    if (run->answer_count == run->answer_capacity) {
        const uint32_t capacity = run->answer_capacity ? run->answer_capacity * 2 : 8;
        void *memory;
        AQ_TRY(aq_alloc(capacity * sizeof *run->answers, &memory));
        if (run->answer_count) memcpy(memory, run->answers, run->answer_count * sizeof *run->answers);
        aq_free(run->answers);
        run->answers = memory;
        run->answer_capacity = capacity;
    }
    run->answers[run->answer_count++] = (struct aq_chat_range){begin, run->out_bytes};
    return AQ_OK;
}

/* The first branch whose test holds. */
static enum aq_status exec_if(struct jinja_run *run, const struct jinja_node *node)
{
    for (;;) {
        struct jinja_value test;
        AQ_TRY(jinja_eval(run, node->child[0], &test));
        if (jinja_truth(test)) return exec_list(run, node->child[1]);
        if (!node->child[2]) return AQ_OK;
        const struct jinja_node *next = jinja_node_at(run, node->child[2]);
        if (next->kind != JINJA_N_IF || next->next) return exec_list(run, node->child[2]);
        node = next;
    }
}

static enum aq_status exec_with(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_scope *scope;
    AQ_TRY(scope_open(run, run->scope, &scope));
    for (uint32_t set = node->child[0]; set; set = jinja_node_at(run, set)->next) {
        struct jinja_value value;
        AQ_TRY(jinja_eval(run, jinja_node_at(run, set)->child[1], &value));
        AQ_TRY(assign(run, scope, jinja_node_at(run, set)->child[0], value));
    }
    return exec_in(run, scope, node->child[1]);
}

static enum aq_status exec_call_block(struct jinja_run *run, uint32_t number)
{
    const struct jinja_node *node = jinja_node_at(run, number), *call = jinja_node_at(run, node->child[0]);
    struct jinja_value callee, caller, out;
    struct jinja_args args = {0};
    AQ_TRY(jinja_eval(run, call->child[0], &callee));
    AQ_TRY(jinja_eval_args(run, call->child[1], &args));
    AQ_TRY(make_macro(run, number, &caller));
    run->at = node->at;
    if (args.count + args.named == JINJA_ARGS_MAX || run->caller_name >= JINJA_NAMES_MAX || callee.kind != JINJA_MACRO)
        return jinja_fail(run, AQ_INVAL, "call needs a macro that uses caller()");
    args.names[args.named] = run->caller_name;
    args.values[args.count + args.named++] = caller;
    AQ_TRY(jinja_call(run, callee, &args, &out));
    return exec_output(run, out);
}

static enum aq_status exec(struct jinja_run *run, uint32_t number)
{
    const struct jinja_node *node = jinja_node_at(run, number);
    struct jinja_value value;
    AQ_TRY(jinja_charge(run, 0));
    run->at = node->at;
    switch (node->kind) {
    case JINJA_N_TEXT:
        return jinja_write(run, node->constant.text, node->constant.bytes);
    case JINJA_N_OUTPUT:
        AQ_TRY(jinja_eval(run, node->child[0], &value));
        run->at = node->at;
        return exec_output(run, value);
    case JINJA_N_FOR:
        return exec_for(run, number);
    case JINJA_N_IF:
        return exec_if(run, node);
    case JINJA_N_SET:
        AQ_TRY(jinja_eval(run, node->child[1], &value));
        return assign(run, run->scope, node->child[0], value);
    case JINJA_N_SET_BLOCK:
        AQ_TRY(capture(run, node->child[2], &value));
        AQ_TRY(filtered(run, node->child[1], value, &value));
        return assign(run, run->scope, node->child[0], value);
    case JINJA_N_FILTER_BLOCK:
        AQ_TRY(capture(run, node->child[1], &value));
        AQ_TRY(filtered(run, node->child[0], value, &value));
        return exec_output(run, value);
    case JINJA_N_MACRO:
        AQ_TRY(make_macro(run, number, &value));
        return scope_set(run, run->scope, node->name, value);
    case JINJA_N_CALL_BLOCK:
        return exec_call_block(run, number);
    case JINJA_N_WITH:
        return exec_with(run, node);
    case JINJA_N_GENERATION:
        return exec_generation(run, node);
    case JINJA_N_BREAK:
    case JINJA_N_CONTINUE:
        run->flow = node->kind == JINJA_N_BREAK ? JINJA_FLOW_BREAK : JINJA_FLOW_CONTINUE;
        return AQ_OK;
    default: /* the parser makes no other statement */
        return jinja_eval(run, number, &value);
    }
}

static enum aq_status exec_list(struct jinja_run *run, uint32_t first)
{
    if (++run->depth > JINJA_DEPTH_MAX) return jinja_fail(run, AQ_NOSPC, "too deep (JINJA_DEPTH_MAX)");
    for (uint32_t node = first; node && run->flow == JINJA_FLOW_ON; node = jinja_node_at(run, node)->next)
        AQ_TRY(exec(run, node));
    run->depth--;
    return AQ_OK;
}

/* ---- a run ---- */

static uint32_t name_number(const struct jinja_program *program, const char *name)
{
    const size_t bytes = strlen(name);
    for (uint32_t i = 0; i < program->name_count; i++)
        if (program->names[i].bytes == bytes && memcmp(program->names[i].text, name, bytes) == 0) return i;
    return JINJA_NAMES_MAX;
}

enum aq_status jinja_run_begin(struct jinja_run *run)
{
    run->loop_name = name_number(run->program, "loop");
    run->caller_name = name_number(run->program, "caller");
    AQ_TRY(scope_open(run, NULL, &run->top));
    run->scope = run->top;
    return jinja_write(run, "", 0);
}

enum aq_status jinja_run_set(struct jinja_run *run, const char *name, struct jinja_value value)
{
    const uint32_t number = name_number(run->program, name);
    return number < JINJA_NAMES_MAX ? scope_set(run, run->top, number, value) : AQ_OK;
}

enum aq_status jinja_run_all(struct jinja_run *run)
{
    /* A template's own names get a separate scope: a set in a loop must not change the variables that it was given. */
    AQ_TRY(scope_open(run, run->top, &run->scope));
    return exec_list(run, run->program->body);
}

void jinja_run_end(struct jinja_run *run)
{
    jinja_heap_free(run);
    aq_free(run->out);
    aq_free(run->answers);
}
