/* bench_machine.c -- the first line of every bench: the machine. A figure without it has no meaning. */
#include <jansson.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench.h"

/* "AMD EPYC 9B14", from the kernel; without it, the architecture. */
static void cpu_name(const struct utsname *system, char *out, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(out, bytes, "%s", system->machine);
    while (file && fgets(line, sizeof line, file)) {
        const char *name = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !name) continue;
        line[strcspn(line, "\n")] = 0;
        (void)aq_printable_text(name + 1 + strspn(name + 1, " "), out, bytes);
        break;
    }
    if (file) fclose(file);
}

/* The file of a loaded library has its version in its name: libzstd.so.1.5.4. */
static int add_library(struct dl_phdr_info *info, size_t size, void *context)
{
    char path[PATH_MAX], name[128];
    (void)size;
    if (!info->dlpi_name || !realpath(info->dlpi_name, path)) return 0; /* the program, or the kernel's page */
    const char *slash = strrchr(path, '/');
    if (!slash || strncmp(slash + 1, "lib", 3) != 0) return 0;
    json_array_append_new(context, json_string(aq_printable_text(slash + 1, name, sizeof name)));
    return 0;
}

void aq_bench_machine(const struct aq_bench_options *options)
{
    struct utsname system = {0};
    char cpu[256];
    (void)uname(&system);
    cpu_name(&system, cpu, sizeof cpu);
    json_t *libraries = json_array();
    (void)dl_iterate_phdr(add_library, libraries);
    if (options->json) {
        json_t *line = json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:O}", "case", "machine", "value",
                                 (json_int_t)aq_thread_cores(), "unit", "cores", "cpu", cpu, "kernel", system.release,
                                 "architecture", system.machine, "version", AQ_VERSION, "libraries", libraries);
        json_dumpf(line, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        json_decref(line);
    } else {
        const json_t *name;
        size_t i;
        printf("machine: %s, %u cores, Linux %s %s, aqpipe " AQ_VERSION ",", cpu, aq_thread_cores(), system.release,
               system.machine);
        json_array_foreach(libraries, i, name) printf(" %s", json_string_value(name));
        putchar('\n');
    }
    json_decref(libraries);
    aq_bench_flush();
}
