/* main_aqpipe.c -- the command `aqpipe`: a table of commands, and help that teaches. */
#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"
#include "commands.h"
#include "completion.h"
#include "message.h"
#include "nearest.h"
#include "options.h"
#include "options_help.h"
#include "out.h"
#include "process_begin.h"
#include "worker.h"

static const struct aq_command commands[] = {
    {"init", "make a job from a model folder, data and hosts: manifest, keys, next commands", aq_command_init},
    {"plan", "check a manifest; print stages, memory, bytes, schedule and predicted step time", aq_command_plan},
    {"launch", "run a job: from a manifest to a trained model and a report", aq_command_launch},
    {"resume", "continue a run that stopped, or train one that ended for longer", aq_command_resume},
    {"status", "show what a run, or a daemon, is doing", aq_command_status},
    {"top", "watch a run: where each stage's time goes", aq_command_top},
    {"stop", "stop a run after its current step, with a checkpoint", aq_command_stop},
    {"logs", "show the logs of a run's stages", aq_command_logs},
    {"report", "summarize a run, or compare several: a table, report.json, curves", aq_command_report},
    {"plot", "draw curves of runs (SVG): loss, c_Q, speed over steps, time or bytes", aq_command_plot},
    {"import", "describe a published model folder; write a first manifest for it", aq_command_import},
    {"export", "write a trained model as a folder that other programs load", aq_command_export},
    {"eval", "evaluate a model folder on held-out data, in one process", aq_command_eval},
    {"generate", "generate text with a model folder, in one process", aq_command_generate},
    {"split-server", "split learning: the middle of a network, and the order of turns", aq_command_split_server},
    {"split-client", "split learning: the two ends of a network, with the data", aq_command_split_client},
    {"epsilon", "split learning: the privacy that noise gives a sample, by its visits", aq_command_epsilon},
    {"keys", "make and show the certificates of a job, for mutual TLS", aq_command_keys},
    {"cache", "look at the message caches of a run: stat, verify, compact, wipe", aq_command_cache},
    {"doctor", "check this machine, and its part of a job, before hours are spent", aq_command_doctor},
    {"bench", "measure this machine: stages, codecs, cache, links, whole jobs", aq_command_bench},
    {"worker", NULL, aq_command_worker},
    {"split-turn", NULL, aq_command_split_turn}, /* split-server's */
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const struct {
    const char *name, *command;
} aliases[] = {
#define AQ_COMMAND_ALIAS(name, command) {name, command},
#define AQ_OPTION_ALIAS(name, letter, option)
#include "command_aliases.def"
};
enum { ALIASES = sizeof aliases / sizeof *aliases };

static const char about[] =
    "aqpipe fine-tunes neural networks that are cut into pipeline stages over slow links. For each\n"
    "training sample it sends the quantized change of an activation since its last visit (AQ-SGD).\n";

static const char examples[] =
    "A job is one manifest (YAML):\n"
    "  aqpipe plan job.yaml                    what would run, and how fast\n"
    "  aqpipe launch job.yaml --run out        run it; Ctrl-C stops with a checkpoint\n"
    "  aqpipe resume out                       continue\n"
    "  aqpipe generate out --prompt 'Once'     try what it has learnt\n"
    "\n"
    "Exit status: 0 done; 1 failed; 2 wrong command line, manifest or path; 3 stopped by the user.\n";

static void help(FILE *to)
{
    fprintf(to, "Usage: aqpipe COMMAND [OPTION...]\n\n%s\n", about);
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].help) fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "  %-12s %s\n", "help",
            "this page; help COMMAND; help keys [SECTION | KEY]: keys of a manifest; help aliases;\n"
            "               help completion bash | zsh | fish");
    fprintf(to, "\n%s", examples);
}

static const struct aq_command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

/* The entry of command_aliases.def for this word, or the word. */
static char *meant(char *name)
{
    for (int i = 0; i < ALIASES; i++)
        if (strcmp(name, aliases[i].name) == 0) return (char *)(uintptr_t)aliases[i].command;
    return name;
}

static int unknown(const char *name)
{
    static const char *const others[] = {"help", "--help", "--version"};
    struct aq_nearest nearest = {.word = name};
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].help) aq_nearest_try(&nearest, commands[i].name);
    for (int i = 0; i < 3; i++)
        aq_nearest_try(&nearest, others[i]);
    if (aq_nearest_of(&nearest))
        (void)aq_command_failed("there is no command '%s'; did you mean '%s'?", name, aq_nearest_of(&nearest));
    else
        (void)aq_command_failed("there is no command '%s'; aqpipe --help lists them", name);
    return AQ_EXIT_USAGE;
}

static int help_aliases(void)
{
    struct aq_text text = {0};
    aq_options_aliases(&text);
    const bool whole = text.status == AQ_OK && aq_out_text(aq_text_of(&text));
    aq_text_deinit(&text);
    return whole ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

/* docs/MESSAGES.md. */
static int help_messages(void)
{
    char *text;
    if (aq_message_page(&text) != AQ_OK) return AQ_EXIT_FAILED;
    const bool whole = aq_out_text(text);
    aq_free(text);
    return whole ? AQ_EXIT_DONE : AQ_EXIT_FAILED;
}

/* `aqpipe help COMMAND [WORD]` is `aqpipe COMMAND [WORD] --help`; `aqpipe help keys` is about manifests. */
static int help_about(int topics, char **topic)
{
    char *name = topics > 0 ? meant(topic[0]) : NULL;
    static char option[] = "--help", keys[] = "keys";
    if (!name || strcmp(name, option) == 0) {
        help(stdout);
        return AQ_EXIT_DONE;
    }
    if (strcmp(name, "keys") == 0) return aq_command_help_keys(topics, topic);
    if (strcmp(name, "aliases") == 0) return help_aliases();
    if (strcmp(name, "messages") == 0) return help_messages();
    if (strcmp(name, "man") == 0) return aq_completion_program(stdout, "man", "aqpipe", commands, COMMANDS);
    if (strcmp(name, "completion") == 0)
        return aq_completion_program(stdout, topics > 1 ? topic[1] : "", "aqpipe", commands, COMMANDS);
    char *arguments[] = {name, topics > 1 ? topic[1] : option, option, NULL};
    const struct aq_command *command = find(name);
    if (strchr(name, '.')) return aq_command_help_keys(2, (char *[]){keys, name, NULL}); /* a key of a manifest */
    return command && command->help ? command->run(topics > 1 ? 3 : 2, arguments) : unknown(name);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return AQ_EXIT_USAGE;
    }
    argv[1] = meant(argv[1]);
    if (strcmp(argv[1], "--help") == 0) return help_about(0, NULL);
    if (strcmp(argv[1], "help") == 0) return help_about(argc - 2, argv + 2);
    if (strcmp(argv[1], "--version") == 0) {
        puts("aqpipe " AQ_VERSION);
        return AQ_EXIT_DONE;
    }
    const struct aq_command *command = find(argv[1]);
    uint32_t instructions;
    if (command && aq_processor_choose(&instructions) != AQ_OK) return AQ_EXIT_USAGE;
    return command ? command->run(argc - 1, argv + 1) : unknown(argv[1]);
}

int main(int argc, char **argv)
{
    aq_log_init(AQ_LOG_COMMAND);
    if (aq_process_begin() != AQ_OK) return AQ_EXIT_USAGE;
    return aq_command_end("aqpipe", run(argc, argv));
}
