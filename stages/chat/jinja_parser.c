/*
 * jinja_parser.c -- tokens to nodes, by recursive descent in the order of Jinja2's own grammar.
 *
 * Precedence, from the loosest: if-else, or, and, not, comparisons (a < b < c is a chain; in, not in), + -, ~,
 * * / // %, **, sign, then . [] () and behind them filters and tests. A list of nodes (arguments, statements) is named
 * by its first one.
 */
#include "jinja.h"

#include <string.h>

struct parser {
    struct jinja_program *program;
    const struct jinja_token *token; /* the one that is looked at; the last one is JINJA_T_END */
    uint32_t nesting;
    uint32_t loops, bodies; /* around the statement: break needs a loop in the same body */
};

/* Appends a node to a list. */
struct list {
    uint32_t first, last;
};

static enum aq_status expression(struct parser *p, uint32_t *out);
static enum aq_status primary(struct parser *p, uint32_t *out);
static enum aq_status postfix(struct parser *p, uint32_t *node);
static enum aq_status filters(struct parser *p, bool first, uint32_t *node);
static enum aq_status or_(struct parser *p, uint32_t *out);
static enum aq_status statements(struct parser *p, const char *const *ends, uint32_t *out);

static struct jinja_node *at(struct parser *p, uint32_t node)
{
    return &p->program->nodes[node];
}

/* ---- errors ---- */

static enum aq_status fail_at(const struct parser *p, uint32_t place, enum aq_status status, const char *what)
{
    return jinja_program_fail(p->program, NULL, place, status, "%s", what);
}

static enum aq_status fail(const struct parser *p, const char *what)
{
    return fail_at(p, p->token->at, AQ_CORRUPT, what);
}

static enum aq_status expected(const struct parser *p, const char *what)
{
    const struct jinja_token *t = p->token;
    if (t->kind == JINJA_T_END)
        return jinja_program_fail(p->program, NULL, t->at, AQ_CORRUPT, "expected %s, found the end", what);
    return jinja_program_fail(p->program, NULL, t->at, AQ_CORRUPT, "expected %s, found \"%.*s\"", what,
                              t->bytes < 40 && t->bytes ? (int)t->bytes : 12, p->program->source + t->at);
}

/* ---- tokens ---- */

static void advance(struct parser *p)
{
    if (p->token->kind != JINJA_T_END) p->token++;
}

static bool is(const struct parser *p, enum jinja_token_kind kind)
{
    return p->token->kind == kind;
}

static bool token_is(const struct jinja_token *t, const char *name)
{
    return t->kind == JINJA_T_NAME && t->bytes == strlen(name) && memcmp(t->text, name, t->bytes) == 0;
}

static bool word(const struct parser *p, const char *name)
{
    return token_is(p->token, name);
}

static bool skip(struct parser *p, enum jinja_token_kind kind)
{
    if (!is(p, kind)) return false;
    advance(p);
    return true;
}

static bool skip_word(struct parser *p, const char *name)
{
    if (!word(p, name)) return false;
    advance(p);
    return true;
}

static enum aq_status expect(struct parser *p, enum jinja_token_kind kind, const char *what)
{
    return skip(p, kind) ? AQ_OK : expected(p, what);
}

static enum aq_status block_end(struct parser *p)
{
    return expect(p, JINJA_T_BLOCK_END, "%}");
}

/* ---- nodes ---- */

static enum aq_status make(struct parser *p, enum jinja_node_kind kind, uint32_t place, uint32_t *out)
{
    struct jinja_program *program = p->program;
    *out = 0;
    if (program->node_count == JINJA_NODES_MAX)
        return fail_at(p, place, AQ_NOSPC, "the template has too many parts (JINJA_NODES_MAX)");
    if (program->node_count == program->node_capacity) {
        const uint32_t capacity = program->node_capacity ? program->node_capacity * 2 : 512;
        void *memory;
        AQ_TRY(aq_alloc(capacity * sizeof *program->nodes, &memory));
        if (program->node_count) memcpy(memory, program->nodes, program->node_count * sizeof *program->nodes);
        aq_free(program->nodes);
        program->nodes = memory;
        program->node_capacity = capacity;
    }
    *out = program->node_count++;
    program->nodes[*out] = (struct jinja_node){.kind = (uint8_t)kind, .at = place};
    return AQ_OK;
}

static enum aq_status make_of(struct parser *p, enum jinja_node_kind kind, uint32_t place, uint32_t a, uint32_t b,
                              uint32_t *out)
{
    uint32_t node;
    AQ_TRY(make(p, kind, place, &node));
    at(p, node)->child[0] = a;
    at(p, node)->child[1] = b;
    *out = node;
    return AQ_OK;
}

static void append(struct parser *p, struct list *list, uint32_t node)
{
    if (list->first)
        at(p, list->last)->next = node;
    else
        list->first = node;
    list->last = node;
}

static enum aq_status deeper(struct parser *p)
{
    return ++p->nesting > JINJA_NESTING_MAX ? fail_at(p, p->token->at, AQ_NOSPC, "too deep (JINJA_NESTING_MAX)")
                                            : AQ_OK;
}

/* The number of the name that is looked at. */
static enum aq_status intern(struct parser *p, const struct jinja_token *token, uint32_t *out)
{
    struct jinja_program *program = p->program;
    *out = 0;
    for (uint32_t i = 0; i < program->name_count; i++) {
        const struct jinja_name *name = &program->names[i];
        if (name->bytes == token->bytes && memcmp(name->text, token->text, token->bytes) == 0) {
            *out = i;
            return AQ_OK;
        }
    }
    if (program->name_count == JINJA_NAMES_MAX)
        return fail_at(p, token->at, AQ_NOSPC, "the template has too many names (JINJA_NAMES_MAX)");
    program->names[program->name_count] = (struct jinja_name){token->text, token->bytes};
    *out = program->name_count++;
    return AQ_OK;
}

static enum aq_status name(struct parser *p, enum jinja_node_kind kind, uint32_t *out)
{
    if (!is(p, JINJA_T_NAME)) return expected(p, "a name");
    uint32_t node, number;
    *out = 0;
    AQ_TRY(intern(p, p->token, &number));
    AQ_TRY(make(p, kind, p->token->at, &node));
    at(p, node)->name = number;
    advance(p);
    *out = node;
    return AQ_OK;
}

/* ---- expressions ---- */

static enum aq_status constant(struct parser *p, struct jinja_value value, uint32_t *out)
{
    uint32_t node;
    AQ_TRY(make(p, JINJA_N_CONST, p->token->at, &node));
    at(p, node)->constant = value;
    advance(p);
    *out = node;
    return AQ_OK;
}

/* Items up to a closing bracket, a comma behind the last one allowed. pairs: of a dict. */
static enum aq_status items(struct parser *p, enum jinja_node_kind kind, enum jinja_token_kind close, uint32_t *out)
{
    struct list list = {0};
    const uint32_t place = p->token->at;
    advance(p);
    while (!is(p, close)) {
        uint32_t item, value;
        if (list.first) AQ_TRY(expect(p, JINJA_T_COMMA, "a comma"));
        if (is(p, close)) break;
        AQ_TRY(expression(p, &item));
        if (kind == JINJA_N_DICT) {
            const uint32_t pair_place = at(p, item)->at;
            AQ_TRY(expect(p, JINJA_T_COLON, "a colon"));
            AQ_TRY(expression(p, &value));
            AQ_TRY(make_of(p, JINJA_N_PAIR, pair_place, item, value, &item));
        }
        append(p, &list, item);
    }
    advance(p);
    return make_of(p, kind, place, list.first, 0, out);
}

static bool tuple_ends(const struct parser *p, const char *end)
{
    return is(p, JINJA_T_VARIABLE_END) || is(p, JINJA_T_BLOCK_END) || is(p, JINJA_T_RPAREN) || is(p, JINJA_T_END) ||
           (end && word(p, end));
}

/* Expressions with commas between; one without a comma is itself. conditions: "a if b" is allowed. */
static enum aq_status tuple(struct parser *p, bool simple, bool conditions, bool parentheses, const char *end,
                            uint32_t *out)
{
    struct list list = {0};
    const uint32_t place = p->token->at;
    bool is_tuple = false;
    while (!tuple_ends(p, end)) {
        uint32_t item;
        AQ_TRY(simple ? primary(p, &item) : conditions ? expression(p, &item) : or_(p, &item));
        append(p, &list, item);
        if (!skip(p, JINJA_T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && list.first) {
        *out = list.first;
        return AQ_OK;
    }
    if (!is_tuple && !parentheses) return expected(p, "an expression");
    return make_of(p, JINJA_N_TUPLE, place, list.first, 0, out);
}

/* A word that is a value, else a variable. */
static enum aq_status word_or_name(struct parser *p, uint32_t *out)
{
    if (word(p, "true") || word(p, "True")) return constant(p, jinja_bool(true), out);
    if (word(p, "false") || word(p, "False")) return constant(p, jinja_bool(false), out);
    if (word(p, "none") || word(p, "None")) return constant(p, (struct jinja_value){.kind = JINJA_NONE}, out);
    return name(p, JINJA_N_NAME, out);
}

static enum aq_status primary(struct parser *p, uint32_t *out)
{
    const struct jinja_token *t = p->token;
    switch (t->kind) {
    case JINJA_T_NAME:
        return word_or_name(p, out);
    case JINJA_T_STRING: {
        struct jinja_value text = jinja_borrow(t->text, t->bytes);
        for (; p->token[1].kind == JINJA_T_STRING; advance(p))
            text.bytes += p->token[1].bytes;
        return constant(p, text, out);
    }
    case JINJA_T_INT:
        return constant(p, jinja_int(t->integer), out);
    case JINJA_T_FLOAT:
        return constant(p, (struct jinja_value){.kind = JINJA_FLOAT, .real = t->real}, out);
    case JINJA_T_LPAREN:
        AQ_TRY(deeper(p));
        advance(p);
        AQ_TRY(tuple(p, false, true, true, NULL, out));
        p->nesting--;
        return expect(p, JINJA_T_RPAREN, ")");
    case JINJA_T_LBRACKET:
    case JINJA_T_LBRACE:
        AQ_TRY(deeper(p));
        AQ_TRY(t->kind == JINJA_T_LBRACKET ? items(p, JINJA_N_LIST, JINJA_T_RBRACKET, out)
                                           : items(p, JINJA_N_DICT, JINJA_T_RBRACE, out));
        p->nesting--;
        return AQ_OK;
    default:
        return expected(p, "an expression");
    }
}

/* Behind "[": an index, or start:stop:step. */
static enum aq_status subscript(struct parser *p, uint32_t *out)
{
    uint32_t part[3] = {0}, node;
    const uint32_t place = p->token->at;
    if (!is(p, JINJA_T_COLON)) {
        AQ_TRY(expression(p, &part[0]));
        if (!is(p, JINJA_T_COLON)) {
            *out = part[0];
            return is(p, JINJA_T_COMMA) ? fail(p, "an index of several parts is not supported") : AQ_OK;
        }
    }
    for (int i = 1; i < 3 && skip(p, JINJA_T_COLON); i++)
        if (!is(p, JINJA_T_COLON) && !is(p, JINJA_T_RBRACKET)) AQ_TRY(expression(p, &part[i]));
    AQ_TRY(make(p, JINJA_N_SLICE, place, &node));
    memcpy(at(p, node)->child, part, sizeof part);
    *out = node;
    return AQ_OK;
}

static enum aq_status arguments(struct parser *p, uint32_t *out)
{
    struct list list = {0};
    uint32_t count = 0;
    bool named = false;
    AQ_TRY(deeper(p));
    AQ_TRY(expect(p, JINJA_T_LPAREN, "("));
    while (!is(p, JINJA_T_RPAREN)) {
        uint32_t node, value;
        if (count && !skip(p, JINJA_T_COMMA)) return expected(p, "a comma or )");
        if (is(p, JINJA_T_RPAREN)) break;
        if (is(p, JINJA_T_MUL) || is(p, JINJA_T_POW))
            return fail_at(p, p->token->at, AQ_INVAL, "arguments by * and ** are not supported");
        if (is(p, JINJA_T_NAME) && p->token[1].kind == JINJA_T_ASSIGN) {
            AQ_TRY(name(p, JINJA_N_KEYWORD, &node));
            advance(p);
            AQ_TRY(expression(p, &value));
            at(p, node)->child[0] = value;
            named = true;
        } else {
            if (named) return fail(p, "an argument without a name follows one with a name");
            AQ_TRY(expression(p, &node));
        }
        if (++count > JINJA_ARGS_MAX) return fail_at(p, p->token->at, AQ_NOSPC, "too many arguments (JINJA_ARGS_MAX)");
        append(p, &list, node);
    }
    advance(p);
    p->nesting--;
    *out = list.first;
    return AQ_OK;
}

static enum aq_status call(struct parser *p, uint32_t *node)
{
    const uint32_t place = p->token->at, callee = *node;
    uint32_t first;
    AQ_TRY(arguments(p, &first));
    return make_of(p, JINJA_N_CALL, place, callee, first, node);
}

/* .name, .0, [index], (arguments) behind an expression. */
static enum aq_status postfix(struct parser *p, uint32_t *node)
{
    for (;;) {
        const uint32_t place = p->token->at;
        uint32_t index;
        if (is(p, JINJA_T_LPAREN)) {
            AQ_TRY(call(p, node));
        } else if (skip(p, JINJA_T_DOT)) {
            const struct jinja_token *t = p->token;
            if (t->kind == JINJA_T_INT) {
                AQ_TRY(constant(p, jinja_int(t->integer), &index));
                AQ_TRY(make_of(p, JINJA_N_ITEM, place, *node, index, node));
                continue;
            }
            if (t->kind != JINJA_T_NAME) return expected(p, "a name or number");
            AQ_TRY(make_of(p, JINJA_N_ATTRIBUTE, t->at, *node, 0, node));
            at(p, *node)->constant = jinja_borrow(t->text, t->bytes);
            advance(p);
        } else if (skip(p, JINJA_T_LBRACKET)) {
            AQ_TRY(deeper(p));
            AQ_TRY(subscript(p, &index));
            p->nesting--;
            AQ_TRY(expect(p, JINJA_T_RBRACKET, "]"));
            AQ_TRY(make_of(p, JINJA_N_ITEM, place, *node, index, node));
        } else {
            return AQ_OK;
        }
    }
}

/* "name" or "name(arguments)" of a filter or test; without dotted names. */
static enum aq_status named(struct parser *p, enum jinja_node_kind kind, uint32_t *node)
{
    const struct jinja_token *t = p->token;
    uint32_t first = 0;
    if (t->kind != JINJA_T_NAME) return expected(p, kind == JINJA_N_FILTER ? "a filter" : "a test");
    advance(p);
    if (is(p, JINJA_T_LPAREN)) {
        AQ_TRY(arguments(p, &first));
    } else if (kind == JINJA_N_TEST && !word(p, "else") && !word(p, "or") && !word(p, "and") &&
               (is(p, JINJA_T_NAME) || is(p, JINJA_T_STRING) || is(p, JINJA_T_INT) || is(p, JINJA_T_FLOAT) ||
                is(p, JINJA_T_LBRACKET) || is(p, JINJA_T_LBRACE))) {
        if (word(p, "is")) return fail(p, "tests cannot be chained with \"is\"");
        AQ_TRY(primary(p, &first));
        AQ_TRY(postfix(p, &first));
    }
    AQ_TRY(make_of(p, kind, t->at, *node, first, node));
    at(p, *node)->constant = jinja_borrow(t->text, t->bytes);
    return AQ_OK;
}

/* Filters of a block's head ("upper | trim"); first: the bar before the first one is left out. */
static enum aq_status filters(struct parser *p, bool first, uint32_t *node)
{
    while (first || skip(p, JINJA_T_PIPE)) {
        first = false;
        AQ_TRY(named(p, JINJA_N_FILTER, node));
    }
    return AQ_OK;
}

static enum aq_status filters_and_tests(struct parser *p, uint32_t *node)
{
    for (;;) {
        if (skip(p, JINJA_T_PIPE)) {
            AQ_TRY(named(p, JINJA_N_FILTER, node));
        } else if (is(p, JINJA_T_LPAREN)) {
            AQ_TRY(call(p, node));
        } else if (word(p, "is")) {
            const uint32_t place = p->token->at;
            advance(p);
            const bool not_ = skip_word(p, "not");
            AQ_TRY(named(p, JINJA_N_TEST, node));
            if (not_) AQ_TRY(make_of(p, JINJA_N_NOT, place, *node, 0, node));
        } else {
            return AQ_OK;
        }
    }
}

static enum aq_status unary(struct parser *p, bool with_filters, uint32_t *out)
{
    const uint32_t place = p->token->at;
    const bool negative = is(p, JINJA_T_SUB);
    uint32_t node;
    if (negative || is(p, JINJA_T_ADD)) {
        AQ_TRY(deeper(p));
        advance(p);
        AQ_TRY(unary(p, false, &node));
        AQ_TRY(make_of(p, negative ? JINJA_N_NEGATIVE : JINJA_N_POSITIVE, place, node, 0, &node));
        p->nesting--;
    } else {
        AQ_TRY(primary(p, &node));
    }
    AQ_TRY(postfix(p, &node));
    if (with_filters) AQ_TRY(filters_and_tests(p, &node));
    *out = node;
    return AQ_OK;
}

static enum aq_status binary(struct parser *p, int level, uint32_t *out);

/* ~ binds tighter than + - and less than * /; its operands are one node's list. */
static enum aq_status concat(struct parser *p, uint32_t *out)
{
    struct list list = {0};
    const uint32_t place = p->token->at;
    do {
        uint32_t operand;
        AQ_TRY(binary(p, 1, &operand));
        append(p, &list, operand);
    } while (skip(p, JINJA_T_TILDE));
    *out = list.first;
    return list.first == list.last ? AQ_OK : make_of(p, JINJA_N_CONCAT, place, list.first, 0, out);
}

/* Left to right: operands of the next tighter level with operators of this one between. */
static enum aq_status binary(struct parser *p, int level, uint32_t *out)
{
    static const uint8_t operators[3][4] = {{JINJA_T_ADD, JINJA_T_SUB, JINJA_T_ADD, JINJA_T_SUB},
                                            {JINJA_T_MUL, JINJA_T_DIV, JINJA_T_FLOORDIV, JINJA_T_MOD},
                                            {JINJA_T_POW, JINJA_T_POW, JINJA_T_POW, JINJA_T_POW}};
    uint32_t left = 0, right, place = 0;
    uint8_t op = 0;
    for (;;) {
        AQ_TRY(level == 0 ? concat(p, &right) : level == 1 ? binary(p, 2, &right) : unary(p, true, &right));
        if (left) {
            AQ_TRY(make_of(p, JINJA_N_BINARY, place, left, right, &left));
            at(p, left)->op = op;
        } else {
            left = right;
        }
        op = p->token->kind;
        place = p->token->at;
        if (!memchr(operators[level], op, sizeof operators[level])) break;
        advance(p);
    }
    *out = left;
    return AQ_OK;
}

static enum aq_status compare(struct parser *p, uint32_t *out)
{
    struct list list = {0};
    uint32_t left, right;
    const uint32_t begin = p->token->at;
    AQ_TRY(binary(p, 0, &left));
    for (;;) {
        const uint32_t place = p->token->at;
        uint8_t op = p->token->kind;
        if (word(p, "in")) {
            op = JINJA_T_IN;
        } else if (word(p, "not") && token_is(p->token + 1, "in")) {
            op = JINJA_T_NOT_IN;
            advance(p);
        } else if (op < JINJA_T_EQ || op > JINJA_T_GE) {
            break;
        }
        advance(p);
        AQ_TRY(binary(p, 0, &right));
        AQ_TRY(make_of(p, JINJA_N_OPERAND, place, right, 0, &right));
        at(p, right)->op = op;
        append(p, &list, right);
    }
    *out = left;
    return list.first ? make_of(p, JINJA_N_COMPARE, begin, left, list.first, out) : AQ_OK;
}

static enum aq_status not_(struct parser *p, uint32_t *out)
{
    const uint32_t place = p->token->at;
    if (!skip_word(p, "not")) return compare(p, out);
    AQ_TRY(deeper(p));
    AQ_TRY(not_(p, out));
    p->nesting--;
    return make_of(p, JINJA_N_NOT, place, *out, 0, out);
}

static enum aq_status and_(struct parser *p, uint32_t *out)
{
    uint32_t right;
    AQ_TRY(not_(p, out));
    for (;;) {
        const uint32_t place = p->token->at;
        if (!skip_word(p, "and")) return AQ_OK;
        AQ_TRY(not_(p, &right));
        AQ_TRY(make_of(p, JINJA_N_AND, place, *out, right, out));
    }
}

static enum aq_status or_(struct parser *p, uint32_t *out)
{
    uint32_t right;
    AQ_TRY(and_(p, out));
    for (;;) {
        const uint32_t place = p->token->at;
        if (!skip_word(p, "or")) return AQ_OK;
        AQ_TRY(and_(p, &right));
        AQ_TRY(make_of(p, JINJA_N_OR, place, *out, right, out));
    }
}

static enum aq_status expression(struct parser *p, uint32_t *out)
{
    AQ_TRY(deeper(p));
    AQ_TRY(or_(p, out));
    for (;;) {
        const uint32_t place = p->token->at, then = *out;
        uint32_t test, otherwise = 0;
        if (!skip_word(p, "if")) break;
        AQ_TRY(or_(p, &test));
        if (skip_word(p, "else")) AQ_TRY(expression(p, &otherwise));
        AQ_TRY(make_of(p, JINJA_N_CONDITION, place, test, then, out));
        at(p, *out)->child[2] = otherwise;
    }
    p->nesting--;
    return AQ_OK;
}

/* ---- statements ---- */

static bool is_name(struct parser *p, uint32_t node)
{
    return at(p, node)->kind == JINJA_N_NAME;
}

/* A name, or names with commas between. */
static enum aq_status target(struct parser *p, const char *end, uint32_t *out)
{
    const uint32_t place = p->token->at;
    AQ_TRY(tuple(p, true, false, false, end, out));
    bool good = is_name(p, *out);
    if (at(p, *out)->kind == JINJA_N_TUPLE) {
        good = at(p, *out)->child[0] != 0;
        for (uint32_t item = at(p, *out)->child[0]; item; item = at(p, item)->next)
            good = good && is_name(p, item);
    }
    return good ? AQ_OK : fail_at(p, place, AQ_CORRUPT, "only names can be given a value");
}

static enum aq_status parse_for(struct parser *p, uint32_t place, uint32_t *out)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    uint32_t part[5] = {0};
    AQ_TRY(target(p, "in", &part[0]));
    if (!skip_word(p, "in")) return expected(p, "in");
    AQ_TRY(tuple(p, false, false, false, "recursive", &part[1]));
    if (skip_word(p, "if")) AQ_TRY(expression(p, &part[2]));
    if (word(p, "recursive")) return fail_at(p, p->token->at, AQ_INVAL, "recursive loops are not supported");
    AQ_TRY(block_end(p));
    p->loops++;
    AQ_TRY(statements(p, ends, &part[3]));
    p->loops--;
    if (skip_word(p, "else")) {
        AQ_TRY(block_end(p));
        AQ_TRY(statements(p, last, &part[4]));
    }
    advance(p);
    AQ_TRY(make(p, JINJA_N_FOR, place, out));
    memcpy(at(p, *out)->child, part, sizeof part);
    return block_end(p);
}

static enum aq_status parse_if(struct parser *p, uint32_t place, uint32_t *out)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    uint32_t first = 0, before = 0;
    for (;;) {
        uint32_t test, body, node;
        AQ_TRY(tuple(p, false, false, false, NULL, &test));
        AQ_TRY(block_end(p));
        AQ_TRY(statements(p, ends, &body));
        AQ_TRY(make_of(p, JINJA_N_IF, place, test, body, &node));
        if (before)
            at(p, before)->child[2] = node;
        else
            first = node;
        before = node;
        place = p->token->at;
        if (skip_word(p, "elif")) continue;
        if (skip_word(p, "else")) {
            uint32_t otherwise;
            AQ_TRY(block_end(p));
            AQ_TRY(statements(p, last, &otherwise));
            at(p, before)->child[2] = otherwise;
        }
        break;
    }
    advance(p);
    *out = first;
    return block_end(p);
}

/* set a = x, set a, b = x, set ns.a = x, set a | filter and what follows up to endset. */
static enum aq_status parse_set(struct parser *p, uint32_t place, uint32_t *out)
{
    static const char *const ends[] = {"endset", NULL};
    uint32_t part[3] = {0};
    if (is(p, JINJA_T_NAME) && p->token[1].kind == JINJA_T_DOT) {
        AQ_TRY(name(p, JINJA_N_NAMESPACE_REF, &part[0]));
        advance(p);
        if (!is(p, JINJA_T_NAME)) return expected(p, "a name");
        at(p, part[0])->constant = jinja_borrow(p->token->text, p->token->bytes);
        advance(p);
        if (!is(p, JINJA_T_ASSIGN) && !is(p, JINJA_T_PIPE) && !is(p, JINJA_T_BLOCK_END)) return expected(p, "=");
    } else {
        AQ_TRY(target(p, NULL, &part[0]));
    }
    if (skip(p, JINJA_T_ASSIGN)) {
        AQ_TRY(tuple(p, false, true, false, NULL, &part[1]));
        AQ_TRY(make_of(p, JINJA_N_SET, place, part[0], part[1], out));
        return block_end(p);
    }
    AQ_TRY(filters(p, false, &part[1]));
    AQ_TRY(block_end(p));
    AQ_TRY(statements(p, ends, &part[2]));
    advance(p);
    AQ_TRY(make(p, JINJA_N_SET_BLOCK, place, out));
    memcpy(at(p, *out)->child, part, sizeof part);
    return block_end(p);
}

/* (a, b=1): JINJA_N_PARAMETERs. */
static enum aq_status parameters(struct parser *p, uint32_t *out)
{
    struct list list = {0};
    uint32_t count = 0;
    bool defaults = false;
    AQ_TRY(expect(p, JINJA_T_LPAREN, "("));
    while (!is(p, JINJA_T_RPAREN)) {
        uint32_t node, value;
        if (list.first) AQ_TRY(expect(p, JINJA_T_COMMA, "a comma or )"));
        AQ_TRY(name(p, JINJA_N_PARAMETER, &node));
        if (skip(p, JINJA_T_ASSIGN)) {
            AQ_TRY(expression(p, &value));
            at(p, node)->child[0] = value;
            defaults = true;
        } else if (defaults) {
            return fail(p, "a parameter without a default follows one that has a default");
        }
        if (++count > JINJA_ARGS_MAX) return fail_at(p, p->token->at, AQ_NOSPC, "too many parameters (JINJA_ARGS_MAX)");
        append(p, &list, node);
    }
    advance(p);
    *out = list.first;
    return AQ_OK;
}

/* A body that is a function in Jinja: break does not leave it. */
static enum aq_status body(struct parser *p, const char *end, uint32_t *out)
{
    const char *const ends[] = {end, NULL};
    const uint32_t loops = p->loops;
    AQ_TRY(block_end(p));
    p->loops = 0;
    AQ_TRY(statements(p, ends, out));
    p->loops = loops;
    advance(p);
    return block_end(p);
}

static enum aq_status parse_macro(struct parser *p, uint32_t place, uint32_t *out)
{
    uint32_t node, first, inside;
    AQ_TRY(name(p, JINJA_N_MACRO, &node));
    AQ_TRY(parameters(p, &first));
    AQ_TRY(body(p, "endmacro", &inside));
    at(p, node)->at = place;
    at(p, node)->child[0] = first;
    at(p, node)->child[1] = inside;
    *out = node;
    return AQ_OK;
}

static enum aq_status parse_call_block(struct parser *p, uint32_t place, uint32_t *out)
{
    uint32_t part[3] = {0};
    if (is(p, JINJA_T_LPAREN)) AQ_TRY(parameters(p, &part[1]));
    AQ_TRY(expression(p, &part[0]));
    if (at(p, part[0])->kind != JINJA_N_CALL) return fail_at(p, place, AQ_CORRUPT, "call needs a call of a macro");
    AQ_TRY(body(p, "endcall", &part[2]));
    AQ_TRY(make(p, JINJA_N_CALL_BLOCK, place, out));
    memcpy(at(p, *out)->child, part, sizeof part);
    return AQ_OK;
}

static enum aq_status parse_with(struct parser *p, uint32_t place, uint32_t *out)
{
    static const char *const ends[] = {"endwith", NULL};
    struct list list = {0};
    uint32_t inside;
    while (!is(p, JINJA_T_BLOCK_END)) {
        const uint32_t begin = p->token->at;
        uint32_t left, right, node;
        if (list.first) AQ_TRY(expect(p, JINJA_T_COMMA, "a comma"));
        AQ_TRY(name(p, JINJA_N_NAME, &left));
        AQ_TRY(expect(p, JINJA_T_ASSIGN, "="));
        AQ_TRY(expression(p, &right));
        AQ_TRY(make_of(p, JINJA_N_SET, begin, left, right, &node));
        append(p, &list, node);
    }
    AQ_TRY(block_end(p));
    AQ_TRY(statements(p, ends, &inside));
    advance(p);
    AQ_TRY(make_of(p, JINJA_N_WITH, place, list.first, inside, out));
    return block_end(p);
}

static enum aq_status parse_filter_block(struct parser *p, uint32_t place, uint32_t *out)
{
    uint32_t chain = 0, inside;
    AQ_TRY(filters(p, true, &chain));
    AQ_TRY(body(p, "endfilter", &inside));
    return make_of(p, JINJA_N_FILTER_BLOCK, place, chain, inside, out);
}

static enum aq_status parse_generation(struct parser *p, uint32_t place, uint32_t *out)
{
    uint32_t inside;
    p->program->generation = true;
    AQ_TRY(body(p, "endgeneration", &inside));
    return make_of(p, JINJA_N_GENERATION, place, inside, 0, out);
}

static enum aq_status parse_print(struct parser *p, uint32_t place, uint32_t *out)
{
    AQ_TRY(expression(p, out));
    if (is(p, JINJA_T_COMMA)) return fail_at(p, p->token->at, AQ_INVAL, "print of several values is not supported");
    AQ_TRY(make_of(p, JINJA_N_OUTPUT, place, *out, 0, out));
    return block_end(p);
}

static enum aq_status parse_jump(struct parser *p, uint32_t place, uint32_t *out)
{
    const bool leaves = token_is(p->token - 1, "break");
    if (p->loops == 0) return fail_at(p, place, AQ_CORRUPT, "is outside a loop");
    AQ_TRY(make(p, leaves ? JINJA_N_BREAK : JINJA_N_CONTINUE, place, out));
    return block_end(p);
}

static enum aq_status statement(struct parser *p, uint32_t *out)
{
    static const struct {
        const char *name;
        enum aq_status (*parse)(struct parser *p, uint32_t place, uint32_t *out);
    } tags[] = {
        {"for", parse_for},
        {"if", parse_if},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"with", parse_with},
        {"filter", parse_filter_block},
        {"generation", parse_generation},
        {"print", parse_print},
        {"break", parse_jump},
        {"continue", parse_jump},
    };
    static const char *const known[] = {"block",      "extends", "include", "import", "from",
                                        "autoescape", "do",      "trans",   "debug"};
    const struct jinja_token *t = p->token;
    if (t->kind != JINJA_T_NAME) return expected(p, "a tag's name");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!token_is(t, tags[i].name)) continue;
        advance(p);
        return tags[i].parse(p, t->at, out);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (token_is(t, known[i]))
            return jinja_program_fail(p->program, NULL, t->at, AQ_INVAL, "the tag \"%s\" is not supported", known[i]);
    return jinja_program_fail(p->program, NULL, t->at, AQ_CORRUPT, "unknown tag \"%.*s\"%s",
                              t->bytes < 40 ? (int)t->bytes : 40, t->text,
                              t->bytes > 3 && memcmp(t->text, "end", 3) == 0 ? ": no open tag matches it" : "");
}

static bool one_of(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (word(p, *ends)) return true;
    return false;
}

/* Statements up to a block whose first word is one of these, which is the next token then; NULL: up to the end. */
static enum aq_status statements(struct parser *p, const char *const *ends, uint32_t *out)
{
    struct list list = {0};
    AQ_TRY(deeper(p));
    for (;;) {
        const struct jinja_token *t = p->token;
        uint32_t node;
        if (t->kind == JINJA_T_END) {
            if (ends) return jinja_program_fail(p->program, NULL, t->at, AQ_CORRUPT, "a block has no %s", *ends);
            break;
        }
        advance(p);
        if (t->kind == JINJA_T_TEXT) {
            AQ_TRY(make(p, JINJA_N_TEXT, t->at, &node));
            at(p, node)->constant = jinja_borrow(t->text, t->bytes);
        } else if (t->kind == JINJA_T_VARIABLE_BEGIN) {
            AQ_TRY(tuple(p, false, true, false, NULL, &node));
            AQ_TRY(make_of(p, JINJA_N_OUTPUT, t->at, node, 0, &node));
            AQ_TRY(expect(p, JINJA_T_VARIABLE_END, "}}"));
        } else {
            if (one_of(p, ends)) break;
            AQ_TRY(statement(p, &node));
        }
        append(p, &list, node);
    }
    p->nesting--;
    *out = list.first;
    return AQ_OK;
}

enum aq_status jinja_parse(struct jinja_program *program, const struct jinja_token *tokens)
{
    uint32_t none;
    struct parser p = {.program = program, .token = tokens};
    AQ_TRY(make(&p, JINJA_N_NONE, 0, &none));
    return statements(&p, NULL, &program->body);
}
