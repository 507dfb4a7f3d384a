/*
 * jinja_program.c -- a template's text becomes a program, and a place in it a line and column.
 */
#include "jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum aq_status jinja_program_fail(const struct jinja_program *program, const char *where, uint32_t place,
                                  enum aq_status status, const char *format, ...)
{
    char text[512];
    uint32_t line = 1, column = 1;
    for (uint32_t i = 0; i < place && i < program->source_bytes; i++) {
        if (program->source[i] == '\n') {
            line++;
            column = 1;
        } else {
            column += ((uint8_t)program->source[i] & 0xC0) != 0x80;
        }
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return aq_fail(status, JINJA_AREA, "%s%s%s:%u:%u: %s", where ? where : "", where ? ": " : "", program->called,
                   (unsigned)line, (unsigned)column, text);
}

/* Newlines as \n, less one at the end. */
static void normalise(const char *text, size_t bytes, struct jinja_program *program)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        program->source[used++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n') i++;
    }
    if (used && program->source[used - 1] == '\n') used--;
    program->source[used] = 0;
    program->source_bytes = used;
}

static enum aq_status compile(const char *text, size_t bytes, const char *called, struct jinja_program *program,
                              struct jinja_tokens *tokens)
{
    AQ_TRY(aq_alloc_text(called, &program->called));
    AQ_TRY(AQ_NEW(bytes + 1, &program->source));
    AQ_TRY(AQ_NEW(bytes + 1, &program->strings));
    normalise(text, bytes, program);
    AQ_TRY(jinja_tokenize(program, tokens));
    return jinja_parse(program, tokens->at);
}

enum aq_status jinja_compile(const char *text, size_t bytes, const char *called, struct jinja_program **out)
{
    if (bytes > AQ_CHAT_TEMPLATE_BYTES_MAX)
        return aq_fail(AQ_NOSPC, JINJA_AREA, "%s: a template has at most %d bytes, this one %zu", called,
                       (int)AQ_CHAT_TEMPLATE_BYTES_MAX, bytes);
    json_t *checked = json_stringn(text, bytes); /* NULL: no UTF-8, or no memory */
    if (!checked) return aq_fail(AQ_CORRUPT, JINJA_AREA, "%s: the template is not UTF-8", called);
    json_decref(checked);
    struct jinja_program *program;
    AQ_TRY(AQ_NEW(1, &program));
    struct jinja_tokens tokens = {0};
    const enum aq_status status = compile(text, bytes, called, program, &tokens);
    aq_free(tokens.at);
    if (status != AQ_OK) {
        jinja_program_free(program);
        return status;
    }
    *out = program;
    return AQ_OK;
}

void jinja_program_free(struct jinja_program *program)
{
    if (!program) return;
    aq_free(program->called);
    aq_free(program->source);
    aq_free(program->strings);
    aq_free(program->nodes);
    aq_free(program);
}
