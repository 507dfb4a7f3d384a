/*
 * jinja_test.c -- the tests behind "is", by name.
 */
#include "jinja.h"

#include <string.h>

enum test {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_STRING,
    T_MAPPING,
    T_ITERABLE,
    T_SEQUENCE,
    T_NUMBER,
    T_INTEGER,
    T_FLOAT,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_CALLABLE,
    T_EVEN,
    T_ODD,
    T_LOWER,
    T_UPPER,
    T_ESCAPED,
    T_ONE_ARGUMENT, /* from here on: compared with another value */
    T_DIVISIBLE = T_ONE_ARGUMENT,
    T_SAME,
    T_IN,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE
};

static const struct {
    const char *name;
    enum test test;
} tests[] = {
    {"defined", T_DEFINED},
    {"undefined", T_UNDEFINED},
    {"none", T_NONE},
    {"string", T_STRING},
    {"mapping", T_MAPPING},
    {"iterable", T_ITERABLE},
    {"sequence", T_SEQUENCE},
    {"number", T_NUMBER},
    {"integer", T_INTEGER},
    {"float", T_FLOAT},
    {"boolean", T_BOOLEAN},
    {"true", T_TRUE},
    {"false", T_FALSE},
    {"callable", T_CALLABLE},
    {"even", T_EVEN},
    {"odd", T_ODD},
    {"lower", T_LOWER},
    {"upper", T_UPPER},
    {"escaped", T_ESCAPED},
    {"divisibleby", T_DIVISIBLE},
    {"sameas", T_SAME},
    {"in", T_IN},
    {"equalto", T_EQ},
    {"eq", T_EQ},
    {"==", T_EQ},
    {"ne", T_NE},
    {"!=", T_NE},
    {"lt", T_LT},
    {"lessthan", T_LT},
    {"<", T_LT},
    {"le", T_LE},
    {"<=", T_LE},
    {"gt", T_GT},
    {"greaterthan", T_GT},
    {">", T_GT},
    {"ge", T_GE},
    {">=", T_GE},
};

static enum aq_status compared(struct jinja_run *run, enum test test, struct jinja_value in, struct jinja_value with,
                               bool *out)
{
    struct jinja_value rest;
    int order;
    switch (test) {
    case T_DIVISIBLE:
        AQ_TRY(jinja_binary(run, JINJA_T_MOD, in, with, &rest));
        return jinja_equal(run, rest, jinja_int(0), out);
    case T_SAME:
        if (in.kind > JINJA_BOOL && with.kind > JINJA_BOOL && in.kind == with.kind)
            return jinja_fail(run, AQ_INVAL, "sameas is supported for none, true and false");
        *out = in.kind == with.kind && (in.kind != JINJA_BOOL || in.integer == with.integer);
        return AQ_OK;
    case T_IN:
        return jinja_contains(run, with, in, out);
    case T_EQ:
    case T_NE:
        AQ_TRY(jinja_equal(run, in, with, out));
        *out = *out == (test == T_EQ);
        return AQ_OK;
    default:
        AQ_TRY(jinja_order(run, in, with, &order));
        *out = test == T_LT ? order < 0 : test == T_LE ? order <= 0 : test == T_GT ? order > 0 : order >= 0;
        return AQ_OK;
    }
}

static bool is_sequence(struct jinja_value in)
{
    return in.kind == JINJA_STRING || in.kind == JINJA_DICT || in.kind == JINJA_UNDEFINED ||
           (in.kind == JINJA_LIST && in.form <= JINJA_FORM_TUPLE);
}

static enum aq_status parity(struct jinja_run *run, struct jinja_value in, int64_t wanted, bool *out)
{
    struct jinja_value rest;
    AQ_TRY(jinja_binary(run, JINJA_T_MOD, in, jinja_int(2), &rest));
    return jinja_equal(run, rest, jinja_int(wanted), out);
}

static enum aq_status plain(struct jinja_run *run, enum test test, struct jinja_value in, bool *out)
{
    struct jinja_value text;
    const uint8_t kind = in.kind;
    switch (test) {
    case T_EVEN:
    case T_ODD:
        return parity(run, in, test == T_ODD, out);
    case T_LOWER:
    case T_UPPER:
        AQ_TRY(jinja_text(run, in, &text));
        *out = jinja_all_of(text, test == T_LOWER ? JINJA_IS_LOWER : JINJA_IS_UPPER);
        return AQ_OK;
    case T_ITERABLE:
        *out = is_sequence(in) || kind == JINJA_LIST || kind == JINJA_LOOP;
        return AQ_OK;
    case T_SEQUENCE:
        *out = is_sequence(in);
        return AQ_OK;
    default:
        *out = test == T_DEFINED     ? kind != JINJA_UNDEFINED
               : test == T_UNDEFINED ? kind == JINJA_UNDEFINED
               : test == T_NONE      ? kind == JINJA_NONE
               : test == T_STRING    ? kind == JINJA_STRING
               : test == T_MAPPING   ? kind == JINJA_DICT
               : test == T_NUMBER    ? kind >= JINJA_BOOL && kind <= JINJA_FLOAT
               : test == T_INTEGER   ? kind == JINJA_INT
               : test == T_FLOAT     ? kind == JINJA_FLOAT
               : test == T_BOOLEAN   ? kind == JINJA_BOOL
               : test == T_TRUE      ? kind == JINJA_BOOL && in.integer
               : test == T_FALSE     ? kind == JINJA_BOOL && !in.integer
               : test == T_CALLABLE  ? kind >= JINJA_MACRO || kind == JINJA_UNDEFINED
                                     : kind == JINJA_STRING && in.form; /* escaped */
        return AQ_OK;
    }
}

enum aq_status jinja_test(struct jinja_run *run, const char *name, uint32_t name_bytes, struct jinja_value in,
                          const struct jinja_args *args, bool *out)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strlen(tests[i].name) != name_bytes || memcmp(tests[i].name, name, name_bytes) != 0) continue;
        if (args->named || args->count != (tests[i].test >= T_ONE_ARGUMENT))
            return jinja_fail(run, AQ_INVAL, "the test \"%s\" needs %s", tests[i].name,
                              tests[i].test >= T_ONE_ARGUMENT ? "one argument" : "no argument");
        AQ_TRY(jinja_charge(run, 0));
        return args->count ? compared(run, tests[i].test, in, args->values[0], out)
                           : plain(run, tests[i].test, in, out);
    }
    return jinja_fail(run, AQ_INVAL, "the test \"%.*s\" is not supported", name_bytes < 60 ? (int)name_bytes : 60,
                      name);
}
