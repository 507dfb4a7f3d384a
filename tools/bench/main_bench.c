/*
 * main_bench.c -- the program aqpipe-bench, which `aqpipe bench` starts (runtime/cli/command_bench.c): its command
 * line, and which benches run.
 *
 * It is in the folder of aqpipe and aqpiped, because the benches of whole jobs start both. It prints its name as
 * "aqpipe bench", because that is what its user called. `aqpipe-bench worker` is the worker of daemons that
 * bench_wan.c starts (timed_worker.c).
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "nearest.h"
#include "options.h"
#include "process_begin.h"
#include "worker.h"

static const struct {
    const char *name, *help;
    enum aq_status (*run)(const struct aq_bench_options *options);
} benches[] = {
#define AQ_BENCH(name, help) {#name, help, aq_bench_##name},
#include "benches.def"
};
enum { BENCHES = sizeof benches / sizeof *benches };

static const struct aq_command_line line;

static int run_one(const struct aq_bench_options *options, const char *name)
{
    static bool told; /* the machine is printed once, before all figures */
    for (int i = 0; i < BENCHES; i++) {
        if (strcmp(name, "all") != 0 && strcmp(name, benches[i].name) != 0) continue;
        if (!told) aq_bench_machine(options);
        told = true;
        if (benches[i].run(options) != AQ_OK) return AQ_EXIT_FAILED;
    }
    return AQ_EXIT_DONE;
}

static bool is_bench(const char *name)
{
    int i = 0;
    while (i < BENCHES && strcmp(name, benches[i].name) != 0)
        i++;
    return i < BENCHES || strcmp(name, "all") == 0;
}

static int unknown(const char *name)
{
    struct aq_nearest nearest = {.word = name};
    for (int i = 0; i < BENCHES; i++)
        aq_nearest_try(&nearest, benches[i].name);
    const char *meant = aq_nearest_of(&nearest);
    return aq_options_wrong(line.name, "there is no bench '%s'%s%s", name, meant ? "; did you mean " : "",
                            meant ? meant : "");
}

/* "cuda:1" */
static const char *device_read(const char *text, void *to)
{
    struct aq_bench_options *bench = to;
    char *end = "";
    const char *colon = strchr(text, ':');
    const unsigned long index = colon ? strtoul(colon + 1, &end, 10) : 0;
    const bool cuda = strncmp(text, "cuda", 4) == 0;
    bench->device = cuda ? "cuda" : "cpu";
    bench->device_index = (uint32_t)index;
    const bool good =
        colon ? cuda && colon == text + 4 && colon[1] && !*end && index < 1024 : strcmp(text, bench->device) == 0;
    return good ? NULL : "cpu, cuda or cuda:INDEX is wanted";
}

static const struct aq_option options[] = {
#define AQ_BENCH(name, help) AQ_ROW_VERB(#name, NULL, help, NULL),
#include "benches.def"
    AQ_ROW(FLAG, struct aq_bench_options, json, "json", NULL,
           "one object per line: {\"case\": ..., \"value\": ..., \"unit\": ...}; errors, too"),
    AQ_ROW(FLAG, struct aq_bench_options, quick, "quick", NULL, "smaller cases and fewer repeats"),
    AQ_ROW_RANGE(U32, struct aq_bench_options, threads, "threads", "N", 1, 1024,
                 "of the CPU pool; default: every core"),
    {.name = "device",
     .kind = AQ_OPTION_READ,
     .value = "D",
     .read = device_read,
     .of = "stage device allreduce all",
     .help = "cpu (the default), cuda or cuda:1"},
    AQ_ROW_OF("allreduce all", FLAG, struct aq_bench_options, full, "full", NULL,
              "make nothing smaller to save time (5 minutes)"),
    AQ_ROW(TEXT, struct aq_bench_options, only, "only", "TEXT",
           "the cases with all these words in their names (\"ssd\")"),
    AQ_ROW_MORE(U64, struct aq_bench_options, parameters, "parameters", "N", "that many floats instead of 124439808",
                .min = 1, .max = 17179869184.0, .of = "allreduce all"),
    AQ_ROW_OF("tokenize all", TEXT, struct aq_bench_options, text, "text", "FILE", "the text that becomes tokens"),
    AQ_ROW_OF("tokenize all", TEXT, struct aq_bench_options, tokenizer, "tokenizer", "FOLDER",
              "the tokenizer's folder (data.tokenizer_path)"),
    {0}};

static const struct aq_command_line line = {"aqpipe bench", "NAME...",
                                            "Measures this machine. A bench prints figures and judges nothing. `all` "
                                            "runs every one; `aqpipe bench NAME --help` "
                                            "shows the options of one.",
                                            options, NULL};

static int run(int argc, char **argv)
{
    struct aq_bench_options bench = {.device = "cpu"};
    struct aq_arguments names;
    if (argc > 1 && strcmp(argv[1], "worker") == 0) return aq_command_worker(argc - 1, argv + 1);
    int code = aq_options_read(&line, argc, argv, &bench, &names);
    if (code != AQ_OPTIONS_READ) return code;
    if (names.count == 0) return aq_options_wrong(line.name, "name a bench");
    code = AQ_EXIT_DONE;
    for (uint32_t i = 0; i < names.count; i++)
        if (!is_bench(names.of[i])) return unknown(names.of[i]);
    char instructions[64];
    aq_processor_text(aq_processor_used(), instructions);
    fprintf(stderr, "aqpipe bench: instructions %s\n", instructions);
    aq_bench_begin();
    for (uint32_t i = 0; i < names.count && code == AQ_EXIT_DONE; i++)
        code = run_one(&bench, names.of[i]);
    return aq_bench_end(&bench) == AQ_OK ? code : AQ_EXIT_FAILED;
}

int main(int argc, char **argv)
{
    uint32_t instructions;
    aq_log_init(AQ_LOG_COMMAND);
    if (aq_process_begin() != AQ_OK || aq_processor_choose(&instructions) != AQ_OK) return AQ_EXIT_USAGE;
    return aq_command_end("aqpipe", run(argc, argv));
}
