/* bench.c -- `aqpipe bench`: the dispatch, and the one way a figure is printed. */
#include "bench.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static const struct {
    const char *name, *help;
    enum aq_status (*run)(const struct aq_bench_options *options);
} benches[] = {
#define AQ_BENCH(name, help) {#name, help, aq_bench_##name},
#include "benches.def"
};
enum { BENCHES = sizeof benches / sizeof *benches };

/* more: further fields of the object, each with its comma. */
static void emit(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                 const char *more)
{
    if (!options->json)
        printf("%-44s %12.6g %s\n", name, value, unit);
    else if (isfinite(value))
        printf("{\"case\": \"%s\", \"value\": %.9g, \"unit\": \"%s\"%s}\n", name, value, unit, more);
    else
        printf("{\"case\": \"%s\", \"value\": null, \"unit\": \"%s\"%s}\n", name, unit, more);
    fflush(stdout);
}

void aq_bench_emit(const struct aq_bench_options *options, const char *name, double value, const char *unit)
{
    emit(options, name, value, unit, "");
}

void aq_bench_emit_by(const struct aq_bench_options *options, const char *name, double value, const char *unit,
                      const char *by, uint64_t parameters)
{
    char more[128];
    snprintf(more, sizeof more, ", \"by\": \"%s\", \"parameters\": %llu", by, (unsigned long long)parameters);
    emit(options, name, value, unit, more);
}

static void usage(void)
{
    puts("usage: aqpipe bench NAME... [--json] [--quick] [--full] [--only TEXT] [--parameters N] [--threads N]\n"
         "                    [--device KIND[:INDEX]]\n\n"
         "Measures this machine. A bench prints figures and judges nothing. `all` runs every one.\n");
    for (int i = 0; i < BENCHES; i++)
        printf("  %-9s %s\n", benches[i].name, benches[i].help);
    puts("\n  --json       one object a line: {\"case\": \"...\", \"value\": ..., \"unit\": \"...\"}\n"
         "  --quick      smaller, fewer repeats: for a look\n"
         "  --threads N  of the CPU pool; every core otherwise\n"
         "  --device D   of stage, device and allreduce: cpu (as it is), cuda or cuda:1\n"
         "  --full       of allreduce: nothing is made smaller to save time (5 minutes)\n"
         "  --only TEXT  of allreduce, and of stage on a GPU: the cases whose name has TEXT;\n"
         "               of job: the part with these words (\"dp2pp4\")\n"
         "  --parameters N  of allreduce: so many floats instead of 124439808");
}

static int run_one(const struct aq_bench_options *options, const char *name)
{
    bool found = false;
    for (int i = 0; i < BENCHES; i++) {
        if (strcmp(name, "all") != 0 && strcmp(name, benches[i].name) != 0) continue;
        found = true;
        if (benches[i].run(options) != AQ_OK) return AQ_EXIT_FAILED;
    }
    return found ? AQ_EXIT_DONE : aq_usage("bench", "there is no bench '%s'", name);
}

static bool device_take(struct aq_bench_options *bench, const char *text)
{
    char *end = "";
    const char *colon = strchr(text, ':');
    const unsigned long index = colon ? strtoul(colon + 1, &end, 10) : 0;
    bench->device = strncmp(text, "cuda", 4) == 0 ? "cuda" : "cpu";
    bench->device_index = (uint32_t)index;
    if (colon) return colon == text + 4 && colon[1] && !*end && index < 1024 && strcmp(bench->device, "cuda") == 0;
    return strcmp(text, bench->device) == 0;
}

/* One option, by its letter. False: its argument is wrong, and text says what was wanted. */
static bool take(struct aq_bench_options *bench, int option, const char *argument, const char **text)
{
    char *end;
    unsigned long threads;
    switch (option) {
    case 'j':
        bench->json = true;
        return true;
    case 'q':
        bench->quick = true;
        return true;
    case 'f':
        bench->full = true;
        return true;
    case 'o':
        bench->only = argument;
        return true;
    case 't':
        *text = "--threads wants 1 to 1024";
        threads = strtoul(argument, &end, 10);
        bench->threads = (uint32_t)threads;
        return *end == 0 && threads >= 1 && threads <= 1024;
    case 'd':
        *text = "--device wants cpu, cuda or cuda:INDEX";
        return device_take(bench, argument);
    case 'p':
        *text = "--parameters wants 1 to 2^34";
        bench->parameters = strtoull(argument, &end, 10);
        return *end == 0 && *argument != '-' && bench->parameters >= 1 && bench->parameters <= UINT64_C(1) << 34;
    default:
        *text = "the options are wrong";
        return false;
    }
}

int aq_command_bench(int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"full", no_argument, NULL, 'f'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"parameters", required_argument, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    struct aq_bench_options bench = {.device = "cpu"};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        const char *text = "";
        if (option == 'h') {
            usage();
            return AQ_EXIT_DONE;
        }
        if (!take(&bench, option, optarg, &text)) return aq_usage("bench", "%s", text);
    }
    if (optind == argc) return aq_usage("bench", "which one?");
    for (int i = optind; i < argc; i++) {
        const int code = run_one(&bench, argv[i]);
        if (code != AQ_EXIT_DONE) return code;
    }
    return AQ_EXIT_DONE;
}
