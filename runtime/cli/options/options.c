/*
 * options.c -- see the header. argp reads and formats; errors are printed here, in one line, with the nearest name.
 */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <limits.h>
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
#include "options_help.h"
#include "out.h"

enum {
    KEY_FIRST = 0x1000,
    KEY_ALIAS = 0x2000,
    KEY_HELP = 'h',
    KEY_VERBOSE = 'v',
    KEY_USAGE = KEY_FIRST - 1,
    KEY_COMPLETION = KEY_FIRST - 2,
    SAID_BYTES = 1024
}; /* keys: no letters */

static const struct {
    const char *name, *option;
    char letter;
} aliases[] = {
#define AQ_COMMAND_ALIAS(name, command)
#define AQ_OPTION_ALIAS(name, letter, option) {name, option, letter},
#include "command_aliases.def"
};
enum { ALIASES = sizeof aliases / sizeof *aliases };

static char said_text[SAID_BYTES];
static bool json_asked;

static const double MAX_TOLD = 1e11; /* more is no limit */

struct reading {
    const struct aq_command_line *line;
    struct aq_arguments *arguments;
    void *to;
    bool helped, used, verbose; /* --help, --usage, --verbose */
    bool given[AQ_OPTIONS_MAX];
    const char *completion; /* the shell whose completion was asked for */
    bool said;
};

static int say_wrong(const char *name, const char *format, va_list arguments)
{
    vsnprintf(said_text, sizeof said_text, format, arguments);
    fprintf(stderr, "%s: %s (see %s --help)\n", name, said_text, name);
    return AQ_EXIT_USAGE;
}

void aq_options_json_find(int argc, char **argv)
{
    json_asked = false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        json_asked |= strcmp(argv[i], "--json") == 0;
}

bool aq_options_json(void)
{
    return json_asked;
}

const char *aq_options_said(void)
{
    return said_text;
}

int aq_command_failed(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said_text, sizeof said_text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "aqpipe: %s\n", said_text);
    return AQ_EXIT_FAILED;
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

/* Seconds of "90", "500ms", "10min", "2h", "1d". */
static bool seconds(const char *text, double min, double max, double *out)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"min", 60}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    const double value = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++) {
        const double told = value * units[i].factor;
        if (strcmp(end, units[i].name) != 0 || !isfinite(told) || told < min || told > max) continue;
        *out = told;
        return true;
    }
    return false;
}

static error_t take(struct reading *reading, const struct aq_option *option, const char *text)
{
    char *to = (char *)reading->to + option->offset;
    struct aq_arguments *list = (void *)to;
    uint64_t count;
    const char *wanted;
    reading->given[option - reading->line->options] = true;
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
                         option->max > MAX_TOLD ? "--%s: '%.80s' is not a whole number of %.0f or more"
                                                : "--%s: '%.80s' is not a whole number from %.0f to %.0f",
                         option->name, text, option->min, option->max);
        if (option->kind == AQ_OPTION_U64)
            *(uint64_t *)(void *)to = count;
        else
            *(uint32_t *)(void *)to = (uint32_t)count;
        return 0;
    case AQ_OPTION_NUMBER:
        if (!number(text, option->min, option->max, (double *)(void *)to))
            return wrong(reading,
                         option->max > MAX_TOLD ? "--%s: '%.80s' is not a number of %g or more"
                                                : "--%s: '%.80s' is not a number from %g to %g",
                         option->name, text, option->min, option->max);
        return 0;
    case AQ_OPTION_TIME:
        if (!seconds(text, option->min, option->max, (double *)(void *)to))
            return wrong(reading, "--%s: '%.80s' is not a time from %g s to %g s, as in 90, 500ms, 10min, 2h",
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

/* getopt stopped at argv[at]: an unknown option, or one without its value. */
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
    for (int i = 0; !option && i < ALIASES; i++)
        if (strncmp(aliases[i].name, word + 2, bytes) == 0 && !aliases[i].name[bytes])
            option = find(reading->line, aliases[i].option, strlen(aliases[i].option));
    if (option && word[2 + bytes]) return wrong(reading, "--%s takes no value", option->name);
    if (option) return wrong(reading, "--%s needs a value: --%s %s", option->name, option->name, option->value);
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
        reading->helped = key == KEY_HELP;
        reading->used = key == KEY_USAGE;
        state->next = state->argc; /* nothing else matters */
        return 0;
    }
    if (key == KEY_VERBOSE) {
        reading->verbose = true;
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
    if (key == ARGP_KEY_ERROR) return reading->helped || reading->used ? 0 : explain(reading, state);
    if (key >= KEY_FIRST && key < KEY_FIRST + AQ_OPTIONS_MAX)
        return take(reading, &reading->line->options[key - KEY_FIRST], value);
    for (int i = 0; i < ALIASES; i++) {
        const struct aq_option *option = find(reading->line, aliases[i].option, strlen(aliases[i].option));
        if (option && (key == KEY_ALIAS + i || (aliases[i].letter && key == aliases[i].letter)))
            return take(reading, option, value);
    }
    for (const struct aq_option *option = reading->line->options; option->name; option++)
        if (option->letter && option->letter == key) return take(reading, option, value);
    return ARGP_ERR_UNKNOWN;
}

/* The aliases that this command can have, behind its own rows. Answers how many rows there are now. */
static int add_aliases(const struct aq_command_line *line, struct argp_option *rows, int count)
{
    for (int i = 0; i < ALIASES; i++) {
        const struct aq_option *option = find(line, aliases[i].option, strlen(aliases[i].option));
        if (!option || find(line, aliases[i].name, strlen(aliases[i].name))) continue;
        rows[count++] = (struct argp_option){.name = aliases[i].name,
                                             .key = aliases[i].letter ? aliases[i].letter : KEY_ALIAS + i,
                                             .arg = option->value,
                                             .flags = OPTION_HIDDEN,
                                             .doc = ""};
    }
    return count;
}

static void make_rows(const struct aq_command_line *line, struct argp_option *rows)
{
    int count = 0;
    for (const struct aq_option *option = line->options; option->name; option++) {
        const int at = (int)(option - line->options);
        AQ_ASSERT(at < AQ_OPTIONS_MAX);
        if (option->kind == AQ_OPTION_WORD) continue;
        rows[count++] = (struct argp_option){.name = option->name,
                                             .key = option->letter ? option->letter : KEY_FIRST + at,
                                             .arg = option->value,
                                             .doc = ""};
    }
    count = add_aliases(line, rows, count);
    rows[count++] = (struct argp_option){.name = "help", .key = KEY_HELP, .doc = ""};
    rows[count++] = (struct argp_option){.name = "usage", .key = KEY_USAGE, .doc = ""};
    rows[count++] = (struct argp_option){.name = "verbose", .key = KEY_VERBOSE, .doc = ""};
    rows[count++] = (struct argp_option){.name = "completion", .key = KEY_COMPLETION, .arg = "SHELL", .doc = ""};
    rows[count] = (struct argp_option){0};
}

/* The sub-command that this command line names: its first word that is no option. */
static const struct aq_option *verb_asked(const struct aq_command_line *line, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-') return aq_options_verb(line, argv[i]);
    return NULL;
}

static int show_help(const struct reading *reading, int argc, char **argv)
{
    struct aq_text text = {0};
    const struct aq_option *verb = verb_asked(reading->line, argc, argv);
    (reading->helped ? aq_options_help : aq_options_usage)(reading->line, verb, &text);
    const bool whole = text.status == AQ_OK && aq_out_text(aq_text_of(&text));
    aq_text_deinit(&text);
    return whole ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

/* An option of some sub-commands goes with no other. */
static error_t check_verbs(struct reading *reading)
{
    const struct aq_command_line *line = reading->line;
    for (const struct aq_option *option = line->options; option->name; option++) {
        bool fits = !option->of || !reading->given[option - line->options] || reading->arguments->count == 0;
        for (uint32_t i = 0; !fits && i < reading->arguments->count; i++)
            fits = aq_option_is_of(option, reading->arguments->of[i]);
        if (!fits) return wrong(reading, "--%s is an option of %s", option->name, option->of);
    }
    return 0;
}

int aq_options_read(const struct aq_command_line *line, int argc, char **argv, void *to, struct aq_arguments *arguments)
{
    struct argp_option rows[AQ_OPTIONS_MAX + ALIASES + 5];
    make_rows(line, rows);
    const struct argp argp = {.options = rows, .parser = parse};
    struct reading reading = {.line = line, .arguments = arguments, .to = to};
    *arguments = (struct aq_arguments){0};
    aq_options_json_find(argc, argv);
    error_t error = argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_EXIT | ARGP_NO_HELP, NULL, &reading);
    if (reading.helped || reading.used) return show_help(&reading, argc, argv);
    if (reading.completion) return aq_completion_line(stdout, reading.completion, line);
    if (error == 0) error = check_verbs(&reading);
    if (reading.verbose && setenv("AQ_LOG", "2", 0) == 0) aq_log_init(AQ_LOG_COMMAND);
    return error ? AQ_EXIT_USAGE : AQ_OPTIONS_READ;
}

const char *aq_size_read(const char *text, void *to)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(*end == 'k' ? "K" : units, *end == 'k' ? 'K' : *end) : NULL;
    const int power = unit ? (int)(*end == 'k' ? 1 : unit + 1 - units) : 0;
    const char *rest = end + (unit != NULL);
    const bool thousands = unit && strcmp(rest, "B") == 0;
    uint64_t factor = 1;
    for (int i = 0; i < power; i++)
        factor *= thousands ? 1000 : 1024;
    if (errno != 0 || end == text || text[0] == '-' || value == 0 || value > UINT64_MAX / factor ||
        (*rest && !thousands && strcmp(rest, unit ? "iB" : "B") != 0))
        return "must be bytes, as in 5000000000, 512MiB, 16G, 5GB";
    *(uint64_t *)to = value * factor;
    return NULL;
}

const char *aq_steps_read(const char *text, void *to)
{
    static const long long most = 1LL << 60;
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    *(uint64_t *)to = (uint64_t)number;
    return errno == 0 && *text && !*end && number <= most && number >= -most ? NULL : "must be a number of steps";
}

const char *aq_descriptor_read(const char *text, void *to)
{
    char *end;
    const long number = strtol(text, &end, 10);
    *(int *)to = (int)number;
    return *text && !*end && number >= 3 && number <= INT_MAX ? NULL : "must be the number of a descriptor";
}
