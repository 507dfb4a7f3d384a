/* main_aqpipe.c -- the command `aqpipe`: a table of commands, and help that teaches. */
#include <stdio.h>
#include <string.h>

#include "aqsgd/base.h"
#include "commands.h"
#include "completion.h"
#include "nearest.h"
#include "plan.h"
#include "process_begin.h"
#include "worker.h"

static const struct aq_command commands[] = {
    {"plan", "check a manifest; print its stages, memory, bytes, schedule and predicted step time", aq_command_plan},
    {"launch", "run a job: from a manifest to a trained model and a report", aq_command_launch},
    {"resume", "go on with a run that stopped, or further with one that ended", aq_command_resume},
    {"status", "what a run, or a daemon, is doing", aq_command_status},
    {"top", "watch a run: where each stage's time goes", aq_command_top},
    {"stop", "stop a run after its current step, with a checkpoint", aq_command_stop},
    {"logs", "what a stage's worker has written", aq_command_logs},
    {"report", "compare runs: one table, report.json, curves for plotting", aq_command_report},
    {"plot", "draw curves of runs as a picture (SVG): loss, c_Q, speed over steps, time or bytes", aq_command_plot},
    {"import", "what a published model folder is, and a manifest to begin with", aq_command_import},
    {"export", "write what a run has trained as a folder that other programs load", aq_command_export},
    {"eval", "what a model folder scores on held-out data, in one process", aq_command_eval},
    {"generate", "what a model folder writes behind a prompt, in one process", aq_command_generate},
    {"split-server", "split learning: the middle of a network, and whose turn it is", aq_command_split_server},
    {"split-client", "split learning: the two ends of a network, with the data", aq_command_split_client},
    {"keys", "make and show the certificates of a job, for mutual TLS", aq_command_keys},
    {"cache", "look at the message caches of a run: stat, verify, compact", aq_command_cache},
    {"doctor", "look at this machine, and at a job's part of it, before hours are spent", aq_command_doctor},
    {"bench", "measure this machine: stages, codecs, cache, links, whole jobs", aq_command_bench},
    {"worker", NULL, aq_command_worker},
    {"split-turn", NULL, aq_command_split_turn}, /* split-server's */
    {"wanlab", NULL, aq_command_wanlab},         /* tools/wanlab */
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char about[] =
    "aqpipe fine-tunes neural networks that are cut into pipeline stages over slow links (10 to 400 Mbit/s): it sends, "
    "for\n"
    "every training sample, not the activation but its quantized change since the sample was last seen (AQ-SGD).\n";

static const char examples[] =
    "A job is one manifest (YAML). Begin with the plan, then launch:\n"
    "  aqpipe plan job.yaml                          what would run, and how fast\n"
    "  aqpipe doctor job.yaml                        is this machine fit for it?\n"
    "  aqpipe launch job.yaml                        run it; Ctrl-C stops with a checkpoint\n"
    "  aqpipe launch job.yaml --run out --set train.lr=1e-4 --set link.rate_mbps=100\n"
    "  aqpipe resume out                             go on\n"
    "  aqpipe report run-a run-b                     compare\n"
    "  aqpipe plot run-a run-b -o loss.svg           see their curves\n"
    "  aqpipe import FOLDER                          what is this model folder?\n"
    "  aqpipe export out model                       a folder that transformers loads\n"
    "  aqpipe generate out --prompt 'Once upon'      what has it learnt?\n"
    "  aqpipe cache verify out                       are its message caches whole?\n"
    "\n"
    "`aqpipe COMMAND --help` tells more of each. AQ_LOG=2, or AQ_LOG=net:4,edge:3, makes rooms talk.\n"
    "Exit status: 0 done; 1 failed; 2 usage or manifest; 3 stopped by the user, with a checkpoint.\n";

static void help(FILE *to)
{
    fprintf(to, "usage: aqpipe COMMAND [options]\n\n%s\n", about);
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].help) fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "  %-12s %s\n", "help",
            "this page; `help COMMAND`; `help keys`: every key of a manifest, its type and default;\n"
            "               `help completion bash` (zsh, fish): what that shell completes");
    fprintf(to, "\n%s", examples);
}

static const struct aq_command *find(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
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
        fprintf(stderr, "aqpipe: there is no command '%s'; did you mean '%s'?\n", name, aq_nearest_of(&nearest));
    else
        fprintf(stderr, "aqpipe: there is no command '%s'; aqpipe --help lists them\n", name);
    return AQ_EXIT_USAGE;
}

/* `aqpipe help COMMAND` is `aqpipe COMMAND --help`; `aqpipe help keys` is about manifests. topic: what follows help. */
static int help_about(int topics, char **topic)
{
    char *name = topics > 0 ? topic[0] : NULL;
    static char option[] = "--help";
    if (!name) {
        help(stdout);
        return AQ_EXIT_DONE;
    }
    if (strcmp(name, "keys") == 0) return aq_command_help_keys(topics, topic);
    if (strcmp(name, "completion") == 0)
        return aq_completion_program(stdout, topics > 1 ? topic[1] : "", "aqpipe", commands, COMMANDS);
    char *arguments[] = {name, option, NULL};
    const struct aq_command *command = find(name);
    return command && command->help ? command->run(2, arguments) : unknown(name);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return AQ_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return help_about(0, NULL);
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
