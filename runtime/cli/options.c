/*
 * options.c -- see the header. argp reads and formats; what is wrong is said here, in one line, with the nearest name.
 */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aqsgd/base.h"
#include "commands.h"
#include "completion.h"
#include "nearest.h"

enum {
    KEY_FIRST = 0x1000,
    KEY_HELP = 'h',
    KEY_USAGE = KEY_FIRST - 1,
    KEY_COMPLETION = KEY_FIRST - 2,
    ABOUT_BYTES = 8192
}; /* keys: no letters */

static const double MAX_TOLD = 1e11; /* more is no limit */

struct reading {
    const struct aq_command_line *line;
    struct aq_arguments *arguments;
    void *to;
    int helped;             /* flags of argp_help */
    const char *completion; /* the shell whose completion was asked for */
    bool said;
};

static int say_wrong(const char *name, const char *format, va_list arguments)
{
    fprintf(stderr, "%s: ", name);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (%s --help tells more)\n", name);
    return AQ_EXIT_USAGE;
}

int aq_options_wrong(const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int code = say_wrong(name, format, arguments);
    va_end(arguments);
    return code;
}

static error_t wrong(struct reading *reading, const char *format, ...) __attribute__((format(printf, 2, 3)));

static error_t wrong(struct reading *reading, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!reading->said) (void)say_wrong(reading->line->name, format, arguments);
    va_end(arguments);
    reading->said = true;
    return EINVAL;
}

/* ---- values ---- */

static bool whole(const char *text, double min, double max, uint64_t *out)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || (double)value < min || (double)value > max) return false;
    *out = value;
    return true;
}

static bool number(const char *text, double min, double max, double *out)
{
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < min || value > max) return false;
    *out = value;
    return true;
}

static error_t take(struct reading *reading, const struct aq_option *option, const char *text)
{
    char *to = (char *)reading->to + option->offset;
    struct aq_arguments *list = (void *)to;
    uint64_t count;
    const char *wanted;
    switch (option->kind) {
    case AQ_OPTION_FLAG:
        *(bool *)to = true;
        return 0;
    case AQ_OPTION_TEXT:
        *(const char **)(void *)to = text;
        return 0;
    case AQ_OPTION_U32:
    case AQ_OPTION_U64:
        if (!whole(text, option->min, option->max, &count))
            return wrong(reading,
                         option->max > MAX_TOLD ? "--%s: '%.80s' is no whole number, %.0f or more"
                                                : "--%s: '%.80s' is no whole number from %.0f to %.0f",
                         option->name, text, option->min, option->max);
        if (option->kind == AQ_OPTION_U64)
            *(uint64_t *)(void *)to = count;
        else
            *(uint32_t *)(void *)to = (uint32_t)count;
        return 0;
    case AQ_OPTION_NUMBER:
        if (!number(text, option->min, option->max, (double *)(void *)to))
            return wrong(reading,
                         option->max > MAX_TOLD ? "--%s: '%.80s' is no number, %g or more"
                                                : "--%s: '%.80s' is no number from %g to %g",
                         option->name, text, option->min, option->max);
        return 0;
    case AQ_OPTION_LIST:
        if (list->count == AQ_ARGUMENTS_MAX) return wrong(reading, "more than %d --%s", AQ_ARGUMENTS_MAX, option->name);
        list->of[list->count++] = text;
        return 0;
    default:
        wanted = option->read(text, to);
        return wanted ? wrong(reading, "--%s: '%.80s': %s", option->name, text, wanted) : 0;
    }
}

/* ---- what argp could not read ---- */

static const struct aq_option *find(const struct aq_command_line *line, const char *name, size_t bytes)
{
    for (const struct aq_option *option = line->options; option->name; option++)
        if (option->kind != AQ_OPTION_WORD && strncmp(option->name, name, bytes) == 0 && option->name[bytes] == 0)
            return option;
    return NULL;
}

/* argv[at] is what getopt stopped at: no option of ours, or one without its value. */
static error_t explain(struct reading *reading, const struct argp_state *state)
{
    int at = state->next - 1;
    const char *word = at > 0 ? state->argv[at] : "";
    if (strncmp(word, "--", 2) != 0) {
        if (word[0] != '-' && state->next < state->argc) word = state->argv[state->next]; /* amid -abc */
        return wrong(reading, "there is no option '%.80s'", word);
    }
    const size_t bytes = strcspn(word + 2, "=");
    const struct aq_option *option = find(reading->line, word + 2, bytes);
    if (option && word[2 + bytes]) return wrong(reading, "--%s takes no value", option->name);
    if (option) return wrong(reading, "--%s wants a value: --%s %s", option->name, option->name, option->value);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)bytes, word + 2);
    struct aq_nearest nearest = {.word = name};
    for (option = reading->line->options; option->name; option++)
        if (option->help && option->kind != AQ_OPTION_WORD) aq_nearest_try(&nearest, option->name);
    aq_nearest_try(&nearest, "help");
    if (aq_nearest_of(&nearest))
        return wrong(reading, "there is no option '--%s'; did you mean '--%s'?", name, aq_nearest_of(&nearest));
    return wrong(reading, "there is no option '--%s'", name);
}

static error_t parse(int key, char *value, struct argp_state *state)
{
    struct reading *reading = state->input;
    if (key == KEY_HELP || key == KEY_USAGE) {
        reading->helped = key == KEY_HELP ? ARGP_HELP_LONG | ARGP_HELP_SHORT_USAGE | ARGP_HELP_DOC : ARGP_HELP_USAGE;
        state->next = state->argc; /* nothing else matters */
        return 0;
    }
    if (key == KEY_COMPLETION) {
        reading->completion = value;
        state->next = state->argc;
        return 0;
    }
    if (key == ARGP_KEY_ARG) {
        struct aq_arguments *arguments = reading->arguments;
        if (arguments->count == AQ_ARGUMENTS_MAX) return wrong(reading, "more than %d arguments", AQ_ARGUMENTS_MAX);
        arguments->of[arguments->count++] = value;
        return 0;
    }
    if (key == ARGP_KEY_ERROR) return reading->helped ? 0 : explain(reading, state);
    if (key >= KEY_FIRST && key < KEY_FIRST + AQ_OPTIONS_MAX)
        return take(reading, &reading->line->options[key - KEY_FIRST], value);
    for (const struct aq_option *option = reading->line->options; option->name; option++)
        if (option->letter && option->letter == key) return take(reading, option, value);
    return ARGP_ERR_UNKNOWN;
}

int aq_options_read(const struct aq_command_line *line, int argc, char **argv, void *to, struct aq_arguments *arguments)
{
    struct argp_option rows[AQ_OPTIONS_MAX + 4];
    char about[ABOUT_BYTES], name[64];
    int count = 0;
    for (; line->options[count].name; count++) {
        const struct aq_option *option = &line->options[count];
        AQ_ASSERT(count < AQ_OPTIONS_MAX);
        rows[count] = (struct argp_option){.name = option->name,
                                           .key = option->letter ? option->letter : KEY_FIRST + count,
                                           .arg = option->value,
                                           .flags = option->kind == AQ_OPTION_WORD ? OPTION_DOC
                                                    : option->help                 ? 0
                                                                                   : OPTION_HIDDEN,
                                           .doc = option->help ? option->help : "",
                                           .group = count + 1 /* as they stand in the table */};
    }
    rows[count++] = (struct argp_option){.name = "help", .key = KEY_HELP, .doc = "this help", .group = -1};
    rows[count++] = (struct argp_option){.name = "usage", .key = KEY_USAGE, .doc = "a short one", .group = -1};
    rows[count++] = (struct argp_option){
        .name = "completion", .key = KEY_COMPLETION, .arg = "SHELL", .flags = OPTION_HIDDEN, .doc = "", .group = -1};
    rows[count] = (struct argp_option){0};
    snprintf(about, sizeof about, "\n%s%s%s", line->about, line->more ? "\v" : "", line->more ? line->more : "");
    snprintf(name, sizeof name, "%s", line->name);
    const struct argp argp = {.options = rows, .parser = parse, .args_doc = line->arguments, .doc = about};
    struct reading reading = {.line = line, .arguments = arguments, .to = to};
    *arguments = (struct aq_arguments){0};
    const error_t error = argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &reading);
    if (reading.helped) {
        argp_help(&argp, stdout, (unsigned)reading.helped, name);
        return line->keys && reading.helped != ARGP_HELP_USAGE ? line->keys() : AQ_EXIT_DONE;
    }
    if (reading.completion) return aq_completion_line(stdout, reading.completion, line);
    return error ? AQ_EXIT_USAGE : AQ_OPTIONS_READ;
}

const char *aq_size_read(const char *text, void *to)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)(unit + 1 - units) : 0;
    if (errno != 0 || end == text || text[0] == '-' || (*end && (!unit || end[1])) || value == 0 ||
        value > UINT64_MAX >> shift)
        return "bytes are wanted, or 512M";
    *(uint64_t *)to = value << shift;
    return NULL;
}
