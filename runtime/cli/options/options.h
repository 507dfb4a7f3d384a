/*
 * options.h -- the command lines of aqpipe and aqpiped: one table of options a command, read by argp.
 *
 * The table is what is read and what --help shows: an option is added by its row. Every command gets --help, --usage
 * and --verbose, options before and behind its arguments, --name VALUE and --name=VALUE, names cut short where that is
 * clear, and the familiar names of command_aliases.def. An unknown option is refused with the nearest one that exists.
 * WORD rows with a usage are sub-commands: `aqpipe keys init --help` shows the options of `init` only.
 *
 *     static const struct aq_option options[] = {
 *         AQ_ROW(FLAG, struct asked, json, "json", NULL, "one JSON object"),
 *         AQ_ROW_RANGE(U32, struct asked, days, "days", "D", 1, 365, "how long they are good"),
 *         {0}};
 *     static const struct aq_command_line line = {"aqpipe status", "RUN", "What a run is doing.", options, NULL};
 *     const int code = aq_options_read(&line, argc, argv, &asked, &arguments);
 *     if (code != AQ_OPTIONS_READ) return code;
 *
 * Locking: one thread.
 */
#ifndef RUNTIME_OPTIONS_H
#define RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AQ_OPTIONS_MAX = 32, AQ_ARGUMENTS_MAX = 256, AQ_OPTIONS_READ = -1 };

enum aq_option_kind {
    AQ_OPTION_FLAG,   /* bool: it was given                             */
    AQ_OPTION_TEXT,   /* const char *: as it was written                */
    AQ_OPTION_U32,    /* uint32_t: a whole number from min to max       */
    AQ_OPTION_U64,    /* uint64_t, the same                             */
    AQ_OPTION_NUMBER, /* double, from min to max                        */
    AQ_OPTION_TIME,   /* double of seconds, from min to max: 90, 500ms, 10min, 2h */
    AQ_OPTION_LIST,   /* struct aq_arguments: as often as it is given   */
    AQ_OPTION_WORD,   /* no option: an argument that --help explains    */
    AQ_OPTION_READ    /* whatever `read` makes of it                    */
};

/* Texts as they were given, borrowed from argv. */
struct aq_arguments {
    uint32_t count;
    const char *of[AQ_ARGUMENTS_MAX];
};

struct aq_option {
    const char *name; /* "restarts": --restarts. NULL ends the table */
    char letter;      /* 'o': also -o; 0: none                       */
    enum aq_option_kind kind;
    size_t offset;     /* of what it sets in the command's struct; of READ: what `read` gets */
    const char *value; /* what its value is called in --help; NULL: it takes none            */
    const char *help;  /* NULL: not for people                                               */
    double min, max;
    const char *(*read)(const char *value, void *to); /* NULL, or what is wrong: "bytes, or 512M" were wanted */
    const char *of; /* the sub-commands that have it, with blanks between them; NULL: all, and the command itself */
    const char *usage, *more; /* of a sub-command (WORD): its arguments; what its own help explains, or NULL: `help` */
};

#define AQ_ROW(kind_, type_, member_, name_, value_, help_)                                                            \
    {                                                                                                                  \
        .name = (name_), .kind = AQ_OPTION_##kind_, .offset = offsetof(type_, member_), .value = (value_),             \
        .help = (help_)                                                                                                \
    }
#define AQ_ROW_MORE(kind_, type_, member_, name_, value_, help_, ...)                                                  \
    {                                                                                                                  \
        .name = (name_), .kind = AQ_OPTION_##kind_, .offset = offsetof(type_, member_), .value = (value_),             \
        .help = (help_), __VA_ARGS__                                                                                   \
    }
#define AQ_ROW_RANGE(kind_, type_, member_, name_, value_, min_, max_, help_)                                          \
    AQ_ROW_MORE(kind_, type_, member_, name_, value_, help_, .min = (min_), .max = (max_))
#define AQ_ROW_OF(of_, kind_, type_, member_, name_, value_, help_)                                                    \
    AQ_ROW_MORE(kind_, type_, member_, name_, value_, help_, .of = (of_))
#define AQ_ROW_READ(read_, type_, member_, name_, value_, help_)                                                       \
    AQ_ROW_MORE(READ, type_, member_, name_, value_, help_, .read = (read_))
#define AQ_ROW_VERB(name_, usage_, help_, more_)                                                                       \
    {                                                                                                                  \
        .name = (name_), .kind = AQ_OPTION_WORD, .help = (help_), .usage = (usage_), .more = (more_)                   \
    }

struct aq_command_line {
    const char *name;      /* "aqpipe launch"                                              */
    const char *arguments; /* "JOB.yaml"; one line each where there are several ways; NULL: none */
    const char *about;     /* above the options                                            */
    const struct aq_option *options;
    const char *more; /* below them, or NULL                                              */
};

/*
 * Read argv (its first is the command's name) into the struct at `to`; *arguments gets what is no option.
 * AQ_OPTIONS_READ: continue. Else the exit status: --help or an error was printed.
 */
int aq_options_read(const struct aq_command_line *line, int argc, char **argv, void *to,
                    struct aq_arguments *arguments);

/* A READ of bytes into a uint64_t: "5000000000", "512M" and "512MiB" (1024), "5GB" (1000). */
const char *aq_size_read(const char *value, void *to);
/* A READ of steps into a uint64_t, modulo 2^64: "-12" is 2^64 - 12. */
const char *aq_steps_read(const char *value, void *to);
/* A READ of a descriptor into an int. */
const char *aq_descriptor_read(const char *value, void *to);

/* Was --json given to the command line that was read last, be it a good one or not? */
bool aq_options_json(void);

/* Looks for --json in a command line that this program does not read. aq_options_read does so itself. */
void aq_options_json_find(int argc, char **argv);

/* The last text of aq_options_wrong or aq_command_failed, or "". Borrowed until their next call. */
const char *aq_options_said(void);

/* Print "aqpipe: ..." with the failure to standard error; returns AQ_EXIT_FAILED. */
int aq_command_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Say on standard error what is wrong with a command line of that name ("aqpipe launch"); answers AQ_EXIT_USAGE. */
int aq_options_wrong(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
