/*
 * completion.c -- see the header. One script a program: a beginning, a part for each command, an end. The three shells
 * differ in what those are, and in how a text is quoted.
 */
#include "completion.h"

#include <stdbool.h>
#include <string.h>

#include "keys.h"

enum { HELP_BYTES = 64, FUNCTION_BYTES = 64 };

enum aq_shell aq_shell_named(const char *name)
{
    static const char *const names[] = {
        [AQ_SHELL_BASH] = "bash", [AQ_SHELL_ZSH] = "zsh", [AQ_SHELL_FISH] = "fish", [AQ_SHELL_MAN] = "man"};
    for (int shell = AQ_SHELL_BASH; shell <= AQ_SHELL_MAN; shell++)
        if (strcmp(name, names[shell]) == 0) return (enum aq_shell)shell;
    return AQ_SHELL_NONE;
}

static enum aq_shell shell_wanted(const char *shell)
{
    const enum aq_shell found = aq_shell_named(shell);
    if (found == AQ_SHELL_NONE) fprintf(stderr, "completion: bash, zsh or fish, not '%.40s'\n", shell);
    return found;
}

/* ---- words ---- */

/* The first clause of a help text, at most HELP_BYTES - 1 bytes of it. */
static void clause(const char *help, char out[HELP_BYTES])
{
    size_t bytes = strcspn(help, ";(:");
    const char *stop = strstr(help, ". ");
    if (stop && (size_t)(stop - help) < bytes) bytes = (size_t)(stop - help);
    if (bytes >= HELP_BYTES)
        for (bytes = HELP_BYTES - 1; bytes > 1 && help[bytes] != ' ';)
            bytes--;
    while (bytes > 0 && strchr(" ,", help[bytes - 1]))
        bytes--;
    memcpy(out, help, bytes);
    out[bytes] = 0;
}

/* Inside single quotes, with a backslash before those of `also`; fish takes \' there, the others do not. */
static void quote(FILE *to, enum aq_shell shell, const char *text, const char *also)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs(shell == AQ_SHELL_FISH ? "\\'" : "'\\''", to);
        else if (*text == '\\' || strchr(also, *text))
            fprintf(to, "\\%c", *text);
        else
            fputc(*text, to);
    }
}

/* The last word of "aqpipe launch", and whether there is another before it. */
static const char *command_of(const struct aq_command_line *line, bool *whole)
{
    const char *blank = strrchr(line->name, ' ');
    *whole = blank == NULL;
    return blank ? blank + 1 : line->name;
}

static bool shown(const struct aq_option *option)
{
    return option->kind != AQ_OPTION_WORD && option->help;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t bytes = strlen(text), tail = strlen(end);
    return bytes >= tail && strcmp(text + bytes - tail, end) == 0;
}

static bool has_keys(const struct aq_command_line *line)
{
    for (const struct aq_option *option = line->options; option->name; option++)
        if (option->value && strcmp(option->value, "KEY=VALUE") == 0) return true;
    return false;
}

/* The keys that --set takes: "train.lr=" */
static void keys(FILE *to)
{
    const struct aq_key_table table = aq_keys_job();
    for (uint32_t k = 0; k < table.count; k++)
        fprintf(to, "%s%s=", k ? " " : "", table.keys[k].name);
}

/* ---- bash ---- */

static void bash_part(FILE *to, const struct aq_command_line *line, const char *command)
{
    fprintf(to, "    %s)\n        options='", command);
    for (const struct aq_option *option = line->options; option->name; option++)
        if (shown(option)) fprintf(to, "--%s%s ", option->name, option->value ? "=" : "");
    fprintf(to, "--verbose --help'\n        words='");
    const char *between = "";
    for (const struct aq_option *option = line->options; option->name; option++) {
        if (option->kind != AQ_OPTION_WORD) continue;
        fprintf(to, "%s%s", between, option->name);
        between = " ";
    }
    fprintf(to, "'\n        folders='");
    for (const struct aq_option *option = line->options; option->name; option++)
        if (shown(option) && option->value && ends_with(option->value, "DIR")) fprintf(to, " --%s ", option->name);
    fprintf(to, "'\n        keys='");
    if (has_keys(line)) keys(to);
    fprintf(to, "'\n        ;;\n");
}

/* readline parts words at '=': "--run" "=" "o" are three. */
static void bash_begin(FILE *to, const char *function)
{
    fprintf(to,
            "%s()\n{\n"
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} options words folders keys\n"
            "    [[ $word == '=' ]] && word=''\n"
            "    [[ $before == '=' ]] && before=${COMP_WORDS[COMP_CWORD - 2]}\n"
            "    COMPREPLY=()\n",
            function);
}

static void bash_end(FILE *to, const char *function, const char *program)
{
    fprintf(to,
            "    esac\n"
            "    if [[ $before == --set && -n $keys ]]; then\n"
            "        compopt -o nospace\n"
            "        COMPREPLY=($(compgen -W \"$keys\" -- \"$word\"))\n"
            "    elif [[ $folders == *\" $before \"* ]]; then\n"
            "        COMPREPLY=($(compgen -d -- \"$word\"))\n"
            "    elif [[ $word == -* ]]; then\n"
            "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
            "        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"
            "    elif ((COMP_CWORD <= 2)) && [[ -n $words ]]; then\n"
            "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
            "    fi\n"
            "}\n"
            "complete -o default -F %s %s\n",
            function, program);
}

static void bash_commands(FILE *to, const struct aq_command *commands, uint32_t count)
{
    fprintf(to, "    local commands='");
    for (uint32_t i = 0; i < count; i++)
        if (commands[i].help) fprintf(to, "%s ", commands[i].name);
    fprintf(to, "help'\n"
                "    if ((COMP_CWORD == 1)); then\n"
                "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$word\"))\n"
                "        return\n"
                "    fi\n"
                "    case ${COMP_WORDS[1]} in\n"
                "    help) words=\"$commands keys aliases completion\" ;;\n");
}

/* ---- zsh ---- */

static void zsh_value(FILE *to, const char *value)
{
    fputc(':', to);
    quote(to, AQ_SHELL_ZSH, value, "[]:");
    fputc(':', to);
    if (ends_with(value, "DIR")) fputs("_files -/", to);
    if (ends_with(value, "FILE")) fputs("_files", to);
    if (strcmp(value, "KEY=VALUE") == 0) {
        fputs("compadd -S \"\" -- ", to);
        keys(to);
    }
}

static void zsh_option(FILE *to, const struct aq_option *option)
{
    char text[HELP_BYTES];
    const char *many = option->kind == AQ_OPTION_LIST || option->kind == AQ_OPTION_READ ? "*" : "";
    clause(option->help, text);
    for (int letter = 0; letter < (option->letter ? 2 : 1); letter++) {
        fputs(" \\\n            '", to);
        if (letter)
            fprintf(to, "%s-%c%s[", many, option->letter, option->value ? "+" : "");
        else
            fprintf(to, "%s--%s%s[", many, option->name, option->value ? "=" : "");
        quote(to, AQ_SHELL_ZSH, text, "[]:");
        fputc(']', to);
        if (option->value) zsh_value(to, option->value);
        fputc('\'', to);
    }
}

static void zsh_part(FILE *to, const struct aq_command_line *line, const char *command)
{
    bool words = false;
    fprintf(to, "    (%s)\n        _arguments -s", command);
    for (const struct aq_option *option = line->options; option->name; option++)
        if (shown(option)) zsh_option(to, option);
    fputs(" \\\n            '--verbose[print more about what happens]' '--help[this help]'", to);
    for (const struct aq_option *option = line->options; option->name; option++) {
        if (option->kind != AQ_OPTION_WORD) continue;
        fprintf(to, "%s%s", words ? " " : " \\\n            '1:what:(", option->name);
        words = true;
    }
    fprintf(to, "%s \\\n            '*:file:_files'\n        ;;\n", words ? ")'" : "");
}

static void zsh_commands(FILE *to, const struct aq_command *commands, uint32_t count)
{
    fputs("    if ((CURRENT == 2)); then\n        local -a commands\n        commands=(\n", to);
    for (uint32_t i = 0; i < count; i++) {
        char text[HELP_BYTES];
        if (!commands[i].help) continue;
        clause(commands[i].help, text);
        fprintf(to, "            '%s:", commands[i].name);
        quote(to, AQ_SHELL_ZSH, text, ":");
        fputs("'\n", to);
    }
    fputs("            'help:what a command, or a key of a manifest, does')\n"
          "        _describe command commands\n        return\n    fi\n"
          "    shift words\n    ((CURRENT--))\n    case $words[1] in\n",
          to);
}

/* ---- fish ---- */

static void fish_part(FILE *to, const struct aq_command_line *line, const char *program, const char *command)
{
    for (const struct aq_option *option = line->options; option->name; option++) {
        char text[HELP_BYTES];
        if (!option->help) continue;
        clause(option->help, text);
        fprintf(to, "complete -c %s", program);
        if (command) fprintf(to, " -n '__fish_seen_subcommand_from %s'", command);
        if (option->kind == AQ_OPTION_WORD)
            fprintf(to, " -a '%s'", option->name);
        else
            fprintf(to, " -l %s", option->name);
        if (option->letter) fprintf(to, " -s %c", option->letter);
        if (option->value && ends_with(option->value, "DIR"))
            fputs(" -x -a '(__fish_complete_directories)'", to);
        else if (option->value && strcmp(option->value, "KEY=VALUE") == 0) {
            fputs(" -x -a '", to);
            keys(to);
            fputc('\'', to);
        } else if (option->value)
            fputs(" -r", to);
        fputs(" -d '", to);
        quote(to, AQ_SHELL_FISH, text, "");
        fputs("'\n", to);
    }
}

static void fish_commands(FILE *to, const char *program, const struct aq_command *commands, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        char text[HELP_BYTES];
        if (!commands[i].help) continue;
        clause(commands[i].help, text);
        fprintf(to, "complete -c %s -f -n __fish_use_subcommand -a %s -d '", program, commands[i].name);
        quote(to, AQ_SHELL_FISH, text, "");
        fputs("'\n", to);
    }
    fprintf(to, "complete -c %s -f -n __fish_use_subcommand -a help -d 'what a command, or a key, does'\n", program);
}

/* ---- man: the options of the manual, in roff ---- */

/* Escapes text for roff: no line starts as a request, no backslash is special, and hyphens stay as typed. */
static void roff(FILE *to, const char *text)
{
    if (*text == '.' || *text == '\'') fputs("\\&", to);
    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else
            fputc(*text == '\n' ? ' ' : *text, to);
    }
}

static void man_option(FILE *to, const struct aq_option *option)
{
    fputs(".TP\n", to);
    if (option->letter) fprintf(to, "\\fB\\-%c\\fR, ", option->letter);
    fputs(option->kind == AQ_OPTION_WORD ? "\\fB" : "\\fB\\-\\-", to);
    roff(to, option->name);
    fputs("\\fR", to);
    if (option->value || (option->kind == AQ_OPTION_WORD && option->usage && *option->usage)) {
        fputs(" \\fI", to);
        roff(to, option->value ? option->value : option->usage);
        fputs("\\fR", to);
    }
    fputc('\n', to);
    roff(to, option->help);
    if (option->of) {
        fputs(" (of: ", to);
        roff(to, option->of);
        fputc(')', to);
    }
    fputc('\n', to);
}

static void man_part(FILE *to, const struct aq_command_line *line, const char *command)
{
    fputs(".SS ", to);
    roff(to, command);
    fputc('\n', to);
    for (const struct aq_option *option = line->options; option->name; option++)
        if (option->help) man_option(to, option);
}

/* ---- programs ---- */

/* "_aqpipe" */
static void begin(FILE *to, enum aq_shell shell, const char *program)
{
    if (shell == AQ_SHELL_MAN) return;
    if (shell == AQ_SHELL_ZSH) fprintf(to, "#compdef %s\n", program);
    fprintf(to, "# What %s completes in this shell; written by the program from its tables.\n", program);
    if (shell == AQ_SHELL_ZSH) fprintf(to, "_%s()\n{\n    local curcontext=$curcontext state line\n", program);
}

static void end(FILE *to, enum aq_shell shell, const char *program)
{
    char function[FUNCTION_BYTES];
    snprintf(function, sizeof function, "_%s", program);
    if (shell == AQ_SHELL_BASH) bash_end(to, function, program);
    if (shell == AQ_SHELL_ZSH) fprintf(to, "    esac\n}\n_%s \"$@\"\n", program);
}

int aq_completion_line(FILE *to, const char *shell_name, const struct aq_command_line *line)
{
    bool whole;
    char function[FUNCTION_BYTES];
    const char *command = command_of(line, &whole);
    const enum aq_shell shell = shell_wanted(shell_name);
    if (shell == AQ_SHELL_NONE) return AQ_EXIT_USAGE;
    if (whole) {
        begin(to, shell, command);
        snprintf(function, sizeof function, "_%s", command);
        if (shell == AQ_SHELL_BASH) bash_begin(to, function);
        if (shell == AQ_SHELL_BASH || shell == AQ_SHELL_ZSH) fprintf(to, "    case %s in\n", command);
    }
    if (shell == AQ_SHELL_BASH) bash_part(to, line, command);
    if (shell == AQ_SHELL_ZSH) zsh_part(to, line, command);
    if (shell == AQ_SHELL_MAN) man_part(to, line, command);
    if (shell == AQ_SHELL_FISH) {
        char program[FUNCTION_BYTES];
        snprintf(program, sizeof program, "%.*s", (int)strcspn(line->name, " "), line->name);
        fish_part(to, line, program, whole ? NULL : command);
    }
    if (whole) end(to, shell, command);
    return AQ_EXIT_DONE;
}

int aq_completion_program(FILE *to, const char *shell_name, const char *program, const struct aq_command *commands,
                          uint32_t count)
{
    char function[FUNCTION_BYTES], option[32], name[32];
    const enum aq_shell shell = shell_wanted(shell_name);
    if (shell == AQ_SHELL_NONE) return AQ_EXIT_USAGE;
    begin(to, shell, program);
    snprintf(function, sizeof function, "_%s", program);
    if (shell == AQ_SHELL_BASH) {
        bash_begin(to, function);
        bash_commands(to, commands, count);
    }
    if (shell == AQ_SHELL_ZSH) zsh_commands(to, commands, count);
    if (shell == AQ_SHELL_FISH) fish_commands(to, program, commands, count);
    for (uint32_t i = 0; i < count; i++) {
        if (!commands[i].help) continue;
        snprintf(name, sizeof name, "%s", commands[i].name);
        snprintf(option, sizeof option, "--completion=%s", shell_name);
        char *arguments[] = {name, option, NULL};
        const int code = commands[i].run(2, arguments);
        if (code != AQ_EXIT_DONE) return code;
    }
    end(to, shell, program);
    return AQ_EXIT_DONE;
}
