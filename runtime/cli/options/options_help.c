/* options_help.c -- see the header. */
#include "options_help.h"

#include <string.h>

enum { LEFT_MAX = 27 }; /* columns of an option's name; a longer one has a line for itself */

const struct aq_option *aq_options_verb(const struct aq_command_line *line, const char *name)
{
    for (const struct aq_option *option = line->options; name && option->name; option++)
        if (option->kind == AQ_OPTION_WORD && strcmp(option->name, name) == 0) return option;
    return NULL;
}

bool aq_option_is_of(const struct aq_option *option, const char *verb)
{
    if (!option->of) return true;
    if (!verb) return false;
    const size_t bytes = strlen(verb);
    for (const char *at = option->of; (at = strstr(at, verb)); at += bytes)
        if ((at == option->of || at[-1] == ' ') && (at[bytes] == ' ' || !at[bytes])) return true;
    return false;
}

void aq_help_fold(struct aq_text *out, const char *words, size_t used, size_t indent)
{
    size_t at = used;
    bool first = true;
    while (*words) {
        const size_t blanks = strspn(words, " "), bytes = strcspn(words + blanks, " \n");
        if (!first && at + blanks + bytes > AQ_HELP_COLUMNS && at > indent) {
            aq_text_add(out, "\n%*s", (int)indent, "");
            at = indent;
        } else {
            aq_text_add(out, "%.*s", (int)blanks, words);
            at += blanks;
        }
        aq_text_bytes(out, words + blanks, bytes);
        at += bytes;
        words += blanks + bytes;
        first = false;
        if (*words != '\n') continue;
        aq_text_add(out, "\n%*s", words[1] && words[1] != '\n' ? (int)indent : 0, "");
        at = indent;
        first = true;
        words++;
    }
    aq_text_add(out, "\n");
}

/* "  -o, --output=FILE" */
static void left_of(const struct aq_option *option, struct aq_text *out)
{
    if (option->kind == AQ_OPTION_WORD) {
        aq_text_add(out, "  %s", option->name);
        return;
    }
    if (option->letter)
        aq_text_add(out, "  -%c, ", option->letter);
    else
        aq_text_add(out, "      ");
    aq_text_add(out, "--%s%s%s", option->name, option->value ? "=" : "", option->value ? option->value : "");
}

static void row(struct aq_text *out, const char *left, const char *help, size_t column)
{
    size_t used = strlen(left);
    aq_text_add(out, "%s", left);
    if (used + 2 > column) {
        aq_text_add(out, "\n");
        used = 0;
    }
    aq_text_add(out, "%*s", (int)(column - used), "");
    aq_help_fold(out, help, column, column);
}

static bool shown(const struct aq_option *option, const struct aq_option *verb)
{
    if (!option->help) return false;
    if (option->kind == AQ_OPTION_WORD) return !verb;
    return aq_option_is_of(option, verb ? verb->name : NULL);
}

/* Column of explanations: after the longest name that is not too long. */
static size_t column_of(const struct aq_command_line *line, const struct aq_option *verb)
{
    size_t column = strlen("  -v, --verbose") + 2;
    for (const struct aq_option *option = line->options; option->name; option++) {
        struct aq_text left = {0};
        if (!shown(option, verb)) continue;
        left_of(option, &left);
        if (left.used <= LEFT_MAX && left.used + 2 > column) column = left.used + 2;
        aq_text_deinit(&left);
    }
    return column;
}

static void ways(const struct aq_command_line *line, const struct aq_option *verb, struct aq_text *out)
{
    const char *way = verb && verb->usage ? verb->usage : verb ? verb->name : line->arguments ? line->arguments : "";
    const char *begin = "Usage: ";
    do {
        const size_t bytes = strcspn(way, "\n");
        aq_text_add(out, "%s%s%s%s [OPTION...]", begin, line->name, verb && verb->usage ? " " : "",
                    verb && verb->usage ? verb->name : "");
        aq_text_add(out, "%s%.*s\n", bytes ? " " : "", (int)bytes, way);
        way += bytes + (way[bytes] == '\n');
        begin = "  or:  ";
    } while (*way);
}

void aq_options_help(const struct aq_command_line *line, const struct aq_option *verb, struct aq_text *out)
{
    const size_t column = column_of(line, verb);
    const char *more = verb ? NULL : line->more;
    bool verbs = false;
    ways(line, verb, out);
    aq_text_add(out, "\n");
    aq_help_fold(out, verb ? verb->more ? verb->more : verb->help : line->about, 0, 0);
    aq_text_add(out, "\n");
    for (const struct aq_option *option = line->options; option->name; option++) {
        struct aq_text left = {0};
        if (!shown(option, verb)) continue;
        left_of(option, &left);
        row(out, aq_text_of(&left), option->help, column);
        aq_text_deinit(&left);
        verbs |= option->kind == AQ_OPTION_WORD;
    }
    row(out, "  -v, --verbose", "print more about what happens (AQ_LOG=2; AQ_LOG=net:4 is one module's)", column);
    row(out, "  -h, --help", verbs ? "this help; behind one of these words: its own" : "this help", column);
    if (more) aq_text_add(out, "\n");
    if (more) aq_help_fold(out, more, 0, 0);
}

void aq_options_usage(const struct aq_command_line *line, const struct aq_option *verb, struct aq_text *out)
{
    struct aq_text words = {0};
    ways(line, verb, out);
    for (const struct aq_option *option = line->options; option->name; option++)
        if (shown(option, verb) && option->kind != AQ_OPTION_WORD)
            aq_text_add(&words, "%s[--%s%s%s]", words.used ? " " : "", option->name, option->value ? "=" : "",
                        option->value ? option->value : "");
    aq_text_add(out, "    ");
    aq_help_fold(out, aq_text_of(&words), 4, 4);
    aq_text_deinit(&words);
}

void aq_options_aliases(struct aq_text *out)
{
    static const char *const commands[][2] = {
#define AQ_COMMAND_ALIAS(name, command) {name, command},
#define AQ_OPTION_ALIAS(name, letter, option)
#include "command_aliases.def"
    };
    static const struct {
        const char *name, *option;
        char letter;
    } options[] = {
#define AQ_COMMAND_ALIAS(name, command)
#define AQ_OPTION_ALIAS(name, letter, option) {name, option, letter},
#include "command_aliases.def"
    };
    aq_text_add(out, "Names that other programs have work here, too.\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        aq_text_add(out, "  aqpipe %-17s aqpipe %s\n", commands[i][0], commands[i][1]);
    aq_text_add(out, "\nIn each command that has the option on the right:\n\n");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const char letter[] = {options[i].letter ? '-' : ' ', options[i].letter ? options[i].letter : ' ', 0};
        aq_text_add(out, "  %s%c --%-18s --%s\n", letter, options[i].letter ? ',' : ' ', options[i].name,
                    options[i].option);
    }
}
