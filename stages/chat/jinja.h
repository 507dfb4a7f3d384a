/*
 * jinja.h -- the part of Jinja2 that chat templates are written in: a source becomes a flat program, which is run over
 * values.
 *
 *     source --jinja_lexer.c--> tokens --jinja_parser.c--> nodes --jinja_run.c--> bytes
 *                                          jinja_eval.c (expressions), jinja_value.c, jinja_text.c, jinja_json.c,
 *                                          jinja_filter.c, jinja_test.c (`is`), jinja_method.c
 *     jinja_program.c makes a program of a text, and names the line and column of an error.
 *
 * The environment is transformers': trim_blocks and lstrip_blocks, no autoescape, loop controls, {% generation %}, the
 * functions raise_exception, strftime_now, namespace, dict and range. Supported constructs behave as in Jinja; others
 * fail with the place in the template, never silently.
 *
 * A program is an array of nodes that name each other by index (0: none); all its texts are in two buffers, the
 * normalised source and the strings without their escapes. A run takes memory from a heap that is given back as a
 * whole; values never change once they are made, except a namespace's members and an iterator's position. Everything is
 * bounded: nodes, nesting, steps, heap, output.
 *
 * Locking: a program is read-only after jinja_compile; a run belongs to one thread.
 */
#ifndef STAGES_JINJA_H
#define STAGES_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stages/chat.h"

#define JINJA_AREA "chat"

enum {
    JINJA_NODES_MAX = 1 << 18,
    JINJA_NAMES_MAX = 1024,       /* identifiers that are variables or keywords                             */
    JINJA_NESTING_MAX = 100,      /* of blocks and brackets: about 12 C frames each while parsing           */
    JINJA_DEPTH_MAX = 600,        /* of evaluation: about 300 bytes of stack each                           */
    JINJA_VALUE_NESTING_MAX = 64, /* of lists in lists                                                 */
    JINJA_ARGS_MAX = 32,
    JINJA_RANGE_MAX = 100000 /* as Jinja's sandbox */
};

enum jinja_kind {
    JINJA_MISSING, /* an argument that was not given; templates never see it */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_LOOP,
    JINJA_FUNCTION,
    JINJA_METHOD
};

/* The Python type of a JINJA_LIST. An iterator has a truth but no length, and gives each item once. */
enum jinja_form { JINJA_FORM_LIST, JINJA_FORM_TUPLE, JINJA_FORM_VIEW, JINJA_FORM_ITERATOR };

struct jinja_value {
    uint8_t kind;   /* enum jinja_kind                                                        */
    uint8_t form;   /* of a list: enum jinja_form; of a string: 1 where it is markup (`safe`) */
    uint32_t bytes; /* of a string; of an undefined's name                                    */
    union {
        int64_t integer; /* int, bool, number of a function */
        double real;
        const char *text; /* valid UTF-8, not terminated; the name of what is undefined */
        struct jinja_list *list;
        struct jinja_dict *dict; /* dict, namespace */
        struct jinja_macro *macro;
        struct jinja_loop *loop;
        struct jinja_method *method;
    };
};

struct jinja_list {
    struct jinja_value *items;
    uint32_t count, capacity;
    uint32_t taken; /* an iterator's items that are gone */
};
struct jinja_pair {
    struct jinja_value key, value;
};
struct jinja_dict {
    struct jinja_pair *pairs; /* in order of insertion */
    uint32_t count, capacity;
};
struct jinja_method {
    struct jinja_value self;
    uint32_t number; /* in the table of its kind's methods */
};

/* ---- programs ---- */

enum jinja_node_kind {
    JINJA_N_NONE,
    JINJA_N_TEXT,
    JINJA_N_OUTPUT,       /* expression                                                     */
    JINJA_N_FOR,          /* target, iterable, filter, body, else                           */
    JINJA_N_IF,           /* test, body, else (an elif is an if in it)                      */
    JINJA_N_SET,          /* target, expression                                             */
    JINJA_N_SET_BLOCK,    /* target, filters or 0, body                               */
    JINJA_N_MACRO,        /* parameters (JINJA_N_PARAMETER), body; name               */
    JINJA_N_CALL_BLOCK,   /* call, parameters, body                                   */
    JINJA_N_FILTER_BLOCK, /* filters, body                                            */
    JINJA_N_WITH,         /* sets, body                                               */
    JINJA_N_GENERATION,   /* body                                                     */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
    JINJA_N_PARAMETER, /* default or 0; name                                          */
    JINJA_N_CONST,
    JINJA_N_NAME,
    JINJA_N_NAMESPACE_REF, /* name, constant: the member                              */
    JINJA_N_TUPLE,         /* first item                                              */
    JINJA_N_LIST,
    JINJA_N_DICT, /* first JINJA_N_PAIR                                               */
    JINJA_N_PAIR, /* key, value                                                       */
    JINJA_N_NOT,
    JINJA_N_NEGATIVE,
    JINJA_N_POSITIVE,
    JINJA_N_AND,
    JINJA_N_OR,
    JINJA_N_BINARY,    /* op: + - * / // % **                                           */
    JINJA_N_CONCAT,    /* first of the operands of ~                                    */
    JINJA_N_COMPARE,   /* left, first JINJA_N_OPERAND                                   */
    JINJA_N_OPERAND,   /* op, right                                                     */
    JINJA_N_CONDITION, /* test, then, else or 0                                       */
    JINJA_N_ATTRIBUTE, /* object; constant: the name                                  */
    JINJA_N_ITEM,      /* object, index (a JINJA_N_SLICE or an expression)            */
    JINJA_N_SLICE,     /* start, stop, step; 0: left out                              */
    JINJA_N_CALL,      /* callee, first argument                                      */
    JINJA_N_FILTER,    /* value (0: the block's text), first argument; constant: name */
    JINJA_N_TEST,      /* value, first argument; constant: name                       */
    JINJA_N_KEYWORD    /* value; name                                                 */
};

struct jinja_node {
    uint8_t kind, op; /* op: a token's kind */
    uint32_t at;      /* where in the source */
    uint32_t next;    /* the one behind it in its list; 0: it is the last */
    uint32_t name;    /* of jinja_program.names */
    uint32_t child[5];
    struct jinja_value constant;
};

struct jinja_name {
    const char *text; /* in the source */
    uint32_t bytes;
};

struct jinja_program {
    char *called; /* what errors call it */
    char *source; /* newlines as \n */
    size_t source_bytes;
    char *strings; /* without escapes; as long as the source at most */
    size_t string_bytes;
    struct jinja_node *nodes; /* nodes[0] is none */
    uint32_t node_count, node_capacity;
    struct jinja_name names[JINJA_NAMES_MAX];
    uint32_t name_count;
    uint32_t body; /* the first statement */
    bool generation;
};

/* AQ_CORRUPT: no UTF-8, or no Jinja: line and column. AQ_INVAL: a tag that is not supported. AQ_NOSPC: a limit. */
enum aq_status jinja_compile(const char *text, size_t bytes, const char *called, struct jinja_program **out);
void jinja_program_free(struct jinja_program *program);

/* One line about the place `at` of the program: "CALLED:line:column: ...". */
enum aq_status jinja_program_fail(const struct jinja_program *program, const char *where, uint32_t at,
                                  enum aq_status status, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- tokens (jinja_lexer.c) ---- */

enum jinja_token_kind {
    JINJA_T_END,
    JINJA_T_TEXT,
    JINJA_T_VARIABLE_BEGIN,
    JINJA_T_VARIABLE_END,
    JINJA_T_BLOCK_BEGIN,
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_INT,
    JINJA_T_FLOAT,
    JINJA_T_ADD,
    JINJA_T_SUB,
    JINJA_T_MUL,
    JINJA_T_DIV,
    JINJA_T_FLOORDIV,
    JINJA_T_MOD,
    JINJA_T_POW,
    JINJA_T_TILDE,
    JINJA_T_EQ,
    JINJA_T_NE,
    JINJA_T_LT,
    JINJA_T_LE,
    JINJA_T_GT,
    JINJA_T_GE,
    JINJA_T_IN,     /* of operands alone */
    JINJA_T_NOT_IN, /* of operands alone */
    JINJA_T_ASSIGN,
    JINJA_T_DOT,
    JINJA_T_COMMA,
    JINJA_T_COLON,
    JINJA_T_PIPE,
    JINJA_T_LPAREN,
    JINJA_T_RPAREN,
    JINJA_T_LBRACKET,
    JINJA_T_RBRACKET,
    JINJA_T_LBRACE,
    JINJA_T_RBRACE
};

struct jinja_token {
    uint8_t kind;
    uint32_t at, bytes;
    union {
        const char *text; /* text, name, string */
        int64_t integer;
        double real;
    };
};
struct jinja_tokens {
    struct jinja_token *at;
    uint32_t count, capacity;
};

/* All of the program's source; the list's memory is the caller's to free, also after a failure. */
enum aq_status jinja_tokenize(struct jinja_program *program, struct jinja_tokens *out);

/* The program's nodes and names. jinja_parser.c */
enum aq_status jinja_parse(struct jinja_program *program, const struct jinja_token *tokens);

/* ---- runs ---- */

struct jinja_binding {
    uint32_t name;
    struct jinja_value value;
};
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_binding *bindings;
    uint32_t count, capacity;
};

struct jinja_macro {
    uint32_t node;             /* JINJA_N_MACRO or JINJA_N_CALL_BLOCK */
    struct jinja_scope *scope; /* where it was made */
};

/* A loop: items that passed the filter so far, in a list that grows as the body, or loop.last, asks for more. */
struct jinja_loop {
    uint32_t node;
    struct jinja_scope *outer;
    struct jinja_list *source, *passed;
    uint32_t source_at; /* of source: the next to look at */
    uint32_t index;     /* of passed: this one */
    uint32_t depth;
    struct jinja_value changed; /* what loop.changed() saw last; JINJA_MISSING at first */
};

struct jinja_chunk; /* of the heap */

enum jinja_flow { JINJA_FLOW_ON, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE };

struct jinja_run {
    const struct jinja_program *program;
    const char *where;
    int64_t now;
    uint64_t steps; /* left */
    struct jinja_chunk *chunks;
    char *heap_at, *heap_end;
    size_t heap_bytes;
    uintptr_t text_end; /* of the text that jinja_join made last: it can grow there */
    char *out;          /* the output; behind it, for a while, the text that a macro or block captures */
    size_t out_bytes, out_capacity;
    uint32_t captures; /* under way */
    struct jinja_scope *scope, *top;
    struct jinja_value block_text; /* input of a block's filters */
    uint32_t at;                   /* of the node that is worked on: where an error is */
    uint32_t depth, loop_depth;
    uint32_t loop_name, caller_name; /* of program->names; JINJA_NAMES_MAX: not in it */
    enum jinja_flow flow;
    bool mark_answers;
    struct aq_chat_range *answers;
    uint32_t answer_count, answer_capacity;
};

/* Zeroes are a good beginning; program, steps and now are the caller's. */
enum aq_status jinja_run_begin(struct jinja_run *run);
/* A variable of the outermost scope; a name that the template does not have is nothing to it. */
enum aq_status jinja_run_set(struct jinja_run *run, const char *name, struct jinja_value value);
/* Into run->out; with mark_answers what {% generation %} marks into run->answers. */
enum aq_status jinja_run_all(struct jinja_run *run);
/* Frees all but out and answers where the caller has taken them (set to NULL). */
void jinja_run_end(struct jinja_run *run);

enum aq_status jinja_fail(const struct jinja_run *run, enum aq_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Arguments of a call: positional first. */
struct jinja_args {
    const char *name; /* of the filter or method that is called, and which of several that are one function: */
    int how;
    uint32_t count, named;
    uint32_t names[JINJA_ARGS_MAX]; /* of the named ones: values[count + i] */
    struct jinja_value values[JINJA_ARGS_MAX];
};

/* Parameters of a filter, a method or a function: of the value `of`, with `args`, to `out`. */
#define JINJA_CALL(of)                                                                                                 \
    struct jinja_run *run, struct jinja_value of, const struct jinja_args *args, struct jinja_value *out

enum aq_status jinja_eval(struct jinja_run *run, uint32_t node, struct jinja_value *out);
enum aq_status jinja_eval_args(struct jinja_run *run, uint32_t first, struct jinja_args *out);
enum aq_status jinja_call(struct jinja_run *run, struct jinja_value callee, const struct jinja_args *args,
                          struct jinja_value *out);
/* + - * / // % ** of Python; op: a token's kind. */
enum aq_status jinja_binary(struct jinja_run *run, uint8_t op, struct jinja_value left, struct jinja_value right,
                            struct jinja_value *out);
/* object[start:stop:step], JINJA_MISSING or None where left out. */
enum aq_status jinja_slice(struct jinja_run *run, struct jinja_value object, const struct jinja_value parts[3],
                           struct jinja_value *out);
/* range, namespace, ... by its name: a JINJA_FUNCTION, or false. */
bool jinja_function_find(const char *name, uint32_t bytes, struct jinja_value *out);
enum aq_status jinja_function_call(struct jinja_run *run, struct jinja_value function, const struct jinja_args *args,
                                   struct jinja_value *out);
/* Values of parameters ("width first blank"), JINJA_MISSING where not given; the first `required` must be. */
enum aq_status jinja_bind(struct jinja_run *run, const struct jinja_args *args, const char *what,
                          const char *parameters, uint32_t required, struct jinja_value *out);
/* The text that a block wrote since `mark`, taken out of the output. */
enum aq_status jinja_capture_end(struct jinja_run *run, size_t mark, struct jinja_value *out);
enum aq_status jinja_write(struct jinja_run *run, const char *text, size_t bytes);
/* Attribute or item by name, in this order (".name") or the other ("['name']"). */
enum aq_status jinja_attribute(struct jinja_run *run, struct jinja_value object, const char *name, uint32_t bytes,
                               struct jinja_value *out);
enum aq_status jinja_item(struct jinja_run *run, struct jinja_value object, struct jinja_value index,
                          struct jinja_value *out);

/* Tables of names; jinja_filter: the block's or pipe's value and arguments. */
enum aq_status jinja_filter(struct jinja_run *run, const char *name, uint32_t name_bytes, struct jinja_value in,
                            const struct jinja_args *args, struct jinja_value *out);
enum aq_status jinja_test(struct jinja_run *run, const char *name, uint32_t name_bytes, struct jinja_value in,
                          const struct jinja_args *args, bool *out);
/* The number of a string's, list's or dict's method. False: no such method. AQ_INVAL: not supported. */
enum aq_status jinja_method_find(struct jinja_run *run, struct jinja_value self, const char *name, uint32_t bytes,
                                 bool *found, uint32_t *number);
enum aq_status jinja_method_call(struct jinja_run *run, const struct jinja_method *method,
                                 const struct jinja_args *args, struct jinja_value *out);
/* A loop's attribute; methods among them are called by jinja_loop_call. */
enum aq_status jinja_loop_attribute(struct jinja_run *run, struct jinja_loop *loop, const char *name, uint32_t bytes,
                                    struct jinja_value *out);
/* Is there a passed item `index`? Looks at more of the source where it must. */
enum aq_status jinja_loop_reach(struct jinja_run *run, struct jinja_loop *loop, uint64_t index, bool *there);

/* ---- values (jinja_value.c) ---- */

/* So much work: steps run out, AQ_NOSPC. */
enum aq_status jinja_charge(struct jinja_run *run, uint64_t bytes);
enum aq_status jinja_heap(struct jinja_run *run, size_t bytes, void **out);
void jinja_heap_free(struct jinja_run *run);

struct jinja_value jinja_bool(bool value);
struct jinja_value jinja_int(int64_t value);
struct jinja_value jinja_undefined(const char *name, uint32_t bytes);
struct jinja_value jinja_borrow(const char *text, size_t bytes); /* a string of memory that stays */
enum aq_status jinja_string(struct jinja_run *run, const char *text, size_t bytes, struct jinja_value *out);
enum aq_status jinja_join(struct jinja_run *run, struct jinja_value left, struct jinja_value right,
                          struct jinja_value *out); /* two strings as one; escapes the one that is not markup */
enum aq_status jinja_list(struct jinja_run *run, enum jinja_form form, uint32_t capacity, struct jinja_value *out);
enum aq_status jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value value);
enum aq_status jinja_dict(struct jinja_run *run, enum jinja_kind kind, struct jinja_value *out);
enum aq_status jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                              struct jinja_value value);
struct jinja_value *jinja_dict_get(const struct jinja_dict *dict, const char *key, size_t bytes);
enum aq_status jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key,
                               struct jinja_value **out); /* NULL: none. AQ_INVAL: no such thing can be a key */
enum aq_status jinja_from_json(struct jinja_run *run, const json_t *json, uint32_t nesting, struct jinja_value *out);

bool jinja_truth(struct jinja_value value);
bool jinja_is(struct jinja_value value, const char *text);
enum aq_status jinja_equal(struct jinja_run *run, struct jinja_value left, struct jinja_value right, bool *out);
/* <0, 0, >0; AQ_INVAL: not to be ordered. */
enum aq_status jinja_order(struct jinja_run *run, struct jinja_value left, struct jinja_value right, int *out);
enum aq_status jinja_contains(struct jinja_run *run, struct jinja_value where, struct jinja_value what, bool *out);
/* A list of all that iterating gives: the very list where it is one, nothing of what is undefined. */
enum aq_status jinja_iterate(struct jinja_run *run, struct jinja_value value, struct jinja_list **out);
/* How many; AQ_INVAL: it has no length. */
enum aq_status jinja_length(struct jinja_run *run, struct jinja_value value, int64_t *out);
/* str() of Python: a string as it is. */
enum aq_status jinja_text(struct jinja_run *run, struct jinja_value value, struct jinja_value *out);
const char *jinja_kind_text(struct jinja_value value); /* "str", "int": as Python calls it */
/* Fails with the name of the undefined value. */
enum aq_status jinja_fail_undefined(const struct jinja_run *run, struct jinja_value v);
/* AQ_INVAL: `what` got no string. */
enum aq_status jinja_want_text(const struct jinja_run *run, struct jinja_value v, const char *what);
static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JINJA_BOOL || v.kind == JINJA_INT || v.kind == JINJA_FLOAT;
}

struct jinja_json_style {
    bool ascii, sort;
    bool pretty;                          /* with `indent`, a line each */
    struct jinja_value indent, item, key; /* texts */
};
enum aq_status jinja_to_json(struct jinja_run *run, struct jinja_value value, const struct jinja_json_style *style,
                             struct jinja_value *out);

/* ---- text (jinja_text.c): UTF-8 that is known to be valid ---- */

uint32_t jinja_decode(const char *at, uint32_t *length); /* the character at `at` */
uint32_t jinja_encode(uint32_t character, char out[4]);  /* its bytes */
int64_t jinja_characters(struct jinja_value string);
uint32_t jinja_offset(struct jinja_value string, int64_t index); /* of character `index`; bytes: beyond the end */
bool jinja_is_space(uint32_t character);
bool jinja_is_printable(uint32_t character);
struct jinja_value jinja_strip(struct jinja_value string, struct jinja_value characters, bool left, bool right);
/* Offset of `what` in text from `from` on, or -1. */
int64_t jinja_find(struct jinja_value text, uint32_t from, struct jinja_value what);

enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_CAPITALIZE, JINJA_TITLE, JINJA_TITLE_WORDS, JINJA_SWAP };
enum aq_status jinja_case(struct jinja_run *run, struct jinja_value string, enum jinja_case how,
                          struct jinja_value *out);
enum jinja_class { JINJA_ALPHA, JINJA_DIGIT, JINJA_ALNUM, JINJA_SPACE, JINJA_IS_UPPER, JINJA_IS_LOWER };
bool jinja_all_of(struct jinja_value string, enum jinja_class class_);
enum aq_status jinja_replace(struct jinja_run *run, struct jinja_value text, struct jinja_value old,
                             struct jinja_value with, int64_t count, struct jinja_value *out);
enum aq_status jinja_escape(struct jinja_run *run, struct jinja_value text, struct jinja_value *out); /* & < > ' " */
/* The lines of a text, without their ends: str.splitlines. */
enum aq_status jinja_lines(struct jinja_run *run, struct jinja_value text, bool keep, struct jinja_value *out);

static inline const struct jinja_node *jinja_node_at(const struct jinja_run *run, uint32_t node)
{
    return &run->program->nodes[node];
}

#endif
